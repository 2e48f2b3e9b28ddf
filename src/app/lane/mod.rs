//! A lane: the one place in a server where runs of its partitions are decided and committed.
//!
//! ```text
//! inbox → mail per run → decide (or read what is missing) → batch → commit → effects
//! ```
//!
//! Invariants
//! - At most one job is under way per run; letters that come meanwhile are folded into one decision.
//! - A refusal leaves only after the store confirmed what it was decided on.
//! - A batch whose reply was lost is sent again, the same, until its fate is known.
//! - Effects (assignments, acknowledgements, answers) leave only after their commit, and never wait.
//!
//! Nothing waits to fill a batch: whatever has arrived goes. While more waits than goes into one, of four decisions
//! three are about runs that are there and one about a new one, so that runs end at a steady rate however many are
//! submitted. To add a command: a variant in
//! `model::command`, its handling in `engine`, and whoever sends it; the lane needs no change.

mod decide;
mod effects;
pub(crate) mod envelope;
mod jobs;
mod slot;

use super::error::store_error;
use super::inner::{Inner, LaneInbox};
use crate::model::command::Command;
use crate::model::commit::{Expect, RunWrite, Write};
use crate::model::ids::{Nonce, Partition, RunId};
use crate::store::{Batch, Verdict};
use decide::{LETTERS, Pending, Step, decide};
use envelope::{Ask, Envelope, Reply};
use futures::future::{BoxFuture, FutureExt};
use futures::stream::{FuturesUnordered, StreamExt};
use jobs::Done;
use slot::{Known, Slots};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tokio::time::Instant;

/// Decisions in one batch at most.
const BATCH_DECISIONS: usize = 128;
/// Bytes in one batch at most, unless one decision alone is larger.
const BATCH_BYTES: usize = 512 << 10;
/// That a store takes nothing counts as known for so long after a batch of which it took nothing.
const ASK_AGAIN: Duration = Duration::from_secs(2);

pub(crate) struct Lane {
    inner: Arc<Inner>,
    inbox: LaneInbox,
    incarnation: Nonce,
    sequence: u64,
    slots: Slots,
    ready: Ready,
    jobs: FuturesUnordered<BoxFuture<'static, Done>>,
    commits: usize,
    /// Letters that are in a slot, and those of them that are starts.
    waiting: usize,
    starts: usize,
    /// Since when the store has taken nothing although something was sent; see [`Lane::tell_how_it_stands`].
    stuck: Option<Instant>,
    /// When it was last known to have taken nothing of a batch.
    refused: Instant,
    /// Batches in a row of which it took nothing.
    failed: u32,
    /// Letters to ourselves (returned assignments), handled before new ones.
    own: Vec<Envelope>,
}

impl Lane {
    pub(crate) fn new(inner: Arc<Inner>, inbox: LaneInbox) -> Self {
        let incarnation = inner.options.entropy.nonce();
        let slots = Slots::new(inner.cache_of_a_lane());
        Self {
            inner,
            inbox,
            incarnation,
            sequence: 0,
            slots,
            ready: Ready::default(),
            jobs: FuturesUnordered::new(),
            commits: 0,
            waiting: 0,
            starts: 0,
            stuck: None,
            refused: Instant::now(),
            failed: 0,
            own: Vec::new(),
        }
    }

    /// Runs until the server stops.
    pub(crate) async fn run(mut self) {
        let stopping = self.inner.stopping.clone();
        let limit = self.inner.options.mailbox * 2;
        let mut arrived = Vec::new();
        loop {
            while !self.own.is_empty() {
                for envelope in std::mem::take(&mut self.own) {
                    self.deliver(envelope);
                }
                self.fill();
            }
            self.tell_how_it_stands();
            tokio::select! {
                biased;
                () = stopping.cancelled() => return,
                Some(done) = self.jobs.next(), if !self.jobs.is_empty() => self.done(done),
                letter = self.inbox.letters.recv(), if self.waiting - self.starts < limit => {
                    let Some(letter) = letter else { return };
                    arrived.push(letter);
                }
                start = self.inbox.starts.recv(), if self.starts < limit => {
                    let Some(start) = start else { return };
                    arrived.push(start);
                }
            }
            while let Some(Some(done)) = self.jobs.next().now_or_never() {
                self.done(done);
            }
            loop {
                for envelope in arrived.drain(..) {
                    self.deliver(envelope);
                }
                if self.waiting - self.starts < limit
                    && let Ok(envelope) = self.inbox.letters.try_recv()
                {
                    arrived.push(envelope);
                }
                if self.starts < limit
                    && let Ok(envelope) = self.inbox.starts.try_recv()
                {
                    arrived.push(envelope);
                }
                if arrived.is_empty() {
                    break;
                }
            }
            self.fill();
        }
    }

