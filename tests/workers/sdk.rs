//! The SDK's worker against a scripted server.

use super::script::{PATIENCE, next, server};
use bytes::Bytes;
use downbeat::client::worker::{Task, TaskError, Worker, WorkerBuilder, WorkerError, WorkerHandle};
use downbeat::proto::v1 as pb;
use downbeat::proto::v1::result::Outcome;
use downbeat::proto::v1::server_message::Message as FromServer;
use downbeat::proto::v1::worker_message::Message as ToServer;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::Semaphore;
use tonic::Status;

type Run = tokio::task::JoinHandle<Result<(), WorkerError>>;

fn run(builder: WorkerBuilder) -> (WorkerHandle, Run) {
    let worker = builder.build().unwrap();
    (worker.handle(), tokio::spawn(worker.run()))
}

async fn ended(run: Run) -> Result<(), WorkerError> {
    tokio::time::timeout(PATIENCE, run).await.expect("the worker does not end").unwrap()
}

async fn echo(task: Task) -> Result<Bytes, TaskError> {
    Ok(task.input().clone())
}

fn tokens(results: &[pb::Result]) -> Vec<&str> {
    let mut tokens: Vec<_> = results.iter().map(|r| r.token.as_str()).collect();
    tokens.sort_unstable();
    tokens
}

