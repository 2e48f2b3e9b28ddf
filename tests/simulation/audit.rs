//! What must hold after every commit, checked against what the store holds and what it held before.

use crate::world::{LEASE, World};
use bytes::Bytes;
use downbeat::model::commit::{QueueEntry, Write};
use downbeat::model::document;
use downbeat::model::event::{EventKind, LogEntry};
use downbeat::model::ids::{Nonce, Partition, Prefix, RunId, TaskPath, TaskType, WorkflowName};
use downbeat::model::json;
use downbeat::model::payload::Payload;
use downbeat::model::plan::{Plan, TaskPlan};
use downbeat::model::record;
use downbeat::model::run::{Holder, RunState, RunStatus, TaskPhase, TaskState, Waiting};
use downbeat::model::time::Timestamp;
use downbeat::model::token::TaskToken;
use downbeat::store::{Batch, Committed, DUE_AGAIN, LEASE_STEP, Result, Store};
use futures::FutureExt;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tokio::time::Instant;

/// A run as the store holds it.
#[derive(Debug, Clone)]
pub(crate) struct Truth {
    pub(crate) partition: Partition,
    pub(crate) prefix: Prefix,
    pub(crate) state: RunState,
    pub(crate) plan: Arc<Plan>,
    /// When its first commit came.
    pub(crate) since: Instant,
    /// When its last commit came.
    pub(crate) touched: Instant,
    /// Part of its past was lost with the tail of the store.
    pub(crate) rolled: bool,
}

impl Truth {
    pub(crate) fn path(&self, task: u32) -> TaskPath {
        self.state.path_of(&self.plan, task)
    }
}

/// See the module.
#[derive(Default)]
pub(crate) struct Audit {
    pub(crate) runs: BTreeMap<RunId, Truth>,
    /// Runs that were deleted, as they were last; several may have had one id.
    pub(crate) deleted: BTreeMap<RunId, Vec<Truth>>,
    /// Runs that never were, since the tail of the store was lost.
    pub(crate) unmade: BTreeSet<RunId>,
    plans: BTreeMap<(WorkflowName, u32), Arc<Plan>>,
    applied: BTreeSet<(Nonce, u64)>,
    sent: BTreeMap<(Nonce, u64), u64>,
    pub(crate) commits: u64,
    /// When each lease was taken.
    leased: BTreeMap<Nonce, Instant>,
    pub(crate) last_rolled_back: Option<Instant>,
}

/// The generation of a task's queue entry, if it has one.
fn queued(task: &TaskState) -> Option<u32> {
    match task.phase {
        TaskPhase::Queued { generation, .. } if generation > 0 => Some(generation),
        _ => None,
    }
}

fn decode(bytes: &Bytes) -> std::result::Result<(Prefix, RunState), String> {
    let prefix = Prefix::of(bytes).ok_or("a record shorter than its prefix")?;
    Ok((prefix, record::decode(&bytes[Prefix::LEN..]).map_err(|e| e.to_string())?))
}

impl Audit {
    /// Whether the store has applied this batch before: it then answers as it did.
    pub(crate) fn was_applied(&self, batch: &Batch) -> bool {
        self.applied.contains(&(batch.lane, batch.sequence))
    }

    /// How often a batch was sent before this time.
    pub(crate) fn sent(&mut self, batch: &Batch) -> u64 {
        let times = self.sent.entry((batch.lane, batch.sequence)).or_default();
        *times += 1;
        *times - 1
    }

    /// What the records of a batch begin with before it is applied.
    pub(crate) fn before(world: &World, batch: &Batch) -> Vec<Option<Prefix>> {
        world.memory.inspect(|i| {
            let prefix = |(p, w): &(Partition, _)| {
                let w: &downbeat::model::commit::RunWrite = w;
                i.record(*p, &w.run).unwrap().and_then(|r| Prefix::of(&r))
            };
            batch.writes.iter().map(prefix).collect()
        })
    }

