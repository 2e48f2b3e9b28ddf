//! Event streams: one per partition, read with `XREAD`.

use super::keys::Keys;
use super::link::{Talk, Value};
use super::reply;
use super::scripts::{Call, Script};
use super::servers::{At, Servers};
use crate::model::ids::Partition;
use crate::model::time::Span;
use crate::store::{Result, StoreError, StreamBounds, StreamEntry, StreamPosition};
use futures::future::try_join_all;
use redis::Cmd;
use std::collections::BTreeMap;
use std::time::Duration;

const WHAT: &str = "an event stream";
/// How much longer than it waits an answer may take.
const SLACK: Duration = Duration::from_secs(4);

/// Up to `max` entries after each position; waits up to `wait` if there is none.
pub(super) async fn read(
    servers: &Servers,
    after: &[(Partition, StreamPosition)],
    max: u32,
    wait: Span,
) -> Result<Vec<StreamEntry>> {
    if after.is_empty() || max == 0 {
        return Ok(Vec::new());
    }
    // To Redis, 0 ms is for ever.
    let waits = wait.as_millis() > 0;
    match servers {
        Servers::One(link) if waits => {
            let cmd = command(Keys::ALONE, after, max, Some(wait.to_std()));
            let proof: Vec<_> = after.iter().flat_map(|at| marks(Keys::ALONE, *at)).collect();
            let (read, proven) = link.blocking(&cmd, wait.to_std(), &proof).await?;
            prove(after, proven)?;
            decode(Keys::ALONE, after, read)
        }
        Servers::Cluster(cluster) if waits => cluster.tail().read(cluster, after, max, wait).await,
        servers => {
            let keys = servers.keys();
            let at_once = if servers.spans() { after.len() } else { 1 };
            let read = after.chunks(at_once).map(|some| async move {
                let cmd = command(keys, some, max, None);
                decode(keys, some, servers.command(At::Partition(some[0].0), &cmd).await?)
            });
            Ok(try_join_all(read).await?.concat())
        }
    }
}

/// Waits until a replica has what was read: it may be of a commit that nobody was told of yet, and that a fail-over would
/// take back. The last entry of each stream is read once more where a replica is waited for, since another primary may
/// have taken over in between.
///
/// # Errors
/// What was read may be taken back, or has been: to be read again.
pub(super) async fn confirm(servers: &Servers, entries: &[StreamEntry]) -> Result<()> {
    let last: BTreeMap<Partition, &StreamEntry> = entries.iter().map(|e| (e.partition, e)).collect();
    let checks = last.into_values().map(|entry| async move {
        let at = format!("{}-{}", entry.position.0, entry.position.1);
        let mut again = redis::cmd("XRANGE");
        again.arg(servers.keys().events(entry.partition)).arg(&at).arg(&at);
        let found = reply::array(servers.confirmed(entry.partition, &again).await?, WHAT)?;
        let same = |found: Value| {
            let [_, fields] = <[Value; 2]>::try_from(reply::array(found, WHAT).ok()?).ok()?;
            let notes = reply::array(fields, WHAT).ok()?.into_iter().nth(1)?;
            Some(reply::bytes(notes, WHAT).ok()?? == entry.notes)
        };
        if found.into_iter().next().and_then(same) == Some(true) {
            return Ok(());
        }
        let message = "an event was read that a fail-over has taken back".to_owned();
        Err(StoreError::Unavailable { message, sent: false })
    });
    try_join_all(checks).await.map(drop)
}

/// Reads streams, and waits for a while if there is nothing.
fn command(keys: Keys, after: &[(Partition, StreamPosition)], max: u32, block: Option<Duration>) -> Cmd {
    let mut cmd = redis::cmd("XREAD");
    cmd.arg("COUNT").arg(max);
    if let Some(block) = block {
        cmd.arg("BLOCK").arg(block.as_millis());
    }
    cmd.arg("STREAMS");
    for (partition, _) in after {
        cmd.arg(keys.events(*partition));
    }
    for (_, position) in after {
        cmd.arg(format!("{}-{}", position.0, position.1));
    }
    cmd
}

