//! `downbeat demo`: everything at work on one screen. A server on a free port, three workers over gRPC, one order
//! through them, drawn from the run's events as they come.

use super::http::{Api, Payload, encode};
use super::output::{self, BOLD, CYAN, DIM, GREEN, RED, Style, TempDir, YELLOW, text};
use super::sse::{Event, Watch};
use super::{Failure, Outcome, compose, start, watch};
use crate::client::{Task, TaskError, Worker, WorkerHandle};
use crate::config::{Config, Overrides};
use crate::lifecycle::Lifecycle;
use bytes::Bytes;
use http::Method;
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::io::{IsTerminal as _, Write as _};
use std::path::PathBuf;
use std::time::Duration;
use tokio::time::Instant;

const DOCUMENT: &str = include_str!("../../examples/order.yaml");
/// The spinner's pace.
const FRAME: Duration = Duration::from_millis(80);
const SPINNER: [&str; 10] = ["⠋", "⠙", "⠹", "⠸", "⠼", "⠴", "⠦", "⠧", "⠇", "⠏"];

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Ends when the run has ended: with 0 if it completed, with 1 otherwise
    #[arg(long)]
    exit: bool,
    /// Keeps the state in this directory; by default it goes with the demo
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
}

pub(super) async fn run(args: Args) -> Outcome {
    let life = Lifecycle::with_signals()?;
    let temporary = match &args.data {
        Some(_) => None,
        None => Some(TempDir::new("demo")?),
    };
    let data =
        args.data.clone().or_else(|| temporary.as_ref().map(|t| t.path().to_owned())).unwrap_or_default();
    let flags = Overrides::from([
        (("server", "listen"), "127.0.0.1:0".to_owned()),
        (("server", "drain"), "5s".to_owned()),
        (("store", "url"), "embedded".to_owned()),
        (("store", "data"), data.display().to_string()),
        (("log", "filter"), "warn".to_owned()),
    ]);
    let config = Config::of(None, |_| None, flags).map_err(|e| Failure::usage(e.to_string()))?;
    crate::telemetry::init(&config.log);
    let Some(server) = compose::start(&config, &life).await? else { return Ok(()) };
    let url = format!("http://{}", server.address);
    let outcome = tokio::select! {
        outcome = show(&url, &data, args.exit, &life) => outcome,
        () = life.stopping() => {
            if args.exit { Err(Failure::failed("interrupted before the run had ended")) } else { Ok(()) }
        }
    };
    life.stop();
    // How the demo's own server ends is of no interest if the demo failed.
    let ended = server.ended().await;
    drop(temporary);
    outcome.and(ended)
}

