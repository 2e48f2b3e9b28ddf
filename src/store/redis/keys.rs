//! The only place a Redis key is spelled. Layout 2; source: docs/adr/0003-store-layout.md, migrations/0002.
//!
//! ```text
//! db:meta                hash     layout, partitions, epoch
//! db:{w}:names           zset     names of workflows by creation of the newest version, µs
//! db:{w}:newest          hash     name → newest version
//! db:{w}:d:NAME          hash     version → document, "t" version → created µs
//!
//! of partition P:
//! db:{P}:r:RUN           string   record: prefix 24 B ‖ state
//! db:{P}:p:RUN           hash     payloads, if any
//! db:{P}:index           zset     run by creation, µs
//! db:{P}:wake            zset     run by wake-up, µs
//! db:{P}:keep            zset     finished run by the time it goes, µs
//! db:{P}:q:QUEUE         zset     ready entry by place
//! db:{P}:types           set      queues whose ready zset is not empty
//! db:{P}:claimed         zset     QUEUE 00 entry by expiry, µs
//! db:{P}:places          hash     QUEUE 00 entry → its place in the ready zset
//! db:{P}:clock           string   "LEASE WALL RETAINED SWEPT", µs: the lease clock, and by the wall clock the last tick,
//!                                 the last look at retention, the last sweep
//! db:{P}:sessions        hash     SESSION → "EPOCH " ‖ owner 16 B ‖ label
//! db:{P}:leases          zset     "SESSION EPOCH" by deadline on the lease clock, µs
//! db:{P}:l:LANE          hash     window of a lane, see lua/commit.lua; expires
//! db:{P}:events          stream   field n: notes of one batch
//! db:{P}:trimmed         string   position of the last entry trimmed
//!
//! channel  db:hints:EPOCH         "P QUEUE": that queue went from empty to non-empty
//! ```
//!
//! QUEUE is a task type, or `TYPE;key=value;…` with the labels its tasks ask for, by key.
//!
//! `{P}` is the hash tag, so all of a partition is in one slot. To add a key: here, in the ADR and in migrations.

use crate::model::ids::{Nonce, Partition, RunId, WorkflowName};
use crate::model::labels::QueueName;
use std::fmt::Write as _;

/// The meta record.
pub(super) const META: &str = "db:meta";
/// Names of workflows by time.
pub(super) const WORKFLOW_NAMES: &str = "db:{w}:names";
/// Newest versions of workflows.
pub(super) const WORKFLOW_NEWEST: &str = "db:{w}:newest";
/// What readiness writes.
pub(super) const PROBE: &str = "db:probe";

/// What the measurement of the link writes, for a moment.
pub(super) fn strain(caller: usize, n: u64) -> String {
    format!("db:strain:{caller}:{n}")
}

pub(super) fn documents(name: &WorkflowName) -> String {
    format!("db:{{w}}:d:{name}")
}

pub(super) fn hints(epoch: u64) -> String {
    format!("db:hints:{epoch}")
}

fn of(partition: Partition, rest: &str) -> String {
    format!("db:{{{}}}:{rest}", partition.0)
}

pub(super) fn record(partition: Partition, run: &RunId) -> String {
    format!("db:{{{}}}:r:{run}", partition.0)
}

pub(super) fn payloads(partition: Partition, run: &RunId) -> String {
    format!("db:{{{}}}:p:{run}", partition.0)
}

pub(super) fn index(partition: Partition) -> String {
    of(partition, "index")
}

pub(super) fn wake(partition: Partition) -> String {
    of(partition, "wake")
}

pub(super) fn retention(partition: Partition) -> String {
    of(partition, "keep")
}

pub(super) fn ready(partition: Partition, queue: &QueueName) -> String {
    format!("db:{{{}}}:q:{queue}", partition.0)
}

/// What [`ready`] begins with; the queue follows.
pub(super) fn ready_prefix(partition: Partition) -> String {
    of(partition, "q:")
}

pub(super) fn types(partition: Partition) -> String {
    of(partition, "types")
}

pub(super) fn claimed(partition: Partition) -> String {
    of(partition, "claimed")
}

pub(super) fn places(partition: Partition) -> String {
    of(partition, "places")
}

pub(super) fn clock(partition: Partition) -> String {
    of(partition, "clock")
}

pub(super) fn sessions(partition: Partition) -> String {
    of(partition, "sessions")
}

pub(super) fn leases(partition: Partition) -> String {
    of(partition, "leases")
}

pub(super) fn lane(home: Partition, lane: Nonce) -> String {
    let mut key = of(home, "l:");
    for byte in lane.0 {
        // Writing to a string does not fail.
        let _ = write!(key, "{byte:02x}");
    }
    key
}

pub(super) fn events(partition: Partition) -> String {
    of(partition, "events")
}

pub(super) fn trimmed(partition: Partition) -> String {
    of(partition, "trimmed")
}

/// The partition of a key of [`events`].
pub(super) fn events_partition(key: &[u8]) -> Option<Partition> {
    let text = std::str::from_utf8(key).ok()?;
    let number = text.strip_prefix("db:{")?.strip_suffix("}:events")?;
    number.parse().ok().map(Partition)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_spelled_as_the_layout_says() {
        let (p, run) = (Partition(3), RunId::new("order-1").unwrap());
        assert_eq!(record(p, &run), "db:{3}:r:order-1");
        assert_eq!(payloads(p, &run), "db:{3}:p:order-1");
        for queue in ["charge", "charge;gpu=true;region=eu"] {
            assert_eq!(ready(p, &queue.parse().unwrap()), format!("{}{queue}", ready_prefix(p)));
        }
        assert_eq!(lane(p, Nonce([10; 16])), format!("db:{{3}}:l:{}", "0a".repeat(16)));
        assert_eq!(events_partition(events(Partition(12)).as_bytes()), Some(Partition(12)));
        assert_eq!(events_partition(wake(p).as_bytes()), None);
    }
}
