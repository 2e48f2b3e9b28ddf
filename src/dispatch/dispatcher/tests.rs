use super::*;
use crate::dispatch::message::ToWorker;
use crate::model::ids::{RunId, TaskPath};

fn ty(s: &str) -> TaskType {
    TaskType::new(s).unwrap()
}
fn queue(name: &str) -> QueueName {
    name.parse().unwrap()
}
/// To a type with labels, written as the queue that asks for just these.
fn sub(name: &str, credit: u32) -> Subscription {
    let QueueName { task_type, labels } = queue(name);
    Subscription { task_type, credit, labels }
}
fn work(token: &str, t: &str) -> Assignment {
    Assignment {
        token: token.into(),
        run: RunId::new("r").unwrap(),
        path: TaskPath::parse("a").unwrap(),
        attempt: 1,
        task_type: ty(t),
        input: bytes::Bytes::from_static(b"null"),
        deadline: None,
        trace: "".into(),
    }
}
fn session(n: u8) -> (SessionId, u32) {
    (SessionId::new(&format!("s0-{n}")).unwrap(), 1)
}
fn opened(d: &mut Dispatcher, n: u8, subs: &[Subscription], now: Instant) -> (SessionKey, Arc<Outbox>) {
    d.open(Some(session(n)), "w".into(), subs, None, now)
}
fn give(d: &mut Dispatcher, t: &str, token: &str, now: Instant) -> bool {
    d.reserve(&queue(t), &[]).is_some_and(|(r, _)| d.assign(r, work(token, t), now).is_ok())
}

#[tokio::test]
async fn a_resumed_session_that_holds_work_is_given_more_of_it() {
    let now = Instant::now();
    let mut d = Dispatcher::default();
    let (key, _) = opened(&mut d, 1, &[], now);
    d.adopt(key, "t1".into(), ty("a"), now);
    assert!(!give(&mut d, "a", "t2", now), "no credit was granted yet");
    d.set_credit(key, &sub("a", 2));
    assert!(give(&mut d, "a", "t2", now));
    assert!(!give(&mut d, "a", "t3", now));
}

#[tokio::test]
async fn a_stream_lacks_a_token_that_it_was_not_given() {
    let now = Instant::now();
    let later = now + Duration::from_secs(1);
    let mut d = Dispatcher::default();
    let (key, _) = opened(&mut d, 1, &[sub("a", 2)], now);
    let (id, _) = session(1);
    assert!(give(&mut d, "a", "t1", now));
    assert_eq!(d.lacks(&id, 1, "t1", later), None);
    assert_eq!(d.lacks(&id, 1, "t2", later), Some(key));
    assert_eq!(
        d.lacks(&id, 0, "t2", later),
        None,
        "it was given under an earlier epoch, which has an end of its own"
    );
    assert_eq!(d.lacks(&id, 2, "t2", later), Some(key), "the store has lost that epoch");
    assert_eq!(d.lacks(&id, 1, "t2", now - Duration::from_secs(1)), None, "it is just being opened");
    d.detach(key);
    assert_eq!(d.lacks(&id, 1, "t2", later), None);
}

#[tokio::test]
async fn never_more_is_held_than_credit() {
    let now = Instant::now();
    let mut d = Dispatcher::default();
    let (key, _) = opened(&mut d, 1, &[sub("a", 2)], now);
    assert!(give(&mut d, "a", "t1", now));
    let (reserved, _) = d.reserve(&queue("a"), &[]).unwrap();
    assert!(d.reserve(&queue("a"), &[]).is_none(), "a reservation counts");
    d.give_back(reserved);
    assert!(give(&mut d, "a", "t2", now));
    assert!(!give(&mut d, "a", "t3", now));
    d.settle(key, "t1");
    assert!(give(&mut d, "a", "t3", now));
    assert_eq!(d.held(key), 2);
}

#[tokio::test]
async fn credit_over_the_maximum_is_clamped_and_zero_pauses() {
    let now = Instant::now();
    let mut d = Dispatcher::default();
    let (key, _) = opened(&mut d, 1, &[], now);
    assert_eq!(d.set_credit(key, &sub("a", 5_000)), Some(sub("a", CREDIT_MAX)));
    assert_eq!(d.set_credit(key, &sub("a", 0)), Some(sub("a", 0)));
    assert!(d.reserve(&queue("a"), &[]).is_none());
}

