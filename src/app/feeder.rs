//! Moves waiting tasks to workers that have credit: reserve, take, lease. Runs whenever credit or entries
//! may have come, and never on a timer of its own.

use super::inner::Inner;
use super::lane::envelope::{Ask, Envelope, Reply};
use crate::dispatch::dispatcher::Party;
use crate::dispatch::{Pool, Reservation};
use crate::model::ids::Partition;
use crate::model::labels::QueueName;
use crate::model::time::Span;
use std::collections::VecDeque;
use std::sync::Arc;

/// Entries taken at once for the workers of one pool.
const TAKE_MAX: u32 = 512;
/// Entries taken at once from a queue of a partition where a pool is fed from queues with other labels as well: of what
/// stands behind a head nothing is known, and the others may hold what is older. So many at most come before that.
const TAKE_MIXED: u32 = 8;
/// How long a taken entry stays claimed before it goes back by itself.
const CLAIM: Span = Span::secs(10);

type Credit = VecDeque<(Reservation, Party)>;

/// Part of a take.
#[derive(Debug)]
struct Part {
    /// Where the queue's head was thought to be.
    from: i64,
    /// Whose credit it is for, in the list of this round.
    pool: usize,
}

pub(crate) async fn run(inner: Arc<Inner>) {
    let stopping = inner.stopping.clone();
    let feed = async {
        loop {
            inner.feed.notified().await;
            while !inner.draining.is_cancelled() && round(&inner).await {}
        }
    };
    let _stopped = stopping.run_until_cancelled(feed).await;
}

/// One take for all pools that have credit and queues with entries. False: there is nothing to be had.
async fn round(inner: &Inner) -> bool {
    let free = inner.dispatcher.lock().free_credit();
    let mut wanted: Vec<(Partition, QueueName, u32)> = Vec::new();
    let mut parts: Vec<Part> = Vec::new();
    let mut credit: Vec<Credit> = Vec::new();
    for (pool, free) in free {
        let mut sources = inner.queues.waiting(&pool);
        let Some(first) = sources.first() else { continue };
        // Up to the first that belongs to another queue; what comes then is seen in the next round.
        let oldest = sources.iter().take_while(|s| s.labels == first.labels).count();
        let most = if oldest < sources.len() { TAKE_MIXED } else { TAKE_MAX };
        sources.truncate(oldest);
        let share = free.min(TAKE_MAX).div_ceil(oldest as u32).min(most);
        let asked = free.min(TAKE_MAX).min(share.saturating_mul(oldest as u32));
        let mine = reserve(inner, &pool, asked);
        let mut left = mine.len() as u32;
        for source in sources {
            let n = share.min(left);
            if n > 0 {
                let queue = QueueName { task_type: pool.task_type.clone(), labels: source.labels };
                wanted.push((source.partition, queue, n));
                parts.push(Part { from: source.score, pool: credit.len() });
                left -= n;
            }
        }
        credit.push(mine);
    }
    if wanted.is_empty() {
        return false;
    }
    let taken = match inner.store.take(&wanted, CLAIM).await {
        Ok(taken) => taken,
        Err(error) => {
            tracing::warn!(%error, "queues could not be read; their next tick tries again");
            give_back(inner, credit);
            return false;
        }
    };
    let mut any = !taken.is_empty();
    let mut leases = Vec::with_capacity(taken.len());
    let mut taken = taken.into_iter().peekable();
    for ((partition, queue, asked), Part { from, pool }) in wanted.iter().zip(parts) {
        let (mut got, mut last) = (0, from);
        while got < *asked
            && let Some(t) = taken.next_if(|t| t.partition == *partition && t.queue == *queue)
        {
            got += 1;
            last = t.score;
            // If there is more than was asked for, the claim expires and the entry goes back.
            leases.extend(credit.get_mut(pool).and_then(VecDeque::pop_front).map(|c| (t, c)));
        }
        if got < *asked {
            // It makes way for those behind it.
            inner.queues.emptied(*partition, queue);
            any = true;
        } else {
            inner.queues.went_on(*partition, queue, from, last);
        }
    }
    for (taken, (reservation, party)) in leases {
        let (partition, run) = (taken.partition, taken.entry.run.clone());
        let ask = Ask::Lease { taken, reservation, party };
        // A lane that is gone means that the server is: claims and credit die with it.
        drop(inner.send(Envelope { partition, run, ask, reply: Reply::None }).await);
    }
    give_back(inner, credit);
    any
}

/// Sets up to `max` units of a pool's credit aside.
fn reserve(inner: &Inner, pool: &Pool, max: u32) -> Credit {
    let mut dispatcher = inner.dispatcher.lock();
    let mut mine = Credit::new();
    while (mine.len() as u32) < max
        && let Some(reserved) = dispatcher.reserve_in(pool)
    {
        mine.push_back(reserved);
    }
    mine
}

fn give_back(inner: &Inner, credit: Vec<Credit>) {
    let mut dispatcher = inner.dispatcher.lock();
    for (reservation, _) in credit.into_iter().flatten() {
        dispatcher.give_back(reservation);
    }
}
