//! What a directory promises beyond the port: it survives its process, has one owner, and fails in words.

use crate::data::{
    Lane, P, add, create, entry, field, named, note, prefix, put, record, run, session, stored, workflow,
};
use crate::fixture::{ManualClock, embedded_options};
use bytes::Bytes;
use downbeat::model::commit::{Expect, RunWrite, WakeOp};
use downbeat::model::ids::{Nonce, Partition};
use downbeat::model::time::{LeaseTime, Span, Timestamp};
use downbeat::store::embedded::{EmbeddedStore, Options};
use downbeat::store::{SessionRecord, Store, StoreError, StreamPosition, Verdict};
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

fn options() -> Options {
    embedded_options(ManualClock::new())
}

async fn open(dir: &Path) -> Arc<EmbeddedStore> {
    EmbeddedStore::open(dir, options()).await.unwrap()
}

/// A run with something of every kind, so that what is written together can be seen to stand together.
fn whole(name: &str, created: i64) -> RunWrite {
    RunWrite {
        payloads: vec![(field("i"), Bytes::from(name.to_owned()))],
        queue: vec![add("q", entry(name, 1), created)],
        wake: WakeOp::Set(Timestamp(created)),
        index: Some(Timestamp(created)),
        event: Some(note(name, 0)),
        ..create(name)
    }
}

#[tokio::test]
async fn everything_is_found_again_after_reopening() {
    let dir = tempfile::tempdir().unwrap();
    let mut lane = Lane::new(1);
    let worker = SessionRecord {
        epoch: 3,
        label: "w".into(),
        owner: Nonce([9; 16]),
        deadline: LeaseTime(0),
        lease_now: LeaseTime(0),
    };
    let first = open(dir.path()).await;
    let batch = lane.batch(vec![(P, whole("a", 1)), (P, whole("b", 2)), (P, whole("c", 3))]);
    first.commit(&batch).await.unwrap();
    let taken = first.take(&[(P, named("q"), 1)], Span::secs(60)).await.unwrap();
    assert!(first.put_session(&session("s1-x"), &worker, None, Span::secs(10)).await.unwrap());
    first.put_workflow(&workflow("order"), &Bytes::from_static(b"{}")).await.unwrap();
    let ticked = first.tick(&[P], 1).await.unwrap();
    assert_eq!(ticked[0].due, [run("a")]);
    let (layout, bounds) = (first.layout(), first.stream_bounds(&[P]).await.unwrap());
    drop(first);

    let again = open(dir.path()).await;
    assert_eq!(again.layout(), layout);
    assert_eq!(
        again.commit(&batch).await.unwrap().verdicts,
        [Verdict::Applied; 3],
        "the lane's window is kept"
    );
    assert_eq!(stored(&*again, "a").await, Some(record(prefix(1, 1), 40)));
    assert_eq!(again.payloads(P, &run("b"), &[field("i")]).await.unwrap(), [Some(Bytes::from_static(b"b"))]);
    assert_eq!(again.list(P, None, 10).await.unwrap().len(), 3);
    assert_eq!(again.stream_bounds(&[P]).await.unwrap(), bounds);
    assert_eq!(again.read_events(&[(P, StreamPosition(0, 0))], 10, Span(0)).await.unwrap().len(), 1);
    assert_eq!(again.sessions(&[session("s1-x")]).await.unwrap()[0].as_ref().unwrap().epoch, 3);
    assert_eq!(again.workflow(&workflow("order"), None).await.unwrap().unwrap().version, 1);
    let ticked = again.tick(&[P], 10).await.unwrap().pop().unwrap();
    assert_eq!(ticked.due, [run("b"), run("c")], "a was moved ahead before");
    assert_eq!(ticked.heads[0].depth, 2, "one entry is claimed");
    let left = again.take(&[(P, named("q"), 10)], Span::secs(60)).await.unwrap();
    assert!(left.iter().all(|t| t.entry != taken[0].entry) && left.len() == 2);
}

