//! A task of a run that has not ended is ended by hand.

use super::super::graph::{Cascade, End};
use super::super::step::Words;
use super::super::{Stop, Txn};
use crate::model::command::{Action, Outcome, Refusal};
use crate::model::ids::TaskPath;
use crate::model::run::TaskPhase;

pub(super) fn apply(txn: &mut Txn<'_>, path: &TaskPath, action: &Action) -> Result<Outcome, Stop> {
    let state = txn.state().ok_or(Refusal::NoRun)?;
    // Also while it ends: a compensation that nobody can do must not hold it for ever.
    if state.status.is_terminal() {
        return Err(Refusal::Ended(state.status).into());
    }
    let i = state.find(txn.plan, path).ok_or(Refusal::NoTask)?;
    let task = state.tasks.get(i as usize).ok_or(Refusal::NoTask)?;
    if task.phase.is_terminal() {
        return Err(Refusal::TaskEnded(task.phase.name()).into());
    }
    // An item that has not had its turn is not counted yet by those around it.
    if matches!(task.phase, TaskPhase::Pending { .. }) && !state.is_in_body(i) {
        return Err(Refusal::NoTask.into());
    }
    if matches!((action, &task.phase), (Action::Skip, TaskPhase::Running { .. })) {
        return Err(Refusal::TaskRunning.into());
    }
    let mut step = txn.step()?;
    let mut cascade = Cascade::default();
    step.work.recall = (false, false);
    step.cancel_within(i);
    if !matches!(action, Action::Fail(_)) {
        step.revoke(i);
    }
    match action {
        Action::Skip => step.end_task(i, End::Skipped { counts_as_failed: false }, &mut cascade),
        Action::Complete(json) => {
            let output = step.keep_json(i, json.clone());
            step.complete_task(i, output, &mut cascade);
        }
        Action::Fail(failure) => {
            let message = if failure.message.is_empty() { "ended by hand" } else { &failure.message };
            let words = Words::clipped(&failure.code, message);
            step.fail_scope(i, &words, |failure| End::Failed { failure }, &mut cascade);
        }
    }
    step.settle(cascade)?;
    Ok(Outcome::Accepted)
}
