//! apalis as a peer: a worker of a stepped workflow of nine tasks on its Redis storage, and a driver that starts it.
//!
//! ```text
//! apalis-peer worker --redis URL --chains N --ledger FILE --poll-ms N
//! apalis-peer driver --redis URL --worker PORT --mode chain|idle --before N --warm-up N --runs N
//! ```

#![forbid(unsafe_code)]

use apalis::prelude::*;
use apalis_redis::{Config, RedisStorage};
use apalis_workflow::{SteppedFlow, WorkflowSink as _};
use peer_kit::{Options, Turn, audit, done, fail, first, ledger, milliseconds};
use serde_json::json;
use std::error::Error;
use std::path::PathBuf;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::time::{Interval, MissedTickBehavior};

/// Tasks that a worker fetches at once; the default is 10.
const BATCH: usize = 1_000;
/// Starts in flight on one multiplexed connection.
const STARTERS: u64 = 16;

type Outcome = Result<(), Box<dyn Error>>;

/// Makes an idle worker ask for tasks now and then. Its pub/sub wake-ups cannot be used: the storage gives each task a
/// due time, and announces only those that have none. Nor can its `IntervalStrategy`: if a fetch takes longer than the
/// interval, it arms the next one without registering for it, and the worker sleeps until its heartbeat.
struct Ticker(Interval);

impl Ticker {
    fn new(period: Duration) -> Self {
        let mut interval = tokio::time::interval(period);
        interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self(interval)
    }
}

// The steps of a workflow push the next one through a clone of the storage, which polls for nothing.
impl Clone for Ticker {
    fn clone(&self) -> Self {
        Self::new(self.0.period())
    }
}

impl PollStrategy for Ticker {
    fn poll_drive(&mut self, cx: &mut Context<'_>, _: &PollSnapshot) -> Poll<Option<()>> {
        let mut due = Poll::Pending;
        // Until it is registered for the next one.
        while self.0.poll_tick(cx).is_ready() {
            due = Poll::Ready(Some(()));
        }
        due
    }
}

async fn task(x: u64) -> Result<u64, BoxDynError> {
    Ok(ledger(|| 0).task(x))
}

async fn last_task(x: u64) -> Result<u64, BoxDynError> {
    let x = ledger(|| 0).task(x);
    ledger(|| 0).end(x);
    Ok(x)
}

async fn storage(options: &Options) -> Result<RedisStorage<u64>, Box<dyn Error>> {
    let connection = apalis_redis::connect(options.get::<String>("redis")).await?;
    // No locks, as its documentation advises for tasks shorter than a heartbeat; no events, because nobody listens.
    let config = Config::default().queue("bench").batch_size(BATCH).lock_tasks(false).emit_events(false);
    Ok(RedisStorage::new(connection).with_config(config))
}

async fn worker(options: &Options) -> Outcome {
    let ledger = ledger(|| options.get("chains"));
    let storage = storage(options)
        .await?
        .poll_with_strategy(Ticker::new(Duration::from_millis(options.get("poll-ms"))));
    let flow = SteppedFlow::new("chain")
        .and_then(task)
        .and_then(task)
        .and_then(task)
        .and_then(task)
        .and_then(task)
        .and_then(task)
        .and_then(task)
        .and_then(task)
        .and_then(last_task);
    let file: PathBuf = options.get("ledger");
    tokio::select! {
        served = ledger.serve(&file) => Ok(served?),
        ended = WorkerBuilder::new("worker").backend(storage).build(flow).run() => {
            Err(format!("the worker ended: {ended:?}").into())
        }
    }
}

async fn driver(options: &Options) -> Outcome {
    let mut storage = storage(options).await?;
    let before: u64 = options.get("before");
    let (warm_up, runs): (u64, u64) = (options.get("warm-up"), options.get("runs"));
    let mut turn = Turn::new(options.get("worker"), before).await?;
    for n in 0..warm_up {
        storage.push_start(first(before + n)).await?;
    }
    turn.ended(warm_up).await?;
    turn.ready()?;

    let began = Instant::now();
    if options.get::<String>("mode") == "idle" {
        let mut times = Vec::new();
        for n in 0..runs {
            let sent = Instant::now();
            storage.push_start(first(before + warm_up + n)).await?;
            turn.ended(warm_up + n + 1).await?;
            times.push(milliseconds(sent.elapsed()));
        }
        done(&json!({ "elapsed_s": began.elapsed().as_secs_f64(), "latencies_ms": times }))?;
    } else {
        let starters: Vec<_> = (0..STARTERS)
            .map(|starter| {
                let mut storage = storage.clone();
                tokio::spawn(async move {
                    for n in (starter..runs).step_by(STARTERS as usize) {
                        storage.push_start(first(before + warm_up + n)).await?;
                    }
                    Ok::<_, BoxDynError>(())
                })
            })
            .collect();
        for starter in starters {
            starter.await?.map_err(|e| e.to_string())?;
        }
        let submitted = began.elapsed();
        turn.ended(warm_up + runs).await?;
        done(&json!({ "elapsed_s": began.elapsed().as_secs_f64(), "submitted_s": submitted.as_secs_f64() }))?;
    }
    // What ran is in the worker's ledger.
    audit(&[]);
    Ok(())
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    let options = Options::read();
    let outcome = match options.role.as_str() {
        "worker" => worker(&options).await,
        "driver" => driver(&options).await,
        other => fail(format!("{other} is neither worker nor driver")),
    };
    if let Err(e) = outcome {
        fail(e);
    }
    // Not a return, which would wait for what else runs.
    std::process::exit(0);
}
