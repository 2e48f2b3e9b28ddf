//! The tasks of a document as one list: bodies of groups taken out of the nesting, ids unique, levels counted.
//!
//! ```text
//! the run's own tasks │ bodies of groups, level by level │ finally │ its body, bodies below │ compensations
//! ```
//!
//! A body is contiguous and in document order; a task's index here is its index in the plan.

use super::fields::{Faults, Fields, duration_of, positive};
use super::keys;
use super::kind::Does;
use super::node::{Entry, Kind, Node, join, shown};
use super::task::Draft;
use crate::model::ids::TaskId;
use crate::model::plan::{RetryPolicy, Role, Timeouts};
use crate::model::time::Span;
use std::collections::BTreeMap;
use std::ops::Range;

/// Most tasks of a document, nested ones included.
pub(super) const MAX_TASKS: usize = 10_000;
/// Deepest level of a task; the run's own are on level 1.
pub(super) const MAX_LEVEL: u32 = 16;
/// Timeout of `finally` unless the document says otherwise.
pub(super) const DEFAULT_FINALLY: Span = Span::secs(300);

const FINALLY: &str = "finally";
const COMPENSATE: &str = "compensate";

/// All tasks of a document.
#[derive(Debug)]
pub(super) struct Tree<'n> {
    pub(super) drafts: Vec<Draft<'n>>,
    /// The run's own.
    pub(super) body: Range<u32>,
    pub(super) finally: Option<u32>,
    /// By id; compensations have none of their own.
    pub(super) index: BTreeMap<TaskId, u32>,
}

/// What stands around a place of a task.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Around {
    pub(super) for_each: bool,
    pub(super) repeat: bool,
    pub(super) finally: bool,
}

impl<'n> Tree<'n> {
    /// Reads all tasks. `None`: there are none, or too many.
    pub(super) fn read(
        tasks: Option<&'n Node>,
        finally: Option<&'n Node>,
        faults: &mut Faults,
    ) -> Option<Self> {
        let mut tree = Self { drafts: Vec::new(), body: 0..0, finally: None, index: BTreeMap::new() };
        let line = tasks.and_then(Node::at);
        let count = count(tasks, 1).saturating_add(match finally {
            Some(node) => count(Some(finally_tasks(node)), 1),
            None => 0,
        });
        if count > MAX_TASKS {
            faults.add("tasks", line, format!("there are {count} tasks; the limit is {MAX_TASKS}"));
            return None;
        }
        tree.body = tree.read_body(tasks, "tasks", None, 1, faults)?;
        tree.go_down(0, faults);
        if let Some(node) = finally {
            tree.read_finally(node, faults);
        }
        tree.read_undos(faults);
        tree.check_places(faults);
        Some(tree)
    }

    /// Reads the bodies of all groups from `from` on; those found on the way too.
    fn go_down(&mut self, from: usize, faults: &mut Faults) {
        let mut at = from;
        while let Some(draft) = self.drafts.get(at) {
            let Some(Does::Group { tasks, .. }) = &draft.does else {
                at += 1;
                continue;
            };
            let (node, path, level) = (*tasks, join(&draft.path, "tasks"), draft.level + 1);
            if level > MAX_LEVEL {
                let message = format!(
                    "tasks are nested deeper than {MAX_LEVEL}; the run's own are on level 1, those of a group one deeper"
                );
                faults.add(&path, node.at(), message);
            } else if let Some(range) = self.read_body(Some(node), &path, Some(at as u32), level, faults)
                && let Some(Does::Group { body, .. }) = &mut self.drafts[at].does
            {
                *body = range;
            }
            at += 1;
        }
    }

