//! Wide runs: what is many in them stands in pages beside the record, so that a commit writes what it changed and no
//! more. A record of at most [`WIDE`] nodes is one piece, as ever.
//!
//! ```text
//! p0 p1 …   nodes 0–63, 64–127, …     version u32 ‖ count ‖ task*       written anew when one of them changes
//! l0 l1 …   log entries 0–127, …      log                               written once
//! record    all else; the number of nodes and the version of each page; the log behind the last whole segment
//! ```
//!
//! Pages lie among the payloads of the run, and are guarded by the compare of the record alone: one decision writes both.
//!
//! Invariants
//! - A page says by which version of the record it was written, and the record says which version of each page is its
//!   own. Whoever reads both one after the other sees whether they belong together, and reads again if not.
//! - A run that has become wide stays so.

use super::super::payload::Field;
use super::super::run::{RunState, TaskState};
use super::super::shared::{PAGE, SharedList};
use super::wire::{Reader, Writer, bad, put_u32, put_u64};
use super::{Result, field, log, put_task, scopes, task};
use bytes::Bytes;
use std::sync::Arc;

/// A run of more nodes than this is wide.
pub(super) const WIDE: usize = 128;
/// Log entries in a segment.
pub const SEGMENT: usize = 128;

/// Where the nodes and the log of a wide run stand. Of any other run: empty.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Pages {
    /// For each page of nodes, the version of the record that wrote it last.
    pub versions: Vec<u32>,
    /// Segments of the log that stand beside the record.
    pub segments: u32,
}

fn page_field(n: usize) -> Field {
    Field::new(&format!("p{n}"))
}

fn segment_field(n: usize) -> Field {
    Field::new(&format!("l{n}"))
}

/// Whether a field is a page or a segment, and no value of the run.
pub fn is_page(field: &Field) -> bool {
    matches!(field.0.first(), Some(b'p' | b'l'))
}

/// Lays the nodes and the log of a run out in pages, if it is wide; returns those that have to be written. `base` is
/// what the record holds so far, `version` that of the record that is about to be written.
pub fn lay_out(base: Option<&RunState>, state: &mut RunState, version: u64) -> Vec<(Field, Bytes)> {
    if state.tasks.len() <= WIDE && state.pages.versions.is_empty() {
        return Vec::new();
    }
    let version = version as u32;
    let mut written = Vec::new();
    for (n, nodes) in state.tasks.pages().enumerate() {
        let known = state.pages.versions.get(n).is_some();
        // Pages that both share are not looked into.
        if known && base.and_then(|b| b.tasks.page(n)).is_some_and(|was| same(was, nodes)) {
            continue;
        }
        let mut page = Writer::behind(Vec::with_capacity(24 * nodes.len()));
        page.extend_from_slice(&version.to_be_bytes());
        put_u64(&mut page, nodes.len() as u64);
        for node in nodes {
            put_task(&mut page, node, state.created_at);
        }
        written.push((page_field(n), page.done().into()));
        match state.pages.versions.get_mut(n) {
            Some(known) => *known = version,
            None => state.pages.versions.push(version),
        }
    }
    let whole = state.log.len() / SEGMENT;
    for n in state.pages.segments as usize..whole {
        let mut segment = Vec::with_capacity(6 * SEGMENT);
        log::put(&mut segment, state.log.iter_from(n * SEGMENT).take(SEGMENT), state.created_at);
        written.push((segment_field(n), segment.into()));
    }
    state.pages.segments = whole as u32;
    written
}

/// Whether two pages hold the same, without a look at what they share.
fn same(a: &[Arc<TaskState>], b: &[Arc<TaskState>]) -> bool {
    std::ptr::eq(a, b) || (a.len() == b.len() && a.iter().zip(b).all(|(a, b)| Arc::ptr_eq(a, b) || a == b))
}

/// ```text
/// pages   nodes   segments   count   version u32, of each
/// ```
pub(super) fn put(out: &mut Vec<u8>, state: &RunState) {
    let Pages { versions, segments } = &state.pages;
    if versions.is_empty() {
        return;
    }
    out.push(field::PAGES);
    put_u64(out, state.tasks.len() as u64);
    put_u32(out, *segments);
    put_u64(out, versions.len() as u64);
    for version in versions {
        out.extend_from_slice(&version.to_be_bytes());
    }
}

