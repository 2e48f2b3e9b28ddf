//! Slots and rates in a rehearsal: their home records in memory, which no other run uses, asked and answered at once.

use super::Stage;
use crate::engine::Env;
use crate::engine::homes::local::Homes;
use crate::model::command::{Command, Outcome, Refusal};
use crate::model::ids::RunId;
use crate::model::outbox::{Answer, Delivery, Parcel};
use std::collections::VecDeque;

/// Home records, and messages to and from them that were not delivered yet.
#[derive(Debug, Default)]
pub(super) struct Limits {
    homes: Homes,
    /// Of the run.
    sent: VecDeque<Delivery>,
    /// Of home records, with which one.
    told: VecDeque<(RunId, Delivery)>,
    carrying: bool,
}

impl Limits {
    /// Takes what the run has to tell home records.
    pub(super) fn send(&mut self, deliveries: Vec<Delivery>) {
        self.sent.extend(deliveries);
    }
}

impl Stage<'_> {
    /// Carries messages until there are none left.
    pub(super) fn settle_limits(&mut self, env: Env) -> Result<(), String> {
        if std::mem::replace(&mut self.limits.carrying, true) {
            return Ok(()); // From within: what was sent meanwhile is carried by the one around.
        }
        let carried = self.carry_limits(env);
        self.limits.carrying = false;
        carried
    }

    fn carry_limits(&mut self, env: Env) -> Result<(), String> {
        loop {
            if let Some(Delivery { sequence, to, parcel: Parcel::Command(command) }) =
                self.limits.sent.pop_front()
            {
                let (outcome, told) = self.limits.homes.apply(&to, &command, env);
                self.limits.told.extend(told.into_iter().map(|d| (to.clone(), d)));
                self.decide(&[Command::Settled { sequence, answer: answer(&outcome) }])?;
            } else if let Some((home, Delivery { sequence, parcel: Parcel::Command(command), .. })) =
                self.limits.told.pop_front()
            {
                let outcome = self.decide(&[command])?.pop().unwrap_or(Err(Refusal::NoRun));
                let settled = Command::Settled { sequence, answer: answer(&outcome) };
                let (_, told) = self.limits.homes.apply(&home, &settled, env);
                self.limits.told.extend(told.into_iter().map(|d| (home.clone(), d)));
            } else {
                return Ok(());
            }
        }
    }
}

/// How a message was taken; nothing comes again here.
fn answer(outcome: &Result<Outcome, Refusal>) -> Answer {
    Answer::to(outcome).unwrap_or(Answer::Gone)
}
