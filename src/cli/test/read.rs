//! A test file, read: the workflow and its cases. docs/guide/testing.md describes the form.
//!
//! To add a key: its name in the list of its map, its line where that map is read, a line in the guide.

use super::judge::Expect;
use crate::app::rehearse::{Answer, Answers, Deed, Reply, Script, prepared, without_numbers};
use crate::model::command::{Action, Command, ReportedFailure};
use crate::model::document::{
    self, Document, Faults, Fields, Format, Kind, Node, duplicate_keys, join, parse_tree, shown, text,
};
use crate::model::error::Fault;
use crate::model::ids::{RunId, TaskPath};
use crate::model::nearest::did_you_mean;
use crate::model::plan::{Plan, Role, TaskKind};
use crate::model::run::RunStatus;
use crate::model::time::{Span, Timestamp};
use crate::model::{instant, json};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};

/// When cases begin unless they say otherwise: 2030-01-01T00:00:00Z.
const BEGINNING: Timestamp = Timestamp::from_millis(1_893_456_000_000);

const FILE: [&str; 2] = ["workflow", "cases"];
const CASE: [&str; 8] = ["name", "input", "at", "start_at", "tasks", "signals", "control", "expect"];
const ANSWER: [&str; 5] = ["output", "fail", "untaken", "takes", "silent"];
const FAIL: [&str; 4] = ["code", "message", "retryable", "retry_after"];
const SIGNAL: [&str; 5] = ["name", "payload", "id", "at", "refused"];
const CONTROL: [&str; 9] =
    ["action", "at", "task", "output", "error", "input", "compensate", "force", "refused"];
const ERROR: [&str; 2] = ["code", "message"];
const EXPECT: [&str; 9] =
    ["status", "output", "error", "tasks", "inputs", "outputs", "order", "not_run", "duration"];
const EXPECT_ERROR: [&str; 3] = ["code", "message", "task"];
const STATUSES: [&str; 10] = [
    "pending",
    "queued",
    "running",
    "waiting",
    "retrying",
    "completed",
    "failed",
    "skipped",
    "cancelled",
    "timed_out",
];

/// A file of cases.
#[derive(Debug)]
pub(super) struct Suite {
    pub(super) plan: Plan,
    pub(super) cases: Vec<Case>,
}

/// One run to be played.
#[derive(Debug)]
pub(super) struct Case {
    pub(super) name: String,
    pub(super) line: Option<u32>,
    pub(super) script: Script,
    pub(super) expect: Expect,
}

/// Name, text and form of a document by the path that a file gives, or why it cannot be had.
type Load = Result<(String, Vec<u8>, Format), String>;

/// Reads a file. `Err` holds every fault found, by line, and is never empty.
pub(super) fn suite(
    bytes: &[u8],
    format: Format,
    load: impl FnOnce(&str) -> Load,
) -> Result<Suite, Vec<Fault>> {
    let root = document::tree(bytes, format).map_err(|fault| vec![fault])?;
    let mut faults = Faults::default();
    duplicate_keys(&root, "", &mut faults.0);
    let suite = read(&root, load, &mut faults);
    let mut faults = faults.0;
    faults.sort_by(|a, b| (a.line, &a.path, &a.message).cmp(&(b.line, &b.path, &b.message)));
    match suite {
        Some(suite) if faults.is_empty() => Ok(suite),
        _ => Err(faults),
    }
}

fn read(root: &Node, load: impl FnOnce(&str) -> Load, faults: &mut Faults) -> Option<Suite> {
    let fields = Fields::of(root, "", &FILE, faults)?;
    let document = workflow(&fields, load, faults);
    let Some(node) = fields.get("cases") else {
        faults.add("cases", None, "the file has no cases; 'cases' is a list of at least one");
        return None;
    };
    let Kind::List(items) = &node.kind else {
        faults.wrong("cases", node, "a list of cases");
        return None;
    };
    if items.is_empty() {
        faults.add("cases", node.at(), "there is no case; give at least one");
    }
    same_names(items, faults);
    let plan = prepared(document?.plan);
    let names = Names::of(&plan);
    let read = |(n, item)| {
        let path = format!("cases[{n}]");
        Reader { plan: &plan, names: &names, path: &path }.case(item, faults)
    };
    let cases = items.iter().enumerate().filter_map(read).collect();
    Some(Suite { plan, cases })
}

