//! The command line and composition root: one file per command; the only place that names both stores.

/// Runs the command line and returns the exit status: 0 done, 1 the thing asked for failed, 2 wrong usage,
/// 3 server not reachable.
pub fn main() -> std::process::ExitCode {
    std::process::ExitCode::from(2)
}
