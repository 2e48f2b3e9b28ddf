//! A store to a file. It may be worked on meanwhile.
//!
//! Each record is read in one piece, and each is of another moment, so what one record has told another must not be
//! lost between them. Whoever tells is read before who is told: then a message either stands in the sender's outbox still,
//! and is delivered once more, or the target's copy has it. So the order is
//!
//! ```text
//! schedules    which start runs
//! runs         oldest first, over all partitions: a parent before its children, to the end, new ones included
//! other homes  which runs ask for slots, and schedules to be listed
//! workflows    last, so that there is a document for every run
//! ```
//!
//! What goes the other way (the end of a child, a slot that was granted) is asked for by who waits for it, as after a
//! store lost its tail.

use super::file::{End, Frame, Head, Writer};
use super::{MoveError, Result};
use crate::app::records;
use crate::model::home::HomeKind;
use crate::model::ids::{Partition, RunId, WorkflowName};
use crate::model::payload::Field;
use crate::model::record::{self, is_page};
use crate::model::time::{LeaseTime, Span, Timestamp};
use crate::store::moves::{FileId, Moves};
use bytes::Bytes;
use futures::future::try_join_all;
use std::collections::{BTreeMap, VecDeque};
use std::io::Write;

/// Runs read at once.
const RUNS: usize = 128;
/// Entries of an index read at once.
const INDEX: u32 = 512;
/// Payload fields read at once: each is 1 MiB at most.
const FIELDS: usize = 16;
/// Workflows listed at once.
const WORKFLOWS: u32 = 100;
/// Times that a record is read again because it changes.
const TRIES: u32 = 1_000;
/// Runs created while the backup goes on are followed for as long as it took so far, and so long at least.
const FOLLOWED: Span = Span::secs(10);

/// What was backed up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Backup {
    /// Records of runs and of what else is kept.
    pub records: u64,
    /// Versions of workflows.
    pub workflows: u64,
    /// Length of the file.
    pub bytes: u64,
    /// Runs were started faster than they could be read: the newest ones are missing.
    pub cut_short: bool,
    /// Records that this version cannot read, with the reason; left out.
    pub left_out: Vec<(RunId, String)>,
}

/// Writes all of a store into `out`.
///
/// # Errors
/// A record that cannot be read, unless `leave_out`; a store or a file that fails. What was written is of no use then.
pub async fn backup<W: Write>(store: &dyn Moves, out: W, id: FileId, leave_out: bool) -> Result<(W, Backup)> {
    let layout = store.layout();
    let partitions: Vec<_> = (0..layout.partitions).map(Partition).collect();
    let (begun, _) = clocks(store, &partitions).await?;
    let head = Head { id, begun, layout: layout.version, partitions: layout.partitions };
    let mut copy = Copy {
        store,
        partitions,
        out: Writer::begin(out, &head)?,
        end: End::default(),
        left_out: Vec::new(),
        leave_out,
    };
    copy.homes(true).await?;
    let cut_short = copy.runs(begun).await?;
    copy.homes(false).await?;
    copy.workflows().await?;
    // Read last: no lease that was copied is later.
    copy.end.lease = clocks(store, &copy.partitions).await?.1;
    copy.out.write(&Frame::End(copy.end))?;
    let bytes = copy.out.bytes;
    let Copy { out, end: End { records, workflows, .. }, left_out, .. } = copy;
    Ok((out.done()?, Backup { records, workflows, bytes, cut_short, left_out }))
}

/// The store's clock, and the latest of the lease clocks.
async fn clocks(store: &dyn Moves, partitions: &[Partition]) -> Result<(Timestamp, LeaseTime)> {
    let ticked = store.tick(partitions, 0).await?;
    let now = ticked.iter().map(|t| t.now).max().unwrap_or_default();
    Ok((now, ticked.iter().map(|t| t.lease_now).max().unwrap_or_default()))
}

struct Copy<'s, W> {
    store: &'s dyn Moves,
    partitions: Vec<Partition>,
    out: Writer<W>,
    end: End,
    left_out: Vec<(RunId, String)>,
    leave_out: bool,
}

/// A record and the fields that must be of the same moment.
struct Piece {
    record: Bytes,
    pages: Vec<(Field, Bytes)>,
}

