//! What expressions see of a run, and what templates become.

use super::Payloads;
use super::begin::chunk_field;
use super::bodies::item_around;
use super::graph::Cascade;
use super::limits::ITEMS_PER_CHUNK;
use super::payload::{self, keep};
use super::step::{Step, Words, Work, clip};
use crate::model::expr::{LoopFacts, Root, Scope, TaskFacts, Template};
use crate::model::outbox::Origin;
use crate::model::payload::{Field, INLINE_MAX, PAYLOAD_MAX, Payload};
use crate::model::plan::Plan;
use crate::model::run::{BlockKind, RunState, TaskPhase, Waiting};
use crate::model::schedule::ScheduleName;
use bytes::Bytes;
use std::collections::BTreeSet;

/// Where in a run an expression stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct View {
    node: Option<u32>,
    place: Place,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// At the node, which sees what is around it.
    At,
    /// In the group that the node is: it sees its tasks.
    Inside,
    /// Behind an iteration of the loop that the node is.
    After,
}

impl View {
    /// Of the run as a whole.
    pub(super) const RUN: Self = Self { node: None, place: Place::At };

    /// Of a node.
    pub(super) fn of(node: u32) -> Self {
        Self { node: Some(node), place: Place::At }
    }

    /// Of a group that sees its tasks.
    pub(super) fn inside(node: u32) -> Self {
        Self { node: Some(node), place: Place::Inside }
    }

    /// Of a loop between two iterations.
    pub(super) fn after(node: u32) -> Self {
        Self { node: Some(node), place: Place::After }
    }

    /// The node that stands for a task of the plan here; none if it is not laid out.
    fn seen(self, plan: &Plan, state: &RunState, wanted: u32) -> Option<u32> {
        let mut at = self.node;
        if let (Some(node), Place::Inside) = (at, self.place)
            && let Some((_, block)) = state.last_block(Some(node), |k| k == BlockKind::Body)
            && (block.plan..block.plan + block.len).contains(&wanted)
        {
            return Some(block.first + (wanted - block.plan));
        }
        while let Some(node) = at {
            if state.plan_index(node) == wanted {
                return Some(node); // A compensation looks at what it undoes.
            }
            let Some(block) = state.block_of(node) else { break };
            if block.kind == BlockKind::Body && (block.plan..block.plan + block.len).contains(&wanted) {
                return Some(block.first + (wanted - block.plan));
            }
            at = block.owner;
        }
        plan.body.contains(&wanted).then_some(wanted)
    }

    /// The loop around, with the number of the iteration.
    fn iteration(self, state: &RunState) -> Option<(u32, u32)> {
        let mut node = self.node?;
        if self.place == Place::After {
            return match &state.tasks.get(node as usize)?.phase {
                TaskPhase::Waiting(Waiting::Iterations { index, .. }) => Some((node, *index)),
                _ => None,
            };
        }
        loop {
            let block = state.block_of(node)?;
            let owner = block.owner?;
            if let BlockKind::Iteration(n) = block.kind {
                return Some((owner, n));
            }
            node = owner;
        }
    }

    /// The payload that a root stands for; none for roots without one.
    fn payload(self, plan: &Plan, state: &RunState, root: &Root) -> Option<Payload> {
        match root {
            Root::Input => Some(state.input.clone()),
            Root::Output(i) => completed(state, self.seen(plan, state, *i)?).cloned(),
            Root::Item => {
                let (map, item) = item_around(state, self.node?)?;
                Some(item_of(&state.tasks.get(map as usize)?.input, item))
            }
            Root::LoopOutput => {
                let (owner, n) = self.iteration(state)?;
                let (_, block) = state.last_block(Some(owner), |k| k == BlockKind::Iteration(n))?;
                completed(state, block.first).cloned()
            }
            Root::LoopPrevious => {
                let (owner, _) = self.iteration(state)?;
                match &state.tasks.get(owner as usize)?.phase {
                    TaskPhase::Waiting(Waiting::Iterations { previous, .. }) => Some(previous.clone()),
                    _ => None,
                }
            }
            Root::Facts(_) | Root::Run | Root::Index | Root::LoopIndex => None,
        }
    }
}

