//! The JSON shapes of answers. Values of users are written as the bytes they came as.

use crate::app::view::{
    AttemptView, ErrorView, Page, RunView, TaskView, ValueView, WaitingFor, WorkflowView,
};
use crate::dispatch::message::Assignment;
use crate::model::ids::{RunId, TaskPath, TaskType};
use crate::model::labels::Labels;
use crate::model::time::Timestamp;
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use http::{HeaderValue, StatusCode, header};
use serde::{Serialize, Serializer};
use serde_json::value::RawValue;
use std::collections::BTreeMap;
use utoipa::ToSchema;

/// Answers with JSON. A stored value that is not JSON makes the answer an internal error.
pub(crate) fn json(status: StatusCode, body: &impl Serialize) -> Response {
    match serde_json::to_vec(body) {
        Ok(text) => json_text(status, text.into()),
        Err(error) => {
            tracing::error!(%error, "an answer could not be written");
            let message = "a stored value is not JSON";
            crate::api::error::Refused(crate::app::AppError::new(
                crate::model::error::ErrorCode::Internal,
                message,
            ))
            .into_response()
        }
    }
}

/// Answers with text that is JSON.
pub(crate) fn json_text(status: StatusCode, text: Bytes) -> Response {
    let mut response = (status, text).into_response();
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// JSON text of a user. A value that would carry the answer over 3 MiB stands as `{"$ref": URL, "size": N}`.
pub(crate) struct Value<'a>(pub(crate) &'a ValueView);

/// Writes JSON text as it is; empty is null.
fn raw<S: Serializer>(text: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    if text.is_empty() {
        return serializer.serialize_unit();
    }
    let text: &RawValue = serde_json::from_slice(text).map_err(serde::ser::Error::custom)?;
    text.serialize(serializer)
}

impl Serialize for Value<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            ValueView::Json(text) => raw(text, serializer),
            ValueView::Ref { url, size } => ValueRef { url, size: *size }.serialize(serializer),
        }
    }
}

/// Where a value is read that was too large for the answer.
#[derive(Serialize, ToSchema)]
pub(crate) struct ValueRef<'a> {
    #[serde(rename = "$ref")]
    pub(crate) url: &'a str,
    /// Bytes.
    pub(crate) size: u64,
}

/// An instant as text: RFC 3339, UTC, microseconds.
pub(crate) struct Time(pub(crate) Timestamp);

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

/// Some items and where the next ones begin.
#[derive(Serialize, ToSchema)]
#[schema(as = Page)]
pub(crate) struct PageJson<T> {
    items: Vec<T>,
    /// Opaque; null at the end.
    #[schema(required)]
    next_cursor: Option<String>,
}

impl<'a, T> PageJson<T> {
    /// Maps a page of views to their shapes.
    pub(crate) fn of<V>(page: &'a Page<V>) -> Self
    where
        T: From<&'a V>,
    {
        Self { items: page.items.iter().map(T::from).collect(), next_cursor: page.next_cursor.clone() }
    }
}

/// A version of a workflow.
#[derive(Serialize, ToSchema)]
#[schema(as = Workflow)]
pub(crate) struct WorkflowJson<'a> {
    name: &'a str,
    version: u32,
    /// The newest version there is.
    newest: u32,
    /// When it was registered; null for a dry run.
    #[schema(value_type = Option<String>, format = DateTime, required)]
    created_at: Option<Time>,
    /// The document in canonical form; left out in lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    document: Option<RawText<'a>>,
}

/// JSON text of our own.
struct RawText<'a>(&'a [u8]);

impl Serialize for RawText<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        raw(self.0, serializer)
    }
}

impl<'a> From<&'a WorkflowView> for WorkflowJson<'a> {
    fn from(view: &'a WorkflowView) -> Self {
        Self {
            name: view.name.as_str(),
            version: view.version,
            newest: view.newest,
            created_at: view.created_at.map(Time),
            document: (!view.document.is_empty()).then(|| RawText(&view.document)),
        }
    }
}

/// What went wrong in a run.
#[derive(Serialize, ToSchema)]
#[schema(as = Failure)]
pub(crate) struct ErrorJson<'a> {
    /// A stable word, e.g. `card_declined`, `timeout_run`.
    code: &'a str,
    message: &'a str,
    /// Path of the task; null for the run itself.
    #[schema(required)]
    task: Option<&'a str>,
    /// From 1; null where there is none.
    #[schema(required)]
    attempt: Option<u32>,
}

