//! A server that starts before its Redis can be used: what passes by itself is waited for, within a limit.
//!
//! ```text
//! open ─► it is there: on with it
//!      └► not now ─► a pause, longer each time ─► open …   told in the log at once and every ten seconds
//!      └► not at all, or not in time ─► the end, with the reason
//! ```
//!
//! Invariants
//! - What does not pass by itself ends it at once.
//! - Only a server waits, and only for a Redis: other commands, and the embedded store, fail at once.
//! - Whoever asks meanwhile is told why ([`Waiting::why`]).
//!
//! What passes is for the store to say: `StoreError::passes`.

use crate::model::time::{Clock as _, Span, SystemClock};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

/// Pauses between attempts: the first and the longest, before jitter.
const PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));
/// How often the log says what is waited for.
const TOLD_EVERY: Duration = Duration::from_secs(10);

/// Why a server is not there yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NotYet {
    /// What is wrong; it names no address.
    pub(super) why: String,
    /// Whether it may pass by itself.
    pub(super) passes: bool,
}

/// A wait for what passes by itself.
#[derive(Debug)]
pub(super) struct Waiting {
    within: Duration,
    why: watch::Sender<String>,
}

impl Waiting {
    /// One that is over after `within`.
    pub(super) fn new(within: Duration) -> Self {
        Self { within, why: watch::Sender::new("it is being opened".to_owned()) }
    }

    /// What is waited for just now.
    pub(super) fn why(&self) -> watch::Receiver<String> {
        self.why.subscribe()
    }

    /// Tries until it succeeds.
    ///
    /// # Errors
    /// What does not pass by itself, or what was still in the way when the time was over. An attempt that is under way
    /// then is not cut short.
    pub(super) async fn until_open<T, F>(self, mut open: impl FnMut() -> F) -> Result<T, String>
    where
        F: Future<Output = Result<T, NotYet>>,
    {
        let began = Instant::now();
        let until = SystemClock.now().plus(Span(i64::try_from(self.within.as_micros()).unwrap_or(i64::MAX)));
        let (mut pause, mut told) = (PAUSE.0, None);
        loop {
            let NotYet { why, passes } = match open().await {
                Ok(opened) => return Ok(opened),
                Err(not_yet) => not_yet,
            };
            if !passes {
                return Err(why);
            }
            let left = self.within.saturating_sub(began.elapsed());
            if left.is_zero() {
                let waited = began.elapsed().as_secs();
                return Err(format!("{why}; waited {waited} s for it (redis.start_wait)"));
            }
            if told.is_none_or(|at: Instant| at.elapsed() >= TOLD_EVERY) {
                tracing::warn!(%until, why, "the store cannot be used yet; waiting for it");
                told = Some(Instant::now());
            }
            self.why.send_replace(why);
            sleep(jittered(pause).min(left)).await;
            pause = (pause * 2).min(PAUSE.1);
        }
    }
}

/// Between half of `pause` and all of it.
fn jittered(pause: Duration) -> Duration {
    let mut random = [0; 1];
    // Without randomness all servers come back together, which Redis survives.
    let _ = getrandom::fill(&mut random);
    pause / 2 + (pause / 2) * u32::from(random[0]) / 255
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    const MINUTE: Duration = Duration::from_mins(1);

    fn away(passes: bool) -> NotYet {
        NotYet { why: "it is away".into(), passes }
    }

    #[tokio::test(start_paused = true)]
    async fn what_passes_is_waited_for_and_told() {
        let waiting = Waiting::new(MINUTE);
        let why = waiting.why();
        assert_eq!(*why.borrow(), "it is being opened");
        let (began, tries) = (Instant::now(), Cell::new(0));
        let opened = waiting.until_open(|| {
            tries.set(tries.get() + 1);
            let there = began.elapsed() > MINUTE / 2;
            assert!(tries.get() == 1 || *why.borrow() == away(true).why);
            async move { if there { Ok(7) } else { Err(away(true)) } }
        });
        assert_eq!(opened.await.ok(), Some(7));
        // Back-off: pauses of one to two seconds, in the end.
        assert!((18..40).contains(&tries.get()), "{}", tries.get());
    }

    #[tokio::test(start_paused = true)]
    async fn a_wait_has_an_end_that_says_why() {
        let began = Instant::now();
        let opened = Waiting::new(MINUTE).until_open(|| async { Result::<(), _>::Err(away(true)) });
        assert_eq!(opened.await.unwrap_err(), "it is away; waited 60 s for it (redis.start_wait)");
        assert_eq!(began.elapsed().as_secs(), 60);
    }

    #[tokio::test(start_paused = true)]
    async fn what_does_not_pass_ends_it_at_once() {
        let began = Instant::now();
        let opened = Waiting::new(MINUTE).until_open(|| async { Result::<(), _>::Err(away(false)) });
        assert_eq!(opened.await.unwrap_err(), "it is away");
        assert_eq!(began.elapsed(), Duration::ZERO);
    }
}
