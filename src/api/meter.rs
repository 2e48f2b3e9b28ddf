//! What the doors count: connections, calls, streams, bytes of bodies that are being read. One [`Meter`] is shared by
//! everything that belongs to one server; it is part of [`Options`](super::Options).
//!
//! Invariants
//! - A route is counted under its template and a method under its full name, from lists made when the server starts;
//!   everything else is counted together as `unknown`. So the number of series never grows with what comes in.
//! - What is open is counted by a guard that ends with it.

use super::{is_grpc, metrics};
use crate::app::Histogram;
use axum::body::Body;
use axum::extract::{MatchedPath, Request, State};
use axum::middleware::Next;
use axum::response::Response;
use http::HeaderMap;
use http_body_util::BodyExt as _;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use tokio::time::Instant;
use tonic::{Code, Status};

/// Bounds of times of calls, in seconds.
const TIMES: &[f64] = &[0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 10.0];
/// Where calls of no known route or method are counted.
pub(super) const UNKNOWN: &str = "unknown";
/// Numbers of gRPC codes: 0 to 16.
const CODES: usize = 17;

/// Calls of one route or method.
#[derive(Debug)]
pub(super) struct Calls {
    /// By class of the status (from 1xx) or by gRPC code.
    pub(super) answers: Box<[AtomicU64]>,
    /// Until the head of the answer over HTTP, to its end over gRPC.
    pub(super) took: Histogram,
}

impl Calls {
    fn new(answers: usize) -> Self {
        let answers = (0..answers).map(|_| AtomicU64::new(0)).collect();
        Self { answers, took: Histogram::new(TIMES) }
    }

    fn answered(&self, how: usize, begun: Instant) {
        if let Some(count) = self.answers.get(how) {
            count.fetch_add(1, Relaxed);
        }
        self.took.took(begun.elapsed());
    }
}

/// Calls by what was called, of a fixed list.
#[derive(Debug)]
pub(super) struct Table(HashMap<String, Calls>, Calls);

impl Table {
    fn new(names: impl IntoIterator<Item = String>, answers: usize) -> Self {
        Self(names.into_iter().map(|name| (name, Calls::new(answers))).collect(), Calls::new(answers))
    }

    fn of(&self, name: Option<&str>) -> &Calls {
        name.and_then(|name| self.0.get(name)).unwrap_or(&self.1)
    }

    /// All of it, in order of names, what is unknown last.
    pub(super) fn all(&self) -> Vec<(&str, &Calls)> {
        let mut all: Vec<_> = self.0.iter().map(|(name, calls)| (name.as_str(), calls)).collect();
        all.sort_unstable_by_key(|(name, _)| *name);
        all.push((UNKNOWN, &self.1));
        all
    }
}

/// What was called, over both doors.
#[derive(Debug)]
pub(super) struct Called {
    pub(super) http: Table,
    pub(super) grpc: Table,
}

impl Called {
    /// For these templates of routes and full names of methods (`/package.Service/Method`).
    pub(super) fn new(
        routes: impl IntoIterator<Item = String>,
        methods: impl IntoIterator<Item = String>,
    ) -> Self {
        Self { http: Table::new(routes, 5), grpc: Table::new(methods, CODES) }
    }
}

/// Streams whose number is limited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Streams {
    /// Followers of events, by SSE or `Watch`.
    Events,
    /// Workers.
    Workers,
    /// `StartMany`.
    Starts,
}

/// How a connection was turned away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TurnedAway {
    /// With an answer that says why.
    Answered,
    /// Closed at once.
    Closed,
}

/// See the module. Cheap to clone; clones count together.
#[derive(Debug, Clone, Default)]
pub struct Meter(Arc<Counts>);

/// The numbers of a [`Meter`].
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) connections: AtomicUsize,
    pub(super) accepted: AtomicU64,
    /// By [`TurnedAway`].
    pub(super) turned_away: [AtomicU64; 2],
    /// By [`Streams`].
    pub(super) streams: [AtomicUsize; 3],
    pub(super) streams_refused: [AtomicU64; 3],
    /// Bytes of bodies and messages that have come and are not whole, or not worked on to the end.
    pub(super) body_bytes: AtomicUsize,
    pub(super) bodies_refused: AtomicU64,
}

impl Meter {
    /// The numbers.
    pub(super) fn counts(&self) -> &Counts {
        &self.0
    }

