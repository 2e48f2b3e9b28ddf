//! One run's letters → one decision, with tasks handed straight to workers that have credit.

use super::envelope::{Ask, Envelope, Reply};
use super::slot::{AtHand, Cached, Known};
use crate::app::inner::Inner;
use crate::dispatch::dispatcher::Party;
use crate::dispatch::message::Assignment;
use crate::dispatch::{Reservation, SessionKey};
use crate::engine::homes::HomeTxn;
use crate::engine::{Decision, Env, Stop, Txn};
use crate::model::command::{Command, LeaseTask, Outcome, Refusal, SessionView, Start};
use crate::model::ids::{Nonce, Partition, RunId, SessionId, TaskPath, TaskType, WorkflowName};
use crate::model::payload::Field;
use crate::model::plan::Plan;
use crate::model::run::{Holder, TaskPhase};
use crate::model::time::{Span, Timestamp};
use crate::model::token::TaskToken;
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::time::Instant;

/// A decision on its way to the store, with everything that waits for its verdict.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) run: RunId,
    pub(super) plan: Option<Arc<Plan>>,
    /// Letters with how they were taken.
    pub(super) letters: Vec<(Envelope, Result<Outcome, Refusal>)>,
    /// Work for the letter of that index (leases of taken entries).
    pub(super) leased: Vec<(usize, Assignment)>,
    /// Work handed over directly.
    pub(super) handed: Vec<(Reservation, Assignment)>,
    /// None: nothing changed, only the compare is asked for.
    pub(super) decision: Option<Decision>,
    /// Nothing changed, and what it was decided on was read after the letters came: no compare needed.
    pub(super) confirmed: bool,
}

/// What deciding came to.
#[derive(Debug)]
pub(super) enum Step {
    /// This.
    Decided(Box<Pending>),
    /// The run must be read first.
    NeedRun,
    /// The plan must be read first.
    NeedPlan(WorkflowName, u32),
    /// These payloads must be read first.
    NeedPayloads(Vec<Field>),
    /// These sessions must be read first.
    NeedSessions(Vec<SessionId>),
    /// The lease clock must be asked for first.
    NeedClock,
}

/// After this a lease has reached its stream, and a stream knows what it holds, or never will.
const SETTLED: Span = Span::secs(20);

/// Letters decided together at most.
pub(super) const LETTERS: usize = 512;

/// Sessions that hold attempts of a run.
fn holders(known: &Known) -> Vec<SessionId> {
    let Known::Present(c) = known else { return Vec::new() };
    let mut ids: Vec<_> = c
        .state
        .tasks
        .iter()
        .filter_map(|t| match &t.phase {
            TaskPhase::Running { lease, .. } => match &lease.holder {
                Holder::Session { id, .. } => Some(id.clone()),
                Holder::Claim { .. } => None,
            },
            TaskPhase::Pending { .. }
            | TaskPhase::Queued { .. }
            | TaskPhase::Retrying { .. }
            | TaskPhase::Waiting(_)
            | TaskPhase::Completed { .. }
            | TaskPhase::Failed { .. }
            | TaskPhase::Skipped { .. }
            | TaskPhase::Cancelled
            | TaskPhase::TimedOut { .. } => None,
        })
        .collect();
    ids.sort();
    ids.dedup();
    ids
}

/// The start among these letters. A run that was not read may be taken for absent only if its start comes first;
/// one that is known to be absent may have letters for an earlier run of its id ahead of it.
fn start_of(letters: &[Envelope], first_only: bool) -> Option<&Start> {
    let ahead = if first_only { 1 } else { letters.len() };
    letters.iter().take(ahead).find_map(|l| match &l.ask {
        Ask::Command(Command::Start(start)) => Some(start),
        Ask::Command(_) | Ask::Wake | Ask::Lease { .. } => None,
    })
}

/// Whether a lease is granted or judged by the lease clock.
fn looks_at_lease_clock(ask: &Ask) -> bool {
    matches!(ask, Ask::Wake | Ask::Lease { .. } | Ask::Command(Command::Heartbeat { .. }))
}

