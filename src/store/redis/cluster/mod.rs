//! A Redis Cluster: a link to each primary, and the way to the one that has a slot.
//!
//! ```text
//! call ─► slot ─► map.rs: who has it? ─► its link ─► reply
//!           ▲                                │ MOVED, ASK, TRYAGAIN, no connection
//!           └───────── again, in time ◄──────┘ ─► the map is asked for anew
//!
//! tail.rs   a connection for each partition that waits for events
//! ```
//!
//! Invariants
//! - Only what was provably not carried out goes elsewhere: a node that sends us on did nothing, and neither did one
//!   that was never written to. What may have happened is the caller's to settle.
//! - All together takes no longer than one command may ([`COMMAND`]); of a node that has been away for so long already,
//!   it is said at once.
//! - A node that has no slot any more loses its link; what waits in it is answered by then.

mod map;
mod tail;

use super::keys;
use super::link::{
    self, COMMAND, Dialer, Durability, Endpoint, Lane, Link, LinkReport, Policy, Prepared, Talk, Value,
    jittered,
};
use super::{open, reply};
use crate::model::ids::Partition;
use crate::store::{Hint, Layout, Result, StoreError};
use futures::FutureExt as _;
use map::{Elsewhere, Map};
use parking_lot::{Mutex, RwLock};
use redis::Cmd;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tail::Tail;
use tokio::sync::{Notify, broadcast, watch};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::task::AbortOnDropHandle;

/// Partitions for each primary, if not told otherwise: enough to spread them over twice as many later.
pub(super) const PARTITIONS_PER_PRIMARY: u16 = 16;
/// How long to wait before a slot is tried again that nobody serves just now.
const PAUSE: Duration = Duration::from_millis(50);
/// How often a call is sent on.
const TURNS: u32 = 16;
/// How often the map is asked for if nothing asks for it.
const MAP_EVERY: Duration = Duration::from_secs(30);
/// Between two times that the map is asked for, at least.
const MAP_PAUSE: Duration = Duration::from_millis(100);
/// How long a node may take to tell the map.
const MAP_WITHIN: Duration = Duration::from_secs(1);

/// The nodes.
#[derive(Debug)]
pub(super) struct Cluster {
    dialer: Dialer,
    options: link::Options,
    layout: Layout,
    /// Where to ask if no node that we know answers.
    seeds: Vec<Endpoint>,
    map: RwLock<Map>,
    links: Mutex<BTreeMap<Endpoint, Arc<Link>>>,
    /// The map is to be asked for.
    stale: Arc<Notify>,
    /// Counts maps.
    changed: watch::Sender<u64>,
    hints: broadcast::Sender<Hint>,
    tail: Tail,
    tasks: Mutex<Vec<AbortOnDropHandle<()>>>,
}

/// A cluster that was found whole, not yet worked on.
pub(super) struct Found {
    dialer: Dialer,
    map: Map,
    links: BTreeMap<Endpoint, Prepared>,
}

/// Looks at every primary of a cluster: may we work on it?
///
/// # Errors
/// No node answers, the cluster is not whole, or one of its primaries is not to be worked on.
pub(super) async fn find(dialer: Dialer, durability: Durability, seeds: &[Endpoint]) -> Result<Found> {
    let mut tried = Tried::default();
    for seed in seeds {
        let found = async {
            let map = ask_for_map(&dialer, seed).await?;
            let links = prepare_each(&dialer, &map, durability).await?;
            Ok::<_, StoreError>((map, links))
        };
        match found.await {
            Ok((map, links)) => return Ok(Found { dialer, map, links }),
            Err(e) => tried.failed(e, seeds)?,
        }
    }
    Err(tried.nowhere())
}

