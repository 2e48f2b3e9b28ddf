//! A store in memory: for tests and the seeded simulation. Deterministic; loses everything with the process.
//!
//! [`Hooks`] stand around every verb, so a harness can delay it, fail it before it happens or lose its reply.
//! [`MemoryStore::snapshot`] and [`MemoryStore::restore`] make a lost tail of the log.

use super::inspect::Inspection;
use super::{
    Effects, Kv, Order, Pair, Shape, Tx, Writes, commit, moves, queue, read, session, stream, tick, workflow,
};
use crate::model::ids::{Partition, Prefix, RunId, SessionId, WorkflowName};
use crate::model::labels::QueueName;
use crate::model::payload::Field;
use crate::model::time::{Clock, LeaseTime, Span, Timestamp};
use crate::store::moves::{FileId, Moves, RESTORING};
use crate::store::{
    Batch, Committed, Hint, LAYOUT, Layout, ListedWorkflow, Result, STREAM_BOUND, SessionRecord, Store,
    StoredWorkflow, StreamBounds, StreamEntry, StreamPosition, Taken, Ticked,
};
use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use tokio::sync::{broadcast, watch};

/// A verb of the port, as hooks see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[expect(missing_docs, reason = "each is the verb of the same name")]
pub enum Verb {
    Check,
    Load,
    Payloads,
    Commit,
    Take,
    Discard,
    Tick,
    PutSession,
    RenewSessions,
    Sessions,
    RemoveSession,
    ReadEvents,
    StreamBounds,
    Resumable,
    TrimEvents,
    List,
    PutWorkflow,
    Workflow,
    Workflows,
    RemoveWorkflow,
}

/// What a harness does around a verb.
#[async_trait]
pub trait Hooks: Send + Sync {
    /// Before it happens. An error is the verb's answer, and nothing happened.
    async fn before(&self, verb: Verb) -> Result<()> {
        let _ = verb;
        Ok(())
    }
    /// After it happened. An error is the verb's answer: a lost reply (say so with `sent`).
    async fn after(&self, verb: Verb) -> Result<()> {
        let _ = verb;
        Ok(())
    }
}

/// A map in memory.
#[derive(Debug, Clone, Default)]
pub struct Map(BTreeMap<Vec<u8>, Bytes>);

impl Kv for Map {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        Ok(self.0.get(key).cloned())
    }

    fn scan(&self, from: &[u8], to: &[u8], limit: usize, order: Order) -> Result<Vec<Pair>> {
        if from >= to {
            return Ok(Vec::new());
        }
        let range = self.0.range::<[u8], _>((Bound::Included(from), Bound::Excluded(to)));
        let range = range.map(|(k, v)| (k.clone(), v.clone()));
        Ok(match order {
            Order::Ascending => range.take(limit).collect(),
            Order::Descending => range.rev().take(limit).collect(),
        })
    }

    fn apply(&mut self, writes: Writes) -> Result<()> {
        for (key, write) in writes {
            match write {
                Some(value) => self.0.insert(key, value),
                None => self.0.remove(&key),
            };
        }
        Ok(())
    }
}

/// All that a [`MemoryStore`] held at one moment.
#[derive(Debug, Clone)]
pub struct Snapshot(Map);

/// The store. Clones share their contents.
#[derive(Clone)]
pub struct MemoryStore {
    shared: Arc<Shared>,
    hooks: Option<Arc<dyn Hooks>>,
}

struct Shared {
    shape: Shape,
    clock: Arc<dyn Clock>,
    map: Mutex<Map>,
    hints: broadcast::Sender<Hint>,
    /// Counts writes to event streams; readers wait on it.
    grown: watch::Sender<u64>,
}

impl std::fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MemoryStore").field("shape", &self.shared.shape).finish_non_exhaustive()
    }
}

impl MemoryStore {
    /// An empty store of `partitions` partitions whose time is `clock`'s.
    pub fn new(clock: Arc<dyn Clock>, partitions: u16) -> Self {
        Self::with_stream_bound(clock, partitions, STREAM_BOUND)
    }

    /// As [`MemoryStore::new`], with event streams of about `stream_bound` entries each.
    pub fn with_stream_bound(clock: Arc<dyn Clock>, partitions: u16, stream_bound: u64) -> Self {
        let layout = Layout { version: LAYOUT, partitions: partitions.max(1), epoch: 1 };
        let shared = Shared {
            shape: Shape { layout, stream_bound },
            clock,
            map: Mutex::default(),
            hints: broadcast::channel(1_024).0,
            grown: watch::channel(0).0,
        };
        Self { shared: Arc::new(shared), hooks: None }
    }

    /// The same contents, seen through `hooks`.
    #[must_use]
    pub fn hooked(&self, hooks: Arc<dyn Hooks>) -> Self {
        Self { shared: Arc::clone(&self.shared), hooks: Some(hooks) }
    }