#[tokio::test]
async fn lowered_credit_binds_a_reservation_under_way() {
    let now = Instant::now();
    let mut d = Dispatcher::default();
    let (key, _) = opened(&mut d, 1, &[sub("a", 1)], now);
    let (r, _) = d.reserve(&queue("a"), &[]).unwrap();
    d.set_credit(key, &sub("a", 0));
    assert!(d.assign(r, work("t", "a"), now).is_err());
    assert_eq!(d.held(key), 0);
    d.set_credit(key, &sub("a", 1));
    assert!(give(&mut d, "a", "t", now), "the failed assignment left no credit behind");
}

#[tokio::test]
async fn credit_of_a_result_carries_the_next_task_after_its_ack() {
    let now = Instant::now();
    let mut d = Dispatcher::default();
    let (key, outbox) = opened(&mut d, 1, &[sub("a", 1)], now);
    assert!(give(&mut d, "a", "t1", now));
    assert!(matches!(outbox.try_next(), Some(Some(super::super::message::ToWorker::Assign(_)))));
    assert!(d.reserve(&queue("a"), &[]).is_none());
    assert!(d.reserve_on_result(key, "other", &queue("a"), &[]).is_none());
    let (r, _) = d.reserve_on_result(key, "t1", &queue("a"), &[]).unwrap();
    d.settle(key, "t1");
    d.assign(r, work("t2", "a"), now).unwrap();
    assert_eq!(d.held(key), 1);
}

#[tokio::test]
async fn sessions_take_turns() {
    let now = Instant::now();
    let mut d = Dispatcher::default();
    let (a, _) = opened(&mut d, 1, &[sub("x", 10)], now);
    let (b, _) = opened(&mut d, 2, &[sub("x", 10)], now);
    for n in 0..6 {
        assert!(give(&mut d, "x", &format!("t{n}"), now));
    }
    assert_eq!((d.held(a), d.held(b)), (3, 3));
}

#[tokio::test]
async fn nobody_is_blamed_for_the_time_in_which_the_server_stood_still() {
    let t0 = Instant::now();
    let window = Span::secs(2);
    let at = |ms: u64| t0 + Duration::from_millis(ms);
    let mut d = Dispatcher::default();
    let (key, _) = opened(&mut d, 1, &[sub("a", 9)], t0);
    assert!(give(&mut d, "a", "t1", at(100)));
    assert!(give(&mut d, "a", "t2", at(200)));
    d.stood_still(at(25_300), Duration::from_secs(25));
    assert_eq!(d.check_acks(at(25_300), window), AckWork::default());
    assert_eq!(d.heard_and_silent(at(24_000)).1, []);
    // What was heard since it goes on is not heard in the future.
    d.heard(key, at(25_310));
    d.stood_still(at(25_320), Duration::from_secs(25));
    assert_eq!(d.heard_and_silent(at(25_321)).1, [key]);
    d.ack(key, &["t1".into()]);
    let work = d.check_acks(at(27_320), window);
    assert_eq!(work, AckWork { keep: vec!["t1".into()], lost: vec!["t2".into()] });
}

#[tokio::test]
async fn unacknowledged_work_stalls_at_half_the_window_and_returns_at_its_end() {
    let t0 = Instant::now();
    let window = Span::secs(2);
    let at = |ms: u64| t0 + Duration::from_millis(ms);
    let mut d = Dispatcher::default();
    let (key, _) = opened(&mut d, 1, &[sub("a", 9)], t0);
    assert!(give(&mut d, "a", "silent", t0));
    assert!(give(&mut d, "a", "acked", t0));
    assert!(give(&mut d, "a", "short", t0));
    d.ack(key, &["acked".into(), "short".into()]);
    d.settle(key, "short");
    assert_eq!(d.check_acks(at(900), window), AckWork::default());
    assert_eq!(d.check_acks(at(1_000), window), AckWork { keep: vec!["acked".into()], lost: vec![] });
    assert!(d.reserve(&queue("a"), &[]).is_none(), "stalled");
    assert_eq!(d.check_acks(at(2_000), window), AckWork { keep: vec![], lost: vec!["silent".into()] });
    assert_eq!(d.check_acks(at(9_000), window), AckWork::default());
}

