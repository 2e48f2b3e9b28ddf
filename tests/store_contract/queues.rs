//! Ready queues, claims, hints.

use crate::data::{Lane, P, add, create, entry, named, prefix, remove, run, update};
use crate::fixture::Fixture;
use downbeat::model::commit::{QueueOp, RunWrite};
use downbeat::model::ids::Partition;
use downbeat::model::time::Span;
use downbeat::store::{Hint, QueueHead, Store, Taken};

const LONG: Span = Span::secs(60);

fn creates(name: &str, queue: Vec<QueueOp>) -> RunWrite {
    RunWrite { queue, ..create(name) }
}

async fn take(store: &dyn Store, queue: &str, max: u32) -> Vec<Taken> {
    store.take(&[(P, named(queue), max)], LONG).await.unwrap()
}

fn names(taken: &[Taken]) -> Vec<String> {
    taken.iter().map(|t| t.entry.run.to_string()).collect()
}

async fn heads(store: &dyn Store) -> Vec<(String, Option<i64>, u64)> {
    let ticked = store.tick(&[P], 10).await.unwrap().pop().unwrap();
    ticked.heads.into_iter().map(|h| (h.queue.to_string(), h.score, h.depth)).collect()
}

pub(crate) async fn entries_are_taken_lowest_score_first_then_by_name(f: &Fixture) {
    let mut lane = Lane::new(1);
    let scores = [("d", 7), ("b", -3), ("c", 7), ("a", 1_780_000_000_123)];
    let writes = scores.map(|(name, score)| creates(name, vec![add("q", entry(name, 1), score)]));
    lane.apply(&*f.store, writes.to_vec()).await;
    let taken = take(&*f.store, "q", 10).await;
    assert_eq!(names(&taken), ["b", "c", "d", "a"]);
    assert_eq!(taken.iter().map(|t| t.score).collect::<Vec<_>>(), [-3, 7, 7, 1_780_000_000_123]);
    assert_eq!(taken[0].entry, entry("b", 1));
}

pub(crate) async fn takes_no_more_than_wanted(f: &Fixture) {
    let mut lane = Lane::new(1);
    let writes = (0..5).map(|n| {
        let name = format!("r{n}");
        creates(&name, vec![add("q", entry(&name, 1), n), add("other", entry(&name, 2), n)])
    });
    lane.apply(&*f.store, writes.collect()).await;
    let wanted =
        [(P, named("q"), 2), (P, named("none"), 3), (P, named("other"), 1), (Partition(0), named("q"), 1)];
    let taken = f.store.take(&wanted, LONG).await.unwrap();
    let places: Vec<_> = taken.iter().map(|t| (t.partition, t.queue.to_string(), t.score)).collect();
    let expected = [(P, "q", 0), (P, "q", 1), (P, "other", 0)];
    assert_eq!(places, expected.map(|(p, queue, score)| (p, queue.to_owned(), score)));
    assert_eq!(names(&take(&*f.store, "q", 0).await), Vec::<String>::new());
    assert_eq!(heads(&*f.store).await, [("other".into(), Some(1), 4), ("q".into(), Some(2), 3)]);
}

pub(crate) async fn a_queue_may_be_named_twice_in_one_take(f: &Fixture) {
    let mut lane = Lane::new(1);
    let writes = (0..4).map(|n| {
        let name = format!("r{n}");
        creates(&name, vec![add("q", entry(&name, 1), n), add("q;gpu=true", entry(&name, 2), n)])
    });
    lane.apply(&*f.store, writes.collect()).await;
    let wanted = [(P, named("q"), 2), (P, named("q;gpu=true"), 1), (P, named("q"), 3)];
    let taken = f.store.take(&wanted, LONG).await.unwrap();
    let got: Vec<_> = taken.iter().map(|t| (t.queue.to_string(), t.score)).collect();
    let expected = [("q", 0), ("q", 1), ("q;gpu=true", 0), ("q", 2), ("q", 3)];
    assert_eq!(got, expected.map(|(queue, score)| (queue.to_owned(), score)));
}

