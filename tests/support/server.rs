//! A real `downbeat dev` on a free port with its own data, killed when dropped.

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

/// Where a server answers: its own address, or that of a proxy before it. [`super::client`] has the calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Door(pub SocketAddr);

impl Door {
    /// The address.
    pub fn address(&self) -> SocketAddr {
        self.0
    }

    /// The address, as a URL.
    pub fn url(&self) -> String {
        format!("http://{}", self.0)
    }
}

/// A running server.
#[derive(Debug)]
pub struct Server {
    process: Child,
    door: Door,
    /// What it has written to its log.
    log: Arc<Mutex<Vec<String>>>,
    /// Goes with the server.
    data: Option<tempfile::TempDir>,
}

impl Server {
    /// Starts `downbeat dev` on a free port with its own data and waits until it says where it listens.
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// The same with variables of its environment.
    pub fn start_with(variables: &[(&str, &str)]) -> Self {
        let data = tempfile::tempdir().unwrap();
        let mut server = Self::spawn(
            Command::new(program())
                .arg("dev")
                .args(["--listen", "127.0.0.1:0"])
                .arg("--data")
                .arg(data.path())
                .envs(variables.iter().copied()),
        );
        server.data = Some(data);
        server
    }

    /// Starts `downbeat serve` on a store: a URL, or `embedded` with its directory.
    pub fn serve(store: &str, data: Option<&Path>, listen: SocketAddr) -> Self {
        let mut command = Command::new(program());
        command.args(["serve", "--store", store, "--listen", &listen.to_string()]);
        if let Some(data) = data {
            command.arg("--data").arg(data);
        }
        Self::spawn(&mut command)
    }

    /// Starts `downbeat serve` on a Redis, with settings by their variables, e.g. `("DOWNBEAT_LEASE", "2s")`.
    pub fn serve_with(store: &str, listen: SocketAddr, settings: &[(&str, &str)]) -> Self {
        let mut command = Command::new(program());
        command.args(["serve", "--store", store, "--listen", &listen.to_string()]);
        Self::spawn(command.envs(settings.iter().copied()))
    }

    /// Starts `downbeat serve` where it cannot work: how it ended and what it said; none if it still ran after `within`,
    /// when it is ended.
    pub fn refused(store: &str, within: Duration) -> Option<(i32, String)> {
        let mut process = Command::new(program())
            .args(["serve", "--listen", "127.0.0.1:0", "--store", store])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stderr = process.stderr.take().unwrap();
        let reading = std::thread::spawn(move || {
            let mut said = String::new();
            let _ = std::io::Read::read_to_string(&mut stderr, &mut said);
            said
        });
        let began = tokio::time::Instant::now();
        let status = loop {
            if let Some(status) = process.try_wait().unwrap() {
                break Some(status);
            }
            if began.elapsed() > within {
                process.kill().unwrap();
                process.wait().unwrap();
                break None;
            }
            std::thread::sleep(Duration::from_millis(10));
        };
        let said = reading.join().unwrap();
        status.map(|s| (s.code().unwrap_or(-1), said))
    }

    /// Begins to start one and does not wait for it.
    pub fn begin(store: &str, listen: SocketAddr, settings: &[(&str, &str)]) -> Self {
        let mut command = Command::new(program());
        command.args(["serve", "--store", store, "--listen", &listen.to_string()]);
        Self::begin_with(command.envs(settings.iter().copied()), listen).0
    }

    /// The same as [`Self::serve_with`] where it may fail, since what it needs may be away.
    pub fn try_serve(store: &str, listen: SocketAddr, settings: &[(&str, &str)]) -> Option<Self> {
        let mut command = Command::new(program());
        command.args(["serve", "--store", store, "--listen", &listen.to_string()]);
        Self::try_spawn(command.envs(settings.iter().copied()))
    }

    fn spawn(command: &mut Command) -> Self {
        Self::try_spawn(command).expect("the server says where it listens")
    }

