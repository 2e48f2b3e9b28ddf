//! Use cases on runs.

use super::cursor::{List, by_time};
use super::error::{no_run, refusal, stopping, store_error, strained, too_slow};
use super::hub::{Until, watch_run};
use super::inner::Inner;
use super::lane::envelope::{Answer, Ask, Envelope, Reply, Taking};
use super::records;
use super::render;
use super::view::{ByHand, Page, RunFilter, RunView, StartAt, StartRequest, Started, TaskView, ValueAddress};
use super::{App, AppError};
use crate::engine::children::child_of;
use crate::model::command::{Action, Command, Outcome, ReportedFailure, Start};
use crate::model::error::{ErrorCode, Fault};
use crate::model::ids::{Partition, RunId, SignalId, SignalName, TaskPath, WorkflowName};
use crate::model::payload::PAYLOAD_MAX;
use crate::model::plan::Plan;
use crate::model::run::RunState;
use crate::model::time::{Span, Timestamp};
use crate::model::{duration, json};
use bytes::Bytes;
use std::collections::BTreeSet;
use std::sync::Arc;
use tokio::sync::oneshot;
use tokio::time::Instant;

/// The longest a call waits for a run to end.
const WAIT_MAX: Span = Span::secs(60);
/// JSON null.
const NULL: Bytes = Bytes::from_static(b"null");
/// Runs that one list call looks at.
const LIST_LOOKS: usize = 2_000;

/// A run as the store has it.
pub(crate) async fn read(inner: &Inner, id: &RunId) -> Result<Option<RunState>, AppError> {
    if id.is_reserved() {
        return Ok(None);
    }
    let key = [(inner.partition_of(id), id.clone())];
    Ok(records::load(&*inner.store, &key).await.map_err(store_error)?.pop().flatten())
}

/// Sends a command to its run and waits for the confirmed answer, with the run as it is then.
pub(crate) async fn ask(inner: &Inner, run: &RunId, command: Command) -> Result<Answer, AppError> {
    let (tx, rx) = oneshot::channel();
    put(inner, run, command, Reply::Once(tx), rx).await
}

/// As [`ask`], for those who want to know how the command was taken and nothing more.
async fn ask_briefly(inner: &Inner, run: &RunId, command: Command) -> Result<Taking, AppError> {
    let (tx, rx) = oneshot::channel();
    put(inner, run, command, Reply::Brief(tx), rx).await
}

async fn put<T>(
    inner: &Inner,
    run: &RunId,
    command: Command,
    reply: Reply,
    answer: oneshot::Receiver<Result<T, AppError>>,
) -> Result<T, AppError> {
    let envelope =
        Envelope { partition: inner.partition_of(run), run: run.clone(), ask: Ask::Command(command), reply };
    let call = async {
        inner.send(envelope).await?;
        answer.await.map_err(|_| stopping())?
    };
    tokio::time::timeout(inner.options.call_timeout.to_std(), call).await.map_err(|_| too_slow())?
}

/// The id and the command of a start that may be made.
async fn prepared(inner: &Inner, request: &StartRequest) -> Result<(RunId, Command), AppError> {
    if inner.draining.is_cancelled() {
        return Err(stopping());
    }
    inner.admit_starts()?;
    let within = inner.options.call_timeout.to_std();
    tokio::time::timeout(within, prepare(inner, request)).await.map_err(|_| strained(within))?
}

