//! Who wants to hear of what. Watchers of one run are woken when it may have changed; subscribers of the
//! global feed share one tail of the event streams (`tail`), rendered once for all of them.
//!
//! A wake-up is a hint: watchers read the store, and look by themselves after [`POLL`] anyway.
//!
//! Partitions that are away together are a *part*. Whatever goes on with one part is of no concern to the others.

use super::inner::Inner;
use super::view::EventView;
use crate::model::commit::EventNote;
use crate::model::ids::{Partition, RunId};
use crate::store::{Layout, StreamPosition};
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::{Notify, Semaphore, SemaphorePermit, broadcast, watch};
use tokio::time::Instant;

/// A watcher looks at its run at least this often.
pub(crate) const POLL: Duration = Duration::from_secs(2);
/// Rendered entries that a subscriber may be behind before it reads the store for itself.
const BEHIND: usize = 1_024;
/// Notes whose events are kept until the tail comes by.
const FRESH: usize = 16_384;
/// … and for how long they may be told.
const FRESH_FOR: Duration = Duration::from_secs(2);
/// Followers of runs of one part that read at the same time.
const READINGS: usize = 64;
/// That events cannot be told is said this often.
const COMPLAIN_EVERY: Duration = Duration::from_secs(1);

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
    /// The next entry of its part.
    Entry(Arc<Rendered>),
    /// The tail of this part has begun somewhere: entries before that may not have been told. Look for yourself; what
    /// comes later is told.
    Gap(usize),
    /// The same of all parts.
    Gaps,
}

/// Partitions that are away together if they are, and so have a tail of their own.
#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) partitions: Vec<Partition>,
    /// It can be read again.
    pub(super) back: Notify,
    /// Followers of single runs that read theirs at the same time: each holds it whole meanwhile.
    readings: Semaphore,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Hub {
    pub(super) parts: Vec<Part>,
    /// By partition.
    part_of: Vec<usize>,
    runs: Mutex<BTreeMap<(RunId, Until), watch::Sender<()>>>,
    watching: AtomicUsize,
    live: broadcast::Sender<Live>,
    /// How many subscribers want which kinds.
    interests: Mutex<BTreeMap<Kinds, usize>>,
    /// The kinds that any subscriber wants.
    kinds: AtomicU64,
    fresh: Mutex<Fresh>,
    /// Somebody has come.
    wanted: Notify,
    /// Counts how often the store lost the tail of its streams: ours may stand where there is nothing any more.
    went_back: AtomicU64,
    /// When it was last said that events cannot be told.
    complained: Mutex<Option<Instant>>,
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
    pub(crate) fn new(layout: Layout, groups: Vec<Vec<Partition>>) -> Self {
        let mut part_of = vec![0; usize::from(layout.partitions)];
        for (part, group) in groups.iter().enumerate() {
            for partition in group {
                if let Some(of) = part_of.get_mut(usize::from(partition.0)) {
                    *of = part;
                }
            }
        }
        let part = |partitions| Part { partitions, back: Notify::new(), readings: Semaphore::new(READINGS) };
        Self {
            parts: groups.into_iter().map(part).collect(),
            part_of,
            runs: Mutex::default(),
            watching: AtomicUsize::new(0),
            live: broadcast::channel(BEHIND).0,
            interests: Mutex::default(),
            kinds: AtomicU64::new(0),
            fresh: Mutex::default(),
            wanted: Notify::new(),
            went_back: AtomicU64::new(0),
            complained: Mutex::default(),
            epoch: layout.epoch,
        }
    }

    /// Waits until a run of this partition may be read for a follower. None: nobody counts.
    pub(super) async fn reading(&self, partition: Partition) -> Option<SemaphorePermit<'_>> {
        self.parts.get(self.part_of(partition))?.readings.acquire().await.ok()
    }

    /// Of the store, for cursors.
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The part that a partition is of.
    pub(crate) fn part_of(&self, partition: Partition) -> usize {
        self.part_of.get(usize::from(partition.0)).copied().unwrap_or_default()
    }

    /// The partitions of a part.
    pub(crate) fn partitions(&self, part: usize) -> &[Partition] {
        self.parts.get(part).map_or(&[], |part| &part.partitions)
    }

    /// The store may have lost the tail of its event streams.
    pub(crate) fn went_back(&self) {
        *self.fresh.lock() = Fresh::default();
        self.went_back.fetch_add(1, Ordering::Release);
    }

    /// How often it may have.
    pub(super) fn times_back(&self) -> u64 {
        self.went_back.load(Ordering::Acquire)
    }

    /// Says that events cannot be told: once in a second, whoever meets it and however often.
    pub(crate) fn complain(&self, error: &(dyn std::fmt::Display + Sync), what: &str) {
        let mut last = self.complained.lock();
        if last.is_none_or(|at| at.elapsed() >= COMPLAIN_EVERY) {
            *last = Some(Instant::now());
            tracing::warn!(%error, "{what}; trying again");
        }
    }

    /// Tells the subscribers.
    pub(super) fn tell(&self, live: Live) {
        // No subscriber is no fault.
        drop(self.live.send(live));
    }

    /// Wakes watchers of a part's runs.
    pub(super) fn wake(&self, part: usize) {
        let partitions = self.part_of.len() as u16;
        for ((run, _), sender) in self.runs.lock().iter() {
            if self.parts.len() == 1 || self.part_of(Partition::of(run.as_str(), partitions)) == part {
                sender.send_replace(());
            }
        }
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

    /// How many watch one run, and how many follow all.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.watching.load(Ordering::Relaxed) as u64, self.live.receiver_count() as u64)
    }

    /// Whether nobody watches or follows.
    pub(super) fn idle(&self) -> bool {
        self.watching.load(Ordering::Acquire) == 0 && !self.followed()
    }

    /// Waits until somebody watches or follows.
    pub(super) async fn wanted(&self) {
        loop {
            // Who comes from here on is heard.
            let wanted = self.wanted.notified();
            let mut wanted = std::pin::pin!(wanted);
            wanted.as_mut().enable();
            if !self.idle() {
                return;
            }
            wanted.await;
        }
    }

    /// Whether anybody follows all events.
    pub(super) fn followed(&self) -> bool {
        self.live.receiver_count() > 0
    }
}

/// Begins to watch a run. What happens after this call is not missed.
pub(crate) fn watch_run(inner: &Arc<Inner>, run: &RunId, until: Until) -> RunWatch {
    let hub = &inner.hub;
    let key = (run.clone(), until);
    let changed = hub.runs.lock().entry(key.clone()).or_insert_with(|| watch::channel(()).0).subscribe();
    hub.watching.fetch_add(1, Ordering::AcqRel);
    hub.wanted.notify_waiters();
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
            Ok(Live::Entry(entry)) if entry.kinds & self.kinds != self.kinds => {
                Live::Gap(self.inner.hub.part_of(entry.partition))
            }
            Ok(told) => told,
            Err(broadcast::error::RecvError::Lagged(_)) => Live::Gaps,
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

/// Subscribes to the rendered tail, for events of `kinds`. Of each part, what its tail tells from here on comes; if that
/// is not read yet, a gap comes first.
pub(crate) fn subscribe(inner: &Arc<Inner>, kinds: Kinds) -> Subscription {
    let hub = &inner.hub;
    hub.interest(kinds, true);
    let subscription = Subscription { inner: Arc::clone(inner), kinds, live: hub.live.subscribe() };
    hub.wanted.notify_waiters();
    subscription
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
