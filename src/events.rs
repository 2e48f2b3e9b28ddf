//! Layer 3: cursors of event feeds, and who is watching what. Pure but for a notifier per run.
//!
//! ```text
//! run cursor     base64url( 4 ‖ epoch u64 BE ‖ run tag u64 BE ‖ next ordinal u32 BE ‖ mark u32 BE )
//! global cursor  base64url( 3 ‖ epoch u64 BE ‖ N ‖ N × (partition ‖ events) ‖ P × (ms ‖ seq) )      varints
//! ```
//!
//! A run cursor names the next event by its ordinal, which never changes, and has a mark of the one before it: if a store
//! that lost its tail tells another one there, the cursor is of what never was. A global cursor is a vector of
//! stream positions, everything at or below which was told; but of the entries at N of them only the first so many
//! events. The epoch is that of the store: a cursor of another store is foreign.
//!
//! Run cursors of an earlier form (1) have no mark. Global cursors of an earlier form (2) are read if they stand between two entries. They named how many events of the
//! *next* entry of one partition were told, which was not said by any position.

use crate::model::event::LogEntry;
use crate::model::ids::{Partition, RunId};
use crate::model::shared::SharedList;
use crate::store::StreamPosition;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use std::collections::BTreeMap;

/// Where a feed of one run stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunCursor {
    /// Of the store.
    pub epoch: u64,
    /// Of the run: tells runs of one id apart.
    pub tag: u64,
    /// Ordinal of the next event.
    pub next: u32,
    /// [`mark_of`] the event before it; none if there is none, or it is not known.
    pub told: Option<u32>,
}

/// Tells an event of a run from the one that stands in its place if the store lost it and the run went on: that one is of
/// another time.
pub fn mark_of(entry: &LogEntry) -> u32 {
    let mut h: u64 = 0xcbf2_9ce4_8422_2325;
    let what = [entry.kind.bit(), entry.time.0.cast_unsigned(), u64::from(entry.attempt)];
    for b in what.iter().chain(&entry.task.map(u64::from)).flat_map(|n| n.to_be_bytes()) {
        h = (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3);
    }
    (h ^ (h >> 32)) as u32
}

impl RunCursor {
    /// Writes the cursor.
    pub fn encode(&self) -> String {
        let mut b = Vec::with_capacity(25);
        b.push(if self.told.is_some() { 4 } else { 1 });
        b.extend_from_slice(&self.epoch.to_be_bytes());
        b.extend_from_slice(&self.tag.to_be_bytes());
        b.extend_from_slice(&self.next.to_be_bytes());
        if let Some(mark) = self.told {
            b.extend_from_slice(&mark.to_be_bytes());
        }
        URL_SAFE_NO_PAD.encode(b)
    }

    /// Reads a cursor; `None` if it is not one.
    pub fn decode(text: &str) -> Option<Self> {
        let b = URL_SAFE_NO_PAD.decode(text).ok()?;
        let told = match (b.first()?, b.len()) {
            (1, 21) => None,
            (4, 25) => Some(u32::from_be_bytes(b[21..25].try_into().ok()?)),
            _ => return None,
        };
        Some(Self {
            epoch: u64::from_be_bytes(b[1..9].try_into().ok()?),
            tag: u64::from_be_bytes(b[9..17].try_into().ok()?),
            next: u32::from_be_bytes(b[17..21].try_into().ok()?),
            told,
        })
    }

    /// Whether everything before it was told from this log of its run.
    pub fn fits<const N: usize>(&self, log: &SharedList<LogEntry, N>) -> bool {
        let Some(last) = self.next.checked_sub(1) else { return true };
        let told = log.get(last as usize).map(mark_of);
        told.is_some() && (self.told.is_none() || self.told == told)
    }
}

/// Tells runs apart that had the same id one after the other.
pub fn run_tag(run: &RunId, created_us: i64) -> u64 {
    let mut h: u64 = 0xcbf2_9ce4_8422_2325;
    for b in run.as_str().bytes().chain(created_us.to_be_bytes()) {
        h = (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3);
    }
    h
}

/// Where a feed of all runs stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GlobalCursor {
    /// Of the store.
    pub epoch: u64,
    /// Everything at or below was told, by partition.
    pub positions: Vec<StreamPosition>,
    /// Of the entries at these partitions' positions only so many events were told, at least one.
    pub within: BTreeMap<Partition, u32>,
}

fn put_varint(out: &mut Vec<u8>, mut v: u64) {
    while v >= 0x80 {
        out.push(v as u8 | 0x80);
        v >>= 7;
    }
    out.push(v as u8);
}

fn take_varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut v = 0u64;
    for shift in (0..64).step_by(7) {
        let (b, rest) = bytes.split_first()?;
        *bytes = rest;
        v |= u64::from(b & 0x7f).checked_shl(shift)?;
        if b & 0x80 == 0 {
            return Some(v);
        }
    }
    None
}

impl GlobalCursor {
    /// Writes the cursor.
    pub fn encode(&self) -> String {
        let mut b = Vec::with_capacity(16 + self.positions.len() * 8);
        b.push(3);
        b.extend_from_slice(&self.epoch.to_be_bytes());
        put_varint(&mut b, self.within.len() as u64);
        for (partition, events) in &self.within {
            put_varint(&mut b, u64::from(partition.0));
            put_varint(&mut b, u64::from(*events));
        }
        for p in &self.positions {
            put_varint(&mut b, p.0);
            // One more, so that the end of a millisecond, where a part stands that could not be asked, is short.
            put_varint(&mut b, p.1.wrapping_add(1));
        }
        URL_SAFE_NO_PAD.encode(b)
    }

