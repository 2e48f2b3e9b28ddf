//! Waiting for events on a cluster. One `XREAD` waits for streams of one slot only, so each partition has a reader on a
//! connection of its own, which costs nothing while nothing comes.
//!
//! ```text
//! Tail::read(after) ─► shelf: what readers brought ─► the caller
//!                        ▲   empty: the reader goes on from there
//!                     reader: XREAD BLOCK, one for each partition
//! ```
//!
//! Invariants
//! - A shelf holds one answer, and its reader waits until it was taken: memory is bounded by `max` of the caller.
//! - A reader that failed tries again once that was told.
//! - What is given to a caller follows the position it asked for; if it asks from another place, the shelf is cleared
//!   and its reader begins there.

use super::Cluster;
use crate::model::ids::Partition;
use crate::model::time::Span;
use crate::store::redis::events;
use crate::store::redis::keys::Keys;
use crate::store::redis::link::{Talk, jittered};
use crate::store::{Result, StoreError, StreamEntry, StreamPosition};
use parking_lot::Mutex;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::{sleep, timeout_at};
use tokio_util::task::AbortOnDropHandle;

/// How long one `XREAD` waits.
const BLOCK: Duration = Duration::from_secs(5);
/// How much longer its answer may take.
const SLACK: Duration = Duration::from_secs(4);
/// Between two attempts of a reader that failed.
const PAUSE: Duration = Duration::from_millis(250);

/// What one partition's reader brought.
#[derive(Debug, Default)]
struct Shelf {
    /// Where to read on; none until somebody asked.
    after: Option<StreamPosition>,
    /// Entries after it, oldest first.
    found: Vec<StreamEntry>,
    /// Counts changes of `after` that the reader did not make.
    turned: u64,
    /// Entries of one answer.
    max: u32,
    failed: Option<StoreError>,
}

#[derive(Debug, Default)]
struct Stream {
    shelf: Mutex<Shelf>,
    /// For the reader: the shelf was taken, or is to be filled from elsewhere.
    wanted: Notify,
}

/// The readers; they begin when somebody waits for the first time.
#[derive(Debug)]
pub(in crate::store::redis) struct Tail {
    streams: Arc<[Stream]>,
    /// For callers: a shelf was filled.
    grown: Arc<Notify>,
    readers: OnceLock<Vec<AbortOnDropHandle<()>>>,
}

impl Tail {
    pub(super) fn new(partitions: u16) -> Self {
        Self {
            streams: (0..partitions).map(|_| Stream::default()).collect(),
            grown: Arc::default(),
            readers: OnceLock::new(),
        }
    }

    /// Up to `max` entries after each position; waits up to `wait` for the first.
    pub(in crate::store::redis) async fn read(
        &self,
        cluster: &Arc<Cluster>,
        after: &[(Partition, StreamPosition)],
        max: u32,
        wait: Span,
    ) -> Result<Vec<StreamEntry>> {
        self.readers.get_or_init(|| {
            let begin = |p: u16| {
                let (streams, grown) = (Arc::clone(&self.streams), Arc::clone(&self.grown));
                let reader =
                    Reader { cluster: Arc::downgrade(cluster), partition: Partition(p), streams, grown };
                AbortOnDropHandle::new(tokio::spawn(reader.run()))
            };
            (0..self.streams.len() as u16).map(begin).collect()
        });
        let deadline = tokio::time::Instant::now() + wait.to_std();
        loop {
            // Who fills a shelf from here on is heard.
            let grown = self.grown.notified();
            let mut grown = std::pin::pin!(grown);
            grown.as_mut().enable();
            let (mut entries, mut failed) = (Vec::new(), None);
            for (partition, position) in after {
                if let Some(stream) = self.streams.get(usize::from(partition.0)) {
                    failed = stream.take(*position, max, &mut entries).err().or(failed);
                }
            }
            // What was taken must not be lost; and a primary that is away does not hold up the others.
            match failed {
                Some(error) if entries.is_empty() => return Err(error),
                _ if !entries.is_empty() || timeout_at(deadline, grown).await.is_err() => return Ok(entries),
                _ => {}
            }
        }
    }
}

impl Stream {
    /// Takes what is on the shelf, if it follows `position`.
    fn take(&self, position: StreamPosition, max: u32, entries: &mut Vec<StreamEntry>) -> Result<()> {
        let mut shelf = self.shelf.lock();
        if let Some(error) = shelf.failed.take() {
            // The reader goes on only when it was told.
            self.wanted.notify_one();
            return Err(error);
        }
        if shelf.after != Some(position) || shelf.max != max {
            shelf.after = Some(position);
            shelf.max = max;
            shelf.turned += 1;
            shelf.found.clear();
            self.wanted.notify_one();
            return Ok(());
        }
        if let Some(last) = shelf.found.last() {
            shelf.after = Some(last.position);
            entries.append(&mut shelf.found);
            self.wanted.notify_one();
        }
        Ok(())
    }
}

