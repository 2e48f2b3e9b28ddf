//! Reading all of a store in order, and giving it all: see [`crate::store::moves`].

use super::keys::{self, Key, Space, from_order_bytes};
use super::tick::Clock;
use super::{Order, Shape, Tx, damaged};
use crate::model::ids::{Partition, RunId};
use crate::model::payload::Field;
use crate::model::time::{LeaseTime, Timestamp};
use crate::store::moves::{FileId, RESTORING};
use crate::store::{Layout, Result, StoreError, order_value};

/// Payload fields read at once; their values come along and are dropped.
const FIELDS: usize = 64;

/// See [`crate::store::Moves::oldest`].
pub fn oldest(
    tx: &Tx<'_>,
    shape: &Shape,
    partition: Partition,
    after: Option<&(Timestamp, RunId)>,
    max: u32,
) -> Result<Vec<(Timestamp, RunId)>> {
    shape.holds(partition)?;
    let all = Key::of(Space::Index, partition).bytes();
    let from = match after {
        // The least key above it.
        Some((created, run)) => {
            let mut key = keys::by_time(Space::Index, partition, order_value(created.0), run);
            key.push(0);
            key
        }
        None => all.clone(),
    };
    let pairs = tx.scan(&from, &keys::after_prefix(all), max as usize, Order::Ascending)?;
    let read = |key: &[u8]| {
        let created = key.get(keys::HEAD..).and_then(from_order_bytes)?;
        let run = std::str::from_utf8(key.get(keys::HEAD + 8..)?).ok()?;
        Some((Timestamp(created), RunId::new(run).ok()?))
    };
    pairs.iter().map(|(key, _)| read(key).ok_or_else(|| damaged("an index entry"))).collect()
}

/// See [`crate::store::Moves::homes`]: each has a wake-up.
pub fn homes(tx: &Tx<'_>, shape: &Shape, partition: Partition) -> Result<Vec<RunId>> {
    shape.holds(partition)?;
    let begins = Key::of(Space::WakeOf, partition).raw(RunId::RESERVED.as_bytes()).bytes();
    let read = |key: &[u8]| RunId::new(std::str::from_utf8(key.get(keys::HEAD..)?).ok()?).ok();
    let found = tx.scan_prefix(begins, usize::MAX)?;
    found.iter().map(|(key, _)| read(key).ok_or_else(|| damaged("a wake-up"))).collect()
}

/// See [`crate::store::Moves::payload_fields`].
pub fn payload_fields(tx: &Tx<'_>, shape: &Shape, partition: Partition, run: &RunId) -> Result<Vec<Field>> {
    shape.holds(partition)?;
    let begins = keys::payloads(partition, run);
    let (mut from, to) = (begins.clone(), keys::after_prefix(begins.clone()));
    let mut fields = Vec::new();
    loop {
        let page = tx.scan(&from, &to, FIELDS, Order::Ascending)?;
        let Some((last, _)) = page.last() else { return Ok(fields) };
        from.clone_from(last);
        from.push(0);
        let name =
            |key: &[u8]| Field(bytes::Bytes::copy_from_slice(key.get(begins.len()..).unwrap_or_default()));
        fields.extend(page.iter().map(|(key, _)| name(key)));
    }
}

fn file_key() -> Vec<u8> {
    Key::new(Space::Meta).raw(b"restore").bytes()
}

/// See [`crate::store::Moves::begin_restore`].
pub fn begin_restore(tx: &mut Tx<'_>, shape: &Shape, file: &FileId) -> Result<bool> {
    in_restore(shape)?;
    if let Some(stands) = tx.get(&file_key())? {
        return Ok(stands[..] == file[..]);
    }
    tx.put(file_key(), file.to_vec());
    Ok(true)
}

/// See [`crate::store::Moves::end_restore`].
pub fn end_restore(
    tx: &mut Tx<'_>,
    shape: &Shape,
    file: &FileId,
    lease: LeaseTime,
    now: Timestamp,
) -> Result<()> {
    in_restore(shape)?;
    if tx.get(&file_key())?.is_none_or(|stands| stands[..] != file[..]) {
        return Err(refused("it was not begun with this file"));
    }
    for partition in (0..shape.layout.partitions).map(Partition) {
        Clock::begin(tx, partition, lease, now);
    }
    tx.remove(file_key());
    let layout = Layout { version: shape.layout.version & !RESTORING, ..shape.layout };
    tx.put(keys::meta(), super::encode_layout(layout));
    Ok(())
}

fn in_restore(shape: &Shape) -> Result<()> {
    if shape.layout.version & RESTORING != 0 {
        Ok(())
    } else {
        Err(refused("the store was opened to be worked on"))
    }
}

fn refused(why: &str) -> StoreError {
    StoreError::Unavailable { message: format!("the restore cannot go on: {why}"), sent: false }
}
