//! Lists whose copies share what they have in common: each decision on a run works on a copy of it, and changes two or
//! three of what may be ten thousand nodes.
//!
//! ```text
//! SharedList   pieces of up to N items; a copy counts pieces, a change copies the piece it is in
//! Nodes        such a list of nodes, which are shared one by one as well
//! ```
//!
//! Invariants
//! - Every piece but the last is full, so equal lists have equal pieces and an index is a division away.
//! - Two copies that have a piece in common have equal items there: who compares them may skip it.

use super::run::TaskState;
use std::ops::{Index, IndexMut};
use std::sync::Arc;

/// Nodes of a run that are shared, compared and stored together.
pub const PAGE: usize = 64;

/// A list in shared pieces of up to `N` items.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SharedList<T, const N: usize>(Vec<Arc<Vec<T>>>);

impl<T, const N: usize> Default for SharedList<T, N> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T, const N: usize> SharedList<T, N> {
    /// How many items.
    pub fn len(&self) -> usize {
        self.0.last().map_or(0, |last| (self.0.len() - 1) * N + last.len())
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// An item.
    pub fn get(&self, index: usize) -> Option<&T> {
        self.0.get(index / N)?.get(index % N)
    }

    /// The last item.
    pub fn last(&self) -> Option<&T> {
        self.0.last()?.last()
    }

    /// All items, in order.
    pub fn iter(&self) -> Items<'_, T, N> {
        self.iter_from(0)
    }

    /// The items from an index on; none if it is past the end.
    pub fn iter_from(&self, from: usize) -> Items<'_, T, N> {
        Items { list: self, from, to: self.len().max(from) }
    }

    /// The pieces, in order: `N` items each, fewer in the last.
    pub fn pieces(&self) -> impl Iterator<Item = &[T]> {
        self.0.iter().map(|p| &p[..])
    }

    /// A piece.
    pub fn piece(&self, n: usize) -> Option<&[T]> {
        self.0.get(n).map(|p| &p[..])
    }

    /// Whether a piece is the same one in both lists, and so its items are.
    pub fn shares(&self, other: &Self, piece: usize) -> bool {
        let pair = self.0.get(piece).zip(other.0.get(piece));
        pair.is_some_and(|(a, b)| Arc::ptr_eq(a, b))
    }
}

impl<T: Clone, const N: usize> SharedList<T, N> {
    /// An item, to be changed: its piece is copied if it is shared.
    pub fn get_mut(&mut self, index: usize) -> Option<&mut T> {
        Arc::make_mut(self.0.get_mut(index / N)?).get_mut(index % N)
    }

    /// The last item, to be changed.
    pub fn last_mut(&mut self) -> Option<&mut T> {
        Arc::make_mut(self.0.last_mut()?).last_mut()
    }

    /// Appends an item.
    pub fn push(&mut self, item: T) {
        match self.0.last_mut() {
            Some(last) if last.len() < N => {
                // A copy for one more item tends to get another soon.
                if Arc::get_mut(last).is_none() {
                    let mut copy = Vec::with_capacity(N.min(last.len() + 4));
                    copy.extend_from_slice(last);
                    *last = Arc::new(copy);
                }
                Arc::make_mut(last).push(item);
            }
            Some(_) | None => self.0.push(Arc::new(vec![item])),
        }
    }
}

impl<T: Clone, const N: usize> Extend<T> for SharedList<T, N> {
    fn extend<I: IntoIterator<Item = T>>(&mut self, items: I) {
        for item in items {
            self.push(item);
        }
    }
}

impl<T: Clone, const N: usize> FromIterator<T> for SharedList<T, N> {
    fn from_iter<I: IntoIterator<Item = T>>(items: I) -> Self {
        let mut items = items.into_iter();
        let mut pieces = Vec::new();
        loop {
            let piece: Vec<T> = items.by_ref().take(N).collect();
            if piece.is_empty() {
                return Self(pieces);
            }
            pieces.push(Arc::new(piece));
        }
    }
}

impl<T: Clone, const N: usize> From<Vec<T>> for SharedList<T, N> {
    fn from(items: Vec<T>) -> Self {
        if items.len() <= N && !items.is_empty() {
            return Self(vec![Arc::new(items)]);
        }
        items.into_iter().collect()
    }
}

impl<T, const N: usize> Index<usize> for SharedList<T, N> {
    type Output = T;
    fn index(&self, index: usize) -> &T {
        &self.0[index / N][index % N]
    }
}

impl<'a, T, const N: usize> IntoIterator for &'a SharedList<T, N> {
    type Item = &'a T;
    type IntoIter = Items<'a, T, N>;
    fn into_iter(self) -> Items<'a, T, N> {
        self.iter()
    }
}