/// A lease of a session whose stream is here, and which that stream does not know of: its assignment was lost with
/// the answer to the commit, or the store has gone back to before its result. Nobody will ever end it. Its worker
/// is asked to resume and to say what it holds; what it does not name is lost then, and given out anew.
fn ask_back(inner: &Inner, partition: Partition, known: &Known) {
    let Known::Present(c) = known else { return };
    let Some(since) = Instant::now().checked_sub(SETTLED.to_std()) else { return };
    let settled = inner.clock.lease_now(partition);
    for (i, task) in (0..).zip(&c.state.tasks) {
        let TaskPhase::Running { lease, .. } = &task.phase else { continue };
        let Holder::Session { id, epoch } = &lease.holder else { continue };
        if lease.leased_at.plus(SETTLED) > settled {
            continue;
        }
        let path = c.state.path_of(&c.plan, i);
        let name = path.clone();
        let run = c.state.id.clone();
        let token = TaskToken { partition, run, path, attempt: task.attempt, nonce: lease.nonce }.encode();
        let mut dispatcher = inner.dispatcher.lock();
        if let Some(key) = dispatcher.lacks(id, *epoch, &token, since) {
            tracing::warn!(run = %c.state.id, task = %name, session = %id, "nobody works on a lease; its worker is asked to resume");
            dispatcher.close(key);
        }
    }
}

/// Decides `letters` on `known`. On `Need…` the letters come back in `letters`.
/// `blind`: a start may take an unread run for absent.
#[expect(clippy::too_many_arguments, reason = "all of it is read, none of it belongs together")]
pub(super) fn decide(
    inner: &Inner,
    run: &RunId,
    partition: Partition,
    known: &Known,
    letters: &mut Vec<Envelope>,
    fresh: bool,
    blind: bool,
    sessions: Option<&BTreeMap<SessionId, SessionView>>,
) -> Step {
    if run.is_reserved() {
        return decide_home(inner, run, partition, known, letters, fresh);
    }
    if letters.iter().any(|l| matches!(l.ask, Ask::Wake)) && sessions.is_none() {
        if matches!(known, Known::Unread) {
            return Step::NeedRun;
        }
        let ids = holders(known);
        if !ids.is_empty() {
            return Step::NeedSessions(ids);
        }
    }
    if letters.iter().any(|l| looks_at_lease_clock(&l.ask)) && !inner.clock.is_fresh(partition) {
        return Step::NeedClock;
    }
    if matches!(known, Known::Unread) && !blind {
        return Step::NeedRun;
    }
    if sessions.is_some() {
        ask_back(inner, partition, known);
    }
    let nothing = AtHand::default();
    let env = env(inner, partition);
    let mut of = None;
    let plan = match known {
        Known::Present(c) => Some(Arc::clone(&c.plan)),
        Known::Unread | Known::Absent | Known::Home(_) => {
            match start_of(letters, matches!(known, Known::Unread)) {
                Some(start) => match inner.plans.to_begin(&start.workflow, start.version) {
                    Some((plan, version)) => {
                        of = Some(Box::new(version));
                        Some(plan)
                    }
                    None => return Step::NeedPlan(start.workflow.clone(), start.version),
                },
                _ if matches!(known, Known::Unread) => return Step::NeedRun,
                _ => None,
            }
        }
    };
    let Some(plan) = plan else {
        // There is no such run, and nobody asks to start it.
        let letters = letters.drain(..).map(|l| (l, Err(Refusal::NoRun))).collect();
        return Step::Decided(Box::new(Pending {
            run: run.clone(),
            plan: None,
            letters,
            leased: Vec::new(),
            handed: Vec::new(),
            decision: None,
            confirmed: fresh,
        }));
    };
    let txn = match known {
        Known::Present(c) => {
            let Cached { state, prefix, payloads, .. } = &**c;
            Txn::existing(&plan, state, *prefix, payloads, env)
        }
        Known::Unread | Known::Absent | Known::Home(_) => Txn::absent(&plan, &nothing, env),
    };
    let mut work = Work { inner, run, partition, env, txn, handed: Vec::new() };
    match work.apply_all(letters, sessions) {
        Ok((outcomes, leased)) => {
            let Work { txn, handed, .. } = work;
            let mut decision = txn.finish();
            if let Some(decision) = &mut decision {
                decision.write.of = of;
            }
            let confirmed = decision.is_none() && fresh;
            let letters = letters.drain(..).zip(outcomes).collect();
            let plan = Some(plan);
            let run = run.clone();
            Step::Decided(Box::new(Pending { run, plan, letters, leased, handed, decision, confirmed }))
        }
        Err(fields) => {
            let mut dispatcher = inner.dispatcher.lock();
            for (reservation, _) in work.handed {
                dispatcher.give_back(reservation);
            }
            Step::NeedPayloads(fields)
        }
    }
}

