//! Faults, as the people who run it meet them: real servers, real Redis, a proxy that misbehaves, signals that stop and
//! kill. Each file is one kind; `docs/reliability.md` has the table of what is shown where, those of `tests/servers`,
//! `tests/crash` and `tests/routes` included.
//!
//! ```text
//! address.rs     the address of Redis vanishes, or moves to another host
//! stall.rs       Redis or a server stands still, or forks
//! store.rs       Redis is full, read-only, busy, loading, silent, cut short, not ours
//! replies.rs     the reply is lost after the write, for each kind of call
//! streams.rs     workers: half-open, silent, late, twins
//! events.rs      readers that are cut, late or slow; the order of what is told
//! masters.rs     readers while a part of the store is away
//! start.rs       servers that come before their Redis can be used
//! stops.rs       servers that stop, drain and are asked how they are
//! ```
//!
//! Times are those of the faults, scaled down where a setting can scale them; `DOWNBEAT_FAULTS=long` takes the times
//! that people meet (a stop of 25 s with leases of 10 s).
//!
//! To add a fault: a test in the file of its kind, its row in `docs/reliability.md`.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod address;
mod events;
mod masters;
#[path = "../support/network.rs"]
mod network;
#[path = "../support/redis.rs"]
mod redis;
#[path = "../support/cluster.rs"]
mod redis_cluster;
mod replies;
#[path = "../support/sentinel.rs"]
mod sentinel;
mod stall;
mod start;
mod stops;
mod store;
mod streams;
#[path = "../support/mod.rs"]
mod support;

use futures::StreamExt as _;
// As the cluster calls it.
use redis as redis_server;
use std::time::Duration;
use support::server::Door;

/// Whether tests take the times that people meet.
fn long() -> bool {
    std::env::var("DOWNBEAT_FAULTS").is_ok_and(|v| v == "long")
}

/// Looks until there is something to see.
async fn until<T>(what: &str, within: Duration, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let began = tokio::time::Instant::now();
    let mut pause = tokio::time::interval(Duration::from_millis(20));
    loop {
        pause.tick().await;
        if let Some(seen) = look().await {
            return seen;
        }
        assert!(began.elapsed() < within, "{what}: not within {within:?}");
    }
}

/// Registers a document without its name.
async fn register(door: Door, name: &str, text: &str) {
    let text = format!("name: {name}\n{text}");
    let answer = door.put(&format!("/v1/workflows/{name}"), "application/yaml", text).await;
    assert!(matches!(answer.status, 200 | 201), "{}", answer.text());
}

/// A chain of three tasks of the type `work`; each completes with its input.
const CHAIN: &str = r#"
tasks:
  a: { type: work, input: { n: "${{ input }}" }, retry: { initial: 10ms } }
  b: { needs: [a], type: work, input: "${{ tasks.a.output }}", retry: { initial: 10ms } }
  c: { needs: [b], type: work, input: "${{ tasks.b.output }}", retry: { initial: 10ms } }
output: "${{ tasks.c.output.n }}"
"#;

/// Starts `count` runs of a workflow, `NAME-0` and so on, whatever happens meanwhile; their ids.
async fn start_all(door: Door, workflow: &'static str, count: usize) -> Vec<String> {
    let ids: Vec<_> = (0..count).map(|n| format!("{workflow}-{n}")).collect();
    let starts = ids.clone().into_iter().map(|id| async move {
        let body = format!(r#"{{"workflow":"{workflow}","id":"{id}","input":7}}"#);
        door.insist_post("/v1/runs", &body).await;
    });
    futures::stream::iter(starts).buffer_unordered(8).collect::<()>().await;
    ids
}

/// How it answers when it is asked whether it is ready; 0 if it does not.
async fn readiness(door: Door) -> u16 {
    door.try_get("/readyz").await.map_or(0, |answer| answer.status)
}
