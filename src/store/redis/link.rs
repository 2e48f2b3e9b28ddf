//! Connections to one Redis: a pipelined one that all commands share, one per blocking read, one for hints.
//!
//! ```text
//!            call ──► Up(connection) ──► reply
//!   supervisor ──► Down ── connect, load scripts, same store? ──► Up
//!                    ▲──────────── dropped, timed out ───────────┘
//! ```
//!
//! Invariants
//! - Every call has a deadline. While the link is down a call waits at most [`LINK_WAIT`], then fails as not sent.
//! - `sent: false` is said only of what was never given to a connection, or what Redis says it refused.
//! - A call that timed out or lost its connection is never repeated here: the caller settles it.
//! - The address is not logged and stands in no error: it may carry a password.

use super::keys;
use super::reply;
use super::scripts::{Call, Script};
use crate::store::{Hint, LAYOUT, Layout, Result, StoreError, unknown_layout};
use redis::aio::MultiplexedConnection;
use redis::io::tcp::TcpSettings;
use redis::{AsyncConnectionConfig, Client, Cmd, IntoConnectionInfo as _, Value};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{broadcast, watch};
use tokio::time::timeout;
use tokio_stream::StreamExt as _;

/// How long a command may take.
const COMMAND: Duration = Duration::from_secs(5);
/// How long making a connection may take, scripts loaded.
const CONNECT: Duration = Duration::from_secs(3);
/// How long a call waits for a link that is down.
const LINK_WAIT: Duration = Duration::from_secs(1);
/// Pauses between attempts to connect: the first and the longest, before jitter.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));
/// How long the connection for hints may be quiet before it is asked whether it lives.
const QUIET: Duration = Duration::from_secs(15);
/// Commands that may wait for their turn to be written.
const WRITE_QUEUE: usize = 1_024;

#[derive(Clone)]
enum State {
    Up { generation: u64, connection: MultiplexedConnection },
    Down { generation: u64, why: Arc<str> },
}

/// The connections.
pub(super) struct Link {
    shared: Arc<Shared>,
    tasks: [tokio::task::JoinHandle<()>; 2],
}

struct Shared {
    client: Client,
    layout: Layout,
    state: watch::Sender<State>,
    /// Connections for blocking reads that are idle.
    idle: parking_lot::Mutex<Vec<MultiplexedConnection>>,
    hints: broadcast::Sender<Hint>,
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Link").finish_non_exhaustive()
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

/// A client for an address. The address stands in no error.
pub(super) fn client(url: &str) -> Result<Client> {
    let unusable = |why: &str| StoreError::Unavailable {
        message: format!("the address of Redis cannot be used: {why}"),
        sent: false,
    };
    let scheme = url.split_once("://").map_or("", |(scheme, _)| scheme);
    if !matches!(scheme, "redis" | "valkey" | "unix" | "redis+unix" | "valkey+unix") {
        return Err(unusable("it must begin with redis:// or unix://"));
    }
    let info = url.into_connection_info().map_err(|e| unusable(e.category()))?;
    let tcp = TcpSettings::default().set_nodelay(true);
    #[cfg(target_os = "linux")]
    let tcp = tcp.set_user_timeout(COMMAND);
    Client::open(info.set_tcp_settings(tcp)).map_err(|e| unusable(e.category()))
}

/// A new connection, without a deadline of its own for replies.
pub(super) async fn connect(client: &Client) -> Result<MultiplexedConnection> {
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(CONNECT))
        .set_response_timeout(None)
        .set_pipeline_buffer_size(WRITE_QUEUE);
    let made = timeout(CONNECT, client.get_multiplexed_async_connection_with_config(&config)).await;
    match made {
        Ok(Ok(connection)) => Ok(connection),
        Ok(Err(e)) => Err(reply::error(&e, false)),
        Err(_) => Err(StoreError::Unavailable {
            message: format!("Redis did not answer a connection within {} s", CONNECT.as_secs()),
            sent: false,
        }),
    }
}

/// Sends one command on a connection that nobody watches: for the time before the link is up.
pub(super) async fn ask(connection: &mut MultiplexedConnection, cmd: &Cmd) -> Result<Value> {
    match timeout(COMMAND, connection.send_packed_command(cmd)).await {
        Ok(answer) => answer.and_then(Value::extract_error).map_err(|e| reply::error(&e, true)),
        Err(_) => Err(late()),
    }
}

fn late() -> StoreError {
    StoreError::Unavailable {
        message: format!("Redis did not answer within {} s", COMMAND.as_secs()),
        sent: true,
    }
}

