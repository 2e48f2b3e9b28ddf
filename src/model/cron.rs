//! When a schedule is due: five-field cron in a time zone.
//!
//! ```text
//! minute 0-59   hour 0-23   day of month 1-31   month 1-12 or jan-dec   day of week 0-7 or sun-sat (0 and 7: Sunday)
//! field  item ("," item)*        item  ("*" | n | n "-" n | n "/" step) ("/" step)?
//! @yearly @annually @monthly @weekly @daily @midnight @hourly
//! ```
//!
//! Rules
//! - A day of the month and a day of the week both given: a day that is either is taken.
//! - An hour that is *named* (no `*` and no step in its field) is kept when the clock jumps ahead: times that do not
//!   exist are due once, together, at the first instant after the gap.
//! - A time whose hour and minute are both named is due once when the clock is put back: at its first occurrence.
//! - Everything else goes by real time: it is due whenever the clock shows such a time, so that a quarter-hourly
//!   schedule has 92 firings on a short day and 100 on a long one.
//! - The zones are those of the database that is built in, so that all servers of one version agree.
//!
//! Invariants
//! - A [`Cron`] that exists is due some day: dates that no year has are refused.
//! - [`Calendar::next`] and [`Calendar::previous`] look at the days of nine years at most; a leap day is in them.
//! - No clock is read here.
//!
//! `croner` was looked at and not taken: it follows another rule for hours with steps in a gap, reads more than five
//! fields, and looks for a date that does not exist up to the year 5000.

mod field;
mod search;
#[cfg(test)]
mod tests;

use super::nearest::did_you_mean;
use super::time::Timestamp;
use field::{DAYS, Field, HOURS, MINUTES, MONTHS, WEEKDAYS};
use jiff::tz::{TimeZone, TimeZoneDatabase};
use std::sync::OnceLock;

/// When something is due, without a zone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cron {
    minutes: Field,
    hours: Field,
    days: Field,
    months: Field,
    weekdays: Field,
}

/// The words that stand for a whole pattern.
const WORDS: [(&str, &str); 7] = [
    ("@yearly", "0 0 1 1 *"),
    ("@annually", "0 0 1 1 *"),
    ("@monthly", "0 0 1 * *"),
    ("@weekly", "0 0 * * 0"),
    ("@daily", "0 0 * * *"),
    ("@midnight", "0 0 * * *"),
    ("@hourly", "0 * * * *"),
];

/// Most characters of a pattern.
const TEXT_MAX: usize = 256;

impl Cron {
    /// Reads a pattern.
    ///
    /// # Errors
    /// Every fault: what, and how to mend it.
    pub fn parse(text: &str) -> Result<Self, Vec<String>> {
        let one = |message: String| Err(vec![message]);
        if text.len() > TEXT_MAX {
            return one(format!("the pattern has {} characters; at most {TEXT_MAX} are read", text.len()));
        }
        let trimmed = text.trim();
        let mut pattern = trimmed;
        if trimmed.starts_with('@') {
            let word = trimmed.to_ascii_lowercase();
            let Some((_, meant)) = WORDS.iter().find(|(w, _)| *w == word) else {
                let near = did_you_mean(&word, WORDS.iter().map(|(w, _)| *w));
                return one(format!(
                    "'{}' is not known{near}; write five fields or one of {}",
                    short(trimmed),
                    WORDS.map(|(w, _)| w).join(" ")
                ));
            };
            pattern = meant;
        }
        let fields: Vec<&str> = pattern.split_whitespace().collect();
        let [minutes, hours, days, months, weekdays] = fields[..] else {
            let hint = match fields.len() {
                6 | 7 => "; seconds and years are not read",
                _ => "",
            };
            return one(format!(
                "the pattern has {} field{}, not five (minute, hour, day of month, month, day of week){hint}",
                fields.len(),
                if fields.len() == 1 { "" } else { "s" },
            ));
        };
        let mut faults = Vec::new();
        let mut read = |kind, text| Field::parse(kind, text).map_err(|fault| faults.push(fault)).ok();
        let parts = (
            read(&MINUTES, minutes),
            read(&HOURS, hours),
            read(&DAYS, days),
            read(&MONTHS, months),
            read(&WEEKDAYS, weekdays),
        );
        let (Some(minutes), Some(hours), Some(days), Some(months), Some(weekdays)) = parts else {
            return Err(faults);
        };
        let cron = Self { minutes, hours, days, months, weekdays };
        if cron.weekdays.any && !cron.months.values().any(|m| cron.days.first() <= u32::from(longest(m))) {
            return one(format!(
                "no {} has a day {}, so this is never due",
                cron.months.values().map(|m| MONTH_NAMES[m as usize - 1]).collect::<Vec<_>>().join(" or "),
                cron.days.first()
            ));
        }
        Ok(cron)
    }
}