async fn show(url: &str, data: &std::path::Path, exit: bool, life: &Lifecycle) -> Outcome {
    let style = Style::stdout();
    let api = Api::new(url)?;
    let head = |name: &str, value: &str| {
        output::line(&format!("  {} {value}", style.paint(DIM, &format!("{name:<9}"))));
    };
    output::line(&format!("\n  {}\n", style.paint(BOLD, "Downbeat")));
    head(
        "server",
        &format!(
            "{} {}",
            style.paint(CYAN, url),
            style.paint(DIM, &format!("(state in {})", data.display()))
        ),
    );

    let registered =
        api.call(Method::PUT, "/v1/workflows/order", Payload::Yaml(Bytes::from_static(DOCUMENT.as_bytes())));
    let version = registered.await?.value.get("version").map(Value::to_string).unwrap_or_default();
    head("workflow", &format!("order, version {version} {}", style.paint(DIM, "(examples/order.yaml)")));

    let workers = workers(url, life)?;
    let mut names = Vec::new();
    for (name, mut handle) in workers {
        if handle.connected().await.is_none() {
            return Err(Failure::failed(format!("the worker {name} did not connect")));
        }
        names.push(name);
    }
    head("workers", &format!("{} {}", names.join(" · "), style.paint(DIM, "(gRPC)")));

    let body = json!({ "workflow": "order", "input": order() }).to_string();
    let run = api.call(Method::POST, "/v1/runs", Payload::Json(body.into())).await?.value;
    let id = text(&run, "id").to_owned();
    head("run", &format!("{id}\n"));

    let mut board = Board::new(&run, style);
    let status = board.follow(Watch::run(&api, &id).await?).await?;
    let ended = api.get(&format!("/v1/runs/{}", encode(&id))).await?.value;
    let took = output::took(text(&ended, "started_at"), text(&ended, "ended_at"));
    output::line(&format!("\n  The order {} in {took}.", style.status(&status)));
    match output::error_text(&ended) {
        error if error.is_empty() => {
            head("output", &ended.get("output").map(Value::to_string).unwrap_or_default());
        }
        error => head("error", &error),
    }
    if exit {
        // The server is about to stop: there will be nobody to ask.
        output::line("");
        return start::completed(&status);
    }
    output::line("\n  See for yourself:");
    let page = api.url(&format!("/v1/runs/{}", encode(&id)));
    let hint = |command: String| output::line(&format!("    {}", style.paint(CYAN, &command)));
    hint(format!("curl {page}"));
    hint(format!("curl -N {page}/events"));
    hint(format!("downbeat get {id} --server {url}"));
    output::line(&format!(
        "    {} {}",
        style.paint(CYAN, &api.url("/docs")),
        style.paint(DIM, "every call there is")
    ));
    output::line(&format!("\n  {}", style.paint(DIM, "The server and its workers go on; Ctrl-C ends them.")));
    std::future::pending().await
}

/// The order that goes through: large enough for a review.
fn order() -> Value {
    json!({
        "order_id": "o-1001",
        "items": [
            { "sku": "espresso-machine", "price": 949.0, "quantity": 1 },
            { "sku": "grinder", "price": 179.5, "quantity": 1 },
            { "sku": "beans-1kg", "price": 24.9, "quantity": 4 },
        ],
    })
}

// ---- the three workers

fn workers(url: &str, life: &Lifecycle) -> Result<Vec<(&'static str, WorkerHandle)>, Failure> {
    let build = |label: &str| Worker::builder(url).label(label).cancel_grace(Duration::from_millis(200));
    let workers = [
        ("warehouse", build("warehouse").handle("reserve-stock", 4, reserve).handle("ship-order", 4, ship)),
        ("payments", build("payments").handle("charge-card", 4, charge)),
        (
            "front-desk",
            build("front-desk").handle("review-order", 1, review).handle("notify-customer", 8, notify),
        ),
    ];
    let mut handles = Vec::new();
    for (name, builder) in workers {
        let worker = builder.build().map_err(|e| Failure::failed(e.to_string()))?;
        let handle = worker.handle();
        let (stopper, stopping) = (worker.handle(), life.clone());
        life.spawn(async move {
            let stop = async {
                stopping.stopping().await;
                stopper.shutdown(Duration::from_secs(1));
                std::future::pending::<()>().await;
            };
            tokio::select! {
                ended = worker.run() => if let Err(error) = ended {
                    tracing::warn!(%error, "a worker of the demo ended");
                },
                () = stop => {}
            }
        });
        handles.push((name, handle));
    }
    Ok(handles)
}

/// What real work would take.
async fn work(millis: u64) {
    tokio::time::sleep(Duration::from_millis(millis)).await;
}

async fn reserve(task: Task) -> Result<Bytes, TaskError> {
    let input: Value = task.json()?;
    work(450).await;
    let items = input.get("items").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let number = |item: &Value, key: &str| item.get(key).and_then(Value::as_f64).unwrap_or(0.0);
    let total: f64 = items.iter().map(|item| number(item, "price") * number(item, "quantity")).sum();
    TaskError::json(
        &json!({ "hold_id": format!("h-{}", text(&input, "order")), "total": (total * 100.0).round() / 100.0 }),
    )
}

