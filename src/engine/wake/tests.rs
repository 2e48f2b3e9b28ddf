use super::*;
use crate::engine::limits::{LEASE, UNACKED};
use crate::engine::testing::{World, chain, failure, plan, session, start};
use crate::model::command::{AttemptKey, Command, Outcome};
use crate::model::event::EventKind;
use crate::model::plan::{Plan, RetryPolicy};
use crate::model::run::RunStatus;

const S: Span = Span::secs(1);

fn limited(timeout: Timeouts, attempts: u32) -> Plan {
    let mut p = chain(1);
    p.tasks[0].timeout = timeout;
    p.tasks[0].retry =
        RetryPolicy { max_attempts: attempts, initial: S, jitter: 0.0, ..RetryPolicy::default() };
    p
}

fn alive(remaining: Span) -> Sessions {
    view(SessionView { epoch: 1, remaining, owner_gone: false, resuming: false })
}

fn view(view: SessionView) -> Sessions {
    Sessions::from([(session(1), view)])
}

fn last_error(w: &World) -> &str {
    w.run().failures.last().map_or("none", |f| f.code.as_str())
}

fn ack(w: &mut World, attempt: &AttemptKey) {
    assert_eq!(w.apply(&Command::Acked { attempt: attempt.clone() }), Ok(Outcome::Accepted));
}

#[test]
fn a_chain_in_flow_never_writes_its_wake_up() {
    let mut w = World::started(chain(9));
    let armed = w.wake.unwrap();
    assert_eq!(armed, w.now.plus(LEASE));
    for i in 0..9 {
        w.pass(Span::millis(5));
        w.complete(i);
        assert_eq!(w.wake, if i < 8 { Some(armed) } else { None });
    }
}

#[test]
fn an_idle_run_is_looked_at_hourly_until_a_lease_asks_for_more() {
    let mut w = World::started(chain(1));
    w.pass(LEASE);
    assert_eq!(w.wake(), Outcome::Nothing);
    assert_eq!(w.wake, Some(w.now.plus(IDLE_LOOK)));
    w.pass(S);
    w.lease(0);
    assert_eq!(w.wake, Some(w.now.plus(LEASE)));
}

#[test]
fn sessions_are_looked_at_as_often_as_their_lease_says() {
    for lease in [Span::secs(2), Span::secs(90)] {
        let mut w = World::new(chain(1));
        w.lease = lease;
        w.apply(&Command::Start(start())).unwrap();
        assert_eq!(w.wake, Some(w.now.plus(lease)));
        w.lease(0);
        w.pass(lease);
        let remaining = Span(lease.0 / 2);
        w.wake_with(alive(remaining));
        assert_eq!(w.wake, Some(w.now.plus(remaining)), "when it ends, if nobody renews it");
    }
}

#[test]
fn a_task_that_nobody_takes_times_out_unretried() {
    let mut w = World::started(limited(Timeouts { queue: Some(Span::secs(5)), ..Timeouts::default() }, 3));
    assert_eq!(w.wake, Some(w.now.plus(Span::secs(5))));
    w.pass(Span::millis(4_999));
    assert_eq!((w.wake(), w.statuses()), (Outcome::Nothing, vec!["queued"]));
    w.pass(Span::millis(1));
    assert_eq!((w.wake(), w.statuses()), (Outcome::Accepted, vec!["timed_out"]));
    assert_eq!((last_error(&w), w.queue.len(), w.run().status), ("timeout_queue", 0, RunStatus::Failed));
    assert_eq!(w.run().failures[0].message, "no worker took the task within 5s");
}

#[test]
fn time_in_the_hands_of_a_worker_is_no_waiting() {
    let mut w = World::started(limited(Timeouts { queue: Some(Span::secs(5)), ..Timeouts::default() }, 3));
    w.pass(Span::secs(4));
    let attempt = w.lease(0);
    w.pass(Span::secs(4));
    assert_eq!(w.apply(&Command::Release { attempt }), Ok(Outcome::Accepted));
    w.wake();
    assert_eq!((w.statuses(), w.wake), (vec!["queued"], Some(w.now.plus(Span::secs(5)))));
}