    /// A batch was given to the store: checks every run that is not what it was before.
    pub(crate) fn after(
        &mut self,
        world: &World,
        server: usize,
        batch: &Batch,
        before: &[Option<Prefix>],
        result: &Result<Committed>,
        decided: Instant,
    ) {
        if result.is_ok() && batch.writes.iter().any(|(_, w)| w.write != Write::Check) {
            self.applied.insert((batch.lane, batch.sequence));
        }
        for ((partition, write), old) in batch.writes.iter().zip(before) {
            let record = world.memory.inspect(|i| i.record(*partition, &write.run)).unwrap();
            let new = record.as_ref().and_then(|r| Prefix::of(r));
            if new == *old {
                continue;
            }
            self.commits += 1;
            if old.is_some() != self.runs.contains_key(&write.run) {
                world.violation(format_args!("run {}: it changed behind the audit's back", write.run));
            }
            match record {
                Some(record) => self.changed(world, server, *partition, &write.run, &record, decided),
                None => self.gone(world, &write.run),
            }
        }
    }

    fn gone(&mut self, world: &World, run: &RunId) {
        let Some(truth) = self.runs.remove(run) else { return };
        world.note(format_args!("run {run} is deleted"));
        if !truth.state.status.is_terminal() {
            world.violation(format_args!("run {run}: deleted while {}", truth.state.status.name()));
        }
        self.deleted.entry(run.clone()).or_default().push(truth);
    }

    fn plan(&mut self, world: &World, state: &RunState) -> Arc<Plan> {
        let key = (state.workflow.clone(), state.version);
        if let Some(plan) = self.plans.get(&key) {
            return Arc::clone(plan);
        }
        // Nothing stands between us and the map, so this is there at once.
        let read = world.memory.workflow(&state.workflow, Some(state.version));
        let stored =
            read.now_or_never().expect("memory answers at once").unwrap().expect("a run has a workflow");
        let plan = Arc::new(document::compile(&stored.document).expect("a stored document compiles"));
        self.plans.insert(key, Arc::clone(&plan));
        plan
    }

    fn changed(
        &mut self,
        world: &World,
        server: usize,
        partition: Partition,
        run: &RunId,
        record: &Bytes,
        decided: Instant,
    ) {
        let (prefix, state) = match decode(record) {
            Ok(decoded) => decoded,
            Err(error) => return world.violation(format_args!("run {run}: {error}")),
        };
        let plan = self.plan(world, &state);
        let old = self.runs.remove(run);
        let version = old.as_ref().map_or(0, |o| o.prefix.version());
        let leased = &self.leased;
        let check =
            Check { world, leased, run, old: old.as_ref(), state: &state, plan: &plan, partition, decided };
        if prefix.version() != version + 1 {
            check.fault(format_args!("version {} follows version {version}", prefix.version()));
        }
        check.everything();
        let from = old.as_ref().map_or(0, |o| o.state.log.len());
        for task in &state.tasks {
            if let TaskPhase::Running { lease, .. } = &task.phase {
                self.leased.entry(lease.nonce).or_insert_with(Instant::now);
            }
        }
        let news: Vec<_> = state.log.iter().skip(from).map(|e| short(e, &state, &plan)).collect();
        world.note(format_args!("server {server} run {run} v{} {}", prefix.version(), news.join(" ")));
        let now = Instant::now();
        let since = old.as_ref().map_or(now, |o| o.since);
        let rolled = old.as_ref().is_some_and(|o| o.rolled);
        self.runs.insert(run.clone(), Truth { partition, prefix, state, plan, since, touched: now, rolled });
    }

