//! An ended run begins another try: what failed, timed out, was cancelled or undone is reset, and everything
//! behind it; what completed is kept. `finally` is done again.
//!
//! A group, map, loop or child that did not complete is entered again and only what is inside it and did not complete
//! is reset; one behind something that is reset is reset whole.

use super::graph::Cascade;
use super::step::Step;
use crate::model::event::EventKind;
use crate::model::nodes::Level;
use crate::model::payload::Payload;
use crate::model::run::{BlockKind, Entry, Errand, RunStatus, TaskPhase, TaskState, Waiting};
use std::collections::BTreeMap;
use std::ops::Range;

/// What becomes of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reset {
    /// It begins anew.
    Whole,
    /// It is entered again.
    Inside,
}

type Resets = BTreeMap<u32, Reset>;

impl Step<'_> {
    /// Begins another try. `from`: a node that begins anew although it completed. False: there is nothing to reset.
    pub(super) fn try_again(&mut self, from: Option<u32>, cascade: &mut Cascade) -> bool {
        let mut resets = Resets::new();
        self.mark_body(self.plan.body.clone(), from, &mut resets);
        if resets.is_empty() && self.work.state.status == RunStatus::Completed {
            return false;
        }
        let (now, plan) = (self.now, self.plan);
        let state = &mut self.work.state;
        state.try_number = state.try_number.saturating_add(1);
        state.status = RunStatus::Running;
        state.ended_at = None;
        state.error = None;
        state.ending = None;
        state.output = Payload::Null;
        state.deadline = plan.timeout.map(|t| now.plus(t));
        state.open_tasks = 0;
        // Whoever started it is told of the end of this try.
        state.outbox.pending.retain(|_, m| m.what != Errand::Ended);
        let whole: Vec<u32> = resets.iter().filter(|(_, r)| **r == Reset::Whole).map(|(n, _)| *n).collect();
        let mut undo = std::mem::take(&mut state.undo);
        undo.retain(|u| !whole.iter().any(|n| state.is_within(u.node, *n)));
        state.undo = undo;
        if let Some(deadline) = state.deadline {
            self.want(deadline);
        }
        self.log_run(EventKind::RunRetried, None);
        let open = self.reset_body(plan.body.clone(), &resets, from, cascade);
        self.work.state.open_tasks = open;
        if open == 0 {
            cascade.conclude();
        }
        true
    }

    /// Marks what is to be reset among the nodes of a body. True: anything is.
    fn mark_body(&self, nodes: Range<u32>, from: Option<u32>, resets: &mut Resets) -> bool {
        let mut marked = Vec::new();
        for node in nodes.clone() {
            if let Some(reset) = self.mark(node, from, resets) {
                resets.insert(node, reset);
                marked.push(node);
            }
        }
        let any = !marked.is_empty();
        // Everything behind what begins again begins anew.
        while let Some(node) = marked.pop() {
            let shift = node.wrapping_sub(self.work.state.plan_index(node));
            for &d in &self.plan_of(node).dependents {
                let behind = d.wrapping_add(shift);
                if resets.insert(behind, Reset::Whole) != Some(Reset::Whole) {
                    marked.push(behind);
                }
            }
        }
        any
    }

    fn mark(&self, node: u32, from: Option<u32>, resets: &mut Resets) -> Option<Reset> {
        if from == Some(node) {
            return Some(Reset::Whole);
        }
        // From a task that is named, what had been forgiven elsewhere stays.
        let forgiven = self.counts_of(node) == (false, true) && !self.task(node).undone;
        if from.is_some_and(|from| forgiven && !self.work.state.is_within(from, node)) {
            return None;
        }
        let task = self.task(node);
        let completed = match task.phase {
            TaskPhase::Completed { .. } if task.undone => return Some(Reset::Whole),
            TaskPhase::Skipped { counts_as_failed: true } => return Some(Reset::Whole),
            TaskPhase::Skipped { counts_as_failed: false } => return None,
            TaskPhase::Completed { .. } => true,
            TaskPhase::Pending { .. }
            | TaskPhase::Queued { .. }
            | TaskPhase::Running { .. }
            | TaskPhase::Retrying { .. }
            | TaskPhase::Waiting(_)
            | TaskPhase::Failed { .. }
            | TaskPhase::Cancelled
            | TaskPhase::TimedOut { .. } => false,
        };
        match self.inside(node).map(|(_, kind, nodes)| (kind, nodes)) {
            None if self.has_child_to_retry(node) => Some(Reset::Inside),
            None => (!completed).then_some(Reset::Whole),
            Some((BlockKind::Body, nodes)) => {
                let any = self.mark_body(nodes, from, resets);
                (any || !completed).then_some(Reset::Inside)
            }
            Some((BlockKind::Items, nodes)) => {
                let mut any = false;
                for item in nodes {
                    if let Some(reset) = self.mark(item, from, resets) {
                        resets.insert(item, reset);
                        any = true;
                    }
                }
                (any || !completed).then_some(Reset::Inside)
            }
            Some((_, nodes)) => {
                let iteration = nodes.start;
                match self.mark(iteration, from, resets) {
                    Some(reset) => {
                        resets.insert(iteration, reset);
                        Some(Reset::Inside)
                    }
                    // The loop itself failed, behind an iteration that completed: it has run out.
                    None => (!completed).then_some(Reset::Whole),
                }
            }
        }
    }

    /// The nodes directly inside a node, if it has begun, and their block: its number, from 1, and kind.
    fn inside(&self, node: u32) -> Option<(u32, BlockKind, Range<u32>)> {
        let within = |k| matches!(k, BlockKind::Body | BlockKind::Items | BlockKind::Iteration(_));
        let (number, block) = self.work.state.last_block(Some(node), within)?;
        Some((number, block.kind, block.first..block.first + block.len))
    }

    /// Resets marked nodes of a body and what is inside them; returns how many are open then.
    fn reset_body(
        &mut self,
        nodes: Range<u32>,
        resets: &Resets,
        from: Option<u32>,
        cascade: &mut Cascade,
    ) -> u32 {
        let mut open = 0;
        for node in nodes {
            let Some(reset) = resets.get(&node) else { continue };
            open += 1;
            match reset {
                Reset::Inside => self.enter(node, resets, from, cascade),
                Reset::Whole => {
                    let shift = node.wrapping_sub(self.work.state.plan_index(node));
                    let (mut remaining, mut any_failed, mut any_completed) = (0, false, false);
                    for &need in &self.plan_of(node).needs {
                        let need = need.wrapping_add(shift);
                        if resets.contains_key(&need) {
                            remaining += 1;
                            continue;
                        }
                        let (failed, completed) = self.counts_of(need);
                        any_failed |= failed;
                        any_completed |= completed;
                    }
                    self.reset(node);
                    self.task_mut(node).phase = TaskPhase::Pending { remaining, any_failed, any_completed };
                    if remaining == 0 {
                        cascade.look_at(node);
                    }
                }
            }
        }
        open
    }

    /// A node as if it had never begun, but for the numbers of its attempts.
    fn reset(&mut self, node: u32) {
        let task = self.task_mut(node);
        let (input, fixed_input) =
            if task.fixed_input { (std::mem::take(&mut task.input), true) } else { (Payload::Null, false) };
        *task = TaskState {
            block: task.block,
            attempt: task.attempt,
            accepted: task.accepted,
            input,
            fixed_input,
            ..TaskState::pending(0)
        };
    }

    /// A node that was to be entered again has its slot.
    pub(super) fn enter_again(&mut self, node: u32, from: Option<u32>, cascade: &mut Cascade) {
        let mut resets = Resets::new();
        if let Some((_, _, nodes)) = self.inside(node) {
            self.mark_body(nodes, from, &mut resets);
        }
        self.enter(node, &resets, from, cascade);
    }

    /// Makes a node wait again for what is inside it.
    fn enter(&mut self, node: u32, resets: &Resets, from: Option<u32>, cascade: &mut Cascade) {
        if self.work.state.level(self.plan, node) == Level::Body && self.lacks_permit(node) {
            // What is inside it stays as it is until then.
            return self.wait_for_permit(node, Entry::Again { from }, cascade);
        }
        let Some((number, kind, nodes)) = self.inside(node) else { return self.retry_child(node) };
        let waiting = match kind {
            BlockKind::Body => {
                let open = self.reset_body(nodes, resets, from, cascade);
                Waiting::Body { block: number, open, error: None, undoing: None }
            }
            BlockKind::Items => {
                // Those that wait for nothing but their turn are found from the first on.
                let mut open = 0;
                for item in nodes {
                    match resets.get(&item) {
                        Some(Reset::Whole) => self.reset(item),
                        Some(Reset::Inside) => {
                            open += 1;
                            self.enter(item, resets, from, cascade);
                        }
                        None => {}
                    }
                }
                Waiting::Items { block: number, next: 0, open, failed: 0, error: None }
            }
            BlockKind::Iteration(index) => {
                let state = &self.work.state;
                let before = index.checked_sub(1).and_then(|n| {
                    let (_, block) = state.last_block(Some(node), |k| k == BlockKind::Iteration(n))?;
                    match &state.tasks.get(block.first as usize)?.phase {
                        TaskPhase::Completed { output } => Some(output.clone()),
                        _ => None,
                    }
                });
                let waiting = Waiting::Iterations {
                    block: number,
                    index,
                    due: None,
                    previous: before.unwrap_or_default(),
                    undoing: None,
                };
                let iteration = nodes.start;
                match resets.get(&iteration) {
                    Some(Reset::Whole) => {
                        self.reset(iteration);
                        cascade.begin(iteration);
                    }
                    Some(Reset::Inside) => self.enter(iteration, resets, from, cascade),
                    None => {}
                }
                waiting
            }
            BlockKind::Compensation | BlockKind::Finally => return,
        };
        let now = self.now;
        let total = self.plan_of(node).timeout.total.filter(|_| kind == BlockKind::Body);
        let task = self.task_mut(node);
        task.phase = TaskPhase::Waiting(waiting);
        task.undone = false;
        task.first_queued_at = (kind == BlockKind::Body).then_some(now);
        if let Some(total) = total {
            self.want(now.plus(total));
        }
        self.log_task(EventKind::TaskWaiting, node, None, None);
        cascade.advance(node);
    }
}
