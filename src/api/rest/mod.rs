//! REST: one file per resource. A handler parses with `extract`, makes one call, and maps with `view`.

pub(crate) mod extract;
pub(crate) mod view;

mod bulk;
mod control;
mod events;
mod meta;
mod runs;
mod schedules;
mod tasks;
mod words;
mod workflows;

use super::Doors;
use super::error::Problem;
use bytes::Bytes;
use std::sync::OnceLock;
use utoipa::OpenApi;
use utoipa_axum::router::OpenApiRouter;

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Downbeat",
        description = "Workflow orchestration: register documents, start runs, watch them, serve their tasks.\n\n\
            Errors are `application/problem+json` (RFC 9457) with a stable `code`, explained under \
            `/docs/errors/{code}`. Lists answer `{items, next_cursor}`, newest first. Durations are whole numbers \
            with `ms`, `s`, `m`, `h` or `d`, joined: `1h30m`. Times are RFC 3339, UTC, with microseconds. \
            Inputs and outputs are kept to the byte; a value that would carry an answer over 3 MiB stands as \
            `{\"$ref\": URL, \"size\": N}`.",
        license(name = "Apache-2.0", identifier = "Apache-2.0"),
    ),
    tags(
        (name = "workflows", description = "Named, versioned documents"),
        (name = "runs", description = "Executions of a version"),
        (name = "control", description = "What is done to a run, and to many"),
        (name = "schedules", description = "Runs started at times of a calendar"),
        (name = "events", description = "What happened, as server-sent events"),
        (name = "tasks", description = "For workers that only speak HTTP"),
        (name = "server", description = "Probes and this description"),
    ),
    components(schemas(Problem<'static>, view::ValueRef<'static>, crate::api::sse::EventData)),
)]
struct Described;

/// All routes with their description.
pub(crate) fn routes() -> OpenApiRouter<Doors> {
    OpenApiRouter::with_openapi(Described::openapi())
        .merge(workflows::routes())
        .merge(runs::routes())
        .merge(control::routes())
        .merge(bulk::routes())
        .merge(schedules::routes())
        .merge(events::routes())
        .merge(tasks::routes())
        .merge(meta::routes())
}

/// The OpenAPI 3.1 document of the REST door, as `/openapi.json` answers it.
pub fn openapi_json() -> Bytes {
    static TEXT: OnceLock<Bytes> = OnceLock::new();
    let make = || {
        let mut text = routes().into_openapi().to_pretty_json().unwrap_or_default();
        text.push('\n');
        text.into()
    };
    TEXT.get_or_init(make).clone()
}
