//! A small network of one's own: a bridge on this machine, and hosts on it, each a network namespace. For addresses that
//! vanish or move to another host, which no proxy can show.
//!
//! Needs Linux, the command `ip`, and the right to make namespaces (`CAP_NET_ADMIN`, `CAP_SYS_ADMIN`); gone when dropped.
//! The addresses are of 198.18.0.0/15, which is for tests (RFC 2544).

#![allow(dead_code, reason = "each test crate uses a part of it")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::process::{Command, Stdio};

/// See the module.
#[derive(Debug)]
pub(crate) struct Network {
    /// Of this process: 15 bits.
    number: u32,
    hosts: usize,
}

fn ip(args: &str) -> bool {
    let mut command = Command::new("ip");
    command.args(args.split_whitespace()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

fn must(args: &str) {
    assert!(ip(args), "ip {args}");
}

impl Network {
    /// A network of so many hosts (at most 2), each with the address of its number; `None` where this process may make
    /// none.
    pub(crate) fn new(hosts: usize) -> Option<Self> {
        // Each process has at most one; four addresses are enough for the bridge, two hosts, and one that moves.
        let network = Self { number: std::process::id() % (1 << 14), hosts };
        network.remove();
        let bridge = network.bridge();
        if !ip(&format!("link add {bridge} type bridge")) {
            return None;
        }
        if !ip(&format!("netns add {}", network.host(0))) {
            network.remove();
            return None;
        }
        must(&format!("addr add {}/29 dev {bridge}", network.address(1)));
        must(&format!("link set {bridge} up"));
        for n in 0..hosts {
            let (host, port) = (network.host(n), format!("{bridge}p{n}"));
            if n > 0 {
                must(&format!("netns add {host}"));
            }
            must(&format!("link add {port} type veth peer name inner netns {host}"));
            must(&format!("link set {port} master {bridge} up"));
            must(&format!("-n {host} link set lo up"));
            must(&format!("-n {host} link set inner up"));
            network.takes(n, &network.own(n));
        }
        Some(network)
    }

    fn bridge(&self) -> String {
        format!("db{}", self.number)
    }

    /// The namespace of a host, from 0.
    pub(crate) fn host(&self, n: usize) -> String {
        format!("db{}h{n}", self.number)
    }

    fn address(&self, n: u32) -> String {
        let all = (198 << 24 | 18 << 16) + self.number * 8 + n;
        std::net::Ipv4Addr::from(all).to_string()
    }

    /// The address of a host that stays with it.
    pub(crate) fn own(&self, n: usize) -> String {
        self.address(2 + n as u32)
    }

    /// An address that nobody has yet.
    pub(crate) fn floating(&self) -> String {
        self.address(6)
    }

    /// A host takes an address; whoever knew it of another host learns of that, as by a gratuitous ARP.
    pub(crate) fn takes(&self, n: usize, address: &str) {
        must(&format!("-n {} addr add {address}/29 dev inner", self.host(n)));
        ip(&format!("neigh flush to {address}"));
    }

    /// A host vanishes: nobody answers at its addresses, and nobody says so.
    pub(crate) fn unplug(&self, n: usize) {
        must(&format!("-n {} link set inner down", self.host(n)));
    }

    /// It is there again.
    pub(crate) fn plug(&self, n: usize) {
        must(&format!("-n {} link set inner up", self.host(n)));
    }

    fn remove(&self) {
        for n in 0..self.hosts {
            // By name: a namespace lives on while a connection in it waits for its other end.
            ip(&format!("link del {}p{n}", self.bridge()));
            ip(&format!("netns del {}", self.host(n)));
        }
        ip(&format!("link del {}", self.bridge()));
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        self.remove();
    }
}
