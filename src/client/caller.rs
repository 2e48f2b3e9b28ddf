//! A caller: registers workflows, starts and follows runs. Thin on purpose: requests and answers are the
//! protocol's own messages, so that what `proto/` says is what there is.

use crate::proto::v1 as pb;
use crate::proto::v1::run_service_client::RunServiceClient;
use crate::proto::v1::workflow_service_client::WorkflowServiceClient;
use futures::Stream;
use std::time::Duration;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status, Streaming};
use tonic_types::StatusExt as _;

/// Why a call did not do what was asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// No server was reached, or the connection broke: it is not known whether the call took effect.
    #[error("no answer from the server: {0}")]
    Unreachable(String),
    /// The server said no.
    #[error("{message} ({code})")]
    Refused {
        /// The stable code, as in `docs/errors/`.
        code: String,
        /// For people.
        message: String,
        /// When it is worth trying again.
        retry_after: Option<Duration>,
    },
}

impl From<Status> for CallError {
    fn from(status: Status) -> Self {
        let details = status.get_error_details();
        match details.error_info() {
            Some(info) => Self::Refused {
                code: info.reason.clone(),
                message: status.message().to_owned(),
                retry_after: details.retry_info().and_then(|r| r.retry_delay),
            },
            None if status.code() == Code::Unavailable => Self::Unreachable(status.message().to_owned()),
            None => Self::Refused {
                code: format!("{:?}", status.code()),
                message: status.message().to_owned(),
                retry_after: None,
            },
        }
    }
}

/// Events as they are committed, in batches; see [`Caller::watch`].
pub type Events = Streaming<pb::WatchResponse>;

/// A connection to a server. Cheap to clone; clones share it.
#[derive(Debug, Clone)]
pub struct Caller {
    workflows: WorkflowServiceClient<Channel>,
    runs: RunServiceClient<Channel>,
}

impl Caller {
    /// Connects to the server at `url`, e.g. `http://127.0.0.1:7070`.
    ///
    /// # Errors
    /// [`CallError::Unreachable`] if there is no server or the address is none.
    pub async fn connect(url: &str) -> Result<Self, CallError> {
        let endpoint =
            Endpoint::from_shared(url.to_owned()).map_err(|e| CallError::Unreachable(e.to_string()))?;
        let channel = endpoint
            .connect_timeout(Duration::from_secs(5))
            .tcp_nodelay(true)
            .initial_stream_window_size(4 << 20)
            .initial_connection_window_size(8 << 20)
            .connect()
            .await
            .map_err(|e| CallError::Unreachable(e.to_string()))?;
        Ok(Self {
            workflows: WorkflowServiceClient::new(channel.clone()),
            runs: RunServiceClient::new(channel),
        })
    }

    /// Registers a document (YAML or JSON) under its own name.
    ///
    /// # Errors
    /// `invalid_workflow` with its faults, and what any call may fail with.
    pub async fn register(&self, document: impl Into<bytes::Bytes>) -> Result<pb::Workflow, CallError> {
        let request = pb::RegisterWorkflowRequest { document: document.into(), ..Default::default() };
        let answer = self.workflows.clone().register(request).await?.into_inner();
        Ok(answer.workflow.unwrap_or_default())
    }

    /// Starts a run; with an id, at most once. With `wait_ms`, answers when it has ended or the time is up.
    ///
    /// # Errors
    /// `workflow_not_found`, `invalid_input`, `run_id_taken`, and what any call may fail with.
    pub async fn start(&self, request: pb::StartRunRequest) -> Result<pb::Run, CallError> {
        let answer = self.runs.clone().start(request).await?.into_inner();
        Ok(answer.run.unwrap_or_default())
    }

    /// Starts many runs over one stream. Each is acknowledged once, by its sequence number.
    ///
    /// # Errors
    /// What any call may fail with; a start that is refused is an acknowledgement, no error.
    pub async fn start_many(
        &self,
        starts: impl Stream<Item = pb::StartManyRequest> + Send + 'static,
    ) -> Result<Streaming<pb::StartManyResponse>, CallError> {
        Ok(self.runs.clone().start_many(starts).await?.into_inner())
    }

    /// One run with its first page of tasks; with a `wait`, when it has ended or the time is up.
    ///
    /// # Errors
    /// `run_not_found`, and what any call may fail with.
    pub async fn run(&self, id: &str, wait: Duration) -> Result<pb::Run, CallError> {
        let wait_ms = u32::try_from(wait.as_millis()).unwrap_or(u32::MAX);
        Ok(self.runs.clone().get(pb::GetRunRequest { id: id.to_owned(), wait_ms }).await?.into_inner())
    }

