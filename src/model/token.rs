//! The fencing token of an attempt: self-sufficient, unguessable, valid on any server until fenced.
//!
//! ```text
//! base64url( format u8 = 1 ‖ partition u16 BE ‖ attempt u32 BE ‖ nonce 16 B ‖ len(run) u8 ‖ run ‖ path )
//! ```
//!
//! The nonce is that of the commit that leased the attempt, so no two leases share a token. It is not
//! signed: whoever can guess 128 random bits may complete the task. Never log one whole.
//! Source: docs/adr/0002-formats.md.

use super::ids::{Nonce, Partition, RunId, TaskPath};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use std::fmt;

/// What a token says. See the module for its written form.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TaskToken {
    /// The partition of the run.
    pub partition: Partition,
    /// The run.
    pub run: RunId,
    /// The task.
    pub path: TaskPath,
    /// The attempt, from 1.
    pub attempt: u32,
    /// The commit that leased it.
    pub nonce: Nonce,
}

const FORMAT: u8 = 1;

impl TaskToken {
    /// Writes the token.
    pub fn encode(&self) -> String {
        let run = self.run.as_str().as_bytes();
        let path = self.path.as_str().as_bytes();
        let mut b = Vec::with_capacity(24 + run.len() + path.len());
        b.push(FORMAT);
        b.extend_from_slice(&self.partition.0.to_be_bytes());
        b.extend_from_slice(&self.attempt.to_be_bytes());
        b.extend_from_slice(&self.nonce.0);
        b.push(run.len() as u8);
        b.extend_from_slice(run);
        b.extend_from_slice(path);
        URL_SAFE_NO_PAD.encode(b)
    }

    /// Reads a token; `None` if it is not one of ours (unknown, not stale).
    pub fn decode(text: &str) -> Option<Self> {
        if text.len() > 8192 {
            return None;
        }
        let b = URL_SAFE_NO_PAD.decode(text).ok()?;
        if *b.first()? != FORMAT {
            return None;
        }
        let partition = Partition(u16::from_be_bytes(b.get(1..3)?.try_into().ok()?));
        let attempt = u32::from_be_bytes(b.get(3..7)?.try_into().ok()?);
        let nonce = Nonce(b.get(7..23)?.try_into().ok()?);
        let len = usize::from(*b.get(23)?);
        let run = RunId::new(std::str::from_utf8(b.get(24..24 + len)?).ok()?).ok()?;
        let path = TaskPath::parse(std::str::from_utf8(b.get(24 + len..)?).ok()?).ok()?;
        Some(Self { partition, run, path, attempt, nonce })
    }
}

impl fmt::Debug for TaskToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "token({}/{} attempt {}, …)", self.run, self.path, self.attempt)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trips_and_refuses_junk() {
        let t = TaskToken {
            partition: Partition(3),
            run: RunId::new("order-1").unwrap(),
            path: TaskPath::parse("ship[2]").unwrap(),
            attempt: 4,
            nonce: Nonce([9; 16]),
        };
        let text = t.encode();
        assert_eq!(TaskToken::decode(&text), Some(t));
        for bad in ["", "!!", "AA", &text[..20], &format!("B{}", &text[1..])] {
            assert_eq!(TaskToken::decode(bad), None, "{bad}");
        }
    }

    #[test]
    fn debug_hides_the_nonce() {
        let t = TaskToken {
            partition: Partition(0),
            run: RunId::new("r").unwrap(),
            path: TaskPath::parse("a").unwrap(),
            attempt: 1,
            nonce: Nonce([0xab; 16]),
        };
        assert_eq!(format!("{t:?}"), "token(r/a attempt 1, …)");
    }
}
