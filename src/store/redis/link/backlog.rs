//! What was asked of one connection, in order: what waits to be written, and what was written and not answered.
//!
//! ```text
//! push ──► waiting ──take──► in flight ──front, answered──► the caller
//!            ▲  │  ▲            │
//!   withdraw ┘  │  └─give_back──┤ never written
//!               ▼               ▼ lost: perhaps written
//!         not sent: too late    the caller is told that it may have happened
//! ```
//!
//! Invariants
//! - First in, first out: nothing overtakes, neither after a failed write nor over a change of connections.
//! - An entry is written at most once, or on no connection at all. What may have been written never comes back.
//! - Bounded in entries (waiting and in flight together) and in bytes that wait.
//!
//! It is a machine without I/O; `connection.rs` drives it, and callers by [`super::Link`].

use super::wire::Value;
use std::collections::VecDeque;
use tokio::time::Instant;

/// What becomes of commands while there is no connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    /// They wait for one, each for a bounded time.
    Queue,
    /// They fail at once.
    FailFast,
}

/// How much may wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Commands that wait or are not answered yet.
    pub items: usize,
    /// Bytes of commands that wait.
    pub bytes: usize,
    /// While there is no connection.
    pub policy: Policy,
}

impl Default for Limits {
    fn default() -> Self {
        Self { items: 10_000, bytes: 64 << 20, policy: Policy::Queue }
    }
}

/// Why an entry was not taken. Nothing was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refused {
    /// There are as many as may be.
    Full,
    /// There is no connection, and nothing waits for one.
    Disconnected,
}

/// Names an entry; rises.
pub(super) type Id = u64;

/// A command that waits.
#[derive(Debug)]
struct Waiting<A> {
    id: Id,
    packed: Vec<u8>,
    replies: usize,
    write_by: Instant,
    since: Instant,
    answer: A,
}

/// A command that was given to the connection.
#[derive(Debug)]
pub(super) struct InFlight<A> {
    id: Id,
    replies: usize,
    write_by: Instant,
    since: Instant,
    taken: Instant,
    /// Replies that came, if there is to be more than one.
    earlier: Vec<Value>,
    answer: A,
}

/// See the module. `A` is how a caller is answered.
#[derive(Debug)]
pub(super) struct Backlog<A> {
    limits: Limits,
    waiting: VecDeque<Waiting<A>>,
    bytes: usize,
    in_flight: VecDeque<InFlight<A>>,
    next: Id,
    connected: bool,
    /// Nothing more is written on this connection.
    retiring: bool,
}

/// How much there is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Load {
    pub(super) queued: usize,
    pub(super) queued_bytes: usize,
    pub(super) in_flight: usize,
    /// When the oldest that is not answered was asked.
    pub(super) oldest: Option<Instant>,
    /// When the oldest in flight was given to the connection.
    pub(super) waits_since: Option<Instant>,
}

impl<A> Backlog<A> {
    pub(super) fn new(limits: Limits) -> Self {
        Self {
            limits,
            waiting: VecDeque::new(),
            bytes: 0,
            in_flight: VecDeque::new(),
            next: 0,
            connected: false,
            retiring: false,
        }
    }

    /// Appends a command that has `replies` replies. It may be written until `write_by`.
    ///
    /// # Errors
    /// There is no room, or no connection and the policy says not to wait. The answer comes back.
    pub(super) fn push(
        &mut self,
        packed: Vec<u8>,
        replies: usize,
        now: Instant,
        write_by: Instant,
        answer: A,
    ) -> Result<Id, (Refused, A)> {
        if !self.connected && self.limits.policy == Policy::FailFast {
            return Err((Refused::Disconnected, answer));
        }
        // A single large command finds room in an empty backlog.
        let bytes = self.bytes + packed.len();
        let room = self.waiting.is_empty() || bytes <= self.limits.bytes;
        if !room || self.waiting.len() + self.in_flight.len() >= self.limits.items {
            return Err((Refused::Full, answer));
        }
        Ok(self.append(packed, replies, now, write_by, answer))
    }