    /// Runs, newest first, without values and tasks.
    ///
    /// # Errors
    /// What any call may fail with.
    pub async fn list(&self, request: pb::ListRunsRequest) -> Result<pb::ListRunsResponse, CallError> {
        Ok(self.runs.clone().list(request).await?.into_inner())
    }

    /// The tasks of a run, page by page.
    ///
    /// # Errors
    /// `run_not_found`, and what any call may fail with.
    pub async fn tasks(&self, request: pb::ListTasksRequest) -> Result<pb::ListTasksResponse, CallError> {
        Ok(self.runs.clone().list_tasks(request).await?.into_inner())
    }

    /// Cancels a run.
    ///
    /// # Errors
    /// `run_not_found`, `run_ended`, and what any call may fail with.
    pub async fn cancel(&self, request: pb::CancelRunRequest) -> Result<pb::Run, CallError> {
        Ok(self.runs.clone().cancel(request).await?.into_inner())
    }

    /// Starts nothing new in a run until it is resumed.
    ///
    /// # Errors
    /// `run_not_found`, `run_ended`, and what any call may fail with.
    pub async fn pause(&self, id: &str) -> Result<pb::Run, CallError> {
        Ok(self.runs.clone().pause(pb::PauseRunRequest { id: id.to_owned() }).await?.into_inner())
    }

    /// Lets a paused run go on.
    ///
    /// # Errors
    /// `run_not_found`, `run_ended`, and what any call may fail with.
    pub async fn resume(&self, id: &str) -> Result<pb::Run, CallError> {
        Ok(self.runs.clone().resume(pb::ResumeRunRequest { id: id.to_owned() }).await?.into_inner())
    }

    /// Sends a run a signal; with a `signal_id`, once however often this is called.
    ///
    /// # Errors
    /// `run_not_found`, `run_ended`, `too_large`, and what any call may fail with.
    pub async fn signal(&self, request: pb::SignalRunRequest) -> Result<pb::Run, CallError> {
        Ok(self.runs.clone().signal(request).await?.into_inner())
    }

    /// Begins an ended run again from what failed.
    ///
    /// # Errors
    /// `run_not_found`, `run_not_ended`, `nothing_to_retry`, and what any call may fail with.
    pub async fn retry(&self, id: &str) -> Result<pb::Run, CallError> {
        Ok(self.runs.clone().retry(pb::RetryRunRequest { id: id.to_owned() }).await?.into_inner())
    }

    /// Does something to a task by hand.
    ///
    /// # Errors
    /// `run_not_found`, `task_not_found`, `task_not_open`, `run_ended`, `run_not_ended`, and what any call may fail
    /// with.
    pub async fn act(&self, request: pb::ActOnRunRequest) -> Result<pb::Run, CallError> {
        Ok(self.runs.clone().act(request).await?.into_inner())
    }

    /// Starts up to 1,000 runs; one answer for each, in their order.
    ///
    /// # Errors
    /// What any call may fail with; a start that is refused is an item of the answer.
    pub async fn bulk_start(&self, items: Vec<pb::StartRunRequest>) -> Result<pb::BulkResponse, CallError> {
        Ok(self.runs.clone().bulk_start(pb::BulkStartRequest { items }).await?.into_inner())
    }

    /// Cancels up to 1,000 runs, by ids or by a filter; one answer for each.
    ///
    /// # Errors
    /// What any call may fail with; a run that cannot be cancelled is an item of the answer.
    pub async fn bulk_cancel(&self, request: pb::BulkCancelRequest) -> Result<pb::BulkResponse, CallError> {
        Ok(self.runs.clone().bulk_cancel(request).await?.into_inner())
    }

    /// Retries up to 1,000 runs, by ids or by a filter; one answer for each.
    ///
    /// # Errors
    /// What any call may fail with; a run that cannot be retried is an item of the answer.
    pub async fn bulk_retry(&self, request: pb::BulkRetryRequest) -> Result<pb::BulkResponse, CallError> {
        Ok(self.runs.clone().bulk_retry(request).await?.into_inner())
    }

    /// Forgets an ended run.
    ///
    /// # Errors
    /// `run_not_found`, `run_not_ended`, and what any call may fail with.
    pub async fn delete(&self, id: &str) -> Result<(), CallError> {
        self.runs.clone().delete(pb::DeleteRunRequest { id: id.to_owned() }).await?;
        Ok(())
    }

    /// Events as they are committed, in order per run. The returned stream is open: what is committed from now on
    /// is in it. It ends when the connection does; go on with the last cursor.
    ///
    /// # Errors
    /// What any call may fail with.
    pub async fn watch(&self, request: pb::WatchRequest) -> Result<Events, CallError> {
        Ok(self.runs.clone().watch(request).await?.into_inner())
    }
}
