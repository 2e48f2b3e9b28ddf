//! `/v1/runs/{id}/…`: pause, resume, signal, retry, cancel and actions by hand.

use crate::support::client::{Frame, Worker};
use crate::support::server::Server;
use downbeat::proto::v1::result::Outcome;
use downbeat::proto::v1::result_ack::Status;
use downbeat::proto::v1::{TaskFailure, server_message::Message};
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// Values that a careless door changes.
const EXACT: &str = r#"{"big":9007199254740993,"f":1.0,"l":[],"o":{},"z":null}"#;

/// Registers `chain`: `b` needs `a`, each tried once; the run's output is that of `b`.
async fn chain(server: &Server) {
    let text = "name: chain\ntasks:\n  a: { type: do-a, input: \"${{ input }}\", retry: { max_attempts: 1 } }\n  \
                b: { type: do-b, needs: [a], input: \"${{ tasks.a.output }}\", retry: { max_attempts: 1 } }\n\
                output: ${{ tasks.b.output }}\n";
    let answer = server.put("/v1/workflows/chain", "application/yaml", text).await;
    assert_eq!(answer.status, 201, "{}", answer.text());
}

async fn complete(server: &Server, task_type: &str, output: &str) {
    let token = server.claim(task_type).await["token"].as_str().unwrap().to_owned();
    let answer =
        server.post(&format!("/v1/tasks/{token}/complete"), format!("{{\"output\":{output}}}")).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
}

async fn fail(server: &Server, task_type: &str, code: &str) {
    let token = server.claim(task_type).await["token"].as_str().unwrap().to_owned();
    let answer = server.post(&format!("/v1/tasks/{token}/fail"), json!({ "code": code }).to_string()).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
}

/// Calls `/v1/runs/{id}/{call}`, which must be done; the run.
async fn done(server: &Server, id: &str, call: &str, body: &str) -> Value {
    let answer = server.post(&format!("/v1/runs/{id}/{call}"), body.to_owned()).await;
    assert_eq!(answer.status, 200, "{call}: {}", answer.text());
    answer.json()
}

async fn ended(server: &Server, id: &str) -> Value {
    server.get(&format!("/v1/runs/{id}?wait=10s")).await.json()
}

async fn events(server: &Server, id: &str) -> Vec<Frame> {
    server.watch(&format!("/v1/runs/{id}/events"), None).await.rest().await
}

fn kinds(frames: &[Frame]) -> Vec<&str> {
    frames.iter().map(|f| f.event.as_str()).collect()
}

#[tokio::test]
async fn a_paused_run_finishes_what_is_in_flight_and_starts_nothing_new() {
    let server = Server::start();
    chain(&server).await;
    let (mut first, _) = Worker::hello(&server, "do-a", 1).await;
    let (mut second, _) = Worker::hello(&server, "do-b", 1).await;
    server.start_run("chain", "r1", EXACT).await;
    let a = first.assignment().await;
    assert_eq!(done(&server, "r1", "pause", "").await["status"], "paused");
    assert_eq!(done(&server, "r1", "pause", "{}").await["status"], "paused", "a repeat is as good");
    let output = Outcome::Completed(EXACT.into());
    assert_eq!(first.settle(&a.token, output).await.status(), Status::Accepted);
    let run = server.get("/v1/runs/r1").await.json();
    assert_eq!((&run["status"], &run["tasks"][0]["status"]), (&json!("paused"), &json!("completed")));
    assert_ne!(run["tasks"][1]["status"], "running");
    assert_eq!(done(&server, "r1", "resume", "").await["status"], "running");
    done(&server, "r1", "resume", "").await;
    let b = second.assignment().await;
    assert_eq!((b.task.as_str(), std::str::from_utf8(&b.input).unwrap()), ("b", EXACT));
    second.settle(&b.token, Outcome::Completed("1.0".into())).await;
    assert_eq!(ended(&server, "r1").await["status"], "completed");
    let frames = events(&server, "r1").await;
    let kinds = kinds(&frames);
    let at = |kind: &str| kinds.iter().position(|k| *k == kind).unwrap();
    assert_eq!(kinds.iter().filter(|k| k.starts_with("run.")).count(), 4, "{kinds:?}");
    let started: Vec<_> = (0..kinds.len()).filter(|n| kinds[*n] == "task.started").collect();
    assert_eq!(started.len(), 2, "{kinds:?}");
    assert!(started[0] < at("run.paused") && at("run.resumed") < started[1], "{kinds:?}");
    assert!(at("run.paused") < at("task.completed") && at("task.completed") < at("run.resumed"), "{kinds:?}");
}

