//! Events as `text/event-stream`.
//!
//! ```text
//! id: CURSOR
//! event: task.completed
//! data: {"type":"task.completed","time":"…","run":"…",…}      one line, whatever the values hold
//! (empty line)
//! ```
//!
//! A comment (`: `) opens the stream and follows every 15 s of silence, so that proxies pass it on and keep
//! it open. A reader that is slow is not waited for: the feed ends, and the reader resumes.

use super::Connection;
use super::limits::FRAME_BYTES;
use super::meter::Open;
use super::rest::view::ErrorJson;
use crate::app::EventFeed;
use crate::app::view::{EventItem, EventView, SlotView, ValueView};
use axum::body::Body;
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use futures::FutureExt as _;
use http::{HeaderName, header};
use std::convert::Infallible;
use std::io::Write as _;
use std::time::Duration;

const COMMENT: &[u8] = b": \n\n";
const RESET: &[u8] = b"event: reset\ndata: {\"type\":\"reset\"}\n\n";

/// Answers with the events of `feed` until it ends or the server stops.
pub(crate) fn stream(
    feed: EventFeed,
    connection: Connection,
    comment_every: Duration,
    open: Open,
) -> Response {
    let frames = Frames { feed, connection, comment_every, opened: false, ended: false, _open: open };
    let chunks = futures::stream::unfold(frames, |mut frames| async move {
        let chunk = frames.next().await?;
        Some((Ok::<_, Infallible>(chunk), frames))
    });
    let headers = [
        (header::CONTENT_TYPE, "text/event-stream"),
        // `no-transform` asks intermediaries not to compress, which would hold events back.
        (header::CACHE_CONTROL, "no-cache, no-transform"),
        (HeaderName::from_static("x-accel-buffering"), "no"),
    ];
    (headers, Body::from_stream(chunks)).into_response()
}

struct Frames {
    feed: EventFeed,
    connection: Connection,
    comment_every: Duration,
    opened: bool,
    ended: bool,
    _open: Open,
}

impl Frames {
    /// The next bytes to send: all events that are ready, up to the size of a frame.
    async fn next(&mut self) -> Option<Bytes> {
        let mut out = Vec::new();
        if self.ended {
            return None;
        }
        if self.opened {
            let item = tokio::select! {
                biased;
                () = self.connection.closing.cancelled() => None,
                item = self.feed.next() => item,
                () = tokio::time::sleep(self.comment_every) => return Some(Bytes::from_static(COMMENT)),
            };
            write_item(&mut out, &item?);
        } else {
            self.opened = true;
            out.extend_from_slice(COMMENT);
        }
        while out.len() < FRAME_BYTES {
            match self.feed.next().now_or_never() {
                Some(Some(item)) => write_item(&mut out, &item),
                Some(None) => {
                    self.ended = true;
                    break;
                }
                None => break,
            }
        }
        Some(out.into())
    }
}

fn write_item(out: &mut Vec<u8>, item: &EventItem) {
    match item {
        EventItem::Event(event) => write_event(out, event),
        EventItem::Reset => out.extend_from_slice(RESET),
    }
}

