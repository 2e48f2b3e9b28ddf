//! Groups, maps, loops, waits, compensation and `finally`, as whoever reads, signals and controls a run sees them.

use crate::support::client::{Frame, soon};
use crate::support::server::Server;
use bytes::Bytes;
use downbeat::client::{Task, TaskError, Worker};
use downbeat::proto::v1;
use downbeat::proto::v1::run_service_client::RunServiceClient;
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// A value that a careless door changes.
const EXACT: &str = r#"{"by":"Ada","big":9007199254740993,"f":1.0}"#;

const PARCEL: &str = "
name: parcel
tasks:
  reserve: { type: echo, input: '${{ input.items }}' }
  review: { needs: [reserve], wait: { signal: approved } }
  ship:
    needs: [review]
    for_each: ${{ input.items }}
    max_parallel: 2
    tasks:
      pack: { type: echo, input: '${{ item }}' }
      send: { needs: [pack], type: echo, input: ['${{ tasks.pack.output }}', '${{ index }}'] }
    output: ${{ tasks.send.output }}
  poll: { needs: [ship], type: echo, repeat: { while: '${{ loop.output < 2 }}', max: 5 }, input: '${{ loop.index }}' }
output: { review: '${{ tasks.review.output }}', sent: '${{ tasks.ship.output }}', polls: '${{ tasks.poll.output }}' }
finally:
  report: { type: echo, input: '${{ run.status }}' }
";

/// What `reserve` did is undone if `charge` fails; workers of each type are the test itself.
const UNDO: &str = "
name: undo
tasks:
  reserve: { type: reserve, compensate: { type: release, input: '${{ tasks.reserve.output }}' } }
  charge: { needs: [reserve], type: charge, retry: { max_attempts: 1 } }
finally:
  report: { type: report, input: '${{ run.status }}' }
";

async fn register(server: &Server, name: &str, text: &'static str) {
    let answer = server.put(&format!("/v1/workflows/{name}"), "application/yaml", text).await;
    assert_eq!(answer.status, 201, "{}", answer.text());
}

/// Ends with its guard.
struct Working(tokio::task::JoinHandle<()>);

