//! A workflow document after validation: what the engine runs. Made only by
//! [`crate::model::expr`]-aware compilation in `document`, never by hand outside tests.

use super::expr::Template;
use super::ids::{TaskId, TaskType, WorkflowName};
use super::labels::Labels;
use super::time::Span;
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::OnceLock;

/// A workflow, ready to run.
#[derive(Debug)]
pub struct Plan {
    /// Its name.
    pub name: WorkflowName,
    /// Names the text it was compiled from; 0 if it was not stored. See [`RunState::document`].
    ///
    /// [`RunState::document`]: super::run::RunState::document
    pub digest: u32,
    /// For people.
    pub description: Option<String>,
    /// Every task of the document; an index into this is a task's number everywhere. The tasks of one body (of the
    /// run, of a group, of `finally`) stand together in document order, the run's own first.
    pub tasks: Vec<TaskPlan>,
    /// The run's own tasks: `0..n`.
    pub body: Range<u32>,
    /// The group of what is done last: index of a task of kind `Group` with the id `finally`.
    pub finally: Option<u32>,
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
    /// For [`Plan::index_of`], [`Plan::computes`] and [`Plan::is_limited`].
    pub index: Index,
}

impl Plan {
    /// The index of a task by its id, wherever it stands; `finally` names the group of that name. Compensations
    /// have no id of their own.
    pub fn index_of(&self, id: &str) -> Option<u32> {
        self.index.ids.get_or_init(|| Index::of(&self.tasks)).get(id).copied()
    }

    /// Whether anything in it has to be computed: expressions that are more than plain paths.
    pub fn computes(&self) -> bool {
        let computed = |t: &Option<Template>| t.as_ref().is_some_and(|t| t.computed() > 0);
        let task = |t: &TaskPlan| {
            let kind = match &t.kind {
                TaskKind::Worker(_) => false,
                TaskKind::Group(group) => computed(&group.output),
                TaskKind::Finish { output } => computed(output),
                TaskKind::WorkerOf(t)
                | TaskKind::Set(t)
                | TaskKind::Workflow(Child { workflow: t, .. })
                | TaskKind::Wait(Wait::For(t) | Wait::Until(t) | Wait::Signal(t)) => t.computed() > 0,
                TaskKind::Fail { code, message } => code.computed() + message.computed() > 0,
            };
            let each = t.for_each.as_ref().is_some_and(|e| e.items.computed() > 0);
            let again = t.repeat.as_ref().is_some_and(|r| computed(&r.condition) || computed(&r.delay));
            let keys = t.concurrency.as_ref().is_some_and(|c| c.key.computed() > 0)
                || t.rate.as_ref().is_some_and(|r| r.key.computed() > 0);
            kind || each || again || keys || computed(&t.condition) || computed(&t.input)
        };
        *self.index.computes.get_or_init(|| computed(&self.output) || self.tasks.iter().any(task))
    }

    /// Whether any task is limited by `concurrency` or `rate`.
    pub fn is_limited(&self) -> bool {
        let limited = |t: &TaskPlan| t.concurrency.is_some() || t.rate.is_some();
        *self.index.limits.get_or_init(|| self.tasks.iter().any(limited))
    }
}

/// Looked into with every result and every lease.
type Ids = HashMap<String, u32, foldhash::fast::RandomState>;

/// What is worked out of a plan when it is first asked for.
#[derive(Default)]
pub struct Index {
    ids: OnceLock<Ids>,
    computes: OnceLock<bool>,
    limits: OnceLock<bool>,
}

impl Index {
    fn of(tasks: &[TaskPlan]) -> Ids {
        let named = (0..).zip(tasks).filter(|(_, t)| t.role != Role::Compensation);
        named.map(|(i, t)| (t.id.as_str().to_owned(), i)).collect()
    }
}

impl std::fmt::Debug for Index {
    /// Says nothing: plans are compared as text, and this is made of what stands in them.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Index")
    }
}

/// What a task is there for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// It is one of the tasks of a body.
    Task,
    /// It undoes the task it stands in; its id is `compensate`.
    Compensation,
    /// It is the group of what is done last; its id is `finally`.
    Finally,
}