/// The `data` of an event. What does not fit an event is left out.
#[derive(utoipa::ToSchema)]
#[expect(dead_code, reason = "describes what try_write_event writes; a test compares the two")]
pub(crate) struct EventData {
    #[schema(example = "task.completed")]
    r#type: String,
    /// RFC 3339, UTC, microseconds.
    #[schema(format = DateTime)]
    time: String,
    /// Left out where a schedule has left out a slot.
    run: Option<String>,
    workflow: Option<String>,
    version: Option<u32>,
    /// The run was deleted meanwhile: there are no values any more.
    deleted: Option<bool>,
    /// Path of the task.
    task: Option<String>,
    task_type: Option<String>,
    /// From 1.
    attempt: Option<u32>,
    /// Which delivery of the attempt, if not the first.
    delivery: Option<u32>,
    /// Label of the worker.
    worker: Option<String>,
    /// Name of the signal, on `signal.received`.
    signal: Option<String>,
    /// Name of the schedule, on `schedule.fired` and `schedule.skipped`.
    schedule: Option<String>,
    /// When the schedule was due; with `until` the first of several slots that were left out together.
    #[schema(format = DateTime)]
    slot: Option<String>,
    /// The last of several slots.
    #[schema(format = DateTime)]
    until: Option<String>,
    /// How many slots; 10000 stands for more, too.
    count: Option<u32>,
    /// Why slots were left out: `overlap`, `missed`, `paused` or `queue_full`; of a run that could not be started
    /// `refused`, and why is in `error`.
    reason: Option<String>,
    /// On `completed`; on `signal.received` what the signal carries.
    #[schema(value_type = Option<serde_json::Value>)]
    output: Option<()>,
    /// On `failed`, `retrying`, `timed_out`.
    #[schema(value_type = Option<ErrorJson<'static>>)]
    error: Option<()>,
}

/// Writes one event as a frame.
fn write_event(out: &mut Vec<u8>, event: &EventView) {
    let begin = out.len();
    // Writing to a vector cannot fail, but for a value that cannot be JSON; then nothing of it is sent.
    if let Err(error) = try_write_event(out, event) {
        tracing::error!(%error, run = ?event.run, "an event could not be written");
        out.truncate(begin);
    }
}

fn try_write_event(out: &mut Vec<u8>, event: &EventView) -> std::io::Result<()> {
    let kind = event.kind.name();
    out.extend_from_slice(b"id: ");
    out.extend(event.cursor.bytes().filter(|b| !matches!(b, b'\r' | b'\n' | 0)));
    // Names follow rules that leave nothing to escape.
    write!(out, "\nevent: {kind}\ndata: {{\"type\":\"{kind}\",\"time\":\"{}\"", event.time)?;
    if let Some(run) = &event.run {
        write!(out, ",\"run\":\"{run}\"")?;
    }
    if let Some((workflow, version)) = &event.workflow {
        write!(out, ",\"workflow\":\"{workflow}\"")?;
        if *version > 0 {
            write!(out, ",\"version\":{version}")?;
        }
    }
    if event.deleted {
        out.extend_from_slice(b",\"deleted\":true");
    }
    if let Some(task) = &event.task {
        write!(out, ",\"task\":\"{task}\"")?;
    }
    if let Some(task_type) = &event.task_type {
        write!(out, ",\"task_type\":\"{task_type}\"")?;
    }
    if let Some(attempt) = event.attempt {
        write!(out, ",\"attempt\":{attempt}")?;
    }
    if let Some(delivery) = event.delivery {
        write!(out, ",\"delivery\":{delivery}")?;
    }
    if let Some(worker) = &event.worker {
        out.extend_from_slice(b",\"worker\":");
        serde_json::to_writer(&mut *out, worker)?;
    }
    if let Some(signal) = &event.signal {
        write!(out, ",\"signal\":\"{signal}\"")?;
    }
    if let Some(slot) = &event.schedule {
        write_slot(out, slot)?;
    }
    if let Some(output) = &event.output {
        out.extend_from_slice(b",\"output\":");
        write_value(out, output)?;
    }
    if let Some(failure) = &event.error {
        out.extend_from_slice(b",\"error\":");
        serde_json::to_writer(&mut *out, &ErrorJson::from(failure))?;
    }
    out.extend_from_slice(b"}\n\n");
    Ok(())
}

/// Writes what an event says of a schedule.
fn write_slot(out: &mut Vec<u8>, slot: &SlotView) -> std::io::Result<()> {
    write!(out, ",\"schedule\":\"{}\"", slot.name)?;
    if let Some(at) = slot.slot {
        write!(out, ",\"slot\":\"{at}\"")?;
    }
    if let Some(until) = slot.until {
        write!(out, ",\"until\":\"{until}\",\"count\":{}", slot.count)?;
    }
    if let Some(reason) = slot.reason {
        write!(out, ",\"reason\":\"{reason}\"")?;
    }
    Ok(())
}

