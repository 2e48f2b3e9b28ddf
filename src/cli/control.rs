//! What the commands that act on one run share: a call, and the run as it stands then.

use super::http::{Payload, encode};
use super::output::{self, Style, text};
use super::{Client, Failure, Outcome};
use bytes::Bytes;
use http::Method;
use serde_json::Value;
use serde_json::value::RawValue;

/// Posts to a call of a run and shows how it stands: `order-1 paused`.
pub(super) async fn post(client: &Client, run: &str, call: &str, body: Payload) -> Outcome {
    let path = format!("/v1/runs/{}/{call}", encode(run));
    let answer = client.connect()?.call(Method::POST, &path, body).await?;
    answer.print(client.output, |run| output::line(&stands(run, Style::stdout())));
    Ok(())
}

/// An action on a task that may carry a JSON value, which stays as it was written, to the digit.
#[derive(Debug, Default, serde::Serialize)]
pub(super) struct OnTask<'a> {
    pub(super) action: &'a str,
    pub(super) task: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) output: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) input: Option<Box<RawValue>>,
}

/// Acts on a task of a run and shows how the run stands.
pub(super) async fn act(client: &Client, run: &str, action: &OnTask<'_>) -> Outcome {
    let body = serde_json::to_vec(action).map_err(|e| Failure::usage(e.to_string()))?;
    post(client, run, "actions", Payload::Json(body.into())).await
}

/// A JSON object as a body.
pub(super) fn json(body: &Value) -> Payload {
    Payload::Json(Bytes::from(body.to_string()))
}

/// `order-1 running, ending cancelled`
fn stands(run: &Value, style: Style) -> String {
    let (id, status) = (text(run, "id"), text(run, "status"));
    let mut line = format!("{} {}", style.paint(output::BOLD, id), style.status(status));
    let ending = run.get("ending").map_or("", |ending| text(ending, "status"));
    if !ending.is_empty() {
        line = format!("{line}, ending {}", style.status(ending));
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_run_stands_in_one_line() {
        let plain = Style { on: false };
        assert_eq!(stands(&json!({"id": "a", "status": "paused", "ending": null}), plain), "a paused");
        let ending = json!({"id": "a", "status": "running", "ending": {"status": "failed"}});
        assert_eq!(stands(&ending, plain), "a running, ending failed");
    }
}
