//! Wide and long runs: counted joins, no recursion, bounded records.

use super::*;

#[test]
fn ten_thousand_items_join_after_the_last_in_their_order() {
    let list: Vec<String> = (0..10_000).map(|n| n.to_string()).collect();
    let mut p = Player::start(
        "tasks: { m: { type: work, for_each: '${{ input }}', input: '${{ item }}', max_parallel: 500 } }\noutput: '${{ tasks.m.output }}'",
        &format!("[{}]", list.join(",")),
    );
    let mut next = 0;
    while p.status() == RunStatus::Running {
        let open = p.queued();
        assert!(open.len() <= 500);
        let mut commands = Vec::with_capacity(open.len());
        let leases: Vec<Command> = open
            .iter()
            .map(|path| {
                let node = p.node(path);
                p.world.lease_command(node, Holder::Session { id: session(1), epoch: 1 })
            })
            .collect();
        assert!(p.world.apply_all(&leases).iter().all(Result::is_ok));
        for path in &open {
            let node = p.node(path);
            let output = Ok(Bytes::from(p.json(&p.world.run().tasks[node as usize].input.clone())));
            commands.push(Command::Complete { attempt: p.world.key(node), output });
            next += 1;
        }
        assert!(p.world.apply_all(&commands).iter().all(Result::is_ok));
    }
    assert_eq!((next, p.status()), (10_000, RunStatus::Completed));
    assert_eq!(p.run_output(), format!("[{}]", list.join(",")));
}

#[test]
fn a_chain_of_ten_thousand_whose_first_fails_is_skipped_without_recursion() {
    let mut text = "tasks:\n  t0: { type: work, retry: { max_attempts: 1 } }\n".to_owned();
    for n in 1..10_000 {
        use std::fmt::Write as _;
        writeln!(text, "  t{n}: {{ type: work, needs: [t{}] }}", n - 1).unwrap();
    }
    let mut p = Player::start(&text, "{}");
    p.work("t0", bad("x"));
    assert_eq!(p.status(), RunStatus::Failed);
    assert_eq!((p.count(EventKind::TaskFailed), p.count(EventKind::TaskSkipped)), (1, 9_999));
}

#[test]
fn a_star_of_ten_thousand_runs() {
    let mut text = "tasks:\n  hub: { type: work }\n".to_owned();
    for n in 1..10_000 {
        use std::fmt::Write as _;
        writeln!(text, "  t{n}: {{ type: work, needs: [hub] }}").unwrap();
    }
    let mut p = Player::start(&text, "{}");
    p.work("hub", ok("1"));
    assert_eq!(p.queued().len(), 9_999);
}

#[test]
fn a_decision_computes_so_much_and_leaves_the_rest_to_the_next() {
    let mut p = Player::start(
        "tasks:\n  l: { repeat: { while: '${{ loop.index < 99 }}', max: 100 }, set: '${{ loop.index + 1 }}' }\n  m: { for_each: '${{ input }}', set: '${{ item * 2 }}' }\n  g: { needs: [m], for_each: '${{ input }}', tasks: { s: { if: '${{ item > 3 }}', type: work, input: '${{ item + 1 }}' } } }\noutput: ['${{ tasks.l.output }}', '${{ tasks.m.output[99] }}']",
        &format!("[{}]", (0..100).map(|n| n.to_string()).collect::<Vec<_>>().join(",")),
    );
    let mut decisions = 0;
    while !p.status().is_terminal() {
        let begun = p.world.run().tasks.iter().filter(|t| t.phase.is_terminal()).count();
        // What is left over is looked at at once.
        if p.queued().is_empty() {
            assert_eq!(p.world.wake, Some(p.world.now));
            p.wake();
            decisions += 1;
        } else {
            p.play_all("1");
        }
        let ended = p.world.run().tasks.iter().filter(|t| t.phase.is_terminal()).count();
        assert!(ended - begun <= 400, "{begun} {ended}");
    }
    assert!((10..40).contains(&decisions), "{decisions}");
    assert_eq!((p.status(), p.run_output().as_str()), (RunStatus::Completed, "[100,198]"));
    assert_eq!(p.done.len(), 96);
}
