//! One run at a time: what a run costs when nothing else is going on.

use super::audit::{self, Faults};
use super::fleet::Fleet;
use super::flow::Flow;
use super::stats::{Summary, Times, micros};
use super::{Args, Ids, failure};
use crate::cli::Failure;
use crate::client::Caller;
use crate::proto::v1 as pb;
use tokio::time::Instant;

/// Runs before the first that counts.
const WARM_UP: u32 = 50;
/// A run that takes longer has not completed.
const WAIT_MS: u32 = 30_000;

pub(super) async fn run(
    args: &Args,
    fleet: &mut Fleet,
    caller: &Caller,
    workflow: &str,
    flow: &Flow,
) -> Result<Summary, Failure> {
    let mut latencies = Times::new();
    let mut total = 0;
    let prefix = format!("bench-{}-", fleet.nonce);
    let ids = Ids { prefix: &prefix, count: args.runs };
    for n in 0..WARM_UP + args.runs {
        if n == WARM_UP {
            fleet.begin().await;
        }
        let id = match n.checked_sub(WARM_UP) {
            None => format!("{prefix}warm-{n}"),
            Some(n) => ids.id(n),
        };
        let request = pb::StartRunRequest {
            workflow: workflow.to_owned(),
            id,
            input: flow.input.clone(),
            wait_ms: WAIT_MS,
            ..pb::StartRunRequest::default()
        };
        let began = Instant::now();
        // What has not completed is found by the audit.
        caller.start(request).await.map_err(failure)?;
        let took = micros(began.elapsed());
        if n >= WARM_UP {
            latencies.record(took);
            total += took;
        }
    }
    fleet.end().await;
    let mut faults = Faults::default();
    audit::histories(caller, flow, &ids.all(), &mut faults).await;
    Ok(Summary {
        scenario: flow.scenario,
        runs: args.runs,
        tasks_per_run: flow.tasks,
        tasks_per_second: (total > 0)
            .then(|| f64::from(args.runs) * f64::from(flow.tasks) * 1e6 / total as f64),
        run_latency_p50_ms: latencies.ms(0.5),
        run_latency_p99_ms: latencies.ms(0.99),
        audit: faults.verdict(),
        ..Summary::default()
    })
}
