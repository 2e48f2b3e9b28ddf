//! One seed from its beginning to its end, and what must hold at the end.

use crate::audit::Truth;
use crate::clients;
use crate::http_workers;
use crate::nemesis;
use crate::readers::{self, Seen};
use crate::sabotage::Case;
use crate::workers::Worker;
use crate::world::World;
use downbeat::app::view::RunFilter;
use downbeat::model::ids::Partition;
use downbeat::model::nodes::Level;
use downbeat::model::plan::{TaskKind, When};
use downbeat::model::run::{RunStatus, TaskPhase};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::time::Instant;

/// Faults go on for so long.
const FAULTS: Duration = Duration::from_mins(1);
/// The last runs are started by then.
const STARTS: Duration = Duration::from_secs(50);
/// Every run has ended so long after the faults stopped: a lease, retries, work, a claim that expires, runs that are
/// started one after the other, and air.
/// After a lost tail more: a lease that its worker knows nothing of is found only when chance has the worker's own
/// server look at the run.
const QUIET: Duration = Duration::from_mins(4);
/// No reader that has more to hear waits so long for the next event.
const CATCH_UP: Duration = Duration::from_secs(30);

/// What a seed came to.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) seed: u64,
    pub(crate) violations: Vec<String>,
    pub(crate) hash: u64,
    pub(crate) notes: u64,
    pub(crate) last: Vec<String>,
    pub(crate) runs: usize,
    pub(crate) commits: u64,
    pub(crate) assigned: u64,
    pub(crate) virtual_time: Duration,
}

/// Runs a seed.
pub(crate) fn run(seed: u64, case: Case, verbose: bool) -> Outcome {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    crate::panics::forget();
    let outcome = runtime.block_on(async {
        let world = World::new(seed, case, verbose);
        live(&world).await;
        world.close();
        for panic in crate::panics::forget() {
            world.violation(format_args!("a task panicked: {panic}"));
        }
        let (hash, notes, last) = world.trace();
        let audit = world.audit.lock();
        Outcome {
            seed,
            violations: world.violations(),
            hash,
            notes,
            last,
            runs: audit.runs.len() + audit.deleted.values().map(Vec::len).sum::<usize>(),
            commits: audit.commits,
            assigned: world.ledger.lock().assigned,
            virtual_time: world.start.elapsed(),
        }
    });
    drop(runtime);
    outcome
}

