//! A store that is full, away or does not answer, as callers and workers of the app meet it: starts are refused before
//! anything of them is done, results wait and are kept. And one that has lost its last moments: what a server has told it
//! once is told again. Time goes on only when nothing else does.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use async_trait::async_trait;
use bytes::Bytes;
use downbeat::app::view::{RunFilter, StartRequest, ValueView};
use downbeat::app::{App, AppError, Options, WorkerStream};
use downbeat::dispatch::message::{
    AckStatus, Assignment, FromWorker, Hello, Subscription, TaskOutcome, TaskResult, ToWorker,
};
use downbeat::model::commit::{Expect, RunWrite, Write};
use downbeat::model::document::Format;
use downbeat::model::entropy::SeededEntropy;
use downbeat::model::error::ErrorCode;
use downbeat::model::ids::{Nonce, Partition, Prefix, RunId, TaskType, WorkflowName};
use downbeat::model::labels::Labels;
use downbeat::model::record;
use downbeat::model::run::{Lease, RunStatus, TaskPhase};
use downbeat::model::time::{Clock, Span, Timestamp};
use downbeat::store::kv::memory::{Hooks, MemoryStore, Verb};
use downbeat::store::{Batch, Result as StoreResult, Store as _, StoreError};
use futures::future::join_all;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// How the store takes writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Takes {
    All,
    /// Nothing, and says so.
    Full,
    /// Nothing, and says so: it cannot be reached.
    Away,
    /// It does not answer.
    Silent,
    /// Writes, and nothing can be read.
    Blind,
}

/// Of each call, as the link to Redis has it.
const DEADLINE: Duration = Duration::from_secs(5);

/// What stands in front of the store.
struct Gate(watch::Sender<Takes>);

#[async_trait]
impl Hooks for Gate {
    async fn before(&self, verb: Verb) -> StoreResult<()> {
        let mut takes = self.0.subscribe();
        let now = *takes.borrow_and_update();
        match (now, verb) {
            (Takes::Full, Verb::Commit | Verb::PutSession | Verb::Check) => {
                Err(StoreError::Full("OOM command not allowed".into()))
            }
            (Takes::Blind, Verb::Load | Verb::Payloads | Verb::Workflow) => {
                Err(StoreError::Unavailable { message: "no answer".into(), sent: true })
            }
            (Takes::Away, _) => Err(StoreError::Unavailable { message: "no connection".into(), sent: false }),
            (Takes::Silent, _) => {
                let speaks = tokio::time::timeout(DEADLINE, takes.wait_for(|takes| *takes != Takes::Silent));
                let late = |_| StoreError::Unavailable { message: "no answer".into(), sent: true };
                speaks.await.map(drop).map_err(late)
            }
            _ => Ok(()),
        }
    }
}

#[derive(Debug)]
struct Virtual(Instant);

impl Clock for Virtual {
    fn now(&self) -> Timestamp {
        Timestamp::from_millis(1_780_000_000_000).plus(Span(self.0.elapsed().as_micros() as i64))
    }
}

async fn server(options: Options) -> (App, Arc<Gate>) {
    let gate = Arc::new(Gate(watch::channel(Takes::All).0));
    let store = MemoryStore::new(Arc::new(Virtual(Instant::now())), 1).hooked(Arc::<Gate>::clone(&gate));
    let options =
        Options { compile_inline: true, lanes: 1, entropy: Arc::new(SeededEntropy::new(1)), ..options };
    let app = App::launch(Arc::new(store), options).await.unwrap();
    let text = b"name: one\ntasks:\n  a: { type: work }\n";
    app.register(None, text, Format::Yaml, false).await.unwrap();
    (app, gate)
}

fn id(text: &str) -> RunId {
    RunId::new(text).unwrap()
}

fn request(id: &str) -> StartRequest {
    StartRequest {
        workflow: WorkflowName::new("one").unwrap(),
        version: Some(1),
        id: Some(RunId::new(id).unwrap()),
        input: Bytes::new(),
        start_at: None,
        tags: std::collections::BTreeMap::new(),
        priority: None,
        reject_existing: false,
        wait: None,
    }
}

