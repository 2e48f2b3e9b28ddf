#![allow(clippy::format_collect, reason = "documents of many lines read best like this")]

use super::*;
use crate::model::expr::Root;
use crate::model::plan::{RetryPolicy, TaskKind, Timeouts, When};
use crate::model::time::Span;
use proptest::prelude::*;

const ORDER: &str = r#"
name: order
description: Reserve, charge and ship one order.
input:                        # JSON Schema
  type: object
  required: [order_id, items]
tasks:
  reserve:
    type: reserve-stock
    input: { order: "${{ input.order_id }}", items: "${{ input.items }}" }
  charge:
    needs: [reserve]
    type: charge-card
    input: { amount: "${{ tasks.reserve.output.total }}" }
    retry: { max_attempts: 5, initial: 1s, factor: 2, max: 30s, non_retryable: [card_declined] }
    timeout: { run: 20s, queue: 5m }
  ship:
    needs: [charge, reserve]
    if: ${{ tasks.reserve.output.total > 1000 }}
    type: ship
    when: always
    on_error: continue
    priority: 3
    timeout: 1h30m
output: { parcels: "${{ tasks.ship.output }}" }
timeout: 72h
fail_fast: true
tags: { team: shop }
priority: -5
retention: 30d
"#;

fn yaml(text: &str) -> Document {
    parse(text.as_bytes(), Format::Yaml).unwrap_or_else(|f| panic!("{text}\n{f:#?}"))
}

fn json(text: &str) -> Document {
    parse(text.as_bytes(), Format::Json).unwrap_or_else(|f| panic!("{text}\n{f:#?}"))
}

/// The faults as `path:line: message`.
fn faults(text: &str) -> Vec<String> {
    let faults = parse(text.as_bytes(), Format::Yaml).map(|d| d.plan).expect_err(text);
    faults.into_iter().map(|f| format!("{}:{}: {}", f.path, f.line.unwrap_or(0), f.message)).collect()
}

/// The faults of a task with these lines, which begin on line 4.
fn task_faults(lines: &str) -> Vec<String> {
    faults(&format!("name: w\ntasks:\n  t:\n{}\n", indented(lines)))
}

fn indented(lines: &str) -> String {
    lines.lines().map(|l| format!("    {l}")).collect::<Vec<_>>().join("\n")
}

fn canonical(document: &Document) -> &str {
    std::str::from_utf8(&document.canonical).unwrap()
}

/// The canonical input of the one task, given as YAML.
fn data(value: &str) -> String {
    let document = yaml(&format!("name: w\ntasks: {{ t: {{ type: a, input: {value} }} }}"));
    let text = canonical(&document).to_owned();
    let at = text.find("\"input\":").unwrap() + 8;
    text[at..text.len() - 3].to_owned()
}

#[track_caller]
fn has(faults: &[String], wanted: &str) {
    assert!(faults.iter().any(|f| f.starts_with(wanted)), "{wanted} is not in {faults:#?}");
}

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
    let plan = compile(&document.canonical).unwrap();
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
fn words_that_only_look_like_booleans_are_text() {
    assert_eq!(
        data(
            "{ country: no, mode: on, ans: yes, on: y, flag: true, n: N, off: Off, t: True, nil: Null, tilde: ~ }"
        ),
        r#"{"ans":"yes","country":"no","flag":true,"mode":"on","n":"N","nil":null,"off":"Off","on":"y","t":true,"tilde":null}"#
    );
    let document = yaml("name: w\ntags: { on: \"no\" }\ntasks: { t: { type: a } }");
    assert_eq!(document.plan.tags["on"], "no");
}

