//! What documents can say and the engine cannot run yet is refused here, and only here: without the call of
//! [`refuse`] in [`super::parse`] everything that is read is also taken.

use super::node::{Kind, Node, join};
use crate::model::error::Fault;
use crate::model::expr::has_expression;

/// Constructs that are read, checked and not run yet.
const NOT_YET: [&str; 11] = [
    "workflow",
    "tasks",
    "wait",
    "set",
    "fail",
    "finish",
    "for_each",
    "max_parallel",
    "tolerate",
    "repeat",
    "compensate",
];
/// Most tasks of a document, for now: wide runs need their own form of record.
pub(super) const MAX_TASKS: usize = 1_000;

/// Complains of every use of what is not run yet.
pub(super) fn refuse(root: &Node, faults: &mut Vec<Fault>) {
    let Kind::Map(entries) = &root.kind else { return };
    let mut add = |path: String, line: u32, message: String| {
        faults.push(Fault { path, line: Some(line).filter(|l| *l > 0), message });
    };
    for entry in entries.iter().filter(|e| e.key == "finally") {
        add(join("", &entry.key), entry.line, format!("'{}' is not supported yet", entry.key));
    }
    let Some(tasks) = entries.iter().find(|e| e.key == "tasks") else { return };
    let Kind::Map(ids) = &tasks.value.kind else { return };
    if ids.len() > MAX_TASKS {
        let message = format!("there are {} tasks; the limit is {MAX_TASKS} for now", ids.len());
        add("tasks".to_owned(), tasks.value.line, message);
    }
    for task in ids {
        let path = join("tasks", &task.key);
        let Kind::Map(fields) = &task.value.kind else { continue };
        for field in fields {
            if NOT_YET.contains(&field.key.as_str()) {
                add(join(&path, &field.key), field.line, format!("'{}' is not supported yet", field.key));
            }
            if field.key == "type" && matches!(&field.value.kind, Kind::String(text) if has_expression(text))
            {
                let message = "an expression as 'type' is not supported yet".to_owned();
                add(join(&path, "type"), field.value.line, message);
            }
        }
    }
}
