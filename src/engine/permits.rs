//! Limits on work: what a task with `concurrency` or `rate` does before it goes on. Slots and rates are kept in home
//! records (`model::home`), which are told by messages.
//!
//! ```text
//! concurrency   Acquire ──→ home, which calls back: Permitted ──→ the node goes on     ends ──→ Release
//! rate          Take ──→ home ──→ answer: from when on the next attempt may start
//! ```
//!
//! Invariants
//! - A node has a permit from when it would have begun to its end, over all attempts, and goes on only once that was
//!   granted. Nothing but [`settle`] tells homes of it: what was asked for and is not wanted any more (the node has
//!   ended, in whatever way, or begins anew) is given back by the commit that makes it so.
//! - A grant is taken by the node that wants just this one, and by no other; its home hears when there is none.
//! - A run asks for a few slots at a time, so that a wide map neither fills a home nor makes its own record large.

use super::graph::Cascade;
use super::limits::{ASKED_MAX, PERMIT_LOOK, RATE_LATE, REDELIVER};
use super::scope::View;
use super::step::{Step, Words, clip};
use crate::model::command::{Command, HomeCommand};
use crate::model::event::EventKind;
use crate::model::expr::Template;
use crate::model::home::{Bucket, Claim, Semaphore};
use crate::model::outbox::{Delivery, Parcel};
use crate::model::plan::{LIMIT_KEY_MAX, Plan, TaskPlan};
use crate::model::run::{Entry, Errand, Permit, RunState, RunStatus, TaskPhase, TaskState, Waiting};
use crate::model::time::Timestamp;
use std::cmp::Reverse;

fn task_plan<'p>(state: &RunState, plan: &'p Plan, node: u32) -> Option<&'p TaskPlan> {
    plan.tasks.get(state.plan_index(node) as usize)
}

/// What asks for a node's slot; `ticket` is the number of the message.
pub(super) fn acquire(state: &RunState, plan: &Plan, node: u32, ticket: u32) -> Option<Parcel> {
    let permit = state.tasks.get(node as usize)?.permit.as_ref()?;
    let task = task_plan(state, plan, node)?;
    Some(Parcel::Command(Command::Home(HomeCommand::Acquire {
        key: permit.key.clone(),
        limit: task.concurrency.as_ref()?.limit,
        claim: Claim { run: state.id.clone(), ticket },
        task: state.path_of(plan, node),
        score: super::score(state, task),
    })))
}

/// What gives a slot back.
pub(super) fn release(state: &RunState, ticket: u32) -> Parcel {
    let claim = Claim { run: state.id.clone(), ticket };
    Parcel::Command(Command::Home(HomeCommand::Release { claim }))
}

/// What asks when a node's next attempt may start.
pub(super) fn take(state: &RunState, plan: &Plan, node: u32) -> Option<Parcel> {
    let TaskPhase::Waiting(Waiting::Rate { key, .. }) = &state.tasks.get(node as usize)?.phase else {
        return None;
    };
    let rate = task_plan(state, plan, node)?.rate.as_ref()?;
    let (limit, per) = (rate.limit, rate.per);
    Some(Parcel::Command(Command::Home(HomeCommand::Take { key: key.clone(), limit, per })))
}

