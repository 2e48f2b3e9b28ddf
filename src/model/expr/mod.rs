//! Expressions and templates: `${{ … }}` compiled at registration, evaluated under limits.

use bytes::Bytes;

/// What an expression may look at. The engine provides it from the run's state.
pub trait Scope {
    /// The run's input as JSON text.
    fn input(&self) -> &[u8];
    /// A task upstream, by its index in the plan.
    fn task(&self, index: u32) -> TaskFacts<'_>;
    /// `run.*` as a JSON object: id, workflow, version, try, created_at, tags, priority.
    fn run(&self) -> Bytes;
}

/// What an expression sees of a task.
#[derive(Debug, Clone, Copy)]
pub struct TaskFacts<'a> {
    /// As users read it.
    pub status: &'a str,
    /// JSON text; `null` if it did not complete.
    pub output: &'a [u8],
    /// Code and message of its failure.
    pub error: Option<(&'a str, &'a str)>,
}

/// What a template reads, so that the engine can have it at hand before it renders.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Root {
    /// The run's input.
    Input,
    /// A task's output.
    Output(u32),
    /// A task's status or error; needs no payload.
    Facts(u32),
    /// `run.*`; needs no payload.
    Run,
}

/// Why a template could not be rendered: ends the task, unretried.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ExprError {
    /// `expression_failed`, `missing_value`, `value_too_large`, …
    pub code: &'static str,
    /// What and where.
    pub message: String,
}

/// A JSON value with expressions in it, compiled.
#[derive(Debug)]
pub struct Template {}

impl Template {
    /// What it reads.
    pub fn roots(&self) -> &[Root] {
        &[]
    }
    /// If the whole template is one plain path into a payload: its root and the steps behind it.
    pub fn as_path(&self) -> Option<(Root, &[String])> {
        None
    }
    /// JSON text of the value. `what` names the place in messages, e.g. `tasks.ship.input`.
    pub fn render(&self, scope: &dyn Scope, what: &str) -> Result<Bytes, ExprError> {
        let _ = (scope, what);
        Ok(Bytes::from_static(b"null"))
    }
}

/// A JSON Schema, compiled.
#[derive(Debug)]
pub struct InputSchema {}

impl InputSchema {
    /// Every fault of `input` (JSON text), with JSON-pointer paths.
    pub fn check(&self, input: &[u8]) -> Vec<super::error::Fault> {
        let _ = input;
        Vec::new()
    }
}
