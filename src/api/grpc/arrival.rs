//! How long a gRPC message may take to come, and how much of messages that are not whole may be held. tonic waits for
//! ever and keeps what has come.
//!
//! Only the time that we wait for the other side counts: while nobody here reads, no client is slow. A call with one
//! request is given up when its request does not come to its end; a stream of messages may be silent as long as it
//! likes between two of them.

use super::status;
use crate::api::meter::Held;
use crate::app::AppError;
use crate::model::error::ErrorCode;
use crate::model::time::Span;
use axum::body::Body;
use bytes::Bytes;
use hyper::body::Frame;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::{Instant, Sleep, sleep};

/// Bytes in front of a message: a flag and its length.
const HEAD: usize = 5;

/// Methods to which any number of messages may come, or none.
const STREAMS: [&str; 4] = [
    "/downbeat.v1.RunService/StartMany",
    "/downbeat.v1.WorkerService/Connect",
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
];

/// The body of a call, watched on its way in.
pub(super) fn watched(path: &str, within: Duration, held: Held, body: Body) -> Body {
    let whole = !STREAMS.contains(&path);
    let messages = Messages::default();
    Body::new(Arriving { body, within, held, whole, messages, waited: Duration::ZERO, waiting: None })
}

struct Arriving {
    body: Body,
    within: Duration,
    held: Held,
    /// The body must come to its end, not only to that of a message.
    whole: bool,
    messages: Messages,
    /// For the message that is coming, without the wait of now.
    waited: Duration,
    /// Since when we wait for it, and until when.
    waiting: Option<(Instant, Pin<Box<Sleep>>)>,
}

impl Arriving {
    fn came(&mut self, data: &[u8]) -> Result<(), AppError> {
        if let Some((since, _)) = self.waiting.take() {
            self.waited += since.elapsed();
        }
        let ended = self.messages.feed(data);
        if ended && !self.whole {
            self.waited = Duration::ZERO;
        }
        if !self.messages.is_between() {
            if !self.held.grow(data.len()) {
                let message = "messages that are on their way take all the memory there is for them";
                return Err(AppError::new(ErrorCode::Overloaded, message).retry_after(Span::secs(1)));
            }
        } else if ended {
            self.held.clear();
        }
        Ok(())
    }

    fn late(&mut self, cx: &mut Context<'_>) -> bool {
        if self.messages.is_between() && !self.whole {
            return false;
        }
        let left = self.within.saturating_sub(self.waited);
        let (_, timer) = self.waiting.get_or_insert_with(|| (Instant::now(), Box::pin(sleep(left))));
        timer.as_mut().poll(cx).is_ready()
    }
}

impl hyper::body::Body for Arriving {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let this = &mut *self;
        let refused = match Pin::new(&mut this.body).poll_frame(cx) {
            Poll::Ready(Some(Ok(frame))) => match this.came(frame.data_ref().map_or(&[][..], |d| d)) {
                Ok(()) => return Poll::Ready(Some(Ok(frame))),
                Err(error) => error,
            },
            Poll::Pending if this.late(cx) => {
                let message = format!("a message did not arrive within {} s", this.within.as_secs());
                AppError::new(ErrorCode::DeadlineExceeded, message)
            }
            other => return other,
        };
        Poll::Ready(Some(Err(axum::Error::new(status(refused)))))
    }
}

/// Where in the messages of a body we are.
#[derive(Debug, Default)]
struct Messages {
    head: [u8; HEAD],
    /// How much of the head is here.
    have: usize,
    /// How much of the message is to come.
    left: usize,
}

impl Messages {
    /// Takes the next bytes; whether a message ended among them.
    fn feed(&mut self, mut data: &[u8]) -> bool {
        let mut ended = false;
        while !data.is_empty() {
            let n = if self.left > 0 { self.left } else { HEAD - self.have }.min(data.len());
            let (taken, rest) = data.split_at(n);
            data = rest;
            if self.left > 0 {
                self.left -= n;
                ended |= self.left == 0;
                continue;
            }
            self.head[self.have..self.have + n].copy_from_slice(taken);
            self.have += n;
            if self.have == HEAD {
                let length = self.head.last_chunk().copied().unwrap_or_default();
                self.left = u32::from_be_bytes(length) as usize;
                self.have = 0;
                ended |= self.left == 0;
            }
        }
        ended
    }

