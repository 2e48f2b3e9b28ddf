//! The stored form of a run: prefix ‖ compact encoding of [`RunState`]. Golden files hold it still.

use super::run::RunState;

/// Why a record could not be read: written by a newer Downbeat, or damaged. Never guessed at.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a run record cannot be read: {0}")]
pub struct UnreadableRecord(pub String);

/// Appends the encoding of `state` to `out` (which holds the prefix already).
pub fn encode_into(state: &RunState, out: &mut Vec<u8>) {
    let _ = (state, out);
}

/// Reads what follows the prefix.
pub fn decode(bytes: &[u8]) -> Result<RunState, UnreadableRecord> {
    let _ = bytes;
    Err(UnreadableRecord("not written yet".into()))
}
