//! Who wants to hear of what. Watchers of one run are woken when it may have changed; subscribers of the
//! global feed share one tail of the event streams, rendered once for all of them.
//!
//! A wake-up is a hint: watchers read the store, and look by themselves after [`POLL`] anyway.

use super::inner::Inner;
use super::render;
use super::view::EventView;
use crate::model::commit::EventNote;
use crate::model::ids::{Partition, RunId};
use crate::model::time::Span;
use crate::store::{Layout, StoreError, StreamPosition};
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::{Notify, broadcast, watch};
use tokio::time::Instant;

/// A watcher looks at its run at least this often.
pub(crate) const POLL: Duration = Duration::from_secs(2);
/// Entries read from the streams at once.
const PAGE: u32 = 256;
/// A tail that was not read for longer may have been overtaken by the trimming: until then, that would take
/// more entries than a partition can write.
const OVERTAKEN: Duration = Duration::from_secs(1);
/// Rendered entries that a subscriber may be behind before it reads the store for itself.
const BEHIND: usize = 1_024;
/// Notes whose events are kept until the tail comes by.
const FRESH: usize = 16_384;
/// … and for how long they may be told.
const FRESH_FOR: Duration = Duration::from_secs(2);
/// The tail is read again no sooner: what happens meanwhile comes along with the next reading, so that a busy
/// store is not asked once per commit. While only runs are watched it tells of other servers' commits alone.
const PACE: Duration = Duration::from_millis(2);
const PACE_OF_WATCHERS: Duration = Duration::from_millis(20);

/// What a watcher of a run waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Until {
    /// Any event of it.
    Changed,
    /// Its end.
    Ended,
}

/// A set of kinds of events, see [`crate::model::event::EventKind::bit`].
pub(crate) type Kinds = u64;

/// One entry of the event streams, rendered.
#[derive(Debug)]
pub(crate) struct Rendered {
    pub(crate) partition: Partition,
    pub(crate) position: StreamPosition,
    /// Kinds that were rendered, if they occur.
    pub(crate) kinds: Kinds,
    /// One for each event of the entry; none for those of other kinds.
    pub(crate) events: Vec<Option<EventView>>,
}

/// The events of a note, one for each of its kinds; none for those that are not among `kinds`.
#[derive(Debug)]
struct News {
    kinds: Kinds,
    events: Vec<Option<EventView>>,
    kept: Instant,
}

/// Events that this server has just committed, rendered from the state it had at hand: they wait here for the tail
/// to come by with their position, which then need not read their runs. A cache: what is not here is read.
///
/// A run that is deleted and begun anew has the same notes again, so what the tail has passed must not stay here.
#[derive(Debug, Default)]
struct Fresh {
    events: HashMap<(RunId, u32), News>,
    order: VecDeque<(RunId, u32)>,
    /// Notes that the tail came by before their events: if these come, nobody waits for them any more.
    passed: HashSet<(RunId, u32)>,
    passed_order: VecDeque<(RunId, u32)>,
}

impl Fresh {
    fn keep(&mut self, key: (RunId, u32), news: News) {
        if self.passed.remove(&key) {
            return;
        }
        if self.events.insert(key.clone(), news).is_none() {
            self.order.push_back(key);
        }
        while self.order.len() > FRESH {
            let Some(oldest) = self.order.pop_front() else { return };
            self.events.remove(&oldest);
        }
    }

    fn take(&mut self, key: (RunId, u32), now: Instant) -> Option<News> {
        if let Some(news) = self.events.remove(&key) {
            return Some(news).filter(|n| now.duration_since(n.kept) < FRESH_FOR);
        }
        if self.passed.insert(key.clone()) {
            self.passed_order.push_back(key);
        }
        while self.passed_order.len() > FRESH {
            let Some(oldest) = self.passed_order.pop_front() else { break };
            self.passed.remove(&oldest);
        }
        None
    }
}

