//! Event streams: one entry per batch and partition, bounded, with an exact mark of what was trimmed.
//!
//! ```text
//! stream head:  last ms u64 ‖ last seq u64 ‖ trimmed-through ms u64 ‖ trimmed-through seq u64 ‖ entries u64
//! ```

use super::keys::{self, Space};
use super::{Order, Shape, Tx, damaged};
use crate::model::ids::Partition;
use crate::model::time::Timestamp;
use crate::store::{Result, STREAM_TRIM, StreamBounds, StreamEntry, StreamPosition};
use bytes::Bytes;

#[derive(Debug, Clone, Copy, Default)]
struct Head {
    last: StreamPosition,
    trimmed: StreamPosition,
    entries: u64,
}

impl Head {
    fn key(partition: Partition) -> Vec<u8> {
        keys::Key::of(Space::StreamHead, partition).bytes()
    }

    fn read(tx: &Tx<'_>, partition: Partition) -> Result<Self> {
        let Some(value) = tx.get(&Self::key(partition))? else { return Ok(Self::default()) };
        let number = |n: usize| Some(u64::from_be_bytes(value.get(n * 8..n * 8 + 8)?.try_into().ok()?));
        let read = || {
            Some(Self {
                last: StreamPosition(number(0)?, number(1)?),
                trimmed: StreamPosition(number(2)?, number(3)?),
                entries: number(4)?,
            })
        };
        read().ok_or_else(|| damaged("the head of an event stream"))
    }

    fn write(self, tx: &mut Tx<'_>, partition: Partition) {
        let numbers = [self.last.0, self.last.1, self.trimmed.0, self.trimmed.1, self.entries];
        tx.put(Self::key(partition), numbers.map(u64::to_be_bytes).concat());
    }
}

/// Appends one entry; trims the oldest [`STREAM_TRIM`] when there are that many over the bound.
pub(super) fn append(
    tx: &mut Tx<'_>,
    shape: &Shape,
    partition: Partition,
    notes: Bytes,
    now: Timestamp,
) -> Result<()> {
    let mut head = Head::read(tx, partition)?;
    let ms = now.as_millis().max(0).unsigned_abs();
    head.last =
        if ms > head.last.0 { StreamPosition(ms, 0) } else { StreamPosition(head.last.0, head.last.1 + 1) };
    tx.put(keys::stream(partition, head.last), notes);
    head.entries += 1;
    if head.entries >= shape.stream_bound + STREAM_TRIM {
        let to = keys::after_prefix(keys::Key::of(Space::Stream, partition).bytes());
        cut(tx, partition, &mut head, &to, STREAM_TRIM as usize)?;
    }
    head.write(tx, partition);
    Ok(())
}

/// Removes up to `max` of the oldest entries below `to`; how many.
fn cut(tx: &mut Tx<'_>, partition: Partition, head: &mut Head, to: &[u8], max: usize) -> Result<u64> {
    // Trimmed keys stand above the live ones' start, so that a log-structured map skips no tombstones.
    let from = keys::stream(partition, head.trimmed).into_iter().chain([0]).collect::<Vec<_>>();
    let oldest = tx.scan(&from, to, max, Order::Ascending)?;
    let gone = oldest.len() as u64;
    for (key, _) in oldest {
        head.trimmed = keys::stream_position(&key).ok_or_else(|| damaged("an event entry"))?;
        tx.remove(key);
    }
    head.entries = head.entries.saturating_sub(gone);
    Ok(gone)
}

/// See [`crate::store::Store::trim_events`].
pub fn trim(tx: &mut Tx<'_>, shape: &Shape, partition: Partition, through: StreamPosition) -> Result<u64> {
    shape.holds(partition)?;
    let mut head = Head::read(tx, partition)?;
    let to = keys::stream(partition, through).into_iter().chain([0]).collect::<Vec<_>>();
    let gone = cut(tx, partition, &mut head, &to, usize::MAX)?;
    if gone > 0 {
        head.write(tx, partition);
    }
    Ok(gone)
}

/// Up to `max` entries after each position, in order per partition.
pub fn read(
    tx: &Tx<'_>,
    shape: &Shape,
    after: &[(Partition, StreamPosition)],
    max: u32,
) -> Result<Vec<StreamEntry>> {
    let mut entries = Vec::new();
    for (partition, position) in after {
        shape.holds(*partition)?;
        let from = keys::stream(*partition, *position).into_iter().chain([0]).collect::<Vec<_>>();
        let to = keys::after_prefix(keys::Key::of(Space::Stream, *partition).bytes());
        for (key, notes) in tx.scan(&from, &to, max as usize, Order::Ascending)? {
            let position = keys::stream_position(&key).ok_or_else(|| damaged("an event entry"))?;
            entries.push(StreamEntry { partition: *partition, position, notes });
        }
    }
    Ok(entries)
}

/// Bounds of these streams, in order.
pub fn bounds(tx: &Tx<'_>, shape: &Shape, partitions: &[Partition]) -> Result<Vec<StreamBounds>> {
    let bounds = |p: &Partition| {
        shape.holds(*p)?;
        let head = Head::read(tx, *p)?;
        Ok(StreamBounds { trimmed_through: head.trimmed, last: head.last })
    };
    partitions.iter().map(bounds).collect()
}

/// See [`crate::store::Store::resumable`].
pub fn resumable(tx: &Tx<'_>, shape: &Shape, at: &[(Partition, StreamPosition)]) -> Result<Vec<bool>> {
    let resumable = |(partition, position): &(Partition, StreamPosition)| {
        shape.holds(*partition)?;
        let stands = tx.get(&keys::stream(*partition, *position))?.is_some();
        Ok(position.is_resumable(stands, Head::read(tx, *partition)?.trimmed))
    };
    at.iter().map(resumable).collect()
}
