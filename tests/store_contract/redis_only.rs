//! What only Redis can do to us.

use crate::data::{
    Lane, P, add, create, entry, field, named, note, prefix, record, run, session, stored, update,
};
use crate::fixture::{PARTITIONS, redis_options};
use crate::redis_server::{Options, RedisServer};
use bytes::Bytes;
use downbeat::model::commit::{RunWrite, WakeOp, Write};
use downbeat::model::ids::{Nonce, Partition};
use downbeat::model::time::{LeaseTime, Span, Timestamp};
use downbeat::store::redis::{Load, Options as StoreOptions, RedisStore};
use downbeat::store::{Hint, SessionRecord, Store, StoreError, StreamPosition, Verdict};
use std::sync::Arc;
use std::time::Duration;

async fn open(server: &RedisServer) -> Arc<RedisStore> {
    RedisStore::open(&server.url(), redis_options()).await.unwrap()
}

async fn started() -> (RedisServer, Arc<RedisStore>) {
    let server = RedisServer::start(Options::default());
    let store = open(&server).await;
    (server, store)
}

/// A decision that writes to every kind of key.
fn whole(name: &str) -> RunWrite {
    RunWrite {
        payloads: vec![(field("i"), Bytes::from_static(b"{}"))],
        queue: vec![add("q", entry(name, 1), 5)],
        wake: WakeOp::Lower(Timestamp(1)),
        index: Some(Timestamp(1)),
        retain_until: Some(Some(Timestamp(1))),
        event: Some(note(name, 0)),
        ..create(name)
    }
}

async fn raw(server: &RedisServer) -> redis::aio::MultiplexedConnection {
    redis::Client::open(server.url()).unwrap().get_multiplexed_async_connection().await.unwrap()
}

/// Every key with the dump of its value, to see that nothing was written.
async fn dump(server: &RedisServer) -> std::collections::BTreeMap<String, Vec<u8>> {
    let mut connection = raw(server).await;
    let keys: Vec<String> = redis::cmd("KEYS").arg("*").query_async(&mut connection).await.unwrap();
    let mut all = std::collections::BTreeMap::new();
    for key in keys {
        let value: Vec<u8> = redis::cmd("DUMP").arg(&key).query_async(&mut connection).await.unwrap();
        all.insert(key, value);
    }
    all
}

#[tokio::test]
async fn a_key_of_another_type_is_found_before_the_first_write() {
    let (server, store) = started().await;
    let mut lane = Lane::new(1);
    lane.apply(&*store, vec![create("there")]).await;
    let kinds = [
        ("db:{1}:r:bad", "LPUSH"),
        ("db:{1}:p:bad", "LPUSH"),
        ("db:{1}:q:q", "LPUSH"),
        ("db:{1}:types", "LPUSH"),
        ("db:{1}:claimed", "LPUSH"),
        ("db:{1}:places", "LPUSH"),
        ("db:{1}:wake", "LPUSH"),
        ("db:{1}:index", "LPUSH"),
        ("db:{1}:keep", "LPUSH"),
        ("db:{1}:events", "LPUSH"),
        ("db:{0}:l:01010101010101010101010101010101", "SET"),
    ];
    for (key, write) in kinds {
        server.command(&format!("RENAME {key} aside"));
        assert!(!server.command(&format!("{write} {key} x")).starts_with('-'));
        let before = dump(&server).await;
        let small = lane.batch(vec![(P, whole("good")), (P, whole("bad"))]);
        let mut large = whole("bad");
        large.write = Write::Put(record(prefix(1, 1), 5_000));
        let large = lane.batch(vec![(P, whole("good")), (P, large)]);
        for batch in [small, large] {
            let error = store.commit(&batch).await.unwrap_err();
            assert!(matches!(error, StoreError::Unreadable(_)), "{key}: {error:?}");
            assert_eq!(dump(&server).await, before, "{key}");
        }
        server.command(&format!("DEL {key}"));
        server.command(&format!("RENAME aside {key}"));
    }
    lane.apply(&*store, vec![whole("good"), whole("bad")]).await;
}

