//! Random documents of all constructs, nested, with random outcomes: what must hold whatever happens.

use super::*;
use crate::model::document::tests::random::{CHILD, documents};
use crate::model::run::{BlockKind, Waiting};
use proptest::prelude::*;
use std::collections::BTreeMap;

const INPUT: &str = r#"{"x":1,"t":"a","w":"child","d":"1s","go":true,"items":[1,{"k":2.0},"three"]}"#;

/// What is done next; numbers choose among what there is.
#[derive(Debug, Clone)]
enum Move {
    Complete(u8),
    Fail(u8),
    Release(u8),
    Signal,
    Pass(u16),
    Pause,
    Resume,
    Cancel(bool),
    Act(u8, u8),
    Retry,
}

fn moves() -> impl Strategy<Value = Move> {
    prop_oneof![
        12 => any::<u8>().prop_map(Move::Complete),
        4 => any::<u8>().prop_map(Move::Fail),
        1 => any::<u8>().prop_map(Move::Release),
        3 => Just(Move::Signal),
        4 => any::<u16>().prop_map(Move::Pass),
        1 => Just(Move::Pause),
        2 => Just(Move::Resume),
        1 => any::<bool>().prop_map(Move::Cancel),
        2 => (any::<u8>(), any::<u8>()).prop_map(|(n, how)| Move::Act(n, how)),
        1 => Just(Move::Retry),
    ]
}

