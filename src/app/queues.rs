//! What this server knows of the ready queues: the last seen head of each. A hint that decides only
//! order and whether a take is worth a round trip; the store decides what is taken.

use crate::model::ids::{Partition, TaskType};
use crate::store::QueueHead;
use parking_lot::Mutex;
use std::collections::BTreeMap;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Queues {
    heads: Mutex<BTreeMap<TaskType, BTreeMap<Partition, i64>>>,
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
                    known.entry(h.task_type.clone()).or_default().insert(h.partition, score);
                }
                None => forget(&mut known, &h.task_type, h.partition),
            }
        }
        any
    }

    /// All non-empty heads of these partitions, as a tick reported them.
    pub(crate) fn ticked(&self, partition: Partition, heads: &[QueueHead]) -> bool {
        {
            let mut known = self.heads.lock();
            known.retain(|_, by| {
                by.remove(&partition);
                !by.is_empty()
            });
        }
        self.seen(heads)
    }

    /// A queue is said to be non-empty; where its head stands is not known.
    pub(crate) fn hinted(&self, partition: Partition, task_type: &TaskType) {
        self.heads.lock().entry(task_type.clone()).or_default().entry(partition).or_insert(i64::MAX);
    }

    /// A take found fewer than it asked for.
    pub(crate) fn emptied(&self, partition: Partition, task_type: &TaskType) {
        forget(&mut self.heads.lock(), task_type, partition);
    }

    /// Whether nothing older than `score` is known to wait there.
    pub(crate) fn is_next(&self, partition: Partition, task_type: &TaskType, score: i64) -> bool {
        self.heads.lock().get(task_type).and_then(|by| by.get(&partition)).is_none_or(|head| *head >= score)
    }

    /// Partitions where tasks of this type wait, oldest head first.
    pub(crate) fn waiting(&self, task_type: &TaskType) -> Vec<Partition> {
        let heads = self.heads.lock();
        let Some(by) = heads.get(task_type) else { return Vec::new() };
        let mut list: Vec<_> = by.iter().map(|(p, s)| (*s, *p)).collect();
        list.sort_unstable();
        list.into_iter().map(|(_, p)| p).collect()
    }

    /// Whether anything is known to wait anywhere.
    pub(crate) fn any(&self) -> bool {
        !self.heads.lock().is_empty()
    }
}

fn forget(
    known: &mut BTreeMap<TaskType, BTreeMap<Partition, i64>>,
    task_type: &TaskType,
    partition: Partition,
) {
    if let Some(by) = known.get_mut(task_type) {
        by.remove(&partition);
        if by.is_empty() {
            known.remove(task_type);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(p: u16, t: &str, score: Option<i64>) -> QueueHead {
        QueueHead { partition: Partition(p), task_type: TaskType::new(t).unwrap(), score, depth: 1 }
    }

    #[test]
    fn older_heads_come_first_and_hold_back_younger_tasks() {
        let q = Queues::default();
        let t = TaskType::new("a").unwrap();
        assert!(q.seen(&[head(0, "a", Some(20)), head(1, "a", Some(10))]));
        assert_eq!(q.waiting(&t), vec![Partition(1), Partition(0)]);
        assert!(q.is_next(Partition(0), &t, 20));
        assert!(!q.is_next(Partition(0), &t, 21));
        assert!(q.is_next(Partition(2), &t, 99));
    }

    #[test]
    fn a_tick_replaces_all_that_was_known_of_its_partition() {
        let q = Queues::default();
        q.seen(&[head(0, "a", Some(1)), head(0, "b", Some(1)), head(1, "a", Some(1))]);
        assert!(!q.ticked(Partition(0), &[]));
        assert_eq!(q.waiting(&TaskType::new("a").unwrap()), vec![Partition(1)]);
        assert_eq!(q.waiting(&TaskType::new("b").unwrap()), vec![]);
        q.emptied(Partition(1), &TaskType::new("a").unwrap());
        assert!(!q.any());
    }

    #[test]
    fn a_hint_never_hides_a_known_head() {
        let q = Queues::default();
        let t = TaskType::new("a").unwrap();
        q.seen(&[head(0, "a", Some(5))]);
        q.hinted(Partition(0), &t);
        assert!(!q.is_next(Partition(0), &t, 6));
        q.hinted(Partition(1), &t);
        assert!(q.is_next(Partition(1), &t, 6));
    }
}
