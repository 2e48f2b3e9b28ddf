//! Credit: never more in flight than granted, and one stalled subscription delays no other.

use super::support::client::{Worker, soon};
use super::support::server::Server;
use downbeat::proto::v1;
use downbeat::proto::v1::server_message::Message as FromServer;
use downbeat::proto::v1::worker_message::Message as ToServer;
use std::collections::BTreeSet;
use std::time::Duration;

#[tokio::test]
async fn never_more_is_in_flight_than_granted_and_a_change_of_credit_binds() {
    let server = Server::start();
    server.register_echo("credit").await;
    for n in 0..20 {
        assert_eq!(server.start_run("credit", &format!("r{n}"), "1").await.status, 201);
    }
    let (mut worker, _) = Worker::hello(&server, "credit-pack", 3).await;
    let mut held = BTreeSet::new();
    while held.len() < 3 {
        held.insert(worker.assignment().await.token);
    }
    // Raised by two: exactly two more. Nothing else could have come before the answer to this.
    let credit =
        |n| v1::Subscription { r#type: "credit-pack".into(), credit: n, ..v1::Subscription::default() };
    worker.say(ToServer::Credit(credit(5)));
    while held.len() < 5 {
        held.insert(worker.assignment().await.token);
    }
    // Down to nothing: results are taken, and no assignment follows any of them.
    worker.say(ToServer::Credit(credit(0)));
    loop {
        match worker.hear().await.unwrap() {
            FromServer::CreditAck(effective) if effective.credit == 0 => break,
            FromServer::CreditAck(_) => {}
            other => panic!("{other:?}"),
        }
    }
    for token in &held {
        let ack = worker.settle(token, v1::result::Outcome::Completed("1".into())).await;
        assert_eq!((&ack.token, ack.status()), (token, v1::result_ack::Status::Accepted));
    }
    worker.say(ToServer::Credit(credit(1)));
    let mut done = held.len();
    while done < 20 {
        // `assignment` hands out one after the other: a second one in the same list would be one too many.
        let task = worker.assignment().await;
        assert!(held.insert(task.token.clone()), "given twice");
        worker.settle(&task.token, v1::result::Outcome::Completed("1".into())).await;
        done += 1;
    }
    assert_eq!(
        server.get("/v1/runs?status=completed&limit=100").await.json()["items"].as_array().unwrap().len(),
        20
    );
}

/// Starts `count` runs one at a time and works on them; the times from start to assignment, sorted.
async fn times(
    server: &Server,
    worker: &mut Worker,
    workflow: &str,
    count: usize,
    round: &str,
) -> Vec<Duration> {
    let mut all = Vec::new();
    for n in 0..count {
        let begun = tokio::time::Instant::now();
        assert_eq!(server.start_run(workflow, &format!("{workflow}-{round}-{n}"), "1").await.status, 201);
        let task = soon(worker.assignment()).await;
        all.push(begun.elapsed());
        assert_eq!(task.r#type, format!("{workflow}-pack"));
        worker.settle(&task.token, v1::result::Outcome::Completed("1".into())).await;
    }
    all.sort();
    all
}

#[tokio::test]
async fn a_stalled_subscription_does_not_hold_back_another_on_the_same_stream() {
    let server = Server::start();
    server.register_echo("live").await;
    server.register_echo("stalled").await;
    let (mut worker, _) = Worker::hello(&server, "live-pack", 1).await;
    let alone = times(&server, &mut worker, "live", 100, "alone").await;
    let credit = v1::Subscription { r#type: "stalled-pack".into(), credit: 1, ..v1::Subscription::default() };
    worker.say(ToServer::Credit(credit));
    for n in 0..50 {
        assert_eq!(server.start_run("stalled", &format!("s{n}"), "1").await.status, 201);
    }
    // One of them is taken, acknowledged and never done; the others wait behind it.
    assert_eq!(worker.assignment().await.r#type, "stalled-pack");
    let beside = times(&server, &mut worker, "live", 100, "beside").await;
    // The bound is generous because the machine may be busy: a wait for the other queue would be seconds.
    println!("p99 alone {:?}, beside a stalled subscription {:?}", alone[98], beside[98]);
    assert!(
        beside[98] <= alone[98] * 2 + Duration::from_millis(100),
        "{:?} against {:?}",
        beside[98],
        alone[98]
    );
    let list = server.get("/v1/runs?workflow=stalled&status=running&limit=100").await.json();
    assert_eq!(list["items"].as_array().unwrap().len(), 50);
}
