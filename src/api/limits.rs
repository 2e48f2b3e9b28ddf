//! What the doors take and how long they wait. The constants are promises to users; [`Options`] holds
//! what an operator may change.

use super::meter::Meter;
use std::time::Duration;

/// Largest JSON body: an input of 1 MiB and what stands around it.
pub(crate) const JSON_BODY_MAX: usize = 2 << 20;
/// Largest body of a call for many runs.
pub(crate) const BULK_BODY_MAX: usize = 8 << 20;
/// Largest workflow document.
pub(crate) const DOCUMENT_MAX: usize = 1 << 20;
/// Largest body that settles a task. An output above 1 MiB must reach the application, which fails the
/// attempt instead of letting it be tried again.
pub(crate) const RESULT_BODY_MAX: usize = 8 << 20;
/// A body over its limit is read and thrown away up to this size, so that the client reads the answer
/// instead of a broken pipe.
pub(crate) const DRAIN_MAX: usize = 32 << 20;
/// Largest gRPC message the server reads.
pub(crate) const GRPC_READ_MAX: usize = 8 << 20;
/// Largest gRPC message the server sends; stock clients refuse 4 MiB.
pub(crate) const GRPC_SEND_MAX: usize = 3 << 20;
/// Batches are cut at this size, so that no frame holds up the others on its connection.
pub(crate) const FRAME_BYTES: usize = 64 << 10;
/// Batches are cut at this many parts.
pub(crate) const FRAME_PARTS: usize = 512;
/// Items of a page, if not said otherwise.
pub(crate) const PAGE_DEFAULT: u32 = 50;
/// Most items of a page.
pub(crate) const PAGE_MAX: u32 = 500;
/// Longest `wait` of a start, a read or a claim, in seconds.
pub(crate) const WAIT_MAX_SECS: i64 = 60;
/// Most tasks of one claim.
pub(crate) const CLAIM_MAX: u32 = 1_000;
/// Most task types of one claim.
pub(crate) const CLAIM_TYPES_MAX: usize = 100;
/// Longest label of a worker, in bytes.
pub(crate) const LABEL_MAX: usize = 256;
/// Most tags of a run.
pub(crate) const TAGS_MAX: usize = 32;
/// Longest key of a tag, in bytes.
pub(crate) const TAG_KEY_MAX: usize = 128;
/// Longest value of a tag, in bytes.
pub(crate) const TAG_VALUE_MAX: usize = 256;
/// Most starts of one `StartMany` stream that are under way at once.
pub(crate) const STARTS_IN_FLIGHT: usize = 1_024;
/// Most bytes of inputs of one `StartMany` stream that are under way at once.
pub(crate) const STARTS_IN_FLIGHT_BYTES: usize = 8 << 20;

/// Connections over [`Options::max_connections`] that are taken up all the same, to be told so. Probes and `/metrics` are
/// answered on them.
pub(crate) const SPARE_CONNECTIONS: usize = 64;
/// How long such a connection lives.
pub(crate) const SPARE_FOR: Duration = Duration::from_secs(5);

/// What an operator may change about the doors. The defaults suit a server behind a load balancer.
#[derive(Debug, Clone)]
pub struct Options {
    /// Connections at once. More are answered with `overloaded` and closed, or just closed. Default 20,000.
    pub max_connections: usize,
    /// HTTP/2 streams at once per connection. Default 1,000.
    pub max_streams: u32,
    /// Followers of events at once, over SSE and `Watch`. Default 10,000.
    pub max_events: usize,
    /// Streams of workers at once. Default 10,000.
    pub max_workers: usize,
    /// Streams of `StartMany` at once. Default 1,000.
    pub max_starts: usize,
    /// Headers of one request. Default 100.
    pub max_headers: usize,
    /// Bytes of all headers of one request. Default 32 KiB.
    pub header_bytes: usize,
    /// Bytes of the address of a request. Default 16 KiB.
    pub address_bytes: usize,
    /// Bytes of all bodies and messages together that are being read or worked on. Default 256 MiB.
    pub body_memory: usize,
    /// A connection must send its first bytes, and each request its head, within this; idle HTTP/1.1
    /// connections are closed after it. Default 20 s.
    pub head_within: Duration,
    /// A body, and a gRPC message that has begun, must have arrived whole within this. Default 25 s.
    pub body_within: Duration,
    /// A connection that takes no bytes for this long, while there are some to send, is closed. Default 30 s.
    pub stalled_after: Duration,
    /// HTTP/2 connections are pinged this often. Default 10 s.
    pub ping_every: Duration,
    /// … and closed if they do not answer within this. Default 10 s.
    pub ping_within: Duration,
    /// A worker stream must begin with `Hello` within this. Default 10 s.
    pub hello_within: Duration,
    /// Event streams carry a comment this often. Default 15 s.
    pub comment_every: Duration,
    /// After the shutdown signal, requests under way have this long. Default 10 s.
    pub grace: Duration,
    /// Where everything is counted.
    pub meter: Meter,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            max_connections: 20_000,
            max_streams: 1_000,
            max_events: 10_000,
            max_workers: 10_000,
            max_starts: 1_000,
            max_headers: 100,
            header_bytes: 32 << 10,
            address_bytes: 16 << 10,
            body_memory: 256 << 20,
            head_within: Duration::from_secs(20),
            body_within: Duration::from_secs(25),
            stalled_after: Duration::from_secs(30),
            ping_every: Duration::from_secs(10),
            ping_within: Duration::from_secs(10),
            hello_within: Duration::from_secs(10),
            comment_every: Duration::from_secs(15),
            grace: Duration::from_secs(10),
            meter: Meter::default(),
        }
    }
}
