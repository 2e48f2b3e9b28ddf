//! Many runs of any [`Flow`] at once: submitted over one stream, counted by their events on another.

use super::audit::{self, Faults};
use super::fleet::Fleet;
use super::flow::Flow;
use super::progress::{self, Progress};
use super::series::Ran;
use super::stats::{Summary, Times, straightness};
use super::{Args, Ids, failure};
use crate::cli::{Failure, output};
use crate::client::{Caller, Events};
use crate::model::time::{Clock as _, SystemClock};
use crate::proto::v1 as pb;
use bytes::Bytes;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use tokio::sync::{Semaphore, mpsc};
use tokio::time::{Instant, MissedTickBehavior};

/// Starts per message, and messages between here and the connection.
const BATCH: u32 = 64;
const MESSAGES_AHEAD: usize = 4;
/// Bytes of inputs in one message, unless one alone is larger; a server reads up to 8 MiB.
const BATCH_BYTES: usize = 1 << 20;
/// Starts sent and not yet acknowledged.
const AHEAD: u32 = 1_024;
/// Without any completion for this long, something is stuck.
const STUCK_AFTER: Duration = Duration::from_mins(1);
/// The run before all others, which has everything in place, must have ended within this.
const WARM_WITHIN: Duration = Duration::from_secs(30);

/// What is known of a run; times in µs since the beginning, 0 for not yet.
#[derive(Debug, Clone, Copy, Default)]
struct Seen {
    sent: u64,
    completed: u64,
    /// From its commit to its arrival.
    event: u64,
    completions: u32,
}

pub(super) async fn run(
    args: &Args,
    fleet: &mut Fleet,
    caller: &Caller,
    workflow: &str,
    flow: &Flow,
) -> Result<Summary, Failure> {
    let prefix = format!("bench-{}-", fleet.nonce);
    let ids = Ids { prefix: &prefix, count: args.runs };
    let watch = pb::WatchRequest {
        workflow: workflow.to_owned(),
        r#type: "run.completed".to_owned(),
        ..pb::WatchRequest::default()
    };
    let mut events = caller.watch(watch).await.map_err(failure)?;
    let cursor = warm_up(caller, &mut events, workflow, flow, &prefix).await?;
    fleet.begin().await;
    let mut seen = vec![Seen::default(); args.runs as usize];
    let (began, began_wall) = (Instant::now(), SystemClock.now().0);
    let since = move || u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX);

    let mut progress = Progress::new(flow.tasks);
    let counter = Arc::clone(&progress.submitted);
    let starts = Starts {
        workflow: workflow.to_owned(),
        prefix: prefix.clone(),
        runs: args.runs,
        input: flow.input.clone(),
    };
    let submitting = tokio::spawn(submit(caller.clone(), starts, began, counter));
    let mut completed = 0_u32;
    let mut times = Vec::with_capacity(seen.len());
    let mut heard = Instant::now();
    let mut ticks = tokio::time::interval_at(began + progress::EVERY, progress::EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while completed < args.runs {
        let message = tokio::select! {
            message = events.message() => message,
            _ = ticks.tick() => {
                progress.tell();
                if heard.elapsed() > STUCK_AFTER {
                    break;
                }
                continue;
            }
        };
        heard = Instant::now();
        let Some(batch) = message.map_err(|e| failure(e.into()))? else {
            return Err(Failure::failed("the server ended the stream of events"));
        };
        let (now, wall) = (since(), SystemClock.now().0);
        for item in batch.items {
            let Some(pb::watch_item::Item::Event(event)) = item.item else {
                return Err(Failure::failed("the stream of events was reset: some were lost"));
            };
            let Some(seen) = ids.index(&event.run).and_then(|n| seen.get_mut(n)) else { continue };
            seen.completions += 1;
            if seen.completions == 1 {
                completed += 1;
                seen.completed = now;
                seen.event = (wall - event.time_us).max(0).unsigned_abs();
                times.push(now);
                progress.finished(seen.event);
            }
        }
    }
    progress.end();
    let submitted = submitting.await.map_err(|e| Failure::failed(e.to_string()))??;
    for (seen, sent) in seen.iter_mut().zip(&submitted.sent) {
        seen.sent = *sent;
    }
    fleet.end().await;
    if let Some(recording) = &mut fleet.recording {
        let wall = |since: u64| began_wall.saturating_add_unsigned(since);
        let ran = seen.iter().zip(&submitted.acknowledgements).map(|(seen, acknowledged)| Ran {
            submitted: (*acknowledged > 0).then(|| wall(*acknowledged)),
            finished: (seen.completions > 0).then(|| {
                let arrived = wall(seen.completed);
                (arrived.saturating_sub_unsigned(seen.event), arrived)
            }),
        });
        recording.ran(began_wall, ran.collect());
    }
    let audit = audit(caller, workflow, flow, &cursor, &ids, &seen, &submitted).await;
    Ok(summary(args, flow, &seen, &times, &submitted, audit))
}

