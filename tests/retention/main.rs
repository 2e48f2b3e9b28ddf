//! Finished runs leave with everything that is theirs: in bounded steps, from a full Redis too, and over and over
//! without a trace.
//!
//! `just growth` does the last of them at full size, 20,000 runs × 5 tasks kept for 60 s, over and over; it takes some
//! minutes.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

#[path = "../support/redis.rs"]
mod redis;

use bytes::Bytes;
use downbeat::app::view::{StartAt, StartRequest};
use downbeat::app::{App, Options};
use downbeat::dispatch::message::{FromWorker, Hello, Subscription, TaskOutcome, TaskResult, ToWorker};
use downbeat::model::command::Start;
use downbeat::model::commit::{Expect, RunWrite, WakeOp, Write};
use downbeat::model::document::Format;
use downbeat::model::ids::{Nonce, Partition, Prefix, RunId, TaskType, WorkflowName};
use downbeat::model::labels::Labels;
use downbeat::model::payload::Field;
use downbeat::model::record;
use downbeat::model::run::{RunState, RunStatus};
use downbeat::model::time::{Span, Timestamp};
use downbeat::store::redis::{Options as StoreOptions, RedisStore};
use downbeat::store::{Batch, Store as _, StoreError, Verdict};
use futures::StreamExt as _;
use redis::{Options as ServerOptions, RedisServer};
use std::sync::Arc;
use std::time::Duration;

/// Nothing that is waited for takes longer, unless it is asked for at full size.
const PATIENCE: Duration = Duration::from_mins(1);

async fn open(server: &RedisServer) -> Arc<RedisStore> {
    RedisStore::open(&server.url(), StoreOptions::default()).await.unwrap()
}

/// Waits for something that Redis can be asked for.
async fn until(patience: Duration, what: &str, right: impl Fn() -> bool) {
    let look = async {
        let mut pause = tokio::time::interval(Duration::from_millis(50));
        while !right() {
            pause.tick().await;
        }
    };
    tokio::time::timeout(patience, look).await.unwrap_or_else(|_| panic!("{what}: it takes too long"));
}

fn number(server: &RedisServer, command: &str) -> u64 {
    let answer = server.command(command);
    answer.trim_start_matches(':').parse().unwrap_or_else(|_| panic!("{command}: {answer}"))
}

fn sum(server: &RedisServer, command: &str, key: &str) -> u64 {
    (0..8).map(|p| number(server, &format!("{command} db:{{{p}}}:{key}"))).sum()
}

fn used_memory(server: &RedisServer) -> u64 {
    of_memory(server, "used_memory:")
}

fn of_memory(server: &RedisServer, name: &str) -> u64 {
    let info = server.info("memory");
    info.lines().find_map(|l| l.strip_prefix(name)).unwrap().trim().parse().unwrap()
}

/// Memory without the buffers of connections: they keep for a while what the largest batch took.
fn memory_at_rest(server: &RedisServer) -> u64 {
    used_memory(server).saturating_sub(of_memory(server, "mem_clients_normal:"))
}

/// A run that ended an hour ago and may go since.
fn ended(n: usize, payload: &Bytes) -> RunWrite {
    let ended = Timestamp::from_millis(1_700_000_000_000 + i64::try_from(n).unwrap());
    let start = Start {
        id: RunId::new(&format!("ended-{n}")).unwrap(),
        workflow: WorkflowName::new("chain").unwrap(),
        version: 1,
        digest: [1; 16],
        input: None,
        tags: std::collections::BTreeMap::new(),
        priority: None,
        retention: None,
        start_at: None,
        origin: None,
        not_after: None,
    };
    let state = RunState {
        status: RunStatus::Completed,
        ended_at: Some(ended),
        ..RunState::begun(&start, ended, Span::secs(1))
    };
    let mut bytes = Prefix::new(1, Nonce([3; 16])).0.to_vec();
    record::encode_into(&state, &mut bytes);
    RunWrite {
        run: start.id,
        expect: Expect::Absent,
        write: Write::Put(bytes.into()),
        payloads: vec![(Field::new("i"), payload.clone()), (Field::new("o"), payload.clone())],
        queue: Vec::new(),
        wake: WakeOp::Keep,
        index: Some(ended),
        retain_until: Some(state.kept_until()),
        event: None,
        of: None,
    }
}

/// Gives a store finished runs.
async fn fill(store: &RedisStore, runs: usize, payload: usize) {
    let payload = Bytes::from(format!("\"{}\"", "x".repeat(payload)));
    let all: Vec<_> = (0..runs).collect();
    for (n, some) in all.chunks(100).enumerate() {
        let writes = some.iter().map(|n| ended(*n, &payload));
        let writes = writes.map(|w| (Partition::of(w.run.as_str(), 8), w)).collect();
        let batch = Batch { lane: Nonce([9; 16]), sequence: n as u64 + 1, writes };
        let committed = store.commit(&batch).await.unwrap();
        assert!(committed.verdicts.iter().all(|v| *v == Verdict::Applied));
    }
}