    /// Appends what the link itself asks: it is small, seldom, and not refused.
    pub(super) fn append(
        &mut self,
        packed: Vec<u8>,
        replies: usize,
        now: Instant,
        write_by: Instant,
        answer: A,
    ) -> Id {
        let id = self.next;
        self.next += 1;
        self.bytes += packed.len();
        self.waiting.push_back(Waiting { id, packed, replies, write_by, since: now, answer });
        id
    }

    /// Takes back what was not written. False: it may have been.
    pub(super) fn withdraw(&mut self, id: Id) -> bool {
        let Ok(at) = self.waiting.binary_search_by_key(&id, |w| w.id) else { return false };
        let Some(waiting) = self.waiting.remove(at) else { return false };
        self.bytes -= waiting.packed.len();
        true
    }

    /// Moves the first commands, about `most` bytes but at least one command, from waiting to in flight, and their bytes
    /// to `batch`. What waited too long goes to `late` instead.
    pub(super) fn take(
        &mut self,
        now: Instant,
        most: usize,
        batch: &mut Vec<(Id, Vec<u8>)>,
        late: &mut Vec<A>,
    ) {
        let mut size = 0;
        while !self.retiring
            && let Some(first) = self.waiting.front()
            && (size == 0 || size + first.packed.len() <= most)
            && let Some(first) = self.waiting.pop_front()
        {
            self.bytes -= first.packed.len();
            if first.write_by <= now {
                late.push(first.answer);
                continue;
            }
            size += first.packed.len();
            let Waiting { id, packed, replies, write_by, since, answer } = first;
            batch.push((id, packed));
            self.in_flight.push_back(InFlight {
                id,
                replies,
                write_by,
                since,
                taken: now,
                earlier: Vec::new(),
                answer,
            });
        }
    }

    /// The last commands taken were never written: they are the first to wait again.
    pub(super) fn give_back(&mut self, unwritten: Vec<(Id, Vec<u8>)>) {
        for (id, packed) in unwritten.into_iter().rev() {
            // One that has a reply though it was never written is not asked again.
            let Some(last) = self.in_flight.pop_back_if(|last| last.id == id) else { return };
            let InFlight { replies, write_by, since, answer, .. } = last;
            self.bytes += packed.len();
            self.waiting.push_front(Waiting { id, packed, replies, write_by, since, answer });
        }
    }

    /// A reply came. It belongs to the first command in flight; with the last of its replies that is answered.
    /// None: more are to come. Err: nobody asked.
    pub(super) fn replied(&mut self, value: Value) -> Result<Option<(A, Value, Vec<Value>)>, ()> {
        let first = self.in_flight.front_mut().ok_or(())?;
        if first.earlier.len() + 1 < first.replies {
            first.earlier.push(value);
            return Ok(None);
        }
        let first = self.in_flight.pop_front().ok_or(())?;
        Ok(Some((first.answer, value, first.earlier)))
    }

    /// A connection is there.
    pub(super) fn connect(&mut self) {
        (self.connected, self.retiring) = (true, false);
    }

    /// Nothing more is to be written on this connection; what is in flight may still be answered.
    pub(super) fn retire(&mut self) {
        self.retiring = true;
    }

    /// Whether nothing more is to be written on this connection.
    pub(super) fn is_retiring(&self) -> bool {
        self.retiring
    }

    /// Whether the connection has nothing more to do.
    pub(super) fn is_retired(&self) -> bool {
        self.retiring && self.in_flight.is_empty()
    }

    /// The connection is gone. Returns what may have been written, and what is not to wait for the next.
    pub(super) fn disconnect(&mut self) -> (Vec<A>, Vec<A>) {
        self.connected = false;
        let lost = self.in_flight.drain(..).map(|f| f.answer).collect();
        let mut unsent = Vec::new();
        if self.limits.policy == Policy::FailFast {
            self.bytes = 0;
            unsent.extend(self.waiting.drain(..).map(|w| w.answer));
        }
        (lost, unsent)
    }

    /// Whether there is a connection.
    pub(super) fn is_connected(&self) -> bool {
        self.connected
    }