async fn charge(task: Task) -> Result<Bytes, TaskError> {
    let input: Value = task.json()?;
    work(500).await;
    if task.attempt() == 1 {
        return Err(TaskError::new("gateway_timeout", "the card network did not answer"));
    }
    TaskError::json(
        &json!({ "amount": input.get("amount"), "receipt": format!("r-{}", text(&input, "order")) }),
    )
}

async fn review(task: Task) -> Result<Bytes, TaskError> {
    let input: Value = task.json()?;
    work(900).await;
    TaskError::json(&json!({ "approved": true, "total": input.get("total") }))
}

async fn ship(task: Task) -> Result<Bytes, TaskError> {
    let input: Value = task.json()?;
    work(650).await;
    TaskError::json(&json!({ "tracking": format!("DB-{}", text(&input, "hold").to_uppercase()) }))
}

async fn notify(task: Task) -> Result<Bytes, TaskError> {
    let input: Value = task.json()?;
    work(250).await;
    TaskError::json(&json!({ "sent": text(&input, "text") }))
}

// ---- the board

/// One task as drawn.
struct Row {
    task: String,
    status: String,
    attempt: u64,
    worker: String,
    note: String,
    /// When its attempt began, and how long it took.
    began: Option<Instant>,
    took: String,
    started_at: String,
}

/// The run as drawn: on a terminal in place, elsewhere as one line per event.
struct Board {
    rows: Vec<Row>,
    style: Style,
    live: bool,
    drawn: bool,
    frame: usize,
}

impl Board {
    fn new(run: &Value, style: Style) -> Self {
        let tasks = run.get("tasks").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        let row = |task: &Value| Row {
            task: text(task, "task").to_owned(),
            status: "pending".to_owned(),
            attempt: 1,
            worker: String::new(),
            note: String::new(),
            began: None,
            took: String::new(),
            started_at: String::new(),
        };
        // A row that wraps cannot be drawn over.
        let live = std::io::stdout().is_terminal()
            && terminal_width() >= 72
            && std::env::var_os("TERM").is_none_or(|t| t != "dumb");
        Self { rows: tasks.iter().map(row).collect(), style, live, drawn: false, frame: 0 }
    }

    /// Draws until the run has ended; returns its status.
    async fn follow(&mut self, mut events: Watch) -> Result<String, Failure> {
        let mut frames = tokio::time::interval(FRAME);
        loop {
            tokio::select! {
                event = events.next() => {
                    let Some(event) = event? else {
                        return Err(Failure::failed("the events ended before the run did"));
                    };
                    self.take(&event);
                    if !self.live {
                        output::line(&format!("  {}", watch::line(&event, self.style)));
                    }
                    let status = event.kind.strip_prefix("run.").filter(|s| start::is_terminal(s));
                    if let Some(status) = status {
                        self.draw();
                        return Ok(status.to_owned());
                    }
                }
                _ = frames.tick(), if self.live => self.frame += 1,
            }
            self.draw();
        }
    }

    fn take(&mut self, event: &Event) {
        let value = event.value();
        let Some(row) = self.rows.iter_mut().find(|r| r.task == text(&value, "task")) else { return };
        let status = event.kind.strip_prefix("task.").unwrap_or(&event.kind);
        let time = text(&value, "time");
        row.attempt = value.get("attempt").and_then(Value::as_u64).unwrap_or(row.attempt);
        match status {
            "started" => {
                row.began = Some(Instant::now());
                time.clone_into(&mut row.started_at);
                text(&value, "worker").clone_into(&mut row.worker);
                row.took.clear();
            }
            "queued" => row.took.clear(),
            _ => {
                row.began = None;
                row.took = output::took(&row.started_at, time);
            }
        }
        let error = output::error_text(&value);
        match status {
            "retrying" | "failed" | "timed_out" => row.note = error,
            "completed" => row.note = value.get("output").map(Value::to_string).unwrap_or_default(),
            "skipped" => "its condition did not hold".clone_into(&mut row.note),
            _ => {}
        }
        if status == "started" { "running" } else { status }.clone_into(&mut row.status);
    }

