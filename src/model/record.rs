//! The stored form of a run: prefix ‖ compact encoding of [`RunState`]. A golden file holds it still.
//!
//! ```text
//! record  prefix 24 B ‖ format u8 = 1 ‖ ( number u8 ‖ value )* ‖ 00
//! ```
//!
//! A run is a list of numbered fields (`field`), each written only if it differs from its default, in
//! rising order. Numbers are LEB128 varints, signed ones zigzag; text and bytes are length ‖ bytes;
//! instants are told as the distance from `created_at`. Tasks, payloads and log entries have their own
//! small forms, described where they are written.
//!
//! Invariants
//! - `decode(encode(s)) == s` for every state; equal states have equal bytes.
//! - What this version does not know (format, field number, kind, flag) is [`UnreadableRecord`], never a
//!   default. So a new field gets a new number, and a server that does not know it refuses the record
//!   instead of dropping the field with its next write.
//! - Decoding takes at most as much memory as a small multiple of its input, whatever the bytes are.
//!
//! A wide run keeps its nodes and its log in pages beside the record (`pages`).
//!
//! To add a field: give it the next number in `field`, write it in [`encode_into`] where it differs from
//! its default, read it in [`decode`], and add a golden file beside the old one (never change an old one).

pub mod homes;
mod log;
mod others;
mod pages;
mod schedule;
mod scopes;
mod wire;

pub use pages::{Head, Pages, SEGMENT, is_page, lay_out};

use super::ids::{Nonce, RunId, SessionId, TaskType, WorkflowName};
use super::outbox::Outbox;
use super::payload::{Field, Payload};
use super::run::{Failure, Holder, Lease, RunState, RunStatus, TaskPhase, TaskState};
use super::time::{LeaseTime, Span, Timestamp};
use bytes::Bytes;
use std::collections::BTreeMap;
use wire::{Reader, Writer, bad, put_bytes, put_i64, put_u32, put_u64};

/// Why a record could not be read: written by a newer Downbeat, or damaged. Never guessed at.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a run record cannot be read: {0}")]
pub struct UnreadableRecord(pub String);

type Result<T> = std::result::Result<T, UnreadableRecord>;

/// The format this code reads and writes.
const FORMAT: u8 = 1;

/// Numbers of the fields of a run. Never reused.
mod field {
    pub(super) const END: u8 = 0;
    pub(super) const ID: u8 = 1;
    pub(super) const WORKFLOW: u8 = 2;
    pub(super) const VERSION: u8 = 3;
    pub(super) const TRY: u8 = 4;
    pub(super) const STATUS: u8 = 5;
    pub(super) const DIGEST: u8 = 6;
    /// Stands before every instant, since they count from it.
    pub(super) const CREATED_AT: u8 = 7;
    pub(super) const STARTED_AT: u8 = 8;
    pub(super) const ENDED_AT: u8 = 9;
    pub(super) const LAST_TIME: u8 = 10;
    pub(super) const DEADLINE: u8 = 11;
    pub(super) const PRIORITY: u8 = 12;
    pub(super) const TAGS: u8 = 13;
    pub(super) const RETENTION: u8 = 14;
    pub(super) const INPUT: u8 = 15;
    pub(super) const OUTPUT: u8 = 16;
    pub(super) const ERROR: u8 = 17;
    pub(super) const ARMED: u8 = 18;
    pub(super) const GENERATION: u8 = 19;
    pub(super) const OPEN_TASKS: u8 = 20;
    pub(super) const TASKS: u8 = 21;
    pub(super) const WORKERS: u8 = 22;
    pub(super) const FAILURES: u8 = 23;
    pub(super) const LOG: u8 = 24;
    /// Stands before the tasks' use: nodes know their block by it.
    pub(super) const BLOCKS: u8 = 25;
    pub(super) const UNDO: u8 = 26;
    pub(super) const ENDING: u8 = 27;
    pub(super) const SIGNALS: u8 = 28;
    pub(super) const START_AT: u8 = 29;
    pub(super) const ORIGIN: u8 = 30;
    pub(super) const OUTBOX: u8 = 31;
    pub(super) const PAGES: u8 = 32;
    pub(super) const DOCUMENT: u8 = 33;
}

