//! Worker streams: what a worker says becomes commands; what it is told comes from its outbox.
//!
//! A session outlives its stream: its record in the store keeps the lease, and a `Hello` with its id takes it
//! over on any server under the next epoch. A server acts for a session only under the epoch it holds.

use super::beats;
use super::error::{stopping, store_error, too_slow};
use super::inner::Inner;
use super::lane::envelope::{Ask, Envelope, Reply};
use super::{App, AppError, runs};
use crate::dispatch::dispatcher::{Heard, TYPES_MAX};
use crate::dispatch::message::{
    AckStatus, FromWorker, Hello, ResultAck, Subscription, TaskOutcome, TaskResult, ToWorker, Welcome,
};
use crate::dispatch::{AckWork, Outbox, SessionKey};
use crate::model::command::{AttemptKey, Command, Outcome, RejectedValue, ReportedFailure};
use crate::model::error::ErrorCode;
use crate::model::ids::{Partition, SessionId};
use crate::model::json;
use crate::model::labels::Labels;
use crate::model::payload::PAYLOAD_MAX;
use crate::model::run::TaskPhase;
use crate::model::time::{LeaseTime, Span};
use crate::model::token::TaskToken;
use crate::store::SessionRecord;
use bytes::Bytes;
use futures::FutureExt as _;
use std::sync::Arc;
use tokio::sync::mpsc;
use tokio::time::Instant;

/// Tokens that one `Hello` may bring.
const TOKENS_MAX: usize = 100_000;
/// How often a worker counts as heard while we do not read what it says.
const HEARD_WHILE_FULL: std::time::Duration = std::time::Duration::from_secs(1);
/// Records read at once in a review.
const REVIEW_MAX: usize = 256;
/// Characters of a worker's label that are kept.
const LABEL_MAX: usize = 128;

/// One worker stream: give it what the worker says, take from it what to tell the worker.
/// Dropping it means that the stream broke; the lease outlives it.
#[derive(Debug)]
pub struct WorkerStream {
    inner: Arc<Inner>,
    key: SessionKey,
    outbox: Arc<Outbox>,
}

impl Drop for WorkerStream {
    fn drop(&mut self) {
        self.inner.dispatcher.lock().detach(self.key);
    }
}

/// A label within bounds, control characters made visible.
pub(crate) fn label(text: &str) -> String {
    let clean: String =
        text.chars().take(LABEL_MAX).map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect();
    if clean.is_empty() { "worker".to_owned() } else { clean }
}

fn too_many_types() -> AppError {
    AppError::new(
        ErrorCode::TooLarge,
        format!("a worker serves at most {TYPES_MAX} task types on one stream"),
    )
}

fn attempt_of(token: TaskToken) -> (Partition, crate::model::ids::RunId, AttemptKey) {
    let attempt = AttemptKey { path: token.path, attempt: token.attempt, nonce: token.nonce };
    (token.partition, token.run, attempt)
}

/// A token of ours, or none: of no run of this store.
pub(crate) fn own_token(inner: &Inner, text: &str) -> Option<TaskToken> {
    TaskToken::decode(text).filter(|t| inner.partition_of(&t.run) == t.partition)
}

/// The command that a result becomes.
pub(crate) fn result_command(attempt: AttemptKey, outcome: TaskOutcome) -> Command {
    match outcome {
        TaskOutcome::Completed(output) => Command::Complete { attempt, output: check_output(output) },
        TaskOutcome::Failed(failure) => Command::Fail { attempt, failure: bounded(failure) },
        TaskOutcome::Released => Command::Release { attempt },
        TaskOutcome::Rejected(value) => Command::Complete { attempt, output: Err(value) },
    }
}

fn check_output(output: Bytes) -> Result<Bytes, RejectedValue> {
    if output.len() > PAYLOAD_MAX {
        let message = format!("output has {} bytes; at most {PAYLOAD_MAX} are taken", output.len());
        return Err(RejectedValue { code: "output_too_large", message });
    }
    if output.is_empty() {
        return Ok(Bytes::from_static(b"null"));
    }
    match json::check(&output) {
        Ok(()) => Ok(output),
        Err(m) => {
            Err(RejectedValue { code: "invalid_output", message: format!("output is not valid JSON: {m}") })
        }
    }
}

fn cut(text: &mut String, max: usize) {
    if text.len() > max {
        let mut end = max;
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        text.truncate(end);
    }
}

