//! `/v1/runs`: start, list, read and forget runs; their tasks and values. `control.rs` has what is done to a run.

use super::extract::{JsonBody, Params, Segments, each_once};
use super::view::{PageJson, RunHeadJson, RunJson, TaskJson, json, json_text};
use crate::api::Doors;
use crate::api::check::{check_priority, check_tags, run_status, start_at, word};
use crate::api::error::{Answer, Problem};
use crate::api::limits::JSON_BODY_MAX;
use crate::app::view::{RunFilter, StartRequest, ValueAddress};
use crate::app::{App, AppError};
use crate::model::ids::{RunId, WorkflowName};
use crate::model::instant;
use crate::model::time::Span;
use axum::extract::State;
use axum::response::IntoResponse as _;
use http::{HeaderValue, StatusCode, header};
use serde::Deserialize;
use serde_json::value::RawValue;
use std::collections::BTreeMap;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub(super) fn routes() -> OpenApiRouter<Doors> {
    OpenApiRouter::new()
        .routes(routes!(start, list))
        .routes(routes!(get, delete))
        .routes(routes!(tasks))
        .routes(routes!(value))
}

/// What to start.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Start)]
pub(super) struct StartBody<'a> {
    workflow: String,
    /// The newest if not given.
    #[serde(default)]
    version: Option<u32>,
    /// Makes the start idempotent: the id is taken until the run is deleted.
    #[serde(default)]
    id: Option<String>,
    /// Any JSON value of at most 1 MiB.
    #[serde(borrow, default)]
    #[schema(value_type = serde_json::Value)]
    input: Option<&'a RawValue>,
    /// At most 32, each key once; over those of the document.
    #[serde(default, deserialize_with = "each_once")]
    tags: BTreeMap<String, String>,
    /// −100 to 100; over that of the document.
    #[serde(default)]
    priority: Option<i32>,
    /// When it is to begin: an instant (RFC 3339) or `+` and a duration, at most ten years ahead; at once if not
    /// given or past. Until then the run is `pending`.
    #[serde(default)]
    #[schema(example = "+1h30m")]
    start_at: Option<String>,
    #[serde(default)]
    on_conflict: OnConflict,
}

impl StartBody<'_> {
    /// Checks what the door checks. `body` is what this was read from.
    pub(super) fn request<const MAX: usize>(
        self,
        body: &JsonBody<MAX>,
        wait: Option<Span>,
    ) -> Result<StartRequest, AppError> {
        check_tags(&self.tags)?;
        Ok(StartRequest {
            workflow: word("workflow", &self.workflow, WorkflowName::new)?,
            version: self.version,
            id: self.id.as_deref().map(|id| word("id", id, RunId::new)).transpose()?,
            input: body.text(self.input),
            priority: check_priority(self.priority)?,
            tags: self.tags,
            start_at: self.start_at.as_deref().map(|at| word("start_at", at, start_at)).transpose()?,
            reject_existing: self.on_conflict == OnConflict::Reject,
            wait,
        })
    }
}

/// What a start does when its id is taken.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum OnConflict {
    /// The same request answers with the run that exists.
    #[default]
    Return,
    /// The start is refused.
    Reject,
}

