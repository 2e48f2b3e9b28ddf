//! An ended run begins again: from what failed, or from a task that is named.

use super::super::graph::Cascade;
use super::super::payload::keep;
use super::super::{Stop, Txn};
use crate::model::command::{Outcome, Refusal};
use crate::model::ids::TaskPath;
use crate::model::run::TaskPhase;
use bytes::Bytes;

pub(super) fn apply(txn: &mut Txn<'_>, from: Option<(&TaskPath, Option<&Bytes>)>) -> Result<Outcome, Stop> {
    let state = txn.state().ok_or(Refusal::NoRun)?;
    if !state.status.is_terminal() {
        return Err(Refusal::NotEnded(state.status).into());
    }
    if from.is_none() && state.status == crate::model::run::RunStatus::Completed {
        return Err(Refusal::NothingToRetry.into());
    }
    let node = match from {
        Some((path, _)) => {
            // What comes after the verdict is done again anyway, and cannot be begun from.
            let node = state.find(txn.plan, path).ok_or(Refusal::NoTask)?;
            let node = Some(node).filter(|n| state.is_in_bodies(*n)).ok_or(Refusal::NoTask)?;
            if state.is_followed(node) {
                return Err(Refusal::IterationPassed.into());
            }
            // What was skipped by hand is not entered again.
            let owner = |n: u32| state.block_of(n).and_then(|b| b.owner);
            let skipped = |n: &u32| {
                matches!(state.tasks.get(*n as usize).map(|t| &t.phase), Some(TaskPhase::Skipped { .. }))
            };
            if let Some(outer) = std::iter::successors(owner(node), |n| owner(*n)).filter(skipped).last() {
                return Err(Refusal::AroundSkipped(state.path_of(txn.plan, outer)).into());
            }
            Some(node)
        }
        None => None,
    };
    let mut step = txn.step()?;
    if let (Some(i), Some((_, Some(json)))) = (node, from) {
        let attempt = step.task(i).attempt;
        let field = step.field(&format!("h{i}.{attempt}.{}", step.work.state.try_number));
        let input = keep(json.clone(), || field, &mut step.work.written);
        let task = step.task_mut(i);
        task.input = input;
        task.fixed_input = true;
    }
    let mut cascade = Cascade::default();
    step.try_again(node, &mut cascade);
    step.want(step.now.plus(step.env.lease));
    step.settle(cascade)?;
    Ok(Outcome::Accepted)
}
