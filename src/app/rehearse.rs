//! Rehearsals: a run played against answers that are given beforehand, with time that is skipped. No store, no
//! server, no clock: a loop over the engine, which gives the same result on any machine.
//!
//! ```text
//! due results → due deeds → messages → what is queued is taken → deeds that waited for quiet → skip to what is next
//! ```
//!
//! Invariants
//! - There are as many workers as are wanted: whatever is queued is taken at once.
//! - Time stands still while anything can be done, and then moves to the next thing that has a time.
//! - Random parts of delays are left out ([`prepared`]), so that lengths of time are exact.
//!
//! To add a way to answer: a variant of [`Reply`], its arm in [`Stage::take`]. To add a deed: its arm in [`ripe`].

mod children;
mod limits;

use super::render::{AtHand, text_of};
use crate::engine::limits::{HEARTBEAT_SHARE, LEASE};
use crate::engine::{self, Env, Payloads, Stop, Txn};
use crate::model::command::{
    AttemptKey, Command, LeaseTask, Outcome, Refusal, ReportedFailure, SessionView, Start,
};
use crate::model::event::EventKind;
use crate::model::ids::{Nonce, Partition, Prefix, RunId, SessionId, TaskPath};
use crate::model::outbox::Delivery;
use crate::model::payload::Field;
use crate::model::plan::{Plan, Role};
use crate::model::run::{Holder, RunState, RunStatus, TaskPhase, Waiting};
use crate::model::time::{LeaseTime, Span, Timestamp};
use bytes::Bytes;
use children::ChildFlight;
use std::collections::{BTreeMap, BTreeSet};

/// Rounds of a rehearsal after which it is given up.
const ROUNDS: usize = 1_000_000;
/// Nodes named when a run does not go on.
const NAMED: usize = 5;

/// What is given beforehand.
#[derive(Debug, Clone)]
pub(crate) struct Script {
    /// JSON text; none is null.
    pub(crate) input: Option<Bytes>,
    /// When the run is started.
    pub(crate) at: Timestamp,
    /// When it is to begin; none is at once.
    pub(crate) start_at: Option<Timestamp>,
    /// By path (`ship[0]`), path without numbers (`ship`), id, type or workflow; the first of these that is given counts.
    pub(crate) answers: BTreeMap<String, Answers>,
    /// Signals, in order.
    pub(crate) signals: Vec<Deed>,
    /// What people do to the run, in order.
    pub(crate) control: Vec<Deed>,
}

/// Answers under one name.
#[derive(Debug, Clone)]
pub(crate) enum Answers {
    /// Every call is answered so.
    Always(Answer),
    /// One for each call, in order.
    Each(Vec<Answer>),
}

/// What a worker does with an attempt.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    /// How it ends.
    pub(crate) reply: Reply,
    /// How long it takes.
    pub(crate) takes: Span,
    /// It gives no sign of life meanwhile.
    pub(crate) silent: bool,
}

/// How an attempt ends.
#[derive(Debug, Clone)]
pub(crate) enum Reply {
    /// With this output, JSON text.
    Output(Bytes),
    /// It fails.
    Fail(ReportedFailure),
    /// No worker takes it.
    Untaken,
}

/// Something done to the run from outside.
#[derive(Debug, Clone)]
pub(crate) struct Deed {
    /// How long after the start; none: once nothing else can be done and it makes sense.
    pub(crate) at: Option<Span>,
    /// What.
    pub(crate) command: Command,
    /// How messages call it.
    pub(crate) name: String,
    /// It has to be refused.
    pub(crate) refused: bool,
}

/// What a run came to.
#[derive(Debug)]
pub(crate) struct Played {
    /// Where it is.
    pub(crate) status: RunStatus,
    /// JSON text.
    pub(crate) output: Bytes,
    /// Its error.
    pub(crate) error: Option<PlayedError>,
    /// Its tasks, items and iterations, by path.
    pub(crate) tasks: BTreeMap<String, PlayedTask>,
    /// The input of the last attempt of every task that a worker had, by path.
    pub(crate) inputs: BTreeMap<String, Bytes>,
    /// Paths in the order in which they began; a path comes again with each attempt.
    pub(crate) begun: Vec<String>,
    /// From its beginning to its end, or to now.
    pub(crate) duration: Span,
    /// Why it did not go on, or what else went wrong with the rehearsal.
    pub(crate) trouble: Vec<String>,
}

