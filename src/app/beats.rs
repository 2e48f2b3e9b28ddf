//! A server's own sign of life: a session record under its boot nonce, renewed in one call with those of its workers.
//!
//! When a worker's session has passed, it tells whose silence that was. If the server is there, it would have heard the
//! worker: the worker is gone. If the server fell silent as well (stopped, cut off, dead), nothing is known of the
//! worker, which may be at work; it is waited for a while longer, in which the server goes on or the worker finds
//! another one ([`crate::engine`] says how long).
//!
//! Invariant: a server that has sessions beats at least as often as it renews them, and under the same lease. So when a session has
//! passed, a server that lives has more than three quarters of the lease left, and one that fell silent with it less:
//! a session is renewed no later than four thirds of the ping interval after it was heard, and that is at most two
//! thirds of the lease.

use super::inner::Inner;
use crate::model::ids::{Nonce, Partition, SessionId};
use crate::model::time::{LeaseTime, Span};
use crate::store::{Layout, Result, SessionRecord};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::time::Duration;
use tokio::time::Instant;

/// No stream ever takes a server's session over.
const EPOCH: u32 = 1;

/// The session of a server.
pub(super) fn of(boot: Nonce, layout: Layout) -> SessionId {
    let random = u128::from_be_bytes(boot.0);
    let home = Partition((random >> 112) as u16 % layout.partitions.max(1));
    SessionId::generate(home, random)
}

/// What is renewed along with the sessions of workers.
pub(super) fn own(inner: &Inner) -> (SessionId, u32) {
    (of(inner.boot, inner.layout), EPOCH)
}

/// The first beat, or the first after the store lost it.
pub(super) async fn begin(inner: &Inner) -> Result<()> {
    let record = SessionRecord {
        epoch: EPOCH,
        label: "server".to_owned(),
        owner: inner.boot,
        deadline: LeaseTime::default(),
        lease_now: LeaseTime::default(),
    };
    // False: it is there, which is as good.
    inner.store.put_session(&own(inner).0, &record, None, inner.options.lease).await?;
    Ok(())
}

/// A server beats for so long after its last session is gone: until every run has looked what became of it.
pub(super) fn long_after(lease: Span) -> Duration {
    lease.to_std() * 4
}

/// Whether the server of this record has beaten lately.
pub(super) fn lives(beat: &SessionRecord, lease: Span) -> bool {
    beat.remaining() > Span(lease.0 / 4 * 3)
}

/// How long an epoch is new. The worker named what it holds with the `Hello` that began it; each of these is a commit.
const NEW: Duration = Duration::from_secs(3);
/// So many are remembered; then all are forgotten, and are new once more.
const EPOCHS: usize = 65_536;

/// When this server first saw the epoch of a session that had been resumed. The store does not say when one began, and a
/// run that is looked at between the epoch and what it brings must not take for lost what its worker has just named.
#[derive(Debug, Default)]
pub(crate) struct Epochs(Mutex<HashMap<SessionId, (u32, Instant)>>);

impl Epochs {
    /// Whether this epoch of a session is new here.
    pub(super) fn is_new(&self, id: &SessionId, epoch: u32) -> bool {
        if epoch <= EPOCH {
            return false;
        }
        let now = Instant::now();
        let mut seen = self.0.lock();
        if seen.len() >= EPOCHS {
            seen.clear();
        }
        let (known, since) = seen.entry(id.clone()).or_insert((epoch, now));
        if *known != epoch {
            (*known, *since) = (epoch, now);
        }
        since.elapsed() < NEW
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_epoch_is_new_for_a_while_and_the_first_never() {
        let (epochs, id) = (Epochs::default(), SessionId::generate(Partition(0), 1));
        assert!(!epochs.is_new(&id, 1));
        assert!(epochs.is_new(&id, 2));
        tokio::time::advance(NEW).await;
        assert!(!epochs.is_new(&id, 2));
        assert!(epochs.is_new(&id, 3));
    }
}
