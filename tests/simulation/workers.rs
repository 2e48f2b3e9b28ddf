//! Workers with a session, in one task each: the network between them and the server is part of it.

use crate::documents::LABELS;
use crate::rng::Rng;
use crate::sabotage::Sabotage;
use crate::world::World;
use bytes::Bytes;
use downbeat::app::{App, WorkerStream};
use downbeat::dispatch::message::{
    AckStatus, Assignment, FromWorker, Hello, ResultAck, Subscription, TaskOutcome, TaskResult, ToWorker,
    Welcome,
};
use downbeat::model::command::ReportedFailure;
use downbeat::model::ids::{SessionId, TaskType};
use downbeat::model::labels::Labels;
use downbeat::model::time::Span;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// A worker that hears nothing for so long looks for another server.
const SILENCE: Duration = Duration::from_secs(7);
/// Every worker looks around at least this often.
const LOOK: Duration = Duration::from_millis(500);

/// What a worker will do.
#[derive(Debug)]
enum Act {
    /// This has come over the network.
    Hear(ToWorker),
    /// This has crossed the network.
    Say(FromWorker),
    /// Acknowledge an assignment.
    Ack(String),
    /// The work is done.
    Finish(String),
    /// A result that is no longer wanted.
    Late(TaskResult),
}

#[derive(Debug)]
struct Held {
    assignment: Assignment,
    /// Said, and not yet acknowledged.
    result: Option<TaskResult>,
}

#[derive(Debug)]
struct Sub {
    credit: u32,
    /// No more than this may be held when work comes.
    limit: u32,
}

pub(crate) struct Worker {
    world: Arc<World>,
    number: usize,
    label: String,
    rng: Rng,
    labels: Labels,
    subs: BTreeMap<TaskType, Sub>,
    session: Option<SessionId>,
    held: BTreeMap<String, Held>,
    agenda: BTreeMap<(Instant, u64), Act>,
    acts: u64,
    /// The last thing on the way to us and from us: the network keeps order.
    inbound: Instant,
    outbound: Instant,
    heard: Instant,
    /// When the server was last heard before this stream.
    parted: Instant,
    beat: Instant,
    frozen_until: Instant,
    /// Told to go away, or drained: no work may come.
    closed_for_work: bool,
    leaves_at: Option<Instant>,
    /// The credit whose confirmation says that our wish to drain was read.
    drain_mark: Option<u32>,
    named: Vec<String>,
    /// Results sent once more on a new stream, of attempts that are no longer ours.
    resent: BTreeMap<String, TaskResult>,
}

/// Why a stream ended for its worker.
#[derive(Debug, PartialEq, Eq)]
enum End {
    /// The connection is gone.
    Cut,
    /// The process is gone.
    Died,
    /// The world ends.
    Over,
}

/// What an attempt comes to.
pub(crate) fn outcome(world: &World, rng: &mut Rng, assignment: &Assignment, by: &str) -> TaskOutcome {
    let p = world.profile();
    let failure = |code: &str, retryable, retry_after| {
        TaskOutcome::Failed(ReportedFailure {
            code: code.to_owned(),
            message: format!("sim {by}"),
            retryable,
            retry_after,
        })
    };
    if rng.chance(p.fail) {
        if rng.chance(p.unretryable) {
            return failure("sim_fatal", false, None);
        }
        let after = rng.chance(0.2).then(|| Span::millis(rng.range(0, 3_000) as i64));
        return failure("sim_failed", true, after);
    }
    if rng.chance(p.bad_output) {
        return TaskOutcome::Completed(Bytes::from_static(b"{\"n\": sim"));
    }
    TaskOutcome::Completed(output(rng, assignment, by))
}

