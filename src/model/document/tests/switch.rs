//! What the engine does not run yet is refused by `parse`, with a word.

use super::*;

fn refused(text: &str) -> Vec<String> {
    let faults = super::super::parse(text.as_bytes(), Format::Yaml).map(|d| d.plan).expect_err(text);
    faults.into_iter().map(|f| format!("{}:{}: {}", f.path, f.line.unwrap_or(0), f.message)).collect()
}

#[test]
fn what_is_not_run_yet_is_refused_with_a_word() {
    for lines in [
        "tasks: { u: { type: a } }",
        "workflow: x",
        "wait: { signal: x }",
        "set: 1",
        "fail: { code: x }",
        "finish: {}",
        "for_each: []",
        "repeat: { max: 1 }",
        "compensate: { type: u }",
    ] {
        let key = lines.split(':').next().unwrap();
        let kind = if keys::KINDS.contains(&key) { "description: x" } else { "type: a" };
        let text = format!("name: w\ntasks:\n  t:\n    {kind}\n    {lines}\n");
        assert_eq!(refused(&text), [format!("tasks.t.{key}:5: '{key}' is not supported yet")]);
    }
    assert_eq!(
        refused(
            "name: w\ntasks:\n  t:\n    type: a\n    for_each: []\n    max_parallel: 1\n    tolerate: 1\n"
        ),
        [
            "tasks.t.for_each:5: 'for_each' is not supported yet",
            "tasks.t.max_parallel:6: 'max_parallel' is not supported yet",
            "tasks.t.tolerate:7: 'tolerate' is not supported yet",
        ]
    );
    assert_eq!(
        refused("name: w\ntasks: { t: { type: a } }\nfinally: { u: { type: a } }"),
        ["finally:3: 'finally' is not supported yet"]
    );
    assert_eq!(
        refused("name: w\ntasks: { t: { type: '${{ input.t }}' } }"),
        ["tasks.t.type:2: an expression as 'type' is not supported yet"]
    );
    let many: String = (0..1_001).map(|i| format!("  t{i}: {{ type: a }}\n")).collect();
    assert_eq!(
        refused(&format!("name: w\ntasks:\n{many}")),
        ["tasks:3: there are 1001 tasks; the limit is 1000 for now"]
    );
    // Together with every other fault.
    let both = refused("name: w\ntasks:\n  t:\n    set: 1\n    when: never\n");
    assert_eq!(both.len(), 2, "{both:?}");
}
