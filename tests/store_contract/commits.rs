//! The compare and the commit.

use crate::data::{
    Lane, P, add, check, create, entry, field, named, note, prefix, put, record, run, stored, update,
    workflow,
};
use crate::fixture::{Fixture, PARTITIONS};
use bytes::Bytes;
use downbeat::model::commit::{Expect, RunWrite, VersionOf, WakeOp, Write};
use downbeat::model::ids::{Nonce, Partition};
use downbeat::model::time::{Span, Timestamp};
use downbeat::store::{LANE_KEPT, StoreError, StreamPosition, Verdict};

pub(crate) async fn a_run_is_created_once(f: &Fixture) {
    let mut lane = Lane::new(1);
    let first = lane.commit(&*f.store, vec![create("a")]).await;
    let again = lane.commit(&*f.store, vec![put("a", Expect::Absent, prefix(1, 9))]).await;
    assert_eq!((first.verdicts, again.verdicts), (vec![Verdict::Applied], vec![Verdict::Conflict]));
    assert_eq!(stored(&*f.store, "a").await, Some(record(prefix(1, 1), 40)));
}

pub(crate) async fn compares_the_whole_prefix_and_not_the_version(f: &Fixture) {
    let mut lane = Lane::new(1);
    lane.apply(&*f.store, vec![create("a")]).await;
    let same_version = put("a", Expect::Prefix(prefix(1, 2)), prefix(2, 2));
    assert_eq!(lane.commit(&*f.store, vec![same_version]).await.verdicts, [Verdict::Conflict]);
    let same_nonce = put("a", Expect::Prefix(prefix(2, 1)), prefix(2, 2));
    assert_eq!(lane.commit(&*f.store, vec![same_nonce]).await.verdicts, [Verdict::Conflict]);
    let absent_run = put("b", Expect::Prefix(prefix(1, 1)), prefix(2, 2));
    assert_eq!(lane.commit(&*f.store, vec![absent_run]).await.verdicts, [Verdict::Conflict]);
    assert_eq!(lane.commit(&*f.store, vec![update("a")]).await.verdicts, [Verdict::Applied]);
    assert_eq!(stored(&*f.store, "a").await, Some(record(prefix(2, 2), 40)));
    assert_eq!(stored(&*f.store, "b").await, None);
}

/// A decision that writes something of every kind.
fn everything(name: &str, expect: Expect, now: downbeat::model::time::Timestamp) -> RunWrite {
    RunWrite {
        payloads: vec![(field("i"), Bytes::from_static(b"{}"))],
        queue: vec![add("charge", entry(name, 1), 5)],
        wake: WakeOp::Set(now),
        index: Some(now),
        retain_until: Some(Some(now)),
        event: Some(note(name, 0)),
        ..put(name, expect, prefix(1, 1))
    }
}

pub(crate) async fn a_refused_decision_writes_nothing_and_the_others_of_its_batch_do(f: &Fixture) {
    let now = f.now().await;
    let mut lane = Lane::new(1);
    lane.apply(&*f.store, vec![create("taken")]).await;
    let batch = vec![
        everything("a", Expect::Absent, now),
        everything("taken", Expect::Absent, now),
        everything("gone", Expect::Prefix(prefix(4, 4)), now),
        everything("z", Expect::Absent, now),
    ];
    let committed = lane.commit(&*f.store, batch).await;
    assert_eq!(
        committed.verdicts,
        [Verdict::Applied, Verdict::Conflict, Verdict::Conflict, Verdict::Applied]
    );
    assert_eq!(committed.heads[0].depth, 2);

    assert_eq!(stored(&*f.store, "gone").await, None);
    for (name, written) in [("a", true), ("taken", false), ("gone", false), ("z", true)] {
        let payload = f.store.payloads(P, &run(name), &[field("i")]).await.unwrap();
        assert_eq!(payload[0].is_some(), written, "payload of {name}");
    }
    let runs =
        |runs: Vec<downbeat::model::ids::RunId>| runs.iter().map(ToString::to_string).collect::<Vec<_>>();
    let ticked = f.store.tick(&[P], 10).await.unwrap().pop().unwrap();
    assert_eq!(runs(ticked.due), ["a", "z"]);
    assert_eq!(runs(ticked.expired), ["a", "z"]);
    let listed = f.store.list(P, None, 10).await.unwrap();
    assert_eq!(runs(listed.into_iter().map(|(_, r)| r).collect()), ["z", "a"]);
    let taken = f.store.take(&[(P, named("charge"), 10)], Span::secs(1)).await.unwrap();
    assert_eq!(runs(taken.into_iter().map(|t| t.entry.run).collect()), ["a", "z"]);
    let events = f.store.read_events(&[(P, StreamPosition(0, 0))], 10, Span(0)).await.unwrap();
    let mut notes = Vec::new();
    note("a", 0).encode_into(&mut notes);
    note("z", 0).encode_into(&mut notes);
    assert_eq!(events.iter().map(|e| &e.notes[..]).collect::<Vec<_>>(), [&notes[..]]);
}

