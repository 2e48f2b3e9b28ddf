//! Views and messages to protobuf and back, one for one.

use crate::api::check::{self, ActionName, Brought, word};
use crate::api::error::{brief, invalid, problem};
use crate::api::limits::{PAGE_DEFAULT, PAGE_MAX, WAIT_MAX_SECS};
use crate::app::AppError;
use crate::app::view::{
    AttemptView, BulkDone, BulkItem, ByHand, ErrorView, EventItem, EventView, RunFilter, RunView, TaskView,
    ValueView, WaitingFor, Which, WorkflowView,
};
use crate::dispatch::message::Assignment;
use crate::model::command::ReportedFailure;
use crate::model::ids::{RunId, WorkflowName};
use crate::model::labels::Labels;
use crate::model::run::RunStatus;
use crate::model::time::{Span, Timestamp};
use crate::proto::v1;
use bytes::Bytes;
use std::collections::BTreeMap;

/// Microseconds; 0 for none.
pub(super) fn micros(time: Option<Timestamp>) -> i64 {
    time.map_or(0, |t| t.0)
}

/// Reads the name of a workflow.
pub(super) fn workflow_name(text: &str) -> Result<WorkflowName, AppError> {
    word("workflow", text, WorkflowName::new)
}

/// Reads the id of a run.
pub(super) fn run_id(text: &str) -> Result<RunId, AppError> {
    word("id", text, RunId::new)
}

/// Empty is none.
pub(super) fn given(text: &str) -> Option<&str> {
    (!text.is_empty()).then_some(text)
}

/// `limit` of a list: 0 is the default.
pub(super) fn limit(limit: u32) -> Result<u32, AppError> {
    match limit {
        0 => Ok(PAGE_DEFAULT),
        1..=PAGE_MAX => Ok(limit),
        _ => Err(invalid("limit", format!("{limit} is over {PAGE_MAX}"))),
    }
}

/// `wait_ms`: 0 is none.
pub(super) fn wait(ms: u32) -> Result<Option<Span>, AppError> {
    let span = Span::millis(i64::from(ms));
    if span > Span::secs(WAIT_MAX_SECS) {
        return Err(invalid("wait_ms", format!("{ms} is over {}", WAIT_MAX_SECS * 1_000)));
    }
    Ok((ms > 0).then_some(span))
}

/// JSON text; a value that is too large stands as its address, as in REST.
pub(super) fn value(value: ValueView) -> Bytes {
    match value {
        ValueView::Json(text) => text,
        ValueView::Ref { url, size } => {
            let text = serde_json::to_vec(&crate::api::rest::view::ValueRef { url: &url, size });
            text.unwrap_or_default().into()
        }
    }
}

pub(super) fn workflow(view: WorkflowView) -> v1::Workflow {
    v1::Workflow {
        name: view.name.to_string(),
        version: view.version,
        newest: view.newest,
        created_at_us: micros(view.created_at),
        document: view.document,
    }
}

pub(super) fn status(status: RunStatus) -> v1::RunStatus {
    match status {
        RunStatus::Pending => v1::RunStatus::Pending,
        RunStatus::Running => v1::RunStatus::Running,
        RunStatus::Paused => v1::RunStatus::Paused,
        RunStatus::Completed => v1::RunStatus::Completed,
        RunStatus::Failed => v1::RunStatus::Failed,
        RunStatus::Cancelled => v1::RunStatus::Cancelled,
        RunStatus::TimedOut => v1::RunStatus::TimedOut,
    }
}

/// Reads a status to filter by; unspecified is none.
pub(super) fn status_filter(number: i32) -> Result<Option<RunStatus>, AppError> {
    if number == 0 {
        return Ok(None);
    }
    let found = RunStatus::ALL.into_iter().find(|s| self::status(*s) as i32 == number);
    found.map(Some).ok_or_else(|| invalid("status", format!("{number} is no status of a run")))
}

fn error(view: ErrorView) -> v1::Failure {
    v1::Failure {
        code: view.code,
        message: view.message,
        task: view.task.map(|t| t.to_string()).unwrap_or_default(),
        attempt: view.attempt,
    }
}

