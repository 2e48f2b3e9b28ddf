//! Waiting for events on a cluster. One `XREAD` waits for streams of one slot only, so each partition has a connection of
//! its own for it, made by the first who waits.
//!
//! Invariants
//! - A connection that failed, or whose answer nobody waited for, is not used again.
//! - That the stream lacks what was read before is told once for each connection, which is used on: who is told looks for
//!   himself, and would never get to it if each reading failed.
//! - What is read on it depends on nothing but the position that was asked for: nothing is kept here but connections.

use super::Cluster;
use crate::model::ids::Partition;
use crate::model::time::Span;
use crate::store::redis::events;
use crate::store::redis::link::Talk;
use crate::store::{Result, StreamEntry, StreamPosition};
use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use parking_lot::Mutex;

/// The connections, by partition; none where it is in use or was not made yet.
#[derive(Debug)]
pub(in crate::store::redis) struct Tail(Box<[Mutex<Option<Talk>>]>);

impl Tail {
    pub(super) fn new(partitions: u16) -> Self {
        Self((0..partitions).map(|_| Mutex::default()).collect())
    }

    /// Up to `max` entries after each position; waits up to `wait` for the first. Who waits for several partitions at once
    /// pays with the connections of all that had nothing.
    pub(in crate::store::redis) async fn read(
        &self,
        cluster: &Cluster,
        after: &[(Partition, StreamPosition)],
        max: u32,
        wait: Span,
    ) -> Result<Vec<StreamEntry>> {
        let mut reads: FuturesUnordered<_> =
            after.iter().map(|at| self.of_one(cluster, *at, max, wait)).collect();
        let mut failed = None;
        while let Some(read) = reads.next().await {
            match read {
                Ok(entries) if entries.is_empty() => {}
                Ok(entries) => return Ok(entries),
                Err(error) => failed = Some(error),
            }
        }
        failed.map_or(Ok(Vec::new()), Err)
    }

    async fn of_one(
        &self,
        cluster: &Cluster,
        after: (Partition, StreamPosition),
        max: u32,
        wait: Span,
    ) -> Result<Vec<StreamEntry>> {
        let Some(kept) = self.0.get(usize::from(after.0.0)) else { return Ok(Vec::new()) };
        let idle = kept.lock().take();
        let read = async {
            let mut talk = if let Some(talk) = idle {
                talk
            } else {
                let mut talk = cluster.dial(after.0).await?;
                if let Err(lost) = events::prove_on(&mut talk, after).await? {
                    *kept.lock() = Some(talk);
                    return Err(lost);
                }
                talk
            };
            let read = events::wait_on(&mut talk, after, max, wait.to_std()).await?;
            *kept.lock() = Some(talk);
            Ok(read)
        };
        let read = read.await;
        if read.is_err() {
            // The slot may have moved, or another have taken the node's place.
            cluster.stale.notify_one();
        }
        read
    }
}
