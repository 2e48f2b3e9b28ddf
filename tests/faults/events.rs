//! Readers of events: cut again and again, too late, too slow; and the order of what they are told.

use crate::redis::{Options, RedisServer};
use crate::support::crew::{Crew, faults_of, history};
use crate::support::proxy::{Mode, Proxy};
use crate::support::reader::{Reader, Seen};
use crate::support::server::{Door, Server, free_address};
use crate::{long, register, until};
use downbeat::client::worker::{Task, TaskError, Worker};
use downbeat::model::entropy::SeededEntropy;
use futures::StreamExt as _;
use serde_json::Value;
use std::collections::BTreeMap;
use std::time::Duration;

/// Longer than comments are apart.
const SILENCE: Duration = Duration::from_secs(20);

/// A run of about three events for each of its items.
const FAN: &str = r#"
tasks:
  each: { for_each: "${{ range(input) | list }}", type: work, input: "${{ index }}" }
"#;

fn pair() -> (RedisServer, Server, Server) {
    let redis = RedisServer::start(Options::default());
    let serve = || Server::serve(&redis.url(), None, free_address());
    let (a, b) = (serve(), serve());
    (redis, a, b)
}

/// A Redis that keeps an append-only file.
fn aof() -> RedisServer {
    RedisServer::start(Options { aof: true, args: Vec::new() })
}

