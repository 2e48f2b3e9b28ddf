//! YAML 1.2 to [`Node`], by the core schema: `no`, `on`, `1_000`, `1:30` and dates are text; `true`, `~`, `0x1F`
//! and `.5` are not. Written on parser events, since numbers must keep their digits, every node its line, and a
//! key that comes twice must be seen.
//!
//! Aliases are copied, within the budget of the whole document: [`MAX_NODES`] values and 1 MiB of text after
//! copying, so a bomb dies where a document of that size would. Anchors that contain themselves are refused.
//! Tags other than those of the core schema are refused, and so is more than one document.

use super::load::MAX_BYTES;
use super::node::{Entry, Kind, MAX_DEPTH, Node};
use crate::model::error::Fault;
use granit_parser::{ErrorKind, Event, Parser, ScalarStyle, Span, Tag};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::rc::Rc;

/// Most values in a document, copies of aliases included.
const MAX_NODES: usize = 250_000;

/// Reads one YAML document.
pub(super) fn load(text: &str) -> Result<Node, Fault> {
    let options = granit_parser::options! {
        flow_nesting_limit: MAX_DEPTH,
        block_nesting_limit: MAX_DEPTH,
        emit_comments: false,
    };
    let mut loader = Loader::default();
    for next in Parser::new_from_str_with_options(text, options) {
        let (event, span) = next.map_err(|e| {
            let message = match e.kind() {
                ErrorKind::RecursionLimitExceeded => format!("nested deeper than {MAX_DEPTH}"),
                _ => format!("the document is not valid YAML: {}", e.info()),
            };
            fault(e.marker().line(), message)
        })?;
        loader.event(event, &span)?;
    }
    Ok(loader.root.unwrap_or(Node { line: 1, kind: Kind::Null }))
}

fn fault(line: usize, message: String) -> Fault {
    Fault { path: String::new(), line: Some(line.max(1) as u32), message }
}

/// A container that is open.
struct Open {
    node: Node,
    anchor: usize,
    /// In a map: the key that waits for its value.
    key: Option<(String, u32)>,
    /// Spent before it opened.
    before: Cost,
}

/// Values and bytes of text.
#[derive(Debug, Clone, Copy, Default)]
struct Cost {
    nodes: usize,
    bytes: usize,
}

impl Cost {
    fn since(self, before: Self) -> Self {
        Self { nodes: self.nodes - before.nodes, bytes: self.bytes - before.bytes }
    }

    fn add(&mut self, cost: Self, line: usize) -> Result<(), Fault> {
        self.nodes = self.nodes.saturating_add(cost.nodes);
        self.bytes = self.bytes.saturating_add(cost.bytes);
        if self.nodes > MAX_NODES {
            return Err(fault(
                line,
                format!("the document has more than {MAX_NODES} values, aliases included"),
            ));
        }
        if self.bytes > MAX_BYTES {
            let message =
                format!("the document has more than {MAX_BYTES} bytes (1 MiB) of text, aliases included");
            return Err(fault(line, message));
        }
        Ok(())
    }
}

/// A finished node that aliases may name.
struct Anchored {
    node: Rc<Node>,
    cost: Cost,
    depth: usize,
}

#[derive(Default)]
struct Loader {
    open: Vec<Open>,
    anchors: BTreeMap<usize, Anchored>,
    /// What stands in the tree, copies of aliases included.
    spent: Cost,
    /// What was copied to serve aliases.
    kept: Cost,
    documents: usize,
    root: Option<Node>,
}