async fn live(world: &Arc<World>) {
    let p = world.drawn().clone();
    for n in 0..p.servers {
        while !world.boot(n).await {
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
    }
    clients::register(world, &mut world.rng.split("register", 0)).await;
    world.remember();
    let mut workers = tokio::task::JoinSet::new();
    for n in 0..p.workers {
        workers.spawn(Worker::new(Arc::clone(world), n).live());
    }
    for n in 0..p.http_workers {
        tokio::spawn(http_workers::live(Arc::clone(world), n));
    }
    let mut readers = tokio::task::JoinSet::new();
    let mut seen: Vec<Arc<Mutex<Option<Seen>>>> = Vec::new();
    for n in 0..p.global_readers {
        let cell = Arc::new(Mutex::new(None));
        seen.push(Arc::clone(&cell));
        readers.spawn(readers::follow_all(Arc::clone(world), n, cell));
    }
    let nemesis = tokio::spawn(nemesis::rage(Arc::clone(world)));
    tokio::spawn(clients::change(Arc::clone(world)));
    tokio::spawn(clients::resume_left_over(Arc::clone(world)));
    let callers = tokio::spawn(clients::start_all(Arc::clone(world), STARTS));

    let begun = Instant::now();
    while begun.elapsed() < FAULTS && !world.failed() {
        tokio::time::sleep(Duration::from_secs(2)).await;
        world.audit.lock().check_whole(world);
    }
    world.heal();
    drop(nemesis.await);
    let callers_done = || callers.is_finished();
    let waits = if p.lost_tails > 0.0 { QUIET * 4 } else { QUIET };
    let waits = waits + Duration::from_millis(world.set_back_ms.load(Ordering::Relaxed) as u64);
    let all_ended = || {
        let audit = world.audit.lock();
        audit.runs.values().all(|t| t.state.status.is_terminal() && t.state.outbox.is_empty())
    };
    let done = world.until(waits, Duration::from_millis(500), || callers_done() && all_ended()).await;
    if !done {
        stuck(world, callers_done());
    }
    if !world.failed() {
        settled(world).await;
    }
    let missing = |cell: &Mutex<Option<Seen>>| cell.lock().as_ref().map_or(Vec::new(), |s| s.missing(world));
    if !world.failed() {
        // One that has much to read yet, and looks at runs meanwhile, is given the time as long as it goes on.
        let told = || seen.iter().all(|cell| missing(cell).is_empty());
        let heard = || seen.iter().map(|cell| cell.lock().as_ref().map_or(0, Seen::heard)).sum::<u64>();
        loop {
            let before = heard();
            let goes_on = || told() || heard() > before;
            let went_on = world.until(CATCH_UP, Duration::from_millis(500), goes_on).await;
            if !went_on || told() || world.failed() {
                break;
            }
        }
    }
    for (n, cell) in seen.iter().enumerate().filter(|_| !world.failed()) {
        for what in missing(cell) {
            world.violation(format_args!("reader {n} {what}"));
        }
    }
    if p.short_retention && !world.failed() {
        forgotten(world).await;
    }
    world.finish();
    while let Some(left) = workers.join_next().await {
        if let Ok(held) = left
            && held > 0
            && !world.failed()
        {
            world.violation(format_args!("a worker still holds {held} tasks, though no run is open"));
        }
    }
    while readers.join_next().await.is_some() {}
    let stops = (0..p.servers).map(|n| world.retire(n, Duration::ZERO));
    futures::future::join_all(stops).await;
}

fn stuck(world: &World, callers_done: bool) {
    let audit = world.audit.lock();
    let open = |t: &crate::audit::Truth| !t.state.status.is_terminal() || !t.state.outbox.is_empty();
    for (run, truth) in audit.runs.iter().filter(|(_, t)| open(t)) {
        let tasks: Vec<String> = truth
            .state
            .tasks
            .iter()
            .zip(0..)
            .filter(|(t, _)| !t.phase.is_terminal())
            .map(|(t, n)| format!("{}: {:?}", truth.path(n), t.phase))
            .collect();
        let wake = world.memory.inspect(|i| i.wake(truth.partition, run)).unwrap();
        world.violation(format_args!(
            "run {run} is stuck: armed {:?}, wakes {wake:?}, has to tell {:?}, now {}, {}",
            truth.state.armed,
            truth.state.outbox,
            downbeat::model::time::Clock::now(&*world.clock),
            tasks.join("; ")
        ));
    }
    drop(audit);
    if !callers_done {
        world.violation("callers still wait for answers");
    }
}

/// Nothing is left over once every run has ended.
async fn settled(world: &Arc<World>) {
    let audit_clean = || {
        let audit = world.audit.lock();
        audit.check_whole(world);
        let held: u64 = (0..world.drawn().partitions)
            .map(|p| world.memory.inspect(|i| i.entries(Partition(p))).unwrap().len() as u64)
            .sum();
        held
    };
    // What was on its way arrives, claims that were never leased expire, credit comes back.
    tokio::time::sleep(Duration::from_secs(15)).await;
    let left = audit_clean();
    if left > 0 {
        world.violation(format_args!("{left} entries stand in queues, though no run is open"));
    }
    // Whoever has a slot and is not heard of is asked within half a minute.
    let free = || world.audit.lock().homes.is_empty();
    if !world.until(Duration::from_mins(1), Duration::from_millis(500), free).await {
        world.violation("slots are taken, though no run is open");
    }
    credit_is_back(world).await;
    verdicts(world).await;
    families(world);
    listed(world).await;
}

/// Every worker's credit is free again on the server it is on.
async fn credit_is_back(world: &Arc<World>) {
    let back = |world: &World| {
        let mut free = std::collections::BTreeMap::new();
        for n in 0..world.servers.len() {
            for (t, c) in world.app(n).map(|a| a.free_credit()).unwrap_or_default() {
                *free.entry(t).or_insert(0) += c;
            }
        }
        let granted = world.ledger.lock().granted();
        (free, granted)
    };
    let ok = |world: &World| {
        let (free, granted) = back(world);
        // Claims over HTTP come and go, and have credit of their own.
        granted.iter().all(|(t, c)| free.get(t).copied().unwrap_or_default() >= *c)
    };
    if !world.until(Duration::from_secs(20), Duration::from_millis(500), || ok(world)).await {
        let (free, granted) = back(world);
        world.violation(format_args!("credit is lost: granted {granted:?}, free {free:?}"));
    }
}

/// What each run came to agrees with what its tasks came to.
async fn verdicts(world: &Arc<World>) {
    let runs: Vec<_> = world.audit.lock().runs.keys().cloned().collect();
    let mut rng = world.rng.split("verdicts", 0);
    for id in runs {
        let read = clients::insist(world, &mut rng, |app| {
            let id = id.clone();
            async move { app.run(&id, None).await }
        });
        let Some(read) = read.await else { return };
        let audit = world.audit.lock();
        let Some(truth) = audit.runs.get(&id) else { continue };
        let view = match read {
            Ok(view) => view,
            Err(e) => {
                world.violation(format_args!("{id} cannot be read: {e}"));
                continue;
            }
        };
        if view.status != truth.state.status {
            world.violation(format_args!(
                "{id} reads as {}, and is {}",
                view.status.name(),
                truth.state.status.name()
            ));
        }
        conditions(world, truth);
        if truth.state.signals.len() > 1 {
            world.violation(format_args!("{id} keeps a signal that was sent twice with one id twice"));
        }
        let ledger = world.ledger.lock();
        if view.tasks.len() != truth.state.tasks.len() && view.tasks_cursor.is_none() {
            world.violation(format_args!(
                "{id} shows {} tasks of {}",
                view.tasks.len(),
                truth.state.tasks.len()
            ));
        }
        for ((task, shown), n) in truth.state.tasks.iter().zip(&view.tasks).zip(0..) {
            let path = truth.path(n);
            if shown.task != path {
                world.violation(format_args!("{id}/{path} is told as {}", shown.task));
            }
            if shown.status != task.phase.name() {
                world.violation(format_args!(
                    "{id}/{path} reads as {}, and is {}",
                    shown.status,
                    task.phase.name()
                ));
            }
            let TaskPhase::Completed { output } = &task.phase else { continue };
            let kept = crate::audit::text(world, truth, output).unwrap_or_default();
            let told = match &shown.output {
                downbeat::app::view::ValueView::Json(json) => json.clone(),
                downbeat::app::view::ValueView::Ref { .. } => continue,
            };
            if kept != told {
                world.violation(format_args!("{id}/{path}: its output reads as {told:?}, and is {kept:?}"));
            }
            // Maps, loops, groups, waits and values are made of others; workers do the rest.
            let worker = truth.state.type_of(&truth.plan, n).is_some();
            if !worker || truth.state.level(&truth.plan, n) != Level::Body {
                continue;
            }
            let by = task.accepted.map(|(_, nonce)| nonce);
            if !by.is_some_and(|nonce| ledger.completed(&nonce, &kept)) {
                world.violation(format_args!("{id}/{path}: nobody who held it said {kept:?}"));
            }
        }
        let failed = truth.state.error.is_some();
        if (truth.state.status == RunStatus::Completed) == failed
            && truth.state.status != RunStatus::Cancelled
        {
            world.violation(format_args!("{id} is {} and has an error: {failed}", truth.state.status.name()));
        }
    }
}

/// What a run was started for has ended as it has, or without it.
fn families(world: &World) {
    let audit = world.audit.lock();
    if audit.last_rolled_back.is_some() {
        return;
    }
    for (id, truth) in &audit.runs {
        let Some(parent) = truth.state.parent().filter(|p| !p.detached) else { continue };
        // A run that was deleted and begun anew has other children.
        if audit.deleted.contains_key(&parent.run) {
            continue;
        }
        let Some(above) = audit.runs.get(&parent.run) else { continue };
        let Some(node) = above.state.find(&above.plan, &parent.task) else {
            world.violation(format_args!(
                "{id} is of the task {} of {}, which is not there",
                parent.task, parent.run
            ));
            continue;
        };
        let task = &above.state.tasks[node as usize];
        // An earlier attempt was another run.
        if let TaskPhase::Completed { output } = &task.phase
            && truth.state.status == RunStatus::Completed
        {
            let (above_says, it_says) = (
                crate::audit::text(world, above, output),
                crate::audit::text(world, truth, &truth.state.output),
            );
            if above_says != it_says {
                world.violation(format_args!(
                    "{}/{} came to {above_says:?}, and {id} to {it_says:?}",
                    parent.run, parent.task
                ));
            }
        }
        if truth.state.status == RunStatus::Completed && matches!(task.phase, TaskPhase::Failed { .. }) {
            world.violation(format_args!("{}/{} failed, and {id} has completed", parent.run, parent.task));
        }
    }
}

/// What a task that ended is to those that need it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Counts {
    Failed,
    Completed,
    Neutral,
}

