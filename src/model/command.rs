//! What can be asked of a run, and how it is answered. One command, one variant, handled in
//! `engine/`; the lane carries them there.

use super::home::Claim;
use super::ids::{Nonce, RunId, SessionId, TaskPath, WorkflowName};
use super::outbox::{Answer, Origin};
use super::run::{Holder, Order, RunStatus};
use super::schedule::{ScheduleCommand, ScheduleName, ScheduleOutcome, ScheduleRefusal};
use super::time::{Span, Timestamp};
use bytes::Bytes;
use std::collections::BTreeMap;

/// A command to one run.
#[derive(Debug, Clone, PartialEq)]
pub enum Command {
    /// Begin the run; the only command of a run that does not exist.
    Start(Start),
    /// Lease a queued task to a worker that has credit for it.
    Lease(LeaseTask),
    /// The attempt's result.
    Complete {
        /// Which attempt.
        attempt: AttemptKey,
        /// JSON text, already checked for validity and size at the door. `Err` says why it was refused:
        /// it fails the attempt, unretried.
        output: Result<Bytes, RejectedValue>,
    },
    /// The attempt failed.
    Fail {
        /// Which attempt.
        attempt: AttemptKey,
        /// How.
        failure: ReportedFailure,
    },
    /// The worker gives the task back: front of the queue, no attempt used.
    Release {
        /// Which attempt.
        attempt: AttemptKey,
    },
    /// The assignment was never acknowledged: front of the queue, no attempt used up to the tenth.
    Undelivered {
        /// Which attempt.
        attempt: AttemptKey,
    },
    /// The worker has it (told only for attempts still running at half the ack window).
    Acked {
        /// Which attempt.
        attempt: AttemptKey,
    },
    /// The attempt is alive: moves `timeout.heartbeat`, and the deadline of a claim.
    Heartbeat {
        /// Which attempt.
        attempt: AttemptKey,
        /// New length of a claim's lease from now; none for sessions.
        extend_claim: Option<Span>,
    },
    /// A resumed session holds the attempt under a new epoch.
    Adopt {
        /// Which attempt.
        attempt: AttemptKey,
        /// The session, as the attempt's lease must name it.
        session: SessionId,
        /// Its new epoch.
        epoch: u32,
    },
    /// The wake-up of the run is due: look at everything that has a time.
    Wake {
        /// What the store says of the sessions that hold attempts of this run.
        sessions: BTreeMap<SessionId, SessionView>,
    },
    /// End the run as cancelled.
    Cancel {
        /// Undo what has completed.
        compensate: bool,
        /// Skip compensation and `finally`, those under way too.
        force: bool,
    },
    /// Start nothing new until resumed.
    Pause,
    /// Go on after a pause.
    Resume,
    /// A message for the run's waits.
    Signal {
        /// Its name.
        name: String,
        /// The caller's id: the same is accepted once.
        id: Option<String>,
        /// JSON text, checked at the door; none is null.
        payload: Option<Bytes>,
    },
    /// Begin an ended run again: what failed, what was undone, and everything behind that.
    Retry,
    /// Begin an ended run again from one task, and everything behind it.
    Rerun {
        /// The task.
        path: TaskPath,
        /// Its input in place of the evaluated one, JSON text.
        input: Option<Bytes>,
    },
    /// End a task of an open run by hand.
    Act {
        /// The task.
        path: TaskPath,
        /// How.
        action: Action,
    },
    /// Forget the run: only an ended one. With `expired`, only if its retention has passed.
    Delete {
        /// Asked by retention, not by a person.
        expired: bool,
    },
    /// What the run that started this one has it do.
    Order {
        /// Who says so.
        from: RunId,
        /// Number of the message; one that is not newer than the last that was taken changes nothing.
        sequence: u32,
        /// What.
        order: Order,
    },
    /// A run that was started for a task of this one has ended.
    ChildEnded {
        /// The task.
        task: TaskPath,
        /// The run.
        child: RunId,
        /// What the task waits for, see [`super::run::Waiting::Child`].
        ticket: u32,
        /// How.
        end: ChildEnd,
    },
    /// A task of this run has a slot under its concurrency key; asked too, to hear whether it still has.
    Permitted {
        /// The task.
        task: TaskPath,
        /// The key.
        key: String,
        /// Number of the message that asked for it.
        ticket: u32,
    },
    /// To a home record.
    Home(HomeCommand),
    /// A message of this record was answered by the one it was for.
    Settled {
        /// Its number.
        sequence: u32,
        /// How it was taken.
        answer: Answer,
    },
}