#[tokio::test]
async fn a_retry_repeats_only_what_failed() {
    let server = Server::start();
    chain(&server).await;
    server.start_run("chain", "r1", "1").await;
    complete(&server, "do-a", EXACT).await;
    server.post("/v1/runs/r1/retry", "").await.refused(409, "run_not_ended");
    fail(&server, "do-b", "card_declined").await;
    let run = ended(&server, "r1").await;
    assert_eq!((&run["status"], &run["error"]["code"]), (&json!("failed"), &json!("card_declined")));
    let told = events(&server, "r1").await;
    let last = told.last().unwrap();
    assert_eq!(last.event, "run.failed");
    let run = done(&server, "r1", "retry", "").await;
    assert_eq!((&run["status"], &run["try"], &run["error"]), (&json!("running"), &json!(2), &json!(null)));
    assert_eq!((&run["ended_at"], &run["ending"]), (&json!(null), &json!(null)));
    let b = server.claim("do-b").await;
    assert_eq!((&b["attempt"], b["input"].to_string()), (&json!(2), EXACT.to_owned()));
    let token = b["token"].as_str().unwrap();
    server.post(&format!("/v1/tasks/{token}/complete"), "{\"output\":7}").await;
    let run = ended(&server, "r1").await;
    assert_eq!((&run["status"], &run["output"], &run["try"]), (&json!("completed"), &json!(7), &json!(2)));
    let attempts = |n: usize| run["tasks"][n]["attempts"].as_array().unwrap().len();
    assert_eq!((attempts(0), attempts(1)), (1, 2));
    server.post("/v1/runs/r1/retry", "").await.refused(409, "nothing_to_retry");
    let frames = events(&server, "r1").await;
    assert_eq!(
        kinds(&frames)[7..],
        ["run.failed", "run.retried", "task.queued", "task.started", "task.completed", "run.completed"]
    );
    // Whoever had seen the end of the first try goes on with the second.
    let rest = server.watch("/v1/runs/r1/events", last.id.as_deref()).await.rest().await;
    assert_eq!(kinds(&rest), kinds(&frames)[8..]);
}

#[tokio::test]
async fn a_signal_with_an_id_is_accepted_once_and_none_is_lost() {
    let server = Server::start();
    server.register_echo("order").await;
    server.start_run("order", "r1", "1").await;
    for _ in 0..2 {
        assert_eq!(done(&server, "r1", "signals/approved?id=s-1", EXACT).await["status"], "running");
    }
    let sends = (0..50).map(|n| {
        let server = &server;
        async move { done(server, "r1", &format!("signals/tick?id=t-{n}"), &n.to_string()).await }
    });
    futures::future::join_all(sends).await;
    done(&server, "r1", "signals/tick?id=t-7", "\"another body\"").await;
    done(&server, "r1", "signals/bare", "").await;
    complete(&server, "order-pack", "1").await;
    // A repeat is answered like the first even when the run has ended meanwhile.
    assert_eq!(ended(&server, "r1").await["status"], "completed");
    assert_eq!(done(&server, "r1", "signals/approved?id=s-1", EXACT).await["status"], "completed");
    server.post("/v1/runs/r1/signals/approved?id=s-2", "1").await.refused(409, "run_ended");
    server.post("/v1/runs/r1/signals/approved", "1").await.refused(409, "run_ended");

    let frames = events(&server, "r1").await;
    let signals: Vec<&Frame> = frames.iter().filter(|f| f.event == "signal.received").collect();
    assert_eq!(signals.len(), 52);
    let first = signals[0].json();
    assert_eq!((&first["signal"], &first["type"]), (&json!("approved"), &json!("signal.received")));
    assert!(signals[0].data.ends_with(&format!(",\"signal\":\"approved\",\"output\":{EXACT}}}")));
    let ticks: BTreeSet<u64> = signals[1..51].iter().map(|f| f.json()["output"].as_u64().unwrap()).collect();
    assert_eq!(ticks, (0..50).collect());
    let bare = signals[51].json();
    assert_eq!((&bare["signal"], &bare["output"]), (&json!("bare"), &json!(null)));
}

