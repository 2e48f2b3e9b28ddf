//! `/v1/tasks`: claim and settle tasks, for workers that only speak HTTP.

use super::extract::{JsonBody, Params, Segments, wait};
use super::view::{AssignmentJson, HeartbeatJson, json};
use crate::api::check::{accepted, check_payload, claim_max, label, labels, task_types, word};
use crate::api::error::{Answer, Problem, Refused};
use crate::api::limits::{JSON_BODY_MAX, RESULT_BODY_MAX};
use crate::api::{Connection, Doors};
use crate::app::App;
use crate::dispatch::message::{AckStatus, TaskOutcome};
use crate::model::command::ReportedFailure;
use crate::model::duration;
use crate::model::error::ErrorCode;
use crate::model::time::Span;
use axum::extract::State;
use http::{Extensions, StatusCode};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use std::collections::BTreeMap;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub(super) fn routes() -> OpenApiRouter<Doors> {
    OpenApiRouter::new()
        .routes(routes!(claim))
        .routes(routes!(complete))
        .routes(routes!(fail))
        .routes(routes!(release))
        .routes(routes!(heartbeat))
}

/// What to claim.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Claim)]
struct ClaimBody {
    /// Task types this worker serves, 1 to 100.
    types: Vec<String>,
    /// 1 to 1,000; 1 if not given.
    #[serde(default = "one")]
    max: u32,
    /// How long to wait for the first task, at most `60s`; not at all if not given.
    #[serde(default)]
    wait: Option<String>,
    /// Name of the worker, for people; its address if not given.
    #[serde(default)]
    worker: String,
    /// What the worker has: it is given tasks that ask for any of this, or for nothing. At most 8; keys and values are 1
    /// to 64 letters, digits, `.`, `_` or `-`.
    #[serde(default)]
    labels: BTreeMap<String, String>,
}

fn one() -> u32 {
    1
}

/// Claim tasks
///
/// Leases up to `max` tasks, the oldest run first. A lease holds for `workers.lease` of the server, 10 s by default; each
/// heartbeat renews it and tells until when. Nothing to do is an empty list.
#[utoipa::path(
    post,
    path = "/v1/tasks/claim",
    tag = "tasks", operation_id = "claimTasks",
    request_body = ClaimBody,
    responses(
        (status = 200, description = "What to do", body = Vec<AssignmentJson<'static>>),
        (status = "default", description = "An error", body = Problem<'static>, content_type = "application/problem+json"),
    ),
)]
async fn claim(
    State(app): State<App>,
    extensions: Extensions,
    query: Params,
    body: JsonBody<JSON_BODY_MAX>,
) -> Answer {
    query.finish()?;
    let claim: ClaimBody = body.read()?;
    let worker = label("worker", claim.worker, || Connection::of(&extensions).label())?;
    let types = task_types(&claim.types)?;
    let labels = labels("labels", &claim.labels)?;
    let max = claim_max(claim.max)?;
    let wait = claim.wait.map_or(Ok(Span(0)), |text| word("wait", &text, wait))?;
    let tasks = app.claim(&worker, &types, &labels, max, wait).await?;
    Ok(json(StatusCode::OK, &tasks.iter().map(AssignmentJson::from).collect::<Vec<_>>()))
}

/// A result was taken.
#[derive(Serialize, ToSchema)]
#[schema(as = Settled)]
struct SettledJson {
    /// Always `accepted`, also for an exact repeat.
    status: &'static str,
}

async fn settle(app: &App, path: &Segments, outcome: TaskOutcome) -> Answer {
    let status: AckStatus = app.settle(path.text("token"), outcome).await?;
    accepted(status)?;
    Ok(json(StatusCode::OK, &SettledJson { status: "accepted" }))
}

/// The result of a task.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Completion)]
struct CompleteBody<'a> {
    /// Any JSON value of at most 1 MiB; null if not given.
    #[serde(borrow, default)]
    #[schema(value_type = serde_json::Value)]
    output: Option<&'a RawValue>,
}