/// Items of a [`SharedList`], in order.
#[derive(Debug, Clone)]
pub struct Items<'a, T, const N: usize> {
    list: &'a SharedList<T, N>,
    from: usize,
    to: usize,
}

impl<'a, T, const N: usize> Iterator for Items<'a, T, N> {
    type Item = &'a T;

    fn next(&mut self) -> Option<&'a T> {
        let item = self.list.get(self.from).filter(|_| self.from < self.to)?;
        self.from += 1;
        Some(item)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.to - self.from;
        (left, Some(left))
    }
}

impl<T, const N: usize> DoubleEndedIterator for Items<'_, T, N> {
    fn next_back(&mut self) -> Option<Self::Item> {
        let last = self.to.checked_sub(1).filter(|last| *last >= self.from)?;
        self.to = last;
        self.list.get(last)
    }
}

impl<T, const N: usize> ExactSizeIterator for Items<'_, T, N> {}

/// The nodes of a run. Neighbours that are alike when they are laid out are one until one of them changes: most of what
/// an open run has is tasks that nothing has happened to yet.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Nodes(SharedList<Arc<TaskState>, PAGE>);

/// Shares each node with the one before it, if they are alike.
fn alike(
    mut before: Option<Arc<TaskState>>,
    nodes: impl Iterator<Item = TaskState>,
) -> impl Iterator<Item = Arc<TaskState>> {
    nodes.map(move |node| {
        let shared = before.take().filter(|b| **b == node).unwrap_or_else(|| Arc::new(node));
        before = Some(Arc::clone(&shared));
        shared
    })
}

impl Nodes {
    /// How many.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// A node.
    pub fn get(&self, index: usize) -> Option<&TaskState> {
        self.0.get(index).map(|node| &**node)
    }

    /// A node, to be changed: it is copied if it is shared.
    pub fn get_mut(&mut self, index: usize) -> Option<&mut TaskState> {
        self.0.get_mut(index).map(Arc::make_mut)
    }

    /// All nodes, in order.
    pub fn iter(&self) -> NodeIter<'_> {
        NodeIter(self.0.iter())
    }

    /// The nodes from an index on; none if it is past the end.
    pub fn iter_from(&self, from: usize) -> NodeIter<'_> {
        NodeIter(self.0.iter_from(from))
    }

    /// Appends a node.
    pub fn push(&mut self, node: TaskState) {
        self.0.push(Arc::new(node));
    }

    /// About the bytes they take in memory, without their texts and values. Of more than a page all count as different.
    pub fn footprint(&self) -> usize {
        let mut different = self.len();
        if let (Some(page), true) = (self.page(0), different <= PAGE) {
            different -= page.windows(2).filter(|w| Arc::ptr_eq(&w[0], &w[1])).count();
        }
        size_of::<Arc<TaskState>>() * self.len()
            + (size_of::<TaskState>() + 2 * size_of::<usize>()) * different
    }

    /// Pages of [`PAGE`] nodes, fewer in the last.
    pub fn pages(&self) -> impl Iterator<Item = &[Arc<TaskState>]> {
        self.0.pieces()
    }

    /// A page of nodes.
    pub fn page(&self, n: usize) -> Option<&[Arc<TaskState>]> {
        self.0.piece(n)
    }

    /// Nodes that may differ from those of `base`, which has none where there is none, with their indices: all but those
    /// of pages that both share.
    pub fn unlike<'a>(
        &'a self,
        base: Option<&'a Self>,
    ) -> impl Iterator<Item = (u32, Option<&'a TaskState>, &'a TaskState)> {
        let shared = move |n| base.is_some_and(|b| self.0.shares(&b.0, n));
        let pages = self.0.pieces().enumerate().filter(move |(n, _)| !shared(*n));
        pages.flat_map(move |(n, page)| {
            page.iter().enumerate().filter_map(move |(i, node)| {
                let index = n * PAGE + i;
                let was = base.and_then(|b| b.0.get(index));
                let same = was.is_some_and(|was| Arc::ptr_eq(was, node));
                (!same).then(|| (index as u32, was.map(|w| &**w), &**node))
            })
        })
    }
}

impl Extend<TaskState> for Nodes {
    fn extend<I: IntoIterator<Item = TaskState>>(&mut self, nodes: I) {
        let before = self.0.last().cloned();
        self.0.extend(alike(before, nodes.into_iter()));
    }
}

impl FromIterator<TaskState> for Nodes {
    fn from_iter<I: IntoIterator<Item = TaskState>>(nodes: I) -> Self {
        Self(alike(None, nodes.into_iter()).collect())
    }
}

impl From<Vec<TaskState>> for Nodes {
    fn from(nodes: Vec<TaskState>) -> Self {
        nodes.into_iter().collect()
    }
}

