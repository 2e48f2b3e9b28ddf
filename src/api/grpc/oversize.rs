//! A result over the limit of a message cannot be read, yet its attempt must fail: unsettled, it would be
//! leased, done and refused again and again. So the bytes of the calls that carry results are looked at on
//! their way in: of a message over [`GRPC_READ_MAX`] the first few KiB are kept, and the token in them is
//! settled as failed. The bytes themselves pass unchanged; tonic refuses the message.
//!
//! ```text
//! gRPC message    0 u8 ‖ length u32 BE ‖ protobuf
//! ```

use crate::api::limits::GRPC_READ_MAX;
use crate::app::App;
use crate::dispatch::message::TaskOutcome;
use crate::model::command::ReportedFailure;
use crate::model::payload::PAYLOAD_MAX;
use axum::body::Body;
use bytes::Bytes;
use hyper::body::Frame;
use prost::encoding::{WireType, decode_key, decode_varint};
use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

/// Enough for a token and what stands before it.
const KEPT: usize = 16 << 10;
const HEAD: usize = 5;

/// Where the token of a result stands in the messages of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shape {
    /// `CompleteTaskRequest`.
    Complete,
    /// `WorkerMessage`.
    Worker,
}

/// Wraps the body of a call that carries results; leaves any other as it is.
pub(super) fn watched(path: &str, app: &App, body: Body) -> Body {
    let shape = match path {
        "/downbeat.v1.TaskService/Complete" => Shape::Complete,
        "/downbeat.v1.WorkerService/Connect" => Shape::Worker,
        _ => return body,
    };
    Body::new(Watched { body, app: app.clone(), scan: Scan::new(shape), held: VecDeque::new() })
}

struct Watched {
    body: Body,
    app: App,
    scan: Scan,
    /// What waits until enough of an oversized message is here.
    held: VecDeque<Result<Frame<Bytes>, axum::Error>>,
}

impl hyper::body::Body for Watched {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let this = &mut *self;
        loop {
            if !matches!(this.scan.state, State::Keep { .. })
                && let Some(frame) = this.held.pop_front()
            {
                return Poll::Ready(Some(frame));
            }
            let frame = ready!(Pin::new(&mut this.body).poll_frame(cx));
            match &frame {
                Some(Ok(data)) => this.scan.feed(data.data_ref().map_or(&[][..], |d| d)),
                Some(Err(_)) | None => this.scan.end(),
            }
            if let Some(token) = this.scan.found.take() {
                fail(this.app.clone(), token);
            }
            match frame {
                None if this.held.is_empty() => return Poll::Ready(None),
                None => {}
                Some(frame) => this.held.push_back(frame),
            }
        }
    }
}

/// Settles an attempt as failed, behind the back of whoever reads the stream.
fn fail(app: App, token: String) {
    tokio::spawn(async move {
        let message = format!(
            "output is part of a message over {GRPC_READ_MAX} bytes; at most {PAYLOAD_MAX} are taken"
        );
        let failure =
            ReportedFailure { code: "output_too_large".into(), message, retryable: false, retry_after: None };
        if let Err(error) = app.settle(&token, TaskOutcome::Failed(failure)).await {
            tracing::debug!(%error, "an oversized result was of no attempt that goes on");
        }
    });
}

/// Finds oversized messages in the bytes of a call.
#[derive(Debug)]
struct Scan {
    shape: Shape,
    state: State,
    /// The token of an oversized result, once it is known.
    found: Option<String>,
}

#[derive(Debug)]
enum State {
    /// In the head of a message; these bytes of it are here.
    Head { bytes: [u8; HEAD], have: usize },
    /// In a message of a size that is taken; this much of it is to come.
    Pass { left: usize },
    /// In a message that is too large.
    Keep { bytes: Vec<u8> },
    /// Behind the beginning of such a message: nothing after it is read by anyone.
    Done,
}

impl Scan {
    fn new(shape: Shape) -> Self {
        Self { shape, state: State::Head { bytes: [0; HEAD], have: 0 }, found: None }
    }

    fn feed(&mut self, mut data: &[u8]) {
        while !data.is_empty() {
            match &mut self.state {
                State::Head { bytes, have } => {
                    let n = data.len().min(HEAD - *have);
                    bytes[*have..*have + n].copy_from_slice(&data[..n]);
                    data = &data[n..];
                    *have += n;
                    if *have == HEAD {
                        let length = u32::from_be_bytes([bytes[1], bytes[2], bytes[3], bytes[4]]) as usize;
                        self.state = match length {
                            0 => State::Head { bytes: [0; HEAD], have: 0 },
                            1..=GRPC_READ_MAX => State::Pass { left: length },
                            _ => State::Keep { bytes: Vec::with_capacity(KEPT) },
                        };
                    }
                }
                State::Pass { left } => {
                    let n = data.len().min(*left);
                    data = &data[n..];
                    *left -= n;
                    if *left == 0 {
                        self.state = State::Head { bytes: [0; HEAD], have: 0 };
                    }
                }
                State::Keep { bytes } => {
                    let n = data.len().min(KEPT - bytes.len());
                    bytes.extend_from_slice(&data[..n]);
                    if bytes.len() < KEPT {
                        return;
                    }
                    self.end();
                }
                State::Done => return,
            }
        }
    }

