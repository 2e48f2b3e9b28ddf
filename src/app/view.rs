//! What use cases take and give: plain values, no wire format. REST and gRPC map them one for one.

use crate::model::event::EventKind;
use crate::model::ids::{RunId, TaskPath, TaskType, WorkflowName};
use crate::model::run::RunStatus;
use crate::model::time::{Span, Timestamp};
use bytes::Bytes;
use std::collections::BTreeMap;

/// Some items and where the next ones begin.
#[derive(Debug, Clone, PartialEq)]
pub struct Page<T> {
    /// The items.
    pub items: Vec<T>,
    /// Opaque; none at the end.
    pub next_cursor: Option<String>,
}

/// Answer to a registration.
#[derive(Debug, Clone, PartialEq)]
pub struct Registered {
    /// The workflow as it stands now.
    pub workflow: WorkflowView,
    /// Whether this call made a new version.
    pub created: bool,
}

/// A workflow version.
#[derive(Debug, Clone, PartialEq)]
pub struct WorkflowView {
    /// Its name.
    pub name: WorkflowName,
    /// Its version.
    pub version: u32,
    /// The newest version there is.
    pub newest: u32,
    /// When it was registered; none for a dry run.
    pub created_at: Option<Timestamp>,
    /// The canonical document as JSON; empty in lists.
    pub document: Bytes,
}

/// What to start.
#[derive(Debug, Clone, PartialEq)]
pub struct StartRequest {
    /// The workflow.
    pub workflow: WorkflowName,
    /// A version, or the newest.
    pub version: Option<u32>,
    /// The caller's id makes the start idempotent.
    pub id: Option<RunId>,
    /// JSON text; empty is null.
    pub input: Bytes,
    /// Tags.
    pub tags: BTreeMap<String, String>,
    /// −100 to 100.
    pub priority: Option<i32>,
    /// When it is to begin; none or a past time is at once.
    pub start_at: Option<Timestamp>,
    /// Refuse if the id exists, even for the same request.
    pub reject_existing: bool,
    /// Answer when the run has ended or this has passed (at most 60 s).
    pub wait: Option<Span>,
}

/// Answer to a start.
#[derive(Debug, Clone, PartialEq)]
pub struct Started {
    /// The run.
    pub run: RunView,
    /// False: it was there before.
    pub created: bool,
}

/// A failure as users read it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ErrorView {
    /// A stable word.
    pub code: String,
    /// For people.
    pub message: String,
    /// Where it happened; none for the run itself.
    pub task: Option<TaskPath>,
    /// In which attempt; 0 where there is none.
    pub attempt: u32,
}

/// A JSON value in an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ValueView {
    /// JSON text.
    Json(Bytes),
    /// Would carry the answer over 3 MiB: where to read it, and how large it is.
    Ref {
        /// Address under `/v1`.
        url: String,
        /// Bytes.
        size: u64,
    },
}

/// Names one value of a run: the last segment of `/v1/runs/{id}/values/{field}`.
///
/// ```text
/// input | output | tasks.PATH.output | tasks.PATH.attempts.N.input
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ValueAddress {
    /// What the run was started with.
    Input,
    /// What the run ended with.
    Output,
    /// Result of a task.
    TaskOutput(TaskPath),
    /// What an attempt of a task got.
    AttemptInput(TaskPath, u32),
}

impl ValueAddress {
    /// Reads an address as it is written; the error says what may stand there.
    pub fn parse(text: &str) -> Result<Self, String> {
        let bad = || {
            format!(
                "{:?} names no value: input, output, tasks.PATH.output or tasks.PATH.attempts.N.input",
                text.chars().take(64).collect::<String>()
            )
        };
        let path = |text: &str| TaskPath::parse(text).map_err(|e| e.to_string());
        match text.split('.').collect::<Vec<_>>().as_slice() {
            ["input"] => Ok(Self::Input),
            ["output"] => Ok(Self::Output),
            ["tasks", task, "output"] => Ok(Self::TaskOutput(path(task)?)),
            ["tasks", task, "attempts", n, "input"] => {
                let attempt = n.parse().ok().filter(|n| *n > 0).ok_or_else(bad)?;
                Ok(Self::AttemptInput(path(task)?, attempt))
            }
            _ => Err(bad()),
        }
    }

    /// Where the value is read, e.g. `/v1/runs/order-1/values/tasks.ship%5B2%5D.output`.
    pub fn url(&self, run: &RunId) -> String {
        let field = self.to_string();
        let mut url = format!("/v1/runs/{run}/values/");
        for c in field.chars() {
            match c {
                '/' => url.push_str("%2F"),
                '[' => url.push_str("%5B"),
                ']' => url.push_str("%5D"),
                '#' => url.push_str("%23"),
                c => url.push(c),
            }
        }
        url
    }
}

impl std::fmt::Display for ValueAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Input => f.write_str("input"),
            Self::Output => f.write_str("output"),
            Self::TaskOutput(task) => write!(f, "tasks.{task}.output"),
            Self::AttemptInput(task, attempt) => write!(f, "tasks.{task}.attempts.{attempt}.input"),
        }
    }
}

impl Default for ValueView {
    fn default() -> Self {
        Self::Json(Bytes::from_static(b"null"))
    }
}

