//! The working copy of a run and the smallest changes to it. Everything larger is made of these, so that a
//! change and the fact that tells of it cannot come apart.

use super::graph::Cascade;
use super::limits::{
    CODE_MAX, COMPUTED_MAX, LABEL_MAX, MESSAGE_MAX, MESSAGE_SHORT, MESSAGES_BUDGET, OTHER_WORKERS,
    WORKERS_MAX,
};
use super::{Env, Payloads, Revoked};
use crate::model::event::{EventKind, LogEntry};
use crate::model::ids::TaskPath;
use crate::model::outbox::Delivery;
use crate::model::payload::Field;
use crate::model::plan::{Plan, TaskKind, TaskPlan};
use crate::model::run::{
    BlockKind, Failure, Holder, Lease, RunState, RunStatus, TaskPhase, TaskState, Waiting,
};
use crate::model::time::Timestamp;
use crate::model::token::TaskToken;
use bytes::Bytes;
use std::cell::Cell;

/// A transaction's working copy.
#[derive(Debug, Clone)]
pub(super) struct Work {
    pub(super) state: RunState,
    /// Payload fields this transaction writes.
    pub(super) written: Vec<(Field, Bytes)>,
    pub(super) revoked: Vec<Revoked>,
    /// The earliest time at which something new in this transaction has to be looked at.
    pub(super) wanted: Option<Timestamp>,
    /// Computed expressions evaluated so far.
    pub(super) computed: Cell<u32>,
    /// Set by a wake-up: the earliest of everything, to be armed whatever stands.
    pub(super) rearm: Option<Timestamp>,
    pub(super) deleted: bool,
    /// How children that are recalled are cancelled: undone, at once.
    pub(super) recall: (bool, bool),
    /// Everything that was not answered is delivered again.
    pub(super) redeliver: bool,
    /// Asked beside the outbox.
    pub(super) asks: Vec<Delivery>,
}

impl Work {
    pub(super) fn on(state: RunState) -> Self {
        Self {
            state,
            written: Vec::new(),
            revoked: Vec::new(),
            wanted: None,
            computed: Cell::new(0),
            rearm: None,
            deleted: false,
            recall: (true, false),
            redeliver: false,
            asks: Vec::new(),
        }
    }
}

/// What a command changes a run through: the working copy and all that may be looked at.
pub(super) struct Step<'s> {
    pub(super) plan: &'s Plan,
    pub(super) env: Env,
    pub(super) now: Timestamp,
    pub(super) payloads: &'s dyn Payloads,
    pub(super) work: &'s mut Work,
}

/// A failure in words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Words {
    pub(super) code: String,
    pub(super) message: String,
}

impl Words {
    pub(super) fn new(code: &str, message: impl Into<String>) -> Self {
        Self { code: code.to_owned(), message: message.into() }
    }

    /// As they would be kept at most. A failure without a code is still one.
    pub(super) fn clipped(code: &str, message: &str) -> Self {
        let code = if code.is_empty() { "failed" } else { code };
        Self { code: clip(code, CODE_MAX).to_owned(), message: clip(message, MESSAGE_MAX).to_owned() }
    }

    /// Whether a failure says just this, or as much of it as was kept.
    pub(super) fn are(&self, failure: &Failure) -> bool {
        let cut = clip(&self.message, MESSAGE_SHORT) == failure.message;
        self.code == failure.code && (cut || self.message == failure.message)
    }
}

