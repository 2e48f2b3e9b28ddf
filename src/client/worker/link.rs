//! One stream to a server: what is to be said is collected and merged in an [`Outbox`] and goes out in batches
//! as fast as the connection takes it; what is heard goes to the session in the order of arrival.
//!
//! Invariants
//! - Reading never waits for writing: acknowledgements and pongs are put into the outbox, which never blocks.
//! - The outbox is bounded by what the worker holds: each token is in it at most once per kind.
//! - An acknowledgement leaves before the result of the same token.

use super::WorkerError;
use crate::proto::v1 as pb;
use crate::proto::v1::server_message::Message as FromServer;
use crate::proto::v1::worker_message::Message as ToServer;
use futures::Stream;
use futures::task::AtomicWaker;
use parking_lot::Mutex;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::mpsc;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

/// Results and tokens per message; keeps one message short enough to be written while the next is collected.
const MAX_PER_MESSAGE: usize = 1_000;
/// Payload bytes of results per message; the server reads up to 8 MiB, and one result may have 1 MiB.
const MAX_RESULT_BYTES: usize = 1 << 20;
/// From dialling to `Welcome`.
const OPEN_WITHIN: Duration = Duration::from_secs(10);

/// Checks the address and fixes the transport's settings.
pub(super) fn endpoint(url: &str) -> Result<Endpoint, WorkerError> {
    let bad = |reason: &str| WorkerError::Address { url: url.to_owned(), reason: reason.to_owned() };
    let endpoint = Endpoint::from_shared(url.to_owned()).map_err(|e| bad(&e.to_string()))?;
    match endpoint.uri().scheme_str() {
        Some("http") => {}
        Some("https") => {
            return Err(bad("https is not built in; put a proxy that ends TLS before the server"));
        }
        _ => return Err(bad("it must begin with http://")),
    }
    Ok(endpoint
        .connect_timeout(Duration::from_secs(5))
        .tcp_nodelay(true)
        .initial_stream_window_size(4 << 20)
        .initial_connection_window_size(8 << 20))
}

/// What waits to be said.
#[derive(Debug, Default)]
struct Pending {
    hello: Option<pb::Hello>,
    pong: bool,
    credits: Vec<pb::Subscription>,
    drain: bool,
    acks: Vec<String>,
    results: Vec<pb::Result>,
    beats: Vec<pb::Heartbeat>,
    closed: bool,
}

impl Pending {
    fn next(&mut self) -> Option<ToServer> {
        if let Some(hello) = self.hello.take() {
            return Some(ToServer::Hello(hello));
        }
        if std::mem::take(&mut self.pong) {
            return Some(ToServer::Pong(pb::Pong {}));
        }
        if let Some(credit) = self.credits.pop() {
            return Some(ToServer::Credit(credit));
        }
        if std::mem::take(&mut self.drain) {
            return Some(ToServer::Drain(pb::Drain {}));
        }
        if !self.acks.is_empty() {
            return Some(ToServer::Ack(pb::Tokens { tokens: front(&mut self.acks, MAX_PER_MESSAGE) }));
        }
        if !self.results.is_empty() {
            let mut bytes = 0;
            let fits = self.results.iter().take_while(|r| {
                let before = bytes;
                bytes += size(r);
                before == 0 || bytes <= MAX_RESULT_BYTES
            });
            let count = fits.count().min(MAX_PER_MESSAGE);
            return Some(ToServer::Results(pb::Results { results: front(&mut self.results, count) }));
        }
        if !self.beats.is_empty() {
            let heartbeats = front(&mut self.beats, MAX_PER_MESSAGE);
            return Some(ToServer::Heartbeat(pb::Heartbeats { heartbeats }));
        }
        None
    }
}

/// The first `count` items; the whole list without copying when it is not longer.
fn front<T>(list: &mut Vec<T>, count: usize) -> Vec<T> {
    if list.len() <= count {
        return std::mem::take(list);
    }
    let rest = list.split_off(count);
    std::mem::replace(list, rest)
}

fn size(result: &pb::Result) -> usize {
    let payload = match &result.outcome {
        Some(pb::result::Outcome::Completed(json)) => json.len(),
        Some(pb::result::Outcome::Failed(f)) => f.code.len() + f.message.len(),
        Some(pb::result::Outcome::Released(_)) | None => 0,
    };
    payload + result.token.len() + 16
}

/// What the worker wants to say, merged until the connection takes it.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    pending: Mutex<Pending>,
    waker: AtomicWaker,
}

impl Outbox {
    fn put(&self, change: impl FnOnce(&mut Pending)) {
        change(&mut self.pending.lock());
        self.waker.wake();
    }

    /// These assignments arrived.
    pub(super) fn ack(&self, tokens: impl IntoIterator<Item = String>) {
        self.put(|p| p.acks.extend(tokens));
    }

    /// These are done; `results` is left empty.
    pub(super) fn results(&self, results: &mut Vec<pb::Result>) {
        self.put(|p| p.results.append(results));
    }

    /// These attempts are alive.
    pub(super) fn beats(&self, beats: Vec<pb::Heartbeat>) {
        self.put(|p| p.beats.extend(beats));
    }

