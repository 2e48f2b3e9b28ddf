//! What moving a store asks of it besides the port: to read all of it in an order that keeps a copy sound, and to be
//! given all of it before anybody works on it. Source: docs/adr/0014-backups.md.
//!
//! Invariants
//! - A store that is being restored has a layout version no server works on ([`RESTORING`]), from before its first
//!   record until after its last.
//! - Everything here may be repeated.

use super::{LAYOUT, Result, Store, StoredWorkflow};
use crate::model::ids::{Partition, RunId};
use crate::model::payload::Field;
use crate::model::time::{LeaseTime, Timestamp};
use async_trait::async_trait;

/// Set in the layout version of a store while it is being restored: to any server it is a layout that it does not know.
pub const RESTORING: u32 = 1 << 31;

/// What a store is opened for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Purpose {
    /// To work on it. An empty one is initialised.
    #[default]
    Serve,
    /// To read it. An empty one is refused.
    Read,
    /// To be given what a file holds. Only an empty one, or one whose restore has not ended.
    Restore,
}

impl Purpose {
    /// The layout version a store must have, or is given.
    pub(crate) fn version(self) -> u32 {
        match self {
            Self::Serve | Self::Read => LAYOUT,
            Self::Restore => LAYOUT | RESTORING,
        }
    }
}

/// Names a backup file.
pub type FileId = [u8; 16];

/// See the module.
#[async_trait]
pub trait Moves: Store {
    /// Up to `max` runs of a partition created after (`created`, `run`), oldest first. None: from the oldest.
    async fn oldest(
        &self,
        partition: Partition,
        after: Option<(Timestamp, RunId)>,
        max: u32,
    ) -> Result<Vec<(Timestamp, RunId)>>;

    /// The ids of all home records of a partition, in any order. One that comes or goes meanwhile may be among them.
    async fn homes(&self, partition: Partition) -> Result<Vec<RunId>>;

    /// The names of all payload fields of a record, in any order.
    async fn payload_fields(&self, partition: Partition, run: &RunId) -> Result<Vec<Field>>;

    /// Stores this version of a workflow as it is. The newest version is the highest that was put.
    async fn put_version(&self, stored: &StoredWorkflow) -> Result<()>;

    /// Says which file a store opened for [`Purpose::Restore`] is given. False: it is being given another one.
    async fn begin_restore(&self, file: &FileId) -> Result<bool>;

    /// Everything was given: sets the lease clocks of all partitions, then lets servers work on the store. This value
    /// must not be used any more.
    ///
    /// # Errors
    /// Also if somebody has worked on the store meanwhile.
    async fn end_restore(&self, file: &FileId, lease: LeaseTime) -> Result<()>;
}
