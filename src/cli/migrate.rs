//! `downbeat migrate`: brings a store to the layout of this version.

use super::backup::StoreArgs;
use super::{Failure, Outcome, compose, output};
use crate::config;
use crate::store::embedded::EmbeddedStore;
use crate::store::migrations::{Plan, plan};
use crate::store::redis::RedisStore;
use crate::store::{LAYOUT, StoreError};

/// Servers of the version before and of this one may work on the store until a step says otherwise.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    store: StoreArgs,
    /// Says what would be done, and does nothing
    #[arg(long)]
    dry_run: bool,
}

pub(super) async fn run(args: Args) -> Outcome {
    let settings = args.store.load()?;
    let (name, found) = match &settings.store {
        config::Store::Redis { url } => {
            let access = compose::redis_options(&settings).access;
            (config::redacted(url), RedisStore::layout_of(url, access).await)
        }
        config::Store::Embedded { data } => {
            (data.display().to_string(), EmbeddedStore::layout_of(data).await)
        }
    };
    let failed = |e: StoreError| Failure::failed(format!("{name}: {e}"));
    let Some(found) = found.map_err(failed)? else {
        return Err(Failure::failed(format!("{name}: there is no store; a server that opens it makes one")));
    };
    match plan(found) {
        Plan::Nothing => {
            let said = if args.dry_run { "nothing would be done" } else { "nothing to do" };
            output::line(&format!("{name}: layout {LAYOUT}, that of this version: {said}"));
            Ok(())
        }
        Plan::Refused(why) => Err(Failure::failed(format!("{name}: {why}"))),
    }
}
