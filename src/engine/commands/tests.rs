use crate::engine::testing::{World, chain, failure, path, plan, session, start};
use crate::engine::{Payloads, Stop, Txn, history, limits};
use crate::model::command::{
    AttemptKey, Command, LeaseTask, Outcome, Refusal, RejectedValue, ReportedFailure, Start,
};
use crate::model::event::EventKind;
use crate::model::ids::{Nonce, TaskPath};
use crate::model::payload::{Field, PAYLOAD_MAX, Payload};
use crate::model::plan::RetryPolicy;
use crate::model::run::{Holder, RunStatus, TaskPhase};
use crate::model::time::Span;
use crate::model::token::TaskToken;
use bytes::Bytes;

const STALE: Result<Outcome, Stop> = Err(Stop::Refused(Refusal::Stale));
const UNKNOWN: Result<Outcome, Stop> = Err(Stop::Refused(Refusal::Unknown));
const NO_RUN: Result<Outcome, Stop> = Err(Stop::Refused(Refusal::NoRun));

fn complete(attempt: &AttemptKey, output: &str) -> Command {
    Command::Complete { attempt: attempt.clone(), output: Ok(Bytes::copy_from_slice(output.as_bytes())) }
}

fn fail(attempt: &AttemptKey, code: &str) -> Command {
    Command::Fail { attempt: attempt.clone(), failure: failure(code) }
}

fn retrying() -> World {
    let mut p = chain(1);
    p.tasks[0].retry = RetryPolicy { max_attempts: 3, initial: Span(0), ..RetryPolicy::default() };
    World::started(p)
}

#[test]
fn only_a_start_is_taken_by_a_run_that_does_not_exist() {
    let attempt = AttemptKey { path: path(0), attempt: 1, nonce: Nonce([0; 16]) };
    let mut w = World::new(chain(1));
    for command in [
        complete(&attempt, "1"),
        fail(&attempt, "x"),
        Command::Release { attempt: attempt.clone() },
        Command::Wake { sessions: std::collections::BTreeMap::new() },
        Command::Cancel { compensate: false, force: false },
        Command::Delete { expired: false },
    ] {
        assert_eq!(w.apply(&command), NO_RUN, "{command:?}");
    }
    assert_eq!(w.apply(&Command::Start(start())), Ok(Outcome::Accepted));
}

#[test]
fn a_start_is_idempotent_by_its_digest() {
    let mut w = World::started(chain(1));
    let before = w.state.clone();
    assert_eq!(w.apply(&Command::Start(start())), Ok(Outcome::Exists));
    let other = Start { digest: [8; 16], ..start() };
    assert_eq!(w.apply(&Command::Start(other)), Err(Stop::Refused(Refusal::IdTaken)));
    assert_eq!(w.state, before);
    let twice = [Command::Start(start()), Command::Start(start())];
    let mut w = World::new(chain(1));
    assert_eq!(w.apply_all(&twice), [Ok(Outcome::Accepted), Ok(Outcome::Exists)]);
}

#[test]
fn a_start_lays_out_the_run() {
    let mut p = chain(1);
    p.tags = [("team".to_owned(), "a".to_owned()), ("env".to_owned(), "test".to_owned())].into();
    p.priority = 3;
    p.timeout = Some(Span::secs(4));
    let input = Bytes::from(format!("{{\"x\":\"{}\"}}", "y".repeat(100)));
    let mut w = World::new(p);
    let tags = [("team".to_owned(), "b".to_owned())].into();
    let command = Start { input: Some(input.clone()), tags, ..start() };
    assert_eq!(w.apply(&Command::Start(command)), Ok(Outcome::Accepted));
    let run = w.run();
    assert_eq!(run.tags.iter().map(|(k, v)| format!("{k}={v}")).collect::<Vec<_>>(), ["env=test", "team=b"]);
    assert_eq!((run.priority, run.deadline, run.try_number), (3, Some(w.now.plus(Span::secs(4))), 1));
    assert_eq!(run.input, Payload::Stored { field: Field::new("i"), size: 108 });
    assert_eq!(w.payloads[&Field::new("i")], input);
    assert_eq!(w.wake, Some(w.now.plus(Span::secs(4))));
    let score = w.now.as_millis() - 3 * 60_000;
    assert_eq!(w.queue.values().copied().collect::<Vec<_>>(), [score]);
}

