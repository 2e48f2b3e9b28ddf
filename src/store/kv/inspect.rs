//! A look at what stands in a map, for tests and the simulation: everything is read, nothing is changed.

use super::commit::time_of;
use super::keys::{self, Space, from_order_bytes};
use super::memory::Map;
use super::{Tx, damaged};
use crate::model::commit::QueueEntry;
use crate::model::ids::{Partition, RunId};
use crate::model::labels::QueueName;
use crate::model::time::Timestamp;
use crate::store::Result;
use bytes::Bytes;

/// An entry of a queue, waiting or claimed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Standing {
    /// Of which queue.
    pub queue: QueueName,
    /// What.
    pub entry: QueueEntry,
    /// Until when it is claimed; none while it waits.
    pub claimed_until: Option<Timestamp>,
}

/// See the module. Holds the store still while it lives.
#[allow(missing_debug_implementations, reason = "holds a borrowed map")]
pub struct Inspection<'m>(Tx<'m>);

impl<'m> Inspection<'m> {
    pub(super) fn new(map: &'m Map) -> Self {
        Self(Tx::new(map))
    }

    /// The record of a run, prefix included.
    pub fn record(&self, partition: Partition, run: &RunId) -> Result<Option<Bytes>> {
        self.0.get(&keys::record(partition, run))
    }

    /// All records of a partition, by run.
    pub fn records(&self, partition: Partition) -> Result<Vec<(RunId, Bytes)>> {
        let all = self.0.scan_prefix(keys::Key::of(Space::Record, partition).bytes(), usize::MAX)?;
        all.into_iter().map(|(key, value)| Ok((run_of(key.get(keys::HEAD..))?, value))).collect()
    }

    /// When a run is to be woken.
    pub fn wake(&self, partition: Partition, run: &RunId) -> Result<Option<Timestamp>> {
        Ok(time_of(&self.0, Space::WakeOf, partition, run)?.map(Timestamp))
    }

    /// All wake-ups of a partition, earliest first.
    pub fn wakes(&self, partition: Partition) -> Result<Vec<(Timestamp, RunId)>> {
        let all = self.0.scan_prefix(keys::Key::of(Space::Wake, partition).bytes(), usize::MAX)?;
        let read = |(key, _): (Vec<u8>, Bytes)| {
            let at = key.get(keys::HEAD..).and_then(from_order_bytes).ok_or_else(|| damaged("a wake-up"))?;
            Ok((Timestamp(at), run_of(key.get(keys::HEAD + 8..))?))
        };
        all.into_iter().map(read).collect()
    }

    /// Whether an entry waits, and whether it is claimed.
    pub fn entry(&self, partition: Partition, queue: &QueueName, entry: &QueueEntry) -> Result<(bool, bool)> {
        let raw = entry.encode();
        let ready = self.0.get(&keys::ready_of(partition, queue, &raw))?.is_some();
        let claimed = self.0.get(&keys::claim(partition, queue, &raw))?.is_some();
        Ok((ready, claimed))
    }

    /// All entries of a partition's queues, waiting ones first.
    pub fn entries(&self, partition: Partition) -> Result<Vec<Standing>> {
        let mut all = Vec::new();
        for space in [Space::ReadyOf, Space::Claim] {
            for (key, value) in self.0.scan_prefix(keys::Key::of(space, partition).bytes(), usize::MAX)? {
                let rest = key.get(keys::HEAD..).unwrap_or_default();
                let read = || {
                    let cut = rest.iter().position(|b| *b == 0)?;
                    let queue = std::str::from_utf8(rest.get(..cut)?).ok()?.parse().ok()?;
                    let entry = QueueEntry::decode(rest.get(cut + 1..)?)?;
                    let claimed_until = match space {
                        Space::Claim => Some(Timestamp(from_order_bytes(value.get(8..)?)?)),
                        _ => None,
                    };
                    Some(Standing { queue, entry, claimed_until })
                };
                all.push(read().ok_or_else(|| damaged("an entry of a queue"))?);
            }
        }
        Ok(all)
    }

    /// How many keys there are in each key space that has any, by its letter.
    pub fn census(&self) -> Result<Vec<(char, usize)>> {
        let mut found: Vec<(char, usize)> = Vec::new();
        for (key, _) in self.0.scan_prefix(Vec::new(), usize::MAX)? {
            let letter = key.first().map_or('?', |b| char::from(*b));
            match found.last_mut() {
                Some((last, n)) if *last == letter => *n += 1,
                _ => found.push((letter, 1)),
            }
        }
        Ok(found)
    }
}

fn run_of(bytes: Option<&[u8]>) -> Result<RunId> {
    let text = bytes.and_then(|b| std::str::from_utf8(b).ok());
    text.and_then(|t| RunId::new(t).ok()).ok_or_else(|| damaged("the name of a run"))
}
