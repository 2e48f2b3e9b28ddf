//! Many runs that are open and stay so: what they take in Redis and in the server. The first task of each waits for a
//! worker that never comes.
//!
//! `runs_submitted_per_second` is of starts alone: nothing else goes on.

use super::audit::Faults;
use super::chain::{Starts, submit};
use super::fleet::Fleet;
use super::flow::Flow;
use super::stats::Summary;
use super::{Args, Ids, failure};
use crate::cli::Failure;
use crate::client::Caller;
use crate::proto::v1 as pb;
use std::sync::Arc;
use tokio::time::Instant;

/// Runs of a page of the list, the most there may be.
const PAGE: u32 = 500;

pub(super) async fn run(
    args: &Args,
    fleet: &mut Fleet,
    caller: &Caller,
    workflow: &str,
    flow: &Flow,
) -> Result<Summary, Failure> {
    let prefix = format!("bench-{}-", fleet.nonce);
    let ids = Ids { prefix: &prefix, count: args.runs };
    let starts = Starts {
        workflow: workflow.to_owned(),
        prefix: prefix.clone(),
        runs: args.runs,
        input: flow.input.clone(),
    };
    fleet.begin().await;
    let submitted = submit(caller.clone(), starts, Instant::now(), Arc::default()).await?;
    fleet.end().await;
    let mut faults = Faults::default();
    submitted.audit(&mut faults);
    listed(caller, workflow, &ids, &mut faults).await?;
    let seconds = submitted.acknowledged as f64 / 1e6;
    Ok(Summary {
        scenario: flow.scenario,
        runs: args.runs,
        tasks_per_run: flow.tasks,
        runs_submitted_per_second: (seconds > 0.0).then(|| f64::from(args.runs) / seconds),
        audit: faults.verdict(),
        ..Summary::default()
    })
}

/// All of them stand in the list of running ones, each once.
async fn listed(caller: &Caller, workflow: &str, ids: &Ids<'_>, faults: &mut Faults) -> Result<(), Failure> {
    let mut counts = vec![0_u8; ids.count as usize];
    let mut cursor = String::new();
    loop {
        let request = pb::ListRunsRequest {
            workflow: workflow.to_owned(),
            status: pb::RunStatus::Running.into(),
            limit: PAGE,
            cursor,
            ..pb::ListRunsRequest::default()
        };
        let page = caller.list(request).await.map_err(failure)?;
        for run in page.runs {
            match ids.index(&run.id).and_then(|n| counts.get_mut(n)) {
                Some(count) => *count = count.saturating_add(1),
                None => faults.add(format!("{} is in the list and was not started", run.id)),
            }
        }
        if page.next_cursor.is_empty() {
            break;
        }
        cursor = page.next_cursor;
    }
    let wrong: Vec<_> =
        (0..).zip(&counts).filter(|(_, count)| **count != 1).map(|(n, _)| ids.id(n)).collect();
    if let Some(first) = wrong.first() {
        faults.add(format!("{} runs are not in the list of running ones once, e.g. {first}", wrong.len()));
    }
    Ok(())
}
