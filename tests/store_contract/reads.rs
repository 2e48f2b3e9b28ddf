//! Records, payloads, lists.

use crate::data::{Lane, P, create, field, prefix, record, run};
use crate::fixture::Fixture;
use bytes::Bytes;
use downbeat::model::commit::RunWrite;
use downbeat::model::ids::{Partition, RunId};
use downbeat::model::time::{Span, Timestamp};

pub(crate) async fn what_is_not_there_is_none(f: &Fixture) {
    let mut lane = Lane::new(1);
    lane.apply(&*f.store, vec![create("a")]).await;
    let asked = [(P, run("b")), (P, run("a")), (Partition(0), run("a"))];
    let found = f.store.load(&asked).await.unwrap();
    assert_eq!(found, [None, Some(record(prefix(1, 1), 40)), None]);
    assert_eq!(f.store.load(&[]).await.unwrap(), Vec::<Option<Bytes>>::new());
    assert_eq!(f.store.payloads(P, &run("a"), &[field("i")]).await.unwrap(), [None]);
    assert_eq!(f.store.payloads(P, &run("a"), &[]).await.unwrap(), Vec::<Option<Bytes>>::new());
    f.store.check().await.unwrap();
}

pub(crate) async fn payloads_come_in_the_order_asked(f: &Fixture) {
    let mut lane = Lane::new(1);
    let large = Bytes::from(vec![b'x'; 300_000]);
    let binary = Bytes::from_static(b"\0\r\n\xff");
    let payloads = vec![
        (field("i"), large.clone()),
        (field("o1"), binary.clone()),
        (field("o2"), Bytes::from_static(b"[]")),
    ];
    lane.apply(&*f.store, vec![RunWrite { payloads, ..create("a") }, create("a.b")]).await;
    let asked = ["o2", "none", "i", "o1"].map(field);
    let found = f.store.payloads(P, &run("a"), &asked).await.unwrap();
    assert_eq!(found, [Some(Bytes::from_static(b"[]")), None, Some(large), Some(binary)]);
    assert_eq!(f.store.payloads(P, &run("a.b"), &asked[..1]).await.unwrap(), [None]);
}

async fn pages(f: &Fixture, max: u32) -> Vec<(Timestamp, RunId)> {
    let mut all = Vec::new();
    let mut before = None;
    loop {
        let page = f.store.list(P, before, max).await.unwrap();
        assert!(page.len() <= max as usize);
        let Some(last) = page.last() else { return all };
        before = Some(last.clone());
        all.extend(page);
    }
}

pub(crate) async fn runs_are_listed_newest_first_in_pages(f: &Fixture) {
    let mut lane = Lane::new(1);
    let created = |n: i64| Timestamp(1_780_000_000_000_000).plus(Span(n));
    let writes = [3, 1, 4, 1, 5, 9, 2, 6]
        .iter()
        .enumerate()
        .map(|(at, n)| RunWrite { index: Some(created(*n)), ..create(&format!("r{at}")) });
    lane.apply(&*f.store, writes.collect()).await;
    let expected = [(9, 5), (6, 7), (5, 4), (4, 2), (3, 0), (2, 6), (1, 3), (1, 1)]
        .map(|(n, at)| (created(n), run(&format!("r{at}"))));
    for max in [1, 3, 100] {
        assert_eq!(pages(f, max).await, expected, "pages of {max}");
    }
    assert_eq!(f.store.list(Partition(0), None, 10).await.unwrap(), []);
    assert_eq!(f.store.list(P, None, 0).await.unwrap(), []);
    // A position between runs, and one of a run that is gone.
    let between = f.store.list(P, Some((created(7), run("gone"))), 1).await.unwrap();
    assert_eq!(between, [(created(6), run("r7"))]);
}

pub(crate) async fn runs_of_one_instant_are_listed_once_each(f: &Fixture) {
    let mut lane = Lane::new(1);
    let at = Timestamp(1_780_000_000_000_000);
    // Names whose order depends on the locale if compared as text.
    let names = ["B", "a", "_".replace('_', "a_b").as_str(), "a-b", "Z.1", "A", "a.b", "b", "1", "10", "2"]
        .map(ToOwned::to_owned);
    let writes = names.iter().map(|name| RunWrite { index: Some(at), ..create(name) });
    lane.apply(&*f.store, writes.collect()).await;
    let mut expected = names.to_vec();
    expected.sort_unstable_by(|a, b| b.as_bytes().cmp(a.as_bytes()));
    for max in [1, 2, 5] {
        let listed: Vec<_> = pages(f, max).await.into_iter().map(|(_, r)| r.to_string()).collect();
        assert_eq!(listed, expected, "pages of {max}");
    }
    let after_gone = f.store.list(P, Some((at, run("a-a"))), 1).await.unwrap();
    assert_eq!(after_gone, [(at, run("a"))]);
}
