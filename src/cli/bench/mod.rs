//! `downbeat bench`: how fast it is, on this machine, with real parts: servers, workers and the store are
//! processes of their own, the driver is a client like any other.
//!
//! ```text
//! chain.rs    many runs of a chain, a diamond or a single task at once: throughput
//! idle.rs     one such run at a time: latency
//! fanout.rs   one run at a time over a list of items: what an item costs
//! attach.rs   from a worker's subscription to its first task
//! sse.rs      from a commit to many readers of the event stream
//! open.rs     many runs that stay open: what they take
//! workers.rs  many workers with nothing to do: what they cost
//! link.rs     the link to Redis alone
//! flow.rs     the measured workflows           audit.rs    what is counted afterwards
//! fleet.rs    the processes, what they cost, and what Redis says
//! ceiling.rs  the commit script alone          stats.rs    percentiles, summary.json
//! forks.rs    Redis saves itself meanwhile
//! worker.rs   the no-op worker
//! progress.rs the line that says how it goes
//! series.rs charts.rs    of the chain, what happened when: series.csv, series.json and pictures
//! spans.rs sampler.rs    … as workers record it, and what the processes use meanwhile
//! ```
//!
//! Invariants
//! - A figure counts only if the audit is `ok`: every run ended completed, once, with every task done.
//! - Times are taken where the user is: from the moment a start is sent until its event has arrived.
//! - What warms up and what audits stands outside of [`Fleet::begin`] and [`Fleet::end`].
//!
//! To add a scenario: its file with a `run`, a variant of [`Scenario`] with its answers there, its figures in
//! [`stats::Summary`], its line in `docs/benchmarks.md`.

mod attach;
mod audit;
mod ceiling;
mod chain;
mod charts;
mod fanout;
mod fleet;
mod flow;
mod forks;
mod idle;
mod link;
mod open;
mod progress;
mod redis;
mod sampler;
mod series;
mod spans;
mod sse;
mod stats;
mod worker;
mod workers;

use super::{Failure, Outcome, output};
use crate::client::{CallError, Caller};
use crate::lifecycle::Lifecycle;
use crate::model::payload::PAYLOAD_MAX;
use fleet::Fleet;
use flow::Flow;
use forks::Forks;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::path::PathBuf;
use std::time::Duration;

pub(super) use worker::{Args as WorkerArgs, run as run_worker};

