use super::*;
use crate::engine::limits::{LEASE, UNACKED};
use crate::model::home::{Bucket, Claim, Semaphore};
use crate::model::ids::{Nonce, Partition, TaskPath};
use crate::model::outbox::Parcel;
use crate::model::time::{LeaseTime, Span};
use proptest::prelude::*;
use std::collections::BTreeSet;

const KEY: &str = "env-a";

/// A home record and what was sent from it.
struct Stage {
    id: RunId,
    home: Option<(Home, Prefix)>,
    now: Timestamp,
    nonce: u8,
    sent: Vec<Delivery>,
    wake: Option<WakeOp>,
}

impl Stage {
    fn new(id: RunId) -> Self {
        let now = Timestamp::from_millis(1_000_000);
        Self { id, home: None, now, nonce: 0, sent: Vec::new(), wake: None }
    }

    fn tell(&mut self, command: Command) -> Result<Outcome, Refusal> {
        self.nonce = self.nonce.wrapping_add(1);
        let env = Env {
            now: self.now,
            lease_now: LeaseTime(0),
            partition: Partition(0),
            nonce: Nonce([self.nonce; 16]),
            random: u64::from(self.nonce),
            lease: LEASE,
            unacked: UNACKED,
        };
        let mut txn = HomeTxn::new(&self.id, self.home.as_ref().map(|(h, p)| (h, *p)), env);
        let outcome = txn.apply(&command);
        if let Some(decision) = txn.finish() {
            self.sent.extend(decision.deliveries);
            self.wake = Some(decision.write.wake);
            if let (Some(home), Write::Put(bytes)) = (&decision.home, &decision.write.write) {
                assert_eq!(record::homes::decode(&bytes[Prefix::LEN..]).as_ref(), Ok(home));
            }
            self.home = decision.home.map(|h| (h, decision.prefix));
        }
        outcome
    }

    fn wake(&mut self) {
        self.tell(Command::Wake { sessions: std::collections::BTreeMap::new() }).unwrap();
    }

    fn acquire(&mut self, run: &str, score: i64, limit: u32) -> Result<Outcome, Refusal> {
        let task = TaskPath::parse("t").unwrap();
        let command = HomeCommand::Acquire { key: KEY.into(), limit, claim: claim(run), task, score };
        self.tell(Command::Home(command))
    }

    fn release(&mut self, run: &str) {
        self.tell(Command::Home(HomeCommand::Release { claim: claim(run) })).unwrap();
    }

    /// Runs that were told since the last look that they have a slot, and the numbers of the messages.
    fn granted(&mut self) -> Vec<(String, u32)> {
        let sent = std::mem::take(&mut self.sent);
        sent.into_iter().map(|d| (d.to.as_str().to_owned(), d.sequence)).collect()
    }

    fn settle(&mut self, sequence: u32, answer: Answer) {
        self.tell(Command::Settled { sequence, answer }).unwrap();
    }

    fn semaphore(&self) -> Option<&Semaphore> {
        match &self.home {
            Some((Home::Semaphore(s), _)) => Some(s),
            _ => None,
        }
    }
}

fn claim(run: &str) -> Claim {
    Claim { run: RunId::new(run).unwrap(), ticket: 1 }
}

fn names(granted: &[(String, u32)]) -> Vec<&str> {
    granted.iter().map(|(name, _)| name.as_str()).collect()
}

#[test]
fn a_slot_goes_to_one_after_the_other_the_oldest_run_first() {
    let mut s = Stage::new(Semaphore::home(KEY));
    s.acquire("a", 10, 1).unwrap();
    s.acquire("late", 30, 1).unwrap();
    s.acquire("early", 20, 1).unwrap();
    s.acquire("early", 20, 1).unwrap(); // Told twice.
    let granted = s.granted();
    assert_eq!(names(&granted), ["a"]);
    s.settle(granted[0].1, Answer::Done);
    s.release("a");
    s.release("a");
    assert_eq!(names(&s.granted()), ["early"]);
    s.release("early");
    assert_eq!(names(&s.granted()), ["late"]);
    s.release("late");
    assert_eq!(s.home, None, "nothing stands there any more");
    assert_eq!(s.wake, Some(WakeOp::Remove));
}

#[test]
fn a_claim_that_its_run_does_not_know_gives_its_slot_to_the_next() {
    let mut s = Stage::new(Semaphore::home(KEY));
    s.acquire("gone", 1, 1).unwrap();
    s.acquire("b", 2, 1).unwrap();
    let granted = s.granted();
    s.settle(granted[0].1, Answer::Gone);
    let granted = s.granted();
    assert_eq!(names(&granted), ["b"]);
    s.settle(granted[0].1, Answer::Done);
    // Whoever has held it for long is asked, with the message that granted it.
    s.now = s.now.plus(Span::secs(31));
    s.wake();
    let asked = s.granted();
    assert_eq!(asked, [("b".to_owned(), granted[0].1)]);
    s.settle(asked[0].1, Answer::Done);
    assert_eq!(s.semaphore().unwrap().holders.len(), 1);
    s.settle(asked[0].1, Answer::Gone);
    assert_eq!(s.home, None);
}