/// Complete a task
///
/// An exact repeat is accepted again. An output over 1 MiB fails the attempt, which is not tried again.
#[utoipa::path(
    post,
    path = "/v1/tasks/{token}/complete",
    tag = "tasks", operation_id = "completeTask",
    params(("token" = String, Path)),
    request_body(content = Option<CompleteBody<'static>>, description = "May be empty"),
    responses(
        (status = 200, description = "It counts", body = SettledJson),
        (status = 409, description = "The token is stale", body = Problem<'static>, content_type = "application/problem+json"),
        (status = "default", description = "Any other error", body = Problem<'static>, content_type = "application/problem+json"),
    ),
)]
async fn complete(
    State(app): State<App>,
    path: Segments,
    query: Params,
    body: Result<JsonBody<RESULT_BODY_MAX>, Refused>,
) -> Answer {
    query.finish()?;
    let body = match body {
        Ok(body) => body,
        Err(Refused(error)) if error.code == ErrorCode::TooLarge => {
            // Unsettled, it would be leased, done and refused again and again.
            let (code, message) = ("output_too_large".to_owned(), error.message.clone());
            let failure = ReportedFailure { code, message, retryable: false, retry_after: None };
            app.settle(path.text("token"), TaskOutcome::Failed(failure)).await?;
            return Err(Refused(error));
        }
        Err(refused) => return Err(refused),
    };
    let CompleteBody { output } = body.read()?;
    // Size and depth are looked at by the application: they fail the attempt.
    settle(&app, &path, TaskOutcome::Completed(body.text(output))).await
}

/// How a task failed.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = FailureReport)]
struct FailBody {
    /// A stable word, at most 128 bytes (more is cut); `failed` if not given.
    #[serde(default)]
    code: String,
    /// For people, at most 4 KiB (more is cut).
    #[serde(default)]
    message: String,
    /// False ends the task whatever its retry policy says.
    #[serde(default = "yes")]
    retryable: bool,
    /// Overrides the delay of the policy: `30s`.
    #[serde(default)]
    retry_after: Option<String>,
}

fn yes() -> bool {
    true
}

/// Fail a task
#[utoipa::path(
    post,
    path = "/v1/tasks/{token}/fail",
    tag = "tasks", operation_id = "failTask",
    params(("token" = String, Path)),
    request_body(content = Option<FailBody>, description = "May be empty"),
    responses(
        (status = 200, description = "It counts", body = SettledJson),
        (status = 409, description = "The token is stale", body = Problem<'static>, content_type = "application/problem+json"),
        (status = "default", description = "Any other error", body = Problem<'static>, content_type = "application/problem+json"),
    ),
)]
async fn fail(
    State(app): State<App>,
    path: Segments,
    query: Params,
    body: JsonBody<JSON_BODY_MAX>,
) -> Answer {
    query.finish()?;
    let FailBody { code, message, retryable, retry_after } = body.read()?;
    let retry_after = retry_after.map(|text| word("retry_after", &text, duration::parse)).transpose()?;
    settle(&app, &path, TaskOutcome::Failed(ReportedFailure { code, message, retryable, retry_after })).await
}

/// Nothing.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Empty)]
struct EmptyBody {}

/// Release a task
///
/// Gives it back to the front of its queue; no attempt is used.
#[utoipa::path(
    post,
    path = "/v1/tasks/{token}/release",
    tag = "tasks", operation_id = "releaseTask",
    params(("token" = String, Path)),
    request_body(content = Option<EmptyBody>, description = "May be empty"),
    responses(
        (status = 200, description = "It counts", body = SettledJson),
        (status = 409, description = "The token is stale", body = Problem<'static>, content_type = "application/problem+json"),
        (status = "default", description = "Any other error", body = Problem<'static>, content_type = "application/problem+json"),
    ),
)]
async fn release(
    State(app): State<App>,
    path: Segments,
    query: Params,
    body: JsonBody<JSON_BODY_MAX>,
) -> Answer {
    query.finish()?;
    let EmptyBody {} = body.read()?;
    settle(&app, &path, TaskOutcome::Released).await
}

/// A sign of life.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Progress)]
struct HeartbeatBody<'a> {
    /// Any JSON value; told to whoever watches, not kept.
    #[serde(borrow, default)]
    #[schema(value_type = serde_json::Value)]
    progress: Option<&'a RawValue>,
}

/// Renew a lease
#[utoipa::path(
    post,
    path = "/v1/tasks/{token}/heartbeat",
    tag = "tasks", operation_id = "heartbeatTask",
    params(("token" = String, Path)),
    request_body(content = Option<HeartbeatBody<'static>>, description = "May be empty"),
    responses(
        (status = 200, description = "The lease holds", body = HeartbeatJson),
        (status = 409, description = "The token is stale", body = Problem<'static>, content_type = "application/problem+json"),
        (status = "default", description = "Any other error", body = Problem<'static>, content_type = "application/problem+json"),
    ),
)]
async fn heartbeat(
    State(app): State<App>,
    path: Segments,
    query: Params,
    body: JsonBody<JSON_BODY_MAX>,
) -> Answer {
    query.finish()?;
    let HeartbeatBody { progress } = body.read()?;
    let progress = body.text(progress);
    check_payload("progress", &progress)?;
    let answer = app.heartbeat(path.text("token"), (!progress.is_empty()).then_some(progress)).await?;
    Ok(json(StatusCode::OK, &HeartbeatJson::from(answer)))
}
