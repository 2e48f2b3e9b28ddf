//! Who waits for whom: resolves `needs`, finds circles, and knows what is upstream of what, body by body.

use super::fields::Faults;
use super::node::{Node, shown};
use super::tree::Tree;
use crate::model::ids::TaskId;
use crate::model::nearest::did_you_mean;
use crate::model::plan::Role;
use std::cell::Cell;
use std::collections::BTreeSet;
use std::ops::Range;

/// The dependencies of a document's tasks, by index.
#[derive(Debug)]
pub(super) struct Graph {
    /// Sorted, each once.
    pub(super) needs: Vec<Vec<u32>>,
    /// Sorted, each once.
    pub(super) dependents: Vec<Vec<u32>>,
    /// By task, a bit for each task of its body that is upstream; `None` in and behind a circle, where nobody knows.
    upstream: Vec<Option<Vec<u64>>>,
}

/// How many comparisons hints may cost; each looks at every task.
const MAX_COMPARISONS: usize = 200_000;
/// Most tasks of a circle that are told by name.
const MAX_SHOWN: usize = 20;

/// Looks for tasks of nearly a name, as long as it does not cost too much.
#[derive(Debug)]
pub(super) struct Hints(Cell<usize>);

impl Default for Hints {
    fn default() -> Self {
        Self(Cell::new(MAX_COMPARISONS))
    }
}

impl Hints {
    pub(super) fn near(&self, id: &str, tree: &Tree<'_>) -> String {
        let Some(left) = self.0.get().checked_sub(tree.index.len()) else { return String::new() };
        self.0.set(left);
        did_you_mean(id, tree.index.keys().map(TaskId::as_str))
    }
}

impl Graph {
    /// Resolves the needs of all tasks.
    pub(super) fn of(tree: &Tree<'_>, hints: &Hints, faults: &mut Faults) -> Self {
        let count = tree.drafts.len();
        let needs: Vec<Vec<u32>> = (0..count as u32).map(|task| resolve(task, tree, hints, faults)).collect();
        let mut dependents = vec![Vec::new(); count];
        for (task, needs) in needs.iter().enumerate() {
            for need in needs {
                dependents[*need as usize].push(task as u32);
            }
        }
        let mut graph = Self { upstream: vec![None; count], needs, dependents };
        graph.close(&tree.body, tree, faults);
        for group in 0..count as u32 {
            graph.close(&tree.body_of(group), tree, faults);
        }
        graph
    }

    /// Whether `wanted` is upstream of `reader`, which stands in the same body, the one that begins at `from`.
    /// Behind a circle, which has been told, nobody knows: then it may be.
    pub(super) fn is_upstream(&self, wanted: u32, reader: u32, from: u32) -> bool {
        let bit = wanted - from;
        match &self.upstream[reader as usize] {
            Some(above) => above[bit as usize / 64] & (1 << (bit % 64)) != 0,
            None => true,
        }
    }

    /// Fills `upstream` of a body in the order of dependencies, and tells every circle once.
    fn close(&mut self, body: &Range<u32>, tree: &Tree<'_>, faults: &mut Faults) {
        let place = |task: u32| (task - body.start) as usize;
        let words = body.len().div_ceil(64);
        let mut waiting: Vec<usize> = body.clone().map(|t| self.needs[t as usize].len()).collect();
        let mut settled = vec![false; body.len()];
        let mut ready: Vec<u32> = body.clone().filter(|t| waiting[place(*t)] == 0).collect();
        let mut circles = Circles::new(body.clone());
        let mut sound = true;
        loop {
            while let Some(task) = ready.pop() {
                // A circle settles all of its tasks at once, whatever they still wait for.
                if std::mem::replace(&mut settled[place(task)], true) {
                    continue;
                }
                if sound {
                    let mut above = vec![0u64; words];
                    for need in &self.needs[task as usize] {
                        let bit = place(*need);
                        above[bit / 64] |= 1 << (bit % 64);
                        for (word, more) in
                            above.iter_mut().zip(self.upstream[*need as usize].iter().flatten())
                        {
                            *word |= more;
                        }
                    }
                    self.upstream[task as usize] = Some(above);
                }
                for dependent in &self.dependents[task as usize] {
                    let left = &mut waiting[place(*dependent)];
                    *left = left.saturating_sub(1);
                    if *left == 0 {
                        ready.push(*dependent);
                    }
                }
            }
            // What is left is in circles or behind them.
            sound = false;
            let Some(circle) = circles.next(&self.needs, &settled) else { return };
            tell(&circle, tree, faults);
            ready.extend(circle);
        }
    }
}

/// Finds circles among what is not settled, one at a time. Each need is gone through once over all of them: the
/// walk goes on where the last circle was cut off it.
struct Circles {
    body: Range<u32>,
    /// Everything below is settled.
    next: usize,
    walk: Vec<u32>,
    /// By task: its place in the walk.
    places: Vec<Option<usize>>,
    /// By task: how many of its needs are known to be settled.
    passed: Vec<usize>,
}

