//! `/v1/schedules`: runs started at times of a calendar.

use super::control::NoBody;
use super::extract::{JsonBody, Params, Segments, each_once, even_null};
use super::view::{PageJson, Time, Value, json};
use crate::api::Doors;
use crate::api::check::{self, firings_count, word};
use crate::api::error::{Answer, Problem};
use crate::api::limits::JSON_BODY_MAX;
use crate::app::App;
use crate::app::view::ScheduleView;
use crate::model::ids::{RunId, SignalId};
use crate::model::instant;
use crate::model::schedule::{Asked, Fate, Firing, ScheduleName, SkipReason};
use crate::model::time::Timestamp;
use axum::extract::State;
use axum::response::IntoResponse as _;
use http::{HeaderValue, StatusCode, header};
use serde::de::{SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;
use std::collections::BTreeMap;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub(super) fn routes() -> OpenApiRouter<Doors> {
    OpenApiRouter::new()
        .routes(routes!(list))
        .routes(routes!(put, get, delete))
        .routes(routes!(pause))
        .routes(routes!(resume))
        .routes(routes!(run))
        .routes(routes!(backfill))
        .routes(routes!(next))
}

/// What a schedule is to do.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = PutSchedule)]
struct PutBody<'a> {
    /// Of which workflow runs are started.
    workflow: String,
    /// Which version; the newest at that time if not given.
    #[serde(default)]
    version: Option<i64>,
    /// Input of the runs: any JSON value of at most 1 MiB.
    #[serde(borrow, default, deserialize_with = "even_null")]
    #[schema(value_type = serde_json::Value)]
    input: Option<&'a RawValue>,
    /// Tags of the runs, over those of the document.
    #[serde(default, deserialize_with = "each_once")]
    tags: BTreeMap<String, String>,
    /// Priority of the runs in place of that of the document, -100 to 100.
    #[serde(default)]
    priority: Option<i64>,
    /// A pattern of five fields, or `@daily` and the like; or a list of up to ten: due whenever one of them is.
    #[serde(deserialize_with = "one_or_more")]
    #[schema(example = "0 2 * * *", value_type = CronText)]
    cron: Vec<String>,
    /// IANA name; `UTC` if not given.
    #[serde(default)]
    #[schema(example = "Europe/Berlin")]
    time_zone: Option<String>,
    /// What happens to a slot while a run of the schedule is open: `skip` (default), `queue` or `allow`.
    #[serde(default)]
    overlap: Option<String>,
    /// What happens to slots that passed while no server was there: `none`, `latest` (default) or `all`.
    #[serde(default)]
    catch_up: Option<String>,
    /// How many slots `catch_up: all` starts at most, the newest of them: 1 to 1000, default 100.
    #[serde(default)]
    catch_up_limit: Option<i64>,
    /// For people, at most 1000 characters.
    #[serde(default)]
    description: Option<String>,
    /// Whether it starts nothing by itself; left as it is if not given.
    #[serde(default)]
    paused: Option<bool>,
}

/// One pattern, or some.
#[derive(Debug, ToSchema)]
#[schema(as = Cron)]
#[expect(dead_code, reason = "describes what one_or_more reads")]
#[serde(untagged)]
enum CronText {
    One(String),
    More(Vec<String>),
}

/// Reads one text, or a list of them.
fn one_or_more<'de, D: Deserializer<'de>>(json: D) -> Result<Vec<String>, D::Error> {
    struct OneOrMore;
    impl<'de> Visitor<'de> for OneOrMore {
        type Value = Vec<String>;

        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("text in double quotes, or a list of such")
        }

        fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Vec<String>, E> {
            Ok(vec![text.to_owned()])
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Vec<String>, A::Error> {
            let mut list = Vec::new();
            while let Some(item) = items.next_element()? {
                list.push(item);
            }
            Ok(list)
        }
    }
    json.deserialize_any(OneOrMore)
}

