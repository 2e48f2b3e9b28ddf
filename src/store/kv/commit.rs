//! Applying a batch: settle repeats, compare, write what was accepted.
//!
//! ```text
//! lane window:  last used t ‖ newest sequence u64 ‖ ( sequence u64 ‖ n u16 ‖ n verdicts u8 )*
//! ```
//! Numbers are big endian; the window holds the last [`LANE_KEPT`] sequences of a lane.

use super::keys::{self, Space, from_order_bytes, order_bytes};
use super::{Effects, Shape, Tx, damaged, queue, stream, workflow};
use crate::model::commit::{Expect, QueueOp, RunWrite, WakeOp, Write};
use crate::model::ids::{Partition, RunId};
use crate::model::labels::QueueName;
use crate::model::time::Timestamp;
use crate::store::{
    Batch, Committed, LANE_KEPT, QueueHead, Result, StoreError, Verdict, check_batch, order_value,
    touched_queues,
};
use bytes::Bytes;

/// Applies `batch`; see [`crate::store::Store::commit`]. `home` keeps the window of the lane.
pub fn commit(
    tx: &mut Tx<'_>,
    shape: &Shape,
    home: Partition,
    batch: &Batch,
    now: Timestamp,
) -> Result<(Committed, Effects)> {
    check_batch(batch, shape.layout)?;
    let writes = batch.writes.iter().any(|(_, w)| w.write != Write::Check);
    let lane_key = keys::lane(home, batch.lane);
    let mut window = Window::default();
    if writes {
        window = Window::read(tx.get(&lane_key)?)?;
        if let Some(verdicts) = window.answer(batch.sequence)? {
            return Ok((Committed { verdicts, heads: Vec::new() }, Effects::default()));
        }
    }

    let mut verdicts = Vec::with_capacity(batch.writes.len());
    for (partition, write) in &batch.writes {
        verdicts.push(compare(tx, *partition, write)?);
    }

    let mut effects = Effects::default();
    let accepted = || batch.writes.iter().zip(&verdicts).filter(|(_, v)| **v == Verdict::Applied);
    for ((partition, write), _) in accepted() {
        apply(tx, *partition, write, &mut effects)?;
    }
    for (partition, notes) in gather_notes(accepted().map(|(w, _)| w)) {
        stream::append(tx, shape, partition, notes, now)?;
        effects.events = true;
    }
    if writes {
        window.remember(batch.sequence, &verdicts, now);
        tx.put(lane_key, window.write());
    }
    let mut heads = Vec::new();
    for (partition, queue) in touched_queues(&batch.writes) {
        heads.push(queue::head(tx, partition, queue)?);
    }
    effects.filled.retain(|(p, t)| holds_work(&heads, *p, t));
    Ok((Committed { verdicts, heads }, effects))
}

fn holds_work(heads: &[QueueHead], partition: Partition, queue: &QueueName) -> bool {
    heads.iter().any(|h| h.partition == partition && h.queue == *queue && h.depth > 0)
}

fn compare(tx: &Tx<'_>, partition: Partition, write: &RunWrite) -> Result<Verdict> {
    let stands = tx.prefix(&keys::record(partition, &write.run))?;
    match (&write.expect, stands) {
        (Expect::Absent, None) => {}
        (Expect::Prefix(expect), Some(stands)) if stands == *expect => {}
        _ => return Ok(Verdict::Conflict),
    }
    match &write.of {
        Some(of) if !workflow::stands(tx, of)? => Ok(Verdict::NoWorkflow),
        _ => Ok(Verdict::Applied),
    }
}