    /// All it holds now.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot(self.shared.map.lock().clone())
    }

    /// Makes it hold what it held at `snapshot`: what came after is lost.
    pub fn restore(&self, snapshot: &Snapshot) {
        self.shared.map.lock().clone_from(&snapshot.0);
        self.shared.grown.send_modify(|n| *n += 1);
    }

    /// Looks at what it holds, in one piece.
    pub fn inspect<T>(&self, look: impl FnOnce(&Inspection<'_>) -> T) -> T {
        let map = self.shared.map.lock();
        look(&Inspection::new(&map))
    }

    async fn before(&self, verb: Verb) -> Result<()> {
        match &self.hooks {
            Some(hooks) => hooks.before(verb).await,
            None => Ok(()),
        }
    }

    async fn after<T>(&self, verb: Verb, result: Result<T>) -> Result<T> {
        if let Some(hooks) = &self.hooks {
            hooks.after(verb).await?;
        }
        result
    }

    async fn read<T: Send>(
        &self,
        verb: Verb,
        body: impl FnOnce(&Tx<'_>, &Shape, Timestamp) -> Result<T> + Send,
    ) -> Result<T> {
        self.before(verb).await?;
        let result = self.shared.read(body);
        self.after(verb, result).await
    }

    async fn write<T: Send>(
        &self,
        verb: Verb,
        body: impl FnOnce(&mut Tx<'_>, &Shape, Timestamp) -> Result<(T, Effects)> + Send,
    ) -> Result<T> {
        self.before(verb).await?;
        let result = self.shared.write(body);
        self.after(verb, result).await
    }
}

impl Shared {
    fn read<T>(&self, body: impl FnOnce(&Tx<'_>, &Shape, Timestamp) -> Result<T>) -> Result<T> {
        let map = self.map.lock();
        body(&Tx::new(&*map), &self.shape, self.clock.now())
    }

    fn write<T>(
        &self,
        body: impl FnOnce(&mut Tx<'_>, &Shape, Timestamp) -> Result<(T, Effects)>,
    ) -> Result<T> {
        let (value, effects) = {
            let mut map = self.map.lock();
            let mut tx = Tx::new(&*map);
            let done = body(&mut tx, &self.shape, self.clock.now())?;
            let writes = tx.into_writes();
            map.apply(writes)?;
            done
        };
        if effects.events {
            self.grown.send_modify(|n| *n += 1);
        }
        for hint in effects.hints() {
            // No receiver is no fault.
            let _ = self.hints.send(hint);
        }
        Ok(value)
    }
}

/// The partition that keeps the windows of lanes: there is one group, and this is its first.
const HOME: Partition = Partition(0);

#[async_trait]
impl Store for MemoryStore {
    fn layout(&self) -> Layout {
        self.shared.shape.layout
    }

    fn hints(&self) -> broadcast::Receiver<Hint> {
        self.shared.hints.subscribe()
    }

    async fn check(&self) -> Result<()> {
        self.before(Verb::Check).await?;
        self.after(Verb::Check, Ok(())).await
    }

    async fn load(&self, runs: &[(Partition, RunId)]) -> Result<Vec<Option<Bytes>>> {
        self.read(Verb::Load, |tx, shape, _| read::load(tx, shape, runs)).await
    }

    async fn payloads(
        &self,
        partition: Partition,
        run: &RunId,
        fields: &[Field],
    ) -> Result<Vec<Option<Bytes>>> {
        self.read(Verb::Payloads, |tx, shape, _| read::payloads(tx, shape, partition, run, fields)).await
    }

    async fn commit(&self, batch: &Batch) -> Result<Committed> {
        self.write(Verb::Commit, |tx, shape, now| commit::commit(tx, shape, HOME, batch, now)).await
    }

    async fn take(&self, wanted: &[(Partition, QueueName, u32)], claim: Span) -> Result<Vec<Taken>> {
        let body = |tx: &mut Tx<'_>, shape: &Shape, now| {
            Ok((queue::take(tx, shape, wanted, claim, now)?, Effects::default()))
        };
        self.write(Verb::Take, body).await
    }

    async fn discard(&self, stale: &[(Taken, Option<Prefix>)]) -> Result<()> {
        self.write(Verb::Discard, |tx, shape, _| Ok(((), queue::discard(tx, shape, stale)?))).await
    }

    async fn tick(&self, partitions: &[Partition], max: u32) -> Result<Vec<Ticked>> {
        self.write(Verb::Tick, |tx, shape, now| tick::tick(tx, shape, HOME, partitions, max, now)).await
    }

    async fn put_session(
        &self,
        id: &SessionId,
        record: &SessionRecord,
        expect: Option<u32>,
        lease: Span,
    ) -> Result<bool> {
        let body = |tx: &mut Tx<'_>, shape: &Shape, now| {
            Ok((session::put(tx, shape, id, record, expect, lease, now)?, Effects::default()))
        };
        self.write(Verb::PutSession, body).await
    }

    async fn renew_sessions(&self, sessions: &[(SessionId, u32)], lease: Span) -> Result<Vec<bool>> {
        let body = |tx: &mut Tx<'_>, shape: &Shape, now| {
            Ok((session::renew(tx, shape, sessions, lease, now)?, Effects::default()))
        };
        self.write(Verb::RenewSessions, body).await
    }

    async fn sessions(&self, ids: &[SessionId]) -> Result<Vec<Option<SessionRecord>>> {
        self.read(Verb::Sessions, |tx, shape, now| session::read(tx, shape, ids, now)).await
    }

    async fn remove_session(&self, id: &SessionId, epoch: u32) -> Result<()> {
        let body = |tx: &mut Tx<'_>, shape: &Shape, now| {
            session::remove(tx, shape, id, epoch, now)?;
            Ok(((), Effects::default()))
        };
        self.write(Verb::RemoveSession, body).await
    }

    async fn read_events(
        &self,
        after: &[(Partition, StreamPosition)],
        max: u32,
        wait: Span,
    ) -> Result<Vec<StreamEntry>> {
        self.before(Verb::ReadEvents).await?;
        let mut grown = self.shared.grown.subscribe();
        let deadline = tokio::time::Instant::now() + wait.to_std();
        let result = loop {
            grown.mark_unchanged();
            let read = self.shared.read(|tx, shape, _| stream::read(tx, shape, after, max));
            if !matches!(&read, Ok(entries) if entries.is_empty()) || wait <= Span(0) {
                break read;
            }
            if tokio::time::timeout_at(deadline, grown.changed()).await.is_err() {
                break read;
            }
        };
        self.after(Verb::ReadEvents, result).await
    }

    async fn stream_bounds(&self, partitions: &[Partition]) -> Result<Vec<StreamBounds>> {
        self.read(Verb::StreamBounds, |tx, shape, _| stream::bounds(tx, shape, partitions)).await
    }

    async fn resumable(&self, at: &[(Partition, StreamPosition)]) -> Result<Vec<bool>> {
        self.read(Verb::Resumable, |tx, shape, _| stream::resumable(tx, shape, at)).await
    }

    async fn trim_events(&self, partition: Partition, through: StreamPosition) -> Result<u64> {
        let body = |tx: &mut Tx<'_>, shape: &Shape, _| {
            Ok((stream::trim(tx, shape, partition, through)?, Effects::default()))
        };
        self.write(Verb::TrimEvents, body).await
    }

    async fn list(
        &self,
        partition: Partition,
        before: Option<(Timestamp, RunId)>,
        max: u32,
    ) -> Result<Vec<(Timestamp, RunId)>> {
        self.read(Verb::List, |tx, shape, _| read::list(tx, shape, partition, before, max)).await
    }

    async fn put_workflow(&self, name: &WorkflowName, document: &Bytes) -> Result<(StoredWorkflow, bool)> {
        let body = |tx: &mut Tx<'_>, _: &Shape, now| {
            Ok((workflow::put(tx, name, document, now)?, Effects::default()))
        };
        self.write(Verb::PutWorkflow, body).await
    }

    async fn workflow(&self, name: &WorkflowName, version: Option<u32>) -> Result<Option<StoredWorkflow>> {
        self.read(Verb::Workflow, |tx, _, _| workflow::read(tx, name, version)).await
    }

    async fn workflows(
        &self,
        before: Option<(Timestamp, WorkflowName)>,
        max: u32,
    ) -> Result<Vec<ListedWorkflow>> {
        self.read(Verb::Workflows, |tx, _, _| workflow::list(tx, before.as_ref(), max)).await
    }

    async fn remove_workflow(&self, name: &WorkflowName) -> Result<bool> {
        self.write(Verb::RemoveWorkflow, |tx, _, _| Ok((workflow::remove(tx, name)?, Effects::default())))
            .await
    }
}

