//! `downbeat schedule`: what starts runs at times of a calendar.

use super::http::{Answer, Payload, encode};
use super::output::{self, Style, Table, date_time, note, text};
use super::register::{is_json, read};
use super::{Client, Failure, Outcome, start};
use crate::model::document::{Format, load_json};
use http::{Method, StatusCode};
use serde_json::Value;
use serde_json::value::RawValue;
use std::collections::BTreeMap;
use std::path::PathBuf;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Creates a schedule, or gives it another definition
    Put(Put),
    /// Lists schedules, newest first
    List(List),
    /// Shows a schedule
    Get(One),
    /// Removes a schedule; its runs go on
    Delete(One),
    /// Starts nothing by itself until resumed
    Pause(One),
    /// Goes on after a pause
    Resume(One),
    /// Starts a run now, as far as overlap allows
    Run(Run),
    /// Starts runs of past slots
    Backfill(Backfill),
    /// Tells the next firings
    Next(Next),
}

#[derive(Debug, clap::Args)]
struct One {
    /// Name of the schedule
    name: String,
    #[command(flatten)]
    client: Client,
}

#[derive(Debug, clap::Args)]
struct Put {
    /// Name of the schedule
    name: String,
    /// The definition, YAML or JSON; - is standard input. Without it, the options say all
    #[arg(conflicts_with_all = ["workflow", "cron"], required_unless_present_all = ["workflow", "cron"])]
    file: Option<PathBuf>,
    /// Workflow to start
    #[arg(long, value_name = "NAME")]
    workflow: Option<String>,
    /// When: five fields, or @daily and the like; may be given up to ten times
    #[arg(long, value_name = "PATTERN")]
    cron: Vec<String>,
    /// Where the times are meant: an IANA name; by default UTC
    #[arg(long, value_name = "ZONE", conflicts_with = "file")]
    time_zone: Option<String>,
    /// Input of the runs as JSON, or @FILE
    #[arg(long, value_name = "JSON|@FILE", conflicts_with = "file")]
    input: Option<String>,
    /// Version of the workflow; by default the newest at that time
    #[arg(long, value_name = "N", conflicts_with = "file")]
    version: Option<u32>,
    /// Tag of the runs; may be given more than once
    #[arg(long = "tag", value_name = "KEY=VALUE", value_parser = start::tag, conflicts_with = "file")]
    tags: Vec<(String, String)>,
    /// Priority of the runs, -100 to 100
    #[arg(long, allow_hyphen_values = true, value_name = "N", conflicts_with = "file")]
    priority: Option<i32>,
    /// While a run is open: skip (default), queue or allow
    #[arg(long, value_name = "WORD", conflicts_with = "file")]
    overlap: Option<String>,
    /// After an outage: none, latest (default) or all
    #[arg(long, value_name = "WORD", conflicts_with = "file")]
    catch_up: Option<String>,
    /// How many slots --catch-up all starts at most; by default 100
    #[arg(long, value_name = "N", conflicts_with = "file")]
    catch_up_limit: Option<u32>,
    /// For people
    #[arg(long, value_name = "TEXT", conflicts_with = "file")]
    description: Option<String>,
    /// Pauses it, or with =false lets it go on; by default it stays as it is
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true", conflicts_with = "file")]
    paused: Option<bool>,
    /// Only checks
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    client: Client,
}

#[derive(Debug, clap::Args)]
struct List {
    /// How many
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u16).range(1..=500))]
    limit: u16,
    /// Where to go on, as the list before said
    #[arg(long)]
    cursor: Option<String>,
    #[command(flatten)]
    client: Client,
}

#[derive(Debug, clap::Args)]
struct Run {
    /// Name of the schedule
    name: String,
    /// Id of this request: sent again, it counts once
    #[arg(long)]
    id: Option<String>,
    #[command(flatten)]
    client: Client,
}

#[derive(Debug, clap::Args)]
struct Backfill {
    /// Name of the schedule
    name: String,
    /// The first instant of the range, RFC 3339
    #[arg(long, value_name = "TIME")]
    from: String,
    /// Behind its last; not after now
    #[arg(long, value_name = "TIME")]
    to: String,
    #[command(flatten)]
    client: Client,
}

#[derive(Debug, clap::Args)]
struct Next {
    /// Name of the schedule
    name: String,
    /// How many
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u8).range(1..=100))]
    count: u8,
    #[command(flatten)]
    client: Client,
}

/// The body of a definition. The input stays as it was written, to the digit.
#[derive(Debug, serde::Serialize)]
struct Definition {
    workflow: String,
    cron: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    time_zone: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    input: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    version: Option<u32>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    tags: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    priority: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    overlap: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    catch_up: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    catch_up_limit: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    description: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    paused: Option<bool>,
}

