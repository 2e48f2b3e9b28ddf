//! Patterns, zones, and when they are due. The instants of days on which the clock changes are written out.

use super::*;
use crate::model::instant;
use crate::model::time::Span;
use proptest::prelude::*;

fn ts(text: &str) -> Timestamp {
    instant::parse(text).unwrap()
}

fn calendar(cron: &str, zone: &str) -> Calendar {
    Calendar { crons: vec![Cron::parse(cron).unwrap()], zone: Zone::named(zone).unwrap() }
}

/// The times due from `from` on and before `to`, as `…T07:00Z`.
fn due(cron: &str, zone: &str, from: &str, to: &str) -> Vec<String> {
    calendar(cron, zone).between(ts(from), ts(to)).map(|t| t.to_string()[..16].to_owned()).collect()
}

#[test]
fn a_time_that_does_not_exist_is_due_once_after_the_gap() {
    let day = ("2025-03-08T12:00:00Z", "2025-03-10T04:00:00Z");
    let new_york = |cron| due(cron, "America/New_York", day.0, day.1);
    assert_eq!(new_york("30 2 * * *"), ["2025-03-09T07:00"], "03:00 local");
    assert_eq!(new_york("0,30 2 * * *"), ["2025-03-09T07:00"], "once, together");
    assert_eq!(new_york("*/15 2 * * *"), ["2025-03-09T07:00"], "the hour is named");
    assert_eq!(new_york("30 2,3 * * *"), ["2025-03-09T07:00", "2025-03-09T07:30"]);
    assert_eq!(new_york("30 1 * * *"), ["2025-03-09T06:30"]);
    let even: Vec<_> = new_york("0 */2 * * *").into_iter().filter(|t| t.starts_with("2025-03-09")).collect();
    assert_eq!(
        even[..5],
        ["2025-03-09T01:00", "2025-03-09T03:00", "2025-03-09T05:00", "2025-03-09T08:00", "2025-03-09T10:00"]
    );
}

#[test]
fn a_time_that_comes_twice_is_due_the_first_time() {
    let new_york = |cron| due(cron, "America/New_York", "2025-11-02T04:00:00Z", "2025-11-03T05:00:00Z");
    assert_eq!(new_york("30 1 * * *"), ["2025-11-02T05:30"], "not also 06:30");
    assert_eq!(new_york("0 1-3 * * *"), ["2025-11-02T05:00", "2025-11-02T07:00", "2025-11-02T08:00"]);
    assert_eq!(new_york("0 * * * *").len(), 25, "real time");
    assert_eq!(new_york("*/30 1 * * *").len(), 4, "real time");
}

#[test]
fn steps_follow_real_time() {
    let new_york = |from, to| due("*/15 * * * *", "America/New_York", from, to);
    assert_eq!(new_york("2025-03-09T05:00:00Z", "2025-03-10T04:00:00Z").len(), 92);
    assert_eq!(new_york("2025-11-02T04:00:00Z", "2025-11-03T05:00:00Z").len(), 100);
    assert_eq!(new_york("2025-06-02T04:00:00Z", "2025-06-03T04:00:00Z").len(), 96);
}

#[test]
fn a_midnight_that_does_not_exist_does_not_lose_the_day() {
    // Cairo puts its clock ahead at midnight: 2025-04-25 begins at 01:00, which is 22:00Z.
    let cairo = |cron| due(cron, "Africa/Cairo", "2025-04-24T12:00:00Z", "2025-04-25T21:00:00Z");
    assert_eq!(cairo("0 0 * * *"), ["2025-04-24T22:00"]);
    assert_eq!(cairo("30 0 25 4 *"), ["2025-04-24T22:00"]);
    let even: Vec<_> = cairo("0 */2 * * *").into_iter().filter(|t| t.as_str() > "2025-04-24T20:30").collect();
    assert_eq!(
        even[..3],
        ["2025-04-24T23:00", "2025-04-25T01:00", "2025-04-25T03:00"],
        "02:00, 04:00, 06:00 local"
    );
    assert_eq!(due("0 0 * * *", "Africa/Cairo", "2025-04-01T00:00:00Z", "2025-05-01T00:00:00Z").len(), 30);
}