#[tokio::test]
async fn an_assignment_is_acknowledged_done_and_reported_in_that_order() {
    let (url, mut streams) = server().await;
    let (handle, run) = run(Worker::builder(url).label("w").handle("echo", 4, echo));
    let mut stream = next(&mut streams).await;
    let hello = stream.hello().await;
    assert_eq!((hello.label.as_str(), hello.previous_session.as_str()), ("w", ""));
    assert_eq!((hello.subscriptions[0].r#type.as_str(), hello.subscriptions[0].credit), ("echo", 4));
    stream.welcome("s", &[]).await;
    stream.assign("echo", &["a", "b"]).await;
    assert_eq!(stream.hear().await, ToServer::Ack(pb::Tokens { tokens: vec!["a".into(), "b".into()] }));
    let results = stream.results(2).await;
    assert_eq!(tokens(&results), ["a", "b"]);
    assert_eq!(results[0].outcome, Some(Outcome::Completed(Bytes::from_static(b"\"a\""))));
    stream.accept(["a".to_owned(), "b".to_owned()]).await;
    handle.shutdown(Duration::from_secs(5));
    stream.drained(1).await;
    assert_eq!(ended(run).await, Ok(()));
}

#[tokio::test]
async fn every_type_is_subscribed_to_with_the_labels_of_the_worker() {
    let (url, mut streams) = server().await;
    let builder = Worker::builder(url).labels([("region", "eu")]).handle("a", 1, echo).handle("b", 2, echo);
    let (_handle, _run) = run(builder.labels([("gpu", "true")]));
    let hello = next(&mut streams).await.hello().await;
    let labels = [("gpu", "true"), ("region", "eu")].map(|(k, v)| (k.to_owned(), v.to_owned()));
    let subscribed: Vec<_> = hello.subscriptions.into_iter().map(|s| (s.r#type, s.labels)).collect();
    assert_eq!(subscribed, ["a", "b"].map(|t| (t.to_owned(), labels.clone().into())));
}

#[tokio::test]
async fn failures_and_panics_are_results() {
    let (url, mut streams) = server().await;
    let (_handle, _run) = run(Worker::builder(url)
        .handle("fail", 4, |_| async {
            Err(TaskError::permanent("card_declined", "no").after(Duration::from_millis(1_500)))
        })
        .handle("panic", 4, |_| async { panic!("at once") })
        .handle("panic-later", 4, |_| async {
            tokio::task::yield_now().await;
            panic!("later")
        }));
    let mut stream = next(&mut streams).await;
    stream.hello().await;
    stream.welcome("s", &[]).await;
    for task_type in ["fail", "panic", "panic-later"] {
        stream.assign(task_type, &[task_type]).await;
    }
    let mut results = stream.results(3).await;
    results.sort_by(|a, b| a.token.cmp(&b.token));
    let failures: Vec<_> = results
        .into_iter()
        .map(|r| match r.outcome {
            Some(Outcome::Failed(f)) => f,
            other => panic!("expected a failure, got {other:?}"),
        })
        .collect();
    assert_eq!((failures[0].code.as_str(), failures[0].message.as_str()), ("card_declined", "no"));
    assert_eq!((failures[0].non_retryable, failures[0].retry_after_ms), (true, Some(1_500)));
    assert_eq!(failures[1].message, "the handler panicked: at once");
    assert_eq!((failures[2].code.as_str(), failures[2].non_retryable), ("handler_panicked", false));
}

#[tokio::test]
async fn a_new_stream_resumes_the_session_and_says_unacknowledged_results_again() {
    let (url, mut streams) = server().await;
    let gate = Arc::new(Semaphore::new(0));
    let open = Arc::clone(&gate);
    let (_handle, _run) =
        run(Worker::builder(url).handle("echo", 4, echo).handle("gated", 4, move |task: Task| {
            let gate = Arc::clone(&gate);
            async move {
                gate.acquire().await.expect("open").forget();
                Ok(task.input().clone())
            }
        }));
    let mut stream = next(&mut streams).await;
    stream.hello().await;
    stream.welcome("s-1", &[]).await;
    stream.assign("echo", &["done"]).await;
    stream.assign("gated", &["held", "lost"]).await;
    stream.results(1).await;
    drop(stream);

    let mut stream = next(&mut streams).await;
    let hello = stream.hello().await;
    assert_eq!(hello.previous_session, "s-1");
    let mut held = hello.tokens.clone();
    held.sort_unstable();
    assert_eq!(held, ["done", "held", "lost"]);
    stream.welcome("s-1", &["done", "held"]).await;
    assert_eq!(tokens(&stream.results(1).await), ["done"]);
    stream.accept(["done".to_owned()]).await;
    open.add_permits(2);
    // `lost` is not ours any more: nothing is said about it.
    assert_eq!(tokens(&stream.results(1).await), ["held"]);
    stream.say(FromServer::Ping(pb::Ping {})).await;
    assert!(matches!(stream.hear().await, ToServer::Pong(_)));
}

#[tokio::test]
async fn pings_are_answered_while_a_handler_blocks_its_thread() {
    let (url, mut streams) = server().await;
    let (release, blocked) = std::sync::mpsc::channel::<()>();
    let blocked = Arc::new(parking_lot::Mutex::new(blocked));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build().unwrap();
    let worker = Worker::builder(url)
        .handle("block", 2, move |task: Task| {
            let blocked = Arc::clone(&blocked);
            async move {
                blocked.lock().recv().expect("released");
                Ok(task.input().clone())
            }
        })
        .build()
        .unwrap();
    runtime.spawn(worker.run());
    let mut stream = next(&mut streams).await;
    stream.hello().await;
    stream.welcome("s", &[]).await;
    stream.assign("block", &["a"]).await;
    assert!(matches!(stream.hear().await, ToServer::Ack(_)));
    stream.say(FromServer::Ping(pb::Ping {})).await;
    assert!(matches!(stream.hear().await, ToServer::Pong(_)));
    stream.assign("block", &["b"]).await;
    assert!(matches!(stream.hear().await, ToServer::Ack(_)));
    release.send(()).unwrap();
    release.send(()).unwrap();
    assert_eq!(tokens(&stream.results(2).await), ["a", "b"]);
    runtime.shutdown_background();
}

#[tokio::test]
async fn concurrency_is_never_exceeded_even_by_a_server_that_sends_too_much() {
    let (url, mut streams) = server().await;
    let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let seen = Arc::clone(&most);
    let (_handle, _run) = run(Worker::builder(url).handle("busy", 2, move |task: Task| {
        let (now, most) = (Arc::clone(&now), Arc::clone(&most));
        async move {
            most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            for _ in 0..5 {
                tokio::task::yield_now().await;
            }
            now.fetch_sub(1, Ordering::SeqCst);
            Ok(task.input().clone())
        }
    }));
    let mut stream = next(&mut streams).await;
    stream.hello().await;
    stream.welcome("s", &[]).await;
    stream.assign("busy", &["1", "2", "3", "4", "5", "6", "7"]).await;
    assert_eq!(tokens(&stream.results(7).await), ["1", "2", "3", "4", "5", "6", "7"]);
    assert_eq!(seen.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn a_cancelled_attempt_hears_of_it_and_is_released() {
    let (url, mut streams) = server().await;
    let (_handle, _run) = run(Worker::builder(url).handle("long", 1, |task: Task| async move {
        task.cancelled().await;
        Err(TaskError::new("cancelled", "told to stop"))
    }));
    let mut stream = next(&mut streams).await;
    stream.hello().await;
    stream.welcome("s", &[]).await;
    stream.assign("long", &["runs", "waits"]).await;
    for token in ["waits", "runs"] {
        stream.say(FromServer::Cancel(pb::Tokens { tokens: vec![token.into()] })).await;
        let results = stream.results(1).await;
        assert_eq!(results[0].token, token);
        assert_eq!(results[0].outcome, Some(Outcome::Released(pb::Released {})));
    }
}

#[tokio::test]
async fn shutdown_gives_back_what_waits_and_lets_running_work_finish() {
    let (url, mut streams) = server().await;
    let gate = Arc::new(Semaphore::new(0));
    let open = Arc::clone(&gate);
    let (handle, run) = run(Worker::builder(url).handle("gated", 1, move |task: Task| {
        let gate = Arc::clone(&gate);
        async move {
            gate.acquire().await.expect("open").forget();
            Ok(task.input().clone())
        }
    }));
    let mut stream = next(&mut streams).await;
    stream.hello().await;
    stream.welcome("s", &[]).await;
    stream.assign("gated", &["runs", "waits"]).await;
    assert!(matches!(stream.hear().await, ToServer::Ack(_)));
    handle.shutdown(Duration::from_secs(30));
    stream.drained(1).await;
    let released = stream.results(1).await;
    assert_eq!(released[0].token, "waits");
    assert_eq!(released[0].outcome, Some(Outcome::Released(pb::Released {})));
    stream.assign("gated", &["late"]).await;
    let late = stream.results(1).await;
    assert_eq!(
        (late[0].token.as_str(), &late[0].outcome),
        ("late", &Some(Outcome::Released(pb::Released {})))
    );
    open.add_permits(1);
    let finished = stream.results(1).await;
    assert_eq!(finished[0].outcome, Some(Outcome::Completed(Bytes::from_static(b"\"runs\""))));
    stream.accept(["runs", "waits", "late"].map(str::to_owned)).await;
    assert_eq!(ended(run).await, Ok(()));
}

#[tokio::test]
async fn shutdown_releases_a_handler_that_will_not_stop() {
    let (url, mut streams) = server().await;
    let (handle, run) =
        run(Worker::builder(url)
            .cancel_grace(Duration::from_millis(1))
            .handle("deaf", 1, |_| std::future::pending()));
    let mut stream = next(&mut streams).await;
    stream.hello().await;
    stream.welcome("s", &[]).await;
    stream.assign("deaf", &["a"]).await;
    assert!(matches!(stream.hear().await, ToServer::Ack(_)));
    handle.shutdown(Duration::ZERO);
    stream.drained(1).await;
    let results = stream.results(1).await;
    assert_eq!(results[0].outcome, Some(Outcome::Released(pb::Released {})));
    stream.accept(["a".to_owned()]).await;
    assert_eq!(ended(run).await, Ok(()));
}

#[tokio::test]
async fn a_server_that_goes_away_still_gets_results_until_another_takes_the_session() {
    let (url, mut streams) = server().await;
    let gate = Arc::new(Semaphore::new(0));
    let open = Arc::clone(&gate);
    let (_handle, _run) = run(Worker::builder(url).handle("gated", 4, move |task: Task| {
        let gate = Arc::clone(&gate);
        async move {
            gate.acquire().await.expect("open").forget();
            Ok(task.input().clone())
        }
    }));
    let mut old = next(&mut streams).await;
    old.hello().await;
    old.welcome("s", &[]).await;
    old.assign("gated", &["a", "b"]).await;
    assert!(matches!(old.hear().await, ToServer::Ack(_)));
    old.say(FromServer::GoAway(pb::GoAway { deadline_ms: 10_000 })).await;
    open.add_permits(1);
    let on_old = old.results(1).await;
    old.accept([on_old[0].token.clone()]).await;
    let mut new = next(&mut streams).await;
    assert_eq!(new.hello().await.previous_session, "s");
    let left = if on_old[0].token == "a" { "b" } else { "a" };
    new.welcome("s", &[left]).await;
    open.add_permits(1);
    assert_eq!(tokens(&new.results(1).await), [left]);
}

#[tokio::test]
async fn heartbeats_carry_the_last_progress_and_are_merged() {
    let (url, mut streams) = server().await;
    let (_handle, _run) = run(Worker::builder(url).handle("long", 1, |task: Task| async move {
        for n in 0..50 {
            task.heartbeat(Some(Bytes::from(n.to_string())));
            task.heartbeat(None);
        }
        std::future::pending().await
    }));
    let mut stream = next(&mut streams).await;
    stream.hello().await;
    stream.welcome("s", &[]).await;
    stream.assign("long", &["a"]).await;
    let mut seen = Vec::new();
    while seen.last() != Some(&Bytes::from_static(b"49")) {
        if let ToServer::Heartbeat(beats) = stream.hear().await {
            assert_eq!(beats.heartbeats[0].token, "a");
            seen.extend(beats.heartbeats.into_iter().map(|b| b.progress));
        }
    }
    assert!(seen.len() <= 3, "fifty heartbeats in a row became {} messages", seen.len());
}

#[tokio::test]
async fn a_refusal_ends_the_worker_and_an_absent_server_does_after_its_time() {
    let (url, mut streams) = server().await;
    let (_handle, refused) = run(Worker::builder(url).handle("x", 1, echo));
    let stream = next(&mut streams).await;
    stream.say.send(Err(Status::invalid_argument("type \"x\" is not valid"))).await.unwrap();
    assert_eq!(ended(refused).await, Err(WorkerError::Refused("type \"x\" is not valid".into())));

    // A port that was free a moment ago and that nobody listens on.
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let url = format!("http://{free}");
    let (_handle, absent) = run(Worker::builder(&url).handle("x", 1, echo).connect_within(Duration::ZERO));
    assert!(matches!(ended(absent).await, Err(WorkerError::Unreachable { url: at, .. }) if at == url));
}

#[test]
fn a_worker_that_cannot_work_is_not_built() {
    let refused = |builder: WorkerBuilder| builder.build().expect_err("must be refused");
    for url in ["127.0.0.1:7070", "https://x", "ftp://x", "", "http://"] {
        assert!(
            matches!(refused(Worker::builder(url).handle("x", 1, echo)), WorkerError::Address { .. }),
            "{url}"
        );
    }
    let url = "http://127.0.0.1:7070";
    assert!(matches!(refused(Worker::builder(url)), WorkerError::Handlers(_)));
    assert!(matches!(refused(Worker::builder(url).handle("x", 0, echo)), WorkerError::Handlers(_)));
    let twice = Worker::builder(url).handle("x", 1, echo).handle("x", 1, echo);
    assert_eq!(refused(twice), WorkerError::Handlers("x has two handlers".into()));
}

#[tokio::test]
async fn many_quick_tasks_are_each_done_once_whether_or_not_they_get_a_task_of_their_own() {
    let (url, mut streams) = server().await;
    let calls = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&calls);
    let (_handle, _run) = run(Worker::builder(url).handle("quick", 100, move |task: Task| {
        seen.fetch_add(1, Ordering::SeqCst);
        async move {
            if task.input().ends_with(b"7\"") {
                // Not ready at once, in the middle of those that are.
                tokio::task::yield_now().await;
            }
            Ok(task.input().clone())
        }
    }));
    let mut stream = next(&mut streams).await;
    stream.hello().await;
    stream.welcome("s", &[]).await;
    for round in 0..20 {
        let names: Vec<_> = (0..100).map(|n| format!("{round}-{n}")).collect();
        let names: Vec<_> = names.iter().map(String::as_str).collect();
        stream.assign("quick", &names).await;
        let results = stream.results(100).await;
        let mut expected = names.clone();
        expected.sort_unstable();
        assert_eq!(tokens(&results), expected);
        for result in &results {
            let json = Bytes::from(format!("\"{}\"", result.token));
            assert_eq!(result.outcome, Some(Outcome::Completed(json)));
        }
        stream.accept(names.into_iter().map(str::to_owned)).await;
    }
    assert_eq!(calls.load(Ordering::SeqCst), 2_000);
}
