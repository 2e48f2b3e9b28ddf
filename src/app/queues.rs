//! What this server knows of the ready queues: the last seen head of each. A hint that decides only
//! order and whether a take is worth a round trip; the store decides what is taken.

use crate::dispatch::Pool;
use crate::model::ids::{Partition, TaskType};
use crate::model::labels::{Labels, QueueName};
use crate::store::QueueHead;
use parking_lot::Mutex;
use std::collections::BTreeMap;

/// Heads of the queues of one type, by the labels their tasks ask for.
type ByLabels = BTreeMap<Labels, BTreeMap<Partition, i64>>;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Queues {
    heads: Mutex<BTreeMap<TaskType, ByLabels>>,
}

/// Where something waits that a pool can do.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Source {
    /// The head as it is known; `i64::MAX` where that is not.
    pub(crate) score: i64,
    pub(crate) partition: Partition,
    pub(crate) labels: Labels,
}

impl Queues {
    /// Heads as a commit or a take reported them. True if one of them is not empty.
    pub(crate) fn seen(&self, heads: &[QueueHead]) -> bool {
        let mut known = self.heads.lock();
        let mut any = false;
        for h in heads {
            match h.score {
                Some(score) => {
                    any = true;
                    of(&mut known, &h.queue).insert(h.partition, score);
                }
                None => forget(&mut known, &h.queue, h.partition),
            }
        }
        any
    }

    /// All non-empty heads of these partitions, as a tick reported them.
    pub(crate) fn ticked(&self, partition: Partition, heads: &[QueueHead]) -> bool {
        {
            let mut known = self.heads.lock();
            known.retain(|_, by_labels| {
                by_labels.retain(|_, by| {
                    by.remove(&partition);
                    !by.is_empty()
                });
                !by_labels.is_empty()
            });
        }
        self.seen(heads)
    }

    /// A queue is said to be non-empty; where its head stands is not known.
    pub(crate) fn hinted(&self, partition: Partition, queue: &QueueName) {
        of(&mut self.heads.lock(), queue).entry(partition).or_insert(i64::MAX);
    }

    /// A take found fewer than it asked for.
    pub(crate) fn emptied(&self, partition: Partition, queue: &QueueName) {
        forget(&mut self.heads.lock(), queue, partition);
    }

    /// A take of entries from the head at `from` on ended with the one at `to`: what is left is not older.
    pub(crate) fn went_on(&self, partition: Partition, queue: &QueueName, from: i64, to: i64) {
        let mut known = self.heads.lock();
        let head =
            known.get_mut(&queue.task_type).and_then(|by| by.get_mut(&queue.labels)?.get_mut(&partition));
        // Something else may have been told meanwhile.
        if let Some(head) = head.filter(|head| **head == from) {
            *head = to;
        }
    }

    /// Whether nothing older than `score` is known to wait in this queue of this partition: then the labels of those
    /// other queues of its type in which there is, anywhere.
    pub(crate) fn ahead(&self, partition: Partition, queue: &QueueName, score: i64) -> Option<Vec<Labels>> {
        let known = self.heads.lock();
        let Some(by_labels) = known.get(&queue.task_type) else { return Some(Vec::new()) };
        let head = by_labels.get(&queue.labels).and_then(|by| by.get(&partition));
        if head.is_some_and(|head| *head < score) {
            return None;
        }
        let others = by_labels.iter().filter(|(labels, _)| **labels != queue.labels);
        let older = others.filter(|(_, by)| by.values().any(|head| *head < score));
        Some(older.map(|(labels, _)| labels.clone()).collect())
    }

    /// Where tasks wait that a pool can do, oldest head first.
    pub(crate) fn waiting(&self, pool: &Pool) -> Vec<Source> {
        let known = self.heads.lock();
        let Some(by_labels) = known.get(&pool.task_type) else { return Vec::new() };
        let fit = by_labels.iter().filter(|(labels, _)| pool.labels.include(labels));
        let mut list: Vec<_> = fit
            .flat_map(|(labels, by)| {
                by.iter().map(|(p, s)| Source { score: *s, partition: *p, labels: labels.clone() })
            })
            .collect();
        list.sort_unstable();
        list
    }

    /// Whether anything is known to wait anywhere.
    pub(crate) fn any(&self) -> bool {
        !self.heads.lock().is_empty()
    }
}

fn of<'k>(
    known: &'k mut BTreeMap<TaskType, ByLabels>,
    queue: &QueueName,
) -> &'k mut BTreeMap<Partition, i64> {
    known.entry(queue.task_type.clone()).or_default().entry(queue.labels.clone()).or_default()
}

