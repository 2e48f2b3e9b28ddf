//! An assignment was never acknowledged: the attempt goes back to its queue.

use super::super::graph::Cascade;
use super::super::{Stop, Txn};
use super::held;
use crate::model::command::{AttemptKey, Outcome};

pub(super) fn apply(txn: &mut Txn<'_>, key: &AttemptKey) -> Result<Outcome, Stop> {
    let (i, lease) = held(txn, key)?;
    if lease.acked {
        return Ok(Outcome::Nothing); // The acknowledgement came first.
    }
    let mut step = txn.step()?;
    let mut cascade = Cascade::default();
    step.lose_delivery(i, &mut cascade);
    step.settle(cascade)?;
    Ok(Outcome::Accepted)
}