pub(crate) async fn queues_of_one_type_with_other_labels_are_apart(f: &Fixture) {
    let mut lane = Lane::new(1);
    // Their order as text is another than as names.
    let queues = ["q", "q;gpu=true", "q;gpu=true;region=eu", "q-b", "q.c;z=1"];
    let writes = queues.iter().enumerate().map(|(n, queue)| {
        let name = format!("r{n}");
        creates(&name, vec![add(queue, entry(&name, 1), n as i64)])
    });
    let committed = lane.apply(&*f.store, writes.collect()).await;
    assert_eq!(committed.heads.iter().map(|h| h.queue.to_string()).collect::<Vec<_>>(), queues);
    let waiting = |skip: &[usize]| -> Vec<_> {
        let left = queues.iter().enumerate().filter(|(n, _)| !skip.contains(n));
        left.map(|(n, queue)| ((*queue).to_owned(), Some(n as i64), 1)).collect()
    };
    assert_eq!(heads(&*f.store).await, waiting(&[]));
    let taken = take(&*f.store, "q;gpu=true", 5).await;
    assert_eq!(names(&taken), ["r1"]);
    assert_eq!(heads(&*f.store).await, waiting(&[1]));
    // What is settled, removed or comes back does so in its own queue.
    f.store.discard(&[(taken[0].clone(), Some(prefix(9, 9)))]).await.unwrap();
    assert_eq!(heads(&*f.store).await, waiting(&[]));
    let removes = RunWrite { queue: vec![remove("q;gpu=true;region=eu", entry("r2", 1))], ..update("r2") };
    lane.apply(&*f.store, vec![removes]).await;
    assert_eq!(heads(&*f.store).await, waiting(&[2]));
    assert_eq!(names(&take(&*f.store, "q.c;z=1", 5).await), ["r4"]);
    f.advance(Span::secs(61)).await;
    assert_eq!(heads(&*f.store).await, waiting(&[2]), "an expired claim comes back");
}

pub(crate) async fn a_claimed_entry_is_in_no_queue_until_its_claim_expires(f: &Fixture) {
    let mut lane = Lane::new(1);
    let queue = vec![add("q", entry("a", 1), 5), add("q", entry("a", 2), 6)];
    lane.apply(&*f.store, vec![creates("a", queue)]).await;
    let claim = Span::secs(30);
    let taken = f.store.take(&[(P, named("q"), 1)], claim).await.unwrap();
    assert_eq!(taken.len(), 1);
    assert_eq!(take(&*f.store, "q", 1).await[0].score, 6);
    assert_eq!(take(&*f.store, "q", 1).await, []);

    f.advance(Span::secs(29)).await;
    assert_eq!(f.store.tick(&[P], 10).await.unwrap()[0].reclaimed, 0);
    f.advance(Span::secs(2)).await;
    let ticked = f.store.tick(&[P], 10).await.unwrap().pop().unwrap();
    assert_eq!(ticked.reclaimed, 1);
    assert_eq!(ticked.heads, [QueueHead { partition: P, queue: named("q"), score: Some(5), depth: 1 }]);
    // It is back at its old place.
    let again = take(&*f.store, "q", 10).await;
    assert_eq!(again, taken);
}

pub(crate) async fn a_commit_removes_ready_and_claimed_entries(f: &Fixture) {
    let mut lane = Lane::new(1);
    let queue = vec![add("q", entry("a", 1), 5), add("q", entry("a", 2), 6), add("q", entry("a", 3), 7)];
    lane.apply(&*f.store, vec![creates("a", queue)]).await;
    assert_eq!(take(&*f.store, "q", 1).await[0].entry, entry("a", 1));
    let leased = RunWrite {
        queue: vec![remove("q", entry("a", 1)), remove("q", entry("a", 2)), remove("q", entry("a", 9))],
        ..update("a")
    };
    let committed = lane.apply(&*f.store, vec![leased]).await;
    assert_eq!(committed.heads, [QueueHead { partition: P, queue: named("q"), score: Some(7), depth: 1 }]);
    f.advance(Span::secs(120)).await;
    assert_eq!(f.store.tick(&[P], 10).await.unwrap()[0].reclaimed, 0);
    assert_eq!(names(&take(&*f.store, "q", 10).await), ["a"]);
    assert_eq!(heads(&*f.store).await, []);
}

pub(crate) async fn heads_of_touched_queues_are_told(f: &Fixture) {
    let mut lane = Lane::new(1);
    let other = creates("b", vec![add("b-queue", entry("b", 1), 9)]);
    let refused = creates("b", vec![add("c-queue", entry("b", 2), 9)]);
    let first = creates("a", vec![add("a-queue", entry("a", 1), 4), add("a-queue", entry("a", 2), 3)]);
    let batch = lane.batch(vec![(P, first), (Partition(0), other)]);
    let head =
        |partition, queue: &str, score, depth| QueueHead { partition, queue: named(queue), score, depth };
    let committed = f.store.commit(&batch).await.unwrap();
    let expected = [head(Partition(0), "b-queue", Some(9), 1), head(P, "a-queue", Some(3), 2)];
    assert_eq!(committed.heads, expected);
    let batch = lane.batch(vec![(Partition(0), refused)]);
    assert_eq!(f.store.commit(&batch).await.unwrap().heads, [head(Partition(0), "c-queue", None, 0)]);
    let empty = RunWrite {
        queue: vec![remove("a-queue", entry("a", 1)), remove("a-queue", entry("a", 2))],
        ..update("a")
    };
    assert_eq!(lane.apply(&*f.store, vec![empty]).await.heads, [head(P, "a-queue", None, 0)]);
}

