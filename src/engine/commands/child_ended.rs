//! A run that was started for a task of this one has ended, and so does the task. Told again, or of a run that is not
//! waited for, it changes nothing.

use super::super::children::child_of;
use super::super::graph::Cascade;
use super::super::{Stop, Txn};
use crate::model::command::{ChildEnd, Outcome, Refusal};
use crate::model::ids::{RunId, TaskPath};

pub(super) fn apply(
    txn: &mut Txn<'_>,
    task: &TaskPath,
    child: &RunId,
    ticket: u32,
    end: &ChildEnd,
) -> Result<Outcome, Stop> {
    let state = txn.state().ok_or(Refusal::NoRun)?;
    let found = state.find(txn.plan, task).and_then(|i| Some((i, state.tasks.get(i as usize)?)));
    let Some((i, node)) = found else { return Ok(Outcome::Nothing) };
    if !node.awaits_child(ticket) || child_of(state, txn.plan, i, node.attempt).as_ref() != Some(child) {
        return Ok(Outcome::Nothing);
    }
    let mut step = txn.step()?;
    // It has begun, as it has ended; what still stood there to begin it is settled by that.
    step.work.state.outbox.pending.remove(&ticket);
    let mut cascade = Cascade::default();
    step.child_ended(i, child, end, &mut cascade);
    step.settle(cascade)?;
    Ok(Outcome::Accepted)
}
