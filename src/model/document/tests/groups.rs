//! Groups: `tasks` in a task.

use super::*;

const NESTED: &str = "\
name: w
tasks:
  a: { type: x }
  g:
    needs: [a]
    fail_fast: true
    timeout: 5m
    on_error: continue
    tasks:
      b: { type: x }
      h:
        needs: [b]
        tasks:
          d: { type: x, input: '${{ [tasks.a.output, tasks.b.output] }}' }
          e: { type: x, needs: [d] }
      c: { type: x, needs: [h], input: '${{ tasks.h.output.e }}' }
    output: { c: '${{ tasks.c.output }}', a: '${{ tasks.a.output }}' }
  k: { type: x, needs: [g], input: '${{ tasks.g.output.c }}' }
  i: { tasks: { j: { type: x } } }
";

fn group(plan: &Plan, id: &str) -> crate::model::plan::Group {
    match &plan.tasks[plan.index_of(id).unwrap() as usize].kind {
        TaskKind::Group(g) => {
            crate::model::plan::Group { body: g.body.clone(), output: None, fail_fast: g.fail_fast }
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn bodies_follow_level_by_level_each_in_one_piece() {
    let document = yaml(NESTED);
    let plan = &document.plan;
    let ids: Vec<&str> = plan.tasks.iter().map(|t| t.id.as_str()).collect();
    assert_eq!(ids, ["a", "g", "k", "i", "b", "h", "c", "j", "d", "e"]);
    assert_eq!(plan.body, 0..4);
    assert_eq!((group(plan, "g").body, group(plan, "i").body, group(plan, "h").body), (4..7, 7..8, 8..10));
    let parents: Vec<Option<u32>> = plan.tasks.iter().map(|t| t.parent).collect();
    assert_eq!(parents, [None, None, None, None, Some(1), Some(1), Some(1), Some(3), Some(5), Some(5)]);
    assert!(group(plan, "g").fail_fast && !group(plan, "h").fail_fast);
    let g = &plan.tasks[1];
    assert_eq!((g.needs.as_slice(), g.dependents.as_slice()), (&[0][..], &[2][..]));
    assert_eq!((plan.tasks[6].needs.as_slice(), plan.tasks[8].dependents.as_slice()), (&[5][..], &[9][..]));
    assert_eq!(g.timeout, Timeouts { total: Some(Span::secs(300)), ..Timeouts::default() });
    assert_eq!((g.continue_on_error, g.retry.max_attempts), (true, 1));
    assert_eq!(plan.tasks[8].input.as_ref().unwrap().roots(), [Root::Output(0), Root::Output(4)]);
    let TaskKind::Group(g) = &g.kind else { panic!() };
    assert_eq!(g.output.as_ref().unwrap().roots(), [Root::Output(0), Root::Output(6)]);
    assert_eq!(json(canonical(&document)).canonical, document.canonical);
}

#[test]
fn a_group_has_at_least_one_task_by_the_rule_of_the_document() {
    for tasks in ["[]", "null", "{}", "", "~"] {
        let found = task_faults(&format!("tasks: {tasks}"));
        assert_eq!(found, ["tasks.t.tasks:4: a group has at least one task"]);
    }
    has(&task_faults("tasks: [a]"), "tasks.t.tasks:4: must be a map from task id to task, but is a list");
    has(
        &task_faults("tasks: { u: 5 }"),
        "tasks.t.tasks.u:4: must be a map that says what the task does, such as { type: … }, but is a number",
    );
}

#[test]
fn an_id_is_unique_in_the_document_wherever_it_stands() {
    let text = "\
name: w
tasks:
  notify: { type: a }
  g:
    tasks:
      notify: { type: a }
  l:
    repeat: { max: 2 }
    tasks:
      notify: { type: a }
      g: { type: a }
finally:
  notify: { type: a }
";
    let taken = |by: &str| format!("is taken by {by}; ids are unique in the document, nested ones included");
    assert_eq!(
        faults(text),
        [
            format!("tasks.g.tasks.notify:6: the task id 'notify' {}", taken("tasks.notify")),
            format!("tasks.l.tasks.notify:10: the task id 'notify' {}", taken("tasks.notify")),
            format!("tasks.l.tasks.g:11: the task id 'g' {}", taken("tasks.g")),
            format!("finally.notify:13: the task id 'notify' {}", taken("tasks.notify")),
        ]
    );
    let twice = faults("name: w\ntasks:\n  g:\n    tasks:\n      n: { type: a }\n      n: { type: b }\n");
    assert_eq!(twice, ["tasks.g.tasks.n:6: the key \"n\" stands here twice; keep one"]);
    for word in ["finally", "compensate"] {
        has(
            &task_faults(&format!("tasks: {{ {word}: {{ type: a }} }}")),
            &format!("tasks.t.tasks.{word}:4: no task may be called '{word}'"),
        );
    }
}

#[test]
fn needs_name_tasks_of_the_same_body() {
    let text = "\
name: w
tasks:
  a: { type: x, needs: [b] }
  g:
    tasks:
      b: { type: x, needs: [a, g, c, d, h] }
      h:
        tasks:
          c: { type: x, needs: [c, e] }
  i: { needs: [g, c], tasks: { d: { type: x } } }
  e: { type: x }
";
    assert_eq!(
        faults(text),
        [
            "tasks.a.needs[0]:3: 'b' stands inside of the group 'g'; need 'g' instead",
            "tasks.g.tasks.b.needs[0]:6: 'a' stands outside of the group 'g'; put it into the needs of 'g'",
            "tasks.g.tasks.b.needs[1]:6: 'g' is the group this task stands in; needs name tasks beside it",
            "tasks.g.tasks.b.needs[2]:6: 'c' stands inside of the group 'h'; need 'h' instead",
            "tasks.g.tasks.b.needs[3]:6: 'd' stands in another group; needs name tasks of the same one",
            "tasks.g.tasks.h.tasks.c.needs[0]:9: the task needs itself: c → c",
            "tasks.g.tasks.h.tasks.c.needs[1]:9: 'e' stands outside of the group 'g'; put it into the needs of 'g'",
            "tasks.i.needs[1]:10: 'c' stands inside of the group 'g'; need 'g' instead",
        ]
    );
    let circle = "name: w\ntasks:\n  g:\n    tasks:\n      a: { type: x, needs: [b] }\n      b: { type: x, needs: [a] }\n  h: { type: x, needs: [i] }\n  i: { type: x, needs: [h] }\n";
    assert_eq!(
        faults(circle),
        [
            "tasks.g.tasks.a.needs:5: the needs go in a circle: a → b → a",
            "tasks.h.needs:7: the needs go in a circle: h → i → h",
        ]
    );
}

#[test]
fn keys_that_do_not_go_with_a_group_are_refused() {
    let found = task_faults(
        "tasks: { u: { type: a } }\ninput: 1\nretry: {}\npriority: 1\ntimeout: { run: 1s, queue: 1s, total: 5s }",
    );
    assert_eq!(
        found,
        [
            "tasks.t.input:5: 'input' does not go with 'tasks'; it goes with type, workflow",
            "tasks.t.retry:6: 'retry' does not go with 'tasks'; it goes with type, workflow",
            "tasks.t.priority:7: 'priority' does not go with 'tasks'; it goes with type, workflow",
            "tasks.t.timeout.queue:8: 'queue' is for what a worker does; anything else has 'total' only",
            "tasks.t.timeout.run:8: 'run' is for what a worker does; anything else has 'total' only",
        ]
    );
    has(
        &task_faults("type: a\noutput: 1"),
        "tasks.t.output:5: 'output' does not go with 'type'; it goes with tasks",
    );
    has(&task_faults("type: a\nfail_fast: true"), "tasks.t.fail_fast:5: 'fail_fast' does not go with 'type'");
    has(
        &task_faults("tasks: { u: { type: a } }\nfail_fast: 1"),
        "tasks.t.fail_fast:5: must be true or false",
    );
}
