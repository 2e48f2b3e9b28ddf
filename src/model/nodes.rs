//! The nodes of a run: how tasks, items and iterations are laid out in it, and how they are called.
//!
//! ```text
//! tasks   0 .. n        the run's own tasks, as in the plan
//!         n ..          block 1, block 2, …: whatever was laid out later, in the order in which it was
//! block   Body          the tasks of the group `owner`              owner/id
//!         Items         one node per item of the map `owner`        owner[k]
//!         Iteration(n)  one node, an iteration of the loop `owner`  owner#n
//!         Compensation  one node, what undoes `owner`               owner/compensate
//!         Finally       one node, the last group                    finally
//! ```
//!
//! A task with `for_each` and `repeat` is a node with a block of items, each of which has blocks of iterations:
//! the node's [`Level`] says which of these it is.
//!
//! Invariants
//! - A node keeps its number as long as the run lives; nodes are only appended.
//! - Of several blocks of one kind of an owner (a map that was begun anew) the last counts.

use super::ids::{TaskPath, TaskType};
use super::labels::{Labels, QueueName};
use super::plan::{Plan, TaskKind, TaskPlan};
use super::run::{Block, BlockKind, EndStage, RunState, TaskState};

/// What a node is of its task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// All of its items.
    Map,
    /// All of its iterations.
    Loop,
    /// The thing itself.
    Body,
}

/// The outermost level of a task.
fn outermost(task: &TaskPlan) -> Level {
    if task.for_each.is_some() {
        Level::Map
    } else if task.repeat.is_some() {
        Level::Loop
    } else {
        Level::Body
    }
}

impl RunState {
    /// The block of a node; none for the run's own tasks.
    pub fn block_of(&self, node: u32) -> Option<&Block> {
        let number = match self.tasks.get(node as usize) {
            Some(task) => task.block,
            // Of a wide run's head; blocks stand in order.
            None if self.tasks.is_empty() => self.blocks.partition_point(|b| b.first <= node) as u32,
            None => return None,
        };
        self.blocks.get(number.checked_sub(1)? as usize)
    }

    /// The index in the plan of a node's task.
    pub fn plan_index(&self, node: u32) -> u32 {
        match self.block_of(node) {
            None => node,
            Some(b) if b.kind == BlockKind::Body => b.plan + (node - b.first),
            Some(b) => b.plan,
        }
    }

    /// What a node is of its task.
    pub fn level(&self, plan: &Plan, node: u32) -> Level {
        let Some(task) = plan.tasks.get(self.plan_index(node) as usize) else { return Level::Body };
        match self.block_of(node).map(|b| b.kind) {
            None | Some(BlockKind::Body) => outermost(task),
            Some(BlockKind::Items) if task.repeat.is_some() => Level::Loop,
            Some(
                BlockKind::Items | BlockKind::Iteration(_) | BlockKind::Compensation | BlockKind::Finally,
            ) => Level::Body,
        }
    }

    /// The last block of an owner that `is` one of a kind: its number, from 1, and itself.
    pub fn last_block(&self, owner: Option<u32>, is: impl Fn(BlockKind) -> bool) -> Option<(u32, &Block)> {
        let found = self.blocks.iter().rposition(|b| b.owner == owner && is(b.kind))?;
        Some((found as u32 + 1, self.blocks.get(found)?))
    }

