//! Ticks: the lease clock, what is due, what may go, what waits in which queue.
//!
//! Invariant: on one Redis, one call ticks no more than [`TICKED_AT_ONCE`] partitions; on a cluster, one.

use super::link::Value;
use super::queues::read_heads;
use super::scripts::{Call, Script};
use super::servers::At;
use super::{HOME, RedisStore, reply};
use crate::model::ids::{Partition, RunId};
use crate::model::time::{LeaseTime, Timestamp};
use crate::store::{
    DUE_AGAIN, LEASE_STEP, RECLAIM_MAX, RETENTION_EVERY, Result, SESSION_KEPT, SWEEP_EVERY, Ticked,
};
use futures::future::try_join_all;

/// The most queues one tick of a partition tells of.
const HEADS_MAX: u32 = 1_000;
/// Partitions ticked by one call: together they stay far below the 50 ms that a script may take.
const TICKED_AT_ONCE: usize = 16;
/// Sessions swept by one call.
const SWEEP_MAX: u32 = 1_000;

impl RedisStore {
    /// Ticks, see [`Store::tick`](crate::store::Store::tick).
    pub(super) async fn tick_all(&self, partitions: &[Partition], max: u32) -> Result<Vec<Ticked>> {
        for partition in partitions {
            self.holds(*partition)?;
        }
        let at_once = if self.servers.spans() { TICKED_AT_ONCE } else { 1 };
        let calls = partitions.chunks(at_once).map(|some| self.tick_some(some, max));
        Ok(try_join_all(calls).await?.concat())
    }

    /// One call for some partitions.
    async fn tick_some(&self, partitions: &[Partition], max: u32) -> Result<Vec<Ticked>> {
        const WHAT: &str = "a tick";
        let mut call = Call::sized(Script::Tick, 8 * partitions.len(), 10 * partitions.len() + 10, 1_024);
        for p in partitions {
            call.arg(self.keys.clock(*p))
                .arg(self.keys.wake(*p))
                .arg(self.keys.retention(*p))
                .arg(self.keys.claimed(*p));
            call.arg(self.keys.places(*p))
                .arg(self.keys.types(*p))
                .arg(self.keys.leases(*p))
                .arg(self.keys.sessions(*p));
        }
        call.arg(max).arg(LEASE_STEP.0).arg(DUE_AGAIN.0).arg(RECLAIM_MAX).arg(HEADS_MAX);
        call.arg(RETENTION_EVERY.0).arg(SWEEP_EVERY.0).arg(SESSION_KEPT.0).arg(SWEEP_MAX).arg(&self.channel);
        for p in partitions {
            call.arg(p.0).arg(self.keys.ready_prefix(*p));
        }
        let at = At::Partition(partitions.first().copied().unwrap_or(HOME));
        let mut items = reply::array(self.servers.call(at, &call).await?, WHAT)?.into_iter();
        let now = items.next().ok_or_else(|| reply::unexpected(WHAT))?;
        let now = Timestamp(reply::number(&now, WHAT)?);
        let ticked: Vec<_> = partitions
            .iter()
            .zip(items)
            .map(|(p, item)| read_ticked(*p, now, item))
            .collect::<Result<_>>()?;
        if ticked.len() == partitions.len() { Ok(ticked) } else { Err(reply::unexpected(WHAT)) }
    }
}

/// `{ lease clock, claims returned, next wake-up, { due run, … }, { expired run, … }, heads }`
fn read_ticked(partition: Partition, now: Timestamp, item: Value) -> Result<Ticked> {
    const WHAT: &str = "a tick";
    let [lease_now, reclaimed, next, due, expired, heads] =
        <[Value; 6]>::try_from(reply::array(item, WHAT)?).map_err(|_| reply::unexpected(WHAT))?;
    let runs = |value| -> Result<Vec<RunId>> {
        reply::array(value, WHAT)?.into_iter().map(|run| reply::parsed(run, WHAT)).collect()
    };
    let none = matches!(&next, Value::BulkString(text) if text.is_empty());
    let mut heads = read_heads(partition, reply::array(heads, WHAT)?)?;
    heads.sort_by(|a, b| a.queue.cmp(&b.queue));
    Ok(Ticked {
        now,
        lease_now: LeaseTime(reply::number(&lease_now, WHAT)?),
        due: runs(due)?,
        expired: runs(expired)?,
        next: if none { None } else { Some(Timestamp(reply::number(&next, WHAT)?)) },
        heads,
        reclaimed: reply::number(&reclaimed, WHAT)? as u32,
    })
}
