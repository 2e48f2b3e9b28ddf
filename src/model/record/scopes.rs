//! What a record holds of a run that is more than a list of tasks: blocks of nodes, what they wait for, undo,
//! the end, signals.
//!
//! ```text
//! block    kind u8   owner?   plan   len   number, of an iteration      (where it begins follows from those before)
//! undo     node   input
//! ending   status u8   stage u8   node   undoes u8
//! signal   flags u8   name   id?   payload
//! waiting  kind u8   what only the kind has
//! ```

use super::super::run::{
    Block, BlockKind, EndStage, Ending, Entry, Permit, RunState, Signal, TaskState, Undo, Waiting,
};
use super::super::time::Timestamp;
use super::wire::{Reader, Writer, bad, put_bytes, put_i64, put_u32, put_u64};
use super::{Result, field, instant, payload, put_payload, status_code, status_of};

/// Kinds of blocks.
mod kind {
    pub(super) const BODY: u8 = 1;
    pub(super) const ITEMS: u8 = 2;
    pub(super) const ITERATION: u8 = 3;
    pub(super) const COMPENSATION: u8 = 4;
    pub(super) const FINALLY: u8 = 5;
}

/// What a task waits for.
mod wait {
    pub(super) const TIMER: u8 = 1;
    pub(super) const SIGNAL: u8 = 2;
    pub(super) const BODY: u8 = 3;
    pub(super) const ITEMS: u8 = 4;
    pub(super) const ITERATIONS: u8 = 5;
    pub(super) const CHILD: u8 = 6;
    pub(super) const PERMIT: u8 = 7;
    pub(super) const RATE: u8 = 8;
}

pub(super) fn put<'v>(out: &mut Writer<'v>, state: &'v RunState) {
    if !state.blocks.is_empty() {
        out.push(field::BLOCKS);
        put_u64(out, state.blocks.len() as u64);
        for block in &state.blocks {
            put_block(out, block);
        }
    }
    if !state.undo.is_empty() {
        out.push(field::UNDO);
        put_u64(out, state.undo.len() as u64);
        for undo in &state.undo {
            put_u32(out, undo.node);
            put_payload(out, &undo.input);
        }
    }
    if let Some(ending) = &state.ending {
        out.push(field::ENDING);
        out.push(status_code(ending.status));
        let (stage, node) = match ending.stage {
            EndStage::Undoing(node) => (1, node),
            EndStage::Finally(node) => (2, node),
        };
        out.push(stage);
        put_u32(out, node);
        out.push(u8::from(ending.undoes));
    }
    if !state.signals.is_empty() {
        out.push(field::SIGNALS);
        put_u64(out, state.signals.len() as u64);
        for signal in &state.signals {
            out.push(u8::from(signal.taken) | u8::from(signal.id.is_some()) << 1);
            put_bytes(out, signal.name.as_bytes());
            if let Some(id) = &signal.id {
                put_bytes(out, id.as_bytes());
            }
            put_payload(out, &signal.payload);
        }
    }
}

fn put_block(out: &mut Vec<u8>, block: &Block) {
    out.push(match block.kind {
        BlockKind::Body => kind::BODY,
        BlockKind::Items => kind::ITEMS,
        BlockKind::Iteration(_) => kind::ITERATION,
        BlockKind::Compensation => kind::COMPENSATION,
        BlockKind::Finally => kind::FINALLY,
    });
    if let Some(owner) = block.owner {
        put_u32(out, owner);
    }
    put_u32(out, block.plan);
    put_u32(out, block.len);
    if let BlockKind::Iteration(n) = block.kind {
        put_u32(out, n);
    }
}

