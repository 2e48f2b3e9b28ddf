//! The canonical text of a document: JSON in one layout, with what equals a default left out. It is itself a
//! document.

use super::node::{Kind, Node};
use super::read::DEFAULT_RETENTION;
use super::task::Draft;
use crate::model::duration;
use crate::model::json;
use crate::model::plan::{RetryPolicy, Timeouts, When};
use crate::model::time::Span;
use std::collections::BTreeMap;

/// What of a document counts.
#[derive(Debug)]
pub(super) struct Model<'n> {
    pub(super) name: &'n str,
    pub(super) description: Option<&'n str>,
    pub(super) input: Option<&'n Node>,
    pub(super) output: Option<&'n Node>,
    pub(super) timeout: Option<Span>,
    pub(super) fail_fast: bool,
    pub(super) tags: &'n BTreeMap<String, String>,
    pub(super) priority: i32,
    pub(super) retention: Span,
    pub(super) tasks: &'n [Draft<'n>],
    /// By task, sorted.
    pub(super) needs: &'n [Vec<u32>],
}

/// The canonical text.
pub(super) fn write(model: &Model<'_>) -> Vec<u8> {
    let mut out = Object::default();
    out.text("name", Some(model.name));
    out.text("description", model.description);
    out.node("input", model.input);
    let mut tasks = Object::default();
    for (task, needs) in model.tasks.iter().zip(model.needs) {
        tasks.object(task.id.as_str(), write_task(task, needs, model.tasks));
    }
    out.object("tasks", tasks);
    // A null output is the same as none.
    out.node("output", model.output.filter(|n| n.kind != Kind::Null));
    out.span("timeout", model.timeout);
    out.raw("fail_fast", model.fail_fast.then(|| "true".to_owned()));
    if !model.tags.is_empty() {
        let mut tags = Object::default();
        for (key, value) in model.tags {
            tags.text(key, Some(value));
        }
        out.object("tags", tags);
    }
    out.raw("priority", (model.priority != 0).then(|| model.priority.to_string()));
    out.span("retention", (model.retention != DEFAULT_RETENTION).then_some(model.retention));
    out.close()
}

fn write_task(task: &Draft<'_>, needs: &[u32], all: &[Draft<'_>]) -> Object {
    let mut out = Object::default();
    out.text("type", task.task_type.as_ref().map(super::super::ids::TaskType::as_str));
    out.texts("needs", needs.iter().map(|n| all[*n as usize].id.as_str()));
    out.text(
        "when",
        match task.when {
            When::Success => None,
            When::Failure => Some("failure"),
            When::Always => Some("always"),
        },
    );
    out.node("if", task.condition.filter(|n| n.kind != Kind::Bool(true)));
    out.node("input", task.input.filter(|n| n.kind != Kind::Null));
    let (retry, default) = (&task.retry, RetryPolicy::default());
    if *retry != default {
        let mut o = Object::default();
        o.raw(
            "max_attempts",
            (retry.max_attempts != default.max_attempts).then(|| retry.max_attempts.to_string()),
        );
        o.span("initial", (retry.initial != default.initial).then_some(retry.initial));
        o.raw("factor", differs(retry.factor, default.factor));
        o.span("max", (retry.max != default.max).then_some(retry.max));
        o.raw("jitter", differs(retry.jitter, default.jitter));
        o.texts("non_retryable", retry.non_retryable.iter().map(String::as_str));
        out.object("retry", o);
    }
    if task.timeout != Timeouts::default() {
        let mut o = Object::default();
        o.span("queue", task.timeout.queue);
        o.span("run", task.timeout.run);
        o.span("heartbeat", task.timeout.heartbeat);
        o.span("total", task.timeout.total);
        out.object("timeout", o);
    }
    out.text("on_error", task.continue_on_error.then_some("continue"));
    out.raw("priority", (task.priority != 0).then(|| task.priority.to_string()));
    out.text("description", task.description);
    out
}

/// A float that is not its default, as the shortest JSON number that reads back as the same.
fn differs(value: f64, default: f64) -> Option<String> {
    let same = value.to_bits() == default.to_bits();
    (!same).then(|| serde_json::Number::from_f64(value).map(|n| n.to_string())).flatten()
}

/// A JSON object in the making.
#[derive(Debug, Default)]
struct Object(Vec<u8>);

impl Object {
    fn key(&mut self, key: &str) {
        self.0.push(if self.0.is_empty() { b'{' } else { b',' });
        json::write_string(key, &mut self.0);
        self.0.push(b':');
    }

    fn raw(&mut self, key: &str, value: Option<String>) {
        if let Some(value) = value {
            self.key(key);
            self.0.extend_from_slice(value.as_bytes());
        }
    }

    fn text(&mut self, key: &str, value: Option<&str>) {
        if let Some(value) = value {
            self.key(key);
            json::write_string(value, &mut self.0);
        }
    }

    fn texts<'t>(&mut self, key: &str, values: impl Iterator<Item = &'t str>) {
        let mut list = Vec::new();
        for value in values {
            list.push(if list.is_empty() { b'[' } else { b',' });
            json::write_string(value, &mut list);
        }
        if !list.is_empty() {
            list.push(b']');
            self.key(key);
            self.0.extend_from_slice(&list);
        }
    }

    fn span(&mut self, key: &str, value: Option<Span>) {
        self.text(key, value.map(duration::format).as_deref());
    }

    fn node(&mut self, key: &str, value: Option<&Node>) {
        if let Some(value) = value {
            self.key(key);
            value.write_json(&mut self.0);
        }
    }

    fn object(&mut self, key: &str, object: Object) {
        self.key(key);
        self.0.extend_from_slice(&object.close());
    }

    fn close(mut self) -> Vec<u8> {
        if self.0.is_empty() {
            self.0.push(b'{');
        }
        self.0.push(b'}');
        self.0
    }
}
