//! Reads of runs: records, payloads, lists.

use super::keys::{self, Space, from_order_bytes};
use super::{Order, Shape, Tx, damaged};
use crate::model::ids::{Partition, RunId};
use crate::model::payload::Field;
use crate::model::time::Timestamp;
use crate::store::{Result, order_value};
use bytes::Bytes;

/// See [`crate::store::Store::load`].
pub fn load(tx: &Tx<'_>, shape: &Shape, runs: &[(Partition, RunId)]) -> Result<Vec<Option<Bytes>>> {
    let one = |(partition, run): &(Partition, RunId)| {
        shape.holds(*partition)?;
        tx.get(&keys::record(*partition, run))
    };
    runs.iter().map(one).collect()
}

/// See [`crate::store::Store::payloads`].
pub fn payloads(
    tx: &Tx<'_>,
    shape: &Shape,
    partition: Partition,
    run: &RunId,
    fields: &[Field],
) -> Result<Vec<Option<Bytes>>> {
    shape.holds(partition)?;
    fields.iter().map(|field| tx.get(&keys::payload(partition, run, field))).collect()
}

/// See [`crate::store::Store::list`].
pub fn list(
    tx: &Tx<'_>,
    shape: &Shape,
    partition: Partition,
    before: Option<(Timestamp, RunId)>,
    max: u32,
) -> Result<Vec<(Timestamp, RunId)>> {
    shape.holds(partition)?;
    let from = keys::Key::of(Space::Index, partition).bytes();
    let to = match before {
        Some((created, run)) => keys::by_time(Space::Index, partition, order_value(created.0), &run),
        None => keys::after_prefix(from.clone()),
    };
    let pair = |(key, _): (Vec<u8>, Bytes)| {
        let created = key.get(keys::HEAD..).and_then(from_order_bytes)?;
        let run = std::str::from_utf8(key.get(keys::HEAD + 8..)?).ok()?;
        Some((Timestamp(created), RunId::new(run).ok()?))
    };
    let found = tx.scan(&from, &to, max as usize, Order::Descending)?;
    found.into_iter().map(|f| pair(f).ok_or_else(|| damaged("an index entry"))).collect()
}
