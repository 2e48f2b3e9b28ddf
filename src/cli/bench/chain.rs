//! Many runs at once: submitted over one stream, counted by their events on another.

use super::fleet::Fleet;
use super::progress::{self, Progress};
use super::series::Ran;
use super::stats::{Summary, ms, percentile, straightness};
use super::{Args, INPUT, failure};
use crate::cli::Failure;
use crate::client::Caller;
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
/// Starts sent and not yet acknowledged.
const AHEAD: u32 = 1_024;
/// Without any completion for this long, something is stuck.
const STUCK_AFTER: Duration = Duration::from_mins(1);
/// Runs that are looked at task by task.
const AUDITED: u32 = 100;

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
) -> Result<Summary, Failure> {
    let prefix = format!("bench-{}-", fleet.nonce);
    let watch = pb::WatchRequest {
        workflow: workflow.to_owned(),
        r#type: "run.completed".to_owned(),
        ..pb::WatchRequest::default()
    };
    let mut events = caller.watch(watch).await.map_err(failure)?;
    let mut seen = vec![Seen::default(); args.runs as usize];
    let (began, began_wall) = (Instant::now(), SystemClock.now().0);
    let since = move || u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX);

    let mut progress = Progress::new(args.tasks);
    let counter = Arc::clone(&progress.submitted);
    let starts = Starts { workflow: workflow.to_owned(), prefix: prefix.clone(), runs: args.runs };
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
            let index = event.run.strip_prefix(&prefix).and_then(|n| n.parse::<usize>().ok());
            let Some(seen) = index.and_then(|n| seen.get_mut(n)) else { continue };
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
    let audit = audit(args, caller, &prefix, &seen, &submitted).await;
    Ok(summary(args, &seen, &times, &submitted, audit))
}

/// How the submission went.
struct Submitted {
    /// When each start was sent.
    sent: Vec<u64>,
    /// When each was acknowledged; 0 for not.
    acknowledgements: Vec<u64>,
    /// When the last one was.
    acknowledged: u64,
    refused: Vec<String>,
}

/// What is started.
struct Starts {
    workflow: String,
    prefix: String,
    runs: u32,
}

async fn submit(
    caller: Caller,
    Starts { workflow, prefix, runs }: Starts,
    began: Instant,
    counter: Arc<AtomicU32>,
) -> Result<Submitted, Failure> {
    let since = move || u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX);
    let room = Arc::new(Semaphore::new(AHEAD as usize));
    let (tx, rx) = mpsc::channel(MESSAGES_AHEAD);
    let sending = tokio::spawn({
        let room = Arc::clone(&room);
        async move {
            let mut sent = Vec::with_capacity(runs as usize);
            for first in (0..runs).step_by(BATCH as usize) {
                let count = BATCH.min(runs - first);
                // Closed only when the acknowledgements ended, and then nobody reads the starts either.
                if let Ok(permits) = room.acquire_many(count).await {
                    permits.forget();
                }
                let start = |n: u32| pb::NumberedStart {
                    sequence: u64::from(n),
                    start: Some(pb::StartRunRequest {
                        workflow: workflow.clone(),
                        id: format!("{prefix}{n}"),
                        input: Bytes::from_static(INPUT),
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
async fn audit(args: &Args, caller: &Caller, prefix: &str, seen: &[Seen], submitted: &Submitted) -> String {
    let mut wrong = Vec::new();
    if let Some(first) = submitted.refused.first() {
        wrong.push(format!("{} starts were refused, e.g. {first}", submitted.refused.len()));
    }
    let missing: Vec<_> =
        (0..args.runs).zip(seen).filter(|(_, s)| s.completions == 0).map(|(n, _)| n).collect();
    if !missing.is_empty() {
        let first = missing.iter().take(5).map(|n| format!("{prefix}{n}")).collect::<Vec<_>>().join(", ");
        wrong.push(format!("no event of completion came for {} runs, e.g. {first}", missing.len()));
    }
    let doubled = seen.iter().filter(|s| s.completions > 1).count();
    if doubled > 0 {
        wrong.push(format!("{doubled} runs completed more than once"));
    }
    for n in (0..args.runs).step_by((args.runs / AUDITED).max(1) as usize) {
        let id = format!("{prefix}{n}");
        match caller.run(&id, Duration::ZERO).await {
            Ok(run) => {
                let done =
                    run.tasks.iter().filter(|t| t.status == "completed" && t.attempts.len() == 1).count();
                let whole = run.tasks.len() == args.tasks as usize || !run.tasks_cursor.is_empty();
                let output = &run.output[..] == INPUT;
                if run.status() != pb::RunStatus::Completed || done != run.tasks.len() || !whole || !output {
                    wrong.push(format!("{id} is {:?} with {done} tasks done at once", run.status()));
                }
            }
            Err(e) => wrong.push(format!("{id}: {e}")),
        }
        if wrong.len() > 10 {
            break;
        }
    }
    if wrong.is_empty() { "ok".to_owned() } else { wrong.join("; ") }
}

fn summary(args: &Args, seen: &[Seen], times: &[u64], submitted: &Submitted, audit: String) -> Summary {
    let per_second = |count: f64, us: u64| (us > 0).then(|| count * 1e6 / us as f64);
    let last = times.last().copied().unwrap_or(0);
    let during = times.iter().filter(|t| **t <= submitted.acknowledged).count();
    let after = times.len() - during;
    let rate_during = per_second(during as f64, submitted.acknowledged);
    let rate_after = per_second(after as f64, last.saturating_sub(submitted.acknowledged));
    let done = || seen.iter().filter(|s| s.completions > 0);
    let mut latency: Vec<u64> = done().map(|s| s.completed.saturating_sub(s.sent)).collect();
    let mut event: Vec<u64> = done().map(|s| s.event).collect();
    latency.sort_unstable();
    event.sort_unstable();
    Summary {
        scenario: "chain",
        runs: args.runs,
        tasks_per_run: args.tasks,
        tasks_per_second: per_second(times.len() as f64 * f64::from(args.tasks), last),
        runs_submitted_per_second: per_second(f64::from(args.runs), submitted.acknowledged),
        rate_during_submit_over_after: rate_during.zip(rate_after).map(|(during, after)| during / after),
        completion_r2: straightness(times),
        completion_event_p50_ms: percentile(&event, 0.5).map(ms),
        completion_event_p99_ms: percentile(&event, 0.99).map(ms),
        run_latency_p50_ms: percentile(&latency, 0.5).map(ms),
        run_latency_p99_ms: percentile(&latency, 0.99).map(ms),
        audit,
        ..Summary::default()
    }
}
