//! How many transitions Redis takes when nothing but the commit script is asked of it: no engine, no queue, no
//! worker. What a server reaches can be told as a share of it.
//!
//! ```text
//! per batch under way:  its own runs, in turn ─► encode ─► script ─► all applied? ─► the same runs, next version
//! ```
//!
//! Invariants
//! - The script, its encoding and the link are those of [`Store::commit`](crate::store::Store::commit).
//! - A transition is the least that one writes: the compare, the record, a note of three events. No queue, wake-up,
//!   index or payload, so that the figure is an upper bound and a share of it no flattery.
//! - Everything is written under partitions that no store has ([`APART`]), and is gone at the end.

use super::keys::Keys;
use super::servers::At;
use super::{RedisStore, batch};
use crate::model::commit::{EventNote, Expect, RunWrite, WakeOp, Write};
use crate::model::event::EventKind;
use crate::model::ids::{Nonce, Partition, Prefix, RunId};
use crate::store::{Batch, Result, StoreError, Verdict};
use bytes::Bytes;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// The first partition that is written to: above any that a store may have.
const APART: u16 = 60_000;
/// Where calls go: there is one Redis.
const HERE: At = At::Partition(Partition(APART));
/// Decisions that one call may hold, as a lane's batch may.
const DECISIONS_MAX: usize = 128;
/// Batches of different runs that a place works through in turn: so many, or less if they would hold more than …
const TURNS: usize = 64;
/// … bytes of records.
const TURNS_BYTES: usize = 16 << 20;
/// Keys removed at once.
const REMOVED_AT_ONCE: usize = 1_000;

/// What is committed, again and again.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Load {
    /// Decisions of a batch, 1 to 128.
    pub decisions: usize,
    /// Bytes that Redis is sent for each, everything counted; as near to it as a record without content allows.
    pub bytes_per_decision: usize,
    /// Lanes, each with a window of its own.
    pub lanes: usize,
    /// Batches that each lane has under way.
    pub in_flight: usize,
    /// For how long.
    pub lasting: Duration,
}

/// What came of it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ceiling {
    /// Decisions applied in a second.
    pub transitions_per_second: f64,
    /// Bytes that were really sent for each.
    pub bytes_per_decision: f64,
}

/// One batch under way, and the runs it is about.
struct Place {
    lane: Nonce,
    decisions: usize,
    partitions: u16,
    /// Runs of each turn.
    turns: Vec<Vec<RunId>>,
    /// Size of a record, its prefix included.
    record: usize,
}

/// Counts the sequences of a lane, which its places share.
type Sequence = Arc<std::sync::atomic::AtomicU64>;

impl Place {
    fn new(n: usize, lane: Nonce, load: &Load, partitions: u16, record: usize) -> Result<Self> {
        let turns = (TURNS_BYTES / (load.decisions * record.max(1))).clamp(1, TURNS);
        let run = |turn: usize, d: usize| {
            RunId::new(&format!("ceiling-{n}-{turn}-{d:03}-000000000000"))
                .map_err(|e| StoreError::Unreadable(e.to_string()))
        };
        let turns = (0..turns)
            .map(|turn| (0..load.decisions).map(|d| run(turn, d)).collect::<Result<_>>())
            .collect::<Result<_>>()?;
        Ok(Self { lane, decisions: load.decisions, partitions, turns, record })
    }

    fn partition(&self, d: usize) -> Partition {
        Partition(APART + (d % usize::from(self.partitions)) as u16)
    }

    /// The batch that brings the runs of a turn to `version`.
    fn batch(&self, turn: usize, version: u64, sequence: u64) -> Batch {
        let prefix = Prefix::new(version, self.lane);
        let mut record = vec![b'x'; self.record.max(Prefix::LEN)];
        record[..Prefix::LEN].copy_from_slice(&prefix.0);
        let record = Bytes::from(record);
        let expect = match version {
            1 => Expect::Absent,
            _ => Expect::Prefix(Prefix::new(version - 1, self.lane)),
        };
        let writes = self.turns[turn].iter().enumerate().map(|(d, run)| {
            let kinds = vec![EventKind::TaskCompleted, EventKind::TaskQueued, EventKind::TaskStarted];
            let first = (3 * version) as u32;
            let write = RunWrite {
                run: run.clone(),
                expect,
                write: Write::Put(record.clone()),
                payloads: Vec::new(),
                queue: Vec::new(),
                wake: WakeOp::Keep,
                index: None,
                retain_until: None,
                event: Some(EventNote { run: run.clone(), first, kinds }),
                of: None,
            };
            (self.partition(d), write)
        });
        Batch { lane: self.lane, sequence, writes: writes.collect() }
    }

    fn keys(&self) -> impl Iterator<Item = String> + '_ {
        self.turns.iter().flat_map(|runs| {
            runs.iter().enumerate().map(|(d, run)| Keys::ALONE.record(self.partition(d), run))
        })
    }
}