/// A connection to the primary that has a key; nothing else is looked at.
///
/// # Errors
/// No node answers, or the cluster is not whole.
pub(super) async fn connect(dialer: &Dialer, seeds: &[Endpoint], key: &str) -> Result<Talk> {
    let mut tried = Tried::default();
    for seed in seeds {
        match ask_for_map(dialer, seed).await {
            Ok(map) => {
                let node = map.primary_of(keys::slot(key.as_bytes())).cloned();
                let node = node.ok_or_else(|| reply::unexpected("the slots of the cluster"))?;
                return dialer.at(node).connect().await;
            }
            Err(e) => tried.failed(e, seeds)?,
        }
    }
    Err(tried.nowhere())
}

/// Seeds that led nowhere.
#[derive(Debug, Default)]
struct Tried {
    count: usize,
    why: Option<String>,
}

impl Tried {
    /// The next one may know better, unless what it told is the end of it.
    fn failed(&mut self, error: StoreError, seeds: &[Endpoint]) -> Result<()> {
        if matches!(error, StoreError::Unreadable(_)) {
            return Err(error);
        }
        self.count += 1;
        self.why = Some(format!("{} of {}: {}", self.count, seeds.len(), reply::said(error)));
        Ok(())
    }

    fn nowhere(self) -> StoreError {
        let why = self.why.unwrap_or_else(|| "none is named".into());
        StoreError::Unavailable {
            message: format!("no node led to the whole cluster; number {why}"),
            sent: false,
        }
    }
}

/// Connects to every primary.
async fn prepare_each(
    dialer: &Dialer,
    map: &Map,
    durability: Durability,
) -> Result<BTreeMap<Endpoint, Prepared>> {
    let primaries = map.primaries();
    let mut links = BTreeMap::new();
    for (n, node) in primaries.iter().enumerate() {
        let prepared =
            open::prepared(&dialer.at((*node).clone()), durability, true).await.map_err(|e| match e {
                StoreError::Unavailable { message, sent } => StoreError::Unavailable {
                    message: format!("its primary {} of {}: {message}", n + 1, primaries.len()),
                    sent,
                },
                other => other,
            })?;
        links.insert((*node).clone(), prepared);
    }
    Ok(links)
}

async fn ask_for_map(dialer: &Dialer, node: &Endpoint) -> Result<Map> {
    let mut talk = dialer.at(node.clone()).connect().await?;
    let told = match talk.ask_within(&slots(), MAP_WITHIN).await {
        Err(e) if e.to_string().contains("cluster support disabled") => {
            return Err(StoreError::Unavailable {
                message: "it is no node of a cluster: its address begins with redis://".into(),
                sent: false,
            });
        }
        told => told?,
    };
    Map::read(told, node)
}

fn slots() -> Cmd {
    let mut cmd = redis::cmd("CLUSTER");
    cmd.arg("SLOTS");
    cmd
}

impl Found {
    /// How many primaries it has.
    pub(super) fn primaries(&self) -> usize {
        self.links.len()
    }

    /// The connection to the primary that has a key.
    pub(super) fn home_of(&mut self, key: &str) -> Result<&mut Talk> {
        let home = self.map.primary_of(keys::slot(key.as_bytes())).cloned();
        let prepared = home.and_then(|home| self.links.get_mut(&home));
        prepared.map(|p| &mut p.talk).ok_or_else(|| reply::unexpected("the slots of the cluster"))
    }
}

impl Cluster {
    /// Works on it from now on.
    pub(super) fn new(
        found: Found,
        seeds: Vec<Endpoint>,
        options: link::Options,
        layout: Layout,
        hints: broadcast::Sender<Hint>,
    ) -> Arc<Self> {
        let Found { dialer, map, links } = found;
        let links = links.into_iter().map(|(node, prepared)| {
            let link = Link::of_node(dialer.at(node.clone()), options, Some(prepared), layout, hints.clone());
            (node, Arc::new(link))
        });
        let cluster = Arc::new(Self {
            links: Mutex::new(links.collect()),
            dialer,
            options,
            layout,
            seeds,
            map: RwLock::new(map),
            stale: Arc::default(),
            changed: watch::Sender::new(0),
            hints,
            tail: Tail::new(layout.partitions),
            tasks: Mutex::default(),
        });
        let keeper = tokio::spawn(keep_map(Arc::downgrade(&cluster)));
        let listener = tokio::spawn(listen(Arc::downgrade(&cluster), keys::hints(layout.epoch)));
        *cluster.tasks.lock() = [keeper, listener].map(AbortOnDropHandle::new).into();
        cluster
    }

