//! Reads the event streams while somebody wants it, and tells the hub: each part ([`super::hub`]) for itself, so that one
//! that is away delays nobody else's events.
//!
//! ```text
//! wanted ─► where does it end? ─► a gap is told ─► read · is it whole? · watchers, subscribers ─► nobody wants it
//!                ▲                                          │ entries were trimmed, or lost
//!                └──────────────────────────────────────────┘
//! ```
//!
//! Invariants
//! - Whoever subscribes is told of each part everything from some place on, and before that, unless it is told already, a
//!   gap: then what stands in the stream by now is what the tail does not tell.
//! - Whether a reading may lack entries is looked at before it is told: after any failure, and when it took long.

use super::hub::{Live, Rendered};
use super::inner::Inner;
use super::render;
use crate::model::commit::EventNote;
use crate::model::ids::Partition;
use crate::model::time::Span;
use crate::store::{StoreError, StreamPosition};
use futures::future::join_all;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep, sleep_until};

/// Entries read from each stream at once.
const PAGE: u32 = 256;
/// How long one reading waits for the first.
const WAIT: Span = Span::millis(500);
/// A tail that was not read for longer may have been overtaken by the trimming: until then, that would take
/// more entries than a partition can write.
const OVERTAKEN: Duration = Duration::from_secs(1);
/// The tail is read again no sooner: what happens meanwhile comes along with the next reading, so that a busy
/// store is not asked once per commit. While only runs are watched it tells of other servers' commits alone.
const PACE: Duration = Duration::from_millis(2);
const PACE_OF_WATCHERS: Duration = Duration::from_millis(20);
/// Between two attempts at what fails.
const PAUSE: Duration = Duration::from_millis(200);

/// Reads the tails until the server stops.
pub(crate) async fn run(inner: Arc<Inner>) {
    let stopping = inner.stopping.clone();
    let tails = join_all((0..inner.hub.parts.len()).map(|part| tail(&inner, part)));
    let _stopped = stopping.run_until_cancelled(tails).await;
}

async fn tail(inner: &Inner, part: usize) {
    loop {
        inner.measures.tail_rests(part);
        inner.hub.wanted().await;
        inner.measures.tail_was_read(part);
        follow(inner, part).await;
    }
}

/// Reads on from the end of a part's streams, until nobody wants it or entries were passed over.
async fn follow(inner: &Inner, part: usize) {
    let hub = &inner.hub;
    let partitions = hub.partitions(part);
    let mut back = hub.times_back();
    let mut after: Vec<_> = loop {
        match inner.store.stream_bounds(partitions).await {
            Ok(bounds) => break partitions.iter().copied().zip(bounds.iter().map(|b| b.last)).collect(),
            Err(error) => failed(inner, &error).await,
        }
        if hub.idle() {
            return;
        }
    };
    // From here on all is told, so whoever looks now misses none.
    hub.tell(Live::Gap(part));
    hub.wake(part);
    // Whether the last reading was whole, when it was made, and how many have failed since.
    let (mut whole, mut read, mut failures) = (true, Instant::now(), 0_u32);
    while !hub.idle() {
        let looked = async {
            let entries = inner.store.read_events(&after, PAGE, WAIT).await?;
            let times = hub.times_back();
            let doubtful = !whole || back != times || read.elapsed() > OVERTAKEN;
            let gap = doubtful && has_gap(inner, &after).await?;
            back = times;
            Ok::<_, StoreError>((entries, gap))
        };
        let entries = match looked.await {
            Ok((_, true)) => {
                tracing::warn!(
                    part,
                    "entries of the event streams were trimmed before they were read, or lost"
                );
                return;
            }
            Ok((entries, false)) => entries,
            Err(error) => {
                whole = false;
                // A connection that broke is no more than that, if another can be made.
                if failures > 0 {
                    failed(inner, &error).await;
                }
                failures += 1;
                continue;
            }
        };
        (whole, read) = (true, Instant::now());
        if std::mem::take(&mut failures) > 0
            && let Some(part) = hub.parts.get(part)
        {
            part.back.notify_waiters();
        }
        inner.measures.tail_was_read(part);
        for entry in &entries {
            if let Some(slot) = after.iter_mut().find(|(partition, _)| *partition == entry.partition) {
                slot.1 = entry.position;
            }
            for note in EventNote::decode_all(&entry.notes).unwrap_or_default() {
                hub.touched(&note);
            }
        }
        if hub.followed() && !entries.is_empty() {
            for rendered in render::entries_until_done(inner, &entries, hub.kinds()).await {
                hub.tell(Live::Entry(Arc::<Rendered>::new(rendered)));
            }
        }
        if !entries.is_empty() {
            let pace = if hub.followed() { PACE } else { PACE_OF_WATCHERS };
            sleep_until(read + pace).await;
        }
    }
}

async fn failed(inner: &Inner, error: &StoreError) {
    inner.hub.complain(error, "event streams cannot be read");
    sleep(PAUSE).await;
}

/// Whether entries after these positions may be missing from what was just read: trimmed, or lost with the tail of
/// the store.
pub(crate) async fn has_gap(
    inner: &Inner,
    after: &[(Partition, StreamPosition)],
) -> Result<bool, StoreError> {
    Ok(inner.store.resumable(after).await?.contains(&false))
}