    /// By block: whether its nodes are those that paths lead to. Others are of an earlier try: a map or group that was
    /// begun anew has a later block of the same kind.
    pub fn current_blocks(&self) -> Vec<bool> {
        let mut seen = std::collections::HashSet::new();
        let mut current: Vec<bool> =
            self.blocks.iter().rev().map(|b| seen.insert((b.owner, b.kind))).collect();
        current.reverse();
        // What an earlier try did last, or undid, is not told as if it were of this one.
        let concluded = self.status.is_terminal() || self.ending.is_some();
        for (flag, block) in current.iter_mut().zip(&self.blocks) {
            *flag &= match block.kind {
                BlockKind::Finally => {
                    self.status.is_terminal()
                        || self.ending.is_some_and(|e| e.stage == EndStage::Finally(block.first))
                }
                BlockKind::Compensation => {
                    concluded
                        || block.owner.and_then(|o| self.tasks.get(o as usize)).is_some_and(|t| t.undone)
                }
                BlockKind::Body | BlockKind::Items | BlockKind::Iteration(_) => true,
            };
        }
        // A block is in place only if the node it belongs to is; owners stand before what is theirs.
        for n in 0..current.len() {
            let owner = self.blocks.get(n).and_then(|b| b.owner).and_then(|o| self.tasks.get(o as usize));
            let outer = owner.map_or(0, |t| t.block).checked_sub(1);
            let in_place = outer.is_none_or(|b| current.get(b as usize).copied().unwrap_or(false));
            if let Some(flag) = current.get_mut(n) {
                *flag &= in_place;
            }
        }
        current
    }

    /// The node that had the path of this one in an earlier try.
    pub fn before(&self, node: u32) -> Option<u32> {
        let number = self.tasks.get(node as usize)?.block.checked_sub(1)?;
        let block = self.blocks.get(number as usize)?;
        let earlier = |owner: Option<u32>| {
            let known = self.blocks.get(..number as usize)?;
            known.iter().rfind(|b| b.owner == owner && b.kind == block.kind)
        };
        let found = earlier(block.owner)
            .or_else(|| block.owner.and_then(|o| self.before(o)).and_then(|o| earlier(Some(o))))?;
        let offset = node - block.first;
        (offset < found.len).then_some(found.first + offset)
    }

    /// Appends a block; returns its number, from 1. Its nodes are pending and wait for nothing.
    pub fn add_block(&mut self, owner: Option<u32>, kind: BlockKind, plan: u32, len: u32) -> u32 {
        let first = self.tasks.len() as u32;
        self.blocks.push(Block { owner, kind, plan, first, len });
        let block = self.blocks.len() as u32;
        self.tasks.extend((0..len).map(|_| TaskState { block, ..TaskState::pending(0) }));
        block
    }

    /// Whether a node is one of the tasks of a body: not an item, an iteration, a compensation or `finally`.
    pub fn is_in_body(&self, node: u32) -> bool {
        self.block_of(node).is_none_or(|b| b.kind == BlockKind::Body)
    }

    /// Whether a node stands below the run's own tasks, through bodies, items and iterations only.
    pub fn is_in_bodies(&self, mut node: u32) -> bool {
        while let Some(block) = self.block_of(node) {
            match (block.kind, block.owner) {
                (BlockKind::Body | BlockKind::Items | BlockKind::Iteration(_), Some(owner)) => node = owner,
                _ => return false,
            }
        }
        true
    }

    /// Whether a node is an iteration, or stands in one, that another has followed.
    pub fn is_followed(&self, mut node: u32) -> bool {
        while let Some(block) = self.block_of(node) {
            let number = self.tasks.get(node as usize).map_or(0, |t| t.block);
            let iteration = |k| matches!(k, BlockKind::Iteration(_));
            let last = self.last_block(block.owner, iteration).map(|(n, _)| n);
            if iteration(block.kind) && last != Some(number) {
                return true;
            }
            match block.owner {
                Some(owner) => node = owner,
                None => return false,
            }
        }
        false
    }

    /// Whether a node stands below another, or is it.
    pub fn is_within(&self, mut node: u32, above: u32) -> bool {
        loop {
            if node == above {
                return true;
            }
            match self.block_of(node).and_then(|b| b.owner) {
                Some(owner) => node = owner,
                None => return false,
            }
        }
    }

