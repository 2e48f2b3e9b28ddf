//! Connections: HTTP/1.1 and HTTP/2 (without TLS) on one listener, with limits in number and time.
//!
//! Whoever sends nothing, sends by the drop, does not answer pings or does not read is closed within
//! [`Options`]' times. A stop closes idle connections at once, whatever their clients do about it, lets requests
//! under way end, and drops what is left after [`Options::grace`].

use super::error::{Refused, status};
use super::limits::{SPARE_CONNECTIONS, SPARE_FOR};
use super::meter::TurnedAway;
use super::{Connection, Options, bare, is_grpc};
use crate::app::AppError;
use crate::model::error::ErrorCode;
use crate::model::time::Span;
use axum::Router;
use axum::body::Body;
use axum::response::{IntoResponse as _, Response};
use http::{HeaderValue, Request, Version, header};
use hyper::body::{Body as HttpBody, Frame, Incoming, SizeHint};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, Semaphore};
use tokio::task::JoinSet;
use tokio::time::{Instant, Sleep, sleep};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

/// Window of one HTTP/2 stream: about what a fast worker has in flight.
const STREAM_WINDOW: u32 = 1 << 20;
/// Window of one HTTP/2 connection: a slow stream must not starve the others.
const CONNECTION_WINDOW: u32 = 16 << 20;
/// HTTP/1.1: what is read of a request at once. Above the limits of its head, so that these are told apart.
const BUFFER: usize = 128 << 10;
/// Headers that hyper takes without memory of their own.
const HEADERS: usize = 100;
/// A failed `accept` (no file descriptors, say) is tried again after this.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// At a stop, a connection on which nothing is under way has this long to end by itself: a goodbye is on its way to the
/// client, and a request may be on its way to us.
const LINGER: Duration = Duration::from_millis(250);

