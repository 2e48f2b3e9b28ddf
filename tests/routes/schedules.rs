//! `/v1/schedules` and `ScheduleService`: what is taken, what is refused, how it is answered.

use crate::support::server::Server;
use downbeat::proto::v1;
use downbeat::proto::v1::schedule_service_client::ScheduleServiceClient;
use serde_json::{Value, json};
use tonic::Code;
use tonic_types::StatusExt as _;

/// A workflow that ends by itself.
async fn quick(server: &Server) {
    let text =
        "name: quick\ninput: { type: object }\ntasks:\n  a: { set: { done: true } }\noutput: ${{ input }}\n";
    let answer = server.put("/v1/workflows/quick", "application/yaml", text).await;
    assert_eq!(answer.status, 201, "{}", answer.text());
}

async fn put(server: &Server, name: &str, body: &Value) -> crate::support::client::Answer {
    server.put(&format!("/v1/schedules/{name}"), "application/json", body.to_string()).await
}

fn nightly() -> Value {
    json!({ "workflow": "quick", "cron": "30 2 * * *", "time_zone": "europe/berlin", "input": {"n": 1} })
}

#[tokio::test]
async fn a_schedule_is_created_read_replaced_listed_and_removed() {
    let server = Server::start();
    quick(&server).await;
    let tried =
        server.put("/v1/schedules/nightly?dry_run=true", "application/json", nightly().to_string()).await;
    assert_eq!(tried.status, 200, "{}", tried.text());
    assert_eq!(tried.json()["next"].as_array().unwrap().len(), 10);
    server.get("/v1/schedules/nightly").await.refused(404, "schedule_not_found");

    let created = put(&server, "nightly", &nightly()).await;
    assert_eq!((created.status, created.header("location")), (201, "/v1/schedules/nightly"));
    let body = created.json();
    for (key, value) in [
        ("name", json!("nightly")),
        ("revision", json!(1)),
        ("workflow", json!("quick")),
        ("version", json!(null)),
        ("input", json!({"n": 1})),
        ("tags", json!({})),
        ("priority", json!(null)),
        ("cron", json!(["30 2 * * *"])),
        ("time_zone", json!("Europe/Berlin")),
        ("overlap", json!("skip")),
        ("catch_up", json!("latest")),
        ("catch_up_limit", json!(100)),
        ("description", json!(null)),
        ("paused", json!(false)),
        ("open", json!([])),
        ("open_count", json!(0)),
        ("firings", json!([])),
    ] {
        assert_eq!(body[key], value, "{key}");
    }
    assert_eq!(server.get("/v1/schedules/nightly").await.json(), body);
    let long = json!({ "workflow": "quick", "cron": "@daily", "input": {"text": "x".repeat(100)} });
    for status in [201, 200] {
        let answer = put(&server, "long", &long).await;
        assert_eq!((answer.status, &answer.json()["revision"]), (status, &json!(1)));
    }
    server.delete("/v1/schedules/long").await;
    let same = put(&server, "nightly", &nightly()).await;
    assert_eq!((same.status, same.json()), (200, body.clone()));
    let mut other = nightly();
    other["cron"] = json!(["@hourly", "15 3 1,15 * mon-fri"]);
    other["paused"] = json!(true);
    let replaced = put(&server, "nightly", &other).await;
    assert_eq!((replaced.status, &replaced.json()["revision"]), (200, &json!(2)));
    assert_eq!(put(&server, "nightly", &nightly()).await.json()["paused"], true, "not said, not changed");

    put(&server, "second", &nightly()).await;
    let page = server.get("/v1/schedules?limit=1").await.json();
    assert_eq!(page["items"][0]["name"], "second");
    assert!(
        page["items"][0].get("input").is_none() && page["items"][0]["next"].as_array().unwrap().len() == 1
    );
    let cursor = page["next_cursor"].as_str().unwrap();
    let page = server.get(&format!("/v1/schedules?limit=1&cursor={cursor}")).await.json();
    assert_eq!((&page["items"][0]["name"], &page["next_cursor"]), (&json!("nightly"), &json!(null)));
    server.get("/v1/schedules?cursor=junk").await.invalid("cursor");

    let next = server.get("/v1/schedules/second/next?count=3").await.json();
    assert_eq!(next["next"].as_array().unwrap().len(), 3);
    server.get("/v1/schedules/second/next?count=101").await.invalid("count");
    for name in ["nightly", "second"] {
        assert_eq!(server.delete(&format!("/v1/schedules/{name}")).await.status, 204);
        server.delete(&format!("/v1/schedules/{name}")).await.refused(404, "schedule_not_found");
        server.post(&format!("/v1/schedules/{name}/pause"), "").await.refused(404, "schedule_not_found");
    }
    assert_eq!(server.get("/v1/schedules").await.json()["items"], json!([]));
}