/// Starts, and says how long the answer took.
async fn start(app: &App, id: &str) -> (Result<bool, AppError>, Duration) {
    let begun = Instant::now();
    let started = app.start_quietly(request(id)).await;
    (started.map(|(_, created)| created), begun.elapsed())
}

/// Starts a run as soon as one is taken; how long that took.
async fn recovered(app: &App, id: &str) -> Duration {
    let begun = Instant::now();
    while start(app, id).await.0.is_err() {
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert!(begun.elapsed() < Duration::from_secs(30), "it does not recover");
    }
    begun.elapsed()
}

async fn worker(app: &App, credit: u32) -> WorkerStream {
    let task_type = TaskType::new("work").unwrap();
    let subscriptions = vec![Subscription { task_type, credit, labels: Labels::NONE }];
    app.connect(Hello { label: "w".into(), subscriptions, ..Hello::default() }).await.unwrap()
}

/// The next that is neither a greeting nor a ping; pings are answered.
async fn hear(stream: &mut WorkerStream) -> ToWorker {
    loop {
        match stream.next().await.expect("the stream stays open") {
            ToWorker::Ping => stream.receive(FromWorker::Pong).await.unwrap(),
            ToWorker::Welcome(_) | ToWorker::CreditAck(_) => {}
            other => return other,
        }
    }
}

async fn assigned(stream: &mut WorkerStream) -> Assignment {
    let ToWorker::Assign(mut work) = hear(stream).await else { panic!("work") };
    stream.receive(FromWorker::Ack(vec![work[0].token.clone()])).await.unwrap();
    work.remove(0)
}

async fn is_there(app: &App, run: &str) -> bool {
    match app.run(&id(run), None).await {
        Ok(_) => true,
        Err(error) => {
            assert_eq!(error.code, ErrorCode::RunNotFound);
            false
        }
    }
}

#[tokio::test(start_paused = true)]
async fn while_the_store_is_silent_starts_are_refused_at_once_and_not_done_later() {
    let (app, gate) = server(Options::default()).await;
    assert_eq!(start(&app, "before").await.0, Ok(true));
    gate.0.send_replace(Takes::Silent);
    let own = app.clone();
    let first = tokio::spawn(async move { start(&own, "first").await });
    tokio::time::sleep(Duration::from_millis(2_100)).await;
    let refused = join_all((0..50).map(|n| {
        let app = app.clone();
        async move {
            let begun = Instant::now();
            // The newest version: the store would have to say which that is.
            let newest = StartRequest { version: None, ..request(&format!("later-{n}")) };
            (app.start_quietly(newest).await, begun.elapsed())
        }
    }))
    .await;
    for (answer, took) in refused {
        let error = answer.unwrap_err();
        assert_eq!((error.code, error.retry_after), (ErrorCode::StoreUnavailable, Some(Span::secs(1))));
        assert!(error.message.contains("this run was not started"), "{}", error.message);
        assert!(took < Duration::from_millis(10), "{took:?}");
    }
    assert!(app.ready().await.is_err());
    // Whether the first was done is not known, and its caller is told so when its time is up.
    let (answer, took) = first.await.unwrap();
    let error = answer.unwrap_err();
    assert_eq!((error.code, error.retry_after), (ErrorCode::OutcomeUnknown, Some(Span::secs(1))));
    assert!(error.message.contains("with the id \"first\""), "{}", error.message);
    assert!(took <= Duration::from_secs(10), "{took:?}");
    gate.0.send_replace(Takes::All);
    let back = recovered(&app, "after").await;
    assert!(back < Duration::from_secs(2), "{back:?}");
    app.ready().await.unwrap();
    for n in 0..50 {
        assert!(!is_there(&app, &format!("later-{n}")).await);
    }
    let measured = app.measured();
    let [strained, crowded, abandoned] = measured.starts_refused;
    assert!(strained >= 50 && crowded == 0 && abandoned == 0, "{:?}", measured.starts_refused);
    assert_eq!((measured.lanes[0].starts, measured.lanes[0].commits), (0, 0));
    assert!(measured.stuck < 1.0, "{}", measured.stuck);
}

