//! What a person reads: tables, times, colours; and where what nobody reads is kept meanwhile. With `--output json`, the server's JSON as it came.

use super::Failure;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// How to print an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Output {
    /// For people.
    Table,
    /// For programs.
    Json,
}

/// Why standard output did not take all that was printed.
static LOST: OnceLock<String> = OnceLock::new();

/// Prints a line of what was asked for. A reader that went away (`| head`) is no failure; what else keeps it from being
/// written is kept for [`lost`].
pub(super) fn line(text: &str) {
    print(&mut std::io::stdout().lock(), text, &LOST);
}

fn print(out: &mut impl std::io::Write, text: &str, lost: &OnceLock<String>) {
    if let Err(error) = writeln!(out, "{text}").and_then(|()| out.flush())
        && error.kind() != std::io::ErrorKind::BrokenPipe
    {
        // The first reason counts.
        let _ = lost.set(error.to_string());
    }
}

/// Why not all that was asked for was printed, if so.
pub(super) fn lost() -> Option<&'static str> {
    LOST.get().map(String::as_str)
}

/// Prints a value over several lines.
pub(super) fn json(value: &Value) {
    line(&serde_json::to_string_pretty(value).unwrap_or_default());
}

/// Tells what went wrong.
pub(super) fn error(message: &str) {
    let style = Style { on: colors(&std::io::stderr()) };
    let _ = writeln!(std::io::stderr().lock(), "{} {message}", style.paint(RED, "error:"));
}

/// A fault on one line: `line 3: tasks.a: no type`, without what is not known.
pub(super) fn fault(line: Option<u64>, path: &str, message: &str) -> String {
    let line = line.map(|l| format!("line {l}: ")).unwrap_or_default();
    let path = if path.is_empty() { String::new() } else { format!("{path}: ") };
    format!("{line}{path}{message}")
}

/// Tells something beside what was asked for.
pub(super) fn note(message: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{message}");
}

/// Whether colours are wanted there.
pub(super) fn colors(stream: &impl std::io::IsTerminal) -> bool {
    stream.is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty())
}

/// SGR codes.
pub(super) const RED: &str = "31";
pub(super) const GREEN: &str = "32";
pub(super) const YELLOW: &str = "33";
pub(super) const CYAN: &str = "36";
pub(super) const DIM: &str = "2";
pub(super) const BOLD: &str = "1";

/// Colours, or none.
#[derive(Debug, Clone, Copy)]
pub(super) struct Style {
    pub(super) on: bool,
}

impl Style {
    /// The style of standard output.
    pub(super) fn stdout() -> Self {
        Self { on: colors(&std::io::stdout()) }
    }

    pub(super) fn paint(self, code: &str, text: &str) -> String {
        if self.on { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }

    /// A status in its colour.
    pub(super) fn status(self, status: &str) -> String {
        self.paint(status_color(status), status)
    }
}

pub(super) fn status_color(status: &str) -> &'static str {
    match status {
        "completed" => GREEN,
        "failed" | "timed_out" => RED,
        "running" | "queued" => CYAN,
        "retrying" | "cancelled" | "waiting" | "paused" => YELLOW,
        _ => DIM,
    }
}

/// Rows under a heading, columns as wide as they need to be. Colours do not count as width.
#[derive(Debug, Default)]
pub(super) struct Table {
    rows: Vec<Vec<(String, &'static str)>>,
}

impl Table {
    pub(super) fn new(heading: &[&str]) -> Self {
        Self { rows: vec![heading.iter().map(|h| ((*h).to_owned(), DIM)).collect()] }
    }

    /// Adds a row. A cell under the heading STATUS is coloured by its word.
    pub(super) fn row(&mut self, cells: Vec<String>) {
        let status = self.rows[0].iter().position(|(h, _)| h == "STATUS");
        let colored = |(n, cell): (usize, String)| {
            let color = if Some(n) == status { status_color(&cell) } else { "" };
            (cell, color)
        };
        self.rows.push(cells.into_iter().enumerate().map(colored).collect());
    }

