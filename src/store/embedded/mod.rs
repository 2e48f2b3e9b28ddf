//! The port on a directory: one process, nothing to install, survives `kill -9`.
//!
//! ```text
//! verb ──► channel ──► committer thread: group, one append, answer      (committer.rs)
//! read ──► mirror or fjall, directly                                   (disk.rs)
//! ```
//!
//! Invariants
//! - What was acknowledged has reached the operating system by `write()`: it survives the death of the process. A
//!   sync follows within a second, or comes first with [`Sync::EveryGroup`].
//! - One process holds the directory; a second is refused.
//! - A disk that fails gives errors, never a panic, and nothing is written after it failed.
//!
//! Source: docs/adr/0006-embedded-store.md.

mod committer;
mod disk;
mod moves;

use crate::model::ids::{Partition, Prefix, RunId, SessionId, WorkflowName};
use crate::model::labels::QueueName;
use crate::model::payload::Field;
use crate::model::time::{Clock, Span, SystemClock, Timestamp};
use crate::store::kv::{
    self, Effects, Kv as _, Shape, Tx, commit, queue, read, session, stream, tick, workflow,
};
use crate::store::{
    Batch, Committed, Hint, Layout, ListedWorkflow, PARTITIONS, Purpose, Result, STREAM_BOUND, SessionRecord,
    Store, StoreError, StoredWorkflow, StreamBounds, StreamEntry, StreamPosition, Taken, Ticked,
    unknown_layout,
};
use async_trait::async_trait;
use bytes::Bytes;
use committer::Job;
use disk::Disk;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use tokio::sync::{broadcast, mpsc, watch};

/// The partition that keeps the windows of lanes: there is one group, and this is its first.
const HOME: Partition = Partition(0);
/// The most partitions a store may have.
const MAX_PARTITIONS: u16 = 1_024;

/// When the disk is synced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Sync {
    /// Every second: a crash of the machine loses the last second.
    #[default]
    EverySecond,
    /// Before each group of commits is answered.
    EveryGroup,
}

/// How to open a store.
#[derive(Clone)]
pub struct Options {
    /// Number of partitions: used when the store is initialised, compared when it was. Default 8.
    pub partitions: Option<u16>,
    /// Entries each partition's event stream keeps, about.
    pub stream_bound: u64,
    /// When the disk is synced.
    pub sync: Sync,
    /// Memory for blocks read from disk, in bytes.
    pub cache_bytes: u64,
    /// The store's time.
    pub clock: Arc<dyn Clock>,
    /// What for.
    pub purpose: Purpose,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            partitions: None,
            stream_bound: STREAM_BOUND,
            sync: Sync::default(),
            cache_bytes: 64 << 20,
            clock: Arc::new(SystemClock),
            purpose: Purpose::default(),
        }
    }
}

impl std::fmt::Debug for Options {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Options")
            .field("partitions", &self.partitions)
            .field("stream_bound", &self.stream_bound)
            .field("sync", &self.sync)
            .field("cache_bytes", &self.cache_bytes)
            .field("purpose", &self.purpose)
            .finish_non_exhaustive()
    }
}

/// A store in a directory.
pub struct EmbeddedStore {
    shape: Shape,
    disk: Disk,
    clock: Arc<dyn Clock>,
    /// None once the store is being dropped.
    jobs: Option<mpsc::Sender<Job>>,
    committer: Option<std::thread::JoinHandle<()>>,
    stop_sync: Option<std::sync::mpsc::Sender<()>>,
    syncer: Option<std::thread::JoinHandle<()>>,
    hints: broadcast::Sender<Hint>,
    /// Counts writes to event streams; readers wait on it.
    grown: watch::Sender<u64>,
}

impl std::fmt::Debug for EmbeddedStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EmbeddedStore").field("shape", &self.shape).finish_non_exhaustive()
    }
}

impl Drop for EmbeddedStore {
    /// Waits for the commits under way and a last sync, so that the directory is free afterwards.
    fn drop(&mut self) {
        self.jobs = None;
        self.committer.take().map(std::thread::JoinHandle::join);
        self.stop_sync = None;
        self.syncer.take().map(std::thread::JoinHandle::join);
    }
}

