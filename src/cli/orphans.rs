//! `downbeat doctor --orphans`: keys of a Redis that nobody owns.

use super::{Failure, Outcome, compose, output};
use crate::config::{self, Config};
use crate::store::redis::{self, RedisStore};
use crate::store::{Purpose, StoreError};

/// The most that is told.
const MAX: usize = 1_000;

/// Prints one line for each orphan. Some: it has failed.
pub(super) async fn run(config: &Config) -> Outcome {
    let config::Store::Redis { url } = &config.store else {
        return Err(Failure::usage("orphans are looked for in a Redis: --store redis://host:port"));
    };
    let failed = |e: StoreError| Failure::failed(format!("{}: {e}", config::redacted(url)));
    let options = redis::Options { purpose: Purpose::Read, ..compose::redis_options(config) };
    let store = RedisStore::open(url, options).await.map_err(failed)?;
    let found = store.orphans(MAX).await.map_err(failed)?;
    for redis::Orphan { key, member, what } in &found {
        let member = if member.is_empty() { String::new() } else { format!("  {member}") };
        output::line(&format!("{key}{member}: {what}"));
    }
    match found.len() {
        0 => {
            output::line("no orphans");
            Ok(())
        }
        n if n >= MAX => Err(Failure::failed(format!("{n} orphans at least"))),
        n => Err(Failure::failed(format!("{n} orphans"))),
    }
}
