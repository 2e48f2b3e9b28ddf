//! Runs and events as users read them, from records and plans (those of schedules in `schedules`). Reads the store, never a lane's cache.

use super::AppError;
use super::cursor::List;
use super::error::store_error;
use super::hub::{Kinds, Rendered};
use super::inner::Inner;
use super::view::{
    AttemptView, ErrorView, EventView, Page, RunView, TaskView, ValueAddress, ValueView, WaitingFor,
};
use crate::engine::children::child_of;
use crate::engine::history;
use crate::events::{RunCursor, mark_of, run_tag};
use crate::model::commit::EventNote;
use crate::model::error::ErrorCode;
use crate::model::event::{EventKind, LogEntry};
use crate::model::ids::{Partition, RunId, TaskPath};
use crate::model::json;
use crate::model::outbox::Origin;
use crate::model::payload::{Field, Payload};
use crate::model::plan::Plan;
use crate::model::run::{RunState, RunStatus, Signal, TaskPhase, TaskState, Waiting};
use crate::model::schedule::ScheduleName;
use crate::model::time::Timestamp;
use crate::store::StreamEntry;
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

/// Values that one answer may carry; more stand as references. No answer is over 3 MiB.
const VALUE_BYTES: usize = 2 << 20;
/// What stands around the values of an answer: names, times, errors, references. A page ends where more would.
pub(crate) const AROUND_BYTES: usize = 768 << 10;
/// The largest value that is kept for an event until the tail of the streams comes by.
const FRESH_VALUE: usize = 4 << 10;
/// Tasks in one answer.
const TASKS_PAGE: usize = 500;
/// How long the values of a run are looked for that a commit has just left.
const VALUES_WITHIN: Duration = Duration::from_secs(2);

/// The field a payload's bytes stand in, if they do not stand in the record.
fn field_of(payload: &Payload) -> Option<&Field> {
    match payload {
        Payload::Null | Payload::Inline(_) => None,
        Payload::Stored { field, .. } => Some(field),
        Payload::Path { base, .. } => field_of(base),
    }
}

/// Payload bytes at hand, by field.
pub(super) type AtHand = BTreeMap<Field, Bytes>;

/// The fields that these payloads stand in.
fn fields_of<'a>(payloads: impl Iterator<Item = &'a Payload>) -> BTreeSet<Field> {
    payloads.filter_map(field_of).cloned().collect()
}

async fn fetch(
    inner: &Inner,
    partition: Partition,
    run: &RunId,
    fields: BTreeSet<Field>,
) -> Result<AtHand, AppError> {
    if fields.is_empty() {
        return Ok(AtHand::new());
    }
    let fields: Vec<Field> = fields.into_iter().collect();
    let found = inner.store.payloads(partition, run, &fields).await.map_err(store_error)?;
    Ok(fields.into_iter().zip(found).filter_map(|(f, b)| Some((f, b?))).collect())
}

/// Bytes of the JSON text of a payload; of a part of another one, at most those of the whole.
pub(super) fn size_at_most(payload: &Payload) -> u64 {
    match payload {
        Payload::Null => 4,
        Payload::Inline(bytes) => bytes.len() as u64,
        Payload::Stored { size, .. } => u64::from(*size),
        Payload::Path { base, .. } => size_at_most(base),
    }
}

/// The JSON text of a payload.
pub(super) fn text_of(payload: &Payload, at_hand: &AtHand) -> Bytes {
    let null = Bytes::from_static(b"null");
    match payload {
        Payload::Null => null,
        Payload::Inline(bytes) => bytes.clone(),
        Payload::Stored { field, .. } => at_hand.get(field).cloned().unwrap_or(null),
        Payload::Path { base, steps } => {
            let base = text_of(base, at_hand);
            match json::walk(&base, steps) {
                Ok(Some(part)) => base.slice_ref(part),
                Ok(None) | Err(_) => null,
            }
        }
    }
}

