//! Random documents of all constructs, nested: what is written is read, and its canonical text is the same document.

use super::*;
use std::fmt::Write as _;

/// A task to be written: what kind, what else, and what is inside if it is a group.
#[derive(Debug, Clone)]
struct Sketch {
    kind: usize,
    flags: u32,
    inside: Vec<Sketch>,
}

fn sketches() -> impl Strategy<Value = Vec<Sketch>> {
    let leaf = (0..9usize, any::<u32>()).prop_map(|(kind, flags)| Sketch { kind, flags, inside: Vec::new() });
    let task = leaf.prop_recursive(4, 24, 4, |inner| {
        (any::<u32>(), prop::collection::vec(inner, 1..4)).prop_map(|(flags, inside)| Sketch {
            kind: 9,
            flags,
            inside,
        })
    });
    prop::collection::vec(task, 1..5)
}

#[derive(Debug, Clone, Copy, Default)]
struct Around {
    item: bool,
    repeat: bool,
    finally: bool,
}

fn body(tasks: &[Sketch], around: Around, next: &mut u32) -> String {
    let mut out = "{".to_owned();
    let mut ids: Vec<String> = Vec::new();
    for task in tasks {
        let id = format!("t{next}");
        *next += 1;
        let separator = if ids.is_empty() { "" } else { "," };
        write!(out, "{separator}\"{id}\":{}", one(task, &id, &ids, around, next)).unwrap();
        ids.push(id);
    }
    out + "}"
}

fn one(task: &Sketch, id: &str, before: &[String], around: Around, next: &mut u32) -> String {
    let has = |bit: u32| task.flags >> bit & 1 == 1;
    let (each, again) = (has(0) && task.kind != 8, has(1) && task.kind != 8);
    let inner = Around { item: around.item || each, repeat: around.repeat || again, ..around };
    let needs: Vec<&String> =
        before.iter().enumerate().filter(|(n, _)| has(8 + *n as u32)).map(|(_, i)| i).collect();
    let mut seen = vec!["input.x".to_owned(), "run.id".to_owned()];
    seen.extend(needs.iter().map(|id| format!("tasks.{id}.output.y | default(1)")));
    seen.extend(["item".to_owned(), "index + 1".to_owned()].into_iter().filter(|_| inner.item));
    seen.extend(["loop.previous".to_owned()].into_iter().filter(|_| inner.repeat));
    seen.extend(["run.status".to_owned()].into_iter().filter(|_| around.finally));
    let value = format!(
        "{{\"b\":\"${{{{ {} }}}}\",\"a\":[1.0,null,\"x-${{{{ run.id }}}}\"]}}",
        seen.join(" }}-${{ ")
    );
    let mut keys = vec![match (task.kind, has(2)) {
        (0, false) => "\"type\":\"work\"".to_owned(),
        (0, true) => "\"type\":\"work-${{ input.t }}\"".to_owned(),
        (1, false) => "\"workflow\":\"child\"".to_owned(),
        (1, true) => "\"workflow\":{\"name\":\"${{ input.w }}\",\"version\":2,\"detach\":true}".to_owned(),
        (2, false) => "\"wait\":{\"for\":\"90m\"}".to_owned(),
        (2, true) => "\"wait\":{\"for\":\"${{ input.d }}\"}".to_owned(),
        (3, _) => "\"wait\":{\"until\":\"2030-01-31T08:00:00Z\"}".to_owned(),
        (4, _) => "\"wait\":{\"signal\":\"go\"}".to_owned(),
        (5 | 6, _) => format!("\"set\":{value}"),
        (7, false) => "\"fail\":{\"code\":\"c\"}".to_owned(),
        (7, true) => "\"fail\":{\"message\":\"${{ run.id }}\",\"code\":\"c\"}".to_owned(),
        (8, _) if around.item || around.repeat || around.finally => "\"set\":1".to_owned(),
        (8, false) => "\"finish\":{}".to_owned(),
        (8, true) => format!("\"finish\":{{\"output\":{value}}}"),
        _ => format!("\"tasks\":{}", body(&task.inside, inner, next)),
    }];
    if !needs.is_empty() {
        let list: Vec<String> = needs.iter().rev().map(|id| format!("\"{id}\"")).collect();
        keys.push(format!("\"needs\":[{}]", list.join(",")));
    }
    let with = |on: bool, text: &str| on.then(|| text.to_owned());
    let (worker, group) = (task.kind < 2, task.kind == 9);
    keys.extend(
        [
            with(each, "\"for_each\":\"${{ input.items }}\""),
            with(each && has(3), "\"max_parallel\":3,\"tolerate\":\"10%\""),
            with(again && has(4), "\"repeat\":{\"max\":3}"),
            with(
                again && !has(4),
                "\"repeat\":{\"delay\":\"60s\",\"max\":3,\"while\":\"${{ loop.output is none }}\"}",
            ),
            with(has(5), "\"if\":\"${{ input.go }}\",\"when\":\"always\",\"on_error\":\"continue\""),
            with(has(6) && (worker || task.kind < 5 || group), "\"timeout\":\"90s\""),
            with(worker && has(7), "\"retry\":{\"factor\":2.0,\"max_attempts\":4},\"priority\":5"),
            with(task.kind == 0 && has(22), "\"labels\":{\"region\":\"eu\",\"gpu\":\"true\"}"),
            with(group && has(7), "\"fail_fast\":true"),
            ((worker || group) && has(22))
                .then(|| format!("\"concurrency\":{{\"limit\":2,\"key\":\"k-{id}\"}}")),
            with(worker && has(23), "\"rate\":{\"per\":\"60s\",\"key\":\"${{ input.t }}\",\"limit\":5}"),
            (worker && has(20)).then(|| format!("\"input\":{value}")),
            (group && has(20)).then(|| format!("\"output\":{value}")),
            ((worker || group) && has(21) && !around.finally).then(|| {
                format!("\"compensate\":{{\"type\":\"undo\",\"input\":\"${{{{ tasks.{id}.output }}}}\"}}")
            }),
        ]
        .into_iter()
        .flatten(),
    );
    format!("{{{}}}", keys.join(","))
}