fn make(p: &mut Player, step: &Move) {
    let queued = p.queued();
    let nth = |n: u8| queued.get(usize::from(n) % queued.len().max(1)).cloned();
    match step {
        Move::Complete(n) => {
            if let Some(path) = nth(*n) {
                p.work(&path, ok(r#"{"y":2,"done":true}"#));
            }
        }
        Move::Fail(n) => {
            if let Some(path) = nth(*n) {
                p.work(&path, bad("random"));
            }
        }
        Move::Release(n) => {
            if let Some(path) = nth(*n) {
                let (attempt, _) = p.lease(&path);
                assert_eq!(p.world.apply(&Command::Release { attempt }), Ok(Outcome::Accepted));
            }
        }
        Move::Signal => drop(p.signal("go", None, "[7]")),
        Move::Pass(seconds) => p.pass(Span::secs(i64::from(*seconds))),
        Move::Pause => drop(p.world.apply(&Command::Pause)),
        Move::Resume => drop(p.world.apply(&Command::Resume)),
        Move::Cancel(compensate) => {
            drop(p.world.apply(&Command::Cancel { compensate: *compensate, force: false }));
        }
        Move::Act(n, how) => {
            use crate::model::command::Action;
            let nodes = p.world.run().tasks.len();
            let path = p.path((usize::from(*n) % nodes) as u32);
            let action = match how % 3 {
                0 => Action::Skip,
                1 => Action::Complete(Bytes::from_static(b"{\"y\":3}")),
                _ => Action::Fail(ReportedFailure::default()),
            };
            drop(p.world.apply(&Command::Act { path: TaskPath::parse(&path).unwrap(), action }));
        }
        Move::Retry => drop(p.world.apply(&Command::Retry)),
    }
    p.carry();
}

/// What must hold after every decision.
fn check(p: &Player) {
    let run = p.world.run();
    // Counters equal records.
    let own = p.world.plan.body.clone();
    let open = |nodes: std::ops::Range<u32>| {
        nodes.filter(|n| !run.tasks[*n as usize].phase.is_terminal()).count() as u32
    };
    assert_eq!(run.open_tasks, open(own), "open tasks of the run");
    let current = run.current_blocks();
    for (i, task) in (0..).zip(&run.tasks) {
        let path = run.path_of(&p.world.plan, i);
        let found = run.find(&p.world.plan, &path);
        if task.block == 0 || current[task.block as usize - 1] {
            assert_eq!(found, Some(i), "{path}");
        }
        if let TaskPhase::Waiting(waiting) = &task.phase {
            let nodes = |block: u32| {
                let b = &run.blocks[block as usize - 1];
                assert_eq!(b.owner, Some(i));
                b.first..b.first + b.len
            };
            match waiting {
                Waiting::Body { block, open: told, .. } => {
                    assert_eq!(*told, open(nodes(*block)), "{}", p.path(i));
                }
                Waiting::Items { block, next, open: told, .. } => {
                    let all = nodes(*block);
                    let started = (all.start..all.start + next)
                        .filter(|n| !run.tasks[*n as usize].phase.is_terminal())
                        .count() as u32;
                    let later = (all.start + next..all.end)
                        .filter(|n| {
                            let phase = &run.tasks[*n as usize].phase;
                            !phase.is_terminal() && !matches!(phase, TaskPhase::Pending { .. })
                        })
                        .count() as u32;
                    assert_eq!(*told, started + later, "{}", p.path(i));
                }
                Waiting::Iterations { block, .. } => assert_eq!(nodes(*block).len(), 1),
                Waiting::Timer { .. }
                | Waiting::Signal { .. }
                | Waiting::Child { .. }
                | Waiting::Permit { .. }
                | Waiting::Rate { .. } => {}
            }
        }
        check_wake(p, i, task);
        // Nothing goes on inside what has ended.
        if let Some(owner) = run.block_of(i).and_then(|b| b.owner)
            && !task.phase.is_terminal()
        {
            let inside = run.block_of(i).is_some_and(|b| b.kind != BlockKind::Compensation);
            let last = run.last_block(Some(owner), |k| Some(k) == run.block_of(i).map(|b| b.kind));
            let current = last.is_some_and(|(n, _)| n == task.block);
            if inside && current {
                let outer = &run.tasks[owner as usize].phase;
                assert!(matches!(outer, TaskPhase::Waiting(_)), "{} in {outer:?}", p.path(i));
            }
        }
    }
    // One terminal status, told by the last event of each try.
    let mut tries = 1;
    for (n, e) in run.log.iter().enumerate() {
        if e.kind.ends_run() {
            let next = run.log.get(n + 1).map(|e| e.kind);
            assert!(next.is_none_or(|k| k == EventKind::RunRetried), "{next:?} after the end");
        }
        tries += u32::from(e.kind == EventKind::RunRetried);
    }
    assert_eq!(run.try_number, tries);
    let ended = run.log.last().is_some_and(|e| e.kind.ends_run());
    assert_eq!(ended, run.status.is_terminal());
    if ended {
        assert!(run.tasks.iter().all(|t| t.phase.is_terminal()), "ended with open tasks: {:?}", p.all());
        assert_eq!((p.world.queue.len(), p.world.wake), (0, None));
    } else {
        assert_eq!(p.world.wake, run.armed);
        assert!(p.world.wake.is_some());
    }
    if run.status == RunStatus::Paused {
        assert_eq!(p.world.queue.len(), 0);
        assert_eq!(run.ending, None, "no end begins in a pause");
    }
    check_log(p);
}

/// The run is looked at no later than anything in it is due.
fn check_wake(p: &Player, i: u32, task: &crate::model::run::TaskState) {
    let run = p.world.run();
    let Some(wake) = p.world.wake.filter(|_| !task.phase.is_terminal()) else { return };
    let plan = &p.world.plan.tasks[run.plan_index(i) as usize];
    let paused = run.status == RunStatus::Paused;
    if let (Some(total), Some(first)) = (plan.timeout.total, task.first_queued_at) {
        assert!(wake <= first.plus(total), "{} is timed out late", p.path(i));
    }
    let due = match &task.phase {
        TaskPhase::Waiting(Waiting::Timer { due }) => Some(*due),
        TaskPhase::Waiting(Waiting::Iterations { due, .. }) if !paused => *due,
        TaskPhase::Retrying { due } if !paused => Some(*due),
        TaskPhase::Waiting(Waiting::Rate { due, .. }) if !paused => *due,
        _ => None,
    };
    assert!(due.is_none_or(|due| wake <= due), "{} is looked at late", p.path(i));
}

/// Queued before started before ended, for each attempt of each node; nothing runs twice in one try.
fn check_log(p: &Player) {
    let mut at: BTreeMap<u32, (EventKind, u32)> = BTreeMap::new();
    let mut completed: BTreeMap<u32, u32> = BTreeMap::new();
    for e in &p.world.run().log {
        if e.kind == EventKind::RunRetried {
            at.clear();
            completed.clear();
        }
        let Some(i) = e.task else { continue };
        let before = at.get(&i).map(|(k, _)| *k);
        let ends = matches!(
            e.kind,
            EventKind::TaskCompleted
                | EventKind::TaskFailed
                | EventKind::TaskSkipped
                | EventKind::TaskCancelled
                | EventKind::TaskTimedOut
        );
        match e.kind {
            EventKind::TaskStarted => assert_eq!(before, Some(EventKind::TaskQueued), "{}", p.path(i)),
            EventKind::TaskQueued => assert_ne!(before, Some(EventKind::TaskQueued), "{}", p.path(i)),
            EventKind::TaskCompleted => {
                let times = completed.entry(i).or_default();
                *times += 1;
                assert_eq!(*times, 1, "{} completed twice", p.path(i));
            }
            _ => {}
        }
        if ends && let Some((EventKind::TaskCompleted | EventKind::TaskFailed, _)) = at.get(&i) {
            panic!("{} ended twice: {:?}", p.path(i), e.kind);
        }
        at.insert(i, (e.kind, e.attempt));
    }
}

/// Plays a run to its end: everybody is there, every signal comes, time passes.
fn to_the_end(p: &mut Player) {
    drop(p.world.apply(&Command::Resume));
    p.carry();
    for _ in 0..2_000 {
        if p.world.run().status.is_terminal() {
            return;
        }
        if let Some(path) = p.queued().first().cloned() {
            p.work(&path, ok(r#"{"y":2}"#));
        } else {
            let waits = |t: &crate::model::run::TaskState| {
                matches!(t.phase, TaskPhase::Waiting(Waiting::Signal { .. }))
            };
            if p.world.run().tasks.iter().any(waits) && p.world.run().ending.is_none() {
                assert_eq!(p.signal("go", None, "1"), Ok(Outcome::Accepted));
            } else {
                p.pass(Span::secs(86_400 * 40));
            }
        }
        p.carry();
        check(p);
    }
    panic!("it does not end: {:?}", p.all());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, max_shrink_iters: 4_000, ..ProptestConfig::default() })]

    #[test]
    fn whatever_happens_a_run_keeps_its_promises_and_ends(
        text in documents(&[CHILD]),
        moves in prop::collection::vec(moves(), 0..40),
    ) {
        let plan = document::parse(text.as_bytes(), Format::Json).map_err(|f| TestCaseError::fail(format!("{f:?}")))?.plan;
        let mut p = Player::of(World::new(plan), INPUT);
        p.carry();
        check(&p);
        for step in &moves {
            make(&mut p, step);
            check(&p);
        }
        to_the_end(&mut p);
        if p.world.run().status != RunStatus::Completed {
            // What a retry keeps it does not queue again.
            let state = p.world.run();
            let kept: Vec<u32> = p.world.plan.body.clone()
                .filter(|n| matches!(&state.tasks[*n as usize], t if matches!(t.phase, TaskPhase::Completed { .. }) && !t.undone))
                .filter(|n| state.level(&p.world.plan, *n) == crate::model::nodes::Level::Body)
                .filter(|n| p.world.plan.tasks[*n as usize].needs.is_empty())
                .filter(|n| !matches!(p.world.plan.tasks[*n as usize].kind, crate::model::plan::TaskKind::Group(_)))
                .collect();
            let before = state.log.len();
            assert_eq!(p.world.apply(&Command::Retry), Ok(Outcome::Accepted));
            p.carry();
            check(&p);
            to_the_end(&mut p);
            let again = p.world.run().log.iter_from(before).find(|e| e.task.is_some_and(|t| kept.contains(&t)));
            prop_assert_eq!(again, None);
        }
    }
}
