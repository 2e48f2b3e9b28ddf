//! The Redis of a measurement: one or a cluster of our own, and what Redis tells of what it did.
//!
//! Of a cluster, numbers are those of all its primaries together.

use super::fleet::{PATIENCE, log};
use crate::cli::Failure;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::{Child, Command};

/// Primaries of a cluster of our own.
const PRIMARIES: usize = 3;
/// Slots of a cluster.
const SLOTS: usize = 16_384;
/// Ports of nodes are below this: that of the bus is 10,000 above.
const NODE_PORTS: u16 = 55_000;

/// What each Redis says of itself, by name.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Told(Vec<BTreeMap<String, String>>);

impl Told {
    /// Asks all of them; none if one does not tell.
    pub(super) async fn of(addresses: &[String]) -> Option<Self> {
        let told = futures::future::join_all(addresses.iter().map(|a| info(a))).await;
        told.into_iter().collect::<Option<Vec<_>>>().filter(|told| !told.is_empty()).map(Self)
    }

    fn sum(&self, of: impl Fn(&BTreeMap<String, String>) -> Option<f64>) -> Option<f64> {
        self.0.iter().map(of).sum()
    }

    /// A number that Redis tells, or the calls of a command, which is not listed before its first.
    pub(super) fn count(&self, key: &str) -> Option<f64> {
        self.sum(|info| count(info, key).or(key.starts_with("cmdstat_").then_some(0.0)))
    }

    /// Bytes that Redis keeps for what is stored: the data with the keys, hash tables and indexes that hold it, and not
    /// what is there for connections and on its way to the disk. (`used_memory_dataset` would leave out the keys' tables,
    /// too.)
    pub(super) fn memory(&self) -> Option<f64> {
        self.sum(memory)
    }

    /// Keys of all databases.
    pub(super) fn keys(&self) -> Option<f64> {
        self.sum(keys)
    }

    /// Which Redis it is, and whether it writes what it does to a file.
    pub(super) fn about(&self) -> Value {
        let mut about = about(&self.0[0]);
        if self.0.len() > 1 {
            about["primaries"] = json!(self.0.len());
        }
        about
    }

    /// What part each primary of a cluster had in a count since `before`, in order of their addresses.
    pub(super) fn shares(&self, before: &Self, key: &str) -> Option<Vec<f64>> {
        let grown = |(now, then)| Some(count(now, key)? - count(then, key)?);
        let grown: Vec<f64> = self.0.iter().zip(&before.0).map(grown).collect::<Option<_>>()?;
        let sum: f64 = grown.iter().sum();
        (grown.len() > 1 && sum > 0.0).then(|| grown.iter().map(|n| n / sum).collect())
    }
}

/// A Redis of our own, as a careful operator would set it up; returns `host:port`.
pub(super) async fn start(dir: &Path, logs: &Path) -> Result<(Child, String), Failure> {
    let port = TcpListener::bind("127.0.0.1:0").await?.local_addr()?.port();
    start_at(port, dir, log(logs, "redis.log")?.into(), &[]).await
}