/// Serves `router` on `listener` until `shutdown` resolves and what was under way has ended, or
/// [`Options::grace`] has passed.
///
/// # Errors
/// None of a single connection ends the server; only what the listener cannot recover from is returned.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    options: Options,
    shutdown: impl Future<Output = ()>,
) -> io::Result<()> {
    let builder = Arc::new(builder(&options));
    let options = Arc::new(options);
    let slots = Arc::new(Semaphore::new(options.max_connections));
    let spare = Arc::new(Semaphore::new(SPARE_CONNECTIONS));
    let closing = CancellationToken::new();
    let mut connections = JoinSet::new();
    let mut shutdown = pin!(shutdown);
    loop {
        let accepted = tokio::select! {
            biased;
            () = &mut shutdown => break,
            accepted = accept(&listener) => accepted,
            Some(_) = connections.join_next() => continue,
        };
        match accepted {
            Ok((stream, peer)) => {
                let regular = Arc::clone(&slots).try_acquire_owned().ok();
                let is_spare = regular.is_none();
                let Some(permit) = regular.or_else(|| Arc::clone(&spare).try_acquire_owned().ok()) else {
                    options.meter.turned_away(TurnedAway::Closed);
                    continue;
                };
                let connection = Connection { peer, closing: closing.clone() };
                let (builder, router) = (Arc::clone(&builder), router.clone());
                let options = Arc::clone(&options);
                connections.spawn(async move {
                    let _counted = options.meter.connected();
                    let activity = Arc::new(Activity::default());
                    let io = Guarded::new(stream, options.head_within, options.stalled_after, &activity);
                    let door =
                        Door { router, options, connection, is_spare, enough: CancellationToken::new() };
                    let running = run(&builder, io, door, activity);
                    if is_spare {
                        // Too late for a goodbye then: it has had its time.
                        let _ended = tokio::time::timeout(SPARE_FOR, running).await;
                    } else {
                        running.await;
                    }
                    drop(permit);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::select! {
                    () = &mut shutdown => break,
                    () = sleep(ACCEPT_PAUSE) => {}
                }
            }
        }
    }
    drop(listener);
    closing.cancel();
    let drained = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(options.grace, drained).await.is_err() {
        tracing::warn!(left = connections.len(), "connections are dropped: their time to end has passed");
    }
    Ok(())
}

async fn accept(listener: &TcpListener) -> io::Result<(TcpStream, SocketAddr)> {
    let (stream, peer) = listener.accept().await?;
    // Refused only where the other side has gone already, which is found out soon enough.
    let _ = stream.set_nodelay(true);
    Ok((stream, peer))
}

fn builder(options: &Options) -> Builder<TokioExecutor> {
    let mut builder = Builder::new(TokioExecutor::new());
    let buffer = BUFFER.max(2 * (options.header_bytes + options.address_bytes));
    builder.http1().timer(TokioTimer::new()).header_read_timeout(options.head_within).max_buf_size(buffer);
    if options.max_headers != HEADERS {
        builder.http1().max_headers(options.max_headers);
    }
    builder
        .http2()
        .timer(TokioTimer::new())
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_concurrent_streams(options.max_streams)
        .max_header_list_size(head_max(options))
        .keep_alive_interval(options.ping_every)
        .keep_alive_timeout(options.ping_within);
    builder
}

/// What a request over HTTP/2 may have in its head: HTTP counts 32 bytes around each header, and the address is one.
fn head_max(options: &Options) -> u32 {
    let head = options.header_bytes + options.address_bytes + 32 * (options.max_headers + 8);
    u32::try_from(head).unwrap_or(u32::MAX)
}

/// What a connection leads to.
struct Door {
    router: Router,
    options: Arc<Options>,
    connection: Connection,
    /// It is over the limit, and there to say so.
    is_spare: bool,
    /// Cancelled when a spare connection has said it.
    enough: CancellationToken,
}

/// What is answered on spare connections too.
const PROBES: [&str; 4] = ["/livez", "/readyz", "/metrics", "/grpc.health.v1.Health/Check"];

impl Door {
    /// Why a request goes no further; none: it does.
    fn refuses<B>(&self, request: &Request<B>) -> Option<AppError> {
        if self.is_spare && !PROBES.contains(&request.uri().path()) {
            let message = format!(
                "this server has {} connections open and takes no more; try again later, or another server",
                self.options.max_connections
            );
            return Some(AppError::new(ErrorCode::Overloaded, message).retry_after(Span::secs(1)));
        }
        let options = &self.options;
        let address = request.uri().path_and_query().map_or(0, |p| p.as_str().len());
        if address > options.address_bytes {
            let message = format!(
                "the address has {address} bytes; at most {} are taken: values that are long belong into the body",
                options.address_bytes
            );
            return Some(AppError::new(ErrorCode::AddressTooLong, message));
        }
        let headers = request.headers();
        let bytes: usize = headers.iter().map(|(name, value)| name.as_str().len() + value.len()).sum();
        if headers.len() > options.max_headers || bytes > options.header_bytes {
            let message = format!(
                "there are {} headers of {bytes} bytes; at most {} of {} bytes together are taken",
                headers.len(),
                options.max_headers,
                options.header_bytes
            );
            return Some(AppError::new(ErrorCode::HeadersTooLarge, message));
        }
        None
    }

    async fn answer(&self, mut request: Request<Incoming>) -> Response {
        let is_http1 = request.version() < Version::HTTP_2;
        let mut answer = match self.refuses(&request) {
            Some(error) if is_grpc(&request) => status(&error).into_http(),
            Some(error) => Refused(error).into_response(),
            None => {
                request.extensions_mut().insert(self.connection.clone());
                let Ok(answer) = self.router.clone().oneshot(request.map(Body::new)).await;
                answer
            }
        };
        if self.is_spare {
            self.options.meter.turned_away(TurnedAway::Answered);
            self.enough.cancel();
            if is_http1 {
                answer.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
            }
        }
        answer
    }
}

/// One connection to its end. Errors are the other side's; they end it and are nobody else's business.
async fn run(builder: &Builder<TokioExecutor>, io: Guarded<TcpStream>, door: Door, activity: Arc<Activity>) {
    let door = Arc::new(door);
    let (closing, enough) = (door.connection.closing.clone(), door.enough.clone());
    let of_requests = Arc::clone(&activity);
    let service = service_fn(move |request: Request<Incoming>| {
        let under_way = of_requests.begin();
        let door = Arc::clone(&door);
        async move {
            let answer = door.answer(request).await;
            Ok::<_, Infallible>(answer.map(|body| Held { body, _under_way: under_way }))
        }
    });
    let mut serving = pin!(builder.serve_connection(TokioIo::new(io), service));
    let ends = async {
        tokio::select! {
            () = closing.cancelled() => {}
            () = enough.cancelled() => {}
        }
    };
    let result = tokio::select! {
        result = serving.as_mut() => result,
        () = ends => {
            serving.as_mut().graceful_shutdown();
            tokio::select! {
                result = serving.as_mut() => result,
                // hyper waits for a request that has only begun to come, and for clients that do not answer.
                () = activity.quiet(LINGER) => return,
            }
        }
    };
    if let Err(error) = result {
        tracing::debug!(%error, "a connection ended with an error");
    }
}

/// What is under way on one connection.
#[derive(Debug, Default)]
struct Activity {
    /// Requests that were not answered to the end.
    requests: AtomicUsize,
    /// All requests there ever were.
    begun: AtomicU64,
    /// The other side has not taken all of our bytes.
    unwritten: AtomicBool,
    less: Notify,
}

impl Activity {
    fn begin(self: &Arc<Self>) -> UnderWay {
        self.requests.fetch_add(1, Ordering::AcqRel);
        self.begun.fetch_add(1, Ordering::AcqRel);
        UnderWay(Arc::clone(self))
    }

    fn is_idle(&self) -> bool {
        self.requests.load(Ordering::Acquire) == 0 && !self.unwritten.load(Ordering::Acquire)
    }

    fn unwritten(&self, unwritten: bool) {
        if self.unwritten.swap(unwritten, Ordering::AcqRel) && !unwritten {
            self.less.notify_one();
        }
    }

    /// Waits until nothing was under way for `long`.
    async fn quiet(&self, long: Duration) {
        loop {
            let less = self.less.notified();
            if !self.is_idle() {
                less.await;
                continue;
            }
            let begun = self.begun.load(Ordering::Acquire);
            sleep(long).await;
            if self.is_idle() && self.begun.load(Ordering::Acquire) == begun {
                return;
            }
        }
    }
}

/// One request until the last of its answer was taken, or it was given up.
#[derive(Debug)]
struct UnderWay(Arc<Activity>);

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.requests.fetch_sub(1, Ordering::AcqRel);
        self.0.less.notify_one();
    }
}

