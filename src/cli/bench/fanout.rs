//! One run at a time that goes from one task over a list to a join: what an item costs at this width.

use super::stats::{Summary, ms, percentile};
use super::{Args, TASK_TYPE, failure};
use crate::cli::Failure;
use crate::client::Caller;
use crate::proto::v1 as pb;
use bytes::Bytes;
use std::time::Duration;
use tokio::time::Instant;

/// A run that takes longer has not completed.
const WAIT: Duration = Duration::from_mins(5);

/// The workflow: a task, one for each item of the input, and one behind them all.
pub(super) fn document(name: &str) -> String {
    format!(
        "name: {name}\ntasks:\n  first: {{ type: {TASK_TYPE} }}\n  each:\n    needs: [first]\n    for_each: \"${{{{ input }}}}\"\n    type: {TASK_TYPE}\n    input: \"${{{{ item }}}}\"\n  last:\n    needs: [each]\n    type: {TASK_TYPE}\n    input: \"${{{{ tasks.each.output }}}}\"\noutput: \"${{{{ tasks.last.output }}}}\"\n"
    )
}

pub(super) async fn run(
    args: &Args,
    caller: &Caller,
    workflow: &str,
    nonce: &str,
) -> Result<Summary, Failure> {
    let items: Vec<String> = (0..args.tasks).map(|n| n.to_string()).collect();
    let list = Bytes::from(format!("[{}]", items.join(",")));
    let mut latencies = Vec::with_capacity(args.runs as usize);
    let mut wrong = Vec::new();
    // The first run warms up and does not count.
    for n in 0..=args.runs {
        let id = format!("bench-{nonce}-{n}");
        let request = pb::StartRunRequest {
            workflow: workflow.to_owned(),
            id: id.clone(),
            input: list.clone(),
            ..pb::StartRunRequest::default()
        };
        let began = Instant::now();
        caller.start(request).await.map_err(failure)?;
        let mut ended = caller.run(&id, Duration::from_mins(1)).await.map_err(failure)?;
        while ended.status() == pb::RunStatus::Running && began.elapsed() < WAIT {
            ended = caller.run(&id, Duration::from_mins(1)).await.map_err(failure)?;
        }
        let took = u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX);
        if ended.status() != pb::RunStatus::Completed || ended.output != list {
            wrong.push(format!("{id} is {:?} with {} bytes of output", ended.status(), ended.output.len()));
        }
        if n > 0 {
            latencies.push(took);
        }
    }
    latencies.sort_unstable();
    let median = percentile(&latencies, 0.5);
    Ok(Summary {
        scenario: "fanout",
        runs: args.runs,
        warm_up: 1,
        tasks_per_run: args.tasks + 2,
        tasks_per_second: median.filter(|m| *m > 0).map(|m| f64::from(args.tasks + 2) * 1e6 / m as f64),
        us_per_item: median.map(|m| m as f64 / f64::from(args.tasks)),
        run_latency_p50_ms: median.map(ms),
        run_latency_p99_ms: percentile(&latencies, 0.99).map(ms),
        audit: if wrong.is_empty() { "ok".to_owned() } else { wrong.join("; ") },
        ..Summary::default()
    })
}
