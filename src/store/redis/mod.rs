//! The port on Redis ≥ 6.2 and Valkey: one script per verb, keys in `keys.rs`.
//!
//! ```text
//! keys.rs     how keys are spelled         scripts.rs  lua/*.lua, one call of one
//! link/       connections, deadlines       reply.rs    replies and errors
//! open.rs     checks, layout               batch.rs    commit: encoding and reply
//! events.rs   streams                      ceiling.rs  how fast the commit script is alone
//! examine.rs  looking without changing     strain.rs   … and the link
//! ```
//!
//! Invariants
//! - A verb that writes is one script, which checks all types before its first write.
//! - Times and scores are whole numbers within ±(2^53 − 1); scripts print them with `%.0f`.
//! - A verb is sent once. Only a script Redis has forgotten is sent again, since it did not run.
//!
//! To add a verb: a script with its header, a line in `scripts.rs`, a method here, a contract test on every store.

mod batch;
mod ceiling;
mod events;
mod examine;
mod keys;
mod link;
mod open;
mod reply;
mod scripts;
mod strain;

use crate::model::commit::QueueEntry;
use crate::model::ids::{Nonce, Partition, Prefix, RunId, SessionId, WorkflowName};
use crate::model::labels::QueueName;
use crate::model::payload::Field;
use crate::model::time::{LeaseTime, Span, Timestamp};
use crate::store::{
    Batch, Committed, DUE_AGAIN, Hint, LEASE_STEP, Layout, ListedWorkflow, QueueHead, RECLAIM_MAX,
    RETENTION_EVERY, Result, SESSION_KEPT, STREAM_BOUND, SWEEP_EVERY, SessionRecord, Store, StoreError,
    StoredWorkflow, StreamBounds, StreamEntry, StreamPosition, Taken, Ticked, check_batch, order_value,
    session_partition,
};
use async_trait::async_trait;
use bytes::Bytes;
pub use ceiling::{Ceiling, Load};
pub use examine::{Examined, examine};
use futures::future::try_join_all;
use link::Value;
pub use link::{Access, Durability, Limits, LinkReport, Persistence, Policy};
use scripts::{Call, Script};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
pub use strain::Strained;
use tokio::sync::broadcast;

/// The most queues one tick of a partition tells of.
const HEADS_MAX: u32 = 1_000;
/// Partitions ticked by one call: together they stay far below the 50 ms that a script may take.
const TICKED_AT_ONCE: usize = 16;
/// Sessions renewed by one call.
const RENEW_MAX: usize = 1_000;
/// Sessions swept by one call.
const SWEEP_MAX: u32 = 1_000;
/// The partition that keeps the windows of lanes: there is one group, and this is its first.
const HOME: Partition = Partition(0);

/// A batch as it goes to Redis, in bytes of its protocol: for benchmarks, which have no store at hand.
///
/// # Errors
/// The batch is over the limit of one call.
#[doc(hidden)]
pub fn packed(batch: &Batch) -> Result<Vec<u8>> {
    let hints = keys::hints(1);
    let target = batch::Target { home: HOME, hints: &hints, stream_bound: STREAM_BOUND };
    Ok(batch::encode(batch, &target)?.call.cmd.get_packed_command())
}

/// How to open a store.
#[derive(Debug, Clone)]
pub struct Options {
    /// Number of partitions: used when the store is initialised, compared when it was. Default 8.
    pub partitions: Option<u16>,
    /// Entries each partition's event stream keeps, about.
    pub stream_bound: u64,
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
            access: Access::default(),
            limits: link.limits,
            wait: link.wait,
            durability: link.durability,
        }
    }
}

/// A store on one Redis.
#[derive(Debug)]
pub struct RedisStore {
    link: link::Link,
    layout: Layout,
    channel: String,
    stream_bound: u64,
    hints: broadcast::Sender<Hint>,
}

