//! `downbeat bench`: how fast it is, on this machine, with real parts: servers, workers and the store are
//! processes of their own, the driver is a client like any other.
//!
//! ```text
//! chain.rs   many runs of a chain of no-op tasks at once: throughput
//! idle.rs    one such run at a time: latency
//! fanout.rs  one run at a time over a list of items: what an item costs
//! fleet.rs   the processes, what they cost, and what Redis says
//! stats.rs   percentiles, the straightness of a curve, summary.json
//! worker.rs  the no-op worker
//! progress.rs            the line that says how it goes
//! series.rs charts.rs    of the chain, what happened when: series.csv, series.json and pictures
//! spans.rs sampler.rs    … as workers record it, and what the processes use meanwhile
//! ```
//!
//! Invariants
//! - A figure counts only if the audit is `ok`: every run ended completed, once, with every task done.
//! - Times are taken where the user is: from the moment a start is sent until its event has arrived.
//!
//! To add a scenario: its file with a `run`, a variant of [`Scenario`], its figures in [`stats::Summary`].

mod chain;
mod charts;
mod fanout;
mod fleet;
mod idle;
mod progress;
mod sampler;
mod series;
mod spans;
mod stats;
mod worker;

use super::{Failure, Outcome, output};
use crate::client::{CallError, Caller};
use fleet::Fleet;
use std::fmt::Write as _;
use std::path::PathBuf;

pub(super) use worker::{Args as WorkerArgs, run as run_worker};

/// What the no-op tasks are called.
const TASK_TYPE: &str = "bench-noop";

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// What to measure
    #[arg(value_enum)]
    scenario: Scenario,
    /// How many runs
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// Tasks per run, or items
    #[arg(long, value_name = "K", default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    tasks: u32,
    /// "redis" for a private one with an append-only file, redis://host:port, or "embedded"
    #[arg(long, value_name = "URL", default_value = "redis")]
    store: String,
    /// Server processes on the one store; workers are dealt out among them
    #[arg(long, value_name = "N", default_value_t = 1, conflicts_with = "server", value_parser = clap::value_parser!(u32).range(1..=8))]
    servers: u32,
    /// Worker processes
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    workers: u32,
    /// Tasks each worker may hold
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    concurrency: u32,
    /// Measures this server instead of one of our own
    #[arg(long, value_name = "URL", conflicts_with = "store")]
    server: Option<String>,
    /// Where to write summary.json and the logs of the processes; of `chain` also series.csv, series.json and charts
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Scenario {
    /// Many runs of a chain of no-op tasks at once
    Chain,
    /// One run at a time
    Idle,
    /// One run at a time: a task, then one for each of so many items, then a join
    Fanout,
}

pub(super) async fn run(args: Args) -> Outcome {
    if args.servers > 1 && args.store == "embedded" {
        return Err(Failure::usage("the embedded store is for one server; give --store redis"));
    }
    if let Some(out) = &args.out {
        std::fs::create_dir_all(out)
            .map_err(|e| Failure::usage(format!("{}: cannot be made: {e}", out.display())))?;
    }
    let mut fleet = Fleet::start(&args).await?;
    let caller = Caller::connect(&fleet.url).await.map_err(failure)?;
    let workflow = format!("bench-{}", fleet.nonce);
    let text = match args.scenario {
        Scenario::Chain | Scenario::Idle => document(&workflow, args.tasks),
        Scenario::Fanout => fanout::document(&workflow),
    };
    caller.register(text).await.map_err(failure)?;
    fleet.begin().await;
    let mut summary = match args.scenario {
        Scenario::Chain => chain::run(&args, &mut fleet, &caller, &workflow).await?,
        Scenario::Idle => idle::run(&args, &caller, &workflow, &fleet.nonce).await?,
        Scenario::Fanout => fanout::run(&args, &caller, &workflow, &fleet.nonce).await?,
    };
    fleet.end(&args, &mut summary).await;
    summary.print();
    if let Some(out) = &args.out {
        let path = out.join("summary.json");
        let text = serde_json::to_string_pretty(&summary).map_err(|e| Failure::failed(e.to_string()))?;
        std::fs::write(&path, text + "\n")
            .map_err(|e| Failure::failed(format!("{}: {e}", path.display())))?;
        output::note(&format!("written: {}", path.display()));
    }
    let recording = fleet.stop().await;
    if let (Some(recording), Some(out)) = (recording, &args.out) {
        recording.write(&format!("{} runs of {} tasks", args.runs, args.tasks), out)?;
    }
    if summary.audit == "ok" { Ok(()) } else { Err(Failure::failed(format!("audit: {}", summary.audit))) }
}

fn failure(error: CallError) -> Failure {
    let exit = match error {
        CallError::Unreachable(_) => super::Exit::Unreachable,
        CallError::Refused { .. } => super::Exit::Failed,
    };
    Failure::new(exit, error.to_string())
}

/// A chain of `tasks` tasks that do nothing; the run's input goes through all of them.
fn document(name: &str, tasks: u32) -> String {
    let mut text = format!("name: {name}\ntasks:\n");
    for n in 1..=tasks {
        // Writing to a string does not fail.
        let _ = write!(text, "  t{n}:\n    type: {TASK_TYPE}\n");
        let _ = match n {
            1 => writeln!(text, "    input: \"${{{{ input }}}}\""),
            _ => writeln!(text, "    needs: [t{0}]\n    input: \"${{{{ tasks.t{0}.output }}}}\"", n - 1),
        };
    }
    let _ = writeln!(text, "output: \"${{{{ tasks.t{tasks}.output }}}}\"");
    text
}

/// What every run starts with.
const INPUT: &[u8] = br#"{"order_id":"o-1001","amount":1228.1}"#;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::document::{Format, parse};

    #[test]
    fn the_measured_workflow_is_valid_at_any_length() {
        for tasks in [1, 2, 9, 10_000] {
            let text = document("bench-x", tasks);
            let document = parse(text.as_bytes(), Format::Yaml).unwrap_or_else(|f| panic!("{f:?}\n{text}"));
            assert_eq!(document.plan.tasks.len(), tasks as usize);
        }
        let text = fanout::document("bench-x");
        let document = parse(text.as_bytes(), Format::Yaml).unwrap_or_else(|f| panic!("{f:?}\n{text}"));
        assert_eq!(document.plan.tasks.len(), 3);
    }
}
