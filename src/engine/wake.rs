//! What has a time: timeouts, retries, leases, and when the run has to be looked at next.
//!
//! Wall-clock times (`queue`, `total`, retry delays, the run's timeout) are compared with `now`; those of
//! leases (`run`, `heartbeat`, claims, sessions) with the lease clock, and told to the store as the wall time
//! at which they come if that clock runs at full speed. It can only be slower, so a look may come early,
//! never late; it then finds nothing due and arms again.

use super::Env;
use super::bodies::TIMED_OUT;
use super::graph::Cascade;
use super::limits::{HEARTBEAT_SHARE, IDLE_LOOK, LOST_DELIVERIES_MAX, ORPHANED, REDELIVER, RESUMING};
use super::retry::{Again, Ending};
use super::step::{Step, Words};
use crate::model::command::SessionView;
use crate::model::commit::WakeOp;
use crate::model::ids::SessionId;
use crate::model::payload::Payload;
use crate::model::plan::Timeouts;
use crate::model::run::{Holder, Lease, RunState, RunStatus, TaskPhase, Waiting};
use crate::model::time::{LeaseTime, Span, Timestamp};
use std::collections::BTreeMap;

/// What the store said of the sessions that hold attempts.
pub(super) type Sessions = BTreeMap<SessionId, SessionView>;

/// Decides what becomes of the wake-up, and notes it in the state.
///
/// A commit only lowers it, for what is new in it; only a wake-up itself looks at everything and may raise it.
pub(super) fn arm(state: &mut RunState, wanted: Option<Timestamp>, rearm: Option<Timestamp>) -> WakeOp {
    let earliest = |at: Timestamp| wanted.map_or(at, |w| w.min(at));
    let op = match (rearm, state.armed) {
        (Some(at), _) => WakeOp::Set(earliest(at)),
        (None, None) => WakeOp::Set(earliest(state.last_time.plus(IDLE_LOOK))),
        (None, Some(armed)) => match wanted {
            Some(at) if at < armed => WakeOp::Lower(at),
            Some(_) | None => WakeOp::Keep,
        },
    };
    if let WakeOp::Set(at) | WakeOp::Lower(at) = op {
        state.armed = Some(at);
    }
    op
}

/// When an attempt is silent for too long. Heartbeats that follow each other closely are not written, so it
/// counts from the last written one and strikes as much later as may have been left out.
pub(super) fn heartbeat_deadline(lease: &Lease, timeout: Span) -> LeaseTime {
    let last = lease.heartbeat_at.unwrap_or(lease.leased_at);
    last.plus(timeout).plus(Span(timeout.0 / HEARTBEAT_SHARE))
}

/// What is wrong with a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Loss {
    /// The worker is gone, and may have begun.
    Worker,
    /// The worker never said that it has it.
    Delivery,
}

/// Whether what keeps a lease alive is gone; else when to look again, on the lease clock.
fn holder_lost(lease: &Lease, sessions: &Sessions, env: &Env) -> Result<Loss, LeaseTime> {
    let (within, now) = (env.lease, env.lease_now);
    let lost = if lease.acked { Loss::Worker } else { Loss::Delivery };
    let (id, epoch) = match &lease.holder {
        Holder::Claim { deadline } if *deadline <= now => return Ok(lost),
        Holder::Claim { deadline } => return Err(*deadline),
        Holder::Session { id, epoch } => (id, *epoch),
    };
    // Whoever gave it out returns it long before, unless it was kept from that: by an end of its stream of which the store
    // then lost the trace, say. That the session goes on says nothing of an attempt that it may never have heard of.
    if !lease.acked && lease.leased_at.plus(env.unacked) <= now {
        return Ok(lost);
    }
    // The sessions were read before this decision; a lease younger than that cannot be of one that had gone
    // by then, and no session goes within its lease.
    let Some(view) = sessions.get(id) else {
        let settled = lease.leased_at.plus(within);
        return if settled <= now { Ok(lost) } else { Err(settled) };
    };
    let patience = if view.owner_gone { ORPHANED } else { Span(0) };
    let remaining = view.remaining.0.saturating_add(patience.0);
    // A later epoch means that the worker came back without this attempt, once it has had the time to name it.
    if view.epoch > epoch && view.resuming && view.remaining > Span(0) {
        return Err(now.plus(RESUMING));
    }
    if remaining <= 0 || view.epoch > epoch {
        return Ok(lost);
    }
    Err(now.plus(Span(remaining.min(within.0))))
}