/// A task of a run that was played.
#[derive(Debug)]
pub(crate) struct PlayedTask {
    /// As users read it.
    pub(crate) status: &'static str,
    /// JSON text.
    pub(crate) output: Bytes,
}

/// The error of a run that was played.
#[derive(Debug)]
pub(crate) struct PlayedError {
    pub(crate) code: String,
    pub(crate) message: String,
    /// Path; none for the run's own.
    pub(crate) task: Option<String>,
}

/// A path without the numbers of items and iterations: `m[1]#0/x` is `m/x`.
pub(crate) fn without_numbers(path: &str) -> String {
    let bare = |segment: &str| segment.split(['[', '#']).next().unwrap_or_default().to_owned();
    path.split('/').map(bare).collect::<Vec<_>>().join("/")
}

/// A plan as it is rehearsed: without the random parts of delays.
pub(crate) fn prepared(mut plan: Plan) -> Plan {
    for task in &mut plan.tasks {
        task.retry.jitter = 0.0;
    }
    plan
}

/// Plays a run of `plan` (see [`prepared`]) until it has ended and nothing is left to do to it, or until it does not go on.
pub(crate) fn play(plan: &Plan, script: &Script) -> Played {
    let mut stage = Stage::new(plan, script);
    let stuck = stage.run().err();
    stage.told(stuck)
}

/// Values beside the record.
struct Kept(AtHand);

impl Payloads for Kept {
    fn get(&self, field: &Field) -> Option<Bytes> {
        self.0.get(field).cloned()
    }
}

/// An attempt in a worker's hands.
struct Flight {
    node: u32,
    key: AttemptKey,
    ends: Timestamp,
    answer: Answer,
}

struct Stage<'a> {
    plan: &'a Plan,
    script: &'a Script,
    now: Timestamp,
    nonce: u64,
    state: Option<RunState>,
    prefix: Option<Prefix>,
    kept: Kept,
    flights: Vec<Flight>,
    /// Children that go on.
    children: Vec<ChildFlight>,
    /// Every child that was begun: its id, task and workflow.
    begun_children: Vec<(RunId, TaskPath, String)>,
    /// Messages to others that were not taken yet, and the numbers of those that were.
    post: Vec<Delivery>,
    carried: BTreeSet<u32>,
    /// How often each name was called.
    calls: BTreeMap<&'a str, usize>,
    /// Generations of queue entries that nobody takes.
    untaken: BTreeSet<u32>,
    inputs: BTreeMap<String, Bytes>,
    /// Deeds that have a time, latest first.
    timed: Vec<&'a Deed>,
    /// Signals and deeds without one, last first.
    signals: Vec<&'a Deed>,
    control: Vec<&'a Deed>,
    trouble: Vec<String>,
    /// Slots and rates, which no other run uses.
    limits: limits::Limits,
}

impl<'a> Stage<'a> {
    fn new(plan: &'a Plan, script: &'a Script) -> Self {
        let mut timed: Vec<&Deed> = script.signals.iter().chain(&script.control).collect();
        timed.retain(|d| d.at.is_some());
        timed.sort_by_key(|d| d.at);
        timed.reverse();
        let untimed = |deeds: &'a [Deed]| deeds.iter().rev().filter(|d| d.at.is_none()).collect();
        Self {
            plan,
            script,
            now: script.at,
            nonce: 0,
            state: None,
            prefix: None,
            kept: Kept(AtHand::new()),
            flights: Vec::new(),
            children: Vec::new(),
            begun_children: Vec::new(),
            post: Vec::new(),
            carried: BTreeSet::new(),
            calls: BTreeMap::new(),
            untaken: BTreeSet::new(),
            inputs: BTreeMap::new(),
            timed,
            signals: untimed(&script.signals),
            control: untimed(&script.control),
            trouble: Vec::new(),
            limits: limits::Limits::default(),
        }
    }

