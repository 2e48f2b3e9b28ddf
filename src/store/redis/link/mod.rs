//! The link to one Redis: a pipelined connection that all commands share, one per blocking read, one for hints. With
//! durability `replicated` there is a second one, a whole link of its own, for what waits for replicas: Redis answers
//! nothing else on a connection meanwhile.
//!
//! ```text
//! wire.rs        replies, piece by piece            address.rs   what a user writes
//! backlog.rs     what waits and what is in flight   dial.rs      making a connection   tls.rs
//! connection.rs  a writer and a reader              report.rs    numbers, and the clause in errors
//! supervise.rs   again and again; hints; passwords; Sentinels
//!
//!   call ─► backlog ─► connection ─► reply        supervisor: connect, load scripts, same store? serve, again
//! ```
//!
//! Invariants
//! - Every call ends by its deadline, [`COMMAND`]; while there is no connection it waits for one as long as
//!   [`Options::wait`] says. Calls are written in the order in which they came.
//! - `sent: false` is said only of what was provably never written, or what Redis says it refused. What may have been
//!   written is never repeated here: the caller settles it.
//! - A caller that gives up takes back what was not written.
//! - The address is not logged and stands in no error: it may carry a password.
//!
//! To ask something of its own of Redis (as `PING` is): a variant of [`Answer`], and where it is answered in
//! `connection.rs`.

mod address;
mod backlog;
mod connection;
mod dial;
mod report;
mod supervise;
mod tls;
mod wire;

use super::keys;
use crate::store::{Hint, Layout, Result, StoreError};
use backlog::{Backlog, Id, Refused};
use futures::FutureExt as _;
use parking_lot::Mutex;
use redis::Cmd;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tokio::sync::{Notify, broadcast, oneshot, watch};
use tokio::time::{Instant, timeout_at};
use tokio_util::task::AbortOnDropHandle;

pub(super) use address::{Endpoint, Place};
pub use backlog::{Limits, Policy};
pub use dial::Access;
pub(super) use dial::{Dialer, Talk, Tried};
pub(super) use report::field;
pub use report::{LinkReport, Persistence};
pub(super) use supervise::{Prepared, jittered, listen, prepare};
pub(super) use wire::Value;

/// How long a command may take, its time in the backlog included.
pub(super) const COMMAND: Duration = Duration::from_secs(5);
/// How it begins that nobody could be reached.
const NO_CONNECTION: &str = "no connection to Redis: ";
/// Connections for blocking reads that are kept while nobody reads.
const IDLE_READERS: usize = 16;

/// What an acknowledged commit has reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Durability {
    /// The Redis that took it.
    #[default]
    Local,
    /// A replica of it too.
    Replicated,
}

/// How the link behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Options {
    /// What may wait.
    pub limits: Limits,
    /// How long a command waits for a connection.
    pub wait: Duration,
    /// What a commit has reached when it is answered.
    pub durability: Durability,
}

impl Default for Options {
    fn default() -> Self {
        Self { limits: Limits::default(), wait: Duration::from_secs(1), durability: Durability::Local }
    }
}

/// Why a call has no reply.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Unanswered {
    /// It was not written in time.
    TooLate,
    /// There is no connection, and it is not to wait for one.
    Disconnected,
    /// The connection ended under it.
    Lost(Arc<str>),
}

/// The last reply, and those before it if there are several.
type Replies = (Value, Vec<Value>);

/// Who is told.
#[derive(Debug)]
enum Answer {
    Caller(oneshot::Sender<std::result::Result<Replies, Unanswered>>),
    /// We asked whether it is there.
    Ping,
    /// We asked about persistence.
    Persistence,
    /// We told the new password.
    Login(dial::Login),
}

impl Answer {
    fn fail(self, why: Unanswered) {
        if let Self::Caller(caller) = self {
            // Nobody may be waiting any more.
            let _ = caller.send(Err(why));
        }
    }
}

#[derive(Debug, Default)]
struct Counters {
    bytes_in: AtomicU64,
    bytes_out: AtomicU64,
    commands: AtomicU64,
    connections: AtomicU64,
    not_sent: AtomicU64,
    maybe_sent: AtomicU64,
    replaced: AtomicU64,
}

/// What changes with the connection.
#[derive(Debug, Default)]
struct Health {
    since: Option<Instant>,
    /// Since when there is none.
    away: Option<Instant>,
    reason: Option<Arc<str>>,
    /// Where the connection goes.
    node: Option<address::Endpoint>,
    /// Why it is to be left.
    leave: Option<&'static str>,
    /// Whom the connection is logged in as.
    login: Option<dial::Login>,
    persistence: Option<(Instant, Persistence)>,
    /// Which Redis process it is.
    run_id: String,
}

