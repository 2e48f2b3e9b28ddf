//! Looks for keys and entries that nobody owns. There are none: what a transition changes, it changes in one step. This
//! is how that is shown, and what to run when it is doubted.
//!
//! Everything is read in bounded steps (`SCAN` and its like), on a cluster from every primary, and nothing is changed. Servers may work on the store
//! meanwhile: what seems to be an orphan because it was seen in the middle of a change is looked for again.
//!
//! To add a kind of key: its line in `keys::Kind`, and what it must come with in [`RedisStore::suspects_of`].

use super::link::Value;
use super::moves::page;
use super::servers::At;
use super::{RedisStore, keys, reply};
use crate::model::commit::QueueEntry;
use crate::model::ids::{Partition, Prefix, RunId};
use crate::model::json;
use crate::model::record;
use crate::model::run::TaskPhase;
use crate::model::time::{LeaseTime, Span};
use crate::store::{Moves as _, Result, SESSION_KEPT, SWEEP_EVERY, Store as _, StoreError};
use futures::future::try_join_all;
use keys::Kind;
use redis::Cmd;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::time::Duration;

/// Keys or members asked for by one step.
const STEP: u32 = 500;
/// Times that it is looked again for what was found.
const LOOKS: usize = 3;
/// Between two of them: longer than any transition is under way.
const BETWEEN: Duration = Duration::from_secs(1);
/// Swept is once a minute, by whoever ticks; nobody may have ticked for a while.
const SWEPT: Span = Span(SESSION_KEPT.0 + 3 * SWEEP_EVERY.0);

/// Something that nobody owns.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Orphan {
    /// Its key.
    pub key: String,
    /// Which of its members; empty: the key itself.
    pub member: String,
    /// What is missing.
    pub what: &'static str,
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).replace('\0', " ")
}

impl RedisStore {
    /// Everything that nobody owns, in order of keys; up to `max` and a few more.
    pub async fn orphans(&self, max: usize) -> Result<Vec<Orphan>> {
        let mut found = self.suspects(max).await?;
        for _ in 1..LOOKS {
            if found.is_empty() {
                break;
            }
            tokio::time::sleep(BETWEEN).await;
            let again = self.suspects(usize::MAX).await?;
            found.retain(|orphan| again.contains(orphan));
        }
        Ok(found.into_iter().collect())
    }

    async fn suspects(&self, max: usize) -> Result<BTreeSet<Orphan>> {
        let mut found = BTreeSet::new();
        let (nodes, before) = self.servers.nodes();
        for node in &nodes {
            let mut cursor = Some("0".to_owned());
            while let Some(at) = cursor.filter(|_| found.len() < max) {
                let mut scan = redis::cmd("SCAN");
                scan.arg(at).arg("MATCH").arg(keys::ALL).arg("COUNT").arg(STEP);
                let (next, names) = page(self.servers.command_on(node, &scan).await?)?;
                for some in names.chunks(64) {
                    let mut looked = Vec::with_capacity(some.len());
                    for name in some {
                        looked.push(self.suspects_of(text(&bytes(name.clone())?)));
                    }
                    found.extend(try_join_all(looked).await?.into_iter().flatten());
                }
                cursor = next;
            }
        }
        if self.servers.nodes().1 != before {
            let message = "slots of the cluster have moved while keys were looked for: look again".into();
            return Err(StoreError::Unavailable { message, sent: false });
        }
        found.extend(self.suspects_of_workflows().await?);
        for partition in (0..self.layout.partitions).map(Partition) {
            if found.len() < max {
                found.extend(self.waiting_in_no_queue(partition).await?);
            }
        }
        Ok(found)
    }

