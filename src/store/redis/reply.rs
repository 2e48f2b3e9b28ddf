//! Reading replies: what Redis answered as what the port promises, and its errors as [`StoreError`].

use super::link::Value;
use crate::store::{Result, StoreError};
use bytes::Bytes;

/// A reply that is not of the form the script promises.
pub(super) fn unexpected(what: &str) -> StoreError {
    StoreError::Unreadable(format!("Redis answered {what} in a form this version does not know"))
}

/// The elements of an array.
pub(super) fn array(value: Value, what: &str) -> Result<Vec<Value>> {
    match value {
        Value::Array(items) => Ok(items),
        _ => Err(unexpected(what)),
    }
}

/// A text or none.
pub(super) fn bytes(value: Value, what: &str) -> Result<Option<Bytes>> {
    match value {
        Value::Nil => Ok(None),
        Value::BulkString(bytes) | Value::SimpleString(bytes) => Ok(Some(bytes)),
        Value::Int(n) => Ok(Some(n.to_string().into_bytes().into())),
        _ => Err(unexpected(what)),
    }
}

/// A text that must be there.
pub(super) fn text(value: Value, what: &str) -> Result<String> {
    let bytes = bytes(value, what)?.ok_or_else(|| unexpected(what))?;
    String::from_utf8(bytes.to_vec()).map_err(|_| unexpected(what))
}

/// A name or another value that is parsed from text.
pub(super) fn parsed<T: std::str::FromStr>(value: Value, what: &str) -> Result<T> {
    text(value, what)?.parse().map_err(|_| unexpected(what))
}

/// A whole number, as an integer or as the text of a score.
pub(super) fn number(value: &Value, what: &str) -> Result<i64> {
    let read = |text: &str| {
        text.parse::<i64>().ok().or_else(|| {
            // A score of 16 digits may come with an exponent.
            text.parse::<f64>().ok().filter(|f| f.fract() == 0.0 && f.abs() < 9.1e15).map(|f| f as i64)
        })
    };
    match value {
        Value::Int(n) => Some(*n),
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok().and_then(read),
        _ => None,
    }
    .ok_or_else(|| unexpected(what))
}

/// What an error says, without its kind.
pub(super) fn said(error: StoreError) -> String {
    match error {
        StoreError::Unavailable { message, .. } | StoreError::Unfit(message) => message,
        other => other.to_string(),
    }
}

/// The same error, with more said of it; its kind stays.
pub(super) fn reworded(error: StoreError, words: impl FnOnce(String) -> String) -> StoreError {
    match error {
        StoreError::Unavailable { message, sent } => {
            StoreError::Unavailable { message: words(message), sent }
        }
        StoreError::Unfit(message) => StoreError::Unfit(words(message)),
        StoreError::Full(message) => StoreError::Full(words(message)),
        StoreError::Unreadable(message) => StoreError::Unreadable(words(message)),
        StoreError::Forgotten => StoreError::Forgotten,
    }
}

/// A reply that is no error.
pub(super) fn checked(value: Value, sent: bool) -> Result<Value> {
    match value {
        Value::Error(text) => Err(error(&text, sent)),
        value => Ok(value),
    }
}

/// What an error of Redis means for the port. `sent`: whether a command may have been taken that fails in a way that
/// is not known.
pub(super) fn error(text: &str, sent: bool) -> StoreError {
    let code = text.split(' ').next().unwrap_or_default();
    let message = text.to_owned();
    // Redis 6.2 wraps the error of a command in a script, so its code stands in the text.
    let is = |wanted: &str| code == wanted || message.contains(&format!("-{wanted} "));
    if is("OOM") || message.contains("OOM command not allowed") {
        return StoreError::Full(message);
    }
    if is("FORGOTTEN") {
        return StoreError::Forgotten;
    }
    if is("WRONGTYPE") || message.contains("WRONGTYPE") {
        return StoreError::Unreadable(message);
    }
    // Who we are, and what we may, is for people to change.
    if ["NOAUTH", "WRONGPASS", "NOPERM"].iter().any(|code| is(code)) {
        return StoreError::Unfit(message);
    }
    // Refused before a script began, or by its first write: nothing was written.
    let refused = [
        "READONLY",
        "LOADING",
        "MASTERDOWN",
        "BUSY",
        "CLUSTERDOWN",
        "TRYAGAIN",
        "NOREPLICAS",
        "MISCONF",
        "NOSCRIPT",
        "MOVED",
        "ASK",
    ];
    let refused = refused.iter().any(|code| is(code)) || message.contains("max number of clients");
    StoreError::Unavailable { message, sent: sent && !refused }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from_server(line: &str) -> StoreError {
        checked(Value::Error(line.into()), true).unwrap_err()
    }

    #[test]
    fn refusals_of_redis_wrote_nothing() {
        for line in [
            "READONLY You can't write against a read only replica.",
            "LOADING Redis is loading the dataset in memory",
            "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
            "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
            "MISCONF Redis is configured to save RDB snapshots",
            "NOREPLICAS Not enough good replicas to write.",
            "@user_script: 138: -READONLY You can't write against a read only replica.",
        ] {
            let error = from_server(line);
            assert!(matches!(error, StoreError::Unavailable { .. }), "{line}: {error:?}");
            assert!(!error.was_sent(), "{line}");
        }
        for line in [
            "NOAUTH Authentication required.",
            "WRONGPASS invalid username-password pair or user is disabled.",
            "NOPERM this user has no permissions to run the 'evalsha' command",
        ] {
            let error = from_server(line);
            assert!(matches!(error, StoreError::Unfit(_)) && !error.was_sent(), "{line}: {error:?}");
            assert!(!error.passes(), "{line}");
        }
        let full = from_server("OOM command not allowed when used memory > 'maxmemory'.");
        assert!(matches!(full, StoreError::Full(_)), "{full:?}");
        let wrong = from_server("WRONGTYPE Operation against a key holding the wrong kind of value");
        assert!(matches!(wrong, StoreError::Unreadable(_)), "{wrong:?}");
        assert_eq!(from_server("FORGOTTEN x"), StoreError::Forgotten);
    }

    #[test]
    fn an_error_that_is_not_known_may_have_been_written() {
        assert!(from_server("ERR something new").was_sent());
    }

    #[test]
    fn scores_are_read_as_whole_numbers() {
        for (text, n) in [
            ("-5", -5),
            ("1780000000000123", 1_780_000_000_000_123),
            ("9.007199254740991e+15", (1 << 53) - 1),
        ] {
            assert_eq!(number(&Value::BulkString(text.into()), "a score"), Ok(n));
        }
        assert!(number(&Value::BulkString("inf".into()), "a score").is_err());
    }
}
