//! The keys of a task that say when, how often and how long: each read as far as it stands alone.

use super::fields::{Faults, Fields, duration_of, positive, text};
use super::keys;
use super::node::{Kind, Node, join, shown};
use crate::model::expr::{has_expression, is_one_expression};
use crate::model::labels::{LABEL_RULE, LABELS_MAX, Labels, is_label_part};
use crate::model::plan::{LIMIT_KEY_MAX, RetryPolicy, Timeouts, Tolerate, When};
use crate::model::time::Span;

/// Most attempts of a task.
const MAX_ATTEMPTS: i64 = 1_000_000;
/// Longest error code, in bytes.
pub(super) const MAX_CODE: usize = 128;
/// Most items of a map.
const MAX_ITEMS: i64 = 10_000;
/// Most iterations of a loop.
const MAX_ITERATIONS: i64 = 10_000;

/// Most slots of a concurrency key, and starts of a rate.
const MAX_LIMIT: i64 = 10_000;
/// Longest time that a rate is counted over.
const MAX_PER: Span = Span::secs(86_400);

/// A duration that may be an expression.
#[derive(Debug)]
pub(super) enum Length<'n> {
    /// Known outright.
    Known(Span),
    /// Text with an expression in it.
    Computed(&'n Node),
}

impl<'n> Length<'n> {
    pub(super) fn read(node: &'n Node, path: &str, faults: &mut Faults) -> Option<Self> {
        match &node.kind {
            Kind::String(text) if has_expression(text) => Some(Self::Computed(node)),
            _ => duration_of(node, path, faults).map(Self::Known),
        }
    }
}

/// `for_each` and what belongs to it.
#[derive(Debug)]
pub(super) struct Items<'n> {
    pub(super) list: &'n Node,
    pub(super) max_parallel: Option<u32>,
    pub(super) tolerate: Tolerate,
}

/// `repeat`.
#[derive(Debug)]
pub(super) struct Iterations<'n> {
    pub(super) condition: Option<&'n Node>,
    pub(super) max: u32,
    pub(super) delay: Option<Length<'n>>,
}

/// `concurrency`.
#[derive(Debug)]
pub(super) struct Shared<'n> {
    pub(super) key: &'n Node,
    pub(super) limit: u32,
}

impl Shared<'_> {
    /// The key, if it is known outright.
    pub(super) fn name(&self) -> Option<&str> {
        match &self.key.kind {
            Kind::String(text) if !has_expression(text) => Some(text),
            Kind::String(_) | Kind::Null | Kind::Bool(_) | Kind::Number(_) | Kind::List(_) | Kind::Map(_) => {
                None
            }
        }
    }
}

/// `rate`.
#[derive(Debug)]
pub(super) struct Rated<'n> {
    pub(super) key: &'n Node,
    pub(super) limit: u32,
    pub(super) per: Span,
}

pub(super) fn when(fields: &Fields<'_>, faults: &mut Faults) -> When {
    let Some(word) = fields.text("when", faults) else { return When::Success };
    match word {
        "success" => When::Success,
        "failure" => When::Failure,
        "always" => When::Always,
        _ => {
            let line = fields.get("when").and_then(Node::at);
            faults.add(
                &fields.path("when"),
                line,
                format!("{} is not one of success, failure, always", shown(word)),
            );
            When::Success
        }
    }
}

/// A boolean, or text that is one expression and nothing else: anything else could never be true or false.
pub(super) fn condition<'n>(fields: &Fields<'n>, key: &str, faults: &mut Faults) -> Option<&'n Node> {
    let node = fields.get(key)?;
    let path = fields.path(key);
    match &node.kind {
        Kind::Bool(_) => Some(node),
        Kind::String(text) if has_expression(text) => {
            one_expression(text, node, &path, faults);
            Some(node)
        }
        Kind::String(text) => {
            let message =
                format!("must be true, false or an expression ${{{{ … }}}}, but is the text {}", shown(text));
            faults.add(&path, node.at(), message);
            None
        }
        _ => {
            faults.wrong(&path, node, "true, false or an expression ${{ … }}");
            None
        }
    }
}

fn one_expression(text: &str, node: &Node, path: &str, faults: &mut Faults) {
    if !is_one_expression(text) {
        faults.add(path, node.at(), "must be exactly one expression, without text around it");
    }
}

pub(super) fn for_each<'n>(fields: &Fields<'n>, faults: &mut Faults) -> Option<Items<'n>> {
    let Some(node) = fields.get("for_each") else {
        for key in ["max_parallel", "tolerate"] {
            if let Some(node) = fields.get(key) {
                faults.add(
                    &fields.path(key),
                    node.at(),
                    format!("'{key}' belongs to for_each, which is not here"),
                );
            }
        }
        return None;
    };
    let path = fields.path("for_each");
    let wanted = "a list or an expression ${{ … }} that gives one";
    match &node.kind {
        Kind::String(text) if has_expression(text) => one_expression(text, node, &path, faults),
        Kind::List(items) if items.len() > MAX_ITEMS as usize => {
            faults.add(
                &path,
                node.at(),
                format!("there are {} items; the limit is {MAX_ITEMS}", items.len()),
            );
        }
        Kind::List(_) => {}
        _ => faults.wrong(&path, node, wanted),
    }
    Some(Items {
        list: node,
        max_parallel: fields.integer("max_parallel", 1..=MAX_ITEMS, faults).map(|n| n as u32),
        tolerate: tolerate(fields, faults),
    })
}

