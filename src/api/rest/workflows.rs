//! `/v1/workflows`: register, list, read and remove documents.

use super::extract::{DocumentBody, Params, Segments};
use super::view::{PageJson, WorkflowJson, json};
use crate::api::Doors;
use crate::api::error::{Answer, Problem};
use crate::app::App;
use crate::model::ids::WorkflowName;
use axum::extract::State;
use axum::response::IntoResponse as _;
use http::{HeaderValue, StatusCode, header};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub(super) fn routes() -> OpenApiRouter<Doors> {
    OpenApiRouter::new()
        .routes(routes!(list))
        .routes(routes!(register, get, delete))
        .routes(routes!(get_version))
}

/// Register a document
///
/// A document equal to the newest version changes nothing; any other makes the next version. All faults are
/// told in one answer, and nothing is stored then.
#[utoipa::path(
    put,
    path = "/v1/workflows/{name}",
    tag = "workflows", operation_id = "registerWorkflow",
    params(
        ("name" = String, Path, description = "Must equal the document's own `name`"),
        ("dry_run" = Option<bool>, Query, description = "Only validate"),
    ),
    request_body(
        description = "The document, at most 1 MiB",
        content((String = "application/yaml"), (serde_json::Value = "application/json")),
    ),
    responses(
        (status = 200, description = "Unchanged, or valid (dry run)", body = WorkflowJson<'static>),
        (status = 201, description = "A new version", body = WorkflowJson<'static>),
        (status = 422, description = "The document has faults", body = Problem<'static>, content_type = "application/problem+json"),
        (status = "default", description = "Any other error", body = Problem<'static>, content_type = "application/problem+json"),
    ),
)]
async fn register(
    State(app): State<App>,
    path: Segments,
    mut query: Params,
    document: DocumentBody,
) -> Answer {
    let name = path.parse("name", WorkflowName::new)?;
    let dry_run = query.flag("dry_run");
    query.finish()?;
    let registered = app.register(Some(&name), &document.text, document.format, dry_run).await?;
    let status = if registered.created && !dry_run { StatusCode::CREATED } else { StatusCode::OK };
    let mut response = json(status, &WorkflowJson::from(&registered.workflow));
    if status == StatusCode::CREATED {
        let place = format!("/v1/workflows/{name}/versions/{}", registered.workflow.version);
        if let Ok(place) = HeaderValue::try_from(place) {
            response.headers_mut().insert(header::LOCATION, place);
        }
    }
    Ok(response)
}

/// List workflows
///
/// The one with the newest version first, each with that version, and without the document.
#[utoipa::path(
    get,
    path = "/v1/workflows",
    tag = "workflows", operation_id = "listWorkflows",
    params(
        ("limit" = Option<u32>, Query, description = "1 to 500, default 50"),
        ("cursor" = Option<String>, Query, description = "`next_cursor` of the page before"),
    ),
    responses(
        (status = 200, description = "A page", body = PageJson<WorkflowJson<'static>>),
        (status = "default", description = "An error", body = Problem<'static>, content_type = "application/problem+json"),
    ),
)]
async fn list(State(app): State<App>, mut query: Params) -> Answer {
    let (limit, cursor) = query.page();
    query.finish()?;
    let page = app.workflows(limit, cursor.as_deref()).await?;
    Ok(json(StatusCode::OK, &PageJson::<WorkflowJson<'_>>::of(&page)))
}

/// Read the newest version
#[utoipa::path(
    get,
    path = "/v1/workflows/{name}",
    tag = "workflows", operation_id = "getWorkflow",
    params(("name" = String, Path)),
    responses(
        (status = 200, description = "The version", body = WorkflowJson<'static>),
        (status = "default", description = "An error", body = Problem<'static>, content_type = "application/problem+json"),
    ),
)]
async fn get(State(app): State<App>, path: Segments, query: Params) -> Answer {
    let name = path.parse("name", WorkflowName::new)?;
    query.finish()?;
    let workflow = app.workflow(&name, None).await?;
    Ok(json(StatusCode::OK, &WorkflowJson::from(&workflow)))
}

/// Read one version
#[utoipa::path(
    get,
    path = "/v1/workflows/{name}/versions/{version}",
    tag = "workflows", operation_id = "getWorkflowVersion",
    params(("name" = String, Path), ("version" = u32, Path)),
    responses(
        (status = 200, description = "The version", body = WorkflowJson<'static>),
        (status = "default", description = "An error", body = Problem<'static>, content_type = "application/problem+json"),
    ),
)]
async fn get_version(State(app): State<App>, path: Segments, query: Params) -> Answer {
    let name = path.parse("name", WorkflowName::new)?;
    let version =
        path.parse("version", |text| text.parse().map_err(|_| format!("{text:?} is not a version number")))?;
    query.finish()?;
    let workflow = app.workflow(&name, Some(version)).await?;
    Ok(json(StatusCode::OK, &WorkflowJson::from(&workflow)))
}

/// Remove a workflow
///
/// With all its versions; refused while a run uses it.
#[utoipa::path(
    delete,
    path = "/v1/workflows/{name}",
    tag = "workflows", operation_id = "deleteWorkflow",
    params(("name" = String, Path)),
    responses(
        (status = 204, description = "Removed"),
        (status = "default", description = "An error", body = Problem<'static>, content_type = "application/problem+json"),
    ),
)]
async fn delete(State(app): State<App>, path: Segments, query: Params) -> Answer {
    let name = path.parse("name", WorkflowName::new)?;
    query.finish()?;
    app.delete_workflow(&name).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}