    pub(super) fn print(&self, style: Style) {
        for text in self.lines(style) {
            line(&text);
        }
    }

    fn lines(&self, style: Style) -> Vec<String> {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width =
            |n: usize| self.rows.iter().filter_map(|r| r.get(n)).map(|(c, _)| c.chars().count()).max();
        let widths: Vec<_> = (0..columns).map(|n| width(n).unwrap_or(0)).collect();
        let cell = |(n, (text, color)): (usize, &(String, &str))| {
            let pad = " ".repeat(widths[n] - text.chars().count());
            let text = if color.is_empty() { text.clone() } else { style.paint(color, text) };
            format!("{text}{pad}")
        };
        let line = |row: &Vec<(String, &str)>| {
            row.iter().enumerate().map(cell).collect::<Vec<_>>().join("  ").trim_end().to_owned()
        };
        self.rows.iter().map(line).collect()
    }
}

/// Text at `key`; empty if there is none.
pub(super) fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value.get(key).and_then(Value::as_str).unwrap_or("")
}

/// The time of day of an RFC 3339 time, to the millisecond.
pub(super) fn time_of_day(time: &str) -> String {
    time.get(11..23).unwrap_or(time).to_owned()
}

/// Date and time of an RFC 3339 time, to the second.
pub(super) fn date_time(time: &str) -> String {
    time.get(..19).map_or_else(|| time.to_owned(), |t| t.replace('T', " "))
}

/// So many of something, for people: `1 record`, `2 records`.
pub(super) fn count(n: u64, what: &str) -> String {
    let s = if n == 1 { "" } else { "s" };
    format!("{n} {what}{s}")
}

/// From one RFC 3339 time to another, for people; empty if one of them is missing.
pub(super) fn took(from: &str, to: &str) -> String {
    match (from.parse::<jiff::Timestamp>(), to.parse::<jiff::Timestamp>()) {
        (Ok(from), Ok(to)) => micros(to.as_microsecond().saturating_sub(from.as_microsecond())),
        _ => String::new(),
    }
}

/// A length of time in microseconds, for people.
pub(super) fn micros(us: i64) -> String {
    let ms = us.max(0) as f64 / 1_000.0;
    let secs = us.max(0) / 1_000_000;
    match secs {
        0 if ms < 10.0 => format!("{ms:.1} ms"),
        0 => format!("{ms:.0} ms"),
        1..60 => format!("{:.1} s", ms / 1_000.0),
        60..3_600 => format!("{} m {:02} s", secs / 60, secs % 60),
        _ => format!("{} h {:02} m", secs / 3_600, secs / 60 % 60),
    }
}

