//! Layer 4: lanes (load → decide → commit → effects), sessions, and the use cases the doors call.
//! The only caller of the engine and of `Store::commit`; names no axum, tonic or redis type.
//!
//! ```text
//! workflows, runs, bulk, claims, schedules   use cases      view, error   what they answer
//! lane/       the commit path                  doubt      calls whose outcome is not known
//! sessions    worker streams                   feeder     queue → worker, by heads of queues (queues)
//! courier     messages from run to run         plans      compiled workflows
//! records     runs as the store has them       render     … and as users read them; cursor: pages of lists
//! tail        reads the event streams          hub        who is woken by them
//! feeds       events of a run, or of all       follow     one follower of all
//! ticker      what is due                      trimmer    events of runs that are gone
//! beats       a server's sign of life          clock      the clocks of the store, as known here
//! rehearse    runs without a store             moves/     backup and restore
//! measure     what is counted for /metrics     options, inner   settings, and what all of these share
//! ```
//!
//! To add a use case: a method of [`App`] in the file of its subject, taking and giving values of [`view`].

mod beats;
pub mod bulk;
mod claims;
mod clock;
mod courier;
mod cursor;
mod doubt;
pub mod error;
mod feeder;
mod feeds;
mod follow;
mod hub;
mod inner;
mod lane;
mod measure;
pub mod moves;
mod options;
mod plans;
mod queues;
mod records;
pub(crate) mod rehearse;
mod render;
mod runs;
mod schedules;
mod sessions;
mod tail;
mod ticker;
mod trimmer;
pub mod view;
mod workflows;

pub use claims::HeartbeatAnswer;
pub use error::AppError;
pub use feeds::{EventFeed, RunFeed};
pub(crate) use measure::Histogram;
pub use measure::{LaneMeasured, Measured, Observed};
pub use options::Options;
pub use sessions::WorkerStream;

use crate::model::error::ErrorCode;
use crate::model::ids::RunId;
use crate::model::time::Span;
use crate::store::Store;
use clock::StoreClock;
use error::store_error;
use inner::Inner;
use std::sync::Arc;
use view::EventFilter;

/// Downbeat itself, without doors: cheap to clone, safe to share.
#[derive(Debug, Clone)]
pub struct App {
    inner: Arc<Inner>,
}

impl App {
    /// Starts a server's inner parts on a store: lanes, feeder, ticker, keeper of sessions, event tail.
    ///
    /// # Errors
    /// `store_unavailable` if the store does not answer the first tick.
    pub async fn launch(store: Arc<dyn Store>, options: Options) -> Result<Self, AppError> {
        let layout = store.layout();
        let partitions: Vec<_> = (0..layout.partitions).map(crate::model::ids::Partition).collect();
        let asked = tokio::time::Instant::now();
        let first = store.tick(&partitions, 1).await.map_err(store_error)?;
        let now = first.first().map(|t| t.now).unwrap_or_default();
        let clock = StoreClock::new(layout.partitions, now, asked);
        for (p, t) in partitions.iter().zip(&first) {
            clock.ticked(*p, asked, t.now, t.lease_now);
        }
        let (inner, inboxes) = Inner::new(store, options, clock);
        for inbox in inboxes {
            inner.spawn(lane::Lane::new(Arc::clone(&inner), inbox).run());
        }
        inner.spawn(feeder::run(Arc::clone(&inner)));
        inner.spawn(courier::run(Arc::clone(&inner)));
        inner.spawn(ticker::run(Arc::clone(&inner)));
        inner.spawn(ticker::run_hints(Arc::clone(&inner)));
        inner.spawn(sessions::run_keeper(Arc::clone(&inner)));
        inner.spawn(tail::run(Arc::clone(&inner)));
        inner.spawn(trimmer::run(Arc::clone(&inner)));
        Ok(Self { inner })
    }

    /// The events of one run after `cursor` (none: from its first).
    pub async fn run_events(&self, id: &RunId, cursor: Option<&str>) -> Result<RunFeed, AppError> {
        feeds::run_feed(&self.inner, id, cursor).await
    }

    /// The events of all runs after `cursor` (none: from now).
    pub async fn events(&self, filter: EventFilter, cursor: Option<&str>) -> Result<EventFeed, AppError> {
        feeds::global_feed(&self.inner, filter, cursor).await
    }

    /// Whether requests would be served now: the store takes writes and we are not draining. Err says why not. However
    /// often it is asked, the store is looked at once a second at most.
    pub async fn ready(&self) -> Result<(), AppError> {
        if self.inner.draining.is_cancelled() {
            return Err(AppError::new(ErrorCode::Overloaded, "this server is draining"));
        }
        self.inner.looked().await?;
        // The store takes writes again: the next tick shows it, and until then starts are still refused.
        let admitted = self.inner.admit_starts();
        if admitted.is_err() {
            self.inner.alarm.now();
        }
        admitted
    }

    /// Takes no new work: not ready, no assignment, workers are told to go away within `within`, feeds end. The stream
    /// of a worker that holds nothing ends at once, every other one when its worker holds nothing any more, or after
    /// `within`: what it holds then stays its own, and it resumes elsewhere.
    pub fn drain(&self, within: Span) {
        self.inner.draining.cancel();
        self.inner.dispatcher.lock().go_away(within);
        let inner = Arc::clone(&self.inner);
        self.inner.spawn(async move {
            let stopping = inner.stopping.clone();
            if stopping.run_until_cancelled(tokio::time::sleep(within.to_std())).await.is_some() {
                inner.dispatcher.lock().end_streams();
            }
        });
    }

    /// Ends everything that is left and waits for it. What was committed stays; nothing else was promised.
    pub async fn stop(&self) {
        self.inner.stopping.cancel();
        self.inner.draining.cancel();
        self.inner.dispatcher.lock().close_all();
        self.inner.ended().await;
    }

    /// Credit of this server's workers that no work fills, by type. For simulations and tests.
    pub fn free_credit(&self) -> std::collections::BTreeMap<crate::model::ids::TaskType, u32> {
        self.inner.dispatcher.lock().unfilled_credit()
    }

    /// Ends every task at its next await, as a crash would. For simulations.
    pub fn kill(&self) {
        self.inner.kill();
    }
}
