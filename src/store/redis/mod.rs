//! The port on Redis ≥ 6.2 and Valkey: one script per verb, keys in `keys.rs`.
//!
//! ```text
//! keys.rs     how keys are spelled         scripts.rs  lua/*.lua, one call of one
//! link/       connections, deadlines       reply.rs    replies and errors
//! servers.rs  whom a call goes to          cluster/    slots, nodes, waiting for events
//! open.rs     checks, layout               batch.rs    commit: encoding and reply
//! queues.rs   ready queues                 ticks.rs    clocks, what is due
//! sessions.rs workers' sessions            lists.rs    runs by time, workflows
//! events.rs   streams                      moves.rs    backup and restore
//! examine.rs  looking without changing     orphans.rs  what nobody owns
//! ceiling.rs  how fast the commit script   strain.rs   … and the link is alone
//! readings.rs what links tell for /metrics
//! ```
//!
//! Invariants
//! - A verb that writes is one script, which checks all types before its first write.
//! - Times and scores are whole numbers within ±(2^53 − 1); scripts print them with `%.0f`.
//! - A verb is sent once. Only a script Redis has forgotten is sent again, since it did not run.
//!
//! To add a verb: a script with its header, a line in `scripts.rs`, a method here or in the file of its
//! subject, a contract test on every store.

mod batch;
mod ceiling;
mod cluster;
mod events;
mod examine;
mod keys;
mod link;
mod lists;
mod moves;
mod open;
mod orphans;
mod queues;
mod readings;
mod reply;
mod scripts;
mod servers;
mod sessions;
mod strain;
mod ticks;

use crate::model::ids::{Partition, Prefix, RunId, SessionId, WorkflowName};
use crate::model::labels::QueueName;
use crate::model::payload::Field;
use crate::model::time::{Span, Timestamp};
use crate::store::{
    Batch, Committed, Hint, Layout, ListedWorkflow, PARTITIONS, Purpose, Reading, Result, STREAM_BOUND,
    SessionRecord, Store, StoreError, StoredWorkflow, StreamBounds, StreamEntry, StreamPosition, Taken,
    Ticked, Verdict, check_batch,
};
use async_trait::async_trait;
use bytes::Bytes;
pub use ceiling::{Ceiling, Load};
use cluster::Cluster;
pub use examine::{Examined, examine};
use futures::future::{join_all, select_ok, try_join_all};
use keys::Keys;
pub use link::{Access, Durability, Limits, LinkReport, Persistence, Policy};
use link::{Place, Value};
pub use orphans::Orphan;
use servers::{At, Servers};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
pub use strain::Strained;
use tokio::sync::broadcast;

/// The partition that keeps the windows of lanes: there is one group, and this is its first.
const HOME: Partition = Partition(0);

/// A batch as it goes to Redis, in bytes of its protocol: for benchmarks, which have no store at hand.
///
/// # Errors
/// The batch is over the limit of one call.
#[doc(hidden)]
pub fn packed(batch: &Batch) -> Result<Vec<u8>> {
    let hints = keys::hints(1);
    let (keys, stream_bound) = (Keys::ALONE, STREAM_BOUND);
    let target = batch::Target { keys, home: HOME, hints: &hints, stream_bound, spans: true };
    Ok(batch::encode(batch, &target)?.call.cmd.get_packed_command())
}

/// How to open a store.
#[derive(Debug, Clone)]
pub struct Options {
    /// Number of partitions: used when the store is initialised, compared when it was. Default 8.
    pub partitions: Option<u16>,
    /// Entries each partition's event stream keeps, about.
    pub stream_bound: u64,
    /// What for.
    pub purpose: Purpose,
    /// Passwords and certificates, as far as they do not stand in the address.
    pub access: Access,
    /// How many commands may wait, and what becomes of them while there is no connection.
    pub limits: Limits,
    /// How long a command waits for a connection; less than its deadline of 5 s.
    pub wait: Duration,
    /// What a commit has reached when it is answered.
    pub durability: Durability,
}

impl Default for Options {
    fn default() -> Self {
        let link = link::Options::default();
        Self {
            partitions: None,
            stream_bound: STREAM_BOUND,
            purpose: Purpose::default(),
            access: Access::default(),
            limits: link.limits,
            wait: link.wait,
            durability: link.durability,
        }
    }
}

/// Items of a call, each with its place among all that were asked for.
type Placed<'i, T> = Vec<(usize, &'i T)>;

