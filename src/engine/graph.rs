//! Which task runs when: readiness, joins, skips, fail fast, and the end of the run.
//!
//! Each task counts its needs down; the last one to end makes it be looked at, once. All that follows from
//! one ended task goes through a work list, so a chain of a thousand skips needs no stack.

use super::Stop;
use super::scope::{self, Facts, Look};
use super::step::{Step, Words};
use crate::model::event::EventKind;
use crate::model::payload::{Field, Payload};
use crate::model::plan::When;
use crate::model::run::{RunStatus, TaskPhase};
use std::collections::{BTreeSet, VecDeque};

/// What has still to follow from what this command changed.
#[derive(Debug, Default)]
pub(super) struct Cascade {
    /// Tasks whose needs are all terminal and that were not looked at yet.
    look: VecDeque<u32>,
    /// The first failure of the run has just happened, and nothing else may start.
    fail_fast: bool,
    /// Payloads that have to be at hand first.
    missing: BTreeSet<Field>,
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
        self.look.push_back(i);
    }
}

impl Step<'_> {
    /// Ends a task and tells those that need it. A lease that still stands must have been revoked or accepted.
    pub(super) fn end_task(&mut self, i: u32, end: End, cascade: &mut Cascade) {
        let plan = &self.plan.tasks[i as usize];
        let counts = end.counts(plan.continue_on_error);
        let (phase, kind, error) = match end {
            End::Completed { output } => (TaskPhase::Completed { output }, EventKind::TaskCompleted, None),
            End::Failed { failure } => (TaskPhase::Failed { failure }, EventKind::TaskFailed, Some(failure)),
            End::TimedOut { failure } => {
                (TaskPhase::TimedOut { failure }, EventKind::TaskTimedOut, Some(failure))
            }
            End::Skipped { counts_as_failed } => {
                (TaskPhase::Skipped { counts_as_failed }, EventKind::TaskSkipped, None)
            }
            End::Cancelled => (TaskPhase::Cancelled, EventKind::TaskCancelled, None),
        };
        let task = self.task_mut(i);
        task.phase = phase;
        task.first_queued_at = None;
        self.log_task(kind, i, None, error);
        let state = &mut self.work.state;
        state.open_tasks = state.open_tasks.saturating_sub(1);
        if counts == Counts::Failed && error.is_some() && state.error.is_none() {
            state.error = error;
            cascade.fail_fast = self.plan.fail_fast;
        }
        for &d in &plan.dependents {
            let Some(dependent) = state.tasks.get_mut(d as usize) else { continue };
            if let TaskPhase::Pending { remaining, any_failed, any_completed } = &mut dependent.phase {
                *remaining = remaining.saturating_sub(1);
                match counts {
                    Counts::Failed => *any_failed = true,
                    Counts::Completed => *any_completed = true,
                    Counts::Neutral => {}
                }
                if *remaining == 0 {
                    cascade.look.push_back(d);
                }
            }
        }
    }

    /// Lets everything follow that follows; ends the run when no task is open any more.
    pub(super) fn settle(&mut self, mut cascade: Cascade) -> Result<(), Stop> {
        loop {
            if std::mem::take(&mut cascade.fail_fast) {
                self.stop_the_rest(&mut cascade);
            }
            let Some(i) = cascade.look.pop_front() else { break };
            self.look(i, &mut cascade);
        }
        if !cascade.missing.is_empty() {
            return Err(Stop::NeedPayloads(cascade.missing.into_iter().collect()));
        }
        if self.work.state.open_tasks == 0 && !self.work.state.status.is_terminal() {
            self.conclude()?;
        }
        Ok(())
    }

    /// Looks at a task whose needs have all ended: queues it, skips it, or fails it.
    fn look(&mut self, i: u32, cascade: &mut Cascade) {
        let TaskPhase::Pending { remaining: 0, any_failed, any_completed } = self.task(i).phase else {
            return; // Ended meanwhile by fail fast.
        };
        let task = &self.plan.tasks[i as usize];
        match judge(task.when, !task.needs.is_empty(), any_failed, any_completed) {
            Judgement::Skip { counts_as_failed } => {
                return self.end_task(i, End::Skipped { counts_as_failed }, cascade);
            }
            Judgement::Run => {}
        }
        let facts = Facts::gather(
            self.plan,
            &self.work.state,
            &self.work.written,
            self.payloads,
            [task.condition.as_ref(), task.input.as_ref()],
        );
        let look = match facts {
            Ok(facts) => scope::look(task, &facts),
            Err(missing) => return cascade.missing.extend(missing),
        };
        match look {
            Ok(Look::Run(input)) => {
                let field = || Field::new(&format!("a{i}.1"));
                let input = input.into_payload(field, &mut self.work.written);
                self.task_mut(i).input = input;
                self.next_attempt(i);
            }
            Ok(Look::Skip) => self.end_task(i, End::Skipped { counts_as_failed: false }, cascade),
            Err(words) => {
                let failure = self.add_failure(&words, Some(i));
                self.end_task(i, End::Failed { failure }, cascade);
            }
        }
    }

    /// Fail fast: what has not started is skipped, what has is cancelled. Handlers (`when: failure` and
    /// `always`) are left alone, waiting or running: they are there for this case.
    fn stop_the_rest(&mut self, cascade: &mut Cascade) {
        for i in 0..self.plan.tasks.len() as u32 {
            let handler = self.plan_of(i).when != When::Success;
            let task = self.task(i);
            if handler || task.phase.is_terminal() {
                continue;
            }
            // Caused by a failure, so it counts as one for those that come after.
            let skipped = End::Skipped { counts_as_failed: true };
            let end = match task.phase {
                TaskPhase::Pending { .. } => skipped,
                TaskPhase::Queued { .. } if task.attempt <= 1 && task.delivery <= 1 => skipped,
                TaskPhase::Queued { .. }
                | TaskPhase::Running { .. }
                | TaskPhase::Retrying { .. }
                | TaskPhase::Completed { .. }
                | TaskPhase::Failed { .. }
                | TaskPhase::Skipped { .. }
                | TaskPhase::Cancelled
                | TaskPhase::TimedOut { .. } => End::Cancelled,
            };
            self.revoke(i);
            self.end_task(i, end, cascade);
        }
    }

    /// Ends a run at once: every open task is cancelled and every lease fenced. `error` is the run's own.
    pub(super) fn stop_run(&mut self, status: RunStatus, error: Option<&Words>) {
        // Nothing follows from these ends, so nobody is told of them.
        let mut nobody = Cascade::default();
        for i in 0..self.plan.tasks.len() as u32 {
            if !self.task(i).phase.is_terminal() {
                self.revoke(i);
                self.end_task(i, End::Cancelled, &mut nobody);
            }
        }
        if let Some(words) = error {
            let failure = self.add_failure(words, None);
            self.work.state.error = Some(failure);
        }
        self.end_run(status);
    }

    /// The verdict, once no task is open: the first failure that counted, else the output.
    fn conclude(&mut self) -> Result<(), Stop> {
        if self.work.state.error.is_some() {
            self.end_run(RunStatus::Failed);
            return Ok(());
        }
        let template = self.plan.output.as_ref();
        let facts =
            Facts::gather(self.plan, &self.work.state, &self.work.written, self.payloads, [template, None])
                .map_err(|missing| Stop::NeedPayloads(missing.into_iter().collect()))?;
        match scope::output(template, &facts) {
            Ok(output) => {
                self.work.state.output = output.into_payload(|| Field::new("o"), &mut self.work.written);
                self.end_run(RunStatus::Completed);
            }
            Err(words) => {
                let failure = self.add_failure(&words, None);
                self.work.state.error = Some(failure);
                self.end_run(RunStatus::Failed);
            }
        }
        Ok(())
    }

    fn end_run(&mut self, status: RunStatus) {
        let state = &mut self.work.state;
        state.status = status;
        state.ended_at = Some(self.now);
        state.deadline = None;
        let (kind, error) = match status {
            RunStatus::Failed => (EventKind::RunFailed, state.error),
            RunStatus::TimedOut => (EventKind::RunTimedOut, state.error),
            RunStatus::Cancelled => (EventKind::RunCancelled, None),
            RunStatus::Completed | RunStatus::Pending | RunStatus::Running | RunStatus::Paused => {
                (EventKind::RunCompleted, None)
            }
        };
        self.log_run(kind, error);
    }
}

#[cfg(test)]
mod tests;
