//! Several runs that share slots, and messages that are late, come twice and out of order: never more at once than
//! there are slots, nothing goes on without one, and none is lost.

use super::*;
use crate::engine::children::child_of;
use crate::engine::limits::REDELIVER;
use crate::model::command::{Action, ChildEnd};
use crate::model::document::parse;
use crate::model::home::{Claim, Home, Semaphore};
use crate::model::nodes::Level;
use crate::model::run::{TaskState, Waiting};
use proptest::prelude::*;

const KEY: &str = "env";
const LIMIT: usize = 2;

const DOCUMENTS: [&str; 3] = [
    "tasks:
  a: { type: work, retry: { max_attempts: 2, initial: 3s, jitter: 0 }, concurrency: { key: env, limit: 2 } }
  b: { needs: [a], when: always, type: work, timeout: { total: 20s }, concurrency: { key: env, limit: 2 } }",
    "fail_fast: true
tasks:
  m:
    for_each: [1, 2, 3]
    tolerate: 1
    concurrency: { key: env, limit: 2 }
    timeout: 60s
    tasks:
      x: { type: work, compensate: { type: undo } }
      y: { type: work, needs: [x], concurrency: { key: own, limit: 1 } }
  w: { wait: { for: 30s } }",
    "timeout: 5m
tasks:
  c: { workflow: sub, concurrency: { key: env, limit: 2 }, retry: { max_attempts: 2, initial: 1s } }
  r: { repeat: { max: 2 }, type: work, rate: { key: api, limit: 1, per: 5s }, concurrency: { key: env, limit: 2 } }
finally:
  f: { type: work, concurrency: { key: env, limit: 2 } }",
];

#[derive(Debug, Clone)]
enum Move {
    /// Takes the message at a place, or a copy of it.
    Deliver(u16, bool),
    Answer(u16, bool),
    Work(u8, u8, u8),
    Child(u8, bool),
    Pass(u8),
    Cancel(u8, bool),
    Pause(u8),
    Resume(u8),
    Act(u8, u8, u8),
    Retry(u8),
    Rerun(u8, u8),
    Delete(u8),
}

fn moves() -> impl Strategy<Value = Move> {
    let n = any::<u8>;
    let twice = || prop::bool::weighted(0.2);
    prop_oneof![
        14 => (any::<u16>(), twice()).prop_map(|(n, twice)| Move::Deliver(n, twice)),
        14 => (any::<u16>(), twice()).prop_map(|(n, twice)| Move::Answer(n, twice)),
        8 => (n(), n(), n()).prop_map(|(r, t, how)| Move::Work(r, t, how)),
        2 => (n(), any::<bool>()).prop_map(|(r, ok)| Move::Child(r, ok)),
        5 => n().prop_map(Move::Pass),
        1 => (n(), any::<bool>()).prop_map(|(r, force)| Move::Cancel(r, force)),
        1 => n().prop_map(Move::Pause),
        2 => n().prop_map(Move::Resume),
        2 => (n(), n(), n()).prop_map(|(r, t, how)| Move::Act(r, t, how)),
        2 => n().prop_map(Move::Retry),
        1 => (n(), n()).prop_map(|(r, t)| Move::Rerun(r, t)),
        1 => n().prop_map(Move::Delete),
    ]
}

struct Net {
    runs: Vec<(RunId, World)>,
    homes: Homes,
    /// Messages on their way, with who sent them.
    bag: Vec<(RunId, Delivery)>,
    /// Answers on their way.
    answers: Vec<(RunId, u32, Told)>,
}

fn starts(id: &RunId) -> Command {
    Command::Start(Start { id: id.clone(), ..start() })
}

impl Net {
    fn new() -> Self {
        let runs = DOCUMENTS.iter().enumerate().map(|(n, text)| {
            let text = format!("name: flow\n{text}");
            let plan = parse(text.as_bytes(), Format::Yaml).unwrap_or_else(|f| panic!("{f:?}")).plan;
            (RunId::new(&format!("r{n}")).unwrap(), World::new(plan))
        });
        let mut net =
            Self { runs: runs.collect(), homes: Homes::default(), bag: Vec::new(), answers: Vec::new() };
        for (id, world) in &mut net.runs {
            assert_eq!(world.apply(&starts(id)), Ok(Outcome::Accepted));
        }
        net.collect();
        net
    }

    /// What was sent is on its way.
    fn collect(&mut self) {
        for (id, world) in &mut self.runs {
            self.bag.extend(world.sent.drain(..).map(|d| (id.clone(), d)));
        }
    }

    fn run(&mut self, id: &RunId) -> Option<&mut World> {
        self.runs.iter_mut().find(|(r, _)| r == id).map(|(_, w)| w)
    }

