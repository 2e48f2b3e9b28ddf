//! Nothing new starts: what waits in queues leaves them, attempts in flight finish, clocks run on.

use super::super::{Stop, Txn};
use super::open;
use crate::model::command::Outcome;
use crate::model::event::EventKind;
use crate::model::run::{Order, RunStatus, TaskPhase};

pub(super) fn apply(txn: &mut Txn<'_>) -> Result<Outcome, Stop> {
    if open(txn)?.status == RunStatus::Paused {
        return Ok(Outcome::Repeated);
    }
    let mut step = txn.step()?;
    step.work.state.status = RunStatus::Paused;
    for task in &mut step.work.state.tasks {
        if let TaskPhase::Queued { generation, .. } = &mut task.phase {
            *generation = 0;
        }
    }
    step.order_children(Order::Pause);
    step.log_run(EventKind::RunPaused, None);
    Ok(Outcome::Accepted)
}
