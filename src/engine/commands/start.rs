//! A run begins: all its tasks are laid out and those without needs are looked at.

use super::super::graph::Cascade;
use super::super::limits::LEASE;
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
    let mut written = Vec::new();
    let input =
        start.input.clone().map_or(Payload::Null, |json| keep(json, || Field::new("i"), &mut written));
    let mut tags = plan.tags.clone();
    tags.extend(start.tags.iter().map(|(k, v)| (k.clone(), v.clone())));
    let state = RunState {
        id: start.id.clone(),
        workflow: start.workflow.clone(),
        version: start.version,
        try_number: 1,
        status: RunStatus::Running,
        start_digest: start.digest,
        created_at: now,
        started_at: Some(now),
        ended_at: None,
        last_time: now,
        deadline: plan.timeout.map(|t| now.plus(t)),
        priority: start.priority.unwrap_or(plan.priority),
        tags,
        retention: plan.retention,
        input,
        output: Payload::Null,
        error: None,
        armed: None,
        generation: 0,
        open_tasks: plan.tasks.len() as u32,
        tasks: plan.tasks.iter().map(|t| TaskState::pending(t.needs.len() as u32)).collect(),
        workers: Vec::new(),
        failures: Vec::new(),
        log: Vec::with_capacity(2 + 3 * plan.tasks.len()),
    };
    txn.work = Some(Work { written, ..Work::on(state) });
    let mut step: Step<'_> = txn.step()?;
    step.log_run(EventKind::RunStarted, None);
    // The first lease would ask for this anyway, and so it need not.
    step.want(now.plus(LEASE));
    if let Some(deadline) = step.work.state.deadline {
        step.want(deadline);
    }
    let mut cascade = Cascade::default();
    for (i, task) in plan.tasks.iter().enumerate() {
        if task.needs.is_empty() {
            cascade.look_at(i as u32);
        }
    }
    step.settle(cascade)?;
    Ok(Outcome::Accepted)
}
