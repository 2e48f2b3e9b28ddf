//! Keys of the key-value family, in byte order the order the verbs read them in.
//!
//! ```text
//! p = partition u16 BE   t = i64 with the sign bit flipped, BE   queue, run, name = text   · = 00
//!
//! R p run                record (prefix ‖ state)             P p run · field        payload
//! I p t run              index by creation                   J p run                when the run was created: t
//! W p t run              wake-ups in order                   V p run                when the wake-up is: t
//! E p t run              retention in order                  F p run                until when it is kept: t
//! Q p queue · t entry    ready queue in order                T p queue · entry      place of a ready entry: t
//! N p queue              how many are ready: u64             C p queue · entry      claimed: place t ‖ expiry t
//! X p t queue · entry    claims by expiry
//! S p session            session                             K p                    clocks, see `tick.rs`
//! L p lane               lane window, see `commit.rs`
//! G p ms u64 seq u64     event stream                        H p                    stream bounds, see `stream.rs`
//! B name                 newest version: u32                 D name · version u32   document, see `workflow.rs`
//! M                      meta: layout, partitions, epoch
//! ```
//!
//! Source: docs/adr/0003-store-layout.md.

use super::{Order, Tx};
use crate::model::ids::{Nonce, Partition, RunId, SessionId, WorkflowName};
use crate::model::labels::QueueName;
use crate::model::payload::Field;
use crate::store::{Result, StreamPosition};

/// A key space: the first byte of its keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Space {
    /// Records of runs.
    Record = b'R',
    /// Payloads of runs.
    Payload = b'P',
    /// Runs by creation.
    Index = b'I',
    /// When a run was created.
    IndexOf = b'J',
    /// Wake-ups by time.
    Wake = b'W',
    /// The wake-up of a run.
    WakeOf = b'V',
    /// Finished runs by the time they go.
    Retain = b'E',
    /// When a run goes.
    RetainOf = b'F',
    /// Ready entries in order.
    Ready = b'Q',
    /// The place of a ready entry.
    ReadyOf = b'T',
    /// How many are ready.
    Depth = b'N',
    /// A claimed entry.
    Claim = b'C',
    /// Claims by expiry.
    ClaimExpiry = b'X',
    /// Sessions.
    Session = b'S',
    /// Clocks of a partition.
    Clock = b'K',
    /// Lane windows.
    Lane = b'L',
    /// Event streams.
    Stream = b'G',
    /// Bounds of an event stream.
    StreamHead = b'H',
    /// Newest version of a workflow.
    Workflow = b'B',
    /// Documents of workflows.
    Document = b'D',
    /// What was fixed when the store was initialised.
    Meta = b'M',
}

/// A key in the making.
#[derive(Debug, Clone)]
pub(crate) struct Key(Vec<u8>);

impl Key {
    pub(crate) fn new(space: Space) -> Self {
        let mut bytes = Vec::with_capacity(64);
        bytes.push(space as u8);
        Self(bytes)
    }
    pub(crate) fn of(space: Space, partition: Partition) -> Self {
        Self::new(space).raw(&partition.0.to_be_bytes())
    }
    pub(crate) fn raw(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }
    pub(crate) fn queue(self, queue: &QueueName) -> Self {
        let key = self.raw(queue.task_type.as_str().as_bytes());
        if queue.labels.is_empty() { key } else { key.raw(b";").raw(queue.labels.as_str().as_bytes()) }
    }
    pub(crate) fn time(self, t: i64) -> Self {
        self.raw(&order_bytes(t))
    }
    pub(crate) fn end(self) -> Self {
        self.raw(&[0])
    }
    pub(crate) fn bytes(self) -> Vec<u8> {
        self.0
    }
}

/// Eight bytes that sort as the number does.
pub(crate) fn order_bytes(n: i64) -> [u8; 8] {
    ((n as u64) ^ (1 << 63)).to_be_bytes()
}

/// The number of [`order_bytes`].
pub(crate) fn from_order_bytes(bytes: &[u8]) -> Option<i64> {
    Some((u64::from_be_bytes(bytes.get(..8)?.try_into().ok()?) ^ (1 << 63)) as i64)
}

/// The least key above every key that begins with `prefix` (which begins with a letter).
pub(crate) fn after_prefix(mut prefix: Vec<u8>) -> Vec<u8> {
    while let Some(last) = prefix.pop() {
        if last < u8::MAX {
            prefix.push(last + 1);
            return prefix;
        }
    }
    vec![u8::MAX]
}

/// Bytes of `space ‖ partition`.
pub(crate) const HEAD: usize = 3;

pub(crate) fn record(p: Partition, run: &RunId) -> Vec<u8> {
    Key::of(Space::Record, p).raw(run.as_str().as_bytes()).bytes()
}

/// All payloads of a run begin so.
pub(crate) fn payloads(p: Partition, run: &RunId) -> Vec<u8> {
    Key::of(Space::Payload, p).raw(run.as_str().as_bytes()).end().bytes()
}