/// What the no-op tasks are called.
const TASK_TYPE: &str = "bench-noop";
/// Bytes of a payload of `echo` unless told otherwise.
const ECHO_BYTES: u32 = 1_024;
/// Tasks each worker may hold unless told otherwise.
const CONCURRENCY: u32 = 1_000;
/// Tasks of a diamond.
const DIAMOND: u32 = 4;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// What to measure
    #[arg(value_enum)]
    scenario: Scenario,
    /// How many runs; of `sse` for each number of subscribers, of `attach` for each kind of connection, of `workers`
    /// after the idle time; of `link` commands of each kind by each task [default: 10000; idle 1000, fanout 20,
    /// attach 200, sse 300, open 100000, workers 1000, link 100000]
    #[arg(
        long, value_name = "N", default_value_t = 10_000, hide_default_value = true,
        default_value_ifs = [
            ("scenario", "idle", "1000"), ("scenario", "fanout", "20"), ("scenario", "attach", "200"),
            ("scenario", "sse", "300"), ("scenario", "open", "100000"), ("scenario", "workers", "1000"),
            ("scenario", "link", "100000"),
        ],
        value_parser = clap::value_parser!(u32).range(1..),
    )]
    runs: u32,
    /// Tasks per run; of `fanout` its items, of `link` tasks that share it [default: 9; diamond 4, echo, attach, sse and
    /// workers 1, link 10]
    #[arg(
        long, value_name = "K", default_value_t = 9, hide_default_value = true,
        default_value_ifs = [
            ("scenario", "diamond", "4"), ("scenario", "echo", "1"), ("scenario", "attach", "1"),
            ("scenario", "sse", "1"), ("scenario", "workers", "1"), ("scenario", "link", "10"),
        ],
        value_parser = clap::value_parser!(u32).range(1..=10_000),
    )]
    tasks: u32,
    /// Size of the input that goes through all tasks, as JSON text; 0 for none [default: a small order; echo 1024]
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(0..=PAYLOAD_MAX as i64))]
    payload: Option<u32>,
    /// "redis" for a private one with an append-only file, "cluster" for a private cluster of three, redis://host:port or
    /// another address, or "embedded"
    #[arg(long, value_name = "URL", default_value = "redis")]
    store: String,
    /// Partitions of the store, if it is a new one [default: 8; 16 for each primary of a cluster]
    #[arg(long, value_name = "N", conflicts_with = "server", value_parser = clap::value_parser!(u16).range(1..=1_024))]
    partitions: Option<u16>,
    /// Server processes on the one store; workers are dealt out among them
    #[arg(long, value_name = "N", default_value_t = 1, conflicts_with = "server", value_parser = clap::value_parser!(u32).range(1..=8))]
    servers: u32,
    /// Worker processes; of `workers` idle workers, each with a connection of its own, in the benchmark's own process
    /// [default: 1; workers 1000]
    #[arg(
        long, value_name = "N", default_value_t = 1, hide_default_value = true,
        default_value_if("scenario", "workers", "1000"),
        value_parser = clap::value_parser!(u32).range(1..=10_000),
    )]
    workers: u32,
    /// Tasks each worker may hold [default: 1000]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000))]
    concurrency: Option<u32>,
    /// Numbers of subscribers that `sse` measures with, one after the other [default: 1,100,1000]
    #[arg(long, value_name = "N,…", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=10_000))]
    subscribers: Vec<u32>,
    /// Runs that `sse` starts per second [default: 20]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    rate: Option<u32>,
    /// Subscriptions of other task types that `attach` keeps open for its last part [default: 200]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    subscriptions: Option<u32>,
    /// Seconds without any work before each task of a part of `attach` [default: 3], and that `workers` are idle for
    /// [default: 10]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..=3_600))]
    idle: Option<u32>,
    /// Measures afterwards, on the same Redis, what the commit script does alone, and tells our share of it
    #[arg(long, conflicts_with = "server")]
    ceiling: bool,
    /// Has the Redis that it starts save itself (BGSAVE) this often meanwhile, and tells how often it did and how long the
    /// longest fork held it up
    #[arg(long, value_name = "SECONDS", conflicts_with = "server", value_parser = clap::value_parser!(u32).range(1..=3_600))]
    fork_every: Option<u32>,
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
    /// Many runs at once: a task, then two side by side, then one behind both
    Diamond,
    /// Many runs at once of one task that gives its input back
    Echo,
    /// One run at a time
    Idle,
    /// One run at a time: a task, then one for each of so many items, then a join
    Fanout,
    /// From opening a worker's subscription to its first task
    Attach,
    /// From a run's end to many subscribers of server-sent events
    Sse,
    /// Many runs that stay open: what they take in Redis and in the server
    Open,
    /// Many workers with nothing to do: what they cost
    Workers,
    /// Tasks that share one link to Redis: each writes, then reads, one value after the other
    Link,
}

impl Scenario {
    fn name(self) -> &'static str {
        match self {
            Self::Chain => "chain",
            Self::Diamond => "diamond",
            Self::Echo => "echo",
            Self::Idle => "idle",
            Self::Fanout => "fanout",
            Self::Attach => "attach",
            Self::Sse => "sse",
            Self::Open => "open",
            Self::Workers => "workers",
            Self::Link => "link",
        }
    }

    /// Whether what is spent is spent on tasks, so that it can be told per task.
    fn does_tasks(self) -> bool {
        matches!(self, Self::Chain | Self::Diamond | Self::Echo | Self::Idle | Self::Fanout)
    }

    fn leaves_runs_open(self) -> bool {
        self == Self::Open
    }

    /// Whether worker processes do its tasks; otherwise the benchmark has workers of its own, or none.
    fn has_workers(self) -> bool {
        !matches!(self, Self::Attach | Self::Open | Self::Workers | Self::Link)
    }

    /// Whether its workers are told how much they may hold.
    fn takes_credit(self) -> bool {
        !matches!(self, Self::Attach | Self::Open | Self::Link)
    }

    /// Whether it goes as fast as it can, so that a share of a ceiling means something.
    fn is_throughput(self) -> bool {
        matches!(self, Self::Chain | Self::Diamond | Self::Echo | Self::Fanout | Self::Open)
    }

    /// How many tasks a run has if that is not for the caller to say.
    fn fixed_tasks(self) -> Option<u32> {
        match self {
            Self::Diamond => Some(DIAMOND),
            Self::Echo | Self::Attach | Self::Sse | Self::Workers => Some(1),
            Self::Chain | Self::Idle | Self::Fanout | Self::Open | Self::Link => None,
        }
    }
}