/// A run to be started by hand.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = RunSchedule)]
struct RunBody {
    /// Yours, of this request: makes a repeat of the call safe.
    #[serde(default)]
    id: Option<String>,
}

/// A range of past slots.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = BackfillSchedule)]
struct BackfillBody {
    /// The first instant of the range, RFC 3339.
    #[schema(format = DateTime)]
    from: String,
    /// Behind its last; not after now.
    #[schema(format = DateTime)]
    to: String,
}

/// A schedule.
#[derive(Serialize, ToSchema)]
#[schema(as = Schedule)]
struct ScheduleJson<'a> {
    name: &'a str,
    /// Rises with every change of the definition, from 1.
    revision: u32,
    workflow: &'a str,
    #[schema(required)]
    version: Option<u32>,
    /// Left out in lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    input: Option<Value<'a>>,
    tags: &'a BTreeMap<String, String>,
    #[schema(required)]
    priority: Option<i32>,
    cron: &'a [String],
    time_zone: &'a str,
    /// `skip`, `queue` or `allow`.
    overlap: &'a str,
    /// `none`, `latest` or `all`.
    catch_up: &'a str,
    catch_up_limit: u32,
    #[schema(required)]
    description: Option<&'a str>,
    paused: bool,
    #[schema(value_type = Option<String>, format = DateTime, required)]
    paused_since: Option<Time>,
    #[schema(value_type = String, format = DateTime)]
    created_at: Time,
    /// When the definition was last changed.
    #[schema(value_type = String, format = DateTime)]
    updated_at: Time,
    /// The next ten firings, one in lists; of a paused schedule those that there would be.
    #[schema(value_type = Vec<String>, format = DateTime)]
    next: Vec<Time>,
    /// Runs that have not ended, the first hundred of them; left out in lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    open: Option<Vec<OpenJson<'a>>>,
    /// How many runs have not ended.
    open_count: usize,
    /// Slots, and runs asked for by hand, that wait for their turn.
    waiting: usize,
    /// Slots of backfills that wait for their turn.
    backfilling: usize,
    /// What became of the last fifty slots, newest first; the last one in lists.
    firings: Vec<FiringJson<'a>>,
}

/// A run of a schedule that has not ended.
#[derive(Serialize, ToSchema)]
#[schema(as = OpenScheduleRun)]
struct OpenJson<'a> {
    run: &'a str,
    #[schema(value_type = String, format = DateTime)]
    slot: Time,
}

/// What became of a slot, or of several that were left out together.
#[derive(Serialize, ToSchema)]
#[schema(as = Firing)]
struct FiringJson<'a> {
    /// When this was decided.
    #[schema(value_type = String, format = DateTime)]
    time: Time,
    /// `started`, `skipped` or `refused`.
    outcome: &'a str,
    /// The slot, or the first of several.
    #[schema(value_type = String, format = DateTime)]
    slot: Time,
    /// The last of several slots.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    until: Option<Time>,
    /// How many slots; 10000 stands for more, too.
    #[serde(skip_serializing_if = "Option::is_none")]
    count: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    run: Option<&'a str>,
    /// Why it was skipped: `overlap`, `missed`, `paused` or `queue_full`.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
    /// Why it was refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<FiringError<'a>>,
}

/// Why a run could not be started.
#[derive(Serialize, ToSchema)]
struct FiringError<'a> {
    code: &'a str,
    message: &'a str,
}

impl<'a> From<&'a Firing> for FiringJson<'a> {
    fn from(firing: &'a Firing) -> Self {
        Self {
            time: Time(firing.time),
            outcome: firing.fate.name(),
            slot: Time(firing.slot),
            until: firing.until.map(Time),
            count: firing.until.map(|_| firing.count),
            run: firing.run.as_ref().filter(|_| firing.fate == Fate::Started).map(RunId::as_str),
            reason: firing.reason.map(SkipReason::name),
            error: firing.error.as_ref().map(|(code, message)| FiringError { code, message }),
        }
    }
}