pub(super) async fn run(args: Args) -> Outcome {
    match args.command {
        Command::Put(args) => put(args).await,
        Command::List(args) => list(args).await,
        Command::Get(args) => get(args).await,
        Command::Delete(args) => delete(args).await,
        Command::Pause(args) => turn(args, "pause").await,
        Command::Resume(args) => turn(args, "resume").await,
        Command::Run(args) => run_now(args).await,
        Command::Backfill(args) => backfill(args).await,
        Command::Next(args) => next(args).await,
    }
}

fn path(name: &str) -> String {
    format!("/v1/schedules/{}", encode(name))
}

async fn post(client: &Client, name: &str, call: &str, body: Payload) -> Result<Answer, Failure> {
    client.connect()?.call(Method::POST, &format!("{}/{call}", path(name)), body).await
}

/// Pauses or resumes, and shows how the schedule stands.
async fn turn(args: One, call: &str) -> Outcome {
    let answer = post(&args.client, &args.name, call, Payload::Nothing).await?;
    answer.print(args.client.output, |schedule| output::line(&stands(schedule, Style::stdout())));
    Ok(())
}

/// `nightly active, next 2026-12-01 02:00:00`
fn stands(schedule: &Value, style: Style) -> String {
    let status = status(schedule);
    let next = schedule.get("next").and_then(|n| n.get(0)).and_then(Value::as_str).unwrap_or("");
    let next = if next.is_empty() || status == "paused" {
        String::new()
    } else {
        format!(", next {}", date_time(next))
    };
    format!("{} {}{next}", style.paint(output::BOLD, text(schedule, "name")), style.status(status))
}

fn status(schedule: &Value) -> &'static str {
    if schedule.get("paused").and_then(Value::as_bool).unwrap_or(false) { "paused" } else { "active" }
}

async fn put(args: Put) -> Outcome {
    let body = match &args.file {
        Some(file) => {
            let format = if is_json(file) { Format::Json } else { Format::Yaml };
            load_json(&read(file)?, format)
                .map_err(|f| Failure::failed(output::fault(f.line.map(u64::from), &f.path, &f.message)))?
        }
        None => serde_json::to_vec(&Definition {
            workflow: args.workflow.unwrap_or_default(),
            cron: args.cron,
            time_zone: args.time_zone,
            input: args.input.as_deref().map(|text| start::input(text, "--input")).transpose()?,
            version: args.version,
            tags: args.tags.into_iter().collect(),
            priority: args.priority,
            overlap: args.overlap,
            catch_up: args.catch_up,
            catch_up_limit: args.catch_up_limit,
            description: args.description,
            paused: args.paused,
        })
        .map_err(|e| Failure::usage(e.to_string()))?,
    };
    let path = format!("{}{}", path(&args.name), if args.dry_run { "?dry_run=true" } else { "" });
    let answer = args.client.connect()?.call(Method::PUT, &path, Payload::Json(body.into())).await?;
    answer.print(args.client.output, |schedule| {
        let what = match (args.dry_run, answer.status == StatusCode::CREATED) {
            (true, _) => "is valid: ",
            (false, true) => "created: ",
            (false, false) => "",
        };
        output::line(&format!("{what}{}", stands(schedule, Style::stdout())));
    });
    Ok(())
}

async fn list(args: List) -> Outcome {
    let mut path = format!("/v1/schedules?limit={}", args.limit);
    if let Some(cursor) = &args.cursor {
        path = format!("{path}&cursor={}", encode(cursor));
    }
    let page = args.client.connect()?.get(&path).await?;
    page.print(args.client.output, |page| {
        let mut table = Table::new(&["SCHEDULE", "WORKFLOW", "CRON", "ZONE", "STATUS", "NEXT", "LAST"]);
        for s in page.get("items").and_then(Value::as_array).into_iter().flatten() {
            let first = |key: &str| s.get(key).and_then(|list| list.get(0)).cloned().unwrap_or_default();
            let last = first("firings");
            table.row(vec![
                text(s, "name").to_owned(),
                text(s, "workflow").to_owned(),
                crons(s),
                text(s, "time_zone").to_owned(),
                status(s).to_owned(),
                date_time(first("next").as_str().unwrap_or("")),
                format!("{} {}", date_time(text(&last, "slot")), text(&last, "outcome")).trim().to_owned(),
            ]);
        }
        table.print(Style::stdout());
        let next = text(page, "next_cursor");
        if !next.is_empty() {
            note(&format!("more: --cursor {next}"));
        }
    });
    Ok(())
}