#[tokio::test]
async fn a_stream_that_never_acknowledges_is_probed_with_one_task_in_longer_and_longer_intervals() {
    let t0 = Instant::now();
    let window = Span::secs(2);
    let at = |s: u64| t0 + Duration::from_secs(s);
    let mut d = Dispatcher::default();
    let (key, _) = opened(&mut d, 1, &[sub("a", 9)], t0);
    assert!(give(&mut d, "a", "t1", t0));
    assert!(give(&mut d, "a", "t2", t0));
    assert_eq!(d.check_acks(at(2), window).lost.len(), 2);
    for t in ["t1", "t2"] {
        d.settle(key, t);
    }
    d.check_acks(at(5), window);
    assert!(!give(&mut d, "a", "t3", at(5)), "left alone for four seconds");
    d.check_acks(at(6), window);
    assert!(give(&mut d, "a", "t3", at(6)));
    assert!(!give(&mut d, "a", "t4", at(6)), "one at a time");
    assert_eq!(d.check_acks(at(8), window).lost, ["t3".to_owned()]);
    d.settle(key, "t3");
    d.check_acks(at(15), window);
    assert!(!give(&mut d, "a", "t4", at(15)), "left alone for eight seconds");
    d.check_acks(at(16), window);
    assert!(give(&mut d, "a", "t4", at(16)));
    d.ack(key, &["t4".into()]);
    assert!(give(&mut d, "a", "t5", at(16)));
    assert!(give(&mut d, "a", "t6", at(16)), "an acknowledgement clears it");
}

#[tokio::test]
async fn a_lease_is_renewed_only_for_having_been_heard() {
    let t0 = Instant::now();
    let at = |s: u64| t0 + Duration::from_secs(s);
    let mut d = Dispatcher::default();
    let (key, _) = opened(&mut d, 1, &[sub("a", 1)], t0);
    let (heard, silent) = d.heard_and_silent(t0);
    assert_eq!((heard.len(), silent.len()), (1, 0));
    d.renewed(key, heard[0].at);
    assert_eq!(d.heard_and_silent(t0).0, []);
    d.heard(key, at(3));
    assert_eq!(d.heard_and_silent(t0).0[0].at, at(3));
    assert_eq!(d.heard_and_silent(at(4)).1, [key]);
}

#[tokio::test]
async fn a_late_ack_within_the_window_ends_the_stall_and_is_kept() {
    let t0 = Instant::now();
    let window = Span::secs(2);
    let mut d = Dispatcher::default();
    let (key, _) = opened(&mut d, 1, &[sub("a", 9)], t0);
    assert!(give(&mut d, "a", "t", t0));
    d.check_acks(t0 + Duration::from_millis(1_200), window);
    d.ack(key, &["t".into()]);
    let work = d.check_acks(t0 + Duration::from_millis(1_400), window);
    assert_eq!(work.keep, vec!["t".to_owned()]);
    assert!(d.reserve(&queue("a"), &[]).is_some());
}

#[tokio::test]
async fn a_new_stream_of_a_session_closes_the_old_one() {
    let now = Instant::now();
    let mut d = Dispatcher::default();
    let (old, outbox) = opened(&mut d, 1, &[sub("a", 1)], now);
    let (new, _) = d.open(Some((session(1).0, 2)), "w".into(), &[sub("a", 1)], None, now);
    assert_ne!(old, new);
    assert_eq!(outbox.try_next(), Some(None));
    assert!(give(&mut d, "a", "t", now));
    assert_eq!((d.held(old), d.held(new)), (0, 1));
}

#[tokio::test]
async fn claims_share_one_total_over_their_types() {
    let now = Instant::now();
    let mut d = Dispatcher::default();
    d.open(None, "http".into(), &[sub("a", 2), sub("b", 2)], Some(2), now);
    assert!(give(&mut d, "a", "1", now));
    assert!(give(&mut d, "b", "2", now));
    assert!(!give(&mut d, "a", "3", now));
}

#[tokio::test]
async fn revoked_work_that_has_not_left_is_taken_back_silently() {
    let now = Instant::now();
    let mut d = Dispatcher::default();
    let (key, outbox) = opened(&mut d, 1, &[sub("a", 1)], now);
    assert!(give(&mut d, "a", "t", now));
    d.revoke(&session(1).0, "t");
    assert_eq!(outbox.try_next(), None);
    assert_eq!(d.held(key), 0);
}

fn ended(outbox: &Outbox) -> bool {
    loop {
        match outbox.try_next() {
            Some(Some(_)) => {}
            Some(None) => return true,
            None => return false,
        }
    }
}

