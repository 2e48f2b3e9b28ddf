//! The state of a worker that outlives its streams: what runs, what waits for a slot, what is done and not yet
//! acknowledged. One task owns it; see [`Session::run`].
//!
//! ```text
//! Assign ──▶ waiting ──▶ running ──▶ unacked ──▶ (ResultAcks) gone
//!               │ drain, reconnect        ▲
//!               └─────────────────────────┘ released
//! ```
//! A handler that is ready at its first poll goes from `Assign` to `unacked` at once.

use super::link::{self, DialError, Heard, Link};
use super::{Beats, Control, Handler, Task, TaskError, WorkerError};
use crate::proto::v1 as pb;
use crate::proto::v1::result::Outcome;
use crate::proto::v1::server_message::Message as FromServer;
use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use indexmap::IndexMap;
use std::collections::{BTreeMap, VecDeque};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tonic::transport::Endpoint;

/// A first poll that takes longer than this would hold up the session.
const QUICK: Duration = Duration::from_micros(200);
/// So many attempts in a row must have been quick and ready at their first poll before a type is trusted.
const TRUST: u32 = 16;
/// First and longest wait between two dials.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));
/// A link that held this long resets the backoff.
const HEALTHY_AFTER: Duration = Duration::from_secs(10);
/// How long the last results may take to be acknowledged at a shutdown.
const SETTLE_WITHIN: Duration = Duration::from_secs(2);
/// Heartbeats go out at most this often.
const BEAT_EVERY: Duration = Duration::from_millis(200);
/// Messages taken from the link before results are sent.
const MESSAGES_PER_TURN: usize = 64;

/// One task type of a worker.
pub(super) struct Slot {
    pub(super) task_type: String,
    pub(super) concurrency: u32,
    handler: Handler,
    /// Attempts in a row that were quick and ready at their first poll. From [`TRUST`] on they need no task of
    /// their own; one that is not brings the type back to a task each.
    quick: u32,
    active: u32,
    /// Assigned beyond the concurrency, or while there is no link.
    waiting: VecDeque<pb::Assignment>,
    /// The server said that nothing more will come on this link.
    dry: bool,
}

impl Slot {
    pub(super) fn new(task_type: String, concurrency: u32, handler: Handler) -> Self {
        Self { task_type, concurrency, handler, quick: 0, active: 0, waiting: VecDeque::new(), dry: false }
    }
}

/// What a session is built from.
pub(super) struct Settings {
    pub(super) endpoint: Endpoint,
    pub(super) url: String,
    pub(super) label: String,
    pub(super) labels: BTreeMap<String, String>,
    pub(super) slots: Vec<Slot>,
    pub(super) connect_within: Option<Duration>,
    pub(super) cancel_grace: Duration,
    pub(super) stopped: watch::Receiver<Option<Instant>>,
    pub(super) state: watch::Sender<Option<String>>,
}

/// A handler that was not ready at once.
struct Running {
    slot: usize,
    control: Arc<Control>,
    /// The server no longer counts it: its result is not sent.
    fenced: bool,
}

/// How far a shutdown has come, and when the next step is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Serving,
    /// Handlers may finish.
    Draining(Instant),
    /// Handlers were told to stop.
    Cancelling(Instant),
    /// Only acknowledgements are missing.
    Settling(Instant),
}

/// A handler's end, or its panic.
type Done = std::thread::Result<Result<Bytes, TaskError>>;
/// Token, whether it was quick, and the end.
type Finished = (String, bool, Done);
type Dial = BoxFuture<'static, Result<(Link, pb::Welcome), DialError>>;

/// See the module.
pub(super) struct Session {
    settings: Settings,
    id: String,
    link: Option<Link>,
    linked_at: Instant,
    dial: Option<Dial>,
    failures: u32,
    phase: Phase,
    running: IndexMap<String, Running>,
    tasks: JoinSet<Finished>,
    unacked: IndexMap<String, Outcome>,
    /// Done in this turn, not yet in the outbox.
    done: Vec<pb::Result>,
    beats: Arc<Beats>,
    beats_sent: Instant,
    beats_due: Option<Instant>,
}

/// What a turn of the loop begins with.
enum Turn {
    Stop,
    Heard,
    Finished(Finished),
    Dialled(Result<(Link, pb::Welcome), DialError>),
    Beats,
    Timer,
}