    /// Nothing more comes, or enough is here.
    fn end(&mut self) {
        if let State::Keep { bytes } = &self.state {
            self.found = token(self.shape, bytes);
            self.state = State::Done;
        }
    }
}

/// A field of a message that may be cut off: number, declared length and what is here of it.
fn field<'a>(message: &mut &'a [u8]) -> Option<(u32, usize, &'a [u8])> {
    loop {
        let (number, kind) = decode_key(message).ok()?;
        match kind {
            WireType::LengthDelimited => {
                let length = usize::try_from(decode_varint(message).ok()?).ok()?;
                let here = length.min(message.len());
                let (value, rest) = message.split_at(here);
                *message = rest;
                return Some((number, length, value));
            }
            WireType::Varint => {
                decode_varint(message).ok()?;
            }
            WireType::ThirtyTwoBit => *message = message.get(4..)?,
            WireType::SixtyFourBit => *message = message.get(8..)?,
            WireType::StartGroup | WireType::EndGroup => return None,
        }
    }
}

/// The token beside the first output that is over the limit, as far as `message` is here.
fn token(shape: Shape, mut message: &[u8]) -> Option<String> {
    match shape {
        // token = 1, output = 2; also of `Result`: token = 1, completed = 2.
        Shape::Complete => {
            let mut token = None;
            while let Some((number, length, value)) = field(&mut message) {
                match number {
                    1 if value.len() == length => token = Some(value),
                    2 if length > PAYLOAD_MAX => return String::from_utf8(token?.to_vec()).ok(),
                    _ => {}
                }
            }
            None
        }
        // results = 4, in it result = 1.
        Shape::Worker => {
            while let Some((number, _, mut results)) = field(&mut message) {
                while number == 4
                    && let Some((1, _, result)) = field(&mut results)
                {
                    if let Some(token) = token(Shape::Complete, result) {
                        return Some(token);
                    }
                }
            }
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::v1;

    fn result(token: &str, size: usize) -> v1::Result {
        let output = Bytes::from(vec![b'1'; size]);
        v1::Result { token: token.into(), outcome: Some(v1::result::Outcome::Completed(output)) }
    }

    fn message(results: Vec<v1::Result>) -> Vec<u8> {
        use v1::worker_message::Message;
        framed(&v1::WorkerMessage { message: Some(Message::Results(v1::Results { results })) })
    }

    fn framed(message: &impl prost::Message) -> Vec<u8> {
        let mut bytes = vec![0];
        bytes.extend_from_slice(&u32::try_from(message.encoded_len()).unwrap().to_be_bytes());
        message.encode(&mut bytes).unwrap();
        bytes
    }

    fn found(shape: Shape, bytes: &[u8], piece: usize) -> Option<String> {
        let mut scan = Scan::new(shape);
        bytes.chunks(piece).for_each(|piece| scan.feed(piece));
        scan.end();
        scan.found
    }

    #[test]
    fn the_token_of_an_oversized_result_is_found_in_pieces_of_any_size() {
        let mut bytes = message(vec![result("small", 10)]);
        bytes.extend(message(Vec::new()));
        bytes.extend(message(vec![result("a", 100), result("large", 9 << 20)]));
        for piece in [1, 7, 16_384, bytes.len()] {
            assert_eq!(found(Shape::Worker, &bytes[..40_000], piece).as_deref(), Some("large"), "{piece}");
        }
        let complete = v1::CompleteTaskRequest { token: "t".into(), output: vec![b'1'; 9 << 20].into() };
        assert_eq!(found(Shape::Complete, &framed(&complete), 16_384).as_deref(), Some("t"));
    }

    #[test]
    fn no_token_is_found_where_no_single_output_is_too_large() {
        assert_eq!(found(Shape::Worker, &message(vec![result("a", 7 << 20)]), 16_384), None);
        let many = (0..10).map(|n| result(&n.to_string(), 1 << 20)).collect();
        assert_eq!(found(Shape::Worker, &message(many), 16_384), None);
        let mut junk = vec![0, 0xff, 0xff, 0xff, 0xff];
        junk.extend(vec![0xff; 20_000]);
        assert_eq!(found(Shape::Worker, &junk, 16_384), None);
        assert_eq!(found(Shape::Complete, &junk, 3), None);
    }

    #[test]
    fn a_scan_never_panics_on_any_bytes() {
        let mut seed = 7_u32;
        for _ in 0..2_000 {
            let bytes: Vec<u8> = (0..200)
                .map(|_| {
                    seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    (seed >> 24) as u8 & 0x7f
                })
                .collect();
            let _ = token(Shape::Worker, &bytes);
            let _ = token(Shape::Complete, &bytes);
        }
    }
}
