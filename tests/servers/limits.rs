//! `concurrency` and `rate` over several servers, with workers and servers that die.

use super::redis::RedisServer;
use super::support::client::{PATIENCE, Worker, soon};
use super::support::server::Server;
use super::workers::{appears, endless_worker};
use super::{Pair, free_address};
use downbeat::model::time::{Clock as _, SystemClock};
use downbeat::proto::v1;
use serde_json::Value;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// A real worker process that writes down when each of its commands began and ended, and ends with this.
struct Diary(Child);

impl Diary {
    fn worker(server: &Server, task_type: &str, lines: &Path) -> Self {
        let script = format!(
            "echo $(date +%s%N) +1 >> {0}; sleep 0.02; echo $(date +%s%N) -1 >> {0}; echo 1",
            lines.display()
        );
        let worker = Command::new(env!("CARGO_BIN_EXE_downbeat"))
            .args(["worker", "--server", &server.url(), "--type", task_type, "--concurrency", "4"])
            .args(["--", "sh", "-c", &script])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Self(worker)
    }
}

impl Drop for Diary {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What workers wrote down: nanoseconds since 1970, and whether it is a beginning, in order of time.
fn entries(lines: &Path) -> Vec<(u128, bool)> {
    let text = std::fs::read_to_string(lines).unwrap();
    let entry = |line: &str| {
        let (at, what) = line.split_once(' ').unwrap();
        (at.parse().unwrap(), what == "+1")
    };
    let mut entries: Vec<(u128, bool)> = text.lines().map(entry).collect();
    // An end comes before a beginning of the same time.
    entries.sort_unstable();
    entries
}

async fn register(server: &Server, name: &str, text: &str) {
    let text = format!("name: {name}\n{text}");
    let answer = server.put(&format!("/v1/workflows/{name}"), "application/yaml", text).await;
    assert_eq!(answer.status, 201, "{}", answer.text());
}

/// Waits for the end of a run.
async fn ended(server: &Server, run: &str) -> Value {
    let run = format!("/v1/runs/{run}?wait=10s");
    let look = async {
        loop {
            let view = server.get(&run).await.json();
            if view["ended_at"].is_string() {
                return view;
            }
        }
    };
    tokio::time::timeout(4 * PATIENCE, look).await.expect("the run ends")
}

/// Waits until a task waits for a slot.
async fn waits(server: &Server, run: &str, key: &str) {
    let look = async {
        let mut pause = tokio::time::interval(Duration::from_millis(20));
        loop {
            pause.tick().await;
            let view = server.get(&format!("/v1/runs/{run}")).await.json();
            let task = &view["tasks"][0];
            if task["waiting_for"] == serde_json::json!({"concurrency": key}) {
                assert_eq!(task["status"], "waiting");
                return;
            }
        }
    };
    soon(look).await;
}

/// Waits until the store holds no home record any more.
async fn all_gone(redis: &RedisServer) {
    let look = async {
        let mut pause = tokio::time::interval(Duration::from_millis(50));
        loop {
            pause.tick().await;
            if redis.command("KEYS *downbeat.permits.*") == "*0" {
                return;
            }
        }
    };
    soon(look).await;
}

#[tokio::test]
async fn over_two_servers_there_are_never_two_at_once_under_a_limit_of_one() {
    const RUNS: usize = 24;
    let pair = Pair::start();
    let text = "tasks: { t: { type: solo, concurrency: { key: 'env-${{ input }}', limit: 1 } } }";
    register(&pair.a, "solo", text).await;
    let dir = tempfile::tempdir().unwrap();
    let lines = dir.path().join("lines");
    let _workers = [Diary::worker(&pair.a, "solo", &lines), Diary::worker(&pair.b, "solo", &lines)];
    for n in 0..RUNS {
        let server = if n % 2 == 0 { &pair.a } else { &pair.b };
        assert_eq!(server.start_run("solo", &format!("r{n}"), "7").await.status, 201);
    }
    for n in 0..RUNS {
        assert_eq!(ended(&pair.b, &format!("r{n}")).await["status"], "completed");
    }
    let entries = entries(&lines);
    assert_eq!(entries.len(), 2 * RUNS);
    for (n, (at, begins)) in entries.iter().enumerate() {
        assert_eq!(*begins, n % 2 == 0, "two at once at {at}: {entries:?}");
    }
    all_gone(&pair.redis).await;
}

#[tokio::test]
async fn the_slot_of_a_killed_worker_goes_on() {
    for (name, retry, attempt) in
        [("once", "retry: { max_attempts: 1 }", 1), ("twice", "retry: { initial: 1ms }", 2)]
    {
        let server = Server::start();
        let text =
            format!("tasks: {{ t: {{ type: slot, {retry}, concurrency: {{ key: env, limit: 1 }} }} }}");
        register(&server, name, &text).await;
        let dir = tempfile::tempdir().unwrap();
        let mark = dir.path().join("pid");
        let mut process = endless_worker(&server, "slot", &mark);
        assert_eq!(server.start_run(name, "r1", "null").await.status, 201);
        let command = appears(&mark).await;
        assert_eq!(server.start_run(name, "r2", "null").await.status, 201);
        waits(&server, "r2", "env").await;
        let (mut other, welcome) = Worker::hello(&server, "slot", 2).await;
        process.kill().unwrap();
        process.wait().unwrap();
        Command::new("kill").args(["-9", command.trim()]).status().unwrap();

        // The first task keeps its slot over its attempts; without another it is the next one's.
        let limit = Duration::from_millis(u64::from(welcome.lease_ms)) + Duration::from_secs(2);
        let task = tokio::time::timeout(limit, other.assignment()).await.expect("in time");
        assert_eq!((task.run.as_str(), task.attempt), (if attempt == 1 { "r2" } else { "r1" }, attempt));
        other.settle(&task.token, v1::result::Outcome::Completed("1".into())).await;
        if attempt == 2 {
            let task = soon(other.assignment()).await;
            assert_eq!((task.run.as_str(), task.attempt), ("r2", 1));
            other.settle(&task.token, v1::result::Outcome::Completed("1".into())).await;
        }
        let (first, second) = (ended(&server, "r1").await, ended(&server, "r2").await);
        assert_eq!(second["status"], "completed");
        match attempt {
            1 => assert_eq!(
                (&first["status"], &first["error"]["code"]),
                (&"failed".into(), &"worker_lost".into())
            ),
            _ => assert_eq!(first["status"], "completed"),
        }
    }
}

#[tokio::test]
async fn a_killed_server_leaks_no_slot() {
    let Pair { a, b, redis } = Pair::start();
    register(&a, "left", "tasks: { t: { type: left, concurrency: { key: env, limit: 1 } } }").await;
    assert_eq!(a.start_run("left", "r1", "null").await.status, 201);
    let first = a.claim("left").await;
    assert_eq!(first["run"], "r1");
    assert_eq!(a.start_run("left", "r2", "null").await.status, 201);
    waits(&a, "r2", "env").await;
    // The server dies as soon as it has answered, whether or not it has told of the slot by then.
    let token = first["token"].as_str().unwrap();
    let done = a.post(&format!("/v1/tasks/{token}/complete"), r#"{"output":1}"#).await;
    assert_eq!(done.status, 200, "{}", done.text());
    a.kill9();
    let second = b.claim("left").await;
    assert_eq!(second["run"], "r2");
    let token = second["token"].as_str().unwrap();
    let done = b.post(&format!("/v1/tasks/{token}/complete"), r#"{"output":1}"#).await;
    assert_eq!(done.status, 200, "{}", done.text());
    assert_eq!(ended(&b, "r2").await["status"], "completed");
    all_gone(&redis).await;
    // And another server takes up what stands there.
    let c = Server::serve(&redis.url(), None, free_address());
    assert_eq!(c.start_run("left", "r3", "null").await.status, 201);
    assert_eq!(c.claim("left").await["run"], "r3");
}

#[tokio::test]
async fn a_run_that_is_ended_and_deleted_gives_its_slot_to_the_next() {
    let server = Server::start();
    register(&server, "gone", "tasks: { t: { type: gone, concurrency: { key: env, limit: 1 } } }").await;
    for run in ["r1", "r2", "r3"] {
        assert_eq!(server.start_run("gone", run, "null").await.status, 201);
        if run == "r1" {
            assert_eq!(server.claim("gone").await["run"], "r1");
        } else {
            waits(&server, run, "env").await;
        }
    }
    // One that waits, and the one that has it.
    for run in ["r2", "r1"] {
        assert_eq!(server.post(&format!("/v1/runs/{run}/cancel"), r#"{"force":true}"#).await.status, 200);
        let look = async {
            let mut pause = tokio::time::interval(Duration::from_millis(20));
            loop {
                pause.tick().await;
                match server.delete(&format!("/v1/runs/{run}")).await.status {
                    204 => return,
                    409 => {} // Others are being told.
                    other => panic!("{other}"),
                }
            }
        };
        soon(look).await;
    }
    assert_eq!(server.claim("gone").await["run"], "r3");
}

#[tokio::test]
async fn attempts_start_no_faster_than_their_rate_over_two_servers() {
    const RUNS: u32 = 12;
    const BURST: u32 = 4;
    let pair = Pair::start();
    register(&pair.a, "paced", "tasks: { t: { type: paced, rate: { key: api, limit: 4, per: 800ms } } }")
        .await;
    let dir = tempfile::tempdir().unwrap();
    let lines = dir.path().join("lines");
    let _workers = [Diary::worker(&pair.a, "paced", &lines), Diary::worker(&pair.b, "paced", &lines)];
    let since = Duration::from_micros(u64::try_from(SystemClock.now().0).unwrap());
    for n in 0..RUNS {
        let server = if n % 2 == 0 { &pair.a } else { &pair.b };
        assert_eq!(server.start_run("paced", &format!("r{n}"), "null").await.status, 201);
    }
    for n in 0..RUNS {
        assert_eq!(ended(&pair.a, &format!("r{n}")).await["status"], "completed");
    }
    let starts: Vec<u128> = entries(&lines).into_iter().filter(|(_, b)| *b).map(|(at, _)| at).collect();
    assert_eq!(starts.len(), RUNS as usize);
    for (n, at) in (0..).zip(&starts) {
        // One every 200 ms once the burst is through. Times in the store are whole microseconds, and those of
        // workers are read a little later.
        let least = since + Duration::from_millis(200) * (n + 1_u32).saturating_sub(BURST);
        assert!(*at >= least.as_nanos(), "start {n} came {} ns too early", least.as_nanos() - at);
    }
}
