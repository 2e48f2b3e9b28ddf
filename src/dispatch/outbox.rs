//! What waits to be told to one worker. Filled by effects, which never await; emptied by the stream.
//!
//! Bounded: assignments by credit, and by bytes, since a worker with [`UNREAD_MAX`] waiting gets no credit; cancels by what
//! the worker has in flight; pings and credit acks replace each other; and a worker that sends results and does not read
//! what became of them is left when [`ACKS_MAX`] wait.

use super::message::{Assignment, ResultAck, Subscription, ToWorker, Welcome};
use crate::model::time::Span;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use tokio::sync::Notify;

/// While this many bytes of work wait to be read by a worker, it is given no more.
pub const UNREAD_MAX: usize = 4 << 20;
/// More acknowledgements that a worker does not read end its stream: far more than it can have had in flight.
const ACKS_MAX: usize = 100_000;

/// See the module.
#[derive(Debug, Default)]
pub struct Outbox {
    inner: Mutex<Waiting>,
    /// Bytes of work that waits.
    unread: AtomicUsize,
    changed: Notify,
}

#[derive(Debug, Default)]
struct Waiting {
    welcome: Option<Welcome>,
    credit_acks: VecDeque<Subscription>,
    acks: Vec<ResultAck>,
    cancels: Vec<String>,
    assigns: Vec<Assignment>,
    ping: bool,
    go_away: Option<Span>,
    closed: bool,
}

impl Outbox {
    fn put(&self, change: impl FnOnce(&mut Waiting)) {
        change(&mut self.inner.lock());
        self.changed.notify_one();
    }

    /// The answer to `Hello`.
    pub fn welcome(&self, welcome: Welcome) {
        self.put(|w| w.welcome = Some(welcome));
    }
    /// A credit in force; a newer one for the same type replaces an unsent one.
    pub fn credit_ack(&self, subscription: Subscription) {
        self.put(|w| {
            w.credit_acks.retain(|s| s.task_type != subscription.task_type);
            w.credit_acks.push_back(subscription);
        });
    }
    /// The fate of a result.
    pub fn ack(&self, ack: ResultAck) {
        self.put(|w| {
            w.acks.push(ack);
            if w.acks.len() > ACKS_MAX {
                w.closed = true;
                w.acks = Vec::new();
                w.assigns.clear();
                self.unread.store(0, Relaxed);
            }
        });
    }
    /// Work.
    pub fn assign(&self, assignment: Assignment) {
        self.put(|w| {
            self.unread.fetch_add(assignment.input.len(), Relaxed);
            w.assigns.push(assignment);
        });
    }
    /// Whether the worker has so much to read that it gets no more credit.
    pub fn is_full(&self) -> bool {
        self.unread.load(Relaxed) >= UNREAD_MAX
    }
    /// Whether even work for which credit was set aside before has no place.
    pub fn overflows(&self) -> bool {
        self.unread.load(Relaxed) >= 8 * UNREAD_MAX
    }
    /// Work no longer wanted. An assignment that has not left yet is simply taken back.
    pub fn cancel(&self, token: String) {
        self.put(|w| {
            let before = w.assigns.len();
            w.assigns.retain(|a| a.token != token);
            if w.assigns.len() == before {
                w.cancels.push(token);
            } else {
                self.unread.store(w.assigns.iter().map(|a| a.input.len()).sum(), Relaxed);
            }
        });
    }
    /// Are you there?
    pub fn ping(&self) {
        self.put(|w| w.ping = true);
    }
    /// No more assignments.
    pub fn go_away(&self, within: Span) {
        self.put(|w| w.go_away = Some(within));
    }
    /// The stream is over; what is waiting is still told, except work.
    pub fn close(&self) {
        self.put(|w| {
            w.closed = true;
            w.assigns.clear();
            self.unread.store(0, Relaxed);
        });
    }

    /// Takes the next thing to tell, acknowledgements before work. `Some(None)`: over.
    pub fn try_next(&self) -> Option<Option<ToWorker>> {
        let mut w = self.inner.lock();
        if let Some(x) = w.welcome.take() {
            return Some(Some(ToWorker::Welcome(x)));
        }
        if let Some(x) = w.credit_acks.pop_front() {
            return Some(Some(ToWorker::CreditAck(x)));
        }
        if !w.acks.is_empty() {
            return Some(Some(ToWorker::ResultAcks(std::mem::take(&mut w.acks))));
        }
        if !w.cancels.is_empty() {
            return Some(Some(ToWorker::Cancel(std::mem::take(&mut w.cancels))));
        }
        if !w.assigns.is_empty() {
            self.unread.store(0, Relaxed);
            return Some(Some(ToWorker::Assign(std::mem::take(&mut w.assigns))));
        }
        if std::mem::take(&mut w.ping) {
            return Some(Some(ToWorker::Ping));
        }
        if let Some(x) = w.go_away.take() {
            return Some(Some(ToWorker::GoAway(x)));
        }
        w.closed.then_some(None)
    }

    /// Waits for the next thing to tell; `None`: over. Cancel safe.
    pub async fn next(&self) -> Option<ToWorker> {
        loop {
            let changed = self.changed.notified();
            if let Some(item) = self.try_next() {
                return item;
            }
            changed.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dispatch::message::AckStatus;
    use crate::model::ids::{RunId, TaskPath, TaskType};

    fn work(token: &str, size: usize) -> Assignment {
        Assignment {
            token: token.into(),
            run: RunId::new("r").unwrap(),
            path: TaskPath::parse("t").unwrap(),
            attempt: 1,
            task_type: TaskType::new("t").unwrap(),
            input: vec![b'1'; size].into(),
            deadline: None,
            trace: "".into(),
        }
    }

    #[test]
    fn work_that_is_not_read_fills_an_outbox_until_it_is_read_or_taken_back() {
        let outbox = Outbox::default();
        outbox.assign(work("a", UNREAD_MAX - 1));
        assert!(!outbox.is_full());
        outbox.assign(work("b", 1));
        assert!(outbox.is_full() && !outbox.overflows());
        outbox.cancel("b".into());
        assert!(!outbox.is_full());
        outbox.assign(work("c", 8 * UNREAD_MAX));
        assert!(outbox.overflows());
        assert!(matches!(outbox.try_next(), Some(Some(ToWorker::Assign(all))) if all.len() == 2));
        assert!(!outbox.is_full());
    }

    #[test]
    fn who_does_not_read_what_became_of_results_is_left() {
        let outbox = Outbox::default();
        let ack = || ResultAck { token: String::new(), status: AckStatus::Unknown, message: String::new() };
        for _ in 0..ACKS_MAX {
            outbox.ack(ack());
        }
        assert!(matches!(outbox.try_next(), Some(Some(ToWorker::ResultAcks(all))) if all.len() == ACKS_MAX));
        for _ in 0..=ACKS_MAX {
            outbox.ack(ack());
        }
        assert!(matches!(outbox.try_next(), Some(None)));
    }
}
