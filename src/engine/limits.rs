//! The numbers the engine decides by. Lengths of time are on the clock named with each.

use crate::model::time::Span;

/// How long a worker session lives without a sign of life, unless a server is told otherwise; see
/// [`Env::lease`](super::Env::lease).
pub const LEASE: Span = Span::secs(10);

/// The default of [`Env::unacked`](super::Env::unacked).
pub const UNACKED: Span = Span::secs(44);

/// A session whose time has passed while its server is gone as well is waited for so much longer (lease clock): its
/// worker may be well, at work, and unable to say so to a server that was stopped and goes on, or is replaced.
pub const ORPHANED: Span = Span::secs(20);

/// An attempt that was leased under an earlier epoch of its session is looked at again after this if the epoch is new
/// (lease clock): its worker may have named it, and the run be about to hear of it.
pub const RESUMING: Span = Span::secs(3);

/// An open run in which nothing has a time is looked at this often all the same (wall clock).
pub const IDLE_LOOK: Span = Span::secs(3_600);

/// Messages to other records that were not answered are delivered again after this (wall clock).
pub const REDELIVER: Span = Span::secs(5);

/// A child that is waited for is asked this often whether it has ended without our knowing (wall clock).
pub const CHILD_LOOK: Span = Span::secs(600);

/// A slot that was asked for and not heard of is asked for again after this (wall clock).
pub const PERMIT_LOOK: Span = Span::secs(60);

/// Slots, and times of starts, that a run asks for at once; others wait for their turn in it.
pub const ASKED_MAX: usize = 64;

/// A start that a rate allowed and that is later than this asks anew (wall clock).
pub const RATE_LATE: Span = Span::secs(5);

/// Most runs that may stand above a run: what starts itself comes to an end.
pub const CHILD_DEPTH_MAX: u32 = 32;

/// The delivery of one attempt that counts as a failed attempt if it is lost as well.
pub const LOST_DELIVERIES_MAX: u32 = 10;

/// Heartbeats closer together than this share of `timeout.heartbeat` are not written; the timeout strikes this
/// share later, so that no attempt is ever judged silent too early.
pub const HEARTBEAT_SHARE: i64 = 8;

/// Longest error code, bytes.
pub const CODE_MAX: usize = 128;

/// Longest error message, bytes.
pub const MESSAGE_MAX: usize = 4_096;

/// Once the messages of a run's failures come to this many bytes, further ones are cut to [`MESSAGE_SHORT`]:
/// the record is written with every commit and has to stay small.
pub const MESSAGES_BUDGET: usize = 16_384;

/// See [`MESSAGES_BUDGET`].
pub const MESSAGE_SHORT: usize = 200;

/// Distinct worker labels a run remembers; more are all told as [`OTHER_WORKERS`].
pub const WORKERS_MAX: usize = 256;

/// See [`WORKERS_MAX`].
pub const OTHER_WORKERS: &str = "other workers";

/// Longest worker label, bytes.
pub const LABEL_MAX: usize = 128;

/// Computed expressions one decision evaluates before it leaves what else could begin to the next, which follows at
/// once: a decision holds its lane, and one expression may take its fuel's ten milliseconds.
pub const COMPUTED_MAX: u32 = 32;

/// Most items of a `for_each`.
pub const ITEMS_MAX: usize = 10_000;

/// Items of a list that are kept together: an item is found by reading its chunk.
pub const ITEMS_PER_CHUNK: u32 = 64;

/// Most nodes of a run, iterations not counted.
pub const NODES_MAX: usize = 100_000;

/// Most signals a run keeps, consumed ones included.
pub const SIGNALS_MAX: usize = 10_000;
