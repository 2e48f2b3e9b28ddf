//! The run is sent a message: kept, and consumed by the wait of its name that has waited longest.

use super::super::graph::Cascade;
use super::super::limits::SIGNALS_MAX;
use super::super::payload::keep;
use super::super::{Stop, Txn};
use super::open;
use crate::model::command::{Outcome, Refusal};
use crate::model::event::EventKind;
use crate::model::payload::{Field, Payload};
use crate::model::run::{Signal, TaskPhase, Waiting};
use bytes::Bytes;

pub(super) fn apply(
    txn: &mut Txn<'_>,
    name: &str,
    id: Option<&str>,
    payload: Option<&Bytes>,
) -> Result<Outcome, Stop> {
    // A repeat is answered as one even when the run has ended since.
    let known = |s: &Signal| id.is_some() && s.id.as_deref() == id;
    if txn.state().ok_or(Refusal::NoRun)?.signals.iter().any(known) {
        return Ok(Outcome::Repeated);
    }
    let state = open(txn)?;
    if state.signals.len() >= SIGNALS_MAX {
        return Err(Refusal::TooManySignals(SIGNALS_MAX).into());
    }
    let mut step = txn.step()?;
    let number = step.work.state.signals.len() as u32;
    let field = || Field::new(&format!("s{number}"));
    let payload = payload.map_or(Payload::Null, |json| keep(json.clone(), field, &mut step.work.written));
    let waits = (0..).zip(&step.work.state.tasks).filter(|(_, task)| {
        matches!(&task.phase, TaskPhase::Waiting(Waiting::Signal { name: wanted }) if wanted == name)
    });
    let longest = waits.min_by_key(|(i, task)| (task.first_queued_at, *i)).map(|(i, _)| i);
    let signal = Signal {
        name: name.to_owned(),
        id: id.map(str::to_owned),
        payload: payload.clone(),
        taken: longest.is_some(),
    };
    step.work.state.signals.push(signal);
    step.log_run(EventKind::SignalReceived, Some(number));
    let mut cascade = Cascade::default();
    if let Some(i) = longest {
        step.complete_task(i, payload, &mut cascade);
    }
    step.settle(cascade)?;
    Ok(Outcome::Accepted)
}