/// What the tail tells its subscribers.
#[derive(Debug, Clone)]
pub(crate) enum Live {
    /// The next entry.
    Entry(Arc<Rendered>),
    /// Entries were trimmed before they were read, or the store lost some: look for yourself.
    Gap,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Hub {
    runs: Mutex<BTreeMap<(RunId, Until), watch::Sender<()>>>,
    watching: AtomicUsize,
    live: broadcast::Sender<Live>,
    /// How many subscribers want which kinds.
    interests: Mutex<BTreeMap<Kinds, usize>>,
    /// The kinds that any subscriber wants.
    kinds: AtomicU64,
    fresh: Mutex<Fresh>,
    wanted: Notify,
    /// Whether the tail is read. Goes false only while nobody wants it, under `gate`.
    reading: watch::Sender<bool>,
    /// Makes "subscribe" and "nobody is there, stop reading" exclude each other.
    gate: Mutex<()>,
    /// The store lost the tail of its streams: ours stands where there is nothing any more.
    lost: AtomicBool,
    epoch: u64,
}

/// Watches one run as long as it lives.
#[derive(Debug)]
pub(crate) struct RunWatch {
    inner: Arc<Inner>,
    key: (RunId, Until),
    changed: watch::Receiver<()>,
}

impl RunWatch {
    /// Waits until what is waited for may have happened since the last call, or [`POLL`] has passed. Cancel safe.
    pub(crate) async fn changed(&mut self) {
        drop(tokio::time::timeout(POLL, self.changed.changed()).await);
    }
}

impl Drop for RunWatch {
    fn drop(&mut self) {
        let hub = &self.inner.hub;
        hub.watching.fetch_sub(1, Ordering::AcqRel);
        let mut runs = hub.runs.lock();
        // This receiver is still counted.
        if runs.get(&self.key).is_some_and(|s| s.receiver_count() <= 1) {
            runs.remove(&self.key);
        }
    }
}

impl Hub {
    pub(crate) fn new(layout: Layout) -> Self {
        Self {
            runs: Mutex::default(),
            watching: AtomicUsize::new(0),
            live: broadcast::channel(BEHIND).0,
            interests: Mutex::default(),
            kinds: AtomicU64::new(0),
            fresh: Mutex::default(),
            wanted: Notify::new(),
            reading: watch::channel(false).0,
            gate: Mutex::default(),
            lost: AtomicBool::new(false),
            epoch: layout.epoch,
        }
    }

    /// Of the store, for cursors.
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The store lost the tail of its event streams.
    pub(crate) fn went_back(&self) {
        *self.fresh.lock() = Fresh::default();
        self.lost.store(true, Ordering::Release);
    }

    /// The kinds of events that somebody follows.
    pub(crate) fn kinds(&self) -> Kinds {
        self.kinds.load(Ordering::Acquire)
    }

    fn interest(&self, kinds: Kinds, comes: bool) {
        let mut interests = self.interests.lock();
        let count = interests.entry(kinds).or_default();
        *count = if comes { *count + 1 } else { count.saturating_sub(1) };
        interests.retain(|_, n| *n > 0);
        self.kinds.store(interests.keys().fold(0, |all, k| all | k), Ordering::Release);
    }

    /// Keeps events of `kinds` that were just committed until the tail comes by.
    pub(crate) fn keep_fresh(&self, note: &EventNote, kinds: Kinds, events: Vec<Option<EventView>>) {
        let news = News { kinds, events, kept: Instant::now() };
        self.fresh.lock().keep((note.run.clone(), note.first), news);
    }

    /// Events of `kinds` that a note speaks of, if they are at hand.
    pub(crate) fn take_fresh(&self, note: &EventNote, kinds: Kinds) -> Option<Vec<Option<EventView>>> {
        let key = (note.run.clone(), note.first);
        let News { kinds: had, events, .. } = self.fresh.lock().take(key, Instant::now())?;
        let whole = had & kinds == kinds && events.len() == note.kinds.len();
        let same =
            || events.iter().zip(&note.kinds).all(|(e, kind)| e.as_ref().is_none_or(|e| e.kind == *kind));
        (whole && same()).then_some(events)
    }

