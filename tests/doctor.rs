//! `downbeat doctor` as a user runs it.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "support/cluster.rs"]
mod cluster;
#[path = "support/redis.rs"]
mod redis_server;
#[path = "support/sentinel.rs"]
mod sentinel;

use redis_server::{Options, RedisServer};
use serde_json::Value;
use std::process::{Command, Output};

fn doctor(url: &str, more: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_downbeat"))
        .args(["doctor", "--store", url])
        .args(more)
        .env("NO_COLOR", "1")
        .output()
        .unwrap()
}

fn told(url: &str) -> (Option<i32>, Value) {
    let output = doctor(url, &["--output", "json"]);
    let text = String::from_utf8(output.stdout).unwrap();
    let value = serde_json::from_str(&text)
        .unwrap_or_else(|e| panic!("{e}: {text} {}", String::from_utf8_lossy(&output.stderr)));
    (output.status.code(), value)
}

fn verdict<'a>(told: &'a Value, what: &str) -> (&'a str, &'a str) {
    let findings = told["findings"].as_array().unwrap();
    let finding =
        findings.iter().find(|f| f["what"] == what).unwrap_or_else(|| panic!("no {what} in {told:#}"));
    let verdict = finding["verdict"].as_str().unwrap();
    assert_eq!(finding.get("advice").is_some(), verdict != "ok", "{finding}");
    (verdict, finding["found"].as_str().unwrap())
}

#[tokio::test]
async fn a_sound_redis_is_told_so_and_an_empty_one_stays_empty() {
    let args = ["--auto-aof-rewrite-min-size", "2gb"].map(ToOwned::to_owned).to_vec();
    let server = RedisServer::start(Options { aof: true, args });
    let (status, found) = told(&server.url());
    assert_eq!(
        (status, &found["ok"], &found["link"]),
        (Some(0), &Value::Bool(true), &Value::Null),
        "{found:#}"
    );
    for what in
        ["reachable", "role", "append-only file", "rewriting", "eviction", "memory", "replication", "clock"]
    {
        assert_eq!(verdict(&found, what).0, "ok", "{what}");
    }
    assert!(verdict(&found, "store").1.contains("none yet"));
    assert_eq!(server.command("DBSIZE"), ":0");

    let options = downbeat::store::redis::Options { partitions: Some(5), ..Default::default() };
    downbeat::store::redis::RedisStore::open(&server.url(), options).await.unwrap();
    let (status, found) = told(&server.url());
    assert_eq!(status, Some(0), "{found:#}");
    assert!(verdict(&found, "store").1.contains("5 partitions"));
    assert!(verdict(&found, "usable").1.contains("connected for"));
    assert_eq!(found["link"]["connections"], 1);
    assert_eq!(found["link"]["persistence"]["loading"], false);
    let table = String::from_utf8(doctor(&server.url(), &[]).stdout).unwrap();
    assert!(table.contains("append-only file") && table.contains("on, appendfsync everysec"), "{table}");
}

#[test]
fn what_is_wrong_is_told_with_what_to_do_and_ends_with_1() {
    let args = ["--maxmemory", "10gb", "--maxmemory-policy", "allkeys-lru"].map(ToOwned::to_owned).to_vec();
    let server = RedisServer::start(Options { args, ..Options::default() });
    let (status, found) = told(&server.url());
    assert_eq!((status, &found["ok"]), (Some(1), &Value::Bool(false)));
    assert_eq!(verdict(&found, "append-only file"), ("wrong", "off"));
    assert_eq!(verdict(&found, "eviction"), ("wrong", "allkeys-lru"));
    assert_eq!(server.command("REPLICAOF 127.0.0.1 1"), "+OK");
    assert_eq!(verdict(&told(&server.url()).1, "role"), ("wrong", "replica"));
    server.command("HSET db:meta layout 99");
    let output = doctor(&server.url(), &[]);
    assert_eq!(output.status.code(), Some(1));
    let table = String::from_utf8(output.stdout).unwrap();
    assert!(table.contains("WRONG") && table.contains("maxmemory-policy to noeviction"), "{table}");
}

#[test]
fn one_that_is_not_there_or_lets_nobody_in_is_told_without_the_password() {
    let args = ["--requirepass", "sesame"].map(ToOwned::to_owned).to_vec();
    let mut server = RedisServer::start(Options { args, ..Options::default() });
    let url = format!("redis://:swordfish@127.0.0.1:{}", server.port());
    let (status, found) = told(&url);
    assert_eq!(status, Some(1));
    let (verdict_, said) = verdict(&found, "reachable");
    assert!(
        verdict_ == "wrong" && said.contains("WRONGPASS") && !found.to_string().contains("swordfish"),
        "{found}"
    );
    server.kill9();
    let (status, found) = told(&url);
    assert_eq!((status, verdict(&found, "reachable").0), (Some(1), "wrong"));
    assert!(!found.to_string().contains("swordfish"), "{found}");
    assert_eq!(doctor("embedded", &[]).status.code(), Some(2));
}

#[tokio::test]
async fn a_cluster_is_looked_at_by_one_of_its_nodes() {
    let cluster = cluster::RedisCluster::start(3, 0, Options { aof: true, ..Options::default() });
    let (status, found) = told(&cluster.url());
    assert_eq!(status, Some(0), "{found:#}");
    assert_eq!(verdict(&found, "role").1, "node of a Redis Cluster (master)");
    assert_eq!(verdict(&found, "coverage"), ("ok", "cluster-require-full-coverage no"));
    assert_eq!(cluster.nodes[0].command("CONFIG SET cluster-require-full-coverage yes"), "+OK");
    let (status, stops) = told(&cluster.url());
    assert_eq!((status, verdict(&stops, "coverage").0), (Some(0), "advice"), "{stops:#}");
    assert!(verdict(&found, "store").1.contains("none yet"));
    let options = downbeat::store::redis::Options { partitions: Some(6), ..Default::default() };
    downbeat::store::redis::RedisStore::open(&cluster.url(), options).await.unwrap();
    let (status, found) = told(&cluster.url());
    assert_eq!(status, Some(0), "{found:#}");
    assert!(verdict(&found, "store").1.contains("6 partitions"));
    assert_eq!(verdict(&found, "usable").0, "ok");
    // The schemes are not mixed up.
    let alone = cluster.url().replace("redis+cluster", "redis");
    assert_eq!(verdict(&told(&alone).1, "role").0, "wrong");
}

#[test]
fn of_a_sentinel_it_is_told_what_is_behind_it() {
    let primary = RedisServer::start(Options { aof: true, ..Options::default() });
    let sentinel = sentinel::Sentinel::start(primary.port());
    let began = tokio::time::Instant::now();
    while !sentinel.tells("PING").contains("PONG") {
        assert!(began.elapsed().as_secs() < 20, "no Sentinel");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let (status, found) = told(&format!("redis://127.0.0.1:{}", sentinel.port()));
    assert_eq!((status, found["findings"].as_array().unwrap().len()), (Some(1), 2), "{found:#}");
    let (is, said) = verdict(&found, "role");
    let watched = format!("a Sentinel, which watches main at 127.0.0.1:{} (ok)", primary.port());
    assert_eq!((is, said), ("wrong", watched.as_str()));
    assert!(found.to_string().contains("and /main behind them"), "{found:#}");

    let (status, found) = told(&format!("redis+sentinel://127.0.0.1:{}/main", sentinel.port()));
    assert_eq!(status, Some(0), "{found:#}");
    assert_eq!(verdict(&found, "role"), ("ok", "primary, as the Sentinels say; all of this is about it"));
}
