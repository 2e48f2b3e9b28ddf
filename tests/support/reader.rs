//! A reader of events that goes on where it was, at the next door, whenever its stream breaks or falls silent.

use super::client::{Frame, parse};
use super::server::Door;
use axum::body::Body;
use http::Request;
use http_body_util::BodyExt as _;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use serde_json::Value;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::watch;

/// What a reader has seen.
#[derive(Debug)]
pub struct Seen<T = Value> {
    /// The cursor of the last event.
    pub last: Option<String>,
    /// A stream was opened.
    pub opened: bool,
    /// Streams that broke, fell silent or ended before the end.
    pub cuts: usize,
    /// Resets that were told.
    pub resets: usize,
    /// What is kept of the events with a cursor, in the order in which they came.
    pub events: Vec<T>,
}

impl<T> Default for Seen<T> {
    fn default() -> Self {
        Self { last: None, opened: false, cuts: 0, resets: 0, events: Vec::new() }
    }
}

/// See the module.
#[derive(Debug)]
pub struct Reader<T = Value> {
    seen: Arc<Mutex<Seen<T>>>,
    changed: watch::Receiver<usize>,
    reading: tokio::task::JoinHandle<()>,
}

impl Reader {
    /// Reads `path` at these doors in turns. A stream on which nothing came for `silence` is given up; comments come
    /// every 15 s. It ends when it is told that there is nothing more (204).
    pub fn start(doors: Vec<Door>, path: &str, silence: Duration) -> Self {
        Self::resuming(doors, path, silence, None)
    }

    /// The same, from a cursor on.
    pub fn resuming(doors: Vec<Door>, path: &str, silence: Duration, last: Option<String>) -> Self {
        Self::begin(doors, path, silence, Frame::json, Seen { last, ..Seen::default() })
    }
}

impl<T: Send + 'static> Reader<T> {
    /// The same, but keeps of each event what `keep` makes of it.
    pub fn keeping(doors: Vec<Door>, path: &str, silence: Duration, keep: fn(&Frame) -> T) -> Self {
        Self::begin(doors, path, silence, keep, Seen::default())
    }

    fn begin(doors: Vec<Door>, path: &str, silence: Duration, keep: fn(&Frame) -> T, seen: Seen<T>) -> Self {
        let seen = Arc::new(Mutex::new(seen));
        let (tell, changed) = watch::channel(0);
        let reading = tokio::spawn(read(doors, path.to_owned(), silence, keep, Arc::clone(&seen), tell));
        Self { seen, changed, reading }
    }

    /// Waits until what it has seen is enough, but not for ever. False: it was not.
    pub async fn sees(&mut self, within: Duration, enough: impl Fn(&Seen<T>) -> bool) -> bool {
        let look = async {
            loop {
                if enough(&self.seen.lock().unwrap()) {
                    return;
                }
                if self.changed.changed().await.is_err() {
                    // It has ended.
                    return;
                }
            }
        };
        let _ = tokio::time::timeout(within, look).await;
        enough(&self.seen.lock().unwrap())
    }

    /// Looks at what it has seen so far.
    pub fn look<R>(&self, look: impl FnOnce(&Seen<T>) -> R) -> R {
        look(&self.seen.lock().unwrap())
    }

    /// Waits until it is told that there is nothing more; what it has seen.
    pub async fn ended(mut self, within: Duration) -> Seen<T> {
        let ended = tokio::time::timeout(within, &mut self.reading).await;
        let seen = self.stop();
        assert!(ended.is_ok(), "after {} events and {} cuts", seen.events.len(), seen.cuts);
        seen
    }

    /// Stops; what it has seen.
    pub fn stop(self) -> Seen<T> {
        self.reading.abort();
        std::mem::take(&mut *self.seen.lock().unwrap())
    }
}

impl<T> Drop for Reader<T> {
    fn drop(&mut self) {
        self.reading.abort();
    }
}

async fn read<T>(
    doors: Vec<Door>,
    path: String,
    silence: Duration,
    keep: fn(&Frame) -> T,
    seen: Arc<Mutex<Seen<T>>>,
    changed: watch::Sender<usize>,
) {
    let mut pause = tokio::time::interval(Duration::from_millis(20));
    for door in doors.iter().cycle() {
        pause.tick().await;
        let client: Client<_, Body> = Client::builder(TokioExecutor::new()).build_http();
        let mut request = Request::get(format!("{}{path}", door.url()));
        if let Some(last) = &seen.lock().unwrap().last {
            request = request.header("last-event-id", last);
        }
        let opened = tokio::time::timeout(silence, client.request(request.body(Body::empty()).unwrap()));
        let Ok(Ok(response)) = opened.await else { continue };
        match response.status().as_u16() {
            200 => {}
            204 => return,
            _ => continue,
        }
        seen.lock().unwrap().opened = true;
        changed.send_modify(|n| *n += 1);
        let mut body = response.into_body();
        // What is cut may be cut inside of a character.
        let mut text: Vec<u8> = Vec::new();
        while let Ok(Some(Ok(frame))) = tokio::time::timeout(silence, body.frame()).await {
            let Ok(data) = frame.into_data() else { continue };
            text.extend_from_slice(&data);
            while let Some(end) = text.windows(2).position(|w| w == b"\n\n") {
                let block = String::from_utf8(text.drain(..end + 2).collect()).unwrap();
                take(block.trim_end(), keep, &seen);
            }
            changed.send_modify(|n| *n += 1);
        }
        seen.lock().unwrap().cuts += 1;
        changed.send_modify(|n| *n += 1);
    }
}

fn take<T>(block: &str, keep: fn(&Frame) -> T, seen: &Mutex<Seen<T>>) {
    let Some(frame) = parse(block) else { return };
    let mut seen = seen.lock().unwrap();
    if frame.event == "reset" {
        seen.resets += 1;
    }
    if frame.id.is_some() {
        seen.events.push(keep(&frame));
        seen.last = frame.id;
    }
}
