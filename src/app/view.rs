//! What use cases take and give: plain values, no wire format. REST and gRPC map them one for one.

use super::AppError;
use crate::model::event::EventKind;
use crate::model::ids::{RunId, TaskPath, TaskType, WorkflowName};
use crate::model::labels::Labels;
use crate::model::run::RunStatus;
use crate::model::schedule::{Definition, Firing, ScheduleName};
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

/// When a run is to begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StartAt {
    /// At this time.
    At(Timestamp),
    /// This long after it is accepted.
    After(Span),
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
    pub start_at: Option<StartAt>,
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
    /// The run and task it was started for.
    pub parent: Option<(RunId, TaskPath)>,
    /// The schedule that has started it, and the time that was due.
    pub schedule: Option<(ScheduleName, Timestamp)>,
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
    /// What it waits for; none unless that is its status, and of what waits for tasks inside it.
    pub waiting_for: Option<WaitingFor>,
    /// Its result.
    pub output: ValueView,
    /// Its failure.
    pub error: Option<ErrorView>,
    /// In order.
    pub attempts: Vec<AttemptView>,
    /// What a worker must have to be given it.
    pub labels: Labels,
}

/// What a task waits for that no worker does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WaitingFor {
    /// A slot under this concurrency key.
    Concurrency(String),
    /// Its turn under this rate key.
    Rate(String),
    /// A signal of this name.
    Signal(String),
    /// This time.
    Until(Timestamp),
    /// This run.
    Child(RunId),
}

/// What is done to a task by hand.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ByHand {
    /// An open task is skipped; not one that a worker has.
    Skip,
    /// An open task is completed.
    Complete {
        /// JSON text; empty is null.
        output: Bytes,
    },
    /// An open task is failed, unretried.
    Fail {
        /// A stable word; empty is `failed`.
        code: String,
        /// For people.
        message: String,
    },
    /// An ended run begins again from the task.
    Rerun {
        /// JSON text in place of the evaluated input.
        input: Option<Bytes>,
    },
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
    /// The run of another workflow that it is.
    pub run: Option<RunId>,
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
    /// Started for a task of this run.
    pub parent: Option<RunId>,
}

/// Which runs a call for many is about.
#[derive(Debug, Clone, PartialEq)]
pub enum Which {
    /// These; an id that was refused at the door is answered with what it was refused with.
    Ids(Vec<Result<RunId, AppError>>),
    /// Those that match, newest first.
    Matching {
        /// Names at least one thing.
        filter: RunFilter,
        /// At most so many, 1 to 1,000.
        limit: u32,
        /// Where the call before ended.
        cursor: Option<String>,
    },
}

/// What became of one item of a call for many.
#[derive(Debug, Clone, PartialEq)]
pub struct BulkItem {
    /// The run, as far as it is known.
    pub id: Option<RunId>,
    /// Done, or why not.
    pub outcome: Result<BulkDone, AppError>,
}

/// An item that was done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BulkDone {
    /// Where the run is now.
    pub status: RunStatus,
    /// Whether this call made the run.
    pub created: bool,
}

/// What became of the items of a call for many.
#[derive(Debug, Clone, PartialEq)]
pub struct BulkPage {
    /// In the order of the items; by a filter, newest first.
    pub items: Vec<BulkItem>,
    /// By a filter: where to go on, if there may be more.
    pub next_cursor: Option<String>,
}

/// Which events to tell.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct EventFilter {
    /// Of runs of this workflow.
    pub workflow: Option<WorkflowName>,
    /// Of this type; `run.*`, `task.*` and `schedule.*` take a family.
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
    /// In which run; none of a slot that was left out.
    pub run: Option<RunId>,
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
    /// Of which schedule, on `schedule.fired` and `schedule.skipped`.
    pub schedule: Option<SlotView>,
}

/// A slot of a schedule, or several that were left out together, in an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlotView {
    /// The schedule.
    pub name: ScheduleName,
    /// When it was due; none if that is no longer known.
    pub slot: Option<Timestamp>,
    /// The last of several.
    pub until: Option<Timestamp>,
    /// How many.
    pub count: u32,
    /// Why it was left out.
    pub reason: Option<&'static str>,
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

/// A schedule.
#[derive(Debug, Clone, PartialEq)]
pub struct ScheduleView {
    /// Its name.
    pub name: ScheduleName,
    /// Rises with every change of the definition, from 1.
    pub revision: u32,
    /// When it was created.
    pub created_at: Timestamp,
    /// When its definition was last changed.
    pub updated_at: Timestamp,
    /// What it is to do; see `input` for that.
    pub definition: Definition,
    /// Input of its runs; not told in lists.
    pub input: ValueView,
    /// Since when it starts nothing by itself.
    pub paused_since: Option<Timestamp>,
    /// Its next firings; one in lists.
    pub next: Vec<Timestamp>,
    /// Runs that have not ended, with their slot: the first 100; not told in lists.
    pub open: Vec<(RunId, Timestamp)>,
    /// How many runs have not ended.
    pub open_count: usize,
    /// Slots, and runs asked for by hand, that wait for their turn.
    pub waiting: usize,
    /// Slots of backfills that wait for their turn.
    pub backfilling: usize,
    /// What became of the last slots, newest first; the last one in lists.
    pub firings: Vec<Firing>,
}

/// A definition on its way to become a schedule.
#[derive(Debug, Clone, PartialEq)]
pub struct SchedulePut {
    /// Its name.
    pub name: ScheduleName,
    /// What it is to do, without the input.
    pub definition: Definition,
    /// Input of its runs: JSON text; empty is null.
    pub input: Bytes,
    /// None leaves it as it is.
    pub paused: Option<bool>,
}

/// A run that a schedule was asked to start by hand.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunByHand {
    /// Its id.
    pub run: RunId,
    /// It waits until others have ended.
    pub queued: bool,
}