/// Nobody opens a store in memory, so none has to be kept from it: it can be restored and worked on as it is.
#[async_trait]
impl Moves for MemoryStore {
    async fn oldest(
        &self,
        partition: Partition,
        after: Option<(Timestamp, RunId)>,
        max: u32,
    ) -> Result<Vec<(Timestamp, RunId)>> {
        self.shared.read(|tx, shape, _| moves::oldest(tx, shape, partition, after.as_ref(), max))
    }

    async fn homes(&self, partition: Partition) -> Result<Vec<RunId>> {
        self.shared.read(|tx, shape, _| moves::homes(tx, shape, partition))
    }

    async fn payload_fields(&self, partition: Partition, run: &RunId) -> Result<Vec<Field>> {
        self.shared.read(|tx, shape, _| moves::payload_fields(tx, shape, partition, run))
    }

    async fn put_version(&self, stored: &StoredWorkflow) -> Result<()> {
        self.shared.write(|tx, _, _| Ok((workflow::put_version(tx, stored)?, Effects::default())))
    }

    async fn begin_restore(&self, file: &FileId) -> Result<bool> {
        self.shared.write(|tx, shape, _| {
            Ok((moves::begin_restore(tx, &restoring(*shape), file)?, Effects::default()))
        })
    }

    async fn end_restore(&self, file: &FileId, lease: LeaseTime) -> Result<()> {
        self.shared.write(|tx, shape, now| {
            moves::end_restore(tx, &restoring(*shape), file, lease, now)?;
            Ok(((), Effects::default()))
        })
    }
}

fn restoring(shape: Shape) -> Shape {
    let version = shape.layout.version | RESTORING;
    Shape { layout: Layout { version, ..shape.layout }, ..shape }
}