#[tokio::test]
async fn all_faults_of_a_schedule_are_told_at_once() {
    let server = Server::start();
    quick(&server).await;
    let wrong = json!({
        "workflow": "quick", "cron": ["0 0 30 2 *", "61 * * * *", "@daily"], "time_zone": "Berlin",
        "overlap": "wait", "catch_up": "every", "catch_up_limit": 0, "priority": 1000, "tags": {"a:b": "c"},
    });
    let answer = put(&server, "s", &wrong).await;
    let (code, paths) = answer.problem();
    assert_eq!((answer.status, code.as_str()), (422, "invalid_schedule"));
    assert_eq!(
        paths,
        ["priority", "cron[0]", "cron[1]", "time_zone", "overlap", "catch_up", "catch_up_limit", "tags.a:b"]
    );
    let text = answer.text();
    assert!(text.contains("no February has a day 30") && text.contains("Europe/Berlin"), "{text}");
    let refused = put(&server, "s", &json!({"workflow": "quick", "cron": "@daily", "input": [1]})).await;
    assert_eq!(refused.problem(), ("invalid_schedule".to_owned(), vec!["input".to_owned()]));
    let refused = put(&server, "s", &json!({"workflow": "nope", "cron": "@daily"})).await;
    assert_eq!(refused.problem(), ("invalid_schedule".to_owned(), vec!["workflow".to_owned()]));
    put(&server, "s", &json!({"workflow": "quick"})).await.invalid("cron");
    put(&server, "s", &json!({"workflow": "quick", "cron": 5})).await.invalid("cron");
    put(&server, "s", &json!({"workflow": "quick", "cron": "@daily", "zone": "UTC"})).await.invalid("zone");
    put(&server, &"n".repeat(101), &nightly()).await.invalid("name");
    put(&server, "downbeat.x", &nightly()).await.invalid("name");
    assert_eq!(server.get("/v1/schedules").await.json()["items"], json!([]), "nothing was stored");
}

#[tokio::test]
async fn a_run_by_hand_and_a_backfill_are_started_and_told() {
    let server = Server::start();
    quick(&server).await;
    let mut events = server.watch("/v1/events?type=schedule.*", None).await;
    put(&server, "s", &nightly()).await;
    assert_eq!(server.post("/v1/schedules/s/pause", "").await.json()["paused"], true);
    assert_eq!(server.post("/v1/schedules/s/resume", "{}").await.json()["paused"], false);
    let body = json!({"id": "mine"}).to_string();
    let started = server.post("/v1/schedules/s/run", body.clone()).await;
    assert_eq!((started.status, started.json()), (202, json!({"run": "s.r-mine", "queued": false})));
    let fired = events.next().await.unwrap();
    assert_eq!(fired.event, "schedule.fired");
    let data = fired.json();
    assert_eq!(
        (&data["schedule"], &data["run"], &data["workflow"]),
        (&json!("s"), &json!("s.r-mine"), &json!("quick"))
    );
    let run = server.get("/v1/runs/s.r-mine?wait=10s").await.json();
    assert_eq!((&run["status"], &run["output"]), (&json!("completed"), &json!({"n": 1})));
    assert_eq!((&run["schedule"], run["slot"].is_string()), (&json!("s"), true));
    assert_eq!(server.post("/v1/schedules/s/run", body).await.json()["run"], "s.r-mine", "a repeat is safe");

    let range = json!({"from": "2025-03-08T00:00:00Z", "to": "2025-03-11T00:00:00Z"}).to_string();
    let backfilled = server.post("/v1/schedules/s/backfill", range).await;
    assert_eq!((backfilled.status, backfilled.json()), (202, json!({"slots": 3})));
    for day in 8..11 {
        let event = events.next().await.unwrap().json();
        assert_eq!(event["run"], format!("s.202503{day:02}T013000Z"));
        assert_eq!(event["slot"], format!("2025-03-{day:02}T01:30:00.000000Z"));
    }
    let wrong = json!({"from": "2025-03-08", "to": "2025-03-11T00:00:00Z"}).to_string();
    server.post("/v1/schedules/s/backfill", wrong).await.invalid("from");
    let ahead = json!({"from": "2025-03-08T00:00:00Z", "to": "2999-03-11T00:00:00Z"}).to_string();
    server.post("/v1/schedules/s/backfill", ahead).await.invalid("to");
    // An event is told once its start is answered, and a run may be through before that.
    let view = server.get("/v1/schedules/s").await.json();
    let firings = view["firings"].as_array().unwrap();
    assert_eq!((firings.len(), &firings[0]["run"]), (4, &json!("s.20250310T013000Z")), "newest first");
}

