//! What a schedule does. (state, command, time) → state; as everywhere in the engine, no clock and no I/O.
//!
//! ```text
//! due slots ──→ one by one: skipped, or into the queue ──→ as there is room: a start in the outbox
//!                                                          answered: a firing · its run ended: room again
//! ```
//!
//! Invariants
//! - A slot is passed (`next` moves on) by the same decision that queues it, starts it or tells why not: it fires once.
//! - Starts are named by their slot, so that one that is delivered again finds its run.
//! - With overlap `skip` or `queue` at most one run is open; a start counts from the moment it is in the outbox.
//! - At most [`STARTS_MAX`] starts are on their way; every list is bounded.
//! - What is taken for open is asked now and then whether it is: no schedule stands still for ever.
//! - A paused schedule starts nothing but what is asked for by hand.
//!
//! To add a command: a variant of [`ScheduleCommand`], its arm in [`apply`], a line in the property test.

#[cfg(test)]
mod tests;

use super::super::limits::{IDLE_LOOK, REDELIVER};
use super::super::payload::keep;
use crate::model::command::{Command, HomeCommand};
use crate::model::cron::Calendar;
use crate::model::event::EventKind;
use crate::model::home::ScheduleNames;
use crate::model::ids::RunId;
use crate::model::outbox::{Answer, Delivery, Origin, Outbox, Parcel, StartFor};
use crate::model::payload::{Field, Payload};
use crate::model::schedule::{
    BACKFILL_MAX, CatchUp, Definition, FIRINGS_MAX, Fate, Firing, GRACE, MANUAL_MAX, OPEN_MAX, Overlap,
    QUEUE_MAX, STARTS_MAX, ScheduleCommand, ScheduleErrand, ScheduleName, ScheduleOutcome, ScheduleRefusal,
    ScheduleState, SkipReason,
};
use crate::model::time::{Span, Timestamp};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// What a decision makes of a schedule.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Changed {
    /// After it; none if it is deleted.
    pub(super) state: Option<ScheduleState>,
    /// Payloads to write.
    pub(super) payloads: Vec<(Field, Bytes)>,
    /// How the command was taken. [`ScheduleOutcome::Unchanged`] may still have passed slots.
    pub(super) outcome: ScheduleOutcome,
}

/// Open runs are asked this often whether they still are, so many at once.
const ASK_EVERY: Span = Span::secs(600);
const ASKS_MAX: usize = 8;

/// When a schedule has to be looked at next.
pub(super) fn wake_at(state: &ScheduleState, now: Timestamp) -> Timestamp {
    let slot = state.next.filter(|_| state.paused_since.is_none());
    let again = (!state.outbox.is_empty()).then(|| now.plus(REDELIVER));
    let ask = state.ask_at.filter(|_| !state.open.is_empty());
    [slot, again, ask].into_iter().flatten().min().unwrap_or_else(|| now.plus(IDLE_LOOK))
}

/// The messages that may be delivered now and could not before; without `before`, all that may be.
pub(super) fn deliveries(state: &ScheduleState, before: Option<&ScheduleState>) -> Vec<Delivery> {
    let due = match before {
        Some(before) => state.outbox.due_since(&before.outbox),
        None => state.outbox.due(),
    };
    let deliver = |sequence: u32| {
        let message = state.outbox.pending.get(&sequence)?;
        let parcel = match &message.what {
            ScheduleErrand::Start(start) => Parcel::Start(Box::new(start.clone())),
            ScheduleErrand::List => {
                let (name, created_at) = (state.name.clone(), state.created_at);
                Parcel::Command(Command::Home(HomeCommand::ListSchedule { name, created_at }))
            }
            ScheduleErrand::IsOpen => Parcel::IsOpen,
        };
        Some(Delivery { sequence, to: message.to.clone(), parcel })
    };
    due.into_iter().filter_map(deliver).collect()
}

/// The firings, and so the events, that `after` has and `before` has not.
pub(super) fn new_firings<'s>(
    before: Option<&ScheduleState>,
    after: &'s ScheduleState,
) -> impl Iterator<Item = &'s Firing> {
    let known = before.map_or(0, |b| b.told);
    after.firings.iter().filter(move |f| f.number >= known)
}

