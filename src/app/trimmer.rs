//! Trims event streams of what nobody can be told any more: entries at their beginning whose runs are all deleted.
//!
//! The bound on a stream's entries is for busy stores; this is for those whose runs come and go, so that they do not
//! grow. A follower that was away meanwhile is told `reset`, as for any trimmed cursor, instead of events without values.
//!
//! Whoever deletes runs trims, until what was told of them is old enough: a server at rest asks nothing.
//!
//! Invariant: an entry of a run that exists is never trimmed here, nor one behind it.

use super::inner::Inner;
use crate::model::commit::{EventNote, Expect, RunWrite};
use crate::model::ids::{Partition, RunId};
use crate::model::time::{Span, Timestamp};
use crate::store::{Batch, Result, StreamEntry, StreamPosition, Verdict};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::time::Instant;

/// Entries looked at together.
const PAGE: u32 = 64;
/// Runs looked for by one call.
const CHECKS: usize = 128;
/// Pages of one partition trimmed in one round: the rest has time.
const PAGES: usize = 256;
/// What home records (schedules) tell is kept so long: they may live for ever.
const HOMES_KEPT: Span = Span::secs(86_400);

/// When this server has deleted runs last.
#[derive(Debug, Default)]
pub(crate) struct Leaving(Mutex<Option<Instant>>);

impl Leaving {
    /// Runs are deleted.
    pub(crate) fn now(&self) {
        *self.0.lock() = Some(Instant::now());
    }

    fn within(&self, time: std::time::Duration) -> bool {
        self.0.lock().is_some_and(|at| at.elapsed() <= time)
    }
}

pub(crate) async fn run(inner: Arc<Inner>) {
    let stopping = inner.stopping.clone();
    let kept = inner.options.events_kept.to_std();
    let every = inner.options.trim_every.to_std();
    let trim = async {
        loop {
            // Servers look one after the other, give or take a quarter.
            let share = (inner.options.entropy.next() as u32) % 1_024;
            tokio::time::sleep(every / 4 * 3 + every / 2 * share / 1_024).await;
            if !inner.leaving.within(kept + every * 3) {
                continue;
            }
            for partition in inner.partitions() {
                if let Err(error) = one(&inner, partition).await {
                    tracing::debug!(%error, partition = partition.0, "an event stream was not trimmed");
                }
            }
        }
    };
    let _stopped = stopping.run_until_cancelled(trim).await;
}

async fn one(inner: &Inner, partition: Partition) -> Result<()> {
    let bounds = inner.store.stream_bounds(&[partition]).await?;
    let Some(mut at) = bounds.first().map(|b| b.trimmed_through) else { return Ok(()) };
    for _ in 0..PAGES {
        let entries = inner.store.read_events(&[(partition, at)], PAGE, Span(0)).await?;
        let Some(through) = gone_through(inner, partition, &entries).await? else { return Ok(()) };
        inner.store.trim_events(partition, through).await?;
        if entries.last().is_none_or(|last| last.position != through) || entries.len() < PAGE as usize {
            return Ok(());
        }
        at = through;
    }
    Ok(())
}

/// Up to where entries may go.
async fn gone_through(
    inner: &Inner,
    partition: Partition,
    entries: &[StreamEntry],
) -> Result<Option<StreamPosition>> {
    let now = inner.clock.now();
    let mut through = None;
    // Whether each run is gone, as far as it was asked for.
    let mut gone: BTreeMap<RunId, bool> = BTreeMap::new();
    for entry in entries {
        let written = Timestamp::from_millis(i64::try_from(entry.position.0).unwrap_or(i64::MAX));
        let age = now.since(written);
        if age < inner.options.events_kept {
            break;
        }
        // One that cannot be read is a later version's.
        let Some(notes) = EventNote::decode_all(&entry.notes) else { break };
        if notes.iter().any(|n| n.run.is_reserved()) && age < HOMES_KEPT {
            break;
        }
        let runs = notes.into_iter().map(|n| n.run).filter(|r| !r.is_reserved());
        let mut unknown: Vec<_> = runs.clone().filter(|r| !gone.contains_key(r)).collect();
        unknown.sort_unstable();
        unknown.dedup();
        for some in unknown.chunks(CHECKS) {
            let found = absent(inner, partition, some).await?;
            gone.extend(some.iter().cloned().zip(found));
        }
        if !runs.into_iter().all(|run| gone.get(&run).copied().unwrap_or(false)) {
            break;
        }
        through = Some(entry.position);
    }
    Ok(through)
}

/// For each run whether there is none.
async fn absent(inner: &Inner, partition: Partition, runs: &[RunId]) -> Result<Vec<bool>> {
    let writes = runs.iter().map(|run| (partition, RunWrite::check(run, Expect::Absent))).collect();
    // Checks alone are not remembered, so that no lane is needed for them.
    let batch = Batch { lane: inner.boot, sequence: 1, writes };
    let committed = inner.store.commit(&batch).await?;
    Ok(committed.verdicts.into_iter().map(|v| v == Verdict::Applied).collect())
}
