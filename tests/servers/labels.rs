//! Labels of workers on several servers: each task finds the worker that fits, wherever both came in.

use super::Pair;
use super::support::client::{Worker, soon};
use super::support::server::Server;
use downbeat::proto::v1;

fn done() -> v1::result::Outcome {
    v1::result::Outcome::Completed("1".into())
}

/// Registers `NAME`, a task of type `work` that asks for `labels`.
async fn register(server: &Server, name: &str, labels: &str) {
    let text = format!("name: {name}\ntasks: {{ t: {{ type: work, labels: {labels} }} }}\n");
    let answer = server.put(&format!("/v1/workflows/{name}"), "application/yaml", text).await;
    assert_eq!(answer.status, 201, "{}", answer.text());
}

#[tokio::test]
async fn tasks_find_the_worker_that_fits_on_whichever_server_it_is() {
    let pair = Pair::start();
    register(&pair.a, "plain", "{}").await;
    register(&pair.a, "gpu", "{ gpu: 'true' }").await;
    register(&pair.a, "eu", "{ region: eu }").await;
    register(&pair.a, "both", "{ gpu: 'true', region: eu }").await;
    let (mut gpu, _) = Worker::hello_with(&pair.a, "work", 1, &[("gpu", "true")]).await;
    let (mut eu, _) = Worker::hello_with(&pair.b, "work", 1, &[("region", "eu")]).await;
    for round in 0..5 {
        // Neither of the two can do this, and it is in nobody's way.
        assert_eq!(pair.b.start_run("both", &format!("both-{round}"), "1").await.status, 201);
        // Each comes in where its worker is not.
        assert_eq!(pair.b.start_run("gpu", &format!("gpu-{round}"), "1").await.status, 201);
        assert_eq!(pair.a.start_run("eu", &format!("eu-{round}"), "1").await.status, 201);
        let (for_gpu, for_eu) = (soon(gpu.assignment()).await, soon(eu.assignment()).await);
        assert_eq!((&for_gpu.run, &for_eu.run), (&format!("gpu-{round}"), &format!("eu-{round}")));
        // Both are busy: what anybody could do waits for whoever is free first.
        assert_eq!(pair.a.start_run("plain", &format!("plain-{round}"), "1").await.status, 201);
        let mut workers = [(&mut gpu, for_gpu.token), (&mut eu, for_eu.token)];
        if round % 2 == 1 {
            workers.reverse();
        }
        let [(first, its), (second, other)] = workers;
        first.settle(&its, done()).await;
        let task = soon(first.assignment()).await;
        assert_eq!(task.run, format!("plain-{round}"));
        first.settle(&task.token, done()).await;
        second.settle(&other, done()).await;
    }
    let waiting = pair.a.get("/v1/runs?workflow=both&status=running&limit=100").await.json();
    assert_eq!(waiting["items"].as_array().unwrap().len(), 5);
    let task = &pair.a.get("/v1/runs/both-0").await.json()["tasks"][0];
    assert_eq!(task["labels"], serde_json::json!({ "gpu": "true", "region": "eu" }));
    assert_eq!(task["status"], "queued");
    let labels = [("gpu", "true"), ("region", "eu"), ("zone", "1")];
    let (mut both, _) = Worker::hello_with(&pair.a, "work", 1, &labels).await;
    let mut done_by_both = Vec::new();
    for _ in 0..5 {
        let task = soon(both.assignment()).await;
        both.settle(&task.token, done()).await;
        done_by_both.push(task.run);
    }
    done_by_both.sort();
    assert_eq!(done_by_both, [0, 1, 2, 3, 4].map(|round| format!("both-{round}")));
}