/// Reads the answer to [`command`].
fn decode(keys: Keys, asked: &[(Partition, StreamPosition)], value: Value) -> Result<Vec<StreamEntry>> {
    let mut entries = Vec::new();
    if value == Value::Nil {
        return Ok(entries);
    }
    let keys: Vec<_> = asked.iter().map(|(partition, _)| keys.events(*partition)).collect();
    for stream in reply::array(value, WHAT)? {
        let stream = reply::array(stream, WHAT)?;
        let [key, found] = <[Value; 2]>::try_from(stream).map_err(|_| reply::unexpected(WHAT))?;
        let key = reply::bytes(key, WHAT)?.unwrap_or_default();
        let at = keys.iter().position(|k| k.as_bytes() == key).ok_or_else(|| reply::unexpected(WHAT))?;
        let partition = asked[at].0;
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

/// What the mark of a stream says was trimmed.
fn mark(value: Value) -> Result<StreamPosition> {
    if value == Value::Nil { Ok(StreamPosition::default()) } else { position(value) }
}

/// What a partition's stream holds.
pub(super) async fn bounds(servers: &Servers, partition: Partition) -> Result<StreamBounds> {
    let (keys, at) = (servers.keys(), At::Partition(partition));
    let mut trimmed = redis::cmd("GET");
    trimmed.arg(keys.trimmed(partition));
    let newest = newest(keys, partition);
    // The mark is read first: it may lag behind the stream, but never says more was trimmed than was.
    let (trimmed, newest) =
        futures::future::try_join(servers.command(at, &trimmed), servers.command(at, &newest)).await?;
    let trimmed_through = mark(trimmed)?;
    let last = match reply::array(newest, WHAT)?.pop() {
        None => trimmed_through,
        Some(entry) => {
            let id = reply::array(entry, WHAT)?.into_iter().next().ok_or_else(|| reply::unexpected(WHAT))?;
            position(id)?
        }
    };
    Ok(StreamBounds { trimmed_through, last })
}

/// Which of these positions can be read on from.
pub(super) async fn resumable(servers: &Servers, at: &[(Partition, StreamPosition)]) -> Result<Vec<bool>> {
    let keys = servers.keys();
    let at_once = if servers.spans() { at.len().max(1) } else { 1 };
    let asked = at.chunks(at_once).map(|some| async move {
        let cmds: Vec<_> = some.iter().flat_map(|at| marks(keys, *at)).collect();
        let cmds: Vec<_> = cmds.iter().collect();
        let told = servers.commands(At::Partition(some[0].0), &cmds).await?;
        read_marks(some, told.into_iter().map(|value| reply::checked(value, true)))
    });
    Ok(try_join_all(asked).await?.concat())
}

/// What tells whether a position can be read on from: what stands at it, and then what was trimmed. The other way round
/// it might be trimmed in between.
fn marks(keys: Keys, at: (Partition, StreamPosition)) -> [Cmd; 2] {
    let (partition, StreamPosition(ms, sequence)) = at;
    let (mut stands, mut trimmed) = (redis::cmd("XRANGE"), redis::cmd("GET"));
    let id = format!("{ms}-{sequence}");
    stands.arg(keys.events(partition)).arg(&id).arg(&id);
    trimmed.arg(keys.trimmed(partition));
    [stands, trimmed]
}

/// Reads the answers to [`marks`].
fn read_marks(
    at: &[(Partition, StreamPosition)],
    told: impl IntoIterator<Item = Result<Value>>,
) -> Result<Vec<bool>> {
    let mut told = told.into_iter();
    let mut next = || told.next().unwrap_or(Ok(Value::Nil));
    let mut resumable = Vec::with_capacity(at.len());
    for (_, position) in at {
        let stands = !reply::array(next()?, WHAT)?.is_empty();
        resumable.push(position.is_resumable(stands, mark(next()?)?));
    }
    Ok(resumable)
}

/// Looks at what was found on a connection that was just made: it may be to a Redis that lacks what was read before.
fn prove(after: &[(Partition, StreamPosition)], proven: Vec<Value>) -> Result<()> {
    if proven.is_empty() || read_marks(after, proven.into_iter().map(Ok))?.into_iter().all(|holds| holds) {
        return Ok(());
    }
    let message = "the stream lacks what was read before".to_owned();
    Err(StoreError::Unavailable { message, sent: false })
}

/// As [`prove`], of one stream, on a connection that was just made.
///
/// # Errors
/// The connection is not to be used any more. Inside: the position cannot be read on from.
pub(super) async fn prove_on(talk: &mut Talk, after: (Partition, StreamPosition)) -> Result<Result<()>> {
    Ok(prove(&[after], talk.ask_all(&marks(Keys::CLUSTER, after)).await?))
}

/// Waits for entries of one stream on a connection.
///
/// # Errors
/// The connection is not to be used any more.
pub(super) async fn wait_on(
    talk: &mut Talk,
    after: (Partition, StreamPosition),
    max: u32,
    wait: Duration,
) -> Result<Vec<StreamEntry>> {
    let (keys, asked) = (Keys::CLUSTER, [after]);
    let read = talk.ask_within(&command(keys, &asked, max, Some(wait)), wait + SLACK).await?;
    decode(keys, &asked, read)
}

/// Trims up to and with an entry.
pub(super) async fn trim(servers: &Servers, partition: Partition, through: StreamPosition) -> Result<u64> {
    let next = match through.1.checked_add(1) {
        Some(sequence) => StreamPosition(through.0, sequence),
        None => StreamPosition(through.0.saturating_add(1), 0),
    };
    let keys = servers.keys();
    let mut call = Call::new(Script::EventsTrim, 2);
    call.arg(keys.events(partition)).arg(keys.trimmed(partition));
    for StreamPosition(ms, sequence) in [through, next] {
        call.arg(format!("{ms}-{sequence}"));
    }
    Ok(reply::number(&servers.call(At::Partition(partition), &call).await?, WHAT)?.max(0).unsigned_abs())
}

fn newest(keys: Keys, partition: Partition) -> Cmd {
    let mut cmd = redis::cmd("XREVRANGE");
    cmd.arg(keys.events(partition)).arg("+").arg("-").arg("COUNT").arg(1);
    cmd
}
