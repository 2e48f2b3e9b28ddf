//! Labels of tasks and workers, by claims over HTTP and on streams.

use crate::support::client::{Worker, soon};
use crate::support::server::Server;
use downbeat::proto::v1;
use downbeat::proto::v1::server_message::Message as FromServer;
use downbeat::proto::v1::task_service_client::TaskServiceClient;
use downbeat::proto::v1::worker_message::Message as ToServer;
use serde_json::{Value, json};

const GPU: &[(&str, &str)] = &[("gpu", "true")];

fn done() -> v1::result::Outcome {
    v1::result::Outcome::Completed("1".into())
}

async fn register(server: &Server, name: &str, tasks: &str) {
    let text = format!("name: {name}\ntasks: {tasks}\n");
    let answer = server.put(&format!("/v1/workflows/{name}"), "application/yaml", text).await;
    assert_eq!(answer.status, 201, "{}", answer.text());
}

/// Claims up to ten tasks of type `work` with these labels; their paths and runs.
async fn claim(server: &Server, labels: Value) -> Vec<String> {
    let body = json!({ "types": ["work"], "max": 10, "labels": labels });
    let answer = server.post("/v1/tasks/claim", body.to_string()).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let name = |t: &Value| format!("{}/{}", t["run"].as_str().unwrap(), t["task"].as_str().unwrap());
    answer.json().as_array().unwrap().iter().map(name).collect()
}

async fn start(server: &Server, workflow: &str, id: &str) {
    assert_eq!(server.start_run(workflow, id, "1").await.status, 201);
}

#[tokio::test]
async fn a_claim_gets_what_asks_for_no_more_than_it_has() {
    let server = Server::start();
    let tasks = "{ any: { type: work }, gpu: { type: work, labels: { gpu: 'true' } },
                   eu: { type: work, labels: { region: eu, gpu: 'true' } } }";
    register(&server, "train", tasks).await;
    start(&server, "train", "r1").await;
    assert_eq!(claim(&server, json!({})).await, ["r1/any"]);
    assert_eq!(claim(&server, json!({ "region": "us", "gpu": "false" })).await, Vec::<String>::new());
    let run = server.get("/v1/runs/r1").await.json();
    let told: Vec<_> =
        run["tasks"].as_array().unwrap().iter().map(|t| (t["status"].clone(), t["labels"].clone())).collect();
    assert_eq!(
        told,
        [
            (json!("running"), json!({})),
            (json!("queued"), json!({ "gpu": "true" })),
            (json!("queued"), json!({ "gpu": "true", "region": "eu" })),
        ]
    );
    assert_eq!(claim(&server, json!({ "gpu": "true", "region": "us" })).await, ["r1/gpu"]);
    assert_eq!(claim(&server, json!({ "zone": "1", "region": "eu", "gpu": "true" })).await, ["r1/eu"]);

    // And over gRPC.
    start(&server, "train", "r2").await;
    let mut client = TaskServiceClient::new(server.channel().await);
    let request = |labels: &[(&str, &str)]| v1::ClaimRequest {
        types: vec!["work".into()],
        max: 10,
        labels: labels.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect(),
        ..v1::ClaimRequest::default()
    };
    let claimed = client.claim(request(GPU)).await.unwrap().into_inner().assignments;
    let mut tasks: Vec<_> = claimed.iter().map(|a| a.task.as_str()).collect();
    tasks.sort_unstable();
    assert_eq!(tasks, ["any", "gpu"]);
    let refused = client.claim(request(&[("g p u", "x")])).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::InvalidArgument);
}

#[tokio::test]
async fn labels_of_a_claim_that_break_the_rule_are_refused_with_their_place() {
    let server = Server::start();
    let long = "x".repeat(65);
    for (labels, path) in [
        (json!({ "a b": "c" }), "labels.a b"),
        (json!({ "gpu": "" }), "labels.gpu"),
        (json!({ "gpu": long }), "labels.gpu"),
        (
            json!(
                (0..9)
                    .map(|n| (format!("k{n}"), "v".to_owned()))
                    .collect::<std::collections::BTreeMap<_, _>>()
            ),
            "labels",
        ),
        (json!({ "gpu": true }), "labels.gpu"),
        (json!(["gpu"]), "labels"),
    ] {
        let body = json!({ "types": ["work"], "labels": labels });
        server.post("/v1/tasks/claim", body.to_string()).await.invalid(path);
    }
    let two = json!({ "types": ["work"], "labels": { "a b": "c", "d": "e f" } });
    let answer = server.post("/v1/tasks/claim", two.to_string()).await;
    assert_eq!(answer.problem().1, ["labels.a b", "labels.d"]);
}

