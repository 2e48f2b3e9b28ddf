//! A run begins: all its tasks are laid out and those without needs are looked at.

use super::super::graph::Cascade;
use super::super::payload::keep;
use super::super::step::{Step, Work};
use super::super::{Stop, Txn};
use crate::model::command::{Outcome, Refusal, Start};
use crate::model::event::EventKind;
use crate::model::payload::{Field, Payload};
use crate::model::run::{RunState, RunStatus, TaskState};

pub(super) fn apply(txn: &mut Txn<'_>, start: &Start) -> Result<Outcome, Stop> {
    if let Some(state) = txn.state() {
        let same = state.start_digest == start.digest && state.workflow == start.workflow;
        return if same { Ok(Outcome::Exists) } else { Err(Refusal::IdTaken.into()) };
    }
    if txn.work.is_some() {
        return Err(Refusal::NoRun.into()); // Deleted a moment ago; that has to be committed first.
    }
    let (plan, now) = (txn.plan, txn.env.now);
    if start.not_after.is_some_and(|limit| limit < now) {
        return Err(Refusal::TooLate.into());
    }
    let mut written = Vec::new();
    let input =
        start.input.clone().map_or(Payload::Null, |json| keep(json, || Field::new("i"), &mut written));
    let mut tags = plan.tags.clone();
    tags.extend(start.tags.iter().map(|(k, v)| (k.clone(), v.clone())));
    let own = plan.tasks.iter().take(plan.body.len());
    let state = RunState {
        document: plan.digest,
        priority: start.priority.unwrap_or(plan.priority),
        tags,
        input,
        open_tasks: plan.body.end,
        tasks: own.map(|t| TaskState::pending(t.needs.len() as u32)).collect(),
        ..RunState::begun(start, now, start.retention.unwrap_or(plan.retention))
    };
    txn.work = Some(Work { written, ..Work::on(state) });
    let mut step: Step<'_> = txn.step()?;
    let mut cascade = Cascade::default();
    step.begin_if_due(&mut cascade);
    step.settle(cascade)?;
    Ok(Outcome::Accepted)
}

impl Step<'_> {
    /// Begins a pending run if it is time.
    pub(in crate::engine) fn begin_if_due(&mut self, cascade: &mut Cascade) {
        let (plan, now) = (self.plan, self.now);
        let state = &mut self.work.state;
        if state.status != RunStatus::Pending {
            return;
        }
        if let Some(start_at) = state.start_at.filter(|at| *at > now) {
            return self.want(start_at);
        }
        state.status = RunStatus::Running;
        state.started_at = Some(now);
        state.deadline = plan.timeout.map(|t| now.plus(t));
        if let Some(deadline) = state.deadline {
            self.want(deadline);
        }
        self.log_run(EventKind::RunStarted, None);
        // The first lease would ask for this anyway, and so it need not.
        self.want(now.plus(self.env.lease));
        for i in plan.body.clone() {
            if plan.tasks[i as usize].needs.is_empty() {
                cascade.look_at(i);
            }
        }
    }
}
