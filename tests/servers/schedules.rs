//! Schedules on real stores: servers that share one Redis, and one that dies on a directory. Slots of the past are
//! started by a backfill, or come to be missed by a record that is set back, so that no test waits for the minute.

use crate::Pair;
use crate::support::server::{Server, free_address};
use downbeat::model::commit::{Expect, RunWrite, WakeOp, Write};
use downbeat::model::home::Home;
use downbeat::model::ids::{Nonce, Partition, Prefix};
use downbeat::model::record::homes;
use downbeat::model::schedule::ScheduleName;
use downbeat::model::time::{Span, Timestamp};
use downbeat::store::redis::{Options, RedisStore};
use downbeat::store::{Batch, Committed, Store as _, Verdict};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::time::Duration;

const QUICK: &str = "name: quick\ntasks:\n  a: { set: { done: true } }\n";

async fn set_up(server: &Server, overlap: &str) {
    let answer = server.put("/v1/workflows/quick", "application/yaml", QUICK).await;
    assert!(answer.status < 300, "{}", answer.text());
    let body = json!({ "workflow": "quick", "cron": "*/10 * * * *", "overlap": overlap, "catch_up": "none" });
    let answer = server.put("/v1/schedules/s", "application/json", body.to_string()).await;
    assert!(answer.status < 300, "{}", answer.text());
}

/// Twenty hours of the past: 120 slots.
async fn backfill(server: &Server) {
    let range = json!({ "from": "2026-01-05T00:00:00Z", "to": "2026-01-05T20:00:00Z" });
    let answer = server.post("/v1/schedules/s/backfill", range.to_string()).await;
    assert_eq!(answer.json(), json!({ "slots": 120 }), "{}", answer.text());
}

/// Waits until nothing waits or is open any more; the schedule.
async fn settled(server: &Server) -> Value {
    for _ in 0..600 {
        let s = server.get("/v1/schedules/s").await.json();
        if s["backfilling"] == 0 && s["open_count"] == 0 && s["firings"].as_array().unwrap().len() == 50 {
            return s;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("{}", server.get("/v1/schedules/s").await.text());
}

/// Ids of the runs of the backfilled day.
async fn runs(server: &Server) -> Vec<String> {
    let page = server.get("/v1/runs?limit=500").await.json();
    let ids = page["items"].as_array().unwrap().iter().map(|r| r["id"].as_str().unwrap().to_owned());
    ids.filter(|id| id.starts_with("s.20260105T")).collect()
}

fn expected() -> BTreeSet<String> {
    (0..20).flat_map(|h| (0..6).map(move |m| format!("s.20260105T{h:02}{m}000Z"))).collect()
}

#[tokio::test]
async fn two_servers_on_one_redis_start_every_slot_once() {
    let pair = Pair::start();
    set_up(&pair.a, "allow").await;
    let mut events = pair.b.watch("/v1/events?type=schedule.fired", None).await;
    backfill(&pair.b).await;
    settled(&pair.a).await;
    let runs = runs(&pair.b).await;
    assert_eq!((runs.len(), runs.into_iter().collect()), (120, expected()));
    let mut told = BTreeSet::new();
    for _ in 0..120 {
        let event = events.next().await.unwrap().json();
        let run = event["run"].as_str().unwrap().to_owned();
        if run.starts_with("s.20260105T") {
            assert!(told.insert(run), "told twice");
        }
    }
    assert!(told.len() >= 119);
}

#[tokio::test]
async fn what_a_killed_server_has_begun_another_brings_to_its_end() {
    let Pair { a, b, redis: _redis } = Pair::start();
    set_up(&a, "allow").await;
    backfill(&a).await;
    a.kill9();
    settled(&b).await;
    let runs = runs(&b).await;
    assert_eq!((runs.len(), runs.into_iter().collect()), (120, expected()));
}

#[tokio::test]
async fn a_server_that_is_killed_again_and_again_on_a_directory_starts_every_slot_once_and_in_order() {
    let data = tempfile::tempdir().unwrap();
    let serve = || Server::serve("embedded", Some(data.path()), free_address());
    let server = serve();
    set_up(&server, "skip").await;
    backfill(&server).await;
    server.kill9();
    for _ in 0..3 {
        let server = serve();
        tokio::time::sleep(Duration::from_millis(150)).await;
        server.kill9();
    }
    let server = serve();
    settled(&server).await;
    let mut runs = runs(&server).await;
    runs.reverse();
    assert!(runs.is_sorted(), "one after the other: {runs:?}");
    assert_eq!((runs.len(), runs.into_iter().collect()), (120, expected()));
}

/// Sets the next slot of `s` back by so many of its slots of ten minutes, as if nobody had looked for as long; returns
/// the first of them.
async fn set_back(url: &str, slots: i64) -> Timestamp {
    let store = RedisStore::open(url, Options::default()).await.unwrap();
    let home = ScheduleName::new("s").unwrap().home();
    let partition = Partition::of(home.as_str(), store.layout().partitions);
    for sequence in 1.. {
        let record = store.load(&[(partition, home.clone())]).await.unwrap().remove(0).unwrap();
        let before = Prefix::of(&record).unwrap();
        let Home::Schedule(mut state) = homes::decode(&record[Prefix::LEN..]).unwrap() else { panic!() };
        let next = Timestamp(state.next.unwrap().0 - Span::secs(600 * slots).0);
        state.next = Some(next);
        let mut bytes = Prefix::new(before.version() + 1, Nonce([9; 16])).0.to_vec();
        homes::encode_into(&Home::Schedule(state), &mut bytes);
        let write = RunWrite {
            run: home.clone(),
            expect: Expect::Prefix(before),
            write: Write::Put(bytes.into()),
            payloads: Vec::new(),
            queue: Vec::new(),
            wake: WakeOp::Set(Timestamp(0)),
            index: None,
            retain_until: None,
            event: None,
            of: None,
        };
        let batch = Batch { lane: Nonce([7; 16]), sequence, writes: vec![(partition, write)] };
        let Committed { verdicts, .. } = store.commit(&batch).await.unwrap();
        if verdicts == [Verdict::Applied] {
            return next;
        }
    }
    unreachable!()
}

#[tokio::test]
async fn two_servers_that_find_missed_slots_make_up_for_each_once() {
    let pair = Pair::start();
    set_up(&pair.a, "allow").await;
    let body = json!({ "workflow": "quick", "cron": "*/10 * * * *", "overlap": "allow", "catch_up": "all" });
    pair.b.put("/v1/schedules/s", "application/json", body.to_string()).await;
    // Neither server has said so: whichever looks first finds them, at its next beat.
    let first = set_back(&pair.redis.url(), 60).await;
    let mut firings = 0;
    for _ in 0..300 {
        let s = pair.b.get("/v1/schedules/s").await.json();
        firings = s["firings"].as_array().unwrap().len();
        if firings == 50 && s["open_count"] == 0 && s["waiting"] == 0 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(firings, 50);
    let page = pair.a.get("/v1/runs?limit=500").await.json();
    let mut runs: Vec<_> =
        page["items"].as_array().unwrap().iter().map(|r| r["id"].as_str().unwrap().to_owned()).collect();
    runs.sort();
    let name = ScheduleName::new("s").unwrap();
    // The slot after the last of them may have come meanwhile.
    let slots: Vec<_> = (0..60).map(|n| name.run_of(first.plus(Span::secs(600 * n))).to_string()).collect();
    assert_eq!(runs[..60], slots);
    assert!(runs.len() <= 61, "{runs:?}");
}
