//! Schedules through real lanes, on the store in memory and with time that moves when nothing else does: two servers on
//! one store, deaths, outages; and an outage on a directory. Real stores and doors: `tests/servers/schedules.rs`, `tests/routes/schedules.rs`.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use bytes::Bytes;
use downbeat::app::view::{EventFilter, EventItem, EventView, SchedulePut, ScheduleView};
use downbeat::app::{App, AppError, EventFeed, Options};
use downbeat::model::document::Format;
use downbeat::model::error::ErrorCode;
use downbeat::model::ids::RunId;
use downbeat::model::instant;
use downbeat::model::run::RunStatus;
use downbeat::model::schedule::{Asked, Fate, ScheduleName};
use downbeat::model::time::{Clock, Span, Timestamp};
use downbeat::store::embedded;
use downbeat::store::kv::memory::MemoryStore;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;
use tokio::time::Instant;

/// Ends at once.
const QUICK: &str = "name: quick\ntasks:\n  a: { set: { at: \"${{ run.schedule.slot | default('none') }}\" } }\n\
                     output: { by: \"${{ run.schedule.name | default('nobody') }}\", at: \"${{ tasks.a.output.at }}\" }\n";
/// Waits until it is told to go on.
const HELD: &str = "name: held\ntasks:\n  a: { wait: { signal: go } }\n";

/// Virtual time, and leaps.
struct Leaping {
    start: Instant,
    base: Timestamp,
    offset: AtomicI64,
}

impl Clock for Leaping {
    fn now(&self) -> Timestamp {
        let elapsed = i64::try_from(self.start.elapsed().as_micros()).unwrap();
        Timestamp(self.base.0 + elapsed + self.offset.load(Ordering::Relaxed))
    }
}

/// A store, and servers on it.
struct World {
    clock: Arc<Leaping>,
    store: MemoryStore,
}

impl World {
    fn at(time: &str) -> Self {
        let (base, offset) = (instant::parse(time).unwrap(), AtomicI64::new(0));
        let clock = Arc::new(Leaping { start: Instant::now(), base, offset });
        let store = MemoryStore::new(Arc::clone(&clock) as Arc<dyn Clock>, 4);
        Self { clock, store }
    }

    async fn server(&self) -> App {
        let options = Options { compile_inline: true, ..Options::default() };
        let app = App::launch(Arc::new(self.store.clone()), options).await.unwrap();
        for document in [QUICK, HELD] {
            app.register(None, document.as_bytes(), Format::Yaml, false).await.unwrap();
        }
        app
    }

    /// Time in which nothing happens, as nobody is there.
    fn leap(&self, span: Span) {
        self.clock.offset.fetch_add(span.0, Ordering::Relaxed);
    }
}

fn name(text: &str) -> ScheduleName {
    ScheduleName::new(text).unwrap()
}

fn put(schedule: &str, workflow: &str, cron: &str, overlap: &str, catch_up: &str) -> SchedulePut {
    let asked = Asked {
        workflow: workflow.into(),
        cron: vec![cron.into()],
        overlap: Some(overlap.into()),
        catch_up: Some(catch_up.into()),
        ..Asked::default()
    };
    let definition = asked.check().unwrap();
    SchedulePut { name: name(schedule), definition, input: Bytes::new(), paused: None }
}

async fn minutes(n: u64) {
    tokio::time::sleep(Duration::from_mins(n)).await;
}

