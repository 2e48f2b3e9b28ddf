//! Several servers on one Redis, and workers that die, stay silent or stall.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod children;
mod credits;
mod idle;
mod labels;
mod limits;
mod pressure;
#[path = "../support/redis.rs"]
mod redis;
mod schedules;
mod starts;
#[path = "../support/mod.rs"]
mod support;
mod wide;
mod workers;

use redis::{Options, RedisServer};
use support::server::{Server, free_address};

/// Two servers on one store, and the store.
struct Pair {
    a: Server,
    b: Server,
    redis: RedisServer,
}

impl Pair {
    fn start() -> Self {
        let redis = RedisServer::start(Options::default());
        let server = || Server::serve(&redis.url(), None, free_address());
        Self { a: server(), b: server(), redis }
    }
}
