use super::*;
use crate::engine::testing::{World, chain, plan, session};
use crate::model::command::{Command, Outcome};
use crate::model::plan::Timeouts;
use crate::model::time::Span;

/// A need that ends in a certain way, and what it counts as.
#[derive(Debug, Clone, Copy)]
enum Need {
    Completed,
    Failed,
    FailedContinued,
    TimedOut,
    TimedOutContinued,
    /// By a `when` that did not match.
    Skipped,
    /// Behind a failure.
    SkippedAsFailed,
}

impl Need {
    const ALL: [(Self, char); 7] = [
        (Self::Completed, 'C'),
        (Self::Failed, 'F'),
        (Self::FailedContinued, 'C'),
        (Self::TimedOut, 'F'),
        (Self::TimedOutContinued, 'C'),
        (Self::Skipped, 'N'),
        (Self::SkippedAsFailed, 'F'),
    ];
}

/// Needs by what they count as: what becomes of a task under `success`, `failure`, `always`.
const TABLE: [(&str, [&str; 3]); 10] = [
    ("", ["queued", "skipped", "queued"]),
    ("C", ["queued", "skipped", "queued"]),
    ("F", ["skipped as failed", "queued", "queued"]),
    ("N", ["skipped", "skipped", "queued"]),
    ("CC", ["queued", "skipped", "queued"]),
    ("CF", ["skipped as failed", "queued", "queued"]),
    ("CN", ["queued", "skipped", "queued"]),
    ("FF", ["skipped as failed", "queued", "queued"]),
    ("FN", ["skipped as failed", "queued", "queued"]),
    ("NN", ["skipped", "skipped", "queued"]),
];

/// A run with two tasks for each need (a cause and the need itself), one task behind the needs and one
/// unrelated that keeps the run open; played until the needs have ended.
fn judged(needs: &[Need], when: When) -> String {
    let mut edges: Vec<Vec<u32>> = vec![vec![]];
    let mut indexes = Vec::new();
    for need in needs {
        let cause = edges.len() as u32;
        edges.push(vec![]);
        edges.push(if matches!(need, Need::SkippedAsFailed) { vec![cause] } else { vec![] });
        indexes.push(cause + 1);
    }
    let last = edges.len() as u32;
    edges.push(indexes.clone());
    let edges: Vec<&[u32]> = edges.iter().map(Vec::as_slice).collect();
    let mut plan = plan(&edges);
    for (need, i) in needs.iter().zip(&indexes) {
        let task = &mut plan.tasks[*i as usize];
        match need {
            Need::Skipped => task.when = When::Failure,
            Need::FailedContinued | Need::TimedOutContinued => task.continue_on_error = true,
            Need::Completed | Need::Failed | Need::TimedOut | Need::SkippedAsFailed => {}
        }
        if matches!(need, Need::TimedOut | Need::TimedOutContinued) {
            task.timeout = Timeouts { queue: Some(Span::secs(1)), ..Timeouts::default() };
        }
    }
    plan.tasks[last as usize].when = when;
    let mut world = World::started(plan);
    for (need, i) in needs.iter().zip(&indexes) {
        match need {
            Need::Completed => world.complete(*i),
            Need::Failed | Need::FailedContinued => world.fail(*i, "x"),
            Need::SkippedAsFailed => world.fail(*i - 1, "x"),
            Need::TimedOut | Need::TimedOutContinued => {
                world.pass(Span::secs(1));
                world.wake();
            }
            Need::Skipped => {}
        }
    }
    match &world.run().tasks[last as usize].phase {
        TaskPhase::Skipped { counts_as_failed: true } => "skipped as failed".into(),
        phase => phase.name().into(),
    }
}

fn expected(kinds: &str, when: When) -> &'static str {
    let mut sorted: Vec<char> = kinds.chars().collect();
    sorted.sort_unstable();
    let sorted: String = sorted.into_iter().collect();
    let row = TABLE.iter().find(|(needs, _)| *needs == sorted).unwrap();
    row.1[match when {
        When::Success => 0,
        When::Failure => 1,
        When::Always => 2,
    }]
}

#[test]
fn every_outcome_of_needs_meets_every_when_as_the_table_says() {
    let mut rows = 0;
    for when in [When::Success, When::Failure, When::Always] {
        assert_eq!(judged(&[], when), expected("", when), "no needs, {when:?}");
        for (a, ka) in Need::ALL {
            assert_eq!(judged(&[a], when), expected(&ka.to_string(), when), "{a:?}, {when:?}");
            for (b, kb) in Need::ALL {
                let kinds: String = [ka, kb].into_iter().collect();
                assert_eq!(judged(&[a, b], when), expected(&kinds, when), "{a:?}, {b:?}, {when:?}");
                rows += 1;
            }
        }
    }
    assert_eq!(rows, 3 * 49);
}