/// Appends the encoding of `state` to `out` (which holds the prefix already).
pub fn encode_into(state: &RunState, out: &mut Vec<u8>) {
    let mut writer = Writer::behind(std::mem::take(out));
    write(state, &mut writer);
    *out = writer.done();
}

fn write<'v>(state: &'v RunState, out: &mut Writer<'v>) {
    let zero = state.created_at;
    out.push(FORMAT);
    out.push(field::ID);
    put_bytes(out, state.id.as_str().as_bytes());
    out.push(field::WORKFLOW);
    put_bytes(out, state.workflow.as_str().as_bytes());
    out.push(field::VERSION);
    put_u32(out, state.version);
    if state.try_number != 1 {
        out.push(field::TRY);
        put_u32(out, state.try_number);
    }
    out.push(field::STATUS);
    out.push(status_code(state.status));
    out.push(field::DIGEST);
    out.extend_from_slice(&state.start_digest);
    out.push(field::CREATED_AT);
    put_i64(out, zero.0);
    put_instant(out, field::STARTED_AT, state.started_at, zero);
    put_instant(out, field::ENDED_AT, state.ended_at, zero);
    if state.last_time != zero {
        put_instant(out, field::LAST_TIME, Some(state.last_time), zero);
    }
    put_instant(out, field::DEADLINE, state.deadline, zero);
    if state.priority != 0 {
        out.push(field::PRIORITY);
        put_i64(out, i64::from(state.priority));
    }
    if !state.tags.is_empty() {
        out.push(field::TAGS);
        put_u64(out, state.tags.len() as u64);
        for (k, v) in &state.tags {
            put_bytes(out, k.as_bytes());
            put_bytes(out, v.as_bytes());
        }
    }
    if state.retention != Span(0) {
        out.push(field::RETENTION);
        put_i64(out, state.retention.0);
    }
    if state.input != Payload::Null {
        out.push(field::INPUT);
        put_payload(out, &state.input);
    }
    if state.output != Payload::Null {
        out.push(field::OUTPUT);
        put_payload(out, &state.output);
    }
    if let Some(error) = state.error {
        out.push(field::ERROR);
        put_u32(out, error);
    }
    put_instant(out, field::ARMED, state.armed, zero);
    if state.generation != 0 {
        out.push(field::GENERATION);
        put_u32(out, state.generation);
    }
    if state.open_tasks != 0 {
        out.push(field::OPEN_TASKS);
        put_u32(out, state.open_tasks);
    }
    let paged = !state.pages.versions.is_empty();
    if !state.tasks.is_empty() && !paged {
        out.push(field::TASKS);
        put_u64(out, state.tasks.len() as u64);
        for task in &state.tasks {
            put_task(out, task, zero);
        }
    }
    if !state.workers.is_empty() {
        out.push(field::WORKERS);
        put_u64(out, state.workers.len() as u64);
        for label in &state.workers {
            put_bytes(out, label.as_bytes());
        }
    }
    if !state.failures.is_empty() {
        out.push(field::FAILURES);
        put_u64(out, state.failures.len() as u64);
        let mut before: Option<&Failure> = None;
        for failure in &state.failures {
            put_failure(out, failure, before);
            before = Some(failure);
        }
    }
    let spilled = state.pages.segments as usize * pages::SEGMENT;
    let rest = state.log.iter_from(spilled);
    if rest.len() > 0 {
        out.push(field::LOG);
        log::put(out, rest, zero);
    }
    scopes::put(out, state);
    put_instant(out, field::START_AT, state.start_at, zero);
    others::put(out, state);
    pages::put(out, state);
    if state.document != 0 {
        out.push(field::DOCUMENT);
        out.extend_from_slice(&state.document.to_be_bytes());
    }
    out.push(field::END);
}

