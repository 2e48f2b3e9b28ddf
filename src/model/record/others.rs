//! What a record holds of other records: who started the run, and what it has still to tell.
//!
//! ```text
//! origin   1 ‖ run   task   ticket   heard   depth   detached u8          a task of another run
//!          2 ‖ record   slot, microseconds                                a schedule
//! outbox   last   count   ( number, from the one before   to   errand )*
//! errand   1 ‖ node   workflow   version + 1                              start
//!          2 ‖ order u8: 0 to 3 cancel ( + 1 undo, + 2 force ), 4 pause, 5 resume, 6 retry
//!          3                                                              ended
//!          4 ‖ node                                                       acquire
//!          5 ‖ ticket                                                     release
//!          6 ‖ node                                                       take
//! ```

use super::super::ids::{RunId, TaskPath, WorkflowName};
use super::super::outbox::{Message, Origin, Outbox, Parent};
use super::super::run::{Errand, Order, RunState};
use super::super::time::Timestamp;
use super::wire::{Reader, bad, put_bytes, put_i64, put_u32, put_u64};
use super::{Result, field};

/// Kinds of origin.
mod from {
    pub(super) const PARENT: u8 = 1;
    pub(super) const SCHEDULE: u8 = 2;
}

/// Kinds of errand.
mod errand {
    pub(super) const START: u8 = 1;
    pub(super) const ORDER: u8 = 2;
    pub(super) const ENDED: u8 = 3;
    pub(super) const ACQUIRE: u8 = 4;
    pub(super) const RELEASE: u8 = 5;
    pub(super) const TAKE: u8 = 6;
}

/// Orders; below `PAUSE` they are cancels, with flags.
mod order {
    pub(super) const UNDO: u8 = 1;
    pub(super) const FORCE: u8 = 2;
    pub(super) const PAUSE: u8 = 4;
    pub(super) const RESUME: u8 = 5;
    pub(super) const RETRY: u8 = 6;
}

pub(super) fn put(out: &mut Vec<u8>, state: &RunState) {
    if let Some(origin) = &state.origin {
        out.push(field::ORIGIN);
        match origin {
            Origin::Parent(parent) => {
                out.push(from::PARENT);
                put_bytes(out, parent.run.as_str().as_bytes());
                put_bytes(out, parent.task.as_str().as_bytes());
                for n in [parent.ticket, parent.heard, parent.depth] {
                    put_u32(out, n);
                }
                out.push(u8::from(parent.detached));
            }
            Origin::Schedule { home, slot } => {
                out.push(from::SCHEDULE);
                put_bytes(out, home.as_str().as_bytes());
                put_i64(out, slot.0);
            }
        }
    }
    if state.outbox != Outbox::default() {
        out.push(field::OUTBOX);
        put_u32(out, state.outbox.last);
        put_u64(out, state.outbox.pending.len() as u64);
        let mut before = 0;
        for (number, message) in &state.outbox.pending {
            put_u32(out, number - before);
            before = *number;
            put_bytes(out, message.to.as_str().as_bytes());
            put_errand(out, &message.what);
        }
    }
}

fn put_errand(out: &mut Vec<u8>, what: &Errand) {
    match what {
        Errand::Start { node, workflow, version } => {
            out.push(errand::START);
            put_u32(out, *node);
            put_bytes(out, workflow.as_str().as_bytes());
            put_u64(out, version.map_or(0, |v| u64::from(v) + 1));
        }
        Errand::Order(what) => {
            out.push(errand::ORDER);
            out.push(match what {
                Order::Cancel { compensate, force } => {
                    (u8::from(*compensate) * order::UNDO) | (u8::from(*force) * order::FORCE)
                }
                Order::Pause => order::PAUSE,
                Order::Resume => order::RESUME,
                Order::Retry => order::RETRY,
            });
        }
        Errand::Ended => out.push(errand::ENDED),
        Errand::Acquire { node: n } => put_numbered(out, errand::ACQUIRE, *n),
        Errand::Release { ticket: n } => put_numbered(out, errand::RELEASE, *n),
        Errand::Take { node: n } => put_numbered(out, errand::TAKE, *n),
    }
}

fn put_numbered(out: &mut Vec<u8>, kind: u8, number: u32) {
    out.push(kind);
    put_u32(out, number);
}

fn flag(r: &mut Reader<'_>) -> Result<bool> {
    match r.byte()? {
        0 => Ok(false),
        1 => Ok(true),
        other => Err(bad(format!("{other} is no flag"))),
    }
}

fn run(r: &mut Reader<'_>) -> Result<RunId> {
    RunId::new(r.text()?).map_err(bad)
}

pub(super) fn origin(r: &mut Reader<'_>) -> Result<Origin> {
    match r.byte()? {
        from::PARENT => Ok(Origin::Parent(Parent {
            run: run(r)?,
            task: TaskPath::parse(r.text()?).map_err(bad)?,
            ticket: r.u32()?,
            heard: r.u32()?,
            depth: r.u32()?,
            detached: flag(r)?,
        })),
        from::SCHEDULE => Ok(Origin::Schedule { home: run(r)?, slot: Timestamp(r.i64()?) }),
        other => Err(bad(format!("an origin of kind {other} is not known"))),
    }
}

pub(super) fn outbox(r: &mut Reader<'_>) -> Result<Outbox<Errand>> {
    let last = r.u32()?;
    let mut outbox = Outbox { last, ..Outbox::default() };
    let mut before = 0_u32;
    for _ in 0..r.count()? {
        let number = before.checked_add(r.u32()?).filter(|n| *n > before && *n <= last);
        before = number.ok_or_else(|| bad("its messages are not in order"))?;
        let to = run(r)?;
        outbox.pending.insert(before, Message { to, what: what(r)? });
    }
    Ok(outbox)
}

fn what(r: &mut Reader<'_>) -> Result<Errand> {
    match r.byte()? {
        errand::START => Ok(Errand::Start {
            node: r.u32()?,
            workflow: WorkflowName::new(r.text()?).map_err(bad)?,
            version: r.u64()?.checked_sub(1).map(|v| u32::try_from(v).map_err(bad)).transpose()?,
        }),
        errand::ORDER => Ok(Errand::Order(match r.byte()? {
            flags if flags < order::PAUSE => {
                Order::Cancel { compensate: flags & order::UNDO != 0, force: flags & order::FORCE != 0 }
            }
            order::PAUSE => Order::Pause,
            order::RESUME => Order::Resume,
            order::RETRY => Order::Retry,
            other => return Err(bad(format!("order {other} is not known"))),
        })),
        errand::ENDED => Ok(Errand::Ended),
        errand::ACQUIRE => Ok(Errand::Acquire { node: r.u32()? }),
        errand::RELEASE => Ok(Errand::Release { ticket: r.u32()? }),
        errand::TAKE => Ok(Errand::Take { node: r.u32()? }),
        other => Err(bad(format!("an errand of kind {other} is not known"))),
    }
}
