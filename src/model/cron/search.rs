//! The next and the previous time a pattern is due in a zone.
//!
//! Days are looked at one after the other. On a plain day, one with the same offset from before its beginning until
//! after its end, the answer is arithmetic; only on the others each time of the day is asked of the zone.

use super::{Cron, longest};
use crate::model::time::Timestamp;
use jiff::civil::{Date, DateTime, Time};
use jiff::tz::{AmbiguousOffset, Offset, TimeZone};

/// A leap day may be eight years from the last.
const YEARS: i16 = 9;
/// No clock is put ahead or back by more than this, but where the date line moved; those days begin or end ambiguous.
const MARGIN: i64 = 26 * 3_600;

/// The first time it is due after an instant.
pub(super) fn next(cron: &Cron, zone: &TimeZone, after: Timestamp) -> Option<Timestamp> {
    // Whole seconds: a slot is one.
    let after = after.0.div_euclid(1_000_000);
    let start = zone.to_datetime(second(after)?).date();
    let mut date = start.yesterday().ok()?;
    let last_year = start.year().saturating_add(YEARS);
    let mut best: Option<i64> = None;
    while date.year() <= last_year {
        if !cron.months.has(date.month() as u32) {
            if best.is_some() {
                break;
            }
            date = date.last_of_month().tomorrow().ok()?;
            continue;
        }
        let found = if takes(cron, date) { Day::of(zone, date).next(cron, zone, after) } else { None };
        let done = best.is_some();
        best = [best, found].into_iter().flatten().min();
        // Around a change of the clock the day after may hold an earlier instant.
        if done {
            break;
        }
        match date.tomorrow() {
            Ok(tomorrow) => date = tomorrow,
            Err(_) => break,
        }
    }
    best.map(|s| Timestamp(s * 1_000_000))
}

/// The last time it was due before an instant.
pub(super) fn previous(cron: &Cron, zone: &TimeZone, before: Timestamp) -> Option<Timestamp> {
    let before = before.0.div_euclid(1_000_000) + i64::from(before.0.rem_euclid(1_000_000) != 0);
    let start = zone.to_datetime(second(before)?).date();
    let mut date = start.tomorrow().ok()?;
    let first_year = start.year().saturating_sub(YEARS);
    let mut best: Option<i64> = None;
    while date.year() >= first_year {
        if !cron.months.has(date.month() as u32) {
            if best.is_some() {
                break;
            }
            date = date.first_of_month().yesterday().ok()?;
            continue;
        }
        let found = if takes(cron, date) { Day::of(zone, date).previous(cron, zone, before) } else { None };
        let done = best.is_some();
        best = [best, found].into_iter().flatten().max();
        if done {
            break;
        }
        match date.yesterday() {
            Ok(yesterday) => date = yesterday,
            Err(_) => break,
        }
    }
    best.map(|s| Timestamp(s * 1_000_000))
}

fn second(s: i64) -> Option<jiff::Timestamp> {
    jiff::Timestamp::from_second(s).ok()
}

/// Whether a day of a month that fits is one of the pattern's.
fn takes(cron: &Cron, date: Date) -> bool {
    debug_assert!(date.day() as u8 <= longest(date.month() as u32));
    let day = cron.days.has(date.day() as u32);
    let weekday = cron.weekdays.has(date.weekday().to_sunday_zero_offset() as u32);
    match (cron.days.any, cron.weekdays.any) {
        (true, true) => true,
        (true, false) => weekday,
        (false, true) => day,
        (false, false) => day || weekday,
    }
}

/// A day in a zone.
enum Day {
    /// The same offset all day: the instant, in seconds, of its beginning.
    Plain(i64),
    /// The clock may change.
    Other(Date),
}

impl Day {
    fn of(zone: &TimeZone, date: Date) -> Self {
        let midnight = zone.to_ambiguous_timestamp(date.to_datetime(Time::midnight()));
        if let AmbiguousOffset::Unambiguous { offset } = midnight.offset()
            && let Ok(begin) = midnight.unambiguous()
        {
            let change = zone.following(begin).next().map(|t| t.timestamp().as_second());
            if change.is_none_or(|t| t > begin.as_second() + 24 * 3_600 + MARGIN) {
                debug_assert_eq!(zone.to_offset(begin), offset);
                return Self::Plain(begin.as_second());
            }
        }
        Self::Other(date)
    }

