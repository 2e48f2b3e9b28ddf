//! The machine: sessions, credits, what is in flight. See [`super`] for the invariants.

use super::message::{Assignment, Subscription};
use super::outbox::Outbox;
use super::pools::{Pool, Ring, Rings, fits};
use super::rounds::{Rounds, Turn};
use crate::model::ids::{SessionId, TaskType};
use crate::model::labels::{Labels, QueueName};
use crate::model::time::Span;
use foldhash::fast::RandomState;
use indexmap::IndexMap;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// The most a subscription may hold at once.
pub const CREDIT_MAX: u32 = 1_000;

/// The most task types of one session.
pub const TYPES_MAX: usize = 1_000;

/// Names one stream of a session on this server; never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionKey(pub u64);

/// Credit set aside for one task on its way to a worker. Must be ended by [`Dispatcher::assign`] or
/// [`Dispatcher::give_back`].
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a reservation must be assigned or given back"]
pub struct Reservation {
    /// The stream.
    pub session: SessionKey,
    /// Of which credit.
    pub task_type: TaskType,
    /// Carried by the credit of a result in the same decision: not counted until that result is settled.
    pub on_result: bool,
}

/// Who a reservation leads to, as the lease will name it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Party {
    /// The session; none for a claim over HTTP.
    pub session: Option<(SessionId, u32)>,
    /// The worker's label.
    pub label: Arc<str>,
}

/// One assignment that a worker holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Flight {
    /// Of which credit.
    pub task_type: TaskType,
    /// When it was put on the stream.
    pub since: Instant,
    /// The worker said that it has it.
    pub acked: bool,
    /// The acknowledgement is (being) committed, or needs not be.
    pub ack_kept: bool,
}

#[derive(Debug)]
struct Credit {
    max: u32,
    held: u32,
    reserved: u32,
    /// Those of the subscription: in which ring of the type the session stands.
    labels: Labels,
}

#[derive(Debug)]
struct Session {
    id: Option<(SessionId, u32)>,
    label: Arc<str>,
    outbox: Arc<Outbox>,
    credits: BTreeMap<TaskType, Credit>,
    /// Over all types; claims over HTTP have it, sessions do not.
    total: Option<u32>,
    flights: IndexMap<String, Flight, RandomState>,
    /// In order of assignment; entries of what is gone or kept fall out when looked at.
    unkept: VecDeque<(Instant, String)>,
    draining: bool,
    /// The server stops: the stream ends as soon as the worker holds nothing.
    leaving: bool,
    detached: bool,
    /// An assignment is unacknowledged for half the window, or a suspect is left alone for now.
    stalled: bool,
    /// Left an assignment unacknowledged for the whole window, and has acknowledged nothing since.
    suspect: Option<Suspect>,
    opened: Instant,
    last_heard: Instant,
    /// Whether it was heard since its lease was last renewed.
    unrenewed: bool,
    /// Whether it was ever pinged.
    pinged: bool,
}

/// A worker that does not acknowledge what it is given gets one assignment at a time, in ever longer intervals:
/// somebody else may take the rest, and no run fails for being given to it again and again.
#[derive(Debug, Clone, Copy)]
struct Suspect {
    until: Instant,
    pause: Duration,
}

/// The first pause of a suspect; each is twice the one before.
const PAUSE: Duration = Duration::from_secs(4);
/// The longest pause of a suspect.
const PAUSE_MAX: Duration = Duration::from_mins(1);

impl Session {
    /// Ends the stream of a session that leaves and whose worker holds nothing. A claim over HTTP ends by itself.
    fn leave(&self) {
        if self.leaving && self.id.is_some() && self.flights.is_empty() {
            self.outbox.close();
        }
    }
    fn open(&self) -> bool {
        !(self.draining || self.detached || self.stalled || self.outbox.is_full())
    }
    fn free(&self, task_type: &TaskType) -> u32 {
        if !self.open() {
            return 0;
        }
        let Some(c) = self.credits.get(task_type) else { return 0 };
        let free = c.max.saturating_sub(c.held + c.reserved);
        if self.suspect.is_some() {
            let probing = !self.unkept.is_empty() || self.credits.values().any(|c| c.reserved > 0);
            return free.min(u32::from(!probing));
        }
        match self.total {
            None => free,
            Some(total) => {
                let used: u32 = self.credits.values().map(|c| c.held + c.reserved).sum();
                free.min(total.saturating_sub(used))
            }
        }
    }
}