#[test]
fn an_attempt_that_takes_too_long_is_retried_then_timed_out() {
    let mut w = World::started(limited(Timeouts { run: Some(Span::secs(2)), ..Timeouts::default() }, 2));
    let first = w.lease(0);
    assert_eq!(w.wake, Some(w.now.plus(Span::secs(2))));
    ack(&mut w, &first);
    w.pass(Span::secs(2));
    assert_eq!(w.wake_with(alive(LEASE)), Outcome::Accepted);
    assert_eq!((w.statuses(), last_error(&w)), (vec!["retrying"], "timeout_run"));
    assert_eq!(w.revoked.len(), 1);
    assert_eq!(w.wake, Some(w.now.plus(S)));
    w.pass(S);
    w.wake();
    assert_eq!(w.statuses(), ["queued"]);
    w.lease(0);
    w.pass(Span::secs(2));
    w.wake_with(alive(LEASE));
    assert_eq!(
        (w.statuses(), last_error(&w), w.run().status),
        (vec!["timed_out"], "timeout_run", RunStatus::Failed)
    );
    let late = Command::Complete { attempt: first, output: Ok("1".into()) };
    assert!(w.apply(&late).is_err());
}

#[test]
fn a_stall_of_the_lease_clock_expires_nobody() {
    let mut w = World::started(limited(Timeouts { run: Some(Span::secs(2)), ..Timeouts::default() }, 2));
    let attempt = w.lease(0);
    ack(&mut w, &attempt);
    w.now = w.now.plus(Span::secs(3_600));
    w.lease_now = w.lease_now.plus(S);
    assert_eq!(w.wake_with(alive(LEASE)), Outcome::Nothing);
    assert_eq!(w.wake, Some(w.now.plus(S)), "the rest of the attempt's time");
}

#[test]
fn silence_is_measured_from_the_last_heartbeat() {
    let limit = Span::secs(4);
    let mut w = World::started(limited(Timeouts { heartbeat: Some(limit), ..Timeouts::default() }, 1));
    let attempt = w.lease(0);
    let beat = Command::Heartbeat { attempt, extend_claim: None };
    for _ in 0..10 {
        w.pass(Span::millis(3_900));
        assert_eq!(w.wake_with(alive(LEASE)), Outcome::Nothing);
        assert_eq!(w.apply(&beat), Ok(Outcome::Accepted));
        w.pass(Span::millis(100));
        assert_eq!(w.apply(&beat), Ok(Outcome::Held), "too close to the last to be written");
    }
    w.pass(limit);
    assert_eq!(w.wake_with(alive(LEASE)), Outcome::Nothing, "the unwritten one is granted");
    w.pass(Span::millis(400));
    assert_eq!(w.wake_with(alive(LEASE)), Outcome::Accepted);
    assert_eq!((w.statuses(), last_error(&w)), (vec!["timed_out"], "timeout_heartbeat"));
}

#[test]
fn the_total_ends_a_task_wherever_it_is() {
    for at in ["queued", "running", "retrying"] {
        let mut w =
            World::started(limited(Timeouts { total: Some(Span::secs(9)), ..Timeouts::default() }, 9));
        assert_eq!(w.wake, Some(w.now.plus(Span::secs(9))));
        w.pass(Span::millis(8_500));
        if at == "running" {
            let attempt = w.lease(0);
            ack(&mut w, &attempt);
        } else if at == "retrying" {
            w.fail(0, "x");
        }
        w.wake_with(alive(LEASE));
        assert_eq!((w.statuses(), w.wake), (vec![at], Some(w.now.plus(Span::millis(500)))));
        w.pass(Span::millis(500));
        assert_eq!(w.wake_with(alive(LEASE)), Outcome::Accepted);
        assert_eq!((w.statuses(), last_error(&w)), (vec!["timed_out"], "timeout_total"));
        assert_eq!(w.revoked.len(), usize::from(at == "running"));
    }
}

#[test]
fn the_run_s_own_timeout_fences_everything_at_once() {
    let mut p = plan(&[&[], &[], &[0]]);
    p.timeout = Some(Span::secs(5));
    let mut w = World::started(p);
    let attempt = w.lease(0);
    w.pass(Span::secs(5));
    assert_eq!(w.wake_with(alive(LEASE)), Outcome::Accepted);
    assert_eq!(w.statuses(), ["cancelled", "cancelled", "cancelled"]);
    assert_eq!((w.run().status, last_error(&w)), (RunStatus::TimedOut, "run_timed_out"));
    assert_eq!(w.run().error, Some(0));
    assert_eq!((w.queue.len(), w.revoked.len(), w.wake), (0, 1, None));
    assert_eq!(w.events().last().unwrap(), "run.timed_out");
    assert!(w.apply(&Command::Complete { attempt, output: Ok("1".into()) }).is_err());
}

