//! `/v1/bulk/…`: many runs in one call.

use crate::support::server::Server;
use serde_json::{Value, json};

async fn items(server: &Server, call: &str, body: Value) -> Vec<Value> {
    let answer = server.post(&format!("/v1/bulk/{call}"), body.to_string()).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()["items"].as_array().unwrap().clone()
}

#[tokio::test]
async fn each_start_of_many_has_its_own_answer_in_order() {
    let server = Server::start();
    server.register_echo("order").await;
    let body = r#"{"items":[
        {"workflow":"order","id":"r1","input":{"big":9007199254740993,"f":1.0}},
        {"workflow":"nope"},
        {"workflow":"order","id":"a b"},
        {"workflow":"order","id":"r1","input":{"f":1.0,"big":9007199254740993}},
        {"workflow":"order","id":"r1","input":2},
        {"workflows":"order"},
        7,
        {"workflow":"order","id":"r2","start_at":"+1h","tags":{"batch":"x"}},
        {"workflow":"order","tags":{"a:b":"x"}}
    ]}"#;
    let answer = server.post("/v1/bulk/start", body).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let answer = answer.json();
    assert_eq!(answer["next_cursor"], json!(null));
    let items = answer["items"].as_array().unwrap();
    let told: Vec<_> = items
        .iter()
        .map(|i| match i.get("error") {
            Some(error) => {
                assert!(i.get("status").is_none() && i.get("created").is_none(), "{i}");
                let path = error["faults"][0]["path"].as_str().unwrap_or("");
                format!("{} {} {path}", i["id"].as_str().unwrap_or("-"), error["code"].as_str().unwrap())
            }
            None => {
                format!("{} {} {}", i["id"].as_str().unwrap(), i["status"].as_str().unwrap(), i["created"])
            }
        })
        .collect();
    assert_eq!(
        told,
        [
            "r1 running true",
            "- workflow_not_found ",
            "- invalid_request id",
            "r1 running false",
            "r1 run_id_taken ",
            "- invalid_request workflows",
            "- invalid_request body",
            "r2 pending true",
            "- invalid_request tags.a:b",
        ]
    );
    assert_eq!(items[1]["error"]["status"], 404);
    assert_eq!(server.get("/v1/runs/r1/values/input").await.text(), r#"{"big":9007199254740993,"f":1.0}"#);
}

#[tokio::test]
async fn a_thousand_runs_are_started_in_one_call_and_cancelled_by_a_filter() {
    let server = Server::start();
    server.register_echo("order").await;
    let start = |n: usize| json!({"workflow": "order", "id": format!("r{n}"), "tags": {"batch": "b1"}});
    let started = items(&server, "start", json!({"items": (0..1_000).map(start).collect::<Vec<_>>()})).await;
    assert_eq!(started.len(), 1_000);
    for (n, item) in started.iter().enumerate() {
        assert_eq!(item, &json!({"id": format!("r{n}"), "status": "running", "created": true}));
    }
    server.start_run("order", "other", "1").await;
    // By ids: those that have ended, or are none, have an answer of their own.
    let some = items(&server, "cancel", json!({"ids": ["r3", "nope", "r3", "../x"], "force": true})).await;
    assert_eq!(some[0], json!({"id": "r3", "status": "cancelled"}));
    assert_eq!((&some[1]["id"], &some[1]["error"]["code"]), (&json!("nope"), &json!("run_not_found")));
    let code = some[2]["error"]["code"].as_str().unwrap();
    assert_eq!((code, &some[3]["error"]["code"]), ("run_ended", &json!("invalid_request")));
    // By a filter, in two calls; only those that have not ended.
    let filter = json!({"workflow": "order", "tags": {"batch": "b1"}});
    let first =
        server.post("/v1/bulk/cancel", json!({"filter": filter, "limit": 600}).to_string()).await.json();
    assert_eq!(first["items"].as_array().unwrap().len(), 600);
    let cursor = first["next_cursor"].as_str().unwrap();
    let rest = items(&server, "cancel", json!({"filter": filter, "cursor": cursor})).await;
    assert_eq!(rest.len(), 399);
    assert!(rest.iter().all(|item| item["status"] == "cancelled"), "{rest:?}");
    let page = server.get("/v1/runs?status=running").await.json();
    let left: Vec<_> = page["items"].as_array().unwrap().iter().map(|r| &r["id"]).collect();
    assert_eq!(left, ["other"]);
    assert_eq!(items(&server, "cancel", json!({"filter": filter})).await, Vec::<Value>::new());

    let retried = items(&server, "retry", json!({"filter": filter, "limit": 2})).await;
    assert_eq!(retried.iter().map(|i| &i["status"]).collect::<Vec<_>>(), ["running", "running"]);
    let id = retried[0]["id"].as_str().unwrap();
    let again = items(&server, "retry", json!({"ids": [id, "r3"]})).await;
    assert_eq!(again[0]["error"]["code"], "run_not_ended");
    assert_eq!(again[1], json!({"id": "r3", "status": "running"}));
    assert_eq!(server.get("/v1/runs/r3").await.json()["try"], 2);
}

#[tokio::test]
async fn a_call_that_does_not_fit_does_nothing_and_says_why() {
    let server = Server::start();
    server.register_echo("order").await;
    let many = |n: usize| vec!["x"; n];
    for (call, body, path) in [
        ("start", json!({}), "items"),
        ("start", json!({"items": []}), "items"),
        ("start", json!({"items": many(1_001)}), "items"),
        ("start", json!({"runs": []}), "runs"),
        ("cancel", json!({}), "ids"),
        ("cancel", json!({"ids": []}), "ids"),
        ("cancel", json!({"ids": many(1_001)}), "ids"),
        ("cancel", json!({"ids": [1]}), "ids[0]"),
        ("cancel", json!({"ids": ["a"], "filter": {"workflow": "a"}}), "filter"),
        ("cancel", json!({"ids": ["a"], "limit": 1}), "ids"),
        ("cancel", json!({"filter": {}}), "filter"),
        ("cancel", json!({"filter": {"status": "done"}}), "filter.status"),
        ("cancel", json!({"filter": {"since": "now"}}), "filter.since"),
        ("cancel", json!({"filter": {"states": "x"}}), "filter.states"),
        ("cancel", json!({"filter": {"workflow": "a"}, "limit": 1_001}), "limit"),
        ("retry", json!({"filter": {"workflow": "a"}, "limit": 0}), "limit"),
        ("retry", json!({"ids": ["a"], "force": true}), "force"),
    ] {
        let answer = server.post(&format!("/v1/bulk/{call}"), body.to_string()).await;
        assert_eq!(
            answer.problem(),
            ("invalid_request".to_owned(), vec![path.to_owned()]),
            "{body}: {}",
            answer.text()
        );
    }
    let junk = json!({"filter": {"workflow": "order"}, "cursor": "junk"}).to_string();
    server.post("/v1/bulk/retry", junk).await.refused(400, "invalid_request");
    let large = format!(r#"{{"items":[{{"workflow":"order","input":"{}"}}]}}"#, "x".repeat(9 << 20));
    server.post("/v1/bulk/start", large).await.refused(413, "too_large");
    // One input over its limit is a matter of its item.
    let large =
        json!({"items": [{"workflow": "order", "input": "x".repeat(2 << 20)}, {"workflow": "order"}]});
    let told = items(&server, "start", large).await;
    assert_eq!((&told[0]["error"]["code"], &told[1]["status"]), (&json!("too_large"), &json!("running")));
}
