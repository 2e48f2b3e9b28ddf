//! `RunService`. `StartMany` is in `start_many.rs`.

use super::{Answers, Connection, Reply, convert, start_many, status};
use crate::api::Doors;
use crate::api::check::{check_priority, check_tags, event_type, word};
use crate::api::error::invalid;
use crate::api::limits::{FRAME_BYTES, FRAME_PARTS};
use crate::api::meter::{Open, Streams};
use crate::app::view::{EventFilter, StartAt, StartRequest, ValueAddress};
use crate::app::{AppError, EventFeed, RunFeed};
use crate::model::ids::{RunId, SignalId, SignalName, TaskPath};
use crate::model::time::{Span, Timestamp};
use crate::proto::v1;
use crate::proto::v1::run_service_server::RunService;
use futures::{FutureExt as _, StreamExt as _};
use prost::Message as _;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Streaming};

/// Reads a start as REST does; whether the input is JSON and small enough is looked at by the application.
pub(super) fn start_request(request: v1::StartRunRequest) -> Result<StartRequest, AppError> {
    check_tags(&request.tags)?;
    let reject_existing = match v1::start_run_request::OnConflict::try_from(request.on_conflict) {
        Ok(v1::start_run_request::OnConflict::Return) => false,
        Ok(v1::start_run_request::OnConflict::Reject) => true,
        Err(_) => return Err(invalid("on_conflict", format!("{} is no policy", request.on_conflict))),
    };
    Ok(StartRequest {
        workflow: convert::workflow_name(&request.workflow)?,
        version: (request.version > 0).then_some(request.version),
        id: convert::given(&request.id).map(convert::run_id).transpose()?,
        input: request.input,
        priority: check_priority(request.priority)?,
        tags: request.tags,
        start_at: request.begin.map(|begin| match begin {
            v1::start_run_request::Begin::StartAtUs(us) => StartAt::At(Timestamp(us)),
            v1::start_run_request::Begin::StartAfterMs(ms) => {
                StartAt::After(Span::millis(i64::try_from(ms).unwrap_or(i64::MAX)))
            }
        }),
        reject_existing,
        wait: convert::wait(request.wait_ms)?,
    })
}

impl Doors {
    async fn start_run(&self, request: v1::StartRunRequest) -> Result<v1::StartRunResponse, AppError> {
        let started = self.app.start(start_request(request)?).await?;
        Ok(v1::StartRunResponse { run: Some(convert::run(started.run)), created: started.created })
    }

    async fn get_run(&self, request: v1::GetRunRequest) -> Result<v1::Run, AppError> {
        let id = convert::run_id(&request.id)?;
        Ok(convert::run(self.app.run(&id, convert::wait(request.wait_ms)?).await?))
    }

    async fn list_runs(&self, request: v1::ListRunsRequest) -> Result<v1::ListRunsResponse, AppError> {
        let v1::ListRunsRequest { workflow, status, tags, since_us, until_us, parent, .. } = request;
        let filter = convert::run_filter(&workflow, status, tags, since_us, until_us, &parent)?;
        let limit = convert::limit(request.limit)?;
        let page = self.app.runs(filter, limit, convert::given(&request.cursor)).await?;
        Ok(v1::ListRunsResponse {
            runs: page.items.into_iter().map(convert::run_head).collect(),
            next_cursor: page.next_cursor.unwrap_or_default(),
        })
    }

    async fn list_run_tasks(&self, request: v1::ListTasksRequest) -> Result<v1::ListTasksResponse, AppError> {
        let id = convert::run_id(&request.id)?;
        let limit = convert::limit(request.limit)?;
        let page = self.app.tasks(&id, limit, convert::given(&request.cursor)).await?;
        Ok(v1::ListTasksResponse {
            tasks: page.items.into_iter().map(convert::task).collect(),
            next_cursor: page.next_cursor.unwrap_or_default(),
        })
    }

    async fn get_run_value(&self, request: v1::GetValueRequest) -> Result<v1::GetValueResponse, AppError> {
        let id = convert::run_id(&request.id)?;
        let address = word("field", &request.field, ValueAddress::parse)?;
        Ok(v1::GetValueResponse { json: self.app.value(&id, &address).await? })
    }

    async fn cancel_run(&self, request: v1::CancelRunRequest) -> Result<v1::Run, AppError> {
        let id = convert::run_id(&request.id)?;
        Ok(convert::run(self.app.cancel(&id, request.compensate, request.force).await?))
    }

    async fn signal_run(&self, request: v1::SignalRunRequest) -> Result<v1::Run, AppError> {
        let id = convert::run_id(&request.id)?;
        let name = word("name", &request.name, SignalName::new)?;
        let signal = convert::given(&request.signal_id);
        let signal = signal.map(|text| word("signal_id", text, SignalId::new)).transpose()?;
        Ok(convert::run(self.app.signal(&id, &name, signal.as_ref(), &request.payload).await?))
    }

