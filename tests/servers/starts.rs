//! Starts and streams over two servers.

use super::Pair;
use super::support::client::{Worker, soon};
use downbeat::proto::v1;
use downbeat::proto::v1::run_service_client::RunServiceClient;
use futures::future::join_all;

#[tokio::test]
async fn a_run_started_here_and_worked_on_there_is_told_on_both() {
    let pair = Pair::start();
    pair.a.register_echo("here-there").await;
    let (mut worker, _) = Worker::hello(&pair.b, "here-there-pack", 1).await;
    let (mut on_a, mut on_b) =
        (pair.a.watch("/v1/events", None).await, pair.b.watch("/v1/events", None).await);
    assert_eq!(pair.a.start_run("here-there", "r1", r#"{"n":[1.0,{}]}"#).await.status, 201);
    let task = worker.assignment().await;
    assert_eq!((task.run.as_str(), &task.input[..]), ("r1", &br#"{"n":[1.0,{}]}"#[..]));
    let ack = worker.settle(&task.token, v1::result::Outcome::Completed(task.input.clone())).await;
    assert_eq!(ack.status(), v1::result_ack::Status::Accepted);
    // The same result once more, through the other server: it counts, and changes nothing.
    let again =
        pair.a.post(&format!("/v1/tasks/{}/complete", task.token), r#"{"output":{"n":[1.0,{}]}}"#).await;
    assert_eq!(again.status, 200, "{}", again.text());
    let other = pair.a.post(&format!("/v1/tasks/{}/complete", task.token), r#"{"output":2}"#).await;
    other.refused(409, "stale_token");

    let expected =
        ["run.started", "task.queued", "task.started", "task.completed", "run.completed"].map(str::to_owned);
    for events in [&mut on_a, &mut on_b] {
        let mut told = Vec::new();
        while told.len() < expected.len() {
            told.push(soon(events.next()).await.unwrap().event);
        }
        assert_eq!(told, expected);
    }
    for server in [&pair.a, &pair.b] {
        let run = server.get("/v1/runs/r1").await.json();
        assert_eq!(
            (run["status"].as_str(), run["output"].to_string()),
            (Some("completed"), r#"{"n":[1.0,{}]}"#.into())
        );
        let own: Vec<_> = server.watch("/v1/runs/r1/events", None).await.rest().await;
        assert_eq!(own.into_iter().map(|f| f.event).collect::<Vec<_>>(), expected);
    }
}

#[tokio::test]
async fn a_feed_goes_on_at_its_cursor_on_the_other_server() {
    let pair = Pair::start();
    pair.a.register_echo("resume").await;
    let mut on_a = pair.a.watch("/v1/events", None).await;
    assert_eq!(pair.a.start_run("resume", "r1", "1").await.status, 201);
    let first = soon(on_a.next()).await.unwrap();
    assert_eq!(first.event, "run.started");
    drop(on_a);
    let mut on_b = pair.b.watch("/v1/events", first.id.as_deref()).await;
    let next = soon(on_b.next()).await.unwrap();
    assert_eq!((next.event.as_str(), next.json()["task"].as_str()), ("task.queued", Some("pack")));
}

#[tokio::test]
async fn fifty_parallel_starts_with_one_id_over_both_doors_of_two_servers_make_one_run() {
    let pair = Pair::start();
    pair.a.register_echo("once").await;
    let rest = (0..25).map(|n| {
        let server = if n % 2 == 0 { &pair.a } else { &pair.b };
        async move {
            let answer = server.start_run("once", "the-one", r#"{"n":1}"#).await;
            assert!(matches!(answer.status, 200 | 201), "{}", answer.text());
            (answer.json()["id"].as_str().unwrap().to_owned(), answer.status == 201)
        }
    });
    let grpc = (0..25).map(|n| {
        let server = if n % 2 == 0 { &pair.a } else { &pair.b };
        async move {
            let request = v1::StartRunRequest {
                workflow: "once".into(),
                id: "the-one".into(),
                // The same value in other words.
                input: br#"{ "n" : 1.0 }"#.to_vec().into(),
                ..v1::StartRunRequest::default()
            };
            let mut client = RunServiceClient::new(server.channel().await);
            let answer = soon(client.start(request)).await.unwrap().into_inner();
            (answer.run.unwrap().id, answer.created)
        }
    });
    let (rest, grpc) = futures::join!(join_all(rest), join_all(grpc));
    let all: Vec<_> = rest.into_iter().chain(grpc).collect();
    assert_eq!(all.len(), 50);
    assert!(all.iter().all(|(id, _)| id == "the-one"));
    assert_eq!(all.iter().filter(|(_, created)| *created).count(), 1, "one of them made the run");
    let list = pair.b.get("/v1/runs?workflow=once").await.json();
    assert_eq!(list["items"].as_array().unwrap().len(), 1);
    pair.b.start_run("once", "the-one", r#"{"n":2}"#).await.refused(409, "run_id_taken");
}