/// Forgets old firings, once the event stream knows of all.
pub(super) fn trim(state: &mut ScheduleState) {
    let over = state.firings.len().saturating_sub(FIRINGS_MAX);
    state.firings.drain(..over);
}

/// The event that tells of a firing.
pub(crate) fn event_of(firing: &Firing) -> EventKind {
    match firing.fate {
        Fate::Started => EventKind::ScheduleFired,
        Fate::Skipped | Fate::Refused => EventKind::ScheduleSkipped,
    }
}

/// Applies one command. `home` is the record of the schedule, which its runs remember; a new one begins to count its
/// messages at `random`.
///
/// # Errors
/// It is refused; nothing changed.
pub(super) fn apply(
    state: Option<&ScheduleState>,
    home: &RunId,
    command: &ScheduleCommand,
    now: Timestamp,
    random: u64,
) -> Result<Changed, ScheduleRefusal> {
    let mut payloads = Vec::new();
    if let ScheduleCommand::Put { name, definition, input, paused } = command {
        let definition = (**definition).clone();
        let Some(state) = state else {
            let mut state = create(name, definition, input.as_ref(), *paused, now, &mut payloads);
            // A schedule that is gone and comes again must not be taken for the one before by a late answer.
            state.outbox.last = (random as u32) >> 1;
            // Nor its events.
            state.told = (random >> 40) as u32;
            state.outbox.push(ScheduleNames::home(), ScheduleErrand::List);
            return Ok(Changed { state: Some(state), payloads, outcome: ScheduleOutcome::Created });
        };
        let mut work = Work::on(state, home, now);
        work.pass();
        let outcome = work.put(definition, input.as_ref(), *paused, &mut payloads);
        work.fill();
        return Ok(Changed { state: Some(work.done(state)), payloads, outcome });
    }
    let state = state.ok_or(ScheduleRefusal::NoSchedule)?;
    let mut work = Work::on(state, home, now);
    let outcome = match command {
        ScheduleCommand::Put { .. } => ScheduleOutcome::Unchanged, // Above.
        ScheduleCommand::Delete => {
            return Ok(Changed { state: None, payloads, outcome: ScheduleOutcome::Done });
        }
        ScheduleCommand::Pause => {
            work.pass();
            work.pause()
        }
        ScheduleCommand::Resume => work.resume(),
        ScheduleCommand::RunNow { run } => work.run_now(run)?,
        ScheduleCommand::Backfill { from, to, exist } => work.backfill(*from, *to, exist)?,
        ScheduleCommand::Wake => {
            work.pass();
            work.ask(random);
            ScheduleOutcome::Done
        }
        ScheduleCommand::Answered { sequence, answer } => work.answered(*sequence, answer),
        ScheduleCommand::Ended { run } => work.ended(run),
    };
    work.fill();
    let outcome = match outcome {
        ScheduleOutcome::Starting if !work.started(command) => ScheduleOutcome::Queued,
        other => other,
    };
    Ok(Changed { state: Some(work.done(state)), payloads, outcome })
}

fn create(
    name: &ScheduleName,
    mut definition: Definition,
    input: Option<&Bytes>,
    paused: Option<bool>,
    now: Timestamp,
    payloads: &mut Vec<(Field, Bytes)>,
) -> ScheduleState {
    definition.input = input.map_or(Payload::Null, |json| keep(json.clone(), || field(json), payloads));
    let next = definition.calendar().and_then(|c| c.next(now));
    ScheduleState {
        name: name.clone(),
        created_at: now,
        updated_at: now,
        revision: 1,
        definition,
        paused_since: paused.unwrap_or(false).then_some(now),
        next,
        queued: VecDeque::new(),
        backfill: VecDeque::new(),
        manual: VecDeque::new(),
        open: BTreeMap::new(),
        ask_at: None,
        firings: VecDeque::new(),
        told: 0,
        outbox: Outbox::default(),
        last_time: now,
    }
}

/// The field of an input, by its content: the same input is the same definition.
fn field(json: &Bytes) -> Field {
    let digest = u128::from_be_bytes(crate::model::json::digest(&[json]));
    Field::new(&format!("i{digest:032x}"))
}

/// A schedule in the making.
struct Work<'a> {
    state: ScheduleState,
    home: &'a RunId,
    now: Timestamp,
    calendar: Option<Calendar>,
}