    fn next(&self, cron: &Cron, zone: &TimeZone, after: i64) -> Option<i64> {
        match self {
            Self::Plain(begin) => {
                // The first minute of the day that is later.
                let minute = u32::try_from(((after - begin).div_euclid(60) + 1).max(0)).ok()?;
                let (hour, minute) = (minute / 60, minute % 60);
                let (hour, minute) = match cron.hours.from(hour)? {
                    h if h == hour => match cron.minutes.from(minute) {
                        Some(m) => (h, m),
                        None => (cron.hours.from(hour + 1)?, cron.minutes.first()),
                    },
                    h => (h, cron.minutes.first()),
                };
                Some(begin + i64::from(hour) * 3_600 + i64::from(minute) * 60)
            }
            Self::Other(date) => {
                let (least, most) = offsets(zone, *date)?;
                let mut best: Option<i64> = None;
                for (local, t) in times(cron, *date) {
                    if t - least <= after {
                        continue;
                    }
                    if best.is_some_and(|b| t - most > b) {
                        break;
                    }
                    let found = instants(cron, zone, local).into_iter().flatten().filter(|s| *s > after);
                    best = found.chain(best).min();
                }
                best
            }
        }
    }

    fn previous(&self, cron: &Cron, zone: &TimeZone, before: i64) -> Option<i64> {
        match self {
            Self::Plain(begin) => {
                // The last minute of the day that is earlier.
                let minute = u32::try_from((before - begin - 1).div_euclid(60).min(24 * 60 - 1)).ok()?;
                let (hour, minute) = (minute / 60, minute % 60);
                let (hour, minute) = match cron.hours.up_to(hour)? {
                    h if h == hour => match cron.minutes.up_to(minute) {
                        Some(m) => (h, m),
                        None => (cron.hours.up_to(hour.checked_sub(1)?)?, cron.minutes.last()),
                    },
                    h => (h, cron.minutes.last()),
                };
                Some(begin + i64::from(hour) * 3_600 + i64::from(minute) * 60)
            }
            Self::Other(date) => {
                let (least, most) = offsets(zone, *date)?;
                let mut best: Option<i64> = None;
                for (local, t) in times(cron, *date).rev() {
                    if t - most >= before {
                        continue;
                    }
                    if best.is_some_and(|b| t - least < b) {
                        break;
                    }
                    let found = instants(cron, zone, local).into_iter().flatten().filter(|s| *s < before);
                    best = found.chain(best).max();
                }
                best
            }
        }
    }
}

/// The times of a day that a pattern names, in order, with what they would be in UTC, in seconds.
fn times(cron: &Cron, date: Date) -> impl DoubleEndedIterator<Item = (DateTime, i64)> + '_ {
    (0..24_u32).filter(|h| cron.hours.has(*h)).flat_map(move |hour| {
        (0..60_u32).filter(|m| cron.minutes.has(*m)).filter_map(move |minute| {
            let local = date.to_datetime(Time::new(hour as i8, minute as i8, 0, 0).ok()?);
            Some((local, at(local, Offset::UTC)?))
        })
    })
}

/// The least and the greatest offset, in seconds, that may be in force on a day.
fn offsets(zone: &TimeZone, date: Date) -> Option<(i64, i64)> {
    let begin = at(date.to_datetime(Time::midnight()), Offset::UTC)?;
    let (from, to) = (second(begin - 2 * 86_400)?, second(begin + 3 * 86_400)?);
    let first = zone.to_offset(from);
    let later = zone.following(from).take_while(|t| t.timestamp() <= to).map(|t| t.offset());
    let all = std::iter::once(first).chain(later).map(|o| i64::from(o.seconds()));
    Some(all.fold((i64::MAX, i64::MIN), |(least, most), o| (least.min(o), most.max(o))))
}

/// The instants, in seconds, of a local time, by the rules.
fn instants(cron: &Cron, zone: &TimeZone, local: DateTime) -> [Option<i64>; 2] {
    match zone.to_ambiguous_timestamp(local).offset() {
        AmbiguousOffset::Unambiguous { offset } => [at(local, offset), None],
        AmbiguousOffset::Fold { before, after } => {
            let again = cron.hours.open || cron.minutes.open;
            [at(local, before), again.then(|| at(local, after)).flatten()]
        }
        AmbiguousOffset::Gap { .. } if cron.hours.open => [None, None],
        AmbiguousOffset::Gap { before, .. } => {
            [at(local, before).and_then(|s| change_at_or_before(zone, s)), None]
        }
    }
}

/// The instant of a local time at an offset.
fn at(local: DateTime, offset: Offset) -> Option<i64> {
    offset.to_timestamp(local).ok().map(jiff::Timestamp::as_second)
}

/// The last change of the clock up to an instant.
fn change_at_or_before(zone: &TimeZone, s: i64) -> Option<i64> {
    zone.preceding(second(s + 1)?).next().map(|t| t.timestamp().as_second())
}
