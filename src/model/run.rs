//! The state of a run: what a record holds, decoded. Changed by the engine only.

use super::command::Start;
use super::event::LogEntry;
use super::ids::{Nonce, RunId, SessionId, TaskType, WorkflowName};
use super::outbox::{Origin, Outbox, Parent};
use super::payload::Payload;
use super::record::{Pages, SEGMENT};
use super::shared::{Nodes, SharedList};
use super::time::{LeaseTime, Span, Timestamp};
use std::collections::BTreeMap;

/// Where a run is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RunStatus {
    /// Before `start_at`.
    Pending,
    /// Going.
    Running,
    /// Nothing new starts.
    Paused,
    /// Ended well.
    Completed,
    /// Ended by a failure.
    Failed,
    /// Ended by a cancel.
    Cancelled,
    /// Ended by its timeout.
    TimedOut,
}

impl RunStatus {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Pending,
        Self::Running,
        Self::Paused,
        Self::Completed,
        Self::Failed,
        Self::Cancelled,
        Self::TimedOut,
    ];

    /// Whether the run has ended.
    pub fn is_terminal(self) -> bool {
        matches!(self, Self::Completed | Self::Failed | Self::Cancelled | Self::TimedOut)
    }

    /// As users read it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Running => "running",
            Self::Paused => "paused",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
            Self::TimedOut => "timed_out",
        }
    }
}

/// A failure as users read it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// A stable word, e.g. `card_declined`, `timeout_run`, `exit_3`. At most 128 bytes.
    pub code: String,
    /// For people. At most 4 KiB, less once a run has many (see `engine::limits`).
    pub message: String,
    /// Index of the task it happened in; none for the run itself.
    pub task: Option<u32>,
    /// The attempt it happened in; 0 where there is none.
    pub attempt: u32,
}

/// A run, whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunState {
    /// Its id.
    pub id: RunId,
    /// The workflow it runs.
    pub workflow: WorkflowName,
    /// The version it keeps.
    pub version: u32,
    /// Which document that version was ([`Plan::digest`]): a store that has lost its tail may give the number again. 0: it
    /// was not noted.
    ///
    /// [`Plan::digest`]: super::plan::Plan::digest
    pub document: u32,
    /// Which try of the run, from 1.
    pub try_number: u32,
    /// Where it is.
    pub status: RunStatus,
    /// Digest of (workflow, requested version, canonical input), for idempotent starts.
    pub start_digest: [u8; 16],
    /// When it was accepted.
    pub created_at: Timestamp,
    /// When it began.
    pub started_at: Option<Timestamp>,
    /// When it ended.
    pub ended_at: Option<Timestamp>,
    /// Time of the last commit; no later commit has an earlier one.
    pub last_time: Timestamp,
    /// When the run's own timeout strikes, on the wall clock.
    pub deadline: Option<Timestamp>,
    /// −100 to 100.
    pub priority: i32,
    /// Labels for lists and filters.
    pub tags: BTreeMap<String, String>,
    /// How long a finished run is kept.
    pub retention: Span,
    /// What it was started with.
    pub input: Payload,
    /// What it ended with.
    pub output: Payload,
    /// The first failure that counted, index into `failures`.
    pub error: Option<u32>,
    /// The wake-up the store holds for this run is never later than this. None once ended.
    pub armed: Option<Timestamp>,
    /// Rises with every queueing of any task.
    pub generation: u32,
    /// Tasks of the run's own body not yet terminal.
    pub open_tasks: u32,
    /// Nodes: first the run's own tasks, by index in the plan, then those of `blocks`, one block after the other.
    /// See [`super::nodes`].
    pub tasks: Nodes,
    /// What was laid out while the run went on: bodies of groups, items, iterations, compensations, `finally`.
    pub blocks: Vec<Block>,
    /// What has to be undone if its scope fails, in order of completion. It outlives the end of the run, for another
    /// try.
    pub undo: Vec<Undo>,
    /// Set once the outcome is certain and compensations or `finally` go on.
    pub ending: Option<Ending>,
    /// Every signal the run was sent, in order.
    pub signals: Vec<Signal>,
    /// When a pending run is to begin.
    pub start_at: Option<Timestamp>,
    /// Who started it, if it was not a caller.
    pub origin: Option<Origin>,
    /// What others have still to be told, also once the run has ended.
    pub outbox: Outbox<Errand>,
    /// Labels of workers, referred to by index.
    pub workers: Vec<String>,
    /// Failures, referred to by index.
    pub failures: Vec<Failure>,
    /// What happened, in order.
    pub log: SharedList<LogEntry, SEGMENT>,
    /// Where its nodes and its log stand in the store, if it is wide.
    pub pages: Pages,
}

