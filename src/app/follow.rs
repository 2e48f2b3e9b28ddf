//! One follower of all events: each part of the store ([`super::hub`]) is caught up with by looking at its streams, and
//! followed live from there on.
//!
//! ```text
//! looking ─► entries are told, look again ─► no more: what came live meanwhile is told ─► live
//!    ▲                │ lost or trimmed: reset, everything from now on                     │
//!    └────────────────┴──────────────────── a gap was told ◄───────────────────────────────┘
//! ```
//!
//! Invariants
//! - Parts do not wait for each other: one that is away stays where it is in every cursor, and is gone on with when it
//!   is back.
//! - Within a part, entries are told in the order of its streams, each once.
//! - A follower that is slow holds a page of each part and, of what comes live meanwhile, no more than [`HELD`].

use super::AppError;
use super::error::{store_error, too_slow};
use super::hub::{self, Kinds, Live, Rendered, Subscription};
use super::inner::Inner;
use super::render;
use super::tail::has_gap;
use super::view::{EventFilter, EventItem, EventView};
use crate::events::GlobalCursor;
use crate::model::event::EventKind;
use crate::model::ids::Partition;
use crate::model::time::Span;
use crate::store::StreamPosition;
use futures::StreamExt as _;
use futures::future::{BoxFuture, join_all};
use futures::stream::FuturesUnordered;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

/// Entries of a stream read at a time when catching up.
const CATCH_UP: u32 = 64;
/// Live entries that wait for their part to be caught up with.
const HELD: usize = 1_024;
/// Between two looks at a part that cannot be read: the first, and the longest. It is looked at again at once when its
/// tail can be read.
const PAUSE: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(2));
/// How long a part of several may take to say where it ends.
const SOON: Duration = Duration::from_secs(1);
/// Who follows from now on a part that cannot say where it ends follows from this long ago on: clocks differ.
const CLOCKS: Span = Span::secs(2);

/// Nobody has followed from a moment on that is further ahead than this, in ms.
const FUTURE: u64 = 60_000;

/// See the module.
#[derive(Debug)]
pub(super) struct Follower {
    filter: EventFilter,
    /// The kinds that the filter lets through.
    kinds: Kinds,
    /// Where it stands.
    at: GlobalCursor,
    live: Subscription,
    parts: Vec<State>,
    looks: FuturesUnordered<BoxFuture<'static, Found>>,
    /// Live entries of parts that are not caught up with.
    held: VecDeque<Arc<Rendered>>,
}

/// How far a part is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// What comes live is next.
    Live,
    /// Being looked at. `again`: what comes live may lack something that this look does not see.
    Looking { again: bool },
}

/// What a look has found.
enum Found {
    /// The next entries of a part, and where it is followed from where that was only guessed.
    Entries(usize, Vec<Rendered>, Vec<(Partition, StreamPosition)>),
    /// Entries of a part are missing.
    Lost(usize),
    /// Where every stream ends that can be read.
    Ends(Ends),
}

/// By partition; none: it is not known.
type Ends = Vec<Option<StreamPosition>>;

impl Follower {
    /// From a cursor on; without one from now on, or with one that is of no use, which is told by a reset in `queue`.
    pub(super) async fn new(
        inner: &Arc<Inner>,
        filter: EventFilter,
        cursor: Option<&str>,
        queue: &mut VecDeque<EventItem>,
    ) -> Result<Self, AppError> {
        let kinds = kinds_of(&filter);
        let live = hub::subscribe(inner, kinds);
        let epoch = inner.hub.epoch();
        let latest = now(inner).saturating_add(FUTURE);
        let may_be = |at: &GlobalCursor| {
            at.epoch == epoch
                && at.positions.iter().all(|p| *p != StreamPosition::end_of(p.0) || p.0 <= latest)
        };
        let known =
            cursor.map(|text| GlobalCursor::decode(text, inner.layout.partitions).filter(|at| may_be(at)));
        let at = if let Some(Some(at)) = known {
            at
        } else {
            if known.is_some() {
                queue.push_back(EventItem::Reset);
            }
            let since = StreamPosition::end_of(now(inner));
            let positions = ends(inner).await?.into_iter().map(|end| end.unwrap_or(since)).collect();
            GlobalCursor { epoch, positions, within: BTreeMap::new() }
        };
        let parts = vec![State::Live; inner.hub.parts.len()];
        let mut follower =
            Self { filter, kinds, at, live, parts, looks: FuturesUnordered::new(), held: VecDeque::new() };
        follower.look_at_all(inner);
        Ok(follower)
    }

    /// Gets more into the queue. Cancel safe.
    pub(super) async fn fill(&mut self, inner: &Arc<Inner>, queue: &mut VecDeque<EventItem>) {
        tokio::select! {
            biased;
            Some(found) = self.looks.next() => self.take(inner, found, queue),
            told = self.live.next() => match told {
                Live::Entry(entry) => self.hear(inner, entry, queue),
                Live::Gap(part) => self.look_at(inner, part),
                Live::Gaps => {
                    for part in 0..self.parts.len() {
                        self.look_at(inner, part);
                    }
                }
            },
        }
    }