#[test]
fn numbers_keep_their_digits() {
    for (yaml, json) in [
        ("9007199254740993", "9007199254740993"),
        ("18446744073709551615", "18446744073709551615"),
        ("-9223372036854775808", "-9223372036854775808"),
        ("123456789012345678901234567890", "123456789012345678901234567890"),
        ("1.0", "1.0"),
        ("0.10", "0.10"),
        ("1e400", "1e400"),
        ("1.5E-3", "1.5e-3"),
        ("+5", "5"),
        ("012", "12"),
        ("-00", "-0"),
        (".5", "0.5"),
        ("5.", "5.0"),
        ("0x1F", "31"),
        ("0xFFFFFFFFFFFFFFFF", "18446744073709551615"),
        ("0o17", "15"),
        ("1_000", "\"1_000\""),
        ("1:30", "\"1:30\""),
        ("2024-01-01", "\"2024-01-01\""),
        ("0b11", "\"0b11\""),
        ("-0x1", "\"-0x1\""),
        ("1e", "\"1e\""),
        ("'1.0'", "\"1.0\""),
        ("!!str 5", "\"5\""),
        ("! 5", "\"5\""),
        ("!!int '5'", "5"),
        ("''", "\"\""),
    ] {
        assert_eq!(data(&format!("[{yaml}]")), format!("[{json}]"), "{yaml}");
    }
    has(&faults("name: w\ntasks: { t: { type: a, input: [.inf] } }"), ":2: .inf is no JSON number");
    has(&faults("name: w\ntasks: { t: { type: a, input: [.nan] } }"), ":2: .nan is no JSON number");
    has(&faults("name: w\ntasks: { t: { type: a, input: !x 1 } }"), ":2: the tag \"!x\"");
    let exact = json(r#"{"name":"w","tasks":{"t":{"type":"a","input":[1.0,9007199254740993,1E5]}}}"#);
    assert!(canonical(&exact).contains("[1.0,9007199254740993,1E5]"));
}

#[test]
fn a_key_that_stands_twice_is_refused_in_both_formats() {
    let text = "name: w\ntasks:\n  t:\n    type: a\n    timeout: 5s\n    timeout: 500s\n";
    assert_eq!(faults(text), ["tasks.t.timeout:6: the key \"timeout\" stands here twice; keep one"]);
    let text = r#"{"name":"w","tasks":{"t":{"type":"a","timeout":"5s","timeout":"500s"}}}"#;
    let found = parse(text.as_bytes(), Format::Json).unwrap_err();
    assert_eq!((found.len(), found[0].path.as_str(), found[0].line), (1, "tasks.t.timeout", None));
    assert!(found[0].message.contains("stands here twice"));
    has(
        &task_faults("type: a\ninput:\n  1: x\n  '1': y"),
        "tasks.t.input.1:7: the key \"1\" stands here twice",
    );
    has(
        &task_faults("type: a\ninput: [ { a: 1, \"a\": 2 } ]"),
        "tasks.t.input[0].a:5: the key \"a\" stands here twice",
    );
    let twice = faults("name: w\ntasks:\n  notify: { type: a }\n  b: { type: b }\n  notify: { type: c }\n");
    assert_eq!(twice, ["tasks.notify:5: the key \"notify\" stands here twice; keep one"]);
}

#[test]
fn byte_order_marks_and_line_ends_do_not_change_a_document() {
    let lines = ORDER.replace('\n', "\r\n");
    let plain = yaml(ORDER).canonical;
    assert_eq!(yaml(&lines).canonical, plain);
    assert_eq!(yaml(&format!("\u{feff}{ORDER}")).canonical, plain);
    assert_eq!(yaml(&format!("\u{feff}{lines}")).canonical, plain);
    has(
        &faults(&format!("\u{feff}\u{feff}{ORDER}")),
        ":1: the document begins with more than one byte order mark",
    );
    let text = "{\r\n\"name\":\"w\",\r\n\"tasks\":{\"t\":{\"type\":\"a\"}}}";
    assert_eq!(json(&format!("\u{feff}{text}")).canonical, json(&text.replace('\r', "")).canonical);
    let two = parse(format!("\u{feff}\u{feff}{text}").as_bytes(), Format::Json).unwrap_err();
    assert!(two[0].message.contains("more than one byte order mark"));
    // A mark inside a key is spelled out, so that it does not read like the right key.
    let inner = parse("{\"\u{feff}name\":\"w\"}".as_bytes(), Format::Json).unwrap_err();
    assert!(inner.iter().any(|f| f.message.contains(r#"unknown key "\u{feff}name""#)), "{inner:?}");
    let utf16: Vec<u8> =
        [0xff, 0xfe].into_iter().chain("name: w".encode_utf16().flat_map(u16::to_le_bytes)).collect();
    assert!(parse(&utf16, Format::Yaml).unwrap_err()[0].message.contains("UTF-16"));
    assert_eq!(parse(b"name: w\nx: \xff", Format::Yaml).unwrap_err()[0].line, Some(2));
}

#[test]
fn block_text_has_one_line_end_whatever_the_file_has() {
    let text = "name: w\ntasks:\n  t:\n    type: a\n    input: |\n      one\n      two\n";
    assert_eq!(yaml(text).canonical, yaml(&text.replace('\n', "\r\n")).canonical);
    assert!(canonical(&yaml(text)).contains(r#""one\ntwo\n""#));
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
    for_each: ${{ input.items }}
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
        "tasks.t.for_each:22: 'for_each' is not supported yet",
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
fn what_is_not_built_yet_is_refused_with_a_word() {
    for key in [
        "tasks",
        "workflow",
        "wait",
        "set",
        "fail",
        "finish",
        "for_each",
        "max_parallel",
        "tolerate",
        "repeat",
        "compensate",
        "labels",
        "concurrency",
        "rate",
    ] {
        let found = task_faults(&format!("type: a\n{key}: {{}}"));
        assert_eq!(found, [format!("tasks.t.{key}:5: '{key}' is not supported yet")]);
    }
    assert_eq!(task_faults("wait: { signal: x }"), ["tasks.t.wait:4: 'wait' is not supported yet"]);
    has(
        &faults("name: w\ntasks: { t: { type: a } }\nfinally: {}"),
        "finally:3: 'finally' is not supported yet",
    );
    has(&task_faults("type: ${{ input.t }}"), "tasks.t.type:4: an expression as 'type' is not supported yet");
    has(&task_faults("needs: []"), "tasks.t:4: the task has no kind");
    has(
        &task_faults("type: a\ninput: ${{ item }}"),
        "tasks.t.input:5: 'item' belongs to for_each, which is not supported yet",
    );
    has(
        &task_faults("type: a\n<<: {}"),
        "tasks.t[\"<<\"]:5: unknown key \"<<\"; merge keys are not part of YAML 1.2",
    );
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
fn the_limits_of_a_document_hold() {
    let many = |n: usize| {
        let tasks: String = (0..n).map(|i| format!("  t{i}: {{ type: a }}\n")).collect();
        format!("name: w\ntasks:\n{tasks}")
    };
    assert_eq!(yaml(&many(1_000)).plan.tasks.len(), 1_000);
    has(&faults(&many(1_001)), "tasks:3: there are 1001 tasks; the limit is 1000");
    has(&faults(&many(10_000)), "tasks:3: there are 10000 tasks; the limit is 1000");
    let long = format!("name: w\n# {}", "x".repeat(1 << 20));
    has(&faults(&long), ":0: the document has 1048586 bytes; the limit is 1048576");
    let deep = |n: usize| {
        format!("name: w\ntasks: {{ t: {{ type: a, input: {}{} }} }}", "[".repeat(n), "]".repeat(n))
    };
    assert_eq!(yaml(&deep(128)).plan.tasks.len(), 1);
    has(&faults(&deep(129)), "tasks.t.input");
    assert!(faults(&deep(200))[0].contains("nest"), "{:?}", faults(&deep(200)));
    assert_eq!(faults(&format!("{}\n", "- ".repeat(300_000))).len(), 1);
    let json = format!("{}1{}", "[".repeat(500_000), "]".repeat(500_000));
    assert!(parse(json.as_bytes(), Format::Json).unwrap_err()[0].message.contains("nested deeper"));
    let unknown: String = (0..5_000).map(|n| format!("k{n}: 1\n")).collect();
    let found = faults(&unknown);
    assert_eq!(found.len(), 1_001);
    has(&found, ":0: there are 4002 more faults");
}

#[test]
fn what_would_not_fit_once_stored_is_refused_at_once() {
    let text = format!("name: w\ntasks: {{ t: {{ type: a, input: '{}' }} }}", "\"".repeat(600_000));
    has(&faults(&text), ":0: as JSON, the document comes to 12000");
}

#[test]
fn faults_without_end_are_told_in_time() {
    let needs = (0..60_000).map(|n| format!("u{n}")).collect::<Vec<_>>().join(",");
    let tasks: String = (0..999).map(|i| format!("  t{i}: {{ type: a }}\n")).collect();
    let found = faults(&format!("name: w\ntasks:\n{tasks}  x: {{ type: a, needs: [{needs}] }}\n"));
    assert_eq!(found.len(), 1_001);
    // Every task needs all others: one circle after the other.
    let all = (0..300).map(|n| format!("t{n}")).collect::<Vec<_>>();
    let tasks: String = all
        .iter()
        .map(|t| {
            let others: Vec<&str> = all.iter().filter(|o| *o != t).map(String::as_str).collect();
            format!("  {t}: {{ type: a, needs: [{}] }}\n", others.join(","))
        })
        .collect();
    let found = faults(&format!("name: w\ntasks:\n{tasks}"));
    assert_eq!(found.len(), 150);
    has(&found, "tasks.t0.needs:3: the needs go in a circle: t0 → t1 → t0");
}

#[test]
fn a_chain_of_a_thousand_tasks_is_read() {
    let tasks: String = (0..1_000)
        .map(|i| match i {
            0 => "  t0: { type: a }\n".to_owned(),
            _ => format!(
                "  t{i}: {{ type: a, needs: [t{}], input: '${{{{ tasks.t0.output.n + {i} }}}}' }}\n",
                i - 1
            ),
        })
        .collect();
    let plan = yaml(&format!("name: w\ntasks:\n{tasks}")).plan;
    assert_eq!(plan.tasks[999].needs, [998]);
    let circle = format!(
        "name: w\ntasks:\n{}",
        tasks.replacen("t0: { type: a }", "t0: { type: a, needs: [t999] }", 1)
    );
    let found = faults(&circle);
    assert!(found[0].contains("the needs go in a circle: t0 → t999 → t998"), "{}", found[0]);
}

#[test]
fn aliases_are_copied_within_the_limits_of_a_document() {
    let text = "name: w\ntasks:\n  a: &base { type: x, timeout: &t 5s }\n  b: *base\n  c: { type: y, timeout: *t, input: *t }\n";
    let plan = yaml(text).plan;
    assert_eq!(plan.tasks[1].timeout.run, Some(Span::secs(5)));
    let bomb: String =
        (1..20).map(|n| format!("a{n}: &a{n} [{}]\n", vec![format!("*a{}", n - 1); 10].join(", "))).collect();
    has(&faults(&format!("a0: &a0 [x]\n{bomb}")), ":7: the document has more than 250000 values");
    let big = format!("a: &a {}\nb: [{}]\n", "x".repeat(100_000), vec!["*a"; 100].join(", "));
    has(&faults(&big), ":2: the document has more than 1048576 bytes");
    has(&faults("a: &a [*a]\n"), ":1: an alias stands inside the value it names");
    has(&faults("a: *b\n"), ":1: the document is not valid YAML");
    let nested: String = (0..140).map(|n| format!("{}k: &n{n}\n", " ".repeat(n))).collect();
    let wide = format!("{nested}{}[{}]\n", " ".repeat(141), "1,".repeat(100_000));
    has(&faults(&wide), ":142: the document has more than 250000 values");
}

#[test]
fn text_that_is_no_yaml_or_json_is_one_fault_with_its_place() {
    has(&faults("name: w\ntasks: [\n"), ":2: the document is not valid YAML: unclosed bracket");
    has(&faults("name: w\n\tx: 1\n"), ":1: the document is not valid YAML");
    has(&faults("--- a\n--- b\n"), ":2: the text holds more than one YAML document");
    has(&faults("? [a]\n: b\n"), ":1: a key must be plain text");
    has(&faults("just text"), ":1: must be a map with name");
    let found = parse(b"{\"name\":\n 'w'}", Format::Json).unwrap_err();
    assert_eq!(found[0].message, "the document is not valid JSON: expected a value at line 2, column 2");
    assert!(parse(b"", Format::Json).is_err());
    assert!(
        parse(br#"{"name":"\ud800","tasks":{"t":{"type":"a"}}}"#, Format::Json).unwrap_err()[0]
            .message
            .contains("surrogate")
    );
}

#[test]
fn a_schema_that_is_none_is_refused_at_registration() {
    has(
        &faults("name: w\ninput:\n  type: strnig\ntasks: { t: { type: a } }"),
        "input:3: not a valid JSON Schema at /type",
    );
    has(&faults("name: w\ninput: text\ntasks: { t: { type: a } }"), "input:2: a JSON Schema is an object");
    // Inside a schema nothing is an expression.
    assert!(
        canonical(&yaml("name: w\ninput: { description: '${{ x }}' }\ntasks: { t: { type: a } }"))
            .contains("${{ x }}")
    );
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

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn any_bytes_are_taken_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        for format in [Format::Yaml, Format::Json] {
            if let Err(faults) = parse(&bytes, format) {
                prop_assert!(!faults.is_empty());
            }
        }
    }

    #[test]
    fn a_mutated_document_is_taken_or_refused(at in 0..ORDER.len(), cut in 0..20usize, put in "[ -~\n]{0,6}") {
        let mut text = ORDER.as_bytes().to_vec();
        let end = (at + cut).min(text.len());
        text.splice(at..end, put.bytes());
        if let Ok(document) = parse(&text, Format::Yaml) {
            let again = parse(&document.canonical, Format::Json).map(|d| d.canonical);
            prop_assert_eq!(again.map_err(|f| format!("{f:?}")), Ok(document.canonical));
        }
    }

    #[test]
    fn text_survives_both_formats(s in any::<String>()) {
        let quoted = serde_json::to_string(&s.replace("${{", "")).unwrap();
        let text = format!("{{\"name\":\"w\",\"tasks\":{{\"t\":{{\"type\":\"a\",\"input\":{quoted}}}}}}}");
        let document = parse(text.as_bytes(), Format::Json).map_err(|f| TestCaseError::fail(format!("{f:?}")))?;
        // What JSON escapes may be written raw in the canonical text, which is read as YAML just the same unless
        // YAML has no way to hold the character raw.
        if let Ok(again) = parse(&document.canonical, Format::Yaml) {
            prop_assert_eq!(again.canonical, document.canonical);
        }
    }
}
