//! Kills the server (`kill -9`) at random moments while runs go through four workers, on each store: 500 diamonds of
//! six tasks, 60 runs that each start four children, and 6 wide runs of 400 items. Five kills; `DOWNBEAT_KILLS=50` makes it fifty, `SEED=n` repeats
//! the moments.
//!
//! Audited at the end: every run completed; every task has exactly one accepted result, one that a worker really
//! sent, in its first attempt; a reader of all events that reconnects with `Last-Event-ID` has seen each event of
//! each run exactly once and in order.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod reader;
#[path = "../support/redis.rs"]
mod redis;
#[path = "../support/mod.rs"]
mod support;

use axum::body::Body;
use bytes::Bytes;
use downbeat::client::worker::Worker;
use downbeat::model::entropy::SeededEntropy;
use downbeat::store::redis::{Options, RedisStore};
use futures::StreamExt as _;
use http::Request;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use serde_json::Value;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use support::server::{Server, free_address};
use tokio::sync::watch;

const TASKS: [&str; 6] = ["a", "b", "c", "d", "e", "f"];
const DIAMOND: &str = r#"
name: diamond
tasks:
  a: { type: work, input: { run: "${{ run.id }}" } }
  b: { needs: [a], type: work, input: { seen: "${{ tasks.a.output.by }}" } }
  c: { needs: [a], type: work, input: { seen: "${{ tasks.a.output }}" } }
  d: { needs: [a], type: work }
  e: { needs: [b, c, d], type: work, input: [ "${{ tasks.b.output.by }}", "${{ tasks.d.output.by }}" ] }
  f: { needs: [e], type: work, input: "${{ tasks.e.output }}" }
output: "${{ tasks.f.output }}"
"#;

const FAMILY: &str = r#"
name: family
tasks:
  each: { for_each: ["a", "b", "c"], workflow: diamond, input: "${{ item }}" }
  last: { needs: [each], workflow: diamond }
output: ["${{ tasks.each.output }}", "${{ tasks.last.output }}"]
"#;

const FAN: &str = r#"
name: fan
tasks:
  each: { for_each: "${{ range(400) | list }}", type: work, input: { item: "${{ item }}" } }
output: "${{ tasks.each.output }}"
"#;

/// Items of a fan.
const ITEMS: usize = 400;

/// What is run while servers are killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Workload {
    /// 500 diamonds.
    Diamonds,
    /// 60 runs, each of which starts four diamonds.
    Families,
    /// 6 runs of 400 items.
    Fans,
}

impl Workload {
    fn runs(self) -> usize {
        match self {
            Self::Diamonds => 500,
            Self::Families => 60,
            Self::Fans => 6,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Diamonds => "diamond",
            Self::Families => "family",
            Self::Fans => "fan",
        }
    }

    /// Diamonds under each run.
    fn children(self) -> usize {
        match self {
            Self::Diamonds | Self::Fans => 0,
            Self::Families => 4,
        }
    }

    /// Tasks that workers do, in all.
    fn tasks(self) -> usize {
        let each = if self == Self::Fans { ITEMS } else { self.children().max(1) * TASKS.len() };
        self.runs() * each
    }
}

/// What workers sent, by run and task.
type Sent = Arc<Mutex<BTreeMap<(String, String), Vec<String>>>>;

/// A worker that answers each attempt with a value of its own, and remembers it.
fn worker(address: SocketAddr, number: usize, sent: Sent, done: watch::Sender<usize>) -> Worker {
    Worker::builder(format!("http://{address}"))
        .label(format!("w{number}"))
        .handle("work", 16, move |task| {
            let (sent, done) = (Arc::clone(&sent), done.clone());
            async move {
                let mut all = sent.lock().unwrap();
                let mine = all.entry((task.run().to_owned(), task.path().to_owned())).or_default();
                let output =
                    format!("{{\"by\":\"w{number}-{}-{}-{}\"}}", task.run(), task.path(), mine.len());
                mine.push(output.clone());
                drop(all);
                done.send_modify(|n| *n += 1);
                Ok(Bytes::from(output))
            }
        })
        .build()
        .unwrap()
}

