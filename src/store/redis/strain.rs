//! What the link does alone: callers that share it write and read one value after the other, each waiting for every
//! reply. For `downbeat bench link`.
//!
//! Invariants
//! - Everything goes the way of every verb: one backlog, one connection.
//! - What is written are keys of our own, which are gone at the end.
//! - The order is checked: every value read is the one that its caller wrote last, and commands that a caller gives out
//!   without waiting are done in that order.

use super::link::Value;
use super::servers::At;
use super::{RedisStore, keys, reply};
use crate::store::{Result, StoreError};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::{Instant, interval};

/// Keys of each caller, which it writes in turn.
const KEYS: u64 = 1_000;
/// Commands that a caller gives out at once in the last phase, and how often.
const BURST: i64 = 100;
const BURSTS: i64 = 10;
/// How often the runtime is asked for its tasks.
const LOOK: Duration = Duration::from_millis(20);

/// What came of it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Strained {
    /// How long all writes took, in seconds.
    pub set_seconds: f64,
    /// How long all reads took, in seconds.
    pub get_seconds: f64,
    /// Tasks of the runtime that were there at any moment beyond those of the callers.
    pub tasks_spawned: usize,
    /// Replies that were not what the order of the caller's commands demands.
    pub out_of_order: u64,
}

#[derive(Debug, Clone, Copy)]
enum Phase {
    Set,
    Get,
    Burst,
}

impl RedisStore {
    /// Lets `callers` tasks do `commands` writes each, then as many reads.
    ///
    /// # Errors
    /// The first error of any command.
    pub async fn strain(self: Arc<Self>, callers: usize, commands: u64) -> Result<Strained> {
        let began = tokio::runtime::Handle::current().metrics().num_alive_tasks();
        let mut told = Strained { set_seconds: 0.0, get_seconds: 0.0, tasks_spawned: 0, out_of_order: 0 };
        let mut failed = None;
        for phase in [Phase::Set, Phase::Get, Phase::Burst] {
            match self.phase(phase, callers, commands, began, &mut told).await {
                Ok(()) => {}
                Err(e) => {
                    failed = Some(e);
                    break;
                }
            }
        }
        for caller in 0..callers {
            let mut unlink = redis::cmd("UNLINK");
            for n in 0..=KEYS {
                unlink.arg(keys::strain(caller, n));
            }
            self.servers.command(At::Workflows, &unlink).await?;
        }
        failed.map_or(Ok(told), Err)
    }

    async fn phase(
        self: &Arc<Self>,
        phase: Phase,
        callers: usize,
        commands: u64,
        began: usize,
        told: &mut Strained,
    ) -> Result<()> {
        let mut tasks = JoinSet::new();
        let since = Instant::now();
        for caller in 0..callers {
            let store = Arc::clone(self);
            tasks.spawn(async move {
                match phase {
                    Phase::Set => store.set(caller, commands).await,
                    Phase::Get => store.get(caller, commands).await,
                    Phase::Burst => store.bursts(caller).await,
                }
            });
        }
        let metrics = tokio::runtime::Handle::current().metrics();
        let mut look = interval(LOOK);
        loop {
            tokio::select! {
                ended = tasks.join_next() => match ended {
                    None => break,
                    Some(ended) => told.out_of_order += ended.unwrap_or_else(|e| {
                        Err(StoreError::Unavailable { message: e.to_string(), sent: true })
                    })?,
                },
                _ = look.tick() => {
                    let more = metrics.num_alive_tasks().saturating_sub(began + callers);
                    told.tasks_spawned = told.tasks_spawned.max(more);
                }
            }
        }
        match phase {
            Phase::Set => told.set_seconds = since.elapsed().as_secs_f64(),
            Phase::Get => told.get_seconds = since.elapsed().as_secs_f64(),
            Phase::Burst => {}
        }
        Ok(())
    }

    async fn set(&self, caller: usize, commands: u64) -> Result<u64> {
        for n in 0..commands {
            let mut set = redis::cmd("SET");
            set.arg(keys::strain(caller, n % KEYS)).arg(n);
            self.servers.command(At::Workflows, &set).await?;
        }
        Ok(0)
    }

    async fn get(&self, caller: usize, commands: u64) -> Result<u64> {
        let mut wrong = 0;
        for n in 0..commands {
            let key = n % KEYS;
            let mut get = redis::cmd("GET");
            get.arg(keys::strain(caller, key));
            let found = reply::number(&self.servers.command(At::Workflows, &get).await?, "a value")?;
            // The last that was written with this key.
            let last = (commands - 1 - key) / KEYS * KEYS + key;
            wrong += u64::from(found != last as i64);
        }
        Ok(wrong)
    }

    async fn bursts(&self, caller: usize) -> Result<u64> {
        let mut wrong = 0;
        for burst in 0..BURSTS {
            let mut count = redis::cmd("INCR");
            count.arg(keys::strain(caller, KEYS));
            let replies =
                futures::future::join_all((0..BURST).map(|_| self.servers.command(At::Workflows, &count)))
                    .await;
            for (n, found) in replies.into_iter().enumerate() {
                wrong += u64::from(found? != Value::Int(burst * BURST + n as i64 + 1));
            }
        }
        Ok(wrong)
    }
}
