//! A file to a store: an empty one, or one whose restore from the same file was interrupted.
//!
//! Records are written through `Store::commit`, each over none, with what stands beside them made anew
//! (`engine::standing`); byte for byte, but that whatever waits for another record asks it at once. So a restore that is
//! begun again finds what it wrote before and writes it once more.
//!
//! What a record says of the world it was in ends by the rules of leases: its sessions are not there, and the lease clocks
//! go on from the latest that was copied, so no lease seems to be of the future.

use super::file::{End, Frame, Reader, Summary};
use super::{MoveError, Result};
use crate::app::plans::Plans;
use crate::app::records;
use crate::engine::{homes, standing};
use crate::model::commit::{Expect, RunWrite, WakeOp, Write};
use crate::model::error::ErrorCode;
use crate::model::ids::{Nonce, Partition, Prefix, RunId};
use crate::model::payload::Field;
use crate::model::record::{self, is_page};
use crate::model::time::Timestamp;
use crate::store::{Batch, Committed, Moves, Store, StoreError, Verdict};
use bytes::Bytes;
use std::io::Read;
use std::sync::Arc;
use std::time::Duration;

/// Decisions in one batch at most.
const BATCH: usize = 128;
/// Bytes in one batch, about.
const BATCH_BYTES: usize = 512 << 10;
/// Payloads of one record that wait to be written, in bytes.
const PIECE_BYTES: usize = 2 << 20;
/// Times that a batch whose fate is not known is sent again.
const TRIES: u32 = 20;
/// Between two of them.
const PAUSE: Duration = Duration::from_millis(250);

/// What was restored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Restored {
    /// Records of runs and of what else is kept.
    pub records: u64,
    /// Versions of workflows.
    pub workflows: u64,
    /// Records that stood there already, from a restore that was interrupted.
    pub known: u64,
    /// Runs that wait for workers, and whose document is not in the file, with the reason: they stand still.
    pub still: Vec<(RunId, String)>,
}

/// Gives `store`, which was opened to be restored, all of a file. `open` reads the file from its start; `summary` is what
/// [`super::inspect`] said of it.
///
/// # Errors
/// The store is of no use to a server then, until the restore has been done again.
pub async fn restore<R: Read>(
    store: Arc<dyn Moves>,
    summary: &Summary,
    open: impl Fn() -> std::io::Result<R>,
) -> Result<Restored> {
    if !store.begin_restore(&summary.id).await? {
        return Err(MoveError::Refused(
            "the restore of another file into this store has not ended: go on with that one, or empty the store".into(),
        ));
    }
    let workflows = workflows(&*store, Reader::begin(open()?)?.0).await?;
    let mut paste = Paste {
        plans: Plans::new(Arc::clone(&store) as Arc<dyn Store>, false),
        partitions: store.layout().partitions,
        store: &*store,
        // Due at once, whatever the store's clock says: it is looked at then, and armed by that.
        now: summary.begun,
        lane: nonce()?,
        sequence: 0,
        batch: Vec::new(),
        bytes: 0,
        current: None,
        done: Restored { records: 0, workflows, known: 0, still: Vec::new() },
    };
    let (mut reader, _) = Reader::begin(open()?)?;
    let End { lease, .. } = loop {
        match reader.next()? {
            Frame::Record { run, record } => paste.begin(run, record).await?,
            Frame::Field { field, value } => paste.field(field, value).await?,
            Frame::Workflow(_) => {}
            Frame::End(end) => break end,
        }
    };
    paste.finish().await?;
    paste.flush().await?;
    let done = paste.done;
    store.end_restore(&summary.id, lease).await?;
    Ok(done)
}

async fn workflows<R: Read>(store: &dyn Moves, mut reader: Reader<R>) -> Result<u64> {
    let mut count = 0;
    loop {
        match reader.next()? {
            Frame::Workflow(stored) => {
                store.put_version(&stored).await?;
                count += 1;
            }
            Frame::Record { .. } | Frame::Field { .. } => {}
            Frame::End(_) => return Ok(count),
        }
    }
}

