//! Layer 2: the store port. One atomic commit of many decisions; each has its compare, the batch has
//! its sequence. Two families implement it and pass one contract suite (`tests/store_contract`):
//! [`kv`] (the [`embedded`] directory, and the simulation's memory) and [`redis`].
//!
//! Invariants
//! - A decision is applied whole or not at all; nothing of a refused decision is written.
//! - A batch whose reply was lost is sent again with the same lane and sequence, and answers as the first time.
//! - "Not found" is `None`, never an error. An error means: not known whether it happened, unless
//!   [`StoreError::was_sent`] is false.
//! - Only `redis/keys.rs` spells a Redis key.

pub mod embedded;
pub mod kv;
pub mod migrations;
pub mod moves;
pub mod redis;

use crate::model::commit::{QueueEntry, QueueOp, RunWrite, Write};
use crate::model::ids::{Nonce, Partition, Prefix, RunId, SessionId, WorkflowName};
use crate::model::labels::QueueName;
use crate::model::payload::Field;
use crate::model::time::{LeaseTime, Span, Timestamp};
use async_trait::async_trait;
use bytes::Bytes;
use moves::RESTORING;
pub use moves::{Moves, Purpose};
use std::collections::BTreeSet;

/// The layout version this code reads and writes. Source: migrations/README.md.
pub const LAYOUT: u32 = 2;

/// How many sequences of a lane are remembered.
pub const LANE_KEPT: u64 = 16;
/// A lane that wrote nothing for so long is dropped: longer than any deadline of a link.
pub const LANE_IDLE: Span = Span::secs(600);
/// The most a lease clock goes on between two ticks.
pub const LEASE_STEP: Span = Span::secs(2);
/// How far a due wake-up (or retention) is moved ahead by the tick that tells it.
pub const DUE_AGAIN: Span = Span::secs(2);
/// The most expired claims one tick of a partition returns; a store may count all partitions of a call together.
pub const RECLAIM_MAX: u32 = 1_000;
/// How long a session's record outlives its lease, on the lease clock.
pub const SESSION_KEPT: Span = Span::secs(3_600);
/// Retention of a partition is looked at this often at most, whoever ticks it; at once again if not all was told.
pub const RETENTION_EVERY: Span = Span::secs(5);
/// Between two sweeps of what nobody asks for any more (dead sessions, dead lanes), whoever ticks.
pub const SWEEP_EVERY: Span = Span::secs(60);
/// How many entries are trimmed from an event stream at once.
pub const STREAM_TRIM: u64 = 32;
/// Entries each partition's event stream keeps unless told otherwise; at most [`STREAM_TRIM`] more stand in it.
pub const STREAM_BOUND: u64 = 50_000;
/// The number of partitions of a new store unless told otherwise.
pub const PARTITIONS: u16 = 8;

/// Scores and times that order something: within ±(2^53 − 1), so that a sorted set keeps them exact.
pub(crate) fn order_value(n: i64) -> i64 {
    const MAX: i64 = (1 << 53) - 1;
    n.clamp(-MAX, MAX)
}

/// The queues that decisions of a batch touch, accepted or not, lowest first.
pub(crate) fn touched_queues(writes: &[(Partition, RunWrite)]) -> BTreeSet<(Partition, &QueueName)> {
    let mut touched = BTreeSet::new();
    for (partition, write) in writes {
        if write.write != Write::Check {
            touched.extend(write.queue.iter().map(|op| match op {
                QueueOp::Add { queue, .. } | QueueOp::Remove { queue, .. } => (*partition, queue),
            }));
        }
    }
    touched
}

/// Refuses what no lane may send: a partition the store does not have, a record without a prefix.
pub(crate) fn check_batch(batch: &Batch, layout: Layout) -> Result<()> {
    let refuse = |message: String| Err(StoreError::Unavailable { message, sent: false });
    for (partition, write) in &batch.writes {
        if partition.0 >= layout.partitions {
            return refuse(format!("partition {} of {} was asked for", partition.0, layout.partitions));
        }
        if let Write::Put(record) = &write.write
            && record.len() < Prefix::LEN
        {
            return refuse(format!("the record of run {} is shorter than a prefix", write.run));
        }
    }
    Ok(())
}

/// The partition that keeps a session, if the store has it.
pub(crate) fn session_partition(id: &SessionId, layout: Layout) -> Option<Partition> {
    id.partition().filter(|p| p.0 < layout.partitions)
}

