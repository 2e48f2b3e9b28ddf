//! What a link can tell of itself: numbers for metrics and `downbeat doctor`, a clause for errors.

use serde::Serialize;
use std::fmt;
use std::time::Duration;

/// How a link to Redis is doing. Counters count from the start of the process.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct LinkReport {
    /// Whether there is a connection.
    pub connected: bool,
    /// Why there is none, or why the last one ended.
    pub reason: Option<String>,
    /// Commands that wait to be written.
    pub queued: u64,
    /// Bytes of them.
    pub queued_bytes: u64,
    /// Commands that are written and not answered.
    pub in_flight: u64,
    /// How long the oldest of both has been waiting, in seconds.
    pub oldest_seconds: Option<f64>,
    /// Bytes read.
    pub bytes_in: u64,
    /// Bytes written.
    pub bytes_out: u64,
    /// Commands given to a connection.
    pub commands: u64,
    /// Connections made.
    pub connections: u64,
    /// How long the one of now has been there, in seconds.
    pub connected_seconds: Option<f64>,
    /// Commands that failed and were never written.
    pub not_sent: u64,
    /// Commands that failed and may have been written.
    pub maybe_sent: u64,
    /// How often another Redis process answered than before.
    pub replaced: u64,
    /// What Redis last said of its persistence.
    pub persistence: Option<Persistence>,
}

impl LinkReport {
    /// All together: connected if all are, the first reason, the oldest wait, the youngest connection; persistence only if
    /// there is one.
    pub(in crate::store::redis) fn sum(mut reports: impl Iterator<Item = Self>) -> Self {
        let mut sum = reports.next().unwrap_or_default();
        for report in reports {
            sum.connected &= report.connected;
            sum.reason = sum.reason.or(report.reason);
            sum.queued += report.queued;
            sum.queued_bytes += report.queued_bytes;
            sum.in_flight += report.in_flight;
            let wait = [sum.oldest_seconds, report.oldest_seconds].into_iter().flatten();
            sum.oldest_seconds = wait.reduce(f64::max);
            sum.bytes_in += report.bytes_in;
            sum.bytes_out += report.bytes_out;
            sum.commands += report.commands;
            sum.connections += report.connections;
            let age = sum.connected_seconds.zip(report.connected_seconds);
            sum.connected_seconds = age.map(|(a, b)| a.min(b));
            sum.not_sent += report.not_sent;
            sum.maybe_sent += report.maybe_sent;
            sum.replaced += report.replaced;
            sum.persistence = None;
        }
        sum
    }
}

/// What Redis said of its persistence.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Persistence {
    /// How long ago, in seconds.
    pub asked_seconds_ago: f64,
    /// How long its last fork took, during which it did nothing else, in seconds.
    pub latest_fork_seconds: f64,
    /// It reads its data set, and takes no commands.
    pub loading: bool,
    /// It saves a snapshot.
    pub saving: bool,
    /// It rewrites its append-only file.
    pub rewriting: bool,
}

impl Persistence {
    /// From what `INFO` says.
    pub(super) fn read(info: &str) -> Self {
        let is = |name| field(info, name) == "1";
        Self {
            asked_seconds_ago: 0.0,
            latest_fork_seconds: field(info, "latest_fork_usec").parse::<f64>().unwrap_or(0.0) / 1e6,
            loading: is("loading"),
            saving: is("rdb_bgsave_in_progress"),
            rewriting: is("aof_rewrite_in_progress"),
        }
    }
}

/// A line of `INFO`; empty if it is not there.
pub(in crate::store::redis) fn field<'a>(info: &'a str, name: &str) -> &'a str {
    info.lines().find_map(|line| line.trim_end().strip_prefix(name)?.strip_prefix(':')).unwrap_or_default()
}

fn seconds(s: f64) -> String {
    format!("{:.1} s", Duration::from_secs_f64(s.clamp(0.0, 1e9)).as_secs_f64())
}

fn bytes(n: u64) -> String {
    match n {
        0..1_000 => format!("{n} B"),
        1_000..1_000_000 => format!("{:.1} kB", n as f64 / 1e3),
        _ => format!("{:.1} MB", n as f64 / 1e6),
    }
}

/// The clause that stands in errors.
impl fmt::Display for LinkReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} queued, {} in flight", self.queued, self.in_flight)?;
        if let Some(oldest) = self.oldest_seconds {
            write!(f, ", oldest {}", seconds(oldest))?;
        }
        write!(f, ", {} in, {} out", bytes(self.bytes_in), bytes(self.bytes_out))?;
        match self.connected_seconds {
            Some(age) => write!(f, ", connected for {}", seconds(age))?,
            None => write!(f, ", not connected")?,
        }
        let Some(said) = &self.persistence else { return Ok(()) };
        write!(
            f,
            "; Redis {} ago: last fork {:.0} ms",
            seconds(said.asked_seconds_ago),
            said.latest_fork_seconds * 1e3
        )?;
        for (is, what) in [(said.loading, "loading"), (said.saving, "saving"), (said.rewriting, "rewriting")]
        {
            if is {
                write!(f, ", {what}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_redis_says_of_its_persistence_is_read_and_told() {
        let info = "# Persistence\r\nloading:0\r\nrdb_bgsave_in_progress:1\r\naof_rewrite_in_progress:0\r\n\
                    # Stats\r\nlatest_fork_usec:12345\r\n";
        let said = Persistence::read(info);
        assert!(said.saving && !said.loading && !said.rewriting);
        let report = LinkReport {
            queued: 3,
            in_flight: 12,
            oldest_seconds: Some(4.14),
            bytes_in: 999,
            bytes_out: 3_400_000,
            connected_seconds: Some(62.0),
            persistence: Some(Persistence { asked_seconds_ago: 8.0, ..said }),
            ..LinkReport::default()
        };
        assert_eq!(
            report.to_string(),
            "3 queued, 12 in flight, oldest 4.1 s, 999 B in, 3.4 MB out, connected for 62.0 s; Redis 8.0 s ago: last \
             fork 12 ms, saving"
        );
        let down = LinkReport::default().to_string();
        assert_eq!(down, "0 queued, 0 in flight, 0 B in, 0 B out, not connected");
        assert_eq!(Persistence::read("junk"), Persistence::default());
    }
}
