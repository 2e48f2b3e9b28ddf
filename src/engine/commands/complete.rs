//! An attempt's result.

use super::super::graph::Cascade;
use super::super::payload;
use super::super::retry::{Again, Ending};
use super::super::scope::oversize;
use super::super::step::Words;
use super::super::{Stop, Txn};
use super::find;
use crate::model::command::{AttemptKey, Outcome, Refusal, RejectedValue};
use crate::model::payload::PAYLOAD_MAX;
use crate::model::run::TaskPhase;
use bytes::Bytes;

pub(super) fn apply(
    txn: &mut Txn<'_>,
    key: &AttemptKey,
    output: &Result<Bytes, RejectedValue>,
) -> Result<Outcome, Stop> {
    let output = check(key, output);
    let found = find(txn, key)?;
    if found.lease.is_none() {
        let repeated = found.accepted
            && match &output {
                Ok(json) => same_output(txn, found.index, json)?,
                Err(words) => found.failure(key.attempt).is_some_and(|f| words.are(f)),
            };
        return if repeated { Ok(Outcome::Repeated) } else { Err(Refusal::Stale.into()) };
    }
    let i = found.index;
    let mut step = txn.step()?;
    let mut cascade = Cascade::default();
    step.task_mut(i).accepted = Some((key.attempt, key.nonce));
    match output {
        Ok(json) => {
            let output = step.keep_json(i, json);
            step.complete_task(i, output, &mut cascade);
        }
        Err(words) => step.fail_attempt(i, &words, Again::Never, Ending::Failed, &mut cascade),
    }
    step.settle(cascade)?;
    Ok(Outcome::Accepted)
}

/// The door has checked it; a value over the limit that came past it fails like one that did not.
fn check(key: &AttemptKey, output: &Result<Bytes, RejectedValue>) -> Result<Bytes, Words> {
    match output {
        Ok(json) if json.len() > PAYLOAD_MAX => {
            Err(oversize(&format!("tasks.{}.output", key.path), "output_too_large", json.len()))
        }
        Ok(json) => Ok(json.clone()),
        Err(rejected) => Err(Words::clipped(rejected.code, &rejected.message)),
    }
}

/// Whether a task completed with just this output.
fn same_output(txn: &Txn<'_>, i: u32, json: &Bytes) -> Result<bool, Stop> {
    let Some(task) = txn.state().and_then(|s| s.tasks.get(i as usize)) else { return Ok(false) };
    let TaskPhase::Completed { output } = &task.phase else { return Ok(false) };
    let written = txn.work.as_ref().map_or(&[][..], |w| &w.written);
    let json = if json.is_empty() { &payload::NULL } else { json };
    let known = payload::resolve(output, written, txn.payloads).map_err(|f| Stop::NeedPayloads(vec![f]))?;
    Ok(known == *json)
}
