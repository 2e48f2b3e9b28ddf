//! Each construct by itself, and in each other.

use super::*;

#[test]
fn a_group_runs_its_tasks_and_is_seen_from_outside_as_one() {
    let mut p = Player::start(
        "tasks:\n  a: { type: work }\n  g:\n    needs: [a]\n    tasks:\n      x: { type: work, input: '${{ tasks.a.output }}' }\n      y: { type: work, needs: [x], input: { x: '${{ tasks.x.output }}' } }\n  z: { type: work, needs: [g], input: '${{ tasks.g.output }}' }\noutput: '${{ tasks.z.output }}'",
        "{}",
    );
    p.work("a", ok("[1]"));
    assert_eq!(p.at("g"), "waiting");
    assert_eq!(p.queued(), ["g/x"]);
    p.work("g/x", ok("1.0"));
    p.work("g/y", ok("{}"));
    p.work("z", ok("\"end\""));
    assert_eq!(p.status(), RunStatus::Completed);
    assert_eq!(p.done[1], ("g/x".into(), "[1]".into()));
    assert_eq!(p.done[2], ("g/y".into(), r#"{"x":1.0}"#.into()));
    assert_eq!(p.done[3], ("z".into(), r#"{"x":1.0,"y":{}}"#.into()));
    assert_eq!((p.run_output().as_str(), p.output("g").as_str()), ("\"end\"", r#"{"x":1.0,"y":{}}"#));
    let order = ["waiting g", "queued g/x", "completed g/y", "completed g", "queued z"];
    let events = p.events();
    let places: Vec<_> = order.iter().map(|e| events.iter().position(|x| x == e).unwrap()).collect();
    assert!(places.is_sorted(), "{events:?}");
}

#[test]
fn a_failure_in_a_group_fails_it_and_on_error_goes_on() {
    let text = |on_error: &str| {
        format!(
            "tasks:\n  g:\n    on_error: {on_error}\n    tasks:\n      x: {{ type: work, retry: {{ max_attempts: 1 }} }}\n      y: {{ type: work, needs: [x] }}\n      o: {{ type: work }}\n  z: {{ type: work, needs: [g], input: '${{{{ tasks.g.status }}}} ${{{{ tasks.g.error.code }}}}' }}"
        )
    };
    let worker = |path: &str, _: &str| if path == "g/x" { bad("broken") } else { ok("1") };
    let mut p = Player::start(&text("fail"), "{}");
    p.play(worker);
    assert_eq!(p.all(), ["g failed", "z skipped", "g/x failed", "g/y skipped", "g/o completed"]);
    assert_eq!((p.status(), p.error()), (RunStatus::Failed, ("broken".into(), Some("g/x".into()))));
    let mut p = Player::start(&text("continue"), "{}");
    p.play(worker);
    assert_eq!((p.status(), p.at("z")), (RunStatus::Completed, "completed"));
    assert_eq!(p.done.last().unwrap().1, "\"failed broken\"");
}

#[test]
fn items_run_in_parallel_up_to_a_limit_and_come_out_in_their_order() {
    let mut p = Player::start(
        "tasks:\n  m: { type: work, for_each: '${{ input.l }}', max_parallel: 2, input: { v: '${{ item }}', n: '${{ index }}' } }\noutput: '${{ tasks.m.output }}'",
        r#"{"l":["a",1.0,{"k":9007199254740993},[],null]}"#,
    );
    assert_eq!(p.queued(), ["m[0]", "m[1]"]);
    p.work("m[1]", ok("\"second\""));
    assert_eq!(p.queued(), ["m[0]", "m[2]"]);
    p.play(|path, _| ok(&format!("{path:?}")));
    assert_eq!(p.run_output(), r#"["m[0]","second","m[2]","m[3]","m[4]"]"#);
    let inputs: Vec<&str> = p.done.iter().map(|(_, input)| input.as_str()).collect();
    assert!(inputs.contains(&r#"{"n":1,"v":1.0}"#), "{inputs:?}");
    assert!(inputs.contains(&r#"{"n":2,"v":{"k":9007199254740993}}"#), "{inputs:?}");
    assert!(inputs.contains(&r#"{"n":4,"v":null}"#), "{inputs:?}");
}

#[test]
fn nothing_to_go_over_is_an_empty_list_and_no_list_is_a_failure() {
    let text = "tasks:\n  m: { type: work, for_each: '${{ input.l }}' }\n  z: { type: work, needs: [m], input: '${{ tasks.m.output }}' }";
    let mut p = Player::start(text, r#"{"l":[]}"#);
    p.play_all("1");
    assert_eq!((p.status(), p.done.clone()), (RunStatus::Completed, vec![("z".into(), "[]".into())]));
    for (input, said) in [
        (r#"{"l":null}"#, "tasks.m.for_each must be a list; it came to the value null"),
        (r#"{"l":"x"}"#, "tasks.m.for_each must be a list; it came to the text \"x\""),
        (r#"{"l":{}}"#, "tasks.m.for_each must be a list; it came to the object {}"),
        (r#"{"l":7}"#, "tasks.m.for_each must be a list; it came to the number 7"),
    ] {
        let p = Player::start(text, input);
        assert_eq!(
            (p.status(), p.error()),
            (RunStatus::Failed, ("for_each_not_list".into(), Some("m".into())))
        );
        assert_eq!(p.world.run().failures[0].message, said);
    }
    let p = Player::start(text, "{}");
    assert_eq!(p.error(), ("missing_value".into(), Some("m".into())));
    assert!(p.world.run().failures[0].message.contains("input.l is missing"));
}

#[test]
fn failed_items_are_tolerated_up_to_a_count_or_a_share() {
    let text = |tolerate: &str| {
        format!(
            "tasks:\n  m: {{ type: work, for_each: [0, 1, 2, 3], max_parallel: 1, tolerate: {tolerate}, retry: {{ max_attempts: 1 }} }}"
        )
    };
    let two_fail =
        |path: &str, _: &str| if matches!(path, "m[0]" | "m[2]") { bad("x") } else { ok(r#""y""#) };
    for enough in ["2", "50%", "74%", "100%"] {
        let mut p = Player::start(&text(enough), "{}");
        p.play(two_fail);
        assert_eq!((p.status(), p.output("m").as_str()), (RunStatus::Completed, r#"[null,"y",null,"y"]"#));
    }
    for little in ["1", "49%"] {
        let mut p = Player::start(&text(little), "{}");
        p.play(two_fail);
        assert_eq!((p.status(), p.error()), (RunStatus::Failed, ("x".into(), Some("m[0]".into()))));
        // Past the limit no further item starts.
        assert_eq!(p.all()[1..], ["m[0] failed", "m[1] completed", "m[2] failed", "m[3] skipped"]);
    }
    let mut p = Player::start(&text("0"), "{}");
    p.play(two_fail);
    assert_eq!(p.all(), ["m failed", "m[0] failed", "m[1] skipped", "m[2] skipped", "m[3] skipped"]);
}

#[test]
fn a_loop_goes_on_while_its_condition_holds_and_sees_what_was_before() {
    let mut p = Player::start(
        "tasks:\n  l: { type: work, repeat: { while: '${{ not loop.output.done }}', max: 5 }, input: [\"${{ loop.index }}\", \"${{ loop.previous }}\"] }\noutput: '${{ tasks.l.output }}'",
        "{}",
    );
    p.work("l#0", ok(r#"{"done":false,"n":1.0}"#));
    p.work("l#1", ok(r#"{"done":true}"#));
    assert_eq!(p.done[0].1, "[0,null]");
    assert_eq!(p.done[1].1, r#"[1,{"done":false,"n":1.0}]"#);
    assert_eq!((p.status(), p.run_output().as_str()), (RunStatus::Completed, r#"{"done":true}"#));

    let mut p = Player::start("tasks:\n  l: { type: work, repeat: { while: '${{ true }}', max: 2 } }", "{}");
    p.play_all("1");
    assert_eq!((p.done.len(), p.error()), (2, ("loop_exhausted".into(), Some("l".into()))));

    let mut p = Player::start("tasks:\n  l: { type: work, repeat: { max: 3 } }", "{}");
    p.play(|path, _| ok(&format!("{path:?}")));
    assert_eq!((p.status(), p.output("l").as_str()), (RunStatus::Completed, "\"l#2\""));
}

#[test]
fn a_loop_waits_between_iterations() {
    let mut p = Player::start(
        "tasks:\n  l: { type: work, repeat: { max: 3, delay: '${{ loop.index + 1 }}m' } }",
        "{}",
    );
    p.work("l#0", ok("1"));
    assert_eq!(p.queued(), [] as [&str; 0]);
    assert_eq!(
        p.world.wake,
        Some(p.world.now.plus(Span::secs(10))),
        "the first look is a lease after the start"
    );
    p.pass(Span::secs(59));
    assert_eq!((p.queued().len(), p.world.wake), (0, Some(p.world.now.plus(Span::secs(1)))));
    p.pass(Span::secs(1));
    p.work("l#1", ok("1"));
    p.pass(Span::secs(119));
    assert_eq!(p.queued().len(), 0);
    p.pass(Span::secs(1));
    p.work("l#2", ok("2"));
    assert_eq!(p.status(), RunStatus::Completed);
}

#[test]
fn maps_loops_and_groups_stand_in_each_other() {
    let mut p = Player::start(
        "tasks:\n  m:\n    for_each: '${{ input }}'\n    repeat: { max: 2 }\n    tasks:\n      x: { type: work, input: ['${{ item }}', '${{ index }}', '${{ loop.index }}'] }\n      n: { needs: [x], for_each: '${{ tasks.x.output }}', type: work, input: ['${{ item }}', '${{ loop.index }}'] }\n    output: '${{ tasks.n.output }}'\noutput: '${{ tasks.m.output }}'",
        r#"["a","b"]"#,
    );
    assert_eq!(p.queued(), ["m[0]#0/x", "m[1]#0/x"]);
    p.play(|path, input| if path.ends_with("/x") { ok("[7,8]") } else { ok(input) });
    assert_eq!(p.status(), RunStatus::Completed);
    assert_eq!(p.run_output(), "[[[7,1],[8,1]],[[7,1],[8,1]]]");
    let inputs: Vec<_> = p.done.iter().filter(|(path, _)| path.ends_with("/x")).cloned().collect();
    assert!(inputs.contains(&("m[1]#1/x".into(), r#"["b",1,1]"#.into())), "{inputs:?}");
    assert_eq!(p.output("m[1]#0/n[1]"), "[8,0]");
}

#[test]
fn long_lists_are_read_in_chunks_and_items_passed_on_as_they_are() {
    let items: Vec<String> =
        (0..200).map(|n| format!("{{\"sku\":\"{}\",\"n\":{n}.0}}", "s".repeat(70))).collect();
    let mut p = Player::start(
        "tasks:\n  m: { type: work, for_each: '${{ input }}', input: '${{ item }}' }\n  o: { type: work, needs: [m], input: '${{ tasks.m.output[150].n }}' }",
        &format!("[{}]", items.join(", ")),
    );
    p.play(|_, input| ok(input));
    assert_eq!(p.status(), RunStatus::Completed);
    assert_eq!(p.done[129].1, items[129]);
    assert_eq!(p.done[200].1, "150.0");
    assert_eq!(p.output("m"), format!("[{}]", items.join(",")));
    // An item is kept once, in its chunk: inputs of workers are references.
    let fields = p.world.payloads.keys().filter(|f| f.0.starts_with(b"a")).count();
    assert_eq!(fields, 0);
}

#[test]
fn a_type_is_chosen_by_an_expression_for_each_item() {
    let mut p = Player::start(
        "tasks:\n  m: { for_each: '${{ input }}', type: 'do-${{ item.type }}', input: '${{ item.with }}', retry: { max_attempts: 1 }, tolerate: 1 }",
        r#"[{"type":"a","with":1},{"type":"b","with":2},{"type":"not valid","with":3}]"#,
    );
    let state = p.world.run();
    let types: Vec<_> = (1..3).map(|i| state.type_of(&p.world.plan, i).unwrap().to_string()).collect();
    assert_eq!(types, ["do-a", "do-b"]);
    assert_eq!(p.at("m[2]"), "failed");
    assert_eq!(state.failures[0].code, "invalid_task_type");
    p.play(|_, input| ok(input));
    assert_eq!(p.output("m"), "[1,2,null]");
}

#[test]
fn waits_end_at_their_time_and_not_before() {
    let mut p = Player::start(
        "tasks:\n  a: { wait: { for: 10s } }\n  b: { wait: { until: '${{ input.at }}' } }\n  c: { wait: { for: 0s } }\n  d: { wait: { until: 2020-01-01T00:00:00Z } }\n  e: { wait: { for: '${{ input.ms }}' } }",
        r#"{"at":"2027-01-15T08:00:20Z","ms":2147483648}"#,
    );
    assert_eq!(p.all(), ["a waiting", "b waiting", "c completed", "d completed", "e waiting"]);
    assert_eq!(p.world.wake, Some(p.world.now.plus(Span::secs(10))));
    p.pass(Span::millis(9_999));
    assert_eq!(p.at("a"), "waiting");
    p.pass(Span::millis(1));
    assert_eq!((p.at("a"), p.output("a").as_str()), ("completed", "null"));
    p.pass(Span::secs(10));
    assert_eq!(p.at("b"), "completed");
    p.pass(Span::millis(2_147_483_648 - 20_001));
    assert_eq!((p.at("e"), p.status()), ("waiting", RunStatus::Running));
    p.pass(Span::millis(1));
    assert_eq!((p.at("e"), p.status()), ("completed", RunStatus::Completed));
}

#[test]
fn what_is_no_time_fails_the_wait_with_a_word() {
    for (wait, input, code) in [
        ("{ for: '${{ input }}' }", "-1", "invalid_duration"),
        ("{ for: '${{ input }}' }", "1.5", "invalid_duration"),
        ("{ for: '${{ input }}' }", "\"5\"", "invalid_duration"),
        ("{ for: '${{ input }}' }", "-9000000000000000", "invalid_duration"),
        ("{ for: '${{ input }}' }", "1000000000000000000", "invalid_duration"),
        ("{ for: '${{ input }}' }", "\"P9999Y\"", "invalid_duration"),
        ("{ until: '${{ input }}' }", "\"tomorrow\"", "invalid_time"),
        ("{ until: '${{ input }}' }", "5", "wrong_type"),
        ("{ signal: '${{ input }}' }", "[]", "wrong_type"),
        ("{ signal: '${{ input }}' }", "\"a/b\"", "invalid_signal_name"),
        ("{ signal: '${{ input }}' }", "\"\"", "invalid_signal_name"),
    ] {
        let p = Player::start(&format!("tasks: {{ w: {{ wait: {wait} }} }}"), input);
        assert_eq!(
            (p.status(), p.error()),
            (RunStatus::Failed, (code.into(), Some("w".into()))),
            "{wait} {input}"
        );
    }
}

#[test]
fn a_wait_gives_up_after_its_timeout() {
    let mut p = Player::start("tasks: { w: { wait: { signal: go }, timeout: 5s } }", "{}");
    p.pass(Span::millis(4_999));
    assert_eq!(p.at("w"), "waiting");
    p.pass(Span::millis(1));
    assert_eq!(
        (p.at("w"), p.status(), p.error().0),
        ("timed_out", RunStatus::Failed, "timeout_total".into())
    );
    assert_eq!(p.signal("go", None, "1"), refused(Refusal::Ended(RunStatus::Failed)));
}

#[test]
fn signals_are_consumed_in_order_one_per_wait_early_or_late() {
    let mut p = Player::start(
        "tasks:\n  a: { type: work }\n  w1: { needs: [a], wait: { signal: go } }\n  w2: { needs: [w1], wait: { signal: go } }\n  w3: { needs: [w2], wait: { signal: 'go' } }\n  o: { wait: { signal: other } }",
        "{}",
    );
    assert_eq!(p.signal("go", Some("1"), "{\"n\":1.0}"), Ok(Outcome::Accepted));
    assert_eq!(p.signal("go", Some("2"), "2"), Ok(Outcome::Accepted));
    assert_eq!(p.signal("go", Some("1"), "9"), Ok(Outcome::Repeated));
    p.work("a", ok("1"));
    assert_eq!((p.output("w1").as_str(), p.output("w2").as_str()), ("{\"n\":1.0}", "2"));
    assert_eq!((p.at("w3"), p.at("o")), ("waiting", "waiting"));
    assert_eq!(p.signal("go", None, "3"), Ok(Outcome::Accepted));
    assert_eq!(p.output("w3"), "3");
    assert_eq!(p.signal("go", None, "4"), Ok(Outcome::Accepted), "kept, though nobody waits for it");
    assert_eq!(p.signal("other", None, "5"), Ok(Outcome::Accepted));
    assert_eq!(p.status(), RunStatus::Completed);
    assert_eq!(p.signal("go", Some("2"), "2"), Ok(Outcome::Repeated), "a repeat is one, whatever came after");
    assert_eq!(p.count(EventKind::SignalReceived), 5);
}

#[test]
fn set_fail_and_finish_end_at_once() {
    let mut p = Player::start(
        "tasks:\n  s: { set: { a: '${{ input.x }}', b: 'v-${{ input.x }}' } }\n  f: { needs: [s], if: '${{ input.x == 1 }}', fail: { code: 'no_${{ input.x }}', message: 'for ${{ tasks.s.output.b }}' } }\n  z: { type: work, needs: [s] }",
        r#"{"x":1}"#,
    );
    assert_eq!(p.output("s"), r#"{"a":1,"b":"v-1"}"#);
    assert_eq!(p.at("f"), "failed");
    p.play_all("1");
    assert_eq!((p.status(), p.error()), (RunStatus::Failed, ("no_1".into(), Some("f".into()))));
    assert_eq!(p.world.run().failures[0].message, "for v-1");

    let mut p = Player::start(
        "tasks:\n  a: { type: work }\n  long: { type: work, compensate: { type: undo } }\n  done: { needs: [a], finish: { output: { got: '${{ tasks.a.output }}' } } }\n  never: { needs: [done], type: work }\noutput: other",
        "{}",
    );
    let (held, _) = p.lease("long");
    p.work("a", ok("7"));
    assert_eq!((p.status(), p.run_output().as_str()), (RunStatus::Completed, r#"{"got":7}"#));
    assert_eq!(p.all(), ["a completed", "long cancelled", "done completed", "never cancelled"]);
    assert_eq!(p.world.revoked.len(), 1, "its worker is told");
    let late = Command::Complete { attempt: held, output: Ok(Bytes::from_static(b"1")) };
    assert_eq!(p.world.apply(&late), refused(Refusal::Stale));
}

#[test]
fn a_group_that_takes_too_long_is_timed_out_with_all_inside_it() {
    let mut p = Player::start(
        "tasks:\n  g:\n    timeout: 1m\n    tasks:\n      a: { type: work, compensate: { type: undo, input: '${{ tasks.a.output }}' } }\n      b: { type: work, needs: [a] }\n  z: { type: work, needs: [g], when: failure, input: '${{ tasks.g.status }}' }",
        "{}",
    );
    p.work("g/a", ok("\"hold\""));
    let (held, _) = p.lease("g/b");
    p.pass(Span::secs(60));
    assert_eq!((p.at("g"), p.at("g/b")), ("waiting", "cancelled"));
    assert_eq!(p.world.apply(&Command::Release { attempt: held }), refused(Refusal::Stale));
    // What completed in it is undone before it ends.
    p.work("g/a/compensate", ok("1"));
    assert_eq!(p.at("g"), "timed_out");
    p.play_all("1");
    assert_eq!(p.done.last().unwrap(), &("z".into(), "\"timed_out\"".into()));
    assert_eq!((p.status(), p.error()), (RunStatus::Failed, ("timeout_total".into(), Some("g".into()))));
}

#[test]
fn fail_fast_in_a_group_stops_that_group_only() {
    let mut p = Player::start(
        "tasks:\n  g:\n    fail_fast: true\n    on_error: continue\n    tasks:\n      a: { type: work, retry: { max_attempts: 1 } }\n      b: { type: work }\n      c: { type: work, needs: [b] }\n      h: { type: work, needs: [a], when: failure }\n  o: { type: work }",
        "{}",
    );
    p.lease("g/b");
    p.work("g/a", bad("x"));
    assert_eq!(
        p.all(),
        ["g waiting", "o queued", "g/a failed", "g/b cancelled", "g/c skipped", "g/h queued"]
    );
    p.play_all("1");
    assert_eq!((p.status(), p.at("g")), (RunStatus::Completed, "failed"));
}

#[test]
fn limits_of_items_are_told() {
    let list: Vec<u32> = (0..10_001).collect();
    let list = serde_json::to_string(&list).unwrap();
    let p = Player::start("tasks: { m: { type: work, for_each: '${{ input }}' } }", &list);
    assert_eq!(p.error(), ("too_many_items".into(), Some("m".into())));
    assert_eq!(p.world.run().failures[0].message, "tasks.m.for_each has 10001 items; the limit is 10000");
    assert_eq!(p.world.run().tasks.len(), 1, "no item was begun");
}

#[test]
fn a_code_that_is_none_fails_the_task_with_a_word() {
    let text = "tasks: { f: { fail: { code: 'c${{ input.x }}', message: m } } }";
    let long = "x".repeat(127);
    for (input, code, message) in [
        (long.as_str(), format!("c{long}"), "m"),
        (
            &"x".repeat(128),
            "invalid_code".to_owned(),
            "tasks.f.fail.code has 129 bytes; an error code has 1 to 128",
        ),
    ] {
        let p = Player::start(text, &format!("{{\"x\":\"{input}\"}}"));
        let failure = &p.world.run().failures[0];
        assert_eq!((failure.code.as_str(), failure.message.as_str()), (code.as_str(), message));
    }
    let p = Player::start("tasks: { f: { fail: { code: '${{ input.x }}' } } }", "{\"x\":\"\"}");
    assert_eq!(p.world.run().failures[0].code, "invalid_code");
}
