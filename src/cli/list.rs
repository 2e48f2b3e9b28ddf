//! `downbeat list`: runs, newest first.

use super::http::encode;
use super::output::{Style, Table, date_time, note, text, took};
use super::{Client, Outcome};
use serde_json::Value;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Only of this workflow
    #[arg(long)]
    workflow: Option<String>,
    /// Only in this status
    #[arg(long)]
    status: Option<String>,
    /// Only with this tag, KEY:VALUE; may be given more than once
    #[arg(long = "tag", value_name = "KEY:VALUE")]
    tags: Vec<String>,
    /// Only those started for a task of this run
    #[arg(long, value_name = "RUN")]
    parent: Option<String>,
    /// How many
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u16).range(1..=500))]
    limit: u16,
    /// Where to go on, as the list before said
    #[arg(long)]
    cursor: Option<String>,
    #[command(flatten)]
    client: Client,
}

pub(super) async fn run(args: Args) -> Outcome {
    let mut path = format!("/v1/runs?limit={}", args.limit);
    let filters = [
        ("workflow", args.workflow),
        ("status", args.status),
        ("parent", args.parent),
        ("cursor", args.cursor),
    ];
    let tags = args.tags.into_iter().map(|tag| ("tag", Some(tag)));
    for (key, value) in filters.into_iter().chain(tags) {
        if let Some(value) = value {
            path = format!("{path}&{key}={}", encode(&value));
        }
    }
    let page = args.client.connect()?.get(&path).await?;
    page.print(args.client.output, table);
    Ok(())
}

fn table(page: &Value) {
    let mut table = Table::new(&["RUN", "WORKFLOW", "STATUS", "CREATED", "TOOK"]);
    for run in page.get("items").and_then(Value::as_array).into_iter().flatten() {
        table.row(vec![
            text(run, "id").to_owned(),
            text(run, "workflow").to_owned(),
            text(run, "status").to_owned(),
            date_time(text(run, "created_at")),
            took(text(run, "started_at"), text(run, "ended_at")),
        ]);
    }
    table.print(Style::stdout());
    let next = text(page, "next_cursor");
    if !next.is_empty() {
        note(&format!("more: --cursor {next}"));
    }
}
