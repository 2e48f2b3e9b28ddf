//! Time as values: integer microseconds on two clocks that never mix.
//!
//! [`Timestamp`] is the store's wall clock; [`LeaseTime`] is a partition's lease clock, which stands
//! still while Downbeat or its store does (rule: a stall expires nobody). Source: docs/adr/0005-clocks.md.

use std::fmt;

/// An instant: microseconds since the Unix epoch, UTC, on the store's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp(pub i64);

/// An instant on one partition's lease clock: microseconds since that clock began.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct LeaseTime(pub i64);

/// A length of time in microseconds, never negative.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Span(pub i64);

impl Span {
    /// `ms` milliseconds, saturating.
    pub const fn millis(ms: i64) -> Self {
        Self(ms.saturating_mul(1_000))
    }
    /// `s` seconds, saturating.
    pub const fn secs(s: i64) -> Self {
        Self(s.saturating_mul(1_000_000))
    }
    /// Whole milliseconds, rounded down.
    pub const fn as_millis(self) -> i64 {
        self.0 / 1_000
    }
    /// As the standard library's duration.
    pub fn to_std(self) -> std::time::Duration {
        std::time::Duration::from_micros(self.0.max(0).unsigned_abs())
    }
}

macro_rules! instant {
    ($t:ident) => {
        impl $t {
            /// `ms` milliseconds after the clock's zero.
            pub const fn from_millis(ms: i64) -> Self {
                Self(ms.saturating_mul(1_000))
            }
            /// Whole milliseconds since the clock's zero, rounded down.
            pub const fn as_millis(self) -> i64 {
                self.0.div_euclid(1_000)
            }
            /// This instant plus `span`; stops at the end of time instead of overflowing.
            pub const fn plus(self, span: Span) -> Self {
                Self(self.0.saturating_add(span.0))
            }
            /// From `earlier` to this instant; zero if `earlier` is later.
            pub const fn since(self, earlier: Self) -> Span {
                let d = self.0.saturating_sub(earlier.0);
                Span(if d < 0 { 0 } else { d })
            }
        }
    };
}
instant!(Timestamp);
instant!(LeaseTime);

impl fmt::Display for Timestamp {
    /// RFC 3339 in UTC with six decimals: `2026-11-30T18:31:59.000123Z`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match jiff::Timestamp::from_microsecond(self.0) {
            Ok(t) => write!(f, "{t:.6}"),
            Err(_) => write!(f, "{}us", self.0),
        }
    }
}

/// Where a process that has no store yet reads the wall clock. Everything else takes the store's.
pub trait Clock: Send + Sync {
    /// Now.
    fn now(&self) -> Timestamp;
}

/// The machine's clock.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    #[expect(clippy::disallowed_methods, reason = "the one place that reads the wall clock")]
    fn now(&self) -> Timestamp {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        Timestamp(since.map_or(0, |d| i64::try_from(d.as_micros()).unwrap_or(i64::MAX)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arithmetic_saturates() {
        assert_eq!(Timestamp(i64::MAX).plus(Span(1)), Timestamp(i64::MAX));
        assert_eq!(Timestamp(5).since(Timestamp(9)), Span(0));
        assert_eq!(Span::secs(i64::MAX), Span(i64::MAX));
    }

    #[test]
    fn prints_as_rfc_3339_with_microseconds() {
        assert_eq!(Timestamp(1_000_123).to_string(), "1970-01-01T00:00:01.000123Z");
        assert_eq!(Timestamp(0).to_string(), "1970-01-01T00:00:00.000000Z");
    }
}