    async fn act_on_run(&self, request: v1::ActOnRunRequest) -> Result<v1::Run, AppError> {
        let v1::ActOnRunRequest { id, action, task, output, error, input } = request;
        let id = convert::run_id(&id)?;
        let task = word("task", &task, TaskPath::parse)?;
        let what = convert::by_hand(action, output, error, input)?;
        Ok(convert::run(self.app.act(&id, &task, what).await?))
    }

    async fn bulk_start_runs(&self, request: v1::BulkStartRequest) -> Result<v1::BulkResponse, AppError> {
        let read = |item: v1::StartRunRequest| {
            if item.wait_ms > 0 {
                return Err(invalid("wait_ms", "a start of many does not wait for runs to end; Watch tells"));
            }
            start_request(item)
        };
        let items = request.items.into_iter().map(read).collect();
        Ok(convert::bulk(self.app.bulk_start(items).await?, None))
    }

    async fn bulk_cancel_runs(&self, request: v1::BulkCancelRequest) -> Result<v1::BulkResponse, AppError> {
        let which = convert::which(request.ids, request.filter)?;
        let page = self.app.bulk_cancel(which, request.compensate, request.force).await?;
        Ok(convert::bulk(page.items, page.next_cursor))
    }

    async fn bulk_retry_runs(&self, request: v1::BulkRetryRequest) -> Result<v1::BulkResponse, AppError> {
        let page = self.app.bulk_retry(convert::which(request.ids, request.filter)?).await?;
        Ok(convert::bulk(page.items, page.next_cursor))
    }

    /// `None`: nothing will ever follow.
    async fn feed(&self, request: v1::WatchRequest) -> Result<Option<EventFeed>, AppError> {
        let after = convert::given(&request.after);
        if let Some(run) = convert::given(&request.run) {
            if !(request.workflow.is_empty() && request.r#type.is_empty() && request.tags.is_empty()) {
                return Err(invalid("run", "filters are for the events of all runs"));
            }
            let id = word("run", run, RunId::new)?;
            return match self.app.run_events(&id, after).await? {
                RunFeed::Feed(feed) => Ok(Some(feed)),
                RunFeed::AtEnd => Ok(None),
            };
        }
        let filter = EventFilter {
            workflow: convert::given(&request.workflow).map(convert::workflow_name).transpose()?,
            event_type: convert::given(&request.r#type).map(|t| word("type", t, event_type)).transpose()?,
            tags: request.tags.into_iter().collect(),
        };
        self.app.events(filter, after).await.map(Some)
    }
}

/// The events of a feed in batches of what is ready, until it ends or the server stops.
fn watch(feed: EventFeed, closing: CancellationToken, open: Open) -> Answers<v1::WatchResponse> {
    let batches = futures::stream::unfold(Some((feed, open)), move |feed| {
        let closing = closing.clone();
        async move {
            let (mut feed, open) = feed?;
            let first = tokio::select! {
                biased;
                () = closing.cancelled() => None,
                item = feed.next() => item,
            };
            let first = convert::event_item(first?);
            let mut size = first.encoded_len();
            let mut items = vec![first];
            let mut feed = Some(feed);
            while size < FRAME_BYTES && items.len() < FRAME_PARTS {
                match feed.as_mut().and_then(|feed| feed.next().now_or_never()) {
                    Some(Some(item)) => {
                        let item = convert::event_item(item);
                        size += item.encoded_len();
                        items.push(item);
                    }
                    Some(None) => {
                        feed = None;
                        break;
                    }
                    None => break,
                }
            }
            Some((Ok(v1::WatchResponse { items }), feed.map(|feed| (feed, open))))
        }
    });
    batches.boxed()
}

#[tonic::async_trait]
impl RunService for Doors {
    async fn start(&self, request: Request<v1::StartRunRequest>) -> Reply<v1::StartRunResponse> {
        self.start_run(request.into_inner()).await.map(Response::new).map_err(status)
    }

    type StartManyStream = Answers<v1::StartManyResponse>;

    async fn start_many(
        &self,
        request: Request<Streaming<v1::StartManyRequest>>,
    ) -> Reply<Self::StartManyStream> {
        let open = self.opened(Streams::Starts).map_err(status)?;
        Ok(Response::new(start_many::serve(self.app.clone(), request.into_inner(), open)))
    }

    async fn get(&self, request: Request<v1::GetRunRequest>) -> Reply<v1::Run> {
        self.get_run(request.into_inner()).await.map(Response::new).map_err(status)
    }