    /// How a node is called.
    pub fn path_of(&self, plan: &Plan, node: u32) -> TaskPath {
        let id = |i: u32| plan.tasks.get(i as usize).map_or("", |t| t.id.as_str());
        let Some(first) = self.block_of(node) else {
            return plan.tasks.get(node as usize).map_or_else(TaskPath::nowhere, |t| TaskPath::from(&t.id));
        };
        let mut parts = Vec::new();
        let (mut node, mut at) = (node, Some(first));
        while let Some(block) = at {
            parts.push(match block.kind {
                BlockKind::Body => format!("/{}", id(self.plan_index(node))),
                BlockKind::Items => format!("[{}]", node - block.first),
                BlockKind::Iteration(n) => format!("#{n}"),
                BlockKind::Compensation => "/compensate".to_owned(),
                BlockKind::Finally => "finally".to_owned(),
            });
            let Some(owner) = block.owner else { break };
            node = owner;
            at = self.block_of(node);
            if at.is_none() {
                parts.push(id(node).to_owned());
            }
        }
        parts.reverse();
        TaskPath::parse(&parts.concat()).unwrap_or_else(|_| TaskPath::nowhere())
    }

    /// The node of a path; none if there is none (yet).
    pub fn find(&self, plan: &Plan, path: &TaskPath) -> Option<u32> {
        // The usual case: one of the run's own tasks.
        let own = plan.index_of(path.as_str()).filter(|i| plan.body.contains(i));
        if own.is_some() && path.as_str() != "finally" {
            return own;
        }
        let mut at: Option<u32> = None;
        for segment in path.as_str().split('/') {
            let end = segment.bytes().position(|b| matches!(b, b'[' | b'#')).unwrap_or(segment.len());
            let (id, mut rest) = segment.split_at(end);
            at = Some(match at {
                None if id == "finally" => self.last_block(None, |k| k == BlockKind::Finally)?.1.first,
                None => plan.index_of(id).filter(|i| plan.body.contains(i))?,
                Some(owner) if id == "compensate" => {
                    self.last_block(Some(owner), |k| k == BlockKind::Compensation)?.1.first
                }
                Some(owner) => {
                    let (_, block) = self.last_block(Some(owner), |k| k == BlockKind::Body)?;
                    let offset = plan.index_of(id)?.checked_sub(block.plan).filter(|n| *n < block.len)?;
                    block.first + offset
                }
            });
            while let Some(digits) = rest.get(1..) {
                let len = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
                let number: u32 = digits.get(..len)?.parse().ok()?;
                if rest.starts_with('[') {
                    let (_, block) = self.last_block(at, |k| k == BlockKind::Items)?;
                    at = Some(block.first + Some(number).filter(|n| *n < block.len)?);
                    rest = digits.get(len + 1..)?;
                } else {
                    at = Some(self.last_block(at, |k| k == BlockKind::Iteration(number))?.1.first);
                    rest = digits.get(len..)?;
                }
            }
        }
        at
    }

    /// The queue that feeds a node; none for those that no worker does.
    pub fn queue_of(&self, plan: &Plan, node: u32) -> Option<QueueName> {
        let task_type = self.type_of(plan, node)?.clone();
        Some(QueueName { task_type, labels: self.labels_of(plan, node).clone() })
    }

    /// What a worker must have to be given a node.
    pub fn labels_of<'a>(&self, plan: &'a Plan, node: u32) -> &'a Labels {
        plan.tasks.get(self.plan_index(node) as usize).map_or(Labels::NONE_REF, |task| &task.labels)
    }

    /// What a worker must be able to do to be given a node; none for those that no worker does.
    pub fn type_of<'a>(&'a self, plan: &'a Plan, node: u32) -> Option<&'a TaskType> {
        let task = self.tasks.get(node as usize)?;
        if task.task_type.is_some() {
            return task.task_type.as_ref();
        }
        match &plan.tasks.get(self.plan_index(node) as usize)?.kind {
            TaskKind::Worker(task_type) => Some(task_type),
            TaskKind::WorkerOf(_)
            | TaskKind::Workflow(_)
            | TaskKind::Group(_)
            | TaskKind::Wait(_)
            | TaskKind::Set(_)
            | TaskKind::Fail { .. }
            | TaskKind::Finish { .. } => None,
        }
    }
}