fn completed(state: &RunState, node: u32) -> Option<&Payload> {
    match &state.tasks.get(node as usize)?.phase {
        TaskPhase::Completed { output } => Some(output),
        TaskPhase::Pending { .. }
        | TaskPhase::Queued { .. }
        | TaskPhase::Running { .. }
        | TaskPhase::Retrying { .. }
        | TaskPhase::Waiting(_)
        | TaskPhase::Failed { .. }
        | TaskPhase::Skipped { .. }
        | TaskPhase::Cancelled
        | TaskPhase::TimedOut { .. } => None,
    }
}

/// An item of a list as it is kept: inside the record, or in chunks.
fn item_of(list: &Payload, item: u32) -> Payload {
    let (base, step) = match list {
        Payload::Stored { field, .. } => {
            let field = chunk_field(field, item / ITEMS_PER_CHUNK);
            (Payload::Stored { field, size: 0 }, item % ITEMS_PER_CHUNK)
        }
        Payload::Null | Payload::Inline(_) | Payload::Path { .. } => (list.clone(), item),
    };
    Payload::Path { base: Box::new(base), steps: vec![step.to_string()] }
}

/// A run as expressions see it: with all payloads at hand that the templates in question read.
pub(super) struct Facts<'a> {
    plan: &'a Plan,
    state: &'a RunState,
    view: View,
    /// Payloads that are read, by root; few, so a list.
    found: Vec<(Root, Bytes)>,
}

impl<'a> Facts<'a> {
    /// What `template` reads; every field that is not at hand, if there is one.
    pub(super) fn gather(
        plan: &'a Plan,
        state: &'a RunState,
        written: &[(Field, Bytes)],
        source: &dyn Payloads,
        view: View,
        template: &Template,
    ) -> Result<Self, BTreeSet<Field>> {
        let mut facts = Self { plan, state, view, found: Vec::new() };
        let mut missing = BTreeSet::new();
        for root in template.roots() {
            let Some(payload) = view.payload(plan, state, root) else { continue };
            match payload::resolve(&payload, written, source) {
                Ok(json) => facts.found.push((root.clone(), json)),
                Err(field) => {
                    missing.insert(field);
                }
            }
        }
        if missing.is_empty() { Ok(facts) } else { Err(missing) }
    }

    /// The payload behind a root, if it was gathered.
    fn at(&self, root: &Root) -> Option<&Bytes> {
        self.found.iter().find(|(r, _)| r == root).map(|(_, json)| json)
    }

    fn or_null(&self, root: &Root) -> &[u8] {
        self.at(root).map_or(&b"null"[..], |json| json)
    }
}

impl Scope for Facts<'_> {
    fn input(&self) -> &[u8] {
        self.or_null(&Root::Input)
    }

    fn item(&self) -> (&[u8], u32) {
        let around = self.view.node.and_then(|node| item_around(self.state, node));
        (self.or_null(&Root::Item), around.map_or(0, |(_, n)| n))
    }

    fn iteration(&self) -> LoopFacts<'_> {
        LoopFacts {
            index: self.view.iteration(self.state).map_or(0, |(_, n)| n),
            output: self.or_null(&Root::LoopOutput),
            previous: self.or_null(&Root::LoopPrevious),
        }
    }

    fn task(&self, index: u32) -> TaskFacts<'_> {
        let node = self.view.seen(self.plan, self.state, index);
        let Some(task) = node.and_then(|n| self.state.tasks.get(n as usize)) else {
            return TaskFacts { status: "pending", output: b"null", error: None };
        };
        let output = self.or_null(&Root::Output(index));
        let error = match task.phase {
            TaskPhase::Failed { failure } | TaskPhase::TimedOut { failure } => {
                self.state.failures.get(failure as usize).map(|f| (f.code.as_str(), f.message.as_str()))
            }
            TaskPhase::Pending { .. }
            | TaskPhase::Queued { .. }
            | TaskPhase::Running { .. }
            | TaskPhase::Retrying { .. }
            | TaskPhase::Waiting(_)
            | TaskPhase::Completed { .. }
            | TaskPhase::Skipped { .. }
            | TaskPhase::Cancelled => None,
        };
        TaskFacts { status: task.phase.name(), output, error }
    }

    fn run(&self) -> Bytes {
        #[derive(serde::Serialize)]
        struct Error<'a> {
            code: &'a str,
            message: &'a str,
        }
        #[derive(serde::Serialize)]
        struct Slot<'a> {
            name: &'a str,
            slot: String,
        }
        #[derive(serde::Serialize)]
        struct Run<'a> {
            id: &'a str,
            workflow: &'a str,
            version: u32,
            r#try: u32,
            created_at: String,
            tags: &'a std::collections::BTreeMap<String, String>,
            priority: i32,
            schedule: Option<Slot<'a>>,
            status: &'a str,
            error: Option<Error<'a>>,
        }
        let s = self.state;
        let error = s.error.and_then(|e| s.failures.get(e as usize));
        let slot = match &s.origin {
            Some(Origin::Schedule { home, slot }) => ScheduleName::of_home(home).map(|name| (name, slot)),
            Some(Origin::Parent(_)) | None => None,
        };
        let run = Run {
            id: s.id.as_str(),
            workflow: self.plan.name.as_str(),
            version: s.version,
            r#try: s.try_number,
            created_at: s.created_at.to_string(),
            tags: &s.tags,
            priority: s.priority,
            schedule: slot.as_ref().map(|(name, slot)| Slot { name: name.as_str(), slot: slot.to_string() }),
            status: s.ending.map_or(s.status, |e| e.status).name(),
            error: error.map(|f| Error { code: &f.code, message: &f.message }),
        };
        // Maps of strings and numbers always serialise.
        serde_json::to_vec(&run).map_or(payload::NULL, Bytes::from)
    }
}

