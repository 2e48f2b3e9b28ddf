//! The processes, the proxies between them, and how each is killed, stopped and started again.

use crate::store::Redis;
use crate::support::proxy::{Mode, Proxy};
use crate::support::server::{Door, Server, free_address};
use crate::{Settings, hands};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::time::Duration;
use tokio::sync::Mutex;

const SERVERS: usize = 2;
const WORKERS: usize = 3;

/// A server and the proxies around it.
pub(crate) struct Seat {
    /// Held while something is done to the process.
    pub(crate) process: Mutex<Option<Server>>,
    pub(crate) front: Proxy,
    pub(crate) back: Proxy,
    /// None before a cluster, whose nodes tell addresses of their own.
    pub(crate) to_redis: Option<Proxy>,
    url: String,
    address: SocketAddr,
}

/// A worker.
pub(crate) struct Hand {
    pub(crate) process: Mutex<Child>,
    label: String,
    door: Door,
    journal: PathBuf,
}

/// See the module.
pub(crate) struct Site {
    pub(crate) redis: Mutex<Redis>,
    pub(crate) seats: Vec<Seat>,
    pub(crate) hands: Vec<Hand>,
    settings: Vec<(&'static str, &'static str)>,
    panics: std::sync::Mutex<usize>,
    dir: tempfile::TempDir,
}

impl Site {
    pub(crate) fn start(settings: &Settings) -> Self {
        let redis = Redis::start(&settings.redis);
        let mut all = vec![("DOWNBEAT_LOG", "warn")];
        all.extend(redis.settings());
        if settings.seconds < 120 {
            // So that leases pass in a short soak, too.
            all.extend([("DOWNBEAT_LEASE", "3s"), ("DOWNBEAT_ACK", "1s"), ("DOWNBEAT_PING", "1s")]);
        }
        let dir = tempfile::tempdir().unwrap();
        let seats: Vec<_> = (0..SERVERS)
            .map(|_| {
                let (url, to_redis) = redis.address();
                let server = Server::serve_with(&url, free_address(), &all);
                let address = server.address();
                let proxy = || Proxy::start(address);
                Seat {
                    front: proxy(),
                    back: proxy(),
                    to_redis,
                    url,
                    address,
                    process: Mutex::new(Some(server)),
                }
            })
            .collect();
        let hands = (0..WORKERS)
            .map(|n| {
                let label = format!("hand-{n}");
                let door = Door(seats[n % SERVERS].back.address());
                let journal = dir.path().join(&label);
                let process = Mutex::new(hands::start(&label, door, &journal));
                Hand { process, label, door, journal }
            })
            .collect();
        let panics = std::sync::Mutex::new(0);
        Self { redis: Mutex::new(redis), seats, hands, settings: all, panics, dir }
    }

    /// Where callers and readers ask.
    pub(crate) fn front_doors(&self) -> Vec<Door> {
        self.seats.iter().map(|s| Door(s.front.address())).collect()
    }

    /// A server without proxies, for the audit.
    pub(crate) fn door(&self) -> Door {
        Door(self.seats[0].address)
    }

    /// All that workers wrote down.
    pub(crate) fn journals(&self) -> String {
        self.hands.iter().map(|h| std::fs::read_to_string(&h.journal).unwrap_or_default()).collect()
    }

    /// How many servers have panicked.
    pub(crate) fn panics(&self) -> usize {
        *self.panics.lock().unwrap()
    }

    fn look_at_log(&self, server: &Server) {
        if server.has_logged("panicked") {
            *self.panics.lock().unwrap() += 1;
        }
    }

    /// Ends a server, at once or as an operator does.
    pub(crate) async fn end(&self, process: &mut Option<Server>, kill: bool) {
        let Some(mut server) = process.take() else { return };
        if !kill {
            server.ask_to_stop();
            server.stopped().await;
        }
        self.look_at_log(&server);
        server.kill9();
    }

    /// Starts a server again at its address, as soon as it can.
    pub(crate) async fn start_again(&self, seat: &Seat, process: &mut Option<Server>) {
        while process.is_none() {
            let (url, address, settings) = (seat.url.clone(), seat.address, self.settings.clone());
            let start = move || Server::try_serve(&url, address, &settings);
            *process = tokio::task::spawn_blocking(start).await.unwrap();
            if process.is_none() {
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        }
    }

    /// Everything runs, nothing is in the way.
    pub(crate) async fn heal(&self) {
        for seat in &self.seats {
            for proxy in [&seat.front, &seat.back].into_iter().chain(&seat.to_redis) {
                proxy.set(Mode::Pass);
                proxy.drop_replies_to("", 0);
                proxy.cut();
            }
        }
        for seat in &self.seats {
            let mut process = seat.process.lock().await;
            self.start_again(seat, &mut process).await;
        }
    }

    pub(crate) async fn stop(&self) {
        for hand in &self.hands {
            hand.end(&mut *hand.process.lock().await, true).await;
        }
        for seat in &self.seats {
            self.end(&mut *seat.process.lock().await, false).await;
        }
        // It goes last, and nobody misses it.
        let _ = self.dir.path();
    }
}

impl Hand {
    /// Sends it a signal by name.
    pub(crate) fn signal(process: &Child, name: &str) {
        let _ = Command::new("kill").args([&format!("-{name}"), &process.id().to_string()]).status();
    }

    /// Ends it, at once or as an operator does.
    pub(crate) async fn end(&self, process: &mut Child, kill: bool) {
        if kill {
            let _ = process.kill();
            let _ = process.wait();
            return;
        }
        Self::signal(process, "TERM");
        let mut pause = tokio::time::interval(Duration::from_millis(50));
        for _ in 0..200 {
            pause.tick().await;
            if process.try_wait().is_ok_and(|s| s.is_some()) {
                return;
            }
        }
        let _ = process.kill();
        let _ = process.wait();
    }

    /// Starts it again.
    pub(crate) fn start_again(&self, process: &mut Child) {
        *process = hands::start(&self.label, self.door, &self.journal);
    }
}

impl Drop for Hand {
    fn drop(&mut self) {
        let process = self.process.get_mut();
        let _ = process.kill();
        let _ = process.wait();
    }
}
