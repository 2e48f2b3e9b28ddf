//! Redis forks while something is measured (`--fork-every`): what a copy of its memory costs those that work meanwhile.

use super::redis::{Told, told};
use crate::cli::Failure;
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

/// What has come of it.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct Forked {
    /// How often Redis has begun to save itself.
    pub(super) times: u32,
    /// The longest that a fork held it up, in ms.
    pub(super) longest_ms: f64,
}

/// Has each Redis save itself every so often, as long as this lives.
pub(super) struct Forks {
    task: AbortOnDropHandle<Result<Forked, Failure>>,
    end: CancellationToken,
}

impl Forks {
    /// The first comes after `every`.
    pub(super) fn start(addresses: Vec<String>, every: Duration) -> Self {
        let end = CancellationToken::new();
        let task: JoinHandle<_> = tokio::spawn(fork(addresses, every, end.clone()));
        Self { task: AbortOnDropHandle::new(task), end }
    }

    /// Ends it.
    pub(super) async fn end(self) -> Result<Forked, Failure> {
        self.end.cancel();
        self.task.await.map_err(|e| Failure::failed(e.to_string()))?
    }
}

async fn fork(addresses: Vec<String>, every: Duration, end: CancellationToken) -> Result<Forked, Failure> {
    let mut forked = Forked::default();
    let mut pause = interval(every);
    pause.set_missed_tick_behavior(MissedTickBehavior::Delay);
    pause.tick().await;
    while end.run_until_cancelled(pause.tick()).await.is_some() {
        for address in &addresses {
            // One that still saves goes on; the next time counts.
            if saves(address).await == Some(0.0) {
                told(address, "BGSAVE").await?;
                forked.times += 1;
                let took = number(address, "latest_fork_usec").await.unwrap_or_default();
                forked.longest_ms = forked.longest_ms.max(took / 1_000.0);
            }
        }
    }
    Ok(forked)
}

async fn saves(address: &str) -> Option<f64> {
    number(address, "rdb_bgsave_in_progress").await
}

async fn number(address: &str, of: &str) -> Option<f64> {
    Told::of(&[address.to_owned()]).await?.count(of)
}