struct Shared {
    dialer: Dialer,
    options: Options,
    /// What the store was initialised with.
    layout: Layout,
    /// It is a node of a cluster, which holds a part of the store.
    clustered: bool,
    backlog: Mutex<Backlog<Answer>>,
    /// Something waits in the backlog.
    wake: Notify,
    counters: Counters,
    health: Mutex<Health>,
    /// Counts connections; who has one of his own to the same Redis looks whether it is still the same.
    generation: watch::Sender<u64>,
    /// Connections for blocking reads that are idle.
    idle: Mutex<Vec<Talk>>,
    hints: broadcast::Sender<Hint>,
}

/// The connections.
pub(super) struct Link {
    shared: Arc<Shared>,
    tasks: Vec<AbortOnDropHandle<()>>,
    /// What waits for replicas goes here; none: nothing does.
    confirming: Option<Box<Link>>,
}

/// The way of commands to a Redis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lane {
    /// That of all.
    Common,
    /// That of commands with a `WAIT` behind them.
    Confirming,
}

impl std::fmt::Debug for Link {
    /// Without what is on its way: a password may be.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Link").field("report", &self.report()).finish_non_exhaustive()
    }
}

impl Link {
    /// Keeps the connections that were prepared, and what follows them, alive; `confirming` with durability `replicated`.
    pub(super) fn new(
        dialer: Dialer,
        options: Options,
        prepared: Prepared,
        confirming: Option<Prepared>,
        layout: Layout,
        hints: broadcast::Sender<Hint>,
    ) -> Self {
        let mut link = Self::begin(dialer.clone(), options, Some(prepared), layout, false, hints);
        if options.durability == Durability::Replicated {
            link.confirming = Some(Box::new(Self::confirming(dialer, options, confirming, layout, false)));
        }
        let shared = Arc::clone(&link.shared);
        let listener = tokio::spawn(async move {
            let (hints, changed) = (shared.hints.clone(), shared.generation.subscribe());
            let dial = || {
                let dialer = shared.dialer.clone();
                async move { dialer.connect().await }.boxed()
            };
            supervise::listen(dial, &keys::hints(layout.epoch), hints, changed).await;
        });
        link.tasks.push(AbortOnDropHandle::new(listener));
        link
    }

    /// The link to a node of a cluster, which hears no hints. Without a connection it begins by making one.
    pub(super) fn of_node(
        dialer: Dialer,
        options: Options,
        prepared: Option<Prepared>,
        layout: Layout,
        hints: broadcast::Sender<Hint>,
    ) -> Self {
        let mut link = Self::begin(dialer.clone(), options, prepared, layout, true, hints);
        if options.durability == Durability::Replicated {
            link.confirming = Some(Box::new(Self::confirming(dialer, options, None, layout, true)));
        }
        link
    }

    /// The one for what waits for replicas. That another Redis answers is told by the other, which is never behind: what
    /// waits for no replica leaves a primary sooner.
    fn confirming(
        dialer: Dialer,
        options: Options,
        prepared: Option<Prepared>,
        layout: Layout,
        clustered: bool,
    ) -> Self {
        Self::begin(dialer, options, prepared, layout, clustered, broadcast::channel(1).0)
    }

    fn begin(
        dialer: Dialer,
        options: Options,
        prepared: Option<Prepared>,
        layout: Layout,
        clustered: bool,
        hints: broadcast::Sender<Hint>,
    ) -> Self {
        let mut health = Health { away: Some(Instant::now()), ..Health::default() };
        let mut backlog = Backlog::new(options.limits);
        let first = prepared.map(|prepared| {
            health.run_id = prepared.run_id;
            health.persistence = Some((Instant::now(), prepared.persistence));
            // Calls may come before the supervisor has begun.
            backlog.connect();
            prepared.talk
        });
        let shared = Arc::new(Shared {
            backlog: Mutex::new(backlog),
            wake: Notify::new(),
            counters: Counters::default(),
            health: Mutex::new(health),
            generation: watch::Sender::new(0),
            idle: Mutex::default(),
            dialer,
            options,
            layout,
            clustered,
            hints,
        });
        let mut tasks = vec![tokio::spawn(supervise::supervise(Arc::clone(&shared), first))];
        if shared.dialer.asks_sentinels() {
            tasks.push(tokio::spawn(supervise::follow_sentinels(Arc::clone(&shared))));
        }
        if shared.dialer.password_file().is_some() {
            tasks.push(tokio::spawn(supervise::rotate(Arc::clone(&shared))));
        }
        Self { shared, tasks: tasks.into_iter().map(AbortOnDropHandle::new).collect(), confirming: None }
    }

