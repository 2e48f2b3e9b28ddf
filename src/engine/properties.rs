//! Random graphs, random commands in random order, and after each what must always hold.

use super::limits::{HEARTBEAT_SHARE, LEASE};
use super::testing::{World, failure, path, plan, session};
use super::wake::Sessions;
use super::{Stop, queued, standing};
use crate::model::command::{AttemptKey, Command, LeaseTask, Outcome, Refusal, SessionView};
use crate::model::commit::{QueueOp, WakeOp};
use crate::model::event::EventKind;
use crate::model::plan::{Plan, RetryPolicy, Timeouts, When};
use crate::model::run::{Holder, TaskPhase};
use crate::model::time::{Span, Timestamp};
use bytes::Bytes;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

#[derive(Debug, Clone)]
struct TaskSeed {
    needs: u8,
    when: When,
    continue_on_error: bool,
    attempts: u32,
    delay: i64,
    limits: [Option<i64>; 4],
}

fn task_seeds() -> impl Strategy<Value = TaskSeed> {
    let when = prop_oneof![3 => Just(When::Success), 1 => Just(When::Failure), 1 => Just(When::Always)];
    let limit = || prop::option::weighted(0.2, 1..20i64);
    (any::<u8>(), when, any::<bool>(), 1..4u32, 0..3i64, [limit(), limit(), limit(), limit()]).prop_map(
        |(needs, when, continue_on_error, attempts, delay, limits)| TaskSeed {
            needs,
            when,
            continue_on_error,
            attempts,
            delay,
            limits,
        },
    )
}

fn make_plan(seeds: &[TaskSeed], fail_fast: bool, timeout: Option<i64>) -> Plan {
    let edges: Vec<Vec<u32>> = seeds
        .iter()
        .enumerate()
        .map(|(i, s)| (0..i as u32).filter(|n| s.needs >> n & 1 == 1).collect())
        .collect();
    let edges: Vec<&[u32]> = edges.iter().map(Vec::as_slice).collect();
    let mut plan = plan(&edges);
    for (task, seed) in plan.tasks.iter_mut().zip(seeds) {
        task.when = seed.when;
        task.continue_on_error = seed.continue_on_error;
        let initial = Span::secs(seed.delay);
        task.retry = RetryPolicy { max_attempts: seed.attempts, initial, ..RetryPolicy::default() };
        let [queue, run, heartbeat, total] = seed.limits.map(|l| l.map(Span::secs));
        task.timeout = Timeouts { queue, run, heartbeat, total };
    }
    plan.fail_fast = fail_fast;
    plan.timeout = timeout.map(Span::secs);
    plan
}

/// One move. Numbers choose among what there is at that moment.
#[derive(Debug, Clone)]
enum Move {
    Lease { nth: u8, claim: bool },
    LeaseStale { task: u8, generation: u8 },
    Complete(u8),
    Fail { nth: u8, retryable: bool },
    Reject(u8),
    Release(u8),
    Undelivered(u8),
    Acked(u8),
    Heartbeat { nth: u8, claim: bool },
    Adopt { nth: u8, epoch: u8 },
    Replay(u8),
    Guess(u8),
    Wake { epoch: u8, remaining: u8, owner_gone: bool, resuming: bool },
    Pass { ms: u16, stalled: bool },
    Cancel,
    Delete,
}

fn moves() -> impl Strategy<Value = Move> {
    prop_oneof![
        8 => (any::<u8>(), prop::bool::weighted(0.2)).prop_map(|(nth, claim)| Move::Lease { nth, claim }),
        1 => (any::<u8>(), any::<u8>()).prop_map(|(task, generation)| Move::LeaseStale { task, generation }),
        5 => any::<u8>().prop_map(Move::Complete),
        4 => (any::<u8>(), prop::bool::weighted(0.8)).prop_map(|(nth, retryable)| Move::Fail { nth, retryable }),
        1 => any::<u8>().prop_map(Move::Reject),
        1 => any::<u8>().prop_map(Move::Release),
        2 => any::<u8>().prop_map(Move::Undelivered),
        1 => any::<u8>().prop_map(Move::Acked),
        1 => (any::<u8>(), any::<bool>()).prop_map(|(nth, claim)| Move::Heartbeat { nth, claim }),
        1 => (any::<u8>(), 0..3u8).prop_map(|(nth, epoch)| Move::Adopt { nth, epoch }),
        2 => any::<u8>().prop_map(Move::Replay),
        1 => any::<u8>().prop_map(Move::Guess),
        4 => (0..3u8, 0..11u8, any::<bool>(), any::<bool>())
            .prop_map(|(epoch, remaining, owner_gone, resuming)| Move::Wake { epoch, remaining, owner_gone, resuming }),
        4 => (0..8_000u16, prop::bool::weighted(0.2)).prop_map(|(ms, stalled)| Move::Pass { ms, stalled }),
        1 => prop::bool::weighted(0.1).prop_map(|c| if c { Move::Cancel } else { Move::Delete }),
    ]
}

