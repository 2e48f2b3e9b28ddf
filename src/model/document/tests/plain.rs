//! Documents of plain tasks: what they come to, their canonical text, their faults.

use super::*;

#[test]
fn a_whole_document_becomes_a_plan() {
    let document = yaml(ORDER);
    let plan = &document.plan;
    assert_eq!(document.name.as_str(), "order");
    assert_eq!(plan.tasks.iter().map(|t| t.id.as_str()).collect::<Vec<_>>(), ["reserve", "charge", "ship"]);
    assert_eq!(plan.tasks[2].needs, [0, 1]);
    assert_eq!(plan.tasks[0].dependents, [1, 2]);
    assert!(matches!(&plan.tasks[1].kind, TaskKind::Worker(t) if t.as_str() == "charge-card"));
    assert_eq!(
        plan.tasks[1].retry,
        RetryPolicy {
            max_attempts: 5,
            max: Span::secs(30),
            non_retryable: vec!["card_declined".to_owned()],
            ..RetryPolicy::default()
        }
    );
    assert_eq!(
        plan.tasks[1].timeout,
        Timeouts { run: Some(Span::secs(20)), queue: Some(Span::secs(300)), ..Timeouts::default() }
    );
    assert_eq!(plan.tasks[2].timeout.run, Some(Span::secs(5400)));
    assert_eq!(
        (plan.tasks[2].when, plan.tasks[2].continue_on_error, plan.tasks[2].priority),
        (When::Always, true, 3)
    );
    assert_eq!(plan.tasks[2].condition.as_ref().unwrap().roots(), [Root::Output(0)]);
    assert_eq!(plan.output.as_ref().unwrap().roots(), [Root::Output(2)]);
    assert_eq!((plan.timeout, plan.fail_fast, plan.priority), (Some(Span::secs(259_200)), true, -5));
    assert_eq!(plan.tags["team"], "shop");
    assert_eq!(plan.retention, Span::secs(30 * 86_400));
    assert_eq!(plan.input_schema.as_ref().unwrap().check(b"{\"order_id\":1}").len(), 1);
    assert_eq!(plan.description.as_deref(), Some("Reserve, charge and ship one order."));
}

#[test]
fn the_defaults_are_those_of_the_contract() {
    let plan = yaml("name: w\ntasks: { t: { type: a } }").plan;
    let task = &plan.tasks[0];
    assert_eq!(task.retry, RetryPolicy::default());
    assert_eq!(task.timeout, Timeouts::default());
    assert_eq!((task.when, task.continue_on_error, task.priority), (When::Success, false, 0));
    assert!(task.condition.is_none() && task.input.is_none() && plan.output.is_none());
    assert_eq!((plan.retention, plan.timeout, plan.fail_fast), (Span::secs(604_800), None, false));
}

