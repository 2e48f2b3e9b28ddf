//! What stands in a store beside a record, made from the record alone: its wake-up, its entries in queues, its place in
//! the index, until when it is kept. For a store that is given a record whole, by `app::moves`.
//!
//! Records that were copied one after the other, while somebody worked on them, are of different moments: one may wait for
//! what another has told it after it was copied. So each asks anew ([`ask_anew`], [`homes::ask_anew`]) for what others
//! have told it or not; what they say twice changes nothing.
//!
//! Invariant: a record that is written so stands as it would have, had each of its decisions been committed there;
//! claims apart, which end by being ready again, and times of questions.

use super::homes;
use super::queue_ops;
use crate::model::commit::{Expect, RunWrite, WakeOp, Write};
use crate::model::home::Home;
use crate::model::ids::RunId;
use crate::model::plan::Plan;
use crate::model::run::{RunState, TaskPhase, Waiting};
use crate::model::time::Timestamp;
use bytes::Bytes;

/// The write of a record alone, over none. What stands beside it is left out.
pub fn bare(run: &RunId, record: Bytes) -> RunWrite {
    RunWrite::bare(run.clone(), Expect::Absent, Write::Put(record))
}

/// Whether a run has tasks in queues, so that [`of_run`] needs its plan.
pub fn needs_plan(state: &RunState) -> bool {
    state.tasks.iter().any(|task| super::queued(task).is_some())
}

/// The write of a run's record. `plan` may be left out if [`needs_plan`] says no.
pub fn of_run(plan: Option<&Plan>, state: &RunState, record: Bytes) -> RunWrite {
    let rests = state.status.is_terminal() && state.outbox.is_empty();
    // What was due is due still; whatever has no time is looked at at once.
    let wake = if rests { WakeOp::Keep } else { WakeOp::Set(state.armed.unwrap_or(state.last_time)) };
    RunWrite {
        queue: plan.map(|plan| queue_ops(plan, None, state)).unwrap_or_default(),
        wake,
        index: Some(state.created_at),
        retain_until: state.kept_until().map(Some),
        ..bare(&state.id, record)
    }
}

/// The write of a home record.
pub fn of_home(id: &RunId, home: &Home, record: Bytes, now: Timestamp) -> RunWrite {
    RunWrite { wake: WakeOp::Set(homes::wake_at(home, now)), ..bare(id, record) }
}

/// Has a run ask for the ends of its children, and for slots that it waits for, when it is looked at next, which is at once.
/// False: it waits for none, and is as it was.
pub fn ask_anew(state: &mut RunState, now: Timestamp) -> bool {
    let waits = |phase: &TaskPhase| {
        matches!(phase, TaskPhase::Waiting(Waiting::Child { .. } | Waiting::Permit { .. }))
    };
    let waiting: Vec<usize> =
        state.tasks.iter().enumerate().filter(|(_, task)| waits(&task.phase)).map(|(i, _)| i).collect();
    for i in &waiting {
        if let Some(task) = state.tasks.get_mut(*i)
            && let TaskPhase::Waiting(Waiting::Child { ask_at, .. } | Waiting::Permit { ask_at, .. }) =
                &mut task.phase
        {
            *ask_at = now.min(*ask_at);
        }
    }
    if !waiting.is_empty() {
        state.armed = Some(state.armed.unwrap_or(now).min(now));
    }
    !waiting.is_empty()
}
