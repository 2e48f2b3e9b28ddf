//! What a server counts of its own work, in atomics: cheap enough for every commit, and read by nobody but the scrape
//! of `/metrics`.
//!
//! Invariants
//! - Nothing here has a name, an id or a text of a user: what is told is bounded by what this file lists.
//! - A task costs a few additions; times are taken once per batch.
//!
//! To add a number: a field of [`Measures`], who counts it, its place in [`Measured`], and its name in
//! `api/metrics.rs` and `docs/guide/metrics.md`.

use super::App;
use super::inner::Inner;
use crate::model::event::EventKind;
use crate::model::ids::Partition;
use crate::store::{QueueHead, Reading};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use tokio::time::Instant;

/// A histogram with fixed bounds; lock free.
#[derive(Debug)]
pub(crate) struct Histogram {
    bounds: &'static [f64],
    /// One more than bounds: what is over the last.
    counts: Box<[AtomicU64]>,
    /// Millionths, so that sums are whole.
    sum: AtomicU64,
}

/// What a histogram held when it was looked at.
#[derive(Debug, Clone, PartialEq)]
pub struct Observed {
    /// Upper bounds and how many were observed in each bucket, not cumulated; the last bound is infinite.
    pub buckets: Vec<(f64, u64)>,
    /// The sum of all that was observed.
    pub sum: f64,
}

impl Observed {
    /// How many were observed.
    pub fn count(&self) -> u64 {
        self.buckets.iter().map(|(_, n)| n).sum()
    }
}

impl Histogram {
    pub(crate) fn new(bounds: &'static [f64]) -> Self {
        let counts = (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect();
        Self { bounds, counts, sum: AtomicU64::new(0) }
    }

    pub(crate) fn observe(&self, value: f64) {
        let at = self.bounds.iter().position(|bound| value <= *bound).unwrap_or(self.bounds.len());
        if let Some(count) = self.counts.get(at) {
            count.fetch_add(1, Relaxed);
        }
        self.sum.fetch_add((value * 1e6) as u64, Relaxed);
    }

    /// In seconds.
    pub(crate) fn took(&self, time: Duration) {
        self.observe(time.as_secs_f64());
    }

    pub(crate) fn read(&self) -> Observed {
        let bounds = self.bounds.iter().copied().chain([f64::INFINITY]);
        let buckets = bounds.zip(&self.counts).map(|(bound, count)| (bound, count.load(Relaxed))).collect();
        Observed { buckets, sum: self.sum.load(Relaxed) as f64 / 1e6 }
    }
}

/// Bounds of times that a store takes, in seconds.
const TIMES: &[f64] =
    &[0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0];
/// Bounds of times that deciding takes, in seconds.
const SHORT: &[f64] = &[0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.05, 0.25];
/// Bounds of sizes of batches.
const SIZES: &[f64] = &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0];

/// A tail that nobody wants.
const RESTS: u64 = u64::MAX;

/// See the module.
#[derive(Debug)]
pub(crate) struct Measures {
    /// Events by [`EventKind`], as committed here.
    events: [AtomicU64; 64],
    /// Decisions in a batch that was committed.
    pub(crate) batch: Histogram,
    /// From sending a batch to its answer, repeats included.
    pub(crate) commit: Histogram,
    /// Deciding what goes into one batch.
    pub(crate) decide: Histogram,
    /// Decisions that were made again: the run was not what they were made on.
    pub(crate) conflicts: AtomicU64,
    /// Batches of which the store provably took nothing.
    pub(crate) not_applied: AtomicU64,
    /// Starts that were turned away: the store does not take writes.
    pub(crate) starts_strained: AtomicU64,
    /// Starts that were turned away: too many wait.
    pub(crate) starts_crowded: AtomicU64,
    /// Starts that nobody waited for any more when their turn came.
    pub(crate) starts_abandoned: AtomicU64,
    /// Of each partition: entries in its ready queues, and the lowest score.
    queued: Mutex<Vec<(u64, Option<i64>)>>,
    /// When the event tail of each part of the store was last read to its end, in ms after `begun`, or [`RESTS`].
    tail_read: Box<[AtomicU64]>,
    begun: Instant,
}

impl Measures {
    pub(crate) fn new(partitions: u16) -> Self {
        Self {
            events: std::array::from_fn(|_| AtomicU64::new(0)),
            batch: Histogram::new(SIZES),
            commit: Histogram::new(TIMES),
            decide: Histogram::new(SHORT),
            conflicts: AtomicU64::new(0),
            not_applied: AtomicU64::new(0),
            starts_strained: AtomicU64::new(0),
            starts_crowded: AtomicU64::new(0),
            starts_abandoned: AtomicU64::new(0),
            queued: Mutex::new(vec![(0, None); usize::from(partitions)]),
            tail_read: (0..partitions).map(|_| AtomicU64::new(RESTS)).collect(),
            begun: Instant::now(),
        }
    }