/// Loads every script, then initialises the store as `candidate` or, if that was done, reads as what. The flag says
/// whether this call did it.
pub(super) async fn prepare(
    connection: &mut MultiplexedConnection,
    candidate: Layout,
) -> Result<(Layout, bool)> {
    for script in Script::ALL {
        ask(connection, redis::cmd("SCRIPT").arg("LOAD").arg(script.source())).await?;
    }
    let mut call = Call::new(Script::Open, 1);
    call.arg(keys::META).arg(candidate.version).arg(candidate.partitions).arg(candidate.epoch);
    let meta = reply::array(ask(connection, &call.cmd).await?, "its meta record")?;
    let [version, partitions, epoch, made] =
        <[Value; 4]>::try_from(meta).map_err(|_| reply::unexpected("its meta record"))?;
    let version = reply::parsed(version, "its layout version")?;
    if version != LAYOUT {
        return Err(unknown_layout(version));
    }
    let layout = Layout {
        version,
        partitions: reply::parsed(partitions, "its number of partitions")?,
        epoch: reply::parsed(epoch, "its epoch")?,
    };
    Ok((layout, reply::number(&made, "its meta record")? == 1))
}

impl Link {
    /// Keeps `connection`, which was prepared, and what follows it, alive.
    pub(super) fn new(
        client: Client,
        connection: MultiplexedConnection,
        layout: Layout,
        hints: broadcast::Sender<Hint>,
    ) -> Self {
        let (state, _) = watch::channel(State::Up { generation: 1, connection });
        let shared = Arc::new(Shared { client, layout, state, idle: parking_lot::Mutex::default(), hints });
        let tasks = [tokio::spawn(supervise(Arc::clone(&shared))), tokio::spawn(listen(Arc::clone(&shared)))];
        Self { shared, tasks }
    }

    /// Runs a script; loads it again if Redis has forgotten it.
    pub(super) async fn call(&self, call: &Call) -> Result<Value> {
        let mut loaded = false;
        loop {
            match self.raw(&call.cmd).await {
                Err(Failure::Redis(e)) if is_noscript(&e) && !loaded => {
                    loaded = true;
                    self.command(redis::cmd("SCRIPT").arg("LOAD").arg(call.script.source())).await?;
                }
                other => return other.map_err(Failure::into_store),
            }
        }
    }

    /// Sends one command.
    pub(super) async fn command(&self, cmd: &Cmd) -> Result<Value> {
        self.raw(cmd).await.map_err(Failure::into_store)
    }

    async fn raw(&self, cmd: &Cmd) -> std::result::Result<Value, Failure> {
        let (generation, mut connection) = self.connection().await.map_err(Failure::Store)?;
        let Ok(answer) = timeout(COMMAND, connection.send_packed_command(cmd)).await else {
            // Replies come in order: one that is late makes all after it late.
            self.shared.down(generation, "a reply was late");
            return Err(Failure::Store(late()));
        };
        answer.and_then(Value::extract_error).map_err(|e| {
            if e.is_unrecoverable_error() {
                self.shared.down(generation, &e.to_string());
            }
            Failure::Redis(e)
        })
    }

    async fn connection(&self) -> Result<(u64, MultiplexedConnection)> {
        if let State::Up { generation, connection } = &*self.shared.state.borrow() {
            return Ok((*generation, connection.clone()));
        }
        let mut state = self.shared.state.subscribe();
        let up = timeout(LINK_WAIT, state.wait_for(|s| matches!(s, State::Up { .. }))).await;
        if let Ok(Ok(state)) = up
            && let State::Up { generation, connection } = &*state
        {
            return Ok((*generation, connection.clone()));
        }
        let why = match &*self.shared.state.borrow() {
            State::Down { why, .. } => Arc::clone(why),
            State::Up { .. } => "the connection was just made".into(),
        };
        Err(StoreError::Unavailable { message: format!("no connection to Redis: {why}"), sent: false })
    }

    /// Sends a command that may block for `wait`, on a connection of its own.
    pub(super) async fn blocking(&self, cmd: &Cmd, wait: Duration) -> Result<Value> {
        let idle = self.shared.idle.lock().pop();
        if let Some(connection) = idle {
            // It may have died while it was idle, and a read can be asked again.
            if let Ok(answer) = self.block_on(connection, cmd, wait).await {
                return Ok(answer);
            }
        }
        let connection = connect(&self.shared.client).await?;
        self.block_on(connection, cmd, wait).await
    }

    async fn block_on(
        &self,
        mut connection: MultiplexedConnection,
        cmd: &Cmd,
        wait: Duration,
    ) -> Result<Value> {
        let answer =
            timeout(wait + COMMAND, connection.send_packed_command(cmd)).await.map_err(|_| late())?;
        let answer = answer.and_then(Value::extract_error).map_err(|e| reply::error(&e, true))?;
        // Only a connection that answered in time is used again.
        self.shared.idle.lock().push(connection);
        Ok(answer)
    }
}

enum Failure {
    Redis(redis::RedisError),
    Store(StoreError),
}

