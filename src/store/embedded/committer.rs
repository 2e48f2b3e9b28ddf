//! The one thread that writes: it runs whatever verbs have arrived in one transaction, writes them with one append
//! to the journal, and only then answers them.
//!
//! Invariants
//! - A verb sees what the verbs before it wrote, in its own group too; it is answered after its group has reached
//!   the operating system.
//! - After a failed write nothing more is written: the journal's tail is not known until the next start reads it.

use super::disk::Disk;
use crate::model::time::{Clock, Timestamp};
use crate::store::kv::{Effects, Kv as _, Shape, Tx};
use crate::store::{Result, StoreError};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};

/// Verbs in one group at most.
const GROUP: usize = 256;
/// Verbs that may wait for the thread.
pub(super) const QUEUE: usize = 1_024;
/// Between two syncs of the disk.
const SYNC_EVERY: Duration = Duration::from_secs(1);

/// A verb to run.
pub(super) type Job = Box<dyn FnOnce(&mut Tx<'_>, &Shape, Timestamp) -> Reply + Send>;

/// A verb that ran: what to tell others and whom to answer once it is written (or, with an error, could not be).
pub(super) struct Reply {
    effects: Effects,
    answer: Box<dyn FnOnce(Option<StoreError>) + Send>,
}

/// Makes a job of a verb, and the place of its answer.
pub(super) fn job<T: Send + 'static>(
    verb: impl FnOnce(&mut Tx<'_>, &Shape, Timestamp) -> Result<(T, Effects)> + Send + 'static,
) -> (Job, oneshot::Receiver<Result<T>>) {
    let (sender, receiver) = oneshot::channel();
    let job = move |tx: &mut Tx<'_>, shape: &Shape, now| {
        let (result, effects) = match tx.attempt(|tx| verb(tx, shape, now)) {
            Ok((value, effects)) => (Ok(value), effects),
            Err(e) => (Err(e), Effects::default()),
        };
        let answer = move |failed: Option<StoreError>| {
            // Whoever asked may be gone.
            let _ = sender.send(failed.map_or(result, Err));
        };
        Reply { effects, answer: Box::new(answer) }
    };
    (Box::new(job), receiver)
}

/// Runs until every sender of jobs is gone.
pub(super) fn run(
    mut disk: Disk,
    shape: Shape,
    clock: Arc<dyn Clock>,
    mut jobs: mpsc::Receiver<Job>,
    dirty: Arc<AtomicBool>,
    publish: impl Fn(Effects),
) {
    let mut broken: Option<StoreError> = None;
    while let Some(first) = jobs.blocking_recv() {
        let now = clock.now();
        let mut tx = Tx::new(&disk);
        let mut replies = vec![first(&mut tx, &shape, now)];
        while replies.len() < GROUP
            && let Ok(next) = jobs.try_recv()
        {
            replies.push(next(&mut tx, &shape, now));
        }
        let writes = tx.into_writes();
        let failed = match (&broken, writes.is_empty()) {
            (_, true) => None,
            (Some(e), false) => Some(e.clone()),
            (None, false) => disk.apply(writes).err(),
        };
        if let (Some(e), None) = (&failed, &broken) {
            tracing::error!(error = %e, "a write to the data directory failed: no more is written until a restart");
            let message = format!("{e}; nothing more is written until a restart");
            broken = Some(StoreError::Unavailable { message, sent: false });
        }
        dirty.store(true, Ordering::Release);
        for reply in replies {
            (reply.answer)(failed.clone());
            if failed.is_none() {
                publish(reply.effects);
            }
        }
    }
}

/// Syncs the disk every second while something was written, and at the end.
pub(super) fn sync(disk: &Disk, stop: &std::sync::mpsc::Receiver<()>, dirty: &AtomicBool) {
    loop {
        let stopped = stop.recv_timeout(SYNC_EVERY) != Err(std::sync::mpsc::RecvTimeoutError::Timeout);
        if dirty.swap(false, Ordering::AcqRel)
            && let Err(e) = disk.sync()
        {
            // The map refuses all writes from now on, so the next group says it too.
            tracing::error!(error = %e, "the data directory cannot be synced");
        }
        if stopped {
            return;
        }
    }
}