    /// Whether the store takes anything is known only while something is tried. So that a lane is stuck is said as long
    /// as a batch is under way, and after one of which nothing was taken for [`ASK_AGAIN`], as long as letters wait.
    /// Whatever becomes of these (dropped, refused, found to need no commit, kept from their runs by a reading that
    /// fails): then a start finds out whether the store is back.
    fn tell_how_it_stands(&mut self) {
        if self.commits == 0 && self.waiting == 0 {
            self.stuck = None;
        }
        let until = (self.commits == 0).then(|| self.refused + ASK_AGAIN);
        let gauges = &self.inbox.gauges;
        gauges.waiting.store(self.waiting as u64, Relaxed);
        gauges.starts.store(self.starts as u64, Relaxed);
        gauges.commits.store(self.commits as u64, Relaxed);
        gauges.cached.store(self.slots.bytes() as u64, Relaxed);
        gauges.stuck.since_until(self.stuck, until);
    }

    fn deliver(&mut self, envelope: Envelope) {
        let run = envelope.run.clone();
        self.count(std::slice::from_ref(&envelope));
        let slot = self.slots.entry(&run, envelope.partition);
        slot.mail.push_back(envelope);
        slot.touched = true;
        self.list(&run);
    }

    /// These letters are in a slot now.
    fn count(&mut self, letters: &[Envelope]) {
        self.waiting += letters.len();
        self.starts += letters.iter().filter(|l| l.is_start()).count();
    }