/// A run with its tasks, for people.
pub(super) fn run(run: &Value) {
    let style = Style::stdout();
    let field = |name: &str, value: String| {
        if !value.is_empty() {
            line(&format!("{} {value}", style.paint(DIM, &format!("{name:<9}"))));
        }
    };
    field("run", style.paint(BOLD, text(run, "id")));
    let version = run.get("version").map(Value::to_string).unwrap_or_default();
    field("workflow", format!("{} (version {version})", text(run, "workflow")));
    field("status", style.status(text(run, "status")));
    let ending = run.get("ending").unwrap_or(&Value::Null);
    if ending.is_object() {
        let because =
            Some(error_text(ending)).filter(|e| !e.is_empty()).map_or_else(String::new, |e| format!(": {e}"));
        field("ending", format!("{}{because}", style.status(text(ending, "status"))));
    }
    field("created", date_time(text(run, "created_at")));
    if text(run, "started_at").is_empty() {
        field("begins", date_time(text(run, "start_at")));
    }
    field("took", took(text(run, "started_at"), text(run, "ended_at")));
    for key in ["input", "output"] {
        field(key, run.get(key).filter(|v| !v.is_null()).map(Value::to_string).unwrap_or_default());
    }
    field("error", error_text(run));
    let tasks = run.get("tasks").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    if tasks.is_empty() {
        return;
    }
    line("");
    let mut table = Table::new(&["TASK", "TYPE", "STATUS", "ATTEMPTS", "TOOK", "WORKER", "RESULT"]);
    for task in by_path(tasks) {
        let attempts = task.get("attempts").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        let last = attempts.last().unwrap_or(&Value::Null);
        let result = match error_text(task) {
            error if !error.is_empty() => error,
            _ if text(task, "status") == "queued" => wanted(task),
            _ => match waiting_for(task) {
                Some(what) => what,
                None => task.get("output").filter(|v| !v.is_null()).map(Value::to_string).unwrap_or_default(),
            },
        };
        table.row(vec![
            text(task, "task").to_owned(),
            text(task, "type").to_owned(),
            text(task, "status").to_owned(),
            if attempts.is_empty() { String::new() } else { attempts.len().to_string() },
            took(text(last, "started_at"), text(last, "ended_at")),
            match text(last, "run") {
                "" => text(last, "worker").to_owned(),
                child => format!("run {child}"),
            },
            cut(&result, 60),
        ]);
    }
    table.print(style);
    let more = text(run, "tasks_cursor");
    if !more.is_empty() {
        note(&format!("more tasks: GET /v1/runs/{}/tasks?cursor={more}", text(run, "id")));
    }
}

/// What a worker must have to be given a task; empty if any will do.
fn wanted(task: &Value) -> String {
    let labels = task.get("labels").and_then(Value::as_object);
    let labels: Vec<String> = labels
        .into_iter()
        .flatten()
        .map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default()))
        .collect();
    if labels.is_empty() { String::new() } else { format!("waits for a worker with {}", labels.join(", ")) }
}

/// What a task waits for, e.g. `waits for signal approved`.
fn waiting_for(task: &Value) -> Option<String> {
    let (what, name) = task.get("waiting_for")?.as_object()?.iter().next()?;
    let name = name.as_str().unwrap_or_default();
    Some(match what.as_str() {
        "until" => format!("waits until {}", date_time(name)),
        "child" => format!("waits for run {name}"),
        "concurrency" => format!("waits for a slot of {name}"),
        what => format!("waits for {what} {name}"),
    })
}

/// Tasks with what is inside them right behind them, each in the order in which it came.
fn by_path(tasks: &[Value]) -> Vec<&Value> {
    let known: BTreeSet<&str> = tasks.iter().map(|task| text(task, "task")).collect();
    let mut inside: BTreeMap<&str, Vec<&Value>> = BTreeMap::new();
    for task in tasks {
        let path = text(task, "task");
        // What it is inside of may stand on another page.
        let outer = path.rfind(['/', '[', '#']).map_or("", |end| &path[..end]);
        let outer = if known.contains(outer) { outer } else { "" };
        inside.entry(outer).or_default().push(task);
    }
    let mut ordered = Vec::with_capacity(tasks.len());
    let mut open: Vec<&Value> = inside.remove("").unwrap_or_default();
    open.reverse();
    while let Some(task) = open.pop() {
        ordered.push(task);
        open.extend(inside.remove(text(task, "task")).unwrap_or_default().into_iter().rev());
    }
    ordered
}

/// `code: message` of the error of a run, a task or an event; empty if it has none. The error of a run names the
/// task that it comes from.
pub(super) fn error_text(value: &Value) -> String {
    match value.get("error") {
        Some(error) if error.is_object() => {
            let (from, own) = (text(error, "task"), text(value, "task"));
            let place =
                if from.is_empty() || from == own { String::new() } else { format!(" (task {from})") };
            plain(&format!("{}: {}{place}", text(error, "code"), text(error, "message")))
        }
        _ => String::new(),
    }
}

