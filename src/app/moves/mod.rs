//! Backup and restore: all of a store to a file, and back into any store. The file holds records, their payloads and
//! workflow documents; what stands beside them (queues, wake-ups, indexes, retention) is made anew from the records.
//! Source: docs/adr/0014-backups.md; for users: docs/guide/backup.md.
//!
//! ```text
//! file.rs      frames, checksums, what a file may hold        backup.rs    store → file
//!                                                             restore.rs   file → store
//! ```
//!
//! Invariants
//! - Memory is bounded by the largest record and a few payloads, however large the store.
//! - A file is checked from its first byte to its last before anything is written.
//! - No server works on a store whose restore has not ended.
//!
//! To add something that is kept in no record: a kind of frame in `file.rs`, in both directions.

mod backup;
mod file;
mod restore;

pub use backup::{Backup, backup};
pub use file::{Summary, inspect};
pub use restore::{Restored, restore};

use crate::app::AppError;
use crate::store::StoreError;

/// Why a backup or a restore ended early.
#[derive(Debug, thiserror::Error)]
pub enum MoveError {
    /// The file could not be read or written.
    #[error("the file: {0}")]
    Io(#[from] std::io::Error),
    /// The file is not what it should be; where, in bytes from its start.
    #[error("the file cannot be used: at byte {at}: {what}")]
    File {
        /// Where.
        at: u64,
        /// What is wrong, and what to do.
        what: String,
    },
    /// The store failed.
    #[error("{0}")]
    Store(#[from] StoreError),
    /// A record cannot be moved.
    #[error("run {run}: {what}")]
    Record {
        /// Which.
        run: String,
        /// Why, and what to do.
        what: String,
    },
    /// The store cannot be given this file.
    #[error("{0}")]
    Refused(String),
}

impl From<AppError> for MoveError {
    fn from(error: AppError) -> Self {
        Self::Refused(error.message)
    }
}

type Result<T> = std::result::Result<T, MoveError>;
