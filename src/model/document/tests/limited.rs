//! `concurrency` and `rate`.

use super::*;

fn task(lines: &str) -> crate::model::plan::TaskPlan {
    let document = yaml(&format!("name: w\ntasks:\n  t:\n{}\n", indented(lines)));
    assert_eq!(json(canonical(&document)).canonical, document.canonical);
    document.plan.tasks.into_iter().next().unwrap()
}

#[test]
fn limits_are_read_on_what_can_have_them() {
    for kind in ["type: a", "workflow: w", "tasks: { x: { type: a } }"] {
        let limit = task(&format!("{kind}\nconcurrency: {{ limit: 10000, key: env }}")).concurrency.unwrap();
        assert_eq!((limit.key.source().as_str(), limit.limit), ("\"env\"", 10_000));
    }
    for kind in ["type: a", "workflow: w"] {
        let rate = task(&format!("{kind}\nrate: {{ key: 'x-${{{{ input.x }}}}', limit: 5, per: 1d }}"))
            .rate
            .unwrap();
        assert_eq!((rate.key.roots(), rate.limit, rate.per), (&[Root::Input][..], 5, Span::secs(86_400)));
    }
    // Each item and iteration has its own.
    let limit =
        task("type: a\nfor_each: []\nconcurrency: { limit: 1, key: '${{ item }}' }").concurrency.unwrap();
    assert_eq!(limit.key.roots(), [Root::Item]);
    let limit = task("type: a\nrepeat: { max: 2 }\nconcurrency: { limit: 1, key: '${{ loop.index }}' }");
    assert_eq!(limit.concurrency.unwrap().key.roots(), [Root::LoopIndex]);
}

#[test]
fn limits_have_one_canonical_text() {
    let text =
        |lines: &str| canonical(&yaml(&format!("name: w\ntasks:\n  t:\n{}\n", indented(lines)))).to_owned();
    let one = text("type: a\nrate: { per: 60s, limit: 3, key: k }\nconcurrency: { limit: 2, key: k }");
    let other = text("concurrency: { key: k, limit: 2 }\ntype: a\nrate: { key: k, limit: 3, per: 1m }");
    assert_eq!(one, other);
    assert_eq!(
        one,
        r#"{"name":"w","tasks":{"t":{"type":"a","concurrency":{"key":"k","limit":2},"rate":{"key":"k","limit":3,"per":"1m"}}}}"#
    );
}

#[test]
fn limits_that_are_none_are_refused_with_all_faults() {
    let long = format!("type: a\nconcurrency: {{ limit: 1, key: {} }}", "k".repeat(257));
    has(&task_faults(&long), "tasks.t.concurrency.key:5: a key has 1 to 256 bytes, but this has 257");
    for (lines, wanted) in [
        ("type: a\nconcurrency: 5", "tasks.t.concurrency:5: must be a map with key, limit, but is a number"),
        (
            "type: a\nconcurrency: { key: k }",
            "tasks.t.concurrency:5: 'limit' is required: how many tasks of the key may go on at once, 1 to 10000",
        ),
        ("type: a\nconcurrency: { limit: 1 }", "tasks.t.concurrency:5: 'key' is required"),
        (
            "type: a\nconcurrency: { key: '', limit: 1 }",
            "tasks.t.concurrency.key:5: a key has 1 to 256 bytes",
        ),
        (
            "type: a\nconcurrency: { key: 5, limit: 1 }",
            "tasks.t.concurrency.key:5: must be text, but is a number; put it in quotes",
        ),
        (
            "type: a\nconcurrency: { key: k, limit: 0 }",
            "tasks.t.concurrency.limit:5: must be a whole number from 1 to 10000, but is 0",
        ),
        (
            "type: a\nconcurrency: { key: k, limit: '${{ input.n }}' }",
            "tasks.t.concurrency.limit:5: must be a whole number from 1 to 10000",
        ),
        (
            "type: a\nconcurrency: { key: k, max: 1, limit: 1 }",
            "tasks.t.concurrency.max:5: unknown key \"max\"",
        ),
        (
            "set: 1\nconcurrency: { key: k, limit: 1 }",
            "tasks.t.concurrency:5: 'concurrency' does not go with 'set'; it goes with type, workflow, tasks",
        ),
        (
            "tasks: { x: { type: a } }\nrate: { key: k, limit: 1, per: 1s }",
            "tasks.t.rate:5: 'rate' does not go with 'tasks'; it goes with type, workflow",
        ),
        (
            "type: a\nrate: { key: k, limit: 1 }",
            "tasks.t.rate:5: 'per' is required: a length of time such as 1s, at most 1d",
        ),
        (
            "type: a\nrate: { key: k, limit: 1, per: 0s }",
            "tasks.t.rate.per:5: must be longer than 0 and at most 1d",
        ),
        (
            "type: a\nrate: { key: k, limit: 1, per: 25h }",
            "tasks.t.rate.per:5: must be longer than 0 and at most 1d",
        ),
        ("type: a\nrate: { key: k, limit: 1, per: 5 }", "tasks.t.rate.per:5: must be a duration"),
    ] {
        let found = task_faults(lines);
        assert_eq!(found.len(), 1, "{lines}: {found:?}");
        has(&found, wanted);
    }
    has(
        &task_faults(
            "concurrency: { key: k, limit: 2 }\ntasks:\n  x: { tasks: { y: { type: a, concurrency: { key: k, limit: 2 } } } }",
        ),
        "tasks.t.tasks.x.tasks.y.concurrency.key:6: the group 't' around the task has the same key",
    );
    let found = task_faults("type: a\nrate: { limit: 0, per: 2d }\nconcurrency: {}");
    assert_eq!(found.len(), 5, "{found:#?}");
    has(
        &task_faults("type: a\nconcurrency: { key: '${{ nope }}', limit: 1 }"),
        "tasks.t.concurrency.key:5: ",
    );
    has(
        &task_faults("type: a\ncompensate: { type: u, concurrency: { key: k, limit: 1 } }"),
        "tasks.t.compensate.concurrency:5: unknown key \"concurrency\"",
    );
}