fn nth<T: Clone>(of: &[T], n: u8) -> Option<T> {
    (!of.is_empty()).then(|| of[usize::from(n) % of.len()].clone())
}

/// The world and what the test remembers of it.
struct Game {
    world: World,
    /// Results that were accepted, in order.
    accepted: Vec<Command>,
    /// Every token there was.
    tokens: Vec<AttemptKey>,
}

impl Game {
    fn with_phase(&self, name: &str) -> Vec<u32> {
        let tasks = self.world.run().tasks.iter().enumerate();
        tasks.filter(|(_, t)| t.phase.name() == name).map(|(i, _)| i as u32).collect()
    }

    fn running(&self, n: u8) -> Option<AttemptKey> {
        nth(&self.with_phase("running"), n).map(|i| self.world.key(i))
    }

    /// What a move is at this moment, if it can be made.
    fn command(&self, m: &Move) -> Option<Command> {
        Some(match m {
            Move::Lease { nth: n, claim } => {
                let holder = if *claim {
                    Holder::Claim { deadline: self.world.lease_now.plus(Span::secs(5)) }
                } else {
                    Holder::Session { id: session(1), epoch: 1 }
                };
                self.world.lease_command(nth(&self.with_phase("queued"), *n)?, holder)
            }
            Move::LeaseStale { task, generation } => Command::Lease(LeaseTask {
                path: path(u32::from(*task) % 8),
                generation: u32::from(*generation) + 10_000,
                holder: Holder::Session { id: session(1), epoch: 1 },
                worker: "stale".into(),
            }),
            Move::Complete(n) => {
                let output = Bytes::from(vec![b'7'; usize::from(*n) + 1]);
                Command::Complete { attempt: self.running(*n)?, output: Ok(output) }
            }
            Move::Fail { nth: n, retryable } => {
                let failure =
                    crate::model::command::ReportedFailure { retryable: *retryable, ..failure("x") };
                Command::Fail { attempt: self.running(*n)?, failure }
            }
            Move::Reject(n) => Command::Complete {
                attempt: self.running(*n)?,
                output: Err(crate::model::command::RejectedValue {
                    code: "invalid_output",
                    message: "no".into(),
                }),
            },
            Move::Release(n) => Command::Release { attempt: self.running(*n)? },
            Move::Undelivered(n) => Command::Undelivered { attempt: self.running(*n)? },
            Move::Acked(n) => Command::Acked { attempt: self.running(*n)? },
            Move::Heartbeat { nth: n, claim } => {
                let extend_claim = claim.then_some(Span::secs(5));
                Command::Heartbeat { attempt: self.running(*n)?, extend_claim }
            }
            Move::Adopt { nth: n, epoch } => {
                let (session, epoch) = (session(1), u32::from(*epoch));
                Command::Adopt { attempt: self.running(*n)?, session, epoch }
            }
            Move::Replay(n) => nth(&self.accepted, *n)?,
            Move::Guess(n) => {
                let mut attempt = nth(&self.tokens, *n)?;
                attempt.nonce.0[15] ^= 1;
                Command::Complete { attempt, output: Ok(Bytes::from_static(b"1")) }
            }
            Move::Wake { epoch, remaining, owner_gone, resuming } => {
                let remaining = Span::secs(i64::from(*remaining));
                let (epoch, owner_gone, resuming) = (u32::from(*epoch), *owner_gone, *resuming);
                let view = SessionView { epoch, remaining, owner_gone, resuming };
                Command::Wake { sessions: Sessions::from([(session(1), view)]) }
            }
            Move::Pass { .. } => return None,
            Move::Cancel => Command::Cancel { compensate: false, force: false },
            Move::Delete => Command::Delete { expired: true },
        })
    }

