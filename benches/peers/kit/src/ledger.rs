//! Notes how often each task of each chain ran. One per worker process.
//!
//! The file that is written at the end has ten bytes per chain: how often each of the nine tasks ran, and how often the
//! chain ended with the right number. `run` adds up the files of all workers, and every byte must then be one.

use crate::{TASKS, last};
use std::io;
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

/// Cells of a chain: its tasks and its end.
const CELLS: usize = TASKS as usize + 1;

static LEDGER: OnceLock<Ledger> = OnceLock::new();

/// How often each task of each chain ran in this process.
#[derive(Debug)]
pub struct Ledger {
    cells: Vec<AtomicU8>,
    /// Chains that ended.
    ended: watch::Sender<u64>,
}

/// The ledger of this process; the first call, with the number of chains, makes it.
pub fn ledger(chains: impl FnOnce() -> u64) -> &'static Ledger {
    LEDGER.get_or_init(|| Ledger {
        cells: (0..chains() * CELLS as u64).map(|_| AtomicU8::new(0)).collect(),
        ended: watch::Sender::new(0),
    })
}

impl Ledger {
    /// The work of a task: notes that it ran, and answers with the number for the next one.
    pub fn task(&self, x: u64) -> u64 {
        self.note(x);
        x + 1
    }

    /// Notes that a chain has ended with `x`.
    pub fn end(&self, x: u64) {
        if x == last(x / 16) {
            self.note(x);
        }
        self.ended.send_modify(|n| *n += 1);
    }

    fn note(&self, x: u64) {
        let cell =
            (x % 16 < CELLS as u64).then(|| self.cells.get((x / 16) as usize * CELLS + (x % 16) as usize));
        match cell.flatten() {
            // Stays at the largest: 256 times must not look like none.
            Some(cell) => {
                let _ = cell.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_add(1));
            }
            // Its right cell stays at nought, so the audit fails.
            None => eprintln!("a task was given {x}, which belongs to no chain"),
        }
    }

    /// Says on standard output on which port a driver may wait for ends, answers there until SIGTERM, and then writes the
    /// file.
    pub async fn serve(&'static self, file: &Path) -> io::Result<()> {
        let mut end = signal(SignalKind::terminate())?;
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        println!("{}", serde_json::json!({ "listening": listener.local_addr()?.port() }));
        loop {
            tokio::select! {
                _ = end.recv() => break,
                accepted = listener.accept() => {
                    let (stream, _) = accepted?;
                    tokio::spawn(self.answer(stream));
                }
            }
        }
        let cells: Vec<u8> = self.cells.iter().map(|c| c.load(Ordering::Relaxed)).collect();
        std::fs::write(file, cells)
    }

    /// Each line is a number; the answer comes when so many chains have ended.
    async fn answer(&self, stream: TcpStream) -> io::Result<()> {
        stream.set_nodelay(true)?;
        let mut stream = BufReader::new(stream);
        let mut line = String::new();
        let mut ended = self.ended.subscribe();
        while stream.read_line(&mut line).await? > 0 {
            let wanted: u64 = line.trim().parse().map_err(io::Error::other)?;
            ended.wait_for(|n| *n >= wanted).await.map_err(io::Error::other)?;
            stream.get_mut().write_all(b".").await?;
            line.clear();
        }
        Ok(())
    }
}

/// A driver's end of a worker's port.
#[derive(Debug)]
pub(crate) struct Ends(TcpStream);

impl Ends {
    pub(crate) async fn connect(port: u16) -> io::Result<Self> {
        let stream = TcpStream::connect(("127.0.0.1", port)).await?;
        stream.set_nodelay(true)?;
        Ok(Self(stream))
    }

    pub(crate) async fn wait(&mut self, number: u64) -> io::Result<()> {
        self.0.write_all(format!("{number}\n").as_bytes()).await?;
        self.0.read_u8().await.map(|_| ())
    }
}
