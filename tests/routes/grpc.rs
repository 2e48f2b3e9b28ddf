//! `downbeat.v1`: workflows, runs and tasks over gRPC, health, reflection, and what is refused.

use crate::support::client::{Worker, soon};
use crate::support::server::Server;
use axum::body::Body;
use bytes::Bytes;
use downbeat::proto::v1;
use downbeat::proto::v1::run_service_client::RunServiceClient;
use downbeat::proto::v1::start_ack::Outcome;
use downbeat::proto::v1::task_service_client::TaskServiceClient;
use downbeat::proto::v1::watch_item::Item;
use downbeat::proto::v1::workflow_service_client::WorkflowServiceClient;
use http::Request;
use std::collections::BTreeMap;
use tonic::Code;
use tonic_types::StatusExt as _;

const EXACT: &[u8] = br#"{"big":9007199254740993,"f":1.0,"l":[],"o":{}, "z":null}"#;

fn start(id: &str) -> v1::StartRunRequest {
    v1::StartRunRequest {
        workflow: "order".into(),
        id: id.into(),
        input: Bytes::from_static(EXACT),
        ..v1::StartRunRequest::default()
    }
}

#[tokio::test]
async fn workflows_mirror_rest() {
    let server = Server::start();
    let mut client = WorkflowServiceClient::new(server.channel().await);
    let register = |text: &'static str| v1::RegisterWorkflowRequest {
        document: Bytes::from_static(text.as_bytes()),
        ..v1::RegisterWorkflowRequest::default()
    };
    let text = "name: order\ntasks: { pack: { type: pack } }\n";
    let first = client.register(register(text)).await.unwrap().into_inner();
    assert!(first.created);
    let again = client.register(register(text)).await.unwrap().into_inner();
    assert_eq!((again.created, again.workflow.unwrap().version), (false, 1));
    let listed = client.list(v1::ListWorkflowsRequest::default()).await.unwrap().into_inner();
    assert_eq!(listed.workflows.iter().map(|w| w.name.as_str()).collect::<Vec<_>>(), ["order"]);
    assert_eq!(listed.workflows[0].created_at_us, first.workflow.as_ref().unwrap().created_at_us);
    assert!(listed.workflows[0].created_at_us > 0);
    let request = v1::GetWorkflowRequest { name: "order".into(), version: 1 };
    let got = client.get(request).await.unwrap().into_inner();
    assert_eq!(got.document, first.workflow.unwrap().document);

    let bad = client
        .register(register("name: order\ntasks: { a: { type: x, needs: [b] }, c: { typo: 1 } }\n"))
        .await;
    let bad = bad.unwrap_err();
    assert_eq!(bad.code(), Code::InvalidArgument);
    let details = bad.get_error_details();
    assert_eq!(details.error_info().unwrap().reason, "invalid_workflow");
    assert!(details.bad_request().unwrap().field_violations.len() >= 2);

    client.delete(v1::DeleteWorkflowRequest { name: "order".into() }).await.unwrap();
    let gone = client.get(v1::GetWorkflowRequest { name: "order".into(), version: 0 }).await.unwrap_err();
    assert_eq!(gone.code(), Code::NotFound);
    assert_eq!(gone.get_details_error_info().unwrap().reason, "workflow_not_found");
}