#[test]
fn a_copy_asks_all_that_hold_a_slot_at_once() {
    let mut s = Stage::new(Semaphore::home(KEY));
    assert!(!ask_anew(&mut Home::Bucket(Bucket { key: KEY.into(), paid_until: s.now }), s.now));
    s.acquire("a", 1, 2).unwrap();
    s.acquire("b", 2, 2).unwrap();
    for (_, number) in s.granted() {
        s.settle(number, Answer::Done);
    }
    s.now = s.now.plus(Span::secs(1));
    s.wake();
    assert_eq!(names(&s.granted()), [""; 0]);
    let now = s.now;
    assert!(ask_anew(&mut s.home.as_mut().unwrap().0, now));
    assert_eq!(wake_at(&s.home.as_ref().unwrap().0, now), now);
    s.wake();
    let asked = s.granted();
    assert_eq!(names(&asked), ["a", "b"]);
    s.settle(asked[0].1, Answer::Gone);
    s.settle(asked[1].1, Answer::Done);
    assert_eq!(s.semaphore().unwrap().holders.len(), 1);
}

#[test]
fn grants_come_again_until_they_are_answered() {
    let mut s = Stage::new(Semaphore::home(KEY));
    s.acquire("a", 1, 1).unwrap();
    let first = s.granted();
    let again = s.now.plus(Span::secs(5));
    assert_eq!(s.wake, Some(WakeOp::Set(again)));
    s.now = again;
    s.wake();
    assert_eq!(s.granted(), first);
    s.settle(first[0].1, Answer::Done);
    s.now = s.now.plus(Span::secs(5));
    s.wake();
    assert_eq!(s.granted(), []);
}

#[test]
fn a_limit_may_change_and_waiters_are_bounded() {
    let mut s = Stage::new(Semaphore::home(KEY));
    for run in ["a", "b", "c"] {
        s.acquire(run, 1, 2).unwrap();
    }
    assert_eq!(names(&s.granted()), ["a", "b"]);
    s.acquire("d", 1, 1).unwrap();
    s.release("a");
    assert_eq!(s.granted(), [], "there is one slot now, and it is taken");
    s.release("b");
    assert_eq!(names(&s.granted()), ["c"]);
    s.acquire("d", 1, 9).unwrap();
    assert_eq!((s.granted().len(), s.semaphore().unwrap().limit), (0, 1), "asked again, it changes nothing");
    for n in 0..999 {
        s.acquire(&format!("w{n}"), 1, 1).unwrap();
    }
    assert_eq!(s.acquire("one-more", 1, 1), Err(Refusal::Full));
}

#[test]
fn a_bucket_lets_a_burst_through_and_then_keeps_the_pace() {
    let mut s = Stage::new(Bucket::home(KEY));
    let take = Command::Home(HomeCommand::Take { key: KEY.into(), limit: 4, per: Span::secs(8) });
    let mut waits = Vec::new();
    for _ in 0..7 {
        let Ok(Outcome::Granted { at }) = s.tell(take.clone()) else { panic!("not granted") };
        waits.push(at.since(s.now).as_millis() / 1_000);
    }
    assert_eq!(waits, [0, 0, 0, 0, 2, 4, 6]);
    s.now = s.now.plus(Span::secs(14));
    s.wake();
    assert_eq!(s.home, None, "full again");
    // Never more than `limit` within any `per` but for the burst at its start: two windows hold at most twice as many.
    assert_eq!(s.tell(take), Ok(Outcome::Granted { at: s.now }));
}

#[test]
fn commands_to_runs_are_refused() {
    let mut s = Stage::new(Semaphore::home(KEY));
    assert_eq!(s.tell(Command::Retry), Err(Refusal::NoRun));
    let mut s = Stage::new(RunId::new("downbeat.later.x").unwrap());
    assert_eq!(s.acquire("a", 1, 1), Err(Refusal::NoRun));
    assert_eq!(s.home, None);
}

#[derive(Debug, Clone)]
enum Move {
    Acquire(u8, i64),
    Release(u8),
    Answer(usize, bool),
    Wait(i64),
}

proptest! {
    /// Whatever comes in whatever order: never more holders than slots, nobody waits while there is a free one, and
    /// every holder has been told or is being told.
    #[test]
    fn slots_are_never_passed_and_never_left_free(
        moves in proptest::collection::vec(
            prop_oneof![
                (0u8..6, 0i64..3).prop_map(|(r, s)| Move::Acquire(r, s)),
                (0u8..6).prop_map(Move::Release),
                (0usize..8, any::<bool>()).prop_map(|(n, ok)| Move::Answer(n, ok)),
                (1i64..40).prop_map(Move::Wait),
            ],
            1..80,
        )
    ) {
        let mut s = Stage::new(Semaphore::home(KEY));
        let mut told: Vec<Delivery> = Vec::new();
        let mut ever: BTreeSet<(RunId, u32)> = BTreeSet::new();
        for m in moves {
            match m {
                Move::Acquire(run, score) => drop(s.acquire(&format!("r{run}"), score, 2)),
                Move::Release(run) => s.release(&format!("r{run}")),
                Move::Answer(n, ok) => {
                    if let Some(d) = told.get(n) {
                        let answer = if ok { Answer::Done } else { Answer::Gone };
                        s.settle(d.sequence, answer);
                    }
                }
                Move::Wait(secs) => {
                    s.now = s.now.plus(Span::secs(secs));
                    s.wake();
                }
            }
            told.append(&mut s.sent);
            ever.extend(told.iter().map(|d| {
                let Parcel::Command(Command::Permitted { ticket, .. }) = &d.parcel else { panic!("{d:?}") };
                (d.to.clone(), *ticket)
            }));
            let Some(semaphore) = s.semaphore() else { continue };
            prop_assert!(semaphore.holders.len() <= 2);
            prop_assert!(semaphore.holders.len() == 2 || semaphore.waiters.is_empty());
            for claim in semaphore.holders.keys() {
                let on_its_way = semaphore.outbox.pending.values().any(|m| m.what == *claim);
                prop_assert!(on_its_way || ever.contains(&(claim.run.clone(), claim.ticket)));
            }
        }
    }
}