/// Reads the table of pages, and how many nodes there are.
pub(super) fn read(r: &mut Reader<'_>) -> Result<(Pages, usize)> {
    let nodes = usize::try_from(r.u64()?).map_err(bad)?;
    let segments = r.u32()?;
    let mut versions = Vec::new();
    for _ in 0..r.count()? {
        versions.push(u32::from_be_bytes(r.array()?));
    }
    if nodes.div_ceil(PAGE) != versions.len() || versions.is_empty() {
        return Err(bad(format!("{nodes} nodes do not stand in {} pages", versions.len())));
    }
    Ok((Pages { versions, segments }, nodes))
}

/// The record of a run, without what stands in pages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Head {
    /// The run. If it is wide: without its nodes, and with the end of its log only.
    pub state: RunState,
    pub(super) nodes: usize,
}

impl Head {
    /// The fields that have to be read to complete it; none: it is whole.
    pub fn fields(&self) -> Vec<Field> {
        let Pages { versions, segments } = &self.state.pages;
        let pages = (0..versions.len()).map(page_field);
        pages.chain((0..*segments as usize).map(segment_field)).collect()
    }

    /// The whole run, from the values of [`Self::fields`] in order. None: they are of another version of the record, and
    /// both have to be read again.
    ///
    /// # Errors
    /// A page that cannot be read.
    pub fn complete(self, values: &[Option<Bytes>]) -> Result<Option<RunState>> {
        let Self { mut state, nodes } = self;
        let Pages { versions, segments } = &state.pages;
        if versions.is_empty() {
            return Ok(Some(state));
        }
        let mut tasks: Vec<TaskState> = Vec::with_capacity(nodes.min(values.len() * PAGE));
        for (n, version) in versions.iter().enumerate() {
            let Some(Some(page)) = values.get(n) else { return Ok(None) };
            let mut r = Reader::new(page);
            if u32::from_be_bytes(r.array()?) != *version {
                return Ok(None);
            }
            tasks.extend(r.list(|r| task(r, state.created_at))?);
            r.end()?;
        }
        if tasks.len() != nodes {
            return Err(bad(format!("its pages hold {} nodes of {nodes}", tasks.len())));
        }
        let mut entries = SharedList::default();
        for n in 0..*segments as usize {
            let Some(Some(segment)) = values.get(versions.len() + n) else { return Ok(None) };
            let mut r = Reader::new(segment);
            entries.extend(log::read(&mut r, state.created_at)?);
            r.end()?;
        }
        entries.extend(state.log.iter().copied());
        state.log = entries;
        scopes::place(&mut state.blocks, &mut tasks)?;
        state.tasks = tasks.into();
        Ok(Some(state))
    }
}

#[cfg(test)]
mod tests {
    use super::super::{decode, decode_head, encode_into};
    use super::*;
    use crate::model::event::{EventKind, LogEntry};
    use crate::model::ids::{RunId, WorkflowName};
    use crate::model::run::{BlockKind, RunStatus, TaskPhase};
    use crate::model::time::{Span, Timestamp};
    use std::collections::BTreeMap;

    /// What lies in the store of one run.
    #[derive(Default)]
    struct Store {
        record: Vec<u8>,
        pages: BTreeMap<Field, Bytes>,
        version: u64,
        /// Bytes that were last written.
        written: usize,
    }

    impl Store {
        fn put(&mut self, base: Option<&RunState>, state: &mut RunState) {
            self.version += 1;
            let pages = lay_out(base, state, self.version);
            self.record.clear();
            encode_into(state, &mut self.record);
            self.written = self.record.len() + pages.iter().map(|(_, page)| page.len()).sum::<usize>();
            self.pages.extend(pages);
        }

        fn read(&self, record: &[u8]) -> Result<Option<RunState>> {
            let head = decode_head(record)?;
            let values: Vec<_> = head.fields().iter().map(|f| self.pages.get(f).cloned()).collect();
            head.complete(&values)
        }
    }

