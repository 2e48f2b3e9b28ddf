//! A queued task is given to a worker that has credit for it.

use super::super::wake::heartbeat_deadline;
use super::super::{Stop, Txn, queued};
use crate::model::command::{LeaseTask, Outcome, Refusal};
use crate::model::event::EventKind;
use crate::model::run::{Holder, Lease, TaskPhase};

pub(super) fn apply(txn: &mut Txn<'_>, command: &LeaseTask) -> Result<Outcome, Stop> {
    let state = txn.state().ok_or(Refusal::NoRun)?;
    let i = state.find(txn.plan, &command.path).ok_or(Refusal::Unknown)?;
    let task = state.tasks.get(i as usize).ok_or(Refusal::Unknown)?;
    if queued(task) != Some(command.generation) {
        return Err(Refusal::Stale.into());
    }
    let mut step = txn.step()?;
    let worker = step.worker(&command.worker);
    let leased_at = step.env.lease_now;
    let lease = Lease {
        nonce: step.env.nonce,
        holder: command.holder.clone(),
        worker,
        leased_at,
        acked: false,
        heartbeat_at: None,
    };
    let limits = &step.plan_of(i).timeout;
    match &lease.holder {
        Holder::Session { .. } => step.want(step.now.plus(step.env.lease)),
        Holder::Claim { deadline } => step.want(step.wall(*deadline)),
    }
    if let Some(run) = limits.run {
        step.want(step.wall(leased_at.plus(run)));
    }
    if let Some(heartbeat) = limits.heartbeat {
        step.want(step.wall(heartbeat_deadline(&lease, heartbeat)));
    }
    let deadline = limits.run.map(|run| step.now.plus(run));
    let since = step.now;
    let task = step.task_mut(i);
    task.phase = TaskPhase::Running { since, lease };
    let attempt = task.attempt;
    step.log_task(EventKind::TaskStarted, i, Some(worker), None);
    Ok(Outcome::Leased { attempt, deadline })
}