/// The JSON text of a payload of a run.
pub(crate) async fn text(inner: &Inner, run: &RunId, payload: &Payload) -> Result<Bytes, AppError> {
    let fields = fields_of(std::iter::once(payload));
    let at_hand = fetch(inner, inner.partition_of(run), run, fields).await?;
    Ok(text_of(payload, &at_hand))
}

/// As [`text`]; none if the field it stands in is not there (any more).
pub(crate) async fn text_if_there(
    inner: &Inner,
    run: &RunId,
    payload: &Payload,
) -> Result<Option<Bytes>, AppError> {
    let fields = fields_of(std::iter::once(payload));
    let wanted = fields.len();
    let at_hand = fetch(inner, inner.partition_of(run), run, fields).await?;
    Ok((at_hand.len() == wanted).then(|| text_of(payload, &at_hand)))
}

/// Hands out values until an answer is full; then references.
struct Budget<'a> {
    run: &'a RunId,
    left: usize,
    at_hand: AtHand,
    /// What is not at hand could not be read; otherwise it is not there.
    unread: bool,
}

impl Budget<'_> {
    fn value(&mut self, payload: &Payload, address: &ValueAddress) -> ValueView {
        if self.unread && fields_of(std::iter::once(payload)).iter().any(|f| !self.at_hand.contains_key(f)) {
            return ValueView::Ref { url: address.url(self.run), size: size_at_most(payload) };
        }
        let text = text_of(payload, &self.at_hand);
        if text.len() <= self.left {
            self.left -= text.len();
            return ValueView::Json(text);
        }
        ValueView::Ref { url: address.url(self.run), size: text.len() as u64 }
    }
}

fn error_view(state: &RunState, plan: Option<&Plan>, failure: u32) -> Option<ErrorView> {
    let f = state.failures.get(failure as usize)?;
    Some(ErrorView {
        code: f.code.clone(),
        message: f.message.clone(),
        task: f.task.zip(plan).map(|(t, plan)| state.path_of(plan, t)),
        attempt: f.attempt,
    })
}

/// How a run will end, once that is certain and it goes on all the same: compensation, `finally`. While other
/// branches run on after a failure nothing is certain: a `finish` may still end the run completed.
fn ending(state: &RunState) -> Option<RunStatus> {
    state.ending.map(|e| e.status)
}

/// A run without its tasks and values, for lists and acknowledgements. Without its plan, which a store may have lost, its
/// error names no task.
pub(crate) fn head(state: &RunState, plan: Option<&Plan>) -> RunView {
    RunView {
        id: state.id.clone(),
        workflow: state.workflow.clone(),
        version: state.version,
        try_number: state.try_number,
        status: state.status,
        input: ValueView::default(),
        output: ValueView::default(),
        ending: ending(state),
        start_at: state.start_at,
        error: state.error.and_then(|f| error_view(state, plan, f)),
        tags: state.tags.clone(),
        priority: state.priority,
        parent: state.parent().map(|p| (p.run.clone(), p.task.clone())),
        schedule: match &state.origin {
            Some(Origin::Schedule { home, slot }) => ScheduleName::of_home(home).map(|name| (name, *slot)),
            Some(Origin::Parent(_)) | None => None,
        },
        created_at: state.created_at,
        started_at: state.started_at,
        ended_at: state.ended_at,
        tasks: Vec::new(),
        tasks_cursor: None,
    }
}

/// A run with the first page of its tasks.
pub(crate) async fn run(inner: &Inner, state: &RunState) -> Result<RunView, AppError> {
    let plan = inner.plans.of(state).await?;
    let (_, at_hand) = page(inner, state, 0, TASKS_PAGE, &[&state.input, &state.output]).await?;
    Ok(whole(state, &plan, Some(at_hand)))
}