fn closed(sent: bool) -> StoreError {
    StoreError::Unavailable { message: "the store has ended".into(), sent }
}

impl EmbeddedStore {
    /// Opens the store in `dir`, initialising an empty or missing one.
    ///
    /// # Errors
    /// If the directory cannot be used, another process holds it, or it holds a layout this version does not know.
    pub async fn open(dir: &Path, options: Options) -> Result<Arc<Self>> {
        let dir = dir.to_owned();
        let opened = tokio::task::spawn_blocking(move || Self::open_blocking(&dir, options)).await;
        opened.map_err(|_| closed(false))?.map(Arc::new)
    }

    /// The layout version of the store in `dir`, whatever it is; none if there is no store. Nothing is changed.
    ///
    /// # Errors
    /// If the directory cannot be read, or another process holds it.
    pub async fn layout_of(dir: &Path) -> Result<Option<u32>> {
        if is_vacant(dir) {
            return Ok(None);
        }
        let dir = dir.to_owned();
        let read = move || {
            let found = Disk::open(&dir, 1 << 20, false)?.get(&kv::keys::meta())?;
            let decode =
                |value: Bytes| kv::decode_layout(&value).ok_or_else(|| kv::damaged("the meta record"));
            Ok(found.map(decode).transpose()?.map(|layout| layout.version))
        };
        tokio::task::spawn_blocking(read).await.map_err(|_| closed(false))?
    }

    fn open_blocking(dir: &Path, options: Options) -> Result<Self> {
        let refuse = |message| StoreError::Unavailable { message, sent: false };
        if options.partitions.is_some_and(|p| p == 0 || p > MAX_PARTITIONS) {
            return Err(refuse(format!("the number of partitions must be 1 to {MAX_PARTITIONS}")));
        }
        let nothing = || refuse(format!("there is no store in {}", dir.display()));
        if options.purpose == Purpose::Read && is_vacant(dir) {
            return Err(nothing());
        }
        let mut disk = Disk::open(dir, options.cache_bytes, options.sync == Sync::EveryGroup)?;
        if options.purpose == Purpose::Read && disk.get(&kv::keys::meta())?.is_none() {
            return Err(nothing());
        }
        let layout = layout(&mut disk, options.partitions, options.purpose.version())?;
        let shape = Shape { layout, stream_bound: options.stream_bound };
        let (jobs, receiver) = mpsc::channel(committer::QUEUE);
        let (stop_sync, stop) = std::sync::mpsc::channel();
        let dirty = Arc::new(AtomicBool::new(false));
        let hints = broadcast::channel(1_024).0;
        let grown = watch::channel(0).0;

        let publish = {
            let (hints, grown) = (hints.clone(), grown.clone());
            move |effects: Effects| {
                if effects.events {
                    grown.send_modify(|n| *n += 1);
                }
                for hint in effects.hints() {
                    // No receiver is no fault.
                    let _ = hints.send(hint);
                }
            }
        };
        let spawn = |name: &str| std::thread::Builder::new().name(name.into());
        let no_thread = |e: std::io::Error| refuse(format!("no thread for the store: {e}"));
        let committer = {
            let (disk, clock, dirty) = (disk.clone(), Arc::clone(&options.clock), Arc::clone(&dirty));
            let run = move || committer::run(disk, shape, clock, receiver, dirty, publish);
            spawn("store-commit").spawn(run).map_err(no_thread)?
        };
        let syncer = {
            let disk = disk.clone();
            let run = move || committer::sync(&disk, &stop, &dirty);
            spawn("store-sync").spawn(run).map_err(no_thread)?
        };
        Ok(Self {
            shape,
            disk,
            clock: options.clock,
            jobs: Some(jobs),
            committer: Some(committer),
            stop_sync: Some(stop_sync),
            syncer: Some(syncer),
            hints,
            grown,
        })
    }

    async fn write<T: Send + 'static>(
        &self,
        verb: impl FnOnce(&mut Tx<'_>, &Shape, Timestamp) -> Result<(T, Effects)> + Send + 'static,
    ) -> Result<T> {
        let (job, answer) = committer::job(verb);
        let Some(jobs) = &self.jobs else { return Err(closed(false)) };
        jobs.send(job).await.map_err(|_| closed(false))?;
        answer.await.map_err(|_| closed(true))?
    }