    /// Nothing of the next message is here.
    fn is_between(&self) -> bool {
        self.have == 0 && self.left == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::meter::Meter;
    use http_body_util::BodyExt as _;
    use tokio::sync::mpsc;
    use tokio_stream::wrappers::UnboundedReceiverStream;

    #[test]
    fn messages_are_told_apart_in_pieces_of_any_size() {
        let bytes = [&[0, 0, 0, 0, 3, 1, 2, 3][..], &[0, 0, 0, 0, 0], &[0, 0, 0, 0, 1, 9]].concat();
        for size in 1..=bytes.len() {
            let mut messages = Messages::default();
            let ended = bytes.chunks(size).filter(|piece| messages.feed(piece)).count();
            assert!(ended >= 1 && messages.is_between(), "{size}");
            assert!(!messages.feed(&[0, 0]) && !messages.is_between());
        }
    }

    type Pieces = mpsc::UnboundedSender<Result<Bytes, std::convert::Infallible>>;

    fn body(path: &str) -> (Pieces, Body, Meter) {
        let (pieces, receiver) = mpsc::unbounded_channel();
        let meter = Meter::default();
        let body = Body::from_stream(UnboundedReceiverStream::new(receiver));
        let watched = watched(path, Duration::from_secs(10), meter.body(1_000), body);
        (pieces, watched, meter)
    }

    fn code(error: &axum::Error) -> tonic::Code {
        let mut cause: &dyn std::error::Error = error;
        loop {
            cause = cause.source().unwrap();
            if let Some(status) = cause.downcast_ref::<tonic::Status>() {
                return status.code();
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_message_that_comes_by_the_drop_is_given_up() {
        let (pieces, mut body, meter) = body("/downbeat.v1.WorkerService/Connect");
        let begun = Instant::now();
        // Silent before the message: that does not count.
        let waits = tokio::time::timeout(Duration::from_mins(1), body.frame()).await;
        assert!(waits.is_err());
        let dripping = tokio::spawn(async move {
            for byte in [0, 0, 0, 0, 200].into_iter().chain([7; 200]) {
                if pieces.send(Ok(Bytes::copy_from_slice(&[byte]))).is_err() {
                    return;
                }
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        });
        let error = loop {
            match body.frame().await.unwrap() {
                Ok(_) => {}
                Err(error) => break error,
            }
        };
        assert_eq!(code(&error), tonic::Code::DeadlineExceeded);
        assert!(begun.elapsed() <= Duration::from_secs(72), "{:?}", begun.elapsed());
        drop(body);
        assert_eq!(meter.counts().body_bytes.load(std::sync::atomic::Ordering::Relaxed), 0);
        dripping.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn the_time_in_which_nobody_reads_does_not_count() {
        let (pieces, mut body, _) = body("/downbeat.v1.WorkerService/Connect");
        pieces.send(Ok(Bytes::from_static(&[0, 0, 0]))).unwrap();
        assert!(body.frame().await.unwrap().is_ok());
        tokio::time::sleep(Duration::from_mins(5)).await;
        pieces.send(Ok(Bytes::from_static(&[0, 1, 9]))).unwrap();
        assert!(body.frame().await.unwrap().is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_with_one_request_must_come_to_its_end() {
        let (pieces, mut body, _) = body("/downbeat.v1.RunService/Get");
        pieces.send(Ok(Bytes::from_static(&[0, 0, 0, 0, 1, 9]))).unwrap();
        assert!(body.frame().await.unwrap().is_ok());
        let error = body.frame().await.unwrap().unwrap_err();
        assert_eq!(code(&error), tonic::Code::DeadlineExceeded);
    }

    #[tokio::test]
    async fn messages_that_are_not_whole_have_a_limit_together() {
        let (pieces, mut one, meter) = body("/downbeat.v1.WorkerService/Connect");
        let _other = {
            let mut other = meter.body(1_000);
            assert!(other.grow(900));
            other
        };
        pieces.send(Ok(Bytes::from([&[0, 0, 0, 4, 0][..], &[1; 50]].concat()))).unwrap();
        assert!(one.frame().await.unwrap().is_ok());
        pieces.send(Ok(Bytes::from(vec![1; 100]))).unwrap();
        let error = one.frame().await.unwrap().unwrap_err();
        assert_eq!(code(&error), tonic::Code::ResourceExhausted);
    }
}