impl Circles {
    fn new(body: Range<u32>) -> Self {
        let (places, passed) = (vec![None; body.len()], vec![0; body.len()]);
        Self { body, next: 0, walk: Vec::new(), places, passed }
    }

    /// A circle; `None` if all is settled. Every task left needs another one left.
    fn next(&mut self, needs: &[Vec<u32>], settled: &[bool]) -> Option<Vec<u32>> {
        let from = self.body.start;
        let place = |task: u32| (task - from) as usize;
        while let Some(last) = self.walk.pop_if(|last| settled[place(*last)]) {
            self.places[place(last)] = None;
        }
        if self.walk.is_empty() {
            while *settled.get(self.next)? {
                self.next += 1;
            }
            self.places[self.next] = Some(0);
            self.walk.push(from + self.next as u32);
        }
        loop {
            let last = *self.walk.last()?;
            let (needs, passed) = (&needs[last as usize], &mut self.passed[place(last)]);
            while settled[place(*needs.get(*passed)?)] {
                *passed += 1;
            }
            let next = needs[*passed];
            if let Some(at) = self.places[place(next)] {
                let circle = self.walk.split_off(at);
                for task in &circle {
                    self.places[place(*task)] = None;
                }
                return Some(circle);
            }
            self.places[place(next)] = Some(self.walk.len());
            self.walk.push(next);
        }
    }
}

fn tell(circle: &[u32], tree: &Tree<'_>, faults: &mut Faults) {
    let from = circle.iter().enumerate().min_by_key(|(_, task)| **task).map_or(0, |(at, _)| at);
    let round = || circle[from..].iter().chain(&circle[..from]);
    let Some(first) = round().next() else { return };
    let mut names: Vec<&str> = round().chain([first]).map(|t| tree.drafts[*t as usize].id.as_str()).collect();
    if names.len() > MAX_SHOWN {
        names.splice(MAX_SHOWN / 2..names.len() - MAX_SHOWN / 2, ["…"]);
    }
    let draft = &tree.drafts[*first as usize];
    let line = draft.needs.first().and_then(|(_, node)| node.at());
    faults.add(
        &format!("{}.needs", draft.path),
        line,
        format!("the needs go in a circle: {}", names.join(" → ")),
    );
}

/// The needs of a task: tasks of its own body.
fn resolve(task: u32, tree: &Tree<'_>, hints: &Hints, faults: &mut Faults) -> Vec<u32> {
    let draft = &tree.drafts[task as usize];
    let body = tree.body_around(task);
    let mut needs = BTreeSet::new();
    for (n, (name, node)) in draft.needs.iter().enumerate() {
        let at = |faults: &mut Faults, node: &Node, message: String| {
            faults.add(&format!("{}.needs[{n}]", draft.path), node.at(), message);
        };
        if *name == draft.id.as_str() {
            at(faults, node, format!("the task needs itself: {name} → {name}"));
            continue;
        }
        match TaskId::new(name).ok().and_then(|id| tree.index.get(&id).copied()) {
            Some(need) if !body.contains(&need) => at(faults, node, elsewhere(need, task, tree)),
            Some(need) if needs.insert(need) => {}
            Some(_) => at(faults, node, format!("'{name}' is listed twice")),
            None => at(faults, node, format!("there is no task {}{}", shown(name), hints.near(name, tree))),
        }
    }
    needs.into_iter().collect()
}

/// Why a task of another body cannot be needed.
fn elsewhere(need: u32, task: u32, tree: &Tree<'_>) -> String {
    let id = |task: u32| tree.drafts[task as usize].id.as_str();
    let name = id(need);
    if tree.above(task).any(|t| t == need) {
        return format!("'{name}' is the group this task stands in; needs name tasks beside it");
    }
    let in_finally = |task: u32| tree.above(task).any(|t| tree.drafts[t as usize].role == Role::Finally);
    match (in_finally(need), in_finally(task)) {
        (true, false) => return format!("'{name}' is part of 'finally', which comes after all other tasks"),
        (false, true) => {
            return format!(
                "'{name}' is not part of 'finally', which begins when all of it has ended; leave it out"
            );
        }
        (true, true) | (false, false) => {}
    }
    let body = tree.body_around(task);
    if let Some(group) = tree.above(need).find(|t| body.contains(t)) {
        return format!("'{name}' stands inside of the group '{0}'; need '{0}' instead", id(group));
    }
    let beside = tree.above(task).skip(1).find(|t| tree.body_around(*t).contains(&need));
    match beside {
        Some(group) => {
            format!("'{name}' stands outside of the group '{0}'; put it into the needs of '{0}'", id(group))
        }
        None => format!("'{name}' stands in another group; needs name tasks of the same one"),
    }
}
