//! What follows a verdict: answers, acknowledgements, assignments, hints. Never waits.

use super::decide::Pending;
use super::envelope::{Answer, Ask, Envelope, Reply};
use super::slot::{AtHand, Cached, CachedHome, Known, footprint};
use super::{Lane, jobs};
use crate::app::AppError;
use crate::app::plans::not_found;
use crate::app::render;
use crate::dispatch::message::{AckStatus, Assignment, ResultAck};
use crate::dispatch::{Reservation, SessionKey};
use crate::model::command::{AttemptKey, Command, Outcome, Refusal};
use crate::model::commit::{EventNote, QueueEntry, WakeOp, Write};
use crate::model::home::Home;
use crate::model::ids::{Prefix, RunId};
use crate::model::payload::Field;
use crate::model::plan::Plan;
use crate::model::record::is_page;
use crate::model::run::{RunState, TaskPhase};
use crate::model::token::TaskToken;
use crate::store::{Taken, Verdict};
use bytes::Bytes;
use futures::future::FutureExt;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use tokio::time::Instant;

/// Conflicts in a row before a run is given a pause.
const CONFLICTS: u32 = 2;

impl Lane {
    /// Takes a verdict.
    pub(super) fn settle(&mut self, pending: Pending, verdict: Verdict) {
        match verdict {
            Verdict::Applied => self.applied(pending),
            Verdict::Conflict => self.conflict(pending),
            Verdict::NoWorkflow => self.no_workflow(pending),
        }
    }

    fn applied(&mut self, pending: Pending) {
        let Pending { run, plan, letters, leased, handed, decision, .. } = pending;
        let wants_state = letters.iter().any(|(l, _)| matches!(l.reply, Reply::Once(_)));
        let (mut state, mut home, mut prefix) = (None, None, None);
        if let Some(decision) = decision {
            let old = self.slots.get(&run).map(|s| std::mem::take(&mut s.known)).unwrap_or_default();
            self.slots.shrank(old.bytes().unwrap_or(0));
            let mut payloads = match old {
                Known::Present(c) => c.payloads,
                Known::Home(_) | Known::Unread | Known::Absent => AtHand::default(),
            };
            if let WakeOp::Lower(at) | WakeOp::Set(at) = decision.write.wake {
                self.inner.alarm.no_later(at, &self.inner.clock);
            }
            if let Some(note) = &decision.write.event {
                self.inner.measures.happened(&note.kinds);
                self.inner.hub.touched(note);
                if let (Some(state), Some(plan)) = (&decision.state, &plan) {
                    self.keep_fresh(note, state, plan, &decision.write.payloads, &payloads);
                }
            }
            if wants_state {
                state = decision.state.clone().map(Box::new);
            }
            prefix = Some(decision.prefix).filter(|_| decision.state.is_some() || decision.home.is_some());
            if let Some(kept) = decision.home {
                home = wants_state.then(|| Box::new(kept.clone()));
                let bytes = written(&decision.write.write);
                let cached = CachedHome { home: kept, prefix: decision.prefix, bytes };
                self.slots.keep(&run, Known::Home(Box::new(cached)));
            }
            if let Some(new) = decision.state
                && (!new.status.is_terminal() || !new.outbox.is_empty())
                && let Some(plan) = plan
            {
                payloads.0.extend(decision.write.payloads.into_iter().filter(|(field, _)| !is_page(field)));
                let values: usize = payloads.0.values().map(Bytes::len).sum();
                let bytes = footprint(&new, written(&decision.write.write)) + values;
                let cached = Cached { state: new, prefix: decision.prefix, plan, payloads, bytes };
                self.slots.keep(&run, Known::Present(Box::new(cached)));
            }
            self.inner.courier.post(&run, decision.deliveries);
            let mut dispatcher = self.inner.dispatcher.lock();
            for r in &decision.revoked {
                dispatcher.revoke(&r.session, &r.token);
            }
        } else {
            match self.slots.get(&run).map(|s| &s.known) {
                Some(Known::Present(c)) => {
                    prefix = Some(c.prefix);
                    state = wants_state.then(|| Box::new(c.state.clone()));
                }
                Some(Known::Home(h)) => {
                    prefix = Some(h.prefix);
                    home = wants_state.then(|| Box::new(h.home.clone()));
                }
                Some(Known::Unread | Known::Absent) | None => {}
            }
        }
        let mut leased = leased.into_iter().peekable();
        let mut workers = Workers::default();
        for (n, (letter, outcome)) in letters.into_iter().enumerate() {
            let assignment = leased.next_if(|(at, _)| *at == n).map(|(_, a)| a);
            answer(letter, outcome, assignment, (&state, &home), prefix, &mut workers);
        }
        workers.work.extend(handed);
        let mut stale = std::mem::take(&mut workers.stale);
        stale.retain(|(taken, _)| !self.stands_in_queue(&run, &taken.entry));
        self.tell(workers);
        if !stale.is_empty() {
            let inner = Arc::clone(&self.inner);
            self.inner.spawn(async move {
                if let Err(error) = inner.store.discard(&stale).await {
                    tracing::debug!(%error, "stale queue entries stay claimed until their claim expires");
                }
            });
        }
        if let Some(slot) = self.slots.get(&run) {
            slot.conflicts = 0;
        }
        self.free(&run);
    }

