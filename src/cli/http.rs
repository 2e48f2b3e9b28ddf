//! The client's side of REST: one call, one answer, and problems as text for people.

use super::output::{self, Output};
use super::sse::Events;
use super::{Exit, Failure};
use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Full};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::Value;
use std::fmt::Write as _;
use std::time::Duration;

/// Longer than the longest `wait` that the server grants.
const ANSWER_WITHIN: Duration = Duration::from_secs(90);
const CONNECT_WITHIN: Duration = Duration::from_secs(5);

/// What a response body is made of; the name of its type is hyper's own business.
pub(super) type Body = http_body_util::combinators::BoxBody<Bytes, Box<dyn std::error::Error + Send + Sync>>;

/// A server, as its clients see it. Connections are kept and shared.
#[derive(Debug, Clone)]
pub(super) struct Api {
    base: String,
    client: Client<HttpConnector, Full<Bytes>>,
}

/// What came back.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: StatusCode,
    /// To look into.
    pub(super) value: Value,
    /// To pass on unchanged.
    pub(super) body: Bytes,
}

impl Answer {
    /// Prints the answer: as it came, or by `table`.
    pub(super) fn print(&self, output: Output, table: impl FnOnce(&Value)) {
        match output {
            Output::Json => output::line(&String::from_utf8_lossy(&self.body)),
            Output::Table => table(&self.value),
        }
    }
}

/// What is sent along with a call.
#[derive(Debug)]
pub(super) enum Payload {
    /// Nothing.
    Nothing,
    /// JSON text.
    Json(Bytes),
    /// YAML text.
    Yaml(Bytes),
}

impl Api {
    /// A server by its address; nothing is connected yet.
    pub(super) fn new(server: &str) -> Result<Self, Failure> {
        let base = server.trim_end_matches('/');
        let bad =
            |why: &str| Failure::usage(format!("{server:?} is no address like http://127.0.0.1:7070: {why}"));
        let uri: http::Uri = base.parse().map_err(|e: http::uri::InvalidUri| bad(&e.to_string()))?;
        match uri.scheme_str() {
            Some("http") if uri.path() == "/" && uri.query().is_none() => {}
            Some("http") => return Err(bad("it must not have a path")),
            Some("https") => return Err(bad("https is not built in; use a proxy that ends TLS")),
            _ => return Err(bad("it must begin with http://")),
        }
        let mut connector = HttpConnector::new();
        connector.set_connect_timeout(Some(CONNECT_WITHIN));
        connector.set_nodelay(true);
        Ok(Self { base: base.to_owned(), client: Client::builder(TokioExecutor::new()).build(connector) })
    }

    /// The address of `path` on this server.
    pub(super) fn url(&self, path: &str) -> String {
        format!("{}{path}", self.base)
    }

    /// GET.
    pub(super) async fn get(&self, path: &str) -> Result<Answer, Failure> {
        self.call(Method::GET, path, Payload::Nothing).await
    }

    /// One call; an answer of 400 and above is a failure with its problem as text.
    pub(super) async fn call(&self, method: Method, path: &str, send: Payload) -> Result<Answer, Failure> {
        let (kind, body) = match send {
            Payload::Nothing => (None, Bytes::new()),
            Payload::Json(body) => (Some("application/json"), body),
            Payload::Yaml(body) => (Some("application/yaml"), body),
        };
        let mut request =
            Request::builder().method(method).uri(self.url(path)).header(header::ACCEPT, "application/json");
        if let Some(kind) = kind {
            request = request.header(header::CONTENT_TYPE, kind);
        }
        let request = request.body(Full::new(body)).map_err(|e| Failure::usage(e.to_string()))?;
        let answer = async {
            let response = self.client.request(request).await.map_err(|e| self.unreachable(&e))?;
            let status = response.status();
            let body = response.into_body().collect().await.map_err(|e| self.unreachable(&e))?.to_bytes();
            Ok::<_, Failure>((status, body))
        };
        let (status, body) = tokio::time::timeout(ANSWER_WITHIN, answer).await.map_err(|_| {
            Failure::new(Exit::Unreachable, format!("{} did not answer within 90 s", self.base))
        })??;
        if status.is_client_error() || status.is_server_error() {
            return Err(refused(status, &body));
        }
        let value = if body.is_empty() {
            Value::Null
        } else {
            serde_json::from_slice(&body).map_err(|e| {
                Failure::failed(format!("{} answered with something that is no JSON: {e}", self.base))
            })?
        };
        Ok(Answer { status, value, body })
    }

