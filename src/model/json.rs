//! JSON text of users, handled as text: checked, compared, looked into, but never rebuilt. Tokens of numbers
//! and strings stay as they came.
//!
//! ```text
//! check      valid JSON text, at most 128 deep; no tree is built
//! walk       the bytes a path points at
//! canonical  one text per value: for digests, never for storage
//! Reader     the strict pull parser under all of them, and under the workflow document
//! ```
//!
//! Invariants
//! - Where an object has a key twice, the last one counts, everywhere: in [`walk`], in expressions, in schema
//!   checks and in digests. The text itself keeps both.
//! - Nothing here recurses deeper than [`MAX_DEPTH`].

mod canonical;
mod reader;

pub use canonical::{canonical, digest, same_number};
pub use reader::{Reader, SyntaxError, Text, Token};

use std::collections::BTreeMap;
use std::ops::Range;

/// How deep arrays and objects may be nested in a value of a user.
pub const MAX_DEPTH: usize = 128;

/// Whether `bytes` are one valid JSON text, at most [`MAX_DEPTH`] deep.
///
/// # Errors
/// What is wrong, with line and column.
pub fn check(bytes: &[u8]) -> Result<(), String> {
    check_within(bytes, MAX_DEPTH)
}

/// As [`check`], at most `depth` deep.
///
/// # Errors
/// What is wrong, with line and column.
pub fn check_within(bytes: &[u8], depth: usize) -> Result<(), String> {
    let text = utf8(bytes)?;
    if text.starts_with('\u{feff}') {
        return Err("a byte order mark stands before the value; leave it out".to_owned());
    }
    Reader::new(text, depth).finish().map_err(|e| e.describe(text))
}

/// `bytes` as text.
///
/// # Errors
/// Where the first byte stands that is not UTF-8.
pub fn utf8(bytes: &[u8]) -> Result<&str, String> {
    std::str::from_utf8(bytes).map_err(|e| format!("not UTF-8 at byte {}", e.valid_up_to()))
}

/// The text of the value that `steps` lead to: keys in objects, decimal indexes in arrays. `None` if there is no
/// such value. The answer is a part of `bytes`, unchanged. The whole of `bytes` is taken for valid JSON.
///
/// # Errors
/// `bytes` are not valid JSON, as far as it was read.
pub fn walk<'a, S: AsRef<str>>(bytes: &'a [u8], steps: &[S]) -> Result<Option<&'a [u8]>, String> {
    Ok(locate(bytes, steps)?.and_then(|range| bytes.get(range)))
}

/// Like [`walk`], but tells where the value stands.
///
/// # Errors
/// `bytes` are not valid JSON, as far as it was read.
pub fn locate<S: AsRef<str>>(bytes: &[u8], steps: &[S]) -> Result<Option<Range<usize>>, String> {
    let mut at = trim(bytes, 0..bytes.len());
    for step in steps {
        let step = step.as_ref();
        let mut found = None;
        match bytes.get(at.start) {
            Some(b'{') => {
                each_entry(bytes, at.start, &mut |key, value| {
                    if key.is(step) {
                        found = Some(value);
                    }
                })?;
            }
            Some(b'[') => {
                let Some(wanted) = index(step) else { return Ok(None) };
                each_item(bytes, at.start, wanted, &mut |n, value| {
                    if n == wanted {
                        found = Some(value);
                    }
                })?;
            }
            _ => return Ok(None),
        }
        match found {
            Some(range) => at = range,
            None => return Ok(None),
        }
    }
    Ok(Some(at))
}

/// Where the items of a list stand; `None` if the value is no list.
///
/// # Errors
/// `bytes` are not valid JSON, as far as it was read.
pub fn items(bytes: &[u8]) -> Result<Option<Vec<Range<usize>>>, String> {
    let at = trim(bytes, 0..bytes.len());
    if bytes.get(at.start) != Some(&b'[') {
        return Ok(None);
    }
    let mut items = Vec::new();
    each_item(bytes, at.start, usize::MAX, &mut |_, value| items.push(value))?;
    Ok(Some(items))
}

