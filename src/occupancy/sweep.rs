//! One series, by a line that sweeps over the intervals in the order of their starts.

use super::{Bucket, Interval, Step};
use crate::model::time::Timestamp;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// The state at the instant that the sweep has reached.
#[derive(Debug)]
pub(super) struct Sweep {
    step: Step,
    /// Ends still to come, the next one on top.
    ends: BinaryHeap<Reverse<Timestamp>>,
    /// The instant whose starts are being collected, and how many there are.
    at: Timestamp,
    starts: u64,
    /// The value from the last change on.
    value: i64,
    /// The bucket under way, and up to where its area is counted.
    bucket: Bucket,
    counted: Timestamp,
    done: Vec<Bucket>,
}

impl Sweep {
    /// Buckets begin at `from`, which is a border.
    pub(super) fn new(step: Step, from: Timestamp, initial: i64) -> Self {
        Self {
            step,
            ends: BinaryHeap::new(),
            at: Timestamp(i64::MIN),
            starts: 0,
            value: initial,
            bucket: fresh(step, from, initial),
            counted: from,
            done: Vec::new(),
        }
    }

    /// Takes an interval that starts no earlier than the one before.
    pub(super) fn add(&mut self, interval: Interval) {
        if interval.start > self.at {
            self.run(interval.start);
            self.at = interval.start;
        }
        self.starts += 1;
        if let Some(end) = interval.end {
            self.ends.push(Reverse(end));
        }
    }

    /// The buckets up to `to`, which is a border.
    pub(super) fn finish(mut self, to: Timestamp) -> Vec<Bucket> {
        self.run(to);
        self.pass(to);
        self.done
    }

    /// Applies everything that happens before `until`.
    fn run(&mut self, until: Timestamp) {
        if self.starts > 0 {
            // Ends before it were applied when it was reached.
            let (at, starts) = (self.at, std::mem::take(&mut self.starts));
            let ends = self.pop(at);
            self.apply(at, starts, ends);
        }
        while let Some(Reverse(at)) = self.ends.peek().copied().filter(|Reverse(at)| *at < until) {
            let ends = self.pop(at);
            self.apply(at, 0, ends);
        }
    }

    /// How many ends there are at `at`.
    fn pop(&mut self, at: Timestamp) -> u64 {
        let mut count = 0;
        while self.ends.peek().is_some_and(|Reverse(end)| *end == at) {
            self.ends.pop();
            count += 1;
        }
        count
    }

    fn apply(&mut self, at: Timestamp, starts: u64, ends: u64) {
        let value = self.value + starts as i64 - ends as i64;
        if at < self.bucket.at {
            // Before the window: only the value at its first instant is told.
            self.value = value;
            self.bucket = fresh(self.step, self.bucket.at, value);
            return;
        }
        self.pass(at);
        self.count_area(at);
        self.value = value;
        let bucket = &mut self.bucket;
        bucket.starts += starts;
        bucket.ends += ends;
        if at == bucket.at {
            (bucket.open, bucket.max, bucket.min) = (value, value, value);
        } else {
            bucket.max = bucket.max.max(value);
            bucket.min = bucket.min.min(value);
        }
    }

    /// Closes the buckets that end at or before `at`.
    fn pass(&mut self, at: Timestamp) {
        loop {
            let end = self.bucket.at.plus(self.step.span());
            if at < end {
                return;
            }
            self.count_area(end);
            self.bucket.close = self.value;
            self.done.push(std::mem::replace(&mut self.bucket, fresh(self.step, end, self.value)));
        }
    }

    fn count_area(&mut self, to: Timestamp) {
        self.bucket.area += i128::from(self.value) * i128::from(to.0 - self.counted.0);
        self.counted = to;
    }
}

fn fresh(step: Step, at: Timestamp, value: i64) -> Bucket {
    let width = step.span();
    Bucket { at, width, open: value, close: value, max: value, min: value, area: 0, starts: 0, ends: 0 }
}
