//! Layer 3: cursors of event feeds, and who is watching what. Pure but for a notifier per run.
//!
//! ```text
//! run cursor     base64url( 1 ‖ epoch u64 BE ‖ run tag u64 BE ‖ next ordinal u32 BE )
//! global cursor  base64url( 2 ‖ epoch u64 BE ‖ partition u16 BE ‖ done varint ‖ P × (varint ms ‖ varint seq) )
//! ```
//!
//! A run cursor names the next event by its ordinal, which never changes. A global cursor is a vector of
//! stream positions, everything at or below which was told, and how many events of the next entry of one
//! partition were told as well. The epoch is that of the store: a cursor of another store is foreign.

use crate::model::ids::{Partition, RunId};
use crate::store::StreamPosition;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

/// Where a feed of one run stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunCursor {
    /// Of the store.
    pub epoch: u64,
    /// Of the run: tells runs of one id apart.
    pub tag: u64,
    /// Ordinal of the next event.
    pub next: u32,
}

impl RunCursor {
    /// Writes the cursor.
    pub fn encode(&self) -> String {
        let mut b = Vec::with_capacity(21);
        b.push(1);
        b.extend_from_slice(&self.epoch.to_be_bytes());
        b.extend_from_slice(&self.tag.to_be_bytes());
        b.extend_from_slice(&self.next.to_be_bytes());
        URL_SAFE_NO_PAD.encode(b)
    }

    /// Reads a cursor; `None` if it is not one.
    pub fn decode(text: &str) -> Option<Self> {
        let b = URL_SAFE_NO_PAD.decode(text).ok()?;
        if b.len() != 21 || b[0] != 1 {
            return None;
        }
        Some(Self {
            epoch: u64::from_be_bytes(b[1..9].try_into().ok()?),
            tag: u64::from_be_bytes(b[9..17].try_into().ok()?),
            next: u32::from_be_bytes(b[17..21].try_into().ok()?),
        })
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
    /// So many events of the next entry of this partition were told as well.
    pub within: (Partition, u32),
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
        b.push(2);
        b.extend_from_slice(&self.epoch.to_be_bytes());
        b.extend_from_slice(&self.within.0.0.to_be_bytes());
        put_varint(&mut b, u64::from(self.within.1));
        for p in &self.positions {
            put_varint(&mut b, p.0);
            put_varint(&mut b, p.1);
        }
        URL_SAFE_NO_PAD.encode(b)
    }

    /// Reads a cursor of a store with `partitions`; `None` if it is not one.
    pub fn decode(text: &str, partitions: u16) -> Option<Self> {
        if text.len() > 64 << 10 {
            return None;
        }
        let b = URL_SAFE_NO_PAD.decode(text).ok()?;
        if *b.first()? != 2 {
            return None;
        }
        let epoch = u64::from_be_bytes(b.get(1..9)?.try_into().ok()?);
        let partition = u16::from_be_bytes(b.get(9..11)?.try_into().ok()?);
        let mut rest = b.get(11..)?;
        let done = u32::try_from(take_varint(&mut rest)?).ok()?;
        let mut positions = Vec::with_capacity(usize::from(partitions));
        for _ in 0..partitions {
            positions.push(StreamPosition(take_varint(&mut rest)?, take_varint(&mut rest)?));
        }
        let ours = rest.is_empty() && partition < partitions.max(1);
        ours.then_some(Self { epoch, positions, within: (Partition(partition), done) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_cursors_round_trip_and_junk_is_none() {
        let c = RunCursor { epoch: 7, tag: 8, next: 9 };
        assert_eq!(RunCursor::decode(&c.encode()), Some(c));
        for junk in ["", "x", "AQ", "ZZZZ", "%%%"] {
            assert_eq!(RunCursor::decode(junk), None);
        }
    }

    #[test]
    fn global_cursors_round_trip_and_know_their_number_of_partitions() {
        let positions = (0..8).map(|n| StreamPosition(u64::MAX - n, n * 300)).collect();
        let c = GlobalCursor { epoch: u64::MAX, positions, within: (Partition(7), 128) };
        let text = c.encode();
        assert_eq!(GlobalCursor::decode(&text, 8), Some(c));
        assert_eq!(GlobalCursor::decode(&text, 7), None);
        assert_eq!(GlobalCursor::decode(&text, 9), None);
        assert_eq!(GlobalCursor::decode(&text[..text.len() - 2], 8), None);
        assert_eq!(GlobalCursor::decode("Ag", 8), None);
    }

    #[test]
    fn a_global_cursor_of_sixteen_partitions_fits_in_two_hundred_bytes_before_encoding() {
        let positions = vec![StreamPosition(1_796_000_000_000, 3); 16];
        let c = GlobalCursor { epoch: 1, positions, within: (Partition(3), 12) };
        assert!(c.encode().len() <= 200 * 4 / 3);
    }

    #[test]
    fn a_run_that_takes_an_id_again_has_another_tag() {
        let id = RunId::new("order-1").unwrap();
        assert_ne!(run_tag(&id, 1), run_tag(&id, 2));
    }
}