/// Whether each task ran or was skipped as its `when` says, told once more from how its needs ended.
fn conditions(world: &World, truth: &Truth) {
    let ended_by_itself = matches!(truth.state.status, RunStatus::Completed | RunStatus::Failed);
    let finishes = truth.plan.tasks.iter().any(|t| matches!(t.kind, TaskKind::Finish { .. }));
    if !ended_by_itself || truth.plan.fail_fast || finishes {
        return;
    }
    let plan_of = |n: u32| &truth.plan.tasks[truth.state.plan_index(n) as usize];
    let counts = |n: u32| {
        let (task, plan) = (&truth.state.tasks[n as usize], plan_of(n));
        match &task.phase {
            TaskPhase::Completed { .. } => Counts::Completed,
            TaskPhase::Skipped { counts_as_failed: true } => Counts::Failed,
            TaskPhase::Skipped { counts_as_failed: false } => Counts::Neutral,
            _ if plan.continue_on_error => Counts::Completed,
            _ => Counts::Failed,
        }
    };
    for (n, task) in (0..).zip(&truth.state.tasks) {
        // Of what was cancelled with its group nobody knows what would have become of it.
        if !truth.state.is_in_body(n) || task.phase == TaskPhase::Cancelled {
            continue;
        }
        // Fail fast skips whatever has not begun.
        let owner = truth.state.block_of(n).and_then(|b| b.owner);
        if let Some(TaskKind::Group(group)) = owner.map(|o| &plan_of(o).kind)
            && group.fail_fast
        {
            continue;
        }
        let plan = plan_of(n);
        let shift = n.wrapping_sub(truth.state.plan_index(n));
        let needs: Vec<Counts> = plan.needs.iter().map(|n| counts(n.wrapping_add(shift))).collect();
        let failed = needs.contains(&Counts::Failed);
        let completed = needs.contains(&Counts::Completed);
        let runs = match plan.when {
            When::Always => true,
            When::Failure => failed,
            When::Success => needs.is_empty() || (!failed && completed),
        };
        let skipped = matches!(task.phase, TaskPhase::Skipped { .. });
        // `if` may skip what `when` lets run.
        let fits = if runs { !skipped || plan.condition.is_some() } else { skipped };
        if !fits {
            let phase = task.phase.name();
            let what =
                format_args!("{}/{} is {phase} after {needs:?}", truth.state.id, truth.path(n)).to_string();
            world.violation(what);
        }
    }
}

