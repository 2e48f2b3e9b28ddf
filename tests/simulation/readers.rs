//! Readers of events: each must see every event once and in order, whatever server it is on and however often
//! its stream is cut.

use crate::clients::insist;
use crate::rng::Rng;
use crate::world::World;
use downbeat::app::view::{EventFilter, EventItem, EventView};
use downbeat::app::{EventFeed, RunFeed};
use downbeat::model::error::ErrorCode;
use downbeat::model::event::{EventKind, LogEntry};
use downbeat::model::ids::{RunId, TaskPath};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::time::Instant;

/// What a global reader has seen.
#[derive(Debug)]
pub(crate) struct Seen {
    /// Everything that happened later must have been told.
    since: Instant,
    /// By run: when it began, and the ordinal that comes next.
    runs: BTreeMap<RunId, (Instant, usize)>,
    resets: u32,
    /// Events that it heard, resets or not.
    heard: u64,
}

/// Whether an event tells of an entry.
fn is(event: &EventView, entry: &LogEntry, truth: &crate::audit::Truth) -> bool {
    let task = entry.task.map(|t| truth.path(t));
    if event.deleted {
        return event.kind == entry.kind;
    }
    event.kind == entry.kind
        && event.time == entry.time
        && event.task == task
        && event.attempt.unwrap_or_default() == if task.is_some() { entry.attempt } else { 0 }
        && event.delivery.unwrap_or(1) == entry.delivery.max(1)
}

impl Seen {
    fn new() -> Self {
        Self { since: Instant::now(), runs: BTreeMap::new(), resets: 0, heard: 0 }
    }

    /// The store lost its tail after this reader began: with the wall clock set back its position may come a second time,
    /// and this store goes back under servers without their connections breaking, so that they may read on before they
    /// hear of it. Such a reader is held to nothing.
    fn may_be_lost(&self, world: &World, audit: &crate::audit::Audit) -> bool {
        let set_back = world.set_back_ms.load(Ordering::Relaxed) > 0;
        audit.last_rolled_back.is_some_and(|at| set_back || at >= self.since)
    }

    /// Begins anew.
    fn again(seen: Option<&Self>, reset: bool) -> Self {
        let (resets, heard) = seen.map_or((0, 0), |s| (s.resets + u32::from(reset), s.heard));
        Self { resets, heard, ..Self::new() }
    }

    /// Events that it heard.
    pub(crate) fn heard(&self) -> u64 {
        self.heard
    }

    fn event(&mut self, world: &World, event: &EventView, name: &str) {
        self.heard += 1;
        let audit = world.audit.lock();
        // Of a schedule, of which there are none here.
        let Some(run) = &event.run else { return };
        if audit.unmade.contains(run) || self.may_be_lost(world, &audit) {
            return;
        }
        let mut lives: Vec<&crate::audit::Truth> = audit.deleted.get(run).into_iter().flatten().collect();
        lives.extend(audit.runs.get(run));
        // What the stream says of the first life of a run is told with the values of its second, if that has come to
        // as many events by then: its notes do not say which life they are of.
        if lives.len() > 1 || lives.iter().any(|t| t.rolled) {
            return;
        }
        let Some(truth) = lives.first() else {
            return world.violation(format_args!("{name} hears of a run {run} that never was"));
        };
        let next = match self.runs.get(run) {
            Some((_, next)) => *next,
            // It began after we did: its first event comes first.
            None if truth.since > self.since => 0,
            // It tells its kind and no more: which one it is cannot be said.
            None if event.deleted => return,
            None => truth.state.log.iter().position(|e| is(event, e, truth)).unwrap_or(usize::MAX),
        };
        match truth.state.log.get(next) {
            Some(entry) if is(event, entry, truth) => {
                self.runs.insert(run.clone(), (truth.since, next + 1));
            }
            expected => world.violation(format_args!(
                "{name} hears {:?} {:?} of {run} as its event {next}, which is {expected:?}",
                event.kind, event.task
            )),
        }
    }

