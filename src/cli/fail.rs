//! `downbeat fail`: fails a task of an open run by hand; it is not tried again.

use super::control::{json, post};
use super::{Client, Outcome};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Id of the run
    id: String,
    /// Path of the task, as `downbeat get` shows it
    task: String,
    /// Code of the error
    #[arg(long, default_value = "failed")]
    code: String,
    /// Message of the error, for people
    #[arg(long, default_value = "failed by hand")]
    message: String,
    #[command(flatten)]
    client: Client,
}

pub(super) async fn run(args: Args) -> Outcome {
    let error = serde_json::json!({ "code": args.code, "message": args.message });
    let body = serde_json::json!({ "action": "fail", "task": args.task, "error": error });
    post(&args.client, &args.id, "actions", json(&body)).await
}