impl RedisStore {
    /// Opens the store at `url`, in any form that docs/guide/redis.md tells, initialising an empty one.
    ///
    /// # Errors
    /// Within seconds if it cannot be reached, refuses the password, is too old, a replica or a cluster node, or holds
    /// a layout this version does not know; with durability `replicated` also if it has no replica. No error holds the
    /// address.
    pub async fn open(url: &str, options: Options) -> Result<Arc<Self>> {
        let Options { partitions, stream_bound, access, limits, wait, durability } = options;
        let dialer = link::Dialer::new(url, access)?;
        let prepared = open::open(&dialer, durability, partitions).await?;
        let layout = prepared.layout;
        let hints = broadcast::channel(1_024).0;
        let options = link::Options { limits, wait, durability };
        Ok(Arc::new(Self {
            link: link::Link::new(dialer, options, prepared, hints.clone()),
            layout,
            channel: keys::hints(layout.epoch),
            stream_bound,
            hints,
        }))
    }

    /// How the link to Redis is doing.
    pub fn link_report(&self) -> LinkReport {
        self.link.report()
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

    /// One call for some partitions.
    async fn tick_some(&self, partitions: &[Partition], max: u32) -> Result<Vec<Ticked>> {
        const WHAT: &str = "a tick";
        let mut call = Call::sized(Script::Tick, 8 * partitions.len(), 10 * partitions.len() + 10, 1_024);
        for p in partitions {
            call.arg(keys::clock(*p)).arg(keys::wake(*p)).arg(keys::retention(*p)).arg(keys::claimed(*p));
            call.arg(keys::places(*p)).arg(keys::types(*p)).arg(keys::leases(*p)).arg(keys::sessions(*p));
        }
        call.arg(max).arg(LEASE_STEP.0).arg(DUE_AGAIN.0).arg(RECLAIM_MAX).arg(HEADS_MAX);
        call.arg(RETENTION_EVERY.0).arg(SWEEP_EVERY.0).arg(SESSION_KEPT.0).arg(SWEEP_MAX).arg(&self.channel);
        for p in partitions {
            call.arg(p.0).arg(keys::ready_prefix(*p));
        }
        let mut items = reply::array(self.link.call(&call).await?, WHAT)?.into_iter();
        let now = items.next().ok_or_else(|| reply::unexpected(WHAT))?;
        let now = Timestamp(reply::number(&now, WHAT)?);
        let ticked: Vec<_> = partitions
            .iter()
            .zip(items)
            .map(|(p, item)| read_ticked(*p, now, item))
            .collect::<Result<_>>()?;
        if ticked.len() == partitions.len() { Ok(ticked) } else { Err(reply::unexpected(WHAT)) }
    }

    /// One call for up to [`RENEW_MAX`] sessions.
    async fn renew_some(&self, sessions: &[(SessionId, u32)], lease: Span) -> Result<Vec<bool>> {
        const WHAT: &str = "sessions renewed";
        let by_partition = self.by_partition(sessions.iter().map(|(id, _)| id));
        let mut renewed = vec![false; sessions.len()];
        if by_partition.is_empty() {
            return Ok(renewed);
        }
        let mut call = Call::sized(
            Script::SessionRenew,
            2 * by_partition.len(),
            sessions.len() + 64,
            48 * sessions.len(),
        );
        for partition in by_partition.keys() {
            call.arg(keys::clock(*partition)).arg(keys::leases(*partition));
        }
        call.arg(lease.0).arg(SESSION_KEPT.0).arg(LEASE_STEP.0);
        for places in by_partition.values() {
            call.arg(places.len());
            for (id, epoch) in places.iter().filter_map(|at| sessions.get(*at)) {
                call.arg(format!("{id} {epoch}"));
            }
        }
        let marks = reply::bytes(self.link.call(&call).await?, WHAT)?.unwrap_or_default();
        let places = by_partition.into_values().flatten();
        for (at, mark) in places.zip(marks) {
            if let Some(renewed) = renewed.get_mut(at) {
                *renewed = mark == b'1';
            }
        }
        Ok(renewed)
    }

    /// Where the sessions of each partition stand in a list; those of none are left out.
    fn by_partition<'s>(&self, ids: impl Iterator<Item = &'s SessionId>) -> BTreeMap<Partition, Vec<usize>> {
        let mut by_partition = BTreeMap::<Partition, Vec<usize>>::new();
        for (at, id) in ids.enumerate() {
            if let Some(partition) = session_partition(id, self.layout) {
                by_partition.entry(partition).or_default().push(at);
            }
        }
        by_partition
    }