    /// Leaves the events of a commit with the hub, if anybody follows them and all that they carry is at hand.
    fn keep_fresh(
        &self,
        note: &EventNote,
        state: &RunState,
        plan: &Plan,
        written: &[(Field, Bytes)],
        kept: &AtHand,
    ) {
        let kinds = self.inner.hub.kinds();
        let at_hand = |field: &Field| {
            let new = written.iter().find_map(|(f, value)| (f == field).then_some(value));
            new.or_else(|| kept.0.get(field))
        };
        if let Some(events) = render::fresh(state, plan, note, kinds, at_hand) {
            self.inner.hub.keep_fresh(note, kinds, events);
        }
    }

    /// Whether an entry is that of a task that waits. One whose lease was refused may be, if the store has lost its tail
    /// and the same decision has queued the task again: it must not be discarded.
    fn stands_in_queue(&mut self, run: &RunId, entry: &QueueEntry) -> bool {
        let Some(Known::Present(c)) = self.slots.get(run).map(|s| &s.known) else { return false };
        let task = c.state.find(&c.plan, &entry.path).and_then(|i| c.state.tasks.get(i as usize));
        task.is_some_and(
            |t| matches!(t.phase, TaskPhase::Queued { generation, .. } if generation == entry.generation),
        )
    }

    /// Tells workers what a commit has for them. Under one lock: the credit that a result frees is for the work that its
    /// decision hands over, and whoever else looks for credit must not come between. What a stream no longer takes goes
    /// back to its queue.
    fn tell(&mut self, workers: Workers) {
        let Workers { acks, unused, work, .. } = workers;
        if acks.is_empty() && unused.is_empty() && work.is_empty() {
            return;
        }
        let now = Instant::now();
        let mut dispatcher = self.inner.dispatcher.lock();
        for (session, ack) in acks {
            dispatcher.acknowledge(session, ack);
        }
        for reservation in unused {
            dispatcher.give_back(reservation);
        }
        for (reservation, assignment) in work {
            let Err(assignment) = dispatcher.assign(reservation, assignment, now) else { continue };
            let Some(token) = TaskToken::decode(&assignment.token) else { continue };
            let attempt = AttemptKey { path: token.path, attempt: token.attempt, nonce: token.nonce };
            self.own.push(Envelope {
                partition: token.partition,
                run: token.run,
                ask: Ask::Command(Command::Release { attempt }),
                reply: Reply::None,
            });
        }
    }

    /// The run is not what was decided on: what was handed out is given back, the letters are decided anew.
    fn conflict(&mut self, pending: Pending) {
        let Pending { run, letters, handed, .. } = pending;
        self.inner.measures.conflicts.fetch_add(1, Relaxed);
        {
            let mut dispatcher = self.inner.dispatcher.lock();
            for (reservation, _) in handed {
                dispatcher.give_back(reservation);
            }
        }
        self.slots.forget(&run);
        // Taken for absent and it was not, or the reverse: it must be read now.
        self.requeue(&run, letters.into_iter().map(|(l, _)| l).collect());
        let Some(slot) = self.slots.get(&run) else { return };
        slot.conflicts += 1;
        let (partition, conflicts) = (slot.partition, slot.conflicts);
        let count = slot.mail.len();
        let inner = Arc::clone(&self.inner);
        if conflicts > CONFLICTS {
            self.jobs.push(jobs::delay(inner, run, conflicts).boxed());
        } else {
            self.jobs.push(jobs::load(inner, vec![(partition, run, count)]).boxed());
        }
    }

