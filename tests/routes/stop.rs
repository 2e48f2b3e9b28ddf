//! What the doors do when the server stops.

use crate::support::client::{Worker, soon};
use crate::support::server::Server;
use downbeat::proto::v1;
use downbeat::proto::v1::run_service_client::RunServiceClient;
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
    // A worker that has nothing in flight leaves when it is told to.
    assert!(matches!(worker.hear().await.unwrap(), v1::server_message::Message::GoAway(_)));
    drop(worker);
    assert_eq!(server.stopped().await, Some(0));
    assert!(begun.elapsed().as_secs() < 8, "{:?}", begun.elapsed());
    let rest = of_run.rest().await;
    assert_eq!(rest.iter().map(|f| f.event.as_str()).collect::<Vec<_>>(), ["task.queued"]);
    assert_eq!(of_all.rest().await, []);
    assert_eq!(soon(watch.message()).await.unwrap(), None);
}
