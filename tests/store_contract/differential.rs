//! The scripts against the model: random verbs, sent to Redis and to the store in memory, answer the same.
//!
//! Times are multiples of ten seconds ± five, so that what the test itself takes decides nothing; a case that took
//! longer than a second is thrown away.

use crate::data::{P, entry, field, named, prefix, record, run, session, workflow};
use crate::fixture::{self, Fixture, PARTITIONS};
use bytes::Bytes;
use downbeat::model::commit::{EventNote, Expect, QueueOp, RunWrite, VersionOf, WakeOp, Write};
use downbeat::model::event::EventKind;
use downbeat::model::ids::{Nonce, Partition, Prefix, RunId};
use downbeat::model::time::{LeaseTime, Span, Timestamp};
use downbeat::store::{Batch, SessionRecord, StreamPosition, Taken};
use proptest::prelude::*;
use std::collections::BTreeSet;

const RUNS: u8 = 4;
const QUEUES: u8 = 3;

#[derive(Debug, Clone)]
enum Op {
    Commit {
        lane: u8,
        writes: Vec<GenWrite>,
    },
    /// Sends a batch again: the n-th last.
    Repeat(usize),
    Take {
        queue: u8,
        max: u32,
    },
    /// Settles a taken entry as judged by this version, or by there being no record.
    Discard {
        which: usize,
        judged_by: Option<u8>,
    },
    /// Ticks, after ten seconds or at once.
    Tick {
        later: bool,
    },
    PutSession {
        id: u8,
        epoch: u32,
        expect: Option<u32>,
    },
    RenewSession {
        id: u8,
        epoch: u32,
    },
    RemoveSession {
        id: u8,
        epoch: u32,
    },
    List {
        before: Option<(i64, u8)>,
        max: u32,
    },
}

#[derive(Debug, Clone, Copy)]
enum GenExpect {
    /// What stands.
    Right,
    Absent,
    Version(u8),
}

#[derive(Debug, Clone)]
struct GenWrite {
    run: u8,
    expect: GenExpect,
    kind: u8,
    version: u8,
    large: bool,
    payloads: Vec<u8>,
    queue: Vec<(bool, u8, u32, i64)>,
    /// What becomes of the wake-up and in how many ten seconds.
    wake: (u8, i64),
    index: Option<i64>,
    /// Whether retention changes, and to how many ten seconds.
    retain: (u8, i64),
    event: bool,
    /// What it is of: 0 a version that is there, 1 one that is not; else nothing.
    of: u8,
}

/// Runs live in two partitions.
fn partition(run: u8) -> Partition {
    if run.is_multiple_of(3) { Partition(0) } else { P }
}

/// With labels and without; the last stands between the first two as text, and not as a name.
fn queue_name(queue: u8) -> &'static str {
    ["q", "q;gpu=true;region=eu", "q-b"][usize::from(queue)]
}

fn name(run: u8) -> String {
    // Names whose order as text depends on the locale.
    ["a", "B", "a-b", "a.b"][usize::from(run)].to_owned()
}

fn write(generated: &GenWrite, stands: Option<Prefix>, of: &VersionOf, now: Timestamp) -> RunWrite {
    let name = name(generated.run);
    let at = |tens: i64| now.plus(Span::secs(tens * 10 + 5));
    let made = prefix(7, generated.version);
    let queue = generated.queue.iter().map(|(add, queue, generation, score)| {
        let (queue, entry) = (named(queue_name(*queue)), entry(&name, *generation));
        if *add { QueueOp::Add { queue, entry, score: *score } } else { QueueOp::Remove { queue, entry } }
    });
    RunWrite {
        run: run(&name),
        expect: match generated.expect {
            GenExpect::Right => stands.map_or(Expect::Absent, Expect::Prefix),
            GenExpect::Absent => Expect::Absent,
            GenExpect::Version(v) => Expect::Prefix(prefix(7, v)),
        },
        write: match generated.kind {
            0..=5 => Write::Put(record(made, if generated.large { 2_000 } else { 30 })),
            6 => Write::Check,
            _ => Write::Delete,
        },
        payloads: generated
            .payloads
            .iter()
            .map(|f| (field(&format!("f{f}")), Bytes::from(vec![*f; 3])))
            .collect(),
        queue: queue.collect(),
        wake: match generated.wake {
            (0, _) => WakeOp::Keep,
            (1, tens) => WakeOp::Lower(at(tens)),
            (2, tens) => WakeOp::Set(at(tens)),
            _ => WakeOp::Remove,
        },
        index: generated.index.map(Timestamp),
        retain_until: match generated.retain {
            (0, _) => None,
            (1, tens) => Some(Some(at(tens))),
            _ => Some(None),
        },
        event: generated.event.then(|| EventNote {
            run: run(&name),
            first: 1,
            kinds: vec![EventKind::RunStarted],
        }),
        of: match generated.of {
            0 => Some(Box::new(of.clone())),
            1 => Some(Box::new(VersionOf { version: 2, ..of.clone() })),
            _ => None,
        },
    }
}

