//! Replies of Redis as they come off a connection (RESP2), piece by piece.
//!
//! ```text
//! bytes ──► buffer ──► next(): an element is taken out as soon as it is whole ──► open arrays ──► Value
//! ```
//!
//! Invariants
//! - Nothing is read twice: an element leaves the buffer once, however the bytes were split.
//! - Junk is an error, never a panic. A length that is only announced takes no memory.
//! - A text is a slice of what was read only if it is most of it; all else is copied, so that what is kept of a reply
//!   never holds on to a read buffer.
//!
//! To add a kind of reply: its mark in [`Parser::element`], a variant of [`Value`], its form in the test of splits.

use bytes::{Buf as _, Bytes, BytesMut};

/// Arrays within arrays.
const NESTING_MAX: usize = 16;
/// The longest text, in bytes: the limit of Redis itself.
const TEXT_MAX: usize = 512 << 20;
/// The most elements of an array.
const ITEMS_MAX: usize = 4 << 20;
/// The longest line: a mark with a number, or an error.
const LINE_MAX: usize = 64 << 10;
/// Texts below this are copied.
const SLICE_MIN: usize = 16 << 10;

/// A reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::store::redis) enum Value {
    /// Nothing there.
    Nil,
    /// A whole number.
    Int(i64),
    /// Bytes.
    BulkString(Bytes),
    /// A line such as `OK`.
    SimpleString(Bytes),
    /// An error, as Redis spelled it: a code in capitals, then text.
    Error(Box<str>),
    /// Several.
    Array(Vec<Value>),
}

/// What came is no reply of Redis.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(in crate::store::redis) struct Junk(pub(in crate::store::redis) &'static str);

/// Reads replies out of a buffer that grows at its end.
#[derive(Debug, Default)]
pub(in crate::store::redis) struct Parser {
    /// Arrays that are not complete yet, outermost first, each with how many elements it lacks.
    open: Vec<(Vec<Value>, usize)>,
    /// The length of a text whose mark was read.
    text: Option<usize>,
}

enum Element {
    Whole(Value),
    Opened(usize),
}

impl Parser {
    /// The next whole reply in `buffer`, which loses what was read. None: more bytes are needed.
    ///
    /// # Errors
    /// The bytes are no reply; nothing more can be read.
    pub(in crate::store::redis) fn next(&mut self, buffer: &mut BytesMut) -> Result<Option<Value>, Junk> {
        loop {
            let Some(element) = self.element(buffer)? else { return Ok(None) };
            let mut value = match element {
                Element::Whole(value) => value,
                Element::Opened(0) => Value::Array(Vec::new()),
                Element::Opened(items) => {
                    if self.open.len() == NESTING_MAX {
                        return Err(Junk("arrays are nested too deep"));
                    }
                    self.open.push((Vec::with_capacity(items.min(256)), items));
                    continue;
                }
            };
            loop {
                match self.open.pop() {
                    None => return Ok(Some(value)),
                    Some((mut items, 1)) => {
                        items.push(value);
                        value = Value::Array(items);
                    }
                    Some((mut items, missing)) => {
                        items.push(value);
                        self.open.push((items, missing - 1));
                        break;
                    }
                }
            }
        }
    }

