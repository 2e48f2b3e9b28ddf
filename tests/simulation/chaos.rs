//! The store as one server sees it: slow, away, forgetful, out of order. What it applies is audited.

use crate::audit::Audit;
use crate::profile::Profile;
use crate::rng::Rng;
use crate::sabotage::Sabotage;
use crate::world::World;
use async_trait::async_trait;
use bytes::Bytes;
use downbeat::model::ids::{Partition, Prefix, RunId, SessionId, WorkflowName};
use downbeat::model::labels::QueueName;
use downbeat::model::payload::Field;
use downbeat::model::time::{Span, Timestamp};
use downbeat::store::{
    Batch, Committed, Hint, Layout, ListedWorkflow, Result, SessionRecord, Store, StoreError, StoredWorkflow,
    StreamBounds, StreamEntry, StreamPosition, Taken, Ticked, Verdict,
};
use parking_lot::Mutex;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::broadcast;
use tokio::task::AbortHandle;
use tokio::time::Instant;

/// A link takes so long at most to answer, whatever happens to it.
const LINK_DEADLINE: Duration = Duration::from_secs(5);

/// What a server's link to the store is like now.
pub(crate) struct Link(Mutex<State>);

struct State {
    rng: Rng,
    /// The server stands still until then.
    stalled_until: Instant,
    /// The store does not answer it until then.
    away_until: Instant,
    /// The last time anything went wrong that may delay what this server does for its sessions.
    trouble: Instant,
}

/// What will happen to one call, drawn at once.
struct Fate {
    request: Duration,
    reply: Duration,
    fails: bool,
    lost: bool,
    full: bool,
    delayed: Option<Duration>,
    duplicate: Option<Duration>,
    dies: bool,
    hangs: bool,
}

impl Link {
    pub(crate) fn new(rng: Rng, now: Instant) -> Self {
        Self(Mutex::new(State { rng, stalled_until: now, away_until: now, trouble: now }))
    }

    pub(crate) fn heal(&self) {
        let mut s = self.0.lock();
        let now = Instant::now();
        s.trouble = now;
        s.stalled_until = s.stalled_until.min(now);
        s.away_until = s.away_until.min(now);
    }

    pub(crate) fn stall(&self, until: Instant) {
        let mut s = self.0.lock();
        s.stalled_until = s.stalled_until.max(until);
        s.trouble = s.trouble.max(until);
    }

    pub(crate) fn cut_off(&self, until: Instant) {
        let mut s = self.0.lock();
        s.away_until = s.away_until.max(until);
        s.trouble = s.trouble.max(until);
    }

    /// Something went wrong just now.
    pub(crate) fn trouble(&self) {
        let mut s = self.0.lock();
        s.trouble = s.trouble.max(Instant::now());
    }

    pub(crate) fn last_trouble(&self) -> Instant {
        self.0.lock().trouble
    }

    pub(crate) fn stalled_until(&self) -> Instant {
        self.0.lock().stalled_until
    }

    fn is_away(&self) -> bool {
        self.0.lock().away_until > Instant::now()
    }

    /// Waits while the server stands still.
    pub(crate) async fn gate(&self) {
        loop {
            let until = self.stalled_until();
            if until <= Instant::now() {
                return;
            }
            // It may end earlier than was said.
            tokio::time::sleep_until(until.min(Instant::now() + Duration::from_millis(500))).await;
        }
    }

    fn draw(&self, p: &Profile) -> Fate {
        let mut s = self.0.lock();
        let rng = &mut s.rng;
        let half = |rng: &mut Rng| Duration::from_micros(rng.below(p.latency_ms * 500 + 1));
        let spike = if rng.chance(p.spike) { rng.millis(10, 2_000) } else { Duration::ZERO };
        let fate = Fate {
            request: half(rng) + spike,
            reply: half(rng),
            fails: rng.chance(p.fail_before),
            lost: rng.chance(p.lost_reply),
            full: rng.chance(p.full),
            delayed: rng.chance(p.delayed).then(|| rng.millis(1, 6_000)),
            duplicate: rng.chance(p.duplicate).then(|| rng.millis(1, 6_000)),
            dies: rng.chance(p.dies_at_commit),
            hangs: rng.chance(0.3),
        };
        if fate.fails
            || fate.lost
            || fate.full
            || fate.delayed.is_some()
            || spike > Duration::from_millis(500)
        {
            s.trouble = s.trouble.max(Instant::now() + spike);
        }
        fate
    }
}

async fn pass(time: Duration) {
    if time.is_zero() {
        tokio::task::yield_now().await;
    } else {
        tokio::time::sleep(time).await;
    }
}

fn away(sent: bool) -> StoreError {
    StoreError::Unavailable { message: "simulated".to_owned(), sent }
}

pub(crate) struct ChaosStore {
    world: Arc<World>,
    server: usize,
    hints: broadcast::Sender<Hint>,
}