pub(crate) async fn a_run_is_not_begun_of_a_version_that_is_not_there(f: &Fixture) {
    let (stored, _) = f.store.put_workflow(&workflow("order"), &Bytes::from_static(b"{}")).await.unwrap();
    let of = |version, created: i64| {
        let created_at = Timestamp(stored.created_at.0 + created);
        Some(Box::new(VersionOf { workflow: workflow("order"), version, created_at }))
    };
    let mut lane = Lane::new(1);
    lane.apply(&*f.store, vec![create("taken")]).await;
    let full = |name: &str, of| RunWrite {
        of,
        event: Some(note(name, 0)),
        index: Some(Timestamp(5)),
        ..create(name)
    };
    let writes = vec![
        full("a", of(1, 0)),
        full("lost", of(2, 0)),
        full("other", of(1, -1)),
        full("taken", of(2, 0)),
        full("b", of(1, 0)),
        create("c"),
    ];
    // Where workflows are in another place than runs, nothing is said of them.
    let lost = if f.store.groups().len() > 1 { Verdict::Applied } else { Verdict::NoWorkflow };
    let expected = [Verdict::Applied, lost, lost, Verdict::Conflict, Verdict::Applied, Verdict::Applied];
    let batch = lane.batch(writes.into_iter().map(|w| (P, w)).collect());
    assert_eq!(f.store.commit(&batch).await.unwrap().verdicts, expected);
    assert_eq!(f.store.commit(&batch).await.unwrap().verdicts, expected, "it is remembered");
    if lost == Verdict::NoWorkflow {
        assert_eq!(stored_run(f, "lost").await, None);
        assert_eq!(f.store.list(P, None, 10).await.unwrap().len(), 2, "two with an index");
        let (newer, _) = f.store.put_workflow(&workflow("order"), &Bytes::from_static(b"[]")).await.unwrap();
        let of = VersionOf { workflow: newer.name, version: newer.version, created_at: newer.created_at };
        lane.apply(&*f.store, vec![full("lost", Some(Box::new(of)))]).await;
    }
    assert!(stored_run(f, "lost").await.is_some());
}

async fn stored_run(f: &Fixture, name: &str) -> Option<Bytes> {
    stored(&*f.store, name).await
}

pub(crate) async fn a_known_sequence_gets_the_same_verdicts_and_writes_nothing(f: &Fixture) {
    let mut lane = Lane::new(1);
    lane.apply(&*f.store, vec![create("taken")]).await;
    let with_entry = RunWrite { queue: vec![add("charge", entry("a", 1), 5)], ..create("a") };
    let lost = lane.batch(vec![(P, with_entry), (P, create("taken"))]);
    let first = f.store.commit(&lost).await.unwrap();
    assert_eq!(first.verdicts, [Verdict::Applied, Verdict::Conflict]);
    // Others go on meanwhile: the run moves, its entry is taken.
    lane.apply(&*f.store, vec![update("a")]).await;
    f.store.take(&[(P, named("charge"), 1)], Span::secs(60)).await.unwrap();

    let again = f.store.commit(&lost).await.unwrap();
    assert_eq!(again.verdicts, first.verdicts);
    assert_eq!(again.heads, []);
    assert_eq!(stored(&*f.store, "a").await, Some(record(prefix(2, 2), 40)));
    assert_eq!(f.store.take(&[(P, named("charge"), 1)], Span::secs(60)).await.unwrap(), []);
}

