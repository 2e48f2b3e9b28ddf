//! What happens at once: retries in parallel branches, cancel against complete, replays of old results.

use super::*;

#[test]
fn branches_that_fail_in_the_same_moment_each_have_their_attempts() {
    let mut p = Player::start(
        "tasks:\n  a: { type: work, retry: { max_attempts: 4, initial: 1s, jitter: 0 } }\n  b: { type: work, retry: { max_attempts: 4, initial: 1s, jitter: 0 } }\n  z: { type: work, needs: [a, b] }",
        "{}",
    );
    for wait in [1, 2] {
        let (a, b) = (p.lease("a").0, p.lease("b").0);
        let fail = |attempt| Command::Fail {
            attempt,
            failure: ReportedFailure {
                code: "x".into(),
                message: String::new(),
                retryable: true,
                retry_after: None,
            },
        };
        assert_eq!(p.world.apply_all(&[fail(a), fail(b)]), [Ok(Outcome::Accepted), Ok(Outcome::Accepted)]);
        p.pass(Span::secs(wait));
    }
    p.play_all("1");
    assert_eq!(p.status(), RunStatus::Completed);
    assert_eq!((p.world.run().tasks[0].attempt, p.world.run().tasks[1].attempt), (3, 3));
    assert_eq!(p.count(EventKind::TaskCancelled), 0);
}

#[test]
fn cancel_and_the_last_completion_are_settled_by_who_comes_first() {
    for cancel_first in [true, false] {
        let mut p = Player::start("tasks: { a: { type: work } }\noutput: '${{ tasks.a.output }}'", "{}");
        let (attempt, _) = p.lease("a");
        let complete = Command::Complete { attempt, output: Ok(Bytes::from_static(b"1")) };
        let cancel = Command::Cancel { compensate: false, force: false };
        let (commands, status, output) = if cancel_first {
            ([cancel, complete], RunStatus::Cancelled, "null")
        } else {
            ([complete, cancel], RunStatus::Completed, "1")
        };
        let outcomes = p.world.apply_all(&commands);
        assert!(outcomes[0].is_ok() && outcomes[1].is_err(), "{outcomes:?}");
        assert_eq!((p.status(), p.run_output().as_str()), (status, output));
        let terminal = p.world.run().log.iter().filter(|e| e.kind.ends_run()).count();
        assert_eq!(terminal, 1);
    }
}

#[test]
fn an_old_result_means_nothing_in_a_later_try() {
    let mut p =
        Player::start("tasks: { m: { type: work, for_each: [1], retry: { max_attempts: 1 } } }", "{}");
    let (old, _) = p.lease("m[0]");
    let fail = Command::Fail {
        attempt: old.clone(),
        failure: ReportedFailure { code: "x".into(), ..ReportedFailure::default() },
    };
    assert_eq!(p.world.apply(&fail), Ok(Outcome::Accepted));
    assert_eq!(p.world.apply(&Command::Retry), Ok(Outcome::Accepted));
    let (new, _) = p.lease("m[0]");
    assert_eq!((old.attempt, new.attempt), (1, 2));
    assert_eq!(p.world.apply(&fail), Ok(Outcome::Repeated), "the exact repeat is known");
    let late = Command::Complete { attempt: old, output: Ok(Bytes::from_static(b"1")) };
    assert_eq!(p.world.apply(&late), refused(Refusal::Stale));
    let done = Command::Complete { attempt: new, output: Ok(Bytes::from_static(b"2")) };
    assert_eq!(p.world.apply(&done), Ok(Outcome::Accepted));
    assert_eq!(p.output("m"), "[2]");
}

#[test]
fn tokens_name_items_iterations_and_what_is_in_them() {
    let mut p = Player::start(
        "tasks:\n  m:\n    for_each: [1, 2]\n    repeat: { max: 1 }\n    tasks: { x: { type: work } }",
        "{}",
    );
    let (key, _) = p.lease("m[1]#0/x");
    assert_eq!(key.path.as_str(), "m[1]#0/x");
    let elsewhere =
        crate::model::command::AttemptKey { path: TaskPath::parse("m[0]#0/x").unwrap(), ..key.clone() };
    let complete = |attempt| Command::Complete { attempt, output: Ok(Bytes::from_static(b"1")) };
    assert_eq!(p.world.apply(&complete(elsewhere)), refused(Refusal::Stale));
    let nowhere =
        crate::model::command::AttemptKey { path: TaskPath::parse("m[7]#0/x").unwrap(), ..key.clone() };
    assert_eq!(p.world.apply(&complete(nowhere)), refused(Refusal::Unknown));
    assert_eq!(p.world.apply(&complete(key)), Ok(Outcome::Accepted));
}