/// What is asked of a home record, see [`super::home`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HomeCommand {
    /// A task asks for a slot; it is called back with `Permitted`.
    Acquire {
        /// The concurrency key.
        key: String,
        /// Slots there are, at least 1.
        limit: u32,
        /// Whose slot it will be.
        claim: Claim,
        /// The task.
        task: TaskPath,
        /// Its place: lower is earlier.
        score: i64,
    },
    /// A slot comes back, or is not wanted any more.
    Release {
        /// Whose.
        claim: Claim,
    },
    /// A task asks when it may start.
    Take {
        /// The rate key.
        key: String,
        /// Starts in all of `per`, at least 1.
        limit: u32,
        /// In this time.
        per: Span,
    },
    /// To a schedule.
    Schedule(ScheduleCommand),
    /// There is this schedule.
    ListSchedule {
        /// Its name.
        name: ScheduleName,
        /// When it was created.
        created_at: Timestamp,
    },
    /// This schedule is gone.
    UnlistSchedule {
        /// Its name.
        name: ScheduleName,
        /// When it was created.
        created_at: Timestamp,
    },
}

/// How a run that was started for a task has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ChildEnd {
    /// Completed, with this output: JSON text.
    Completed(Bytes),
    /// Otherwise.
    Failed {
        /// How.
        status: RunStatus,
        /// Code of its error.
        code: String,
        /// Message of its error.
        message: String,
    },
}

/// How a task is ended by hand.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// As if its `if` had been false; not one that a worker has.
    Skip,
    /// With this output, JSON text.
    Complete(Bytes),
    /// With this failure, unretried.
    Fail(ReportedFailure),
}

/// What starts a run. Everything is validated at the door.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Start {
    /// The new run.
    pub id: RunId,
    /// Of which workflow.
    pub workflow: WorkflowName,
    /// Which version.
    pub version: u32,
    /// See [`super::run::RunState::start_digest`].
    pub digest: [u8; 16],
    /// JSON text; none is null.
    pub input: Option<Bytes>,
    /// Tags of this run over those of the document.
    pub tags: BTreeMap<String, String>,
    /// Priority of this run over that of the document.
    pub priority: Option<i32>,
    /// How long it is kept when it has ended, in place of what its document says: that of its parent.
    pub retention: Option<Span>,
    /// When it is to begin; none or a past time is at once.
    pub start_at: Option<Timestamp>,
    /// Who started it, if it is no caller.
    pub origin: Option<Origin>,
    /// A start that is decided later than this is refused: it was on its way for too long, and the one who sent it has
    /// sent it again.
    pub not_after: Option<Timestamp>,
}

/// Identifies one attempt by its fencing token, without the run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttemptKey {
    /// The task.
    pub path: TaskPath,
    /// The attempt.
    pub attempt: u32,
    /// The lease's nonce.
    pub nonce: Nonce,
}

/// Leases one queued task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseTask {
    /// The task.
    pub path: TaskPath,
    /// Its queue entry's generation; another one is stale.
    pub generation: u32,
    /// Who gets it.
    pub holder: Holder,
    /// Label of the worker.
    pub worker: String,
}

/// A value that was refused at the door or by the engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RejectedValue {
    /// `invalid_output` or `output_too_large`.
    pub code: &'static str,
    /// What is wrong, with size and limit.
    pub message: String,
}

