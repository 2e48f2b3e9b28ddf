//! Who waits for whom: resolves `needs`, finds circles, and knows what is upstream of what.

use super::fields::Faults;
use super::node::{Node, shown};
use super::task::Draft;
use crate::model::expr::Names;
use crate::model::ids::TaskId;
use crate::model::nearest::did_you_mean;
use std::collections::{BTreeMap, BTreeSet};

/// The tasks of a document and their dependencies, by index.
#[derive(Debug)]
pub(super) struct Graph {
    ids: Vec<TaskId>,
    index: BTreeMap<TaskId, u32>,
    /// Sorted, each once.
    pub(super) needs: Vec<Vec<u32>>,
    /// Sorted, each once.
    pub(super) dependents: Vec<Vec<u32>>,
    /// By task, a bit for each task upstream; `None` in and behind a circle, where nobody knows.
    upstream: Vec<Option<Vec<u64>>>,
}

impl Graph {
    /// Resolves the needs of `drafts`.
    pub(super) fn of(drafts: &[Draft<'_>], faults: &mut Faults) -> Self {
        let ids: Vec<TaskId> = drafts.iter().map(|d| d.id.clone()).collect();
        let index: BTreeMap<TaskId, u32> = ids.iter().cloned().zip(0..).collect();
        let needs = drafts.iter().map(|draft| resolve(draft, &index, faults)).collect::<Vec<_>>();
        let mut dependents = vec![Vec::new(); ids.len()];
        for (task, needs) in needs.iter().enumerate() {
            for need in needs {
                dependents[*need as usize].push(task as u32);
            }
        }
        let mut graph = Self { upstream: vec![None; ids.len()], ids, index, needs, dependents };
        let stuck = graph.close();
        graph.tell_circles(stuck, drafts, faults);
        graph
    }

    /// Fills `upstream` in the order of dependencies; returns the tasks that are in or behind a circle.
    fn close(&mut self) -> BTreeSet<u32> {
        let words = self.ids.len().div_ceil(64);
        let mut waiting: Vec<usize> = self.needs.iter().map(Vec::len).collect();
        let mut ready: Vec<u32> = (0..self.ids.len() as u32).filter(|t| waiting[*t as usize] == 0).collect();
        while let Some(task) = ready.pop() {
            let mut above = vec![0u64; words];
            for need in &self.needs[task as usize] {
                above[*need as usize / 64] |= 1 << (need % 64);
                for (word, more) in above.iter_mut().zip(self.upstream[*need as usize].iter().flatten()) {
                    *word |= more;
                }
            }
            self.upstream[task as usize] = Some(above);
            for dependent in &self.dependents[task as usize] {
                waiting[*dependent as usize] -= 1;
                if waiting[*dependent as usize] == 0 {
                    ready.push(*dependent);
                }
            }
        }
        (0..self.ids.len() as u32).filter(|t| self.upstream[*t as usize].is_none()).collect()
    }

    /// Tells every circle once, until no task is left in one.
    fn tell_circles(&self, mut stuck: BTreeSet<u32>, drafts: &[Draft<'_>], faults: &mut Faults) {
        loop {
            // Drop what is only behind circles told already.
            while let Some(free) =
                stuck.iter().copied().find(|t| !self.needs[*t as usize].iter().any(|n| stuck.contains(n)))
            {
                stuck.remove(&free);
            }
            // Every task left needs another one left, so following needs comes round.
            let Some(start) = stuck.first().copied() else { return };
            let mut walk = vec![start];
            let circle = loop {
                let last = walk[walk.len() - 1];
                let Some(next) = self.needs[last as usize].iter().copied().find(|n| stuck.contains(n)) else {
                    return;
                };
                if let Some(from) = walk.iter().position(|t| *t == next) {
                    break walk.split_off(from);
                }
                walk.push(next);
            };
            let first = circle.iter().copied().min().unwrap_or(start);
            let from = circle.iter().position(|t| *t == first).unwrap_or(0);
            let names: Vec<&str> = circle[from..]
                .iter()
                .chain(&circle[..from])
                .chain([&first])
                .map(|t| self.ids[*t as usize].as_str())
                .collect();
            let draft = &drafts[first as usize];
            let path = format!("{}.needs", draft.path);
            let line = draft.needs.first().and_then(|(_, node)| node.at());
            faults.add(&path, line, format!("the needs go in a circle: {}", names.join(" → ")));
            for task in circle {
                stuck.remove(&task);
            }
        }
    }

    fn hint(&self, id: &str) -> String {
        did_you_mean(id, self.ids.iter().map(TaskId::as_str))
    }

    /// What expressions of a task may read: the tasks upstream of it.
    pub(super) fn seen_by(&self, task: u32) -> Seen<'_> {
        Seen { graph: self, task: Some(task) }
    }

    /// What the output of the run may read: every task.
    pub(super) fn seen_by_all(&self) -> Seen<'_> {
        Seen { graph: self, task: None }
    }
}

fn resolve(draft: &Draft<'_>, index: &BTreeMap<TaskId, u32>, faults: &mut Faults) -> Vec<u32> {
    let mut needs = BTreeSet::new();
    for (n, (name, node)) in draft.needs.iter().enumerate() {
        let at = |faults: &mut Faults, node: &Node, message: String| {
            faults.add(&format!("{}.needs[{n}]", draft.path), node.at(), message);
        };
        if *name == draft.id.as_str() {
            at(faults, node, format!("the task needs itself: {name} → {name}"));
            continue;
        }
        match TaskId::new(name).ok().and_then(|id| index.get(&id)) {
            Some(need) if needs.insert(*need) => {}
            Some(_) => at(faults, node, format!("'{name}' is listed twice")),
            None => {
                let hint = did_you_mean(name, index.keys().map(TaskId::as_str));
                at(faults, node, format!("there is no task {}{hint}", shown(name)));
            }
        }
    }
    needs.into_iter().collect()
}

/// The tasks that expressions of one place may read.
#[derive(Debug)]
pub(super) struct Seen<'g> {
    graph: &'g Graph,
    task: Option<u32>,
}

impl Names for Seen<'_> {
    fn task(&self, id: &str) -> Result<u32, String> {
        let Some(wanted) = TaskId::new(id).ok().and_then(|id| self.graph.index.get(&id).copied()) else {
            return Err(format!("there is no task {}{}", shown(id), self.graph.hint(id)));
        };
        let Some(reader) = self.task else { return Ok(wanted) };
        if reader == wanted {
            return Err(format!("'{id}' cannot read what it has not done yet"));
        }
        match &self.graph.upstream[reader as usize] {
            Some(above) if above[wanted as usize / 64] & (1 << (wanted % 64)) == 0 => {
                let reader = &self.graph.ids[reader as usize];
                Err(format!("task '{id}' is not upstream of '{reader}'; add it to the needs of '{reader}'"))
            }
            // Behind a circle, which has been told, nobody knows.
            _ => Ok(wanted),
        }
    }
}