fn gen_write() -> impl Strategy<Value = GenWrite> {
    let expect = prop_oneof![
        4 => Just(GenExpect::Right),
        1 => Just(GenExpect::Absent),
        1 => (1..4u8).prop_map(GenExpect::Version),
    ];
    let who = (0..RUNS, expect, 0..8u8, 1..4u8, any::<bool>());
    let queue = prop::collection::vec((any::<bool>(), 0..QUEUES, 0..3u32, -2..3i64), 0..4);
    let what = (prop::collection::vec(0..3u8, 0..3), queue, (0..4u8, -2..4i64));
    let rest = (prop::option::of(1..4i64), (0..3u8, -2..4i64), any::<bool>(), 0..8u8);
    (who, what, rest).prop_map(|((run, expect, kind, version, large), (payloads, queue, wake), rest)| {
        GenWrite {
            run,
            expect,
            kind,
            version,
            large,
            payloads,
            queue,
            wake,
            index: rest.0,
            retain: rest.1,
            event: rest.2,
            of: rest.3,
        }
    })
}

fn op() -> impl Strategy<Value = Op> {
    let epochs = || (0..2u8, 1..4u32);
    prop_oneof![
        12 => (0..2u8, prop::collection::vec(gen_write(), 1..6)).prop_map(|(lane, mut writes)| {
            let mut seen = BTreeSet::new();
            writes.retain(|w| seen.insert(w.run));
            Op::Commit { lane, writes }
        }),
        2 => (0..20usize).prop_map(Op::Repeat),
        4 => (0..QUEUES, 0..4u32).prop_map(|(queue, max)| Op::Take { queue, max }),
        2 => (any::<prop::sample::Index>(), prop::option::of(1..4u8))
            .prop_map(|(which, judged_by)| Op::Discard { which: which.index(1_000), judged_by }),
        3 => any::<bool>().prop_map(|later| Op::Tick { later }),
        1 => (epochs(), prop::option::of(1..4u32)).prop_map(|((id, epoch), expect)| Op::PutSession { id, epoch, expect }),
        1 => epochs().prop_map(|(id, epoch)| Op::RenewSession { id, epoch }),
        1 => epochs().prop_map(|(id, epoch)| Op::RemoveSession { id, epoch }),
        1 => (prop::option::of((1..4i64, 0..RUNS)), 0..4u32).prop_map(|(before, max)| Op::List { before, max }),
    ]
}

/// One of the two stores, and what the test remembers of it.
struct Side {
    fixture: Fixture,
    sequences: [u64; 2],
    sent: Vec<Batch>,
    taken: Vec<Taken>,
}

impl Side {
    fn new(fixture: Fixture) -> Self {
        Self { fixture, sequences: [0; 2], sent: Vec::new(), taken: Vec::new() }
    }