    /// `Err` says why the run does not go on.
    fn run(&mut self) -> Result<(), String> {
        let id = RunId::new("rehearsal").map_err(|e| e.to_string())?;
        self.decide(&[Command::Start(Start {
            id,
            workflow: self.plan.name.clone(),
            version: 1,
            digest: [0; 16],
            input: self.script.input.clone(),
            tags: BTreeMap::new(),
            priority: None,
            retention: None,
            start_at: self.script.start_at,
            origin: None,
            not_after: None,
        })])?;
        for _ in 0..ROUNDS {
            if self.results()? || self.due_deed()? || self.errands()? || self.take()? || self.quiet_deed()? {
                continue;
            }
            let Some(next) = self.next_time() else {
                return if self.ended() { Ok(()) } else { Err(self.waits_for()) };
            };
            self.now = next;
            // What is just in time counts.
            self.results()?;
            while self.due_deed()? {}
            while self.wake()? {}
        }
        Err(format!("the run did not come to an end in {ROUNDS} rounds"))
    }

    fn ended(&self) -> bool {
        self.state.as_ref().is_some_and(|s| s.status.is_terminal())
    }

    fn elapsed(&self) -> Span {
        self.now.since(self.script.at)
    }

    /// The lease clock goes as the wall clock does.
    fn lease_now(&self) -> LeaseTime {
        LeaseTime(0).plus(self.elapsed())
    }

    /// One decision. The outer error is one of ours.
    fn decide(&mut self, commands: &[Command]) -> Result<Vec<Result<Outcome, Refusal>>, String> {
        self.nonce += 1;
        let env = Env {
            now: self.now,
            lease_now: self.lease_now(),
            partition: Partition(0),
            nonce: Nonce(u128::from(self.nonce).to_be_bytes()),
            random: 0,
            lease: LEASE,
            // Whoever is given an attempt here knows of it, however long it takes.
            unacked: Span(i64::MAX),
        };
        let mut txn = match (&self.state, self.prefix) {
            (Some(state), Some(prefix)) => Txn::existing(self.plan, state, prefix, &self.kept, env),
            _ => Txn::absent(self.plan, &self.kept, env),
        };
        let mut outcomes = Vec::with_capacity(commands.len());
        for command in commands {
            outcomes.push(match txn.apply(command) {
                Ok(outcome) => Ok(outcome),
                Err(Stop::Refused(refusal)) => Err(refusal),
                Err(Stop::NeedPayloads(fields)) => {
                    return Err(format!("this is a bug in downbeat: {fields:?} are not there"));
                }
            });
        }
        if let Some(decision) = txn.finish() {
            self.kept.0.extend(decision.write.payloads);
            self.prefix = Some(decision.prefix);
            self.state = decision.state;
            let (to_homes, to_runs) = decision.deliveries.into_iter().partition(|d| d.to.is_reserved());
            self.post.extend::<Vec<Delivery>>(to_runs);
            self.limits.send(to_homes);
            self.settle_limits(env)?;
        }
        Ok(outcomes)
    }