impl<'a> From<&'a ErrorView> for ErrorJson<'a> {
    fn from(view: &'a ErrorView) -> Self {
        Self {
            code: &view.code,
            message: &view.message,
            task: view.task.as_ref().map(TaskPath::as_str),
            attempt: (view.attempt > 0).then_some(view.attempt),
        }
    }
}

/// How a run will end.
#[derive(Serialize, ToSchema)]
#[schema(as = Ending)]
struct EndingJson<'a> {
    /// `completed`, `failed`, `cancelled` or `timed_out`.
    status: &'static str,
    /// The first failure that counted.
    #[schema(required)]
    error: Option<ErrorJson<'a>>,
}

impl<'a> EndingJson<'a> {
    fn of(view: &'a RunView) -> Option<Self> {
        let status = view.ending?.name();
        Some(Self { status, error: view.error.as_ref().map(ErrorJson::from) })
    }
}

/// A run.
#[derive(Serialize, ToSchema)]
#[schema(as = Run)]
pub(crate) struct RunJson<'a> {
    id: &'a str,
    workflow: &'a str,
    version: u32,
    /// Which try of the run, from 1.
    r#try: u32,
    #[schema(example = "running")]
    status: &'static str,
    /// How it will end, once that is certain and handlers, compensation or `finally` go on; null otherwise.
    #[schema(required)]
    ending: Option<EndingJson<'a>>,
    /// What it was started with.
    #[schema(value_type = serde_json::Value)]
    input: Value<'a>,
    /// What it ended with; null before.
    #[schema(value_type = serde_json::Value)]
    output: Value<'a>,
    /// The first failure that counted.
    #[schema(required)]
    error: Option<ErrorJson<'a>>,
    tags: &'a BTreeMap<String, String>,
    priority: i32,
    /// The run that started this one as a child.
    #[schema(required)]
    parent: Option<&'a str>,
    /// Path of the task of `parent` that it was started for.
    #[schema(required)]
    parent_task: Option<&'a str>,
    /// The schedule that has started it.
    #[schema(required)]
    schedule: Option<&'a str>,
    /// The time at which `schedule` was due.
    #[schema(value_type = Option<String>, format = DateTime, required)]
    slot: Option<Time>,
    /// When it is to begin; null if that was at once, and once it has ended.
    #[schema(value_type = Option<String>, format = DateTime, required)]
    start_at: Option<Time>,
    #[schema(value_type = String, format = DateTime)]
    created_at: Time,
    #[schema(value_type = Option<String>, format = DateTime, required)]
    started_at: Option<Time>,
    #[schema(value_type = Option<String>, format = DateTime, required)]
    ended_at: Option<Time>,
    /// In document order: the first page.
    tasks: Vec<TaskJson<'a>>,
    /// Where the next tasks begin, for `/v1/runs/{id}/tasks`; null if these are all.
    #[schema(required)]
    tasks_cursor: Option<&'a str>,
}

impl<'a> From<&'a RunView> for RunJson<'a> {
    fn from(view: &'a RunView) -> Self {
        Self {
            id: view.id.as_str(),
            workflow: view.workflow.as_str(),
            version: view.version,
            r#try: view.try_number,
            status: view.status.name(),
            ending: EndingJson::of(view),
            input: Value(&view.input),
            output: Value(&view.output),
            error: view.error.as_ref().map(ErrorJson::from),
            tags: &view.tags,
            priority: view.priority,
            parent: view.parent.as_ref().map(|(run, _)| run.as_str()),
            parent_task: view.parent.as_ref().map(|(_, task)| task.as_str()),
            schedule: view.schedule.as_ref().map(|(name, _)| name.as_str()),
            slot: view.schedule.as_ref().map(|(_, slot)| Time(*slot)),
            start_at: view.start_at.map(Time),
            created_at: Time(view.created_at),
            started_at: view.started_at.map(Time),
            ended_at: view.ended_at.map(Time),
            tasks: view.tasks.iter().map(TaskJson::from).collect(),
            tasks_cursor: view.tasks_cursor.as_deref(),
        }
    }
}

