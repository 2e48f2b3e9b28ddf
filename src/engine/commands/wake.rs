//! The run's wake-up is due: everything that has a time is looked at, and the next wake-up is armed.

use super::super::graph::Cascade;
use super::super::limits::REDELIVER;
use super::super::wake::{Sessions, passed};
use super::super::{Stop, Txn};
use crate::model::command::{Outcome, Refusal};
use crate::model::run::RunStatus;

/// Always makes a decision of an open run, and of one that has something to tell: the store has moved the wake-up
/// ahead, and it must be set anew.
pub(super) fn apply(txn: &mut Txn<'_>, sessions: &Sessions) -> Result<Outcome, Stop> {
    let state = txn.state().ok_or(Refusal::NoRun)?;
    if state.status.is_terminal() && state.outbox.is_empty() {
        return Ok(Outcome::Nothing);
    }
    let facts = state.log.len();
    let plan = txn.plan;
    let mut step = txn.step()?;
    let mut cascade = Cascade::default();
    step.work.redeliver = true;
    if step.work.state.status.is_terminal() {
        step.work.rearm = Some(step.now.plus(REDELIVER));
        return Ok(Outcome::Nothing);
    }
    if step.work.state.deadline.is_some_and(|deadline| deadline <= step.now) {
        let limit = plan.timeout.unwrap_or_default();
        let words = passed("run_timed_out", "the run took longer than", limit);
        step.stop_run(RunStatus::TimedOut, Some(&words), true, false, &mut cascade);
    } else if step.work.state.status == RunStatus::Pending {
        step.begin_if_due(&mut cascade);
    } else {
        for i in 0..step.work.state.tasks.len() as u32 {
            step.tick_task(i, sessions, &mut cascade);
        }
    }
    step.settle(cascade)?;
    if !step.work.state.status.is_terminal() {
        step.work.rearm = Some(step.earliest(sessions));
    }
    let changed = step.work.state.log.len() != facts;
    Ok(if changed { Outcome::Accepted } else { Outcome::Nothing })
}