    /// Attempts that end now tell it. False: there are none.
    fn results(&mut self) -> Result<bool, String> {
        let nonce_of = |state: &RunState, node: u32| match &state.tasks.get(node as usize)?.phase {
            TaskPhase::Running { lease, .. } => Some(lease.nonce),
            _ => None,
        };
        let state = self.state.as_ref();
        // What was ended otherwise is of no interest any more.
        self.flights.retain(|f| state.and_then(|s| nonce_of(s, f.node)) == Some(f.key.nonce));
        let (mut due, rest): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.flights).into_iter().partition(|f| f.ends <= self.now);
        self.flights = rest;
        due.sort_by_key(|f| f.ends);
        let mut results: Vec<Command> = due
            .into_iter()
            .filter_map(|f| match f.answer.reply {
                Reply::Output(json) => Some(Command::Complete { attempt: f.key, output: Ok(json) }),
                Reply::Fail(failure) => Some(Command::Fail { attempt: f.key, failure }),
                Reply::Untaken => None,
            })
            .collect();
        results.extend(self.children_that_end());
        if results.is_empty() {
            return Ok(false);
        }
        // One of them may end others: those are stale then, as they would be.
        self.decide(&results)?;
        Ok(true)
    }

    fn due_deed(&mut self) -> Result<bool, String> {
        let elapsed = self.elapsed();
        let Some(deed) = self.timed.pop_if(|d| d.at.is_some_and(|at| at <= elapsed)) else {
            return Ok(false);
        };
        self.deed(deed)
    }

    /// Deeds without a time, once nothing else can be done.
    fn quiet_deed(&mut self) -> Result<bool, String> {
        let quiet = self.flights.is_empty() && self.children.is_empty();
        let Some(state) = self.state.as_ref().filter(|_| quiet) else { return Ok(false) };
        let ready = |d: &mut &Deed| ripe(state, &d.command);
        let Some(deed) = self.signals.pop_if(ready).or_else(|| self.control.pop_if(ready)) else {
            return Ok(false);
        };
        self.deed(deed)
    }

    fn deed(&mut self, deed: &Deed) -> Result<bool, String> {
        let outcome = self.decide(std::slice::from_ref(&deed.command))?.pop();
        match outcome {
            Some(Err(refusal)) if !deed.refused => {
                self.trouble.push(format!("{} was refused: {refusal}", deed.name));
            }
            Some(Ok(_)) if deed.refused => self.trouble.push(format!("{} was not refused", deed.name)),
            Some(Ok(_) | Err(_)) | None => {}
        }
        Ok(true)
    }

    /// Workers take what is queued. False: nothing is.
    fn take(&mut self) -> Result<bool, String> {
        let Some(state) = &self.state else { return Ok(false) };
        let mut queued: Vec<(i64, u32, u32)> = Vec::new();
        for (node, task) in (0..).zip(&state.tasks) {
            if let TaskPhase::Queued { generation, .. } = task.phase
                && generation > 0
                && !self.untaken.contains(&generation)
            {
                let score = engine::score(state, &self.plan.tasks[state.plan_index(node) as usize]);
                queued.push((score, generation, node));
            }
        }
        queued.sort_unstable();
        let mut leases = Vec::new();
        let mut taken = Vec::new();
        for (_, generation, node) in queued {
            let path = state.path_of(self.plan, node);
            let called = state.type_of(self.plan, node).map_or("", |t| t.as_str());
            let asked = Asked { plan: self.plan, state, node, path: path.as_str(), called };
            let answer = answer(&asked, self.script, &mut self.calls)?;
            if matches!(answer.reply, Reply::Untaken) {
                self.untaken.insert(generation);
                continue;
            }
            let holder = Holder::Session { id: session(), epoch: 1 };
            leases.push(Command::Lease(LeaseTask {
                path: path.clone(),
                generation,
                holder,
                worker: "mock".to_owned(),
            }));
            taken.push((node, path, answer));
        }
        if leases.is_empty() {
            return Ok(false);
        }
        let nonce = Nonce(u128::from(self.nonce + 1).to_be_bytes());
        self.decide(&leases)?;
        for (node, path, answer) in taken {
            let Some(task) = self.state.as_ref().and_then(|s| s.tasks.get(node as usize)) else { continue };
            self.inputs.insert(path.to_string(), text_of(&task.input, &self.kept.0));
            let key = AttemptKey { path, attempt: task.attempt, nonce };
            let ends = self.now.plus(answer.takes);
            self.flights.push(Flight { node, key, ends, answer });
        }
        Ok(true)
    }

    /// Lets the run look at the time. False: nothing was due.
    fn wake(&mut self) -> Result<bool, String> {
        let alive = self.flights.iter().filter(|f| !f.answer.silent);
        let mut commands: Vec<Command> =
            alive.map(|f| Command::Heartbeat { attempt: f.key.clone(), extend_claim: None }).collect();
        let view = SessionView { epoch: 1, remaining: LEASE, owner_gone: false, resuming: false };
        commands.push(Command::Wake { sessions: [(session(), view)].into() });
        Ok(self.decide(&commands)?.pop() == Some(Ok(Outcome::Accepted)))
    }

    /// When the next thing that has a time comes.
    fn next_time(&self) -> Option<Timestamp> {
        let mut next: Option<Timestamp> = None;
        let mut no_later = |t: Timestamp| {
            if t > self.now {
                next = Some(next.map_or(t, |n| n.min(t)));
            }
        };
        if let Some(at) = self.timed.last().and_then(|d| d.at) {
            no_later(self.script.at.plus(at));
        }
        for ends in self.flights.iter().map(|f| f.ends).chain(self.children.iter().map(|c| c.ends)) {
            no_later(ends);
        }
        let Some(state) = self.state.as_ref().filter(|s| !s.status.is_terminal()) else { return next };
        if let Some(deadline) = state.deadline {
            no_later(deadline);
        }
        if let Some(start_at) = state.start_at.filter(|_| state.status == RunStatus::Pending) {
            no_later(start_at);
        }
        let paused = state.status == RunStatus::Paused;
        let wall = |at: LeaseTime| self.now.plus(at.since(self.lease_now()));
        for (node, task) in (0..).zip(&state.tasks) {
            if task.phase.is_terminal() || matches!(task.phase, TaskPhase::Pending { .. }) {
                continue;
            }
            let limits = &self.plan.tasks[state.plan_index(node) as usize].timeout;
            if let (Some(total), Some(first)) = (limits.total, task.first_queued_at) {
                no_later(first.plus(total));
            }
            match &task.phase {
                TaskPhase::Queued { since, generation } => {
                    if let Some(queue) = limits.queue.filter(|_| *generation > 0) {
                        no_later(since.plus(queue));
                    }
                }
                TaskPhase::Running { lease, .. } => {
                    if let Some(run) = limits.run {
                        no_later(wall(lease.leased_at.plus(run)));
                    }
                    let silent = self.flights.iter().any(|f| f.node == node && f.answer.silent);
                    if let Some(heartbeat) = limits.heartbeat.filter(|_| silent) {
                        let last = lease.heartbeat_at.unwrap_or(lease.leased_at);
                        no_later(wall(last.plus(heartbeat).plus(Span(heartbeat.0 / HEARTBEAT_SHARE))));
                    }
                }
                TaskPhase::Waiting(Waiting::Timer { due }) => no_later(*due),
                TaskPhase::Retrying { due }
                | TaskPhase::Waiting(
                    Waiting::Rate { due: Some(due), .. } | Waiting::Iterations { due: Some(due), .. },
                ) if !paused => {
                    no_later(*due);
                }
                TaskPhase::Retrying { .. }
                | TaskPhase::Waiting(_)
                | TaskPhase::Pending { .. }
                | TaskPhase::Completed { .. }
                | TaskPhase::Failed { .. }
                | TaskPhase::Skipped { .. }
                | TaskPhase::Cancelled
                | TaskPhase::TimedOut { .. } => {}
            }
        }
        next
    }

    /// Why nothing goes on.
    fn waits_for(&self) -> String {
        let Some(state) = &self.state else { return "the run does not exist".to_owned() };
        if state.status == RunStatus::Paused {
            return "the run is paused and nobody resumes it".to_owned();
        }
        let mut waits = Vec::new();
        for (node, task) in (0..).zip(&state.tasks) {
            let path = state.path_of(self.plan, node);
            match &task.phase {
                TaskPhase::Waiting(Waiting::Signal { name }) => {
                    waits.push(format!("{path} for the signal {name:?}"));
                }
                TaskPhase::Waiting(Waiting::Child { .. }) => {
                    waits.push(format!("{path} for the run it has started"));
                }
                TaskPhase::Queued { .. } => waits.push(format!("{path} for a worker")),
                TaskPhase::Waiting(Waiting::Permit { .. }) => {
                    let key = task.permit.as_ref().map_or("", |p| &p.key);
                    waits.push(format!("{path} for a slot of {key:?}"));
                }
                _ => {}
            }
        }
        let more = waits.len().saturating_sub(NAMED);
        waits.truncate(NAMED);
        if more > 0 {
            waits.push(format!("{more} more"));
        }
        format!("the run waits for ever: {}", waits.join(", "))
    }

    fn told(mut self, stuck: Option<String>) -> Played {
        self.trouble.extend(stuck);
        for deed in self.timed.iter().chain(&self.signals).chain(&self.control).rev() {
            self.trouble.push(format!("{} never had its turn", deed.name));
        }
        let null = Bytes::from_static(b"null");
        let Some(state) = &self.state else {
            return Played {
                status: RunStatus::Pending,
                output: null,
                error: None,
                tasks: BTreeMap::new(),
                inputs: self.inputs,
                begun: Vec::new(),
                duration: Span(0),
                trouble: self.trouble,
            };
        };
        let path = |node: u32| state.path_of(self.plan, node).to_string();
        let current = state.current_blocks();
        let mut tasks = BTreeMap::new();
        for (node, task) in (0..).zip(&state.tasks) {
            let block = task.block.checked_sub(1);
            if block.is_some_and(|b| !current.get(b as usize).copied().unwrap_or(false)) {
                continue;
            }
            let output = match &task.phase {
                TaskPhase::Completed { output } => text_of(output, &self.kept.0),
                _ => null.clone(),
            };
            tasks.insert(path(node), PlayedTask { status: task.phase.name(), output });
        }
        let error = state.error.and_then(|e| state.failures.get(e as usize)).map(|f| PlayedError {
            code: f.code.clone(),
            message: f.message.clone(),
            task: f.task.map(path),
        });
        let end = state.ended_at.unwrap_or(self.now);
        Played {
            status: state.status,
            output: text_of(&state.output, &self.kept.0),
            error,
            begun: begun(state).into_iter().map(path).collect(),
            duration: end.since(state.started_at.unwrap_or(end)),
            tasks,
            inputs: self.inputs,
            trouble: self.trouble,
        }
    }
}