    fn play(&mut self, moves: &[Move]) {
        let mut commands = Vec::new();
        for m in moves {
            if let Move::Pass { ms, stalled } = m {
                let span = Span::millis(i64::from(*ms));
                self.world.now = self.world.now.plus(span);
                if !stalled {
                    self.world.lease_now = self.world.lease_now.plus(span);
                }
            } else {
                commands.extend(self.command(m));
            }
        }
        if commands.is_empty() {
            return;
        }
        let before = self.world.state.clone();
        let outcomes = self.world.apply_all(&commands);
        let refused = outcomes.iter().all(|o| o.is_err() || *o == Ok(Outcome::Repeated));
        if refused {
            assert_eq!(self.world.state, before, "{outcomes:?}");
        }
        for (command, outcome) in commands.iter().zip(&outcomes) {
            self.check_outcome(command, outcome);
        }
        for i in self.with_phase("running") {
            let key = self.world.key(i);
            if !self.tokens.contains(&key) {
                self.tokens.push(key);
            }
        }
        check_state(&self.world);
        // The last result that was accepted is accepted again, and changes nothing.
        if let Some(Ok(Outcome::Accepted)) = outcomes.last()
            && let Some(command) = commands.last().filter(|c| is_result(c))
        {
            let before = self.world.state.clone();
            assert_eq!(self.world.apply(command), Ok(Outcome::Repeated));
            assert_eq!(self.world.state, before);
        }
    }

    fn check_outcome(&mut self, command: &Command, outcome: &Result<Outcome, Stop>) {
        if is_result(command) {
            match outcome {
                Ok(Outcome::Accepted) => {
                    assert!(!self.accepted.contains(command), "accepted twice: {command:?}");
                    self.accepted.push(command.clone());
                }
                Ok(Outcome::Repeated) => assert!(self.accepted.iter().any(|a| repeats(command, a))),
                Err(Stop::Refused(Refusal::Stale)) => {}
                other => panic!("{command:?}: {other:?}"),
            }
        }
        if let Command::Complete { attempt, .. } = command
            && attempt.nonce.0[15] & 1 == 1
        {
            // Nonces of this world end in zero.
            assert_eq!(*outcome, Err(Stop::Refused(Refusal::Stale)));
        }
        if let Command::Lease(LeaseTask { generation: 10_000.., .. }) = command {
            assert!(matches!(outcome, Err(Stop::Refused(Refusal::Stale | Refusal::Unknown))));
        }
    }

    /// A worker that takes everything and never fails: the run must come to an end.
    fn serve(&mut self) {
        for _ in 0..1_000 {
            if self.world.run().status.is_terminal() {
                return;
            }
            if let Some(i) = self.with_phase("queued").first() {
                self.world.complete(*i);
            } else if let Some(attempt) = self.running(0) {
                let command = Command::Complete { attempt, output: Ok(Bytes::new()) };
                assert_eq!(self.world.apply(&command), Ok(Outcome::Accepted));
            } else {
                let wake = self.world.wake.unwrap();
                let span = wake.since(self.world.now);
                self.world.pass(span);
                self.world.wake();
            }
            check_state(&self.world);
        }
        panic!("the run goes on for ever: {:?}", self.world.statuses());
    }
}

/// Whether a result tells what an accepted one told. Whether a failure may be retried is no part of it.
fn repeats(command: &Command, accepted: &Command) -> bool {
    match (command, accepted) {
        (Command::Fail { attempt: a, failure: f }, Command::Fail { attempt: b, failure: g }) => {
            a == b && f.code == g.code && f.message == g.message
        }
        _ => command == accepted,
    }
}

fn is_result(command: &Command) -> bool {
    matches!(command, Command::Complete { .. } | Command::Fail { .. } | Command::Release { .. })
}

