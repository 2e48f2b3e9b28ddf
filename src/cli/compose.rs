//! The composition root: settings → store → app → doors, and the same way back at the end.

use super::waiting::{NotYet, Waiting};
use super::{Failure, Outcome};
use crate::api;
use crate::app::{self, App};
use crate::config::{self, Config};
use crate::lifecycle::Lifecycle;
use crate::model::error::ErrorCode;
use crate::model::time::Span;
use crate::store::embedded::{self, EmbeddedStore};
use crate::store::redis::{self, RedisStore};
use crate::store::{Moves, Purpose, StoreError};
use std::fmt::Display;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpSocket};
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
/// taken, no store is touched. Who connects meanwhile is told to wait, and why. None: the end came first.
pub(super) async fn start(config: &Config, life: &Lifecycle) -> Result<Option<Server>, Failure> {
    let listener = listen(config.server.listen)
        .map_err(|e| Failure::failed(format!("cannot listen on {}: {e}", config.server.listen)))?;
    let address = listener.local_addr()?;
    let waiting = Waiting::new(config.redis.start_wait);
    let why = waiting.why();
    let opened = tokio::select! {
        biased;
        opened = api::meanwhile(listener, why, waiting.until_open(|| open(config))) => opened,
        () = life.stopping() => {
            tracing::info!("ended before the store could be opened");
            return Ok(None);
        }
    };
    let (listener, app) = opened?;
    let app = app.map_err(|why| Failure::failed(format!("{}: {why}", place(config))))?;
    let drain = config.server.drain;
    let mut doors = door_options(&config.limits);
    doors.grace = drain;
    doors.max_connections = within_descriptors(doors.max_connections);
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
    Ok(Some(Server { address, life: life.clone(), drain, serving }))
}

/// What the settings say about the doors.
fn door_options(limits: &config::Limits) -> api::Options {
    let config::Limits {
        connections,
        streams,
        events,
        workers,
        starts,
        headers,
        header_kb,
        address_kb,
        body_memory_mb,
        head,
        body,
        stalled,
        ping,
        ping_answer,
    } = *limits;
    api::Options {
        max_connections: connections,
        max_streams: streams,
        max_events: events,
        max_workers: workers,
        max_starts: starts,
        max_headers: headers,
        header_bytes: header_kb << 10,
        address_bytes: address_kb << 10,
        body_memory: body_memory_mb << 20,
        head_within: head,
        body_within: body,
        stalled_after: stalled,
        ping_every: ping,
        ping_within: ping_answer,
        ..api::Options::default()
    }
}

/// Connections that may wait to be taken up, as far as the system allows (`net.core.somaxconn`). When a server has come
/// back, all its clients do at once; those that find no place may wait for seconds, or for ever if they say nothing.
const BACKLOG: u32 = 4_096;

fn listen(address: SocketAddr) -> std::io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // The address of a server that was here until now may be taken over.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// File descriptors that are left to everything but connections.
const DESCRIPTORS_LEFT: usize = 256;

/// As many connections as there are file descriptors for, after asking the system for as many as it lets us have:
/// without any, connections could not even be turned away.
fn within_descriptors(connections: usize) -> usize {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current != maximum {
        // Refused only where the system knows better than it says.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    }
    let Some(most) = getrlimit(Resource::Nofile).current else { return connections };
    let most = usize::try_from(most).unwrap_or(usize::MAX);
    // A share of a small number, so that something is left in either case.
    let room = most - DESCRIPTORS_LEFT.min(most / 2);
    if room < connections {
        tracing::info!(
            limit = most,
            connections = room,
            "fewer connections than limits.connections says: the system lets us open no more files (ulimit -n)"
        );
    }
    connections.min(room)
}

/// Opens the store and starts the app on it.
async fn open(config: &Config) -> Result<App, NotYet> {
    let of_redis = matches!(config.store, config::Store::Redis { .. });
    let told = |why: &dyn Display, passes: bool| NotYet { why: why.to_string(), passes: of_redis && passes };
    let opened = open_store(config, config.partitions, Purpose::Serve).await;
    let store = opened.map_err(|e| told(&e, e.passes()))?;
    let options = app::Options {
        lease: span(config.workers.lease),
        ack_within: span(config.workers.ack),
        ping_every: span(config.workers.ping),
        lanes: config.lanes(),
        ..app::Options::default()
    };
    App::launch(store, options).await.map_err(|e| told(&e, e.code == ErrorCode::StoreUnavailable))
}

/// Opens a store for one of the purposes. It is closed when it is dropped.
pub(super) async fn open_to_move(
    config: &Config,
    partitions: Option<u16>,
    purpose: Purpose,
) -> Result<Arc<dyn Moves>, Failure> {
    let opened = open_store(config, partitions, purpose).await;
    opened.map_err(|e| Failure::failed(format!("{}: {e}", place(config))))
}

async fn open_store(
    config: &Config,
    partitions: Option<u16>,
    purpose: Purpose,
) -> Result<Arc<dyn Moves>, StoreError> {
    Ok(match &config.store {
        config::Store::Redis { url } => {
            let options = redis::Options { partitions, purpose, ..redis_options(config) };
            RedisStore::open(url, options).await?
        }
        config::Store::Embedded { data } => {
            let options = embedded::Options { partitions, purpose, ..embedded::Options::default() };
            EmbeddedStore::open(data, options).await?
        }
    })
}

/// Where the store is, without what nobody may see.
fn place(config: &Config) -> String {
    match &config.store {
        config::Store::Redis { url } => config::redacted(url),
        config::Store::Embedded { data } => data.display().to_string(),
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
        start_wait: _,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_of_the_limits_are_those_of_the_doors() {
        let limits = Config::of(None, |_| None, config::Overrides::new()).unwrap().limits;
        let told = |o: &api::Options| {
            (
                [o.max_connections, o.max_streams as usize, o.max_events, o.max_workers, o.max_starts],
                [o.max_headers, o.header_bytes, o.address_bytes, o.body_memory],
                [o.head_within, o.body_within, o.stalled_after, o.ping_every, o.ping_within],
            )
        };
        assert_eq!(told(&door_options(&limits)), told(&api::Options::default()));
    }
}