impl RunState {
    /// A run that was just accepted, pending and without tasks.
    pub fn begun(start: &Start, now: Timestamp, retention: Span) -> Self {
        Self {
            id: start.id.clone(),
            workflow: start.workflow.clone(),
            version: start.version,
            document: 0,
            try_number: 1,
            status: RunStatus::Pending,
            start_digest: start.digest,
            created_at: now,
            started_at: None,
            ended_at: None,
            last_time: now,
            deadline: None,
            priority: 0,
            tags: BTreeMap::new(),
            retention,
            input: Payload::Null,
            output: Payload::Null,
            error: None,
            armed: None,
            generation: 0,
            open_tasks: 0,
            tasks: Nodes::default(),
            blocks: Vec::new(),
            undo: Vec::new(),
            ending: None,
            signals: Vec::new(),
            start_at: start.start_at,
            origin: start.origin.clone(),
            outbox: Outbox::default(),
            workers: Vec::new(),
            failures: Vec::new(),
            log: SharedList::default(),
            pages: Pages::default(),
        }
    }

    /// When an ended run may be forgotten. One that was started by another record stays for a while at least, so that a
    /// start that was on its way twice finds it.
    pub fn kept_until(&self) -> Option<Timestamp> {
        let least = if self.origin.is_some() { ORIGIN_KEPT } else { Span(0) };
        self.ended_at.filter(|_| self.status.is_terminal()).map(|at| at.plus(self.retention.max(least)))
    }

    /// The task of another run that this one was started for.
    pub fn parent(&self) -> Option<&Parent> {
        match &self.origin {
            Some(Origin::Parent(parent)) => Some(parent),
            Some(Origin::Schedule { .. }) | None => None,
        }
    }
}

/// How long a run that another record has started is kept at least after its end.
pub const ORIGIN_KEPT: Span = Span::secs(60);

/// What a run tells others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Errand {
    /// Starts the child of a node's current attempt.
    Start {
        /// The node.
        node: u32,
        /// Of which workflow.
        workflow: WorkflowName,
        /// Which version; none is the newest then.
        version: Option<u32>,
    },
    /// Has a child do something.
    Order(Order),
    /// Tells who started this run that it has ended.
    Ended,
    /// Asks for a slot under a node's concurrency key; the number of the message is the ticket.
    Acquire {
        /// The node.
        node: u32,
    },
    /// Gives a slot back, or what was asked for up.
    Release {
        /// Number of the message that asked for it.
        ticket: u32,
    },
    /// Asks when a node's next attempt may start under its rate key.
    Take {
        /// The node.
        node: u32,
    },
}

/// What a run has its child do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// End as cancelled.
    Cancel {
        /// Undo what has completed.
        compensate: bool,
        /// Skip compensation and `finally`.
        force: bool,
    },
    /// Start nothing new.
    Pause,
    /// Go on.
    Resume,
    /// Begin again if it has failed, and tell how it ends; if it has completed, tell that once more.
    Retry,
}

/// Nodes that were laid out together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Block {
    /// The node they belong to; none for `finally`.
    pub owner: Option<u32>,
    /// What they are to it.
    pub kind: BlockKind,
    /// Index in the plan: of the first node for a body, of every node for all others.
    pub plan: u32,
    /// The first node.
    pub first: u32,
    /// How many.
    pub len: u32,
}

/// What the nodes of a block are to their owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BlockKind {
    /// The tasks of a group.
    Body,
    /// One node for each item of a `for_each`.
    Items,
    /// One node: the iteration of this number, from 0.
    Iteration(u32),
    /// One node: what undoes the owner.
    Compensation,
    /// One node: the group `finally`.
    Finally,
}

/// A completed task that would have to be undone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Undo {
    /// The task.
    pub node: u32,
    /// Input of its compensation, evaluated when it completed.
    pub input: Payload,
}

