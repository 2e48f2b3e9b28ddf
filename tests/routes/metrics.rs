//! `/metrics`: numbers that are true, of names that are explained, in a number that does not grow.

#![allow(clippy::float_cmp, reason = "counts are exact")]

use crate::support::client::{Worker, soon};
use crate::support::server::Server;
use downbeat::proto::v1;
use downbeat::proto::v1::run_service_client::RunServiceClient;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::Instant;

/// Series with their values.
async fn scrape(server: &Server) -> BTreeMap<String, f64> {
    let answer = server.get("/metrics").await;
    assert_eq!(
        (answer.status, answer.header("content-type")),
        (200, "text/plain; version=0.0.4; charset=utf-8")
    );
    let lines = answer.text().lines().filter(|l| !l.starts_with('#'));
    lines
        .map(|line| {
            let (series, value) = line.rsplit_once(' ').unwrap();
            (series.to_owned(), value.parse().unwrap_or_else(|_| panic!("{line}")))
        })
        .collect()
}

#[tokio::test]
async fn what_happened_is_counted() {
    let server = Server::start();
    server.register_echo("order").await;
    let (mut worker, _) = Worker::hello(&server, "order-pack", 2).await;
    let events = server.watch("/v1/events", None).await;
    for n in 0..3 {
        server.start_run("order", &format!("r{n}"), "1").await;
        let task = worker.assignment().await;
        let outcome = match n {
            0 => v1::result::Outcome::Failed(v1::TaskFailure { code: "no".into(), ..Default::default() }),
            _ => v1::result::Outcome::Completed("1".into()),
        };
        worker.settle(&task.token, outcome).await;
    }
    let mut runs = RunServiceClient::new(server.channel().await);
    drop(runs.get(v1::GetRunRequest { id: "r1".into(), ..Default::default() }).await.unwrap());
    drop(runs.get(v1::GetRunRequest { id: "none".into(), ..Default::default() }).await.unwrap_err());
    let got = scrape(&server).await;
    let value = |series: &str| *got.get(series).unwrap_or_else(|| panic!("{series} is not told: {got:#?}"));
    for (series, wanted) in [
        ("downbeat_runs_total{event=\"started\"}", 3.0),
        ("downbeat_runs_total{event=\"completed\"}", 2.0),
        ("downbeat_runs_total{event=\"failed\"}", 1.0),
        ("downbeat_tasks_total{event=\"queued\"}", 3.0),
        ("downbeat_tasks_total{event=\"started\"}", 3.0),
        ("downbeat_tasks_total{event=\"completed\"}", 2.0),
        ("downbeat_tasks_total{event=\"failed\"}", 1.0),
        ("downbeat_http_requests_total{route=\"/v1/runs\",status=\"2xx\"}", 3.0),
        ("downbeat_http_requests_total{route=\"/v1/workflows/{name}\",status=\"2xx\"}", 1.0),
        ("downbeat_http_request_seconds_count{route=\"/v1/runs\"}", 3.0),
        ("downbeat_grpc_calls_total{method=\"/downbeat.v1.RunService/Get\",code=\"OK\"}", 1.0),
        ("downbeat_grpc_calls_total{method=\"/downbeat.v1.RunService/Get\",code=\"NOT_FOUND\"}", 1.0),
        ("downbeat_streams{kind=\"events\"}", 1.0),
        ("downbeat_streams{kind=\"workers\"}", 1.0),
        ("downbeat_worker_sessions", 1.0),
        ("downbeat_worker_credit", 2.0),
        ("downbeat_worker_credit_used", 0.0),
        ("downbeat_event_followers", 1.0),
        ("downbeat_lane_waiting{kind=\"starts\"}", 0.0),
        ("downbeat_draining", 0.0),
        ("downbeat_store_stuck_seconds", 0.0),
    ] {
        assert_eq!(value(series), wanted, "{series}");
    }
    assert!(value("downbeat_commit_batch_count") >= 6.0);
    assert_eq!(value("downbeat_commit_batch_count"), value("downbeat_commit_seconds_count"));
    assert!(value("downbeat_connections") >= 3.0);
    assert!(value("downbeat_event_tail_age_seconds") < 5.0);
    if cfg!(target_os = "linux") {
        assert!((1e6..1e10).contains(&value("process_resident_memory_bytes")));
        assert!(value("process_open_fds") > 5.0 && value("process_threads") > 1.0);
        assert!(value("process_start_time_seconds") > 1.6e9 && value("process_cpu_seconds_total") > 0.0);
    }
    drop((events, worker));
    // What ended is counted when it ends.
    soon(async {
        let series =
            "downbeat_grpc_calls_total{method=\"/downbeat.v1.WorkerService/Connect\",code=\"CANCELLED\"}";
        while scrape(&server).await.get(series) != Some(&1.0) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn the_number_of_series_does_not_grow_with_what_comes_in() {
    let server = Server::start();
    server.register_echo("first").await;
    server.start_run("first", "r", "1").await;
    drop(RunServiceClient::new(server.channel().await).get(v1::GetRunRequest::default()).await);
    let before = scrape(&server).await.len();
    for n in 0..40 {
        let name = format!("order-{n}");
        server.register_echo(&name).await;
        server.start_run(&name, &format!("run-{n}"), "1").await;
        for path in [format!("/nope/{n}"), format!("/v1/runs/none-{n}"), format!("/metrics/{n}")] {
            assert_eq!(server.get(&path).await.status, 404);
        }
        let claim = format!("{{\"types\":[\"{name}-pack\"],\"worker\":\"worker-{n}\",\"wait\":\"10s\"}}");
        let claimed = server.post("/v1/tasks/claim", claim).await.json();
        let token = claimed[0]["token"].as_str().unwrap().to_owned();
        let failure = format!("{{\"code\":\"code-{n}\",\"message\":\"text {n}\",\"retryable\":false}}");
        assert_eq!(server.post(&format!("/v1/tasks/{token}/fail"), failure).await.status, 200);
        // A method of gRPC that there is not, and one of HTTP.
        let request = http::Request::builder().method(format!("M{n}").as_str()).uri("/v1/runs");
        server
            .send(request.body(axum::body::Body::empty()).unwrap())
            .await
            .refused(405, "method_not_allowed");
        let codec = tonic_prost::ProstCodec::<v1::Ping, v1::Ping>::default();
        let mut raw = tonic::client::Grpc::new(server.channel().await);
        raw.ready().await.unwrap();
        let path = format!("/downbeat.v1.Nope{n}/Method{n}").parse().unwrap();
        drop(raw.unary(tonic::Request::new(v1::Ping {}), path, codec).await.unwrap_err());
    }
    let begun = Instant::now();
    let after = scrape(&server).await;
    let took = begun.elapsed();
    assert!(took < Duration::from_millis(500), "{took:?}");
    let grown = after.len() as f64 / before as f64;
    assert!(grown < 1.02, "{before} before, {} after", after.len());
    assert_eq!(after["downbeat_http_requests_total{route=\"unknown\",status=\"4xx\"}"], 80.0);
    for series in after.keys() {
        assert!(
            !["order-", "run-", "worker-", "code-", "text ", "Nope"].iter().any(|w| series.contains(w)),
            "{series}"
        );
    }
}

#[tokio::test]
async fn every_name_is_explained_and_every_explained_name_is_there() {
    let server = Server::start();
    let answer = server.get("/metrics").await;
    let mut told: Vec<&str> =
        answer.text().lines().filter_map(|l| l.strip_prefix("# TYPE ")?.split(' ').next()).collect();
    let page =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/guide/metrics.md")).unwrap();
    let mut explained: Vec<&str> = page
        .lines()
        .filter(|l| {
            ["gauge", "counter", "histogram"].iter().any(|kind| l.contains(&format!("` | {kind} | ")))
        })
        .filter_map(|l| l.strip_prefix("| `")?.split('`').next())
        .filter(|name| !name.starts_with("downbeat_store_") || *name == "downbeat_store_stuck_seconds")
        .collect();
    told.retain(|name| !name.starts_with("downbeat_store_") || *name == "downbeat_store_stuck_seconds");
    told.sort_unstable();
    explained.sort_unstable();
    assert_eq!(told, explained);
}