/// A store on one Redis, or on a Redis Cluster.
#[derive(Debug)]
pub struct RedisStore {
    servers: Servers,
    keys: Keys,
    durability: Durability,
    layout: Layout,
    channel: String,
    stream_bound: u64,
    hints: broadcast::Sender<Hint>,
}

impl RedisStore {
    /// Opens the store at `url`, in any form that docs/guide/redis.md tells, initialising an empty one.
    ///
    /// # Errors
    /// Within seconds: it is not to be had now ([`StoreError::passes`]: away, loading, failing over, not whole, with
    /// durability `replicated` without a replica), or not at all (refuses the password, is too old, a node of a cluster,
    /// holds a layout this version does not know). No error holds the address.
    pub async fn open(url: &str, options: Options) -> Result<Arc<Self>> {
        let Options { partitions, stream_bound, purpose, access, limits, wait, durability } = options;
        let dialer = link::Dialer::new(url, access)?;
        let hints = broadcast::channel(1_024).0;
        let options = link::Options { limits, wait, durability };
        let (servers, layout) = match dialer.place().clone() {
            Place::Cluster(seeds) => {
                let mut found = cluster::find(dialer, durability, &seeds).await?;
                let usual = (found.primaries() as u16).saturating_mul(cluster::PARTITIONS_PER_PRIMARY);
                let clock = Keys::CLUSTER.clock(HOME);
                let ticked = open::exists(found.home_of(&clock)?, &clock).await?;
                let wanted = open::Wanted { partitions, usual, purpose, ticked };
                let layout = open::layout(found.home_of(keys::META)?, wanted).await?;
                let cluster = Cluster::new(found, seeds, options, layout, hints.clone());
                (Servers::Cluster(cluster), layout)
            }
            Place::Node(_) | Place::Sentinels { .. } => {
                let mut prepared = link::prepare(&dialer, durability, false).await?;
                let ticked = open::exists(&mut prepared.talk, &Keys::ALONE.clock(HOME)).await?;
                let wanted = open::Wanted { partitions, usual: PARTITIONS, purpose, ticked };
                let layout = open::layout(&mut prepared.talk, wanted).await?;
                let confirming = match durability {
                    Durability::Local => None,
                    Durability::Replicated => Some(link::prepare(&dialer, durability, false).await?),
                };
                let link = link::Link::new(dialer, options, prepared, confirming, layout, hints.clone());
                (Servers::One(link), layout)
            }
        };
        Ok(Arc::new(Self {
            keys: servers.keys(),
            servers,
            durability,
            layout,
            channel: keys::hints(layout.epoch),
            stream_bound,
            hints,
        }))
    }

    /// The layout version of the store at `url`, whatever it is; none if there is no store. Nothing is changed.
    ///
    /// # Errors
    /// If it cannot be reached, or what stands there is no number.
    pub async fn layout_of(url: &str, access: Access) -> Result<Option<u32>> {
        let dialer = link::Dialer::new(url, access)?;
        let mut talk = match dialer.place() {
            Place::Cluster(seeds) => cluster::connect(&dialer, seeds, keys::META).await?,
            Place::Node(_) | Place::Sentinels { .. } => dialer.connect().await?,
        };
        open::version(&mut talk).await
    }

    /// How the link to Redis is doing; on a cluster, all of them together.
    pub fn link_report(&self) -> LinkReport {
        LinkReport::sum(self.servers.reports().into_iter().map(|(_, report)| report))
    }

    /// How each link to Redis is doing: one, without a name, or one for each primary of a cluster.
    pub fn link_reports(&self) -> Vec<(String, LinkReport)> {
        self.servers.reports()
    }