/// One run goes through before the first that counts, so that the worker is there and the workflow compiled. Returns
/// the cursor of its last event, after which everything is told that is measured.
async fn warm_up(
    caller: &Caller,
    events: &mut Events,
    workflow: &str,
    flow: &Flow,
    prefix: &str,
) -> Result<String, Failure> {
    let id = format!("{prefix}warm");
    let start = pb::StartRunRequest {
        workflow: workflow.to_owned(),
        id: id.clone(),
        input: flow.input.clone(),
        ..pb::StartRunRequest::default()
    };
    caller.start(start).await.map_err(failure)?;
    let ended = async {
        while let Some(batch) = events.message().await.map_err(|e| failure(e.into()))? {
            for item in batch.items {
                if let Some(pb::watch_item::Item::Event(event)) = item.item
                    && event.run == id
                {
                    return Ok(event.cursor);
                }
            }
        }
        Err(Failure::failed("the server ended the stream of events"))
    };
    tokio::time::timeout(WARM_WITHIN, ended).await.map_err(|_| {
        Failure::failed(format!(
            "{id}, the run before all others, has not completed within 30 s: is a worker there?"
        ))
    })?
}

/// What is started.
pub(super) struct Starts {
    pub(super) workflow: String,
    pub(super) prefix: String,
    pub(super) runs: u32,
    pub(super) input: Bytes,
}

/// How the submission went.
pub(super) struct Submitted {
    /// When each start was sent.
    pub(super) sent: Vec<u64>,
    /// When each was acknowledged; 0 for not.
    pub(super) acknowledgements: Vec<u64>,
    /// When the last one was.
    pub(super) acknowledged: u64,
    pub(super) refused: Vec<String>,
}

impl Submitted {
    pub(super) fn audit(&self, faults: &mut Faults) {
        if let Some(first) = self.refused.first() {
            faults.add(format!("{} starts were refused, e.g. {first}", self.refused.len()));
        }
    }
}

/// Sends the starts as fast as they are taken; times are µs since `began`, and `counter` tells how many were
/// acknowledged up to now.
pub(super) async fn submit(
    caller: Caller,
    Starts { workflow, prefix, runs, input }: Starts,
    began: Instant,
    counter: Arc<AtomicU32>,
) -> Result<Submitted, Failure> {
    let batch = (BATCH_BYTES / input.len().max(1)).clamp(1, BATCH as usize) as u32;
    let since = move || u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX);
    let room = Arc::new(Semaphore::new(AHEAD as usize));
    let (tx, rx) = mpsc::channel(MESSAGES_AHEAD);
    let sending = tokio::spawn({
        let room = Arc::clone(&room);
        async move {
            let mut sent = Vec::with_capacity(runs as usize);
            for first in (0..runs).step_by(batch as usize) {
                let count = batch.min(runs - first);
                // Closed only when the acknowledgements ended, and then nobody reads the starts either.
                if let Ok(permits) = room.acquire_many(count).await {
                    permits.forget();
                }
                let start = |n: u32| pb::NumberedStart {
                    sequence: u64::from(n),
                    start: Some(pb::StartRunRequest {
                        workflow: workflow.clone(),
                        id: format!("{prefix}{n}"),
                        input: input.clone(),
                        ..pb::StartRunRequest::default()
                    }),
                };
                let starts = (first..first + count).map(start).collect();
                let now = since();
                sent.resize(sent.len() + count as usize, now);
                if tx.send(pb::StartManyRequest { starts }).await.is_err() {
                    break;
                }
            }
            sent
        }
    });
    let starts = tokio_stream::wrappers::ReceiverStream::new(rx);
    let mut acks = caller.start_many(starts).await.map_err(failure)?;
    let mut refused = Vec::new();
    let mut acknowledgements = vec![0; runs as usize];
    let mut acknowledged = 0;
    while acknowledged < runs {
        let Some(message) = acks.message().await.map_err(|e| failure(e.into()))? else { break };
        room.add_permits(message.acks.len());
        let now = since();
        for ack in message.acks {
            acknowledged += 1;
            let place = usize::try_from(ack.sequence).ok().and_then(|n| acknowledgements.get_mut(n));
            match (ack.outcome, place) {
                (Some(pb::start_ack::Outcome::Refused(problem)), _) => {
                    refused.push(format!("{}: {}", problem.code, problem.message));
                }
                (_, Some(at)) => *at = now,
                (_, None) => {}
            }
        }
        counter.store(acknowledged, Ordering::Relaxed);
    }
    let at = since();
    room.close();
    let sent = sending.await.map_err(|e| Failure::failed(e.to_string()))?;
    if acknowledged < runs {
        refused.push(format!("{} starts were not acknowledged", runs - acknowledged));
    }
    Ok(Submitted { sent, acknowledgements, acknowledged: at, refused })
}

