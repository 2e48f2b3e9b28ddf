//! Workflow documents.

use crate::data::workflow;
use crate::fixture::Fixture;
use bytes::Bytes;
use downbeat::model::time::Span;
use downbeat::store::ListedWorkflow;

fn document(text: &'static str) -> Bytes {
    Bytes::from_static(text.as_bytes())
}

pub(crate) async fn an_equal_document_registers_as_the_newest_version(f: &Fixture) {
    let name = workflow("order");
    assert_eq!(f.store.workflow(&name, None).await.unwrap(), None);
    let (first, made) = f.store.put_workflow(&name, &document("{\"a\":1}")).await.unwrap();
    assert!(made);
    assert_eq!((first.version, &first.document, &first.name), (1, &document("{\"a\":1}"), &name));
    let (again, made) = f.store.put_workflow(&name, &document("{\"a\":1}")).await.unwrap();
    assert!(!made);
    assert_eq!(again, first);
    assert_eq!(f.store.workflow(&name, None).await.unwrap(), Some(first.clone()));
    assert_eq!(f.store.workflow(&name, Some(1)).await.unwrap(), Some(first));
    assert_eq!(f.store.workflow(&name, Some(2)).await.unwrap(), None);
}

pub(crate) async fn an_older_text_makes_a_new_version(f: &Fixture) {
    let name = workflow("order");
    for (text, version) in [("one", 1), ("two", 2), ("one", 3)] {
        let (stored, made) = f.store.put_workflow(&name, &document(text)).await.unwrap();
        assert_eq!((stored.version, made), (version, true));
    }
    let newest = f.store.workflow(&name, None).await.unwrap().unwrap();
    assert_eq!((newest.version, newest.document), (3, document("one")));
    assert_eq!(f.store.workflow(&name, Some(2)).await.unwrap().unwrap().document, document("two"));
}

pub(crate) async fn workflows_are_listed_newest_first(f: &Fixture) {
    let mut stored = std::collections::BTreeMap::new();
    for (name, text) in
        [("b", "{}"), ("a", "{}"), ("a-1", "{}"), ("c", "{}"), ("B", "{}"), ("b", "[]"), ("a", "{}")]
    {
        if name != "B" {
            f.advance(Span::millis(1)).await;
        }
        let (now, _) = f.store.put_workflow(&workflow(name), &document(text)).await.unwrap();
        stored.insert(now.name, (now.created_at, now.version));
    }
    // Two may be of one instant: then the name decides.
    let mut expected: Vec<_> = stored
        .into_iter()
        .map(|(name, (created_at, version))| ListedWorkflow { name, version, created_at })
        .collect();
    expected.sort_by(|x, y| (y.created_at, &y.name).cmp(&(x.created_at, &x.name)));
    assert_eq!(f.store.workflows(None, 10).await.unwrap(), expected);
    assert_eq!((expected[0].name.as_str(), expected[0].version), ("b", 2));
    let at = |n: usize| Some((expected[n].created_at, expected[n].name.clone()));
    assert_eq!(f.store.workflows(at(0), 2).await.unwrap(), expected[1..3]);
    assert_eq!(f.store.workflows(at(3), 2).await.unwrap(), expected[4..]);
    assert_eq!(f.store.workflows(at(4), 2).await.unwrap(), []);
    assert_eq!(f.store.workflows(None, 0).await.unwrap(), []);
}

pub(crate) async fn a_removed_workflow_is_gone_with_all_versions(f: &Fixture) {
    let name = workflow("order");
    assert!(!f.store.remove_workflow(&name).await.unwrap());
    for text in ["one", "two"] {
        f.store.put_workflow(&name, &document(text)).await.unwrap();
    }
    f.store.put_workflow(&workflow("order-2"), &document("x")).await.unwrap();
    assert!(f.store.remove_workflow(&name).await.unwrap());
    assert_eq!(f.store.workflow(&name, None).await.unwrap(), None);
    assert_eq!(f.store.workflow(&name, Some(1)).await.unwrap(), None);
    assert_eq!(f.store.workflows(None, 10).await.unwrap().len(), 1);
    assert_eq!(f.store.put_workflow(&name, &document("three")).await.unwrap().0.version, 1);
}
