//! The window, and one sweep for each key.

use super::sweep::Sweep;
use super::{Bucket, Interval, Step};
use crate::model::time::Timestamp;

/// Most buckets over all keys: some 100 MB, and more than anybody looks at.
const MAX_BUCKETS: i128 = 1_000_000;

/// What part of time is told. Ends are widened to whole buckets; one that is not given is the first start, or the
/// last end, of what is added.
#[derive(Debug, Clone, Copy)]
pub struct Window {
    /// The width of the buckets.
    pub step: Step,
    /// The first instant.
    pub from: Option<Timestamp>,
    /// The first instant behind it.
    pub to: Option<Timestamp>,
}

/// Why a series cannot be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// An interval starts before the one that was added last.
    #[error("intervals must be added in the order of their starts")]
    OutOfOrder,
    /// The window is too long for its step.
    #[error("the series would have {buckets} buckets, and at most {MAX_BUCKETS} are made")]
    TooLong {
        /// How many there would be, over all keys.
        buckets: i128,
    },
}

/// A series for each of some keys over one window.
#[derive(Debug)]
pub struct Series {
    window: Window,
    initial: Vec<i64>,
    sweeps: Vec<Sweep>,
    from: Option<Timestamp>,
    last_start: Timestamp,
    last_end: Timestamp,
}

impl Series {
    /// With tasks that run all the time: so many of key 0, 1 and so on, none of the keys behind.
    pub fn new(window: Window, initial: &[i64]) -> Self {
        let Window { step, from, to } = window;
        let window = Window { step, from: from.map(|t| step.floor(t)), to: to.map(|t| step.ceil(t)) };
        let earliest = Timestamp(i64::MIN);
        Self {
            window,
            initial: initial.to_vec(),
            sweeps: Vec::new(),
            from: window.from,
            last_start: earliest,
            last_end: earliest,
        }
    }

    /// Takes a task of a key; keys count from 0.
    ///
    /// # Errors
    /// [`Fault::OutOfOrder`] if it starts before the one taken last; [`Fault::TooLong`].
    pub fn add(&mut self, key: usize, interval: Interval) -> Result<(), Fault> {
        if interval.start < self.last_start {
            return Err(Fault::OutOfOrder);
        }
        self.last_start = interval.start;
        if self.window.to.is_some_and(|to| interval.start >= to) {
            return Ok(());
        }
        let from = *self.from.get_or_insert(self.window.step.floor(interval.start));
        // The sweeps make buckets as they go, so this cannot wait for the end.
        self.check(from, interval.start, 1)?;
        self.last_end = self.last_end.max(interval.end.unwrap_or(interval.start));
        self.reach(key + 1, from);
        self.sweeps[key].add(interval);
        Ok(())
    }

    /// The buckets of keys `0..keys`, equally many for each; none at all if nothing was added and the window has an
    /// open end.
    ///
    /// # Errors
    /// [`Fault::TooLong`].
    pub fn finish(mut self, keys: usize) -> Result<Vec<Vec<Bucket>>, Fault> {
        let step = self.window.step;
        let Some(from) = self.from else { return Ok(vec![Vec::new(); keys]) };
        if self.sweeps.is_empty() && self.window.to.is_none() {
            return Ok(vec![Vec::new(); keys]);
        }
        let to = self.window.to.unwrap_or_else(|| {
            // A start on the border behind the last end is in a bucket too.
            let start = step.floor(self.last_start).plus(step.span());
            step.ceil(self.last_end).max(start)
        });
        let to = to.max(from.plus(step.span()));
        self.check(from, to, keys)?;
        self.reach(keys, from);
        Ok(self.sweeps.into_iter().map(|sweep| sweep.finish(to)).collect())
    }

    fn check(&self, from: Timestamp, to: Timestamp, keys: usize) -> Result<(), Fault> {
        let each = (i128::from(to.0) - i128::from(from.0)) / i128::from(self.window.step.span().0);
        let buckets = each * keys as i128;
        if buckets > MAX_BUCKETS { Err(Fault::TooLong { buckets }) } else { Ok(()) }
    }

    /// Makes sweeps up to `keys`.
    fn reach(&mut self, keys: usize, from: Timestamp) {
        for key in self.sweeps.len()..keys {
            let initial = self.initial.get(key).copied().unwrap_or(0);
            self.sweeps.push(Sweep::new(self.window.step, from, initial));
        }
    }
}