pub(super) fn run(view: RunView) -> v1::Run {
    let ending = view
        .ending
        .map(|ends| v1::Ending { status: status(ends).into(), error: view.error.clone().map(error) });
    let parent = view.parent.map(|(run, task)| (run.to_string(), task.to_string()));
    let (parent, parent_task) = parent.unwrap_or_default();
    let (schedule, slot_us) =
        view.schedule.map(|(name, slot)| (name.to_string(), slot.0)).unwrap_or_default();
    v1::Run {
        id: view.id.to_string(),
        workflow: view.workflow.to_string(),
        version: view.version,
        r#try: view.try_number,
        status: status(view.status).into(),
        input: value(view.input),
        output: value(view.output),
        error: view.error.map(error),
        tags: view.tags,
        priority: view.priority,
        created_at_us: view.created_at.0,
        started_at_us: micros(view.started_at),
        ended_at_us: micros(view.ended_at),
        tasks: view.tasks.into_iter().map(task).collect(),
        tasks_cursor: view.tasks_cursor.unwrap_or_default(),
        ending,
        start_at_us: micros(view.start_at),
        parent,
        parent_task,
        schedule,
        slot_us,
    }
}

/// A run in a list: what is not told there is not set, rather than null.
pub(super) fn run_head(view: RunView) -> v1::Run {
    v1::Run { input: Bytes::new(), output: Bytes::new(), ..run(view) }
}

pub(super) fn task(view: TaskView) -> v1::Task {
    v1::Task {
        task: view.task.to_string(),
        r#type: view.task_type.map(|t| t.to_string()).unwrap_or_default(),
        status: view.status.to_owned(),
        output: value(view.output),
        error: view.error.map(error),
        attempts: view.attempts.into_iter().map(attempt).collect(),
        labels: labels(&view.labels),
        waiting_for: view.waiting_for.map(waiting_for),
    }
}

fn waiting_for(view: WaitingFor) -> v1::WaitingFor {
    use v1::waiting_for::What;
    let what = match view {
        WaitingFor::Concurrency(key) => What::Concurrency(key),
        WaitingFor::Rate(key) => What::Rate(key),
        WaitingFor::Signal(name) => What::Signal(name),
        WaitingFor::Until(at) => What::UntilUs(at.0),
        WaitingFor::Child(run) => What::Child(run.to_string()),
    };
    v1::WaitingFor { what: Some(what) }
}

pub(super) fn labels(labels: &Labels) -> BTreeMap<String, String> {
    labels.iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}

fn attempt(view: AttemptView) -> v1::Attempt {
    v1::Attempt {
        number: view.number,
        status: view.status.to_owned(),
        worker: view.worker.unwrap_or_default(),
        input: value(view.input),
        queued_at_us: micros(view.queued_at),
        started_at_us: micros(view.started_at),
        ended_at_us: micros(view.ended_at),
        error: view.error.map(error),
        run: view.run.map(|r| r.to_string()).unwrap_or_default(),
    }
}

pub(super) fn event_item(item: EventItem) -> v1::WatchItem {
    let item = match item {
        EventItem::Event(view) => v1::watch_item::Item::Event(event(view)),
        EventItem::Reset => v1::watch_item::Item::Reset(v1::Reset {}),
    };
    v1::WatchItem { item: Some(item) }
}

fn event(view: EventView) -> v1::Event {
    let (workflow, version) = view.workflow.map(|(w, v)| (w.to_string(), v)).unwrap_or_default();
    v1::Event {
        cursor: view.cursor,
        r#type: view.kind.name().to_owned(),
        time_us: view.time.0,
        run: view.run.map(|r| r.to_string()).unwrap_or_default(),
        workflow,
        version,
        task: view.task.map(|t| t.to_string()).unwrap_or_default(),
        task_type: view.task_type.map(|t| t.to_string()).unwrap_or_default(),
        attempt: view.attempt.unwrap_or(0),
        delivery: view.delivery.unwrap_or(0),
        worker: view.worker.unwrap_or_default(),
        output: view.output.map(value),
        error: view.error.map(error),
        deleted: view.deleted,
        signal: view.signal.unwrap_or_default(),
        slot: view.schedule.map(super::schedules::slot),
    }
}

/// What became of many items.
pub(super) fn bulk(items: Vec<BulkItem>, next_cursor: Option<String>) -> v1::BulkResponse {
    let items = items.into_iter().map(|item| {
        let outcome = match item.outcome {
            Ok(BulkDone { status, created }) => {
                v1::bulk_item::Outcome::Done(v1::BulkDone { status: self::status(status).into(), created })
            }
            Err(error) => v1::bulk_item::Outcome::Refused(problem(brief(error))),
        };
        v1::BulkItem { id: item.id.map(|id| id.to_string()).unwrap_or_default(), outcome: Some(outcome) }
    });
    v1::BulkResponse { items: items.collect(), next_cursor: next_cursor.unwrap_or_default() }
}

