//! The tick: clocks go on, what is due is told, what was left behind is tidied.
//!
//! ```text
//! clock:  lease clock i64 ‖ wall time of the last tick i64 ‖ … of the last look at retention i64
//!         ‖ … of the last sweep i64      (big endian)
//! ```

use super::commit::{Window, set_time};
use super::keys::{self, Space};
use super::{Effects, Order, Shape, Tx, damaged, queue, session};
use crate::model::ids::{Partition, RunId};
use crate::model::time::{LeaseTime, Span, Timestamp};
use crate::store::{
    DUE_AGAIN, LANE_IDLE, LEASE_STEP, RECLAIM_MAX, RETENTION_EVERY, Result, SWEEP_EVERY, Ticked, order_value,
};

#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Clock {
    lease: i64,
    wall: i64,
    retained: i64,
    swept: i64,
}

impl Clock {
    fn key(partition: Partition) -> Vec<u8> {
        keys::Key::of(Space::Clock, partition).bytes()
    }

    fn read(tx: &Tx<'_>, partition: Partition) -> Result<Option<Self>> {
        let Some(value) = tx.get(&Self::key(partition))? else { return Ok(None) };
        let number = |n: usize| Some(i64::from_be_bytes(value.get(n * 8..n * 8 + 8)?.try_into().ok()?));
        let read =
            || Some(Self { lease: number(0)?, wall: number(1)?, retained: number(2)?, swept: number(3)? });
        read().map(Some).ok_or_else(|| damaged("the clock of a partition"))
    }

    fn write(self, tx: &mut Tx<'_>, partition: Partition) {
        let numbers = [self.lease, self.wall, self.retained, self.swept];
        tx.put(Self::key(partition), numbers.map(i64::to_be_bytes).concat());
    }

    /// Sets the clocks of a partition that nobody has worked on.
    pub(super) fn begin(tx: &mut Tx<'_>, partition: Partition, lease: LeaseTime, now: Timestamp) {
        Self { lease: lease.0, wall: now.0, retained: 0, swept: now.0 }.write(tx, partition);
    }

    fn lease_at(self, now: Timestamp) -> LeaseTime {
        let elapsed = now.since(Timestamp(self.wall)).min(LEASE_STEP);
        LeaseTime(self.lease).plus(elapsed)
    }
}

/// The partition's lease clock: what the last tick left plus the time since, at most [`LEASE_STEP`].
pub(super) fn lease_now(tx: &Tx<'_>, partition: Partition, now: Timestamp) -> Result<LeaseTime> {
    Ok(Clock::read(tx, partition)?.map_or(LeaseTime(0), |clock| clock.lease_at(now)))
}

/// See [`crate::store::Store::tick`]. `home` says whether a partition keeps windows of lanes.
pub fn tick(
    tx: &mut Tx<'_>,
    shape: &Shape,
    home: Partition,
    partitions: &[Partition],
    max: u32,
    now: Timestamp,
) -> Result<(Vec<Ticked>, Effects)> {
    let mut effects = Effects::default();
    let mut ticked = Vec::with_capacity(partitions.len());
    for partition in partitions {
        shape.holds(*partition)?;
        ticked.push(tick_one(tx, home, *partition, max as usize, now, &mut effects)?);
    }
    Ok((ticked, effects))
}

fn tick_one(
    tx: &mut Tx<'_>,
    home: Partition,
    partition: Partition,
    max: usize,
    now: Timestamp,
    effects: &mut Effects,
) -> Result<Ticked> {
    let fresh = Clock { lease: 0, wall: now.0, retained: 0, swept: now.0 };
    let mut clock = Clock::read(tx, partition)?.unwrap_or(fresh);
    let lease_now = clock.lease_at(now);
    clock.lease = lease_now.0;
    clock.wall = now.0;
    let mut ticked = Ticked {
        now,
        lease_now,
        due: Vec::new(),
        expired: Vec::new(),
        next: None,
        heads: Vec::new(),
        reclaimed: 0,
    };
    if max > 0 {
        if is_time(clock.swept, SWEEP_EVERY, now) {
            clock.swept = now.0;
            session::sweep(tx, partition, lease_now)?;
            if partition == home {
                sweep_lanes(tx, partition, now)?;
            }
        }
        if is_time(clock.retained, RETENTION_EVERY, now) {
            ticked.expired = due(tx, Space::Retain, Space::RetainOf, partition, max, now)?;
            if ticked.expired.len() < max {
                clock.retained = now.0;
            }
        }
        ticked.reclaimed = queue::reclaim(tx, partition, now, RECLAIM_MAX as usize, effects)?;
        ticked.due = due(tx, Space::Wake, Space::WakeOf, partition, max, now)?;
        ticked.next = first_wake_up(tx, partition)?;
        ticked.heads = queue::heads(tx, partition)?;
    }
    clock.write(tx, partition);
    Ok(ticked)
}

/// Whether something is to be done that was done last at `last`, on a wall clock that may have been set back.
fn is_time(last: i64, every: Span, now: Timestamp) -> bool {
    now.since(Timestamp(last)) >= every || now.0 < last
}

fn first_wake_up(tx: &Tx<'_>, partition: Partition) -> Result<Option<Timestamp>> {
    let first = tx.scan_prefix(keys::Key::of(Space::Wake, partition).bytes(), 1)?.pop();
    let at = |key: Vec<u8>| key.get(keys::HEAD..).and_then(keys::from_order_bytes).map(Timestamp);
    first.map(|(key, _)| at(key).ok_or_else(|| damaged("a wake-up"))).transpose()
}

/// Runs whose time has come; each is moved ahead.
fn due(
    tx: &mut Tx<'_>,
    by_time: Space,
    by_run: Space,
    partition: Partition,
    max: usize,
    now: Timestamp,
) -> Result<Vec<RunId>> {
    let from = keys::Key::of(by_time, partition).bytes();
    let to = keys::Key::of(by_time, partition).time(now.0.saturating_add(1)).bytes();
    let mut runs = Vec::new();
    for (key, _) in tx.scan(&from, &to, max, Order::Ascending)? {
        let text = key.get(keys::HEAD + 8..).and_then(|b| std::str::from_utf8(b).ok());
        let run = text.and_then(|t| RunId::new(t).ok()).ok_or_else(|| damaged("a wake-up"))?;
        set_time(tx, by_time, by_run, partition, &run, order_value(now.plus(DUE_AGAIN).0))?;
        runs.push(run);
    }
    Ok(runs)
}

fn sweep_lanes(tx: &mut Tx<'_>, home: Partition, now: Timestamp) -> Result<()> {
    for (key, value) in tx.scan_prefix(keys::Key::of(Space::Lane, home).bytes(), usize::MAX)? {
        let used = Window::read(Some(value))?.used;
        if now.since(Timestamp(used)) > LANE_IDLE {
            tx.remove(key);
        }
    }
    Ok(())
}
