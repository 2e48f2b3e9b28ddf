//! What expressions see of a run, and what templates become.

use super::Payloads;
use super::payload::{self, keep};
use super::step::{Words, clip};
use crate::model::expr::{LoopFacts, Root, Scope, TaskFacts, Template};
use crate::model::payload::{Field, INLINE_MAX, PAYLOAD_MAX, Payload};
use crate::model::plan::{Plan, TaskPlan};
use crate::model::run::{RunState, TaskPhase};
use bytes::Bytes;
use std::collections::BTreeSet;

/// A run as expressions see it: with all payloads at hand that the templates in question read.
pub(super) struct Facts<'a> {
    plan: &'a Plan,
    state: &'a RunState,
    input: Bytes,
    /// Outputs that are read, by task; few, so a list.
    outputs: Vec<(u32, Bytes)>,
}

/// The payload that a root stands for; none for roots without one.
fn payload_of<'s>(state: &'s RunState, root: &Root) -> Option<&'s Payload> {
    match root {
        Root::Input => Some(&state.input),
        Root::Output(i) => match &state.tasks.get(*i as usize)?.phase {
            TaskPhase::Completed { output } => Some(output),
            TaskPhase::Pending { .. }
            | TaskPhase::Queued { .. }
            | TaskPhase::Running { .. }
            | TaskPhase::Retrying { .. }
            | TaskPhase::Failed { .. }
            | TaskPhase::Skipped { .. }
            | TaskPhase::Cancelled
            | TaskPhase::TimedOut { .. } => None,
        },
        Root::Facts(_)
        | Root::Run
        | Root::Item
        | Root::Index
        | Root::LoopIndex
        | Root::LoopOutput
        | Root::LoopPrevious => None,
    }
}

impl<'a> Facts<'a> {
    /// What `templates` read; every field that is not at hand, if there is one.
    pub(super) fn gather(
        plan: &'a Plan,
        state: &'a RunState,
        written: &[(Field, Bytes)],
        source: &dyn Payloads,
        templates: [Option<&Template>; 2],
    ) -> Result<Self, BTreeSet<Field>> {
        let mut facts = Self { plan, state, input: payload::NULL, outputs: Vec::new() };
        let mut missing = BTreeSet::new();
        for root in templates.into_iter().flatten().flat_map(Template::roots) {
            let Some(payload) = payload_of(state, root) else { continue };
            match (payload::resolve(payload, written, source), root) {
                (Ok(json), Root::Input) => facts.input = json,
                (Ok(json), Root::Output(i)) => facts.outputs.push((*i, json)),
                (Ok(_), _) => {}
                (Err(field), _) => {
                    missing.insert(field);
                }
            }
        }
        if missing.is_empty() { Ok(facts) } else { Err(missing) }
    }

    /// The payload behind a root, if it was gathered.
    fn at(&self, root: &Root) -> Option<&Bytes> {
        match root {
            Root::Input => Some(&self.input),
            Root::Output(i) => self.outputs.iter().find(|(o, _)| o == i).map(|(_, json)| json),
            _ => None,
        }
    }
}

impl Scope for Facts<'_> {
    fn input(&self) -> &[u8] {
        &self.input
    }

    fn task(&self, index: u32) -> TaskFacts<'_> {
        let Some(task) = self.state.tasks.get(index as usize) else {
            return TaskFacts { status: "pending", output: b"null", error: None };
        };
        let output = self.outputs.iter().find(|(i, _)| *i == index).map_or(&b"null"[..], |(_, json)| json);
        let error = match task.phase {
            TaskPhase::Failed { failure } | TaskPhase::TimedOut { failure } => {
                self.state.failures.get(failure as usize).map(|f| (f.code.as_str(), f.message.as_str()))
            }
            TaskPhase::Pending { .. }
            | TaskPhase::Queued { .. }
            | TaskPhase::Running { .. }
            | TaskPhase::Retrying { .. }
            | TaskPhase::Completed { .. }
            | TaskPhase::Skipped { .. }
            | TaskPhase::Cancelled => None,
        };
        TaskFacts { status: task.phase.name(), output, error }
    }

    fn item(&self) -> (&[u8], u32) {
        (b"null", 0)
    }

    fn iteration(&self) -> LoopFacts<'_> {
        LoopFacts { index: 0, output: b"null", previous: b"null" }
    }

    fn run(&self) -> Bytes {
        #[derive(serde::Serialize)]
        struct Run<'a> {
            id: &'a str,
            workflow: &'a str,
            version: u32,
            r#try: u32,
            created_at: String,
            tags: &'a std::collections::BTreeMap<String, String>,
            priority: i32,
        }
        let s = self.state;
        let run = Run {
            id: s.id.as_str(),
            workflow: self.plan.name.as_str(),
            version: s.version,
            r#try: s.try_number,
            created_at: s.created_at.to_string(),
            tags: &s.tags,
            priority: s.priority,
        };
        // Maps of strings and numbers always serialise.
        serde_json::to_vec(&run).map_or(payload::NULL, Bytes::from)
    }
}

