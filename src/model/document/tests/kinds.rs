//! The kinds that no worker does, and types that are chosen when the task starts.

use super::*;
use crate::model::plan::Wait;

fn kind(lines: &str) -> TaskKind {
    let document = yaml(&format!("name: w\ntasks:\n  t:\n{}\n", indented(lines)));
    assert_eq!(json(canonical(&document)).canonical, document.canonical);
    document.plan.tasks.into_iter().next().unwrap().kind
}

/// What a template of text without expressions comes to.
fn rendered(template: &crate::model::expr::Template) -> String {
    struct Nothing;
    impl crate::model::expr::Scope for Nothing {
        fn input(&self) -> &[u8] {
            b"null"
        }
        fn task(&self, _: u32) -> crate::model::expr::TaskFacts<'_> {
            unreachable!()
        }
        fn run(&self) -> Bytes {
            unreachable!()
        }
        fn item(&self) -> (&[u8], u32) {
            unreachable!()
        }
        fn iteration(&self) -> crate::model::expr::LoopFacts<'_> {
            unreachable!()
        }
    }
    String::from_utf8(template.render(&Nothing, "here").unwrap().to_vec()).unwrap()
}

#[test]
fn a_task_has_exactly_one_kind() {
    has(
        &task_faults("needs: []"),
        "tasks.t:4: the task has no kind; give it one of type (a worker does it), workflow",
    );
    assert_eq!(
        task_faults("type: a\nwait: { for: 1s }\nretry: {}\noutput: 1"),
        ["tasks.t:4: the task has 2 kinds: type, wait; keep exactly one"]
    );
}

#[test]
fn a_type_may_be_an_expression() {
    assert!(matches!(kind("type: '${{ input.t }}'"), TaskKind::WorkerOf(t) if t.roots() == [Root::Input]));
    assert!(matches!(kind("type: 'ship-${{ input.t }}'\ntimeout: 5s"), TaskKind::WorkerOf(_)));
    has(&task_faults("type: '${{ foo }}'"), "tasks.t.type:4: there is no 'foo'");
    has(&task_faults("type: 'a b'"), "tasks.t.type:4: the task type \"a b\" is not valid");
}

#[test]
fn a_child_is_a_name_or_a_map() {
    let TaskKind::Workflow(child) =
        kind("workflow: order\ninput: 1\nretry: { max_attempts: 1 }\ntimeout: 5s")
    else {
        panic!()
    };
    assert_eq!((rendered(&child.workflow).as_str(), child.version, child.detach), ("\"order\"", None, false));
    let TaskKind::Workflow(child) = kind("workflow: { name: '${{ input.w }}', version: 3, detach: true }")
    else {
        panic!()
    };
    assert_eq!((child.workflow.roots(), child.version, child.detach), (&[Root::Input][..], Some(3), true));
    let short = yaml("name: w\ntasks: { t: { workflow: order } }").canonical;
    assert_eq!(yaml("name: w\ntasks: { t: { workflow: { name: order, detach: false } } }").canonical, short);
    for (lines, wanted) in [
        ("workflow: ~", "tasks.t.workflow:4: must be text, but is null"),
        ("workflow: 5", "tasks.t.workflow:4: must be text, but is a number; put it in quotes"),
        ("workflow: a b", "tasks.t.workflow:4: the workflow name \"a b\" is not valid"),
        ("workflow: ''", "tasks.t.workflow:4: the workflow name \"\" is not valid"),
        ("workflow: {}", "tasks.t.workflow:4: 'name' is required"),
        ("workflow: { name: a/b }", "tasks.t.workflow.name:4: the workflow name \"a/b\" is not valid"),
        ("workflow: { name: a, version: 0 }", "tasks.t.workflow.version:4: must be a whole number from 1"),
        (
            "workflow: { name: a, version: latest }",
            "tasks.t.workflow.version:4: must be a whole number from 1",
        ),
        ("workflow: { name: a, detach: 1 }", "tasks.t.workflow.detach:4: must be true or false"),
        ("workflow: { name: a, input: 1 }", "tasks.t.workflow.input:4: unknown key \"input\""),
        ("workflow: a\ntimeout: { run: 5s }", "tasks.t.timeout.run:5: 'run' is for what a worker does"),
    ] {
        let found = task_faults(lines);
        assert_eq!(found.len(), 1, "{found:?}");
        has(&found, wanted);
    }
}