    fn element(&mut self, buffer: &mut BytesMut) -> Result<Option<Element>, Junk> {
        let Some(length) = self.text else {
            let Some(end) = line(buffer)? else { return Ok(None) };
            let (mark, rest) = (buffer[0], &buffer[1..end]);
            let element = match mark {
                b'$' => {
                    let length = size(rest, TEXT_MAX)?;
                    buffer.advance(end + 2);
                    let Some(length) = length else { return Ok(Some(Element::Whole(Value::Nil))) };
                    self.text = Some(length);
                    return self.element(buffer);
                }
                b':' => Element::Whole(Value::Int(number(rest)?)),
                b'+' => Element::Whole(Value::SimpleString(Bytes::copy_from_slice(rest))),
                b'-' => Element::Whole(Value::Error(String::from_utf8_lossy(rest).into())),
                b'*' => match size(rest, ITEMS_MAX)? {
                    Some(items) => Element::Opened(items),
                    None => Element::Whole(Value::Nil),
                },
                // The first byte of an alert or of a handshake.
                0x15 | 0x16 => return Err(Junk("it speaks TLS: use rediss://")),
                _ => return Err(Junk("what answers does not speak the protocol of Redis")),
            };
            buffer.advance(end + 2);
            return Ok(Some(element));
        };
        if buffer.len() < length + 2 {
            return Ok(None);
        }
        self.text = None;
        if &buffer[length..length + 2] != b"\r\n" {
            return Err(Junk("a text does not end where it should"));
        }
        let text = if length >= SLICE_MIN && length >= buffer.capacity() / 2 {
            buffer.split_to(length).freeze()
        } else {
            let text = Bytes::copy_from_slice(&buffer[..length]);
            buffer.advance(length);
            text
        };
        buffer.advance(2);
        Ok(Some(Element::Whole(Value::BulkString(text))))
    }

    /// How many more bytes are needed at least, as far as that is known.
    pub(in crate::store::redis) fn missing(&self, buffer: &BytesMut) -> usize {
        self.text.map_or(0, |length| (length + 2).saturating_sub(buffer.len()))
    }
}

/// Where the first line ends, without its CR LF.
fn line(buffer: &BytesMut) -> Result<Option<usize>, Junk> {
    // Before a whole line has come, what is no mark is known for junk.
    match buffer.first() {
        None => return Ok(None),
        Some(b'$' | b':' | b'+' | b'-' | b'*' | 0x15 | 0x16) => {}
        Some(_) => return Err(Junk("what answers does not speak the protocol of Redis")),
    }
    if matches!(buffer[0], 0x15 | 0x16) {
        return Ok(Some(buffer.len().min(1)));
    }
    match buffer.iter().take(LINE_MAX).position(|b| *b == b'\n') {
        Some(at) if at >= 1 && buffer[at - 1] == b'\r' => Ok(Some(at - 1)),
        Some(_) => Err(Junk("a line does not end as it should")),
        None if buffer.len() >= LINE_MAX => Err(Junk("a line is too long")),
        None => Ok(None),
    }
}

fn number(text: &[u8]) -> Result<i64, Junk> {
    std::str::from_utf8(text).ok().and_then(|t| t.parse().ok()).ok_or(Junk("a number is none"))
}

