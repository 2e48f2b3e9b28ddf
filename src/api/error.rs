//! One table for both doors: [`AppError`] to `application/problem+json` (RFC 9457) and to a gRPC status
//! with details. The table itself is [`ErrorCode`]; nothing here decides.
//!
//! To add a code: a line in `model/error.rs` and a page in `docs/errors/`.

use crate::app::AppError;
use crate::model::error::{ErrorCode, Fault};
use crate::proto::v1;
use axum::response::{IntoResponse, Response};
use http::{HeaderValue, StatusCode, header};
use serde::Serialize;
use std::borrow::Cow;
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt as _};
use utoipa::ToSchema;

/// The domain of `google.rpc.ErrorInfo`.
const DOMAIN: &str = "downbeat";
/// A gRPC status travels in the head of a response, which clients limit to 8 KiB or so: more than this of
/// faults or of a message is cut there. REST and `StartMany` tell all.
const STATUS_BYTES: usize = 4 << 10;

/// Result of a REST handler.
pub(crate) type Answer = Result<Response, Refused>;

/// An error on its way out of the REST door.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refused(pub(crate) AppError);

impl From<AppError> for Refused {
    fn from(error: AppError) -> Self {
        Self(error)
    }
}

/// An error as REST tells it (RFC 9457).
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Problem<'a> {
    /// Address of the page that explains the code.
    #[serde(rename = "type")]
    kind: String,
    /// One line that is the same for every error of this code.
    title: &'static str,
    /// The HTTP status.
    status: u16,
    /// What happened here.
    detail: &'a str,
    /// Stable; made for programs.
    code: &'static str,
    /// Everything that is wrong, where there can be more than one thing.
    faults: Vec<FaultJson<'a>>,
}

/// One thing that is wrong.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Fault)]
pub(crate) struct FaultJson<'a> {
    /// Where: a path into the document or the request.
    path: &'a str,
    /// Line of the YAML text, from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<u32>,
    /// What, and how to mend it.
    message: &'a str,
}

