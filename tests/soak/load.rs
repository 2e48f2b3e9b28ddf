//! What is asked of the servers: callers that start runs of every kind, one after the other, and wait for their ends.

use crate::Settings;
use crate::hands::{CLAIMED, FLAKY, WORK};
use crate::site::Site;
use crate::support::reader::Reader;
use crate::support::server::Door;
use axum::body::Body;
use downbeat::model::entropy::SeededEntropy;
use downbeat::model::time::{Clock as _, SystemClock};
use http::Request;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash as _, Hasher as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::time::Instant;

/// Runs that are open at a time.
const CALLERS: usize = 24;

/// The schedule that starts a run each minute.
pub(crate) const EACH_MINUTE: &str = "each-minute";

/// The run with which the reader begins.
pub(crate) const FIRST: &str = "first";

/// No run takes longer than this to its end, once the faults have stopped.
const PATIENCE: Duration = Duration::from_secs(90);

/// A reader gives a stream up on which nothing came for so long.
const SILENCE: Duration = Duration::from_secs(3);

/// A kind of run.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Kind {
    Chain,
    Diamond,
    Fan,
    Family,
    Flaky,
    Timer,
    Signal,
    Claimed,
}

impl Kind {
    const ALL: [Self; 8] = [
        Self::Chain,
        Self::Diamond,
        Self::Fan,
        Self::Family,
        Self::Flaky,
        Self::Timer,
        Self::Signal,
        Self::Claimed,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Chain => "soak-chain",
            Self::Diamond => "soak-diamond",
            Self::Fan => "soak-fan",
            Self::Family => "soak-family",
            Self::Flaky => "soak-flaky",
            Self::Timer => "soak-timer",
            Self::Signal => "soak-signal",
            Self::Claimed => "soak-claimed",
        }
    }

    /// Attempts are used up by workers that are killed or stand still: there are enough.
    fn document(self) -> String {
        let task = |needs: &str, kind: &str| {
            format!(
                "{{ needs: [{needs}], type: {kind}, retry: {{ max_attempts: 50, initial: 50ms, max: 500ms }} }}"
            )
        };
        let work = |needs: &str| task(needs, WORK);
        let tasks = match self {
            Self::Chain => format!("  a: {}\n  b: {}\n  c: {}\n", work(""), work("a"), work("b")),
            Self::Diamond => {
                format!("  a: {}\n  b: {}\n  c: {}\n  d: {}\n", work(""), work("a"), work("a"), work("b, c"))
            }
            Self::Fan => {
                let items = work("").replacen("needs: []", "for_each: \"${{ range(20) | list }}\"", 1);
                format!("  each: {items}\n  end: {}\n", work("each"))
            }
            Self::Family => format!(
                "  one: {{ workflow: soak-chain }}\n  two: {{ workflow: soak-timer }}\n  end: {}\n",
                work("one, two")
            ),
            Self::Flaky => format!("  a: {}\n  b: {}\n", task("", FLAKY), task("a", FLAKY)),
            Self::Timer => format!("  nap: {{ wait: {{ for: 400ms }} }}\n  end: {}\n", work("nap")),
            Self::Signal => {
                format!(
                    "  a: {}\n  go: {{ needs: [a], wait: {{ signal: go }} }}\n  end: {}\n",
                    work(""),
                    work("go")
                )
            }
            Self::Claimed => format!("  a: {}\n  b: {}\n", task("", CLAIMED), task("a", CLAIMED)),
        };
        format!("name: {}\ntasks:\n{tasks}", self.name())
    }
}

/// What is kept of an event: its run, a digest of all it says but the cursor, and whether it ends the run.
pub(crate) type Told = (String, u64, bool);

/// See [`Told`].
pub(crate) fn told(event: &serde_json::Value) -> Told {
    let mut hasher = DefaultHasher::new();
    event.to_string().hash(&mut hasher);
    let kind = event["type"].as_str().unwrap_or_default();
    let ends = matches!(kind, "run.completed" | "run.failed" | "run.cancelled" | "run.timed_out");
    // What a schedule tells names the run that it starts, and is not of it.
    let run = event["run"].as_str().filter(|_| !kind.starts_with("schedule."));
    (run.unwrap_or_default().to_owned(), hasher.finish(), ends)
}

/// What was asked, as it was answered.
#[derive(Debug)]
pub(crate) struct Acknowledged {
    /// Runs whose start was acknowledged.
    pub(crate) runs: Vec<String>,
    /// Those that did not end.
    pub(crate) stuck: Vec<String>,
    /// Calls that were refused or failed, and were repeated.
    pub(crate) repeats: usize,
    /// Who read everything, all the time.
    pub(crate) reader: Reader<Told>,
    /// When the schedule was made, and until when its slots are due; µs.
    pub(crate) scheduled: (i64, i64),
}

/// See the module.
pub(crate) struct Load {
    shared: Arc<Shared>,
    calling: Vec<tokio::task::JoinHandle<(Vec<String>, Vec<String>)>>,
    reader: Reader<Told>,
    since: i64,
}

/// Wall time, µs.
fn wall() -> i64 {
    SystemClock.now().0
}

struct Shared {
    doors: Vec<Door>,
    random: SeededEntropy,
    /// From one start to the next of one caller, at the least.
    pause: Duration,
    next: AtomicUsize,
    ending: AtomicBool,
    repeats: AtomicUsize,
}

