//! Ready queues: taking entries, and dropping those that were found stale.
//!
//! Invariant: one call is about one slot, or there is one Redis; answers go back to the places they were asked from.

use super::link::Value;
use super::scripts::{Call, Script};
use super::servers::At;
use super::{RedisStore, reply};
use crate::model::commit::QueueEntry;
use crate::model::ids::{Partition, Prefix};
use crate::model::labels::QueueName;
use crate::model::time::Span;
use crate::store::{QueueHead, Result, Taken, order_value};
use futures::future::join_all;

impl RedisStore {
    /// Takes entries, see [`Store::take`](crate::store::Store::take).
    pub(super) async fn take_entries(
        &self,
        wanted: &[(Partition, QueueName, u32)],
        claim: Span,
    ) -> Result<Vec<Taken>> {
        if wanted.is_empty() {
            return Ok(Vec::new());
        }
        let calls = self.split(wanted, |(partition, _, _)| *partition)?;
        let taken = join_all(calls.iter().map(|(at, some)| self.take_some(*at, some, claim))).await;
        let mut by_place = vec![Vec::new(); wanted.len()];
        let (mut any, mut failed) = (false, None);
        for ((_, some), entries) in calls.iter().zip(taken) {
            match entries {
                Ok(entries) => {
                    any = true;
                    for ((place, _), entries) in some.iter().zip(entries) {
                        by_place[*place] = entries;
                    }
                }
                Err(error) => failed = Some(error),
            }
        }
        // What some gave is not kept back because others are away: it is claimed.
        match failed {
            Some(error) if !any => Err(error),
            _ => Ok(by_place.concat()),
        }
    }

    /// Drops what was found stale, see [`Store::discard`](crate::store::Store::discard).
    pub(super) async fn discard_entries(&self, stale: &[(Taken, Option<Prefix>)]) -> Result<()> {
        if stale.is_empty() {
            return Ok(());
        }
        let calls = self.split(stale, |(taken, _)| taken.partition)?;
        // One that is away does not keep the others from it; as with renewals.
        let done = join_all(calls.iter().map(|(at, some)| self.discard_some(*at, some))).await;
        done.into_iter().collect()
    }

    /// One call.
    async fn discard_some(&self, at: At, stale: &[(usize, &(Taken, Option<Prefix>))]) -> Result<()> {
        let mut call = Call::new(Script::Discard, 5 * stale.len());
        for (_, (taken, _)) in stale {
            let partition = taken.partition;
            call.arg(self.keys.record(partition, &taken.entry.run))
                .arg(self.keys.ready(partition, &taken.queue));
            call.arg(self.keys.types(partition)).arg(self.keys.claimed(partition));
            call.arg(self.keys.places(partition));
        }
        call.arg(&self.channel);
        for (_, (taken, judged_by)) in stale {
            call.arg(taken.partition.0).arg(&*taken.queue.to_text()).arg(taken.entry.encode());
            match judged_by {
                Some(prefix) => call.arg(&prefix.0[..]),
                None => call.arg(""),
            };
        }
        self.servers.call(at, &call).await?;
        Ok(())
    }

    /// One call; returns what each place gave.
    async fn take_some(
        &self,
        at: At,
        wanted: &[(usize, &(Partition, QueueName, u32))],
        claim: Span,
    ) -> Result<Vec<Vec<Taken>>> {
        const WHAT: &str = "entries taken";
        let mut call = Call::new(Script::Take, 4 * wanted.len());
        for (_, (partition, queue, _)) in wanted {
            call.arg(self.keys.ready(*partition, queue)).arg(self.keys.types(*partition));
            call.arg(self.keys.claimed(*partition)).arg(self.keys.places(*partition));
        }
        call.arg(order_value(claim.0));
        for (_, (_, queue, max)) in wanted {
            call.arg(&*queue.to_text()).arg(*max);
        }
        let queues = reply::array(self.servers.call(at, &call).await?, WHAT)?;
        let mut taken = vec![Vec::new(); wanted.len()];
        for (((_, (partition, queue, _)), entries), taken) in wanted.iter().zip(queues).zip(&mut taken) {
            let mut entries = reply::array(entries, WHAT)?.into_iter();
            while let (Some(entry), Some(score)) = (entries.next(), entries.next()) {
                let entry = reply::bytes(entry, WHAT)?.unwrap_or_default();
                taken.push(Taken {
                    partition: *partition,
                    queue: queue.clone(),
                    entry: QueueEntry::decode(&entry).ok_or_else(|| reply::unexpected(WHAT))?,
                    score: reply::number(&score, WHAT)?,
                });
            }
        }
        Ok(taken)
    }
}

/// `{ type, score, depth, … }`
pub(super) fn read_heads(partition: Partition, items: Vec<Value>) -> Result<Vec<QueueHead>> {
    const WHAT: &str = "queue heads";
    let mut heads = Vec::with_capacity(items.len() / 3);
    let mut items = items.into_iter();
    while let Some(queue) = items.next() {
        let (Some(score), Some(depth)) = (items.next(), items.next()) else {
            return Err(reply::unexpected(WHAT));
        };
        heads.push(QueueHead {
            partition,
            queue: reply::parsed(queue, WHAT)?,
            score: Some(reply::number(&score, WHAT)?),
            depth: reply::number(&depth, WHAT)?.max(0).unsigned_abs(),
        });
    }
    Ok(heads)
}
