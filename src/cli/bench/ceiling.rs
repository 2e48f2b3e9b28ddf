//! `--ceiling`: what the commit script alone does on the same Redis, in the same call, and our share of it.
//!
//! Definitions, which are a promise
//! - Our transitions per second are the decisions on runs that the scenario could not do without, over its time: one
//!   for each start and one for the end of each task (which leases the next one). Those that were split or came
//!   together are not counted twice or less.
//! - The ceiling sends batches of as many decisions as a commit had on average, and as many bytes for each as Redis was
//!   sent for each transition, with as many batches under way as the lanes of the servers have. Each writes the least
//!   that a transition can (see `store/redis/ceiling.rs`).

use super::Args;
use super::fleet::{Asked, Fleet};
use super::stats::Summary;
use crate::app;
use crate::cli::Failure;
use crate::store::redis::{Load, Options, RedisStore};
use std::time::Duration;
use tokio::time::Instant;

/// For how long it is measured.
const LASTING: Duration = Duration::from_secs(3);

/// Measures the ceiling and adds it.
pub(super) async fn add(args: &Args, fleet: &Fleet, summary: &mut Summary) -> Result<(), Failure> {
    let (Some(url), Some(asked)) = (fleet.redis_url(), fleet.asked()) else {
        return Err(Failure::failed("--ceiling: Redis does not tell what it was asked"));
    };
    let options = app::Options::default();
    let ours = transitions_per_second(summary, args.scenario.leaves_runs_open());
    let count = transitions(summary, args.scenario.leaves_runs_open());
    let Some(shape) = shape(asked, count) else {
        return Err(Failure::failed("--ceiling: Redis has seen no commit of this measurement"));
    };
    let lanes = options.lanes * args.servers as usize;
    let (decisions, bytes_per_decision) = shape;
    let load =
        Load { decisions, bytes_per_decision, lanes, in_flight: options.commits_in_flight, lasting: LASTING };
    let store = RedisStore::open(url, Options::default()).await;
    let store = store.map_err(|e| Failure::failed(format!("--ceiling: {e}")))?;
    let (cpu, began) = (fleet.cpu("redis"), Instant::now());
    let ceiling = store.ceiling(load).await.map_err(|e| Failure::failed(format!("--ceiling: {e}")))?;
    // Of a Redis of our own, it is known whether it was busy: below 1 it waited for what it was sent.
    let busy = (fleet.cpu("redis") - cpu) / began.elapsed().as_secs_f64();
    summary.ceiling_redis_cpu_share = (busy > 0.0).then_some(busy);
    let rate = ceiling.transitions_per_second;
    summary.ceiling_transitions_per_second = Some(rate);
    summary.ceiling_share = ours.filter(|_| rate > 0.0).map(|ours| ours / rate);
    summary.ceiling_decisions_per_batch = Some(decisions as f64);
    summary.ceiling_bytes_per_transition = Some(ceiling.bytes_per_decision);
    Ok(())
}

/// One for each start, one for each task.
fn transitions(summary: &Summary, starts_only: bool) -> f64 {
    let each = if starts_only { 1.0 } else { 1.0 + f64::from(summary.tasks_per_run) };
    f64::from(summary.runs) * each
}

fn transitions_per_second(summary: &Summary, starts_only: bool) -> Option<f64> {
    if starts_only {
        return summary.runs_submitted_per_second;
    }
    let tasks = f64::from(summary.tasks_per_run);
    summary.tasks_per_second.map(|rate| rate * (tasks + 1.0) / tasks)
}

/// Decisions of an average batch, and bytes for each; none if there was no commit.
fn shape(asked: Asked, transitions: f64) -> Option<(usize, usize)> {
    (asked.commits >= 1.0 && transitions >= 1.0).then(|| {
        let decisions = (transitions / asked.commits).round().max(1.0) as usize;
        (decisions, (asked.bytes / transitions).round() as usize)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_of_starts_and_tasks() {
        let chain = Summary {
            runs: 1_000,
            tasks_per_run: 9,
            tasks_per_second: Some(90_000.0),
            runs_submitted_per_second: Some(20_000.0),
            ..Summary::default()
        };
        assert!((transitions(&chain, false) - 10_000.0).abs() < f64::EPSILON);
        assert_eq!(transitions_per_second(&chain, false), Some(100_000.0));
        assert!((transitions(&chain, true) - 1_000.0).abs() < f64::EPSILON);
        assert_eq!(transitions_per_second(&chain, true), Some(20_000.0));
        assert_eq!(transitions_per_second(&Summary::default(), false), None);
    }

    #[test]
    fn a_batch_is_as_large_as_those_that_were_committed() {
        let asked = Asked { commits: 250.0, bytes: 4_500_000.0 };
        assert_eq!(shape(asked, 10_000.0), Some((40, 450)));
        assert_eq!(shape(Asked { commits: 10.0, ..asked }, 2.0), Some((1, 2_250_000)));
        assert_eq!(shape(Asked { commits: 0.0, ..asked }, 10_000.0), None);
    }
}
