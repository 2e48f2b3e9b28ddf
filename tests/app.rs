//! The app on the store in memory, without doors: one run from start to end through real lanes.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use bytes::Bytes;
use downbeat::app::view::{EventItem, StartRequest, ValueView};
use downbeat::app::{App, Options, RunFeed};
use downbeat::dispatch::message::{FromWorker, Hello, Subscription, TaskOutcome, TaskResult, ToWorker};
use downbeat::model::document::Format;
use downbeat::model::ids::{RunId, TaskType, WorkflowName};
use downbeat::model::labels::Labels;
use downbeat::model::run::RunStatus;
use downbeat::model::time::{Span, SystemClock};
use downbeat::store::kv::memory::MemoryStore;
use std::sync::Arc;

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