fn bounded(mut failure: ReportedFailure) -> ReportedFailure {
    cut(&mut failure.code, 128);
    cut(&mut failure.message, 4_096);
    if failure.code.is_empty() {
        "failed".clone_into(&mut failure.code);
    }
    failure
}

impl WorkerStream {
    /// What the worker said. Err ends the stream with that error.
    pub async fn receive(&self, message: FromWorker) -> Result<(), AppError> {
        self.inner.dispatcher.lock().heard(self.key, Instant::now());
        match message {
            FromWorker::Credit(subscription) => {
                let mut dispatcher = self.inner.dispatcher.lock();
                if !dispatcher.may_serve(self.key, &subscription.task_type) {
                    return Err(too_many_types());
                }
                if let Some(effective) = dispatcher.set_credit(self.key, &subscription) {
                    self.outbox.credit_ack(effective);
                }
                drop(dispatcher);
                self.inner.feed.notify_one();
            }
            FromWorker::Ack(tokens) => self.inner.dispatcher.lock().ack(self.key, &tokens),
            FromWorker::Results(results) => {
                for result in results {
                    self.result(result).await?;
                }
            }
            FromWorker::Heartbeat(beats) => {
                for (token, _progress) in beats {
                    if let Some(token) = own_token(&self.inner, &token) {
                        let (partition, run, attempt) = attempt_of(token);
                        let ask = Ask::Command(Command::Heartbeat { attempt, extend_claim: None });
                        self.send(Envelope { partition, run, ask, reply: Reply::None }).await?;
                    }
                }
            }
            FromWorker::Pong => {}
            FromWorker::Drain => self.inner.dispatcher.lock().drain(self.key),
        }
        Ok(())
    }

    async fn result(&self, result: TaskResult) -> Result<(), AppError> {
        let Some(token) = own_token(&self.inner, &result.token) else {
            let ack = ResultAck {
                token: result.token,
                status: AckStatus::Unknown,
                message: "this token is none that Downbeat gave out".to_owned(),
            };
            self.inner.dispatcher.lock().acknowledge(self.key, ack);
            return Ok(());
        };
        let (partition, run, attempt) = attempt_of(token);
        let ask = Ask::Command(result_command(attempt, result.outcome));
        let reply = Reply::Result { session: self.key, token: result.token };
        self.send(Envelope { partition, run, ask, reply }).await
    }

    /// Puts a letter in front of its lane. While that is full it is we who do not read: the worker counts as heard, so
    /// that it keeps its stream and its tasks until the store is back.
    async fn send(&self, envelope: Envelope) -> Result<(), AppError> {
        let mut sending = std::pin::pin!(self.inner.send(envelope));
        if let Some(sent) = sending.as_mut().now_or_never() {
            return sent;
        }
        loop {
            match tokio::time::timeout(HEARD_WHILE_FULL, sending.as_mut()).await {
                Ok(sent) => return sent,
                Err(_) => self.inner.dispatcher.lock().heard(self.key, Instant::now()),
            }
        }
    }

    /// The next thing to tell the worker; waits. `None`: the stream is over (session taken over, lease passed, or
    /// the server stops). Cancel safe.
    pub async fn next(&mut self) -> Option<ToWorker> {
        let was_full = self.outbox.is_full();
        let next = self.outbox.next().await;
        self.read_from(was_full);
        next
    }

    /// The next thing to tell the worker, if there is one now. `Some(None)`: over.
    pub fn try_next(&mut self) -> Option<Option<ToWorker>> {
        let was_full = self.outbox.is_full();
        let next = self.outbox.try_next();
        self.read_from(was_full);
        next
    }

    /// A worker that had too much to read may be given more.
    fn read_from(&self, was_full: bool) {
        if was_full && !self.outbox.is_full() {
            self.inner.feed.notify_one();
        }
    }
}

