//! The link to Redis alone: callers that share it write and read one value after the other (`store/redis/strain.rs`).
//! No server and no worker takes part.

use super::Args;
use super::fleet::Fleet;
use super::stats::Summary;
use crate::cli::Failure;
use crate::store::redis::{Options, RedisStore};
use std::sync::Arc;

pub(super) async fn run(args: &Args, fleet: &mut Fleet) -> Result<Summary, Failure> {
    let Some(url) = fleet.redis_url() else {
        return Err(Failure::usage("link is about Redis; give --store redis or its address"));
    };
    let store = RedisStore::open(url, Options::default()).await;
    let store = store.map_err(|e| Failure::failed(e.to_string()))?;
    fleet.begin().await;
    let threads = threads();
    let strained = Arc::clone(&store).strain(args.tasks as usize, u64::from(args.runs)).await;
    let strained = strained.map_err(|e| Failure::failed(e.to_string()))?;
    let more_threads = self::threads().zip(threads).map(|(after, before)| after.saturating_sub(before));
    fleet.end().await;
    let connections = store.link_report().connections;
    let links = store.link_reports().len() as u64;
    let mut faults = Vec::new();
    if strained.out_of_order > 0 {
        faults.push(format!("{} replies out of order", strained.out_of_order));
    }
    if connections != links {
        faults.push(format!("{connections} connections were made for {links} links"));
    }
    let seconds = strained.set_seconds + strained.get_seconds;
    let mut summary = Summary {
        scenario: args.scenario.name(),
        runs: args.runs,
        tasks_per_run: args.tasks,
        audit: if faults.is_empty() { "ok".into() } else { faults.join("; ") },
        ..Summary::default()
    };
    summary.add("set_seconds", Some(strained.set_seconds));
    summary.add("get_seconds", Some(strained.get_seconds));
    summary.add("seconds", Some(seconds));
    let commands = 2.0 * f64::from(args.runs) * f64::from(args.tasks);
    summary.add("commands_per_second", (seconds > 0.0).then(|| commands / seconds));
    summary.add("tasks_spawned", Some(strained.tasks_spawned));
    summary.add("threads_spawned", more_threads);
    summary.add("out_of_order", Some(strained.out_of_order));
    Ok(summary)
}

/// Threads of this process, where the system tells them.
fn threads() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    status.lines().find_map(|line| line.strip_prefix("Threads:")?.trim().parse().ok())
}
