//! `/v1/runs/{id}/…`: what is done to a run: cancel, pause, resume, signal, retry, actions by hand. Each answers
//! with the run as it stands then.

use super::extract::{JsonBody, Params, Segments, even_null};
use super::view::{RunJson, json};
use crate::api::Doors;
use crate::api::check::{ActionName, Brought, by_hand, word};
use crate::api::error::{Answer, Problem};
use crate::api::limits::JSON_BODY_MAX;
use crate::app::App;
use crate::app::view::RunView;
use crate::model::ids::{RunId, SignalId, SignalName, TaskPath};
use axum::extract::State;
use axum::response::Response;
use http::StatusCode;
use serde::Deserialize;
use serde_json::value::RawValue;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub(super) fn routes() -> OpenApiRouter<Doors> {
    OpenApiRouter::new()
        .routes(routes!(cancel))
        .routes(routes!(pause))
        .routes(routes!(resume))
        .routes(routes!(signal))
        .routes(routes!(retry))
        .routes(routes!(act))
}

/// The run as it stands now.
fn stands(run: &RunView) -> Response {
    json(StatusCode::OK, &RunJson::from(run))
}

/// Nothing.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Nothing)]
pub(super) struct NoBody {}

/// How to cancel.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Cancel)]
struct CancelBody {
    /// First undo what has completed, in reverse order, by its `compensate`.
    #[serde(default)]
    compensate: bool,
    /// End it at once: no compensation, no `finally`, also if they are under way.
    #[serde(default)]
    force: bool,
}