/// A run as a commit has left it, as [`run`] tells it. Values that cannot be read now stand as references: what was
/// asked for was done, and is not told as an error.
pub(crate) async fn committed(inner: &Inner, state: &RunState, plan: &Plan) -> RunView {
    let also = [&state.input, &state.output];
    let values = page(inner, state, 0, TASKS_PAGE, &also);
    let at_hand = match tokio::time::timeout(VALUES_WITHIN, values).await {
        Ok(Ok((_, at_hand))) => Some(at_hand),
        Ok(Err(_)) | Err(_) => None,
    };
    whole(state, plan, at_hand)
}

/// `at_hand`: its values; none if they could not be read.
fn whole(state: &RunState, plan: &Plan, at_hand: Option<AtHand>) -> RunView {
    let mut view = head(state, Some(plan));
    let unread = at_hand.is_none();
    let mut budget =
        Budget { run: &state.id, left: VALUE_BYTES, at_hand: at_hand.unwrap_or_default(), unread };
    view.output = budget.value(&state.output, &ValueAddress::Output);
    view.input = budget.value(&state.input, &ValueAddress::Input);
    let tasks = state.tasks.iter_from(0).take(TASKS_PAGE);
    let page = task_views(state, plan, 0, tasks, &mut budget);
    (view.tasks, view.tasks_cursor) = (page.items, page.next_cursor);
    view
}

/// Up to `limit` tasks of a run from the index `from` on.
pub(crate) async fn tasks(
    inner: &Inner,
    state: &RunState,
    from: usize,
    limit: usize,
) -> Result<Page<TaskView>, AppError> {
    let plan = inner.plans.of(state).await?;
    let (tasks, at_hand) = page(inner, state, from, limit, &[]).await?;
    let mut budget = Budget { run: &state.id, left: VALUE_BYTES, at_hand, unread: false };
    Ok(task_views(state, &plan, from, tasks, &mut budget))
}

/// Some tasks, and the values they and `also` need.
async fn page<'a>(
    inner: &Inner,
    state: &'a RunState,
    from: usize,
    limit: usize,
    also: &[&'a Payload],
) -> Result<(impl ExactSizeIterator<Item = &'a TaskState> + use<'a>, AtHand), AppError> {
    let tasks = state.tasks.iter_from(from).take(limit);
    let of_tasks = tasks.clone().flat_map(|t| {
        let output = match &t.phase {
            TaskPhase::Completed { output } => Some(output),
            _ => None,
        };
        std::iter::once(&t.input).chain(output)
    });
    let wanted = fields_of(also.iter().copied().chain(of_tasks));
    let at_hand = fetch(inner, inner.partition_of(&state.id), &state.id, wanted).await?;
    Ok((tasks, at_hand))
}

fn task_views<'t>(
    state: &RunState,
    plan: &Plan,
    from: usize,
    tasks: impl ExactSizeIterator<Item = &'t TaskState>,
    budget: &mut Budget<'_>,
) -> Page<TaskView> {
    let (mut items, mut next, mut around) = (Vec::with_capacity(tasks.len()), from, 0);
    let current = state.current_blocks();
    for task in tasks {
        // What a later try has begun anew is told from there.
        let number = task.block.checked_sub(1);
        if number.is_some_and(|b| !current.get(b as usize).copied().unwrap_or(false)) {
            next += 1;
            continue;
        }
        let path = state.path_of(plan, next as u32);
        let view = task_view(state, plan, next as u32, path, task, budget);
        around += weight(&view);
        if around > AROUND_BYTES && !items.is_empty() {
            break;
        }
        items.push(view);
        next += 1;
    }
    Page { items, next_cursor: (next < state.tasks.len()).then(|| List::Tasks.cursor(&next.to_string())) }
}

/// About the bytes of an answer that a task takes without its values.
fn weight(view: &TaskView) -> usize {
    // Keys, times, a reference and what escapes may add to a message.
    let part = |e: Option<&ErrorView>| 512 + 2 * e.map_or(0, |e| e.message.len() + e.code.len());
    let attempts: usize = view.attempts.iter().map(|a| part(a.error.as_ref())).sum();
    part(view.error.as_ref()) + attempts
}

