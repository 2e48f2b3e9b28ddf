//! Runs as the store has them, whole: records, and for wide runs the pages beside them.
//!
//! A wide run is read in two steps, between which it may be written. Then record and pages do not belong together, which
//! shows, and it is read again.

use crate::model::ids::{Partition, Prefix, RunId};
use crate::model::record::{self, Head};
use crate::model::run::RunState;
use crate::store::{Result, Store, StoreError};
use bytes::Bytes;
use std::time::Duration;

/// Times that a run is read again before the store is called busy.
const TRIES: u32 = 1_000;

fn unreadable(error: impl std::fmt::Display) -> StoreError {
    StoreError::Unreadable(error.to_string())
}

/// A record as read.
pub(crate) fn head(record: &Bytes) -> Result<(Prefix, Head)> {
    let prefix = Prefix::of(record).ok_or_else(|| unreadable("a record shorter than its prefix"))?;
    let head = record::decode_head(record.get(Prefix::LEN..).unwrap_or_default()).map_err(unreadable)?;
    Ok((prefix, head))
}

/// Makes a run whole whose record was just read; none if it is gone.
pub(crate) async fn whole(
    store: &dyn Store,
    partition: Partition,
    run: &RunId,
    record: &Bytes,
) -> Result<Option<(Prefix, RunState)>> {
    let (mut prefix, mut found) = head(record)?;
    for _ in 0..TRIES {
        let fields = found.fields();
        let values =
            if fields.is_empty() { Vec::new() } else { store.payloads(partition, run, &fields).await? };
        if let Some(state) = found.complete(&values).map_err(unreadable)? {
            return Ok(Some((prefix, state)));
        }
        // Written between the two reads.
        tokio::time::sleep(Duration::from_millis(1)).await;
        let again = store.load(&[(partition, run.clone())]).await?.pop().flatten();
        let Some(again) = again else { return Ok(None) };
        (prefix, found) = head(&again)?;
    }
    Err(StoreError::Unavailable {
        message: format!("run {run} changes faster than it can be read"),
        sent: false,
    })
}

/// Runs, in order; none where there is none.
pub(crate) async fn load(store: &dyn Store, keys: &[(Partition, RunId)]) -> Result<Vec<Option<RunState>>> {
    let records = store.load(keys).await?;
    let mut runs = Vec::with_capacity(records.len());
    for ((partition, run), record) in keys.iter().zip(records) {
        let whole = match record {
            Some(record) => whole(store, *partition, run, &record).await?,
            None => None,
        };
        runs.push(whole.map(|(_, state)| state));
    }
    Ok(runs)
}

/// A run of which something is told: if `is_told`, no fail-over takes back what was read. None if there is none.
pub(crate) async fn settled(
    store: &dyn Store,
    partition: Partition,
    run: &RunId,
    is_told: impl Fn(&RunState) -> bool,
) -> Result<Option<RunState>> {
    for _ in 0..TRIES {
        let record = store.load(&[(partition, run.clone())]).await?.pop().flatten();
        let Some(record) = record else { return Ok(None) };
        let Some((prefix, state)) = whole(store, partition, run, &record).await? else { return Ok(None) };
        if !is_told(&state) || store.settled(partition, run, &prefix).await? {
            return Ok(Some(state));
        }
        // Written meanwhile.
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    Err(StoreError::Unavailable {
        message: format!("run {run} changes faster than it can be read"),
        sent: false,
    })
}
