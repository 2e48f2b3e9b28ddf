//! What integration tests share: a real server process, and clients for its doors.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests fail like tests")]
#![allow(dead_code, missing_docs, unreachable_pub, reason = "each test crate uses its own part")]

pub mod client;
pub mod crew;
pub mod proxy;
pub mod raw;
pub mod reader;
pub mod server;