#[tokio::test]
async fn a_run_goes_through_without_http() {
    let server = Server::start();
    server.register_echo("order").await;
    let channel = server.channel().await;
    let (mut runs, mut tasks) = (RunServiceClient::new(channel.clone()), TaskServiceClient::new(channel));
    let started = runs.start(start("r1")).await.unwrap().into_inner();
    assert!(started.created);
    assert_eq!(started.run.unwrap().status(), v1::RunStatus::Running);
    assert!(!runs.start(start("r1")).await.unwrap().into_inner().created);

    let claim =
        v1::ClaimRequest { types: vec!["order-pack".into()], wait_ms: 10_000, ..v1::ClaimRequest::default() };
    let assignment = tasks.claim(claim).await.unwrap().into_inner().assignments.remove(0);
    assert_eq!((assignment.run.as_str(), assignment.task.as_str(), assignment.attempt), ("r1", "pack", 1));
    assert_eq!(assignment.input, EXACT);
    let beat = v1::HeartbeatTaskRequest { token: assignment.token.clone(), progress: Bytes::new() };
    assert!(!tasks.heartbeat(beat).await.unwrap().into_inner().cancelled);
    let complete =
        v1::CompleteTaskRequest { token: assignment.token.clone(), output: Bytes::from_static(EXACT) };
    tasks.complete(complete.clone()).await.unwrap();
    tasks.complete(complete).await.unwrap();
    let fail = v1::FailTaskRequest { token: assignment.token, failure: None };
    let stale = tasks.fail(fail).await.unwrap_err();
    assert_eq!(
        (stale.code(), stale.get_details_error_info().unwrap().reason),
        (Code::FailedPrecondition, "stale_token".into())
    );

    let run = runs.get(v1::GetRunRequest { id: "r1".into(), wait_ms: 10_000 }).await.unwrap().into_inner();
    assert_eq!(
        (run.status(), run.input.as_ref(), run.output.as_ref()),
        (v1::RunStatus::Completed, EXACT, EXACT)
    );
    assert_eq!((run.tasks[0].status.as_str(), run.tasks[0].attempts[0].number), ("completed", 1));
    assert!(
        run.created_at_us <= run.started_at_us
            && run.started_at_us <= run.ended_at_us
            && run.created_at_us > 0
    );
    let value = v1::GetValueRequest { id: "r1".into(), field: "tasks.pack.output".into() };
    assert_eq!(runs.get_value(value).await.unwrap().into_inner().json, EXACT);
    let listed =
        v1::ListRunsRequest { status: v1::RunStatus::Completed.into(), ..v1::ListRunsRequest::default() };
    let listed = runs.list(listed).await.unwrap().into_inner().runs.remove(0);
    assert_eq!(listed.id, "r1");
    assert!(listed.input.is_empty() && listed.output.is_empty() && listed.tasks.is_empty(), "{listed:?}");
    let junk = v1::ListRunsRequest { cursor: "junk".into(), ..v1::ListRunsRequest::default() };
    let status = runs.list(junk).await.unwrap_err();
    assert_eq!(
        (status.code(), status.get_details_bad_request().unwrap().field_violations[0].field.as_str()),
        (Code::InvalidArgument, "cursor")
    );
    let page = v1::ListTasksRequest { id: "r1".into(), ..v1::ListTasksRequest::default() };
    assert_eq!(runs.list_tasks(page).await.unwrap().into_inner().tasks[0].task, "pack");
    let ended =
        runs.cancel(v1::CancelRunRequest { id: "r1".into(), ..Default::default() }).await.unwrap_err();
    assert_eq!(ended.get_details_error_info().unwrap().reason, "run_ended");
    runs.delete(v1::DeleteRunRequest { id: "r1".into() }).await.unwrap();
    let gone = runs.get(v1::GetRunRequest { id: "r1".into(), wait_ms: 0 }).await.unwrap_err();
    assert_eq!(gone.code(), Code::NotFound);
}

#[tokio::test]
async fn many_starts_are_acknowledged_one_by_one() {
    let server = Server::start();
    server.register_echo("order").await;
    let mut client = RunServiceClient::new(server.channel().await);
    let mut starts: Vec<v1::NumberedStart> = (0..300)
        .map(|n| v1::NumberedStart { sequence: n, start: Some(start(&format!("r{}", n % 200))) })
        .collect();
    starts.push(v1::NumberedStart { sequence: 300, start: Some(start("not an id")) });
    starts.push(v1::NumberedStart { sequence: 301, start: None });
    let waiting = v1::StartRunRequest { wait_ms: 1, ..start("w") };
    starts.push(v1::NumberedStart { sequence: 302, start: Some(waiting) });
    let batches: Vec<_> = starts.chunks(7).map(|c| v1::StartManyRequest { starts: c.to_vec() }).collect();
    let mut answers = client.start_many(tokio_stream::iter(batches)).await.unwrap().into_inner();
    let mut outcomes = BTreeMap::new();
    while let Some(answer) = soon(answers.message()).await.unwrap() {
        for ack in answer.acks {
            assert!(outcomes.insert(ack.sequence, ack.outcome.unwrap()).is_none(), "{} twice", ack.sequence);
        }
    }
    assert_eq!(outcomes.keys().copied().collect::<Vec<_>>(), (0..303).collect::<Vec<_>>());
    let created = outcomes.values().filter(|o| matches!(o, Outcome::Started(s) if s.created)).count();
    assert_eq!(created, 200);
    for (sequence, path) in [(300, "id"), (301, "start"), (302, "wait_ms")] {
        let Outcome::Refused(problem) = &outcomes[&sequence] else { panic!("{sequence}") };
        assert_eq!((problem.code.as_str(), problem.faults[0].path.as_str()), ("invalid_request", path));
    }
}

