//! Readers of events while a master of a Redis Cluster is away that nobody replaces: what is on the others goes on, and what
//! is on it follows when it is back.

use crate::redis::Options;
use crate::redis_cluster::RedisCluster;
use crate::support::crew::history;
use crate::support::reader::{Reader, Seen};
use crate::support::server::{Door, Server, free_address};
use crate::{readiness, register, until};
use downbeat::model::ids::Partition;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Longer than comments are apart.
const SILENCE: Duration = Duration::from_secs(20);
/// How late an event may be, on a machine that does much else.
const SOON: Duration = Duration::from_secs(8);
/// Of three masters.
const PARTITIONS: u16 = 48;

/// Three masters, and two servers: the one does, the other tells.
struct Site {
    cluster: RedisCluster,
    a: Server,
    b: Server,
    /// The master that has each partition, as far as a run has shown it.
    homes: BTreeMap<Partition, usize>,
    /// The one that dies: not the one that has the workflows.
    victim: usize,
}

impl Site {
    async fn start() -> Self {
        let options = Options { aof: true, args: Vec::new() };
        let cluster = RedisCluster::start(3, 0, options);
        let serve = || Server::serve(&cluster.whole_url(), None, free_address());
        let (a, b) = (serve(), serve());
        register(*a, "quick", "tasks: { t: { set: 1 } }").await;
        register(*a, "asks", "tasks: { s: { wait: { signal: go } } }").await;
        let keys = |n: usize, pattern: &str| {
            let told = cluster.nodes[n].lines(&format!("KEYS {pattern}"));
            told.into_iter().filter(|line| line.starts_with("db:")).collect::<Vec<_>>()
        };
        let victim = (0..3).find(|n| keys(*n, "db:{w}:newest").is_empty()).unwrap();
        // Enough to meet most partitions.
        for n in 0..100 {
            assert_eq!(a.start_run("quick", &format!("first-{n}"), "1").await.status, 201);
        }
        let mut homes = BTreeMap::new();
        for node in 0..3 {
            for key in keys(node, "db:*:r:first-*") {
                let run = key.rsplit(':').next().unwrap();
                homes.insert(Partition::of(run, PARTITIONS), node);
            }
        }
        Self { cluster, a, b, homes, victim }
    }

    /// Ids of runs whose partition is on the victim, or on another master.
    fn ids(&self, name: &str, on_victim: bool, count: usize) -> Vec<String> {
        let ids = (0..).map(|n| format!("{name}-{n}"));
        let fits = |id: &String| {
            let home = self.homes.get(&Partition::of(id, PARTITIONS));
            home.is_some_and(|home| (*home == self.victim) == on_victim)
        };
        ids.filter(fits).take(count).collect()
    }
}

