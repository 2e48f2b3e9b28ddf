//! Stands between the link and Redis, and does what networks do.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// What it does with connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Passes on all, both ways.
    Pass,
    /// Passes on so many bytes at a time.
    Crumbs(usize),
    /// Passes on nothing and closes nothing.
    Hole,
    /// Closes every connection, new ones too.
    Cut,
    /// Passes requests on, and closes instead of passing on a reply.
    CutReplies,
    /// Passes so many bytes of requests on over each connection from now on, then closes it.
    CutAfter(u64),
}

/// A proxy; gone when dropped.
#[derive(Debug)]
pub(crate) struct Proxy {
    pub(crate) port: u16,
    mode: watch::Sender<Mode>,
    _tasks: JoinSet<()>,
}

impl Proxy {
    pub(crate) async fn start(to: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (mode, seen) = watch::channel(Mode::Pass);
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut open = JoinSet::new();
            loop {
                let Ok((client, _)) = listener.accept().await else { return };
                if *seen.borrow() == Mode::Cut {
                    continue;
                }
                if let Ok(server) = TcpStream::connect(("127.0.0.1", to)).await {
                    open.spawn(pass(client, server, seen.clone()));
                }
                while open.try_join_next().is_some() {}
            }
        });
        Self { port, mode, _tasks: tasks }
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    pub(crate) fn set(&self, mode: Mode) {
        self.mode.send_replace(mode);
    }
}

async fn pass(client: TcpStream, server: TcpStream, mode: watch::Receiver<Mode>) {
    client.set_nodelay(true).unwrap();
    server.set_nodelay(true).unwrap();
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let sent = Arc::new(AtomicU64::new(0));
    // The first that ends closes both.
    tokio::select! {
        () = one_way(from_client, to_server, mode.clone(), Some(sent)) => {}
        () = one_way(from_server, to_client, mode, None) => {}
    }
}

async fn one_way(
    mut from: tokio::net::tcp::OwnedReadHalf,
    mut to: tokio::net::tcp::OwnedWriteHalf,
    mut mode: watch::Receiver<Mode>,
    requests: Option<Arc<AtomicU64>>,
) {
    let mut buffer = vec![0; 64 << 10];
    loop {
        let now = *mode.borrow_and_update();
        let most = match now {
            Mode::Cut => return,
            Mode::Hole => {
                if mode.changed().await.is_err() {
                    return;
                }
                continue;
            }
            Mode::Crumbs(n) => n,
            Mode::Pass | Mode::CutReplies | Mode::CutAfter(_) => buffer.len(),
        };
        let read = tokio::select! {
            changed = mode.changed() => match changed {
                Ok(()) => continue,
                Err(_) => return,
            },
            read = from.read(&mut buffer[..most]) => read,
        };
        let Ok(n @ 1..) = read else { return };
        let mut pass = n;
        match (now, &requests) {
            (Mode::CutReplies, None) => return,
            (Mode::CutAfter(limit), Some(sent)) => {
                let before = sent.fetch_add(n as u64, SeqCst);
                pass = n.min(limit.saturating_sub(before) as usize);
            }
            _ => {}
        }
        if to.write_all(&buffer[..pass]).await.is_err() || pass < n {
            return;
        }
    }
}