    /// Reads what may come from disk, off the async threads.
    async fn read<T: Send + 'static>(
        &self,
        verb: impl FnOnce(&Tx<'_>, &Shape) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (disk, shape) = (self.disk.clone(), self.shape);
        let read = tokio::task::spawn_blocking(move || verb(&Tx::new(&disk.view()), &shape)).await;
        read.map_err(|_| closed(false))?
    }

    /// Reads what the mirror holds.
    fn read_mirror<T>(&self, verb: impl FnOnce(&Tx<'_>, &Shape, Timestamp) -> Result<T>) -> Result<T> {
        verb(&Tx::new(&self.disk), &self.shape, self.clock.now())
    }
}

/// Whether there can be no store: opening would make one.
fn is_vacant(dir: &Path) -> bool {
    std::fs::read_dir(dir).is_ok_and(|mut entries| entries.next().is_none()) || !dir.exists()
}

/// Reads what the store was initialised with, or initialises it.
fn layout(disk: &mut Disk, asked: Option<u16>, version: u32) -> Result<Layout> {
    let key = kv::keys::meta();
    let found = disk.get(&key)?;
    let Some(value) = found else {
        let mut random = [0; 8];
        getrandom::fill(&mut random).map_err(|e| StoreError::Unavailable {
            message: format!("no randomness from the system: {e}"),
            sent: false,
        })?;
        let epoch = u64::from_be_bytes(random) >> 1;
        let layout = Layout { version, partitions: asked.unwrap_or(PARTITIONS), epoch };
        disk.apply(kv::Writes::from([(key, Some(kv::encode_layout(layout).into()))]))?;
        disk.sync()?;
        tracing::info!(partitions = layout.partitions, layout = layout.version, "initialised the store");
        return Ok(layout);
    };
    let layout = kv::decode_layout(&value).ok_or_else(|| kv::damaged("the meta record"))?;
    if layout.version != version {
        return Err(unknown_layout(layout.version, version));
    }
    match asked {
        Some(asked) if asked != layout.partitions => Err(StoreError::Unavailable {
            message: format!(
                "the store was initialised with {} partitions, {asked} were asked for; backup and restore re-partition it",
                layout.partitions
            ),
            sent: false,
        }),
        _ => Ok(layout),
    }
}

fn silent<T>(value: T) -> (T, Effects) {
    (value, Effects::default())
}

#[async_trait]
impl Store for EmbeddedStore {
    fn layout(&self) -> Layout {
        self.shape.layout
    }

    fn hints(&self) -> broadcast::Receiver<Hint> {
        self.hints.subscribe()
    }

    async fn check(&self) -> Result<()> {
        // The meta record is written as it stands: that finds a disk that failed.
        let write = |tx: &mut Tx<'_>, shape: &Shape, _| {
            tx.put(kv::keys::meta(), kv::encode_layout(shape.layout));
            Ok(silent(()))
        };
        self.write(write).await
    }

    async fn load(&self, runs: &[(Partition, RunId)]) -> Result<Vec<Option<Bytes>>> {
        let runs = runs.to_vec();
        self.read(move |tx, shape| read::load(tx, shape, &runs)).await
    }

    async fn payloads(
        &self,
        partition: Partition,
        run: &RunId,
        fields: &[Field],
    ) -> Result<Vec<Option<Bytes>>> {
        let (run, fields) = (run.clone(), fields.to_vec());
        self.read(move |tx, shape| read::payloads(tx, shape, partition, &run, &fields)).await
    }

    async fn commit(&self, batch: &Batch) -> Result<Committed> {
        let batch = batch.clone();
        self.write(move |tx, shape, now| commit::commit(tx, shape, HOME, &batch, now)).await
    }

    async fn take(&self, wanted: &[(Partition, QueueName, u32)], claim: Span) -> Result<Vec<Taken>> {
        let wanted = wanted.to_vec();
        self.write(move |tx, shape, now| Ok(silent(queue::take(tx, shape, &wanted, claim, now)?))).await
    }

    async fn discard(&self, stale: &[(Taken, Option<Prefix>)]) -> Result<()> {
        let stale = stale.to_vec();
        self.write(move |tx, shape, _| Ok(((), queue::discard(tx, shape, &stale)?))).await
    }

