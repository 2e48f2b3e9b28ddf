//! Names and identities. Every one is checked when it is made, so no other layer checks again.
//!
//! ```text
//! name   [A-Za-z0-9][A-Za-z0-9._-]{0,127}     workflows, task types, runs, signals
//! task   [A-Za-z_][A-Za-z0-9_]{0,63}          one segment of a task path
//! path   task ( "[" n "]" | "#" n )* ( "/" path )?
//! ```

use std::fmt;
use std::sync::Arc;

/// Why a name was refused. The message says what the name is for, what stands there and the rule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what} {got:?} is not valid: {rule}")]
pub struct InvalidName {
    /// What the name is for, e.g. `run id`.
    pub what: &'static str,
    /// What stood there, cut to 64 characters.
    pub got: String,
    /// The rule it breaks.
    pub rule: &'static str,
}

const NAME_RULE: &str = "a letter or digit, then up to 127 letters, digits, '.', '_' or '-'";
const TASK_RULE: &str = "a letter or '_', then up to 63 letters, digits or '_'";

fn is_name(s: &str) -> bool {
    let b = s.as_bytes();
    (1..=128).contains(&b.len())
        && b[0].is_ascii_alphanumeric()
        && b.iter().all(|c| c.is_ascii_alphanumeric() || matches!(c, b'.' | b'_' | b'-'))
}

fn is_task_id(s: &str) -> bool {
    let b = s.as_bytes();
    (1..=64).contains(&b.len())
        && (b[0].is_ascii_alphabetic() || b[0] == b'_')
        && b.iter().all(|c| c.is_ascii_alphanumeric() || *c == b'_')
}

macro_rules! name_type {
    ($(#[$doc:meta])* $name:ident, $what:literal, $check:path, $rule:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Arc<str>);
        impl $name {
            /// Takes `text` if it follows the rule of this kind of name.
            pub fn new(text: &str) -> Result<Self, InvalidName> {
                if $check(text) {
                    Ok(Self(text.into()))
                } else {
                    Err(InvalidName { what: $what, got: text.chars().take(64).collect(), rule: $rule })
                }
            }
            /// The name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&*self.0, f)
            }
        }
        impl std::str::FromStr for $name {
            type Err = InvalidName;
            fn from_str(s: &str) -> Result<Self, InvalidName> {
                Self::new(s)
            }
        }
    };
}

name_type!(
    /// The id of a run, chosen by the caller or made by [`RunId::generate`].
    RunId, "run id", is_name, NAME_RULE
);
name_type!(
    /// The name of a workflow.
    WorkflowName, "workflow name", is_name, NAME_RULE
);
name_type!(
    /// What a worker can do.
    TaskType, "task type", is_name, NAME_RULE
);
name_type!(
    /// The name of a signal; waits name it.
    SignalName, "signal name", is_name, NAME_RULE
);
name_type!(
    /// The caller's id of one signal: the same is accepted once by a run.
    SignalId, "signal id", is_name, NAME_RULE
);
name_type!(
    /// The id of a task inside its document.
    TaskId, "task id", is_task_id, TASK_RULE
);
name_type!(
    /// The id of a worker session; its first part names the partition that keeps its record.
    SessionId, "session id", is_name, NAME_RULE
);

const ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";

fn base32(mut value: u128, digits: usize) -> String {
    let mut out = vec![b'0'; digits];
    for slot in out.iter_mut().rev() {
        *slot = ALPHABET[(value & 31) as usize];
        value >>= 5;
    }
    String::from_utf8(out).unwrap_or_default()
}

impl RunId {
    /// A new id that sorts by time: 48 bits of milliseconds, then 72 of `random`. 24 characters.
    pub fn generate(now: super::time::Timestamp, random: u128) -> Self {
        let ms = (now.as_millis().max(0) as u128) & ((1 << 48) - 1);
        Self(base32((ms << 72) | (random & ((1 << 72) - 1)), 24).into())
    }
}

impl SessionId {
    /// A new session id whose record lives in `partition`.
    pub fn generate(partition: Partition, random: u128) -> Self {
        Self(format!("s{}-{}", partition.0, base32(random & ((1 << 100) - 1), 20)).into())
    }

    /// The partition that keeps this session's record, if the id has our form.
    pub fn partition(&self) -> Option<Partition> {
        let (head, _) = self.0.strip_prefix('s')?.split_once('-')?;
        head.parse().ok().map(Partition)
    }
}

/// One of the store's partitions: 0 to the number fixed when the store was initialised.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Partition(pub u16);

impl Partition {
    /// The partition of a key (run id, workflow name) among `count`: FNV-1a, then a multiply-shift,
    /// so that it is stable for ever and even for sequential ids.
    pub fn of(key: &str, count: u16) -> Self {
        let mut h: u64 = 0xcbf2_9ce4_8422_2325;
        for b in key.bytes() {
            h = (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3);
        }
        h ^= h >> 32;
        h = h.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Self((((h >> 32) * u64::from(count.max(1))) >> 32) as u16)
    }
}

/// A 128-bit random number that names one commit (or one lane incarnation).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Nonce(pub [u8; 16]);

impl fmt::Debug for Nonce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:02x}{:02x}{:02x}{:02x}…", self.0[0], self.0[1], self.0[2], self.0[3])
    }
}