impl App {
    /// Opens a worker session, or resumes one. The first message of the stream is `Welcome`.
    pub async fn connect(&self, hello: Hello) -> Result<WorkerStream, AppError> {
        let inner = &self.inner;
        if inner.draining.is_cancelled() {
            return Err(stopping());
        }
        if hello.tokens.len() > TOKENS_MAX {
            return Err(AppError::new(
                ErrorCode::TooLarge,
                format!("at most {TOKENS_MAX} tokens in one Hello"),
            ));
        }
        if hello.subscriptions.len() > TYPES_MAX {
            return Err(too_many_types());
        }
        let opened = open_session(inner, &hello);
        let (id, epoch) = tokio::time::timeout(inner.options.call_timeout.to_std(), opened)
            .await
            .map_err(|_| too_slow())??;
        let label = label(&hello.label);
        // What an older stream here held and the worker does not name never reached it: back to the queues.
        let orphans = take_over(inner, &id, &hello.tokens);
        let (key, outbox) = inner.dispatcher.lock().open(
            Some((id.clone(), epoch)),
            label.into(),
            // Adopted work counts before anything is assigned: credit follows the tokens.
            &[],
            None,
            Instant::now(),
        );
        let stream = WorkerStream { inner: Arc::clone(inner), key, outbox };
        let valid = adopt(inner, key, &id, epoch, &hello.tokens).await?;
        let mut effective = Vec::new();
        {
            let mut dispatcher = inner.dispatcher.lock();
            for s in &hello.subscriptions {
                effective.extend(dispatcher.set_credit(key, s));
            }
        }
        stream.outbox.welcome(Welcome {
            session: id,
            lease: inner.options.lease,
            ack_within: inner.options.ack_within,
            ping_every: inner.options.ping_every,
            subscriptions: effective,
            valid,
        });
        for token in orphans {
            undelivered(inner, &token).await;
        }
        inner.feed.notify_one();
        Ok(stream)
    }
}

/// Tokens of an older stream of this session on this server that the worker does not name.
fn take_over(inner: &Inner, id: &SessionId, tokens: &[String]) -> Vec<String> {
    let mut dispatcher = inner.dispatcher.lock();
    let Some(old) = dispatcher.key_of(id) else { return Vec::new() };
    let named: std::collections::HashSet<&str> = tokens.iter().map(String::as_str).collect();
    let held = dispatcher.tokens(old);
    dispatcher.close(old);
    held.into_iter().filter(|t| !named.contains(t.as_str())).collect()
}

/// Returns an assignment that never reached its worker.
pub(crate) async fn undelivered(inner: &Inner, token: &str) {
    if let Some(token) = own_token(inner, token) {
        let (partition, run, attempt) = attempt_of(token);
        let ask = Ask::Command(Command::Undelivered { attempt });
        drop(inner.send(Envelope { partition, run, ask, reply: Reply::None }).await);
    }
}

/// Keeps an acknowledgement.
pub(crate) async fn keep_ack(inner: &Inner, token: &str) {
    if let Some(token) = own_token(inner, token) {
        let (partition, run, attempt) = attempt_of(token);
        let ask = Ask::Command(Command::Acked { attempt });
        drop(inner.send(Envelope { partition, run, ask, reply: Reply::None }).await);
    }
}

/// The session's id and epoch after taking it over, or those of a new one.
async fn open_session(inner: &Inner, hello: &Hello) -> Result<(SessionId, u32), AppError> {
    let record = |epoch| SessionRecord {
        epoch,
        label: label(&hello.label),
        owner: inner.boot,
        deadline: LeaseTime::default(),
        lease_now: LeaseTime::default(),
    };
    if let Some(id) =
        hello.resume.as_ref().filter(|id| id.partition().is_some_and(|p| p.0 < inner.layout.partitions))
    {
        // A few tries: another stream of the same worker may race us, and the last one is to win.
        for _ in 0..8 {
            let found = inner.store.sessions(std::slice::from_ref(id)).await.map_err(store_error)?;
            let Some(Some(there)) = found.into_iter().next() else { break };
            if there.deadline <= there.lease_now {
                break;
            }
            let epoch = there.epoch + 1;
            let lease = inner.options.lease;
            if inner
                .store
                .put_session(id, &record(epoch), Some(there.epoch), lease)
                .await
                .map_err(store_error)?
            {
                return Ok((id.clone(), epoch));
            }
        }
    }
    let random = inner.options.entropy.next();
    let home = Partition((random >> 64) as u16 % inner.layout.partitions.max(1));
    let id = SessionId::generate(home, inner.options.entropy.next());
    let made =
        inner.store.put_session(&id, &record(1), None, inner.options.lease).await.map_err(store_error)?;
    if !made {
        return Err(AppError::new(ErrorCode::Internal, "a fresh session id was taken"));
    }
    Ok((id, 1))
}

