//! Instants as users write them: RFC 3339, such as `2030-01-31T08:00:00Z` or `2030-01-31T09:00:00.5+01:00`.

use super::time::Timestamp;

/// Reads an instant. Parts below a microsecond are dropped.
///
/// # Errors
/// What is wrong and the form it should have.
pub fn parse(text: &str) -> Result<Timestamp, String> {
    let wrong = || {
        let shown: String = text.chars().take(40).collect();
        format!("the instant {shown:?} is not valid; write RFC 3339, such as 2030-01-31T08:00:00Z")
    };
    if !has_form(text.as_bytes()) {
        return Err(wrong());
    }
    text.parse::<jiff::Timestamp>().map(|t| Timestamp(t.as_microsecond())).map_err(|_| wrong())
}

/// `YYYY-MM-DDThh:mm:ss[.f…](Z|±hh:mm)`; the calendar is checked by who reads it.
fn has_form(text: &[u8]) -> bool {
    let fits = |text: &[u8], form: &[u8]| {
        text.len() == form.len()
            && text.iter().zip(form).all(|(b, f)| match f {
                b'0' => b.is_ascii_digit(),
                f => b.eq_ignore_ascii_case(f),
            })
    };
    let Some((date, rest)) = text.split_at_checked(19) else { return false };
    let rest = match rest.strip_prefix(b".") {
        Some(fraction) => {
            let digits = fraction.iter().take_while(|b| b.is_ascii_digit()).count();
            if !(1..=9).contains(&digits) {
                return false;
            }
            &fraction[digits..]
        }
        None => rest,
    };
    fits(date, b"0000-00-00T00:00:00") && (fits(rest, b"Z") || fits(rest, b"+00:00") || fits(rest, b"-00:00"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_rfc_3339_allows() {
        for (text, us) in [
            ("1970-01-01T00:00:00Z", 0),
            ("1970-01-01t00:00:01.000001z", 1_000_001),
            ("1970-01-01T01:00:00+01:00", 0),
            ("1969-12-31T23:30:00.5-00:30", 500_000),
            ("2024-02-29T12:00:00.123456789Z", 1_709_208_000_123_456),
        ] {
            assert_eq!(parse(text), Ok(Timestamp(us)), "{text}");
        }
    }

    #[test]
    fn refuses_everything_else() {
        for bad in [
            "",
            "tomorrow",
            "2030-01-31",
            "2030-01-31T08:00:00",
            "2030-01-31 08:00:00Z",
            "2030-02-30T08:00:00Z",
            "2023-02-29T00:00:00Z",
            "2030-13-01T00:00:00Z",
            "2030-01-01T24:00:00Z",
            "2030-01-01T00:60:00Z",
            "2030-01-01T00:00:00+01:00[Europe/Berlin]",
            "2030-01-01T00:00:00+0100",
            "2030-01-01T00:00:00.Z",
            "20300101T000000Z",
            "+002030-01-01T00:00:00Z",
            "2030-01-01T00:00:00ZZ",
            "1893456000",
            "２０３０-01-01T00:00:00Z",
        ] {
            assert!(parse(bad).unwrap_err().contains("RFC 3339"), "{bad:?} must be refused");
        }
    }
}
