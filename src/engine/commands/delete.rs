//! An ended run is forgotten.

use super::super::{Stop, Txn};
use crate::model::command::{Outcome, Refusal};

pub(super) fn apply(txn: &mut Txn<'_>, expired: bool) -> Result<Outcome, Stop> {
    let state = txn.state().ok_or(Refusal::NoRun)?;
    let Some(ended_at) = state.ended_at.filter(|_| state.status.is_terminal()) else {
        return Err(Refusal::NotEnded(state.status).into());
    };
    // What has just ended holds its slots until the decision does.
    let telling = !state.outbox.is_empty() || state.tasks.iter().any(|t| t.permit.is_some());
    if expired && (txn.now() < state.kept_until().unwrap_or(ended_at) || telling) {
        return Ok(Outcome::Nothing);
    }
    if telling {
        return Err(Refusal::Telling.into());
    }
    txn.step()?.work.deleted = true;
    Ok(Outcome::Accepted)
}