impl std::fmt::Debug for ChaosStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ChaosStore").field("server", &self.server).finish_non_exhaustive()
    }
}

impl ChaosStore {
    /// A server's view of the world's store, and the task that passes hints on to it.
    pub(crate) fn open(world: Arc<World>, server: usize) -> (Arc<dyn Store>, AbortHandle) {
        let hints = broadcast::channel(256).0;
        let mut from = world.memory.hints();
        let (to, seen) = (hints.clone(), Arc::clone(&world));
        let mut rng = world.rng.split("hints", server as u64);
        let pump = tokio::spawn(async move {
            loop {
                match from.recv().await {
                    Ok(hint) => {
                        if !rng.chance(seen.profile().lost_hint) {
                            drop(to.send(hint));
                        }
                    }
                    Err(broadcast::error::RecvError::Lagged(_)) => {}
                    Err(broadcast::error::RecvError::Closed) => return,
                }
            }
        });
        (Arc::new(Self { world, server, hints }), pump.abort_handle())
    }

    fn link(&self) -> &Link {
        &self.world.servers[self.server].link
    }

    /// On the way to the store. An error means that it never got there.
    async fn go(&self) -> Result<Fate> {
        let link = self.link();
        link.gate().await;
        let fate = link.draw(self.world.profile());
        pass(fate.request).await;
        link.gate().await;
        if link.is_away() {
            if fate.hangs {
                tokio::time::sleep(LINK_DEADLINE).await;
                return Err(away(true));
            }
            pass(Duration::from_millis(1)).await;
            return Err(away(false));
        }
        if fate.fails {
            return Err(away(false));
        }
        Ok(fate)
    }

    /// On the way back.
    async fn come_back<T>(&self, fate: &Fate, result: Result<T>) -> Result<T> {
        pass(fate.reply).await;
        self.link().gate().await;
        if fate.lost { Err(away(true)) } else { result }
    }

    async fn call<T, F>(&self, verb: impl FnOnce() -> F) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        let fate = self.go().await?;
        let result = verb().await;
        self.come_back(&fate, result).await
    }

    /// The batch is still under way somewhere, whatever we hear; its reply will reach nobody.
    fn arrives_later(&self, batch: &Batch, later: Duration, decided: Instant) {
        let (world, server, batch) = (Arc::clone(&self.world), self.server, batch.clone());
        world.note(format_args!("server {server} commit {:?}/{} arrives later", batch.lane, batch.sequence));
        tokio::spawn(async move {
            tokio::time::sleep(later).await;
            drop(world.apply(server, &batch, decided).await);
        });
    }

    fn memory(&self) -> &dyn Store {
        &self.world.memory
    }
}

impl World {
    /// The store takes a batch: what it applies is audited. Never waits.
    async fn apply(&self, server: usize, batch: &Batch, decided: Instant) -> Result<Committed> {
        let altered = self.sabotage.and_then(|s| s.alter(self, batch));
        let batch = altered.as_ref().unwrap_or(batch);
        let before = Audit::before(self, batch);
        let mut result = self.memory.commit(batch).await;
        self.audit.lock().after(self, server, batch, &before, &result, decided);
        if let (Some(s), Ok(committed)) = (self.sabotage, &mut result) {
            s.pretend(batch, committed);
        }
        if let Ok(committed) = &result {
            let applied = committed.verdicts.iter().filter(|v| **v == Verdict::Applied).count();
            self.note(format_args!(
                "server {server} commit {:?}/{}: {applied} of {} applied",
                batch.lane,
                batch.sequence,
                committed.verdicts.len()
            ));
        }
        self.grown.notify_waiters();
        result
    }
}

#[async_trait]
impl Store for ChaosStore {
    fn layout(&self) -> Layout {
        self.memory().layout()
    }

    fn groups(&self) -> Vec<Vec<Partition>> {
        if self.world.drawn().grouped {
            return (0..self.layout().partitions).map(|p| vec![Partition(p)]).collect();
        }
        self.memory().groups()
    }

    fn hints(&self) -> broadcast::Receiver<Hint> {
        self.hints.subscribe()
    }

    async fn check(&self) -> Result<()> {
        self.call(|| self.memory().check()).await
    }

    async fn load(&self, runs: &[(Partition, RunId)]) -> Result<Vec<Option<Bytes>>> {
        self.call(|| self.memory().load(runs)).await
    }

    async fn payloads(&self, p: Partition, run: &RunId, fields: &[Field]) -> Result<Vec<Option<Bytes>>> {
        self.call(|| self.memory().payloads(p, run, fields)).await
    }