/// The refusal of a store whose layout is not the one wanted.
pub(crate) fn unknown_layout(found: u32, wanted: u32) -> StoreError {
    if found & RESTORING != 0 {
        return StoreError::Unreadable(
            "a restore into it has not ended: run `downbeat restore` with the same file again, or empty the store"
                .into(),
        );
    }
    if wanted & RESTORING != 0 {
        let message = format!(
            "it is in use (it was initialised, with layout {found}): restore into an empty Redis or a new directory"
        );
        return StoreError::Unfit(message);
    }
    let remedy = if found > LAYOUT { "use a newer version" } else { "use the version that wrote it" };
    StoreError::Unreadable(format!(
        "the store has layout {found}; this version of Downbeat knows layout {LAYOUT}: {remedy}, or begin with an empty store"
    ))
}

/// Why a verb failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// The store is away, slow, read-only or loading, which passes by itself. May have happened if `sent`.
    #[error("the store is unavailable: {message}")]
    Unavailable {
        /// What it said.
        message: String,
        /// False: provably nothing was written.
        sent: bool,
    },
    /// The store, or the way to it, is not what it must be until somebody changes something: a wrong password, a version
    /// that is too old, another number of partitions than was asked for. Nothing was written.
    #[error("the store cannot be used: {0}")]
    Unfit(String),
    /// The store is full; nothing was written.
    #[error("the store is full: {0}")]
    Full(String),
    /// The layout or a record is not one we know; nothing was written.
    #[error("the store holds something this version cannot read: {0}")]
    Unreadable(String),
    /// The sequence is older than what is kept: settle by reading the records.
    #[error("the batch is older than what the store remembers of its lane")]
    Forgotten,
}

impl StoreError {
    /// Whether the verb may have taken effect.
    pub fn was_sent(&self) -> bool {
        match self {
            Self::Unavailable { sent, .. } => *sent,
            Self::Unfit(_) | Self::Full(_) | Self::Unreadable(_) => false,
            Self::Forgotten => true,
        }
    }

    /// Whether it may pass although nobody changes anything: what a server that starts waits for.
    pub fn passes(&self) -> bool {
        match self {
            Self::Unavailable { .. } | Self::Full(_) | Self::Forgotten => true,
            Self::Unfit(_) | Self::Unreadable(_) => false,
        }
    }
}

/// Result of a verb.
pub type Result<T> = std::result::Result<T, StoreError>;

/// What was fixed when the store was initialised.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// Layout version.
    pub version: u32,
    /// Number of partitions.
    pub partitions: u16,
    /// Names this initialisation of the store (events' cursors carry it).
    pub epoch: u64,
}

/// Many decisions, one round trip. At most 128 decisions and 512 KB, or one larger decision alone.
#[derive(Debug, Clone)]
pub struct Batch {
    /// Incarnation of the lane; random, new for every start of a lane.
    pub lane: Nonce,
    /// Rises by one with every batch of this lane, from 1. A repeat has the same number and content.
    pub sequence: u64,
    /// Each with the partition of its run. No run occurs twice.
    pub writes: Vec<(Partition, RunWrite)>,
}

/// What became of one decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The compare held; everything was written (or, for a check, nothing was to be written).
    Applied,
    /// The compare failed: the run is not what it was decided on.
    Conflict,
    /// The run is new, and the store does not hold what it is of ([`RunWrite::of`]): it has lost its tail. Said only where
    /// both are in one place ([`Store::groups`] has one group).
    NoWorkflow,
}

/// The first entry of a ready queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueHead {
    /// Where.
    pub partition: Partition,
    /// Of which queue.
    pub queue: QueueName,
    /// The lowest score that waits there; none if the queue is empty.
    pub score: Option<i64>,
    /// How many wait.
    pub depth: u64,
}

/// Reply to a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Committed {
    /// In the order of the batch.
    pub verdicts: Vec<Verdict>,
    /// Heads of the queues the batch touched (empty on a replayed answer).
    pub heads: Vec<QueueHead>,
}

/// A taken entry: in the claimed set until the commit that leases it, or until the claim expires.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Taken {
    /// Where.
    pub partition: Partition,
    /// Of which queue.
    pub queue: QueueName,
    /// What.
    pub entry: QueueEntry,
    /// Its place.
    pub score: i64,
}

/// What is due in a partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ticked {
    /// The store's clock.
    pub now: Timestamp,
    /// The partition's lease clock, advanced by at most 2 s since the last tick by anyone.
    pub lease_now: LeaseTime,
    /// Runs whose wake-up is due; each was moved 2 s ahead by this call.
    pub due: Vec<RunId>,
    /// Finished runs whose retention has passed, looked for every [`RETENTION_EVERY`]; each was moved 2 s ahead by this
    /// call.
    pub expired: Vec<RunId>,
    /// When the next wake-up is due that this call did not tell. None: there is no other.
    pub next: Option<Timestamp>,
    /// Heads of all non-empty queues.
    pub heads: Vec<QueueHead>,
    /// Expired claims that went back to their queues.
    pub reclaimed: u32,
}

