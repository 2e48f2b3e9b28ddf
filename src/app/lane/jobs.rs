//! What a lane waits for: reads and commits. A job never gives up while the server runs; callers have
//! their own deadlines, and a bounded mailbox holds back the rest.

use super::decide::Pending;
use super::slot::{AtHand, Cached, CachedHome, Known, footprint};
use crate::app::AppError;
use crate::app::error::store_error;
use crate::app::inner::Inner;
use crate::app::{beats, records, ticker};
use crate::model::command::SessionView;
use crate::model::error::ErrorCode;
use crate::model::ids::{Partition, Prefix, RunId, SessionId, WorkflowName};
use crate::model::payload::Field;
use crate::model::record;
use crate::model::time::Span;
use crate::store::{Batch, Committed, SessionRecord, StoreError};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// What a run's reading came to.
pub(super) type Found = Result<Option<Known>, AppError>;

/// What a job brings.
pub(super) enum Done {
    /// Runs were read; with how many letters each had when the reading began.
    Loaded(Vec<(RunId, usize, Found)>),
    /// A plan is at hand, or cannot be.
    Plan(RunId, Result<(), AppError>),
    /// Payloads were read.
    Payloads(RunId, Vec<(Field, Bytes)>),
    /// Sessions were read.
    Sessions(RunId, BTreeMap<SessionId, SessionView>),
    /// A pause after conflicts is over, or the clocks are known again.
    Delayed(RunId),
    /// The store answered.
    Committed(Vec<Pending>, Committed),
    /// Provably nothing of the batch was written.
    NotApplied(Vec<Pending>, StoreError),
    /// The store has forgotten the batch; for each decision whether the record shows it.
    Lost(Vec<Pending>, Vec<bool>),
}

/// Growing pauses, 5 ms to 1 s, with up to half of each random.
struct Backoff {
    next_ms: u64,
}

impl Backoff {
    fn new() -> Self {
        Self { next_ms: 5 }
    }
    async fn pause(&mut self, inner: &Inner) {
        let random = (inner.options.entropy.next() as u64) % (self.next_ms / 2 + 1);
        tokio::time::sleep(Duration::from_millis(self.next_ms - random)).await;
        self.next_ms = (self.next_ms * 2).min(1_000);
    }
}

/// Asks until there is an answer. Only an unreadable store is an answer of its own.
async fn ask<T, F>(inner: &Inner, what: &str, mut verb: impl FnMut() -> F) -> Result<T, StoreError>
where
    F: Future<Output = Result<T, StoreError>>,
{
    let mut backoff = Backoff::new();
    loop {
        match verb().await {
            Ok(value) => return Ok(value),
            Err(error @ StoreError::Unreadable(_)) => return Err(error),
            Err(error) => {
                tracing::warn!(%error, what, "the store did not answer; asking again");
                backoff.pause(inner).await;
            }
        }
    }
}

pub(super) async fn load(inner: Arc<Inner>, wanted: Vec<(Partition, RunId, usize)>) -> Done {
    let keys: Vec<_> = wanted.iter().map(|(p, r, _)| (*p, r.clone())).collect();
    let records = match ask(&inner, "load", || inner.store.load(&keys)).await {
        Ok(records) => records,
        Err(error) => {
            let error = store_error(error);
            return Done::Loaded(wanted.into_iter().map(|(_, r, n)| (r, n, Err(error.clone()))).collect());
        }
    };
    let mut loaded = Vec::with_capacity(wanted.len());
    for ((key, (_, run, count)), record) in keys.iter().zip(wanted).zip(records) {
        let found = known(&inner, key, record).await;
        loaded.push((run, count, found));
    }
    Done::Loaded(loaded)
}

/// What a record shows.
async fn known(inner: &Inner, key: &(Partition, RunId), mut record: Option<Bytes>) -> Found {
    loop {
        let Some(bytes) = &record else { return Ok(None) };
        match decode(inner, &key.1, bytes).await {
            Err(lost) if lost.code == ErrorCode::WorkflowNotFound => {
                // The store may have lost its tail between the two reads, and the record with it.
                let key = std::slice::from_ref(key);
                let again = ask(inner, "load", || inner.store.load(key)).await.map_err(store_error)?.pop();
                let again = again.flatten();
                if again == record {
                    return Err(lost);
                }
                record = again;
            }
            found => return found,
        }
    }
}

async fn decode(inner: &Inner, run: &RunId, bytes: &Bytes) -> Result<Option<Known>, AppError> {
    let unreadable = |m: String| store_error(StoreError::Unreadable(m));
    let prefix = Prefix::of(bytes).ok_or_else(|| unreadable("a record shorter than its prefix".into()))?;
    if run.is_reserved() {
        let home = record::homes::decode(&bytes[Prefix::LEN..]).map_err(|e| unreadable(e.to_string()))?;
        return Ok(Some(Known::Home(Box::new(CachedHome { home, prefix, bytes: bytes.len() }))));
    }
    let partition = inner.partition_of(run);
    let whole = ask(inner, "load", || records::whole(&*inner.store, partition, run, bytes)).await;
    let Some((prefix, state)) = whole.map_err(store_error)? else { return Ok(None) };
    let mut backoff = Backoff::new();
    let plan = loop {
        match inner.plans.of(&state).await {
            Ok(plan) => break plan,
            Err(e) if e.code == ErrorCode::StoreUnavailable => {
                backoff.pause(inner).await;
            }
            Err(e) => return Err(e),
        }
    };
    let bytes = footprint(&state, bytes.len());
    let cached = Cached { state, prefix, plan, payloads: AtHand::default(), bytes };
    Ok(Some(Known::Present(Box::new(cached))))
}