pub(super) fn block(r: &mut Reader<'_>) -> Result<Block> {
    let code = r.byte()?;
    let owner = if code == kind::FINALLY { None } else { Some(r.u32()?) };
    let (plan, len) = (r.u32()?, r.u32()?);
    let kind = match code {
        kind::BODY => BlockKind::Body,
        kind::ITEMS => BlockKind::Items,
        kind::ITERATION => BlockKind::Iteration(r.u32()?),
        kind::COMPENSATION => BlockKind::Compensation,
        kind::FINALLY => BlockKind::Finally,
        other => return Err(bad(format!("block kind {other} is not known"))),
    };
    Ok(Block { owner, kind, plan, first: 0, len })
}

/// Works out where blocks begin and which one each node stands in. They fill the end of the nodes exactly.
pub(super) fn place(blocks: &mut [Block], tasks: &mut [TaskState]) -> Result<()> {
    begin_at(blocks, tasks.len())?;
    for (number, block) in (1..).zip(blocks.iter()) {
        for task in &mut tasks[block.first as usize..(block.first + block.len) as usize] {
            task.block = number;
        }
    }
    Ok(())
}

/// Works out where blocks begin among so many nodes.
pub(super) fn begin_at(blocks: &mut [Block], nodes: usize) -> Result<()> {
    let laid_out: u64 = blocks.iter().map(|b| u64::from(b.len)).sum();
    let own =
        (nodes as u64).checked_sub(laid_out).ok_or_else(|| bad("its blocks hold more nodes than it has"))?;
    let mut first = own as u32;
    for block in blocks {
        if block.owner.is_some_and(|owner| owner >= first) {
            return Err(bad("a block stands before the node it belongs to"));
        }
        block.first = first;
        first += block.len;
    }
    Ok(())
}

pub(super) fn undo(r: &mut Reader<'_>) -> Result<Undo> {
    Ok(Undo { node: r.u32()?, input: payload(r)? })
}

pub(super) fn ending(r: &mut Reader<'_>) -> Result<Ending> {
    let status = status_of(r.byte()?)?;
    let stage = match r.byte()? {
        1 => EndStage::Undoing(r.u32()?),
        2 => EndStage::Finally(r.u32()?),
        other => return Err(bad(format!("stage {other} of an end is not known"))),
    };
    let undoes = match r.byte()? {
        0 => false,
        1 => true,
        other => return Err(bad(format!("{other} is no flag"))),
    };
    Ok(Ending { status, stage, undoes })
}

pub(super) fn signal(r: &mut Reader<'_>) -> Result<Signal> {
    let flags = r.byte()?;
    if flags > 3 {
        return Err(bad(format!("signal parts {flags:#x} are not known")));
    }
    let name = r.text()?.to_owned();
    let id = if flags & 2 == 0 { None } else { Some(r.text()?.to_owned()) };
    Ok(Signal { name, id, payload: payload(r)?, taken: flags & 1 != 0 })
}

/// An option of a number as the number above it; 0 is none.
fn put_option(out: &mut Vec<u8>, value: Option<u32>) {
    put_u64(out, value.map_or(0, |v| u64::from(v) + 1));
}

fn option(r: &mut Reader<'_>) -> Result<Option<u32>> {
    r.u64()?.checked_sub(1).map(|v| u32::try_from(v).map_err(bad)).transpose()
}

