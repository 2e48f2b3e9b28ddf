//! Hand-made plans and a small world to run them in, for the tests of the engine.

use super::limits::{LEASE, UNACKED};
use super::{Decision, Env, Payloads, Stop, Txn, queued};
use crate::model::command::{AttemptKey, Command, LeaseTask, Outcome, ReportedFailure, Start};
use crate::model::commit::{QueueEntry, QueueOp, WakeOp};
use crate::model::event::EventKind;
use crate::model::ids::{
    Nonce, Partition, Prefix, RunId, SessionId, TaskId, TaskPath, TaskType, WorkflowName,
};
use crate::model::outbox::Delivery;
use crate::model::payload::Field;
use crate::model::plan::{Plan, RetryPolicy, Role, TaskKind, TaskPlan, Timeouts, When};
use crate::model::run::{Holder, Lease, RunState, TaskPhase};
use crate::model::time::{LeaseTime, Span, Timestamp};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};

/// A plan of tasks that each need others (by index, earlier ones).
pub(super) fn plan(needs: &[&[u32]]) -> Plan {
    let mut tasks: Vec<TaskPlan> = needs
        .iter()
        .enumerate()
        .map(|(i, needs)| TaskPlan {
            id: TaskId::new(&format!("t{i}")).unwrap(),
            kind: TaskKind::Worker(TaskType::new("work").unwrap()),
            role: Role::Task,
            parent: None,
            for_each: None,
            repeat: None,
            compensate: None,
            labels: crate::model::labels::Labels::NONE,
            needs: needs.to_vec(),
            dependents: Vec::new(),
            when: When::Success,
            condition: None,
            input: None,
            retry: RetryPolicy { max_attempts: 1, ..RetryPolicy::default() },
            timeout: Timeouts::default(),
            concurrency: None,
            rate: None,
            continue_on_error: false,
            priority: 0,
            description: None,
        })
        .collect();
    for (i, needs) in needs.iter().enumerate() {
        for n in *needs {
            tasks[*n as usize].dependents.push(i as u32);
        }
    }
    Plan {
        name: WorkflowName::new("flow").unwrap(),
        digest: 0,
        description: None,
        body: 0..tasks.len() as u32,
        finally: None,
        tasks,
        output: None,
        timeout: None,
        fail_fast: false,
        input_schema: None,
        tags: BTreeMap::new(),
        priority: 0,
        retention: Span::secs(7 * 86_400),
        index: crate::model::plan::Index::default(),
    }
}

/// A chain of `n` tasks.
pub(super) fn chain(n: u32) -> Plan {
    let needs: Vec<Vec<u32>> = (0..n).map(|i| if i == 0 { vec![] } else { vec![i - 1] }).collect();
    let needs: Vec<&[u32]> = needs.iter().map(Vec::as_slice).collect();
    plan(&needs)
}

pub(super) fn path(i: u32) -> TaskPath {
    TaskPath::parse(&format!("t{i}")).unwrap()
}

pub(super) fn session(n: u32) -> SessionId {
    SessionId::generate(Partition(0), u128::from(n))
}

pub(super) fn start() -> Start {
    Start {
        id: RunId::new("run-1").unwrap(),
        workflow: WorkflowName::new("flow").unwrap(),
        version: 1,
        digest: [7; 16],
        input: None,
        tags: BTreeMap::new(),
        priority: None,
        retention: None,
        start_at: None,
        origin: None,
        not_after: None,
    }
}

pub(super) fn failure(code: &str) -> ReportedFailure {
    ReportedFailure { code: code.into(), message: "no".into(), retryable: true, retry_after: None }
}

/// What a store would hold of one run, built from the writes alone.
#[derive(Debug)]
pub(super) struct World {
    pub(super) plan: Plan,
    pub(super) state: Option<RunState>,
    prefix: Option<Prefix>,
    pub(super) now: Timestamp,
    pub(super) lease_now: LeaseTime,
    nonce: u64,
    pub(super) random: u64,
    pub(super) lease: Span,
    pub(super) queue: BTreeMap<QueueEntry, i64>,
    pub(super) wake: Option<Timestamp>,
    pub(super) payloads: BTreeMap<Field, Bytes>,
    /// Fields the engine may see; all, if none is named.
    pub(super) at_hand: Option<BTreeSet<Field>>,
    /// Events the notes have told of.
    pub(super) told: u32,
    pub(super) revoked: Vec<super::Revoked>,
    pub(super) retain_until: Option<Timestamp>,
    /// Messages to other records, as they were given out.
    pub(super) sent: Vec<Delivery>,
    /// Bytes of the record, prefix included.
    pub(super) record_len: usize,
}

pub(super) struct AtHand<'a>(&'a World);

impl Payloads for AtHand<'_> {
    fn get(&self, field: &Field) -> Option<Bytes> {
        let world = self.0;
        let seen = world.at_hand.as_ref().is_none_or(|known| known.contains(field));
        world.payloads.get(field).filter(|_| seen).cloned()
    }
}