    /// Events of a commit.
    pub(crate) fn happened(&self, kinds: &[EventKind]) {
        for kind in kinds {
            if let Some(count) = self.events.get(*kind as usize) {
                count.fetch_add(1, Relaxed);
            }
        }
    }

    /// What a tick has shown of the queues of a partition.
    pub(crate) fn queued(&self, partition: Partition, heads: &[QueueHead]) {
        let depth = heads.iter().map(|h| h.depth).sum();
        let oldest = heads.iter().filter_map(|h| h.score).min();
        if let Some(of) = self.queued.lock().get_mut(usize::from(partition.0)) {
            *of = (depth, oldest);
        }
    }

    /// The event tail of a part of the store has been read to its end just now, or begins.
    pub(crate) fn tail_was_read(&self, part: usize) {
        if let Some(read) = self.tail_read.get(part) {
            read.store(self.begun.elapsed().as_millis() as u64, Relaxed);
        }
    }

    /// Nobody follows its events.
    pub(crate) fn tail_rests(&self, part: usize) {
        if let Some(read) = self.tail_read.get(part) {
            read.store(RESTS, Relaxed);
        }
    }

    fn tail_age(&self) -> Duration {
        let oldest = self.tail_read.iter().map(|read| read.load(Relaxed)).min().unwrap_or(RESTS);
        self.begun.elapsed().saturating_sub(Duration::from_millis(oldest))
    }
}

/// Since when the store has taken nothing although it was asked to.
#[derive(Debug)]
pub(crate) struct Stuck {
    /// In ms after `begun` plus one; 0: it takes.
    since: AtomicU64,
    /// From then on nothing is known, in ms after `begun`.
    until: AtomicU64,
    begun: Instant,
}

impl Default for Stuck {
    fn default() -> Self {
        Self { since: AtomicU64::new(0), until: AtomicU64::new(u64::MAX), begun: Instant::now() }
    }
}

impl Stuck {
    /// None: it takes.
    pub(crate) fn since(&self, since: Option<Instant>) {
        self.since_until(since, None);
    }

    /// The same, and from `until` on that is not known any more: whoever asks then finds out.
    pub(crate) fn since_until(&self, since: Option<Instant>, until: Option<Instant>) {
        let ms = |at: Instant| at.saturating_duration_since(self.begun).as_millis() as u64;
        self.until.store(until.map_or(u64::MAX, ms), Relaxed);
        self.since.store(since.map_or(0, |at| ms(at) + 1), Relaxed);
    }

    /// From now on, unless it was before.
    pub(crate) fn begins(&self) {
        let ms = self.begun.elapsed().as_millis() as u64 + 1;
        // Err: it was before.
        let _ = self.since.compare_exchange(0, ms, Relaxed, Relaxed);
    }

    /// For how long.
    pub(crate) fn long(&self) -> Duration {
        let now = self.begun.elapsed();
        match self.since.load(Relaxed) {
            0 => Duration::ZERO,
            _ if now >= Duration::from_millis(self.until.load(Relaxed)) => Duration::ZERO,
            ms => now.saturating_sub(Duration::from_millis(ms - 1)),
        }
    }
}

/// What a lane tells of itself, without being asked.
#[derive(Debug, Default)]
pub(crate) struct LaneGauges {
    /// Letters that are in slots, starts included.
    pub(crate) waiting: AtomicU64,
    /// Starts among them.
    pub(crate) starts: AtomicU64,
    /// Commits under way.
    pub(crate) commits: AtomicU64,
    /// Bytes of runs that are kept.
    pub(crate) cached: AtomicU64,
    /// Since when nothing that it sent was taken.
    pub(crate) stuck: Stuck,
}

/// A look at what this server has counted. All of it is of this server alone.
#[derive(Debug, Clone)]
pub struct Measured {
    /// Events that commits of this server made, by kind.
    pub events: Vec<(EventKind, u64)>,
    /// Decisions in a committed batch.
    pub batch: Observed,
    /// Seconds from sending a batch to its answer.
    pub commit: Observed,
    /// Seconds of deciding what goes into a batch.
    pub decide: Observed,
    /// Decisions that had to be made again.
    pub conflicts: u64,
    /// Batches of which the store provably took nothing.
    pub not_applied: u64,
    /// Starts turned away because the store does not take writes, because too many wait, and dropped because nobody
    /// waited for them any more.
    pub starts_refused: [u64; 3],
    /// Of each lane.
    pub lanes: Vec<LaneMeasured>,
    /// For how long the store has taken nothing, or not answered, in seconds.
    pub stuck: f64,
    /// Streams of workers.
    pub sessions: u64,
    /// Credit of all workers here, and how much of it is in use.
    pub credit: (u64, u64),
    /// Tasks that wait in ready queues, as the last looks at them showed.
    pub queued: u64,
    /// How long ago the run of the first of them began, moved by its priority, in seconds.
    pub queued_oldest: f64,
    /// Calls and streams that watch one run.
    pub watchers: u64,
    /// Followers of events of all runs.
    pub followers: u64,
    /// Seconds since the event tail was last read to its end, in the part of the store where that is longest ago; 0 while
    /// nobody follows it.
    pub tail_age: f64,
    /// The server drains.
    pub draining: bool,
    /// What the store tells of itself.
    pub store: Vec<Reading>,
}