impl Loader {
    fn event(&mut self, event: Event<'_>, span: &Span) -> Result<(), Fault> {
        let line = span.start.line();
        match event {
            Event::DocumentStart(..) => {
                self.documents += 1;
                if self.documents > 1 {
                    return Err(fault(
                        line,
                        "the text holds more than one YAML document; give one".to_owned(),
                    ));
                }
                Ok(())
            }
            Event::Scalar(value, style, anchor, tag) => {
                let before = self.spent;
                self.spent.add(Cost { nodes: 1, bytes: value.len() }, line)?;
                if self.wants_key() {
                    let key = value.into_owned();
                    if anchor > 0 {
                        self.keep(
                            anchor,
                            &Node { line: line as u32, kind: Kind::String(key.clone()) },
                            before,
                            line,
                        )?;
                    }
                    self.key(key, line);
                    return Ok(());
                }
                let kind = scalar(value, style, tag.as_deref(), line)?;
                self.done(Node { line: line as u32, kind }, anchor, before, line)
            }
            Event::SequenceStart(_, anchor, tag) => {
                self.start(Kind::List(Vec::new()), "seq", anchor, tag.as_deref(), line)
            }
            Event::MappingStart(_, anchor, tag) => {
                self.start(Kind::Map(Vec::new()), "map", anchor, tag.as_deref(), line)
            }
            Event::SequenceEnd | Event::MappingEnd => match self.open.pop() {
                Some(open) => self.done(open.node, open.anchor, open.before, line),
                None => Ok(()),
            },
            Event::Alias(id) => self.alias(id, line),
            _ => Ok(()),
        }
    }

    fn wants_key(&self) -> bool {
        self.open.last().is_some_and(|o| matches!(o.node.kind, Kind::Map(_)) && o.key.is_none())
    }

    fn key(&mut self, key: String, line: usize) {
        if let Some(open) = self.open.last_mut() {
            open.key = Some((key, line as u32));
        }
    }

    fn start(
        &mut self,
        kind: Kind,
        own_tag: &str,
        anchor: usize,
        tag: Option<&Tag>,
        line: usize,
    ) -> Result<(), Fault> {
        if self.wants_key() {
            return Err(fault(line, KEY_FORM.to_owned()));
        }
        if let Some(tag) = tag.filter(|t| t.core_suffix() != Some(own_tag) && t.original() != "!") {
            return Err(unknown_tag(tag, line));
        }
        if self.open.len() >= MAX_DEPTH {
            return Err(fault(line, format!("nested deeper than {MAX_DEPTH}")));
        }
        let before = self.spent;
        self.spent.add(Cost { nodes: 1, bytes: 0 }, line)?;
        self.open.push(Open { node: Node { line: line as u32, kind }, anchor, key: None, before });
        Ok(())
    }

    /// Copies a finished node for its aliases.
    fn keep(&mut self, anchor: usize, node: &Node, before: Cost, line: usize) -> Result<(), Fault> {
        let cost = self.spent.since(before);
        self.kept.add(cost, line)?;
        let depth = depth(node);
        self.anchors.insert(anchor, Anchored { node: Rc::new(node.clone()), cost, depth });
        Ok(())
    }

    fn done(&mut self, node: Node, anchor: usize, before: Cost, line: usize) -> Result<(), Fault> {
        if anchor > 0 {
            self.keep(anchor, &node, before, line)?;
        }
        let Some(open) = self.open.last_mut() else {
            self.root = Some(node);
            return Ok(());
        };
        match &mut open.node.kind {
            Kind::List(items) => items.push(node),
            Kind::Map(entries) => match open.key.take() {
                Some((key, line)) => entries.push(Entry { key, line, value: node }),
                None => return Err(fault(line, KEY_FORM.to_owned())),
            },
            Kind::Null | Kind::Bool(_) | Kind::Number(_) | Kind::String(_) => {}
        }
        Ok(())
    }

    fn alias(&mut self, id: usize, line: usize) -> Result<(), Fault> {
        let Some(anchored) = self.anchors.get(&id) else {
            return Err(fault(line, "an alias stands inside the value it names".to_owned()));
        };
        if self.open.len() + anchored.depth > MAX_DEPTH {
            return Err(fault(line, format!("nested deeper than {MAX_DEPTH}, aliases included")));
        }
        let (node, before) = (Rc::clone(&anchored.node), self.spent);
        // Paid for before it is copied: a bomb must not be built first.
        self.spent.add(anchored.cost, line)?;
        if self.wants_key() {
            let (Kind::String(key) | Kind::Number(key)) = &node.kind else {
                return Err(fault(line, KEY_FORM.to_owned()));
            };
            self.key(key.clone(), line);
            return Ok(());
        }
        let copy = Node { line: line as u32, kind: node.kind.clone() };
        self.done(copy, 0, before, line)
    }
}

const KEY_FORM: &str = "a key must be plain text, not a list or a map";

