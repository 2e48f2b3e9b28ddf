//! What waits to be told to one worker. Filled by effects, which never await; emptied by the stream.
//!
//! Bounded by construction: assignments by credit, acknowledgements by what the worker has in flight,
//! cancels likewise, and pings and credit acks replace each other.

use super::message::{Assignment, ResultAck, Subscription, ToWorker, Welcome};
use crate::model::time::Span;
use parking_lot::Mutex;
use std::collections::VecDeque;
use tokio::sync::Notify;

/// See the module.
#[derive(Debug, Default)]
pub struct Outbox {
    inner: Mutex<Waiting>,
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
        self.put(|w| w.acks.push(ack));
    }
    /// Work.
    pub fn assign(&self, assignment: Assignment) {
        self.put(|w| w.assigns.push(assignment));
    }
    /// Work no longer wanted. An assignment that has not left yet is simply taken back.
    pub fn cancel(&self, token: String) {
        self.put(|w| {
            let before = w.assigns.len();
            w.assigns.retain(|a| a.token != token);
            if w.assigns.len() == before {
                w.cancels.push(token);
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
