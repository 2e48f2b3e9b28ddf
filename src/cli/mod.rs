//! The command line and composition root: one file per command; the only place that names both stores.
//!
//! ```text
//! serve dev        a server; compose.rs puts its parts together, waiting.rs waits for its Redis
//! worker           a worker for any program
//! register start get list watch health     REST and SSE, by http.rs
//! cancel pause resume signal retry         control.rs: one run, and how it stands then
//! skip complete fail rerun                 … and one of its tasks
//! schedule         put list get delete pause resume run backfill next
//! validate test graph schema               documents, without a server
//! migrate          a store of another layout
//! backup restore   a whole store to a file, and back
//! occupancy        how many tasks ran at the same time, from anybody's file
//! doctor           a Redis, without a server; orphans.rs: its keys that nobody owns
//! demo bench       everything at once
//! output.rs        tables, colours, JSON      http.rs sse.rs   the client's side of REST
//! ```
//!
//! Invariants
//! - What was asked for goes to standard output, everything else to standard error.
//! - The exit status is one of [`Exit`], whatever happens.
//!
//! To add a command: its file with a `clap::Args` struct and a `run`, its variant in [`Command`], its line in
//! [`Command::run`], a test in `tests/cli.rs`.

mod backup;
mod bench;
mod cancel;
mod complete;
mod compose;
mod control;
mod demo;
mod dev;
mod doctor;
mod fail;
mod get;
mod graph;
mod health;
mod http;
mod list;
mod migrate;
mod occupancy;
mod orphans;
mod output;
mod pause;
mod register;
mod rerun;
mod restore;
mod resume;
mod retry;
mod schedule;
mod schema;
mod serve;
mod signal;
mod skip;
mod sse;
mod start;
mod test;
mod validate;
mod waiting;
mod watch;
mod worker;

use clap::{Args, Parser, Subcommand};
use output::Output;
use std::process::ExitCode;

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Exit {
    /// Done.
    Done = 0,
    /// The thing asked for failed.
    Failed = 1,
    /// Wrong usage.
    Usage = 2,
    /// No server was reached.
    Unreachable = 3,
}

/// Why a command ended otherwise than done.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Failure {
    exit: Exit,
    /// For people; empty if everything was said.
    message: String,
}

impl Failure {
    fn new(exit: Exit, message: impl Into<String>) -> Self {
        Self { exit, message: message.into() }
    }

    fn failed(message: impl Into<String>) -> Self {
        Self::new(Exit::Failed, message)
    }

    fn usage(message: impl Into<String>) -> Self {
        Self::new(Exit::Usage, message)
    }

    /// The outcome was shown already; only the status is left to say.
    fn silent() -> Self {
        Self::new(Exit::Failed, "")
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Self::failed(error.to_string())
    }
}

type Outcome = Result<(), Failure>;

/// Workflow orchestration over REST and gRPC, with its state in Redis or in a directory.
#[derive(Debug, Parser)]
#[command(name = "downbeat", version, about, after_help = AFTER_HELP)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

const AFTER_HELP: &str =
    "Exit status: 0 done, 1 the thing asked for failed, 2 wrong usage, 3 server not reachable.";

#[derive(Debug, Subcommand)]
enum Command {
    /// Starts a server for development: embedded store, loopback, nothing to set up
    Dev(dev::Args),
    /// Starts a server
    Serve(serve::Args),
    /// Does tasks by running a command for each
    Worker(worker::Args),
    /// Registers workflow documents
    Register(register::Args),
    /// Checks workflow documents without a server
    Validate(validate::Args),
    /// Plays workflows against answers given in a file, without a server
    Test(test::Args),
    /// Draws a workflow document, as Mermaid or SVG, without a server
    Graph(graph::Args),
    /// Prints the JSON Schema of workflow documents, for editors
    Schema(schema::Args),
    /// Starts a run
    Start(start::Args),
    /// Shows a run
    Get(get::Args),
    /// Lists runs, newest first
    List(list::Args),
    /// Follows the events of a run until it ends
    Watch(watch::Args),
    /// Cancels a run
    Cancel(cancel::Args),
    /// Starts nothing new in a run until it is resumed
    Pause(pause::Args),
    /// Lets a paused run go on
    Resume(resume::Args),
    /// Sends a run a signal
    Signal(signal::Args),
    /// Begins an ended run again from what failed
    Retry(retry::Args),
    /// Begins an ended run again from one task
    Rerun(rerun::Args),
    /// Skips a task by hand
    Skip(skip::Args),
    /// Completes a task by hand
    Complete(complete::Args),
    /// Fails a task by hand
    Fail(fail::Args),
    /// Starts runs at times of a calendar
    Schedule(schedule::Args),
    /// Asks a server whether it is ready; for health checks
    Health(health::Args),
    /// Looks at a Redis: what is wrong with it for Downbeat, and what would be better
    Doctor(doctor::Args),
    /// Counts how many tasks ran at the same time, from a CSV file of starts and ends, without a server
    Occupancy(occupancy::Args),
    /// Writes all of a store into a file
    Backup(backup::Args),
    /// Gives an empty store all that a file holds
    Restore(restore::Args),
    /// Brings a store to the layout of this version
    Migrate(migrate::Args),
    /// Shows all of it at work: a server, three workers, an order going through
    Demo(demo::Args),
    /// Measures how fast it is
    Bench(bench::Args),
    /// A worker that gives every input back
    #[command(hide = true)]
    BenchWorker(bench::WorkerArgs),
}