async fn prepare(inner: &Inner, request: &StartRequest) -> Result<(RunId, Command), AppError> {
    let input = checked(&request.input, "input")?;
    let version = match request.version {
        Some(version) => version,
        None => inner.plans.newest(&request.workflow).await?,
    };
    let plan = inner.plans.get(&request.workflow, version).await?;
    check_input(&plan, &request.workflow, input.as_deref().unwrap_or(b"null"))?;
    if request.priority.is_some_and(|p| !(-100..=100).contains(&p)) {
        return Err(AppError::new(ErrorCode::InvalidRequest, "priority must be from -100 to 100"));
    }
    let start_at = request.start_at.map_or(Ok(None), |at| begins(at, inner.clock.now()))?;
    if let Some(id) = request.id.as_ref().filter(|id| id.is_reserved()) {
        let message = "ids that begin with \"downbeat.\" are kept for Downbeat's own records".to_owned();
        let fault = Fault { path: "id".to_owned(), line: None, message: message.clone() };
        return Err(AppError::with_faults(
            ErrorCode::InvalidRequest,
            format!("id {id:?}: {message}"),
            vec![fault],
        ));
    }
    let id = match &request.id {
        Some(id) => id.clone(),
        None => RunId::generate(inner.clock.now(), inner.options.entropy.next()),
    };
    // A generated id cannot have been asked for before: its digest is never compared.
    let digest = if request.id.is_some() { start_digest(request, input.as_ref())? } else { [0; 16] };
    let command = Command::Start(Start {
        id: id.clone(),
        workflow: request.workflow.clone(),
        version,
        digest,
        input,
        tags: request.tags.clone(),
        priority: request.priority,
        retention: None,
        start_at,
        origin: None,
        not_after: None,
    });
    Ok((id, command))
}

/// One try of a start. If there is no such version it is worth another: between the question which is newest and the
/// commit, the store may have lost it with its tail, and then another is the newest.
async fn begin(inner: &Inner, request: &StartRequest) -> Result<(RunId, Answer), AppError> {
    let (id, command) = prepared(inner, request).await?;
    let answer = ask(inner, &id, command).await?;
    Ok((id, answer))
}

/// As [`begin`], for those who want to know how it was taken and nothing more.
async fn begin_briefly(inner: &Inner, request: &StartRequest) -> Result<(RunId, Taking), AppError> {
    let (id, command) = prepared(inner, request).await?;
    let taking = ask_briefly(inner, &id, command).await?;
    Ok((id, taking))
}

/// A start, with the run as it is then and whether this call made it.
pub(crate) async fn start(inner: &Inner, request: &StartRequest) -> Result<(RunId, Answer, bool), AppError> {
    let (id, answer) = match begin(inner, request).await {
        Err(error) if error.code == ErrorCode::WorkflowNotFound => begin(inner, request).await?,
        begun => begun?,
    };
    let created = created(request, &id, &answer.outcome)?;
    Ok((id, answer, created))
}

/// Whether a start made its run.
fn created(request: &StartRequest, id: &RunId, taking: &Taking) -> Result<bool, AppError> {
    match taking {
        Ok(Outcome::Exists) if request.reject_existing => {
            let message = format!("run {id:?} exists, and the request said on_conflict: reject");
            Err(AppError::new(ErrorCode::RunIdTaken, message))
        }
        Ok(Outcome::Exists) => Ok(false),
        Ok(_) => Ok(true),
        Err(r) => Err(refusal(r, id)),
    }
}

/// Holds an input, JSON text, against the schema of its workflow.
pub(crate) fn check_input(plan: &Plan, workflow: &WorkflowName, input: &[u8]) -> Result<(), AppError> {
    let faults = plan.input_schema.as_ref().map(|schema| schema.check(input)).unwrap_or_default();
    if faults.is_empty() {
        return Ok(());
    }
    let message = format!("the input does not match the schema of workflow {workflow:?}");
    Err(AppError::with_faults(ErrorCode::InvalidInput, message, faults))
}

/// When a run is to begin, at most [`duration::MAX_MS`] from now; none if that is now or has passed.
fn begins(at: StartAt, now: Timestamp) -> Result<Option<Timestamp>, AppError> {
    let latest = now.plus(Span::millis(duration::MAX_MS));
    let at = match at {
        StartAt::At(time) => time,
        StartAt::After(span) => now.plus(span),
    };
    if at <= latest {
        return Ok(Some(at).filter(|at| *at > now));
    }
    let message = format!("{at} is more than ten years ahead");
    let fault = Fault { path: "start_at".to_owned(), line: None, message: message.clone() };
    Err(AppError::with_faults(ErrorCode::InvalidRequest, format!("start_at: {message}"), vec![fault]))
}