fn session() -> SessionId {
    SessionId::generate(Partition(0), 1)
}

/// Nodes in the order in which they began, from the log: with a worker, a wait, or an end that came at once.
fn begun(state: &RunState) -> Vec<u32> {
    let mut open = BTreeSet::new();
    let mut begun = Vec::new();
    for entry in &state.log {
        let Some(node) = entry.task else { continue };
        match entry.kind {
            // Held back by a limit: it has not begun.
            EventKind::TaskWaiting if entry.delivery > 0 => {}
            EventKind::TaskStarted | EventKind::TaskWaiting => {
                open.insert(node);
                begun.push(node);
            }
            EventKind::TaskCompleted | EventKind::TaskFailed | EventKind::TaskTimedOut => {
                if !open.remove(&node) {
                    begun.push(node);
                }
            }
            EventKind::TaskQueued
            | EventKind::TaskRetrying
            | EventKind::TaskSkipped
            | EventKind::TaskCancelled
            | EventKind::RunStarted
            | EventKind::RunCompleted
            | EventKind::RunFailed
            | EventKind::RunCancelled
            | EventKind::RunTimedOut
            | EventKind::RunPaused
            | EventKind::RunResumed
            | EventKind::RunRetried
            | EventKind::SignalReceived
            | EventKind::ScheduleFired
            | EventKind::ScheduleSkipped => {}
        }
    }
    begun
}