#[test]
fn a_place_in_the_queue_moves_a_minute_a_point_and_no_further_than_a_hundred() {
    let mut w = World::started(chain(1));
    let started = w.now.as_millis();
    let mut state = w.state.take().unwrap();
    for (run, task, points) in
        [(0, 0, 0), (5, -2, 3), (100, 100, 100), (-100, -1, -100), (i32::MAX, i32::MAX, 100)]
    {
        state.priority = run;
        w.plan.tasks[0].priority = task;
        assert_eq!(super::super::score(&state, &w.plan.tasks[0]), started - 60_000 * points);
    }
}

#[test]
fn a_lease_needs_the_entry_of_this_queueing() {
    let mut w = World::started(chain(2));
    let holder = || Holder::Session { id: session(1), epoch: 1 };
    let lease = |path: TaskPath, generation| {
        Command::Lease(LeaseTask { path, generation, holder: holder(), worker: "w".into() })
    };
    assert_eq!(w.apply(&lease(path(0), 9)), STALE);
    assert_eq!(w.apply(&lease(path(1), 0)), STALE);
    assert_eq!(w.apply(&lease(path(7), 1)), UNKNOWN);
    assert_eq!(w.apply(&lease(path(0), 1)), Ok(Outcome::Leased { attempt: 1, deadline: None }));
    assert_eq!(w.apply(&lease(path(0), 1)), STALE);
    assert!(w.queue.is_empty());
    assert_eq!(w.run().workers, ["w"]);
}

#[test]
fn a_task_queued_and_leased_in_one_decision_never_enters_its_queue() {
    let mut w = World::started(chain(2));
    let attempt = w.lease(0);
    let holder = Holder::Session { id: session(1), epoch: 1 };
    let next = LeaseTask { path: path(1), generation: 2, holder, worker: "w1".into() };
    // The world checks that each operation fits the queue as it is; here there must be none.
    let before = w.queue.clone();
    let outcomes = w.apply_all(&[complete(&attempt, "1"), Command::Lease(next)]);
    assert_eq!(outcomes, [Ok(Outcome::Accepted), Ok(Outcome::Leased { attempt: 1, deadline: None })]);
    assert_eq!((w.queue.clone(), w.statuses()), (before, vec!["completed", "running"]));
    assert_eq!(w.run().workers, ["w1"]);
}

#[test]
fn the_first_result_wins_and_only_its_exact_repeat_is_taken_again() {
    let mut w = World::started(chain(1));
    let attempt = w.lease(0);
    assert_eq!(w.apply(&complete(&attempt, "{\"a\":1}")), Ok(Outcome::Accepted));
    let after = w.state.clone();
    assert_eq!(w.apply(&complete(&attempt, "{\"a\":1}")), Ok(Outcome::Repeated));
    assert_eq!(w.apply(&complete(&attempt, "{\"a\":2}")), STALE);
    assert_eq!(w.apply(&fail(&attempt, "x")), STALE);
    assert_eq!(w.apply(&Command::Release { attempt: attempt.clone() }), STALE);
    let guess = AttemptKey { nonce: Nonce([9; 16]), ..attempt.clone() };
    assert_eq!(w.apply(&complete(&guess, "{\"a\":1}")), STALE);
    let nowhere = AttemptKey { path: TaskPath::parse("t0[3]").unwrap(), ..attempt };
    assert_eq!(w.apply(&complete(&nowhere, "1")), UNKNOWN);
    assert_eq!(w.state, after);
}

#[test]
fn a_repeat_of_a_large_output_is_compared_by_its_bytes() {
    let mut w = World::started(chain(1));
    let attempt = w.lease(0);
    let large = format!("\"{}\"", "x".repeat(1_000));
    assert_eq!(w.apply(&complete(&attempt, &large)), Ok(Outcome::Accepted));
    w.at_hand = Some([].into());
    let need = Err(Stop::NeedPayloads(vec![Field::new("o0")]));
    assert_eq!(w.apply(&complete(&attempt, &large)), need);
    w.at_hand = None;
    assert_eq!(w.apply(&complete(&attempt, &large)), Ok(Outcome::Repeated));
    assert_eq!(w.apply(&complete(&attempt, &large.replace("xx", "yy"))), STALE);
}