/// Complains of cases that are called as one before, whatever else is wrong with either.
fn same_names(cases: &[Node], faults: &mut Faults) {
    let mut seen = BTreeSet::new();
    for (n, case) in cases.iter().enumerate() {
        let Kind::Map(entries) = &case.kind else { continue };
        let Some(name) = entries.iter().find(|e| e.key == "name").map(|e| &e.value) else { continue };
        if let Kind::String(text) = &name.kind
            && !seen.insert(text)
        {
            let message = format!("another case is called {} too", shown(text));
            faults.add(&join(&format!("cases[{n}]"), "name"), name.at(), message);
        }
    }
}

fn workflow(fields: &Fields<'_>, load: impl FnOnce(&str) -> Load, faults: &mut Faults) -> Option<Document> {
    let Some(node) = fields.get("workflow") else {
        let message = "the file names no workflow; 'workflow' is the path to a document, relative to this file, or a document";
        faults.add("workflow", None, message);
        return None;
    };
    // The document of another file has lines of its own.
    let (result, file) = match &node.kind {
        Kind::Map(_) => (parse_tree(node), None),
        Kind::String(path) => match load(path) {
            Ok((name, bytes, format)) => (document::parse(&bytes, format), Some(name)),
            Err(message) => {
                faults.add("workflow", node.at(), message);
                return None;
            }
        },
        Kind::Null | Kind::Bool(_) | Kind::Number(_) | Kind::List(_) => {
            faults.wrong("workflow", node, "text (the path to a document) or a document");
            return None;
        }
    };
    match result {
        Ok(document) => Some(document),
        Err(found) => {
            for fault in found {
                match &file {
                    None => {
                        let path = match fault.path.as_str() {
                            "" => "workflow".to_owned(),
                            path => format!("workflow.{path}"),
                        };
                        faults.0.push(Fault { path, ..fault });
                    }
                    Some(file) => {
                        let line = fault.line.map(|l| format!(":{l}")).unwrap_or_default();
                        let at =
                            if fault.path.is_empty() { String::new() } else { format!("{}: ", fault.path) };
                        faults.add("workflow", node.at(), format!("{file}{line}: {at}{}", fault.message));
                    }
                }
            }
            None
        }
    }
}

/// What tasks of a plan may be called.
struct Names {
    /// Without numbers.
    paths: BTreeSet<String>,
    ids: BTreeSet<String>,
    types: BTreeSet<String>,
    /// Some types are known only when the run comes to them.
    any_type: bool,
}

impl Names {
    fn of(plan: &Plan) -> Self {
        let mut names =
            Self { paths: BTreeSet::new(), ids: BTreeSet::new(), types: BTreeSet::new(), any_type: false };
        for task in &plan.tasks {
            let mut path = task.id.as_str().to_owned();
            let mut at = task;
            while let Some(parent) = at.parent.and_then(|p| plan.tasks.get(p as usize)) {
                path = format!("{}/{path}", parent.id.as_str());
                at = parent;
            }
            names.paths.insert(path);
            if task.role != Role::Compensation {
                names.ids.insert(task.id.as_str().to_owned());
            }
            match &task.kind {
                TaskKind::Worker(task_type) => {
                    names.types.insert(task_type.as_str().to_owned());
                }
                TaskKind::WorkerOf(_) => names.any_type = true,
                // A name that is no expression stands there as it is.
                TaskKind::Workflow(child) => match serde_json::from_str(&child.workflow.source()) {
                    Ok(name) if child.workflow.roots().is_empty() => drop(names.types.insert(name)),
                    Ok(_) | Err(_) => names.any_type = true,
                },
                TaskKind::Group(_)
                | TaskKind::Wait(_)
                | TaskKind::Set(_)
                | TaskKind::Fail { .. }
                | TaskKind::Finish { .. } => {}
            }
        }
        names
    }

    /// Whether a task may have this path.
    fn path(&self, path: &str, at: &str, line: Option<u32>, faults: &mut Faults) -> bool {
        let known = TaskPath::parse(path).is_ok() && self.paths.contains(&without_numbers(path));
        if !known {
            let hint = did_you_mean(path, self.paths.iter().map(String::as_str));
            faults.add(at, line, format!("the workflow has no task {}{hint}", shown(path)));
        }
        known
    }

    /// Whether answers may be given under this name.
    fn answers(&self, name: &str, at: &str, line: Option<u32>, faults: &mut Faults) {
        let path = TaskPath::parse(name).is_ok() && self.paths.contains(&without_numbers(name));
        if path || self.any_type || self.ids.contains(name) || self.types.contains(name) {
            return;
        }
        let known = self.paths.iter().chain(&self.ids).chain(&self.types).map(String::as_str);
        let hint = did_you_mean(name, known);
        let message =
            format!("the workflow has no task with the path, id, type or workflow {}{hint}", shown(name));
        faults.add(at, line, message);
    }
}

