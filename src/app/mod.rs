//! Layer 4: lanes (load → decide → commit → effects), sessions, and the use cases the doors call.
//! The only caller of the engine and of `Store::commit`; names no axum, tonic or redis type.

pub mod error;
pub mod view;

pub use error::AppError;
use view::{
    EventFilter, EventItem, Page, Registered, RunFilter, RunView, StartRequest, Started, WorkflowView,
};

use crate::dispatch::message::{AckStatus, Assignment, FromWorker, Hello, TaskOutcome, ToWorker};
use crate::model::document::Format;
use crate::model::ids::{RunId, TaskType, WorkflowName};
use crate::model::time::{Span, Timestamp};
use bytes::Bytes;

/// Downbeat itself, without doors: cheap to clone, safe to share.
#[derive(Debug, Clone)]
pub struct App {}

/// Answer to a heartbeat over HTTP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeartbeatAnswer {
    /// The new deadline of the claim.
    pub deadline: Timestamp,
    /// The work is no longer wanted.
    pub cancelled: bool,
}

/// One worker stream: give it what the worker says, take from it what to tell the worker.
/// Dropping it means that the stream broke; the lease outlives it.
#[derive(Debug)]
pub struct WorkerStream {}

impl WorkerStream {
    /// What the worker said. Err ends the stream with that error.
    pub async fn receive(&self, message: FromWorker) -> Result<(), AppError> {
        let _ = message;
        Ok(())
    }

    /// The next thing to tell the worker; waits. `None`: the stream is over (session taken over, or shut down).
    /// Cancel safe.
    pub async fn next(&mut self) -> Option<ToWorker> {
        None
    }
}

/// A feed of events, in order per run. See `docs/adr/0004-events.md`.
#[derive(Debug)]
pub struct EventFeed {}

impl EventFeed {
    /// The next item; waits. `None`: the stream is over (after the terminal event of a run, or shut down, or the
    /// reader was too slow). Cancel safe.
    pub async fn next(&mut self) -> Option<EventItem> {
        None
    }
}

/// What a run's feed begins with.
#[derive(Debug)]
pub enum RunFeed {
    /// Events follow.
    Feed(EventFeed),
    /// The cursor is the terminal event: nothing will ever follow (HTTP 204).
    AtEnd,
}

#[expect(clippy::unused_async, reason = "signatures first")]
impl App {
    /// Validates a document and, unless `dry_run`, stores it as a new version if it differs from the newest.
    pub async fn register(
        &self,
        name: Option<&WorkflowName>,
        text: &[u8],
        format: Format,
        dry_run: bool,
    ) -> Result<Registered, AppError> {
        let _ = (name, text, format, dry_run);
        unreachable!()
    }

    /// Workflows by name.
    pub async fn workflows(&self, limit: u32, cursor: Option<&str>) -> Result<Page<WorkflowView>, AppError> {
        let _ = (limit, cursor);
        unreachable!()
    }

    /// One workflow: a version, or the newest.
    pub async fn workflow(
        &self,
        name: &WorkflowName,
        version: Option<u32>,
    ) -> Result<WorkflowView, AppError> {
        let _ = (name, version);
        unreachable!()
    }

    /// Removes a workflow with its versions; refused while a run uses it.
    pub async fn delete_workflow(&self, name: &WorkflowName) -> Result<(), AppError> {
        let _ = name;
        unreachable!()
    }

    /// Starts a run; with an id, at most once.
    pub async fn start(&self, request: StartRequest) -> Result<Started, AppError> {
        let _ = request;
        unreachable!()
    }

    /// A run, read from the store. With `wait`, answers when it has ended or the time is up.
    pub async fn run(&self, id: &RunId, wait: Option<Span>) -> Result<RunView, AppError> {
        let _ = (id, wait);
        unreachable!()
    }

    /// Runs, newest first.
    pub async fn runs(
        &self,
        filter: RunFilter,
        limit: u32,
        cursor: Option<&str>,
    ) -> Result<Page<RunView>, AppError> {
        let _ = (filter, limit, cursor);
        unreachable!()
    }

    /// Ends a run as cancelled.
    pub async fn cancel(&self, id: &RunId, force: bool) -> Result<RunView, AppError> {
        let _ = (id, force);
        unreachable!()
    }

    /// Forgets an ended run.
    pub async fn delete(&self, id: &RunId) -> Result<(), AppError> {
        let _ = id;
        unreachable!()
    }

    /// Opens (or resumes) a worker session. The first message of the stream is `Welcome`.
    pub async fn connect(&self, hello: Hello) -> Result<WorkerStream, AppError> {
        let _ = hello;
        unreachable!()
    }

    /// Claims up to `max` tasks for a worker without a session; waits up to `wait` for the first.
    pub async fn claim(
        &self,
        worker: &str,
        types: &[TaskType],
        max: u32,
        wait: Span,
    ) -> Result<Vec<Assignment>, AppError> {
        let _ = (worker, types, max, wait);
        unreachable!()
    }

    /// Takes one result. `Accepted` or the error that says why not.
    pub async fn settle(&self, token: &str, outcome: TaskOutcome) -> Result<AckStatus, AppError> {
        let _ = (token, outcome);
        unreachable!()
    }

    /// Renews a claim.
    pub async fn heartbeat(&self, token: &str, progress: Option<Bytes>) -> Result<HeartbeatAnswer, AppError> {
        let _ = (token, progress);
        unreachable!()
    }

    /// The events of one run after `cursor` (none: from its first).
    pub async fn run_events(&self, id: &RunId, cursor: Option<&str>) -> Result<RunFeed, AppError> {
        let _ = (id, cursor);
        unreachable!()
    }

    /// The events of all runs after `cursor` (none: from now).
    pub async fn events(&self, filter: EventFilter, cursor: Option<&str>) -> Result<EventFeed, AppError> {
        let _ = (filter, cursor);
        unreachable!()
    }

    /// Whether requests would be served now: the store takes writes and we are not draining. Err says why not.
    pub async fn ready(&self) -> Result<(), AppError> {
        unreachable!()
    }
}