    /// Sends commands in one piece to whoever has the slot. Returns what each answered, errors among them.
    pub(super) async fn together(&self, slot: u16, lane: Lane, commands: &[&Cmd]) -> Result<Vec<Value>> {
        let deadline = Instant::now() + COMMAND;
        let mut node = self.primary_of(slot)?;
        let mut asking = false;
        let mut turn = 0;
        loop {
            turn += 1;
            let link = self.link(&node);
            if let Some(away) = link.away(lane, COMMAND) {
                // Who asks many does not wait for this one again and again.
                self.stale.notify_one();
                return Err(away);
            }
            let sent = if asking {
                let ask = redis::cmd("ASKING");
                // One is for one command.
                let all: Vec<&Cmd> = commands.iter().flat_map(|cmd| [&ask, *cmd]).collect();
                let values = link.together(lane, &all).await;
                values.map(|values| values.into_iter().skip(1).step_by(2).collect::<Vec<_>>())
            } else {
                link.together(lane, commands).await
            };
            drop(link);
            let in_time = turn < TURNS && Instant::now() + PAUSE < deadline;
            let elsewhere = match &sent {
                Ok(values) => match values.first() {
                    Some(Value::Error(text)) => Elsewhere::read(text, &node),
                    _ => None,
                },
                Err(StoreError::Unavailable { sent: false, .. }) => {
                    // Perhaps another has taken its place.
                    self.stale.notify_one();
                    Some(Elsewhere::Later).filter(|_| self.options.limits.policy == Policy::Queue)
                }
                Err(_) => {
                    self.stale.notify_one();
                    None
                }
            };
            let Some(elsewhere) = elsewhere.filter(|_| in_time) else { return sent };
            asking = false;
            match elsewhere {
                Elsewhere::Moved(to) => {
                    self.stale.notify_one();
                    // A node that does not know better yet would send us back and forth.
                    if turn > 2 {
                        sleep(jittered(PAUSE)).await;
                    }
                    node = to;
                }
                Elsewhere::Ask(to) => (node, asking) = (to, true),
                Elsewhere::Later => {
                    self.stale.notify_one();
                    let pause = (PAUSE * turn).min(deadline.saturating_duration_since(Instant::now()));
                    sleep(jittered(pause)).await;
                    node = self.primary_of(slot)?;
                }
            }
        }
    }

    /// Sends commands in one piece to one node. Returns what each answered, errors among them.
    pub(super) async fn together_on(&self, node: &Endpoint, commands: &[&Cmd]) -> Result<Vec<Value>> {
        self.link(node).together(Lane::Common, commands).await
    }

    /// Every primary, and how many maps there were before this one.
    pub(super) fn nodes(&self) -> (Vec<Endpoint>, u64) {
        let map = self.map.read();
        (map.primaries().into_iter().cloned().collect(), *self.changed.borrow())
    }

    fn primary_of(&self, slot: u16) -> Result<Endpoint> {
        let node = self.map.read().primary_of(slot).cloned();
        node.ok_or_else(|| reply::unexpected("the slots of the cluster"))
    }

    /// The link to a node; it is made if there is none.
    fn link(&self, node: &Endpoint) -> Arc<Link> {
        let mut links = self.links.lock();
        let make = || {
            let dialer = self.dialer.at(node.clone());
            Arc::new(Link::of_node(dialer, self.options, None, self.layout, self.hints.clone()))
        };
        Arc::clone(links.entry(node.clone()).or_insert_with(make))
    }

    /// One partition that each primary has, as far as it has any.
    pub(super) fn one_of_each(&self, partitions: u16) -> Vec<Partition> {
        let map = self.map.read();
        let mut found = BTreeMap::new();
        for partition in (0..partitions).map(Partition) {
            if let Some(node) = map.primary_of(keys::Keys::CLUSTER.slot(partition)) {
                found.entry(node).or_insert(partition);
            }
        }
        found.into_values().collect()
    }

