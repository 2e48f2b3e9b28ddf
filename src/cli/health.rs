//! `downbeat health`: whether a server would serve requests now. For images that have no other HTTP client.

use super::{Client, Outcome, output};

#[derive(Debug, clap::Args)]
#[command(after_help = "Exits with 0 if the server is ready, with 1 if it is not, with 3 if there is none.")]
pub(super) struct Args {
    #[command(flatten)]
    client: Client,
}

pub(super) async fn run(args: Args) -> Outcome {
    let answer = args.client.connect()?.get("/readyz").await?;
    answer.print(args.client.output, |_| output::line("ready"));
    Ok(())
}
