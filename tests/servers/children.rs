//! Runs that start runs, over two servers on one Redis.

use super::Pair;
use super::support::client::soon;
use super::support::server::Server;
use downbeat::client::Worker;
use serde_json::{Value, json};
use std::time::Duration;
use tokio::time::Instant;

async fn register(server: &Server, documents: &[(&str, &str)]) {
    for (name, text) in documents {
        let text = format!("name: {name}\n{text}");
        let answer = server.put(&format!("/v1/workflows/{name}"), "application/yaml", text).await;
        assert_eq!(answer.status, 201, "{}", answer.text());
    }
}

async fn run(server: &Server, id: &str) -> Value {
    server.get(&format!("/v1/runs/{id}")).await.json()
}

/// The run that does the last attempt of a task.
fn child(run: &Value, task: &str) -> Option<String> {
    let of_task = run["tasks"].as_array().unwrap().iter().find(|t| t["task"] == task)?;
    Some(of_task["attempts"].as_array().unwrap().last()?["run"].as_str().unwrap().to_owned())
}

/// Looks until a run is as it should be.
async fn becomes(server: &Server, id: &str, right: impl Fn(&Value) -> bool) -> Value {
    let look = async {
        let mut pause = tokio::time::interval(Duration::from_millis(10));
        loop {
            pause.tick().await;
            let run = run(server, id).await;
            if right(&run) {
                return run;
            }
        }
    };
    soon(look).await
}

/// Every run of a list, page by page.
async fn listed(server: &Server, query: &str) -> Vec<Value> {
    let (mut all, mut cursor) = (Vec::new(), String::new());
    loop {
        let page = server.get(&format!("/v1/runs?limit=500&{query}{cursor}")).await.json();
        all.extend(page["items"].as_array().unwrap().iter().cloned());
        match page["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => return all,
        }
    }
}

const PARENT: &str = "
tasks:
  go: { workflow: child, input: { n: '${{ input.n }}' }, retry: { max_attempts: 1 } }
output: '${{ tasks.go.output }}'
";
const CHILD: &str = "
input: { type: object, required: [n], properties: { n: { type: integer } } }
tasks:
  a: { type: work, input: '${{ input.n }}' }
output: { got: '${{ tasks.a.output }}' }
";