impl Step<'_> {
    /// The wall time at which the lease clock comes to `at`, if it runs at full speed.
    pub(super) fn wall(&self, at: LeaseTime) -> Timestamp {
        self.now.plus(at.since(self.env.lease_now))
    }

    /// Lets one task come to terms with the time. At most one thing happens to it.
    pub(super) fn tick_task(&mut self, i: u32, sessions: &Sessions, cascade: &mut Cascade) {
        if self.work.state.status != RunStatus::Paused && self.is_next(i) {
            // Left over by a decision that had computed enough.
            return if self.is_of_body(i) { cascade.look_at(i) } else { cascade.begin(i) };
        }
        let task = self.task(i);
        if task.phase.is_terminal() {
            return;
        }
        let limits = &self.plan_of(i).timeout;
        let paused = self.work.state.status == RunStatus::Paused;
        if let (Some(total), Some(first)) = (limits.total, task.first_queued_at)
            && first.plus(total) <= self.now
        {
            let between = matches!(task.phase, TaskPhase::Waiting(Waiting::Rate { .. }));
            if matches!(task.phase, TaskPhase::Waiting(_)) && !between {
                let words = passed(TIMED_OUT, "it took longer than", total);
                return self.time_out(i, &words, cascade);
            }
            let words = passed(TIMED_OUT, "all attempts together took longer than", total);
            self.revoke(i);
            return self.fail_attempt(i, &words, Again::Never, Ending::TimedOut, cascade);
        }
        match &task.phase {
            TaskPhase::Queued { since, generation } => {
                let waits = *generation > 0;
                if let Some(queue) = limits.queue.filter(|q| waits && since.plus(*q) <= self.now) {
                    let words = passed("timeout_queue", "no worker took the task within", queue);
                    self.fail_attempt(i, &words, Again::Never, Ending::TimedOut, cascade);
                }
            }
            TaskPhase::Retrying { due } => {
                if *due <= self.now && !paused {
                    self.next_attempt(i, cascade);
                }
            }
            TaskPhase::Waiting(Waiting::Timer { due }) => {
                if *due <= self.now {
                    self.complete_task(i, Payload::Null, cascade);
                }
            }
            TaskPhase::Waiting(Waiting::Iterations { due: Some(due), .. }) => {
                if *due <= self.now {
                    cascade.advance(i);
                }
            }
            TaskPhase::Waiting(Waiting::Child { ask_at, .. }) => {
                if *ask_at <= self.now {
                    self.ask_child(i);
                }
            }
            TaskPhase::Waiting(Waiting::Permit { .. }) if self.has_permit_to_use(i) => cascade.advance(i),
            TaskPhase::Waiting(Waiting::Permit { ask_at, .. }) => {
                if *ask_at <= self.now {
                    self.ask_for_permit_again(i);
                }
            }
            TaskPhase::Waiting(Waiting::Rate { .. }) => cascade.advance(i),
            TaskPhase::Running { lease, .. } => {
                if let Some(words) = overrun(lease, limits, self.env.lease_now) {
                    let again = Again::ByPolicy { after: None };
                    self.revoke(i);
                    return self.fail_attempt(i, &words, again, Ending::TimedOut, cascade);
                }
                match holder_lost(lease, sessions, &self.env) {
                    Ok(Loss::Worker) => {
                        let words = Words::new(
                            "worker_lost",
                            "the worker that had the task was not heard of any more",
                        );
                        let again = Again::ByPolicy { after: None };
                        self.revoke(i);
                        self.fail_attempt(i, &words, again, Ending::Failed, cascade);
                    }
                    Ok(Loss::Delivery) => self.lose_delivery(i, cascade),
                    Err(_) => {}
                }
            }
            TaskPhase::Waiting(
                Waiting::Signal { .. }
                | Waiting::Body { .. }
                | Waiting::Items { .. }
                | Waiting::Iterations { due: None, .. },
            )
            | TaskPhase::Pending { .. }
            | TaskPhase::Completed { .. }
            | TaskPhase::Failed { .. }
            | TaskPhase::Skipped { .. }
            | TaskPhase::Cancelled
            | TaskPhase::TimedOut { .. } => {}
        }
    }

    /// A delivery was lost before an acknowledgement: the attempt goes back to its queue. The tenth time it
    /// counts as failed, so that a task that kills its workers comes to an end.
    pub(super) fn lose_delivery(&mut self, i: u32, cascade: &mut Cascade) {
        self.revoke(i);
        let task = self.task_mut(i);
        task.lost_deliveries = task.lost_deliveries.saturating_add(1);
        let lost = task.lost_deliveries;
        if lost < LOST_DELIVERIES_MAX {
            return self.requeue(i);
        }
        let words = Words::new(
            "delivery_failed",
            format!("the task was handed out {lost} times and never acknowledged"),
        );
        self.fail_attempt(i, &words, Again::ByPolicy { after: None }, Ending::Failed, cascade);
    }

    /// The earliest time at which anything in the run has to be looked at.
    pub(super) fn earliest(&self, sessions: &Sessions) -> Timestamp {
        let state = &self.work.state;
        let mut at = self.now.plus(IDLE_LOOK);
        let mut no_later = |t: Timestamp| at = at.min(t);
        if !state.outbox.is_empty() {
            no_later(self.now.plus(REDELIVER));
        }
        if let Some(deadline) = state.deadline {
            no_later(deadline);
        }
        if let Some(start_at) = state.start_at.filter(|_| state.status == RunStatus::Pending) {
            no_later(start_at);
            return at;
        }
        let paused = state.status == RunStatus::Paused;
        for (i, task) in (0..).zip(&state.tasks) {
            if !paused && self.is_next(i) {
                no_later(self.now);
            }
            if task.phase.is_terminal() || matches!(task.phase, TaskPhase::Pending { .. }) {
                continue;
            }
            let plan = self.plan_of(i);
            if let (Some(total), Some(first)) = (plan.timeout.total, task.first_queued_at) {
                no_later(first.plus(total));
            }
            match &task.phase {
                TaskPhase::Queued { since, generation } => {
                    if let Some(queue) = plan.timeout.queue.filter(|_| *generation > 0) {
                        no_later(since.plus(queue));
                    }
                }
                TaskPhase::Waiting(Waiting::Timer { due } | Waiting::Child { ask_at: due, .. }) => {
                    no_later(*due);
                }
                TaskPhase::Waiting(Waiting::Permit { ask_at, .. }) => {
                    if self.has_permit_to_use(i) {
                        no_later(self.now);
                    } else if *ask_at > self.now {
                        // Else it waits for its turn in the run, which comes with another decision.
                        no_later(*ask_at);
                    }
                }
                // When the run goes on it looks at these itself.
                TaskPhase::Retrying { due }
                | TaskPhase::Waiting(
                    Waiting::Rate { due: Some(due), .. } | Waiting::Iterations { due: Some(due), .. },
                ) if !paused => {
                    no_later(*due);
                }
                TaskPhase::Running { lease, .. } => {
                    if let Some(run) = plan.timeout.run {
                        no_later(self.wall(lease.leased_at.plus(run)));
                    }
                    if let Some(heartbeat) = plan.timeout.heartbeat {
                        no_later(self.wall(heartbeat_deadline(lease, heartbeat)));
                    }
                    if let Err(again) = holder_lost(lease, sessions, &self.env) {
                        no_later(self.wall(again));
                    }
                }
                TaskPhase::Retrying { .. }
                | TaskPhase::Waiting(_)
                | TaskPhase::Pending { .. }
                | TaskPhase::Completed { .. }
                | TaskPhase::Failed { .. }
                | TaskPhase::Skipped { .. }
                | TaskPhase::Cancelled
                | TaskPhase::TimedOut { .. } => {}
            }
        }
        at
    }
}

/// The timeout of the attempt itself that has passed, if one has.
fn overrun(lease: &Lease, limits: &Timeouts, now: LeaseTime) -> Option<Words> {
    if let Some(run) = limits.run.filter(|r| lease.leased_at.plus(*r) <= now) {
        return Some(passed("timeout_run", "the attempt took longer than", run));
    }
    let heartbeat = limits.heartbeat.filter(|h| heartbeat_deadline(lease, *h) <= now)?;
    Some(passed("timeout_heartbeat", "the attempt gave no sign of life for", heartbeat))
}

pub(super) fn passed(code: &str, what: &str, limit: Span) -> Words {
    let (s, ms) = (limit.as_millis() / 1_000, limit.as_millis() % 1_000);
    let limit = if ms == 0 { format!("{s}s") } else { format!("{}ms", limit.as_millis()) };
    Words::new(code, format!("{what} {limit}"))
}

#[cfg(test)]
mod tests;
