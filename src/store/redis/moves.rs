//! Reading all of a Redis in order, and giving it all.

use super::link::Value;
use super::lists::First;
use super::scripts::{Call, Script};
use super::servers::At;
use super::{RedisStore, keys, reply};
use crate::model::ids::{Partition, RunId};
use crate::model::payload::Field;
use crate::model::time::{LeaseTime, Timestamp};
use crate::store::moves::{FileId, Moves, RESTORING};
use crate::store::{Result, StoreError, StoredWorkflow, order_value};
use async_trait::async_trait;
use futures::future::try_join_all;
use redis::Cmd;
use std::collections::BTreeSet;

/// Members asked for by one step of a scan.
const STEP: u32 = 1_000;

/// Where a scan goes on (none: it is over), and what this step found.
pub(super) type Page = (Option<String>, Vec<Value>);

fn hex(file: &FileId) -> String {
    format!("{:032x}", u128::from_be_bytes(*file))
}

impl RedisStore {
    /// One step of a scan of a key: where it goes on (none: it is over), and what it found.
    pub(super) async fn step(&self, at: At, command: &Cmd) -> Result<Page> {
        page(self.servers.command(at, command).await?)
    }
}

/// Reads one step of a scan.
pub(super) fn page(answer: Value) -> Result<Page> {
    const WHAT: &str = "a scan";
    let items = reply::array(answer, WHAT)?;
    let [cursor, found] = <[Value; 2]>::try_from(items).map_err(|_| reply::unexpected(WHAT))?;
    let cursor = reply::text(cursor, WHAT)?;
    Ok(((cursor != "0").then_some(cursor), reply::array(found, WHAT)?))
}

#[async_trait]
impl Moves for RedisStore {
    async fn oldest(
        &self,
        partition: Partition,
        after: Option<(Timestamp, RunId)>,
        max: u32,
    ) -> Result<Vec<(Timestamp, RunId)>> {
        self.list_runs(partition, after, max, First::Oldest).await
    }

    async fn homes(&self, partition: Partition) -> Result<Vec<RunId>> {
        self.holds(partition)?;
        let mut found = BTreeSet::new();
        let mut cursor = Some("0".to_owned());
        while let Some(at) = cursor {
            let mut scan = redis::cmd("ZSCAN");
            scan.arg(self.keys.wake(partition)).arg(at);
            scan.arg("MATCH").arg(format!("{}*", RunId::RESERVED)).arg("COUNT").arg(STEP);
            let (next, members) = self.step(At::Partition(partition), &scan).await?;
            // Each is followed by its score.
            for member in members.into_iter().step_by(2) {
                found.insert(reply::parsed::<RunId>(member, "a home record")?);
            }
            cursor = next;
        }
        Ok(found.into_iter().collect())
    }

    async fn payload_fields(&self, partition: Partition, run: &RunId) -> Result<Vec<Field>> {
        const WHAT: &str = "names of payloads";
        self.holds(partition)?;
        let mut list = redis::cmd("HKEYS");
        list.arg(self.keys.payloads(partition, run));
        let names = self.servers.command(At::Partition(partition), &list).await?;
        let names = reply::array(names, WHAT)?.into_iter();
        names.map(|n| Ok(Field(reply::bytes(n, WHAT)?.unwrap_or_default()))).collect()
    }

    async fn put_version(&self, stored: &StoredWorkflow) -> Result<()> {
        let StoredWorkflow { name, version, document, created_at } = stored;
        let mut call = Call::sized(Script::VersionPut, 3, 8, document.len() + 512);
        call.arg(keys::WORKFLOW_NAMES).arg(keys::WORKFLOW_NEWEST).arg(keys::documents(name));
        call.arg(name.as_str()).arg(*version).arg(order_value(created_at.0)).arg(&document[..]);
        self.servers.call(At::Workflows, &call).await?;
        Ok(())
    }

    async fn begin_restore(&self, file: &FileId) -> Result<bool> {
        const WHAT: &str = "the file of a restore";
        let mut set = redis::cmd("HSETNX");
        self.servers.command(At::Meta, set.arg(keys::META).arg("restore").arg(hex(file))).await?;
        let mut get = redis::cmd("HGET");
        let stands = self.servers.command(At::Meta, get.arg(keys::META).arg("restore")).await?;
        Ok(reply::text(stands, WHAT)? == hex(file))
    }

    async fn end_restore(&self, file: &FileId, lease: LeaseTime) -> Result<()> {
        // First whether it is ours to end, then the clocks, then the layout: servers that find that find the clocks.
        // Whatever came in between, all of it may be done again.
        if self.restore_end(file, false).await? {
            return Ok(());
        }
        let set = (0..self.layout.partitions).map(Partition).map(|partition| async move {
            let mut call = Call::new(Script::RestoreClock, 1);
            call.arg(self.keys.clock(partition)).arg(order_value(lease.0.max(0)));
            let done = self.servers.call(At::Partition(partition), &call).await?;
            Ok(reply::number(&done, "a clock")? == 1)
        });
        if try_join_all(set).await?.into_iter().all(|done| done) {
            return self.restore_end(file, true).await.map(drop);
        }
        Err(cannot_go_on("a server has worked on the store meanwhile: stop it, empty the store"))
    }
}

impl RedisStore {
    /// Gives the store the layout that servers know, if it is being given this file; or only looks. Returns whether it
    /// has that layout.
    async fn restore_end(&self, file: &FileId, ends: bool) -> Result<bool> {
        let mut call = Call::new(Script::RestoreEnd, 1);
        call.arg(keys::META).arg(self.layout.version).arg(self.layout.version & !RESTORING);
        call.arg(hex(file)).arg(u8::from(ends));
        match reply::number(&self.servers.call(At::Meta, &call).await?, "the end of a restore")? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(cannot_go_on("it was not begun with this file")),
        }
    }
}

fn cannot_go_on(why: &str) -> StoreError {
    StoreError::Unavailable { message: format!("the restore cannot go on: {why}"), sent: false }
}
