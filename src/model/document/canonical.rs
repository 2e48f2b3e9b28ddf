//! The canonical text of a document: JSON in one layout, with what equals a default left out. It is itself a
//! document.

use super::kind::Does;
use super::node::{Kind, Node};
use super::policy::{Items, Iterations, Length, Rated, Shared};
use super::read::DEFAULT_RETENTION;
use super::tree::{DEFAULT_FINALLY, Tree};
use crate::model::duration;
use crate::model::json;
use crate::model::labels::Labels;
use crate::model::plan::{RetryPolicy, Timeouts, Tolerate, When};
use crate::model::time::Span;
use std::collections::BTreeMap;
use std::ops::Range;

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
    pub(super) tree: &'n Tree<'n>,
    /// By task, sorted.
    pub(super) needs: &'n [Vec<u32>],
}

/// The canonical text.
pub(super) fn write(model: &Model<'_>) -> Vec<u8> {
    let mut out = Object::default();
    out.text("name", Some(model.name));
    out.text("description", model.description);
    out.node("input", model.input);
    out.object("tasks", write_body(model, model.tree.body.clone()));
    if let Some(finally) = model.tree.finally {
        let mut o = Object::default();
        o.object("tasks", write_body(model, model.tree.body_of(finally)));
        let timeout = model.tree.drafts[finally as usize].timeout.total;
        o.span("timeout", timeout.filter(|t| *t != DEFAULT_FINALLY));
        out.object("finally", o);
    }
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

fn write_body(model: &Model<'_>, body: Range<u32>) -> Object {
    let mut out = Object::default();
    for task in body {
        out.object(model.tree.drafts[task as usize].id.as_str(), write_task(model, task));
    }
    out
}

fn write_task(model: &Model<'_>, index: u32) -> Object {
    let task = &model.tree.drafts[index as usize];
    let mut out = Object::default();
    if let Some(does) = &task.does {
        write_kind(&mut out, does, model);
    }
    let needs = model.needs[index as usize].iter();
    out.texts("needs", needs.map(|n| model.tree.drafts[*n as usize].id.as_str()));
    out.text(
        "when",
        match task.when {
            When::Success => None,
            When::Failure => Some("failure"),
            When::Always => Some("always"),
        },
    );
    out.node("if", task.condition.filter(|n| n.kind != Kind::Bool(true)));
    if let Some(items) = &task.for_each {
        write_items(&mut out, items);
    }
    if let Some(repeat) = &task.repeat {
        write_repeat(&mut out, repeat);
    }
    out.node("input", task.input.filter(|n| n.kind != Kind::Null));
    if matches!(task.does, Some(Does::Worker(_) | Does::WorkerOf(_) | Does::Workflow { .. })) {
        write_retry(&mut out, &task.retry);
    }
    write_timeout(&mut out, &task.timeout);
    if let Some(Shared { key, limit }) = &task.concurrency {
        let mut o = Object::default();
        o.node("key", Some(key));
        o.raw("limit", Some(limit.to_string()));
        out.object("concurrency", o);
    }
    if let Some(Rated { key, limit, per }) = &task.rate {
        let mut o = Object::default();
        o.node("key", Some(key));
        o.raw("limit", Some(limit.to_string()));
        o.span("per", Some(*per));
        out.object("rate", o);
    }
    out.text("on_error", task.continue_on_error.then_some("continue"));
    out.raw("priority", (task.priority != 0).then(|| task.priority.to_string()));
    write_labels(&mut out, &task.labels);
    out.text("description", task.description);
    if let Some(undo) = task.compensate {
        out.object("compensate", write_task(model, undo));
    }
    out
}

fn write_kind(out: &mut Object, does: &Does<'_>, model: &Model<'_>) {
    let mut o = Object::default();
    match does {
        Does::Worker(task_type) => out.text("type", Some(task_type.as_str())),
        Does::WorkerOf(node) => out.node("type", Some(node)),
        Does::Workflow { name, version: None, detach: false, .. } => out.node("workflow", Some(name)),
        Does::Workflow { name, version, detach, .. } => {
            o.node("name", Some(name));
            o.raw("version", version.map(|n| n.to_string()));
            o.raw("detach", detach.then(|| "true".to_owned()));
            out.object("workflow", o);
        }
        Does::Group { output, fail_fast, body, .. } => {
            out.object("tasks", write_body(model, body.clone()));
            out.node("output", *output);
            out.raw("fail_fast", fail_fast.then(|| "true".to_owned()));
        }
        Does::For(length) => {
            o.length("for", Some(length));
            out.object("wait", o);
        }
        Does::Until(node) => {
            o.node("until", Some(node));
            out.object("wait", o);
        }
        Does::Signal(node) => {
            o.node("signal", Some(node));
            out.object("wait", o);
        }
        Does::Set(node) => out.node("set", Some(node)),
        Does::Fail { code, message } => {
            o.node("code", Some(code));
            o.node("message", *message);
            out.object("fail", o);
        }
        Does::Finish { output, .. } => {
            o.node("output", *output);
            out.object("finish", o);
        }
    }
}

fn write_items(out: &mut Object, items: &Items<'_>) {
    out.node("for_each", Some(items.list));
    out.raw("max_parallel", items.max_parallel.map(|n| n.to_string()));
    match items.tolerate {
        Tolerate::Count(0) => {}
        Tolerate::Count(n) => out.raw("tolerate", Some(n.to_string())),
        Tolerate::Percent(n) => out.text("tolerate", Some(&format!("{n}%"))),
    }
}

fn write_repeat(out: &mut Object, repeat: &Iterations<'_>) {
    let mut o = Object::default();
    o.node("while", repeat.condition);
    o.raw("max", Some(repeat.max.to_string()));
    o.length("delay", repeat.delay.as_ref());
    out.object("repeat", o);
}

fn write_retry(out: &mut Object, retry: &RetryPolicy) {
    let default = RetryPolicy::default();
    if *retry == default {
        return;
    }
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

fn write_timeout(out: &mut Object, timeout: &Timeouts) {
    if *timeout == Timeouts::default() {
        return;
    }
    let mut o = Object::default();
    o.span("queue", timeout.queue);
    o.span("run", timeout.run);
    o.span("heartbeat", timeout.heartbeat);
    o.span("total", timeout.total);
    out.object("timeout", o);
}

fn write_labels(out: &mut Object, labels: &Labels) {
    if labels.is_empty() {
        return;
    }
    let mut o = Object::default();
    for (key, value) in labels.iter() {
        o.text(key, Some(value));
    }
    out.object("labels", o);
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

    fn length(&mut self, key: &str, value: Option<&Length<'_>>) {
        match value {
            None => {}
            Some(Length::Known(span)) => self.span(key, Some(*span)),
            Some(Length::Computed(node)) => self.node(key, Some(node)),
        }
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