fn forget(known: &mut BTreeMap<TaskType, ByLabels>, queue: &QueueName, partition: Partition) {
    let Some(by_labels) = known.get_mut(&queue.task_type) else { return };
    if let Some(by) = by_labels.get_mut(&queue.labels) {
        by.remove(&partition);
        if by.is_empty() {
            by_labels.remove(&queue.labels);
        }
    }
    if by_labels.is_empty() {
        known.remove(&queue.task_type);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const P0: Partition = Partition(0);
    const P1: Partition = Partition(1);

    fn queue(name: &str) -> QueueName {
        name.parse().unwrap()
    }

    fn head(p: Partition, name: &str, score: Option<i64>) -> QueueHead {
        QueueHead { partition: p, queue: queue(name), score, depth: 1 }
    }

    /// The pool of workers that have what the tasks of this queue ask for, and no more.
    fn pool(name: &str) -> Pool {
        let QueueName { task_type, labels } = queue(name);
        Pool { task_type, labels }
    }

    fn waiting(q: &Queues, name: &str) -> Vec<(u16, String)> {
        let task_type = queue(name).task_type;
        let named = |s: Source| QueueName { task_type: task_type.clone(), labels: s.labels }.to_string();
        q.waiting(&pool(name)).into_iter().map(|s| (s.partition.0, named(s))).collect()
    }

    #[test]
    fn older_heads_come_first_and_hold_back_younger_tasks() {
        let q = Queues::default();
        assert!(q.seen(&[head(P0, "a", Some(20)), head(P1, "a", Some(10))]));
        assert_eq!(waiting(&q, "a"), [(1, "a".to_owned()), (0, "a".to_owned())]);
        assert_eq!(q.ahead(P0, &queue("a"), 20), Some(Vec::new()));
        assert_eq!(q.ahead(P0, &queue("a"), 21), None);
        assert_eq!(q.ahead(Partition(2), &queue("a"), 99), Some(Vec::new()));
    }

    #[test]
    fn a_tick_replaces_all_that_was_known_of_its_partition() {
        let q = Queues::default();
        q.seen(&[
            head(P0, "a", Some(1)),
            head(P0, "b", Some(1)),
            head(P0, "a;x=1", Some(1)),
            head(P1, "a", Some(1)),
        ]);
        assert!(!q.ticked(P0, &[]));
        assert_eq!(waiting(&q, "a;x=1"), [(1, "a".to_owned())]);
        assert_eq!(waiting(&q, "b"), []);
        q.emptied(P1, &queue("a"));
        assert!(!q.any());
    }

    #[test]
    fn a_hint_never_hides_a_known_head() {
        let q = Queues::default();
        q.seen(&[head(P0, "a", Some(5))]);
        q.hinted(P0, &queue("a"));
        assert_eq!(q.ahead(P0, &queue("a"), 6), None);
        q.hinted(P1, &queue("a"));
        assert_eq!(q.ahead(P1, &queue("a"), 6), Some(Vec::new()));
    }

    #[test]
    fn workers_are_fed_from_every_queue_that_asks_for_no_more_than_they_have() {
        let q = Queues::default();
        q.seen(&[
            head(P0, "a", Some(3)),
            head(P0, "a;gpu=true", Some(1)),
            head(P1, "a;gpu=true;region=eu", Some(2)),
            head(P1, "a-b", Some(0)),
        ]);
        assert_eq!(waiting(&q, "a"), [(0, "a".to_owned())]);
        assert_eq!(waiting(&q, "a;gpu=true"), [(0, "a;gpu=true".to_owned()), (0, "a".to_owned())]);
        let all = [(0, "a;gpu=true"), (1, "a;gpu=true;region=eu"), (0, "a")];
        assert_eq!(waiting(&q, "a;gpu=true;region=eu;zone=1"), all.map(|(p, n)| (p, n.to_owned())));
    }

    #[test]
    fn older_tasks_of_other_labels_are_told_with_their_labels() {
        let q = Queues::default();
        q.seen(&[head(P1, "a;gpu=true", Some(5)), head(P0, "a;region=eu", Some(9))]);
        q.hinted(P0, &queue("a;zone=1"));
        let gpu = queue("a;gpu=true").labels;
        assert_eq!(q.ahead(P0, &queue("a"), 5), Some(Vec::new()));
        assert_eq!(q.ahead(P0, &queue("a"), 6), Some(vec![gpu.clone()]));
        assert_eq!(q.ahead(P0, &queue("a;region=eu"), 9), Some(vec![gpu]));
        assert_eq!(q.ahead(P0, &queue("b"), 99), Some(Vec::new()));
    }

    #[test]
    fn what_was_taken_moves_the_head_unless_it_was_told_anew() {
        let q = Queues::default();
        q.seen(&[head(P0, "a", Some(5))]);
        q.went_on(P0, &queue("a"), 5, 8);
        assert_eq!(q.ahead(P0, &queue("a"), 8), Some(Vec::new()));
        q.seen(&[head(P0, "a", Some(6))]);
        q.went_on(P0, &queue("a"), 8, 9);
        assert_eq!(q.ahead(P0, &queue("a"), 7), None);
        q.went_on(P1, &queue("a"), 8, 9);
        assert_eq!(waiting(&q, "a").len(), 1);
    }
}
