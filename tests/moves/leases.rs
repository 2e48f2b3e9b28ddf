//! What was under way when the store was copied ends by the rules of leases.

use super::{Place, becomes, echo, register, start, stop};
use crate::redis_server::{Options, RedisServer};
use crate::support::client::Worker;
use bytes::Bytes;
use downbeat::proto::v1::result::Outcome;
use downbeat::proto::v1::result_ack::Status;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leases_of_a_restored_store_end_and_their_tasks_are_done() {
    let files = tempfile::tempdir().unwrap();
    let data = files.path().join("data");
    let redis = RedisServer::start(Options::default());
    let (from, into) = (Place::Redis(&redis), Place::Directory(&data));
    let server = from.serve();
    let quick = "retry: { initial: 1ms }, timeout: { run: 1h }";
    register(&server, "held", &format!("tasks: {{ a: {{ type: held, {quick} }} }}")).await;
    register(&server, "claimed", &format!("tasks: {{ a: {{ type: claimed, {quick} }} }}")).await;
    for (workflow, id) in [("held", "held"), ("claimed", "claimed")] {
        start(&server, workflow, id).await;
    }
    let (mut worker, _) = Worker::hello(&server, "held", 1).await;
    let held = worker.assignment().await;
    let claimed = server.claim("claimed").await;
    for id in ["held", "claimed"] {
        becomes(&server, id, |run| run["tasks"][0]["status"] == "running").await;
    }
    let file = files.path().join("a.backup");
    from.backup(&file).well();
    stop(server).await;

    into.run("restore", &file, &["--partitions", "3"]).well();
    let server = into.serve();
    // In other partitions, tokens of then name no run.
    let token = claimed["token"].as_str().unwrap();
    let late = server.post(&format!("/v1/tasks/{token}/complete"), r#"{"output":1}"#).await;
    late.refused(404, "unknown_token");
    let (mut stranger, _) = Worker::hello(&server, "nothing", 1).await;
    let outcome = Outcome::Completed(Bytes::from_static(b"1"));
    assert_eq!(stranger.settle(&held.token, outcome).await.status(), Status::Unknown);
    let working = echo(&server, &["held", "claimed"]);
    for id in ["held", "claimed"] {
        let run = becomes(&server, id, |run| run["ended_at"].is_string()).await;
        assert_eq!(run["status"], "completed", "{run}");
        assert!(run["tasks"][0]["attempts"].as_array().unwrap().len() <= 2, "{run}");
    }
    working.abort();
    stop(server).await;
}
