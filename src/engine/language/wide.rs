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