    async fn tick(&self, partitions: &[Partition], max: u32) -> Result<Vec<Ticked>> {
        let partitions = partitions.to_vec();
        self.write(move |tx, shape, now| tick::tick(tx, shape, HOME, &partitions, max, now)).await
    }

    async fn put_session(
        &self,
        id: &SessionId,
        record: &SessionRecord,
        expect: Option<u32>,
        lease: Span,
    ) -> Result<bool> {
        let (id, record) = (id.clone(), record.clone());
        let verb = move |tx: &mut Tx<'_>, shape: &Shape, now| {
            Ok(silent(session::put(tx, shape, &id, &record, expect, lease, now)?))
        };
        self.write(verb).await
    }

    async fn renew_sessions(&self, sessions: &[(SessionId, u32)], lease: Span) -> Result<Vec<bool>> {
        let sessions = sessions.to_vec();
        let verb = move |tx: &mut Tx<'_>, shape: &Shape, now| {
            Ok(silent(session::renew(tx, shape, &sessions, lease, now)?))
        };
        self.write(verb).await
    }

    async fn sessions(&self, ids: &[SessionId]) -> Result<Vec<Option<SessionRecord>>> {
        self.read_mirror(|tx, shape, now| session::read(tx, shape, ids, now))
    }

    async fn remove_session(&self, id: &SessionId, epoch: u32) -> Result<()> {
        let id = id.clone();
        self.write(move |tx, shape, now| Ok(silent(session::remove(tx, shape, &id, epoch, now)?))).await
    }

    async fn read_events(
        &self,
        after: &[(Partition, StreamPosition)],
        max: u32,
        wait: Span,
    ) -> Result<Vec<StreamEntry>> {
        let mut grown = self.grown.subscribe();
        let deadline = tokio::time::Instant::now() + wait.to_std();
        loop {
            grown.mark_unchanged();
            let after = after.to_vec();
            let entries = self.read(move |tx, shape| stream::read(tx, shape, &after, max)).await?;
            if !entries.is_empty()
                || wait <= Span(0)
                || tokio::time::timeout_at(deadline, grown.changed()).await.is_err()
            {
                return Ok(entries);
            }
        }
    }

    async fn stream_bounds(&self, partitions: &[Partition]) -> Result<Vec<StreamBounds>> {
        self.read_mirror(|tx, shape, _| stream::bounds(tx, shape, partitions))
    }

    async fn resumable(&self, at: &[(Partition, StreamPosition)]) -> Result<Vec<bool>> {
        let at = at.to_vec();
        self.read(move |tx, shape| stream::resumable(tx, shape, &at)).await
    }

    async fn trim_events(&self, partition: Partition, through: StreamPosition) -> Result<u64> {
        self.write(move |tx, shape, _| Ok(silent(stream::trim(tx, shape, partition, through)?))).await
    }

    async fn list(
        &self,
        partition: Partition,
        before: Option<(Timestamp, RunId)>,
        max: u32,
    ) -> Result<Vec<(Timestamp, RunId)>> {
        self.read(move |tx, shape| read::list(tx, shape, partition, before, max)).await
    }

    async fn put_workflow(&self, name: &WorkflowName, document: &Bytes) -> Result<(StoredWorkflow, bool)> {
        let (name, document) = (name.clone(), document.clone());
        self.write(move |tx, _, now| Ok(silent(workflow::put(tx, &name, &document, now)?))).await
    }

    async fn workflow(&self, name: &WorkflowName, version: Option<u32>) -> Result<Option<StoredWorkflow>> {
        let name = name.clone();
        self.read(move |tx, _| workflow::read(tx, &name, version)).await
    }

    async fn workflows(
        &self,
        before: Option<(Timestamp, WorkflowName)>,
        max: u32,
    ) -> Result<Vec<ListedWorkflow>> {
        self.read(move |tx, _| workflow::list(tx, before.as_ref(), max)).await
    }

    async fn remove_workflow(&self, name: &WorkflowName) -> Result<bool> {
        let name = name.clone();
        self.write(move |tx, _, _| Ok(silent(workflow::remove(tx, &name)?))).await
    }
}
