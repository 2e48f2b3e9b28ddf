//! `/v1/bulk/…`: start, cancel or retry many runs in one call. Each item has an answer of its own.

use super::extract::{JsonBody, Params, each_once, object};
use super::runs::StartBody;
use super::view::json;
use crate::api::Doors;
use crate::api::check::{run_status, which, word};
use crate::api::error::{Answer, Problem, Refused, brief};
use crate::api::limits::BULK_BODY_MAX;
use crate::app::view::{BulkItem, RunFilter, Which};
use crate::app::{App, AppError};
use crate::model::ids::{RunId, WorkflowName};
use crate::model::instant;
use axum::extract::State;
use axum::response::Response;
use http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use std::collections::BTreeMap;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub(super) fn routes() -> OpenApiRouter<Doors> {
    OpenApiRouter::new().routes(routes!(bulk_start)).routes(routes!(bulk_cancel)).routes(routes!(bulk_retry))
}

/// What became of one item: `status`, or `error`.
#[derive(Serialize, ToSchema)]
#[schema(as = BulkItem)]
struct ItemJson<'a> {
    /// The run; left out if it is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<&'a str>,
    /// Where the run is now.
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<&'static str>,
    /// Of a start: false if the run was there before.
    #[serde(skip_serializing_if = "Option::is_none")]
    created: Option<bool>,
    /// Why it was not done.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<Problem<'a>>,
}

/// What became of the items, in their order.
#[derive(Serialize, ToSchema)]
#[schema(as = BulkAnswer)]
struct BulkJson<'a> {
    items: Vec<ItemJson<'a>>,
    /// With a filter: where to go on; null if there are no more.
    #[schema(required)]
    next_cursor: Option<&'a str>,
}

fn told(items: Vec<BulkItem>, next_cursor: Option<&str>, starts: bool) -> Response {
    let items: Vec<BulkItem> =
        items.into_iter().map(|item| BulkItem { outcome: item.outcome.map_err(brief), ..item }).collect();
    let items = items.iter().map(|BulkItem { id, outcome }| {
        let id = id.as_ref().map(RunId::as_str);
        match outcome {
            Ok(done) => {
                let created = starts.then_some(done.created);
                ItemJson { id, status: Some(done.status.name()), created, error: None }
            }
            Err(error) => ItemJson { id, status: None, created: None, error: Some(Problem::from(error)) },
        }
    });
    json(StatusCode::OK, &BulkJson { items: items.collect(), next_cursor })
}

/// What to start.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = BulkStart)]
struct BulkStartBody<'a> {
    /// 1 to 1,000, each as in `POST /v1/runs`.
    #[serde(borrow)]
    #[schema(value_type = Vec<StartBody<'static>>)]
    items: Vec<&'a RawValue>,
}

/// Start many runs
///
/// Up to 1,000, in a body of at most 8 MiB. Each is started, or refused, by itself: the answer is 200 if the call as a
/// whole could be read, with one item for each, in their order. Items with an `id` can be sent again safely.
#[utoipa::path(
    post,
    path = "/v1/bulk/start",
    tag = "control", operation_id = "startRuns",
    request_body = BulkStartBody<'static>,
    responses(
        (status = 200, description = "What became of each", body = BulkJson<'static>),
        (status = "default", description = "An error; nothing was started", body = Problem<'static>, content_type = "application/problem+json"),
    ),
)]
async fn bulk_start(State(app): State<App>, query: Params, body: JsonBody<BULK_BODY_MAX>) -> Answer {
    query.finish()?;
    let BulkStartBody { items } = body.read()?;
    let read = |item: &RawValue| {
        let start: StartBody<'_> = object(item.get().as_bytes()).map_err(|Refused(error)| error)?;
        start.request(&body, None)
    };
    let items = items.into_iter().map(read).collect();
    Ok(told(app.bulk_start(items).await?, None, true))
}

/// Which runs; as the parameters of the list.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = BulkFilter)]
struct FilterBody {
    #[serde(default)]
    workflow: Option<String>,
    #[serde(default)]
    #[schema(example = "running")]
    status: Option<String>,
    /// All of them must be on the run.
    #[serde(default, deserialize_with = "each_once")]
    tags: BTreeMap<String, String>,
    /// Created at or after (RFC 3339).
    #[serde(default)]
    since: Option<String>,
    /// Created before (RFC 3339).
    #[serde(default)]
    until: Option<String>,
    /// Started for a task of this run.
    #[serde(default)]
    parent: Option<String>,
}