const MONTH_NAMES: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

/// Days of the longest month of this number.
fn longest(month: u32) -> u8 {
    match month {
        2 => 29,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

fn short(text: &str) -> String {
    text.chars().take(40).collect()
}

/// A time zone of the built-in database, by its IANA name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Zone {
    name: String,
    rules: TimeZone,
}

fn database() -> &'static TimeZoneDatabase {
    static BUNDLED: OnceLock<TimeZoneDatabase> = OnceLock::new();
    BUNDLED.get_or_init(TimeZoneDatabase::bundled)
}

impl Zone {
    /// The zone of this name, in any case.
    ///
    /// # Errors
    /// There is none; the message names near ones.
    pub fn named(name: &str) -> Result<Self, String> {
        if let Ok(rules) = database().get(name) {
            return Ok(Self { name: rules.iana_name().unwrap_or(name).to_owned(), rules });
        }
        let known: Vec<_> = database().available().map(|n| n.as_str().to_owned()).collect();
        // A place alone, without its continent, is what people write.
        let wanted = name.to_ascii_lowercase().replace(' ', "_");
        let places: Vec<&str> = known
            .iter()
            .filter(|k| k.rsplit('/').next().is_some_and(|place| place.eq_ignore_ascii_case(&wanted)))
            .map(String::as_str)
            .take(3)
            .collect();
        let near = match places[..] {
            [] => {
                let lower: Vec<_> = known.iter().map(|k| k.to_ascii_lowercase()).collect();
                let near = did_you_mean(&wanted, lower.iter().map(String::as_str));
                lower
                    .iter()
                    .position(|l| near.contains(&format!("'{l}'")))
                    .map_or(near, |at| format!(" (did you mean '{}'?)", known[at]))
            }
            _ => format!(" (did you mean '{}'?)", places.join("' or '")),
        };
        Err(format!(
            "there is no time zone '{}'{near}; write an IANA name, such as Europe/Berlin or UTC",
            short(name)
        ))
    }

    /// The IANA name.
    pub fn name(&self) -> &str {
        &self.name
    }
}

/// Several patterns in one zone: due whenever one of them is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Calendar {
    /// At least one.
    pub crons: Vec<Cron>,
    /// Where.
    pub zone: Zone,
}

impl Calendar {
    /// The first time it is due after an instant; none if it never is again before the year 9999.
    pub fn next(&self, after: Timestamp) -> Option<Timestamp> {
        self.crons.iter().filter_map(|c| search::next(c, &self.zone.rules, after)).min()
    }

    /// The last time it was due before an instant.
    pub fn previous(&self, before: Timestamp) -> Option<Timestamp> {
        self.crons.iter().filter_map(|c| search::previous(c, &self.zone.rules, before)).max()
    }

    /// The times it is due from `from` on and before `to`, in order.
    pub fn between(&self, from: Timestamp, to: Timestamp) -> impl Iterator<Item = Timestamp> + '_ {
        let mut last = Timestamp(from.0.saturating_sub(1));
        std::iter::from_fn(move || {
            let slot = self.next(last).filter(|s| *s < to)?;
            last = slot;
            Some(slot)
        })
    }
}
