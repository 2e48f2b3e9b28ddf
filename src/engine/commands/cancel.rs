//! The run ends as cancelled; every attempt is fenced and no worker is waited for. Compensation, if asked for, and
//! `finally` follow.

use super::super::graph::Cascade;
use super::super::{Stop, Txn};
use crate::model::command::{Outcome, Refusal};
use crate::model::run::RunStatus;

pub(super) fn apply(txn: &mut Txn<'_>, compensate: bool, force: bool) -> Result<Outcome, Stop> {
    let state = txn.state().ok_or(Refusal::NoRun)?;
    if state.status.is_terminal() {
        return Err(Refusal::Ended(state.status).into());
    }
    let status = match state.ending {
        // Force cuts an end short, whatever it is.
        Some(ending) if force => ending.status,
        Some(ending) => return Err(Refusal::Ending(ending.status).into()),
        None => RunStatus::Cancelled,
    };
    let mut step = txn.step()?;
    let mut cascade = Cascade::default();
    step.stop_run(status, None, compensate, force, &mut cascade);
    step.settle(cascade)?;
    Ok(Outcome::Accepted)
}
