//! The verbs of the port over any ordered key-value map: the embedded file and the simulation share them.
//!
//! ```text
//! memory.rs     one BTreeMap, one lock: the simulation and tests
//! ../embedded   fjall on disk
//! commit.rs queue.rs tick.rs session.rs stream.rs read.rs workflow.rs   the verbs, synchronous
//! tx.rs         writes in the making, seen by later reads of the same transaction
//! keys.rs       the only place a key of this family is spelled
//! derived.rs    what need not be on disk
//! moves.rs      all of it in order, for backup and restore
//! inspect.rs    a look at all of it, for tests and the simulation
//! ```
//!
//! Invariants
//! - A verb is a function of the map, its arguments and the time it is given; it reads no clock and draws no
//!   randomness, so a seed replays.
//! - A verb writes into a [`Tx`] only. One that fails leaves no trace in it.
//! - What a verb does here and what its script does on Redis are the same (`tests/store_contract`, differential).
//!
//! To add a verb: a function over `&mut Tx` here, a call in `memory.rs` and `../embedded`, a script, a contract test.

pub mod commit;
mod derived;
pub mod inspect;
pub mod keys;
pub mod memory;
pub mod moves;
pub mod queue;
pub mod read;
pub mod session;
pub mod stream;
pub mod tick;
pub mod tx;
pub mod workflow;

use crate::model::ids::{Partition, Prefix};
use crate::model::labels::QueueName;
use crate::store::{Hint, Layout, Result, StoreError};
use bytes::Bytes;
use std::collections::BTreeMap;

pub(crate) use derived::{derive, is_derived};
pub use tx::Tx;

/// Which end of a range comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// Lowest key first.
    Ascending,
    /// Highest key first.
    Descending,
}

/// A key and its value.
pub type Pair = (Vec<u8>, Bytes);

/// Writes by key; none removes.
pub type Writes = BTreeMap<Vec<u8>, Option<Bytes>>;

/// An ordered map of byte strings.
pub trait Kv {
    /// The value of a key.
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>>;
    /// The first [`Prefix::LEN`] bytes of a record. A map may answer faster than by reading it.
    fn prefix(&self, record: &[u8]) -> Result<Option<Prefix>> {
        prefix_of(self.get(record)?.as_deref())
    }
    /// Up to `limit` pairs with `from` ≤ key < `to`.
    fn scan(&self, from: &[u8], to: &[u8], limit: usize, order: Order) -> Result<Vec<Pair>>;
    /// Applies all writes or, on an error that was not sent, none.
    fn apply(&mut self, writes: Writes) -> Result<()>;
}

/// What the verbs need to know of the store besides its contents.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    /// Fixed when the store was initialised.
    pub layout: Layout,
    /// Entries each partition's event stream keeps, about.
    pub stream_bound: u64,
}

impl Shape {
    /// Refuses partitions the store does not have.
    pub(crate) fn holds(&self, partition: Partition) -> Result<()> {
        if partition.0 < self.layout.partitions {
            return Ok(());
        }
        Err(StoreError::Unavailable {
            message: format!("partition {} of {} was asked for", partition.0, self.layout.partitions),
            sent: false,
        })
    }
}

/// The prefix of a record, if there is a record.
pub(crate) fn prefix_of(record: Option<&[u8]>) -> Result<Option<Prefix>> {
    record.map(|r| Prefix::of(r).ok_or_else(|| damaged("the record of a run"))).transpose()
}

/// What to tell others after a verb was applied.
#[derive(Debug, Default)]
pub struct Effects {
    /// Queues that went from empty to non-empty.
    pub filled: Vec<(Partition, QueueName)>,
    /// Whether an event stream has grown.
    pub events: bool,
}

impl Effects {
    /// The hints these effects are worth.
    pub fn hints(self) -> impl Iterator<Item = Hint> {
        self.filled.into_iter().map(|(partition, queue)| Hint::Queue(partition, queue))
    }
}

/// The meta record: layout version u32 ‖ partitions u16 ‖ epoch u64, big endian. It never changes its form.
pub(crate) fn encode_layout(layout: Layout) -> Vec<u8> {
    let mut out = layout.version.to_be_bytes().to_vec();
    out.extend_from_slice(&layout.partitions.to_be_bytes());
    out.extend_from_slice(&layout.epoch.to_be_bytes());
    out
}

/// Reads [`encode_layout`].
pub(crate) fn decode_layout(bytes: &[u8]) -> Option<Layout> {
    Some(Layout {
        version: u32::from_be_bytes(bytes.get(..4)?.try_into().ok()?),
        partitions: u16::from_be_bytes(bytes.get(4..6)?.try_into().ok()?),
        epoch: u64::from_be_bytes(bytes.get(6..14)?.try_into().ok()?),
    })
}

/// A stored value of ours that has not its form.
pub(crate) fn damaged(what: &str) -> StoreError {
    StoreError::Unreadable(format!("{what} has not the form this version writes"))
}
