//! What an expression may read, by the place it stands in.
//!
//! | place | tasks |
//! |---|---|
//! | of a task | upstream of it, and upstream of each group around it |
//! | `output` of a group | its own tasks, and what the group sees |
//! | `compensate` | the task it undoes, and what that sees |
//! | in `finally` | as of a task, and all of the run's own |
//! | `output` of the run | all of the run's own |
//!
//! From outside, a group is seen and what is inside of it is not.

use super::graph::{Graph, Hints};
use super::node::shown;
use super::tree::{Around, Tree};
use crate::model::expr::{Names, Place};
use crate::model::ids::TaskId;
use crate::model::plan::Role;

/// Where an expression stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Spot {
    /// `if` and `for_each` of a task: looked at once, before any item.
    Once(u32),
    /// What a task does, for each item and iteration.
    Each(u32),
    /// `while` and `delay` of a task.
    Between(u32),
    /// `output` of a group.
    Output(u32),
    /// In the compensation, given by its index, of a task.
    Undo(u32),
    /// `output` of the run.
    Run,
}

/// What can be read from one place.
#[derive(Debug)]
pub(super) struct Seen<'a, 'n> {
    pub(super) tree: &'a Tree<'n>,
    pub(super) graph: &'a Graph,
    pub(super) hints: &'a Hints,
    pub(super) spot: Spot,
}

impl Seen<'_, '_> {
    /// The task whose upstream counts; none: the run's.
    fn reader(&self) -> Option<u32> {
        match self.spot {
            Spot::Once(task) | Spot::Each(task) | Spot::Between(task) | Spot::Output(task) => Some(task),
            Spot::Undo(undo) => self.tree.drafts[undo as usize].parent,
            Spot::Run => None,
        }
    }

    fn sees(&self, wanted: u32) -> bool {
        let tree = self.tree;
        let Some(reader) = self.reader() else { return tree.body.contains(&wanted) };
        let extra = match self.spot {
            Spot::Output(group) => tree.body_of(group).contains(&wanted),
            Spot::Undo(_) => reader == wanted,
            Spot::Once(_) | Spot::Each(_) | Spot::Between(_) | Spot::Run => false,
        };
        extra
            || tree.above(reader).any(|at| {
                let body = tree.body_around(at);
                let finally = tree.drafts[at as usize].role == Role::Finally;
                (body.contains(&wanted) && self.graph.is_upstream(wanted, at, body.start))
                    || (finally && tree.body.contains(&wanted))
            })
    }

    /// Why `wanted`, which is there, cannot be read.
    fn refusal(&self, wanted: u32) -> String {
        let tree = self.tree;
        let id = |task: u32| tree.drafts[task as usize].id.as_str();
        let name = id(wanted);
        let group_of = |task: u32| tree.drafts[task as usize].parent.map_or(task, |parent| parent);
        let in_finally = |task: u32| tree.above(task).any(|t| tree.drafts[t as usize].role == Role::Finally);
        let inside = |group: u32| {
            format!(
                "task '{name}' stands inside of the group '{0}'; from outside only the group is seen: tasks.{0}.output",
                id(group)
            )
        };
        let Some(reader) = self.reader() else {
            if in_finally(wanted) {
                return format!("task '{name}' is part of 'finally', which comes after the output");
            }
            return tree.above(wanted).last().map_or_else(String::new, inside);
        };
        if reader == wanted {
            return format!("'{name}' cannot read what it has not done yet");
        }
        if tree.above(reader).any(|at| at == wanted) {
            return format!("the group '{name}' is around this and has not ended yet");
        }
        match (in_finally(wanted), in_finally(reader)) {
            (true, false) => {
                return format!("task '{name}' is part of 'finally', which comes after all other tasks");
            }
            (false, true) => return tree.above(wanted).last().map_or_else(String::new, inside),
            (true, true) | (false, false) => {}
        }
        // The level on which the ways to the two part.
        for at in tree.above(reader) {
            let body = tree.body_around(at);
            let Some(top) = tree.above(wanted).find(|t| body.contains(t)) else { continue };
            if top != wanted {
                return inside(top);
            }
            let (what, at) = (if at == reader { "" } else { "the group " }, id(at));
            return format!("task '{name}' is not upstream of {what}'{at}'; add it to the needs of '{at}'");
        }
        // In a group of its own that is below the reader.
        inside(group_of(wanted))
    }
}

impl Names for Seen<'_, '_> {
    fn task(&self, id: &str) -> Result<u32, String> {
        let Some(wanted) = TaskId::new(id).ok().and_then(|id| self.tree.index.get(&id).copied()) else {
            return Err(format!("there is no task {}{}", shown(id), self.hints.near(id, self.tree)));
        };
        if self.sees(wanted) { Ok(wanted) } else { Err(self.refusal(wanted)) }
    }

    fn place(&self) -> Place {
        let Some(reader) = self.reader() else { return Place::default() };
        let draft = &self.tree.drafts[reader as usize];
        let around @ Around { finally, .. } = self.tree.around(reader);
        let own = !matches!(self.spot, Spot::Once(_));
        Place {
            item: around.for_each || (own && draft.for_each.is_some()),
            repeat: around.repeat || (own && draft.repeat.is_some()),
            ended: matches!(self.spot, Spot::Between(_)),
            finally,
        }
    }
}