    /// Looks at a part, unless it is being looked at: then once more.
    fn look_at(&mut self, inner: &Arc<Inner>, part: usize) {
        self.held.retain(|entry| inner.hub.part_of(entry.partition) != part);
        match self.parts.get_mut(part) {
            Some(State::Looking { again }) => *again = true,
            Some(State::Live) => self.look(inner, part),
            None => {}
        }
    }

    fn look_at_all(&mut self, inner: &Arc<Inner>) {
        for part in 0..self.parts.len() {
            self.look(inner, part);
        }
    }

    fn look(&mut self, inner: &Arc<Inner>, part: usize) {
        if let Some(state) = self.parts.get_mut(part) {
            *state = State::Looking { again: false };
            self.looks.push(Box::pin(look(Arc::clone(inner), part, self.at.clone(), self.kinds)));
        }
    }

    /// A look has found something.
    fn take(&mut self, inner: &Arc<Inner>, found: Found, queue: &mut VecDeque<EventItem>) {
        if let Found::Entries(_, _, known) = &found {
            for (partition, position) in known {
                if let Some(at) = self.at.positions.get_mut(usize::from(partition.0)) {
                    *at = *position;
                }
            }
        }
        match found {
            Found::Lost(part) => {
                // Whoever is reset begins anew with all parts, so that it is not reset by one after the other.
                self.looks.clear();
                self.held.clear();
                self.parts.fill(State::Looking { again: false });
                self.looks.push(Box::pin(all_ends(Arc::clone(inner), part)));
            }
            Found::Ends(ends) => {
                for (partition, (at, end)) in (0_u16..).zip(self.at.positions.iter_mut().zip(ends)) {
                    if let Some(end) = end {
                        *at = end;
                        self.at.within.remove(&Partition(partition));
                    }
                }
                queue.push_back(EventItem::Reset);
                self.look_at_all(inner);
            }
            Found::Entries(part, entries, _) if entries.is_empty() => {
                let again = State::Looking { again: true };
                if self.parts.get(part) == Some(&again) {
                    return self.look(inner, part);
                }
                if let Some(state) = self.parts.get_mut(part) {
                    *state = State::Live;
                }
                let (next, held) =
                    self.held.drain(..).partition(|entry| inner.hub.part_of(entry.partition) == part);
                self.held = held;
                let next: VecDeque<Arc<Rendered>> = next;
                for entry in next {
                    self.tell(&entry, queue);
                }
            }
            Found::Entries(part, entries, _) => {
                for entry in &entries {
                    self.tell(entry, queue);
                }
                self.look(inner, part);
            }
        }
    }

    /// An entry came live.
    fn hear(&mut self, inner: &Arc<Inner>, entry: Arc<Rendered>, queue: &mut VecDeque<EventItem>) {
        if self.parts.get(inner.hub.part_of(entry.partition)) == Some(&State::Live) {
            return self.tell(&entry, queue);
        }
        self.held.push_back(entry);
        if self.held.len() > HELD {
            self.held.clear();
            for state in &mut self.parts {
                if let State::Looking { again } = state {
                    *again = true;
                }
            }
        }
    }

    fn tell(&mut self, entry: &Rendered, queue: &mut VecDeque<EventItem>) {
        let partition = entry.partition;
        let Some(at) = self.at.positions.get_mut(usize::from(partition.0)) else { return };
        let told = match entry.position.cmp(at) {
            std::cmp::Ordering::Less => return,
            // Of which some may have been told, or all.
            std::cmp::Ordering::Equal => match self.at.within.get(&partition) {
                Some(told) => *told as usize,
                None => return,
            },
            std::cmp::Ordering::Greater => 0,
        };
        *at = entry.position;
        self.at.within.remove(&partition);
        let count = entry.events.len();
        for (n, event) in entry.events.iter().enumerate().skip(told) {
            if n + 1 < count {
                self.at.within.insert(partition, n as u32 + 1);
            } else {
                self.at.within.remove(&partition);
            }
            if let Some(event) = event
                && matches(&self.filter, self.kinds, event)
            {
                let mut event = event.clone();
                event.cursor = self.at.encode();
                queue.push_back(EventItem::Event(event));
            }
        }
    }
}