    /// Sends commands in one piece. Returns what each answered, errors among them.
    pub(super) async fn together(&self, lane: Lane, commands: &[&Cmd]) -> Result<Vec<Value>> {
        let mut packed = Vec::new();
        for cmd in commands {
            cmd.write_packed_command(&mut packed);
        }
        let (last, mut values) = self.on(lane).send(packed, commands.len()).await?;
        values.push(last);
        Ok(values)
    }

    fn on(&self, lane: Lane) -> &Shared {
        match (lane, &self.confirming) {
            (Lane::Confirming, Some(link)) => &link.shared,
            (Lane::Common | Lane::Confirming, _) => &self.shared,
        }
    }

    /// Sends a command that may block for `wait`, on a connection of its own. If that had to be made, `proof` is asked on
    /// it as well: whether what was read on another one is still so.
    pub(super) async fn blocking(
        &self,
        cmd: &Cmd,
        wait: Duration,
        proof: &[Cmd],
    ) -> Result<(Value, Vec<Value>)> {
        let idle = self.shared.idle.lock().pop();
        if let Some(talk) = idle {
            // It may have died while it was idle, and a read can be asked again.
            if let Ok(answer) = self.block_on(talk, cmd, wait, &[]).await {
                return Ok(answer);
            }
        }
        let talk = self.shared.dialer.connect().await?;
        self.block_on(talk, cmd, wait, proof).await
    }

    async fn block_on(
        &self,
        mut talk: Talk,
        cmd: &Cmd,
        wait: Duration,
        proof: &[Cmd],
    ) -> Result<(Value, Vec<Value>)> {
        let generation = *self.shared.generation.borrow();
        // First, so that what is waited for is told at once.
        let proven = talk.ask_all(proof).await?;
        let answer = talk.ask_within(cmd, wait + COMMAND).await?;
        // Only a connection that answered in time is used again, and only while its Redis is ours.
        let mut idle = self.shared.idle.lock();
        if idle.len() < IDLE_READERS && generation == *self.shared.generation.borrow() {
            idle.push(talk);
        }
        Ok((answer, proven))
    }

    /// Why a call would be of no use: there has been no connection for so long. None: there is one, or was lately.
    pub(super) fn away(&self, lane: Lane, long: Duration) -> Option<StoreError> {
        let shared = self.on(lane);
        let away = shared.health.lock().away.is_some_and(|since| since.elapsed() >= long);
        away.then(|| shared.failed(&shared.no_connection(), false))
    }

    /// How it is doing, all of it together.
    pub(super) fn report(&self) -> LinkReport {
        let Some(confirming) = &self.confirming else { return self.shared.report() };
        let own = self.shared.report();
        let (persistence, replaced) = (own.persistence.clone(), own.replaced);
        let sum = LinkReport::sum([own, confirming.report()].into_iter());
        LinkReport { replaced, persistence, ..sum }
    }
}

/// Takes a command back if its caller gives up before it is written.
struct Ticket<'a> {
    shared: &'a Shared,
    id: Id,
    ended: bool,
}

impl Ticket<'_> {
    /// True: it was not written, and will not be.
    fn withdraw(&mut self) -> bool {
        self.ended = true;
        self.shared.backlog.lock().withdraw(self.id)
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        if !self.ended {
            self.shared.backlog.lock().withdraw(self.id);
        }
    }
}

