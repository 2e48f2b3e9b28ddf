//! How a run ends: the verdict, then compensations, then `finally`, then the status that stays.
//!
//! ```text
//! nothing open → verdict ─┬─ failed, timed out, cancelled on request: undo, one after the other ─┐
//!                         └──────────────────────────────────────────────────────────────────────┴→ finally → end
//! ```

use super::graph::{Cascade, End};
use super::scope::View;
use super::step::{Step, Words};
use crate::model::event::EventKind;
use crate::model::payload::Payload;
use crate::model::run::{BlockKind, EndStage, Ending, RunStatus, TaskPhase};

impl Step<'_> {
    /// Lets the end of the run begin, once no task is open, or go on.
    pub(super) fn conclude(&mut self, cascade: &mut Cascade) {
        let state = &self.work.state;
        if state.status.is_terminal() || state.status == RunStatus::Paused {
            return; // A paused run ends when it goes on.
        }
        let Some(Ending { mut status, stage, undoes }) = state.ending else {
            if state.open_tasks == 0 {
                self.verdict(cascade);
            }
            return;
        };
        let (EndStage::Undoing(node) | EndStage::Finally(node)) = stage;
        if !self.task(node).phase.is_terminal() {
            return;
        }
        match stage {
            EndStage::Undoing(_) => self.go_on(status, undoes, cascade),
            EndStage::Finally(_) => {
                if let TaskPhase::Failed { failure } | TaskPhase::TimedOut { failure } = self.task(node).phase
                    && status == RunStatus::Completed
                {
                    status = RunStatus::Failed;
                    self.work.state.error = Some(failure);
                    self.work.state.output = Payload::Null;
                }
                self.end_run(status);
            }
        }
    }

    /// The first failure that counted, else the output.
    fn verdict(&mut self, cascade: &mut Cascade) {
        if self.work.state.error.is_some() {
            return self.go_on(RunStatus::Failed, true, cascade);
        }
        let template = self.plan.output.as_ref();
        match self.evaluate(View::RUN, template, || "output".to_owned(), "output_too_large") {
            Ok(value) => {
                let field = self.field("o");
                self.work.state.output = value.into_payload(|| field, &mut self.work.written);
                self.go_on(RunStatus::Completed, false, cascade);
            }
            Err(halt) => {
                let Some(words) = halt.words(cascade) else { return };
                let failure = self.add_failure(&words, None);
                self.work.state.error = Some(failure);
                self.go_on(RunStatus::Failed, true, cascade);
            }
        }
    }

    /// The next thing to do before the run ends, or its end.
    fn go_on(&mut self, status: RunStatus, undoes: bool, cascade: &mut Cascade) {
        self.work.state.deadline = None;
        if undoes && let Some(node) = self.undo_next(None, cascade) {
            self.work.state.ending = Some(Ending { status, stage: EndStage::Undoing(node), undoes });
            return;
        }
        if let Some(finally) = self.plan.finally
            && let Ok(block) = self.lay_out(None, BlockKind::Finally, finally, 1)
        {
            let node = self.nodes(block).start;
            self.work.state.ending = Some(Ending { status, stage: EndStage::Finally(node), undoes: false });
            return cascade.begin(node);
        }
        self.end_run(status);
    }

    /// Ends a run at once: everything open is cancelled and every lease fenced, without waiting for anybody. What is
    /// left is compensation, if `undoes`, and `finally`, unless `force`. `error` is the run's own.
    pub(super) fn stop_run(
        &mut self,
        status: RunStatus,
        error: Option<&Words>,
        undoes: bool,
        force: bool,
        cascade: &mut Cascade,
    ) {
        self.work.recall = (undoes, force);
        self.cancel_all();
        if let Some(words) = error {
            let failure = self.add_failure(words, None);
            self.work.state.error = Some(failure);
        }
        let state = &mut self.work.state;
        // A run that never began has nothing to clean up.
        let force = force || state.status == RunStatus::Pending;
        if force {
            return self.end_run(status);
        }
        state.status = RunStatus::Running;
        self.go_on(status, undoes, cascade);
    }

    /// Ends the run completed with this output, whatever else goes on.
    pub(super) fn finish_run(&mut self, output: Payload, cascade: &mut Cascade) {
        self.work.recall = (false, false);
        self.cancel_all();
        let state = &mut self.work.state;
        state.output = output;
        state.error = None;
        self.go_on(RunStatus::Completed, false, cascade);
    }

    /// Cancels every open node; nothing follows from it.
    fn cancel_all(&mut self) {
        for i in 0..self.work.state.tasks.len() as u32 {
            if !self.task(i).phase.is_terminal() {
                self.revoke(i);
                self.close(i, End::Cancelled, EventKind::TaskCancelled, None);
            }
        }
        self.work.state.open_tasks = 0;
    }

    fn end_run(&mut self, status: RunStatus) {
        let state = &mut self.work.state;
        state.status = status;
        state.ended_at = Some(self.now);
        state.deadline = None;
        state.ending = None;
        state.start_at = None;
        let (kind, error) = match status {
            RunStatus::Failed => (EventKind::RunFailed, state.error),
            RunStatus::TimedOut => (EventKind::RunTimedOut, state.error),
            RunStatus::Cancelled => (EventKind::RunCancelled, None),
            RunStatus::Completed | RunStatus::Pending | RunStatus::Running | RunStatus::Paused => {
                (EventKind::RunCompleted, None)
            }
        };
        self.log_run(kind, error);
        self.tell_origin();
    }
}