/// Text of others without anything that a terminal would act on: no escape sequence, no forged line.
pub(super) fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

/// At most `width` characters of one line.
pub(super) fn cut(text: &str, width: usize) -> String {
    let line = plain(text.lines().next().unwrap_or(""));
    if line.chars().count() <= width && text.lines().count() <= 1 {
        return line;
    }
    let mut short: String = line.chars().take(width.saturating_sub(1)).collect();
    short.push('…');
    short
}

/// A directory of our own that goes with this value.
#[derive(Debug)]
pub(super) struct TempDir(PathBuf);

impl TempDir {
    pub(super) fn new(what: &str) -> Result<Self, Failure> {
        let random = getrandom::u64().map_err(|e| Failure::failed(e.to_string()))?;
        let path = std::env::temp_dir().join(format!("downbeat-{what}-{random:016x}"));
        std::fs::DirBuilder::new()
            .mode(0o700)
            .create(&path)
            .map_err(|e| Failure::failed(format!("{}: cannot be made: {e}", path.display())))?;
        Ok(Self(path))
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        // What cannot be removed stays for the system to clean up.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_with_and_without_colours() {
        let mut table = Table::new(&["TASK", "STATUS", "X"]);
        table.row(vec!["größer".into(), "completed".into(), "1".into()]);
        table.row(vec!["a".into(), "failed".into(), "2".into()]);
        let plain = table.lines(Style { on: false });
        assert_eq!(plain, ["TASK    STATUS     X", "größer  completed  1", "a       failed     2"]);
        let colored = table.lines(Style { on: true });
        assert!(colored[2].contains("\x1b[31mfailed\x1b[0m"), "{colored:?}");
    }

    #[test]
    fn what_is_inside_a_task_stands_behind_it() {
        let task = |path: &str| serde_json::json!({ "task": path });
        let tasks: Vec<Value> = [
            "a",
            "ship",
            "z",
            "ship[0]",
            "ship[1]",
            "ship[0]/pack",
            "ship[1]/pack",
            "poll#2",
            "ship/compensate",
        ]
        .iter()
        .map(|path| task(path))
        .collect();
        let order: Vec<_> = by_path(&tasks).into_iter().map(|t| text(t, "task")).collect();
        assert_eq!(
            order,
            [
                "a",
                "ship",
                "ship[0]",
                "ship[0]/pack",
                "ship[1]",
                "ship[1]/pack",
                "ship/compensate",
                "z",
                "poll#2"
            ]
        );
    }

    #[test]
    fn times_are_short() {
        assert_eq!(took("2026-01-01T00:00:00.000000Z", "2026-01-01T00:00:00.001500Z"), "1.5 ms");
        assert_eq!(took("2026-01-01T00:00:00Z", ""), "");
        assert_eq!((micros(999_000), micros(59_900_000)), ("999 ms".into(), "59.9 s".into()));
        assert_eq!((micros(61_000_000), micros(7_260_000_000)), ("1 m 01 s".into(), "2 h 01 m".into()));
        assert_eq!(time_of_day("2026-01-01T12:34:56.789012Z"), "12:34:56.789");
    }

    #[test]
    fn nothing_that_a_terminal_would_act_on_is_printed() {
        let value = serde_json::json!({"error": {"code": "x\u{1b}[2J", "message": "a\r\nb\u{7}"}});
        assert_eq!(error_text(&value), "x\u{fffd}[2J: a\u{fffd}\u{fffd}b\u{fffd}");
        assert_eq!(cut("a\u{1b}[31mb", 60), "a\u{fffd}[31mb");
    }

    #[test]
    fn long_and_multi_line_text_is_cut() {
        assert_eq!(cut("short", 5), "short");
        assert_eq!(cut("longer", 5), "long…");
        assert_eq!(cut("two\nlines", 9), "two…");
    }
}