#[test]
fn a_stop_decides_nothing_of_what_is_folded_with_it() {
    let mut w = World::started(plan(&[&[], &[]]));
    let (a, b) = (w.lease(0), w.lease(1));
    let large = complete(&a, &format!("\"{}\"", "x".repeat(1_000)));
    assert_eq!(w.apply(&large), Ok(Outcome::Accepted));
    w.at_hand = Some([].into());
    let need = Err(Stop::NeedPayloads(vec![Field::new("o0")]));
    let folded = [complete(&b, "1"), large];
    assert_eq!(w.apply_all(&folded), [Ok(Outcome::Accepted), need]);
    assert_eq!(w.statuses(), ["completed", "running"]);
    w.at_hand = None;
    assert_eq!(w.apply_all(&folded), [Ok(Outcome::Accepted), Ok(Outcome::Repeated)]);
    assert_eq!(w.run().status, RunStatus::Completed);
}

#[test]
fn a_failure_and_a_release_are_repeated_exactly_too() {
    let mut w = retrying();
    let first = w.lease(0);
    assert_eq!(w.apply(&Command::Release { attempt: first.clone() }), Ok(Outcome::Accepted));
    assert_eq!(w.apply(&Command::Release { attempt: first.clone() }), Ok(Outcome::Repeated));
    assert_eq!(w.apply(&fail(&first, "x")), STALE);
    assert_eq!(w.apply(&complete(&first, "1")), STALE);
    let second = w.lease(0);
    assert_eq!((second.attempt, w.run().tasks[0].delivery), (1, 2));
    assert_eq!(w.apply(&fail(&second, "x")), Ok(Outcome::Accepted));
    let third = w.lease(0);
    assert_eq!(third.attempt, 2);
    assert_eq!(w.apply(&fail(&second, "x")), Ok(Outcome::Repeated));
    assert_eq!(w.apply(&fail(&second, "y")), STALE);
    assert_eq!(w.apply(&Command::Release { attempt: second }), STALE);
    assert_eq!(w.apply(&complete(&third, "1")), Ok(Outcome::Accepted));
}

#[test]
fn a_rejected_value_fails_the_task_unretried() {
    let mut w = retrying();
    let attempt = w.lease(0);
    let rejected = RejectedValue { code: "invalid_output", message: "line 1: no JSON".into() };
    let command = Command::Complete { attempt, output: Err(rejected) };
    assert_eq!(w.apply(&command), Ok(Outcome::Accepted));
    assert_eq!(w.apply(&command), Ok(Outcome::Repeated));
    assert_eq!((w.statuses(), w.run().failures[0].code.as_str()), (vec!["failed"], "invalid_output"));
}

#[test]
fn an_output_over_the_limit_fails_the_task_with_size_and_limit() {
    let mut w = retrying();
    let attempt = w.lease(0);
    let large = format!("\"{}\"", "x".repeat(PAYLOAD_MAX));
    assert_eq!(w.apply(&complete(&attempt, &large)), Ok(Outcome::Accepted));
    let failure = &w.run().failures[0];
    assert_eq!(w.run().tasks[0].phase, TaskPhase::Failed { failure: 0 });
    assert_eq!(failure.code, "output_too_large");
    assert_eq!(failure.message, "tasks.t0.output is 1048578 bytes; the limit is 1048576");
}

#[test]
fn an_unretryable_failure_ends_the_task_and_its_words_are_cut() {
    let mut w = retrying();
    let attempt = w.lease(0);
    let failure = ReportedFailure {
        code: String::new(),
        message: "é".repeat(limits::MESSAGE_MAX),
        retryable: false,
        retry_after: None,
    };
    let command = Command::Fail { attempt, failure };
    assert_eq!(w.apply(&command), Ok(Outcome::Accepted));
    assert_eq!(w.apply(&command), Ok(Outcome::Repeated));
    let kept = &w.run().failures[0];
    assert_eq!((kept.code.as_str(), kept.message.len(), kept.attempt), ("failed", limits::MESSAGE_MAX, 1));
}

#[test]
fn many_long_messages_do_not_swell_the_record() {
    let needs: Vec<&[u32]> = vec![&[]; 100];
    let mut w = World::started(plan(&needs));
    for i in 0..100 {
        let attempt = w.lease(i);
        let failure = ReportedFailure { message: format!("{i}{}", "x".repeat(9_000)), ..failure("x") };
        let command = Command::Fail { attempt, failure };
        assert_eq!(w.apply(&command), Ok(Outcome::Accepted));
        assert_eq!(w.apply(&command), Ok(Outcome::Repeated));
    }
    let kept: usize = w.run().failures.iter().map(|f| f.message.len()).sum();
    assert!(kept < 2 * limits::MESSAGES_BUDGET + 100 * limits::MESSAGE_SHORT, "{kept}");
}