    /// One command to a run, a home record, or nobody.
    fn tell(&mut self, to: &RunId, command: &Command) -> Result<Outcome, Refusal> {
        if to.is_reserved() {
            let env = self.runs[0].1.home_env();
            let (outcome, sent) = self.homes.apply(to, command, env);
            self.bag.extend(sent.into_iter().map(|d| (to.clone(), d)));
            return outcome;
        }
        let Some(world) = self.run(to) else { return Ok(Outcome::Accepted) };
        if world.state.is_none() && !matches!(command, Command::Start(_)) {
            return Err(Refusal::NoRun);
        }
        let outcome = world.apply(command);
        self.collect();
        outcome.map_err(|stop| match stop {
            super::super::Stop::Refused(refusal) => refusal,
            super::super::Stop::NeedPayloads(f) => panic!("{f:?}"),
        })
    }

    fn deliver(&mut self, n: usize, twice: bool) {
        let (from, delivery) = self.bag[n].clone();
        if !twice {
            self.bag.remove(n);
        }
        let answer = match &delivery.parcel {
            // Runs that are no part of this are there and do what they are told.
            Parcel::Start(_) | Parcel::Ended(_) | Parcel::IsOpen => Told::Done,
            Parcel::Command(command) => match self.tell(&delivery.to, command) {
                Ok(Outcome::Granted { at }) => Told::Granted { at },
                Err(Refusal::NoRun) => Told::Gone,
                Err(Refusal::Full) => panic!("full"),
                Ok(_) | Err(_) => Told::Done,
            },
        };
        self.answers.push((from, delivery.sequence, answer));
    }

    fn answer(&mut self, n: usize, twice: bool) {
        let (to, sequence, answer) = self.answers[n].clone();
        if !twice {
            self.answers.remove(n);
        }
        drop(self.tell(&to, &Command::Settled { sequence, answer }));
    }

    /// Time goes on, and whoever is due is woken.
    fn pass(&mut self, time: Span) {
        for (_, world) in &mut self.runs {
            world.pass(time);
        }
        let ids: Vec<RunId> = self.runs.iter().map(|(id, _)| id.clone()).collect();
        for id in ids {
            let view =
                SessionView { epoch: 1, remaining: Span::secs(10), owner_gone: false, resuming: false };
            let due = self.run(&id).is_some_and(|w| w.wake.is_some_and(|at| at <= w.now));
            if due {
                drop(self.tell(&id, &Command::Wake { sessions: [(session(1), view)].into() }));
            }
        }
        for key in ["env", "own"] {
            drop(self.tell(&Semaphore::home(key), &Command::Wake { sessions: Sessions::new() }));
        }
    }

    fn make(&mut self, m: &Move) {
        let nth = |n: u8| usize::from(n) % DOCUMENTS.len();
        let id = |net: &Self, n: u8| net.runs[nth(n)].0.clone();
        match m {
            Move::Deliver(n, twice) if !self.bag.is_empty() => {
                self.deliver(usize::from(*n) % self.bag.len(), *twice);
            }
            Move::Answer(n, twice) if !self.answers.is_empty() => {
                self.answer(usize::from(*n) % self.answers.len(), *twice);
            }
            Move::Deliver(..) | Move::Answer(..) => {}
            Move::Work(r, t, how) => {
                let id = id(self, *r);
                let world = &mut self.runs[nth(*r)].1;
                let Some(state) = &world.state else { return };
                let queued: Vec<u32> =
                    (0..state.tasks.len() as u32).filter(|i| world.generation(*i).is_some()).collect();
                if queued.is_empty() {
                    return;
                }
                let attempt = world.lease(queued[usize::from(*t) % queued.len()]);
                let failure =
                    ReportedFailure { code: "x".into(), retryable: true, ..ReportedFailure::default() };
                let command = match how % 4 {
                    0 | 1 => Command::Complete { attempt, output: Ok(Bytes::from_static(b"1")) },
                    2 => Command::Fail { attempt, failure },
                    _ => Command::Release { attempt },
                };
                self.tell(&id, &command).unwrap();
            }
            Move::Child(r, ok) => self.end_child(nth(*r), *ok),
            Move::Pass(secs) => self.pass(Span::secs(i64::from(*secs % 40))),
            Move::Cancel(r, force) => {
                let command = Command::Cancel { compensate: true, force: *force };
                drop(self.tell(&id(self, *r), &command));
            }
            Move::Pause(r) => drop(self.tell(&id(self, *r), &Command::Pause)),
            Move::Resume(r) => drop(self.tell(&id(self, *r), &Command::Resume)),
            Move::Act(r, t, how) => {
                let Some(path) = self.path(nth(*r), *t) else { return };
                let action = match how % 3 {
                    0 => Action::Skip,
                    1 => Action::Complete(Bytes::from_static(b"2")),
                    _ => Action::Fail(ReportedFailure::default()),
                };
                drop(self.tell(&id(self, *r), &Command::Act { path, action }));
            }
            Move::Retry(r) => drop(self.tell(&id(self, *r), &Command::Retry)),
            Move::Rerun(r, t) => {
                let Some(path) = self.path(nth(*r), *t) else { return };
                drop(self.tell(&id(self, *r), &Command::Rerun { path, input: None }));
            }
            Move::Delete(r) => {
                let id = id(self, *r);
                if self.tell(&id, &Command::Delete { expired: false }) == Ok(Outcome::Accepted) {
                    self.pass(Span::millis(1));
                    self.tell(&id, &starts(&id)).unwrap();
                }
            }
        }
    }

