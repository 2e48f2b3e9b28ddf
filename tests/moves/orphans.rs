//! `downbeat doctor --orphans`: finds what nobody owns, and nothing where there is nothing.

use super::{Place, becomes, echo, register, start, stop};
use crate::redis_cluster::RedisCluster;
use crate::redis_server::{Options, RedisServer};
use std::path::Path;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_nobody_owns_is_found_and_nothing_else() {
    let redis = RedisServer::start(Options::default());
    let place = Place::Redis(&redis);
    let look = || place.run("doctor", Path::new("--orphans"), &[]);
    let server = place.serve();
    register(&server, "one", "tasks: { a: { type: work }, b: { type: other } }").await;
    register(&server, "limited", "tasks: { t: { type: other, concurrency: { key: env, limit: 1 } } }").await;
    let large = serde_json::json!({ "text": "x".repeat(500) }).to_string();
    assert_eq!(server.start_run("one", "r1", &large).await.status, 201);
    start(&server, "limited", "r2").await;
    let working = echo(&server, &["work"]);
    becomes(&server, "r1", |run| run["tasks"][0]["status"] == "completed").await;
    becomes(&server, "r2", |run| run["tasks"][0]["status"] == "queued").await;
    // While servers and workers are there.
    assert_eq!(look().well(), "no orphans\n");
    working.abort();
    stop(server).await;
    assert_eq!(look().well(), "no orphans\n");

    let at = |id: &str| downbeat::model::ids::Partition::of(id, 8).0;
    let (p, q) = (at("r1"), at("gone"));
    // Of another run, of another queueing, of one that is no entry.
    let entry = |run: &str, generation: u32| format!("\"{run}\\x00b\\x00{generation}\"");
    let planted = [
        (format!("HSET db:{{{q}}}:p:gone i 1"), format!("db:{{{q}}}:p:gone: payloads without a record")),
        (format!("ZADD db:{{{q}}}:index 5 gone"), format!("db:{{{q}}}:index  gone: of no record")),
        (
            format!("ZADD db:{{{q}}}:wake 99999999999999999 gone"),
            format!("db:{{{q}}}:wake  gone: of no record"),
        ),
        (
            format!("ZADD db:{{{q}}}:keep 99999999999999999 gone"),
            format!("db:{{{q}}}:keep  gone: of no record"),
        ),
        (
            format!("SADD db:{{{q}}}:types gone"),
            format!("db:{{{q}}}:q:gone  gone b 1: an entry that no task waits with"),
        ),
        (
            format!("ZADD db:{{{q}}}:q:gone 1 {}", entry("gone", 1)),
            format!("db:{{{q}}}:q:gone  gone b 1: an entry that no task waits with"),
        ),
        (
            format!("ZADD db:{{{p}}}:q:other 1 {}", entry("r1", 77)),
            format!("db:{{{p}}}:q:other  r1 b 77: an entry that no task waits with"),
        ),
        (
            format!("ZADD db:{{{p}}}:q:third 1 {}", entry("r1", 1)),
            format!("db:{{{p}}}:q:third: a queue that is not listed"),
        ),
        (format!("SADD db:{{{p}}}:types fourth"), format!("db:{{{p}}}:types  fourth: an empty queue")),
        (
            format!("ZADD db:{{{p}}}:claimed 99999999999999999 \"other\\x00gone\\x00b\\x001\""),
            format!("db:{{{p}}}:claimed  other gone b 1: a claim without a place"),
        ),
        (
            format!("HSET db:{{{p}}}:places \"other\\x00x\\x00b\\x001\" 4"),
            format!("db:{{{p}}}:places  other x b 1: a place without a claim"),
        ),
        (
            format!("HSET db:{{{p}}}:sessions s1-abc \"3 0123456789abcdef\""),
            format!("db:{{{p}}}:sessions  s1-abc: a session without a lease"),
        ),
        (
            format!("ZADD db:{{{p}}}:leases 99999999999999 \"s1-def 1\""),
            format!("db:{{{p}}}:leases  s1-def 1: a lease of no session"),
        ),
        (
            format!("HSET db:{{{p}}}:l:00 newest 1"),
            format!("db:{{{p}}}:l:00: the window of a lane that does not"),
        ),
        (
            format!("SET db:{{{p}}}:r:elsewhere x"),
            format!("db:{{{p}}}:r:elsewhere: a record in the partition of others"),
        ),
        (format!("ZREM db:{{{p}}}:index r1"), format!("db:{{{p}}}:r:r1: a run that is in no index")),
        (
            format!("ZREM db:{{{}}}:wake r2", at("r2")),
            format!("db:{{{}}}:r:r2: a record that is neither woken nor deleted", at("r2")),
        ),
        (
            format!(
                "ZREM db:{{{}}}:q:other {}",
                at("r2"),
                entry("r2", 1).replace("\\x00b\\x00", "\\x00t\\x00")
            ),
            format!("db:{{{}}}:r:r2  generation 1: a task that waits in no queue", at("r2")),
        ),
        ("HSET db:{w}:d:nothing 1 x t1 1".into(), "db:{w}:d:nothing: documents of no workflow".into()),
        (
            "HSET db:{w}:newest half 1".into(),
            "db:{w}:newest  half: a workflow that is only half there".into(),
        ),
        ("SET db:{77}:clock x".into(), "db:{77}:clock: the store has no such partition".into()),
        (format!("SET db:{{{p}}}:s:old x"), format!("db:{{{p}}}:s:old: this layout has no such key")),
    ];
    assert_ne!(at("elsewhere"), p, "choose another id");
    for (command, _) in &planted {
        let answer = redis.command(command);
        assert_ne!(answer, ":0", "{command}");
        assert!(!answer.starts_with('-'), "{command}: {answer}");
    }
    // Keys of others are none of ours.
    redis.command("SET other:key 1");
    let done = look();
    assert_eq!(done.status, 1);
    for (_, expected) in &planted {
        assert!(done.out.contains(expected), "{expected:?} is missing:\n{}", done.out);
    }
    // The claim and the entry of the third queue are also of no task that waits; the queue of r2 is empty now.
    let expected: std::collections::BTreeSet<_> = planted.iter().map(|(_, expected)| expected).collect();
    assert_eq!(done.out.lines().count(), expected.len() + 3, "{}", done.out);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_a_cluster_it_is_looked_for_on_every_master() {
    let cluster = RedisCluster::start(3, 0, Options::default());
    let place = Place::Cluster(&cluster);
    let look = || place.run("doctor", Path::new("--orphans"), &[]);
    assert_eq!(look().status, 1);
    for node in &cluster.nodes {
        assert_eq!(node.command("DBSIZE"), ":0", "nothing is made by looking");
    }
    let server = place.serve();
    register(&server, "one", "tasks: { a: { type: work }, b: { type: other } }").await;
    register(&server, "limited", "tasks: { t: { type: other, concurrency: { key: env, limit: 1 } } }").await;
    let working = echo(&server, &["work"]);
    for n in 0..30 {
        let large = serde_json::json!({ "text": "x".repeat(500) }).to_string();
        assert_eq!(server.start_run("one", &format!("r{n}"), &large).await.status, 201);
    }
    start(&server, "limited", "l1").await;
    for n in 0..30 {
        becomes(&server, &format!("r{n}"), |run| run["tasks"][0]["status"] == "completed").await;
    }
    becomes(&server, "l1", |run| run["tasks"][0]["status"] == "queued").await;
    assert_eq!(look().well(), "no orphans\n");
    working.abort();
    stop(server).await;
    assert_eq!(look().well(), "no orphans\n");

    // On each master: payloads of nobody, a run that is in no index any more, and one in the index that is none; a tag
    // that is no partition's.
    let mut expected = Vec::new();
    for node in &cluster.nodes {
        let runs = node.lines("KEYS db:{*}:r:r*").into_iter().filter(|line| line.starts_with("db:"));
        let record = runs.min().expect("a run on every master");
        let (partition, run) = record.split_once(":r:").unwrap();
        for command in [
            format!("HSET {partition}:p:gone i 1"),
            format!("ZREM {partition}:index {run}"),
            format!("ZADD {partition}:index 5 absent"),
        ] {
            assert_eq!(node.command(&command), ":1", "{command}");
        }
        expected.push(format!("{partition}:p:gone: payloads without a record"));
        expected.push(format!("{record}: a run that is in no index"));
        expected.push(format!("{partition}:index  absent: of no record"));
    }
    let tag = "db:{999999}:clock";
    assert!(cluster.nodes.iter().any(|node| node.command(&format!("SET {tag} x")) == "+OK"));
    expected.push(format!("{tag}: this layout has no such key"));
    let done = look();
    assert_eq!(done.status, 1);
    expected.sort();
    assert_eq!(done.out.lines().collect::<Vec<_>>(), expected);
}