/// Moves the attempts that a resumed worker still holds under its new epoch. Returns those that are its own.
async fn adopt(
    inner: &Arc<Inner>,
    key: SessionKey,
    id: &SessionId,
    epoch: u32,
    tokens: &[String],
) -> Result<Vec<String>, AppError> {
    let asks = tokens.iter().filter_map(|text| Some((text, own_token(inner, text)?))).map(
        |(text, token)| async move {
            let (_, run, attempt) = attempt_of(token);
            let path = attempt.path.clone();
            let command = Command::Adopt { attempt, session: id.clone(), epoch };
            let answer = runs::ask(inner, &run, command).await?;
            let held = matches!(answer.outcome, Ok(Outcome::Accepted | Outcome::Held));
            let task_type = match (&answer.state, held) {
                (Some(state), true) => {
                    let plan = inner.plans.of(state).await?;
                    state.find(&plan, &path).and_then(|i| state.type_of(&plan, i).cloned())
                }
                _ => None,
            };
            Ok::<_, AppError>(task_type.map(|t| (text.clone(), t)))
        },
    );
    let mut valid = Vec::new();
    for found in futures::future::join_all(asks).await {
        if let Some((token, task_type)) = found? {
            inner.dispatcher.lock().adopt(key, token.clone(), task_type, Instant::now());
            valid.push(token);
        }
    }
    Ok(valid)
}

/// A look that comes so much later than it should means that the process was stopped, or starved.
const STALL: std::time::Duration = std::time::Duration::from_secs(1);

/// Pings, renews and ends sessions, and looks after acknowledgements, until the server stops.
pub(crate) async fn run_keeper(inner: Arc<Inner>) {
    let stopping = inner.stopping.clone();
    let ping_every = inner.options.ping_every.to_std();
    // Often enough for the shorter of both.
    let every = (inner.options.ack_within.to_std() / 8).min(ping_every / 6);
    let pulse = Pulse {
        every: every.max(std::time::Duration::from_millis(10)),
        last: parking_lot::Mutex::new(Instant::now()),
    };
    // Bounded by what workers hold.
    let (found, acks) = mpsc::unbounded_channel();
    let keep = async {
        tokio::join!(rounds(&inner, &pulse, found), settle_acks(&inner, acks), renewals(&inner, &pulse))
    };
    let _stopped = stopping.run_until_cancelled(keep).await;
}

/// Notices when this server stood still: what workers said meanwhile has to be read before they are judged.
struct Pulse {
    every: std::time::Duration,
    last: parking_lot::Mutex<Instant>,
}

impl Pulse {
    /// To be called before workers are judged by the time.
    fn look(&self, inner: &Inner, now: Instant) {
        let last = std::mem::replace(&mut *self.last.lock(), now);
        let late = now.duration_since(last).saturating_sub(self.every);
        if late > STALL {
            tracing::warn!(
                ms = late.as_millis(),
                "this server stood still; its workers are not blamed for it"
            );
            inner.dispatcher.lock().stood_still(now, late);
        }
    }
}

/// Pings, and looks for acknowledgements. Waits for nothing: workers are pinged whether or not the store answers.
async fn rounds(inner: &Inner, pulse: &Pulse, found: mpsc::UnboundedSender<AckWork>) {
    let ping_every = inner.options.ping_every.to_std();
    let mut beat = tokio::time::interval(pulse.every);
    beat.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        beat.tick().await;
        let now = Instant::now();
        pulse.look(inner, now);
        let work = {
            let mut dispatcher = inner.dispatcher.lock();
            dispatcher.ping(now, ping_every);
            dispatcher.check_acks(now, inner.options.ack_within)
        };
        if work != AckWork::default() {
            // Its receiver ends with us.
            let _ = found.send(work);
        }
    }
}

/// Hands what was found to the lanes, which may be full.
async fn settle_acks(inner: &Inner, mut found: mpsc::UnboundedReceiver<AckWork>) {
    while let Some(work) = found.recv().await {
        for token in &work.keep {
            keep_ack(inner, token).await;
        }
        for token in &work.lost {
            let of = TaskToken::decode(token).map(|t| format!("{t:?}")).unwrap_or_default();
            tracing::info!(of, "an assignment was not acknowledged and goes back to its queue");
            undelivered(inner, token).await;
        }
    }
}