/// About the bytes of an answer that a run takes in a list.
pub(crate) fn head_weight(view: &RunView) -> usize {
    let tags: usize = view.tags.iter().map(|(k, v)| 2 * (k.len() + v.len()) + 8).sum();
    768 + tags + 2 * view.error.as_ref().map_or(0, |e| e.message.len() + e.code.len())
}

fn task_view(
    state: &RunState,
    plan: &Plan,
    index: u32,
    path: TaskPath,
    task: &TaskState,
    budget: &mut Budget<'_>,
) -> TaskView {
    let output = match &task.phase {
        TaskPhase::Completed { output } => budget.value(output, &ValueAddress::TaskOutput(path.clone())),
        _ => ValueView::default(),
    };
    let error = match &task.phase {
        TaskPhase::Failed { failure } | TaskPhase::TimedOut { failure } => {
            error_view(state, Some(plan), *failure)
        }
        _ => None,
    };
    let attempts = history::attempts(state, index)
        .into_iter()
        .map(|a| AttemptView {
            number: a.number,
            status: a.status,
            worker: a.worker.and_then(|w| state.workers.get(w as usize).cloned()),
            run: child_of(state, plan, index, a.number),
            input: budget.value(&task.input, &ValueAddress::AttemptInput(path.clone(), a.number)),
            queued_at: Some(a.queued_at),
            started_at: a.started_at,
            ended_at: a.ended_at,
            error: a.error.and_then(|f| error_view(state, Some(plan), f)),
        })
        .collect();
    TaskView {
        task: path,
        task_type: state.type_of(plan, index).cloned(),
        labels: state.labels_of(plan, index).clone(),
        status: task.phase.name(),
        waiting_for: waiting_for(state, plan, index, task),
        output,
        error,
        attempts,
    }
}

fn waiting_for(state: &RunState, plan: &Plan, index: u32, task: &TaskState) -> Option<WaitingFor> {
    let TaskPhase::Waiting(waiting) = &task.phase else { return None };
    match waiting {
        // One that has its slot waits for its run to be resumed.
        Waiting::Permit { .. } => {
            let asked = task.permit.as_ref().filter(|p| !p.granted);
            asked.map(|p| WaitingFor::Concurrency(p.key.clone()))
        }
        Waiting::Rate { key, .. } => Some(WaitingFor::Rate(key.clone())),
        Waiting::Signal { name } => Some(WaitingFor::Signal(name.clone())),
        Waiting::Timer { due } | Waiting::Iterations { due: Some(due), .. } => Some(WaitingFor::Until(*due)),
        Waiting::Child { .. } => child_of(state, plan, index, task.attempt).map(WaitingFor::Child),
        Waiting::Body { .. } | Waiting::Items { .. } | Waiting::Iterations { due: None, .. } => None,
    }
}

/// One value of a run, as JSON text; none if there is no such value.
pub(crate) async fn value(
    inner: &Inner,
    state: &RunState,
    address: &ValueAddress,
) -> Result<Option<Bytes>, AppError> {
    let plan = inner.plans.of(state).await?;
    let task = |path: &TaskPath| state.tasks.get(state.find(&plan, path)? as usize);
    let payload = match address {
        ValueAddress::Input => Some(&state.input),
        ValueAddress::Output => Some(&state.output),
        ValueAddress::TaskOutput(path) => task(path).and_then(|t| match &t.phase {
            TaskPhase::Completed { output } => Some(output),
            _ => None,
        }),
        ValueAddress::AttemptInput(path, n) => task(path).filter(|t| *n <= t.attempt).map(|t| &t.input),
    };
    let Some(payload) = payload else { return Ok(None) };
    let at_hand =
        fetch(inner, inner.partition_of(&state.id), &state.id, fields_of(std::iter::once(payload))).await?;
    Ok(Some(text_of(payload, &at_hand)))
}