fn apply(tx: &mut Tx<'_>, partition: Partition, write: &RunWrite, effects: &mut Effects) -> Result<()> {
    let run = &write.run;
    match &write.write {
        Write::Check => return Ok(()),
        Write::Put(record) => {
            tx.put(keys::record(partition, run), record.clone());
            for (field, value) in &write.payloads {
                tx.put(keys::payload(partition, run, field), value.clone());
            }
        }
        Write::Delete => {
            tx.remove(keys::record(partition, run));
            for (key, _) in tx.scan_prefix(keys::payloads(partition, run), usize::MAX)? {
                tx.remove(key);
            }
        }
    }
    for op in &write.queue {
        match op {
            QueueOp::Add { queue, entry, score } => {
                if queue::add(tx, partition, queue, &entry.encode(), order_value(*score))? {
                    effects.filled.push((partition, queue.clone()));
                }
            }
            QueueOp::Remove { queue, entry } => {
                let entry = entry.encode();
                queue::remove(tx, partition, queue, &entry)?;
                queue::unclaim(tx, partition, queue, &entry)?;
            }
        }
    }
    let deleted = write.write == Write::Delete;
    match if deleted { WakeOp::Remove } else { write.wake } {
        WakeOp::Keep => {}
        WakeOp::Lower(at) => {
            let at = order_value(at.0);
            if time_of(tx, Space::WakeOf, partition, run)?.is_none_or(|stands| at < stands) {
                set_time(tx, Space::Wake, Space::WakeOf, partition, run, at)?;
            }
        }
        WakeOp::Set(at) => set_time(tx, Space::Wake, Space::WakeOf, partition, run, order_value(at.0))?,
        WakeOp::Remove => take_time(tx, Space::Wake, Space::WakeOf, partition, run)?,
    }
    if deleted {
        take_time(tx, Space::Index, Space::IndexOf, partition, run)?;
        return take_time(tx, Space::Retain, Space::RetainOf, partition, run);
    }
    if let Some(created) = write.index {
        set_time(tx, Space::Index, Space::IndexOf, partition, run, order_value(created.0))?;
    }
    match write.retain_until {
        Some(Some(until)) => {
            set_time(tx, Space::Retain, Space::RetainOf, partition, run, order_value(until.0))
        }
        Some(None) => take_time(tx, Space::Retain, Space::RetainOf, partition, run),
        None => Ok(()),
    }
}

/// Event notes per partition, lowest partition first, each in the order of the batch.
fn gather_notes<'a>(accepted: impl Iterator<Item = &'a (Partition, RunWrite)>) -> Vec<(Partition, Bytes)> {
    let mut notes = std::collections::BTreeMap::<Partition, Vec<u8>>::new();
    for (partition, write) in accepted {
        if let (Some(note), true) = (&write.event, write.write != Write::Check) {
            note.encode_into(notes.entry(*partition).or_default());
        }
    }
    notes.into_iter().map(|(p, n)| (p, Bytes::from(n))).collect()
}

/// The time a run has in one of the spaces keyed by run.
pub(super) fn time_of(tx: &Tx<'_>, space: Space, partition: Partition, run: &RunId) -> Result<Option<i64>> {
    let value = tx.get(&keys::by_run(space, partition, run))?;
    value.map(|v| from_order_bytes(&v).ok_or_else(|| damaged("a time of a run"))).transpose()
}

/// Sets the time of a run in a pair of spaces (by time, by run).
pub(super) fn set_time(
    tx: &mut Tx<'_>,
    by_time: Space,
    by_run: Space,
    partition: Partition,
    run: &RunId,
    at: i64,
) -> Result<()> {
    if let Some(old) = time_of(tx, by_run, partition, run)? {
        if old == at {
            return Ok(());
        }
        tx.remove(keys::by_time(by_time, partition, old, run));
    }
    tx.put(keys::by_time(by_time, partition, at, run), Bytes::new());
    tx.put(keys::by_run(by_run, partition, run), order_bytes(at).to_vec());
    Ok(())
}

/// Removes a run from a pair of spaces (by time, by run).
fn take_time(
    tx: &mut Tx<'_>,
    by_time: Space,
    by_run: Space,
    partition: Partition,
    run: &RunId,
) -> Result<()> {
    if let Some(old) = time_of(tx, by_run, partition, run)? {
        tx.remove(keys::by_time(by_time, partition, old, run));
        tx.remove(keys::by_run(by_run, partition, run));
    }
    Ok(())
}