#[test]
fn workers_are_remembered_once_each_and_not_without_bound() {
    let needs: Vec<&[u32]> = vec![&[]; 400];
    let mut w = World::started(plan(&needs));
    for i in 0..400 {
        let generation = w.generation(i).unwrap();
        let holder = Holder::Session { id: session(i), epoch: 1 };
        let worker = format!("w{}", i / 2 * 2);
        let lease = LeaseTask { path: path(i), generation, holder, worker };
        assert!(w.apply(&Command::Lease(lease)).is_ok());
    }
    assert_eq!(w.run().workers.len(), 200);
    let mut w = World::started(plan(&needs));
    for i in 0..400 {
        let generation = w.generation(i).unwrap();
        let holder = Holder::Session { id: session(i), epoch: 1 };
        let lease = LeaseTask { path: path(i), generation, holder, worker: format!("w{i}") };
        assert!(w.apply(&Command::Lease(lease)).is_ok());
    }
    assert_eq!(w.run().workers.len(), limits::WORKERS_MAX + 1);
    assert_eq!(w.run().workers.last().unwrap(), limits::OTHER_WORKERS);
    assert_eq!(w.held(399).unwrap().worker, 256);
    assert_eq!(w.held(255).unwrap().worker, 255);
}

#[test]
fn a_cancel_fences_everything_once() {
    let mut w = World::started(plan(&[&[], &[], &[0]]));
    let attempt = w.lease(0);
    assert_eq!(w.apply(&Command::Cancel { compensate: false, force: false }), Ok(Outcome::Accepted));
    assert_eq!(w.statuses(), ["cancelled"; 3]);
    assert_eq!((w.run().status, w.queue.len(), w.wake), (RunStatus::Cancelled, 0, None));
    let token = TaskToken::decode(&w.revoked[0].token).unwrap();
    assert_eq!((token.path, token.attempt, token.nonce), (path(0), 1, attempt.nonce));
    assert_eq!(w.apply(&complete(&attempt, "1")), STALE);
    let again = w.apply(&Command::Cancel { compensate: false, force: true });
    assert_eq!(again, Err(Stop::Refused(Refusal::Ended(RunStatus::Cancelled))));
    assert_eq!(w.count(EventKind::RunCancelled), 1);
    assert_eq!(w.wake(), Outcome::Nothing);
}

#[test]
fn only_an_ended_run_is_deleted_and_by_retention_only_when_it_has_passed() {
    let mut w = World::started(chain(1));
    let delete = |expired| Command::Delete { expired };
    assert_eq!(w.apply(&delete(false)), Err(Stop::Refused(Refusal::NotEnded(RunStatus::Running))));
    w.complete(0);
    assert_eq!(w.apply(&delete(true)), Ok(Outcome::Nothing));
    w.pass(Span::secs(7 * 86_400));
    let outcomes = w.apply_all(&[
        delete(true),
        Command::Cancel { compensate: false, force: false },
        Command::Start(start()),
    ]);
    assert_eq!(outcomes, [Ok(Outcome::Accepted), NO_RUN, NO_RUN]);
    assert_eq!((w.state.is_none(), w.wake, w.retain_until), (true, None, None));
    assert_eq!(w.apply(&Command::Start(start())), Ok(Outcome::Accepted));
}

#[test]
fn an_acknowledged_attempt_is_not_undelivered() {
    let mut w = World::started(chain(1));
    let attempt = w.lease(0);
    let acked = Command::Acked { attempt: attempt.clone() };
    assert_eq!(w.apply(&acked), Ok(Outcome::Accepted));
    assert_eq!(w.apply(&acked), Ok(Outcome::Repeated));
    assert_eq!(w.apply(&Command::Undelivered { attempt: attempt.clone() }), Ok(Outcome::Nothing));
    let beat = Command::Heartbeat { attempt, extend_claim: Some(Span::secs(1)) };
    assert_eq!(w.apply(&beat), Ok(Outcome::Held));
}

#[test]
fn a_refused_command_does_not_disturb_what_is_folded_with_it() {
    let mut w = World::started(plan(&[&[], &[]]));
    let (a, b) = (w.lease(0), w.lease(1));
    let guess = AttemptKey { nonce: Nonce([9; 16]), ..a.clone() };
    let outcomes = w.apply_all(&[complete(&a, "1"), complete(&guess, "2"), complete(&b, "3")]);
    assert_eq!(outcomes, [Ok(Outcome::Accepted), STALE, Ok(Outcome::Accepted)]);
    assert_eq!(w.run().status, RunStatus::Completed);
}