/// Ids, or a filter: the repeated field of the one is empty, the other unset.
pub(super) fn which(ids: Vec<String>, filter: Option<v1::BulkFilter>) -> Result<Which, AppError> {
    let ids = (!ids.is_empty()).then_some(ids);
    let Some(filter) = filter else { return check::which(ids, None, None, None) };
    let v1::BulkFilter { workflow, status, tags, since_us, until_us, limit, cursor, parent } = filter;
    let (limit, cursor) = ((limit > 0).then_some(limit), given(&cursor).map(str::to_owned));
    let filter = run_filter(&workflow, status, tags, since_us, until_us, &parent)?;
    check::which(ids, Some(filter), limit, cursor)
}

/// Which runs to list; empty, unspecified and 0 are no criteria.
pub(super) fn run_filter(
    workflow: &str,
    status: i32,
    tags: BTreeMap<String, String>,
    since_us: i64,
    until_us: i64,
    parent: &str,
) -> Result<RunFilter, AppError> {
    let time = |us: i64| (us != 0).then_some(Timestamp(us));
    Ok(RunFilter {
        workflow: given(workflow).map(workflow_name).transpose()?,
        status: status_filter(status)?,
        tags: tags.into_iter().collect(),
        since: time(since_us),
        until: time(until_us),
        parent: given(parent).map(|id| word("parent", id, RunId::new)).transpose()?,
    })
}

/// Reads what is done by hand.
pub(super) fn by_hand(
    action: i32,
    output: Option<Bytes>,
    error: Option<v1::ActionError>,
    input: Option<Bytes>,
) -> Result<ByHand, AppError> {
    use v1::act_on_run_request::Action;
    let name = match Action::try_from(action) {
        Ok(Action::Skip) => ActionName::Skip,
        Ok(Action::Complete) => ActionName::Complete,
        Ok(Action::Fail) => ActionName::Fail,
        Ok(Action::Rerun) => ActionName::Rerun,
        Ok(Action::Unspecified) => return Err(invalid("action", "is missing")),
        Err(_) => return Err(invalid("action", format!("{action} is no action"))),
    };
    let error = error.map(|v1::ActionError { code, message }| (code, message));
    check::by_hand(name, Brought { output, error, input })
}

pub(super) fn assignment(assignment: Assignment) -> v1::Assignment {
    v1::Assignment {
        token: assignment.token,
        run: assignment.run.as_str().to_owned(),
        task: assignment.path.as_str().to_owned(),
        attempt: assignment.attempt,
        r#type: assignment.task_type.as_str().to_owned(),
        input: assignment.input,
        deadline_us: micros(assignment.deadline),
        trace: String::from(&*assignment.trace),
    }
}

/// A failure as a worker reports it.
pub(super) fn reported(failed: v1::TaskFailure) -> ReportedFailure {
    ReportedFailure {
        code: failed.code,
        message: failed.message,
        retryable: !failed.non_retryable,
        retry_after: failed.retry_after_ms.map(|ms| Span::millis(i64::try_from(ms).unwrap_or(i64::MAX))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::error::ErrorCode;

    #[test]
    fn every_status_can_be_filtered_by_and_no_other() {
        for s in RunStatus::ALL {
            assert_eq!(status_filter(status(s).into()), Ok(Some(s)));
            assert_eq!(status(s).as_str_name().to_lowercase(), s.name());
        }
        assert_eq!(status_filter(0), Ok(None));
        assert_eq!(status_filter(99).unwrap_err().faults[0].path, "status");
    }

    #[test]
    fn zero_means_the_default_and_too_much_is_refused() {
        assert_eq!(limit(0), Ok(PAGE_DEFAULT));
        assert_eq!(limit(501).unwrap_err().code, ErrorCode::InvalidRequest);
        assert_eq!(wait(0), Ok(None));
        assert_eq!(wait(60_000), Ok(Some(Span::secs(60))));
        assert!(wait(60_001).is_err());
    }

    #[test]
    fn a_large_value_stands_as_its_address() {
        let view = ValueView::Ref { url: "/v1/runs/a/values/output".into(), size: 5 };
        assert_eq!(value(view), "{\"$ref\":\"/v1/runs/a/values/output\",\"size\":5}");
        assert_eq!(value(ValueView::Json(Bytes::from_static(b"1.0"))), "1.0");
    }

    #[test]
    fn a_reported_failure_keeps_what_it_says() {
        let failed = v1::TaskFailure {
            code: "card_declined".into(),
            message: "no".into(),
            non_retryable: true,
            retry_after_ms: Some(u64::MAX),
        };
        let reported = reported(failed);
        assert_eq!((reported.code.as_str(), reported.retryable), ("card_declined", false));
        assert_eq!(reported.retry_after, Some(Span(i64::MAX)));
    }
}
