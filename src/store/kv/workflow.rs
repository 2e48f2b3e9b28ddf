//! Workflow documents.
//!
//! ```text
//! newest:    version u32                     document:  created i64 ‖ document          (big endian)
//! ```

use super::keys::{self, Space};
use super::{Order, Tx, damaged};
use crate::model::ids::WorkflowName;
use crate::model::time::Timestamp;
use crate::store::{Result, StoredWorkflow};
use bytes::Bytes;

fn newest(tx: &Tx<'_>, name: &WorkflowName) -> Result<Option<u32>> {
    tx.get(&keys::workflow(name))?.map(|v| read_version(&v)).transpose()
}

fn read_version(value: &[u8]) -> Result<u32> {
    value.try_into().map(u32::from_be_bytes).map_err(|_| damaged("the version of a workflow"))
}

/// See [`crate::store::Store::workflow`].
pub fn read(tx: &Tx<'_>, name: &WorkflowName, version: Option<u32>) -> Result<Option<StoredWorkflow>> {
    let version = match version {
        Some(version) => version,
        None => match newest(tx, name)? {
            Some(version) => version,
            None => return Ok(None),
        },
    };
    let Some(value) = tx.get(&keys::document(name, version))? else { return Ok(None) };
    let created = value.get(..8).and_then(|b| b.try_into().ok()).map(i64::from_be_bytes);
    Ok(Some(StoredWorkflow {
        name: name.clone(),
        version,
        created_at: Timestamp(created.ok_or_else(|| damaged("a workflow document"))?),
        document: value.slice(8..),
    }))
}

/// See [`crate::store::Store::put_workflow`].
pub fn put(
    tx: &mut Tx<'_>,
    name: &WorkflowName,
    document: &Bytes,
    now: Timestamp,
) -> Result<(StoredWorkflow, bool)> {
    let newest = read(tx, name, None)?;
    let version = match newest {
        Some(stored) if stored.document == *document => return Ok((stored, false)),
        Some(stored) => stored.version + 1,
        None => 1,
    };
    let mut value = now.0.to_be_bytes().to_vec();
    value.extend_from_slice(document);
    tx.put(keys::document(name, version), value);
    tx.put(keys::workflow(name), version.to_be_bytes().to_vec());
    let document = document.clone();
    Ok((StoredWorkflow { name: name.clone(), version, document, created_at: now }, true))
}

/// See [`crate::store::Store::workflows`].
pub fn list(tx: &Tx<'_>, after: Option<&WorkflowName>, max: u32) -> Result<Vec<(WorkflowName, u32)>> {
    let all = keys::Key::new(Space::Workflow).bytes();
    let from = match after {
        Some(name) => keys::workflow(name).into_iter().chain([0]).collect(),
        None => all.clone(),
    };
    let pair = |(key, value): (Vec<u8>, Bytes)| {
        let name = key.get(1..).and_then(|b| std::str::from_utf8(b).ok());
        let name = name.and_then(|n| WorkflowName::new(n).ok()).ok_or_else(|| damaged("a workflow name"))?;
        Ok((name, read_version(&value)?))
    };
    let found = tx.scan(&from, &keys::after_prefix(all), max as usize, Order::Ascending)?;
    found.into_iter().map(pair).collect()
}

/// See [`crate::store::Store::remove_workflow`].
pub fn remove(tx: &mut Tx<'_>, name: &WorkflowName) -> Result<bool> {
    if newest(tx, name)?.is_none() {
        return Ok(false);
    }
    for (key, _) in tx.scan_prefix(keys::documents(name), usize::MAX)? {
        tx.remove(key);
    }
    tx.remove(keys::workflow(name));
    Ok(true)
}