#[test]
fn the_canonical_text_is_a_document_with_the_same_canonical_text() {
    let document = yaml(ORDER);
    let again = json(canonical(&document));
    assert_eq!(again.canonical, document.canonical);
    let plan = again.plan;
    assert_eq!(format!("{:?}", plan.tasks[1].retry), format!("{:?}", document.plan.tasks[1].retry));
    assert_eq!(plan.tasks[2].needs, document.plan.tasks[2].needs);
    assert!(canonical(&document).starts_with(r#"{"name":"order","description":"Reserve"#));
}

#[test]
fn equal_documents_have_equal_canonical_texts() {
    let base = yaml(
        "name: w\ntasks:\n  a: { type: x }\n  b: { type: y, needs: [a], timeout: { run: 90s }, input: { p: 1, q: 2 } }\n",
    );
    let same = [
        "tasks:\n  a: { type: x }\n  b: { timeout: 1m30s, input: { q: 2, p: 1 }, needs: [a], type: y }\nname: w\n",
        "name: w\nretention: 168h\npriority: 0\nfail_fast: false\ntags: {}\noutput: null\ntasks:\n  a: { type: x, when: success, on_error: fail, if: true, retry: { max_attempts: 3, factor: 2.0, jitter: 2e-1 } }\n  b: { type: y, needs: [a], timeout: { run: 90000ms }, input: { p: 1, q: 2 } } # same\n",
    ];
    for text in same {
        assert_eq!(yaml(text).canonical, base.canonical, "{text}");
    }
    let as_json = r#"{"name":"w","tasks":{"a":{"type":"x"},"b":{"type":"y","needs":["a"],"timeout":"90s","input":{"q":2,"p":1}}}}"#;
    assert_eq!(json(as_json).canonical, base.canonical);
    // The order of tasks and the digits of data count.
    let other = [
        "name: w\ntasks:\n  b: { type: y, needs: [a], timeout: 90s, input: { p: 1, q: 2 } }\n  a: { type: x }\n",
        "name: w\ntasks:\n  a: { type: x }\n  b: { type: y, needs: [a], timeout: 90s, input: { p: 1.0, q: 2 } }\n",
        "name: w\ntasks:\n  a: { type: x }\n  b: { type: y, needs: [a], timeout: 91s, input: { p: 1, q: 2 } }\n",
    ];
    for text in other {
        assert_ne!(yaml(text).canonical, base.canonical, "{text}");
    }
    let two = yaml("name: w\ntasks:\n  a: { type: x }\n  b: { type: x }\n  c: { type: x, needs: [b, a] }\n");
    let one = yaml("name: w\ntasks:\n  a: { type: x }\n  b: { type: x }\n  c: { type: x, needs: [a, b] }\n");
    assert_eq!(one.canonical, two.canonical, "needs are a set");
}

#[test]
fn circles_self_needs_and_unknown_needs_are_told_by_name() {
    let three = faults(
        "name: w\ntasks:\n  a: { type: x, needs: [c] }\n  b: { type: x, needs: [a] }\n  c: { type: x, needs: [b] }\n",
    );
    assert_eq!(three, ["tasks.a.needs:3: the needs go in a circle: a → c → b → a"]);
    assert_eq!(task_faults("type: x\nneeds: [t]"), ["tasks.t.needs[0]:5: the task needs itself: t → t"]);
    let unknown = faults("name: w\ntasks:\n  fetch: { type: x }\n  b: { type: x, needs: [fetchh] }\n");
    assert_eq!(unknown, ["tasks.b.needs[0]:4: there is no task \"fetchh\" (did you mean 'fetch'?)"]);
    // Two circles and a task behind one: each circle once.
    let two = faults(
        "name: w\ntasks:\n  a: { type: x, needs: [b] }\n  b: { type: x, needs: [a] }\n  c: { type: x, needs: [d, a] }\n  d: { type: x, needs: [c] }\n  e: { type: x, needs: [d], input: '${{ tasks.c.output }}' }\n",
    );
    assert_eq!(
        two,
        [
            "tasks.a.needs:3: the needs go in a circle: a → b → a",
            "tasks.c.needs:5: the needs go in a circle: c → d → c",
        ]
    );
    has(&task_faults("type: x\nneeds: [u, u]"), "tasks.t.needs[0]:5: there is no task");
}

#[test]
fn expressions_see_only_what_is_upstream() {
    let text = "name: w\ntasks:\n  a: { type: x }\n  b: { type: x, needs: [a] }\n  c:\n    type: x\n    needs: [b]\n    input:\n      far: ${{ tasks.a.output }}\n      near: ${{ tasks.b.output }}\n      side: ${{ tasks.d.output }}\n      own: ${{ tasks.c.output }}\n      none: ${{ tasks.bb.output }}\n  d: { type: x, if: \"${{ tasks.c.status == 'failed' }}\" }\noutput: ${{ tasks.d.output }}\n";
    assert_eq!(
        faults(text),
        [
            "tasks.c.input.side:11: task 'd' is not upstream of 'c'; add it to the needs of 'c' (in ${{ tasks.d.output }})",
            "tasks.c.input.own:12: 'c' cannot read what it has not done yet (in ${{ tasks.c.output }})",
            "tasks.c.input.none:13: there is no task \"bb\" (did you mean 'b'?) (in ${{ tasks.bb.output }})",
            "tasks.d.if:14: task 'c' is not upstream of 'd'; add it to the needs of 'd' (in ${{ tasks.c.status == 'failed' }})",
        ]
    );
}

#[test]
fn a_document_without_tasks_is_refused_by_one_rule() {
    for tasks in ["tasks: []", "", "tasks: null", "tasks: {}", "tasks:"] {
        let faults = faults(&format!("name: w\n{tasks}\n"));
        assert_eq!(faults.len(), 1);
        assert!(
            faults[0].starts_with("tasks:") && faults[0].ends_with("a workflow has at least one task"),
            "{faults:?}"
        );
    }
    has(&faults("name: w\ntasks: [a]\n"), "tasks:2: must be a map from task id to task, but is a list");
    has(&faults("name: w\ntasks: x\n"), "tasks:2: must be a map from task id to task, but is text");
    has(&faults(""), ":0: the document is empty");
    has(&faults("# nothing\n"), ":0: the document is empty");
}

#[test]
fn all_faults_come_in_one_answer_sorted_by_line() {
    let text = "\
name: a b
taskz: {}
timeout: 30
fail_fast: \"yes\"
tags: { a: 1, b: '${{ input.x }}' }
priority: 101
retention: -1d
output: ${{ nope }}
tasks:
  bad-id: { type: a }
  t:
    type: 5
    needs: u
    when: never
    if: yes
    input: { a: '${{ input. }}' }
    retry: { max_attempts: 0, initial: 1, factor: 0.5, max: 1.5s, jitter: 2, tries: 1, non_retryable: [5] }
    timeout: { run: 0s, total: x, sum: 1s }
    on_error: ignore
    priority: 1.5
    description: [x]
    rate: 5
    retries: 3
";
    let found = faults(text);
    for wanted in [
        "name:1: the workflow name \"a b\" is not valid",
        "taskz:2: unknown key \"taskz\" (did you mean 'tasks'?)",
        "timeout:3: must be a duration, but is the number 30; say the unit",
        "fail_fast:4: must be true or false, but is text",
        "tags.a:5: must be text, but is a number; put it in quotes",
        "tags.b:5: an expression may not stand here",
        "priority:6: must be a whole number from -100 to 100, but is 101",
        "retention:7: the duration \"-1d\" has a sign",
        "output:8: there is no 'nope'",
        "tasks.bad-id:10: the task id \"bad-id\" is not valid",
        "tasks.t.type:12: must be text, but is a number; put it in quotes",
        "tasks.t.needs:13: must be a list, but is text; write [u]",
        "tasks.t.when:14: \"never\" is not one of success, failure, always",
        "tasks.t.if:15: must be true, false or an expression ${{ … }}, but is the text \"yes\"",
        "tasks.t.input.a:16: not a valid expression",
        "tasks.t.retry.max_attempts:17: must be a whole number from 1 to 1000000, but is 0",
        "tasks.t.retry.initial:17: must be a duration, but is the number 1",
        "tasks.t.retry.factor:17: must be a number of at least 1, but is 0.5",
        "tasks.t.retry.max:17: the duration \"1.5s\" is not valid",
        "tasks.t.retry.jitter:17: must be a number from 0 to 1, but is 2",
        "tasks.t.retry.tries:17: unknown key \"tries\"",
        "tasks.t.retry.non_retryable[0]:17: must be text, but is a number",
        "tasks.t.timeout.run:18: must be longer than 0",
        "tasks.t.timeout.total:18: the duration \"x\" is not valid",
        "tasks.t.timeout.sum:18: unknown key \"sum\"",
        "tasks.t.on_error:19: \"ignore\" is not one of fail, continue",
        "tasks.t.priority:20: must be a whole number from -100 to 100, but is 1.5",
        "tasks.t.description:21: must be text, but is a list",
        "tasks.t.rate:22: must be a map with key, limit, per, but is a number",
        "tasks.t.retries:23: unknown key \"retries\"",
    ] {
        has(&found, wanted);
    }
    assert_eq!(found.len(), 30, "{found:#?}");
    let lines: Vec<u32> =
        parse(text.as_bytes(), Format::Yaml).unwrap_err().iter().filter_map(|f| f.line).collect();
    assert!(lines.is_sorted());
}

#[test]
fn text_where_a_number_is_meant_and_the_reverse_are_refused() {
    has(
        &task_faults("type: a\nretry: { max_attempts: \"5\" }"),
        "tasks.t.retry.max_attempts:5: must be a whole number from 1 to 1000000, but is text; write it without quotes",
    );
    has(
        &task_faults("type: a\nretry: { factor: two }"),
        "tasks.t.retry.factor:5: must be a number of at least 1, but is text",
    );
    has(
        &task_faults("type: a\npriority: ~"),
        "tasks.t.priority:5: must be a whole number from -100 to 100, but is null; give a value or leave the key out",
    );
    has(&task_faults("type: true"), "tasks.t.type:4: must be text, but is a boolean; put it in quotes");
    has(&task_faults("type: a\nretry: 3"), "tasks.t.retry:5: must be a map with max_attempts");
    has(
        &task_faults("type: a\nretry: { max_attempts: 1e1 }"),
        "tasks.t.retry.max_attempts:5: must be a whole number",
    );
    has(
        &task_faults("type: a\nretry: { max_attempts: 99999999999999999999 }"),
        "tasks.t.retry.max_attempts:5: must be a whole",
    );
    has(&task_faults("type: a\nretry: { factor: 1e999 }"), "tasks.t.retry.factor:5: must be a number");
}

#[test]
fn a_condition_is_a_boolean_or_one_expression() {
    let plan = yaml("name: w\ntasks:\n  a: { type: x, if: false }\n  b: { type: x, if: true }\n  c: { type: x, if: '${{ input.go }}' }\n").plan;
    assert!(plan.tasks.iter().all(|t| t.condition.is_some()));
    for bad in [
        "'true'",
        "yes",
        "1",
        "~",
        "[]",
        "'x${{ input.a }}'",
        "'${{ input.a }} '",
        "'${{ 1 }}${{ 2 }}'",
        "'$${{ 1 }}'",
    ] {
        has(&task_faults(&format!("type: a\nif: {bad}")), "tasks.t.if:5: must be");
    }
}

#[test]
fn expressions_stand_only_where_they_may() {
    has(
        &faults("name: '${{ input.x }}'\ntasks: { t: { type: a } }"),
        "name:1: an expression may not stand here",
    );
    has(&task_faults("type: a\ndescription: ${{ input.x }}"), "tasks.t.description:5: an expression may not");
    has(&task_faults("type: a\ntimeout: ${{ input.x }}"), "tasks.t.timeout:5: an expression may not");
    has(&task_faults("type: a\nneeds: ['${{ input.x }}']"), "tasks.t.needs[0]:5: an expression may not");
    has(&task_faults("type: a\ninput: { '${{ input.x }}': 1 }"), "tasks.t.input[");
    has(
        &task_faults("type: a\nretry: { non_retryable: ['${{ input.x }}'] }"),
        "tasks.t.retry.non_retryable[0]:5: an expression",
    );
}

/// Versions in stores were written so: a change of one byte here makes a new version of every workflow.
#[test]
fn the_canonical_text_of_plain_documents_never_changes() {
    let golden = include_str!("golden/plain.txt");
    let order = include_str!("../../../../examples/order.yaml");
    let greet = include_str!("../../../../examples/greet.yaml");
    for (text, expected) in [ORDER, order, greet].into_iter().zip(golden.lines()) {
        assert_eq!(canonical(&yaml(text)), expected);
    }
    assert_eq!(golden.lines().count(), 3);
}