/// A session that was heard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Heard {
    /// Its stream.
    pub key: SessionKey,
    /// The session.
    pub id: SessionId,
    /// Its epoch.
    pub epoch: u32,
    /// When.
    pub at: Instant,
}

/// An attempt that a worker has held for long.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LongFlight {
    /// The stream.
    pub session: SessionKey,
    /// Which.
    pub token: String,
    /// Whether the worker said that it has it; none: [`Dispatcher::check_acks`] has not come to it yet.
    pub acked: Option<bool>,
}

/// What the ack window asks for.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct AckWork {
    /// Acknowledged and still running at half the window: keep the acknowledgement.
    pub keep: Vec<String>,
    /// Never acknowledged: return these to their queues.
    pub lost: Vec<String>,
}

/// The machine. Time comes in as values.
#[derive(Debug, Default)]
pub struct Dispatcher {
    sessions: BTreeMap<SessionKey, Session>,
    by_id: HashMap<SessionId, SessionKey>,
    /// For each type the sessions that serve it.
    rings: BTreeMap<TaskType, Rings>,
    rounds: Rounds,
    next_key: u64,
}

impl Dispatcher {
    /// Opens a stream. For a session, an older stream of the same session here is closed.
    pub fn open(
        &mut self,
        id: Option<(SessionId, u32)>,
        label: Arc<str>,
        subscriptions: &[Subscription],
        total: Option<u32>,
        now: Instant,
    ) -> (SessionKey, Arc<Outbox>) {
        if let Some((id, _)) = &id
            && let Some(old) = self.by_id.get(id).copied()
        {
            self.close(old);
        }
        self.next_key += 1;
        let key = SessionKey(self.next_key);
        let outbox = Arc::new(Outbox::default());
        if let Some((id, _)) = &id {
            self.by_id.insert(id.clone(), key);
            self.rounds.enter(key, now);
        }
        self.sessions.insert(
            key,
            Session {
                id,
                label,
                outbox: Arc::clone(&outbox),
                credits: BTreeMap::new(),
                total,
                flights: IndexMap::default(),
                unkept: VecDeque::new(),
                draining: false,
                leaving: false,
                detached: false,
                stalled: false,
                suspect: None,
                opened: now,
                last_heard: now,
                unrenewed: true,
                pinged: false,
            },
        );
        for s in subscriptions {
            self.set_credit(key, s);
        }
        (key, outbox)
    }

    /// Whether a session may have credit of this type: there are not too many others.
    pub fn may_serve(&self, key: SessionKey, task_type: &TaskType) -> bool {
        let session = self.sessions.get(&key);
        session.is_none_or(|s| s.credits.len() < TYPES_MAX || s.credits.contains_key(task_type))
    }

    /// Sets a credit, clamped to [`CREDIT_MAX`], and labels if there are any; returns what is in force. None: no
    /// such stream.
    pub fn set_credit(&mut self, key: SessionKey, subscription: &Subscription) -> Option<Subscription> {
        let Subscription { task_type, credit, labels } = subscription;
        let session = self.sessions.get_mut(&key)?;
        let max = (*credit).min(CREDIT_MAX);
        let rings = self.rings.entry(task_type.clone()).or_default();
        let known = session.credits.entry(task_type.clone()).or_insert_with(|| {
            rings.enter(labels, key);
            Credit { max, held: 0, reserved: 0, labels: labels.clone() }
        });
        known.max = max;
        if !labels.is_empty() && known.labels != *labels {
            rings.leave(&known.labels, key);
            rings.enter(labels, key);
            known.labels.clone_from(labels);
        }
        Some(Subscription { task_type: task_type.clone(), credit: max, labels: known.labels.clone() })
    }

    /// Sets one unit of credit aside for a task of this queue, older ones waiting in those of the same type with the
    /// labels `ahead`. Workers with the fewest labels come first, those with the same ones take turns.
    pub fn reserve(&mut self, queue: &QueueName, ahead: &[Labels]) -> Option<(Reservation, Party)> {
        let rings = self.rings.get_mut(&queue.task_type)?;
        let fit = rings.0.iter_mut().filter(|ring| fits(&ring.labels, queue, ahead));
        fit.into_iter().find_map(|ring| take_turns(&mut self.sessions, ring, &queue.task_type))
    }

