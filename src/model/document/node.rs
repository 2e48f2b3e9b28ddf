//! The tree both formats are read into: values with the line they stand on, numbers kept as text.

use crate::model::error::Fault;
use crate::model::json;
use std::collections::HashSet;

/// Deepest nesting of a document: two maps for each of 16 levels of tasks, four more around and inside (the document,
/// `finally`, its `tasks`, `compensate`), and a JSON value below.
pub(crate) const MAX_DEPTH: usize = 2 * 16 + 4 + json::MAX_DEPTH;

/// A value in a document.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Node {
    /// Line in the text, from 1; 0 where the format has no lines to speak of.
    pub(crate) line: u32,
    /// What it is.
    pub(crate) kind: Kind,
}

/// What a value is.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Kind {
    Null,
    Bool(bool),
    /// A valid JSON number token; where the text had one, that very token.
    Number(String),
    String(String),
    List(Vec<Node>),
    /// In the order of the text; a key may come twice until [`duplicate_keys`] has complained.
    Map(Vec<Entry>),
}

/// A key with its value.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Entry {
    pub(crate) key: String,
    pub(crate) line: u32,
    pub(crate) value: Node,
}

impl Node {
    /// Where it stands, as faults say it.
    pub(crate) fn at(&self) -> Option<u32> {
        line(self.line)
    }

    /// What it is, for messages.
    pub(crate) fn type_name(&self) -> &'static str {
        match self.kind {
            Kind::Null => "null",
            Kind::Bool(_) => "a boolean",
            Kind::Number(_) => "a number",
            Kind::String(_) => "text",
            Kind::List(_) => "a list",
            Kind::Map(_) => "a map",
        }
    }

    /// Appends the value as JSON text with sorted keys, without white space.
    pub(crate) fn write_json(&self, out: &mut Vec<u8>) {
        match &self.kind {
            Kind::Null => out.extend_from_slice(b"null"),
            Kind::Bool(true) => out.extend_from_slice(b"true"),
            Kind::Bool(false) => out.extend_from_slice(b"false"),
            Kind::Number(token) => out.extend_from_slice(token.as_bytes()),
            Kind::String(text) => json::write_string(text, out),
            Kind::List(items) => {
                out.push(b'[');
                for (n, item) in items.iter().enumerate() {
                    if n > 0 {
                        out.push(b',');
                    }
                    item.write_json(out);
                }
                out.push(b']');
            }
            Kind::Map(entries) => {
                out.push(b'{');
                for (n, entry) in sorted(entries).into_iter().enumerate() {
                    if n > 0 {
                        out.push(b',');
                    }
                    json::write_string(&entry.key, out);
                    out.push(b':');
                    entry.value.write_json(out);
                }
                out.push(b'}');
            }
        }
    }
}

/// The entries by key.
pub(crate) fn sorted(entries: &[Entry]) -> Vec<&Entry> {
    let mut by_key: Vec<&Entry> = entries.iter().collect();
    by_key.sort_by(|a, b| a.key.cmp(&b.key));
    by_key
}

fn line(line: u32) -> Option<u32> {
    (line > 0).then_some(line)
}

/// Appends a key to a path: `tasks.charge`, or `tags["two words"]` where a dot would mislead.
pub(crate) fn join(path: &str, key: &str) -> String {
    let plain = !key.is_empty() && key.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-'));
    match (plain, path.is_empty()) {
        (true, true) => key.to_owned(),
        (true, false) => format!("{path}.{key}"),
        (false, _) => format!("{path}[{}]", shown(key)),
    }
}

/// A name from a document in quotes, so that what looks like another name does not: everything but printable
/// ASCII is spelled out (a byte order mark in front of `name` must not read as `name`). Cut at 64 characters.
pub(crate) fn shown(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars().take(64) {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            ' '..='~' => out.push(c),
            _ => out.extend(c.escape_unicode()),
        }
    }
    out.push_str(if text.chars().nth(64).is_some() { "…\"" } else { "\"" });
    out
}

/// Complains of every key that comes twice in one map, anywhere.
pub(crate) fn duplicate_keys(node: &Node, path: &str, faults: &mut Vec<Fault>) {
    match &node.kind {
        Kind::List(items) => {
            for (n, item) in items.iter().enumerate() {
                duplicate_keys(item, &format!("{path}[{n}]"), faults);
            }
        }
        Kind::Map(entries) => {
            let mut seen = HashSet::with_capacity(entries.len());
            for entry in entries {
                let path = join(path, &entry.key);
                if !seen.insert(entry.key.as_str()) {
                    let message = format!("the key {} stands here twice; keep one", shown(&entry.key));
                    faults.push(Fault { path: path.clone(), line: line(entry.line), message });
                }
                duplicate_keys(&entry.value, &path, faults);
            }
        }
        Kind::Null | Kind::Bool(_) | Kind::Number(_) | Kind::String(_) => {}
    }
}