#[test]
fn a_clock_put_back_at_midnight_keeps_the_order() {
    // Cairo puts its clock back at midnight to 23:00 of 2025-10-30.
    let cairo = |cron| due(cron, "Africa/Cairo", "2025-10-30T19:00:00Z", "2025-10-30T23:00:00Z");
    assert_eq!(cairo("30 23 * * *"), ["2025-10-30T20:30"]);
    assert_eq!(cairo("0 0 * * *"), ["2025-10-30T22:00"]);
    assert_eq!(
        cairo("*/30 * * * *"),
        ["19:00", "19:30", "20:00", "20:30", "21:00", "21:30", "22:00", "22:30"]
            .map(|t| format!("2025-10-30T{t}"))
    );
}

#[test]
fn a_day_that_was_left_out_is_due_when_the_next_begins() {
    // Samoa crossed the date line: there was no 2011-12-30.
    let found = due("0 12 30 12 *", "Pacific/Apia", "2011-12-01T00:00:00Z", "2012-02-01T00:00:00Z");
    assert_eq!(found, ["2011-12-30T10:00"], "31 December 00:00 local");
}

#[test]
fn fields_take_lists_ranges_steps_and_names() {
    let utc = |cron| due(cron, "UTC", "2026-12-01T00:00:00Z", "2026-12-08T00:00:00Z");
    assert_eq!(utc("0 9 * * MON-fri").len(), 5);
    assert_eq!(utc("0 9 * * 6-7"), ["2026-12-05T09:00", "2026-12-06T09:00"]);
    assert_eq!(utc("0 9 * * SAT-SUN"), ["2026-12-05T09:00", "2026-12-06T09:00"]);
    assert_eq!(utc("0 9 * * 0"), utc("0 9 * * 7"));
    assert_eq!(utc("0 9 * dec sun"), ["2026-12-06T09:00"]);
    assert_eq!(utc("5/20 1,3-4 1 * *").len(), 9);
    assert_eq!(utc("10-30/10 1 1 12 *"), ["2026-12-01T01:10", "2026-12-01T01:20", "2026-12-01T01:30"]);
    assert_eq!(utc("0 0 2 * 0"), ["2026-12-02T00:00", "2026-12-06T00:00"], "either day is taken");
    assert_eq!(utc("@weekly"), ["2026-12-06T00:00"]);
    assert_eq!(utc("@Daily").len(), 7);
    assert_eq!(utc("@hourly").len(), 168);
    assert_eq!(Cron::parse("@yearly"), Cron::parse("0 0 1 1 *"));
}

#[test]
fn every_fault_is_told_with_what_to_do() {
    for (text, message) in [
        ("", "the pattern has 0 fields, not five"),
        ("* * * *", "the pattern has 4 fields, not five"),
        ("0 * * * * *", "seconds and years are not read"),
        ("60 * * * *", "minute '60': 60 is out of range; write 0 to 59"),
        ("* 24 * * *", "hour '24': 24 is out of range"),
        ("* * 0 * *", "day of month '0': 0 is out of range; write 1 to 31"),
        ("* * * foo *", "month 'foo': 'foo' is not a value; write 1 to 12 or a name from jan to dec"),
        ("* * * * 8", "day of week '8': 8 is out of range; write 0 to 7 or a name from sun to sat"),
        ("*/0 * * * *", "a step of 0 is not from 1 to 60"),
        ("*/90 * * * *", "a step of 90 is not from 1 to 60"),
        ("*/x * * * *", "'x' is not a step"),
        ("5-1 * * * *", "the range '5-1' runs backwards"),
        ("1,,2 * * * *", "nothing stands at a comma"),
        ("* * ? * *", "write '*'"),
        ("* * L * *", "'L' is not a value"),
        ("-1 * * * *", "'' is not a value"),
        ("+1 * * * *", "'+1' is not a value"),
        ("@dayly", "'@dayly' is not known (did you mean '@daily'?)"),
        ("@reboot", "write five fields or one of @yearly"),
        ("0 0 30 2 *", "no February has a day 30, so this is never due"),
        ("0 0 31 4,6 *", "no April or June has a day 31, so this is never due"),
        ("0 0 31 9-11/2 *", "no September or November has a day 31"),
    ] {
        let faults = Cron::parse(text).unwrap_err();
        assert!(faults.iter().any(|f| f.contains(message)), "{text:?}: {faults:?}");
    }
    assert_eq!(Cron::parse("60 24 * * 9").unwrap_err().len(), 3, "all faults at once");
    assert!(Cron::parse(&"1,".repeat(500)).is_err());
    assert!(Cron::parse("0 0 30 2 mon").is_ok(), "Mondays of February");
}

