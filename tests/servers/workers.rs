//! Workers that die or stay silent.

use super::support::client::{Worker, soon};
use super::support::server::Server;
use downbeat::proto::v1;
use downbeat::proto::v1::server_message::Message as FromServer;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// A real worker process whose command says that it began and then never ends.
pub(super) fn endless_worker(server: &Server, task_type: &str, mark: &std::path::Path) -> Child {
    let script = format!("echo $$ > {}.part && mv {0}.part {0} && exec sleep 600", mark.display());
    Command::new(env!("CARGO_BIN_EXE_downbeat"))
        .args(["worker", "--server", &server.url(), "--type", task_type, "--", "sh", "-c", &script])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// Waits for a file and reads it.
pub(super) async fn appears(path: &std::path::Path) -> String {
    let look = async {
        let mut pause = tokio::time::interval(Duration::from_millis(20));
        loop {
            pause.tick().await;
            if let Ok(text) = std::fs::read_to_string(path) {
                return text;
            }
        }
    };
    soon(look).await
}

#[tokio::test]
async fn tasks_of_a_killed_worker_are_elsewhere_within_the_lease_and_two_seconds() {
    let server = Server::start();
    let text = "name: killed\ntasks:\n  pack: { type: killed-pack, retry: { initial: 1ms } }\n";
    assert_eq!(server.put("/v1/workflows/killed", "application/yaml", text).await.status, 201);
    let dir = tempfile::tempdir().unwrap();
    let mark = dir.path().join("pid");
    let mut process = endless_worker(&server, "killed-pack", &mark);
    assert_eq!(server.start_run("killed", "r1", "null").await.status, 201);
    let command = appears(&mark).await;
    let (mut other, welcome) = Worker::hello(&server, "killed-pack", 1).await;
    process.kill().unwrap();
    process.wait().unwrap();
    let killed = tokio::time::Instant::now();
    // What the worker's command left behind is ours to end.
    Command::new("kill").args(["-9", command.trim()]).status().unwrap();

    let limit = Duration::from_millis(u64::from(welcome.lease_ms)) + Duration::from_secs(2);
    let task = tokio::time::timeout(limit, other.assignment()).await.expect("elsewhere in time");
    println!("elsewhere after {:?}, lease {} ms", killed.elapsed(), welcome.lease_ms);
    assert_eq!((task.run.as_str(), task.task.as_str()), ("r1", "pack"));
    let ack = other.settle(&task.token, v1::result::Outcome::Completed("1".into())).await;
    assert_eq!(ack.status(), v1::result_ack::Status::Accepted);
    assert_eq!(server.get("/v1/runs/r1?wait=5s").await.json()["status"], "completed");
}

#[tokio::test]
async fn an_assignment_cut_before_its_ack_is_queued_again_without_using_an_attempt() {
    let server = Server::start();
    server.register_echo("cut").await;
    let (mut silent, welcome) = Worker::hello(&server, "cut-pack", 1).await;
    assert_eq!(server.start_run("cut", "r1", "7").await.status, 201);
    let lost = match silent.hear().await.unwrap() {
        FromServer::Assign(list) => list.assignments[0].clone(),
        other => panic!("{other:?}"),
    };
    // The stream breaks: the assignment was never acknowledged.
    drop(silent);
    let cut = tokio::time::Instant::now();
    let (mut other, _) = Worker::hello(&server, "cut-pack", 1).await;
    let task = soon(other.assignment()).await;
    let limit = Duration::from_millis(u64::from(welcome.ack_ms)) + Duration::from_secs(2);
    assert!(cut.elapsed() <= limit, "back after {:?}", cut.elapsed());
    assert_eq!((task.attempt, task.run.as_str()), (1, "r1"));
    assert_ne!(task.token, lost.token);
    let late = other.settle(&lost.token, v1::result::Outcome::Completed("8".into())).await;
    assert_eq!(late.status(), v1::result_ack::Status::Stale);
    other.settle(&task.token, v1::result::Outcome::Completed("9".into())).await;

    let run = server.get("/v1/runs/r1?wait=5s").await.json();
    assert_eq!((run["status"].as_str(), run["output"].as_i64()), (Some("completed"), Some(9)));
    assert_eq!(run["tasks"][0]["attempts"].as_array().unwrap().len(), 1);
    let events = server.watch("/v1/runs/r1/events", None).await.rest().await;
    let queued: Vec<_> =
        events.iter().filter(|f| f.event == "task.queued").map(super::support::client::Frame::json).collect();
    assert_eq!(queued.len(), 2);
    assert_eq!((queued[1]["attempt"].as_i64(), queued[1]["delivery"].as_i64()), (Some(1), Some(2)));
}
