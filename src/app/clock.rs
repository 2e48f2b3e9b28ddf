//! The store's clocks as this server knows them: wall time, and each partition's lease clock.
//! Between ticks both are carried on by local monotonic time; a lease clock by at most the step that the
//! store itself would take, so that a stall of ours or of the store expires nobody.

use crate::model::ids::Partition;
use crate::model::time::{LeaseTime, Span, Timestamp};
use parking_lot::RwLock;
use tokio::time::Instant;

/// The most a lease clock moves in one step; the stores use the same.
const STEP: Span = Span::secs(2);

/// A lease clock that was asked for longer ago is asked for again before anything is granted or judged by it.
const FRESH: Span = Span::secs(1);

/// See the module.
#[derive(Debug)]
pub(crate) struct StoreClock {
    wall: RwLock<(Timestamp, Instant)>,
    leases: Vec<RwLock<Lease>>,
}

/// A lease clock as a tick showed it.
#[derive(Debug, Clone, Copy)]
struct Lease {
    time: LeaseTime,
    asked: Instant,
    answered: Instant,
}

fn elapsed(since: Instant) -> Span {
    Span(i64::try_from(since.elapsed().as_micros()).unwrap_or(i64::MAX))
}

impl StoreClock {
    /// Clocks of a store with this many partitions, to be ticked at once; the first tick was asked for at `asked`
    /// and showed `now`.
    pub(crate) fn new(partitions: u16, now: Timestamp, asked: Instant) -> Self {
        let at = Instant::now();
        Self {
            wall: RwLock::new((now, at)),
            leases: (0..partitions)
                .map(|_| RwLock::new(Lease { time: LeaseTime::default(), asked, answered: asked }))
                .collect(),
        }
    }

    /// A tick of `partition`, asked for at `asked`, came back. True if its lease clock went back: only a store that
    /// lost its tail (a fail-over, a log cut short) does that.
    pub(crate) fn ticked(
        &self,
        partition: Partition,
        asked: Instant,
        now: Timestamp,
        time: LeaseTime,
    ) -> bool {
        let answered = Instant::now();
        let Some(cell) = self.leases.get(usize::from(partition.0)) else { return false };
        let mut cell = cell.write();
        if asked < cell.asked {
            return false; // A later one came back first.
        }
        *self.wall.write() = (now, answered);
        let before = std::mem::replace(&mut *cell, Lease { time, asked, answered });
        time < before.time && asked >= before.answered
    }

    /// Whether the lease clock of `partition` is known well enough to grant by it, or to judge. One that was not
    /// asked for a while may have gone on by more than we know, by the ticks of other servers.
    pub(crate) fn is_fresh(&self, partition: Partition) -> bool {
        self.leases.get(usize::from(partition.0)).is_some_and(|cell| elapsed(cell.read().asked) <= FRESH)
    }

    /// The store's wall clock.
    pub(crate) fn now(&self) -> Timestamp {
        let (base, at) = *self.wall.read();
        base.plus(elapsed(at))
    }

    /// The lease clock of `partition`.
    pub(crate) fn lease_now(&self, partition: Partition) -> LeaseTime {
        self.leases.get(usize::from(partition.0)).map_or(LeaseTime::default(), |cell| {
            let lease = *cell.read();
            lease.time.plus(elapsed(lease.answered).min(STEP))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[tokio::test(start_paused = true)]
    async fn the_first_tick_counts_though_it_was_asked_for_before_the_clock_was_made() {
        let asked = Instant::now();
        tokio::time::advance(Duration::from_millis(3)).await;
        let c = StoreClock::new(1, Timestamp(5), asked);
        assert!(!c.ticked(Partition(0), asked, Timestamp(5), LeaseTime::from_millis(40)));
        assert_eq!(c.lease_now(Partition(0)), LeaseTime::from_millis(40));
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_clock_that_goes_back_is_noticed_once() {
        let c = StoreClock::new(1, Timestamp(5), Instant::now());
        let ticked = |ms| c.ticked(Partition(0), Instant::now(), Timestamp(5), LeaseTime::from_millis(ms));
        assert!(!ticked(40));
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(!ticked(40), "it stood still");
        assert!(ticked(39));
        assert!(!ticked(39));
    }

    #[tokio::test(start_paused = true)]
    async fn answers_that_overtake_each_other_are_no_way_back() {
        let c = StoreClock::new(1, Timestamp(5), Instant::now());
        let ticked = |asked, ms| c.ticked(Partition(0), asked, Timestamp(5), LeaseTime::from_millis(ms));
        let first = Instant::now();
        tokio::time::advance(Duration::from_millis(5)).await;
        let second = Instant::now();
        tokio::time::advance(Duration::from_millis(5)).await;
        assert!(!ticked(second, 50));
        assert!(!ticked(first, 45));
        assert_eq!(c.lease_now(Partition(0)), LeaseTime::from_millis(50));
        assert!(!ticked(second, 48), "asked before the last answer came");
    }

    #[tokio::test(start_paused = true)]
    async fn wall_time_runs_on_and_a_lease_clock_stands_still_in_a_stall() {
        let c = StoreClock::new(2, Timestamp(5), Instant::now());
        c.ticked(Partition(1), Instant::now(), Timestamp::from_millis(1_000), LeaseTime::from_millis(40));
        assert!(c.is_fresh(Partition(1)));
        tokio::time::advance(Duration::from_millis(500)).await;
        assert_eq!(c.now(), Timestamp::from_millis(1_500));
        assert_eq!(c.lease_now(Partition(1)), LeaseTime::from_millis(540));
        tokio::time::advance(Duration::from_secs(30)).await;
        assert_eq!(c.now(), Timestamp::from_millis(31_500));
        assert_eq!(c.lease_now(Partition(1)), LeaseTime::from_millis(2_040));
        assert!(!c.is_fresh(Partition(1)));
    }
}
