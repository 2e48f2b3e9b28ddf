//! A batch as one call of `lua/commit.lua`, and its reply. What the sections are stands in the script's header.

use super::keys::{self, Keys};
use super::link::Value;
use super::reply;
use super::scripts::{Call, Script};
use crate::model::commit::{Expect, QueueOp, RunWrite, VersionOf, WakeOp, Write};
use crate::model::ids::Partition;
use crate::model::labels::QueueName;
use crate::store::{Batch, Committed, LANE_IDLE, QueueHead, Result, StoreError, Verdict, order_value};
use std::collections::BTreeMap;

/// The most decisions one call takes; a lane sends far fewer.
const MAX_DECISIONS: usize = 1_000;
/// Above this mean size of a record in bytes, reading prefixes one by one costs Redis less than whole records at once.
const READ_WHOLE: usize = 512;

/// What the script is told besides the batch.
pub(super) struct Target<'a> {
    /// How keys are spelled.
    pub(super) keys: Keys,
    /// Keeps the window of the lane.
    pub(super) home: Partition,
    /// Channel of hints.
    pub(super) hints: &'a str,
    /// Entries an event stream keeps.
    pub(super) stream_bound: u64,
    /// Workflows are in the same Redis: a new run is refused if what it is of is not there.
    pub(super) spans: bool,
}

/// A call, and what is needed to read its reply.
pub(super) struct Encoded {
    pub(super) call: Call,
    /// Which decision of the batch stands where in the call.
    order: Vec<usize>,
    queues: Vec<(Partition, QueueName)>,
}

/// Queue operations on one queue; `i` as in the script.
#[derive(Default)]
struct QueueOps {
    adds: Vec<(usize, i64, Vec<u8>)>,
    removes: Vec<(usize, Vec<u8>)>,
}