    /// Sets one unit of credit aside in a pool, its sessions taking turns.
    pub fn reserve_in(&mut self, pool: &Pool) -> Option<(Reservation, Party)> {
        let rings = self.rings.get_mut(&pool.task_type)?;
        let ring = rings.0.iter_mut().find(|ring| ring.labels == pool.labels)?;
        take_turns(&mut self.sessions, ring, &pool.task_type)
    }

    /// Lets the credit of a result that is being committed carry a task of the same decision, if the stream takes
    /// new work, the worker holds `token` under this type, and [`Self::reserve`] could give it the task.
    pub fn reserve_on_result(
        &self,
        key: SessionKey,
        token: &str,
        queue: &QueueName,
        ahead: &[Labels],
    ) -> Option<(Reservation, Party)> {
        let task_type = &queue.task_type;
        let session = self.sessions.get(&key)?;
        let credit = session.credits.get(task_type)?;
        let holds = session.flights.get(token).is_some_and(|f| f.task_type == *task_type);
        if !holds || !session.open() || credit.held + credit.reserved > credit.max {
            return None;
        }
        if !fits(&credit.labels, queue, ahead) {
            return None;
        }
        let party = Party { session: session.id.clone(), label: Arc::clone(&session.label) };
        Some((Reservation { session: key, task_type: task_type.clone(), on_result: true }, party))
    }

    /// Ends a reservation without work.
    pub fn give_back(&mut self, reservation: Reservation) {
        if reservation.on_result {
            return;
        }
        if let Some(c) = self
            .sessions
            .get_mut(&reservation.session)
            .and_then(|s| s.credits.get_mut(&reservation.task_type))
        {
            c.reserved -= 1;
        }
    }

    /// Ends a reservation with work: puts it on the stream. `Err` gives the assignment back when the stream is
    /// gone, draining, or its credit was lowered meanwhile: return it to its queue.
    #[expect(clippy::result_large_err, reason = "it gives back what it was given, and seldom")]
    pub fn assign(
        &mut self,
        reservation: Reservation,
        assignment: Assignment,
        now: Instant,
    ) -> Result<(), Assignment> {
        let Some(session) = self.sessions.get_mut(&reservation.session) else { return Err(assignment) };
        let usable = !(session.draining || session.detached || session.outbox.overflows());
        let Some(credit) = session.credits.get_mut(&reservation.task_type) else { return Err(assignment) };
        if !reservation.on_result {
            credit.reserved -= 1;
        }
        if !usable || credit.held + credit.reserved >= credit.max {
            return Err(assignment);
        }
        credit.held += 1;
        session.flights.insert(
            assignment.token.clone(),
            Flight {
                task_type: reservation.task_type,
                since: now,
                acked: false,
                ack_kept: session.id.is_none(),
            },
        );
        if session.id.is_some() {
            session.unkept.push_back((now, assignment.token.clone()));
            if session.flights.len() == 1 {
                self.rounds.busy.insert(reservation.session);
            }
        }
        session.outbox.assign(assignment);
        Ok(())
    }

    /// Sets nothing more aside for a claim; what has been set aside still comes. Returns how much that is.
    pub fn no_more(&mut self, key: SessionKey) -> u32 {
        let Some(session) = self.sessions.get_mut(&key) else { return 0 };
        session.total = Some(0);
        session.credits.values().map(|c| c.reserved).sum()
    }

    /// Takes over an attempt that a resumed session already holds.
    pub fn adopt(&mut self, key: SessionKey, token: String, task_type: TaskType, now: Instant) {
        let Some(session) = self.sessions.get_mut(&key) else { return };
        let credit = session.credits.entry(task_type.clone()).or_insert_with(|| {
            self.rings.entry(task_type.clone()).or_default().enter(Labels::NONE_REF, key);
            Credit { max: 0, held: 0, reserved: 0, labels: Labels::NONE }
        });
        if session
            .flights
            .insert(token, Flight { task_type, since: now, acked: true, ack_kept: true })
            .is_none()
        {
            credit.held += 1;
        }
        self.rounds.busy.insert(key);
    }

