//! Layer 3: worker sessions as a sans-I/O machine. The [`Dispatcher`] knows which worker streams are open
//! on this server, what credit each has and what each holds; it never waits, reads a clock or does I/O.
//!
//! Invariants
//! - A [`Reservation`] ends exactly once: assigned, given back, or its session is gone.
//! - What a session holds plus what is reserved for it never exceeds its credit. The one exception in
//!   bookkeeping, not in fact: the credit of a result under commit may carry the next task of the same
//!   decision, whose assignment leaves only after that result's acknowledgement.
//! - A session that leaves an assignment unacknowledged for half the ack window gets no new work.
//!
//! To add a message from workers: a variant in [`message::FromWorker`], an arm in `app/sessions.rs`, and
//! the mapping in `api/grpc/worker.rs`.

pub mod dispatcher;
pub mod message;
pub mod outbox;
pub mod pools;
mod rounds;

pub use dispatcher::{AckWork, Dispatcher, Flight, Reservation, SessionKey};
pub use outbox::Outbox;
pub use pools::Pool;
