//! Kills the server (`kill -9`) at random moments while 500 runs of a six-task diamond go through four workers,
//! on each store. Five kills; `DOWNBEAT_KILLS=50` makes it fifty, `SEED=n` repeats the moments.
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

const RUNS: usize = 500;
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
    tokio::time::timeout(Duration::from_secs(60), ask).await.expect("the server answers in the end")
}

fn get(path: &str) -> Request<Body> {
    Request::get(path).body(Body::empty()).unwrap()
}

/// Starts every run, each with its own id, so that a repeat is harmless.
async fn start_all(address: SocketAddr) {
    let starts = (0..RUNS).map(|n| async move {
        let body = format!(r#"{{"workflow":"diamond","id":"run-{n}"}}"#);
        let make = || {
            let request = Request::post("/v1/runs").header("content-type", "application/json");
            request.body(Body::from(body.clone())).unwrap()
        };
        insist(address, make, &[200, 201]).await;
    });
    use futures::StreamExt as _;
    futures::stream::iter(starts).buffer_unordered(16).collect::<()>().await;
}

async fn kill_and_audit(store: &str, data: Option<&Path>) {
    let kills: usize = std::env::var("DOWNBEAT_KILLS").map_or(5, |n| n.parse().unwrap());
    let seed: u64 = std::env::var("SEED").map_or(1, |n| n.parse().unwrap());
    println!("store {store}, {kills} kills; repeat the moments with SEED={seed}");
    let random = SeededEntropy::new(seed);
    let address = free_address();
    let mut server = Server::serve(store, data, address);
    let register = || Request::put("/v1/workflows/diamond").header("content-type", "application/yaml");
    insist(address, || register().body(Body::from(DIAMOND)).unwrap(), &[201]).await;

    let sent = Sent::default();
    let (done, mut executed) = watch::channel(0_usize);
    let workers: Vec<_> = (0..4).map(|n| worker(address, n, Arc::clone(&sent), done.clone())).collect();
    let handles: Vec<_> = workers.iter().map(Worker::handle).collect();
    let working: Vec<_> = workers.into_iter().map(|w| tokio::spawn(w.run())).collect();
    let reader = reader::Reader::start(address).await;
    let starting = tokio::spawn(start_all(address));

    let share = RUNS * TASKS.len() / (kills + 1);
    for kill in 0..kills {
        let at = kill * share + 1 + (random.next_u64() as usize) % share;
        tokio::time::timeout(Duration::from_secs(60), executed.wait_for(|n| *n >= at))
            .await
            .unwrap()
            .unwrap();
        server.kill9();
        server = Server::serve(store, data, address);
    }
    starting.await.unwrap();
    for n in 0..RUNS {
        let run = insist(address, || get(&format!("/v1/runs/run-{n}?wait=30s")), &[200]).await;
        audit(n, &serde_json::from_slice(&run).unwrap(), &sent.lock().unwrap());
    }
    reader.audit(address, RUNS).await;
    for handle in &handles {
        handle.shutdown(Duration::from_secs(2));
    }
    for worker in working {
        worker.await.unwrap().unwrap();
    }
}

/// One run: completed, each task once, with a result that a worker sent for it.
fn audit(n: usize, run: &Value, sent: &BTreeMap<(String, String), Vec<String>>) {
    assert_eq!(run["status"], "completed", "{run}");
    let tasks = run["tasks"].as_array().unwrap();
    assert_eq!(tasks.iter().map(|t| t["task"].as_str().unwrap()).collect::<Vec<_>>(), TASKS);
    for task in tasks {
        let key = (format!("run-{n}"), task["task"].as_str().unwrap().to_owned());
        let output = task["output"].to_string();
        assert!(sent[&key].contains(&output), "{key:?}: nobody sent {output}");
        // Workers lived: whatever happened to the server used up no attempt.
        assert_eq!(task["attempts"].as_array().unwrap().len(), 1, "{task}");
    }
    assert_eq!(run["output"], tasks[5]["output"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_servers_on_redis_lose_and_double_nothing() {
    let redis = redis::RedisServer::start(redis::Options { aof: true, args: Vec::new() });
    kill_and_audit(&redis.url(), None).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_servers_on_the_embedded_store_lose_and_double_nothing() {
    let data = tempfile::tempdir().unwrap();
    kill_and_audit("embedded", Some(data.path())).await;
}