/// Ends a decision: homes are told what has changed of what is held and wanted since `base`.
pub(super) fn settle(plan: &Plan, base: Option<&RunState>, state: &mut RunState) {
    if !plan.is_limited() {
        return;
    }
    let over = state.status.is_terminal();
    let done = |t: &TaskState| t.permit.is_some() && (over || t.phase.is_terminal());
    let done: Vec<usize> = (0..).zip(&state.tasks).filter(|(_, t)| done(t)).map(|(i, _)| i).collect();
    for i in done {
        state.tasks[i].permit = None;
    }
    if outbox_is_new(state) {
        // A run that is deleted and comes again must not be taken for the one before by a late message.
        state.outbox.last = state.created_at.0 as u32 & 0x00ff_ffff;
    }
    let RunState { tasks, outbox, .. } = state;
    // What nobody waits for the answer of is not asked any more.
    outbox.pending.retain(|number, message| match message.what {
        Errand::Acquire { node } => {
            let permit = tasks.get(node as usize).and_then(|t| t.permit.as_ref());
            permit.is_some_and(|p| p.ticket == *number)
        }
        Errand::Take { node } => {
            let phase = tasks.get(node as usize).map(|t| &t.phase);
            matches!(phase, Some(TaskPhase::Waiting(Waiting::Rate { ticket, .. })) if ticket == number)
        }
        Errand::Start { .. } | Errand::Order(_) | Errand::Ended | Errand::Release { .. } => true,
    });
    // Tickets are given here only, so whatever was asked for stands in the state before.
    for (_, was, is) in tasks.unlike(base.map(|b| &b.tasks)) {
        if let Some(permit) = was.and_then(|w| w.permit.as_ref()).filter(|p| p.ticket != 0)
            && is.permit.as_ref().is_none_or(|p| p.ticket != permit.ticket)
        {
            outbox.push(Semaphore::home(&permit.key), Errand::Release { ticket: permit.ticket });
        }
    }
    if !over && state.status != RunStatus::Paused {
        ask_for_slots(plan, state);
        ask_for_rates(plan, state);
    }
}

/// Whether a run that asks for something has never told anybody anything.
fn outbox_is_new(state: &RunState) -> bool {
    let limited =
        |t: &TaskState| t.permit.is_some() || matches!(t.phase, TaskPhase::Waiting(Waiting::Rate { .. }));
    state.outbox.last == 0 && state.tasks.iter().any(limited)
}

/// Those of `nodes` (in their order) that ask next, urgent tasks first; so many were asked for already.
fn next(plan: &Plan, state: &RunState, mut nodes: Vec<u32>, asked: usize) -> Vec<u32> {
    if asked >= ASKED_MAX {
        return Vec::new();
    }
    let urgent = |n: &u32| Reverse(task_plan(state, plan, *n).map_or(0, |t| t.priority));
    nodes.sort_by_key(|n| (urgent(n), *n));
    nodes.truncate(ASKED_MAX.saturating_sub(asked));
    nodes
}

fn ask_for_slots(plan: &Plan, state: &mut RunState) {
    let now = state.last_time;
    let (mut asked, mut waiting) = (0, Vec::new());
    for (i, task) in (0..).zip(&state.tasks) {
        let TaskPhase::Waiting(Waiting::Permit { ask_at, .. }) = &task.phase else { continue };
        match &task.permit {
            Some(p) if p.ticket != 0 => asked += usize::from(!p.granted),
            Some(_) if *ask_at <= now => waiting.push(i),
            Some(_) | None => {}
        }
    }
    for i in next(plan, state, waiting, asked) {
        let Some(task) = state.tasks.get_mut(i as usize) else { continue };
        if let (Some(permit), TaskPhase::Waiting(Waiting::Permit { ask_at, .. })) =
            (&mut task.permit, &mut task.phase)
        {
            permit.ticket = state.outbox.push(Semaphore::home(&permit.key), Errand::Acquire { node: i });
            *ask_at = now.plus(PERMIT_LOOK);
        }
    }
}

fn ask_for_rates(plan: &Plan, state: &mut RunState) {
    let (mut asked, mut waiting) = (0, Vec::new());
    for (i, task) in (0..).zip(&state.tasks) {
        match task.phase {
            TaskPhase::Waiting(Waiting::Rate { ticket: 0, .. }) => waiting.push(i),
            TaskPhase::Waiting(Waiting::Rate { due: None, .. }) => asked += 1,
            _ => {}
        }
    }
    for i in next(plan, state, waiting, asked) {
        let phase = state.tasks.get_mut(i as usize).map(|t| &mut t.phase);
        if let Some(TaskPhase::Waiting(Waiting::Rate { key, ticket, .. })) = phase {
            *ticket = state.outbox.push(Bucket::home(key), Errand::Take { node: i });
        }
    }
}

