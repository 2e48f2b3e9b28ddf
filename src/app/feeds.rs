//! Feeds of events: one run's, told from its own log; and all runs', told from the event streams.

use super::AppError;
use super::error::{no_run, store_error};
use super::hub::{self, Kinds, Live, Rendered, RunWatch, Subscription};
use super::inner::Inner;
use super::render;
use super::view::{EventFilter, EventItem, EventView};
use crate::events::{GlobalCursor, RunCursor, run_tag};
use crate::model::event::EventKind;
use crate::model::ids::{Partition, RunId};
use crate::model::time::Span;
use crate::store::{StreamEntry, StreamPosition};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// Events of one run told at a time.
const RUN_PAGE: usize = 256;
/// Entries of the streams read at a time when catching up.
const CATCH_UP: u32 = 64;

/// A feed of events, in order per run. Resumable at every cursor, on any server. A reader that falls behind
/// costs nothing: the feed holds one page and reads the store when it is asked for more.
#[derive(Debug)]
pub struct EventFeed {
    inner: Arc<Inner>,
    queue: VecDeque<EventItem>,
    source: Source,
}

#[derive(Debug)]
enum Source {
    Run { run: RunId, next: u32, tag: u64, watch: RunWatch, over: bool },
    Global(Box<Global>),
}

#[derive(Debug)]
struct Global {
    filter: EventFilter,
    /// The kinds that the filter lets through.
    kinds: Kinds,
    positions: Vec<StreamPosition>,
    /// Events of the next entry of a partition that were told before.
    told: (Partition, u32),
    live: Subscription,
    caught_up: bool,
}

/// What a run's feed begins with.
#[derive(Debug)]
pub enum RunFeed {
    /// Events follow.
    Feed(EventFeed),
    /// The cursor is the terminal event: nothing will follow as long as it is the last (HTTP 204).
    AtEnd,
}

impl EventFeed {
    /// The next item; waits. `None`: the stream is over (after the terminal event of a run, when its run was
    /// deleted, or when the server drains). Cancel safe.
    pub async fn next(&mut self) -> Option<EventItem> {
        loop {
            if let Some(item) = self.queue.pop_front() {
                return Some(item);
            }
            let draining = self.inner.draining.clone();
            let more = draining.run_until_cancelled(self.fill()).await;
            if !more.unwrap_or(false) && self.queue.is_empty() {
                return None;
            }
        }
    }

    /// Gets more into the queue. False: there will be no more.
    async fn fill(&mut self) -> bool {
        let Self { inner, queue, source } = self;
        match source {
            Source::Run { run, next, tag, watch, over } => {
                if *over {
                    return false;
                }
                match render::run_events(inner, run, *next, RUN_PAGE).await {
                    Ok(Some(page)) if page.tag == *tag => {
                        if page.events.is_empty() {
                            if page.ended {
                                *over = true;
                            } else {
                                watch.changed().await;
                            }
                            return true;
                        }
                        for (n, mut event) in page.events.into_iter().enumerate() {
                            *next += 1;
                            *over = page.ended && page.more == 0 && n + 1 == page.count;
                            event.cursor =
                                RunCursor { epoch: inner.hub.epoch(), tag: *tag, next: *next }.encode();
                            queue.push_back(EventItem::Event(event));
                        }
                        true
                    }
                    // Deleted, or deleted and begun anew: this feed's run is gone.
                    Ok(_) => false,
                    Err(error) => {
                        pause(&error).await;
                        true
                    }
                }
            }
            Source::Global(global) => {
                global.fill(inner, queue).await;
                true
            }
        }
    }
}

async fn pause(error: &AppError) {
    tracing::warn!(%error, "events cannot be read; trying again");
    tokio::time::sleep(Duration::from_millis(200)).await;
}

impl Global {
    async fn fill(&mut self, inner: &Arc<Inner>, queue: &mut VecDeque<EventItem>) {
        if let Err(error) = self.try_fill(inner, queue).await {
            pause(&error).await;
        }
    }

