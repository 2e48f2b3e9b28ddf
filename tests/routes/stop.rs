//! What the doors do when the server stops.

use crate::support::client::{Worker, soon};
use crate::support::server::Server;
use downbeat::proto::v1;
use downbeat::proto::v1::run_service_client::RunServiceClient;
use downbeat::proto::v1::server_message::Message;
use downbeat::proto::v1::worker_message::Message as ToServer;
use tokio::time::Instant;

#[tokio::test]
async fn streams_end_cleanly_and_calls_that_wait_are_answered() {
    let mut server = Server::start();
    server.register_echo("order").await;
    server.start_run("order", "r1", "null").await;
    let mut of_run = server.watch("/v1/runs/r1/events", None).await;
    assert_eq!(of_run.next().await.unwrap().event, "run.started");
    let of_all = server.watch("/v1/events", None).await;
    let mut client = RunServiceClient::new(server.channel().await);
    let mut watch = client.watch(v1::WatchRequest::default()).await.unwrap().into_inner();
    let (mut worker, _) = Worker::hello(&server, "other", 1).await;
    let begun = Instant::now();
    server.ask_to_stop();
    // A worker that has nothing in flight is told to leave and let go, whatever it does itself.
    let Message::GoAway(go_away) = worker.hear().await.unwrap() else { panic!("a goodbye") };
    assert_eq!(go_away.deadline_ms, 5_000, "half of the time that the server gives itself");
    worker.end().await;
    assert_eq!(server.stopped().await, Some(0));
    assert!(begun.elapsed().as_secs() < 4, "{:?}", begun.elapsed());
    let rest = of_run.rest().await;
    assert_eq!(rest.iter().map(|f| f.event.as_str()).collect::<Vec<_>>(), ["task.queued"]);
    assert_eq!(of_all.rest().await, []);
    assert_eq!(soon(watch.message()).await.unwrap(), None);
}

#[tokio::test]
async fn a_worker_that_does_not_leave_is_left_and_may_finish_until_then() {
    let mut server = Server::start();
    server.register_echo("order").await;
    let (mut worker, _) = Worker::hello(&server, "order-pack", 2).await;
    server.start_run("order", "r1", "null").await;
    server.start_run("order", "r2", "null").await;
    let (first, _kept) = (worker.assignment().await, worker.assignment().await);
    // Neither of them is ever used.
    let _connection = tokio::net::TcpStream::connect(server.address()).await.unwrap();
    let _channel = server.channel().await;
    let begun = Instant::now();
    server.ask_to_stop();
    assert!(matches!(worker.hear().await.unwrap(), Message::GoAway(_)));
    let completed = v1::result::Outcome::Completed("1".into());
    let ack = worker.settle(&first.token, completed).await;
    assert_eq!(ack.status(), v1::result_ack::Status::Accepted, "results are taken until the deadline");
    worker.end().await;
    let told = begun.elapsed().as_secs_f64();
    assert!((4.5..7.0).contains(&told), "its stream ends at the deadline: {told}");
    assert_eq!(server.stopped().await, Some(0));
    assert!(begun.elapsed().as_secs() < 8, "{:?}", begun.elapsed());
}

#[tokio::test]
async fn a_worker_leaves_with_its_last_result() {
    let mut server = Server::start();
    server.register_echo("order").await;
    let (mut worker, _) = Worker::hello(&server, "order-pack", 1).await;
    server.start_run("order", "r1", "null").await;
    let task = worker.assignment().await;
    let begun = Instant::now();
    server.ask_to_stop();
    assert!(matches!(worker.hear().await.unwrap(), Message::GoAway(_)));
    let result = v1::Result { token: task.token, outcome: Some(v1::result::Outcome::Completed("1".into())) };
    worker.say(ToServer::Results(v1::Results { results: vec![result] }));
    let Message::ResultAcks(acks) = worker.hear().await.unwrap() else { panic!("an acknowledgement") };
    assert_eq!(acks.acks[0].status(), v1::result_ack::Status::Accepted);
    worker.end().await;
    assert_eq!(server.stopped().await, Some(0));
    assert!(begun.elapsed().as_secs() < 4, "{:?}", begun.elapsed());
}
