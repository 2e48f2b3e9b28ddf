//! `downbeat signal`: sends a run a message, which one of its waits takes.

use super::control::post;
use super::http::{Payload, encode};
use super::{Client, Outcome, start};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Id of the run
    #[arg(value_name = "ID")]
    run: String,
    /// Name of the signal
    name: String,
    /// What it carries, as JSON, or @FILE; - or @- reads standard input; null if not given
    #[arg(value_name = "JSON|@FILE")]
    payload: Option<String>,
    /// Id of this signal: sent again, it counts once
    #[arg(long, value_name = "ID")]
    id: Option<String>,
    #[command(flatten)]
    client: Client,
}

pub(super) async fn run(args: Args) -> Outcome {
    let payload = match &args.payload {
        Some(text) => Payload::Json(start::value(text, "the payload")?),
        None => Payload::Nothing,
    };
    let mut call = format!("signals/{}", encode(&args.name));
    if let Some(id) = &args.id {
        call = format!("{call}?id={}", encode(id));
    }
    post(&args.client, &args.run, &call, payload).await
}
