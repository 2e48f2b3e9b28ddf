//! `for_each` and `repeat`.

use super::*;
use crate::model::plan::Tolerate;

fn task(lines: &str) -> crate::model::plan::TaskPlan {
    let document = yaml(&format!("name: w\ntasks:\n  t:\n{}\n", indented(lines)));
    assert_eq!(json(canonical(&document)).canonical, document.canonical);
    document.plan.tasks.into_iter().next().unwrap()
}

#[test]
fn a_map_is_read_with_its_defaults() {
    let each = task("type: a\nfor_each: ${{ input.items }}").for_each.unwrap();
    assert_eq!(each.items.as_path().unwrap(), (Root::Input, &["items".to_owned()][..]));
    assert_eq!((each.max_parallel, each.tolerate), (None, Tolerate::Count(0)));
    let each =
        task("set: 1\nfor_each: [1, '${{ input.x }}']\nmax_parallel: 8\ntolerate: 10%").for_each.unwrap();
    assert_eq!((each.max_parallel, each.tolerate), (Some(8), Tolerate::Percent(10)));
    let each = task("workflow: w\nfor_each: []\ntolerate: 3").for_each.unwrap();
    assert_eq!((each.items.roots(), each.tolerate), (&[][..], Tolerate::Count(3)));
    assert_eq!(task("type: a\nfor_each: []\ntolerate: 0%").for_each.unwrap().tolerate, Tolerate::Count(0));
    assert_eq!(
        task("type: a\nfor_each: []\ntolerate: 100%").for_each.unwrap().tolerate,
        Tolerate::Percent(100)
    );
}

#[test]
fn a_map_that_is_none_is_refused() {
    for (lines, wanted) in [
        (
            "for_each: ~",
            "tasks.t.for_each:5: must be a list or an expression ${{ … }} that gives one, but is null",
        ),
        ("for_each: {}", "tasks.t.for_each:5: must be a list or an expression"),
        ("for_each: 3", "tasks.t.for_each:5: must be a list or an expression"),
        ("for_each: items", "tasks.t.for_each:5: must be a list or an expression"),
        ("for_each: 'x${{ input.l }}'", "tasks.t.for_each:5: must be exactly one expression"),
        ("max_parallel: 1", "tasks.t.max_parallel:5: 'max_parallel' belongs to for_each, which is not here"),
        ("tolerate: 1", "tasks.t.tolerate:5: 'tolerate' belongs to for_each, which is not here"),
        (
            "for_each: []\nmax_parallel: 0",
            "tasks.t.max_parallel:6: must be a whole number from 1 to 10000, but is 0",
        ),
        ("for_each: []\nmax_parallel: '1'", "tasks.t.max_parallel:6: must be a whole number"),
        ("for_each: []\nmax_parallel: '${{ input.n }}'", "tasks.t.max_parallel:6: must be a whole number"),
        (
            "for_each: []\ntolerate: -1",
            "tasks.t.tolerate:6: must be a whole number from 0 to 10000, but is -1",
        ),
        (
            "for_each: []\ntolerate: 0.5",
            "tasks.t.tolerate:6: must be a whole number from 0 to 10000, but is 0.5",
        ),
        (
            "for_each: []\ntolerate: 101%",
            "tasks.t.tolerate:6: must be a number of items, or a share from \"0%\"",
        ),
        ("for_each: []\ntolerate: 1.5%", "tasks.t.tolerate:6: must be a number of items, or a share"),
        ("for_each: []\ntolerate: '5'", "tasks.t.tolerate:6: must be a number of items, or a share"),
        ("for_each: []\ntolerate: '-5%'", "tasks.t.tolerate:6: must be a number of items, or a share"),
        ("for_each: []\ntolerate: '%'", "tasks.t.tolerate:6: must be a number of items, or a share"),
        (
            "for_each: []\ntolerate: true",
            "tasks.t.tolerate:6: must be a number of items, or a share of them such as \"10%\", but is a boolean",
        ),
    ] {
        let found = task_faults(&format!("type: a\n{lines}"));
        assert_eq!(found.len(), 1, "{found:?}");
        has(&found, wanted);
    }
    let list = vec!["1"; 10_001].join(",");
    has(
        &task_faults(&format!("type: a\nfor_each: [{list}]")),
        "tasks.t.for_each:5: there are 10001 items; the limit is 10000",
    );
}