    fn path(&self, run: usize, node: u8) -> Option<TaskPath> {
        let world = &self.runs[run].1;
        let state = world.state.as_ref()?;
        Some(state.path_of(&world.plan, (usize::from(node) % state.tasks.len()) as u32))
    }

    fn end_child(&mut self, run: usize, ok: bool) {
        let (id, world) = &self.runs[run];
        let Some(state) = &world.state else { return };
        let waits = |t: &TaskState| match t.phase {
            TaskPhase::Waiting(Waiting::Child { ticket, .. }) => Some(ticket),
            _ => None,
        };
        let Some((i, ticket)) = (0..).zip(&state.tasks).find_map(|(i, t)| Some((i, waits(t)?))) else {
            return;
        };
        let child = child_of(state, &world.plan, i, state.tasks[i as usize].attempt).unwrap();
        let end = if ok {
            ChildEnd::Completed(Bytes::from_static(b"1"))
        } else {
            ChildEnd::Failed { status: RunStatus::Failed, code: "x".into(), message: String::new() }
        };
        let task = state.path_of(&world.plan, i);
        let id = id.clone();
        self.tell(&id, &Command::ChildEnded { task, child, ticket, end }).unwrap();
    }

    /// What must hold after every move.
    fn check(&self) {
        let holders: Vec<&Claim> = match self.homes.get(&Semaphore::home(KEY)) {
            Some(Home::Semaphore(s)) => s.holders.keys().collect(),
            _ => Vec::new(),
        };
        assert!(holders.len() <= LIMIT);
        let mut going = 0;
        for (id, world) in &self.runs {
            let Some(state) = &world.state else { continue };
            for (i, task) in (0..).zip(&state.tasks) {
                let plan = &world.plan.tasks[state.plan_index(i) as usize];
                let limited = plan.concurrency.is_some() && state.level(&world.plan, i) == Level::Body;
                let waits = matches!(task.phase, TaskPhase::Waiting(Waiting::Permit { .. }));
                let begun =
                    !waits && !task.phase.is_terminal() && !matches!(task.phase, TaskPhase::Pending { .. });
                let permit = task.permit.as_ref();
                assert!(permit.is_none() || begun || waits, "{id} {i}: {task:?}");
                if begun && limited {
                    assert!(permit.is_some_and(|p| p.granted), "{id} {i} goes on without a slot: {task:?}");
                }
                if let Some(p) = permit.filter(|p| p.granted && p.key == KEY) {
                    going += 1;
                    let claim = Claim { run: id.clone(), ticket: p.ticket };
                    assert!(holders.contains(&&claim), "{id} {i} has a slot that it was not granted");
                }
            }
        }
        assert!(going <= LIMIT);
    }

    /// Everything arrives, everybody does what there is to do, and the runs end.
    fn finish(&mut self) {
        for n in 0..DOCUMENTS.len() as u8 {
            self.make(&Move::Resume(n));
        }
        for round in 0..400 {
            while !self.bag.is_empty() || !self.answers.is_empty() {
                if !self.bag.is_empty() {
                    self.deliver(0, false);
                    self.check();
                }
                if !self.answers.is_empty() {
                    self.answer(0, false);
                    self.check();
                }
            }
            let done =
                |w: &World| w.state.as_ref().is_none_or(|s| s.status.is_terminal() && s.outbox.is_empty());
            if self.runs.iter().all(|(_, w)| done(w)) && round > 10 {
                break;
            }
            for n in 0..DOCUMENTS.len() as u8 {
                for _ in 0..4 {
                    self.make(&Move::Work(n, 0, 0));
                }
                self.make(&Move::Child(n, true));
            }
            self.pass(REDELIVER);
            self.check();
        }
        for (id, world) in &self.runs {
            let state = world.run();
            assert!(state.status.is_terminal(), "{id} does not end: {:?}", state.tasks);
            assert!(state.outbox.is_empty() && state.tasks.iter().all(|t| t.permit.is_none()));
            assert_eq!(world.wake, None);
        }
        for key in ["env", "own"] {
            assert_eq!(self.homes.get(&Semaphore::home(key)), None, "a slot of {key} is lost");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, max_shrink_iters: 4_000, ..ProptestConfig::default() })]

    #[test]
    fn slots_are_never_passed_never_lost_and_nothing_goes_on_without_one(
        moves in prop::collection::vec(moves(), 0..250),
    ) {
        let mut net = Net::new();
        net.check();
        for step in &moves {
            net.make(step);
            net.check();
        }
        net.finish();
    }
}