/// Reads one case; everything that is wrong becomes a fault.
struct Reader<'a> {
    plan: &'a Plan,
    names: &'a Names,
    path: &'a str,
}

impl Reader<'_> {
    fn case(&self, node: &Node, faults: &mut Faults) -> Option<Case> {
        let fields = Fields::of(node, self.path, &CASE, faults)?;
        let name = required(&fields, "name", node, faults);
        let input = fields.get("input").and_then(|n| value(n, &fields.path("input"), faults));
        self.input(input.as_ref(), &fields, node, faults);
        let at = time(&fields, "at", faults).unwrap_or(BEGINNING);
        let start_at = time(&fields, "start_at", faults);
        let answers = fields.get("tasks").map(|n| self.answers(n, &fields.path("tasks"), faults));
        let signals = list(&fields, "signals", faults, signal);
        let control = list(&fields, "control", faults, |node, path, faults| self.deed(node, path, faults));
        let expect = fields.get("expect").and_then(|n| self.expect(n, &fields.path("expect"), faults));
        if fields.get("expect").is_none() {
            let message = "the case does not say what it expects; at least 'expect: {status: completed}'";
            faults.add(&fields.path("expect"), node.at(), message);
        }
        let script = Script { input, at, start_at, answers: answers.unwrap_or_default(), signals, control };
        Some(Case { name: name?.to_owned(), line: node.at(), script, expect: expect? })
    }

    /// As a start would be refused.
    fn input(&self, input: Option<&Bytes>, fields: &Fields<'_>, node: &Node, faults: &mut Faults) {
        let Some(schema) = &self.plan.input_schema else { return };
        let line = fields.get("input").unwrap_or(node).at();
        for fault in schema.check(input.map_or(b"null", |json| json)) {
            let at = if fault.path.is_empty() { String::new() } else { format!("{}: ", fault.path) };
            let message = format!("does not match the schema of the workflow: {at}{}", fault.message);
            faults.add(&fields.path("input"), line, message);
        }
    }

    fn answers(&self, node: &Node, path: &str, faults: &mut Faults) -> BTreeMap<String, Answers> {
        let mut all = BTreeMap::new();
        let Kind::Map(entries) = &node.kind else {
            faults.wrong(path, node, "a map from path, id, type or workflow to answers");
            return all;
        };
        for entry in entries {
            let path = join(path, &entry.key);
            self.names.answers(&entry.key, &path, Some(entry.line).filter(|l| *l > 0), faults);
            let answers = match &entry.value.kind {
                Kind::List(items) if items.is_empty() => {
                    faults.add(&path, entry.value.at(), "there is no answer in the list; give at least one");
                    continue;
                }
                Kind::List(items) => {
                    let each = items.iter().enumerate();
                    Answers::Each(
                        each.filter_map(|(n, i)| answer(i, &format!("{path}[{n}]"), faults)).collect(),
                    )
                }
                _ => match answer(&entry.value, &path, faults) {
                    Some(answer) => Answers::Always(answer),
                    None => continue,
                },
            };
            all.insert(entry.key.clone(), answers);
        }
        all
    }

    fn deed(&self, node: &Node, path: &str, faults: &mut Faults) -> Option<Deed> {
        let fields = Fields::of(node, path, &CONTROL, faults)?;
        let action = required(&fields, "action", node, faults)?;
        let allowed: &[&str] = match action {
            "pause" | "resume" | "retry" => &[],
            "cancel" => &["compensate", "force"],
            "rerun" => &["task", "input"],
            "skip" => &["task"],
            "complete" => &["task", "output"],
            "fail" => &["task", "error"],
            _ => {
                let known = ["pause", "resume", "cancel", "retry", "rerun", "skip", "complete", "fail"];
                let message = format!(
                    "there is no action {}{}; there are {}",
                    shown(action),
                    did_you_mean(action, known),
                    known.join(", ")
                );
                faults.add(&fields.path("action"), fields.get("action").and_then(Node::at), message);
                return None;
            }
        };
        for key in CONTROL.iter().filter(|k| !["action", "at", "refused"].contains(k)) {
            if let Some(node) = fields.get(key).filter(|_| !allowed.contains(key)) {
                faults.add(&fields.path(key), node.at(), format!("'{key}' does not go with {action}"));
            }
        }
        let json = |key: &str, faults: &mut Faults| {
            fields.get(key).and_then(|n| value(n, &fields.path(key), faults))
        };
        let command = match action {
            "pause" => Command::Pause,
            "resume" => Command::Resume,
            "retry" => Command::Retry,
            "cancel" => Command::Cancel {
                compensate: fields.boolean("compensate", faults).unwrap_or(false),
                force: fields.boolean("force", faults).unwrap_or(false),
            },
            _ => {
                let task = required(&fields, "task", node, faults)?;
                let line = fields.get("task").and_then(Node::at);
                if !self.names.path(task, &fields.path("task"), line, faults) {
                    return None;
                }
                let path = TaskPath::parse(task).ok()?;
                match action {
                    "rerun" => Command::Rerun { path, input: json("input", faults) },
                    "skip" => Command::Act { path, action: Action::Skip },
                    "complete" => {
                        let output = json("output", faults).unwrap_or(Bytes::from_static(b"null"));
                        Command::Act { path, action: Action::Complete(output) }
                    }
                    _ => {
                        let error = fields
                            .get("error")
                            .and_then(|n| Fields::of(n, &fields.path("error"), &ERROR, faults));
                        let mut of = |key: &str| {
                            error.as_ref().and_then(|e| e.text(key, faults)).unwrap_or_default().to_owned()
                        };
                        let failure = ReportedFailure {
                            code: of("code"),
                            message: of("message"),
                            ..ReportedFailure::default()
                        };
                        Command::Act { path, action: Action::Fail(failure) }
                    }
                }
            }
        };
        let refused = fields.boolean("refused", faults).unwrap_or(false);
        let at = fields.duration("at", faults);
        Some(Deed { at, command, name: format!("{path} ({action})"), refused })
    }

    fn expect(&self, node: &Node, path: &str, faults: &mut Faults) -> Option<Expect> {
        let fields = Fields::of(node, path, &EXPECT, faults)?;
        let word = required(&fields, "status", node, faults);
        let status = word.and_then(|word| {
            let found = RunStatus::ALL.into_iter().find(|s| s.name() == word);
            if found.is_none() {
                let known = RunStatus::ALL.map(RunStatus::name);
                let message =
                    format!("a run has no status {}; it is one of {}", shown(word), known.join(", "));
                faults.add(&fields.path("status"), fields.get("status").and_then(Node::at), message);
            }
            found
        });
        let mut error = Vec::new();
        if let Some(node) = fields.get("error")
            && let Some(of) = Fields::of(node, &fields.path("error"), &EXPECT_ERROR, faults)
        {
            for key in EXPECT_ERROR {
                if let Some(text) = of.text(key, faults) {
                    error.push((key.to_owned(), text.to_owned()));
                }
            }
            if let Some((_, task)) = error.iter().find(|(key, _)| key == "task") {
                let line = of.get("task").and_then(Node::at);
                self.names.path(task, &of.path("task"), line, faults);
            }
        }
        let mut tasks = Vec::new();
        for (task, node) in self.by_path(&fields, "tasks", faults) {
            let path = join(&fields.path("tasks"), &task);
            let Some(status) = text(node, &path, faults) else { continue };
            if STATUSES.contains(&status) {
                tasks.push((task, status.to_owned()));
            } else {
                let message =
                    format!("a task has no status {}; it is one of {}", shown(status), STATUSES.join(", "));
                faults.add(&path, node.at(), message);
            }
        }
        let values = |key: &str, faults: &mut Faults| -> Vec<(String, Node)> {
            self.by_path(&fields, key, faults).into_iter().map(|(task, node)| (task, node.clone())).collect()
        };
        let (inputs, outputs) = (values("inputs", faults), values("outputs", faults));
        let paths = |key: &str, faults: &mut Faults| -> Vec<String> {
            let mut known = Vec::new();
            for (n, (task, node)) in fields.texts(key, faults).into_iter().enumerate() {
                if self.names.path(task, &format!("{}[{n}]", fields.path(key)), node.at(), faults) {
                    known.push(task.to_owned());
                }
            }
            known
        };
        let (order, not_run) = (paths("order", faults), paths("not_run", faults));
        let duration = fields.duration("duration", faults);
        let output = fields.get("output").cloned();
        Some(Expect { status: status?, output, error, tasks, inputs, outputs, order, not_run, duration })
    }

    /// The entries of a map from paths.
    fn by_path<'n>(&self, fields: &Fields<'n>, key: &str, faults: &mut Faults) -> Vec<(String, &'n Node)> {
        let Some(node) = fields.get(key) else { return Vec::new() };
        let path = fields.path(key);
        let Kind::Map(entries) = &node.kind else {
            faults.wrong(&path, node, "a map from paths of tasks");
            return Vec::new();
        };
        let mut all = Vec::new();
        for entry in entries {
            let line = Some(entry.line).filter(|l| *l > 0);
            if self.names.path(&entry.key, &join(&path, &entry.key), line, faults) {
                all.push((entry.key.clone(), &entry.value));
            }
        }
        all
    }
}

