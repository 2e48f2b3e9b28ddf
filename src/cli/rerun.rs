//! `downbeat rerun`: begins an ended run again from one task, and everything behind it.

use super::control::{OnTask, act};
use super::{Client, Outcome, start};

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

pub(super) async fn run(args: Args) -> Outcome {
    let input = args.input.as_deref().map(|text| start::input(text, "--input")).transpose()?;
    let action = OnTask { action: "rerun", task: &args.task, input, ..OnTask::default() };
    act(&args.client, &args.id, &action).await
}
