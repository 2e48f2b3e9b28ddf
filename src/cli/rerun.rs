//! `downbeat rerun`: begins an ended run again from one task, and everything behind it.

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
    /// Its input as JSON, or @FILE; - or @- reads standard input; as the workflow says if not given
    #[arg(long, value_name = "JSON|@FILE")]
    input: Option<String>,
    #[command(flatten)]
    client: Client,
}

/// The input stays as it was written, to the digit.
#[derive(Debug, serde::Serialize)]
struct Request<'a> {
    action: &'a str,
    task: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    input: Option<Box<RawValue>>,
}

pub(super) async fn run(args: Args) -> Outcome {
    let input = args.input.as_deref().map(|text| start::input(text, "--input")).transpose()?;
    let request = Request { action: "rerun", task: &args.task, input };
    let body = serde_json::to_vec(&request).map_err(|e| Failure::usage(e.to_string()))?;
    post(&args.client, &args.id, "actions", Payload::Json(body.into())).await
}
