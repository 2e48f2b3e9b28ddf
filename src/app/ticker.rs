//! Ticks the partitions: due wake-ups and retention become commands, clocks and queue heads are noted.
//! Any server may tick any partition; a due run is claimed by moving its wake-up ahead, and a second look
//! at it is harmless. Takes no input: it repairs whatever it finds due.
//!
//! ```text
//!            commits, hints, due runs           nothing for 2 s            a commit, a hint
//! often ────────────────────────────► often ──────────────────► seldom ────────────────────► often
//! ```
//!
//! Often is what is set (250 ms), give or take a quarter, seldom 2.5 times that. When it looks seldom it still looks
//! when the store said that a wake-up is due, and whichever it is, when a lane here has made one that is due sooner.

use super::clock::StoreClock;
use super::inner::Inner;
use super::lane::envelope::{Ask, Envelope, Reply};
use crate::model::command::Command;
use crate::model::ids::Partition;
use crate::model::time::Timestamp;
use crate::store::{Hint, RECLAIM_MAX, StoreError, Ticked};
use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::{Notify, broadcast};
use tokio::time::Instant;

/// Due runs taken from one partition at once.
const DUE_MAX: u32 = 256;

/// Between two looks, however many alarms there are.
const GAP: Duration = Duration::from_millis(5);
/// Between two times that a store which is away is told of in the log.
const TOLD_AGAIN: Duration = Duration::from_secs(1);

/// What comes later than this needs no alarm: a look that comes before tells of it.
const SOON: Duration = Duration::from_secs(2);

/// Without anything to do for so long, looks become seldom.
const QUIET_AFTER: Duration = Duration::from_secs(2);

/// Looks are never more seldom than this, so that lease clocks stay fresh: those of a server that holds leases go on,
/// and what comes to an idle one is decided without asking for them first.
const SELDOM: Duration = Duration::from_millis(800);

/// The earliest wake-up that lanes of this server have committed: a retry after 20 ms must not wait for the next
/// beat. A hint like any other; who made the wake-up may be gone when it is due, and then the beat finds it.
#[derive(Debug, Default)]
pub(crate) struct Alarm {
    at: Mutex<Option<Instant>>,
    /// Something goes on since this was last looked at.
    stirred: AtomicBool,
    changed: Notify,
}

/// When to look again.
#[derive(Debug, Clone, Copy)]
struct Beat {
    /// If something goes on.
    often: Instant,
    /// If nothing does.
    seldom: Instant,
}

impl Alarm {
    /// A run has to be looked at by `at`. Only what comes soon is worth an alarm; the rest is found by the beat of
    /// whichever server is first, so that no run is always looked at by the same one.
    pub(crate) fn no_later(&self, at: Timestamp, clock: &StoreClock) {
        // A look that comes a moment early would find nothing due.
        let wait = at.since(clock.now()).to_std() + Duration::from_millis(1);
        if wait > SOON {
            return;
        }
        self.at(Instant::now() + wait);
    }

    /// Hints may have been missed.
    pub(crate) fn now(&self) {
        self.at(Instant::now());
    }

    fn at(&self, at: Instant) {
        let mut earliest = self.at.lock();
        if earliest.is_none_or(|e| at < e) {
            *earliest = Some(at);
            self.changed.notify_one();
        }
    }

    /// Something goes on: looks become frequent.
    pub(crate) fn stir(&self) {
        if !self.stirred.swap(true, Ordering::AcqRel) {
            self.changed.notify_one();
        }
    }

    /// Waits until a look is due, `beat` at the latest.
    async fn due(&self, beat: Beat) {
        loop {
            let stirred = self.stirred.load(Ordering::Acquire);
            let beat = if stirred { beat.often } else { beat.seldom };
            let at = self.at.lock().map_or(beat, |at| at.min(beat));
            tokio::select! {
                biased;
                () = self.changed.notified() => {}
                () = tokio::time::sleep_until(at) => break,
            }
        }
        let now = Instant::now();
        let mut earliest = self.at.lock();
        if earliest.is_some_and(|at| at <= now) {
            *earliest = None;
        }
    }
}

