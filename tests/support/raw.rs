//! Connections by hand, for clients that misbehave: bytes of HTTP/1.1, frames of HTTP/2.

use super::server::Server;
use std::io;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::Instant;

/// Types of frames.
pub const DATA: u8 = 0;
pub const HEADERS: u8 = 1;
pub const RST_STREAM: u8 = 3;
pub const SETTINGS: u8 = 4;
pub const PING: u8 = 6;
pub const GO_AWAY: u8 = 7;
pub const CONTINUATION: u8 = 9;
/// Flags of frames.
pub const END_STREAM: u8 = 1;
pub const END_HEADERS: u8 = 4;

/// One frame.
pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut frame = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend_from_slice(payload);
    frame
}

fn text(out: &mut Vec<u8>, text: &[u8]) {
    // A length with a prefix of seven bits.
    if text.len() < 127 {
        out.push(text.len() as u8);
    } else {
        out.push(127);
        let mut rest = text.len() - 127;
        while rest >= 128 {
            out.push((rest % 128) as u8 | 128);
            rest /= 128;
        }
        out.push(rest as u8);
    }
    out.extend_from_slice(text);
}

/// Headers as HPACK literals that are not indexed.
pub fn block(headers: &[(&str, &str)]) -> Vec<u8> {
    let mut out = Vec::new();
    for (name, value) in headers {
        out.push(0);
        text(&mut out, name.as_bytes());
        text(&mut out, value.as_bytes());
    }
    out
}

/// The head of a request over HTTP/2.
pub fn head(method: &str, path: &str, more: &[(&str, &str)]) -> Vec<u8> {
    let mut headers =
        vec![(":method", method), (":scheme", "http"), (":path", path), (":authority", "localhost")];
    headers.extend_from_slice(more);
    block(&headers)
}

/// The head of a gRPC call.
pub fn call(path: &str) -> Vec<u8> {
    head("POST", path, &[("content-type", "application/grpc"), ("te", "trailers")])
}

/// How an HTTP/2 connection begins.
pub fn preface() -> Vec<u8> {
    [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(), frame(SETTINGS, 0, 0, &[])].concat()
}

/// A connection.
#[derive(Debug)]
pub struct Raw {
    pub stream: TcpStream,
    /// What was read and not looked at.
    buffer: Vec<u8>,
}

impl Raw {
    pub async fn connect(server: &Server) -> Self {
        Self { stream: TcpStream::connect(server.address()).await.unwrap(), buffer: Vec::new() }
    }

    /// Connects over HTTP/2 and says hello.
    pub async fn http2(server: &Server) -> Self {
        let mut raw = Self::connect(server).await;
        raw.say(&preface()).await.unwrap();
        raw
    }

    pub async fn say(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes).await
    }

    /// Says `bytes` one by one, with pauses, until all is said or the other side has closed; then waits for that. How
    /// long it all took, and what was answered.
    pub async fn drip(mut self, bytes: &[u8], pause: Duration) -> (Duration, Vec<u8>) {
        let begun = Instant::now();
        let mut answer = Vec::new();
        let mut piece = vec![0; 4_096];
        let mut bytes = bytes.iter();
        let mut beat = tokio::time::interval(pause);
        loop {
            tokio::select! {
                read = self.stream.read(&mut piece) => match read {
                    Ok(0) | Err(_) => return (begun.elapsed(), answer),
                    Ok(n) => answer.extend_from_slice(&piece[..n]),
                },
                _ = beat.tick() => {
                    if let Some(byte) = bytes.next() && self.stream.write_all(&[*byte]).await.is_err() {
                        return (begun.elapsed(), answer);
                    }
                }
            }
        }
    }

    /// Everything that comes until the other side closes.
    pub async fn rest(&mut self) -> Vec<u8> {
        let mut rest = std::mem::take(&mut self.buffer);
        // An end is an end, with or without a reset.
        let _ = self.stream.read_to_end(&mut rest).await;
        rest
    }

    /// One answer of HTTP/1.1 whose body has a length, as text; the connection stays open.
    pub async fn answer(&mut self) -> String {
        loop {
            let text = String::from_utf8_lossy(&self.buffer).into_owned();
            if let Some((head, body)) = text.split_once("\r\n\r\n") {
                let length = head.lines().find_map(|l| l.strip_prefix("content-length: ")).unwrap_or("0");
                if body.len() >= length.parse().unwrap() {
                    self.buffer.clear();
                    return text;
                }
            }
            let mut piece = vec![0; 4_096];
            let n = self.stream.read(&mut piece).await.unwrap();
            assert!(n > 0, "it ended after {text:?}");
            self.buffer.extend_from_slice(&piece[..n]);
        }
    }

    /// The next frame: type, flags, stream, payload. None: closed.
    pub async fn frame(&mut self) -> Option<(u8, u8, u32, Vec<u8>)> {
        loop {
            if let Some((head, rest)) = self.buffer.split_first_chunk::<9>() {
                let [a, b, c, kind, flags, id @ ..] = *head;
                let length = u32::from_be_bytes([0, a, b, c]) as usize;
                if rest.len() >= length {
                    let payload = rest[..length].to_vec();
                    self.buffer.drain(..9 + length);
                    return Some((kind, flags, u32::from_be_bytes(id), payload));
                }
            }
            let mut piece = vec![0; 16_384];
            match self.stream.read(&mut piece).await {
                Ok(0) | Err(_) => return None,
                Ok(n) => self.buffer.extend_from_slice(&piece[..n]),
            }
        }
    }

    /// Whether the connection ends with a goodbye that is an error, or without one.
    pub async fn is_sent_away(&mut self) -> bool {
        while let Some((kind, _, _, payload)) = self.frame().await {
            if kind == GO_AWAY && payload[4..8] != [0; 4] {
                return true;
            }
        }
        true
    }
}
