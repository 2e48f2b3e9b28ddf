//! What one record has to tell another. A record changes alone, in its own partition; what has to follow elsewhere
//! stands in its outbox, written by the same commit, until the other record has taken it.
//!
//! ```text
//! sender                          target
//! commit: change + message n  ──→ command, recognised when it comes again
//! commit: message n is gone  ←──  its answer
//! ```
//!
//! Invariants
//! - A message is delivered until it is answered: by the commit that made it, and again with every wake-up of the
//!   sender, which stays armed as long as anything is pending, also when the sender has ended.
//! - Messages to one target are delivered one after the other, in order.
//! - Whoever takes a message may be told it more than once, and knows it by its number or by what it names.
//!
//! To add a message: a variant in the sender's own enum (for runs `Errand`), its [`Parcel`], and the
//! sender's handling of each [`Answer`].

use super::command::{Command, Outcome, Refusal};
use super::ids::{RunId, TaskPath, WorkflowName};
use super::payload::Payload;
use super::time::{Span, Timestamp};
use std::collections::{BTreeMap, BTreeSet};

/// Messages of one record; `M` is what its kind of record says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outbox<M> {
    /// Number of the last message, from 1; 0 before the first. Numbers are never used again.
    pub last: u32,
    /// Those that were not answered yet, by number.
    pub pending: BTreeMap<u32, Message<M>>,
}

/// A message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message<M> {
    /// The run, or other record, it is for.
    pub to: RunId,
    /// What it says.
    pub what: M,
}

impl<M> Default for Outbox<M> {
    fn default() -> Self {
        Self { last: 0, pending: BTreeMap::new() }
    }
}

impl<M> Outbox<M> {
    /// Adds a message; returns its number.
    pub fn push(&mut self, to: RunId, what: M) -> u32 {
        self.last = self.last.saturating_add(1);
        self.pending.insert(self.last, Message { to, what });
        self.last
    }

    /// Whether every message was answered.
    pub fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    /// The first message to each target, by number: those that may be delivered now.
    pub fn due(&self) -> Vec<u32> {
        let mut targets = BTreeSet::new();
        self.pending.iter().filter(|(_, m)| targets.insert(&m.to)).map(|(n, _)| *n).collect()
    }

    /// Those that may be delivered now and could not before.
    pub fn due_since(&self, before: &Self) -> Vec<u32> {
        if self.pending.is_empty() {
            return Vec::new();
        }
        let known: BTreeSet<u32> = before.due().into_iter().collect();
        self.due().into_iter().filter(|n| !known.contains(n)).collect()
    }
}

/// A message on its way.
#[derive(Debug, Clone, PartialEq)]
pub struct Delivery {
    /// Its number in the sender's outbox, by which it is answered.
    pub sequence: u32,
    /// Whom it is for.
    pub to: RunId,
    /// What is to be done there.
    pub parcel: Parcel,
}

/// What a delivery does to its target.
#[derive(Debug, Clone, PartialEq)]
#[expect(
    clippy::large_enum_variant,
    reason = "it is moved once; a box would be an allocation for each message"
)]
pub enum Parcel {
    /// Starts it.
    Start(Box<StartFor>),
    /// This command.
    Command(Command),
    /// Tells it that the sender, a run it has started, has ended.
    Ended(Box<EndedRun>),
    /// Asks whether it, a run, is still open: if not, the answer is [`Answer::Gone`].
    IsOpen,
}

/// A run to be started on behalf of another record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StartFor {
    /// Of which workflow.
    pub workflow: WorkflowName,
    /// Which version; none is the newest when the message is taken.
    pub version: Option<u32>,
    /// Its input, a payload of the sender.
    pub input: Payload,
    /// Its tags, over those of the document.
    pub tags: BTreeMap<String, String>,
    /// Its priority in place of that of the document.
    pub priority: Option<i32>,
    /// How long it is kept when it has ended, in place of what its document says. A schedule asks for none.
    pub retention: Option<Span>,
    /// What it is told to remember of who started it.
    pub origin: Origin,
}

/// How a run ended, for the one that started it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndedRun {
    /// Who started it.
    pub origin: Origin,
    /// How it ended.
    pub status: super::run::RunStatus,
    /// What it came to, a payload of the run.
    pub output: Payload,
    /// The code and message of its error.
    pub error: Option<(String, String)>,
}

/// How a message was taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// It was done, now or before, or there is nothing left that it could be done to.
    Done,
    /// There is no such run.
    Gone,
    /// It can never be done, and why: a stable word, and text for people.
    Refused {
        /// As of a failure.
        code: String,
        /// As of a failure.
        message: String,
    },
    /// It is granted from this time on.
    Granted {
        /// Wall clock.
        at: Timestamp,
    },
}

impl Answer {
    /// What the outcome of a message's command says to its sender; none: the message has to come again.
    pub fn to(outcome: &Result<Outcome, Refusal>) -> Option<Self> {
        let refusal = match outcome {
            Ok(Outcome::Granted { at }) => return Some(Self::Granted { at: *at }),
            Ok(_) => return Some(Self::Done),
            Err(refusal) => refusal,
        };
        match refusal {
            Refusal::NoRun => Some(Self::Gone),
            Refusal::TooLate => None,
            // Asked again by whoever waits, so that nothing behind it in its outbox does.
            Refusal::Full => Some(Self::Refused { code: "full".to_owned(), message: refusal.to_string() }),
            Refusal::IdTaken => Some(Self::Refused {
                code: "run_id_taken".to_owned(),
                message: "a run that somebody else has started has the id of the one to be started"
                    .to_owned(),
            }),
            Refusal::Stale
            | Refusal::Unknown
            | Refusal::Ended(_)
            | Refusal::Ending(_)
            | Refusal::NothingToRetry
            | Refusal::TaskEnded(_)
            | Refusal::TaskRunning
            | Refusal::IterationPassed
            | Refusal::AroundSkipped(_)
            | Refusal::NoTask
            | Refusal::TooManySignals(_)
            | Refusal::Telling
            | Refusal::Schedule(_)
            | Refusal::NotEnded(_) => Some(Self::Done),
        }
    }
}

/// Who started a run, if it was not a caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// A task of another run.
    Parent(Parent),
    /// A schedule.
    Schedule {
        /// The record of the schedule.
        home: RunId,
        /// The time it was due.
        slot: Timestamp,
    },
}

/// The task that a run was started for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parent {
    /// Its run.
    pub run: RunId,
    /// Where it stands there.
    pub task: TaskPath,
    /// Number of the message that started this run or began its last try: the parent knows the end it waits for by it.
    pub ticket: u32,
    /// Number of the last message of the parent that was taken: no later one is older.
    pub heard: u32,
    /// How many runs are above this one, at least 1.
    pub depth: u32,
    /// The parent does not wait for it.
    pub detached: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_to_one_target_go_one_after_the_other() {
        let run = |name: &str| RunId::new(name).unwrap();
        let mut outbox = Outbox::default();
        assert_eq!(outbox.push(run("a"), 'x'), 1);
        assert_eq!(outbox.push(run("b"), 'x'), 2);
        let before = outbox.clone();
        assert_eq!(outbox.push(run("a"), 'y'), 3);
        assert_eq!(outbox.due(), [1, 2]);
        assert!(outbox.due_since(&before).is_empty());
        let before = outbox.clone();
        outbox.pending.remove(&1);
        assert_eq!(outbox.due_since(&before), [3]);
        assert_eq!(outbox.push(run("a"), 'z'), 4, "a number is never used again");
    }
}