pub(crate) async fn run(inner: Arc<Inner>) {
    let stopping = inner.stopping.clone();
    let tick = async {
        let groups = inner.store.groups();
        let mut told: Option<Instant> = None;
        let quarter = inner.options.tick_every.to_std() / 4;
        let mut stirred = Instant::now();
        loop {
            let begun = Instant::now();
            let next = loop {
                let seen = round(&inner, &groups).await;
                if seen.any {
                    stirred = Instant::now();
                }
                if let Some(error) = seen.failed
                    && told.is_none_or(|at| at.elapsed() >= TOLD_AGAIN)
                {
                    tracing::warn!(%error, "partitions could not be ticked; trying again");
                    told = Some(Instant::now());
                }
                if !seen.more {
                    break seen.next;
                }
            };
            if inner.alarm.stirred.swap(false, Ordering::AcqRel) {
                stirred = Instant::now();
            }
            // Servers must not tick in step: one of them would be told all that is due, always.
            let share = (inner.options.entropy.next() as u32) % 1_024;
            let often = begun + quarter * 3 + quarter * 2 * share / 1_024;
            let mut seldom = often;
            if stirred.elapsed() >= QUIET_AFTER {
                seldom = (begun + (often - begun) * 5 / 2).min(begun + SELDOM).max(often);
                if let Some(next) = next {
                    let wait = next.since(inner.clock.now()).to_std() + Duration::from_millis(1);
                    let at = Instant::now() + wait.min(SOON) + quarter * share / 1_024;
                    seldom = seldom.min(at);
                }
            }
            tokio::time::sleep_until(begun + GAP).await;
            inner.alarm.due(Beat { often, seldom }).await;
        }
    };
    let _stopped = stopping.run_until_cancelled(tick).await;
}

/// What a tick of all partitions has shown.
#[derive(Debug, Default)]
struct Seen {
    /// Something was due.
    any: bool,
    /// There is more that is due.
    more: bool,
    /// The first wake-up to come.
    next: Option<Timestamp>,
    /// Why some partitions could not be ticked.
    failed: Option<StoreError>,
}

/// One tick of all partitions, each group for itself: one that the store cannot reach does not hold up the others.
async fn round(inner: &Inner, groups: &[Vec<Partition>]) -> Seen {
    let asked = Instant::now();
    let mut seen = Seen::default();
    inner.pulse.begins();
    let ticks = groups.iter().map(|group| async move { (group, inner.store.tick(group, DUE_MAX).await) });
    let mut ticked: FuturesUnordered<_> = ticks.collect();
    while let Some((group, ticks)) = ticked.next().await {
        let ticks = match ticks {
            Ok(ticks) => ticks,
            Err(error) => {
                seen.failed = Some(error);
                continue;
            }
        };
        // A part that answers is enough: each lane sees for itself whether its own part takes anything.
        inner.pulse.since(None);
        seen.more |= ticks.iter().map(|t| t.reclaimed).sum::<u32>() >= RECLAIM_MAX;
        for (partition, tick) in group.iter().zip(ticks) {
            seen.more |= tick.due.len() as u32 == DUE_MAX || tick.expired.len() as u32 == DUE_MAX;
            seen.any |= !tick.due.is_empty() || !tick.expired.is_empty() || tick.reclaimed > 0;
            seen.next = [seen.next, tick.next].into_iter().flatten().min();
            take(inner, *partition, asked, tick).await;
        }
    }
    if seen.failed.is_some() {
        // As soon as may be; not at once, whatever else there is to do.
        (seen.any, seen.more) = (true, false);
    }
    seen
}

async fn take(inner: &Inner, partition: Partition, asked: Instant, tick: Ticked) {
    if inner.clock.ticked(partition, asked, tick.now, tick.lease_now) {
        went_back(inner, partition);
    }
    inner.measures.queued(partition, &tick.heads);
    if inner.queues.ticked(partition, &tick.heads) {
        inner.feed.notify_one();
    }
    if tick.reclaimed > 0 {
        tracing::info!(
            partition = partition.0,
            entries = tick.reclaimed,
            "claims expired; their tasks wait again"
        );
    }
    let due = tick.due.into_iter().map(|run| (run, Ask::Wake));
    let expired = tick.expired.into_iter().map(|run| (run, Ask::Command(Command::Delete { expired: true })));
    for (run, ask) in due.chain(expired) {
        drop(inner.send(Envelope { partition, run, ask, reply: Reply::None }).await);
    }
}

