//! `/v1/runs/{id}/events` and `/v1/events`.

use crate::support::client::Frame;
use crate::support::server::Server;
use axum::body::Body;
use http::Request;

fn kinds(frames: &[Frame]) -> Vec<&str> {
    frames.iter().map(|f| f.event.as_str()).collect()
}

async fn finish(server: &Server, workflow: &str, id: &str, output: &str) {
    assert_eq!(server.start_run(workflow, id, "{}").await.status, 201);
    let task = server.claim(&format!("{workflow}-pack")).await;
    assert_eq!(task["run"], id);
    let complete = format!("/v1/tasks/{}/complete", task["token"].as_str().unwrap());
    assert_eq!(server.post(&complete, format!("{{\"output\":{output}}}")).await.status, 200);
}

const WHOLE: [&str; 5] = ["run.started", "task.queued", "task.started", "task.completed", "run.completed"];

#[tokio::test]
async fn a_finished_run_tells_everything_and_the_stream_ends() {
    let server = Server::start();
    server.register_echo("order").await;
    finish(&server, "order", "r1", "{\"n\":9007199254740993,\n\"x\":1.0}").await;
    let events = server.watch("/v1/runs/r1/events", None).await;
    assert_eq!(events.headers["content-type"], "text/event-stream");
    assert_eq!(events.headers["x-accel-buffering"], "no");
    assert!(events.headers["cache-control"].to_str().unwrap().contains("no-cache"));
    assert!(!events.headers.contains_key("content-encoding"));
    let frames = events.rest().await;
    assert_eq!(kinds(&frames), WHOLE);
    for frame in &frames {
        let data = frame.json();
        assert_eq!(
            (data["type"].as_str().unwrap(), data["run"].as_str().unwrap()),
            (frame.event.as_str(), "r1")
        );
        assert_eq!((data["workflow"].as_str().unwrap(), data["version"].as_u64().unwrap()), ("order", 1));
        assert!(frame.id.is_some());
    }
    let started = frames[2].json();
    assert_eq!(
        (started["task"].as_str().unwrap(), started["task_type"].as_str().unwrap()),
        ("pack", "order-pack")
    );
    assert_eq!((started["attempt"].as_u64().unwrap(), started["worker"].as_str().unwrap()), (1, "claimer"));
    assert!(
        frames[4].data.contains("9007199254740993") && frames[4].data.contains("1.0"),
        "{}",
        frames[4].data
    );
}

#[tokio::test]
async fn events_come_while_the_run_goes_and_resume_without_gap_or_repeat() {
    let server = Server::start();
    server.register_echo("order").await;
    server.start_run("order", "r1", "{}").await;
    let mut events = server.watch("/v1/runs/r1/events", None).await;
    let first = events.next().await.unwrap();
    let second = events.next().await.unwrap();
    assert_eq!((first.event.as_str(), second.event.as_str()), ("run.started", "task.queued"));
    drop(events);
    let token = server.claim("order-pack").await["token"].as_str().unwrap().to_owned();
    server.post(&format!("/v1/tasks/{token}/complete"), "{}").await;
    for (path, last) in [
        (format!("/v1/runs/r1/events?after={}", second.id.clone().unwrap()), None),
        // The header of a browser that reconnects goes before the address.
        (format!("/v1/runs/r1/events?after={}", first.id.clone().unwrap()), second.id.clone()),
    ] {
        let rest = server.watch(&path, last.as_deref()).await.rest().await;
        assert_eq!(kinds(&rest), WHOLE[2..]);
    }
}

#[tokio::test]
async fn at_the_end_there_is_nothing_and_an_unknown_run_is_not_found() {
    let server = Server::start();
    server.register_echo("order").await;
    finish(&server, "order", "r1", "1").await;
    let frames = server.watch("/v1/runs/r1/events", None).await.rest().await;
    let last = frames.last().unwrap().id.clone().unwrap();
    let request =
        Request::get("/v1/runs/r1/events").header("last-event-id", &last).body(Body::empty()).unwrap();
    let answer = server.send(request).await;
    assert_eq!((answer.status, answer.text()), (204, ""));
    server.get("/v1/runs/nope/events").await.refused(404, "run_not_found");
}

#[tokio::test]
async fn a_junk_cursor_gets_a_reset_and_everything_from_the_start() {
    let server = Server::start();
    server.register_echo("order").await;
    finish(&server, "order", "r1", "1").await;
    for junk in ["junk", "!", "AAAA", "%F0%9F%98%80"] {
        let frames = server.watch(&format!("/v1/runs/r1/events?after={junk}"), None).await.rest().await;
        assert_eq!((frames[0].event.as_str(), &frames[0].id), ("reset", &None), "{junk}");
        assert_eq!(kinds(&frames[1..]), WHOLE, "{junk}");
    }
}

#[tokio::test]
async fn the_events_of_all_runs_can_be_filtered_and_resumed() {
    let server = Server::start();
    server.register_echo("order").await;
    server.register_echo("parcel").await;
    let mut all = server.watch("/v1/events", None).await;
    let mut ends = server.watch("/v1/events?workflow=parcel&type=run.*", None).await;
    finish(&server, "order", "r1", "1").await;
    finish(&server, "parcel", "r2", "2").await;
    let mut seen = Vec::new();
    while seen.len() < 10 {
        seen.push(all.next().await.unwrap());
    }
    for run in ["r1", "r2"] {
        let own: Vec<Frame> = seen.iter().filter(|f| f.json()["run"] == run).cloned().collect();
        assert_eq!(kinds(&own), WHOLE, "{run}");
    }
    for kind in ["run.started", "run.completed"] {
        let frame = ends.next().await.unwrap();
        assert_eq!((frame.event.as_str(), frame.json()["run"].as_str().unwrap()), (kind, "r2"));
    }
    let after = seen[3].id.clone().unwrap();
    let mut resumed = server.watch("/v1/events", Some(&after)).await;
    for expected in &seen[4..] {
        assert_eq!(resumed.next().await.unwrap().data, expected.data);
    }
    for (query, path) in
        [("type=nope", "type"), ("workflow=a%20b", "workflow"), ("tag=x", "tag"), ("run=x", "run")]
    {
        server.get(&format!("/v1/events?{query}")).await.invalid(path);
    }
}
