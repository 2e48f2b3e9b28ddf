//! Server-sent events as a client reads them, and one that goes on over lost connections.

use super::http::{Api, Body};
use super::{Exit, Failure};
use bytes::Bytes;
use http_body_util::BodyExt as _;
use serde_json::Value;
use std::time::Duration;
use tokio::time::Instant;

/// More than this for one event is no stream of ours.
const MAX_EVENT_BYTES: usize = 8 << 20;
/// A stream without even a comment for this long is dead; the server sends one every 15 s.
const SILENCE: Duration = Duration::from_secs(45);
/// How long a lost stream is tried to be had again.
const RESUME_WITHIN: Duration = Duration::from_secs(30);
const RETRY_EVERY: Duration = Duration::from_millis(500);

/// One event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Event {
    /// Cursor to resume after; empty if the event has none.
    pub(super) id: String,
    /// Its type.
    pub(super) kind: String,
    /// One JSON object.
    pub(super) data: String,
}

impl Event {
    /// The data as a value; null if it is no JSON.
    pub(super) fn value(&self) -> Value {
        serde_json::from_str(&self.data).unwrap_or(Value::Null)
    }
}

/// Takes bytes in any portions and gives whole events. Follows the parsing rules of the HTML standard, as far as
/// `id`, `event` and `data` go.
#[derive(Debug, Default)]
struct Parser {
    buffer: Vec<u8>,
    /// Up to where `buffer` has no line end.
    seen: usize,
    id: Option<String>,
    kind: String,
    data: Vec<String>,
}

impl Parser {
    fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    fn next(&mut self) -> Option<Event> {
        loop {
            let Some(at) = self.buffer[self.seen..].iter().position(|b| *b == b'\n') else {
                self.seen = self.buffer.len();
                return None;
            };
            let end = self.seen + at;
            let line: Vec<u8> = self.buffer.drain(..=end).collect();
            self.seen = 0;
            let line = String::from_utf8_lossy(&line[..end]);
            if let Some(event) = self.line(line.trim_end_matches('\r')) {
                return Some(event);
            }
        }
    }

    fn line(&mut self, line: &str) -> Option<Event> {
        if line.is_empty() {
            let (id, kind, data) =
                (self.id.take(), std::mem::take(&mut self.kind), std::mem::take(&mut self.data));
            let event = Event { id: id.unwrap_or_default(), kind, data: data.join("\n") };
            return (!event.data.is_empty() || !event.kind.is_empty()).then_some(event);
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "id" => self.id = Some(value.to_owned()),
            "event" => value.clone_into(&mut self.kind),
            "data" => self.data.push(value.to_owned()),
            // Comments and fields of later versions.
            _ => {}
        }
        None
    }
}

/// One response.
#[derive(Debug)]
pub(super) struct Events {
    body: Body,
    parser: Parser,
}

impl Events {
    pub(super) fn new(body: Body) -> Self {
        Self { body, parser: Parser::default() }
    }

    /// The next event; `None`: the stream is over. Cancel safe.
    pub(super) async fn next(&mut self) -> Result<Option<Event>, String> {
        loop {
            if let Some(event) = self.parser.next() {
                return Ok(Some(event));
            }
            if self.parser.buffer.len() > MAX_EVENT_BYTES {
                return Err("an event is too large to be one of Downbeat's".into());
            }
            let frame = tokio::time::timeout(SILENCE, self.body.frame());
            match frame.await.map_err(|_| "the stream was silent for 45 s".to_owned())? {
                Some(Ok(frame)) => self.parser.push(&frame.into_data().unwrap_or_else(|_| Bytes::new())),
                Some(Err(e)) => return Err(e.to_string()),
                None => return Ok(None),
            }
        }
    }
}

/// The events of one run, from its first to its last, over as many connections as it takes.
#[derive(Debug)]
pub(super) struct Watch {
    api: Api,
    path: String,
    last: Option<String>,
    stream: Option<Events>,
    /// When the stream was lost.
    lost: Option<Instant>,
}

impl Watch {
    /// Opens the stream of a run.
    pub(super) async fn run(api: &Api, id: &str) -> Result<Self, Failure> {
        let path = format!("/v1/runs/{}/events", super::http::encode(id));
        let stream = api.events(&path, None).await?;
        Ok(Self { api: api.clone(), path, last: None, stream, lost: None })
    }

    /// The next event; `None` after the last one of the run.
    pub(super) async fn next(&mut self) -> Result<Option<Event>, Failure> {
        loop {
            if let Some(stream) = &mut self.stream {
                match stream.next().await {
                    Ok(Some(event)) => {
                        self.lost = None;
                        if !event.id.is_empty() {
                            self.last = Some(event.id.clone());
                        }
                        return Ok(Some(event));
                    }
                    // Over, or cut: the next connection says which.
                    Ok(None) | Err(_) => self.stream = None,
                }
            }
            let since = *self.lost.get_or_insert_with(Instant::now);
            match self.api.events(&self.path, self.last.as_deref()).await {
                Ok(Some(stream)) => self.stream = Some(stream),
                Ok(None) => return Ok(None),
                Err(failure) if failure.exit == Exit::Unreachable && since.elapsed() < RESUME_WITHIN => {
                    tokio::time::sleep(RETRY_EVERY).await;
                }
                Err(failure) => return Err(failure),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(parser: &mut Parser) -> Vec<Event> {
        std::iter::from_fn(|| parser.next()).collect()
    }

    #[test]
    fn events_come_whole_however_the_bytes_are_cut() {
        let text = ": hello\n\nid: 1-2\nevent: task.queued\ndata: {\"a\":\ndata: 1}\n\nevent: reset\ndata: {}\r\n\r\nid: 3\n";
        let expected = [
            Event { id: "1-2".into(), kind: "task.queued".into(), data: "{\"a\":\n1}".into() },
            Event { id: String::new(), kind: "reset".into(), data: "{}".into() },
        ];
        for size in 1..text.len() {
            let mut parser = Parser::default();
            let mut events = Vec::new();
            for part in text.as_bytes().chunks(size) {
                parser.push(part);
                events.extend(all(&mut parser));
            }
            assert_eq!(events, expected, "cut every {size} bytes");
        }
    }

    #[test]
    fn text_outside_ascii_survives() {
        let mut parser = Parser::default();
        for b in "data: \"größer\"\n\n".bytes() {
            parser.push(&[b]);
        }
        assert_eq!(all(&mut parser)[0].value(), Value::from("größer"));
    }
}
