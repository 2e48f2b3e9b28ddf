//! The backup file: frames, one after the other, each with a check of all that came before it.
//!
//! ```text
//! file     "downbeat backup\n"  frame*
//! frame    kind u8 ‖ length u32 BE ‖ body ‖ check 8 B
//! check    the first 8 bytes of SHA-256 over everything from the start of the file to the end of the body
//!
//! H  head      format u32  id 16 B  begun i64  layout u32  partitions u32  version of Downbeat
//! S  record    id  record (prefix ‖ state)
//! F  field     name  value                                of the record before it
//! W  workflow  name  version u32  created i64  document
//! E  end       records u64  fields u64  workflows u64  lease clock i64
//! ```
//!
//! Numbers are big endian, times µs; text and bytes are length u32 ‖ bytes. H comes first and E last, once each. Records
//! stand in an order that keeps the copy of a store that is worked on sound (see `backup.rs`), workflows behind them.
//!
//! A newer version reads what older ones wrote: another form is another number in `format`, and this reader learns it.
//! What it does not know it refuses.

use super::{MoveError, Result};
use crate::model::ids::{RunId, WorkflowName};
use crate::model::payload::Field;
use crate::model::time::{LeaseTime, Timestamp};
use crate::store::StoredWorkflow;
use crate::store::moves::FileId;
use bytes::Bytes;
use sha2::{Digest as _, Sha256};
use std::io::{Read, Write};

const MAGIC: &[u8; 16] = b"downbeat backup\n";
/// The format this version writes.
const FORMAT: u32 = 1;
/// The longest body that is read: far above any record.
const BODY_MAX: u32 = 1 << 28;
const CHECK: usize = 8;

mod kind {
    pub(super) const HEAD: u8 = b'H';
    pub(super) const RECORD: u8 = b'S';
    pub(super) const FIELD: u8 = b'F';
    pub(super) const WORKFLOW: u8 = b'W';
    pub(super) const END: u8 = b'E';
}

/// What a file begins with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) id: FileId,
    pub(super) begun: Timestamp,
    pub(super) layout: u32,
    pub(super) partitions: u16,
}

/// What a file ends with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct End {
    pub(super) records: u64,
    pub(super) fields: u64,
    pub(super) workflows: u64,
    /// No lease in the file is later on the lease clock of its partition.
    pub(super) lease: LeaseTime,
}

/// One frame, but for the head.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Frame {
    Record { run: RunId, record: Bytes },
    Field { field: Field, value: Bytes },
    Workflow(StoredWorkflow),
    End(End),
}

/// What a whole file holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Summary {
    /// Names the file.
    pub id: FileId,
    /// When its backup began.
    pub begun: Timestamp,
    /// Partitions of the store it was taken of.
    pub partitions: u16,
    /// Records of runs, and of what else is kept.
    pub records: u64,
    /// Payload fields of all records.
    pub fields: u64,
    /// Versions of workflows.
    pub workflows: u64,
}

/// Writes a file.
#[derive(Debug)]
pub(super) struct Writer<W> {
    out: W,
    sum: Sha256,
    body: Vec<u8>,
    pub(super) bytes: u64,
}

impl<W: Write> Writer<W> {
    pub(super) fn begin(mut out: W, head: &Head) -> Result<Self> {
        out.write_all(MAGIC)?;
        let sum = Sha256::new_with_prefix(MAGIC);
        let mut writer = Self { out, sum, body: Vec::new(), bytes: MAGIC.len() as u64 };
        writer.put(&FORMAT.to_be_bytes()).put(&head.id).put(&head.begun.0.to_be_bytes());
        writer.put(&head.layout.to_be_bytes()).put(&u32::from(head.partitions).to_be_bytes());
        writer.text(env!("CARGO_PKG_VERSION").as_bytes());
        writer.frame(kind::HEAD)?;
        Ok(writer)
    }

    pub(super) fn write(&mut self, frame: &Frame) -> Result<()> {
        let kind = match frame {
            Frame::Record { run, record } => {
                self.text(run.as_str().as_bytes()).text(record);
                kind::RECORD
            }
            Frame::Field { field, value } => {
                self.text(&field.0).text(value);
                kind::FIELD
            }
            Frame::Workflow(stored) => {
                self.text(stored.name.as_str().as_bytes()).put(&stored.version.to_be_bytes());
                self.put(&stored.created_at.0.to_be_bytes()).text(&stored.document);
                kind::WORKFLOW
            }
            Frame::End(end) => {
                for n in [end.records, end.fields, end.workflows] {
                    self.put(&n.to_be_bytes());
                }
                self.put(&end.lease.0.to_be_bytes());
                kind::END
            }
        };
        self.frame(kind)
    }