/// Decides `letters` on a home record. Always read first, as commands to it are few.
fn decide_home(
    inner: &Inner,
    run: &RunId,
    partition: Partition,
    known: &Known,
    letters: &mut Vec<Envelope>,
    fresh: bool,
) -> Step {
    let base = match known {
        Known::Home(home) => Some((&home.home, home.prefix)),
        Known::Absent => None,
        Known::Unread | Known::Present(_) => return Step::NeedRun,
    };
    let mut txn = HomeTxn::new(run, base, env(inner, partition));
    let wake = Command::Wake { sessions: BTreeMap::new() };
    let outcomes: Vec<_> = letters
        .iter()
        .map(|letter| match &letter.ask {
            Ask::Command(command) => txn.apply(command),
            Ask::Wake => txn.apply(&wake),
            Ask::Lease { .. } => Err(Refusal::NoRun),
        })
        .collect();
    let decision = txn.finish();
    Step::Decided(Box::new(Pending {
        run: run.clone(),
        plan: None,
        letters: letters.drain(..).zip(outcomes).collect(),
        leased: Vec::new(),
        handed: Vec::new(),
        confirmed: decision.is_none() && fresh,
        decision,
    }))
}

/// What a decision of this moment may look at.
fn env(inner: &Inner, partition: Partition) -> Env {
    Env {
        now: inner.clock.now(),
        lease_now: inner.clock.lease_now(partition),
        partition,
        nonce: inner.options.entropy.nonce(),
        random: inner.options.entropy.next() as u64,
        lease: inner.options.lease,
        unacked: inner.options.unacked(),
    }
}

struct Work<'a> {
    inner: &'a Inner,
    run: &'a RunId,
    partition: Partition,
    env: Env,
    txn: Txn<'a>,
    handed: Vec<(Reservation, Assignment)>,
}

type Outcomes = (Vec<Result<Outcome, Refusal>>, Vec<(usize, Assignment)>);