#[tokio::test]
async fn a_second_owner_is_refused_and_told_why() {
    let dir = tempfile::tempdir().unwrap();
    let first = open(dir.path()).await;
    let error = EmbeddedStore::open(dir.path(), options()).await.unwrap_err();
    assert!(error.to_string().contains("another process uses it"), "{error}");
    assert!(error.to_string().contains(&dir.path().display().to_string()), "{error}");
    drop(first);
    open(dir.path()).await;
}

#[tokio::test]
async fn another_number_of_partitions_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    drop(open(dir.path()).await);
    let other = Options { partitions: Some(5), ..options() };
    let error = EmbeddedStore::open(dir.path(), other).await.unwrap_err();
    assert!(error.to_string().contains("initialised with 4 partitions, 5 were asked for"), "{error}");
    let none = Options { partitions: None, ..options() };
    assert_eq!(EmbeddedStore::open(dir.path(), none).await.unwrap().layout().partitions, 4);
    let zero = Options { partitions: Some(0), ..options() };
    assert!(EmbeddedStore::open(&dir.path().join("new"), zero).await.is_err());
}

#[tokio::test]
async fn an_unknown_layout_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    drop(open(dir.path()).await);
    {
        let db = fjall::Database::builder(dir.path()).open().unwrap();
        let hot = db.keyspace("hot", fjall::KeyspaceCreateOptions::default).unwrap();
        let mut meta = hot.get("M").unwrap().unwrap().to_vec();
        meta[3] = 99;
        hot.insert("M", meta).unwrap();
    }
    let error = EmbeddedStore::open(dir.path(), options()).await.unwrap_err();
    assert!(matches!(error, StoreError::Unreadable(_)), "{error:?}");
    assert!(error.to_string().contains("layout 99"), "{error}");
}

#[tokio::test]
async fn a_directory_that_is_a_file_is_refused() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let error = EmbeddedStore::open(file.path(), options()).await.unwrap_err();
    assert!(!error.was_sent());
    assert!(error.to_string().contains("cannot be opened"), "{error}");
}

#[tokio::test]
async fn many_commits_at_once_share_their_writes_and_are_all_kept() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options { sync: downbeat::store::embedded::Sync::EveryGroup, ..options() };
    let store = EmbeddedStore::open(dir.path(), options).await.unwrap();
    let tasks = (0..64u8).map(|n| {
        let store = Arc::clone(&store);
        tokio::spawn(async move {
            // Every lane tries for the same run, and one of its own.
            let writes = vec![put("shared", Expect::Absent, prefix(1, n)), create(&format!("own{n}"))];
            Lane::new(n).commit(&*store, writes).await.verdicts
        })
    });
    let mut winners = 0;
    for task in tasks.collect::<Vec<_>>() {
        let verdicts = task.await.unwrap();
        winners += u32::from(verdicts[0] == Verdict::Applied);
        assert_eq!(verdicts[1], Verdict::Applied);
    }
    assert_eq!(winners, 1);
    drop(store);
    let again = open(dir.path()).await;
    for n in 0..64u8 {
        assert!(stored(&*again, &format!("own{n}")).await.is_some());
    }
}

/// Every run of the index has all that was written with it, and nothing stands without its run.
async fn assert_whole(store: &dyn Store) -> usize {
    let mut before = None;
    let mut runs = Vec::new();
    loop {
        let page = store.list(P, before, 500).await.unwrap();
        let Some(last) = page.last() else { break };
        before = Some(last.clone());
        runs.extend(page.into_iter().map(|(_, run)| run));
    }
    for run in &runs {
        assert!(store.load(&[(P, run.clone())]).await.unwrap()[0].is_some(), "record of {run}");
        let payload = store.payloads(P, run, &[field("i")]).await.unwrap();
        assert_eq!(payload, [Some(Bytes::from(run.to_string()))]);
    }
    let entries = store.take(&[(P, named("q"), 1_000_000)], Span::secs(0)).await.unwrap();
    assert_eq!(entries.len(), runs.len(), "queue entries");
    let ticked = store.tick(&[P], 1_000_000).await.unwrap().pop().unwrap();
    assert_eq!(ticked.due.len(), runs.len(), "wake-ups");
    // The claims ended at once: back they go, some at each tick.
    let mut reclaimed = ticked.reclaimed as usize;
    while reclaimed < runs.len() {
        let more = store.tick(&[P], 1).await.unwrap()[0].reclaimed as usize;
        assert!(more > 0, "{reclaimed} claims of {}", runs.len());
        reclaimed += more;
    }
    runs.len()
}