    async fn commit(&self, batch: &Batch) -> Result<Committed> {
        let decided = self.world.audit.lock().decided(batch);
        let fate = self.go().await?;
        if fate.full && !self.world.audit.lock().was_applied(batch) {
            return Err(StoreError::Full("simulated".to_owned()));
        }
        if let Some(later) = fate.delayed {
            self.arrives_later(batch, later, decided);
            return Err(away(true));
        }
        if let Some(later) = fate.duplicate {
            self.arrives_later(batch, later, decided);
        }
        let result = self.world.apply(self.server, batch, decided).await;
        if fate.dies {
            self.world.dies(self.server);
            // Nobody hears of it.
            return std::future::pending().await;
        }
        self.come_back(&fate, result).await
    }

    async fn take(&self, wanted: &[(Partition, QueueName, u32)], claim: Span) -> Result<Vec<Taken>> {
        let taken = self.call(|| self.memory().take(wanted, claim)).await?;
        for t in &taken {
            self.world.note(format_args!("server {} takes {:?}", self.server, t.entry));
        }
        Ok(taken)
    }

    async fn discard(&self, stale: &[(Taken, Option<Prefix>)]) -> Result<()> {
        self.call(|| self.memory().discard(stale)).await
    }

    async fn tick(&self, partitions: &[Partition], max: u32) -> Result<Vec<Ticked>> {
        let mut ticked = self.call(|| self.memory().tick(partitions, max)).await?;
        if self.world.sabotage == Some(Sabotage::NoWakeUps) {
            for t in &mut ticked {
                t.due.clear();
            }
        }
        Ok(ticked)
    }

    async fn put_session(
        &self,
        id: &SessionId,
        record: &SessionRecord,
        expect: Option<u32>,
        lease: Span,
    ) -> Result<bool> {
        self.call(|| self.memory().put_session(id, record, expect, lease)).await
    }

    async fn renew_sessions(&self, sessions: &[(SessionId, u32)], lease: Span) -> Result<Vec<bool>> {
        if self.world.sabotage == Some(Sabotage::NoRenewals) {
            return self.call(|| async { Ok(vec![true; sessions.len()]) }).await;
        }
        self.call(|| self.memory().renew_sessions(sessions, lease)).await
    }

    async fn sessions(&self, ids: &[SessionId]) -> Result<Vec<Option<SessionRecord>>> {
        self.call(|| self.memory().sessions(ids)).await
    }

    async fn remove_session(&self, id: &SessionId, epoch: u32) -> Result<()> {
        self.call(|| self.memory().remove_session(id, epoch)).await
    }

    /// Waits by itself: who of several readers is woken first must not depend on chance.
    async fn read_events(
        &self,
        after: &[(Partition, StreamPosition)],
        max: u32,
        wait: Span,
    ) -> Result<Vec<StreamEntry>> {
        let fate = self.go().await?;
        let deadline = Instant::now() + wait.to_std();
        loop {
            let grown = self.world.grown.notified();
            let read = self.memory().read_events(after, max, Span(0)).await;
            let waits = matches!(&read, Ok(entries) if entries.is_empty()) && wait > Span(0);
            if !waits || tokio::time::timeout_at(deadline, grown).await.is_err() {
                let read = match (self.world.sabotage, read) {
                    (Some(s), Ok(entries)) => Ok(s.skip(entries)),
                    (_, read) => read,
                };
                return self.come_back(&fate, read).await;
            }
        }
    }

    async fn stream_bounds(&self, partitions: &[Partition]) -> Result<Vec<StreamBounds>> {
        self.call(|| self.memory().stream_bounds(partitions)).await
    }

    async fn resumable(&self, at: &[(Partition, StreamPosition)]) -> Result<Vec<bool>> {
        self.call(|| self.memory().resumable(at)).await
    }

    async fn trim_events(&self, p: Partition, through: StreamPosition) -> Result<u64> {
        self.call(|| self.memory().trim_events(p, through)).await
    }

    async fn list(
        &self,
        p: Partition,
        before: Option<(Timestamp, RunId)>,
        max: u32,
    ) -> Result<Vec<(Timestamp, RunId)>> {
        self.call(|| self.memory().list(p, before.clone(), max)).await
    }

    async fn put_workflow(&self, name: &WorkflowName, document: &Bytes) -> Result<(StoredWorkflow, bool)> {
        self.call(|| self.memory().put_workflow(name, document)).await
    }

    async fn workflow(&self, name: &WorkflowName, version: Option<u32>) -> Result<Option<StoredWorkflow>> {
        self.call(|| self.memory().workflow(name, version)).await
    }

    async fn workflows(
        &self,
        before: Option<(Timestamp, WorkflowName)>,
        max: u32,
    ) -> Result<Vec<ListedWorkflow>> {
        self.call(|| self.memory().workflows(before.clone(), max)).await
    }

    async fn remove_workflow(&self, name: &WorkflowName) -> Result<bool> {
        self.call(|| self.memory().remove_workflow(name)).await
    }
}
