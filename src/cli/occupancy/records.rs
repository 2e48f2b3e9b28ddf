//! The records of a CSV file with their lines, one at a time.
//!
//! The parser gets line by line, because only so are the numbers of lines right with blank lines and any line ends.

use crate::cli::Failure;
use csv_core::ReadRecordResult;
use std::io::{BufRead, Read as _};

/// Longest line, and longest record, in bytes: a quote that is never closed must not take up all memory.
const MOST: usize = 1 << 20;

/// Reads records; after each, its fields.
#[derive(Debug)]
pub(super) struct Records<R> {
    input: R,
    parser: csv_core::Reader,
    /// How many lines were read, and the last of them.
    lines: u64,
    line: Vec<u8>,
    /// The fields without their quotes, and where each ends.
    text: Vec<u8>,
    ends: Vec<usize>,
    count: usize,
}

impl<R: BufRead> Records<R> {
    pub(super) fn new(input: R) -> Self {
        Self {
            input,
            parser: csv_core::Reader::new(),
            lines: 0,
            line: Vec::new(),
            text: vec![0; 1 << 10],
            ends: vec![0; 16],
            count: 0,
        }
    }

    /// The line on which the next record begins; blank lines are none. None at the end of the file.
    pub(super) fn next(&mut self) -> Result<Option<u64>, Failure> {
        let (mut text, mut ends, mut first) = (0, 0, 0);
        loop {
            self.line.clear();
            let length = self.input.by_ref().take(MOST as u64).read_until(b'\n', &mut self.line)?;
            if length == MOST {
                return Err(Failure::failed(format!("line {} is longer than {MOST} bytes", self.lines + 1)));
            }
            if length > 0 {
                self.lines += 1;
                if !self.line.ends_with(b"\n") {
                    self.line.push(b'\n');
                }
            }
            if first == 0 {
                match length {
                    0 => return Ok(None),
                    _ if self.line.trim_ascii().is_empty() => continue,
                    _ => first = self.lines,
                }
            }
            // A record goes on on the next line inside of quotes; no input ends it.
            let mut read = 0;
            loop {
                let (result, bytes, out, fields) = self.parser.read_record(
                    &self.line[read..],
                    &mut self.text[text..],
                    &mut self.ends[ends..],
                );
                (read, text, ends) = (read + bytes, text + out, ends + fields);
                match result {
                    ReadRecordResult::InputEmpty => break,
                    ReadRecordResult::OutputFull if self.text.len() >= MOST => {
                        return Err(Failure::failed(format!(
                            "the row that begins on line {first} is longer than {MOST} bytes; is a quote not closed?"
                        )));
                    }
                    ReadRecordResult::OutputFull => self.text.resize(self.text.len() * 2, 0),
                    ReadRecordResult::OutputEndsFull => self.ends.resize(self.ends.len() * 2, 0),
                    ReadRecordResult::Record => {
                        self.count = ends;
                        return Ok(Some(first));
                    }
                    ReadRecordResult::End => return Ok(None),
                }
            }
        }
    }

    /// A field of the record read last, without space around it; empty if there is none.
    pub(super) fn field(&self, n: usize) -> &[u8] {
        if n >= self.count {
            return b"";
        }
        let from = n.checked_sub(1).map_or(0, |before| self.ends[before]);
        self.text[from..self.ends[n]].trim_ascii()
    }

    /// All its fields.
    pub(super) fn fields(&self) -> impl Iterator<Item = &[u8]> {
        (0..self.count).map(|n| self.field(n))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(text: &str) -> Vec<(u64, Vec<String>)> {
        let mut records = Records::new(text.as_bytes());
        let mut all = Vec::new();
        while let Some(line) = records.next().unwrap() {
            all.push((line, records.fields().map(|f| String::from_utf8(f.to_vec()).unwrap()).collect()));
        }
        all
    }

    #[test]
    fn lines_are_counted_through_blank_ones_quotes_and_any_line_end() {
        let expected = |lines: [u64; 3]| {
            let rows = [vec!["a", "b"], vec!["c \"d\"", "e\nf", ""], vec!["g"]];
            let rows = rows.map(|row| row.into_iter().map(str::to_owned).collect::<Vec<_>>());
            lines.into_iter().zip(rows).collect::<Vec<_>>()
        };
        let text = "a, b\n\n \nc \"d\",\"e\nf\",\n\ng";
        assert_eq!(all(text), expected([1, 4, 7]));
        assert_eq!(all(&format!("\u{feff}{text}\n\n")), expected([1, 4, 7]));
        let windows = text.replace('\n', "\r\n");
        let mut rows = expected([1, 4, 7]);
        rows[1].1[1] = "e\r\nf".to_owned();
        assert_eq!(all(&windows), rows);
        assert_eq!(all(""), []);
        assert_eq!(all("\n\n"), []);
        assert_eq!(all("a,\"b\n\nc"), [(1, vec!["a".to_owned(), "b\n\nc".to_owned()])]);
        let wide = vec!["x"; 100].join(",");
        assert_eq!(all(&wide)[0].1.len(), 100);
    }

    #[test]
    fn neither_a_line_nor_a_quote_takes_all_memory() {
        for text in ["x".repeat(MOST), format!("1,2\n3,\"{}", "y\n".repeat(MOST))] {
            let mut records = Records::new(text.as_bytes());
            let mut next = records.next();
            while matches!(next, Ok(Some(_))) {
                next = records.next();
            }
            assert!(next.unwrap_err().message.contains("is longer than 1048576 bytes"));
        }
    }
}
