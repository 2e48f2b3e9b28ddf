//! What is done to runs over gRPC, by the caller of the SDK.

use crate::support::server::Server;
use bytes::Bytes;
use downbeat::client::{CallError, Caller};
use downbeat::proto::v1;
use downbeat::proto::v1::act_on_run_request::Action;
use downbeat::proto::v1::bulk_item::Outcome;
use downbeat::proto::v1::run_service_client::RunServiceClient;
use downbeat::proto::v1::start_run_request::Begin;
use downbeat::proto::v1::watch_item::Item;
use std::time::Duration;
use tonic_types::StatusExt as _;

const EXACT: &[u8] = br#"{"big":9007199254740993,"f":1.0,"l":[],"z":null}"#;

async fn caller(server: &Server) -> Caller {
    Caller::connect(&server.url()).await.unwrap()
}

fn start(id: &str) -> v1::StartRunRequest {
    v1::StartRunRequest { workflow: "order".into(), id: id.into(), ..Default::default() }
}

fn act(id: &str, action: Action, task: &str) -> v1::ActOnRunRequest {
    v1::ActOnRunRequest { id: id.into(), action: action.into(), task: task.into(), ..Default::default() }
}

/// The code of a refusal.
#[track_caller]
fn code<T: std::fmt::Debug>(answer: Result<T, CallError>) -> String {
    match answer.unwrap_err() {
        CallError::Refused { code, .. } => code,
        CallError::Unreachable(why) => panic!("{why}"),
    }
}

/// The path of the only fault of an invalid request.
#[track_caller]
fn fault<T: std::fmt::Debug>(answer: Result<T, tonic::Status>) -> String {
    let details = answer.unwrap_err().get_error_details();
    assert_eq!(details.error_info().unwrap().reason, "invalid_request");
    details.bad_request().unwrap().field_violations[0].field.clone()
}