/// The end of a run that has begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ending {
    /// How it will end.
    pub status: RunStatus,
    /// What is under way.
    pub stage: EndStage,
    /// Whether completed tasks are undone before it ends.
    pub undoes: bool,
}

/// What is done before a run ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndStage {
    /// This compensation.
    Undoing(u32),
    /// The group `finally`.
    Finally(u32),
}

/// A signal the run was sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Signal {
    /// Its name.
    pub name: String,
    /// The caller's id: the same is accepted once.
    pub id: Option<String>,
    /// What it carries.
    pub payload: Payload,
    /// Whether a wait has consumed it.
    pub taken: bool,
}

/// A node of a run: a task, or an item or iteration of one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskState {
    /// The block it stands in, from 1; 0 is the run's own body. Not stored: it follows from the blocks.
    pub block: u32,
    /// Where it is.
    pub phase: TaskPhase,
    /// The type chosen by an expression; none: that of the plan.
    pub task_type: Option<TaskType>,
    /// It completed and was undone.
    pub undone: bool,
    /// Its input was given by hand and is not evaluated.
    pub fixed_input: bool,
    /// The current or last attempt, from 1; 0 before the first.
    pub attempt: u32,
    /// Which delivery of the current attempt, from 1: rises whenever the attempt goes back to its queue. 0 before
    /// the first queueing.
    pub delivery: u32,
    /// Deliveries of the current attempt that were lost before an acknowledgement.
    pub lost_deliveries: u32,
    /// When the task was first queued: `timeout.total` counts from here. None before that and once the task ended.
    pub first_queued_at: Option<Timestamp>,
    /// The evaluated input of the current attempt.
    pub input: Payload,
    /// Attempt and lease nonce of the last result that was accepted: its exact repeat is accepted again.
    pub accepted: Option<(u32, Nonce)>,
    /// The slot under its concurrency key that it has or waits for; none once it has ended.
    pub permit: Option<Box<Permit>>,
}

/// A slot under a concurrency key, as the node that has it or waits for it knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Permit {
    /// The key, as it came out.
    pub key: String,
    /// Number of the message that asked for it; 0 while it has not been asked for.
    pub ticket: u32,
    /// Whether it was granted.
    pub granted: bool,
}

impl TaskState {
    /// A task that was not looked at yet and waits for `needs` others.
    pub fn pending(needs: u32) -> Self {
        Self {
            block: 0,
            phase: TaskPhase::Pending { remaining: needs, any_failed: false, any_completed: false },
            task_type: None,
            undone: false,
            fixed_input: false,
            attempt: 0,
            delivery: 0,
            lost_deliveries: 0,
            first_queued_at: None,
            input: Payload::Null,
            accepted: None,
            permit: None,
        }
    }

    /// Whether it waits for the end of a child that is told with this ticket.
    pub fn awaits_child(&self, ticket: u32) -> bool {
        matches!(self.phase, TaskPhase::Waiting(Waiting::Child { ticket: held, .. }) if held == ticket)
    }
}

/// Where a task is, with what only that phase has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TaskPhase {
    /// Waits for its needs.
    Pending {
        /// Needs not yet terminal.
        remaining: u32,
        /// Whether a need counts as failed.
        any_failed: bool,
        /// Whether a need counts as completed.
        any_completed: bool,
    },
    /// Waits for a worker.
    Queued {
        /// Since when: `timeout.queue` counts from here. Every return to the queue begins anew, so that time in a
        /// worker's hands is no waiting.
        since: Timestamp,
        /// Of its queue entry; 0 while the run is paused and it has none.
        generation: u32,
    },
    /// Leased to a worker.
    Running {
        /// When the attempt was leased, for people.
        since: Timestamp,
        /// The lease.
        lease: Lease,
    },
    /// Waits for its next attempt.
    Retrying {
        /// When that is due, on the wall clock.
        due: Timestamp,
    },
    /// Waits for something else than a worker.
    Waiting(Waiting),
    /// Done.
    Completed {
        /// Its result.
        output: Payload,
    },
    /// Failed for good.
    Failed {
        /// Index into `failures`.
        failure: u32,
    },
    /// Never ran.
    Skipped {
        /// Skipped because something upstream counted as failed.
        counts_as_failed: bool,
    },
    /// Stopped by a cancel.
    Cancelled,
    /// Ended by a timeout.
    TimedOut {
        /// Index into `failures`.
        failure: u32,
    },
}