async fn start_all(door: Door, ids: &[String]) {
    for id in ids {
        door.insist_post("/v1/runs", &format!(r#"{{"workflow":"quick","id":"{id}"}}"#)).await;
    }
}

fn ends(seen: &Seen) -> BTreeSet<String> {
    let ended = seen.events.iter().filter(|e| e["type"] == "run.completed");
    ended.map(|e| e["run"].as_str().unwrap().to_owned()).collect()
}

/// Waits until a reader was told of the end of all these.
async fn hears(reader: &mut Reader, what: &str, ids: &[String]) {
    let heard = reader.sees(SOON, |seen| ids.iter().all(|id| ends(seen).contains(id))).await;
    assert!(heard, "{what}: {:?} of {ids:?}", reader.look(ends));
}

/// What a reader was told of these runs is all that happened to them, each once and in order.
async fn audit(door: Door, reader: &Reader, what: &str, ids: &[String]) {
    assert_eq!(reader.look(|seen| (seen.resets, seen.cuts)), (0, 0), "{what}");
    for id in ids {
        let own = history(door, id).await;
        let told: Vec<Value> =
            reader.look(|seen| seen.events.iter().filter(|e| e["run"] == id.as_str()).cloned().collect());
        assert_eq!(told, own, "{what}: {id}");
    }
}

/// How often a server said that events cannot be read.
fn complaints(server: &Server) -> usize {
    server.log().iter().filter(|line| line.contains("cannot be read; trying again")).count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_of_other_masters_go_on_while_one_is_away_and_its_own_follow() {
    let mut site = Site::start().await;
    let (a, b) = (*site.a, *site.b);
    let follow = |last: Option<String>| Reader::resuming(vec![b], "/v1/events", SILENCE, last);
    let mut old = follow(None);
    assert!(old.sees(SOON, |seen| seen.opened).await);
    let before = site.ids("before", true, 3);
    start_all(a, &before).await;
    hears(&mut old, "before", &before).await;
    let cursor = old.look(|seen| seen.last.clone());
    let (asks, last) = (site.ids("asks", false, 5), site.ids("last", true, 1));
    for id in &asks {
        assert_eq!(a.start_run("asks", id, "1").await.status, 201);
    }

    // Perhaps it is told of this one now, perhaps later.
    start_all(a, &last).await;
    site.cluster.nodes[site.victim].kill9();
    let (began, complained) = (tokio::time::Instant::now(), complaints(&site.b));
    let during = site.ids("during", false, 8);
    start_all(a, &during).await;
    hears(&mut old, "during", &during).await;
    // Who comes now is told too, with a cursor and without.
    let (mut new, mut resumed) = (follow(None), follow(cursor));
    assert!(new.sees(SOON, |seen| seen.opened).await && resumed.sees(SOON, |seen| seen.opened).await);
    let later = site.ids("later", false, 8);
    start_all(a, &later).await;
    for (reader, what) in
        [(&mut old, "later, old"), (&mut new, "later, new"), (&mut resumed, "later, resumed")]
    {
        hears(reader, what, &later).await;
    }
    // Servers stay in service: what is on the others is done.
    assert_eq!((readiness(a).await, readiness(b).await), (200, 200));
    // Who waits for one run is woken, and does not find out by looking.
    let mut fastest = SOON;
    for id in &asks {
        let waits = tokio::spawn({
            let path = format!("/v1/runs/{id}?wait=20s");
            async move { b.get(&path).await.json()["status"].as_str().unwrap().to_owned() }
        });
        let watched = async || {
            let page = b.get("/metrics").await;
            page.text().contains("\ndownbeat_event_watchers 1").then_some(())
        };
        until("it is waited for", SOON, watched).await;
        let asked = tokio::time::Instant::now();
        a.insist_post(&format!("/v1/runs/{id}/signals/go?id=1"), "1").await;
        assert_eq!(waits.await.unwrap(), "completed");
        fastest = fastest.min(asked.elapsed());
    }
    assert!(fastest < Duration::from_secs(1), "{fastest:?}");
    // A new one that leaves takes a cursor along that is right for the absent master.
    let taken = new.look(|seen| seen.last.clone());
    let said = complaints(&site.b) - complained;
    assert!(said as u64 <= began.elapsed().as_secs() + 2, "{said} lines in {:?}", began.elapsed());

    site.cluster.nodes[site.victim].restart();
    let after = site.ids("after", true, 8);
    start_all(a, &after).await;
    let mut moved = follow(taken);
    for (reader, what) in [
        (&mut old, "after, old"),
        (&mut new, "after, new"),
        (&mut resumed, "after, resumed"),
        (&mut moved, "after, moved"),
    ] {
        hears(reader, what, &after).await;
    }
    hears(&mut old, "the last before", &last).await;
    hears(&mut resumed, "the last before", &last).await;
    let known = [&before, &last, &during, &later, &after].map(Vec::as_slice);
    audit(b, &old, "old", &known.concat()).await;
    audit(b, &resumed, "resumed", &known[1..].concat()).await;
    audit(b, &new, "new", &[later.as_slice(), &after].concat()).await;
    audit(b, &moved, "moved", &after).await;
    assert!(!site.b.has_logged("panicked") && !site.a.has_logged("panicked"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_of_what_a_master_has_lost_is_told_so_once() {
    let mut cluster = RedisCluster::start(1, 0, Options { aof: true, args: Vec::new() });
    let server = Server::serve(&cluster.url(), None, free_address());
    let door = *server;
    register(door, "quick", "tasks: { t: { set: 1 } }").await;
    let ids = |name: &str, count: usize| (0..count).map(|n| format!("{name}-{n}")).collect::<Vec<_>>();
    let (kept, lost, anew, later) = (ids("kept", 3), ids("lost", 10), ids("anew", 10), ids("later", 40));
    let mut reader = Reader::start(vec![door], "/v1/events", SILENCE);
    assert!(reader.sees(SOON, |seen| seen.opened).await);
    start_all(door, &kept).await;
    hears(&mut reader, "kept", &kept).await;
    let file = cluster.nodes[0].append_only_file();
    let length = std::fs::metadata(&file).unwrap().len();
    start_all(door, &lost).await;
    hears(&mut reader, "lost", &lost).await;

    cluster.nodes[0].kill9();
    std::fs::OpenOptions::new().write(true).open(&file).unwrap().set_len(length).unwrap();
    cluster.nodes[0].restart();
    start_all(door, &anew).await;
    assert!(reader.sees(SILENCE, |seen| seen.resets > 0).await, "nobody says that events are lost");
    start_all(door, &later).await;
    hears(&mut reader, "later", &later).await;
    assert_eq!(reader.look(|seen| (seen.resets, seen.cuts)), (1, 0));
    // And it is over with the complaints.
    let complained = complaints(&server);
    start_all(door, &ids("last", 3)).await;
    hears(&mut reader, "last", &ids("last", 3)).await;
    assert_eq!(complaints(&server), complained);
    assert!(!server.has_logged("panicked"));
}
