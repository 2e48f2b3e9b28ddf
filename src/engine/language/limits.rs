//! `concurrency` and `rate`, as one run sees them.

use super::*;
use crate::model::home::{Bucket, Home, Semaphore};
use crate::model::run::{Errand, Waiting};

const TWO: &str = "tasks:\n  a: { type: work, concurrency: { key: env, limit: 1 } }\n  b: { type: work, concurrency: { key: env, limit: 1 } }";

impl Player {
    fn slots(&self, key: &str) -> (usize, usize) {
        match self.homes.get(&Semaphore::home(key)) {
            Some(Home::Semaphore(s)) => (s.holders.len(), s.waiters.len()),
            _ => (0, 0),
        }
    }

    /// What is to be told, by kind.
    fn errands(&self) -> Vec<&Errand> {
        self.world.run().outbox.pending.values().map(|m| &m.what).collect()
    }
}

#[test]
fn a_task_is_queued_once_it_has_its_slot_and_the_next_one_gets_it() {
    let mut p = Player::start(TWO, "{}");
    assert_eq!((p.at("a"), p.at("b"), p.queued().len()), ("waiting", "waiting", 0));
    assert_eq!(p.errands(), [&Errand::Acquire { node: 0 }, &Errand::Acquire { node: 1 }]);
    p.carry();
    assert_eq!((p.queued(), p.slots("env")), (vec!["a".to_owned()], (1, 1)));
    p.work("a", ok("1"));
    p.carry();
    assert_eq!((p.queued(), p.slots("env")), (vec!["b".to_owned()], (1, 0)));
    p.work("b", ok("1"));
    assert_eq!(p.status(), RunStatus::Completed);
    p.carry();
    assert_eq!(p.homes.get(&Semaphore::home("env")), None, "nothing stands there any more");
    assert_eq!((p.errands().len(), p.world.wake), (0, None));
    assert_eq!(
        p.events(),
        [
            "run.started",
            "waiting a",
            "waiting b",
            "queued a",
            "started a",
            "completed a",
            "queued b",
            "started b",
            "completed b",
            "run.completed"
        ]
    );
}

#[test]
fn a_slot_is_held_over_attempts_and_delays() {
    let mut p = Player::start(
        "tasks:\n  a: { type: work, retry: { max_attempts: 2, initial: 10s, jitter: 0 }, concurrency: { key: env, limit: 1 } }\n  b: { type: work, concurrency: { key: env, limit: 1 } }",
        "{}",
    );
    p.carry();
    let (attempt, _) = p.lease("a");
    let failure = ReportedFailure { code: "x".into(), retryable: true, ..ReportedFailure::default() };
    p.world.apply(&Command::Fail { attempt, failure }).unwrap();
    p.carry();
    assert_eq!((p.at("a"), p.at("b"), p.slots("env")), ("retrying", "waiting", (1, 1)));
    p.pass(Span::secs(10));
    p.carry();
    assert_eq!(p.queued(), ["a"]);
    p.work("a", bad("y"));
    p.carry();
    assert_eq!((p.at("a"), p.queued()), ("failed", vec!["b".to_owned()]));
}

#[test]
fn however_a_task_ends_its_slot_comes_back() {
    use crate::model::command::Action;
    let act = |action| Command::Act { path: TaskPath::parse("a").unwrap(), action };
    let ends = [
        act(Action::Skip),
        act(Action::Complete(Bytes::from_static(b"1"))),
        act(Action::Fail(ReportedFailure::default())),
        Command::Cancel { compensate: false, force: false },
        Command::Cancel { compensate: true, force: true },
    ];
    for granted in [false, true] {
        for end in &ends {
            let mut p = Player::start(
                "tasks: { a: { type: work, concurrency: { key: env, limit: 1 } }, z: { wait: { signal: go } } }",
                "{}",
            );
            if granted {
                p.carry();
                assert_eq!(p.slots("env"), (1, 0));
            }
            p.world.apply(end).unwrap();
            assert_eq!(
                p.errands().len(),
                1,
                "{end:?}: it is given back, and not asked for any more: {:?}",
                p.errands()
            );
            assert!(matches!(p.errands()[0], Errand::Release { .. }), "{end:?}");
            p.carry();
            assert_eq!(p.homes.get(&Semaphore::home("env")), None, "{end:?}");
        }
    }
}

