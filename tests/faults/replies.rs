//! Redis does what it is asked and the reply is lost, for each kind of call: one effect each, and a repeat is safe.
//! Each call is hit three times in a row: reads, the commit, and what settles its fate.

use crate::redis::{Options, RedisServer};
use crate::support::crew::{Crew, faults_of, history};
use crate::support::proxy::Proxy;
use crate::support::server::{Door, Server, free_address};
use crate::{register, until};
use serde_json::{Value, json};
use std::time::Duration;

/// Replies that are lost one after the other.
const TIMES: usize = 3;

/// A server that reaches its Redis through a proxy.
struct Site {
    server: Server,
    proxy: Proxy,
    _redis: RedisServer,
}

fn site() -> Site {
    let redis = RedisServer::start(Options::default());
    let proxy = Proxy::before_port(redis.port());
    let server = Server::serve(&proxy.redis_url(), None, free_address());
    Site { server, proxy, _redis: redis }
}

impl Site {
    /// Waits until replies have been lost, and then until all is well.
    async fn lost(&self) {
        let within = Duration::from_secs(15);
        until("a reply is lost", within, async || (self.proxy.dropped() > 0).then_some(())).await;
        let look = async || {
            let ready = self.server.try_get("/readyz").await.is_ok_and(|a| a.status == 200);
            (ready && self.proxy.dropped() >= TIMES).then_some(())
        };
        until("every reply is lost and the server is ready again", within, look).await;
    }
}

/// How often a run tells of a kind.
fn count(events: &[Value], kind: &str) -> usize {
    events.iter().filter(|e| e["type"] == kind).count()
}

/// The whole history of a run that is to end completed, checked.
async fn completed(door: Door, run: &str) -> Vec<Value> {
    let seen = door.insist_get(&format!("/v1/runs/{run}?wait=15s")).await.json();
    assert_eq!(seen["status"], "completed", "{seen:#}");
    let events = history(door, run).await;
    assert_eq!(faults_of(&events), Vec::<String>::new(), "{events:#?}");
    events
}

#[tokio::test]
async fn a_start() {
    let site = site();
    register(*site.server, "w", "tasks: { t: { set: 1 } }").await;
    site.proxy.drop_replies_to("lost-run", TIMES);
    let body = r#"{"workflow":"w","id":"lost-run"}"#;
    let first = site.server.try_post("/v1/runs", body).await.unwrap();
    assert!(matches!(first.status, 201 | 503 | 504), "{}", first.text());
    if first.status != 201 {
        assert_eq!(first.header("retry-after"), "1");
    }
    assert_eq!(site.server.insist_post("/v1/runs", body).await.status, 200, "it is there");
    let events = completed(*site.server, "lost-run").await;
    assert_eq!((count(&events, "run.started"), count(&events, "task.completed")), (1, 1));
    let list = site.server.insist_get("/v1/runs?workflow=w").await.json();
    assert_eq!(list["items"].as_array().unwrap().len(), 1);
    site.lost().await;
}

#[tokio::test]
async fn a_start_whose_values_cannot_be_read_is_told_as_what_it_is() {
    let site = site();
    register(*site.server, "w", "tasks: { t: { type: work, input: \"${{ input }}\" } }").await;
    let input = "x".repeat(1_000);
    // What is read for the answer, after the commit.
    site.proxy.drop_replies_to("HMGET", TIMES);
    let body = json!({"workflow": "w", "input": input}).to_string();
    let started = site.server.try_post("/v1/runs", &body).await.unwrap();
    assert_eq!(started.status, 201, "{}", started.text());
    let run = started.json();
    let id = run["id"].as_str().unwrap();
    assert_eq!(run["input"], json!({"$ref": format!("/v1/runs/{id}/values/input"), "size": 1_002}));
    assert!(site.proxy.dropped() > 0);
    site.proxy.drop_replies_to("HMGET", 0);
    let list = site.server.insist_get("/v1/runs?workflow=w").await.json();
    assert_eq!(list["items"].as_array().unwrap().len(), 1, "{list:#}");
    let read = site.server.insist_get(&format!("/v1/runs/{id}")).await.json();
    assert_eq!((&read["input"], &read["tasks"][0]["status"]), (&json!(input), &json!("queued")), "{read:#}");
}

