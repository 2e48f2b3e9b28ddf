//! What happened, told from a run's log: attempts for reads, and what an event consists of.

use crate::model::event::{EventKind, LogEntry};
use crate::model::payload::Payload;
use crate::model::run::{Failure, RunState, TaskPhase};
use crate::model::time::Timestamp;

/// One attempt of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AttemptFacts {
    /// From 1.
    pub number: u32,
    /// As users read it: `queued`, `running`, `waiting` (for its child), `completed`, `failed`, `timed_out`, `cancelled`, `skipped`.
    pub status: &'static str,
    /// How often it was handed out or queued to be, from 1.
    pub deliveries: u32,
    /// First queued.
    pub queued_at: Timestamp,
    /// Leased, in its last delivery.
    pub started_at: Option<Timestamp>,
    /// Ended.
    pub ended_at: Option<Timestamp>,
    /// The worker of its last delivery, index into [`RunState::workers`].
    pub worker: Option<u32>,
    /// How it failed, index into [`RunState::failures`].
    pub error: Option<u32>,
}

/// The attempts of one task (by its index in the plan), in order.
pub fn attempts(state: &RunState, task: u32) -> Vec<AttemptFacts> {
    let mut attempts = Vec::new();
    for entry in state.log.iter().filter(|e| e.task == Some(task)) {
        follow(&mut attempts, entry, state);
    }
    attempts
}

/// The attempts of every task, by index in the plan, in one pass over the log.
pub fn all_attempts(state: &RunState) -> Vec<Vec<AttemptFacts>> {
    let mut all = vec![Vec::new(); state.tasks.len()];
    for entry in &state.log {
        if let Some(attempts) = entry.task.and_then(|i| all.get_mut(i as usize)) {
            follow(attempts, entry, state);
        }
    }
    all
}

fn follow(attempts: &mut Vec<AttemptFacts>, entry: &LogEntry, state: &RunState) {
    // A run of another workflow that an attempt is begins at once.
    let child = entry.kind == EventKind::TaskWaiting && entry.attempt > 0;
    let another = attempts.last().is_none_or(|a| a.number != entry.attempt);
    if another && (child || entry.kind == EventKind::TaskQueued) {
        attempts.push(AttemptFacts {
            number: entry.attempt,
            status: if child { "waiting" } else { "queued" },
            deliveries: entry.delivery,
            queued_at: entry.time,
            started_at: child.then_some(entry.time),
            ended_at: None,
            worker: None,
            error: None,
        });
        return;
    }
    if child && let Some(attempt) = attempts.last_mut() {
        // Its run begins another try.
        (attempt.status, attempt.ended_at, attempt.error) = ("waiting", None, None);
        return;
    }
    // What ends between two attempts (a total timeout, a cancel) ends the task, not the attempt before.
    let Some(attempt) = attempts.last_mut().filter(|a| a.number == entry.attempt && a.ended_at.is_none())
    else {
        return;
    };
    match entry.kind {
        EventKind::TaskQueued => {
            attempt.status = "queued";
            attempt.deliveries = entry.delivery;
            attempt.started_at = None;
            attempt.worker = None;
        }
        EventKind::TaskStarted => {
            attempt.status = "running";
            attempt.started_at = Some(entry.time);
            attempt.worker = entry.worker;
        }
        EventKind::TaskRetrying => {
            let code = entry.error.and_then(|e| state.failures.get(e as usize)).map_or("", |f| &f.code);
            let timed_out = matches!(code, "timeout_run" | "timeout_heartbeat" | "run_timed_out");
            end(attempt, entry, if timed_out { "timed_out" } else { "failed" });
        }
        EventKind::TaskCompleted => end(attempt, entry, "completed"),
        EventKind::TaskFailed => end(attempt, entry, "failed"),
        EventKind::TaskSkipped => end(attempt, entry, "skipped"),
        EventKind::TaskCancelled => end(attempt, entry, "cancelled"),
        EventKind::TaskTimedOut => end(attempt, entry, "timed_out"),
        EventKind::RunStarted
        | EventKind::RunCompleted
        | EventKind::RunFailed
        | EventKind::RunCancelled
        | EventKind::RunTimedOut
        | EventKind::RunPaused
        | EventKind::RunResumed
        | EventKind::RunRetried
        | EventKind::SignalReceived
        | EventKind::ScheduleFired
        | EventKind::ScheduleSkipped
        | EventKind::TaskWaiting => {}
    }
}

fn end(attempt: &mut AttemptFacts, entry: &LogEntry, status: &'static str) {
    attempt.status = status;
    attempt.ended_at = Some(entry.time);
    attempt.error = entry.error;
}

/// One event of a run, with what it refers to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EventFacts<'a> {
    /// What happened.
    pub kind: EventKind,
    /// When.
    pub time: Timestamp,
    /// To which task, by its index in the plan; none for the run.
    pub task: Option<u32>,
    /// In which attempt, from 1.
    pub attempt: Option<u32>,
    /// Which delivery of it, if not the first.
    pub delivery: Option<u32>,
    /// Label of the worker.
    pub worker: Option<&'a str>,
    /// Result of the task or the run, on `completed`.
    pub output: Option<&'a Payload>,
    /// How it failed.
    pub error: Option<&'a Failure>,
}

/// The event with this ordinal, from 0; none if there is none yet.
pub fn event(state: &RunState, ordinal: u32) -> Option<EventFacts<'_>> {
    let entry = state.log.get(ordinal as usize)?;
    let output = match entry.kind {
        EventKind::RunCompleted => Some(&state.output),
        EventKind::TaskCompleted => {
            let task = entry.task.and_then(|i| state.tasks.get(i as usize));
            task.and_then(
                |t| if let TaskPhase::Completed { output } = &t.phase { Some(output) } else { None },
            )
        }
        EventKind::RunStarted
        | EventKind::RunFailed
        | EventKind::RunCancelled
        | EventKind::RunTimedOut
        | EventKind::RunPaused
        | EventKind::RunResumed
        | EventKind::RunRetried
        | EventKind::SignalReceived
        | EventKind::TaskWaiting
        | EventKind::TaskQueued
        | EventKind::TaskStarted
        | EventKind::TaskRetrying
        | EventKind::TaskFailed
        | EventKind::TaskSkipped
        | EventKind::TaskCancelled
        | EventKind::TaskTimedOut
        | EventKind::ScheduleFired
        | EventKind::ScheduleSkipped => None,
    };
    Some(EventFacts {
        kind: entry.kind,
        time: entry.time,
        task: entry.task,
        attempt: (entry.attempt > 0).then_some(entry.attempt),
        delivery: (entry.delivery > 1).then_some(entry.delivery),
        worker: entry.worker.and_then(|w| state.workers.get(w as usize)).map(String::as_str),
        output,
        error: entry.error.and_then(|e| state.failures.get(e as usize)),
    })
}
