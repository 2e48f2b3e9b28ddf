//! A Redis server of one's own: on a free port, in a directory of its own, gone when dropped.
//!
//! Needs `redis-server` on the path (or `REDIS_SERVER` naming another binary, e.g. of Valkey).

#![allow(dead_code, reason = "each test crate uses a part of it")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use tempfile::TempDir;

/// How to start it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Options {
    /// Whether it keeps an append-only file (fsync every second).
    pub(crate) aof: bool,
    /// More of its command line, e.g. `["--requirepass", "x"]`.
    pub(crate) args: Vec<String>,
}

/// Stands in [`Options::args`] for a free port.
pub(crate) const FREE_PORT: &str = "{free port}";

/// A running (or stopped) server.
#[derive(Debug)]
pub(crate) struct RedisServer {
    options: Options,
    /// The network namespace that it is in, if it is in one.
    namespace: Option<String>,
    host: String,
    port: u16,
    dir: TempDir,
    child: Option<Child>,
}

impl RedisServer {
    /// Starts a server and waits until it takes connections.
    pub(crate) fn start(options: Options) -> Self {
        Self::start_below(options, u16::MAX)
    }

    /// The same on a port below `limit`, as a node of a cluster needs it, whose bus is 10,000 above.
    pub(crate) fn start_below(options: Options, limit: u16) -> Self {
        for _ in 0..50 {
            // Free now; if somebody takes it before the server does, the server ends and we try another.
            let free = || {
                let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
                if port < limit { port } else { 20_000 + port % (limit - 20_000) }
            };
            let mut server = Self::none();
            (server.options, server.port) = (options.clone(), free());
            for arg in server.options.args.iter_mut().filter(|a| *a == FREE_PORT) {
                *arg = free().to_string();
            }
            if server.run() {
                return server;
            }
        }
        panic!("no redis-server could be started");
    }

    /// Starts one in a network namespace, where it takes connections at each of its addresses; `host` is the one by which
    /// it is asked here.
    pub(crate) fn start_in(namespace: &str, host: &str, options: Options) -> Self {
        let mut server = Self::none();
        (server.options, server.port) = (options, 6379);
        (server.namespace, server.host) = (Some(namespace.to_owned()), host.to_owned());
        assert!(server.run(), "redis-server did not start in {namespace}");
        server
    }

    /// One that was never started: to stand where another one was.
    pub(crate) fn none() -> Self {
        Self {
            options: Options::default(),
            namespace: None,
            host: "127.0.0.1".to_owned(),
            port: 0,
            dir: tempfile::tempdir().unwrap(),
            child: None,
        }
    }

    /// Its address.
    pub(crate) fn url(&self) -> String {
        format!("redis://{}:{}", self.host, self.port)
    }

    /// Its port.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Its port for TLS; 0 if it has none.
    pub(crate) fn tls_port(&self) -> u16 {
        let mut args = self.options.args.iter().skip_while(|a| *a != "--tls-port");
        args.nth(1).map_or(0, |port| port.parse().unwrap())
    }

    /// Ends it in order: an append-only file is complete.
    pub(crate) fn stop(&mut self) {
        if let Some(mut child) = self.child.take() {
            if let Ok(mut socket) = TcpStream::connect((&*self.host, self.port)) {
                let _ = socket.write_all(b"SHUTDOWN NOSAVE\r\n");
                let _ = socket.read_to_end(&mut Vec::new());
            }
            let _ = child.wait();
        }
    }

    /// Stops it in its tracks (`STOP`), or lets it go on (`CONT`).
    pub(crate) fn signal(&self, name: &str) {
        let pid = self.child.as_ref().unwrap().id().to_string();
        assert!(Command::new("kill").args([&format!("-{name}"), &pid]).status().unwrap().success());
    }

    /// Its directory.
    pub(crate) fn dir(&self) -> &std::path::Path {
        self.dir.path()
    }

    /// The file that its writes are appended to.
    pub(crate) fn append_only_file(&self) -> std::path::PathBuf {
        let folder = std::fs::read_dir(self.dir.path().join("appendonlydir")).unwrap();
        let files = folder.map(|entry| entry.unwrap().path());
        files.filter(|path| path.to_string_lossy().contains(".incr.")).max().unwrap()
    }

    /// Kills it.
    pub(crate) fn kill9(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Starts it again on the same port, with what its append-only file holds.
    pub(crate) fn restart(&mut self) {
        self.stop();
        assert!(self.run(), "redis-server did not start again on port {}", self.port);
    }

    /// Starts it again as [`Self::restart`] does, with more of its command line from now on.
    pub(crate) fn restart_with(&mut self, args: &[&str]) {
        self.options.args.extend(args.iter().map(|a| (*a).to_owned()));
        self.restart();
    }

    /// Sends one command in its inline form and returns the first line of the answer.
    pub(crate) fn command(&self, line: &str) -> String {
        let mut socket = TcpStream::connect((&*self.host, self.port)).unwrap();
        socket.write_all(format!("{line}\r\n").as_bytes()).unwrap();
        let mut answer = String::new();
        BufReader::new(socket).read_line(&mut answer).unwrap();
        answer.trim_end().to_owned()
    }

    /// Sends one command in its inline form and returns all lines of the text that it answers.
    pub(crate) fn lines(&self, line: &str) -> Vec<String> {
        let mut socket = TcpStream::connect((&*self.host, self.port)).unwrap();
        socket.write_all(format!("{line}\r\nQUIT\r\n").as_bytes()).unwrap();
        let mut answer = String::new();
        socket.read_to_string(&mut answer).unwrap();
        let lines = answer.lines().skip(1).take_while(|l| *l != "+OK").filter(|l| !l.is_empty());
        lines.map(str::to_owned).collect()
    }

    /// Whether it runs.
    pub(crate) fn is_running(&self) -> bool {
        self.child.is_some()
    }

    /// A section of what it says about itself.
    pub(crate) fn info(&self, section: &str) -> String {
        let mut socket = TcpStream::connect((&*self.host, self.port)).unwrap();
        socket.write_all(format!("INFO {section}\r\nQUIT\r\n").as_bytes()).unwrap();
        let mut answer = String::new();
        socket.read_to_string(&mut answer).unwrap();
        answer
    }

    fn run(&mut self) -> bool {
        let binary = std::env::var("REDIS_SERVER").unwrap_or_else(|_| "redis-server".into());
        let (mut command, bind) = match &self.namespace {
            None => (Command::new(binary), ["--bind", "127.0.0.1", "--protected-mode", "yes"]),
            Some(namespace) => {
                let mut command = Command::new("ip");
                command.args(["netns", "exec", namespace]).arg(binary);
                (command, ["--bind", "*", "--protected-mode", "no"])
            }
        };
        let mut child = command
            .args(["--port", &self.port.to_string(), "--save", ""])
            .args(bind)
            .args(["--appendonly", if self.options.aof { "yes" } else { "no" }])
            .arg("--dir")
            .arg(self.dir.path())
            .args(&self.options.args)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("redis-server can be started");
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let ready = lines.by_ref().any(|line| line.is_ok_and(|l| l.contains("eady to accept connections")));
        if !ready {
            let _ = child.wait();
            return false;
        }
        // What it says from now on must be read, or it blocks.
        std::thread::spawn(move || lines.for_each(drop));
        self.child = Some(child);
        true
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        self.kill9();
    }
}