    /// Items of a call by whom it goes to: together on one Redis, by partition on a cluster. Each with its place.
    fn split<'i, T>(
        &self,
        items: &'i [T],
        partition: impl Fn(&T) -> Partition,
    ) -> Result<Vec<(At, Placed<'i, T>)>> {
        let mut calls = BTreeMap::<Partition, Vec<(usize, &T)>>::new();
        for (place, item) in items.iter().enumerate() {
            let partition = partition(item);
            self.holds(partition)?;
            calls.entry(if self.servers.spans() { HOME } else { partition }).or_default().push((place, item));
        }
        Ok(calls.into_iter().map(|(partition, items)| (At::Partition(partition), items)).collect())
    }

    /// Commits what is of one home.
    async fn commit_at(&self, home: Partition, batch: &Batch) -> Result<Committed> {
        let (keys, stream_bound, spans) = (self.keys, self.stream_bound, self.servers.spans());
        let target = batch::Target { keys, home, hints: &self.channel, stream_bound, spans };
        let encoded = batch::encode(batch, &target)?;
        let reply = self.servers.commit(home, &encoded.call, self.durability).await?;
        encoded.decode(reply)
    }

    fn holds(&self, partition: Partition) -> Result<()> {
        if partition.0 < self.layout.partitions {
            return Ok(());
        }
        Err(StoreError::Unavailable {
            message: format!("partition {} of {} was asked for", partition.0, self.layout.partitions),
            sent: false,
        })
    }
}

fn read_texts(value: Value, what: &str) -> Result<Vec<Option<Bytes>>> {
    reply::array(value, what)?.into_iter().map(|item| reply::bytes(item, what)).collect()
}

#[async_trait]
impl Store for RedisStore {
    fn layout(&self) -> Layout {
        self.layout
    }

    fn groups(&self) -> Vec<Vec<Partition>> {
        let all = (0..self.layout.partitions).map(Partition);
        if self.servers.spans() { vec![all.collect()] } else { all.map(|p| vec![p]).collect() }
    }

    fn hints(&self) -> broadcast::Receiver<Hint> {
        self.hints.subscribe()
    }

    fn report(&self) -> Vec<Reading> {
        readings::of(&self.link_report())
    }

    async fn check(&self) -> Result<()> {
        // A small write finds a full, read-only or loading Redis, and one that lost its replicas or its disk.
        let each = match &self.servers {
            Servers::One(_) => vec![HOME],
            Servers::Cluster(cluster) => cluster.one_of_each(self.layout.partitions),
        };
        let tried = each.into_iter().map(|partition| async move {
            let mut set = redis::cmd("SET");
            set.arg(self.keys.probe(partition)).arg(1).arg("EX").arg(60);
            self.servers.command(At::Partition(partition), &set).await
        });
        select_ok(tried.map(Box::pin)).await?;
        Ok(())
    }

    async fn load(&self, runs: &[(Partition, RunId)]) -> Result<Vec<Option<Bytes>>> {
        if runs.is_empty() {
            return Ok(Vec::new());
        }
        let calls = self.split(runs, |(partition, _)| *partition)?;
        let read = calls.iter().map(|(at, some)| async move {
            let mut cmd = redis::cmd("MGET");
            for (_, (partition, run)) in some {
                cmd.arg(self.keys.record(*partition, run));
            }
            read_texts(self.servers.command(*at, &cmd).await?, "records")
        });
        let read = try_join_all(read).await?;
        let mut records = vec![None; runs.len()];
        for ((_, some), found) in calls.iter().zip(read) {
            for ((place, _), record) in some.iter().zip(found) {
                records[*place] = record;
            }
        }
        Ok(records)
    }

    async fn settled(&self, partition: Partition, run: &RunId, prefix: &Prefix) -> Result<bool> {
        if self.durability == Durability::Local {
            return Ok(true);
        }
        self.holds(partition)?;
        let mut now = redis::cmd("GETRANGE");
        now.arg(self.servers.keys().record(partition, run)).arg(0).arg(Prefix::LEN - 1);
        let now = reply::bytes(self.servers.confirmed(partition, &now).await?, "a record")?;
        Ok(now.and_then(|now| Prefix::of(&now)).as_ref() == Some(prefix))
    }

    async fn payloads(
        &self,
        partition: Partition,
        run: &RunId,
        fields: &[Field],
    ) -> Result<Vec<Option<Bytes>>> {
        self.holds(partition)?;
        if fields.is_empty() {
            return Ok(Vec::new());
        }
        let mut cmd = redis::cmd("HMGET");
        cmd.arg(self.keys.payloads(partition, run));
        for field in fields {
            cmd.arg(&field.0[..]);
        }
        read_texts(self.servers.command(At::Partition(partition), &cmd).await?, "payloads")
    }