impl<'a> Work<'a> {
    fn on(state: &ScheduleState, home: &'a RunId, now: Timestamp) -> Self {
        let now = now.max(state.last_time);
        let mut state = state.clone();
        state.last_time = now;
        let calendar = state.definition.calendar();
        Self { state, home, now, calendar }
    }

    /// The state after it. Time alone is no change.
    fn done(mut self, before: &ScheduleState) -> ScheduleState {
        self.state.last_time = before.last_time;
        if self.state != *before {
            self.state.last_time = self.now;
        }
        self.state
    }

    /// Whether the run of a `RunNow` is on its way.
    fn started(&self, command: &ScheduleCommand) -> bool {
        match command {
            ScheduleCommand::RunNow { run } => !self.state.manual.iter().any(|(r, _)| r == run),
            _ => true,
        }
    }

    /// Passes the slots that are due: each is queued, or skipped and told.
    fn pass(&mut self) {
        let Some(first) = self.state.next.filter(|n| *n <= self.now && self.state.paused_since.is_none())
        else {
            return;
        };
        let Some(calendar) = &self.calendar else { return };
        let last = calendar.previous(self.now.plus(Span(1))).filter(|l| *l > first).unwrap_or(first);
        let mut taken = VecDeque::new();
        match self.state.definition.catch_up {
            CatchUp::None if self.now.since(last) > GRACE => {}
            CatchUp::None | CatchUp::Latest => taken.push_back(last),
            CatchUp::All => {
                let limit = self.state.definition.catch_up_limit as usize;
                let mut at = Some(last);
                while let Some(slot) = at.filter(|s| *s > first && taken.len() < limit) {
                    taken.push_front(slot);
                    at = calendar.previous(slot);
                }
                if taken.len() < limit {
                    taken.push_front(first); // It was stored, whatever the calendar says today.
                }
            }
        }
        let end = taken.front().copied().unwrap_or(self.now.plus(Span(1)));
        let missed: Vec<Timestamp> = std::iter::once(first)
            .chain(calendar.between(first.plus(Span(1)), end))
            .take_while(|s| *s < end)
            .take(Firing::COUNT_MAX as usize)
            .collect();
        let before_end = calendar.previous(end);
        self.state.next = calendar.next(self.now);
        self.skip(SkipReason::Missed, &missed, before_end);
        let (mut overlap, mut full) = (Vec::new(), Vec::new());
        for slot in taken {
            let busy = !self.state.open.is_empty() || !self.state.queued.is_empty();
            match self.state.definition.overlap {
                Overlap::Skip if busy => overlap.push(slot),
                Overlap::Skip | Overlap::Queue | Overlap::Allow if self.state.queued.len() >= QUEUE_MAX => {
                    full.push(slot);
                }
                Overlap::Skip | Overlap::Queue | Overlap::Allow => self.state.queued.push_back(slot),
            }
        }
        self.skip(SkipReason::Overlap, &overlap, None);
        self.skip(SkipReason::QueueFull, &full, None);
    }

    /// Tells of slots that are left out; `last` if more of them were than are listed.
    fn skip(&mut self, reason: SkipReason, slots: &[Timestamp], last: Option<Timestamp>) {
        let Some(slot) = slots.first().copied() else { return };
        let last = slots.last().copied().max(last).filter(|l| *l > slot);
        self.tell(Firing {
            number: 0,
            time: self.now,
            slot,
            until: last,
            count: slots.len() as u32,
            run: None,
            fate: Fate::Skipped,
            reason: Some(reason),
            error: None,
        });
    }

    fn tell(&mut self, firing: Firing) {
        let number = self.state.told;
        self.state.told = number.saturating_add(1);
        self.state.firings.push_back(Firing { number, ..firing });
    }

    /// Starts what waits, as far as there is room.
    fn fill(&mut self) {
        while self.starting() < STARTS_MAX {
            let room = match self.state.definition.overlap {
                Overlap::Skip | Overlap::Queue => self.state.open.is_empty(),
                Overlap::Allow => self.state.open.len() < OPEN_MAX,
            };
            if !room {
                return;
            }
            let paused = self.state.paused_since.is_some();
            if let Some((run, asked)) = self.state.manual.pop_front() {
                self.start(run, asked);
            } else if paused {
                return;
            } else if let Some(slot) =
                self.state.queued.pop_front().or_else(|| self.state.backfill.pop_front())
            {
                self.start(self.state.name.run_of(slot), slot);
            } else {
                return;
            }
        }
    }