/// A Redis Cluster of our own; returns each primary with its `host:port`.
pub(super) async fn start_cluster(dir: &Path, logs: &Path) -> Result<Vec<(Child, String)>, Failure> {
    let mut nodes = Vec::new();
    let mut port =
        TcpListener::bind("127.0.0.1:0").await?.local_addr()?.port() % (NODE_PORTS / 2) + NODE_PORTS / 2;
    while nodes.len() < PRIMARIES {
        port -= 1;
        let free = |port| TcpListener::bind(("127.0.0.1", port));
        if free(port).await.is_err() || free(port + 10_000).await.is_err() {
            continue;
        }
        let n = nodes.len();
        let own = dir.join(format!("node-{n}"));
        std::fs::create_dir(&own)?;
        let log = log(logs, &format!("redis-{n}.log"))?;
        nodes.push(start_at(port, &own, log.into(), &["--cluster-enabled", "yes"]).await?);
    }
    let first = nodes[0].1.replace(':', " ");
    for (n, (_, address)) in nodes.iter().enumerate() {
        let (from, to) = (SLOTS * n / PRIMARIES, SLOTS * (n + 1) / PRIMARIES - 1);
        told(address, &format!("CLUSTER ADDSLOTSRANGE {from} {to}")).await?;
        told(address, &format!("CLUSTER SET-CONFIG-EPOCH {}", n + 1)).await?;
        if n > 0 {
            told(address, &format!("CLUSTER MEET {first}")).await?;
        }
    }
    let whole = async {
        for (_, address) in &nodes {
            while !text(address, "CLUSTER INFO").await.is_some_and(|t| {
                t.contains("cluster_state:ok") && t.contains(&format!("cluster_known_nodes:{PRIMARIES}"))
            }) {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    };
    tokio::time::timeout(PATIENCE, whole)
        .await
        .map_err(|_| Failure::failed("the cluster was not whole within 20 s"))?;
    Ok(nodes)
}

async fn start_at(port: u16, dir: &Path, log: Stdio, more: &[&str]) -> Result<(Child, String), Failure> {
    let child = Command::new("redis-server")
        .args(["--bind", "127.0.0.1", "--port", &port.to_string(), "--save", ""])
        .args(["--appendonly", "yes", "--appendfsync", "everysec", "--auto-aof-rewrite-min-size", "4gb"])
        .arg("--dir")
        .arg(dir)
        .args(more)
        .stdin(Stdio::null())
        .stdout(log)
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .map_err(|e| Failure::failed(format!("redis-server: {e}; --store embedded needs none")))?;
    let address = format!("127.0.0.1:{port}");
    let ready = async {
        while info(&address).await.is_none() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, ready)
        .await
        .map_err(|_| Failure::failed("redis-server was not ready within 20 s"))?;
    Ok((child, address))
}

/// What Redis says of itself; none if it does not.
async fn info(address: &str) -> Option<BTreeMap<String, String>> {
    let text = text(address, "INFO ALL").await?;
    Some(text.lines().filter_map(|l| l.split_once(':')).map(|(k, v)| (k.to_owned(), v.to_owned())).collect())
}

/// What Redis answers with a text.
async fn text(address: &str, command: &str) -> Option<String> {
    let ask = async {
        let mut stream = TcpStream::connect(address).await.ok()?;
        stream.write_all(format!("{command}\r\n").as_bytes()).await.ok()?;
        let mut reader = BufReader::new(stream);
        let mut head = String::new();
        reader.read_line(&mut head).await.ok()?;
        let size: usize = head.trim().strip_prefix('$')?.parse().ok()?;
        let mut text = vec![0; size.min(1 << 20)];
        reader.read_exact(&mut text).await.ok()?;
        String::from_utf8(text).ok()
    };
    tokio::time::timeout(Duration::from_secs(2), ask).await.ok().flatten()
}

/// Tells Redis to do something.
pub(super) async fn told(address: &str, command: &str) -> Result<(), Failure> {
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(format!("{command}\r\n").as_bytes()).await?;
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer).await?;
    if answer.starts_with('+') {
        return Ok(());
    }
    Err(Failure::failed(format!("redis-server: {command}: {}", answer.trim())))
}

fn count(info: &BTreeMap<String, String>, key: &str) -> Option<f64> {
    let text = info.get(key)?;
    text.strip_prefix("calls=").and_then(|t| t.split(',').next()).unwrap_or(text).parse().ok()
}

fn memory(info: &BTreeMap<String, String>) -> Option<f64> {
    let passing = ["mem_clients_normal", "mem_clients_slaves", "mem_aof_buffer"];
    let passing: f64 = passing.iter().filter_map(|key| count(info, key)).sum();
    Some(count(info, "used_memory")? - passing)
}

fn about(info: &BTreeMap<String, String>) -> Value {
    // Valkey tells its own version beside the one that it is compatible with.
    let version = info.get("valkey_version").map(|v| format!("valkey {v}"));
    let version = version.or_else(|| info.get("redis_version").map(|v| format!("redis {v}")));
    json!({ "version": version, "append_only_file": info.get("aof_enabled").is_some_and(|on| on == "1") })
}

fn keys(info: &BTreeMap<String, String>) -> Option<f64> {
    let databases =
        info.iter().filter(|(name, _)| name.starts_with("db") && name[2..].parse::<u32>().is_ok());
    let keys = |text: &str| text.strip_prefix("keys=")?.split(',').next()?.parse::<f64>().ok();
    databases.map(|(_, text)| keys(text)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(lines: &[(&str, &str)]) -> BTreeMap<String, String> {
        lines.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
    }

    #[test]
    fn of_a_cluster_all_is_told_together_and_what_part_each_had() {
        let told = |a, b| {
            Told(vec![
                info(&[("total_commands_processed", a), ("db0", "keys=1")]),
                info(&[("total_commands_processed", b)]),
            ])
        };
        let (before, after) = (told("10", "20"), told("40", "30"));
        assert_eq!(after.count("total_commands_processed"), Some(70.0));
        assert_eq!(after.count("cmdstat_get"), Some(0.0));
        assert_eq!(after.keys(), Some(1.0));
        assert_eq!(after.shares(&before, "total_commands_processed"), Some(vec![0.75, 0.25]));
        assert_eq!(after.shares(&after, "total_commands_processed"), None);
    }

    #[test]
    fn the_memory_of_redis_is_that_of_what_is_stored() {
        let lines = [
            ("used_memory", "10000"),
            ("mem_clients_normal", "1000"),
            ("mem_clients_slaves", "200"),
            ("mem_aof_buffer", "30"),
        ];
        assert_eq!(memory(&info(&lines)), Some(8_770.0));
        assert_eq!(memory(&info(&lines[1..])), None);
    }

    #[test]
    fn which_redis_it_was_is_told() {
        let redis = info(&[("redis_version", "7.0.15"), ("aof_enabled", "1")]);
        assert_eq!(about(&redis), json!({ "version": "redis 7.0.15", "append_only_file": true }));
        let valkey = info(&[("redis_version", "7.2.4"), ("valkey_version", "8.1.0"), ("aof_enabled", "0")]);
        assert_eq!(about(&valkey), json!({ "version": "valkey 8.1.0", "append_only_file": false }));
    }

    #[test]
    fn commands_and_keys_are_read_from_what_redis_tells() {
        let info = info(&[
            ("cmdstat_mset", "calls=17,usec=9,usec_per_call=0.53"),
            ("total_commands_processed", "99"),
            ("db0", "keys=12,expires=1,avg_ttl=0"),
            ("db3", "keys=30,expires=0,avg_ttl=0"),
            ("dbx", "keys=1000"),
        ]);
        assert_eq!(count(&info, "cmdstat_mset"), Some(17.0));
        assert_eq!(count(&info, "total_commands_processed"), Some(99.0));
        assert_eq!(count(&info, "cmdstat_get"), None);
        assert_eq!(keys(&info), Some(42.0));
        assert_eq!(keys(&BTreeMap::new()), Some(0.0));
    }
}
