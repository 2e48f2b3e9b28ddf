//! `downbeat start`: starts a run and, if asked, waits for its end.

use super::http::{Answer, Api, Payload, encode};
use super::output::{self, Style, text};
use super::{Client, Failure, Outcome};
use bytes::Bytes;
use http::{Method, StatusCode};
use serde_json::value::RawValue;
use std::collections::BTreeMap;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Workflow to run
    workflow: String,
    /// Input as JSON, or @FILE; - or @- reads standard input
    #[arg(long, value_name = "JSON|@FILE")]
    input: Option<String>,
    /// Id of the run; starting it again answers with the run that exists
    #[arg(long)]
    id: Option<String>,
    /// Version of the workflow; by default the newest
    #[arg(long, value_name = "N")]
    version: Option<u32>,
    /// Tag of the run; may be given more than once
    #[arg(long = "tag", value_name = "KEY=VALUE", value_parser = tag)]
    tags: Vec<(String, String)>,
    /// Priority, -100 to 100
    #[arg(long, allow_hyphen_values = true, value_name = "N")]
    priority: Option<i32>,
    /// When it is to begin: an instant (RFC 3339), or + and a duration; by default at once
    #[arg(long, value_name = "TIME|+DURATION")]
    at: Option<String>,
    /// Waits until the run has ended; exits with 1 unless it completed
    #[arg(long)]
    wait: bool,
    #[command(flatten)]
    client: Client,
}

pub(super) fn tag(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("a tag is KEY=VALUE")?;
    Ok((key.to_owned(), value.to_owned()))
}

/// The body of a start. The input stays as it was written, to the digit.
#[derive(Debug, serde::Serialize)]
struct Request<'a> {
    workflow: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    version: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    input: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    tags: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    priority: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    start_at: Option<&'a str>,
}

pub(super) async fn run(args: Args) -> Outcome {
    let api = args.client.connect()?;
    let input = args.input.as_deref().map(|text| input(text, "--input")).transpose()?;
    let body = serde_json::to_vec(&Request {
        workflow: &args.workflow,
        version: args.version,
        id: args.id.as_deref(),
        input,
        tags: args.tags.into_iter().collect(),
        priority: args.priority,
        start_at: args.at.as_deref(),
    })
    .map_err(|e| Failure::usage(e.to_string()))?;
    let started = api.call(Method::POST, "/v1/runs", Payload::Json(body.into())).await?;
    if !args.wait {
        started.print(args.client.output, |run| {
            let what = if started.status == StatusCode::CREATED { "started" } else { "was there before" };
            let style = Style::stdout();
            let (id, status) = (text(run, "id"), text(run, "status"));
            let at = output::date_time(text(run, "start_at"));
            let at =
                if status == "pending" && !at.is_empty() { format!(" until {at}") } else { String::new() };
            output::line(&format!("{} {what} ({}{at})", style.paint(output::BOLD, id), style.status(status)));
        });
        return Ok(());
    }
    let run = wait(&api, started).await?;
    run.print(args.client.output, output::run);
    completed(text(&run.value, "status"))
}

/// JSON, `@FILE` or `-`, to the digit; `what` is how it is called if it is none.
pub(super) fn input(text: &str, what: &str) -> Result<Box<RawValue>, Failure> {
    let (text, from) = match text.strip_prefix('@').or((text == "-").then_some("-")) {
        Some(file) => {
            let bytes = super::register::read(std::path::Path::new(file))?;
            (String::from_utf8(bytes.to_vec()).map_err(|e| Failure::usage(format!("{file}: {e}")))?, file)
        }
        None => (text.to_owned(), what),
    };
    serde_json::from_str(&text).map_err(|e| Failure::usage(format!("{from} is no JSON: {e}")))
}

/// As [`input`], as a body.
pub(super) fn value(text: &str, what: &str) -> Result<Bytes, Failure> {
    Ok(Bytes::copy_from_slice(input(text, what)?.get().as_bytes()))
}

/// Asks until the run has ended.
async fn wait(api: &Api, mut run: Answer) -> Result<Answer, Failure> {
    let path = format!("/v1/runs/{}?wait=60s", encode(text(&run.value, "id")));
    while !is_terminal(text(&run.value, "status")) {
        run = api.get(&path).await?;
    }
    Ok(run)
}

/// Whether a run in this status has ended.
pub(super) fn is_terminal(status: &str) -> bool {
    matches!(status, "completed" | "failed" | "cancelled" | "timed_out")
}

/// The exit status of a run's end.
pub(super) fn completed(status: &str) -> Outcome {
    if status == "completed" { Ok(()) } else { Err(Failure::silent()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn input_keeps_every_digit() {
        let raw = input(r#"{"n": 9007199254740993, "f": 1.0}"#, "--input").unwrap();
        assert_eq!(raw.get(), r#"{"n": 9007199254740993, "f": 1.0}"#);
        assert_eq!(input("{", "--input").unwrap_err().exit, super::super::Exit::Usage);
        assert!(input("@/no/such/file", "--input").unwrap_err().message.contains("/no/such/file"));
    }

    #[test]
    fn tags_are_pairs() {
        assert_eq!(tag("a=b=c").unwrap(), ("a".into(), "b=c".into()));
        assert!(tag("a").is_err());
    }
}
