//! Event streams.

use crate::data::{Lane, P, create, note};
use crate::fixture::{Fixture, STREAM_BOUND};
use downbeat::model::commit::{EventNote, RunWrite};
use downbeat::model::ids::Partition;
use downbeat::model::time::Span;
use downbeat::store::{STREAM_TRIM, StreamEntry, StreamPosition};

const START: StreamPosition = StreamPosition(0, 0);

fn noted(name: &str, first: u32) -> RunWrite {
    RunWrite { event: Some(note(name, first)), ..create(name) }
}

fn runs(entry: &StreamEntry) -> Vec<String> {
    EventNote::decode_all(&entry.notes).unwrap().into_iter().map(|n| n.run.to_string()).collect()
}

pub(crate) async fn notes_of_a_batch_are_one_entry_per_partition_in_order(f: &Fixture) {
    let mut lane = Lane::new(1);
    let batch = lane.batch(vec![
        (P, noted("b", 0)),
        (Partition(0), noted("x", 3)),
        (P, noted("a", 1)),
        (P, create("quiet")),
    ]);
    f.store.commit(&batch).await.unwrap();
    lane.apply(&*f.store, vec![create("silent")]).await;
    lane.apply(&*f.store, vec![noted("c", 0)]).await;
    let entries = f.store.read_events(&[(Partition(0), START), (P, START)], 10, Span(0)).await.unwrap();
    let of = |p| entries.iter().filter(|e| e.partition == p).map(runs).collect::<Vec<_>>();
    assert_eq!(of(P), [vec!["b", "a"], vec!["c"]]);
    assert_eq!(of(Partition(0)), [vec!["x"]]);
    let positions: Vec<_> = entries.iter().filter(|e| e.partition == P).map(|e| e.position).collect();
    assert!(START < positions[0] && positions[0] < positions[1], "{positions:?}");
    let bounds = f.store.stream_bounds(&[P, Partition(3)]).await.unwrap();
    assert_eq!((bounds[0].last, bounds[0].trimmed_through), (positions[1], START));
    assert_eq!((bounds[1].last, bounds[1].trimmed_through), (START, START));
}

pub(crate) async fn reading_goes_on_after_a_position(f: &Fixture) {
    let mut lane = Lane::new(1);
    for n in 0..5 {
        lane.apply(&*f.store, vec![noted(&format!("r{n}"), 0)]).await;
    }
    let mut seen = Vec::new();
    let mut at = START;
    loop {
        let page = f.store.read_events(&[(P, at)], 2, Span(0)).await.unwrap();
        let Some(last) = page.last() else { break };
        at = last.position;
        assert!(page.len() <= 2);
        seen.extend(page.iter().flat_map(runs));
    }
    assert_eq!(seen, ["r0", "r1", "r2", "r3", "r4"]);
}

pub(crate) async fn a_waiting_reader_is_woken_by_a_commit(f: &Fixture) {
    let mut lane = Lane::new(1);
    let all = [(Partition(0), START), (P, START)];
    let read = f.store.read_events(&all, 10, Span::secs(60));
    let commit = async {
        // The reader is polled first; wherever it is by now, it must see the commit.
        tokio::task::yield_now().await;
        lane.apply(&*f.store, vec![noted("a", 0)]).await
    };
    let (entries, _) = tokio::join!(read, commit);
    assert_eq!(entries.unwrap().iter().map(runs).collect::<Vec<_>>(), [["a"]]);
}

pub(crate) async fn a_reader_with_nothing_to_read_gets_nothing_in_time(f: &Fixture) {
    let waited = f.store.read_events(&[(P, START)], 10, Span::millis(20)).await;
    assert_eq!(waited, Ok(Vec::new()));
    assert_eq!(f.store.read_events(&[], 10, Span(0)).await, Ok(Vec::new()));
}

pub(crate) async fn a_full_stream_is_trimmed_and_says_how_far(f: &Fixture) {
    let mut lane = Lane::new(1);
    let mut positions = Vec::new();
    for n in 0..STREAM_BOUND + STREAM_TRIM {
        assert_eq!(f.store.stream_bounds(&[P]).await.unwrap()[0].trimmed_through, START);
        lane.apply(&*f.store, vec![noted(&format!("r{n}"), 0)]).await;
        positions.push(f.store.stream_bounds(&[P]).await.unwrap()[0].last);
    }
    let bounds = f.store.stream_bounds(&[P]).await.unwrap()[0];
    assert_eq!(bounds.trimmed_through, positions[STREAM_TRIM as usize - 1]);
    assert_eq!(bounds.last, *positions.last().unwrap());
    let left = f.store.read_events(&[(P, START)], 1_000, Span(0)).await.unwrap();
    assert_eq!(left.len() as u64, STREAM_BOUND);
    assert_eq!(runs(&left[0]), [format!("r{STREAM_TRIM}")]);
    let after = f.store.read_events(&[(P, bounds.trimmed_through)], 1_000, Span(0)).await.unwrap();
    assert_eq!(after, left, "a reader at the mark has lost nothing");
}

