//! JSON values of users: bytes kept as they came, parsed only where an expression needs them.
//!
//! Small ones stand inside the run's record; larger ones are written once as a field of the run's
//! payload hash. A task input that is a plain path is stored as a reference to what it points at.

use bytes::Bytes;
use std::fmt;

/// Values up to this size stay inside the record.
pub const INLINE_MAX: usize = 64;

/// The largest input, output or signal, in bytes.
pub const PAYLOAD_MAX: usize = 1 << 20;

/// Names one immutable field of a run's payload hash. Written `i`, `o`, `e`, `o<task>`, `a<task>.<attempt>` …
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Field(pub Bytes);

impl Field {
    /// The field of this name.
    pub fn new(name: &str) -> Self {
        Self(Bytes::copy_from_slice(name.as_bytes()))
    }
}

impl fmt::Debug for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", String::from_utf8_lossy(&self.0))
    }
}

/// Where a value stands.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Payload {
    /// No value: JSON null.
    #[default]
    Null,
    /// The JSON text itself, at most [`INLINE_MAX`] bytes.
    Inline(Bytes),
    /// The JSON text is the field's value.
    Stored {
        /// Which field.
        field: Field,
        /// Bytes of the JSON text.
        size: u32,
    },
    /// The value that a plain path points at inside another payload, resolved when read.
    Path {
        /// The payload the path starts in.
        base: Box<Payload>,
        /// Keys (`"sku"`) and indexes (`"0"`) to walk, in order.
        steps: Vec<String>,
    },
}