#[test]
fn a_loop_is_read_with_its_defaults() {
    let repeat = task("type: a\nrepeat: { max: 3 }").repeat.unwrap();
    assert!(repeat.condition.is_none() && repeat.delay.is_none() && repeat.max == 3);
    let repeat =
        task("type: a\nrepeat: { while: '${{ loop.output.more }}', max: 10000, delay: 1m }").repeat.unwrap();
    assert_eq!(repeat.condition.unwrap().roots(), [Root::LoopOutput]);
    assert_eq!(repeat.delay.unwrap().roots(), []);
    let repeat = task("type: a\nrepeat: { max: 3, delay: '${{ loop.index * 10 }}s' }").repeat.unwrap();
    assert_eq!(repeat.delay.unwrap().roots(), [Root::LoopIndex]);
    assert!(task("type: a\nrepeat: { max: 3, delay: 0s }").repeat.unwrap().delay.is_none());
    assert!(task("type: a\nrepeat: { while: true, max: 3 }").repeat.unwrap().condition.is_some());
}

#[test]
fn a_loop_that_is_none_is_refused() {
    for (lines, wanted) in [
        ("repeat: {}", "tasks.t.repeat:5: 'max' is required: the most iterations, 1 to 10000"),
        ("repeat: ~", "tasks.t.repeat:5: must be a map with while, max, delay, but is null"),
        ("repeat: 3", "tasks.t.repeat:5: must be a map with while, max, delay"),
        ("repeat: { max: 0 }", "tasks.t.repeat.max:5: must be a whole number from 1 to 10000, but is 0"),
        ("repeat: { max: 10001 }", "tasks.t.repeat.max:5: must be a whole number from 1 to 10000"),
        ("repeat: { max: '${{ input.n }}' }", "tasks.t.repeat.max:5: must be a whole number"),
        ("repeat: { max: 1, while: 'yes' }", "tasks.t.repeat.while:5: must be true, false or an expression"),
        ("repeat: { max: 1, while: '${{ loop.output }}!' }", "tasks.t.repeat.while:5: must be exactly one"),
        ("repeat: { max: 1, delay: 5 }", "tasks.t.repeat.delay:5: must be a duration, but is the number 5"),
        ("repeat: { max: 1, delay: -5s }", "tasks.t.repeat.delay:5: the duration \"-5s\" has a sign"),
        ("repeat: { max: 1, until: x }", "tasks.t.repeat.until:5: unknown key \"until\""),
    ] {
        let found = task_faults(&format!("type: a\n{lines}"));
        assert_eq!(found.len(), 1, "{found:?}");
        has(&found, wanted);
    }
}

#[test]
fn finish_stands_under_no_map_and_no_loop() {
    has(&task_faults("finish: {}\nfor_each: []"), "tasks.t.for_each:5: 'for_each' does not go with 'finish'");
    has(
        &task_faults("finish: {}\nrepeat: { max: 1 }"),
        "tasks.t.repeat:5: 'repeat' does not go with 'finish'",
    );
    let deep = "tasks: { g: { tasks: { f: { finish: {} } } } }";
    has(
        &task_faults(&format!("{deep}\nfor_each: []")),
        "tasks.t.tasks.g.tasks.f.finish:4: 'finish' may not stand under 'for_each'",
    );
    has(
        &task_faults(&format!("{deep}\nrepeat: {{ max: 1 }}")),
        "tasks.t.tasks.g.tasks.f.finish:4: 'finish' may not stand under 'repeat'",
    );
    assert!(task(deep).for_each.is_none());
}