pub(crate) async fn a_stream_is_trimmed_through_an_entry_that_was_read(f: &Fixture) {
    let mut lane = Lane::new(1);
    for n in 0..5 {
        lane.apply(&*f.store, vec![RunWrite { event: Some(note("a", n)), ..create(&format!("r{n}")) }]).await;
    }
    let from_start = [(P, StreamPosition::default())];
    let entries = f.store.read_events(&from_start, 10, Span(0)).await.unwrap();
    assert_eq!(entries.len(), 5);
    let at = |n: usize| entries[n].position;
    assert_eq!(f.store.trim_events(P, at(1)).await.unwrap(), 2);
    let bounds = async || f.store.stream_bounds(&[P]).await.unwrap()[0];
    assert_eq!((bounds().await.trimmed_through, bounds().await.last), (at(1), at(4)));
    assert_eq!(f.store.read_events(&from_start, 10, Span(0)).await.unwrap(), entries[2..]);
    // Again, or less: nothing, and the mark stays.
    for n in [1, 0] {
        assert_eq!(f.store.trim_events(P, at(n)).await.unwrap(), 0);
        assert_eq!(bounds().await.trimmed_through, at(1));
    }
    // All of it: the next entry comes behind the last nevertheless.
    assert_eq!(f.store.trim_events(P, at(4)).await.unwrap(), 3);
    assert_eq!((bounds().await.trimmed_through, bounds().await.last), (at(4), at(4)));
    assert_eq!(f.store.read_events(&from_start, 10, Span(0)).await.unwrap(), []);
    lane.apply(&*f.store, vec![RunWrite { event: Some(note("a", 9)), ..create("r9") }]).await;
    let next = f.store.read_events(&[(P, at(4))], 10, Span(0)).await.unwrap();
    assert!(next.len() == 1 && next[0].position > at(4));
    assert_eq!(f.store.trim_events(Partition(0), at(4)).await.unwrap(), 0);
    assert!(f.store.trim_events(Partition(99), at(4)).await.is_err());
}

pub(crate) async fn a_position_can_be_read_on_from_while_nothing_behind_it_is_missing(f: &Fixture) {
    let resumable = async |at| f.store.resumable(&[(P, at)]).await.unwrap()[0];
    assert!(resumable(START).await, "nothing was told, and nothing was trimmed");
    assert!(resumable(StreamPosition::end_of(7)).await, "of no entry");
    assert!(!resumable(StreamPosition(7, 0)).await, "there is no such entry");
    let mut lane = Lane::new(1);
    for n in 0..5 {
        lane.apply(&*f.store, vec![noted(&format!("r{n}"), 0)]).await;
    }
    let entries = f.store.read_events(&[(P, START)], 10, Span(0)).await.unwrap();
    let at = |n: usize| entries[n].position;
    let behind = StreamPosition(at(4).0 + 1, 0);
    let asked: Vec<_> = [START, at(0), at(4), behind].map(|at| (P, at)).into();
    assert_eq!(f.store.resumable(&asked).await, Ok(vec![true, true, true, false]));
    f.store.trim_events(P, at(1)).await.unwrap();
    let asked: Vec<_> = [START, at(0), at(1), at(2), StreamPosition::end_of(1)].map(|at| (P, at)).into();
    assert_eq!(f.store.resumable(&asked).await, Ok(vec![false, false, true, true, false]));
    f.store.trim_events(P, at(4)).await.unwrap();
    let asked: Vec<_> = [(P, at(3)), (P, at(4)), (Partition(0), START), (Partition(0), at(4))].into();
    assert_eq!(f.store.resumable(&asked).await, Ok(vec![false, true, true, false]), "an empty stream");
    assert_eq!(f.store.resumable(&[]).await, Ok(Vec::new()));
    assert!(f.store.resumable(&[(Partition(99), START)]).await.is_err());
}