/// Why a template gave no value.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Halt {
    /// These payloads have to be at hand first.
    Missing(BTreeSet<Field>),
    /// It cannot.
    Words(Words),
}

impl From<Words> for Halt {
    fn from(words: Words) -> Self {
        Self::Words(words)
    }
}

impl Halt {
    /// The words; none if payloads are missing, which are noted.
    pub(super) fn words(self, cascade: &mut Cascade) -> Option<Words> {
        match self {
            Self::Words(words) => Some(words),
            Self::Missing(fields) => {
                cascade.missing.extend(fields);
                None
            }
        }
    }
}

impl Step<'_> {
    /// What a template comes to; none is null. `what` names the place in messages, `too_large` the code for a value
    /// over the limit.
    pub(super) fn evaluate(
        &self,
        view: View,
        template: Option<&Template>,
        what: impl Fn() -> String,
        too_large: &str,
    ) -> Result<Value, Halt> {
        let Some(template) = template else { return Ok(Value::of(payload::NULL)) };
        let Work { state, written, computed, .. } = &*self.work;
        computed.set(computed.get().saturating_add(template.computed()));
        let facts =
            Facts::gather(self.plan, state, written, self.payloads, view, template).map_err(Halt::Missing)?;
        value(template, &facts, what, too_large).map_err(Halt::Words)
    }
}

/// A value made by a template.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Value {
    /// JSON text.
    pub(super) json: Bytes,
    /// Where it already stands, if the template is one plain path: then it is not stored again.
    reference: Option<Payload>,
}

impl Value {
    /// A value that stands nowhere yet.
    pub(super) fn of(json: Bytes) -> Self {
        Self { json, reference: None }
    }

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
        return Ok(Value { json, reference: reference(facts, &root, steps) });
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
fn reference(facts: &Facts<'_>, root: &Root, steps: &[String]) -> Option<Payload> {
    match facts.view.payload(facts.plan, facts.state, root)? {
        stored @ Payload::Stored { .. } if steps.is_empty() => Some(stored),
        stored @ Payload::Stored { .. } => {
            Some(Payload::Path { base: Box::new(stored), steps: steps.to_vec() })
        }
        Payload::Path { base, steps: before } => {
            Some(Payload::Path { base, steps: before.into_iter().chain(steps.iter().cloned()).collect() })
        }
        Payload::Null | Payload::Inline(_) => None,
    }
}

/// Whether a condition holds: only the booleans are taken.
pub(super) fn truth(json: &[u8], what: &str) -> Result<bool, Words> {
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
pub(super) fn type_of(json: &[u8]) -> &'static str {
    match json.first() {
        Some(b'"') => "the text",
        Some(b'[') => "the list",
        Some(b'{') => "the object",
        Some(b'n') => "the value",
        Some(b't' | b'f') => "the boolean",
        _ => "the number",
    }
}

#[cfg(test)]
mod tests;
