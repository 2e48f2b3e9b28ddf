//! The port on Redis ≥ 6.2 and Valkey: one script per verb, keys in `keys.rs`.
//!
//! ```text
//! keys.rs     how keys are spelled         scripts.rs  lua/*.lua, one call of one
//! link/       connections, deadlines       reply.rs    replies and errors
//! servers.rs  whom a call goes to          cluster/    slots, nodes, waiting for events
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
mod cluster;
mod events;
mod examine;
mod keys;
mod link;
mod open;
mod readings;
mod reply;
mod scripts;
mod servers;
mod strain;

use crate::model::commit::QueueEntry;
use crate::model::ids::{Nonce, Partition, Prefix, RunId, SessionId, WorkflowName};
use crate::model::labels::QueueName;
use crate::model::payload::Field;
use crate::model::time::{LeaseTime, Span, Timestamp};
use crate::store::{
    Batch, Committed, DUE_AGAIN, Hint, LEASE_STEP, Layout, ListedWorkflow, PARTITIONS, QueueHead,
    RECLAIM_MAX, RETENTION_EVERY, Reading, Result, SESSION_KEPT, STREAM_BOUND, SWEEP_EVERY, SessionRecord,
    Store, StoreError, StoredWorkflow, StreamBounds, StreamEntry, StreamPosition, Taken, Ticked, Verdict,
    check_batch, order_value, session_partition,
};
use async_trait::async_trait;
use bytes::Bytes;
pub use ceiling::{Ceiling, Load};
use cluster::Cluster;
pub use examine::{Examined, examine};
use futures::future::{join_all, try_join_all};
use keys::Keys;
pub use link::{Access, Durability, Limits, LinkReport, Persistence, Policy};
use link::{Place, Value};
use scripts::{Call, Script};
use servers::{At, Servers};
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
    let target = batch::Target { keys: Keys::ALONE, home: HOME, hints: &hints, stream_bound: STREAM_BOUND };
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
    /// Within seconds if it cannot be reached, refuses the password, is too old, a replica or a cluster node, or holds
    /// a layout this version does not know; with durability `replicated` also if it has no replica. No error holds the
    /// address.
    pub async fn open(url: &str, options: Options) -> Result<Arc<Self>> {
        let Options { partitions, stream_bound, access, limits, wait, durability } = options;
        let dialer = link::Dialer::new(url, access)?;
        let hints = broadcast::channel(1_024).0;
        let options = link::Options { limits, wait, durability };
        let (servers, layout) = match dialer.place().clone() {
            Place::Cluster(seeds) => {
                let mut found = cluster::find(dialer, durability, &seeds).await?;
                let usual = (found.primaries() as u16).saturating_mul(cluster::PARTITIONS_PER_PRIMARY);
                let layout = open::layout(found.home()?, partitions, usual).await?;
                let cluster = Cluster::new(found, seeds, options, layout, hints.clone());
                (Servers::Cluster(cluster), layout)
            }
            Place::Node(_) | Place::Sentinels { .. } => {
                let mut prepared = open::prepared(&dialer, durability, false).await?;
                let layout = open::layout(&mut prepared.talk, partitions, PARTITIONS).await?;
                (Servers::One(link::Link::new(dialer, options, prepared, layout, hints.clone())), layout)
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
        let target =
            batch::Target { keys: self.keys, home, hints: &self.channel, stream_bound: self.stream_bound };
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

    /// One call for some partitions.
    async fn tick_some(&self, partitions: &[Partition], max: u32) -> Result<Vec<Ticked>> {
        const WHAT: &str = "a tick";
        let mut call = Call::sized(Script::Tick, 8 * partitions.len(), 10 * partitions.len() + 10, 1_024);
        for p in partitions {
            call.arg(self.keys.clock(*p))
                .arg(self.keys.wake(*p))
                .arg(self.keys.retention(*p))
                .arg(self.keys.claimed(*p));
            call.arg(self.keys.places(*p))
                .arg(self.keys.types(*p))
                .arg(self.keys.leases(*p))
                .arg(self.keys.sessions(*p));
        }
        call.arg(max).arg(LEASE_STEP.0).arg(DUE_AGAIN.0).arg(RECLAIM_MAX).arg(HEADS_MAX);
        call.arg(RETENTION_EVERY.0).arg(SWEEP_EVERY.0).arg(SESSION_KEPT.0).arg(SWEEP_MAX).arg(&self.channel);
        for p in partitions {
            call.arg(p.0).arg(self.keys.ready_prefix(*p));
        }
        let at = At::Partition(partitions.first().copied().unwrap_or(HOME));
        let mut items = reply::array(self.servers.call(at, &call).await?, WHAT)?.into_iter();
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
            call.arg(self.keys.clock(*partition)).arg(self.keys.leases(*partition));
        }
        call.arg(lease.0).arg(SESSION_KEPT.0).arg(LEASE_STEP.0);
        for places in by_partition.values() {
            call.arg(places.len());
            for (id, epoch) in places.iter().filter_map(|at| sessions.get(*at)) {
                call.arg(format!("{id} {epoch}"));
            }
        }
        let at = At::Partition(by_partition.keys().next().copied().unwrap_or(HOME));
        let marks = reply::bytes(self.servers.call(at, &call).await?, WHAT)?.unwrap_or_default();
        let places = by_partition.into_values().flatten();
        for (at, mark) in places.zip(marks) {
            if let Some(renewed) = renewed.get_mut(at) {
                *renewed = mark == b'1';
            }
        }
        Ok(renewed)
    }

    /// One call.
    async fn discard_some(&self, at: At, stale: &[(usize, &(Taken, Option<Prefix>))]) -> Result<()> {
        let mut call = Call::new(Script::Discard, 5 * stale.len());
        for (_, (taken, _)) in stale {
            let partition = taken.partition;
            call.arg(self.keys.record(partition, &taken.entry.run))
                .arg(self.keys.ready(partition, &taken.queue));
            call.arg(self.keys.types(partition)).arg(self.keys.claimed(partition));
            call.arg(self.keys.places(partition));
        }
        call.arg(&self.channel);
        for (_, (taken, judged_by)) in stale {
            call.arg(taken.partition.0).arg(&*taken.queue.to_text()).arg(taken.entry.encode());
            match judged_by {
                Some(prefix) => call.arg(&prefix.0[..]),
                None => call.arg(""),
            };
        }
        self.servers.call(at, &call).await?;
        Ok(())
    }

    /// One call; returns what each place gave.
    async fn take_some(
        &self,
        at: At,
        wanted: &[(usize, &(Partition, QueueName, u32))],
        claim: Span,
    ) -> Result<Vec<Vec<Taken>>> {
        const WHAT: &str = "entries taken";
        let mut call = Call::new(Script::Take, 4 * wanted.len());
        for (_, (partition, queue, _)) in wanted {
            call.arg(self.keys.ready(*partition, queue)).arg(self.keys.types(*partition));
            call.arg(self.keys.claimed(*partition)).arg(self.keys.places(*partition));
        }
        call.arg(order_value(claim.0));
        for (_, (_, queue, max)) in wanted {
            call.arg(&*queue.to_text()).arg(*max);
        }
        let queues = reply::array(self.servers.call(at, &call).await?, WHAT)?;
        let mut taken = vec![Vec::new(); wanted.len()];
        for (((_, (partition, queue, _)), entries), taken) in wanted.iter().zip(queues).zip(&mut taken) {
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
        call.arg(self.keys.clock(partition))
            .arg(self.keys.sessions(partition))
            .arg(self.keys.leases(partition));
        call.arg(LEASE_STEP.0).arg(SESSION_KEPT.0);
        for id in ids {
            call.arg(id.as_str());
        }
        let at = At::Partition(partition);
        let mut items = reply::array(self.servers.call(at, &call).await?, WHAT)?.into_iter();
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
        try_join_all(tried).await?;
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
        if wanted.is_empty() {
            return Ok(Vec::new());
        }
        let calls = self.split(wanted, |(partition, _, _)| *partition)?;
        let taken = try_join_all(calls.iter().map(|(at, some)| self.take_some(*at, some, claim))).await?;
        let mut by_place = vec![Vec::new(); wanted.len()];
        for ((_, some), entries) in calls.iter().zip(taken) {
            for ((place, _), entries) in some.iter().zip(entries) {
                by_place[*place] = entries;
            }
        }
        Ok(by_place.concat())
    }

    async fn discard(&self, stale: &[(Taken, Option<Prefix>)]) -> Result<()> {
        if stale.is_empty() {
            return Ok(());
        }
        let calls = self.split(stale, |(taken, _)| taken.partition)?;
        try_join_all(calls.iter().map(|(at, some)| self.discard_some(*at, some))).await?;
        Ok(())
    }

    async fn tick(&self, partitions: &[Partition], max: u32) -> Result<Vec<Ticked>> {
        for partition in partitions {
            self.holds(*partition)?;
        }
        let at_once = if self.servers.spans() { TICKED_AT_ONCE } else { 1 };
        let calls = partitions.chunks(at_once).map(|some| self.tick_some(some, max));
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
        call.arg(self.keys.clock(partition))
            .arg(self.keys.sessions(partition))
            .arg(self.keys.leases(partition));
        call.arg(id.as_str());
        match expect {
            Some(epoch) => call.arg(epoch),
            None => call.arg(""),
        };
        let details = [&record.owner.0[..], record.label.as_bytes()].concat();
        call.arg(record.epoch).arg(details).arg(lease.0).arg(SESSION_KEPT.0).arg(LEASE_STEP.0);
        Ok(reply::number(&self.servers.call(At::Partition(partition), &call).await?, "a session")? == 1)
    }

    async fn renew_sessions(&self, sessions: &[(SessionId, u32)], lease: Span) -> Result<Vec<bool>> {
        let places: Vec<Vec<usize>> = if self.servers.spans() {
            vec![(0..sessions.len()).collect()]
        } else {
            self.by_partition(sessions.iter().map(|(id, _)| id)).into_values().collect()
        };
        let renewed = places.iter().flat_map(|places| places.chunks(RENEW_MAX)).map(|places| async move {
            let some: Vec<_> = places.iter().map(|place| sessions[*place].clone()).collect();
            Ok::<_, StoreError>((places, self.renew_some(&some, lease).await?))
        });
        let mut marks = vec![false; sessions.len()];
        for (places, some) in try_join_all(renewed).await? {
            for (place, mark) in places.iter().zip(some) {
                marks[*place] = mark;
            }
        }
        Ok(marks)
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
        call.arg(self.keys.sessions(partition)).arg(self.keys.leases(partition)).arg(id.as_str()).arg(epoch);
        self.servers.call(At::Partition(partition), &call).await?;
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
        events::read(&self.servers, after, max, wait).await
    }

    async fn stream_bounds(&self, partitions: &[Partition]) -> Result<Vec<StreamBounds>> {
        for partition in partitions {
            self.holds(*partition)?;
        }
        try_join_all(partitions.iter().map(|p| events::bounds(&self.servers, *p))).await
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
        call.arg(self.keys.index(partition));
        match &before {
            Some((created, run)) => call.arg(order_value(created.0)).arg(run.as_str()),
            None => call.arg("").arg(""),
        };
        call.arg(max);
        let mut items =
            reply::array(self.servers.call(At::Partition(partition), &call).await?, WHAT)?.into_iter();
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
        let items = reply::array(self.servers.call(At::Workflows, &call).await?, WHAT)?;
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
        let items = reply::array(self.servers.call(At::Workflows, &call).await?, WHAT)?;
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
        let mut items = reply::array(self.servers.call(At::Workflows, &call).await?, WHAT)?.into_iter();
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
        Ok(reply::number(&self.servers.call(At::Workflows, &call).await?, "a workflow")? == 1)
    }
}