fn nonce() -> Result<Nonce> {
    let mut random = [0; 16];
    getrandom::fill(&mut random)
        .map_err(|e| MoveError::Refused(format!("no randomness from the system: {e}")))?;
    Ok(Nonce(random))
}

/// A record whose payloads are still coming.
struct Current {
    run: RunId,
    record: Bytes,
    /// Pages, in case the run is wide: its queues are read from them.
    pages: Vec<(Field, Bytes)>,
    /// Not written yet.
    payloads: Vec<(Field, Bytes)>,
    bytes: usize,
    /// What it stands as, once a part of it was written.
    expect: Expect,
}

struct Paste<'s> {
    plans: Plans,
    partitions: u16,
    store: &'s dyn Moves,
    now: Timestamp,
    lane: Nonce,
    sequence: u64,
    batch: Vec<RunWrite>,
    bytes: usize,
    current: Option<Current>,
    done: Restored,
}

impl Paste<'_> {
    async fn begin(&mut self, run: RunId, record: Bytes) -> Result<()> {
        self.finish().await?;
        self.current = Some(Current {
            bytes: record.len(),
            run,
            record,
            pages: Vec::new(),
            payloads: Vec::new(),
            expect: Expect::Absent,
        });
        Ok(())
    }

    async fn field(&mut self, field: Field, value: Bytes) -> Result<()> {
        let Some(current) = &mut self.current else { return Ok(()) };
        if is_page(&field) {
            current.pages.push((field.clone(), value.clone()));
        }
        current.bytes += field.0.len() + value.len();
        current.payloads.push((field, value));
        if current.bytes < PIECE_BYTES {
            return Ok(());
        }
        let expect = Prefix::of(&current.record).map_or(Expect::Absent, Expect::Prefix);
        // Too much for one write: the record stands with a part of it, until the rest brings what stands beside it.
        let write = RunWrite {
            payloads: std::mem::take(&mut current.payloads),
            expect: std::mem::replace(&mut current.expect, expect),
            ..standing::bare(&current.run, current.record.clone())
        };
        current.bytes = current.record.len();
        self.flush().await?;
        self.put(vec![write]).await
    }

    /// All of the record that was begun is there.
    async fn finish(&mut self) -> Result<()> {
        let Some(Current { run, record, pages, payloads, bytes, expect }) = self.current.take() else {
            return Ok(());
        };
        let (standing, changed) = self.standing(&run, &record, &pages).await?;
        let payloads = payloads.into_iter().filter(|(field, _)| changed.iter().all(|(f, _)| f != field));
        let payloads = payloads.chain(changed.iter().cloned()).collect();
        self.done.records += 1;
        // The same id once more is another run, begun while the backup went on.
        if self.batch.iter().any(|w| w.run == run) {
            self.flush().await?;
        }
        self.bytes += bytes;
        self.batch.push(RunWrite { expect, payloads, ..standing });
        if self.batch.len() >= BATCH || self.bytes >= BATCH_BYTES { self.flush().await } else { Ok(()) }
    }

    /// The write of a record, which asks anew for what others may have told it, and the pages that this changes.
    async fn standing(
        &mut self,
        run: &RunId,
        record: &Bytes,
        pages: &[(Field, Bytes)],
    ) -> Result<(RunWrite, Vec<(Field, Bytes)>)> {
        let bad = |what: String| MoveError::Record { run: run.to_string(), what };
        let prefix = Prefix::of(record).ok_or_else(|| bad("it is shorter than its prefix".into()))?;
        if run.is_reserved() {
            let state = record.get(Prefix::LEN..).unwrap_or_default();
            let mut home = record::homes::decode(state).map_err(|e| bad(e.to_string()))?;
            let mut record = record.clone();
            if homes::ask_anew(&mut home, self.now) {
                let mut bytes = prefix.0.to_vec();
                record::homes::encode_into(&home, &mut bytes);
                record = bytes.into();
            }
            return Ok((standing::of_home(run, &home, record, self.now), Vec::new()));
        }
        let (_, head) = records::head(record).map_err(|e| bad(e.to_string()))?;
        let page = |field: &Field| pages.iter().find(|(f, _)| f == field).map(|(_, value)| value.clone());
        let values: Vec<_> = head.fields().iter().map(page).collect();
        let state = head.complete(&values).map_err(|e| bad(e.to_string()))?;
        let mut state = state.ok_or_else(|| bad("its pages are not of its record".into()))?;
        if state.id != *run {
            return Err(bad(format!("its record is that of run {}", state.id)));
        }
        let plan = if standing::needs_plan(&state) {
            match self.plans.of(&state).await {
                Ok(plan) => Some(plan),
                Err(e) if e.code == ErrorCode::WorkflowNotFound => {
                    self.done.still.push((run.clone(), e.message));
                    None
                }
                Err(e) => return Err(bad(format!("it waits for workers, and {}", e.message))),
            }
        } else {
            None
        };
        let (base, mut record, mut changed) = (state.clone(), record.clone(), Vec::new());
        if standing::ask_anew(&mut state, self.now) {
            changed = record::lay_out(Some(&base), &mut state, prefix.version());
            let mut bytes = prefix.0.to_vec();
            record::encode_into(&state, &mut bytes);
            record = bytes.into();
        }
        Ok((standing::of_run(plan.as_deref(), &state, record), changed))
    }

    async fn flush(&mut self) -> Result<()> {
        self.bytes = 0;
        let writes = std::mem::take(&mut self.batch);
        self.put(writes).await
    }

    /// Writes records over none; where one stands, over that.
    async fn put(&mut self, writes: Vec<RunWrite>) -> Result<()> {
        if writes.is_empty() {
            return Ok(());
        }
        let committed = self.commit(writes.clone()).await?;
        for (mut write, verdict) in writes.into_iter().zip(committed.verdicts) {
            if verdict == Verdict::Applied {
                continue;
            }
            self.done.known += 1;
            let stands =
                self.store.load(&[(self.partition(&write.run), write.run.clone())]).await?.pop().flatten();
            let stands = stands.as_deref().and_then(Prefix::of);
            let own = if let Write::Put(record) = &write.write { Prefix::of(record) } else { None };
            if let Some(other) = stands.filter(|s| Some(*s) != own) {
                // Another run of this id, which had ended and was deleted while the backup went on.
                let delete = RunWrite {
                    expect: Expect::Prefix(other),
                    write: Write::Delete,
                    payloads: Vec::new(),
                    queue: Vec::new(),
                    wake: WakeOp::Remove,
                    index: None,
                    retain_until: Some(None),
                    ..write.clone()
                };
                self.commit(vec![delete]).await?;
            } else {
                write.expect = stands.map_or(Expect::Absent, Expect::Prefix);
            }
            let run = write.run.clone();
            if self.commit(vec![write]).await?.verdicts != [Verdict::Applied] {
                return Err(MoveError::Refused(format!(
                    "run {run} was written by somebody else: nobody may work on the store while it is restored"
                )));
            }
        }
        Ok(())
    }

    async fn commit(&mut self, writes: Vec<RunWrite>) -> Result<Committed> {
        self.sequence += 1;
        let writes = writes.into_iter().map(|w| (self.partition(&w.run), w)).collect();
        let batch = Batch { lane: self.lane, sequence: self.sequence, writes };
        let mut tries = 0;
        loop {
            match self.store.commit(&batch).await {
                Ok(committed) => return Ok(committed),
                Err(error @ StoreError::Unavailable { .. }) if tries < TRIES => {
                    tracing::warn!(%error, "the store did not answer; sending it again");
                    tries += 1;
                    tokio::time::sleep(PAUSE).await;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn partition(&self, run: &RunId) -> Partition {
        Partition::of(run.as_str(), self.partitions)
    }
}
