//! Tasks and their leases. What a task does not have takes no byte.
//!
//! To add a part: a bit in `part`, and where it is written and read; a phase: its number, which is never used again.

use super::super::ids::{Nonce, SessionId, TaskType};
use super::super::payload::Payload;
use super::super::run::{Holder, Lease, TaskPhase, TaskState};
use super::super::time::{LeaseTime, Timestamp};
use super::wire::{Reader, Writer, bad, put_bytes, put_i64, put_u32, put_u64};
use super::{Result, instant, payload, put_payload, scopes};

/// Phases, in the low four bits of a task's first byte.
mod phase {
    pub(super) const PENDING: u8 = 0;
    pub(super) const QUEUED: u8 = 1;
    pub(super) const RUNNING: u8 = 2;
    pub(super) const RETRYING: u8 = 3;
    pub(super) const COMPLETED: u8 = 4;
    pub(super) const FAILED: u8 = 5;
    pub(super) const SKIPPED: u8 = 6;
    pub(super) const CANCELLED: u8 = 7;
    pub(super) const TIMED_OUT: u8 = 8;
    /// Skipped because something upstream counted as failed.
    pub(super) const SKIPPED_AS_FAILED: u8 = 9;
    pub(super) const WAITING: u8 = 10;
}

/// What follows a task's first byte: its upper bits, the second byte's where `MORE` is set, and the third's where `THIRD`
/// is.
mod part {
    pub(super) const INPUT: u8 = 0x10;
    /// Accepted nonce of the current attempt.
    pub(super) const ACCEPTED: u8 = 0x20;
    /// First queued at.
    pub(super) const FIRST_QUEUED: u8 = 0x40;
    /// A second byte of parts.
    pub(super) const MORE: u8 = 0x80;

    /// An attempt that is not the usual one.
    pub(super) const ATTEMPT: u8 = 0x01;
    /// A delivery that is not the usual one.
    pub(super) const DELIVERY: u8 = 0x02;
    /// Lost deliveries.
    pub(super) const LOST: u8 = 0x04;
    /// The accepted attempt, which is not the current one.
    pub(super) const ACCEPTED_ATTEMPT: u8 = 0x08;
    /// A task type chosen by an expression.
    pub(super) const TYPE: u8 = 0x10;
    /// Undone.
    pub(super) const UNDONE: u8 = 0x20;
    /// The input was given by hand.
    pub(super) const FIXED_INPUT: u8 = 0x40;
    /// A third byte of parts.
    pub(super) const THIRD: u8 = 0x80;

    /// Of the third byte: a slot under a concurrency key.
    pub(super) const PERMIT: u8 = 0x01;
}

/// The attempt and delivery that need not be written: none for a task that never ran, else the first.
fn usual_attempt(phase: u8) -> u32 {
    u32::from(!matches!(phase, phase::PENDING | phase::SKIPPED | phase::SKIPPED_AS_FAILED | phase::WAITING))
}

