//! Ready queues and claims.
//!
//! ```text
//! take:     ready ──────► claimed (until commit removes it, discard settles it, or the tick returns it)
//! discard:  claimed ────► gone, if the run is still what it was judged by;  else back to ready
//! ```

use super::keys::{self, Space, from_order_bytes, order_bytes};
use super::{Effects, Shape, Tx, damaged};
use crate::model::commit::QueueEntry;
use crate::model::ids::{Partition, Prefix};
use crate::model::labels::QueueName;
use crate::model::time::{Span, Timestamp};
use crate::store::{QueueHead, Result, Taken, order_value};
use bytes::Bytes;

/// Adds an entry or moves it; true if the queue was empty.
pub(super) fn add(
    tx: &mut Tx<'_>,
    partition: Partition,
    queue: &QueueName,
    entry: &[u8],
    score: i64,
) -> Result<bool> {
    let of = keys::ready_of(partition, queue, entry);
    if let Some(old) = tx.get(&of)? {
        let old = from_order_bytes(&old).ok_or_else(|| damaged("the place of a ready entry"))?;
        tx.remove(keys::ready(partition, queue, old, entry));
        tx.put(of, order_bytes(score).to_vec());
        tx.put(keys::ready(partition, queue, score, entry), Bytes::new());
        return Ok(false);
    }
    tx.put(of, order_bytes(score).to_vec());
    tx.put(keys::ready(partition, queue, score, entry), Bytes::new());
    let depth = depth(tx, partition, queue)?;
    set_depth(tx, partition, queue, depth + 1);
    Ok(depth == 0)
}

/// Removes a ready entry, if it is there; returns its place.
pub(super) fn remove(
    tx: &mut Tx<'_>,
    partition: Partition,
    queue: &QueueName,
    entry: &[u8],
) -> Result<Option<i64>> {
    let of = keys::ready_of(partition, queue, entry);
    let Some(score) = tx.get(&of)? else { return Ok(None) };
    let score = from_order_bytes(&score).ok_or_else(|| damaged("the place of a ready entry"))?;
    tx.remove(of);
    tx.remove(keys::ready(partition, queue, score, entry));
    let depth = depth(tx, partition, queue)?;
    set_depth(tx, partition, queue, depth.saturating_sub(1));
    Ok(Some(score))
}

fn depth(tx: &Tx<'_>, partition: Partition, queue: &QueueName) -> Result<u64> {
    match tx.get(&keys::depth(partition, queue))? {
        None => Ok(0),
        Some(v) => read_depth(&v),
    }
}

fn read_depth(value: &[u8]) -> Result<u64> {
    value.try_into().map(u64::from_be_bytes).map_err(|_| damaged("the depth of a queue"))
}

fn set_depth(tx: &mut Tx<'_>, partition: Partition, queue: &QueueName, depth: u64) {
    let key = keys::depth(partition, queue);
    if depth == 0 {
        tx.remove(key);
    } else {
        tx.put(key, depth.to_be_bytes().to_vec());
    }
}

/// The head of one queue.
pub(super) fn head(tx: &Tx<'_>, partition: Partition, queue: &QueueName) -> Result<QueueHead> {
    let depth = depth(tx, partition, queue)?;
    head_of(tx, partition, queue.clone(), depth)
}

fn head_of(tx: &Tx<'_>, partition: Partition, queue: QueueName, depth: u64) -> Result<QueueHead> {
    let mut score = None;
    if depth > 0 {
        let prefix = keys::queue(Space::Ready, partition, &queue);
        let at = prefix.len();
        if let Some((key, _)) = tx.scan_prefix(prefix, 1)?.pop() {
            let read = key.get(at..).and_then(from_order_bytes);
            score = Some(read.ok_or_else(|| damaged("a ready entry"))?);
        }
    }
    Ok(QueueHead { partition, queue, score, depth })
}

/// Heads of the non-empty queues of a partition, by name.
pub(super) fn heads(tx: &Tx<'_>, partition: Partition) -> Result<Vec<QueueHead>> {
    let mut heads = Vec::new();
    for (key, depth) in tx.scan_prefix(keys::Key::of(Space::Depth, partition).bytes(), usize::MAX)? {
        let queue = name_of(key.get(keys::HEAD..))?;
        heads.push(head_of(tx, partition, queue, read_depth(&depth)?)?);
    }
    // Keys sort as text, names by type first.
    heads.sort_by(|a, b| a.queue.cmp(&b.queue));
    Ok(heads)
}