#[tokio::test]
async fn a_full_redis_refuses_the_whole_batch_and_still_takes_deletions() {
    let (server, store) = started().await;
    let mut lane = Lane::new(1);
    lane.apply(&*store, vec![whole("a"), whole("b")]).await;
    server.command("CONFIG SET maxmemory 1");
    let before = dump(&server).await;
    let batch = lane.batch(vec![(P, update("a")), (P, whole("c")), (P, create("a"))]);
    let error = store.commit(&batch).await.unwrap_err();
    assert!(matches!(error, StoreError::Full(_)), "{error:?}");
    assert!(!error.was_sent());
    assert!(matches!(store.check().await, Err(StoreError::Full(_))));
    assert_eq!(dump(&server).await, before);
    // Checks need no memory; deletions give it back.
    let check = RunWrite { write: Write::Check, ..update("a") };
    assert_eq!(lane.commit(&*store, vec![check]).await.verdicts, [Verdict::Applied]);
    let delete = RunWrite { write: Write::Delete, event: Some(note("b", 1)), ..update("b") };
    lane.apply(&*store, vec![delete]).await;
    assert_eq!(stored(&*store, "b").await, None);

    server.command("CONFIG SET maxmemory 0");
    assert_eq!(
        store.commit(&batch).await.unwrap().verdicts,
        [Verdict::Applied, Verdict::Applied, Verdict::Conflict],
        "the same batch goes through later"
    );
    store.check().await.unwrap();
}

#[tokio::test]
async fn forgotten_scripts_are_loaded_again() {
    let (server, store) = started().await;
    let mut lane = Lane::new(1);
    lane.apply(&*store, vec![create("a")]).await;
    assert_eq!(server.command("SCRIPT FLUSH"), "+OK");
    lane.apply(&*store, vec![update("a")]).await;
    assert_eq!(server.command("SCRIPT FLUSH"), "+OK");
    let (tick, list) = tokio::join!(store.tick(&[P, Partition(0)], 1), store.list(P, None, 1));
    assert_eq!(tick.unwrap().len(), 2);
    assert_eq!(list.unwrap(), []);
}

#[tokio::test]
async fn a_read_only_replica_refuses_writes_as_not_sent() {
    let (server, store) = started().await;
    // A primary that is not there: writes are refused, and the link looks for the primary from now on.
    assert_eq!(server.command("REPLICAOF 127.0.0.1 1"), "+OK");
    let error = store.commit(&Lane::new(1).batch(vec![(P, create("a"))])).await.unwrap_err();
    assert!(matches!(&error, StoreError::Unavailable { sent: false, .. }), "{error:?}");
    assert!(store.check().await.is_err());
    let opened = RedisStore::open(&server.url(), redis_options()).await.unwrap_err();
    assert!(opened.to_string().contains("replica"), "{opened}");
    server.command("REPLICAOF NO ONE");
    let again = async { while store.check().await.is_err() {} };
    tokio::time::timeout(Duration::from_secs(5), again).await.unwrap();
    assert_eq!(stored(&*store, "a").await, None);
    Lane::new(1).apply(&*store, vec![create("a")]).await;
}

#[tokio::test]
async fn a_wrong_password_is_told_at_once_and_the_address_never() {
    let args = ["--requirepass", "sesame"].map(ToOwned::to_owned).to_vec();
    let server = RedisServer::start(Options { args, ..Options::default() });
    for (user, expected) in [("", "NOAUTH"), (":swordfish@", "WRONGPASS")] {
        let url = format!("redis://{user}127.0.0.1:{}", server.port());
        let error = RedisStore::open(&url, redis_options()).await.unwrap_err();
        assert!(!error.was_sent());
        let said = error.to_string();
        assert!(said.contains(expected), "{said}");
        assert!(!said.contains("swordfish") && !said.contains("127.0.0.1"), "{said}");
    }
    let url = format!("redis://:sesame@127.0.0.1:{}", server.port());
    let store = RedisStore::open(&url, redis_options()).await.unwrap();
    Lane::new(1).apply(&*store, vec![create("a")]).await;
    assert!(!format!("{store:?}").contains("sesame"));
}