pub(super) fn put_waiting<'v>(out: &mut Writer<'v>, waiting: &'v Waiting, zero: Timestamp) {
    match waiting {
        Waiting::Timer { due } => {
            out.push(wait::TIMER);
            put_i64(out, due.0.wrapping_sub(zero.0));
        }
        Waiting::Signal { name } => {
            out.push(wait::SIGNAL);
            put_bytes(out, name.as_bytes());
        }
        Waiting::Body { block, open, error, undoing } => {
            out.push(wait::BODY);
            put_u32(out, *block);
            put_u32(out, *open);
            put_option(out, *error);
            put_option(out, *undoing);
        }
        Waiting::Items { block, next, open, failed, error } => {
            out.push(wait::ITEMS);
            for n in [block, next, open, failed] {
                put_u32(out, *n);
            }
            put_option(out, *error);
        }
        Waiting::Iterations { block, index, due, previous, undoing } => {
            out.push(wait::ITERATIONS);
            put_u32(out, *block);
            put_u32(out, *index);
            out.push(u8::from(due.is_some()));
            if let Some(due) = due {
                put_i64(out, due.0.wrapping_sub(zero.0));
            }
            put_payload(out, previous);
            put_option(out, *undoing);
        }
        Waiting::Child { ticket, ask_at } => {
            out.push(wait::CHILD);
            put_u32(out, *ticket);
            put_i64(out, ask_at.0.wrapping_sub(zero.0));
        }
        Waiting::Permit { entry, ask_at } => {
            out.push(wait::PERMIT);
            put_u64(
                out,
                match entry {
                    Entry::First => 0,
                    Entry::Again { from: None } => 1,
                    Entry::Again { from: Some(node) } => u64::from(*node) + 2,
                },
            );
            put_i64(out, ask_at.0.wrapping_sub(zero.0));
        }
        Waiting::Rate { key, ticket, due } => {
            out.push(wait::RATE);
            put_bytes(out, key.as_bytes());
            put_u32(out, *ticket);
            out.push(u8::from(due.is_some()));
            if let Some(due) = due {
                put_i64(out, due.0.wrapping_sub(zero.0));
            }
        }
    }
}

fn due(r: &mut Reader<'_>, zero: Timestamp) -> Result<Option<Timestamp>> {
    match r.byte()? {
        0 => Ok(None),
        1 => Ok(Some(instant(r, zero)?)),
        other => Err(bad(format!("{other} is no flag"))),
    }
}

/// Parts of a permit.
const GRANTED: u8 = 1;

/// `permit  parts u8   key   ticket`
pub(super) fn put_permit(out: &mut Vec<u8>, permit: &Permit) {
    out.push(u8::from(permit.granted) * GRANTED);
    put_bytes(out, permit.key.as_bytes());
    put_u32(out, permit.ticket);
}

pub(super) fn permit(r: &mut Reader<'_>) -> Result<Permit> {
    let parts = r.byte()?;
    if parts > GRANTED {
        return Err(bad(format!("permit parts {parts:#x} are not known")));
    }
    Ok(Permit { key: r.text()?.to_owned(), ticket: r.u32()?, granted: parts & GRANTED != 0 })
}

pub(super) fn waiting(r: &mut Reader<'_>, zero: Timestamp) -> Result<Waiting> {
    Ok(match r.byte()? {
        wait::TIMER => Waiting::Timer { due: instant(r, zero)? },
        wait::SIGNAL => Waiting::Signal { name: r.text()?.to_owned() },
        wait::BODY => {
            Waiting::Body { block: r.u32()?, open: r.u32()?, error: option(r)?, undoing: option(r)? }
        }
        wait::ITEMS => Waiting::Items {
            block: r.u32()?,
            next: r.u32()?,
            open: r.u32()?,
            failed: r.u32()?,
            error: option(r)?,
        },
        wait::ITERATIONS => {
            let (block, index) = (r.u32()?, r.u32()?);
            let due = due(r, zero)?;
            Waiting::Iterations { block, index, due, previous: payload(r)?, undoing: option(r)? }
        }
        wait::CHILD => Waiting::Child { ticket: r.u32()?, ask_at: instant(r, zero)? },
        wait::PERMIT => {
            let entry = match r.u64()? {
                0 => Entry::First,
                1 => Entry::Again { from: None },
                node => Entry::Again { from: Some(u32::try_from(node - 2).map_err(bad)?) },
            };
            Waiting::Permit { entry, ask_at: instant(r, zero)? }
        }
        wait::RATE => Waiting::Rate { key: r.text()?.to_owned(), ticket: r.u32()?, due: due(r, zero)? },
        other => return Err(bad(format!("a wait of kind {other} is not known"))),
    })
}
