//! What only a cluster can do to us.

use crate::data::{Lane, create, note, prefix, put, run};
use crate::fixture::redis_options;
use crate::redis_cluster::RedisCluster;
use crate::redis_server::{Options, RedisServer};
use downbeat::model::commit::{Expect, RunWrite};
use downbeat::model::ids::Partition;
use downbeat::model::time::Span;
use downbeat::store::redis::{Durability, Options as StoreOptions, RedisStore};
use downbeat::store::{Store, StoreError, StreamPosition, Verdict};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The slot of a partition's keys, as a node tells it.
fn slot_of(cluster: &RedisCluster, node: usize, key: &str) -> usize {
    let answer = cluster.nodes[node].command(&format!("CLUSTER KEYSLOT {key}"));
    answer.trim_start_matches(':').parse().unwrap()
}

/// The key of a run's record, wherever it is.
fn find(cluster: &RedisCluster, run: &str) -> Option<(usize, String)> {
    cluster.masters().into_iter().find_map(|at| {
        let keys = cluster.nodes[at].lines(&format!("KEYS db:{{*}}:r:{run}"));
        keys.into_iter().find(|line| line.ends_with(run)).map(|key| (at, key))
    })
}

#[tokio::test]
async fn partitions_are_spread_evenly_over_the_masters() {
    let cluster = RedisCluster::start(3, 0, Options::default());
    let store = RedisStore::open(&cluster.url(), StoreOptions::default()).await.unwrap();
    assert_eq!(store.layout().partitions, 48, "16 for each master");
    assert_eq!(store.groups().len(), 48, "a batch is about one slot");
    store.check().await.unwrap();
    let all: Vec<_> = (0..48).map(Partition).collect();
    assert_eq!(store.tick(&all, 1).await.unwrap().len(), 48);
    let clocks = cluster
        .nodes
        .iter()
        .map(|n| n.lines("KEYS db:{*}:clock").iter().filter(|line| line.ends_with("clock")).count());
    let clocks: Vec<_> = clocks.collect();
    assert!(clocks.iter().all(|n| (15..=17).contains(n)) && clocks.iter().sum::<usize>() == 48, "{clocks:?}");
    // Another server finds what the first made.
    let again = RedisStore::open(&cluster.whole_url(), StoreOptions::default()).await.unwrap();
    assert_eq!(again.layout(), store.layout());
    let other = StoreOptions { partitions: Some(8), ..StoreOptions::default() };
    let refused = RedisStore::open(&cluster.url(), other).await.unwrap_err();
    assert!(refused.to_string().contains("initialised with 48 partitions"), "{refused}");
}

#[tokio::test]
async fn addresses_that_do_not_fit_are_refused_with_the_one_that_does() {
    let cluster = RedisCluster::start(3, 0, Options::default());
    let alone = RedisServer::start(Options::default());
    let as_one = RedisStore::open(&cluster.nodes[0].url(), redis_options()).await.unwrap_err();
    assert!(as_one.to_string().contains("redis+cluster://"), "{as_one}");
    let as_cluster = alone.url().replace("redis://", "redis+cluster://");
    let as_cluster = RedisStore::open(&as_cluster, redis_options()).await.unwrap_err();
    assert!(as_cluster.to_string().contains("begins with redis://"), "{as_cluster}");
    assert_eq!(cluster.nodes[2].command("CLUSTER DELSLOTS 16383"), "+OK");
    let holed = format!("redis+cluster://127.0.0.1:{}", cluster.nodes[2].port());
    let holed = RedisStore::open(&holed, redis_options()).await.unwrap_err();
    assert!(holed.to_string().contains("no node has slot 16383"), "{holed}");
    let nobody =
        RedisStore::open("redis+cluster://127.0.0.1:1,127.0.0.1:2", redis_options()).await.unwrap_err();
    assert!(nobody.to_string().contains("number 2 of 2"), "{nobody}");
    for error in [as_one, as_cluster, holed, nobody] {
        assert!(!error.was_sent());
    }
}

/// Commits to one run again and again until told to stop; returns how often it was accepted.
async fn work(store: Arc<RedisStore>, name: &'static str, p: Partition, stop: Arc<AtomicBool>) -> u64 {
    let mut lane = Lane::new(p.0 as u8);
    let mut version = 0;
    while !stop.load(Ordering::Relaxed) {
        let write = match version {
            0 => create(name),
            n => put(name, Expect::Prefix(prefix(n, 1)), prefix(n + 1, 1)),
        };
        let batch = lane.batch(vec![(p, RunWrite { event: Some(note(name, version as u32)), ..write })]);
        // What may have happened is sent again, as a lane does.
        let verdicts = loop {
            match store.commit(&batch).await {
                Ok(committed) => break committed.verdicts,
                Err(StoreError::Unavailable { .. }) => {}
                Err(e) => panic!("{e}"),
            }
        };
        assert_eq!(verdicts, [Verdict::Applied], "version {version}");
        version += 1;
    }
    version
}

