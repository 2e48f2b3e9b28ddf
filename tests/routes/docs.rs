//! `/livez`, `/readyz`, `/openapi.json`, `/docs`, and what is at no address at all.

use crate::support::client::soon;
use crate::support::server::Server;
use axum::body::Body;
use http::Request;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

#[tokio::test]
async fn probes_answer() {
    let server = Server::start();
    assert_eq!(server.get("/livez").await.json(), serde_json::json!({"status": "alive"}));
    assert_eq!(server.get("/readyz").await.json(), serde_json::json!({"status": "ready"}));
}

#[tokio::test]
async fn the_description_and_its_page_are_served() {
    let server = Server::start();
    let description = server.get("/openapi.json").await;
    assert_eq!(description.body, downbeat::api::openapi_json());
    assert_eq!(description.header("content-type"), "application/json");
    let page = server.get("/docs").await;
    assert_eq!((page.status, page.header("content-type")), (200, "text/html; charset=utf-8"));
    assert!(page.header("content-security-policy").starts_with("default-src 'none'"));
    assert!(page.text().contains("/openapi.json"));
    let error = server.get("/docs/errors/stale_token").await;
    assert_eq!((error.status, error.header("content-type")), (200, "text/plain; charset=utf-8"));
    assert!(error.text().starts_with("# stale_token\n"));
    server.get("/docs/errors/nope").await.refused(404, "not_found");
}

#[tokio::test]
async fn the_schema_of_documents_is_served() {
    let server = Server::start();
    let schema = server.get("/v1/schema").await;
    assert_eq!((schema.status, schema.header("content-type")), (200, "application/schema+json"));
    assert_eq!(schema.text(), downbeat::model::document::json_schema());
    assert_eq!(schema.json()["$schema"], "https://json-schema.org/draft/2020-12/schema");
    server.get("/v1/schema?version=1").await.refused(400, "invalid_request");
}

#[tokio::test]
async fn an_address_that_is_none_is_a_problem() {
    let server = Server::start();
    for path in
        ["/nope", "/v1", "/v1/runs/", "/v1/runs/a/b", "/v1/workflows/a/versions", "//", "/v1/runs/a%2Fb/c"]
    {
        server.get(path).await.refused(404, "not_found");
    }
}

#[tokio::test]
async fn a_method_that_is_none_is_a_problem_and_says_which_are() {
    let server = Server::start();
    for (path, allow) in [("/v1/workflows/a", "GET"), ("/v1/tasks/claim", "POST"), ("/livez", "GET")] {
        let request = Request::patch(path).body(Body::empty()).unwrap();
        let answer = server.send(request).await;
        answer.refused(405, "method_not_allowed");
        assert!(answer.header("allow").contains(allow), "{:?}", answer.header("allow"));
    }
}

#[tokio::test]
async fn a_compressed_body_is_refused_before_it_is_read() {
    let server = Server::start();
    let request = Request::post("/v1/runs")
        .header("content-type", "application/json")
        .header("content-encoding", "gzip")
        .body(Body::from(vec![0x1f, 0x8b, 8, 0]))
        .unwrap();
    server.send(request).await.refused(415, "unsupported_media_type");
}

#[tokio::test]
async fn requests_that_are_no_http_do_no_harm() {
    let server = Server::start();
    for junk in [&b"\x16\x03\x01\x02\x00\x01\x00"[..], b"GET\r\n\r\n", b"\r\n\r\n\r\n", &[0; 4096]] {
        let mut stream = tokio::net::TcpStream::connect(server.address()).await.unwrap();
        let _ = stream.write_all(junk).await;
        let _ = stream.shutdown().await;
        let mut answer = Vec::new();
        let _ = soon(stream.read_to_end(&mut answer)).await;
        assert!(!answer.starts_with(b"HTTP/1.1 2"), "{:?}", String::from_utf8_lossy(&answer));
    }
    let long = server.get(&format!("/v1/runs/{}", "a".repeat(60_000))).await;
    assert!((400..500).contains(&long.status), "{long:?}");
    assert_eq!(server.get("/livez").await.status, 200);
}
