//! Words to write tests with: runs, records, batches.

use bytes::Bytes;
use downbeat::model::commit::{EventNote, Expect, QueueEntry, QueueOp, RunWrite, Write};
use downbeat::model::event::EventKind;
use downbeat::model::ids::{Nonce, Partition, Prefix, RunId, SessionId, TaskPath, WorkflowName};
use downbeat::model::labels::QueueName;
use downbeat::model::payload::Field;
use downbeat::store::{Batch, Committed, Store, Verdict};

pub(crate) const P: Partition = Partition(1);

pub(crate) fn run(name: &str) -> RunId {
    RunId::new(name).unwrap()
}

pub(crate) fn named(name: &str) -> QueueName {
    name.parse().unwrap()
}

pub(crate) fn workflow(name: &str) -> WorkflowName {
    WorkflowName::new(name).unwrap()
}

pub(crate) fn session(name: &str) -> SessionId {
    SessionId::new(name).unwrap()
}

pub(crate) fn field(name: &str) -> Field {
    Field::new(name)
}

pub(crate) fn entry(run_name: &str, generation: u32) -> QueueEntry {
    QueueEntry { run: run(run_name), path: TaskPath::parse("task").unwrap(), generation }
}

/// The prefix of version `version`, written by commit `commit`.
pub(crate) fn prefix(version: u64, commit: u8) -> Prefix {
    Prefix::new(version, Nonce([commit; 16]))
}

/// A record of `size` bytes in all that begins with `prefix`.
pub(crate) fn record(prefix: Prefix, size: usize) -> Bytes {
    let mut bytes = prefix.0.to_vec();
    bytes.resize(size.max(Prefix::LEN), b'.');
    bytes.into()
}

/// A decision that puts a small record.
pub(crate) fn put(name: &str, expect: Expect, prefix: Prefix) -> RunWrite {
    RunWrite::bare(run(name), expect, Write::Put(record(prefix, 40)))
}

/// A decision that creates a run with prefix (1, 1).
pub(crate) fn create(name: &str) -> RunWrite {
    put(name, Expect::Absent, prefix(1, 1))
}

/// A decision on a run that [`create`] made.
pub(crate) fn update(name: &str) -> RunWrite {
    put(name, Expect::Prefix(prefix(1, 1)), prefix(2, 2))
}

pub(crate) fn check(name: &str, expect: Expect) -> RunWrite {
    RunWrite { write: Write::Check, ..put(name, expect, prefix(0, 0)) }
}

pub(crate) fn add(queue: &str, entry: QueueEntry, score: i64) -> QueueOp {
    QueueOp::Add { queue: named(queue), entry, score }
}

pub(crate) fn remove(queue: &str, entry: QueueEntry) -> QueueOp {
    QueueOp::Remove { queue: named(queue), entry }
}

pub(crate) fn note(name: &str, first: u32) -> EventNote {
    EventNote { run: run(name), first, kinds: vec![EventKind::RunStarted] }
}

/// A lane that counts its own sequences.
pub(crate) struct Lane {
    pub(crate) nonce: Nonce,
    pub(crate) sequence: u64,
}

impl Lane {
    pub(crate) fn new(id: u8) -> Self {
        Self { nonce: Nonce([id; 16]), sequence: 0 }
    }

    /// The next batch of these decisions.
    pub(crate) fn batch(&mut self, writes: Vec<(Partition, RunWrite)>) -> Batch {
        self.sequence += 1;
        Batch { lane: self.nonce, sequence: self.sequence, writes }
    }

    /// Commits decisions on runs of partition [`P`].
    pub(crate) async fn commit(&mut self, store: &dyn Store, writes: Vec<RunWrite>) -> Committed {
        let batch = self.batch(writes.into_iter().map(|w| (P, w)).collect());
        store.commit(&batch).await.unwrap()
    }

    /// Commits decisions of which all must be accepted.
    pub(crate) async fn apply(&mut self, store: &dyn Store, writes: Vec<RunWrite>) -> Committed {
        let committed = self.commit(store, writes).await;
        assert!(committed.verdicts.iter().all(|v| *v == Verdict::Applied), "{committed:?}");
        committed
    }
}

/// The stored record of a run of partition [`P`].
pub(crate) async fn stored(store: &dyn Store, name: &str) -> Option<Bytes> {
    store.load(&[(P, run(name))]).await.unwrap().pop().unwrap()
}