/// A count, or a share such as `"10%"`.
fn tolerate(fields: &Fields<'_>, faults: &mut Faults) -> Tolerate {
    let none = Tolerate::Count(0);
    let Some(node) = fields.get("tolerate") else { return none };
    let Kind::String(text) = &node.kind else {
        if matches!(node.kind, Kind::Number(_)) {
            let count = fields.integer("tolerate", 0..=MAX_ITEMS, faults);
            return count.map_or(none, |n| Tolerate::Count(n as u32));
        }
        faults.wrong(&fields.path("tolerate"), node, "a number of items, or a share of them such as \"10%\"");
        return none;
    };
    let digits = text.strip_suffix('%').filter(|d| d.len() <= 3 && d.bytes().all(|b| b.is_ascii_digit()));
    match digits.and_then(|d| d.parse::<u32>().ok()).filter(|p| *p <= 100) {
        Some(0) => none,
        Some(percent) => Tolerate::Percent(percent),
        None => {
            let message = format!(
                "must be a number of items, or a share from \"0%\" to \"100%\" in whole numbers, but is {}",
                shown(text)
            );
            faults.add(&fields.path("tolerate"), node.at(), message);
            none
        }
    }
}

pub(super) fn repeat<'n>(fields: &Fields<'n>, faults: &mut Faults) -> Option<Iterations<'n>> {
    let node = fields.get("repeat")?;
    let path = fields.path("repeat");
    let repeat = Fields::of(node, &path, &keys::REPEAT, faults)?;
    let max = repeat.integer("max", 1..=MAX_ITERATIONS, faults);
    if repeat.get("max").is_none() {
        let message = format!(
            "'max' is required: the most iterations, 1 to {MAX_ITERATIONS}; without 'while' exactly so many"
        );
        faults.add(&path, node.at(), message);
    }
    let delay = repeat.get("delay").and_then(|node| Length::read(node, &repeat.path("delay"), faults));
    Some(Iterations {
        condition: condition(&repeat, "while", faults),
        max: max.unwrap_or(1) as u32,
        // No delay is a delay of nothing.
        delay: delay.filter(|d| !matches!(d, Length::Known(Span(0)))),
    })
}

pub(super) fn concurrency<'n>(fields: &Fields<'n>, faults: &mut Faults) -> Option<Shared<'n>> {
    let node = fields.get("concurrency")?;
    let path = fields.path("concurrency");
    let shared = Fields::of(node, &path, &keys::CONCURRENCY, faults)?;
    let key = limit_key(&shared, node, &path, faults);
    let limit = limit(&shared, node, &path, "how many tasks of the key may go on at once", faults);
    Some(Shared { key: key?, limit: limit? })
}

pub(super) fn rate<'n>(fields: &Fields<'n>, faults: &mut Faults) -> Option<Rated<'n>> {
    let node = fields.get("rate")?;
    let path = fields.path("rate");
    let rated = Fields::of(node, &path, &keys::RATE, faults)?;
    let key = limit_key(&rated, node, &path, faults);
    let limit = limit(&rated, node, &path, "how many attempts of the key may start in 'per'", faults);
    if rated.get("per").is_none() {
        faults.add(&path, node.at(), "'per' is required: a length of time such as 1s, at most 1d");
    }
    let per = rated.duration("per", faults)?;
    if per == Span(0) || per > MAX_PER {
        let at = rated.get("per").and_then(Node::at);
        faults.add(&rated.path("per"), at, "must be longer than 0 and at most 1d");
    }
    Some(Rated { key: key?, limit: limit?, per })
}

/// Text, with or without expressions, that names what is limited.
fn limit_key<'n>(fields: &Fields<'n>, node: &Node, path: &str, faults: &mut Faults) -> Option<&'n Node> {
    let Some(key) = fields.get("key") else {
        faults.add(path, node.at(), "'key' is required: the name that is counted under, such as billing-api");
        return None;
    };
    match &key.kind {
        Kind::String(text) if text.is_empty() || (!has_expression(text) && text.len() > LIMIT_KEY_MAX) => {
            let message = format!("a key has 1 to {LIMIT_KEY_MAX} bytes, but this has {}", text.len());
            faults.add(&fields.path("key"), key.at(), message);
            None
        }
        Kind::String(_) => Some(key),
        Kind::Null | Kind::Bool(_) | Kind::Number(_) | Kind::List(_) | Kind::Map(_) => {
            faults.wrong(&fields.path("key"), key, "text");
            None
        }
    }
}

