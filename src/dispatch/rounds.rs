//! Which sessions a round has to look at, so that it costs what is due and not how many there are: a thousand idle
//! workers are looked at when they are pinged and when they have answered, and otherwise not at all.
//!
//! Invariants
//! - A session stands in `pings` and in `unheard` from its opening until it is found gone there, each time once.
//! - A session that is not in `busy` holds nothing, owes no acknowledgement and is no suspect.
//! - A session that is not in `heard` was not heard since its lease was last renewed.
//!
//! To add a round: a set here, where it is entered and left in the dispatcher, and a look that takes from its front.

use super::dispatcher::SessionKey;
use std::collections::BTreeSet;
use std::time::Duration;
use tokio::time::Instant;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Rounds {
    /// By when it was last pinged, or its turn was.
    pings: BTreeSet<(Instant, SessionKey)>,
    /// By when it was last heard, as of the last look.
    unheard: BTreeSet<(Instant, SessionKey)>,
    /// Heard since the lease was last renewed.
    pub(super) heard: BTreeSet<SessionKey>,
    /// Holds work, owes an acknowledgement, or is left alone for now.
    pub(super) busy: BTreeSet<SessionKey>,
}

impl Rounds {
    /// A session that was opened at `now`.
    pub(super) fn enter(&mut self, key: SessionKey, now: Instant) {
        self.pings.insert((now, key));
        self.unheard.insert((now, key));
        self.heard.insert(key);
    }

    /// A session that is closed.
    pub(super) fn leave(&mut self, key: SessionKey) {
        self.heard.remove(&key);
        self.busy.remove(&key);
    }

    /// Those whose turn to be pinged has come, each of which `first` may say that it is its first. Their turns are
    /// dealt out over the interval by their keys, lest a thousand that came together be pinged together for ever.
    pub(super) fn pinged(&mut self, now: Instant, every: Duration, mut ping: impl FnMut(SessionKey) -> Turn) {
        while let Some((last, key)) = self.pings.first().copied()
            && now.duration_since(last) >= every
        {
            self.pings.pop_first();
            let next = match ping(key) {
                Turn::Gone => continue,
                Turn::First => now.checked_sub(every * share_of(key) / 1_024).unwrap_or(now),
                Turn::Again if now.duration_since(last) < every * 2 => last + every,
                Turn::Again => now,
            };
            self.pings.insert((next, key));
        }
    }

    /// Those that were not heard since `since`. `last` says when each was heard last; none if it is gone.
    pub(super) fn silent(
        &mut self,
        since: Instant,
        last: impl Fn(SessionKey) -> Option<Instant>,
    ) -> Vec<SessionKey> {
        let mut silent = Vec::new();
        let mut looked = Vec::new();
        while let Some((at, key)) = self.unheard.first().copied()
            && at < since
        {
            self.unheard.pop_first();
            let Some(last) = last(key) else { continue };
            looked.push((last, key));
            if last < since {
                silent.push(key);
            }
        }
        self.unheard.extend(looked);
        silent
    }
}

/// What [`Rounds::pinged`] is told of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Turn {
    /// It is gone.
    Gone,
    /// It was pinged for the first time.
    First,
    /// It was pinged again.
    Again,
}

/// A session's place in the interval, in 1,024ths.
fn share_of(key: SessionKey) -> u32 {
    (key.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 54) as u32
}
