//! The `downbeat` binary; everything is in the library.

fn main() -> std::process::ExitCode {
    downbeat::cli::main()
}
