//! A message of this run was answered: it is not delivered again, and what waited for it goes on.

use super::super::graph::Cascade;
use super::super::{Stop, Txn};
use crate::model::command::{Outcome, Refusal};
use crate::model::outbox::{Answer, Message};
use crate::model::run::{Errand, Order};

pub(super) fn apply(txn: &mut Txn<'_>, sequence: u32, answer: &Answer) -> Result<Outcome, Stop> {
    let state = txn.state().ok_or(Refusal::NoRun)?;
    let mut cascade = Cascade::default();
    if !state.outbox.pending.contains_key(&sequence) {
        // Answered before; or a child that was asked how it stands is not there.
        if *answer != Answer::Gone || !state.tasks.iter().any(|t| t.awaits_child(sequence)) {
            return Ok(Outcome::Repeated);
        }
        let mut step = txn.step()?;
        step.child_gone(sequence, &mut cascade);
        step.settle(cascade)?;
        return Ok(Outcome::Accepted);
    }
    let taken = state.outbox.pending.get(&sequence).map(|m| &m.what);
    if matches!(taken, Some(Errand::Take { .. })) && !matches!(answer, Answer::Granted { .. }) {
        return Ok(Outcome::Repeated); // No answer to this: it is asked again.
    }
    let mut step = txn.step()?;
    let Some(Message { to, what }) = step.work.state.outbox.pending.remove(&sequence) else {
        return Ok(Outcome::Repeated);
    };
    match (what, answer) {
        (Errand::Start { node, .. }, Answer::Refused { code, message }) => {
            step.child_refused(node, sequence, code, message, &mut cascade);
        }
        (Errand::Start { node, .. }, Answer::Done | Answer::Gone | Answer::Granted { .. }) => {
            step.child_started(node, &to, sequence, &mut cascade);
        }
        (Errand::Order(Order::Retry), Answer::Gone) => step.child_gone(sequence, &mut cascade),
        (Errand::Acquire { node }, Answer::Refused { .. } | Answer::Gone | Answer::Granted { .. }) => {
            step.turned_away(node, sequence);
        }
        (Errand::Take { node }, Answer::Granted { at }) => {
            step.rate_granted(node, sequence, *at, &mut cascade);
        }
        (Errand::Acquire { .. }, Answer::Done)
        | (Errand::Order(_) | Errand::Ended | Errand::Release { .. } | Errand::Take { .. }, _) => {}
    }
    step.settle(cascade)?;
    Ok(Outcome::Accepted)
}
