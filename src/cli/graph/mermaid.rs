//! A plan as a Mermaid flowchart.

use super::labels::{self, Look};
use super::{body, last};
use crate::model::plan::Plan;
use std::fmt::Write as _;
use std::ops::Range;

/// The flowchart, without a line end. Tasks are called by their numbers, since an id may be a word of Mermaid's.
pub(super) fn draw(plan: &Plan) -> String {
    let mut out = format!("---\ntitle: \"{}\"\n---\nflowchart TB\n", plan.name);
    nodes(plan, plan.body.clone(), 1, &mut out);
    if let Some(finally) = plan.finally {
        group(plan, finally, 1, &mut out);
    }
    for (index, task) in plan.tasks.iter().enumerate() {
        for need in &task.needs {
            let arrow = match labels::edge(task.when) {
                None => "-->".to_owned(),
                Some(label) => format!("-. {label} .->"),
            };
            let _ = writeln!(out, "  n{need} {arrow} n{index}");
        }
    }
    if let Some(finally) = plan.finally {
        for task in last(plan) {
            let _ = writeln!(out, "  n{task} -.-> n{finally}");
        }
    }
    classes(plan, &mut out);
    out.truncate(out.trim_end().len());
    out
}

fn nodes(plan: &Plan, tasks: Range<u32>, depth: usize, out: &mut String) {
    for task in tasks {
        let look = Look::of(plan, task);
        let (open, close) = match look {
            Look::Group | Look::Finally => {
                group(plan, task, depth, out);
                continue;
            }
            Look::Worker => ("[", "]"),
            Look::Workflow => ("[[", "]]"),
            Look::Wait => ("([", "])"),
            Look::Set => ("[/", "/]"),
            Look::Fail => ("{{", "}}"),
            Look::Finish => ("(((", ")))"),
        };
        let label = label(plan, task, "<br/>");
        let _ = writeln!(out, "{}n{task}{open}\"{label}\"{close}", "  ".repeat(depth));
    }
}

fn group(plan: &Plan, task: u32, depth: usize, out: &mut String) {
    let indent = "  ".repeat(depth);
    let _ = writeln!(out, "{indent}subgraph n{task}[\"{}\"]", label(plan, task, " · "));
    let _ = writeln!(out, "{indent}  direction TB");
    nodes(plan, body(plan, task), depth + 1, out);
    let _ = writeln!(out, "{indent}end");
}

/// One line with the tasks of each look, and how it is coloured.
fn classes(plan: &Plan, out: &mut String) {
    for look in Look::ALL {
        let tasks: Vec<String> =
            drawn(plan).filter(|task| Look::of(plan, *task) == look).map(|task| format!("n{task}")).collect();
        if !tasks.is_empty() {
            let (fill, border) = look.colors();
            let name = look.name();
            let _ = writeln!(out, "  classDef {name}Task fill:{fill},stroke:{border},color:#1f2430");
            let _ = writeln!(out, "  class {} {name}Task", tasks.join(","));
        }
    }
}

/// All tasks that have a place of their own.
fn drawn(plan: &Plan) -> impl Iterator<Item = u32> {
    use crate::model::plan::Role;
    (0..plan.tasks.len() as u32).filter(|task| plan.tasks[*task as usize].role != Role::Compensation)
}

fn label(plan: &Plan, task: u32, between: &str) -> String {
    let lines: Vec<String> = labels::lines(plan, task).iter().map(|line| escaped(line)).collect();
    lines.join(between)
}

/// Text as Mermaid takes it in quotes: everything it or HTML could read as something else is written as a number.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '"' | '#' | '&' | '<' | '>' | '`' | '\\' | ';' | '%' | '*' | '{' | '}' => {
                let _ = write!(out, "#{};", c as u32);
            }
            _ => out.push(c),
        }
    }
    out
}
