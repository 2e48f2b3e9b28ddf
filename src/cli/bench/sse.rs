//! From the end of a run to many readers of the event stream: server-sent events over HTTP/1.1, a connection for each,
//! as browsers have them. Runs of one task are started at a steady rate, so that it is the delivery that is measured and
//! not a queue that grows.
//!
//! The delay of a `run.completed` goes from the time that the event carries (taken just before its commit) to when the
//! reader has the whole event. For each number of subscribers, `sse` has `subscribers`, `events` (completions that
//! arrived, at all of them), `p50_ms`, `p99_ms`, `max_ms`, `runs_per_second` (as it really was) and, where it is known,
//! `server_cpu_share` (of one core).
//!
//! Each subscriber must have got `run.started` and `run.completed` of each run once, in this order.

use super::audit::{self, Faults};
use super::fleet::Fleet;
use super::flow::Flow;
use super::stats::{Summary, Times};
use super::{Args, Ids, check_open_files, failure};
use crate::cli::http::{Api, encode};
use crate::cli::sse::{Event, Events};
use crate::cli::{Failure, output};
use crate::client::Caller;
use crate::model::instant;
use crate::model::time::{Clock as _, SystemClock};
use crate::proto::v1 as pb;
use futures::StreamExt as _;
use serde::Deserialize;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior};

/// Numbers of subscribers, unless told otherwise.
const SUBSCRIBERS: [u32; 3] = [1, 100, 1_000];
/// Runs started in a second, unless told otherwise.
const RATE: u32 = 20;
/// Connections that are made at once.
const AT_ONCE: usize = 64;
/// When a subscriber gets nothing for so long, something is lost.
const STUCK_AFTER: Duration = Duration::from_secs(30);
/// Starts that may be unanswered; more wait.
const STARTS_AHEAD: usize = 256;

/// What the data of an event has that is of interest.
#[derive(Debug, Deserialize)]
struct Told<'a> {
    time: &'a str,
    #[serde(default)]
    run: &'a str,
}

/// What a subscriber has got.
#[derive(Debug)]
struct Subscriber {
    prefix: Arc<str>,
    /// Of each run: 1 for its start, 2 for its end.
    seen: Vec<u8>,
    ended: u32,
    /// Delays of completions in µs.
    delays: Vec<u64>,
}

impl Subscriber {
    fn new(prefix: Arc<str>, runs: u32) -> Self {
        Self { prefix, seen: vec![0; runs as usize], ended: 0, delays: Vec::with_capacity(runs as usize) }
    }

    /// Takes an event that arrived at `now` (µs of wall time).
    fn see(&mut self, event: &Event, now: i64) -> Result<(), String> {
        if event.kind == "reset" {
            return Err("the stream was reset: events were lost".into());
        }
        let told: Told<'_> = serde_json::from_str(&event.data).map_err(|e| format!("{}: {e}", event.data))?;
        let ids = Ids { prefix: &self.prefix, count: self.seen.len() as u32 };
        let Some(n) = ids.index(told.run) else { return Ok(()) };
        let (before, after) = match event.kind.as_str() {
            "run.started" => (0, 1),
            "run.completed" => (1, 3),
            other => return Err(format!("{other} of {} was not to happen", told.run)),
        };
        if self.seen[n] != before {
            return Err(format!("{} of {} came twice or in the wrong order", event.kind, told.run));
        }
        self.seen[n] = after;
        if after == 3 {
            self.ended += 1;
            self.delays.push((now - instant::parse(told.time)?.0).max(0).unsigned_abs());
        }
        Ok(())
    }

    /// Reads until all runs have ended.
    async fn read(mut self, mut events: Events) -> Result<Self, String> {
        while (self.ended as usize) < self.seen.len() {
            let next = tokio::time::timeout(STUCK_AFTER, events.next()).await;
            let missing = || format!("{} of {} ends had come", self.ended, self.seen.len());
            match next {
                Ok(Ok(Some(event))) => self.see(&event, SystemClock.now().0)?,
                Ok(Ok(None)) => return Err(format!("the stream ended when {}", missing())),
                Ok(Err(e)) => return Err(format!("{e}, when {}", missing())),
                Err(_) => return Err(format!("nothing came for 30 s, when {}", missing())),
            }
        }
        Ok(self)
    }
}

pub(super) async fn run(
    args: &Args,
    fleet: &mut Fleet,
    caller: &Caller,
    workflow: &str,
    flow: &Flow,
) -> Result<Summary, Failure> {
    let numbers = if args.subscribers.is_empty() { &SUBSCRIBERS[..] } else { &args.subscribers };
    check_open_files(numbers.iter().copied().max().unwrap_or(0))?;
    // One run goes through before, so that the worker is there.
    let warm = pb::StartRunRequest {
        workflow: workflow.to_owned(),
        id: format!("bench-{}-warm", fleet.nonce),
        input: flow.input.clone(),
        wait_ms: 30_000,
        ..pb::StartRunRequest::default()
    };
    caller.start(warm).await.map_err(failure)?;
    fleet.begin().await;
    let mut faults = Faults::default();
    let mut rows: Vec<Value> = Vec::new();
    let mut started = Vec::new();
    for subscribers in numbers {
        output::note(&format!("{subscribers} subscribers, {} runs", args.runs));
        let prefix: Arc<str> = format!("bench-{}-s{subscribers}-", fleet.nonce).into();
        let ids = Ids { prefix: &prefix, count: args.runs };
        started.extend(ids.all());
        rows.push(measure(args, fleet, caller, workflow, flow, *subscribers, &prefix, &mut faults).await?);
    }
    fleet.end().await;
    audit::histories(caller, flow, &started, &mut faults).await;
    let mut summary = Summary {
        scenario: flow.scenario,
        runs: args.runs,
        tasks_per_run: flow.tasks,
        audit: faults.verdict(),
        ..Summary::default()
    };
    summary.add("sse", Some(rows));
    Ok(summary)
}