#[test]
fn zones_are_found_in_any_case_and_near_ones_named() {
    assert_eq!(Zone::named("europe/berlin").unwrap().name(), "Europe/Berlin");
    assert_eq!(Zone::named("UTC").unwrap().name(), "UTC");
    for (wrong, near) in [
        ("Europe/Berln", "(did you mean 'Europe/Berlin'?)"),
        ("Berlin", "(did you mean 'Europe/Berlin'?)"),
        ("new york", "(did you mean 'America/New_York'?)"),
        ("", "there is no time zone ''"),
        ("+01:00", "write an IANA name"),
        ("../../etc/passwd", "there is no time zone"),
    ] {
        let message = Zone::named(wrong).unwrap_err();
        assert!(message.contains(near), "{wrong}: {message}");
    }
}

#[test]
fn rare_days_are_found_and_the_search_ends() {
    let leap = calendar("0 0 29 2 *", "UTC");
    assert_eq!(leap.next(ts("2026-12-01T00:00:00Z")), Some(ts("2028-02-29T00:00:00Z")));
    assert_eq!(
        leap.next(ts("2096-02-29T00:00:00Z")),
        Some(ts("2104-02-29T00:00:00Z")),
        "2100 has no leap day"
    );
    assert_eq!(leap.previous(ts("2104-02-29T00:00:00Z")), Some(ts("2096-02-29T00:00:00Z")));
    for edge in [i64::MIN, i64::MAX, 0] {
        let _ = (leap.next(Timestamp(edge)), leap.previous(Timestamp(edge)));
    }
    assert_eq!(leap.next(ts("9999-12-30T00:00:00Z")), None);
}

#[test]
fn a_slot_is_strictly_after() {
    let minutely = calendar("* * * * *", "UTC");
    assert_eq!(minutely.next(ts("2026-12-01T00:00:00Z")), Some(ts("2026-12-01T00:01:00Z")));
    assert_eq!(minutely.next(ts("2026-12-01T00:00:59.999999Z")), Some(ts("2026-12-01T00:01:00Z")));
    assert_eq!(minutely.next(ts("2026-11-30T23:59:59.999999Z")), Some(ts("2026-12-01T00:00:00Z")));
    assert_eq!(minutely.previous(ts("2026-12-01T00:00:00Z")), Some(ts("2026-11-30T23:59:00Z")));
    assert_eq!(minutely.previous(ts("2026-12-01T00:00:00.000001Z")), Some(ts("2026-12-01T00:00:00Z")));
}

#[test]
fn several_patterns_are_due_when_one_is() {
    let both = Calendar {
        crons: ["0 9 * * *", "0 9,17 * * fri"].map(|c| Cron::parse(c).unwrap()).to_vec(),
        zone: Zone::named("UTC").unwrap(),
    };
    let friday: Vec<_> = both.between(ts("2026-12-04T00:00:00Z"), ts("2026-12-05T00:00:00Z")).collect();
    assert_eq!(friday, [ts("2026-12-04T09:00:00Z"), ts("2026-12-04T17:00:00Z")]);
}