/// What an event carries, if it is still known: what is done again takes the place of what was, in the run, and must not
/// be told as that.
fn event_output<'a>(state: &'a RunState, entry: &LogEntry) -> Option<&'a Payload> {
    match entry.kind {
        EventKind::RunCompleted => {
            let last = state.status == RunStatus::Completed && state.ended_at == Some(entry.time);
            last.then_some(&state.output)
        }
        EventKind::SignalReceived => signal_of(state, entry).map(|s| &s.payload),
        EventKind::TaskCompleted => {
            let task = state.tasks.get(entry.task? as usize).filter(|t| t.attempt == entry.attempt)?;
            match &task.phase {
                TaskPhase::Completed { output } => Some(output),
                _ => None,
            }
        }
        _ => None,
    }
}

fn event(state: &RunState, plan: &Plan, entry: &LogEntry, at_hand: &AtHand) -> EventView {
    let of_task = entry.task.is_some();
    let of_error = entry.error.filter(|_| entry.kind != EventKind::SignalReceived);
    EventView {
        cursor: String::new(),
        kind: entry.kind,
        time: entry.time,
        run: Some(state.id.clone()),
        tags: state.tags.clone(),
        deleted: false,
        workflow: Some((state.workflow.clone(), state.version)),
        task: entry.task.map(|t| state.path_of(plan, t)),
        task_type: entry.task.and_then(|t| state.type_of(plan, t).cloned()),
        attempt: (of_task && entry.attempt > 0).then_some(entry.attempt),
        delivery: (entry.delivery > 1).then_some(entry.delivery),
        worker: entry.worker.and_then(|w| state.workers.get(w as usize).cloned()),
        output: event_output(state, entry).map(|p| ValueView::Json(text_of(p, at_hand))),
        error: of_error.and_then(|f| error_view(state, Some(plan), f)),
        signal: signal_of(state, entry).map(|s| s.name.clone()),
        schedule: None,
    }
}

/// The signal that an event tells of.
fn signal_of<'a>(state: &'a RunState, entry: &LogEntry) -> Option<&'a Signal> {
    let number = entry.error.filter(|_| entry.kind == EventKind::SignalReceived)?;
    state.signals.get(number as usize)
}

/// A page of one run's events.
#[derive(Debug)]
pub(crate) struct RunPage {
    pub(crate) tag: u64,
    /// What was told before is not what happened: the store lost it, and there are no events here.
    pub(crate) lost: bool,
    /// Each with the mark of a cursor that stands behind it.
    pub(crate) events: Vec<(EventView, u32)>,
    /// Events behind this page.
    pub(crate) more: usize,
    /// The run has ended.
    pub(crate) ended: bool,
}

/// A run as its followers are told of it, see [`super::records::settled`].
pub(crate) async fn settled(
    inner: &Inner,
    run: &RunId,
    is_told: impl Fn(&RunState) -> bool,
) -> Result<Option<RunState>, AppError> {
    if run.is_reserved() {
        return Ok(None);
    }
    let partition = inner.partition_of(run);
    super::records::settled(&*inner.store, partition, run, is_told).await.map_err(store_error)
}

/// Up to `max` events of a run from a cursor on; none if there is no such run.
pub(crate) async fn run_events(
    inner: &Inner,
    run: &RunId,
    at: &RunCursor,
    max: usize,
) -> Result<Option<RunPage>, AppError> {
    let _reading = inner.hub.reading(inner.partition_of(run)).await;
    let news = |s: &RunState| s.status.is_terminal() || s.log.len() != at.next as usize || !at.fits(&s.log);
    let Some(state) = settled(inner, run, news).await? else { return Ok(None) };
    let plan = inner.plans.of(&state).await?;
    let lost = !at.fits(&state.log);
    let page = || state.log.iter_from(at.next as usize).take(if lost { 0 } else { max });
    let wanted = fields_of(page().filter_map(|e| event_output(&state, e)));
    let at_hand = fetch(inner, inner.partition_of(run), run, wanted).await?;
    let events: Vec<_> = page().map(|e| (event(&state, &plan, e, &at_hand), mark_of(e))).collect();
    Ok(Some(RunPage {
        tag: run_tag(run, state.created_at.0),
        lost,
        more: state.log.iter_from(at.next as usize).len() - events.len(),
        events,
        ended: state.status.is_terminal(),
    }))
}

