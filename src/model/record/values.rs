//! Payloads: small ones as they are, others by where they stand.
//!
//! To add a form: a number above those there are, and where it is written and read.

use super::super::payload::{Field, Payload};
use super::Result;
use super::wire::{Reader, Writer, bad, put_bytes, put_u32, put_u64};
use bytes::Bytes;

/// Forms of a payload: 1 to 65 is a JSON text of that many bytes less one. One that is among the last that the record
/// tells is not told again, see [`super::wire::Recent`].
mod form {
    pub(super) const NULL: u8 = 0;
    pub(super) const INLINE_LAST: u8 = 65;
    pub(super) const STORED: u8 = 0x80;
    pub(super) const PATH: u8 = 0x81;
    pub(super) const LONG_INLINE: u8 = 0x82;
    pub(super) const REPEATED: u8 = 0x83;
}

pub(super) fn put_payload<'v>(out: &mut Writer<'v>, payload: &'v Payload) {
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
pub(super) fn payload(r: &mut Reader<'_>) -> Result<Payload> {
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
