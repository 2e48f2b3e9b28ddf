//! Who of the workers of a type may be given what: those with the same labels are a pool, and take turns.
//!
//! Invariants
//! - A worker is given only tasks whose labels it has, all of them.
//! - What waits for a rare worker is not overtaken by what any worker can do, once such a worker is free.

use super::dispatcher::SessionKey;
use crate::model::ids::TaskType;
use crate::model::labels::{Labels, QueueName};
use std::collections::VecDeque;

/// The workers of one type that have the same labels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pool {
    /// The type.
    pub task_type: TaskType,
    /// What each of them has.
    pub labels: Labels,
}

/// The sessions of a pool, next one first.
#[derive(Debug)]
pub(super) struct Ring {
    pub(super) labels: Labels,
    pub(super) sessions: VecDeque<SessionKey>,
}

/// The rings of a type, those with the fewest labels first: what any worker can do is kept from the rare ones as
/// long as others are free.
#[derive(Debug, Default)]
pub(super) struct Rings(pub(super) Vec<Ring>);

impl Rings {
    pub(super) fn enter(&mut self, labels: &Labels, key: SessionKey) {
        let place = |l: &Labels| (l.len(), l.clone());
        match self.0.binary_search_by_key(&place(labels), |ring| place(&ring.labels)) {
            Ok(at) => self.0[at].sessions.push_back(key),
            Err(at) => self.0.insert(at, Ring { labels: labels.clone(), sessions: VecDeque::from([key]) }),
        }
    }

    pub(super) fn leave(&mut self, labels: &Labels, key: SessionKey) {
        if let Some(ring) = self.0.iter_mut().find(|ring| ring.labels == *labels) {
            ring.sessions.retain(|k| *k != key);
        }
        self.0.retain(|ring| !ring.sessions.is_empty());
    }
}

/// Whether a worker with these labels may be given a task that waits, or would wait, in `queue` while queues with
/// the labels `ahead` hold older ones.
pub(super) fn fits(own: &Labels, queue: &QueueName, ahead: &[Labels]) -> bool {
    own.include(&queue.labels) && !ahead.iter().any(|older| own.include(older))
}