    /// Opens an event stream after `last`. `None`: there will never be anything after it (204).
    pub(super) async fn events(&self, path: &str, last: Option<&str>) -> Result<Option<Events>, Failure> {
        let mut request = Request::get(self.url(path)).header(header::ACCEPT, "text/event-stream");
        if let Some(last) = last {
            request = request.header("last-event-id", last);
        }
        let request = request.body(Full::default()).map_err(|e| Failure::usage(e.to_string()))?;
        let response: Response<_> = self.client.request(request).await.map_err(|e| self.unreachable(&e))?;
        let status = response.status();
        if status == StatusCode::NO_CONTENT {
            return Ok(None);
        }
        let body = response.into_body();
        if !status.is_success() {
            let text = body.collect().await.map_err(|e| self.unreachable(&e))?.to_bytes();
            return Err(refused(status, &text));
        }
        Ok(Some(Events::new(body.map_err(Into::into).boxed())))
    }

    fn unreachable(&self, error: &dyn std::error::Error) -> Failure {
        let mut reason = error;
        while let Some(source) = reason.source() {
            reason = source;
        }
        let message = format!(
            "no server at {}: {reason}\n`downbeat dev` starts one; --server says where it is",
            self.base
        );
        Failure::new(Exit::Unreachable, message)
    }
}

/// What a refusal means for who asked: a request that is not one is wrong usage, anything else has failed.
fn refused(status: StatusCode, body: &[u8]) -> Failure {
    let exit = if status == StatusCode::BAD_REQUEST { Exit::Usage } else { Exit::Failed };
    Failure::new(exit, problem(status, body))
}

/// A problem (RFC 9457) as text: what happened, its code, and every fault on a line of its own.
fn problem(status: StatusCode, body: &[u8]) -> String {
    let Ok(problem) = serde_json::from_slice::<Value>(body) else {
        return format!("the server answered {status}");
    };
    let word = |key: &str| problem.get(key).and_then(Value::as_str);
    let what =
        word("detail").filter(|d| !d.is_empty()).or(word("title")).unwrap_or("the server refused this");
    let mut text = match word("code") {
        Some(code) => format!("{what} ({code})"),
        None => format!("{what} ({status})"),
    };
    let faults = problem.get("faults").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    for fault in faults {
        let word = |key: &str| fault.get(key).and_then(Value::as_str).unwrap_or("");
        let line = fault.get("line").and_then(Value::as_u64);
        // One fault is often the whole story, and told already.
        if faults.len() == 1 && line.is_none() && what.ends_with(word("message")) {
            break;
        }
        // Writing to a string does not fail.
        let _ = write!(text, "\n  {}", output::fault(line, word("path"), word("message")));
    }
    text
}

/// `text` as one segment or value of a URL.
pub(super) fn encode(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for b in text.bytes() {
        if b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_' | b'~') {
            out.push(char::from(b));
        } else {
            let _ = write!(out, "%{b:02X}");
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn problems_read_like_sentences() {
        let body = br#"{"title":"T","detail":"order.yaml has 2 faults","code":"invalid_workflow","faults":[
            {"path":"tasks.a","line":3,"message":"no type"},{"path":"name","message":"missing"}]}"#;
        assert_eq!(
            problem(StatusCode::UNPROCESSABLE_ENTITY, body),
            "order.yaml has 2 faults (invalid_workflow)\n  line 3: tasks.a: no type\n  name: missing"
        );
        let body = br#"{"detail":"limit: \"0\" is none","code":"invalid_request","faults":[
            {"path":"limit","message":"\"0\" is none"}]}"#;
        assert_eq!(
            problem(StatusCode::BAD_REQUEST, body),
            "limit: \"0\" is none (invalid_request)",
            "what was said once is not said again"
        );
        let body = br#"{"detail":"the input does not match","code":"invalid_input","faults":[
            {"path":"","message":"no order_id"}]}"#;
        assert_eq!(
            problem(StatusCode::UNPROCESSABLE_ENTITY, body),
            "the input does not match (invalid_input)\n  no order_id",
            "no path, no colon"
        );
        assert_eq!(problem(StatusCode::BAD_GATEWAY, b"<html>"), "the server answered 502 Bad Gateway");
        assert_eq!(problem(StatusCode::NOT_FOUND, b"{}"), "the server refused this (404 Not Found)");
    }

    #[test]
    fn anything_becomes_one_segment() {
        assert_eq!(encode("order-1.2_x"), "order-1.2_x");
        assert_eq!(encode("a/b?c&ä"), "a%2Fb%3Fc%26%C3%A4");
    }

    #[test]
    fn addresses_are_checked_before_they_are_used() {
        assert_eq!(Api::new("http://127.0.0.1:7070/").unwrap().url("/livez"), "http://127.0.0.1:7070/livez");
        for bad in ["", "127.0.0.1:7070", "https://x", "http://x/v1", "http://x?y", "ftp://x"] {
            assert_eq!(Api::new(bad).unwrap_err().exit, Exit::Usage, "{bad:?}");
        }
    }

    #[tokio::test]
    async fn an_absent_server_is_told_apart_from_a_refusal() {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let failure = Api::new(&format!("http://{free}")).unwrap().get("/livez").await.unwrap_err();
        assert_eq!(failure.exit, Exit::Unreachable);
        assert!(failure.message.starts_with(&format!("no server at http://{free}: ")), "{}", failure.message);
    }
}
