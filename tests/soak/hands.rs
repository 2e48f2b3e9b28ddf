//! A worker as a process, so that it can be killed: it does tasks over its stream and by claiming them over HTTP, and
//! writes down what it sends and what it was told counts.
//!
//! ```text
//! journal, a line each, tab separated:
//!   sent      RUN TASK ATTEMPT OUTPUT      before the result leaves
//!   accepted  RUN TASK ATTEMPT OUTPUT      a claim's result was answered 200
//! ```
//!
//! Every output is one that no other attempt has, whichever process it is of.

use crate::support::server::Door;
use bytes::Bytes;
use downbeat::client::worker::{Task, TaskError, Worker};
use serde_json::Value;
use std::io::Write as _;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Tasks that fail at first.
pub(crate) const FLAKY: &str = "soak-flaky";
/// Tasks that are done over a stream.
pub(crate) const WORK: &str = "soak-work";
/// Tasks that are claimed.
pub(crate) const CLAIMED: &str = "soak-claimed";

/// Starts a worker's process before `door`; `journal` is a file of its own.
pub(crate) fn start(label: &str, door: Door, journal: &std::path::Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["hand", "--exact", "--nocapture"])
        .env("DOWNBEAT_SOAK_HAND", label)
        .env("DOWNBEAT_SOAK_DOOR", door.address().to_string())
        .env("DOWNBEAT_SOAK_JOURNAL", journal)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// What one process knows.
struct Hand {
    label: String,
    count: AtomicUsize,
    journal: Mutex<std::fs::File>,
}

impl Hand {
    fn output(&self) -> String {
        let n = self.count.fetch_add(1, Ordering::Relaxed);
        format!("{{\"by\":\"{}-{}-{n}\"}}", self.label, std::process::id())
    }

    /// One write for each line: what the system has survives us.
    fn note(&self, what: &str, run: &str, task: &str, attempt: u64, output: &str) {
        let line = format!("{what}\t{run}\t{task}\t{attempt}\t{output}\n");
        self.journal.lock().unwrap().write_all(line.as_bytes()).unwrap();
    }
}

/// Works until it is asked to stop.
pub(crate) fn work(label: &str) {
    let door = Door(std::env::var("DOWNBEAT_SOAK_DOOR").unwrap().parse().unwrap());
    let path = std::env::var("DOWNBEAT_SOAK_JOURNAL").unwrap();
    let journal = std::fs::OpenOptions::new().create(true).append(true).open(path).unwrap();
    let hand =
        Arc::new(Hand { label: label.to_owned(), count: AtomicUsize::new(0), journal: Mutex::new(journal) });
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    runtime.block_on(async {
        let stopping = Arc::new(AtomicBool::new(false));
        let claiming = tokio::spawn(claim(Arc::clone(&hand), door, Arc::clone(&stopping)));
        let (works, fails) = (Arc::clone(&hand), Arc::clone(&hand));
        let worker = Worker::builder(door.url())
            .label(label)
            .handle(WORK, 8, move |task: Task| {
                let hand = Arc::clone(&works);
                async move {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                    Ok(send(&hand, &task))
                }
            })
            .handle(FLAKY, 8, move |task: Task| {
                let hand = Arc::clone(&fails);
                async move {
                    if task.attempt() < 3 {
                        return Err(TaskError::new("flaky", "not yet"));
                    }
                    Ok(send(&hand, &task))
                }
            })
            .build()
            .unwrap();
        let handle = worker.handle();
        let working = tokio::spawn(worker.run());
        let mut terminate =
            tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate()).unwrap();
        terminate.recv().await;
        stopping.store(true, Ordering::Release);
        handle.shutdown(Duration::from_secs(1));
        let _ = tokio::time::timeout(Duration::from_secs(5), working).await;
        let _ = tokio::time::timeout(Duration::from_secs(5), claiming).await;
    });
}

fn send(hand: &Hand, task: &Task) -> Bytes {
    let output = hand.output();
    hand.note("sent", task.run(), task.path(), u64::from(task.attempt()), &output);
    Bytes::from(output)
}

/// Claims and completes, one task after the other.
async fn claim(hand: Arc<Hand>, door: Door, stopping: Arc<AtomicBool>) {
    let ask = serde_json::json!({"types": [CLAIMED], "wait": "2s", "max": 2, "worker": hand.label});
    while !stopping.load(Ordering::Acquire) {
        let claimed = door.try_post("/v1/tasks/claim", &ask.to_string()).await;
        let Some(tasks) = claimed.ok().filter(|a| a.status == 200) else {
            tokio::time::sleep(Duration::from_millis(200)).await;
            continue;
        };
        for task in tasks.json().as_array().unwrap() {
            complete(&hand, door, task).await;
        }
    }
}

async fn complete(hand: &Hand, door: Door, task: &Value) {
    let text = |name: &str| task[name].as_str().unwrap().to_owned();
    let (run, path, attempt) = (text("run"), text("task"), task["attempt"].as_u64().unwrap());
    let output = hand.output();
    hand.note("sent", &run, &path, attempt, &output);
    let address = format!("/v1/tasks/{}/complete", text("token"));
    // Not for ever: what is never answered may or may not count.
    for _ in 0..20 {
        match door.try_post(&address, &format!("{{\"output\":{output}}}")).await {
            Ok(answer) if answer.status == 200 => {
                return hand.note("accepted", &run, &path, attempt, &output);
            }
            Ok(answer) if matches!(answer.status, 404 | 409) => return,
            _ => tokio::time::sleep(Duration::from_millis(200)).await,
        }
    }
}
