//! Workflow documents.
//!
//! ```text
//! newest:    version u32 ‖ created i64       document:  created i64 ‖ document          (big endian)
//! ```
//!
//! Stores of the first days have `newest` without the time, which is then read from the document.

use super::keys::{self, Space};
use super::{Order, Tx, damaged};
use crate::model::commit::VersionOf;
use crate::model::ids::WorkflowName;
use crate::model::time::Timestamp;
use crate::store::{ListedWorkflow, Result, StoredWorkflow};
use bytes::Bytes;

fn newest(tx: &Tx<'_>, name: &WorkflowName) -> Result<Option<u32>> {
    tx.get(&keys::workflow(name))?.map(|v| Ok(read_newest(&v)?.0)).transpose()
}

fn read_newest(value: &[u8]) -> Result<(u32, Option<Timestamp>)> {
    let bad = || damaged("the version of a workflow");
    let (version, created) = value.split_first_chunk::<4>().ok_or_else(bad)?;
    let created = match created {
        [] => None,
        bytes => Some(Timestamp(i64::from_be_bytes(bytes.try_into().map_err(|_| bad())?))),
    };
    Ok((u32::from_be_bytes(*version), created))
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

/// Whether this very version is there.
pub(super) fn stands(tx: &Tx<'_>, of: &VersionOf) -> Result<bool> {
    let stored = tx.get(&keys::document(&of.workflow, of.version))?;
    Ok(stored.is_some_and(|value| value.starts_with(&of.created_at.0.to_be_bytes())))
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
    tx.put(keys::workflow(name), [&version.to_be_bytes()[..], &now.0.to_be_bytes()].concat());
    let document = document.clone();
    Ok((StoredWorkflow { name: name.clone(), version, document, created_at: now }, true))
}

/// See [`crate::store::Moves::put_version`].
pub fn put_version(tx: &mut Tx<'_>, stored: &StoredWorkflow) -> Result<()> {
    let StoredWorkflow { name, version, document, created_at } = stored;
    tx.put(keys::document(name, *version), [&created_at.0.to_be_bytes()[..], document].concat());
    if newest(tx, name)?.is_none_or(|stands| stands <= *version) {
        tx.put(keys::workflow(name), [&version.to_be_bytes()[..], &created_at.0.to_be_bytes()].concat());
    }
    Ok(())
}

/// See [`crate::store::Store::workflows`]. Looks at all names: they are few beside runs, and small.
pub fn list(
    tx: &Tx<'_>,
    before: Option<&(Timestamp, WorkflowName)>,
    max: u32,
) -> Result<Vec<ListedWorkflow>> {
    let all = keys::Key::new(Space::Workflow).bytes();
    let mut found = Vec::new();
    for (key, value) in tx.scan(&all, &keys::after_prefix(all.clone()), usize::MAX, Order::Ascending)? {
        let name = key.get(1..).and_then(|b| std::str::from_utf8(b).ok());
        let name = name.and_then(|n| WorkflowName::new(n).ok()).ok_or_else(|| damaged("a workflow name"))?;
        let (version, created) = read_newest(&value)?;
        let created_at = match created {
            Some(created) => created,
            None => read(tx, &name, Some(version))?.ok_or_else(|| damaged("a workflow"))?.created_at,
        };
        if before.is_none_or(|(time, than)| (created_at, &name) < (*time, than)) {
            found.push(ListedWorkflow { name, version, created_at });
        }
    }
    found.sort_unstable_by(|a, b| (b.created_at, &b.name).cmp(&(a.created_at, &a.name)));
    found.truncate(max as usize);
    Ok(found)
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
