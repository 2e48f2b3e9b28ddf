//! Carries messages from the record that has something to say to the one it is for, and the answer back. Whatever is
//! lost here stands in the sender's outbox still, and comes again with its next wake-up.
//!
//! ```text
//! lane: commit → post ──→ courier: read what goes along → command to the target's lane → its answer → Settled ──→ lane
//! ```
//!
//! Invariants
//! - Only what was committed is carried.
//! - Nothing here is the truth: a message may be carried twice, by two servers, late or never.
//! - At most so many wait here and are under way; what is too much is left to the next wake-up.
//!
//! To add a parcel: its command in [`command_for`], and what its refusals mean in [`Answer::to`].

use super::AppError;
use super::error::store_error;
use super::inner::Inner;
use super::lane::envelope::{Ask, Envelope, Reply};
use super::records;
use super::render;
use super::runs;
use crate::model::command::{ChildEnd, Command, HomeCommand, Start};
use crate::model::error::ErrorCode;
use crate::model::ids::RunId;
use crate::model::json;
use crate::model::outbox::{Answer, Delivery, EndedRun, Origin, Parcel, StartFor};
use crate::model::run::RunStatus;
use crate::model::schedule::ScheduleCommand;
use crate::model::time::Span;
use futures::stream::{FuturesUnordered, StreamExt};
use parking_lot::Mutex;
use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use tokio::sync::Notify;

/// Messages that wait here at most.
const WAITING_MAX: usize = 100_000;
/// Messages carried at once.
const AT_ONCE: usize = 256;
/// A start that is not decided within this is refused, so that one that was held up cannot begin what has come and gone.
const START_WITHIN: Span = Span::secs(10);
/// A start whose sender has ended is dropped so long after that: none that was looked at before is taken any more.
const DROPPED_AFTER: Span = Span::secs(12);

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Courier {
    bag: Mutex<Bag>,
    posted: Notify,
}

#[derive(Debug, Default)]
struct Bag {
    /// Starts: there may be very many, and everything else goes first. So a cancel overtakes what it is about to stop.
    starts: VecDeque<(RunId, Delivery)>,
    /// All else.
    orders: VecDeque<(RunId, Delivery)>,
    /// Waiting or under way.
    known: HashSet<(RunId, u32)>,
}

impl Courier {
    /// Takes messages that `from` has committed. Never waits.
    pub(crate) fn post(&self, from: &RunId, deliveries: Vec<Delivery>) {
        if deliveries.is_empty() {
            return;
        }
        let mut bag = self.bag.lock();
        for delivery in deliveries {
            if bag.known.len() >= WAITING_MAX {
                break;
            }
            if bag.known.insert((from.clone(), delivery.sequence)) {
                let starts = matches!(delivery.parcel, Parcel::Start(_));
                let line = if starts { &mut bag.starts } else { &mut bag.orders };
                line.push_back((from.clone(), delivery));
            }
        }
        drop(bag);
        self.posted.notify_one();
    }

    fn next(&self) -> Option<(RunId, Delivery)> {
        let mut bag = self.bag.lock();
        bag.orders.pop_front().or_else(|| bag.starts.pop_front())
    }

    fn carried(&self, key: &(RunId, u32)) {
        self.bag.lock().known.remove(key);
    }
}

/// Carries until the server stops.
pub(crate) async fn run(inner: Arc<Inner>) {
    let stopping = inner.stopping.clone();
    let carry_all = async {
        let mut under_way = FuturesUnordered::new();
        loop {
            while under_way.len() < AT_ONCE
                && let Some((from, delivery)) = inner.courier.next()
            {
                under_way.push(carry(Arc::clone(&inner), from, delivery));
            }
            tokio::select! {
                Some(key) = under_way.next(), if !under_way.is_empty() => inner.courier.carried(&key),
                () = inner.courier.posted.notified() => {}
            }
        }
    };
    let _stopped = stopping.run_until_cancelled(carry_all).await;
}

/// Carries one message. What fails for now is left to the sender's next wake-up.
async fn carry(inner: Arc<Inner>, from: RunId, delivery: Delivery) -> (RunId, u32) {
    let Delivery { sequence, to, parcel } = delivery;
    match deliver(&inner, &from, &to, parcel).await {
        Ok(Some(answer)) => {
            let envelope = Envelope {
                partition: inner.partition_of(&from),
                run: from.clone(),
                ask: Ask::Command(Command::Settled { sequence, answer }),
                reply: Reply::None,
            };
            drop(inner.send(envelope).await);
        }
        Ok(None) => {}
        Err(error) => {
            tracing::debug!(%from, %to, sequence, %error, "a message was not taken; it comes again");
        }
    }
    (from, sequence)
}