/// JSON text within the limits; empty and `null` are none.
pub(crate) fn checked(text: &Bytes, what: &str) -> Result<Option<Bytes>, AppError> {
    if text.len() > PAYLOAD_MAX {
        return Err(AppError::new(
            ErrorCode::TooLarge,
            format!("{what} has {} bytes; at most {PAYLOAD_MAX} are taken", text.len()),
        ));
    }
    if text.is_empty() || &text[..] == b"null" {
        return Ok(None);
    }
    json::check(text).map_err(|m| {
        let fault = Fault { path: what.to_owned(), line: None, message: m.clone() };
        AppError::with_faults(
            ErrorCode::InvalidRequest,
            format!("{what} is not valid JSON: {m}"),
            vec![fault],
        )
    })?;
    Ok(Some(text.clone()))
}

fn start_digest(request: &StartRequest, input: Option<&Bytes>) -> Result<[u8; 16], AppError> {
    let canonical = json::canonical(input.map_or(&b"null"[..], |b| b))
        .map_err(|m| AppError::new(ErrorCode::InvalidRequest, format!("input: {m}")))?;
    let version = request.version.map(|v| v.to_string()).unwrap_or_default();
    Ok(json::digest(&[request.workflow.as_str().as_bytes(), version.as_bytes(), &canonical]))
}

impl App {
    /// Starts a run; with an id, at most once.
    pub async fn start(&self, request: StartRequest) -> Result<Started, AppError> {
        let (id, answer, created) = start(&self.inner, &request).await?;
        let run = match (request.wait, answer.state) {
            (None, Some(state)) => render::run(&self.inner, &state).await?,
            (wait, _) => self.run(&id, wait).await?,
        };
        Ok(Started { run, created })
    }

    /// Starts a run and tells only its id and whether this call made it.
    pub async fn start_quietly(&self, request: StartRequest) -> Result<(RunId, bool), AppError> {
        let (id, taking) = match begin_briefly(&self.inner, &request).await {
            Err(error) if error.code == ErrorCode::WorkflowNotFound => {
                begin_briefly(&self.inner, &request).await?
            }
            begun => begun?,
        };
        let created = created(&request, &id, &taking)?;
        Ok((id, created))
    }

    /// A run, read from the store. With `wait` (at most 60 s), answers when it has ended or the time is up.
    pub async fn run(&self, id: &RunId, wait: Option<Span>) -> Result<RunView, AppError> {
        let Some(wait) = wait else {
            let state = read(&self.inner, id).await?.ok_or_else(|| no_run(id))?;
            return render::run(&self.inner, &state).await;
        };
        let until = Instant::now() + wait.min(WAIT_MAX).to_std();
        let mut watch = watch_run(&self.inner, id, Until::Ended);
        loop {
            let state = read(&self.inner, id).await?.ok_or_else(|| no_run(id))?;
            if state.status.is_terminal() || Instant::now() >= until || self.inner.draining.is_cancelled() {
                return render::run(&self.inner, &state).await;
            }
            let draining = self.inner.draining.clone();
            tokio::select! {
                biased;
                () = draining.cancelled() => {}
                () = watch.changed() => {}
                () = tokio::time::sleep_until(until) => {}
            }
        }
    }

    /// The tasks of a run in document order, page by page; `cursor` as in [`RunView::tasks_cursor`].
    pub async fn tasks(
        &self,
        id: &RunId,
        limit: u32,
        cursor: Option<&str>,
    ) -> Result<Page<TaskView>, AppError> {
        let from = match cursor {
            None => 0,
            Some(text) => List::Tasks.position(text, |p| p.parse().ok())?,
        };
        let state = read(&self.inner, id).await?.ok_or_else(|| no_run(id))?;
        render::tasks(&self.inner, &state, from, limit.clamp(1, 500) as usize).await
    }

    /// One value of a run as JSON text: what [`super::view::ValueView::Ref`] points at.
    pub async fn value(&self, id: &RunId, address: &ValueAddress) -> Result<Bytes, AppError> {
        let state = read(&self.inner, id).await?.ok_or_else(|| no_run(id))?;
        render::value(&self.inner, &state, address)
            .await?
            .ok_or_else(|| AppError::new(ErrorCode::NotFound, format!("run {id:?} has no value {address}")))
    }