    /// Tasks that wait for a worker and stand in no queue, so that none will get them. Takes 24 B of memory and a bit for
    /// each task that waits in the partition.
    async fn waiting_in_no_queue(&self, p: Partition) -> Result<Vec<Orphan>> {
        let mut queued = HashSet::new();
        let mut note = |entry: &[u8]| {
            if let Some(entry) = QueueEntry::decode(entry) {
                queued.insert((digest(&entry.run), entry.generation));
            }
        };
        let types = self.keys.types(p);
        let mut walk = Walk::new("SSCAN", At::Partition(p), &types);
        let mut queues = Vec::new();
        while let Some(page) = walk.next(self).await? {
            queues.extend(
                page.into_iter().map(|(queue, _)| format!("{}{}", self.keys.ready_prefix(p), text(&queue))),
            );
        }
        for queue in &queues {
            let mut walk = Walk::new("ZSCAN", At::Partition(p), queue);
            while let Some(page) = walk.next(self).await? {
                for (entry, _) in page {
                    note(&entry);
                }
            }
        }
        let claimed = self.keys.claimed(p);
        let mut walk = Walk::new("ZSCAN", At::Partition(p), &claimed);
        while let Some(page) = walk.next(self).await? {
            for (claim, _) in page {
                note(claim.splitn(2, |b| *b == 0).nth(1).unwrap_or_default());
            }
        }

        let mut found = Vec::new();
        let mut after = None;
        loop {
            let page = self.oldest(p, after.take(), STEP).await?;
            let Some(last) = page.last() else { return Ok(found) };
            after = Some(last.clone());
            for (_, run) in page {
                for generation in self.generations(p, &run).await?.into_iter().flatten() {
                    // A paused run has taken its tasks out of their queues.
                    if generation > 0 && !queued.contains(&(digest(&run), generation)) {
                        let member = format!("generation {generation}");
                        let what = "a task that waits in no queue";
                        found.push(Orphan { key: self.keys.record(p, &run), member, what });
                    }
                }
            }
        }
    }

    /// What one key lacks, and what is in it without an owner.
    async fn suspects_of(&self, key: String) -> Result<Vec<Orphan>> {
        let whole = |what| vec![Orphan { key: key.clone(), member: String::new(), what }];
        let Some(kind) = Kind::of(self.keys, &key) else { return Ok(whole("this layout has no such key")) };
        if kind.partition().is_some_and(|p| p.0 >= self.layout.partitions) {
            return Ok(whole("the store has no such partition"));
        }
        let what = match kind {
            Kind::Store | Kind::Partition(_) => None,
            Kind::Documents(name) => {
                let there =
                    self.has(At::Workflows, "HEXISTS", keys::WORKFLOW_NEWEST, name.as_str().into()).await?;
                (!there).then_some("documents of no workflow")
            }
            Kind::Record(p, run) => self.lack_of_record(p, &run).await?,
            Kind::Payloads(p, run) => (!self.exists(At::Partition(p), self.keys.record(p, &run)).await?)
                .then_some("payloads without a record"),
            Kind::Lane(p) => {
                let left = self.servers.command(At::Partition(p), redis::cmd("PTTL").arg(&key)).await?;
                (reply::number(&left, "a life")? == -1).then_some("the window of a lane that does not expire")
            }
            Kind::Ready(p, queue) => {
                let mut found = self.entries("ZSCAN", &key, p).await?;
                let queue = queue.to_text().as_bytes().to_vec();
                if !self.has(At::Partition(p), "SISMEMBER", &self.keys.types(p), queue).await?
                    && self.exists(At::Partition(p), key.clone()).await?
                {
                    found.extend(whole("a queue that is not listed among those that are not empty"));
                }
                return Ok(found);
            }
            Kind::Runs(p) => return self.runs(&key, p).await,
            Kind::Types(p) => return self.types(&key, p).await,
            Kind::Claimed(p) => {
                let lost = "a claim without a place";
                let mut found = self
                    .without(At::Partition(p), "ZSCAN", &key, "HEXISTS", &self.keys.places(p), lost)
                    .await?;
                found.extend(self.entries("ZSCAN", &key, p).await?);
                return Ok(found);
            }
            Kind::Places(p) => {
                let lost = "a place without a claim";
                return self
                    .without(At::Partition(p), "HSCAN", &key, "ZSCORE", &self.keys.claimed(p), lost)
                    .await;
            }
            Kind::Sessions(p) => return self.sessions_without_leases(&key, p).await,
            Kind::Leases(p) => return self.leases(&key, p).await,
        };
        Ok(what.map(whole).unwrap_or_default())
    }