impl Drop for Working {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn echo(task: Task) -> Result<Bytes, TaskError> {
    Ok(task.input().clone())
}

/// A worker that gives every input back.
fn echoes(server: &Server) -> Working {
    let worker = Worker::builder(server.url()).handle("echo", 8, echo).build().unwrap();
    Working(tokio::spawn(async move {
        let _ = worker.run().await;
    }))
}

/// Waits for a task to be in a status, by the events of its run.
async fn task_event(server: &Server, id: &str, kind: &str, task: &str) {
    let mut events = server.watch(&format!("/v1/runs/{id}/events"), None).await;
    loop {
        let frame = events.next().await.expect("the run ended before");
        if frame.event == kind && frame.json()["task"] == task {
            return;
        }
    }
}

/// Claims a task and completes it; the claim.
async fn complete(server: &Server, task_type: &str, output: &str) -> Value {
    let task = server.claim(task_type).await;
    let token = task["token"].as_str().unwrap();
    let answer =
        server.post(&format!("/v1/tasks/{token}/complete"), format!("{{\"output\":{output}}}")).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    task
}

async fn fail(server: &Server, task_type: &str, code: &str) {
    let token = server.claim(task_type).await["token"].as_str().unwrap().to_owned();
    let answer = server.post(&format!("/v1/tasks/{token}/fail"), json!({ "code": code }).to_string()).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
}

async fn run(server: &Server, id: &str) -> Value {
    server.get(&format!("/v1/runs/{id}")).await.json()
}

async fn ended(server: &Server, id: &str) -> Value {
    server.get(&format!("/v1/runs/{id}?wait=10s")).await.json()
}

/// Calls `/v1/runs/{id}/{call}`, which must be done; the run.
async fn done(server: &Server, id: &str, call: &str, body: &str) -> Value {
    let answer = server.post(&format!("/v1/runs/{id}/{call}"), body.to_owned()).await;
    assert_eq!(answer.status, 200, "{call}: {}", answer.text());
    answer.json()
}

/// Path and status of each task of an answer.
fn statuses(tasks: &Value) -> Vec<String> {
    let told = |t: &Value| format!("{} {}", t["task"].as_str().unwrap(), t["status"].as_str().unwrap());
    tasks.as_array().unwrap().iter().map(told).collect()
}

#[tokio::test]
async fn a_run_of_every_construct_is_read_by_its_paths() {
    let server = Server::start();
    register(&server, "parcel", PARCEL).await;
    let _worker = echoes(&server);
    server.start_run("parcel", "r1", r#"{"items":[1.0,"b",null]}"#).await;
    task_event(&server, "r1", "task.waiting", "review").await;
    let waiting = run(&server, "r1").await;
    assert_eq!(
        statuses(&waiting["tasks"]),
        ["reserve completed", "review waiting", "ship pending", "poll pending"]
    );
    assert_eq!((&waiting["status"], &waiting["tasks"][1]["type"]), (&json!("running"), &json!(null)));
    done(&server, "r1", "signals/approved", EXACT).await;
    let answer = server.get("/v1/runs/r1?wait=10s").await;
    let expected = format!(r#""output":{{"polls":2,"review":{EXACT},"sent":[[1.0,0],["b",1],[null,2]]}}"#);
    assert!(answer.text().contains(&expected), "{}", answer.text());
    let ended = answer.json();
    assert_eq!((&ended["status"], &ended["ending"]), (&json!("completed"), &json!(null)));

    let expected: BTreeSet<&str> = [
        "reserve",
        "review",
        "ship",
        "poll",
        "ship[0]",
        "ship[1]",
        "ship[2]",
        "ship[0]/pack",
        "ship[0]/send",
        "ship[1]/pack",
        "ship[1]/send",
        "ship[2]/pack",
        "ship[2]/send",
        "poll#0",
        "poll#1",
        "poll#2",
        "finally",
        "finally/report",
    ]
    .into();
    let paths = |tasks: &Value| -> Vec<String> {
        tasks.as_array().unwrap().iter().map(|t| t["task"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(paths(&ended["tasks"]).iter().map(String::as_str).collect::<BTreeSet<_>>(), expected);
    assert!(ended["tasks"].as_array().unwrap().iter().all(|t| t["status"] == "completed"));
    // The same, page by page.
    let (mut paged, mut cursor) = (Vec::new(), String::new());
    loop {
        let page = server.get(&format!("/v1/runs/r1/tasks?limit=4{cursor}")).await.json();
        paged.extend(paths(&page["items"]));
        let Some(next) = page["next_cursor"].as_str() else { break };
        cursor = format!("&cursor={next}");
    }
    assert_eq!(paged, paths(&ended["tasks"]));
    for (field, value) in [
        ("tasks.ship%5B0%5D%2Fpack.output", "1.0"),
        ("tasks.ship%5B1%5D%2Fsend.attempts.1.input", "[\"b\",1]"),
        ("tasks.poll%231.output", "1"),
        ("tasks.finally%2Freport.output", "\"completed\""),
        ("tasks.review.output", EXACT),
    ] {
        assert_eq!(server.get(&format!("/v1/runs/r1/values/{field}")).await.text(), value, "{field}");
    }

    let frames = server.watch("/v1/runs/r1/events", None).await.rest().await;
    let told: Vec<String> = frames
        .iter()
        .map(|f: &Frame| format!("{} {}", f.event, f.json()["task"].as_str().unwrap_or("-")))
        .collect();
    let at = |what: &str| told.iter().position(|t| t == what).unwrap_or_else(|| panic!("{what}: {told:?}"));
    for (first, then) in [
        ("task.waiting review", "signal.received -"),
        ("signal.received -", "task.completed review"),
        ("task.completed review", "task.waiting ship"),
        ("task.queued ship[2]/pack", "task.started ship[2]/pack"),
        ("task.completed ship[2]/send", "task.completed ship"),
        ("task.completed poll#2", "task.completed poll"),
        ("task.completed poll", "task.queued finally/report"),
        ("task.completed finally/report", "run.completed -"),
    ] {
        assert!(at(first) < at(then), "{first}, {then}: {told:?}");
    }
    assert_eq!(told.last().unwrap(), "run.completed -");
}

#[tokio::test]
async fn a_run_that_fails_tells_how_it_will_end_while_it_is_undone() {
    let server = Server::start();
    register(&server, "undo", UNDO).await;
    let mut grpc = RunServiceClient::new(server.channel().await);
    server.start_run("undo", "r1", "null").await;
    complete(&server, "reserve", EXACT).await;
    fail(&server, "charge", "card_declined").await;
    let undo = server.claim("release").await;
    assert_eq!((&undo["task"], undo["input"].to_string()), (&json!("reserve/compensate"), EXACT.to_owned()));
    let going = run(&server, "r1").await;
    assert_eq!((&going["status"], &going["ending"]["status"]), (&json!("running"), &json!("failed")));
    assert_eq!(
        going["ending"]["error"],
        json!({"code": "card_declined", "message": "", "task": "charge", "attempt": 1})
    );
    let listed = server.get("/v1/runs").await.json();
    assert_eq!(listed["items"][0]["ending"], going["ending"]);
    let view = grpc.get(v1::GetRunRequest { id: "r1".into(), wait_ms: 0 }).await.unwrap().into_inner();
    let ending = view.ending.unwrap();
    assert_eq!((ending.status(), ending.error.unwrap().task.as_str()), (v1::RunStatus::Failed, "charge"));
    // What is ending takes no signal and is not cancelled, but by force.
    server.post("/v1/runs/r1/signals/x", "").await.refused(409, "run_ended");
    server.post("/v1/runs/r1/cancel", "").await.refused(409, "run_ended");
    server.post("/v1/runs/r1/retry", "").await.refused(409, "run_not_ended");
    let token = undo["token"].as_str().unwrap();
    server.post(&format!("/v1/tasks/{token}/complete"), "").await;
    let report = complete(&server, "report", "1").await;
    assert_eq!((&report["task"], &report["input"]), (&json!("finally/report"), &json!("failed")));
    let end = ended(&server, "r1").await;
    assert_eq!((&end["status"], &end["ending"]), (&json!("failed"), &json!(null)));
    assert_eq!(
        statuses(&end["tasks"]),
        [
            "reserve completed",
            "charge failed",
            "reserve/compensate completed",
            "finally completed",
            "finally/report completed"
        ]
    );

    // What was undone is done again.
    assert_eq!(done(&server, "r1", "retry", "").await["try"], 2);
    complete(&server, "reserve", "2").await;
    complete(&server, "charge", "3").await;
    complete(&server, "report", "4").await;
    assert_eq!(ended(&server, "r1").await["status"], "completed");
}

#[tokio::test]
async fn a_cancel_undoes_what_completed_if_asked_and_force_cuts_it_short() {
    let server = Server::start();
    register(&server, "undo", UNDO).await;
    server.start_run("undo", "r1", "null").await;
    complete(&server, "reserve", "7").await;
    let cancelled = done(&server, "r1", "cancel", r#"{"compensate":true}"#).await;
    assert_eq!(
        (&cancelled["status"], &cancelled["ending"]),
        (&json!("running"), &json!({"status": "cancelled", "error": null}))
    );
    assert_eq!(complete(&server, "release", "1").await["input"], 7);
    assert_eq!(complete(&server, "report", "1").await["input"], "cancelled");
    assert_eq!(ended(&server, "r1").await["status"], "cancelled");

    // Without it nothing is undone, but `finally` is done all the same.
    server.start_run("undo", "r2", "null").await;
    complete(&server, "reserve", "7").await;
    assert_eq!(done(&server, "r2", "cancel", "").await["ending"]["status"], "cancelled");
    let end = done(&server, "r2", "cancel", r#"{"force":true}"#).await;
    assert_eq!((&end["status"], &end["ending"]), (&json!("cancelled"), &json!(null)));
    assert_eq!(server.post("/v1/tasks/claim", r#"{"types":["release","report"]}"#).await.text(), "[]");
}

#[tokio::test]
async fn signals_early_and_late_are_each_taken_by_one_wait() {
    let server = Server::start();
    let text = "name: ticks\ntasks:\n  a: { type: a }\n  \
                w: { needs: [a], for_each: '${{ input }}', wait: { signal: tick } }\noutput: '${{ tasks.w.output }}'\n";
    register(&server, "ticks", text).await;
    let list: Vec<u32> = (0..40).collect();
    server.start_run("ticks", "r1", &json!(list).to_string()).await;
    let send = async |n: u32| {
        let path = format!("/v1/runs/r1/signals/tick?id=s-{n}");
        for _ in 0..2 {
            assert_eq!(server.post(&path, n.to_string()).await.status, 200);
        }
    };
    // The first come before anybody waits.
    futures::future::join_all((0..20).map(send)).await;
    complete(&server, "a", "1").await;
    soon(futures::future::join_all((20..40).map(send))).await;
    let end = ended(&server, "r1").await;
    assert_eq!(end["status"], "completed");
    let mut taken: Vec<u32> = serde_json::from_value(end["output"].clone()).unwrap();
    taken.sort_unstable();
    assert_eq!(taken, list);
}

#[tokio::test]
async fn tasks_inside_others_are_acted_on_by_their_paths() {
    let server = Server::start();
    let text = "name: nested\ntasks:\n  m:\n    for_each: '${{ input }}'\n    max_parallel: 1\n    tasks:\n      \
                x: { type: x }\n      w: { needs: [x], wait: { signal: never } }\n    output: '${{ tasks.x.output }}'\n\
                output: '${{ tasks.m.output }}'\n";
    register(&server, "nested", text).await;
    server.start_run("nested", "r1", "[1,2]").await;
    let act = |action: &str, task: &str| json!({"action": action, "task": task}).to_string();
    for early in ["m[1]", "m[1]/x", "m[2]", "m#0", "m/x", "m[0]/z"] {
        server.post("/v1/runs/r1/actions", act("skip", early)).await.refused(404, "task_not_found");
    }
    let body = format!(r#"{{"action":"complete","task":"m[0]/x","output":{EXACT}}}"#);
    done(&server, "r1", "actions", &body).await;
    let now = done(&server, "r1", "actions", &act("skip", "m[0]/w")).await;
    assert_eq!(
        statuses(&now["tasks"]),
        [
            "m waiting",
            "m[0] completed",
            "m[1] waiting",
            "m[0]/x completed",
            "m[0]/w skipped",
            "m[1]/x queued",
            "m[1]/w pending"
        ]
    );
    server.post("/v1/runs/r1/actions", act("complete", "m[0]/w")).await.refused(409, "task_not_open");
    done(&server, "r1", "actions", r#"{"action":"complete","task":"m[1]","output":9}"#).await;
    let end = ended(&server, "r1").await;
    assert_eq!((&end["status"], end["output"].to_string()), (&json!("completed"), format!("[{EXACT},9]")));
    // The whole of a group is done again from one of its tasks.
    done(&server, "r1", "actions", r#"{"action":"rerun","task":"m[0]/x","input":5}"#).await;
    let again = complete(&server, "x", "50").await;
    assert_eq!((&again["task"], &again["input"]), (&json!("m[0]/x"), &json!(5)));
    assert_eq!(run(&server, "r1").await["try"], 2);
}

#[tokio::test]
async fn a_timer_that_passes_during_a_pause_goes_on_after_it() {
    let server = Server::start();
    let text = "name: timer\ntasks:\n  t: { wait: { for: 300ms } }\n  z: { needs: [t], type: z }\n";
    register(&server, "timer", text).await;
    server.start_run("timer", "r1", "null").await;
    done(&server, "r1", "pause", "").await;
    task_event(&server, "r1", "task.completed", "t").await;
    let paused = run(&server, "r1").await;
    assert_eq!(paused["status"], "paused");
    assert_eq!(server.post("/v1/tasks/claim", r#"{"types":["z"]}"#).await.text(), "[]");
    done(&server, "r1", "resume", "").await;
    complete(&server, "z", "1").await;
    assert_eq!(ended(&server, "r1").await["status"], "completed");
}

/// After a failure other branches run on, and one of them may still `finish`: nothing is said of an end before.
#[tokio::test]
async fn an_end_is_told_only_once_it_is_certain() {
    let server = Server::start();
    let text = "
name: maybe
tasks:
  b: { type: b, retry: { max_attempts: 1 } }
  a: { type: a }
  f: { needs: [a], finish: { output: ok } }
";
    register(&server, "maybe", text).await;
    server.post("/v1/runs", r#"{"workflow":"maybe","id":"maybe"}"#.to_owned()).await;
    fail(&server, "b", "x").await;
    let shown = run(&server, "maybe").await;
    assert_eq!((&shown["status"], &shown["ending"]), (&json!("running"), &Value::Null));
    complete(&server, "a", "1").await;
    let shown = ended(&server, "maybe").await;
    assert_eq!((&shown["status"], &shown["output"]), (&json!("completed"), &json!("ok")));
}

/// What an earlier try undid, and did last, is not shown as if it were of the one that goes on.
#[tokio::test]
async fn a_later_try_does_not_show_how_an_earlier_one_ended() {
    let server = Server::start();
    register(&server, "undo", UNDO).await;
    server.post("/v1/runs", r#"{"workflow":"undo","id":"undo"}"#.to_owned()).await;
    complete(&server, "reserve", "1").await;
    fail(&server, "charge", "declined").await;
    complete(&server, "release", "1").await;
    complete(&server, "report", "1").await;
    let shown = ended(&server, "undo").await;
    let all = ["reserve completed", "charge failed", "reserve/compensate completed", "finally completed"];
    assert_eq!(statuses(&shown["tasks"])[..4], all);
    done(&server, "undo", "retry", "").await;
    let shown = run(&server, "undo").await;
    assert_eq!(statuses(&shown["tasks"]), ["reserve queued", "charge pending"]);
    complete(&server, "reserve", "1").await;
    complete(&server, "charge", "1").await;
    let report = complete(&server, "report", "1").await;
    assert_eq!((&report["task"], &report["attempt"]), (&json!("finally/report"), &json!(2)));
    assert_eq!(ended(&server, "undo").await["status"], "completed");
}

/// A claim leases what its answer carries: work that nobody was given is not told to have started.
#[tokio::test]
async fn a_claim_of_many_leases_few_more_than_it_gives() {
    let server = Server::start();
    let text = "
name: many
tasks:
  m: { for_each: '${{ input }}', type: many, input: '${{ item }}' }
output: '${{ tasks.m.output }}'
";
    register(&server, "many", text).await;
    let items: Vec<u32> = (0..200).collect();
    let start = json!({ "workflow": "many", "id": "many", "input": items });
    server.post("/v1/runs", start.to_string()).await;
    let mut done = 0;
    while done < 200 {
        let answer = server.post("/v1/tasks/claim", r#"{"types":["many"],"max":1000}"#.to_owned()).await;
        for task in answer.json().as_array().unwrap() {
            let token = task["token"].as_str().unwrap();
            let body = json!({ "output": task["input"] }).to_string();
            assert_eq!(server.post(&format!("/v1/tasks/{token}/complete"), body).await.status, 200);
            done += 1;
        }
    }
    let shown = ended(&server, "many").await;
    let open: Vec<_> = statuses(&shown["tasks"]).into_iter().filter(|s| !s.ends_with("completed")).collect();
    assert_eq!((&shown["status"], open), (&json!("completed"), Vec::new()));
    assert_eq!(shown["output"], json!(items));
    let mut events = server.watch("/v1/runs/many/events", None).await;
    let mut started = 0;
    while let Some(frame) = events.next().await {
        started += usize::from(frame.event == "task.started");
    }
    // A little may be given back; a claim that leases all it can gives most of it back.
    assert!((200..=210).contains(&started), "{started}");
}