    async fn list(&self, request: Request<v1::ListRunsRequest>) -> Reply<v1::ListRunsResponse> {
        self.list_runs(request.into_inner()).await.map(Response::new).map_err(status)
    }

    async fn list_tasks(&self, request: Request<v1::ListTasksRequest>) -> Reply<v1::ListTasksResponse> {
        self.list_run_tasks(request.into_inner()).await.map(Response::new).map_err(status)
    }

    async fn get_value(&self, request: Request<v1::GetValueRequest>) -> Reply<v1::GetValueResponse> {
        self.get_run_value(request.into_inner()).await.map(Response::new).map_err(status)
    }

    async fn cancel(&self, request: Request<v1::CancelRunRequest>) -> Reply<v1::Run> {
        self.cancel_run(request.into_inner()).await.map(Response::new).map_err(status)
    }

    async fn pause(&self, request: Request<v1::PauseRunRequest>) -> Reply<v1::Run> {
        let id = convert::run_id(&request.get_ref().id).map_err(status)?;
        self.app.pause(&id).await.map(convert::run).map(Response::new).map_err(status)
    }

    async fn resume(&self, request: Request<v1::ResumeRunRequest>) -> Reply<v1::Run> {
        let id = convert::run_id(&request.get_ref().id).map_err(status)?;
        self.app.resume(&id).await.map(convert::run).map(Response::new).map_err(status)
    }

    async fn signal(&self, request: Request<v1::SignalRunRequest>) -> Reply<v1::Run> {
        self.signal_run(request.into_inner()).await.map(Response::new).map_err(status)
    }

    async fn retry(&self, request: Request<v1::RetryRunRequest>) -> Reply<v1::Run> {
        let id = convert::run_id(&request.get_ref().id).map_err(status)?;
        self.app.retry(&id).await.map(convert::run).map(Response::new).map_err(status)
    }

    async fn act(&self, request: Request<v1::ActOnRunRequest>) -> Reply<v1::Run> {
        self.act_on_run(request.into_inner()).await.map(Response::new).map_err(status)
    }

    async fn bulk_start(&self, request: Request<v1::BulkStartRequest>) -> Reply<v1::BulkResponse> {
        self.bulk_start_runs(request.into_inner()).await.map(Response::new).map_err(status)
    }

    async fn bulk_cancel(&self, request: Request<v1::BulkCancelRequest>) -> Reply<v1::BulkResponse> {
        self.bulk_cancel_runs(request.into_inner()).await.map(Response::new).map_err(status)
    }

    async fn bulk_retry(&self, request: Request<v1::BulkRetryRequest>) -> Reply<v1::BulkResponse> {
        self.bulk_retry_runs(request.into_inner()).await.map(Response::new).map_err(status)
    }

    async fn delete(&self, request: Request<v1::DeleteRunRequest>) -> Reply<v1::DeleteRunResponse> {
        let id = convert::run_id(&request.get_ref().id).map_err(status)?;
        self.app.delete(&id).await.map_err(status)?;
        Ok(Response::new(v1::DeleteRunResponse {}))
    }

    type WatchStream = Answers<v1::WatchResponse>;

    async fn watch(&self, request: Request<v1::WatchRequest>) -> Reply<Self::WatchStream> {
        let closing = Connection::of(request.extensions()).closing;
        let open = self.opened(Streams::Events).map_err(status)?;
        let feed = self.feed(request.into_inner()).await.map_err(status)?;
        Ok(Response::new(match feed {
            Some(feed) => watch(feed, closing, open),
            None => futures::stream::empty().boxed(),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    #[test]
    fn a_start_keeps_the_bytes_of_its_input_and_is_checked_like_rest() {
        let good = || v1::StartRunRequest {
            workflow: "order".into(),
            input: Bytes::from_static(b"[9007199254740993, 1.0, {}]"),
            ..v1::StartRunRequest::default()
        };
        let request = start_request(good()).unwrap();
        assert_eq!(request.input, "[9007199254740993, 1.0, {}]");
        assert_eq!(
            (request.version, request.id, request.wait, request.reject_existing),
            (None, None, None, false)
        );
        let path = |request| start_request(request).unwrap_err().faults.remove(0).path;
        assert_eq!(path(v1::StartRunRequest { workflow: "a/b".into(), ..good() }), "workflow");
        assert_eq!(path(v1::StartRunRequest { id: "a b".into(), ..good() }), "id");
        assert_eq!(path(v1::StartRunRequest { priority: Some(101), ..good() }), "priority");
        assert_eq!(path(v1::StartRunRequest { on_conflict: 7, ..good() }), "on_conflict");
        assert_eq!(path(v1::StartRunRequest { wait_ms: 60_001, ..good() }), "wait_ms");
    }
}