pub(crate) async fn a_sequence_older_than_the_window_is_forgotten(f: &Fixture) {
    let mut lane = Lane::new(1);
    let first = lane.batch(vec![(P, create("a"))]);
    f.store.commit(&first).await.unwrap();
    let second = lane.batch(vec![(P, create("b"))]);
    f.store.commit(&second).await.unwrap();
    for n in 0..LANE_KEPT - 1 {
        lane.apply(&*f.store, vec![create(&format!("r{n}"))]).await;
    }
    assert_eq!(f.store.commit(&first).await, Err(StoreError::Forgotten));
    assert_eq!(f.store.commit(&second).await.unwrap().verdicts, [Verdict::Applied]);
}

pub(crate) async fn sequences_of_other_lanes_are_their_own(f: &Fixture) {
    let (mut one, mut two) = (Lane::new(1), Lane::new(2));
    one.apply(&*f.store, vec![create("a")]).await;
    let other = two.commit(&*f.store, vec![create("b"), create("a")]).await;
    assert_eq!(other.verdicts, [Verdict::Applied, Verdict::Conflict]);
}

pub(crate) async fn a_skipped_sequence_may_come_later(f: &Fixture) {
    let mut lane = Lane::new(1);
    let delayed = lane.batch(vec![(P, create("late"))]);
    lane.apply(&*f.store, vec![create("a")]).await;
    assert_eq!(f.store.commit(&delayed).await.unwrap().verdicts, [Verdict::Applied]);
    assert_eq!(f.store.commit(&delayed).await.unwrap().verdicts, [Verdict::Applied]);
    assert_eq!(stored(&*f.store, "late").await, Some(record(prefix(1, 1), 40)));
}

pub(crate) async fn a_lane_is_dropped_after_ten_idle_minutes(f: &Fixture) {
    let mut lane = Lane::new(1);
    let all: Vec<_> = (0..PARTITIONS).map(Partition).collect();
    let tick = || async { f.store.tick(&all, 1).await.unwrap() };
    tick().await;
    let batch = lane.batch(vec![(P, create("a"))]);
    assert_eq!(f.store.commit(&batch).await.unwrap().verdicts, [Verdict::Applied]);
    f.advance(Span::secs(580)).await;
    tick().await;
    assert_eq!(f.store.commit(&batch).await.unwrap().verdicts, [Verdict::Applied], "it is remembered");
    f.advance(Span::secs(90)).await;
    tick().await;
    let again = f.store.commit(&batch).await.unwrap();
    assert_eq!(again.verdicts, [Verdict::Conflict], "nobody remembers, and the run is there");
}

pub(crate) async fn a_check_compares_and_writes_nothing(f: &Fixture) {
    let now = f.now().await;
    let mut lane = Lane::new(1);
    lane.apply(&*f.store, vec![create("a")]).await;
    let check_all = RunWrite { write: Write::Check, ..everything("a", Expect::Prefix(prefix(1, 1)), now) };
    let mixed = vec![
        check_all.clone(),
        check("b", Expect::Absent),
        check("a2", Expect::Prefix(prefix(1, 1))),
        create("c"),
    ];
    let held = [Verdict::Applied, Verdict::Applied, Verdict::Conflict, Verdict::Applied];
    assert_eq!(lane.commit(&*f.store, mixed).await.verdicts, held);
    let only_checks = vec![check_all, check("b", Expect::Absent), check("a", Expect::Absent)];
    let held = [Verdict::Applied, Verdict::Applied, Verdict::Conflict];
    let committed = lane.commit(&*f.store, only_checks).await;
    assert_eq!((committed.verdicts, committed.heads), (held.to_vec(), Vec::new()));

    assert_eq!(stored(&*f.store, "a").await, Some(record(prefix(1, 1), 40)));
    assert_eq!(f.store.payloads(P, &run("a"), &[field("i")]).await.unwrap(), [None]);
    let ticked = f.store.tick(&[P], 10).await.unwrap().pop().unwrap();
    assert_eq!((ticked.due, ticked.expired, ticked.heads), (Vec::new(), Vec::new(), Vec::new()));
    assert_eq!(f.store.list(P, None, 10).await.unwrap(), []);
}

