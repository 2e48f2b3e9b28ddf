//! What servers cost that have nothing to do: commands that Redis counts, those inside scripts included.
//!
//! The bounds are on counts, so that a slow machine changes nothing. For figures, with more workers and the CPU time of
//! the server: `IDLE_WORKERS=1000 cargo test --locked --test servers idle -- --nocapture --test-threads 1`

use super::redis::{Options, RedisServer};
use super::support::client::{Worker, soon};
use super::support::server::{Server, free_address};
use downbeat::proto::v1;
use downbeat::proto::v1::server_message::Message as FromServer;
use downbeat::proto::v1::worker_message::Message as ToServer;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// How long commands are counted.
const COUNTED: Duration = Duration::from_secs(10);

/// Calls of each command so far, as Redis counts them.
fn counts(redis: &RedisServer) -> BTreeMap<String, u64> {
    let calls = |line: &str| {
        let (name, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
        Some((name.to_owned(), rest.split(',').next()?.parse().ok()?))
    };
    redis.info("commandstats").lines().filter_map(calls).collect()
}

/// Commands a second, without those that count.
async fn rate(what: &str, redis: &RedisServer, server: &Server) -> f64 {
    let (before, cpu, began) = (counts(redis), server.cpu(), Instant::now());
    tokio::time::sleep(COUNTED).await;
    let (after, seconds) = (counts(redis), began.elapsed().as_secs_f64());
    let busy = (server.cpu() - cpu).as_secs_f64() / seconds;
    let mut total = 0;
    let mut by_name = Vec::new();
    for (name, calls) in after {
        let more = calls - before.get(&name).copied().unwrap_or(0);
        if name != "info" && more > 0 {
            total += more;
            by_name.push(format!("{name} {more}"));
        }
    }
    let rate = total as f64 / seconds;
    println!("{what}: {rate:.0} commands/s, server {:.1} % of a core; in {seconds:.1} s: {by_name:?}", busy * 100.0);
    rate
}

/// Workers that say that they are there, and nothing else.
async fn idle_workers(server: &Server, count: usize) -> JoinSet<()> {
    let mut all = JoinSet::new();
    for _ in 0..count {
        let (mut worker, _) = Worker::hello(server, "idle-pack", 10).await;
        all.spawn(async move {
            while let Ok(Some(message)) = worker.messages.message().await {
                match message.message {
                    Some(FromServer::Ping(_)) => worker.say(ToServer::Pong(v1::Pong {})),
                    other => panic!("an idle worker is told {other:?}"),
                }
            }
        });
    }
    all
}

#[tokio::test]
async fn idle_servers_and_idle_workers_cost_a_bounded_number_of_commands() {
    let workers = std::env::var("IDLE_WORKERS").map_or(50, |n| n.parse().unwrap());
    let redis = RedisServer::start(Options::default());
    let a = Server::serve(&redis.url(), None, free_address());
    let one = rate("one server", &redis, &a).await;
    let b = Server::serve(&redis.url(), None, free_address());
    let two = rate("two servers", &redis, &a).await;
    let mut there = idle_workers(&a, workers).await;
    let with_workers = rate(&format!("two servers, {workers} workers at one"), &redis, &a).await;
    assert!(there.try_join_next().is_none(), "all workers are still there");
    println!("{one} {two} {with_workers}");
    drop(b);
    let _ = soon(async { rate(&format!("one server, {workers} workers"), &redis, &a).await }).await;
}
