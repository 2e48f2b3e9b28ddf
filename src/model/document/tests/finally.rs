//! `compensate` and `finally`.

use super::*;
use crate::model::plan::Role;

const BOTH: &str = "\
name: w
tasks:
  a:
    type: x
    compensate: { type: undo-x, input: '${{ tasks.a.output.hold }}', retry: { max_attempts: 9 }, timeout: 5s }
  g:
    needs: [a]
    tasks:
      b: { workflow: child, compensate: { type: '${{ input.undo }}', input: { a: '${{ tasks.a.output }}' } } }
    compensate: { type: undo-g, input: '${{ tasks.g.output }}' }
finally:
  timeout: 10m
  tasks:
    n: { type: notify, if: \"${{ run.status == 'failed' }}\", input: ['${{ run.error.code }}', '${{ tasks.g.status }}'] }
    f: { needs: [n], tasks: { m: { type: y, input: '${{ [tasks.n.output, tasks.a.output, run.error] }}' } } }
";

#[test]
fn what_undoes_and_what_comes_last_stand_at_the_end() {
    let document = yaml(BOTH);
    let plan = &document.plan;
    let tasks: Vec<(&str, Role, Option<u32>)> =
        plan.tasks.iter().map(|t| (t.id.as_str(), t.role, t.parent)).collect();
    assert_eq!(
        tasks,
        [
            ("a", Role::Task, None),
            ("g", Role::Task, None),
            ("b", Role::Task, Some(1)),
            ("finally", Role::Finally, None),
            ("n", Role::Task, Some(3)),
            ("f", Role::Task, Some(3)),
            ("m", Role::Task, Some(5)),
            ("compensate", Role::Compensation, Some(0)),
            ("compensate", Role::Compensation, Some(1)),
            ("compensate", Role::Compensation, Some(2)),
        ]
    );
    assert_eq!((plan.body.clone(), plan.finally, plan.index_of("finally")), (0..2, Some(3), Some(3)));
    assert_eq!(plan.index_of("compensate"), None);
    assert!(matches!(&plan.tasks[3].kind, TaskKind::Group(g) if g.body == (4..6) && g.output.is_none()));
    assert_eq!(plan.tasks[3].timeout, Timeouts { total: Some(Span::secs(600)), ..Timeouts::default() });
    let undone: Vec<Option<u32>> = plan.tasks.iter().map(|t| t.compensate).collect();
    assert_eq!(undone[..3], [Some(7), Some(8), Some(9)]);
    assert!(undone[3..].iter().all(Option::is_none));
    let undo = &plan.tasks[7];
    assert!(matches!(&undo.kind, TaskKind::Worker(t) if t.as_str() == "undo-x"));
    assert_eq!((undo.retry.max_attempts, undo.timeout.run), (9, Some(Span::secs(5))));
    assert_eq!(undo.input.as_ref().unwrap().roots(), [Root::Output(0)]);
    assert_eq!(plan.tasks[9].input.as_ref().unwrap().roots(), [Root::Output(0)]);
    assert_eq!(plan.tasks[4].input.as_ref().unwrap().roots(), [Root::Facts(1), Root::Run]);
    assert_eq!(json(canonical(&document)).canonical, document.canonical);
}

#[test]
fn finally_may_be_a_map_of_tasks() {
    let short = yaml("name: w\ntasks: { a: { type: x } }\nfinally: { n: { type: x }, timeout: { type: y } }");
    let plan = &short.plan;
    assert_eq!(
        plan.tasks.iter().map(|t| t.id.as_str()).collect::<Vec<_>>(),
        ["a", "finally", "n", "timeout"]
    );
    assert_eq!(plan.tasks[1].timeout.total, Some(Span::secs(300)));
    let long = yaml(
        "name: w\ntasks: { a: { type: x } }\nfinally: { timeout: 300s, tasks: { n: { type: x }, timeout: { type: y } } }",
    );
    assert_eq!(short.canonical, long.canonical);
    assert!(canonical(&long).contains(r#""finally":{"tasks":{"n":{"type":"x"},"timeout":{"type":"y"}}}"#));
}

#[test]
fn a_finally_that_is_none_is_refused() {
    let found = |finally: &str| faults(&format!("name: w\ntasks:\n  a: {{ type: x }}\nfinally: {finally}\n"));
    for (finally, wanted) in [
        ("~", "finally:4: a group has at least one task"),
        ("{}", "finally:4: a group has at least one task"),
        ("[]", "finally:4: a group has at least one task"),
        ("{ tasks: {} }", "finally.tasks:4: a group has at least one task"),
        ("5", "finally:4: must be a map from task id to task, but is a number"),
        ("{ tasks: { n: { type: x } }, timeout: 0s }", "finally.timeout:4: must be longer than 0"),
        ("{ tasks: { n: { type: x } }, output: 1 }", "finally.output:4: unknown key \"output\""),
        ("{ n: { type: x }, timeout: 5s }", "finally.timeout:4: a timeout stands beside 'tasks'"),
        (
            "{ n: { type: x, needs: [a] } }",
            "finally.n.needs[0]:4: 'a' is not part of 'finally', which begins when all",
        ),
        (
            "{ n: { type: x, compensate: { type: y } } }",
            "finally.n.compensate:4: what 'finally' does is not undone",
        ),
        ("{ n: { finish: {} } }", "finally.n.finish:4: 'finish' may not stand in 'finally'"),
        (
            "{ g: { tasks: { n: { finish: {} } } } }",
            "finally.g.tasks.n.finish:4: 'finish' may not stand in 'finally'",
        ),
        ("{ finally: { type: x } }", "finally.finally:4: no task may be called 'finally'"),
    ] {
        let found = found(finally);
        assert_eq!(found.len(), 1, "{found:?}");
        has(&found, wanted);
    }
    has(
        &faults("name: w\ntasks:\n  a: { type: x, needs: [n] }\nfinally: { n: { type: x } }"),
        "tasks.a.needs[0]:3: 'n' is part of 'finally', which comes after all other tasks",
    );
}

#[test]
fn a_compensation_that_is_none_is_refused() {
    for (undo, wanted) in [
        ("~", "tasks.t.compensate:5: must be a map with type, input, retry, timeout"),
        ("{}", "tasks.t.compensate:5: 'type' is required"),
        ("undo", "tasks.t.compensate:5: must be a map with type, input, retry, timeout"),
        ("{ type: 5 }", "tasks.t.compensate.type:5: must be text"),
        ("{ type: u, needs: [] }", "tasks.t.compensate.needs:5: unknown key \"needs\""),
        ("{ type: u, timeout: 5 }", "tasks.t.compensate.timeout:5: must be a duration"),
        ("{ type: u, retry: 5 }", "tasks.t.compensate.retry:5: must be a map with max_attempts"),
        (
            "{ type: u, input: '${{ tasks.t.outptu }}' }",
            "tasks.t.compensate.input:5: tasks.t has no 'outptu'",
        ),
        ("{ type: u, input: '${{ tasks.u.output }}' }", "tasks.t.compensate.input:5: there is no task \"u\""),
    ] {
        let found = task_faults(&format!("type: a\ncompensate: {undo}"));
        assert_eq!(found.len(), 1, "{found:?}");
        has(&found, wanted);
    }
}
