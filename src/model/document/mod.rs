//! The workflow document: YAML or JSON text to a validated [`Plan`], all faults in one answer.
//!
//! ```text
//! text → load (json, yaml) → Node → read ─→ tree ──→ graph ──→ build ──→ Plan
//!                                    │   (task,   (needs,   (templates,
//!                                    │   kind,    circles)  by names: what
//!                                    │   policy)            each place sees)
//!                                    └→ canonical JSON
//! keys         every key of a document, and what it goes with
//! schema.json  the same for editors, held against keys and parser by tests
//! ```
//!
//! Invariants
//! - A document that has any fault gives no plan; every fault has a path and, for YAML, a line.
//! - Equal documents have equal canonical bytes: the order of keys, the format, comments, ways to write a duration
//!   and defaults that are spelled out do not count; the order of tasks and the digits of numbers in data do.
//!   The canonical text is itself a document with the same canonical text.
//! - The canonical text of a document never changes, whatever constructs are added: stores hold it.
//! - `null` is data in `input` and `output` and nowhere else: a key without a value is a fault.
//! - Nothing costs more than the size of the text times a small number, but for the bits of who is upstream of whom.
//!
//! To add a key: name it in `keys` and `schema.json`, read it in `task` (or `kind`, `policy`, `read`), write it in
//! `canonical` if it differs from its default, give it to the plan in `build`, and put it into `tests/every.yaml`.

mod build;
mod canonical;
mod fields;
mod graph;
mod keys;
mod kind;
mod load;
mod names;
mod node;
mod policy;
mod read;
mod task;
#[cfg(test)]
pub(crate) mod tests;
mod tree;
mod yaml;

pub(crate) use fields::{Faults, Fields, text};
pub(crate) use load::load as tree;
pub(crate) use node::{Kind, Node, duplicate_keys, join, shown, sorted};

use super::error::Fault;
use super::expr::on_deep_stack;
use super::ids::WorkflowName;
use super::json;
use super::plan::Plan;
use bytes::Bytes;
use std::borrow::Cow;

/// Most faults told at once.
const MAX_FAULTS: usize = 1_000;

/// The form of a document's text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// YAML 1.2 core.
    Yaml,
    /// JSON.
    Json,
}

/// A validated document.
#[derive(Debug)]
pub struct Document {
    /// Its name.
    pub name: WorkflowName,
    /// The parsed model as canonical JSON: equal documents have equal bytes. This is what is stored.
    pub canonical: Bytes,
    /// Ready to run.
    pub plan: Plan,
}

/// Parses and validates. `Err` holds every fault found, sorted by line, then path; it is never empty.
///
/// The text is at most 1 MiB of UTF-8, with or without a byte order mark.
pub fn parse(text: &[u8], format: Format) -> Result<Document, Vec<Fault>> {
    read_tree(|| load::load(text, format).map(Cow::Owned))
}

/// As [`parse`], of a document that stands inside another text.
pub(crate) fn parse_tree(root: &Node) -> Result<Document, Vec<Fault>> {
    read_tree(|| Ok(Cow::Borrowed(root)))
}

/// Any text of these forms as JSON text.
///
/// # Errors
/// The fault that makes it none.
pub fn load_json(text: &[u8], format: Format) -> Result<Vec<u8>, Fault> {
    let root = load::load(text, format)?;
    let mut json = Vec::new();
    root.write_json(&mut json);
    Ok(json)
}

fn read_tree<'n>(root: impl FnOnce() -> Result<Cow<'n, Node>, Fault> + Send) -> Result<Document, Vec<Fault>> {
    let result = on_deep_stack(|| {
        let root = root().map_err(|fault| vec![fault])?;
        read::document(&root)
    });
    let faults = match result {
        Some(Ok(document)) => return Ok(document),
        Some(Err(faults)) => faults,
        None => {
            vec![load::whole("the document could not be compiled; this is no fault of its own".to_owned())]
        }
    };
    Err(in_order(faults))
}

/// The JSON Schema (2020-12) of documents, for editors and for who writes documents by program.
pub fn json_schema() -> &'static str {
    include_str!("schema.json")
}

/// Compiles a canonical document that was stored before (same checks; faults mean a newer writer).
pub fn compile(canonical: &[u8]) -> Result<Plan, Vec<Fault>> {
    parse(canonical, Format::Json).map(|d| Plan { digest: digest(canonical), ..d.plan })
}

/// What names a stored text; never 0.
fn digest(canonical: &[u8]) -> u32 {
    let [a, b, c, d, ..] = json::digest(&[canonical]);
    u32::from_be_bytes([a, b, c, d]).max(1)
}

fn in_order(mut faults: Vec<Fault>) -> Vec<Fault> {
    faults.sort_by(|a, b| (a.line, &a.path, &a.message).cmp(&(b.line, &b.path, &b.message)));
    faults.dedup();
    if faults.len() > MAX_FAULTS {
        let more = faults.len() - MAX_FAULTS;
        faults.truncate(MAX_FAULTS);
        faults.push(load::whole(format!("there are {more} more faults")));
    }
    faults
}

/// The tree of a JSON text.
#[cfg(test)]
pub(crate) fn test_node(json: &str) -> Node {
    load::load(json.as_bytes(), Format::Json).unwrap()
}