#[tokio::test]
async fn a_server_that_is_not_there_is_told_at_once() {
    let mut server = RedisServer::start(Options::default());
    server.kill9();
    let error = RedisStore::open(&server.url(), redis_options()).await.unwrap_err();
    assert!(!error.was_sent(), "{error:?}");
}

#[tokio::test]
async fn a_cluster_node_is_refused() {
    let args = ["--cluster-enabled", "yes"].map(ToOwned::to_owned).to_vec();
    let server = RedisServer::start(Options { args, ..Options::default() });
    let error = RedisStore::open(&server.url(), redis_options()).await.unwrap_err();
    assert!(error.to_string().contains("Redis Cluster"), "{error}");
}

#[tokio::test]
async fn the_layout_is_fixed_by_the_first_and_read_by_the_next() {
    let server = RedisServer::start(Options::default());
    let options = |partitions| StoreOptions { partitions, ..StoreOptions::default() };
    let first = RedisStore::open(&server.url(), options(Some(3))).await.unwrap();
    let second = RedisStore::open(&server.url(), options(None)).await.unwrap();
    assert_eq!(first.layout(), second.layout());
    assert_eq!((second.layout().partitions, second.layout().version), (3, 2));
    let other = RedisStore::open(&server.url(), options(Some(4))).await.unwrap_err();
    assert!(other.to_string().contains("initialised with 3 partitions, 4 were asked for"), "{other}");
    assert!(RedisStore::open(&server.url(), options(Some(0))).await.is_err());
    server.command("HSET db:meta layout 99");
    let unknown = RedisStore::open(&server.url(), options(None)).await.unwrap_err();
    assert!(matches!(&unknown, StoreError::Unreadable(_)), "{unknown:?}");
    assert!(unknown.to_string().contains("layout 99"), "{unknown}");
    let eight = RedisServer::start(Options::default());
    assert_eq!(RedisStore::open(&eight.url(), options(None)).await.unwrap().layout().partitions, 8);
}

#[tokio::test]
async fn servers_that_open_an_empty_store_together_agree() {
    let server = RedisServer::start(Options::default());
    let opened = (0..8).map(|n| {
        let url = server.url();
        let options = StoreOptions { stream_bound: 10 + n, ..StoreOptions::default() };
        tokio::spawn(async move { RedisStore::open(&url, options).await.unwrap().layout() })
    });
    let mut layouts = Vec::new();
    for task in opened.collect::<Vec<_>>() {
        layouts.push(task.await.unwrap());
    }
    assert!(layouts.iter().all(|l| *l == layouts[0]), "{layouts:?}");
}

#[tokio::test]
async fn the_link_comes_back_after_redis_does_and_says_so() {
    let mut server = RedisServer::start(Options { aof: true, ..Options::default() });
    let store = open(&server).await;
    let mut lane = Lane::new(1);
    let mut hints = store.hints();
    let batch = lane.batch(vec![(P, create("a"))]);
    store.commit(&batch).await.unwrap();
    server.stop();
    // The first call may find the connection broken under it; the next knows that there is none.
    let _ = store.load(&[(P, run("a"))]).await;
    let error = store.commit(&lane.batch(vec![(P, create("b"))])).await.unwrap_err();
    assert!(!error.was_sent(), "{error:?}");
    server.restart();
    let reconnected = async { while hints.recv().await.unwrap() != Hint::Reconnected {} };
    tokio::time::timeout(Duration::from_secs(20), reconnected).await.unwrap();
    // A call waits for a link that is being made.
    let again = loop {
        match store.commit(&batch).await {
            Err(e) if !e.was_sent() => {}
            other => break other.unwrap(),
        }
    };
    assert_eq!(
        again.verdicts,
        [Verdict::Applied],
        "the window of the lane survived with the append-only file"
    );
    assert_eq!(stored(&*store, "a").await, Some(record(prefix(1, 1), 40)));
    assert_eq!(stored(&*store, "b").await, None);
}