    /// These letters are in no slot any more.
    fn discount<'e>(&mut self, letters: impl Iterator<Item = &'e Envelope>) {
        for letter in letters {
            self.waiting -= 1;
            self.starts -= usize::from(letter.is_start());
        }
    }

    /// Lists a run that has letters and no job.
    fn list(&mut self, run: &RunId) {
        if let Some(slot) = self.slots.get(run)
            && !slot.busy
            && !slot.listed
            && !slot.mail.is_empty()
        {
            slot.listed = true;
            let new = !matches!(slot.known, Known::Present(_)) && slot.mail.iter().all(Envelope::is_start);
            self.ready.push(run.clone(), new);
        }
    }

    /// Decides what is ready, in batches, as long as commits may be under way.
    fn fill(&mut self) {
        let mut loads: Vec<(Partition, RunId, usize)> = Vec::new();
        while self.commits < self.inner.options.commits_in_flight && !self.ready.is_empty() {
            let begun = Instant::now();
            let mut pending = Vec::new();
            let mut writes = Vec::new();
            // A full store refuses a batch that puts anything, and takes one that only deletes.
            let (mut leaving, mut deletions) = (Vec::new(), Vec::new());
            let mut bytes = 0;
            while pending.len() + leaving.len() < BATCH_DECISIONS
                && bytes < BATCH_BYTES
                && let Some(run) = self.ready.pop()
            {
                if let Some((decided, write)) = self.decide_one(&run, &mut loads) {
                    if write.write == Write::Delete {
                        leaving.push(decided);
                        deletions.push((self.partition(&run), write));
                        continue;
                    }
                    let size = size_of(&write);
                    if !pending.is_empty() && bytes + size > BATCH_BYTES {
                        // Too large to go along: it travels in a batch of its own.
                        self.launch(std::mem::take(&mut pending), std::mem::take(&mut writes));
                        bytes = 0;
                    }
                    bytes += size;
                    pending.push(decided);
                    writes.push((self.partition(&run), write));
                }
            }
            if !leaving.is_empty() {
                self.inner.leaving.now();
                self.launch(leaving, deletions);
            }
            if !pending.is_empty() {
                self.inner.measures.decide.took(begun.elapsed());
                self.launch(pending, writes);
            }
        }
        if !loads.is_empty() {
            self.jobs.push(jobs::load(Arc::clone(&self.inner), loads).boxed());
        }
    }

    fn partition(&self, run: &RunId) -> Partition {
        self.inner.partition_of(run)
    }

    /// Decides one run's letters, or starts reading what is missing.
    fn decide_one(
        &mut self,
        run: &RunId,
        loads: &mut Vec<(Partition, RunId, usize)>,
    ) -> Option<(Pending, RunWrite)> {
        let slot = self.slots.get(run)?;
        slot.listed = false;
        if slot.busy || slot.mail.is_empty() {
            return None;
        }
        // A deletion is decided alone: what comes before it has its events told, what comes after is about another run.
        let deletes = |l: &Envelope| matches!(l.ask, Ask::Command(Command::Delete { .. }));
        let count = match slot.mail.iter().take(LETTERS).position(deletes) {
            Some(n) => n.max(1),
            None => slot.mail.len().min(LETTERS),
        };
        let mut letters: Vec<_> = slot.mail.drain(..count).collect();
        let fresh = count <= slot.fresh;
        let abandoned: Vec<_> = letters.extract_if(.., |l| l.is_abandoned_start()).collect();
        if !abandoned.is_empty() {
            slot.fresh = slot.fresh.saturating_sub(abandoned.len());
            self.inner.measures.starts_abandoned.fetch_add(abandoned.len() as u64, Relaxed);
            self.discount(abandoned.iter());
            if letters.is_empty() {
                self.free(run);
                return None;
            }
        }
        let count = letters.len();
        let slot = self.slots.get(run)?;
        let partition = slot.partition;
        let sessions = slot.sessions.take();
        let known = std::mem::take(&mut slot.known);
        // A start is decided as if its run were absent, which spares a read; after a conflict we know better.
        let blind = slot.conflicts == 0;
        let inner = &self.inner;
        let mut work =
            || decide(inner, run, partition, &known, &mut letters, fresh, blind, sessions.as_ref());
        let computes = matches!(&known, Known::Present(c) if c.plan.computes());
        let step = if computes { off_the_runtime(work) } else { work() };
        self.slots.restore(run, known);
        let slot = self.slots.get(run)?;
        slot.busy = true;
        if !matches!(step, Step::Decided(_)) {
            slot.put_back(letters);
            slot.sessions = sessions;
        }
        let inner = Arc::clone(&self.inner);
        let job = match step {
            Step::Decided(pending) => {
                slot.fresh = slot.fresh.saturating_sub(count);
                self.discount(pending.letters.iter().map(|(l, _)| l));
                return self.ready_to_commit(*pending);
            }
            Step::NeedRun => {
                loads.push((partition, run.clone(), slot.mail.len()));
                return None;
            }
            Step::NeedPlan(name, version) => jobs::plan(inner, run.clone(), name, version).boxed(),
            Step::NeedPayloads(fields) => jobs::payloads(inner, partition, run.clone(), fields).boxed(),
            Step::NeedSessions(ids) => jobs::sessions(inner, run.clone(), ids).boxed(),
            Step::NeedClock => jobs::clock(inner, partition, run.clone()).boxed(),
        };
        self.jobs.push(job);
        None
    }

    /// A decided run goes into the batch, or is answered at once if nothing needs the store.
    fn ready_to_commit(&mut self, mut pending: Pending) -> Option<(Pending, RunWrite)> {
        if pending.confirmed {
            self.settle(pending, Verdict::Applied);
            return None;
        }
        let write = if let Some(decision) = pending.decision.as_mut() {
            std::mem::replace(&mut decision.write, RunWrite::check(&pending.run, Expect::Absent))
        } else {
            let expect = self.slots.get(&pending.run).map_or(Expect::Absent, |s| s.known.expect());
            RunWrite::check(&pending.run, expect)
        };
        if let Some(decision) = pending.decision.as_mut() {
            // The cache wants the payloads, the hub the note; both are cheap to keep.
            decision.write.payloads.clone_from(&write.payloads);
            decision.write.event.clone_from(&write.event);
            decision.write.wake = write.wake;
            if let Write::Put(record) = &write.write {
                decision.write.write = Write::Put(record.clone());
            }
        }
        Some((pending, write))
    }

    fn launch(&mut self, pending: Vec<Pending>, writes: Vec<(Partition, RunWrite)>) {
        self.sequence += 1;
        self.commits += 1;
        self.stuck.get_or_insert_with(Instant::now);
        let batch = Batch { lane: self.incarnation, sequence: self.sequence, writes };
        self.jobs.push(jobs::commit(Arc::clone(&self.inner), batch, pending, self.failed).boxed());
    }

    /// Takes what a job brought.
    fn done(&mut self, done: Done) {
        match done {
            Done::Loaded(runs) => {
                for (run, count, found) in runs {
                    self.loaded(&run, count, found);
                }
            }
            Done::Plan(run, Ok(())) | Done::Delayed(run) => self.free(&run),
            Done::Plan(run, Err(error)) => {
                self.fail_letters(&run, &error);
                self.free(&run);
            }
            Done::Payloads(run, found) => {
                let mut grew = 0;
                if let Some(slot) = self.slots.get(&run)
                    && let Known::Present(c) = &mut slot.known
                {
                    for (field, bytes) in found {
                        grew += bytes.len();
                        c.payloads.0.insert(field, bytes);
                    }
                    c.bytes += grew;
                }
                self.slots.grew(grew);
                self.free(&run);
            }
            Done::Sessions(run, views) => {
                if let Some(slot) = self.slots.get(&run) {
                    slot.sessions = Some(views);
                }
                self.free(&run);
            }
            Done::Committed(pending, committed) => {
                self.taken();
                let feed = self.inner.queues.seen(&committed.heads);
                for (p, verdict) in pending.into_iter().zip(committed.verdicts) {
                    self.settle(p, verdict);
                }
                if feed || self.inner.queues.any() {
                    self.inner.feed.notify_one();
                }
            }
            Done::NotApplied(pending, error) => {
                self.commits -= 1;
                self.failed = self.failed.saturating_add(1);
                self.refused = Instant::now();
                self.inner.measures.not_applied.fetch_add(1, Relaxed);
                let error = store_error(error);
                for p in pending {
                    self.refuse_starts(p, &error);
                }
            }
            Done::Lost(pending, outcomes) => {
                self.taken();
                for (p, applied) in pending.into_iter().zip(outcomes) {
                    self.settle(p, if applied { Verdict::Applied } else { Verdict::Conflict });
                }
            }
        }
    }

    /// The store has taken a batch.
    fn taken(&mut self) {
        self.commits -= 1;
        self.failed = 0;
        self.stuck = (self.commits > 0).then(Instant::now);
    }

    fn loaded(&mut self, run: &RunId, count: usize, found: jobs::Found) {
        match found {
            Ok(Some(known)) => self.slots.keep(run, known),
            Ok(None) => {
                self.slots.forget(run);
                self.slots.restore(run, Known::Absent);
            }
            Err(error) => self.fail_letters(run, &error),
        }
        if let Some(slot) = self.slots.get(run) {
            slot.fresh = count;
        }
        self.free(run);
    }

    /// The job of a run is over.
    fn free(&mut self, run: &RunId) {
        if let Some(slot) = self.slots.get(run) {
            slot.busy = false;
        }
        self.list(run);
        self.slots.tidy(run);
    }

    /// Answers every letter of a run with an error: it cannot be read here.
    fn fail_letters(&mut self, run: &RunId, error: &super::AppError) {
        let Some(slot) = self.slots.get(run) else { return };
        let letters: Vec<_> = slot.mail.drain(..).collect();
        self.discount(letters.iter());
        tracing::error!(%run, %error, "a run cannot be worked on");
        for letter in letters {
            self.fail(letter, error);
        }
    }

    fn fail(&mut self, letter: Envelope, error: &super::AppError) {
        if let Ask::Lease { reservation, .. } = letter.ask {
            self.inner.dispatcher.lock().give_back(reservation);
        }
        match letter.reply {
            Reply::None => {}
            Reply::Once(tx) => drop(tx.send(Err(error.clone()))),
            Reply::Brief(tx) => drop(tx.send(Err(error.clone()))),
            Reply::Result { session, token } => self.inner.dispatcher.lock().settle(session, &token),
        }
    }
}