/// Looks until it is so.
async fn until(app: &App, schedule: &str, is_so: impl Fn(&ScheduleView) -> bool) -> ScheduleView {
    for _ in 0..1_200 {
        let view = app.schedule(&name(schedule)).await.unwrap();
        if is_so(&view) {
            return view;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("{:?}", app.schedule(&name(schedule)).await.unwrap());
}

/// What became of slots, oldest first: `started 10:01`, `skipped 10:02 10:05 4 missed`.
fn told(view: &ScheduleView) -> Vec<String> {
    let clock = |t: Timestamp| t.to_string()[11..16].to_owned();
    let tell = |f: &downbeat::model::schedule::Firing| {
        let mut words = vec![f.fate.name().to_owned(), clock(f.slot)];
        words.extend(f.until.map(|u| format!("{} {}", clock(u), f.count)));
        words.extend(f.reason.map(|r| r.name().to_owned()));
        words.extend(f.error.as_ref().map(|(code, _)| code.clone()));
        words.join(" ")
    };
    view.firings.iter().rev().map(tell).collect()
}

async fn runs(app: &App) -> Vec<String> {
    let page = app.runs(downbeat::app::view::RunFilter::default(), 500, None).await.unwrap();
    page.items.iter().map(|r| r.id.to_string()).rev().collect()
}

async fn release(app: &App, run: &str) {
    let (run, go) = (RunId::new(run).unwrap(), downbeat::model::ids::SignalName::new("go").unwrap());
    app.signal(&run, &go, None, &Bytes::new()).await.unwrap();
    assert_eq!(app.run(&run, Some(Span::secs(10))).await.unwrap().status, RunStatus::Completed);
}

async fn feed(app: &App) -> EventFeed {
    let filter = EventFilter { event_type: Some("schedule.*".into()), ..EventFilter::default() };
    app.events(filter, None).await.unwrap()
}

async fn next(feed: &mut EventFeed) -> EventView {
    match tokio::time::timeout(Duration::from_mins(5), feed.next()).await.unwrap().unwrap() {
        EventItem::Event(event) => event,
        EventItem::Reset => panic!("nothing was lost"),
    }
}

#[tokio::test(start_paused = true)]
async fn every_slot_fires_once_on_two_servers() {
    let world = World::at("2026-12-01T10:00:30Z");
    let (a, b) = (world.server().await, world.server().await);
    let mut events = feed(&b).await;
    let (view, created) =
        a.put_schedule(put("s", "quick", "* * * * *", "skip", "latest"), false).await.unwrap();
    assert!(created);
    assert_eq!(view.next[0].to_string(), "2026-12-01T10:01:00.000000Z");
    assert_eq!(view.next.len(), 10);
    minutes(10).await;
    let view = until(&b, "s", |v| v.firings.len() == 10 && v.open_count == 0).await;
    let expected: Vec<String> = (1..=10).map(|m| format!("s.20261201T10{m:02}00Z")).collect();
    assert_eq!(runs(&a).await, expected);
    assert_eq!(told(&view), (1..=10).map(|m| format!("started 10:{m:02}")).collect::<Vec<_>>());
    for expected in expected {
        let event = next(&mut events).await;
        assert_eq!(event.kind.name(), "schedule.fired");
        assert_eq!(event.run.unwrap().as_str(), expected);
        let slot = event.schedule.unwrap();
        assert_eq!((slot.name.as_str(), slot.count, slot.reason), ("s", 1, None));
        assert!(expected.contains(&downbeat::model::schedule::slot_text(slot.slot.unwrap())));
        assert_eq!(event.workflow.unwrap().0.as_str(), "quick");
    }
    a.stop().await;
    b.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_run_sees_its_schedule_and_slot_and_gets_input_tags_and_priority() {
    let world = World::at("2026-12-01T10:00:30Z");
    let app = world.server().await;
    let mut put = put("s", "quick", "5 10 * * *", "skip", "latest");
    put.input = Bytes::from(format!("{{\"n\": 9007199254740993, \"long\": \"{}\"}}", "x".repeat(100)));
    put.definition.tags.insert("team".into(), "data".into());
    put.definition.priority = Some(7);
    app.put_schedule(put.clone(), false).await.unwrap();
    minutes(5).await;
    until(&app, "s", |v| v.firings.len() == 1).await;
    let run = RunId::new("s.20261201T100500Z").unwrap();
    let run = app.run(&run, Some(Span::secs(10))).await.unwrap();
    let json = |text: &str| downbeat::app::view::ValueView::Json(Bytes::copy_from_slice(text.as_bytes()));
    assert_eq!(run.output, json(r#"{"at":"2026-12-01T10:05:00.000000Z","by":"s"}"#));
    assert_eq!(run.input, downbeat::app::view::ValueView::Json(put.input.clone()));
    assert_eq!(run.schedule, Some((name("s"), instant::parse("2026-12-01T10:05:00Z").unwrap())));
    assert_eq!((run.priority, run.tags.get("team").map(String::as_str)), (7, Some("data")));
    let view = app.schedule(&name("s")).await.unwrap();
    assert_eq!(view.input, downbeat::app::view::ValueView::Json(put.input));
    app.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_server_that_dies_at_a_slot_loses_none_and_starts_none_twice() {
    let world = World::at("2026-12-01T10:00:30Z");
    let mut app = world.server().await;
    app.put_schedule(put("s", "quick", "* * * * *", "allow", "all"), false).await.unwrap();
    for n in 1..=12_u64 {
        // Dies in the moments around the slot: before it, with the commit, between commit and delivery, behind it.
        let at = Duration::from_micros(29_990_000 + 2_000 * n * n);
        tokio::time::sleep(if n == 1 { at } else { at + Duration::from_secs(20) }).await;
        app.kill();
        app = world.server().await;
        let now = world.clock.now().0.rem_euclid(60_000_000);
        tokio::time::sleep(Duration::from_micros((70_000_000 - now).unsigned_abs())).await;
    }
    let last = world.clock.now();
    let view = until(&app, "s", |v| v.open_count == 0 && v.next[0] > last).await;
    let all = runs(&app).await;
    assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len());
    let minutes = (last.0 - world.clock.base.0) / 60_000_000;
    assert!(minutes >= 12, "{minutes}");
    let slots: Vec<_> = all.iter().map(|r| r[r.len() - 7..r.len() - 3].to_owned()).collect();
    let expected: Vec<_> = (1..=all.len()).map(|m| format!("10{m:02}")).map(|s| s[..4].to_owned()).collect();
    assert_eq!(slots, expected, "each minute once: {all:?}");
    assert!(view.firings.iter().all(|f| f.fate == Fate::Started), "{view:?}");
    app.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_outage_is_made_up_for_as_each_schedule_asks() {
    let world = World::at("2026-12-01T10:00:30Z");
    let app = world.server().await;
    for (schedule, overlap, catch_up) in [
        ("none", "skip", "none"),
        ("latest", "skip", "latest"),
        ("all", "allow", "all"),
        ("in-turn", "queue", "all"),
        ("skips", "skip", "all"),
    ] {
        let workflow = if schedule == "in-turn" { "quick" } else { "held" };
        app.put_schedule(put(schedule, workflow, "* * * * *", overlap, catch_up), false).await.unwrap();
    }
    app.kill();
    world.leap(Span::secs(3 * 3_600));
    let app = world.server().await;
    let waits = |v: &ScheduleView| v.next[0].to_string() == "2026-12-01T13:01:00.000000Z";
    let none = until(&app, "none", waits).await;
    assert_eq!((told(&none), none.open_count), (vec!["skipped 10:01 13:00 180 missed".to_owned()], 0));
    let latest = until(&app, "latest", |v| v.firings.len() == 2).await;
    assert_eq!(told(&latest), ["skipped 10:01 12:59 179 missed", "started 13:00"]);
    assert_eq!(latest.open[0].0.as_str(), "latest.20261201T130000Z");
    let all = until(&app, "all", |v| v.open_count == 100 && v.firings.len() == 50).await;
    assert_eq!(all.firings.iter().filter(|f| f.fate == Fate::Started).count(), 50);
    let run = app.run(&RunId::new("all.20261201T112100Z").unwrap(), None).await.unwrap();
    assert_eq!(run.status, RunStatus::Running, "the oldest of the newest hundred");
    let skips = until(&app, "skips", |v| v.firings.len() == 3).await;
    assert_eq!(
        told(&skips),
        ["skipped 10:01 11:20 80 missed", "skipped 11:22 13:00 99 overlap", "started 11:21"]
    );
    until(&app, "in-turn", |v| v.open_count == 0 && v.waiting == 0 && waits(v)).await;
    let in_turn: Vec<_> = runs(&app).await.into_iter().filter(|r| r.starts_with("in-turn")).collect();
    assert_eq!(in_turn.len(), 100);
    assert!(in_turn.is_sorted(), "one after the other");
    app.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_run_that_is_held_open_decides_what_becomes_of_the_next_slots() {
    let world = World::at("2026-12-01T10:00:30Z");
    let app = world.server().await;
    let mut events = feed(&app).await;
    app.put_schedule(put("skip", "held", "* * * * *", "skip", "latest"), false).await.unwrap();
    minutes(2).await;
    until(&app, "skip", |v| v.firings.len() == 2).await;
    let fired = next(&mut events).await;
    assert_eq!((fired.kind.name(), fired.run.is_some()), ("schedule.fired", true));
    let skipped = next(&mut events).await;
    assert_eq!((skipped.kind.name(), skipped.run), ("schedule.skipped", None));
    assert_eq!(skipped.schedule.unwrap().reason, Some("overlap"));
    let busy = app.run_schedule(&name("skip"), None).await.unwrap_err();
    assert_eq!(busy.code, ErrorCode::ScheduleBusy);
    assert!(busy.message.contains("skip.20261201T100100Z"), "{busy}");
    release(&app, "skip.20261201T100100Z").await;
    minutes(1).await;
    let view = until(&app, "skip", |v| v.firings.len() == 3).await;
    assert_eq!(
        told(&view),
        ["started 10:01", "skipped 10:02", "started 10:03"]
            .map(|t| { if t.starts_with("skipped") { format!("{t} overlap") } else { t.to_owned() } })
    );
    app.delete_schedule(&name("skip")).await.unwrap();
    release(&app, "skip.20261201T100300Z").await;

    app.put_schedule(put("queue", "held", "* * * * *", "queue", "latest"), false).await.unwrap();
    minutes(3).await;
    let view = until(&app, "queue", |v| v.waiting == 2).await;
    assert_eq!(view.open_count, 1);
    let first = view.open[0].0.to_string();
    let by_hand = app.run_schedule(&name("queue"), Some("mine")).await.unwrap();
    assert_eq!((by_hand.run.as_str(), by_hand.queued), ("queue.r-mine", true));
    release(&app, &first).await;
    let view =
        until(&app, "queue", |v| v.open.first().is_some_and(|(r, _)| r.as_str() == "queue.r-mine")).await;
    assert_eq!(view.open_count, 1, "by hand goes first");
    app.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_pause_holds_and_what_passed_meanwhile_is_skipped() {
    let world = World::at("2026-12-01T10:00:30Z");
    let app = world.server().await;
    app.put_schedule(put("s", "quick", "*/2 * * * *", "queue", "all"), false).await.unwrap();
    assert!(app.pause_schedule(&name("s")).await.unwrap().paused_since.is_some());
    minutes(9).await;
    let request = "a-request-with-a-long-id-of-its-own";
    let by_hand = app.run_schedule(&name("s"), Some(request)).await.unwrap();
    assert_eq!(app.run(&by_hand.run, Some(Span::secs(10))).await.unwrap().status, RunStatus::Completed);
    until(&app, "s", |v| v.open_count == 0).await;
    let again = app.run_schedule(&name("s"), Some(request)).await.unwrap();
    assert_eq!(again, by_hand, "a repeat is safe");
    let view = app.resume_schedule(&name("s")).await.unwrap();
    assert_eq!(told(&view), ["started 10:09", "skipped 10:02 10:08 4 paused"]);
    minutes(1).await;
    let view = until(&app, "s", |v| v.firings.len() == 3).await;
    assert_eq!(told(&view)[2], "started 10:10");
    assert_eq!(runs(&app).await.len(), 2);
    app.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_backfill_starts_what_has_no_run() {
    let world = World::at("2026-12-01T10:00:30Z");
    let (a, b) = (world.server().await, world.server().await);
    a.put_schedule(put("s", "quick", "*/10 * * * *", "skip", "latest"), false).await.unwrap();
    minutes(10).await;
    until(&a, "s", |v| v.firings.len() == 1 && v.open_count == 0).await;
    let (from, to) = (instant::parse("2026-12-01T08:00:00Z").unwrap(), world.clock.now());
    let s = name("s");
    let (first, second) = tokio::join!(a.backfill_schedule(&s, from, to), b.backfill_schedule(&s, from, to));
    assert_eq!(first.unwrap() + second.unwrap(), 13, "asked on two servers at once; 10:10 has a run");
    until(&b, "s", |v| v.backfilling == 0 && v.open_count == 0).await;
    let mut all = runs(&a).await;
    all.sort();
    assert_eq!(all.len(), 14);
    assert_eq!((all[0].as_str(), all[13].as_str()), ("s.20261201T080000Z", "s.20261201T101000Z"));
    assert_eq!(a.backfill_schedule(&name("s"), from, to).await, Ok(0));
    let path = |e: AppError| e.faults[0].path.clone();
    let wrong = a.backfill_schedule(&name("s"), to, from).await.unwrap_err();
    assert_eq!((wrong.code, path(wrong)), (ErrorCode::InvalidRequest, "from".to_owned()));
    let ahead = to.plus(Span::secs(3_600));
    assert_eq!(path(a.backfill_schedule(&name("s"), from, ahead).await.unwrap_err()), "to");
    let long = instant::parse("2026-11-01T08:00:00Z").unwrap();
    let many = a.backfill_schedule(&name("s"), long, to).await.unwrap_err();
    assert!(many.message.contains("has 4334 slots"), "{many}");
    a.stop().await;
    b.stop().await;
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_started_is_told() {
    let world = World::at("2026-12-01T10:00:30Z");
    let app = world.server().await;
    let mut unknown = put("s", "nowhere", "* * * * *", "skip", "latest");
    let refused = app.put_schedule(unknown.clone(), true).await.unwrap_err();
    assert_eq!((refused.code, refused.faults[0].path.as_str()), (ErrorCode::InvalidSchedule, "workflow"));
    unknown.definition.workflow = downbeat::model::ids::WorkflowName::new("quick").unwrap();
    app.put_schedule(unknown, false).await.unwrap();
    app.delete_workflow(&downbeat::model::ids::WorkflowName::new("quick").unwrap()).await.unwrap();
    let mut events = feed(&app).await;
    minutes(1).await;
    let view = until(&app, "s", |v| !v.firings.is_empty()).await;
    assert_eq!(told(&view), ["refused 10:01 workflow_not_found"]);
    assert_eq!(view.open_count, 0);
    let event = next(&mut events).await;
    assert_eq!((event.kind.name(), event.run), ("schedule.skipped", None));
    assert_eq!(event.schedule.unwrap().reason, Some("refused"));
    assert_eq!(event.error.unwrap().code, "workflow_not_found");
    app.stop().await;
}

#[tokio::test(start_paused = true)]
async fn schedules_are_listed_page_by_page_newest_first() {
    let world = World::at("2026-12-01T10:00:30Z");
    let (a, b) = (world.server().await, world.server().await);
    for n in 0..7 {
        let put = put(&format!("s{n}"), "quick", "@daily", "skip", "latest");
        tokio::time::sleep(Duration::from_millis(1)).await;
        let (view, created) = a.put_schedule(put.clone(), true).await.unwrap();
        assert!(created && view.next[0].to_string() == "2026-12-02T00:00:00.000000Z");
        assert_eq!(a.schedule(&put.name).await.unwrap_err().code, ErrorCode::ScheduleNotFound, "a dry run");
        a.put_schedule(put.clone(), false).await.unwrap();
        let (view, created) = b.put_schedule(put, false).await.unwrap();
        assert_eq!((view.revision, created), (1, false), "unchanged");
    }
    b.delete_schedule(&name("s3")).await.unwrap();
    assert_eq!(a.delete_schedule(&name("s3")).await.unwrap_err().code, ErrorCode::ScheduleNotFound);
    let (mut names, mut cursor): (Vec<String>, Option<String>) = (Vec::new(), None);
    loop {
        let page = b.schedules(2, cursor.as_deref()).await.unwrap();
        assert!(page.items.len() == 2);
        names.extend(page.items.iter().map(|v| v.name.to_string()));
        cursor = page.next_cursor;
        if cursor.is_none() {
            break;
        }
    }
    assert_eq!(names, ["s6", "s5", "s4", "s2", "s1", "s0"]);
    // A schedule of a name that was there before is another one.
    tokio::time::sleep(Duration::from_millis(1)).await;
    a.put_schedule(put("s3", "quick", "@hourly", "skip", "latest"), false).await.unwrap();
    assert_eq!(b.schedules(1, None).await.unwrap().items[0].name, name("s3"));
    a.stop().await;
    b.stop().await;
}

#[tokio::test]
async fn an_outage_on_a_directory_is_made_up_for() {
    let clock = Arc::new(Leaping {
        start: Instant::now(),
        base: instant::parse("2026-12-01T10:00:30Z").unwrap(),
        offset: AtomicI64::new(0),
    });
    let folder = tempfile::tempdir().unwrap();
    let open = || async {
        let options =
            embedded::Options { clock: Arc::clone(&clock) as Arc<dyn Clock>, ..embedded::Options::default() };
        let store = embedded::EmbeddedStore::open(folder.path(), options).await.unwrap();
        App::launch(store, Options::default()).await.unwrap()
    };
    let app = open().await;
    app.register(None, QUICK.as_bytes(), Format::Yaml, false).await.unwrap();
    app.put_schedule(put("all", "quick", "*/10 * * * *", "queue", "all"), false).await.unwrap();
    app.put_schedule(put("paused", "quick", "*/10 * * * *", "queue", "all"), false).await.unwrap();
    app.pause_schedule(&name("paused")).await.unwrap();
    app.stop().await;
    drop(app);
    clock.offset.fetch_add(Span::secs(3 * 3_600).0, Ordering::Relaxed);
    let app = open().await;
    let view = until(&app, "all", |v| v.firings.len() == 18 && v.open_count == 0).await;
    let started: Vec<_> = (61..=78).map(|n| format!("started {:02}:{}0", n / 6, n % 6)).collect();
    assert_eq!(told(&view), started);
    assert!(app.schedule(&name("paused")).await.unwrap().firings.is_empty());
    let view = app.resume_schedule(&name("paused")).await.unwrap();
    assert_eq!(told(&view), ["skipped 10:10 13:00 18 paused"]);
    assert_eq!(runs(&app).await.len(), 18);
    app.stop().await;
}
