//! `downbeat cancel`: ends a run as cancelled.

use super::http::{Payload, encode};
use super::output::{self, Style, text};
use super::{Client, Outcome};
use bytes::Bytes;
use http::Method;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Id of the run
    id: String,
    /// Also skips what would clean up
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    client: Client,
}

pub(super) async fn run(args: Args) -> Outcome {
    let path = format!("/v1/runs/{}/cancel", encode(&args.id));
    let body = Bytes::from(serde_json::json!({ "force": args.force }).to_string());
    let run = args.client.connect()?.call(Method::POST, &path, Payload::Json(body)).await?;
    run.print(args.client.output, |run| {
        let style = Style::stdout();
        let (id, status) = (text(run, "id"), text(run, "status"));
        output::line(&format!("{} {}", style.paint(output::BOLD, id), style.status(status)));
    });
    Ok(())
}
