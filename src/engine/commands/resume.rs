//! A paused run goes on: what became ready meanwhile starts.

use super::super::graph::Cascade;
use super::super::{Stop, Txn};
use super::open;
use crate::model::command::Outcome;
use crate::model::event::EventKind;
use crate::model::run::{Order, RunStatus, TaskPhase, Waiting};

pub(super) fn apply(txn: &mut Txn<'_>) -> Result<Outcome, Stop> {
    if open(txn)?.status != RunStatus::Paused {
        return Ok(Outcome::Repeated);
    }
    let mut step = txn.step()?;
    let pending = step.work.state.started_at.is_none();
    step.work.state.status = if pending { RunStatus::Pending } else { RunStatus::Running };
    step.log_run(EventKind::RunResumed, None);
    step.order_children(Order::Resume);
    let mut cascade = Cascade::default();
    if pending {
        // It begins when it would have begun, or at once if that has passed.
        step.begin_if_due(&mut cascade);
        step.settle(cascade)?;
        return Ok(Outcome::Accepted);
    }
    for i in 0..step.work.state.tasks.len() as u32 {
        match &step.task(i).phase {
            TaskPhase::Queued { generation: 0, .. } => step.enqueue_again(i),
            TaskPhase::Retrying { due } if *due <= step.now => step.next_attempt(i, &mut cascade),
            TaskPhase::Retrying { due } => {
                let due = *due;
                step.want(due);
            }
            TaskPhase::Waiting(Waiting::Iterations { due: Some(due), .. }) if *due > step.now => {
                let due = *due;
                step.want(due);
            }
            // What was allowed for a time in the pause must not all start now.
            TaskPhase::Waiting(Waiting::Rate { due: Some(due), .. }) if *due < step.now => {
                step.ask_for_rate_again(i);
            }
            TaskPhase::Waiting(
                Waiting::Items { .. }
                | Waiting::Iterations { .. }
                | Waiting::Permit { .. }
                | Waiting::Rate { .. },
            ) => cascade.advance(i),
            TaskPhase::Pending { remaining: 0, .. } if step.is_of_body(i) => cascade.look_at(i),
            TaskPhase::Pending { remaining: 0, .. } if step.is_next(i) => cascade.begin(i),
            TaskPhase::Pending { .. }
            | TaskPhase::Queued { .. }
            | TaskPhase::Running { .. }
            | TaskPhase::Waiting(_)
            | TaskPhase::Completed { .. }
            | TaskPhase::Failed { .. }
            | TaskPhase::Skipped { .. }
            | TaskPhase::Cancelled
            | TaskPhase::TimedOut { .. } => {}
        }
    }
    cascade.conclude();
    step.settle(cascade)?;
    Ok(Outcome::Accepted)
}
