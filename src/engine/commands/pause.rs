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
    for i in 0..step.work.state.tasks.len() as u32 {
        if matches!(step.task(i).phase, TaskPhase::Queued { .. })
            && let TaskPhase::Queued { generation, .. } = &mut step.task_mut(i).phase
        {
            *generation = 0;
        }
    }
    step.order_children(Order::Pause);
    step.log_run(EventKind::RunPaused, None);
    Ok(Outcome::Accepted)
}
