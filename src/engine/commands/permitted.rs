//! A task has a slot under its concurrency key, and goes on; or is asked whether it still has. What no task wants (any
//! more) is refused, and goes to the next.

use super::super::graph::Cascade;
use super::super::{Stop, Txn};
use crate::model::command::{Outcome, Refusal};

pub(super) fn apply(txn: &mut Txn<'_>, key: &str, ticket: u32) -> Result<Outcome, Stop> {
    let state = txn.state().ok_or(Refusal::NoRun)?;
    let wanted = |t: &crate::model::run::TaskState| {
        let permit = t.permit.as_ref().filter(|_| !t.phase.is_terminal());
        permit.is_some_and(|p| p.ticket == ticket && ticket != 0 && p.key == key)
    };
    let open = !state.status.is_terminal();
    let found = state.tasks.iter().position(wanted).filter(|_| open).ok_or(Refusal::NoRun)?;
    let i = found as u32;
    if state.tasks.get(found).and_then(|t| t.permit.as_ref()).is_some_and(|p| p.granted) {
        return Ok(Outcome::Repeated);
    }
    let mut step = txn.step()?;
    // It has been asked for, as it was granted.
    step.work.state.outbox.pending.remove(&ticket);
    if let Some(permit) = &mut step.task_mut(i).permit {
        permit.granted = true;
    }
    let mut cascade = Cascade::default();
    cascade.advance(i);
    step.settle(cascade)?;
    Ok(Outcome::Accepted)
}
