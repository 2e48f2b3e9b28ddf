//! Which task runs when: readiness, joins and skips, and how the end of one task becomes known to the others.
//!
//! Each task counts its needs down; the last one to end makes it be looked at, once. All that follows from
//! one ended task goes through a work list, so a chain of a thousand skips needs no stack.

use super::Stop;
use super::scope::{View, truth};
use super::step::{Step, Words};
use crate::model::event::EventKind;
use crate::model::nodes::Level;
use crate::model::payload::{Field, Payload};
use crate::model::plan::{Role, When};
use crate::model::run::{Block, BlockKind, RunStatus, TaskPhase, Waiting};
use std::collections::{BTreeSet, VecDeque};

/// What has still to follow from what this command changed.
#[derive(Debug, Default)]
pub(super) struct Cascade {
    todo: VecDeque<Todo>,
    /// Payloads that have to be at hand first.
    pub(super) missing: BTreeSet<Field>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Todo {
    /// A task whose needs are all terminal and that was not looked at yet.
    Look(u32),
    /// A node that starts without being looked at: an item, an iteration, a compensation, `finally`.
    Begin(u32),
    /// A node whose inner nodes have moved on.
    Advance(u32),
    /// The first failure of a body (none: the run's) has just happened, and nothing else may start in it.
    FailFast(Option<u32>),
    /// The run's own tasks have all ended, or a step of its end has.
    Conclude,
}

/// How a task ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum End {
    Completed { output: Payload },
    Failed { failure: u32 },
    TimedOut { failure: u32 },
    Skipped { counts_as_failed: bool },
    Cancelled,
}

/// What a task that ended is to those that need it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Counts {
    Failed,
    Completed,
    Neutral,
}

impl End {
    fn counts(&self, continue_on_error: bool) -> Counts {
        match self {
            Self::Completed { .. } => Counts::Completed,
            Self::Failed { .. } | Self::TimedOut { .. } | Self::Cancelled if continue_on_error => {
                Counts::Completed
            }
            Self::Failed { .. }
            | Self::TimedOut { .. }
            | Self::Cancelled
            | Self::Skipped { counts_as_failed: true } => Counts::Failed,
            Self::Skipped { counts_as_failed: false } => Counts::Neutral,
        }
    }
}

/// What becomes of a task whose needs have all ended, before its `if`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Judgement {
    Run,
    Skip { counts_as_failed: bool },
}

/// The table of `when`. A skip counts as failed only if a failure upstream caused it; one by a `when` that
/// did not match, or behind neutral skips alone, is neutral.
fn judge(when: When, has_needs: bool, any_failed: bool, any_completed: bool) -> Judgement {
    match when {
        When::Always => Judgement::Run,
        When::Failure if any_failed => Judgement::Run,
        When::Success if any_failed => Judgement::Skip { counts_as_failed: true },
        When::Success if any_completed || !has_needs => Judgement::Run,
        When::Failure | When::Success => Judgement::Skip { counts_as_failed: false },
    }
}

impl Cascade {
    /// Has a task looked at, if its needs are all terminal by then.
    pub(super) fn look_at(&mut self, i: u32) {
        self.todo.push_back(Todo::Look(i));
    }

    /// Starts a node that nothing has to be asked of first.
    pub(super) fn begin(&mut self, i: u32) {
        self.todo.push_back(Todo::Begin(i));
    }

    /// Lets a node see what has become of those inside it.
    pub(super) fn advance(&mut self, i: u32) {
        self.todo.push_back(Todo::Advance(i));
    }

    /// Lets the run's end begin or go on.
    pub(super) fn conclude(&mut self) {
        self.todo.push_back(Todo::Conclude);
    }
}

