//! Checks JSON text of users without building a value: kept to the byte, so it is only looked at.

/// The deepest nesting of lists and objects.
pub const DEPTH_MAX: usize = 128;

/// Why a text is not the JSON we take.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidJson {
    /// Not JSON, with the place.
    #[error("not valid JSON: {0}")]
    Syntax(String),
    /// Nested too deeply.
    #[error("nested deeper than {DEPTH_MAX} lists and objects")]
    TooDeep,
    /// An escape in a string names half a character, which no UTF-8 text can hold.
    #[error("a string holds half of a surrogate pair at byte {0}")]
    LoneSurrogate(usize),
}

/// Takes one JSON value in UTF-8, at most [`DEPTH_MAX`] deep. Time is linear, the stack is not used.
pub fn check(text: &[u8]) -> Result<(), InvalidJson> {
    serde_json::from_slice::<&serde_json::value::RawValue>(text)
        .map_err(|e| InvalidJson::Syntax(e.to_string()))?;
    check_shape(text)
}

/// The part of [`check`] that a JSON parser does not do; `text` is known to be JSON.
pub fn check_shape(text: &[u8]) -> Result<(), InvalidJson> {
    let mut depth = 0_usize;
    let mut at = 0;
    while let Some(&byte) = text.get(at) {
        match byte {
            b'[' | b'{' => {
                depth += 1;
                if depth > DEPTH_MAX {
                    return Err(InvalidJson::TooDeep);
                }
            }
            b']' | b'}' => depth = depth.saturating_sub(1),
            b'"' => {
                at = end_of_string(text, at + 1)?;
                continue;
            }
            _ => {}
        }
        at += 1;
    }
    Ok(())
}

/// The index behind the closing quote of the string whose first byte is at `at`.
fn end_of_string(text: &[u8], mut at: usize) -> Result<usize, InvalidJson> {
    while let Some(&byte) = text.get(at) {
        match byte {
            b'"' => return Ok(at + 1),
            b'\\' if text.get(at + 1) == Some(&b'u') => match unit(text, at) {
                Some(0xd800..=0xdbff) => match unit(text, at + 6) {
                    Some(0xdc00..=0xdfff) => at += 12,
                    _ => return Err(InvalidJson::LoneSurrogate(at)),
                },
                Some(0xdc00..=0xdfff) => return Err(InvalidJson::LoneSurrogate(at)),
                _ => at += 6,
            },
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
    Ok(at)
}

/// The UTF-16 unit of the escape `\uXXXX` at `at`.
fn unit(text: &[u8], at: usize) -> Option<u16> {
    let digits = text.get(at..at + 6)?.strip_prefix(b"\\u")?;
    u16::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_json_value_is_taken() {
        for good in
            ["null", "9007199254740993", "1.0", "[]", "{}", r#""😀""#, r#""\ud83d\ude00 \\u \" ]""#, " [1] "]
        {
            assert_eq!(check(good.as_bytes()), Ok(()), "{good}");
        }
    }

    #[test]
    fn what_is_no_json_is_refused() {
        for bad in ["", "{", "[1,]", "nul", "1 2", "NaN", "'a'", "\u{feff}1", "\"\n\""] {
            assert!(matches!(check(bad.as_bytes()), Err(InvalidJson::Syntax(_))), "{bad:?}");
        }
        assert!(matches!(check(b"\"\xff\""), Err(InvalidJson::Syntax(_))));
    }

    #[test]
    fn depth_is_counted_outside_of_strings() {
        let nested = |n: usize| format!("{}{}", "[".repeat(n), "]".repeat(n));
        assert_eq!(check(nested(DEPTH_MAX).as_bytes()), Ok(()));
        assert_eq!(check(nested(DEPTH_MAX + 1).as_bytes()), Err(InvalidJson::TooDeep));
        assert_eq!(check(nested(1_000_000).as_bytes()), Err(InvalidJson::TooDeep));
        assert_eq!(check(format!("\"{}\"", "[".repeat(200)).as_bytes()), Ok(()));
        let wide = format!("[{}[]]", "[],".repeat(1_000));
        assert_eq!(check(wide.as_bytes()), Ok(()));
    }

    #[test]
    fn half_a_surrogate_pair_is_refused() {
        assert_eq!(check(br#"["\ud800"]"#), Err(InvalidJson::LoneSurrogate(2)));
        assert_eq!(check(br#""\ude00\ud83d""#), Err(InvalidJson::LoneSurrogate(1)));
    }
}
