//! `/v1/tasks`.

use crate::support::server::Server;
use axum::body::Body;
use http::Request;
use serde_json::json;

#[tokio::test]
async fn nothing_to_do_is_an_empty_list() {
    let server = Server::start();
    let answer = server.post("/v1/tasks/claim", r#"{"types":["pack"]}"#).await;
    assert_eq!((answer.status, answer.text()), (200, "[]"));
}

#[tokio::test]
async fn a_claim_that_does_not_fit_is_refused_with_the_field() {
    let server = Server::start();
    for (body, path) in [
        (r"{}", "types"),
        (r#"{"types":[]}"#, "types"),
        (r#"{"types":["a","b c"]}"#, "types[1]"),
        (r#"{"types":["a",1]}"#, "types[1]"),
        (r#"{"types":["a"],"max":0}"#, "max"),
        (r#"{"types":["a"],"max":1001}"#, "max"),
        (r#"{"types":["a"],"wait":"2m"}"#, "wait"),
        (r#"{"types":["a"],"wait":1}"#, "wait"),
        (r#"{"types":["a"],"wrk":"x"}"#, "wrk"),
    ] {
        server.post("/v1/tasks/claim", body).await.invalid(path);
    }
    for kind in [Some("text/plain"), Some("application/x-www-form-urlencoded"), None] {
        let mut request = Request::post("/v1/tasks/claim");
        if let Some(kind) = kind {
            request = request.header("content-type", kind);
        }
        let request = request.body(Body::from(r#"{"types":["a"]}"#)).unwrap();
        server.send(request).await.refused(415, "unsupported_media_type");
    }
}

#[tokio::test]
async fn the_first_result_of_an_attempt_counts() {
    let server = Server::start();
    server.register_echo("order").await;
    server.start_run("order", "r1", "{}").await;
    let token = server.claim("order-pack").await["token"].as_str().unwrap().to_owned();
    let complete = format!("/v1/tasks/{token}/complete");
    assert_eq!(server.post(&complete, r#"{"output":1}"#).await.status, 200);
    assert_eq!(server.post(&complete, r#"{"output":1}"#).await.status, 200, "an exact repeat is accepted");
    server.post(&complete, r#"{"output":2}"#).await.refused(409, "stale_token");
    server.post(&format!("/v1/tasks/{token}/fail"), "").await.refused(409, "stale_token");
    let heartbeat = server.post(&format!("/v1/tasks/{token}/heartbeat"), "").await;
    heartbeat.refused(409, "stale_token");
    assert_eq!(server.get("/v1/runs/r1?wait=10s").await.json()["output"], 1);
}

#[tokio::test]
async fn a_token_that_is_not_ours_is_unknown() {
    let server = Server::start();
    for call in ["complete", "fail", "release", "heartbeat"] {
        for token in ["nope", "%00", "AQAA", &"A".repeat(10_000)] {
            server.post(&format!("/v1/tasks/{token}/{call}"), "").await.refused(404, "unknown_token");
        }
    }
    server.post("/v1/tasks/nope/complete", r#"{"outputs":1}"#).await.invalid("outputs");
    server.post("/v1/tasks/nope/fail", r#"{"retry_after":"-1s"}"#).await.invalid("retry_after");
}

#[tokio::test]
async fn a_failure_tells_its_code_and_where() {
    let server = Server::start();
    server.register_echo("order").await;
    server.start_run("order", "r1", "{}").await;
    let token = server.claim("order-pack").await["token"].as_str().unwrap().to_owned();
    let failure = json!({"code": "card_declined", "message": "<img src=x>\r\n\u{0}", "retryable": false});
    assert_eq!(server.post(&format!("/v1/tasks/{token}/fail"), failure.to_string()).await.status, 200);
    let run = server.get("/v1/runs/r1?wait=10s").await.json();
    assert_eq!(run["status"], "failed");
    assert_eq!(
        run["error"],
        json!({"code": "card_declined", "message": "<img src=x>\r\n\u{0}", "task": "pack", "attempt": 1})
    );
}

#[tokio::test]
async fn a_released_task_comes_back_without_using_an_attempt() {
    let server = Server::start();
    server.register_echo("order").await;
    server.start_run("order", "r1", "{}").await;
    let first = server.claim("order-pack").await;
    let token = first["token"].as_str().unwrap();
    let alive = server.post(&format!("/v1/tasks/{token}/heartbeat"), r#"{"progress":{"done":1}}"#).await;
    assert_eq!((alive.status, alive.json()["cancelled"].clone()), (200, json!(false)));
    assert!(alive.json()["deadline"].as_str().unwrap().ends_with('Z'));
    assert_eq!(server.post(&format!("/v1/tasks/{token}/release"), "").await.status, 200);
    let second = server.claim("order-pack").await;
    assert_eq!(second["attempt"], 1);
    assert_ne!(second["token"], first["token"]);
    server.post(&format!("/v1/tasks/{token}/complete"), "{}").await.refused(409, "stale_token");
}

#[tokio::test]
async fn an_output_over_the_limit_fails_the_task_for_good() {
    let server = Server::start();
    server.register_echo("order").await;
    for (id, size) in [("r1", (1 << 20) + 1), ("r2", 5 << 20), ("r3", 9 << 20)] {
        server.start_run("order", id, "{}").await;
        let token = server.claim("order-pack").await["token"].as_str().unwrap().to_owned();
        let body = format!("{{\"output\":\"{}\"}}", "x".repeat(size - 2));
        let answer = server.post(&format!("/v1/tasks/{token}/complete"), body).await;
        assert!((400..500).contains(&answer.status), "{}", answer.text());
        let run = server.get(&format!("/v1/runs/{id}?wait=10s")).await.json();
        assert_eq!((&run["status"], &run["error"]["code"]), (&json!("failed"), &json!("output_too_large")));
        assert_eq!(run["tasks"][0]["attempts"].as_array().unwrap().len(), 1);
    }
}
