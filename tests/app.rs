//! The app on the store in memory, without doors: one run from start to end through real lanes.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use async_trait::async_trait;
use bytes::Bytes;
use downbeat::app::view::{EventItem, RunFilter, StartRequest, ValueView};
use downbeat::app::{App, Options, RunFeed};
use downbeat::dispatch::message::{FromWorker, Hello, Subscription, TaskOutcome, TaskResult, ToWorker};
use downbeat::model::document::Format;
use downbeat::model::entropy::SeededEntropy;
use downbeat::model::error::ErrorCode;
use downbeat::model::ids::{Nonce, Partition, RunId, TaskType, WorkflowName};
use downbeat::model::labels::Labels;
use downbeat::model::run::RunStatus;
use downbeat::model::time::{Clock, Span, SystemClock, Timestamp};
use downbeat::store::kv::memory::{Hooks, MemoryStore, Verb};
use downbeat::store::{Batch, Result as StoreResult, Store as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::time::Instant;

const CHAIN: &str = r#"
name: chain
tasks:
  a: { type: work, input: { n: "${{ input.n }}" } }
  b: { needs: [a], type: work, input: { n: "${{ tasks.a.output.n }}" } }
  c: { needs: [b], type: work, input: { n: "${{ tasks.b.output.n }}" } }
output: { last: "${{ tasks.c.output.n }}" }
"#;

async fn app() -> App {
    let store = Arc::new(MemoryStore::new(Arc::new(SystemClock), 4));
    App::launch(store, Options::default()).await.unwrap()
}

fn start(id: &str) -> StartRequest {
    StartRequest {
        workflow: WorkflowName::new("chain").unwrap(),
        version: None,
        id: Some(RunId::new(id).unwrap()),
        input: Bytes::from_static(br#"{"n": 9007199254740993}"#),
        start_at: None,
        tags: std::collections::BTreeMap::new(),
        priority: None,
        reject_existing: false,
        wait: None,
    }
}

#[tokio::test]
async fn a_run_is_of_a_version_that_the_store_holds_whatever_a_server_remembers() {
    let store = Arc::new(MemoryStore::new(Arc::new(SystemClock), 4));
    let one = App::launch(Arc::clone(&store) as Arc<_>, Options::default()).await.unwrap();
    let two = App::launch(Arc::clone(&store) as Arc<_>, Options::default()).await.unwrap();
    let register = async |app: &App, last: &str| {
        let text = CHAIN.replace("last:", last);
        app.register(None, text.as_bytes(), Format::Yaml, false).await.unwrap().workflow.version
    };
    assert_eq!(register(&one, "last:").await, 1);
    let before = store.snapshot();
    assert_eq!(register(&one, "lost:").await, 2);
    let of_second = |id: &str| StartRequest { version: Some(2), ..start(id) };
    one.start(of_second("kept")).await.unwrap();
    let kept = RunId::new("kept").unwrap();
    let at = (Partition::of("kept", 4), kept.clone());
    let record = store.load(std::slice::from_ref(&at)).await.unwrap().remove(0).unwrap();

    store.restore(&before);
    let error = one.start(of_second("a")).await.unwrap_err();
    assert_eq!(error.code, ErrorCode::WorkflowNotFound, "{error}");
    assert!(one.run(&RunId::new("a").unwrap(), None).await.is_err(), "nothing of it is there");
    assert_eq!(one.start(start("b")).await.unwrap().run.version, 1, "the newest that there is");
    // The number is given to another document: a new run is of that one, also where the lost one was known.
    assert_eq!(register(&two, "other:").await, 2);
    one.start(of_second("c")).await.unwrap();
    let worker = tokio::spawn(echo(one.clone(), 4));
    let c = RunId::new("c").unwrap();
    let ended = one.run(&c, Some(Span::secs(30))).await.unwrap();
    let ValueView::Json(output) = ended.output else { panic!() };
    assert_eq!(&output[..], br#"{"other":9007199254740993}"#);

    // A run of the document that was lost, as a part of a cluster may keep it: told, and never mistaken.
    let write = downbeat::model::commit::RunWrite {
        index: Some(Timestamp(1)),
        ..downbeat::engine::standing::bare(&kept, record)
    };
    let batch = Batch { lane: Nonce([7; 16]), sequence: 1, writes: vec![(at.0, write)] };
    store.commit(&batch).await.unwrap();
    let error = two.cancel(&kept, false, false).await.unwrap_err();
    assert_eq!(error.code, ErrorCode::WorkflowNotFound, "{error}");
    assert!(error.message.contains("\"kept\" is of version 2"), "{error}");
    let listed = two.runs(RunFilter::default(), 10, None).await.unwrap().items;
    assert_eq!(listed.len(), 3, "the others, and it too: {listed:?}");
    // As soon as its document is back, it goes on.
    store.restore(&before);
    store.commit(&Batch { sequence: 2, ..batch }).await.unwrap();
    assert_eq!(register(&two, "lost:").await, 2);
    let cancelled = one.cancel(&kept, false, true).await.unwrap();
    assert_eq!(cancelled.status, RunStatus::Cancelled);
    worker.abort();
}

/// A worker that answers every task with its own input.
async fn echo(app: App, credit: u32) {
    let work = TaskType::new("work").unwrap();
    let hello = Hello {
        label: "echo".into(),
        subscriptions: vec![Subscription { task_type: work, credit, labels: Labels::NONE }],
        ..Hello::default()
    };
    let mut stream = app.connect(hello).await.unwrap();
    while let Some(message) = stream.next().await {
        match message {
            ToWorker::Assign(tasks) => {
                assert!(tasks.len() <= credit as usize);
                stream
                    .receive(FromWorker::Ack(tasks.iter().map(|t| t.token.clone()).collect()))
                    .await
                    .unwrap();
                let results = tasks
                    .into_iter()
                    .map(|t| TaskResult { token: t.token, outcome: TaskOutcome::Completed(t.input) })
                    .collect();
                stream.receive(FromWorker::Results(results)).await.unwrap();
            }
            ToWorker::Ping => stream.receive(FromWorker::Pong).await.unwrap(),
            _ => {}
        }
    }
}

#[tokio::test]
async fn a_chain_runs_to_its_end_and_tells_its_events_in_order() {
    let app = app().await;
    let registered = app.register(None, CHAIN.as_bytes(), Format::Yaml, false).await.unwrap();
    assert_eq!((registered.workflow.version, registered.created), (1, true));
    let worker = tokio::spawn(echo(app.clone(), 1));
    let started = app.start(start("r1")).await.unwrap();
    assert!(started.created);
    let again = app.start(start("r1")).await.unwrap();
    assert!(!again.created);

    let run = app.run(&started.run.id, Some(Span::secs(10))).await.unwrap();
    assert_eq!(run.status, RunStatus::Completed);
    assert_eq!(run.output, ValueView::Json(Bytes::from_static(br#"{"last":9007199254740993}"#)));

    let RunFeed::Feed(mut feed) = app.run_events(&started.run.id, None).await.unwrap() else {
        panic!("a feed without a cursor begins at the start");
    };
    let mut told = Vec::new();
    let mut cursors = Vec::new();
    while let Some(item) = feed.next().await {
        let EventItem::Event(event) = item else { panic!("no reset without a cursor") };
        told.push(match &event.task {
            Some(task) => format!("{task} {}", event.kind.name()),
            None => event.kind.name().to_owned(),
        });
        cursors.push(event.cursor);
    }
    assert_eq!(
        told,
        [
            "run.started",
            "a task.queued",
            "a task.started",
            "a task.completed",
            "b task.queued",
            "b task.started",
            "b task.completed",
            "c task.queued",
            "c task.started",
            "c task.completed",
            "run.completed",
        ]
    );
    assert!(matches!(
        app.run_events(&started.run.id, cursors.last().map(String::as_str)).await.unwrap(),
        RunFeed::AtEnd
    ));
    app.drain(Span::secs(1));
    app.stop().await;
    worker.await.unwrap();
}

#[tokio::test]
async fn a_worker_with_much_credit_gets_what_is_oldest_of_all_it_can_do() {
    let app = app().await;
    for (name, labels) in [("plain", "{}"), ("rare", "{ gpu: 'true' }")] {
        let text = format!("name: {name}\ntasks: {{ t: {{ type: work, labels: {labels} }} }}\n");
        app.register(None, text.as_bytes(), Format::Yaml, false).await.unwrap();
    }
    for n in 0..40 {
        // A minute older than the others by its priority.
        for (name, priority) in [("plain", 0), ("rare", 1)] {
            let workflow = WorkflowName::new(name).unwrap();
            let request =
                StartRequest { workflow, priority: Some(priority), ..start(&format!("{name}-{n}")) };
            app.start(request).await.unwrap();
        }
    }
    let labels = Labels::new([("gpu", "true"), ("zone", "1")]).unwrap();
    let work = TaskType::new("work").unwrap();
    let hello = Hello {
        label: "rare".into(),
        subscriptions: vec![Subscription { task_type: work, credit: 40, labels }],
        ..Hello::default()
    };
    let mut stream = app.connect(hello).await.unwrap();
    let mut given = Vec::new();
    while given.len() < 40 {
        match tokio::time::timeout(std::time::Duration::from_secs(20), stream.next()).await.unwrap().unwrap()
        {
            ToWorker::Assign(tasks) => given.extend(tasks.into_iter().map(|t| t.run.to_string())),
            ToWorker::Ping => stream.receive(FromWorker::Pong).await.unwrap(),
            _ => {}
        }
    }
    let plain: Vec<_> = given.iter().filter(|run| !run.starts_with("rare-")).collect();
    assert!(plain.is_empty(), "{plain:?}");
    drop(stream);
    app.drain(Span::secs(1));
    app.stop().await;
}

/// The store's wall clock goes as the paused time of a test does.
#[derive(Debug)]
struct Virtual(Instant);

impl Clock for Virtual {
    fn now(&self) -> Timestamp {
        Timestamp::from_millis(1_780_000_000_000).plus(Span(self.0.elapsed().as_micros() as i64))
    }
}

/// What servers ask of the store while nothing happens.
#[derive(Debug, Default)]
struct Asked {
    ticks: AtomicU64,
    renewals: AtomicU64,
    rest: AtomicU64,
}

#[async_trait]
impl Hooks for Asked {
    async fn before(&self, verb: Verb) -> StoreResult<()> {
        let counter = match verb {
            Verb::Tick => &self.ticks,
            Verb::RenewSessions => &self.renewals,
            _ => &self.rest,
        };
        counter.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

impl Asked {
    fn take(&self) -> [u64; 3] {
        [&self.ticks, &self.renewals, &self.rest].map(|c| c.swap(0, Ordering::Relaxed))
    }
}

/// Two servers on one store, with what they ask of it, and time that goes on only when nothing else does.
async fn pair() -> (App, App, MemoryStore, Arc<Asked>) {
    let asked = Arc::new(Asked::default());
    let store = MemoryStore::new(Arc::new(Virtual(Instant::now())), 8);
    let options = |seed| Options {
        compile_inline: true,
        lanes: 1,
        entropy: Arc::new(SeededEntropy::new(seed)),
        ..Options::default()
    };
    let hooked = Arc::new(store.hooked(Arc::<Asked>::clone(&asked)));
    let a = App::launch(Arc::<MemoryStore>::clone(&hooked) as _, options(1)).await.unwrap();
    let b = App::launch(hooked, options(2)).await.unwrap();
    (a, b, store, asked)
}

async fn pass(seconds: u64) {
    tokio::time::sleep(Duration::from_secs(seconds)).await;
}

#[tokio::test(start_paused = true)]
async fn a_quiet_server_looks_seldom_and_lease_clocks_go_on() {
    let (a, b, store, asked) = pair().await;
    let work = TaskType::new("work").unwrap();
    let mut workers = Vec::new();
    for _ in 0..100 {
        let subscriptions = vec![Subscription { task_type: work.clone(), credit: 5, labels: Labels::NONE }];
        let hello = Hello { label: "idle".into(), subscriptions, ..Hello::default() };
        let mut stream = a.connect(hello).await.unwrap();
        workers.push(tokio::spawn(async move {
            let mut pings = 0;
            while let Some(message) = stream.next().await {
                if message == ToWorker::Ping {
                    pings += 1;
                    stream.receive(FromWorker::Pong).await.unwrap();
                }
            }
            pings
        }));
    }
    pass(5).await;
    asked.take();
    let all: Vec<_> = (0..8).map(Partition).collect();
    let clocks = async || store.tick(&all, 0).await.unwrap().into_iter().map(|t| t.lease_now);
    let before: Vec<_> = clocks().await.collect();
    pass(60).await;
    let [ticks, renewals, rest] = asked.take();
    assert!((2 * 60..=2 * 130).contains(&ticks), "{ticks} ticks of two servers in a minute");
    assert!((20..=60).contains(&renewals), "{renewals} renewals of a hundred sessions in a minute");
    assert_eq!(rest, 0);
    for (before, now) in before.into_iter().zip(clocks().await) {
        assert_eq!(now.since(before), Span::secs(60), "no step is longer than what the clock takes");
    }
    b.stop().await;
    a.stop().await;
    for worker in workers {
        let pings = worker.await.unwrap();
        assert!((20..=23).contains(&pings), "{pings} pings in 65 s");
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_dead_server_left_is_looked_at_when_it_is_due() {
    let (a, b, _, asked) = pair().await;
    let text = "name: chain\ntasks:\n  pause: { wait: { for: 20s } }\n";
    a.register(None, text.as_bytes(), Format::Yaml, false).await.unwrap();
    let begun = Instant::now();
    let run = a.start(start("r1")).await.unwrap().run.id;
    a.kill();
    pass(15).await;
    asked.take();
    let ended = b.run(&run, Some(Span::secs(30))).await.unwrap();
    assert_eq!(ended.status, RunStatus::Completed);
    let late = begun.elapsed().checked_sub(Duration::from_secs(20)).unwrap();
    assert!(late < Duration::from_millis(100), "{late:?} late");
    assert!(asked.take()[0] <= 14, "it did not look often for that");
    b.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_task_that_another_server_queues_reaches_an_idle_worker_at_once() {
    let (a, b, _, _) = pair().await;
    a.register(None, CHAIN.as_bytes(), Format::Yaml, false).await.unwrap();
    let worker = tokio::spawn(echo(a.clone(), 1));
    pass(10).await;
    let begun = Instant::now();
    let run = b.start(start("r1")).await.unwrap().run.id;
    let ended = a.run(&run, Some(Span::secs(10))).await.unwrap();
    assert_eq!(ended.status, RunStatus::Completed);
    assert!(begun.elapsed() < Duration::from_millis(50), "{:?}", begun.elapsed());
    a.stop().await;
    b.stop().await;
    worker.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_server_that_has_something_to_do_looks_often() {
    let (a, b, _, asked) = pair().await;
    a.register(None, CHAIN.as_bytes(), Format::Yaml, false).await.unwrap();
    pass(10).await;
    asked.take();
    // Nobody works on these; each start is a commit of one server, and a hint to both if its queue was empty.
    for n in 0..20 {
        a.start(start(&format!("r{n}"))).await.unwrap();
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    let [ticks, ..] = asked.take();
    assert!(
        (10 * 3 + 10..=10 * 6 + 22).contains(&ticks),
        "{ticks} ticks of a busy server and an idle one in 10 s"
    );
    a.stop().await;
    b.stop().await;
}