/// A value made by a template.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Value {
    json: Bytes,
    /// Where it already stands, if the template is one plain path: then it is not stored again.
    reference: Option<Payload>,
}

impl Value {
    const NULL: Self = Self { json: payload::NULL, reference: None };

    /// Where it is to stand: inside the record, as a reference, or as a field of its own.
    pub(super) fn into_payload(
        self,
        field: impl FnOnce() -> Field,
        written: &mut Vec<(Field, Bytes)>,
    ) -> Payload {
        match self.reference {
            Some(reference) if self.json.len() > INLINE_MAX => reference,
            Some(_) | None => keep(self.json, field, written),
        }
    }
}

/// What a look at a task comes to, if nothing is wrong with it.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Look {
    /// It runs, with this input.
    Run(Value),
    /// Its `if` is false.
    Skip,
}

/// Evaluates a task's `if`, then its input.
pub(super) fn look(task: &TaskPlan, facts: &Facts<'_>) -> Result<Look, Words> {
    if let Some(condition) = &task.condition {
        let what = format!("tasks.{}.if", task.id);
        let json = condition.render(facts, &what).map_err(|e| Words::new(e.code, e.message))?;
        if !truth(&json, &what)? {
            return Ok(Look::Skip);
        }
    }
    let Some(input) = &task.input else { return Ok(Look::Run(Value::NULL)) };
    let what = || format!("tasks.{}.input", task.id);
    Ok(Look::Run(value(input, facts, what, "input_too_large")?))
}

/// The run's output.
pub(super) fn output(template: Option<&Template>, facts: &Facts<'_>) -> Result<Value, Words> {
    template.map_or(Ok(Value::NULL), |t| value(t, facts, || "output".to_owned(), "output_too_large"))
}

fn value(
    template: &Template,
    facts: &Facts<'_>,
    what: impl Fn() -> String,
    too_large: &str,
) -> Result<Value, Words> {
    // The usual case, without a copy: one plain path that leads somewhere.
    if let Some((root, steps)) = template.as_path()
        && let Some(json) = facts.at(&root).and_then(|whole| payload::walk(whole, steps))
    {
        return Ok(Value { json, reference: reference(facts.state, &root, steps) });
    }
    let what = what();
    let json = template.render(facts, &what).map_err(|e| Words::new(e.code, e.message))?;
    if json.len() > PAYLOAD_MAX {
        return Err(oversize(&what, too_large, json.len()));
    }
    Ok(Value { json, reference: None })
}

/// The words for a value over the limit.
pub(super) fn oversize(what: &str, code: &str, size: usize) -> Words {
    Words::new(code, format!("{what} is {size} bytes; the limit is {PAYLOAD_MAX}"))
}

/// A plain path as a reference into a stored payload.
fn reference(state: &RunState, root: &Root, steps: &[String]) -> Option<Payload> {
    let base = payload_of(state, root)?;
    match base {
        Payload::Stored { .. } if steps.is_empty() => Some(base.clone()),
        Payload::Stored { .. } => Some(Payload::Path { base: Box::new(base.clone()), steps: steps.to_vec() }),
        Payload::Null | Payload::Inline(_) | Payload::Path { .. } => None,
    }
}

/// Whether a condition holds: only the booleans are taken.
fn truth(json: &[u8], what: &str) -> Result<bool, Words> {
    match json.trim_ascii() {
        b"true" => Ok(true),
        b"false" => Ok(false),
        other => {
            let text = String::from_utf8_lossy(other);
            let text = clip(&text, 64);
            let message = format!("{what} must be true or false; it came to {} {text}", type_of(other));
            Err(Words::new("condition_not_boolean", message))
        }
    }
}

/// What a JSON text is, for people.
fn type_of(json: &[u8]) -> &'static str {
    match json.first() {
        Some(b'"') => "the text",
        Some(b'[') => "the list",
        Some(b'{') => "the object",
        Some(b'n') => "the value",
        _ => "the number",
    }
}

#[cfg(test)]
mod tests;
