//! The link to Redis with real servers: what breaks under it, and who may use it.
//!
//! ```text
//! faults.rs   cuts, crumbs, black holes, the backlog     login.rs   passwords, users, TLS, sockets
//! primary.rs  replicas, loading, busy, Sentinel, WAIT    proxy.rs   stands between and misbehaves
//! cluster.rs  TLS, nodes that do not agree
//! ```
//!
//! Each test has servers of its own. Nothing is waited for by the clock: [`until`] asks until it is so.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod cluster;
#[allow(dead_code, reason = "words of the contract suite, of which a part is used")]
#[path = "../store_contract/data.rs"]
mod data;
mod faults;
mod login;
mod primary;
mod proxy;
#[path = "../support/cluster.rs"]
mod redis_cluster;
#[path = "../support/redis.rs"]
mod redis_server;

use data::{Lane, P, create, run, update};
use downbeat::store::redis::{LinkReport, Options, RedisStore};
use downbeat::store::{Store, StoreError};
use redis_server::RedisServer;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};

/// What must be so at last is so within this time, however slow the machine is.
const AT_LAST: Duration = Duration::from_secs(30);

async fn open_with(url: &str, options: Options) -> Result<Arc<RedisStore>, StoreError> {
    RedisStore::open(url, Options { partitions: Some(4), ..options }).await
}

async fn open(url: &str) -> Arc<RedisStore> {
    open_with(url, Options::default()).await.unwrap()
}

/// Asks until it is so.
async fn until(what: &str, mut is: impl AsyncFnMut() -> bool) {
    let all = async {
        while !is().await {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(AT_LAST, all).await.unwrap_or_else(|_| panic!("{what}: not within {AT_LAST:?}"));
}

/// Asks until the link reports it.
async fn reports(store: &RedisStore, what: &str, is: impl Fn(&LinkReport) -> bool) {
    until(what, async || is(&store.link_report())).await;
}

/// Asks until a write goes through; returns how long that took.
async fn recovered(store: &RedisStore) -> Duration {
    let began = Instant::now();
    until("writes go through again", async || store.check().await.is_ok()).await;
    began.elapsed()
}

/// The records of runs that [`create`] made.
async fn there(store: &RedisStore, names: &[String]) -> Result<Vec<bool>, StoreError> {
    let keys: Vec<_> = names.iter().map(|n| (P, run(n))).collect();
    Ok(store.load(&keys).await?.into_iter().map(|r| r.is_some()).collect())
}

/// Creates a run with a batch of a lane of its own.
async fn start(store: &RedisStore, lane: u8, name: &str) -> Result<(), StoreError> {
    let committed = store.commit(&Lane::new(lane).batch(vec![(P, create(name))])).await?;
    assert_eq!(committed.verdicts, [downbeat::store::Verdict::Applied]);
    Ok(())
}

fn signal_pid(pid: &str, signal: &str) {
    let done = std::process::Command::new("kill").args([&format!("-{signal}"), pid]).status().unwrap();
    assert!(done.success());
}

/// A process that goes on when this is dropped, whatever became of the test.
struct Stopped(String);

impl Stopped {
    fn new(server: &RedisServer) -> Self {
        let info = server.info("server");
        let pid = info.lines().find_map(|l| l.strip_prefix("process_id:")).unwrap().trim().to_owned();
        signal_pid(&pid, "STOP");
        Self(pid)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        signal_pid(&self.0, "CONT");
    }
}