    /// Runs, newest first. Looks at a bounded number per call; an empty page with a cursor means: go on.
    pub async fn runs(
        &self,
        filter: RunFilter,
        limit: u32,
        cursor: Option<&str>,
    ) -> Result<Page<RunView>, AppError> {
        let limit = limit.clamp(1, 500) as usize;
        let mut before = cursor.map(parse_cursor).transpose()?;
        if let Some(until) = filter.until {
            let bound =
                (until, RunId::new("0").map_err(|e| AppError::new(ErrorCode::Internal, e.to_string()))?);
            before = Some(before.map_or(bound.clone(), |b| b.min(bound)));
        }
        let children = match &filter.parent {
            Some(parent) => self.children(parent).await?,
            None => None,
        };
        let mut items = Vec::new();
        let (mut looked, mut bytes) = (0, 0);
        loop {
            let most = (limit - items.len()).max(50);
            let page: Vec<_> = match &children {
                Some(all) => {
                    let rest = all.iter().filter(|run| before.as_ref().is_none_or(|before| *run < before));
                    rest.take(most).cloned().collect()
                }
                None => self.newest_before(before.as_ref(), most).await?,
            };
            let exhausted = page.is_empty();
            let keys: Vec<(Partition, RunId)> =
                page.iter().map(|(_, r)| (self.inner.partition_of(r), r.clone())).collect();
            let records = self.inner.store.load(&keys).await.map_err(store_error)?;
            for ((created, run), record) in page.into_iter().zip(records) {
                if filter.since.is_some_and(|since| created < since) {
                    return Ok(Page { items, next_cursor: None });
                }
                looked += 1;
                before = Some((created, run));
                let Some(record) = record else { continue };
                let (_, head) = records::head(&record).map_err(store_error)?;
                let state = head.state;
                if matches(&filter, &state) {
                    let plan = match self.inner.plans.of(&state).await {
                        Err(lost) if lost.code == ErrorCode::WorkflowNotFound => None,
                        plan => Some(plan?),
                    };
                    let view = render::head(&state, plan.as_deref());
                    bytes += render::head_weight(&view);
                    items.push(view);
                }
                if items.len() == limit || bytes > render::AROUND_BYTES {
                    break;
                }
            }
            if exhausted {
                return Ok(Page { items, next_cursor: None });
            }
            if items.len() >= limit || bytes > render::AROUND_BYTES || looked >= LIST_LOOKS {
                let next_cursor = before.map(|(t, r)| List::Runs.cursor(&format!("{}.{r}", t.0)));
                return Ok(Page { items, next_cursor });
            }
        }
    }

    /// The runs that were started for tasks of a run, newest first, as its record names them; none: it is not there any
    /// more, and only a look at all runs finds them.
    async fn children(&self, parent: &RunId) -> Result<Option<Vec<(Timestamp, RunId)>>, AppError> {
        let Some(state) = read(&self.inner, parent).await? else { return Ok(None) };
        let plan = self.inner.plans.of(&state).await?;
        let named = (0..).zip(&state.tasks).flat_map(|(node, task)| {
            (1..=task.attempt).filter_map(|n| child_of(&state, &plan, node, n)).collect::<Vec<_>>()
        });
        // A node of an earlier try has the path of one of now.
        let named: BTreeSet<RunId> = named.collect();
        let keys: Vec<_> = named.into_iter().map(|run| (self.inner.partition_of(&run), run)).collect();
        let mut found = Vec::with_capacity(keys.len());
        for keys in keys.chunks(500) {
            let records = self.inner.store.load(keys).await.map_err(store_error)?;
            for ((_, run), record) in keys.iter().zip(records) {
                if let Some(record) = record {
                    let (_, head) = records::head(&record).map_err(store_error)?;
                    found.push((head.state.created_at, run.clone()));
                }
            }
        }
        found.sort_unstable_by(|a, b| b.cmp(a));
        Ok(Some(found))
    }