    async fn sessions_of(
        &self,
        partition: Partition,
        ids: &[&SessionId],
    ) -> Result<Vec<Option<SessionRecord>>> {
        const WHAT: &str = "sessions";
        let mut call = Call::new(Script::SessionRead, 3);
        call.arg(keys::clock(partition)).arg(keys::sessions(partition)).arg(keys::leases(partition));
        call.arg(LEASE_STEP.0).arg(SESSION_KEPT.0);
        for id in ids {
            call.arg(id.as_str());
        }
        let mut items = reply::array(self.link.call(&call).await?, WHAT)?.into_iter();
        let lease_now = items.next().ok_or_else(|| reply::unexpected(WHAT))?;
        let lease_now = LeaseTime(reply::number(&lease_now, WHAT)?);
        items.map(|fields| read_session(fields, lease_now)).collect()
    }
}

/// `{ type, score, depth, … }`
fn read_heads(partition: Partition, items: Vec<Value>) -> Result<Vec<QueueHead>> {
    const WHAT: &str = "queue heads";
    let mut heads = Vec::with_capacity(items.len() / 3);
    let mut items = items.into_iter();
    while let Some(queue) = items.next() {
        let (Some(score), Some(depth)) = (items.next(), items.next()) else {
            return Err(reply::unexpected(WHAT));
        };
        heads.push(QueueHead {
            partition,
            queue: reply::parsed(queue, WHAT)?,
            score: Some(reply::number(&score, WHAT)?),
            depth: reply::number(&depth, WHAT)?.max(0).unsigned_abs(),
        });
    }
    Ok(heads)
}

/// `{ lease clock, claims returned, next wake-up, { due run, … }, { expired run, … }, heads }`
fn read_ticked(partition: Partition, now: Timestamp, item: Value) -> Result<Ticked> {
    const WHAT: &str = "a tick";
    let [lease_now, reclaimed, next, due, expired, heads] =
        <[Value; 6]>::try_from(reply::array(item, WHAT)?).map_err(|_| reply::unexpected(WHAT))?;
    let runs = |value| -> Result<Vec<RunId>> {
        reply::array(value, WHAT)?.into_iter().map(|run| reply::parsed(run, WHAT)).collect()
    };
    let none = matches!(&next, Value::BulkString(text) if text.is_empty());
    let mut heads = read_heads(partition, reply::array(heads, WHAT)?)?;
    heads.sort_by(|a, b| a.queue.cmp(&b.queue));
    Ok(Ticked {
        now,
        lease_now: LeaseTime(reply::number(&lease_now, WHAT)?),
        due: runs(due)?,
        expired: runs(expired)?,
        next: if none { None } else { Some(Timestamp(reply::number(&next, WHAT)?)) },
        heads,
        reclaimed: reply::number(&reclaimed, WHAT)? as u32,
    })
}

/// `{ value, deadline }`, empty if there is no session; the value is `"EPOCH " ‖ owner 16 B ‖ label`.
fn read_session(fields: Value, lease_now: LeaseTime) -> Result<Option<SessionRecord>> {
    const WHAT: &str = "a session";
    let fields = reply::array(fields, WHAT)?;
    if fields.is_empty() {
        return Ok(None);
    }
    let [value, deadline] = <[Value; 2]>::try_from(fields).map_err(|_| reply::unexpected(WHAT))?;
    let value = reply::bytes(value, WHAT)?.unwrap_or_default();
    let read = || {
        let cut = value.iter().position(|b| *b == b' ')?;
        let (epoch, rest) = (value.get(..cut)?, value.get(cut + 1..)?);
        let (owner, label) = rest.split_first_chunk::<16>()?;
        let epoch = std::str::from_utf8(epoch).ok()?.parse().ok()?;
        Some((epoch, Nonce(*owner), String::from_utf8(label.to_vec()).ok()?))
    };
    let (epoch, owner, label) = read().ok_or_else(|| reply::unexpected(WHAT))?;
    let deadline = LeaseTime(reply::number(&deadline, WHAT)?);
    Ok(Some(SessionRecord { epoch, label, owner, deadline, lease_now }))
}

