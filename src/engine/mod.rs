//! Layer 1: the pure engine. (plan, run state, commands, time) → decision. No async, clock, randomness,
//! I/O or logs; ordered maps only; time and randomness come in as values; every effect is data.
//!
//! ```text
//! commands/   one file per command: judge it on the state, then change the working copy
//! step        the working copy and its smallest changes: log, failures, queueing, leases that end
//! graph       readiness, joins, skips, fail fast; the work list by which one end leads to others
//! begin       what each kind of task does when it is its turn
//! bodies      what goes on inside a task: groups, maps, loops
//! children    runs that are started for a task, and what parent and child tell each other
//! permits     limits on work: `concurrency` and `rate`
//! ending      the end of a run: verdict, compensation, `finally`
//! again       another try of an ended run
//! retry       what follows a failed attempt
//! wake        what has a time, and when the run has to be looked at next
//! scope       what expressions see; templates to payloads
//! history     attempts and events told from the log
//! homes/      records that are no runs: slots of concurrency keys, rates, schedules
//! standing    what stands beside a record, from the record alone
//! ```
//!
//! Invariants
//! - A command that is refused changes nothing. One that stops for payloads leaves a transaction that is of no use
//!   any more: its commands are applied anew once they are at hand.
//! - Every fact is one entry in the log, appended with the change it tells of; times never go back.
//! - A task waits in a queue exactly while it is `Queued`: its entry is added and removed by the commits
//!   that make it so, and no other.
//! - The run's wake-up is never later than the earliest thing in it that has a time.
//! - Work per completion is O(its dependents); nothing recurses along the graph.
//!
//! To add a command: a variant in `model::command`, a file in `commands/` that begins with everything that
//! can be refused, a line in `commands::apply`, and the command in the property test's generator.

mod again;
mod begin;
mod bodies;
pub(crate) mod children;
mod commands;
mod ending;
mod graph;
pub mod history;
pub mod homes;
#[cfg(test)]
mod language;
pub mod limits;
mod payload;
mod permits;
#[cfg(test)]
mod properties;
mod retry;
mod scope;
pub mod standing;
mod step;
#[cfg(test)]
mod testing;
mod wake;

use crate::model::command::{Command, Outcome, Refusal};
use crate::model::commit::EventNote;
use crate::model::commit::{Expect, QueueEntry, QueueOp, RunWrite, WakeOp, Write};
use crate::model::home::Home;
use crate::model::ids::{Nonce, Partition, Prefix, SessionId, TaskPath};
use crate::model::labels::QueueName;
use crate::model::outbox::Delivery;
use crate::model::payload::Field;
use crate::model::plan::{Plan, TaskPlan};
use crate::model::record;
use crate::model::run::{RunState, TaskPhase};
use crate::model::time::{LeaseTime, Span, Timestamp};
use bytes::Bytes;
use step::{Step, Work};

/// What a decision may look at besides the run.
#[derive(Debug, Clone, Copy)]
pub struct Env {
    /// The store's clock. The engine never lets a run's time go back below its last.
    pub now: Timestamp,
    /// The lease clock of the run's partition.
    pub lease_now: LeaseTime,
    /// The run's partition, which tokens name.
    pub partition: Partition,
    /// Names the commit this decision will be; becomes part of the prefix and of every token leased by it.
    pub nonce: Nonce,
    /// Randomness for jitter.
    pub random: u64,
    /// How long a worker session lives without a sign of life, and so how soon a run looks at the sessions that hold its
    /// attempts (a look that comes early finds nothing and arms again).
    pub lease: Span,
    /// A lease whose worker has not said for so long that it has the task is of a delivery that was lost, however alive
    /// its session is (lease clock). Longer than any server takes to keep an acknowledgement, or to return what got none.
    pub unacked: Span,
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

impl From<Refusal> for Stop {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

/// A task this transaction queued and nobody has leased yet: a candidate for direct hand-over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadyTask {
    /// Its path.
    pub path: TaskPath,
    /// Its queue.
    pub queue: QueueName,
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
    /// The run after it; none if it is deleted, or no run.
    pub state: Option<RunState>,
    /// The home record after it; none if it is deleted, or a run.
    pub home: Option<Home>,
    /// The prefix after it.
    pub prefix: Prefix,
    /// What the store is to write.
    pub write: RunWrite,
    /// Workers to tell.
    pub revoked: Vec<Revoked>,
    /// What is to be told to other records.
    pub deliveries: Vec<Delivery>,
}

/// One decision in the making: commands are applied one after another to a working copy.
#[allow(missing_debug_implementations, reason = "holds borrowed payload sources")]
pub struct Txn<'a> {
    plan: &'a Plan,
    env: Env,
    payloads: &'a dyn Payloads,
    /// What the decision is made on; none if the run does not exist.
    base: Option<(&'a RunState, Prefix)>,
    /// The working copy, from the first command that changes something.
    work: Option<Work>,
    /// A command has stopped for payloads.
    void: bool,
}

/// Where a task of this run stands in its queue: lower is earlier. Milliseconds, so that a run waits for
/// those that started before it, moved a minute for each point of priority (run and task together, −100 to
/// 100). It never changes while the run lives: it ages by itself, and what comes back comes to the front.
pub fn score(run: &RunState, task: &TaskPlan) -> i64 {
    let priority = i64::from(run.priority).saturating_add(i64::from(task.priority)).clamp(-100, 100);
    let started = run.started_at.unwrap_or(run.created_at);
    started.as_millis().saturating_sub(60_000 * priority)
}

impl<'a> Txn<'a> {
    /// On a run that does not exist: only `Start` is taken.
    pub fn absent(plan: &'a Plan, payloads: &'a dyn Payloads, env: Env) -> Self {
        Self { plan, env, payloads, base: None, work: None, void: false }
    }