    /// Starts that are on their way.
    fn starting(&self) -> usize {
        let messages = self.state.outbox.pending.values();
        messages.filter(|m| matches!(m.what, ScheduleErrand::Start(_))).count()
    }

    /// Asks some of the open runs, once in a long while, whether they still are.
    fn ask(&mut self, random: u64) {
        let Some(at) = self.state.ask_at.filter(|_| !self.state.open.is_empty()) else { return };
        if at > self.now {
            return;
        }
        self.state.ask_at = Some(self.now.plus(ASK_EVERY));
        let count = self.state.open.len();
        let first = random as usize % count;
        let runs: Vec<RunId> =
            self.state.open.keys().cycle().skip(first).take(count.min(ASKS_MAX)).cloned().collect();
        for run in runs {
            if !self.state.outbox.pending.values().any(|m| m.to == run) {
                self.state.outbox.push(run, ScheduleErrand::IsOpen);
            }
        }
    }

    fn start(&mut self, run: RunId, slot: Timestamp) {
        if self.state.open.contains_key(&run) {
            return; // Backfilled and due at once.
        }
        let d = &self.state.definition;
        let message = StartFor {
            workflow: d.workflow.clone(),
            version: d.version,
            input: d.input.clone(),
            tags: d.tags.clone(),
            priority: d.priority,
            retention: None,
            origin: Origin::Schedule { home: self.home.clone(), slot },
        };
        self.state.outbox.push(run.clone(), ScheduleErrand::Start(message));
        if self.state.open.is_empty() {
            self.state.ask_at = Some(self.now.plus(ASK_EVERY));
        }
        self.state.open.insert(run, slot);
    }

    fn put(
        &mut self,
        mut definition: Definition,
        input: Option<&Bytes>,
        paused: Option<bool>,
        payloads: &mut Vec<(Field, Bytes)>,
    ) -> ScheduleOutcome {
        let mut written = Vec::new();
        definition.input =
            input.map_or(Payload::Null, |json| keep(json.clone(), || field(json), &mut written));
        let paused_before = self.state.paused_since;
        match paused {
            Some(true) => drop(self.pause()),
            Some(false) => drop(self.resume()),
            None => {}
        }
        if definition == self.state.definition {
            return if paused_before == self.state.paused_since {
                ScheduleOutcome::Unchanged
            } else {
                ScheduleOutcome::Done
            };
        }
        payloads.append(&mut written);
        self.state.definition = definition;
        self.state.revision = self.state.revision.saturating_add(1);
        self.state.updated_at = self.now;
        self.calendar = self.state.definition.calendar();
        self.state.next = self.calendar.as_ref().and_then(|c| c.next(self.now));
        if let Some(since) = &mut self.state.paused_since {
            *since = self.now; // What is skipped is told of this definition.
        }
        ScheduleOutcome::Done
    }

    fn pause(&mut self) -> ScheduleOutcome {
        if self.state.paused_since.is_some() {
            return ScheduleOutcome::Unchanged;
        }
        self.state.paused_since = Some(self.now);
        ScheduleOutcome::Done
    }

    fn resume(&mut self) -> ScheduleOutcome {
        if self.state.paused_since.take().is_none() {
            return ScheduleOutcome::Unchanged;
        }
        if let (Some(first), Some(calendar)) = (self.state.next.filter(|n| *n <= self.now), &self.calendar) {
            let end = self.now.plus(Span(1));
            let slots: Vec<_> = std::iter::once(first)
                .chain(calendar.between(first.plus(Span(1)), end))
                .take(Firing::COUNT_MAX as usize)
                .collect();
            let last = calendar.previous(end);
            self.state.next = calendar.next(self.now);
            self.skip(SkipReason::Paused, &slots, last);
        }
        ScheduleOutcome::Done
    }

