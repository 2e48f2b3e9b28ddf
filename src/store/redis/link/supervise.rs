//! What keeps the link alive: a connection after the other, hints, passwords.
//!
//! ```text
//! serve a connection ─► it ended ─► dial ─► may we work on it? ─► scripts ─► same store? ─► serve …
//!                                    ▲ a pause, longer each time ──────┘ no
//! ```
//!
//! Invariants
//! - Scripts are loaded and the store is recognised before anything that waits is written.
//! - If another Redis process answers than before, what was answered to us may be gone from it: [`Hint::Replaced`].
//!
//! What a Redis must be like stands in `open.rs`.

use super::address::Endpoint;
use super::dial::{Dialer, Talk};
use super::report::{Persistence, field};
use super::wire::Value;
use super::{Answer, Durability, Shared, connection};
use crate::model::ids::Partition;
use crate::store::redis::scripts::Script;
use crate::store::redis::servers::load;
use crate::store::redis::{open, reply};
use crate::store::{Hint, Result, StoreError};
use bytes::Bytes;
use futures::future::BoxFuture;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tokio::sync::{broadcast, watch};
use tokio::time::{Instant, sleep, timeout};

/// Pauses between attempts to connect: the first and the longest, before jitter.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));
/// How long the connection for hints may be quiet before it is asked whether it lives.
const QUIET: Duration = Duration::from_secs(5);
/// How long it may take to say so.
const ALIVE: Duration = Duration::from_secs(3);
/// How often the file of the password is looked at.
const ROTATION: Duration = Duration::from_secs(3);
/// When a password that was refused is told again.
const TOLD_AGAIN: Duration = Duration::from_secs(30);

/// A connection on which everything is ready, and what was found on it.
#[derive(Debug)]
pub(in crate::store::redis) struct Prepared {
    pub(in crate::store::redis) talk: Talk,
    pub(super) run_id: String,
    pub(super) persistence: Persistence,
}

/// Connects, looks whether it is a Redis we may work on, and loads every script. `clustered`: whether it is to be a node
/// of a cluster.
///
/// # Errors
/// What stands in the way; nothing was written.
pub(in crate::store::redis) async fn prepare(
    dialer: &Dialer,
    durability: Durability,
    clustered: bool,
) -> Result<Prepared> {
    // What it writes, it writes again: nothing of a caller is sent.
    prepared(dialer, durability, clustered).await.map_err(|e| match e {
        StoreError::Unavailable { message, .. } => StoreError::Unavailable { message, sent: false },
        other => other,
    })
}

async fn prepared(dialer: &Dialer, durability: Durability, clustered: bool) -> Result<Prepared> {
    let mut talk = dialer.connect().await?;
    let info = reply::text(talk.ask(&redis::cmd("INFO")).await?, "INFO")?;
    open::check(&info, clustered)?;
    if durability == Durability::Replicated {
        open::check_replicas(&mut talk, &info).await?;
    }
    let mut packed = Vec::new();
    for script in Script::ALL {
        load(script).write_packed_command(&mut packed);
    }
    talk.say(&packed).await?;
    for _ in Script::ALL {
        let heard = timeout(ALIVE, talk.hear()).await;
        let heard = heard.unwrap_or_else(|_| {
            Err(StoreError::Unavailable { message: "Redis did not load the scripts".into(), sent: false })
        });
        reply::checked(heard?, false)?;
    }
    Ok(Prepared { talk, run_id: field(&info, "run_id").to_owned(), persistence: Persistence::read(&info) })
}

