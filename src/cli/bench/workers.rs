//! Many workers that have nothing to do: what they cost the server and Redis. They are workers of the SDK, each with a
//! connection of its own, in this process; `cpu_seconds.driver` is theirs.
//!
//! After the idle time some runs go through, which shows that all of it is alive.
//!
//! | figure | meaning |
//! |---|---|
//! | `idle_workers`, `idle_seconds` | how many, for how long |
//! | `idle_server_cpu_share` | processor time of the server while they idle, as a share of one core |
//! | `idle_redis_commands_per_second` | what Redis did meanwhile, as it counts it: commands inside of scripts, too |
//! | `idle_redis_scripts_per_second` | how many scripts it was sent |

use super::audit::{self, Faults};
use super::fleet::Fleet;
use super::flow::Flow;
use super::stats::Summary;
use super::{Args, Ids, TASK_TYPE, check_open_files, failure};
use crate::cli::Failure;
use crate::client::{Caller, Task, Worker, WorkerHandle};
use crate::proto::v1 as pb;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// How long they are idle unless told otherwise, in seconds.
const IDLE: u32 = 10;
/// All are connected within this.
const CONNECTED_WITHIN: Duration = Duration::from_mins(1);
/// Workers that connect at once: about what a listening socket keeps waiting.
const AT_ONCE: usize = 100;
/// Between the last that connected and the beginning, so that what connecting takes is over.
const SETTLE: Duration = Duration::from_secs(2);
/// A run that takes longer has not completed.
const WAIT_MS: u32 = 30_000;

pub(super) async fn run(
    args: &Args,
    fleet: &mut Fleet,
    caller: &Caller,
    workflow: &str,
    flow: &Flow,
) -> Result<Summary, Failure> {
    check_open_files(args.workers)?;
    let mut workers = JoinSet::new();
    let mut handles: Vec<WorkerHandle> = Vec::with_capacity(args.workers as usize);
    let connected = async {
        for n in 0..args.workers {
            let worker = Worker::builder(&fleet.url)
                .label(format!("idle-{n}"))
                .handle(TASK_TYPE, args.credit(), |task: Task| std::future::ready(Ok(task.input().clone())))
                .build()
                .map_err(|e| Failure::failed(e.to_string()))?;
            handles.push(worker.handle());
            workers.spawn(worker.run());
            if handles.len().is_multiple_of(AT_ONCE) {
                all_connected(&mut handles).await?;
            }
        }
        all_connected(&mut handles).await
    };
    tokio::time::timeout(CONNECTED_WITHIN, connected)
        .await
        .map_err(|_| Failure::failed("the workers were not connected within a minute"))??;
    tokio::time::sleep(SETTLE).await;

    fleet.begin().await;
    let before = (fleet.cpu("server"), fleet.commands().await);
    let began = Instant::now();
    tokio::time::sleep(Duration::from_secs(u64::from(args.idle.unwrap_or(IDLE)))).await;
    let seconds = began.elapsed().as_secs_f64();
    let after = (fleet.cpu("server"), fleet.commands().await);
    fleet.end().await;

    let mut faults = Faults::default();
    let prefix = format!("bench-{}-", fleet.nonce);
    let ids = Ids { prefix: &prefix, count: args.runs };
    for id in ids.all() {
        let request = pb::StartRunRequest {
            workflow: workflow.to_owned(),
            id,
            input: flow.input.clone(),
            wait_ms: WAIT_MS,
            ..pb::StartRunRequest::default()
        };
        caller.start(request).await.map_err(failure)?;
    }
    audit::histories(caller, flow, &ids.all(), &mut faults).await;
    if let Some(ended) = workers.try_join_next() {
        faults.add(format!("a worker has ended: {ended:?}"));
    }
    for handle in &handles {
        handle.shutdown(Duration::ZERO);
    }
    while workers.join_next().await.is_some() {}

    let mut summary = Summary {
        scenario: flow.scenario,
        runs: args.runs,
        tasks_per_run: flow.tasks,
        audit: faults.verdict(),
        ..Summary::default()
    };
    summary.add("idle_workers", Some(args.workers));
    summary.add("idle_seconds", Some(seconds));
    if args.server.is_none() {
        summary.add("idle_server_cpu_share", Some((after.0 - before.0) / seconds));
    }
    if let (Some(before), Some(after)) = (before.1, after.1) {
        summary.add("idle_redis_commands_per_second", Some((after.0 - before.0) / seconds));
        summary.add("idle_redis_scripts_per_second", Some((after.1 - before.1) / seconds));
    }
    Ok(summary)
}

async fn all_connected(handles: &mut [WorkerHandle]) -> Result<(), Failure> {
    for handle in handles {
        if handle.connected().await.is_none() {
            return Err(Failure::failed("a worker ended before it was connected"));
        }
    }
    Ok(())
}
