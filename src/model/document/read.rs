//! A document as a whole: its keys, its tasks, and what they come to.

use super::Document;
use super::canonical::{self, Model};
use super::fields::{Faults, Fields, text};
use super::graph::Graph;
use super::load::{MAX_BYTES, whole};
use super::node::{Entry, Kind, Node, duplicate_keys, join, shown};
use super::task::Draft;
use crate::model::error::Fault;
use crate::model::expr::{InputSchema, Template};
use crate::model::ids::{TaskId, WorkflowName};
use crate::model::plan::{Plan, Role, TaskKind, TaskPlan};
use crate::model::time::Span;
use std::collections::{BTreeMap, BTreeSet};

const KEYS: [&str; 10] = [
    "name",
    "description",
    "input",
    "tasks",
    "output",
    "timeout",
    "fail_fast",
    "tags",
    "priority",
    "retention",
];

/// Most tasks of a document, for now: wide runs need their own form of record.
pub(super) const MAX_TASKS: usize = 1_000;
/// How long a finished run is kept unless the document says otherwise.
pub(super) const DEFAULT_RETENTION: Span = Span::secs(7 * 86_400);
/// Most tags of a document.
const MAX_TAGS: usize = 64;
/// Longest key and longest value of a tag, in bytes.
const MAX_TAG: usize = 256;

/// Validates a document. `Err` is never empty.
pub(super) fn document(root: &Node) -> Result<Document, Vec<Fault>> {
    let mut faults = Faults::default();
    duplicate_keys(root, "", &mut faults.0);
    match (read(root, &mut faults), faults.0) {
        (Some(document), faults) if faults.is_empty() => Ok(document),
        (_, faults) if faults.is_empty() => Err(vec![whole("the document is not valid".to_owned())]),
        (_, faults) => Err(faults),
    }
}

fn read(root: &Node, faults: &mut Faults) -> Option<Document> {
    if root.kind == Kind::Null {
        faults.add("", None, "the document is empty");
        return None;
    }
    let fields = Fields::of(root, "", &KEYS, &["finally"], faults)?;
    let name = name(&fields, faults);
    let input_schema = fields.get("input").and_then(|node| schema(node, faults));
    let timeout = fields.limit("timeout", faults);
    let fail_fast = fields.boolean("fail_fast", faults).unwrap_or(false);
    let tags = fields.get("tags").map(|node| tags(node, faults)).unwrap_or_default();
    let priority = fields.integer("priority", -100..=100, faults).unwrap_or(0) as i32;
    let retention = fields.duration("retention", faults).unwrap_or(DEFAULT_RETENTION);
    let description = fields.text("description", faults);
    let drafts = drafts(fields.get("tasks"), faults)?;
    let graph = Graph::of(&drafts, faults);

    let mut templates = Vec::with_capacity(drafts.len());
    for (task, draft) in (0..).zip(&drafts) {
        let seen = graph.seen_by(task);
        let mut compile = |node: Option<&Node>, key: &str| {
            node.map(|node| Template::compile(node, &join(&draft.path, key), &seen, &mut faults.0))
        };
        templates.push((compile(draft.condition, "if"), compile(draft.input, "input")));
    }
    let output_node = fields.get("output");
    let output =
        output_node.map(|node| Template::compile(node, "output", &graph.seen_by_all(), &mut faults.0));
    if !faults.0.is_empty() {
        return None;
    }

    let model = Model {
        name: name.as_ref()?.as_str(),
        description,
        input: fields.get("input"),
        output: output_node,
        timeout,
        fail_fast,
        tags: &tags,
        priority,
        retention,
        tasks: &drafts,
        needs: &graph.needs,
    };
    let canonical = canonical::write(&model);
    if canonical.len() > MAX_BYTES {
        let message = format!(
            "as JSON, the document comes to {} bytes; the limit is {MAX_BYTES} (1 MiB)",
            canonical.len()
        );
        faults.add("", None, message);
        return None;
    }
    let Graph { needs, dependents, .. } = graph;
    let mut tasks = Vec::with_capacity(drafts.len());
    for (((draft, (condition, input)), needs), dependents) in
        drafts.into_iter().zip(templates).zip(needs).zip(dependents)
    {
        tasks.push(TaskPlan {
            id: draft.id,
            role: Role::Task,
            parent: None,
            for_each: None,
            repeat: None,
            compensate: None,
            kind: TaskKind::Worker(draft.task_type?),
            needs,
            dependents,
            when: draft.when,
            condition,
            input,
            retry: draft.retry,
            timeout: draft.timeout,
            continue_on_error: draft.continue_on_error,
            priority: draft.priority,
            description: draft.description.map(str::to_owned),
        });
    }
    let name = name?;
    let plan = Plan {
        name: name.clone(),
        description: description.map(str::to_owned),
        body: 0..tasks.len() as u32,
        finally: None,
        tasks,
        output,
        timeout,
        fail_fast,
        input_schema,
        tags,
        priority,
        retention,
    };
    Some(Document { name, canonical: canonical.into(), plan })
}