/// Everything that holds after every decision, told independently of how the engine does it.
fn check_state(world: &World) {
    check_counters(world);
    check_log(world);
    check_wake(world);
    let waiting: BTreeSet<(String, u32)> =
        world.queue.keys().map(|e| (e.path.as_str().to_owned(), e.generation)).collect();
    let queued: BTreeSet<(String, u32)> = world
        .run()
        .tasks
        .iter()
        .enumerate()
        .filter_map(|(i, t)| Some((format!("t{i}"), queued(t)?)))
        .collect();
    assert_eq!(waiting, queued, "an entry waits exactly while its task does");
    check_standing(world);
}

/// What decisions have left beside the record is what is made of the record alone.
fn check_standing(world: &World) {
    let standing = standing::of_run(Some(&world.plan), world.run(), Bytes::new());
    let entries = standing.queue.into_iter().map(|op| match op {
        QueueOp::Add { entry, score, .. } => (entry, score),
        QueueOp::Remove { .. } => panic!("nothing stands there before"),
    });
    assert_eq!(entries.collect::<BTreeMap<_, _>>(), world.queue);
    let wake = if let WakeOp::Set(at) = standing.wake { Some(at) } else { None };
    assert_eq!(wake, world.wake);
    assert_eq!(standing.retain_until.flatten(), world.retain_until);
    assert!(standing::needs_plan(world.run()) || world.queue.is_empty());
}

fn check_counters(world: &World) {
    let run = world.run();
    let open = run.tasks.iter().filter(|t| !t.phase.is_terminal()).count();
    assert_eq!(run.open_tasks as usize, open);
    assert_eq!(run.status.is_terminal(), open == 0);
    assert_eq!(run.ended_at.is_some(), open == 0);
    for (task, plan) in run.tasks.iter().zip(&world.plan.tasks) {
        let TaskPhase::Pending { remaining, any_failed, any_completed } = task.phase else { continue };
        let (mut left, mut failed, mut completed) = (0, false, false);
        for n in &plan.needs {
            let forgiven = world.plan.tasks[*n as usize].continue_on_error;
            match &run.tasks[*n as usize].phase {
                TaskPhase::Completed { .. } => completed = true,
                TaskPhase::Failed { .. } | TaskPhase::TimedOut { .. } | TaskPhase::Cancelled => {
                    completed |= forgiven;
                    failed |= !forgiven;
                }
                TaskPhase::Skipped { counts_as_failed } => failed |= counts_as_failed,
                TaskPhase::Pending { .. }
                | TaskPhase::Queued { .. }
                | TaskPhase::Running { .. }
                | TaskPhase::Retrying { .. }
                | TaskPhase::Waiting(_) => left += 1,
            }
        }
        assert_eq!((remaining, any_failed, any_completed), (left, failed, completed));
        assert!(left > 0, "a task whose needs have ended was not looked at");
    }
}

/// Walks the log as a reader of events would.
fn check_log(world: &World) {
    let run = world.run();
    assert_eq!(world.told as usize, run.log.len(), "every event was told once");
    assert!(run.log.iter().is_sorted_by_key(|e| e.time));
    assert_eq!(run.log[0].kind, EventKind::RunStarted);
    // Where each task is: 0 nowhere, 1 queued, 2 started, 3 between attempts, 4 ended.
    let mut at: BTreeMap<u32, (u8, u32)> = BTreeMap::new();
    for (n, e) in run.log.iter().enumerate() {
        assert!(!e.kind.ends_run() || n + 1 == run.log.len(), "an event follows the last");
        let Some(i) = e.task else { continue };
        let (place, attempt) = at.get(&i).copied().unwrap_or((0, 0));
        let next = match e.kind {
            EventKind::TaskQueued => {
                if place == 0 {
                    let ended = |n: &u32| at.get(n).is_some_and(|(p, _)| *p == 4);
                    assert!(
                        world.plan.tasks[i as usize].needs.iter().all(ended),
                        "t{i} came before its needs"
                    );
                }
                let again = place == 2 && e.attempt == attempt && e.delivery > 1;
                let first = matches!(place, 0 | 3) && e.attempt == attempt + 1 && e.delivery == 1;
                assert!(again || first, "queued out of turn: {e:?}");
                1
            }
            EventKind::TaskStarted => {
                assert_eq!((place, e.attempt), (1, attempt), "started out of turn: {e:?}");
                2
            }
            EventKind::TaskRetrying => {
                assert_eq!((place, e.attempt), (2, attempt), "retried out of turn: {e:?}");
                3
            }
            EventKind::TaskCompleted => {
                assert_eq!((place, e.attempt), (2, attempt), "completed out of turn: {e:?}");
                4
            }
            EventKind::TaskFailed
            | EventKind::TaskSkipped
            | EventKind::TaskCancelled
            | EventKind::TaskTimedOut => {
                assert!(place < 4, "ended twice: {e:?}");
                4
            }
            EventKind::RunStarted
            | EventKind::RunCompleted
            | EventKind::RunFailed
            | EventKind::RunCancelled
            | EventKind::RunTimedOut
            | EventKind::RunPaused
            | EventKind::RunResumed
            | EventKind::RunRetried
            | EventKind::SignalReceived
            | EventKind::ScheduleFired
            | EventKind::ScheduleSkipped => panic!("a run's event names a task: {e:?}"),
            EventKind::TaskWaiting => panic!("no task of these plans waits: {e:?}"),
        };
        at.insert(i, (next, e.attempt));
    }
    let ended = run.log.last().is_some_and(|e| e.kind.ends_run());
    assert_eq!(ended, run.status.is_terminal());
    if let Some(last) = run.log.last().filter(|_| ended) {
        assert_eq!(last.kind.name().strip_prefix("run."), Some(run.status.name()));
    }
}