    /// The output, once everything was written.
    pub(super) fn done(mut self) -> Result<W> {
        self.out.flush()?;
        Ok(self.out)
    }

    fn put(&mut self, bytes: &[u8]) -> &mut Self {
        self.body.extend_from_slice(bytes);
        self
    }

    fn text(&mut self, bytes: &[u8]) -> &mut Self {
        self.body.extend_from_slice(&(bytes.len() as u32).to_be_bytes());
        self.body.extend_from_slice(bytes);
        self
    }

    fn frame(&mut self, kind: u8) -> Result<()> {
        let mut head = [kind, 0, 0, 0, 0];
        head[1..].copy_from_slice(&(self.body.len() as u32).to_be_bytes());
        self.sum.update(head);
        self.sum.update(&self.body);
        self.out.write_all(&head)?;
        self.out.write_all(&self.body)?;
        self.out.write_all(&check(&self.sum))?;
        self.bytes += (head.len() + self.body.len() + CHECK) as u64;
        self.body.clear();
        Ok(())
    }
}

fn check(sum: &Sha256) -> [u8; CHECK] {
    let digest = sum.clone().finalize();
    let mut check = [0; CHECK];
    check.copy_from_slice(&digest[..CHECK]);
    check
}

/// Reads a file. Ends with [`Frame::End`]; after it there must be nothing.
#[derive(Debug)]
pub(super) struct Reader<R> {
    from: R,
    sum: Sha256,
    /// Where the next frame begins.
    at: u64,
}

impl<R: Read> Reader<R> {
    pub(super) fn begin(mut from: R) -> Result<(Self, Head)> {
        let mut magic = [0; MAGIC.len()];
        let read = read_up_to(&mut from, &mut magic)?;
        if magic[..read] != MAGIC[..] {
            return Err(wrong(0, "this is no backup of Downbeat"));
        }
        let mut reader = Self { from, sum: Sha256::new_with_prefix(MAGIC), at: MAGIC.len() as u64 };
        let (at, kind, body) = reader.body()?;
        if kind != kind::HEAD {
            return Err(wrong(at, "it does not begin with its head"));
        }
        let mut body = Body { rest: &body, at };
        let format = body.u32()?;
        if format != FORMAT {
            let what = format!("its format is {format}, this version reads {FORMAT}: use a newer Downbeat");
            return Err(wrong(at, what));
        }
        let id = body.array()?;
        let (begun, layout) = (Timestamp(body.i64()?), body.u32()?);
        let partitions =
            u16::try_from(body.u32()?).map_err(|_| wrong(at, "its number of partitions is none"))?;
        body.text()?;
        body.end()?;
        Ok((reader, Head { id, begun, layout, partitions }))
    }

    pub(super) fn next(&mut self) -> Result<Frame> {
        let (at, kind, bytes) = self.body()?;
        let mut body = Body { rest: &bytes, at };
        let frame = match kind {
            kind::RECORD => Frame::Record { run: body.name(RunId::new)?, record: body.value(&bytes)? },
            kind::FIELD => Frame::Field { field: Field(body.value(&bytes)?), value: body.value(&bytes)? },
            kind::WORKFLOW => Frame::Workflow(StoredWorkflow {
                name: body.name(WorkflowName::new)?,
                version: body.u32()?,
                created_at: Timestamp(body.i64()?),
                document: body.value(&bytes)?,
            }),
            kind::END => Frame::End(End {
                records: body.u64()?,
                fields: body.u64()?,
                workflows: body.u64()?,
                lease: LeaseTime(body.i64()?),
            }),
            other => {
                let what =
                    format!("a part of kind {:?} is not known: use a newer Downbeat", char::from(other));
                return Err(wrong(at, what));
            }
        };
        body.end()?;
        if matches!(frame, Frame::End(_)) && read_up_to(&mut self.from, &mut [0])? > 0 {
            return Err(wrong(self.at, "something stands behind its end"));
        }
        Ok(frame)
    }

    /// Where the next frame begins.
    pub(super) fn at(&self) -> u64 {
        self.at
    }

