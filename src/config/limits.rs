//! `[limits]`: what the doors take at most and how long they wait. `docs/guide/limits-at-the-door.md` explains each.
//!
//! To add one: a line in `config.default.toml`, its key in `LimitsKeys`, a field here and its range below.

use super::Checked;
use std::time::Duration;

/// `[limits]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Connections at once.
    pub connections: usize,
    /// HTTP/2 streams at once per connection.
    pub streams: u32,
    /// Followers of events at once.
    pub events: usize,
    /// Streams of workers at once.
    pub workers: usize,
    /// Streams of starts at once.
    pub starts: usize,
    /// Headers of a request.
    pub headers: usize,
    /// KiB of all headers of a request.
    pub header_kb: usize,
    /// KiB of the address of a request.
    pub address_kb: usize,
    /// MiB of all bodies together.
    pub body_memory_mb: usize,
    /// For the first bytes of a connection and for the head of each request; how long HTTP/1.1 may be idle.
    pub head: Duration,
    /// For a body, or a message that has begun.
    pub body: Duration,
    /// For a reader that does not read.
    pub stalled: Duration,
    /// How often HTTP/2 connections are pinged.
    pub ping: Duration,
    /// For the answer to that.
    pub ping_answer: Duration,
}

impl Checked<'_> {
    /// A whole number within a range.
    fn within(&mut self, key: &'static str, least: u32, most: u32) -> u32 {
        let text = self.text("limits", key);
        let number = text.parse().ok().filter(|n| (least..=most).contains(n));
        number.unwrap_or_else(|| {
            self.fault("limits", key, format!("{text:?} is no number from {least} to {most}"));
            least
        })
    }

    /// The section.
    pub(super) fn limits(&mut self) -> Limits {
        let minutes = |n| Duration::from_mins(n);
        Limits {
            connections: self.within("connections", 1, 1_000_000) as usize,
            streams: self.within("streams", 1, 100_000),
            events: self.within("events", 1, 1_000_000) as usize,
            workers: self.within("workers", 1, 1_000_000) as usize,
            starts: self.within("starts", 1, 100_000) as usize,
            headers: self.within("headers", 16, 1_000) as usize,
            header_kb: self.within("header_kb", 4, 1_024) as usize,
            address_kb: self.within("address_kb", 1, 63) as usize,
            body_memory_mb: self.within("body_memory_mb", 16, 65_536) as usize,
            head: self.duration("limits", "head", minutes(10)),
            body: self.duration("limits", "body", minutes(10)),
            stalled: self.duration("limits", "stalled", minutes(10)),
            ping: self.duration("limits", "ping", minutes(10)),
            ping_answer: self.duration("limits", "ping_answer", minutes(10)),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::config::{Config, ConfigError, Overrides};
    use std::time::Duration;

    #[test]
    fn limits_are_read_within_their_ranges_and_their_faults_told() {
        let file = "[limits]\nconnections = \"500\"\nbody = \"90s\"";
        let env = |name: &str| (name == "DOWNBEAT_LIMIT_HEADERS").then(|| "64".to_owned());
        let flags = Overrides::from([(("limits", "events"), "7".to_owned())]);
        let limits = Config::of(Some(("f.toml", file)), env, flags).unwrap().limits;
        assert_eq!((limits.connections, limits.headers, limits.events), (500, 64, 7));
        assert_eq!((limits.body, limits.head), (Duration::from_secs(90), Duration::from_secs(20)));
        let file = "[limits]\nconnections = \"0\"\naddress_kb = \"64\"\nstalled = \"0s\"\nworkers = \"many\"";
        let ConfigError(text) = Config::of(Some(("f.toml", file)), |_| None, Overrides::new()).unwrap_err();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(
            lines,
            [
                "f.toml: limits.connections: \"0\" is no number from 1 to 1000000",
                "f.toml: limits.workers: \"many\" is no number from 1 to 1000000",
                "f.toml: limits.address_kb: \"64\" is no number from 1 to 63",
                "f.toml: limits.stalled: \"0s\" must be more than 0 and at most 600s",
            ]
        );
    }
}