impl FilterBody {
    fn filter(self) -> Result<RunFilter, AppError> {
        let Self { workflow, status, tags, since, until, parent } = self;
        Ok(RunFilter {
            workflow: workflow.map(|w| word("filter.workflow", &w, WorkflowName::new)).transpose()?,
            status: status.map(|s| word("filter.status", &s, run_status)).transpose()?,
            tags: tags.into_iter().collect(),
            since: since.map(|t| word("filter.since", &t, instant::parse)).transpose()?,
            until: until.map(|t| word("filter.until", &t, instant::parse)).transpose()?,
            parent: parent.map(|id| word("filter.parent", &id, RunId::new)).transpose()?,
        })
    }
}

fn runs(
    ids: Option<Vec<String>>,
    filter: Option<FilterBody>,
    limit: Option<u32>,
    cursor: Option<String>,
) -> Result<Which, AppError> {
    which(ids, filter.map(FilterBody::filter).transpose()?, limit, cursor)
}

/// Which runs to cancel, and how.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = BulkCancel)]
struct BulkCancelBody {
    /// 1 to 1,000; or give a filter.
    #[serde(default)]
    ids: Option<Vec<String>>,
    /// Names at least one thing. Of the runs that match, those that have not ended.
    #[serde(default)]
    filter: Option<FilterBody>,
    /// With a filter: at most so many, 1 to 1,000, which is what is taken if not given.
    #[serde(default)]
    limit: Option<u32>,
    /// With a filter: `next_cursor` of the call before.
    #[serde(default)]
    cursor: Option<String>,
    /// First undo what has completed, in reverse order, by its `compensate`.
    #[serde(default)]
    compensate: bool,
    /// End them at once: no compensation, no `finally`.
    #[serde(default)]
    force: bool,
}

/// Cancel many runs
///
/// Up to 1,000 by their ids, or by a filter, newest first. One answer for each, in their order; with a filter,
/// `next_cursor` says where to go on. An answer without items but with a cursor means that there is more to look at.
#[utoipa::path(
    post,
    path = "/v1/bulk/cancel",
    tag = "control", operation_id = "cancelRuns",
    request_body = BulkCancelBody,
    responses(
        (status = 200, description = "What became of each", body = BulkJson<'static>),
        (status = "default", description = "An error; nothing was cancelled", body = Problem<'static>, content_type = "application/problem+json"),
    ),
)]
async fn bulk_cancel(State(app): State<App>, query: Params, body: JsonBody<BULK_BODY_MAX>) -> Answer {
    query.finish()?;
    let BulkCancelBody { ids, filter, limit, cursor, compensate, force } = body.read()?;
    let page = app.bulk_cancel(runs(ids, filter, limit, cursor)?, compensate, force).await?;
    Ok(told(page.items, page.next_cursor.as_deref(), false))
}

/// Which runs to retry.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = BulkRetry)]
struct BulkRetryBody {
    /// 1 to 1,000; or give a filter.
    #[serde(default)]
    ids: Option<Vec<String>>,
    /// Names at least one thing. Of the runs that match, those that have ended otherwise than completed.
    #[serde(default)]
    filter: Option<FilterBody>,
    /// With a filter: at most so many, 1 to 1,000, which is what is taken if not given.
    #[serde(default)]
    limit: Option<u32>,
    /// With a filter: `next_cursor` of the call before.
    #[serde(default)]
    cursor: Option<String>,
}

/// Retry many runs
///
/// Up to 1,000 by their ids, or by a filter, as in cancelling many.
#[utoipa::path(
    post,
    path = "/v1/bulk/retry",
    tag = "control", operation_id = "retryRuns",
    request_body = BulkRetryBody,
    responses(
        (status = 200, description = "What became of each", body = BulkJson<'static>),
        (status = "default", description = "An error; nothing was retried", body = Problem<'static>, content_type = "application/problem+json"),
    ),
)]
async fn bulk_retry(State(app): State<App>, query: Params, body: JsonBody<BULK_BODY_MAX>) -> Answer {
    query.finish()?;
    let BulkRetryBody { ids, filter, limit, cursor } = body.read()?;
    let page = app.bulk_retry(runs(ids, filter, limit, cursor)?).await?;
    Ok(told(page.items, page.next_cursor.as_deref(), false))
}