/// Renews sessions, and reviews what workers have held for long. Renewals must not wait for acknowledgements.
async fn renewals(inner: &Inner, pulse: &Pulse) {
    let ping_every = inner.options.ping_every.to_std();
    let mut beat = tokio::time::interval((ping_every / 6).max(std::time::Duration::from_millis(10)));
    beat.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut reviewed = Instant::now();
    let mut renewed = Instant::now();
    // Until then somebody may ask whether we live.
    let mut beats_until = renewed;
    loop {
        beat.tick().await;
        let now = Instant::now();
        if now.duration_since(renewed) >= ping_every / 3 {
            renewed = now;
            pulse.look(inner, now);
            if inner.dispatcher.lock().has_sessions() {
                beats_until = now + beats::long_after(inner.options.lease);
            }
            renew(inner, now, now < beats_until).await;
        }
        if now.duration_since(reviewed) >= ping_every {
            reviewed = now;
            review(inner, now).await;
        }
    }
}

/// Looks whether what workers here have held for long is still theirs: another server may have cancelled the
/// run or fenced the attempt, and only the one that did so told its own workers. And whether the store knows what the
/// ack window has found: it was told once, and may have lost that, or have had nothing to apply it to just then.
async fn review(inner: &Inner, now: Instant) {
    let flights = inner.dispatcher.lock().long_flights(now, inner.options.ack_within);
    for some in flights.chunks(REVIEW_MAX) {
        let tokens: Vec<_> =
            some.iter().filter_map(|flight| Some((flight, own_token(inner, &flight.token)?))).collect();
        let keys: Vec<_> = tokens.iter().map(|(_, t)| (t.partition, t.run.clone())).collect();
        let states = match super::records::load(&*inner.store, &keys).await {
            Ok(states) => states,
            Err(error) => {
                tracing::warn!(%error, "attempts in flight could not be reviewed; trying again");
                return;
            }
        };
        for ((flight, token), state) in tokens.into_iter().zip(states) {
            let kept = state.iter().flat_map(|state| &state.tasks).find_map(|t| {
                let TaskPhase::Running { lease, .. } = &t.phase else { return None };
                (lease.nonce == token.nonce).then_some(lease.acked)
            });
            match (kept, flight.acked) {
                (None, _) => inner.dispatcher.lock().withdraw(flight.session, &flight.token),
                (Some(false), Some(true)) => keep_ack(inner, &flight.token).await,
                (Some(false), Some(false)) => undelivered(inner, &flight.token).await,
                (Some(true), _) | (Some(false), None) => {}
            }
        }
    }
}

/// Renews every session that was heard since it was last renewed, so that a silent one lives for its lease and no
/// longer; closes those that are not ours any more. With `beats`, this server says that it is there.
async fn renew(inner: &Inner, now: Instant, beats: bool) {
    let patience = inner.options.lease.to_std() + Span::secs(2).to_std();
    let silent_since = now.checked_sub(patience).unwrap_or(now);
    let (heard, mut gone) = inner.dispatcher.lock().heard_and_silent(silent_since);
    let own = beats.then(|| beats::own(inner));
    let asked: Vec<_> = heard.iter().map(|s| (s.id.clone(), s.epoch)).chain(own).collect();
    if !asked.is_empty() {
        renew_all(inner, &heard, &asked, &mut gone).await;
    }
    let mut dispatcher = inner.dispatcher.lock();
    for key in gone {
        dispatcher.close(key);
    }
}

/// Renews what is asked for, first the sessions that were heard; those that are not ours any more are `gone`.
async fn renew_all(inner: &Inner, heard: &[Heard], asked: &[(SessionId, u32)], gone: &mut Vec<SessionKey>) {
    match inner.store.renew_sessions(asked, inner.options.lease).await {
        Ok(kept) => {
            {
                let mut dispatcher = inner.dispatcher.lock();
                for (session, kept) in heard.iter().zip(&kept) {
                    if *kept {
                        dispatcher.renewed(session.key, session.at);
                    } else {
                        gone.push(session.key);
                    }
                }
            }
            if kept.get(heard.len()) == Some(&false)
                && let Err(error) = beats::begin(inner).await
            {
                tracing::warn!(%error, "this server could not say that it is there; trying again");
            }
        }
        Err(error) => tracing::warn!(%error, "worker sessions were not renewed; trying again"),
    }
}

/// The subscription of a claim over HTTP.
pub(crate) fn claim_subscriptions(
    types: &[crate::model::ids::TaskType],
    labels: &Labels,
    max: u32,
) -> Vec<Subscription> {
    let one = |t: &crate::model::ids::TaskType| Subscription {
        task_type: t.clone(),
        credit: max,
        labels: labels.clone(),
    };
    types.iter().map(one).collect()
}
