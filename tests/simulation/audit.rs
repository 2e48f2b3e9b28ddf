//! What must hold after every commit, checked against what the store holds and what it held before.

use crate::documents::SLOTS;
use crate::world::{LEASE, World};
use bytes::Bytes;
use downbeat::model::commit::{QueueEntry, Write};
use downbeat::model::document;
use downbeat::model::event::{EventKind, LogEntry};
use downbeat::model::home::Home;
use downbeat::model::ids::{Nonce, Partition, Prefix, RunId, TaskPath, WorkflowName};
use downbeat::model::json;
use downbeat::model::labels::QueueName;
use downbeat::model::payload::Payload;
use downbeat::model::plan::{Plan, TaskKind, TaskPlan};
use downbeat::model::record;
use downbeat::model::run::{Holder, RunState, RunStatus, TaskPhase, TaskState, Waiting};
use downbeat::model::time::{Span, Timestamp};
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
    /// When its last event came.
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
    decided: BTreeMap<(Nonce, u64), Instant>,
    pub(crate) commits: u64,
    /// When each lease was decided on: its times count from then, however long the store took to commit it.
    leased: BTreeMap<Nonce, Instant>,
    pub(crate) last_rolled_back: Option<Instant>,
    /// Records of slots that stand in the store.
    pub(crate) homes: BTreeSet<RunId>,
}

/// What has still to be told is told again within this.
const REDELIVER: Span = Span::secs(5);

/// The generation of a task's queue entry, if it has one.
fn queued(task: &TaskState) -> Option<u32> {
    match task.phase {
        TaskPhase::Queued { generation, .. } if generation > 0 => Some(generation),
        _ => None,
    }
}

/// A run, whole: nothing stands between us and the map, so what lies beside its record belongs to it.
fn decode(
    world: &World,
    partition: Partition,
    run: &RunId,
    bytes: &Bytes,
) -> std::result::Result<(Prefix, RunState), String> {
    let prefix = Prefix::of(bytes).ok_or("a record shorter than its prefix")?;
    let head = record::decode_head(&bytes[Prefix::LEN..]).map_err(|e| e.to_string())?;
    let fields = head.fields();
    let read = world.memory.payloads(partition, run, &fields);
    let values = read.now_or_never().expect("memory answers at once").map_err(|e| e.to_string())?;
    let state = head.complete(&values).map_err(|e| e.to_string())?;
    Ok((prefix, state.ok_or("its pages are of another version")?))
}

impl Audit {
    /// Whether the store has applied this batch before: it then answers as it did.
    pub(crate) fn was_applied(&self, batch: &Batch) -> bool {
        self.applied.contains(&(batch.lane, batch.sequence))
    }