#[tokio::test]
async fn a_run_is_paused_signalled_resumed_and_retried() {
    let server = Server::start();
    server.register_echo("order").await;
    let caller = caller(&server).await;
    caller.start(start("r1")).await.unwrap();
    assert_eq!(caller.pause("r1").await.unwrap().status(), v1::RunStatus::Paused);
    let signal = v1::SignalRunRequest {
        id: "r1".into(),
        name: "approved".into(),
        payload: Bytes::from_static(EXACT),
        signal_id: "s-1".into(),
    };
    for _ in 0..2 {
        assert_eq!(caller.signal(signal.clone()).await.unwrap().status(), v1::RunStatus::Paused);
    }
    assert_eq!(caller.resume("r1").await.unwrap().status(), v1::RunStatus::Running);
    assert_eq!(code(caller.retry("r1").await), "run_not_ended");
    let cancel = v1::CancelRunRequest { id: "r1".into(), compensate: true, ..Default::default() };
    let run = caller.cancel(cancel.clone()).await.unwrap();
    assert_eq!((run.status(), run.ending), (v1::RunStatus::Cancelled, None));
    let run = caller.retry("r1").await.unwrap();
    assert_eq!((run.status(), run.r#try), (v1::RunStatus::Running, 2));
    let run = caller.act(v1::ActOnRunRequest {
        output: Some(Bytes::from_static(EXACT)),
        ..act("r1", Action::Complete, "pack")
    });
    let run = run.await.unwrap();
    assert_eq!((run.status(), run.output.as_ref()), (v1::RunStatus::Completed, EXACT));

    for answer in [
        caller.pause("r1").await,
        caller.resume("r1").await,
        caller.cancel(cancel).await,
        caller.signal(v1::SignalRunRequest { signal_id: String::new(), ..signal.clone() }).await,
        caller.act(act("r1", Action::Skip, "pack")).await,
    ] {
        assert_eq!(code(answer), "run_ended");
    }
    assert_eq!(code(caller.retry("r1").await), "nothing_to_retry");
    for answer in [
        caller.pause("nope").await,
        caller.resume("nope").await,
        caller.retry("nope").await,
        caller.cancel(v1::CancelRunRequest { id: "nope".into(), ..Default::default() }).await,
        caller.signal(v1::SignalRunRequest { id: "nope".into(), ..signal }).await,
        caller.act(act("nope", Action::Fail, "pack")).await,
    ] {
        assert_eq!(code(answer), "run_not_found");
    }

    let watch = v1::WatchRequest { run: "r1".into(), ..Default::default() };
    let mut stream = caller.watch(watch).await.unwrap();
    let mut signals = Vec::new();
    while let Some(batch) = stream.message().await.unwrap() {
        for item in batch.items {
            let Some(Item::Event(event)) = item.item else { panic!("{item:?}") };
            if !event.signal.is_empty() {
                signals.push((event.r#type, event.signal, event.output.unwrap()));
            }
        }
    }
    assert_eq!(signals, [("signal.received".into(), "approved".into(), Bytes::from_static(EXACT))]);
    caller.delete("r1").await.unwrap();
    assert_eq!(code(caller.run("r1", Duration::ZERO).await), "run_not_found");
}

#[tokio::test]
async fn tasks_are_acted_on_by_hand() {
    let server = Server::start();
    server.register_echo("order").await;
    let caller = caller(&server).await;
    caller.start(start("r1")).await.unwrap();
    assert_eq!(code(caller.act(act("r1", Action::Skip, "nope")).await), "task_not_found");
    let error = v1::ActionError { code: "lost".into(), message: "by hand".into() };
    let fail = v1::ActOnRunRequest { error: Some(error), ..act("r1", Action::Fail, "pack") };
    let run = caller.act(fail).await.unwrap();
    let error = run.error.unwrap();
    assert_eq!((run.status, error.code.as_str()), (v1::RunStatus::Failed.into(), "lost"));
    let rerun = |input| v1::ActOnRunRequest { input, ..act("r1", Action::Rerun, "pack") };
    let run = caller.act(rerun(Some(Bytes::from_static(EXACT)))).await.unwrap();
    assert_eq!((run.status(), run.r#try), (v1::RunStatus::Running, 2));
    let task = server.claim("order-pack").await;
    assert_eq!(task["input"].to_string().as_bytes(), EXACT);
    assert_eq!(code(caller.act(rerun(None)).await), "run_not_ended");
    assert_eq!(code(caller.act(act("r1", Action::Skip, "pack")).await), "task_not_open");
    let page = caller.tasks(v1::ListTasksRequest { id: "r1".into(), ..Default::default() }).await.unwrap();
    assert_eq!(page.tasks[0].status, "running");
}

#[tokio::test]
async fn a_call_that_does_not_fit_is_refused_with_the_field() {
    let server = Server::start();
    let mut runs = RunServiceClient::new(server.channel().await);
    let bad = |name: &str, payload: &'static str, signal: &str| v1::SignalRunRequest {
        id: "r1".into(),
        name: name.into(),
        payload: payload.into(),
        signal_id: signal.into(),
    };
    assert_eq!(fault(runs.signal(bad("a b", "1", "")).await), "name");
    assert_eq!(fault(runs.signal(bad("", "1", "")).await), "name");
    assert_eq!(fault(runs.signal(bad("a", "{", "")).await), "payload");
    assert_eq!(fault(runs.signal(bad("a", "1", "a b")).await), "signal_id");
    assert_eq!(fault(runs.pause(v1::PauseRunRequest { id: String::new() }).await), "id");
    assert_eq!(fault(runs.resume(v1::ResumeRunRequest { id: "a b".into() }).await), "id");
    assert_eq!(fault(runs.retry(v1::RetryRunRequest { id: "a b".into() }).await), "id");
    assert_eq!(fault(runs.act(act("r1", Action::Unspecified, "a")).await), "action");
    assert_eq!(fault(runs.act(act("r1", Action::Skip, "a b")).await), "task");
    assert_eq!(
        fault(runs.act(v1::ActOnRunRequest { action: 9, ..act("r1", Action::Skip, "a") }).await),
        "action"
    );
    let input = v1::ActOnRunRequest { input: Some(Bytes::new()), ..act("r1", Action::Skip, "a") };
    assert_eq!(fault(runs.act(input).await), "input");
    assert_eq!(fault(runs.bulk_start(v1::BulkStartRequest::default()).await), "items");
    assert_eq!(fault(runs.bulk_cancel(v1::BulkCancelRequest::default()).await), "ids");
    let filter = Some(v1::BulkFilter::default());
    assert_eq!(fault(runs.bulk_retry(v1::BulkRetryRequest { filter, ..Default::default() }).await), "filter");
}

#[tokio::test]
async fn a_start_can_be_told_when_to_begin() {
    let server = Server::start();
    server.register_echo("order").await;
    let caller = caller(&server).await;
    let begin = |begin| v1::StartRunRequest { begin: Some(begin), ..start("") };
    let at = 1_900_000_000_000_000;
    let run = caller.start(begin(Begin::StartAtUs(at))).await.unwrap();
    assert_eq!((run.status(), run.start_at_us, run.started_at_us), (v1::RunStatus::Pending, at, 0));
    let run = caller.start(begin(Begin::StartAfterMs(3_600_000))).await.unwrap();
    assert_eq!(run.status(), v1::RunStatus::Pending);
    let ahead = run.start_at_us - run.created_at_us;
    assert!((ahead - 3_600_000_000).abs() < 10_000_000, "{run:?}");
    for early in [Begin::StartAtUs(i64::MIN), Begin::StartAtUs(0), Begin::StartAfterMs(0)] {
        let run = caller.start(begin(early)).await.unwrap();
        assert_eq!((run.status(), run.start_at_us), (v1::RunStatus::Running, 0));
    }
    let mut runs = RunServiceClient::new(server.channel().await);
    for far in
        [Begin::StartAtUs(i64::MAX), Begin::StartAfterMs(u64::MAX), Begin::StartAfterMs(3_651 * 86_400_000)]
    {
        assert_eq!(fault(runs.start(begin(far)).await), "start_at");
    }
}

#[tokio::test]
async fn many_runs_are_started_cancelled_and_retried() {
    let server = Server::start();
    server.register_echo("order").await;
    let caller = caller(&server).await;
    let items =
        vec![start("r1"), start("a b"), v1::StartRunRequest { wait_ms: 1, ..start("r2") }, start("r2")];
    let told = caller.bulk_start(items).await.unwrap().items;
    let short = |items: &[v1::BulkItem]| -> Vec<(String, String)> {
        let told = |item: &v1::BulkItem| match item.outcome.clone().unwrap() {
            Outcome::Done(done) => format!("{} {}", done.status().as_str_name(), done.created),
            Outcome::Refused(problem) => {
                let paths: Vec<_> = problem.faults.iter().map(|f| f.path.as_str()).collect();
                format!("{} {}", problem.code, paths.join(" "))
            }
        };
        items.iter().map(|item| (item.id.clone(), told(item))).collect()
    };
    let expect = |pairs: &[(&str, &str)]| -> Vec<(String, String)> {
        pairs.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect()
    };
    assert_eq!(
        short(&told),
        expect(&[
            ("r1", "RUNNING true"),
            ("", "invalid_request id"),
            ("", "invalid_request wait_ms"),
            ("r2", "RUNNING true")
        ])
    );
    let ids = vec!["r1".to_owned(), "nope".to_owned()];
    let cancelled = caller.bulk_cancel(v1::BulkCancelRequest { ids, ..Default::default() }).await.unwrap();
    assert_eq!(short(&cancelled.items), expect(&[("r1", "CANCELLED false"), ("nope", "run_not_found ")]));
    let filter = |limit| v1::BulkFilter { workflow: "order".into(), limit, ..Default::default() };
    let rest = v1::BulkCancelRequest { filter: Some(filter(0)), ..Default::default() };
    let cancelled = caller.bulk_cancel(rest).await.unwrap();
    assert_eq!(short(&cancelled.items), expect(&[("r2", "CANCELLED false")]));
    assert_eq!(cancelled.next_cursor, "");
    let first = v1::BulkRetryRequest { filter: Some(filter(1)), ..Default::default() };
    let retried = caller.bulk_retry(first).await.unwrap();
    let next = v1::BulkFilter { cursor: retried.next_cursor, ..filter(1) };
    let second = v1::BulkRetryRequest { filter: Some(next), ..Default::default() };
    let second = caller.bulk_retry(second).await.unwrap();
    // One of each page. Which of two runs that were started together is the newer one is left open.
    let mut both = [short(&retried.items), short(&second.items)].concat();
    both.sort();
    assert_eq!(both, expect(&[("r1", "RUNNING false"), ("r2", "RUNNING false")]));
    let listed = caller.list(v1::ListRunsRequest::default()).await.unwrap();
    assert!(listed.runs.iter().all(|run| run.r#try == 2), "{listed:?}");
}