#[tokio::test]
async fn a_completion_over_either_door() {
    let site = site();
    register(*site.server, "w", "tasks: { t: { type: work, input: 1 } }").await;
    assert_eq!(site.server.start_run("w", "lost-http", "1").await.status, 201);
    let token = site.server.claim("work").await["token"].as_str().unwrap().to_owned();
    site.proxy.drop_replies_to("lost-http", TIMES);
    site.server.insist_post(&format!("/v1/tasks/{token}/complete"), r#"{"output":1}"#).await;
    let events = completed(*site.server, "lost-http").await;
    assert_eq!((count(&events, "task.started"), count(&events, "task.completed")), (1, 1));
    site.lost().await;

    let crew = Crew::at(&[*site.server], "work", 1, Duration::from_millis(500));
    assert_eq!(site.server.start_run("w", "lost-grpc", "1").await.status, 201);
    until("the task begins", Duration::from_secs(15), async || (crew.begun() == 1).then_some(())).await;
    site.proxy.drop_replies_to("lost-grpc", TIMES);
    let events = completed(*site.server, "lost-grpc").await;
    assert_eq!((count(&events, "task.started"), count(&events, "task.completed")), (1, 1));
    assert_eq!((crew.begun(), crew.done_twice()), (1, vec![]));
    crew.leave().await;
}

#[tokio::test]
async fn a_signal() {
    let site = site();
    let text = "tasks:\n  first: { wait: { signal: go } }\n  second: { needs: [first], wait: { signal: go } }\n\
                output: ['${{ tasks.first.output }}', '${{ tasks.second.output }}']\n";
    register(*site.server, "w", text).await;
    assert_eq!(site.server.start_run("w", "lost-signal", "1").await.status, 201);
    site.proxy.drop_replies_to("lost-signal", TIMES);
    for _ in 0..2 {
        site.server.insist_post("/v1/runs/lost-signal/signals/go?id=one", "1").await;
    }
    site.lost().await;
    let run = site.server.insist_get("/v1/runs/lost-signal").await.json();
    let statuses: Vec<_> = run["tasks"].as_array().unwrap().iter().map(|t| t["status"].clone()).collect();
    assert_eq!(statuses, ["completed", "waiting"], "one signal, one wait");
    site.server.insist_post("/v1/runs/lost-signal/signals/go?id=two", "2").await;
    let events = completed(*site.server, "lost-signal").await;
    assert_eq!(count(&events, "signal.received"), 2);
    assert_eq!(events.last().unwrap()["output"], json!([1, 2]));
}

#[tokio::test]
async fn a_timer() {
    let site = site();
    register(*site.server, "w", "tasks: { nap: { wait: { for: 700ms } }, after: { needs: [nap], set: 1 } }")
        .await;
    assert_eq!(site.server.start_run("w", "lost-timer", "1").await.status, 201);
    // All of what follows: the tick that finds it, the reading, the commit.
    site.proxy.drop_replies_to("lost-timer", TIMES);
    let began = tokio::time::Instant::now();
    let events = completed(*site.server, "lost-timer").await;
    assert_eq!(count(&events, "task.completed"), 2);
    assert!(began.elapsed() < Duration::from_secs(8), "{:?}", began.elapsed());
    site.lost().await;
}

/// A tick says nothing of the runs that it takes: its reply is what is lost.
#[tokio::test]
async fn a_tick_that_took_what_was_due() {
    let site = site();
    register(*site.server, "w", "tasks: { nap: { wait: { for: 500ms } } }").await;
    for n in 0..20 {
        assert_eq!(site.server.start_run("w", &format!("r{n}"), "1").await.status, 201);
    }
    let tick = ::redis::Script::new(include_str!("../../src/store/redis/lua/tick.lua"));
    site.proxy.drop_replies_to(tick.get_hash(), TIMES);
    for n in 0..20 {
        let events = completed(*site.server, &format!("r{n}")).await;
        assert_eq!(count(&events, "task.completed"), 1);
    }
    site.lost().await;
}

#[tokio::test]
async fn the_slots_of_a_schedule() {
    let site = site();
    register(*site.server, "w", "tasks: { t: { set: 1 } }").await;
    let definition = json!({"workflow": "w", "cron": "*/10 * * * *", "overlap": "allow", "catch_up": "none"});
    let put = site.server.put("/v1/schedules/lost", "application/json", definition.to_string()).await;
    assert_eq!(put.status, 201, "{}", put.text());
    let range = json!({"from": "2026-01-05T00:00:00Z", "to": "2026-01-05T02:00:00Z"});
    // The first of its slots, in the schedule's record and in the run.
    site.proxy.drop_replies_to("lost", TIMES);
    let answer = site.server.try_post("/v1/schedules/lost/backfill", &range.to_string()).await.unwrap();
    assert!(matches!(answer.status, 200 | 202 | 503 | 504), "{}", answer.text());
    if answer.status >= 500 {
        site.server.insist_post("/v1/schedules/lost/backfill", &range.to_string()).await;
    }
    let look = async || {
        let s = site.server.try_get("/v1/schedules/lost").await.ok().filter(|a| a.status == 200)?.json();
        (s["backfilling"] == 0 && s["open_count"] == 0 && s["firings"].as_array()?.len() >= 12).then_some(())
    };
    until("every slot has fired", Duration::from_secs(20), look).await;
    let list = site.server.insist_get("/v1/runs?limit=100").await.json();
    let items = list["items"].as_array().unwrap();
    let slots: Vec<_> =
        items.iter().filter_map(|r| r["id"].as_str()).filter(|id| id.contains("20260105")).collect();
    assert_eq!(slots.len(), 12, "{slots:?}");
    site.lost().await;
}

#[tokio::test]
async fn a_take_from_the_queue() {
    let site = site();
    register(*site.server, "w", "tasks: { t: { type: work, input: 1 } }").await;
    for n in 0..20 {
        assert_eq!(site.server.start_run("w", &format!("r{n}"), "1").await.status, 201);
    }
    let take = ::redis::Script::new(include_str!("../../src/store/redis/lua/take.lua"));
    site.proxy.drop_replies_to(take.get_hash(), TIMES);
    let crew = Crew::at(&[*site.server], "work", 5, Duration::ZERO);
    for n in 0..20 {
        let events = completed(*site.server, &format!("r{n}")).await;
        assert_eq!((count(&events, "task.started"), count(&events, "task.completed")), (1, 1));
    }
    assert_eq!((crew.begun(), crew.done_twice()), (20, vec![]));
    site.lost().await;
    crew.leave().await;
}
