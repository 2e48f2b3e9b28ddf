//! When tasks ran, as the worker saw it: kept in a few bytes each while it is measured, written when it is over.
//!
//! A task runs from the call of its handler until the server has acknowledged its result. The client keeps a result, and
//! with it the output, until then; so the last copy of the output that goes ends the task.
//!
//! The form: for each task in the order of the ends two varints, microseconds since the end before (of the first: since
//! the Unix epoch) and the length in microseconds.

use crate::model::time::{Clock as _, SystemClock};
use bytes::Bytes;
use parking_lot::Mutex;
use prost::encoding::{decode_varint, encode_varint};
use std::sync::Arc;

/// Collects tasks; clones share what they collect.
#[derive(Debug, Clone, Default)]
pub(super) struct Recorder(Arc<Mutex<Recorded>>);

#[derive(Debug, Default)]
struct Recorded {
    bytes: Vec<u8>,
    last: i64,
}

impl Recorded {
    fn add(&mut self, start: i64, end: i64) {
        // A clock that was set back must not make a length negative.
        let end = end.max(self.last);
        encode_varint((end - self.last).unsigned_abs(), &mut self.bytes);
        encode_varint((end - start).max(0).unsigned_abs(), &mut self.bytes);
        self.last = end;
    }
}

/// An output that ends its task when it goes.
struct Held {
    output: Bytes,
    start: i64,
    recorder: Recorder,
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.output
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut recorded = self.recorder.0.lock();
        // Under the lock, so that the ends are in order.
        let now = SystemClock.now().0;
        recorded.add(self.start, now);
    }
}

impl Recorder {
    /// A task begins; it ends with the last copy of what this returns.
    pub(super) fn task(&self, output: Bytes) -> Bytes {
        Bytes::from_owner(Held { output, start: SystemClock.now().0, recorder: self.clone() })
    }

    /// What was collected.
    pub(super) fn take(&self) -> Vec<u8> {
        std::mem::take(&mut self.0.lock().bytes)
    }
}

/// Start and end of each task in µs since the epoch, by end; none if `bytes` are no record.
pub(super) fn read(mut bytes: &[u8]) -> Option<Vec<(i64, i64)>> {
    let mut tasks = Vec::new();
    let mut last = 0_i64;
    while !bytes.is_empty() {
        let mut next = || i64::try_from(decode_varint(&mut bytes).ok()?).ok();
        last = last.checked_add(next()?)?;
        tasks.push((last.checked_sub(next()?)?, last));
    }
    Some(tasks)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_recorded_is_read_again_and_takes_few_bytes() {
        let mut recorded = Recorded::default();
        let base = 1_800_000_000_000_000;
        let tasks: Vec<_> = (0..10_000).map(|n| (base + n * 9, base + n * 9 + 15_000)).collect();
        for (start, end) in &tasks {
            recorded.add(*start, *end);
        }
        assert!(recorded.bytes.len() <= 10_000 * 3 + 8, "{}", recorded.bytes.len());
        assert_eq!(read(&recorded.bytes), Some(tasks));
        assert_eq!((read(&[]), read(&[0x80]), read(&[1])), (Some(vec![]), None, None));
        let mut back = Recorded::default();
        back.add(50, 100);
        back.add(70, 60);
        assert_eq!(read(&back.bytes), Some(vec![(50, 100), (70, 100)]));
    }

    #[test]
    fn a_task_ends_with_the_last_copy_of_its_output() {
        let recorder = Recorder::default();
        let output = recorder.task(Bytes::from_static(b"[1]"));
        let copy = output.clone();
        assert_eq!(&output[..], b"[1]");
        drop(output);
        assert_eq!(recorder.take(), [0_u8; 0]);
        drop(copy);
        assert_eq!(read(&recorder.take()).unwrap().len(), 1);
    }
}
