//! `downbeat skip`: skips a task of an open run by hand.

use super::control::{json, post};
use super::{Client, Outcome};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Id of the run
    id: String,
    /// Path of the task, as `downbeat get` shows it
    task: String,
    #[command(flatten)]
    client: Client,
}

pub(super) async fn run(args: Args) -> Outcome {
    let body = serde_json::json!({ "action": "skip", "task": args.task });
    post(&args.client, &args.id, "actions", json(&body)).await
}