pub(crate) async fn a_stale_entry_is_dropped_only_while_its_run_is_unchanged(f: &Fixture) {
    let mut lane = Lane::new(1);
    let queue = |name: &str| vec![add("q", entry(name, 1), 5)];
    lane.apply(&*f.store, vec![creates("same", queue("same")), creates("moved", queue("moved"))]).await;
    let taken = take(&*f.store, "q", 10).await;
    assert_eq!(names(&taken), ["moved", "same"]);
    lane.apply(&*f.store, vec![update("moved")]).await;
    let stale: Vec<_> = taken.iter().map(|t| (t.clone(), Some(prefix(1, 1)))).collect();
    f.store.discard(&stale).await.unwrap();
    assert_eq!(heads(&*f.store).await, [("q".into(), Some(5), 1)]);
    assert_eq!(names(&take(&*f.store, "q", 10).await), ["moved"]);
    f.advance(Span::secs(61)).await;
    assert_eq!(f.store.tick(&[P], 10).await.unwrap()[0].reclaimed, 1, "only the one taken again was claimed");
    assert_eq!(names(&take(&*f.store, "q", 10).await), ["moved"]);
}

pub(crate) async fn discarding_an_entry_of_no_run_drops_it(f: &Fixture) {
    let mut lane = Lane::new(1);
    let queue = vec![add("q", entry("ghost", 1), 5), add("q", entry("a", 1), 6)];
    lane.apply(&*f.store, vec![creates("a", queue)]).await;
    let taken = take(&*f.store, "q", 10).await;
    let stale: Vec<_> = taken.iter().map(|t| (t.clone(), None)).collect();
    f.store.discard(&stale).await.unwrap();
    // "a" exists, so "there is no record" does not hold and its entry went back.
    assert_eq!(names(&take(&*f.store, "q", 10).await), ["a"]);
    // Settled claims are gone: discarding again changes nothing.
    f.store.discard(&stale[..1]).await.unwrap();
    assert_eq!(heads(&*f.store).await, []);
}

pub(crate) async fn filling_an_empty_queue_sends_a_hint(f: &Fixture) {
    let mut lane = Lane::new(1);
    let mut hints = f.store.hints();
    // A link may still be subscribing: fill and empty the queue until a hint arrives.
    let hint = loop {
        let name = format!("r{}", lane.sequence);
        lane.apply(&*f.store, vec![creates(&name, vec![add("q", entry(&name, 1), 5)])]).await;
        let soon = std::time::Duration::from_millis(100);
        let heard = async {
            loop {
                // That a link listens now is told as well.
                match hints.recv().await.unwrap() {
                    Hint::Reconnected => {}
                    hint => return hint,
                }
            }
        };
        if let Ok(hint) = tokio::time::timeout(soon, heard).await {
            break hint;
        }
        assert!(lane.sequence < 100, "no hint ever came");
        take(&*f.store, "q", 10).await;
    };
    assert_eq!(hint, Hint::Queue(P, named("q")));
}

pub(crate) async fn many_entries_of_one_decision_are_queued_and_removed(f: &Fixture) {
    let mut lane = Lane::new(1);
    let all = |op: fn(&str, u32) -> QueueOp| (0..2_500).map(|n| op("a", n)).collect::<Vec<_>>();
    let queue = all(|name, n| add("q", entry(name, n), i64::from(n)));
    lane.apply(&*f.store, vec![creates("a", queue)]).await;
    assert_eq!(heads(&*f.store).await, [("q".into(), Some(0), 2_500)]);
    let taken = take(&*f.store, "q", 1_200).await;
    assert_eq!(taken.len(), 1_200);
    assert!(taken.iter().enumerate().all(|(n, t)| t.score == n as i64));
    assert_eq!(heads(&*f.store).await, [("q".into(), Some(1_200), 1_300)]);
    let removes = RunWrite { queue: all(|name, n| remove("q", entry(name, n))), ..update("a") };
    lane.apply(&*f.store, vec![removes]).await;
    assert_eq!(heads(&*f.store).await, []);
    f.advance(Span::secs(61)).await;
    assert_eq!(f.store.tick(&[P], 10).await.unwrap()[0].reclaimed, 0);
    assert!(f.store.load(&[(P, run("a"))]).await.unwrap()[0].is_some());
}
