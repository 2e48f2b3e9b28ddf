//! An ended run is forgotten.

use super::super::{Stop, Txn};
use crate::model::command::{Outcome, Refusal};

pub(super) fn apply(txn: &mut Txn<'_>, expired: bool) -> Result<Outcome, Stop> {
    let state = txn.state().ok_or(Refusal::NoRun)?;
    let Some(ended_at) = state.ended_at.filter(|_| state.status.is_terminal()) else {
        return Err(Refusal::NotEnded(state.status).into());
    };
    if expired && txn.now() < ended_at.plus(state.retention) {
        return Ok(Outcome::Nothing);
    }
    txn.step()?.work.deleted = true;
    Ok(Outcome::Accepted)
}
