//! `downbeat watch`: the events of a run as they come, over lost connections, until it ends.

use super::output::{self, Output, Style, text};
use super::sse::{Event, Watch};
use super::{Client, Outcome, start};
use serde_json::Value;

#[derive(Debug, clap::Args)]
#[command(after_help = "Exits with 0 if the run completed, with 1 if it ended otherwise.")]
pub(super) struct Args {
    /// Id of the run
    id: String,
    #[command(flatten)]
    client: Client,
}

pub(super) async fn run(args: Args) -> Outcome {
    let api = args.client.connect()?;
    let mut watch = Watch::run(&api, &args.id).await?;
    let style = Style::stdout();
    let mut last = String::new();
    while let Some(event) = watch.next().await? {
        match args.client.output {
            Output::Json => output::line(&event.data),
            Output::Table => output::line(&line(&event, style)),
        }
        last = event.kind;
    }
    start::completed(last.strip_prefix("run.").unwrap_or_default())
}

/// `12:00:00.000  task.retrying  charge  attempt 1  gateway_timeout: …`
pub(super) fn line(event: &Event, style: Style) -> String {
    let value = event.value();
    let (_, status) = event.kind.split_once('.').unwrap_or(("", &event.kind));
    let number = |key: &str| value.get(key).and_then(Value::as_u64);
    let mut words = vec![
        style.paint(output::DIM, &output::time_of_day(text(&value, "time"))),
        style.paint(output::status_color(status), &format!("{:<15}", event.kind)),
        format!("{:<10}", text(&value, "task")),
    ];
    if let Some(attempt) = number("attempt").filter(|n| *n > 1 || status == "retrying") {
        words.push(format!("attempt {attempt}"));
    }
    if let Some(delivery) = number("delivery").filter(|n| *n > 1) {
        words.push(format!("delivery {delivery}"));
    }
    if !text(&value, "signal").is_empty() {
        words.push(text(&value, "signal").to_owned());
    }
    if !text(&value, "worker").is_empty() {
        words.push(format!("on {}", text(&value, "worker")));
    }
    let error = output::error_text(&value);
    if !error.is_empty() {
        words.push(output::cut(&error, 80));
    } else if let Some(result) = value.get("output").filter(|v| !v.is_null()) {
        words.push(style.paint(output::DIM, &output::cut(&result.to_string(), 80)));
    }
    words.join("  ").trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_a_line() {
        let event = |kind: &str, data: &str| Event { id: "1".into(), kind: kind.into(), data: data.into() };
        let plain = Style { on: false };
        let retry = r#"{"time":"2026-01-01T10:00:00.123456Z","task":"charge","attempt":1,
            "error":{"code":"timeout","message":"no answer","task":"charge"}}"#;
        assert_eq!(
            line(&event("task.retrying", retry), plain),
            "10:00:00.123  task.retrying    charge      attempt 1  timeout: no answer"
        );
        let signal = r#"{"time":"2026-01-01T10:00:00.500000Z","signal":"approved","output":{"by":"Ada"}}"#;
        assert_eq!(
            line(&event("signal.received", signal), plain),
            "10:00:00.500  signal.received              approved  {\"by\":\"Ada\"}"
        );
        assert_eq!(line(&event("reset", "{}"), plain), "  reset");
    }
}
