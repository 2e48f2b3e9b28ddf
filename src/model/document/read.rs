//! A document as a whole: its keys, its tasks, and what they come to.

use super::Document;
use super::build::Compiler;
use super::canonical::{self, Model};
use super::fields::{Faults, Fields, text};
use super::graph::{Graph, Hints};
use super::keys;
use super::load::{MAX_BYTES, whole};
use super::names::Spot;
use super::node::{Kind, Node, duplicate_keys, join, shown};
use super::tree::Tree;
use crate::model::error::Fault;
use crate::model::expr::InputSchema;
use crate::model::ids::WorkflowName;
use crate::model::plan::{Plan, TaskPlan};
use crate::model::time::Span;
use std::collections::BTreeMap;

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
    let fields = Fields::of(root, "", &keys::DOCUMENT, faults)?;
    let name = name(&fields, faults);
    let input_schema = fields.get("input").and_then(|node| schema(node, faults));
    let timeout = fields.limit("timeout", faults);
    let fail_fast = fields.boolean("fail_fast", faults).unwrap_or(false);
    let tags = fields.get("tags").map(|node| tags(node, faults)).unwrap_or_default();
    let priority = fields.integer("priority", -100..=100, faults).unwrap_or(0) as i32;
    let retention = fields.duration("retention", faults).unwrap_or(DEFAULT_RETENTION);
    let description = fields.text("description", faults);
    let tree = Tree::read(fields.get("tasks"), fields.get("finally"), faults)?;
    let hints = Hints::default();
    let graph = Graph::of(&tree, &hints, faults);

    let mut compiler = Compiler { tree: &tree, graph: &graph, hints: &hints, faults };
    // All of them, for their faults.
    let tasks: Vec<Option<TaskPlan>> =
        (0..tree.drafts.len() as u32).map(|task| compiler.task(task)).collect();
    let output_node = fields.get("output");
    let output = output_node.map(|node| compiler.template(node, "output", Spot::Run));
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
        tree: &tree,
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
    let name = name?;
    let plan = Plan {
        name: name.clone(),
        digest: 0,
        description: description.map(str::to_owned),
        tasks: tasks.into_iter().collect::<Option<_>>()?,
        body: tree.body.clone(),
        finally: tree.finally,
        output,
        timeout,
        fail_fast,
        input_schema,
        tags,
        priority,
        retention,
        index: crate::model::plan::Index::default(),
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
