//! A Sentinel of one's own.

#![allow(dead_code, reason = "each test crate uses a part of it")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// A Sentinel of one's own that decides alone.
#[derive(Debug)]
pub(crate) struct Sentinel {
    process: Child,
    port: u16,
    _dir: tempfile::TempDir,
}

impl Sentinel {
    /// Starts one that watches the primary at a port, by the name `main`.
    pub(crate) fn start(primary: u16) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let config = dir.path().join("sentinel.conf");
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let text = format!(
            "port {port}\nbind 127.0.0.1\ndir {}\nsentinel monitor main 127.0.0.1 {primary} 1\n\
             sentinel down-after-milliseconds main 700\nsentinel failover-timeout main 3000\n",
            dir.path().display()
        );
        std::fs::write(&config, text).unwrap();
        let mut command = Command::new("redis-server");
        command.arg(&config).arg("--sentinel").stdout(Stdio::null()).stderr(Stdio::null());
        Self { process: command.spawn().unwrap(), port, _dir: dir }
    }

    /// Its port.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// What it answers to a line; empty if it does not.
    pub(crate) fn tells(&self, line: &str) -> String {
        let mut said = String::new();
        if let Ok(mut socket) = TcpStream::connect(("127.0.0.1", self.port)) {
            // A Sentinel knows no QUIT: what it says within a moment is all.
            socket.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
            let _ = socket.write_all(format!("{line}\r\n").as_bytes());
            let mut answer = Vec::new();
            let _ = socket.read_to_end(&mut answer);
            said = String::from_utf8_lossy(&answer).into_owned();
        }
        said
    }
}

impl Drop for Sentinel {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