pub(crate) async fn a_deleted_run_leaves_nothing(f: &Fixture) {
    let now = f.now().await;
    let mut lane = Lane::new(1);
    lane.apply(&*f.store, vec![everything("a", Expect::Absent, now), everything("b", Expect::Absent, now)])
        .await;
    let delete = RunWrite {
        write: Write::Delete,
        queue: vec![crate::data::remove("charge", entry("a", 1))],
        ..check("a", Expect::Prefix(prefix(1, 1)))
    };
    let stale = RunWrite { write: Write::Delete, ..check("b", Expect::Prefix(prefix(7, 7))) };
    let committed = lane.commit(&*f.store, vec![delete, stale]).await;
    assert_eq!(committed.verdicts, [Verdict::Applied, Verdict::Conflict]);
    assert_eq!(committed.heads[0].depth, 1);
    assert_eq!(stored(&*f.store, "a").await, None);
    assert_eq!(f.store.payloads(P, &run("a"), &[field("i")]).await.unwrap(), [None]);
    assert_eq!(
        f.store.payloads(P, &run("b"), &[field("i")]).await.unwrap(),
        [Some(Bytes::from_static(b"{}"))]
    );
    let ticked = f.store.tick(&[P], 10).await.unwrap().pop().unwrap();
    assert_eq!((ticked.due, ticked.expired), (vec![run("b")], vec![run("b")]));
    assert_eq!(f.store.list(P, None, 10).await.unwrap(), [(now, run("b"))]);
    // The id is free again.
    lane.apply(&*f.store, vec![create("a")]).await;
}

pub(crate) async fn many_decisions_keep_their_order_over_partitions(f: &Fixture) {
    let mut lane = Lane::new(1);
    let name = |n: u16| format!("r{n}");
    let partition = |n: u16| Partition((n * 7) % PARTITIONS);
    let existing = (0..128).filter(|n| n % 3 == 0).map(|n| (partition(n), create(&name(n)))).collect();
    f.store.commit(&lane.batch(existing)).await.unwrap();
    let batch = lane.batch((0..128).map(|n| (partition(n), create(&name(n)))).collect());
    let verdicts = f.store.commit(&batch).await.unwrap().verdicts;
    let expected: Vec<_> =
        (0..128).map(|n| if n % 3 == 0 { Verdict::Conflict } else { Verdict::Applied }).collect();
    assert_eq!(verdicts, expected);
    assert_eq!(f.store.commit(&batch).await.unwrap().verdicts, expected);
}

pub(crate) async fn large_records_are_compared_as_small_ones(f: &Fixture) {
    let mut lane = Lane::new(1);
    let large =
        |expect, prefix| RunWrite { write: Write::Put(record(prefix, 40_000)), ..put("a", expect, prefix) };
    lane.apply(&*f.store, vec![large(Expect::Absent, prefix(1, 1))]).await;
    let verdicts = lane.commit(&*f.store, vec![large(Expect::Absent, prefix(1, 1))]).await.verdicts;
    assert_eq!(verdicts, [Verdict::Conflict]);
    lane.apply(&*f.store, vec![large(Expect::Prefix(prefix(1, 1)), prefix(2, 2))]).await;
    let stale = large(Expect::Prefix(prefix(1, 1)), prefix(3, 3));
    assert_eq!(lane.commit(&*f.store, vec![stale]).await.verdicts, [Verdict::Conflict]);
    assert_eq!(stored(&*f.store, "a").await, Some(record(prefix(2, 2), 40_000)));
}

pub(crate) async fn an_unknown_partition_is_refused_as_not_sent(f: &Fixture) {
    let batch = Lane { nonce: Nonce([1; 16]), sequence: 0 }.batch(vec![(Partition(PARTITIONS), create("a"))]);
    let error = f.store.commit(&batch).await.unwrap_err();
    assert!(!error.was_sent(), "{error}");
    assert!(f.store.load(&[(Partition(PARTITIONS), run("a"))]).await.is_err());
}

pub(crate) async fn a_record_shorter_than_a_prefix_is_refused_as_not_sent(f: &Fixture) {
    let mut lane = Lane::new(1);
    let short = RunWrite { write: Write::Put(Bytes::from_static(b"short")), ..create("a") };
    let error = f.store.commit(&lane.batch(vec![(P, create("b")), (P, short)])).await.unwrap_err();
    assert!(!error.was_sent(), "{error}");
    assert_eq!(stored(&*f.store, "b").await, None);
    lane.apply(&*f.store, vec![create("a"), create("b")]).await;
}