#[tokio::test]
async fn another_store_at_the_address_is_not_worked_on() {
    let mut server = RedisServer::start(Options { aof: true, ..Options::default() });
    let store = open(&server).await;
    assert_eq!(server.command("HSET db:meta epoch 12345"), ":0");
    server.restart();
    let mut error = store.check().await;
    while !matches!(&error, Err(e) if e.to_string().contains("another store")) {
        assert!(error.is_err(), "it must not take the other store's word");
        error = store.check().await;
    }
    assert!(!error.unwrap_err().was_sent());
}

#[tokio::test]
async fn many_verbs_are_in_flight_on_one_connection() {
    let (server, store) = started().await;
    let tasks = (0..200u8).map(|n| {
        let store = Arc::clone(&store);
        tokio::spawn(async move {
            let committed = Lane::new(n).commit(&*store, vec![create(&format!("r{n}"))]).await;
            let found = store.load(&[(P, run(&format!("r{n}")))]).await.unwrap();
            (committed.verdicts, found[0].is_some())
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        assert_eq!(task.await.unwrap(), (vec![Verdict::Applied], true));
    }
    let mut clients = raw(&server).await;
    let list: String = redis::cmd("CLIENT").arg("LIST").query_async(&mut clients).await.unwrap();
    let ours = list.lines().filter(|l| l.contains("cmd=evalsha") || l.contains("cmd=mget")).count();
    assert_eq!(ours, 1, "{list}");
}

#[tokio::test]
async fn a_blocked_reader_delays_no_commit() {
    let (_server, store) = started().await;
    let mut lane = Lane::new(1);
    let all: Vec<_> = (0..4).map(|p| (Partition(p), StreamPosition(0, 0))).collect();
    let readers: Vec<_> = (0..3)
        .map(|_| {
            let (store, all) = (Arc::clone(&store), all.clone());
            tokio::spawn(async move { store.read_events(&all, 10, Span::secs(30)).await.unwrap() })
        })
        .collect();
    for n in 0..20 {
        let commit = lane.apply(&*store, vec![create(&format!("r{n}"))]);
        tokio::time::timeout(Duration::from_secs(4), commit).await.unwrap();
    }
    lane.apply(&*store, vec![RunWrite { event: Some(note("a", 0)), ..create("a") }]).await;
    for reader in readers {
        assert_eq!(reader.await.unwrap().len(), 1);
    }
}

#[tokio::test]
async fn a_small_open_run_is_one_key() {
    let (server, store) = started().await;
    let mut lane = Lane::new(1);
    let small = |name: &str| RunWrite { payloads: Vec::new(), retain_until: None, ..whole(name) };
    lane.apply(&*store, vec![small("a")]).await;
    let before = dump(&server).await.len();
    lane.apply(&*store, (0..50).map(|n| small(&format!("r{n}"))).collect()).await;
    assert_eq!(dump(&server).await.len(), before + 50);
}

#[tokio::test]
async fn a_deleted_run_leaves_no_key_and_idle_lanes_expire() {
    let (server, store) = started().await;
    let mut lane = Lane::new(1);
    let owner = SessionRecord {
        epoch: 1,
        label: String::new(),
        owner: Nonce([1; 16]),
        deadline: LeaseTime(0),
        lease_now: LeaseTime(0),
    };
    lane.apply(&*store, vec![whole("a")]).await;
    store.put_session(&session("s1-x"), &owner, None, Span::secs(10)).await.unwrap();
    let delete = RunWrite {
        write: Write::Delete,
        queue: vec![crate::data::remove("q", entry("a", 1))],
        ..update("a")
    };
    lane.apply(&*store, vec![delete]).await;
    let left = dump(&server).await;
    let lane_key = "db:{0}:l:01010101010101010101010101010101";
    let expected = [lane_key, "db:meta", "db:{1}:events", "db:{1}:sessions", "db:{1}:leases"];
    assert!(expected.iter().all(|key| left.contains_key(*key)) && left.len() == expected.len(), "{left:?}");
    let ttl =
        |key: &str| server.command(&format!("TTL {key}")).trim_start_matches(':').parse::<i64>().unwrap();
    assert!((590..=600).contains(&ttl(lane_key)));
    assert_eq!(store.take(&[(P, named("q"), 1)], Span::secs(1)).await.unwrap(), []);
}

#[tokio::test]
async fn claims_that_ended_leave_no_key() {
    let (server, store) = started().await;
    let mut lane = Lane::new(1);
    let queue = |name: &str| vec![add("q", entry(name, 1), 5)];
    let names = ["a", "b", "c"];
    lane.apply(&*store, names.map(|n| RunWrite { queue: queue(n), ..create(n) }).to_vec()).await;
    let keys = |suffix: &'static str| {
        let server = &server;
        async move { dump(server).await.into_keys().filter(|k| k.ends_with(suffix)).count() }
    };
    let taken = store.take(&[(P, named("q"), 3)], Span(0)).await.unwrap();
    assert_eq!((keys(":claimed").await, keys(":places").await, keys(":types").await), (1, 1, 0));
    // One ends by a commit, one by a discard, one by a tick.
    let leased = RunWrite { queue: vec![crate::data::remove("q", entry("a", 1))], ..update("a") };
    lane.apply(&*store, vec![leased]).await;
    store.discard(&[(taken[1].clone(), Some(prefix(1, 1)))]).await.unwrap();
    assert_eq!((keys(":claimed").await, keys(":places").await), (1, 1));
    assert_eq!(store.tick(&[P], 1).await.unwrap()[0].reclaimed, 1);
    assert_eq!((keys(":claimed").await, keys(":places").await, keys(":types").await), (0, 0, 1));
}

#[tokio::test]
async fn a_tick_or_a_renewal_finds_a_key_of_another_type_before_its_first_write() {
    let (server, store) = started().await;
    let mut lane = Lane::new(1);
    let all: Vec<_> = (0..PARTITIONS).map(Partition).collect();
    store.tick(&all, 10).await.unwrap();
    let due = |name: &str| RunWrite { wake: WakeOp::Set(Timestamp(1)), ..whole(name) };
    lane.apply(&*store, vec![due("a")]).await;
    let more = RunWrite { queue: vec![add("q", entry("b", 1), 5)], ..due("b") };
    lane.apply(&*store, vec![more]).await;
    store.take(&[(P, named("q"), 1)], Span(0)).await.unwrap();
    let id = session("s1-x");
    let owner = SessionRecord {
        epoch: 1,
        label: String::new(),
        owner: Nonce([1; 16]),
        deadline: LeaseTime(0),
        lease_now: LeaseTime(0),
    };
    store.put_session(&id, &owner, None, Span::secs(10)).await.unwrap();
    // Two hours of leases and two minutes of sweeps later.
    assert_eq!(server.command("SET db:{1}:clock \"7200000000 1 1 1\""), "+OK");
    for name in ["clock", "wake", "keep", "claimed", "places", "types", "leases", "sessions", "q:q"] {
        let key = format!("db:{{1}}:{name}");
        let before_all = dump(&server).await;
        let there = before_all.contains_key(&key);
        if there {
            server.command(&format!("RENAME {key} aside"));
        }
        server.command(&format!("LPUSH {key} x"));
        let before = dump(&server).await;
        let error = store.tick(&all, 10).await.unwrap_err();
        assert!(matches!(error, StoreError::Unreadable(_)), "{key}: {error:?}");
        assert_eq!(dump(&server).await, before, "{key}");
        if ["clock", "leases"].contains(&name) {
            let other = session("s0-other");
            let error =
                store.renew_sessions(&[(other, 1), (id.clone(), 1)], Span::secs(1)).await.unwrap_err();
            assert!(matches!(error, StoreError::Unreadable(_)), "{key}: {error:?}");
        }
        if ["clock", "leases", "sessions"].contains(&name) {
            let error = store.put_session(&id, &owner, Some(1), Span::secs(1)).await.unwrap_err();
            assert!(matches!(error, StoreError::Unreadable(_)), "{key}: {error:?}");
            assert!(
                matches!(store.sessions(std::slice::from_ref(&id)).await, Err(StoreError::Unreadable(_))),
                "{key}"
            );
        }
        assert_eq!(dump(&server).await, before, "{key}");
        server.command(&format!("DEL {key}"));
        if there {
            server.command(&format!("RENAME aside {key}"));
        }
    }
    let ticked = store.tick(&all, 10).await.unwrap().swap_remove(1);
    assert_eq!((ticked.due.len(), ticked.reclaimed, ticked.heads.len()), (2, 1, 1));
    let left = dump(&server).await;
    assert!(!left.contains_key("db:{1}:leases") && !left.contains_key("db:{1}:sessions"), "swept: {left:?}");
}

#[tokio::test]
async fn a_tick_with_nothing_to_tell_is_a_command_for_each_partition_and_a_few_more() {
    let (server, store) = started().await;
    let all: Vec<_> = (0..PARTITIONS).map(Partition).collect();
    let mut lane = Lane::new(1);
    lane.apply(&*store, vec![whole("a")]).await;
    store.tick(&all, 10).await.unwrap();
    store.take(&[(P, named("q"), 9)], Span::secs(9)).await.unwrap();
    let commands = || {
        let stats = server.info("stats");
        let line =
            stats.lines().find_map(|l| l.strip_prefix("total_commands_processed:")).unwrap().to_owned();
        line.trim().parse::<u64>().unwrap()
    };
    let cost = async |quiet: bool| {
        if quiet {
            server.command("DEL db:{1}:claimed db:{1}:places db:{1}:types db:{1}:q:q");
        }
        let before = commands();
        store.tick(&all, 10).await.unwrap();
        // INFO and QUIT of the first count.
        commands() - before - 2
    };
    // Something is claimed: its expiry is looked for, and what is ready.
    assert!(cost(false).await <= 5 + 3 * u64::from(PARTITIONS));
    assert_eq!(
        cost(true).await,
        5 + u64::from(PARTITIONS),
        "EVALSHA, MGET, TIME, EXISTS, MSET, and ZRANGE for each"
    );
    // The same for renewals: two for each partition, however many sessions.
    let owner = SessionRecord {
        epoch: 1,
        label: String::new(),
        owner: Nonce([1; 16]),
        deadline: LeaseTime(0),
        lease_now: LeaseTime(0),
    };
    let ids: Vec<_> = (0..400).map(|n| (session(&format!("s{}-{n}", n % PARTITIONS)), 1)).collect();
    for (id, _) in &ids {
        assert!(store.put_session(id, &owner, None, Span::secs(9)).await.unwrap());
    }
    let before = commands();
    assert!(store.renew_sessions(&ids, Span::secs(9)).await.unwrap().into_iter().all(|kept| kept));
    assert_eq!(commands() - before - 2, 3 + 2 * u64::from(PARTITIONS));
}

#[tokio::test]
async fn the_layout_before_is_refused_with_what_to_do() {
    let (server, _store) = started().await;
    server.command("HSET db:meta layout 1");
    let error = RedisStore::open(&server.url(), redis_options()).await.unwrap_err();
    assert!(matches!(&error, StoreError::Unreadable(_)), "{error:?}");
    let said = error.to_string();
    assert!(said.contains("layout 1;") && said.contains("use the version that wrote it"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_ceiling_is_measured_beside_the_store_and_leaves_nothing() {
    let (server, store) = started().await;
    let mut lane = Lane::new(1);
    lane.apply(&*store, vec![whole("there")]).await;
    let before = dump(&server).await;
    for (decisions, bytes_per_decision, lanes, in_flight) in
        [(1, 500, 1, 1), (32, 600, 2, 2), (128, 9_000, 1, 2)]
    {
        let lasting = Duration::from_millis(100);
        let load = Load { decisions, bytes_per_decision, lanes, in_flight, lasting };
        let ceiling = Arc::clone(&store).ceiling(load).await.unwrap();
        assert!(ceiling.transitions_per_second > 0.0, "{ceiling:?}");
        // One decision alone carries what stands around a batch.
        let apart = (ceiling.bytes_per_decision - bytes_per_decision as f64).abs();
        assert!(apart < 20.0 || decisions == 1, "{ceiling:?} for {load:?}");
        assert_eq!(dump(&server).await, before);
    }
}

#[tokio::test]
async fn a_tick_of_a_full_redis_tells_what_may_go_and_changes_nothing() {
    let (server, store) = started().await;
    let mut lane = Lane::new(1);
    let ended = RunWrite { retain_until: Some(Some(Timestamp(5))), ..create("ended") };
    lane.apply(&*store, vec![ended, RunWrite { wake: WakeOp::Set(Timestamp(5)), ..create("due") }]).await;
    server.command("CONFIG SET maxmemory 1");
    let before = dump(&server).await;
    for _ in 0..3 {
        let ticked = store.tick(&[P], 10).await.unwrap().remove(0);
        assert_eq!((ticked.expired, ticked.due), (vec![run("ended")], Vec::new()), "again and again");
    }
    assert_eq!(dump(&server).await, before);
    lane.apply(&*store, vec![RunWrite { write: Write::Delete, ..update("ended") }]).await;
    server.command("CONFIG SET maxmemory 0");
    let ticked = store.tick(&[P], 10).await.unwrap().remove(0);
    assert_eq!((ticked.expired, ticked.due), (Vec::new(), vec![run("due")]));
}

#[tokio::test]
async fn a_reader_that_waits_again_and_again_is_told_when_what_it_read_is_gone() {
    let mut server = RedisServer::start(Options { aof: true, args: Vec::new() });
    let store = RedisStore::open(&server.url(), StoreOptions::default()).await.unwrap();
    let mut lane = Lane::new(1);
    let noted = |name: &str| vec![RunWrite { event: Some(note(name, 0)), ..create(name) }];
    let read = async |at| store.read_events(&[(P, at)], 10, Span::millis(200)).await;
    lane.apply(&*store, noted("kept")).await;
    let kept = read(StreamPosition(0, 0)).await.unwrap().pop().unwrap().position;
    let file = server.append_only_file();
    let length = std::fs::metadata(&file).unwrap().len();
    lane.apply(&*store, noted("lost")).await;
    let lost = read(kept).await.unwrap().pop().unwrap().position;
    server.kill9();
    std::fs::OpenOptions::new().write(true).open(&file).unwrap().set_len(length).unwrap();
    server.restart();
    let batch = lane.batch(noted("anew").into_iter().map(|write| (P, write)).collect());
    while store.commit(&batch).await.is_err() {}
    // Whatever it hears first, it is not the new entry alone.
    let error = read(lost).await.unwrap_err();
    assert!(error.to_string().contains("lacks what was read before"), "{error}");
    assert_eq!(store.resumable(&[(P, kept), (P, lost)]).await, Ok(vec![true, false]));
    assert_eq!(read(kept).await.unwrap().len(), 1);
}