    fn try_spawn(command: &mut Command) -> Option<Self> {
        let (mut server, listening) = Self::begin_with(command, SocketAddr::from(([127, 0, 0, 1], 0)));
        // Dropped, it is ended.
        server.door = Door(listening.recv_timeout(Duration::from_secs(30)).ok()?);
        Some(server)
    }

    /// The process, whose address is `listen` until it says where it listens.
    fn begin_with(command: &mut Command, listen: SocketAddr) -> (Self, mpsc::Receiver<SocketAddr>) {
        let mut process =
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let stderr = BufReader::new(process.stderr.take().unwrap());
        let (said, listening) = mpsc::channel();
        let log = Arc::new(Mutex::new(Vec::new()));
        let written = Arc::clone(&log);
        // Reads to the end, so that the server never waits for its log to be read.
        std::thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                if let Some((_, address)) = line.split_once("listening on http://") {
                    let _ = said.send(address.trim().parse().unwrap());
                } else {
                    eprintln!("server: {line}");
                    written.lock().unwrap().push(line);
                }
            }
        });
        (Self { process, door: Door(listen), log, data: None }, listening)
    }

    /// Asks it to stop.
    pub fn ask_to_stop(&self) {
        self.signal("TERM");
    }

    /// Sends it a signal by its name, e.g. `CONT`; after `STOP` it does stand still.
    pub fn signal(&self, name: &str) {
        let pid = self.process.id().to_string();
        assert!(Command::new("kill").args([&format!("-{name}"), &pid]).status().unwrap().success());
        let stat = || std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let began = tokio::time::Instant::now();
        // The state stands after the name in brackets.
        while name == "STOP" && stat().contains(") ") && !stat().contains(") T ") {
            assert!(began.elapsed() < Duration::from_secs(10), "it does not stop");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// What it has logged so far, line by line.
    pub fn log(&self) -> Vec<String> {
        self.log.lock().unwrap().clone()
    }

    /// The memory that it has in use, in bytes. Zero where the system does not tell.
    pub fn memory(&self) -> u64 {
        let status =
            std::fs::read_to_string(format!("/proc/{}/status", self.process.id())).unwrap_or_default();
        let rss = status.lines().find_map(|l| l.strip_prefix("VmRSS:")).unwrap_or_default();
        rss.trim().trim_end_matches(" kB").parse::<u64>().map_or(0, |kib| kib << 10)
    }

    /// Waits until it has stopped; its exit status.
    pub async fn stopped(&mut self) -> Option<i32> {
        let ended = async {
            loop {
                if let Some(status) = self.process.try_wait().unwrap() {
                    return status.code();
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), ended).await.unwrap()
    }

    /// Whether a line of its log has this in it.
    pub fn has_logged(&self, text: &str) -> bool {
        self.log.lock().unwrap().iter().any(|line| line.contains(text))
    }

    /// Whether it runs.
    pub fn lives(&mut self) -> bool {
        self.process.try_wait().unwrap().is_none()
    }

    /// How many files and sockets it has open. Zero where the system does not tell.
    pub fn descriptors(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.process.id())).map_or(0, Iterator::count)
    }

    /// CPU time that it has used. Zero where the system does not tell.
    pub fn cpu(&self) -> Duration {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.process.id())).unwrap_or_default();
        // The name stands in brackets and may hold anything; user and system time are the 12th and 13th after it.
        let fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace();
        let ticks: u64 = fields.skip(11).take(2).filter_map(|n| n.parse::<u64>().ok()).sum();
        Duration::from_millis(ticks * 10)
    }

    /// Ends it at once, as `kill -9` does, and waits for its end.
    pub fn kill9(mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

impl std::ops::Deref for Server {
    type Target = Door;

    fn deref(&self) -> &Door {
        &self.door
    }
}

/// The program: the one that was built with the tests, or that of `DOWNBEAT_PROGRAM`, e.g. another version.
fn program() -> std::path::PathBuf {
    std::env::var_os("DOWNBEAT_PROGRAM").map_or_else(|| env!("CARGO_BIN_EXE_downbeat").into(), Into::into)
}

/// An address on which nothing listens.
pub fn free_address() -> SocketAddr {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
