//! What is not moved, and what is said then.

use super::{Place, all_runs, becomes, echo, register, start, stop};
use crate::redis_server::{Options, RedisServer};
use downbeat::store::redis::{self as store_redis, RedisStore};
use downbeat::store::{Moves as _, Purpose};
use std::path::PathBuf;

/// A directory with a store of two runs, and a backup of it.
async fn backed_up(files: &tempfile::TempDir) -> (PathBuf, PathBuf) {
    let (data, file) = (files.path().join("data"), files.path().join("a.backup"));
    let server = Place::Directory(&data).serve();
    register(&server, "one", "tasks: { a: { type: work } }").await;
    start(&server, "one", "r1").await;
    start(&server, "one", "r2").await;
    stop(server).await;
    Place::Directory(&data).backup(&file).well();
    (data, file)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_moved_is_refused_and_nothing_is_touched() {
    let files = tempfile::tempdir().unwrap();
    let (data, file) = backed_up(&files).await;
    let redis = RedisServer::start(Options::default());
    let (from, into) = (Place::Directory(&data), Place::Redis(&redis));

    from.backup(&file).refused("is there already: take another name, or --overwrite");
    from.run("backup", &file, &["--overwrite"]).well();
    from.backup(&files.path().join("no/such/place")).refused("No such file");
    into.backup(&files.path().join("b")).refused("there is no store in this Redis");
    Place::Directory(&files.path().join("none"))
        .backup(&files.path().join("b"))
        .refused("there is no store in");
    assert!(!files.path().join("none").exists());
    let left: Vec<_> = std::fs::read_dir(files.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left.len(), 2, "nothing but the data and the file: {left:?}");

    // Cut and damaged files.
    let whole = std::fs::read(&file).unwrap();
    let bad = files.path().join("bad");
    std::fs::write(&bad, &whole[..whole.len() / 2]).unwrap();
    into.restore(&bad).refused("at byte");
    let mut damaged = whole.clone();
    damaged[whole.len() / 2] ^= 1;
    std::fs::write(&bad, damaged).unwrap();
    into.restore(&bad).refused("it is damaged");
    std::fs::write(&bad, "something else").unwrap();
    into.restore(&bad).refused("at byte 0: this is no backup of Downbeat");
    into.restore(&files.path().join("missing")).refused("No such file");
    assert_eq!(redis.command("DBSIZE"), ":0", "nothing was begun");
    assert!(into.run("restore", &file, &["--check"]).well().contains("2 records, 1 version of a workflow"));
    assert_eq!(redis.command("DBSIZE"), ":0");

    // A store that is in use.
    from.restore(&file).refused("it is in use");
    let server = into.serve();
    into.restore(&file).refused("it is in use");
    stop(server).await;
    into.restore(&file).refused("it is in use");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_interrupted_restore_is_served_by_nobody_until_it_was_done_again() {
    let files = tempfile::tempdir().unwrap();
    let (_, file) = backed_up(&files).await;
    let redis = RedisServer::start(Options::default());
    let place = Place::Redis(&redis);
    // As if it had died after the first of its writes.
    let id = std::fs::read(&file).unwrap()[16 + 5 + 4..][..16].try_into().unwrap();
    let open = async || {
        let options = store_redis::Options {
            partitions: Some(8),
            purpose: Purpose::Restore,
            ..store_redis::Options::default()
        };
        RedisStore::open(&redis.url(), options).await.unwrap()
    };
    assert!(open().await.begin_restore(&id).await.unwrap());

    let listen = crate::support::server::free_address().to_string();
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_downbeat"))
        .args(["serve", "--store", &redis.url(), "--listen", &listen])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("a restore into it has not ended"), "{said}");
    place.backup(&files.path().join("b")).refused("a restore into it has not ended");
    let other = files.path().join("other");
    backed_up_again(&files, &other);
    place.restore(&other).refused("the restore of another file into this store has not ended");
    place
        .run("restore", &file, &["--partitions", "3"])
        .refused("initialised with 8 partitions, 3 were asked for");

    // What it had written before is written once more.
    place.restore(&file).well();
    let server = place.serve();
    assert_eq!(all_runs(&server).await.len(), 2);
    let working = echo(&server, &["work"]);
    for id in ["r1", "r2"] {
        becomes(&server, id, |run| run["status"] == "completed").await;
    }
    working.abort();
    stop(server).await;
}

/// Another backup of the same store.
fn backed_up_again(files: &tempfile::TempDir, file: &std::path::Path) {
    Place::Directory(&files.path().join("data")).backup(file).well();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restore_that_breaks_off_is_done_again() {
    let files = tempfile::tempdir().unwrap();
    let (data, file) = (files.path().join("data"), files.path().join("a.backup"));
    let (from, redis) = (Place::Directory(&data), RedisServer::start(Options::default()));
    let into = Place::Redis(&redis);
    let server = from.serve();
    let wide = "tasks: { a: { for_each: '${{ range(150) | list }}', type: work } }";
    register(&server, "wide", wide).await;
    let input = serde_json::Value::String("x".repeat(20_000)).to_string();
    for n in 0..200 {
        assert_eq!(server.start_run("wide", &format!("r{n}"), &input).await.status, 201);
    }
    let before = all_runs(&server).await;
    stop(server).await;
    from.backup(&file).well();

    // There is room for a part of it, then for a bit more, then for all.
    let used = || {
        let info = redis.info("memory");
        info.lines().find_map(|l| l.strip_prefix("used_memory:")).unwrap().trim().parse::<u64>().unwrap()
    };
    let (empty, mut keys) = (used(), 4);
    for room in [3 << 20, 5 << 20] {
        redis.command(&format!("CONFIG SET maxmemory {}", empty + room));
        into.restore(&file).refused("the store is full");
        let now: u64 = redis.command("DBSIZE").trim_start_matches(':').parse().unwrap();
        assert!(now > keys, "it went on from {keys} keys");
        keys = now;
        into.backup(&files.path().join("b")).refused("a restore into it has not ended");
    }
    redis.command("CONFIG SET maxmemory 0");
    into.restore(&file).well();
    assert_eq!(into.run("doctor", std::path::Path::new("--orphans"), &[]).well(), "no orphans\n");
    let server = into.serve();
    assert_eq!(all_runs(&server).await, before);
    stop(server).await;
}
