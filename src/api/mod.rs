//! Layer 5: the doors. Each route and each method: parse → one call of [`App`] → map. One port carries
//! REST, SSE and gRPC, over HTTP/1.1 and HTTP/2 without TLS.
//!
//! ```text
//! serve.rs    connections: limits in time and number, graceful stop
//! rest/       one file per resource; view.rs has the JSON shapes, extract.rs the reading of requests
//! grpc/       one file per service; convert.rs has the protobuf shapes
//! sse.rs      events as text frames
//! error.rs    AppError → problem+json and gRPC status, by one table
//! early.rs    what is answered before the store is there
//! bare.rs     a body for what hyper answers by itself
//! limits.rs   sizes, counts and times
//! meter.rs    what is counted; metrics.rs writes it for `/metrics`
//! ```
//!
//! Invariants
//! - No `if` about business state here; what a request means is decided in `app`.
//! - JSON of users passes as bytes. Nothing builds a value from it.
//! - Whatever comes in, the answer is of the table in `model/error.rs`, never a panic or a bare status.
//!
//! To add a route: the handler with its `utoipa::path` in the file of its resource, its line in that file's
//! `routes()`, its twin in `proto/`, and `UPDATE_OPENAPI=1 cargo test openapi`.

mod bare;
mod check;
mod early;
mod error;
mod grpc;
mod limits;
mod meter;
mod metrics;
mod rest;
mod serve;
mod sse;

pub use early::meanwhile;
pub use limits::Options;
pub use meter::Meter;
pub use rest::openapi_json;
pub use serve::serve;

use crate::app::{App, AppError};
use crate::model::error::ErrorCode;
use crate::model::time::Span;
use axum::Router;
use axum::extract::{FromRef, Request};
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse as _, Response};
use error::Refused;
use http::header;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

/// What every handler can get at.
#[derive(Debug, Clone)]
pub(crate) struct Doors {
    app: App,
    options: Arc<Options>,
    called: Arc<meter::Called>,
}

impl Doors {
    /// Counts a stream until it ends, or says that there are too many.
    pub(crate) fn opened(&self, kind: meter::Streams) -> Result<meter::Open, AppError> {
        let options = &self.options;
        let (most, what) = match kind {
            meter::Streams::Events => (options.max_events, "followers of events"),
            meter::Streams::Workers => (options.max_workers, "workers"),
            meter::Streams::Starts => (options.max_starts, "streams of starts"),
        };
        options.meter.opened(kind, most).ok_or_else(|| {
            let message = format!(
                "this server has {most} {what}, and takes no more; try again later, or another server"
            );
            AppError::new(ErrorCode::Overloaded, message).retry_after(Span::secs(5))
        })
    }
}

impl FromRef<Doors> for App {
    fn from_ref(doors: &Doors) -> Self {
        doors.app.clone()
    }
}

/// What a request knows of its connection; an extension put there by [`serve()`].
#[derive(Debug, Clone)]
pub(crate) struct Connection {
    /// The other end.
    pub(crate) peer: SocketAddr,
    /// The server is stopping: streams end, so that clients resume elsewhere.
    pub(crate) closing: CancellationToken,
}

impl Connection {
    /// The connection of a request; a lasting stand-in where there is none, as in tests of handlers.
    pub(crate) fn of(extensions: &http::Extensions) -> Self {
        extensions.get().cloned().unwrap_or_else(|| Self {
            peer: SocketAddr::from(([0, 0, 0, 0], 0)),
            closing: CancellationToken::new(),
        })
    }

    /// How a worker without a name is called.
    pub(crate) fn label(&self) -> String {
        self.peer.to_string()
    }
}

/// All routes and services on one router.
pub fn router(app: App, options: Options) -> Router {
    let (rest, described) = rest::routes().split_for_parts();
    let called = Arc::new(meter::Called::new(described.paths.paths.into_keys(), meter::methods()));
    let doors = Doors { app, options: Arc::new(options), called: Arc::clone(&called) };
    rest.method_not_allowed_fallback(wrong_method)
        .with_state(doors.clone())
        .merge(grpc::routes(&doors))
        .fallback(nothing_here)
        .layer(from_fn_with_state(called, meter::counted))
}

/// Whether a request speaks gRPC.
fn is_grpc<B>(request: &http::Request<B>) -> bool {
    let kind = request.headers().get(header::CONTENT_TYPE);
    kind.is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"))
}

async fn nothing_here(request: Request) -> Response {
    let path = error::cut(request.uri().path(), 200);
    if is_grpc(&request) {
        return tonic::Status::unimplemented(format!("there is no method {path}")).into_http();
    }
    let message =
        format!("{} {path}: there is nothing here; /openapi.json lists what there is", request.method());
    Refused(AppError::new(ErrorCode::NotFound, message)).into_response()
}

async fn wrong_method(request: Request) -> Response {
    let path = error::cut(request.uri().path(), 200);
    let message = format!("{path} does not take {}; the header Allow says what it takes", request.method());
    Refused(AppError::new(ErrorCode::MethodNotAllowed, message)).into_response()
}