/// Cancel a run
///
/// Fences every attempt at once and waits for no worker. Compensation (if asked) and `finally` follow.
#[utoipa::path(
    post,
    path = "/v1/runs/{id}/cancel",
    tag = "control", operation_id = "cancelRun",
    params(("id" = String, Path)),
    request_body(content = Option<CancelBody>, description = "May be empty"),
    responses(
        (status = 200, description = "Cancelled, or ending so", body = RunJson<'static>),
        (status = 409, description = "The run has ended", body = Problem<'static>, content_type = "application/problem+json"),
        (status = "default", description = "Any other error", body = Problem<'static>, content_type = "application/problem+json"),
    ),
)]
async fn cancel(
    State(app): State<App>,
    path: Segments,
    query: Params,
    body: JsonBody<JSON_BODY_MAX>,
) -> Answer {
    let id = path.parse("id", RunId::new)?;
    query.finish()?;
    let CancelBody { compensate, force } = body.read()?;
    Ok(stands(&app.cancel(&id, compensate, force).await?))
}

/// Pause a run
///
/// Attempts in flight finish, nothing new starts. Clocks run on, except for `timeout.queue`. A run that is paused
/// stays so.
#[utoipa::path(
    post,
    path = "/v1/runs/{id}/pause",
    tag = "control", operation_id = "pauseRun",
    params(("id" = String, Path)),
    request_body(content = Option<NoBody>, description = "May be empty"),
    responses(
        (status = 200, description = "Paused", body = RunJson<'static>),
        (status = 409, description = "The run has ended", body = Problem<'static>, content_type = "application/problem+json"),
        (status = "default", description = "Any other error", body = Problem<'static>, content_type = "application/problem+json"),
    ),
)]
async fn pause(
    State(app): State<App>,
    path: Segments,
    query: Params,
    body: JsonBody<JSON_BODY_MAX>,
) -> Answer {
    let id = path.parse("id", RunId::new)?;
    query.finish()?;
    let NoBody {} = body.read()?;
    Ok(stands(&app.pause(&id).await?))
}

/// Resume a run
///
/// What became ready meanwhile starts. A run that is not paused goes on.
#[utoipa::path(
    post,
    path = "/v1/runs/{id}/resume",
    tag = "control", operation_id = "resumeRun",
    params(("id" = String, Path)),
    request_body(content = Option<NoBody>, description = "May be empty"),
    responses(
        (status = 200, description = "Going on", body = RunJson<'static>),
        (status = 409, description = "The run has ended", body = Problem<'static>, content_type = "application/problem+json"),
        (status = "default", description = "Any other error", body = Problem<'static>, content_type = "application/problem+json"),
    ),
)]
async fn resume(
    State(app): State<App>,
    path: Segments,
    query: Params,
    body: JsonBody<JSON_BODY_MAX>,
) -> Answer {
    let id = path.parse("id", RunId::new)?;
    query.finish()?;
    let NoBody {} = body.read()?;
    Ok(stands(&app.resume(&id).await?))
}

/// Send a signal to a run
///
/// The body is its payload: any JSON value, or empty for null. It becomes the output of the wait that takes it; a
/// signal that comes early is kept. Signals of one name are taken in order, one per wait. With `id`, the same is
/// accepted once: a repeat is answered like the first and changes nothing.
#[utoipa::path(
    post,
    path = "/v1/runs/{id}/signals/{name}",
    tag = "control", operation_id = "signalRun",
    params(
        ("id" = String, Path),
        ("name" = String, Path, example = "approved"),
        ("id" = Option<String>, Query, description = "Yours, of this signal: makes a repeat of the call safe"),
    ),
    request_body(content = Option<serde_json::Value>, description = "At most 1 MiB; may be empty"),
    responses(
        (status = 200, description = "Kept or taken", body = RunJson<'static>),
        (status = 409, description = "The run has ended or is ending", body = Problem<'static>, content_type = "application/problem+json"),
        (status = "default", description = "Any other error", body = Problem<'static>, content_type = "application/problem+json"),
    ),
)]
async fn signal(
    State(app): State<App>,
    path: Segments,
    mut query: Params,
    body: JsonBody<JSON_BODY_MAX>,
) -> Answer {
    let id = path.parse("id", RunId::new)?;
    let name = path.parse("name", SignalName::new)?;
    let signal = query.parse("id", SignalId::new);
    query.finish()?;
    Ok(stands(&app.signal(&id, &name, signal.as_ref(), &body.value()).await?))
}

/// Retry a run
///
/// Begins an ended run again: what failed, timed out, was cancelled or undone, everything behind that, and
/// `finally`. What completed is kept; numbers of attempts go on, and `try` is one higher.
#[utoipa::path(
    post,
    path = "/v1/runs/{id}/retry",
    tag = "control", operation_id = "retryRun",
    params(("id" = String, Path)),
    request_body(content = Option<NoBody>, description = "May be empty"),
    responses(
        (status = 200, description = "Begun again", body = RunJson<'static>),
        (status = 409, description = "The run has not ended, or nothing in it failed", body = Problem<'static>, content_type = "application/problem+json"),
        (status = "default", description = "Any other error", body = Problem<'static>, content_type = "application/problem+json"),
    ),
)]
async fn retry(
    State(app): State<App>,
    path: Segments,
    query: Params,
    body: JsonBody<JSON_BODY_MAX>,
) -> Answer {
    let id = path.parse("id", RunId::new)?;
    query.finish()?;
    let NoBody {} = body.read()?;
    Ok(stands(&app.retry(&id).await?))
}

/// What to do to a task.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Action)]
struct ActBody<'a> {
    action: ActionName,
    /// Its path.
    #[schema(example = "ship[3]/pack")]
    task: String,
    /// With `complete`: any JSON value of at most 1 MiB; null if not given.
    #[serde(borrow, default, deserialize_with = "even_null")]
    #[schema(value_type = serde_json::Value)]
    output: Option<&'a RawValue>,
    /// With `fail`.
    #[serde(default)]
    error: Option<ActError>,
    /// With `rerun`: any JSON value of at most 1 MiB, null too; the evaluated input if not given.
    #[serde(borrow, default, deserialize_with = "even_null")]
    #[schema(value_type = serde_json::Value)]
    input: Option<&'a RawValue>,
}

/// How a task is failed.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ActionError)]
struct ActError {
    /// A stable word, at most 128 bytes (more is cut); `failed` if not given.
    #[serde(default)]
    code: String,
    /// For people, at most 4 KiB (more is cut).
    #[serde(default)]
    message: String,
}

/// Act on a task by hand
///
/// `skip`, `complete` and `fail` end a task of an open run, whatever it does or waits for; a worker that has it is
/// told so, and its result is stale. `rerun` begins an ended run again from a task, and everything behind it.
#[utoipa::path(
    post,
    path = "/v1/runs/{id}/actions",
    tag = "control", operation_id = "actOnRun",
    params(("id" = String, Path)),
    request_body = ActBody<'static>,
    responses(
        (status = 200, description = "Done", body = RunJson<'static>),
        (status = 404, description = "No such run, or no such task in it (yet)", body = Problem<'static>, content_type = "application/problem+json"),
        (status = 409, description = "The run or the task has ended; for `rerun`, the run has not", body = Problem<'static>, content_type = "application/problem+json"),
        (status = "default", description = "Any other error", body = Problem<'static>, content_type = "application/problem+json"),
    ),
)]
async fn act(State(app): State<App>, path: Segments, query: Params, body: JsonBody<JSON_BODY_MAX>) -> Answer {
    let id = path.parse("id", RunId::new)?;
    query.finish()?;
    let ActBody { action, task, output, error, input } = body.read()?;
    let task = word("task", &task, TaskPath::parse)?;
    let text = |value: Option<&RawValue>| value.map(|value| body.text(Some(value)));
    let brought = Brought {
        output: text(output),
        error: error.map(|ActError { code, message }| (code, message)),
        input: text(input),
    };
    Ok(stands(&app.act(&id, &task, by_hand(action, brought)?).await?))
}