    /// No more assignments, please: no credit, so that the answers to it say when the last one has come.
    pub(super) fn drain(&self, task_types: impl Iterator<Item = String>) {
        self.put(|p| {
            p.credits = task_types.map(|r#type| pb::Subscription { r#type, ..Default::default() }).collect();
            p.drain = true;
        });
    }

    fn close(&self) {
        self.put(|p| p.closed = true);
    }
}

/// The outbox as the request stream of the call.
struct Outgoing(Arc<Outbox>);

impl Stream for Outgoing {
    type Item = pb::WorkerMessage;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<pb::WorkerMessage>> {
        self.0.waker.register(cx.waker());
        let mut pending = self.0.pending.lock();
        match pending.next() {
            Some(message) => Poll::Ready(Some(pb::WorkerMessage { message: Some(message) })),
            None if pending.closed => Poll::Ready(None),
            None => Poll::Pending,
        }
    }
}

/// What a link tells the session.
#[derive(Debug)]
pub(super) enum Heard {
    /// A message; pings are already answered and assignments acknowledged.
    Message(FromServer),
    /// The stream is over.
    Closed(String),
}

/// Why no link came about.
#[derive(Debug)]
pub(super) enum DialError {
    /// Worth trying again.
    Temporary(String),
    /// The same try would be refused again.
    Refused(String),
}

impl From<Status> for DialError {
    fn from(status: Status) -> Self {
        match status.code() {
            Code::InvalidArgument
            | Code::Unauthenticated
            | Code::PermissionDenied
            | Code::Unimplemented
            | Code::OutOfRange => Self::Refused(status.message().to_owned()),
            code => Self::Temporary(format!("{code:?}: {}", status.message())),
        }
    }
}

/// An open stream. Dropping it half-closes the stream after what is in the outbox and stops reading.
#[derive(Debug)]
pub(super) struct Link {
    /// To the server.
    pub(super) outbox: Arc<Outbox>,
    /// From the server. A server sends no more than the credit it was granted, which bounds this queue.
    pub(super) heard: mpsc::UnboundedReceiver<Heard>,
    /// No assignment comes on it any more.
    pub(super) going_away: bool,
    reader: tokio::task::JoinHandle<()>,
}

impl Drop for Link {
    fn drop(&mut self) {
        self.outbox.close();
        self.reader.abort();
    }
}

/// Connects, says `hello` and waits for the welcome.
pub(super) async fn dial(endpoint: Endpoint, hello: pb::Hello) -> Result<(Link, pb::Welcome), DialError> {
    match tokio::time::timeout(OPEN_WITHIN, open(endpoint, hello)).await {
        Ok(opened) => opened,
        Err(_) => Err(DialError::Temporary("the server did not welcome the worker within 10 s".into())),
    }
}

async fn open(endpoint: Endpoint, hello: pb::Hello) -> Result<(Link, pb::Welcome), DialError> {
    over(connect(endpoint).await?, hello).await
}

/// Makes a connection.
pub(super) async fn connect(endpoint: Endpoint) -> Result<Channel, DialError> {
    endpoint.connect().await.map_err(|e| DialError::Temporary(root_cause(&e)))
}

/// Says `hello` on a new stream of a connection and waits for the welcome.
pub(super) async fn over(channel: Channel, hello: pb::Hello) -> Result<(Link, pb::Welcome), DialError> {
    let outbox = Arc::new(Outbox::default());
    outbox.put(|p| p.hello = Some(hello));
    let mut client = pb::worker_service_client::WorkerServiceClient::new(channel);
    let mut stream = client.connect(Outgoing(Arc::clone(&outbox))).await?.into_inner();
    let welcome = match stream.message().await?.and_then(|m| m.message) {
        Some(FromServer::Welcome(welcome)) => welcome,
        Some(other) => return Err(DialError::Temporary(format!("expected a welcome, got {other:?}"))),
        None => return Err(DialError::Temporary("the server closed the stream before its welcome".into())),
    };
    let (tell, heard) = mpsc::unbounded_channel();
    let reader = tokio::spawn(read(stream, Arc::clone(&outbox), tell, silence(&welcome)));
    Ok((Link { outbox, heard, going_away: false, reader }, welcome))
}

/// A stream on which not even a ping came for this long is dead, whatever TCP says: two of them are missing. What the
/// worker holds is its own for a lease, of which enough must be left to resume.
fn silence(welcome: &pb::Welcome) -> Duration {
    let ping = Duration::from_millis(u64::from(welcome.ping_ms));
    (ping * 2).max(Duration::from_secs(1))
}

async fn read(
    mut stream: tonic::Streaming<pb::ServerMessage>,
    outbox: Arc<Outbox>,
    tell: mpsc::UnboundedSender<Heard>,
    silence: Duration,
) {
    let why = loop {
        match tokio::time::timeout(silence, stream.message()).await {
            Ok(Ok(Some(pb::ServerMessage { message: Some(message) }))) => {
                match &message {
                    FromServer::Ping(_) => {
                        outbox.put(|p| p.pong = true);
                        continue;
                    }
                    FromServer::Assign(a) => outbox.ack(a.assignments.iter().map(|a| a.token.clone())),
                    _ => {}
                }
                if tell.send(Heard::Message(message)).is_err() {
                    return;
                }
            }
            // A kind of message that this version does not know.
            Ok(Ok(Some(pb::ServerMessage { message: None }))) => {}
            Ok(Ok(None)) => break "the server closed the stream".to_owned(),
            Ok(Err(status)) => break format!("{:?}: {}", status.code(), status.message()),
            Err(_) => break format!("the server was silent for {} ms", silence.as_millis()),
        }
    };
    // Nobody listens any more if this fails.
    let _ = tell.send(Heard::Closed(why));
}

/// The innermost reason, which says more than "transport error".
fn root_cause(error: &dyn std::error::Error) -> String {
    let mut inner = error;
    while let Some(source) = inner.source() {
        inner = source;
    }
    inner.to_string()
}