    /// Counts a connection until it ends.
    pub(super) fn connected(&self) -> Open {
        self.0.accepted.fetch_add(1, Relaxed);
        self.0.connections.fetch_add(1, Relaxed);
        Open(Arc::clone(&self.0), Which::Connection)
    }

    pub(super) fn turned_away(&self, how: TurnedAway) {
        self.0.turned_away[how as usize].fetch_add(1, Relaxed);
    }

    /// Counts a stream until it ends; none if there are `most` already.
    pub(crate) fn opened(&self, kind: Streams, most: usize) -> Option<Open> {
        let count = &self.0.streams[kind as usize];
        if count.fetch_update(Relaxed, Relaxed, |n| (n < most).then_some(n + 1)).is_err() {
            self.0.streams_refused[kind as usize].fetch_add(1, Relaxed);
            return None;
        }
        Some(Open(Arc::clone(&self.0), Which::Stream(kind)))
    }

    /// An account for the bytes of one body, of which all together may have `most`.
    pub(crate) fn body(&self, most: usize) -> Held {
        Held { counts: Arc::clone(&self.0), bytes: 0, most }
    }
}

#[derive(Debug, Clone, Copy)]
enum Which {
    Connection,
    Stream(Streams),
}

/// Something that is open, and counted until this is dropped.
#[derive(Debug)]
#[must_use = "it counts as long as it lives"]
pub(crate) struct Open(Arc<Counts>, Which);

impl Drop for Open {
    fn drop(&mut self) {
        let count = match self.1 {
            Which::Connection => &self.0.connections,
            Which::Stream(kind) => &self.0.streams[kind as usize],
        };
        count.fetch_sub(1, Relaxed);
    }
}

/// Bytes that a body holds, given back when this is dropped.
#[derive(Debug)]
pub(crate) struct Held {
    counts: Arc<Counts>,
    bytes: usize,
    most: usize,
}

impl Held {
    /// Holds `bytes` more. False: all bodies together have too many; this one is given up.
    #[must_use]
    pub(crate) fn grow(&mut self, bytes: usize) -> bool {
        let count = &self.counts.body_bytes;
        let grown = count.fetch_add(bytes, Relaxed) + bytes;
        self.bytes += bytes;
        // One body alone always has room: each has a limit of its own.
        let fits = grown <= self.most || self.bytes == grown;
        if !fits {
            self.counts.bodies_refused.fetch_add(1, Relaxed);
        }
        fits
    }

    /// Gives everything back.
    pub(crate) fn clear(&mut self) {
        self.counts.body_bytes.fetch_sub(std::mem::take(&mut self.bytes), Relaxed);
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.clear();
    }
}

/// Counts a call over either door.
pub(super) async fn counted(State(called): State<Arc<Called>>, request: Request, next: Next) -> Response {
    let begun = Instant::now();
    if is_grpc(&request) {
        let method = request.uri().path().to_owned();
        let response = next.run(request).await;
        let ended = Ended { called, method, begun, told: false };
        return ended.watch(response);
    }
    let route = request.extensions().get::<MatchedPath>().cloned();
    let response = next.run(request).await;
    let class = usize::from(response.status().as_u16() / 100).saturating_sub(1);
    called.http.of(route.as_ref().map(MatchedPath::as_str)).answered(class, begun);
    response
}

/// Waits for the status of a gRPC call, which comes last.
struct Ended {
    called: Arc<Called>,
    method: String,
    begun: Instant,
    told: bool,
}

impl Ended {
    fn tell(&mut self, code: Code) {
        if !std::mem::replace(&mut self.told, true) {
            self.called.grpc.of(Some(&self.method)).answered(code as usize, self.begun);
        }
    }

    fn look(&mut self, headers: &HeaderMap) {
        if let Some(status) = Status::from_header_map(headers) {
            self.tell(status.code());
        }
    }

    fn watch(mut self, response: Response) -> Response {
        self.look(response.headers());
        if self.told {
            return response;
        }
        if !response.status().is_success() {
            // What is no gRPC after all gets an answer of HTTP.
            self.tell(Code::InvalidArgument);
            return response;
        }
        // Dropped with the body, wherever that ends.
        response.map(|body| {
            Body::new(body.map_frame(move |frame| {
                if let Some(trailers) = frame.trailers_ref() {
                    self.look(trailers);
                }
                frame
            }))
        })
    }
}