/// Whether a note speaks of any event of `kinds`.
fn is_wanted(note: &EventNote, kinds: Kinds) -> bool {
    note.kinds.iter().any(|k| kinds & k.bit() != 0)
}

/// The events of `kinds` that a note speaks of, from the run as a commit of this server left it. None if there are none,
/// or what they carry is not among `at_hand` or is much to keep.
pub(crate) fn fresh<'a>(
    state: &RunState,
    plan: &Plan,
    note: &EventNote,
    kinds: Kinds,
    at_hand: impl Fn(&Field) -> Option<&'a Bytes>,
) -> Option<Vec<Option<EventView>>> {
    if !is_wanted(note, kinds) {
        return None;
    }
    let told = told_of(state, note);
    let wanted = |e: &&LogEntry| kinds & e.kind.bit() != 0;
    let fields = fields_of(told.clone().filter(wanted).filter_map(|e| event_output(state, e)));
    let mut values = AtHand::new();
    for field in fields {
        let value = at_hand(&field).filter(|v| v.len() <= FRESH_VALUE)?.clone();
        values.insert(field, value);
    }
    let render = |e| Some(e).filter(wanted).map(|e| event(state, plan, e, &values));
    (told.len() == note.kinds.len()).then(|| told.map(render).collect())
}

/// Entries of the event streams, events of `kinds` rendered. Runs that several entries speak of are read once.
pub(crate) async fn entries(
    inner: &Inner,
    entries: &[StreamEntry],
    kinds: Kinds,
) -> Result<Vec<Rendered>, AppError> {
    let notes = |entry| super::feeds::notes(entry).into_iter().map(|n| Told::to_be_read(n, kinds)).collect();
    tell(inner, entries, entries.iter().map(notes).collect(), kinds).await
}

/// Entries of the event streams with how each note of theirs is told.
async fn tell(
    inner: &Inner,
    entries: &[StreamEntry],
    noted: Vec<Vec<Told>>,
    kinds: Kinds,
) -> Result<Vec<Rendered>, AppError> {
    let mut by_run: HashMap<&RunId, Vec<&EventNote>> = HashMap::new();
    let mut keys: Vec<(Partition, RunId)> = Vec::new();
    for (entry, told) in entries.iter().zip(&noted) {
        for note in told.iter().filter_map(Told::to_read) {
            let told = by_run.entry(&note.run).or_default();
            if told.is_empty() {
                keys.push((entry.partition, note.run.clone()));
            }
            told.push(note);
        }
    }
    let (homes, keys): (Vec<_>, Vec<_>) = keys.into_iter().partition(|(_, run)| run.is_reserved());
    let schedules = super::schedules::told_of(inner, &homes).await?;
    let states = super::records::load(&*inner.store, &keys).await.map_err(store_error)?;
    let mut runs: HashMap<RunId, (RunState, Arc<Plan>, AtHand)> = HashMap::with_capacity(keys.len());
    for ((partition, run), state) in keys.into_iter().zip(states) {
        let Some(state) = state else { continue };
        let plan = match inner.plans.of(&state).await {
            // The store has lost its document. It is told as one that is gone, so that nobody else's events wait for it.
            Err(lost) if lost.code == ErrorCode::WorkflowNotFound => continue,
            plan => plan?,
        };
        let told = by_run.get(&run).into_iter().flatten();
        let wanted = fields_of(told.flat_map(|n| told_of(&state, n)).filter_map(|e| event_output(&state, e)));
        let at_hand = fetch(inner, partition, &run, wanted).await?;
        runs.insert(run, (state, plan, at_hand));
    }
    let render = |entry: &StreamEntry, note: &EventNote, events: &mut Vec<Option<EventView>>| {
        if note.run.is_reserved() {
            let schedule = schedules.get(&note.run).map(|s| &**s);
            events
                .extend(super::schedules::events_of(schedule, note, entry.position.0).into_iter().map(Some));
            return;
        }
        match runs.get(&note.run) {
            Some((state, plan, at_hand))
                if told_of(state, note).map(|e| e.kind).eq(note.kinds.iter().copied()) =>
            {
                events.extend(told_of(state, note).map(|e| Some(event(state, plan, e, at_hand))));
            }
            // Deleted meanwhile, or begun anew under the same id.
            _ => {
                let gone = |kind: &EventKind| Some(deleted(&note.run, *kind, entry.position.0));
                events.extend(note.kinds.iter().map(gone));
            }
        }
    };
    let mut rendered = Vec::with_capacity(entries.len());
    for (entry, told) in entries.iter().zip(noted) {
        let mut events = Vec::new();
        for told in told {
            match told {
                Told::Unwanted(count) => events.extend(std::iter::repeat_with(|| None).take(count)),
                Told::Fresh(fresh) => events.extend(fresh),
                Told::ToRead(note) => render(entry, &note, &mut events),
            }
        }
        rendered.push(Rendered { partition: entry.partition, position: entry.position, kinds, events });
    }
    Ok(rendered)
}