#[tokio::test]
async fn a_stream_that_goes_away_ends_once_its_worker_holds_nothing() {
    use crate::dispatch::message::{AckStatus, ResultAck, ToWorker};
    let now = Instant::now();
    let mut d = Dispatcher::default();
    let (_, idle) = opened(&mut d, 1, &[sub("a", 2)], now);
    let (busy_key, busy) = opened(&mut d, 2, &[sub("b", 2)], now);
    let (_, claim) = d.open(None, "c".into(), &[sub("c", 1)], Some(1), now);
    assert!(give(&mut d, "b", "t1", now));
    assert!(matches!(busy.try_next(), Some(Some(ToWorker::Assign(_)))));
    d.go_away(Span::secs(5));
    assert_eq!(idle.try_next(), Some(Some(ToWorker::GoAway(Span::secs(5)))));
    assert_eq!(idle.try_next(), Some(None));
    assert!(!ended(&busy) && !ended(&claim));
    let ack = ResultAck { token: "t1".into(), status: AckStatus::Accepted, message: String::new() };
    d.acknowledge(busy_key, ack.clone());
    assert_eq!(busy.try_next(), Some(Some(ToWorker::ResultAcks(vec![ack]))), "before the end");
    assert_eq!(busy.try_next(), Some(None));
}

#[tokio::test]
async fn streams_that_are_ended_keep_what_their_workers_hold() {
    let now = Instant::now();
    let mut d = Dispatcher::default();
    let (key, outbox) = opened(&mut d, 1, &[sub("a", 2)], now);
    let (_, claim) = d.open(None, "c".into(), &[sub("c", 1)], Some(1), now);
    assert!(give(&mut d, "a", "t1", now));
    d.go_away(Span::secs(5));
    d.end_streams();
    assert!(ended(&outbox) && !ended(&claim));
    assert!(d.holds(key, "t1"), "it resumes elsewhere with it");
}

/// The session that would be given a task of this queue.
fn next(d: &mut Dispatcher, name: &str, ahead: &[&str]) -> Option<SessionKey> {
    let ahead: Vec<Labels> = ahead.iter().map(|name| queue(name).labels).collect();
    let (reservation, _) = d.reserve(&queue(name), &ahead)?;
    let session = reservation.session;
    d.give_back(reservation);
    Some(session)
}

#[tokio::test]
async fn a_task_goes_only_to_workers_that_have_all_of_its_labels() {
    let now = Instant::now();
    let mut d = Dispatcher::default();
    let (plain, _) = opened(&mut d, 1, &[sub("a", 1)], now);
    let (gpu, _) = opened(&mut d, 2, &[sub("a;gpu=true", 1)], now);
    let (both, _) = opened(&mut d, 3, &[sub("a;gpu=true;region=eu", 1)], now);
    assert_eq!(next(&mut d, "a;gpu=true;region=eu", &[]), Some(both));
    assert_eq!(next(&mut d, "a;region=eu", &[]), Some(both));
    assert_eq!(next(&mut d, "a;region=us", &[]), None);
    assert_eq!(next(&mut d, "b;gpu=true", &[]), None);
    // What fewer can do is kept for last.
    for (key, token) in [(plain, "t1"), (gpu, "t2"), (both, "t3")] {
        assert_eq!(next(&mut d, "a", &[]), Some(key));
        assert!(give(&mut d, "a", token, now));
    }
    assert_eq!(next(&mut d, "a", &[]), None);
    d.settle(gpu, "t2");
    assert_eq!(next(&mut d, "a;gpu=true", &[]), Some(gpu));
    d.close(gpu);
    assert_eq!(next(&mut d, "a;gpu=true", &[]), None);
}

#[tokio::test]
async fn a_worker_is_kept_for_what_is_older_and_only_it_can_do() {
    let now = Instant::now();
    let mut d = Dispatcher::default();
    let (gpu, _) = opened(&mut d, 1, &[sub("a;gpu=true", 2)], now);
    assert_eq!(next(&mut d, "a", &["a;gpu=true"]), None);
    assert_eq!(next(&mut d, "a", &["a;gpu=true;region=eu"]), Some(gpu), "it could not do that");
    assert_eq!(next(&mut d, "a;gpu=true", &["a"]), None);
    assert!(give(&mut d, "a", "t1", now));
    let older = [queue("a;gpu=true").labels];
    assert!(d.reserve_on_result(gpu, "t1", &queue("a"), &older).is_none());
    assert!(d.reserve_on_result(gpu, "t1", &queue("a;region=eu"), &[]).is_none());
    assert!(d.reserve_on_result(gpu, "t1", &queue("a;gpu=true"), &[]).is_some());
    let (plain, _) = opened(&mut d, 2, &[sub("a", 1)], now);
    assert_eq!(next(&mut d, "a", &["a;gpu=true"]), Some(plain));
}