impl Drop for Ended {
    fn drop(&mut self) {
        // The other side has gone before the end, or the stream was dropped.
        self.tell(Code::Cancelled);
    }
}

/// The full names of all methods of gRPC that are served.
pub(super) fn methods() -> Vec<String> {
    use prost::Message as _;
    let mut names: Vec<String> = [crate::proto::FILE_DESCRIPTOR_SET, tonic_health::pb::FILE_DESCRIPTOR_SET]
        .iter()
        .filter_map(|set| prost_types::FileDescriptorSet::decode(*set).ok())
        .flat_map(|set| set.file)
        .flat_map(|file| {
            let package = file.package().to_owned();
            file.service.into_iter().flat_map(move |service| {
                let of = format!("/{package}.{}", service.name());
                service.method.into_iter().map(move |m| format!("{of}/{}", m.name()))
            })
        })
        .collect();
    for version in ["v1", "v1alpha"] {
        names.push(format!("/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo"));
    }
    names
}

/// The name of a gRPC code, as its specification writes it.
pub(super) fn code_name(code: usize) -> &'static str {
    const NAMES: [&str; CODES] = [
        "OK",
        "CANCELLED",
        "UNKNOWN",
        "INVALID_ARGUMENT",
        "DEADLINE_EXCEEDED",
        "NOT_FOUND",
        "ALREADY_EXISTS",
        "PERMISSION_DENIED",
        "RESOURCE_EXHAUSTED",
        "FAILED_PRECONDITION",
        "ABORTED",
        "OUT_OF_RANGE",
        "UNIMPLEMENTED",
        "INTERNAL",
        "UNAVAILABLE",
        "DATA_LOSS",
        "UNAUTHENTICATED",
    ];
    NAMES.get(code).copied().unwrap_or(UNKNOWN)
}

/// What `/metrics` answers.
pub(super) fn scrape(app: &crate::app::App, meter: &Meter, called: &Arc<Called>) -> String {
    metrics::text(app.measured(), meter, called)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_methods_are_known_by_their_full_names() {
        let names = methods();
        for name in [
            "/downbeat.v1.RunService/StartMany",
            "/downbeat.v1.WorkerService/Connect",
            "/grpc.health.v1.Health/Check",
        ] {
            assert!(names.iter().any(|n| n == name), "{name}: {names:?}");
        }
        for code in 0..CODES {
            let name = format!("{:?}", Code::from_i32(code as i32)).to_uppercase();
            assert_eq!(code_name(code).replace('_', ""), if code == 0 { "OK".into() } else { name });
        }
    }

    #[test]
    fn streams_are_counted_while_they_are_open_and_no_more_than_allowed() {
        let meter = Meter::default();
        let first = meter.opened(Streams::Events, 2).unwrap();
        let second = meter.opened(Streams::Events, 2).unwrap();
        assert!(meter.opened(Streams::Events, 2).is_none());
        // Another kind has a limit of its own.
        let worker = meter.opened(Streams::Workers, 1).unwrap();
        drop(first);
        let third = meter.opened(Streams::Events, 2);
        assert!(third.is_some());
        drop((second, third, worker));
        assert_eq!(meter.counts().streams.each_ref().map(|n| n.load(Relaxed)), [0, 0, 0]);
        assert_eq!(meter.counts().streams_refused.each_ref().map(|n| n.load(Relaxed)), [1, 0, 0]);
    }

    #[test]
    fn bodies_have_room_together_and_one_alone_always() {
        let meter = Meter::default();
        let mut first = meter.body(100);
        assert!(first.grow(150), "the only one");
        let mut second = meter.body(100);
        assert!(!second.grow(1));
        drop(second);
        first.clear();
        let mut third = meter.body(100);
        assert!(third.grow(60) && third.grow(40));
        drop((first, third));
        assert_eq!(meter.counts().body_bytes.load(Relaxed), 0);
    }

    #[test]
    fn calls_of_no_known_name_are_counted_together() {
        let table = Table::new(["/a".to_owned(), "/b".to_owned()], 5);
        for name in [Some("/b"), Some("/x/1"), Some("/x/2"), None] {
            table.of(name).answered(1, Instant::now());
        }
        let counts: Vec<_> =
            table.all().into_iter().map(|(name, c)| (name, c.answers[1].load(Relaxed))).collect();
        assert_eq!(counts, [("/a", 0), ("/b", 1), (UNKNOWN, 3)]);
    }
}