impl Args {
    /// Worker processes to start.
    fn worker_processes(&self) -> u32 {
        if self.scenario.has_workers() { self.workers } else { 0 }
    }

    /// Servers to start.
    fn server_processes(&self) -> u32 {
        if self.scenario == Scenario::Link { 0 } else { self.servers }
    }

    /// Tasks each worker may hold.
    fn credit(&self) -> u32 {
        self.concurrency.unwrap_or(CONCURRENCY)
    }

    /// Refuses what would do nothing, or cannot be done.
    fn check(&self) -> Result<(), Failure> {
        let scenario = self.scenario;
        let name = scenario.name();
        let unused = |given: bool, flag: &str, of: &str| {
            if given {
                Err(Failure::usage(format!("--{flag} is for {of}; leave it out for {name}")))
            } else {
                Ok(())
            }
        };
        if let Some(tasks) = scenario.fixed_tasks().filter(|tasks| *tasks != self.tasks) {
            let message =
                format!("a run of {name} has {tasks} task(s), not {}; leave --tasks out", self.tasks);
            return Err(Failure::usage(message));
        }
        if scenario.has_workers() && self.workers > 64 {
            let message = format!("{} worker processes are too many; give --workers 1 to 64", self.workers);
            return Err(Failure::usage(message));
        }
        let own = !scenario.takes_credit();
        unused(own && self.workers != 1, "workers", "scenarios with worker processes, or workers")?;
        unused(own && self.concurrency.is_some(), "concurrency", "scenarios with workers")?;
        let no_payload = matches!(
            scenario,
            Scenario::Fanout | Scenario::Attach | Scenario::Sse | Scenario::Workers | Scenario::Link
        );
        if scenario == Scenario::Link && (self.server.is_some() || self.store == "embedded") {
            return Err(Failure::usage("link is about Redis; give --store redis or its address"));
        }
        unused(no_payload && self.payload.is_some(), "payload", "chain, diamond, echo, idle and open")?;
        unused(scenario != Scenario::Sse && !self.subscribers.is_empty(), "subscribers", "sse")?;
        unused(scenario != Scenario::Sse && self.rate.is_some(), "rate", "sse")?;
        unused(scenario != Scenario::Attach && self.subscriptions.is_some(), "subscriptions", "attach")?;
        let idles = matches!(scenario, Scenario::Attach | Scenario::Workers);
        unused(!idles && self.idle.is_some(), "idle", "attach and workers")?;
        unused(
            self.ceiling && !scenario.is_throughput(),
            "ceiling",
            "chain, diamond, echo, fanout and open",
        )?;
        if self.ceiling && (self.store == "embedded" || self.store.contains("cluster")) {
            return Err(Failure::usage("--ceiling is about one Redis; give --store redis"));
        }
        if self.ceiling && self.store.contains('@') {
            let message = "--ceiling asks Redis for its counters, which this does without a password; give --store redis or \
                           redis://host:port";
            return Err(Failure::usage(message));
        }
        if self.fork_every.is_some() && !matches!(&*self.store, "redis" | "cluster") {
            return Err(Failure::usage(
                "--fork-every is for a Redis of its own; give --store redis or cluster",
            ));
        }
        if self.servers > 1 && self.store == "embedded" {
            return Err(Failure::usage("the embedded store is for one server; give --store redis"));
        }
        if self.servers > 1 && !scenario.has_workers() && scenario != Scenario::Open {
            return Err(Failure::usage(format!("{name} measures one server; leave --servers out")));
        }
        Ok(())
    }

