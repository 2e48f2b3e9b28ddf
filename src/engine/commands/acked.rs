//! The worker has the attempt: from now on its loss is the loss of an attempt.

use super::super::{Stop, Txn};
use super::held;
use crate::model::command::{AttemptKey, Outcome};
use crate::model::run::TaskPhase;

pub(super) fn apply(txn: &mut Txn<'_>, key: &AttemptKey) -> Result<Outcome, Stop> {
    let (i, lease) = held(txn, key)?;
    if lease.acked {
        return Ok(Outcome::Repeated);
    }
    let mut step = txn.step()?;
    if let TaskPhase::Running { lease, .. } = &mut step.task_mut(i).phase {
        lease.acked = true;
    }
    Ok(Outcome::Accepted)
}
