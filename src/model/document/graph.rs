//! Who waits for whom: resolves `needs`, finds circles, and knows what is upstream of what.

use super::fields::Faults;
use super::node::{Node, shown};
use super::task::Draft;
use crate::model::expr::Names;
use crate::model::ids::TaskId;
use crate::model::nearest::did_you_mean;
use std::cell::Cell;
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
    /// How many more hints will be looked for.
    hints: Cell<u32>,
}

const MAX_HINTS: u32 = 200;
/// Most tasks of a circle that are told by name.
const MAX_SHOWN: usize = 20;

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
        let mut graph = Self {
            upstream: vec![None; ids.len()],
            ids,
            index,
            needs,
            dependents,
            hints: Cell::new(MAX_HINTS),
        };
        graph.close(drafts, faults);
        graph
    }

    /// Fills `upstream` in the order of dependencies, and tells every circle once.
    fn close(&mut self, drafts: &[Draft<'_>], faults: &mut Faults) {
        let words = self.ids.len().div_ceil(64);
        let mut waiting: Vec<usize> = self.needs.iter().map(Vec::len).collect();
        let mut settled = vec![false; self.ids.len()];
        let mut ready: Vec<u32> = (0..self.ids.len() as u32).filter(|t| waiting[*t as usize] == 0).collect();
        let mut next = 0;
        let mut sound = true;
        loop {
            while let Some(task) = ready.pop() {
                let task = task as usize;
                // A circle settles all of its tasks at once, whatever they still wait for.
                if std::mem::replace(&mut settled[task], true) {
                    continue;
                }
                if sound {
                    let mut above = vec![0u64; words];
                    for need in &self.needs[task] {
                        above[*need as usize / 64] |= 1 << (need % 64);
                        for (word, more) in
                            above.iter_mut().zip(self.upstream[*need as usize].iter().flatten())
                        {
                            *word |= more;
                        }
                    }
                    self.upstream[task] = Some(above);
                }
                for dependent in &self.dependents[task] {
                    let left = &mut waiting[*dependent as usize];
                    *left = left.saturating_sub(1);
                    if *left == 0 {
                        ready.push(*dependent);
                    }
                }
            }
            // What is left is in circles or behind them.
            sound = false;
            while settled.get(next) == Some(&true) {
                next += 1;
            }
            if next >= settled.len() {
                return;
            }
            let circle = self.circle(next as u32, &settled);
            self.tell(&circle, drafts, faults);
            ready.extend(circle);
        }
    }

    /// A circle that following needs from `start` leads into; every task left needs another one left.
    fn circle(&self, start: u32, settled: &[bool]) -> Vec<u32> {
        let mut walk = vec![start];
        let mut place = BTreeMap::from([(start, 0)]);
        loop {
            let last = walk[walk.len() - 1];
            let next = self.needs[last as usize].iter().copied().find(|n| !settled[*n as usize]);
            let Some(next) = next else { return walk };
            if let Some(from) = place.insert(next, walk.len()) {
                return walk.split_off(from);
            }
            walk.push(next);
        }
    }

    fn tell(&self, circle: &[u32], drafts: &[Draft<'_>], faults: &mut Faults) {
        let from = circle.iter().enumerate().min_by_key(|(_, task)| **task).map_or(0, |(at, _)| at);
        let round = || circle[from..].iter().chain(&circle[..from]);
        let Some(first) = round().next() else { return };
        let mut names: Vec<&str> = round().chain([first]).map(|t| self.ids[*t as usize].as_str()).collect();
        if names.len() > MAX_SHOWN {
            names.splice(MAX_SHOWN / 2..names.len() - MAX_SHOWN / 2, ["…"]);
        }
        let draft = &drafts[*first as usize];
        let line = draft.needs.first().and_then(|(_, node)| node.at());
        faults.add(
            &format!("{}.needs", draft.path),
            line,
            format!("the needs go in a circle: {}", names.join(" → ")),
        );
    }

    /// A task of nearly that name. Only so many times: each looks at every task.
    fn hint(&self, id: &str) -> String {
        let left = self.hints.get();
        self.hints.set(left.saturating_sub(1));
        if left == 0 { String::new() } else { did_you_mean(id, self.ids.iter().map(TaskId::as_str)) }
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
                let few = faults.0.len() < MAX_HINTS as usize;
                let hint =
                    if few { did_you_mean(name, index.keys().map(TaskId::as_str)) } else { String::new() };
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
