//! Slots of one concurrency key. A task asks, and is granted a slot by a message; it gives it back by a message of its
//! own when it ends.
//!
//! Invariants
//! - Never more grants than slots; a limit that has become lower is reached as slots come back.
//! - A slot cannot be leaked: a claim that its run does not know (any more) is dropped when the grant is answered so,
//!   and whoever has held one for long is asked.

use super::super::limits::REDELIVER;
use super::{Around, Told};
use crate::model::command::{Command, HomeCommand, Outcome, Refusal};
use crate::model::home::{Claim, Held, Semaphore};
use crate::model::ids::TaskPath;
use crate::model::outbox::{Answer, Delivery, Outbox, Parcel};
use crate::model::time::{Span, Timestamp};
use std::collections::BTreeMap;

/// Claims that wait at most; whoever comes then asks again later.
const WAITERS_MAX: usize = 1_000;
/// Who holds a slot is asked this often whether that is so.
const ASK_EVERY: Span = Span::secs(30);

pub(super) fn apply(
    state: &mut Option<Semaphore>,
    told: Told<'_>,
    around: &mut Around<'_>,
) -> Result<Outcome, Refusal> {
    let now = around.now;
    match told {
        Told::Command(HomeCommand::Acquire { key, limit, claim, task, score }) => {
            let semaphore = state.get_or_insert_with(|| Semaphore {
                key: key.clone(),
                limit: (*limit).max(1),
                holders: BTreeMap::new(),
                waiters: BTreeMap::new(),
                arrivals: 0,
                // A record that is gone and comes again must not be taken for the one before by a late answer.
                outbox: Outbox { last: (around.random as u32) >> 1, pending: BTreeMap::new() },
                ask_at: now.plus(ASK_EVERY),
            });
            let waits = semaphore.waiters.values().any(|(c, _)| c == claim);
            if !semaphore.holders.contains_key(claim) && !waits {
                if semaphore.waiters.len() >= WAITERS_MAX {
                    return Err(Refusal::Full);
                }
                // Not by what is asked again: that may be of an older document.
                semaphore.limit = (*limit).max(1);
                semaphore.arrivals = semaphore.arrivals.wrapping_add(1);
                semaphore.waiters.insert((*score, semaphore.arrivals), (claim.clone(), task.clone()));
            }
        }
        Told::Command(HomeCommand::Release { claim }) => {
            if let Some(semaphore) = state {
                drop_claim(semaphore, claim);
            }
        }
        Told::Command(
            HomeCommand::Take { .. }
            | HomeCommand::Schedule(_)
            | HomeCommand::ListSchedule { .. }
            | HomeCommand::UnlistSchedule { .. },
        ) => return Err(Refusal::NoRun),
        Told::Wake => {
            if let Some(semaphore) = state.as_mut().filter(|s| s.ask_at <= now) {
                semaphore.ask_at = now.plus(ASK_EVERY);
                let old = semaphore.holders.iter().filter(|(_, h)| h.since.plus(ASK_EVERY) <= now);
                around
                    .asks
                    .extend(old.map(|(claim, held)| grant(&semaphore.key, held.grant, claim, &held.task)));
            }
        }
        Told::Settled(number, answer) => {
            if let Some(semaphore) = state {
                semaphore.outbox.pending.remove(&number);
                let refused = matches!(answer, Answer::Gone | Answer::Refused { .. });
                let holder =
                    semaphore.holders.iter().find(|(_, h)| h.grant == number).map(|(c, _)| c.clone());
                if let Some(claim) = holder.filter(|_| refused) {
                    drop_claim(semaphore, &claim);
                }
            }
        }
    }
    if let Some(semaphore) = state {
        serve(semaphore, now);
        if semaphore.holders.is_empty() && semaphore.waiters.is_empty() && semaphore.outbox.is_empty() {
            *state = None;
        }
    }
    Ok(Outcome::Accepted)
}

/// Has all that hold a slot asked, when it is looked at next, whether they do. False: nobody holds one.
pub(super) fn suspect_all(semaphore: &mut Semaphore, now: Timestamp) -> bool {
    semaphore.ask_at = now.min(semaphore.ask_at);
    let long_ago = Timestamp(now.0.saturating_sub(ASK_EVERY.0));
    for held in semaphore.holders.values_mut() {
        held.since = held.since.min(long_ago);
    }
    !semaphore.holders.is_empty()
}

fn drop_claim(semaphore: &mut Semaphore, claim: &Claim) {
    if let Some(held) = semaphore.holders.remove(claim) {
        semaphore.outbox.pending.remove(&held.grant);
    }
    semaphore.waiters.retain(|_, (c, _)| c != claim);
}

/// Gives free slots to those that wait.
fn serve(semaphore: &mut Semaphore, now: Timestamp) {
    while semaphore.holders.len() < semaphore.limit as usize
        && let Some((_, (claim, task))) = semaphore.waiters.pop_first()
    {
        let grant = semaphore.outbox.push(claim.run.clone(), claim.clone());
        semaphore.holders.insert(claim, Held { task, since: now, grant });
    }
}

/// Tells a task that it has a slot; asks it too, as one that has not says so.
fn grant(key: &str, sequence: u32, claim: &Claim, task: &TaskPath) -> Delivery {
    let command = Command::Permitted { task: task.clone(), key: key.to_owned(), ticket: claim.ticket };
    Delivery { sequence, to: claim.run.clone(), parcel: Parcel::Command(command) }
}

pub(super) fn wake_at(semaphore: &Semaphore, now: Timestamp) -> Timestamp {
    let again = now.plus(REDELIVER);
    if semaphore.outbox.is_empty() { semaphore.ask_at } else { semaphore.ask_at.min(again) }
}

pub(super) fn deliveries(semaphore: &Semaphore, before: Option<&Semaphore>) -> Vec<Delivery> {
    let due = match before {
        Some(before) => semaphore.outbox.due_since(&before.outbox),
        None => semaphore.outbox.due(),
    };
    let deliver = |number: u32| {
        let claim = &semaphore.outbox.pending.get(&number)?.what;
        Some(grant(&semaphore.key, number, claim, &semaphore.holders.get(claim)?.task))
    };
    due.into_iter().filter_map(deliver).collect()
}
