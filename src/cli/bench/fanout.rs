//! One run at a time that goes from one task over a list to a join: what an item costs at this width.

use super::audit::{self, Faults};
use super::fleet::Fleet;
use super::flow::Flow;
use super::stats::{Summary, Times, micros, ms};
use super::{Args, Ids, TASK_TYPE, failure};
use crate::cli::Failure;
use crate::client::Caller;
use crate::proto::v1 as pb;
use bytes::Bytes;
use std::time::Duration;
use tokio::time::Instant;

/// A run that takes longer has not completed.
const WAIT: Duration = Duration::from_mins(5);

/// A task, one for each of so many items of the input, and one behind them all.
pub(super) fn flow(name: &str, items: u32) -> Flow {
    let document = format!(
        "name: {name}\ntasks:\n  first: {{ type: {TASK_TYPE} }}\n  each:\n    needs: [first]\n    for_each: \"${{{{ input }}}}\"\n    type: {TASK_TYPE}\n    input: \"${{{{ item }}}}\"\n  last:\n    needs: [each]\n    type: {TASK_TYPE}\n    input: \"${{{{ tasks.each.output }}}}\"\noutput: \"${{{{ tasks.last.output }}}}\"\n"
    );
    let list: Vec<String> = (0..items).map(|n| n.to_string()).collect();
    let list = Bytes::from(format!("[{}]", list.join(",")));
    Flow { scenario: "fanout", document, tasks: items + 2, input: list.clone(), output: list }
}

pub(super) async fn run(
    args: &Args,
    fleet: &mut Fleet,
    caller: &Caller,
    workflow: &str,
    flow: &Flow,
) -> Result<Summary, Failure> {
    let mut latencies = Times::new();
    let prefix = format!("bench-{}-", fleet.nonce);
    let ids = Ids { prefix: &prefix, count: args.runs };
    // The first run warms up and does not count.
    for n in 0..=args.runs {
        if n == 1 {
            fleet.begin().await;
        }
        let id = match n.checked_sub(1) {
            None => format!("{prefix}warm"),
            Some(n) => ids.id(n),
        };
        let request = pb::StartRunRequest {
            workflow: workflow.to_owned(),
            id: id.clone(),
            input: flow.input.clone(),
            ..pb::StartRunRequest::default()
        };
        let began = Instant::now();
        caller.start(request).await.map_err(failure)?;
        let mut ended = caller.run(&id, Duration::from_mins(1)).await.map_err(failure)?;
        while ended.status() == pb::RunStatus::Running && began.elapsed() < WAIT {
            ended = caller.run(&id, Duration::from_mins(1)).await.map_err(failure)?;
        }
        if n > 0 {
            latencies.record(micros(began.elapsed()));
        }
    }
    fleet.end().await;
    let mut faults = Faults::default();
    audit::histories(caller, flow, &ids.all(), &mut faults).await;
    let median = latencies.us(0.5);
    Ok(Summary {
        scenario: flow.scenario,
        runs: args.runs,
        tasks_per_run: flow.tasks,
        tasks_per_second: median.filter(|m| *m > 0).map(|m| f64::from(flow.tasks) * 1e6 / m as f64),
        us_per_item: median.map(|m| m as f64 / f64::from(args.tasks)),
        run_latency_p50_ms: median.map(ms),
        run_latency_p99_ms: latencies.ms(0.99),
        audit: faults.verdict(),
        ..Summary::default()
    })
}