/// A run in a list: what `Run` has, without `input`, `output`, `tasks` and `tasks_cursor`. Read the run for these.
#[derive(Serialize, ToSchema)]
#[schema(as = RunHead)]
pub(crate) struct RunHeadJson<'a> {
    id: &'a str,
    workflow: &'a str,
    version: u32,
    /// Which try of the run, from 1.
    r#try: u32,
    #[schema(example = "running")]
    status: &'static str,
    /// How it will end, once that is certain and handlers, compensation or `finally` go on; null otherwise.
    #[schema(required)]
    ending: Option<EndingJson<'a>>,
    /// The first failure that counted.
    #[schema(required)]
    error: Option<ErrorJson<'a>>,
    tags: &'a BTreeMap<String, String>,
    priority: i32,
    /// The run that started this one as a child.
    #[schema(required)]
    parent: Option<&'a str>,
    /// Path of the task of `parent` that it was started for.
    #[schema(required)]
    parent_task: Option<&'a str>,
    /// The schedule that has started it.
    #[schema(required)]
    schedule: Option<&'a str>,
    /// The time at which `schedule` was due.
    #[schema(value_type = Option<String>, format = DateTime, required)]
    slot: Option<Time>,
    /// When it is to begin; null if that was at once, and once it has ended.
    #[schema(value_type = Option<String>, format = DateTime, required)]
    start_at: Option<Time>,
    #[schema(value_type = String, format = DateTime)]
    created_at: Time,
    #[schema(value_type = Option<String>, format = DateTime, required)]
    started_at: Option<Time>,
    #[schema(value_type = Option<String>, format = DateTime, required)]
    ended_at: Option<Time>,
}

impl<'a> From<&'a RunView> for RunHeadJson<'a> {
    fn from(view: &'a RunView) -> Self {
        Self {
            id: view.id.as_str(),
            workflow: view.workflow.as_str(),
            version: view.version,
            r#try: view.try_number,
            status: view.status.name(),
            ending: EndingJson::of(view),
            error: view.error.as_ref().map(ErrorJson::from),
            tags: &view.tags,
            priority: view.priority,
            parent: view.parent.as_ref().map(|(run, _)| run.as_str()),
            parent_task: view.parent.as_ref().map(|(_, task)| task.as_str()),
            schedule: view.schedule.as_ref().map(|(name, _)| name.as_str()),
            slot: view.schedule.as_ref().map(|(_, slot)| Time(*slot)),
            start_at: view.start_at.map(Time),
            created_at: Time(view.created_at),
            started_at: view.started_at.map(Time),
            ended_at: view.ended_at.map(Time),
        }
    }
}

/// A task of a run.
#[derive(Serialize, ToSchema)]
#[schema(as = Task)]
pub(crate) struct TaskJson<'a> {
    /// Its path: `ship[3]/pack` is the task `pack` of item 3 of `ship`, `poll#2` an iteration.
    task: &'a str,
    #[schema(required)]
    r#type: Option<&'a str>,
    /// `pending`, `queued`, `running`, `waiting`, `retrying`, `completed`, `failed`, `skipped`, `cancelled`, `timed_out`.
    status: &'static str,
    /// What it waits for, while it is `waiting` for something that is not inside it.
    #[schema(required)]
    waiting_for: Option<WaitingForJson<'a>>,
    #[schema(value_type = serde_json::Value)]
    output: Value<'a>,
    #[schema(required)]
    error: Option<ErrorJson<'a>>,
    attempts: Vec<AttemptJson<'a>>,
    /// What a worker must have to be given it.
    #[schema(value_type = BTreeMap<String, String>)]
    labels: LabelsJson<'a>,
}

/// Labels as a JSON object.
struct LabelsJson<'a>(&'a Labels);

impl Serialize for LabelsJson<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter())
    }
}