fn limit(fields: &Fields<'_>, node: &Node, path: &str, what: &str, faults: &mut Faults) -> Option<u32> {
    if fields.get("limit").is_none() {
        faults.add(path, node.at(), format!("'limit' is required: {what}, 1 to {MAX_LIMIT}"));
    }
    fields.integer("limit", 1..=MAX_LIMIT, faults).map(|n| n as u32)
}

pub(super) fn retry(fields: &Fields<'_>, faults: &mut Faults) -> RetryPolicy {
    let mut policy = RetryPolicy::default();
    let Some(node) = fields.get("retry") else { return policy };
    let Some(retry) = Fields::of(node, &fields.path("retry"), &keys::RETRY, faults) else {
        return policy;
    };
    if let Some(n) = retry.integer("max_attempts", 1..=MAX_ATTEMPTS, faults) {
        policy.max_attempts = n as u32;
    }
    if let Some(span) = retry.duration("initial", faults) {
        policy.initial = span;
    }
    if let Some(factor) = retry.number("factor", 1.0..=f64::MAX, faults) {
        policy.factor = factor;
    }
    if let Some(span) = retry.duration("max", faults) {
        policy.max = span;
    }
    if let Some(jitter) = retry.number("jitter", 0.0..=1.0, faults) {
        policy.jitter = jitter;
    }
    for (n, (code, node)) in retry.texts("non_retryable", faults).into_iter().enumerate() {
        if code.is_empty() || code.len() > MAX_CODE {
            let message = format!("an error code has 1 to {MAX_CODE} bytes, but this has {}", code.len());
            faults.add(&format!("{}[{n}]", retry.path("non_retryable")), node.at(), message);
        }
        policy.non_retryable.push(code.to_owned());
    }
    // A set, told in one way.
    policy.non_retryable.sort();
    policy.non_retryable.dedup();
    policy
}

/// The limits of a task: of one that a worker does if `worker`. A bare duration limits the attempt there and the
/// whole task everywhere else.
pub(super) fn timeout(fields: &Fields<'_>, worker: bool, faults: &mut Faults) -> Timeouts {
    let mut timeouts = Timeouts::default();
    let Some(node) = fields.get("timeout") else { return timeouts };
    let path = fields.path("timeout");
    if !matches!(node.kind, Kind::Map(_)) {
        let limit = duration_of(node, &path, faults).and_then(|span| positive(span, node, &path, faults));
        *(if worker { &mut timeouts.run } else { &mut timeouts.total }) = limit;
        return timeouts;
    }
    if worker {
        if let Some(limits) = Fields::of(node, &path, &keys::TIMEOUT, faults) {
            timeouts.queue = limits.limit("queue", faults);
            timeouts.run = limits.limit("run", faults);
            timeouts.heartbeat = limits.limit("heartbeat", faults);
            timeouts.total = limits.limit("total", faults);
        }
        return timeouts;
    }
    if let Some(limits) = Fields::of(node, &path, &keys::TIMEOUT, faults) {
        for key in keys::TIMEOUT.iter().filter(|key| !keys::TIMEOUT_OTHER.contains(key)) {
            if let Some(node) = limits.get(key) {
                let message = format!("'{key}' is for what a worker does; anything else has 'total' only");
                faults.add(&limits.path(key), node.at(), message);
            }
        }
        timeouts.total = limits.limit("total", faults);
    }
    timeouts
}

pub(super) fn continue_on_error(fields: &Fields<'_>, faults: &mut Faults) -> bool {
    match fields.text("on_error", faults) {
        None | Some("fail") => false,
        Some("continue") => true,
        Some(word) => {
            let line = fields.get("on_error").and_then(Node::at);
            faults.add(
                &fields.path("on_error"),
                line,
                format!("{} is not one of fail, continue", shown(word)),
            );
            false
        }
    }
}

/// What a worker must have to be given the task: text to text.
pub(super) fn labels(fields: &Fields<'_>, faults: &mut Faults) -> Labels {
    let Some(node) = fields.get("labels") else { return Labels::NONE };
    let path = fields.path("labels");
    let Kind::Map(entries) = &node.kind else {
        faults.wrong(&path, node, "a map of text to text, such as { region: eu }");
        return Labels::NONE;
    };
    if entries.len() > LABELS_MAX {
        faults.add(
            &path,
            node.at(),
            format!("there are {} labels; the limit is {LABELS_MAX}", entries.len()),
        );
    }
    let mut pairs = Vec::with_capacity(entries.len().min(LABELS_MAX));
    for entry in entries {
        let path = join(&path, &entry.key);
        if !is_label_part(&entry.key) {
            let message = format!("the key of a label {} is not valid: {LABEL_RULE}", shown(&entry.key));
            faults.add(&path, Some(entry.line).filter(|l| *l > 0), message);
        }
        let Some(value) = text(&entry.value, &path, faults) else { continue };
        if !is_label_part(value) {
            let message = format!("the value of a label {} is not valid: {LABEL_RULE}", shown(value));
            faults.add(&path, entry.value.at(), message);
        }
        pairs.push((entry.key.as_str(), value));
    }
    // Of what cannot be a set, the faults are told.
    Labels::new(pairs).unwrap_or_default()
}
