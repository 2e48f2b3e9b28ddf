//! Feeds of events: one run's, told from its own log; and all runs', told from the event streams.

use super::AppError;
use super::error::no_run;
use super::follow::Follower;
use super::hub::{self, RunWatch};
use super::inner::Inner;
use super::render;
use super::view::{EventFilter, EventItem};
use crate::events::{RunCursor, run_tag};
use crate::model::ids::RunId;
use crate::model::run::RunState;
use crate::store::StreamEntry;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// Events of one run told at a time.
const RUN_PAGE: usize = 256;
/// Between two attempts to read them.
const PAUSE: Duration = Duration::from_millis(200);

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
    Run { run: RunId, at: RunCursor, watch: RunWatch, over: bool },
    Global(Box<Follower>),
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
            Source::Run { run, at, watch, over } => {
                if *over {
                    return false;
                }
                match render::run_events(inner, run, at, RUN_PAGE).await {
                    Ok(Some(page)) if page.tag == at.tag => {
                        if page.lost {
                            queue.push_back(EventItem::Reset);
                            (at.next, at.told) = (0, None);
                            return true;
                        }
                        if page.events.is_empty() {
                            if page.ended {
                                *over = true;
                            } else {
                                watch.changed().await;
                            }
                            return true;
                        }
                        let count = page.events.len();
                        for (n, (mut event, mark)) in page.events.into_iter().enumerate() {
                            (at.next, at.told) = (at.next + 1, Some(mark));
                            *over = page.ended && page.more == 0 && n + 1 == count;
                            event.cursor = at.encode();
                            queue.push_back(EventItem::Event(event));
                        }
                        true
                    }
                    // Deleted, or deleted and begun anew: this feed's run is gone.
                    Ok(_) => false,
                    Err(error) => {
                        inner.hub.complain(&error, "the events of a run cannot be read");
                        tokio::time::sleep(PAUSE).await;
                        true
                    }
                }
            }
            Source::Global(follower) => {
                follower.fill(inner, queue).await;
                true
            }
        }
    }
}

/// The events of one run after `cursor` (none: from its first).
pub(crate) async fn run_feed(
    inner: &Arc<Inner>,
    id: &RunId,
    cursor: Option<&str>,
) -> Result<RunFeed, AppError> {
    let watch = hub::watch_run(inner, id, hub::Until::Changed);
    // What is told later is looked at then; that nothing will come is told now.
    let ended = |state: &RunState| cursor.is_some() && state.status.is_terminal();
    let state = render::settled(inner, id, ended).await?.ok_or_else(|| no_run(id))?;
    let (epoch, tag) = (inner.hub.epoch(), run_tag(id, state.created_at.0));
    let mut queue = VecDeque::new();
    let mut at = RunCursor { epoch, tag, next: 0, told: None };
    if let Some(text) = cursor {
        let known =
            RunCursor::decode(text).filter(|c| c.epoch == epoch && c.tag == tag && c.fits(&state.log));
        match known {
            Some(known) => at = known,
            None => queue.push_back(EventItem::Reset),
        }
    }
    if cursor.is_some() && state.status.is_terminal() && at.next as usize == state.log.len() {
        return Ok(RunFeed::AtEnd);
    }
    let source = Source::Run { run: id.clone(), at, watch, over: false };
    Ok(RunFeed::Feed(EventFeed { inner: Arc::clone(inner), queue, source }))
}

/// The events of all runs after `cursor` (none: from now).
pub(crate) async fn global_feed(
    inner: &Arc<Inner>,
    filter: EventFilter,
    cursor: Option<&str>,
) -> Result<EventFeed, AppError> {
    let mut queue = VecDeque::new();
    let follower = Follower::new(inner, filter, cursor, &mut queue).await?;
    Ok(EventFeed { inner: Arc::clone(inner), queue, source: Source::Global(Box::new(follower)) })
}

/// Notes of an entry, or none if a newer Downbeat wrote it.
pub(crate) fn notes(entry: &StreamEntry) -> Vec<crate::model::commit::EventNote> {
    crate::model::commit::EventNote::decode_all(&entry.notes).unwrap_or_default()
}
