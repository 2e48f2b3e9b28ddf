//! Varints, lengths, a writer that knows what it has written, and a reader that cannot run past its input.

use super::{Result, UnreadableRecord};
use bytes::Bytes;
use std::ops::{Deref, DerefMut};

/// An error with its reason.
pub(super) fn bad(why: impl std::fmt::Display) -> UnreadableRecord {
    UnreadableRecord(why.to_string())
}

/// LEB128: seven bits a byte, the low ones first. Most numbers of a record take one byte.
#[inline]
pub(super) fn put_u64(out: &mut Vec<u8>, v: u64) {
    if v < 0x80 { out.push(v as u8) } else { put_long(out, v) }
}

fn put_long(out: &mut Vec<u8>, mut v: u64) {
    while v >= 0x80 {
        out.push(v as u8 | 0x80);
        v >>= 7;
    }
    out.push(v as u8);
}

#[inline]
pub(super) fn put_u32(out: &mut Vec<u8>, v: u32) {
    put_u64(out, u64::from(v));
}

/// Zigzag, so that small negative numbers stay short.
#[inline]
pub(super) fn put_i64(out: &mut Vec<u8>, v: i64) {
    put_u64(out, ((v << 1) ^ (v >> 63)) as u64);
}

pub(super) fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_u64(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// The last different values of a record, newest first. Writer and reader remember alike, so that a value that comes
/// again is told by its place: the tasks of a chain tend to pass one value on.
#[derive(Debug)]
pub(super) struct Recent<T> {
    /// From `newest` on, and around.
    ring: [Option<T>; RECENT],
    newest: usize,
}

/// Values that are remembered.
const RECENT: usize = 8;
/// A shorter value costs no more than its place.
const REPEATED_LEAST: usize = 4;

impl<T> Default for Recent<T> {
    fn default() -> Self {
        Self { ring: [const { None }; RECENT], newest: 0 }
    }
}

impl<T: AsRef<[u8]>> Recent<T> {
    /// Where a value stands, if it is remembered.
    pub(super) fn place(&self, value: &[u8]) -> Option<u8> {
        if value.len() < REPEATED_LEAST {
            return None;
        }
        let same = |n: &usize| {
            let Some(v) = self.at(*n) else { return false };
            let v = v.as_ref();
            // Values that differ tend to differ at their ends: `[10]`, `[11]`, `{"n":10}`.
            let ends = |v: &[u8]| v.last_chunk::<REPEATED_LEAST>().copied();
            v.len() == value.len() && (std::ptr::eq(v, value) || (ends(v) == ends(value) && v == value))
        };
        (0..RECENT).find(same).map(|n| n as u8)
    }

    fn at(&self, place: usize) -> Option<&T> {
        self.ring[(self.newest + place) % RECENT].as_ref()
    }

    pub(super) fn get(&self, place: u8) -> Option<&T> {
        let place = usize::from(place);
        if place < RECENT { self.at(place) } else { None }
    }

    /// Remembers a value that was not.
    pub(super) fn push(&mut self, value: T) {
        if value.as_ref().len() >= REPEATED_LEAST {
            self.newest = (self.newest + RECENT - 1) % RECENT;
            self.ring[self.newest] = Some(value);
        }
    }
}

/// A buffer, and what stands in it already.
pub(super) struct Writer<'v> {
    out: Vec<u8>,
    pub(super) recent: Recent<&'v [u8]>,
}

impl Writer<'_> {
    /// Goes on behind what `out` holds.
    pub(super) fn behind(out: Vec<u8>) -> Self {
        Self { out, recent: Recent::default() }
    }

    pub(super) fn done(self) -> Vec<u8> {
        self.out
    }
}

impl Deref for Writer<'_> {
    type Target = Vec<u8>;
    fn deref(&self) -> &Vec<u8> {
        &self.out
    }
}

impl DerefMut for Writer<'_> {
    fn deref_mut(&mut self) -> &mut Vec<u8> {
        &mut self.out
    }
}

/// Reads from the front; every step checks what is left.
pub(super) struct Reader<'a> {
    rest: &'a [u8],
    pub(super) recent: Recent<Bytes>,
}

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes, recent: Recent::default() }
    }

    pub(super) fn byte(&mut self) -> Result<u8> {
        let (first, rest) = self.rest.split_first().ok_or_else(|| bad("it is cut short"))?;
        self.rest = rest;
        Ok(*first)
    }

    pub(super) fn take(&mut self, len: usize) -> Result<&'a [u8]> {
        let (head, rest) = self.rest.split_at_checked(len).ok_or_else(|| bad("it is cut short"))?;
        self.rest = rest;
        Ok(head)
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        self.take(N)?.try_into().map_err(bad)
    }

    pub(super) fn u64(&mut self) -> Result<u64> {
        let first = self.byte()?;
        if first < 0x80 {
            return Ok(u64::from(first));
        }
        let mut v = u64::from(first & 0x7f);
        for shift in (7..64).step_by(7) {
            let b = self.byte()?;
            // The tenth byte holds the 64th bit only; a zero at the end would be a second form of one number.
            if (shift == 63 && b > 1) || b == 0 {
                return Err(bad("a number is not in its shortest form"));
            }
            v |= u64::from(b & 0x7f) << shift;
            if b < 0x80 {
                return Ok(v);
            }
        }
        Err(bad("a number is too long"))
    }

    pub(super) fn u32(&mut self) -> Result<u32> {
        u32::try_from(self.u64()?).map_err(bad)
    }

    pub(super) fn i64(&mut self) -> Result<i64> {
        let v = self.u64()?;
        Ok((v >> 1) as i64 ^ -((v & 1) as i64))
    }

    pub(super) fn bytes(&mut self) -> Result<&'a [u8]> {
        let len = self.u64()?;
        self.take(usize::try_from(len).map_err(bad)?)
    }

    pub(super) fn text(&mut self) -> Result<&'a str> {
        std::str::from_utf8(self.bytes()?).map_err(bad)
    }

    /// A number of things that follow, each of which takes a byte at least.
    pub(super) fn count(&mut self) -> Result<usize> {
        let n = usize::try_from(self.u64()?).map_err(bad)?;
        if n > self.rest.len() {
            return Err(bad("it is cut short"));
        }
        Ok(n)
    }

    pub(super) fn list<T>(&mut self, mut read: impl FnMut(&mut Self) -> Result<T>) -> Result<Vec<T>> {
        let n = self.count()?;
        let mut list = Vec::with_capacity(n);
        for _ in 0..n {
            list.push(read(self)?);
        }
        Ok(list)
    }

    pub(super) fn end(&self) -> Result<()> {
        if self.rest.is_empty() { Ok(()) } else { Err(bad("bytes follow its end")) }
    }
}
