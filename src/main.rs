//! The `downbeat` binary; everything is in the library.

/// A third of a server's time went into the system's allocator. See docs/benchmarks.md.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    downbeat::cli::main()
}