    /// A run has new events.
    pub(crate) fn touched(&self, note: &EventNote) {
        if self.watching.load(Ordering::Acquire) == 0 {
            return;
        }
        let runs = self.runs.lock();
        let mut key = (note.run.clone(), Until::Changed);
        if let Some(sender) = runs.get(&key) {
            sender.send_replace(());
        }
        key.1 = Until::Ended;
        if note.kinds.iter().any(|k| k.ends_run())
            && let Some(sender) = runs.get(&key)
        {
            sender.send_replace(());
        }
    }

    /// Whether the tail is still wanted; if not, whoever subscribes later waits until it is read again.
    fn goes_on(&self) -> bool {
        let _gate = self.gate.lock();
        let idle = self.idle();
        if idle {
            self.reading.send_replace(false);
        }
        !idle
    }

    /// How many watch one run, and how many follow all.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.watching.load(Ordering::Relaxed) as u64, self.live.receiver_count() as u64)
    }

    fn idle(&self) -> bool {
        self.watching.load(Ordering::Acquire) == 0 && self.live.receiver_count() == 0
    }
}

/// Begins to watch a run. What happens after this call is not missed.
pub(crate) fn watch_run(inner: &Arc<Inner>, run: &RunId, until: Until) -> RunWatch {
    let hub = &inner.hub;
    let key = (run.clone(), until);
    let changed = hub.runs.lock().entry(key.clone()).or_insert_with(|| watch::channel(()).0).subscribe();
    hub.watching.fetch_add(1, Ordering::AcqRel);
    hub.wanted.notify_one();
    RunWatch { inner: Arc::clone(inner), key, changed }
}

/// Follows the rendered tail as long as it lives.
#[derive(Debug)]
pub(crate) struct Subscription {
    inner: Arc<Inner>,
    kinds: Kinds,
    live: broadcast::Receiver<Live>,
}

impl Subscription {
    /// The next that the tail tells. An entry that was rendered before this subscriber's kinds were asked for is told as
    /// a gap. Cancel safe.
    pub(crate) async fn next(&mut self) -> Live {
        match self.live.recv().await {
            Ok(Live::Entry(entry)) if entry.kinds & self.kinds == self.kinds => Live::Entry(entry),
            Ok(Live::Entry(_) | Live::Gap) | Err(broadcast::error::RecvError::Lagged(_)) => Live::Gap,
            // The hub lives as long as the server; a closed one means that we are stopping.
            Err(broadcast::error::RecvError::Closed) => std::future::pending().await,
        }
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.inner.hub.interest(self.kinds, false);
    }
}

/// Subscribes to the rendered tail, for events of `kinds`. When this returns, every later entry comes.
pub(crate) async fn subscribe(inner: &Arc<Inner>, kinds: Kinds) -> Subscription {
    let hub = &inner.hub;
    hub.interest(kinds, true);
    let live = {
        let _gate = hub.gate.lock();
        hub.live.subscribe()
    };
    let subscription = Subscription { inner: Arc::clone(inner), kinds, live };
    hub.wanted.notify_one();
    let mut reading = hub.reading.subscribe();
    // Err only if the hub is gone, and with it the server.
    drop(reading.wait_for(|reading| *reading).await);
    subscription
}

/// Whether entries after these positions may be missing from what was just read: trimmed, or lost with the tail of
/// the store.
pub(crate) async fn has_gap(
    inner: &Inner,
    after: &[(Partition, StreamPosition)],
) -> Result<bool, StoreError> {
    let partitions: Vec<_> = after.iter().map(|(p, _)| *p).collect();
    let bounds = inner.store.stream_bounds(&partitions).await?;
    Ok(bounds.iter().zip(after).any(|(b, (_, at))| *at < b.trimmed_through || *at > b.last))
}

/// Reads the tail while somebody wants it.
pub(crate) async fn run_tail(inner: Arc<Inner>) {
    let stopping = inner.stopping.clone();
    let _stopped = stopping.run_until_cancelled(tail(&inner)).await;
}