    /// The next frame as (where, kind, body), its check done.
    fn body(&mut self) -> Result<(u64, u8, Bytes)> {
        let at = self.at;
        let cut = || wrong(at, "it ends here: the rest is missing");
        let mut head = [0; 5];
        if read_up_to(&mut self.from, &mut head)? < head.len() {
            return Err(cut());
        }
        let [kind, a, b, c, d] = head;
        let len = u32::from_be_bytes([a, b, c, d]);
        if len > BODY_MAX {
            return Err(wrong(at, "it is damaged: a part of impossible length"));
        }
        // Grows with what there is, not with what the length claims.
        let mut body = Vec::new();
        self.from.by_ref().take(u64::from(len)).read_to_end(&mut body)?;
        let mut told = [0; CHECK];
        if body.len() < len as usize || read_up_to(&mut self.from, &mut told)? < CHECK {
            return Err(cut());
        }
        self.sum.update(head);
        self.sum.update(&body);
        if told != check(&self.sum) {
            return Err(wrong(at, "it is damaged: the check of this part does not hold"));
        }
        self.at += (head.len() + body.len() + CHECK) as u64;
        Ok((at, kind, body.into()))
    }
}

/// Reads a whole file and says what it holds.
///
/// # Errors
/// If it is no backup, cut, damaged or of a form that is not known; with the place.
pub fn inspect(from: impl Read) -> Result<Summary> {
    let (mut reader, head) = Reader::begin(from)?;
    let (mut counted, mut field_may_come) = (End::default(), false);
    loop {
        let at = reader.at();
        match reader.next()? {
            Frame::Record { .. } => {
                counted.records += 1;
                field_may_come = true;
            }
            Frame::Field { .. } if field_may_come => counted.fields += 1,
            Frame::Field { .. } => return Err(wrong(at, "a payload of no record")),
            Frame::Workflow(_) => {
                counted.workflows += 1;
                field_may_come = false;
            }
            Frame::End(end) => {
                counted.lease = end.lease;
                if end != counted {
                    return Err(wrong(at, "it does not hold what its end says"));
                }
                let End { records, fields, workflows, .. } = counted;
                let Head { id, begun, partitions, .. } = head;
                return Ok(Summary { id, begun, partitions, records, fields, workflows });
            }
        }
    }
}

fn wrong(at: u64, what: impl Into<String>) -> MoveError {
    MoveError::File { at, what: what.into() }
}

/// Fills `into` as far as there is something; how far.
fn read_up_to(from: &mut impl Read, into: &mut [u8]) -> Result<usize> {
    let mut read = 0;
    while let Some(rest) = into.get_mut(read..).filter(|r| !r.is_empty()) {
        match from.read(rest) {
            Ok(0) => break,
            Ok(n) => read += n,
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e.into()),
        }
    }
    Ok(read)
}

/// A body that is being read. Its check held, so what is wrong in it was written so.
struct Body<'b> {
    rest: &'b [u8],
    at: u64,
}

impl<'b> Body<'b> {
    fn take(&mut self, n: usize) -> Result<&'b [u8]> {
        let (taken, rest) = self.rest.split_at_checked(n).ok_or_else(|| self.bad())?;
        self.rest = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    fn u32(&mut self) -> Result<u32> {
        Ok(u32::from_be_bytes(self.array()?))
    }

    fn u64(&mut self) -> Result<u64> {
        Ok(u64::from_be_bytes(self.array()?))
    }

    fn i64(&mut self) -> Result<i64> {
        Ok(i64::from_be_bytes(self.array()?))
    }

    fn text(&mut self) -> Result<&'b [u8]> {
        let len = self.u32()? as usize;
        self.take(len)
    }

    fn value(&mut self, of: &Bytes) -> Result<Bytes> {
        Ok(of.slice_ref(self.text()?))
    }

    fn name<T, E>(&mut self, new: impl Fn(&str) -> std::result::Result<T, E>) -> Result<T> {
        let text = std::str::from_utf8(self.text()?).map_err(|_| self.bad())?;
        new(text).map_err(|_| self.bad())
    }

    fn end(&self) -> Result<()> {
        if self.rest.is_empty() { Ok(()) } else { Err(self.bad()) }
    }

    fn bad(&self) -> MoveError {
        wrong(self.at, "a part has not the form of its kind")
    }
}

#[cfg(test)]
mod tests;