/// What a task waits for: an object with one key.
#[derive(Serialize, ToSchema)]
#[schema(as = WaitingFor)]
#[serde(rename_all = "snake_case")]
pub(crate) enum WaitingForJson<'a> {
    /// A slot under this concurrency key.
    Concurrency(&'a str),
    /// Its turn under this rate key.
    Rate(&'a str),
    /// A signal of this name.
    Signal(&'a str),
    /// This time.
    #[schema(value_type = String, format = DateTime)]
    Until(Time),
    /// The run of this id.
    Child(&'a str),
}

impl<'a> From<&'a WaitingFor> for WaitingForJson<'a> {
    fn from(view: &'a WaitingFor) -> Self {
        match view {
            WaitingFor::Concurrency(key) => Self::Concurrency(key),
            WaitingFor::Rate(key) => Self::Rate(key),
            WaitingFor::Signal(name) => Self::Signal(name),
            WaitingFor::Until(at) => Self::Until(Time(*at)),
            WaitingFor::Child(run) => Self::Child(run.as_str()),
        }
    }
}

impl<'a> From<&'a TaskView> for TaskJson<'a> {
    fn from(view: &'a TaskView) -> Self {
        Self {
            task: view.task.as_str(),
            r#type: view.task_type.as_ref().map(TaskType::as_str),
            status: view.status,
            waiting_for: view.waiting_for.as_ref().map(WaitingForJson::from),
            output: Value(&view.output),
            error: view.error.as_ref().map(ErrorJson::from),
            attempts: view.attempts.iter().map(AttemptJson::from).collect(),
            labels: LabelsJson(&view.labels),
        }
    }
}

/// One try of a task.
#[derive(Serialize, ToSchema)]
#[schema(as = Attempt)]
pub(crate) struct AttemptJson<'a> {
    /// From 1.
    number: u32,
    status: &'static str,
    /// Label of the worker.
    #[schema(required)]
    worker: Option<&'a str>,
    /// The run of another workflow that does it.
    #[schema(required)]
    run: Option<&'a str>,
    #[schema(value_type = serde_json::Value)]
    input: Value<'a>,
    #[schema(value_type = Option<String>, format = DateTime, required)]
    queued_at: Option<Time>,
    #[schema(value_type = Option<String>, format = DateTime, required)]
    started_at: Option<Time>,
    #[schema(value_type = Option<String>, format = DateTime, required)]
    ended_at: Option<Time>,
    #[schema(required)]
    error: Option<ErrorJson<'a>>,
}

impl<'a> From<&'a AttemptView> for AttemptJson<'a> {
    fn from(view: &'a AttemptView) -> Self {
        Self {
            number: view.number,
            status: view.status,
            worker: view.worker.as_deref(),
            run: view.run.as_ref().map(RunId::as_str),
            input: Value(&view.input),
            queued_at: view.queued_at.map(Time),
            started_at: view.started_at.map(Time),
            ended_at: view.ended_at.map(Time),
            error: view.error.as_ref().map(ErrorJson::from),
        }
    }
}

/// A task that was claimed.
#[derive(Serialize, ToSchema)]
#[schema(as = Assignment)]
pub(crate) struct AssignmentJson<'a> {
    /// Settles the task; keep it secret.
    token: &'a str,
    run: &'a str,
    /// Its path.
    task: &'a str,
    /// From 1.
    attempt: u32,
    r#type: &'a str,
    #[schema(value_type = serde_json::Value)]
    input: RawText<'a>,
    /// When `timeout.run` strikes, if there is one; the lease is another time, and shorter.
    #[schema(value_type = Option<String>, format = DateTime, required)]
    deadline: Option<Time>,
}

impl<'a> From<&'a Assignment> for AssignmentJson<'a> {
    fn from(assignment: &'a Assignment) -> Self {
        Self {
            token: &assignment.token,
            run: assignment.run.as_str(),
            task: assignment.path.as_str(),
            attempt: assignment.attempt,
            r#type: assignment.task_type.as_str(),
            input: RawText(&assignment.input),
            deadline: assignment.deadline.map(Time),
        }
    }
}

/// A heartbeat was taken.
#[derive(Serialize, ToSchema)]
#[schema(as = Heartbeat)]
pub(crate) struct HeartbeatJson {
    /// The lease holds until then.
    #[schema(value_type = String, format = DateTime)]
    deadline: Time,
    /// The work is no longer wanted.
    cancelled: bool,
}

impl From<crate::app::HeartbeatAnswer> for HeartbeatJson {
    fn from(answer: crate::app::HeartbeatAnswer) -> Self {
        Self { deadline: Time(answer.deadline), cancelled: answer.cancelled }
    }
}
