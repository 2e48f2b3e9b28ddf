//! A TCP proxy that misbehaves as it is told: between a server and Redis, a worker and a server, a reader and a server.
//!
//! ```text
//!   client ──► listener ──► to_server ──► target          mode: what happens to bytes, at any time
//!          ◄──────────────  to_client ◄──                 cut, cut_after, drop_replies_to: so often
//! ```
//!
//! Invariants
//! - It runs on a thread of its own, so that a test may block while it works, and ends with the value.
//! - A connection of which bytes were swallowed stays black until one side gives up or it is cut: what comes later is
//!   never joined to what came before the gap.
//! - A reply is dropped only after the target has begun to send it: the request has been carried out.
//!
//! To add a fault: a variant of [`Mode`] and its arm in [`Pump::run`].

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// After the first bytes of a reply that is to be dropped, so long until the connection is cut: the rest of the batch
/// is carried out meanwhile.
const REST_OF_REPLY: Duration = Duration::from_millis(20);

/// Throttled bytes leave in pieces this far apart.
const PIECE: Duration = Duration::from_millis(50);

/// What happens to bytes, both ways.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// They pass.
    Pass,
    /// Whatever connects is closed at once; see [`Proxy::cut`] for what is open.
    Refuse,
    /// They are swallowed, and so are those of new connections; nobody is told that anything ended.
    HalfOpen,
    /// They stay where they are until the mode changes; nothing is lost.
    Hold,
    /// Each piece waits for so long.
    Delay(Duration),
    /// At most so many a second, in each direction of each connection.
    Throttle(u64),
}

/// See the module.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    target: watch::Sender<SocketAddr>,
    mode: watch::Sender<Mode>,
    /// Of all connections that are open; replaced by each cut.
    cut: Mutex<CancellationToken>,
    /// Bytes that still pass before the connection that carries the last one is cut.
    budget: Mutex<Option<u64>>,
    /// So many requests more that have these bytes in them get no reply.
    wanted: Mutex<Option<(Vec<u8>, usize)>>,
    dropped: AtomicUsize,
    accepted: AtomicUsize,
    open: AtomicUsize,
    carried: AtomicU64,
    ended: CancellationToken,
}