    /// What a record lacks so that it is listed, woken and deleted.
    async fn lack_of_record(&self, p: Partition, run: &RunId) -> Result<Option<&'static str>> {
        if Partition::of(run.as_str(), self.layout.partitions) != p {
            return Ok(Some("a record in the partition of others"));
        }
        let name = || run.as_str().as_bytes().to_vec();
        let indexed = self.has(At::Partition(p), "ZSCORE", &self.keys.index(p), name()).await?;
        let woken = self.has(At::Partition(p), "ZSCORE", &self.keys.wake(p), name()).await?;
        let kept = self.has(At::Partition(p), "ZSCORE", &self.keys.retention(p), name()).await?;
        // Deleted meanwhile.
        if !self.exists(At::Partition(p), self.keys.record(p, run)).await? {
            return Ok(None);
        }
        Ok(if !indexed && !run.is_reserved() {
            Some("a run that is in no index")
        } else if !woken && !kept {
            Some("a record that is neither woken nor deleted by anything")
        } else {
            None
        })
    }

    /// Members of an index, of wake-ups or of retention.
    async fn runs(&self, key: &str, p: Partition) -> Result<Vec<Orphan>> {
        let mut found = Vec::new();
        let mut walk = Walk::new("ZSCAN", At::Partition(p), key);
        while let Some(page) = walk.next(self).await? {
            let asked = page.iter().map(|(member, _)| self.has_record(p, member.clone()));
            let there = try_join_all(asked.collect::<Vec<_>>()).await?;
            let lacking = page.iter().zip(there).filter(|(_, there)| !there);
            found.extend(lacking.map(|((member, _), _)| orphan(key, member, "of no record")));
        }
        Ok(found)
    }

    async fn has_record(&self, p: Partition, name: Vec<u8>) -> Result<bool> {
        match std::str::from_utf8(&name).ok().and_then(|name| RunId::new(name).ok()) {
            Some(run) => self.exists(At::Partition(p), self.keys.record(p, &run)).await,
            None => Ok(false),
        }
    }

    async fn types(&self, key: &str, p: Partition) -> Result<Vec<Orphan>> {
        let mut found = Vec::new();
        let mut walk = Walk::new("SSCAN", At::Partition(p), key);
        while let Some(page) = walk.next(self).await? {
            for (member, _) in page {
                if !self
                    .exists(At::Partition(p), format!("{}{}", self.keys.ready_prefix(p), text(&member)))
                    .await?
                {
                    found.push(orphan(key, &member, "an empty queue"));
                }
            }
        }
        Ok(found)
    }

    /// Entries of a queue, or claims, whose run does not wait with them.
    async fn entries(&self, scan: &'static str, key: &str, p: Partition) -> Result<Vec<Orphan>> {
        let claims = key == self.keys.claimed(p);
        let mut found = Vec::new();
        let mut walk = Walk::new(scan, At::Partition(p), key);
        while let Some(page) = walk.next(self).await? {
            let mut waiting = BTreeMap::<RunId, Option<BTreeSet<u32>>>::new();
            for (member, _) in page {
                // A claim is the queue, then the entry.
                let cut = member.iter().position(|b| *b == 0).filter(|_| claims).map_or(0, |at| at + 1);
                let Some(entry) = QueueEntry::decode(&member[cut..]) else {
                    found.push(orphan(key, &member, "an entry that cannot be read"));
                    continue;
                };
                if !waiting.contains_key(&entry.run) {
                    let generations = self.generations(p, &entry.run).await?;
                    waiting.insert(entry.run.clone(), generations);
                }
                let known = waiting.get(&entry.run).and_then(Option::as_ref);
                if known.is_some_and(|generations| !generations.contains(&entry.generation)) {
                    found.push(orphan(key, &member, "an entry that no task waits with"));
                }
            }
        }
        Ok(found)
    }

    /// Generations with which the tasks of a run wait; none if it cannot be read here. They are unique in a run.
    async fn generations(&self, p: Partition, run: &RunId) -> Result<Option<BTreeSet<u32>>> {
        let Some(found) = self.load(&[(p, run.clone())]).await?.pop().flatten() else {
            return Ok(Some(BTreeSet::new()));
        };
        let Ok(head) = record::decode_head(found.get(Prefix::LEN..).unwrap_or_default()) else {
            return Ok(None);
        };
        let values = self.payloads(p, run, &head.fields()).await?;
        let Ok(Some(state)) = head.complete(&values) else { return Ok(None) };
        let mut generations = BTreeSet::new();
        for task in &state.tasks {
            if let TaskPhase::Queued { generation, .. } = task.phase {
                generations.insert(generation);
            }
        }
        Ok(Some(generations))
    }

    async fn sessions_without_leases(&self, key: &str, p: Partition) -> Result<Vec<Orphan>> {
        let mut found = Vec::new();
        let mut walk = Walk::new("HSCAN", At::Partition(p), key);
        while let Some(page) = walk.next(self).await? {
            for (session, value) in page {
                let epoch = value.split(|b| *b == b' ').next().unwrap_or_default();
                if !self
                    .has(
                        At::Partition(p),
                        "ZSCORE",
                        &self.keys.leases(p),
                        [&session[..], b" ", epoch].concat(),
                    )
                    .await?
                {
                    found.push(orphan(key, &session, "a session without a lease"));
                }
            }
        }
        Ok(found)
    }

    async fn leases(&self, key: &str, p: Partition) -> Result<Vec<Orphan>> {
        let now = self.tick(&[p], 0).await?.first().map(|t| t.lease_now).unwrap_or_default();
        let mut found = Vec::new();
        let mut walk = Walk::new("ZSCAN", At::Partition(p), key);
        while let Some(page) = walk.next(self).await? {
            for (lease, deadline) in page {
                let deadline = reply::number(&Value::BulkString(deadline.into()), "a deadline")?;
                let session = lease.split(|b| *b == b' ').next().unwrap_or_default();
                if !self.has(At::Partition(p), "HEXISTS", &self.keys.sessions(p), session.to_vec()).await? {
                    found.push(orphan(key, &lease, "a lease of no session"));
                } else if LeaseTime(deadline).plus(SWEPT) < now {
                    found.push(orphan(key, &lease, "a session that is long gone"));
                }
            }
        }
        Ok(found)
    }

    async fn suspects_of_workflows(&self) -> Result<Vec<Orphan>> {
        const HALF: &str = "a workflow that is only half there";
        let (names, newest) = (keys::WORKFLOW_NAMES, keys::WORKFLOW_NEWEST);
        let mut found = self.without(At::Workflows, "ZSCAN", names, "HEXISTS", newest, HALF).await?;
        found.extend(self.without(At::Workflows, "HSCAN", newest, "ZSCORE", names, HALF).await?);
        Ok(found)
    }

    /// Members of a key that are not in another one.
    async fn without(
        &self,
        at: At,
        scan: &'static str,
        key: &str,
        command: &'static str,
        other: &str,
        what: &'static str,
    ) -> Result<Vec<Orphan>> {
        let mut found = Vec::new();
        let mut walk = Walk::new(scan, at, key);
        while let Some(page) = walk.next(self).await? {
            for (member, _) in page {
                if !self.has(at, command, other, member.clone()).await? {
                    found.push(orphan(key, &member, what));
                }
            }
        }
        Ok(found)
    }

    async fn exists(&self, at: At, key: String) -> Result<bool> {
        let answer = self.servers.command(at, redis::cmd("EXISTS").arg(key)).await?;
        Ok(reply::number(&answer, "EXISTS")? > 0)
    }

    /// Whether a member is in a hash, a set or a sorted set.
    async fn has(&self, at: At, command: &'static str, key: &str, member: Vec<u8>) -> Result<bool> {
        let answer = self.servers.command(at, redis::cmd(command).arg(key).arg(member)).await?;
        Ok(!matches!(answer, Value::Nil | Value::Int(0)))
    }
}

