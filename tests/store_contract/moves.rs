//! What backup and restore ask of a store.

use crate::data::{Lane, P, create, field, run, workflow};
use crate::fixture::{Fixture, PARTITIONS, redis_options};
use crate::redis_cluster::RedisCluster;
use crate::redis_server::{self, RedisServer};
use bytes::Bytes;
use downbeat::model::commit::{RunWrite, WakeOp};
use downbeat::model::ids::Partition;
use downbeat::model::time::{LeaseTime, Timestamp};
use downbeat::store::embedded::{self, EmbeddedStore};
use downbeat::store::redis::{self as store_redis, RedisStore};
use downbeat::store::{Moves, Purpose, Result, StoredWorkflow};
use std::collections::BTreeSet;
use std::sync::Arc;

pub(crate) async fn runs_are_listed_oldest_first_once_each(f: &Fixture) {
    let indexed = |name: &str, at| RunWrite { index: Some(Timestamp(at)), ..create(name) };
    let mut expected = vec![(Timestamp(5), run("z")), (Timestamp(9), run("a"))];
    let mut writes = vec![indexed("a", 9), indexed("z", 5)];
    // Many of one instant, in no order.
    for n in [3, 0, 7, 1, 6, 2, 5, 4] {
        writes.push(indexed(&format!("m{n}"), 7));
    }
    expected.splice(1..1, (0..8).map(|n| (Timestamp(7), run(&format!("m{n}")))));
    writes.push(indexed("m", 7));
    expected.insert(1, (Timestamp(7), run("m")));
    Lane::new(1).apply(&*f.store, writes).await;
    assert_eq!(f.store.oldest(P, None, 100).await.unwrap(), expected);
    for size in 1..=4 {
        let (mut all, mut after) = (Vec::new(), None);
        loop {
            let page = f.store.oldest(P, after, size).await.unwrap();
            assert!(page.len() <= size as usize);
            let Some(last) = page.last() else { break };
            after = Some(last.clone());
            all.extend(page);
        }
        assert_eq!(all, expected, "in pages of {size}");
    }
    // After one that is not there.
    let after = Some((Timestamp(7), run("m3x")));
    assert_eq!(f.store.oldest(P, after, 1).await.unwrap(), [(Timestamp(7), run("m4"))]);
    assert_eq!(f.store.oldest(P, None, 0).await.unwrap(), []);
    assert_eq!(f.store.oldest(Partition(0), None, 9).await.unwrap(), []);
    assert!(f.store.oldest(Partition(PARTITIONS), None, 9).await.is_err());
}

pub(crate) async fn home_records_are_told_from_runs(f: &Fixture) {
    let woken = |name: &str| RunWrite { wake: WakeOp::Set(Timestamp(5)), ..create(name) };
    let homes = ["downbeat.permits.a", "downbeat.schedule.s", "downbeat.schedules"];
    let runs = ["downbeat", "downbeat-1", "a", "z"];
    Lane::new(1).apply(&*f.store, homes.iter().chain(&runs).map(|name| woken(name)).collect()).await;
    let found: BTreeSet<_> = f.store.homes(P).await.unwrap().into_iter().collect();
    assert_eq!(found, homes.iter().map(|name| run(name)).collect());
    assert_eq!(f.store.homes(Partition(0)).await.unwrap(), []);
}

pub(crate) async fn the_names_of_payloads_are_told(f: &Fixture) {
    let payloads: Vec<_> = (0..200).map(|n| (field(&format!("o{n}")), Bytes::from_static(b"1"))).collect();
    let names: BTreeSet<_> = payloads.iter().map(|(f, _)| f.clone()).collect();
    let other = vec![(field("i"), Bytes::from_static(b"2"))];
    let with = |name: &str, payloads| RunWrite { payloads, ..create(name) };
    Lane::new(1).apply(&*f.store, vec![with("a", payloads), with("a.b", other), create("b")]).await;
    let found = f.store.payload_fields(P, &run("a")).await.unwrap();
    assert_eq!((found.len(), found.into_iter().collect()), (200, names));
    assert_eq!(f.store.payload_fields(P, &run("a.b")).await.unwrap(), [field("i")]);
    assert_eq!(f.store.payload_fields(P, &run("b")).await.unwrap(), []);
}

pub(crate) async fn versions_are_put_as_they_are(f: &Fixture) {
    let stored = |version, at| StoredWorkflow {
        name: workflow("w"),
        version,
        document: Bytes::from(format!("{{\"v\":{version}}}")),
        created_at: Timestamp(at),
    };
    for version in [stored(1, 10), stored(3, 30), stored(2, 20), stored(3, 30)] {
        f.store.put_version(&version).await.unwrap();
    }
    let name = workflow("w");
    for version in [stored(1, 10), stored(2, 20), stored(3, 30)] {
        assert_eq!(f.store.workflow(&name, Some(version.version)).await.unwrap(), Some(version));
    }
    assert_eq!(f.store.workflow(&name, None).await.unwrap(), Some(stored(3, 30)));
    let listed = f.store.workflows(None, 10).await.unwrap();
    assert_eq!((listed.len(), listed[0].version, listed[0].created_at), (1, 3, Timestamp(30)));
    // The next one is a version more, and made now.
    let (next, made) = f.store.put_workflow(&name, &Bytes::from_static(b"{}")).await.unwrap();
    assert_eq!((next.version, made), (4, true));
    assert!(next.created_at > Timestamp(30));
}