impl TaskPhase {
    /// Whether the task has ended.
    pub fn is_terminal(&self) -> bool {
        matches!(
            self,
            Self::Completed { .. }
                | Self::Failed { .. }
                | Self::Skipped { .. }
                | Self::Cancelled
                | Self::TimedOut { .. }
        )
    }

    /// As users read it.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Pending { .. } => "pending",
            Self::Queued { .. } => "queued",
            Self::Running { .. } => "running",
            Self::Retrying { .. } => "retrying",
            Self::Waiting(_) => "waiting",
            Self::Completed { .. } => "completed",
            Self::Failed { .. } => "failed",
            Self::Skipped { .. } => "skipped",
            Self::Cancelled => "cancelled",
            Self::TimedOut { .. } => "timed_out",
        }
    }
}

/// What a task waits for that no worker does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Waiting {
    /// A point in time, on the wall clock.
    Timer {
        /// When it is due.
        due: Timestamp,
    },
    /// A signal.
    Signal {
        /// Of this name.
        name: String,
    },
    /// The tasks of a group.
    Body {
        /// Their block, from 1.
        block: u32,
        /// Those not yet terminal.
        open: u32,
        /// The first failure that counted, index into `failures`.
        error: Option<u32>,
        /// The group has failed, and this compensation is under way.
        undoing: Option<u32>,
    },
    /// The items of a `for_each`. The list is the node's input: inside the record, or in chunks beside it.
    Items {
        /// Their block, from 1.
        block: u32,
        /// The first item that was not looked at for a start.
        next: u32,
        /// Items started and not yet terminal.
        open: u32,
        /// Items that failed.
        failed: u32,
        /// The first failure, index into `failures`.
        error: Option<u32>,
    },
    /// The iterations of a `repeat`.
    Iterations {
        /// Block of the last iteration begun, from 1.
        block: u32,
        /// Its number, from 0.
        index: u32,
        /// When the next begins, while nothing else goes on.
        due: Option<Timestamp>,
        /// What the iteration before it came to.
        previous: Payload,
        /// The loop has failed, and this compensation is under way.
        undoing: Option<u32>,
    },
    /// A run of another workflow.
    Child {
        /// The message that started it or began its last try: its end is told with this number.
        ticket: u32,
        /// When it is asked whether it has ended without our knowing.
        ask_at: Timestamp,
    },
    /// A slot under its concurrency key, see [`TaskState::permit`]; none there: the key was not looked at yet.
    Permit {
        /// What it does once it has it.
        entry: Entry,
        /// When it asks for it, if it was turned away, or once more, if it was not heard of.
        ask_at: Timestamp,
    },
    /// Its next attempt may start later, under its rate key.
    Rate {
        /// The key, as it came out.
        key: String,
        /// Number of the message that asked; 0 while it has not been asked for.
        ticket: u32,
        /// From when on; none: it was not answered yet.
        due: Option<Timestamp>,
    },
}

/// What a node does once it has its slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Entry {
    /// It begins.
    First,
    /// It goes on from what it has done in an earlier try of the run.
    Again {
        /// The node inside it from which the run is done again, if one was named.
        from: Option<u32>,
    },
}

/// Who holds an attempt, and until when.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    /// Nonce of the commit that leased it: the secret of the token.
    pub nonce: Nonce,
    /// Who holds it.
    pub holder: Holder,
    /// Label of the worker, index into the run's table.
    pub worker: u32,
    /// When it was leased, on the run's partition's lease clock; `timeout.run` counts from here.
    pub leased_at: LeaseTime,
    /// Whether the worker is known to have it (set when acknowledged and still running at half the ack window).
    pub acked: bool,
    /// The last heartbeat of this attempt, on the lease clock; only kept under `timeout.heartbeat`.
    pub heartbeat_at: Option<LeaseTime>,
}

/// What keeps a lease alive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Holder {
    /// A worker session, as long as its record has this epoch and its deadline has not passed.
    Session {
        /// The session.
        id: SessionId,
        /// The epoch at which it was leased or adopted.
        epoch: u32,
    },
    /// A worker without a session (HTTP claim): until this instant of the run's partition's lease clock.
    Claim {
        /// The deadline.
        deadline: LeaseTime,
    },
}
