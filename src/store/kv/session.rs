//! Sessions of workers.
//!
//! ```text
//! session:  epoch u32 ‖ owner 16 B ‖ deadline i64 (lease clock) ‖ vanishes i64 (wall) ‖ label     (big endian)
//! ```

use super::keys::{self, Space};
use super::{Shape, Tx, damaged, tick};
use crate::model::ids::{Nonce, Partition, SessionId};
use crate::model::time::{LeaseTime, Span, Timestamp};
use crate::store::{Result, SESSION_KEPT, SessionRecord, session_partition};

const FIXED: usize = 4 + 16 + 8 + 8;

fn encode(record: &SessionRecord, deadline: LeaseTime, vanishes: Timestamp) -> Vec<u8> {
    let mut out = Vec::with_capacity(FIXED + record.label.len());
    out.extend_from_slice(&record.epoch.to_be_bytes());
    out.extend_from_slice(&record.owner.0);
    out.extend_from_slice(&deadline.0.to_be_bytes());
    out.extend_from_slice(&vanishes.0.to_be_bytes());
    out.extend_from_slice(record.label.as_bytes());
    out
}

fn decode(bytes: &[u8]) -> Option<(SessionRecord, Timestamp)> {
    let mut owner = [0; 16];
    owner.copy_from_slice(bytes.get(4..20)?);
    let number = |at: usize| Some(i64::from_be_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
    let record = SessionRecord {
        epoch: u32::from_be_bytes(bytes.get(..4)?.try_into().ok()?),
        label: String::from_utf8(bytes.get(FIXED..)?.to_vec()).ok()?,
        owner: Nonce(owner),
        deadline: LeaseTime(number(20)?),
        lease_now: LeaseTime(0),
    };
    Some((record, Timestamp(number(28)?)))
}

fn find(tx: &Tx<'_>, partition: Partition, id: &SessionId, now: Timestamp) -> Result<Option<SessionRecord>> {
    let Some(value) = tx.get(&keys::session(partition, id))? else { return Ok(None) };
    let (record, vanishes) = decode(&value).ok_or_else(|| damaged("a session"))?;
    Ok((now < vanishes).then_some(record))
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
    let vanishes = now.plus(lease).plus(SESSION_KEPT);
    tx.put(keys::session(partition, id), encode(record, deadline, vanishes));
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
    partition: Partition,
    sessions: &[(SessionId, u32)],
    lease: Span,
    now: Timestamp,
) -> Result<Vec<bool>> {
    shape.holds(partition)?;
    let mut renewed = Vec::with_capacity(sessions.len());
    for (id, epoch) in sessions {
        let record = find(tx, partition, id, now)?.filter(|r| r.epoch == *epoch);
        if let Some(record) = &record {
            store(tx, partition, id, record, lease, now)?;
        }
        renewed.push(record.is_some());
    }
    Ok(renewed)
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
        let Some(mut record) = find(tx, partition, id, now)? else { return Ok(None) };
        record.lease_now = tick::lease_now(tx, partition, now)?;
        Ok(Some(record))
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
pub(super) fn sweep(tx: &mut Tx<'_>, partition: Partition, now: Timestamp) -> Result<()> {
    for (key, value) in tx.scan_prefix(keys::Key::of(Space::Session, partition).bytes(), usize::MAX)? {
        let (_, vanishes) = decode(&value).ok_or_else(|| damaged("a session"))?;
        if now >= vanishes {
            tx.remove(key);
        }
    }
    Ok(())
}