/// On a place that is empty; `open` opens it.
pub(crate) async fn a_restore_ends_with_its_clocks(open: impl AsyncFn(Purpose) -> Result<Arc<dyn Moves>>) {
    let said =
        |opened: Result<_>| opened.map_or_else(|e| e.to_string(), |_: Arc<dyn Moves>| "opened".to_owned());
    assert!(said(open(Purpose::Read).await).contains("there is no store in"));
    let store = open(Purpose::Restore).await.unwrap();
    assert!(store.begin_restore(&[1; 16]).await.unwrap());
    assert!(!store.begin_restore(&[2; 16]).await.unwrap(), "another file");
    Lane::new(1).apply(&*store, vec![create("a")]).await;
    drop(store);
    for purpose in [Purpose::Serve, Purpose::Read] {
        let said = said(open(purpose).await);
        assert!(said.contains("a restore into it has not ended: run `downbeat restore`"), "{said}");
    }
    // Interrupted; the same file goes on.
    let store = open(Purpose::Restore).await.unwrap();
    assert!(!store.begin_restore(&[2; 16]).await.unwrap());
    assert!(store.begin_restore(&[1; 16]).await.unwrap());
    assert!(store.end_restore(&[2; 16], LeaseTime(0)).await.is_err());
    store.end_restore(&[1; 16], LeaseTime(77_000_000)).await.unwrap();
    drop(store);
    let refused = said(open(Purpose::Restore).await);
    assert!(refused.contains("it is in use (it was initialised, with layout 2)"), "{refused}");
    let store = open(Purpose::Serve).await.unwrap();
    for partition in (0..store.layout().partitions).map(Partition) {
        let ticked = store.tick(&[partition], 0).await.unwrap().remove(0);
        let passed = ticked.lease_now.since(LeaseTime(77_000_000));
        assert!(ticked.lease_now >= LeaseTime(77_000_000) && passed.as_millis() <= 2_000, "{ticked:?}");
    }
    assert!(store.load(&[(P, run("a"))]).await.unwrap()[0].is_some());
}

#[tokio::test]
async fn a_directory_is_restored_before_it_is_served() {
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().join("data");
    a_restore_ends_with_its_clocks(async |purpose| {
        let options =
            embedded::Options { partitions: Some(PARTITIONS), purpose, ..embedded::Options::default() };
        EmbeddedStore::open(&place, options).await.map(|store| store as Arc<dyn Moves>)
    })
    .await;
}

#[tokio::test]
async fn a_redis_is_restored_before_it_is_served() {
    let server = RedisServer::start(redis_server::Options::default());
    let open = async |purpose| {
        let options = store_redis::Options { purpose, ..redis_options() };
        RedisStore::open(&server.url(), options).await.map(|store| store as Arc<dyn Moves>)
    };
    a_restore_ends_with_its_clocks(open).await;

    // A server that had the store open before it was emptied goes on ticking.
    server.command("FLUSHALL");
    server.command("SET db:{0}:clock 0");
    let error = open(Purpose::Restore).await.map(drop).unwrap_err().to_string();
    assert!(error.contains("stop all servers that use it"), "{error}");
    server.command("FLUSHALL");
    let store = open(Purpose::Restore).await.unwrap();
    assert!(store.begin_restore(&[1; 16]).await.unwrap());
    server.command("SET db:{3}:clock 0");
    let error = store.end_restore(&[1; 16], LeaseTime(5)).await.unwrap_err().to_string();
    assert!(error.contains("a server has worked on the store meanwhile"), "{error}");
    assert!(open(Purpose::Serve).await.is_err(), "and it is not served");
    // An end that broke off had set some clocks; it is done again.
    server.command("DEL db:{3}:clock");
    assert_eq!(server.command("SET db:{1}:clock \"5 1700000000000000 0 1700000000000000\""), "+OK");
    store.end_restore(&[1; 16], LeaseTime(5)).await.unwrap();
    store.end_restore(&[1; 16], LeaseTime(5)).await.unwrap();
    assert!(open(Purpose::Serve).await.is_ok());
}

#[tokio::test]
async fn a_cluster_is_restored_before_it_is_served() {
    let cluster = RedisCluster::start(3, 0, redis_server::Options::default());
    a_restore_ends_with_its_clocks(async |purpose| {
        let options = store_redis::Options { purpose, ..redis_options() };
        RedisStore::open(&cluster.url(), options).await.map(|store| store as Arc<dyn Moves>)
    })
    .await;
}