    /// The worker said that it has these.
    pub fn ack(&mut self, key: SessionKey, tokens: &[String]) {
        let Some(session) = self.sessions.get_mut(&key) else { return };
        for t in tokens {
            if let Some(f) = session.flights.get_mut(t.as_str()) {
                f.acked = true;
                session.suspect = None;
            }
        }
    }

    /// The attempt is over for this stream, however: its credit is free.
    pub fn settle(&mut self, key: SessionKey, token: &str) {
        let Some(session) = self.sessions.get_mut(&key) else { return };
        if let Some(flight) = session.flights.swap_remove(token)
            && let Some(c) = session.credits.get_mut(&flight.task_type)
        {
            c.held -= 1;
        }
        session.leave();
    }

    /// A result was settled: the worker is told, its credit is free.
    pub fn acknowledge(&mut self, key: SessionKey, ack: super::message::ResultAck) {
        let token = ack.token.clone();
        if let Some(session) = self.sessions.get(&key) {
            session.outbox.ack(ack);
        }
        // Only now: it may end the stream.
        self.settle(key, &token);
    }

    /// An attempt was fenced: the worker that holds it here is told, its credit is free.
    pub fn revoke(&mut self, id: &SessionId, token: &str) {
        if let Some(key) = self.by_id.get(id).copied() {
            self.withdraw(key, token);
        }
    }

    /// Takes an attempt away from a stream: the worker is told, its credit is free.
    pub fn withdraw(&mut self, key: SessionKey, token: &str) {
        if let Some(session) = self.sessions.get(&key)
            && session.flights.contains_key(token)
        {
            session.outbox.cancel(token.to_owned());
            self.settle(key, token);
        }
    }

    /// Attempts that open sessions have held for at least `age`.
    pub fn long_flights(&self, now: Instant, age: Span) -> Vec<LongFlight> {
        let age = age.to_std();
        let busy = self.rounds.busy.iter().filter_map(|k| Some((k, self.sessions.get(k)?)));
        busy.filter(|(_, s)| !s.detached)
            .flat_map(|(k, s)| {
                let long = s.flights.iter().filter(move |(_, f)| now.duration_since(f.since) >= age);
                long.map(|(token, f)| LongFlight {
                    session: *k,
                    token: token.clone(),
                    acked: f.ack_kept.then_some(f.acked),
                })
            })
            .collect()
    }

    /// Looks at what is unacknowledged; `window` is the ack time. Call a few times per window.
    pub fn check_acks(&mut self, now: Instant, window: Span) -> AckWork {
        let window = window.to_std();
        let half = window / 2;
        let mut work = AckWork::default();
        self.rounds.busy.retain(|key| {
            let Some(session) = self.sessions.get_mut(key) else { return false };
            session.stalled = session.suspect.is_some_and(|s| now < s.until);
            let mut lost = false;
            let mut later = VecDeque::new();
            while let Some((since, _)) = session.unkept.front() {
                if now.duration_since(*since) < half {
                    break;
                }
                let Some((since, token)) = session.unkept.pop_front() else { break };
                let Some(flight) = session.flights.get_mut(token.as_str()) else { continue };
                if flight.since != since || flight.ack_kept {
                    continue;
                }
                if flight.acked {
                    flight.ack_kept = true;
                    work.keep.push(token);
                } else if now.duration_since(since) >= window {
                    flight.ack_kept = true;
                    lost = true;
                    work.lost.push(token);
                } else {
                    session.stalled = true;
                    later.push_back((since, token));
                }
            }
            while let Some(item) = later.pop_back() {
                session.unkept.push_front(item);
            }
            if lost {
                let pause = session.suspect.map_or(PAUSE, |s| (s.pause * 2).min(PAUSE_MAX));
                session.suspect = Some(Suspect { until: now + pause, pause });
                session.stalled = true;
            }
            session.suspect.is_some() || !(session.unkept.is_empty() && session.flights.is_empty())
        });
        work
    }

