//! `RunService.StartMany`: many starts under way at once, one acknowledgement for each.
//!
//! Reading stops while too many starts or too many bytes are under way, so a fast caller is slowed by the
//! stream's own flow control. What has been read is acknowledged even when the caller has said its last.

use super::Answers;
use super::runs::start_request;
use crate::api::error::{from_transport, invalid, problem};
use crate::api::limits::{FRAME_PARTS, STARTS_IN_FLIGHT, STARTS_IN_FLIGHT_BYTES};
use crate::api::meter::Open;
use crate::app::{App, AppError};
use crate::proto::v1;
use crate::proto::v1::start_ack::Outcome;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use futures::{FutureExt as _, StreamExt as _};
use tonic::{Status, Streaming};

/// An acknowledgement and how many bytes of input it frees.
type Settled = (v1::StartAck, usize);

struct Starts {
    app: App,
    requests: Option<Streaming<v1::StartManyRequest>>,
    under_way: FuturesUnordered<BoxFuture<'static, Settled>>,
    bytes: usize,
    /// Why the stream ends, once everything is acknowledged.
    broken: Option<Status>,
    _open: Open,
}

pub(super) fn serve(
    app: App,
    requests: Streaming<v1::StartManyRequest>,
    open: Open,
) -> Answers<v1::StartManyResponse> {
    let under_way = FuturesUnordered::new();
    let starts = Starts { app, requests: Some(requests), under_way, bytes: 0, broken: None, _open: open };
    futures::stream::unfold(starts, |mut starts| async move {
        let answer = starts.next().await?;
        Some((answer, starts))
    })
    .boxed()
}

impl Starts {
    async fn next(&mut self) -> Option<Result<v1::StartManyResponse, Status>> {
        loop {
            let room = self.under_way.len() < STARTS_IN_FLIGHT && self.bytes < STARTS_IN_FLIGHT_BYTES;
            let reading = self.requests.as_mut().filter(|_| room);
            if reading.is_none() && self.under_way.is_empty() {
                return self.broken.take().map(Err);
            }
            tokio::select! {
                biased;
                Some(first) = self.under_way.next() => return Some(Ok(self.acks(first))),
                request = async { match reading {
                    Some(requests) => requests.message().await,
                    None => std::future::pending().await,
                } } => match request {
                    Ok(Some(request)) => request.starts.into_iter().for_each(|start| self.begin(start)),
                    Ok(None) => self.requests = None,
                    Err(error) => {
                        self.requests = None;
                        self.broken = Some(from_transport(error));
                    }
                },
            }
        }
    }

    /// The acknowledgement at hand with all others that are ready.
    fn acks(&mut self, first: Settled) -> v1::StartManyResponse {
        let mut acks = Vec::new();
        let mut next = Some(first);
        while let Some((ack, bytes)) = next {
            self.bytes -= bytes;
            acks.push(ack);
            let more = acks.len() < FRAME_PARTS;
            next = more.then(|| self.under_way.next().now_or_never().flatten()).flatten();
        }
        v1::StartManyResponse { acks }
    }

    fn begin(&mut self, start: v1::NumberedStart) {
        let bytes = start.start.as_ref().map_or(0, |s| s.input.len());
        self.bytes += bytes;
        let app = self.app.clone();
        let ack = async move {
            let outcome = match run(&app, start.start).await {
                Ok(started) => Outcome::Started(started),
                Err(error) => Outcome::Refused(problem(error)),
            };
            (v1::StartAck { sequence: start.sequence, outcome: Some(outcome) }, bytes)
        };
        self.under_way.push(ack.boxed());
    }
}

async fn run(app: &App, start: Option<v1::StartRunRequest>) -> Result<v1::StartedRun, AppError> {
    let start = start.ok_or_else(|| invalid("start", "is missing"))?;
    if start.wait_ms > 0 {
        return Err(invalid("wait_ms", "StartMany does not wait for runs to end; Watch tells"));
    }
    let (id, created) = app.start_quietly(start_request(start)?).await?;
    Ok(v1::StartedRun { id: id.to_string(), created })
}
