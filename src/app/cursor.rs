//! Cursors of lists. To a caller they are opaque; what no list gave out, or another list did, is refused.
//!
//! ```text
//! base64url( list u8 ‖ position, UTF-8 ‖ check 4 B )        check: digest of what stands before it
//! ```
//!
//! The check is no secret: it tells junk and cut-off text from a position, not friend from foe.
//! To add a list: a line in [`List`], and its position as text.

use super::AppError;
use crate::model::error::{ErrorCode, Fault};
use crate::model::json;
use crate::model::time::Timestamp;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use std::str::FromStr;

/// Bytes of the check.
const CHECK: usize = 4;

/// Which list a cursor is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum List {
    /// Position: time of creation in µs, `.`, id.
    Runs = 1,
    /// Position: time of the newest version in µs, `.`, name.
    Workflows = 2,
    /// Position: number of the next task.
    Tasks = 3,
    /// Position: time of creation in µs, `.`, name.
    Schedules = 4,
}

fn check(bytes: &[u8]) -> [u8; CHECK] {
    let digest = json::digest(&[b"cursor", bytes]);
    [digest[0], digest[1], digest[2], digest[3]]
}

impl List {
    /// The cursor of a position.
    pub(crate) fn cursor(self, position: &str) -> String {
        let mut bytes = Vec::with_capacity(1 + position.len() + CHECK);
        bytes.push(self as u8);
        bytes.extend_from_slice(position.as_bytes());
        bytes.extend_from_slice(&check(&bytes));
        URL_SAFE_NO_PAD.encode(bytes)
    }

    /// The position of a cursor.
    ///
    /// # Errors
    /// `invalid_request` if this list did not give it out.
    pub(crate) fn position<T>(
        self,
        cursor: &str,
        read: impl FnOnce(&str) -> Option<T>,
    ) -> Result<T, AppError> {
        self.text(cursor).as_deref().and_then(read).ok_or_else(junk)
    }

    fn text(self, cursor: &str) -> Option<String> {
        let mut bytes = URL_SAFE_NO_PAD.decode(cursor).ok()?;
        let split = bytes.len().checked_sub(CHECK)?;
        if check(&bytes[..split]) != bytes[split..] {
            return None;
        }
        bytes.truncate(split);
        let (list, position) = bytes.split_first()?;
        if *list != self as u8 {
            return None;
        }
        std::str::from_utf8(position).ok().map(str::to_owned)
    }
}

/// A position by time: the newest first, and by name where two are of one instant.
pub(crate) fn by_time(position: &str) -> Option<(Timestamp, &str)> {
    let (time, name) = position.split_once('.')?;
    Some((Timestamp(i64::from_str(time).ok()?), name))
}

/// What is answered to a cursor that this list did not give out.
pub(crate) fn junk() -> AppError {
    let message = "is none that this list gave out; take next_cursor as it is, or leave it out to begin anew";
    let fault = Fault { path: "cursor".to_owned(), line: None, message: message.to_owned() };
    AppError::with_faults(ErrorCode::InvalidRequest, format!("cursor: {message}"), vec![fault])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_is_read_by_its_own_list_only() {
        let cursor = List::Runs.cursor("17.order-1");
        let read = |list: List, text: &str| list.position(text, |p| Some(p.to_owned()));
        assert_eq!(read(List::Runs, &cursor), Ok("17.order-1".to_owned()));
        assert_eq!(read(List::Workflows, &cursor), Err(junk()));
        assert_eq!(read(List::Tasks, &cursor), Err(junk()));
    }

    #[test]
    fn junk_is_refused_wherever_it_is_wrong() {
        let cursor = List::Runs.cursor("17.order-1");
        let (cut, longer) = (&cursor[..cursor.len() - 1], format!("{cursor}A"));
        for text in ["", "x", "order", "17.order-1", "AAAAAAAA", "%", "\u{e4}", cut, longer.as_str()] {
            assert_eq!(List::Runs.position(text, |p| Some(p.to_owned())), Err(junk()), "{text:?}");
        }
        for at in 0..cursor.len() {
            let mut other = cursor.clone().into_bytes();
            other[at] = if other[at] == b'A' { b'B' } else { b'A' };
            let other = String::from_utf8(other).unwrap();
            assert!(List::Runs.position(&other, |p| Some(p.to_owned())).is_err(), "{other:?}");
        }
    }

    #[test]
    fn a_position_by_time_has_both() {
        assert_eq!(by_time("17.a.b"), Some((Timestamp(17), "a.b")));
        assert_eq!(by_time("17"), None);
        assert_eq!(by_time("x.a"), None);
    }
}