#[test]
fn a_wait_is_one_of_three() {
    assert!(
        matches!(kind("wait: { for: 90m }"), TaskKind::Wait(Wait::For(t)) if rendered(&t) == "\"1h30m\"")
    );
    assert!(matches!(kind("wait: { for: 0s }"), TaskKind::Wait(Wait::For(t)) if rendered(&t) == "\"0s\""));
    assert!(matches!(kind("wait: { for: '${{ input.d }}' }\ntimeout: 1h"), TaskKind::Wait(Wait::For(_))));
    assert!(
        matches!(kind("wait: { until: '2030-01-31T08:00:00+01:00' }"), TaskKind::Wait(Wait::Until(t)) if rendered(&t) == "\"2030-01-31T08:00:00+01:00\"")
    );
    assert!(matches!(kind("wait: { until: 2030-01-31T08:00:00Z }"), TaskKind::Wait(Wait::Until(_))));
    assert!(
        matches!(kind("wait: { signal: approved }"), TaskKind::Wait(Wait::Signal(t)) if rendered(&t) == "\"approved\"")
    );
    assert!(matches!(kind("wait: { signal: 'paid-${{ input.id }}' }"), TaskKind::Wait(Wait::Signal(_))));
    for (lines, wanted) in [
        ("wait: {}", "tasks.t.wait:4: a wait has one of for, until, signal"),
        ("wait: ~", "tasks.t.wait:4: must be a map with for, until, signal"),
        ("wait: 5s", "tasks.t.wait:4: must be a map with for, until, signal"),
        (
            "wait: { for: 1s, signal: x }",
            "tasks.t.wait:4: a wait has one of for, until, signal, but here are for and signal",
        ),
        ("wait: { for: 5 }", "tasks.t.wait.for:4: must be a duration, but is the number 5; say the unit"),
        ("wait: { for: -1s }", "tasks.t.wait.for:4: the duration \"-1s\" has a sign"),
        ("wait: { for: 1.5s }", "tasks.t.wait.for:4: the duration \"1.5s\" is not valid"),
        ("wait: { for: 9999d }", "tasks.t.wait.for:4: the duration \"9999d\" is longer than ten years"),
        (
            "wait: { until: tomorrow }",
            "tasks.t.wait.until:4: the instant \"tomorrow\" is not valid; write RFC 3339",
        ),
        ("wait: { until: 2030-02-30T00:00:00Z }", "tasks.t.wait.until:4: the instant"),
        ("wait: { until: 5 }", "tasks.t.wait.until:4: must be text: an instant such as 2030-01-31T08:00:00Z"),
        ("wait: { signal: a b }", "tasks.t.wait.signal:4: the signal name \"a b\" is not valid"),
        ("wait: { signal: 5 }", "tasks.t.wait.signal:4: must be text"),
        ("wait: { signal: x }\ninput: 1", "tasks.t.input:5: 'input' does not go with 'wait'"),
        ("wait: { signal: x }\nretry: {}", "tasks.t.retry:5: 'retry' does not go with 'wait'"),
        (
            "wait: { signal: x }\ncompensate: { type: u }",
            "tasks.t.compensate:5: 'compensate' does not go with 'wait'",
        ),
    ] {
        let found = task_faults(lines);
        assert_eq!(found.len(), 1, "{found:?}");
        has(&found, wanted);
    }
}

#[test]
fn set_takes_any_value_but_none() {
    assert!(
        matches!(kind("set: { a: '${{ input.a }}', b: [~] }"), TaskKind::Set(t) if t.roots() == [Root::Input])
    );
    assert!(matches!(kind("set: false"), TaskKind::Set(_)));
    assert!(matches!(kind("set: {}"), TaskKind::Set(_)));
    has(
        &task_faults("set:"),
        "tasks.t.set:4: must be a value, but is null; give a value or leave the key out",
    );
    has(
        &task_faults("set: 1\ntimeout: 5s"),
        "tasks.t.timeout:5: 'timeout' does not go with 'set'; it goes with type, workflow, tasks, wait",
    );
}

#[test]
fn fail_has_a_code_and_may_have_a_message() {
    let TaskKind::Fail { code, message } =
        kind("fail: { code: out_of_stock, message: 'no ${{ input.sku }}' }")
    else {
        panic!()
    };
    assert_eq!((rendered(&code).as_str(), message.roots()), ("\"out_of_stock\"", &[Root::Input][..]));
    let TaskKind::Fail { message, .. } = kind("fail: { code: x }") else { panic!() };
    assert_eq!(rendered(&message), "\"the workflow failed at 't'\"");
    for (lines, wanted) in [
        ("fail: ~", "tasks.t.fail:4: must be a map with code, message"),
        ("fail: {}", "tasks.t.fail:4: 'code' is required"),
        ("fail: { message: x }", "tasks.t.fail:4: 'code' is required"),
        ("fail: { code: 5 }", "tasks.t.fail.code:4: must be text, but is a number; put it in quotes"),
        ("fail: { code: '' }", "tasks.t.fail.code:4: an error code has 1 to 128 bytes, but this has 0"),
        ("fail: { code: x, message: {} }", "tasks.t.fail.message:4: must be text, but is a map"),
        ("fail: { code: x, retryable: false }", "tasks.t.fail.retryable:4: unknown key"),
        ("fail: { code: x }\nretry: {}", "tasks.t.retry:5: 'retry' does not go with 'fail'"),
    ] {
        let found = task_faults(lines);
        assert_eq!(found.len(), 1, "{found:?}");
        has(&found, wanted);
    }
}

