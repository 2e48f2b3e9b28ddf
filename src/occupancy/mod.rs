//! How many tasks were running, when: intervals in, a series of buckets out, exact to the microsecond.
//!
//! A task runs over the half-open `[start, end)`; one without an end runs on. All changes at one instant are netted
//! before anything is read, so that back-to-back tasks never count twice. Buckets are half-open and lie at multiples
//! of the step since the Unix epoch.
//!
//! ```text
//! mod.rs     the values: Step, Interval, Bucket
//! sweep.rs   one series: a heap of ends, and the bucket under way
//! series.rs  the window, and one sweep for each key
//! ```
//!
//! Invariants
//! - Pure: no clock, no I/O. Sorted input costs O(n log k) time and O(k) memory beside the buckets, k the peak.
//! - Buckets follow each other without a gap; one without changes repeats the value carried in.
//! - Each number of a bucket is what counting at each of its microseconds would give (a property test does).
//!
//! To add a figure to the buckets: a field of [`Bucket`], its change in `Sweep::apply`, its line in
//! [`Bucket::merge`], and its count in `naive` of `tests.rs`.

mod series;
mod sweep;
#[cfg(test)]
mod tests;

pub use series::{Fault, Series, Window};

use crate::model::time::{Span, Timestamp};

/// The width of a bucket: at least a microsecond, at most ten years.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step(i64);

impl Step {
    /// The longest.
    const MAX: i64 = crate::model::duration::MAX_MS * 1_000;

    /// None if `span` is nothing or longer than ten years.
    pub const fn new(span: Span) -> Option<Self> {
        if span.0 > 0 && span.0 <= Self::MAX { Some(Self(span.0)) } else { None }
    }

    /// The length.
    pub const fn span(self) -> Span {
        Span(self.0)
    }

    /// The beginning of the bucket that holds `at`.
    pub const fn floor(self, at: Timestamp) -> Timestamp {
        Timestamp(at.0.saturating_sub(at.0.rem_euclid(self.0)))
    }

    /// The first border at or after `at`.
    pub const fn ceil(self, at: Timestamp) -> Timestamp {
        let floor = self.floor(at);
        if floor.0 == at.0 { floor } else { floor.plus(self.span()) }
    }
}

/// When a task ran: `[start, end)`, or from `start` on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Interval {
    start: Timestamp,
    end: Option<Timestamp>,
}

impl Interval {
    /// None if the end is before the start.
    pub fn new(start: Timestamp, end: Option<Timestamp>) -> Option<Self> {
        end.is_none_or(|end| end >= start).then_some(Self { start, end })
    }

    /// Its first instant.
    pub const fn start(self) -> Timestamp {
        self.start
    }

    /// The first instant at which it ran no more; none if it runs on.
    pub const fn end(self) -> Option<Timestamp> {
        self.end
    }
}

/// The values over `[at, at + width)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bucket {
    /// Its first instant.
    pub at: Timestamp,
    /// Its length.
    pub width: Span,
    /// The value at its first instant.
    pub open: i64,
    /// The value just before its end.
    pub close: i64,
    /// The high-water mark.
    pub max: i64,
    /// The lowest value.
    pub min: i64,
    /// Value times time, in microseconds.
    pub area: i128,
    /// Tasks that started in it.
    pub starts: u64,
    /// Tasks that ended in it.
    pub ends: u64,
}

impl Bucket {
    /// The mean over its width.
    pub fn avg(&self) -> f64 {
        self.area as f64 / self.width.0 as f64
    }

    /// This bucket and the one behind it as one, for series that are wider than a picture.
    pub fn merge(self, next: Self) -> Self {
        Self {
            at: self.at,
            width: Span(self.width.0.saturating_add(next.width.0)),
            open: self.open,
            close: next.close,
            max: self.max.max(next.max),
            min: self.min.min(next.min),
            area: self.area + next.area,
            starts: self.starts + next.starts,
            ends: self.ends + next.ends,
        }
    }
}
