//! Faults put into the harness on purpose, to show that the simulation finds them. None is in the product.

use crate::profile::Profile;
use crate::world::World;
use downbeat::model::commit::{Expect, Write};
use downbeat::model::entropy::{Entropy, SeededEntropy};
use downbeat::model::ids::Prefix;
use downbeat::store::{Batch, Committed, StreamEntry, Verdict};

/// One way to break a promise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sabotage {
    /// Records are compared by version alone, without the nonce of their commit.
    VersionOnly,
    /// A batch whose reply was lost is sent again as if it were new.
    NewSequence,
    /// Due wake-ups are not told.
    NoWakeUps,
    /// Sessions are not renewed, though the store says so.
    NoRenewals,
    /// Assignments that never arrived are acknowledged, so that no window finds them.
    FalseAcks,
    /// A refusal is not checked against the store.
    TrustedCache,
    /// Some entries of the event streams are not told.
    SkippedEvents,
    /// The lease clock goes on while everything stands still.
    RunningLeaseClock,
    /// Workers say that they have labels which they do not have.
    FalseLabels,
    /// A run is begun whether or not the store holds what it is of.
    UncheckedVersions,
}

/// How a seed is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Case {
    /// As it was drawn.
    Plain,
    /// In a world in which that sabotage would matter, without it: nothing may be found.
    Provoked(Sabotage),
    /// With it.
    Sabotaged(Sabotage),
}

impl Sabotage {
    pub(crate) const ALL: [Self; 10] = [
        Self::VersionOnly,
        Self::NewSequence,
        Self::NoWakeUps,
        Self::NoRenewals,
        Self::FalseAcks,
        Self::TrustedCache,
        Self::SkippedEvents,
        Self::RunningLeaseClock,
        Self::FalseLabels,
        Self::UncheckedVersions,
    ];

    /// Makes the world one in which the broken promise matters.
    pub(crate) fn provoke(self, p: &mut Profile) {
        match self {
            Self::VersionOnly => {
                p.lost_tails = 4.0;
                // A stale cache that nothing refuses takes one entry again and again: time must go on meanwhile.
                p.latency_ms = p.latency_ms.max(1);
                p.servers = p.servers.max(2);
                p.work_ms = 2_000;
                p.runs = p.runs.max(10);
                p.cache_bytes = 128 << 20;
            }
            Self::NewSequence => {
                *p = p.healed();
                p.http_workers = 0;
                p.lost_reply = 0.15;
            }
            Self::NoWakeUps => p.fail = 0.3,
            Self::NoRenewals => p.work_ms = 8_000,
            Self::FalseAcks => p.deaf = 0.1,
            Self::TrustedCache => {
                p.servers = p.servers.max(2);
                p.cut = 0.08;
                p.work_ms = 2_000;
                p.cache_bytes = 128 << 20;
            }
            Self::SkippedEvents => p.global_readers = 2,
            Self::RunningLeaseClock => {
                p.world_stalls = 4.0;
                p.work_ms = 8_000;
            }
            Self::FalseLabels => {
                p.labels = true;
                p.workers = p.workers.max(3);
                p.runs = p.runs.max(10);
            }
            Self::UncheckedVersions => {
                // Between the question which is newest and the commit the tail is lost, with that version.
                p.lost_tails = 6.0;
                p.new_versions = 60.0;
                p.latency_ms = 400;
                p.runs = p.runs.max(30);
            }
        }
    }

    /// What the store gets instead of a batch.
    pub(crate) fn alter(self, world: &World, batch: &Batch) -> Option<Batch> {
        match self {
            Self::VersionOnly => {
                let mut altered = batch.clone();
                for (partition, write) in &mut altered.writes {
                    let Expect::Prefix(expected) = write.expect else { continue };
                    let record = world.memory.inspect(|i| i.record(*partition, &write.run)).unwrap();
                    if let Some(there) = record.and_then(|r| Prefix::of(&r))
                        && there.version() == expected.version()
                    {
                        write.expect = Expect::Prefix(there);
                    }
                }
                Some(altered)
            }
            Self::NewSequence => {
                let times = world.audit.lock().sent(batch);
                (times > 0).then(|| {
                    let seed = batch.sequence ^ (times << 40) ^ u64::from(batch.lane.0[0]) << 56;
                    Batch { lane: SeededEntropy::new(seed).nonce(), ..batch.clone() }
                })
            }
            Self::UncheckedVersions => {
                let mut altered = batch.clone();
                altered.writes.iter_mut().for_each(|(_, write)| write.of = None);
                Some(altered)
            }
            _ => None,
        }
    }

    /// What the server is told instead of an answer.
    pub(crate) fn pretend(self, batch: &Batch, committed: &mut Committed) {
        if self == Self::TrustedCache {
            for ((_, write), verdict) in batch.writes.iter().zip(&mut committed.verdicts) {
                if write.write == Write::Check {
                    *verdict = Verdict::Applied;
                }
            }
        }
    }

    /// What the server reads instead of these entries.
    pub(crate) fn skip(self, mut entries: Vec<StreamEntry>) -> Vec<StreamEntry> {
        if self == Self::SkippedEvents && entries.len() > 1 {
            entries.retain(|e| e.position.0 % 5 != 0);
        }
        entries
    }
}
