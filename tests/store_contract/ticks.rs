//! Clocks, wake-ups, retention.

use crate::data::{Lane, P, add, create, entry, named, prefix, put, run, update};
use crate::fixture::Fixture;
use downbeat::model::commit::{Expect, RunWrite, WakeOp};
use downbeat::model::ids::Partition;
use downbeat::model::time::{Span, Timestamp};
use downbeat::store::{QueueHead, Ticked};

async fn tick(f: &Fixture) -> Ticked {
    f.store.tick(&[P], 10).await.unwrap().pop().unwrap()
}

fn waking(wake: WakeOp, version: u64) -> RunWrite {
    let expect = if version == 1 { Expect::Absent } else { Expect::Prefix(prefix(version - 1, 1)) };
    RunWrite { wake, ..put("a", expect, prefix(version, 1)) }
}

pub(crate) async fn a_wake_up_is_lowered_set_and_removed(f: &Fixture) {
    let now = f.now().await;
    let at = |s| now.plus(Span::secs(s));
    let mut lane = Lane::new(1);
    // Lower with nothing there sets; Lower to later changes nothing; Lower to earlier lowers.
    lane.apply(&*f.store, vec![waking(WakeOp::Lower(at(50)), 1)]).await;
    lane.apply(&*f.store, vec![waking(WakeOp::Lower(at(90)), 2)]).await;
    f.advance(Span::secs(45)).await;
    assert_eq!(tick(f).await.due, []);
    f.advance(Span::secs(6)).await;
    assert_eq!(tick(f).await.due, [run("a")]);
    lane.apply(&*f.store, vec![waking(WakeOp::Keep, 3)]).await;
    assert_eq!(tick(f).await.due, []);
    lane.apply(&*f.store, vec![waking(WakeOp::Lower(f.now().await), 4)]).await;
    assert_eq!(tick(f).await.due, [run("a")]);
    // Set raises.
    let later = f.now().await.plus(Span::secs(30));
    lane.apply(&*f.store, vec![waking(WakeOp::Set(later), 5)]).await;
    f.advance(Span::secs(25)).await;
    assert_eq!(tick(f).await.due, []);
    f.advance(Span::secs(6)).await;
    assert_eq!(tick(f).await.due, [run("a")]);
    lane.apply(&*f.store, vec![waking(WakeOp::Remove, 6)]).await;
    f.advance(Span::secs(1_000)).await;
    assert_eq!(tick(f).await.due, []);
}

pub(crate) async fn a_due_run_is_told_again_after_two_seconds(f: &Fixture) {
    let now = f.now().await;
    let mut lane = Lane::new(1);
    lane.apply(&*f.store, vec![waking(WakeOp::Set(now.plus(Span::secs(-60))), 1)]).await;
    assert_eq!(tick(f).await.due, [run("a")]);
    assert_eq!(tick(f).await.due, []);
    f.advance(Span::millis(1_500)).await;
    assert_eq!(tick(f).await.due, []);
    f.advance(Span::millis(600)).await;
    assert_eq!(tick(f).await.due, [run("a")]);
}

pub(crate) async fn due_runs_are_limited_and_come_in_order(f: &Fixture) {
    let now = f.now().await;
    let mut lane = Lane::new(1);
    let wakes = [("c", -30), ("a", -10), ("b", -20), ("d", -20), ("never", 1_000_000)];
    let writes =
        wakes.map(|(name, s)| RunWrite { wake: WakeOp::Set(now.plus(Span::secs(s))), ..create(name) });
    lane.apply(&*f.store, writes.to_vec()).await;
    let due = f.store.tick(&[P], 3).await.unwrap().pop().unwrap().due;
    assert_eq!(due, [run("c"), run("b"), run("d")]);
    assert_eq!(tick(f).await.due, [run("a")]);
    assert_eq!(f.store.tick(&[Partition(0)], 10).await.unwrap()[0].due, []);
}

pub(crate) async fn a_finished_run_expires_after_its_retention(f: &Fixture) {
    let now = f.now().await;
    let mut lane = Lane::new(1);
    let until = RunWrite { retain_until: Some(Some(now.plus(Span::secs(100)))), ..create("a") };
    lane.apply(&*f.store, vec![until]).await;
    assert_eq!(tick(f).await.expired, []);
    f.advance(Span::secs(101)).await;
    let ticked = tick(f).await;
    assert_eq!((ticked.due, ticked.expired), (vec![], vec![run("a")]));
    assert_eq!(tick(f).await.expired, []);
    f.advance(Span::secs(6)).await;
    assert_eq!(tick(f).await.expired, [run("a")]);
}

