//! A workflow document after validation: what the engine runs. Made only by
//! [`crate::model::expr`]-aware compilation in `document`, never by hand outside tests.

use super::expr::Template;
use super::ids::{TaskId, TaskType, WorkflowName};
use super::time::Span;
use std::collections::BTreeMap;

/// A workflow, ready to run.
#[derive(Debug)]
pub struct Plan {
    /// Its name.
    pub name: WorkflowName,
    /// For people.
    pub description: Option<String>,
    /// In document order; an index into this is a task's number everywhere.
    pub tasks: Vec<TaskPlan>,
    /// The run's output; none is null.
    pub output: Option<Template>,
    /// The run's own timeout.
    pub timeout: Option<Span>,
    /// After the first failure nothing new starts and attempts in flight are cancelled.
    pub fail_fast: bool,
    /// JSON Schema of the input, compiled.
    pub input_schema: Option<super::expr::InputSchema>,
    /// Tags of every run.
    pub tags: BTreeMap<String, String>,
    /// −100 to 100.
    pub priority: i32,
    /// How long a finished run is kept.
    pub retention: Span,
}

impl Plan {
    /// The index of a task by its id.
    pub fn index_of(&self, id: &str) -> Option<u32> {
        self.tasks.iter().position(|t| t.id.as_str() == id).map(|i| i as u32)
    }
}

/// A task, ready to run.
#[derive(Debug)]
pub struct TaskPlan {
    /// Its id.
    pub id: TaskId,
    /// What it does.
    pub kind: TaskKind,
    /// Indexes of the tasks it waits for.
    pub needs: Vec<u32>,
    /// Indexes of the tasks that wait for it.
    pub dependents: Vec<u32>,
    /// Under which outcome of its needs it runs.
    pub when: When,
    /// A condition looked at after `when`.
    pub condition: Option<Template>,
    /// Its input; none is `{}`-less null.
    pub input: Option<Template>,
    /// For attempts that fail.
    pub retry: RetryPolicy,
    /// Time limits.
    pub timeout: Timeouts,
    /// Whether a failure of this task goes on as if completed.
    pub continue_on_error: bool,
    /// Added to the run's priority.
    pub priority: i32,
    /// For people.
    pub description: Option<String>,
}

/// What a task does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TaskKind {
    /// A worker that serves this type does it.
    Worker(TaskType),
}

/// Under which outcome of its needs a task runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum When {
    /// No need failed and at least one completed.
    #[default]
    Success,
    /// At least one need failed.
    Failure,
    /// In any case.
    Always,
}

/// How attempts follow each other.
#[derive(Debug, Clone, PartialEq)]
pub struct RetryPolicy {
    /// All attempts, the first included; 1 turns retries off.
    pub max_attempts: u32,
    /// Delay before the second attempt.
    pub initial: Span,
    /// Each delay is this many times the one before; at least 1.
    pub factor: f64,
    /// Longest delay.
    pub max: Span,
    /// Share of the delay that is random, 0 to 1, taken off at the most.
    pub jitter: f64,
    /// Codes that end the task at once.
    pub non_retryable: Vec<String>,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            max_attempts: 3,
            initial: Span::secs(1),
            factor: 2.0,
            max: Span::secs(60),
            jitter: 0.2,
            non_retryable: Vec::new(),
        }
    }
}

/// Time limits of a task.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Timeouts {
    /// Waiting for a worker (wall clock, from each queueing).
    pub queue: Option<Span>,
    /// One attempt (lease clock).
    pub run: Option<Span>,
    /// Silence of one attempt (lease clock).
    pub heartbeat: Option<Span>,
    /// All attempts (wall clock, from the first queueing).
    pub total: Option<Span>,
}