    /// Reads a map of tasks, in the order of the text; at least one. `[]`, `{}`, `null` and no key at all are one
    /// and the same.
    fn read_body(
        &mut self,
        node: Option<&'n Node>,
        path: &str,
        parent: Option<u32>,
        level: u32,
        faults: &mut Faults,
    ) -> Option<Range<u32>> {
        let entries: &[Entry] = match node.map(|n| &n.kind) {
            None | Some(Kind::Null) => &[],
            Some(Kind::List(items)) if items.is_empty() => &[],
            Some(Kind::Map(entries)) => entries,
            Some(_) => {
                if let Some(node) = node {
                    faults.wrong(path, node, "a map from task id to task");
                }
                return None;
            }
        };
        if entries.is_empty() {
            let what = if parent.is_some() { "group" } else { "workflow" };
            faults.add(path, node.and_then(Node::at), format!("a {what} has at least one task"));
            return None;
        }
        let from = self.drafts.len() as u32;
        for entry in entries {
            let path = join(path, &entry.key);
            let line = Some(entry.line).filter(|l| *l > 0);
            let id = match TaskId::new(&entry.key) {
                Ok(id) => id,
                Err(e) => {
                    let message = format!("the task id {} is not valid: {}", shown(&e.got), e.rule);
                    faults.add(&path, line, message);
                    continue;
                }
            };
            if matches!(id.as_str(), FINALLY | COMPENSATE) {
                let message = format!("no task may be called '{id}': the word has its own meaning in paths");
                faults.add(&path, line, message);
                continue;
            }
            if let Some(other) = self.index.get(&id) {
                let other = &self.drafts[*other as usize].path;
                // Twice in one map has been told already.
                if *other != path {
                    let message = format!(
                        "the task id '{id}' is taken by {other}; ids are unique in the document, nested ones included"
                    );
                    faults.add(&path, line, message);
                }
                continue;
            }
            let draft = Draft::bare(id.clone(), Role::Task, path, parent, level);
            if let Some(draft) = draft.read(&entry.value, faults) {
                self.index.insert(id, self.drafts.len() as u32);
                self.drafts.push(draft);
            }
        }
        Some(from..self.drafts.len() as u32)
    }

    /// `finally`: a map of tasks, or of `tasks` (which says that it is this form) and `timeout`.
    fn read_finally(&mut self, node: &'n Node, faults: &mut Faults) {
        let Ok(id) = TaskId::new(FINALLY) else { return };
        let tasks = finally_tasks(node);
        let mut total = DEFAULT_FINALLY;
        let mut path = FINALLY.to_owned();
        if !std::ptr::eq(tasks, node) {
            path = join(FINALLY, "tasks");
            if let Some(fields) = Fields::of(node, FINALLY, &keys::FINALLY, faults) {
                total = fields.limit("timeout", faults).unwrap_or(DEFAULT_FINALLY);
            }
        } else if let Kind::Map(entries) = &node.kind
            && let Some(timeout) = entries.iter().find(|e| e.key == "timeout")
            && !matches!(timeout.value.kind, Kind::Map(_))
        {
            let path = join(FINALLY, "timeout");
            let found = duration_of(&timeout.value, &path, faults);
            if found.and_then(|span| positive(span, &timeout.value, &path, faults)).is_some() {
                let message = "a timeout stands beside 'tasks': write { tasks: { … }, timeout: … }";
                faults.add(&path, timeout.value.at(), message);
            }
            return;
        }
        let at = self.drafts.len() as u32;
        let mut draft = Draft::bare(id, Role::Finally, FINALLY.to_owned(), None, 0);
        draft.timeout = Timeouts { total: Some(total), ..Timeouts::default() };
        draft.retry = RetryPolicy { max_attempts: 1, ..RetryPolicy::default() };
        self.drafts.push(draft);
        let body = self.read_body(Some(tasks), &path, Some(at), 1, faults).unwrap_or(0..0);
        self.drafts[at as usize].does = Some(Does::Group { tasks, output: None, fail_fast: false, body });
        self.finally = Some(at);
        self.go_down(at as usize + 1, faults);
    }