/// The next entries of a part, as soon as they can be read.
async fn look(inner: Arc<Inner>, part: usize, at: GlobalCursor, kinds: Kinds) -> Found {
    let partitions = inner.hub.partitions(part);
    let mut pause = PAUSE.0;
    loop {
        let looked = async {
            // Where a part could not say where it ends it is followed by the clock, which may be set back: as soon as it
            // can say so, nothing that comes from then on may stand before that.
            let mut at = at.clone();
            let mut known = Vec::new();
            if partitions.iter().any(|p| at.position(*p).is_moment()) {
                let bounds = inner.store.stream_bounds(partitions).await.map_err(store_error)?;
                for (partition, bounds) in partitions.iter().zip(bounds) {
                    if let Some(position) = at.positions.get_mut(usize::from(partition.0))
                        && position.is_moment()
                        && bounds.last < *position
                    {
                        *position = bounds.last;
                        known.push((*partition, bounds.last));
                    }
                }
            }
            let after: Vec<_> = partitions.iter().map(|p| (*p, at.after(*p))).collect();
            let told: Vec<_> = partitions.iter().map(|p| (*p, at.position(*p))).collect();
            let entries = inner.store.read_events(&after, CATCH_UP, Span(0)).await.map_err(store_error)?;
            // Of what was told in part, the rest comes first.
            let begins = |(partition, position): &(Partition, StreamPosition)| {
                !at.within.contains_key(partition)
                    || entries.iter().any(|e| e.partition == *partition && e.position == *position)
            };
            // Looked at after the reading: what was trimmed by then may be missing from it.
            if !told.iter().all(begins) || has_gap(&inner, &told).await.map_err(store_error)? {
                return Ok(Found::Lost(part));
            }
            Ok::<_, AppError>(Found::Entries(part, render::entries(&inner, &entries, kinds).await?, known))
        };
        match looked.await {
            Ok(found) => return found,
            Err(error) => wait_for(&inner, part, &error, &mut pause).await,
        }
    }
}

/// Where all streams end that can be read, those of `part` among them.
async fn all_ends(inner: Arc<Inner>, part: usize) -> Found {
    let mut pause = PAUSE.0;
    loop {
        let known = |ends: &Ends, p: &Partition| ends.get(usize::from(p.0)).is_some_and(Option::is_some);
        match ends(&inner).await {
            Ok(ends) if inner.hub.partitions(part).iter().all(|p| known(&ends, p)) => {
                return Found::Ends(ends);
            }
            Ok(_) => wait_for(&inner, part, &too_slow(), &mut pause).await,
            Err(error) => wait_for(&inner, part, &error, &mut pause).await,
        }
    }
}

/// Waits before a part that could not be read is looked at again.
async fn wait_for(inner: &Inner, part: usize, error: &AppError, pause: &mut Duration) {
    inner.hub.complain(error, "events cannot be read");
    if let Some(part) = inner.hub.parts.get(part) {
        // Elapsed: it is looked at all the same.
        drop(timeout(*pause, part.back.notified()).await);
    }
    *pause = (*pause * 2).min(PAUSE.1);
}

/// Where each stream ends, as far as that is known soon.
///
/// # Errors
/// Not of a single one.
async fn ends(inner: &Inner) -> Result<Ends, AppError> {
    let parts = &inner.hub.parts;
    let limit = if parts.len() == 1 { inner.options.call_timeout.to_std() } else { SOON };
    let asked = parts.iter().map(|part| timeout(limit, inner.store.stream_bounds(&part.partitions)));
    let mut ends = vec![None; usize::from(inner.layout.partitions)];
    let (mut any, mut failed) = (false, too_slow());
    for (part, bounds) in parts.iter().zip(join_all(asked).await) {
        match bounds {
            Ok(Ok(bounds)) => {
                any = true;
                for (partition, bounds) in part.partitions.iter().zip(bounds) {
                    if let Some(end) = ends.get_mut(usize::from(partition.0)) {
                        *end = Some(bounds.last);
                    }
                }
            }
            Ok(Err(error)) => failed = store_error(error),
            Err(_) => {}
        }
    }
    if any { Ok(ends) } else { Err(failed) }
}

/// The store's clock in ms, early enough for each of its parts.
fn now(inner: &Inner) -> u64 {
    let ms = inner.clock.now().as_millis().saturating_sub(CLOCKS.as_millis());
    ms.max(0).unsigned_abs()
}

/// The kinds of events that a filter lets through.
fn kinds_of(filter: &EventFilter) -> Kinds {
    let passes = |kind: &EventKind| {
        filter.event_type.as_deref().is_none_or(|t| match t.strip_suffix(".*") {
            Some(family) => kind.name().split('.').next() == Some(family),
            None => kind.name() == t,
        })
    };
    EventKind::ALL.iter().filter(|k| passes(k)).fold(0, |all, k| all | k.bit())
}

/// Whether an event of the right kind passes.
fn matches(filter: &EventFilter, kinds: Kinds, event: &EventView) -> bool {
    let workflow =
        filter.workflow.as_ref().is_none_or(|w| event.workflow.as_ref().is_some_and(|(n, _)| n == w));
    workflow && kinds & event.kind.bit() != 0 && filter.tags.iter().all(|(k, v)| event.tags.get(k) == Some(v))
}