fn name_of(bytes: Option<&[u8]>) -> Result<QueueName> {
    let text = bytes.and_then(|b| std::str::from_utf8(b).ok());
    text.and_then(|t| t.parse().ok()).ok_or_else(|| damaged("the name of a queue"))
}

/// See [`crate::store::Store::take`].
pub fn take(
    tx: &mut Tx<'_>,
    shape: &Shape,
    wanted: &[(Partition, QueueName, u32)],
    claim: Span,
    now: Timestamp,
) -> Result<Vec<Taken>> {
    let expiry = order_value(now.plus(claim).0);
    let mut taken = Vec::new();
    for (partition, queue, max) in wanted {
        shape.holds(*partition)?;
        let prefix = keys::queue(Space::Ready, *partition, queue);
        let at = prefix.len();
        for (key, _) in tx.scan_prefix(prefix, *max as usize)? {
            let score = key.get(at..).and_then(from_order_bytes).ok_or_else(|| damaged("a ready entry"))?;
            let raw = key.get(at + 8..).unwrap_or_default();
            let entry = QueueEntry::decode(raw).ok_or_else(|| damaged("a ready entry"))?;
            remove(tx, *partition, queue, raw)?;
            unclaim(tx, *partition, queue, raw)?;
            let value = [order_bytes(score), order_bytes(expiry)].concat();
            tx.put(keys::claim(*partition, queue, raw), value);
            tx.put(keys::claim_expiry(*partition, expiry, queue, raw), Bytes::new());
            taken.push(Taken { partition: *partition, queue: queue.clone(), entry, score });
        }
    }
    Ok(taken)
}

/// Drops the claim on an entry, if there is one; returns its place.
pub(super) fn unclaim(
    tx: &mut Tx<'_>,
    partition: Partition,
    queue: &QueueName,
    entry: &[u8],
) -> Result<Option<i64>> {
    let key = keys::claim(partition, queue, entry);
    let Some(value) = tx.get(&key)? else { return Ok(None) };
    let parts = from_order_bytes(&value).zip(value.get(8..).and_then(from_order_bytes));
    let (score, expiry) = parts.ok_or_else(|| damaged("a claim"))?;
    tx.remove(key);
    tx.remove(keys::claim_expiry(partition, expiry, queue, entry));
    Ok(Some(score))
}

/// See [`crate::store::Store::discard`].
pub fn discard(tx: &mut Tx<'_>, shape: &Shape, stale: &[(Taken, Option<Prefix>)]) -> Result<Effects> {
    let mut effects = Effects::default();
    for (taken, judged_by) in stale {
        shape.holds(taken.partition)?;
        let unchanged = tx.prefix(&keys::record(taken.partition, &taken.entry.run))? == *judged_by;
        let entry = taken.entry.encode();
        let claimed = unclaim(tx, taken.partition, &taken.queue, &entry)?;
        if unchanged {
            remove(tx, taken.partition, &taken.queue, &entry)?;
        } else if let Some(score) = claimed
            && add(tx, taken.partition, &taken.queue, &entry, score)?
        {
            effects.filled.push((taken.partition, taken.queue.clone()));
        }
    }
    Ok(effects)
}

/// Returns up to `max` claims that have expired to their queues; how many.
pub(super) fn reclaim(
    tx: &mut Tx<'_>,
    partition: Partition,
    now: Timestamp,
    max: usize,
    effects: &mut Effects,
) -> Result<u32> {
    let from = keys::Key::of(Space::ClaimExpiry, partition).bytes();
    let to = keys::Key::of(Space::ClaimExpiry, partition).time(now.0.saturating_add(1)).bytes();
    let expired = tx.scan(&from, &to, max, super::Order::Ascending)?;
    for (key, _) in &expired {
        let rest = key.get(keys::HEAD + 8..).unwrap_or_default();
        let cut = rest.iter().position(|b| *b == 0).ok_or_else(|| damaged("a claim"))?;
        let queue = name_of(rest.get(..cut))?;
        let entry = rest.get(cut + 1..).unwrap_or_default();
        if let Some(score) = unclaim(tx, partition, &queue, entry)?
            && add(tx, partition, &queue, entry, score)?
        {
            effects.filled.push((partition, queue));
        }
    }
    Ok(expired.len() as u32)
}