impl<'a> From<&'a ScheduleView> for ScheduleJson<'a> {
    /// As lists tell it.
    fn from(view: &'a ScheduleView) -> Self {
        let d = &view.definition;
        Self {
            name: view.name.as_str(),
            revision: view.revision,
            workflow: d.workflow.as_str(),
            version: d.version,
            input: None,
            tags: &d.tags,
            priority: d.priority,
            cron: &d.cron,
            time_zone: &d.time_zone,
            overlap: d.overlap.name(),
            catch_up: d.catch_up.name(),
            catch_up_limit: d.catch_up_limit,
            description: d.description.as_deref(),
            paused: view.paused_since.is_some(),
            paused_since: view.paused_since.map(Time),
            created_at: Time(view.created_at),
            updated_at: Time(view.updated_at),
            next: view.next.iter().copied().map(Time).collect(),
            open: None,
            open_count: view.open_count,
            waiting: view.waiting,
            backfilling: view.backfilling,
            firings: view.firings.iter().map(FiringJson::from).collect(),
        }
    }
}

impl<'a> ScheduleJson<'a> {
    fn whole(view: &'a ScheduleView) -> Self {
        let open = view.open.iter().map(|(run, slot)| OpenJson { run: run.as_str(), slot: Time(*slot) });
        Self { input: Some(Value(&view.input)), open: Some(open.collect()), ..Self::from(view) }
    }
}

/// The next firings.
#[derive(Serialize, ToSchema)]
#[schema(as = NextFirings)]
struct NextJson {
    #[schema(value_type = Vec<String>, format = DateTime)]
    next: Vec<Time>,
}

/// A run that is started by hand.
#[derive(Serialize, ToSchema)]
#[schema(as = RunByHand)]
struct RunJson<'a> {
    /// Its id.
    run: &'a str,
    /// It waits until others have ended.
    queued: bool,
}

/// What a backfill will start.
#[derive(Serialize, ToSchema)]
#[schema(as = Backfilled)]
struct BackfilledJson {
    /// So many slots. Those whose run exists are left out.
    slots: u32,
}

fn stands(view: &ScheduleView) -> axum::response::Response {
    json(StatusCode::OK, &ScheduleJson::whole(view))
}