    fn run_now(&mut self, run: &RunId) -> Result<ScheduleOutcome, ScheduleRefusal> {
        let known = self.state.open.contains_key(run)
            || self.state.manual.iter().any(|(r, _)| r == run)
            || self.state.firings.iter().any(|f| f.run.as_ref() == Some(run) && f.fate == Fate::Started);
        if known {
            return Ok(ScheduleOutcome::Starting);
        }
        if self.state.definition.overlap == Overlap::Skip
            && let Some(open) = self.state.open.keys().next()
        {
            return Err(ScheduleRefusal::Busy(open.clone()));
        }
        if self.state.manual.len() >= MANUAL_MAX {
            return Err(ScheduleRefusal::TooManyWait);
        }
        self.state.manual.push_back((run.clone(), self.now));
        Ok(ScheduleOutcome::Starting)
    }

    fn backfill(
        &mut self,
        from: Timestamp,
        to: Timestamp,
        exist: &BTreeSet<Timestamp>,
    ) -> Result<ScheduleOutcome, ScheduleRefusal> {
        if from >= to {
            return Err(ScheduleRefusal::EmptyRange);
        }
        if to > self.now.plus(Span(1)) {
            return Err(ScheduleRefusal::InFuture);
        }
        let asked = self.slots(from, to);
        let waiting = self.state.backfill.len();
        if asked.len() + waiting > BACKFILL_MAX {
            return Err(ScheduleRefusal::TooManySlots {
                count: asked.len() as u32,
                more: asked.len() >= Firing::COUNT_MAX as usize,
                waiting: waiting as u32,
            });
        }
        let s = &self.state;
        let known: BTreeSet<Timestamp> = s
            .open
            .values()
            .chain(s.queued.iter())
            .chain(s.backfill.iter())
            .chain(s.firings.iter().filter(|f| f.fate == Fate::Started).map(|f| &f.slot))
            .chain(exist)
            .copied()
            .collect();
        // What is due and was not looked at yet fires by itself.
        let passed = s.next.unwrap_or(Timestamp(i64::MAX));
        let new: Vec<_> = asked.into_iter().filter(|slot| !known.contains(slot) && *slot < passed).collect();
        let count = new.len() as u32;
        self.state.backfill.extend(new);
        Ok(ScheduleOutcome::Backfilled(count))
    }

    fn slots(&self, from: Timestamp, to: Timestamp) -> Vec<Timestamp> {
        let Some(calendar) = &self.calendar else { return Vec::new() };
        calendar.between(from, to).take(Firing::COUNT_MAX as usize).collect()
    }

    fn answered(&mut self, sequence: u32, answer: &Answer) -> ScheduleOutcome {
        if !self.state.outbox.pending.contains_key(&sequence) {
            return ScheduleOutcome::Unchanged;
        }
        let refused = match answer {
            Answer::Done | Answer::Granted { .. } => None,
            Answer::Gone => Some(("gone".to_owned(), "it could not be delivered".to_owned())),
            Answer::Refused { code, message } => Some((code.clone(), message.clone())),
        };
        self.settle(sequence, refused);
        ScheduleOutcome::Done
    }

    /// A message is through, or refused; of a start it is told.
    fn settle(&mut self, sequence: u32, refused: Option<(String, String)>) {
        let Some(message) = self.state.outbox.pending.remove(&sequence) else { return };
        let slot = match message.what {
            ScheduleErrand::Start(StartFor { origin: Origin::Schedule { slot, .. }, .. }) => slot,
            ScheduleErrand::IsOpen => {
                if refused.is_some() {
                    self.state.open.remove(&message.to);
                }
                return;
            }
            ScheduleErrand::Start(StartFor { origin: Origin::Parent(_), .. }) | ScheduleErrand::List => {
                return;
            }
        };
        let fate = if refused.is_some() { Fate::Refused } else { Fate::Started };
        if refused.is_some() {
            self.state.open.remove(&message.to);
        }
        self.tell(Firing {
            number: 0,
            time: self.now,
            slot,
            until: None,
            count: 1,
            run: Some(message.to),
            fate,
            reason: None,
            error: refused,
        });
    }

    fn ended(&mut self, run: &RunId) -> ScheduleOutcome {
        if self.state.open.remove(run).is_none() {
            return ScheduleOutcome::Unchanged;
        }
        // It has begun, then, whatever became of the answer.
        let pending: Vec<u32> =
            self.state.outbox.pending.iter().filter(|(_, m)| m.to == *run).map(|(n, _)| *n).collect();
        for sequence in pending {
            self.settle(sequence, None);
        }
        ScheduleOutcome::Done
    }
}