#[tokio::test]
async fn a_stream_has_labels_by_type_and_keeps_them_when_its_credit_changes() {
    let server = Server::start();
    register(&server, "gpu", "{ t: { type: work, labels: { gpu: 'true' } } }").await;
    let (mut worker, welcome) = Worker::hello_with(&server, "work", 0, GPU).await;
    assert_eq!(welcome.subscriptions[0].labels["gpu"], "true");
    start(&server, "gpu", "r1").await;
    let (mut plain, _) = Worker::hello(&server, "work", 5).await;
    let credit = |credit, labels: &[(&str, &str)]| {
        let labels = labels.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        ToServer::Credit(v1::Subscription { r#type: "work".into(), credit, labels })
    };
    worker.say(credit(1, &[]));
    match worker.hear().await.unwrap() {
        FromServer::CreditAck(now) => assert_eq!((now.credit, now.labels["gpu"].as_str()), (1, "true")),
        other => panic!("{other:?}"),
    }
    let task = worker.assignment().await;
    assert_eq!((task.run.as_str(), task.r#type.as_str()), ("r1", "work"));
    // The other becomes one that fits too.
    start(&server, "gpu", "r2").await;
    plain.say(credit(5, &[("gpu", "true"), ("disk", "ssd")]));
    assert_eq!(soon(plain.assignment()).await.run, "r2");
    worker.settle(&task.token, done()).await;
    plain.say(credit(5, &[("gpu", "t r u e")]));
    let refused = loop {
        match plain.hear().await {
            Ok(_) => {}
            Err(status) => break status,
        }
    };
    assert_eq!(refused.code(), tonic::Code::InvalidArgument);
    assert!(refused.message().contains("gpu"), "{refused:?}");
}

#[tokio::test]
async fn what_waits_for_a_rare_worker_does_not_hold_back_what_any_can_do() {
    let server = Server::start();
    register(&server, "rare", "{ t: { type: work, labels: { gpu: 'true' } } }").await;
    register(&server, "plain", "{ a: { type: work }, b: { needs: [a], type: work } }").await;
    for n in 0..40 {
        start(&server, "rare", &format!("rare-{n}")).await;
    }
    let (mut plain, _) = Worker::hello(&server, "work", 2).await;
    for n in 0..20 {
        start(&server, "plain", &format!("plain-{n}")).await;
    }
    for _ in 0..40 {
        let task = soon(plain.assignment()).await;
        assert!(task.run.starts_with("plain-"), "{}", task.run);
        plain.settle(&task.token, done()).await;
    }
    let open = server.get("/v1/runs?status=running&limit=100").await.json();
    assert_eq!(open["items"].as_array().unwrap().len(), 40);
    // A worker that fits takes them, the oldest first.
    let (mut rare, _) = Worker::hello_with(&server, "work", 1, GPU).await;
    for _ in 0..40 {
        let task = soon(rare.assignment()).await;
        assert!(task.run.starts_with("rare-"), "{}", task.run);
        rare.settle(&task.token, done()).await;
    }
}

#[tokio::test]
async fn what_any_can_do_does_not_hold_back_what_waits_for_a_rare_worker() {
    let server = Server::start();
    register(&server, "rare", "{ t: { type: work, labels: { gpu: 'true' } } }").await;
    register(&server, "plain", "{ a: { type: work }, b: { needs: [a], type: work } }").await;
    let (mut worker, _) = Worker::hello_with(&server, "work", 1, GPU).await;
    // With nothing else to do it takes what any worker could.
    start(&server, "plain", "first").await;
    let task = soon(worker.assignment()).await;
    assert_eq!((task.run.as_str(), task.task.as_str()), ("first", "a"));
    // Older by its priority than all the others, also than the rest of the run whose task it has.
    let urgent = json!({ "workflow": "rare", "id": "urgent", "priority": 100 });
    assert_eq!(server.post("/v1/runs", urgent.to_string()).await.status, 201);
    for n in 0..20 {
        start(&server, "plain", &format!("plain-{n}")).await;
    }
    worker.settle(&task.token, done()).await;
    let task = soon(worker.assignment()).await;
    assert_eq!(task.run, "urgent", "before the next task of the run whose result freed the worker");
    worker.settle(&task.token, done()).await;
    let task = soon(worker.assignment()).await;
    assert_eq!((task.run.as_str(), task.task.as_str()), ("first", "b"));
    start(&server, "rare", "young").await;
    worker.settle(&task.token, done()).await;
    for _ in 0..40 {
        let task = soon(worker.assignment()).await;
        assert!(task.run.starts_with("plain-"), "{}", task.run);
        worker.settle(&task.token, done()).await;
    }
    assert_eq!(soon(worker.assignment()).await.run, "young", "the oldest first, whatever they ask for");
}