    /// What it has not been told since the beginning.
    pub(crate) fn missing(&self, world: &World) -> Vec<String> {
        let audit = world.audit.lock();
        let mut missing = Vec::new();
        if self.may_be_lost(world, &audit) {
            return missing;
        }
        for (run, truth) in &audit.runs {
            if truth.rolled || truth.touched <= self.since || audit.unmade.contains(run) {
                continue;
            }
            if audit.deleted.contains_key(run) {
                continue;
            }
            let told = self.runs.get(run).filter(|(began, _)| *began == truth.since).map_or(0, |(_, n)| *n);
            if told != truth.state.log.len() {
                missing.push(format!("heard {told} of {} events of {run}", truth.state.log.len()));
            }
        }
        for (run, lives) in &audit.deleted {
            let Some(truth) = lives.last() else { continue };
            if audit.runs.contains_key(run)
                || truth.since <= self.since
                || lives.len() > 1
                || lives.iter().any(|t| t.rolled)
            {
                continue;
            }
            let told = self.runs.get(run).filter(|(began, _)| *began == truth.since).map_or(0, |(_, n)| *n);
            if told != truth.state.log.len() && !audit.unmade.contains(run) {
                let events = truth.state.log.len();
                missing.push(format!("heard {told} of {events} events of {run}, now deleted"));
            }
        }
        missing
    }
}

/// Reads all events until the world ends.
pub(crate) async fn follow_all(world: Arc<World>, number: usize, seen: Arc<Mutex<Option<Seen>>>) {
    let mut rng = world.rng.split("reader", number as u64);
    let name = format!("reader {number}");
    tokio::time::sleep(rng.millis(0, 10_000)).await;
    let mut cursor: Option<String> = None;
    while !world.is_over() {
        let Some((server, app)) = world.pick(&mut rng) else {
            tokio::time::sleep(Duration::from_millis(200)).await;
            continue;
        };
        let opening = async {
            world.servers[server].link.gate().await;
            app.events(EventFilter::default(), cursor.as_deref()).await
        };
        let opened = tokio::time::timeout(Duration::from_secs(6), opening).await;
        let mut feed = match opened {
            Ok(Ok(feed)) => feed,
            failed => {
                let why = failed.map(|f| f.map(drop).map_err(|e| e.code.as_str()));
                world.note(format_args!("{name} cannot read from server {server}: {why:?}"));
                tokio::time::sleep(rng.millis(50, 500)).await;
                continue;
            }
        };
        if cursor.is_none() {
            // Nothing was told that could be resumed after: from now on.
            let mut seen = seen.lock();
            *seen = Some(Seen::again(seen.as_ref(), false));
        }
        world.note(format_args!("{name} reads from server {server}"));
        read_all(&world, &mut rng, server, &mut feed, &mut cursor, &seen, &name).await;
        tokio::time::sleep(rng.millis(0, 800)).await;
    }
}

async fn read_all(
    world: &Arc<World>,
    rng: &mut Rng,
    server: usize,
    feed: &mut EventFeed,
    cursor: &mut Option<String>,
    seen: &Mutex<Option<Seen>>,
    name: &str,
) {
    loop {
        if world.is_over() || rng.chance(world.profile().reader_cuts) {
            return;
        }
        world.servers[server].link.gate().await;
        let Ok(item) = tokio::time::timeout(Duration::from_secs(1), feed.next()).await else { continue };
        match item {
            None => return,
            Some(EventItem::Reset) => {
                world.note(format_args!("{name} is reset"));
                let trimmed = world.drawn().stream_bound < 1_000;
                if !trimmed && world.audit.lock().last_rolled_back.is_none() {
                    world.violation(format_args!("{name} is reset, and nothing was trimmed or lost"));
                }
                let mut seen = seen.lock();
                *seen = Some(Seen::again(seen.as_ref(), true));
                *cursor = None;
            }
            Some(EventItem::Event(event)) => {
                let task = event.task.as_ref().map_or("", TaskPath::as_str);
                world.note(format_args!("{name} hears {:?} {} {task}", event.run, event.kind.name()));
                if let Some(seen) = seen.lock().as_mut() {
                    seen.event(world, &event, name);
                }
                *cursor = Some(event.cursor.clone());
                never_behind(world, rng, &event).await;
            }
        }
    }
}

