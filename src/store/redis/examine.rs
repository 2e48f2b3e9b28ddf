//! Looking at a Redis without changing it: what `downbeat doctor` judges.
//!
//! Invariants
//! - Nothing is written; an empty Redis stays empty.
//! - What a user may not ask is left out, and said.

use super::link::{Dialer, Endpoint, Place, Talk, Value, field};
use super::{Options, keys, reply};
use crate::model::time::{Clock as _, SystemClock};
use crate::store::{Result, StoreError};
use std::collections::BTreeMap;
use tokio::time::Instant;

/// How often it is asked for its latency.
const PINGS: usize = 100;
/// Settings that are looked at.
const SETTINGS: [&str; 6] = [
    "appendfsync",
    "auto-aof-rewrite-min-size",
    "min-replicas-to-write",
    "maxmemory-policy",
    "timeout",
    "cluster-require-full-coverage",
];

/// What was found.
#[derive(Debug, Clone, Default)]
pub struct Examined {
    info: String,
    /// Whether the address is that of a cluster; then all of this is about one of its nodes, but for the layout.
    pub of_cluster: bool,
    /// Whether Sentinels were asked where it is.
    pub by_sentinels: bool,
    /// Settings by name, as far as they may be asked.
    pub settings: BTreeMap<String, String>,
    /// Times of a round trip in µs, shortest first.
    pub round_trips: Vec<u64>,
    /// How far the clock of Redis is ahead of that of this machine, in µs; may be wrong by half a round trip.
    pub clock_ahead: i64,
    /// Layout version and number of partitions; none if no store is in it.
    pub layout: Option<(u32, u32)>,
    /// What the user may not ask, with what Redis said.
    pub refused: Vec<(String, String)>,
}

impl Examined {
    /// A line of what Redis says about itself; empty if it does not.
    pub fn info(&self, name: &str) -> &str {
        field(&self.info, name)
    }

    /// What it watches if it is a Sentinel, no Redis: `(name, address, status)` of each master.
    pub fn watches(&self) -> Option<Vec<(&str, &str, &str)>> {
        if self.info("redis_mode") != "sentinel" {
            return None;
        }
        let masters = self.info.lines().filter_map(|line| line.trim_end().split_once(":name="));
        let masters = masters.filter(|(key, _)| key.starts_with("master")).map(|(_, told)| {
            let mut parts = told.split(',');
            let name = parts.next().unwrap_or_default();
            let part = |key: &str| {
                let found = parts.clone().find_map(|p| p.strip_prefix(key)?.strip_prefix('='));
                found.unwrap_or("unknown")
            };
            (name, part("address"), part("status"))
        });
        Some(masters.collect())
    }

    /// The same as a number.
    pub fn number(&self, name: &str) -> Option<f64> {
        self.info(name).parse().ok()
    }
}

/// Looks at the Redis at `url`.
///
/// # Errors
/// It cannot be reached, or nothing may be asked.
pub async fn examine(url: &str, options: &Options) -> Result<Examined> {
    let dialer = Dialer::new(url, options.access.clone())?;
    let (mut talk, of_cluster) = reach(&dialer).await?;
    let info = reply::text(talk.ask(&redis::cmd("INFO")).await?, "INFO")?;
    let by_sentinels = matches!(dialer.place(), Place::Sentinels { .. });
    let mut found = Examined { info, of_cluster, by_sentinels, ..Examined::default() };
    if found.watches().is_some() {
        return Ok(found);
    }
    for name in SETTINGS {
        let mut get = redis::cmd("CONFIG");
        get.arg("GET").arg(name);
        if let Some(value) = asked(&mut talk, &mut found.refused, "CONFIG GET", &get).await
            && let Ok(items) = reply::array(value, "a setting")
            && let Some(value) = items.into_iter().nth(1)
        {
            found.settings.insert(name.into(), reply::text(value, "a setting")?);
        }
    }
    let ping = redis::cmd("PING");
    for _ in 0..PINGS {
        let began = Instant::now();
        talk.ask(&ping).await?;
        found.round_trips.push(u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX));
    }
    found.round_trips.sort_unstable();
    let (before, asked_at) = (SystemClock.now(), Instant::now());
    if let Some(value) = asked(&mut talk, &mut found.refused, "TIME", &redis::cmd("TIME")).await {
        let parts: Vec<i64> = reply::array(value, "its time")?
            .into_iter()
            .map(|part| reply::parsed(part, "its time"))
            .collect::<Result<_>>()?;
        if let [seconds, micros] = parts[..] {
            let half = i64::try_from(asked_at.elapsed().as_micros() / 2).unwrap_or(0);
            found.clock_ahead = seconds * 1_000_000 + micros - (before.0 + half);
        }
    }
    let mut meta = redis::cmd("HMGET");
    meta.arg(keys::META).arg("layout").arg("partitions");
    if let Some(node) = talk.ask(&meta).await.err().and_then(moved) {
        talk = dialer.at(node).connect().await?;
    }
    if let Some(value) = asked(&mut talk, &mut found.refused, "HMGET", &meta).await
        && let Ok([layout, partitions]) = <[Value; 2]>::try_from(reply::array(value, "its meta record")?)
        && layout != Value::Nil
    {
        let layout = reply::parsed(layout, "its layout version")?;
        found.layout = Some((layout, reply::parsed(partitions, "its number of partitions").unwrap_or(0)));
    }
    Ok(found)
}

/// A connection to what stands at the address; of a cluster, to the first node that answers. The flag says which.
async fn reach(dialer: &Dialer) -> Result<(Talk, bool)> {
    let Place::Cluster(nodes) = dialer.place() else { return Ok((dialer.connect().await?, false)) };
    let mut last = reply::unexpected("its address");
    for node in nodes {
        match dialer.at(node.clone()).connect().await {
            Ok(talk) => return Ok((talk, true)),
            Err(e) => last = e,
        }
    }
    Err(last)
}

/// The node that a key has moved to: `MOVED SLOT HOST:PORT`.
fn moved(error: StoreError) -> Option<Endpoint> {
    let said = reply::said(error);
    let mut words = said.strip_prefix("MOVED ")?.split(' ');
    let (host, port) = words.nth(1)?.rsplit_once(':')?;
    Some(Endpoint::Tcp(host.trim_matches(['[', ']']).to_owned(), port.parse().ok()?))
}

async fn asked(
    talk: &mut Talk,
    refused: &mut Vec<(String, String)>,
    what: &str,
    cmd: &redis::Cmd,
) -> Option<Value> {
    match talk.ask(cmd).await {
        Ok(value) => Some(value),
        Err(e) => {
            refused.push((what.to_owned(), reply::said(e)));
            None
        }
    }
}