impl Step<'_> {
    /// A node has to have a slot before it goes on.
    pub(super) fn wait_for_permit(&mut self, i: u32, entry: Entry, cascade: &mut Cascade) {
        // Asked for when this decision ends.
        let ask_at = self.now;
        self.task_mut(i).phase = TaskPhase::Waiting(Waiting::Permit { entry, ask_at });
        self.log_limited(i);
        cascade.advance(i);
    }

    /// Whether a node waits for a slot of its own before it may go on.
    pub(super) fn lacks_permit(&self, i: u32) -> bool {
        self.plan_of(i).concurrency.is_some() && !self.task(i).permit.as_ref().is_some_and(|p| p.granted)
    }

    /// Whether a node that waits for a slot has something to do by itself.
    pub(super) fn has_permit_to_use(&self, i: u32) -> bool {
        self.work.state.status != RunStatus::Paused && self.task(i).permit.as_ref().is_none_or(|p| p.granted)
    }

    /// Lets a node that waits for a slot look up its key, or go on with the slot it has.
    pub(super) fn advance_permit(&mut self, i: u32, entry: Entry, cascade: &mut Cascade) {
        if !self.has_permit_to_use(i) || self.is_spent() {
            return;
        }
        if self.task(i).permit.is_some() {
            return match entry {
                Entry::First => self.begin_body(i, cascade),
                Entry::Again { from } => self.enter_again(i, from, cascade),
            };
        }
        let Some(concurrency) = &self.plan_of(i).concurrency else { return self.begin_body(i, cascade) };
        if let Some(key) = self.limit_key(i, "concurrency.key", &concurrency.key, cascade) {
            if let Some(around) = self.around_with(i, &key) {
                let message = format!(
                    "tasks.{}.concurrency.key came to {:?}, of which {} around it has a slot: it would wait for what waits for it",
                    self.path(i),
                    clip(&key, 64),
                    self.path(around)
                );
                return self.fail_task(i, &Words::new("nested_limit_key", message), cascade);
            }
            self.task_mut(i).permit = Some(Box::new(Permit { key, ticket: 0, granted: false }));
        }
    }

    /// What stands around a node and has a slot under this key.
    fn around_with(&self, i: u32, key: &str) -> Option<u32> {
        let owner = |n: u32| self.work.state.block_of(n).and_then(|b| b.owner);
        let has = |n: &u32| self.task(*n).permit.as_ref().is_some_and(|p| p.key == key);
        std::iter::successors(owner(i), |n| owner(*n)).find(has)
    }

    /// The key of a limit. None: the node has failed, or payloads are missing.
    fn limit_key(&mut self, i: u32, at: &str, key: &Template, cascade: &mut Cascade) -> Option<String> {
        let what = || format!("tasks.{}.{at}", self.path(i));
        let halt = match self.evaluate(View::of(i), Some(key), what, "value_too_large") {
            Ok(value) => match key_of(&value.json) {
                Ok(key) => return Some(key),
                Err(why) => {
                    let shown = String::from_utf8_lossy(&value.json);
                    let message = format!("{} came to {}: {why}", what(), clip(&shown, 64));
                    Words::new("invalid_limit_key", message).into()
                }
            },
            Err(halt) => halt,
        };
        self.halt(i, halt, cascade);
        None
    }

    /// Asks once more for a slot of which nothing was heard, as a store that has lost its tail may not know of it.
    pub(super) fn ask_for_permit_again(&mut self, i: u32) {
        let look = self.now.plus(PERMIT_LOOK);
        let state = &mut self.work.state;
        let Some(task) = state.tasks.get_mut(i as usize) else { return };
        let (Some(permit), TaskPhase::Waiting(Waiting::Permit { ask_at, .. })) =
            (&task.permit, &mut task.phase)
        else {
            return;
        };
        let ticket = permit.ticket;
        if ticket == 0 {
            return; // Asked for when this decision ends.
        }
        *ask_at = look;
        let to = Semaphore::home(&permit.key);
        if !state.outbox.pending.contains_key(&ticket)
            && let Some(parcel) = acquire(state, self.plan, i, ticket)
        {
            self.work.asks.push(Delivery { sequence: ticket, to, parcel });
        }
    }

    /// A node's home has no room for it: it asks again a little later.
    pub(super) fn turned_away(&mut self, i: u32, ticket: u32) {
        let again = self.now.plus(REDELIVER);
        let Some(task) = self.work.state.tasks.get_mut(i as usize) else { return };
        if let (Some(permit), TaskPhase::Waiting(Waiting::Permit { ask_at, .. })) =
            (&mut task.permit, &mut task.phase)
            && permit.ticket == ticket
            && !permit.granted
        {
            permit.ticket = 0;
            *ask_at = again;
            self.want(again);
        }
    }

    /// Asks when the next attempt may start, if the task has a rate. False: at once.
    pub(super) fn wait_for_rate(&mut self, i: u32, cascade: &mut Cascade) -> bool {
        let Some(rate) = &self.plan_of(i).rate else { return false };
        if let Some(key) = self.limit_key(i, "rate.key", &rate.key, cascade) {
            self.task_mut(i).phase = TaskPhase::Waiting(Waiting::Rate { key, ticket: 0, due: None });
            self.log_limited(i);
        }
        true
    }

    /// When a node's next attempt may start.
    pub(super) fn rate_granted(&mut self, i: u32, number: u32, at: Timestamp, cascade: &mut Cascade) {
        if let Some(task) = self.work.state.tasks.get_mut(i as usize)
            && let TaskPhase::Waiting(Waiting::Rate { ticket, due, .. }) = &mut task.phase
            && *ticket == number
        {
            *due = Some(at);
            cascade.advance(i);
        }
    }

    /// Starts an attempt that waits for its time, if that has come.
    pub(super) fn advance_rate(&mut self, i: u32, due: Option<Timestamp>, cascade: &mut Cascade) {
        match due {
            _ if self.work.state.status == RunStatus::Paused => {}
            None => {}
            Some(due) if due > self.now => self.want(due),
            // Many whose time came while nobody looked must not start together.
            Some(due) if due.plus(RATE_LATE) < self.now => self.ask_for_rate_again(i),
            Some(_) => self.start_attempt(i, cascade),
        }
    }

    /// Drops the time at which an attempt might have started, and asks for another.
    pub(super) fn ask_for_rate_again(&mut self, i: u32) {
        if let TaskPhase::Waiting(Waiting::Rate { ticket, due, .. }) = &mut self.task_mut(i).phase {
            (*ticket, *due) = (0, None);
        }
    }

    /// Appends that a node waits for a limit.
    fn log_limited(&mut self, i: u32) {
        self.log_task(EventKind::TaskWaiting, i, None, None);
        if let Some(entry) = self.work.state.log.last_mut() {
            entry.delivery = 1;
        }
    }
}

/// A key as text: a number or boolean as it stands there.
fn key_of(json: &[u8]) -> Result<String, String> {
    let key = match json.first() {
        Some(b'"') => serde_json::from_slice::<String>(json).ok(),
        Some(b'[' | b'{' | b'n') | None => None,
        Some(_) => std::str::from_utf8(json).ok().map(str::to_owned),
    };
    match key.map(|k| (k.len(), k)) {
        Some((1..=LIMIT_KEY_MAX, key)) => Ok(key),
        Some((len, _)) => Err(format!("a key has 1 to {LIMIT_KEY_MAX} bytes, but this has {len}")),
        None => Err("a key is text, a number or a boolean".to_owned()),
    }
}