    /// The newest runs before a point, over all partitions.
    async fn newest_before(
        &self,
        before: Option<&(Timestamp, RunId)>,
        max: usize,
    ) -> Result<Vec<(Timestamp, RunId)>, AppError> {
        let lists = self.inner.partitions().into_iter().map(|p| {
            let before = before.cloned();
            let inner = Arc::clone(&self.inner);
            async move { inner.store.list(p, before, max as u32).await }
        });
        let lists = futures::future::try_join_all(lists).await.map_err(store_error)?;
        let mut all: Vec<_> = lists.into_iter().flatten().collect();
        all.sort_unstable_by(|a, b| b.cmp(a));
        all.truncate(max);
        Ok(all)
    }

    /// Ends a run as cancelled; with `compensate`, what has completed is undone first. `force` skips that and
    /// `finally`.
    pub async fn cancel(&self, id: &RunId, compensate: bool, force: bool) -> Result<RunView, AppError> {
        self.control(id, Command::Cancel { compensate, force }).await
    }

    /// Starts nothing new in a run until it is resumed.
    pub async fn pause(&self, id: &RunId) -> Result<RunView, AppError> {
        self.control(id, Command::Pause).await
    }

    /// Lets a paused run go on.
    pub async fn resume(&self, id: &RunId) -> Result<RunView, AppError> {
        self.control(id, Command::Resume).await
    }

    /// Sends a run a signal; with an id, the same is accepted once. `payload` is JSON text; empty is null.
    pub async fn signal(
        &self,
        id: &RunId,
        name: &SignalName,
        signal: Option<&SignalId>,
        payload: &Bytes,
    ) -> Result<RunView, AppError> {
        let payload = checked(payload, "payload")?;
        let signal = signal.map(ToString::to_string);
        self.control(id, Command::Signal { name: name.to_string(), id: signal, payload }).await
    }

    /// Begins an ended run again from what failed.
    pub async fn retry(&self, id: &RunId) -> Result<RunView, AppError> {
        self.control(id, Command::Retry).await
    }

    /// Does something to a task by hand.
    pub async fn act(&self, id: &RunId, task: &TaskPath, what: ByHand) -> Result<RunView, AppError> {
        let path = task.clone();
        let command = match what {
            ByHand::Skip => Command::Act { path, action: Action::Skip },
            ByHand::Complete { output } => {
                let output = checked(&output, "output")?.unwrap_or(NULL);
                Command::Act { path, action: Action::Complete(output) }
            }
            ByHand::Fail { code, message } => {
                let failure = ReportedFailure { code, message, retryable: false, retry_after: None };
                Command::Act { path, action: Action::Fail(failure) }
            }
            ByHand::Rerun { input } => {
                let input = input.map(|json| checked(&json, "input")).transpose()?;
                Command::Rerun { path, input: input.map(|json| json.unwrap_or(NULL)) }
            }
        };
        self.control(id, command).await
    }

    /// A command that is answered with the run as it stands then.
    async fn control(&self, id: &RunId, command: Command) -> Result<RunView, AppError> {
        let answer = ask(&self.inner, id, command).await?;
        answer.outcome.map_err(|r| refusal(&r, id))?;
        match answer.state {
            Some(state) => render::run(&self.inner, &state).await,
            None => self.run(id, None).await,
        }
    }

    /// Forgets an ended run.
    pub async fn delete(&self, id: &RunId) -> Result<(), AppError> {
        let answer = ask(&self.inner, id, Command::Delete { expired: false }).await?;
        answer.outcome.map(drop).map_err(|r| refusal(&r, id))
    }
}

fn parse_cursor(text: &str) -> Result<(Timestamp, RunId), AppError> {
    List::Runs.position(text, |p| {
        let (created, run) = by_time(p)?;
        Some((created, RunId::new(run).ok()?))
    })
}

fn matches(filter: &RunFilter, state: &RunState) -> bool {
    filter.workflow.as_ref().is_none_or(|w| *w == state.workflow)
        && filter.status.is_none_or(|s| s == state.status)
        && filter.until.is_none_or(|t| state.created_at < t)
        && filter.parent.as_ref().is_none_or(|p| state.parent().is_some_and(|of| of.run == *p))
        && filter.tags.iter().all(|(k, v)| state.tags.get(k) == Some(v))
}
