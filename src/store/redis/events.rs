//! Event streams: one per partition, read with `XREAD`.

use super::keys;
use super::link::{Link, Value};
use super::reply;
use crate::model::ids::Partition;
use crate::model::time::Span;
use crate::store::{Result, StreamBounds, StreamEntry, StreamPosition};
use redis::Cmd;

const WHAT: &str = "an event stream";

/// Up to `max` entries after each position; waits up to `wait` if there is none.
pub(super) async fn read(
    link: &Link,
    after: &[(Partition, StreamPosition)],
    max: u32,
    wait: Span,
) -> Result<Vec<StreamEntry>> {
    if after.is_empty() || max == 0 {
        return Ok(Vec::new());
    }
    let command = |block: Option<i64>| {
        let mut cmd = redis::cmd("XREAD");
        cmd.arg("COUNT").arg(max);
        if let Some(ms) = block {
            cmd.arg("BLOCK").arg(ms);
        }
        cmd.arg("STREAMS");
        for (partition, _) in after {
            cmd.arg(keys::events(*partition));
        }
        for (_, position) in after {
            cmd.arg(format!("{}-{}", position.0, position.1));
        }
        cmd
    };
    // To Redis, 0 ms is for ever.
    let reply = if wait.as_millis() > 0 {
        link.blocking(&command(Some(wait.as_millis())), wait.to_std()).await?
    } else {
        link.command(&command(None)).await?
    };
    decode(reply)
}

fn decode(value: Value) -> Result<Vec<StreamEntry>> {
    let mut entries = Vec::new();
    if value == Value::Nil {
        return Ok(entries);
    }
    for stream in reply::array(value, WHAT)? {
        let stream = reply::array(stream, WHAT)?;
        let [key, found] = <[Value; 2]>::try_from(stream).map_err(|_| reply::unexpected(WHAT))?;
        let key = reply::bytes(key, WHAT)?.unwrap_or_default();
        let partition = keys::events_partition(&key).ok_or_else(|| reply::unexpected(WHAT))?;
        for entry in reply::array(found, WHAT)? {
            let entry = reply::array(entry, WHAT)?;
            let [id, fields] = <[Value; 2]>::try_from(entry).map_err(|_| reply::unexpected(WHAT))?;
            let fields = reply::array(fields, WHAT)?;
            let [_, notes] = <[Value; 2]>::try_from(fields).map_err(|_| reply::unexpected(WHAT))?;
            let notes = reply::bytes(notes, WHAT)?.unwrap_or_default();
            entries.push(StreamEntry { partition, position: position(id)?, notes });
        }
    }
    Ok(entries)
}

fn position(value: Value) -> Result<StreamPosition> {
    let text = reply::text(value, WHAT)?;
    let read = || {
        let (ms, sequence) = text.split_once('-')?;
        Some(StreamPosition(ms.parse().ok()?, sequence.parse().ok()?))
    };
    read().ok_or_else(|| reply::unexpected(WHAT))
}

/// What a partition's stream holds.
pub(super) async fn bounds(link: &Link, partition: Partition) -> Result<StreamBounds> {
    let mut trimmed = redis::cmd("GET");
    trimmed.arg(keys::trimmed(partition));
    let newest = newest(partition);
    // The mark is read first: it may lag behind the stream, but never says more was trimmed than was.
    let (trimmed, newest) = futures::future::try_join(link.command(&trimmed), link.command(&newest)).await?;
    let trimmed_through = match trimmed {
        Value::Nil => StreamPosition::default(),
        id => position(id)?,
    };
    let last = match reply::array(newest, WHAT)?.pop() {
        None => trimmed_through,
        Some(entry) => {
            let id = reply::array(entry, WHAT)?.into_iter().next().ok_or_else(|| reply::unexpected(WHAT))?;
            position(id)?
        }
    };
    Ok(StreamBounds { trimmed_through, last })
}

fn newest(partition: Partition) -> Cmd {
    let mut cmd = redis::cmd("XREVRANGE");
    cmd.arg(keys::events(partition)).arg("+").arg("-").arg("COUNT").arg(1);
    cmd
}