impl Step<'_> {
    /// Ends a task as completed; keeps what would undo it.
    pub(super) fn complete_task(&mut self, i: u32, output: Payload, cascade: &mut Cascade) {
        let plan = self.plan;
        if let Some(undo) = self.plan_of(i).compensate
            && self.is_undoable(i)
        {
            // Its input is evaluated now, and sees the output.
            self.task_mut(i).phase = TaskPhase::Completed { output: output.clone() };
            let template = plan.tasks[undo as usize].input.as_ref();
            let what = || format!("tasks.{}.compensate.input", self.path(i));
            match self.evaluate(View::of(i), template, what, "input_too_large") {
                Ok(value) => {
                    let field = self.fields();
                    let input = value.into_payload(|| field(format_args!("u{i}")), &mut self.work.written);
                    self.work.state.undo.push(crate::model::run::Undo { node: i, input });
                }
                Err(halt) => return self.halt(i, halt, cascade),
            }
        }
        self.end_task(i, End::Completed { output }, cascade);
    }

    /// Compensation is of the thing itself: of each item and each iteration, not of all of them together.
    fn is_undoable(&self, i: u32) -> bool {
        self.work.state.level(self.plan, i) == Level::Body
    }

    /// Ends a task as failed.
    pub(super) fn fail_task(&mut self, i: u32, words: &Words, cascade: &mut Cascade) {
        let failure = self.add_failure(words, Some(i));
        self.end_task(i, End::Failed { failure }, cascade);
    }

    /// Ends a task and tells those that need it. A lease that still stands must have been revoked or accepted, and
    /// nothing inside the task may be open.
    pub(super) fn end_task(&mut self, i: u32, end: End, cascade: &mut Cascade) {
        let (kind, mut error) = match &end {
            End::Completed { .. } => (EventKind::TaskCompleted, None),
            End::Failed { failure } => (EventKind::TaskFailed, Some(*failure)),
            End::TimedOut { failure } => (EventKind::TaskTimedOut, Some(*failure)),
            End::Skipped { .. } => (EventKind::TaskSkipped, None),
            End::Cancelled => (EventKind::TaskCancelled, None),
        };
        let block = self.work.state.block_of(i).copied();
        let inner = block.is_some_and(|b| b.kind != BlockKind::Body);
        // `on_error` is of the task, not of its items and iterations.
        let counts = end.counts(!inner && self.plan_of(i).continue_on_error);
        self.close(i, end, kind, error);
        let by_itself = kind == EventKind::TaskCancelled && !self.has_failed_around(block);
        if counts == Counts::Failed && by_itself && !self.is_stopping(i) {
            let words = Words::new("task_cancelled", "the task was cancelled");
            error = Some(self.add_failure(&words, Some(i)));
        }
        match block {
            None => self.tell_siblings(i, None, counts, error, cascade),
            Some(b) => match (b.kind, b.owner) {
                (BlockKind::Body, owner) => self.tell_siblings(i, owner, counts, error, cascade),
                (BlockKind::Items, Some(owner)) => {
                    if let TaskPhase::Waiting(Waiting::Items { open, failed, error: first, .. }) =
                        &mut self.task_mut(owner).phase
                    {
                        *open = open.saturating_sub(1);
                        if counts == Counts::Failed {
                            *failed = failed.saturating_add(1);
                            *first = first.or(error);
                        }
                        cascade.advance(owner);
                    }
                }
                (BlockKind::Iteration(_), Some(owner)) => cascade.advance(owner),
                (BlockKind::Compensation, Some(owner)) => match self.undoer(i, owner) {
                    Some(group) => cascade.advance(group),
                    None => cascade.conclude(),
                },
                (BlockKind::Finally, _) => cascade.conclude(),
                (BlockKind::Items | BlockKind::Iteration(_) | BlockKind::Compensation, None) => {}
            },
        }
    }

    /// What a task that has ended is to those that need it: whether it counts as failed, as completed.
    pub(super) fn counts_of(&self, i: u32) -> (bool, bool) {
        let end = match &self.task(i).phase {
            TaskPhase::Completed { output } => End::Completed { output: output.clone() },
            TaskPhase::Failed { failure } => End::Failed { failure: *failure },
            TaskPhase::TimedOut { failure } => End::TimedOut { failure: *failure },
            TaskPhase::Skipped { counts_as_failed } => End::Skipped { counts_as_failed: *counts_as_failed },
            TaskPhase::Cancelled => End::Cancelled,
            TaskPhase::Pending { .. }
            | TaskPhase::Queued { .. }
            | TaskPhase::Running { .. }
            | TaskPhase::Retrying { .. }
            | TaskPhase::Waiting(_) => return (false, false),
        };
        let counts = end.counts(self.plan_of(i).continue_on_error);
        (counts == Counts::Failed, counts == Counts::Completed)
    }

    /// Whether what a block belongs to has a failure already.
    fn has_failed_around(&self, block: Option<Block>) -> bool {
        let Some(block) = block else { return self.work.state.error.is_some() };
        match block.owner.map(|owner| &self.task(owner).phase) {
            Some(TaskPhase::Waiting(Waiting::Body { error, .. } | Waiting::Items { error, .. })) => {
                error.is_some()
            }
            _ => true,
        }
    }

    /// Ends a node, and tells nobody but the log.
    pub(super) fn close(&mut self, i: u32, end: End, kind: EventKind, error: Option<u32>) {
        let task = self.task_mut(i);
        task.phase = match end {
            End::Completed { output } => TaskPhase::Completed { output },
            End::Failed { failure } => TaskPhase::Failed { failure },
            End::TimedOut { failure } => TaskPhase::TimedOut { failure },
            End::Skipped { counts_as_failed } => TaskPhase::Skipped { counts_as_failed },
            End::Cancelled => TaskPhase::Cancelled,
        };
        task.first_queued_at = None;
        self.log_task(kind, i, None, error);
    }

    /// The group that waits for this compensation; none: the run does.
    fn undoer(&self, compensation: u32, mut owner: u32) -> Option<u32> {
        loop {
            if let TaskPhase::Waiting(Waiting::Body { undoing, .. } | Waiting::Iterations { undoing, .. }) =
                &self.task(owner).phase
                && *undoing == Some(compensation)
            {
                return Some(owner);
            }
            owner = self.work.state.block_of(owner)?.owner?;
        }
    }

    /// A task of a body has ended: its body counts it, and those that need it do.
    fn tell_siblings(
        &mut self,
        i: u32,
        owner: Option<u32>,
        counts: Counts,
        error: Option<u32>,
        cascade: &mut Cascade,
    ) {
        let plan = self.plan;
        let fails = if counts == Counts::Failed { error } else { None };
        match owner {
            None => {
                let state = &mut self.work.state;
                state.open_tasks = state.open_tasks.saturating_sub(1);
                if fails.is_some() && state.error.is_none() {
                    state.error = fails;
                    if plan.fail_fast {
                        cascade.todo.push_front(Todo::FailFast(None));
                    }
                }
                if state.open_tasks == 0 {
                    cascade.conclude();
                }
            }
            Some(owner) => {
                let fail_fast = self.group_of(owner).is_some_and(|g| g.fail_fast);
                let TaskPhase::Waiting(Waiting::Body { open, error: first, .. }) =
                    &mut self.task_mut(owner).phase
                else {
                    return;
                };
                *open = open.saturating_sub(1);
                if fails.is_some() && first.is_none() {
                    *first = fails;
                    if fail_fast {
                        cascade.todo.push_front(Todo::FailFast(Some(owner)));
                    }
                }
                if *open == 0 {
                    cascade.advance(owner);
                }
            }
        }
        let shift = i.wrapping_sub(self.work.state.plan_index(i));
        for &d in &self.plan_of(i).dependents {
            let node = d.wrapping_add(shift);
            let Some(dependent) = self.work.state.tasks.get_mut(node as usize) else { continue };
            if let TaskPhase::Pending { remaining, any_failed, any_completed } = &mut dependent.phase {
                *remaining = remaining.saturating_sub(1);
                match counts {
                    Counts::Failed => *any_failed = true,
                    Counts::Completed => *any_completed = true,
                    Counts::Neutral => {}
                }
                if *remaining == 0 {
                    cascade.look_at(node);
                }
            }
        }
    }

    /// Lets everything follow that follows; ends the run when no task is open any more.
    pub(super) fn settle(&mut self, mut cascade: Cascade) -> Result<(), Stop> {
        while let Some(todo) = cascade.todo.pop_front() {
            match todo {
                Todo::Look(i) => self.look(i, &mut cascade),
                Todo::Begin(i) => {
                    // Not if it has been ended meanwhile.
                    let pending = matches!(self.task(i).phase, TaskPhase::Pending { remaining: 0, .. });
                    if pending && !self.is_spent() {
                        self.begin(i, &mut cascade);
                    }
                }
                Todo::Advance(i) => self.advance(i, &mut cascade),
                Todo::FailFast(body) => self.stop_the_rest(body, &mut cascade),
                Todo::Conclude => self.conclude(&mut cascade),
            }
        }
        if cascade.missing.is_empty() {
            return Ok(());
        }
        Err(Stop::NeedPayloads(cascade.missing.into_iter().collect()))
    }

    /// Looks at a task whose needs have all ended: starts it, skips it, or fails it.
    fn look(&mut self, i: u32, cascade: &mut Cascade) {
        let TaskPhase::Pending { remaining: 0, any_failed, any_completed } = self.task(i).phase else {
            return; // Ended meanwhile by fail fast or by hand.
        };
        let task = self.plan_of(i);
        match judge(task.when, !task.needs.is_empty(), any_failed, any_completed) {
            Judgement::Skip { counts_as_failed } => {
                return self.end_task(i, End::Skipped { counts_as_failed }, cascade);
            }
            Judgement::Run => {}
        }
        if self.is_stopping(i) {
            return self.end_task(i, End::Skipped { counts_as_failed: true }, cascade);
        }
        if self.work.state.status == RunStatus::Paused {
            return; // Looked at again when the run goes on.
        }
        if self.is_spent() {
            return;
        }
        if let Some(condition) = &task.condition {
            let what = || format!("tasks.{}.if", self.path(i));
            let value = self.evaluate(View::of(i), Some(condition), what, "value_too_large");
            match value.and_then(|v| Ok(truth(&v.json, &what())?)) {
                Ok(true) => {}
                Ok(false) => {
                    return self.end_task(i, End::Skipped { counts_as_failed: false }, cascade);
                }
                Err(halt) => return self.halt(i, halt, cascade),
            }
        }
        self.begin(i, cascade);
    }

    /// Fail fast in a body: what has not started is skipped, what has is cancelled. Handlers (`when: failure` and
    /// `always`) are left alone, waiting or running: they are there for this case. Attempts of tasks that would
    /// have to be undone are awaited.
    fn stop_the_rest(&mut self, body: Option<u32>, cascade: &mut Cascade) {
        let nodes = match body {
            None => self.plan.body.clone(),
            Some(group) => match self.task(group).phase {
                TaskPhase::Waiting(Waiting::Body { block, .. }) => self.nodes(block),
                _ => return,
            },
        };
        for i in nodes {
            let plan = self.plan_of(i);
            let spared = plan.when != When::Success || plan.role != Role::Task;
            let awaited = plan.compensate.is_some();
            let task = self.task(i);
            if spared || task.phase.is_terminal() {
                continue;
            }
            if self.awaits_within(i) {
                self.stop_within(i, cascade);
                continue;
            }
            // Caused by a failure, so it counts as one for those that come after.
            let skipped = End::Skipped { counts_as_failed: true };
            let end = match task.phase {
                TaskPhase::Pending { .. } => skipped,
                TaskPhase::Waiting(Waiting::Permit { .. } | Waiting::Rate { .. }) if task.attempt == 0 => {
                    skipped
                }
                TaskPhase::Waiting(Waiting::Permit { .. } | Waiting::Rate { .. }) => End::Cancelled,
                TaskPhase::Queued { .. } if task.attempt <= 1 && task.delivery <= 1 => skipped,
                TaskPhase::Running { .. } | TaskPhase::Waiting(_) if awaited => continue,
                TaskPhase::Queued { .. }
                | TaskPhase::Running { .. }
                | TaskPhase::Retrying { .. }
                | TaskPhase::Waiting(_)
                | TaskPhase::Completed { .. }
                | TaskPhase::Failed { .. }
                | TaskPhase::Skipped { .. }
                | TaskPhase::Cancelled
                | TaskPhase::TimedOut { .. } => End::Cancelled,
            };
            self.cancel_within(i);
            self.revoke(i);
            self.end_task(i, end, cascade);
        }
    }

    /// Whether fail fast in a body around a node lets nothing new start there. Handlers and what they hold go on, and
    /// so does what has to be undone as a whole.
    pub(super) fn is_stopping(&self, node: u32) -> bool {
        let state = &self.work.state;
        let mut at = node;
        loop {
            let block = state.block_of(at);
            let (owner, in_body) = match block.map(|b| (b.kind, b.owner)) {
                None => (None, true),
                Some((BlockKind::Body, owner)) => (owner, true),
                Some((BlockKind::Items | BlockKind::Iteration(_), owner)) => (owner, false),
                Some((BlockKind::Compensation | BlockKind::Finally, _)) => return false,
            };
            if in_body {
                let failed = match owner.map(|o| &self.task(o).phase) {
                    None => self.plan.fail_fast && state.error.is_some(),
                    Some(TaskPhase::Waiting(Waiting::Body { error, .. })) => {
                        error.is_some() && owner.and_then(|o| self.group_of(o)).is_some_and(|g| g.fail_fast)
                    }
                    Some(_) => false,
                };
                let plan = self.plan_of(at);
                let spared = plan.when != When::Success || (at != node && plan.compensate.is_some());
                if failed && !spared {
                    return true;
                }
            }
            match owner {
                Some(owner) => at = owner,
                None => return false,
            }
        }
    }

    /// Open nodes inside a node.
    pub(super) fn open_within(&self, above: u32) -> Vec<u32> {
        if !matches!(self.task(above).phase, TaskPhase::Waiting(_)) {
            return Vec::new();
        }
        let state = &self.work.state;
        let inner = self.plan.body.end..state.tasks.len() as u32;
        inner
            .filter(|n| *n != above && !self.task(*n).phase.is_terminal() && state.is_within(*n, above))
            .collect()
    }

    /// Whether something goes on inside a node that would have to be undone, and so is awaited.
    fn awaits_within(&self, above: u32) -> bool {
        let awaited = |n: &u32| {
            let begun = match &self.task(*n).phase {
                TaskPhase::Running { .. }
                | TaskPhase::Waiting(
                    Waiting::Timer { .. }
                    | Waiting::Signal { .. }
                    | Waiting::Body { .. }
                    | Waiting::Items { .. }
                    | Waiting::Iterations { .. }
                    | Waiting::Child { .. },
                ) => true,
                TaskPhase::Waiting(Waiting::Permit { .. } | Waiting::Rate { .. })
                | TaskPhase::Pending { .. }
                | TaskPhase::Queued { .. }
                | TaskPhase::Retrying { .. }
                | TaskPhase::Completed { .. }
                | TaskPhase::Failed { .. }
                | TaskPhase::Skipped { .. }
                | TaskPhase::Cancelled
                | TaskPhase::TimedOut { .. } => false,
            };
            begun && self.plan_of(*n).compensate.is_some()
        };
        self.open_within(above).iter().any(awaited)
    }

    /// Fail fast inside a node that is awaited for something in it: all else in it ends, and then it ends itself.
    fn stop_within(&mut self, above: u32, cascade: &mut Cascade) {
        for i in self.open_within(above) {
            let block = self.work.state.block_of(i).map(|b| b.kind);
            let undoable = self.plan_of(i).compensate.is_some();
            let whole = self.owners(i, above).any(|o| self.plan_of(o).compensate.is_some());
            let end = match &self.task(i).phase {
                _ if whole || block == Some(BlockKind::Compensation) => continue,
                // Items that have not had their turn are the map's to end.
                TaskPhase::Pending { .. } if block == Some(BlockKind::Items) => continue,
                TaskPhase::Pending { .. } => End::Skipped { counts_as_failed: true },
                TaskPhase::Running { .. } | TaskPhase::Waiting(Waiting::Child { .. }) if undoable => continue,
                TaskPhase::Waiting(
                    Waiting::Body { .. } | Waiting::Items { .. } | Waiting::Iterations { .. },
                ) => {
                    cascade.advance(i);
                    continue;
                }
                TaskPhase::Queued { .. }
                | TaskPhase::Running { .. }
                | TaskPhase::Retrying { .. }
                | TaskPhase::Waiting(
                    Waiting::Timer { .. }
                    | Waiting::Signal { .. }
                    | Waiting::Child { .. }
                    | Waiting::Permit { .. }
                    | Waiting::Rate { .. },
                ) => End::Cancelled,
                TaskPhase::Completed { .. }
                | TaskPhase::Failed { .. }
                | TaskPhase::Skipped { .. }
                | TaskPhase::Cancelled
                | TaskPhase::TimedOut { .. } => continue,
            };
            self.revoke(i);
            self.end_task(i, end, cascade);
        }
        cascade.advance(above);
    }

    /// The nodes around a node, up to `above` and without it.
    fn owners(&self, node: u32, above: u32) -> impl Iterator<Item = u32> {
        let owner = move |n: u32| self.work.state.block_of(n).and_then(|b| b.owner).filter(|o| *o != above);
        std::iter::successors(owner(node), move |n| owner(*n))
    }
}

#[cfg(test)]
mod tests;