fn read_texts(value: Value, what: &str) -> Result<Vec<Option<Bytes>>> {
    reply::array(value, what)?.into_iter().map(|item| reply::bytes(item, what)).collect()
}

#[async_trait]
impl Store for RedisStore {
    fn layout(&self) -> Layout {
        self.layout
    }

    fn hints(&self) -> broadcast::Receiver<Hint> {
        self.hints.subscribe()
    }

    async fn check(&self) -> Result<()> {
        // A small write finds a full, read-only or loading Redis, and one that lost its replicas or its disk.
        self.link.command(redis::cmd("SET").arg(keys::PROBE).arg(1).arg("EX").arg(60)).await?;
        Ok(())
    }

    async fn load(&self, runs: &[(Partition, RunId)]) -> Result<Vec<Option<Bytes>>> {
        if runs.is_empty() {
            return Ok(Vec::new());
        }
        let mut cmd = redis::cmd("MGET");
        for (partition, run) in runs {
            self.holds(*partition)?;
            cmd.arg(keys::record(*partition, run));
        }
        read_texts(self.link.command(&cmd).await?, "records")
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
        cmd.arg(keys::payloads(partition, run));
        for field in fields {
            cmd.arg(&field.0[..]);
        }
        read_texts(self.link.command(&cmd).await?, "payloads")
    }

    async fn commit(&self, batch: &Batch) -> Result<Committed> {
        if batch.writes.is_empty() {
            return Ok(Committed { verdicts: Vec::new(), heads: Vec::new() });
        }
        check_batch(batch, self.layout)?;
        let target = batch::Target { home: HOME, hints: &self.channel, stream_bound: self.stream_bound };
        let encoded = batch::encode(batch, &target)?;
        let reply = self.link.commit(&encoded.call).await?;
        encoded.decode(reply)
    }

    async fn take(&self, wanted: &[(Partition, QueueName, u32)], claim: Span) -> Result<Vec<Taken>> {
        const WHAT: &str = "entries taken";
        if wanted.is_empty() {
            return Ok(Vec::new());
        }
        let mut call = Call::new(Script::Take, 4 * wanted.len());
        for (partition, queue, _) in wanted {
            self.holds(*partition)?;
            call.arg(keys::ready(*partition, queue)).arg(keys::types(*partition));
            call.arg(keys::claimed(*partition)).arg(keys::places(*partition));
        }
        call.arg(order_value(claim.0));
        for (_, queue, max) in wanted {
            call.arg(&*queue.to_text()).arg(*max);
        }
        let queues = reply::array(self.link.call(&call).await?, WHAT)?;
        let mut taken = Vec::new();
        for ((partition, queue, _), entries) in wanted.iter().zip(queues) {
            let mut entries = reply::array(entries, WHAT)?.into_iter();
            while let (Some(entry), Some(score)) = (entries.next(), entries.next()) {
                let entry = reply::bytes(entry, WHAT)?.unwrap_or_default();
                taken.push(Taken {
                    partition: *partition,
                    queue: queue.clone(),
                    entry: QueueEntry::decode(&entry).ok_or_else(|| reply::unexpected(WHAT))?,
                    score: reply::number(&score, WHAT)?,
                });
            }
        }
        Ok(taken)
    }

