//! A real `downbeat dev` on a free port with its own data, killed when dropped.

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

/// A running server.
#[derive(Debug)]
pub struct Server {
    process: Child,
    address: SocketAddr,
    _data: tempfile::TempDir,
}

impl Server {
    /// Starts a server and waits until it says where it listens.
    pub fn start() -> Self {
        let data = tempfile::tempdir().unwrap();
        let mut process = Command::new(env!("CARGO_BIN_EXE_downbeat"))
            .args(["dev", "--listen", "127.0.0.1:0", "--data"])
            .arg(data.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let stderr = BufReader::new(process.stderr.take().unwrap());
        let (said, listening) = mpsc::channel();
        // Reads to the end, so that the server never waits for its log to be read.
        std::thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                if let Some((_, address)) = line.split_once("listening on http://") {
                    let _ = said.send(address.trim().parse().unwrap());
                } else {
                    eprintln!("server: {line}");
                }
            }
        });
        let Ok(address) = listening.recv_timeout(Duration::from_secs(30)) else {
            let _ = process.kill();
            panic!("the server did not say where it listens");
        };
        Self { process, address, _data: data }
    }

    /// Asks it to stop.
    pub fn ask_to_stop(&self) {
        let pid = self.process.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
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

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
