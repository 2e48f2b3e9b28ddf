//! Lists of runs, and the workflows that are registered.

use super::link::Value;
use super::scripts::{Call, Script};
use super::servers::At;
use super::{RedisStore, keys, reply};
use crate::model::ids::{Partition, RunId, WorkflowName};
use crate::model::time::Timestamp;
use crate::store::{ListedWorkflow, Result, StoredWorkflow, order_value};
use bytes::Bytes;

/// What a list begins with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum First {
    Newest,
    Oldest,
}

impl First {
    fn word(self) -> &'static str {
        match self {
            Self::Newest => "newest",
            Self::Oldest => "oldest",
        }
    }
}

impl RedisStore {
    /// See [`Store::list`](crate::store::Store::list) and [`Moves::oldest`](crate::store::Moves::oldest): runs of a partition
    /// behind one of them, in this order.
    pub(super) async fn list_runs(
        &self,
        partition: Partition,
        behind: Option<(Timestamp, RunId)>,
        max: u32,
        order: First,
    ) -> Result<Vec<(Timestamp, RunId)>> {
        const WHAT: &str = "a list of runs";
        self.holds(partition)?;
        let mut call = Call::new(Script::List, 1);
        call.arg(self.keys.index(partition));
        match &behind {
            Some((created, run)) => call.arg(order_value(created.0)).arg(run.as_str()),
            None => call.arg("").arg(""),
        };
        call.arg(max).arg(order.word());
        let mut items =
            reply::array(self.servers.call(At::Partition(partition), &call).await?, WHAT)?.into_iter();
        let mut runs = Vec::with_capacity(items.len() / 2);
        while let (Some(run), Some(created)) = (items.next(), items.next()) {
            runs.push((Timestamp(reply::number(&created, WHAT)?), reply::parsed(run, WHAT)?));
        }
        Ok(runs)
    }

    /// See [`Store::put_workflow`](crate::store::Store::put_workflow).
    pub(super) async fn workflow_put(
        &self,
        name: &WorkflowName,
        document: &Bytes,
    ) -> Result<(StoredWorkflow, bool)> {
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

    /// See [`Store::workflow`](crate::store::Store::workflow).
    pub(super) async fn workflow_read(
        &self,
        name: &WorkflowName,
        version: Option<u32>,
    ) -> Result<Option<StoredWorkflow>> {
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

    /// See [`Store::workflows`](crate::store::Store::workflows).
    pub(super) async fn workflow_list(
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
        call.arg(max).arg(First::Newest.word());
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

    /// See [`Store::remove_workflow`](crate::store::Store::remove_workflow).
    pub(super) async fn workflow_remove(&self, name: &WorkflowName) -> Result<bool> {
        let mut call = Call::new(Script::WorkflowRemove, 3);
        call.arg(keys::WORKFLOW_NAMES)
            .arg(keys::WORKFLOW_NEWEST)
            .arg(keys::documents(name))
            .arg(name.as_str());
        Ok(reply::number(&self.servers.call(At::Workflows, &call).await?, "a workflow")? == 1)
    }
}