/// What is due in a span, told minute by minute from what the clock on the wall shows.
fn by_the_wall(cron: &Cron, zone: &TimeZone, from: Timestamp, to: Timestamp) -> Vec<Timestamp> {
    let local = |t: Timestamp| zone.to_datetime(jiff::Timestamp::from_microsecond(t.0).unwrap());
    let fits = |t: jiff::civil::DateTime| {
        let day = cron.days.has(t.day() as u32);
        let weekday = cron.weekdays.has(t.weekday().to_sunday_zero_offset() as u32);
        let date = match (cron.days.any, cron.weekdays.any) {
            (false, false) => day || weekday,
            _ => (cron.days.any || day) && (cron.weekdays.any || weekday),
        };
        cron.months.has(t.month() as u32)
            && date
            && cron.hours.has(t.hour() as u32)
            && cron.minutes.has(t.minute() as u32)
    };
    let minute = Span::secs(60);
    let mut found = Vec::new();
    let mut shown = std::collections::BTreeSet::new();
    // The clock before the span counts too: what it showed then is not new.
    let mut at = Timestamp(from.0 - Span::secs(86_400).0);
    let mut before = local(Timestamp(at.0 - minute.0));
    while at < to {
        let now = local(at);
        // What the clock jumped over.
        let mut missing = false;
        let mut t = before.checked_add(jiff::Span::new().minutes(1)).unwrap();
        while t < now {
            missing |= !cron.hours.open && fits(t);
            t = t.checked_add(jiff::Span::new().minutes(1)).unwrap();
        }
        let again = !shown.insert(now);
        if (missing || (fits(now) && (!again || cron.hours.open || cron.minutes.open))) && at >= from {
            found.push(at);
        }
        before = now;
        at = at.plus(minute);
    }
    found
}

fn field_text(low: u32, high: u32) -> impl Strategy<Value = String> {
    prop_oneof![
        3 => Just("*".to_owned()),
        2 => (low..=high).prop_map(|v| v.to_string()),
        1 => (low..=high, low..=high).prop_map(|(a, b)| format!("{a},{b}")),
        1 => (low..=high, low..=high).prop_map(|(a, b)| format!("{}-{}", a.min(b), a.max(b))),
        1 => (1..=high).prop_map(|s| format!("*/{s}")),
        1 => (low..=high, 1..=high).prop_map(|(a, s)| format!("{a}/{s}")),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn what_is_due_is_what_the_clock_shows(
        minute in field_text(0, 59),
        hour in field_text(0, 23),
        day in field_text(1, 31),
        weekday in field_text(0, 6),
        // Days on which a clock changes, and one on which none does.
        (zone, from) in prop::sample::select(vec![
            ("America/New_York", "2025-03-08T05:00:00Z"),
            ("America/New_York", "2025-11-01T04:00:00Z"),
            ("Africa/Cairo", "2025-04-23T22:00:00Z"),
            ("Africa/Cairo", "2025-10-29T21:00:00Z"),
            ("Australia/Lord_Howe", "2025-04-05T00:00:00Z"),
            ("Australia/Lord_Howe", "2025-10-04T00:00:00Z"),
            ("Pacific/Apia", "2011-12-29T10:00:00Z"),
            ("Asia/Kolkata", "2026-02-27T00:00:00Z"),
            ("UTC", "2026-12-30T00:00:00Z"),
        ]),
    ) {
        let cron = Cron::parse(&format!("{minute} {hour} {day} * {weekday}")).unwrap();
        let zone = Zone::named(zone).unwrap();
        let (from, to) = (ts(from), ts(from).plus(Span::secs(3 * 86_400)));
        let expected = by_the_wall(&cron, &zone.rules, from, to);
        let calendar = Calendar { crons: vec![cron], zone };
        let found: Vec<_> = calendar.between(from, to).collect();
        prop_assert_eq!(&found, &expected);
        let mut back = Vec::new();
        let mut at = to;
        while let Some(slot) = calendar.previous(at).filter(|s| *s >= from) {
            back.push(slot);
            at = slot;
        }
        back.reverse();
        prop_assert_eq!(back, expected);
    }
}
