//! `downbeat get`: one run with its tasks.

use super::http::encode;
use super::{Client, Outcome, output};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Id of the run
    id: String,
    #[command(flatten)]
    client: Client,
}

pub(super) async fn run(args: Args) -> Outcome {
    let run = args.client.connect()?.get(&format!("/v1/runs/{}", encode(&args.id))).await?;
    run.print(args.client.output, output::run);
    Ok(())
}
