//! Runs that the rehearsed one starts: they are not played, but answered, like attempts of workers.

use super::{Answer, Asked, Reply, Stage, answer};
use crate::app::render::text_of;
use crate::model::command::{ChildEnd, Command};
use crate::model::ids::{RunId, TaskPath};
use crate::model::outbox::{self, Delivery, Origin, Parcel, Parent};
use crate::model::run::{Order, RunStatus};
use crate::model::time::Timestamp;

/// A child that goes on.
pub(super) struct ChildFlight {
    pub(super) ends: Timestamp,
    child: RunId,
    task: TaskPath,
    ticket: u32,
    answer: Answer,
}

impl Stage<'_> {
    /// Takes what the run tells others. False: nothing.
    pub(super) fn errands(&mut self) -> Result<bool, String> {
        if self.post.is_empty() {
            return Ok(false);
        }
        let mut settled = Vec::new();
        for Delivery { sequence, to, parcel } in std::mem::take(&mut self.post) {
            // Told again, or asked whether it is still so.
            if !self.carried.insert(sequence) {
                continue;
            }
            match parcel {
                Parcel::Start(start) => {
                    if let Origin::Parent(Parent { task, detached, .. }) = start.origin {
                        let input = text_of(&start.input, &self.kept.0);
                        self.inputs.insert(task.to_string(), input);
                        // Nobody waits for what becomes of a detached one.
                        if !detached {
                            self.begin_child(to, task, start.workflow.as_str(), sequence)?;
                        }
                    }
                }
                Parcel::Command(Command::Order { order: Order::Cancel { .. }, .. }) => {
                    self.children.retain(|c| c.child != to);
                }
                Parcel::Command(Command::Order { order: Order::Retry, .. }) => {
                    let known = self.begun_children.iter().rfind(|(child, ..)| *child == to).cloned();
                    if let Some((child, task, workflow)) = known {
                        self.begin_child(child, task, &workflow, sequence)?;
                    }
                }
                Parcel::Command(_) | Parcel::Ended(_) | Parcel::IsOpen => {}
            }
            settled.push(Command::Settled { sequence, answer: outbox::Answer::Done });
        }
        self.decide(&settled)?;
        Ok(true)
    }

    fn begin_child(
        &mut self,
        child: RunId,
        task: TaskPath,
        workflow: &str,
        ticket: u32,
    ) -> Result<(), String> {
        let Some(state) = &self.state else { return Ok(()) };
        let Some(node) = state.find(self.plan, &task) else { return Ok(()) };
        let asked = Asked { plan: self.plan, state, node, path: task.as_str(), called: workflow };
        let answer = answer(&asked, self.script, &mut self.calls)?;
        self.begun_children.push((child.clone(), task.clone(), workflow.to_owned()));
        if !matches!(answer.reply, Reply::Untaken) {
            let ends = self.now.plus(answer.takes);
            self.children.push(ChildFlight { ends, child, task, ticket, answer });
        }
        Ok(())
    }

    /// The ends of children that end now.
    pub(super) fn children_that_end(&mut self) -> Vec<Command> {
        let now = self.now;
        let (mut due, rest): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.children).into_iter().partition(|c| c.ends <= now);
        self.children = rest;
        due.sort_by_key(|c| c.ends);
        due.into_iter().filter_map(ChildFlight::end).collect()
    }
}

impl ChildFlight {
    fn end(self) -> Option<Command> {
        let Self { child, task, ticket, answer, .. } = self;
        let end = match answer.reply {
            Reply::Output(json) => ChildEnd::Completed(json),
            Reply::Fail(failure) => {
                ChildEnd::Failed { status: RunStatus::Failed, code: failure.code, message: failure.message }
            }
            Reply::Untaken => return None,
        };
        Some(Command::ChildEnded { task, child, ticket, end })
    }
}
