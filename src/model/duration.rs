//! Durations as users write them: `1h30m`, `500ms`, `2d`. Whole numbers of ms, s, m, h, d, from large to small,
//! at most ten years.

use super::time::Span;

/// The longest duration: ten years of 365 days, in ms.
pub const MAX_MS: i64 = 3_650 * 86_400_000;

/// Units from large to small, with their length in ms.
const UNITS: [(&str, i64); 5] = [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];

const FORM: &str = "write whole numbers of d, h, m, s, ms from large to small, such as 1h30m or 500ms";

/// Reads a duration.
///
/// # Errors
/// What is wrong and the form it should have.
pub fn parse(text: &str) -> Result<Span, String> {
    let shown: String = text.chars().take(40).collect();
    if text.is_empty() {
        return Err(format!("a duration is empty; {FORM}"));
    }
    if text.starts_with(['-', '+']) {
        return Err(format!("the duration {shown:?} has a sign; durations are never negative; {FORM}"));
    }
    if text.bytes().all(|b| b.is_ascii_digit()) {
        return Err(format!("the duration {shown:?} has no unit; {FORM}"));
    }
    let too_long = || format!("the duration {shown:?} is longer than ten years (3650d)");
    let (mut rest, mut last, mut total) = (text, None, 0i64);
    while !rest.is_empty() {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let (number, tail) = rest.split_at(digits);
        let letters = tail.bytes().take_while(u8::is_ascii_alphabetic).count();
        let (unit, tail) = tail.split_at(letters);
        let known = UNITS.iter().position(|(name, _)| *name == unit);
        let Some(place) = known.filter(|_| digits > 0) else {
            return Err(format!("the duration {shown:?} is not valid; {FORM}"));
        };
        if last.is_some_and(|last| place <= last) {
            return Err(format!("the duration {shown:?} has its units out of order; {FORM}"));
        }
        let number: i64 = number.parse().map_err(|_| too_long())?;
        total = number
            .checked_mul(UNITS[place].1)
            .and_then(|ms| total.checked_add(ms))
            .filter(|ms| *ms <= MAX_MS)
            .ok_or_else(too_long)?;
        last = Some(place);
        rest = tail;
    }
    Ok(Span::millis(total))
}

/// Writes a duration in its shortest form; what [`parse`] reads back as the same span. Parts of a millisecond are
/// dropped.
pub fn format(span: Span) -> String {
    let mut ms = span.as_millis().max(0);
    let mut out = String::new();
    for (name, length) in UNITS {
        let n = ms / length;
        if n > 0 {
            out.push_str(&n.to_string());
            out.push_str(name);
            ms %= length;
        }
    }
    if out.is_empty() { "0s".to_owned() } else { out }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn reads_every_unit() {
        for (text, ms) in [
            ("0s", 0),
            ("1ms", 1),
            ("20s", 20_000),
            ("1h30m", 5_400_000),
            ("1d2h3m4s5ms", 93_784_005),
            ("2147483648ms", 2_147_483_648),
            ("3650d", MAX_MS),
            ("90m", 5_400_000),
        ] {
            assert_eq!(parse(text), Ok(Span::millis(ms)), "{text}");
        }
    }

    #[test]
    fn refuses_what_is_not_a_duration() {
        for bad in [
            "",
            "5",
            "-1s",
            "+1s",
            "1.5s",
            "1m30",
            "30m1h",
            "1s1s",
            "s",
            "1 h",
            " 1h",
            "1h ",
            "1w",
            "1H",
            "P1D",
            "1e3s",
            "3651d",
            "1000000000000000000ms",
            "99999999999999999999s",
            "5s ago",
            "٣s",
            "1m 30s",
        ] {
            assert!(parse(bad).is_err(), "{bad:?} must be refused");
        }
        assert!(parse("30").unwrap_err().contains("no unit"));
        assert!(parse("-5s").unwrap_err().contains("never negative"));
        assert!(parse("9999d").unwrap_err().contains("ten years"));
    }

    #[test]
    fn writes_the_shortest_form() {
        assert_eq!(format(Span::millis(5_400_000)), "1h30m");
        assert_eq!(format(Span::millis(0)), "0s");
        assert_eq!(format(Span::millis(604_800_000)), "7d");
    }

    proptest! {
        #[test]
        fn what_is_written_reads_back(ms in 0..=MAX_MS) {
            prop_assert_eq!(parse(&format(Span::millis(ms))), Ok(Span::millis(ms)));
        }

        #[test]
        fn never_panics(text in "\\PC{0,20}|[0-9dhms.-]{0,30}") {
            let _ = parse(&text);
        }
    }
}
