//! Decisions on home records (`model::home`): like those on runs, pure, and committed by comparing.
//!
//! Invariants
//! - A command that is refused changes nothing.
//! - Every decision leaves the record with a wake-up; a record in which nothing stands any more is deleted.
//!
//! To add a kind: a file with `apply` (commands to a copy of the state, none: there is no record), `wake_at` and
//! `deliveries`, and its lines in the matches below.

mod bucket;
pub mod local;
pub(crate) mod schedule;
mod schedule_names;
mod semaphore;

use super::limits::IDLE_LOOK;
use super::{Decision, Env};
use crate::model::command::{Command, HomeCommand, Outcome, Refusal};
use crate::model::commit::{EventNote, Expect, RunWrite, WakeOp, Write};
use crate::model::home::{Home, HomeKind};
use crate::model::ids::{Prefix, RunId};
use crate::model::outbox::{Answer, Delivery};
use crate::model::payload::Field;
use crate::model::record;
use crate::model::schedule::{ScheduleCommand, ScheduleRefusal, ScheduleState};
use crate::model::time::Timestamp;
use bytes::Bytes;

/// What a command may look at and leave beside the state.
#[derive(Debug)]
pub(super) struct Around<'a> {
    /// The record's id.
    pub(super) id: &'a RunId,
    /// The store's clock.
    pub(super) now: Timestamp,
    /// Randomness.
    pub(super) random: u64,
    /// Payload fields that are written with it.
    pub(super) written: Vec<(Field, Bytes)>,
    /// Asked beside the outbox.
    pub(super) asks: Vec<Delivery>,
}

/// What a home record is told.
#[derive(Debug, Clone, Copy)]
pub(super) enum Told<'a> {
    /// A command of its kind.
    Command(&'a HomeCommand),
    /// Its wake-up is due.
    Wake,
    /// A message of its own was answered.
    Settled(u32, &'a Answer),
}

/// One decision on a home record in the making.
#[derive(Debug)]
pub struct HomeTxn<'a> {
    kind: Option<HomeKind>,
    base: Option<(&'a Home, Prefix)>,
    env: Env,
    state: Option<Home>,
    around: Around<'a>,
    /// The store has moved the wake-up, and it has to be set anew.
    woken: bool,
}

impl<'a> HomeTxn<'a> {
    /// On a record as read under its prefix; none if it does not exist.
    pub fn new(id: &'a RunId, base: Option<(&'a Home, Prefix)>, env: Env) -> Self {
        let around = Around { id, now: env.now, random: env.random, written: Vec::new(), asks: Vec::new() };
        let state = base.map(|(home, _)| home.clone());
        Self { kind: id.home_kind(), base, env, state, around, woken: false }
    }

    /// Applies one command.
    pub fn apply(&mut self, command: &Command) -> Result<Outcome, Refusal> {
        let told = match command {
            Command::Home(command) => Told::Command(command),
            Command::Wake { .. } => {
                self.woken = true;
                Told::Wake
            }
            Command::Settled { sequence, answer } => Told::Settled(*sequence, answer),
            // Commands to runs; no run has an id of this form.
            Command::Start(_)
            | Command::Lease(_)
            | Command::Complete { .. }
            | Command::Fail { .. }
            | Command::Release { .. }
            | Command::Undelivered { .. }
            | Command::Acked { .. }
            | Command::Heartbeat { .. }
            | Command::Adopt { .. }
            | Command::Cancel { .. }
            | Command::Pause
            | Command::Resume
            | Command::Signal { .. }
            | Command::Retry
            | Command::Rerun { .. }
            | Command::Act { .. }
            | Command::Delete { .. }
            | Command::Order { .. }
            | Command::ChildEnded { .. }
            | Command::Permitted { .. } => return Err(Refusal::NoRun),
        };
        let around = &mut self.around;
        match (self.kind, self.state.take()) {
            (Some(HomeKind::Semaphore), state) => {
                let mut state = state.and_then(|h| if let Home::Semaphore(s) = h { Some(s) } else { None });
                let outcome = semaphore::apply(&mut state, told, around);
                self.state = state.map(Home::Semaphore);
                outcome
            }
            (Some(HomeKind::Bucket), state) => {
                let mut state = state.and_then(|h| if let Home::Bucket(b) = h { Some(b) } else { None });
                let outcome = bucket::apply(&mut state, told, around);
                self.state = state.map(Home::Bucket);
                outcome
            }
            (Some(HomeKind::Schedule), state) => {
                let (outcome, state) = tell_schedule(state, told, around);
                self.state = state;
                outcome
            }
            (Some(HomeKind::ScheduleNames), state) => {
                let mut state =
                    state.and_then(|h| if let Home::ScheduleNames(n) = h { Some(n) } else { None });
                let outcome = schedule_names::apply(&mut state, told);
                self.state = state.map(Home::ScheduleNames);
                outcome
            }
            (None, state) => {
                self.state = state;
                Err(Refusal::NoRun)
            }
        }
    }

    /// The decision; none if nothing changed.
    pub fn finish(self) -> Option<Decision> {
        let Self { base, env, mut state, around, woken, .. } = self;
        let before = base.map(|(home, _)| home);
        let same = before == state.as_ref();
        if same && !(woken && state.is_some()) {
            return None;
        }
        let version = base.map_or(0, |(_, prefix)| prefix.version()).saturating_add(1);
        let prefix = Prefix::new(version, env.nonce);
        let event = state.as_ref().and_then(|home| note(around.id, home, before));
        if let Some(Home::Schedule(state)) = &mut state {
            schedule::trim(state);
        }
        let write = match &state {
            Some(home) => {
                let mut bytes = prefix.0.to_vec();
                record::homes::encode_into(home, &mut bytes);
                Write::Put(bytes.into())
            }
            None => Write::Delete,
        };
        let deliveries = state.as_ref().map(|home| deliveries(home, before.filter(|_| !woken)));
        let write = RunWrite {
            run: around.id.clone(),
            expect: base.map_or(Expect::Absent, |(_, prefix)| Expect::Prefix(prefix)),
            wake: state.as_ref().map_or(WakeOp::Remove, |home| WakeOp::Set(wake_at(home, env.now))),
            retain_until: state.is_none().then_some(None),
            write,
            payloads: around.written,
            queue: Vec::new(),
            index: None,
            event,
            of: None,
        };
        let deliveries = deliveries.into_iter().flatten().chain(around.asks).collect();
        Some(Decision { state: None, home: state, prefix, write, revoked: Vec::new(), deliveries })
    }
}