    /// How much there is.
    pub(super) fn load(&self) -> Load {
        let oldest = self.in_flight.front().map(|f| f.since).or(self.waiting.front().map(|w| w.since));
        Load {
            queued: self.waiting.len(),
            queued_bytes: self.bytes,
            in_flight: self.in_flight.len(),
            oldest,
            waits_since: self.in_flight.front().map(|f| f.taken),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::time::Duration;

    fn limits(items: usize, bytes: usize, policy: Policy) -> Limits {
        Limits { items, bytes, policy }
    }

    fn push(b: &mut Backlog<u32>, n: u32, size: usize) -> Result<Id, Refused> {
        let now = Instant::now();
        b.push(vec![b'x'; size], 1, now, now + Duration::from_secs(5), n).map_err(|(why, _)| why)
    }

    fn take(b: &mut Backlog<u32>, most: usize) -> (Vec<(Id, Vec<u8>)>, Vec<u32>) {
        let (mut batch, mut late) = (Vec::new(), Vec::new());
        b.take(Instant::now(), most, &mut batch, &mut late);
        (batch, late)
    }

    fn answered(b: &mut Backlog<u32>) -> Option<u32> {
        b.replied(Value::Nil).ok().flatten().map(|(n, _, _)| n)
    }

    #[test]
    fn what_is_written_in_part_is_lost_and_what_was_not_begun_comes_back_first() {
        let mut b = Backlog::new(limits(10, 1_000, Policy::Queue));
        b.connect();
        for n in 0..4 {
            push(&mut b, n, 10).unwrap();
        }
        let (batch, _) = take(&mut b, 100);
        assert_eq!(batch.len(), 4);
        push(&mut b, 4, 10).unwrap();
        // Fifteen bytes went out: the second is cut, the third was not begun.
        b.give_back(batch.into_iter().skip(2).collect());
        assert_eq!(b.disconnect(), (vec![0, 1], vec![]));
        b.connect();
        assert_eq!(take(&mut b, 100).0.len(), 3);
        let order: Vec<_> = std::iter::from_fn(|| answered(&mut b)).collect();
        assert_eq!(order, [2, 3, 4]);
        let nothing = Load { queued: 0, queued_bytes: 0, in_flight: 0, oldest: None, waits_since: None };
        assert_eq!(b.load(), nothing);
    }

    #[test]
    fn it_is_bounded_in_items_and_in_bytes() {
        let mut b = Backlog::new(limits(3, 100, Policy::Queue));
        assert_eq!(push(&mut b, 0, 500), Ok(0), "one large command finds room where nothing waits");
        assert_eq!(push(&mut b, 1, 1), Err(Refused::Full));
        assert!(b.withdraw(0) && !b.withdraw(0));
        assert_eq!(push(&mut b, 2, 60), Ok(1));
        assert_eq!(push(&mut b, 3, 60), Err(Refused::Full));
        assert_eq!(push(&mut b, 3, 40), Ok(2));
        b.connect();
        assert_eq!(take(&mut b, 1).0.len(), 1, "at least one");
        assert_eq!(push(&mut b, 4, 60), Ok(3));
        assert_eq!(push(&mut b, 5, 0), Err(Refused::Full), "what is in flight counts");
        assert!(!b.withdraw(1), "it may have been written");
        assert!(b.withdraw(2));
    }

    #[test]
    fn to_fail_fast_is_to_keep_nothing_for_later() {
        let mut b = Backlog::new(limits(9, 100, Policy::FailFast));
        assert_eq!(push(&mut b, 0, 1), Err(Refused::Disconnected));
        b.connect();
        for n in 1..4 {
            push(&mut b, n, 1).unwrap();
        }
        take(&mut b, 1);
        assert_eq!(b.disconnect(), (vec![1], vec![2, 3]));
        assert_eq!(b.load().queued_bytes, 0);
    }

    #[test]
    fn what_waited_too_long_is_not_written() {
        let mut b = Backlog::new(Limits::default());
        b.connect();
        let now = Instant::now();
        let soon = now + Duration::from_secs(1);
        for (n, write_by) in [(0, now), (1, soon), (2, now)] {
            b.push(vec![0; 10], 1, now, write_by, n).unwrap();
        }
        assert_eq!(take(&mut b, 100), (vec![(1, vec![0; 10])], vec![0, 2]));
        assert_eq!(answered(&mut b), Some(1));
    }

    #[test]
    fn a_connection_that_retires_writes_nothing_more_and_hears_the_rest() {
        let mut b = Backlog::new(Limits::default());
        b.connect();
        push(&mut b, 0, 1).unwrap();
        take(&mut b, 100);
        b.retire();
        push(&mut b, 1, 1).unwrap();
        assert!(take(&mut b, 100).0.is_empty() && !b.is_retired());
        assert_eq!(answered(&mut b), Some(0));
        assert!(b.is_retired());
        assert_eq!(b.disconnect(), (vec![], vec![]));
        b.connect();
        assert_eq!(take(&mut b, 100).0.len(), 1);
    }

    #[test]
    fn a_command_of_several_replies_is_answered_with_the_last() {
        let mut b = Backlog::new(Limits::default());
        b.connect();
        let now = Instant::now();
        b.push(vec![0], 3, now, now + Duration::from_secs(1), 7).unwrap();
        take(&mut b, 100);
        assert_eq!(b.replied(Value::Int(1)), Ok(None));
        assert_eq!(b.replied(Value::Int(2)), Ok(None));
        let all = (7, Value::Int(3), vec![Value::Int(1), Value::Int(2)]);
        assert_eq!(b.replied(Value::Int(3)), Ok(Some(all)));
        assert_eq!(b.replied(Value::Int(4)), Err(()));
    }

    #[derive(Debug, Clone)]
    enum Op {
        Push(usize),
        Take(usize),
        Reply,
        Withdraw(u64),
        Fail(usize),
    }

    fn ops() -> impl Strategy<Value = Op> {
        prop_oneof![
            4 => (0_usize..50).prop_map(Op::Push),
            3 => (1_usize..120).prop_map(Op::Take),
            3 => Just(Op::Reply),
            1 => (0_u64..60).prop_map(Op::Withdraw),
            1 => (0_usize..200).prop_map(Op::Fail),
        ]
    }

    proptest! {
        /// Against a list of what each connection was given.
        #[test]
        fn nothing_overtakes_and_nothing_is_written_twice(all in proptest::collection::vec(ops(), 1..120)) {
            let mut b = Backlog::new(limits(20, 300, Policy::Queue));
            b.connect();
            let (mut n, mut written, mut ended) = (0, Vec::new(), Vec::new());
            // What was taken and is not answered: its number and its bytes.
            let mut open: Vec<(u32, (Id, Vec<u8>))> = Vec::new();
            let mut sizes = Vec::new();
            for op in all {
                match op {
                    Op::Push(size) => {
                        if push(&mut b, n, size).is_ok() {
                            sizes.push((n, size));
                            n += 1;
                        }
                    }
                    Op::Take(most) => {
                        let (batch, late) = take(&mut b, most);
                        prop_assert!(late.is_empty());
                        for packed in batch {
                            let number = sizes.remove(0).0;
                            prop_assert_eq!(packed.0, u64::from(number));
                            open.push((number, packed));
                            written.push(number);
                        }
                    }
                    Op::Reply => {
                        let reply = answered(&mut b);
                        prop_assert_eq!(reply, open.first().map(|o| o.0));
                        if reply.is_some() {
                            ended.push(open.remove(0).0);
                        }
                    }
                    Op::Withdraw(id) => {
                        let there = sizes.iter().position(|s| u64::from(s.0) == id);
                        prop_assert_eq!(b.withdraw(id), there.is_some());
                        there.map(|at| sizes.remove(at));
                    }
                    Op::Fail(unwritten) => {
                        let at = open.len().saturating_sub(unwritten);
                        let back: Vec<_> = open.drain(at..).collect();
                        written.truncate(written.len() - back.len());
                        for (number, packed) in back.iter().rev() {
                            sizes.insert(0, (*number, packed.1.len()));
                        }
                        b.give_back(back.into_iter().map(|o| o.1).collect());
                        let lost: Vec<_> = open.drain(..).map(|o| o.0).collect();
                        prop_assert_eq!(b.disconnect(), (lost, vec![]));
                        b.connect();
                    }
                }
                prop_assert_eq!(b.load().queued, sizes.len());
                prop_assert_eq!(b.load().queued_bytes, sizes.iter().map(|s| s.1).sum::<usize>());
                prop_assert!(written.is_sorted_by(|a, b| a < b), "{:?}", written);
            }
        }
    }
}