/// Names a run in 16 bytes.
fn digest(run: &RunId) -> u128 {
    u128::from_be_bytes(json::digest(&[run.as_str().as_bytes()]))
}

fn orphan(key: &str, member: &[u8], what: &'static str) -> Orphan {
    Orphan { key: key.to_owned(), member: text(member), what }
}

/// The members of a key, page by page, each with what stands beside it (in a set: nothing).
struct Walk<'k> {
    scan: &'static str,
    at: At,
    key: &'k str,
    cursor: Option<String>,
}

impl<'k> Walk<'k> {
    fn new(scan: &'static str, at: At, key: &'k str) -> Self {
        Self { scan, at, key, cursor: Some("0".into()) }
    }

    async fn next(&mut self, store: &RedisStore) -> Result<Option<Vec<(Vec<u8>, Vec<u8>)>>> {
        let Some(at) = self.cursor.take() else { return Ok(None) };
        let mut step = Cmd::new();
        step.arg(self.scan).arg(self.key).arg(at).arg("COUNT").arg(STEP);
        let (next, items) = store.step(self.at, &step).await?;
        self.cursor = next;
        let mut items = items.into_iter();
        let mut page = Vec::new();
        while let Some(member) = items.next() {
            let beside = if self.scan == "SSCAN" { None } else { items.next() };
            page.push((bytes(member)?, beside.map(bytes).transpose()?.unwrap_or_default()));
        }
        Ok(Some(page))
    }
}

fn bytes(value: Value) -> Result<Vec<u8>> {
    Ok(reply::bytes(value, "a member")?.unwrap_or_default().to_vec())
}
