//! The Rust SDK: a worker (and, over the same port, a caller) by gRPC. Never imports a server layer: it sees
//! [`crate::proto`] and nothing else of this crate, so that it could be a crate of its own.
//!
//! To add a service to the caller, add a thin method over its generated client; to add something a handler may
//! do, add it to [`worker::Task`].

pub mod worker;

pub use worker::{Task, TaskError, Worker, WorkerError, WorkerHandle};