impl<W: Write> Copy<'_, W> {
    /// Home records: schedules, or all but them.
    async fn homes(&mut self, schedules: bool) -> Result<()> {
        let wanted = |home: &RunId| (home.home_kind() == Some(HomeKind::Schedule)) == schedules;
        for partition in self.partitions.clone() {
            let homes = self.store.homes(partition).await?;
            let wanted: Vec<_> = homes.into_iter().filter(wanted).map(|h| (partition, h)).collect();
            for some in wanted.chunks(RUNS) {
                self.records(some).await?;
            }
        }
        Ok(())
    }

    /// All runs, oldest first. True: there are newer ones.
    async fn runs(&mut self, begun: Timestamp) -> Result<bool> {
        let mut merged = Merged::new(self.partitions.clone());
        let mut until = None;
        loop {
            let page = merged.next(self.store, RUNS).await?;
            let Some((created, _, _)) = page.last() else { return Ok(false) };
            if *created > begun && until.is_none() {
                let (now, _) = clocks(self.store, &self.partitions[..1]).await?;
                until = Some(now.plus(Span(now.since(begun).0.max(FOLLOWED.0))));
            }
            if until.is_some_and(|until| *created > until) {
                return Ok(true);
            }
            let runs: Vec<_> = page.into_iter().map(|(_, partition, run)| (partition, run)).collect();
            self.records(&runs).await?;
        }
    }

    async fn records(&mut self, runs: &[(Partition, RunId)]) -> Result<()> {
        let records = self.store.load(runs).await?;
        for ((partition, run), record) in runs.iter().zip(records) {
            // Gone since it was listed.
            let Some(record) = record else { continue };
            match self.piece(*partition, run, record).await {
                Ok(Some(piece)) => self.write(*partition, run, piece).await?,
                Ok(None) => {}
                Err(MoveError::Record { what, .. }) if self.leave_out => {
                    self.left_out.push((run.clone(), what));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Makes sure that a record can be read, and reads the pages that belong to it; none if it is gone.
    async fn piece(&self, partition: Partition, run: &RunId, mut record: Bytes) -> Result<Option<Piece>> {
        let bad = |error: String| MoveError::Record {
            run: run.to_string(),
            what: format!("{error}. Use the version that wrote it, or leave it out with --skip-unreadable"),
        };
        for _ in 0..TRIES {
            if run.is_reserved() {
                let state = record.get(crate::model::ids::Prefix::LEN..).unwrap_or_default();
                record::homes::decode(state).map_err(|e| bad(e.to_string()))?;
                return Ok(Some(Piece { record, pages: Vec::new() }));
            }
            let (_, head) = records::head(&record).map_err(|e| bad(e.to_string()))?;
            let fields = head.fields();
            if fields.is_empty() {
                return Ok(Some(Piece { record, pages: Vec::new() }));
            }
            let mut values = Vec::with_capacity(fields.len());
            for some in fields.chunks(RUNS) {
                values.extend(self.store.payloads(partition, run, some).await?);
            }
            if head.complete(&values).map_err(|e| bad(e.to_string()))?.is_some() {
                let pages = fields.into_iter().zip(values.into_iter().flatten()).collect();
                return Ok(Some(Piece { record, pages }));
            }
            // Written between the two reads.
            match self.store.load(&[(partition, run.clone())]).await?.pop().flatten() {
                Some(again) => record = again,
                None => return Ok(None),
            }
        }
        Err(MoveError::Refused(format!("run {run} changes faster than it can be read: try again")))
    }

    async fn write(&mut self, partition: Partition, run: &RunId, piece: Piece) -> Result<()> {
        self.out.write(&Frame::Record { run: run.clone(), record: piece.record })?;
        self.end.records += 1;
        for (field, value) in piece.pages {
            self.field(field, value)?;
        }
        // Those of later commits come along: they are written once, or again with what is done again.
        let names = self.store.payload_fields(partition, run).await?;
        let names: Vec<_> = names.into_iter().filter(|f| !is_page(f)).collect();
        for some in names.chunks(FIELDS) {
            let values = self.store.payloads(partition, run, some).await?;
            for (field, value) in some.iter().zip(values) {
                if let Some(value) = value {
                    self.field(field.clone(), value)?;
                }
            }
        }
        Ok(())
    }

    fn field(&mut self, field: Field, value: Bytes) -> Result<()> {
        self.end.fields += 1;
        self.out.write(&Frame::Field { field, value })
    }

    /// All versions of all workflows. One that is registered again goes to the front of the list, where it is missed:
    /// so it is read until nothing new is seen.
    async fn workflows(&mut self) -> Result<()> {
        let mut written = BTreeMap::<WorkflowName, u32>::new();
        loop {
            let (mut before, mut new) = (None, false);
            loop {
                let page = self.store.workflows(before.take(), WORKFLOWS).await?;
                let Some(last) = page.last() else { break };
                before = Some((last.created_at, last.name.clone()));
                for listed in page {
                    let have = written.insert(listed.name.clone(), listed.version).unwrap_or(0);
                    for version in have + 1..=listed.version {
                        if let Some(stored) = self.store.workflow(&listed.name, Some(version)).await? {
                            self.out.write(&Frame::Workflow(stored))?;
                            self.end.workflows += 1;
                            new = true;
                        }
                    }
                }
            }
            if !new {
                return Ok(());
            }
        }
    }
}

/// The indexes of all partitions as one, oldest first.
struct Merged {
    partitions: Vec<Indexed>,
}

struct Indexed {
    partition: Partition,
    read: VecDeque<(Timestamp, RunId)>,
    /// The last one that was read.
    after: Option<(Timestamp, RunId)>,
}

impl Merged {
    fn new(partitions: Vec<Partition>) -> Self {
        let begin = |partition| Indexed { partition, read: VecDeque::new(), after: None };
        Self { partitions: partitions.into_iter().map(begin).collect() }
    }

    /// The next `max` runs or a few less; none: there are no more now.
    async fn next(&mut self, store: &dyn Moves, max: usize) -> Result<Vec<(Timestamp, Partition, RunId)>> {
        let dry: Vec<_> = self.partitions.iter_mut().filter(|p| p.read.is_empty()).collect();
        let asked: Vec<_> = dry.iter().map(|p| store.oldest(p.partition, p.after.clone(), INDEX)).collect();
        for (dry, read) in dry.into_iter().zip(try_join_all(asked).await?) {
            dry.after = read.last().cloned().or(dry.after.take());
            dry.read = read.into();
        }
        let mut page = Vec::with_capacity(max);
        while page.len() < max {
            let first = self.partitions.iter_mut().filter(|p| !p.read.is_empty());
            let Some(first) = first.min_by(|a, b| a.read.front().cmp(&b.read.front())) else { break };
            let Some((created, run)) = first.read.pop_front() else { break };
            page.push((created, first.partition, run));
            // What comes next in it is not known.
            if first.read.is_empty() {
                break;
            }
        }
        Ok(page)
    }
}
