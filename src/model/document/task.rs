//! One task of a document, read as far as it stands alone.

use super::fields::{Faults, Fields, duration_of, positive};
use super::node::{Kind, Node, shown};
use crate::model::expr::{has_expression, is_one_expression};
use crate::model::ids::{TaskId, TaskType};
use crate::model::plan::{RetryPolicy, Timeouts, When};

const KEYS: [&str; 10] =
    ["type", "needs", "when", "if", "input", "retry", "timeout", "on_error", "priority", "description"];

/// Keys of the contract that are refused with a word until they do something.
const LATER: [&str; 14] = [
    "tasks",
    "workflow",
    "wait",
    "set",
    "fail",
    "finish",
    "for_each",
    "max_parallel",
    "tolerate",
    "repeat",
    "compensate",
    "labels",
    "concurrency",
    "rate",
];

/// Those of [`LATER`] that say what a task does.
const LATER_KINDS: [&str; 6] = ["tasks", "workflow", "wait", "set", "fail", "finish"];

/// Most attempts of a task.
const MAX_ATTEMPTS: i64 = 1_000_000;
/// Longest error code, in bytes.
const MAX_CODE: usize = 128;

/// A task before its names are resolved and its expressions compiled.
#[derive(Debug)]
pub(super) struct Draft<'n> {
    pub(super) id: TaskId,
    pub(super) path: String,
    pub(super) task_type: Option<TaskType>,
    /// As written, with the node of each.
    pub(super) needs: Vec<(&'n str, &'n Node)>,
    pub(super) when: When,
    pub(super) condition: Option<&'n Node>,
    pub(super) input: Option<&'n Node>,
    pub(super) retry: RetryPolicy,
    pub(super) timeout: Timeouts,
    pub(super) continue_on_error: bool,
    pub(super) priority: i32,
    pub(super) description: Option<&'n str>,
}

impl<'n> Draft<'n> {
    /// Reads the task `id`, which stands at `path`.
    pub(super) fn read(id: TaskId, node: &'n Node, path: &str, faults: &mut Faults) -> Option<Self> {
        let fields = Fields::of(node, path, &KEYS, &LATER, faults)?;
        Some(Self {
            id,
            path: path.to_owned(),
            task_type: task_type(&fields, node, path, faults),
            needs: fields.texts("needs", faults),
            when: when(&fields, faults),
            condition: condition(&fields, faults),
            input: fields.get("input"),
            retry: retry(&fields, faults),
            timeout: timeout(&fields, faults),
            continue_on_error: continue_on_error(&fields, faults),
            priority: fields.integer("priority", -100..=100, faults).unwrap_or(0) as i32,
            description: fields.text("description", faults),
        })
    }
}

fn task_type(fields: &Fields<'_>, node: &Node, path: &str, faults: &mut Faults) -> Option<TaskType> {
    let Some(value) = fields.get("type") else {
        // Another kind has been told to be not supported yet; that is enough.
        if !LATER_KINDS.iter().any(|kind| fields.get(kind).is_some()) {
            faults.add(
                path,
                node.at(),
                "the task has no kind; give it a 'type', the task type its workers serve",
            );
        }
        return None;
    };
    let path = fields.path("type");
    if let Kind::String(text) = &value.kind
        && has_expression(text)
    {
        faults.add(&path, value.at(), "an expression as 'type' is not supported yet");
        return None;
    }
    match TaskType::new(fields.text("type", faults)?) {
        Ok(task_type) => Some(task_type),
        Err(e) => {
            faults.add(
                &path,
                value.at(),
                format!("the task type {} is not valid: {}", shown(&e.got), e.rule),
            );
            None
        }
    }
}

fn when(fields: &Fields<'_>, faults: &mut Faults) -> When {
    let Some(word) = fields.text("when", faults) else { return When::Success };
    match word {
        "success" => When::Success,
        "failure" => When::Failure,
        "always" => When::Always,
        _ => {
            let line = fields.get("when").and_then(Node::at);
            faults.add(
                &fields.path("when"),
                line,
                format!("{} is not one of success, failure, always", shown(word)),
            );
            When::Success
        }
    }
}

