//! The one error of all use cases.

use crate::model::error::{ErrorCode, Fault};
use crate::model::time::Span;

/// Why a use case did not do what was asked. Doors map it by the table of [`ErrorCode`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}: {message}", code.as_str())]
pub struct AppError {
    /// The stable code.
    pub code: ErrorCode,
    /// What, where and how to mend it, for this case.
    pub message: String,
    /// Every fault, where there can be many.
    pub faults: Vec<Fault>,
    /// When it is worth trying again.
    pub retry_after: Option<Span>,
}

impl AppError {
    /// An error with a message.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), faults: Vec::new(), retry_after: None }
    }

    /// An error that lists faults.
    pub fn with_faults(code: ErrorCode, message: impl Into<String>, faults: Vec<Fault>) -> Self {
        Self { code, message: message.into(), faults, retry_after: None }
    }
}