#[tokio::test]
async fn an_id_that_somebody_elses_run_has_is_refused_by_hand() {
    let server = Server::start();
    quick(&server).await;
    assert_eq!(server.start_run("quick", "nightly.r-taken", "{}").await.status, 201);
    assert_eq!(put(&server, "nightly", &nightly()).await.status, 201);
    let taken = server.post("/v1/schedules/nightly/run", r#"{"id":"taken"}"#).await;
    taken.refused(409, "run_id_taken");
    let own = server.post("/v1/schedules/nightly/run", r#"{"id":"mine"}"#).await;
    assert_eq!((own.status, &own.json()["run"]), (202, &json!("nightly.r-mine")));
    assert_eq!(server.post("/v1/schedules/nightly/run", r#"{"id":"mine"}"#).await.status, 202);
}

#[tokio::test]
async fn the_same_over_grpc() {
    let server = Server::start();
    quick(&server).await;
    let mut client = ScheduleServiceClient::new(server.channel().await);
    let definition = v1::ScheduleDefinition {
        workflow: "quick".into(),
        input: "{\"n\":1.0}".into(),
        cron: vec!["30 2 * * *".into()],
        time_zone: "Europe/Berlin".into(),
        overlap: "queue".into(),
        priority: Some(0),
        ..Default::default()
    };
    let request = v1::PutScheduleRequest {
        name: "nightly".into(),
        definition: Some(definition.clone()),
        paused: Some(true),
        dry_run: false,
    };
    let put = client.put(request.clone()).await.unwrap().into_inner();
    let schedule = put.schedule.unwrap();
    assert!(put.created && schedule.paused && schedule.next_us.len() == 10);
    let expected =
        v1::ScheduleDefinition { catch_up: "latest".into(), catch_up_limit: 100, ..definition.clone() };
    assert_eq!(schedule.definition, Some(expected));
    let name = || "nightly".to_owned();
    assert_eq!(client.get(v1::GetScheduleRequest { name: name() }).await.unwrap().into_inner(), schedule);
    let resumed = client.resume(v1::ResumeScheduleRequest { name: name() }).await.unwrap().into_inner();
    assert!(!resumed.paused);
    let run = v1::RunScheduleRequest { name: name(), id: "x".into() };
    assert_eq!(client.run(run).await.unwrap().into_inner().run, "nightly.r-x");
    let next = client.next(v1::NextFiringsRequest { name: name(), count: 0 }).await.unwrap().into_inner();
    assert_eq!(next.next_us, schedule.next_us);
    let range = v1::BackfillScheduleRequest {
        name: name(),
        from_us: 1_741_392_000_000_000,
        to_us: 1_741_564_800_000_000,
    };
    assert_eq!(client.backfill(range).await.unwrap().into_inner().slots, 2);
    assert!(client.pause(v1::PauseScheduleRequest { name: name() }).await.unwrap().into_inner().paused);
    let page = client.list(v1::ListSchedulesRequest::default()).await.unwrap().into_inner();
    assert_eq!((page.schedules.len(), page.next_cursor.as_str()), (1, ""));
    assert!(page.schedules[0].definition.as_ref().unwrap().input.is_empty());

    let mut wrong = request;
    wrong.definition =
        Some(v1::ScheduleDefinition { cron: vec!["* * *".into()], overlap: "no".into(), ..definition });
    let status = client.put(wrong).await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
    assert_eq!(status.get_error_details().error_info().unwrap().reason, "invalid_schedule");
    let fields = status.get_error_details().bad_request().unwrap().field_violations.clone();
    assert_eq!(fields.iter().map(|f| f.field.as_str()).collect::<Vec<_>>(), ["cron", "overlap"]);
    client.delete(v1::DeleteScheduleRequest { name: name() }).await.unwrap();
    let gone = client.get(v1::GetScheduleRequest { name: name() }).await.unwrap_err();
    assert_eq!(gone.code(), Code::NotFound);
    assert_eq!(gone.get_error_details().error_info().unwrap().reason, "schedule_not_found");
}