/// Fills one shelf.
struct Reader {
    cluster: Weak<Cluster>,
    partition: Partition,
    streams: Arc<[Stream]>,
    grown: Arc<Notify>,
}

impl Reader {
    async fn run(self) {
        let Some(stream) = self.streams.get(usize::from(self.partition.0)) else { return };
        let mut talk: Option<Talk> = None;
        loop {
            let (after, turned, max) = {
                let shelf = stream.shelf.lock();
                let empty = shelf.found.is_empty() && shelf.failed.is_none();
                (shelf.after.filter(|_| empty), shelf.turned, shelf.max)
            };
            let Some(after) = after else {
                stream.wanted.notified().await;
                continue;
            };
            // Another place is asked for: what this connection would answer is of no use any more.
            let turned_away = async {
                loop {
                    stream.wanted.notified().await;
                    if stream.shelf.lock().turned != turned {
                        return;
                    }
                }
            };
            let read = tokio::select! {
                read = self.read(&mut talk, after, max) => read,
                () = turned_away => {
                    talk = None;
                    continue;
                }
            };
            let failed = read.is_err();
            {
                let mut shelf = stream.shelf.lock();
                if shelf.turned == turned {
                    match read {
                        Ok(found) if found.is_empty() => continue,
                        Ok(found) => shelf.found = found,
                        Err(error) => shelf.failed = Some(error),
                    }
                }
            }
            self.grown.notify_waiters();
            if failed {
                talk = None;
                sleep(jittered(PAUSE)).await;
            }
        }
    }

    async fn read(
        &self,
        talk: &mut Option<Talk>,
        after: StreamPosition,
        max: u32,
    ) -> Result<Vec<StreamEntry>> {
        let closed = || StoreError::Unavailable { message: "the store was closed".into(), sent: false };
        if talk.is_none() {
            let cluster = self.cluster.upgrade().ok_or_else(closed)?;
            *talk = Some(cluster.dial(self.partition).await?);
        }
        let asked = [(self.partition, after)];
        let cmd = events::command(Keys::CLUSTER, &asked, max, Some(BLOCK));
        let Some(talk) = talk else { return Err(closed()) };
        let answer = talk.ask_within(&cmd, BLOCK + SLACK).await;
        if let Err(e) = &answer
            && e.to_string().contains("MOVED")
            && let Some(cluster) = self.cluster.upgrade()
        {
            cluster.stale.notify_one();
        }
        events::decode(Keys::CLUSTER, &asked, answer?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt as _;

    fn entry(n: u64) -> StreamEntry {
        StreamEntry { partition: Partition(0), position: StreamPosition(n, 0), notes: bytes::Bytes::new() }
    }

    fn take(stream: &Stream, after: u64) -> Result<Vec<u64>> {
        let mut entries = Vec::new();
        stream.take(StreamPosition(after, 0), 10, &mut entries)?;
        Ok(entries.iter().map(|e| e.position.0).collect())
    }

    #[test]
    fn a_shelf_gives_what_follows_the_place_that_was_asked_for() {
        let stream = Stream::default();
        assert_eq!(take(&stream, 5), Ok(vec![]), "the reader is told where to begin");
        assert_eq!(stream.shelf.lock().after, Some(StreamPosition(5, 0)));
        stream.shelf.lock().found = vec![entry(6), entry(7)];
        assert_eq!(take(&stream, 5), Ok(vec![6, 7]));
        assert_eq!(take(&stream, 7), Ok(vec![]), "it goes on from the last");
        assert_eq!(stream.shelf.lock().turned, 1);
        stream.shelf.lock().found = vec![entry(8)];
        assert_eq!(take(&stream, 6), Ok(vec![]), "another place: what was there does not follow it");
        let shelf = stream.shelf.lock();
        assert_eq!((shelf.turned, shelf.found.len(), shelf.after), (2, 0, Some(StreamPosition(6, 0))));
    }

    #[test]
    fn a_failure_is_told_once() {
        let stream = Stream::default();
        stream.shelf.lock().after = Some(StreamPosition(1, 0));
        stream.shelf.lock().max = 10;
        stream.shelf.lock().failed = Some(StoreError::Forgotten);
        assert_eq!(take(&stream, 1), Err(StoreError::Forgotten));
        assert!(stream.wanted.notified().now_or_never().is_some(), "its reader tries again");
        assert_eq!(take(&stream, 1), Ok(vec![]));
        assert_eq!(stream.shelf.lock().turned, 0, "from where it was");
    }
}