/// Serves one connection after the other.
pub(super) async fn supervise(shared: Arc<Shared>, mut first: Option<Talk>) {
    loop {
        if let Some(talk) = first.take() {
            let connection::Ended(why) = connection::run(&shared, talk).await;
            tracing::warn!(why, "the connection to Redis is gone");
        }
        shared.idle.lock().clear();
        let mut pause = BACKOFF.0;
        let prepared = loop {
            match again(&shared).await {
                Ok(prepared) => break prepared,
                Err(e) => {
                    let why = reply::said(e);
                    tracing::debug!(why, "Redis cannot be reached");
                    shared.health.lock().reason = Some(why.into());
                    sleep(jittered(pause)).await;
                    pause = (pause * 2).min(BACKOFF.1);
                }
            }
        };
        let replaced = {
            let mut health = shared.health.lock();
            health.persistence = Some((Instant::now(), prepared.persistence));
            std::mem::replace(&mut health.run_id, prepared.run_id.clone()) != prepared.run_id
        };
        if replaced {
            shared.counters.replaced.fetch_add(1, Relaxed);
            tracing::warn!("connected again, to another Redis than before or to one that was started anew");
        } else {
            tracing::info!("connected to Redis again");
        }
        shared.generation.send_modify(|n| *n += 1);
        // No receiver is no fault.
        let _ = shared.hints.send(if replaced { Hint::Replaced } else { Hint::Reconnected });
        first = Some(prepared.talk);
    }
}

/// Makes a connection to the store we know.
async fn again(shared: &Shared) -> Result<Prepared> {
    let mut prepared = prepare(&shared.dialer, shared.options.durability, shared.clustered).await?;
    let layout = shared.layout;
    let (found, initialised) = match open::initialise(&mut prepared.talk, layout).await {
        // Another node of the cluster has that record, or none has it just now.
        Err(e) if shared.clustered && elsewhere(&reply::said(e.clone())) => return Ok(prepared),
        found => found?,
    };
    if initialised {
        // As it was before: cursors of its streams find them shortened.
        tracing::warn!("Redis came back empty: its runs are lost; initialised the store again");
    }
    if found == layout {
        return Ok(prepared);
    }
    Err(StoreError::Unreadable("another store answers at the address of Redis".into()))
}

/// Whether a node of a cluster says that it is not the one that has a key.
fn elsewhere(said: &str) -> bool {
    ["MOVED ", "ASK ", "CLUSTERDOWN Hash slot not served"].iter().any(|is| said.starts_with(is))
}

/// Between half of `pause` and all of it.
pub(in crate::store::redis) fn jittered(pause: Duration) -> Duration {
    let mut random = [0; 1];
    // Without randomness all servers come back together, which Redis survives.
    let _ = getrandom::fill(&mut random);
    pause / 2 + (pause / 2) * u32::from(random[0]) / 255
}

/// Tells a password that was changed in its file to the connection that is there.
pub(super) async fn rotate(shared: Arc<Shared>) {
    let mut told = None;
    loop {
        sleep(ROTATION).await;
        let login = match shared.dialer.login().await {
            Ok(login) => login,
            Err(e) => {
                tracing::warn!(why = %e, "the password of Redis cannot be read; the connection stays as it was");
                continue;
            }
        };
        let current = shared.health.lock().login.clone();
        if current.as_ref() == Some(&login) {
            told = None;
            continue;
        }
        // One that was refused is told again later: the file may have been changed before Redis was.
        let known = told
            .as_ref()
            .is_some_and(|(last, at): &(_, Instant)| *last == login && at.elapsed() < TOLD_AGAIN);
        if shared.backlog.lock().is_connected()
            && !known
            && let Some(command) = login.command()
        {
            shared.ask_itself(&[command], Answer::Login(login.clone()));
            told = Some((login, Instant::now()));
        }
    }
}

/// Listens for hints, again and again, each time on a connection that `dial` makes; anew when `changed` says that it may
/// be to the wrong Redis.
pub(in crate::store::redis) async fn listen(
    mut dial: impl FnMut() -> BoxFuture<'static, Result<Talk>> + Send,
    channel: &str,
    hints: broadcast::Sender<Hint>,
    mut changed: watch::Receiver<u64>,
) {
    let mut subscribe = redis::cmd("SUBSCRIBE");
    subscribe.arg(channel);
    let mut pause = BACKOFF.0;
    loop {
        changed.mark_unchanged();
        let subscribed = async {
            let mut talk = dial().await?;
            talk.ask(&subscribe).await?;
            Result::Ok(talk)
        };
        if let Ok(talk) = subscribed.await {
            pause = BACKOFF.0;
            // What was published before was not heard. No receiver is no fault.
            let _ = hints.send(Hint::Reconnected);
            tokio::select! {
                () = hear(&hints, talk) => {}
                // The primary may be another one now.
                _ = changed.changed() => continue,
            }
        }
        sleep(jittered(pause)).await;
        pause = (pause * 2).min(BACKOFF.1);
    }
}