/// A worker session as the store keeps it, in the partition its id names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionRecord {
    /// Rises with every resume.
    pub epoch: u32,
    /// The worker's own label.
    pub label: String,
    /// The server that owns it (its boot nonce).
    pub owner: Nonce,
    /// Deadline on the partition's lease clock.
    pub deadline: LeaseTime,
    /// Set by the reads: the partition's lease clock at that moment.
    pub lease_now: LeaseTime,
}

impl SessionRecord {
    /// From the moment it was read to its deadline; below zero since that passed.
    pub fn remaining(&self) -> Span {
        Span(self.deadline.0.saturating_sub(self.lease_now.0))
    }
}

/// A position in a partition's event stream: Redis' `ms-seq`, compared as a pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct StreamPosition(pub u64, pub u64);

impl StreamPosition {
    /// The end of a millisecond: no entry is there, so nothing was told of one. Where somebody stands who follows from
    /// that moment on and cannot know what the stream holds.
    pub const fn end_of(ms: u64) -> Self {
        Self(ms, u64::MAX)
    }

    /// Whether it is an [end of a millisecond](Self::end_of).
    pub fn is_moment(self) -> bool {
        self == Self::end_of(self.0)
    }

    /// See [`Store::resumable`]; `stands`: an entry is at it.
    pub(crate) fn is_resumable(self, stands: bool, trimmed_through: Self) -> bool {
        let told_of_nothing = self == Self::default() || self.is_moment();
        self == trimmed_through || (self > trimmed_through && (stands || told_of_nothing))
    }

    /// The position before it; the first has none but itself.
    #[must_use]
    pub const fn before(self) -> Self {
        match (self.0.checked_sub(1), self.1.checked_sub(1)) {
            (_, Some(sequence)) => Self(self.0, sequence),
            (Some(ms), None) => Self::end_of(ms),
            (None, None) => self,
        }
    }
}

/// One entry of an event stream: the notes of one commit batch in one partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamEntry {
    /// Where.
    pub partition: Partition,
    /// Its position.
    pub position: StreamPosition,
    /// [`crate::model::commit::EventNote`]s, concatenated.
    pub notes: Bytes,
}

/// What a partition's event stream holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamBounds {
    /// Everything at or below this was trimmed.
    pub trimmed_through: StreamPosition,
    /// The last entry's position.
    pub last: StreamPosition,
}

/// A wake-up between servers: never the truth, only a reason to look earlier than the poll.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Hint {
    /// This queue went from empty to non-empty.
    Queue(Partition, QueueName),
    /// Event streams have grown. Sent only by a store whose `read_events` cannot wait; today's all can.
    Events,
    /// The link was re-made: hints may have been missed.
    Reconnected,
    /// The link was re-made to another Redis than before, or to one that was started anew: it may lack what it, or the
    /// one before, had last taken. Hints may have been missed too.
    Replaced,
}

/// A stored workflow document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredWorkflow {
    /// Its name.
    pub name: WorkflowName,
    /// Its version, from 1.
    pub version: u32,
    /// The canonical document (JSON).
    pub document: Bytes,
    /// When it was registered.
    pub created_at: Timestamp,
}

/// A workflow in the list of all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedWorkflow {
    /// Its name.
    pub name: WorkflowName,
    /// Its newest version.
    pub version: u32,
    /// When that was stored.
    pub created_at: Timestamp,
}

/// A number that a store tells of itself for `/metrics`, where it stands as `downbeat_store_` and its name.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Reading {
    /// In snake case with its unit last, as Prometheus has it; of a fixed set.
    pub name: &'static str,
    /// One line without a full stop.
    pub help: &'static str,
    /// It only ever rises.
    pub rises: bool,
    /// How much.
    pub value: f64,
}

/// The port.
#[async_trait]
pub trait Store: Send + Sync + std::fmt::Debug {
    /// What was fixed when the store was initialised.
    fn layout(&self) -> Layout;

    /// Partitions that can share one batch, and that are away together if they are: one group on a single Redis or a
    /// file, one per partition on a cluster.
    fn groups(&self) -> Vec<Vec<Partition>> {
        vec![(0..self.layout().partitions).map(Partition).collect()]
    }

    /// Subscribes to hints. A lagging receiver loses old ones; that is fine.
    fn hints(&self) -> tokio::sync::broadcast::Receiver<Hint>;

    /// What the store tells of itself, at once and without asking anybody: its link, its files. The same names, always.
    fn report(&self) -> Vec<Reading> {
        Vec::new()
    }

    /// Can the store take writes now? Used by readiness. Err says why not; if only a part of it takes none, it is well: a
    /// server serves what is on the others.
    async fn check(&self) -> Result<()>;

    /// The records of these runs, prefix included, in order; none where there is none.
    async fn load(&self, runs: &[(Partition, RunId)]) -> Result<Vec<Option<Bytes>>>;