impl Session {
    pub(super) fn new(settings: Settings) -> Self {
        let now = Instant::now();
        Self {
            settings,
            id: String::new(),
            link: None,
            linked_at: now,
            dial: None,
            failures: 0,
            phase: Phase::Serving,
            running: IndexMap::new(),
            tasks: JoinSet::new(),
            unacked: IndexMap::new(),
            done: Vec::new(),
            beats: Arc::new(Beats::default()),
            beats_sent: now,
            beats_due: None,
        }
    }

    /// Works until a shutdown is through or the server refuses us.
    pub(super) async fn run(mut self) -> Result<(), WorkerError> {
        let give_up = self.settings.connect_within.map(|limit| Instant::now() + limit);
        let mut heard = Vec::new();
        self.redial();
        loop {
            let turn = self.turn(&mut heard).await;
            match turn {
                Turn::Stop => self.stop(),
                Turn::Heard => self.hear(&mut heard),
                Turn::Finished(finished) => self.finished(finished),
                Turn::Dialled(Ok((link, welcome))) => self.linked(link, welcome),
                Turn::Dialled(Err(DialError::Refused(why))) => return Err(WorkerError::Refused(why)),
                Turn::Dialled(Err(DialError::Temporary(why))) => {
                    if self.id.is_empty() && give_up.is_some_and(|at| Instant::now() >= at) {
                        return Err(WorkerError::Unreachable { url: self.settings.url.clone(), reason: why });
                    }
                    tracing::debug!(url = self.settings.url, why, "no session yet");
                    self.failures += 1;
                    self.redial();
                }
                Turn::Beats => self.beat(),
                Turn::Timer => {}
            }
            while let Some(Ok(finished)) = self.tasks.try_join_next() {
                self.finished(finished);
            }
            self.flush();
            self.leave();
            if self.advance() {
                return Ok(());
            }
        }
    }