    fn flow(&self, workflow: &str) -> Flow {
        let name = self.scenario.name();
        let input = || flow::input(self.payload);
        match self.scenario {
            Scenario::Diamond => Flow::diamond(workflow, input()),
            Scenario::Echo => Flow::chain(name, workflow, 1, flow::input(self.payload.or(Some(ECHO_BYTES)))),
            Scenario::Fanout => fanout::flow(workflow, self.tasks),
            Scenario::Open => Flow::open(workflow, self.tasks, input()),
            Scenario::Chain
            | Scenario::Idle
            | Scenario::Attach
            | Scenario::Sse
            | Scenario::Workers
            | Scenario::Link => Flow::chain(name, workflow, self.tasks, input()),
        }
    }
}

/// The ids of the runs of a measurement.
#[derive(Debug, Clone, Copy)]
struct Ids<'a> {
    prefix: &'a str,
    count: u32,
}

impl Ids<'_> {
    fn id(&self, n: u32) -> String {
        format!("{}{n}", self.prefix)
    }

    /// Which run it is; none if it is not of this measurement.
    fn index(&self, id: &str) -> Option<usize> {
        let n = id.strip_prefix(self.prefix)?.parse::<u32>().ok()?;
        (n < self.count).then_some(n as usize)
    }

    fn all(&self) -> Vec<String> {
        (0..self.count).map(|n| self.id(n)).collect()
    }
}

pub(super) async fn run(args: Args) -> Outcome {
    args.check()?;
    let life = Lifecycle::with_signals()?;
    tokio::select! {
        outcome = measure(args) => outcome,
        // Its processes and directories go with it.
        () = life.stopping() => Err(Failure::failed("interrupted before all was measured")),
    }
}

