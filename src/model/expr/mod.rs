//! Expressions and templates: `${{ … }}` compiled at registration, evaluated under limits.
//!
//! ```text
//! lex       text → literal parts and tokens
//! analyse   tokens → plain paths, `path | default(…)`, or a program with its paths taken out
//! program   a computed expression: compiled, run with fuel, JSON in and out
//! lookup    what a template reads: every path, found in one pass per payload
//! template  a JSON value with expressions in it
//! schema    JSON Schema of a workflow's input
//! ```
//!
//! Invariants
//! - A plain path copies bytes; nothing in between parses or rebuilds them.
//! - What comes from data is never looked at for `${{`.
//! - Every name, filter and test is known at registration. A path that is missing at run time is an error that
//!   names it, unless `default(…)` or `is defined` stands behind it.
//! - Computed expressions work on integers of 128 bits exactly and on floats as IEEE doubles; a number they would
//!   have to round on the way in is refused. Arithmetic with a float is float arithmetic.
//! - Compiling may need a deep stack and is done on a thread that has one (see [`on_deep_stack`]); evaluating does not.
//!
//! To let expressions see one more thing: add it to [`Root`] and [`Scope`], to `Source` in `lookup`, and name it
//! in `analyse`.

mod analyse;
mod lex;
mod lookup;
mod program;
mod schema;
mod template;
#[cfg(test)]
mod tests;

pub use schema::InputSchema;
pub use template::Template;

pub(crate) use analyse::{Names, Place};
pub(crate) use lex::{has_expression, is_one_expression};

use bytes::Bytes;

/// What an expression may look at. The engine provides it from the run's state.
pub trait Scope {
    /// The run's input as JSON text.
    fn input(&self) -> &[u8];
    /// A task upstream, by its index in the plan.
    fn task(&self, index: u32) -> TaskFacts<'_>;
    /// `run.*` as a JSON object: id, workflow, version, try, created_at, tags, priority, schedule (name and
    /// slot, or null); in `finally` also status and error.
    fn run(&self) -> Bytes;
    /// The item of the nearest `for_each` around, as JSON text; its index.
    fn item(&self) -> (&[u8], u32);
    /// The nearest `repeat` around: `loop.index`, and `loop.output` and `loop.previous` as JSON text.
    fn iteration(&self) -> LoopFacts<'_>;
}

/// What an expression sees of a `repeat`.
#[derive(Debug, Clone, Copy)]
pub struct LoopFacts<'a> {
    /// From 0.
    pub index: u32,
    /// Output of the iteration that has just ended; null elsewhere than in `while` and `delay`.
    pub output: &'a [u8],
    /// Output of the iteration before; null in the first.
    pub previous: &'a [u8],
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
    /// The item of the nearest `for_each` around.
    Item,
    /// Its index.
    Index,
    /// `loop.index`.
    LoopIndex,
    /// `loop.output`.
    LoopOutput,
    /// `loop.previous`.
    LoopPrevious,
}

/// Why a template could not be rendered: ends the task, unretried.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ExprError {
    /// `expression_failed`, `missing_value`, `number_out_of_range`, `value_too_large` or `value_too_deep`.
    pub code: &'static str,
    /// What and where.
    pub message: String,
}

/// Stack of the thread that compiles: room for the deepest chain a 4 KiB expression can hold, with a wide margin.
const DEEP_STACK: usize = 32 << 20;

/// Runs `work` on a thread with a deep stack and waits for it. `None` if there is no thread to be had.
///
/// Compilers recurse along chains (`-----x`, `x+x+x`), which no guard of theirs counts; on a small stack that
/// ends the process.
pub(crate) fn on_deep_stack<T: Send>(work: impl FnOnce() -> T + Send) -> Option<T> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("compile".to_owned()).stack_size(DEEP_STACK);
        thread.spawn_scoped(scope, work).ok()?.join().ok()
    })
}