/// How often a run was written, as its record says.
async fn version(store: &RedisStore, p: Partition, name: &str) -> u64 {
    let record = store.load(&[(p, run(name))]).await.unwrap().pop().unwrap().unwrap();
    u64::from_be_bytes(record[..8].try_into().unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_that_moves_under_load_loses_nothing() {
    let cluster = RedisCluster::start(3, 0, Options::default());
    let store = RedisStore::open(&cluster.url(), redis_options()).await.unwrap();
    let p = Partition(1);
    let stop = Arc::new(AtomicBool::new(false));
    let worker = tokio::spawn(work(Arc::clone(&store), "moves", p, Arc::clone(&stop)));
    cluster.until(|| find(&cluster, "moves").is_some());
    for _ in 0..3 {
        let (from, key) = find(&cluster, "moves").unwrap();
        let slot = slot_of(&cluster, from, &key);
        let to = (from + 1) % 3;
        let id = |n: usize| cluster.nodes[n].lines("CLUSTER MYID").remove(0);
        let (from_id, to_id) = (id(from), id(to));
        assert_eq!(cluster.nodes[to].command(&format!("CLUSTER SETSLOT {slot} IMPORTING {from_id}")), "+OK");
        assert_eq!(cluster.nodes[from].command(&format!("CLUSTER SETSLOT {slot} MIGRATING {to_id}")), "+OK");
        // Key by key, so that for a while some are here and some there.
        loop {
            let keys = cluster.nodes[from].lines(&format!("CLUSTER GETKEYSINSLOT {slot} 1"));
            let Some(key) = keys.iter().find(|line| line.starts_with("db:")) else { break };
            let port = cluster.nodes[to].port();
            let moved = cluster.nodes[from].command(&format!("MIGRATE 127.0.0.1 {port} {key} 0 5000"));
            assert!(moved == "+OK" || moved == "+NOKEY", "{moved}");
            // Neither knows the scripts any more, whichever is asked.
            cluster.nodes[from].command("SCRIPT FLUSH");
            cluster.nodes[to].command("SCRIPT FLUSH");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        for n in [to, from, 3 - to - from] {
            cluster.nodes[n].command(&format!("CLUSTER SETSLOT {slot} NODE {to_id}"));
        }
        cluster.until(|| find(&cluster, "moves").is_some_and(|(at, _)| at == to));
    }
    stop.store(true, Ordering::Relaxed);
    let accepted = worker.await.unwrap();
    assert!(accepted > 3, "{accepted}");
    // Each was one entry of the stream.
    let entries = store.read_events(&[(p, StreamPosition::default())], 100_000, Span(0)).await.unwrap();
    assert!(!entries.is_empty());
    assert_eq!(version(&store, p, "moves").await, accepted);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_dies_is_followed_and_nothing_replicated_is_lost() {
    let mut cluster = RedisCluster::start(3, 3, Options::default());
    let options = StoreOptions { durability: Durability::Replicated, ..redis_options() };
    let store = RedisStore::open(&cluster.whole_url(), options).await.unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let workers: Vec<_> = (0..4_u16)
        .map(|p| {
            let run: &'static str = ["run-0", "run-1", "run-2", "run-3"][usize::from(p)];
            (p, run, tokio::spawn(work(Arc::clone(&store), run, Partition(p), Arc::clone(&stop))))
        })
        .collect();
    cluster.until(|| (0..4).all(|n| find(&cluster, &format!("run-{n}")).is_some()));
    let (dies, _) = find(&cluster, "run-0").unwrap();
    cluster.nodes[dies].kill9();
    cluster.until(|| cluster.masters().len() == 3 && cluster.is_whole());
    // It goes on at the new master, everywhere.
    let (now, _) = find(&cluster, "run-0").unwrap();
    assert_ne!(now, dies);
    let deadline = tokio::time::Instant::now() + Duration::from_secs(5);
    while store.check().await.is_err() {
        assert!(tokio::time::Instant::now() < deadline, "not usable 5 s after the cluster is whole");
    }
    // The new master has no replica until the old one is back.
    cluster.nodes[dies].restart();
    cluster.until(|| cluster.nodes[dies].info("replication").contains("master_link_status:up"));
    stop.store(true, Ordering::Relaxed);
    for (p, run, worker) in workers {
        let accepted = worker.await.unwrap();
        assert_eq!(version(&store, Partition(p), run).await, accepted, "{run}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_go_on_after_all_readers_failed_at_once() {
    let cluster = RedisCluster::start(3, 0, Options::default());
    let store = RedisStore::open(&cluster.url(), StoreOptions::default()).await.unwrap();
    let mut after: Vec<_> =
        (0..store.layout().partitions).map(|p| (Partition(p), StreamPosition::default())).collect();
    let mut lanes: Vec<_> = (0..after.len()).map(|n| Lane::new(n as u8)).collect();
    for round in 0..3 {
        // They are connected when each has brought something.
        let name = ["round-0", "round-1", "round-2"][round];
        for (p, lane) in lanes.iter_mut().enumerate() {
            let write = RunWrite { event: Some(note(name, 0)), ..create(name) };
            let batch = lane.batch(vec![(Partition(p as u16), write)]);
            while let Err(e) = store.commit(&batch).await {
                assert!(matches!(e, StoreError::Unavailable { .. }), "{e}");
            }
        }
        let mut missing: std::collections::BTreeSet<_> = (0..after.len()).collect();
        let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
        while !missing.is_empty() {
            assert!(tokio::time::Instant::now() < deadline, "round {round}: nothing came from {missing:?}");
            match store.read_events(&after, 100, Span::millis(200)).await {
                Ok(entries) => {
                    for entry in entries {
                        let at = usize::from(entry.partition.0);
                        after[at].1 = entry.position;
                        missing.remove(&at);
                    }
                }
                // As a server does. Failures of many readers are told one by one.
                Err(_) => tokio::time::sleep(Duration::from_millis(200)).await,
            }
        }
        for node in &cluster.nodes {
            node.command("CLIENT KILL TYPE normal");
        }
        // All of them fail, with nothing to read.
        for _ in 0..10 {
            let _ = store.read_events(&after, 100, Span::millis(50)).await;
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_is_away_does_not_hold_up_the_others() {
    let mut cluster = RedisCluster::start(3, 0, Options::default());
    let store = RedisStore::open(&cluster.url(), StoreOptions::default()).await.unwrap();
    cluster.nodes[2].kill9();
    // Once it is known to be away, calls for it fail at once, and say that nothing was done.
    let all: Vec<_> = (0..store.layout().partitions).map(Partition).collect();
    let deadline = tokio::time::Instant::now() + Duration::from_secs(30);
    loop {
        assert!(tokio::time::Instant::now() < deadline, "calls still wait for it");
        let began = tokio::time::Instant::now();
        if let Err(e) = store.tick(&all, 1).await
            && !e.was_sent()
            && began.elapsed() < Duration::from_millis(900)
        {
            break;
        }
    }
    let mut away = 0;
    for p in &all {
        away += usize::from(store.tick(&[*p], 1).await.is_err());
    }
    assert!((15..=17).contains(&away), "{away} of 48");
    // What others have is given.
    let queue: downbeat::model::labels::QueueName = "none".parse().unwrap();
    let wanted: Vec<_> = all.iter().map(|p| (*p, queue.clone(), 1)).collect();
    assert_eq!(store.take(&wanted, Span::secs(1)).await, Ok(vec![]));
    cluster.nodes[2].restart();
    cluster.until(|| cluster.is_whole());
    let deadline = tokio::time::Instant::now() + Duration::from_secs(10);
    while store.tick(&all, 1).await.is_err() {
        assert!(tokio::time::Instant::now() < deadline, "not found again");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_that_lost_everything_is_the_same_store_again() {
    let cluster = RedisCluster::start(3, 0, Options::default());
    let store = RedisStore::open(&cluster.url(), redis_options()).await.unwrap();
    let meta = |n: &RedisServer| n.lines("KEYS db:meta").iter().any(|line| line == "db:meta");
    for node in &cluster.nodes {
        assert_eq!(node.command("FLUSHALL"), "+OK");
        node.command("CLIENT KILL TYPE normal");
    }
    cluster.until(|| cluster.nodes.iter().any(meta));
    let other = StoreOptions { partitions: Some(7), ..redis_options() };
    let refused = RedisStore::open(&cluster.url(), other).await.unwrap_err();
    assert!(refused.to_string().contains("was initialised with"), "{refused}");
    let again = RedisStore::open(&cluster.url(), redis_options()).await.unwrap();
    assert_eq!(again.layout(), store.layout());
}