#[tokio::test]
async fn watch_tells_the_events_of_a_run_and_ends() {
    let server = Server::start();
    server.register_echo("order").await;
    let mut client = RunServiceClient::new(server.channel().await);
    client.start(start("r1")).await.unwrap();
    let request = |after: &str| v1::WatchRequest {
        run: "r1".into(),
        after: after.into(),
        ..v1::WatchRequest::default()
    };
    let mut stream = client.watch(request("")).await.unwrap().into_inner();
    let token = server.claim("order-pack").await["token"].as_str().unwrap().to_owned();
    server.post(&format!("/v1/tasks/{token}/complete"), "{\"output\":1.0}").await;
    let mut events = Vec::new();
    while let Some(batch) = soon(stream.message()).await.unwrap() {
        for item in batch.items {
            let Some(Item::Event(event)) = item.item else { panic!("{item:?}") };
            events.push(event);
        }
    }
    let kinds: Vec<_> = events.iter().map(|e| e.r#type.as_str()).collect();
    assert_eq!(kinds, ["run.started", "task.queued", "task.started", "task.completed", "run.completed"]);
    assert_eq!(events[4].output.as_deref(), Some(&b"1.0"[..]));
    let mut ended = client.watch(request(&events[4].cursor)).await.unwrap().into_inner();
    assert_eq!(soon(ended.message()).await.unwrap(), None);
    let mut reset = client.watch(request("junk")).await.unwrap().into_inner();
    let first = soon(reset.message()).await.unwrap().unwrap().items.remove(0);
    assert!(matches!(first.item, Some(Item::Reset(_))));
    let unknown = v1::WatchRequest { run: "nope".into(), ..v1::WatchRequest::default() };
    assert_eq!(client.watch(unknown).await.unwrap_err().code(), Code::NotFound);
    let filtered =
        v1::WatchRequest { run: "r1".into(), r#type: "run.*".into(), ..v1::WatchRequest::default() };
    assert_eq!(client.watch(filtered).await.unwrap_err().code(), Code::InvalidArgument);
}

#[tokio::test]
async fn health_is_true_for_every_service_and_no_other() {
    use tonic_health::pb::health_client::HealthClient;
    use tonic_health::pb::{HealthCheckRequest, health_check_response::ServingStatus};
    let server = Server::start();
    let mut client = HealthClient::new(server.channel().await);
    for service in ["", "downbeat.v1.RunService", "downbeat.v1.WorkerService"] {
        let answer = client.check(HealthCheckRequest { service: service.into() }).await.unwrap().into_inner();
        assert_eq!(answer.status(), ServingStatus::Serving, "{service}");
    }
    let unknown = client.check(HealthCheckRequest { service: "nope".into() }).await.unwrap_err();
    assert_eq!(unknown.code(), Code::NotFound);
    let mut watch = client.watch(HealthCheckRequest::default()).await.unwrap().into_inner();
    assert_eq!(soon(watch.message()).await.unwrap().unwrap().status(), ServingStatus::Serving);
}

#[tokio::test]
async fn reflection_lists_the_services() {
    use tonic_reflection::pb::v1::ServerReflectionRequest;
    use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
    use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
    use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;
    let server = Server::start();
    let mut client = ServerReflectionClient::new(server.channel().await);
    let request = ServerReflectionRequest {
        message_request: Some(MessageRequest::ListServices(String::new())),
        ..ServerReflectionRequest::default()
    };
    let mut answers =
        client.server_reflection_info(tokio_stream::iter([request])).await.unwrap().into_inner();
    let answer = soon(answers.message()).await.unwrap().unwrap().message_response.unwrap();
    let MessageResponse::ListServicesResponse(list) = answer else { panic!("{answer:?}") };
    let names: Vec<_> = list.service.iter().map(|s| s.name.as_str()).collect();
    for name in ["WorkflowService", "RunService", "ScheduleService", "TaskService", "WorkerService"] {
        assert!(names.contains(&format!("downbeat.v1.{name}").as_str()), "{names:?}");
    }
    assert!(names.contains(&"grpc.health.v1.Health"));
}

#[tokio::test]
async fn what_is_no_method_is_unimplemented() {
    let server = Server::start();
    for path in ["/downbeat.v1.NopeService/Get", "/downbeat.v1.RunService/Nope"] {
        let mut client = tonic::client::Grpc::new(server.channel().await);
        client.ready().await.unwrap();
        let codec = tonic_prost::ProstCodec::<v1::Ping, v1::Ping>::default();
        let answer = client.unary(tonic::Request::new(v1::Ping {}), path.parse().unwrap(), codec).await;
        assert_eq!(answer.unwrap_err().code(), Code::Unimplemented, "{path}");
    }
}

#[tokio::test]
async fn grpc_needs_http_2_and_its_media_type() {
    let server = Server::start();
    for kind in ["application/grpc", "application/json"] {
        let request = Request::post("/downbeat.v1.RunService/Get").header("content-type", kind);
        server.send(request.body(Body::empty()).unwrap()).await.invalid("request");
    }
}

#[tokio::test]
async fn messages_over_the_limit_compressed_or_broken_are_refused() {
    let server = Server::start();
    let mut client = RunServiceClient::new(server.channel().await);
    let large = |size: usize| v1::StartRunRequest { input: vec![b'1'; size].into(), ..start("r1") };
    for size in [(1 << 20) + 1, 5 << 20, 9 << 20] {
        let status = client.start(large(size)).await.unwrap_err();
        assert_eq!(status.code(), Code::ResourceExhausted, "{size}: {status:?}");
        assert_eq!(status.get_details_error_info().unwrap().reason, "too_large");
    }
    let mut tasks = TaskServiceClient::new(server.channel().await);
    server.register_echo("order").await;
    server.start_run("order", "r2", "null").await;
    let token = server.claim("order-pack").await["token"].as_str().unwrap().to_owned();
    let complete = v1::CompleteTaskRequest { token, output: vec![b'1'; 9 << 20].into() };
    assert_eq!(tasks.complete(complete).await.unwrap_err().code(), Code::ResourceExhausted);
    let run = server.get("/v1/runs/r2?wait=10s").await.json();
    assert_eq!(run["error"]["code"], "output_too_large");
    let mut zipped = RunServiceClient::new(server.channel().await)
        .send_compressed(tonic::codec::CompressionEncoding::Gzip);
    assert_eq!(zipped.start(start("r1")).await.unwrap_err().code(), Code::Unimplemented);
    let mut raw = tonic::client::Grpc::new(server.channel().await);
    raw.ready().await.unwrap();
    // A string field that is no UTF-8.
    let codec = tonic_prost::ProstCodec::<v1::GetValueResponse, v1::Run>::default();
    let junk = v1::GetValueResponse { json: Bytes::from_static(b"\xff\xfe") };
    let path = "/downbeat.v1.RunService/Get".parse().unwrap();
    let status = raw.unary(tonic::Request::new(junk), path, codec).await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument, "{status:?}");
}

#[tokio::test]
async fn values_too_large_for_one_answer_stand_as_their_address() {
    let server = Server::start();
    server.register_echo("order").await;
    let input = format!("\"{}\"", "x".repeat((1 << 20) - 2));
    server.start_run("order", "r1", &input).await;
    let token = server.claim("order-pack").await["token"].as_str().unwrap().to_owned();
    server.post(&format!("/v1/tasks/{token}/complete"), format!("{{\"output\":{input}}}")).await;
    let answer = server.get("/v1/runs/r1?wait=10s").await;
    assert!(answer.body.len() <= 3 << 20, "{}", answer.body.len());
    let run = answer.json();
    let task = &run["tasks"][0];
    let values = [&run["input"], &run["output"], &task["output"], &task["attempts"][0]["input"]];
    let references: Vec<_> = values.iter().filter(|v| v.is_object()).collect();
    assert!(!references.is_empty() && references.len() < values.len());
    for reference in references {
        assert_eq!(reference["size"].as_u64(), Some(1 << 20));
        assert_eq!(server.get(reference["$ref"].as_str().unwrap()).await.text(), input);
    }
    let mut client = RunServiceClient::new(server.channel().await);
    let run = client.get(v1::GetRunRequest { id: "r1".into(), wait_ms: 0 }).await.unwrap().into_inner();
    let attempt = &run.tasks[0].attempts[0];
    let values = [&run.input, &run.output, &run.tasks[0].output, &attempt.input];
    assert!(values.iter().any(|v| v.starts_with(b"{\"$ref\":\"/v1/runs/r1/values/")));
}

#[tokio::test]
async fn a_claim_takes_no_more_than_its_answer_can_carry() {
    let server = Server::start();
    server.register_echo("order").await;
    let input = format!("\"{}\"", "x".repeat((1 << 20) - 2));
    for n in 0..6 {
        assert_eq!(server.start_run("order", &format!("r{n}"), &input).await.status, 201);
    }
    let mut client = TaskServiceClient::new(server.channel().await);
    let mut seen = std::collections::BTreeSet::new();
    while seen.len() < 6 {
        let claim = v1::ClaimRequest {
            types: vec!["order-pack".into()],
            max: 6,
            wait_ms: 5_000,
            ..v1::ClaimRequest::default()
        };
        let claimed = client.claim(claim).await.unwrap().into_inner().assignments;
        assert!(!claimed.is_empty());
        for assignment in claimed {
            assert_eq!(assignment.attempt, 1);
            assert!(seen.insert(assignment.run));
        }
    }
}

#[tokio::test]
async fn an_input_is_the_same_on_every_way() {
    let server = Server::start();
    server.register_echo("order").await;
    let mut client = RunServiceClient::new(server.channel().await);
    client.start(start("r1")).await.unwrap();
    let (mut worker, _) = Worker::hello(&server, "order-pack", 1).await;
    assert_eq!(worker.assignment().await.input, EXACT);
    let text = std::str::from_utf8(EXACT).unwrap();
    assert_eq!(server.get("/v1/runs/r1/values/input").await.text(), text);
    assert!(server.get("/v1/runs/r1").await.text().contains(text));
}