    /// Waits until no fail-over takes back what was read of a run when its record had this prefix. False: it has another
    /// one by now. At once where a fail-over is not waited for.
    async fn settled(&self, partition: Partition, run: &RunId, prefix: &Prefix) -> Result<bool> {
        let _ = (partition, run, prefix);
        Ok(true)
    }

    /// Stored payload fields of a run, in order.
    async fn payloads(
        &self,
        partition: Partition,
        run: &RunId,
        fields: &[Field],
    ) -> Result<Vec<Option<Bytes>>>;

    /// Applies a batch. A batch of checks only is not remembered: its repeat is checked anew.
    async fn commit(&self, batch: &Batch) -> Result<Committed>;

    /// Moves up to `max` first entries of each queue to the claimed set, for `claim` long; returns them in order.
    /// A queue may be named more than once: the later one gets what the earlier left.
    async fn take(&self, wanted: &[(Partition, QueueName, u32)], claim: Span) -> Result<Vec<Taken>>;

    /// Settles claims that turned out stale: drops each only if the run's record still has the prefix it was
    /// judged by (`None`: there is no record); otherwise returns it to its queue.
    async fn discard(&self, stale: &[(Taken, Option<Prefix>)]) -> Result<()>;

    /// Advances the clocks of these partitions and says what is due; at most `max` runs each. With 0 it looks at the
    /// clocks and at nothing else.
    async fn tick(&self, partitions: &[Partition], max: u32) -> Result<Vec<Ticked>>;

    /// Creates or replaces a session if its epoch in the store is `expect` (none: does not exist). The deadline is
    /// set `lease` from now on the partition's lease clock. False: the epoch differs, or the id names no partition.
    /// The record vanishes [`SESSION_KEPT`] after the lease, on that clock.
    async fn put_session(
        &self,
        id: &SessionId,
        record: &SessionRecord,
        expect: Option<u32>,
        lease: Span,
    ) -> Result<bool>;

    /// Renews sessions (of any partitions), in order; false for each that is gone or has another epoch.
    async fn renew_sessions(&self, sessions: &[(SessionId, u32)], lease: Span) -> Result<Vec<bool>>;

    /// Reads sessions (of any partitions), in order.
    async fn sessions(&self, ids: &[SessionId]) -> Result<Vec<Option<SessionRecord>>>;

    /// Removes a session if it has this epoch.
    async fn remove_session(&self, id: &SessionId, epoch: u32) -> Result<()>;

    /// Up to `max` entries after each position, in order per partition. Waits up to `wait` if there is none; that is
    /// cheap for partitions of one group ([`Store::groups`]). Who waits again and again is told by an error if the store
    /// may have been another one meanwhile and a position is not [`Store::resumable`]; by one reading only.
    async fn read_events(
        &self,
        after: &[(Partition, StreamPosition)],
        max: u32,
        wait: Span,
    ) -> Result<Vec<StreamEntry>>;

    /// Bounds of these partitions' streams, in order.
    async fn stream_bounds(&self, partitions: &[Partition]) -> Result<Vec<StreamBounds>>;

    /// For each position whether who was told everything through it misses nothing by reading on from there: what stood at
    /// it stands there still, or is the last that was trimmed, and nothing behind it was trimmed. A stream that was cut
    /// short below it and has grown anew is told by this, since positions are of the time of writing.
    async fn resumable(&self, at: &[(Partition, StreamPosition)]) -> Result<Vec<bool>>;

    /// Trims a partition's stream up to and with an entry that was read; how many entries went.
    async fn trim_events(&self, partition: Partition, through: StreamPosition) -> Result<u64>;

    /// Up to `max` runs of a partition created before (`created`, `run`), newest first. None: from the newest.
    async fn list(
        &self,
        partition: Partition,
        before: Option<(Timestamp, RunId)>,
        max: u32,
    ) -> Result<Vec<(Timestamp, RunId)>>;

    /// Stores `document` as the version after the newest, unless the newest equals it byte for byte.
    /// Returns what is newest now and whether it was made by this call. Safe to repeat.
    async fn put_workflow(&self, name: &WorkflowName, document: &Bytes) -> Result<(StoredWorkflow, bool)>;

    /// One version, or the newest.
    async fn workflow(&self, name: &WorkflowName, version: Option<u32>) -> Result<Option<StoredWorkflow>>;

    /// Up to `max` workflows before (`created`, `name`), the one with the newest version first. None: from the newest.
    async fn workflows(
        &self,
        before: Option<(Timestamp, WorkflowName)>,
        max: u32,
    ) -> Result<Vec<ListedWorkflow>>;

    /// Removes a workflow with all versions. False: there was none. (Use by runs is checked by the caller.)
    async fn remove_workflow(&self, name: &WorkflowName) -> Result<bool>;
}
