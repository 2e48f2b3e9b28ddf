//! What a task does: its one kind, read as far as it stands alone.

use super::fields::{Faults, Fields, text};
use super::keys;
use super::node::{Kind, Node, shown};
use super::policy::{Length, MAX_CODE};
use crate::model::expr::has_expression;
use crate::model::ids::{TaskType, WorkflowName};
use crate::model::instant;
use std::ops::Range;

/// What a task does, before its expressions are compiled.
#[derive(Debug)]
pub(super) enum Does<'n> {
    Worker(TaskType),
    /// Text with an expression in it.
    WorkerOf(&'n Node),
    Workflow {
        name: &'n Node,
        version: Option<u32>,
        detach: bool,
        /// Of `name`.
        path: String,
    },
    Group {
        tasks: &'n Node,
        output: Option<&'n Node>,
        fail_fast: bool,
        /// Known once the tree is laid out.
        body: Range<u32>,
    },
    For(Length<'n>),
    /// RFC 3339, or text with an expression in it.
    Until(&'n Node),
    /// A name, or text with an expression in it.
    Signal(&'n Node),
    Set(&'n Node),
    Fail {
        code: &'n Node,
        message: Option<&'n Node>,
    },
    Finish {
        node: &'n Node,
        output: Option<&'n Node>,
    },
}

/// The kind of the task at `node`, by its key. `None`: it has none or several, which is told.
pub(super) fn of(fields: &Fields<'_>, node: &Node, path: &str, faults: &mut Faults) -> Option<&'static str> {
    let kinds: Vec<&'static str> =
        keys::KINDS.into_iter().filter(|kind| fields.get(kind).is_some()).collect();
    match kinds[..] {
        [kind] => Some(kind),
        [] => {
            let message = "the task has no kind; give it one of type (a worker does it), workflow, tasks, wait, \
                           set, fail, finish";
            faults.add(path, node.at(), message);
            None
        }
        [..] => {
            let message =
                format!("the task has {} kinds: {}; keep exactly one", kinds.len(), kinds.join(", "));
            faults.add(path, node.at(), message);
            None
        }
    }
}

/// Reads what stands under the key `kind`.
pub(super) fn read<'n>(fields: &Fields<'n>, kind: &str, faults: &mut Faults) -> Option<Does<'n>> {
    let node = fields.get(kind)?;
    let path = fields.path(kind);
    match kind {
        "type" => worker(node, &path, faults),
        "workflow" => workflow(node, &path, faults),
        "tasks" => Some(Does::Group {
            tasks: node,
            output: fields.get("output"),
            fail_fast: fields.boolean("fail_fast", faults).unwrap_or(false),
            body: 0..0,
        }),
        "wait" => wait(node, &path, faults),
        "set" => {
            if node.kind == Kind::Null {
                faults.wrong(&path, node, "a value");
            }
            Some(Does::Set(node))
        }
        "fail" => fail(node, &path, faults),
        _ => {
            let finish = Fields::of(node, &path, &keys::FINISH, faults)?;
            Some(Does::Finish { node, output: finish.get("output") })
        }
    }
}

/// A task type, or text with an expression in it.
pub(super) fn worker<'n>(node: &'n Node, path: &str, faults: &mut Faults) -> Option<Does<'n>> {
    if let Kind::String(text) = &node.kind
        && has_expression(text)
    {
        return Some(Does::WorkerOf(node));
    }
    match TaskType::new(text(node, path, faults)?) {
        Ok(task_type) => Some(Does::Worker(task_type)),
        Err(e) => {
            faults.add(path, node.at(), format!("the task type {} is not valid: {}", shown(&e.got), e.rule));
            None
        }
    }
}

fn workflow<'n>(node: &'n Node, path: &str, faults: &mut Faults) -> Option<Does<'n>> {
    if !matches!(node.kind, Kind::Map(_)) {
        let name = name(node, path, "workflow", faults)?;
        return Some(Does::Workflow { name, version: None, detach: false, path: path.to_owned() });
    }
    let child = Fields::of(node, path, &keys::WORKFLOW, faults)?;
    let version = child.integer("version", 1..=i64::from(u32::MAX), faults).map(|n| n as u32);
    let detach = child.boolean("detach", faults).unwrap_or(false);
    let at = child.path("name");
    let Some(named) = child.get("name") else {
        faults.add(path, node.at(), "'name' is required: the name of the workflow");
        return None;
    };
    Some(Does::Workflow { name: name(named, &at, "workflow", faults)?, version, detach, path: at })
}

/// A name, or text with an expression in it. Names of workflows and signals follow one rule.
fn name<'n>(node: &'n Node, path: &str, what: &str, faults: &mut Faults) -> Option<&'n Node> {
    let Kind::String(text) = &node.kind else {
        faults.wrong(path, node, "text");
        return None;
    };
    if !has_expression(text)
        && let Err(e) = WorkflowName::new(text)
    {
        let message = format!("the {what} name {} is not valid: {}", shown(&e.got), e.rule);
        faults.add(path, node.at(), message);
    }
    Some(node)
}

fn wait<'n>(node: &'n Node, path: &str, faults: &mut Faults) -> Option<Does<'n>> {
    let wait = Fields::of(node, path, &keys::WAIT, faults)?;
    let given: Vec<&str> = keys::WAIT.into_iter().filter(|key| wait.get(key).is_some()).collect();
    let [key] = given[..] else {
        let message = match given[..] {
            [] => "a wait has one of for, until, signal".to_owned(),
            [..] => format!("a wait has one of for, until, signal, but here are {}", given.join(" and ")),
        };
        faults.add(path, node.at(), message);
        return None;
    };
    let node = wait.get(key)?;
    let path = wait.path(key);
    match key {
        "for" => Length::read(node, &path, faults).map(Does::For),
        "until" => {
            let Kind::String(text) = &node.kind else {
                faults.wrong(&path, node, "text: an instant such as 2030-01-31T08:00:00Z");
                return None;
            };
            if !has_expression(text)
                && let Err(message) = instant::parse(text)
            {
                faults.add(&path, node.at(), message);
            }
            Some(Does::Until(node))
        }
        _ => name(node, &path, "signal", faults).map(Does::Signal),
    }
}

fn fail<'n>(node: &'n Node, path: &str, faults: &mut Faults) -> Option<Does<'n>> {
    let fail = Fields::of(node, path, &keys::FAIL, faults)?;
    let Some(code) = fail.get("code") else {
        faults.add(path, node.at(), "'code' is required: the code of the error, such as out_of_stock");
        return None;
    };
    match &code.kind {
        Kind::String(text) if !has_expression(text) && (text.is_empty() || text.len() > MAX_CODE) => {
            let message = format!("an error code has 1 to {MAX_CODE} bytes, but this has {}", text.len());
            faults.add(&fail.path("code"), code.at(), message);
        }
        Kind::String(_) => {}
        _ => faults.wrong(&fail.path("code"), code, "text"),
    }
    let message = fail.get("message");
    if let Some(node) = message.filter(|n| !matches!(n.kind, Kind::String(_))) {
        faults.wrong(&fail.path("message"), node, "text");
    }
    Some(Does::Fail { code, message })
}