impl Load {
    /// Registers what is run, begins to read, and begins to call.
    pub(crate) async fn start(site: &Site, settings: &Settings) -> Self {
        let doors = site.front_doors();
        for kind in Kind::ALL {
            let path = format!("/v1/workflows/{}", kind.name());
            let answer = doors[0].put(&path, "application/yaml", kind.document()).await;
            assert_eq!(answer.status, 201, "{}", answer.text());
        }
        let reader = Reader::keeping(doors.clone(), "/v1/events", SILENCE, |frame| told(&frame.json()));
        let shared = Arc::new(Shared {
            doors: doors.clone(),
            random: SeededEntropy::new(settings.seed),
            pause: Duration::from_secs(CALLERS as u64) / u32::try_from(settings.rate).unwrap(),
            next: AtomicUsize::new(0),
            ending: AtomicBool::new(false),
            repeats: AtomicUsize::new(0),
        });
        let each_minute = serde_json::json!({
            "workflow": Kind::Chain.name(), "cron": "* * * * *", "overlap": "allow", "catch_up": "all",
        });
        let since = wall();
        let path = format!("/v1/schedules/{EACH_MINUTE}");
        let answer = doors[0].put(&path, "application/json", each_minute.to_string()).await;
        assert_eq!(answer.status, 201, "{}", answer.text());
        // Who reads must have a cursor before anything goes wrong.
        let first = format!("{{\"workflow\":\"{}\",\"id\":\"{FIRST}\"}}", Kind::Timer.name());
        let mut load = Self { shared, calling: Vec::new(), reader, since };
        let began = Instant::now();
        while load.reader.look(|s| s.last.is_none()) {
            assert!(began.elapsed() < PATIENCE, "nothing is told");
            let started = load.shared.doors[0].try_post("/v1/runs", &first).await;
            assert!(started.is_ok_and(|a| matches!(a.status, 200 | 201)));
            let _ = load.reader.sees(Duration::from_millis(500), |s| s.last.is_some()).await;
        }
        for _ in 0..CALLERS {
            load.calling.push(tokio::spawn(call(Arc::clone(&load.shared))));
        }
        load
    }

    /// Starts nothing more, and waits for the end of what was started.
    pub(crate) async fn end(self) -> Acknowledged {
        self.shared.ending.store(true, Ordering::Release);
        let scheduled = (self.since, wall());
        let (mut runs, mut stuck) = (Vec::new(), Vec::new());
        for calling in self.calling {
            let (its, its_stuck) = calling.await.unwrap();
            runs.extend(its);
            stuck.extend(its_stuck);
        }
        let repeats = self.shared.repeats.load(Ordering::Relaxed);
        Acknowledged { runs, stuck, repeats, reader: self.reader, scheduled }
    }
}

/// Asks at one door after the other until it is answered with one of these; none when it takes too long after the end.
async fn insist(shared: &Shared, make: impl Fn() -> Request<Body>, statuses: &[u16]) -> Option<u16> {
    let mut ending = None;
    loop {
        let door = shared.doors[shared.random.next_u64() as usize % shared.doors.len()];
        match door.try_send(make(), Duration::from_secs(12)).await {
            Ok(answer) if statuses.contains(&answer.status) => return Some(answer.status),
            _ => shared.repeats.fetch_add(1, Ordering::Relaxed),
        };
        if shared.ending.load(Ordering::Acquire)
            && ending.get_or_insert_with(Instant::now).elapsed() > PATIENCE
        {
            return None;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// One caller: the runs whose starts were acknowledged to it, and those that came to no end.
async fn call(shared: Arc<Shared>) -> (Vec<String>, Vec<String>) {
    let (mut runs, mut stuck) = (Vec::new(), Vec::new());
    let post = |path: String, body: String| {
        move || {
            let request = Request::post(&path).header("content-type", "application/json");
            request.body(Body::from(body.clone())).unwrap()
        }
    };
    let mut pace = tokio::time::interval(shared.pause.max(Duration::from_millis(1)));
    pace.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    while !shared.ending.load(Ordering::Acquire) {
        pace.tick().await;
        let kind = Kind::ALL[shared.random.next_u64() as usize % Kind::ALL.len()];
        let id = format!("soak-{}", shared.next.fetch_add(1, Ordering::Relaxed));
        let body = format!("{{\"workflow\":\"{}\",\"id\":\"{id}\"}}", kind.name());
        if insist(&shared, post("/v1/runs".into(), body), &[200, 201]).await.is_none() {
            // Never acknowledged: nothing was promised.
            break;
        }
        runs.push(id.clone());
        if matches!(kind, Kind::Signal) {
            let path = format!("/v1/runs/{id}/signals/go?id=one");
            insist(&shared, post(path, "1".into()), &[200, 201, 202]).await;
        }
        if !ends(&shared, &id).await {
            stuck.push(id);
        }
    }
    (runs, stuck)
}

/// Waits for the end of a run; false if it does not come.
async fn ends(shared: &Shared, id: &str) -> bool {
    let mut ending = None;
    loop {
        let door = shared.doors[shared.random.next_u64() as usize % shared.doors.len()];
        let request = Request::get(format!("/v1/runs/{id}?wait=5s")).body(Body::empty()).unwrap();
        match door.try_send(request, Duration::from_secs(12)).await {
            Ok(answer) if answer.status == 200 => {
                let status = answer.json()["status"].clone();
                if !matches!(status.as_str(), Some("running" | "pending" | "paused")) {
                    return true;
                }
            }
            // A run whose start was acknowledged is there; the audit says so if it is not.
            Ok(answer) if answer.status == 404 => return false,
            _ => {
                shared.repeats.fetch_add(1, Ordering::Relaxed);
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
        if shared.ending.load(Ordering::Acquire)
            && ending.get_or_insert_with(Instant::now).elapsed() > PATIENCE
        {
            return false;
        }
    }
}