/// Reads what follows the prefix, of a run that is not wide.
///
/// # Errors
/// Also if part of the run stands in pages: see [`decode_head`].
pub fn decode(bytes: &[u8]) -> Result<RunState> {
    let head = decode_head(bytes)?;
    if head.fields().is_empty() { Ok(head.state) } else { Err(bad("its nodes stand in pages beside it")) }
}

/// Reads what follows the prefix.
pub fn decode_head(bytes: &[u8]) -> Result<Head> {
    let mut r = Reader::new(bytes);
    let format = r.byte()?;
    if format != FORMAT {
        return Err(bad(format!("its format is {format}; this version reads {FORMAT}")));
    }
    let (mut id, mut workflow, mut version) = (None, None, None);
    let (mut status, mut digest, mut created) = (None, None, None);
    let (mut try_number, mut last_time, mut priority, mut retention) = (1, None, 0, Span(0));
    let (mut started_at, mut ended_at, mut deadline, mut armed) = (None, None, None, None);
    let (mut input, mut output, mut error) = (Payload::Null, Payload::Null, None);
    let (mut generation, mut open_tasks) = (0, 0);
    let mut tags = BTreeMap::new();
    let (mut tasks, mut workers, mut failures, mut entries) =
        (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let (mut blocks, mut undo, mut ending, mut signals, mut start_at) =
        (Vec::new(), Vec::new(), None, Vec::new(), None);
    let (mut origin, mut outbox) = (None, Outbox::default());
    let (mut table, mut nodes) = (Pages::default(), 0);
    let mut document = 0;
    let mut last = field::END;
    loop {
        let number = r.byte()?;
        if number == field::END {
            break;
        }
        if number <= last {
            return Err(bad(format!("field {number} stands after field {last}")));
        }
        last = number;
        // Fields rise, so `created_at` was read before anything that counts from it.
        let zero = created.unwrap_or_default();
        match number {
            field::ID => id = Some(RunId::new(r.text()?).map_err(bad)?),
            field::WORKFLOW => workflow = Some(WorkflowName::new(r.text()?).map_err(bad)?),
            field::VERSION => version = Some(r.u32()?),
            field::TRY => try_number = r.u32()?,
            field::STATUS => status = Some(status_of(r.byte()?)?),
            field::DIGEST => digest = Some(r.array()?),
            field::CREATED_AT => created = Some(Timestamp(r.i64()?)),
            field::STARTED_AT => started_at = Some(instant(&mut r, zero)?),
            field::ENDED_AT => ended_at = Some(instant(&mut r, zero)?),
            field::LAST_TIME => last_time = Some(instant(&mut r, zero)?),
            field::DEADLINE => deadline = Some(instant(&mut r, zero)?),
            field::PRIORITY => priority = i32::try_from(r.i64()?).map_err(bad)?,
            field::TAGS => {
                for _ in 0..r.count()? {
                    tags.insert(r.text()?.to_owned(), r.text()?.to_owned());
                }
            }
            field::RETENTION => retention = Span(r.i64()?),
            field::INPUT => input = payload(&mut r)?,
            field::OUTPUT => output = payload(&mut r)?,
            field::ERROR => error = Some(r.u32()?),
            field::ARMED => armed = Some(instant(&mut r, zero)?),
            field::GENERATION => generation = r.u32()?,
            field::OPEN_TASKS => open_tasks = r.u32()?,
            field::TASKS => {
                tasks = r.list(|r| task(r, zero))?;
            }
            field::WORKERS => workers = r.list(|r| r.text().map(str::to_owned))?,
            field::FAILURES => {
                for _ in 0..r.count()? {
                    let next = failure(&mut r, failures.last())?;
                    failures.push(next);
                }
            }
            field::LOG => entries = log::read(&mut r, zero)?,
            field::BLOCKS => blocks = r.list(scopes::block)?,
            field::UNDO => undo = r.list(scopes::undo)?,
            field::ENDING => ending = Some(scopes::ending(&mut r)?),
            field::SIGNALS => signals = r.list(scopes::signal)?,
            field::START_AT => start_at = Some(instant(&mut r, zero)?),
            field::ORIGIN => origin = Some(others::origin(&mut r)?),
            field::OUTBOX => outbox = others::outbox(&mut r)?,
            field::PAGES => (table, nodes) = pages::read(&mut r)?,
            field::DOCUMENT => document = u32::from_be_bytes(r.array()?),
            other => return Err(bad(format!("field {other} is not known"))),
        }
    }
    r.end()?;
    if table.versions.is_empty() {
        scopes::place(&mut blocks, &mut tasks)?;
    } else {
        scopes::begin_at(&mut blocks, nodes)?;
    }
    let missing = |what: &str| bad(format!("it has no {what}"));
    let created_at = created.ok_or_else(|| missing("creation time"))?;
    let state = RunState {
        id: id.ok_or_else(|| missing("id"))?,
        workflow: workflow.ok_or_else(|| missing("workflow"))?,
        version: version.ok_or_else(|| missing("workflow version"))?,
        document,
        try_number,
        status: status.ok_or_else(|| missing("status"))?,
        start_digest: digest.ok_or_else(|| missing("digest"))?,
        created_at,
        started_at,
        ended_at,
        last_time: last_time.unwrap_or(created_at),
        deadline,
        priority,
        tags,
        retention,
        input,
        output,
        error,
        armed,
        generation,
        open_tasks,
        tasks: tasks.into(),
        blocks,
        undo,
        ending,
        signals,
        start_at,
        origin,
        outbox,
        workers,
        failures,
        log: entries.into(),
        pages: table,
    };
    Ok(Head { state, nodes })
}

fn put_instant(out: &mut Vec<u8>, number: u8, at: Option<Timestamp>, zero: Timestamp) {
    if let Some(at) = at {
        out.push(number);
        put_i64(out, at.0.wrapping_sub(zero.0));
    }
}

fn instant(r: &mut Reader<'_>, zero: Timestamp) -> Result<Timestamp> {
    Ok(Timestamp(zero.0.wrapping_add(r.i64()?)))
}

fn status_code(status: RunStatus) -> u8 {
    match status {
        RunStatus::Pending => 1,
        RunStatus::Running => 2,
        RunStatus::Paused => 3,
        RunStatus::Completed => 4,
        RunStatus::Failed => 5,
        RunStatus::Cancelled => 6,
        RunStatus::TimedOut => 7,
    }
}

fn status_of(code: u8) -> Result<RunStatus> {
    RunStatus::ALL
        .into_iter()
        .find(|s| status_code(*s) == code)
        .ok_or_else(|| bad(format!("run status {code} is not known")))
}

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
fn put_task<'v>(out: &mut Writer<'v>, task: &'v TaskState, zero: Timestamp) {
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

fn task(r: &mut Reader<'_>, zero: Timestamp) -> Result<TaskState> {
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

/// Forms of a payload: 1 to 65 is a JSON text of that many bytes less one. One that is among the last that the record
/// tells is not told again, see [`wire::Recent`].
mod form {
    pub(super) const NULL: u8 = 0;
    pub(super) const INLINE_LAST: u8 = 65;
    pub(super) const STORED: u8 = 0x80;
    pub(super) const PATH: u8 = 0x81;
    pub(super) const LONG_INLINE: u8 = 0x82;
    pub(super) const REPEATED: u8 = 0x83;
}

fn put_payload<'v>(out: &mut Writer<'v>, payload: &'v Payload) {
    match payload {
        Payload::Null => out.push(form::NULL),
        Payload::Inline(json) => {
            if let Some(place) = out.recent.place(json) {
                out.extend_from_slice(&[form::REPEATED, place]);
                return;
            }
            if json.len() < usize::from(form::INLINE_LAST) {
                out.push(json.len() as u8 + 1);
                out.extend_from_slice(json);
            } else {
                out.push(form::LONG_INLINE);
                put_bytes(out, json);
            }
            out.recent.push(json);
        }
        Payload::Stored { field, size } => {
            out.push(form::STORED);
            put_bytes(out, &field.0);
            put_u32(out, *size);
        }
        Payload::Path { base, steps } => {
            out.push(form::PATH);
            put_u64(out, steps.len() as u64);
            for step in steps {
                put_bytes(out, step.as_bytes());
            }
            put_payload(out, base);
        }
    }
}

/// Reads a payload. A path starts in a value of its own, never in another path, so this goes two deep at most.
fn payload(r: &mut Reader<'_>) -> Result<Payload> {
    let form = r.byte()?;
    if form != form::PATH {
        return value(r, form);
    }
    let steps = r.list(|r| r.text().map(str::to_owned))?;
    let form = r.byte()?;
    if form == form::PATH {
        return Err(bad("a payload path starts in another path"));
    }
    Ok(Payload::Path { base: Box::new(value(r, form)?), steps })
}

fn value(r: &mut Reader<'_>, form: u8) -> Result<Payload> {
    match form {
        form::NULL => Ok(Payload::Null),
        1..=form::INLINE_LAST => {
            let json = Bytes::copy_from_slice(r.take(usize::from(form) - 1)?);
            r.recent.push(json.clone());
            Ok(Payload::Inline(json))
        }
        form::LONG_INLINE => {
            let json = Bytes::copy_from_slice(r.bytes()?);
            r.recent.push(json.clone());
            Ok(Payload::Inline(json))
        }
        form::REPEATED => {
            let place = r.byte()?;
            let json = r.recent.get(place).ok_or_else(|| bad("a value repeats one that is not there"))?;
            Ok(Payload::Inline(json.clone()))
        }
        form::STORED => {
            Ok(Payload::Stored { field: Field(Bytes::copy_from_slice(r.bytes()?)), size: r.u32()? })
        }
        other => Err(bad(format!("payload form {other} is not known"))),
    }
}

/// Parts of a failure.
mod fault {
    pub(super) const TASK: u8 = 1;
    pub(super) const ATTEMPT: u8 = 2;
    /// Code and message are those of the failure before: retries tend to fail alike.
    pub(super) const SAME: u8 = 4;
}

fn put_failure(out: &mut Vec<u8>, failure: &Failure, before: Option<&Failure>) {
    let same = before.is_some_and(|b| b.code == failure.code && b.message == failure.message);
    let mut parts = 0;
    if failure.task.is_some() {
        parts |= fault::TASK;
    }
    if failure.attempt != 0 {
        parts |= fault::ATTEMPT;
    }
    if same {
        parts |= fault::SAME;
    }
    out.push(parts);
    if let Some(task) = failure.task {
        put_u32(out, task);
    }
    if failure.attempt != 0 {
        put_u32(out, failure.attempt);
    }
    if !same {
        put_bytes(out, failure.code.as_bytes());
        put_bytes(out, failure.message.as_bytes());
    }
}

fn failure(r: &mut Reader<'_>, before: Option<&Failure>) -> Result<Failure> {
    let parts = r.byte()?;
    if parts & !(fault::TASK | fault::ATTEMPT | fault::SAME) != 0 {
        return Err(bad(format!("failure parts {parts:#x} are not known")));
    }
    let task = if parts & fault::TASK == 0 { None } else { Some(r.u32()?) };
    let attempt = if parts & fault::ATTEMPT == 0 { 0 } else { r.u32()? };
    let (code, message) = if parts & fault::SAME == 0 {
        (r.text()?.to_owned(), r.text()?.to_owned())
    } else {
        let b = before.ok_or_else(|| bad("the first failure repeats one before it"))?;
        (b.code.clone(), b.message.clone())
    };
    Ok(Failure { code, message, task, attempt })
}

#[cfg(test)]
mod tests;