    fn read_undos(&mut self, faults: &mut Faults) {
        let Ok(id) = TaskId::new(COMPENSATE) else { return };
        for task in 0..self.drafts.len() {
            let draft = &self.drafts[task];
            let Some(node) = draft.undo else { continue };
            let path = join(&draft.path, COMPENSATE);
            let undo = Draft::bare(id.clone(), Role::Compensation, path, Some(task as u32), draft.level + 1);
            if let Some(undo) = undo.read_undo(node, faults) {
                self.drafts[task].compensate = Some(self.drafts.len() as u32);
                self.drafts.push(undo);
            }
        }
    }

    /// Complains of what may not stand where it does.
    fn check_places(&self, faults: &mut Faults) {
        for (task, draft) in self.drafts.iter().enumerate() {
            let around = self.around(task as u32);
            if let Some(Does::Finish { node, .. }) = draft.does {
                let place = match around {
                    Around { finally: true, .. } => "in 'finally': the outcome is settled there",
                    Around { for_each: true, .. } => "under 'for_each'",
                    Around { repeat: true, .. } => "under 'repeat'",
                    Around { .. } => continue,
                };
                faults.add(
                    &join(&draft.path, "finish"),
                    node.at(),
                    format!("'finish' may not stand {place}"),
                );
            }
            if let Some(key) = draft.concurrency.as_ref().and_then(|c| c.name())
                && let Some(group) = self.above(task as u32).skip(1).find(|above| {
                    let around = self.drafts[*above as usize].concurrency.as_ref();
                    around.and_then(|c| c.name()) == Some(key)
                })
            {
                let message = format!(
                    "the group '{}' around the task has the same key: the task would wait for what waits for it",
                    self.drafts[group as usize].id
                );
                let at = draft.concurrency.as_ref().and_then(|c| c.key.at());
                faults.add(&join(&join(&draft.path, "concurrency"), "key"), at, message);
            }
            if let Some(node) = draft.undo.filter(|_| around.finally) {
                let message = "what 'finally' does is not undone; 'compensate' may not stand in it";
                faults.add(&join(&draft.path, COMPENSATE), node.at(), message);
            }
        }
    }

    /// What stands around a task, itself not counted.
    pub(super) fn around(&self, task: u32) -> Around {
        let mut around = Around::default();
        for above in self.above(task).skip(1) {
            let draft = &self.drafts[above as usize];
            around.for_each |= draft.for_each.is_some();
            around.repeat |= draft.repeat.is_some();
            around.finally |= draft.role == Role::Finally;
        }
        around
    }

    /// The task and what stands around it, inside out.
    pub(super) fn above(&self, task: u32) -> impl Iterator<Item = u32> {
        std::iter::successors(Some(task), |at| self.drafts[*at as usize].parent)
    }

    /// The body a task stands in; that of `finally` and of compensations is empty.
    pub(super) fn body_around(&self, task: u32) -> Range<u32> {
        let draft = &self.drafts[task as usize];
        match (draft.role, draft.parent) {
            (Role::Task, None) => self.body.clone(),
            (Role::Task, Some(parent)) => self.body_of(parent),
            (Role::Finally | Role::Compensation, _) => 0..0,
        }
    }

    /// The body of a group.
    pub(super) fn body_of(&self, group: u32) -> Range<u32> {
        if let Some(Does::Group { body, .. }) = &self.drafts[group as usize].does {
            return body.clone();
        }
        0..0
    }
}

/// The map of tasks of `finally`.
fn finally_tasks(node: &Node) -> &Node {
    let Kind::Map(entries) = &node.kind else { return node };
    entries.iter().find(|e| e.key == "tasks").map_or(node, |e| &e.value)
}

/// How many tasks a map of tasks holds, as far down as they may be nested.
fn count(node: Option<&Node>, level: u32) -> usize {
    let Some(Kind::Map(entries)) = node.map(|n| &n.kind) else { return 0 };
    let mut sum = entries.len();
    for entry in entries {
        if let Kind::Map(fields) = &entry.value.kind
            && level < MAX_LEVEL
            && let Some(tasks) = fields.iter().find(|e| e.key == "tasks")
        {
            sum = sum.saturating_add(count(Some(&tasks.value), level + 1));
        }
    }
    sum
}