    /// On `state`, as read under `prefix`. It is copied only once a command changes it.
    pub fn existing(
        plan: &'a Plan,
        state: &'a RunState,
        prefix: Prefix,
        payloads: &'a dyn Payloads,
        env: Env,
    ) -> Self {
        Self { plan, env, payloads, base: Some((state, prefix)), work: None, void: false }
    }

    /// Applies one command. After a stop for payloads the transaction is void, and [`Self::finish`] gives nothing.
    ///
    /// `Delete` is the last command of a decision: after it, everything is refused with [`Refusal::NoRun`].
    pub fn apply(&mut self, command: &Command) -> Result<Outcome, Stop> {
        let result = commands::apply(self, command);
        self.void |= matches!(result, Err(Stop::NeedPayloads(_)));
        result
    }

    /// Tasks queued by this transaction and still queued, earliest first.
    pub fn ready(&self) -> Vec<ReadyTask> {
        let Some(state) = self.changed() else { return Vec::new() };
        let known = self.base_generation();
        let mut ready: Vec<ReadyTask> = Vec::new();
        for (i, _, task) in state.tasks.unlike(self.base.map(|(b, _)| &b.tasks)) {
            if let TaskPhase::Queued { generation, .. } = task.phase
                && generation > known
                && let Some(queue) = state.queue_of(self.plan, i)
            {
                ready.push(ReadyTask {
                    path: state.path_of(self.plan, i),
                    queue,
                    generation,
                    score: score(state, &self.plan.tasks[state.plan_index(i) as usize]),
                });
            }
        }
        ready.sort_by_key(|r| (r.score, r.generation));
        ready
    }

    /// The input (JSON text) of a task that this transaction or an earlier one leased. Stops for the payload
    /// it stands in if that is not at hand, and with [`Refusal::Unknown`] for a path that names no task.
    pub fn input_of(&self, path: &TaskPath) -> Result<Bytes, Stop> {
        let state = self.state().ok_or(Refusal::NoRun)?;
        let index = state.find(self.plan, path).ok_or(Refusal::Unknown)?;
        let task = state.tasks.get(index as usize).ok_or(Refusal::Unknown)?;
        let written = self.work.as_ref().map_or(&[][..], |w| &w.written);
        payload::resolve(&task.input, written, self.payloads).map_err(|f| Stop::NeedPayloads(vec![f]))
    }

