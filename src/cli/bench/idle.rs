//! One run at a time: what a run costs when nothing else is going on.

use super::stats::{Summary, ms, percentile};
use super::{Args, INPUT, failure};
use crate::cli::Failure;
use crate::client::Caller;
use crate::proto::v1 as pb;
use bytes::Bytes;
use tokio::time::Instant;

/// Runs before the first that counts.
const WARM_UP: u32 = 50;
/// A run that takes longer has not completed.
const WAIT_MS: u32 = 30_000;

pub(super) async fn run(
    args: &Args,
    caller: &Caller,
    workflow: &str,
    nonce: &str,
) -> Result<Summary, Failure> {
    let mut latencies = Vec::with_capacity(args.runs as usize);
    let mut wrong = Vec::new();
    for n in 0..WARM_UP + args.runs {
        let request = pb::StartRunRequest {
            workflow: workflow.to_owned(),
            id: format!("bench-{nonce}-{n}"),
            input: Bytes::from_static(INPUT),
            wait_ms: WAIT_MS,
            ..pb::StartRunRequest::default()
        };
        let began = Instant::now();
        let run = caller.start(request).await.map_err(failure)?;
        let took = u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX);
        if run.status() != pb::RunStatus::Completed {
            wrong.push(format!("{} is {:?}", run.id, run.status()));
        }
        if n >= WARM_UP {
            latencies.push(took);
        }
    }
    let total: u64 = latencies.iter().sum();
    latencies.sort_unstable();
    Ok(Summary {
        scenario: "idle",
        runs: args.runs,
        warm_up: WARM_UP,
        tasks_per_run: args.tasks,
        tasks_per_second: (total > 0)
            .then(|| f64::from(args.runs) * f64::from(args.tasks) * 1e6 / total as f64),
        run_latency_p50_ms: percentile(&latencies, 0.5).map(ms),
        run_latency_p99_ms: percentile(&latencies, 0.99).map(ms),
        audit: if wrong.is_empty() { "ok".to_owned() } else { wrong.join("; ") },
        ..Summary::default()
    })
}