    async fn turn(&mut self, heard: &mut Vec<Heard>) -> Turn {
        let timer = [self.phase.due(), self.beats_due].into_iter().flatten().min();
        tokio::select! {
            biased;
            Ok(()) = self.settings.stopped.changed() => Turn::Stop,
            _ = async {
                match &mut self.link {
                    Some(link) => link.heard.recv_many(heard, MESSAGES_PER_TURN).await,
                    None => std::future::pending().await,
                }
            } => Turn::Heard,
            // The futures catch panics and are aborted only when the session is dropped.
            Some(Ok(finished)) = self.tasks.join_next() => Turn::Finished(finished),
            dialled = async {
                match &mut self.dial {
                    Some(dial) => dial.await,
                    None => std::future::pending().await,
                }
            } => {
                self.dial = None;
                Turn::Dialled(dialled)
            }
            () = self.beats.changed.notified() => Turn::Beats,
            () = async {
                match timer {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            } => Turn::Timer,
        }
    }

    // ---- links

    /// Dials, after a jittered delay that grows with the failures in a row.
    fn redial(&mut self) {
        let delay = backoff(self.failures, getrandom::u32().unwrap_or(u32::MAX / 2));
        let endpoint = self.settings.endpoint.clone();
        let serving = self.phase == Phase::Serving;
        let hello = pb::Hello {
            label: self.settings.label.clone(),
            subscriptions: self
                .settings
                .slots
                .iter()
                .map(|s| pb::Subscription {
                    r#type: s.task_type.clone(),
                    credit: if serving { i32::try_from(s.concurrency).unwrap_or(i32::MAX) } else { 0 },
                    labels: self.settings.labels.clone(),
                })
                .collect(),
            previous_session: self.id.clone(),
            tokens: self
                .running
                .iter()
                .filter(|(_, r)| !r.fenced)
                .map(|(token, _)| token)
                .chain(self.unacked.keys())
                .chain(self.settings.slots.iter().flat_map(|s| s.waiting.iter().map(|a| &a.token)))
                .cloned()
                .collect(),
        };
        self.dial = Some(Box::pin(async move {
            tokio::time::sleep(delay).await;
            link::dial(endpoint, hello).await
        }));
    }

    /// A new stream is open: keep what the server still counts as ours, say again what it may have missed.
    fn linked(&mut self, link: Link, welcome: pb::Welcome) {
        tracing::info!(session = welcome.session, resumed = self.id == welcome.session, "connected");
        self.id = welcome.session;
        self.linked_at = Instant::now();
        let valid: std::collections::BTreeSet<String> = welcome.valid_tokens.into_iter().collect();
        for (token, running) in &mut self.running {
            if !running.fenced && !valid.contains(token) {
                running.fenced = true;
                running.control.cancel();
            }
        }
        for slot in &mut self.settings.slots {
            slot.waiting.retain(|a| valid.contains(&a.token));
        }
        link.outbox.ack(valid.into_iter().filter(|t| !self.unacked.contains_key(t)));
        // What was done in this turn is in `unacked` as well.
        self.done =
            self.unacked.iter().map(|(token, outcome)| result(token.clone(), outcome.clone())).collect();
        self.link = Some(link);
        if self.phase != Phase::Serving {
            self.drain();
        }
        for slot in 0..self.settings.slots.len() {
            self.pump(slot);
        }
        self.settings.state.send_replace(Some(self.id.clone()));
    }

    fn hear(&mut self, heard: &mut Vec<Heard>) {
        let mut closed = None;
        for message in heard.drain(..) {
            match message {
                Heard::Message(message) => self.message(message),
                Heard::Closed(why) => closed = Some(why),
            }
        }
        if let Some(why) = closed {
            tracing::info!(why, "the stream ended; connecting again");
            self.failures = if self.linked_at.elapsed() > HEALTHY_AFTER { 0 } else { self.failures + 1 };
            self.link = None;
            self.settings.state.send_replace(None);
            if self.dial.is_none() {
                self.redial();
            }
        }
    }

    fn message(&mut self, message: FromServer) {
        match message {
            FromServer::Assign(assign) => {
                for assignment in assign.assignments {
                    self.assigned(assignment);
                }
                self.flush();
            }
            FromServer::ResultAcks(acks) => {
                for ack in acks.acks {
                    if ack.status() != pb::result_ack::Status::Accepted {
                        tracing::debug!(status = ?ack.status(), message = ack.message, "a result did not count");
                    }
                    self.unacked.swap_remove(&ack.token);
                }
            }
            FromServer::Cancel(tokens) => {
                for token in tokens.tokens {
                    self.cancelled(&token);
                }
            }
            FromServer::GoAway(go) => {
                tracing::info!(deadline_ms = go.deadline_ms, "the server is going away; connecting again");
                if let Some(link) = &mut self.link {
                    link.going_away = true;
                }
                if self.dial.is_none() {
                    self.failures += 1;
                    self.redial();
                }
            }
            FromServer::CreditAck(ack) => {
                if let Some(slot) = self.settings.slots.iter_mut().find(|s| s.task_type == ack.r#type) {
                    slot.dry = ack.credit == 0;
                }
            }
            FromServer::Ping(_) | FromServer::Welcome(_) => {}
        }
    }

    // ---- tasks

    fn assigned(&mut self, assignment: pb::Assignment) {
        let Some(index) = self.settings.slots.iter().position(|s| s.task_type == assignment.r#type) else {
            return self.settle(assignment.token, Outcome::Released(pb::Released {}));
        };
        if self.phase != Phase::Serving {
            return self.settle(assignment.token, Outcome::Released(pb::Released {}));
        }
        if self.running.contains_key(&assignment.token) {
            return;
        }
        if let Some(outcome) = self.unacked.get(&assignment.token) {
            return self.done.push(result(assignment.token, outcome.clone()));
        }
        let slot = &mut self.settings.slots[index];
        if slot.active >= slot.concurrency || !slot.waiting.is_empty() {
            return slot.waiting.push_back(assignment);
        }
        self.start(index, assignment);
    }

    /// Starts what waits, as far as the concurrency goes and while there is a link.
    fn pump(&mut self, index: usize) {
        while self.link.is_some() {
            let slot = &mut self.settings.slots[index];
            if slot.active >= slot.concurrency {
                return;
            }
            let Some(assignment) = slot.waiting.pop_front() else { return };
            self.start(index, assignment);
        }
    }

    fn start(&mut self, index: usize, assignment: pb::Assignment) {
        let slot = &mut self.settings.slots[index];
        let control = Arc::new(Control { token: assignment.token, ..Control::default() });
        let task = Task {
            run: assignment.run,
            path: assignment.task,
            task_type: assignment.r#type,
            attempt: assignment.attempt,
            input: assignment.input,
            deadline_us: assignment.deadline_us,
            trace: assignment.trace,
            control: Arc::clone(&control),
            beats: Arc::clone(&self.beats),
        };
        let handler = Arc::clone(&slot.handler);
        let token = if slot.quick >= TRUST {
            match first_poll(&handler, task) {
                (Ok(done), quick) => {
                    slot.quick = if quick { TRUST } else { 0 };
                    let token = Arc::try_unwrap(control).map_or_else(|c| c.token.clone(), |c| c.token);
                    return self.settle(token, outcome(done));
                }
                (Err(future), _) => {
                    slot.quick = 0;
                    let token = control.token.clone();
                    self.tasks
                        .spawn(async move { (token, false, AssertUnwindSafe(future).catch_unwind().await) });
                    control.token.clone()
                }
            }
        } else {
            let token = control.token.clone();
            self.tasks.spawn(async move {
                match first_poll(&handler, task) {
                    (Ok(done), quick) => (token, quick, done),
                    (Err(future), _) => (token, false, AssertUnwindSafe(future).catch_unwind().await),
                }
            });
            control.token.clone()
        };
        slot.active += 1;
        self.running.insert(token, Running { slot: index, control, fenced: false });
    }

    fn finished(&mut self, (token, quick, done): Finished) {
        let Some(running) = self.running.swap_remove(&token) else { return };
        let slot = &mut self.settings.slots[running.slot];
        slot.active -= 1;
        slot.quick = if quick { TRUST.min(slot.quick + 1) } else { 0 };
        if !running.fenced {
            let gave_up = running.control.cancelled.load(std::sync::atomic::Ordering::Acquire);
            match outcome(done) {
                // Told to stop and did: that is no failure of the task.
                Outcome::Failed(_) if gave_up => self.settle(token, Outcome::Released(pb::Released {})),
                outcome => self.settle(token, outcome),
            }
        }
        self.pump(running.slot);
    }

    fn cancelled(&mut self, token: &str) {
        if let Some(running) = self.running.get(token) {
            running.control.cancel();
            return;
        }
        for slot in &mut self.settings.slots {
            if let Some(at) = slot.waiting.iter().position(|a| a.token == token) {
                slot.waiting.remove(at);
                return self.settle(token.to_owned(), Outcome::Released(pb::Released {}));
            }
        }
    }

    fn settle(&mut self, token: String, outcome: Outcome) {
        self.unacked.insert(token.clone(), outcome.clone());
        self.done.push(result(token, outcome));
    }

    /// Hands what is done to the link; without one it waits in `unacked` for the next.
    fn flush(&mut self) {
        match &self.link {
            Some(link) if !self.done.is_empty() => link.outbox.results(&mut self.done),
            Some(_) => {}
            None => self.done.clear(),
        }
    }

    fn beat(&mut self) {
        let now = Instant::now();
        let due = self.beats_sent + BEAT_EVERY;
        if now < due {
            self.beats_due = Some(due);
            return;
        }
        self.beats_due = None;
        self.beats_sent = now;
        let fresh = std::mem::take(&mut *self.beats.fresh.lock());
        let beats: Vec<_> = fresh
            .iter()
            .filter_map(|control| {
                let progress = control.beat.lock().take()?.progress;
                self.running.contains_key(&control.token).then(|| pb::Heartbeat {
                    token: control.token.clone(),
                    progress: progress.unwrap_or_default(),
                })
            })
            .collect();
        if let (Some(link), false) = (&self.link, beats.is_empty()) {
            link.outbox.beats(beats);
        }
    }

    // ---- shutdown

    fn drain(&mut self) {
        for slot in &mut self.settings.slots {
            slot.dry = false;
        }
        if let Some(link) = &self.link {
            link.outbox.drain(self.settings.slots.iter().map(|s| s.task_type.clone()));
        }
    }

    /// Leaves a server that is going away and owes us nothing, so that it need not wait.
    fn leave(&mut self) {
        let held = !self.running.is_empty()
            || !self.unacked.is_empty()
            || self.settings.slots.iter().any(|s| !s.waiting.is_empty());
        if !held && self.link.as_ref().is_some_and(|l| l.going_away) {
            self.link = None;
            self.settings.state.send_replace(None);
        }
    }

    /// Whether nothing is owed in either direction.
    fn settled(&self) -> bool {
        self.unacked.is_empty() && (self.link.is_none() || self.settings.slots.iter().all(|s| s.dry))
    }

    fn stop(&mut self) {
        let Some(until) = *self.settings.stopped.borrow_and_update() else { return };
        match self.phase {
            Phase::Serving => {
                self.phase = Phase::Draining(until);
                self.drain();
                for index in 0..self.settings.slots.len() {
                    for assignment in std::mem::take(&mut self.settings.slots[index].waiting) {
                        self.settle(assignment.token, Outcome::Released(pb::Released {}));
                    }
                }
            }
            Phase::Draining(at) => self.phase = Phase::Draining(at.min(until)),
            Phase::Cancelling(_) | Phase::Settling(_) => {}
        }
    }

    /// Takes the steps of a shutdown that are due. True: it is through.
    fn advance(&mut self) -> bool {
        let now = Instant::now();
        if self.beats_due.is_some_and(|at| at <= now) {
            self.beat();
        }
        loop {
            match self.phase {
                Phase::Draining(_) | Phase::Cancelling(_) if self.running.is_empty() => {
                    self.phase = Phase::Settling(now + SETTLE_WITHIN);
                }
                Phase::Draining(at) if now >= at => {
                    for running in self.running.values() {
                        running.control.cancel();
                    }
                    self.phase = Phase::Cancelling(now + self.settings.cancel_grace);
                }
                Phase::Cancelling(at) if now >= at => {
                    self.tasks.abort_all();
                    for (token, running) in std::mem::take(&mut self.running) {
                        if !running.fenced {
                            self.settle(token, Outcome::Released(pb::Released {}));
                        }
                    }
                    self.flush();
                }
                Phase::Settling(at) => return self.settled() || now >= at,
                Phase::Serving | Phase::Draining(_) | Phase::Cancelling(_) => return false,
            }
        }
    }
}

impl Phase {
    fn due(self) -> Option<Instant> {
        match self {
            Self::Serving => None,
            Self::Draining(at) | Self::Cancelling(at) | Self::Settling(at) => Some(at),
        }
    }
}

fn result(token: String, outcome: Outcome) -> pb::Result {
    pb::Result { token, outcome: Some(outcome) }
}

/// Calls the handler and polls once: its end, or the future to be polled on as a task (again, with a waker); and
/// whether that was quick.
fn first_poll(
    handler: &Handler,
    task: Task,
) -> (Result<Done, BoxFuture<'static, Result<Bytes, TaskError>>>, bool) {
    let began = Instant::now();
    let first = std::panic::catch_unwind(AssertUnwindSafe(|| {
        let mut future = handler(task);
        match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(done) => Ok(done),
            Poll::Pending => Err(future),
        }
    }));
    let first = match first {
        Ok(Ok(done)) => Ok(Ok(done)),
        Ok(Err(future)) => Err(future),
        Err(panic) => Ok(Err(panic)),
    };
    (first, began.elapsed() < QUICK)
}

