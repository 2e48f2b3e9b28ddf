//! The run ends as cancelled; every attempt is fenced and no worker is waited for.

use super::super::{Stop, Txn};
use crate::model::command::{Outcome, Refusal};
use crate::model::run::RunStatus;

/// `force` would skip compensation and `finally`, of which there are none yet.
pub(super) fn apply(txn: &mut Txn<'_>, _force: bool) -> Result<Outcome, Stop> {
    let state = txn.state().ok_or(Refusal::NoRun)?;
    if state.status.is_terminal() {
        return Err(Refusal::Ended(state.status).into());
    }
    txn.step()?.stop_run(RunStatus::Cancelled, None);
    Ok(Outcome::Accepted)
}