/// Create or replace a schedule
///
/// An equal definition changes nothing. Another one counts from now: slots that are due are started first. All faults
/// are told in one answer, and nothing is stored then.
#[utoipa::path(
    put,
    path = "/v1/schedules/{name}",
    tag = "schedules", operation_id = "putSchedule",
    params(
        ("name" = String, Path, description = "As of a workflow, at most 100 characters"),
        ("dry_run" = Option<bool>, Query, description = "Only check, and tell how it would stand"),
    ),
    request_body = PutBody<'static>,
    responses(
        (status = 200, description = "Replaced, unchanged, or valid (dry run)", body = ScheduleJson<'static>),
        (status = 201, description = "Created", body = ScheduleJson<'static>),
        (status = 422, description = "The schedule has faults", body = Problem<'static>, content_type = "application/problem+json"),
        (status = "default", description = "Any other error", body = Problem<'static>, content_type = "application/problem+json"),
    ),
)]
async fn put(
    State(app): State<App>,
    path: Segments,
    mut query: Params,
    body: JsonBody<JSON_BODY_MAX>,
) -> Answer {
    let name = path.parse("name", ScheduleName::new)?;
    let dry_run = query.flag("dry_run");
    query.finish()?;
    let given: PutBody<'_> = body.read()?;
    let asked = Asked {
        workflow: given.workflow,
        version: given.version,
        input: Some(body.text(given.input)),
        tags: given.tags,
        priority: given.priority,
        cron: given.cron,
        time_zone: given.time_zone,
        overlap: given.overlap,
        catch_up: given.catch_up,
        catch_up_limit: given.catch_up_limit,
        description: given.description,
        paused: given.paused,
    };
    let (view, created) = app.put_schedule(check::schedule(name, &asked)?, dry_run).await?;
    if !created || dry_run {
        return Ok(stands(&view));
    }
    let mut response = json(StatusCode::CREATED, &ScheduleJson::whole(&view));
    if let Ok(place) = HeaderValue::try_from(format!("/v1/schedules/{}", view.name)) {
        response.headers_mut().insert(header::LOCATION, place);
    }
    Ok(response)
}

/// List schedules
///
/// The one that was created last first.
#[utoipa::path(
    get,
    path = "/v1/schedules",
    tag = "schedules", operation_id = "listSchedules",
    params(
        ("limit" = Option<u32>, Query, description = "1 to 500, default 50"),
        ("cursor" = Option<String>, Query, description = "`next_cursor` of the page before"),
    ),
    responses(
        (status = 200, description = "A page", body = PageJson<ScheduleJson<'static>>),
        (status = "default", description = "An error", body = Problem<'static>, content_type = "application/problem+json"),
    ),
)]
async fn list(State(app): State<App>, mut query: Params) -> Answer {
    let (limit, cursor) = query.page();
    query.finish()?;
    let page = app.schedules(limit, cursor.as_deref()).await?;
    Ok(json(StatusCode::OK, &PageJson::<ScheduleJson<'_>>::of(&page)))
}

/// Read a schedule
#[utoipa::path(
    get,
    path = "/v1/schedules/{name}",
    tag = "schedules", operation_id = "getSchedule",
    params(("name" = String, Path)),
    responses(
        (status = 200, description = "The schedule", body = ScheduleJson<'static>),
        (status = "default", description = "An error", body = Problem<'static>, content_type = "application/problem+json"),
    ),
)]
async fn get(State(app): State<App>, path: Segments, query: Params) -> Answer {
    let name = path.parse("name", ScheduleName::new)?;
    query.finish()?;
    Ok(stands(&app.schedule(&name).await?))
}

/// Remove a schedule
///
/// Its runs go on.
#[utoipa::path(
    delete,
    path = "/v1/schedules/{name}",
    tag = "schedules", operation_id = "deleteSchedule",
    params(("name" = String, Path)),
    responses(
        (status = 204, description = "Removed"),
        (status = "default", description = "An error", body = Problem<'static>, content_type = "application/problem+json"),
    ),
)]
async fn delete(State(app): State<App>, path: Segments, query: Params) -> Answer {
    let name = path.parse("name", ScheduleName::new)?;
    query.finish()?;
    app.delete_schedule(&name).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// Pause a schedule
///
/// It starts nothing by itself until it is resumed; runs go on. One that is paused stays so.
#[utoipa::path(
    post,
    path = "/v1/schedules/{name}/pause",
    tag = "schedules", operation_id = "pauseSchedule",
    params(("name" = String, Path)),
    request_body(content = Option<NoBody>, description = "May be empty"),
    responses(
        (status = 200, description = "Paused", body = ScheduleJson<'static>),
        (status = "default", description = "An error", body = Problem<'static>, content_type = "application/problem+json"),
    ),
)]
async fn pause(
    State(app): State<App>,
    path: Segments,
    query: Params,
    body: JsonBody<JSON_BODY_MAX>,
) -> Answer {
    let name = path.parse("name", ScheduleName::new)?;
    query.finish()?;
    let NoBody {} = body.read()?;
    Ok(stands(&app.pause_schedule(&name).await?))
}

/// Resume a schedule
///
/// Slots of the pause are skipped. One that is not paused goes on.
#[utoipa::path(
    post,
    path = "/v1/schedules/{name}/resume",
    tag = "schedules", operation_id = "resumeSchedule",
    params(("name" = String, Path)),
    request_body(content = Option<NoBody>, description = "May be empty"),
    responses(
        (status = 200, description = "Going on", body = ScheduleJson<'static>),
        (status = "default", description = "An error", body = Problem<'static>, content_type = "application/problem+json"),
    ),
)]
async fn resume(
    State(app): State<App>,
    path: Segments,
    query: Params,
    body: JsonBody<JSON_BODY_MAX>,
) -> Answer {
    let name = path.parse("name", ScheduleName::new)?;
    query.finish()?;
    let NoBody {} = body.read()?;
    Ok(stands(&app.resume_schedule(&name).await?))
}

/// Run a schedule now
///
/// Starts a run as far as overlap allows: with `skip` it is refused while a run is open, with `queue` it waits for its
/// turn, ahead of slots. Also while the schedule is paused.
#[utoipa::path(
    post,
    path = "/v1/schedules/{name}/run",
    tag = "schedules", operation_id = "runSchedule",
    params(("name" = String, Path)),
    request_body(content = Option<RunBody>, description = "May be empty"),
    responses(
        (status = 202, description = "On its way", body = RunJson<'static>),
        (status = 409, description = "A run is open", body = Problem<'static>, content_type = "application/problem+json"),
        (status = "default", description = "Any other error", body = Problem<'static>, content_type = "application/problem+json"),
    ),
)]
async fn run(State(app): State<App>, path: Segments, query: Params, body: JsonBody<JSON_BODY_MAX>) -> Answer {
    let name = path.parse("name", ScheduleName::new)?;
    query.finish()?;
    let RunBody { id } = body.read()?;
    let id = id.map(|id| word("id", &id, SignalId::new)).transpose()?;
    let started = app.run_schedule(&name, id.as_ref().map(SignalId::as_str)).await?;
    Ok(json(StatusCode::ACCEPTED, &RunJson { run: started.run.as_str(), queued: started.queued }))
}

/// Backfill a schedule
///
/// Starts a run for each past slot from `from` on and before `to`, at most 1,000, whose run does not exist: one after
/// the other, and with overlap `allow` as many at once as there may be.
#[utoipa::path(
    post,
    path = "/v1/schedules/{name}/backfill",
    tag = "schedules", operation_id = "backfillSchedule",
    params(("name" = String, Path)),
    request_body = BackfillBody,
    responses(
        (status = 202, description = "They wait for their turn", body = BackfilledJson),
        (status = "default", description = "An error", body = Problem<'static>, content_type = "application/problem+json"),
    ),
)]
async fn backfill(
    State(app): State<App>,
    path: Segments,
    query: Params,
    body: JsonBody<JSON_BODY_MAX>,
) -> Answer {
    let name = path.parse("name", ScheduleName::new)?;
    query.finish()?;
    let BackfillBody { from, to } = body.read()?;
    let from: Timestamp = word("from", &from, instant::parse)?;
    let to: Timestamp = word("to", &to, instant::parse)?;
    Ok(json(StatusCode::ACCEPTED, &BackfilledJson { slots: app.backfill_schedule(&name, from, to).await? }))
}

/// Tell the next firings
///
/// Of a paused schedule those that there would be.
#[utoipa::path(
    get,
    path = "/v1/schedules/{name}/next",
    tag = "schedules", operation_id = "nextFirings",
    params(
        ("name" = String, Path),
        ("count" = Option<u32>, Query, description = "1 to 100, default 10"),
    ),
    responses(
        (status = 200, description = "The next firings", body = NextJson),
        (status = "default", description = "An error", body = Problem<'static>, content_type = "application/problem+json"),
    ),
)]
async fn next(State(app): State<App>, path: Segments, mut query: Params) -> Answer {
    let name = path.parse("name", ScheduleName::new)?;
    let count = query.parse("count", |text| {
        text.parse().map_err(|_| format!("{text:?} is not a number from 1 to 100")).and_then(firings_count)
    });
    query.finish()?;
    let next = app.next_firings(&name, count.unwrap_or(check::FIRINGS_DEFAULT)).await?;
    Ok(json(StatusCode::OK, &NextJson { next: next.into_iter().map(Time).collect() }))
}
