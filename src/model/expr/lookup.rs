//! What a template reads: its paths, gathered so that each payload is gone through once.

use super::{ExprError, Root, Scope};
use crate::model::json;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::ops::Range;

/// Where a path begins, and where it goes from there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Path {
    pub(super) root: Root,
    /// Keys and indexes; for [`Root::Facts`] into `{"status": …, "error": {"code": …, "message": …} | null}`.
    pub(super) steps: Vec<String>,
    /// As users write it.
    pub(super) shown: String,
}

/// Every path of one template, by number.
#[derive(Debug, Default)]
pub(super) struct Lookups {
    groups: Vec<Group>,
    /// By root: its place in `groups`.
    by_root: BTreeMap<Root, usize>,
    paths: Vec<(Path, usize, usize)>,
}

/// The paths of one root.
#[derive(Debug)]
struct Group {
    root: Root,
    paths: json::Paths,
    /// By slot in `paths`: the number of the path.
    numbers: Vec<usize>,
}

impl Lookups {
    /// Adds a path; returns its number.
    pub(super) fn add(&mut self, path: Path) -> usize {
        let group = *self.by_root.entry(path.root.clone()).or_insert_with(|| {
            self.groups.push(Group {
                root: path.root.clone(),
                paths: json::Paths::default(),
                numbers: Vec::new(),
            });
            self.groups.len() - 1
        });
        let Group { paths, numbers, .. } = &mut self.groups[group];
        let slot = paths.add(&path.steps);
        if let Some(number) = numbers.get(slot) {
            return *number;
        }
        numbers.push(self.paths.len());
        self.paths.push((path, group, slot));
        self.paths.len() - 1
    }

    pub(super) fn path(&self, number: usize) -> &Path {
        &self.paths[number].0
    }

    /// The roots, in order, each once.
    pub(super) fn roots(&self) -> Vec<Root> {
        self.by_root.keys().cloned().collect()
    }
}

/// The lookups of one rendering. A payload is read when the first of its paths is asked for.
pub(super) struct Found<'t, 's> {
    lookups: &'t Lookups,
    scope: &'s dyn Scope,
    groups: Vec<Option<Loaded<'s>>>,
    values: Vec<Option<minijinja::Value>>,
}

struct Loaded<'s> {
    text: Text<'s>,
    found: Vec<Option<Range<usize>>>,
}

enum Text<'s> {
    Borrowed(&'s [u8]),
    Owned(Bytes),
}

impl Text<'_> {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Borrowed(bytes) => bytes,
            Self::Owned(bytes) => bytes,
        }
    }
}

impl<'t, 's> Found<'t, 's> {
    pub(super) fn new(lookups: &'t Lookups, scope: &'s dyn Scope) -> Self {
        let groups = lookups.groups.iter().map(|_| None).collect();
        Self { lookups, scope, groups, values: Vec::new() }
    }

    /// The JSON text at the path; `None` if nothing is there.
    pub(super) fn raw(&mut self, number: usize) -> Result<Option<&[u8]>, ExprError> {
        let (path, group, slot) = &self.lookups.paths[number];
        let loaded = match &mut self.groups[*group] {
            Some(loaded) => loaded,
            empty => {
                let wanted = &self.lookups.groups[*group];
                let text = text(&wanted.root, self.scope);
                let found = find(&wanted.paths, path, text.bytes()).map_err(|e| ExprError {
                    code: "expression_failed",
                    message: format!("{} cannot be read: {e}", path.shown),
                })?;
                empty.insert(Loaded { text, found })
            }
        };
        Ok(loaded.found[*slot].clone().and_then(|range| loaded.text.bytes().get(range)))
    }

    /// The value at the path, as programs read it; parsed once.
    pub(super) fn value(&mut self, number: usize) -> Result<Option<minijinja::Value>, ExprError> {
        if self.values.is_empty() {
            self.values.resize(self.lookups.paths.len(), None);
        }
        if let Some(value) = &self.values[number] {
            return Ok(Some(value.clone()));
        }
        let shown = &self.lookups.path(number).shown;
        let Some(raw) = self.raw(number)? else { return Ok(None) };
        let value = super::program::from_json(raw, shown)?;
        self.values[number] = Some(value.clone());
        Ok(Some(value))
    }

    /// The error that says that nothing is at the path.
    pub(super) fn missing(&self, number: usize) -> ExprError {
        missing(&self.lookups.path(number).shown)
    }

    pub(super) fn shown(&self, number: usize) -> &'t str {
        &self.lookups.path(number).shown
    }
}

pub(super) fn missing(shown: &str) -> ExprError {
    ExprError { code: "missing_value", message: format!("{shown} is missing; default(…) would cover that") }
}

fn find(paths: &json::Paths, only: &Path, bytes: &[u8]) -> Result<Vec<Option<Range<usize>>>, String> {
    if paths.len() > 1 {
        return paths.find(bytes);
    }
    Ok(vec![json::locate(bytes, &only.steps)?])
}

fn text<'s>(root: &Root, scope: &'s dyn Scope) -> Text<'s> {
    let or_null = |bytes: &'s [u8]| Text::Borrowed(if bytes.is_empty() { b"null" } else { bytes });
    match root {
        Root::Input => or_null(scope.input()),
        Root::Output(task) => or_null(scope.task(*task).output),
        Root::Run => Text::Owned(scope.run()),
        Root::Item => or_null(scope.item().0),
        Root::Index => Text::Owned(scope.item().1.to_string().into()),
        Root::LoopIndex => Text::Owned(scope.iteration().index.to_string().into()),
        Root::LoopOutput => or_null(scope.iteration().output),
        Root::LoopPrevious => or_null(scope.iteration().previous),
        Root::Facts(task) => {
            let facts = scope.task(*task);
            let mut out = b"{\"status\":".to_vec();
            json::write_string(facts.status, &mut out);
            out.extend_from_slice(b",\"error\":");
            match facts.error {
                None => out.extend_from_slice(b"null"),
                Some((code, message)) => {
                    out.extend_from_slice(b"{\"code\":");
                    json::write_string(code, &mut out);
                    out.extend_from_slice(b",\"message\":");
                    json::write_string(message, &mut out);
                    out.push(b'}');
                }
            }
            out.push(b'}');
            Text::Owned(out.into())
        }
    }
}
