//! A worker: does tasks of some types over one bidirectional stream, for as long as it is asked to.
//!
//! ```no_run
//! use downbeat::client::{TaskError, Worker};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let worker = Worker::builder("http://127.0.0.1:7070")
//!     .label("greeter-1")
//!     .handle("greet", 8, |task| async move {
//!         let input: serde_json::Value = task.json()?;
//!         let name = input["name"].as_str().ok_or_else(|| TaskError::permanent("no_name", "whom?"))?;
//!         TaskError::json(&serde_json::json!({ "text": format!("Hello, {name}!") }))
//!     })
//!     .build()?;
//! worker.run().await?;
//! # Ok(())
//! # }
//! ```
//!
//! Invariants
//! - The stream is always read: a handler never runs on the task that reads it, so pings are answered and
//!   assignments acknowledged whatever the handlers do.
//! - Never more handlers of a type at once than its concurrency, which is also the credit it grants.
//! - Every assignment gets exactly one result, and a result is kept and sent again on the next stream until the
//!   server has acknowledged it.
//! - A handler that panics has failed; it takes nothing else with it.
//! - Dropping the stream loses nothing: the next one names the session and every token still held.
//!
//! [`link`] is one stream, [`session`] the state that outlives streams; [`stream`] is one stream without handlers.

mod link;
mod session;
mod stream;

use bytes::Bytes;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use session::Session;
use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
pub(crate) use stream::Connection;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

/// Why a handler did not do its task.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{code}: {message}")]
pub struct TaskError {
    /// A stable word; `retry.non_retryable` of the workflow is matched against it.
    pub code: String,
    /// For people.
    pub message: String,
    /// False ends the task, whatever its retry policy says.
    pub retryable: bool,
    /// Replaces the delay of the retry policy.
    pub retry_after: Option<Duration>,
}

impl TaskError {
    /// A failure that the retry policy decides about.
    pub fn new(code: impl Into<String>, message: impl Into<String>) -> Self {
        Self { code: code.into(), message: message.into(), retryable: true, retry_after: None }
    }

    /// A failure that trying again cannot mend.
    pub fn permanent(code: impl Into<String>, message: impl Into<String>) -> Self {
        Self { retryable: false, ..Self::new(code, message) }
    }

    /// The same failure, to be tried again after `delay` instead of the policy's.
    pub fn after(self, delay: Duration) -> Self {
        Self { retry_after: Some(delay), ..self }
    }

    /// A handler's result from any serialisable value.
    ///
    /// # Errors
    /// `invalid_output`, permanent, if the value has no JSON form.
    pub fn json<T: serde::Serialize>(value: &T) -> Result<Bytes, Self> {
        match serde_json::to_vec(value) {
            Ok(json) => Ok(json.into()),
            Err(e) => Err(Self::permanent("invalid_output", e.to_string())),
        }
    }
}

/// One attempt, as a handler gets it.
#[derive(Debug)]
#[expect(clippy::struct_field_names, reason = "`type` alone is a keyword")]
pub struct Task {
    run: String,
    path: String,
    task_type: String,
    attempt: u32,
    input: Bytes,
    deadline_us: i64,
    trace: String,
    control: Arc<Control>,
    beats: Arc<Beats>,
}

impl Task {
    /// The id of the run.
    pub fn run(&self) -> &str {
        &self.run
    }

    /// Where the task stands in its run, e.g. `charge`.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// What is to be done.
    pub fn task_type(&self) -> &str {
        &self.task_type
    }

    /// Which try this is, from 1.
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// The input as JSON text.
    pub fn input(&self) -> &Bytes {
        &self.input
    }

    /// The input as a value.
    ///
    /// # Errors
    /// `invalid_input`, permanent, if the input does not have the shape of `T`.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, TaskError> {
        serde_json::from_slice(&self.input)
            .map_err(|e| TaskError::permanent("invalid_input", format!("the input of {}: {e}", self.path)))
    }

    /// When the attempt times out: microseconds since the Unix epoch, on the server's clock.
    pub fn deadline_us(&self) -> Option<i64> {
        (self.deadline_us > 0).then_some(self.deadline_us)
    }

    /// The W3C `traceparent` of the attempt; empty for none.
    pub fn trace(&self) -> &str {
        &self.trace
    }

    /// Whether the work is no longer wanted (run cancelled, attempt fenced, worker shutting down).
    pub fn is_cancelled(&self) -> bool {
        self.control.cancelled.load(Ordering::Acquire)
    }

    /// Waits until the work is no longer wanted.
    pub async fn cancelled(&self) {
        self.control.wait().await;
    }

    /// Something to wait on and report with while the task itself is moved elsewhere.
    pub fn signals(&self) -> TaskSignals {
        TaskSignals { control: Arc::clone(&self.control), beats: Arc::clone(&self.beats) }
    }

    /// Tells the server that the attempt is alive, with optional progress (JSON text). Matters where the
    /// workflow sets `timeout.heartbeat`. Never waits; of many in a short time only the last is sent.
    pub fn heartbeat(&self, progress: Option<Bytes>) {
        self.beats.beat(&self.control, progress);
    }
}