/// What is read after an event knows of it.
async fn never_behind(world: &Arc<World>, rng: &mut Rng, event: &EventView) {
    if event.deleted || !rng.chance(0.1) {
        return;
    }
    let rolls = world.audit.lock().last_rolled_back;
    let Some(id) = event.run.clone() else { return };
    let Some(read) = insist(world, rng, |app| {
        let id = id.clone();
        async move { app.run(&id, None).await }
    })
    .await
    else {
        return;
    };
    {
        let audit = world.audit.lock();
        // Lost, deleted, or begun anew meanwhile: then it may well read otherwise.
        if audit.last_rolled_back != rolls || audit.deleted.contains_key(&id) || audit.unmade.contains(&id) {
            return;
        }
        if audit.runs.get(&id).is_none_or(|t| t.rolled) {
            return;
        }
    }
    let view = match read {
        Ok(view) => view,
        Err(e) if e.code == ErrorCode::RunNotFound => return,
        Err(e) => return world.violation(format_args!("{id} cannot be read: {e}")),
    };
    if event.kind.ends_run() && !view.status.is_terminal() {
        world.violation(format_args!(
            "{id} has ended, a reader was told, and it reads as {}",
            view.status.name()
        ));
    }
    let Some(task) = event.task.as_ref().and_then(|t| view.tasks.iter().find(|v| v.task == *t)) else {
        return;
    };
    let ended = matches!(
        event.kind,
        EventKind::TaskCompleted | EventKind::TaskFailed | EventKind::TaskSkipped | EventKind::TaskCancelled
    );
    let open = matches!(task.status, "pending" | "queued" | "running" | "retrying" | "waiting");
    let attempts = task.attempts.last().map_or(0, |a| a.number);
    if (ended && open) || attempts < event.attempt.unwrap_or_default() {
        world.violation(format_args!(
            "{id}/{}: {:?} was told, and it reads as {} in attempt {attempts}",
            task.task, event.kind, task.status
        ));
    }
}

/// Reads the events of one run, from the first to the last.
pub(crate) async fn follow_run(world: Arc<World>, mut rng: Rng, id: RunId) {
    let mut cursor: Option<String> = None;
    let mut next = 0;
    let mut ended = false;
    let rolled = |world: &World| {
        let audit = world.audit.lock();
        // A run that was lost or began anew has other events; its feed says so, and that is another test.
        audit.unmade.contains(&id)
            || audit.deleted.contains_key(&id)
            || audit.runs.get(&id).is_none_or(|t| t.rolled)
    };
    while !world.is_over() && !ended {
        let opened = insist(&world, &mut rng, |app| {
            let (id, cursor) = (id.clone(), cursor.clone());
            async move { app.run_events(&id, cursor.as_deref()).await }
        });
        let mut feed = match opened.await {
            None => return,
            Some(Ok(RunFeed::AtEnd)) => {
                if !rolled(&world) {
                    world.violation(format_args!(
                        "the feed of {id} is at its end, and its last event was not told"
                    ));
                }
                return;
            }
            Some(Ok(RunFeed::Feed(feed))) => feed,
            Some(Err(_)) if rolled(&world) => return,
            Some(Err(e)) => return world.violation(format_args!("the events of {id} cannot be read: {e}")),
        };
        loop {
            if world.is_over() || rng.chance(world.profile().reader_cuts) {
                break;
            }
            let Ok(item) = tokio::time::timeout(Duration::from_secs(1), feed.next()).await else { continue };
            if rolled(&world) {
                return;
            }
            match item {
                None => break,
                Some(EventItem::Reset) => return world.violation(format_args!("the feed of {id} is reset")),
                Some(EventItem::Event(event)) => {
                    let audit = world.audit.lock();
                    let Some(truth) = audit.runs.get(&id) else { return };
                    match truth.state.log.get(next) {
                        Some(entry) if is(&event, entry, truth) => next += 1,
                        expected => {
                            return world.violation(format_args!(
                                "the feed of {id} tells {:?} {:?} as event {next}, which is {expected:?}",
                                event.kind, event.task
                            ));
                        }
                    }
                    ended = event.kind.ends_run();
                    cursor = Some(event.cursor);
                }
            }
            if ended {
                // Nothing follows the last one, and the stream ends by itself.
                let after = tokio::time::timeout(Duration::from_secs(30), feed.next()).await;
                if !matches!(after, Ok(None)) && !rolled(&world) {
                    world.violation(format_args!("after the last event of {id} its feed gives {after:?}"));
                }
                break;
            }
        }
        tokio::time::sleep(rng.millis(0, 500)).await;
    }
    if ended
        && !rolled(&world)
        && let Some(Ok(again)) = insist(&world, &mut rng, |app| {
            let (id, cursor) = (id.clone(), cursor.clone());
            async move { app.run_events(&id, cursor.as_deref()).await }
        })
        .await
        && !matches!(again, RunFeed::AtEnd)
        && !rolled(&world)
    {
        world.violation(format_args!("the feed of {id} begins again at its end"));
    }
}
