//! Servers that stop, drain and are replaced, and what they say when they are asked how they are.
//! (What each kind of stream sees of a stop: `tests/routes/stop.rs`.)

use crate::redis::{Options, RedisServer};
use crate::support::client::{PATIENCE, Worker, soon};
use crate::support::crew::{Crew, audit_strictly};
use crate::support::proxy::{Mode, Proxy};
use crate::support::server::{Server, free_address};
use crate::{CHAIN, long, readiness, register, start_all, until};
use downbeat::proto::v1;
use downbeat::proto::v1::server_message::Message;
use std::time::Duration;

fn redis() -> RedisServer {
    RedisServer::start(Options { aof: true, args: Vec::new() })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_with_everything_open_is_clean_and_in_time() {
    let redis = redis();
    let mut server = Server::serve(&redis.url(), None, free_address());
    let door = *server;
    register(door, "w", "tasks: { t: { type: work, input: 1 } }").await;
    assert_eq!(server.start_run("w", "waits", "1").await.status, 201);
    let mut readers = Vec::new();
    for n in 0..50 {
        let path = if n % 2 == 0 { "/v1/events" } else { "/v1/runs/waits/events" };
        readers.push(server.watch(path, None).await);
    }
    let mut workers = Vec::new();
    for _ in 0..50 {
        workers.push(Worker::hello(&server, "other", 1).await.0);
    }
    let polls: Vec<_> = (0..10)
        .map(|n| {
            tokio::spawn(async move {
                if n % 2 == 0 {
                    door.try_get("/v1/runs/waits?wait=60s").await
                } else {
                    door.try_post("/v1/tasks/claim", r#"{"types":["nothing"],"wait":"30s"}"#).await
                }
            })
        })
        .collect();
    // One call more: when it is answered, those before it are under way.
    assert_eq!(readiness(door).await, 200);
    let began = tokio::time::Instant::now();
    server.ask_to_stop();
    let not_ready = async || (readiness(door).await != 200).then_some(());
    until("it is not ready at once", Duration::from_millis(500), not_ready).await;
    // Each stream says goodbye and ends; nobody is given anything, though there is something to do.
    for worker in &mut workers {
        let first = worker.hear().await.unwrap();
        assert!(matches!(first, Message::GoAway(_)), "{first:?}");
        worker.end().await;
    }
    for reader in readers {
        // Ends in order, after what was to be told: a broken one panics here.
        assert!(reader.rest().await.len() <= 2);
    }
    for poll in polls {
        let answer = poll.await.unwrap();
        assert!(answer.as_ref().is_ok_and(|a| matches!(a.status, 200 | 503)), "{answer:?}");
    }
    assert_eq!(server.stopped().await, Some(0));
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
}

#[tokio::test]
async fn a_second_signal_ends_it_now() {
    let redis = redis();
    let mut server = Server::serve(&redis.url(), None, free_address());
    register(*server, "w", "tasks: { t: { type: work, input: 1 } }").await;
    let (mut worker, _) = Worker::hello(&server, "work", 1).await;
    assert_eq!(server.start_run("w", "r1", "1").await.status, 201);
    // What it holds keeps the server waiting.
    let _held = worker.assignment().await;
    server.ask_to_stop();
    assert!(matches!(worker.hear().await.unwrap(), Message::GoAway(_)));
    assert!(server.lives());
    let again = tokio::time::Instant::now();
    server.ask_to_stop();
    assert_eq!(server.stopped().await, Some(1));
    assert!(again.elapsed() < Duration::from_secs(1), "{:?}", again.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rolling_restart_does_nothing_twice() {
    let (count, takes) =
        if long() { (100, Duration::from_secs(5)) } else { (60, Duration::from_millis(1_500)) };
    let redis = redis();
    let serve = |address| Server::serve(&redis.url(), None, address);
    let mut servers = [serve(free_address()), serve(free_address())];
    let doors = [*servers[0], *servers[1]];
    register(doors[0], "chain", CHAIN).await;
    let crew = Crew::at(&[doors[0], doors[0], doors[1], doors[1]], "work", 10, takes);
    let runs = start_all(doors[0], "chain", count).await;
    for (n, server) in servers.iter_mut().enumerate() {
        let begun = crew.begun();
        until("work goes on", PATIENCE, async || (crew.begun() > begun).then_some(())).await;
        server.ask_to_stop();
        assert_eq!(server.stopped().await, Some(0));
        *server = serve(doors[n].address());
    }
    audit_strictly(doors[1], runs, &crew).await;
    crew.leave().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_stopped_worker_holds_goes_back_at_once_and_uses_no_attempt() {
    let redis = redis();
    let server = Server::serve(&redis.url(), None, free_address());
    register(*server, "w", "tasks: { t: { type: work, input: 1 } }").await;
    let crew = Crew::at(&[*server], "work", 5, Duration::from_mins(10));
    for n in 0..5 {
        assert_eq!(server.start_run("w", &format!("r{n}"), "1").await.status, 201);
    }
    until("all have begun", PATIENCE, async || (crew.begun() == 5).then_some(())).await;
    let (mut other, _) = Worker::hello(&server, "work", 5).await;
    let leaving = tokio::spawn(crew.leave_within(Duration::from_millis(100)));
    for _ in 0..5 {
        let task = soon(other.assignment()).await;
        assert_eq!(task.attempt, 1);
        other.settle(&task.token, v1::result::Outcome::Completed("1".into())).await;
    }
    let took = leaving.await.unwrap();
    assert!(took < Duration::from_secs(5), "{took:?}");
    for n in 0..5 {
        let run = server.get(&format!("/v1/runs/r{n}?wait=5s")).await.json();
        assert_eq!(run["status"], "completed");
        assert_eq!(run["tasks"][0]["attempts"].as_array().unwrap().len(), 1);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn probes_tell_a_server_that_waits_from_one_that_hangs() {
    let mut redis = redis();
    let mut server = Server::serve(&redis.url(), None, free_address());
    let door = *server;
    let becomes = async |status: u16, within: u64| {
        let look = async || (readiness(door).await == status).then_some(());
        until(&format!("readiness is {status}"), Duration::from_secs(within), look).await;
        let alive = door.try_get("/livez").await.unwrap();
        assert_eq!(alive.status, 200, "alive all the same");
    };
    becomes(200, 5).await;
    // Away.
    redis.kill9();
    becomes(503, 5).await;
    tokio::time::sleep(Duration::from_secs(if long() { 120 } else { 2 })).await;
    becomes(503, 1).await;
    redis.restart();
    becomes(200, 5).await;
    // There, and takes nothing.
    redis.command("REPLICAOF 127.0.0.1 1");
    becomes(503, 5).await;
    redis.command("REPLICAOF NO ONE");
    becomes(200, 5).await;
    // There, and does not answer.
    redis.signal("STOP");
    becomes(503, 5).await;
    redis.signal("CONT");
    becomes(200, 5).await;
    assert!(server.lives());
    // A server that hangs fails the probe by not answering it.
    server.signal("STOP");
    let request = http::Request::get("/livez").body(axum::body::Body::empty()).unwrap();
    assert!(door.try_send(request, Duration::from_secs(1)).await.is_err());
    server.signal("CONT");
    becomes(200, 5).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_whose_redis_is_slow_is_alive_and_not_ready_until_it_is_there() {
    let redis = redis();
    let proxy = Proxy::before_port(redis.port());
    proxy.set(Mode::Delay(Duration::from_millis(250)));
    let mut server = Server::begin(&proxy.redis_url(), free_address(), &[]);
    let door = *server;
    let alive = async || door.try_get("/livez").await.is_ok_and(|a| a.status == 200).then_some(());
    until("it is alive", Duration::from_secs(10), alive).await;
    let early = door.get("/readyz").await;
    early.refused(503, "store_unavailable");
    assert_eq!(early.header("retry-after"), "1");
    door.try_post("/v1/runs", "{}").await.unwrap().refused(503, "store_unavailable");
    let mut grpc = v1::run_service_client::RunServiceClient::new(door.channel().await);
    let refused = soon(grpc.get(v1::GetRunRequest::default())).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::Unavailable, "{refused:?}");
    proxy.set(Mode::Pass);
    let ready = async || (readiness(door).await == 200).then_some(());
    until("it is ready", Duration::from_secs(5), ready).await;
    register(door, "chain", CHAIN).await;
    let crew = Crew::at(&[door], "work", 5, Duration::ZERO);
    let runs = start_all(door, "chain", 3).await;
    audit_strictly(door, runs, &crew).await;
    crew.leave().await;
    // One that waits is ended as any other is.
    proxy.set(Mode::Delay(Duration::from_millis(250)));
    let mut waits = Server::begin(&proxy.redis_url(), free_address(), &[]);
    let other = *waits;
    let alive = async || other.try_get("/livez").await.is_ok_and(|a| a.status == 200).then_some(());
    until("it is alive", Duration::from_secs(10), alive).await;
    waits.ask_to_stop();
    assert_eq!(waits.stopped().await, Some(0));
    assert!(server.lives());
}
