//! Opening: is it a Redis we can work on, and with the settings that keep work safe?

use super::link::{self, Dialer, Durability, Prepared, Talk, field};
use super::reply;
use crate::store::{LAYOUT, Layout, PARTITIONS, Result, StoreError};
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// The oldest Redis that knows all commands we use.
const OLDEST: (u32, u32) = (6, 2);
/// The most partitions a store may have.
const MAX_PARTITIONS: u16 = 1_024;

/// How long a start waits for a Redis that is there and takes nothing yet.
const PATIENCE: Duration = Duration::from_mins(1);
/// How often it looks.
const AGAIN: Duration = Duration::from_millis(500);

/// Whether a refusal passes by itself.
fn passes(error: &StoreError) -> bool {
    matches!(error, StoreError::Unavailable { message, .. } if message.contains("LOADING ") || message.contains("BUSY "))
}

fn refuse(message: impl Into<String>) -> StoreError {
    StoreError::Unavailable { message: message.into(), sent: false }
}

/// Connects, checks the server, loads the scripts, initialises or reads the layout.
pub(super) async fn open(
    dialer: &Dialer,
    durability: Durability,
    partitions: Option<u16>,
) -> Result<Prepared> {
    if partitions.is_some_and(|p| p == 0 || p > MAX_PARTITIONS) {
        return Err(refuse(format!("the number of partitions must be 1 to {MAX_PARTITIONS}")));
    }
    let mut random = [0; 8];
    getrandom::fill(&mut random).map_err(|e| refuse(format!("no randomness from the system: {e}")))?;
    let candidate = Layout {
        version: LAYOUT,
        partitions: partitions.unwrap_or(PARTITIONS),
        // Positive as a signed number, so that every language reads it.
        epoch: u64::from_be_bytes(random) >> 1,
    };
    let began = Instant::now();
    let prepared = loop {
        match link::prepare(dialer, durability, candidate).await {
            Err(e) if passes(&e) && began.elapsed() < PATIENCE => {
                tracing::warn!(why = %e, "Redis is there and takes nothing yet; waiting for it");
                sleep(AGAIN).await;
            }
            prepared => break prepared?,
        }
    };
    let layout = prepared.layout;
    if prepared.initialised {
        tracing::info!(partitions = layout.partitions, layout = layout.version, "initialised the store");
    }
    if let Some(asked) = partitions.filter(|p| *p != layout.partitions) {
        return Err(refuse(format!(
            "the store was initialised with {} partitions, {asked} were asked for; backup and restore re-partition it",
            layout.partitions
        )));
    }
    Ok(prepared)
}

/// Refuses a Redis that we cannot work on, by what it says of itself.
pub(super) fn check(info: &str) -> Result<()> {
    let field = |name: &str| field(info, name);
    let version = field("redis_version");
    let mut numbers = version.split('.').map(|n| n.parse::<u32>().unwrap_or(0));
    let found = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if found < OLDEST {
        return Err(refuse(format!(
            "Redis {version} is too old: {}.{} or newer is needed",
            OLDEST.0, OLDEST.1
        )));
    }
    if field("cluster_enabled") == "1" {
        return Err(refuse("this is a node of a Redis Cluster, which redis:// cannot work on"));
    }
    if field("role") == "slave" {
        return Err(refuse("this Redis is a replica; the address must be that of the primary"));
    }
    let policy = field("maxmemory_policy");
    if !policy.is_empty() && policy != "noeviction" {
        tracing::warn!(
            policy,
            "Redis may evict keys of runs when it is full: set maxmemory-policy to noeviction"
        );
    }
    if field("aof_enabled") == "0" {
        tracing::warn!(
            "the append-only file of Redis is off: a restart of it loses runs; set appendonly to yes"
        );
    }
    Ok(())
}

/// With durability `replicated`: refuses a Redis that has no replica, unless it refuses writes itself as long as it
/// has none.
pub(super) async fn check_replicas(talk: &mut Talk, info: &str) -> Result<()> {
    if field(info, "connected_slaves").parse::<u32>().is_ok_and(|n| n > 0) {
        return Ok(());
    }
    let mut ask = redis::cmd("CONFIG");
    ask.arg("GET").arg("min-replicas-to-write");
    // Where it may not be asked, what is seen decides.
    let wanted = match talk.ask(&ask).await.and_then(|value| reply::array(value, "a setting")) {
        Ok(items) => items.into_iter().nth(1).and_then(|n| reply::number(&n, "a setting").ok()).unwrap_or(0),
        Err(_) => 0,
    };
    if wanted > 0 {
        return Ok(());
    }
    Err(refuse(
        "durability is \"replicated\", and this Redis has no replica: connect one, or set min-replicas-to-write to 1, \
         or choose durability \"local\"",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str =
        "# Server\r\nredis_version:7.0.15\r\nrole:master\r\ncluster_enabled:0\r\naof_enabled:1\r\n";

    #[test]
    fn servers_we_cannot_work_on_are_refused_with_the_reason() {
        assert_eq!(check(GOOD), Ok(()));
        for (from, to, reason) in [
            ("7.0.15", "6.0.16", "too old"),
            ("cluster_enabled:0", "cluster_enabled:1", "Cluster"),
            ("role:master", "role:slave", "replica"),
            ("redis_version:7.0.15", "", "too old"),
        ] {
            let error = check(&GOOD.replace(from, to)).unwrap_err();
            assert!(error.to_string().contains(reason), "{error}");
            assert!(!error.was_sent());
        }
        assert_eq!(check(&GOOD.replace("7.0.15", "6.2.0")), Ok(()));
        assert_eq!(check(&GOOD.replace("7.0.15", "10.1.0")), Ok(()));
    }
}