    fn run(nodes: u32) -> RunState {
        let at = Timestamp::from_millis(1_800_000_000_000);
        let start = crate::model::command::Start {
            id: RunId::new("wide").unwrap(),
            workflow: WorkflowName::new("w").unwrap(),
            version: 1,
            digest: [1; 16],
            input: None,
            tags: BTreeMap::new(),
            priority: None,
            retention: None,
            start_at: None,
            origin: None,
            not_after: None,
        };
        let mut state = RunState {
            status: RunStatus::Running,
            open_tasks: 1,
            tasks: vec![TaskState::pending(0)].into(),
            ..RunState::begun(&start, at, Span::secs(60))
        };
        state.add_block(Some(0), BlockKind::Items, 0, nodes);
        state
    }

    fn entry(state: &RunState, node: u32) -> LogEntry {
        let time = state.created_at.plus(Span::millis(i64::from(node)));
        LogEntry {
            kind: EventKind::TaskCompleted,
            time,
            task: Some(node),
            attempt: 1,
            delivery: 0,
            worker: None,
            error: None,
        }
    }

    #[test]
    fn a_run_that_is_not_wide_is_one_piece() {
        let mut store = Store::default();
        let mut state = run(WIDE as u32 - 1);
        store.put(None, &mut state);
        assert!(store.pages.is_empty());
        assert_eq!(decode(&store.record), Ok(state));
    }

    #[test]
    fn a_change_of_a_wide_run_writes_one_page_at_any_width() {
        let mut written = Vec::new();
        for width in [1_000, 10_000] {
            let mut store = Store::default();
            let mut state = run(width);
            store.put(None, &mut state);
            assert!(decode(&store.record).is_err(), "who does not know of pages reads nothing");
            for node in 1..=width {
                let base = state.clone();
                let output = crate::model::payload::Payload::Inline(Bytes::from_static(b"1"));
                state.tasks[node as usize].phase = TaskPhase::Completed { output };
                let entry = entry(&state, node);
                state.log.push(entry);
                store.put(Some(&base), &mut state);
                if node == width / 2 {
                    written.push(store.written);
                    assert_eq!(store.read(&store.record), Ok(Some(state.clone())));
                }
                if node > width / 2 {
                    assert!(store.written < 6_000, "{} bytes for one item of {width}", store.written);
                }
            }
            assert_eq!(store.read(&store.record), Ok(Some(state.clone())));
            assert_eq!(state.log.len(), width as usize);
        }
        assert!(written[1] < written[0] + 1_000, "{written:?}: ten times the width costs its table of pages");
    }

    #[test]
    fn pages_of_another_version_are_seen_to_be() {
        let mut store = Store::default();
        let mut state = run(500);
        store.put(None, &mut state);
        let (before, first) = (store.record.clone(), store.pages.clone());
        let base = state.clone();
        state.tasks[300].phase = TaskPhase::Cancelled;
        store.put(Some(&base), &mut state);
        assert_eq!(store.read(&before), Ok(None), "the record of before with the pages of now");
        assert_eq!(store.read(&store.record), Ok(Some(state)));
        store.pages = first;
        assert_eq!(store.read(&store.record), Ok(None), "the record of now with the pages of before");
        store.pages.clear();
        assert_eq!(store.read(&store.record), Ok(None));
    }

    #[test]
    fn a_run_may_grow_wide_and_stays_so() {
        let mut store = Store::default();
        let mut state = run(10);
        store.put(None, &mut state);
        let base = state.clone();
        state.add_block(Some(0), BlockKind::Items, 0, 200);
        store.put(Some(&base), &mut state);
        assert_eq!(store.pages.len(), 4);
        assert_eq!(store.read(&store.record), Ok(Some(state.clone())));
        // What has no nodes at hand still knows where they stand.
        let head = decode_head(&store.record).unwrap().state;
        for node in [0, 5, 11, 200] {
            assert_eq!(head.block_of(node), state.block_of(node));
        }
    }
}