/// The store lost its tail. Leases may stand again whose results we have acknowledged, and others be gone: every
/// worker comes back and says what it holds, and what none of them names is given out anew. Versions of workflows
/// may be others than those we know. What lanes keep of runs needs no care: it is compared with every commit.
pub(crate) fn went_back(inner: &Inner, partition: Partition) {
    tracing::error!(
        partition = partition.0,
        "the store lost what it had last taken; workers are asked to resume"
    );
    begin_anew(inner);
}

/// Drops what we know of the store, and has every worker say what it holds.
fn begin_anew(inner: &Inner) {
    inner.plans.forget_all();
    inner.hub.went_back();
    inner.dispatcher.lock().close_all();
}

/// Listens to hints of other servers.
pub(crate) async fn run_hints(inner: Arc<Inner>) {
    let stopping = inner.stopping.clone();
    let mut hints = inner.store.hints();
    let listen = async {
        loop {
            match hints.recv().await {
                Ok(Hint::Queue(partition, queue)) => {
                    inner.queues.hinted(partition, &queue);
                    inner.feed.notify_one();
                    inner.alarm.stir();
                }
                Ok(Hint::Reconnected) => inner.alarm.now(),
                // A fail-over may lose the last moment of every partition without any clock going back visibly.
                Ok(Hint::Replaced) => {
                    tracing::warn!(
                        "another primary may lack what was last taken; workers are asked to resume"
                    );
                    begin_anew(&inner);
                    inner.alarm.now();
                }
                Ok(Hint::Events) | Err(broadcast::error::RecvError::Lagged(_)) => {}
                Err(broadcast::error::RecvError::Closed) => return,
            }
        }
    };
    let _stopped = stopping.run_until_cancelled(listen).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    const OFTEN: Duration = Duration::from_millis(200);
    const SELDOM_HERE: Duration = Duration::from_millis(600);

    fn beat() -> Beat {
        let now = Instant::now();
        Beat { often: now + OFTEN, seldom: now + SELDOM_HERE }
    }

    async fn waited(alarm: &Alarm, beat: Beat) -> Duration {
        let begun = Instant::now();
        alarm.due(beat).await;
        begun.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn looks_are_seldom_until_something_goes_on() {
        let alarm = Alarm::default();
        assert_eq!(waited(&alarm, beat()).await, SELDOM_HERE);
        alarm.stir();
        assert_eq!(waited(&alarm, beat()).await, OFTEN);
        alarm.stirred.store(false, Ordering::Release);
        let stir = async {
            tokio::time::sleep(Duration::from_millis(50)).await;
            alarm.stir();
            alarm.stir();
        };
        assert_eq!(tokio::join!(waited(&alarm, beat()), stir).0, OFTEN);
        alarm.stirred.store(false, Ordering::Release);
        let stir = async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            alarm.stir();
        };
        assert_eq!(tokio::join!(waited(&alarm, beat()), stir).0, Duration::from_millis(300));
    }

    #[tokio::test(start_paused = true)]
    async fn an_alarm_rings_before_either_beat() {
        let alarm = Alarm::default();
        let clock = StoreClock::new(1, Timestamp::from_millis(5_000), Instant::now());
        let ring = async {
            tokio::time::sleep(Duration::from_millis(50)).await;
            alarm.no_later(Timestamp::from_millis(9_000), &clock);
            alarm.no_later(Timestamp::from_millis(5_120), &clock);
            alarm.no_later(Timestamp::from_millis(5_300), &clock);
        };
        assert_eq!(tokio::join!(waited(&alarm, beat()), ring).0, Duration::from_millis(121));
        assert_eq!(waited(&alarm, beat()).await, SELDOM_HERE, "it rings once");
        alarm.now();
        assert_eq!(waited(&alarm, beat()).await, Duration::ZERO);
    }
}
