//! A node starts: what each kind of task does when it is its turn.
//!
//! To add a kind: a variant of `TaskKind`, an arm in [`Step::begin`], and, if it waits, a variant of `Waiting`
//! with its line in `wake` and `bodies`.

use super::graph::{Cascade, End};
use super::limits::{CODE_MAX, ITEMS_MAX, ITEMS_PER_CHUNK, NODES_MAX};
use super::payload::keep;
use super::scope::{Halt, Value, View, type_of};
use super::step::{Step, Words, clip};
use crate::model::event::EventKind;
use crate::model::expr::Template;
use crate::model::ids::{SignalName, TaskType};
use crate::model::nodes::Level;
use crate::model::payload::{Field, INLINE_MAX, Payload};
use crate::model::plan::{Group, TaskKind, Wait};
use crate::model::run::{BlockKind, Entry, TaskPhase, Waiting};
use crate::model::time::Span;
use crate::model::{duration, instant, json};
use bytes::Bytes;
use std::fmt;

impl Step<'_> {
    /// Starts a pending node. Its needs, `when` and `if` have been looked at.
    pub(super) fn begin(&mut self, i: u32, cascade: &mut Cascade) {
        let plan = self.plan;
        match self.work.state.level(plan, i) {
            Level::Map => self.begin_items(i, cascade),
            Level::Loop => self.begin_iteration(i, 0, Payload::Null, cascade),
            Level::Body if self.lacks_permit(i) => self.wait_for_permit(i, Entry::First, cascade),
            Level::Body => self.begin_body(i, cascade),
        }
    }

    /// Starts the thing itself.
    pub(super) fn begin_body(&mut self, i: u32, cascade: &mut Cascade) {
        match &self.plan_of(i).kind {
            TaskKind::Worker(_) => self.begin_attempts(i, cascade),
            TaskKind::WorkerOf(template) => {
                let Some(text) = self.text(i, "type", template, cascade) else { return };
                match TaskType::new(&text) {
                    Ok(task_type) => {
                        self.task_mut(i).task_type = Some(task_type);
                        self.begin_attempts(i, cascade);
                    }
                    Err(e) => {
                        let message =
                            format!("tasks.{}.type came to {:?}: {}", self.path(i), clip(&text, 64), e.rule);
                        self.fail_task(i, &Words::new("invalid_task_type", message), cascade);
                    }
                }
            }
            TaskKind::Group(group) => self.begin_group(i, group, cascade),
            TaskKind::Wait(wait) => self.begin_wait(i, wait, cascade),
            TaskKind::Set(template) => {
                let what = || format!("tasks.{}.set", self.path(i));
                match self.evaluate(View::of(i), Some(template), what, "output_too_large") {
                    Ok(value) => {
                        let output = self.keep_output(i, value);
                        self.complete_task(i, output, cascade);
                    }
                    Err(halt) => self.halt(i, halt, cascade),
                }
            }
            TaskKind::Fail { code, message } => {
                let Some(code) = self.text(i, "fail.code", code, cascade) else { return };
                let Some(message) = self.text(i, "fail.message", message, cascade) else { return };
                if code.is_empty() || code.len() > CODE_MAX {
                    let what = format!("tasks.{}.fail.code", self.path(i));
                    let message =
                        format!("{what} has {} bytes; an error code has 1 to {CODE_MAX}", code.len());
                    return self.fail_task(i, &Words::new("invalid_code", message), cascade);
                }
                self.fail_task(i, &Words::clipped(&code, &message), cascade);
            }
            TaskKind::Finish { output } => self.finish(i, output.as_ref(), cascade),
            TaskKind::Workflow(_) => self.begin_child(i, cascade),
        }
    }

    /// Where a value of a node is kept in this try of the run; fields are written once.
    pub(super) fn field(&self, name: &str) -> Field {
        self.fields()(format_args!("{name}"))
    }

    /// The same, for what may well be small enough to stand in the record: it is named once it is not.
    pub(super) fn fields(&self) -> impl Fn(fmt::Arguments<'_>) -> Field + use<> {
        let try_number = self.work.state.try_number;
        move |name| match try_number {
            0 | 1 => Field(name.to_string().into()),
            n => Field(format!("{name}.r{n}").into()),
        }
    }

    /// Keeps what a node came to.
    pub(super) fn keep_output(&mut self, i: u32, value: Value) -> Payload {
        let field = self.fields();
        value.into_payload(|| field(format_args!("o{i}")), &mut self.work.written)
    }

    /// Fails a node for a fault of an expression, unless payloads have to be at hand first.
    pub(super) fn halt(&mut self, i: u32, halt: Halt, cascade: &mut Cascade) {
        if let Some(words) = halt.words(cascade) {
            self.fail_task(i, &words, cascade);
        }
    }

    /// A template that has to come to text. None: the node has failed, or payloads are missing.
    pub(super) fn text(
        &mut self,
        i: u32,
        key: &str,
        template: &Template,
        cascade: &mut Cascade,
    ) -> Option<String> {
        let what = || format!("tasks.{}.{key}", self.path(i));
        let halt = match self.evaluate(View::of(i), Some(template), what, "value_too_large") {
            Ok(value) => match serde_json::from_slice::<String>(&value.json) {
                Ok(text) => return Some(text),
                Err(_) => not_a(&what(), "text", &value.json).into(),
            },
            Err(halt) => halt,
        };
        self.halt(i, halt, cascade);
        None
    }

    /// A template that has to come to a length of time. None as in `text`.
    pub(super) fn span(
        &mut self,
        i: u32,
        view: View,
        key: &str,
        template: &Template,
        cascade: &mut Cascade,
    ) -> Option<Span> {
        let what = || format!("tasks.{}.{key}", self.path(i));
        let halt = match self.evaluate(view, Some(template), what, "value_too_large") {
            Ok(value) => match read_span(&value.json) {
                Ok(span) => return Some(span),
                Err(message) => Words::new("invalid_duration", format!("{}: {message}", what())).into(),
            },
            Err(halt) => halt,
        };
        self.halt(i, halt, cascade);
        None
    }

    /// The first attempt of what a worker does.
    fn begin_attempts(&mut self, i: u32, cascade: &mut Cascade) {
        if self.evaluate_input(i, cascade) {
            self.next_attempt(i, cascade);
        }
    }

    /// A node waits for something that no worker does.
    fn wait(&mut self, i: u32, waiting: Waiting) {
        self.task_mut(i).phase = TaskPhase::Waiting(waiting);
        self.log_task(EventKind::TaskWaiting, i, None, None);
    }

    /// `timeout.total` of what no worker does counts from here.
    fn start_clock(&mut self, i: u32) {
        let now = self.now;
        self.task_mut(i).first_queued_at = Some(now);
        if let Some(total) = self.plan_of(i).timeout.total {
            self.want(now.plus(total));
        }
    }

    /// Lays out nodes, unless the run has too many. What was there before of that kind (in an earlier try) passes
    /// its attempt numbers on.
    pub(super) fn lay_out(
        &mut self,
        owner: Option<u32>,
        kind: BlockKind,
        plan: u32,
        len: u32,
    ) -> Result<u32, Words> {
        let state = &mut self.work.state;
        let iterations = || state.blocks.iter().filter(|b| matches!(b.kind, BlockKind::Iteration(_))).count();
        let limited = !matches!(kind, BlockKind::Compensation | BlockKind::Finally);
        let nodes = state.tasks.len() + len as usize;
        // Counted only when it may matter: loops lay out one block after the other.
        if limited && nodes > NODES_MAX && nodes - iterations() > NODES_MAX {
            let message = format!(
                "the run would have more than {NODES_MAX} tasks, items included; start runs of their own for parts of it"
            );
            return Err(Words::new("too_many_tasks", message));
        }
        let block = state.add_block(owner, kind, plan, len);
        if state.try_number > 1 && len > 0 {
            let first = state.tasks.len() as u32 - len;
            let known = state.before(first).and_then(|b| Some((b, *state.block_of(b)?)));
            if let Some((from, before)) = known {
                for n in 0..len.min(before.first + before.len - from) {
                    let attempt = state.tasks.get((from + n) as usize).map_or(0, |t| t.attempt);
                    if let Some(task) = state.tasks.get_mut((first + n) as usize) {
                        task.attempt = attempt;
                    }
                }
            }
        }
        Ok(block)
    }

    fn begin_group(&mut self, i: u32, group: &Group, cascade: &mut Cascade) {
        let (plan, body) = (self.plan, group.body.clone());
        let block = match self.lay_out(Some(i), BlockKind::Body, body.start, body.end - body.start) {
            Ok(block) => block,
            Err(words) => return self.fail_task(i, &words, cascade),
        };
        self.start_clock(i);
        let nodes = self.nodes(block);
        let open = nodes.end - nodes.start;
        self.wait(i, Waiting::Body { block, open, error: None, undoing: None });
        for (node, task) in nodes.zip(body) {
            let needs = plan.tasks[task as usize].needs.len() as u32;
            let phase = TaskPhase::Pending { remaining: needs, any_failed: false, any_completed: false };
            self.task_mut(node).phase = phase;
            if needs == 0 {
                cascade.look_at(node);
            }
        }
    }

    fn begin_wait(&mut self, i: u32, wait: &Wait, cascade: &mut Cascade) {
        let waiting = match wait {
            Wait::For(template) => {
                let Some(span) = self.span(i, View::of(i), "wait.for", template, cascade) else { return };
                Waiting::Timer { due: self.now.plus(span) }
            }
            Wait::Until(template) => {
                let Some(text) = self.text(i, "wait.until", template, cascade) else { return };
                match instant::parse(&text) {
                    Ok(due) => Waiting::Timer { due },
                    Err(message) => {
                        let message = format!("tasks.{}.wait.until: {message}", self.path(i));
                        return self.fail_task(i, &Words::new("invalid_time", message), cascade);
                    }
                }
            }
            Wait::Signal(template) => {
                let Some(name) = self.text(i, "wait.signal", template, cascade) else { return };
                if let Err(e) = SignalName::new(&name) {
                    let message = format!(
                        "tasks.{}.wait.signal came to {:?}: {}",
                        self.path(i),
                        clip(&name, 64),
                        e.rule
                    );
                    return self.fail_task(i, &Words::new("invalid_signal_name", message), cascade);
                }
                Waiting::Signal { name }
            }
        };
        self.start_clock(i);
        match &waiting {
            Waiting::Timer { due } => {
                let due = *due;
                self.wait(i, waiting);
                if due <= self.now {
                    return self.complete_task(i, Payload::Null, cascade);
                }
                self.want(due);
            }
            Waiting::Signal { name } => {
                let found = self.work.state.signals.iter_mut().find(|s| !s.taken && s.name == *name);
                let early = found.map(|signal| {
                    signal.taken = true;
                    signal.payload.clone()
                });
                self.wait(i, waiting);
                if let Some(payload) = early {
                    self.complete_task(i, payload, cascade);
                }
            }
            Waiting::Body { .. }
            | Waiting::Items { .. }
            | Waiting::Iterations { .. }
            | Waiting::Child { .. }
            | Waiting::Permit { .. }
            | Waiting::Rate { .. } => {}
        }
    }

    fn begin_items(&mut self, i: u32, cascade: &mut Cascade) {
        let plan = self.plan;
        let index = self.work.state.plan_index(i);
        let Some(for_each) = &plan.tasks[index as usize].for_each else { return };
        let what = || format!("tasks.{}.for_each", self.path(i));
        let list = match self.evaluate(View::of(i), Some(&for_each.items), what, "input_too_large") {
            Ok(value) => value.json,
            Err(halt) => return self.halt(i, halt, cascade),
        };
        let Ok(Some(items)) = json::items(&list) else {
            let words = Words::new("for_each_not_list", not_a(&what(), "a list", &list).message);
            return self.fail_task(i, &words, cascade);
        };
        if items.len() > ITEMS_MAX {
            let message = format!("{} has {} items; the limit is {ITEMS_MAX}", what(), items.len());
            return self.fail_task(i, &Words::new("too_many_items", message), cascade);
        }
        if items.is_empty() {
            return self.complete_task(i, Payload::Inline(Bytes::from_static(b"[]")), cascade);
        }
        let block = match self.lay_out(Some(i), BlockKind::Items, index, items.len() as u32) {
            Ok(block) => block,
            Err(words) => return self.fail_task(i, &words, cascade),
        };
        let input = self.keep_items(i, &list, &items);
        self.task_mut(i).input = input;
        self.wait(i, Waiting::Items { block, next: 0, open: 0, failed: 0, error: None });
        cascade.advance(i);
    }

    /// Keeps a list so that an item is found in it without reading all of it: in chunks, unless it is small.
    fn keep_items(&mut self, i: u32, list: &Bytes, items: &[std::ops::Range<usize>]) -> Payload {
        if list.len() <= INLINE_MAX {
            return keep(list.clone(), || Field::new(""), &mut self.work.written);
        }
        let name = self.field(&format!("m{i}"));
        for (n, chunk) in items.chunks(ITEMS_PER_CHUNK as usize).enumerate() {
            let mut json = vec![b'['];
            for (k, item) in chunk.iter().enumerate() {
                if k > 0 {
                    json.push(b',');
                }
                json.extend_from_slice(list.get(item.clone()).unwrap_or_default());
            }
            json.push(b']');
            self.work.written.push((chunk_field(&name, n as u32), json.into()));
        }
        Payload::Stored { field: name, size: list.len() as u32 }
    }

    /// Begins an iteration of a loop.
    pub(super) fn begin_iteration(&mut self, i: u32, index: u32, previous: Payload, cascade: &mut Cascade) {
        let plan = self.work.state.plan_index(i);
        let block = match self.lay_out(Some(i), BlockKind::Iteration(index), plan, 1) {
            Ok(block) => block,
            Err(words) => return self.fail_task(i, &words, cascade),
        };
        let waiting = Waiting::Iterations { block, index, due: None, previous, undoing: None };
        if index == 0 {
            self.wait(i, waiting);
        } else {
            self.task_mut(i).phase = TaskPhase::Waiting(waiting);
        }
        cascade.begin(self.nodes(block).start);
    }

    /// Ends the run completed: everything else is cancelled and nothing undone.
    fn finish(&mut self, i: u32, output: Option<&Template>, cascade: &mut Cascade) {
        let (view, what, template) = match output {
            Some(template) => (View::of(i), format!("tasks.{}.finish.output", self.path(i)), Some(template)),
            None => (View::RUN, "output".to_owned(), self.plan.output.as_ref()),
        };
        match self.evaluate(view, template, || what.clone(), "output_too_large") {
            Ok(value) => {
                let field = self.field("o");
                let output = value.into_payload(|| field, &mut self.work.written);
                self.close(i, End::Completed { output: output.clone() }, EventKind::TaskCompleted, None);
                self.finish_run(output, cascade);
            }
            Err(halt) => self.halt(i, halt, cascade),
        }
    }
}

/// The field of a chunk of a list.
pub(super) fn chunk_field(list: &Field, chunk: u32) -> Field {
    Field::new(&format!("{}.{chunk}", String::from_utf8_lossy(&list.0)))
}

fn not_a(what: &str, wanted: &str, json: &[u8]) -> Words {
    let text = String::from_utf8_lossy(json.trim_ascii());
    let message = format!("{what} must be {wanted}; it came to {} {}", type_of(json), clip(&text, 64));
    Words::new("wrong_type", message)
}

/// A length of time as documents write it, or a whole number of milliseconds.
fn read_span(json: &[u8]) -> Result<Span, String> {
    let most = Span::millis(duration::MAX_MS);
    if let Ok(text) = serde_json::from_slice::<String>(json) {
        return duration::parse(&text);
    }
    match serde_json::from_slice::<i64>(json) {
        Ok(ms) if ms >= 0 && ms <= most.as_millis() => Ok(Span::millis(ms)),
        Ok(_) | Err(_) => Err(format!(
            "{} is no length of time; write text such as \"1h30m\" or whole milliseconds, at most {}",
            clip(&String::from_utf8_lossy(json), 64),
            duration::format(most)
        )),
    }
}
