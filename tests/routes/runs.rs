//! `/v1/runs`.

use crate::support::server::Server;
use serde_json::json;

/// Values that a careless door changes.
const EXACT: &str = r#"{"big":9007199254740993,"u64":18446744073709551615,"f":1.0,"l":[],"o":{},"n":[[]],"z":null,"e":1e2,"s":"\u00e9\u0000<&"}"#;

#[tokio::test]
async fn a_run_is_started_worked_on_and_read() {
    let server = Server::start();
    server.register_echo("order").await;
    let body =
        format!(r#"{{"workflow":"order","id":"r1","input":{EXACT},"tags":{{"team":"a:b"}},"priority":7}}"#);
    let started = server.post("/v1/runs", body).await;
    assert_eq!((started.status, started.header("location")), (201, "/v1/runs/r1"));
    let run = started.json();
    assert_eq!((&run["id"], &run["status"], &run["try"]), (&json!("r1"), &json!("running"), &json!(1)));
    assert_eq!((&run["tags"], &run["priority"]), (&json!({"team": "a:b"}), &json!(7)));
    assert_eq!((&run["ending"], &run["error"], &run["ended_at"]), (&json!(null), &json!(null), &json!(null)));

    let task = server.claim("order-pack").await;
    assert_eq!((&task["run"], &task["task"], &task["attempt"]), (&json!("r1"), &json!("pack"), &json!(1)));
    let token = task["token"].as_str().unwrap();
    let done = server.post(&format!("/v1/tasks/{token}/complete"), format!("{{\"output\": {EXACT}}}")).await;
    assert_eq!((done.status, done.json()), (200, json!({"status": "accepted"})));

    let run = server.get("/v1/runs/r1?wait=10s").await;
    let text = run.text();
    assert_eq!(text.matches(EXACT).count(), 4, "input, output, and both of the task: {text}");
    let run = run.json();
    assert_eq!(run["status"], "completed");
    let task = &run["tasks"][0];
    assert_eq!(
        (&task["task"], &task["type"], &task["status"]),
        (&json!("pack"), &json!("order-pack"), &json!("completed"))
    );
    assert_eq!(
        (&task["attempts"][0]["number"], &task["attempts"][0]["worker"]),
        (&json!(1), &json!("claimer"))
    );
    for (first, second) in [("created_at", "started_at"), ("started_at", "ended_at")] {
        let (first, second) = (run[first].as_str().unwrap(), run[second].as_str().unwrap());
        assert!(first <= second && first.len() == "2026-11-30T18:31:59.000123Z".len(), "{first} {second}");
    }
}

#[tokio::test]
async fn values_of_a_run_have_an_address() {
    let server = Server::start();
    server.register_echo("order").await;
    server.start_run("order", "r1", EXACT).await;
    let token = server.claim("order-pack").await["token"].as_str().unwrap().to_owned();
    server.post(&format!("/v1/tasks/{token}/complete"), format!("{{\"output\":{EXACT}}}")).await;
    server.get("/v1/runs/r1?wait=10s").await;
    for field in ["input", "output", "tasks.pack.output", "tasks.pack.attempts.1.input"] {
        let value = server.get(&format!("/v1/runs/r1/values/{field}")).await;
        assert_eq!((value.status, value.text()), (200, EXACT), "{field}");
    }
    server.get("/v1/runs/r1/values/nope").await.invalid("field");
    server.get("/v1/runs/nope/values/input").await.refused(404, "run_not_found");
    let tasks = server.get("/v1/runs/r1/tasks?limit=1").await.json();
    assert_eq!((tasks["items"].as_array().unwrap().len(), &tasks["next_cursor"]), (1, &json!(null)));
    assert_eq!(tasks["items"][0]["task"], "pack");
    server.get("/v1/runs/nope/tasks").await.refused(404, "run_not_found");
}

#[tokio::test]
async fn an_id_starts_one_run() {
    let server = Server::start();
    server.register_echo("order").await;
    assert_eq!(server.start_run("order", "r1", "{\"a\":1,\"b\":2}").await.status, 201);
    let again = server.start_run("order", "r1", "{\"b\": 2, \"a\": 1}").await;
    assert_eq!((again.status, again.json()["id"].clone()), (200, json!("r1")));
    server.start_run("order", "r1", "{\"a\":1,\"b\":2.5}").await.refused(409, "run_id_taken");
    let reject = r#"{"workflow":"order","id":"r1","input":{"a":1,"b":2},"on_conflict":"reject"}"#;
    server.post("/v1/runs", reject).await.refused(409, "run_id_taken");
    let fresh = server.post("/v1/runs", r#"{"workflow":"order"}"#).await;
    assert_eq!((fresh.status, fresh.json()["input"].clone()), (201, json!(null)));
    server.post("/v1/runs", r#"{"workflow":"nope"}"#).await.refused(404, "workflow_not_found");
    server.post("/v1/runs", r#"{"workflow":"order","version":9}"#).await.refused(404, "workflow_not_found");
}

#[tokio::test]
async fn a_start_that_does_not_fit_is_refused_with_the_field() {
    let server = Server::start();
    for (body, path) in [
        (r"{}", "workflow"),
        (r"[]", "body"),
        (r#"["order"]"#, "body"),
        (r#"{"workflow":1}"#, "workflow"),
        (r#"{"workflow":"a/b"}"#, "workflow"),
        (r#"{"workflow":"order","id":"../metrics"}"#, "id"),
        (r#"{"workflow":"order","inputs":1}"#, "inputs"),
        (r#"{"workflow":"order","workflow":"b"}"#, "workflow"),
        (r#"{"workflow":"order","version":"1"}"#, "version"),
        (r#"{"workflow":"order","version":-1}"#, "version"),
        (r#"{"workflow":"order","priority":101}"#, "priority"),
        (r#"{"workflow":"order","tags":{"a":1}}"#, "tags.a"),
        (r#"{"workflow":"order","tags":{"a:b":"x"}}"#, "tags.a:b"),
        (r#"{"workflow":"order","tags":{"a":"x","b":"x","a":"y"}}"#, "tags.a"),
        (r#"{"workflow":"order","tags":["a"]}"#, "tags"),
        (r#"{"workflow":"order","on_conflict":"maybe"}"#, "on_conflict"),
        (r#"{"workflow":"order","start_at":"2030-01-01"}"#, "start_at"),
        (r#"{"workflow":"order","start_at":"5m"}"#, "start_at"),
        (r#"{"workflow":"order","start_at":1893456000}"#, "start_at"),
        (r#"{"workflow":"order""#, "body"),
        ("\u{feff}{}", "workflow"),
        ("\u{feff}\u{feff}{}", "body"),
        ("nope", "body"),
    ] {
        let answer = server.post("/v1/runs", body.to_owned()).await;
        assert_eq!(
            answer.problem(),
            ("invalid_request".to_owned(), vec![path.to_owned()]),
            "{body}: {}",
            answer.text()
        );
    }
    server.register_echo("order").await;
    let deep = format!(r#"{{"workflow":"order","input":{}{}}}"#, "[".repeat(129), "]".repeat(129));
    server.post("/v1/runs", deep).await.invalid("input");
    server.post("/v1/runs", vec![b'{', 0xff, b'}']).await.refused(400, "invalid_request");
    server.post("/v1/runs?wait=2m", r#"{"workflow":"order"}"#).await.invalid("wait");
    server.post("/v1/runs?wait=5", r#"{"workflow":"order"}"#).await.invalid("wait");
}

#[tokio::test]
async fn an_input_over_the_limit_is_refused_and_the_limit_itself_is_taken() {
    let server = Server::start();
    server.register_echo("order").await;
    let input = |size: usize| format!("\"{}\"", "x".repeat(size - 2));
    for size in [(1 << 20) + 1, 3 << 20, 10 << 20] {
        server.start_run("order", "large", &input(size)).await.refused(413, "too_large");
    }
    server.get("/v1/runs/large").await.refused(404, "run_not_found");
    assert_eq!(server.start_run("order", "large", &input(1 << 20)).await.status, 201);
}

#[tokio::test]
async fn odd_ids_never_reach_another_address() {
    let server = Server::start();
    for id in ["%2e%2e%2fx", "a%20b(1)", "x%23y%3Fz", "a%2Fb", "%00", "%F0%9F%98%80", &"a".repeat(1_000)] {
        for path in
            [format!("/v1/runs/{id}"), format!("/v1/runs/{id}/tasks"), format!("/v1/runs/{id}/events")]
        {
            server.get(&path).await.invalid("id");
        }
        server.post(&format!("/v1/runs/{id}/cancel"), "").await.invalid("id");
        server.delete(&format!("/v1/runs/{id}")).await.invalid("id");
    }
    server.get("/v1/runs/%FF").await.refused(400, "invalid_request");
}

#[tokio::test]
async fn runs_are_listed_by_filter_newest_first() {
    let server = Server::start();
    server.register_echo("order").await;
    server.register_echo("parcel").await;
    for (workflow, id, tag) in [("order", "r1", "x"), ("order", "r2", "y:z"), ("parcel", "r3", "x")] {
        let body = json!({"workflow": workflow, "id": id, "tags": {"k": tag}, "input": [1]});
        assert_eq!(server.post("/v1/runs", body.to_string()).await.status, 201);
    }
    let ids = async |query: &str| -> Vec<String> {
        let answer = server.get(&format!("/v1/runs?{query}")).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        let page = answer.json();
        page["items"].as_array().unwrap().iter().map(|r| r["id"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(ids("").await, ["r3", "r2", "r1"]);
    assert_eq!(ids("workflow=order").await, ["r2", "r1"]);
    assert_eq!(ids("tag=k:y:z").await, ["r2"]);
    assert_eq!(ids("tag=k:x&workflow=parcel&status=running").await, ["r3"]);
    assert_eq!(ids("status=completed").await, Vec::<String>::new());
    assert_eq!(ids("since=2000-01-01T00:00:00Z&until=2001-01-01T00:00:00Z").await, Vec::<String>::new());
    let page = server.get("/v1/runs?limit=2").await.json();
    let keys: Vec<&String> = page["items"][0].as_object().unwrap().keys().collect();
    assert_eq!(
        keys,
        [
            "id",
            "workflow",
            "version",
            "try",
            "status",
            "ending",
            "error",
            "tags",
            "priority",
            "parent",
            "parent_task",
            "schedule",
            "slot",
            "start_at",
            "created_at",
            "started_at",
            "ended_at"
        ],
        "what is not told is left out"
    );
    let next = page["next_cursor"].as_str().unwrap();
    assert_eq!(ids(&format!("limit=2&cursor={next}")).await, ["r1"]);
    let of_workflows = server.get("/v1/workflows?limit=1").await.json()["next_cursor"].clone();
    for junk in ["x", "0.r1", &next[1..], of_workflows.as_str().unwrap()] {
        server.get(&format!("/v1/runs?cursor={junk}")).await.invalid("cursor");
        server.get(&format!("/v1/runs/r1/tasks?cursor={junk}")).await.invalid("cursor");
    }
    for junk in ["0", "1", "+1"] {
        server.get(&format!("/v1/runs/r1/tasks?cursor={junk}")).await.invalid("cursor");
    }
    for (query, path) in
        [("status=done", "status"), ("tag=k", "tag"), ("since=now", "since"), ("parents=x", "parents")]
    {
        server.get(&format!("/v1/runs?{query}")).await.invalid(path);
    }
}

#[tokio::test]
async fn a_run_is_cancelled_once_and_then_forgotten() {
    let server = Server::start();
    server.register_echo("order").await;
    server.start_run("order", "r1", "null").await;
    server.delete("/v1/runs/r1").await.refused(409, "run_not_ended");
    server.post("/v1/runs/r1/cancel", r#"{"forces":true}"#).await.invalid("forces");
    let cancelled = server.post("/v1/runs/r1/cancel", "").await;
    assert_eq!((cancelled.status, cancelled.json()["status"].clone()), (200, json!("cancelled")));
    server.post("/v1/runs/r1/cancel", "{}").await.refused(409, "run_ended");
    assert_eq!(server.delete("/v1/runs/r1").await.status, 204);
    server.get("/v1/runs/r1").await.refused(404, "run_not_found");
    server.delete("/v1/runs/r1").await.refused(404, "run_not_found");
}

#[tokio::test]
async fn a_wait_that_passes_is_no_error() {
    let server = Server::start();
    server.register_echo("order").await;
    let started = server.post("/v1/runs?wait=50ms", r#"{"workflow":"order","id":"r1"}"#).await;
    assert_eq!((started.status, started.json()["status"].clone()), (201, json!("running")));
    let read = server.get("/v1/runs/r1?wait=50ms").await;
    assert_eq!((read.status, read.json()["status"].clone()), (200, json!("running")));
}
