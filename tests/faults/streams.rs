//! Workers' streams: those that are late, that nobody hears, that take work and do nothing, that never come.
//! (One stalled subscription beside a live one: `tests/servers/credits.rs`. Workers that are killed:
//! `tests/servers/workers.rs`.)

use crate::redis::{Options, RedisServer};
use crate::support::client::{Worker, soon};
use crate::support::crew::{Crew, audit_strictly};
use crate::support::proxy::{Mode, Proxy};
use crate::support::server::{Door, Server, free_address};
use crate::{CHAIN, long, register, start_all, until};
use downbeat::proto::v1;
use downbeat::proto::v1::result::Outcome;
use downbeat::proto::v1::result_ack::Status;
use serde_json::json;
use std::time::Duration;

const QUICK: &[(&str, &str)] = &[("DOWNBEAT_LEASE", "3s"), ("DOWNBEAT_ACK", "1s"), ("DOWNBEAT_PING", "1s")];

/// A run looks after its workers this often, whatever the lease; and some time for the look.
const NOTICED: Duration = Duration::from_secs(13);

fn site() -> (RedisServer, Server) {
    let redis = RedisServer::start(Options::default());
    let server = Server::serve_with(&redis.url(), free_address(), QUICK);
    (redis, server)
}

fn completed(json: &'static str) -> Outcome {
    Outcome::Completed(json.into())
}

fn failed() -> Outcome {
    Outcome::Failed(v1::TaskFailure { code: "late".into(), ..v1::TaskFailure::default() })
}

