//! A CSV file as intervals: which columns they are in, what their times mean, and what was refused.

use super::records::Records;
use super::{Args, Stop};
use crate::cli::Failure;
use crate::model::time::Timestamp;
use crate::occupancy::Interval;
use std::collections::HashMap;
use std::io::{BufReader, Read};

/// Refused rows that are told one by one.
const TOLD: usize = 20;
/// Different tags. A series for each of more is nothing that anybody looks at.
const MAX_TAGS: usize = 1_000;

/// The unit of plain numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Epoch {
    /// Seconds
    S,
    /// Milliseconds
    Ms,
    /// Microseconds
    Us,
    /// Nanoseconds
    Ns,
}

impl Epoch {
    /// Reads a time: RFC 3339 with an offset, or a number of this unit since 1970, with or without decimals. What is
    /// finer than a microsecond is rounded down.
    ///
    /// # Errors
    /// What is wrong and how to write it.
    pub(super) fn time(self, text: &[u8]) -> Result<Timestamp, String> {
        let text = std::str::from_utf8(text).map_err(|_| "a time is not UTF-8".to_owned())?.trim();
        let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
        if digits.bytes().all(|b| b.is_ascii_digit() || b == b'.') && digits.bytes().any(|b| b != b'.') {
            return self.number(text, digits);
        }
        // Quicker than to ask for the whole number of nanoseconds, and rounded down.
        let time = text.parse::<jiff::Timestamp>().map_err(|_| {
            let help = if text.parse::<jiff::civil::DateTime>().is_ok() {
                "it has no offset from UTC; write Z or +02:00 behind it"
            } else {
                "write 2011-07-18T22:58:52.180Z or a number since 1970"
            };
            format!("{:?} is no time; {help}", short(text))
        })?;
        Ok(Timestamp(i64::try_from(time.as_nanosecond().div_euclid(1_000)).unwrap_or(i64::MAX)))
    }

    fn number(self, text: &str, digits: &str) -> Result<Timestamp, String> {
        let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
        let bad = || format!("{:?} is no number", short(text));
        if fraction.contains('.') || whole.len() > 25 {
            return Err(bad());
        }
        // In billionths of the unit; the sign comes last, so that all is rounded down together.
        let fraction = format!("{fraction:0<9.9}");
        let billionths = format!("{whole}{fraction}").parse::<i128>().map_err(|_| bad())?;
        let billionths = if text.starts_with('-') { -billionths } else { billionths };
        let us = match self {
            Self::S => billionths.div_euclid(1_000),
            Self::Ms => billionths.div_euclid(1_000_000),
            Self::Us => billionths.div_euclid(1_000_000_000),
            Self::Ns => billionths.div_euclid(1_000_000_000_000),
        };
        let range = jiff::Timestamp::MIN.as_microsecond()..=jiff::Timestamp::MAX.as_microsecond();
        i64::try_from(us).ok().filter(|us| range.contains(us)).map(Timestamp).ok_or_else(|| {
            let unit = match self {
                Self::S => "seconds",
                Self::Ms => "milliseconds",
                Self::Us => "microseconds",
                Self::Ns => "nanoseconds",
            };
            format!("{:?} in {unit} is not between the years -9999 and 9999; see --epoch", short(text))
        })
    }
}

fn short(text: &str) -> String {
    text.chars().take(40).collect()
}

/// A task of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) interval: Interval,
    /// Which of the names it has; none if nobody asked.
    pub(super) key: Option<u32>,
}

/// The tags that occur, numbered. The first is that of rows without one.
#[derive(Debug)]
pub(super) struct Names(HashMap<Vec<u8>, u32>);

impl Names {
    fn new() -> Self {
        Self(HashMap::from([(Vec::new(), 0)]))
    }

    fn key(&mut self, name: &[u8]) -> Result<u32, Failure> {
        if let Some(key) = self.0.get(name) {
            return Ok(*key);
        }
        if self.0.len() > MAX_TAGS {
            let message = format!("the column of --by has more than {MAX_TAGS} different values");
            return Err(Failure::failed(message));
        }
        let key = self.0.len() as u32;
        self.0.insert(name.to_vec(), key);
        Ok(key)
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// By their numbers.
    pub(super) fn into_names(self) -> Vec<String> {
        let mut names: Vec<_> = self.0.into_iter().collect();
        names.sort_by_key(|(_, key)| *key);
        names.into_iter().map(|(name, _)| String::from_utf8_lossy(&name).into_owned()).collect()
    }
}

/// What a pass over the file found.
#[derive(Debug)]
pub(super) struct Seen {
    /// Rows that count.
    pub(super) rows: u64,
    pub(super) refused: u64,
    /// Lines of the first refused rows, and why.
    pub(super) told: Vec<(u64, String)>,
    pub(super) names: Names,
}

/// Where to find what.
#[derive(Debug, Clone, Copy)]
struct Columns {
    start: usize,
    end: usize,
    tag: Option<usize>,
}

/// Reads rows.
pub(super) struct Reader<'a, R> {
    records: Records<BufReader<R>>,
    args: &'a Args,
}

