//! What a lane keeps of one run: its mailbox, and its state as last read or written.

use super::envelope::Envelope;
use crate::engine::Payloads;
use crate::model::command::SessionView;
use crate::model::commit::Expect;
use crate::model::event::LogEntry;
use crate::model::home::Home;
use crate::model::ids::{Partition, Prefix, RunId, SessionId};
use crate::model::payload::Field;
use crate::model::plan::Plan;
use crate::model::run::RunState;
use bytes::Bytes;
use foldhash::fast::RandomState;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

/// A run as the store had it when we last looked. A cache, never the truth: the compare decides.
#[derive(Debug)]
pub(super) struct Cached {
    pub(super) state: RunState,
    pub(super) prefix: Prefix,
    pub(super) plan: Arc<Plan>,
    pub(super) payloads: AtHand,
    /// About what it takes in memory, payloads included: what the cache is limited by.
    pub(super) bytes: usize,
}

/// What stands around the nodes and the log of a kept run, and its places in tables, in bytes: measured, with the
/// allocator's own.
const AROUND: usize = 1_536;

/// About the bytes that a run takes in memory while it is kept; `record` is what it takes in the store, for its texts
/// and small values.
pub(super) fn footprint(state: &RunState, record: usize) -> usize {
    AROUND + record + state.tasks.footprint() + size_of::<LogEntry>() * state.log.len()
}

/// Payloads of a run that are at hand.
#[derive(Debug, Default)]
pub(super) struct AtHand(pub(super) BTreeMap<Field, Bytes>);

impl Payloads for AtHand {
    fn get(&self, field: &Field) -> Option<Bytes> {
        self.0.get(field).cloned()
    }
}

/// What a lane knows of a run.
#[derive(Debug, Default)]
pub(super) enum Known {
    /// Nothing: it must be read, or taken for absent at the risk of a conflict.
    #[default]
    Unread,
    /// The store had no such run.
    Absent,
    /// The store had this run.
    Present(Box<Cached>),
    /// The store had this home record.
    Home(Box<CachedHome>),
}

/// A home record as the store had it when we last looked.
#[derive(Debug)]
pub(super) struct CachedHome {
    pub(super) home: Home,
    pub(super) prefix: Prefix,
    pub(super) bytes: usize,
}

impl Known {
    /// What a decision on it expects the store to have.
    pub(super) fn expect(&self) -> Expect {
        match self {
            Self::Present(c) => Expect::Prefix(c.prefix),
            Self::Home(h) => Expect::Prefix(h.prefix),
            Self::Unread | Self::Absent => Expect::Absent,
        }
    }

    /// Bytes it takes of the cache; none: nothing is kept.
    pub(super) fn bytes(&self) -> Option<usize> {
        match self {
            Self::Present(c) => Some(c.bytes),
            Self::Home(h) => Some(h.bytes),
            Self::Unread | Self::Absent => None,
        }
    }
}

/// A run of this lane.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) partition: Partition,
    pub(super) known: Known,
    pub(super) mail: VecDeque<Envelope>,
    /// A job is under way for this run: nothing else is decided.
    pub(super) busy: bool,
    /// It stands in the ready list.
    pub(super) listed: bool,
    /// The first so many letters came before `known` was read: refusing them needs no further check.
    pub(super) fresh: usize,
    /// Conflicts in a row.
    pub(super) conflicts: u32,
    /// Sessions read for a wake-up.
    pub(super) sessions: Option<BTreeMap<SessionId, SessionView>>,
    /// Second chance of the cache's clock.
    pub(super) touched: bool,
    /// It stands in the cache's clock.
    clocked: bool,
}

impl Slot {
    fn new(partition: Partition) -> Self {
        Self {
            partition,
            known: Known::Unread,
            mail: VecDeque::new(),
            busy: false,
            listed: false,
            fresh: 0,
            conflicts: 0,
            sessions: None,
            touched: true,
            clocked: false,
        }
    }

    /// Letters go back in front, in their order.
    pub(super) fn put_back(&mut self, envelopes: Vec<Envelope>) {
        for e in envelopes.into_iter().rev() {
            self.mail.push_front(e);
        }
    }
}

/// All runs that a lane knows, within a limit of bytes.
#[derive(Debug)]
pub(super) struct Slots {
    by_run: HashMap<RunId, Slot, RandomState>,
    /// Runs that are kept, each once as long as its slot lives.
    clock: VecDeque<RunId>,
    bytes: usize,
    limit: usize,
}

impl Slots {
    pub(super) fn new(limit: usize) -> Self {
        Self { by_run: HashMap::default(), clock: VecDeque::new(), bytes: 0, limit }
    }

    pub(super) fn get(&mut self, run: &RunId) -> Option<&mut Slot> {
        self.by_run.get_mut(run)
    }

    pub(super) fn entry(&mut self, run: &RunId, partition: Partition) -> &mut Slot {
        self.by_run.entry(run.clone()).or_insert_with(|| Slot::new(partition))
    }

    /// Keeps what is known of a run and makes room for it.
    pub(super) fn keep(&mut self, run: &RunId, known: Known) {
        self.forget(run);
        if let Some(bytes) = known.bytes()
            && let Some(slot) = self.by_run.get_mut(run)
        {
            slot.known = known;
            slot.touched = true;
            self.bytes += bytes;
            if !std::mem::replace(&mut slot.clocked, true) {
                self.clock.push_back(run.clone());
            }
        }
        self.make_room();
    }

    /// What is known of a run is no longer true.
    pub(super) fn forget(&mut self, run: &RunId) {
        if let Some(slot) = self.by_run.get_mut(run) {
            slot.fresh = 0;
            self.bytes -= std::mem::take(&mut slot.known).bytes().unwrap_or(0);
        }
    }

    /// Puts back what a decision took out to work on.
    pub(super) fn restore(&mut self, run: &RunId, known: Known) {
        if let Some(slot) = self.by_run.get_mut(run) {
            slot.known = known;
        }
    }

    /// Drops a run that has neither letters nor anything known.
    pub(super) fn tidy(&mut self, run: &RunId) {
        if let Some(slot) = self.by_run.get(run)
            && slot.mail.is_empty()
            && !slot.busy
            && slot.known.bytes().is_none()
        {
            self.by_run.remove(run);
        }
    }

    /// Bytes of what is kept.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Bytes were added to a kept run.
    pub(super) fn grew(&mut self, bytes: usize) {
        self.bytes += bytes;
    }

    /// A kept run was taken out.
    pub(super) fn shrank(&mut self, bytes: usize) {
        self.bytes -= bytes;
    }

    fn make_room(&mut self) {
        let mut looked = self.clock.len();
        while self.bytes > self.limit && looked > 0 {
            looked -= 1;
            let Some(run) = self.clock.pop_front() else { return };
            let Some(slot) = self.by_run.get_mut(&run) else { continue };
            if slot.known.bytes().is_none() {
                slot.clocked = false;
                continue;
            }
            if slot.busy || !slot.mail.is_empty() || std::mem::take(&mut slot.touched) {
                self.clock.push_back(run);
                continue;
            }
            self.forget(&run);
            self.by_run.remove(&run);
        }
        // Names of runs that ended pile up in the clock: sweep them out now and then.
        if self.clock.len() > 1_024 && self.clock.len() > 4 * self.by_run.len() {
            let by_run = &self.by_run;
            self.clock.retain(|r| by_run.get(r).is_some_and(|s| s.clocked));
        }
    }
}