    /// The decision; `None` if nothing changed.
    pub fn finish(self) -> Option<Decision> {
        let Self { plan, env, base, work, void, .. } = self;
        let work = work.filter(|_| !void)?;
        let run = work.state.id.clone();
        let version = base.map_or(0, |(_, prefix)| prefix.version()).saturating_add(1);
        let prefix = Prefix::new(version, env.nonce);
        let expect = base.map_or(Expect::Absent, |(_, prefix)| Expect::Prefix(prefix));
        if work.deleted {
            let write = RunWrite {
                run,
                expect,
                write: Write::Delete,
                payloads: Vec::new(),
                queue: Vec::new(),
                wake: WakeOp::Remove,
                index: None,
                retain_until: Some(None),
                event: None,
                of: None,
            };
            return Some(Decision {
                state: None,
                home: None,
                prefix,
                write,
                revoked: Vec::new(),
                deliveries: Vec::new(),
            });
        }
        let Work { mut state, mut written, revoked, mut wanted, rearm, redeliver, asks, .. } = work;
        state.last_time = state.last_time.max(env.now);
        permits::settle(plan, base.map(|(b, _)| b), &mut state);
        let ended = state.status.is_terminal();
        let nothing_to_tell = state.outbox.is_empty();
        if !nothing_to_tell {
            let again = state.last_time.plus(limits::REDELIVER);
            wanted = Some(wanted.map_or(again, |w| w.min(again)));
        }
        let wake = if ended && nothing_to_tell {
            state.armed = None;
            WakeOp::Remove
        } else {
            wake::arm(&mut state, wanted, rearm)
        };
        let first = base.map_or(0, |(b, _)| b.log.len());
        let new = state.log.len().saturating_sub(first);
        let event = (new > 0).then(|| EventNote {
            run: run.clone(),
            first: u32::try_from(first).unwrap_or(u32::MAX),
            kinds: state.log.iter_from(first).map(|e| e.kind).collect(),
        });
        let was_ended = base.is_some_and(|(b, _)| b.status.is_terminal());
        let retain_until = match state.kept_until() {
            Some(until) => Some(Some(until)),
            None => was_ended.then_some(None),
        };
        let deliveries = deliveries(plan, base.map(|(b, _)| b), &state, redeliver, asks);
        written.extend(record::lay_out(base.map(|(b, _)| b), &mut state, version));
        let mut bytes = Vec::with_capacity(512);
        bytes.extend_from_slice(&prefix.0);
        record::encode_into(&state, &mut bytes);
        let write = RunWrite {
            run,
            expect,
            write: Write::Put(bytes.into()),
            payloads: written,
            queue: queue_ops(plan, base.map(|(b, _)| b), &state),
            wake,
            index: base.is_none().then_some(state.created_at),
            retain_until,
            event,
            of: None,
        };
        Some(Decision { state: Some(state), home: None, prefix, write, revoked, deliveries })
    }

    /// The run as this transaction has it so far.
    fn state(&self) -> Option<&RunState> {
        match &self.work {
            Some(work) => (!work.deleted).then_some(&work.state),
            None => self.base.map(|(state, _)| state),
        }
    }

    fn changed(&self) -> Option<&RunState> {
        self.work.as_ref().filter(|w| !w.deleted).map(|w| &w.state)
    }

    fn base_generation(&self) -> u32 {
        self.base.map_or(0, |(b, _)| b.generation)
    }

    /// The time of this decision in this run: never before the last.
    fn now(&self) -> Timestamp {
        self.state().map_or(self.env.now, |s| s.last_time.max(self.env.now))
    }

    /// The working copy, to be changed. Nothing may be refused from here on.
    fn step(&mut self) -> Result<Step<'_>, Stop> {
        let now = self.now();
        if self.work.is_none() {
            let (state, _) = self.base.ok_or(Refusal::NoRun)?;
            self.work = Some(Work::on(state.clone()));
        }
        let work = self.work.as_mut().filter(|w| !w.deleted).ok_or(Refusal::NoRun)?;
        Ok(Step { plan: self.plan, env: self.env, now, payloads: self.payloads, work })
    }
}

/// The messages that may be delivered now and could not before; all of them, if they are to be delivered again.
fn deliveries(
    plan: &Plan,
    base: Option<&RunState>,
    state: &RunState,
    again: bool,
    asks: Vec<Delivery>,
) -> Vec<Delivery> {
    let due = match base.filter(|_| !again) {
        Some(base) => state.outbox.due_since(&base.outbox),
        None => state.outbox.due(),
    };
    let messages = due.into_iter().filter_map(|n| children::delivery(state, plan, n));
    messages.chain(asks).collect()
}

/// The difference between two states as queue operations. A task that was queued and leased in between
/// makes none.
fn queue_ops(plan: &Plan, base: Option<&RunState>, state: &RunState) -> Vec<QueueOp> {
    let mut ops = Vec::new();
    for (i, was, task) in state.tasks.unlike(base.map(|b| &b.tasks)) {
        let was = was.and_then(queued);
        let is = queued(task);
        if was == is {
            continue;
        }
        let path = state.path_of(plan, i);
        let entry = |generation| QueueEntry { run: state.id.clone(), path: path.clone(), generation };
        // The type it had is that under which it was queued.
        let queue_before = || base.and_then(|b| b.queue_of(plan, i));
        if let Some((generation, queue)) = was.and_then(|g| Some((g, queue_before()?))) {
            ops.push(QueueOp::Remove { queue, entry: entry(generation) });
        }
        if let Some((generation, queue)) = is.and_then(|g| Some((g, state.queue_of(plan, i)?))) {
            ops.push(QueueOp::Add {
                queue,
                entry: entry(generation),
                score: score(state, &plan.tasks[state.plan_index(i) as usize]),
            });
        }
    }
    ops
}

/// The generation of a task's queue entry, if it has one.
fn queued(task: &crate::model::run::TaskState) -> Option<u32> {
    match task.phase {
        TaskPhase::Queued { generation, .. } if generation > 0 => Some(generation),
        _ => None,
    }
}
