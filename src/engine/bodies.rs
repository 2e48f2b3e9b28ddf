//! What goes on inside a node: tasks of a group, items of a map, iterations of a loop. Each waits for those
//! inside it with counters, so that an end among them is O(1) whatever their number.

use super::graph::{Cascade, End};
use super::payload::{self, keep};
use super::scope::{Halt, Value, View, oversize, truth};
use super::step::{Step, Words};
use crate::model::event::EventKind;
use crate::model::json;
use crate::model::payload::{Field, PAYLOAD_MAX, Payload};
use crate::model::plan::{Group, TaskKind};
use crate::model::run::{Block, BlockKind, RunState, RunStatus, TaskPhase, Undo, Waiting};
use crate::model::time::Timestamp;
use bytes::Bytes;
use std::collections::BTreeSet;
use std::ops::Range;

/// Code of the failure of what took longer than its `timeout.total`.
pub(super) const TIMED_OUT: &str = "timeout_total";

impl<'s> Step<'s> {
    /// The nodes of a block.
    pub(super) fn nodes(&self, block: u32) -> Range<u32> {
        let found = block.checked_sub(1).and_then(|b| self.work.state.blocks.get(b as usize));
        found.map_or(0..0, |b| b.first..b.first + b.len)
    }

    /// The group that a node is.
    pub(super) fn group_of(&self, i: u32) -> Option<&'s Group> {
        match &self.plan_of(i).kind {
            TaskKind::Group(group) => Some(group),
            TaskKind::Worker(_)
            | TaskKind::WorkerOf(_)
            | TaskKind::Workflow(_)
            | TaskKind::Wait(_)
            | TaskKind::Set(_)
            | TaskKind::Fail { .. }
            | TaskKind::Finish { .. } => None,
        }
    }

    /// Lets a node see what has become of those inside it.
    pub(super) fn advance(&mut self, i: u32, cascade: &mut Cascade) {
        let TaskPhase::Waiting(waiting) = &self.task(i).phase else { return };
        match waiting.clone() {
            Waiting::Body { open: 0, error, undoing, .. } => self.end_group(i, error, undoing, cascade),
            Waiting::Items { block, .. } => self.advance_items(i, block, cascade),
            Waiting::Iterations { block, index, due, .. } => {
                self.advance_loop(i, block, index, due, cascade);
            }
            Waiting::Permit { entry, .. } => self.advance_permit(i, entry, cascade),
            Waiting::Rate { due, .. } => self.advance_rate(i, due, cascade),
            Waiting::Body { .. } | Waiting::Timer { .. } | Waiting::Signal { .. } | Waiting::Child { .. } => {
            }
        }
    }

    /// The tasks of a group have ended: it is undone if it has failed, then it ends.
    fn end_group(&mut self, i: u32, error: Option<u32>, undoing: Option<u32>, cascade: &mut Cascade) {
        if let Some(compensation) = undoing
            && !self.task(compensation).phase.is_terminal()
        {
            return;
        }
        if let Some(failure) = error {
            if let Some(compensation) = self.undo_next(Some(i), cascade) {
                if let TaskPhase::Waiting(Waiting::Body { undoing, .. }) = &mut self.task_mut(i).phase {
                    *undoing = Some(compensation);
                }
                return;
            }
            let own = |f: &crate::model::run::Failure| f.task == Some(i) && f.code == TIMED_OUT;
            let timed_out = self.work.state.failures.get(failure as usize).is_some_and(own);
            let end = if timed_out { End::TimedOut { failure } } else { End::Failed { failure } };
            return self.end_task(i, end, cascade);
        }
        if self.is_stopping(i) {
            return self.end_task(i, End::Cancelled, cascade);
        }
        let template = self.group_of(i).and_then(|group| group.output.as_ref());
        let what = || format!("tasks.{}.output", self.path(i));
        let value = match template {
            Some(template) => self.evaluate(View::inside(i), Some(template), what, "output_too_large"),
            None => self.outputs_by_id(i),
        };
        match value {
            Ok(value) => {
                let output = self.keep_output(i, value);
                self.complete_task(i, output, cascade);
            }
            Err(halt) => {
                if let Some(words) = halt.words(cascade) {
                    // Like any failure of the group: what completed in it is undone.
                    let failure = self.add_failure(&words, Some(i));
                    if let TaskPhase::Waiting(Waiting::Body { error, .. }) = &mut self.task_mut(i).phase {
                        *error = Some(failure);
                    }
                    cascade.advance(i);
                }
            }
        }
    }

    /// Takes the last completed task within a node (none: in the run) that has to be undone, and starts what
    /// undoes it. None: there is none left.
    pub(super) fn undo_next(&mut self, within: Option<u32>, cascade: &mut Cascade) -> Option<u32> {
        let state = &mut self.work.state;
        let is_within =
            |u: &Undo| within.is_none_or(|above| u.node != above && state.is_within(u.node, above));
        let last = state.undo.iter().rposition(is_within)?;
        let Undo { node, input } = state.undo.remove(last);
        let plan = self.plan_of(node).compensate?;
        self.task_mut(node).undone = true;
        let block = self.lay_out(Some(node), BlockKind::Compensation, plan, 1).ok()?;
        let compensation = self.nodes(block).start;
        let task = self.task_mut(compensation);
        task.input = input;
        task.fixed_input = true;
        cascade.begin(compensation);
        Some(compensation)
    }

    /// What a node came to; null if it did not complete. Fields that are not at hand are added to `missing`.
    fn output_into(&self, node: u32, out: &mut Vec<u8>, missing: &mut BTreeSet<Field>) {
        let TaskPhase::Completed { output } = &self.task(node).phase else {
            return out.extend_from_slice(b"null");
        };
        match payload::resolve(output, &self.work.written, self.payloads) {
            Ok(json) => out.extend_from_slice(&json),
            Err(field) => {
                missing.insert(field);
            }
        }
    }

    fn outputs_by_id(&self, i: u32) -> Result<Value, Halt> {
        let TaskPhase::Waiting(Waiting::Body { block, .. }) = self.task(i).phase else {
            return Ok(Value::of(payload::NULL));
        };
        let (mut out, mut missing) = (vec![b'{'], BTreeSet::new());
        for (n, node) in self.nodes(block).enumerate() {
            if n > 0 {
                out.push(b',');
            }
            json::write_string(self.plan_of(node).id.as_str(), &mut out);
            out.push(b':');
            self.output_into(node, &mut out, &mut missing);
        }
        out.push(b'}');
        self.made(i, out, missing)
    }

    fn made(&self, i: u32, out: Vec<u8>, missing: BTreeSet<Field>) -> Result<Value, Halt> {
        if !missing.is_empty() {
            return Err(Halt::Missing(missing));
        }
        if out.len() > PAYLOAD_MAX {
            return Err(
                oversize(&format!("tasks.{}.output", self.path(i)), "output_too_large", out.len()).into()
            );
        }
        Ok(Value::of(Bytes::from(out)))
    }

    fn advance_items(&mut self, i: u32, block: u32, cascade: &mut Cascade) {
        let Some(for_each) = &self.plan_of(i).for_each else { return };
        let nodes = self.nodes(block);
        let len = nodes.end - nodes.start;
        let paused = self.work.state.status == RunStatus::Paused;
        let tolerated = for_each.tolerate.of(len);
        let limit = for_each.max_parallel.unwrap_or(u32::MAX);
        let TaskPhase::Waiting(Waiting::Items { next, open, failed, error, .. }) = &self.task(i).phase else {
            return;
        };
        let (mut next, mut open, failed, error) = (*next, *open, *failed, *error);
        let stopping = self.is_stopping(i);
        if failed > tolerated || stopping {
            // No further item starts.
            for node in nodes.clone() {
                if matches!(self.task(node).phase, TaskPhase::Pending { .. }) {
                    open -= u32::from(node - nodes.start < next);
                    let end = End::Skipped { counts_as_failed: true };
                    self.close(node, end, EventKind::TaskSkipped, None);
                }
            }
            next = len;
        }
        while !paused && next < len && open < limit {
            let node = nodes.start + next;
            next += 1;
            if matches!(self.task(node).phase, TaskPhase::Pending { .. }) {
                open += 1;
                cascade.begin(node);
            }
        }
        if let TaskPhase::Waiting(Waiting::Items { next: n, open: o, .. }) = &mut self.task_mut(i).phase {
            (*n, *o) = (next, open);
        }
        if open > 0 || next < len {
            return;
        }
        if stopping && failed <= tolerated {
            return self.end_task(i, End::Cancelled, cascade);
        }
        if failed > tolerated {
            let failure = error.unwrap_or_else(|| {
                self.add_failure(&Words::new("items_failed", "more items failed than are tolerated"), Some(i))
            });
            return self.end_task(i, End::Failed { failure }, cascade);
        }
        let (mut out, mut missing) = (vec![b'['], BTreeSet::new());
        for (n, node) in nodes.enumerate() {
            if n > 0 {
                out.push(b',');
            }
            self.output_into(node, &mut out, &mut missing);
        }
        out.push(b']');
        match self.made(i, out, missing) {
            Ok(value) => {
                let output = self.keep_output(i, value);
                self.complete_task(i, output, cascade);
            }
            Err(halt) => self.halt(i, halt, cascade),
        }
    }

    fn advance_loop(
        &mut self,
        i: u32,
        block: u32,
        index: u32,
        due: Option<Timestamp>,
        cascade: &mut Cascade,
    ) {
        let Some(repeat) = &self.plan_of(i).repeat else { return };
        let output = match &self.task(self.nodes(block).start).phase {
            TaskPhase::Completed { output } => output.clone(),
            // By hand.
            TaskPhase::Skipped { .. } => Payload::Null,
            TaskPhase::Failed { failure } => {
                let end = End::Failed { failure: *failure };
                return self.end_loop(i, end, cascade);
            }
            TaskPhase::TimedOut { failure } => {
                let end = End::TimedOut { failure: *failure };
                return self.end_loop(i, end, cascade);
            }
            TaskPhase::Cancelled => return self.end_loop(i, End::Cancelled, cascade),
            TaskPhase::Pending { .. }
            | TaskPhase::Queued { .. }
            | TaskPhase::Running { .. }
            | TaskPhase::Retrying { .. }
            | TaskPhase::Waiting(_) => return,
        };
        if self.work.state.status == RunStatus::Paused || due.is_some_and(|due| due > self.now) {
            return;
        }
        if due.is_none() {
            let last = index + 1 >= repeat.max;
            let more = match &repeat.condition {
                None => !last,
                Some(condition) => {
                    let what = || format!("tasks.{}.repeat.while", self.path(i));
                    let value = self.evaluate(View::after(i), Some(condition), what, "value_too_large");
                    match value.and_then(|v| Ok(truth(&v.json, &what())?)) {
                        Ok(more) => more,
                        Err(halt) => return self.halt(i, halt, cascade),
                    }
                }
            };
            if !more {
                return self.complete_task(i, output, cascade);
            }
            if self.is_stopping(i) {
                return self.end_task(i, End::Cancelled, cascade);
            }
            if last {
                let message = format!(
                    "tasks.{}.repeat.while still holds after {} iterations",
                    self.path(i),
                    repeat.max
                );
                return self.fail_task(i, &Words::new("loop_exhausted", message), cascade);
            }
            if let Some(delay) = &repeat.delay {
                let Some(span) = self.span(i, View::after(i), "repeat.delay", delay, cascade) else { return };
                let at = self.now.plus(span);
                if at > self.now {
                    if let TaskPhase::Waiting(Waiting::Iterations { due, .. }) = &mut self.task_mut(i).phase {
                        *due = Some(at);
                    }
                    return self.want(at);
                }
            }
        }
        self.begin_iteration(i, index + 1, output, cascade);
    }

    /// A loop has failed: the iterations that completed are undone, the last one first, then it ends.
    fn end_loop(&mut self, i: u32, end: End, cascade: &mut Cascade) {
        let TaskPhase::Waiting(Waiting::Iterations { undoing, .. }) = &self.task(i).phase else { return };
        if undoing.is_some_and(|n| !self.task(n).phase.is_terminal()) {
            return;
        }
        match self.undo_next(Some(i), cascade) {
            Some(compensation) => {
                if let TaskPhase::Waiting(Waiting::Iterations { undoing, .. }) = &mut self.task_mut(i).phase {
                    *undoing = Some(compensation);
                }
            }
            None => self.end_task(i, end, cascade),
        }
    }

    /// Ends everything that is open inside a node, which is about to end itself; nobody is told.
    pub(super) fn cancel_within(&mut self, above: u32) {
        for node in self.open_within(above) {
            self.revoke(node);
            self.close(node, End::Cancelled, EventKind::TaskCancelled, None);
        }
    }

    /// The time of a node that waits for those inside it has passed: they are cancelled, the node fails.
    pub(super) fn time_out(&mut self, i: u32, words: &Words, cascade: &mut Cascade) {
        self.fail_scope(i, words, |failure| End::TimedOut { failure }, cascade);
    }

    /// Fails a node from outside: what is open inside it is cancelled, and what completed in it undone if it is a
    /// group. `end` is how it ends if it is none.
    pub(super) fn fail_scope(
        &mut self,
        i: u32,
        words: &Words,
        end: impl FnOnce(u32) -> End,
        cascade: &mut Cascade,
    ) {
        self.cancel_within(i);
        self.revoke(i);
        let failure = self.add_failure(words, Some(i));
        match &mut self.task_mut(i).phase {
            TaskPhase::Waiting(Waiting::Body { open, error, undoing, .. }) => {
                // Undoing has no time of its own.
                (*open, *error, *undoing) = (0, Some(failure), None);
                self.task_mut(i).first_queued_at = None;
                cascade.advance(i);
            }
            _ => self.end_task(i, end(failure), cascade),
        }
    }

    /// Keeps a value by hand as a node's output.
    pub(super) fn keep_json(&mut self, i: u32, json: Bytes) -> Payload {
        let field = self.fields();
        keep(json, || field(format_args!("o{i}")), &mut self.work.written)
    }
}

/// The map of the nearest item around a node, and the index of that item.
pub(super) fn item_around(state: &RunState, mut node: u32) -> Option<(u32, u32)> {
    loop {
        let block: &Block = state.block_of(node)?;
        let owner = block.owner?;
        if block.kind == BlockKind::Items {
            return Some((owner, node - block.first));
        }
        node = owner;
    }
}