impl Refused {
    /// The body of the answer: a problem (RFC 9457).
    pub(crate) fn body(&self) -> Vec<u8> {
        let Self(error) = self;
        let problem = Problem {
            kind: format!("/docs/errors/{}", error.code.as_str()),
            title: error.code.title(),
            status: error.code.http_status(),
            detail: &error.message,
            code: error.code.as_str(),
            faults: error
                .faults
                .iter()
                .map(|f| FaultJson { path: &f.path, line: f.line, message: &f.message })
                .collect(),
        };
        serde_json::to_vec(&problem).unwrap_or_default()
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let body = self.body();
        let Self(error) = self;
        let status =
            StatusCode::from_u16(error.code.http_status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = (status, body).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if let Some(after) = error.retry_after {
            // Whole seconds, never early.
            let secs = after.0.max(0).unsigned_abs().div_ceil(1_000_000);
            headers.insert(header::RETRY_AFTER, HeaderValue::from(secs));
        }
        response
    }
}

/// The gRPC status of an error: the code's number, the message, and details.
pub(crate) fn status(error: &AppError) -> Status {
    let mut details = ErrorDetails::with_error_info(error.code.as_str(), DOMAIN, []);
    let mut room = STATUS_BYTES;
    for (n, fault) in error.faults.iter().enumerate() {
        let place = match fault.line {
            Some(line) => format!("line {line}: {}", fault.message),
            None => fault.message.clone(),
        };
        let size = fault.path.len() + place.len() + 8;
        if size > room {
            let more = error.faults.len() - n;
            details.add_bad_request_violation("", format!("and {more} more; REST lists all of them"));
            break;
        }
        room -= size;
        details.add_bad_request_violation(fault.path.as_str(), place);
    }
    if let Some(after) = error.retry_after {
        details.set_retry_info(Some(after.to_std()));
    }
    let code = Code::from_i32(error.code.grpc_code());
    Status::with_error_details(code, cut(&error.message, STATUS_BYTES / 4), details)
}

/// An error as a part of a stream tells it.
pub(crate) fn problem(error: AppError) -> v1::Problem {
    v1::Problem {
        code: error.code.as_str().to_owned(),
        message: error.message,
        faults: error
            .faults
            .into_iter()
            .map(|f| v1::Fault { path: f.path, line: f.line.unwrap_or(0), message: f.message })
            .collect(),
        retry_after_ms: error.retry_after.map(|s| s.as_millis().max(0).unsigned_abs()),
    }
}

/// What tonic says of a message that it could not read, in the words of the table.
pub(crate) fn from_transport(status: Status) -> Status {
    let says = status.message();
    match status.code() {
        Code::OutOfRange if says.contains("message length too large") => {
            super::error::status(&AppError::new(ErrorCode::TooLarge, says))
        }
        Code::Internal if says.contains("decode Protobuf") || says.contains("protocol error") => {
            super::error::status(&AppError::new(ErrorCode::InvalidRequest, says))
        }
        _ => status,
    }
}

/// An invalid request with one fault, named.
pub(crate) fn invalid(path: impl Into<String>, message: impl Into<String>) -> AppError {
    invalid_all(vec![Fault { path: path.into(), line: None, message: message.into() }])
}

/// An invalid request with its faults; the message repeats the first.
pub(crate) fn invalid_all(faults: Vec<Fault>) -> AppError {
    let message = match faults.as_slice() {
        [] => "the request is not valid".to_owned(),
        [one] => format!("{}: {}", one.path, one.message),
        [first, rest @ ..] => format!("{}: {} (and {} more)", first.path, first.message, rest.len()),
    };
    AppError::with_faults(ErrorCode::InvalidRequest, message, faults)
}

/// Cuts at a character's border, at most `max` bytes.
pub(crate) fn cut(text: &str, max: usize) -> Cow<'_, str> {
    if text.len() <= max {
        return Cow::Borrowed(text);
    }
    let end = (0..=max.saturating_sub(3)).rev().find(|n| text.is_char_boundary(*n)).unwrap_or(0);
    Cow::Owned(format!("{}…", &text[..end]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::time::Span;
    use http_body_util::BodyExt as _;

    async fn read(response: Response) -> (u16, http::HeaderMap, serde_json::Value) {
        let (parts, body) = response.into_parts();
        let bytes = body.collect().await.unwrap().to_bytes();
        (parts.status.as_u16(), parts.headers, serde_json::from_slice(&bytes).unwrap())
    }

    #[tokio::test]
    async fn a_problem_carries_code_page_faults_and_retry_after() {
        let mut error = AppError::with_faults(
            ErrorCode::InvalidWorkflow,
            "two faults",
            vec![
                Fault { path: "tasks.a".into(), line: Some(3), message: "unknown key".into() },
                Fault { path: "name".into(), line: None, message: "missing".into() },
            ],
        );
        error.retry_after = Some(Span::millis(1_200));
        let (status, headers, body) = read(Refused(error).into_response()).await;
        assert_eq!(status, 422);
        assert_eq!(headers["content-type"], "application/problem+json");
        assert_eq!(headers["retry-after"], "2");
        assert_eq!(
            body,
            serde_json::json!({
                "type": "/docs/errors/invalid_workflow",
                "title": "The workflow document has faults",
                "status": 422,
                "detail": "two faults",
                "code": "invalid_workflow",
                "faults": [
                    {"path": "tasks.a", "line": 3, "message": "unknown key"},
                    {"path": "name", "message": "missing"},
                ],
            })
        );
    }

    #[tokio::test]
    async fn every_code_maps_to_its_http_status_and_grpc_code() {
        for code in ErrorCode::ALL {
            let error = AppError::new(*code, "m");
            let grpc = status(&error);
            assert_eq!(grpc.code() as i32, code.grpc_code());
            assert_eq!(grpc.get_details_error_info().unwrap().reason, code.as_str());
            let (http, _, body) = read(Refused(error).into_response()).await;
            assert_eq!(http, code.http_status());
            assert_eq!(body["code"], code.as_str());
        }
    }

    #[test]
    fn a_status_has_field_violations_and_retry_info() {
        let mut error = invalid("limit", "must be a number");
        error.retry_after = Some(Span::secs(3));
        let details = status(&error).get_error_details();
        let violations = &details.bad_request().unwrap().field_violations;
        assert_eq!(
            (violations[0].field.as_str(), violations[0].description.as_str()),
            ("limit", "must be a number")
        );
        assert_eq!(details.retry_info().unwrap().retry_delay, Some(std::time::Duration::from_secs(3)));
    }

    #[test]
    fn a_status_stays_small_whatever_the_number_of_faults() {
        let fault = |n| Fault { path: format!("tasks.t{n}"), line: Some(n), message: "x".repeat(100) };
        let error = AppError::with_faults(
            ErrorCode::InvalidWorkflow,
            "é".repeat(9_000),
            (0..1_000).map(fault).collect(),
        );
        let status = status(&error);
        assert!(status.details().len() < 6_000, "{}", status.details().len());
        assert!(status.message().len() <= 1_024);
        let violations = status.get_details_bad_request().unwrap().field_violations;
        let told = violations.len() - 1;
        assert_eq!(
            violations[told].description,
            format!("and {} more; REST lists all of them", 1_000 - told)
        );
    }

    #[test]
    fn what_tonic_refuses_gets_a_code_of_the_table() {
        let large =
            from_transport(Status::out_of_range("Error, decoded message length too large: found 9 bytes"));
        assert_eq!(large.code(), Code::ResourceExhausted);
        let junk = from_transport(Status::internal("failed to decode Protobuf message: buffer underflow"));
        assert_eq!(junk.code(), Code::InvalidArgument);
        assert_eq!(from_transport(Status::cancelled("x")).code(), Code::Cancelled);
    }

    #[test]
    fn text_is_cut_at_a_character() {
        assert_eq!(cut("abc", 3), "abc");
        assert_eq!(cut("ééé", 5), "é…");
        assert!(cut("ééé", 5).len() <= 5);
    }
}