#[expect(clippy::too_many_arguments, reason = "what every scenario has, and what this part is about")]
async fn measure(
    args: &Args,
    fleet: &Fleet,
    caller: &Caller,
    workflow: &str,
    flow: &Flow,
    subscribers: u32,
    prefix: &Arc<str>,
    faults: &mut Faults,
) -> Result<Value, Failure> {
    let path = format!("/v1/events?workflow={}&type=run.*", encode(workflow));
    let open = (0..subscribers).map(|_| async {
        // A client of its own, so that nothing is shared.
        let stream = Api::new(&fleet.url)?.events(&path, None).await?;
        stream.ok_or_else(|| Failure::failed("the server has no events to come"))
    });
    let mut open = futures::stream::iter(open).buffer_unordered(AT_ONCE);
    let mut readers = JoinSet::new();
    while let Some(events) = open.next().await {
        readers.spawn(Subscriber::new(Arc::clone(prefix), args.runs).read(events?));
    }
    let (cpu, began) = (fleet.cpu("server"), Instant::now());
    start(args, caller, workflow, flow, prefix).await?;
    let starting = began.elapsed().as_secs_f64();
    let mut delays = Times::new();
    let mut events = 0;
    while let Some(ended) = readers.join_next().await {
        match ended.unwrap_or_else(|e| Err(e.to_string())) {
            Ok(subscriber) => {
                events += subscriber.delays.len();
                subscriber.delays.into_iter().for_each(|us| delays.record(us));
            }
            Err(fault) => faults.add(format!("one of {subscribers} subscribers: {fault}")),
        }
    }
    let mut row = json!({
        "subscribers": subscribers,
        "events": events,
        "p50_ms": delays.ms(0.5),
        "p99_ms": delays.ms(0.99),
        "max_ms": delays.ms(1.0),
        "runs_per_second": f64::from(args.runs) / starting,
    });
    if args.server.is_none() {
        row["server_cpu_share"] = json!((fleet.cpu("server") - cpu) / began.elapsed().as_secs_f64());
    }
    Ok(row)
}

/// Starts the runs at their rate, whatever becomes of them.
async fn start(
    args: &Args,
    caller: &Caller,
    workflow: &str,
    flow: &Flow,
    prefix: &str,
) -> Result<(), Failure> {
    let mut tick = tokio::time::interval(Duration::from_secs(1) / args.rate.unwrap_or(RATE));
    // What was missed is started at once, so that the rate holds.
    tick.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let mut starts = JoinSet::new();
    let settle = |ended: Option<Result<Result<pb::Run, _>, tokio::task::JoinError>>| match ended {
        Some(Ok(Err(e))) => Err(failure(e)),
        Some(Err(e)) => Err(Failure::failed(e.to_string())),
        Some(Ok(Ok(_))) | None => Ok(()),
    };
    for n in 0..args.runs {
        tick.tick().await;
        let request = pb::StartRunRequest {
            workflow: workflow.to_owned(),
            id: format!("{prefix}{n}"),
            input: flow.input.clone(),
            ..pb::StartRunRequest::default()
        };
        let caller = caller.clone();
        starts.spawn(async move { caller.start(request).await });
        while let Some(ended) = starts.try_join_next() {
            settle(Some(ended))?;
        }
        if starts.len() >= STARTS_AHEAD {
            settle(starts.join_next().await)?;
        }
    }
    while !starts.is_empty() {
        settle(starts.join_next().await)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(kind: &str, run: &str) -> Event {
        let data =
            format!("{{\"type\":\"{kind}\",\"time\":\"1970-01-01T00:00:01.000500Z\",\"run\":\"{run}\"}}");
        Event { id: "c".into(), kind: kind.into(), data }
    }

    #[test]
    fn a_subscriber_finds_gaps_repeats_and_disorder() {
        let new = || Subscriber::new("x-".into(), 2);
        let mut subscriber = new();
        for (kind, run) in [("run.started", "x-1"), ("run.started", "y-0"), ("run.completed", "x-1")] {
            subscriber.see(&event(kind, run), 1_001_000).unwrap();
        }
        assert_eq!((subscriber.ended, &subscriber.delays[..]), (1, &[500][..]));
        assert!(subscriber.see(&event("run.completed", "x-1"), 0).unwrap_err().contains("twice"));
        assert!(new().see(&event("run.completed", "x-0"), 0).unwrap_err().contains("wrong order"));
        assert!(new().see(&event("run.failed", "x-0"), 0).unwrap_err().contains("was not to happen"));
        let reset = Event { id: String::new(), kind: "reset".into(), data: "{\"type\":\"reset\"}".into() };
        assert!(new().see(&reset, 0).unwrap_err().contains("reset"));
    }
}
