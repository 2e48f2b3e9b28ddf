//! Typed access to the keys of a map. Every reader adds what is wrong to the faults and gives `None`.

use super::node::{Entry, Kind, Node, join, shown};
use crate::model::duration;
use crate::model::error::Fault;
use crate::model::expr::has_expression;
use crate::model::nearest::did_you_mean;
use crate::model::time::Span;

/// Faults found so far.
#[derive(Debug, Default)]
pub(crate) struct Faults(pub(crate) Vec<Fault>);

impl Faults {
    pub(crate) fn add(&mut self, path: &str, line: Option<u32>, message: impl Into<String>) {
        self.0.push(Fault { path: path.to_owned(), line, message: message.into() });
    }

    /// The value is of the wrong type.
    pub(crate) fn wrong(&mut self, path: &str, node: &Node, wanted: &str) {
        let hint = match (&node.kind, wanted.contains("number")) {
            (Kind::String(text), true) if text.parse::<f64>().is_ok() => "; write it without quotes",
            (Kind::Number(_) | Kind::Bool(_), false) if wanted.starts_with("text") => "; put it in quotes",
            (Kind::Null, _) => "; give a value or leave the key out",
            _ => "",
        };
        self.add(path, node.at(), format!("must be {wanted}, but is {}{hint}", node.type_name()));
    }
}

/// The keys of one map, in the order of the text. Of a key that comes twice (told elsewhere) the first counts.
#[derive(Debug)]
pub(crate) struct Fields<'n> {
    path: String,
    entries: &'n [Entry],
}

impl<'n> Fields<'n> {
    /// The keys of `node`, which must be a map with no keys but `known`.
    pub(crate) fn of(
        node: &'n Node,
        path: &str,
        known: &[&'static str],
        faults: &mut Faults,
    ) -> Option<Self> {
        let Kind::Map(entries) = &node.kind else {
            faults.wrong(path, node, &format!("a map with {}", known.join(", ")));
            return None;
        };
        for entry in entries {
            let key = entry.key.as_str();
            let at = Some(entry.line).filter(|l| *l > 0);
            if !known.contains(&key) {
                let few = faults.0.len() < super::MAX_FAULTS;
                let hint = if few { did_you_mean(key, known.iter().copied()) } else { String::new() };
                let merge = if key == "<<" { "; merge keys are not part of YAML 1.2" } else { "" };
                faults.add(&join(path, key), at, format!("unknown key {}{hint}{merge}", shown(key)));
            }
        }
        Some(Self { path: path.to_owned(), entries })
    }

    pub(crate) fn get(&self, key: &str) -> Option<&'n Node> {
        self.entries.iter().find(|e| e.key == key).map(|e| &e.value)
    }

    pub(crate) fn path(&self, key: &str) -> String {
        join(&self.path, key)
    }

    /// Text without expressions.
    pub(crate) fn text(&self, key: &str, faults: &mut Faults) -> Option<&'n str> {
        text(self.get(key)?, &self.path(key), faults)
    }

    pub(crate) fn boolean(&self, key: &str, faults: &mut Faults) -> Option<bool> {
        let node = self.get(key)?;
        if let Kind::Bool(b) = &node.kind {
            Some(*b)
        } else {
            faults.wrong(&self.path(key), node, "true or false");
            None
        }
    }

    /// A whole number in `range`.
    pub(crate) fn integer(
        &self,
        key: &str,
        range: std::ops::RangeInclusive<i64>,
        faults: &mut Faults,
    ) -> Option<i64> {
        let node = self.get(key)?;
        let (from, to) = (range.start(), range.end());
        if let Kind::Number(token) = &node.kind {
            let value = token.parse::<i64>().ok().filter(|n| range.contains(n));
            if value.is_none() {
                let message = format!("must be a whole number from {from} to {to}, but is {token}");
                faults.add(&self.path(key), node.at(), message);
            }
            value
        } else {
            faults.wrong(&self.path(key), node, &format!("a whole number from {from} to {to}"));
            None
        }
    }

    /// A number in `range`.
    pub(crate) fn number(
        &self,
        key: &str,
        range: std::ops::RangeInclusive<f64>,
        faults: &mut Faults,
    ) -> Option<f64> {
        let node = self.get(key)?;
        let wanted = if range.end().is_finite() && *range.end() < 1e6 {
            format!("a number from {} to {}", range.start(), range.end())
        } else {
            format!("a number of at least {}", range.start())
        };
        if let Kind::Number(token) = &node.kind {
            let value = token.parse::<f64>().ok().filter(|n| range.contains(n));
            if value.is_none() {
                faults.add(&self.path(key), node.at(), format!("must be {wanted}, but is {token}"));
            }
            value
        } else {
            faults.wrong(&self.path(key), node, &wanted);
            None
        }
    }

    pub(crate) fn duration(&self, key: &str, faults: &mut Faults) -> Option<Span> {
        duration_of(self.get(key)?, &self.path(key), faults)
    }

    /// A duration that is not zero.
    pub(crate) fn limit(&self, key: &str, faults: &mut Faults) -> Option<Span> {
        let node = self.get(key)?;
        let path = self.path(key);
        let span = duration_of(node, &path, faults)?;
        positive(span, node, &path, faults)
    }

    /// A list of text, with the node of each.
    pub(crate) fn texts(&self, key: &str, faults: &mut Faults) -> Vec<(&'n str, &'n Node)> {
        let Some(node) = self.get(key) else { return Vec::new() };
        let path = self.path(key);
        match &node.kind {
            Kind::List(items) => items
                .iter()
                .enumerate()
                .filter_map(|(n, item)| Some((text(item, &format!("{path}[{n}]"), faults)?, item)))
                .collect(),
            Kind::String(text) => {
                let message = format!("must be a list, but is text; write [{text}]");
                faults.add(&path, node.at(), message);
                Vec::new()
            }
            _ => {
                faults.wrong(&path, node, "a list of text");
                Vec::new()
            }
        }
    }
}

/// Text without expressions.
pub(crate) fn text<'n>(node: &'n Node, path: &str, faults: &mut Faults) -> Option<&'n str> {
    match &node.kind {
        Kind::String(text) if has_expression(text) => {
            faults.add(path, node.at(), "an expression may not stand here");
            None
        }
        Kind::String(text) => Some(text),
        _ => {
            faults.wrong(path, node, "text");
            None
        }
    }
}

/// A duration such as `1h30m`.
pub(crate) fn duration_of(node: &Node, path: &str, faults: &mut Faults) -> Option<Span> {
    if let Kind::Number(token) = &node.kind {
        let message =
            format!("must be a duration, but is the number {token}; say the unit, such as 30s or 1h30m");
        faults.add(path, node.at(), message);
        return None;
    }
    if !matches!(node.kind, Kind::String(_)) {
        faults.wrong(path, node, "a duration, such as 30s or 1h30m");
        return None;
    }
    match duration::parse(text(node, path, faults)?) {
        Ok(span) => Some(span),
        Err(message) => {
            faults.add(path, node.at(), message);
            None
        }
    }
}

/// `span` unless it is zero.
pub(crate) fn positive(span: Span, node: &Node, path: &str, faults: &mut Faults) -> Option<Span> {
    if span == Span(0) {
        faults.add(path, node.at(), "must be longer than 0; leave it out for no limit");
        return None;
    }
    Some(span)
}