#[tokio::test]
async fn the_first_result_counts_whoever_says_what_later() {
    let (_redis, server) = site();
    let text = "tasks: { t: { type: work, timeout: { run: 500ms }, retry: { initial: 10ms } } }";
    register(*server, "w", text).await;
    let (mut late, _) = Worker::hello(&server, "work", 1).await;
    assert_eq!(server.start_run("w", "r1", "1").await.status, 201);
    let first = late.assignment().await;
    // The second is for somebody else.
    late.say(v1::worker_message::Message::Credit(v1::Subscription {
        r#type: "work".into(),
        ..v1::Subscription::default()
    }));
    let (mut other, _) = Worker::hello(&server, "work", 1).await;
    let second = other.assignment().await;
    assert_eq!((first.attempt, second.attempt), (1, 2), "the first attempt took too long");

    // While the second is at work: neither what the first comes to nor a guess changes anything.
    for (token, status) in [(first.token.as_str(), Status::Stale), ("nonsense", Status::Unknown)] {
        for outcome in [completed("1"), failed()] {
            let ack = late.settle(token, outcome).await;
            assert_eq!(ack.status(), status, "{token}: {ack:?}");
        }
    }
    // The token of the second, but for one letter of it.
    for at in 0..second.token.len() {
        let letter = if &second.token[at..=at] == "A" { "Q" } else { "A" };
        let mut guess = second.token.clone();
        guess.replace_range(at..=at, letter);
        let ack = late.settle(&guess, completed("1")).await;
        assert!(matches!(ack.status(), Status::Stale | Status::Unknown), "{guess}: {ack:?}");
    }
    assert_eq!(other.settle(&second.token, completed("2")).await.status(), Status::Accepted);
    let ended = server.get("/v1/runs/r1?wait=5s").await.json();
    assert_eq!((&ended["status"], &ended["tasks"][0]["output"]), (&json!("completed"), &json!(2)));

    // The same once more counts, from whomever; anything else does not, and nothing changes.
    for worker in [&mut other, &mut late] {
        assert_eq!(worker.settle(&second.token, completed("2")).await.status(), Status::Accepted);
        assert_eq!(worker.settle(&second.token, completed("3")).await.status(), Status::Stale);
        assert_eq!(worker.settle(&second.token, failed()).await.status(), Status::Stale);
    }
    assert_eq!(server.get("/v1/runs/r1").await.json(), ended);
    // Its stream is as good as ever.
    late.say(v1::worker_message::Message::Credit(v1::Subscription {
        r#type: "work".into(),
        credit: 5,
        ..v1::Subscription::default()
    }));
    drop(other);
    assert_eq!(server.start_run("w", "r2", "1").await.status, 201);
    assert_eq!(soon(late.assignment()).await.run, "r2");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_on_a_half_open_connection_comes_back_with_what_it_holds() {
    let (_redis, server) = site();
    let proxy = Proxy::start(server.address());
    register(*server, "chain", CHAIN).await;
    let crew = Crew::at(&[Door(proxy.address())], "work", 10, Duration::from_millis(2_500));
    let runs = start_all(*server, "chain", 3).await;
    until("three tasks begin", Duration::from_secs(15), async || (crew.begun() == 3).then_some(())).await;
    assert_eq!(proxy.accepted(), 1);
    // That it has them is on its way, and kept after half a second.
    tokio::time::sleep(Duration::from_secs(1)).await;
    proxy.set(Mode::HalfOpen);
    // Two pings are missing: the worker gives the connection up by itself and dials again.
    let dials = async || (proxy.accepted() >= 2).then_some(());
    until("the worker notices", Duration::from_secs(5), dials).await;
    proxy.set(Mode::Pass);
    proxy.cut();
    audit_strictly(*server, runs, &crew).await;
    crew.leave().await;
}

#[tokio::test]
async fn tasks_behind_a_half_open_connection_are_elsewhere_after_the_lease() {
    // By default a connection is asked every 10 s whether anybody is there, and has 10 s to answer.
    let pings = [("DOWNBEAT_LIMIT_PING", "1s"), ("DOWNBEAT_LIMIT_PING_ANSWER", "1s")];
    let redis = RedisServer::start(Options::default());
    let server = Server::serve_with(&redis.url(), free_address(), &[QUICK, &pings].concat());
    let proxy = Proxy::start(server.address());
    register(*server, "w", "tasks: { t: { type: work, retry: { initial: 10ms } } }").await;
    let (mut deaf, _) = Worker::hello(&Door(proxy.address()), "work", 3).await;
    let runs = start_all(*server, "w", 3).await;
    let mut held = Vec::new();
    for _ in 0..3 {
        held.push(deaf.assignment().await);
    }
    let before = server.descriptors();
    // Acknowledged, and kept: these are at work.
    tokio::time::sleep(Duration::from_millis(700)).await;
    proxy.set(Mode::HalfOpen);
    let crew = Crew::at(&[*server], "work", 10, Duration::ZERO);
    let elsewhere = async || (crew.begun() >= 3).then_some(());
    until("they are elsewhere", NOTICED, elsewhere).await;
    // The server has let go of the connection as well; the crew has one of its own.
    let closed = async || (server.descriptors() <= before).then_some(());
    until("the connection is closed", Duration::from_secs(15), closed).await;
    for id in &runs {
        let run = server.get(&format!("/v1/runs/{id}?wait=5s")).await.json();
        assert_eq!((&run["status"], &run["tasks"][0]["output"]), (&json!("completed"), &json!(null)));
        assert_eq!(run["tasks"][0]["attempts"][0]["error"]["code"], "worker_lost");
    }
    // It finds another way and is too late.
    let (mut back, _) = Worker::hello(&server, "other", 1).await;
    for task in &held {
        assert_eq!(back.settle(&task.token, completed("9")).await.status(), Status::Stale);
    }
    crew.leave().await;
}

#[tokio::test]
async fn a_stream_that_comes_again_replaces_the_one_that_looks_open() {
    let (_redis, server) = site();
    register(*server, "w", "tasks: { t: { type: work, input: 1 } }").await;
    let (mut old, welcome) = Worker::hello(&server, "work", 2).await;
    assert_eq!(server.start_run("w", "r1", "1").await.status, 201);
    let held = old.assignment().await;
    let mut new = Worker::open(&server).await;
    new.say(v1::worker_message::Message::Hello(v1::Hello {
        previous_session: welcome.session.clone(),
        tokens: vec![held.token.clone()],
        subscriptions: vec![v1::Subscription {
            r#type: "work".into(),
            credit: 2,
            ..v1::Subscription::default()
        }],
        ..v1::Hello::default()
    }));
    let v1::server_message::Message::Welcome(again) = new.hear().await.unwrap() else { panic!("a welcome") };
    assert_eq!((&again.session, &again.valid_tokens), (&welcome.session, &vec![held.token.clone()]));
    // The old one ends and is given nothing more.
    old.end().await;
    assert_eq!(server.start_run("w", "r2", "1").await.status, 201);
    assert_eq!(soon(new.assignment()).await.run, "r2");
    assert_eq!(new.settle(&held.token, completed("1")).await.status(), Status::Accepted);
    assert_eq!(server.get("/v1/runs/r1?wait=5s").await.json()["status"], "completed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_takes_its_credit_and_does_nothing_holds_back_no_more_than_that() {
    let count = if long() { 1_000 } else { 300 };
    let (_redis, server) = site();
    let proxy = Proxy::start(server.address());
    register(*server, "w", "tasks: { t: { type: work, input: 1, retry: { initial: 10ms } } }").await;
    let (mut idle, _) = Worker::hello(&Door(proxy.address()), "work", 5).await;
    let starting = tokio::spawn(start_all(*server, "w", count));
    let mut held = Vec::new();
    for _ in 0..5 {
        held.push(idle.assignment().await.run);
    }
    let runs = starting.await.unwrap();
    let before = server.memory();
    // It does not even read any more.
    proxy.set(Mode::Hold);
    let crew = Crew::at(&[*server], "work", 20, Duration::ZERO);
    let others = async || (crew.begun() >= count - 5).then_some(());
    until("the other does the rest", Duration::from_secs(20), others).await;
    assert_eq!((crew.begun(), crew.done_twice()), (count - 5, vec![]));
    let grown = server.memory().saturating_sub(before);
    assert!(grown < 20 << 20, "the server grew by {grown} bytes");
    until("its five come back", NOTICED, async || (crew.begun() == count).then_some(())).await;
    for id in runs {
        let run = server.get(&format!("/v1/runs/{id}?wait=10s")).await.json();
        let attempts = run["tasks"][0]["attempts"].as_array().unwrap().len();
        assert_eq!(run["status"], "completed");
        assert_eq!(attempts, if held.contains(&id) { 2 } else { 1 }, "{id}");
    }
    crew.leave().await;
}

#[tokio::test]
async fn what_nobody_serves_waits_as_long_as_it_may() {
    let (_redis, server) = site();
    register(*server, "limited", "tasks: { t: { type: nosuch, timeout: { queue: 1s } } }").await;
    register(*server, "patient", "tasks: { t: { type: later } }").await;
    assert_eq!(server.start_run("patient", "p1", "1").await.status, 201);
    assert_eq!(server.start_run("limited", "l1", "1").await.status, 201);
    let began = tokio::time::Instant::now();
    let run = server.get("/v1/runs/l1?wait=10s").await.json();
    let after = began.elapsed();
    assert_eq!((&run["status"], &run["error"]["code"]), (&json!("failed"), &json!("timeout_queue")));
    assert_eq!(run["tasks"][0]["status"], "timed_out");
    assert!((Duration::from_millis(900)..Duration::from_secs(3)).contains(&after), "{after:?}");
    // Never handed out later.
    let claim = server.post("/v1/tasks/claim", r#"{"types":["nosuch"],"wait":"300ms"}"#).await;
    assert_eq!(claim.text(), "[]");

    let waiting = server.get("/v1/runs/p1").await.json();
    assert_eq!((&waiting["status"], &waiting["tasks"][0]["status"]), (&json!("running"), &json!("queued")));
    let (mut worker, _) = Worker::hello(&server, "later", 1).await;
    let arrived = tokio::time::Instant::now();
    let task = worker.assignment().await;
    assert!(arrived.elapsed() < Duration::from_secs(1), "{:?}", arrived.elapsed());
    worker.settle(&task.token, completed("1")).await;
    assert_eq!(server.get("/v1/runs/p1?wait=5s").await.json()["status"], "completed");
}