/// A task, ready to run. Nesting on one task: item (`for_each`) > iteration (`repeat`) > attempt.
#[derive(Debug)]
pub struct TaskPlan {
    /// Its id: unique in the document, but for compensations.
    pub id: TaskId,
    /// What it is there for.
    pub role: Role,
    /// The group it stands in (for a compensation: the task it undoes); none for the run's own and `finally`.
    pub parent: Option<u32>,
    /// What it does.
    pub kind: TaskKind,
    /// Indexes of the tasks it waits for, all of its body.
    pub needs: Vec<u32>,
    /// Indexes of the tasks that wait for it.
    pub dependents: Vec<u32>,
    /// Under which outcome of its needs it runs.
    pub when: When,
    /// A condition looked at after `when`, once, before any item.
    pub condition: Option<Template>,
    /// Its input; none is null. Of kinds `Worker`, `WorkerOf` and `Workflow`.
    pub input: Option<Template>,
    /// Runs it once for each item of a list.
    pub for_each: Option<ForEach>,
    /// Runs it again and again.
    pub repeat: Option<Repeat>,
    /// For attempts that fail. Of kinds `Worker`, `WorkerOf` and `Workflow`; one attempt for all others.
    pub retry: RetryPolicy,
    /// Time limits of each item and iteration.
    pub timeout: Timeouts,
    /// How many may go on at once, over all workflows; each item and iteration counts. Of kinds `Worker`, `WorkerOf`,
    /// `Workflow` and `Group`.
    pub concurrency: Option<Concurrency>,
    /// How many attempts may start in a time, over all workflows. Of kinds `Worker`, `WorkerOf` and `Workflow`.
    pub rate: Option<Rate>,
    /// Whether a failure of this task goes on as if completed.
    pub continue_on_error: bool,
    /// The task that undoes this one once it has completed.
    pub compensate: Option<u32>,
    /// Added to the run's priority.
    pub priority: i32,
    /// What a worker must have to be given it. Of kinds `Worker` and `WorkerOf`.
    pub labels: Labels,
    /// For people.
    pub description: Option<String>,
}

/// What a task does.
#[derive(Debug)]
pub enum TaskKind {
    /// A worker that serves this type does it.
    Worker(TaskType),
    /// A worker does it; the type is chosen when the task starts.
    WorkerOf(Template),
    /// A run of another workflow does it.
    Workflow(Child),
    /// The tasks in it do it.
    Group(Group),
    /// It waits.
    Wait(Wait),
    /// It is this value at once.
    Set(Template),
    /// It fails its scope at once.
    Fail {
        /// The error's code, text.
        code: Template,
        /// For people, text.
        message: Template,
    },
    /// It ends the run completed.
    Finish {
        /// The run's output in place of that of the document; none: that of the document.
        output: Option<Template>,
    },
}

/// Tasks in a task.
#[derive(Debug)]
pub struct Group {
    /// Their indexes.
    pub body: Range<u32>,
    /// What it comes to; none is its tasks' outputs by id.
    pub output: Option<Template>,
    /// As [`Plan::fail_fast`], for this group.
    pub fail_fast: bool,
}

/// A run of another workflow.
#[derive(Debug)]
pub struct Child {
    /// Name of the workflow, text.
    pub workflow: Template,
    /// Its version; none is the newest when the child starts.
    pub version: Option<u32>,
    /// The task is completed once the child has started, with `{"run": id}`.
    pub detach: bool,
}

/// What a task waits for.
#[derive(Debug)]
pub enum Wait {
    /// A length of time: text as in documents, or whole milliseconds as a number.
    For(Template),
    /// An instant: RFC 3339.
    Until(Template),
    /// A signal of this name, text.
    Signal(Template),
}

/// One task for each item of a list.
#[derive(Debug)]
pub struct ForEach {
    /// The list.
    pub items: Template,
    /// Most items at once; none is all.
    pub max_parallel: Option<u32>,
    /// How many items may fail.
    pub tolerate: Tolerate,
}

/// How many items of a list may fail before the task fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tolerate {
    /// So many.
    Count(u32),
    /// So many of a hundred, 0 to 100; a part of an item is none.
    Percent(u32),
}

impl Tolerate {
    /// How many of `items` may fail.
    pub fn of(self, items: u32) -> u32 {
        match self {
            Self::Count(n) => n,
            Self::Percent(p) => (u64::from(items) * u64::from(p) / 100) as u32,
        }
    }
}

/// A task again and again.
#[derive(Debug)]
pub struct Repeat {
    /// Looked at after each iteration: whether there is another; none: always.
    pub condition: Option<Template>,
    /// Most iterations, at least 1. With a condition that still holds then, the task fails.
    pub max: u32,
    /// Between the end of one and the start of the next, as [`Wait::For`]; none is at once.
    pub delay: Option<Template>,
}

/// Longest key of [`Concurrency`] and [`Rate`], bytes.
pub const LIMIT_KEY_MAX: usize = 256;

/// A task that goes on only while it has one of so many slots.
#[derive(Debug)]
pub struct Concurrency {
    /// Names the slots: text, or a number or boolean that is taken as text.
    pub key: Template,
    /// Slots there are, at least 1.
    pub limit: u32,
}

/// A task whose attempts start no faster than this.
#[derive(Debug)]
pub struct Rate {
    /// Names what is counted, as [`Concurrency::key`].
    pub key: Template,
    /// Starts in all of `per`, at least 1.
    pub limit: u32,
    /// In this time, at most a day.
    pub per: Span,
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