    async fn commit(&self, batch: &Batch) -> Result<Committed> {
        if batch.writes.is_empty() {
            return Ok(Committed { verdicts: Vec::new(), heads: Vec::new() });
        }
        check_batch(batch, self.layout)?;
        let calls = self.split(&batch.writes, |(partition, _)| *partition)?;
        if let [(At::Partition(home), _)] = calls[..] {
            return self.commit_at(home, batch).await;
        }
        // Each part has a window of its own for the same sequence, so the whole can be sent again as it is.
        let parts = calls.iter().map(|(at, some)| async move {
            let writes = some.iter().map(|(_, write)| (*write).clone()).collect();
            let part = Batch { writes, ..*batch };
            self.commit_at(at.partition(), &part).await
        });
        let parts = join_all(parts).await.into_iter().collect::<Result<Vec<_>>>().map_err(|e| match e {
            // Another part may have been taken.
            StoreError::Unavailable { message, .. } => StoreError::Unavailable { message, sent: true },
            other => other,
        })?;
        let mut committed =
            Committed { verdicts: vec![Verdict::Conflict; batch.writes.len()], heads: Vec::new() };
        for ((_, some), part) in calls.iter().zip(parts) {
            for ((place, _), verdict) in some.iter().zip(part.verdicts) {
                committed.verdicts[*place] = verdict;
            }
            committed.heads.extend(part.heads);
        }
        Ok(committed)
    }

    async fn take(&self, wanted: &[(Partition, QueueName, u32)], claim: Span) -> Result<Vec<Taken>> {
        self.take_entries(wanted, claim).await
    }

    async fn discard(&self, stale: &[(Taken, Option<Prefix>)]) -> Result<()> {
        self.discard_entries(stale).await
    }

    async fn tick(&self, partitions: &[Partition], max: u32) -> Result<Vec<Ticked>> {
        self.tick_all(partitions, max).await
    }

    async fn put_session(
        &self,
        id: &SessionId,
        record: &SessionRecord,
        expect: Option<u32>,
        lease: Span,
    ) -> Result<bool> {
        self.session_put(id, record, expect, lease).await
    }

    async fn renew_sessions(&self, sessions: &[(SessionId, u32)], lease: Span) -> Result<Vec<bool>> {
        self.session_renew(sessions, lease).await
    }

    async fn sessions(&self, ids: &[SessionId]) -> Result<Vec<Option<SessionRecord>>> {
        self.session_read(ids).await
    }

    async fn remove_session(&self, id: &SessionId, epoch: u32) -> Result<()> {
        self.session_remove(id, epoch).await
    }

    async fn read_events(
        &self,
        after: &[(Partition, StreamPosition)],
        max: u32,
        wait: Span,
    ) -> Result<Vec<StreamEntry>> {
        for (partition, _) in after {
            self.holds(*partition)?;
        }
        let entries = events::read(&self.servers, after, max, wait).await?;
        if self.durability == Durability::Replicated && !entries.is_empty() {
            events::confirm(&self.servers, &entries).await?;
        }
        Ok(entries)
    }

    async fn stream_bounds(&self, partitions: &[Partition]) -> Result<Vec<StreamBounds>> {
        for partition in partitions {
            self.holds(*partition)?;
        }
        try_join_all(partitions.iter().map(|p| events::bounds(&self.servers, *p))).await
    }

    async fn resumable(&self, at: &[(Partition, StreamPosition)]) -> Result<Vec<bool>> {
        for (partition, _) in at {
            self.holds(*partition)?;
        }
        events::resumable(&self.servers, at).await
    }

    async fn trim_events(&self, partition: Partition, through: StreamPosition) -> Result<u64> {
        self.holds(partition)?;
        events::trim(&self.servers, partition, through).await
    }

    async fn list(
        &self,
        partition: Partition,
        before: Option<(Timestamp, RunId)>,
        max: u32,
    ) -> Result<Vec<(Timestamp, RunId)>> {
        self.list_runs(partition, before, max, lists::First::Newest).await
    }

    async fn put_workflow(&self, name: &WorkflowName, document: &Bytes) -> Result<(StoredWorkflow, bool)> {
        self.workflow_put(name, document).await
    }

    async fn workflow(&self, name: &WorkflowName, version: Option<u32>) -> Result<Option<StoredWorkflow>> {
        self.workflow_read(name, version).await
    }

    async fn workflows(
        &self,
        before: Option<(Timestamp, WorkflowName)>,
        max: u32,
    ) -> Result<Vec<ListedWorkflow>> {
        self.workflow_list(before, max).await
    }

    async fn remove_workflow(&self, name: &WorkflowName) -> Result<bool> {
        self.workflow_remove(name).await
    }
}