/// A length; none for −1, which stands for nothing.
fn size(text: &[u8], most: usize) -> Result<Option<usize>, Junk> {
    match number(text)? {
        -1 => Ok(None),
        n => {
            usize::try_from(n).ok().filter(|n| *n <= most).map(Some).ok_or(Junk("a length is out of bounds"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn encode(value: &Value, into: &mut Vec<u8>) {
        match value {
            Value::Nil => into.extend(b"$-1\r\n"),
            Value::Int(n) => into.extend(format!(":{n}\r\n").bytes()),
            Value::BulkString(text) => {
                into.extend(format!("${}\r\n", text.len()).bytes());
                into.extend(text);
                into.extend(b"\r\n");
            }
            Value::SimpleString(text) => {
                into.push(b'+');
                into.extend(text);
                into.extend(b"\r\n");
            }
            Value::Error(text) => into.extend(format!("-{text}\r\n").bytes()),
            Value::Array(items) => {
                into.extend(format!("*{}\r\n", items.len()).bytes());
                for item in items {
                    encode(item, into);
                }
            }
        }
    }

    fn values() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Nil),
            any::<i64>().prop_map(Value::Int),
            proptest::collection::vec(any::<u8>(), 0..40).prop_map(|t| Value::BulkString(t.into())),
            "[A-Z]{0,9}".prop_map(|t| Value::SimpleString(t.into_bytes().into())),
            "[A-Z]{1,9} [a-z ]{0,9}".prop_map(|t| Value::Error(t.into())),
            (SLICE_MIN - 2..SLICE_MIN * 3).prop_map(|n| Value::BulkString(vec![b'x'; n].into())),
        ];
        leaf.prop_recursive(4, 40, 6, |inner| proptest::collection::vec(inner, 0..6).prop_map(Value::Array))
    }

    fn read(bytes: &[u8], cuts: &[usize]) -> Result<(Vec<Value>, usize), Junk> {
        let (mut parser, mut buffer, mut found) = (Parser::default(), BytesMut::new(), Vec::new());
        let mut rest = bytes;
        let mut cuts = cuts.iter().copied().cycle();
        while !rest.is_empty() {
            let piece = cuts.next().unwrap_or(rest.len()).clamp(1, rest.len());
            buffer.extend_from_slice(&rest[..piece]);
            rest = &rest[piece..];
            while let Some(value) = parser.next(&mut buffer)? {
                found.push(value);
            }
            assert!(parser.missing(&buffer) <= TEXT_MAX + 2);
        }
        Ok((found, buffer.len()))
    }

    proptest! {
        #[test]
        fn replies_are_read_whole_however_they_are_split(
            sent in proptest::collection::vec(values(), 1..6),
            cuts in proptest::collection::vec(1_usize..5_000, 1..12),
        ) {
            let mut bytes = Vec::new();
            for value in &sent {
                encode(value, &mut bytes);
            }
            prop_assert_eq!(read(&bytes, &cuts).unwrap(), (sent, 0));
        }

        #[test]
        fn junk_is_refused_or_waited_for_and_never_a_panic(
            bytes in proptest::collection::vec(prop_oneof![
                Just(b'*'), Just(b'$'), Just(b':'), Just(b'-'), Just(b'+'), Just(b'\r'), Just(b'\n'),
                b'0'..=b'9', any::<u8>(),
            ], 0..200),
            cuts in proptest::collection::vec(1_usize..9, 1..5),
        ) {
            let _ = read(&bytes, &cuts);
        }
    }

    #[test]
    fn what_is_out_of_bounds_is_refused_before_it_takes_memory() {
        for bad in [
            "$536870913\r\n",
            "*4194305\r\n",
            "$-2\r\n",
            "$x\r\n",
            ":9223372036854775808\r\n",
            "$2\r\nabcd",
            ":1\n",
            "HTTP/1.1 400 Bad Request\r\n",
            &"*1\r\n".repeat(NESTING_MAX + 1),
            &"-x".repeat(LINE_MAX),
        ] {
            assert!(read(bad.as_bytes(), &[3]).is_err(), "{:?}", &bad[..bad.len().min(30)]);
        }
        assert_eq!(read(b"\x15\x03\x01\x00\x02\x02\x46", &[9]), Err(Junk("it speaks TLS: use rediss://")));
        let deep = "*1\r\n".repeat(NESTING_MAX) + ":1\r\n";
        assert_eq!(read(deep.as_bytes(), &[2]).unwrap().0.len(), 1);
        // Announced, not sent.
        assert_eq!(read(b"*4194304\r\n$536870912\r\nx", &[1]).unwrap(), (vec![], 1));
    }

    #[test]
    fn a_large_text_is_a_slice_of_what_was_read_and_a_small_one_a_copy() {
        let mut parser = Parser::default();
        let mut buffer = BytesMut::new();
        let large = Value::BulkString(vec![b'x'; 1 << 20].into());
        let mut bytes = Vec::new();
        encode(&large, &mut bytes);
        buffer.extend_from_slice(&bytes);
        let start = buffer.as_ptr() as usize;
        let Some(Value::BulkString(text)) = parser.next(&mut buffer).unwrap() else { panic!("no text") };
        assert!((start..start + bytes.len()).contains(&(text.as_ptr() as usize)));
        let start = buffer.as_ptr() as usize;
        buffer.extend_from_slice(b"$3\r\nabc\r\n");
        let Some(Value::BulkString(text)) = parser.next(&mut buffer).unwrap() else { panic!("no text") };
        assert!(!(start..start + 9).contains(&(text.as_ptr() as usize)));
    }
}
