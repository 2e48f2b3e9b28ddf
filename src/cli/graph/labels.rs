//! What the picture of a task says, line by line.

use crate::model::duration;
use crate::model::expr::Template;
use crate::model::plan::{Plan, Role, TaskKind, Tolerate, Wait, When};

/// Longest line, in characters.
const MAX_LINE: usize = 48;

/// How a task looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Look {
    Worker,
    Workflow,
    Group,
    Wait,
    Set,
    Fail,
    Finish,
    Finally,
}

impl Look {
    pub(super) const ALL: [Self; 8] = [
        Self::Worker,
        Self::Workflow,
        Self::Group,
        Self::Wait,
        Self::Set,
        Self::Fail,
        Self::Finish,
        Self::Finally,
    ];

    pub(super) fn of(plan: &Plan, task: u32) -> Self {
        let task = &plan.tasks[task as usize];
        match &task.kind {
            _ if task.role == Role::Finally => Self::Finally,
            TaskKind::Worker(_) | TaskKind::WorkerOf(_) => Self::Worker,
            TaskKind::Workflow(_) => Self::Workflow,
            TaskKind::Group(_) => Self::Group,
            TaskKind::Wait(_) => Self::Wait,
            TaskKind::Set(_) => Self::Set,
            TaskKind::Fail { .. } => Self::Fail,
            TaskKind::Finish { .. } => Self::Finish,
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Worker => "worker",
            Self::Workflow => "workflow",
            Self::Group => "group",
            Self::Wait => "wait",
            Self::Set => "set",
            Self::Fail => "fail",
            Self::Finish => "finish",
            Self::Finally => "finally",
        }
    }

    /// Fill and border.
    pub(super) fn colors(self) -> (&'static str, &'static str) {
        match self {
            Self::Worker => ("#eef4ff", "#3b6fd4"),
            Self::Workflow => ("#f1ecfe", "#7048c6"),
            Self::Group => ("#fafafa", "#8a8f98"),
            Self::Wait => ("#fff6e0", "#b7791f"),
            Self::Set => ("#eaf7ee", "#2f855a"),
            Self::Fail => ("#fdecec", "#c53030"),
            Self::Finish => ("#e6f6f4", "#0b7a6f"),
            Self::Finally => ("#f4f4f5", "#52525b"),
        }
    }
}

/// The id, what the task does, and what else there is to say. At least one line.
pub(super) fn lines(plan: &Plan, index: u32) -> Vec<String> {
    let task = &plan.tasks[index as usize];
    let mut lines = vec![task.id.as_str().to_owned()];
    match &task.kind {
        TaskKind::Worker(task_type) => lines.push(task_type.as_str().to_owned()),
        TaskKind::WorkerOf(task_type) => lines.push(source(task_type)),
        TaskKind::Workflow(child) => {
            let version = child.version.map(|v| format!(" version {v}")).unwrap_or_default();
            let detached = if child.detach { ", detached" } else { "" };
            lines.push(format!("workflow {}{version}{detached}", source(&child.workflow)));
        }
        TaskKind::Group(_) => {}
        TaskKind::Wait(Wait::For(length)) => lines.push(format!("wait for {}", source(length))),
        TaskKind::Wait(Wait::Until(instant)) => lines.push(format!("wait until {}", source(instant))),
        TaskKind::Wait(Wait::Signal(name)) => lines.push(format!("wait for signal {}", source(name))),
        TaskKind::Set(_) => lines.push("set".to_owned()),
        TaskKind::Fail { code, .. } => lines.push(format!("fail {}", source(code))),
        TaskKind::Finish { .. } => lines.push("finish".to_owned()),
    }
    if !task.labels.is_empty() {
        let labels: Vec<String> = task.labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
        lines.push(format!("on {}", labels.join(", ")));
    }
    if let Some(condition) = &task.condition {
        lines.push(format!("if {}", source(condition)));
    }
    if let Some(each) = &task.for_each {
        let at_once = each.max_parallel.map(|n| format!(", {n} at once")).unwrap_or_default();
        let may_fail = match each.tolerate {
            Tolerate::Count(0) => String::new(),
            Tolerate::Count(n) => format!(", {n} may fail"),
            Tolerate::Percent(n) => format!(", {n}% may fail"),
        };
        lines.push(format!("for each of {}{at_once}{may_fail}", source(&each.items)));
    }
    if let Some(repeat) = &task.repeat {
        lines.push(match &repeat.condition {
            Some(condition) => format!("repeat up to {} times while {}", repeat.max, source(condition)),
            None => format!("repeat {} times", repeat.max),
        });
    }
    if let Some(shared) = &task.concurrency {
        lines.push(format!("at most {} at once of {}", shared.limit, source(&shared.key)));
    }
    if let Some(rate) = &task.rate {
        lines.push(format!(
            "at most {} in {} of {}",
            rate.limit,
            duration::format(rate.per),
            source(&rate.key)
        ));
    }
    if let Some(undo) = task.compensate {
        match &plan.tasks[undo as usize].kind {
            TaskKind::Worker(task_type) => lines.push(format!("undone by {task_type}")),
            TaskKind::WorkerOf(task_type) => lines.push(format!("undone by {}", source(task_type))),
            TaskKind::Workflow(_)
            | TaskKind::Group(_)
            | TaskKind::Wait(_)
            | TaskKind::Set(_)
            | TaskKind::Fail { .. }
            | TaskKind::Finish { .. } => {}
        }
    }
    if task.continue_on_error {
        lines.push("goes on if it fails".to_owned());
    }
    if let Some(total) = task.timeout.total {
        lines.push(format!("at most {}", duration::format(total)));
    }
    lines.iter().map(|line| cut(line)).collect()
}

/// What stands at the edges into a task; nothing for the usual case.
pub(super) fn edge(when: When) -> Option<&'static str> {
    match when {
        When::Success => None,
        When::Failure => Some("failure"),
        When::Always => Some("always"),
    }
}

/// A template as written; text without its quotes.
fn source(template: &Template) -> String {
    let source = template.source();
    source.strip_prefix('"').and_then(|s| s.strip_suffix('"')).map(str::to_owned).unwrap_or(source)
}

/// One line of bounded length: control characters are spaces, what is too long ends in `…`.
fn cut(line: &str) -> String {
    let line: String = line.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    match line.char_indices().nth(MAX_LINE) {
        Some((at, _)) => format!("{}…", &line[..at]),
        None => line,
    }
}
