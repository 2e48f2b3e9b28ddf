//! Ticks the partitions: due wake-ups and retention become commands, clocks and queue heads are noted.
//! Any server may tick any partition; a due run is claimed by moving its wake-up ahead, and a second look
//! at it is harmless. Takes no input: it repairs whatever it finds due.

use super::clock::StoreClock;
use super::inner::Inner;
use super::lane::envelope::{Ask, Envelope, Reply};
use crate::model::command::Command;
use crate::model::ids::Partition;
use crate::model::time::Timestamp;
use crate::store::{Hint, Ticked};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, broadcast};
use tokio::time::Instant;

/// Due runs taken from one partition at once.
const DUE_MAX: u32 = 256;

/// Between two looks, however many alarms there are.
const GAP: Duration = Duration::from_millis(5);

/// What comes later than this needs no alarm.
const SOON: Duration = Duration::from_secs(2);

/// The earliest wake-up that lanes of this server have committed: a retry after 20 ms must not wait for the next
/// beat. A hint like any other; who made the wake-up may be gone when it is due, and then the beat finds it.
#[derive(Debug, Default)]
pub(crate) struct Alarm {
    at: Mutex<Option<Instant>>,
    earlier: Notify,
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
        let at = Instant::now() + wait;
        let mut earliest = self.at.lock();
        if earliest.is_none_or(|e| at < e) {
            *earliest = Some(at);
            self.earlier.notify_one();
        }
    }

    /// Waits until a look is due, `beat` at the latest.
    async fn due(&self, beat: Instant) {
        loop {
            let at = self.at.lock().map_or(beat, |at| at.min(beat));
            tokio::select! {
                biased;
                () = self.earlier.notified() => {}
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
        let partitions = inner.partitions();
        let quarter = inner.options.tick_every.to_std() / 4;
        loop {
            let begun = Instant::now();
            while round(&inner, &partitions).await {}
            tokio::time::sleep_until(begun + GAP).await;
            // Servers must not tick in step: one of them would be told all that is due, always.
            let share = (inner.options.entropy.next() as u32) % 1_024;
            inner.alarm.due(begun + quarter * 3 + quarter * 2 * share / 1_024).await;
        }
    };
    let _stopped = stopping.run_until_cancelled(tick).await;
}

/// One tick of all partitions. True: there is more that is due.
async fn round(inner: &Inner, partitions: &[Partition]) -> bool {
    let asked = Instant::now();
    let ticks = match inner.store.tick(partitions, DUE_MAX).await {
        Ok(ticks) => ticks,
        Err(error) => {
            tracing::warn!(%error, "partitions could not be ticked; trying again");
            return false;
        }
    };
    let mut more = false;
    for (partition, tick) in partitions.iter().zip(ticks) {
        more |= tick.due.len() as u32 == DUE_MAX || tick.expired.len() as u32 == DUE_MAX;
        take(inner, *partition, asked, tick).await;
    }
    more
}

async fn take(inner: &Inner, partition: Partition, asked: Instant, tick: Ticked) {
    if inner.clock.ticked(partition, asked, tick.now, tick.lease_now) {
        went_back(inner, partition);
    }
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
                }
                Ok(Hint::Events | Hint::Reconnected) | Err(broadcast::error::RecvError::Lagged(_)) => {}
                Err(broadcast::error::RecvError::Closed) => return,
            }
        }
    };
    let _stopped = stopping.run_until_cancelled(listen).await;
}