#[tokio::test]
async fn free_credit_is_told_by_pool() {
    let now = Instant::now();
    let mut d = Dispatcher::default();
    opened(&mut d, 1, &[sub("a;gpu=true;region=eu", 1), sub("b", 2)], now);
    opened(&mut d, 2, &[sub("a;region=eu", 3)], now);
    opened(&mut d, 3, &[sub("a;region=eu", 4)], now);
    opened(&mut d, 4, &[sub("a", 5)], now);
    let pool = |name: &str| {
        let QueueName { task_type, labels } = queue(name);
        Pool { task_type, labels }
    };
    let told = [("a", 5), ("a;region=eu", 7), ("a;gpu=true;region=eu", 1), ("b", 2)];
    assert_eq!(d.free_credit(), told.map(|(name, n)| (pool(name), n)));
    let mut reserved = Vec::new();
    while let Some((r, _)) = d.reserve_in(&pool("a;region=eu")) {
        reserved.push(r.session.0);
    }
    assert_eq!(reserved, [2, 3, 2, 3, 2, 3, 3]);
    assert!(d.reserve_in(&pool("a;gpu=true")).is_none());
}

#[tokio::test]
async fn labels_come_with_a_subscription_and_stay_until_others_are_given() {
    let now = Instant::now();
    let mut d = Dispatcher::default();
    let (key, _) = opened(&mut d, 1, &[], now);
    // A session that is resumed holds work before it has said what it has.
    d.adopt(key, "t1".into(), ty("a"), now);
    assert_eq!(d.set_credit(key, &sub("a;gpu=true", 5)), Some(sub("a;gpu=true", 5)));
    assert_eq!(next(&mut d, "a;gpu=true", &[]), Some(key));
    assert_eq!(d.set_credit(key, &sub("a", 6)), Some(sub("a;gpu=true", 6)));
    assert_eq!(next(&mut d, "a;gpu=true", &[]), Some(key));
    assert_eq!(d.set_credit(key, &sub("a;region=eu", 6)), Some(sub("a;region=eu", 6)));
    assert_eq!(next(&mut d, "a;gpu=true", &[]), None);
    assert_eq!(next(&mut d, "a;region=eu", &[]), Some(key));
    assert_eq!(d.free_credit().len(), 1);
    d.close(key);
    assert_eq!(d.free_credit(), []);
}

#[tokio::test]
async fn every_open_session_is_pinged_once_in_the_interval_and_not_all_at_once() {
    let t0 = Instant::now();
    let every = Duration::from_secs(3);
    let beat = Duration::from_millis(250);
    let mut d = Dispatcher::default();
    let sessions: Vec<_> = (0..120).map(|n| opened(&mut d, n, &[sub("a", 1)], t0)).collect();
    let (detached, silent) = &sessions[7];
    d.detach(*detached);
    let (claim, _) = d.open(None, "claim".into(), &[sub("a", 1)], Some(1), t0);
    let mut pings = vec![Vec::new(); sessions.len()];
    for n in 0..=80 {
        let now = t0 + beat * n;
        d.ping(now, every);
        let mut at_once = 0;
        for ((_, outbox), pings) in sessions.iter().zip(&mut pings) {
            if matches!(outbox.try_next(), Some(Some(ToWorker::Ping))) {
                pings.push(n);
                at_once += 1;
            }
        }
        // The first round is for all of them; then each has its own turn.
        assert!(n <= 12 || at_once <= 20, "{at_once} at beat {n}");
    }
    assert_eq!(silent.try_next(), Some(None));
    for (n, pings) in pings.iter().enumerate().filter(|(n, _)| *n != 7) {
        assert_eq!(pings[0], 12, "{n}");
        assert!(
            pings[1] <= 24 && pings[2..].iter().zip(&pings[1..]).all(|(b, a)| b - a <= 13),
            "{n}: {pings:?}"
        );
        assert!((6..=7).contains(&pings.len()), "{n}: {pings:?}");
    }
    d.close(claim);
}

