//! Probes, the schema of documents, the OpenAPI document and the pages that explain it.

use super::extract::{Params, Segments};
use super::view::{json, json_text};
use crate::api::error::{Answer, Problem};
use crate::api::{Doors, meter};
use crate::app::{App, AppError};
use crate::model::error::ErrorCode;
use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use http::{HeaderName, StatusCode, header};
use serde::Serialize;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub(super) fn routes() -> OpenApiRouter<Doors> {
    OpenApiRouter::new()
        .routes(routes!(livez))
        .routes(routes!(readyz))
        .routes(routes!(metrics))
        .routes(routes!(schema))
        .routes(routes!(openapi))
        .routes(routes!(docs))
        .routes(routes!(error_page))
}

/// A probe's answer.
#[derive(Serialize, ToSchema)]
#[schema(as = Probe)]
struct ProbeJson {
    status: &'static str,
}

/// Is the process alive?
#[utoipa::path(get, path = "/livez", tag = "server", operation_id = "livez", responses((status = 200, description = "Yes", body = ProbeJson)))]
async fn livez() -> Response {
    json(StatusCode::OK, &ProbeJson { status: "alive" })
}

/// Would requests be served now?
#[utoipa::path(
    get,
    path = "/readyz",
    tag = "server", operation_id = "readyz",
    responses(
        (status = 200, description = "Yes", body = ProbeJson),
        (status = 503, description = "Why not", body = Problem<'static>, content_type = "application/problem+json"),
    ),
)]
async fn readyz(State(app): State<App>) -> Answer {
    app.ready().await?;
    Ok(json(StatusCode::OK, &ProbeJson { status: "ready" }))
}

/// What this server counts, for Prometheus
///
/// Text of Prometheus' format 0.0.4. The names are explained in the guide (`docs/guide/metrics.md`); labels are of fixed
/// sets. Nothing is asked of the store.
#[utoipa::path(get, path = "/metrics", tag = "server", operation_id = "metrics", responses((status = 200, description = "Numbers", body = String, content_type = "text/plain")))]
async fn metrics(State(doors): State<Doors>) -> Response {
    let text = meter::scrape(&doors.app, &doors.options.meter, &doors.called);
    ([(header::CONTENT_TYPE, crate::api::metrics::CONTENT_TYPE)], text).into_response()
}

/// Read the schema of documents
///
/// A JSON Schema (2020-12) of the documents that are registered here, for editors that complete and check.
#[utoipa::path(
    get,
    path = "/v1/schema",
    tag = "workflows", operation_id = "getSchema",
    responses(
        (status = 200, description = "JSON Schema", body = serde_json::Value, content_type = "application/schema+json"),
        (status = "default", description = "An error", body = Problem<'static>, content_type = "application/problem+json"),
    ),
)]
async fn schema(query: Params) -> Answer {
    query.finish()?;
    let headers = [(header::CONTENT_TYPE, "application/schema+json")];
    Ok((headers, crate::model::document::json_schema()).into_response())
}

/// This description
#[utoipa::path(get, path = "/openapi.json", tag = "server", operation_id = "openapi", responses((status = 200, description = "OpenAPI 3.1", body = serde_json::Value)))]
async fn openapi() -> Response {
    json_text(StatusCode::OK, super::openapi_json())
}

/// No other origin, no network but this server, and text is never taken for code.
const PAGE_POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; \
                           connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// This description for people
#[utoipa::path(get, path = "/docs", tag = "server", operation_id = "docs", responses((status = 200, description = "A page", body = String, content_type = "text/html")))]
async fn docs() -> Response {
    page("text/html; charset=utf-8", include_str!("docs.html"))
}

