//! The composition root: settings → store → app → doors, and the same way back at the end.

use super::{Exit, Failure, Outcome};
use crate::config::Config;
use crate::lifecycle::Lifecycle;
use std::net::SocketAddr;
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

/// Opens the store, starts the app, binds the port and serves until `life` ends.
pub(super) async fn start(config: &Config, life: &Lifecycle) -> Result<Server, Failure> {
    let listener = TcpListener::bind(config.server.listen)
        .await
        .map_err(|e| Failure::failed(format!("cannot listen on {}: {e}", config.server.listen)))?;
    let address = listener.local_addr()?;
    let serving = parts(config, listener, life)?;
    Ok(Server { address, life: life.clone(), drain: config.server.drain, serving })
}

/// The one place that names every part.
fn parts(
    config: &Config,
    listener: TcpListener,
    life: &Lifecycle,
) -> Result<JoinHandle<std::io::Result<()>>, Failure> {
    let _ = (config, listener, life);
    Err(Failure::new(Exit::Failed, "the parts of the server are not put together yet"))
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
