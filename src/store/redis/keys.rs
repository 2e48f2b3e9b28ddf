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
//! db:{P}:probe           string   a write that is tried; expires
//!
//! channel  db:hints:EPOCH         "P QUEUE": that queue went from empty to non-empty
//! ```
//!
//! QUEUE is a task type, or `TYPE;key=value;…` with the labels its tasks ask for, by key.
//!
//! `{P}` is the hash tag, so all of a partition is in one slot. On one Redis it is the partition's number; on a cluster
//! a number from a table that spreads the first so many partitions evenly over the slots, however many there are.
//! To add a key: here, in the ADR and in migrations.

use crate::model::ids::{Nonce, Partition, RunId, WorkflowName};
use crate::model::labels::QueueName;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::LazyLock;

/// The meta record.
pub(super) const META: &str = "db:meta";
/// Names of workflows by time.
pub(super) const WORKFLOW_NAMES: &str = "db:{w}:names";
/// Newest versions of workflows.
pub(super) const WORKFLOW_NEWEST: &str = "db:{w}:newest";

/// What the measurement of the link writes, for a moment.
pub(super) fn strain(caller: usize, n: u64) -> String {
    format!("db:{{w}}:strain:{caller}:{n}")
}

pub(super) fn documents(name: &WorkflowName) -> String {
    format!("db:{{w}}:d:{name}")
}

/// When a version was registered, among the documents of its workflow.
pub(super) fn created_field(version: u32) -> String {
    format!("t{version}")
}

pub(super) fn hints(epoch: u64) -> String {
    format!("db:hints:{epoch}")
}

/// The slots of a cluster.
pub(super) const SLOTS: u16 = 16_384;
/// Partitions that have a tag in the table; no store has more.
const TAGS: usize = 1_024;
/// Slots of which each tag of the table has one.
const WIDTH: u16 = SLOTS / TAGS as u16;

/// Spells keys: how partitions are tagged depends on where the store is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Keys {
    /// Tags from the table.
    spread: bool,
}

/// The slot of a key, as a cluster computes it: of what stands between the first `{` and the next `}`, if anything does.
pub(super) fn slot(key: &[u8]) -> u16 {
    let tag = || {
        let from = key.iter().position(|b| *b == b'{')? + 1;
        let length = key.get(from..)?.iter().position(|b| *b == b'}')?;
        key.get(from..from + length).filter(|tag| !tag.is_empty())
    };
    crc16(tag().unwrap_or(key)) % SLOTS
}

/// CRC-16/XMODEM. Source: the specification of Redis Cluster.
fn crc16(bytes: &[u8]) -> u16 {
    let mut crc = 0_u16;
    for byte in bytes {
        crc ^= u16::from(*byte) << 8;
        for _ in 0..8 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 };
        }
    }
    crc
}

/// The table: of partition *n*, the smallest number whose slot lies where the digits of *n*, reversed, point. So the
/// first 2, 4, 8 … partitions halve, quarter … the slots, and any number in between lies evenly.
static TABLE: LazyLock<[u16; TAGS]> = LazyLock::new(|| {
    let mut by_place = [None; TAGS];
    let mut left = TAGS;
    let mut number = 0_u16;
    while left > 0 {
        let place = usize::from(slot(number.to_string().as_bytes()) / WIDTH);
        if by_place[place].is_none() {
            by_place[place] = Some(number);
            left -= 1;
        }
        number += 1;
    }
    let digits = TAGS.trailing_zeros();
    std::array::from_fn(|n| {
        let place = (n as u32).reverse_bits() >> (u32::BITS - digits);
        by_place[place as usize].unwrap_or_default()
    })
});

impl Keys {
    /// Of a store on one Redis.
    pub(super) const ALONE: Self = Self { spread: false };
    /// Of a store on a cluster.
    pub(super) const CLUSTER: Self = Self { spread: true };

    fn tag(self, partition: Partition) -> u16 {
        if self.spread {
            TABLE.get(usize::from(partition.0)).copied().unwrap_or(partition.0)
        } else {
            partition.0
        }
    }

    fn of(self, partition: Partition, rest: &str) -> String {
        format!("db:{{{}}}:{rest}", self.tag(partition))
    }

    /// The slot that all keys of a partition are in.
    pub(super) fn slot(self, partition: Partition) -> u16 {
        slot(self.tag(partition).to_string().as_bytes())
    }

    pub(super) fn record(self, partition: Partition, run: &RunId) -> String {
        format!("db:{{{}}}:r:{run}", self.tag(partition))
    }

    pub(super) fn payloads(self, partition: Partition, run: &RunId) -> String {
        format!("db:{{{}}}:p:{run}", self.tag(partition))
    }