/// The items of a list, each read by `one`.
fn list<T>(
    fields: &Fields<'_>,
    key: &str,
    faults: &mut Faults,
    mut one: impl FnMut(&Node, &str, &mut Faults) -> Option<T>,
) -> Vec<T> {
    let Some(node) = fields.get(key) else { return Vec::new() };
    let path = fields.path(key);
    let Kind::List(items) = &node.kind else {
        faults.wrong(&path, node, "a list");
        return Vec::new();
    };
    let read = |(n, item): (usize, &Node)| one(item, &format!("{path}[{n}]"), faults);
    items.iter().enumerate().filter_map(read).collect()
}

fn answer(node: &Node, path: &str, faults: &mut Faults) -> Option<Answer> {
    let fields = Fields::of(node, path, &ANSWER, faults)?;
    let untaken = fields.boolean("untaken", faults).unwrap_or(false);
    let takes = fields.duration("takes", faults).unwrap_or(Span(0));
    let silent = fields.boolean("silent", faults).unwrap_or(false);
    let reply = match (fields.get("output"), fields.get("fail"), untaken) {
        (Some(node), None, false) => {
            Reply::Output(value(node, &fields.path("output"), faults).unwrap_or(Bytes::from_static(b"null")))
        }
        (None, Some(node), false) => Reply::Fail(failure(node, &fields.path("fail"), faults)?),
        (None, None, true) => Reply::Untaken,
        _ => {
            let message = "an answer has exactly one of output, fail and 'untaken: true'";
            faults.add(path, node.at(), message);
            return None;
        }
    };
    Some(Answer { reply, takes, silent })
}