/// The list tells every run once, the newest first.
async fn listed(world: &Arc<World>) {
    let mut rng = world.rng.split("list", 0);
    let mut seen = Vec::new();
    let mut cursor: Option<String> = None;
    loop {
        let page = clients::insist(world, &mut rng, |app| {
            let cursor = cursor.clone();
            async move { app.runs(RunFilter::default(), 5, cursor.as_deref()).await }
        });
        let Some(Ok(page)) = page.await else { return world.violation("the list of runs cannot be read") };
        seen.extend(page.items.into_iter().map(|r| (r.created_at, r.id)));
        cursor = page.next_cursor;
        if cursor.is_none() {
            break;
        }
    }
    if seen.windows(2).any(|w| w[0] <= w[1]) {
        world.violation("the list of runs is not in order");
    }
    let audit = world.audit.lock();
    let told: BTreeSet<_> = seen.into_iter().map(|(_, id)| id).collect();
    for id in audit.runs.keys() {
        if !told.contains(id) && !world.drawn().short_retention {
            world.violation(format_args!("{id} is not in the list of runs"));
        }
    }
}

/// With a short retention, nothing is kept of any run.
async fn forgotten(world: &Arc<World>) {
    // Those that were started by others stay for a minute.
    let waits =
        Duration::from_mins(3) + Duration::from_millis(world.set_back_ms.load(Ordering::Relaxed) as u64);
    let gone = world.until(waits, Duration::from_secs(1), || world.audit.lock().runs.is_empty()).await;
    if !gone {
        let audit = world.audit.lock();
        return world
            .violation(format_args!("{:?} outlive their retention", audit.runs.keys().collect::<Vec<_>>()));
    }
    if world.failed() {
        return;
    }
    // Workflows, documents, lanes, sessions, clocks and event streams stay.
    #[expect(clippy::redundant_closure_for_method_calls, reason = "the method is not general enough")]
    let left: Vec<_> = world.memory.inspect(|i| i.census()).unwrap();
    let left: Vec<_> = left.into_iter().filter(|(letter, _)| !"BDLSKGHM".contains(*letter)).collect();
    if !left.is_empty() {
        world.violation(format_args!("keys are left of runs that are gone: {left:?}"));
    }
}
