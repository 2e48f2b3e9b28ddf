//! An attempt failed, as its worker says.

use super::super::graph::Cascade;
use super::super::retry::{Again, Ending};
use super::super::step::Words;
use super::super::{Stop, Txn};
use super::find;
use crate::model::command::{AttemptKey, Outcome, Refusal, ReportedFailure};

pub(super) fn apply(txn: &mut Txn<'_>, key: &AttemptKey, failure: &ReportedFailure) -> Result<Outcome, Stop> {
    let words = Words::clipped(&failure.code, &failure.message);
    let found = find(txn, key)?;
    if found.lease.is_none() {
        let repeated = found.accepted && found.failure(key.attempt).is_some_and(|f| words.are(f));
        return if repeated { Ok(Outcome::Repeated) } else { Err(Refusal::Stale.into()) };
    }
    let i = found.index;
    let mut step = txn.step()?;
    let mut cascade = Cascade::default();
    step.task_mut(i).accepted = Some((key.attempt, key.nonce));
    let again = if failure.retryable { Again::ByPolicy { after: failure.retry_after } } else { Again::Never };
    step.fail_attempt(i, &words, again, Ending::Failed, &mut cascade);
    step.settle(cascade)?;
    Ok(Outcome::Accepted)
}
