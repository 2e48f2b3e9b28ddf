//! Sessions of workers.
//!
//! ```text
//! session:  epoch u32 ‖ owner 16 B ‖ deadline i64 (lease clock) ‖ label     (big endian)
//! ```

use super::keys::{self, Space};
use super::{Shape, Tx, damaged, tick};
use crate::model::ids::{Nonce, Partition, SessionId};
use crate::model::time::{LeaseTime, Span, Timestamp};
use crate::store::{Result, SESSION_KEPT, SessionRecord, session_partition};

const FIXED: usize = 4 + 16 + 8;

fn encode(record: &SessionRecord, deadline: LeaseTime) -> Vec<u8> {
    let mut out = Vec::with_capacity(FIXED + record.label.len());
    out.extend_from_slice(&record.epoch.to_be_bytes());
    out.extend_from_slice(&record.owner.0);
    out.extend_from_slice(&deadline.0.to_be_bytes());
    out.extend_from_slice(record.label.as_bytes());
    out
}

fn decode(bytes: &[u8]) -> Option<SessionRecord> {
    let mut owner = [0; 16];
    owner.copy_from_slice(bytes.get(4..20)?);
    Some(SessionRecord {
        epoch: u32::from_be_bytes(bytes.get(..4)?.try_into().ok()?),
        label: String::from_utf8(bytes.get(FIXED..)?.to_vec()).ok()?,
        owner: Nonce(owner),
        deadline: LeaseTime(i64::from_be_bytes(bytes.get(20..FIXED)?.try_into().ok()?)),
        lease_now: LeaseTime(0),
    })
}

/// Whether a session is so long past its deadline that it counts as gone.
fn has_vanished(record: &SessionRecord, lease_now: LeaseTime) -> bool {
    record.deadline.plus(SESSION_KEPT) <= lease_now
}

/// A session, with the lease clock of its partition.
fn find(tx: &Tx<'_>, partition: Partition, id: &SessionId, now: Timestamp) -> Result<Option<SessionRecord>> {
    let Some(value) = tx.get(&keys::session(partition, id))? else { return Ok(None) };
    let mut record = decode(&value).ok_or_else(|| damaged("a session"))?;
    record.lease_now = tick::lease_now(tx, partition, now)?;
    Ok((!has_vanished(&record, record.lease_now)).then_some(record))
}

fn store(
    tx: &mut Tx<'_>,
    partition: Partition,
    id: &SessionId,
    record: &SessionRecord,
    lease: Span,
    now: Timestamp,
) -> Result<()> {
    let deadline = tick::lease_now(tx, partition, now)?.plus(lease);
    tx.put(keys::session(partition, id), encode(record, deadline));
    Ok(())
}

/// See [`crate::store::Store::put_session`].
pub fn put(
    tx: &mut Tx<'_>,
    shape: &Shape,
    id: &SessionId,
    record: &SessionRecord,
    expect: Option<u32>,
    lease: Span,
    now: Timestamp,
) -> Result<bool> {
    let Some(partition) = session_partition(id, shape.layout) else { return Ok(false) };
    if find(tx, partition, id, now)?.map(|r| r.epoch) != expect {
        return Ok(false);
    }
    store(tx, partition, id, record, lease, now)?;
    Ok(true)
}

/// See [`crate::store::Store::renew_sessions`].
pub fn renew(
    tx: &mut Tx<'_>,
    shape: &Shape,
    sessions: &[(SessionId, u32)],
    lease: Span,
    now: Timestamp,
) -> Result<Vec<bool>> {
    let mut one = |(id, epoch): &(SessionId, u32)| {
        let Some(partition) = session_partition(id, shape.layout) else { return Ok(false) };
        let record = find(tx, partition, id, now)?.filter(|r| r.epoch == *epoch);
        if let Some(record) = &record {
            store(tx, partition, id, record, lease, now)?;
        }
        Ok(record.is_some())
    };
    sessions.iter().map(&mut one).collect()
}

/// See [`crate::store::Store::sessions`].
pub fn read(
    tx: &Tx<'_>,
    shape: &Shape,
    ids: &[SessionId],
    now: Timestamp,
) -> Result<Vec<Option<SessionRecord>>> {
    let one = |id: &SessionId| {
        let Some(partition) = session_partition(id, shape.layout) else { return Ok(None) };
        find(tx, partition, id, now)
    };
    ids.iter().map(one).collect()
}

/// See [`crate::store::Store::remove_session`].
pub fn remove(tx: &mut Tx<'_>, shape: &Shape, id: &SessionId, epoch: u32, now: Timestamp) -> Result<()> {
    let Some(partition) = session_partition(id, shape.layout) else { return Ok(()) };
    if find(tx, partition, id, now)?.is_some_and(|r| r.epoch == epoch) {
        tx.remove(keys::session(partition, id));
    }
    Ok(())
}

/// Removes the sessions of a partition that have vanished.
pub(super) fn sweep(tx: &mut Tx<'_>, partition: Partition, lease_now: LeaseTime) -> Result<()> {
    for (key, value) in tx.scan_prefix(keys::Key::of(Space::Session, partition).bytes(), usize::MAX)? {
        if has_vanished(&decode(&value).ok_or_else(|| damaged("a session"))?, lease_now) {
            tx.remove(key);
        }
    }
    Ok(())
}