/// Asks until the server answers with one of `statuses`: it may be down just now.
async fn insist(address: SocketAddr, make: impl Fn() -> Request<Body>, statuses: &[u16]) -> Bytes {
    use http_body_util::BodyExt as _;
    let ask = async {
        let mut pause = tokio::time::interval(Duration::from_millis(20));
        loop {
            pause.tick().await;
            let client: Client<_, Body> = Client::builder(TokioExecutor::new()).build_http();
            let mut request = make();
            *request.uri_mut() = format!("http://{address}{}", request.uri()).parse().unwrap();
            let Ok(Ok(response)) =
                tokio::time::timeout(Duration::from_secs(5), client.request(request)).await
            else {
                continue;
            };
            if statuses.contains(&response.status().as_u16())
                && let Ok(body) = response.into_body().collect().await
            {
                return body.to_bytes();
            }
        }
    };
    tokio::time::timeout(Duration::from_mins(1), ask).await.expect("the server answers in the end")
}

fn get(path: &str) -> Request<Body> {
    Request::get(path).body(Body::empty()).unwrap()
}

/// Starts every run, each with its own id, so that a repeat is harmless.
async fn start_all(address: SocketAddr, workload: Workload) {
    let starts = (0..workload.runs()).map(|n| async move {
        let body = format!(r#"{{"workflow":"{}","id":"run-{n}"}}"#, workload.name());
        let make = || {
            let request = Request::post("/v1/runs").header("content-type", "application/json");
            request.body(Body::from(body.clone())).unwrap()
        };
        insist(address, make, &[200, 201]).await;
    });
    futures::stream::iter(starts).buffer_unordered(16).collect::<()>().await;
}

async fn kill_and_audit(workload: Workload, store: &str, data: Option<&Path>) {
    let kills: usize = std::env::var("DOWNBEAT_KILLS").map_or(5, |n| n.parse().unwrap());
    let seed: u64 = std::env::var("SEED").map_or(1, |n| n.parse().unwrap());
    println!("store {store}, {kills} kills; repeat the moments with SEED={seed}");
    let random = SeededEntropy::new(seed);
    let address = free_address();
    let mut server = Server::serve(store, data, address);
    for (name, text) in [("diamond", DIAMOND), ("family", FAMILY), ("fan", FAN)] {
        let path = format!("/v1/workflows/{name}");
        let register = || Request::put(&path).header("content-type", "application/yaml");
        insist(address, || register().body(Body::from(text)).unwrap(), &[201]).await;
    }

    let sent = Sent::default();
    let (done, mut executed) = watch::channel(0_usize);
    let workers: Vec<_> = (0..4).map(|n| worker(address, n, Arc::clone(&sent), done.clone())).collect();
    let handles: Vec<_> = workers.iter().map(Worker::handle).collect();
    let working: Vec<_> = workers.into_iter().map(|w| tokio::spawn(w.run())).collect();
    let reader = reader::Reader::start(address).await;
    let starting = tokio::spawn(start_all(address, workload));

    reader.has_begun().await;
    let share = workload.tasks() / (kills + 1);
    for kill in 0..kills {
        let at = kill * share + 1 + (random.next_u64() as usize) % share;
        tokio::time::timeout(Duration::from_mins(1), executed.wait_for(|n| *n >= at)).await.unwrap().unwrap();
        server.kill9();
        server = Server::serve(store, data, address);
    }
    starting.await.unwrap();
    for n in 0..workload.runs() {
        let id = format!("run-{n}");
        let run = insist(address, || get(&format!("/v1/runs/{id}?wait=30s")), &[200]).await;
        let run: Value = serde_json::from_slice(&run).unwrap();
        match workload {
            Workload::Diamonds => audit(&id, &run, &sent.lock().unwrap()),
            Workload::Families => audit_family(address, &id, &run, &sent).await,
            Workload::Fans => audit_fan(&id, &run, &sent.lock().unwrap()),
        }
    }
    reader.audit(address, workload.runs() * (1 + workload.children())).await;
    for handle in &handles {
        handle.shutdown(Duration::from_secs(2));
    }
    for worker in working {
        worker.await.unwrap().unwrap();
    }
    if store.starts_with("redis") {
        let store = RedisStore::open(store, Options::default()).await.unwrap();
        assert_eq!(store.orphans(100).await.unwrap(), [], "keys that nobody owns");
    }
}

/// One run: completed, each task once, with a result that a worker sent for it.
fn audit(id: &str, run: &Value, sent: &BTreeMap<(String, String), Vec<String>>) {
    assert_eq!(run["status"], "completed", "{run}");
    let tasks = run["tasks"].as_array().unwrap();
    assert_eq!(tasks.iter().map(|t| t["task"].as_str().unwrap()).collect::<Vec<_>>(), TASKS);
    for task in tasks {
        let key = (id.to_owned(), task["task"].as_str().unwrap().to_owned());
        let output = task["output"].to_string();
        assert!(sent[&key].contains(&output), "{key:?}: nobody sent {output}");
        // Workers lived: whatever happened to the server used up no attempt.
        assert_eq!(task["attempts"].as_array().unwrap().len(), 1, "{task}");
    }
    assert_eq!(run["output"], tasks[5]["output"]);
}

/// A wide run: each item once, in its first attempt, with a result that a worker sent for it, in order.
fn audit_fan(id: &str, run: &Value, sent: &BTreeMap<(String, String), Vec<String>>) {
    assert_eq!(run["status"], "completed", "{}", run["error"]);
    let tasks = run["tasks"].as_array().unwrap();
    assert_eq!(tasks.len(), 1 + ITEMS);
    let output = run["output"].as_array().unwrap();
    for (n, (task, output)) in tasks[1..].iter().zip(output).enumerate() {
        let path = format!("each[{n}]");
        assert_eq!((task["task"].as_str(), &task["output"]), (Some(&*path), output));
        assert!(sent[&(id.to_owned(), path)].contains(&output.to_string()));
        assert_eq!(task["attempts"].as_array().unwrap().len(), 1, "{task}");
    }
}

/// One run and those it has started: each task has one child, in its first attempt, and comes to what that came to.
async fn audit_family(address: SocketAddr, id: &str, run: &Value, sent: &Sent) {
    assert_eq!(run["status"], "completed", "{run}");
    let list = insist(address, || get(&format!("/v1/runs?parent={id}")), &[200]).await;
    let list: Value = serde_json::from_slice(&list).unwrap();
    let mut listed: Vec<&str> =
        list["items"].as_array().unwrap().iter().map(|r| r["id"].as_str().unwrap()).collect();
    let mut named = Vec::new();
    for task in run["tasks"].as_array().unwrap().iter().filter(|t| t["task"] != "each") {
        let attempts = task["attempts"].as_array().unwrap();
        assert_eq!(attempts.len(), 1, "{task}");
        let child = attempts[0]["run"].as_str().unwrap();
        let of = insist(address, || get(&format!("/v1/runs/{child}")), &[200]).await;
        let of: Value = serde_json::from_slice(&of).unwrap();
        audit(child, &of, &sent.lock().unwrap());
        assert_eq!((&of["parent"], &of["parent_task"]), (&id.into(), &task["task"]));
        assert_eq!(of["output"], task["output"]);
        named.push(child);
    }
    named.sort_unstable();
    listed.sort_unstable();
    assert_eq!(listed, named, "no child was begun that is not the task's");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_servers_on_redis_lose_and_double_nothing() {
    let redis = redis::RedisServer::start(redis::Options { aof: true, args: Vec::new() });
    kill_and_audit(Workload::Diamonds, &redis.url(), None).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_servers_on_the_embedded_store_lose_and_double_nothing() {
    let data = tempfile::tempdir().unwrap();
    kill_and_audit(Workload::Diamonds, "embedded", Some(data.path())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_servers_on_redis_lose_and_double_no_child() {
    let redis = redis::RedisServer::start(redis::Options { aof: true, args: Vec::new() });
    kill_and_audit(Workload::Families, &redis.url(), None).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_servers_on_the_embedded_store_lose_and_double_no_child() {
    let data = tempfile::tempdir().unwrap();
    kill_and_audit(Workload::Families, "embedded", Some(data.path())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_servers_on_redis_lose_and_double_no_item() {
    let redis = redis::RedisServer::start(redis::Options { aof: true, args: Vec::new() });
    kill_and_audit(Workload::Fans, &redis.url(), None).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_servers_on_the_embedded_store_lose_and_double_no_item() {
    let data = tempfile::tempdir().unwrap();
    kill_and_audit(Workload::Fans, "embedded", Some(data.path())).await;
}
