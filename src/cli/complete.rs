//! `downbeat complete`: completes a task of an open run by hand.

use super::control::{OnTask, act};
use super::{Client, Outcome, start};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Id of the run
    id: String,
    /// Path of the task, as `downbeat get` shows it
    task: String,
    /// Its output as JSON, or @FILE; - or @- reads standard input; null if not given
    #[arg(value_name = "JSON|@FILE")]
    result: Option<String>,
    #[command(flatten)]
    client: Client,
}

pub(super) async fn run(args: Args) -> Outcome {
    let output = args.result.as_deref().map(|text| start::input(text, "the output")).transpose()?;
    let action = OnTask { action: "complete", task: &args.task, output, ..OnTask::default() };
    act(&args.client, &args.id, &action).await
}