#[tokio::test]
async fn pings_that_were_late_do_not_come_in_heaps() {
    let t0 = Instant::now();
    let every = Duration::from_secs(3);
    let mut d = Dispatcher::default();
    let (_, outbox) = opened(&mut d, 1, &[sub("a", 1)], t0);
    d.ping(t0 + every, every);
    let _ = outbox.try_next();
    // The server stood still for a minute.
    let mut pings = 0;
    for n in 0..=12 {
        d.ping(t0 + every * 20 + Duration::from_millis(250) * n, every);
        pings += u32::from(outbox.try_next().is_some());
    }
    assert_eq!(pings, 2);
}

#[tokio::test]
async fn idle_sessions_stand_in_no_round_but_those_of_the_clock() {
    let t0 = Instant::now();
    let at = |s: u64| t0 + Duration::from_secs(s);
    let window = Span::secs(2);
    let mut d = Dispatcher::default();
    let keys: Vec<_> = (0..9).map(|n| opened(&mut d, n, &[sub("a", 1)], t0).0).collect();
    for heard in d.heard_and_silent(t0).0 {
        d.renewed(heard.key, heard.at);
    }
    assert!(d.rounds.heard.is_empty() && d.rounds.busy.is_empty());
    assert!(give(&mut d, "a", "t", t0));
    assert_eq!(d.rounds.busy.len(), 1);
    let key = *d.rounds.busy.first().unwrap();
    let long = d.long_flights(at(5), window);
    assert_eq!(long.iter().map(|f| f.acked).collect::<Vec<_>>(), [None]);
    d.ack(key, &["t".into()]);
    d.settle(key, "t");
    d.check_acks(at(1), window);
    assert!(d.rounds.busy.is_empty());
    // One that is heard after it was asked to be renewed stays to be renewed.
    d.heard(keys[2], at(1));
    let heard = d.heard_and_silent(t0).0;
    assert_eq!(heard.iter().map(|h| h.key).collect::<Vec<_>>(), [keys[2]]);
    d.heard(keys[2], at(2));
    d.renewed(keys[2], heard[0].at);
    assert_eq!(d.heard_and_silent(t0).0.len(), 1);
    d.close(keys[2]);
    let (heard, mut silent) = d.heard_and_silent(at(3));
    silent.sort();
    assert_eq!((heard, silent.len()), (Vec::new(), 8));
    assert_eq!(d.heard_and_silent(at(3)).1.len(), 8, "told until they are closed");
}

#[test]
fn a_worker_that_does_not_read_gets_no_more_than_fits() {
    let mut d = Dispatcher::default();
    let now = Instant::now();
    let (_, outbox) = opened(&mut d, 1, &[sub("a", 100)], now);
    let large = |token: &str| Assignment { input: vec![b'1'; 1 << 20].into(), ..work(token, "a") };
    let mut given = 0;
    while let Some((reservation, _)) = d.reserve(&queue("a"), &[]) {
        assert_eq!(d.assign(reservation, large(&given.to_string()), now), Ok(()));
        given += 1;
    }
    assert_eq!(given, 4);
    assert!(outbox.try_next().is_some());
    // Credit that was set aside while there was room, for more than there is.
    let reserved: Vec<_> = std::iter::from_fn(|| d.reserve(&queue("a"), &[])).collect();
    assert_eq!(reserved.len(), 96);
    let mut assigned = 0;
    for (n, (reservation, _)) in reserved.into_iter().enumerate() {
        assigned += usize::from(d.assign(reservation, large(&format!("m{n}")), now).is_ok());
    }
    assert_eq!(assigned, 32);
    assert!(outbox.try_next().is_some());
    assert!(d.reserve(&queue("a"), &[]).is_some(), "what was refused uses no credit");
}

#[test]
fn a_session_serves_so_many_types_and_no_more() {
    let mut d = Dispatcher::default();
    let (key, _) = opened(&mut d, 1, &[], Instant::now());
    for n in 0..TYPES_MAX {
        let t = format!("t{n}");
        assert!(d.may_serve(key, &ty(&t)));
        assert!(d.set_credit(key, &sub(&t, 1)).is_some());
    }
    assert!(!d.may_serve(key, &ty("more")) && d.may_serve(key, &ty("t0")));
    assert_eq!(d.totals(), (1, (TYPES_MAX as u64, 0)));
}
