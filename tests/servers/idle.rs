//! What servers cost that have nothing to do: commands that Redis counts, those inside scripts included.
//!
//! The bounds are on counts, so that a slow machine changes nothing. For figures, with more workers and the CPU time of
//! the server: `IDLE_WORKERS=1000 cargo test --locked --test servers idle -- --nocapture --test-threads 1`

use super::Pair;
use super::redis::RedisServer;
use super::support::client::{Worker, soon};
use super::support::server::Server;
use downbeat::proto::v1;
use downbeat::proto::v1::server_message::Message as FromServer;
use downbeat::proto::v1::worker_message::Message as ToServer;
use std::collections::BTreeMap;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// Commands are counted while a worker is pinged so often.
const PINGS: usize = 2;

/// What is asked of Redis by two servers together at the most, in commands a second. They need about sixty, and for
/// a while after their start twice as many.
const MOST: f64 = 150.0;

/// Calls of each command so far, as Redis counts them: those inside scripts too.
fn counts(redis: &RedisServer) -> BTreeMap<String, u64> {
    let calls = |line: &str| {
        let (name, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
        Some((name.to_owned(), rest.split(',').next()?.parse().ok()?))
    };
    redis.info("commandstats").lines().filter_map(calls).collect()
}

/// Answers pings until `count` of them have come.
async fn pings(worker: &mut Worker, count: usize) {
    for _ in 0..count {
        match soon(worker.messages.message()).await.unwrap().unwrap().message {
            Some(FromServer::Ping(_)) => worker.say(ToServer::Pong(v1::Pong {})),
            other => panic!("an idle worker is told {other:?}"),
        }
    }
}

/// Commands a second while `worker` is pinged a few times, without those that count.
async fn rate(what: &str, redis: &RedisServer, server: &Server, worker: &mut Worker) -> f64 {
    let (before, cpu, began) = (counts(redis), server.cpu(), Instant::now());
    pings(worker, PINGS).await;
    let (after, seconds) = (counts(redis), began.elapsed().as_secs_f64());
    let busy = server.cpu().saturating_sub(cpu).as_secs_f64() / seconds * 100.0;
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
    println!(
        "{what}: {rate:.0} commands/s, {busy:.1} % of a core; in {seconds:.1} s: {}",
        by_name.join(", ")
    );
    rate
}

/// Workers that say that they are there, and nothing else.
async fn idle_workers(server: &Server, count: usize) -> JoinSet<()> {
    let mut all = JoinSet::new();
    for _ in 0..count {
        let (mut worker, _) = Worker::hello(server, "idle-pack", 10).await;
        all.spawn(async move { pings(&mut worker, usize::MAX).await });
    }
    all
}

#[tokio::test]
async fn idle_servers_and_idle_workers_cost_a_bounded_number_of_commands() {
    let count = std::env::var("IDLE_WORKERS").map_or(200, |n| n.parse().unwrap());
    let Pair { a, b, redis } = Pair::start();
    let (mut one, _) = Worker::hello(&a, "idle-pack", 10).await;
    let alone = rate("two servers, one worker", &redis, &a, &mut one).await;
    assert!(alone <= MOST, "{alone} commands/s");
    let mut all = idle_workers(&a, count).await;
    let with_workers = rate(&format!("two servers, {count} workers at one"), &redis, &a, &mut one).await;
    assert!(with_workers <= MOST, "{with_workers} commands/s");
    // However many there are, it is the same few calls of the same few commands.
    assert!(with_workers <= alone.max(60.0) + 60.0, "{with_workers} commands/s, {alone} without the workers");
    assert!(all.try_join_next().is_none(), "all workers are still there");
    let at_a = redis.command("ZCARD db:{0}:leases");
    assert!(at_a.trim_start_matches(':').parse::<usize>().unwrap() >= count / 32, "{at_a}");
    drop(b);
    rate(&format!("one server, {count} workers"), &redis, &a, &mut one).await;
}