impl<'a, R: Read> Reader<'a, R> {
    pub(super) fn new(input: R, args: &'a Args) -> Self {
        Self { records: Records::new(BufReader::with_capacity(1 << 16, input)), args }
    }

    /// Hands every row that counts to `take`, in the order of the file.
    pub(super) fn each(mut self, mut take: impl FnMut(Row) -> Result<(), Stop>) -> Result<Seen, Stop> {
        let mut seen = Seen { rows: 0, refused: 0, told: Vec::new(), names: Names::new() };
        let mut next = self.records.next()?;
        let heading = next.is_some() && self.is_heading();
        let Columns { start, end, tag } = self.columns(heading)?;
        if heading {
            next = self.records.next()?;
        }
        while let Some(line) = next {
            match self.interval(self.records.field(start), self.records.field(end)) {
                Ok(interval) => {
                    let key = tag.map(|tag| seen.names.key(self.records.field(tag))).transpose()?;
                    seen.rows += 1;
                    take(Row { interval, key })?;
                }
                Err(why) => {
                    seen.refused += 1;
                    if seen.told.len() < TOLD {
                        seen.told.push((line, why));
                    }
                }
            }
            next = self.records.next()?;
        }
        Ok(seen)
    }

    fn interval(&self, start: &[u8], end: &[u8]) -> Result<Interval, String> {
        if start.is_empty() {
            return Err("there is no start; a row is start,end[,tag]".to_owned());
        }
        let from = self.args.epoch.time(start)?;
        let to = if end.is_empty() { None } else { Some(self.args.epoch.time(end)?) };
        Interval::new(from, to).ok_or_else(|| {
            let (start, end) = (String::from_utf8_lossy(start), String::from_utf8_lossy(end));
            format!("the end {} is before the start {}", short(&end), short(&start))
        })
    }

    /// From the heading, or by place.
    fn columns(&self, heading: bool) -> Result<Columns, Failure> {
        let named = |name: &str| {
            let is = |field: &[u8]| field.eq_ignore_ascii_case(name.as_bytes());
            if heading { self.records.fields().position(is) } else { None }
        };
        let (start, end) = named("start").zip(named("end")).unwrap_or((0, 1));
        let tag = match self.args.by.as_deref() {
            None => None,
            Some(by) => Some(named(by).or_else(|| (by == "tag").then_some(2)).ok_or_else(|| {
                let columns: Vec<_> = self.records.fields().map(String::from_utf8_lossy).collect();
                Failure::usage(if heading {
                    format!("--by {by}: the columns are {}", columns.join(", "))
                } else {
                    format!("--by {by}: the file has no heading; its third column is \"tag\"")
                })
            })?),
        };
        Ok(Columns { start, end, tag })
    }

    /// A heading begins with a word, and no time does.
    fn is_heading(&self) -> bool {
        self.records.field(0).first().is_some_and(|b| b.is_ascii_alphabetic() || *b == b'_')
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_to_the_microsecond() {
        for (epoch, text, us) in [
            (Epoch::S, "1311029932.18", 1_311_029_932_180_000),
            (Epoch::S, " 0 ", 0),
            (Epoch::S, "-5", -5_000_000),
            (Epoch::S, "-0.0000001", -1),
            (Epoch::S, "0.1234567", 123_456),
            (Epoch::S, ".5", 500_000),
            (Epoch::Ms, "1311029932180", 1_311_029_932_180_000),
            (Epoch::Ms, "0.0005", 0),
            (Epoch::Us, "+17", 17),
            (Epoch::Ns, "1999", 1),
            (Epoch::Ns, "-1", -1),
            (Epoch::S, "2011-07-18T22:58:52.180Z", 1_311_029_932_180_000),
            (Epoch::Ms, "2011-07-19T00:58:52.180000999+02:00", 1_311_029_932_180_000),
            (Epoch::S, "1969-12-31T23:59:59.9999999Z", -1),
            (Epoch::S, "2011-07-18 22:58:52.180Z", 1_311_029_932_180_000),
        ] {
            assert_eq!(epoch.time(text.as_bytes()), Ok(Timestamp(us)), "{text}");
        }
    }

    #[test]
    fn what_is_no_time_says_how_to_write_one() {
        for (epoch, text, why) in [
            (Epoch::S, "yesterday", "is no time; write 2011-07-18T22:58:52.180Z or a number"),
            (Epoch::S, "2011-07-18T22:58:52", "it has no offset from UTC"),
            (Epoch::S, "1311029932180", "in seconds is not between the years -9999 and 9999; see --epoch"),
            (Epoch::S, "1.2.3", "is no number"),
            (Epoch::S, "99999999999999999999999999999999999999999999", "is no number"),
            (Epoch::Us, "9999999999999999999999999", "in microseconds is not between"),
            (Epoch::S, ".", "is no time"),
            (Epoch::S, "", "is no time"),
        ] {
            let said = epoch.time(text.as_bytes()).unwrap_err();
            assert!(said.contains(why), "{text}: {said}");
        }
        assert!(Epoch::S.time(b"\xff").is_err());
    }
}
