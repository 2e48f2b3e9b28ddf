//! The composition root: settings → store → app → doors, and the same way back at the end.

use super::{Failure, Outcome};
use crate::api;
use crate::app::{self, App};
use crate::config::{self, Config};
use crate::lifecycle::Lifecycle;
use crate::model::time::Span;
use crate::store::embedded::{self, EmbeddedStore};
use crate::store::redis::{self, RedisStore};
use crate::store::{Moves, Purpose, Store};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

/// A server that listens.
#[derive(Debug)]
pub(super) struct Server {
    /// Where, with the port that was really bound.
    pub(super) address: SocketAddr,
    life: Lifecycle,
    drain: Duration,
    serving: JoinHandle<std::io::Result<()>>,
}

/// Binds the port, opens the store, starts the app and serves until `life` ends. The port comes first: where it is
/// taken, no store is touched. Who connects meanwhile waits.
pub(super) async fn start(config: &Config, life: &Lifecycle) -> Result<Server, Failure> {
    let listener = TcpListener::bind(config.server.listen)
        .await
        .map_err(|e| Failure::failed(format!("cannot listen on {}: {e}", config.server.listen)))?;
    let address = listener.local_addr()?;
    let store = open(config).await?;
    let options = app::Options {
        lease: span(config.workers.lease),
        ack_within: span(config.workers.ack),
        ping_every: span(config.workers.ping),
        lanes: config.lanes(),
        ..app::Options::default()
    };
    let app = App::launch(store, options).await.map_err(|e| Failure::failed(e.to_string()))?;
    let drain = config.server.drain;
    let doors = api::Options { grace: drain, ..api::Options::default() };
    let router = api::router(app.clone(), doors.clone());
    let own = life.clone();
    let serving = life.spawn(async move {
        let shutdown = async {
            own.stopping().await;
            // The other half is for what follows from the end of the streams.
            app.drain(span(drain / 2));
        };
        let served = api::serve(listener, router, doors, shutdown).await;
        app.stop().await;
        served
    });
    Ok(Server { address, life: life.clone(), drain, serving })
}

async fn open(config: &Config) -> Result<Arc<dyn Store>, Failure> {
    Ok(open_to_move(config, config.partitions, Purpose::Serve).await?)
}

/// Opens a store for one of the purposes. It is closed when it is dropped.
pub(super) async fn open_to_move(
    config: &Config,
    partitions: Option<u16>,
    purpose: Purpose,
) -> Result<Arc<dyn Moves>, Failure> {
    match &config.store {
        config::Store::Redis { url } => {
            let options = redis::Options { partitions, purpose, ..redis_options(config) };
            let store = RedisStore::open(url, options).await;
            Ok(store.map_err(|e| Failure::failed(format!("{}: {e}", config::redacted(url))))?)
        }
        config::Store::Embedded { data } => {
            let options = embedded::Options { partitions, purpose, ..embedded::Options::default() };
            let store = EmbeddedStore::open(data, options).await;
            Ok(store.map_err(|e| Failure::failed(format!("{}: {e}", data.display())))?)
        }
    }
}

/// What the settings say about Redis.
pub(super) fn redis_options(config: &Config) -> redis::Options {
    let config::Redis {
        username,
        password_file,
        ca_file,
        cert_file,
        key_file,
        server_name,
        sentinel_username,
        sentinel_password_file,
        waits,
        backlog_commands,
        backlog_mb,
        wait,
    } = config.redis.clone();
    redis::Options {
        partitions: config.partitions,
        access: redis::Access {
            ca_file,
            cert_file,
            key_file,
            server_name,
            username,
            password_file,
            sentinel_username,
            sentinel_password_file,
        },
        limits: redis::Limits {
            items: backlog_commands as usize,
            bytes: usize::from(backlog_mb) << 20,
            policy: if waits { redis::Policy::Queue } else { redis::Policy::FailFast },
        },
        wait,
        durability: match config.durability {
            config::Durability::Local => redis::Durability::Local,
            config::Durability::Replicated => redis::Durability::Replicated,
        },
        ..redis::Options::default()
    }
}

fn span(duration: Duration) -> Span {
    Span(i64::try_from(duration.as_micros()).unwrap_or(i64::MAX))
}

impl Server {
    /// Waits for the end that `life` was asked for. What is still under way after the drain is dropped: whoever
    /// asked for it finds the truth in the store.
    pub(super) async fn ended(self) -> Outcome {
        let Self { life, drain, serving, .. } = self;
        if life.ended(drain + Duration::from_secs(1)).await {
            return match serving.await {
                Ok(Ok(())) => Ok(()),
                Ok(Err(e)) => Err(Failure::failed(format!("the server failed: {e}"))),
                Err(e) => Err(Failure::failed(format!("this is a bug in downbeat: {e}"))),
            };
        }
        serving.abort();
        Err(Failure::failed("ended before everything under way was done"))
    }
}