fn crons(schedule: &Value) -> String {
    let list = schedule.get("cron").and_then(Value::as_array);
    list.into_iter().flatten().filter_map(Value::as_str).collect::<Vec<_>>().join(" | ")
}

async fn get(args: One) -> Outcome {
    let answer = args.client.connect()?.get(&path(&args.name)).await?;
    answer.print(args.client.output, |schedule| {
        let style = Style::stdout();
        output::line(&stands(schedule, style));
        let number = |key: &str| schedule.get(key).and_then(Value::as_u64).unwrap_or(0);
        output::line(&format!(
            "starts {} at {} ({}), overlap {}, catch-up {}",
            text(schedule, "workflow"),
            crons(schedule),
            text(schedule, "time_zone"),
            text(schedule, "overlap"),
            text(schedule, "catch_up")
        ));
        output::line(&format!(
            "{} open, {} waiting, {} to backfill",
            number("open_count"),
            number("waiting"),
            number("backfilling")
        ));
        let mut table = Table::new(&["SLOT", "OUTCOME", "RUN"]);
        for firing in schedule.get("firings").and_then(Value::as_array).into_iter().flatten() {
            table.row(vec![slots(firing), outcome(firing), text(firing, "run").to_owned()]);
        }
        table.print(style);
    });
    Ok(())
}

fn slots(firing: &Value) -> String {
    let (slot, until) = (date_time(text(firing, "slot")), date_time(text(firing, "until")));
    if until.is_empty() { slot } else { format!("{slot} to {until}") }
}

fn outcome(firing: &Value) -> String {
    let mut line = text(firing, "outcome").to_owned();
    if let Some(count) = firing.get("count").and_then(Value::as_u64) {
        line = format!("{line} {count}");
    }
    let why = firing.get("error").map_or_else(|| text(firing, "reason"), |error| text(error, "message"));
    if why.is_empty() { line } else { format!("{line} ({why})") }
}

async fn delete(args: One) -> Outcome {
    args.client.connect()?.call(Method::DELETE, &path(&args.name), Payload::Nothing).await?;
    note(&format!("{} removed", args.name));
    Ok(())
}

async fn run_now(args: Run) -> Outcome {
    let body = match &args.id {
        Some(id) => super::control::json(&serde_json::json!({ "id": id })),
        None => Payload::Nothing,
    };
    let answer = post(&args.client, &args.name, "run", body).await?;
    answer.print(args.client.output, |started| {
        let queued = started.get("queued").and_then(Value::as_bool).unwrap_or(false);
        let what = if queued { "waits for its turn" } else { "is being started" };
        output::line(&format!("{} {what}", Style::stdout().paint(output::BOLD, text(started, "run"))));
    });
    Ok(())
}

async fn backfill(args: Backfill) -> Outcome {
    let body = super::control::json(&serde_json::json!({ "from": args.from, "to": args.to }));
    let answer = post(&args.client, &args.name, "backfill", body).await?;
    answer.print(args.client.output, |done| {
        let slots = done.get("slots").and_then(Value::as_u64).unwrap_or(0);
        output::line(&format!("{slots} slot{} to start", if slots == 1 { "" } else { "s" }));
    });
    Ok(())
}

async fn next(args: Next) -> Outcome {
    let path = format!("{}/next?count={}", path(&args.name), args.count);
    let answer = args.client.connect()?.get(&path).await?;
    answer.print(args.client.output, |answer| {
        for at in answer.get("next").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str)
        {
            output::line(&format!("{} UTC", date_time(at)));
        }
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_schedule_stands_in_one_line() {
        let plain = Style { on: false };
        let mut schedule =
            json!({"name": "nightly", "paused": false, "next": ["2026-12-01T02:00:00.000000Z"]});
        assert_eq!(stands(&schedule, plain), "nightly active, next 2026-12-01 02:00:00");
        schedule["paused"] = json!(true);
        assert_eq!(stands(&schedule, plain), "nightly paused");
    }

    #[test]
    fn a_firing_says_what_became_of_its_slots() {
        let missed = json!({"slot": "2026-12-01T02:00:00.000000Z", "until": "2026-12-01T03:00:00.000000Z",
            "count": 61, "outcome": "skipped", "reason": "missed"});
        assert_eq!(slots(&missed), "2026-12-01 02:00:00 to 2026-12-01 03:00:00");
        assert_eq!(outcome(&missed), "skipped 61 (missed)");
        let refused = json!({"outcome": "refused", "error": {"code": "c", "message": "there is none"}});
        assert_eq!(outcome(&refused), "refused (there is none)");
    }
}