fn name(fields: &Fields<'_>, faults: &mut Faults) -> Option<WorkflowName> {
    let Some(node) = fields.get("name") else {
        faults.add("name", None, "the document has no name; 'name' is required");
        return None;
    };
    match WorkflowName::new(fields.text("name", faults)?) {
        Ok(name) => Some(name),
        Err(e) => {
            faults.add(
                "name",
                node.at(),
                format!("the workflow name {} is not valid: {}", shown(&e.got), e.rule),
            );
            None
        }
    }
}

fn schema(node: &Node, faults: &mut Faults) -> Option<InputSchema> {
    let mut json = Vec::new();
    node.write_json(&mut json);
    match InputSchema::compile(&json) {
        Ok(schema) => Some(schema),
        Err(message) => {
            faults.add("input", node.at(), message);
            None
        }
    }
}

fn tags(node: &Node, faults: &mut Faults) -> BTreeMap<String, String> {
    let Kind::Map(entries) = &node.kind else {
        faults.wrong("tags", node, "a map of text to text");
        return BTreeMap::new();
    };
    if entries.len() > MAX_TAGS {
        faults.add("tags", node.at(), format!("there are {} tags; the limit is {MAX_TAGS}", entries.len()));
    }
    let mut tags = BTreeMap::new();
    for entry in entries {
        let path = join("tags", &entry.key);
        let Some(value) = text(&entry.value, &path, faults) else { continue };
        if entry.key.is_empty() || entry.key.len() > MAX_TAG || value.len() > MAX_TAG {
            let message = format!("a tag has a key of 1 to {MAX_TAG} bytes and a value of at most {MAX_TAG}");
            faults.add(&path, entry.value.at(), message);
        }
        tags.entry(entry.key.clone()).or_insert_with(|| value.to_owned());
    }
    tags
}

/// The tasks, in the order of the text; at least one. `[]`, `{}`, `null` and no key at all are one and the same.
fn drafts<'n>(node: Option<&'n Node>, faults: &mut Faults) -> Option<Vec<Draft<'n>>> {
    let none = "a workflow has at least one task";
    let entries: &[Entry] = match node.map(|n| &n.kind) {
        None | Some(Kind::Null) => &[],
        Some(Kind::List(items)) if items.is_empty() => &[],
        Some(Kind::Map(entries)) => entries,
        Some(_) => {
            if let Some(node) = node {
                faults.wrong("tasks", node, "a map from task id to task");
            }
            return None;
        }
    };
    let line = node.and_then(Node::at);
    if entries.is_empty() {
        faults.add("tasks", line, none);
        return None;
    }
    if entries.len() > MAX_TASKS {
        faults.add(
            "tasks",
            line,
            format!("there are {} tasks; the limit is {MAX_TASKS} for now", entries.len()),
        );
        return None;
    }
    let mut drafts = Vec::with_capacity(entries.len());
    let mut seen = BTreeSet::new();
    for entry in entries {
        let path = join("tasks", &entry.key);
        let id = match TaskId::new(&entry.key) {
            Ok(id) => id,
            Err(e) => {
                let message = format!("the task id {} is not valid: {}", shown(&e.got), e.rule);
                faults.add(&path, Some(entry.line).filter(|l| *l > 0), message);
                continue;
            }
        };
        // A second task of that id has been told already.
        if seen.insert(id.clone()) {
            drafts.extend(Draft::read(id, &entry.value, &path, faults));
        }
    }
    Some(drafts)
}