    /// The worker was heard.
    pub fn heard(&mut self, key: SessionKey, now: Instant) {
        if let Some(s) = self.sessions.get_mut(&key) {
            s.last_heard = now;
            if s.id.is_some() && !std::mem::replace(&mut s.unrenewed, true) {
                self.rounds.heard.insert(key);
            }
        }
    }

    /// Nothing was heard and nothing was looked at for `late` before `now`, which was not the workers' doing: what
    /// they said meanwhile waits to be read. Their times begin that much later, none of them after `now`.
    pub fn stood_still(&mut self, now: Instant, late: Duration) {
        let later = |at: Instant| (at + late).min(now);
        for session in self.sessions.values_mut() {
            session.last_heard = later(session.last_heard);
            for flight in session.flights.values_mut() {
                flight.since = later(flight.since);
            }
            for (since, _) in &mut session.unkept {
                *since = later(*since);
            }
        }
    }

    /// No new work for this stream.
    pub fn drain(&mut self, key: SessionKey) {
        if let Some(s) = self.sessions.get_mut(&key) {
            s.draining = true;
        }
    }

    /// The stream broke. What the worker holds stays its own until its lease passes; what it never acknowledged
    /// still falls out of [`Self::check_acks`].
    pub fn detach(&mut self, key: SessionKey) {
        if let Some(s) = self.sessions.get_mut(&key) {
            s.detached = true;
            s.outbox.close();
            self.rounds.heard.remove(&key);
        }
    }

    /// The stream is gone for good here: taken over, or its lease passed.
    pub fn close(&mut self, key: SessionKey) {
        let Some(session) = self.sessions.remove(&key) else { return };
        session.outbox.close();
        self.rounds.leave(key);
        if let Some((id, _)) = &session.id
            && self.by_id.get(id) == Some(&key)
        {
            self.by_id.remove(id);
        }
        for (task_type, credit) in &session.credits {
            if let Some(rings) = self.rings.get_mut(task_type) {
                rings.leave(&credit.labels, key);
                if rings.0.is_empty() {
                    self.rings.remove(task_type);
                }
            }
        }
    }

    /// Credit that open streams granted and no work fills, whether or not they are given any just now.
    pub fn unfilled_credit(&self) -> BTreeMap<TaskType, u32> {
        let mut unfilled = BTreeMap::new();
        for session in self.sessions.values().filter(|s| !(s.draining || s.detached)) {
            for (task_type, c) in &session.credits {
                *unfilled.entry(task_type.clone()).or_default() += c.max.saturating_sub(c.held + c.reserved);
            }
        }
        unfilled
    }

    /// How many streams of sessions are open, and their credit: all of it, and what is in use.
    pub fn totals(&self) -> (u64, (u64, u64)) {
        let sessions = self.sessions.values().filter(|s| s.id.is_some() && !s.detached);
        sessions.fold((0, (0, 0)), |(n, (all, used)), s| {
            let add = |sum: u64, of: fn(&Credit) -> u32| {
                sum + s.credits.values().map(|c| u64::from(of(c))).sum::<u64>()
            };
            (n + 1, (add(all, |c| c.max), add(used, |c| c.held + c.reserved)))
        })
    }

    /// Free credit over all streams, by pool, those without any left out: by type, the fewest labels first.
    pub fn free_credit(&self) -> Vec<(Pool, u32)> {
        let mut free = Vec::new();
        for (task_type, rings) in &self.rings {
            for ring in &rings.0 {
                let sessions = ring.sessions.iter().filter_map(|k| self.sessions.get(k));
                let n: u32 = sessions.map(|s| s.free(task_type)).sum();
                if n > 0 {
                    free.push((Pool { task_type: task_type.clone(), labels: ring.labels.clone() }, n));
                }
            }
        }
        free
    }

    /// Sessions (not claims) whose streams are open and that were heard since their lease was last renewed, with
    /// when that was, until [`Self::renewed`] says so; and the streams that were not heard since `silent_since`.
    pub fn heard_and_silent(&mut self, silent_since: Instant) -> (Vec<Heard>, Vec<SessionKey>) {
        let sessions = &self.sessions;
        let silent = self.rounds.silent(silent_since, |key| Some(sessions.get(&key)?.last_heard));
        let heard = |key: &SessionKey| {
            let session = sessions.get(key).filter(|s| !s.detached && s.last_heard >= silent_since)?;
            let (id, epoch) = session.id.clone()?;
            Some(Heard { key: *key, id, epoch, at: session.last_heard })
        };
        (self.rounds.heard.iter().filter_map(heard).collect(), silent)
    }

