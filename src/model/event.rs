//! The facts of a run, and of schedules. The record keeps them as a compact append-only log; full events are rendered
//! from it. The number of an event is its ordinal in the run and never changes.

use super::time::Timestamp;

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum EventKind {
    /// The run began.
    RunStarted = 1,
    /// The run ended completed.
    RunCompleted = 2,
    /// The run ended failed.
    RunFailed = 3,
    /// The run ended cancelled.
    RunCancelled = 4,
    /// The run's own timeout passed.
    RunTimedOut = 5,
    /// The run was paused: nothing new starts.
    RunPaused = 6,
    /// The run goes on.
    RunResumed = 7,
    /// An ended run begins another try.
    RunRetried = 8,
    /// The run was sent a signal.
    SignalReceived = 9,
    /// A task waits for a worker; again with the same attempt after a lost delivery.
    TaskQueued = 16,
    /// A task was leased to a worker.
    TaskStarted = 17,
    /// An attempt failed and another will follow.
    TaskRetrying = 18,
    /// A task completed.
    TaskCompleted = 19,
    /// A task failed for good.
    TaskFailed = 20,
    /// A task will not run.
    TaskSkipped = 21,
    /// A task was cancelled.
    TaskCancelled = 22,
    /// A task's timeout ended it.
    TaskTimedOut = 23,
    /// A task waits for a time, a signal, or for what is inside it.
    TaskWaiting = 24,
    /// A schedule has started the run of a slot.
    ScheduleFired = 32,
    /// A schedule has left out a slot, or could not start its run.
    ScheduleSkipped = 33,
}

impl EventKind {
    /// All kinds, for tables and tests.
    pub const ALL: [Self; 20] = [
        Self::RunStarted,
        Self::RunCompleted,
        Self::RunFailed,
        Self::RunCancelled,
        Self::RunTimedOut,
        Self::RunPaused,
        Self::RunResumed,
        Self::RunRetried,
        Self::SignalReceived,
        Self::TaskQueued,
        Self::TaskStarted,
        Self::TaskRetrying,
        Self::TaskCompleted,
        Self::TaskFailed,
        Self::TaskSkipped,
        Self::TaskCancelled,
        Self::TaskTimedOut,
        Self::TaskWaiting,
        Self::ScheduleFired,
        Self::ScheduleSkipped,
    ];

    /// A bit of its own, for sets of kinds.
    pub fn bit(self) -> u64 {
        1 << self as u8
    }

    /// The kind of a stored number.
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|k| *k as u8 == code)
    }

    /// The type as users read it, `task.completed`.
    pub fn name(self) -> &'static str {
        match self {
            Self::RunStarted => "run.started",
            Self::RunCompleted => "run.completed",
            Self::RunFailed => "run.failed",
            Self::RunCancelled => "run.cancelled",
            Self::RunTimedOut => "run.timed_out",
            Self::RunPaused => "run.paused",
            Self::RunResumed => "run.resumed",
            Self::RunRetried => "run.retried",
            Self::SignalReceived => "signal.received",
            Self::TaskQueued => "task.queued",
            Self::TaskStarted => "task.started",
            Self::TaskRetrying => "task.retrying",
            Self::TaskCompleted => "task.completed",
            Self::TaskFailed => "task.failed",
            Self::TaskSkipped => "task.skipped",
            Self::TaskCancelled => "task.cancelled",
            Self::TaskTimedOut => "task.timed_out",
            Self::TaskWaiting => "task.waiting",
            Self::ScheduleFired => "schedule.fired",
            Self::ScheduleSkipped => "schedule.skipped",
        }
    }

    /// Whether this is the last event of a try of a run.
    pub fn ends_run(self) -> bool {
        matches!(self, Self::RunCompleted | Self::RunFailed | Self::RunCancelled | Self::RunTimedOut)
    }
}

/// One entry of a run's log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogEntry {
    /// What happened.
    pub kind: EventKind,
    /// When, never before the entry ahead of it.
    pub time: Timestamp,
    /// The node (see [`super::nodes`]); none for events of the run.
    pub task: Option<u32>,
    /// The attempt, from 1; 0 where there is none.
    pub attempt: u32,
    /// Which delivery of the attempt, from 1; 0 where there is none. Of `task.waiting`: 1 if a limit on work holds the
    /// task back, so that it has not begun.
    pub delivery: u32,
    /// The worker, as an index into the run's table of worker labels (`task.started`).
    pub worker: Option<u32>,
    /// The error, as an index into the run's table of errors (failed, retrying, timed out); of `signal.received` the
    /// signal, as an index into the run's signals.
    pub error: Option<u32>,
}
