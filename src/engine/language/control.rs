//! Compensation, `finally`, pause, retry, and what is done by hand.

use super::*;
use crate::model::command::Action;

const SAGA: &str = "tasks:
  a: { type: work, compensate: { type: undo, input: '${{ tasks.a.output }}' } }
  b: { type: work, needs: [a], compensate: { type: undo, input: ['${{ tasks.b.output }}', '${{ tasks.a.output }}'] } }
  g:
    needs: [b]
    tasks:
      c: { type: work, compensate: { type: undo } }
      d: { type: work, needs: [c] }
  e: { type: work, needs: [g], retry: { max_attempts: 1 } }
finally:
  tell: { type: work, input: '${{ run.status }} ${{ run.error.code | default(\"none\") }}' }";

#[test]
fn what_completed_is_undone_in_reverse_order_when_the_run_fails() {
    let mut p = Player::start(SAGA, "{}");
    p.play(|path, input| match path {
        "a" => ok("\"A\""),
        "b" => ok("\"B\""),
        "e" => bad("declined"),
        // A failed compensation is recorded, and the rest go on.
        "b/compensate" => bad("stuck"),
        _ => ok(input),
    });
    let paths: Vec<_> = p.done.iter().map(|(path, _)| path.as_str()).collect();
    let expected =
        ["a", "b", "g/c", "g/d", "e", "g/c/compensate", "b/compensate", "a/compensate", "finally/tell"];
    assert_eq!(paths, expected);
    assert_eq!(p.done[6].1, r#"["B","A"]"#);
    assert_eq!(p.done[8].1, "\"failed declined\"");
    assert_eq!((p.status(), p.error()), (RunStatus::Failed, ("declined".into(), Some("e".into()))));
    assert_eq!((p.at("b/compensate"), p.at("a/compensate")), ("failed", "completed"));
    assert_eq!(p.count(EventKind::RunFailed), 1);
}

#[test]
fn nothing_is_undone_when_the_run_completes() {
    let mut p = Player::start(SAGA, "{}");
    p.play(|_, input| ok(input));
    assert_eq!((p.status(), p.done.len()), (RunStatus::Completed, 6));
    assert_eq!(p.done[5], ("finally/tell".into(), "\"completed none\"".into()));
}

#[test]
fn while_a_run_ends_it_says_how() {
    let mut p = Player::start(SAGA, "{}");
    for (path, answer) in
        [("a", ok("1")), ("b", ok("1")), ("g/c", ok("1")), ("g/d", ok("1")), ("e", bad("x"))]
    {
        p.work(path, answer);
    }
    let ending = p.world.run().ending.unwrap();
    assert_eq!((p.status(), ending.status), (RunStatus::Running, RunStatus::Failed));
    // Ending is not open any more: signals, pauses and a second end are refused.
    let refusal = || refused(Refusal::Ending(RunStatus::Failed));
    assert_eq!(p.signal("x", None, "1"), refusal());
    assert_eq!(p.world.apply(&Command::Pause), refusal());
    let cancel = |force| Command::Cancel { compensate: false, force };
    assert_eq!(p.world.apply(&cancel(false)), refusal());
    // What undoes can be settled by hand.
    let path = TaskPath::parse("g/c/compensate").unwrap();
    assert_eq!(p.world.apply(&Command::Act { path, action: Action::Skip }), Ok(Outcome::Accepted));
    assert_eq!((p.at("g/c/compensate"), p.queued()), ("skipped", vec!["b/compensate".to_owned()]));
    // Force cuts it short, and the outcome stays.
    assert_eq!(p.world.apply(&cancel(true)), Ok(Outcome::Accepted));
    assert_eq!((p.status(), p.at("b/compensate")), (RunStatus::Failed, "cancelled"));
    assert_eq!((p.world.queue.len(), p.world.wake), (0, None));
}

#[test]
fn a_cancel_undoes_only_when_asked_and_finally_comes_in_any_case() {
    for (compensate, force, expected) in [
        (false, false, &["a", "finally/tell"][..]),
        (true, false, &["a", "a/compensate", "finally/tell"]),
        (true, true, &["a"]),
    ] {
        let mut p = Player::start(SAGA, "{}");
        p.work("a", ok("\"A\""));
        let (held, _) = p.lease("b");
        p.done.pop();
        assert_eq!(p.world.apply(&Command::Cancel { compensate, force }), Ok(Outcome::Accepted));
        assert_eq!(p.at("b"), "cancelled");
        let late = Command::Complete { attempt: held, output: Ok(Bytes::from_static(b"1")) };
        assert_eq!(p.world.apply(&late), refused(Refusal::Stale));
        p.play(|_, input| ok(input));
        assert_eq!(p.done.iter().map(|(path, _)| path.as_str()).collect::<Vec<_>>(), expected);
        assert_eq!((p.status(), p.count(EventKind::RunCancelled)), (RunStatus::Cancelled, 1));
    }
}

#[test]
fn the_timeout_of_a_run_undoes_and_does_what_comes_last() {
    let mut p = Player::start(&format!("{SAGA}\ntimeout: 1m"), "{}");
    p.work("a", ok("1"));
    p.pass(Span::secs(60));
    assert_eq!(p.queued(), ["a/compensate"]);
    p.play(|_, input| ok(input));
    assert_eq!(p.done.last().unwrap().1, "\"timed_out run_timed_out\"");
    assert_eq!(p.status(), RunStatus::TimedOut);
}

#[test]
fn a_failure_in_finally_fails_what_had_completed_and_nothing_else() {
    let text = "tasks: { a: { type: work, retry: { max_attempts: 1 } } }\noutput: 1\nfinally: { z: { type: work, retry: { max_attempts: 1 } } }";
    let mut p = Player::start(text, "{}");
    p.play(|path, _| if path == "a" { ok("1") } else { bad("late") });
    assert_eq!((p.status(), p.error()), (RunStatus::Failed, ("late".into(), Some("finally/z".into()))));
    assert_eq!(p.run_output(), "null");
    let mut p = Player::start(text, "{}");
    p.play(|path, _| if path == "a" { bad("first") } else { bad("late") });
    assert_eq!((p.status(), p.error()), (RunStatus::Failed, ("first".into(), Some("a".into()))));
    // It has five minutes unless it says otherwise.
    let mut p = Player::start(text, "{}");
    p.work("a", ok("1"));
    p.pass(Span::secs(300));
    assert_eq!(
        (p.status(), p.at("finally"), p.error().0),
        (RunStatus::Failed, "timed_out", "timeout_total".into())
    );
}

#[test]
fn fail_fast_awaits_what_would_have_to_be_undone() {
    let mut p = Player::start(
        "fail_fast: true\ntasks:\n  a: { type: work, retry: { max_attempts: 1 } }\n  b: { type: work, compensate: { type: undo } }\n  c: { type: work }",
        "{}",
    );
    let (b, _) = p.lease("b");
    p.lease("c");
    p.work("a", bad("x"));
    assert_eq!(p.all(), ["a failed", "b running", "c cancelled"]);
    let done = Command::Complete { attempt: b, output: Ok(Bytes::from_static(b"1")) };
    assert_eq!(p.world.apply(&done), Ok(Outcome::Accepted));
    assert_eq!(p.queued(), ["b/compensate"]);
    p.play_all("1");
    assert_eq!(p.status(), RunStatus::Failed);
}

#[test]
fn a_failed_group_is_undone_by_itself_and_once() {
    let mut p = Player::start(
        "tasks:\n  g:\n    on_error: continue\n    tasks:\n      a: { type: work, compensate: { type: undo } }\n      b: { type: work, needs: [a], retry: { max_attempts: 1 } }\n  z: { type: work, needs: [g], retry: { max_attempts: 1 } }",
        "{}",
    );
    p.play(|path, _| if matches!(path, "g/b" | "z") { bad("x") } else { ok("1") });
    let paths: Vec<_> = p.done.iter().map(|(path, _)| path.as_str()).collect();
    assert_eq!(paths, ["g/a", "g/b", "g/a/compensate", "z"]);
}

#[test]
fn items_are_undone_each_with_its_own_input() {
    let mut p = Player::start(
        "tasks:\n  m: { type: work, for_each: [7, 8], compensate: { type: undo, input: ['${{ item }}', '${{ tasks.m.output }}'] } }\n  z: { needs: [m], fail: { code: x } }",
        "{}",
    );
    p.play(|_, input| ok(if input == "null" { "\"out\"" } else { "1" }));
    let undone: Vec<_> = p.done[2..].to_vec();
    assert_eq!(
        undone,
        [("m[1]/compensate".into(), "[8,\"out\"]".into()), ("m[0]/compensate".into(), "[7,\"out\"]".into())]
    );
}

#[test]
fn a_paused_run_starts_nothing_and_finishes_what_it_has() {
    let mut p = Player::start(
        "tasks:\n  a: { type: work }\n  b: { type: work }\n  c: { type: work, needs: [a] }\n  w: { wait: { for: 5s } }\n  m: { needs: [w], type: work, for_each: [1, 2], max_parallel: 1 }\n  q: { type: work, timeout: { queue: 10s } }",
        "{}",
    );
    let (a, _) = p.lease("a");
    assert_eq!(p.world.apply(&Command::Pause), Ok(Outcome::Accepted));
    assert_eq!(p.world.apply(&Command::Pause), Ok(Outcome::Repeated));
    assert_eq!((p.status(), p.world.queue.len()), (RunStatus::Paused, 0), "queues hold nothing of it");
    let stale = Player::stale_lease("b", 2);
    assert_eq!(p.world.apply(&stale), refused(Refusal::Stale));
    let done = Command::Complete { attempt: a, output: Ok(Bytes::from_static(b"1")) };
    assert_eq!(p.world.apply(&done), Ok(Outcome::Accepted), "what was in flight finishes");
    p.pass(Span::secs(60));
    // Waits keep time; what follows them does not start, and queues have no time.
    let expected = ["a completed", "b queued", "c pending", "w completed", "m pending", "q queued"];
    assert_eq!(p.all(), expected);
    assert_eq!(p.world.queue.len(), 0);
    assert_eq!(p.world.apply(&Command::Resume), Ok(Outcome::Accepted));
    assert_eq!(p.world.apply(&Command::Resume), Ok(Outcome::Repeated));
    assert_eq!(p.queued(), ["b", "c", "q", "m[0]"]);
    p.play_all("1");
    assert_eq!(p.status(), RunStatus::Completed);
    assert_eq!((p.count(EventKind::RunPaused), p.count(EventKind::RunResumed)), (1, 1));
}

#[test]
fn a_run_whose_last_task_ends_in_a_pause_ends_when_it_goes_on() {
    let mut p = Player::start("tasks: { a: { type: work } }\nfinally: { z: { type: work } }", "{}");
    let (a, _) = p.lease("a");
    assert_eq!(p.world.apply(&Command::Pause), Ok(Outcome::Accepted));
    let done = Command::Complete { attempt: a, output: Ok(Bytes::from_static(b"1")) };
    assert_eq!(p.world.apply(&done), Ok(Outcome::Accepted));
    assert_eq!((p.status(), p.queued().len()), (RunStatus::Paused, 0));
    assert_eq!(p.world.apply(&Command::Resume), Ok(Outcome::Accepted));
    p.play_all("1");
    assert_eq!(p.status(), RunStatus::Completed);
}

#[test]
fn a_pause_gives_way_to_a_cancel_and_to_the_timeout_alone() {
    let cancel = Command::Cancel { compensate: true, force: false };
    for (end, status) in [(Some(cancel), RunStatus::Cancelled), (None, RunStatus::TimedOut)] {
        let mut p = Player::start(
            "timeout: 1m\ntasks: { a: { type: work, compensate: { type: undo } }, b: { type: work } }",
            "{}",
        );
        p.work("a", ok("1"));
        let (b, _) = p.lease("b");
        let outcome = match end {
            // Both in one decision: whoever asked for the pause is answered with the end that followed.
            Some(cancel) => p.world.apply_all(&[Command::Pause, cancel]),
            None => p.world.apply_all(&[Command::Pause]),
        };
        assert!(outcome.iter().all(|o| *o == Ok(Outcome::Accepted)), "{outcome:?}");
        p.pass(Span::secs(61));
        let ending = p.world.run().ending.unwrap();
        assert_eq!((p.status(), ending.status), (RunStatus::Running, status));
        assert_eq!((p.at("b"), p.queued()), ("cancelled", vec!["a/compensate".to_owned()]));
        let late = Command::Complete { attempt: b, output: Ok(Bytes::from_static(b"1")) };
        assert_eq!(p.world.apply(&late), refused(Refusal::Stale));
        assert_eq!(p.world.apply(&Command::Pause), refused(Refusal::Ending(status)));
        p.play_all("1");
        assert_eq!(p.status(), status);
        assert_eq!((p.count(EventKind::RunPaused), p.count(EventKind::RunResumed)), (1, 0));
    }
}

#[test]
fn what_comes_back_to_a_paused_run_waits_outside_its_queue() {
    let mut p = Player::start("tasks: { a: { type: work } }", "{}");
    let (a, _) = p.lease("a");
    assert_eq!(p.world.apply(&Command::Pause), Ok(Outcome::Accepted));
    assert_eq!(p.world.apply(&Command::Release { attempt: a }), Ok(Outcome::Accepted));
    assert_eq!((p.world.queue.len(), p.at("a")), (0, "queued"));
    assert_eq!(p.world.apply(&Command::Resume), Ok(Outcome::Accepted));
    p.play_all("1");
    assert_eq!(p.status(), RunStatus::Completed);
}

#[test]
fn a_run_that_is_to_start_later_waits_until_then() {
    let plan = document::parse(
        b"name: flow\ntasks: { a: { type: work } }\ntimeout: 1m\nfinally: { z: { type: work } }",
        Format::Yaml,
    )
    .unwrap()
    .plan;
    let mut world = World::new(plan);
    let at = world.now.plus(Span::secs(100));
    let start = Command::Start(Start { start_at: Some(at), ..start() });
    assert_eq!(world.apply(&start), Ok(Outcome::Accepted));
    let mut p = Player { world, done: Vec::new(), homes: Homes::default() };
    assert_eq!((p.status(), p.world.wake, p.events().len()), (RunStatus::Pending, Some(at), 0));
    p.pass(Span::secs(99));
    assert_eq!(p.status(), RunStatus::Pending);
    p.pass(Span::secs(1));
    assert_eq!((p.status(), p.world.run().started_at), (RunStatus::Running, Some(at)));
    assert_eq!(p.world.run().deadline, Some(at.plus(Span::secs(60))), "its time counts from its start");
    p.play_all("1");
    assert_eq!(p.status(), RunStatus::Completed);

    let plan = document::parse(
        b"name: flow\ntasks: { a: { type: work } }\nfinally: { z: { type: work } }",
        Format::Yaml,
    )
    .unwrap()
    .plan;
    let mut world = World::new(plan);
    assert_eq!(world.apply(&start), Ok(Outcome::Accepted));
    assert_eq!(world.apply(&Command::Cancel { compensate: true, force: false }), Ok(Outcome::Accepted));
    assert_eq!((world.run().status, world.queue.len()), (RunStatus::Cancelled, 0), "nothing to clean up");
}

#[test]
fn a_retry_repeats_what_failed_and_what_is_behind_it_and_nothing_else() {
    let mut p = Player::start(
        "tasks:\n  a: { type: work }\n  b: { type: work, needs: [a], retry: { max_attempts: 1 } }\n  c: { type: work, needs: [b] }\n  h: { type: work, needs: [b], when: failure }\n  o: { type: work }\noutput: '${{ tasks.c.output }}'",
        "{}",
    );
    assert_eq!(p.world.apply(&Command::Retry), refused(Refusal::NotEnded(RunStatus::Running)));
    p.play(|path, _| if path == "b" { bad("x") } else { ok("1") });
    assert_eq!((p.status(), p.at("h"), p.at("c")), (RunStatus::Failed, "completed", "skipped"));
    assert!(p.world.retain_until.is_some());
    p.done.clear();
    assert_eq!(p.world.apply(&Command::Retry), Ok(Outcome::Accepted));
    assert_eq!((p.status(), p.world.run().try_number, p.world.retain_until), (RunStatus::Running, 2, None));
    assert_eq!(p.all(), ["a completed", "b queued", "c pending", "h pending", "o completed"]);
    p.play(|_, _| ok("2"));
    assert_eq!(p.done.iter().map(|(path, _)| path.as_str()).collect::<Vec<_>>(), ["b", "c"]);
    assert_eq!((p.status(), p.at("h"), p.run_output().as_str()), (RunStatus::Completed, "skipped", "2"));
    assert_eq!(p.world.run().tasks[1].attempt, 2, "attempt numbers go on");
    assert_eq!(
        (p.count(EventKind::RunFailed), p.count(EventKind::RunRetried), p.count(EventKind::RunCompleted)),
        (1, 1, 1)
    );
    assert_eq!(p.world.apply(&Command::Retry), refused(Refusal::NothingToRetry));
}

#[test]
fn a_retry_enters_groups_maps_and_loops_and_keeps_what_completed_in_them() {
    let mut p = Player::start(
        "tasks:\n  g: { tasks: { x: { type: work }, y: { type: work, needs: [x], retry: { max_attempts: 1 } } } }\n  m: { type: work, for_each: [0, 1, 2], retry: { max_attempts: 1 }, max_parallel: 1 }\n  l: { type: work, repeat: { max: 3 }, retry: { max_attempts: 1 }, input: '${{ loop.previous }}' }\noutput: ['${{ tasks.g.output }}', '${{ tasks.m.output }}', '${{ tasks.l.output }}']",
        "{}",
    );
    p.play(
        |path, _| if matches!(path, "g/y" | "m[1]" | "l#1") { bad("x") } else { ok(&format!("{path:?}")) },
    );
    assert_eq!(p.status(), RunStatus::Failed);
    p.done.clear();
    assert_eq!(p.world.apply(&Command::Retry), Ok(Outcome::Accepted));
    p.play(|path, _| ok(&format!("{path:?}")));
    let mut paths: Vec<_> = p.done.iter().map(|(path, _)| path.as_str()).collect();
    paths.sort_unstable();
    assert_eq!(paths, ["g/y", "l#1", "l#2", "m[1]", "m[2]"]);
    assert!(p.done.contains(&("l#1".into(), "\"l#0\"".into())), "the iteration sees the one before it");
    assert_eq!(p.run_output(), r#"[{"x":"g/x","y":"g/y"},["m[0]","m[1]","m[2]"],"l#2"]"#);
}

#[test]
fn what_was_undone_is_done_again() {
    let mut p = Player::start(SAGA, "{}");
    p.play(|path, input| if path == "e" { bad("x") } else { ok(input) });
    assert_eq!(p.status(), RunStatus::Failed);
    p.done.clear();
    assert_eq!(p.world.apply(&Command::Retry), Ok(Outcome::Accepted));
    p.play(|_, input| ok(input));
    let paths: Vec<_> = p.done.iter().map(|(path, _)| path.as_str()).collect();
    assert_eq!(paths, ["a", "b", "g/c", "g/d", "e", "finally/tell"]);
    assert_eq!(p.status(), RunStatus::Completed);
}

#[test]
fn a_rerun_begins_from_a_task_with_another_input() {
    let mut p = Player::start(
        "tasks:\n  a: { type: work, input: 1 }\n  b: { type: work, needs: [a], input: '${{ tasks.a.output }}' }\n  g: { needs: [a], tasks: { x: { type: work }, y: { type: work } } }",
        "{}",
    );
    p.play(|_, input| ok(input));
    p.done.clear();
    let rerun = |path: &str, input: Option<&'static [u8]>| Command::Rerun {
        path: TaskPath::parse(path).unwrap(),
        input: input.map(Bytes::from_static),
    };
    assert_eq!(p.world.apply(&rerun("nope", None)), refused(Refusal::NoTask));
    assert_eq!(p.world.apply(&rerun("a", Some(b"[2]"))), Ok(Outcome::Accepted));
    p.play(|_, input| ok(input));
    assert_eq!(p.done[0], ("a".into(), "[2]".into()));
    assert_eq!(p.done[1], ("b".into(), "[2]".into()));
    assert_eq!((p.status(), p.done.len()), (RunStatus::Completed, 4));
    p.done.clear();
    assert_eq!(p.world.apply(&rerun("g/x", None)), Ok(Outcome::Accepted));
    p.play_all("1");
    assert_eq!(p.done, [("g/x".into(), "null".into())]);
}

#[test]
fn open_tasks_are_ended_by_hand() {
    let act = |path: &str, action: Action| Command::Act { path: TaskPath::parse(path).unwrap(), action };
    let fail = || Action::Fail(ReportedFailure { code: "by_hand".into(), ..ReportedFailure::default() });
    let mut p = Player::start(
        "tasks:\n  a: { type: work }\n  b: { type: work, needs: [a] }\n  w: { wait: { signal: x } }\n  g: { tasks: { x: { type: work } } }\n  z: { type: work, needs: [w], input: '${{ tasks.w.output }}' }",
        "{}",
    );
    let (held, _) = p.lease("a");
    assert_eq!(p.world.apply(&act("a", Action::Skip)), refused(Refusal::TaskRunning));
    assert_eq!(p.world.apply(&act("a", Action::Complete(Bytes::from_static(b"5")))), Ok(Outcome::Accepted));
    assert_eq!((p.output("a").as_str(), p.world.revoked.len()), ("5", 1));
    let late = Command::Complete { attempt: held, output: Ok(Bytes::from_static(b"1")) };
    assert_eq!(p.world.apply(&late), refused(Refusal::Stale));
    assert_eq!(p.world.apply(&act("a", Action::Skip)), refused(Refusal::TaskEnded("completed")));
    assert_eq!(p.world.apply(&act("b", Action::Skip)), Ok(Outcome::Accepted));
    assert_eq!(p.world.apply(&act("w", Action::Complete(Bytes::from_static(b"{}")))), Ok(Outcome::Accepted));
    assert_eq!(p.world.apply(&act("g", fail())), Ok(Outcome::Accepted));
    assert_eq!((p.at("g"), p.at("g/x"), p.at("b")), ("failed", "cancelled", "skipped"));
    assert_eq!(p.world.apply(&act("m[0]", Action::Skip)), refused(Refusal::NoTask));
    p.play_all("1");
    assert_eq!(p.done.last().unwrap(), &("z".into(), "{}".into()));
    assert_eq!((p.status(), p.error()), (RunStatus::Failed, ("by_hand".into(), Some("g".into()))));
    assert_eq!(p.world.apply(&act("a", Action::Skip)), refused(Refusal::Ended(RunStatus::Failed)));
}

#[test]
fn a_loop_that_ran_out_begins_anew_with_a_retry() {
    let mut p = Player::start(
        "tasks: { l: { type: work, repeat: { while: '${{ loop.output < 5 }}', max: 2 } } }",
        "{}",
    );
    p.play_all("1");
    assert_eq!(p.error().0, "loop_exhausted");
    p.done.clear();
    assert_eq!(p.world.apply(&Command::Retry), Ok(Outcome::Accepted));
    p.play_all("9");
    assert_eq!((p.status(), p.done.len()), (RunStatus::Completed, 1));
}

#[test]
fn paths_lead_back_to_their_nodes() {
    let mut p = Player::start(
        "tasks:\n  b: { needs: [a], tasks: { x: { type: work, for_each: [1] } } }\n  a: { tasks: { y: { tasks: { z: { type: work, compensate: { type: undo } } } } } }\n  e: { needs: [b], fail: { code: x } }\nfinally: { f: { type: work } }",
        "{}",
    );
    p.play_all("1");
    let run = p.world.run();
    let paths: Vec<_> = (0..run.tasks.len() as u32).map(|i| p.path(i)).collect();
    let expected =
        ["b", "a", "e", "a/y", "a/y/z", "b/x", "b/x[0]", "a/y/z/compensate", "finally", "finally/f"];
    assert_eq!(paths, expected);
    for (i, path) in (0..).zip(&paths) {
        assert_eq!(run.find(&p.world.plan, &TaskPath::parse(path).unwrap()), Some(i), "{path}");
    }
}

#[test]
fn iterations_are_undone_each_as_the_last_one_first() {
    let mut p = Player::start(
        "tasks:\n  l: { type: work, repeat: { max: 2 }, compensate: { type: undo, input: ['${{ loop.index }}', '${{ loop.previous }}', '${{ tasks.l.output }}'] } }\n  z: { needs: [l], fail: { code: x } }",
        "{}",
    );
    p.play(|path, _| ok(&format!("{path:?}")));
    let expected = [
        ("l#1/compensate".into(), r#"[1,"l#0","l#1"]"#.into()),
        ("l#0/compensate".into(), r#"[0,null,"l#0"]"#.into()),
    ];
    assert_eq!(p.done[2..], expected);
}

fn paths(p: &Player) -> Vec<&str> {
    p.done.iter().map(|(path, _)| path.as_str()).collect()
}

#[test]
fn what_completed_in_an_earlier_try_is_undone_when_a_later_one_fails() {
    let text = "tasks:\n  a: { type: work, compensate: { type: undo } }\n  b: { needs: [a], type: work, retry: { max_attempts: 1 } }";
    let rerun = Command::Rerun { path: TaskPath::parse("b").unwrap(), input: None };
    let mut p = Player::start(text, "{}");
    p.play_all("1");
    assert_eq!(p.world.apply(&rerun), Ok(Outcome::Accepted));
    p.play(|path, _| if path == "b" { bad("x") } else { ok("1") });
    assert_eq!(paths(&p), ["a", "b", "b", "a/compensate"]);

    let mut p = Player::start(text, "{}");
    p.work("a", ok("1"));
    assert_eq!(p.world.apply(&Command::Cancel { compensate: false, force: false }), Ok(Outcome::Accepted));
    assert_eq!(p.world.apply(&Command::Retry), Ok(Outcome::Accepted));
    p.play(|path, _| if path == "b" { bad("x") } else { ok("1") });
    assert_eq!(paths(&p), ["a", "b", "a/compensate"]);
}

#[test]
fn an_iteration_that_others_have_followed_is_not_begun_from() {
    let mut p = Player::start("tasks: { l: { repeat: { max: 3 }, type: work } }", "{}");
    p.play_all("1");
    let rerun = |path: &str| Command::Rerun { path: TaskPath::parse(path).unwrap(), input: None };
    assert_eq!(p.world.apply(&rerun("l#1")), refused(Refusal::IterationPassed));
    assert_eq!(p.world.run().try_number, 1);
    assert_eq!(p.world.apply(&rerun("l#2")), Ok(Outcome::Accepted));
    p.play_all("1");
    assert_eq!(p.world.apply(&rerun("l")), Ok(Outcome::Accepted));
    p.play_all("1");
    assert_eq!(paths(&p), ["l#0", "l#1", "l#2", "l#2", "l#0", "l#1", "l#2"]);
}

#[test]
fn what_stands_in_a_group_that_was_skipped_is_not_begun_from() {
    let mut p = Player::start(
        "tasks:\n  g: { tasks: { m: { for_each: [1], tasks: { x: { type: work } } } } }\n  z: { type: work }",
        "{}",
    );
    let act = |path: &str| Command::Act { path: TaskPath::parse(path).unwrap(), action: Action::Skip };
    assert_eq!(p.world.apply(&act("g")), Ok(Outcome::Accepted));
    p.play_all("1");
    assert_eq!((p.status(), p.at("g")), (RunStatus::Completed, "skipped"));
    let rerun = |path: &str| Command::Rerun {
        path: TaskPath::parse(path).unwrap(),
        input: Some(Bytes::from_static(b"7")),
    };
    let before = p.world.run().clone();
    for path in ["g/m", "g/m[0]", "g/m[0]/x"] {
        let around = Refusal::AroundSkipped(TaskPath::parse("g").unwrap());
        assert_eq!(p.world.apply(&rerun(path)), refused(around), "{path}");
    }
    assert_eq!(*p.world.run(), before, "nothing has changed");
    assert_eq!(p.world.apply(&rerun("g")), Ok(Outcome::Accepted));
    p.play_all("1");
    assert_eq!((p.at("g"), paths(&p)), ("completed", vec!["z", "g/m[0]/x"]));
}

#[test]
fn a_group_that_fails_by_hand_is_undone() {
    let mut p = Player::start(
        "tasks:\n  g: { on_error: continue, tasks: { x: { type: work, compensate: { type: undo } }, y: { needs: [x], type: work } } }\n  z: { needs: [g], type: work }",
        "{}",
    );
    p.work("g/x", ok("1"));
    p.lease("g/y");
    let fail = Action::Fail(ReportedFailure { code: "hand".into(), ..ReportedFailure::default() });
    let act = Command::Act { path: TaskPath::parse("g").unwrap(), action: fail };
    assert_eq!(p.world.apply(&act), Ok(Outcome::Accepted));
    p.play_all("1");
    assert_eq!(paths(&p), ["g/x", "g/y", "g/x/compensate", "z"]);
    assert_eq!((p.at("g"), p.at("g/y"), p.status()), ("failed", "cancelled", RunStatus::Completed));
}

#[test]
fn a_failed_loop_undoes_the_iterations_that_completed() {
    let mut p = Player::start(
        "tasks:\n  g: { on_error: continue, repeat: { max: 3 }, tasks: { x: { type: work, compensate: { type: undo } }, y: { needs: [x], type: work, retry: { max_attempts: 1 } } } }",
        "{}",
    );
    p.play(|path, _| if path == "g#1/y" { bad("x") } else { ok("1") });
    let undone: Vec<_> = paths(&p).into_iter().filter(|path| path.ends_with("compensate")).collect();
    assert_eq!(undone, ["g#1/x/compensate", "g#0/x/compensate"]);
    assert_eq!((p.at("g"), p.status()), ("failed", RunStatus::Completed));
}

#[test]
fn a_rerun_leaves_what_was_forgiven_elsewhere() {
    let mut p = Player::start(
        "tasks:\n  a: { type: work, on_error: continue, retry: { max_attempts: 1 } }\n  m: { needs: [a], type: work }",
        "{}",
    );
    p.play(|path, _| if path == "a" { bad("x") } else { ok("1") });
    let rerun = Command::Rerun { path: TaskPath::parse("m").unwrap(), input: None };
    assert_eq!(p.world.apply(&rerun), Ok(Outcome::Accepted));
    p.play_all("1");
    assert_eq!((paths(&p), p.status()), (vec!["a", "m", "m"], RunStatus::Completed));
}

#[test]
fn fail_fast_awaits_what_would_have_to_be_undone_at_any_depth() {
    let mut p = Player::start(
        "fail_fast: true\ntasks:\n  a: { type: work, retry: { max_attempts: 1 } }\n  g:\n    tasks:\n      x: { type: work, compensate: { type: undo } }\n      y: { type: work }\n      z: { needs: [x], type: work }\n  m: { for_each: [1, 2, 3], max_parallel: 1, type: work, compensate: { type: undo, input: '${{ item }}' } }\n  l: { repeat: { max: 3 }, type: work, compensate: { type: undo } }\n  o: { for_each: [1, 2], type: work }",
        "{}",
    );
    let held: Vec<_> = ["g/x", "g/y", "m[0]", "l#0", "o[0]"].map(|path| p.lease(path).0).into();
    p.work("a", bad("x"));
    assert_eq!(
        (p.at("g/y"), p.at("g/z"), p.at("m[1]"), p.at("o")),
        ("cancelled", "skipped", "skipped", "cancelled")
    );
    assert_eq!(p.queued(), [] as [&str; 0], "nothing new starts");
    for (n, attempt) in held.into_iter().enumerate() {
        let done = Command::Complete { attempt, output: Ok(Bytes::from_static(b"1")) };
        let awaited = matches!(n, 0 | 2 | 3);
        assert_eq!(p.world.apply(&done).is_ok(), awaited, "{n}");
    }
    assert_eq!((p.at("g"), p.at("m"), p.at("l")), ("cancelled", "cancelled", "cancelled"));
    p.done.clear();
    p.play_all("1");
    assert_eq!(paths(&p), ["l#0/compensate", "m[0]/compensate", "g/x/compensate"]);
    assert_eq!((p.status(), p.error()), (RunStatus::Failed, ("x".into(), Some("a".into()))));
}

#[test]
fn attempts_go_on_in_what_a_later_try_lays_out_anew() {
    let mut p = Player::start(
        "tasks:\n  a: { type: work }\n  g: { needs: [a], for_each: [1], tasks: { x: { type: work } } }\nfinally: { f: { type: work } }",
        "{}",
    );
    p.play_all("1");
    for n in 2..4 {
        let rerun = Command::Rerun { path: TaskPath::parse("a").unwrap(), input: None };
        assert_eq!(p.world.apply(&rerun), Ok(Outcome::Accepted));
        p.play_all("1");
        for path in ["a", "g[0]/x", "finally/f"] {
            assert_eq!(p.world.run().tasks[p.node(path) as usize].attempt, n, "{path}");
        }
    }
}
