//! One command, one file: everything that can be refused first, on the state as it is; then the change.

mod acked;
mod act;
mod adopt;
mod cancel;
mod child_ended;
mod complete;
mod delete;
mod fail;
mod heartbeat;
mod lease;
mod order;
mod pause;
mod permitted;
mod release;
mod rerun;
mod resume;
mod settled;
mod signal;
mod start;
mod undelivered;
mod wake;

use super::{Stop, Txn};
use crate::model::command::{AttemptKey, Command, Outcome, Refusal};
use crate::model::run::{Failure, Lease, RunState, TaskPhase};

/// Applies a command to a transaction.
pub(super) fn apply(txn: &mut Txn<'_>, command: &Command) -> Result<Outcome, Stop> {
    match command {
        Command::Start(start) => start::apply(txn, start),
        Command::Lease(lease) => lease::apply(txn, lease),
        Command::Complete { attempt, output } => complete::apply(txn, attempt, output),
        Command::Fail { attempt, failure } => fail::apply(txn, attempt, failure),
        Command::Release { attempt } => release::apply(txn, attempt),
        Command::Undelivered { attempt } => undelivered::apply(txn, attempt),
        Command::Acked { attempt } => acked::apply(txn, attempt),
        Command::Heartbeat { attempt, extend_claim } => heartbeat::apply(txn, attempt, *extend_claim),
        Command::Adopt { attempt, session, epoch } => adopt::apply(txn, attempt, session, *epoch),
        Command::Wake { sessions } => wake::apply(txn, sessions),
        Command::Cancel { compensate, force } => cancel::apply(txn, *compensate, *force),
        Command::Pause => pause::apply(txn),
        Command::Resume => resume::apply(txn),
        Command::Signal { name, id, payload } => signal::apply(txn, name, id.as_deref(), payload.as_ref()),
        Command::Retry => rerun::apply(txn, None),
        Command::Rerun { path, input } => rerun::apply(txn, Some((path, input.as_ref()))),
        Command::Act { path, action } => act::apply(txn, path, action),
        Command::Delete { expired } => delete::apply(txn, *expired),
        Command::Order { from, sequence, order } => order::apply(txn, from, *sequence, *order),
        Command::ChildEnded { task, child, ticket, end } => {
            child_ended::apply(txn, task, child, *ticket, end)
        }
        Command::Permitted { key, ticket, .. } => permitted::apply(txn, key, *ticket),
        Command::Home(_) => Err(Refusal::NoRun.into()),
        Command::Settled { sequence, answer } => settled::apply(txn, *sequence, answer),
    }
}

/// A task by its path, and what a key is to it.
struct Found<'t> {
    index: u32,
    state: &'t RunState,
    /// The lease, if it is the one the key names.
    lease: Option<&'t Lease>,
    /// Whether the key is that of the last result that was accepted.
    accepted: bool,
}

/// Finds what a token is for. The run and the task must be there; whether the lease stands is the caller's question.
fn find<'t>(txn: &'t Txn<'_>, key: &AttemptKey) -> Result<Found<'t>, Refusal> {
    let state = txn.state().ok_or(Refusal::NoRun)?;
    let index = state.find(txn.plan, &key.path).ok_or(Refusal::Unknown)?;
    let task = state.tasks.get(index as usize).ok_or(Refusal::Unknown)?;
    let lease = match &task.phase {
        TaskPhase::Running { lease, .. } if lease.nonce == key.nonce && task.attempt == key.attempt => {
            Some(lease)
        }
        TaskPhase::Running { .. }
        | TaskPhase::Pending { .. }
        | TaskPhase::Queued { .. }
        | TaskPhase::Retrying { .. }
        | TaskPhase::Waiting(_)
        | TaskPhase::Completed { .. }
        | TaskPhase::Failed { .. }
        | TaskPhase::Skipped { .. }
        | TaskPhase::Cancelled
        | TaskPhase::TimedOut { .. } => None,
    };
    let accepted = task.accepted == Some((key.attempt, key.nonce));
    Ok(Found { index, state, lease, accepted })
}

/// A run that can still be acted on: neither ended nor ending.
fn open<'t>(txn: &'t Txn<'_>) -> Result<&'t RunState, Refusal> {
    let state = txn.state().ok_or(Refusal::NoRun)?;
    match state.ending {
        _ if state.status.is_terminal() => Err(Refusal::Ended(state.status)),
        Some(ending) => Err(Refusal::Ending(ending.status)),
        None => Ok(state),
    }
}

/// Finds the lease a token is for; anything else is stale.
fn held<'t>(txn: &'t Txn<'_>, key: &AttemptKey) -> Result<(u32, &'t Lease), Refusal> {
    let found = find(txn, key)?;
    found.lease.map(|lease| (found.index, lease)).ok_or(Refusal::Stale)
}

impl Found<'_> {
    /// The failure that was recorded for this attempt, if it failed.
    fn failure(&self, attempt: u32) -> Option<&Failure> {
        let of = |f: &&Failure| f.task == Some(self.index) && f.attempt == attempt;
        self.state.failures.iter().rev().find(of)
    }
}

#[cfg(test)]
mod tests;
