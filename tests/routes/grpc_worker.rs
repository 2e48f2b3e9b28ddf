//! `WorkerService.Connect`, by hand.

use crate::support::client::{Worker, soon};
use crate::support::server::Server;
use bytes::Bytes;
use downbeat::proto::v1;
use downbeat::proto::v1::result::Outcome;
use downbeat::proto::v1::result_ack::Status;
use downbeat::proto::v1::server_message::Message as FromServer;
use downbeat::proto::v1::worker_message::Message as ToServer;
use tonic::Code;
use tonic_types::StatusExt as _;

fn completed(text: &'static str) -> Outcome {
    Outcome::Completed(Bytes::from_static(text.as_bytes()))
}

#[tokio::test]
async fn a_worker_does_a_task() {
    let server = Server::start();
    server.register_echo("order").await;
    let (mut worker, welcome) = Worker::hello(&server, "order-pack", 2).await;
    assert_eq!((welcome.lease_ms, welcome.ack_ms, welcome.ping_ms), (10_000, 2_000, 3_000));
    assert_eq!(
        (welcome.subscriptions[0].r#type.as_str(), welcome.subscriptions[0].credit),
        ("order-pack", 2)
    );
    server.start_run("order", "r1", "{\"n\": 1.0}").await;
    let task = worker.assignment().await;
    assert_eq!((task.run.as_str(), task.task.as_str(), task.attempt), ("r1", "pack", 1));
    assert_eq!((task.r#type.as_str(), task.input.as_ref()), ("order-pack", &b"{\"n\": 1.0}"[..]));
    let ack = worker.settle(&task.token, completed("[]")).await;
    assert_eq!((ack.token.as_str(), ack.status()), (task.token.as_str(), Status::Accepted));
    let repeat = worker.settle(&task.token, completed("[]")).await;
    assert_eq!(repeat.status(), Status::Accepted);
    let other = worker.settle(&task.token, completed("{}")).await;
    assert_eq!(other.status(), Status::Stale);
    let unknown = worker.settle("nope", completed("{}")).await;
    assert_eq!(unknown.status(), Status::Unknown);
    let run = server.get("/v1/runs/r1?wait=10s").await;
    assert!(run.text().contains("\"output\":[]"), "{}", run.text());
    assert_eq!(run.json()["tasks"][0]["attempts"][0]["worker"], "by-hand");
}

#[tokio::test]
async fn an_output_that_is_no_json_fails_the_task_and_the_stream_goes_on() {
    let server = Server::start();
    server.register_echo("order").await;
    let (mut worker, _) = Worker::hello(&server, "order-pack", 1).await;
    let deep: &'static str = format!("{}{}", "[".repeat(129), "]".repeat(129)).leak();
    let large: &'static str = format!("\"{}\"", "x".repeat(1 << 20)).leak();
    for (id, output) in [("r1", "{nope"), ("r2", deep), ("r3", large)] {
        server.start_run("order", id, "null").await;
        let task = worker.assignment().await;
        let ack = worker.settle(&task.token, completed(output)).await;
        assert_eq!(ack.status(), Status::Invalid, "{id}");
        let run = server.get(&format!("/v1/runs/{id}?wait=10s")).await.json();
        assert_eq!(run["status"], "failed");
        assert_eq!(run["tasks"][0]["attempts"].as_array().unwrap().len(), 1, "not tried again");
    }
}

#[tokio::test]
async fn a_result_without_an_outcome_fails_its_task_and_the_stream_goes_on() {
    let server = Server::start();
    server.register_echo("order").await;
    let (mut worker, _) = Worker::hello(&server, "order-pack", 2).await;
    server.start_run("order", "r1", "null").await;
    server.start_run("order", "r2", "null").await;
    let (first, second) = (worker.assignment().await, worker.assignment().await);
    let result = |token: &str, outcome| v1::Result { token: token.to_owned(), outcome };
    let results = vec![
        result(&first.token, None),
        result("nope", None),
        result(&second.token, Some(completed("2"))),
        result(&first.token, None),
    ];
    worker.say(ToServer::Results(v1::Results { results }));
    let mut acks = Vec::new();
    while acks.len() < 4 {
        if let FromServer::ResultAcks(list) = worker.hear().await.unwrap() {
            acks.extend(list.acks);
        }
    }
    let of = |token: &str| -> Vec<_> {
        acks.iter().filter(|a| a.token == token).map(v1::ResultAck::status).collect()
    };
    assert_eq!(of(&first.token), [Status::Invalid, Status::Invalid], "the same again is answered the same");
    assert_eq!(of(&second.token), [Status::Accepted]);
    assert_eq!(of("nope"), [Status::Unknown]);
    let run = server.get(&format!("/v1/runs/{}?wait=10s", first.run)).await.json();
    assert_eq!(
        (run["status"].as_str(), run["error"]["code"].as_str()),
        (Some("failed"), Some("invalid_output"))
    );
    assert_eq!(run["tasks"][0]["attempts"].as_array().unwrap().len(), 1, "not tried again");
    let run = server.get(&format!("/v1/runs/{}?wait=10s", second.run)).await.json();
    assert_eq!(run["status"], "completed");
}

#[tokio::test]
async fn a_message_of_a_kind_that_is_not_known_is_passed_over() {
    let server = Server::start();
    server.register_echo("order").await;
    let (mut worker, _) = Worker::hello(&server, "order-pack", 1).await;
    worker.send.send(v1::WorkerMessage { message: None }).unwrap();
    server.start_run("order", "r1", "null").await;
    let task = worker.assignment().await;
    assert_eq!(worker.settle(&task.token, completed("1")).await.status(), Status::Accepted);
}

#[tokio::test]
async fn a_type_is_subscribed_to_once() {
    let server = Server::start();
    let mut worker = Worker::open(&server).await;
    let subscription =
        |credit| v1::Subscription { r#type: "pack".into(), credit, ..v1::Subscription::default() };
    let subscriptions = vec![subscription(1), subscription(2)];
    worker.say(ToServer::Hello(v1::Hello { subscriptions, ..v1::Hello::default() }));
    let status = worker.hear().await.unwrap_err();
    assert_eq!(
        (status.code(), status.get_details_bad_request().unwrap().field_violations[0].field.as_str()),
        (Code::InvalidArgument, "hello.subscriptions[1].type")
    );
}

#[tokio::test]
async fn failed_and_released_results_are_taken() {
    let server = Server::start();
    server.register_echo("order").await;
    let (mut worker, _) = Worker::hello(&server, "order-pack", 1).await;
    server.start_run("order", "r1", "null").await;
    let task = worker.assignment().await;
    assert_eq!(
        worker.settle(&task.token, Outcome::Released(v1::Released {})).await.status(),
        Status::Accepted
    );
    let again = worker.assignment().await;
    assert_eq!(again.attempt, 1);
    assert_ne!(again.token, task.token);
    let failure =
        v1::TaskFailure { code: "card_declined".into(), non_retryable: true, ..v1::TaskFailure::default() };
    assert_eq!(worker.settle(&again.token, Outcome::Failed(failure)).await.status(), Status::Accepted);
    assert_eq!(server.get("/v1/runs/r1?wait=10s").await.json()["error"]["code"], "card_declined");
}

#[tokio::test]
async fn credit_is_absolute_and_acknowledged() {
    let server = Server::start();
    server.register_echo("order").await;
    let (mut worker, _) = Worker::hello(&server, "order-pack", 0).await;
    server.start_run("order", "r1", "null").await;
    let credit = |credit| {
        ToServer::Credit(v1::Subscription {
            r#type: "order-pack".into(),
            credit,
            ..v1::Subscription::default()
        })
    };
    worker.say(credit(5_000));
    let mut acknowledged = None;
    let mut assigned = false;
    while acknowledged.is_none() || !assigned {
        match worker.hear().await.unwrap() {
            FromServer::CreditAck(ack) => acknowledged = Some(ack.credit),
            FromServer::Assign(_) => assigned = true,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(acknowledged, Some(1_000));
    worker.say(credit(-1));
    let status = worker.hear().await.unwrap_err();
    assert_eq!(
        (status.code(), status.get_details_bad_request().unwrap().field_violations[0].field.as_str()),
        (Code::InvalidArgument, "credit.credit")
    );
}

#[tokio::test]
async fn the_first_message_must_be_hello() {
    let server = Server::start();
    let mut worker = Worker::open(&server).await;
    worker.say(ToServer::Pong(v1::Pong {}));
    let status = worker.hear().await.unwrap_err();
    assert_eq!(
        (status.code(), status.get_details_error_info().unwrap().reason),
        (Code::InvalidArgument, "invalid_request".into())
    );
    let (mut twice, _) = Worker::hello(&server, "pack", 1).await;
    twice.say(ToServer::Hello(v1::Hello::default()));
    assert_eq!(twice.hear().await.unwrap_err().code(), Code::InvalidArgument);
    let mut bad = Worker::open(&server).await;
    let subscription = v1::Subscription { r#type: "a b".into(), credit: 1, ..v1::Subscription::default() };
    bad.say(ToServer::Hello(v1::Hello { subscriptions: vec![subscription], ..v1::Hello::default() }));
    let status = bad.hear().await.unwrap_err();
    assert_eq!(
        status.get_details_bad_request().unwrap().field_violations[0].field,
        "hello.subscriptions[0].type"
    );
}

#[tokio::test]
async fn a_silent_worker_is_sent_away() {
    let server = Server::start();
    let mut worker = Worker::open(&server).await;
    let status = worker.hear().await.unwrap_err();
    assert_eq!(status.code(), Code::DeadlineExceeded, "{status:?}");
}

#[tokio::test]
async fn a_worker_that_does_not_read_is_still_heard() {
    let server = Server::start();
    server.register_echo("order").await;
    let (mut slow, _) = Worker::hello(&server, "order-pack", 1_000).await;
    server.start_run("order", "first", "null").await;
    let task = slow.assignment().await;
    // More than the windows hold.
    let input = format!("\"{}\"", "x".repeat(1 << 19));
    for n in 0..12 {
        assert_eq!(server.start_run("order", &format!("r{n}"), &input).await.status, 201);
    }
    let result = v1::Result { token: task.token, outcome: Some(completed("1")) };
    slow.say(ToServer::Results(v1::Results { results: vec![result] }));
    let run = soon(server.get("/v1/runs/first?wait=10s")).await.json();
    assert_eq!(run["status"], "completed");
}

#[tokio::test]
async fn a_result_that_cannot_be_read_ends_the_stream_and_fails_the_task_for_good() {
    let server = Server::start();
    server.register_echo("order").await;
    let (mut worker, _) = Worker::hello(&server, "order-pack", 1).await;
    server.start_run("order", "r1", "null").await;
    let task = worker.assignment().await;
    let output = Outcome::Completed(vec![b'1'; 10 << 20].into());
    let result = v1::Result { token: task.token, outcome: Some(output) };
    worker.say(ToServer::Results(v1::Results { results: vec![result] }));
    let status = worker.hear().await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted, "{status:?}");
    let run = server.get("/v1/runs/r1?wait=10s").await.json();
    assert_eq!(
        (run["status"].as_str(), run["error"]["code"].as_str()),
        (Some("failed"), Some("output_too_large"))
    );
}
