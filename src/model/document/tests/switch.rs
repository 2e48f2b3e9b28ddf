//! What the engine does not run yet is refused by `parse`, with a word.

use super::*;

fn refused(text: &str) -> Vec<String> {
    let faults = super::super::parse(text.as_bytes(), Format::Yaml).map(|d| d.plan).expect_err(text);
    faults.into_iter().map(|f| format!("{}:{}: {}", f.path, f.line.unwrap_or(0), f.message)).collect()
}

#[test]
fn what_is_not_run_yet_is_refused_with_a_word_at_any_depth() {
    assert_eq!(
        refused("name: w\ntasks:\n  t:\n    description: x\n    workflow: x\n"),
        ["tasks.t.workflow:5: 'workflow' is not supported yet"]
    );
    assert_eq!(
        refused("name: w\ntasks:\n  t:\n    tasks:\n      u: { workflow: x }\n"),
        ["tasks.t.tasks.u.workflow:5: 'workflow' is not supported yet"]
    );
    let finally = "name: w\ntasks: { t: { type: a } }\nfinally: { u: { workflow: x } }";
    assert_eq!(refused(finally), ["finally.u.workflow:3: 'workflow' is not supported yet"]);
    // Together with every other fault.
    let both = refused("name: w\ntasks:\n  t:\n    workflow: x\n    when: never\n");
    assert_eq!(both.len(), 2, "{both:?}");
}