/// A failure as the worker reports it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ReportedFailure {
    /// A stable word.
    pub code: String,
    /// For people.
    pub message: String,
    /// False ends the task whatever its retry policy says.
    pub retryable: bool,
    /// Overrides the policy's delay.
    pub retry_after: Option<Span>,
}

/// What the store says of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SessionView {
    /// Its epoch now.
    pub epoch: u32,
    /// Time until its deadline, on its partition's lease clock; below zero since it passed.
    pub remaining: Span,
    /// Whether the server that owned it says nothing any more either. Only asked for once the deadline has passed.
    pub owner_gone: bool,
    /// Whether its epoch is new: what its worker came back with may be on its way to its runs.
    pub resuming: bool,
}

/// How a command was taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// It changed the run.
    Accepted,
    /// An exact repeat of what was accepted before; nothing changed.
    Repeated,
    /// `Start`: the run exists, from the same request.
    Exists,
    /// Nothing was due. A wake-up of an open run makes a decision all the same, which arms the next one.
    Nothing,
    /// `Heartbeat`: still held; nothing needs to be written.
    Held,
    /// `Take`: from this time on.
    Granted {
        /// Wall clock.
        at: Timestamp,
    },
    /// To a schedule: this.
    Schedule(ScheduleOutcome),
    /// `Lease`: accepted; what the worker needs besides the payload.
    Leased {
        /// The attempt.
        attempt: u32,
        /// When `timeout.run` strikes, as wall time from now, if there is one.
        deadline: Option<Timestamp>,
    },
}

/// Why a command changed nothing. Answered only after the store confirmed what it was decided on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// No such run.
    #[error("the run does not exist")]
    NoRun,
    /// `Start`: the id is taken by a run of another workflow or input.
    #[error("the id is taken by a run with another workflow or input")]
    IdTaken,
    /// The token is of an attempt that was fenced: another holds the task, or it has ended.
    #[error("the token is stale: the attempt was given to another worker, ended or was cancelled")]
    Stale,
    /// The token names no task of this run.
    #[error("the token names no task of this run")]
    Unknown,
    /// The run has ended.
    #[error("the run has ended ({})", .0.name())]
    Ended(super::run::RunStatus),
    /// The run's outcome is certain, and only what undoes it or comes last goes on.
    #[error("the run is ending ({})", .0.name())]
    Ending(super::run::RunStatus),
    /// `Retry` of a run in which nothing failed.
    #[error("the run has completed and there is nothing to retry")]
    NothingToRetry,
    /// An action on a task that has ended.
    #[error("the task has ended ({0})")]
    TaskEnded(&'static str),
    /// `Skip` of a task that a worker has.
    #[error("the task is running; complete, fail or cancel it instead")]
    TaskRunning,
    /// `Rerun` of an iteration that others have followed.
    #[error("other iterations have followed this one; begin again from the last one, or from the loop")]
    IterationPassed,
    /// `Rerun` of a task in a group that was skipped.
    #[error("'{0}' around the task was skipped; begin again from that")]
    AroundSkipped(TaskPath),
    /// A path that names no task of the run, or none that was laid out yet.
    #[error("the run has no such task, or it is not laid out yet")]
    NoTask,
    /// More signals than a run keeps.
    #[error("the run has been sent {0} signals, the most a run keeps")]
    TooManySignals(usize),
    /// A start that was on its way for too long.
    #[error("the start came too late")]
    TooLate,
    /// As much waits in a record as it may keep; to be asked again later.
    #[error("too much waits there already")]
    Full,
    /// By a schedule.
    #[error(transparent)]
    Schedule(ScheduleRefusal),
    /// `Delete` of a run that others have to be told of first.
    #[error("the run has ended, and others are being told; try again in a moment")]
    Telling,
    /// `Delete` of a run that goes on.
    #[error("the run has not ended ({})", .0.name())]
    NotEnded(super::run::RunStatus),
}