fn journals(dir: &Path) -> Vec<PathBuf> {
    let mut found: Vec<_> = std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().path()).collect();
    found.retain(|p| p.extension().is_some_and(|e| e == "jnl"));
    found.sort();
    found
}

#[tokio::test]
async fn a_journal_cut_anywhere_loses_whole_groups_from_its_end() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).await;
    let mut lane = Lane::new(1);
    for n in 0..20 {
        lane.apply(&*store, vec![whole(&format!("r{n}"), n)]).await;
    }
    drop(store);
    let mut last = 20;
    for cut in [0, 1, 37, 500, 1_777] {
        let journal = journals(dir.path()).pop().unwrap();
        let file = std::fs::OpenOptions::new().write(true).open(&journal).unwrap();
        file.set_len(file.metadata().unwrap().len() - cut).unwrap();
        let store = open(dir.path()).await;
        let left = store.list(P, None, 500).await.unwrap().len();
        for n in 0..left {
            assert!(stored(&*store, &format!("r{n}")).await.is_some(), "r{n} of {left}");
        }
        assert!(if cut == 0 { left == 20 } else { left < last }, "{left} after {last}, {cut} cut off");
        last = left;
    }
    assert!(last > 0);
    assert_whole(&*open(dir.path()).await).await;
}

#[tokio::test]
async fn a_journal_cut_short_that_has_grown_anew_is_told_by_positions() {
    let dir = tempfile::tempdir().unwrap();
    let clock = ManualClock::new();
    let options = || embedded_options(clock.clone());
    let open = async || EmbeddedStore::open(dir.path(), options()).await.unwrap();
    let mut lane = Lane::new(1);
    let mut store = open().await;
    let mut ends = Vec::new();
    for (n, name) in ["kept", "lost", "anew"].into_iter().enumerate() {
        if name == "anew" {
            drop(store);
            // Its journal ends where it was written to the last.
            drop(open().await);
            let journal = journals(dir.path()).pop().unwrap();
            let file = std::fs::OpenOptions::new().write(true).open(&journal).unwrap();
            file.set_len(file.metadata().unwrap().len() - 1).unwrap();
            store = open().await;
            assert!(stored(&*store, "lost").await.is_none());
        }
        clock.advance(Span::millis(1));
        lane.apply(&*store, vec![whole(name, n as i64)]).await;
        ends.push((P, store.stream_bounds(&[P]).await.unwrap()[0].last));
    }
    assert_eq!(store.resumable(&ends).await, Ok(vec![true, false, true]));
}

/// Runs one of the ignored tests below in a process of its own.
fn child(test: &str, dir: &Path, through: Option<&str>) -> Child {
    let exe = std::env::current_exe().unwrap();
    let mut command = match through {
        None => Command::new(exe),
        Some(shell) => {
            let mut sh = Command::new("sh");
            sh.args(["-c", shell]).arg(exe);
            sh
        }
    };
    command
        .args([&format!("embedded_only::{test}"), "--exact", "--ignored", "--nocapture", "--test-threads=1"])
        .env("DOWNBEAT_TEST_DIR", dir)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "runs until it is killed; started by a test below"]
async fn child_commits_until_killed() {
    let dir = PathBuf::from(std::env::var("DOWNBEAT_TEST_DIR").unwrap());
    let store = open(&dir).await;
    let from = store.list(P, None, 1_000_000).await.unwrap().len();
    let tasks = (0..4u8).map(|n| {
        let store = Arc::clone(&store);
        tokio::spawn(async move {
            let mut lane = Lane::new(n);
            lane.sequence = from as u64;
            loop {
                let name = format!("r{n}-{}", lane.sequence);
                lane.apply(&*store, vec![whole(&name, lane.sequence as i64)]).await;
                println!("acknowledged {name}");
            }
        })
    });
    futures::future::join_all(tasks.collect::<Vec<_>>()).await;
}