/// The body of an answer, which keeps its request under way.
#[derive(Debug)]
struct Held {
    body: Body,
    _under_way: UnderWay,
}

impl HttpBody for Held {
    type Data = bytes::Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The bytes by which HTTP/1.1 and HTTP/2 are told apart; hyper waits for them without a limit.
const PREFACE: usize = 24;

/// A stream that fails where hyper would wait for ever: for its first bytes, and for a reader that does
/// not read.
struct Guarded<S> {
    inner: S,
    /// Bytes still to come before hyper's own limits hold, and when they are due.
    first: Option<(usize, Pin<Box<Sleep>>)>,
    stalled_after: Duration,
    /// Runs while a write waits.
    stalled: Option<Pin<Box<Sleep>>>,
    activity: Arc<Activity>,
    /// Written instead of what hyper wants to write, and how much of it is out.
    instead: Option<(Vec<u8>, usize)>,
}

impl<S> Guarded<S> {
    fn new(inner: S, first_within: Duration, stalled_after: Duration, activity: &Arc<Activity>) -> Self {
        let first = Some((PREFACE, Box::pin(sleep(first_within))));
        Self { inner, first, stalled_after, stalled: None, activity: Arc::clone(activity), instead: None }
    }

    /// Passes a finished write on; lets a waiting one wait no longer than allowed.
    fn watch<T>(&mut self, cx: &mut Context<'_>, write: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if write.is_ready() {
            if self.stalled.take().is_some() {
                self.activity.unwritten(false);
            }
            return write;
        }
        self.activity.unwritten(true);
        let after = self.stalled_after;
        let timer =
            self.stalled.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(Instant::now() + after)));
        ready!(timer.as_mut().poll(cx));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the other side does not read")))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Guarded<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = Pin::new(&mut self.inner).poll_read(cx, buf);
        let Some((left, timer)) = &mut self.first else { return read };
        match read {
            Poll::Ready(result) => {
                *left = left.saturating_sub(buf.filled().len() - before);
                if *left == 0 {
                    self.first = None;
                }
                Poll::Ready(result)
            }
            Poll::Pending => {
                ready!(timer.as_mut().poll(cx));
                Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "nothing was sent")))
            }
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Guarded<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        if self.instead.is_none() {
            self.instead = bare::instead_of(buf).map(|text| (text, 0));
        }
        while let Some((text, done)) = self.instead.take() {
            let write = Pin::new(&mut self.inner).poll_write(cx, &text[done..]);
            let write = self.watch(cx, write);
            let Poll::Ready(written) = write else {
                self.instead = Some((text, done));
                return Poll::Pending;
            };
            let done = done + written?;
            if done >= text.len() {
                return Poll::Ready(Ok(buf.len()));
            }
            self.instead = Some((text, done));
        }
        let write = Pin::new(&mut self.inner).poll_write(cx, buf);
        self.watch(cx, write)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let mut some = bufs.iter().filter(|b| !b.is_empty());
        if let (Some(only), None) = (some.next(), some.next()) {
            return self.poll_write(cx, only);
        }
        let write = Pin::new(&mut self.inner).poll_write_vectored(cx, bufs);
        self.watch(cx, write)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::routing::get;
    use http_body_util::BodyExt as _;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    /// A running server; it stops when the token is cancelled.
    async fn start(
        router: Router,
        options: Options,
    ) -> (SocketAddr, CancellationToken, JoinSet<io::Result<()>>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        let mut task = JoinSet::new();
        task.spawn(async move { serve(listener, router, options, stopped.cancelled()).await });
        (address, stop, task)
    }

    fn hello() -> Router {
        Router::new().route(
            "/",
            get(|request: Request<axum::body::Body>| async move {
                format!("{:?} {}", request.version(), Connection::of(request.extensions()).peer.ip())
            }),
        )
    }

    async fn fetch(address: SocketAddr, http2: bool) -> String {
        use hyper_util::client::legacy::Client;
        let client: Client<_, axum::body::Body> =
            Client::builder(TokioExecutor::new()).http2_only(http2).build_http();
        let response = client.get(format!("http://{address}/").parse().unwrap()).await.unwrap();
        String::from_utf8(response.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap()
    }

    #[tokio::test]
    async fn both_versions_of_http_are_served_on_one_port() {
        let (address, stop, mut task) = start(hello(), Options::default()).await;
        assert_eq!(fetch(address, false).await, "HTTP/1.1 127.0.0.1");
        assert_eq!(fetch(address, true).await, "HTTP/2.0 127.0.0.1");
        stop.cancel();
        assert!(task.join_next().await.unwrap().unwrap().is_ok());
    }

    #[tokio::test]
    async fn whoever_sends_nothing_or_half_a_preface_or_half_a_head_is_closed() {
        let options = Options { head_within: Duration::from_millis(100), ..Options::default() };
        let (address, stop, mut task) = start(hello(), options).await;
        for part in ["", "PRI * HTTP/2", "GET / HTTP/1.1\r\nhost: a-host-with-a-long-name\r\nx-slow:"] {
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.write_all(part.as_bytes()).await.unwrap();
            let mut answer = Vec::new();
            let _ = stream.read_to_end(&mut answer).await;
            assert!(!answer.starts_with(b"HTTP/1.1 200"), "{part:?}");
        }
        assert_eq!(fetch(address, false).await, "HTTP/1.1 127.0.0.1");
        stop.cancel();
        assert!(task.join_next().await.unwrap().unwrap().is_ok());
    }

    #[tokio::test]
    async fn a_stop_lets_a_request_under_way_end() {
        let entered = Arc::new(tokio::sync::Notify::new());
        let seen = Arc::clone(&entered);
        let router = Router::new().route(
            "/",
            get(move |request: Request<axum::body::Body>| async move {
                let connection = Connection::of(request.extensions());
                seen.notify_one();
                connection.closing.cancelled().await;
                "ended"
            }),
        );
        let (address, stop, mut task) = start(router, Options::default()).await;
        let request = tokio::spawn(fetch(address, false));
        entered.notified().await;
        stop.cancel();
        assert_eq!(request.await.unwrap(), "ended");
        assert!(task.join_next().await.unwrap().unwrap().is_ok());
        assert!(TcpStream::connect(address).await.is_err(), "the port must be free");
    }

    #[tokio::test]
    async fn what_hyper_refuses_by_itself_has_a_body_too() {
        let (address, stop, mut task) = start(hello(), Options::default()).await;
        let many = format!("GET / HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(101));
        let long = format!("GET /{} HTTP/1.1\r\nhost: a\r\n\r\n", "x".repeat(70_000));
        for (request, status, code) in [
            (long.as_str(), 414, "address_too_long"),
            (many.as_str(), 431, "headers_too_large"),
            ("GET / HTTP/1.1\r\nno header\r\n\r\n", 400, "invalid_request"),
        ] {
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.write_all(request.as_bytes()).await.unwrap();
            let answer = String::from_utf8(told(stream).await).unwrap();
            assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
            assert!(answer.contains("\r\ncontent-type: application/problem+json\r\n"), "{answer}");
            let (_, body) = answer.split_once("\r\n\r\n").unwrap();
            let body: serde_json::Value = serde_json::from_str(body).unwrap();
            assert_eq!((&body["status"], &body["code"]), (&status.into(), &code.into()), "{answer}");
        }
        stop.cancel();
        assert!(task.join_next().await.unwrap().unwrap().is_ok());
    }

    /// What a connection is told until its end.
    async fn told(mut stream: TcpStream) -> Vec<u8> {
        let mut answer = Vec::new();
        // An end is an end, with or without a reset.
        let _ = stream.read_to_end(&mut answer).await;
        answer
    }

    #[tokio::test]
    async fn a_stop_closes_idle_connections_at_once_whatever_their_clients_do() {
        let (address, stop, mut task) = start(hello(), Options::default()).await;
        // The preface of HTTP/2 and an empty SETTINGS; nothing that comes back is ever answered.
        let http2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
        let openings: [&[u8]; 5] = [
            b"",
            b"GET",
            b"GET / HTTP/1.1\r\nhost: a-host-with-a-long-name\r\nx-slow:",
            b"GET / HTTP/1.1\r\nhost: a\r\n\r\n",
            http2,
        ];
        let mut connections = Vec::new();
        for opening in openings {
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.write_all(opening).await.unwrap();
            if opening.ends_with(b"\r\n\r\n") || opening == http2 {
                // It has been taken up: its answer, or the SETTINGS, begins to come.
                stream.readable().await.unwrap();
            }
            connections.push(stream);
        }
        // The others were accepted before it.
        assert_eq!(fetch(address, false).await, "HTTP/1.1 127.0.0.1");
        let begun = Instant::now();
        stop.cancel();
        assert!(task.join_next().await.unwrap().unwrap().is_ok());
        assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
        for stream in connections {
            told(stream).await;
        }
    }

    #[tokio::test]
    async fn a_stop_does_not_cut_an_answer_that_is_read_slowly() {
        const SIZE: usize = 32 << 20;
        let router = Router::new().route("/", get(|| async { vec![b'x'; SIZE] }));
        let (address, stop, mut task) = start(router, Options::default()).await;
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
        stream.readable().await.unwrap();
        stop.cancel();
        // Longer than an idle connection is given.
        let open = tokio::time::timeout(LINGER * 3, task.join_next()).await;
        assert!(open.is_err(), "the answer is not taken yet");
        let answer = told(stream).await;
        assert!(answer.len() > SIZE, "{}", answer.len());
        assert!(task.join_next().await.unwrap().unwrap().is_ok());
    }

    #[tokio::test]
    async fn a_stop_drops_what_does_not_end_within_the_grace() {
        let router = Router::new().route("/", get(|| async { std::future::pending::<()>().await }));
        let options = Options { grace: Duration::from_millis(50), ..Options::default() };
        let (address, stop, mut task) = start(router, options).await;
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
        stop.cancel();
        assert!(task.join_next().await.unwrap().unwrap().is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_reader_that_does_not_read_is_given_up() {
        let (near, _far) = tokio::io::duplex(16);
        let activity = Arc::new(Activity::default());
        let mut guarded = Guarded::new(near, Duration::from_secs(1), Duration::from_secs(30), &activity);
        guarded.write_all(&[0; 16]).await.unwrap();
        let begun = Instant::now();
        let error = guarded.write_all(&[0; 16]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert_eq!(begun.elapsed().as_secs(), 30);
    }
}