fn depth(node: &Node) -> usize {
    match &node.kind {
        Kind::List(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
        Kind::Map(entries) => 1 + entries.iter().map(|e| depth(&e.value)).max().unwrap_or(0),
        Kind::Null | Kind::Bool(_) | Kind::Number(_) | Kind::String(_) => 0,
    }
}

fn unknown_tag(tag: &Tag, line: usize) -> Fault {
    let tag = super::node::shown(&tag.original());
    fault(line, format!("the tag {tag} is not one of the YAML core schema, or does not fit the value"))
}

/// A scalar by the core schema: only a plain one without a tag is looked at.
fn scalar(value: Cow<'_, str>, style: ScalarStyle, tag: Option<&Tag>, line: usize) -> Result<Kind, Fault> {
    let resolve = |text: &str| plain(text).map_err(|message| fault(line, message));
    let Some(tag) = tag else {
        return if style == ScalarStyle::Plain {
            resolve(&value)
        } else {
            Ok(Kind::String(value.into_owned()))
        };
    };
    if tag.original() == "!" {
        return Ok(Kind::String(value.into_owned()));
    }
    let mismatch = || unknown_tag(tag, line);
    match tag.core_suffix() {
        Some("str") => Ok(Kind::String(value.into_owned())),
        Some("null") => Some(resolve(&value)?).filter(|k| *k == Kind::Null).ok_or_else(mismatch),
        Some("bool") => Some(resolve(&value)?).filter(|k| matches!(k, Kind::Bool(_))).ok_or_else(mismatch),
        Some("int" | "float") => {
            Some(resolve(&value)?).filter(|k| matches!(k, Kind::Number(_))).ok_or_else(mismatch)
        }
        _ => Err(mismatch()),
    }
}

/// A plain scalar by the core schema (YAML 1.2.2, 10.3.2). Numbers become the JSON token of the same value with
/// the same digits.
fn plain(text: &str) -> Result<Kind, String> {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Ok(Kind::Null),
        "true" | "True" | "TRUE" => return Ok(Kind::Bool(true)),
        "false" | "False" | "FALSE" => return Ok(Kind::Bool(false)),
        _ => {}
    }
    let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
    if matches!(unsigned, ".inf" | ".Inf" | ".INF") || matches!(text, ".nan" | ".NaN" | ".NAN") {
        return Err(format!("{text} is no JSON number; quote it if text is meant"));
    }
    for (prefix, radix) in [("0x", 16), ("0o", 8)] {
        let Some(digits) = text.strip_prefix(prefix) else { continue };
        if !digits.is_empty() && digits.chars().all(|c| c.is_digit(radix)) {
            let value = u128::from_str_radix(digits, radix)
                .map_err(|_| format!("{} is over 128 bits; write it in decimal", super::node::shown(text)))?;
            return Ok(Kind::Number(value.to_string()));
        }
    }
    Ok(match decimal(text, unsigned) {
        Some(token) => Kind::Number(token),
        None => Kind::String(text.to_owned()),
    })
}

/// `[-+]? ( \. [0-9]+ | [0-9]+ ( \. [0-9]* )? ) ( [eE] [-+]? [0-9]+ )?` as a JSON token.
fn decimal(text: &str, unsigned: &str) -> Option<String> {
    let digits = |s: &str| s.bytes().all(|b| b.is_ascii_digit());
    let (mantissa, exponent) = match unsigned.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => {
            let bare = exponent.strip_prefix(['-', '+']).unwrap_or(exponent);
            if bare.is_empty() || !digits(bare) {
                return None;
            }
            (mantissa, Some(exponent))
        }
        None => (unsigned, None),
    };
    let (whole, fraction) = match mantissa.split_once('.') {
        Some((whole, fraction)) => (whole, Some(fraction)),
        None => (mantissa, None),
    };
    if !digits(whole)
        || !fraction.is_none_or(digits)
        || (whole.is_empty() && fraction.is_none_or(str::is_empty))
    {
        return None;
    }
    let mut token = String::with_capacity(text.len() + 2);
    if text.starts_with('-') {
        token.push('-');
    }
    let significant = whole.trim_start_matches('0');
    token.push_str(if significant.is_empty() { "0" } else { significant });
    if let Some(fraction) = fraction {
        token.push('.');
        token.push_str(if fraction.is_empty() { "0" } else { fraction });
    }
    if let Some(exponent) = exponent {
        token.push('e');
        token.push_str(exponent);
    }
    Some(token)
}