/// The JSON text of a document with tasks of all kinds but those named, nested in all ways.
pub(crate) fn documents(without: &'static [usize]) -> impl Strategy<Value = String> {
    (sketches(), prop::option::of(sketches())).prop_map(move |(mut tasks, mut last)| {
        replace(&mut tasks, without);
        replace(last.as_deref_mut().unwrap_or_default(), without);
        let mut next = 0;
        let tasks = body(&tasks, Around::default(), &mut next);
        let last = last.map(|last| {
            let around = Around { finally: true, ..Around::default() };
            format!(",\"finally\":{}", body(&last, around, &mut next))
        });
        format!("{{\"name\":\"flow\",\"tasks\":{tasks}{}}}", last.unwrap_or_default())
    })
}

/// Kind of a task that starts a run of another workflow.
pub(crate) const CHILD: usize = 1;

fn replace(tasks: &mut [Sketch], without: &[usize]) {
    for task in tasks {
        if without.contains(&task.kind) {
            task.kind = 0;
        }
        replace(&mut task.inside, without);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn what_is_written_by_the_rules_is_read_and_stays_itself(tasks in sketches(), last in prop::option::of(sketches())) {
        let mut next = 0;
        let tasks = body(&tasks, Around::default(), &mut next);
        let last = last.map(|last| {
            let around = Around { finally: true, ..Around::default() };
            format!(",\"finally\":{}", body(&last, around, &mut next))
        });
        let text = format!("{{\"name\":\"w\",\"tasks\":{tasks}{}}}", last.unwrap_or_default());
        let document = json(&text);
        let again = json(canonical(&document));
        prop_assert_eq!(&again.canonical, &document.canonical);
        prop_assert_eq!(format!("{:?}", again.plan), format!("{:?}", document.plan));
        prop_assert_eq!(&yaml(canonical(&document)).canonical, &document.canonical);
        sound(&document.plan);
    }
}

/// What holds for every plan.
fn sound(plan: &Plan) {
    use crate::model::plan::Role;
    let bodies = plan.tasks.iter().map(|t| match &t.kind {
        TaskKind::Group(group) => group.body.clone(),
        _ => 0..0,
    });
    let mut place = vec![None; plan.tasks.len()];
    for (parent, body) in
        std::iter::once((None, plan.body.clone())).chain(bodies.enumerate().map(|(n, b)| (Some(n as u32), b)))
    {
        for task in body {
            assert_eq!(place[task as usize].replace(parent), None, "a task stands in one body");
            assert_eq!(plan.tasks[task as usize].parent, parent);
        }
    }
    for (n, task) in plan.tasks.iter().enumerate() {
        let n = n as u32;
        assert_eq!(place[n as usize].is_some(), task.role == Role::Task);
        for need in &task.needs {
            let other = &plan.tasks[*need as usize];
            assert_eq!((other.parent, other.role), (task.parent, Role::Task));
            assert!(other.dependents.contains(&n));
        }
        if let Some(undo) = task.compensate {
            let undo = &plan.tasks[undo as usize];
            assert_eq!((undo.role, undo.parent), (Role::Compensation, Some(n)));
        }
    }
    assert!(plan.finally.is_none_or(|f| plan.tasks[f as usize].role == Role::Finally));
}