#[tokio::test]
async fn a_signal_that_does_not_fit_is_refused_with_the_part() {
    let server = Server::start();
    server.register_echo("order").await;
    server.start_run("order", "r1", "1").await;
    server.post("/v1/runs/r1/signals/x", "{").await.invalid("payload");
    server.post("/v1/runs/r1/signals/x", "1 2").await.invalid("payload");
    let deep = format!("{}{}", "[".repeat(129), "]".repeat(129));
    server.post("/v1/runs/r1/signals/x", deep).await.invalid("payload");
    server.post("/v1/runs/r1/signals/a%20b", "1").await.invalid("name");
    server.post("/v1/runs/r1/signals/x?id=a%20b", "1").await.invalid("id");
    server.post("/v1/runs/r1/signals/x?ids=a", "1").await.invalid("ids");
    let sized = |n: usize| format!("\"{}\"", "x".repeat(n - 2));
    server.post("/v1/runs/r1/signals/x", sized((1 << 20) + 1)).await.refused(413, "too_large");
    server.post("/v1/runs/r1/signals/x", sized(3 << 20)).await.refused(413, "too_large");
    done(&server, "r1", "signals/x", &sized(1 << 20)).await;
    server.get("/v1/runs/r1/signals/x").await.refused(405, "method_not_allowed");
}

