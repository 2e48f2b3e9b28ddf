//! Downbeat: workflow orchestration over REST and gRPC, with its state in Redis or in a directory.
//!
//! ```text
//! cli        composition root: one file per command
//! api     5  rest, grpc, sse: parse → one call → map
//! app     4  lanes (load → decide → commit → effects), sessions, use cases
//! dispatch, timers, events  3  pure machines and thin drivers
//! store   2  the port; kv (embedded, simulation) and redis
//! occupancy 1  pure: intervals → how many were running, when
//! engine  1  pure: plan + state + command + time → decision
//! chart   0  charts over time, as SVG text
//! model   0  names, time, document → plan, run state, commands, events, errors
//! client     the Rust SDK: speaks gRPC only, never a server layer
//! ```
//!
//! Imports point down only; `tests/layers.rs` holds it. Start reading at `ARCHITECTURE.md`.

pub mod api;
pub mod app;
pub mod chart;
pub mod cli;
pub mod client;
pub mod config;
pub mod dispatch;
pub mod engine;
pub mod events;
pub mod lifecycle;
pub mod model;
pub mod occupancy;
pub mod store;
pub mod telemetry;

/// The wire types of `proto/downbeat/v1`, generated at build time.
#[allow(
    missing_docs,
    unreachable_pub,
    clippy::all,
    clippy::pedantic,
    clippy::allow_attributes_without_reason,
    rustdoc::all,
    reason = "generated code"
)]
pub mod proto {
    /// Version 1.
    pub mod v1 {
        tonic::include_proto!("downbeat.v1");
    }
    /// For reflection.
    pub const FILE_DESCRIPTOR_SET: &[u8] = tonic::include_file_descriptor_set!("downbeat_descriptor");
}
