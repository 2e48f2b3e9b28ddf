//! Records of a later version: refused, left alone, in nobody's way.

use super::{Place, all_runs, becomes, echo, register, start, stop};
use crate::redis_server::{Options, RedisServer};
use downbeat::model::commit::{Expect, RunWrite, Write};
use downbeat::model::ids::{Nonce, Partition, Prefix, RunId};
use downbeat::store::redis::{self as store_redis, RedisStore};
use downbeat::store::{Batch, Store as _, Verdict};

/// Gives the record of a run the format of a later version; the record.
async fn make_newer(redis: &RedisServer, id: &str) -> Vec<u8> {
    let store = RedisStore::open(&redis.url(), store_redis::Options::default()).await.unwrap();
    let run = RunId::new(id).unwrap();
    let at = Partition::of(id, store.layout().partitions);
    let mut record = store.load(&[(at, run.clone())]).await.unwrap().remove(0).unwrap().to_vec();
    record[Prefix::LEN] = 200;
    let write =
        RunWrite::bare(run, Expect::Prefix(Prefix::of(&record).unwrap()), Write::Put(record.clone().into()));
    let batch = Batch { lane: Nonce([7; 16]), sequence: 1, writes: vec![(at, write)] };
    assert_eq!(store.commit(&batch).await.unwrap().verdicts, [Verdict::Applied]);
    record
}

async fn record(redis: &RedisServer, id: &str) -> Vec<u8> {
    let store = RedisStore::open(&redis.url(), store_redis::Options::default()).await.unwrap();
    let at = Partition::of(id, store.layout().partitions);
    store.load(&[(at, RunId::new(id).unwrap())]).await.unwrap().remove(0).unwrap().to_vec()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_of_a_later_format_is_left_alone_and_others_go_on() {
    let redis = RedisServer::start(Options::default());
    let place = Place::Redis(&redis);
    let server = place.serve();
    register(&server, "one", "tasks: { a: { type: work } }").await;
    start(&server, "one", "newer").await;
    start(&server, "one", "known").await;
    stop(server).await;
    let newer = make_newer(&redis, "newer").await;

    let server = place.serve();
    let answer = server.get("/v1/runs/newer").await;
    answer.refused(503, "store_unreadable");
    assert_eq!(answer.header("retry-after"), "10");
    assert!(answer.text().contains("its format is 200; this version reads 1"), "{}", answer.text());
    for path in ["cancel", "pause", "signals/s"] {
        assert_eq!(server.post(&format!("/v1/runs/newer/{path}"), "{}").await.status, 503, "{path}");
    }
    server.delete("/v1/runs/newer").await.refused(503, "store_unreadable");
    // Its id is taken, and its entry in the queue stands in nobody's way.
    server.start_run("one", "newer", "null").await.refused(503, "store_unreadable");
    let working = echo(&server, &["work"]);
    becomes(&server, "known", |run| run["status"] == "completed").await;
    start(&server, "one", "later").await;
    becomes(&server, "later", |run| run["status"] == "completed").await;
    working.abort();
    assert_eq!(record(&redis, "newer").await, newer, "to the byte");

    // It is named by a backup, and left out if that is asked for.
    let files = tempfile::tempdir().unwrap();
    let file = files.path().join("a.backup");
    let refused = place.backup(&file);
    refused.refused("run newer: ");
    refused.refused("leave it out with --skip-unreadable");
    let done = place.run("backup", &file, &["--skip-unreadable"]);
    assert!(done.err.contains("left out: run newer"), "{done:?}");
    assert!(done.well().contains("2 records"));
    stop(server).await;
    let data = files.path().join("data");
    Place::Directory(&data).restore(&file).well();
    let server = Place::Directory(&data).serve();
    assert_eq!(all_runs(&server).await.len(), 2);
    stop(server).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_whose_document_is_lost_is_restored_and_named() {
    let redis = RedisServer::start(Options::default());
    let server = Place::Redis(&redis).serve();
    for name in ["lost", "kept"] {
        register(&server, name, "tasks: { a: { type: work } }").await;
        start(&server, name, name).await;
    }
    stop(server).await;
    assert_eq!(redis.command("DEL db:{w}:d:lost"), ":1");
    let files = tempfile::tempdir().unwrap();
    let (file, data) = (files.path().join("a.backup"), files.path().join("data"));
    Place::Redis(&redis).backup(&file).well();
    let done = Place::Directory(&data).restore(&file);
    assert!(done.err.contains("stands still: run lost: its tasks are in no queue"), "{done:?}");
    assert!(done.well().contains("restored 2 records"));
    let server = Place::Directory(&data).serve();
    let working = echo(&server, &["work"]);
    becomes(&server, "kept", |run| run["status"] == "completed").await;
    working.abort();
    server.get("/v1/runs/lost").await.refused(404, "workflow_not_found");
    stop(server).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_later_layout_is_refused_by_every_command() {
    let redis = RedisServer::start(Options::default());
    let place = Place::Redis(&redis);
    stop(place.serve()).await;
    redis.command("HSET db:meta layout 9");
    let files = tempfile::tempdir().unwrap();
    place
        .backup(&files.path().join("a"))
        .refused("the store has layout 9; this version of Downbeat knows layout 2: use a newer");
    assert_eq!(redis.command("HGET db:meta layout"), "$1");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn migrate_says_what_there_is_to_do() {
    let redis = RedisServer::start(Options::default());
    let files = tempfile::tempdir().unwrap();
    let data = files.path().join("data");
    let (there, here) = (Place::Redis(&redis), Place::Directory(&data));
    let dry = std::path::Path::new("--dry-run");
    for place in [there, here] {
        place.run("migrate", dry, &[]).refused("there is no store");
        stop(place.serve()).await;
        let said = place.run("migrate", dry, &[]).well();
        assert!(said.contains("layout 2, that of this version: nothing would be done"), "{said}");
    }
    assert!(!files.path().join("none").exists());
    let server = here.serve();
    here.run("migrate", dry, &[]).refused("another process uses it");
    stop(server).await;
    for (layout, way) in [(1, "begin with an empty store"), (9, "use a newer version")] {
        redis.command(&format!("HSET db:meta layout {layout}"));
        there.run("migrate", dry, &[]).refused(way);
    }
}
