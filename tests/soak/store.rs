//! The Redis side of a soak: one server, or a cluster of three masters with a replica each. Everything else of the soak is
//! the same for both.

use crate::nemesis::{Drawn, Fault};
use crate::redis_cluster::RedisCluster;
use crate::redis_server::{Options, RedisServer};
use crate::support::proxy::Proxy;
use std::time::Duration;
use tokio::task::block_in_place;
use tokio::time::Instant;

/// A cluster is whole again within this time after a fault.
const WHOLE: Duration = Duration::from_mins(1);

/// See the module.
pub(crate) enum Redis {
    Single(RedisServer),
    Cluster(RedisCluster),
}

/// As the report has it.
pub(crate) fn words(kind: &str) -> &'static str {
    match kind {
        "cluster" => "a Redis Cluster of three masters with a replica each, durability `replicated`",
        _ => "one Redis (append-only file, fsync always)",
    }
}

impl Redis {
    pub(crate) fn start(kind: &str) -> Self {
        // With everysec a write to the file waits while an fsync is slow, and `kill -9` loses what waits: the loss would be
        // that of Redis, and is what `faults/store.rs` looks at.
        let args = ["--appendfsync", "always"].map(str::to_owned).to_vec();
        let options = Options { aof: true, args };
        match kind {
            "single" => Self::Single(RedisServer::start(options)),
            "cluster" => Self::Cluster(RedisCluster::start(3, 1, options)),
            other => panic!("redis={other}: it is single or cluster"),
        }
    }

    /// What servers are told besides the address. A fail-over may lose what no replica has.
    pub(crate) fn settings(&self) -> Vec<(&'static str, &'static str)> {
        match self {
            Self::Single(_) => Vec::new(),
            Self::Cluster(_) => vec![("DOWNBEAT_DURABILITY", "replicated")],
        }
    }

    /// The address for a server, and the proxy that it leads to if there can be one.
    pub(crate) fn address(&self) -> (String, Option<Proxy>) {
        match self {
            Self::Single(server) => {
                let proxy = Proxy::before_port(server.port());
                (proxy.redis_url(), Some(proxy))
            }
            Self::Cluster(cluster) => (cluster.whole_url(), None),
        }
    }

    /// Injects a fault, waits, and takes it back.
    pub(crate) async fn strike(&mut self, drawn: Drawn) -> bool {
        match self {
            Self::Single(server) => at(server, drawn).await,
            Self::Cluster(cluster) => in_cluster(cluster, drawn).await,
        }
        true
    }
}

async fn at(server: &mut RedisServer, drawn: Drawn) {
    match drawn.fault {
        Fault::StopRedis => {
            server.signal("STOP");
            tokio::time::sleep(drawn.seconds(6.0)).await;
            server.signal("CONT");
        }
        Fault::KillRedis => {
            server.kill9();
            tokio::time::sleep(drawn.seconds(2.0)).await;
            block_in_place(|| server.restart());
        }
        Fault::ForkRedis => drop(server.command("BGSAVE")),
        Fault::FlushScripts => drop(server.command("SCRIPT FLUSH")),
        Fault::KillClients => {
            server.command("CLIENT KILL TYPE normal");
            server.command("CLIENT KILL TYPE pubsub");
        }
        Fault::ReadOnly => {
            server.command("REPLICAOF 127.0.0.1 1");
            tokio::time::sleep(drawn.seconds(3.0)).await;
            server.command("REPLICAOF NO ONE");
        }
        _ => {
            server.command("CONFIG SET maxmemory 1kb");
            tokio::time::sleep(drawn.seconds(5.0)).await;
            server.command("CONFIG SET maxmemory 0");
        }
    }
}

/// The same at one of the masters; one that is taken over from comes back as a replica.
async fn in_cluster(cluster: &mut RedisCluster, drawn: Drawn) {
    let masters = block_in_place(|| cluster.masters());
    let master = masters[drawn.which % masters.len()];
    match drawn.fault {
        Fault::KillRedis => {
            cluster.nodes[master].kill9();
            whole(cluster).await;
            block_in_place(|| cluster.nodes[master].restart());
        }
        Fault::ReadOnly => {
            let replicas: Vec<_> = (0..cluster.nodes.len()).filter(|n| !masters.contains(n)).collect();
            let replica = replicas[drawn.which % replicas.len()];
            block_in_place(|| cluster.nodes[replica].command("CLUSTER FAILOVER"));
            tokio::time::sleep(drawn.seconds(3.0)).await;
        }
        _ => at(&mut cluster.nodes[master], drawn).await,
    }
    whole(cluster).await;
}

/// Waits until every slot has a master, and every replica what its master has.
async fn whole(cluster: &RedisCluster) {
    let began = Instant::now();
    let is_whole = || {
        let linked = |n: &RedisServer| {
            let told = n.info("replication");
            told.contains("role:master") || told.contains("master_link_status:up")
        };
        cluster.is_whole() && cluster.nodes.iter().filter(|n| n.is_running()).all(linked)
    };
    while !block_in_place(is_whole) {
        assert!(began.elapsed() < WHOLE, "the cluster does not become whole again");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}