/// A handler's end as the protocol has it.
fn outcome(done: Done) -> Outcome {
    match done {
        Ok(Ok(json)) => Outcome::Completed(json),
        Ok(Err(error)) => Outcome::Failed(pb::TaskFailure {
            code: error.code,
            message: error.message,
            non_retryable: !error.retryable,
            retry_after_ms: error.retry_after.map(|d| u64::try_from(d.as_millis()).unwrap_or(u64::MAX)),
        }),
        Err(panic) => {
            let said = panic
                .downcast_ref::<&str>()
                .map(|s| (*s).to_owned())
                .or_else(|| panic.downcast_ref::<String>().cloned())
                .unwrap_or_else(|| "no message".to_owned());
            Outcome::Failed(pb::TaskFailure {
                code: "handler_panicked".into(),
                message: format!("the handler panicked: {said}"),
                ..pb::TaskFailure::default()
            })
        }
    }
}

/// The wait before a dial after `failures` in a row: none before the first, then doubling, at least half of it
/// and the rest by `random`, so that many workers do not come back in step.
fn backoff(failures: u32, random: u32) -> Duration {
    if failures == 0 {
        return Duration::ZERO;
    }
    let (first, most) = BACKOFF;
    let full = first.saturating_mul(1 << (failures - 1).min(10)).min(most);
    full / 2 + (full / 2).mul_f64(f64::from(random) / f64::from(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backoff_doubles_is_jittered_and_is_bounded() {
        assert_eq!(backoff(0, u32::MAX), Duration::ZERO);
        assert_eq!(
            (backoff(1, 0), backoff(1, u32::MAX)),
            (Duration::from_millis(50), Duration::from_millis(100))
        );
        assert_eq!(backoff(3, u32::MAX), Duration::from_millis(400));
        assert_eq!(
            (backoff(99, 0), backoff(99, u32::MAX)),
            (Duration::from_millis(2_500), Duration::from_secs(5))
        );
    }
}
