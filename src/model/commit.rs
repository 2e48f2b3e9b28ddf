//! What one decision writes: a closed set of operations on one run, guarded by one compare.
//! The engine makes it, the lane gathers it, a store applies it all or not at all.

use super::event::EventKind;
use super::ids::{Prefix, RunId, TaskPath, WorkflowName};
use super::labels::QueueName;
use super::payload::Field;
use super::time::Timestamp;
use bytes::Bytes;

/// What the record must be for the decision to hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expect {
    /// There is none.
    Absent,
    /// It begins with this prefix.
    Prefix(Prefix),
}

/// What becomes of the record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Write {
    /// Nothing: only the compare is asked for.
    Check,
    /// The whole record, prefix included.
    Put(Bytes),
    /// Record, payloads, wake-up, index and retention entries go.
    Delete,
}

/// What becomes of the run's wake-up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WakeOp {
    /// Stays.
    Keep,
    /// Becomes this, if that is earlier than what stands (or nothing stands).
    Lower(Timestamp),
    /// Becomes this.
    Set(Timestamp),
    /// Goes.
    Remove,
}

/// Names one place in a queue: run, task and which queueing of it.
///
/// ```text
/// run ‖ 00 ‖ path ‖ 00 ‖ generation, decimal
/// ```
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueueEntry {
    /// The run.
    pub run: RunId,
    /// The task.
    pub path: TaskPath,
    /// Rises with every queueing in the run.
    pub generation: u32,
}

impl QueueEntry {
    /// Writes the entry.
    pub fn encode(&self) -> Vec<u8> {
        format!("{}\0{}\0{}", self.run, self.path, self.generation).into_bytes()
    }
    /// Reads an entry; `None` if it has not our form.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(bytes).ok()?;
        let mut parts = text.splitn(3, '\0');
        Some(Self {
            run: RunId::new(parts.next()?).ok()?,
            path: TaskPath::parse(parts.next()?).ok()?,
            generation: parts.next()?.parse().ok()?,
        })
    }
}

/// A change to a ready queue in the run's partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum QueueOp {
    /// Becomes ready, with its place: lower is earlier; ms, see `engine::score`.
    Add {
        /// The queue.
        queue: QueueName,
        /// What.
        entry: QueueEntry,
        /// Where.
        score: i64,
    },
    /// Leaves the queue, claimed or not.
    Remove {
        /// The queue.
        queue: QueueName,
        /// What.
        entry: QueueEntry,
    },
}

/// Everything one decision writes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunWrite {
    /// The run.
    pub run: RunId,
    /// What it was decided on.
    pub expect: Expect,
    /// The record.
    pub write: Write,
    /// Immutable payloads, written once.
    pub payloads: Vec<(Field, Bytes)>,
    /// Queue changes.
    pub queue: Vec<QueueOp>,
    /// The wake-up.
    pub wake: WakeOp,
    /// Adds the run to the index by creation.
    pub index: Option<Timestamp>,
    /// When the finished run is to go; `Some(None)` takes the entry away (a retried run).
    pub retain_until: Option<Option<Timestamp>>,
    /// The part of the batch's event entry: empty if no event happened. See `EventNote`.
    pub event: Option<EventNote>,
    /// What a new run is of: the store must hold it still.
    pub of: Option<Box<VersionOf>>,
}

/// A version of a workflow as the store has shown it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VersionOf {
    /// The workflow.
    pub workflow: WorkflowName,
    /// The version.
    pub version: u32,
    /// When it was registered: a store that has lost its tail may have given the number again.
    pub created_at: Timestamp,
}

impl RunWrite {
    /// Compares one run and writes nothing.
    pub fn check(run: &RunId, expect: Expect) -> Self {
        Self::bare(run.clone(), expect, Write::Check)
    }

    /// The record of a run alone, without anything beside it.
    pub fn bare(run: RunId, expect: Expect, write: Write) -> Self {
        Self {
            run,
            expect,
            write,
            payloads: Vec::new(),
            queue: Vec::new(),
            wake: WakeOp::Keep,
            index: None,
            retain_until: None,
            event: None,
            of: None,
        }
    }
}

/// What the event stream says of one decision: which events of which run are new.
/// A hint: the events themselves are in the run's log.
///
/// ```text
/// len(run) u8 ‖ run ‖ first ordinal u32 BE ‖ count u16 BE ‖ count × kind u8
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventNote {
    /// The run.
    pub run: RunId,
    /// Ordinal of the first new event, from 0.
    pub first: u32,
    /// Their kinds, in order: all that can be told once the run is deleted.
    pub kinds: Vec<EventKind>,
}

impl EventNote {
    /// Appends the note to a batch's entry.
    pub fn encode_into(&self, out: &mut Vec<u8>) {
        let run = self.run.as_str().as_bytes();
        // What is too much for one count is told as several notes.
        for (n, kinds) in self.kinds.chunks(usize::from(u16::MAX)).enumerate() {
            let first = self.first + (n * usize::from(u16::MAX)) as u32;
            out.push(run.len() as u8);
            out.extend_from_slice(run);
            out.extend_from_slice(&first.to_be_bytes());
            out.extend_from_slice(&(kinds.len() as u16).to_be_bytes());
            out.extend(kinds.iter().map(|k| *k as u8));
        }
    }

    /// Reads all notes of an entry; `None` if it is not of our form.
    pub fn decode_all(mut bytes: &[u8]) -> Option<Vec<Self>> {
        let mut notes = Vec::new();
        while let Some((len, rest)) = bytes.split_first() {
            let len = usize::from(*len);
            let run = RunId::new(std::str::from_utf8(rest.get(..len)?).ok()?).ok()?;
            let rest = rest.get(len..)?;
            let first = u32::from_be_bytes(rest.get(..4)?.try_into().ok()?);
            let count = usize::from(u16::from_be_bytes(rest.get(4..6)?.try_into().ok()?));
            let rest = rest.get(6..)?;
            let kinds = rest.get(..count)?.iter().map(|c| EventKind::from_code(*c)).collect::<Option<_>>()?;
            notes.push(Self { run, first, kinds });
            bytes = rest.get(count..)?;
        }
        Some(notes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queue_entries_round_trip() {
        let e = QueueEntry {
            run: RunId::new("r-1").unwrap(),
            path: TaskPath::parse("a[3]").unwrap(),
            generation: 12,
        };
        assert_eq!(QueueEntry::decode(&e.encode()), Some(e));
        assert_eq!(QueueEntry::decode(b"r\0a"), None);
    }

    #[test]
    fn event_notes_round_trip() {
        let notes = vec![
            EventNote { run: RunId::new("a").unwrap(), first: 0, kinds: vec![EventKind::RunStarted; 3] },
            EventNote { run: RunId::new("b").unwrap(), first: 70_000, kinds: vec![EventKind::RunFailed] },
        ];
        let mut bytes = Vec::new();
        for n in &notes {
            n.encode_into(&mut bytes);
        }
        assert_eq!(EventNote::decode_all(&bytes), Some(notes));
        assert_eq!(EventNote::decode_all(&bytes[..5]), None);
    }
}
