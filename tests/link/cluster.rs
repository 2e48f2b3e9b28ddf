//! A cluster as the link meets it: over TLS, and with nodes that do not agree.

use super::login::Certificates;
use super::redis_cluster::RedisCluster;
use super::redis_server::{FREE_PORT, Options as Server};
use super::*;
use downbeat::model::ids::Partition;
use downbeat::store::redis::Access;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_over_tls_is_worked_on_by_the_name_in_its_certificates() {
    let certificates = Certificates::new();
    let mut args = certificates.args();
    args.extend(["--tls-port", FREE_PORT, "--tls-cluster", "yes"].map(str::to_owned));
    let cluster = RedisCluster::start(3, 0, Server { args, ..Server::default() });

    // The nodes tell addresses, and their certificates are for a name.
    let url = format!("rediss+cluster://127.0.0.1:{}", cluster.nodes[1].tls_port());
    let plain = Options { access: certificates.access(), ..Options::default() };
    let error = RedisStore::open(&url, plain.clone()).await.unwrap_err();
    assert!(error.to_string().contains("redis.server_name"), "{error}");
    let access = Access { server_name: Some("localhost".into()), ..certificates.access() };
    let store = RedisStore::open(&url, Options { access, ..plain }).await.unwrap();
    let all: Vec<_> = (0..store.layout().partitions).map(Partition).collect();
    assert_eq!(store.tick(&all, 1).await.unwrap().len(), 48);
    start(&store, 1, "a").await.unwrap();
    assert_eq!(store.link_reports().len(), 3, "a link to each");
    for node in &cluster.nodes {
        assert!(node.command("CLIENT KILL TYPE normal").starts_with(':'));
    }
    recovered(&store).await;
    start(&store, 2, "b").await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_that_send_us_back_and_forth_are_given_up_in_time_and_hold_up_nobody_else() {
    let cluster = RedisCluster::start(3, 0, Server::default());
    let store = RedisStore::open(&cluster.url(), Options::default()).await.unwrap();
    start(&store, 1, "a").await.unwrap();
    // The record of the run tells the slot of its partition, which is taken from its master in favour of the next, who
    // holds that it is the first one's.
    let of_run =
        |node: &RedisServer| node.lines("KEYS db:{*}:r:a").iter().find(|l| l.starts_with("db:")).cloned();
    let (home, key) =
        cluster.nodes.iter().enumerate().find_map(|(n, node)| Some((n, of_run(node)?))).unwrap();
    let slot =
        cluster.nodes[home].command(&format!("CLUSTER KEYSLOT {key}")).trim_start_matches(':').to_owned();
    let next = (home + 1) % 3;
    let id = |n: usize| cluster.nodes[n].lines("CLUSTER MYID").remove(0);
    let (home_id, next_id) = (id(home), id(next));
    let home_port = cluster.nodes[home].port();
    let taken = cluster.nodes[home].command(&format!("CLUSTER SETSLOT {slot} MIGRATING {next_id}"));
    assert_eq!(taken, "+OK");
    assert_eq!(cluster.nodes[next].command(&format!("CLUSTER SETSLOT {slot} IMPORTING {home_id}")), "+OK");
    loop {
        let keys = cluster.nodes[home].lines(&format!("CLUSTER GETKEYSINSLOT {slot} 1"));
        let Some(key) = keys.iter().find(|line| line.starts_with("db:")) else { break };
        let port = cluster.nodes[next].port();
        assert_eq!(cluster.nodes[home].command(&format!("MIGRATE 127.0.0.1 {port} {key} 0 5000")), "+OK");
    }
    assert_eq!(cluster.nodes[next].command(&format!("CLUSTER SETSLOT {slot} STABLE")), "+OK");
    assert_eq!(cluster.nodes[home].command(&format!("CLUSTER SETSLOT {slot} NODE {next_id}")), "+OK");
    let moved = |n: usize| cluster.nodes[n].command(&format!("GET {key}"));
    assert!(moved(home).starts_with("-MOVED"), "{}", moved(home));
    assert!(moved(next).ends_with(&format!(":{home_port}")), "{}", moved(next));

    let began = Instant::now();
    let error = store.load(&[(P, run("a"))]).await.unwrap_err();
    assert!(began.elapsed() < Duration::from_secs(6), "{:?}", began.elapsed());
    assert!(!error.was_sent() && error.to_string().contains("MOVED"), "{error}");
    // Everybody else is served.
    let others: Vec<_> = (0..48).filter(|p| *p != P.0).map(Partition).collect();
    let mut served = 0;
    for p in others {
        served += usize::from(store.load(&[(p, run("a"))]).await.is_ok());
    }
    assert_eq!(served, 47);
    // Once they agree it is there again, with all it had.
    assert_eq!(cluster.nodes[next].command(&format!("CLUSTER SETSLOT {slot} NODE {next_id}")), "+OK");
    until("it is there again", async || there(&store, &["a".into()]).await == Ok(vec![true])).await;
}