pub(super) async fn plan(inner: Arc<Inner>, run: RunId, name: WorkflowName, version: u32) -> Done {
    let result = inner.plans.get(&name, version).await.map(drop);
    Done::Plan(run, result)
}

pub(super) async fn payloads(
    inner: Arc<Inner>,
    partition: Partition,
    run: RunId,
    fields: Vec<Field>,
) -> Done {
    let found =
        ask(&inner, "payloads", || inner.store.payloads(partition, &run, &fields)).await.unwrap_or_default();
    // A field that is gone (the run was deleted meanwhile) reads as null: the compare will refuse the decision.
    let found = found.into_iter().map(|b| b.unwrap_or_else(|| Bytes::from_static(b"null")));
    Done::Payloads(run, fields.iter().cloned().zip(found).collect())
}

/// The records of those sessions that are there.
async fn session_records(inner: &Inner, ids: Vec<SessionId>) -> BTreeMap<SessionId, SessionRecord> {
    if ids.is_empty() {
        return BTreeMap::new();
    }
    let found = ask(inner, "sessions", || inner.store.sessions(&ids)).await.unwrap_or_default();
    ids.into_iter().zip(found).filter_map(|(id, record)| Some((id, record?))).collect()
}

pub(super) async fn sessions(inner: Arc<Inner>, run: RunId, ids: Vec<SessionId>) -> Done {
    let found = session_records(&inner, ids).await;
    let passed = found.values().filter(|r| r.remaining() <= Span(0));
    let owners: BTreeSet<_> = passed.map(|r| beats::of(r.owner, inner.layout)).collect();
    let beats = session_records(&inner, owners.into_iter().collect()).await;
    let view = |(id, record): (SessionId, SessionRecord)| {
        let remaining = record.remaining();
        let owner = beats.get(&beats::of(record.owner, inner.layout));
        let owner_gone = remaining <= Span(0) && !owner.is_some_and(|b| beats::lives(b, inner.options.lease));
        let resuming = inner.epochs.is_new(&id, record.epoch);
        (id, SessionView { epoch: record.epoch, remaining, owner_gone, resuming })
    };
    Done::Sessions(run, found.into_iter().map(view).collect())
}

/// Asks the store for the clocks of a partition, and for nothing that is due.
pub(super) async fn clock(inner: Arc<Inner>, partition: Partition, run: RunId) -> Done {
    let tick = || async {
        let asked = Instant::now();
        Ok((asked, inner.store.tick(&[partition], 0).await?))
    };
    if let Ok((asked, ticks)) = ask(&inner, "tick", tick).await
        && let Some(tick) = ticks.first()
        && inner.clock.ticked(partition, asked, tick.now, tick.lease_now)
    {
        ticker::went_back(&inner, partition);
    }
    Done::Delayed(run)
}

pub(super) async fn delay(inner: Arc<Inner>, run: RunId, conflicts: u32) -> Done {
    let mut backoff = Backoff { next_ms: 5 << conflicts.min(6) };
    backoff.pause(&inner).await;
    Done::Delayed(run)
}

/// `failed`: batches ahead of this one of which the store took nothing, in a row.
pub(super) async fn commit(inner: Arc<Inner>, batch: Batch, pending: Vec<Pending>, failed: u32) -> Done {
    let begun = Instant::now();
    let mut backoff = Backoff { next_ms: 5 << failed.min(6) };
    let mut maybe = false;
    loop {
        match inner.store.commit(&batch).await {
            Ok(committed) => {
                inner.alarm.stir();
                inner.measures.commit.took(begun.elapsed());
                inner.measures.batch.observe(batch.writes.len() as f64);
                return Done::Committed(pending, committed);
            }
            // A full store refuses before it writes, and would have replayed an answer it had given. But if the batch
            // was sent before, that one may still be under way, and be taken once there is room.
            Err(error @ StoreError::Full(_)) if maybe => {
                tracing::warn!(%error, sequence = batch.sequence, "a commit's fate is not known; sending it again");
                backoff.pause(&inner).await;
            }
            Err(error @ (StoreError::Full(_) | StoreError::Unreadable(_))) => {
                backoff.pause(&inner).await;
                return Done::NotApplied(pending, error);
            }
            Err(StoreError::Forgotten) => return settle_by_records(inner, batch, pending).await,
            Err(error) => {
                maybe |= error.was_sent();
                if !maybe {
                    backoff.pause(&inner).await;
                    return Done::NotApplied(pending, error);
                }
                tracing::warn!(%error, sequence = batch.sequence, "a commit's reply was lost; sending it again");
                backoff.pause(&inner).await;
            }
        }
    }
}

/// The store no longer knows the batch. A record that still begins with our prefix shows that the decision was
/// applied; any other is decided anew, which is safe: every command is recognised when it is repeated.
async fn settle_by_records(inner: Arc<Inner>, batch: Batch, pending: Vec<Pending>) -> Done {
    let keys: Vec<_> = batch.writes.iter().map(|(p, w)| (*p, w.run.clone())).collect();
    let records = ask(&inner, "load", || inner.store.load(&keys)).await.unwrap_or_default();
    let shown = pending.iter().enumerate().map(|(n, p)| {
        let ours = p.decision.as_ref().map(|d| d.prefix);
        let there = records.get(n).and_then(|r| r.as_ref()).and_then(|r| Prefix::of(r));
        ours.is_some() && ours == there
    });
    let shown = shown.collect();
    Done::Lost(pending, shown)
}
