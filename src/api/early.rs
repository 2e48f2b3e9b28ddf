//! Before the store is there: this process is alive and not ready, and whatever is asked of it is refused with the reason.
//! Whoever starts servers (Kubernetes, systemd) must not take one that waits for its store for one that hangs, nor send
//! it anything.

use super::error::{Refused, status};
use super::{Options, is_grpc, serve};
use crate::app::AppError;
use crate::model::error::ErrorCode;
use crate::model::time::Span;
use axum::Router;
use axum::extract::{Request, State};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use http::header;
use std::future::Future;
use std::io;
use std::pin::pin;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// A store that is there by then is not worth a word; who connects waits.
const SOON: Duration = Duration::from_millis(300);
/// Answers that are under way when the store has come have this long to leave.
const GRACE: Duration = Duration::from_secs(1);

/// Waits for `opening`; if that takes long, answers on `listener` meanwhile, with what is waited for as `why` has it. Gives
/// both back.
///
/// # Errors
/// What the listener cannot recover from.
pub async fn meanwhile<T>(
    listener: TcpListener,
    why: watch::Receiver<String>,
    opening: impl Future<Output = T>,
) -> io::Result<(TcpListener, T)> {
    let mut opening = pin!(opening);
    if let Ok(opened) = tokio::time::timeout(SOON, &mut opening).await {
        return Ok((listener, opened));
    }
    let listener = listener.into_std()?;
    let own = TcpListener::from_std(listener.try_clone()?)?;
    let there = CancellationToken::new();
    let router = Router::new().route("/livez", get(alive)).fallback(not_yet).with_state(why);
    let options = Options { grace: GRACE, ..Options::default() };
    let mut serving = pin!(serve(own, router, options, there.cancelled()));
    let opened = tokio::select! {
        opened = &mut opening => opened,
        served = &mut serving => {
            served?;
            opening.await
        }
    };
    there.cancel();
    serving.await?;
    // Who has connected since is in the listener's queue.
    Ok((TcpListener::from_std(listener)?, opened))
}

async fn alive() -> Response {
    ([(header::CONTENT_TYPE, "application/json")], r#"{"status":"alive"}"#).into_response()
}

async fn not_yet(State(why): State<watch::Receiver<String>>, request: Request) -> Response {
    let message = format!("this server waits for its store: {}", *why.borrow());
    let error = AppError::new(ErrorCode::StoreUnavailable, message).retry_after(Span::secs(1));
    if is_grpc(&request) { status(&error).into_http() } else { Refused(error).into_response() }
}
