//! The soak: every fault at random, from a seed, while runs of every kind go through two servers and three workers; then
//! the faults stop, what is left comes to its end, and every run is audited. `scripts/soak` runs it for as long as is
//! wanted; as a test it takes twenty seconds.
//!
//! ```text
//!  callers ─► front proxy ─┐                    ┌─ proxy ─► Redis (append-only file)
//!  reader  ─► of each      ├─► server 1, 2  ────┤
//!  workers ─► back proxy  ─┘                    └─ proxy, one for each server
//!
//! site.rs      the processes and the proxies between them     load.rs     what is asked of them
//! nemesis.rs   the faults                                     hands.rs    the workers
//! audit.rs     what is counted at the end                     store.rs    one Redis, or a cluster, and what happens to it
//! report.rs    how it is told
//! ```
//!
//! `DOWNBEAT_SOAK` has the settings: `seconds=20 seed=1 every_ms=1000 rate=1000 redis=single report=FILE`, each of them
//! optional; `rate` is how many runs are started a second at the most. The seed gives the faults and their order; when each
//! strikes a process is up to the machine. `DOWNBEAT_PROGRAM` names another build of the program.
//!
//! Must hold, whatever was injected: each start that was acknowledged exists and ended completed; each task was completed
//! once in each try, with a result that a worker had sent for it; no result was acknowledged that does not count;
//! nothing is open at the end; a reader that resumed all the time was told the whole history of each run, in order and
//! once; one last event for each run; no server panicked.
//!
//! To add a fault: a variant of [`nemesis::Fault`]. To add work: a variant of [`load::Kind`].

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod audit;
mod hands;
mod load;
mod nemesis;
#[path = "../support/cluster.rs"]
mod redis_cluster;
#[path = "../support/redis.rs"]
mod redis_server;
mod report;
mod site;
mod store;
#[path = "../support/mod.rs"]
mod support;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// See the module.
#[derive(Debug, Clone)]
struct Settings {
    seconds: u64,
    seed: u64,
    every: Duration,
    rate: u64,
    redis: String,
    report: Option<PathBuf>,
}

impl Settings {
    fn read() -> Self {
        let text = std::env::var("DOWNBEAT_SOAK").unwrap_or_default();
        let of = |name: &str| text.split_whitespace().find_map(|s| s.strip_prefix(name)?.strip_prefix('='));
        let number = |name, default| of(name).map_or(default, |v| v.parse().expect(name));
        Self {
            seconds: number("seconds", 20),
            seed: number("seed", 1),
            every: Duration::from_millis(number("every_ms", 1_000)),
            rate: number("rate", 1_000).max(1),
            redis: of("redis").unwrap_or("single").to_owned(),
            report: of("report").map(PathBuf::from),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn everything_that_can_go_wrong_at_random_loses_and_doubles_nothing() {
    let settings = Settings::read();
    println!("repeat the faults with {}", report::command(&settings));
    let site = Arc::new(site::Site::start(&settings));
    let load = load::Load::start(&site, &settings).await;
    let nemesis = nemesis::Nemesis::new(Arc::clone(&site), &settings);
    let until = Instant::now() + Duration::from_secs(settings.seconds);
    let injected = nemesis.rage(settings.every, until).await;
    site.heal().await;
    let began = Instant::now();
    let acknowledged = load.end().await;
    let drained = began.elapsed();
    let found = audit::audit(&site, acknowledged).await;
    let text = report::report(&settings, &injected, &found, drained);
    println!("{text}");
    if let Some(path) = &settings.report {
        std::fs::write(path, &text).unwrap();
    }
    site.stop().await;
    assert!(found.wrong.is_empty(), "{} things are wrong, see above", found.wrong.len());
}

/// Not a test: the workers' processes are this program with `DOWNBEAT_SOAK_HAND` set.
#[test]
fn hand() {
    if let Ok(label) = std::env::var("DOWNBEAT_SOAK_HAND") {
        hands::work(&label);
    }
}