impl Command {
    /// How many threads it runs on. What only talks to a server, or hands tasks to programs, needs few.
    fn threads(&self) -> usize {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        match self {
            Self::Serve(args) => args.threads().unwrap_or(1),
            Self::Dev(_) | Self::Demo(_) => cores,
            _ => (cores / 2).max(1),
        }
    }

    async fn run(self) -> Outcome {
        match self {
            Self::Dev(args) => dev::run(args).await,
            Self::Serve(args) => serve::run(args).await,
            Self::Worker(args) => worker::run(args).await,
            Self::Register(args) => register::run(args).await,
            Self::Validate(args) => validate::run(args),
            Self::Test(args) => test::run(args),
            Self::Graph(args) => graph::run(args),
            Self::Schema(args) => {
                schema::run(&args);
                Ok(())
            }
            Self::Start(args) => start::run(args).await,
            Self::Get(args) => get::run(args).await,
            Self::List(args) => list::run(args).await,
            Self::Watch(args) => watch::run(args).await,
            Self::Cancel(args) => cancel::run(args).await,
            Self::Pause(args) => pause::run(args).await,
            Self::Resume(args) => resume::run(args).await,
            Self::Signal(args) => signal::run(args).await,
            Self::Retry(args) => retry::run(args).await,
            Self::Rerun(args) => rerun::run(args).await,
            Self::Skip(args) => skip::run(args).await,
            Self::Complete(args) => complete::run(args).await,
            Self::Fail(args) => fail::run(args).await,
            Self::Schedule(args) => schedule::run(args).await,
            Self::Health(args) => health::run(args).await,
            Self::Doctor(args) => doctor::run(args).await,
            Self::Occupancy(args) => occupancy::run(&args),
            Self::Backup(args) => backup::run(args).await,
            Self::Restore(args) => restore::run(args).await,
            Self::Migrate(args) => migrate::run(args).await,
            Self::Demo(args) => demo::run(args).await,
            Self::Bench(args) => bench::run(args).await,
            Self::BenchWorker(args) => bench::run_worker(args).await,
        }
    }
}

/// What every command that talks to a server takes.
#[derive(Debug, Args)]
struct Client {
    /// Address of the server
    #[arg(long, value_name = "URL", env = "DOWNBEAT_SERVER", default_value = "http://127.0.0.1:7070")]
    server: String,
    /// How to print the answer
    #[arg(long, value_enum, default_value = "table", value_name = "FORM")]
    output: Output,
}

impl Client {
    fn connect(&self) -> Result<http::Api, Failure> {
        http::Api::new(&self.server)
    }
}

/// Expressions may need deep recursion before their limits stop them; see `model/expr`.
const STACK_BYTES: usize = 8 << 20;

/// Runs the command line and returns the exit status: 0 done, 1 the thing asked for failed, 2 wrong usage,
/// 3 server not reachable.
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version are no errors: they go to standard output and leave 0.
            let exit = if error.use_stderr() { Exit::Usage } else { Exit::Done };
            // Nothing can be told on a closed terminal.
            let _ = error.print();
            return ExitCode::from(exit as u8);
        }
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(cli.command.threads())
        .enable_all()
        .thread_stack_size(STACK_BYTES)
        .build();
    let outcome = match runtime {
        Ok(runtime) => {
            let outcome = runtime.block_on(async {
                // On a worker thread, which has the deep stack.
                tokio::spawn(cli.command.run()).await
            });
            // Reads of a terminal that nobody answers must not hold up the end.
            runtime.shutdown_background();
            outcome.unwrap_or_else(|e| Err(Failure::failed(format!("this is a bug in downbeat: {e}"))))
        }
        Err(e) => Err(Failure::failed(format!("no threads to run on: {e}"))),
    };
    match outcome {
        Ok(()) if output::lost().is_none() => ExitCode::from(Exit::Done as u8),
        Ok(()) => {
            output::error(&format!("it could not all be printed: {}", output::lost().unwrap_or_default()));
            ExitCode::from(Exit::Failed as u8)
        }
        Err(Failure { exit, message }) => {
            if !message.is_empty() {
                output::error(&message);
            }
            ExitCode::from(exit as u8)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_client_command_takes_server_and_output() {
        let command = Cli::command();
        for name in [
            "register", "start", "get", "list", "watch", "health", "cancel", "pause", "resume", "signal",
            "retry", "rerun", "skip", "complete", "fail",
        ] {
            let sub = command.find_subcommand(name).unwrap();
            let flags: Vec<_> = sub.get_arguments().filter_map(|a| a.get_long()).collect();
            assert!(flags.contains(&"server") && flags.contains(&"output"), "{name}: {flags:?}");
        }
        for sub in command.find_subcommand("schedule").unwrap().get_subcommands() {
            let flags: Vec<_> = sub.get_arguments().filter_map(|a| a.get_long()).collect();
            assert!(flags.contains(&"server") && flags.contains(&"output"), "{}: {flags:?}", sub.get_name());
        }
    }
}
