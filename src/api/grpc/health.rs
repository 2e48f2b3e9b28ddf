//! `grpc.health.v1.Health`, true to `/readyz`: every check asks the application.

use super::{Answers, Connection, Reply};
use crate::api::Doors;
use crate::app::App;
use crate::proto::v1;
use std::time::Duration;
use tonic::{Request, Response, Status};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_server::Health;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

/// A watcher learns of a change within this.
const LOOK_EVERY: Duration = Duration::from_secs(1);

fn known(service: &str) -> bool {
    [
        "",
        v1::workflow_service_server::SERVICE_NAME,
        v1::run_service_server::SERVICE_NAME,
        v1::schedule_service_server::SERVICE_NAME,
        v1::task_service_server::SERVICE_NAME,
        v1::worker_service_server::SERVICE_NAME,
    ]
    .contains(&service)
}

async fn serving(app: &App) -> ServingStatus {
    match app.ready().await {
        Ok(()) => ServingStatus::Serving,
        Err(_) => ServingStatus::NotServing,
    }
}

fn answer(status: ServingStatus) -> HealthCheckResponse {
    HealthCheckResponse { status: status.into() }
}

#[tonic::async_trait]
impl Health for Doors {
    async fn check(&self, request: Request<HealthCheckRequest>) -> Reply<HealthCheckResponse> {
        if !known(&request.get_ref().service) {
            return Err(Status::not_found("there is no such service"));
        }
        Ok(Response::new(answer(serving(&self.app).await)))
    }

    type WatchStream = Answers<HealthCheckResponse>;

    async fn watch(&self, request: Request<HealthCheckRequest>) -> Reply<Self::WatchStream> {
        let closing = Connection::of(request.extensions()).closing;
        let known = known(&request.get_ref().service);
        let app = self.app.clone();
        let changes = futures::stream::unfold(None, move |last| {
            let (app, closing) = (app.clone(), closing.clone());
            async move {
                let mut pause = last.map(|_| LOOK_EVERY);
                loop {
                    if let Some(pause) = pause {
                        tokio::select! {
                            () = closing.cancelled() => return None,
                            () = tokio::time::sleep(pause) => {}
                        }
                    }
                    let now = if known { serving(&app).await } else { ServingStatus::ServiceUnknown };
                    if last != Some(now) {
                        return Some((Ok(answer(now)), Some(now)));
                    }
                    pause = Some(LOOK_EVERY);
                }
            }
        });
        Ok(Response::new(Box::pin(changes)))
    }
}
