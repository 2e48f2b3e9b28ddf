//! What the links to Redis tell for `/metrics`, all of them together. docs/guide/metrics.md explains the names.

use super::LinkReport;
use crate::store::Reading;

/// The readings of a report: the same names, always; what is not known is 0.
pub(super) fn of(report: &LinkReport) -> Vec<Reading> {
    let LinkReport {
        connected,
        reason: _,
        queued,
        queued_bytes,
        in_flight,
        oldest_seconds,
        bytes_in,
        bytes_out,
        commands,
        connections,
        connected_seconds,
        not_sent,
        maybe_sent,
        replaced,
        persistence,
    } = report;
    let said = persistence.clone().unwrap_or_default();
    let gauge = |name, help, value| Reading { name, help, rises: false, value };
    let counter = |name, help, value: u64| Reading { name, help, rises: true, value: value as f64 };
    let is = |flag: bool| f64::from(u8::from(flag));
    vec![
        gauge(
            "connected",
            "1 while there is a connection to Redis; on a cluster to each primary",
            is(*connected),
        ),
        gauge("connected_seconds", "Age of the youngest connection", connected_seconds.unwrap_or_default()),
        counter("connections", "Connections that were made", *connections),
        gauge("queued_commands", "Commands that wait to be written", *queued as f64),
        gauge("queued_bytes", "Bytes of commands that wait to be written", *queued_bytes as f64),
        gauge("in_flight_commands", "Commands that are written and not answered", *in_flight as f64),
        gauge(
            "oldest_command_seconds",
            "How long the oldest command has been waiting",
            oldest_seconds.unwrap_or_default(),
        ),
        counter("commands", "Commands that were written", *commands),
        counter("read_bytes", "Bytes that were read", *bytes_in),
        counter("written_bytes", "Bytes that were written", *bytes_out),
        counter("failed_unsent_commands", "Commands that failed and were never written", *not_sent),
        counter("failed_sent_commands", "Commands that failed and may have been written", *maybe_sent),
        counter("replaced", "How often another process of Redis answered than before", *replaced),
        gauge("last_fork_seconds", "How long the last fork of Redis took", said.latest_fork_seconds),
        gauge("loading", "1 while Redis reads its data set", is(said.loading)),
        gauge("saving", "1 while Redis saves a snapshot", is(said.saving)),
        gauge("rewriting", "1 while Redis rewrites its append-only file", is(said.rewriting)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::redis::Persistence;

    #[test]
    fn the_same_names_are_told_whatever_is_known() {
        let names = |report: &LinkReport| of(report).iter().map(|r| r.name).collect::<Vec<_>>();
        let persistence =
            Some(Persistence { latest_fork_seconds: 0.25, saving: true, ..Persistence::default() });
        let full = LinkReport {
            connected: true,
            oldest_seconds: Some(1.5),
            connected_seconds: Some(60.0),
            persistence,
            ..LinkReport::default()
        };
        assert_eq!(names(&full), names(&LinkReport::default()));
        let value = |name| of(&full).into_iter().find(|r| r.name == name).map(|r| r.value);
        for (name, wanted) in [
            ("connected", 1.0),
            ("oldest_command_seconds", 1.5),
            ("connected_seconds", 60.0),
            ("last_fork_seconds", 0.25),
            ("saving", 1.0),
            ("loading", 0.0),
        ] {
            assert_eq!(value(name), Some(wanted), "{name}");
        }
    }
}