impl Index<usize> for Nodes {
    type Output = TaskState;
    fn index(&self, index: usize) -> &TaskState {
        &self.0[index]
    }
}

impl IndexMut<usize> for Nodes {
    fn index_mut(&mut self, index: usize) -> &mut TaskState {
        let len = self.0.len();
        match self.0.get_mut(index) {
            Some(node) => Arc::make_mut(node),
            None => panic!("node {index} of {len}"),
        }
    }
}

impl<'a> IntoIterator for &'a Nodes {
    type Item = &'a TaskState;
    type IntoIter = NodeIter<'a>;
    fn into_iter(self) -> NodeIter<'a> {
        self.iter()
    }
}

/// Nodes in order.
#[derive(Debug, Clone)]
pub struct NodeIter<'a>(Items<'a, Arc<TaskState>, PAGE>);

impl<'a> Iterator for NodeIter<'a> {
    type Item = &'a TaskState;
    fn next(&mut self) -> Option<&'a TaskState> {
        self.0.next().map(|node| &**node)
    }
    fn size_hint(&self) -> (usize, Option<usize>) {
        self.0.size_hint()
    }
}

impl DoubleEndedIterator for NodeIter<'_> {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.0.next_back().map(|node| &**node)
    }
}

impl ExactSizeIterator for NodeIter<'_> {}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    type List = SharedList<u16, 4>;

    proptest! {
        /// Whatever is done to a list and to copies of it, each is what a plain list would be.
        #[test]
        fn lists_and_their_copies_do_as_plain_ones(
            ops in proptest::collection::vec((0u8..5, 0usize..40, any::<u16>()), 0..200),
        ) {
            let mut lists = vec![(List::default(), Vec::<u16>::new())];
            for (op, at, value) in ops {
                let which = at % lists.len();
                let (list, plain) = &mut lists[which];
                match op {
                    0 | 1 => {
                        list.push(value);
                        plain.push(value);
                    }
                    2 => {
                        prop_assert_eq!(list.get_mut(at).is_some(), at < plain.len());
                        if let (Some(a), Some(b)) = (list.get_mut(at), plain.get_mut(at)) {
                            (*a, *b) = (value, value);
                        }
                    }
                    3 => {
                        if let (Some(a), Some(b)) = (list.last_mut(), plain.last_mut()) {
                            (*a, *b) = (value, value);
                        }
                    }
                    _ => {
                        let copy = (list.clone(), plain.clone());
                        lists.push(copy);
                    }
                }
            }
            for (list, plain) in &lists {
                prop_assert_eq!(list.len(), plain.len());
                prop_assert_eq!(list.is_empty(), plain.is_empty());
                prop_assert!(list.iter().eq(plain));
                prop_assert!(list.iter().rev().eq(plain.iter().rev()));
                prop_assert_eq!(list.last(), plain.last());
                prop_assert_eq!(list, &List::from(plain.clone()));
                for from in 0..=plain.len() + 5 {
                    prop_assert!(list.iter_from(from).eq(plain.iter().skip(from)));
                    prop_assert_eq!(list.iter_from(from).len(), plain.len().saturating_sub(from));
                    prop_assert_eq!(list.get(from), plain.get(from));
                }
            }
        }
    }

    fn nodes(n: u32) -> Nodes {
        (0..n).map(TaskState::pending).collect()
    }

    #[test]
    fn neighbours_that_are_alike_are_one_until_one_changes() {
        let node = size_of::<TaskState>() + 16;
        let mut nodes: Nodes = vec![TaskState::pending(1); 9].into();
        assert_eq!(nodes.footprint(), 9 * 8 + node);
        nodes.extend([TaskState::pending(1), TaskState::pending(2)]);
        assert_eq!(nodes.footprint(), 11 * 8 + 2 * node);
        nodes[3].attempt = 1;
        assert_eq!(nodes.iter().map(|n| n.attempt).collect::<Vec<_>>(), [0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(nodes.footprint(), 11 * 8 + 4 * node, "those before it, it, those behind it, the last");
    }

    #[test]
    fn only_what_may_differ_is_looked_at() {
        let base = nodes(200);
        let mut changed = base.clone();
        assert_eq!(changed.unlike(Some(&base)).count(), 0);
        changed[70].attempt = 3;
        changed[199].attempt = 4;
        changed.push(TaskState::pending(9));
        let unlike: Vec<_> =
            changed.unlike(Some(&base)).map(|(i, was, is)| (i, was.map(|w| w.attempt), is.attempt)).collect();
        assert_eq!(unlike, [(70, Some(0), 3), (199, Some(0), 4), (200, None, 0)]);
        assert_eq!(base[70].attempt, 0);
        assert_eq!(changed.unlike(None).count(), 201);
    }
}