async fn start(door: Door, workflow: &str, id: &str, input: &str) {
    let answer = door.start_run(workflow, id, input).await;
    assert_eq!(answer.status, 201, "{}", answer.text());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_that_is_cut_twenty_times_misses_nothing_and_sees_nothing_twice() {
    const CUTS: usize = 20;
    /// Tasks that are done between two cuts.
    const STEP: usize = 17;
    let (redis, a, mut b) = pair();
    register(*a, "fan", FAN).await;
    let proxies = [Proxy::start(a.address()), Proxy::start(b.address())];
    let random = SeededEntropy::new(1);
    start(*a, "fan", "r1", &(CUTS * STEP).to_string()).await;
    let doors = proxies.iter().map(|p| Door(p.address())).collect();
    let mut reader = Reader::start(doors, "/v1/runs/r1/events", SILENCE);
    let done = |seen: &Seen| seen.events.iter().filter(|e| e["type"] == "task.completed").count();
    // In the middle of an event; halfway one server dies and another takes its place.
    for cut in 0..CUTS {
        if cut == CUTS / 2 {
            let address = b.address();
            b.kill9();
            b = Server::serve(&redis.url(), None, address);
        }
        for proxy in &proxies {
            proxy.cut_after(random.next_u64() % 4_000);
        }
        for _ in 0..STEP {
            let task = a.claim("work").await;
            let token = task["token"].as_str().unwrap();
            let answer = a.post(&format!("/v1/tasks/{token}/complete"), r#"{"output":1}"#).await;
            assert_eq!(answer.status, 200, "{}", answer.text());
        }
        let told = (cut + 1) * STEP;
        assert!(reader.sees(SILENCE, |s| done(s) >= told).await, "after {} of {told}", reader.look(done));
    }
    let seen = reader.ended(SILENCE).await;
    let own = history(*a, "r1").await;
    assert_eq!(faults_of(&own), Vec::<String>::new());
    assert!(own.len() >= 990, "{} events", own.len());
    assert!(seen.cuts >= CUTS, "{} cuts", seen.cuts);
    assert_eq!(seen.resets, 0);
    let first = seen.events.iter().zip(&own).take_while(|(x, y)| x == y).count();
    assert_eq!((first, seen.events.len()), (own.len(), own.len()), "after {} cuts", seen.cuts);
    // Who comes without a cursor is told everything.
    let fresh = Reader::start(vec![*a], "/v1/runs/r1/events", SILENCE).ended(SILENCE).await;
    assert_eq!(fresh.events, own);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_comes_when_a_run_has_just_ended_is_told_of_its_end() {
    let (_redis, a, b) = pair();
    register(*a, "quick", "tasks: { t: { set: 1 } }").await;
    let count = if long() { 1_000 } else { 200 };
    let doors = [*a, *b];
    let watch = |n: usize| async move {
        let id = format!("r{n}");
        start(doors[n % 2], "quick", &id, "1").await;
        tokio::time::sleep(Duration::from_millis(n as u64 % 200)).await;
        let began = tokio::time::Instant::now();
        let mut events = doors[(n / 2) % 2].watch(&format!("/v1/runs/{id}/events"), None).await;
        let mut last = String::new();
        while let Some(frame) = events.next().await {
            last = frame.event;
        }
        assert_eq!(last, "run.completed", "{id}");
        began.elapsed()
    };
    let mut all: Vec<_> = futures::stream::iter(0..count).map(watch).buffer_unordered(8).collect().await;
    all.sort();
    println!("told of the end: p50 {:?}, last {:?}", all[count / 2], all[count - 1]);
    assert!(all[count * 99 / 100] < Duration::from_secs(1), "{:?}", all[count - 1]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn slow_readers_slow_nobody_and_can_go_on() {
    let (readers, items) = if long() { (1_000, 3_300) } else { (120, 700) };
    let redis = RedisServer::start(Options::default());
    let server = Server::serve(&redis.url(), None, free_address());
    register(*server, "fan", FAN).await;
    start(*server, "fan", "r1", &items.to_string()).await;
    let before = (server.descriptors(), server.memory());
    let path = "/v1/runs/r1/events";
    let (slow, deaf) = (Proxy::start(server.address()), Proxy::start(server.address()));
    slow.set(Mode::Throttle(1_000));
    let mut slow_ones: Vec<_> =
        (0..5).map(|_| Reader::start(vec![Door(slow.address())], path, SILENCE)).collect();
    let mut deaf_one = Reader::start(vec![Door(deaf.address())], path, SILENCE);
    assert!(deaf_one.sees(SILENCE, |s| !s.events.is_empty()).await);
    deaf.set(Mode::Hold);
    let fast: Vec<_> = (0..readers).map(|_| Reader::start(vec![*server], path, SILENCE)).collect();
    let crew = Crew::at(&[*server], "work", 50, Duration::ZERO);
    let run = server.insist_get("/v1/runs/r1?wait=60s").await.json();
    assert_eq!(run["status"], "completed");
    let ended = tokio::time::Instant::now();
    let mut counts = BTreeMap::new();
    for reader in fast {
        let seen = reader.ended(Duration::from_secs(30)).await;
        // The one end of its stream is that of the run.
        assert_eq!((seen.cuts, seen.resets), (1, 0));
        *counts.entry(seen.events.len()).or_insert(0_usize) += 1;
    }
    let grown = server.memory().saturating_sub(before.1);
    println!("{counts:?}, the last {:?} after the end, {} KiB more", ended.elapsed(), grown >> 10);
    assert_eq!(counts.len(), 1, "all were told the same: {counts:?}");
    // A buffer of each that is read slowly, and what a run of so many events takes.
    assert!(grown < 64 << 20, "{grown} bytes more");
    assert!(slow_ones[0].look(|s| s.events.len()) < *counts.keys().next().unwrap(), "slow ones are behind");
    // Slow ones that find a better way go on where they were.
    slow.set(Mode::Pass);
    deaf.set(Mode::Pass);
    slow_ones.push(deaf_one);
    let own = history(*server, "r1").await;
    for reader in slow_ones {
        let seen = reader.ended(Duration::from_mins(1)).await;
        assert_eq!(seen.resets, 0);
        assert!(seen.events == own, "{} of {} events", seen.events.len(), own.len());
    }
    crew.leave().await;
    let closed = async || (server.descriptors() <= before.0 + 2).then_some(());
    until("no connection is left", Duration::from_secs(20), closed).await;
}

/// Two in five attempts fail; some runs are cancelled meanwhile.
const MIXED: &str = r#"
tasks:
  a: { type: flaky, input: "${{ input }}", retry: { max_attempts: 4, initial: 5ms } }
  each: { needs: [a], for_each: [1, 2, 3, 4], type: flaky, input: "${{ item }}", retry: { max_attempts: 4, initial: 5ms } }
  end: { needs: [each], type: flaky, retry: { max_attempts: 4, initial: 5ms } }
"#;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_told_is_true_and_in_order() {
    const RUNS: usize = 100;
    let (_redis, a, b) = pair();
    register(*a, "mixed", MIXED).await;
    let worker = Worker::builder(a.url())
        .handle("flaky", 20, |task: Task| async move {
            let n = task.run().bytes().chain(task.path().bytes()).map(usize::from).sum::<usize>();
            match (n + task.attempt() as usize) % 5 {
                0 | 1 if task.attempt() < 4 => Err(TaskError::new("again", "not yet")),
                _ => Ok(task.input().clone()),
            }
        })
        .build()
        .unwrap();
    let (handle, working) = (worker.handle(), tokio::spawn(worker.run()));
    let mut reader = Reader::start(vec![*b], "/v1/events?workflow=mixed", SILENCE);
    let opened = async || (b.descriptors() > 0 && reader.look(|s| s.cuts == 0)).then_some(());
    until("the reader is there", SILENCE, opened).await;
    let go = |n: usize| {
        let (a, b) = (*a, *b);
        async move {
            let id = format!("r{n}");
            start(a, "mixed", &id, "1").await;
            if n.is_multiple_of(4) {
                tokio::time::sleep(Duration::from_millis(n as u64)).await;
                // Over already, or not: the answer says so.
                assert!(matches!(b.post(&format!("/v1/runs/{id}/cancel"), "").await.status, 200 | 409));
            }
            // REST is never behind an event.
            let mut events = b.watch(&format!("/v1/runs/{id}/events"), None).await;
            let mut last = Value::Null;
            while let Some(frame) = events.next().await {
                last = frame.json();
                if n.is_multiple_of(10) && last["type"] == "task.completed" {
                    let run = a.get(&format!("/v1/runs/{id}")).await.json();
                    let task = run["tasks"].as_array().unwrap().iter().find(|t| t["task"] == last["task"]);
                    assert_eq!(task.unwrap()["status"], "completed", "{last}");
                }
            }
            let run = a.get(&format!("/v1/runs/{id}")).await.json();
            assert_eq!(format!("run.{}", run["status"].as_str().unwrap()), last["type"].as_str().unwrap());
            (id, run)
        }
    };
    let runs: Vec<_> = futures::stream::iter(0..RUNS).map(go).buffer_unordered(16).collect().await;
    let ends = |s: &Seen| {
        let ends = ["run.completed", "run.failed", "run.cancelled"];
        s.events.iter().filter(|e| ends.contains(&e["type"].as_str().unwrap())).count()
    };
    assert!(reader.sees(SILENCE, |s| ends(s) == RUNS).await, "{}", reader.look(ends));
    let told = reader.stop();
    let mut statuses = BTreeMap::new();
    for (id, run) in runs {
        let own = history(*a, &id).await;
        assert_eq!(faults_of(&own), Vec::<String>::new(), "{id}: {own:#?}");
        let of_all: Vec<_> = told.events.iter().filter(|e| e["run"] == id.as_str()).cloned().collect();
        assert_eq!(of_all, own, "the stream of all runs tells the same of {id}");
        for task in run["tasks"].as_array().unwrap() {
            let attempts = task["attempts"].as_array().map_or(0, Vec::len);
            let started = own.iter().filter(|e| e["type"] == "task.started" && e["task"] == task["task"]);
            assert!(started.count() <= attempts, "{task}");
        }
        *statuses.entry(run["status"].as_str().unwrap().to_owned()).or_insert(0) += 1;
    }
    println!("{statuses:?}");
    assert!(statuses["completed"] >= RUNS / 2 && statuses.contains_key("cancelled"), "{statuses:?}");
    handle.shutdown(Duration::from_secs(1));
    working.await.unwrap().unwrap();
}

/// Starts runs that end at once, whatever happens meanwhile; their ids.
async fn quick(door: Door, name: &str, count: usize) -> Vec<String> {
    let ids: Vec<_> = (0..count).map(|n| format!("{name}-{n}")).collect();
    for id in &ids {
        door.insist_post("/v1/runs", &format!(r#"{{"workflow":"quick","id":"{id}"}}"#)).await;
    }
    ids
}

/// Whether a reader was told of the end of all these.
fn told(seen: &Seen, ids: &[String]) -> bool {
    let ended = |id: &String| seen.events.iter().any(|e| e["run"] == **id && e["type"] == "run.completed");
    ids.iter().all(ended)
}

async fn hears(reader: &mut Reader, ids: &[String]) {
    assert!(reader.sees(SILENCE, |s| told(s, ids)).await, "{ids:?}: {:?}", reader.look(|s| s.resets));
}

/// A reader of all events at a door, once it follows.
async fn follow(door: Door, last: Option<String>) -> Reader {
    let mut reader = Reader::resuming(vec![door], "/v1/events", SILENCE, last);
    assert!(reader.sees(SILENCE, |s| s.opened).await);
    reader
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_of_what_redis_has_lost_is_told_so_once() {
    let mut redis = aof();
    let server = Server::serve(&redis.url(), None, free_address());
    let door = *server;
    register(door, "quick", "tasks: { t: { set: 1 } }").await;
    let asks = "tasks:\n  a: { wait: { signal: go } }\n  b: { needs: [a], wait: { signal: go } }\n";
    register(door, "asks", asks).await;
    start(door, "asks", "asks", "1").await;
    let mut live = follow(door, None).await;
    let kept = quick(door, "kept", 3).await;
    hears(&mut live, &kept).await;
    let good = live.look(|s| s.last.clone());
    let file = redis.append_only_file();
    let length = std::fs::metadata(&file).unwrap().len();
    let lost = quick(door, "lost", 3).await;
    hears(&mut live, &lost).await;
    let bad = live.look(|s| s.last.clone());
    door.insist_post("/v1/runs/asks/signals/go?id=lost", "1").await;
    let mut of_run = Reader::start(vec![door], "/v1/runs/asks/events", SILENCE);
    let signalled = |s: &Seen| s.events.iter().any(|e| e["type"] == "task.completed");
    assert!(of_run.sees(SILENCE, signalled).await);
    let of_run = of_run.stop();

    redis.kill9();
    std::fs::OpenOptions::new().write(true).open(&file).unwrap().set_len(length).unwrap();
    redis.restart();
    // Everything grows beyond where readers stand.
    let anew = quick(door, "anew", 10).await;
    for n in 0..2 {
        door.insist_post(&format!("/v1/runs/asks/signals/go?id=anew-{n}"), "1").await;
    }
    let (mut of_good, mut of_bad) = (follow(door, good).await, follow(door, bad).await);
    assert!(of_bad.sees(SILENCE, |s| s.resets > 0).await);
    assert!(live.sees(SILENCE, |s| s.resets > 0).await);
    let later = quick(door, "later", 3).await;
    for reader in [&mut live, &mut of_bad, &mut of_good] {
        hears(reader, &later).await;
    }
    hears(&mut of_good, &anew).await;
    let resets = [&live, &of_bad, &of_good].map(|reader| reader.look(|s| s.resets));
    assert_eq!(resets, [1, 1, 0]);
    assert!(!of_bad.look(|s| told(s, &anew)), "it began anew with what came then");
    // One run: what it was told is not what happened.
    let path = "/v1/runs/asks/events";
    let of_run = Reader::resuming(vec![door], path, SILENCE, of_run.last).ended(SILENCE).await;
    assert_eq!((of_run.resets, of_run.events), (1, history(door, "asks").await));
    // And who was told that resumes as ever.
    let again = Reader::resuming(vec![door], path, SILENCE, of_run.last).ended(SILENCE).await;
    assert_eq!((again.resets, again.events.len()), (0, 0));
    assert!(!server.has_logged("panicked"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_whose_document_is_lost_holds_back_no_events_of_others() {
    let redis = RedisServer::start(Options::default());
    let server = Server::serve(&redis.url(), None, free_address());
    register(*server, "quick", "tasks: { t: { set: 1 } }").await;
    register(*server, "asks", "tasks: { s: { wait: { signal: go } } }").await;
    let mut reader = follow(*server, None).await;
    let first = quick(*server, "first", 1).await;
    hears(&mut reader, &first).await;
    let cursor = reader.look(|s| s.last.clone());
    start(*server, "asks", "lost", "1").await;
    let second = quick(*server, "second", 3).await;
    hears(&mut reader, &second).await;
    drop((reader, server));
    assert_eq!(redis.command("DEL db:{w}:d:asks"), ":1");

    let server = Server::serve(&redis.url(), None, free_address());
    let mut reader = follow(*server, cursor).await;
    let third = quick(*server, "third", 3).await;
    hears(&mut reader, &[second, third].concat()).await;
    let of_lost = reader.look(|s| s.events.iter().filter(|e| e["run"] == "lost").count());
    assert!(of_lost > 0, "what is known of it is told");
    assert_eq!(reader.look(|s| (s.resets, s.cuts)), (0, 0));
    assert!(!server.has_logged("panicked"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_was_killed_and_lost_nothing_resets_nobody() {
    let mut redis = aof();
    let server = Server::serve(&redis.url(), None, free_address());
    let door = *server;
    register(door, "quick", "tasks: { t: { set: 1 } }").await;
    let mut live = follow(door, None).await;
    let mut ids = quick(door, "first", 3).await;
    hears(&mut live, &ids).await;
    let cursor = live.look(|s| s.last.clone());
    for round in 0..3 {
        redis.kill9();
        redis.restart();
        ids.extend(quick(door, &format!("round-{round}"), 3).await);
        hears(&mut live, &ids).await;
        let mut away = follow(door, cursor.clone()).await;
        hears(&mut away, &ids[3..]).await;
        assert_eq!(away.look(|s| s.resets), 0);
    }
    let seen = live.stop();
    assert_eq!((seen.resets, seen.cuts), (0, 0));
    for id in &ids {
        let of_run: Vec<_> = seen.events.iter().filter(|e| e["run"] == **id).cloned().collect();
        assert_eq!(of_run, history(door, id).await, "{id}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_events_of_a_run_wait_for_a_replica_where_commits_do() {
    let args = |args: &[&str]| Options { aof: false, args: args.iter().map(|a| (*a).to_owned()).collect() };
    let primary = RedisServer::start(args(&["--repl-diskless-sync-delay", "0"]));
    let replica = RedisServer::start(args(&["--replicaof", "127.0.0.1", &primary.port().to_string()]));
    let linked = async || primary.info("replication").contains("state=online").then_some(());
    until("the replica is there", Duration::from_secs(10), linked).await;
    let settings = [("DOWNBEAT_DURABILITY", "replicated")];
    let server = Server::serve_with(&primary.url(), free_address(), &settings);
    let door = *server;
    register(door, "asks", "tasks: { a: { wait: { signal: go } } }").await;
    start(door, "asks", "r1", "1").await;
    let mut reader = Reader::start(vec![door], "/v1/runs/r1/events", SILENCE);
    let before = |s: &Seen| s.events.iter().any(|e| e["type"] == "run.started");
    assert!(reader.sees(SILENCE, before).await);
    replica.signal("STOP");
    let signalling = tokio::spawn(async move { door.insist_post("/v1/runs/r1/signals/go?id=1", "1").await });
    // The primary has it, as anybody sees who reads it there …
    let done = async || (door.get("/v1/runs/r1").await.json()["status"] == "completed").then_some(());
    until("the primary has it", Duration::from_secs(10), done).await;
    // … and nobody is told by the feed, whatever it looks at meanwhile: it looks every two seconds.
    let over = |s: &Seen| s.events.iter().any(|e| e["type"] == "run.completed");
    assert!(!reader.sees(Duration::from_secs(5), over).await, "told before a replica has it");
    assert!(!signalling.is_finished(), "and so is its answer");
    replica.signal("CONT");
    let seen = reader.ended(SILENCE).await;
    assert_eq!((seen.resets, seen.events), (0, history(door, "r1").await));
    assert_eq!(signalling.await.unwrap().status / 100, 2);
}