struct Nothing;

impl Payloads for Nothing {
    fn get(&self, _: &Field) -> Option<Bytes> {
        None
    }
}

#[test]
fn the_input_of_a_leased_task_is_null_without_a_template() {
    let mut w = World::started(chain(1));
    w.lease(0);
    let env = crate::engine::Env {
        now: w.now,
        lease_now: w.lease_now,
        partition: crate::model::ids::Partition(0),
        nonce: Nonce([1; 16]),
        random: 0,
        lease: w.lease,
        unacked: crate::engine::limits::UNACKED,
    };
    let prefix = crate::model::ids::Prefix::new(1, Nonce([1; 16]));
    let txn = Txn::existing(&w.plan, w.run(), prefix, &Nothing, env);
    assert_eq!(txn.input_of(&path(0)).as_deref(), Ok(&b"null"[..]));
    assert_eq!(txn.input_of(&path(9)), Err(Stop::Refused(Refusal::Unknown)));
    assert!(txn.finish().is_none());
}

#[test]
fn attempts_are_told_from_the_log() {
    let mut w = retrying();
    let t0 = w.now;
    w.pass(Span(1));
    let attempt = w.lease(0);
    w.pass(Span(1));
    assert_eq!(w.apply(&Command::Release { attempt }), Ok(Outcome::Accepted));
    w.pass(Span(1));
    w.fail(0, "x");
    w.pass(Span(1));
    w.lease(0);
    let [first, second] = history::attempts(w.run(), 0)[..] else { panic!("two attempts") };
    assert_eq!((first.number, first.status, first.deliveries), (1, "failed", 2));
    let started = t0.plus(Span(3));
    assert_eq!((first.queued_at, first.started_at, first.ended_at), (t0, Some(started), Some(started)));
    assert_eq!((first.worker, first.error), (Some(0), Some(0)));
    assert_eq!((second.number, second.status, second.deliveries), (2, "running", 1));
    assert_eq!(
        (second.queued_at, second.started_at, second.ended_at),
        (started, Some(t0.plus(Span(4))), None)
    );
    assert_eq!(history::all_attempts(w.run()), [history::attempts(w.run(), 0)]);
}

#[test]
fn events_carry_what_they_refer_to() {
    let mut w = World::started(plan(&[&[], &[]]));
    w.complete(0);
    w.fail(1, "x");
    let event = |n| history::event(w.run(), n).unwrap();
    let started = event(3);
    assert_eq!((started.kind, started.task, started.attempt), (EventKind::TaskStarted, Some(0), Some(1)));
    assert_eq!((started.worker, started.delivery), (Some("w1"), None));
    let completed = event(4);
    assert_eq!(completed.output, Some(&Payload::Inline(Bytes::from_static(b"1"))));
    let failed = event(6);
    assert_eq!((failed.kind, failed.error.unwrap().code.as_str()), (EventKind::TaskFailed, "x"));
    let ended = event(7);
    assert_eq!((ended.kind, ended.task, ended.attempt), (EventKind::RunFailed, None, None));
    assert_eq!(ended.error.unwrap().task, Some(1));
    assert_eq!(history::event(w.run(), 8), None);
}

/// The compare-and-set writes the whole record each time; its size is most of what a transition costs.
#[test]
fn a_run_of_nine_tasks_is_a_record_of_at_most_400_bytes_with_its_log() {
    let mut w = World::new(chain(9));
    let id = crate::model::ids::RunId::generate(w.now, 7);
    assert_eq!(w.apply(&Command::Start(Start { id, ..start() })), Ok(Outcome::Accepted));
    let mut attempt = w.lease(0);
    let mut sizes = vec![w.record_len];
    for i in 1..=9u32 {
        w.pass(Span(12_345));
        let mut commands = vec![complete(&attempt, "null")];
        if i < 9 {
            let holder = Holder::Session { id: session(1), epoch: 1 };
            commands.push(Command::Lease(LeaseTask {
                path: path(i),
                generation: i + 1,
                holder,
                worker: "w1".into(),
            }));
        }
        assert!(w.apply_all(&commands).iter().all(Result::is_ok));
        if i < 9 {
            attempt = w.key(i);
        }
        sizes.push(w.record_len);
    }
    assert_eq!(w.run().log.len(), 29);
    assert_eq!(w.run().status, RunStatus::Completed);
    assert!(sizes.iter().all(|s| *s <= 400), "{sizes:?}");
}