/// Hears hints until the connection is gone.
async fn hear(hints: &broadcast::Sender<Hint>, mut talk: Talk) {
    while let Some(message) = published(&mut talk).await {
        if let Some(hint) = read_hint(&message) {
            // No receiver is no fault.
            let _ = hints.send(hint);
        }
    }
}

/// The next message of a subscription; none: the connection is gone.
async fn published(talk: &mut Talk) -> Option<Bytes> {
    let ping = redis::cmd("PING").get_packed_command();
    loop {
        let heard = if let Ok(heard) = timeout(QUIET, talk.hear()).await {
            heard
        } else {
            // Quiet: is anybody there?
            let asked = timeout(ALIVE, async {
                talk.say(&ping).await?;
                talk.hear().await
            });
            asked.await.ok()?
        };
        match heard {
            Ok(Value::Array(parts)) => {
                if let Some(Value::BulkString(message)) = parts.into_iter().nth(2) {
                    return Some(message);
                }
            }
            Ok(Value::Error(_)) | Err(_) => return None,
            Ok(_) => {}
        }
    }
}

/// Leaves a primary that the Sentinels have replaced, even if it still answers: it may be cut off from them.
pub(super) async fn follow_sentinels(shared: Arc<Shared>) {
    loop {
        if let Some((mut talk, master)) = shared.dialer.announcements().await {
            while let Some(message) = published(&mut talk).await {
                let Some(node) = announced(&message, master) else { continue };
                if shared.health.lock().node.as_ref() != Some(&node) {
                    shared.leave("the Sentinels have announced another primary");
                }
            }
        }
        sleep(jittered(BACKOFF.1)).await;
    }
}

/// Where the new primary is: `MASTER OLD-HOST OLD-PORT NEW-HOST NEW-PORT`.
fn announced(message: &[u8], master: &str) -> Option<Endpoint> {
    let mut words = std::str::from_utf8(message).ok()?.split(' ');
    if words.next()? != master {
        return None;
    }
    let mut words = words.skip(2);
    Some(Endpoint::Tcp(words.next()?.to_owned(), words.next()?.parse().ok()?))
}

fn read_hint(message: &[u8]) -> Option<Hint> {
    let (partition, queue) = std::str::from_utf8(message).ok()?.split_once(' ')?;
    Some(Hint::Queue(Partition(partition.parse().ok()?), queue.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_is_jittered_within_its_bounds() {
        for _ in 0..100 {
            let pause = jittered(BACKOFF.1);
            assert!(pause >= BACKOFF.1 / 2 && pause <= BACKOFF.1, "{pause:?}");
        }
    }

    #[test]
    fn an_announcement_is_about_ours_or_passed_over() {
        let node = Endpoint::Tcp("10.0.0.2".into(), 7);
        assert_eq!(announced(b"main 10.0.0.1 6 10.0.0.2 7", "main"), Some(node));
        for bad in [
            &b"other 10.0.0.1 6 10.0.0.2 7"[..],
            b"main 10.0.0.1 6 10.0.0.2",
            b"main",
            b"\xff",
            b"main a b c d",
        ] {
            assert_eq!(announced(bad, "main"), None, "{bad:?}");
        }
    }

    #[test]
    fn hints_that_make_no_sense_are_passed_over() {
        let hint = read_hint(b"3 charge");
        assert_eq!(hint, Some(Hint::Queue(Partition(3), "charge".parse().unwrap())));
        for bad in [&b""[..], b"3", b"x charge", b"3 ", b"99999 q", b"\xff q"] {
            assert_eq!(read_hint(bad), None, "{bad:?}");
        }
    }
}
