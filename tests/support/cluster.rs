//! A Redis Cluster of one's own: masters, and replicas if wanted, each a [`RedisServer`].

#![allow(dead_code, reason = "each test crate uses a part of it")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use crate::redis_server::{Options, RedisServer};
use std::time::Duration;
use tokio::time::Instant;

/// Ports of nodes are below this, as that of the bus is 10,000 above.
const PORTS: u16 = 55_000;
/// Slots of a cluster.
const SLOTS: usize = 16_384;
/// How long it may take until all nodes agree.
const PATIENCE: Duration = Duration::from_secs(30);

/// A running cluster.
#[derive(Debug)]
pub(crate) struct RedisCluster {
    /// Masters first (as it was begun), then as many replicas of each as were wanted, in the same order.
    pub(crate) nodes: Vec<RedisServer>,
    masters: usize,
}

impl RedisCluster {
    /// Starts `masters` masters, each with `replicas` replicas, and waits until they are one.
    pub(crate) fn start(masters: usize, replicas: usize, options: Options) -> Self {
        let node_options = || {
            let mut args = options.args.clone();
            for more in ["--cluster-enabled", "yes", "--cluster-node-timeout", "1500"] {
                args.push(more.into());
            }
            args.extend(["--cluster-require-full-coverage", "no"].map(String::from));
            args.extend(["--repl-diskless-sync-delay", "0"].map(String::from));
            Options { args, ..options.clone() }
        };
        let nodes: Vec<_> =
            (0..masters * (1 + replicas)).map(|_| RedisServer::start_below(node_options(), PORTS)).collect();
        let cluster = Self { nodes, masters };
        for (n, master) in cluster.nodes[..masters].iter().enumerate() {
            let (from, to) = (SLOTS * n / masters, SLOTS * (n + 1) / masters - 1);
            assert_eq!(master.command(&format!("CLUSTER ADDSLOTSRANGE {from} {to}")), "+OK");
            // Epochs that differ, so that nobody quarrels about who is right.
            master.command(&format!("CLUSTER SET-CONFIG-EPOCH {}", n + 1));
        }
        // The port of the bus follows from that for clients of the same kind.
        let first = match cluster.nodes[0].tls_port() {
            0 => cluster.nodes[0].port(),
            port => port,
        };
        for node in &cluster.nodes[1..] {
            assert_eq!(node.command(&format!("CLUSTER MEET 127.0.0.1 {first}")), "+OK");
        }
        cluster.until(|| cluster.nodes.iter().all(|n| Self::knows(n) == cluster.nodes.len()));
        for (r, replica) in cluster.nodes[masters..].iter().enumerate() {
            let master = Self::id(&cluster.nodes[r % masters]);
            cluster.until(|| replica.command(&format!("CLUSTER REPLICATE {master}")) == "+OK");
        }
        cluster.until(|| cluster.is_whole());
        cluster.until(|| {
            cluster.nodes[masters..].iter().all(|n| n.info("replication").contains("master_link_status:up"))
        });
        cluster
    }

    /// Its address: that of one node.
    pub(crate) fn url(&self) -> String {
        format!("redis+cluster://127.0.0.1:{}", self.nodes[0].port())
    }

    /// Its address: all nodes.
    pub(crate) fn whole_url(&self) -> String {
        let hosts: Vec<_> = self.nodes.iter().map(|n| format!("127.0.0.1:{}", n.port())).collect();
        format!("redis+cluster://{}", hosts.join(","))
    }

    /// Where the node stands that has a slot, as the nodes that run see it.
    pub(crate) fn owner_of(&self, slot: usize) -> Option<usize> {
        let told = self.nodes.iter().find(|n| n.is_running())?.lines("CLUSTER NODES");
        let node = told.iter().find(|line| {
            line.contains("master")
                && line.split(' ').skip(8).any(|range| {
                    let (from, to) = range.split_once('-').unwrap_or((range, range));
                    from.parse::<usize>().is_ok_and(|f| f <= slot)
                        && to.parse::<usize>().is_ok_and(|t| slot <= t)
                })
        })?;
        let port: u16 = node.split(' ').nth(1)?.split(['@']).next()?.rsplit(':').next()?.parse().ok()?;
        self.nodes.iter().position(|n| n.port() == port)
    }

    /// Nodes that are masters now and run.
    pub(crate) fn masters(&self) -> Vec<usize> {
        let is_master = |n: &RedisServer| n.is_running() && n.info("replication").contains("role:master");
        (0..self.nodes.len()).filter(|at| is_master(&self.nodes[*at])).collect()
    }

    /// Whether every node that runs finds the cluster whole.
    pub(crate) fn is_whole(&self) -> bool {
        self.nodes.iter().filter(|n| n.is_running()).all(|n| {
            let told = n.lines("CLUSTER INFO");
            told.iter().any(|l| l == "cluster_state:ok") && told.iter().any(|l| l == "cluster_slots_ok:16384")
        })
    }

    /// Waits for something.
    pub(crate) fn until(&self, mut holds: impl FnMut() -> bool) {
        let since = Instant::now();
        while !holds() {
            assert!(since.elapsed() < PATIENCE, "the cluster does not come about: {:?}", self.told());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn told(&self) -> Vec<Vec<String>> {
        self.nodes.iter().filter(|n| n.is_running()).map(|n| n.lines("CLUSTER NODES")).collect()
    }

    fn knows(node: &RedisServer) -> usize {
        node.lines("CLUSTER NODES").iter().filter(|line| !line.contains("handshake")).count()
    }

    fn id(node: &RedisServer) -> String {
        node.lines("CLUSTER MYID").remove(0)
    }
}
