//! Every key of a document, by the map it stands in. The readers take their keys from here, and the JSON Schema is
//! held against these lists.

/// Keys of the document itself.
pub(super) const DOCUMENT: [&str; 11] = [
    "name",
    "description",
    "input",
    "tasks",
    "finally",
    "output",
    "timeout",
    "fail_fast",
    "tags",
    "priority",
    "retention",
];

/// The kinds of a task: exactly one of them stands in each.
pub(super) const KINDS: [&str; 7] = ["type", "workflow", "tasks", "wait", "set", "fail", "finish"];

/// Keys of any task.
pub(super) const ANY: [&str; 9] =
    ["needs", "when", "if", "for_each", "max_parallel", "tolerate", "repeat", "on_error", "description"];

/// Keys that go with some kinds only.
pub(super) const SOME: [(&str, &[&str]); 10] = [
    ("input", &["type", "workflow"]),
    ("output", &["tasks"]),
    ("fail_fast", &["tasks"]),
    ("retry", &["type", "workflow"]),
    ("timeout", &["type", "workflow", "tasks", "wait"]),
    ("compensate", &["type", "workflow", "tasks"]),
    ("priority", &["type", "workflow"]),
    ("labels", &["type"]),
    ("concurrency", &["type", "workflow", "tasks"]),
    ("rate", &["type", "workflow"]),
];

/// Keys of `finally`, where it is not just a map of tasks.
pub(super) const FINALLY: [&str; 2] = ["tasks", "timeout"];
/// Keys of `workflow`.
pub(super) const WORKFLOW: [&str; 3] = ["name", "version", "detach"];
/// Keys of `wait`, of which one stands there.
pub(super) const WAIT: [&str; 3] = ["for", "until", "signal"];
/// Keys of `fail`.
pub(super) const FAIL: [&str; 2] = ["code", "message"];
/// Keys of `finish`.
pub(super) const FINISH: [&str; 1] = ["output"];
/// Keys of `repeat`.
pub(super) const REPEAT: [&str; 3] = ["while", "max", "delay"];
/// Keys of `concurrency`.
pub(super) const CONCURRENCY: [&str; 2] = ["key", "limit"];
/// Keys of `rate`.
pub(super) const RATE: [&str; 3] = ["key", "limit", "per"];
/// Keys of `compensate`.
pub(super) const COMPENSATE: [&str; 5] = ["type", "input", "retry", "timeout", "labels"];
/// Keys of `retry`.
pub(super) const RETRY: [&str; 6] = ["max_attempts", "initial", "factor", "max", "jitter", "non_retryable"];
/// Keys of `timeout` where a worker does the task.
pub(super) const TIMEOUT: [&str; 4] = ["queue", "run", "heartbeat", "total"];
/// Those of them that any other kind has.
pub(super) const TIMEOUT_OTHER: [&str; 1] = ["total"];

/// All keys of a task, whatever its kind.
pub(super) fn task() -> Vec<&'static str> {
    let some = SOME.iter().map(|(key, _)| *key);
    KINDS.iter().chain(&ANY).copied().chain(some).collect()
}
