//! A resumed session holds the attempt on under its new epoch.

use super::super::{Stop, Txn};
use super::held;
use crate::model::command::{AttemptKey, Outcome, Refusal};
use crate::model::ids::SessionId;
use crate::model::run::{Holder, TaskPhase};

pub(super) fn apply(
    txn: &mut Txn<'_>,
    key: &AttemptKey,
    session: &SessionId,
    epoch: u32,
) -> Result<Outcome, Stop> {
    let (i, lease) = held(txn, key)?;
    match &lease.holder {
        Holder::Session { id, epoch: known } if id == session && *known == epoch && lease.acked => {
            return Ok(Outcome::Repeated);
        }
        Holder::Session { id, epoch: known } if id == session && *known <= epoch => {}
        Holder::Session { .. } | Holder::Claim { .. } => return Err(Refusal::Stale.into()),
    }
    let mut step = txn.step()?;
    if let TaskPhase::Running { lease, .. } = &mut step.task_mut(i).phase {
        lease.holder = Holder::Session { id: session.clone(), epoch };
        lease.acked = true; // Its worker named the token.
    }
    Ok(Outcome::Accepted)
}