/// Start a run
///
/// With an `id` at most once: the same workflow and input answers 200 with the run that exists, anything else 409.
#[utoipa::path(
    post,
    path = "/v1/runs",
    tag = "runs", operation_id = "startRun",
    params(("wait" = Option<String>, Query, description = "Answer when the run has ended or this has passed; at most `60s`")),
    request_body = StartBody<'static>,
    responses(
        (status = 201, description = "Started", body = RunJson<'static>),
        (status = 200, description = "It was there before", body = RunJson<'static>),
        (status = 409, description = "The id is taken", body = Problem<'static>, content_type = "application/problem+json"),
        (status = "default", description = "Any other error", body = Problem<'static>, content_type = "application/problem+json"),
    ),
)]
async fn start(State(app): State<App>, mut query: Params, body: JsonBody<JSON_BODY_MAX>) -> Answer {
    let wait = query.wait();
    query.finish()?;
    let start: StartBody<'_> = body.read()?;
    let request = start.request(&body, wait)?;
    let started = app.start(request).await?;
    let status = if started.created { StatusCode::CREATED } else { StatusCode::OK };
    let mut response = json(status, &RunJson::from(&started.run));
    if let Ok(place) = HeaderValue::try_from(format!("/v1/runs/{}", started.run.id)) {
        response.headers_mut().insert(header::LOCATION, place);
    }
    Ok(response)
}

/// List runs
///
/// Newest first, each without its input, output and tasks: these keys are left out. An empty page with a cursor
/// means that there is more to look at.
#[utoipa::path(
    get,
    path = "/v1/runs",
    tag = "runs", operation_id = "listRuns",
    params(
        ("workflow" = Option<String>, Query),
        ("status" = Option<String>, Query, example = "running"),
        ("tag" = Option<Vec<String>>, Query, description = "`key:value`; given more than once, all must match"),
        ("since" = Option<String>, Query, description = "Created at or after (RFC 3339)"),
        ("until" = Option<String>, Query, description = "Created before (RFC 3339)"),
        ("parent" = Option<String>, Query, description = "Started for a task of this run"),
        ("limit" = Option<u32>, Query, description = "1 to 500, default 50"),
        ("cursor" = Option<String>, Query, description = "`next_cursor` of the page before"),
    ),
    responses(
        (status = 200, description = "A page", body = PageJson<RunHeadJson<'static>>),
        (status = "default", description = "An error", body = Problem<'static>, content_type = "application/problem+json"),
    ),
)]
async fn list(State(app): State<App>, mut query: Params) -> Answer {
    let filter = RunFilter {
        workflow: query.parse("workflow", WorkflowName::new),
        status: query.parse("status", run_status),
        tags: query.tags(),
        since: query.parse("since", instant::parse),
        until: query.parse("until", instant::parse),
        parent: query.parse("parent", RunId::new),
    };
    let (limit, cursor) = query.page();
    query.finish()?;
    let page = app.runs(filter, limit, cursor.as_deref()).await?;
    Ok(json(StatusCode::OK, &PageJson::<RunHeadJson<'_>>::of(&page)))
}

/// Read a run
///
/// With its tasks (the first page of many), attempts, times, inputs, outputs and errors.
#[utoipa::path(
    get,
    path = "/v1/runs/{id}",
    tag = "runs", operation_id = "getRun",
    params(
        ("id" = String, Path),
        ("wait" = Option<String>, Query, description = "Answer when the run has ended or this has passed; at most `60s`"),
    ),
    responses(
        (status = 200, description = "The run", body = RunJson<'static>),
        (status = "default", description = "An error", body = Problem<'static>, content_type = "application/problem+json"),
    ),
)]
async fn get(State(app): State<App>, path: Segments, mut query: Params) -> Answer {
    let id = path.parse("id", RunId::new)?;
    let wait = query.wait();
    query.finish()?;
    let run = app.run(&id, wait).await?;
    Ok(json(StatusCode::OK, &RunJson::from(&run)))
}

/// Forget a run
///
/// Only one that has ended.
#[utoipa::path(
    delete,
    path = "/v1/runs/{id}",
    tag = "runs", operation_id = "deleteRun",
    params(("id" = String, Path)),
    responses(
        (status = 204, description = "Forgotten"),
        (status = 409, description = "The run has not ended", body = Problem<'static>, content_type = "application/problem+json"),
        (status = "default", description = "Any other error", body = Problem<'static>, content_type = "application/problem+json"),
    ),
)]
async fn delete(State(app): State<App>, path: Segments, query: Params) -> Answer {
    let id = path.parse("id", RunId::new)?;
    query.finish()?;
    app.delete(&id).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// List the tasks of a run
///
/// All of them, page by page: those of the document in its order, then what was laid out while the run went on
/// (tasks of groups, items, iterations, compensations, `finally`) in the order in which it was.
#[utoipa::path(
    get,
    path = "/v1/runs/{id}/tasks",
    tag = "runs", operation_id = "listRunTasks",
    params(
        ("id" = String, Path),
        ("limit" = Option<u32>, Query, description = "1 to 500, default 50"),
        ("cursor" = Option<String>, Query, description = "`next_cursor` of the page before, or the run's `tasks_cursor`"),
    ),
    responses(
        (status = 200, description = "A page", body = PageJson<TaskJson<'static>>),
        (status = "default", description = "An error", body = Problem<'static>, content_type = "application/problem+json"),
    ),
)]
async fn tasks(State(app): State<App>, path: Segments, mut query: Params) -> Answer {
    let id = path.parse("id", RunId::new)?;
    let (limit, cursor) = query.page();
    query.finish()?;
    let page = app.tasks(&id, limit, cursor.as_deref()).await?;
    Ok(json(StatusCode::OK, &PageJson::<TaskJson<'_>>::of(&page)))
}

/// Read one value of a run
///
/// What a `$ref` points at.
#[utoipa::path(
    get,
    path = "/v1/runs/{id}/values/{field}",
    tag = "runs", operation_id = "getRunValue",
    params(
        ("id" = String, Path),
        ("field" = String, Path, description = "`input`, `output`, `tasks.PATH.output` or `tasks.PATH.attempts.N.input`"),
    ),
    responses(
        (status = 200, description = "The value", body = serde_json::Value),
        (status = "default", description = "An error", body = Problem<'static>, content_type = "application/problem+json"),
    ),
)]
async fn value(State(app): State<App>, path: Segments, query: Params) -> Answer {
    let id = path.parse("id", RunId::new)?;
    let field = path.parse("field", ValueAddress::parse)?;
    query.finish()?;
    Ok(json_text(StatusCode::OK, app.value(&id, &field).await?))
}