    /// A connection of its own to the primary of a partition.
    async fn dial(&self, partition: Partition) -> Result<Talk> {
        let node = self.primary_of(keys::Keys::CLUSTER.slot(partition))?;
        self.dialer.at(node).connect().await
    }

    /// Waits for events.
    pub(super) fn tail(&self) -> &Tail {
        &self.tail
    }

    /// How each link is doing.
    pub(super) fn reports(&self) -> Vec<(String, LinkReport)> {
        let links = self.links.lock();
        links.iter().enumerate().map(|(n, (_, link))| (format!("primary {}", n + 1), link.report())).collect()
    }

    /// Takes a new map: links of nodes that have no slots go.
    fn take(&self, map: Map) {
        let moved = *self.map.read() != map;
        *self.map.write() = map;
        {
            // Always: one that only served a slot on its way, or was asked by an old map, has come meanwhile.
            let map = self.map.read();
            let primaries = map.primaries();
            self.links.lock().retain(|node, _| primaries.contains(&node));
        }
        if !moved {
            return;
        }
        tracing::info!("slots of the cluster have moved");
        self.changed.send_modify(|n| *n += 1);
        // No receiver is no fault.
        let _ = self.hints.send(Hint::Reconnected);
    }

    /// Asks for the map: those we are connected to, what most of them say; or one node after the other.
    async fn ask_around(&self) -> Option<Map> {
        let links: Vec<_> =
            self.links.lock().iter().map(|(node, link)| (node.clone(), Arc::clone(link))).collect();
        let (connected, others): (Vec<_>, Vec<_>) =
            links.into_iter().partition(|(_, link)| link.report().connected);
        let cmd = slots();
        let asked = connected.iter().map(|(node, link)| async {
            let told = timeout(MAP_WITHIN, link.together(Lane::Common, &[&cmd])).await.ok()?.ok()?.pop()?;
            Map::read(told, node).ok()
        });
        let map = self.map.read().clone();
        if let Some(map) = map::of_most(asked.collect(), &map).await {
            return Some(map);
        }
        let known = others.into_iter().map(|(node, _)| node);
        for node in known.chain(self.seeds.iter().cloned()) {
            if let Ok(Ok(map)) = timeout(2 * MAP_WITHIN, ask_for_map(&self.dialer, &node)).await {
                return Some(map);
            }
        }
        None
    }
}

/// Asks for the map whenever it may have changed.
async fn keep_map(cluster: std::sync::Weak<Cluster>) {
    loop {
        {
            let Some(cluster) = cluster.upgrade() else { return };
            if let Some(map) = cluster.ask_around().await {
                cluster.take(map);
            }
        }
        sleep(jittered(2 * MAP_PAUSE)).await;
        let Some(stale) = cluster.upgrade().map(|c| Arc::clone(&c.stale)) else { return };
        // Either way it is asked for.
        let _ = timeout(MAP_EVERY, stale.notified()).await;
    }
}

/// Hears hints: every node passes on what any of them is told.
async fn listen(cluster: std::sync::Weak<Cluster>, channel: String) {
    let mut turn = 0;
    let Some((hints, changed)) = cluster.upgrade().map(|c| (c.hints.clone(), c.changed.subscribe())) else {
        return;
    };
    let dial = || {
        turn += 1;
        let dialer = cluster.upgrade().and_then(|cluster| {
            let map = cluster.map.read();
            let nodes = map.primaries();
            let node = nodes.get(turn % nodes.len().max(1))?;
            Some(cluster.dialer.at((*node).clone()))
        });
        async move {
            let closed = || StoreError::Unavailable { message: "the store was closed".into(), sent: false };
            dialer.ok_or_else(closed)?.connect().await
        }
        .boxed()
    };
    link::listen(dial, &channel, hints, changed).await;
}
