//! Reading all of a directory in order, and giving it all.

use super::{EmbeddedStore, silent};
use crate::model::ids::{Partition, RunId};
use crate::model::payload::Field;
use crate::model::time::{LeaseTime, Timestamp};
use crate::store::kv::{moves, workflow};
use crate::store::moves::{FileId, Moves};
use crate::store::{Result, StoredWorkflow};
use async_trait::async_trait;

#[async_trait]
impl Moves for EmbeddedStore {
    async fn oldest(
        &self,
        partition: Partition,
        after: Option<(Timestamp, RunId)>,
        max: u32,
    ) -> Result<Vec<(Timestamp, RunId)>> {
        self.read(move |tx, shape| moves::oldest(tx, shape, partition, after.as_ref(), max)).await
    }

    async fn homes(&self, partition: Partition) -> Result<Vec<RunId>> {
        self.read(move |tx, shape| moves::homes(tx, shape, partition)).await
    }

    async fn payload_fields(&self, partition: Partition, run: &RunId) -> Result<Vec<Field>> {
        let run = run.clone();
        self.read(move |tx, shape| moves::payload_fields(tx, shape, partition, &run)).await
    }

    async fn put_version(&self, stored: &StoredWorkflow) -> Result<()> {
        let stored = stored.clone();
        self.write(move |tx, _, _| Ok(silent(workflow::put_version(tx, &stored)?))).await
    }

    async fn begin_restore(&self, file: &FileId) -> Result<bool> {
        let file = *file;
        self.write(move |tx, shape, _| Ok(silent(moves::begin_restore(tx, shape, &file)?))).await
    }

    async fn end_restore(&self, file: &FileId, lease: LeaseTime) -> Result<()> {
        let file = *file;
        self.write(move |tx, shape, now| Ok(silent(moves::end_restore(tx, shape, &file, lease, now)?)))
            .await?;
        // Nobody waits for it here: it is on the disk when it is told.
        let disk = self.disk.clone();
        tokio::task::spawn_blocking(move || disk.sync()).await.map_err(|_| super::closed(true))?
    }
}
