//! `/v1/workflows`.

use crate::support::server::Server;
use axum::body::Body;
use http::Request;
use serde_json::json;

const YAML: &str = "name: order\ntasks:\n  pack:\n    type: pack\n";
const JSON: &str = r#"{"tasks":{"pack":{"type":"pack"}},"name":"order"}"#;

#[tokio::test]
async fn a_document_is_registered_once_and_read_back() {
    let server = Server::start();
    let first = server.put("/v1/workflows/order", "application/yaml", YAML).await;
    assert_eq!((first.status, first.header("location")), (201, "/v1/workflows/order/versions/1"));
    let body = first.json();
    assert_eq!((&body["name"], &body["version"], &body["newest"]), (&json!("order"), &json!(1), &json!(1)));
    assert!(body["created_at"].as_str().unwrap().ends_with('Z'));

    let same = server.put("/v1/workflows/order", "application/json; charset=utf-8", JSON).await;
    assert_eq!((same.status, same.json()["version"].clone()), (200, json!(1)));

    let other =
        server.put("/v1/workflows/order", "application/yaml", format!("{YAML}description: x\n")).await;
    assert_eq!((other.status, other.json()["version"].clone()), (201, json!(2)));
    assert_eq!(server.get("/v1/workflows/order").await.json()["version"], 2);
    let old = server.get("/v1/workflows/order/versions/1").await.json();
    assert_eq!((&old["version"], &old["newest"]), (&json!(1), &json!(2)));
    assert_eq!(old["document"]["tasks"]["pack"]["type"], "pack");
    server.get("/v1/workflows/order/versions/3").await.refused(404, "workflow_not_found");
    server.get("/v1/workflows/order/versions/x").await.invalid("version");
}

#[tokio::test]
async fn a_dry_run_stores_nothing() {
    let server = Server::start();
    let dry = server.put("/v1/workflows/order?dry_run=true", "application/yaml", YAML).await;
    assert_eq!((dry.status, dry.json()["created_at"].clone()), (200, json!(null)));
    server.get("/v1/workflows/order").await.refused(404, "workflow_not_found");
    server.put("/v1/workflows/order?dry_run=maybe", "application/yaml", YAML).await.invalid("dry_run");
    server.put("/v1/workflows/order?dryrun=true", "application/yaml", YAML).await.invalid("dryrun");
}

#[tokio::test]
async fn faults_come_all_at_once_with_paths_and_lines() {
    let server = Server::start();
    let text = "name: order\ntasks:\n  a:\n    type: x\n    needs: [fetchh]\n  b:\n    typo: x\n";
    let answer = server.put("/v1/workflows/order", "application/yaml", text).await;
    answer.refused(422, "invalid_workflow");
    let faults = answer.json()["faults"].as_array().unwrap().clone();
    assert!(faults.len() >= 2, "{faults:?}");
    assert!(faults.iter().any(|f| f["message"].as_str().unwrap().contains("fetchh")), "{faults:?}");
    assert!(faults.iter().all(|f| f["line"].is_u64()), "{faults:?}");
    server.get("/v1/workflows/order").await.refused(404, "workflow_not_found");
}

#[tokio::test]
async fn names_types_and_sizes_are_checked_at_the_door() {
    let server = Server::start();
    for name in ["a%20b", "%2e%2e%2fx", "-a", &"a".repeat(129), "%C3%A4", "a%0Ab"] {
        server.put(&format!("/v1/workflows/{name}"), "application/yaml", YAML).await.invalid("name");
        server.get(&format!("/v1/workflows/{name}")).await.invalid("name");
    }
    server.put("/v1/workflows/order", "text/plain", YAML).await.refused(415, "unsupported_media_type");
    let untyped = Request::put("/v1/workflows/order").body(Body::from(YAML)).unwrap();
    server.send(untyped).await.refused(415, "unsupported_media_type");
    let large = format!("{YAML}description: {}\n", "x".repeat(1 << 20));
    server.put("/v1/workflows/order", "application/yaml", large).await.refused(413, "too_large");
    let other = server.put("/v1/workflows/parcel", "application/yaml", YAML).await;
    other.refused(400, "invalid_request");
}

#[tokio::test]
async fn workflows_are_listed_in_pages_and_removed() {
    let server = Server::start();
    for name in ["a", "b", "c"] {
        server.register_echo(name).await;
    }
    let page = server.get("/v1/workflows?limit=2").await.json();
    let names = |page: &serde_json::Value| -> Vec<String> {
        let items = page["items"].as_array().unwrap();
        items.iter().map(|w| w["name"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(names(&page), ["c", "b"]);
    assert!(page["items"][0].get("document").is_none());
    let next = page["next_cursor"].as_str().unwrap();
    let last = server.get(&format!("/v1/workflows?limit=2&cursor={next}")).await.json();
    assert_eq!((names(&last), &last["next_cursor"]), (vec!["a".to_owned()], &json!(null)));
    let all = server.get("/v1/workflows?limit=3").await.json();
    assert_eq!((names(&all).len(), &all["next_cursor"]), (3, &json!(null)), "a full page may be the last");

    // A new version brings its workflow to the front, with its own time.
    let text = "name: a\ndescription: again\ntasks:\n  pack:\n    type: pack\n";
    let again = server.put("/v1/workflows/a", "application/yaml", text).await.json();
    let all = server.get("/v1/workflows").await.json();
    assert_eq!(names(&all), ["a", "c", "b"]);
    let first = &all["items"][0];
    assert_eq!(
        (&first["version"], &first["newest"], &first["created_at"]),
        (&json!(2), &json!(2), &again["created_at"])
    );

    server.get("/v1/workflows?limit=501").await.invalid("limit");
    for junk in ["%21%21", "a", "x", &next[1..], "5.a"] {
        server.get(&format!("/v1/workflows?cursor={junk}")).await.invalid("cursor");
    }

    assert_eq!(server.start_run("a", "r1", "null").await.status, 201);
    server.delete("/v1/workflows/a").await.refused(409, "workflow_in_use");
    assert_eq!(server.delete("/v1/workflows/b").await.status, 204);
    server.delete("/v1/workflows/b").await.refused(404, "workflow_not_found");
}