    /// Does `op`; what is answered, as text, without what depends on the clock.
    async fn answer(&mut self, op: &Op) -> String {
        let store = &*self.fixture.store;
        let id = |n: u8| session(&format!("s1-{n}"));
        match op {
            Op::Commit { lane, writes } => {
                let now = self.fixture.now().await;
                let runs: Vec<_> = writes.iter().map(|w| (partition(w.run), run(&name(w.run)))).collect();
                let stand = store.load(&runs).await.unwrap();
                let put = store.put_workflow(&workflow("order"), &Bytes::from_static(b"{}")).await.unwrap().0;
                let (version, created_at) = (put.version, put.created_at);
                let of = VersionOf { workflow: put.name, version, created_at };
                let sequence = &mut self.sequences[usize::from(*lane)];
                *sequence += 1;
                let stand = stand.iter().map(|s| s.as_deref().and_then(Prefix::of));
                let writes = writes
                    .iter()
                    .zip(stand)
                    .map(|(w, s)| (partition(w.run), write(w, s, &of, now)))
                    .collect();
                let batch = Batch { lane: Nonce([*lane; 16]), sequence: *sequence, writes };
                let answer = format!("{:?}", store.commit(&batch).await);
                self.sent.push(batch);
                answer
            }
            Op::Repeat(back) => match self.sent.len().checked_sub(back + 1) {
                Some(at) => format!("{:?}", store.commit(&self.sent[at]).await),
                None => String::new(),
            },
            Op::Take { queue, max } => {
                let queue = named(queue_name(*queue));
                let wanted = [(P, queue.clone(), *max), (Partition(0), queue, *max)];
                let taken = store.take(&wanted, Span::secs(15)).await;
                let answer = format!("{taken:?}");
                self.taken.extend(taken.unwrap());
                answer
            }
            Op::Discard { which, judged_by } => {
                if self.taken.is_empty() {
                    return String::new();
                }
                let taken = self.taken[which % self.taken.len()].clone();
                let judged_by = judged_by.map(|v| prefix(7, v));
                format!("{:?}", store.discard(&[(taken, judged_by)]).await)
            }
            Op::Tick { later } => {
                if *later {
                    self.fixture.advance(Span::secs(10)).await;
                }
                let ticked = store.tick(&[P, Partition(0)], 100).await.unwrap();
                let answers = ticked.into_iter().map(|t| {
                    let sorted = |runs: Vec<RunId>| runs.into_iter().collect::<BTreeSet<_>>();
                    // In tens of seconds, as all times of the test are.
                    let next = t.next.map(|at| (at.0 - t.now.0 + 2_500_000).div_euclid(5_000_000));
                    format!(
                        "{:?} {:?} {next:?} {:?} {}",
                        sorted(t.due),
                        sorted(t.expired),
                        t.heads,
                        t.reclaimed
                    )
                });
                answers.collect()
            }
            Op::PutSession { id: n, epoch, expect } => {
                let record = SessionRecord {
                    epoch: *epoch,
                    label: format!("label {n}"),
                    owner: Nonce([*n; 16]),
                    deadline: LeaseTime(0),
                    lease_now: LeaseTime(0),
                };
                format!("{:?}", store.put_session(&id(*n), &record, *expect, Span::secs(10)).await)
            }
            Op::RenewSession { id: n, epoch } => {
                format!("{:?}", store.renew_sessions(&[(id(*n), *epoch)], Span::secs(10)).await)
            }
            Op::RemoveSession { id: n, epoch } => {
                format!("{:?}", store.remove_session(&id(*n), *epoch).await)
            }
            Op::List { before, max } => {
                let before = before.map(|(created, n)| (Timestamp(created), run(&name(n))));
                format!("{:?}", store.list(P, before, *max).await)
            }
        }
    }

    /// All that can be read, as text.
    async fn contents(&self) -> String {
        let store = &*self.fixture.store;
        let mut all = Vec::new();
        let fields = ["f0", "f1", "f2"].map(field);
        for n in 0..RUNS {
            let at = (partition(n), run(&name(n)));
            all.push(format!("{:?}", store.load(std::slice::from_ref(&at)).await.unwrap()));
            all.push(format!("{:?}", store.payloads(at.0, &at.1, &fields).await.unwrap()));
        }
        for partition in (0..PARTITIONS).map(Partition) {
            all.push(format!("{:?}", store.list(partition, None, 100).await.unwrap()));
            let events =
                store.read_events(&[(partition, StreamPosition(0, 0))], 1_000, Span(0)).await.unwrap();
            all.push(format!("{:?}", events.iter().map(|e| &e.notes).collect::<Vec<_>>()));
        }
        for id in ["s1-0", "s1-1"] {
            let found = store.sessions(&[session(id)]).await.unwrap().pop().unwrap();
            all.push(format!("{:?}", found.map(|s| (s.epoch, s.label, s.owner))));
        }
        all.join("\n")
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn redis_answers_as_the_model_does(ops in prop::collection::vec(op(), 1..100)) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        runtime.block_on(async {
            let mut model = Side::new(fixture::memory().await);
            let mut redis = Side::new(fixture::redis().await);
            let began = tokio::time::Instant::now();
            for (at, op) in ops.iter().enumerate() {
                let (expected, found) = (model.answer(op).await, redis.answer(op).await);
                prop_assume!(began.elapsed() < std::time::Duration::from_secs(1));
                prop_assert_eq!(&expected, &found, "answer to operation {}: {:?}", at, op);
            }
            prop_assert_eq!(model.contents().await, redis.contents().await);
            Ok(())
        })?;
    }
}
