//! From opening a worker's subscription until its first task has arrived, one at a time. The task is there before: it
//! was started, acknowledged, and waits in its queue. So what is measured is the way of a worker to its work (stream,
//! session, the look into the queue, the lease, the assignment) and not how fast a run starts.
//!
//! | figures, each `_p50_ms` and `_p99_ms` | what is there when the clock starts |
//! |---|---|
//! | `attach_cold` | nothing: the TCP connection is made, too |
//! | `attach` | an open connection, on which the stream is opened |
//! | `attach_idle` | the same, and for `--idle` seconds nothing has happened but that the task waits |
//! | `attach_busy` | the same as `attach`, and `--subscriptions` others open, each of a task type of its own |

use super::audit::{self, Faults};
use super::fleet::Fleet;
use super::flow::Flow;
use super::stats::{Summary, Times, micros};
use super::{Args, Ids, TASK_TYPE, check_open_files, failure};
use crate::cli::Failure;
use crate::client::{Caller, Connection, WorkerError};
use crate::proto::v1 as pb;
use bytes::Bytes;
use std::time::Duration;
use tokio::time::Instant;

/// Seconds of idleness unless told otherwise.
const IDLE: u32 = 3;
/// Subscriptions that are open in the last part, unless told otherwise.
const SUBSCRIPTIONS: u32 = 200;
/// Streams that share a connection: a server takes 1,000.
const PER_CONNECTION: u32 = 100;
/// Of so many samples of the other parts, the idle part has one, since each takes seconds.
const IDLE_PART: u32 = 20;
/// Samples before the first that counts.
const WARM_UP: u32 = 10;
/// A task that has not arrived by then does not come.
const ARRIVES_WITHIN: Duration = Duration::from_secs(20);

/// What takes the samples.
struct Probe<'a> {
    url: &'a str,
    caller: &'a Caller,
    workflow: &'a str,
    prefix: &'a str,
    input: &'a Bytes,
    /// Runs started up to now.
    runs: u32,
}

impl Probe<'_> {
    /// Starts a run whose task waits, and opens a subscription for it, on `warm` or a connection of its own, after
    /// `idle`. Returns how long the task took to arrive, in µs.
    async fn sample(
        &mut self,
        id: &str,
        warm: Option<&Connection>,
        idle: Option<Duration>,
    ) -> Result<u64, Failure> {
        let request = pb::StartRunRequest {
            workflow: self.workflow.to_owned(),
            id: id.to_owned(),
            input: self.input.clone(),
            ..pb::StartRunRequest::default()
        };
        self.caller.start(request).await.map_err(failure)?;
        if let Some(idle) = idle {
            tokio::time::sleep(idle).await;
        }
        let began = Instant::now();
        let arrival = async {
            let own;
            let connection = if let Some(connection) = warm {
                connection
            } else {
                own = Connection::open(self.url).await?;
                &own
            };
            let mut stream = connection.subscribe(TASK_TYPE, 1).await?;
            let task = stream.task().await?;
            let took = micros(began.elapsed());
            stream.complete(&task.token, task.input).await?;
            // Or the next task may be assigned to this stream, which is about to go.
            stream.close().await?;
            Ok::<_, WorkerError>((task.run, took))
        };
        let arrived = tokio::time::timeout(ARRIVES_WITHIN, arrival).await;
        let (run, took) = arrived
            .map_err(|_| Failure::failed(format!("the task of {id} did not arrive within 20 s")))?
            .map_err(|e| Failure::failed(e.to_string()))?;
        if run != id {
            return Err(Failure::failed(format!("a task of {run} came where that of {id} waited")));
        }
        Ok(took)
    }

    async fn samples(
        &mut self,
        count: u32,
        warm: Option<&Connection>,
        idle: Option<Duration>,
    ) -> Result<Times, Failure> {
        let mut times = Times::new();
        for _ in 0..count {
            let id = format!("{}{}", self.prefix, self.runs);
            self.runs += 1;
            times.record(self.sample(&id, warm, idle).await?);
        }
        Ok(times)
    }
}

pub(super) async fn run(
    args: &Args,
    fleet: &mut Fleet,
    caller: &Caller,
    workflow: &str,
    flow: &Flow,
) -> Result<Summary, Failure> {
    let prefix = format!("bench-{}-", fleet.nonce);
    let others = args.subscriptions.unwrap_or(SUBSCRIPTIONS);
    let idle = Duration::from_secs(u64::from(args.idle.unwrap_or(IDLE)));
    check_open_files(others.div_ceil(PER_CONNECTION))?;
    let url = fleet.url.clone();
    let connect = || async { Connection::open(&url).await.map_err(|e| Failure::failed(e.to_string())) };
    let warm = connect().await?;
    let mut probe = Probe { url: &url, caller, workflow, prefix: &prefix, input: &flow.input, runs: 0 };
    for n in 0..WARM_UP {
        probe.sample(&format!("{prefix}warm-{n}"), Some(&warm), None).await?;
    }
    fleet.begin().await;
    let cold = probe.samples(args.runs, None, None).await?;
    let open = probe.samples(args.runs, Some(&warm), None).await?;
    let idle_samples = (args.runs / IDLE_PART).max(1);
    let after_idle = probe.samples(idle_samples, Some(&warm), Some(idle)).await?;
    // Dropped, and with it ended, when all samples are taken.
    let mut streams = Vec::with_capacity(others as usize);
    let mut connection = None;
    for n in 0..others {
        if n % PER_CONNECTION == 0 {
            connection = Some(connect().await?);
        }
        if let Some(connection) = &connection {
            let stream = connection.subscribe(&format!("{TASK_TYPE}-{n}"), 1).await;
            streams.push(stream.map_err(|e| Failure::failed(e.to_string()))?);
        }
    }
    let busy = probe.samples(args.runs, Some(&warm), None).await?;
    fleet.end().await;

    let ids = Ids { prefix: &prefix, count: probe.runs };
    let mut faults = Faults::default();
    audit::histories(caller, flow, &ids.all(), &mut faults).await;
    drop(streams);
    let mut summary = Summary {
        scenario: flow.scenario,
        runs: ids.count,
        tasks_per_run: flow.tasks,
        audit: faults.verdict(),
        ..Summary::default()
    };
    for (name, times) in [("_cold", cold), ("", open), ("_idle", after_idle), ("_busy", busy)] {
        summary.add(format!("attach{name}_p50_ms"), times.ms(0.5));
        summary.add(format!("attach{name}_p99_ms"), times.ms(0.99));
    }
    summary.add("attach_samples", Some(args.runs));
    summary.add("attach_idle_samples", Some(idle_samples));
    summary.add("attach_idle_seconds", Some(idle.as_secs()));
    summary.add("attach_busy_subscriptions", Some(others));
    Ok(summary)
}
