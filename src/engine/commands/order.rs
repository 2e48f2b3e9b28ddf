//! What the run that started this one has it do. Each order is taken once; what an order cannot change any more, it
//! does not.

use super::super::{Stop, Txn};
use super::{cancel, pause, rerun, resume};
use crate::model::command::{Outcome, Refusal};
use crate::model::ids::RunId;
use crate::model::outbox::{Origin, Parent};
use crate::model::run::Order;

pub(super) fn apply(txn: &mut Txn<'_>, from: &RunId, sequence: u32, order: Order) -> Result<Outcome, Stop> {
    let state = txn.state().ok_or(Refusal::NoRun)?;
    // A run that is not the sender's is none to it.
    let parent = state.parent().filter(|p| p.run == *from && !p.detached).ok_or(Refusal::NoRun)?;
    let ended = state.status.is_terminal();
    if sequence <= parent.heard {
        // Asked once more by one that still waits.
        if ended && order == Order::Retry && sequence == parent.ticket {
            txn.step()?.tell_origin();
            return Ok(Outcome::Accepted);
        }
        return Ok(Outcome::Repeated);
    }
    note(txn, |p| p.heard = sequence)?;
    let taken = match order {
        Order::Cancel { compensate, force } => cancel::apply(txn, compensate, force),
        Order::Pause => pause::apply(txn),
        Order::Resume => resume::apply(txn),
        Order::Retry => {
            note(txn, |p| p.ticket = sequence)?;
            match rerun::apply(txn, None) {
                Err(Stop::Refused(Refusal::NothingToRetry)) => {
                    txn.step()?.tell_origin();
                    Ok(Outcome::Accepted)
                }
                taken => taken,
            }
        }
    };
    match taken {
        Err(stop @ Stop::NeedPayloads(_)) => Err(stop),
        Ok(_) | Err(Stop::Refused(_)) => Ok(Outcome::Accepted),
    }
}

fn note(txn: &mut Txn<'_>, change: impl FnOnce(&mut Parent)) -> Result<(), Stop> {
    if let Some(Origin::Parent(parent)) = &mut txn.step()?.work.state.origin {
        change(parent);
    }
    Ok(())
}