impl World {
    pub(super) fn new(plan: Plan) -> Self {
        Self {
            plan,
            state: None,
            prefix: None,
            now: Timestamp::from_millis(1_800_000_000_000),
            lease_now: LeaseTime::from_millis(1_000),
            nonce: 0,
            random: 1 << 63,
            lease: LEASE,
            queue: BTreeMap::new(),
            wake: None,
            payloads: BTreeMap::new(),
            at_hand: None,
            told: 0,
            revoked: Vec::new(),
            retain_until: None,
            sent: Vec::new(),
            record_len: 0,
        }
    }

    /// What a decision of a home record looks at.
    pub(super) fn home_env(&mut self) -> Env {
        self.nonce += 1;
        Env {
            now: self.now,
            lease_now: self.lease_now,
            partition: Partition(0),
            nonce: Nonce([self.nonce as u8; 16]),
            random: self.nonce.wrapping_mul(0x9e37_79b9_7f4a_7c15),
            lease: LEASE,
            unacked: UNACKED,
        }
    }

    /// The payloads the engine may see.
    pub(super) fn source(&self) -> AtHand<'_> {
        AtHand(self)
    }

    /// A world in which the run has been started.
    pub(super) fn started(plan: Plan) -> Self {
        let mut world = Self::new(plan);
        assert_eq!(world.apply(&Command::Start(start())), Ok(Outcome::Accepted));
        world
    }

    pub(super) fn run(&self) -> &RunState {
        self.state.as_ref().unwrap()
    }

    pub(super) fn pass(&mut self, time: Span) {
        self.now = self.now.plus(time);
        self.lease_now = self.lease_now.plus(time);
    }

    /// One command, one decision.
    pub(super) fn apply(&mut self, command: &Command) -> Result<Outcome, Stop> {
        self.apply_all(std::slice::from_ref(command)).remove(0)
    }

    /// Several commands, one decision; checked against the world, then committed.
    pub(super) fn apply_all(&mut self, commands: &[Command]) -> Vec<Result<Outcome, Stop>> {
        self.nonce += 1;
        let mut nonce = [0; 16];
        nonce[..8].copy_from_slice(&self.nonce.to_be_bytes());
        let env = Env {
            now: self.now,
            lease_now: self.lease_now,
            partition: Partition(0),
            nonce: Nonce(nonce),
            random: self.random,
            lease: self.lease,
            unacked: UNACKED.max(Span(self.lease.0 * 4)),
        };
        let source = self.source();
        let mut txn = match (&self.state, self.prefix) {
            (Some(state), Some(prefix)) => Txn::existing(&self.plan, state, prefix, &source, env),
            _ => Txn::absent(&self.plan, &source, env),
        };
        let outcomes: Vec<_> = commands.iter().map(|c| txn.apply(c)).collect();
        let ready = txn.ready();
        let decision = txn.finish();
        // A wake-up of a run that has one is always written, since the store has moved it ahead.
        let open = self.state.as_ref().is_some_and(|s| !s.status.is_terminal() || !s.outbox.is_empty());
        let woken = open && commands.iter().any(|c| matches!(c, Command::Wake { .. }));
        let changed = |o: &Result<Outcome, Stop>| matches!(o, Ok(Outcome::Accepted | Outcome::Leased { .. }));
        let void = outcomes.iter().any(|o| matches!(o, Err(Stop::NeedPayloads(_))));
        assert_eq!(decision.is_some(), !void && (woken || outcomes.iter().any(changed)), "{outcomes:?}");
        if let Some(decision) = decision {
            for r in &ready {
                let added = decision.write.queue.iter().any(|op| {
                    matches!(op, QueueOp::Add { entry, score, .. }
                        if entry.path == r.path && entry.generation == r.generation && *score == r.score)
                });
                assert!(added, "{r:?} is ready but not added");
            }
            self.commit(decision);
        } else {
            assert!(void || ready.is_empty());
        }
        outcomes
    }

    fn commit(&mut self, decision: Decision) {
        use crate::model::commit::{Expect, Write};
        use crate::model::record;
        let write = decision.write;
        assert_eq!(write.expect, self.prefix.map_or(Expect::Absent, Expect::Prefix));
        if let (Write::Put(bytes), Some(state)) = (&write.write, &decision.state) {
            assert_eq!(Prefix::of(bytes), Some(decision.prefix));
            self.record_len = bytes.len();
            let head = record::decode_head(&bytes[Prefix::LEN..]).unwrap();
            let value = |f: &Field| {
                let new = write.payloads.iter().find(|(name, _)| name == f).map(|(_, v)| v.clone());
                new.or_else(|| self.payloads.get(f).cloned())
            };
            let values: Vec<_> = head.fields().iter().map(value).collect();
            assert_eq!(head.complete(&values), Ok(Some(state.clone())));
        } else {
            assert_eq!((&write.write, &decision.state), (&Write::Delete, &None));
        }
        for (field, json) in write.payloads {
            let known = self.payloads.insert(field.clone(), json).is_some();
            assert!(!known || record::is_page(&field), "{field:?} is written twice");
        }
        for op in write.queue {
            match op {
                QueueOp::Add { entry, score, .. } => assert_eq!(self.queue.insert(entry, score), None),
                QueueOp::Remove { entry, .. } => assert!(self.queue.remove(&entry).is_some(), "{entry:?}"),
            }
        }
        match write.wake {
            WakeOp::Keep => {}
            WakeOp::Lower(at) => self.wake = Some(self.wake.map_or(at, |w| w.min(at))),
            WakeOp::Set(at) => self.wake = Some(at),
            WakeOp::Remove => self.wake = None,
        }
        if let Some(note) = write.event {
            assert_eq!(note.first, self.told);
            self.told += note.kinds.len() as u32;
        }
        if let Some(until) = write.retain_until {
            self.retain_until = until;
        }
        assert_eq!(write.index.is_some(), self.state.is_none());
        self.revoked.extend(decision.revoked);
        self.sent.extend(decision.deliveries);
        self.state = decision.state;
        self.prefix = self.state.as_ref().map(|_| decision.prefix);
        if self.state.is_none() {
            self.told = 0;
            self.payloads.clear();
        }
    }

    fn path(&self, i: u32) -> TaskPath {
        self.run().path_of(&self.plan, i)
    }

    pub(super) fn generation(&self, i: u32) -> Option<u32> {
        queued(&self.run().tasks[i as usize])
    }

    pub(super) fn lease_command(&self, i: u32, holder: Holder) -> Command {
        let generation = self.generation(i).unwrap_or(0);
        Command::Lease(LeaseTask { path: self.path(i), generation, holder, worker: "w1".into() })
    }

    /// Leases a queued task to session 1 at epoch 1.
    pub(super) fn lease(&mut self, i: u32) -> AttemptKey {
        let command = self.lease_command(i, Holder::Session { id: session(1), epoch: 1 });
        let outcome = self.apply(&command);
        assert!(matches!(outcome, Ok(Outcome::Leased { .. })), "t{i}: {outcome:?}");
        self.key(i)
    }

    pub(super) fn held(&self, i: u32) -> Option<&Lease> {
        if let TaskPhase::Running { lease, .. } = &self.run().tasks[i as usize].phase {
            Some(lease)
        } else {
            None
        }
    }

    pub(super) fn key(&self, i: u32) -> AttemptKey {
        let attempt = self.run().tasks[i as usize].attempt;
        AttemptKey { path: self.path(i), attempt, nonce: self.held(i).unwrap().nonce }
    }

    pub(super) fn complete(&mut self, i: u32) {
        let attempt = self.lease(i);
        let output = Ok(Bytes::from_static(b"1"));
        assert_eq!(self.apply(&Command::Complete { attempt, output }), Ok(Outcome::Accepted));
    }

    pub(super) fn fail(&mut self, i: u32, code: &str) {
        let attempt = self.lease(i);
        let command = Command::Fail { attempt, failure: failure(code) };
        assert_eq!(self.apply(&command), Ok(Outcome::Accepted));
    }

    /// Cancels one task as a cascade from outside would.
    pub(super) fn cancel_one(&mut self, i: u32) {
        use super::graph::{Cascade, End};
        self.nonce += 1;
        let mut nonce = [0xff; 16];
        nonce[..8].copy_from_slice(&self.nonce.to_be_bytes());
        let env = Env {
            now: self.now,
            lease_now: self.lease_now,
            partition: Partition(0),
            nonce: Nonce(nonce),
            random: self.random,
            lease: self.lease,
            unacked: UNACKED.max(Span(self.lease.0 * 4)),
        };
        let source = self.source();
        let mut txn = Txn::existing(&self.plan, self.run(), self.prefix.unwrap(), &source, env);
        let mut step = txn.step().unwrap();
        let mut cascade = Cascade::default();
        step.end_task(i, End::Cancelled, &mut cascade);
        step.settle(cascade).unwrap();
        let decision = txn.finish().unwrap();
        self.commit(decision);
    }

    pub(super) fn wake(&mut self) -> Outcome {
        self.wake_with(BTreeMap::new())
    }

    pub(super) fn wake_with(&mut self, sessions: super::wake::Sessions) -> Outcome {
        self.apply(&Command::Wake { sessions }).unwrap()
    }

    pub(super) fn statuses(&self) -> Vec<&'static str> {
        self.run().tasks.iter().map(|t| t.phase.name()).collect()
    }

    /// The events so far, `queued t0`, `run.failed`.
    pub(super) fn events(&self) -> Vec<String> {
        let tell = |e: &crate::model::event::LogEntry| match e.task {
            Some(i) => format!("{} t{i}", e.kind.name().trim_start_matches("task.")),
            None => e.kind.name().to_owned(),
        };
        self.run().log.iter().map(tell).collect()
    }

    pub(super) fn count(&self, kind: EventKind) -> usize {
        self.run().log.iter().filter(|e| e.kind == kind).count()
    }
}
