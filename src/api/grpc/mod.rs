//! gRPC: one file per service. A method parses with `convert`, makes one call, and maps with `convert`.
//!
//! Messages over 8 MiB are not read, over 3 MiB not sent; compressed ones are not taken, so no bomb can go off.

mod arrival;
mod convert;
mod health;
mod oversize;
mod runs;
mod schedules;
mod start_many;
mod tasks;
mod worker;
mod workflows;

use super::error::{Refused, from_transport, invalid};
use super::limits::{GRPC_READ_MAX, GRPC_SEND_MAX};
use super::{Connection, Doors, is_grpc};
use crate::app::AppError;
use crate::proto::FILE_DESCRIPTOR_SET;
use crate::proto::v1::run_service_server::RunServiceServer;
use crate::proto::v1::schedule_service_server::ScheduleServiceServer;
use crate::proto::v1::task_service_server::TaskServiceServer;
use crate::proto::v1::worker_service_server::WorkerServiceServer;
use crate::proto::v1::workflow_service_server::WorkflowServiceServer;
use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse as _, Response};
use http::{Method, Version};
use tonic::service::Routes;
use tonic::{Code, Status};
use tonic_health::pb::health_server::HealthServer;
use tonic_reflection::server::Builder as Reflection;

/// Result of a method.
type Reply<T> = Result<tonic::Response<T>, Status>;

/// A stream of answers.
type Answers<T> = futures::stream::BoxStream<'static, Result<T, Status>>;

macro_rules! limited {
    ($server:ident, $doors:expr) => {
        $server::new($doors.clone())
            .max_decoding_message_size(GRPC_READ_MAX)
            .max_encoding_message_size(GRPC_SEND_MAX)
    };
}

/// All services on one router, without a fallback of its own.
pub(crate) fn routes(doors: &Doors) -> Router {
    let mut routes = Routes::new(limited!(WorkflowServiceServer, doors))
        .add_service(limited!(RunServiceServer, doors))
        .add_service(limited!(ScheduleServiceServer, doors))
        .add_service(limited!(TaskServiceServer, doors))
        .add_service(limited!(WorkerServiceServer, doors))
        .add_service(HealthServer::new(doors.clone()));
    let reflection = || {
        Reflection::configure()
            .register_encoded_file_descriptor_set(FILE_DESCRIPTOR_SET)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    // The descriptors are compiled in; a test builds them.
    if let (Ok(v1), Ok(v1alpha)) = (reflection().build_v1(), reflection().build_v1alpha()) {
        routes = routes.add_service(v1).add_service(v1alpha);
    }
    routes.prepare().into_axum_router().reset_fallback().layer(from_fn_with_state(doors.clone(), guard))
}

/// Refuses what cannot be gRPC, and puts what tonic refuses by itself into the words of the table.
async fn guard(State(doors): State<Doors>, request: Request, next: Next) -> Response {
    if !is_grpc(&request) || request.method() != Method::POST || request.version() != Version::HTTP_2 {
        let message = "this address is a gRPC method: POST application/grpc over HTTP/2";
        return Refused(invalid("request", message)).into_response();
    }
    let (parts, body) = request.into_parts();
    let held = doors.options.meter.body(doors.options.body_memory);
    let body = arrival::watched(parts.uri.path(), doors.options.body_within, held, body);
    let body = oversize::watched(parts.uri.path(), &doors.app, body);
    let response = next.run(Request::from_parts(parts, body)).await;
    match Status::from_header_map(response.headers()) {
        Some(status) if matches!(status.code(), Code::OutOfRange | Code::Internal) => {
            from_transport(status).into_http()
        }
        _ => response,
    }
}

fn status(error: AppError) -> Status {
    super::error::status(&error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reflection_takes_the_descriptors() {
        for set in [FILE_DESCRIPTOR_SET, tonic_health::pb::FILE_DESCRIPTOR_SET] {
            assert!(Reflection::configure().register_encoded_file_descriptor_set(set).build_v1().is_ok());
        }
    }
}
