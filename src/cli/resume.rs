//! `downbeat resume`: lets a paused run go on.

use super::control::post;
use super::http::Payload;
use super::{Client, Outcome};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Id of the run
    id: String,
    #[command(flatten)]
    client: Client,
}

pub(super) async fn run(args: Args) -> Outcome {
    post(&args.client, &args.id, "resume", Payload::Nothing).await
}