    fn draw(&mut self) {
        if !self.live {
            return;
        }
        let width = terminal_width();
        let mut screen = String::new();
        if self.drawn {
            // Writing to a string does not fail.
            let _ = write!(screen, "\x1b[{}A", self.rows.len());
        }
        for row in &self.rows {
            let _ = writeln!(screen, "\r\x1b[2K{}", self.row(row, width));
        }
        self.drawn = true;
        let mut out = std::io::stdout().lock();
        // A terminal that went away is noticed elsewhere.
        let _ = out.write_all(screen.as_bytes()).and_then(|()| out.flush());
    }

    fn row(&self, row: &Row, width: usize) -> String {
        let (mark, color) = match row.status.as_str() {
            "completed" => ("✔", GREEN),
            "failed" | "timed_out" => ("✘", RED),
            "running" => (SPINNER[self.frame % SPINNER.len()], CYAN),
            "retrying" => ("↻", YELLOW),
            "skipped" => ("–", DIM),
            "cancelled" => ("✘", YELLOW),
            _ => ("·", DIM),
        };
        let took = match row.began {
            Some(began) => output::micros(i64::try_from(began.elapsed().as_micros()).unwrap_or(i64::MAX)),
            None => row.took.clone(),
        };
        let attempt = if row.attempt > 1 { format!("attempt {}", row.attempt) } else { String::new() };
        let fixed =
            format!("{:<10} {:<10} {took:>7}  {:<10}  {attempt:<9}", row.task, row.status, row.worker);
        let room = width.saturating_sub(fixed.chars().count() + 7);
        let status = format!("{:<10}", row.status);
        let note = if room < 12 { String::new() } else { output::cut(&row.note, room) };
        format!(
            "  {} {:<10} {} {took:>7}  {:<10}  {attempt:<9} {}",
            self.style.paint(color, mark),
            row.task,
            self.style.paint(color, &status),
            row.worker,
            self.style.paint(DIM, &note),
        )
    }
}

fn terminal_width() -> usize {
    rustix::termios::tcgetwinsize(std::io::stdout()).map_or(80, |size| usize::from(size.ws_col.max(40)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_board_shows_each_task_as_its_events_say() {
        let run = json!({ "tasks": [{ "task": "reserve" }, { "task": "charge" }] });
        let mut board = Board::new(&run, Style { on: false });
        let mut take = |kind: &str, data: Value| {
            board.take(&Event { id: String::new(), kind: kind.into(), data: data.to_string() });
        };
        let at = |s: u32| format!("2026-01-01T00:00:0{s}.000000Z");
        take("task.started", json!({ "task": "reserve", "time": at(0), "worker": "w", "attempt": 1 }));
        take(
            "task.completed",
            json!({ "task": "reserve", "time": at(2), "attempt": 1, "output": { "n": 1 } }),
        );
        take("task.started", json!({ "task": "charge", "time": at(2), "worker": "p", "attempt": 1 }));
        let error = json!({ "code": "gateway_timeout", "message": "no answer", "task": "charge" });
        take("task.retrying", json!({ "task": "charge", "time": at(3), "attempt": 1, "error": error }));
        take("task.queued", json!({ "task": "charge", "time": at(4), "attempt": 2 }));
        let lines: Vec<_> = board.rows.iter().map(|r| board.row(r, 100)).collect();
        assert_eq!(
            lines[0].trim_end(),
            r#"  ✔ reserve    completed    2.0 s  w                     {"n":1}"#
        );
        assert_eq!(
            lines[1].trim_end(),
            "  · charge     queued              p           attempt 2 gateway_timeout: no answer"
        );
    }
}