    /// Reads a cursor of a store with `partitions`; `None` if it is not one.
    pub fn decode(text: &str, partitions: u16) -> Option<Self> {
        if text.len() > 64 << 10 {
            return None;
        }
        let b = URL_SAFE_NO_PAD.decode(text).ok()?;
        let epoch = u64::from_be_bytes(b.get(1..9)?.try_into().ok()?);
        let mut rest = b.get(9..)?;
        let mut within = BTreeMap::new();
        match b[0] {
            2 => {
                rest = rest.get(2..)?;
                if take_varint(&mut rest)? != 0 {
                    return None;
                }
            }
            3 => {
                let count = take_varint(&mut rest)?;
                if count > u64::from(partitions) {
                    return None;
                }
                for _ in 0..count {
                    let partition =
                        u16::try_from(take_varint(&mut rest)?).ok().filter(|p| *p < partitions)?;
                    let events = u32::try_from(take_varint(&mut rest)?).ok().filter(|n| *n > 0)?;
                    within.insert(Partition(partition), events);
                }
            }
            _ => return None,
        }
        let mut positions = Vec::with_capacity(usize::from(partitions));
        for _ in 0..partitions {
            let (ms, sequence) = (take_varint(&mut rest)?, take_varint(&mut rest)?);
            positions.push(StreamPosition(ms, if b[0] == 3 { sequence.wrapping_sub(1) } else { sequence }));
        }
        rest.is_empty().then_some(Self { epoch, positions, within })
    }

    /// Where it stands in a partition's stream.
    pub fn position(&self, partition: Partition) -> StreamPosition {
        self.positions.get(usize::from(partition.0)).copied().unwrap_or_default()
    }

    /// After which position a partition's stream is read on: that of the last entry that was told to its end.
    pub fn after(&self, partition: Partition) -> StreamPosition {
        let at = self.position(partition);
        if self.within.contains_key(&partition) { at.before() } else { at }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_fits_into_a_header_and_a_query_however_many_partitions_there_are() {
        let encoded = |partitions: u16| {
            let positions = vec![StreamPosition::end_of(1_796_000_000_000); usize::from(partitions)];
            let cursor = GlobalCursor { epoch: u64::MAX, positions, within: BTreeMap::new() };
            let text = cursor.encode();
            assert_eq!(GlobalCursor::decode(&text, partitions), Some(cursor));
            text.len()
        };
        assert!(encoded(16) <= 200 && encoded(48) <= 480 && encoded(1_024) < 10_000, "{}", encoded(16));
    }

    #[test]
    fn run_cursors_round_trip_and_junk_is_none() {
        for told in [None, Some(10)] {
            let c = RunCursor { epoch: 7, tag: 8, next: 9, told };
            assert_eq!(RunCursor::decode(&c.encode()), Some(c));
            assert_eq!(RunCursor::decode(&c.encode()[..26]), None);
        }
        for junk in ["", "x", "AQ", "ZZZZ", "%%%"] {
            assert_eq!(RunCursor::decode(junk), None);
        }
    }

    #[test]
    fn global_cursors_round_trip_and_know_their_number_of_partitions() {
        let positions = (0..8).map(|n| StreamPosition(u64::MAX - n, n * 300)).collect();
        let within = BTreeMap::from([(Partition(2), 1), (Partition(7), 128)]);
        let c = GlobalCursor { epoch: u64::MAX, positions, within };
        let text = c.encode();
        assert_eq!(GlobalCursor::decode(&text, 8), Some(c));
        assert_eq!(GlobalCursor::decode(&text, 7), None);
        assert_eq!(GlobalCursor::decode(&text, 9), None);
        assert_eq!(GlobalCursor::decode(&text[..text.len() - 2], 8), None);
        for junk in ["", "Ag", "Aw", "BA", "%"] {
            assert_eq!(GlobalCursor::decode(junk, 8), None);
        }
    }

    #[test]
    fn global_cursors_of_the_earlier_form_are_read_between_two_entries() {
        let earlier = |events: u8| {
            let mut b = vec![2];
            b.extend_from_slice(&7_u64.to_be_bytes());
            b.extend_from_slice(&[0, 1, events, 5, 0, 6, 1]);
            URL_SAFE_NO_PAD.encode(b)
        };
        let positions = vec![StreamPosition(5, 0), StreamPosition(6, 1)];
        let read = GlobalCursor { epoch: 7, positions, within: BTreeMap::new() };
        assert_eq!(GlobalCursor::decode(&earlier(0), 2), Some(read));
        assert_eq!(GlobalCursor::decode(&earlier(3), 2), None);
    }

    #[test]
    fn inside_of_an_entry_that_entry_is_read_again() {
        let positions = vec![StreamPosition(5, 0), StreamPosition(6, 1), StreamPosition(7, 3)];
        let within = BTreeMap::from([(Partition(0), 1), (Partition(1), 1)]);
        let c = GlobalCursor { epoch: 7, positions, within };
        let after = [0, 1, 2].map(|p| c.after(Partition(p)));
        assert_eq!(after, [StreamPosition(4, u64::MAX), StreamPosition(6, 0), StreamPosition(7, 3)]);
    }

    #[test]
    fn a_global_cursor_of_sixteen_partitions_fits_in_two_hundred_bytes_before_encoding() {
        let positions = vec![StreamPosition(1_796_000_000_000, 3); 16];
        let c = GlobalCursor { epoch: 1, positions, within: BTreeMap::from([(Partition(3), 12)]) };
        assert!(c.encode().len() <= 200 * 4 / 3);
    }

    #[test]
    fn a_run_that_takes_an_id_again_has_another_tag() {
        let id = RunId::new("order-1").unwrap();
        assert_ne!(run_tag(&id, 1), run_tag(&id, 2));
    }
}
