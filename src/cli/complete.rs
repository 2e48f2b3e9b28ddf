//! `downbeat complete`: completes a task of an open run by hand.

use super::control::post;
use super::http::Payload;
use super::{Client, Failure, Outcome, start};
use serde_json::value::RawValue;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Id of the run
    id: String,
    /// Path of the task, as `downbeat get` shows it
    task: String,
    /// Its output as JSON, or @FILE; - or @- reads standard input; null if not given
    #[arg(value_name = "JSON|@FILE")]
    result: Option<String>,
    #[command(flatten)]
    client: Client,
}

/// The output stays as it was written, to the digit.
#[derive(Debug, serde::Serialize)]
struct Request<'a> {
    action: &'a str,
    task: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    output: Option<Box<RawValue>>,
}

pub(super) async fn run(args: Args) -> Outcome {
    let output = args.result.as_deref().map(|text| start::input(text, "the output")).transpose()?;
    let request = Request { action: "complete", task: &args.task, output };
    let body = serde_json::to_vec(&request).map_err(|e| Failure::usage(e.to_string()))?;
    post(&args.client, &args.id, "actions", Payload::Json(body.into())).await
}
