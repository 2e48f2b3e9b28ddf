//! Opening: is it a Redis we can work on, and with the settings that keep work safe?
//!
//! Invariants
//! - What may pass by itself is [`StoreError::Unavailable`], what somebody has to change [`StoreError::Unfit`]: a server
//!   that starts waits for the one and ends with the other.
//!
//! To add a look: in [`check`], or a function beside it that `link::prepare` calls.

use super::keys;
use super::link::{Talk, Value, field};
use super::reply;
use super::scripts::{Call, Script};
use crate::store::{Layout, Purpose, Result, StoreError, unknown_layout};

/// The oldest Redis that knows all commands we use.
const OLDEST: (u32, u32) = (6, 2);
/// The most partitions a store may have.
const MAX_PARTITIONS: u16 = 1_024;

/// It is not what it must be until somebody changes something.
fn refuse(message: impl Into<String>) -> StoreError {
    StoreError::Unfit(message.into())
}

/// It is not what it must be yet: a fail-over may be under way.
fn not_yet(message: impl Into<String>) -> StoreError {
    StoreError::Unavailable { message: message.into(), sent: false }
}

/// The store that is wanted.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wanted {
    /// How many partitions, if that was asked for.
    pub(super) partitions: Option<u16>,
    /// How many an empty one is given else.
    pub(super) usual: u16,
    /// What for.
    pub(super) purpose: Purpose,
    /// Whether the first partition has a clock, as it has where servers work.
    pub(super) ticked: bool,
}

/// Initialises an empty store with the partitions that were asked for, or the usual number; or reads what it was
/// initialised with.
///
/// # Errors
/// Another number of partitions was asked for than it has, its layout is not the one for the purpose, or what is there
/// does not fit the purpose.
pub(super) async fn layout(talk: &mut Talk, wanted: Wanted) -> Result<Layout> {
    let Wanted { partitions: asked, usual, purpose, ticked } = wanted;
    if asked.is_some_and(|p| p == 0 || p > MAX_PARTITIONS) {
        return Err(refuse(format!("the number of partitions must be 1 to {MAX_PARTITIONS}")));
    }
    if purpose != Purpose::Serve {
        check_contents(exists(talk, keys::META).await?, ticked, purpose)?;
    }
    let mut random = [0; 8];
    getrandom::fill(&mut random).map_err(|e| refuse(format!("no randomness from the system: {e}")))?;
    let candidate = Layout {
        version: purpose.version(),
        partitions: asked.unwrap_or(usual).clamp(1, MAX_PARTITIONS),
        // Positive as a signed number, so that every language reads it.
        epoch: u64::from_be_bytes(random) >> 1,
    };
    let (layout, initialised) = initialise(talk, candidate).await?;
    if initialised {
        tracing::info!(partitions = layout.partitions, layout = layout.version, "initialised the store");
    }
    if let Some(asked) = asked.filter(|p| *p != layout.partitions) {
        return Err(refuse(format!(
            "the store was initialised with {} partitions, {asked} were asked for; backup and restore re-partition it",
            layout.partitions
        )));
    }
    Ok(layout)
}

/// Initialises an empty store as `candidate`, or reads as what it was initialised. The flag says whether this did it.
pub(super) async fn initialise(talk: &mut Talk, candidate: Layout) -> Result<(Layout, bool)> {
    let mut call = Call::new(Script::Open, 1);
    call.arg(keys::META).arg(candidate.version).arg(candidate.partitions).arg(candidate.epoch);
    let meta = reply::array(talk.ask(&call.cmd).await?, "its meta record")?;
    let [version, partitions, epoch, made] =
        <[Value; 4]>::try_from(meta).map_err(|_| reply::unexpected("its meta record"))?;
    let version = reply::parsed(version, "its layout version")?;
    if version != candidate.version {
        return Err(unknown_layout(version, candidate.version));
    }
    let layout = Layout {
        version,
        partitions: reply::parsed(partitions, "its number of partitions")?,
        epoch: reply::parsed(epoch, "its epoch")?,
    };
    Ok((layout, reply::number(&made, "its meta record")? == 1))
}

/// Refuses an empty Redis where a store is to be read, and keys without a store where one is to be restored. So nothing
/// is initialised that should not be.
fn check_contents(store: bool, ticked: bool, purpose: Purpose) -> Result<()> {
    match purpose {
        Purpose::Read if !store => Err(refuse("there is no store in this Redis")),
        Purpose::Restore if !store && ticked => Err(refuse(
            "this Redis holds keys of a store without its meta record: stop all servers that use it, and empty it",
        )),
        Purpose::Serve | Purpose::Read | Purpose::Restore => Ok(()),
    }
}

/// Whether there is a key.
pub(super) async fn exists(talk: &mut Talk, key: &str) -> Result<bool> {
    Ok(reply::number(&talk.ask(redis::cmd("EXISTS").arg(key)).await?, "EXISTS")? > 0)
}

/// The layout version of the store, whatever it is; none if there is no store. Nothing is changed.
pub(super) async fn version(talk: &mut Talk) -> Result<Option<u32>> {
    let found = talk.ask(redis::cmd("HGET").arg(keys::META).arg("layout")).await?;
    if found == Value::Nil { Ok(None) } else { reply::parsed(found, "its layout version").map(Some) }
}

/// Refuses a Redis that we cannot work on, by what it says of itself.
/// `clustered`: whether it is to be a node of a cluster.
pub(super) fn check(info: &str, clustered: bool) -> Result<()> {
    let field = |name: &str| field(info, name);
    if field("redis_mode") == "sentinel" {
        return Err(refuse("this is a Sentinel: its address is redis+sentinel://host:port/MASTER"));
    }
    let version = field("redis_version");
    let mut numbers = version.split('.').map(|n| n.parse::<u32>().unwrap_or(0));
    let found = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if found < OLDEST {
        return Err(refuse(format!(
            "Redis {version} is too old: {}.{} or newer is needed",
            OLDEST.0, OLDEST.1
        )));
    }
    if field("cluster_enabled") == "1" && !clustered {
        return Err(refuse("this is a node of a Redis Cluster: its address begins with redis+cluster://"));
    }
    if field("role") == "slave" {
        return Err(not_yet("this Redis is a replica; the address must be that of the primary"));
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
    Err(not_yet(
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
        assert_eq!(check(GOOD, false), Ok(()));
        for (from, to, reason, passes) in [
            ("7.0.15", "6.0.16", "too old", false),
            ("cluster_enabled:0", "cluster_enabled:1", "Cluster", false),
            ("role:master", "role:slave", "replica", true),
            ("role:master", "redis_mode:sentinel", "redis+sentinel://", false),
            ("redis_version:7.0.15", "", "too old", false),
        ] {
            let error = check(&GOOD.replace(from, to), false).unwrap_err();
            assert!(error.to_string().contains(reason), "{error}");
            assert!(!error.was_sent());
            assert_eq!(error.passes(), passes, "{error}");
        }
        assert_eq!(check(&GOOD.replace("7.0.15", "6.2.0"), false), Ok(()));
        assert_eq!(check(&GOOD.replace("7.0.15", "10.1.0"), false), Ok(()));
    }
}