impl RedisStore {
    /// Measures how many transitions this Redis takes, as a server would send them.
    ///
    /// # Errors
    /// What a commit may fail with.
    pub async fn ceiling(self: Arc<Self>, load: Load) -> Result<Ceiling> {
        if !self.servers.spans() {
            let message = "the ceiling is that of one Redis, not of a cluster".into();
            return Err(StoreError::Unavailable { message, sent: false });
        }
        let load = Load {
            decisions: load.decisions.clamp(1, DECISIONS_MAX),
            lanes: load.lanes.max(1),
            in_flight: load.in_flight.max(1),
            ..load
        };
        let mut lanes = Vec::with_capacity(load.lanes);
        for _ in 0..load.lanes {
            let mut nonce = [0; 16];
            getrandom::fill(&mut nonce).map_err(|e| StoreError::Unavailable {
                message: format!("no randomness from the system: {e}"),
                sent: false,
            })?;
            lanes.push(Nonce(nonce));
        }
        let partitions = self.layout.partitions;
        // What stands around a record is what a call has too many with a record of a known size.
        let known = Place::new(0, lanes[0], &load, partitions, 256)?;
        let around = self.bytes(&known)?.saturating_sub(256 * load.decisions) / load.decisions;
        let record = load.bytes_per_decision.saturating_sub(around).max(Prefix::LEN);
        let mut places = Vec::new();
        for n in 0..load.lanes * load.in_flight {
            places.push(Place::new(n, lanes[n / load.in_flight], &load, partitions, record)?);
        }
        let sent = self.bytes(&places[0])? as f64 / load.decisions as f64;

        let mut tasks = tokio::task::JoinSet::new();
        let mut written: Vec<String> = places.iter().flat_map(Place::keys).collect();
        for p in 0..partitions {
            let partition = Partition(APART + p);
            written.extend([Keys::ALONE.events(partition), Keys::ALONE.trimmed(partition)]);
        }
        written.extend(lanes.iter().map(|lane| Keys::ALONE.lane(Partition(APART), *lane)));
        let sequences: Vec<Sequence> = lanes.iter().map(|_| Sequence::default()).collect();
        // All records are there before the clock starts.
        let ready = Arc::new(tokio::sync::Barrier::new(places.len()));
        for (n, place) in places.into_iter().enumerate() {
            let sequence = Arc::clone(&sequences[n / load.in_flight]);
            tasks.spawn(Arc::clone(&self).work(place, sequence, Arc::clone(&ready), load.lasting));
        }
        let mut rate = Ok(0.0);
        while let Some(ended) = tasks.join_next().await {
            let ended =
                ended.unwrap_or_else(|e| Err(StoreError::Unavailable { message: e.to_string(), sent: true }));
            match (&mut rate, ended) {
                (Ok(sum), Ok(more)) => *sum += more,
                (Ok(_), Err(error)) => {
                    rate = Err(error);
                    // The others may wait for it at the barrier.
                    tasks.abort_all();
                }
                (Err(_), _) => {}
            }
        }
        for some in written.chunks(REMOVED_AT_ONCE) {
            let mut cmd = redis::cmd("UNLINK");
            cmd.arg(some);
            self.servers.command(HERE, &cmd).await?;
        }
        Ok(Ceiling { transitions_per_second: rate?, bytes_per_decision: sent })
    }

    /// Works off the turns of a place until the time is up; returns decisions per second.
    async fn work(
        self: Arc<Self>,
        place: Place,
        sequence: Sequence,
        ready: Arc<tokio::sync::Barrier>,
        lasting: Duration,
    ) -> Result<f64> {
        let turns = place.turns.len();
        let next = |version: u64, turn: usize| {
            let sequence = 1 + sequence.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            self.encode(&place.batch(turn, version, sequence))
        };
        for turn in 0..turns {
            self.applied(next(1, turn)?).await?;
        }
        ready.wait().await;
        let began = Instant::now();
        let mut batches = 0_u32;
        let (mut version, mut turn) = (2, 0);
        let mut encoded = next(version, turn)?;
        while began.elapsed() < lasting {
            let store = Arc::clone(&self);
            let under_way = tokio::spawn(async move { store.applied(encoded).await });
            // The next is written while this one is on its way.
            turn += 1;
            if turn == turns {
                (version, turn) = (version + 1, 0);
            }
            encoded = next(version, turn)?;
            under_way
                .await
                .unwrap_or_else(|e| Err(StoreError::Unavailable { message: e.to_string(), sent: true }))?;
            batches += 1;
        }
        Ok(f64::from(batches) * place.decisions as f64 / began.elapsed().as_secs_f64())
    }

    fn encode(&self, batch: &Batch) -> Result<batch::Encoded> {
        let target = batch::Target {
            keys: Keys::ALONE,
            home: Partition(APART),
            hints: &self.channel,
            stream_bound: self.stream_bound,
            spans: true,
        };
        batch::encode(batch, &target)
    }

    /// How much is sent for a batch of this place.
    fn bytes(&self, place: &Place) -> Result<usize> {
        Ok(self.encode(&place.batch(0, 1_000, 1_000))?.call.cmd.get_packed_command().len())
    }

    async fn applied(&self, encoded: batch::Encoded) -> Result<()> {
        let reply = self.servers.call(HERE, &encoded.call).await?;
        let verdicts = encoded.decode(reply)?.verdicts;
        if verdicts.iter().all(|v| *v == Verdict::Applied) {
            return Ok(());
        }
        Err(StoreError::Unreadable("Redis refused decisions that nobody contests".into()))
    }
}