/// Cancellation and heartbeats of one attempt, apart from its [`Task`].
#[derive(Debug, Clone)]
pub struct TaskSignals {
    control: Arc<Control>,
    beats: Arc<Beats>,
}

impl TaskSignals {
    /// Waits until the work is no longer wanted.
    pub async fn cancelled(&self) {
        self.control.wait().await;
    }

    /// See [`Task::heartbeat`].
    pub fn heartbeat(&self, progress: Option<Bytes>) {
        self.beats.beat(&self.control, progress);
    }
}

/// What the session and a handler share about one attempt.
#[derive(Debug, Default)]
struct Control {
    cancelled: AtomicBool,
    changed: Notify,
    token: String,
    /// The heartbeat that was not sent yet.
    beat: Mutex<Option<Beat>>,
}

#[derive(Debug)]
struct Beat {
    /// JSON text.
    progress: Option<Bytes>,
}

impl Control {
    fn cancel(&self) {
        self.cancelled.store(true, Ordering::Release);
        self.changed.notify_waiters();
    }

    async fn wait(&self) {
        loop {
            let changed = self.changed.notified();
            if self.cancelled.load(Ordering::Acquire) {
                return;
            }
            changed.await;
        }
    }
}

/// Attempts with a heartbeat to send; each at most once, so it is bounded by what is in flight.
#[derive(Debug, Default)]
struct Beats {
    fresh: Mutex<Vec<Arc<Control>>>,
    changed: Notify,
}

impl Beats {
    fn beat(&self, control: &Arc<Control>, progress: Option<Bytes>) {
        let mut beat = control.beat.lock();
        let first = beat.is_none();
        let progress = progress.or_else(|| beat.take().and_then(|b| b.progress));
        *beat = Some(Beat { progress });
        drop(beat);
        if first {
            self.fresh.lock().push(Arc::clone(control));
            self.changed.notify_one();
        }
    }
}

type Handler = Arc<dyn Fn(Task) -> BoxFuture<'static, Result<Bytes, TaskError>> + Send + Sync>;

/// Why a worker could not be built, or stopped before it was asked to.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WorkerError {
    /// The address is not one of a Downbeat server.
    #[error("{url:?} is not an address like http://127.0.0.1:7070: {reason}")]
    Address {
        /// What stood there.
        url: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A worker without handlers does nothing; two handlers of one type cannot both have it.
    #[error("{0}")]
    Handlers(String),
    /// The server refused the session in a way that trying again cannot mend.
    #[error("the server refused this worker: {0}")]
    Refused(String),
    /// No server answered in the time given for the first connection.
    #[error("no server could be reached at {url}: {reason}")]
    Unreachable {
        /// The address.
        url: String,
        /// What the last try said.
        reason: String,
    },
}

/// Settings of a [`Worker`].
pub struct WorkerBuilder {
    url: String,
    label: String,
    labels: BTreeMap<String, String>,
    slots: Vec<session::Slot>,
    connect_within: Option<Duration>,
    cancel_grace: Duration,
}

impl fmt::Debug for WorkerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkerBuilder")
            .field("url", &self.url)
            .field("label", &self.label)
            .finish_non_exhaustive()
    }
}