    async fn try_fill(
        &mut self,
        inner: &Arc<Inner>,
        queue: &mut VecDeque<EventItem>,
    ) -> Result<(), AppError> {
        if !self.caught_up {
            let partitions = inner.partitions();
            let positions: Vec<_> = partitions.iter().copied().zip(self.positions.iter().copied()).collect();
            let mut after = positions.clone();
            let mut most = CATCH_UP;
            if self.told.1 > 0 {
                // The cursor stands inside an entry: that one is told to its end before any other.
                after.retain(|(p, _)| *p == self.told.0);
                most = 1;
            }
            let entries = inner.store.read_events(&after, most, Span(0)).await.map_err(store_error)?;
            // Looked at after the reading: what was trimmed by then may be missing from it.
            if hub::has_gap(inner, &positions).await.map_err(store_error)? {
                let bounds = inner.store.stream_bounds(&partitions).await.map_err(store_error)?;
                self.positions = bounds.iter().map(|b| b.last).collect();
                self.told = (Partition(0), 0);
                queue.push_back(EventItem::Reset);
                return Ok(());
            }
            if entries.is_empty() {
                self.caught_up = self.told.1 == 0;
                self.told = (Partition(0), 0);
                return Ok(());
            }
            let rendered = render::entries(inner, &entries, self.kinds).await?;
            for r in rendered {
                self.tell(inner, &r, queue);
            }
            return Ok(());
        }
        match self.live.next().await {
            Live::Entry(rendered) => self.tell(inner, &rendered, queue),
            Live::Gap => self.caught_up = false,
        }
        Ok(())
    }

    fn tell(&mut self, inner: &Inner, rendered: &Rendered, queue: &mut VecDeque<EventItem>) {
        let Some(position) = self.positions.get(usize::from(rendered.partition.0)).copied() else { return };
        if rendered.position <= position {
            return;
        }
        let skip = if self.told.0 == rendered.partition { self.told.1 as usize } else { 0 };
        let count = rendered.events.len();
        for (n, event) in rendered.events.iter().enumerate().skip(skip) {
            let last = n + 1 == count;
            if last && let Some(p) = self.positions.get_mut(usize::from(rendered.partition.0)) {
                *p = rendered.position;
            }
            self.told = if last { (Partition(0), 0) } else { (rendered.partition, n as u32 + 1) };
            if let Some(event) = event
                && matches(&self.filter, self.kinds, event)
            {
                let mut event = event.clone();
                event.cursor = GlobalCursor {
                    epoch: inner.hub.epoch(),
                    positions: self.positions.clone(),
                    within: self.told,
                }
                .encode();
                queue.push_back(EventItem::Event(event));
            }
        }
        if skip >= count {
            if let Some(p) = self.positions.get_mut(usize::from(rendered.partition.0)) {
                *p = rendered.position;
            }
            self.told = (Partition(0), 0);
        }
    }
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

/// The events of one run after `cursor` (none: from its first).
pub(crate) async fn run_feed(
    inner: &Arc<Inner>,
    id: &RunId,
    cursor: Option<&str>,
) -> Result<RunFeed, AppError> {
    let watch = hub::watch_run(inner, id, hub::Until::Changed);
    let state = super::runs::read(inner, id).await?.ok_or_else(|| no_run(id))?;
    let tag = run_tag(id, state.created_at.0);
    let mut queue = VecDeque::new();
    let count = state.log.len() as u32;
    let next = match cursor {
        None => 0,
        Some(text) => match RunCursor::decode(text) {
            Some(c) if c.epoch == inner.hub.epoch() && c.tag == tag && c.next <= count => c.next,
            _ => {
                queue.push_back(EventItem::Reset);
                0
            }
        },
    };
    if cursor.is_some() && state.status.is_terminal() && next == count {
        return Ok(RunFeed::AtEnd);
    }
    let source = Source::Run { run: id.clone(), next, tag, watch, over: false };
    Ok(RunFeed::Feed(EventFeed { inner: Arc::clone(inner), queue, source }))
}

/// The events of all runs after `cursor` (none: from now).
pub(crate) async fn global_feed(
    inner: &Arc<Inner>,
    filter: EventFilter,
    cursor: Option<&str>,
) -> Result<EventFeed, AppError> {
    let kinds = kinds_of(&filter);
    let live = tokio::time::timeout(inner.options.call_timeout.to_std(), hub::subscribe(inner, kinds))
        .await
        .map_err(|_| super::error::too_slow())?;
    let known = cursor.map(|text| {
        GlobalCursor::decode(text, inner.layout.partitions).filter(|c| c.epoch == inner.hub.epoch())
    });
    let mut queue = VecDeque::new();
    let (positions, told) = match known {
        Some(Some(c)) => (c.positions, c.within),
        other => {
            let partitions = inner.partitions();
            let bounds = inner.store.stream_bounds(&partitions).await.map_err(store_error)?;
            if other.is_some() {
                queue.push_back(EventItem::Reset);
            }
            (bounds.iter().map(|b| b.last).collect(), (Partition(0), 0))
        }
    };
    let global = Global { filter, kinds, positions, told, live, caught_up: false };
    Ok(EventFeed { inner: Arc::clone(inner), queue, source: Source::Global(Box::new(global)) })
}

/// Notes of an entry, or none if a newer Downbeat wrote it.
pub(crate) fn notes(entry: &StreamEntry) -> Vec<crate::model::commit::EventNote> {
    crate::model::commit::EventNote::decode_all(&entry.notes).unwrap_or_default()
}