/// Whether it is the moment for a deed that has no time.
fn ripe(state: &RunState, command: &Command) -> bool {
    match command {
        Command::Signal { name, .. } => state.tasks.iter().any(
            |t| matches!(&t.phase, TaskPhase::Waiting(Waiting::Signal { name: wanted }) if wanted == name),
        ),
        Command::Retry | Command::Rerun { .. } => state.status.is_terminal(),
        _ => true,
    }
}

/// Which task an answer is wanted for.
#[derive(Clone, Copy)]
struct Asked<'a> {
    plan: &'a Plan,
    state: &'a RunState,
    node: u32,
    path: &'a str,
    /// Its type, or the workflow that a child is of.
    called: &'a str,
}

/// The answer to the next call of a task; `Err`: there is none.
fn answer<'a>(
    asked: &Asked<'_>,
    script: &'a Script,
    calls: &mut BTreeMap<&'a str, usize>,
) -> Result<Answer, String> {
    let Asked { plan, state, node, path, called } = *asked;
    let task = &plan.tasks[state.plan_index(node) as usize];
    let id = if task.role == Role::Compensation { "" } else { task.id.as_str() };
    let bare = without_numbers(path);
    let mut named = [path, bare.as_str(), id, called].into_iter();
    let Some((name, answers)) = named.find_map(|n| script.answers.get_key_value(n)) else {
        let kind = if state.type_of(plan, node).is_some() { "type" } else { "workflow" };
        return Err(format!(
            "no answer is given for {path} ({kind} {called}); add one under 'tasks' by path, id, type or workflow"
        ));
    };
    let call = calls.entry(name.as_str()).or_default();
    *call += 1;
    match answers {
        Answers::Always(answer) => Ok(answer.clone()),
        Answers::Each(list) => list.get(*call - 1).cloned().ok_or_else(|| {
            format!("{path} is called once more than tasks.{name} has answers ({})", list.len())
        }),
    }
}