    /// A session's lease was renewed for having been heard at `at`.
    pub fn renewed(&mut self, key: SessionKey, at: Instant) {
        if let Some(s) = self.sessions.get_mut(&key)
            && s.last_heard <= at
        {
            s.unrenewed = false;
            self.rounds.heard.remove(&key);
        }
    }

    /// Pings the open sessions whose turn has come: each once in `every`. Call a few times in it.
    pub fn ping(&mut self, now: Instant, every: Duration) {
        let sessions = &mut self.sessions;
        self.rounds.pinged(now, every, |key| {
            let Some(session) = sessions.get_mut(&key).filter(|s| !s.detached) else { return Turn::Gone };
            session.outbox.ping();
            if std::mem::replace(&mut session.pinged, true) { Turn::Again } else { Turn::First }
        });
    }

    /// Tells every stream to go away and takes no new work for any. A session's stream ends as soon as its worker
    /// holds nothing; see [`Self::end_streams`] for the others.
    pub fn go_away(&mut self, within: Span) {
        for s in self.sessions.values_mut() {
            s.draining = true;
            s.leaving = true;
            s.outbox.go_away(within);
            s.leave();
        }
    }

    /// Ends the streams of all sessions, as if they had broken: what their workers hold stays theirs.
    pub fn end_streams(&mut self) {
        for s in self.sessions.values_mut().filter(|s| s.id.is_some()) {
            s.detached = true;
            s.outbox.close();
        }
    }

    /// Ends all streams.
    pub fn close_all(&mut self) {
        let keys: Vec<_> = self.sessions.keys().copied().collect();
        for k in keys {
            self.close(k);
        }
    }

    /// Whether any worker has a session here.
    pub fn has_sessions(&self) -> bool {
        !self.by_id.is_empty()
    }

    /// The stream of a session here.
    pub fn key_of(&self, id: &SessionId) -> Option<SessionKey> {
        self.by_id.get(id).copied()
    }

    /// How many assignments a stream holds.
    pub fn held(&self, key: SessionKey) -> usize {
        self.sessions.get(&key).map_or(0, |s| s.flights.len())
    }

    /// The stream of a session here, if it has this epoch (or an earlier one: the store has lost that there was a later
    /// one), was open at `since` already and does not hold `token`: a lease of that session which nobody works on.
    pub fn lacks(&self, id: &SessionId, epoch: u32, token: &str, since: Instant) -> Option<SessionKey> {
        let key = self.key_of(id)?;
        let session = self.sessions.get(&key)?;
        let ours = session.id.as_ref().is_some_and(|(_, e)| *e <= epoch) && !session.detached;
        (ours && session.opened <= since && !session.flights.contains_key(token)).then_some(key)
    }

    /// Whether the stream holds this token.
    pub fn holds(&self, key: SessionKey, token: &str) -> bool {
        self.sessions.get(&key).is_some_and(|s| s.flights.contains_key(token))
    }

    /// Tokens that the stream holds, in no particular order but the same every time.
    pub fn tokens(&self, key: SessionKey) -> Vec<String> {
        self.sessions.get(&key).map(|s| s.flights.keys().cloned().collect()).unwrap_or_default()
    }
}

/// Sets one unit of credit aside in the next session of a ring that has any.
fn take_turns(
    sessions: &mut BTreeMap<SessionKey, Session>,
    ring: &mut Ring,
    task_type: &TaskType,
) -> Option<(Reservation, Party)> {
    for _ in 0..ring.sessions.len() {
        let key = ring.sessions.pop_front()?;
        ring.sessions.push_back(key);
        let Some(session) = sessions.get_mut(&key) else { continue };
        if session.free(task_type) > 0 {
            let party = Party { session: session.id.clone(), label: Arc::clone(&session.label) };
            if let Some(c) = session.credits.get_mut(task_type) {
                c.reserved += 1;
            }
            return Some((
                Reservation { session: key, task_type: task_type.clone(), on_result: false },
                party,
            ));
        }
    }
    None
}

#[cfg(test)]
mod tests;
