//! The log inside a record: about four bytes an entry.
//!
//! ```text
//! log    count ‖ entry*
//! entry  u8: kind (5 bits) ‖ SAME_TIME 20 ‖ UNUSUAL 40 ‖ REFERENCE 80
//!        task, of task events    µs since the entry before, unless SAME_TIME
//!        attempt, delivery, if UNUSUAL    worker (task.started) or error (all others), if REFERENCE
//! ```
//!
//! Kind 31 is the long form, for entries that do not fit: every part is written behind a byte of flags.

use super::super::event::{EventKind, LogEntry};
use super::super::time::Timestamp;
use super::Result;
use super::wire::{Reader, bad, put_i64, put_u32, put_u64};

const KIND: u8 = 0x1f;
const SAME_TIME: u8 = 0x20;
const UNUSUAL: u8 = 0x40;
const REFERENCE: u8 = 0x80;
const LONG: u8 = 31;

/// Flags of the long form.
mod long {
    pub(super) const TASK: u8 = 1;
    pub(super) const WORKER: u8 = 2;
    pub(super) const ERROR: u8 = 4;
}

/// Attempt and delivery that need not be written.
fn usual(kind: EventKind) -> (u32, u32) {
    match kind {
        EventKind::TaskQueued | EventKind::TaskStarted => (1, 1),
        EventKind::TaskRetrying
        | EventKind::TaskCompleted
        | EventKind::TaskFailed
        | EventKind::TaskCancelled
        | EventKind::TaskTimedOut => (1, 0),
        EventKind::TaskSkipped
        | EventKind::RunStarted
        | EventKind::RunCompleted
        | EventKind::RunFailed
        | EventKind::RunCancelled
        | EventKind::RunTimedOut
        | EventKind::RunPaused
        | EventKind::RunResumed
        | EventKind::RunRetried
        | EventKind::SignalReceived
        | EventKind::TaskWaiting
        // No run has these in its log.
        | EventKind::ScheduleFired
        | EventKind::ScheduleSkipped => (0, 0),
    }
}

fn is_of_task(kind: EventKind) -> bool {
    kind as u8 >= EventKind::TaskQueued as u8
}

pub(super) fn put<'e>(out: &mut Vec<u8>, log: impl ExactSizeIterator<Item = &'e LogEntry>, zero: Timestamp) {
    put_u64(out, log.len() as u64);
    let mut before = zero;
    for entry in log {
        put_entry(out, entry, before);
        before = entry.time;
    }
}

fn put_entry(out: &mut Vec<u8>, e: &LogEntry, before: Timestamp) {
    let delta = e.time.0.wrapping_sub(before.0);
    let (reference, other) =
        if e.kind == EventKind::TaskStarted { (e.worker, e.error) } else { (e.error, e.worker) };
    if delta < 0 || other.is_some() || e.task.is_some() != is_of_task(e.kind) {
        return put_long(out, e, delta);
    }
    let mut head = e.kind as u8;
    if delta == 0 {
        head |= SAME_TIME;
    }
    let unusual = (e.attempt, e.delivery) != usual(e.kind);
    if unusual {
        head |= UNUSUAL;
    }
    if reference.is_some() {
        head |= REFERENCE;
    }
    out.push(head);
    if let Some(task) = e.task {
        put_u32(out, task);
    }
    if delta != 0 {
        put_u64(out, delta as u64);
    }
    if unusual {
        put_u32(out, e.attempt);
        put_u32(out, e.delivery);
    }
    if let Some(reference) = reference {
        put_u32(out, reference);
    }
}

fn put_long(out: &mut Vec<u8>, e: &LogEntry, delta: i64) {
    let mut flags = 0;
    for (part, flag) in [(e.task, long::TASK), (e.worker, long::WORKER), (e.error, long::ERROR)] {
        if part.is_some() {
            flags |= flag;
        }
    }
    out.extend_from_slice(&[LONG, e.kind as u8, flags]);
    put_i64(out, delta);
    put_u32(out, e.attempt);
    put_u32(out, e.delivery);
    for part in [e.task, e.worker, e.error].into_iter().flatten() {
        put_u32(out, part);
    }
}

pub(super) fn read(r: &mut Reader<'_>, zero: Timestamp) -> Result<Vec<LogEntry>> {
    let mut before = zero;
    r.list(|r| {
        let entry = read_entry(r, before)?;
        before = entry.time;
        Ok(entry)
    })
}

fn kind_of(code: u8) -> Result<EventKind> {
    EventKind::from_code(code).ok_or_else(|| bad(format!("event kind {code} is not known")))
}

fn read_entry(r: &mut Reader<'_>, before: Timestamp) -> Result<LogEntry> {
    let head = r.byte()?;
    if head & KIND == LONG {
        if head != LONG {
            return Err(bad(format!("log entry {head:#x} is not known")));
        }
        return read_long(r, before);
    }
    let kind = kind_of(head & KIND)?;
    let task = if is_of_task(kind) { Some(r.u32()?) } else { None };
    let delta = if head & SAME_TIME == 0 { r.u64()? } else { 0 };
    let (attempt, delivery) = if head & UNUSUAL == 0 { usual(kind) } else { (r.u32()?, r.u32()?) };
    let reference = if head & REFERENCE == 0 { None } else { Some(r.u32()?) };
    let (worker, error) = if kind == EventKind::TaskStarted { (reference, None) } else { (None, reference) };
    let time = Timestamp(before.0.wrapping_add(delta as i64));
    Ok(LogEntry { kind, time, task, attempt, delivery, worker, error })
}

fn read_long(r: &mut Reader<'_>, before: Timestamp) -> Result<LogEntry> {
    let kind = kind_of(r.byte()?)?;
    let flags = r.byte()?;
    if flags & !(long::TASK | long::WORKER | long::ERROR) != 0 {
        return Err(bad(format!("log entry parts {flags:#x} are not known")));
    }
    let time = Timestamp(before.0.wrapping_add(r.i64()?));
    let attempt = r.u32()?;
    let delivery = r.u32()?;
    let mut part = |flag: u8| if flags & flag == 0 { Ok(None) } else { r.u32().map(Some) };
    let task = part(long::TASK)?;
    let worker = part(long::WORKER)?;
    let error = part(long::ERROR)?;
    Ok(LogEntry { kind, time, task, attempt, delivery, worker, error })
}
