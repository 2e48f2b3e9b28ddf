//! What stands still, and goes on: nobody is blamed for it, and nothing is done twice.

use crate::redis::{Options, RedisServer};
use crate::support::crew::{Crew, audit_strictly};
use crate::support::server::{Server, free_address};
use crate::{CHAIN, long, register, start_all, until};
use std::process::{Command, Stdio};
use std::time::Duration;

/// Leases and how long something stands still; longer than a lease, and longer than a worker waits for a sign.
fn times() -> (&'static [(&'static str, &'static str)], Duration) {
    if long() {
        (&[], Duration::from_secs(25))
    } else {
        let short: &[_] = &[("DOWNBEAT_LEASE", "3s"), ("DOWNBEAT_ACK", "1s"), ("DOWNBEAT_PING", "1s")];
        (short, Duration::from_millis(7_500))
    }
}

fn redis() -> RedisServer {
    RedisServer::start(Options { aof: true, args: Vec::new() })
}

/// A task that is under way for most of the stop, and some that are short.
const LONG: &str = r#"
tasks:
  a: { type: slow, input: { n: "${{ input }}" } }
"#;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_stands_still_has_nothing_done_twice() {
    let (settings, stop) = times();
    let redis = redis();
    let server = Server::serve_with(&redis.url(), free_address(), settings);
    stands_still(&[&server], || redis.signal("STOP"), || redis.signal("CONT"), stop).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_stands_still_has_nothing_done_twice() {
    let (settings, stop) = times();
    let redis = redis();
    let server = Server::serve_with(&redis.url(), free_address(), settings);
    stands_still(&[&server], || server.signal("STOP"), || server.signal("CONT"), stop).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_stands_still_beside_another_has_nothing_done_twice() {
    let (settings, mut stop) = times();
    if !long() {
        // Runs look after their workers every ten seconds: long enough that the other server does.
        stop = Duration::from_secs(13);
    }
    let redis = redis();
    let other = Server::serve_with(&redis.url(), free_address(), settings);
    let server = Server::serve_with(&redis.url(), free_address(), settings);
    stands_still(&[&other, &server], || server.signal("STOP"), || server.signal("CONT"), stop).await;
}

/// Runs go through workers at each of the servers, the first of which is not stopped if there are two, while something
/// stands still.
async fn stands_still(servers: &[&Server], stop: impl Fn(), go_on: impl Fn(), long: Duration) {
    let first = **servers[0];
    register(first, "chain", CHAIN).await;
    register(first, "long", LONG).await;
    let doors: Vec<_> = servers.iter().map(|s| ***s).flat_map(|d| [d, d]).collect();
    let slow = Crew::at(&doors, "slow", 2, long / 2);
    let crew = Crew::at(&doors, "work", 4, Duration::from_millis(100));
    let mut runs = start_all(first, "long", 4).await;
    until("long tasks begin", Duration::from_secs(15), async || (slow.begun() >= 4).then_some(())).await;
    // Acknowledgements of long tasks are kept, as they are of tasks that people wait for.
    tokio::time::sleep(Duration::from_millis(1_200)).await;
    let starting = tokio::spawn(start_all(first, "chain", 120));
    until("work is under way", Duration::from_secs(15), async || (crew.begun() >= 30).then_some(())).await;
    stop();
    let before = crew.begun();
    tokio::time::sleep(long).await;
    let meanwhile = crew.begun() - before;
    go_on();
    if servers.len() > 1 {
        assert!(meanwhile >= 20, "the other server goes on: {meanwhile} tasks were begun");
    }
    runs.extend(starting.await.unwrap());
    audit_strictly(first, runs, &crew).await;
    assert_eq!(slow.done_twice(), Vec::<String>::new());
    crew.leave().await;
    slow.leave().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_forks_again_and_again_loses_nothing_of_a_benchmark() {
    let redis = redis();
    let out = tempfile::tempdir().unwrap();
    let (runs, every) =
        if long() { ("20000", Duration::from_secs(10)) } else { ("1000", Duration::from_secs(1)) };
    let mut bench = Command::new(env!("CARGO_BIN_EXE_downbeat"))
        .args(["bench", "chain", "--runs", runs, "--tasks", "9", "--store", &redis.url(), "--out"])
        .arg(out.path())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut forks = 0;
    let mut pause = tokio::time::interval(every);
    let status = loop {
        pause.tick().await;
        if let Some(status) = bench.try_wait().unwrap() {
            break status;
        }
        if redis.command("BGSAVE").starts_with('+') {
            forks += 1;
        }
    };
    let text = std::fs::read_to_string(out.path().join("summary.json")).unwrap();
    let summary: serde_json::Value = serde_json::from_str(&text).unwrap();
    println!(
        "{forks} forks; p50 {} ms, p99 {} ms",
        summary["run_latency_p50_ms"], summary["run_latency_p99_ms"]
    );
    assert_eq!((status.code(), &summary["audit"]), (Some(0), &"ok".into()));
    assert!(forks >= 2, "{forks} forks");
}
