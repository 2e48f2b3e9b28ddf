//! A token bucket: starts under one rate key, evenly paced, with a burst of as many as there may be in the whole time.
//! Each that asks is told at once from when on it may start, so nobody waits here and nothing has to be called back.
//!
//! The bucket is kept as one instant (the generic cell rate algorithm): when all that was granted would have been,
//! one after the other at an even pace. A grant that is not used, or asked for twice, is lost: the rate is never passed.

use super::{Around, Told};
use crate::model::command::{HomeCommand, Outcome, Refusal};
use crate::model::home::Bucket;
use crate::model::time::{Span, Timestamp};

pub(super) fn apply(
    state: &mut Option<Bucket>,
    told: Told<'_>,
    around: &mut Around<'_>,
) -> Result<Outcome, Refusal> {
    let now = around.now;
    match told {
        Told::Command(HomeCommand::Take { key, limit, per }) => {
            let limit = i64::from((*limit).max(1));
            let bucket = state.get_or_insert_with(|| Bucket { key: key.clone(), paid_until: now });
            let pace = Span((per.0 / limit).max(1));
            let from = bucket.paid_until.max(now);
            bucket.paid_until = from.plus(pace);
            // A full bucket lets `limit` through at once.
            let burst = Span(pace.0.saturating_mul(limit - 1));
            let at = Timestamp(from.0.saturating_sub(burst.0)).max(now);
            Ok(Outcome::Granted { at })
        }
        Told::Command(
            HomeCommand::Acquire { .. }
            | HomeCommand::Release { .. }
            | HomeCommand::Schedule(_)
            | HomeCommand::ListSchedule { .. }
            | HomeCommand::UnlistSchedule { .. },
        ) => Err(Refusal::NoRun),
        Told::Wake => {
            if state.as_ref().is_some_and(|b| b.paid_until <= now) {
                *state = None; // Full again: as if it had never been.
            }
            Ok(Outcome::Nothing)
        }
        Told::Settled(..) => Ok(Outcome::Nothing),
    }
}
