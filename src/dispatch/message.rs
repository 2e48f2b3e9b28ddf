//! What workers and Downbeat say to each other, free of any wire format. `api/grpc` maps protobuf to
//! these one for one; the simulation speaks them directly.

use crate::model::command::{RejectedValue, ReportedFailure};
use crate::model::ids::{RunId, SessionId, TaskPath, TaskType};
use crate::model::labels::Labels;
use crate::model::time::{Span, Timestamp};
use bytes::Bytes;
use std::sync::Arc;

/// One task type served on a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subscription {
    /// The type.
    pub task_type: TaskType,
    /// How many assignments it may hold at once.
    pub credit: u32,
    /// What the worker has: it is given tasks that ask for any of this, or for nothing. In a later message for the
    /// same type, none leave those that were given.
    pub labels: Labels,
}

/// The first message of a worker.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Hello {
    /// The worker's own name, for people; two processes with one label are two workers.
    pub label: String,
    /// What it serves.
    pub subscriptions: Vec<Subscription>,
    /// The session it had before.
    pub resume: Option<SessionId>,
    /// Tokens still in flight or with results not yet acknowledged.
    pub tokens: Vec<String>,
}

/// What a worker says after `Hello`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FromWorker {
    /// Absolute credit of a subscription; 0 pauses. Unknown types are subscribed to.
    Credit(Subscription),
    /// These assignments arrived.
    Ack(Vec<String>),
    /// Results.
    Results(Vec<TaskResult>),
    /// These attempts are alive; with optional progress (JSON text).
    Heartbeat(Vec<(String, Option<Bytes>)>),
    /// Answer to a ping.
    Pong,
    /// No more assignments, please.
    Drain,
}

/// One result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskResult {
    /// The attempt's token.
    pub token: String,
    /// What came of it.
    pub outcome: TaskOutcome,
}

/// What came of an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TaskOutcome {
    /// Done; JSON text (empty is null).
    Completed(Bytes),
    /// Failed.
    Failed(ReportedFailure),
    /// Given back.
    Released,
    /// It cannot be read: the attempt fails, unretried.
    Rejected(RejectedValue),
}

/// What Downbeat says to a worker.
#[derive(Debug, Clone, PartialEq)]
pub enum ToWorker {
    /// The session is open.
    Welcome(Welcome),
    /// The credit in force.
    CreditAck(Subscription),
    /// Work.
    Assign(Vec<Assignment>),
    /// What became of results.
    ResultAcks(Vec<ResultAck>),
    /// Work no longer wanted.
    Cancel(Vec<String>),
    /// Are you there?
    Ping,
    /// No more assignments on this stream; results are taken for this long.
    GoAway(Span),
}

/// The answer to `Hello`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Welcome {
    /// Of this worker, also for resuming.
    pub session: SessionId,
    /// A silent session loses its tasks after this.
    pub lease: Span,
    /// An assignment must be acknowledged within this.
    pub ack_within: Span,
    /// A ping comes this often.
    pub ping_every: Span,
    /// Effective credits.
    pub subscriptions: Vec<Subscription>,
    /// Which of the tokens of `Hello` are still held by this session.
    pub valid: Vec<String>,
}

/// One assignment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Assignment {
    /// The fencing token.
    pub token: String,
    /// The run.
    pub run: RunId,
    /// The task.
    pub path: TaskPath,
    /// The attempt, from 1.
    pub attempt: u32,
    /// The type.
    pub task_type: TaskType,
    /// JSON text.
    pub input: Bytes,
    /// When `timeout.run` strikes, if there is one.
    pub deadline: Option<Timestamp>,
    /// W3C trace context, empty if none.
    pub trace: Arc<str>,
}

/// What became of one result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResultAck {
    /// The token it was for.
    pub token: String,
    /// Its fate.
    pub status: AckStatus,
    /// Why, where it is not plain.
    pub message: String,
}

/// The fate of a result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AckStatus {
    /// It counts (also for an exact repeat).
    Accepted,
    /// The attempt was fenced; nothing changed.
    Stale,
    /// Not one of our tokens, or of no run.
    Unknown,
    /// No JSON, too large, or no outcome at all: the attempt failed, unretried.
    Invalid,
}