/// Runs with letters and no job, in order of arrival: those that are there and new ones.
#[derive(Debug, Default)]
struct Ready {
    known: VecDeque<RunId>,
    new: VecDeque<RunId>,
    /// Taken since a new one was.
    since_new: u32,
}

/// Decisions about runs that are there to one about a new one, while both wait.
const KNOWN_TO_NEW: u32 = 3;

impl Ready {
    fn push(&mut self, run: RunId, new: bool) {
        if new { self.new.push_back(run) } else { self.known.push_back(run) }
    }

    fn is_empty(&self) -> bool {
        self.known.is_empty() && self.new.is_empty()
    }

    fn pop(&mut self) -> Option<RunId> {
        if self.known.is_empty() || (self.since_new >= KNOWN_TO_NEW && !self.new.is_empty()) {
            self.since_new = 0;
            return self.new.pop_front();
        }
        self.since_new = self.since_new.saturating_add(1);
        self.known.pop_front()
    }
}

/// Runs what may take its time so that other tasks of this thread go on elsewhere meanwhile.
fn off_the_runtime<T>(work: impl FnOnce() -> T) -> T {
    let flavor = tokio::runtime::Handle::try_current().map(|h| h.runtime_flavor());
    if matches!(flavor, Ok(tokio::runtime::RuntimeFlavor::MultiThread)) {
        tokio::task::block_in_place(work)
    } else {
        work()
    }
}

fn size_of(write: &RunWrite) -> usize {
    let record = match &write.write {
        Write::Put(bytes) => bytes.len(),
        Write::Check | Write::Delete => 0,
    };
    record + write.payloads.iter().map(|(_, b)| b.len()).sum::<usize>() + 64 * write.queue.len() + 64
}

impl std::fmt::Debug for Lane {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lane")
            .field("sequence", &self.sequence)
            .field("waiting", &self.waiting)
            .finish_non_exhaustive()
    }
}