/// Operations on one sorted set of runs by time.
#[derive(Default)]
struct TimeOps {
    lowers: Vec<(usize, i64)>,
    sets: Vec<(usize, i64)>,
    removes: Vec<usize>,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Times {
    Wake,
    Index,
    Retention,
}

/// Everything but records, gathered by key.
#[derive(Default)]
struct Groups<'a> {
    /// New runs by what they are of.
    versions: Vec<(&'a VersionOf, Vec<usize>)>,
    deletes: Vec<usize>,
    /// First and last decision of each partition with event notes.
    streams: Vec<(Partition, usize, usize)>,
    queues: BTreeMap<(Partition, &'a QueueName), QueueOps>,
    times: BTreeMap<(Times, Partition), TimeOps>,
    payloads: Vec<usize>,
}

impl<'a> Groups<'a> {
    fn add(&mut self, i: usize, partition: Partition, write: &'a RunWrite) {
        if write.write == Write::Check {
            return;
        }
        if write.event.is_some() {
            match self.streams.last_mut() {
                Some((last, _, to)) if *last == partition => *to = i,
                _ => self.streams.push((partition, i, i)),
            }
        }
        for op in &write.queue {
            self.queue_op(i, partition, op);
        }
        let deleted = write.write == Write::Delete;
        match if deleted { WakeOp::Remove } else { write.wake } {
            WakeOp::Keep => {}
            WakeOp::Lower(at) => self.times(Times::Wake, partition).lowers.push((i, order_value(at.0))),
            WakeOp::Set(at) => self.times(Times::Wake, partition).sets.push((i, order_value(at.0))),
            WakeOp::Remove => self.times(Times::Wake, partition).removes.push(i),
        }
        if deleted {
            self.deletes.push(i);
            self.times(Times::Index, partition).removes.push(i);
            self.times(Times::Retention, partition).removes.push(i);
            return;
        }
        if let Some(created) = write.index {
            self.times(Times::Index, partition).sets.push((i, order_value(created.0)));
        }
        match write.retain_until {
            Some(Some(until)) => {
                self.times(Times::Retention, partition).sets.push((i, order_value(until.0)));
            }
            Some(None) => self.times(Times::Retention, partition).removes.push(i),
            None => {}
        }
        if !write.payloads.is_empty() {
            self.payloads.push(i);
        }
    }

    fn times(&mut self, which: Times, partition: Partition) -> &mut TimeOps {
        self.times.entry((which, partition)).or_default()
    }

    fn queue_op(&mut self, i: usize, partition: Partition, op: &'a QueueOp) {
        match op {
            QueueOp::Add { queue, entry, score } => {
                let ops = self.queues.entry((partition, queue)).or_default();
                ops.adds.push((i, order_value(*score), entry.encode()));
            }
            QueueOp::Remove { queue, entry } => {
                let ops = self.queues.entry((partition, queue)).or_default();
                let entry = entry.encode();
                // The script removes first and then adds; what one decision adds and then removes is not added.
                ops.adds.retain(|(j, _, added)| *j != i || *added != entry);
                ops.removes.push((i, entry));
            }
        }
    }

    fn version(&mut self, i: usize, write: &'a RunWrite) {
        let Some(of) = &write.of else { return };
        match self.versions.iter_mut().find(|(known, _)| *known == &**of) {
            Some((_, runs)) => runs.push(i),
            None => self.versions.push((of, vec![i])),
        }
    }

    fn keys(&self) -> usize {
        self.versions.len()
            + self.deletes.len()
            + 2 * self.streams.len()
            + 4 * self.queues.len()
            + self.times.len()
            + self.payloads.len()
    }
}

/// Writes the call for a batch.
pub(super) fn encode(batch: &Batch, target: &Target<'_>) -> Result<Encoded> {
    let n = batch.writes.len();
    if n > MAX_DECISIONS {
        return Err(StoreError::Unavailable {
            message: format!("a batch of {n} decisions is over the limit of {MAX_DECISIONS}"),
            sent: false,
        });
    }
    let mut order: Vec<usize> = (0..n).collect();
    order.sort_by_key(|at| batch.writes[*at].0);
    let decisions: Vec<(Partition, &RunWrite)> =
        order.iter().map(|at| &batch.writes[*at]).map(|(p, w)| (*p, w)).collect();

    let mut groups = Groups::default();
    let (mut puts, mut bytes, mut extra, mut remember) = (0, 0, 0, false);
    for (at, (partition, write)) in decisions.iter().enumerate() {
        groups.add(at + 1, *partition, write);
        if target.spans {
            groups.version(at + 1, write);
        }
        remember |= write.write != Write::Check;
        if let Write::Put(record) = &write.write {
            puts += 1;
            bytes += record.len();
        }
        extra += write.payloads.iter().map(|(field, value)| field.0.len() + value.len()).sum::<usize>();
        extra += write.queue.len() * 128;
    }
    let whole = puts > 0 && bytes <= puts * READ_WHOLE;

    let keys = 1 + n + groups.keys();
    let mut call = Call::sized(Script::Commit, keys, 4 * n + keys + 64, bytes + extra + n * 128 + 1_024);
    write_keys(&mut call, batch, target, &decisions, &groups);
    call.arg(batch.sequence).arg(n).arg(if whole { "m" } else { "g" }).arg(if remember { "1" } else { "0" });
    call.arg(target.hints).arg(target.stream_bound).arg(LANE_IDLE.as_millis());
    call.arg(groups.versions.len());
    call.arg(groups.deletes.len()).arg(groups.streams.len()).arg(groups.queues.len());
    call.arg(groups.times.len()).arg(groups.payloads.len());
    write_decisions(&mut call, &decisions);
    write_groups(&mut call, &decisions, &groups);
    let queues = groups.queues.keys().map(|(p, t)| (*p, (*t).clone())).collect();
    Ok(Encoded { call, order, queues })
}

fn write_keys(
    call: &mut Call,
    batch: &Batch,
    target: &Target<'_>,
    decisions: &[(Partition, &RunWrite)],
    groups: &Groups<'_>,
) {
    call.arg(target.keys.lane(target.home, batch.lane));
    for (partition, write) in decisions {
        call.arg(target.keys.record(*partition, &write.run));
    }
    let payloads = |i: &usize| {
        let (partition, write) = decisions[i - 1];
        target.keys.payloads(partition, &write.run)
    };
    for (of, _) in &groups.versions {
        call.arg(keys::documents(&of.workflow));
    }
    for i in &groups.deletes {
        call.arg(payloads(i));
    }
    for (partition, _, _) in &groups.streams {
        call.arg(target.keys.events(*partition)).arg(target.keys.trimmed(*partition));
    }
    for (partition, queue) in groups.queues.keys() {
        call.arg(target.keys.ready(*partition, queue)).arg(target.keys.types(*partition));
        call.arg(target.keys.claimed(*partition)).arg(target.keys.places(*partition));
    }
    for (which, partition) in groups.times.keys() {
        call.arg(match which {
            Times::Wake => target.keys.wake(*partition),
            Times::Index => target.keys.index(*partition),
            Times::Retention => target.keys.retention(*partition),
        });
    }
    for i in &groups.payloads {
        call.arg(payloads(i));
    }
}

fn write_decisions(call: &mut Call, decisions: &[(Partition, &RunWrite)]) {
    for (_, write) in decisions {
        match &write.expect {
            Expect::Absent => call.arg(""),
            Expect::Prefix(prefix) => call.arg(&prefix.0[..]),
        };
    }
    for (_, write) in decisions {
        match &write.write {
            Write::Put(record) => call.arg(&record[..]),
            Write::Check | Write::Delete => call.arg(""),
        };
    }
    let mut note = Vec::with_capacity(64);
    for (_, write) in decisions {
        note.clear();
        if let (Some(event), true) = (&write.event, write.write != Write::Check) {
            event.encode_into(&mut note);
        }
        call.arg(&note[..]);
    }
}

fn write_groups(call: &mut Call, decisions: &[(Partition, &RunWrite)], groups: &Groups<'_>) {
    let run = |i: usize| decisions[i - 1].1.run.as_str();
    for (of, runs) in &groups.versions {
        call.arg(keys::created_field(of.version)).arg(of.created_at.0).arg(runs.len());
        for i in runs {
            call.arg(*i);
        }
    }
    for i in &groups.deletes {
        call.arg(*i);
    }
    for (_, from, to) in &groups.streams {
        call.arg(*from).arg(*to);
    }
    for ((partition, queue), ops) in &groups.queues {
        call.arg(&*queue.to_text()).arg(partition.0).arg(ops.adds.len()).arg(ops.removes.len());
        for (i, score, entry) in &ops.adds {
            call.arg(*i).arg(*score).arg(&entry[..]);
        }
        for (i, entry) in &ops.removes {
            call.arg(*i).arg(&entry[..]);
        }
    }
    for ops in groups.times.values() {
        call.arg(ops.lowers.len()).arg(ops.sets.len()).arg(ops.removes.len());
        for (i, at) in ops.lowers.iter().chain(&ops.sets) {
            call.arg(*i).arg(*at).arg(run(*i));
        }
        for i in &ops.removes {
            call.arg(*i).arg(run(*i));
        }
    }
    for i in &groups.payloads {
        let fields = &decisions[i - 1].1.payloads;
        call.arg(*i).arg(fields.len());
        for (field, value) in fields {
            call.arg(&field.0[..]).arg(&value[..]);
        }
    }
}

impl Encoded {
    /// Reads the reply.
    pub(super) fn decode(self, value: Value) -> Result<Committed> {
        const WHAT: &str = "a batch";
        let mut items = reply::array(value, WHAT)?.into_iter();
        let marks = items.next().ok_or_else(|| reply::unexpected(WHAT))?;
        let marks = reply::bytes(marks, WHAT)?.unwrap_or_default();
        if marks.len() != self.order.len() {
            return Err(reply::unexpected(WHAT));
        }
        let mut verdicts = vec![Verdict::Conflict; marks.len()];
        for (at, mark) in self.order.iter().zip(&marks) {
            verdicts[*at] = match mark {
                b'1' => Verdict::Applied,
                b'2' => Verdict::NoWorkflow,
                _ => Verdict::Conflict,
            };
        }
        let mut heads = Vec::with_capacity(self.queues.len());
        for (partition, queue) in self.queues {
            let (Some(score), Some(depth)) = (items.next(), items.next()) else { break };
            let depth = reply::number(&depth, WHAT)?.max(0).unsigned_abs();
            let score = if depth == 0 { None } else { Some(reply::number(&score, WHAT)?) };
            heads.push(QueueHead { partition, queue, score, depth });
        }
        Ok(Committed { verdicts, heads })
    }
}
