//! `TaskService`: claim and settle, without a stream.

use super::{Connection, Reply, convert, status};
use crate::api::Doors;
use crate::api::check::{accepted, check_payload, claim_max, label, labels, task_types};
use crate::app::AppError;
use crate::dispatch::message::TaskOutcome;
use crate::model::time::Span;
use crate::proto::v1;
use crate::proto::v1::task_service_server::TaskService;
use tonic::{Request, Response};

impl Doors {
    async fn claim_tasks(
        &self,
        request: v1::ClaimRequest,
        connection: &Connection,
    ) -> Result<v1::ClaimResponse, AppError> {
        let worker = label("worker", request.worker, || connection.label())?;
        let types = task_types(&request.types)?;
        let labels = labels("labels", &request.labels)?;
        let max = claim_max(request.max.max(1))?;
        let wait = convert::wait(request.wait_ms)?.unwrap_or(Span(0));
        let tasks = self.app.claim(&worker, &types, &labels, max, wait).await?;
        Ok(v1::ClaimResponse { assignments: tasks.into_iter().map(convert::assignment).collect() })
    }

    async fn settle(&self, token: &str, outcome: TaskOutcome) -> Result<(), AppError> {
        accepted(self.app.settle(token, outcome).await?)
    }

    async fn beat(&self, request: v1::HeartbeatTaskRequest) -> Result<v1::HeartbeatTaskResponse, AppError> {
        check_payload("progress", &request.progress)?;
        let progress = (!request.progress.is_empty()).then_some(request.progress);
        let answer = self.app.heartbeat(&request.token, progress).await?;
        Ok(v1::HeartbeatTaskResponse { deadline_us: answer.deadline.0, cancelled: answer.cancelled })
    }
}

#[tonic::async_trait]
impl TaskService for Doors {
    async fn claim(&self, request: Request<v1::ClaimRequest>) -> Reply<v1::ClaimResponse> {
        let connection = Connection::of(request.extensions());
        self.claim_tasks(request.into_inner(), &connection).await.map(Response::new).map_err(status)
    }

    async fn complete(&self, request: Request<v1::CompleteTaskRequest>) -> Reply<v1::CompleteTaskResponse> {
        let v1::CompleteTaskRequest { token, output } = request.into_inner();
        self.settle(&token, TaskOutcome::Completed(output)).await.map_err(status)?;
        Ok(Response::new(v1::CompleteTaskResponse {}))
    }

    async fn fail(&self, request: Request<v1::FailTaskRequest>) -> Reply<v1::FailTaskResponse> {
        let v1::FailTaskRequest { token, failure } = request.into_inner();
        let failure = convert::reported(failure.unwrap_or_default());
        self.settle(&token, TaskOutcome::Failed(failure)).await.map_err(status)?;
        Ok(Response::new(v1::FailTaskResponse {}))
    }

    async fn release(&self, request: Request<v1::ReleaseTaskRequest>) -> Reply<v1::ReleaseTaskResponse> {
        self.settle(&request.get_ref().token, TaskOutcome::Released).await.map_err(status)?;
        Ok(Response::new(v1::ReleaseTaskResponse {}))
    }

    async fn heartbeat(
        &self,
        request: Request<v1::HeartbeatTaskRequest>,
    ) -> Reply<v1::HeartbeatTaskResponse> {
        self.beat(request.into_inner()).await.map(Response::new).map_err(status)
    }
}