/// The last answers of a lane.
#[derive(Debug, Default)]
pub(super) struct Window {
    /// When the lane last wrote.
    pub(super) used: i64,
    newest: u64,
    answers: Vec<(u64, Vec<u8>)>,
}

impl Window {
    pub(super) fn read(stored: Option<Bytes>) -> Result<Self> {
        let Some(stored) = stored else { return Ok(Self::default()) };
        Self::decode(&stored).ok_or_else(|| damaged("the window of a lane"))
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let used = from_order_bytes(bytes)?;
        let newest = u64::from_be_bytes(bytes.get(8..16)?.try_into().ok()?);
        let mut rest = bytes.get(16..)?;
        let mut answers = Vec::with_capacity(LANE_KEPT as usize);
        while !rest.is_empty() {
            let sequence = u64::from_be_bytes(rest.get(..8)?.try_into().ok()?);
            let len = usize::from(u16::from_be_bytes(rest.get(8..10)?.try_into().ok()?));
            answers.push((sequence, rest.get(10..10 + len)?.to_vec()));
            rest = rest.get(10 + len..)?;
        }
        Some(Self { used, newest, answers })
    }

    fn write(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(16 + self.answers.iter().map(|(_, v)| 10 + v.len()).sum::<usize>());
        out.extend_from_slice(&order_bytes(self.used));
        out.extend_from_slice(&self.newest.to_be_bytes());
        for (sequence, verdicts) in &self.answers {
            out.extend_from_slice(&sequence.to_be_bytes());
            out.extend_from_slice(&(verdicts.len() as u16).to_be_bytes());
            out.extend_from_slice(verdicts);
        }
        out
    }

    /// The answer given to `sequence` before, none if it is new, an error if it may have been forgotten.
    fn answer(&self, sequence: u64) -> Result<Option<Vec<Verdict>>> {
        if let Some((_, verdicts)) = self.answers.iter().find(|(s, _)| *s == sequence) {
            let verdict = |v: &u8| match v {
                1 => Verdict::Applied,
                2 => Verdict::NoWorkflow,
                _ => Verdict::Conflict,
            };
            return Ok(Some(verdicts.iter().map(verdict).collect()));
        }
        if sequence.saturating_add(LANE_KEPT) <= self.newest {
            return Err(StoreError::Forgotten);
        }
        Ok(None)
    }

    fn remember(&mut self, sequence: u64, verdicts: &[Verdict], now: Timestamp) {
        self.used = now.0;
        self.newest = self.newest.max(sequence);
        let newest = self.newest;
        self.answers.retain(|(s, _)| s.saturating_add(LANE_KEPT) > newest);
        let code = |verdict: &Verdict| match verdict {
            Verdict::Conflict => 0,
            Verdict::Applied => 1,
            Verdict::NoWorkflow => 2,
        };
        self.answers.push((sequence, verdicts.iter().map(code).collect()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_remembers_the_last_sequences_and_refuses_older_ones() {
        let mut window = Window::default();
        for sequence in 1..=LANE_KEPT + 4 {
            assert_eq!(window.answer(sequence), Ok(None));
            window.remember(sequence, &[Verdict::Applied, Verdict::Conflict], Timestamp(7));
        }
        let window = Window::read(Some(window.write().into())).unwrap();
        assert_eq!(window.used, 7);
        assert_eq!(window.answer(4), Err(StoreError::Forgotten));
        assert_eq!(window.answer(5), Ok(Some(vec![Verdict::Applied, Verdict::Conflict])));
        assert_eq!(window.answer(LANE_KEPT + 5), Ok(None));
    }

    #[test]
    fn a_sequence_inside_the_window_that_never_came_is_new() {
        let mut window = Window::default();
        window.remember(10, &[Verdict::Applied], Timestamp(0));
        assert_eq!(window.answer(9), Ok(None));
    }
}