#[test]
fn a_chain_runs_one_after_another_and_completes() {
    let mut w = World::started(chain(2));
    w.complete(0);
    w.complete(1);
    assert_eq!(
        w.events(),
        [
            "run.started",
            "queued t0",
            "started t0",
            "completed t0",
            "queued t1",
            "started t1",
            "completed t1",
            "run.completed"
        ]
    );
    assert_eq!(w.run().status, RunStatus::Completed);
    assert_eq!((w.queue.len(), w.wake, w.run().armed), (0, None, None));
    assert_eq!(w.retain_until, Some(w.now.plus(Span::secs(7 * 86_400))));
}

#[test]
fn a_chain_of_a_thousand_skips_is_one_decision() {
    let mut w = World::started(chain(1_000));
    w.fail(0, "x");
    assert_eq!(w.statuses()[0], "failed");
    assert!(w.statuses()[1..].iter().all(|s| *s == "skipped"));
    assert_eq!(w.run().status, RunStatus::Failed);
    let error = &w.run().failures[w.run().error.unwrap() as usize];
    assert_eq!((error.code.as_str(), error.task, error.attempt), ("x", Some(0), 1));
}

#[test]
fn a_join_of_a_thousand_starts_after_the_last() {
    let needs: Vec<u32> = (0..999).collect();
    let mut edges: Vec<&[u32]> = vec![&[]; 999];
    edges.push(&needs);
    let mut w = World::started(plan(&edges));
    for i in (0..999).rev() {
        assert_eq!(w.statuses()[999], "pending");
        w.complete(i);
    }
    assert_eq!(w.statuses()[999], "queued");
}

#[test]
fn a_handled_failure_still_fails_the_run_and_a_continued_one_does_not() {
    let mut p = plan(&[&[], &[0]]);
    p.tasks[1].when = When::Failure;
    let mut w = World::started(p);
    w.fail(0, "x");
    assert_eq!(w.statuses(), ["failed", "queued"]);
    w.complete(1);
    assert_eq!(w.run().status, RunStatus::Failed);

    let mut p = plan(&[&[], &[0]]);
    p.tasks[0].continue_on_error = true;
    let mut w = World::started(p);
    w.fail(0, "x");
    w.complete(1);
    assert_eq!((w.run().status, w.run().error), (RunStatus::Completed, None));
}

#[test]
fn the_first_failure_is_the_error_of_the_run() {
    let mut w = World::started(plan(&[&[], &[], &[0]]));
    w.fail(1, "first");
    w.fail(0, "second");
    let error = &w.run().failures[w.run().error.unwrap() as usize];
    assert_eq!((w.run().status, error.code.as_str()), (RunStatus::Failed, "first"));
}

#[test]
fn fail_fast_skips_what_waits_and_cancels_what_runs_but_spares_handlers() {
    // 0 fails; 1 runs; 2 waits in its queue; 3 waits for 1; 4 and 5 are handlers; 6 runs and is a handler.
    let mut p = plan(&[&[], &[], &[], &[1], &[0], &[3], &[]]);
    p.fail_fast = true;
    for i in [4, 5] {
        p.tasks[i].when = When::Failure;
    }
    p.tasks[6].when = When::Always;
    let mut w = World::started(p);
    let running = w.lease(1);
    let handler = w.lease(6);
    w.fail(0, "x");
    assert_eq!(w.statuses(), ["failed", "cancelled", "skipped", "skipped", "queued", "queued", "running"]);
    assert_eq!(w.queue.len(), 2);
    let [revoked] = &w.revoked[..] else { panic!("{:?}", w.revoked) };
    assert_eq!(revoked.session, session(1));
    let late = Command::Complete { attempt: running, output: Ok("1".into()) };
    assert_eq!(w.apply(&late), Err(Stop::Refused(crate::model::command::Refusal::Stale)));
    let done = Command::Complete { attempt: handler, output: Ok("1".into()) };
    assert_eq!(w.apply(&done), Ok(Outcome::Accepted));
    w.complete(4);
    w.complete(5);
    assert_eq!(w.run().status, RunStatus::Failed);
    assert_eq!(w.run().failures.len(), 1);
}

#[test]
fn fail_fast_cancels_a_task_that_was_started_before() {
    let mut p = plan(&[&[], &[], &[]]);
    p.fail_fast = true;
    p.tasks[1].retry.max_attempts = 2;
    let mut w = World::started(p);
    w.fail(1, "once");
    let attempt = w.lease(2);
    assert_eq!(w.apply(&Command::Release { attempt }), Ok(Outcome::Accepted));
    assert_eq!(w.statuses(), ["queued", "retrying", "queued"]);
    w.fail(0, "x");
    assert_eq!(w.statuses(), ["failed", "cancelled", "cancelled"]);
    assert_eq!(w.run().status, RunStatus::Failed);
}

#[test]
fn a_run_that_has_nothing_to_do_ends_at_its_start() {
    let mut p = plan(&[&[], &[0]]);
    p.tasks[0].when = When::Failure;
    let w = World::started(p);
    assert_eq!(w.statuses(), ["skipped", "skipped"]);
    assert_eq!(w.run().status, RunStatus::Completed);
    assert_eq!(w.events().last().unwrap(), "run.completed");
    assert_eq!((w.wake, w.retain_until.is_some()), (None, true));
}
