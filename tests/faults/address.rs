//! The address of Redis vanishes, or is another host's from one moment to the next.
//!
//! These need the right to make network namespaces; where there is none they say so, and show nothing.

use crate::network::Network;
use crate::redis::{Options, RedisServer};
use crate::store::{recovers, under_load};
use crate::support::crew::{Crew, audit_strictly};
use crate::support::server::{Server, free_address};
use crate::{CHAIN, readiness, register, start_all, until};
use std::time::Duration;

fn network(hosts: usize) -> Option<Network> {
    let network = Network::new(hosts);
    if network.is_none() {
        println!("skipped: this process may not make network namespaces");
    }
    network
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_address_that_vanishes_for_a_while_loses_nothing() {
    let Some(network) = network(1) else { return };
    let options = Options { aof: true, args: Vec::new() };
    let mut redis = RedisServer::start_in(&network.host(0), &network.own(0), options);
    under_load(&mut redis, |_| network.unplug(0), |_| network.plug(0), false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_address_that_moves_to_the_replica_takes_the_servers_with_it() {
    let Some(network) = network(2) else { return };
    let primary = RedisServer::start_in(&network.host(0), &network.own(0), Options::default());
    let replica = RedisServer::start_in(&network.host(1), &network.own(1), Options::default());
    assert_eq!(replica.command(&format!("REPLICAOF {} 6379", network.own(0))), "+OK");
    network.takes(0, &network.floating());
    let server = Server::serve(&format!("redis://{}:6379", network.floating()), None, free_address());
    register(*server, "chain", CHAIN).await;
    // Each task takes long enough that all are in the middle when the primary vanishes.
    let crew = Crew::at(&[*server, *server], "work", 5, Duration::from_secs(2));
    let runs = start_all(*server, "chain", 10).await;
    until("each has begun", Duration::from_secs(15), async || (crew.begun() >= 10).then_some(())).await;
    // Both have the same: what the primary took last is not to be lost here.
    let offset = |redis: &RedisServer, field: &str| {
        let info = redis.info("replication");
        let line = info.lines().find_map(|l| l.strip_prefix(field)?.strip_prefix(':')).map(str::to_owned);
        line.expect(field)
    };
    let same = async || {
        let of_primary = offset(&primary, "master_repl_offset");
        (of_primary == offset(&replica, "slave_repl_offset")
            && replica.info("replication").contains("link_status:up"))
        .then_some(())
    };
    until("the replica has all", Duration::from_secs(10), same).await;
    network.unplug(0);
    assert_eq!(replica.command("REPLICAOF NO ONE"), "+OK");
    network.takes(1, &network.floating());
    let back = async || {
        let report = server.has_logged("to another Redis than before");
        (report && readiness(*server).await == 200).then_some(())
    };
    until("the servers are with the new primary", Duration::from_secs(15), back).await;
    recovers(*server).await;
    audit_strictly(*server, runs, &crew).await;
    crew.leave().await;
}