pub(crate) fn payload(p: Partition, run: &RunId, field: &Field) -> Vec<u8> {
    Key::of(Space::Payload, p).raw(run.as_str().as_bytes()).end().raw(&field.0).bytes()
}

/// A run's key in one of the spaces keyed by run.
pub(crate) fn by_run(space: Space, p: Partition, run: &RunId) -> Vec<u8> {
    Key::of(space, p).raw(run.as_str().as_bytes()).bytes()
}

/// A run's key in one of the spaces ordered by time.
pub(crate) fn by_time(space: Space, p: Partition, t: i64, run: &RunId) -> Vec<u8> {
    Key::of(space, p).time(t).raw(run.as_str().as_bytes()).bytes()
}

/// Everything of a queue in one of the spaces keyed by queue begins so.
pub(crate) fn queue(space: Space, p: Partition, queue: &QueueName) -> Vec<u8> {
    Key::of(space, p).queue(queue).end().bytes()
}

pub(crate) fn ready(p: Partition, queue: &QueueName, score: i64, entry: &[u8]) -> Vec<u8> {
    Key::of(Space::Ready, p).queue(queue).end().time(score).raw(entry).bytes()
}

pub(crate) fn ready_of(p: Partition, queue: &QueueName, entry: &[u8]) -> Vec<u8> {
    Key::of(Space::ReadyOf, p).queue(queue).end().raw(entry).bytes()
}

pub(crate) fn depth(p: Partition, queue: &QueueName) -> Vec<u8> {
    Key::of(Space::Depth, p).queue(queue).bytes()
}

pub(crate) fn claim(p: Partition, queue: &QueueName, entry: &[u8]) -> Vec<u8> {
    Key::of(Space::Claim, p).queue(queue).end().raw(entry).bytes()
}

pub(crate) fn claim_expiry(p: Partition, expiry: i64, queue: &QueueName, entry: &[u8]) -> Vec<u8> {
    let key = Key::of(Space::ClaimExpiry, p).time(expiry).queue(queue);
    key.end().raw(entry).bytes()
}

pub(crate) fn session(p: Partition, id: &SessionId) -> Vec<u8> {
    Key::of(Space::Session, p).raw(id.as_str().as_bytes()).bytes()
}

pub(crate) fn lane(p: Partition, lane: Nonce) -> Vec<u8> {
    Key::of(Space::Lane, p).raw(&lane.0).bytes()
}

pub(crate) fn stream(p: Partition, at: StreamPosition) -> Vec<u8> {
    Key::of(Space::Stream, p).raw(&at.0.to_be_bytes()).raw(&at.1.to_be_bytes()).bytes()
}

/// The position in a key of [`stream`].
pub(crate) fn stream_position(key: &[u8]) -> Option<StreamPosition> {
    let number = |at: usize| Some(u64::from_be_bytes(key.get(at..at + 8)?.try_into().ok()?));
    Some(StreamPosition(number(HEAD)?, number(HEAD + 8)?))
}

/// What was fixed when the store was initialised.
pub(crate) fn meta() -> Vec<u8> {
    Key::new(Space::Meta).bytes()
}

pub(crate) fn workflow(name: &WorkflowName) -> Vec<u8> {
    Key::new(Space::Workflow).raw(name.as_str().as_bytes()).bytes()
}

/// All versions of a workflow begin so.
pub(crate) fn documents(name: &WorkflowName) -> Vec<u8> {
    Key::new(Space::Document).raw(name.as_str().as_bytes()).end().bytes()
}

pub(crate) fn document(name: &WorkflowName, version: u32) -> Vec<u8> {
    Key::new(Space::Document).raw(name.as_str().as_bytes()).end().raw(&version.to_be_bytes()).bytes()
}

impl Tx<'_> {
    /// Up to `limit` pairs whose key begins with `prefix`, lowest first.
    pub(crate) fn scan_prefix(&self, prefix: Vec<u8>, limit: usize) -> Result<Vec<super::Pair>> {
        let to = after_prefix(prefix.clone());
        self.scan(&prefix, &to, limit, Order::Ascending)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_sort_as_their_bytes() {
        let numbers = [i64::MIN, -5, -1, 0, 1, 7, i64::MAX];
        for pair in numbers.windows(2) {
            assert!(order_bytes(pair[0]) < order_bytes(pair[1]), "{pair:?}");
        }
        assert_eq!(numbers.map(|n| from_order_bytes(&order_bytes(n))), numbers.map(Some));
    }

    #[test]
    fn the_end_of_a_prefix_is_above_all_it_begins() {
        assert_eq!(after_prefix(vec![1, 255, 255]), vec![2]);
        assert_eq!(after_prefix(b"ab".to_vec()), b"ac");
    }

    #[test]
    fn a_run_that_begins_like_another_shares_no_payload_prefix() {
        let (short, long) = (RunId::new("a").unwrap(), RunId::new("a.b").unwrap());
        let field = Field::new("i");
        assert!(!payload(Partition(0), &long, &field).starts_with(&payloads(Partition(0), &short)));
    }
}
