//! Rows by their start: in memory as long as there are few, otherwise in sorted runs on disk that are merged.
//!
//! The files have no name, so nothing is left behind however the program ends.

use super::rows::Row;
use crate::model::time::Timestamp;
use crate::occupancy::Interval;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fs::File;
use std::io::{BufReader, BufWriter, ErrorKind, Read as _, Result, Seek as _, Write as _};

/// Rows held in memory: some 50 MB.
const ROWS: usize = 2_000_000;
/// Runs merged at once; bounds open files and their buffers.
const FAN: usize = 64;
/// A row on disk: start, end, key.
const BYTES: usize = 20;

/// As it is sorted and stored: start, end ([`OPEN`] for none), key ([`NO_KEY`] for none).
type Packed = (i64, i64, u32);
const OPEN: i64 = i64::MAX;
const NO_KEY: u32 = u32::MAX;

/// Takes rows in any order.
#[derive(Debug)]
pub(super) struct Sorter {
    most: usize,
    fan: usize,
    rows: Vec<Packed>,
    /// Runs by how often their rows were merged, so that each row is merged few times.
    levels: Vec<Vec<File>>,
}

impl Default for Sorter {
    fn default() -> Self {
        Self::new(ROWS, FAN)
    }
}

impl Sorter {
    fn new(most: usize, fan: usize) -> Self {
        Self { most, fan, rows: Vec::new(), levels: Vec::new() }
    }

    pub(super) fn push(&mut self, row: Row) -> Result<()> {
        let end = row.interval.end().map_or(OPEN, |end| end.0);
        self.rows.push((row.interval.start().0, end, row.key.unwrap_or(NO_KEY)));
        if self.rows.len() < self.most {
            return Ok(());
        }
        self.rows.sort_unstable();
        let mut run = write(self.rows.drain(..).map(Ok))?;
        for level in 0.. {
            if level == self.levels.len() {
                self.levels.push(Vec::new());
            }
            self.levels[level].push(run);
            if self.levels[level].len() < self.fan {
                break;
            }
            run = write(Merge::new(std::mem::take(&mut self.levels[level]), Vec::new())?)?;
        }
        Ok(())
    }

    /// The rows by their start.
    pub(super) fn finish(mut self) -> Result<impl Iterator<Item = Result<Row>>> {
        self.rows.sort_unstable();
        let runs = self.levels.into_iter().flatten().collect();
        Ok(Merge::new(runs, self.rows)?.map(|packed| packed.and_then(unpack)))
    }
}

fn unpack((start, end, key): Packed) -> Result<Row> {
    let end = (end != OPEN).then_some(Timestamp(end));
    let interval = Interval::new(Timestamp(start), end).ok_or(ErrorKind::InvalidData)?;
    Ok(Row { interval, key: (key != NO_KEY).then_some(key) })
}

fn write(rows: impl Iterator<Item = Result<Packed>>) -> Result<File> {
    let mut out = BufWriter::with_capacity(1 << 16, tempfile::tempfile()?);
    for row in rows {
        let (start, end, key) = row?;
        out.write_all(&start.to_le_bytes())?;
        out.write_all(&end.to_le_bytes())?;
        out.write_all(&key.to_le_bytes())?;
    }
    let mut file = out.into_inner().map_err(std::io::IntoInnerError::into_error)?;
    file.rewind()?;
    Ok(file)
}

fn read(file: &mut BufReader<File>) -> Result<Option<Packed>> {
    let mut bytes = [0; BYTES];
    match file.read_exact(&mut bytes) {
        Ok(()) => {}
        Err(e) if e.kind() == ErrorKind::UnexpectedEof => return Ok(None),
        Err(e) => return Err(e),
    }
    let long = |from: usize| {
        let mut part = [0; 8];
        part.copy_from_slice(&bytes[from..from + 8]);
        i64::from_le_bytes(part)
    };
    let key = u32::from_le_bytes([bytes[16], bytes[17], bytes[18], bytes[19]]);
    Ok(Some((long(0), long(8), key)))
}

/// Sorted runs, and sorted rows in memory, as one.
struct Merge {
    runs: Vec<BufReader<File>>,
    rows: std::vec::IntoIter<Packed>,
    /// The next row of each run; those in memory come last.
    next: BinaryHeap<Reverse<(Packed, usize)>>,
}

impl Merge {
    fn new(runs: Vec<File>, rows: Vec<Packed>) -> Result<Self> {
        let runs: Vec<_> = runs.into_iter().map(|run| BufReader::with_capacity(1 << 16, run)).collect();
        let mut merge = Self { runs, rows: rows.into_iter(), next: BinaryHeap::new() };
        for run in 0..=merge.runs.len() {
            merge.refill(run)?;
        }
        Ok(merge)
    }

    fn refill(&mut self, run: usize) -> Result<()> {
        let row = match self.runs.get_mut(run) {
            Some(file) => read(file)?,
            None => self.rows.next(),
        };
        self.next.extend(row.map(|row| Reverse((row, run))));
        Ok(())
    }
}

impl Iterator for Merge {
    type Item = Result<Packed>;

    fn next(&mut self) -> Option<Self::Item> {
        let Reverse((row, run)) = self.next.pop()?;
        Some(self.refill(run).map(|()| row))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_come_back_sorted_however_often_they_were_merged() {
        for count in [0, 1, 9, 10, 11, 400, 1_003] {
            let mut sorter = Sorter::new(10, 3);
            let mut expected = Vec::new();
            for n in 0..count {
                let start = n * 7_919 % 1_009 - 500;
                let end = (n % 5 != 0).then(|| Timestamp(start + n % 13));
                let interval = Interval::new(Timestamp(start), end).unwrap();
                let row = Row { interval, key: (n % 2 == 0).then_some(n as u32 % 4) };
                sorter.push(row).unwrap();
                expected.push((start, end.map_or(OPEN, |e| e.0), row.key.unwrap_or(NO_KEY)));
                let runs: usize = sorter.levels.iter().map(Vec::len).sum();
                assert!(sorter.rows.len() < 10 && runs <= 2 * sorter.levels.len());
            }
            expected.sort_unstable();
            let expected: Vec<_> = expected.into_iter().map(|row| unpack(row).unwrap()).collect();
            let sorted: Vec<_> = sorter.finish().unwrap().map(Result::unwrap).collect();
            assert_eq!(sorted, expected);
        }
    }
}