#[tokio::test(start_paused = true)]
async fn a_start_whose_caller_has_gone_is_not_done() {
    let (app, gate) = server(Options { commits_in_flight: 1, ..Options::default() }).await;
    assert_eq!(start(&app, "before").await.0, Ok(true));
    gate.0.send_replace(Takes::Silent);
    let own = app.clone();
    let first = tokio::spawn(async move { start(&own, "first").await });
    tokio::time::sleep(Duration::from_millis(100)).await;
    // Behind the first, which is being written: one gives up, one waits.
    let gone = tokio::time::timeout(Duration::from_millis(200), app.start_quietly(request("gone"))).await;
    assert!(gone.is_err());
    let own = app.clone();
    let waits = tokio::spawn(async move { start(&own, "waits").await });
    tokio::time::sleep(Duration::from_millis(100)).await;
    gate.0.send_replace(Takes::All);
    assert_eq!(first.await.unwrap().0, Ok(true));
    assert_eq!(waits.await.unwrap().0, Ok(true));
    assert!(is_there(&app, "waits").await && !is_there(&app, "gone").await);
    assert_eq!(app.measured().starts_refused, [0, 0, 1]);
    // Its id is free.
    assert_eq!(start(&app, "gone").await.0, Ok(true));
}

#[tokio::test(start_paused = true)]
async fn when_the_store_is_back_starts_are_taken_though_everybody_who_waited_has_gone() {
    let (app, gate) = server(Options { commits_in_flight: 1, ..Options::default() }).await;
    assert_eq!(start(&app, "before").await.0, Ok(true));
    gate.0.send_replace(Takes::Away);
    // After some refusals the next is told after a pause: while it lasts, another start waits and its caller gives up.
    for n in 0..8 {
        assert!(start(&app, &format!("refused-{n}")).await.0.is_err());
    }
    let own = app.clone();
    let last = tokio::spawn(async move { start(&own, "last").await });
    tokio::time::sleep(Duration::from_millis(1)).await;
    let gone = tokio::time::timeout(Duration::from_millis(100), app.start_quietly(request("gone"))).await;
    assert!(gone.is_err(), "{gone:?}");
    gate.0.send_replace(Takes::All);
    assert_eq!(last.await.unwrap().0.unwrap_err().code, ErrorCode::StoreUnavailable);
    // Nothing comes to this lane meanwhile, not even a look at the run.
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(start(&app, "after").await.0, Ok(true));
    assert_eq!(app.measured().starts_refused, [0, 0, 1]);
    assert!(!is_there(&app, "gone").await);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_takes_writes_again_is_found_out_though_what_waits_cannot_be_read() {
    let (app, gate) = server(Options::default()).await;
    assert_eq!(start(&app, "before").await.0, Ok(true));
    gate.0.send_replace(Takes::Blind);
    let own = app.clone();
    // Of a run that is not at hand, and so has to be read.
    let waits = tokio::spawn(async move { own.cancel(&id("other"), false, false).await });
    tokio::time::sleep(Duration::from_millis(100)).await;
    gate.0.send_replace(Takes::Away);
    assert!(start(&app, "refused").await.0.is_err());
    gate.0.send_replace(Takes::Blind);
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert_eq!(app.measured().lanes[0].letters, 1, "it waits");
    assert_eq!(start(&app, "after").await.0, Ok(true));
    gate.0.send_replace(Takes::All);
    assert_eq!(waits.await.unwrap().unwrap_err().code, ErrorCode::RunNotFound);
}

#[tokio::test(start_paused = true)]
async fn a_full_mailbox_refuses_starts_soon_and_results_do_not_wait_behind_them() {
    let (app, gate) = server(Options { mailbox: 4, commits_in_flight: 1, ..Options::default() }).await;
    let mut stream = worker(&app, 1).await;
    assert_eq!(start(&app, "held").await.0, Ok(true));
    let task = assigned(&mut stream).await;
    gate.0.send_replace(Takes::Silent);
    let answers: Vec<_> = (0..60)
        .map(|n| {
            let app = app.clone();
            tokio::spawn(async move { start(&app, &format!("r{n}")).await })
        })
        .collect();
    tokio::time::sleep(Duration::from_millis(500)).await;
    let outcome = TaskOutcome::Completed(Bytes::from_static(b"1"));
    let results = FromWorker::Results(vec![TaskResult { token: task.token.clone(), outcome }]);
    // It is taken in though starts crowd.
    tokio::time::timeout(Duration::from_millis(100), stream.receive(results)).await.unwrap().unwrap();
    tokio::time::sleep(Duration::from_millis(700)).await;
    let waiting = app.measured().lanes[0];
    assert!(waiting.starts <= 4 + 8 && waiting.letters >= 1, "{waiting:?}");
    gate.0.send_replace(Takes::All);
    let (mut made, mut crowded) = (Vec::new(), Vec::new());
    for (n, answer) in join_all(answers).await.into_iter().enumerate() {
        let (answer, took) = answer.unwrap();
        match answer {
            Ok(created) => made.push((n, created)),
            Err(error) => {
                assert_eq!((error.code, error.retry_after), (ErrorCode::Overloaded, Some(Span::secs(1))));
                assert!(took <= Duration::from_millis(1_100), "{took:?}");
                crowded.push(n);
            }
        }
    }
    assert!(made.iter().all(|(_, created)| *created) && made.len() + crowded.len() == 60);
    assert!(crowded.len() >= 40, "{}", crowded.len());
    for n in crowded {
        assert!(!is_there(&app, &format!("r{n}")).await, "r{n}");
    }
    let ToWorker::ResultAcks(acks) = hear(&mut stream).await else { panic!("an acknowledgement") };
    assert_eq!((acks[0].token.as_str(), acks[0].status), (task.token.as_str(), AckStatus::Accepted));
}

#[tokio::test(start_paused = true)]
async fn results_are_acknowledged_when_they_are_kept_and_workers_stay() {
    for takes in [Takes::Full, Takes::Away, Takes::Silent] {
        let (app, gate) = server(Options::default()).await;
        let mut stream = worker(&app, 1).await;
        assert_eq!(start(&app, "r1").await.0, Ok(true));
        let task = assigned(&mut stream).await;
        gate.0.send_replace(takes);
        let outcome = TaskOutcome::Completed(Bytes::from_static(b"7"));
        let results = FromWorker::Results(vec![TaskResult { token: task.token.clone(), outcome }]);
        stream.receive(results).await.unwrap();
        // Longer than a lease; the worker answers its pings and hears nothing else.
        let early = tokio::time::timeout(Duration::from_secs(30), hear(&mut stream)).await;
        assert!(early.is_err(), "{takes:?}: {early:?}");
        if takes == Takes::Full {
            let (answer, took) = start(&app, "r2").await;
            assert_eq!(answer.unwrap_err().code, ErrorCode::StoreUnavailable);
            assert!(took < Duration::from_millis(100), "{took:?}");
        }
        assert!(app.ready().await.is_err(), "{takes:?}");
        gate.0.send_replace(Takes::All);
        let back = Instant::now();
        let ToWorker::ResultAcks(acks) = hear(&mut stream).await else { panic!("{takes:?}") };
        assert_eq!(acks[0].status, AckStatus::Accepted, "{takes:?}");
        assert!(back.elapsed() < Duration::from_secs(5), "{takes:?}: {:?}", back.elapsed());
        // The last look may be as old as this.
        tokio::time::sleep(Duration::from_secs(1)).await;
        app.ready().await.unwrap();
        let run = app.run(&id("r1"), Some(Span::secs(5))).await.unwrap();
        assert_eq!(run.status, RunStatus::Completed, "{takes:?}");
        assert_eq!(run.tasks[0].attempts.len(), 1, "{takes:?}");
        assert!(!is_there(&app, "r2").await);
        assert!(recovered(&app, "r3").await < Duration::from_secs(3), "{takes:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_was_done_is_told_as_done_though_nothing_can_be_read() {
    let (app, gate) = server(Options::default()).await;
    assert_eq!(start(&app, "before").await.0, Ok(true));
    let input = Bytes::from(format!("\"{}\"", "x".repeat(500)));
    let unnamed = || StartRequest { id: None, input: input.clone(), ..request("none") };
    gate.0.send_replace(Takes::Blind);
    let started = app.start(unnamed()).await.unwrap();
    assert!(started.created);
    let run = started.run;
    let url = format!("/v1/runs/{}/values/input", run.id);
    assert_eq!(run.input, ValueView::Ref { url, size: 502 });
    assert_eq!((run.status, run.tasks.len()), (RunStatus::Running, 1));
    let waited = app.start(StartRequest { wait: Some(Span::secs(5)), ..unnamed() }).await.unwrap();
    assert!(waited.created && waited.run.id != run.id);
    let cancelled = app.cancel(&run.id, false, false).await.unwrap();
    assert_eq!(cancelled.status, RunStatus::Cancelled);
    gate.0.send_replace(Takes::All);
    let all = app.runs(RunFilter::default(), 10, None).await.unwrap();
    assert_eq!(all.items.len(), 3);
    assert_eq!(app.run(&run.id, None).await.unwrap().input, ValueView::Json(input));
}

#[tokio::test(start_paused = true)]
async fn a_start_in_doubt_is_repeated_with_the_id_that_it_was_given() {
    let (app, gate) = server(Options::default()).await;
    assert_eq!(start(&app, "before").await.0, Ok(true));
    gate.0.send_replace(Takes::Silent);
    let unnamed = StartRequest { id: None, input: Bytes::from_static(b"{\"n\": 1.0}"), ..request("none") };
    let error = app.start(unnamed.clone()).await.unwrap_err();
    assert_eq!(error.code, ErrorCode::OutcomeUnknown);
    let given = error.message.split('"').nth(1).unwrap();
    gate.0.send_replace(Takes::All);
    recovered(&app, "after").await;
    let again = app.start(StartRequest { id: Some(id(given)), ..unnamed }).await.unwrap();
    assert!(!again.created, "the lane had sent it all the time");
    assert_eq!(app.runs(RunFilter::default(), 10, None).await.unwrap().items.len(), 3);
}

/// The lease of the one task of `r1`.
fn lease(store: &MemoryStore) -> Lease {
    let record = store.inspect(|i| i.record(Partition(0), &id("r1"))).unwrap().unwrap();
    let state = record::decode(&record[Prefix::LEN..]).unwrap();
    let TaskPhase::Running { lease, .. } = &state.tasks[0].phase else {
        panic!("{:?}", state.tasks[0].phase)
    };
    lease.clone()
}

/// Gives that task another lease, as a store does that has lost what came last, or is sent it once more.
async fn put_lease(store: &MemoryStore, lease: Lease) {
    let before = store.inspect(|i| i.record(Partition(0), &id("r1"))).unwrap().unwrap();
    let mut state = record::decode(&before[Prefix::LEN..]).unwrap();
    let TaskPhase::Running { lease: there, .. } = &mut state.tasks[0].phase else { panic!("it is leased") };
    *there = lease;
    let prefix = Prefix::of(&before).unwrap();
    let lane = Nonce([prefix.version() as u8; 16]);
    let mut bytes = Prefix::new(prefix.version() + 1, lane).0.to_vec();
    record::encode_into(&state, &mut bytes);
    let write = Write::Put(bytes.into());
    let write = RunWrite { write, ..RunWrite::check(&id("r1"), Expect::Prefix(prefix)) };
    let batch = Batch { lane, sequence: 1, writes: vec![(Partition(0), write)] };
    assert_eq!(store.commit(&batch).await.unwrap().verdicts, [downbeat::store::Verdict::Applied]);
}

/// A server, its store, and a worker that was given the task of `r1` and has said nothing. Sessions live for a minute, so
/// that nothing happens here because one of them goes.
async fn given() -> (App, MemoryStore, WorkerStream, Assignment) {
    let store = MemoryStore::new(Arc::new(Virtual(Instant::now())), 1);
    let options = Options {
        compile_inline: true,
        lanes: 1,
        lease: Span::secs(60),
        ping_every: Span::secs(20),
        entropy: Arc::new(SeededEntropy::new(1)),
        ..Options::default()
    };
    let app = App::launch(Arc::new(store.clone()), options).await.unwrap();
    let text = b"name: one\ntasks:\n  a: { type: work }\n";
    app.register(None, text, Format::Yaml, false).await.unwrap();
    let mut stream = worker(&app, 1).await;
    assert_eq!(start(&app, "r1").await.0, Ok(true));
    let ToWorker::Assign(mut work) = hear(&mut stream).await else { panic!("work") };
    (app, store, stream, work.remove(0))
}

#[tokio::test(start_paused = true)]
async fn an_assignment_without_an_acknowledgement_is_returned_though_its_lease_was_not_there_when_it_was_judged()
 {
    let (_app, store, mut stream, lost) = given().await;
    let granted = lease(&store);
    put_lease(&store, Lease { nonce: Nonce([99; 16]), ..granted.clone() }).await;
    // The ack window passes; the return is refused, as the store knows of no such lease. Then it does again.
    tokio::time::sleep(Duration::from_secs(5)).await;
    put_lease(&store, granted).await;
    let given_again = async {
        loop {
            match hear(&mut stream).await {
                ToWorker::Assign(mut work) => return work.remove(0),
                ToWorker::Cancel(tokens) => assert_eq!(tokens.concat(), lost.token),
                other => panic!("{other:?}"),
            }
        }
    };
    let again = tokio::time::timeout(Duration::from_mins(1), given_again).await.expect("it comes again");
    assert_eq!(again.attempt, lost.attempt);
    assert_ne!(again.token, lost.token);
}

#[tokio::test(start_paused = true)]
async fn an_acknowledgement_that_the_store_has_lost_is_kept_again() {
    let (app, store, mut stream, work) = given().await;
    stream.receive(FromWorker::Ack(vec![work.token.clone()])).await.unwrap();
    tokio::time::sleep(Duration::from_secs(3)).await;
    let kept = lease(&store);
    assert!(kept.acked);
    put_lease(&store, Lease { acked: false, ..kept }).await;
    // Only pings are heard, longer than an assignment without an acknowledgement would live.
    let heard = tokio::time::timeout(Duration::from_mins(6), hear(&mut stream)).await;
    assert!(heard.is_err(), "{heard:?}");
    assert!(lease(&store).acked);
    let outcome = TaskOutcome::Completed(Bytes::from_static(b"1"));
    let results = FromWorker::Results(vec![TaskResult { token: work.token, outcome }]);
    stream.receive(results).await.unwrap();
    assert_eq!(app.run(&id("r1"), Some(Span::secs(5))).await.unwrap().status, RunStatus::Completed);
}

/// Counts how often it is looked at.
#[derive(Default)]
struct Looks(std::sync::atomic::AtomicUsize);

#[async_trait]
impl Hooks for Looks {
    async fn before(&self, verb: Verb) -> StoreResult<()> {
        if verb == Verb::Check {
            self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn however_often_it_is_asked_for_readiness_the_store_is_looked_at_once_a_second() {
    let looks = Arc::new(Looks::default());
    let store = MemoryStore::new(Arc::new(Virtual(Instant::now())), 1).hooked(Arc::<Looks>::clone(&looks));
    let app = App::launch(Arc::new(store), Options::default()).await.unwrap();
    for second in 1..=3 {
        for ready in join_all((0..100).map(|_| app.ready())).await {
            ready.unwrap();
        }
        app.ready().await.unwrap();
        assert_eq!(looks.0.load(std::sync::atomic::Ordering::Relaxed), second);
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}