/// What an error code means
#[utoipa::path(
    get,
    path = "/docs/errors/{code}",
    tag = "server", operation_id = "explainError",
    params(("code" = String, Path, example = "invalid_workflow")),
    responses(
        (status = 200, description = "A page", body = String, content_type = "text/plain"),
        (status = "default", description = "An error", body = Problem<'static>, content_type = "application/problem+json"),
    ),
)]
async fn error_page(path: Segments) -> Answer {
    let code = path.text("code");
    let text = error_text(code).ok_or_else(|| {
        let shown = crate::api::error::cut(code, 64);
        AppError::new(ErrorCode::NotFound, format!("{shown:?} is no error code"))
    })?;
    Ok(page("text/plain; charset=utf-8", text))
}

fn page(kind: &'static str, text: &'static str) -> Response {
    let headers = [
        (header::CONTENT_TYPE, kind),
        (header::CONTENT_SECURITY_POLICY, PAGE_POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (HeaderName::from_static("referrer-policy"), "no-referrer"),
    ];
    (headers, text).into_response()
}

macro_rules! pages {
    ($($code:literal)*) => {
        /// The page of an error code.
        fn error_text(code: &str) -> Option<&'static str> {
            match code {
                $($code => Some(include_str!(concat!("../../../docs/errors/", $code, ".md"))),)*
                _ => None,
            }
        }
    };
}

pages! {
    "invalid_workflow" "invalid_request" "invalid_input" "workflow_not_found" "workflow_in_use" "run_not_found"
    "run_id_taken" "run_ended" "run_not_ended" "nothing_to_retry" "task_not_found" "task_not_open" "stale_token"
    "unknown_token" "invalid_schedule" "schedule_not_found" "schedule_busy" "too_many_schedules" "session_lost" "too_large" "address_too_long" "headers_too_large" "unsupported_media_type"
    "not_found" "method_not_allowed" "store_unavailable" "store_unreadable" "outcome_unknown" "overloaded"
    "deadline_exceeded"
    "internal"
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::path::Path;

    fn pages() -> BTreeSet<String> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/errors");
        let names =
            std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names
            .filter_map(|name| name.strip_suffix(".md").map(str::to_owned))
            .filter(|n| n != "README")
            .collect()
    }

    #[test]
    fn each_code_has_a_page_and_each_page_a_code() {
        let codes: BTreeSet<String> = ErrorCode::ALL.iter().map(|c| c.as_str().to_owned()).collect();
        assert_eq!(pages(), codes);
    }

    #[test]
    fn each_page_is_served_and_tells_the_table() {
        for code in ErrorCode::ALL {
            let text = error_text(code.as_str()).unwrap_or_else(|| panic!("{} is not served", code.as_str()));
            let grpc = format!("{:?}", tonic::Code::from_i32(code.grpc_code()));
            assert!(
                text.starts_with(&format!("# {}\n\n{}.\n", code.as_str(), code.title())),
                "{}",
                code.as_str()
            );
            assert!(
                text.contains(&format!("HTTP {} · gRPC {grpc} ({})", code.http_status(), code.grpc_code())),
                "{}",
                code.as_str()
            );
            for part in ["\n## What it means\n", "\n## Typical causes\n", "\n## How to fix it\n"] {
                assert!(text.contains(part), "{} lacks {part:?}", code.as_str());
            }
        }
        assert_eq!(error_text("nope"), None);
    }

    #[test]
    fn the_index_of_pages_lists_every_code() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/errors/README.md");
        let index = std::fs::read_to_string(folder).unwrap();
        for code in ErrorCode::ALL {
            let (name, http) = (code.as_str(), code.http_status());
            let grpc = format!("{:?}", tonic::Code::from_i32(code.grpc_code()));
            assert!(
                index.contains(&format!("| [`{name}`]({name}.md) | {http} | {grpc} | {} |", code.title())),
                "{name}"
            );
        }
    }

    #[test]
    fn the_page_loads_nothing_from_elsewhere() {
        let page = include_str!("docs.html");
        assert!(
            !page.contains("http://") && !page.contains("https://") && !page.contains("src="),
            "no other network"
        );
        assert!(!page.contains("innerHTML"), "text is shown as text");
    }
}