fn failure(node: &Node, path: &str, faults: &mut Faults) -> Option<ReportedFailure> {
    let fields = Fields::of(node, path, &FAIL, faults)?;
    let message = fields.text("message", faults).unwrap_or_default().to_owned();
    let retryable = fields.boolean("retryable", faults).unwrap_or(true);
    let retry_after = fields.duration("retry_after", faults);
    let code = required(&fields, "code", node, faults)?.to_owned();
    Some(ReportedFailure { code, message, retryable, retry_after })
}

fn signal(node: &Node, path: &str, faults: &mut Faults) -> Option<Deed> {
    let fields = Fields::of(node, path, &SIGNAL, faults)?;
    let payload = fields.get("payload").and_then(|n| value(n, &fields.path("payload"), faults));
    let id = fields.text("id", faults).map(str::to_owned);
    let at = fields.duration("at", faults);
    let refused = fields.boolean("refused", faults).unwrap_or(false);
    let name = required(&fields, "name", node, faults)?;
    // Names of signals follow the rule of ids of runs.
    if let Err(e) = RunId::new(name) {
        let message = format!("the signal name {} is not valid: {}", shown(name), e.rule);
        faults.add(&fields.path("name"), fields.get("name").and_then(Node::at), message);
    }
    let command = Command::Signal { name: name.to_owned(), id, payload };
    Some(Deed { at, command, name: format!("{path} (signal {name:?})"), refused })
}

/// Text that has to be there.
fn required<'n>(fields: &Fields<'n>, key: &str, node: &Node, faults: &mut Faults) -> Option<&'n str> {
    if fields.get(key).is_none() {
        faults.add(&fields.path(key), node.at(), format!("'{key}' is required"));
    }
    fields.text(key, faults).filter(|text| {
        if text.is_empty() {
            faults.add(&fields.path(key), node.at(), "must not be empty");
        }
        !text.is_empty()
    })
}

fn time(fields: &Fields<'_>, key: &str, faults: &mut Faults) -> Option<Timestamp> {
    match instant::parse(fields.text(key, faults)?) {
        Ok(time) => Some(time),
        Err(message) => {
            faults.add(&fields.path(key), fields.get(key).and_then(Node::at), message);
            None
        }
    }
}

/// A value as JSON text; none is null.
fn value(node: &Node, path: &str, faults: &mut Faults) -> Option<Bytes> {
    if node.kind == Kind::Null {
        return None;
    }
    let mut text = Vec::new();
    node.write_json(&mut text);
    if let Err(message) = json::check(&text) {
        faults.add(path, node.at(), message);
    }
    Some(text.into())
}