/// The compare value of a record: version (u64, big endian) ‖ commit nonce. Opaque to the stores.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Prefix(pub [u8; Prefix::LEN]);

impl Prefix {
    /// Bytes of a prefix at the head of every record.
    pub const LEN: usize = 24;

    /// The prefix of `version` written by the commit `nonce`.
    pub fn new(version: u64, nonce: Nonce) -> Self {
        let mut p = [0; Self::LEN];
        p[..8].copy_from_slice(&version.to_be_bytes());
        p[8..].copy_from_slice(&nonce.0);
        Self(p)
    }

    /// Reads the prefix at the head of `record`; `None` if it is too short.
    pub fn of(record: &[u8]) -> Option<Self> {
        record.get(..Self::LEN)?.try_into().ok().map(Self)
    }

    /// The version, which rises by one with every commit.
    pub fn version(&self) -> u64 {
        self.0[..8].iter().fold(0, |v, b| (v << 8) | u64::from(*b))
    }

    /// The nonce of the commit that wrote the record.
    pub fn nonce(&self) -> Nonce {
        let mut n = [0; 16];
        n.copy_from_slice(&self.0[8..]);
        Nonce(n)
    }
}

impl fmt::Debug for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "v{}/{:?}", self.version(), self.nonce())
    }
}

/// Where a task stands in its run: `ship[3]/pack#2`, see [`super::nodes`].
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskPath(Arc<str>);

impl TaskPath {
    /// Parses a path.
    pub fn parse(text: &str) -> Result<Self, InvalidName> {
        let bad = || InvalidName {
            what: "task path",
            got: text.chars().take(64).collect(),
            rule: "task ids joined by '/', each with [n] for an item and #n for an iteration",
        };
        if text.len() > 4096 {
            return Err(bad());
        }
        for segment in text.split('/') {
            let end = segment.find(['[', '#']).unwrap_or(segment.len());
            let (id, mut rest) = segment.split_at(end);
            if !is_task_id(id) {
                return Err(bad());
            }
            while !rest.is_empty() {
                let digits = |s: &str| !s.is_empty() && s.len() <= 9 && s.bytes().all(|b| b.is_ascii_digit());
                if let Some(r) = rest.strip_prefix('[') {
                    let (n, r) = r.split_once(']').ok_or_else(bad)?;
                    if !digits(n) {
                        return Err(bad());
                    }
                    rest = r;
                } else if let Some(r) = rest.strip_prefix('#') {
                    let cut = r.find(['[', '#']).unwrap_or(r.len());
                    if !digits(&r[..cut]) {
                        return Err(bad());
                    }
                    rest = &r[cut..];
                } else {
                    return Err(bad());
                }
            }
        }
        Ok(Self(text.into()))
    }

    /// The path of nothing: of a node that its plan does not know.
    pub(crate) fn nowhere() -> Self {
        Self("?".into())
    }

    /// The path as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<&TaskId> for TaskPath {
    fn from(id: &TaskId) -> Self {
        Self(Arc::clone(&id.0))
    }
}

impl fmt::Display for TaskPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for TaskPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::time::Timestamp;

    #[test]
    fn names_follow_their_rule() {
        for good in ["a", "0", "order-1.2_x", &"a".repeat(128)] {
            assert_eq!(RunId::new(good).unwrap().as_str(), good);
        }
        for bad in ["", "-a", ".", "a/b", "../x", "a b", "ä", "a\n", "%2e", &"a".repeat(129)] {
            assert!(RunId::new(bad).is_err(), "{bad:?} must be refused");
        }
    }

    #[test]
    fn paths_parse_every_reserved_form() {
        for good in ["a", "ship[3]", "loop#2", "a[1]#2/b/c[0]"] {
            assert_eq!(TaskPath::parse(good).unwrap().as_str(), good);
        }
        for bad in ["", "/", "a/", "a[", "a[x]", "a]", "a#", "a#1x", "1a", "a[1]b"] {
            assert!(TaskPath::parse(bad).is_err(), "{bad:?} must be refused");
        }
    }

    #[test]
    fn generated_run_ids_sort_by_time_and_are_valid() {
        let a = RunId::generate(Timestamp::from_millis(1_000), u128::MAX);
        let b = RunId::generate(Timestamp::from_millis(1_001), 0);
        assert!(a < b);
        assert_eq!(a.as_str().len(), 24);
        assert_eq!(RunId::new(a.as_str()).unwrap(), a);
    }

    #[test]
    fn partitions_are_even_and_stable() {
        let mut counts = [0u32; 8];
        for n in 0..8_000 {
            counts[usize::from(Partition::of(&format!("run-{n}"), 8).0)] += 1;
        }
        assert!(counts.iter().all(|c| (800..1_200).contains(c)), "{counts:?}");
        assert_eq!(Partition::of("order-1", 8), Partition(Partition::of("order-1", 8).0));
    }

    #[test]
    fn session_ids_name_their_partition() {
        let id = SessionId::generate(Partition(7), 99);
        assert_eq!(id.partition(), Some(Partition(7)));
        assert_eq!(SessionId::new("nope").unwrap().partition(), None);
    }

    #[test]
    fn prefix_round_trips() {
        let p = Prefix::new(9, Nonce([7; 16]));
        assert_eq!((p.version(), p.nonce()), (9, Nonce([7; 16])));
        assert_eq!(Prefix::of(&[0; 23]), None);
    }
}