/// Writes JSON text on one line. Between tokens a line break is white space like any other; inside a string it
/// cannot stand as it is.
fn write_value(out: &mut Vec<u8>, value: &ValueView) -> std::io::Result<()> {
    match value {
        ValueView::Json(text) if text.is_empty() => out.extend_from_slice(b"null"),
        ValueView::Json(text) => {
            let begin = out.len();
            out.extend_from_slice(text);
            for byte in &mut out[begin..] {
                if matches!(*byte, b'\r' | b'\n') {
                    *byte = b' ';
                }
            }
        }
        ValueView::Ref { url, size } => {
            out.extend_from_slice(b"{\"$ref\":");
            serde_json::to_writer(&mut *out, url)?;
            write!(out, ",\"size\":{size}}}")?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::app::view::ErrorView;
    use crate::model::event::EventKind;
    use crate::model::ids::{RunId, TaskPath, TaskType, WorkflowName};
    use crate::model::schedule::ScheduleName;
    use crate::model::time::Timestamp;

    fn event(kind: EventKind) -> EventView {
        EventView {
            cursor: "c1".into(),
            kind,
            time: Timestamp(1_000_123),
            run: Some(RunId::new("order-1").unwrap()),
            tags: std::collections::BTreeMap::new(),
            deleted: false,
            workflow: Some((WorkflowName::new("order").unwrap(), 3)),
            task: None,
            task_type: None,
            attempt: None,
            delivery: None,
            worker: None,
            output: None,
            signal: None,
            schedule: None,
            error: None,
        }
    }

    fn text(event: &EventView) -> String {
        let mut out = Vec::new();
        write_event(&mut out, event);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn an_event_has_id_type_and_one_line_of_data() {
        assert_eq!(
            text(&event(EventKind::RunStarted)),
            "id: c1\nevent: run.started\ndata: {\"type\":\"run.started\",\"time\":\"1970-01-01T00:00:01.000123Z\",\
             \"run\":\"order-1\",\"workflow\":\"order\",\"version\":3}\n\n"
        );
    }

    #[test]
    fn an_event_of_a_deleted_run_is_flagged() {
        let mut event = event(EventKind::RunFailed);
        (event.deleted, event.workflow) = (true, None);
        assert_eq!(
            text(&event),
            "id: c1\nevent: run.failed\ndata: {\"type\":\"run.failed\",\"time\":\"1970-01-01T00:00:01.000123Z\",\
             \"run\":\"order-1\",\"deleted\":true}\n\n"
        );
    }

    #[test]
    fn a_task_event_has_everything_that_fits() {
        let mut event = event(EventKind::TaskCompleted);
        event.task = Some(TaskPath::parse("ship[2]").unwrap());
        event.task_type = Some(TaskType::new("ship-item").unwrap());
        event.attempt = Some(2);
        event.delivery = Some(3);
        event.worker = Some("w\"1".into());
        event.output = Some(ValueView::Json(Bytes::from_static(b"{\"n\":9007199254740993,\"x\":1.0}")));
        assert!(text(&event).ends_with(
            ",\"task\":\"ship[2]\",\"task_type\":\"ship-item\",\"attempt\":2,\"delivery\":3,\"worker\":\"w\\\"1\",\
             \"output\":{\"n\":9007199254740993,\"x\":1.0}}\n\n"
        ));
    }

    #[test]
    fn a_signal_has_its_name_and_what_it_carries() {
        let mut event = event(EventKind::SignalReceived);
        event.signal = Some("approved".into());
        event.output = Some(ValueView::Json(Bytes::from_static(b"{\"by\":1.0}")));
        assert!(
            text(&event).ends_with(",\"version\":3,\"signal\":\"approved\",\"output\":{\"by\":1.0}}\n\n")
        );
    }

    #[test]
    fn nothing_in_a_value_breaks_a_frame() {
        let mut event = event(EventKind::TaskFailed);
        let nasty = "a\r\nevent: done\ndata: x\n\n\0\u{1b}[2J\rb";
        event.worker = Some(nasty.into());
        event.output = Some(ValueView::Json(Bytes::from_static(b"{\r\n  \"a\":\r1,\n\"b\":\"\\n\"\n}")));
        event.error = Some(ErrorView { code: nasty.into(), message: nasty.into(), task: None, attempt: 0 });
        event.cursor = "c\r\n2".into();
        let text = text(&event);
        assert_eq!(text.matches('\n').count(), 4);
        assert!(!text.contains(['\r', '\0', '\u{1b}']));
        let data: serde_json::Value =
            serde_json::from_str(text.lines().nth(2).unwrap().strip_prefix("data: ").unwrap()).unwrap();
        assert_eq!(data["worker"], nasty);
        assert_eq!(data["error"]["message"], nasty);
        assert_eq!(data["output"], serde_json::json!({"a": 1, "b": "\n"}));
        assert!(text.starts_with("id: c2\n"));
    }

    #[test]
    fn a_large_value_stands_as_its_address() {
        let mut event = event(EventKind::RunCompleted);
        event.output = Some(ValueView::Ref { url: "/v1/runs/order-1/values/output".into(), size: 7 });
        assert!(text(&event).ends_with(
            ",\"version\":3,\"output\":{\"$ref\":\"/v1/runs/order-1/values/output\",\"size\":7}}\n\n"
        ));
    }

    #[test]
    fn data_has_the_keys_that_the_description_says() {
        let mut full = event(EventKind::TaskFailed);
        full.task = Some(TaskPath::parse("a").unwrap());
        full.task_type = Some(TaskType::new("a").unwrap());
        (full.attempt, full.delivery, full.worker) = (Some(1), Some(2), Some("w".into()));
        (full.signal, full.output) = (Some("approved".into()), Some(ValueView::default()));
        full.schedule = Some(slot());
        full.error = Some(ErrorView { code: "c".into(), message: "m".into(), task: None, attempt: 0 });
        let text = text(&full);
        let data = text.lines().nth(2).unwrap().strip_prefix("data: ").unwrap();
        let data: serde_json::Map<String, serde_json::Value> = serde_json::from_str(data).unwrap();
        let schema = serde_json::to_value(<EventData as utoipa::PartialSchema>::schema()).unwrap();
        let mut described: Vec<&str> =
            schema["properties"].as_object().unwrap().keys().map(String::as_str).collect();
        described.retain(|key| *key != "deleted");
        assert_eq!(data.keys().map(String::as_str).collect::<Vec<_>>(), described);
    }

    fn slot() -> SlotView {
        SlotView {
            name: ScheduleName::new("nightly").unwrap(),
            slot: Some(Timestamp(0)),
            until: Some(Timestamp(60_000_000)),
            count: 2,
            reason: Some("missed"),
        }
    }

    #[test]
    fn a_slot_that_was_left_out_has_no_run_and_the_newest_version_no_number() {
        let mut event = event(EventKind::ScheduleSkipped);
        (event.run, event.schedule) = (None, Some(slot()));
        event.workflow = Some((WorkflowName::new("order").unwrap(), 0));
        assert_eq!(
            text(&event),
            "id: c1\nevent: schedule.skipped\ndata: {\"type\":\"schedule.skipped\",\
             \"time\":\"1970-01-01T00:00:01.000123Z\",\"workflow\":\"order\",\"schedule\":\"nightly\",\
             \"slot\":\"1970-01-01T00:00:00.000000Z\",\"until\":\"1970-01-01T00:01:00.000000Z\",\"count\":2,\
             \"reason\":\"missed\"}\n\n"
        );
    }

    #[test]
    fn a_reset_has_no_id() {
        let mut out = Vec::new();
        write_item(&mut out, &EventItem::Reset);
        assert_eq!(String::from_utf8(out).unwrap(), "event: reset\ndata: {\"type\":\"reset\"}\n\n");
    }
}