    /// The store went back: what it holds now is the truth. Returns how many runs are not as they were.
    pub(crate) fn rolled_back(&mut self, world: &World) -> usize {
        let now = Instant::now();
        self.last_rolled_back = Some(now);
        self.applied.clear();
        // A version may be another document now.
        self.plans.clear();
        let mut was = std::mem::take(&mut self.runs);
        let mut lost = 0;
        for p in 0..world.drawn().partitions {
            for (run, record) in world.memory.inspect(|i| i.records(Partition(p))).unwrap() {
                let (prefix, state) = decode(&record).expect("what was valid still is");
                let plan = self.plan(world, &state);
                let old = was.remove(&run);
                let same = old.as_ref().is_some_and(|o| o.prefix == prefix);
                let rolled = !same || old.as_ref().is_some_and(|o| o.rolled);
                let since = old.as_ref().map_or(now, |o| o.since);
                let touched = if same { old.as_ref().map_or(now, |o| o.touched) } else { now };
                lost += usize::from(!same);
                let partition = Partition(p);
                self.runs.insert(run, Truth { partition, prefix, state, plan, since, touched, rolled });
            }
        }
        lost += was.len();
        self.unmade.extend(was.into_keys());
        lost
    }

    /// Everything that stands in the store, seen at once.
    pub(crate) fn check_whole(&self, world: &World) {
        for p in 0..world.drawn().partitions {
            let partition = Partition(p);
            world.memory.inspect(|i| {
                let mut expected: BTreeMap<(TaskType, QueueEntry), usize> = BTreeMap::new();
                for (run, truth) in self.runs.iter().filter(|(_, t)| t.partition == partition) {
                    for (n, task) in truth.state.tasks.iter().enumerate() {
                        if let Some(generation) = queued(task) {
                            let entry =
                                QueueEntry { run: run.clone(), path: truth.path(n as u32), generation };
                            let task_type = truth.state.type_of(&truth.plan, n as u32).unwrap();
                            expected.insert((task_type.clone(), entry), 0);
                        }
                    }
                }
                for standing in i.entries(partition).unwrap() {
                    match expected.get_mut(&(standing.task_type.clone(), standing.entry.clone())) {
                        Some(n) => *n += 1,
                        None => {
                            world.violation(format_args!("{standing:?} stands in a queue, but no task does"));
                        }
                    }
                }
                for (entry, n) in expected {
                    if n != 1 {
                        world.violation(format_args!("{entry:?} stands {n} times in its queue"));
                    }
                }
                for (_, run) in i.wakes(partition).unwrap() {
                    if self.runs.get(&run).is_none_or(|t| t.state.status.is_terminal()) {
                        world.violation(format_args!("run {run} has a wake-up and is not open"));
                    }
                }
            });
        }
    }
}

/// An event in a few letters.
fn short(e: &LogEntry, state: &RunState, plan: &Plan) -> String {
    let name = e.kind.name();
    match e.task {
        Some(t) => format!(
            "{}:{}.{}/{}",
            state.path_of(plan, t),
            name.trim_start_matches("task."),
            e.attempt,
            e.delivery
        ),
        None => name.to_owned(),
    }
}

/// One commit of one run.
struct Check<'c> {
    world: &'c World,
    leased: &'c BTreeMap<Nonce, Instant>,
    run: &'c RunId,
    old: Option<&'c Truth>,
    state: &'c RunState,
    plan: &'c Plan,
    partition: Partition,
    decided: Instant,
}