    /// The store has lost what a new run was to be of: that is not known here any more either.
    fn no_workflow(&mut self, pending: Pending) {
        let lost = pending.letters.iter().find_map(|(letter, _)| match &letter.ask {
            Ask::Command(Command::Start(start)) => Some((start.workflow.clone(), start.version)),
            Ask::Command(_) | Ask::Wake | Ask::Lease { .. } => None,
        });
        let Some((workflow, version)) = lost else { return self.conflict(pending) };
        tracing::error!(%workflow, version, "the store has lost a version of a workflow; no run of it is begun");
        self.inner.plans.drop_version(&workflow, version);
        self.refuse_starts(pending, &not_found(&workflow, Some(version)));
    }

    /// Nothing was written: starts are refused (the caller may try again), the rest waits on.
    pub(super) fn refuse_starts(&mut self, pending: Pending, error: &AppError) {
        let Pending { run, letters, handed, .. } = pending;
        {
            let mut dispatcher = self.inner.dispatcher.lock();
            for (reservation, _) in handed {
                dispatcher.give_back(reservation);
            }
        }
        let (starts, rest): (Vec<_>, Vec<_>) = letters
            .into_iter()
            .map(|(l, _)| l)
            .partition(|l| matches!(l.ask, Ask::Command(Command::Start(_))));
        for letter in starts {
            self.fail(letter, error);
        }
        self.slots.forget(&run);
        self.requeue(&run, rest);
        self.free(&run);
    }

    fn requeue(&mut self, run: &crate::model::ids::RunId, letters: Vec<Envelope>) {
        self.count(&letters);
        if let Some(slot) = self.slots.get(run) {
            slot.put_back(letters);
        }
    }
}

/// What a commit has for workers, and for the queue that their work came from.
#[derive(Default)]
struct Workers {
    acks: Vec<(SessionKey, ResultAck)>,
    /// Credit that was set aside for what turned out not to be there.
    unused: Vec<Reservation>,
    work: Vec<(Reservation, Assignment)>,
    /// Entries that name no task to be leased, and what they were judged by.
    stale: Vec<(Taken, Option<Prefix>)>,
}

/// Answers a letter; what it has for workers is collected.
fn answer(
    letter: Envelope,
    outcome: Result<Outcome, Refusal>,
    assignment: Option<Assignment>,
    (state, home): (&Option<Box<RunState>>, &Option<Box<Home>>),
    prefix: Option<Prefix>,
    workers: &mut Workers,
) {
    let invalid = match &letter.ask {
        Ask::Command(Command::Complete { output: Err(rejected), .. }) => Some(rejected.message.clone()),
        _ => None,
    };
    if let Ask::Lease { taken, reservation, .. } = letter.ask {
        if let Some(assignment) = assignment {
            workers.work.push((reservation, assignment));
        } else {
            workers.unused.push(reservation);
            workers.stale.push((taken, prefix));
        }
    }
    match letter.reply {
        Reply::None => {}
        Reply::Brief(tx) => drop(tx.send(Ok(outcome))),
        Reply::Once(tx) => {
            let (state, home) = (state.clone(), home.clone());
            drop(tx.send(Ok(Answer { outcome, state, home })));
        }
        Reply::Result { session, token } => {
            workers.acks.push((session, acknowledgement(token, &outcome, invalid)));
        }
    }
}

/// What the worker that sent a result is told.
fn acknowledgement(token: String, outcome: &Result<Outcome, Refusal>, invalid: Option<String>) -> ResultAck {
    let (status, message) = match outcome {
        Ok(_) => match invalid {
            Some(message) => (AckStatus::Invalid, message),
            None => (AckStatus::Accepted, String::new()),
        },
        Err(refusal @ (Refusal::NoRun | Refusal::Unknown)) => (AckStatus::Unknown, refusal.to_string()),
        Err(refusal) => (AckStatus::Stale, refusal.to_string()),
    };
    ResultAck { token, status, message }
}

/// Bytes of a record that was written.
fn written(write: &Write) -> usize {
    match write {
        Write::Put(bytes) => bytes.len(),
        Write::Check | Write::Delete => Prefix::LEN,
    }
}
