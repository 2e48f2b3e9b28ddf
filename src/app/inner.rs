//! What all parts of one server share, and the one place that spawns its tasks.

use super::beats;
use super::clock::StoreClock;
use super::courier::Courier;
use super::hub::Hub;
use super::lane::envelope::Envelope;
use super::measure::{LaneGauges, LaneMeasured, Measures, Stuck};
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
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tokio::sync::{Notify, mpsc};
use tokio::task::AbortHandle;
use tokio::time::Instant;
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
    /// What is counted.
    pub(crate) measures: Measures,
    /// Since when the store has not answered a tick: there is always one soon.
    pub(crate) pulse: Stuck,
    /// This boot of this server.
    pub(crate) boot: Nonce,
    /// Epochs of sessions, as this server has seen them.
    pub(crate) epochs: beats::Epochs,
    lanes: Vec<LaneDoor>,
    lane_of: Vec<usize>,
    tasks: TaskTracker,
    aborts: Mutex<Vec<AbortHandle>>,
    /// What the last look at the store has shown, and when.
    look: tokio::sync::Mutex<Option<(Instant, Result<(), AppError>)>>,
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
    /// Where the lane says how it stands.
    pub(crate) gauges: Arc<LaneGauges>,
}

#[derive(Debug)]
struct LaneDoor {
    letters: mpsc::Sender<Envelope>,
    starts: mpsc::Sender<Envelope>,
    gauges: Arc<LaneGauges>,
}

/// A start waits no longer than this for a place in front of its lane.
const START_WAIT: Duration = Duration::from_secs(1);
/// When the store has taken nothing, or answered nothing, for this long although it was asked, starts are turned away at
/// once. A busy store may be silent for less: while it forks, say.
const STRAINED_AFTER: Duration = Duration::from_secs(2);
/// The store is asked whether it takes writes this often at most: a look is a write, and anybody may ask for readiness.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How long a look may take.
const LOOK_WITHIN: Duration = Duration::from_secs(2);

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
                let gauges = Arc::new(LaneGauges::default());
                senders.push(LaneDoor { letters, starts, gauges: Arc::clone(&gauges) });
                inboxes.push(LaneInbox { letters: to_letters, starts: to_starts, gauges });
            }
        }
        let boot = options.entropy.nonce();
        let inner = Self {
            plans: Plans::new(Arc::clone(&store), options.compile_inline),
            hub: Hub::new(layout, store.groups()),
            queues: Queues::default(),
            dispatcher: Mutex::new(Dispatcher::default()),
            feed: Notify::new(),
            alarm: Alarm::default(),
            measures: Measures::new(layout.partitions),
            pulse: Stuck::default(),
            courier: Courier::default(),
            leaving: Leaving::default(),
            store,
            layout,
            options,
            clock,
            boot,
            epochs: beats::Epochs::default(),
            lanes: senders,
            lane_of,
            tasks: TaskTracker::new(),
            aborts: Mutex::new(Vec::new()),
            look: tokio::sync::Mutex::default(),
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

    /// Puts a command in front of its lane; waits while the lane is full. A start is turned away instead, before
    /// anything of it is done: at once while the store takes nothing, and soon if too many wait.
    pub(crate) async fn send(&self, envelope: Envelope) -> Result<(), AppError> {
        let lane = self.lane(envelope.partition).ok_or_else(error::unknown_token)?;
        if !envelope.is_start() {
            return lane.letters.send(envelope).await.map_err(|_| error::stopping());
        }
        self.admit(lane.gauges.stuck.long())?;
        let envelope = match lane.starts.try_send(envelope) {
            Ok(()) => return Ok(()),
            Err(mpsc::error::TrySendError::Closed(_)) => return Err(error::stopping()),
            Err(mpsc::error::TrySendError::Full(envelope)) => envelope,
        };
        if let Ok(sent) = tokio::time::timeout(START_WAIT, lane.starts.send(envelope)).await {
            return sent.map_err(|_| error::stopping());
        }
        self.measures.starts_crowded.fetch_add(1, Relaxed);
        Err(error::crowded())
    }

    /// Whether a start may go on, where the store has taken nothing for `stuck`.
    fn admit(&self, stuck: Duration) -> Result<(), AppError> {
        let stuck = stuck.max(self.pulse.long());
        if stuck < STRAINED_AFTER {
            return Ok(());
        }
        self.measures.starts_strained.fetch_add(1, Relaxed);
        Err(error::strained(stuck))
    }

    /// Whether starts may be looked at: not while the store would not even say which workflow is meant.
    pub(crate) fn admit_starts(&self) -> Result<(), AppError> {
        self.admit(self.lanes.iter().map(|lane| lane.gauges.stuck.long()).min().unwrap_or_default())
    }

    /// Whether the store takes writes, as it was seen within the last second. Who asks while it is being looked at
    /// waits, and shares what is seen.
    pub(crate) async fn looked(&self) -> Result<(), AppError> {
        let mut look = self.look.lock().await;
        if let Some((at, seen)) = &*look
            && at.elapsed() < LOOK_EVERY
        {
            return seen.clone();
        }
        let check = tokio::time::timeout(LOOK_WITHIN, self.store.check()).await;
        let seen = check.map_err(|_| error::too_slow()).and_then(|seen| seen.map_err(error::store_error));
        *look = Some((Instant::now(), seen.clone()));
        seen
    }

    /// For how long the store has taken nothing, or not answered.
    pub(crate) fn stuck(&self) -> Duration {
        let lanes = self.lanes.iter().map(|lane| lane.gauges.stuck.long());
        lanes.max().unwrap_or_default().max(self.pulse.long())
    }

    /// How each lane stands.
    pub(crate) fn lanes_measured(&self) -> Vec<LaneMeasured> {
        let in_front = |door: &mpsc::Sender<Envelope>| (door.max_capacity() - door.capacity()) as u64;
        let one = |lane: &LaneDoor| {
            let g = &lane.gauges;
            let (waiting, starts) = (g.waiting.load(Relaxed), g.starts.load(Relaxed));
            LaneMeasured {
                letters: waiting.saturating_sub(starts) + in_front(&lane.letters),
                starts: starts + in_front(&lane.starts),
                commits: g.commits.load(Relaxed),
                cached: g.cached.load(Relaxed),
            }
        };
        self.lanes.iter().map(one).collect()
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