/// What a note of an entry needs to be told.
enum Told {
    /// Nothing: nobody wants any of its so many events.
    Unwanted(usize),
    /// Nothing: this server has just committed them.
    Fresh(Vec<Option<EventView>>),
    /// Its run.
    ToRead(EventNote),
}

impl Told {
    fn to_be_read(note: EventNote, kinds: Kinds) -> Self {
        if is_wanted(&note, kinds) { Self::ToRead(note) } else { Self::Unwanted(note.kinds.len()) }
    }

    fn fresh(inner: &Inner, note: EventNote, kinds: Kinds) -> Self {
        match Self::to_be_read(note, kinds) {
            Self::ToRead(note) => match inner.hub.take_fresh(&note, kinds) {
                Some(events) => Self::Fresh(events),
                None => Self::ToRead(note),
            },
            told => told,
        }
    }

    fn to_read(&self) -> Option<&EventNote> {
        match self {
            Self::ToRead(note) => Some(note),
            Self::Unwanted(_) | Self::Fresh(_) => None,
        }
    }
}

fn told_of<'a>(
    state: &'a RunState,
    note: &EventNote,
) -> impl ExactSizeIterator<Item = &'a LogEntry> + Clone + use<'a> {
    state.log.iter_from(note.first as usize).take(note.kinds.len())
}

fn deleted(run: &RunId, kind: EventKind, ms: u64) -> EventView {
    EventView { run: Some(run.clone()), ..gone(kind, ms) }
}

/// An event of what was deleted meanwhile.
pub(super) fn gone(kind: EventKind, ms: u64) -> EventView {
    EventView {
        cursor: String::new(),
        kind,
        time: Timestamp::from_millis(i64::try_from(ms).unwrap_or(i64::MAX)),
        run: None,
        tags: BTreeMap::new(),
        deleted: true,
        workflow: None,
        task: None,
        task_type: None,
        attempt: None,
        delivery: None,
        worker: None,
        output: None,
        error: None,
        signal: None,
        schedule: None,
    }
}

/// As [`entries`], for the live tail: with what is fresh at hand, and asked until there is an answer, as it must not
/// skip any.
pub(crate) async fn entries_until_done(inner: &Inner, list: &[StreamEntry], kinds: Kinds) -> Vec<Rendered> {
    loop {
        let notes =
            |entry| super::feeds::notes(entry).into_iter().map(|n| Told::fresh(inner, n, kinds)).collect();
        match tell(inner, list, list.iter().map(notes).collect(), kinds).await {
            Ok(rendered) => return rendered,
            Err(error) => {
                inner.hub.complain(&error, "events cannot be rendered");
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        }
    }
}