#[tokio::test]
async fn parent_and_child_are_seen_from_each_other_and_through_either_server() {
    let pair = Pair::start();
    register(&pair.a, &[("parent", PARENT), ("child", CHILD)]).await;
    assert_eq!(pair.a.start_run("parent", "p1", r#"{"n":9007199254740993}"#).await.status, 201);
    let task = pair.b.claim("work").await;
    let id = task["run"].as_str().unwrap().to_owned();
    let parent = run(&pair.b, "p1").await;
    assert_eq!(child(&parent, "go").as_deref(), Some(&*id));
    assert_eq!((&parent["tasks"][0]["status"], &parent["parent"]), (&json!("waiting"), &json!(null)));
    assert_eq!(parent["tasks"][0]["attempts"][0]["input"].to_string(), r#"{"n":9007199254740993}"#);
    let of = run(&pair.a, &id).await;
    assert_eq!((&of["parent"], &of["parent_task"]), (&json!("p1"), &json!("go")));
    assert_eq!((&of["workflow"], &of["version"]), (&json!("child"), &json!(1)));
    let by_parent = listed(&pair.b, "parent=p1").await;
    assert_eq!(by_parent.iter().map(|r| r["id"].as_str().unwrap()).collect::<Vec<_>>(), [&*id]);
    assert_eq!(listed(&pair.b, "parent=nobody").await, Vec::<Value>::new());

    // Pause and resume reach down.
    assert_eq!(pair.a.post("/v1/runs/p1/pause", "{}").await.status, 200);
    becomes(&pair.b, &id, |r| r["status"] == "paused").await;
    assert_eq!(pair.b.post("/v1/runs/p1/resume", "{}").await.status, 200);
    becomes(&pair.a, &id, |r| r["status"] == "running").await;

    let token = task["token"].as_str().unwrap();
    let answer = pair.a.post(&format!("/v1/tasks/{token}/complete"), r#"{"output":1.0}"#).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let ended = pair.b.get("/v1/runs/p1?wait=10s").await;
    assert!(ended.text().contains(r#""output":{"got":1.0}"#), "{}", ended.text());
    let events: Vec<_> = pair.b.watch("/v1/runs/p1/events", None).await.rest().await;
    let told: Vec<_> = events.iter().map(|f| f.event.as_str()).collect();
    let expected =
        ["run.started", "task.waiting", "run.paused", "run.resumed", "task.completed", "run.completed"];
    assert_eq!(told, expected);
    assert_eq!(events[1].json()["attempt"], 1);
}

#[tokio::test]
async fn a_child_that_cannot_be_started_says_why() {
    let pair = Pair::start();
    let nobody = "tasks:\n  go: { workflow: nobody }\n";
    register(&pair.a, &[("parent", PARENT), ("child", CHILD), ("orphan", nobody)]).await;
    assert_eq!(pair.a.start_run("parent", "p1", r#"{"n":"text"}"#).await.status, 201);
    assert_eq!(pair.a.start_run("orphan", "p2", "null").await.status, 201);
    let wrong = pair.b.get("/v1/runs/p1?wait=10s").await.json();
    assert_eq!((&wrong["status"], &wrong["error"]["code"]), (&json!("failed"), &json!("invalid_input")));
    let message = wrong["error"]["message"].as_str().unwrap();
    assert!(message.contains("child") && message.contains("n:"), "{message}");
    let unknown = pair.b.get("/v1/runs/p2?wait=10s").await.json();
    assert_eq!(unknown["error"]["code"], "workflow_not_found");
    // Ids of our own records are nobody else's.
    let reserved = pair.a.start_run("child", "downbeat.rate.x", r#"{"n":1}"#).await;
    reserved.refused(400, "invalid_request");
    reserved.invalid("id");
    pair.a.get("/v1/runs/downbeat.rate.x").await.refused(404, "run_not_found");
}

#[tokio::test]
async fn cancelling_the_root_cancels_a_tree_of_four_levels_and_a_wide_one_half_started() {
    let pair = Pair::start();
    let level =
        |below: &str| format!("tasks:\n  w: {{ wait: {{ signal: s }} }}\n  go: {{ workflow: {below} }}\n");
    let (one, two, three) = (level("two"), level("three"), level("four"));
    let wide = "tasks:\n  each: { for_each: '${{ input }}', workflow: four }\n";
    register(
        &pair.a,
        &[
            ("one", &*one),
            ("two", &*two),
            ("three", &*three),
            ("four", "tasks:\n  w: { type: never }\n"),
            ("wide", wide),
        ],
    )
    .await;
    assert_eq!(pair.a.start_run("one", "root", "null").await.status, 201);
    let mut ids = vec!["root".to_owned()];
    while ids.len() < 4 {
        let run = becomes(&pair.b, &ids[ids.len() - 1], |r| child(r, "go").is_some()).await;
        let next = child(&run, "go").unwrap();
        soon(async {
            while pair.b.get(&format!("/v1/runs/{next}")).await.status != 200 {
                tokio::task::yield_now().await;
            }
        })
        .await;
        ids.push(next);
    }
    let began = Instant::now();
    assert_eq!(pair.b.post("/v1/runs/root/cancel", "{}").await.json()["status"], "cancelled");
    for id in &ids {
        becomes(&pair.a, id, |r| r["status"] == "cancelled").await;
    }
    assert!(began.elapsed() < Duration::from_secs(5));

    let items: Vec<u32> = (0..200).collect();
    assert_eq!(pair.a.start_run("wide", "wide", &json!(items).to_string()).await.status, 201);
    let began = Instant::now();
    assert_eq!(pair.b.post("/v1/runs/wide/cancel", "{}").await.json()["status"], "cancelled");
    let all = soon(async {
        loop {
            let children = listed(&pair.a, "parent=wide").await;
            if children.len() == 200 && children.iter().all(|r| r["status"] == "cancelled") {
                return children;
            }
        }
    })
    .await;
    assert!(began.elapsed() < Duration::from_secs(5));
    assert_eq!(all.len(), 200);
    let claim = pair.b.post("/v1/tasks/claim", r#"{"types":["never"],"max":10,"wait":"0s"}"#).await;
    assert_eq!(claim.json(), json!([]), "nothing is given out any more");
}

#[tokio::test]
async fn what_starts_itself_without_end_is_stopped_by_cancelling_its_root() {
    let pair = Pair::start();
    let bomb = "tasks:\n  c: { for_each: [1, 2], workflow: bomb, retry: { max_attempts: 1 } }\n";
    register(&pair.a, &[("bomb", bomb)]).await;
    assert_eq!(pair.a.start_run("bomb", "root", "null").await.status, 201);
    let open = |status: &'static str| {
        let server = &pair.b;
        async move { listed(server, &format!("workflow=bomb&status={status}")).await.len() }
    };
    soon(async { while open("running").await < 100 {} }).await;
    assert_eq!(pair.b.post("/v1/runs/root/cancel", "{}").await.json()["status"], "cancelled");
    // Those under way are cancelled as they come, level by level; none begins any more.
    let grown = async {
        let mut before = 0;
        loop {
            let all = listed(&pair.a, "workflow=bomb").await;
            // A start that was under way may begin a run yet, which is cancelled at once.
            let ended = all.iter().all(|r| r["status"] == "cancelled");
            if ended && all.len() == std::mem::replace(&mut before, all.len()) {
                return all.len();
            }
        }
    };
    let grown = tokio::time::timeout(Duration::from_secs(30), grown).await.expect("it stops");
    assert_eq!(open("running").await + open("pending").await, 0);
    println!("{grown} runs were begun");
    let again = listed(&pair.a, "workflow=bomb").await.len();
    assert_eq!(again, grown);
}

#[tokio::test]
async fn a_retried_parent_has_its_failed_child_go_on() {
    let pair = Pair::start();
    let two = "tasks:\n  a: { type: work }\n  b: { needs: [a], type: work, retry: { max_attempts: 1 } }\n";
    let parent = "tasks:\n  go: { workflow: two, retry: { max_attempts: 1 } }\n";
    register(&pair.a, &[("parent", parent), ("two", two)]).await;
    assert_eq!(pair.a.start_run("parent", "p1", "null").await.status, 201);
    for (how, body) in [("complete", r#"{"output":1}"#), ("fail", r#"{"code":"broken"}"#)] {
        let task = pair.b.claim("work").await;
        let token = task["token"].as_str().unwrap();
        assert_eq!(pair.b.post(&format!("/v1/tasks/{token}/{how}"), body).await.status, 200);
    }
    let failed = pair.a.get("/v1/runs/p1?wait=10s").await.json();
    let id = child(&failed, "go").unwrap();
    assert_eq!((&failed["status"], &failed["error"]["code"]), (&json!("failed"), &json!("broken")));
    assert!(failed["error"]["message"].as_str().unwrap().contains(&id));
    assert_eq!(pair.a.post("/v1/runs/p1/retry", "{}").await.status, 200);
    let task = pair.b.claim("work").await;
    assert_eq!((task["run"].as_str(), task["task"].as_str()), (Some(&*id), Some("b")));
    let token = task["token"].as_str().unwrap();
    assert_eq!(pair.b.post(&format!("/v1/tasks/{token}/complete"), r#"{"output":1}"#).await.status, 200);
    assert_eq!(pair.a.get("/v1/runs/p1?wait=10s").await.json()["status"], "completed");
    let of = run(&pair.a, &id).await;
    assert_eq!((&of["try"], &of["status"]), (&json!(2), &json!("completed")));
}

#[tokio::test]
async fn a_thousand_children_of_one_run_come_to_their_outputs_in_order() {
    let pair = Pair::start();
    let wide = "tasks:\n  each: { for_each: '${{ input }}', workflow: child, input: { n: '${{ item }}' } }\noutput: '${{ tasks.each.output }}'\n";
    register(&pair.a, &[("wide", wide), ("child", CHILD)]).await;
    let echo = |server: &Server| {
        let echo = |task: downbeat::client::Task| async move { Ok(task.input().clone()) };
        let worker = Worker::builder(server.url()).handle("work", 64, echo).build().unwrap();
        tokio::spawn(async move { drop(worker.run().await) })
    };
    let working = [echo(&pair.a), echo(&pair.b)];
    let items: Vec<u32> = (0..1_000).collect();
    assert_eq!(pair.a.start_run("wide", "wide", &json!(items).to_string()).await.status, 201);
    let ended = pair.b.get("/v1/runs/wide?wait=60s").await.json();
    assert_eq!(ended["status"], "completed", "{}", ended["error"]);
    let expected: Vec<Value> = items.iter().map(|n| json!({ "got": n })).collect();
    assert_eq!(ended["output"], json!(expected));
    for w in working {
        w.abort();
    }
}
