//! What the pure parts cost: a decision, and a record's way in and out. `cargo bench --bench engine`.

#![allow(missing_docs, reason = "criterion's macros make the only public items")]
#![allow(clippy::unwrap_used, reason = "a benchmark that cannot be set up has nothing to tell")]

use bytes::Bytes;
use criterion::{Criterion, criterion_group, criterion_main};
use downbeat::engine::{Decision, Env, Payloads, Txn};
use downbeat::model::command::{AttemptKey, Command, LeaseTask, Start};
use downbeat::model::document::{self, Format};
use downbeat::model::ids::{Nonce, Partition, Prefix, RunId, SessionId, TaskPath, WorkflowName};
use downbeat::model::payload::Field;
use downbeat::model::plan::Plan;
use downbeat::model::record;
use downbeat::model::run::{Holder, RunState};
use downbeat::model::time::{LeaseTime, Span, Timestamp};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::hint::black_box;

struct Nothing;

impl Payloads for Nothing {
    fn get(&self, _: &Field) -> Option<Bytes> {
        None
    }
}

fn env(n: i64) -> Env {
    Env {
        now: Timestamp::from_millis(1_800_000_000_000).plus(Span::millis(n)),
        lease_now: LeaseTime::from_millis(n),
        partition: Partition(1),
        nonce: Nonce([n as u8; 16]),
        random: 7,
    }
}

/// Nine tasks in a row; each passes a value on if `mapped`.
fn nine(mapped: bool) -> Plan {
    let mut text = "name: chain\ntasks:\n  t0: { type: work }\n".to_owned();
    for i in 1..9 {
        let before = i - 1;
        let input =
            if mapped { format!(", input: '${{{{ tasks.t{before}.output }}}}'") } else { String::new() };
        writeln!(text, "  t{i}: {{ type: work, needs: [t{before}]{input} }}").unwrap();
    }
    document::parse(text.as_bytes(), Format::Yaml).map_or_else(|f| panic!("{f:?}"), |d| d.plan)
}

fn start() -> Command {
    Command::Start(Start {
        id: RunId::generate(env(0).now, 9),
        workflow: WorkflowName::new("chain").unwrap(),
        version: 1,
        digest: [3; 16],
        input: None,
        tags: BTreeMap::new(),
        priority: None,
        start_at: None,
        origin: None,
        not_after: None,
    })
}

fn lease(i: usize, generation: u32) -> Command {
    Command::Lease(LeaseTask {
        path: TaskPath::parse(&format!("t{i}")).unwrap(),
        generation,
        holder: Holder::Session { id: SessionId::generate(Partition(1), 5), epoch: 1 },
        worker: "worker-1".into(),
    })
}

fn complete(i: usize, leased_by: i64) -> Command {
    let path = TaskPath::parse(&format!("t{i}")).unwrap();
    let attempt = AttemptKey { path, attempt: 1, nonce: Nonce([leased_by as u8; 16]) };
    Command::Complete { attempt, output: Ok(Bytes::from_static(b"{\"ok\":true}")) }
}

fn decide(mut txn: Txn<'_>, commands: &[Command]) -> Decision {
    for command in commands {
        txn.apply(command).unwrap();
    }
    txn.finish().unwrap()
}

/// A run of which five tasks have completed and the sixth is leased, by the commit of `env(6)`.
fn midway(plan: &Plan) -> (RunState, Prefix) {
    let mut d = decide(Txn::absent(plan, &Nothing, env(1)), &[start(), lease(0, 1)]);
    for i in 0..5 {
        let state = d.state.take().unwrap();
        let n = i as i64 + 1;
        let commands = [complete(i, n), lease(i + 1, i as u32 + 2)];
        d = decide(Txn::existing(plan, &state, d.prefix, &Nothing, env(n + 1)), &commands);
    }
    (d.state.unwrap(), d.prefix)
}

fn engine(c: &mut Criterion) {
    for (name, mapped) in [("", false), (" with a mapping", true)] {
        let plan = nine(mapped);
        let (state, prefix) = midway(&plan);
        let commands = [complete(5, 6), lease(6, 7)];
        c.bench_function(&format!("complete and lease the next{name}"), |b| {
            b.iter(|| decide(Txn::existing(&plan, black_box(&state), prefix, &Nothing, env(7)), &commands));
        });
    }
    let plan = nine(false);
    let begin = [start(), lease(0, 1)];
    c.bench_function("start and lease the first", |b| {
        b.iter(|| decide(Txn::absent(&plan, &Nothing, env(1)), black_box(&begin)));
    });
    let (state, _) = midway(&plan);
    let mut bytes = Vec::new();
    record::encode_into(&state, &mut bytes);
    let mut out = Vec::with_capacity(1_024);
    c.bench_function(&format!("encode a record of {} bytes", bytes.len()), |b| {
        b.iter(|| {
            out.clear();
            record::encode_into(black_box(&state), &mut out);
        });
    });
    c.bench_function("decode it", |b| b.iter(|| record::decode(black_box(&bytes)).unwrap()));
    c.bench_function("copy the state", |b| b.iter(|| black_box(&state).clone()));
}

criterion_group!(benches, engine);
criterion_main!(benches);