impl WorkerBuilder {
    /// The worker's name, for people. Two processes with one label are two workers.
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.label = label.into();
        self
    }

    /// What the worker has, such as `("region", "eu")`: of all its types it is also given tasks that ask for any of
    /// these labels. At most 8; keys and values are 1 to 64 letters, digits, `.`, `_` or `-`. Called again, it adds.
    pub fn labels<K, V>(mut self, labels: impl IntoIterator<Item = (K, V)>) -> Self
    where
        K: Into<String>,
        V: Into<String>,
    {
        self.labels.extend(labels.into_iter().map(|(key, value)| (key.into(), value.into())));
        self
    }

    /// Serves `task_type` with at most `concurrency` handlers at once.
    ///
    /// Each attempt is a task of the runtime. A type whose handlers prove to be ready at once (they wait for
    /// nothing and take microseconds) is then served without one, until one of them is slow.
    pub fn handle<F, Fut>(mut self, task_type: impl Into<String>, concurrency: u32, handler: F) -> Self
    where
        F: Fn(Task) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Bytes, TaskError>> + Send + 'static,
    {
        let handler: Handler = Arc::new(move |task| Box::pin(handler(task)));
        self.slots.push(session::Slot::new(task_type.into(), concurrency, handler));
        self
    }

    /// Gives up if the first connection is not made within this time. Without it, a worker tries for ever.
    pub fn connect_within(mut self, limit: Duration) -> Self {
        self.connect_within = Some(limit);
        self
    }

    /// How long a handler may take to end after it was cancelled by a shutdown; 5 s by default.
    pub fn cancel_grace(mut self, grace: Duration) -> Self {
        self.cancel_grace = grace;
        self
    }

    /// The worker; it connects when it is run.
    ///
    /// # Errors
    /// [`WorkerError::Address`] and [`WorkerError::Handlers`].
    pub fn build(self) -> Result<Worker, WorkerError> {
        if self.slots.is_empty() {
            return Err(WorkerError::Handlers("a worker needs at least one handler".into()));
        }
        for (n, slot) in self.slots.iter().enumerate() {
            if slot.concurrency == 0 {
                return Err(WorkerError::Handlers(format!(
                    "concurrency of {} must be at least 1",
                    slot.task_type
                )));
            }
            if self.slots[..n].iter().any(|s| s.task_type == slot.task_type) {
                return Err(WorkerError::Handlers(format!("{} has two handlers", slot.task_type)));
            }
        }
        let endpoint = link::endpoint(&self.url)?;
        let (stop, stopped) = watch::channel(None);
        let (state, states) = watch::channel(None);
        Ok(Worker {
            session: Session::new(session::Settings {
                endpoint,
                url: self.url,
                label: self.label,
                labels: self.labels,
                slots: self.slots,
                connect_within: self.connect_within,
                cancel_grace: self.cancel_grace,
                stopped,
                state,
            }),
            handle: WorkerHandle { stop, states },
        })
    }
}

/// A worker. See the module.
pub struct Worker {
    session: Session,
    handle: WorkerHandle,
}

impl fmt::Debug for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Worker").finish_non_exhaustive()
    }
}

impl Worker {
    /// Begins to describe a worker of the server at `url`.
    pub fn builder(url: impl Into<String>) -> WorkerBuilder {
        WorkerBuilder {
            url: url.into(),
            label: format!("worker-{}", std::process::id()),
            labels: BTreeMap::new(),
            slots: Vec::new(),
            connect_within: None,
            cancel_grace: Duration::from_secs(5),
        }
    }

    /// To stop it and to watch it while it runs.
    pub fn handle(&self) -> WorkerHandle {
        self.handle.clone()
    }

    /// Works until [`WorkerHandle::shutdown`].
    ///
    /// # Errors
    /// [`WorkerError::Refused`] and [`WorkerError::Unreachable`]; a lost connection is none.
    pub async fn run(self) -> Result<(), WorkerError> {
        let Self { session, handle } = self;
        let result = session.run().await;
        drop(handle);
        result
    }
}

/// Stops and watches a running [`Worker`].
#[derive(Debug, Clone)]
pub struct WorkerHandle {
    stop: watch::Sender<Option<Instant>>,
    states: watch::Receiver<Option<String>>,
}

impl WorkerHandle {
    /// Takes no more work, gives back what was not started, lets running handlers finish for `grace`, then
    /// cancels them and gives back what is left. Called again, it can only shorten the time. Returns at once;
    /// [`Worker::run`] ends when it is done.
    pub fn shutdown(&self, grace: Duration) {
        let until = Instant::now() + grace;
        self.stop.send_modify(|at| *at = Some(at.map_or(until, |earlier: Instant| earlier.min(until))));
    }

    /// Waits until the worker has a session and returns its id; `None` if it ended instead.
    pub async fn connected(&mut self) -> Option<String> {
        self.states.wait_for(Option::is_some).await.ok().and_then(|state| state.clone())
    }
}