/// The head of `text`, at most `max` bytes, cut between characters.
pub(super) fn clip(text: &str, max: usize) -> &str {
    let mut end = text.len().min(max);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

impl<'s> Step<'s> {
    /// The plan of a node's task.
    pub(super) fn plan_of(&self, i: u32) -> &'s TaskPlan {
        &self.plan.tasks[self.work.state.plan_index(i) as usize]
    }

    /// How a node is called.
    pub(super) fn path(&self, i: u32) -> TaskPath {
        self.work.state.path_of(self.plan, i)
    }

    pub(super) fn task(&self, i: u32) -> &TaskState {
        &self.work.state.tasks[i as usize]
    }

    pub(super) fn task_mut(&mut self, i: u32) -> &mut TaskState {
        &mut self.work.state.tasks[i as usize]
    }

    /// Whether this decision has computed enough: what else could begin does so in the next one, at once.
    pub(super) fn is_spent(&mut self) -> bool {
        let spent = self.work.computed.get() >= COMPUTED_MAX;
        if spent {
            self.want(self.now);
        }
        spent
    }

    /// Whether a node is about to begin and waits for nothing but its turn.
    pub(super) fn is_next(&self, i: u32) -> bool {
        let state = &self.work.state;
        if !matches!(self.task(i).phase, TaskPhase::Pending { remaining: 0, .. }) {
            return false;
        }
        let Some(block) = state.block_of(i) else { return true };
        match block.owner.map(|o| &self.task(o).phase) {
            // An item's turn comes with its map's count.
            Some(TaskPhase::Waiting(Waiting::Items { block: number, next, .. })) => {
                self.task(i).block == *number && i - block.first < *next
            }
            Some(TaskPhase::Waiting(
                Waiting::Body { block: number, .. } | Waiting::Iterations { block: number, .. },
            )) if block.kind != BlockKind::Compensation => self.task(i).block == *number,
            // Compensations and `finally` begin with the decision that lays them out, or the one after it.
            Some(_) => block.kind == BlockKind::Compensation,
            None => block.kind == BlockKind::Finally,
        }
    }

    /// Asks that the run be looked at no later than `at`.
    pub(super) fn want(&mut self, at: Timestamp) {
        self.work.wanted = Some(self.work.wanted.map_or(at, |w| w.min(at)));
    }

    /// Appends a fact of the run.
    pub(super) fn log_run(&mut self, kind: EventKind, error: Option<u32>) {
        let time = self.now;
        let entry = LogEntry { kind, time, task: None, attempt: 0, delivery: 0, worker: None, error };
        self.work.state.log.push(entry);
    }

    /// Appends a fact of a task in its current attempt.
    pub(super) fn log_task(&mut self, kind: EventKind, i: u32, worker: Option<u32>, error: Option<u32>) {
        let task = self.task(i);
        let delivery = match kind {
            EventKind::TaskQueued | EventKind::TaskStarted => task.delivery,
            EventKind::RunStarted
            | EventKind::RunCompleted
            | EventKind::RunFailed
            | EventKind::RunCancelled
            | EventKind::RunTimedOut
            | EventKind::RunPaused
            | EventKind::RunResumed
            | EventKind::RunRetried
            | EventKind::SignalReceived
            | EventKind::TaskWaiting
            | EventKind::TaskRetrying
            | EventKind::TaskCompleted
            | EventKind::TaskFailed
            | EventKind::TaskSkipped
            | EventKind::TaskCancelled
            | EventKind::TaskTimedOut
            | EventKind::ScheduleFired
            | EventKind::ScheduleSkipped => 0,
        };
        let (time, attempt) = (self.now, task.attempt);
        self.work.state.log.push(LogEntry { kind, time, task: Some(i), attempt, delivery, worker, error });
    }

    /// Adds a failure to the run's table, cut to what a record may carry; returns its index.
    pub(super) fn add_failure(&mut self, words: &Words, task: Option<u32>) -> u32 {
        let attempt = task.map_or(0, |i| self.task(i).attempt);
        let failures = &mut self.work.state.failures;
        let spent: usize = failures.iter().map(|f| f.message.len()).sum();
        let max = if spent < MESSAGES_BUDGET { MESSAGE_MAX } else { MESSAGE_SHORT };
        failures.push(Failure {
            code: clip(&words.code, CODE_MAX).to_owned(),
            message: clip(&words.message, max).to_owned(),
            task,
            attempt,
        });
        (failures.len() - 1) as u32
    }

    /// The index of a worker's label in the run's table.
    pub(super) fn worker(&mut self, label: &str) -> u32 {
        let label = clip(label, LABEL_MAX);
        let workers = &mut self.work.state.workers;
        let label = if workers.len() < WORKERS_MAX { label } else { OTHER_WORKERS };
        // The newest come first: a run tends to stay with the workers it has.
        if let Some(known) = workers.iter().rposition(|w| w == label) {
            return known as u32;
        }
        workers.push(label.to_owned());
        (workers.len() - 1) as u32
    }

    /// Puts a task into its queue, for the attempt it has now.
    pub(super) fn enqueue(&mut self, i: u32) {
        let now = self.now;
        // A paused run has no entries in queues; it queues what it has when it goes on.
        let paused = self.work.state.status == RunStatus::Paused;
        let generation = if paused { 0 } else { self.next_generation() };
        let task = self.task_mut(i);
        task.phase = TaskPhase::Queued { since: now, generation };
        let first = *task.first_queued_at.get_or_insert(now);
        self.log_task(EventKind::TaskQueued, i, None, None);
        let timeout = &self.plan_of(i).timeout;
        if let Some(queue) = timeout.queue.filter(|_| !paused) {
            self.want(now.plus(queue));
        }
        if let Some(total) = timeout.total {
            self.want(first.plus(total));
        }
    }

    /// The number of the next queueing in the run.
    pub(super) fn next_generation(&mut self) -> u32 {
        let state = &mut self.work.state;
        state.generation = state.generation.saturating_add(1);
        state.generation
    }

    /// Begins the next attempt of a task, as soon as its rate lets it.
    pub(super) fn next_attempt(&mut self, i: u32, cascade: &mut Cascade) {
        if !self.wait_for_rate(i, cascade) {
            self.start_attempt(i, cascade);
        }
    }

    /// Starts an attempt of a task: queues it, or starts its child.
    pub(super) fn start_attempt(&mut self, i: u32, cascade: &mut Cascade) {
        if let TaskKind::Workflow(child) = &self.plan_of(i).kind {
            return self.next_child(i, child, cascade);
        }
        let task = self.task_mut(i);
        task.attempt = task.attempt.saturating_add(1);
        task.delivery = 1;
        task.lost_deliveries = 0;
        self.enqueue(i);
    }

    /// Queues what a pause had taken out of its queue. It was told to be queued before.
    pub(super) fn enqueue_again(&mut self, i: u32) {
        let (since, generation) = (self.now, self.next_generation());
        self.task_mut(i).phase = TaskPhase::Queued { since, generation };
        if let Some(queue) = self.plan_of(i).timeout.queue {
            self.want(since.plus(queue));
        }
    }

    /// Whether a node is one of the tasks of a body.
    pub(super) fn is_of_body(&self, i: u32) -> bool {
        self.work.state.is_in_body(i)
    }

    /// Gives an attempt back to its queue: it is delivered once more.
    pub(super) fn requeue(&mut self, i: u32) {
        let task = self.task_mut(i);
        task.delivery = task.delivery.saturating_add(1);
        self.enqueue(i);
    }

    /// Notes that a lease ends without its holder's result, so that the worker is told; or that a child is not waited for
    /// any more, so that it is cancelled.
    pub(super) fn revoke(&mut self, i: u32) {
        let task = self.task(i);
        if matches!(task.phase, TaskPhase::Waiting(Waiting::Child { .. })) {
            return self.recall_child(i);
        }
        let TaskPhase::Running { lease: Lease { nonce, holder: Holder::Session { id, .. }, .. }, .. } =
            &task.phase
        else {
            return; // Nobody, or a claim: its worker learns it from the answer to its next call.
        };
        let token = TaskToken {
            partition: self.env.partition,
            run: self.work.state.id.clone(),
            path: self.path(i),
            attempt: task.attempt,
            nonce: *nonce,
        };
        let revoked = Revoked { session: id.clone(), token: token.encode() };
        self.work.revoked.push(revoked);
    }
}

#[cfg(test)]
mod tests {
    use super::clip;

    #[test]
    fn clipping_never_splits_a_character() {
        assert_eq!(clip("abc", 5), "abc");
        assert_eq!(clip("aé", 2), "a");
        assert_eq!(clip("aé", 3), "aé");
        assert_eq!(clip("é", 0), "");
    }
}
