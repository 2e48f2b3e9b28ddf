//! Whole stores: moved from one place to another by `downbeat backup` and `downbeat restore`.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod leases;
mod live;
mod orphans;
#[path = "../support/cluster.rs"]
mod redis_cluster;
#[path = "../support/redis.rs"]
mod redis_server;
mod refusals;
mod round_trip;
#[path = "../support/mod.rs"]
mod support;
mod unreadable;

use downbeat::client::Worker;
use serde_json::Value;
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use support::client::soon;
use support::server::{Server, free_address};

/// What a command came to.
#[derive(Debug)]
struct Done {
    status: i32,
    out: String,
    err: String,
}

impl Done {
    #[track_caller]
    fn well(self) -> String {
        assert_eq!(self.status, 0, "{self:?}");
        self.out
    }

    /// It failed and said so.
    #[track_caller]
    fn refused(&self, because: &str) {
        assert!(self.status == 1 && self.err.contains(because), "{because:?} is missing: {self:?}");
    }
}

/// A place for a store.
#[derive(Debug, Clone, Copy)]
enum Place<'p> {
    Redis(&'p redis_server::RedisServer),
    Cluster(&'p redis_cluster::RedisCluster),
    Directory(&'p Path),
}

impl Place<'_> {
    fn flags(self) -> Vec<String> {
        match self {
            Self::Redis(redis) => vec!["--store".into(), redis.url()],
            Self::Cluster(cluster) => vec!["--store".into(), cluster.url()],
            Self::Directory(dir) => {
                vec!["--store".into(), "embedded".into(), "--data".into(), dir.display().to_string()]
            }
        }
    }

    fn run(self, command: &str, file: &Path, more: &[&str]) -> Done {
        let output = Command::new(env!("CARGO_BIN_EXE_downbeat"))
            .arg(command)
            .args(self.flags())
            .args(more)
            .arg(file)
            .output()
            .unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Done {
            status: output.status.code().unwrap_or(-1),
            out: text(output.stdout),
            err: text(output.stderr),
        }
    }

    fn backup(self, file: &Path) -> Done {
        self.run("backup", file, &[])
    }

    fn restore(self, file: &Path) -> Done {
        self.run("restore", file, &[])
    }

    fn serve(self) -> Server {
        match self {
            Self::Redis(redis) => Server::serve(&redis.url(), None, free_address()),
            Self::Cluster(cluster) => Server::serve(&cluster.url(), None, free_address()),
            Self::Directory(dir) => Server::serve("embedded", Some(dir), free_address()),
        }
    }
}

async fn stop(mut server: Server) {
    server.ask_to_stop();
    assert_eq!(server.stopped().await, Some(0));
}

async fn register(server: &Server, name: &str, tasks: &str) {
    let text = format!("name: {name}\n{tasks}");
    let answer = server.put(&format!("/v1/workflows/{name}"), "application/yaml", text).await;
    assert!(answer.status < 300, "{}", answer.text());
}

async fn start(server: &Server, workflow: &str, id: &str) {
    let answer = server.start_run(workflow, id, "null").await;
    assert_eq!(answer.status, 201, "{}", answer.text());
}

/// Looks until a run is as it should be.
async fn becomes(server: &Server, id: &str, right: impl Fn(&Value) -> bool) -> Value {
    let look = async {
        let mut pause = tokio::time::interval(Duration::from_millis(20));
        loop {
            pause.tick().await;
            let run = server.get(&format!("/v1/runs/{id}")).await.json();
            if right(&run) {
                return run;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(40), look)
        .await
        .unwrap_or_else(|_| panic!("{id} does not become so"))
}

/// Every run, newest first, each as it reads by itself.
async fn all_runs(server: &Server) -> Vec<Value> {
    let (mut all, mut cursor) = (Vec::new(), String::new());
    loop {
        let page = server.get(&format!("/v1/runs?limit=500{cursor}")).await.json();
        for item in page["items"].as_array().unwrap() {
            all.push(server.get(&format!("/v1/runs/{}", item["id"].as_str().unwrap())).await.json());
        }
        match page["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => return all,
        }
    }
}

/// A worker that gives every input back.
fn echo(server: &Server, types: &[&str]) -> tokio::task::JoinHandle<()> {
    let mut worker = Worker::builder(server.url()).label("echo");
    for task_type in types {
        worker = worker.handle(*task_type, 32, |task| async move { Ok(task.input().clone()) });
    }
    let worker = worker.build().unwrap();
    tokio::spawn(async move {
        worker.run().await.unwrap();
    })
}

/// Every event of a run, as its stream tells them.
async fn events(server: &Server, id: &str) -> Vec<(String, String)> {
    let frames = server.watch(&format!("/v1/runs/{id}/events"), None).await;
    soon(frames.rest()).await.into_iter().map(|frame| (frame.event, frame.data)).collect()
}
