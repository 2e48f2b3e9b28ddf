//! Moves waiting tasks to workers that have credit: reserve, take, lease. Runs whenever credit or entries
//! may have come, and never on a timer of its own.

use super::inner::Inner;
use super::lane::envelope::{Ask, Envelope, Reply};
use crate::dispatch::Reservation;
use crate::dispatch::dispatcher::Party;
use crate::model::ids::{Partition, TaskType};
use crate::model::time::Span;
use crate::store::Taken;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// Entries of one type taken at once.
const TAKE_MAX: u32 = 512;
/// How long a taken entry stays claimed before it goes back by itself.
const CLAIM: Span = Span::secs(10);

type Credit = VecDeque<(Reservation, Party)>;

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

/// One take for all types that have both credit and entries. False: nothing was there.
async fn round(inner: &Inner) -> bool {
    let free = inner.dispatcher.lock().free_credit();
    let mut wanted: Vec<(Partition, TaskType, u32)> = Vec::new();
    let mut credit: BTreeMap<TaskType, Credit> = BTreeMap::new();
    for (task_type, free) in free {
        let partitions = inner.queues.waiting(&task_type);
        if partitions.is_empty() {
            continue;
        }
        let mut left = reserve(inner, &task_type, free.min(TAKE_MAX), &mut credit);
        let share = left.div_ceil(partitions.len() as u32);
        for partition in partitions {
            let n = share.min(left);
            if n > 0 {
                wanted.push((partition, task_type.clone(), n));
                left -= n;
            }
        }
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
    let mut counts: BTreeMap<(Partition, &TaskType), u32> = BTreeMap::new();
    for t in &taken {
        *counts.entry((t.partition, &t.task_type)).or_default() += 1;
    }
    for (partition, task_type, asked) in &wanted {
        if counts.get(&(*partition, task_type)).copied().unwrap_or_default() < *asked {
            inner.queues.emptied(*partition, task_type);
        }
    }
    let any = !taken.is_empty();
    for t in taken {
        lease(inner, t, &mut credit).await;
    }
    give_back(inner, credit);
    any
}

/// Sets up to `max` units of credit aside; returns how many.
fn reserve(inner: &Inner, task_type: &TaskType, max: u32, credit: &mut BTreeMap<TaskType, Credit>) -> u32 {
    let mut dispatcher = inner.dispatcher.lock();
    let mine = credit.entry(task_type.clone()).or_default();
    while (mine.len() as u32) < max
        && let Some(reserved) = dispatcher.reserve(task_type)
    {
        mine.push_back(reserved);
    }
    mine.len() as u32
}

async fn lease(inner: &Inner, taken: Taken, credit: &mut BTreeMap<TaskType, Credit>) {
    let Some((reservation, party)) = credit.get_mut(&taken.task_type).and_then(VecDeque::pop_front) else {
        // More than was asked for; the claim expires and the entry goes back.
        return;
    };
    let (partition, run) = (taken.partition, taken.entry.run.clone());
    let ask = Ask::Lease { taken, reservation, party };
    // A lane that is gone means that the server is: claims and credit die with it.
    drop(inner.send(Envelope { partition, run, ask, reply: Reply::None }).await);
}

fn give_back(inner: &Inner, credit: BTreeMap<TaskType, Credit>) {
    let mut dispatcher = inner.dispatcher.lock();
    for (reservation, _) in credit.into_values().flatten() {
        dispatcher.give_back(reservation);
    }
}
