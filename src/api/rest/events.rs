//! `/v1/events` and `/v1/runs/{id}/events`: what happened, as server-sent events.

use super::extract::{Params, Segments};
use crate::api::check::event_type;
use crate::api::error::{Answer, Problem};
use crate::api::meter::Streams;
use crate::api::{Connection, Doors, sse};
use crate::app::RunFeed;
use crate::app::view::EventFilter;
use crate::model::ids::{RunId, WorkflowName};
use axum::extract::State;
use axum::response::IntoResponse as _;
use http::{Extensions, HeaderMap, StatusCode};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub(super) fn routes() -> OpenApiRouter<Doors> {
    OpenApiRouter::new().routes(routes!(of_run)).routes(routes!(of_all))
}

/// Where to resume: the header of a browser that reconnects goes before the address it first asked for.
fn resume_after(query: &mut Params, headers: &HeaderMap) -> Option<String> {
    let after = query.text("after");
    let last = headers.get("last-event-id").map(|v| String::from_utf8_lossy(v.as_bytes()).into_owned());
    last.filter(|id| !id.is_empty()).or(after)
}

/// Watch a run
///
/// Begins with the run's first event and ends after its terminal one. Each event has `id` (a cursor), `event`
/// (the type) and `data` (one JSON object, `EventData`). `Last-Event-ID` or `after` resumes without gap or repeat; a cursor
/// that is of no use gets one `reset` event and everything from the start.
#[utoipa::path(
    get,
    path = "/v1/runs/{id}/events",
    tag = "events", operation_id = "watchRun",
    params(
        ("id" = String, Path),
        ("after" = Option<String>, Query, description = "Resume after the event with this id"),
        ("Last-Event-ID" = Option<String>, Header, description = "As `after`, and goes before it"),
    ),
    responses(
        (status = 200, description = "Events", body = String, content_type = "text/event-stream"),
        (status = 204, description = "The cursor is the terminal event: nothing will follow"),
        (status = "default", description = "An error", body = Problem<'static>, content_type = "application/problem+json"),
    ),
)]
async fn of_run(
    State(doors): State<Doors>,
    extensions: Extensions,
    headers: HeaderMap,
    path: Segments,
    mut query: Params,
) -> Answer {
    let id = path.parse("id", RunId::new)?;
    let after = resume_after(&mut query, &headers);
    query.finish()?;
    let open = doors.opened(Streams::Events)?;
    match doors.app.run_events(&id, after.as_deref()).await? {
        RunFeed::Feed(feed) => {
            Ok(sse::stream(feed, Connection::of(&extensions), doors.options.comment_every, open))
        }
        RunFeed::AtEnd => Ok(StatusCode::NO_CONTENT.into_response()),
    }
}

/// Watch all runs
///
/// Begins now, or after the given cursor. Order holds per run.
#[utoipa::path(
    get,
    path = "/v1/events",
    tag = "events", operation_id = "watchRuns",
    params(
        ("workflow" = Option<String>, Query, description = "Only of runs of this workflow"),
        ("type" = Option<String>, Query, description = "Only of this type; `run.*`, `task.*` and `schedule.*` take a family"),
        ("tag" = Option<Vec<String>>, Query, description = "`key:value`; only of runs with all of these tags"),
        ("after" = Option<String>, Query, description = "Resume after the event with this id"),
        ("Last-Event-ID" = Option<String>, Header, description = "As `after`, and goes before it"),
    ),
    responses(
        (status = 200, description = "Events", body = String, content_type = "text/event-stream"),
        (status = "default", description = "An error", body = Problem<'static>, content_type = "application/problem+json"),
    ),
)]
async fn of_all(
    State(doors): State<Doors>,
    extensions: Extensions,
    headers: HeaderMap,
    mut query: Params,
) -> Answer {
    let filter = EventFilter {
        workflow: query.parse("workflow", WorkflowName::new),
        event_type: query.parse("type", event_type),
        tags: query.tags(),
    };
    let after = resume_after(&mut query, &headers);
    query.finish()?;
    let open = doors.opened(Streams::Events)?;
    let feed = doors.app.events(filter, after.as_deref()).await?;
    Ok(sse::stream(feed, Connection::of(&extensions), doors.options.comment_every, open))
}