#[test]
fn a_vanished_session_costs_an_attempt_only_if_it_had_acknowledged() {
    for acked in [false, true] {
        let mut w = World::started(limited(Timeouts::default(), 2));
        let attempt = w.lease(0);
        if acked {
            ack(&mut w, &attempt);
        }
        w.pass(Span::secs(9));
        assert_eq!(w.wake_with(alive(S)), Outcome::Nothing);
        assert_eq!(w.wake, Some(w.now.plus(S)), "just when the session ends");
        w.pass(S);
        assert_eq!(w.wake_with(alive(Span(0))), Outcome::Accepted);
        let task = &w.run().tasks[0];
        if acked {
            assert_eq!((task.phase.name(), last_error(&w)), ("retrying", "worker_lost"));
        } else {
            assert_eq!(
                (task.phase.name(), task.attempt, task.delivery, task.lost_deliveries),
                ("queued", 1, 2, 1)
            );
        }
        assert_eq!(w.revoked.len(), 1);
    }
}

#[test]
fn a_delivery_that_nobody_acknowledges_is_lost_however_alive_its_session_is() {
    for acked in [false, true] {
        let mut w = World::started(chain(1));
        let attempt = w.lease(0);
        if acked {
            ack(&mut w, &attempt);
        }
        // Its session is renewed and looked at again and again.
        while w.lease_now < w.held(0).unwrap().leased_at.plus(UNACKED) {
            assert_eq!((w.wake_with(alive(LEASE)), w.statuses()), (Outcome::Nothing, vec!["running"]));
            w.pass(S);
        }
        w.wake_with(alive(LEASE));
        let task = &w.run().tasks[0];
        let (lost, revoked) = if acked { (0, 0) } else { (1, 1) };
        assert_eq!((task.attempt, task.lost_deliveries, w.revoked.len()), (1, lost, revoked));
        assert_eq!(w.statuses(), [if acked { "running" } else { "queued" }]);
    }
}

#[test]
fn a_session_the_store_does_not_know_is_gone_once_its_lease_would_be() {
    let mut w = World::started(limited(Timeouts::default(), 2));
    w.lease(0);
    w.pass(Span::secs(4));
    assert_eq!(w.wake(), Outcome::Nothing);
    assert_eq!(w.wake, Some(w.now.plus(Span::secs(6))));
    w.pass(Span::secs(6));
    assert_eq!((w.wake(), w.statuses()), (Outcome::Accepted, vec!["queued"]));
}

#[test]
fn a_session_that_came_back_without_the_attempt_has_lost_it() {
    let mut w = World::started(limited(Timeouts::default(), 2));
    let attempt = w.lease(0);
    let adopt = |epoch| Command::Adopt { attempt: attempt.clone(), session: session(1), epoch };
    assert_eq!(w.apply(&adopt(2)), Ok(Outcome::Accepted));
    assert_eq!(w.apply(&adopt(2)), Ok(Outcome::Repeated));
    assert!(w.apply(&adopt(1)).is_err());
    let at = |epoch| view(SessionView { epoch, remaining: LEASE, owner_gone: false, resuming: false });
    assert_eq!(w.wake_with(at(2)), Outcome::Nothing);
    // It may be about to name it.
    let resuming = view(SessionView { epoch: 3, remaining: LEASE, owner_gone: false, resuming: true });
    w.pass(LEASE);
    assert_eq!(w.wake_with(resuming), Outcome::Nothing);
    assert_eq!(w.wake, Some(w.now.plus(RESUMING)));
    assert_eq!(w.wake_with(at(3)), Outcome::Accepted);
    assert_eq!((w.statuses(), last_error(&w)), (vec!["retrying"], "worker_lost"));
}

#[test]
fn a_session_that_fell_silent_with_its_server_is_waited_for() {
    let after = |seconds: i64| Span::secs(-seconds);
    let orphan = |remaining| view(SessionView { epoch: 1, remaining, owner_gone: true, resuming: false });
    for acked in [false, true] {
        let mut w = World::started(limited(Timeouts::default(), 2));
        let attempt = w.lease(0);
        if acked {
            ack(&mut w, &attempt);
        }
        w.pass(Span::secs(13));
        assert_eq!(w.wake_with(orphan(after(3))), Outcome::Nothing);
        assert_eq!(w.wake, Some(w.now.plus(LEASE)), "no later than the next lease");
        w.pass(Span::secs(10));
        assert_eq!(w.wake_with(orphan(after(13))), Outcome::Nothing);
        assert_eq!(w.wake, Some(w.now.plus(Span::secs(7))));
        w.pass(Span::secs(7));
        // Its server is back and its worker is not: the worker is gone.
        let mut other = World::started(limited(Timeouts::default(), 2));
        other.lease(0);
        let deserted =
            view(SessionView { epoch: 1, remaining: after(3), owner_gone: false, resuming: false });
        assert_eq!(other.wake_with(deserted), Outcome::Accepted);
        // Neither of them came back in time.
        assert_eq!(w.wake_with(orphan(after(20))), Outcome::Accepted);
        assert_eq!(w.statuses(), [if acked { "retrying" } else { "queued" }]);
    }
}

