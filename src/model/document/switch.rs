//! What documents can say and the engine cannot run yet is refused here, and only here: without the call of
//! [`refuse`] in [`super::parse`] everything that is read is also taken.

use super::node::{Kind, Node, join};
use crate::model::error::Fault;

/// Keys of tasks that are read, checked and not run yet.
const NOT_YET: [&str; 1] = ["workflow"];

/// Complains of every use of what is not run yet.
pub(super) fn refuse(root: &Node, faults: &mut Vec<Fault>) {
    let Kind::Map(entries) = &root.kind else { return };
    for entry in entries.iter().filter(|e| matches!(e.key.as_str(), "tasks" | "finally")) {
        tasks(&entry.value, &entry.key, faults);
    }
}

fn tasks(node: &Node, path: &str, faults: &mut Vec<Fault>) {
    let Kind::Map(ids) = &node.kind else { return };
    for task in ids {
        let path = join(path, &task.key);
        // `finally` may be written with its tasks under a key of their own, which stands where a task would.
        if task.key == "tasks" {
            tasks(&task.value, &path, faults);
            continue;
        }
        let Kind::Map(fields) = &task.value.kind else { continue };
        for field in fields {
            if NOT_YET.contains(&field.key.as_str()) {
                let line = Some(field.line).filter(|l| *l > 0);
                let message = format!("'{}' is not supported yet", field.key);
                faults.push(Fault { path: join(&path, &field.key), line, message });
            }
            if field.key == "tasks" {
                tasks(&field.value, &join(&path, "tasks"), faults);
            }
        }
    }
}
