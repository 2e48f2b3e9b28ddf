//! One task of a document, read as far as it stands alone.

use super::fields::{Faults, Fields};
use super::keys;
use super::kind::{self, Does};
use super::node::{Kind, Node};
use super::policy::{self, Items, Iterations, Rated, Shared};
use crate::model::ids::TaskId;
use crate::model::labels::Labels;
use crate::model::plan::{RetryPolicy, Role, Timeouts, When};

/// A task before its names are resolved and its expressions compiled.
#[derive(Debug)]
pub(super) struct Draft<'n> {
    pub(super) id: TaskId,
    pub(super) role: Role,
    pub(super) path: String,
    /// As in the plan.
    pub(super) parent: Option<u32>,
    /// Groups around it, and itself.
    pub(super) level: u32,
    pub(super) does: Option<Does<'n>>,
    /// As written, with the node of each.
    pub(super) needs: Vec<(&'n str, &'n Node)>,
    pub(super) when: When,
    pub(super) condition: Option<&'n Node>,
    pub(super) input: Option<&'n Node>,
    pub(super) for_each: Option<Items<'n>>,
    pub(super) repeat: Option<Iterations<'n>>,
    pub(super) retry: RetryPolicy,
    pub(super) timeout: Timeouts,
    pub(super) concurrency: Option<Shared<'n>>,
    pub(super) rate: Option<Rated<'n>>,
    pub(super) continue_on_error: bool,
    /// As written.
    pub(super) undo: Option<&'n Node>,
    /// Known once the tree is laid out.
    pub(super) compensate: Option<u32>,
    pub(super) priority: i32,
    pub(super) labels: Labels,
    pub(super) description: Option<&'n str>,
}

impl<'n> Draft<'n> {
    /// A task of which nothing is said.
    pub(super) fn bare(id: TaskId, role: Role, path: String, parent: Option<u32>, level: u32) -> Self {
        Self {
            id,
            role,
            path,
            parent,
            level,
            does: None,
            needs: Vec::new(),
            when: When::default(),
            condition: None,
            input: None,
            for_each: None,
            repeat: None,
            retry: RetryPolicy::default(),
            timeout: Timeouts::default(),
            concurrency: None,
            rate: None,
            continue_on_error: false,
            undo: None,
            compensate: None,
            priority: 0,
            labels: Labels::NONE,
            description: None,
        }
    }

    /// Reads `node` into it.
    pub(super) fn read(mut self, node: &'n Node, faults: &mut Faults) -> Option<Self> {
        let path = self.path.clone();
        if !matches!(node.kind, Kind::Map(_)) {
            faults.wrong(&path, node, "a map that says what the task does, such as { type: … }");
            return None;
        }
        let fields = Fields::of(node, &path, &keys::task(), faults)?;
        let kind = kind::of(&fields, node, &path, faults);
        if let Some(kind) = kind {
            self.does = kind::read(&fields, kind, faults);
            refuse_others(&fields, kind, faults);
        }
        self.needs = fields.texts("needs", faults);
        self.when = policy::when(&fields, faults);
        self.condition = policy::condition(&fields, "if", faults);
        self.input = fields.get("input");
        self.for_each = policy::for_each(&fields, faults);
        self.repeat = policy::repeat(&fields, faults);
        self.retry = match kind {
            None | Some("type" | "workflow") => policy::retry(&fields, faults),
            Some(_) => RetryPolicy { max_attempts: 1, ..RetryPolicy::default() },
        };
        self.timeout = policy::timeout(&fields, matches!(kind, None | Some("type")), faults);
        self.concurrency = policy::concurrency(&fields, faults);
        self.rate = policy::rate(&fields, faults);
        self.continue_on_error = policy::continue_on_error(&fields, faults);
        self.undo = fields.get("compensate");
        self.priority = fields.integer("priority", -100..=100, faults).unwrap_or(0) as i32;
        self.labels = policy::labels(&fields, faults);
        self.description = fields.text("description", faults);
        Some(self)
    }

    /// Reads what undoes a task: a worker does it, and nothing waits for it.
    pub(super) fn read_undo(mut self, node: &'n Node, faults: &mut Faults) -> Option<Self> {
        let path = self.path.clone();
        let fields = Fields::of(node, &path, &keys::COMPENSATE, faults)?;
        match fields.get("type") {
            Some(node) => self.does = kind::worker(node, &fields.path("type"), faults),
            None => faults.add(&path, node.at(), "'type' is required: the task type that undoes the task"),
        }
        self.input = fields.get("input");
        self.retry = policy::retry(&fields, faults);
        self.timeout = policy::timeout(&fields, true, faults);
        self.labels = policy::labels(&fields, faults);
        Some(self)
    }
}

/// Complains of keys that do not go with the kind.
fn refuse_others(fields: &Fields<'_>, kind: &str, faults: &mut Faults) {
    for (key, kinds) in keys::SOME {
        if let Some(node) = fields.get(key).filter(|_| !kinds.contains(&kind)) {
            let message = format!("'{key}' does not go with '{kind}'; it goes with {}", kinds.join(", "));
            faults.add(&fields.path(key), node.at(), message);
        }
    }
    if kind == "finish" {
        for key in ["for_each", "repeat"] {
            if let Some(node) = fields.get(key) {
                let message = format!(
                    "'{key}' does not go with 'finish', which ends the run the first time it is reached"
                );
                faults.add(&fields.path(key), node.at(), message);
            }
        }
    }
}