/// How deep arrays and objects are nested in a valid JSON text.
pub fn depth(bytes: &[u8]) -> usize {
    let (mut i, mut depth, mut deepest) = (0, 0usize, 0);
    while let Some(byte) = bytes.get(i) {
        match byte {
            b'"' => i = skip_string(bytes, i).map_or(bytes.len(), |end| end - 1),
            b'{' | b'[' => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b'}' | b']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        i += 1;
    }
    deepest
}

/// Many paths into one value, looked up in one pass over each container on the way.
#[derive(Debug, Default)]
pub struct Paths {
    nodes: Vec<PathNode>,
    len: usize,
}

#[derive(Debug, Default)]
struct PathNode {
    /// The path that ends here.
    slot: Option<usize>,
    children: BTreeMap<Box<str>, usize>,
}

impl Paths {
    /// Adds a path; returns its number, the same for the same path.
    pub fn add(&mut self, steps: &[String]) -> usize {
        if self.nodes.is_empty() {
            self.nodes.push(PathNode::default());
        }
        let mut at = 0;
        for step in steps {
            at = if let Some(child) = self.nodes[at].children.get(step.as_str()) {
                *child
            } else {
                let child = self.nodes.len();
                self.nodes.push(PathNode::default());
                self.nodes[at].children.insert(step.as_str().into(), child);
                child
            };
        }
        let len = &mut self.len;
        *self.nodes[at].slot.get_or_insert_with(|| {
            *len += 1;
            *len - 1
        })
    }

    /// How many paths there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Where each path's value stands in `bytes`, by number; `None` where there is none.
    ///
    /// # Errors
    /// `bytes` are not valid JSON, as far as it was read.
    pub fn find(&self, bytes: &[u8]) -> Result<Vec<Option<Range<usize>>>, String> {
        let mut found = vec![None; self.len];
        if !self.nodes.is_empty() {
            self.visit(0, bytes, trim(bytes, 0..bytes.len()), 0, &mut found)?;
        }
        Ok(found)
    }

    fn visit(
        &self,
        node: usize,
        bytes: &[u8],
        at: Range<usize>,
        depth: usize,
        found: &mut [Option<Range<usize>>],
    ) -> Result<(), String> {
        let node = &self.nodes[node];
        if let Some(slot) = node.slot {
            found[slot] = Some(at.clone());
        }
        if node.children.is_empty() {
            return Ok(());
        }
        if depth > MAX_DEPTH {
            return Err(format!("nested deeper than {MAX_DEPTH}"));
        }
        // The last of equal keys counts, so children are entered only after the whole container was seen.
        let mut next: BTreeMap<usize, Range<usize>> = BTreeMap::new();
        match bytes.get(at.start) {
            Some(b'{') => each_entry(bytes, at.start, &mut |key, value| {
                if let Some(child) = node.children.get(&*key.lossy()) {
                    next.insert(*child, value);
                }
            })?,
            Some(b'[') => {
                let wanted: BTreeMap<usize, usize> =
                    node.children.iter().filter_map(|(step, child)| Some((index(step)?, *child))).collect();
                let Some((last, _)) = wanted.last_key_value() else { return Ok(()) };
                each_item(bytes, at.start, *last, &mut |n, value| {
                    if let Some(child) = wanted.get(&n) {
                        next.insert(*child, value);
                    }
                })?;
            }
            _ => {}
        }
        for (child, range) in next {
            self.visit(child, bytes, range, depth + 1, found)?;
        }
        Ok(())
    }
}

/// A step as an index into an array: decimal, without sign or leading zeros.
fn index(step: &str) -> Option<usize> {
    let canonical = step == "0" || !step.starts_with('0');
    (canonical && step.bytes().all(|b| b.is_ascii_digit())).then(|| step.parse().ok()).flatten()
}

fn trim(bytes: &[u8], mut at: Range<usize>) -> Range<usize> {
    at.start = skip_space(bytes, at.start);
    while at.end > at.start && is_space(bytes[at.end - 1]) {
        at.end -= 1;
    }
    at
}

fn is_space(b: u8) -> bool {
    matches!(b, b' ' | b'\t' | b'\n' | b'\r')
}

fn skip_space(bytes: &[u8], mut at: usize) -> usize {
    while bytes.get(at).is_some_and(|b| is_space(*b)) {
        at += 1;
    }
    at
}

fn broken(at: usize) -> String {
    format!("not valid JSON at byte {at}")
}

/// Where the first byte from `at` on stands that is more than a part of a string: a quote, a backslash, a control
/// character; or the end. Eight bytes at a time.
fn plain_end(bytes: &[u8], mut at: usize) -> usize {
    const EACH: u64 = 0x0101_0101_0101_0101;
    const TOP: u64 = EACH << 7;
    // Sets the top bit of each byte below `n`, and perhaps of some behind the first such. Bytes of 0x80 and above never.
    let below = |word: u64, n: u64| word.wrapping_sub(EACH * n) & !word & TOP;
    while let Some(eight) = bytes.get(at..).and_then(<[u8]>::first_chunk) {
        let word = u64::from_le_bytes(*eight);
        let quote = below(word ^ (EACH * u64::from(b'"')), 1);
        let backslash = below(word ^ (EACH * u64::from(b'\\')), 1);
        let found = quote | backslash | below(word, 0x20);
        if found != 0 {
            return at + found.trailing_zeros() as usize / 8;
        }
        at += 8;
    }
    while bytes.get(at).is_some_and(|b| !matches!(b, b'"' | b'\\' | 0..=0x1f)) {
        at += 1;
    }
    at
}

/// Just behind the string that opens at `at`.
fn skip_string(bytes: &[u8], at: usize) -> Result<usize, String> {
    let mut i = at + 1;
    loop {
        match bytes.get(i) {
            Some(b'"') => return Ok(i + 1),
            Some(b'\\') => i += 2,
            Some(_) => i += 1,
            None => return Err(broken(at)),
        }
    }
}

/// Just behind the value that begins at `at`. Brackets are counted, not matched.
fn skip_value(bytes: &[u8], at: usize) -> Result<usize, String> {
    match bytes.get(at) {
        Some(b'"') => skip_string(bytes, at),
        Some(b'{' | b'[') => {
            let (mut i, mut depth) = (at, 0usize);
            loop {
                match bytes.get(i) {
                    Some(b'"') => {
                        i = skip_string(bytes, i)?;
                        continue;
                    }
                    Some(b'{' | b'[') => depth += 1,
                    Some(b'}' | b']') => {
                        depth -= 1;
                        if depth == 0 {
                            return Ok(i + 1);
                        }
                    }
                    Some(_) => {}
                    None => return Err(broken(at)),
                }
                i += 1;
            }
        }
        Some(_) => {
            let mut i = at;
            while bytes.get(i).is_some_and(|b| !is_space(*b) && !matches!(b, b',' | b'}' | b']')) {
                i += 1;
            }
            if i == at { Err(broken(at)) } else { Ok(i) }
        }
        None => Err(broken(at)),
    }
}

/// Calls `found` with key and value of every entry of the object that opens at `at`.
fn each_entry(bytes: &[u8], at: usize, found: &mut dyn FnMut(Text<'_>, Range<usize>)) -> Result<(), String> {
    let mut i = skip_space(bytes, at + 1);
    if bytes.get(i) == Some(&b'}') {
        return Ok(());
    }
    loop {
        if bytes.get(i) != Some(&b'"') {
            return Err(broken(i));
        }
        let end = skip_string(bytes, i)?;
        let raw =
            bytes.get(i + 1..end - 1).and_then(|b| std::str::from_utf8(b).ok()).ok_or_else(|| broken(i))?;
        i = skip_space(bytes, end);
        if bytes.get(i) != Some(&b':') {
            return Err(broken(i));
        }
        let start = skip_space(bytes, i + 1);
        let stop = skip_value(bytes, start)?;
        found(Text::from_raw(raw), start..stop);
        i = skip_space(bytes, stop);
        match bytes.get(i) {
            Some(b',') => i = skip_space(bytes, i + 1),
            Some(b'}') => return Ok(()),
            _ => return Err(broken(i)),
        }
    }
}

/// Calls `found` with number and value of the items up to `last` of the array that opens at `at`.
fn each_item(
    bytes: &[u8],
    at: usize,
    last: usize,
    found: &mut dyn FnMut(usize, Range<usize>),
) -> Result<(), String> {
    let mut i = skip_space(bytes, at + 1);
    if bytes.get(i) == Some(&b']') {
        return Ok(());
    }
    for n in 0..=last {
        let stop = skip_value(bytes, i)?;
        found(n, i..stop);
        i = skip_space(bytes, stop);
        match bytes.get(i) {
            Some(b',') => i = skip_space(bytes, i + 1),
            Some(b']') => return Ok(()),
            _ => return Err(broken(i)),
        }
    }
    Ok(())
}

/// Appends `text` as a JSON string.
pub fn write_string(text: &str, out: &mut Vec<u8>) {
    out.push(b'"');
    write_escaped(text, out);
    out.push(b'"');
}

/// Appends `text` as the inside of a JSON string: quotes, backslashes and control characters escaped, nothing else.
pub fn write_escaped(text: &str, out: &mut Vec<u8>) {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    let mut clean = 0;
    let bytes = text.as_bytes();
    for (i, b) in bytes.iter().enumerate() {
        let short = match b {
            b'"' | b'\\' => *b,
            b'\n' => b'n',
            b'\r' => b'r',
            b'\t' => b't',
            0x08 => b'b',
            0x0c => b'f',
            0..=0x1f => b'u',
            _ => continue,
        };
        out.extend_from_slice(&bytes[clean..i]);
        out.extend_from_slice(&[b'\\', short]);
        if short == b'u' {
            out.extend_from_slice(&[b'0', b'0', HEX[usize::from(b >> 4)], HEX[usize::from(b & 15)]]);
        }
        clean = i + 1;
    }
    out.extend_from_slice(&bytes[clean..]);
}

#[cfg(test)]
mod tests;
