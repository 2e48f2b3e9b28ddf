//! `downbeat cancel`: ends a run as cancelled.

use super::control::{json, post};
use super::{Client, Outcome};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Id of the run
    id: String,
    /// First undoes what has completed
    #[arg(long)]
    compensate: bool,
    /// Ends it at once: no compensation, no `finally`
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    client: Client,
}

pub(super) async fn run(args: Args) -> Outcome {
    let body = serde_json::json!({ "compensate": args.compensate, "force": args.force });
    post(&args.client, &args.id, "cancel", json(&body)).await
}