/// ```text
/// task  u8: phase ‖ parts   u8: more parts, if MORE   u8: more, if THIRD
///       attempt? delivery? lost? type? first-queued? input? accepted attempt? accepted nonce 16 B? permit?
///       what only the phase has
/// ```
pub(super) fn put_task<'v>(out: &mut Writer<'v>, task: &'v TaskState, zero: Timestamp) {
    let phase = match &task.phase {
        TaskPhase::Pending { .. } => phase::PENDING,
        TaskPhase::Queued { .. } => phase::QUEUED,
        TaskPhase::Running { .. } => phase::RUNNING,
        TaskPhase::Retrying { .. } => phase::RETRYING,
        TaskPhase::Completed { .. } => phase::COMPLETED,
        TaskPhase::Failed { .. } => phase::FAILED,
        TaskPhase::Skipped { counts_as_failed: false } => phase::SKIPPED,
        TaskPhase::Skipped { counts_as_failed: true } => phase::SKIPPED_AS_FAILED,
        TaskPhase::Cancelled => phase::CANCELLED,
        TaskPhase::TimedOut { .. } => phase::TIMED_OUT,
        TaskPhase::Waiting(_) => phase::WAITING,
    };
    let usual = usual_attempt(phase);
    let mut more = 0;
    if task.attempt != usual {
        more |= part::ATTEMPT;
    }
    if task.delivery != usual {
        more |= part::DELIVERY;
    }
    if task.lost_deliveries != 0 {
        more |= part::LOST;
    }
    if task.accepted.is_some_and(|(attempt, _)| attempt != task.attempt) {
        more |= part::ACCEPTED_ATTEMPT;
    }
    for (set, flag) in [
        (task.task_type.is_some(), part::TYPE),
        (task.undone, part::UNDONE),
        (task.fixed_input, part::FIXED_INPUT),
        (task.permit.is_some(), part::THIRD),
    ] {
        if set {
            more |= flag;
        }
    }
    let mut first = phase;
    let has_input = !matches!(task.input, Payload::Null);
    if has_input {
        first |= part::INPUT;
    }
    if task.accepted.is_some() {
        first |= part::ACCEPTED;
    }
    if task.first_queued_at.is_some() {
        first |= part::FIRST_QUEUED;
    }
    if more != 0 {
        first |= part::MORE;
    }
    out.push(first);
    if more != 0 {
        out.push(more);
    }
    if more & part::THIRD != 0 {
        out.push(part::PERMIT);
    }
    if more & part::ATTEMPT != 0 {
        put_u32(out, task.attempt);
    }
    if more & part::DELIVERY != 0 {
        put_u32(out, task.delivery);
    }
    if more & part::LOST != 0 {
        put_u32(out, task.lost_deliveries);
    }
    if let Some(task_type) = &task.task_type {
        put_bytes(out, task_type.as_str().as_bytes());
    }
    if let Some(at) = task.first_queued_at {
        put_i64(out, at.0.wrapping_sub(zero.0));
    }
    if has_input {
        put_payload(out, &task.input);
    }
    if let Some((attempt, nonce)) = &task.accepted {
        if more & part::ACCEPTED_ATTEMPT != 0 {
            put_u32(out, *attempt);
        }
        out.extend_from_slice(&nonce.0);
    }
    if let Some(permit) = &task.permit {
        scopes::put_permit(out, permit);
    }
    match &task.phase {
        TaskPhase::Pending { remaining, any_failed, any_completed } => {
            let flags = u64::from(*any_failed) << 1 | u64::from(*any_completed);
            put_u64(out, u64::from(*remaining) << 2 | flags);
        }
        TaskPhase::Queued { since, generation } => {
            put_i64(out, since.0.wrapping_sub(zero.0));
            put_u32(out, *generation);
        }
        TaskPhase::Running { since, lease } => {
            put_i64(out, since.0.wrapping_sub(zero.0));
            put_lease(out, lease);
        }
        TaskPhase::Retrying { due } => put_i64(out, due.0.wrapping_sub(zero.0)),
        TaskPhase::Completed { output } => put_payload(out, output),
        TaskPhase::Waiting(waiting) => scopes::put_waiting(out, waiting, zero),
        TaskPhase::Failed { failure } | TaskPhase::TimedOut { failure } => put_u32(out, *failure),
        TaskPhase::Skipped { .. } | TaskPhase::Cancelled => {}
    }
}