/// Has a home ask those of which it holds that they hold a slot, or are open, when it is looked at next. False: there are
/// none, and it is as it was.
pub fn ask_anew(home: &mut Home, now: Timestamp) -> bool {
    match home {
        Home::Semaphore(semaphore) => semaphore::suspect_all(semaphore, now),
        Home::Schedule(schedule) if !schedule.open.is_empty() => {
            schedule.ask_at = Some(now);
            true
        }
        Home::Schedule(_) | Home::Bucket(_) | Home::ScheduleNames(_) => false,
    }
}

/// When a record has to be looked at next.
pub(super) fn wake_at(home: &Home, now: Timestamp) -> Timestamp {
    match home {
        Home::Semaphore(semaphore) => semaphore::wake_at(semaphore, now),
        Home::Bucket(bucket) => bucket.paid_until,
        Home::Schedule(state) => schedule::wake_at(state, now),
        Home::ScheduleNames(_) => now.plus(IDLE_LOOK),
    }
}

/// The messages that may be delivered now and could not before; without `before`, all that may be.
fn deliveries(home: &Home, before: Option<&Home>) -> Vec<Delivery> {
    match home {
        Home::Semaphore(semaphore) => {
            let before = before.and_then(|h| if let Home::Semaphore(s) = h { Some(s) } else { None });
            semaphore::deliveries(semaphore, before)
        }
        Home::Schedule(state) => schedule::deliveries(state, before.and_then(schedule_in)),
        Home::Bucket(_) | Home::ScheduleNames(_) => Vec::new(),
    }
}

/// What the event stream tells of the change.
fn note(id: &RunId, home: &Home, before: Option<&Home>) -> Option<EventNote> {
    match home {
        Home::Semaphore(_) | Home::Bucket(_) | Home::ScheduleNames(_) => None,
        Home::Schedule(state) => {
            let mut new = schedule::new_firings(before.and_then(schedule_in), state).peekable();
            let first = new.peek()?.number;
            Some(EventNote { run: id.clone(), first, kinds: new.map(schedule::event_of).collect() })
        }
    }
}

fn schedule_in(home: &Home) -> Option<&ScheduleState> {
    match home {
        Home::Schedule(state) => Some(state),
        Home::Semaphore(_) | Home::Bucket(_) | Home::ScheduleNames(_) => None,
    }
}

/// Tells a schedule what has happened; returns it as it stands then.
fn tell_schedule(
    state: Option<Home>,
    told: Told<'_>,
    around: &mut Around<'_>,
) -> (Result<Outcome, Refusal>, Option<Home>) {
    let asked;
    let command = match told {
        Told::Command(HomeCommand::Schedule(command)) => command,
        Told::Command(
            HomeCommand::Acquire { .. }
            | HomeCommand::Release { .. }
            | HomeCommand::Take { .. }
            | HomeCommand::ListSchedule { .. }
            | HomeCommand::UnlistSchedule { .. },
        ) => return (Err(Refusal::NoRun), state),
        Told::Wake => &ScheduleCommand::Wake,
        Told::Settled(sequence, answer) => {
            asked = ScheduleCommand::Answered { sequence, answer: answer.clone() };
            &asked
        }
    };
    let before = state.as_ref().and_then(schedule_in);
    match schedule::apply(before, around.id, command, around.now, around.random) {
        Ok(changed) => {
            around.written.extend(changed.payloads);
            let home = changed.state.map(|state| Home::Schedule(Box::new(state)));
            (Ok(Outcome::Schedule(changed.outcome)), home)
        }
        // Whoever says so has nothing more to say to it.
        Err(ScheduleRefusal::NoSchedule) if !matches!(told, Told::Command(HomeCommand::Schedule(_))) => {
            (Err(Refusal::NoRun), state)
        }
        Err(refusal) => (Err(Refusal::Schedule(refusal)), state),
    }
}

#[cfg(test)]
mod tests;