    async fn discard(&self, stale: &[(Taken, Option<Prefix>)]) -> Result<()> {
        if stale.is_empty() {
            return Ok(());
        }
        let mut call = Call::new(Script::Discard, 5 * stale.len());
        for (taken, _) in stale {
            let partition = taken.partition;
            self.holds(partition)?;
            call.arg(keys::record(partition, &taken.entry.run)).arg(keys::ready(partition, &taken.queue));
            call.arg(keys::types(partition)).arg(keys::claimed(partition)).arg(keys::places(partition));
        }
        call.arg(&self.channel);
        for (taken, judged_by) in stale {
            call.arg(taken.partition.0).arg(&*taken.queue.to_text()).arg(taken.entry.encode());
            match judged_by {
                Some(prefix) => call.arg(&prefix.0[..]),
                None => call.arg(""),
            };
        }
        self.link.call(&call).await?;
        Ok(())
    }

    async fn tick(&self, partitions: &[Partition], max: u32) -> Result<Vec<Ticked>> {
        for partition in partitions {
            self.holds(*partition)?;
        }
        let calls = partitions.chunks(TICKED_AT_ONCE).map(|some| self.tick_some(some, max));
        Ok(try_join_all(calls).await?.concat())
    }

    async fn put_session(
        &self,
        id: &SessionId,
        record: &SessionRecord,
        expect: Option<u32>,
        lease: Span,
    ) -> Result<bool> {
        let Some(partition) = session_partition(id, self.layout) else { return Ok(false) };
        let mut call = Call::new(Script::SessionPut, 3);
        call.arg(keys::clock(partition)).arg(keys::sessions(partition)).arg(keys::leases(partition));
        call.arg(id.as_str());
        match expect {
            Some(epoch) => call.arg(epoch),
            None => call.arg(""),
        };
        let details = [&record.owner.0[..], record.label.as_bytes()].concat();
        call.arg(record.epoch).arg(details).arg(lease.0).arg(SESSION_KEPT.0).arg(LEASE_STEP.0);
        Ok(reply::number(&self.link.call(&call).await?, "a session")? == 1)
    }

    async fn renew_sessions(&self, sessions: &[(SessionId, u32)], lease: Span) -> Result<Vec<bool>> {
        let calls = sessions.chunks(RENEW_MAX).map(|some| self.renew_some(some, lease));
        Ok(try_join_all(calls).await?.concat())
    }

    async fn sessions(&self, ids: &[SessionId]) -> Result<Vec<Option<SessionRecord>>> {
        let by_partition = self.by_partition(ids.iter());
        let read = by_partition.iter().map(|(partition, places)| async move {
            let wanted: Vec<_> = places.iter().map(|at| &ids[*at]).collect();
            self.sessions_of(*partition, &wanted).await
        });
        let read = try_join_all(read).await?;
        let mut found = vec![None; ids.len()];
        for (places, sessions) in by_partition.values().zip(read) {
            for (at, session) in places.iter().zip(sessions) {
                found[*at] = session;
            }
        }
        Ok(found)
    }

    async fn remove_session(&self, id: &SessionId, epoch: u32) -> Result<()> {
        let Some(partition) = session_partition(id, self.layout) else { return Ok(()) };
        let mut call = Call::new(Script::SessionRemove, 2);
        call.arg(keys::sessions(partition)).arg(keys::leases(partition)).arg(id.as_str()).arg(epoch);
        self.link.call(&call).await?;
        Ok(())
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
        events::read(&self.link, after, max, wait).await
    }

    async fn stream_bounds(&self, partitions: &[Partition]) -> Result<Vec<StreamBounds>> {
        for partition in partitions {
            self.holds(*partition)?;
        }
        try_join_all(partitions.iter().map(|p| events::bounds(&self.link, *p))).await
    }