/// An output that tells itself apart from every other.
pub(crate) fn output(rng: &mut Rng, assignment: &Assignment, by: &str) -> Bytes {
    let (n, id) = (rng.below(10), rng.bits());
    let pad = "x".repeat(*rng.pick(&[0, 0, 40, 400]));
    let (task, attempt) = (&assignment.path, assignment.attempt);
    Bytes::from(format!(r#"{{"n":{n},"by":"{by}","id":"{task}.{attempt}.{id:x}","pad":"{pad}"}}"#))
}

impl Worker {
    pub(crate) fn new(world: Arc<World>, number: usize) -> Self {
        let mut rng = world.rng.split("worker", number as u64);
        let mut subs = BTreeMap::new();
        for t in &world.types {
            // The first one serves everything, so that nothing is without a worker.
            if number == 0 || rng.chance(0.6) {
                let credit = rng.range(1, 6) as u32;
                subs.insert(t.clone(), Sub { credit, limit: credit });
            }
        }
        let now = Instant::now();
        let label = format!("worker-{number}");
        let boasts = world.sabotage == Some(Sabotage::FalseLabels);
        let labels = if boasts { Labels::new(LABELS).unwrap() } else { world.labels[&label].clone() };
        Self {
            label,
            labels,
            world,
            number,
            rng,
            subs,
            session: None,
            held: BTreeMap::new(),
            agenda: BTreeMap::new(),
            acts: 0,
            inbound: now,
            outbound: now,
            heard: now,
            parted: now,
            beat: now,
            frozen_until: now,
            closed_for_work: false,
            leaves_at: None,
            drain_mark: None,
            named: Vec::new(),
            resent: BTreeMap::new(),
        }
    }

    /// Lives until the world ends. Returns what it still holds then.
    pub(crate) async fn live(mut self) -> usize {
        tokio::time::sleep(self.rng.millis(0, 500)).await;
        loop {
            self.world.ledger.lock().at(&self.label, None);
            match self.connect().await {
                Some((server, stream)) => {
                    let end = self.serve(server, stream).await;
                    self.world.note(format_args!("{} is off server {server}: {end:?}", self.label));
                    match end {
                        End::Over => return self.held.len(),
                        End::Died => self.die().await,
                        End::Cut => self.after_cut().await,
                    }
                }
                None if self.world.is_over() => return self.held.len(),
                None => tokio::time::sleep(self.rng.millis(50, 1_000)).await,
            }
        }
    }

    fn plan(&mut self, at: Instant, act: Act) {
        self.acts += 1;
        self.agenda.insert((at, self.acts), act);
    }

    fn network(&mut self) -> Duration {
        let most = self.world.profile().network_ms;
        Duration::from_micros(self.rng.below(most * 1_000 + 1))
    }

    fn say(&mut self, message: FromWorker) {
        self.outbound = (Instant::now() + self.network()).max(self.outbound);
        self.plan(self.outbound, Act::Say(message));
    }

    /// Notes what credit is in force.
    fn grants(&self) {
        let credit = self.subs.iter().map(|(t, s)| (t.clone(), s.credit)).collect();
        self.world.ledger.lock().grants(&self.label, credit);
    }

    fn drop_work(&mut self, token: &str) -> Option<Held> {
        self.world.ledger.lock().dropped(token);
        self.held.remove(token)
    }

    /// The process ends and another begins: it knows nothing.
    async fn die(&mut self) {
        for token in self.held.keys() {
            self.world.ledger.lock().dropped(token);
        }
        self.held.clear();
        self.agenda.clear();
        self.session = None;
        self.world.note(format_args!("{} is dead", self.label));
        tokio::time::sleep(self.rng.millis(100, 6_000)).await;
    }

    async fn after_cut(&mut self) {
        // What was on its way is gone; work goes on.
        self.agenda.retain(|_, act| !matches!(act, Act::Hear(_) | Act::Say(_)));
        if self.rng.chance(self.world.profile().forget) {
            if self.rng.chance(0.5) {
                self.session = None;
            }
            for token in std::mem::take(&mut self.held).into_keys() {
                self.world.ledger.lock().dropped(&token);
            }
            self.world.note(format_args!("{} forgets what it held", self.label));
        }
        tokio::time::sleep(self.rng.millis(0, 1_000)).await;
    }

    async fn connect(&mut self) -> Option<(usize, WorkerStream)> {
        let (server, app): (usize, App) = self.world.pick(&mut self.rng)?;
        let hello = Hello {
            label: self.label.clone(),
            subscriptions: self
                .subs
                .iter()
                .map(|(t, s)| Subscription {
                    task_type: t.clone(),
                    credit: s.credit,
                    labels: self.labels.clone(),
                })
                .collect(),
            resume: self.session.clone(),
            tokens: self.held.keys().cloned().collect(),
        };
        self.named.clone_from(&hello.tokens);
        let delay = self.network();
        let world = Arc::clone(&self.world);
        let connecting = async move {
            world.servers[server].link.gate().await;
            tokio::time::sleep(delay).await;
            app.connect(hello).await
        };
        let stream = match tokio::time::timeout(Duration::from_secs(6), connecting).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => {
                self.world.note(format_args!(
                    "{} cannot connect to {server}: {}",
                    self.label,
                    error.code.as_str()
                ));
                return None;
            }
            Err(_) => return None,
        };
        self.world.note(format_args!(
            "{} connects to {server} as {:?} with {} tokens",
            self.label,
            self.session,
            self.named.len()
        ));
        let now = Instant::now();
        self.parted = self.heard;
        (self.inbound, self.outbound, self.heard) = (now, now, now);
        self.closed_for_work = false;
        self.leaves_at = None;
        self.drain_mark = None;
        for s in self.subs.values_mut() {
            s.limit = s.credit;
        }
        self.world.ledger.lock().at(&self.label, Some(server));
        Some((server, stream))
    }

    async fn serve(&mut self, server: usize, mut stream: WorkerStream) -> End {
        loop {
            let now = Instant::now();
            if self.world.is_over() {
                return End::Over;
            }
            if now.duration_since(self.heard) > SILENCE || self.leaves_at.is_some_and(|at| at <= now) {
                return End::Cut;
            }
            let stalled = self.world.servers[server].link.stalled_until();
            if self.world.is_healed() {
                self.frozen_until = self.frozen_until.min(now);
            }
            let held_up = stalled.max(self.frozen_until);
            if held_up > now {
                // Nothing crosses the network; nothing is read or answered.
                tokio::time::sleep_until(held_up.min(now + LOOK)).await;
                if self.frozen_until > now {
                    self.heard = Instant::now();
                    self.world.ledger.lock().at(&self.label, Some(server));
                }
                continue;
            }
            if now.duration_since(self.beat) >= Duration::from_secs(1) && !self.held.is_empty() {
                self.beat = now;
                let working = self.held.iter().filter(|(_, h)| h.result.is_none());
                let beats = working.map(|(t, _)| (t.clone(), None)).collect();
                self.say(FromWorker::Heartbeat(beats));
            }
            let next = self.agenda.first_key_value().map_or(now + LOOK, |((at, _), _)| (*at).min(now + LOOK));
            tokio::select! {
                biased;
                message = stream.next() => match message {
                    Some(message) => {
                        self.inbound = (Instant::now() + self.network()).max(self.inbound);
                        self.plan(self.inbound, Act::Hear(message));
                    }
                    None => return End::Cut,
                },
                () = tokio::time::sleep_until(next) => {
                    if let Err(end) = self.due(&stream).await {
                        return end;
                    }
                }
            }
        }
    }

    /// Does what is due.
    async fn due(&mut self, stream: &WorkerStream) -> Result<(), End> {
        while let Some(entry) = self.agenda.first_entry()
            && entry.key().0 <= Instant::now()
        {
            match entry.remove() {
                Act::Hear(message) => self.hear(message)?,
                Act::Say(message) => {
                    if stream.receive(message).await.is_err() {
                        return Err(End::Cut);
                    }
                }
                Act::Ack(token) => {
                    if self.held.contains_key(&token) {
                        if self.rng.chance(self.world.profile().die) {
                            return Err(End::Died);
                        }
                        self.world.ledger.lock().acks(&token);
                        self.say(FromWorker::Ack(vec![token]));
                    }
                }
                Act::Finish(token) => self.finish(token)?,
                Act::Late(result) => {
                    self.world.note(format_args!("{} sends a late result", self.label));
                    self.world.ledger.lock().says(&result.token, &result.outcome);
                    self.say(FromWorker::Results(vec![result]));
                }
            }
        }
        Ok(())
    }

    fn hear(&mut self, message: ToWorker) -> Result<(), End> {
        self.heard = Instant::now();
        let p = self.world.profile();
        let (cut, freeze, credit_changes, drains) = (p.cut, p.freeze, p.credit_changes, p.drains);
        match message {
            ToWorker::Welcome(welcome) => self.welcomed(welcome),
            ToWorker::CreditAck(s) => {
                if self.drain_mark == Some(s.credit) {
                    self.closed_for_work = true;
                } else if let Some(sub) = self.subs.get_mut(&s.task_type)
                    && s.credit == sub.credit
                {
                    sub.limit = s.credit;
                }
            }
            ToWorker::Assign(assignments) => {
                for assignment in assignments {
                    self.assigned(assignment)?;
                }
            }
            ToWorker::ResultAcks(acks) => {
                for ack in acks {
                    self.acknowledged(ack);
                }
            }
            ToWorker::Cancel(tokens) => {
                for token in tokens {
                    let Some(held) = self.drop_work(&token) else { continue };
                    self.world.note(format_args!(
                        "{} is told to stop {}/{}",
                        self.label, held.assignment.run, held.assignment.path
                    ));
                    self.maybe_late(held);
                }
            }
            ToWorker::Ping => self.say(FromWorker::Pong),
            ToWorker::GoAway(within) => {
                self.closed_for_work = true;
                let most = (within.as_millis().max(0) as u64).min(3_000);
                self.leaves_at = Some(Instant::now() + self.rng.millis(0, most));
            }
        }
        if self.rng.chance(cut / 4.0) {
            return Err(End::Cut);
        }
        if self.rng.chance(freeze) {
            let time = self.rng.millis(500, 25_000);
            self.world.note(format_args!("{} freezes for {time:?}", self.label));
            self.frozen_until = Instant::now() + time;
        }
        if self.rng.chance(credit_changes) {
            self.change_credit();
        }
        if self.rng.chance(drains) && self.leaves_at.is_none() {
            self.say(FromWorker::Drain);
            if let Some(task_type) = self.subs.keys().next().cloned() {
                // Credit is of no use now, but its confirmation tells that both were read.
                let credit = self.rng.range(500, 900) as u32;
                self.drain_mark = Some(credit);
                if let Some(sub) = self.subs.get_mut(&task_type) {
                    sub.limit = credit;
                }
                self.say(FromWorker::Credit(Subscription { task_type, credit, labels: Labels::NONE }));
            }
            self.leaves_at = Some(Instant::now() + self.rng.millis(500, 8_000));
        }
        Ok(())
    }

    /// A worker that was away for a moment only, from servers that had no trouble, has its session still.
    fn must_be_known(&self) -> bool {
        let steady = Duration::from_secs(20);
        let calm = |at: Instant| Instant::now().checked_duration_since(at).is_some_and(|t| t > steady);
        let lost = self.world.audit.lock().last_rolled_back.is_some_and(|at| !calm(at));
        // A stall of everything is no time in which a worker that was silent before it was heard again.
        let stall = *self.world.stood_still.lock();
        let stall =
            stall.filter(|(end, _)| *end > self.frozen_until).map_or(Duration::ZERO, |(_, time)| time);
        // A clock that is set forward by hours outruns what keeps a silent session's record.
        let set = self.world.drawn().large_steps && self.world.clock.last_step().is_some_and(|at| !calm(at));
        self.parted.elapsed() < Duration::from_secs(5)
            && calm(self.frozen_until + stall)
            && !set
            && !lost
            && self.world.servers.iter().all(|s| calm(s.link.last_trouble()))
    }

    fn welcomed(&mut self, welcome: Welcome) {
        if let Some(session) = self.session.as_ref().filter(|s| **s != welcome.session)
            && self.must_be_known()
        {
            let what = format_args!(
                "{} was away for {:?} and is not known as {session}",
                self.label,
                self.parted.elapsed()
            );
            self.world.violation(what.to_string());
        }
        self.session = Some(welcome.session);
        self.grants();
        for token in std::mem::take(&mut self.named) {
            if welcome.valid.contains(&token) {
                // A result without an acknowledgement is sent again.
                if let Some(result) = self.held.get(&token).and_then(|h| h.result.clone()) {
                    self.say(FromWorker::Results(vec![result]));
                }
            } else if let Some(held) = self.drop_work(&token) {
                // An answered result is not a valid token any more: it, too, is sent again, to be accepted again.
                match held.result {
                    Some(result) => {
                        self.resent.insert(token, result.clone());
                        self.say(FromWorker::Results(vec![result]));
                    }
                    None => self.maybe_late(held),
                }
            }
        }
    }

    fn maybe_late(&mut self, held: Held) {
        if self.rng.chance(self.world.profile().late) {
            let token = held.assignment.token.clone();
            let outcome = outcome(&self.world, &mut self.rng, &held.assignment, &self.label);
            let at = Instant::now() + self.rng.millis(0, 3_000);
            self.plan(at, Act::Late(TaskResult { token, outcome }));
        }
    }

    fn assigned(&mut self, assignment: Assignment) -> Result<(), End> {
        let p = self.world.profile();
        let (die, deaf, ack_ms, work_ms) = (p.die, p.deaf, p.ack_ms, p.work_ms);
        let (run, path, attempt) = (&assignment.run, &assignment.path, assignment.attempt);
        self.world.note(format_args!("{} gets {run}/{path} attempt {attempt}", self.label));
        if self.closed_for_work {
            self.world.violation(format_args!("{} gets work after it was told to go away", self.label));
        }
        if self.held.contains_key(&assignment.token) {
            self.world.violation(format_args!("{} gets {run}/{path} twice under one token", self.label));
        }
        let count =
            self.held.values().filter(|h| h.assignment.task_type == assignment.task_type).count() as u32;
        match self.subs.get(&assignment.task_type) {
            None => self.world.violation(format_args!("{} gets a type it does not serve", self.label)),
            Some(sub) if count >= sub.limit => self.world.violation(format_args!(
                "{} gets {run}/{path} over its credit: it holds {count} and may hold {}",
                self.label, sub.limit
            )),
            Some(_) => {}
        }
        if self.rng.chance(deaf) {
            self.world.note(format_args!("{} loses it", self.label));
            if self.world.sabotage == Some(Sabotage::FalseAcks) {
                self.say(FromWorker::Ack(vec![assignment.token]));
            }
            return Ok(());
        }
        self.world.ledger.lock().given(&self.label, &assignment);
        if self.rng.chance(die) {
            return Err(End::Died);
        }
        let now = Instant::now();
        let acks = now + self.rng.millis(0, ack_ms);
        let done = acks + Duration::from_micros(self.rng.below(work_ms * 1_000 + 1));
        let token = assignment.token.clone();
        self.plan(acks, Act::Ack(token.clone()));
        self.plan(done, Act::Finish(token.clone()));
        self.held.insert(token, Held { assignment, result: None });
        Ok(())
    }

    fn finish(&mut self, token: String) -> Result<(), End> {
        let p = self.world.profile();
        let (die, cut, release, other, junk) = (p.die, p.cut, p.release, p.other_output, p.junk);
        let Some(held) = self.held.get_mut(&token) else { return Ok(()) };
        if held.result.is_some() {
            return Ok(());
        }
        if self.rng.chance(die) {
            return Err(End::Died);
        }
        let outcome = if self.rng.chance(release) {
            TaskOutcome::Released
        } else {
            outcome(&self.world, &mut self.rng, &held.assignment, &self.label)
        };
        let result = TaskResult { token: token.clone(), outcome };
        let mut results = vec![result.clone()];
        if self.rng.chance(other) {
            let outcome = TaskOutcome::Completed(output(&mut self.rng, &held.assignment, &self.label));
            results.push(TaskResult { token: token.clone(), outcome });
        }
        held.result = Some(result);
        if self.rng.chance(junk) {
            let token = match self.rng.below(3) {
                0 => "junk".to_owned(),
                1 => token[..token.len() - 3].to_owned(),
                _ => format!("{token}x"),
            };
            results.push(TaskResult { token, outcome: TaskOutcome::Completed(Bytes::from_static(b"1")) });
        }
        for r in &results {
            self.world.ledger.lock().says(&r.token, &r.outcome);
        }
        self.say(FromWorker::Results(results));
        if self.rng.chance(die) {
            return Err(End::Died);
        }
        if self.rng.chance(cut) {
            return Err(End::Cut);
        }
        Ok(())
    }

    fn acknowledged(&mut self, ack: ResultAck) {
        let world = Arc::clone(&self.world);
        let held = self.held.remove(&ack.token);
        let result = held.and_then(|h| h.result).or_else(|| self.resent.remove(&ack.token));
        // The answer to a second, other result cannot be told from a repeat of the first: outputs are compared with
        // what the store keeps only for the one that was held.
        let outcome = result.as_ref().map(|r| &r.outcome);
        let sent_two = world.drawn().other_output > 0.0;
        let mut ledger = world.ledger.lock();
        ledger.dropped(&ack.token);
        ledger.answered(&world, &ack.token, outcome.filter(|_| !sent_two), ack.status);
        drop(ledger);
        let status = ack.status;
        self.world.note(format_args!("{} is answered {status:?}", self.label));
        if status == AckStatus::Unknown
            && result.is_some()
            && !self.world.audit.lock().may_be_gone(&ack.token)
        {
            self.world.violation(format_args!("{}: a token of a run that is there is unknown", self.label));
        }
    }

    fn change_credit(&mut self) {
        let types: Vec<TaskType> = self.subs.keys().cloned().collect();
        if types.is_empty() || self.number == 0 {
            return;
        }
        let task_type = self.rng.pick(&types).clone();
        let credit = self.rng.below(7) as u32;
        if let Some(sub) = self.subs.get_mut(&task_type) {
            sub.limit = sub.limit.max(credit);
            sub.credit = credit;
        }
        self.say(FromWorker::Credit(Subscription { task_type, credit, labels: Labels::NONE }));
        self.grants();
    }
}