#[test]
fn the_tenth_lost_delivery_is_a_failed_attempt() {
    let mut w = World::started(limited(Timeouts::default(), 2));
    for n in 1..=10 {
        assert_eq!(w.run().tasks[0].delivery, n);
        let attempt = w.lease(0);
        assert_eq!(w.apply(&Command::Undelivered { attempt: attempt.clone() }), Ok(Outcome::Accepted));
        assert!(
            w.apply(&Command::Complete { attempt, output: Ok("1".into()) }).is_err(),
            "a returned token is dead"
        );
    }
    assert_eq!((w.statuses(), last_error(&w)), (vec!["retrying"], "delivery_failed"));
    w.pass(S);
    w.wake();
    let task = &w.run().tasks[0];
    assert_eq!((task.attempt, task.delivery, task.lost_deliveries), (2, 1, 0));
    assert_eq!((w.count(EventKind::TaskQueued), w.count(EventKind::TaskRetrying)), (11, 1));
}

#[test]
fn a_claim_lives_until_its_deadline_and_its_heartbeat_renews_it() {
    let mut w = World::started(limited(Timeouts::default(), 2));
    let claim = |w: &World| Holder::Claim { deadline: w.lease_now.plus(Span::secs(4)) };
    let command = w.lease_command(0, claim(&w));
    assert!(w.apply(&command).is_ok());
    assert_eq!(w.wake, Some(w.now.plus(Span::secs(4))));
    w.pass(Span::secs(4));
    assert_eq!(
        (w.wake(), w.statuses(), w.run().tasks[0].lost_deliveries),
        (Outcome::Accepted, vec!["queued"], 1)
    );

    let command = w.lease_command(0, claim(&w));
    assert!(w.apply(&command).is_ok());
    for _ in 0..3 {
        w.pass(Span::secs(3));
        let beat = Command::Heartbeat { attempt: w.key(0), extend_claim: Some(Span::secs(4)) };
        assert_eq!(w.apply(&beat), Ok(Outcome::Accepted));
        assert_eq!(w.wake(), Outcome::Nothing);
        assert_eq!(w.wake, Some(w.now.plus(Span::secs(4))));
    }
    w.pass(Span::secs(4));
    assert_eq!(
        (w.wake(), w.statuses(), last_error(&w)),
        (Outcome::Accepted, vec!["retrying"], "worker_lost")
    );
    assert!(w.revoked.is_empty(), "a claim has no session to tell");
}

#[test]
fn a_retry_comes_when_it_is_due_and_not_before() {
    let mut w = World::started(limited(Timeouts::default(), 3));
    w.fail(0, "x");
    assert_eq!((w.statuses(), w.wake), (vec!["retrying"], Some(w.now.plus(S))));
    w.pass(Span::millis(999));
    assert_eq!((w.wake(), w.statuses()), (Outcome::Nothing, vec!["retrying"]));
    w.pass(Span::millis(1));
    assert_eq!((w.wake(), w.statuses()), (Outcome::Accepted, vec!["queued"]));
    let attempt = w.lease(0);
    let after = Span::secs(7);
    let failure = crate::model::command::ReportedFailure { retry_after: Some(after), ..failure("x") };
    assert_eq!(w.apply(&Command::Fail { attempt, failure }), Ok(Outcome::Accepted));
    w.wake();
    assert_eq!(w.wake, Some(w.now.plus(after)));
}

#[test]
fn time_never_goes_back_in_a_run() {
    let mut w = World::started(chain(2));
    w.pass(S);
    w.complete(0);
    let then = w.now;
    w.now = Timestamp(0);
    w.complete(1);
    assert_eq!(w.run().ended_at, Some(then));
    assert!(w.run().log.iter().is_sorted_by_key(|e| e.time));
}
