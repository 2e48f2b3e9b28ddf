//! What the benchmarks are made of: runs brought to where they are interesting, without a store.

#![allow(dead_code, unreachable_pub, reason = "no benchmark needs all of it")]
#![allow(missing_debug_implementations, missing_docs, reason = "nobody but the benchmarks sees it")]

use bytes::Bytes;
use downbeat::engine::{Decision, Env, Payloads, ReadyTask, Txn};
use downbeat::model::command::{AttemptKey, Command, LeaseTask, Start};
use downbeat::model::commit::{EventNote, RunWrite};
use downbeat::model::document::{self, Format};
use downbeat::model::ids::{Nonce, Partition, Prefix, RunId, SessionId, TaskPath, WorkflowName};
use downbeat::model::payload::Field;
use downbeat::model::plan::Plan;
use downbeat::model::record::{self, Head};
use downbeat::model::run::{Holder, RunState};
use downbeat::model::time::{LeaseTime, Span, Timestamp};
use downbeat::model::token::TaskToken;
use downbeat::store::Batch;
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Items of the wide run.
pub const WIDTH: usize = 10_000;
/// What a task comes to.
pub const OUTPUT: &[u8] = b"{\"ok\":true}";

/// Payloads that were written beside the record.
#[derive(Default)]
pub struct Kept(BTreeMap<Field, Bytes>);

impl Payloads for Kept {
    fn get(&self, field: &Field) -> Option<Bytes> {
        self.0.get(field).cloned()
    }
}

/// What a store and a lane would have of one run.
pub struct Run {
    pub plan: Plan,
    pub state: RunState,
    pub prefix: Prefix,
    pub kept: Kept,
    /// Commits so far: the clocks, and the nonce of the next one.
    commits: u8,
}

impl Run {
    /// Starts a run; what is ready comes with it.
    pub fn started(plan: Plan, input: Option<&[u8]>) -> (Self, Vec<ReadyTask>) {
        let kept = Kept::default();
        let mut txn = Txn::absent(&plan, &kept, env(1));
        txn.apply(&start(input)).unwrap();
        let ready = txn.ready();
        let decision = txn.finish().unwrap();
        let Decision { state, prefix, write, .. } = decision;
        let kept = Kept(write.payloads.into_iter().collect());
        (Self { plan, state: state.unwrap(), prefix, kept, commits: 1 }, ready)
    }

    /// The time and the nonce of the next decision.
    pub fn env(&self) -> Env {
        env(self.commits + 1)
    }

    /// The next decision in the making.
    pub fn txn(&self) -> Txn<'_> {
        Txn::existing(&self.plan, &self.state, self.prefix, &self.kept, self.env())
    }

    /// Decides and keeps it; returns what became ready.
    pub fn apply(&mut self, commands: &[Command]) -> Vec<ReadyTask> {
        let mut txn = self.txn();
        for command in commands {
            txn.apply(command).unwrap();
        }
        let ready = txn.ready();
        let Decision { state, prefix, write, .. } = txn.finish().unwrap();
        self.kept.0.extend(write.payloads);
        (self.state, self.prefix) = (state.unwrap(), prefix);
        self.commits += 1;
        ready
    }

    /// Leases what is ready; returns the keys of the attempts.
    pub fn lease(&mut self, ready: &[ReadyTask]) -> Vec<AttemptKey> {
        let nonce = self.env().nonce;
        let commands: Vec<Command> = ready.iter().map(lease).collect();
        self.apply(&commands);
        ready.iter().map(|r| AttemptKey { path: r.path.clone(), attempt: 1, nonce }).collect()
    }

    /// Completes what is leased, and leases what becomes ready by that, in one decision for each.
    pub fn step(&mut self, attempts: &[AttemptKey]) -> Vec<AttemptKey> {
        let results: Vec<Command> = attempts.iter().map(complete).collect();
        let ready = self.apply(&results);
        if ready.is_empty() { Vec::new() } else { self.lease(&ready) }
    }
}

/// The clocks and the nonce of the `n`th commit.
pub fn env(n: u8) -> Env {
    Env {
        now: Timestamp::from_millis(1_800_000_000_000).plus(Span::millis(i64::from(n))),
        lease_now: LeaseTime::from_millis(i64::from(n)),
        partition: Partition(1),
        nonce: Nonce([n; 16]),
        random: 7,
        lease: downbeat::engine::limits::LEASE,
        unacked: downbeat::engine::limits::UNACKED,
    }
}

fn plan(text: &str) -> Plan {
    document::parse(text.as_bytes(), Format::Yaml).map_or_else(|f| panic!("{f:?}"), |d| d.plan)
}

/// So many tasks in a row; each passes a value on if `mapped`.
pub fn chain(tasks: usize, mapped: bool) -> Plan {
    let mut text = "name: chain\ntasks:\n  t0: { type: work }\n".to_owned();
    for i in 1..tasks {
        let before = i - 1;
        let input =
            if mapped { format!(", input: '${{{{ tasks.t{before}.output }}}}'") } else { String::new() };
        writeln!(text, "  t{i}: {{ type: work, needs: [t{before}]{input} }}").unwrap();
    }
    plan(&text)
}

/// The start of the run that all of these are.
pub fn start(input: Option<&[u8]>) -> Command {
    Command::Start(Start {
        id: RunId::generate(env(0).now, 9),
        workflow: WorkflowName::new("chain").unwrap(),
        version: 1,
        digest: [3; 16],
        input: input.map(Bytes::copy_from_slice),
        tags: BTreeMap::new(),
        priority: None,
        retention: None,
        start_at: None,
        origin: None,
        not_after: None,
    })
}

