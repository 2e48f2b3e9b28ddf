//! What went in comes out: every run, workflow, schedule and limit, whatever store it goes through.

use super::{Place, all_runs, becomes, echo, events, register, start, stop};
use crate::redis_cluster::RedisCluster;
use crate::redis_server::{Options, RedisServer};
use crate::support::server::Server;
use serde_json::{Value, json};
use std::path::Path;

/// Runs at rest in every state that has something beside its record.
async fn fill(server: &Server) {
    register(
        server,
        "echo",
        "tasks: { a: { type: echo, input: '${{ input }}' } }\noutput: '${{ tasks.a.output }}'",
    )
    .await;
    register(server, "echo", "tasks: { a: { type: echo } }").await;
    register(
        server,
        "echo",
        "tasks: { a: { type: echo, input: '${{ input }}' } }\noutput: '${{ tasks.a.output }}'",
    )
    .await;
    register(server, "waits", "tasks: { s: { wait: { signal: go } }, t: { wait: { for: 300d } } }").await;
    register(
        server,
        "queued",
        "priority: 3\ntasks: { a: { type: later, labels: { gpu: t4 } }, b: { type: later } }",
    )
    .await;
    register(server, "limited", "tasks: { t: { type: later, concurrency: { key: env, limit: 1 } } }").await;
    register(server, "paced", "tasks: { t: { type: later, rate: { key: api, limit: 1, per: 1h } } }").await;
    register(
        server,
        "wide",
        "tasks: { each: { for_each: '${{ range(300) | list }}', type: later, input: '${{ item }}' } }",
    )
    .await;
    register(
        server,
        "retrying",
        "tasks: { a: { type: failing, retry: { initial: 1d, max: 1d, jitter: 0 } } }",
    )
    .await;
    register(
        server,
        "parent",
        "tasks: { go: { workflow: queued }, free: { workflow: { name: waits, detach: true } } }",
    )
    .await;

    let working = echo(server, &["echo"]);
    let large = Value::String("x".repeat(100_000));
    for (id, input) in [("done-small", json!({"n": 1})), ("done-large", json!({ "text": large }))] {
        assert_eq!(server.start_run("echo", id, &input.to_string()).await.status, 201);
        becomes(server, id, |run| run["status"] == "completed").await;
    }
    // More than goes into one write.
    let huge = Value::String("y".repeat(900_000));
    register(
        server,
        "huge",
        "tasks: { each: { for_each: '${{ range(5) | list }}', type: echo, input: '${{ input }}' } }",
    )
    .await;
    assert_eq!(server.start_run("huge", "done-huge", &huge.to_string()).await.status, 201);
    becomes(server, "done-huge", |run| run["ended_at"].is_string()).await;
    working.abort();
    let older =
        json!({"workflow": "echo", "version": 2, "id": "older", "tags": {"team": "a"}, "priority": -4});
    assert_eq!(server.post("/v1/runs", older.to_string()).await.status, 201);
    let pending =
        json!({"workflow": "echo", "id": "pending", "start_at": "2031-01-01T00:00:00Z", "input": [1]});
    assert_eq!(server.post("/v1/runs", pending.to_string()).await.status, 201);
    for (workflow, id) in [
        ("waits", "waiting"),
        ("queued", "queued"),
        ("queued", "paused"),
        ("limited", "slot-1"),
        ("limited", "slot-2"),
        ("paced", "paced-1"),
        ("paced", "paced-2"),
        ("wide", "wide"),
        ("retrying", "retrying"),
        ("parent", "parent"),
        ("queued", "cancelled"),
    ] {
        start(server, workflow, id).await;
    }
    for path in ["/v1/runs/paused/pause", "/v1/runs/cancelled/cancel"] {
        assert_eq!(server.post(path, "{}").await.status, 200);
    }
    assert_eq!(server.post("/v1/runs/paused/signals/early", r#"{"kept":true}"#).await.status, 200);
    let token = server.claim("failing").await["token"].as_str().unwrap().to_owned();
    server.post(&format!("/v1/tasks/{token}/fail"), r#"{"code":"no","message":"not now"}"#).await;
    becomes(server, "retrying", |run| run["tasks"][0]["status"] == "retrying").await;
    let waits_for = |status: &'static str| move |run: &Value| run["tasks"][0]["status"] == status;
    becomes(server, "slot-1", waits_for("queued")).await;
    becomes(server, "slot-2", waits_for("waiting")).await;
    becomes(server, "paced-1", waits_for("queued")).await;
    becomes(server, "paced-2", waits_for("waiting")).await;
    becomes(server, "parent", |run| run["tasks"][1]["status"] == "completed").await;
    let schedule = json!({"workflow": "echo", "cron": "0 3 1 1 *", "overlap": "skip", "catch_up": "latest"});
    assert_eq!(
        server.put("/v1/schedules/yearly", "application/json", schedule.to_string()).await.status,
        201
    );
}

/// All that can be seen of a store.
async fn seen(server: &Server) -> Vec<Value> {
    let mut seen = all_runs(server).await;
    assert!(seen.len() >= 17, "{} runs", seen.len());
    seen.push(server.get("/v1/workflows").await.json());
    for version in 1..=3 {
        seen.push(server.get(&format!("/v1/workflows/echo/versions/{version}")).await.json());
    }
    seen.push(server.get("/v1/schedules").await.json());
    for id in ["done-large", "cancelled"] {
        seen.push(json!(events(server, id).await));
    }
    seen
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_goes_from_a_directory_through_redis_into_a_directory() {
    let redis = RedisServer::start(Options::default());
    goes_through(Place::Redis(&redis)).await;
    assert_eq!(redis.lines("HGET db:meta partitions"), ["5"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_goes_from_a_directory_through_a_cluster_into_a_directory() {
    let cluster = RedisCluster::start(3, 0, Options::default());
    goes_through(Place::Cluster(&cluster)).await;
    for node in &cluster.nodes {
        let keys: usize = node.command("DBSIZE").trim_start_matches(':').parse().unwrap();
        assert!(keys > 5, "every master has a part: {keys}");
    }
}

async fn goes_through(b: Place<'_>) {
    let files = tempfile::tempdir().unwrap();
    let (first, second) = (files.path().join("first"), files.path().join("second"));
    let (a, c) = (Place::Directory(&first), Place::Directory(&second));
    let (one, two) = (files.path().join("one.backup"), files.path().join("two.backup"));

    let server = a.serve();
    fill(&server).await;
    let before = seen(&server).await;
    a.backup(&one).refused("another process uses it");
    assert!(!one.exists());
    stop(server).await;
    let said = a.backup(&one).well();
    assert!(said.contains(" records, 11 versions of workflows, "), "{said}");

    // Into another number of partitions.
    b.run("restore", &one, &["--partitions", "5"]).well();
    assert_eq!(b.run("doctor", Path::new("--orphans"), &[]).well(), "no orphans\n");
    let server = b.serve();
    assert_eq!(seen(&server).await, before);
    // While a server works on it.
    b.backup(&two).well();
    stop(server).await;

    c.restore(&two).well();
    let server = c.serve();
    assert_eq!(seen(&server).await, before);

    // And it all goes on.
    let working = echo(&server, &["later", "echo", "failing"]);
    for id in ["older", "slot-1", "slot-2", "paced-1", "wide"] {
        let run = becomes(&server, id, |run| run["ended_at"].is_string()).await;
        assert_eq!(run["status"], "completed", "{run}");
    }
    let run = becomes(&server, "queued", |run| run["tasks"][1]["status"] == "completed").await;
    assert_eq!(run["tasks"][0]["status"], "queued", "no worker has its labels");
    assert_eq!(server.post("/v1/runs/waiting/signals/go", "1").await.status, 200);
    becomes(&server, "waiting", |run| run["tasks"][0]["output"] == 1).await;
    assert_eq!(server.post("/v1/schedules/yearly/run", "{}").await.status, 202);
    // An id that was taken still is.
    let again = server.start_run("echo", "done-small", r#"{"n":1}"#).await;
    assert_eq!((again.status, &again.json()["status"]), (200, &json!("completed")));
    server.start_run("echo", "done-small", "2").await.refused(409, "run_id_taken");
    working.abort();
    stop(server).await;
}