#[test]
fn times_run_out_and_the_slot_comes_back() {
    let mut p = Player::start(
        "timeout: 1h\ntasks:\n  a: { type: work, timeout: { total: 10s }, concurrency: { key: env, limit: 1 } }",
        "{}",
    );
    // Waiting for a slot is no part of the task's time.
    p.pass(Span::secs(3_000));
    assert_eq!(p.at("a"), "waiting");
    p.carry();
    assert_eq!(p.at("a"), "queued");
    p.pass(Span::secs(10));
    p.carry();
    assert_eq!((p.at("a"), p.slots("env")), ("timed_out", (0, 0)));
    assert_eq!(p.error().0, "timeout_total");
    // Of the run's it is.
    let mut p =
        Player::start("timeout: 1h\ntasks:\n  a: { type: work, concurrency: { key: env, limit: 1 } }", "{}");
    p.pass(Span::secs(3_600));
    assert_eq!((p.status(), p.at("a")), (RunStatus::TimedOut, "cancelled"));
    p.carry();
    assert_eq!(p.slots("env"), (0, 0));
}

#[test]
fn a_group_is_laid_out_once_it_has_its_slot_and_holds_it_to_its_end() {
    let mut p = Player::start(
        "tasks:\n  m:\n    for_each: [1, 2]\n    concurrency: { key: 'env-${{ input.n }}', limit: 1 }\n    tasks:\n      x: { type: work }\n      y: { type: work, needs: [x] }",
        r#"{"n":7}"#,
    );
    assert_eq!(p.all(), ["m waiting", "m[0] waiting", "m[1] waiting"]);
    p.carry();
    assert_eq!((p.queued(), p.slots("env-7")), (vec!["m[0]/x".to_owned()], (1, 1)));
    p.work("m[0]/x", ok("1"));
    p.work("m[0]/y", ok("1"));
    p.carry();
    assert_eq!(p.queued(), ["m[1]/x"]);
    p.work("m[1]/x", ok("1"));
    p.work("m[1]/y", ok("2"));
    p.carry();
    assert_eq!((p.status(), p.slots("env-7")), (RunStatus::Completed, (0, 0)));
    assert_eq!(p.output("m"), r#"[{"x":1,"y":1},{"x":1,"y":2}]"#);
}

#[test]
fn iterations_have_slots_of_their_own() {
    let mut p = Player::start(
        "tasks:\n  a: { type: work, repeat: { max: 2 }, concurrency: { key: 'k-${{ loop.index }}', limit: 1 } }",
        "{}",
    );
    p.carry();
    assert_eq!((p.slots("k-0"), p.slots("k-1")), ((1, 0), (0, 0)));
    p.work("a#0", ok("1"));
    p.carry();
    assert_eq!((p.slots("k-0"), p.slots("k-1")), ((0, 0), (1, 0)));
    p.work("a#1", ok("1"));
    p.carry();
    assert_eq!((p.status(), p.slots("k-1")), (RunStatus::Completed, (0, 0)));
}

#[test]
fn keys_are_text_of_at_most_256_bytes() {
    for (limit, input, code) in [
        ("concurrency: { key: '${{ input.k }}', limit: 1 }", r#"{"k":5}"#, None),
        ("concurrency: { key: '${{ input.k }}', limit: 1 }", r#"{"k":true}"#, None),
        ("concurrency: { key: 'x-${{ input.k }}', limit: 1 }", r#"{"k":1.50}"#, None),
        ("concurrency: { key: '${{ input.k }}', limit: 1 }", r#"{"k":null}"#, Some("invalid_limit_key")),
        ("concurrency: { key: '${{ input.k }}', limit: 1 }", r#"{"k":[1]}"#, Some("invalid_limit_key")),
        ("concurrency: { key: '${{ input.k }}', limit: 1 }", r#"{"k":""}"#, Some("invalid_limit_key")),
        ("concurrency: { key: '${{ input.k }}', limit: 1 }", "{}", Some("missing_value")),
        ("rate: { key: '${{ input.k }}', limit: 1, per: 1s }", r#"{"k":{}}"#, Some("invalid_limit_key")),
        ("rate: { key: 'x${{ input.k }}', limit: 1, per: 1s }", r#"{"k":null}"#, Some("expression_failed")),
    ] {
        let mut p = Player::start(&format!("tasks:\n  a: {{ type: work, {limit} }}"), input);
        p.carry();
        match code {
            None => assert_eq!(p.queued(), ["a"], "{limit} {input}"),
            Some(code) => assert_eq!(p.error(), (code.to_owned(), Some("a".to_owned())), "{limit} {input}"),
        }
    }
    for (len, fits) in [(256, true), (257, false)] {
        let input = format!("{{\"k\":\"{}\"}}", "å".repeat(len / 2) + &"x".repeat(len % 2));
        let text = "tasks: { a: { type: work, concurrency: { key: '${{ input.k }}', limit: 1 } } }";
        let mut p = Player::start(text, &input);
        p.carry();
        assert_eq!(p.status() == RunStatus::Running, fits, "{len}");
    }
    let mut p = Player::start(
        "tasks: { a: { type: work, concurrency: { key: '${{ input.k }}', limit: 1 } } }",
        r#"{"k":5}"#,
    );
    p.carry();
    assert_eq!(p.slots("5"), (1, 0));
}

#[test]
fn a_task_does_not_wait_for_a_slot_that_a_group_around_it_has() {
    let mut p = Player::start(
        "tasks:\n  g:\n    concurrency: { key: env, limit: 2 }\n    tasks: { m: { for_each: [env, other], type: work, concurrency: { key: '${{ item }}', limit: 2 } } }",
        "{}",
    );
    p.carry();
    assert_eq!((p.at("g/m[0]"), p.queued()), ("failed", vec!["g/m[1]".to_owned()]));
    p.play_all("1");
    assert_eq!(p.error(), ("nested_limit_key".to_owned(), Some("g/m[0]".to_owned())));
    p.carry();
    assert_eq!((p.slots("env"), p.slots("other")), ((0, 0), (0, 0)));
}

#[test]
fn a_grant_in_a_pause_is_kept_and_used_when_the_run_goes_on() {
    let mut p = Player::start(TWO, "{}");
    p.world.apply(&Command::Pause).unwrap();
    p.carry();
    assert_eq!((p.at("a"), p.queued().len(), p.slots("env")), ("waiting", 0, (1, 1)));
    p.world.apply(&Command::Resume).unwrap();
    assert_eq!(p.queued(), ["a"]);
    p.work("a", ok("1"));
    p.carry();
    p.play_all("1");
    assert_eq!(p.status(), RunStatus::Completed);
}

#[test]
fn a_grant_that_nobody_wants_is_refused_and_one_that_is_held_is_known() {
    let mut p = Player::start(TWO, "{}");
    let ticket = |p: &Player, i: usize| p.world.run().tasks[i].permit.as_ref().unwrap().ticket;
    let (a, b) = (ticket(&p, 0), ticket(&p, 1));
    let permitted = |key: &str, ticket| Command::Permitted {
        task: TaskPath::parse("a").unwrap(),
        key: key.to_owned(),
        ticket,
    };
    assert_eq!(p.world.apply(&permitted("env", 999)), refused(Refusal::NoRun));
    assert_eq!(p.world.apply(&permitted("other", a)), refused(Refusal::NoRun));
    assert_eq!(p.world.apply(&permitted("env", a)), Ok(Outcome::Accepted));
    assert_eq!(p.world.apply(&permitted("env", a)), Ok(Outcome::Repeated));
    assert_eq!((p.queued(), p.at("b")), (vec!["a".to_owned()], "waiting"));
    p.work("a", ok("1"));
    assert_eq!(p.world.apply(&permitted("env", a)), refused(Refusal::NoRun));
    p.world.apply(&Command::Cancel { compensate: false, force: false }).unwrap();
    assert_eq!(p.world.apply(&permitted("env", b)), refused(Refusal::NoRun));
}

#[test]
fn a_full_home_is_asked_again_and_one_that_forgets_too() {
    let mut p = Player::start("tasks: { a: { type: work, concurrency: { key: env, limit: 1 } } }", "{}");
    let sent = p.world.sent.remove(0);
    let full = Told::Refused { code: "full".into(), message: String::new() };
    p.world.apply(&Command::Settled { sequence: sent.sequence, answer: full }).unwrap();
    assert!(matches!(p.errands()[..], [Errand::Release { .. }]), "{:?}", p.errands());
    p.carry();
    assert_eq!((p.at("a"), p.slots("env")), ("waiting", (0, 0)));
    p.pass(Span::secs(5));
    assert!(matches!(p.errands()[..], [Errand::Acquire { node: 0 }]), "{:?}", p.errands());
    // It was taken, and then its home was lost.
    let sent = p.world.sent.remove(0);
    p.world.apply(&Command::Settled { sequence: sent.sequence, answer: Told::Done }).unwrap();
    p.pass(Span::secs(60));
    p.carry();
    assert_eq!((p.queued(), p.slots("env")), (vec!["a".to_owned()], (1, 0)));
}

#[test]
fn a_wide_map_asks_for_a_few_slots_at_a_time_and_gets_all() {
    let items: Vec<String> = (0..200).map(|n| n.to_string()).collect();
    let mut p = Player::start(
        &format!(
            "tasks: {{ m: {{ for_each: [{}], type: work, concurrency: {{ key: env, limit: 3 }} }} }}",
            items.join(",")
        ),
        "{}",
    );
    assert_eq!(p.errands().len(), crate::engine::limits::ASKED_MAX);
    let mut done = 0;
    loop {
        p.carry();
        let queued = p.queued();
        assert!(queued.len() <= 3 && p.slots("env").1 <= crate::engine::limits::ASKED_MAX);
        let Some(path) = queued.first() else { break };
        p.work(path, ok("1"));
        done += 1;
    }
    assert_eq!((done, p.status(), p.slots("env")), (200, RunStatus::Completed, (0, 0)));
}

#[test]
fn a_retry_asks_anew_and_goes_on_inside_a_group_only_then() {
    let mut p = Player::start(
        "tasks:\n  g:\n    concurrency: { key: env, limit: 1 }\n    tasks:\n      x: { type: work }\n      y: { type: work, needs: [x] }",
        "{}",
    );
    p.carry();
    p.work("g/x", ok("1"));
    p.work("g/y", bad("broken"));
    p.carry();
    assert_eq!((p.status(), p.slots("env")), (RunStatus::Failed, (0, 0)));
    p.world.apply(&Command::Retry).unwrap();
    assert_eq!((p.at("g"), p.at("g/x"), p.at("g/y")), ("waiting", "completed", "failed"));
    assert_eq!(p.queued(), Vec::<String>::new());
    p.carry();
    assert_eq!((p.queued(), p.slots("env")), (vec!["g/y".to_owned()], (1, 0)));
    p.work("g/y", ok("2"));
    p.carry();
    assert_eq!((p.status(), p.slots("env")), (RunStatus::Completed, (0, 0)));
    // From a task inside that has completed.
    p.world.apply(&Command::Rerun { path: TaskPath::parse("g/x").unwrap(), input: None }).unwrap();
    assert_eq!(p.queued(), Vec::<String>::new());
    p.carry();
    assert_eq!(p.queued(), ["g/x"]);
    p.play_all("3");
    assert_eq!((p.status(), p.output("g").as_str()), (RunStatus::Completed, r#"{"x":3,"y":3}"#));
}

#[test]
fn fail_fast_skips_what_waits_for_a_limit() {
    let mut p = Player::start(
        "fail_fast: true\ntasks:\n  f: { type: work }\n  a: { type: work, concurrency: { key: env, limit: 1 }, compensate: { type: undo } }\n  b: { type: work, concurrency: { key: env, limit: 1 }, compensate: { type: undo } }\n  r: { type: work, rate: { key: api, limit: 1, per: 1h } }\n  s: { type: work, rate: { key: api, limit: 1, per: 1h } }",
        "{}",
    );
    p.carry();
    assert_eq!((p.at("a"), p.at("b"), p.at("r"), p.at("s")), ("queued", "waiting", "queued", "waiting"));
    p.lease("a");
    p.work("f", bad("broken"));
    assert_eq!((p.at("a"), p.at("b"), p.at("s")), ("running", "skipped", "skipped"));
}

#[test]
fn attempts_start_when_the_rate_lets_them() {
    let mut p = Player::start(
        "tasks: { m: { for_each: [1, 2, 3, 4], type: work, rate: { key: api, limit: 2, per: 20s } } }",
        "{}",
    );
    assert_eq!(p.queued(), Vec::<String>::new());
    p.carry();
    assert_eq!(p.queued(), ["m[0]", "m[1]"], "the burst");
    assert!(p.homes.get(&Bucket::home("api")).is_some());
    p.pass(Span::secs(10));
    assert_eq!(p.queued(), ["m[0]", "m[1]", "m[2]"]);
    p.pass(Span::millis(9_999));
    assert_eq!(p.queued().len(), 3);
    p.pass(Span::millis(1));
    assert_eq!(p.queued().len(), 4);
    p.play_all("1");
    assert_eq!(p.status(), RunStatus::Completed);
}

#[test]
fn every_attempt_takes_its_turn_and_a_permit_comes_first() {
    let mut p = Player::start(
        "tasks:\n  a:\n    type: work\n    retry: { max_attempts: 2, initial: 1s, jitter: 0 }\n    concurrency: { key: env, limit: 1 }\n    rate: { key: api, limit: 1, per: 60s }",
        "{}",
    );
    assert_eq!(p.errands(), [&Errand::Acquire { node: 0 }]);
    p.carry();
    assert_eq!(p.queued(), ["a"]);
    let (attempt, _) = p.lease("a");
    let failure = ReportedFailure { code: "x".into(), retryable: true, ..ReportedFailure::default() };
    p.world.apply(&Command::Fail { attempt, failure }).unwrap();
    p.pass(Span::secs(1));
    p.carry();
    assert!(matches!(p.world.run().tasks[0].phase, TaskPhase::Waiting(Waiting::Rate { due: Some(_), .. })));
    assert_eq!(p.slots("env"), (1, 0));
    p.pass(Span::secs(59));
    assert_eq!(p.queued(), ["a"]);
    assert_eq!(p.world.run().tasks[0].attempt, 2);
}

#[test]
fn all_attempts_together_have_their_time_whatever_their_rate() {
    let mut p = Player::start(
        "tasks:\n  a:\n    type: work\n    retry: { max_attempts: 3, initial: 1s, jitter: 0 }\n    timeout: { total: 30s }\n    rate: { key: api, limit: 1, per: 60s }",
        "{}",
    );
    p.carry();
    let (attempt, _) = p.lease("a");
    let failure = ReportedFailure { code: "x".into(), retryable: true, ..ReportedFailure::default() };
    p.world.apply(&Command::Fail { attempt, failure }).unwrap();
    p.pass(Span::secs(1));
    p.carry();
    assert_eq!(p.at("a"), "waiting");
    p.pass(Span::secs(29));
    assert_eq!((p.at("a"), p.error().0.as_str()), ("timed_out", "timeout_total"));
    let failures = &p.world.run().failures;
    assert!(failures.last().unwrap().message.starts_with("all attempts together"), "{failures:?}");
}

#[test]
fn starts_that_a_pause_or_an_outage_held_up_do_not_all_come_at_once() {
    let text = "tasks: { m: { for_each: [1, 2, 3], type: work, rate: { key: api, limit: 1, per: 10s } } }";
    let mut p = Player::start(text, "{}");
    p.carry();
    assert_eq!(p.queued(), ["m[0]"]);
    p.world.apply(&Command::Pause).unwrap();
    p.pass(Span::secs(100));
    p.world.apply(&Command::Resume).unwrap();
    p.carry();
    assert_eq!(p.queued(), ["m[0]", "m[1]"]);
    let mut p = Player::start(text, "{}");
    p.carry();
    p.pass(Span::secs(100));
    p.carry();
    assert_eq!(p.queued(), ["m[0]", "m[1]"]);
    // What ended meanwhile does not start.
    p.world.apply(&Command::Cancel { compensate: false, force: false }).unwrap();
    p.pass(Span::secs(100));
    p.carry();
    assert_eq!((p.status(), p.errands().len()), (RunStatus::Cancelled, 0));
}

#[test]
fn a_run_is_not_deleted_before_its_slots_are_given_back() {
    let mut p = Player::start("tasks: { a: { type: work, concurrency: { key: env, limit: 1 } } }", "{}");
    p.carry();
    let cancel = Command::Cancel { compensate: false, force: true };
    let delete = Command::Delete { expired: false };
    let both = p.world.apply_all(&[cancel, delete.clone()]);
    assert_eq!(both, [Ok(Outcome::Accepted), refused(Refusal::Telling)]);
    assert_eq!(p.world.apply(&delete), refused(Refusal::Telling));
    p.carry();
    assert_eq!(p.world.apply(&delete), Ok(Outcome::Accepted));
    assert_eq!(p.homes.get(&Semaphore::home("env")), None);
}