/// A look at one lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LaneMeasured {
    /// Commands that wait, in front of the lane and in it, starts apart.
    pub letters: u64,
    /// Starts that wait.
    pub starts: u64,
    /// Commits under way.
    pub commits: u64,
    /// Bytes of runs that are kept.
    pub cached: u64,
}

impl App {
    /// What this server has counted so far. Asks the store nothing.
    pub fn measured(&self) -> Measured {
        measured(&self.inner)
    }
}

fn measured(inner: &Inner) -> Measured {
    let m = &inner.measures;
    let (queued, oldest) = {
        let queued = m.queued.lock();
        (queued.iter().map(|(n, _)| n).sum(), queued.iter().filter_map(|(_, score)| *score).min())
    };
    let now = inner.clock.now().0;
    let (sessions, credit) = inner.dispatcher.lock().totals();
    let (watchers, followers) = inner.hub.counts();
    Measured {
        events: EventKind::ALL
            .iter()
            .map(|kind| (*kind, m.events.get(*kind as usize).map_or(0, |n| n.load(Relaxed))))
            .collect(),
        batch: m.batch.read(),
        commit: m.commit.read(),
        decide: m.decide.read(),
        conflicts: m.conflicts.load(Relaxed),
        not_applied: m.not_applied.load(Relaxed),
        starts_refused: [&m.starts_strained, &m.starts_crowded, &m.starts_abandoned].map(|n| n.load(Relaxed)),
        lanes: inner.lanes_measured(),
        stuck: inner.stuck().as_secs_f64(),
        sessions,
        credit,
        queued,
        queued_oldest: oldest.map_or(0.0, |score| now.saturating_sub(score).max(0) as f64 / 1e6),
        watchers,
        followers,
        tail_age: m.tail_age().as_secs_f64(),
        draining: inner.draining.is_cancelled(),
        store: inner.store.report(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_counted_under_the_first_bound_that_is_not_below_it() {
        let histogram = Histogram::new(&[1.0, 2.0, 4.0]);
        for value in [0.5, 1.0, 1.5, 4.0, 100.0] {
            histogram.observe(value);
        }
        let read = histogram.read();
        assert_eq!(read.buckets, [(1.0, 2), (2.0, 1), (4.0, 1), (f64::INFINITY, 1)]);
        assert_eq!((read.count(), read.sum), (5, 107.0));
    }

    #[tokio::test(start_paused = true)]
    async fn it_is_stuck_from_the_first_moment_on_until_it_is_not() {
        let stuck = Stuck::default();
        assert_eq!(stuck.long(), Duration::ZERO);
        stuck.since(Some(Instant::now()));
        tokio::time::advance(Duration::from_millis(1_500)).await;
        stuck.begins();
        assert_eq!(stuck.long(), Duration::from_millis(1_500));
        stuck.since(None);
        assert_eq!(stuck.long(), Duration::ZERO);
        stuck.begins();
        tokio::time::advance(Duration::from_millis(500)).await;
        assert_eq!(stuck.long(), Duration::from_millis(500));
        let (since, until) = (Instant::now(), Instant::now() + Duration::from_secs(2));
        stuck.since_until(Some(since), Some(until));
        tokio::time::advance(Duration::from_millis(1_999)).await;
        assert_eq!(stuck.long(), Duration::from_millis(1_999));
        tokio::time::advance(Duration::from_millis(1)).await;
        assert_eq!(stuck.long(), Duration::ZERO, "nobody has said so since");
        stuck.since(Some(since));
        assert_eq!(stuck.long(), Duration::from_secs(2));
    }

    #[test]
    fn queues_are_summed_over_partitions_and_forgotten_when_they_are_empty() {
        let measures = Measures::new(2);
        let head = |depth, score| QueueHead {
            partition: Partition(0),
            queue: "pack".parse().unwrap(),
            score: Some(score),
            depth,
        };
        measures.queued(Partition(0), &[head(3, 20), head(2, 10)]);
        measures.queued(Partition(1), &[head(1, 30)]);
        // Of a store with fewer partitions than that: nobody asks.
        measures.queued(Partition(9), &[head(1, 1)]);
        assert_eq!(*measures.queued.lock(), [(5, Some(10)), (1, Some(30))]);
        measures.queued(Partition(0), &[]);
        assert_eq!(*measures.queued.lock(), [(0, None), (1, Some(30))]);
    }
}