/// Gives a ready task to a worker.
pub fn lease(ready: &ReadyTask) -> Command {
    Command::Lease(LeaseTask {
        path: ready.path.clone(),
        generation: ready.generation,
        holder: Holder::Session { id: SessionId::generate(Partition(1), 5), epoch: 1 },
        worker: "worker-1".into(),
    })
}

/// An attempt's result.
pub fn complete(attempt: &AttemptKey) -> Command {
    Command::Complete { attempt: attempt.clone(), output: Ok(Bytes::from_static(OUTPUT)) }
}

/// A run in a steady state, the result that comes next, and the lease that follows from it.
pub struct Next {
    pub run: Run,
    pub result: Command,
    pub lease: Command,
    /// The path of what is leased.
    pub path: TaskPath,
}

impl Next {
    fn new(run: Run, attempts: &[AttemptKey]) -> Self {
        let result = complete(&attempts[0]);
        let mut txn = run.txn();
        txn.apply(&result).unwrap();
        let ready = txn.ready();
        let (lease, path) = (lease(&ready[0]), ready[0].path.clone());
        drop(txn);
        Self { run, result, lease, path }
    }

    /// A chain of nine, of which five tasks have completed and the sixth is leased.
    pub fn in_chain(mapped: bool) -> Self {
        let (mut run, ready) = Run::started(chain(9, mapped), None);
        let mut attempts = run.lease(&ready);
        for _ in 0..5 {
            attempts = run.step(&attempts);
        }
        Self::new(run, &attempts)
    }

    /// A run of 10,000 items, 500 at a time, of which half have completed.
    pub fn in_wide() -> Self {
        let text = "name: wide\ntasks:\n  m: { type: work, for_each: '${{ input }}', input: '${{ item }}', max_parallel: 500 }\n";
        let list: Vec<String> = (0..WIDTH).map(|n| n.to_string()).collect();
        let list = format!("[{}]", list.join(","));
        let (mut run, ready) = Run::started(plan(text), Some(list.as_bytes()));
        let mut attempts = run.lease(&ready);
        for _ in 0..WIDTH / 2 / 500 {
            attempts = run.step(&attempts);
        }
        Self::new(run, &attempts)
    }

    /// The decision on it, whole: as a lane makes it.
    pub fn decide(&self) -> Decision {
        let mut txn = self.run.txn();
        self.result(&mut txn);
        self.lease(&mut txn);
        txn.finish().unwrap()
    }

    /// Applies the result.
    pub fn result(&self, txn: &mut Txn<'_>) {
        txn.apply(&self.result).unwrap();
    }

    /// Looks for what became ready, reads its input and leases it.
    pub fn lease(&self, txn: &mut Txn<'_>) {
        std::hint::black_box(txn.ready());
        std::hint::black_box(txn.input_of(&self.path).unwrap());
        txn.apply(&self.lease).unwrap();
    }
}

/// A chain of so many tasks that half of them have completed.
pub fn half_done(tasks: usize) -> RunState {
    let (mut run, ready) = Run::started(chain(tasks, false), None);
    let mut attempts = run.lease(&ready);
    for _ in 0..tasks / 2 {
        attempts = run.step(&attempts);
    }
    run.state
}

/// The token of an attempt of the chain.
pub fn token() -> TaskToken {
    TaskToken {
        partition: Partition(1),
        run: RunId::generate(env(0).now, 9),
        path: TaskPath::parse("t5").unwrap(),
        attempt: 1,
        nonce: Nonce([7; 16]),
    }
}

/// A JSON text of about so many bytes, as services send them: a list of small objects, and what is looked for at its
/// end.
pub fn json(bytes: usize) -> String {
    let mut text = "{\"lines\":[".to_owned();
    for n in 0.. {
        let line = format!("{{\"sku\":\"AB-{n:05}\",\"qty\":{},\"price\":12.50,\"ok\":true}}", n % 7);
        if n > 0 && text.len() + line.len() + 30 > bytes {
            break;
        }
        if n > 0 {
            text.push(',');
        }
        text.push_str(&line);
    }
    text.push_str("],\"total\":{\"eur\":\"99.10\"}}");
    text
}

/// What is looked for in [`json`].
pub const STEPS: [&str; 2] = ["total", "eur"];

/// A batch of so many decisions, each a task of a chain.
pub fn batch(decisions: usize) -> Batch {
    let write = Next::in_chain(false).decide().write;
    let writes = (0..decisions).map(|n| {
        let run = RunId::generate(env(0).now, n as u128);
        let event = write.event.clone().map(|e| EventNote { run: run.clone(), ..e });
        (Partition(1), RunWrite { run, event, ..write.clone() })
    });
    Batch { lane: Nonce([1; 16]), sequence: 7, writes: writes.collect() }
}

/// The sizes of payloads.
pub const SIZES: [(&str, usize); 3] = [("100 B", 100), ("1 KB", 1_000), ("64 KB", 64_000)];

/// Pages of the wide run.
pub struct Page {
    /// The run before one of its nodes changed.
    pub base: RunState,
    /// And after.
    pub changed: RunState,
    /// The record of the wide run, and its pages.
    pub head: Head,
    pub values: Vec<Option<Bytes>>,
}

impl Page {
    pub fn new() -> Self {
        let next = Next::in_wide();
        let mut changed = next.run.state.clone();
        changed.tasks[WIDTH / 2].attempt += 1;
        let mut record = Vec::new();
        record::encode_into(&next.run.state, &mut record);
        let head = record::decode_head(&record).unwrap();
        let values: Vec<_> = head.fields().iter().map(|field| next.run.kept.get(field)).collect();
        assert!(head.clone().complete(&values).unwrap().is_some(), "record and pages belong together");
        Self { base: next.run.state, changed, head, values }
    }

    /// So many nodes stand in the page that is written.
    pub const NODES: u64 = 64;
}