/// A run as users read it.
#[derive(Debug, Clone, PartialEq)]
pub struct RunView {
    /// Its id.
    pub id: RunId,
    /// Its workflow.
    pub workflow: WorkflowName,
    /// The version it keeps.
    pub version: u32,
    /// Which try.
    pub try_number: u32,
    /// Where it is.
    pub status: RunStatus,
    /// What it was started with (not told in lists).
    pub input: ValueView,
    /// What it ended with (not told in lists).
    pub output: ValueView,
    /// How it will end, while handlers, compensation and `finally` go on.
    pub ending: Option<RunStatus>,
    /// When a pending run is to begin.
    pub start_at: Option<Timestamp>,
    /// The first failure that counted.
    pub error: Option<ErrorView>,
    /// Labels.
    pub tags: BTreeMap<String, String>,
    /// −100 to 100.
    pub priority: i32,
    /// When it was accepted.
    pub created_at: Timestamp,
    /// When it began.
    pub started_at: Option<Timestamp>,
    /// When it ended.
    pub ended_at: Option<Timestamp>,
    /// Its tasks, in document order (not told in lists).
    pub tasks: Vec<TaskView>,
    /// Where the next tasks begin, for `/v1/runs/{id}/tasks`.
    pub tasks_cursor: Option<String>,
}

/// A task as users read it.
#[derive(Debug, Clone, PartialEq)]
pub struct TaskView {
    /// Its path.
    pub task: TaskPath,
    /// Its type.
    pub task_type: Option<TaskType>,
    /// As users read it.
    pub status: &'static str,
    /// Its result.
    pub output: ValueView,
    /// Its failure.
    pub error: Option<ErrorView>,
    /// In order.
    pub attempts: Vec<AttemptView>,
}

/// An attempt as users read it.
#[derive(Debug, Clone, PartialEq)]
pub struct AttemptView {
    /// From 1.
    pub number: u32,
    /// As users read it.
    pub status: &'static str,
    /// Label of the worker.
    pub worker: Option<String>,
    /// What it got (only of the current attempt and those that differ).
    pub input: ValueView,
    /// First queued.
    pub queued_at: Option<Timestamp>,
    /// Leased (the last delivery).
    pub started_at: Option<Timestamp>,
    /// Ended.
    pub ended_at: Option<Timestamp>,
    /// How it failed.
    pub error: Option<ErrorView>,
}

/// Which runs to list.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RunFilter {
    /// Of this workflow.
    pub workflow: Option<WorkflowName>,
    /// In this status.
    pub status: Option<RunStatus>,
    /// With all of these tags.
    pub tags: Vec<(String, String)>,
    /// Created at or after.
    pub since: Option<Timestamp>,
    /// Created before.
    pub until: Option<Timestamp>,
}

/// Which events to tell.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct EventFilter {
    /// Of runs of this workflow.
    pub workflow: Option<WorkflowName>,
    /// Of this type; `run.*` and `task.*` take a family.
    pub event_type: Option<String>,
    /// Of runs with all of these tags.
    pub tags: Vec<(String, String)>,
}

/// What a feed gives.
#[derive(Debug, Clone, PartialEq)]
#[expect(clippy::large_enum_variant, reason = "nearly every item is an event; boxing each would cost more")]
pub enum EventItem {
    /// A durable event.
    Event(EventView),
    /// The cursor was trimmed, foreign or junk: what follows begins anew.
    Reset,
}

/// An event as users read it.
#[derive(Debug, Clone, PartialEq)]
pub struct EventView {
    /// Opaque cursor: resume after this event.
    pub cursor: String,
    /// What happened.
    pub kind: EventKind,
    /// When.
    pub time: Timestamp,
    /// In which run.
    pub run: RunId,
    /// Tags of the run, for filters; not told.
    pub tags: BTreeMap<String, String>,
    /// The run was deleted meanwhile: only type, time and run are known.
    pub deleted: bool,
    /// Of which workflow; none if the run was deleted meanwhile.
    pub workflow: Option<(WorkflowName, u32)>,
    /// Of which task.
    pub task: Option<TaskPath>,
    /// Its type.
    pub task_type: Option<TaskType>,
    /// The attempt, from 1.
    pub attempt: Option<u32>,
    /// Which delivery of the attempt, if not the first.
    pub delivery: Option<u32>,
    /// Label of the worker.
    pub worker: Option<String>,
    /// Result of the task or the run, on `completed`.
    pub output: Option<ValueView>,
    /// Failure, on `failed`, `retrying`, `timed_out`.
    pub error: Option<ErrorView>,
    /// Name of the signal, on `signal.received`; what it carries is the output.
    pub signal: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn value_addresses_read_what_they_write() {
        for text in ["input", "output", "tasks.ship.output", "tasks.a[1]#2/b.attempts.3.input"] {
            assert_eq!(ValueAddress::parse(text).unwrap().to_string(), text);
        }
        for bad in
            ["", "Input", "tasks..output", "tasks.a", "tasks.a.attempts.0.input", "tasks.a.attempts.x.input"]
        {
            assert!(ValueAddress::parse(bad).is_err(), "{bad:?} must be refused");
        }
    }

    #[test]
    fn value_urls_escape_what_has_a_meaning_in_urls() {
        let run = RunId::new("order-1").unwrap();
        let address = ValueAddress::parse("tasks.a[1]#2/b.output").unwrap();
        assert_eq!(address.url(&run), "/v1/runs/order-1/values/tasks.a%5B1%5D%232%2Fb.output");
    }
}
