//! Layer 1: the pure engine. (plan, run state, command, time) → decision. No async, clock, randomness,
//! I/O or logs; ordered maps only; time and randomness come in as values; every effect is data.

use crate::model::command::{Command, Outcome, Refusal};
use crate::model::commit::RunWrite;
use crate::model::ids::{Nonce, Prefix, SessionId, TaskPath, TaskType};
use crate::model::payload::Field;
use crate::model::plan::Plan;
use crate::model::run::RunState;
use crate::model::time::{LeaseTime, Timestamp};
use bytes::Bytes;

/// What a decision may look at besides the run.
#[derive(Debug, Clone, Copy)]
pub struct Env {
    /// The store's clock. The engine never lets a run's time go back below its last.
    pub now: Timestamp,
    /// The lease clock of the run's partition.
    pub lease_now: LeaseTime,
    /// Names the commit this decision will be; becomes part of the prefix and of every token leased by it.
    pub nonce: Nonce,
    /// Randomness for jitter.
    pub random: u64,
}

/// Payloads of the run that are at hand.
pub trait Payloads {
    /// The JSON text of a stored field, if it is at hand.
    fn get(&self, field: &Field) -> Option<Bytes>;
}

/// Why a command did not go through.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stop {
    /// Refused; nothing changed.
    Refused(Refusal),
    /// These payloads must be at hand first; throw the transaction away, load them, begin again.
    NeedPayloads(Vec<Field>),
}

/// A task this transaction queued and nobody has leased yet: a candidate for direct hand-over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadyTask {
    /// Its path.
    pub path: TaskPath,
    /// Its type.
    pub task_type: TaskType,
    /// Its generation.
    pub generation: u32,
    /// Its place: lower is earlier.
    pub score: i64,
}

/// A lease that ended otherwise than by its holder's result: the worker is told to stop.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Revoked {
    /// Who held it.
    pub session: SessionId,
    /// Its token, encoded.
    pub token: String,
}

/// What a transaction comes to.
#[derive(Debug)]
pub struct Decision {
    /// The run after it; none if it is deleted.
    pub state: Option<RunState>,
    /// The prefix after it.
    pub prefix: Prefix,
    /// What the store is to write.
    pub write: RunWrite,
    /// Workers to tell.
    pub revoked: Vec<Revoked>,
}

/// One decision in the making: commands are applied one after another to a working copy.
#[allow(missing_debug_implementations, reason = "holds borrowed payload sources")]
pub struct Txn<'a> {
    plan: &'a Plan,
    env: Env,
    payloads: &'a dyn Payloads,
}

impl<'a> Txn<'a> {
    /// On a run that does not exist: only `Start` is taken.
    pub fn absent(plan: &'a Plan, payloads: &'a dyn Payloads, env: Env) -> Self {
        Self { plan, env, payloads }
    }

    /// On `state`, as read under `prefix`.
    pub fn existing(
        plan: &'a Plan,
        state: &RunState,
        prefix: Prefix,
        payloads: &'a dyn Payloads,
        env: Env,
    ) -> Self {
        let _ = (state, prefix);
        Self { plan, env, payloads }
    }

    /// Applies one command. A stop leaves the transaction as it was before the command.
    pub fn apply(&mut self, command: &Command) -> Result<Outcome, Stop> {
        let _ = (command, self.plan, self.env, self.payloads.get(&Field::new("i")));
        Err(Stop::Refused(Refusal::NoRun))
    }

    /// Tasks queued by this transaction and still queued, earliest first.
    pub fn ready(&self) -> Vec<ReadyTask> {
        Vec::new()
    }

    /// The payload fields whose bytes the input of this leased task is made of, and the input itself once they
    /// are at hand.
    pub fn input_of(&self, path: &TaskPath) -> Result<Bytes, Stop> {
        let _ = path;
        Err(Stop::Refused(Refusal::Unknown))
    }

    /// The decision; `None` if nothing changed.
    pub fn finish(self) -> Option<Decision> {
        None
    }
}