#[tokio::test]
async fn an_ended_run_and_an_unknown_one_are_refused() {
    let server = Server::start();
    server.register_echo("order").await;
    server.start_run("order", "r1", "1").await;
    let act = |action: &str| format!(r#"{{"action":"{action}","task":"pack"}}"#);
    for (call, body, code) in
        [("retry", String::new(), "run_not_ended"), ("actions", act("rerun"), "run_not_ended")]
    {
        server.post(&format!("/v1/runs/r1/{call}"), body).await.refused(409, code);
    }
    complete(&server, "order-pack", "1").await;
    ended(&server, "r1").await;
    for (call, body, code) in [
        ("cancel", String::new(), "run_ended"),
        ("cancel", r#"{"compensate":true,"force":true}"#.into(), "run_ended"),
        ("pause", String::new(), "run_ended"),
        ("resume", String::new(), "run_ended"),
        ("signals/x", String::new(), "run_ended"),
        ("retry", String::new(), "nothing_to_retry"),
        ("actions", act("skip"), "run_ended"),
        ("actions", act("complete"), "run_ended"),
        ("actions", act("fail"), "run_ended"),
    ] {
        server.post(&format!("/v1/runs/r1/{call}"), body.clone()).await.refused(409, code);
        server.post(&format!("/v1/runs/nope/{call}"), body).await.refused(404, "run_not_found");
    }
    let unknown = act("rerun").replace("pack", "nope");
    server.post("/v1/runs/r1/actions", unknown).await.refused(404, "task_not_found");
    server.post("/v1/runs/nope/actions", act("rerun")).await.refused(404, "run_not_found");
}

#[tokio::test]
async fn a_body_that_does_not_fit_is_refused_with_the_field() {
    let server = Server::start();
    for (call, body, path) in [
        ("cancel", r#"{"compensates":true}"#, "compensates"),
        ("cancel", r#"{"compensate":"yes"}"#, "compensate"),
        ("cancel", "[true]", "body"),
        ("pause", r#"{"for":"1h"}"#, "for"),
        ("resume", "1", "body"),
        ("retry", r#"{"from":"a"}"#, "from"),
        ("actions", "", "action"),
        ("actions", r#"{"action":"stop","task":"a"}"#, "action"),
        ("actions", r#"{"action":"skip"}"#, "task"),
        ("actions", r#"{"action":"skip","task":"a b"}"#, "task"),
        ("actions", r#"{"action":"skip","task":"a[x]"}"#, "task"),
        ("actions", r#"{"action":"skip","task":"a","output":null}"#, "output"),
        ("actions", r#"{"action":"complete","task":"a","input":1}"#, "input"),
        ("actions", r#"{"action":"fail","task":"a","error":{"codes":"x"}}"#, "error.codes"),
        ("actions", r#"{"action":"rerun","task":"a","error":{}}"#, "error"),
    ] {
        server.post(&format!("/v1/runs/r1/{call}"), body).await.invalid(path);
        server.post(&format!("/v1/runs/a%20b/{call}"), body).await.invalid("id");
    }
    server.post("/v1/runs/r1/pause?now=1", "").await.invalid("now");
    let deep =
        format!(r#"{{"action":"complete","task":"a","output":{}{}}}"#, "[".repeat(129), "]".repeat(129));
    server.post("/v1/runs/r1/actions", deep).await.invalid("output");
}

#[tokio::test]
async fn tasks_are_skipped_completed_and_failed_by_hand() {
    let server = Server::start();
    chain(&server).await;
    server.start_run("chain", "r1", "1").await;
    let body = format!(r#"{{"action":"complete","task":"a","output":{EXACT}}}"#);
    let run = done(&server, "r1", "actions", &body).await;
    assert_eq!(
        (&run["tasks"][0]["status"], run["tasks"][0]["output"].to_string()),
        (&json!("completed"), EXACT.into())
    );
    server.post("/v1/runs/r1/actions", body).await.refused(409, "task_not_open");
    // A worker that has the task learns that it has no longer.
    let b = server.claim("do-b").await;
    assert_eq!(b["input"].to_string(), EXACT);
    let skip = r#"{"action":"skip","task":"b"}"#;
    server.post("/v1/runs/r1/actions", skip).await.refused(409, "task_not_open");
    let run = done(&server, "r1", "actions", r#"{"action":"complete","task":"b"}"#).await;
    assert_eq!((&run["status"], &run["output"]), (&json!("completed"), &json!(null)));
    let token = b["token"].as_str().unwrap();
    server.post(&format!("/v1/tasks/{token}/complete"), "{\"output\":2}").await.refused(409, "stale_token");
    assert_eq!(server.get("/v1/runs/r1").await.json()["output"], json!(null));

    server.start_run("chain", "r2", "1").await;
    let error = r#"{"action":"fail","task":"a","error":{"code":"lost","message":"by hand"}}"#;
    let run = done(&server, "r2", "actions", error).await;
    assert_eq!(
        (&run["status"], &run["error"]["code"], &run["error"]["message"], &run["error"]["task"]),
        (&json!("failed"), &json!("lost"), &json!("by hand"), &json!("a"))
    );
    server.start_run("chain", "r3", "1").await;
    let run = done(&server, "r3", "actions", r#"{"action":"skip","task":"a"}"#).await;
    let statuses: Vec<_> = run["tasks"].as_array().unwrap().iter().map(|t| &t["status"]).collect();
    assert_eq!(statuses, ["skipped", "skipped"]);
    // An action on a task that is not there, and on one that has not had its turn.
    server.start_run("chain", "r4", "1").await;
    server
        .post("/v1/runs/r4/actions", r#"{"action":"skip","task":"a[0]"}"#)
        .await
        .refused(404, "task_not_found");
    let run = done(&server, "r4", "actions", r#"{"action":"complete","task":"b","output":[1]}"#).await;
    assert_eq!((&run["status"], &run["tasks"][1]["output"]), (&json!("running"), &json!([1])));
    complete(&server, "do-a", "0").await;
    assert_eq!(ended(&server, "r4").await["output"], json!([1]));
}

#[tokio::test]
async fn a_task_is_done_again_with_another_input_and_so_is_what_stands_behind_it() {
    let server = Server::start();
    chain(&server).await;
    server.start_run("chain", "r1", "1").await;
    complete(&server, "do-a", "2").await;
    complete(&server, "do-b", "3").await;
    assert_eq!(ended(&server, "r1").await["output"], 3);
    let body = format!(r#"{{"action":"rerun","task":"a","input":{EXACT}}}"#);
    let run = done(&server, "r1", "actions", &body).await;
    assert_eq!((&run["status"], &run["try"]), (&json!("running"), &json!(2)));
    let a = server.claim("do-a").await;
    assert_eq!((a["input"].to_string(), &a["attempt"]), (EXACT.to_owned(), &json!(2)));
    let token = a["token"].as_str().unwrap();
    server.post(&format!("/v1/tasks/{token}/complete"), "{\"output\":20}").await;
    let b = server.claim("do-b").await;
    assert_eq!(b["input"], 20);
    let token = b["token"].as_str().unwrap();
    server.post(&format!("/v1/tasks/{token}/complete"), "{\"output\":30}").await;
    assert_eq!(ended(&server, "r1").await["output"], 30);
    // What was done again has taken the place of what was, and is not told as that.
    let told = events(&server, "r1").await;
    let ends: Vec<_> = told
        .iter()
        .filter(|f| f.event.ends_with(".completed"))
        .map(|f| (f.json()["task"].clone(), f.json()["attempt"].clone(), f.json()["output"].clone()))
        .collect();
    let none = || json!(null);
    let of = |task: &str, attempt: u32, output: Value| (json!(task), json!(attempt), output);
    assert_eq!(
        ends,
        [
            of("a", 1, none()),
            of("b", 1, none()),
            (none(), none(), none()),
            of("a", 2, json!(20)),
            of("b", 2, json!(30)),
            (none(), none(), json!(30)),
        ]
    );
    // Null is an input like any other.
    done(&server, "r1", "actions", r#"{"action":"rerun","task":"b","input":null}"#).await;
    assert_eq!(server.claim("do-b").await["input"], json!(null));
    let run = server.get("/v1/runs/r1").await.json();
    assert_eq!((&run["try"], &run["tasks"][0]["status"]), (&json!(3), &json!("completed")));
}

#[tokio::test]
async fn a_run_that_is_to_start_later_is_pending_and_then_begins() {
    let server = Server::start();
    server.register_echo("order").await;
    let soon = server.post("/v1/runs", r#"{"workflow":"order","id":"r1","start_at":"+700ms"}"#).await;
    let run = soon.json();
    assert_eq!((soon.status, &run["status"], &run["started_at"]), (201, &json!("pending"), &json!(null)));
    let start_at = run["start_at"].as_str().unwrap().to_owned();
    assert!(run["created_at"].as_str().unwrap() < start_at.as_str());
    complete(&server, "order-pack", "1").await;
    let run = ended(&server, "r1").await;
    assert_eq!((&run["status"], &run["start_at"]), (&json!("completed"), &json!(null)));
    assert!(run["started_at"].as_str().unwrap() >= start_at.as_str());
    assert_eq!(kinds(&events(&server, "r1").await)[0], "run.started");

    let later = r#"{"workflow":"order","id":"r2","start_at":"2029-01-01T01:00:00.5+01:00"}"#;
    let run = server.post("/v1/runs", later).await.json();
    assert_eq!(
        (&run["status"], &run["start_at"]),
        (&json!("pending"), &json!("2029-01-01T00:00:00.500000Z"))
    );
    assert_eq!(server.get("/v1/runs?status=pending").await.json()["items"][0]["id"], "r2");
    assert_eq!(done(&server, "r2", "cancel", "").await["status"], "cancelled");
    assert_eq!(kinds(&events(&server, "r2").await), ["task.cancelled", "run.cancelled"]);

    let past = r#"{"workflow":"order","id":"r3","start_at":"1999-01-01T00:00:00Z"}"#;
    let run = server.post("/v1/runs", past).await.json();
    assert_eq!((&run["status"], &run["start_at"]), (&json!("running"), &json!(null)));
    for far in ["2999-01-01T00:00:00Z", "+3651d"] {
        let body = json!({"workflow": "order", "start_at": far}).to_string();
        server.post("/v1/runs", body).await.invalid("start_at");
    }
}

#[tokio::test]
async fn a_paused_pending_run_does_not_begin() {
    let server = Server::start();
    server.register_echo("order").await;
    server.post("/v1/runs", r#"{"workflow":"order","id":"r1","start_at":"+1h"}"#).await;
    assert_eq!(done(&server, "r1", "pause", "").await["status"], "paused");
    assert_eq!(done(&server, "r1", "resume", "").await["status"], "pending");
    let run = done(&server, "r1", "cancel", r#"{"compensate":true}"#).await;
    assert_eq!((&run["status"], &run["ending"]), (&json!("cancelled"), &json!(null)));
    assert_eq!(
        kinds(&events(&server, "r1").await),
        ["run.paused", "run.resumed", "task.cancelled", "run.cancelled"]
    );
}

#[tokio::test]
async fn a_worker_is_told_that_its_work_is_no_longer_wanted() {
    let server = Server::start();
    chain(&server).await;
    let (mut worker, _) = Worker::hello(&server, "do-a", 1).await;
    server.start_run("chain", "r1", "1").await;
    let a = worker.assignment().await;
    let error = r#"{"action":"fail","task":"a"}"#;
    assert_eq!(done(&server, "r1", "actions", error).await["error"]["code"], "failed");
    let cancelled = loop {
        if let Message::Cancel(tokens) = worker.hear().await.unwrap() {
            break tokens.tokens;
        }
    };
    assert_eq!(cancelled, std::slice::from_ref(&a.token));
    let failure = TaskFailure { code: "late".into(), ..TaskFailure::default() };
    let ack = worker.settle(&a.token, Outcome::Failed(failure)).await;
    assert_eq!(ack.status(), Status::Stale);
    assert_eq!(server.get("/v1/runs/r1").await.json()["error"]["code"], "failed");
}
