//! A worker gives a task back: to the front of its queue, and no attempt is used.

use super::super::{Stop, Txn};
use super::find;
use crate::model::command::{AttemptKey, Outcome, Refusal};
use crate::model::run::TaskPhase;

pub(super) fn apply(txn: &mut Txn<'_>, key: &AttemptKey) -> Result<Outcome, Stop> {
    let found = find(txn, key)?;
    let i = found.index;
    if found.lease.is_none() {
        // Accepted, but neither completed nor failed: it was this release.
        let completed =
            found.state.tasks.get(i as usize).is_some_and(|t| matches!(t.phase, TaskPhase::Completed { .. }));
        let repeated = found.accepted && !completed && found.failure(key.attempt).is_none();
        return if repeated { Ok(Outcome::Repeated) } else { Err(Refusal::Stale.into()) };
    }
    let mut step = txn.step()?;
    step.task_mut(i).accepted = Some((key.attempt, key.nonce));
    step.requeue(i);
    Ok(Outcome::Accepted)
}