/// `ok`, or everything that is wrong.
async fn audit(
    caller: &Caller,
    workflow: &str,
    flow: &Flow,
    cursor: &str,
    ids: &Ids<'_>,
    seen: &[Seen],
    submitted: &Submitted,
) -> String {
    let mut faults = Faults::default();
    submitted.audit(&mut faults);
    let missing: Vec<_> =
        (0..ids.count).zip(seen).filter(|(_, s)| s.completions == 0).map(|(n, _)| n).collect();
    if !missing.is_empty() {
        let first = missing.iter().take(5).map(|n| ids.id(*n)).collect::<Vec<_>>().join(", ");
        faults.add(format!("no event of completion came for {} runs, e.g. {first}", missing.len()));
    }
    let doubled = seen.iter().filter(|s| s.completions > 1).count();
    if doubled > 0 {
        faults.add(format!("{doubled} runs completed more than once"));
    }
    // More is not worth waiting for once runs are missing.
    if missing.is_empty() && !audit::completions(caller, workflow, cursor, ids, flow.tasks, &mut faults).await
    {
        output::note("the server has trimmed events of this measurement: tasks are audited by samples only");
    }
    audit::histories(caller, flow, &ids.all(), &mut faults).await;
    faults.verdict()
}

fn summary(
    args: &Args,
    flow: &Flow,
    seen: &[Seen],
    times: &[u64],
    submitted: &Submitted,
    audit: String,
) -> Summary {
    let per_second = |count: f64, us: u64| (us > 0).then(|| count * 1e6 / us as f64);
    let last = times.last().copied().unwrap_or(0);
    let during = times.iter().filter(|t| **t <= submitted.acknowledged).count();
    let after = times.len() - during;
    let rate_during = per_second(during as f64, submitted.acknowledged);
    let rate_after = per_second(after as f64, last.saturating_sub(submitted.acknowledged));
    let done = || seen.iter().filter(|s| s.completions > 0);
    let latency: Times = done().map(|s| s.completed.saturating_sub(s.sent)).collect();
    let event: Times = done().map(|s| s.event).collect();
    Summary {
        scenario: flow.scenario,
        runs: args.runs,
        tasks_per_run: flow.tasks,
        tasks_per_second: per_second(times.len() as f64 * f64::from(flow.tasks), last),
        runs_submitted_per_second: per_second(f64::from(args.runs), submitted.acknowledged),
        rate_during_submit_over_after: rate_during.zip(rate_after).map(|(during, after)| during / after),
        completion_r2: straightness(times),
        completion_event_p50_ms: event.ms(0.5),
        completion_event_p99_ms: event.ms(0.99),
        run_latency_p50_ms: latency.ms(0.5),
        run_latency_p99_ms: latency.ms(0.99),
        audit,
        ..Summary::default()
    }
}