impl Work<'_> {
    /// Applies every letter, then hands over what became ready. `Err`: payloads that are missing.
    fn apply_all(
        &mut self,
        letters: &[Envelope],
        sessions: Option<&BTreeMap<SessionId, SessionView>>,
    ) -> Result<Outcomes, Vec<Field>> {
        let mut outcomes = Vec::with_capacity(letters.len());
        let mut leased = Vec::new();
        let mut freed: Vec<(SessionKey, &str)> = Vec::new();
        for (n, letter) in letters.iter().enumerate() {
            let outcome = match &letter.ask {
                Ask::Command(command) => self.apply(command)?,
                Ask::Wake => {
                    self.apply(&Command::Wake { sessions: sessions.cloned().unwrap_or_default() })?
                }
                Ask::Lease { taken, party, .. } => {
                    let (path, generation) = (&taken.entry.path, taken.entry.generation);
                    match self.lease(path, generation, &taken.queue.task_type, party)? {
                        Ok((outcome, assignment)) => {
                            leased.push((n, assignment));
                            Ok(outcome)
                        }
                        Err(refusal) => Err(refusal),
                    }
                }
            };
            if let (Ok(Outcome::Accepted), Reply::Result { session, token }) = (&outcome, &letter.reply) {
                freed.push((*session, token));
            }
            outcomes.push(outcome);
        }
        self.hand_over(freed)?;
        Ok((outcomes, leased))
    }

    fn apply(&mut self, command: &Command) -> Result<Result<Outcome, Refusal>, Vec<Field>> {
        match self.txn.apply(command) {
            Ok(outcome) => Ok(Ok(outcome)),
            Err(Stop::Refused(refusal)) => Ok(Err(refusal)),
            Err(Stop::NeedPayloads(fields)) => Err(fields),
        }
    }

    fn lease(
        &mut self,
        path: &TaskPath,
        generation: u32,
        task_type: &TaskType,
        party: &Party,
    ) -> Result<Result<(Outcome, Assignment), Refusal>, Vec<Field>> {
        let input = match self.txn.input_of(path) {
            Ok(input) => input,
            Err(Stop::Refused(refusal)) => return Ok(Err(refusal)),
            Err(Stop::NeedPayloads(fields)) => return Err(fields),
        };
        let holder = match &party.session {
            Some((id, epoch)) => Holder::Session { id: id.clone(), epoch: *epoch },
            None => Holder::Claim { deadline: self.env.lease_now.plus(self.inner.options.lease) },
        };
        let command = Command::Lease(LeaseTask {
            path: path.clone(),
            generation,
            holder,
            worker: party.label.to_string(),
        });
        Ok(self.apply(&command)?.map(|outcome| {
            let (attempt, deadline) = match &outcome {
                Outcome::Leased { attempt, deadline } => (*attempt, *deadline),
                Outcome::Accepted
                | Outcome::Repeated
                | Outcome::Exists
                | Outcome::Nothing
                | Outcome::Granted { .. }
                | Outcome::Schedule(_)
                | Outcome::Held => (0, None),
            };
            let assignment = assignment(
                self.partition,
                self.run,
                path,
                attempt,
                self.env.nonce,
                task_type,
                input,
                deadline,
            );
            (outcome, assignment)
        }))
    }

    /// What became ready goes straight to a worker here that has credit and all its labels, unless something older
    /// waits that this worker could do.
    fn hand_over(&mut self, mut freed: Vec<(SessionKey, &str)>) -> Result<(), Vec<Field>> {
        if self.inner.draining.is_cancelled() || !self.inner.clock.is_fresh(self.partition) {
            return Ok(());
        }
        for ready in self.txn.ready() {
            let Some(ahead) = self.inner.queues.ahead(self.partition, &ready.queue, ready.score) else {
                continue;
            };
            let reserved = {
                let mut dispatcher = self.inner.dispatcher.lock();
                let own = freed.iter().enumerate().find_map(|(n, (session, token))| {
                    dispatcher.reserve_on_result(*session, token, &ready.queue, &ahead).map(|r| (n, r))
                });
                match own {
                    Some((n, reserved)) => {
                        freed.swap_remove(n);
                        Some(reserved)
                    }
                    None => dispatcher.reserve(&ready.queue, &ahead),
                }
            };
            let Some((reservation, party)) = reserved else { continue };
            match self.lease(&ready.path, ready.generation, &ready.queue.task_type, &party) {
                Ok(Ok((_, assignment))) => self.handed.push((reservation, assignment)),
                Ok(Err(_)) => self.inner.dispatcher.lock().give_back(reservation),
                Err(fields) => {
                    self.inner.dispatcher.lock().give_back(reservation);
                    return Err(fields);
                }
            }
        }
        Ok(())
    }
}

#[expect(clippy::too_many_arguments, reason = "one value per field of an assignment")]
fn assignment(
    partition: Partition,
    run: &RunId,
    path: &TaskPath,
    attempt: u32,
    nonce: Nonce,
    task_type: &TaskType,
    input: bytes::Bytes,
    deadline: Option<Timestamp>,
) -> Assignment {
    let token = TaskToken { partition, run: run.clone(), path: path.clone(), attempt, nonce }.encode();
    Assignment {
        token,
        run: run.clone(),
        path: path.clone(),
        attempt,
        task_type: task_type.clone(),
        input,
        deadline,
        trace: "".into(),
    }
}