/// A boolean, or text that is one expression and nothing else: anything else could never be true or false.
fn condition<'n>(fields: &Fields<'n>, faults: &mut Faults) -> Option<&'n Node> {
    let node = fields.get("if")?;
    let path = fields.path("if");
    match &node.kind {
        Kind::Bool(_) => Some(node),
        Kind::String(text) if has_expression(text) => {
            if !is_one_expression(text) {
                faults.add(&path, node.at(), "must be exactly one expression, without text around it");
            }
            Some(node)
        }
        Kind::String(text) => {
            let message =
                format!("must be true, false or an expression ${{{{ … }}}}, but is the text {}", shown(text));
            faults.add(&path, node.at(), message);
            None
        }
        _ => {
            faults.wrong(&path, node, "true, false or an expression ${{ … }}");
            None
        }
    }
}

fn retry(fields: &Fields<'_>, faults: &mut Faults) -> RetryPolicy {
    let mut policy = RetryPolicy::default();
    let keys = ["max_attempts", "initial", "factor", "max", "jitter", "non_retryable"];
    let Some(node) = fields.get("retry") else { return policy };
    let Some(retry) = Fields::of(node, &fields.path("retry"), &keys, &[], faults) else { return policy };
    if let Some(n) = retry.integer("max_attempts", 1..=MAX_ATTEMPTS, faults) {
        policy.max_attempts = n as u32;
    }
    if let Some(span) = retry.duration("initial", faults) {
        policy.initial = span;
    }
    if let Some(factor) = retry.number("factor", 1.0..=f64::MAX, faults) {
        policy.factor = factor;
    }
    if let Some(span) = retry.duration("max", faults) {
        policy.max = span;
    }
    if let Some(jitter) = retry.number("jitter", 0.0..=1.0, faults) {
        policy.jitter = jitter;
    }
    for (n, (code, node)) in retry.texts("non_retryable", faults).into_iter().enumerate() {
        if code.is_empty() || code.len() > MAX_CODE {
            let message = format!("an error code has 1 to {MAX_CODE} bytes, but this has {}", code.len());
            faults.add(&format!("{}[{n}]", retry.path("non_retryable")), node.at(), message);
        }
        policy.non_retryable.push(code.to_owned());
    }
    // A set, told in one way.
    policy.non_retryable.sort();
    policy.non_retryable.dedup();
    policy
}

fn timeout(fields: &Fields<'_>, faults: &mut Faults) -> Timeouts {
    let mut timeouts = Timeouts::default();
    let Some(node) = fields.get("timeout") else { return timeouts };
    let path = fields.path("timeout");
    if !matches!(node.kind, Kind::Map(_)) {
        // Of a task that a worker does, a bare duration limits the attempt.
        timeouts.run = duration_of(node, &path, faults).and_then(|span| positive(span, node, &path, faults));
        return timeouts;
    }
    let keys = ["queue", "run", "heartbeat", "total"];
    if let Some(limits) = Fields::of(node, &path, &keys, &[], faults) {
        timeouts.queue = limits.limit("queue", faults);
        timeouts.run = limits.limit("run", faults);
        timeouts.heartbeat = limits.limit("heartbeat", faults);
        timeouts.total = limits.limit("total", faults);
    }
    timeouts
}

fn continue_on_error(fields: &Fields<'_>, faults: &mut Faults) -> bool {
    match fields.text("on_error", faults) {
        None | Some("fail") => false,
        Some("continue") => true,
        Some(word) => {
            let line = fields.get("on_error").and_then(Node::at);
            faults.add(
                &fields.path("on_error"),
                line,
                format!("{} is not one of fail, continue", shown(word)),
            );
            false
        }
    }
}
