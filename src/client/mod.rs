//! The Rust SDK: a worker and a caller, both by gRPC. Never imports a server layer: it sees
//! [`crate::proto`] and nothing else of this crate, so that it could be a crate of its own.
//!
//! To add a service to the caller, add a thin method over its generated client; to add something a handler may
//! do, add it to [`worker::Task`].

pub mod caller;
pub mod worker;

pub use caller::{CallError, Caller, Events};
pub(crate) use worker::Connection;
pub use worker::{Task, TaskError, Worker, WorkerError, WorkerHandle};
