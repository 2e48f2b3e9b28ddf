//! What the store in memory offers a harness.

use crate::data::{Lane, P, create, note, prefix, record, stored};
use crate::fixture::ManualClock;
use downbeat::model::commit::RunWrite;
use downbeat::model::time::{Clock, Span};
use downbeat::store::kv::memory::{Hooks, MemoryStore, Verb};
use downbeat::store::{Result, Store, StoreError, Verdict};
use std::sync::Arc;

fn store() -> MemoryStore {
    let clock: Arc<dyn Clock> = ManualClock::new();
    MemoryStore::new(clock, 4)
}

fn away(sent: bool) -> StoreError {
    StoreError::Unavailable { message: "away".into(), sent }
}

/// Fails one verb, before or after it happens.
struct Failing {
    verb: Verb,
    before: bool,
}

#[async_trait::async_trait]
impl Hooks for Failing {
    async fn before(&self, verb: Verb) -> Result<()> {
        if self.before && verb == self.verb { Err(away(false)) } else { Ok(()) }
    }
    async fn after(&self, verb: Verb) -> Result<()> {
        if !self.before && verb == self.verb { Err(away(true)) } else { Ok(()) }
    }
}

#[tokio::test]
async fn a_restored_snapshot_has_lost_what_came_after() {
    let store = store();
    let mut lane = Lane::new(1);
    lane.apply(&store, vec![create("a")]).await;
    let snapshot = store.snapshot();
    let lost = lane.batch(vec![(P, create("b"))]);
    store.commit(&lost).await.unwrap();
    store.restore(&snapshot);
    assert_eq!(stored(&store, "a").await, Some(record(prefix(1, 1), 40)));
    assert_eq!(stored(&store, "b").await, None);
    // The window of the lane lost it too, so the repeat is new.
    assert_eq!(store.commit(&lost).await.unwrap().verdicts, [Verdict::Applied]);
    assert!(stored(&store, "b").await.is_some());
}

#[tokio::test]
async fn a_verb_that_fails_before_did_not_happen_and_one_that_fails_after_did() {
    let store = store();
    let mut lane = Lane::new(1);
    let hooked = |before| store.hooked(Arc::new(Failing { verb: Verb::Commit, before }));
    let batch = lane.batch(vec![(P, create("a"))]);
    assert_eq!(hooked(true).commit(&batch).await, Err(away(false)));
    assert_eq!(stored(&store, "a").await, None);
    assert_eq!(hooked(false).commit(&batch).await, Err(away(true)));
    assert!(stored(&hooked(false), "a").await.is_some(), "other verbs are left alone");
    assert_eq!(store.commit(&batch).await.unwrap().verdicts, [Verdict::Applied], "the lost reply");
}

#[tokio::test]
async fn a_stream_that_was_shortened_and_grew_anew_is_told_by_its_positions() {
    let (clock, mut lane) = (ManualClock::new(), Lane::new(1));
    let store = MemoryStore::new(Arc::clone(&clock) as Arc<dyn Clock>, 4);
    let mut noted = async |name: &str, n| {
        clock.advance(Span::millis(1));
        let write = RunWrite { event: Some(note(name, n)), ..create(name) };
        lane.apply(&store, vec![write]).await;
        store.stream_bounds(&[P]).await.unwrap()[0].last
    };
    let first = noted("a", 0).await;
    let snapshot = store.snapshot();
    let lost = noted("b", 0).await;
    store.restore(&snapshot);
    let anew = noted("c", 0).await;
    assert!(anew > lost, "it has grown beyond what was lost");
    let asked: Vec<_> = [first, lost, anew].map(|at| (P, at)).into();
    assert_eq!(store.resumable(&asked).await, Ok(vec![true, false, true]));
}
