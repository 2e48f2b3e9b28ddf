//! What follows a failed attempt: another one, or the end of the task.

use super::graph::{Cascade, End};
use super::step::{Step, Words};
use crate::model::event::EventKind;
use crate::model::plan::RetryPolicy;
use crate::model::run::TaskPhase;
use crate::model::time::Span;

/// Whether a failed attempt may be followed by another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Again {
    /// Never, whatever the policy says.
    Never,
    /// As the policy says; `after` overrides its delay.
    ByPolicy { after: Option<Span> },
}

/// How the task ends if no attempt follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ending {
    Failed,
    TimedOut,
}

impl Step<'_> {
    /// Ends an attempt with a failure. A lease that still stands must have been revoked or accepted.
    pub(super) fn fail_attempt(
        &mut self,
        i: u32,
        words: &Words,
        again: Again,
        ending: Ending,
        cascade: &mut Cascade,
    ) {
        let failure = self.add_failure(words, Some(i));
        let attempt = self.task(i).attempt;
        let delay = match again {
            Again::Never => None,
            Again::ByPolicy { after } => {
                let random = mix(self.env.random, u64::from(i) << 32 | u64::from(attempt));
                delay(&self.plan_of(i).retry, attempt, &words.code, after, random)
            }
        };
        let Some(delay) = delay else {
            let end = match ending {
                Ending::Failed => End::Failed { failure },
                Ending::TimedOut => End::TimedOut { failure },
            };
            return self.end_task(i, end, cascade);
        };
        self.log_task(EventKind::TaskRetrying, i, None, Some(failure));
        if delay == Span(0) {
            return self.next_attempt(i, cascade);
        }
        let due = self.now.plus(delay);
        self.task_mut(i).phase = TaskPhase::Retrying { due };
        self.want(due);
    }
}

/// How long to wait after the failure of attempt number `attempt`; none if it was the last.
/// Never over the policy's `max` (unless `after` says so), never zero unless asked for.
fn delay(policy: &RetryPolicy, attempt: u32, code: &str, after: Option<Span>, random: u64) -> Option<Span> {
    if attempt >= policy.max_attempts || policy.non_retryable.iter().any(|c| c == code) {
        return None;
    }
    if let Some(after) = after {
        return Some(Span(after.0.max(0)));
    }
    if policy.initial.0 <= 0 {
        return Some(Span(0));
    }
    let exponent = i32::try_from(attempt.saturating_sub(1)).unwrap_or(i32::MAX);
    let grown = policy.initial.0 as f64 * policy.factor.max(1.0).powi(exponent);
    let max = policy.max.0.max(1);
    // In floating point: anything over the cap, infinity included, is the cap.
    let full = if grown < max as f64 { grown } else { max as f64 };
    let share = (random >> 11) as f64 / (1u64 << 53) as f64;
    let taken_off = full * policy.jitter.clamp(0.0, 1.0) * share;
    Some(Span(((full - taken_off) as i64).clamp(1, max)))
}

/// Different randomness for each task and attempt of one decision (the finaliser of splitmix64).
fn mix(random: u64, salt: u64) -> u64 {
    let mut z = random.wrapping_add(salt.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn exact(initial: Span, factor: f64, max: Span) -> RetryPolicy {
        RetryPolicy { max_attempts: u32::MAX, initial, factor, max, jitter: 0.0, non_retryable: vec![] }
    }

    #[test]
    fn delays_grow_to_the_cap_and_never_overflow() {
        let ten_years = Span::secs(10 * 366 * 86_400);
        let p = exact(Span::secs(1), 2.0, ten_years);
        let at = |n| delay(&p, n, "x", None, u64::MAX).unwrap();
        assert_eq!([at(1), at(2), at(3)], [Span::secs(1), Span::secs(2), Span::secs(4)]);
        for n in [54, 64, 1_023, 1_100, u32::MAX - 1] {
            assert_eq!(at(n), ten_years, "attempt {n}");
        }
        let p = exact(Span::millis(1), 2.0, Span::millis(5));
        let five: Vec<i64> = (1..=5).map(|n| delay(&p, n, "x", None, 0).unwrap().as_millis()).collect();
        assert_eq!(five, [1, 2, 4, 5, 5]);
    }

    #[test]
    fn zero_is_at_once_and_only_if_asked_for() {
        let p = exact(Span(0), 1e300, Span::secs(1));
        assert_eq!(delay(&p, 1_000, "x", None, 7), Some(Span(0)));
        let p = RetryPolicy { jitter: 1.0, ..exact(Span(1), 1.0, Span::secs(1)) };
        assert_eq!(delay(&p, 1, "x", None, u64::MAX), Some(Span(1)));
        assert_eq!(delay(&p, 1, "x", Some(Span(0)), 0), Some(Span(0)));
        assert_eq!(delay(&p, 1, "x", Some(Span(-5)), 0), Some(Span(0)));
    }

    #[test]
    fn the_last_attempt_and_unretryable_codes_end_it() {
        let p = RetryPolicy { non_retryable: vec!["declined".into()], ..RetryPolicy::default() };
        assert!(delay(&p, 2, "x", None, 0).is_some());
        assert_eq!(delay(&p, 3, "x", None, 0), None);
        assert_eq!(delay(&p, 1, "declined", None, 0), None);
        assert_eq!(delay(&p, 1, "declined", Some(Span(1)), 0), None);
        let once = RetryPolicy { max_attempts: 1, ..p };
        assert_eq!(delay(&once, 1, "x", None, 0), None);
    }

    proptest! {
        #[test]
        fn every_delay_is_within_its_jitter(
            initial in 1i64..=i64::MAX, factor in 1.0f64..1e18, max in 1i64..=i64::MAX,
            jitter in 0.0f64..=1.0, attempt in 1u32..5_000, random: u64,
        ) {
            let p = RetryPolicy { jitter, ..exact(Span(initial), factor, Span(max)) };
            let full = delay(&exact(Span(initial), factor, Span(max)), attempt, "x", None, 0).unwrap();
            let d = delay(&p, attempt, "x", None, random).unwrap();
            prop_assert!(d.0 >= 1 && d <= full);
            prop_assert!(d.0 as f64 >= full.0 as f64 * (1.0 - jitter) - 1.0);
        }
    }
}
