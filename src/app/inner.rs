//! What all parts of one server share, and the one place that spawns its tasks.

use super::clock::StoreClock;
use super::courier::Courier;
use super::hub::Hub;
use super::lane::envelope::Envelope;
use super::options::Options;
use super::plans::Plans;
use super::queues::Queues;
use super::ticker::Alarm;
use super::trimmer::Leaving;
use super::{AppError, error};
use crate::dispatch::Dispatcher;
use crate::model::ids::{Nonce, Partition, RunId};
use crate::store::{Layout, Store};
use parking_lot::Mutex;
use std::future::Future;
use std::sync::Arc;
use tokio::sync::{Notify, mpsc};
use tokio::task::AbortHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// See the module.
#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) layout: Layout,
    pub(crate) options: Options,
    pub(crate) clock: StoreClock,
    pub(crate) plans: Plans,
    pub(crate) dispatcher: Mutex<Dispatcher>,
    pub(crate) queues: Queues,
    pub(crate) hub: Hub,
    /// Something may be taken from a queue: credit, or an entry, has come.
    pub(crate) feed: Notify,
    /// Messages between records.
    pub(crate) courier: Courier,
    /// Deletions, which make events superfluous.
    pub(crate) leaving: Leaving,
    /// When the ticker has to look before its next beat.
    pub(crate) alarm: Alarm,
    /// This boot of this server.
    pub(crate) boot: Nonce,
    lanes: Vec<LaneDoor>,
    lane_of: Vec<usize>,
    tasks: TaskTracker,
    aborts: Mutex<Vec<AbortHandle>>,
    /// Cancelled when the server drains: no new work, streams end.
    pub(crate) draining: CancellationToken,
    /// Cancelled when the server stops.
    pub(crate) stopping: CancellationToken,
}

/// What a lane reads from. Starts come by a door of their own, so that what goes on never waits behind what is new,
/// however much of that there is.
#[derive(Debug)]
pub(crate) struct LaneInbox {
    /// Everything but starts.
    pub(crate) letters: mpsc::Receiver<Envelope>,
    /// Starts.
    pub(crate) starts: mpsc::Receiver<Envelope>,
}

#[derive(Debug)]
struct LaneDoor {
    letters: mpsc::Sender<Envelope>,
    starts: mpsc::Sender<Envelope>,
}

impl Inner {
    /// Wires a server to its store. The lanes are returned to be spawned.
    pub(crate) fn new(
        store: Arc<dyn Store>,
        options: Options,
        clock: StoreClock,
    ) -> (Arc<Self>, Vec<LaneInbox>) {
        let layout = store.layout();
        let groups = store.groups();
        let mut inboxes: Vec<LaneInbox> = Vec::new();
        let mut senders = Vec::new();
        let mut lane_of = vec![0; usize::from(layout.partitions)];
        let per_group = (options.lanes / groups.len().max(1)).max(1);
        for group in groups {
            let lanes = per_group.min(group.len()).max(1);
            for n in 0..lanes {
                let mine: Vec<_> = group.iter().copied().skip(n).step_by(lanes).collect();
                for p in &mine {
                    lane_of[usize::from(p.0)] = senders.len();
                }
                let (letters, to_letters) = mpsc::channel(options.mailbox);
                let (starts, to_starts) = mpsc::channel(options.mailbox);
                senders.push(LaneDoor { letters, starts });
                inboxes.push(LaneInbox { letters: to_letters, starts: to_starts });
            }
        }
        let boot = options.entropy.nonce();
        let inner = Self {
            plans: Plans::new(Arc::clone(&store), options.compile_inline),
            hub: Hub::new(layout),
            queues: Queues::default(),
            dispatcher: Mutex::new(Dispatcher::default()),
            feed: Notify::new(),
            alarm: Alarm::default(),
            courier: Courier::default(),
            leaving: Leaving::default(),
            store,
            layout,
            options,
            clock,
            boot,
            lanes: senders,
            lane_of,
            tasks: TaskTracker::new(),
            aborts: Mutex::new(Vec::new()),
            draining: CancellationToken::new(),
            stopping: CancellationToken::new(),
        };
        (Arc::new(inner), inboxes)
    }

    /// Each lane's share of the memory for runs, in bytes.
    pub(crate) fn cache_of_a_lane(&self) -> usize {
        self.options.cache_bytes / self.lanes.len().max(1)
    }

    /// The partition of a run.
    pub(crate) fn partition_of(&self, run: &RunId) -> Partition {
        Partition::of(run.as_str(), self.layout.partitions)
    }

    /// All partitions.
    pub(crate) fn partitions(&self) -> Vec<Partition> {
        (0..self.layout.partitions).map(Partition).collect()
    }

    fn lane(&self, partition: Partition) -> Option<&LaneDoor> {
        self.lanes.get(*self.lane_of.get(usize::from(partition.0))?)
    }

    /// Puts a command in front of its lane; waits while the lane is full.
    pub(crate) async fn send(&self, envelope: Envelope) -> Result<(), AppError> {
        let lane = self.lane(envelope.partition).ok_or_else(error::unknown_token)?;
        let door = if envelope.is_start() { &lane.starts } else { &lane.letters };
        door.send(envelope).await.map_err(|_| error::stopping())
    }

    /// Runs `task` until it ends or the server is killed.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let handle = self.tasks.spawn(task).abort_handle();
        let mut aborts = self.aborts.lock();
        if aborts.len() >= 64 && aborts.len().is_power_of_two() {
            aborts.retain(|a| !a.is_finished());
        }
        aborts.push(handle);
    }

    /// Ends every task at its next await, as a crash would.
    pub(crate) fn kill(&self) {
        self.stopping.cancel();
        self.draining.cancel();
        for a in self.aborts.lock().drain(..) {
            a.abort();
        }
        self.dispatcher.lock().close_all();
    }

    /// Waits until every task has ended.
    pub(crate) async fn ended(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }
}