    async fn list(
        &self,
        partition: Partition,
        before: Option<(Timestamp, RunId)>,
        max: u32,
    ) -> Result<Vec<(Timestamp, RunId)>> {
        const WHAT: &str = "a list of runs";
        self.holds(partition)?;
        let mut call = Call::new(Script::List, 1);
        call.arg(keys::index(partition));
        match &before {
            Some((created, run)) => call.arg(order_value(created.0)).arg(run.as_str()),
            None => call.arg("").arg(""),
        };
        call.arg(max);
        let mut items = reply::array(self.link.call(&call).await?, WHAT)?.into_iter();
        let mut runs = Vec::with_capacity(items.len() / 2);
        while let (Some(run), Some(created)) = (items.next(), items.next()) {
            runs.push((Timestamp(reply::number(&created, WHAT)?), reply::parsed(run, WHAT)?));
        }
        Ok(runs)
    }

    async fn put_workflow(&self, name: &WorkflowName, document: &Bytes) -> Result<(StoredWorkflow, bool)> {
        const WHAT: &str = "a workflow";
        let mut call = Call::sized(Script::WorkflowPut, 3, 5, document.len() + 512);
        call.arg(keys::WORKFLOW_NAMES).arg(keys::WORKFLOW_NEWEST).arg(keys::documents(name));
        call.arg(name.as_str()).arg(&document[..]);
        let items = reply::array(self.link.call(&call).await?, WHAT)?;
        let [version, created, made] = <[Value; 3]>::try_from(items).map_err(|_| reply::unexpected(WHAT))?;
        let stored = StoredWorkflow {
            name: name.clone(),
            version: reply::parsed(version, WHAT)?,
            document: document.clone(),
            created_at: Timestamp(reply::number(&created, WHAT)?),
        };
        Ok((stored, reply::number(&made, WHAT)? == 1))
    }

    async fn workflow(&self, name: &WorkflowName, version: Option<u32>) -> Result<Option<StoredWorkflow>> {
        const WHAT: &str = "a workflow";
        let mut call = Call::new(Script::WorkflowRead, 2);
        call.arg(keys::WORKFLOW_NEWEST).arg(keys::documents(name)).arg(name.as_str());
        match version {
            Some(version) => call.arg(version),
            None => call.arg(""),
        };
        let items = reply::array(self.link.call(&call).await?, WHAT)?;
        if items.is_empty() {
            return Ok(None);
        }
        let [version, created, document] =
            <[Value; 3]>::try_from(items).map_err(|_| reply::unexpected(WHAT))?;
        Ok(Some(StoredWorkflow {
            name: name.clone(),
            version: reply::parsed(version, WHAT)?,
            document: reply::bytes(document, WHAT)?.ok_or_else(|| reply::unexpected(WHAT))?,
            created_at: Timestamp(reply::number(&created, WHAT)?),
        }))
    }

    async fn workflows(
        &self,
        before: Option<(Timestamp, WorkflowName)>,
        max: u32,
    ) -> Result<Vec<ListedWorkflow>> {
        const WHAT: &str = "a list of workflows";
        let mut call = Call::new(Script::List, 2);
        call.arg(keys::WORKFLOW_NAMES).arg(keys::WORKFLOW_NEWEST);
        match &before {
            Some((created, name)) => call.arg(order_value(created.0)).arg(name.as_str()),
            None => call.arg("").arg(""),
        };
        call.arg(max);
        let mut items = reply::array(self.link.call(&call).await?, WHAT)?.into_iter();
        let mut found = Vec::with_capacity(items.len() / 3);
        while let (Some(name), Some(created), Some(version)) = (items.next(), items.next(), items.next()) {
            found.push(ListedWorkflow {
                name: reply::parsed(name, WHAT)?,
                version: reply::parsed(version, WHAT)?,
                created_at: Timestamp(reply::number(&created, WHAT)?),
            });
        }
        Ok(found)
    }

    async fn remove_workflow(&self, name: &WorkflowName) -> Result<bool> {
        let mut call = Call::new(Script::WorkflowRemove, 3);
        call.arg(keys::WORKFLOW_NAMES)
            .arg(keys::WORKFLOW_NEWEST)
            .arg(keys::documents(name))
            .arg(name.as_str());
        Ok(reply::number(&self.link.call(&call).await?, "a workflow")? == 1)
    }
}
