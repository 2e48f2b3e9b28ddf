//! Workers that write down what they did, and the audit that compares it with what runs tell of themselves.

use super::client::Frame;
use super::server::Door;
use bytes::Bytes;
use downbeat::client::worker::{Task, TaskError, Worker};
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Times that each attempt was begun, by run, task and attempt.
type Journal = BTreeMap<(String, String, u32), usize>;

/// A few workers of one type, each with a stream of its own.
#[derive(Debug)]
pub struct Crew {
    journal: Arc<Mutex<Journal>>,
    handles: Vec<downbeat::client::worker::WorkerHandle>,
    working: Vec<tokio::task::JoinHandle<()>>,
}

impl Crew {
    /// A worker of `task_type` at each of these doors, with so many tasks at once; each task takes `takes`, and
    /// completes with its own input.
    pub fn at(doors: &[Door], task_type: &str, concurrency: u32, takes: Duration) -> Self {
        let mut crew = Self { journal: Arc::default(), handles: Vec::new(), working: Vec::new() };
        for (n, door) in doors.iter().enumerate() {
            let journal = Arc::clone(&crew.journal);
            let worker = Worker::builder(door.url())
                .label(format!("{task_type}-{n}"))
                .cancel_grace(Duration::from_millis(200))
                .handle(task_type, concurrency, move |task: Task| {
                    let journal = Arc::clone(&journal);
                    async move {
                        let key = (task.run().to_owned(), task.path().to_owned(), task.attempt());
                        *journal.lock().unwrap().entry(key).or_default() += 1;
                        if !takes.is_zero() {
                            tokio::time::sleep(takes).await;
                        }
                        Ok::<Bytes, TaskError>(task.input().clone())
                    }
                })
                .build()
                .unwrap();
            crew.handles.push(worker.handle());
            crew.working.push(tokio::spawn(async move { worker.run().await.unwrap() }));
        }
        crew
    }

    /// How many attempts were begun so far, repeats included.
    pub fn begun(&self) -> usize {
        self.journal.lock().unwrap().values().sum()
    }

    /// What was begun more than once: a later attempt, or a repeat of the first.
    pub fn done_twice(&self) -> Vec<String> {
        let journal = self.journal.lock().unwrap();
        let twice = journal.iter().filter(|((_, _, attempt), times)| *attempt > 1 || **times > 1);
        twice.map(|((run, task, attempt), n)| format!("{run} {task} attempt {attempt}, {n} times")).collect()
    }

    /// Lets them finish and waits for them.
    pub async fn leave(self) {
        self.leave_within(Duration::from_secs(2)).await;
    }

    /// Gives tasks so long to finish, and waits for the workers' end; how long that took.
    pub async fn leave_within(mut self, grace: Duration) -> Duration {
        let began = tokio::time::Instant::now();
        for handle in &self.handles {
            handle.shutdown(grace);
        }
        for working in self.working.drain(..) {
            working.await.unwrap();
        }
        began.elapsed()
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        for working in &self.working {
            working.abort();
        }
    }
}

/// What is wrong with the events of a run that has ended, in the order in which they were told: `[]` if nothing is.
/// Each attempt is queued, started, ended; each task ends once in a try; the last event, and only that, ends the run.
pub fn faults_of(events: &[Value]) -> Vec<String> {
    let mut wrong = Vec::new();
    let text = |event: &Value, name: &str| event[name].as_str().unwrap_or_default().to_owned();
    let is_end =
        |kind: &str| matches!(kind, "run.completed" | "run.failed" | "run.cancelled" | "run.timed_out");
    let kinds: Vec<String> = events.iter().map(|e| text(e, "type")).collect();
    let begins = kinds.iter().filter(|k| *k == "run.started").count();
    if begins != 1 || kinds.first().is_none_or(|k| k != "run.started") {
        wrong.push(format!("it begins with {:?}, {begins} times", kinds.first()));
    }
    let ends = kinds.iter().filter(|k| is_end(k)).count();
    let retried = kinds.iter().filter(|k| *k == "run.retried").count();
    if ends != retried + 1 || !kinds.last().is_some_and(|k| is_end(k)) {
        wrong.push(format!("{ends} ends, {retried} retries, the last is {:?}", kinds.last()));
    }
    let mut times: Vec<String> = events.iter().map(|e| text(e, "time")).collect();
    if !times.is_sorted() {
        wrong.push("times go back".to_owned());
    }
    times.clear();
    // By task and attempt: 1 queued, 2 started, 3 to be tried again, 4 over.
    let mut stages: BTreeMap<(String, u64), u8> = BTreeMap::new();
    let mut completed: BTreeMap<String, usize> = BTreeMap::new();
    for event in events {
        let (kind, task) = (text(event, "type"), text(event, "task"));
        let Some(attempt) = event["attempt"].as_u64() else { continue };
        let stage = stages.entry((task.clone(), attempt)).or_default();
        let (fits, next) = match kind.as_str() {
            // A delivery that was lost is queued again.
            "task.queued" => (*stage < 3, 1),
            "task.started" => (*stage == 1, 2),
            "task.progress" => (*stage == 2, 2),
            "task.completed" => {
                *completed.entry(task.clone()).or_default() += 1;
                // Only what workers do is queued and started.
                (*stage == 2 || *stage == 0 && event["task_type"].is_null(), 4)
            }
            "task.retrying" => (*stage < 3, 3),
            "task.failed" | "task.timed_out" | "task.cancelled" | "task.skipped" => (*stage < 4, 4),
            _ => continue,
        };
        if !fits {
            wrong.push(format!("{kind} of {task:?}, attempt {attempt}, at stage {stage}"));
        }
        *stage = next;
    }
    if kinds.last().is_some_and(|k| k == "run.completed") {
        let open = stages.iter().filter(|(_, stage)| matches!(stage, 1 | 2));
        wrong.extend(open.map(|((task, attempt), _)| format!("{task:?}, attempt {attempt}, was left open")));
    }
    for (task, times) in completed {
        if times > 1 + retried {
            wrong.push(format!("{task:?} completed {times} times"));
        }
    }
    wrong
}

/// What a run tells of itself from its beginning to its end.
pub async fn history(door: Door, run: &str) -> Vec<Value> {
    let text = door.insist_get(&format!("/v1/runs/{run}/events")).await;
    frames(text.text()).iter().map(Frame::json).collect()
}

/// All events of a text.
pub fn frames(text: &str) -> Vec<Frame> {
    text.split("\n\n").filter_map(super::client::parse).collect()
}

/// Waits for the end of these runs and audits each: completed, every task in its first attempt, which was begun once. (A
/// delivery that never left the server may be made again.)
pub async fn audit_strictly(door: Door, runs: impl IntoIterator<Item = String>, crew: &Crew) {
    for id in runs {
        let run = door.insist_get(&format!("/v1/runs/{id}?wait=30s")).await.json();
        assert_eq!(run["status"], "completed", "{run:#}");
        for task in run["tasks"].as_array().unwrap() {
            assert_eq!(task["attempts"].as_array().unwrap().len(), 1, "{id}: {task:#}");
        }
        let events = history(door, &id).await;
        assert_eq!(faults_of(&events), Vec::<String>::new(), "{id}: {events:#?}");
    }
    assert_eq!(crew.done_twice(), Vec::<String>::new());
}