    /// When a batch was sent first: what it says was decided by then.
    pub(crate) fn decided(&mut self, batch: &Batch) -> Instant {
        *self.decided.entry((batch.lane, batch.sequence)).or_insert_with(Instant::now)
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
            if write.run.is_reserved() {
                self.home_changed(world, &write.run, record.as_ref());
                continue;
            }
            if old.is_some() != self.runs.contains_key(&write.run) {
                world.violation(format_args!("run {}: it changed behind the audit's back", write.run));
            }
            match record {
                Some(record) => self.changed(world, server, *partition, &write.run, &record, decided),
                None => self.gone(world, &write.run),
            }
        }
    }

    /// A home record was written: what is in it can be read, and no more slots are given than there are.
    fn home_changed(&mut self, world: &World, id: &RunId, record: Option<&Bytes>) {
        let Some(record) = record else {
            self.homes.remove(id);
            return world.note(format_args!("{id} is gone"));
        };
        match record::homes::decode(&record[Prefix::LEN..]) {
            Ok(Home::Semaphore(s)) => {
                world.note(format_args!("{id}: {} have a slot, {} wait", s.holders.len(), s.waiters.len()));
                if s.holders.len() > SLOTS {
                    world.violation(format_args!(
                        "{} of {SLOTS} slots of {} are given",
                        s.holders.len(),
                        s.key
                    ));
                }
                self.homes.insert(id.clone());
            }
            Ok(Home::Bucket(b)) => world.note(format_args!("{id}: paid until {}", b.paid_until)),
            Ok(Home::Schedule(_) | Home::ScheduleNames(_)) => {
                world.violation(format_args!("{id}: nobody makes schedules here"));
            }
            Err(error) => world.violation(format_args!("{id}: {error}")),
        }
    }

    /// Never do more tasks have a slot than there are.
    fn slots(&self, world: &World) {
        let mut granted: BTreeMap<&str, usize> = BTreeMap::new();
        let tasks = self.runs.values().flat_map(|t| &t.state.tasks);
        for permit in tasks.filter_map(|t| t.permit.as_ref()).filter(|p| p.granted) {
            *granted.entry(&permit.key).or_default() += 1;
        }
        // A store that has lost its tail may not know of all that was given.
        for (key, n) in granted.into_iter().filter(|(_, n)| *n > SLOTS && self.last_rolled_back.is_none()) {
            world.violation(format_args!("{n} tasks have one of the {SLOTS} slots of {key}"));
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

    /// What a run is of, as the store holds it: whatever was lost, that is there, and is the document the run was started
    /// with.
    fn plan(&mut self, world: &World, state: &RunState) -> Arc<Plan> {
        let key = (state.workflow.clone(), state.version);
        if let Some(plan) = self.plans.get(&key) {
            assert_eq!(plan.digest, state.document, "run {} is of another document", state.id);
            return Arc::clone(plan);
        }
        // Nothing stands between us and the map, so this is there at once.
        let read = world.memory.workflow(&state.workflow, Some(state.version));
        let stored =
            read.now_or_never().expect("memory answers at once").unwrap().expect("a run has a workflow");
        let plan = Arc::new(document::compile(&stored.document).expect("a stored document compiles"));
        assert_eq!(plan.digest, state.document, "run {} is of another document", state.id);
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
        let (prefix, state) = match decode(world, partition, run, record) {
            Ok(decoded) => decoded,
            Err(error) => return world.violation(format_args!("run {run}: {error}")),
        };
        let plan = self.plan(world, &state);
        let old = self.runs.remove(run);
        let version = old.as_ref().map_or(0, |o| o.prefix.version());
        let (leased, rolled_back) = (&self.leased, self.last_rolled_back);
        if old.is_none() && state.origin.is_some() && self.deleted.contains_key(run) && rolled_back.is_none()
        {
            world.violation(format_args!("run {run}, which another has started, was begun twice"));
        }
        let check = Check {
            world,
            leased,
            others: &self.runs,
            run,
            old: old.as_ref(),
            state: &state,
            plan: &plan,
            partition,
            decided,
            rolled_back,
        };
        if prefix.version() != version + 1 {
            check.fault(format_args!("version {} follows version {version}", prefix.version()));
        }
        check.everything();
        let from = old.as_ref().map_or(0, |o| o.state.log.len());
        for task in &state.tasks {
            if let TaskPhase::Running { lease, .. } = &task.phase {
                self.leased.entry(lease.nonce).or_insert(decided);
            }
        }
        let news: Vec<_> = state.log.iter().skip(from).map(|e| short(e, &state, &plan)).collect();
        world.note(format_args!("server {server} run {run} v{} {}", prefix.version(), news.join(" ")));
        let now = Instant::now();
        let since = old.as_ref().map_or(now, |o| o.since);
        let rolled = old.as_ref().is_some_and(|o| o.rolled);
        let touched = old.as_ref().filter(|_| news.is_empty()).map_or(now, |o| o.touched);
        let limited = state.tasks.iter().any(|t| t.permit.is_some());
        self.runs.insert(run.clone(), Truth { partition, prefix, state, plan, since, touched, rolled });
        if limited {
            self.slots(world);
        }
    }

    /// The store went back: what it holds now is the truth. Returns how many runs are not as they were.
    pub(crate) fn rolled_back(&mut self, world: &World) -> usize {
        let now = Instant::now();
        self.last_rolled_back = Some(now);
        self.applied.clear();
        // A version may be another document now.
        self.plans.clear();
        self.homes.clear();
        let mut was = std::mem::take(&mut self.runs);
        let mut lost = 0;
        for p in 0..world.drawn().partitions {
            for (run, record) in world.memory.inspect(|i| i.records(Partition(p))).unwrap() {
                if run.is_reserved() {
                    self.home_changed(world, &run, Some(&record));
                    continue;
                }
                let (prefix, state) =
                    decode(world, Partition(p), &run, &record).expect("what was valid still is");
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
                let mut expected: BTreeMap<(QueueName, QueueEntry), usize> = BTreeMap::new();
                for (run, truth) in self.runs.iter().filter(|(_, t)| t.partition == partition) {
                    for (n, task) in truth.state.tasks.iter().enumerate() {
                        if let Some(generation) = queued(task) {
                            let entry =
                                QueueEntry { run: run.clone(), path: truth.path(n as u32), generation };
                            let queue = truth.state.queue_of(&truth.plan, n as u32).unwrap();
                            expected.insert((queue, entry), 0);
                        }
                    }
                }
                for standing in i.entries(partition).unwrap() {
                    match expected.get_mut(&(standing.queue.clone(), standing.entry.clone())) {
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
                    let idle = |t: &Truth| t.state.status.is_terminal() && t.state.outbox.is_empty();
                    if !run.is_reserved() && self.runs.get(&run).is_none_or(idle) {
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
    others: &'c BTreeMap<RunId, Truth>,
    run: &'c RunId,
    old: Option<&'c Truth>,
    state: &'c RunState,
    plan: &'c Plan,
    partition: Partition,
    decided: Instant,
    /// When the store last lost its tail.
    rolled_back: Option<Instant>,
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
        self.labels();
    }

    /// Whoever holds a task has what it asks for.
    fn labels(&self) {
        for (n, task) in self.state.tasks.iter().enumerate() {
            let TaskPhase::Running { lease, .. } = &task.phase else { continue };
            let wanted = self.state.labels_of(self.plan, n as u32);
            let name = &self.state.workers[lease.worker as usize];
            if self.world.labels.get(name).is_some_and(|own| !own.include(wanted)) {
                self.fault(format_args!("{name} was given task {n}, which asks for {wanted:?}"));
            }
        }
    }

    fn news(&self) -> impl ExactSizeIterator<Item = &LogEntry> {
        self.state.log.iter_from(self.old.map_or(0, |o| o.state.log.len()).min(self.state.log.len()))
    }

    fn log(&self) {
        let log = &self.state.log;
        if let Some(old) = self.old {
            if !log.iter().take(old.state.log.len()).eq(&old.state.log) {
                self.fault(format_args!("its log is not what it was, with more at the end"));
            }
            // But for what it has still to tell, and which message of its parent it has heard last.
            let told = || RunState {
                outbox: old.state.outbox.clone(),
                origin: old.state.origin.clone(),
                last_time: old.state.last_time,
                armed: old.state.armed,
                ..self.state.clone()
            };
            if old.state.status.is_terminal() && told() != old.state {
                self.fault(format_args!("it changed after it had ended ({})", old.state.status.name()));
            }
            if self.state.last_time < old.state.last_time {
                self.fault(format_args!("its time goes back"));
            }
        }
        if !log.iter().is_sorted_by_key(|e| e.time) {
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
                    let queue = self.state.queue_of(self.plan, n as u32).unwrap();
                    let found = i.entry(self.partition, &queue, &e).unwrap();
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
        if self.state.status.is_terminal() && !self.state.outbox.is_empty() {
            if wake.is_none() || self.state.armed.is_none() {
                self.fault(format_args!("it has something to tell and nothing will wake it"));
            }
            return;
        }
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
        if !self.state.outbox.is_empty() {
            no_later(self.state.last_time.plus(REDELIVER));
        }
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
                TaskPhase::Waiting(Waiting::Rate { due: Some(due), .. })
                    if self.state.status != RunStatus::Paused =>
                {
                    no_later(*due);
                }
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
                    // With the tail of the store its lease clocks went back, and a lease of before lies ahead of them.
                    if self.rolled_back.is_some_and(|at| at.elapsed() < LEASE.to_std()) {
                        continue;
                    }
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
                let ended = self.state.log.iter().take(n).any(|b| {
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
            if matches!(self.plan_of(t).kind, TaskKind::Workflow(_)) && failure.code != "timeout_total" {
                self.child_failed(t, was.attempt, &failure.code);
                continue;
            }
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
                    // The lease clock goes on by a step whenever the wall clock is set forward; what was committed
                    // just after that may have been granted before.
                    let set = |at: &Instant| {
                        let step = self.world.clock.last_step();
                        step.is_some_and(|step| step + LEASE_STEP.to_std() >= *at)
                    };
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
                self.news().filter(|e| e.task == Some(n as u32) && e.kind == EventKind::TaskRetrying);
            let first = u32::from(was.attempt == 0 && task.attempt > 0);
            if task.attempt
                > was.attempt
                    + first
                    + retries.count() as u32
                    // A child that was lost with the tail of the store is begun anew.
                    + u32::from(self.rolled_back.is_some() && self.state.type_of(self.plan, n as u32).is_none())
                    + u32::from(matches!(
                        was.phase,
                        TaskPhase::Retrying { .. } | TaskPhase::Waiting(Waiting::Rate { .. })
                    ))
            {
                self.fault(format_args!("task {n} uses up an attempt without a failure"));
            }
        }
    }
}

impl Check<'_> {
    /// A child has failed, or could not be started.
    fn child_failed(&self, node: u32, attempt: u32, code: &str) {
        let path = self.state.path_of(self.plan, node);
        match code {
            "workflow_not_found" | "invalid_input" | "task_cancelled" => {}
            _ if attempt == 0 => {} // A fault of an expression, before it began.
            _ => {
                let of = |t: &&Truth| {
                    t.state.parent().is_some_and(|p| p.run == *self.run && p.task == path)
                        && matches!(t.state.status, RunStatus::Failed | RunStatus::TimedOut)
                };
                let known = self.others.values().find(of).is_some();
                if !known && self.rolled_back.is_none() {
                    self.fault(format_args!("{path} failed ({code}), and no run it has started did"));
                }
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