#[test]
fn finish_may_have_an_output() {
    assert!(matches!(kind("finish: {}"), TaskKind::Finish { output: None }));
    assert!(
        matches!(kind("finish: { output: ~ }"), TaskKind::Finish { output: Some(t) } if rendered(&t) == "null")
    );
    assert!(matches!(
        kind("if: false\nfinish: { output: '${{ input }}' }"),
        TaskKind::Finish { output: Some(_) }
    ));
    for (lines, wanted) in [
        ("finish: ~", "tasks.t.finish:4: must be a map with output, but is null"),
        ("finish: true", "tasks.t.finish:4: must be a map with output, but is a boolean"),
        ("finish: { outptu: 1 }", "tasks.t.finish.outptu:4: unknown key \"outptu\" (did you mean 'output'?)"),
        ("finish: {}\noutput: 1", "tasks.t.output:5: 'output' does not go with 'finish'; it goes with tasks"),
    ] {
        let found = task_faults(lines);
        assert_eq!(found.len(), 1, "{found:?}");
        has(&found, wanted);
    }
}

#[test]
fn what_comes_later_is_refused_with_a_word() {
    has(
        &task_faults("type: a\n<<: {}"),
        "tasks.t[\"<<\"]:5: unknown key \"<<\"; merge keys are not part of YAML 1.2",
    );
}

#[test]
fn labels_are_text_by_text_and_all_faults_are_told() {
    let read = |lines: &str| {
        let document = yaml(&format!("name: w\ntasks:\n  t:\n{}\n", indented(lines)));
        assert_eq!(json(canonical(&document)).canonical, document.canonical);
        document
    };
    let document = read(
        "type: a\nlabels: { region: eu, gpu: \"true\" }\ncompensate: { type: u, labels: { disk: ssd-1.2 } }",
    );
    assert_eq!(document.plan.tasks[0].labels.as_str(), "gpu=true;region=eu");
    assert_eq!(document.plan.tasks[1].labels.as_str(), "disk=ssd-1.2");
    let same = read(
        "type: a\nlabels: { gpu: 'true', region: eu }\ncompensate: { labels: { disk: ssd-1.2 }, type: u }",
    );
    assert_eq!(document.canonical, same.canonical);
    assert_eq!(read("type: a\nlabels: {}").canonical, read("type: a").canonical);
    for (lines, wanted) in [
        ("labels: ~", "tasks.t.labels:5: must be a map of text to text, such as { region: eu }"),
        ("labels: [gpu]", "tasks.t.labels:5: must be a map of text to text"),
        ("labels: { gpu: true }", "tasks.t.labels.gpu:5: must be text, but is a boolean; put it in quotes"),
        ("labels: { gpu: 8 }", "tasks.t.labels.gpu:5: must be text, but is a number; put it in quotes"),
        ("labels: { gpu: '${{ input.g }}' }", "tasks.t.labels.gpu:5: an expression may not stand here"),
        (
            "labels: { gpu: a b }",
            "tasks.t.labels.gpu:5: the value of a label \"a b\" is not valid: 1 to 64 letters, digits",
        ),
        ("labels: { 'g u': a }", "tasks.t.labels[\"g u\"]:5: the key of a label \"g u\" is not valid"),
        (
            "labels: { a: x, b: x, c: x, d: x, e: x, f: x, g: x, h: x, i: x }",
            "tasks.t.labels:5: there are 9 labels; the limit is 8",
        ),
    ] {
        let found = task_faults(&format!("type: a\n{lines}"));
        assert_eq!(found.len(), 1, "{found:?}");
        has(&found, wanted);
    }
    assert_eq!(task_faults("type: a\nlabels:\n  gpu: true\n  'x y': ''\n  region: eu").len(), 3);
    has(
        &task_faults("set: 1\nlabels: { a: b }"),
        "tasks.t.labels:5: 'labels' does not go with 'set'; it goes with type",
    );
}