impl Proxy {
    /// A proxy before `target` that lets everything pass.
    pub fn start(target: SocketAddr) -> Self {
        let shared = Arc::new(Shared {
            target: watch::Sender::new(target),
            mode: watch::Sender::new(Mode::Pass),
            cut: Mutex::default(),
            budget: Mutex::default(),
            wanted: Mutex::default(),
            dropped: AtomicUsize::new(0),
            accepted: AtomicUsize::new(0),
            open: AtomicUsize::new(0),
            carried: AtomicU64::new(0),
            ended: CancellationToken::new(),
        });
        let (said, bound) = mpsc::channel();
        let own = Arc::clone(&shared);
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
                said.send(listener.local_addr().unwrap()).unwrap();
                own.ended.run_until_cancelled(accept(&own, &listener)).await;
            });
            // What was spawned ends with the runtime.
        });
        let address = bound.recv().expect("the proxy listens");
        Self { address, shared, thread: Some(thread) }
    }

    /// A proxy before a Redis on this port of this machine.
    pub fn before_port(port: u16) -> Self {
        Self::start(SocketAddr::from(([127, 0, 0, 1], port)))
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where it listens, as the address of a Redis.
    pub fn redis_url(&self) -> String {
        format!("redis://{}", self.address)
    }

    /// From now on.
    pub fn set(&self, mode: Mode) {
        self.shared.mode.send_replace(mode);
    }

    /// New connections lead there.
    pub fn lead_to(&self, target: SocketAddr) {
        self.shared.target.send_replace(target);
    }

    /// Cuts every connection that is open.
    pub fn cut(&self) {
        std::mem::take(&mut *self.shared.cut.lock().unwrap()).cancel();
    }

    /// Cuts a connection once so many more bytes have passed, in the middle of whatever it carries.
    pub fn cut_after(&self, bytes: u64) {
        *self.shared.budget.lock().unwrap() = Some(bytes);
    }

    /// The next requests that have `bytes` in them are carried out; their connections are cut instead of the replies.
    pub fn drop_replies_to(&self, bytes: impl Into<Vec<u8>>, times: usize) {
        *self.shared.wanted.lock().unwrap() = Some((bytes.into(), times)).filter(|_| times > 0);
    }

    /// Replies that were dropped so far.
    pub fn dropped(&self) -> usize {
        self.shared.dropped.load(Ordering::Acquire)
    }

    /// Connections that were made so far.
    pub fn accepted(&self) -> usize {
        self.shared.accepted.load(Ordering::Acquire)
    }

    /// Connections that are open.
    pub fn open(&self) -> usize {
        self.shared.open.load(Ordering::Acquire)
    }

    /// Bytes that passed so far, both ways.
    pub fn carried(&self) -> u64 {
        self.shared.carried.load(Ordering::Acquire)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.ended.cancel();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

async fn accept(shared: &Arc<Shared>, listener: &TcpListener) {
    loop {
        let Ok((client, _)) = listener.accept().await else { continue };
        shared.accepted.fetch_add(1, Ordering::AcqRel);
        if *shared.mode.borrow() == Mode::Refuse {
            continue;
        }
        let shared = Arc::clone(shared);
        tokio::spawn(async move {
            shared.open.fetch_add(1, Ordering::AcqRel);
            let cut = shared.cut.lock().unwrap().clone();
            cut.run_until_cancelled(carry(&shared, client)).await;
            shared.open.fetch_sub(1, Ordering::AcqRel);
        });
    }
}

/// What the two directions of a connection know of each other.
#[derive(Debug, Default)]
struct Link {
    black: AtomicBool,
    /// The request whose reply is to be dropped is through.
    drops: AtomicBool,
    cut: CancellationToken,
}

/// One connection to its end.
async fn carry(shared: &Arc<Shared>, client: TcpStream) {
    let mut mode = shared.mode.subscribe();
    let link = Link::default();
    if *mode.borrow() == Mode::HalfOpen {
        link.black.store(true, Ordering::Release);
    }
    let (from_client, to_client) = client.into_split();
    if link.black.load(Ordering::Acquire) {
        swallow(from_client).await;
        return std::future::pending().await;
    }
    // A connection that is held gets its other half once it goes on.
    let _ = mode.wait_for(|m| *m != Mode::Hold).await;
    let target = *shared.target.borrow();
    let Ok(server) = TcpStream::connect(target).await else { return };
    let _ = server.set_nodelay(true);
    let _ = to_client.as_ref().set_nodelay(true);
    let (from_server, to_server) = server.into_split();
    let up = Pump { shared, link: &link, from: from_client, to: to_server, up: true };
    let down = Pump { shared, link: &link, from: from_server, to: to_client, up: false };
    link.cut.run_until_cancelled(async { tokio::join!(up.run(), down.run()) }).await;
}

async fn swallow(mut from: OwnedReadHalf) {
    let mut buffer = [0; 4_096];
    while from.read(&mut buffer).await.is_ok_and(|n| n > 0) {}
}

/// One direction of a connection.
struct Pump<'a> {
    shared: &'a Shared,
    link: &'a Link,
    from: OwnedReadHalf,
    to: OwnedWriteHalf,
    /// From the client to the target.
    up: bool,
}

impl Pump<'_> {
    async fn run(mut self) {
        let mut mode = self.shared.mode.subscribe();
        let mut buffer = vec![0; 64 << 10];
        // The end of the last piece: what is looked for may be cut in two.
        let mut tail = Vec::new();
        loop {
            // Err only if the proxy is gone.
            let _ = mode.wait_for(|m| *m != Mode::Hold).await;
            let read = self.from.read(&mut buffer).await.unwrap_or(0);
            let _ = mode.wait_for(|m| *m != Mode::Hold).await;
            let now = *mode.borrow();
            if now == Mode::HalfOpen || self.link.black.load(Ordering::Acquire) {
                self.link.black.store(true, Ordering::Release);
                if read == 0 {
                    // Nobody is told; the other direction may still be read.
                    return std::future::pending().await;
                }
                continue;
            }
            if read == 0 {
                let _ = self.to.shutdown().await;
                return;
            }
            if !self.up && self.link.drops.load(Ordering::Acquire) {
                tokio::time::sleep(REST_OF_REPLY).await;
                self.shared.dropped.fetch_add(1, Ordering::AcqRel);
                return self.link.cut.cancel();
            }
            let (bytes, last) = self.within_budget(&buffer[..read]);
            if self.up && !self.link.drops.load(Ordering::Acquire) && self.is_wanted(&mut tail, bytes) {
                self.link.drops.store(true, Ordering::Release);
            }
            let written = match now {
                Mode::Throttle(rate) => self.throttled(bytes, rate).await,
                Mode::Delay(pause) => {
                    tokio::time::sleep(pause).await;
                    self.to.write_all(bytes).await
                }
                _ => self.to.write_all(bytes).await,
            };
            self.shared.carried.fetch_add(bytes.len() as u64, Ordering::AcqRel);
            if last || written.is_err() {
                return self.link.cut.cancel();
            }
        }
    }

    /// What may still pass, and whether that is the last.
    fn within_budget<'b>(&self, bytes: &'b [u8]) -> (&'b [u8], bool) {
        let mut budget = self.shared.budget.lock().unwrap();
        let Some(left) = *budget else { return (bytes, false) };
        if left > bytes.len() as u64 {
            *budget = Some(left - bytes.len() as u64);
            return (bytes, false);
        }
        *budget = None;
        (&bytes[..left as usize], true)
    }

    /// Whether the request is here whose reply is to be dropped.
    fn is_wanted(&self, tail: &mut Vec<u8>, bytes: &[u8]) -> bool {
        let mut wanted = self.shared.wanted.lock().unwrap();
        let Some((pattern, times)) = wanted.as_mut() else {
            tail.clear();
            return false;
        };
        tail.extend_from_slice(bytes);
        let found = tail.windows(pattern.len()).any(|w| w == pattern.as_slice());
        let kept = (pattern.len() - 1).min(tail.len());
        tail.drain(..tail.len() - kept);
        if found {
            *times -= 1;
            if *times == 0 {
                *wanted = None;
            }
        }
        found
    }

    async fn throttled(&mut self, bytes: &[u8], rate: u64) -> std::io::Result<()> {
        let piece = (rate * PIECE.as_millis() as u64 / 1_000).max(1) as usize;
        for part in bytes.chunks(piece) {
            // Throttled for as long as it is wanted.
            if matches!(*self.shared.mode.borrow(), Mode::Throttle(_)) {
                tokio::time::sleep(PIECE).await;
            }
            self.to.write_all(part).await?;
        }
        Ok(())
    }
}
