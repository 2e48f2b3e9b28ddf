//! Writes in the making: reads see them, the map below does not, until they are applied at once.

use super::{Kv, Order, Pair, Writes, prefix_of};
use crate::model::ids::Prefix;
use crate::store::Result;
use bytes::Bytes;
use std::ops::Bound;

/// A transaction over a map. Many verbs may share one; each runs inside [`Tx::attempt`].
#[allow(missing_debug_implementations, reason = "holds a borrowed map")]
pub struct Tx<'k> {
    base: &'k dyn Kv,
    writes: Writes,
    /// How `writes` gets back to what it was before the verb that runs now, oldest first.
    undo: Vec<Undo>,
}

enum Undo {
    /// There was no write of this key.
    Forget(Vec<u8>),
    /// There was this one.
    Restore(Vec<u8>, Option<Bytes>),
}

impl<'k> Tx<'k> {
    /// Begins over `base`.
    pub fn new(base: &'k dyn Kv) -> Self {
        Self { base, writes: Writes::new(), undo: Vec::new() }
    }

    /// Runs a verb; if it fails, what it wrote is taken back.
    pub fn attempt<T>(&mut self, verb: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        self.undo.clear();
        let result = verb(self);
        if result.is_err() {
            for undo in self.undo.drain(..).rev() {
                match undo {
                    Undo::Forget(key) => self.writes.remove(&key),
                    Undo::Restore(key, write) => self.writes.insert(key, write),
                };
            }
        }
        result
    }

    /// The value of a key.
    pub fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        match self.writes.get(key) {
            Some(write) => Ok(write.clone()),
            None => self.base.get(key),
        }
    }

    /// The prefix of a record.
    pub fn prefix(&self, record: &[u8]) -> Result<Option<Prefix>> {
        match self.writes.get(record) {
            Some(write) => prefix_of(write.as_deref()),
            None => self.base.prefix(record),
        }
    }

    /// Sets a key.
    pub fn put(&mut self, key: Vec<u8>, value: impl Into<Bytes>) {
        self.write(key, Some(value.into()));
    }

    /// Removes a key.
    pub fn remove(&mut self, key: Vec<u8>) {
        self.write(key, None);
    }

    fn write(&mut self, key: Vec<u8>, value: Option<Bytes>) {
        self.undo.push(match self.writes.insert(key.clone(), value) {
            None => Undo::Forget(key),
            Some(before) => Undo::Restore(key, before),
        });
    }

    /// Up to `limit` pairs with `from` ≤ key < `to`.
    pub fn scan(&self, from: &[u8], to: &[u8], limit: usize, order: Order) -> Result<Vec<Pair>> {
        if from >= to || limit == 0 {
            return Ok(Vec::new());
        }
        let range = (Bound::Included(from), Bound::Excluded(to));
        let removed = self.writes.range::<[u8], _>(range).filter(|(_, w)| w.is_none()).count();
        let below = self.base.scan(from, to, limit.saturating_add(removed), order)?;
        let above = self.writes.range::<[u8], _>(range).map(|(k, w)| (k.clone(), w.clone()));
        let above: Vec<_> = match order {
            Order::Ascending => above.collect(),
            Order::Descending => above.rev().collect(),
        };
        Ok(merge(below, above, limit, order))
    }

    /// The writes.
    pub fn into_writes(self) -> Writes {
        self.writes
    }
}

/// Merges two sorted lists; `above` hides equal keys of `below`.
fn merge(below: Vec<Pair>, above: Vec<(Vec<u8>, Option<Bytes>)>, limit: usize, order: Order) -> Vec<Pair> {
    if above.is_empty() {
        let mut below = below;
        below.truncate(limit);
        return below;
    }
    let before = |a: &[u8], b: &[u8]| match order {
        Order::Ascending => a < b,
        Order::Descending => a > b,
    };
    let mut out = Vec::with_capacity(limit.min(below.len() + above.len()));
    let mut below = below.into_iter().peekable();
    let mut above = above.into_iter().peekable();
    while out.len() < limit {
        let take_below = match (below.peek(), above.peek()) {
            (None, None) => break,
            (Some(_), None) => true,
            (None, Some(_)) => false,
            (Some((b, _)), Some((a, _))) => {
                if a == b {
                    below.next();
                    false
                } else {
                    before(b, a)
                }
            }
        };
        if take_below {
            out.extend(below.next());
        } else if let Some((key, Some(value))) = above.next() {
            out.push((key, value));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::StoreError;
    use crate::store::kv::memory::Map;

    fn map(pairs: &[(&str, &str)]) -> Map {
        let mut map = Map::default();
        let writes =
            pairs.iter().map(|(k, v)| (k.as_bytes().to_vec(), Some(Bytes::copy_from_slice(v.as_bytes()))));
        map.apply(writes.collect()).unwrap();
        map
    }

    fn keys(pairs: Vec<Pair>) -> Vec<String> {
        pairs.into_iter().map(|(k, _)| String::from_utf8(k).unwrap()).collect()
    }

    #[test]
    fn scans_see_writes_and_removals_over_the_map() {
        let map = map(&[("a", "1"), ("b", "2"), ("d", "4"), ("z", "0")]);
        let mut tx = Tx::new(&map);
        tx.put(b"c".to_vec(), &b"3"[..]);
        tx.put(b"b".to_vec(), &b"two"[..]);
        tx.remove(b"a".to_vec());
        assert_eq!(keys(tx.scan(b"a", b"e", 2, Order::Ascending).unwrap()), ["b", "c"]);
        assert_eq!(keys(tx.scan(b"a", b"e", 9, Order::Descending).unwrap()), ["d", "c", "b"]);
        assert_eq!(tx.get(b"b").unwrap().unwrap(), "two");
        assert_eq!(tx.get(b"a").unwrap(), None);
    }

    #[test]
    fn a_verb_that_fails_leaves_no_trace() {
        let map = map(&[("a", "1")]);
        let mut tx = Tx::new(&map);
        tx.attempt(|tx| {
            tx.put(b"k".to_vec(), &b"first"[..]);
            Ok(())
        })
        .unwrap();
        let failed: Result<()> = tx.attempt(|tx| {
            tx.put(b"k".to_vec(), &b"second"[..]);
            tx.remove(b"k".to_vec());
            tx.remove(b"a".to_vec());
            Err(StoreError::Forgotten)
        });
        assert_eq!(failed, Err(StoreError::Forgotten));
        assert_eq!(tx.get(b"k").unwrap().unwrap(), "first");
        assert_eq!(tx.get(b"a").unwrap().unwrap(), "1");
    }
}