    pub(super) fn index(self, partition: Partition) -> String {
        self.of(partition, "index")
    }

    pub(super) fn wake(self, partition: Partition) -> String {
        self.of(partition, "wake")
    }

    pub(super) fn retention(self, partition: Partition) -> String {
        self.of(partition, "keep")
    }

    pub(super) fn ready(self, partition: Partition, queue: &QueueName) -> String {
        format!("{}{queue}", self.ready_prefix(partition))
    }

    /// What [`Self::ready`] begins with; the queue follows.
    pub(super) fn ready_prefix(self, partition: Partition) -> String {
        self.of(partition, "q:")
    }

    pub(super) fn types(self, partition: Partition) -> String {
        self.of(partition, "types")
    }

    pub(super) fn claimed(self, partition: Partition) -> String {
        self.of(partition, "claimed")
    }

    pub(super) fn places(self, partition: Partition) -> String {
        self.of(partition, "places")
    }

    pub(super) fn clock(self, partition: Partition) -> String {
        self.of(partition, "clock")
    }

    pub(super) fn sessions(self, partition: Partition) -> String {
        self.of(partition, "sessions")
    }

    pub(super) fn leases(self, partition: Partition) -> String {
        self.of(partition, "leases")
    }

    pub(super) fn lane(self, home: Partition, lane: Nonce) -> String {
        let mut key = self.of(home, "l:");
        for byte in lane.0 {
            // Writing to a string does not fail.
            let _ = write!(key, "{byte:02x}");
        }
        key
    }

    pub(super) fn events(self, partition: Partition) -> String {
        self.of(partition, "events")
    }

    /// What a write is tried on, and what is written where something must be.
    pub(super) fn probe(self, partition: Partition) -> String {
        self.of(partition, "probe")
    }

    pub(super) fn trimmed(self, partition: Partition) -> String {
        self.of(partition, "trimmed")
    }
}

/// The other way round: the partition of each tag of the table.
static PARTITIONS: LazyLock<BTreeMap<u16, u16>> = LazyLock::new(|| TABLE.iter().copied().zip(0..).collect());

/// What every key begins with.
pub(super) const ALL: &str = "db:*";

/// What a key is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Kind {
    /// One of the few that are no partition's, and always are.
    Store,
    /// Documents of a workflow.
    Documents(WorkflowName),
    /// A record.
    Record(Partition, RunId),
    /// Payloads of a record.
    Payloads(Partition, RunId),
    /// Index, wake-ups or retention.
    Runs(Partition),
    /// A ready queue.
    Ready(Partition, QueueName),
    /// Queues that are not empty.
    Types(Partition),
    /// Claims by expiry.
    Claimed(Partition),
    /// Places of claims.
    Places(Partition),
    /// Sessions.
    Sessions(Partition),
    /// Leases of sessions.
    Leases(Partition),
    /// The window of a lane.
    Lane(Partition),
    /// One of those that a partition always has.
    Partition(Partition),
}

impl Kind {
    /// What a key is for; none if this layout has no such key.
    pub(super) fn of(keys: Keys, key: &str) -> Option<Self> {
        let rest = key.strip_prefix("db:")?;
        if matches!(key, META | WORKFLOW_NAMES | WORKFLOW_NEWEST) {
            return Some(Self::Store);
        }
        let (tag, rest) = rest.strip_prefix('{')?.split_once("}:")?;
        if tag == "w" {
            return WorkflowName::new(rest.strip_prefix("d:")?).ok().map(Self::Documents);
        }
        let number = tag.parse::<u16>().ok().filter(|n| n.to_string() == tag)?;
        let partition = Partition(if keys.spread { *PARTITIONS.get(&number)? } else { number });
        Some(match rest {
            "index" | "wake" | "keep" => Self::Runs(partition),
            "types" => Self::Types(partition),
            "claimed" => Self::Claimed(partition),
            "places" => Self::Places(partition),
            "sessions" => Self::Sessions(partition),
            "leases" => Self::Leases(partition),
            "clock" | "events" | "trimmed" | "probe" => Self::Partition(partition),
            _ => match rest.split_once(':')? {
                ("r", run) => Self::Record(partition, RunId::new(run).ok()?),
                ("p", run) => Self::Payloads(partition, RunId::new(run).ok()?),
                ("q", queue) => Self::Ready(partition, queue.parse().ok()?),
                ("l", _) => Self::Lane(partition),
                _ => return None,
            },
        })
    }