pub(crate) async fn retention_is_looked_at_every_five_seconds_and_at_once_while_there_is_more(f: &Fixture) {
    let now = f.now().await;
    let mut lane = Lane::new(1);
    assert_eq!(tick(f).await.expired, []);
    let over = |name| RunWrite { retain_until: Some(Some(now.plus(Span::secs(1)))), ..create(name) };
    lane.apply(&*f.store, ["a", "b", "c"].map(over).to_vec()).await;
    f.advance(Span::secs(4)).await;
    assert_eq!(tick(f).await.expired, [], "the last look was less than five seconds ago");
    f.advance(Span::secs(2)).await;
    let two = async || f.store.tick(&[P], 2).await.unwrap().pop().unwrap().expired;
    assert_eq!(two().await, [run("a"), run("b")]);
    assert_eq!(two().await, [run("c")]);
    f.advance(Span::secs(3)).await;
    assert_eq!(two().await, []);
    // Those were moved ahead, and come again.
    f.advance(Span::secs(3)).await;
    assert_eq!(two().await.len(), 2);
}

pub(crate) async fn the_next_wake_up_is_told(f: &Fixture) {
    assert_eq!(tick(f).await.next, None);
    let now = f.now().await;
    let at = |s| now.plus(Span::secs(s));
    let mut lane = Lane::new(1);
    let wakes = [("a", 30), ("b", 20)];
    let writes = wakes.map(|(name, s)| RunWrite { wake: WakeOp::Set(at(s)), ..create(name) });
    lane.apply(&*f.store, writes.to_vec()).await;
    let ticks = f.store.tick(&[Partition(0), P], 10).await.unwrap();
    assert_eq!((ticks[0].next, ticks[1].next), (None, Some(at(20))));
    f.advance(Span::secs(25)).await;
    let ticked = tick(f).await;
    assert_eq!(ticked.due, [run("b")]);
    // It comes again before the other one.
    let wait = ticked.next.unwrap().since(ticked.now);
    assert_eq!(wait, Span::secs(2));
    assert_eq!(f.store.tick(&[P], 0).await.unwrap()[0].next, None);
}

pub(crate) async fn a_tick_of_nothing_moves_the_clocks_alone(f: &Fixture) {
    let now = f.now().await;
    let mut lane = Lane::new(1);
    let all = RunWrite {
        wake: WakeOp::Set(now),
        retain_until: Some(Some(now)),
        queue: vec![add("q", entry("a", 1), 3)],
        ..create("a")
    };
    lane.apply(&*f.store, vec![all]).await;
    f.store.take(&[(P, named("q"), 1)], Span(0)).await.unwrap();
    let clocks = async || f.store.tick(&[P], 0).await.unwrap().pop().unwrap();
    let first = clocks().await;
    f.advance(Span::secs(1)).await;
    let second = clocks().await;
    assert!((1_000..1_900).contains(&second.lease_now.since(first.lease_now).as_millis()));
    assert_eq!((second.due, second.expired, second.heads, second.reclaimed), (vec![], vec![], vec![], 0));
    let looked = tick(f).await;
    assert_eq!((looked.due, looked.expired, looked.reclaimed), (vec![run("a")], vec![run("a")], 1));
    assert_eq!(looked.heads.len(), 1);
}

pub(crate) async fn retention_can_be_taken_back(f: &Fixture) {
    let now = f.now().await;
    let mut lane = Lane::new(1);
    lane.apply(&*f.store, vec![RunWrite { retain_until: Some(Some(now)), ..create("a") }]).await;
    lane.apply(&*f.store, vec![RunWrite { retain_until: Some(None), ..update("a") }]).await;
    assert_eq!(tick(f).await.expired, []);
}

pub(crate) async fn the_lease_clock_goes_on_by_two_seconds_at_most(f: &Fixture) {
    let first = tick(f).await;
    f.advance(Span::millis(1_200)).await;
    let second = tick(f).await;
    let passed = second.lease_now.since(first.lease_now);
    // On Redis the test itself takes a little time.
    assert!((1_200..1_900).contains(&passed.as_millis()), "{passed:?}");
    f.advance(Span::secs(3_600)).await;
    let third = tick(f).await;
    assert_eq!(third.lease_now.since(second.lease_now), Span::secs(2));
    let others = f.store.tick(&[Partition(0)], 1).await.unwrap();
    assert_eq!(others[0].lease_now.0, 0, "each partition has its own clock");
}

pub(crate) async fn heads_of_all_queues_that_hold_work_are_told(f: &Fixture) {
    let mut lane = Lane::new(1);
    let queue = ["z", "b", "gone"].map(|q| add(q, entry("a", 1), 3));
    lane.apply(&*f.store, vec![RunWrite { queue: queue.to_vec(), ..create("a") }]).await;
    f.store.take(&[(P, named("gone"), 1)], Span::secs(60)).await.unwrap();
    let ticked = f.store.tick(&[Partition(2), P], 10).await.unwrap();
    assert_eq!(ticked[0].heads, []);
    let head = |q| QueueHead { partition: P, queue: named(q), score: Some(3), depth: 1 };
    assert_eq!(ticked[1].heads, [head("b"), head("z")]);
    assert!(ticked[1].now > Timestamp(1_700_000_000_000_000));
}