async fn register(app: &App, text: &str) {
    app.register(None, text.as_bytes(), Format::Yaml, false).await.unwrap();
}

const CHAIN: &str = "name: chain\ntasks: { a: { type: work } }\n";

fn start(workflow: &str, id: &str) -> StartRequest {
    StartRequest {
        workflow: WorkflowName::new(workflow).unwrap(),
        version: None,
        id: Some(RunId::new(id).unwrap()),
        input: Bytes::from(format!("{{\"text\":\"{}\"}}", "y".repeat(100))),
        start_at: None,
        tags: std::collections::BTreeMap::new(),
        priority: None,
        reject_existing: false,
        wait: None,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twenty_thousand_runs_leave_in_bounded_steps() {
    let server = RedisServer::start(ServerOptions::default());
    let store = open(&server).await;
    let app = App::launch(Arc::<RedisStore>::clone(&store), Options::default()).await.unwrap();
    register(&app, CHAIN).await;
    app.stop().await;
    fill(&store, 20_000, 100).await;
    assert!(number(&server, "DBSIZE") > 40_000);
    // The largest step that retention asks for, by itself: the shortest of some is what it takes without waiting for its
    // turn on a busy machine.
    let all: Vec<_> = (0..8).map(Partition).collect();
    let (mut shortest, mut full) = (PATIENCE, 0);
    let begun = tokio::time::Instant::now();
    while full < 20 {
        let began = tokio::time::Instant::now();
        let ticked = store.tick(&all, 256).await.unwrap();
        // It is looked at every five seconds, and at once while there is more.
        if ticked.iter().all(|t| t.expired.len() == 256) {
            shortest = shortest.min(began.elapsed());
            full += 1;
        } else {
            assert!(begun.elapsed() < PATIENCE, "retention is not looked at");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
    println!("a tick that tells of 8 x 256 runs takes {shortest:?}");
    assert!(shortest < Duration::from_millis(50), "{shortest:?}");
    server.command("CONFIG SET slowlog-log-slower-than 1000 slowlog-max-len 10000");
    server.command("SLOWLOG RESET");

    let app = App::launch(Arc::<RedisStore>::clone(&store), Options::default()).await.unwrap();
    until(PATIENCE, "they go", || sum(&server, "ZCARD", "index") == 0).await;
    assert_eq!(sum(&server, "ZCARD", "keep"), 0);
    // A process that waits for its turn on a busy machine looks slow now and then; work without a bound is, always, or by
    // far. So most of the steps that take long at all are to be short, and none very long.
    let mut took: Vec<u64> = server
        .lines("SLOWLOG GET -1")
        .iter()
        .filter_map(|line| line.strip_prefix(':')?.parse().ok())
        .collect::<Vec<u64>>()
        .chunks_exact(3)
        .map(|entry| entry[2])
        .collect();
    took.sort_unstable();
    let over = took.iter().filter(|us| **us > 50_000).count();
    let at = |share: usize| took.get(took.len() * share / 100).copied().unwrap_or(0);
    let (median, longest) = (at(50), took.last().copied().unwrap_or(0));
    println!(
        "{} commands took more than 1 ms, {over} more than 50 ms; median {median} µs, 95 % {} µs, longest {longest} µs",
        took.len(),
        at(95)
    );
    assert!(median < 20_000 && over <= 2 + took.len() / 20 && longest < 1_000_000, "{took:?}");
    // Meta, two of the workflow and its documents, eight clocks, three lanes at most.
    assert!(number(&server, "DBSIZE") <= 1 + 3 + 8 + 3, "{}", server.command("DBSIZE"));
    assert_eq!(store.orphans(100).await.unwrap(), []);
    app.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn runs_leave_a_full_redis_and_make_room() {
    let server = RedisServer::start(ServerOptions::default());
    let store = open(&server).await;
    let app = App::launch(Arc::<RedisStore>::clone(&store), Options::default()).await.unwrap();
    register(&app, CHAIN).await;
    register(&app, "name: naps\ntasks: { a: { wait: { for: 1ms } } }\n").await;
    // These want to go on, and cannot: they must not stand in the way of those that leave.
    let naps: Vec<_> = (0..200).map(|n| format!("nap-{n}")).collect();
    let soon = store.tick(&[Partition(0)], 0).await.unwrap()[0].now.plus(Span::secs(3));
    for id in &naps {
        app.start(StartRequest { start_at: Some(StartAt::At(soon)), ..start("naps", id) }).await.unwrap();
    }
    app.stop().await;
    fill(&store, 3_000, 2_000).await;
    let before = used_memory(&server);
    server.command("CONFIG SET maxmemory 1");
    assert!(matches!(store.check().await, Err(StoreError::Full(_))));

    let app = App::launch(Arc::<RedisStore>::clone(&store), Options::default()).await.unwrap();
    let refused = app.start(start("chain", "no-room")).await.unwrap_err();
    assert_eq!(refused.code, downbeat::model::error::ErrorCode::StoreUnavailable);
    assert!(app.ready().await.is_err());
    until(PATIENCE, "they go", || sum(&server, "ZCARD", "keep") == 0).await;
    let after = used_memory(&server);
    assert!(after + 3_000 * 4_000 < before, "{before} bytes became {after}");

    server.command(&format!("CONFIG SET maxmemory {}", after + (8 << 20)));
    until(PATIENCE, "there is room", || server.command("SET room 1") == "+OK").await;
    let run = RunId::new("room-again").unwrap();
    app.start(start("naps", run.as_str())).await.unwrap();
    let ended = app.run(&run, Some(Span::secs(20))).await.unwrap();
    assert_eq!(ended.status, RunStatus::Completed);
    for id in &naps {
        let ended = app.run(&RunId::new(id).unwrap(), Some(Span::secs(20))).await.unwrap();
        assert_eq!(ended.status, RunStatus::Completed);
    }
    app.stop().await;
}

/// A worker that answers every task with its own input.
async fn echo(app: App) {
    let hello = Hello {
        label: "echo".into(),
        subscriptions: vec![Subscription {
            task_type: TaskType::new("work").unwrap(),
            credit: 200,
            labels: Labels::NONE,
        }],
        ..Hello::default()
    };
    let mut stream = app.connect(hello).await.unwrap();
    while let Some(message) = stream.next().await {
        match message {
            ToWorker::Assign(tasks) => {
                let done = |t: downbeat::dispatch::message::Assignment| TaskResult {
                    token: t.token,
                    outcome: TaskOutcome::Completed(t.input),
                };
                stream.receive(FromWorker::Results(tasks.into_iter().map(done).collect())).await.unwrap();
            }
            ToWorker::Ping => stream.receive(FromWorker::Pong).await.unwrap(),
            _ => {}
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn growth_is_zero() {
    let runs: usize = std::env::var("DOWNBEAT_RUNS").map_or(2_000, |n| n.parse().unwrap());
    let retention = std::env::var("DOWNBEAT_RETENTION").unwrap_or("1s".into());
    let patience = PATIENCE * (1 + u32::try_from(runs / 2_000).unwrap());
    let server = RedisServer::start(ServerOptions::default());
    let store = open(&server).await;
    let options = Options { events_kept: Span::secs(1), trim_every: Span::secs(1), ..Options::default() };
    let app = App::launch(Arc::<RedisStore>::clone(&store), options).await.unwrap();
    register(
        &app,
        &format!(
            "name: chain\nretention: {retention}\ntasks:\n  a: {{ type: work, input: '${{{{ input }}}}' }}\n  \
             b: {{ needs: [a], type: work, input: '${{{{ tasks.a.output }}}}' }}\n  c: {{ needs: [b], type: work }}\n  \
             d: {{ needs: [c], type: work }}\n  e: {{ needs: [d], type: work }}\noutput: '${{{{ tasks.a.output }}}}'\n"
        ),
    )
    .await;
    let working = tokio::spawn(echo(app.clone()));

    let mut measured = Vec::new();
    for round in 0..4 {
        let ids: Vec<_> = (0..runs).map(|n| format!("r{round}-{n}")).collect();
        let starts = ids.iter().map(|id| start("chain", id)).map(|request| app.start(request));
        let started = futures::stream::iter(starts).buffer_unordered(64);
        assert_eq!(started.filter(|s| futures::future::ready(s.is_ok())).count().await, runs);
        // At rest: every run is gone, and so is what was told of it.
        until(patience, "every run goes", || sum(&server, "ZCARD", "index") == 0).await;
        until(patience, "every event goes", || sum(&server, "XLEN", "events") == 0).await;
        // It keeps the arguments of slow commands, and is none of ours.
        server.command("SLOWLOG RESET");
        measured.push((number(&server, "DBSIZE"), memory_at_rest(&server)));
        println!("with connections: {}", used_memory(&server));
    }
    println!("keys and bytes after each round: {measured:?}");
    let (keys, bytes) = measured[0];
    for (now, used) in &measured[1..] {
        assert_eq!(*now, keys, "{measured:?}");
        assert!(*used < bytes + bytes / 20, "{measured:?}");
    }
    assert_eq!(store.orphans(100).await.unwrap(), []);
    working.abort();
    app.stop().await;
}