    /// The partition it belongs to.
    pub(super) fn partition(&self) -> Option<Partition> {
        match self {
            Self::Store | Self::Documents(_) => None,
            Self::Record(p, _)
            | Self::Payloads(p, _)
            | Self::Ready(p, _)
            | Self::Runs(p)
            | Self::Types(p)
            | Self::Claimed(p)
            | Self::Places(p)
            | Self::Sessions(p)
            | Self::Leases(p)
            | Self::Lane(p)
            | Self::Partition(p) => Some(*p),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_spelled_as_the_layout_says() {
        let keys = Keys::ALONE;
        let (p, run) = (Partition(3), RunId::new("order-1").unwrap());
        assert_eq!(keys.record(p, &run), "db:{3}:r:order-1");
        assert_eq!(keys.payloads(p, &run), "db:{3}:p:order-1");
        for queue in ["charge", "charge;gpu=true;region=eu"] {
            assert_eq!(keys.ready(p, &queue.parse().unwrap()), format!("{}{queue}", keys.ready_prefix(p)));
        }
        assert_eq!(keys.lane(p, Nonce([10; 16])), format!("db:{{3}}:l:{}", "0a".repeat(16)));
    }

    #[test]
    fn slots_are_those_of_a_cluster() {
        // From `CLUSTER KEYSLOT`.
        for (key, expected) in
            [("foo", 12_182), ("{3}", 1_584), ("db:{3}:r:order-1", 1_584), ("a{}b", 13_694)]
        {
            assert_eq!(slot(key.as_bytes()), expected, "{key}");
        }
        let run = RunId::new("order-1").unwrap();
        for p in [0, 7, 1_023, 60_000].map(Partition) {
            let keys = Keys::CLUSTER;
            assert_eq!(slot(keys.record(p, &run).as_bytes()), keys.slot(p));
            assert_eq!(slot(keys.events(p).as_bytes()), keys.slot(p));
        }
    }

    #[test]
    fn a_cluster_spreads_partitions_evenly_over_any_number_of_masters() {
        for masters in 1..=12_u16 {
            let mut count = vec![0; usize::from(masters)];
            for p in 0..16 * masters {
                let slot = u32::from(Keys::CLUSTER.slot(Partition(p)));
                count[(slot * u32::from(masters) / u32::from(SLOTS)) as usize] += 1;
            }
            assert!(count.iter().all(|n| (14..=18).contains(n)), "{masters} masters: {count:?}");
        }
        let tags: std::collections::BTreeSet<_> = TABLE.iter().collect();
        assert_eq!(tags.len(), TAGS);
    }

    #[test]
    fn every_key_is_told_for_what_it_is() {
        for keys in [Keys::ALONE, Keys::CLUSTER] {
            for p in [0, 3, 1_023].map(Partition) {
                told(keys, p);
            }
        }
        for unknown in ["db:{3}:s:old", "db:{3}", "db:x", "db:{w}:x", "db:{3}:r:-", "db:{03}:clock", "other"]
        {
            for keys in [Keys::ALONE, Keys::CLUSTER] {
                assert_eq!(Kind::of(keys, unknown), None, "{unknown}");
            }
        }
        let untabled = (0..u16::MAX).find(|n| !TABLE.contains(n)).unwrap();
        assert_eq!(Kind::of(Keys::CLUSTER, &format!("db:{{{untabled}}}:clock")), None);
    }

    fn told(keys: Keys, p: Partition) {
        let run = RunId::new("order-1").unwrap();
        let queue: QueueName = "charge;gpu=true".parse().unwrap();
        let name = WorkflowName::new("w").unwrap();
        for (key, kind) in [
            (keys.record(p, &run), Kind::Record(p, run.clone())),
            (keys.payloads(p, &run), Kind::Payloads(p, run)),
            (keys.index(p), Kind::Runs(p)),
            (keys.wake(p), Kind::Runs(p)),
            (keys.retention(p), Kind::Runs(p)),
            (keys.ready(p, &queue), Kind::Ready(p, queue)),
            (keys.types(p), Kind::Types(p)),
            (keys.claimed(p), Kind::Claimed(p)),
            (keys.places(p), Kind::Places(p)),
            (keys.clock(p), Kind::Partition(p)),
            (keys.sessions(p), Kind::Sessions(p)),
            (keys.leases(p), Kind::Leases(p)),
            (keys.lane(p, Nonce([1; 16])), Kind::Lane(p)),
            (keys.events(p), Kind::Partition(p)),
            (keys.trimmed(p), Kind::Partition(p)),
            (keys.probe(p), Kind::Partition(p)),
            (documents(&name), Kind::Documents(name)),
            (META.into(), Kind::Store),
        ] {
            assert_eq!(Kind::of(keys, &key), Some(kind), "{key}");
        }
    }
}