fn check_wake(world: &World) {
    let run = world.run();
    assert_eq!(world.wake, run.armed);
    assert_eq!(world.wake.is_none(), run.status.is_terminal());
    let Some(wake) = world.wake else { return };
    let by =
        |what: &str, at: Timestamp| assert!(wake <= at, "{what} at {at:?}, but the run is woken at {wake:?}");
    // The wall time of an instant of the lease clock, at the least.
    let wall = |at: crate::model::time::LeaseTime| world.now.plus(at.since(world.lease_now));
    if let Some(deadline) = run.deadline {
        by("deadline", deadline);
    }
    for (task, plan) in run.tasks.iter().zip(&world.plan.tasks) {
        let limits = &plan.timeout;
        if let (Some(total), Some(first)) = (limits.total, task.first_queued_at) {
            by("total", first.plus(total));
        }
        match &task.phase {
            TaskPhase::Queued { since, .. } => {
                if let Some(queue) = limits.queue {
                    by("queue", since.plus(queue));
                }
            }
            TaskPhase::Retrying { due } => by("retry", *due),
            TaskPhase::Running { lease, .. } => {
                if let Some(limit) = limits.run {
                    by("run", wall(lease.leased_at.plus(limit)));
                }
                if let Some(limit) = limits.heartbeat {
                    let last = lease.heartbeat_at.unwrap_or(lease.leased_at);
                    by("heartbeat", wall(last.plus(limit).plus(Span(limit.0 / HEARTBEAT_SHARE))));
                }
                match &lease.holder {
                    Holder::Claim { deadline } => by("claim", wall(*deadline)),
                    Holder::Session { .. } => by("session", world.now.plus(LEASE)),
                }
            }
            TaskPhase::Pending { .. }
            | TaskPhase::Waiting(_)
            | TaskPhase::Completed { .. }
            | TaskPhase::Failed { .. }
            | TaskPhase::Skipped { .. }
            | TaskPhase::Cancelled
            | TaskPhase::TimedOut { .. } => {}
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn whatever_happens_a_run_stays_sound_and_ends(
        seeds in prop::collection::vec(task_seeds(), 1..8),
        fail_fast: bool,
        timeout in prop::option::weighted(0.2, 5..60i64),
        moves in prop::collection::vec(prop::collection::vec(moves(), 1..4), 0..40),
        random: u64,
    ) {
        let mut world = World::new(make_plan(&seeds, fail_fast, timeout));
        world.random = random;
        let start = Command::Start(super::testing::start());
        assert_eq!(world.apply(&start), Ok(Outcome::Accepted));
        check_state(&world);
        let mut game = Game { world, accepted: Vec::new(), tokens: Vec::new() };
        for group in &moves {
            game.play(group);
        }
        game.serve();
        for command in game.accepted.clone() {
            let outcome = game.world.apply(&command);
            prop_assert!(matches!(outcome, Ok(Outcome::Repeated) | Err(Stop::Refused(Refusal::Stale))));
        }
    }
}
