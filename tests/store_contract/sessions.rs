//! Sessions of workers.

use crate::data::{P, session};
use crate::fixture::Fixture;
use downbeat::model::ids::{Nonce, Partition, SessionId};
use downbeat::model::time::{LeaseTime, Span};
use downbeat::store::SessionRecord;

const LEASE: Span = Span::secs(10);

fn record(epoch: u32) -> SessionRecord {
    SessionRecord {
        epoch,
        label: "worker \u{e9} 1".into(),
        owner: Nonce([epoch as u8; 16]),
        deadline: LeaseTime(0),
        lease_now: LeaseTime(0),
    }
}

async fn read(f: &Fixture, id: &SessionId) -> Option<SessionRecord> {
    f.store.sessions(std::slice::from_ref(id)).await.unwrap().pop().unwrap()
}

pub(crate) async fn a_session_is_put_only_over_the_expected_epoch(f: &Fixture) {
    let id = session("s1-abc");
    f.store.tick(&[P], 1).await.unwrap();
    assert!(!f.store.put_session(&id, &record(2), Some(1), LEASE).await.unwrap(), "there is none yet");
    assert!(f.store.put_session(&id, &record(1), None, LEASE).await.unwrap());
    assert!(!f.store.put_session(&id, &record(1), None, LEASE).await.unwrap(), "there is one already");
    assert!(f.store.put_session(&id, &record(2), Some(1), LEASE).await.unwrap());
    assert!(!f.store.put_session(&id, &record(3), Some(1), LEASE).await.unwrap(), "it has epoch 2");
    let read = read(f, &id).await.unwrap();
    assert_eq!((read.epoch, read.label.as_str(), read.owner), (2, "worker \u{e9} 1", Nonce([2; 16])));
    let left = read.deadline.since(read.lease_now);
    assert!((Span::secs(8)..=LEASE).contains(&left), "{left:?}");
}

pub(crate) async fn renewing_moves_the_deadline_of_the_named_epoch_only(f: &Fixture) {
    let ids = ["s1-a", "s1-b", "s1-gone"].map(session);
    f.store.tick(&[P], 1).await.unwrap();
    for id in &ids[..2] {
        assert!(f.store.put_session(id, &record(1), None, LEASE).await.unwrap());
    }
    let before = f.store.sessions(&ids).await.unwrap();
    f.advance(Span::millis(1_500)).await;
    let named = [(ids[0].clone(), 1), (ids[1].clone(), 2), (ids[2].clone(), 1)];
    assert_eq!(f.store.renew_sessions(&named, LEASE).await.unwrap(), [true, false, false]);
    let after = f.store.sessions(&ids).await.unwrap();
    let deadline = |s: &Option<SessionRecord>| s.as_ref().unwrap().deadline;
    let moved = deadline(&after[0]).since(deadline(&before[0]));
    assert!((Span::millis(1_500)..=Span::secs(2)).contains(&moved), "{moved:?}");
    assert_eq!(deadline(&after[1]), deadline(&before[1]));
    assert_eq!(after[2], None);
}

pub(crate) async fn a_removed_session_is_gone(f: &Fixture) {
    let id = session("s1-abc");
    assert!(f.store.put_session(&id, &record(4), None, LEASE).await.unwrap());
    f.store.remove_session(&id, 3).await.unwrap();
    assert!(read(f, &id).await.is_some(), "another epoch is not removed");
    f.store.remove_session(&id, 4).await.unwrap();
    assert_eq!(read(f, &id).await, None);
    f.store.remove_session(&id, 4).await.unwrap();
}

pub(crate) async fn an_id_that_names_no_partition_has_no_session(f: &Fixture) {
    for name in ["nonsense", "s999-abc"] {
        let id = session(name);
        assert!(!f.store.put_session(&id, &record(1), None, LEASE).await.unwrap());
        assert_eq!(read(f, &id).await, None);
        f.store.remove_session(&id, 1).await.unwrap();
    }
    let ids = [session("s0-a"), session("nonsense"), session("s2-b")];
    assert!(f.store.put_session(&ids[2], &record(7), None, LEASE).await.unwrap());
    let epochs: Vec<_> =
        f.store.sessions(&ids).await.unwrap().iter().map(|s| s.as_ref().map(|s| s.epoch)).collect();
    assert_eq!(epochs, [None, None, Some(7)]);
}

pub(crate) async fn sessions_of_all_partitions_are_renewed_at_once(f: &Fixture) {
    f.store.tick(&[Partition(0), P, Partition(2)], 1).await.unwrap();
    let ids: Vec<_> = (0..30).map(|n| session(&format!("s{}-{n}", n % 3))).collect();
    for (n, id) in ids.iter().enumerate() {
        assert!(n % 5 == 4 || f.store.put_session(id, &record(n as u32), None, LEASE).await.unwrap());
    }
    let before = f.store.sessions(&ids).await.unwrap();
    f.advance(Span::secs(1)).await;
    // Every fifth is not there, every seventh is known under another epoch, and one names no partition.
    let epoch = |n: usize| if n % 7 == 6 { 99 } else { n as u32 };
    let mut named: Vec<_> = ids.iter().enumerate().map(|(n, id)| (id.clone(), epoch(n))).collect();
    named.insert(11, (session("s77-x"), 1));
    let mut kept = f.store.renew_sessions(&named, LEASE).await.unwrap();
    assert!(!kept.remove(11));
    let expected: Vec<_> = (0..30).map(|n| n % 5 != 4 && n % 7 != 6).collect();
    assert_eq!(kept, expected);
    let after = f.store.sessions(&ids).await.unwrap();
    for (n, (before, after)) in before.iter().zip(&after).enumerate() {
        let moved = before.as_ref().zip(after.as_ref()).map(|(b, a)| a.deadline > b.deadline);
        assert_eq!(moved, (n % 5 != 4).then_some(expected[n]), "{n}");
    }
    assert!(f.store.renew_sessions(&[], LEASE).await.unwrap().is_empty());
}

pub(crate) async fn a_session_vanishes_an_hour_after_its_lease(f: &Fixture) {
    let ids = ["s1-abc", "s1-later"].map(session);
    let id = &ids[0];
    f.store.tick(&[P], 1).await.unwrap();
    assert!(f.store.put_session(id, &record(1), None, LEASE).await.unwrap());
    // Time that nobody looked after does not count.
    f.advance(Span::secs(20_000)).await;
    f.live(Span::secs(3_500)).await;
    assert!(read(f, id).await.is_some(), "a resume long after the deadline still finds it");
    assert!(f.store.put_session(&ids[1], &record(1), None, LEASE).await.unwrap());
    f.live(Span::secs(100)).await;
    f.advance(Span::secs(1)).await;
    f.live(Span::secs(6)).await;
    assert!(
        f.store.put_session(id, &record(2), None, LEASE).await.is_ok_and(|put| !put),
        "it is still there"
    );
    f.live(Span::secs(6)).await;
    assert_eq!(read(f, id).await, None);
    assert_eq!(f.store.renew_sessions(&[(id.clone(), 1)], LEASE).await.unwrap(), [false]);
    assert!(!f.store.put_session(id, &record(2), Some(1), LEASE).await.unwrap());
    // It is swept now or later; its id may be used again before and after.
    assert!(f.store.put_session(id, &record(1), None, LEASE).await.unwrap());
    assert_eq!(read(f, id).await.unwrap().epoch, 1);
    f.live(Span::secs(120)).await;
    assert!(read(f, id).await.is_some());
    assert!(read(f, &ids[1]).await.is_some());
}
