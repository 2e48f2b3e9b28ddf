//! The stored form of a run: prefix ‖ compact encoding of [`RunState`]. A golden file holds it still.
//!
//! ```text
//! record  prefix 24 B ‖ format u8 = 1 ‖ ( number u8 ‖ value )* ‖ 00
//! ```
//!
//! A run is a list of numbered fields (`field`), each written only if it differs from its default, in
//! rising order. Numbers are LEB128 varints, signed ones zigzag; text and bytes are length ‖ bytes;
//! instants are told as the distance from `created_at`. What is more than that has a small form of its own:
//!
//! ```text
//! tasks.rs    tasks and their leases      values.rs   payloads             log.rs     what happened
//! scopes.rs   blocks, undo, signals       others.rs   origin and outbox    pages.rs   wide runs
//! homes.rs, schedule.rs   records that are no runs                         wire.rs    numbers and texts
//! ```
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
mod tasks;
mod values;
mod wire;

pub use pages::{Head, Pages, SEGMENT, is_page, lay_out};

use super::ids::{RunId, WorkflowName};
use super::outbox::Outbox;
use super::payload::Payload;
use super::run::{Failure, RunState, RunStatus};
use super::time::{Span, Timestamp};
use std::collections::BTreeMap;
use tasks::{put_task, task};
use values::{payload, put_payload};
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