impl Failure {
    fn into_store(self) -> StoreError {
        match self {
            Self::Redis(e) => reply::error(&e, true),
            Self::Store(e) => e,
        }
    }
}

fn is_noscript(e: &redis::RedisError) -> bool {
    e.code() == Some("NOSCRIPT")
}

impl Shared {
    fn down(&self, generation: u64, why: &str) {
        let changed = self.state.send_if_modified(|state| match state {
            State::Up { generation: now, .. } if *now == generation => {
                *state = State::Down { generation, why: why.into() };
                true
            }
            _ => false,
        });
        if changed {
            tracing::warn!(why, "the connection to Redis is gone");
        }
    }

    /// Makes a connection to the store we know.
    async fn again(&self) -> Result<MultiplexedConnection> {
        let mut connection = connect(&self.client).await?;
        let (found, initialised) = prepare(&mut connection, self.layout).await?;
        if initialised {
            // As it was before: cursors of its streams find them shortened.
            tracing::warn!("Redis came back empty: its runs are lost; initialised the store again");
        }
        if found == self.layout {
            return Ok(connection);
        }
        Err(StoreError::Unreadable("another store answers at the address of Redis".into()))
    }
}

/// Connects again whenever the link is down.
async fn supervise(shared: Arc<Shared>) {
    let mut state = shared.state.subscribe();
    let mut pause = BACKOFF.0;
    while let Ok(down) = state.wait_for(|s| matches!(s, State::Down { .. })).await.map(|s| s.clone()) {
        let State::Down { generation, .. } = down else { continue };
        shared.idle.lock().clear();
        match shared.again().await {
            Ok(connection) => {
                pause = BACKOFF.0;
                shared.state.send_replace(State::Up { generation: generation + 1, connection });
                tracing::info!("connected to Redis again");
                let _ = shared.hints.send(Hint::Reconnected);
            }
            Err(e) => {
                let why: Arc<str> = e.to_string().into();
                tracing::debug!(why = &*why, "Redis cannot be reached");
                shared.state.send_replace(State::Down { generation, why });
                tokio::time::sleep(jittered(pause)).await;
                pause = (pause * 2).min(BACKOFF.1);
            }
        }
    }
}

/// Between half of `pause` and all of it.
fn jittered(pause: Duration) -> Duration {
    let mut random = [0; 1];
    // Without randomness all servers come back together, which Redis survives.
    let _ = getrandom::fill(&mut random);
    pause / 2 + (pause / 2) * u32::from(random[0]) / 255
}

/// Listens for hints, again and again.
async fn listen(shared: Arc<Shared>) {
    let mut pause = BACKOFF.0;
    let mut first = true;
    loop {
        let channel = keys::hints(shared.layout.epoch);
        let made = timeout(CONNECT, async {
            let mut subscription = shared.client.get_async_pubsub().await?;
            subscription.subscribe(&channel).await?;
            redis::RedisResult::Ok(subscription)
        });
        if let Ok(Ok(subscription)) = made.await {
            pause = BACKOFF.0;
            if !std::mem::take(&mut first) {
                let _ = shared.hints.send(Hint::Reconnected);
            }
            let (mut sink, mut messages) = subscription.split();
            loop {
                match timeout(QUIET, messages.next()).await {
                    Ok(Some(message)) => {
                        if let Some(hint) = read_hint(message.get_payload_bytes()) {
                            // No receiver is no fault.
                            let _ = shared.hints.send(hint);
                        }
                    }
                    Ok(None) => break,
                    // Quiet: is anybody there?
                    Err(_) => match timeout(COMMAND, sink.ping::<Value>()).await {
                        Ok(Ok(_)) => {}
                        _ => break,
                    },
                }
            }
        }
        tokio::time::sleep(jittered(pause)).await;
        pause = (pause * 2).min(BACKOFF.1);
    }
}

fn read_hint(message: &[u8]) -> Option<Hint> {
    let (partition, queue) = std::str::from_utf8(message).ok()?.split_once(' ')?;
    Some(Hint::Queue(crate::model::ids::Partition(partition.parse().ok()?), queue.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_cannot_be_used_is_refused_without_being_told() {
        for bad in ["secret", "http://u:secret@h", "redis://u:secret@h:99999999", "redis+cluster://:secret@h"]
        {
            let error = client(bad).unwrap_err();
            assert!(!error.was_sent());
            assert!(!error.to_string().contains("secret"), "{error}");
        }
        assert!(client("redis://u:secret@localhost:1/0").is_ok());
    }

    #[test]
    fn a_pause_is_jittered_within_its_bounds() {
        for _ in 0..100 {
            let pause = jittered(Duration::from_millis(100));
            assert!((50..=100).contains(&pause.as_millis()), "{pause:?}");
        }
    }
}