impl Check<'_> {
    fn fault(&self, what: std::fmt::Arguments<'_>) {
        self.world.violation(format_args!("run {}: {what}", self.run));
    }

    fn plan_of(&self, node: u32) -> &TaskPlan {
        &self.plan.tasks[self.state.plan_index(node) as usize]
    }

    fn everything(&self) {
        self.log();
        self.counters();
        self.queues();
        self.wake_up();
        self.order();
        self.failures();
    }

    fn news(&self) -> &[LogEntry] {
        &self.state.log[self.old.map_or(0, |o| o.state.log.len()).min(self.state.log.len())..]
    }

    fn log(&self) {
        let log = &self.state.log;
        if let Some(old) = self.old {
            if !log.starts_with(&old.state.log) {
                self.fault(format_args!("its log is not what it was, with more at the end"));
            }
            if old.state.status.is_terminal() {
                self.fault(format_args!("it changed after it had ended ({})", old.state.status.name()));
            }
            if self.state.last_time < old.state.last_time {
                self.fault(format_args!("its time goes back"));
            }
        }
        if log.windows(2).any(|w| w[1].time < w[0].time) {
            self.fault(format_args!("time in its log goes back"));
        }
        let ends = log.iter().filter(|e| e.kind.ends_run()).count();
        let last = log.last().is_some_and(|e| e.kind.ends_run());
        let terminal = self.state.status.is_terminal();
        if terminal != last || ends != usize::from(terminal) {
            self.fault(format_args!("{ends} terminal events, status {}", self.state.status.name()));
        }
        let mut ended = BTreeSet::new();
        for e in log {
            let ends = matches!(
                e.kind,
                EventKind::TaskCompleted
                    | EventKind::TaskFailed
                    | EventKind::TaskSkipped
                    | EventKind::TaskCancelled
                    | EventKind::TaskTimedOut
            );
            if let Some(t) = e.task
                && ended.contains(&t)
            {
                self.fault(format_args!("task {t} goes on after its end: {:?}", e.kind));
            }
            if ends {
                ended.extend(e.task);
            }
        }
    }

    fn counters(&self) {
        let own = self.state.tasks.iter().take(self.plan.body.len());
        let open = own.filter(|t| !t.phase.is_terminal()).count();
        if open as u32 != self.state.open_tasks {
            self.fault(format_args!("{open} tasks are open, it counts {}", self.state.open_tasks));
        }
        let open = self.state.tasks.iter().filter(|t| !t.phase.is_terminal()).count();
        if self.state.status.is_terminal() && open > 0 {
            self.fault(format_args!("it has ended with {open} open tasks"));
        }
    }

    fn queues(&self) {
        self.world.memory.inspect(|i| {
            let entry = |task: u32, generation| QueueEntry {
                run: self.run.clone(),
                path: self.state.path_of(self.plan, task),
                generation,
            };
            for (n, task) in self.state.tasks.iter().enumerate() {
                let is = queued(task);
                let was = self.old.and_then(|o| o.state.tasks.get(n)).and_then(queued);
                for generation in [was, is].into_iter().flatten() {
                    let e = entry(n as u32, generation);
                    let found = i
                        .entry(self.partition, self.state.type_of(self.plan, n as u32).unwrap(), &e)
                        .unwrap();
                    let wanted = usize::from(is == Some(generation));
                    if usize::from(found.0) + usize::from(found.1) != wanted {
                        self.fault(format_args!(
                            "{e:?}: ready {}, claimed {}, queued {wanted}",
                            found.0, found.1
                        ));
                    }
                }
            }
        });
    }

    fn wake_up(&self) {
        let wake = self.world.memory.inspect(|i| i.wake(self.partition, self.run)).unwrap();
        if self.state.status.is_terminal() {
            if wake.is_some() || self.state.armed.is_some() {
                self.fault(format_args!("it has ended and is still to be woken"));
            }
            return;
        }
        let (Some(wake), Some(armed)) = (wake, self.state.armed) else {
            return self.fault(format_args!("it is open and nothing will wake it"));
        };
        if wake > armed.max(self.world.clock.highest().plus(DUE_AGAIN)) {
            self.fault(format_args!("it is woken at {wake}, armed for {armed}"));
        }
        let mut earliest = self.state.deadline;
        let mut no_later = |at: Timestamp| earliest = Some(earliest.map_or(at, |e| e.min(at)));
        for (n, task) in (0..).zip(&self.state.tasks) {
            let plan = self.plan_of(n);
            if let (Some(total), Some(first)) = (plan.timeout.total, task.first_queued_at) {
                no_later(first.plus(total));
            }
            match &task.phase {
                TaskPhase::Queued { since, generation } => {
                    if let Some(queue) = plan.timeout.queue.filter(|_| *generation > 0) {
                        no_later(since.plus(queue));
                    }
                }
                TaskPhase::Waiting(Waiting::Timer { due }) => no_later(*due),
                // A paused run looks at these when it goes on.
                TaskPhase::Retrying { due }
                | TaskPhase::Waiting(Waiting::Iterations { due: Some(due), .. })
                    if self.state.status != RunStatus::Paused =>
                {
                    no_later(*due);
                }
                TaskPhase::Running { since, .. } => {
                    // A server's lease clock may be behind by as much as it takes to ask for it.
                    let since = self.state.last_time.max(*since).plus(LEASE_STEP);
                    no_later(since.plus(LEASE));
                    if let Some(run) = plan.timeout.run {
                        no_later(since.plus(run));
                    }
                }
                _ => {}
            }
        }
        if earliest.is_some_and(|e| armed > e) {
            self.fault(format_args!(
                "it is armed for {armed}, but {} comes first",
                earliest.unwrap_or_default()
            ));
        }
    }

    /// Nothing begins before what it needs has ended.
    fn order(&self) {
        for (n, e) in self.state.log.iter().enumerate() {
            if n + self.news().len() < self.state.log.len() || e.kind != EventKind::TaskQueued {
                continue;
            }
            let task = e.task.unwrap();
            if !self.state.is_in_body(task) {
                continue;
            }
            let shift = task.wrapping_sub(self.state.plan_index(task));
            for need in &self.plan_of(task).needs {
                let ended = self.state.log[..n].iter().any(|b| {
                    b.task == Some(need.wrapping_add(shift))
                        && matches!(
                            b.kind,
                            EventKind::TaskCompleted
                                | EventKind::TaskFailed
                                | EventKind::TaskSkipped
                                | EventKind::TaskCancelled
                                | EventKind::TaskTimedOut
                        )
                });
                if !ended {
                    self.fault(format_args!("task {:?} is queued before its need {need} has ended", e.task));
                }
            }
        }
    }

    /// Every failure has a reason that is not ours.
    fn failures(&self) {
        let Some(old) = self.old else { return };
        for failure in self.state.failures.iter().skip(old.state.failures.len()) {
            let Some(t) = failure.task else { continue };
            let unborn = TaskState::pending(0);
            let was = old.state.tasks.get(t as usize).unwrap_or(&unborn);
            let lease = match &was.phase {
                TaskPhase::Running { lease, .. } => Some(lease),
                _ => None,
            };
            let path = self.state.path_of(self.plan, t);
            match failure.code.as_str() {
                "sim_failed" | "sim_fatal" => {
                    let reported = lease.is_some_and(|l| self.world.ledger.lock().failed(&l.nonce));
                    if !reported {
                        self.fault(format_args!("{path} failed, and its holder has not said so"));
                    }
                }
                "worker_lost" => {
                    let Some(lease) = lease else {
                        self.fault(format_args!("{path} lost a worker it did not have"));
                        continue;
                    };
                    let session = matches!(lease.holder, Holder::Session { .. });
                    if session && !lease.acked && !self.world.ledger.lock().acked(&lease.nonce) {
                        self.fault(format_args!(
                            "{path}: a delivery without acknowledgement costs an attempt"
                        ));
                    }
                    let steady = self.world.ledger.lock().steady(self.world, &lease.nonce, self.decided);
                    if let Some((worker, steady)) = steady {
                        self.fault(format_args!(
                            "{path} attempt {} counts its worker as lost, but worker {worker} has held it \
                             steadily for {steady:?}",
                            failure.attempt
                        ));
                    }
                }
                "delivery_failed" => {
                    if was.lost_deliveries < 9 {
                        self.fault(format_args!(
                            "{path} failed after {} lost deliveries",
                            was.lost_deliveries
                        ));
                    }
                }
                "timeout_run" => {
                    let limit = self.plan_of(t).timeout.run;
                    // The lease clock goes on by a step whenever the wall clock is set forward.
                    let set = |at: &Instant| self.world.clock.last_step().is_some_and(|step| step >= *at);
                    let leased = lease.and_then(|l| self.leased.get(&l.nonce)).filter(|at| !set(at));
                    if let (Some(limit), Some(leased)) = (limit, leased)
                        && leased.elapsed() + LEASE_STEP.to_std() < limit.to_std()
                    {
                        self.fault(format_args!("{path} ran into its timeout after {:?}", leased.elapsed()));
                    }
                }
                "timeout_heartbeat" | "timeout_queue" | "timeout_total" | "invalid_output"
                | "task_cancelled" | "loop_exhausted" => {}
                _ if failure.message.contains("sim") => {}
                _ if was.attempt == 0 => {} // A fault of an expression, before the task began.
                other => self
                    .fault(format_args!("{path} failed for no reason we know: {other} {}", failure.message)),
            }
        }
        for (n, task) in self.state.tasks.iter().enumerate() {
            let Some(was) = old.state.tasks.get(n) else { continue };
            if task.lost_deliveries > was.lost_deliveries && self.world.drawn().delivers_always() {
                self.fault(format_args!(
                    "task {n}: a delivery is lost, though nobody and nothing fails to deliver"
                ));
            }
            let retries =
                self.news().iter().filter(|e| e.task == Some(n as u32) && e.kind == EventKind::TaskRetrying);
            let first = u32::from(was.attempt == 0 && task.attempt > 0);
            if task.attempt
                > was.attempt
                    + first
                    + retries.count() as u32
                    + u32::from(matches!(was.phase, TaskPhase::Retrying { .. }))
            {
                self.fault(format_args!("task {n} uses up an attempt without a failure"));
            }
        }
    }
}

