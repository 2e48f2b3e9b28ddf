//! Servers that start before their Redis can be used: they wait for what passes by itself, say so, and end with the
//! reason if it does not pass.

use crate::redis::{Options, RedisServer};
use crate::redis_cluster::RedisCluster;
use crate::sentinel::Sentinel;
use crate::support::client::soon;
use crate::support::server::{Door, Server, free_address};
use crate::{readiness, register, until};
use downbeat::proto::v1;
use std::process::Command;
use std::time::Duration;

/// How long it may take until a server is ready whose Redis can be used.
const READY: Duration = Duration::from_secs(20);

/// Waits until a server says at `/readyz` that it waits for its store, with `why`.
async fn waits(door: Door, why: &str) {
    let look = async || {
        let answer = door.try_get("/readyz").await.ok()?;
        (answer.status == 503 && answer.text().contains(why)).then_some(answer)
    };
    let answer = until(&format!("it waits, because of {why:?}"), READY, look).await;
    answer.refused(503, "store_unavailable");
    assert_eq!(answer.header("retry-after"), "1");
    assert_eq!(door.get("/livez").await.status, 200, "alive all the same");
}

/// Waits until it is ready, and lets it do something.
async fn works(door: Door) {
    until("it is ready", READY, async || (readiness(door).await == 200).then_some(())).await;
    register(door, "w", "tasks: { t: { set: { n: 1 } } }").await;
    let run = door.insist_post("/v1/runs?wait=20s", r#"{"workflow":"w","id":"first"}"#).await.json();
    assert_eq!(run["status"], "completed", "{run:#}");
}

fn redis() -> RedisServer {
    RedisServer::start(Options { aof: true, args: Vec::new() })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_comes_before_its_redis_waits_for_it() {
    let mut redis = redis();
    redis.kill9();
    let server = Server::begin(&redis.url(), free_address(), &[]);
    let door = *server;
    waits(door, "onnection refused").await;
    assert!(server.has_logged("the store cannot be used yet; waiting for it"), "{:?}", server.log());
    let address = format!("127.0.0.1:{}", redis.port());
    assert!(!server.has_logged(&address), "{:?}", server.log());
    let refused = door.try_post("/v1/runs", "{}").await.unwrap();
    refused.refused(503, "store_unavailable");
    assert!(!refused.text().contains(&address), "{}", refused.text());
    let mut grpc = v1::run_service_client::RunServiceClient::new(door.channel().await);
    let refused = soon(grpc.get(v1::GetRunRequest::default())).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::Unavailable, "{refused:?}");
    redis.restart();
    works(door).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_whose_redis_is_a_replica_waits_until_it_is_promoted() {
    let redis = redis();
    redis.command("REPLICAOF 127.0.0.1 1");
    let server = Server::begin(&redis.url(), free_address(), &[]);
    waits(*server, "is a replica").await;
    redis.command("REPLICAOF NO ONE");
    works(*server).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_wants_a_replica_waits_for_one() {
    let redis = redis();
    let settings = [("DOWNBEAT_DURABILITY", "replicated")];
    let server = Server::begin(&redis.url(), free_address(), &settings);
    waits(*server, "has no replica").await;
    let args = ["--replicaof", "127.0.0.1", &redis.port().to_string()].map(String::from).to_vec();
    let _replica = RedisServer::start(Options { aof: false, args });
    works(*server).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_comes_during_a_fail_over_waits_for_its_end() {
    let mut primary = redis();
    let args = ["--replicaof", "127.0.0.1", &primary.port().to_string()].map(String::from).to_vec();
    let replica = RedisServer::start(Options { aof: true, args });
    let sentinel = Sentinel::start(primary.port());
    let knows = async || {
        let told = sentinel.tells("SENTINEL replicas main");
        (told.contains(&replica.port().to_string()) && told.contains("master-link-status\r\n$2\r\nok"))
            .then_some(())
    };
    until("the Sentinel knows the replica", READY, knows).await;
    primary.kill9();
    let url = format!("redis+sentinel://127.0.0.1:{}/main", sentinel.port());
    let server = Server::begin(&url, free_address(), &[]);
    waits(*server, "no Sentinel led to the primary; number 1 of 1: ").await;
    works(*server).await;
    assert!(replica.info("replication").contains("role:master"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_waits_for_the_whole_cluster() {
    let mut cluster = RedisCluster::start(3, 0, Options { aof: true, args: Vec::new() });
    let url = cluster.whole_url();
    cluster.nodes[1].kill9();
    let server = Server::begin(&url, free_address(), &[]);
    waits(*server, "no node led to the whole cluster; number ").await;
    cluster.nodes[1].restart();
    works(*server).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_that_is_over_ends_the_server_with_the_reason() {
    let mut redis = redis();
    redis.kill9();
    let settings = [("DOWNBEAT_REDIS_START_WAIT", "500ms")];
    let mut server = Server::begin(&redis.url(), free_address(), &settings);
    assert_eq!(server.stopped().await, Some(1));
    let last = |text: &str| server.has_logged(text);
    assert!(last("onnection refused") && last("(redis.start_wait)"), "{:?}", server.log());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_waits_is_ended_by_a_signal() {
    let mut redis = redis();
    redis.kill9();
    let mut server = Server::begin(&redis.url(), free_address(), &[]);
    waits(*server, "onnection refused").await;
    let began = tokio::time::Instant::now();
    server.ask_to_stop();
    assert_eq!(server.stopped().await, Some(0));
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
}

#[test]
fn what_does_not_pass_ends_a_server_at_once_and_no_other_command_waits() {
    let locked = RedisServer::start(Options {
        aof: true,
        args: ["--requirepass", "sesame"].map(String::from).to_vec(),
    });
    let mut away = redis();
    let alone = away.url().replace("redis://", "redis+cluster://");
    let within = Duration::from_secs(10);
    for (store, reason) in [
        (format!("redis://:swordfish@127.0.0.1:{}", locked.port()), "WRONGPASS"),
        (format!("redis://:sesame@127.0.0.1:{}/99", locked.port()), "refused the database"),
        (alone, "it is no node of a cluster"),
        ("redis://127.0.0.1:99999999".to_owned(), "cannot be used"),
    ] {
        let (code, said) = Server::refused(&store, within).unwrap_or_else(|| panic!("{store}: it waits"));
        assert!(code == 1 && said.contains(reason) && !said.contains("waiting"), "{store}: {code}: {said}");
    }
    away.kill9();
    for command in ["doctor", "migrate"] {
        let began = tokio::time::Instant::now();
        let program =
            Command::new(env!("CARGO_BIN_EXE_downbeat")).args([command, "--store", &away.url()]).output();
        assert_eq!(program.unwrap().status.code(), Some(1), "{command}");
        assert!(began.elapsed() < within, "{command}: {:?}", began.elapsed());
    }
}