async fn measure(args: Args) -> Outcome {
    if let Some(out) = &args.out {
        std::fs::create_dir_all(out)
            .map_err(|e| Failure::usage(format!("{}: cannot be made: {e}", out.display())))?;
    }
    open_files();
    let mut fleet = Fleet::start(&args).await?;
    let every = args.fork_every.map(|seconds| Duration::from_secs(seconds.into()));
    let forks = every.map(|every| Forks::start(fleet.redis().to_vec(), every));
    let mut summary = scenario(&args, &mut fleet).await?;
    if let Some(forks) = forks {
        let forked = forks.end().await?;
        summary.add("redis_forks", Some(forked.times));
        summary.add("redis_longest_fork_ms", Some(forked.longest_ms));
    }
    fleet.tell(&args, &mut summary);
    if args.ceiling {
        ceiling::add(&args, &fleet, &mut summary).await?;
    }
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

async fn scenario(args: &Args, fleet: &mut Fleet) -> Result<stats::Summary, Failure> {
    if args.scenario == Scenario::Link {
        return link::run(args, fleet).await;
    }
    let caller = Caller::connect(&fleet.url).await.map_err(failure)?;
    let workflow = format!("bench-{}", fleet.nonce);
    let flow = args.flow(&workflow);
    caller.register(flow.document.clone()).await.map_err(failure)?;
    match args.scenario {
        Scenario::Chain | Scenario::Diamond | Scenario::Echo => {
            chain::run(args, fleet, &caller, &workflow, &flow).await
        }
        Scenario::Idle => idle::run(args, fleet, &caller, &workflow, &flow).await,
        Scenario::Fanout => fanout::run(args, fleet, &caller, &workflow, &flow).await,
        Scenario::Attach => attach::run(args, fleet, &caller, &workflow, &flow).await,
        Scenario::Sse => sse::run(args, fleet, &caller, &workflow, &flow).await,
        Scenario::Open => open::run(args, fleet, &caller, &workflow, &flow).await,
        Scenario::Workers => workers::run(args, fleet, &caller, &workflow, &flow).await,
        Scenario::Link => Err(Failure::failed("link has no server")),
    }
}

/// Lets this process, and those it starts, have as many files and sockets open as the system allows.
fn open_files() {
    let limit = getrlimit(Resource::Nofile);
    // Where it cannot be raised, what needs more will say so.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
}

/// Fails if a process may not have that many connections.
fn check_open_files(connections: u32) -> Result<(), Failure> {
    // For everything else that is open.
    let needed = u64::from(connections) + 100;
    match getrlimit(Resource::Nofile).current {
        Some(limit) if limit < needed => Err(Failure::failed(format!(
            "{connections} connections need {needed} open files, the system allows {limit}; raise the hard limit (ulimit \
             -Hn {needed}) or take fewer"
        ))),
        _ => Ok(()),
    }
}

fn failure(error: CallError) -> Failure {
    let exit = match error {
        CallError::Unreachable(_) => super::Exit::Unreachable,
        CallError::Refused { .. } => super::Exit::Failed,
    };
    Failure::new(exit, error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::document::{Format, parse};
    use clap::{FromArgMatches as _, Subcommand as _};

    #[derive(Debug, clap::Subcommand)]
    enum Command {
        Bench(Args),
    }

    fn args(line: &str) -> Args {
        let command = Command::augment_subcommands(clap::Command::new("downbeat"));
        let words = ["downbeat", "bench"].into_iter().chain(line.split_whitespace());
        let matches = command.try_get_matches_from(words).unwrap_or_else(|e| panic!("{line}: {e}"));
        let Command::Bench(args) = Command::from_arg_matches(&matches).unwrap();
        args
    }

    #[test]
    fn every_scenario_has_defaults_that_fit_and_a_valid_workflow() {
        for (line, runs, tasks, workers) in [
            ("chain", 10_000, 9, 1),
            ("diamond", 10_000, 4, 1),
            ("echo", 10_000, 1, 1),
            ("idle", 1_000, 9, 1),
            ("fanout", 20, 9, 1),
            ("attach", 200, 1, 0),
            ("sse", 300, 1, 1),
            ("open", 100_000, 9, 0),
            ("workers", 1_000, 1, 0),
            ("link", 100_000, 10, 0),
        ] {
            let args = args(line);
            args.check().unwrap_or_else(|e| panic!("{line}: {e:?}"));
            assert_eq!((args.runs, args.tasks, args.worker_processes()), (runs, tasks, workers), "{line}");
            let text = args.flow("bench-x").document;
            parse(text.as_bytes(), Format::Yaml).unwrap_or_else(|f| panic!("{line}: {f:?}\n{text}"));
            assert_eq!(args.scenario.name(), line);
        }
        assert_eq!(args("workers").workers, 1_000);
        assert_eq!(args("chain --runs 7 --tasks 3").runs, 7);
        assert_eq!(args("sse --subscribers 1,5").subscribers, [1, 5]);
    }

    #[test]
    fn what_would_do_nothing_is_refused() {
        for (line, word) in [
            ("diamond --tasks 5", "leave --tasks out"),
            ("chain --workers 65", "--workers 1 to 64"),
            ("attach --workers 2", "--workers is for"),
            ("open --concurrency 5", "--concurrency is for"),
            ("fanout --payload 10", "--payload is for"),
            ("chain --rate 10", "--rate is for sse"),
            ("chain --subscribers 10", "--subscribers is for sse"),
            ("echo --subscriptions 10", "--subscriptions is for attach"),
            ("chain --idle 5", "--idle is for attach and workers"),
            ("idle --ceiling", "--ceiling is for"),
            ("chain --ceiling --store embedded", "--ceiling is about one Redis"),
            ("chain --ceiling --store cluster", "--ceiling is about one Redis"),
            ("chain --ceiling --store redis://u:p@h:1", "without a password"),
            ("chain --servers 2 --store embedded --workers 2", "for one server"),
            ("attach --servers 2", "measures one server"),
            ("chain --fork-every 1 --store redis://h:1", "for a Redis of its own"),
            ("chain --fork-every 1 --store embedded", "for a Redis of its own"),
            ("link --store embedded", "is about Redis"),
            ("link --server http://h:1", "is about Redis"),
            ("link --workers 2", "--workers is for"),
        ] {
            let refused = args(line).check().unwrap_err();
            assert_eq!(refused.exit, crate::cli::Exit::Usage, "{line}");
            assert!(refused.message.contains(word), "{line}: {}", refused.message);
        }
    }

    #[test]
    fn the_runs_of_a_measurement_are_known_by_their_ids() {
        let ids = Ids { prefix: "bench-1-", count: 3 };
        assert_eq!(ids.all(), ["bench-1-0", "bench-1-1", "bench-1-2"]);
        assert_eq!(
            (ids.index("bench-1-2"), ids.index("bench-1-3"), ids.index("bench-1-warm")),
            (Some(2), None, None)
        );
        assert_eq!(ids.index("bench-2-1"), None);
    }
}