impl Audit {
    /// The output of a completed task, as the store keeps it.
    pub(crate) fn output(&self, world: &World, run: &RunId, path: &TaskPath) -> Option<Bytes> {
        let truth = self.runs.get(run)?;
        let task = truth.state.tasks.get(truth.state.find(&truth.plan, path)? as usize)?;
        let TaskPhase::Completed { output } = &task.phase else { return None };
        text(world, truth, output)
    }
}

/// The JSON text of a payload, read from the store.
pub(crate) fn text(world: &World, truth: &Truth, payload: &Payload) -> Option<Bytes> {
    match payload {
        Payload::Null => Some(Bytes::from_static(b"null")),
        Payload::Inline(json) => Some(json.clone()),
        Payload::Stored { field, .. } => {
            let fields = [field.clone()];
            let read = world.memory.payloads(truth.partition, &truth.state.id, &fields);
            read.now_or_never().expect("memory answers at once").unwrap().pop().flatten()
        }
        Payload::Path { base, steps } => {
            let base = text(world, truth, base)?;
            json::walk(&base, steps).ok().flatten().map(Bytes::copy_from_slice)
        }
    }
}

impl Audit {
    /// Whether a token may truthfully be called unknown: its run was deleted, or lost.
    pub(crate) fn may_be_gone(&self, token: &str) -> bool {
        let Some(token) = TaskToken::decode(token) else { return true };
        let known = self.runs.get(&token.run).is_some_and(|t| !t.rolled);
        !known || self.deleted.contains_key(&token.run) || self.unmade.contains(&token.run)
    }
}

impl Audit {
    /// How many runs of this id were made so far.
    pub(crate) fn made(&self, run: &RunId) -> usize {
        self.deleted.get(run).map_or(0, Vec::len) + usize::from(self.runs.contains_key(run))
    }
}