#[tokio::test]
async fn every_acknowledged_commit_survives_kill_9() {
    let dir = tempfile::tempdir().unwrap();
    let mut acknowledged = Vec::new();
    for (round, wanted) in [1, 150, 900].into_iter().enumerate() {
        let mut child = child("child_commits_until_killed", dir.path(), None);
        let read = |line: std::io::Result<String>| Some(line.ok()?.strip_prefix("acknowledged ")?.to_owned());
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().filter_map(read);
        acknowledged.extend(lines.by_ref().take(wanted));
        child.kill().unwrap();
        child.wait().unwrap();
        // What it said before it died is acknowledged too.
        acknowledged.extend(lines);
        assert!(acknowledged.len() >= wanted);

        // Later each time, so that wake-ups moved ahead by the last look are due again.
        let clock = ManualClock::new();
        clock.advance(Span::secs(10 * round as i64));
        let store = EmbeddedStore::open(dir.path(), embedded_options(clock)).await.unwrap();
        for name in &acknowledged {
            assert!(stored(&*store, name).await.is_some(), "{name} was acknowledged");
        }
        assert!(assert_whole(&*store).await >= acknowledged.len());
    }
}

#[tokio::test]
#[ignore = "limits the files of its process; started by a test below"]
async fn child_fills_its_disk() {
    let dir = PathBuf::from(std::env::var("DOWNBEAT_TEST_DIR").unwrap());
    let store = open(&dir).await;
    let mut lane = Lane::new(1);
    let large =
        |n: u64| RunWrite { payloads: vec![(field("x"), noise(n, 500_000))], ..create(&format!("r{n}")) };
    for n in 0..10 {
        lane.apply(&*store, vec![large(n)]).await;
    }
    // From now on no file may grow beyond what the journal has.
    let me = std::process::id().to_string();
    assert!(Command::new("prlimit").args(["--pid", &me, "--fsize=4096"]).status().unwrap().success());
    let batch = lane.batch(vec![(P, large(10))]);
    let first = store.commit(&batch).await.unwrap_err();
    assert!(matches!(&first, StoreError::Unavailable { sent: true, .. }), "{first:?}");
    let small = lane.batch(vec![(P, create("small"))]);
    let second = store.commit(&small).await.unwrap_err();
    assert!(!second.was_sent() && second.to_string().contains("until a restart"), "{second:?}");
    assert!(store.check().await.is_err());
    // What was there can still be read.
    assert!(store.load(&[(P, run("r0"))]).await.unwrap()[0].is_some());
    assert_eq!(store.load(&[(P, run("small"))]).await.unwrap(), [None]);
    assert_eq!(store.layout().partitions, 4);
    println!("all as it should be");
}

/// Bytes that do not compress.
fn noise(seed: u64, len: usize) -> Bytes {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    std::iter::repeat_with(next).take(len).collect()
}

#[tokio::test]
async fn a_disk_that_takes_no_more_gives_errors_and_what_was_acknowledged_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    // A write beyond the limit is to be an error and not a signal.
    let shell = "trap '' XFSZ; exec \"$0\" \"$@\"";
    let child = child("child_fills_its_disk", dir.path(), Some(shell)).wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&child.stdout).into_owned();
    assert!(child.status.success() && said.contains("all as it should be"), "{said}");
    let store = open(dir.path()).await;
    for n in 0..10 {
        assert!(stored(&*store, &format!("r{n}")).await.is_some(), "r{n}");
    }
    assert_eq!(store.load(&[(P, run("small")), (Partition(0), run("small"))]).await.unwrap(), [None, None]);
    Lane::new(2).apply(&*store, vec![create("small")]).await;
}
