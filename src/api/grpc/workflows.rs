//! `WorkflowService`.

use super::{Reply, convert, status};
use crate::api::Doors;
use crate::api::error::invalid;
use crate::api::limits::DOCUMENT_MAX;
use crate::app::AppError;
use crate::model::document::Format;
use crate::model::error::ErrorCode;
use crate::proto::v1;
use crate::proto::v1::register_workflow_request::Format as Named;
use crate::proto::v1::workflow_service_server::WorkflowService;
use tonic::{Request, Response};

fn format(number: i32) -> Result<Format, AppError> {
    match Named::try_from(number) {
        Ok(Named::Yaml | Named::Unspecified) => Ok(Format::Yaml),
        Ok(Named::Json) => Ok(Format::Json),
        Err(_) => Err(invalid("format", format!("{number} is no format"))),
    }
}

impl Doors {
    async fn register_workflow(
        &self,
        request: v1::RegisterWorkflowRequest,
    ) -> Result<v1::RegisterWorkflowResponse, AppError> {
        let name = convert::given(&request.name).map(convert::workflow_name).transpose()?;
        let format = format(request.format)?;
        let size = request.document.len();
        if size > DOCUMENT_MAX {
            let message = format!("the document has {size} bytes; at most {DOCUMENT_MAX} are taken");
            return Err(AppError::new(ErrorCode::TooLarge, message));
        }
        let registered = self.app.register(name.as_ref(), &request.document, format, request.dry_run).await?;
        Ok(v1::RegisterWorkflowResponse {
            workflow: Some(convert::workflow(registered.workflow)),
            created: registered.created,
        })
    }

    async fn get_workflow(&self, request: v1::GetWorkflowRequest) -> Result<v1::Workflow, AppError> {
        let name = convert::workflow_name(&request.name)?;
        let version = (request.version > 0).then_some(request.version);
        Ok(convert::workflow(self.app.workflow(&name, version).await?))
    }

    async fn list_workflows(
        &self,
        request: v1::ListWorkflowsRequest,
    ) -> Result<v1::ListWorkflowsResponse, AppError> {
        let limit = convert::limit(request.limit)?;
        let page = self.app.workflows(limit, convert::given(&request.cursor)).await?;
        Ok(v1::ListWorkflowsResponse {
            workflows: page.items.into_iter().map(convert::workflow).collect(),
            next_cursor: page.next_cursor.unwrap_or_default(),
        })
    }
}

#[tonic::async_trait]
impl WorkflowService for Doors {
    async fn register(
        &self,
        request: Request<v1::RegisterWorkflowRequest>,
    ) -> Reply<v1::RegisterWorkflowResponse> {
        self.register_workflow(request.into_inner()).await.map(Response::new).map_err(status)
    }

    async fn get(&self, request: Request<v1::GetWorkflowRequest>) -> Reply<v1::Workflow> {
        self.get_workflow(request.into_inner()).await.map(Response::new).map_err(status)
    }

    async fn list(&self, request: Request<v1::ListWorkflowsRequest>) -> Reply<v1::ListWorkflowsResponse> {
        self.list_workflows(request.into_inner()).await.map(Response::new).map_err(status)
    }

    async fn delete(&self, request: Request<v1::DeleteWorkflowRequest>) -> Reply<v1::DeleteWorkflowResponse> {
        let name = convert::workflow_name(&request.get_ref().name).map_err(status)?;
        self.app.delete_workflow(&name).await.map_err(status)?;
        Ok(Response::new(v1::DeleteWorkflowResponse {}))
    }
}