async fn tail(inner: &Inner) {
    let hub = &inner.hub;
    let partitions = inner.partitions();
    // Entries were passed over: told once it is known where the tail goes on, so that whoever then looks misses none.
    let mut gap = false;
    loop {
        while hub.idle() {
            inner.measures.tail_rests();
            hub.wanted.notified().await;
        }
        let bounds = match inner.store.stream_bounds(&partitions).await {
            Ok(bounds) => bounds,
            Err(error) => {
                tracing::warn!(%error, "the event streams cannot be read; trying again");
                tokio::time::sleep(Duration::from_millis(200)).await;
                continue;
            }
        };
        let mut after: Vec<_> = partitions.iter().copied().zip(bounds.iter().map(|b| b.last)).collect();
        if std::mem::take(&mut gap) {
            drop(hub.live.send(Live::Gap));
        }
        hub.reading.send_replace(true);
        // Whoever came while the tail was not read looks now.
        for sender in hub.runs.lock().values() {
            sender.send_replace(());
        }
        let mut read = Instant::now();
        while hub.goes_on() {
            let entries = match inner.store.read_events(&after, PAGE, Span::millis(500)).await {
                Ok(entries) => entries,
                Err(error) => {
                    tracing::warn!(%error, "the event streams cannot be read; trying again");
                    tokio::time::sleep(Duration::from_millis(200)).await;
                    continue;
                }
            };
            if hub.lost.swap(false, Ordering::AcqRel) {
                gap = true;
                break;
            }
            if read.elapsed() > OVERTAKEN {
                match has_gap(inner, &after).await {
                    Ok(false) => {}
                    Ok(true) => {
                        tracing::warn!("the event streams were trimmed faster than they were read");
                        gap = true;
                        break;
                    }
                    Err(error) => {
                        tracing::warn!(%error, "the event streams cannot be read; trying again");
                        tokio::time::sleep(Duration::from_millis(200)).await;
                        continue;
                    }
                }
            }
            read = Instant::now();
            inner.measures.tail_was_read();
            let told = !entries.is_empty();
            for entry in &entries {
                if let Some(slot) = after.get_mut(usize::from(entry.partition.0)) {
                    slot.1 = entry.position;
                }
                for note in EventNote::decode_all(&entry.notes).unwrap_or_default() {
                    hub.touched(&note);
                }
            }
            if hub.live.receiver_count() > 0 && !entries.is_empty() {
                let rendered = render::entries_until_done(inner, &entries, hub.kinds()).await;
                for r in rendered {
                    drop(hub.live.send(Live::Entry(Arc::new(r))));
                }
            }
            if told {
                let pace = if hub.live.receiver_count() > 0 { PACE } else { PACE_OF_WATCHERS };
                tokio::time::sleep_until(read + pace).await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(ordinal: u32) -> (RunId, u32) {
        (RunId::new("r").unwrap(), ordinal)
    }

    fn news(kept: Instant) -> News {
        News { kinds: 1, events: Vec::new(), kept }
    }

    #[test]
    fn what_the_tail_has_passed_is_not_told_of_the_next_run_of_that_id() {
        let (mut fresh, now) = (Fresh::default(), Instant::now());
        fresh.keep(key(0), news(now));
        assert!(fresh.take(key(0), now).is_some());
        // The tail was there first: its run was read, and what comes too late is dropped …
        assert!(fresh.take(key(2), now).is_none());
        fresh.keep(key(2), news(now));
        assert!(fresh.events.is_empty());
        // … once: what the next run of that id tells is kept.
        fresh.keep(key(2), news(now));
        assert!(fresh.take(key(2), now).is_some());
        // And what nobody came for is not told later.
        fresh.keep(key(4), news(now));
        assert!(fresh.take(key(4), now + FRESH_FOR).is_none());
    }

    #[test]
    fn what_waits_is_bounded() {
        let (mut fresh, now) = (Fresh::default(), Instant::now());
        for n in 0..=FRESH as u32 {
            assert!(fresh.take(key(n), now).is_none());
            fresh.keep(key(u32::MAX - n), news(now));
        }
        assert_eq!((fresh.events.len(), fresh.order.len()), (FRESH, FRESH));
        assert_eq!((fresh.passed.len(), fresh.passed_order.len()), (FRESH, FRESH));
    }
}