/// None: it has to come again.
async fn deliver(
    inner: &Inner,
    from: &RunId,
    to: &RunId,
    parcel: Parcel,
) -> Result<Option<Answer>, AppError> {
    if parcel == Parcel::IsOpen {
        let open = runs::read(inner, to).await?.is_some_and(|run| !run.status.is_terminal());
        return Ok(Some(if open { Answer::Done } else { Answer::Gone }));
    }
    if let Parcel::Start(start) = &parcel
        && let Some(since) = ended_since(inner, &start.origin).await?
    {
        // Nobody waits for it any more, and what it would start in turn would have to be stopped as well.
        return Ok((since >= DROPPED_AFTER).then_some(Answer::Done));
    }
    let command = match command_for(inner, from, to, parcel).await {
        Ok(command) => command,
        Err(error) => return refused_for_good(error).map(Some),
    };
    let answer = runs::ask(inner, to, command).await?;
    Ok(Answer::to(&answer.outcome))
}

/// How long ago the run that waits for a start has ended, if it has.
async fn ended_since(inner: &Inner, origin: &Origin) -> Result<Option<Span>, AppError> {
    let Origin::Parent(parent) = origin else { return Ok(None) };
    if parent.detached {
        return Ok(None);
    }
    let key = [(inner.partition_of(&parent.run), parent.run.clone())];
    let Some(record) = inner.store.load(&key).await.map_err(store_error)?.pop().flatten() else {
        return Ok(None);
    };
    let (_, head) = records::head(&record).map_err(store_error)?;
    let ended = head.state.ended_at.filter(|_| head.state.status.is_terminal());
    Ok(ended.map(|at| inner.clock.now().since(at)))
}

/// What is wrong with a start and will stay so; anything else is worth another try.
fn refused_for_good(error: AppError) -> Result<Answer, AppError> {
    match error.code {
        ErrorCode::WorkflowNotFound | ErrorCode::InvalidInput => {
            let told = error.faults.iter().take(5).map(|fault| match &*fault.path {
                "" => fault.message.clone(),
                path => format!("{path}: {}", fault.message),
            });
            let message = std::iter::once(error.message).chain(told).collect::<Vec<_>>().join("; ");
            Ok(Answer::Refused { code: error.code.as_str().to_owned(), message })
        }
        _ => Err(error),
    }
}

async fn command_for(inner: &Inner, from: &RunId, to: &RunId, parcel: Parcel) -> Result<Command, AppError> {
    match parcel {
        Parcel::Command(command) => Ok(command),
        Parcel::Start(start) => start_of(inner, from, to, *start).await,
        Parcel::Ended(ended) => ended_of(inner, from, *ended).await,
        // Answered before it comes to a command.
        Parcel::IsOpen => Err(AppError::new(ErrorCode::Internal, "a question is no command")),
    }
}

async fn start_of(inner: &Inner, from: &RunId, to: &RunId, start: StartFor) -> Result<Command, AppError> {
    let StartFor { workflow, version, input, tags, priority, retention, origin } = start;
    let version = match version {
        Some(version) => version,
        None => inner.plans.newest(&workflow).await?,
    };
    let plan = inner.plans.get(&workflow, version).await?;
    let Some(input) = render::text_if_there(inner, from, &input).await? else {
        return Err(AppError::new(ErrorCode::RunNotFound, "the input is gone, with the one who sent it"));
    };
    runs::check_input(&plan, &workflow, &input)?;
    let digest = json::digest(&[b"for", from.as_str().as_bytes(), to.as_str().as_bytes()]);
    Ok(Command::Start(Start {
        id: to.clone(),
        workflow,
        version,
        digest,
        input: (&input[..] != b"null").then_some(input),
        tags,
        priority,
        retention,
        start_at: None,
        origin: Some(origin),
        not_after: Some(inner.clock.now().plus(START_WITHIN)),
    }))
}

async fn ended_of(inner: &Inner, from: &RunId, ended: EndedRun) -> Result<Command, AppError> {
    let EndedRun { origin, status, output, error } = ended;
    match origin {
        Origin::Parent(parent) => {
            let end = if status == RunStatus::Completed {
                ChildEnd::Completed(render::text(inner, from, &output).await?)
            } else {
                let (code, message) = error
                    .unwrap_or_else(|| (status.name().to_owned(), format!("the run was {}", status.name())));
                ChildEnd::Failed { status, code, message }
            };
            Ok(Command::ChildEnded { task: parent.task, child: from.clone(), ticket: parent.ticket, end })
        }
        // How it ended is of no interest to a schedule.
        Origin::Schedule { .. } => {
            Ok(Command::Home(HomeCommand::Schedule(ScheduleCommand::Ended { run: from.clone() })))
        }
    }
}