impl Shared {
    /// Sends commands that have `replies` replies together.
    async fn send(&self, packed: Vec<u8>, replies: usize) -> Result<Replies> {
        let (answer, mut answered) = oneshot::channel();
        let now = Instant::now();
        let answer_by = now + COMMAND;
        let (write_by, taken) = {
            let mut backlog = self.backlog.lock();
            let connected = backlog.is_connected();
            let write_by = if connected { answer_by } else { now + self.options.wait.min(COMMAND) };
            (write_by, backlog.push(packed, replies, now, write_by, Answer::Caller(answer)))
        };
        let id = match taken {
            Ok(id) => id,
            Err((Refused::Disconnected, _)) => return Err(self.failed(&self.no_connection(), false)),
            Err((Refused::Full, _)) => {
                return Err(self.failed("too much waits for Redis already: the backlog is full", false));
            }
        };
        self.wake.notify_one();
        let mut ticket = Ticket { shared: self, id, ended: false };
        let mut answer = timeout_at(write_by, &mut answered).await;
        if answer.is_err() {
            if ticket.withdraw() {
                return Err(self.failed(&self.not_written(), false));
            }
            answer = timeout_at(answer_by, &mut answered).await;
        }
        ticket.ended = true;
        match answer {
            Ok(Ok(Ok(replies))) => Ok(replies),
            Ok(Ok(Err(Unanswered::TooLate))) => Err(self.failed(&self.not_written(), false)),
            Ok(Ok(Err(Unanswered::Disconnected))) => Err(self.failed(&self.no_connection(), false)),
            Ok(Ok(Err(Unanswered::Lost(why)))) => Err(self.failed(&why, true)),
            Ok(Err(_)) => Err(self.failed("the link to Redis was closed", true)),
            Err(_) => {
                let message = format!("Redis did not answer within {} s", COMMAND.as_secs());
                Err(self.failed(&message, true))
            }
        }
    }

    fn no_connection(&self) -> String {
        let reason = self.health.lock().reason.clone();
        let reason = reason.as_deref().unwrap_or("it is being made");
        // A reason from the dialling says so itself.
        format!("{NO_CONNECTION}{}", reason.trim_start_matches(NO_CONNECTION))
    }

    fn not_written(&self) -> String {
        if self.backlog.lock().is_connected() {
            return "Redis takes no more: a command could not be written in time".into();
        }
        self.no_connection()
    }

    /// An error that tells how the link is.
    fn failed(&self, message: &str, sent: bool) -> StoreError {
        let counter = if sent { &self.counters.maybe_sent } else { &self.counters.not_sent };
        counter.fetch_add(1, Relaxed);
        StoreError::Unavailable { message: format!("{message} ({})", self.report()), sent }
    }

    /// Asks something that no caller waits for.
    fn ask_itself(&self, commands: &[Cmd], answer: Answer) {
        let packed = commands.iter().flat_map(Cmd::get_packed_command).collect();
        let now = Instant::now();
        self.backlog.lock().append(packed, commands.len(), now, now + COMMAND, answer);
        self.wake.notify_one();
    }

    /// A connection begins.
    fn connected(&self, login: dial::Login, node: address::Endpoint) {
        {
            let mut health = self.health.lock();
            (health.since, health.away, health.login) = (Some(Instant::now()), None, Some(login));
            (health.node, health.leave) = (Some(node), None);
        }
        self.counters.connections.fetch_add(1, Relaxed);
        self.backlog.lock().connect();
        self.wake.notify_one();
    }

    /// The connection is to end, once what is in flight is answered.
    fn leave(&self, why: &'static str) {
        self.health.lock().leave = Some(why);
        self.backlog.lock().retire();
    }

    /// A connection ended: what was in flight may have happened.
    fn disconnected(&self, why: &str) {
        let why: Arc<str> = why.into();
        {
            let mut health = self.health.lock();
            (health.since, health.reason) = (None, Some(Arc::clone(&why)));
            health.away = Some(Instant::now());
        }
        let (lost, unsent) = self.backlog.lock().disconnect();
        for answer in lost {
            answer.fail(Unanswered::Lost(Arc::clone(&why)));
        }
        for answer in unsent {
            answer.fail(Unanswered::Disconnected);
        }
    }

    fn report(&self) -> LinkReport {
        let (load, connected) = {
            let backlog = self.backlog.lock();
            (backlog.load(), backlog.is_connected())
        };
        let health = self.health.lock();
        let c = &self.counters;
        LinkReport {
            connected,
            reason: health.reason.as_deref().map(str::to_owned),
            queued: load.queued as u64,
            queued_bytes: load.queued_bytes as u64,
            in_flight: load.in_flight as u64,
            oldest_seconds: load.oldest.map(|since| since.elapsed().as_secs_f64()),
            bytes_in: c.bytes_in.load(Relaxed),
            bytes_out: c.bytes_out.load(Relaxed),
            commands: c.commands.load(Relaxed),
            connections: c.connections.load(Relaxed),
            connected_seconds: health.since.map(|since| since.elapsed().as_secs_f64()),
            not_sent: c.not_sent.load(Relaxed),
            maybe_sent: c.maybe_sent.load(Relaxed),
            replaced: c.replaced.load(Relaxed),
            persistence: health.persistence.as_ref().map(|(asked, said)| Persistence {
                asked_seconds_ago: asked.elapsed().as_secs_f64(),
                ..said.clone()
            }),
        }
    }
}