/// Reads what [`put_task`] wrote.
pub(super) fn task(r: &mut Reader<'_>, zero: Timestamp) -> Result<TaskState> {
    let first = r.byte()?;
    let phase = first & 0x0f;
    let more = if first & part::MORE == 0 { 0 } else { r.byte()? };
    let third = if more & part::THIRD == 0 { 0 } else { r.byte()? };
    if (more & part::THIRD != 0) != (third == part::PERMIT) {
        return Err(bad(format!("task parts {third:#x} are not known")));
    }
    let usual = usual_attempt(phase);
    let attempt = if more & part::ATTEMPT == 0 { usual } else { r.u32()? };
    let delivery = if more & part::DELIVERY == 0 { usual } else { r.u32()? };
    let lost_deliveries = if more & part::LOST == 0 { 0 } else { r.u32()? };
    let task_type = if more & part::TYPE == 0 { None } else { Some(TaskType::new(r.text()?).map_err(bad)?) };
    let first_queued_at = if first & part::FIRST_QUEUED == 0 { None } else { Some(instant(r, zero)?) };
    let input = if first & part::INPUT == 0 { Payload::Null } else { payload(r)? };
    let accepted = if first & part::ACCEPTED == 0 {
        None
    } else {
        let of = if more & part::ACCEPTED_ATTEMPT == 0 { attempt } else { r.u32()? };
        Some((of, Nonce(r.array()?)))
    };
    let permit = if third & part::PERMIT == 0 { None } else { Some(Box::new(scopes::permit(r)?)) };
    let phase = match phase {
        phase::PENDING => {
            let v = r.u64()?;
            let remaining = u32::try_from(v >> 2).map_err(bad)?;
            TaskPhase::Pending { remaining, any_failed: v & 2 != 0, any_completed: v & 1 != 0 }
        }
        phase::QUEUED => TaskPhase::Queued { since: instant(r, zero)?, generation: r.u32()? },
        phase::RUNNING => TaskPhase::Running { since: instant(r, zero)?, lease: lease(r)? },
        phase::RETRYING => TaskPhase::Retrying { due: instant(r, zero)? },
        phase::COMPLETED => TaskPhase::Completed { output: payload(r)? },
        phase::FAILED => TaskPhase::Failed { failure: r.u32()? },
        phase::SKIPPED => TaskPhase::Skipped { counts_as_failed: false },
        phase::SKIPPED_AS_FAILED => TaskPhase::Skipped { counts_as_failed: true },
        phase::CANCELLED => TaskPhase::Cancelled,
        phase::TIMED_OUT => TaskPhase::TimedOut { failure: r.u32()? },
        phase::WAITING => TaskPhase::Waiting(scopes::waiting(r, zero)?),
        other => return Err(bad(format!("task phase {other} is not known"))),
    };
    Ok(TaskState {
        block: 0,
        phase,
        task_type,
        undone: more & part::UNDONE != 0,
        fixed_input: more & part::FIXED_INPUT != 0,
        attempt,
        delivery,
        lost_deliveries,
        first_queued_at,
        input,
        accepted,
        permit,
    })
}

/// Parts of a lease.
mod held {
    /// By a claim until an instant; else by a session at an epoch.
    pub(super) const CLAIM: u8 = 1;
    pub(super) const ACKED: u8 = 2;
    pub(super) const HEARTBEAT: u8 = 4;
}

/// ```text
/// lease  u8: parts   nonce 16 B   worker   leased-at
///        session id, epoch | deadline − leased-at      heartbeat − leased-at?
/// ```
fn put_lease(out: &mut Vec<u8>, lease: &Lease) {
    let mut parts = 0;
    if matches!(lease.holder, Holder::Claim { .. }) {
        parts |= held::CLAIM;
    }
    if lease.acked {
        parts |= held::ACKED;
    }
    if lease.heartbeat_at.is_some() {
        parts |= held::HEARTBEAT;
    }
    out.push(parts);
    out.extend_from_slice(&lease.nonce.0);
    put_u32(out, lease.worker);
    put_i64(out, lease.leased_at.0);
    match &lease.holder {
        Holder::Session { id, epoch } => {
            put_bytes(out, id.as_str().as_bytes());
            put_u32(out, *epoch);
        }
        Holder::Claim { deadline } => put_i64(out, deadline.0.wrapping_sub(lease.leased_at.0)),
    }
    if let Some(at) = lease.heartbeat_at {
        put_i64(out, at.0.wrapping_sub(lease.leased_at.0));
    }
}

fn lease(r: &mut Reader<'_>) -> Result<Lease> {
    let parts = r.byte()?;
    if parts & !(held::CLAIM | held::ACKED | held::HEARTBEAT) != 0 {
        return Err(bad(format!("lease parts {parts:#x} are not known")));
    }
    let nonce = Nonce(r.array()?);
    let worker = r.u32()?;
    let leased_at = LeaseTime(r.i64()?);
    let later = |r: &mut Reader<'_>| Ok(LeaseTime(leased_at.0.wrapping_add(r.i64()?)));
    let holder = if parts & held::CLAIM == 0 {
        Holder::Session { id: SessionId::new(r.text()?).map_err(bad)?, epoch: r.u32()? }
    } else {
        Holder::Claim { deadline: later(r)? }
    };
    let heartbeat_at = if parts & held::HEARTBEAT == 0 { None } else { Some(later(r)?) };
    Ok(Lease { nonce, holder, worker, leased_at, acked: parts & held::ACKED != 0, heartbeat_at })
}
