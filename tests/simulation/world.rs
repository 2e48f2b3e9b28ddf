//! The world of one seed: one store in memory, several servers on it, time that only moves when nothing else
//! does. Everything that happens is noted; the notes of a seed are the same every time.

use crate::audit::Audit;
use crate::chaos::{ChaosStore, Link};
use crate::documents::LABELS;
use crate::ledger::Ledger;
use crate::profile::Profile;
use crate::rng::Rng;
use crate::sabotage::{Case, Sabotage};
use downbeat::app::{App, Options};
use downbeat::model::entropy::SeededEntropy;
use downbeat::model::ids::TaskType;
use downbeat::model::labels::Labels;
use downbeat::model::time::{Clock, Span, Timestamp};
use downbeat::store::kv::memory::{MemoryStore, Snapshot};
use parking_lot::Mutex;
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::Instant;

/// Leases of sessions and claims, as the engine has them.
pub(crate) const LEASE: Span = Span::secs(10);

/// 2026-01-01T00:00:00Z.
const EPOCH: Timestamp = Timestamp::from_millis(1_767_225_600_000);

/// The store's wall clock: virtual time, and whatever an administrator does to it.
#[derive(Debug)]
pub(crate) struct SimClock {
    start: Instant,
    offset: AtomicI64,
    highest: AtomicI64,
    stepped: Mutex<Option<Instant>>,
}

impl Clock for SimClock {
    fn now(&self) -> Timestamp {
        let elapsed = i64::try_from(self.start.elapsed().as_micros()).unwrap();
        Timestamp(EPOCH.0 + elapsed + self.offset.load(Ordering::Relaxed))
    }
}

impl SimClock {
    pub(crate) fn step(&self, by_ms: i64) {
        self.highest.fetch_max(self.now().0, Ordering::Relaxed);
        self.offset.fetch_add(by_ms * 1_000, Ordering::Relaxed);
        *self.stepped.lock() = Some(Instant::now());
    }

    /// When it was set last.
    pub(crate) fn last_step(&self) -> Option<Instant> {
        *self.stepped.lock()
    }

    /// The latest time it ever showed.
    pub(crate) fn highest(&self) -> Timestamp {
        Timestamp(self.highest.load(Ordering::Relaxed).max(self.now().0))
    }
}

/// One server: its link to the store, and the app while it lives.
pub(crate) struct Server {
    pub(crate) link: Link,
    running: Mutex<Option<Running>>,
    boots: AtomicI64,
    booting: tokio::sync::Mutex<()>,
}

struct Running {
    app: App,
    hints: AbortHandle,
}

/// Notes of what happened.
struct Trace {
    hash: u64,
    verbose: bool,
    lines: u64,
    last: VecDeque<String>,
}

pub(crate) struct World {
    pub(crate) rng: Rng,
    profile: Profile,
    healed_profile: Profile,
    healed: AtomicBool,
    over: AtomicBool,
    pub(crate) sabotage: Option<Sabotage>,
    pub(crate) start: Instant,
    pub(crate) clock: Arc<SimClock>,
    pub(crate) memory: MemoryStore,
    pub(crate) servers: Vec<Server>,
    pub(crate) types: Vec<TaskType>,
    /// What each worker has.
    pub(crate) labels: BTreeMap<String, Labels>,
    pub(crate) audit: Mutex<Audit>,
    pub(crate) ledger: Mutex<Ledger>,
    trace: Mutex<Trace>,
    violations: Mutex<Vec<String>>,
    /// The event streams have grown.
    pub(crate) grown: Notify,
    snapshots: Mutex<VecDeque<Snapshot>>,
    /// When everything last went on after it had stood still, and for how long it had.
    pub(crate) stood_still: Mutex<Option<(Instant, Duration)>>,
    /// By how much the wall clock was set back in all: what waits for it waits so much longer.
    pub(crate) set_back_ms: AtomicI64,
}

impl World {
    pub(crate) fn new(seed: u64, case: Case, verbose: bool) -> Arc<Self> {
        let rng = Rng::new(seed);
        let mut profile = Profile::draw(&mut rng.split("profile", 0));
        let sabotage = match case {
            Case::Plain => None,
            Case::Provoked(s) => {
                s.provoke(&mut profile);
                None
            }
            Case::Sabotaged(s) => {
                s.provoke(&mut profile);
                Some(s)
            }
        };
        let start = Instant::now();
        let clock = Arc::new(SimClock {
            start,
            offset: AtomicI64::new(0),
            highest: AtomicI64::new(0),
            stepped: Mutex::new(None),
        });
        let (partitions, bound) = (profile.partitions, profile.stream_bound);
        let memory = MemoryStore::with_stream_bound(Arc::clone(&clock) as Arc<dyn Clock>, partitions, bound);
        let servers = (0..profile.servers)
            .map(|n| Server {
                link: Link::new(rng.split("link", n as u64), start),
                running: Mutex::new(None),
                boots: AtomicI64::new(0),
                booting: tokio::sync::Mutex::new(()),
            })
            .collect();
        let types = (0..profile.types).map(|n| TaskType::new(&format!("type-{n}")).unwrap()).collect();
        let sessions = (0..profile.workers).map(|n| (format!("worker-{n}"), n));
        let claimers = (0..profile.http_workers).map(|n| (format!("http-{n}"), 100 + n));
        let labels = sessions.chain(claimers).map(|(name, n)| {
            let mut rng = rng.split("labels", n as u64);
            // The first one has everything, so that nothing is without a worker.
            let own = LABELS.into_iter().filter(|_| n == 0 || rng.chance(0.4));
            (name, Labels::new(own).unwrap())
        });
        let labels = labels.collect();
        let world = Arc::new(Self {
            labels,
            healed_profile: profile.healed(),
            profile,
            rng,
            healed: AtomicBool::new(false),
            over: AtomicBool::new(false),
            sabotage,
            start,
            clock,
            memory,
            servers,
            types,
            audit: Mutex::default(),
            ledger: Mutex::default(),
            trace: Mutex::new(Trace {
                hash: 0xcbf2_9ce4_8422_2325,
                verbose,
                lines: 0,
                last: VecDeque::new(),
            }),
            violations: Mutex::default(),
            grown: Notify::new(),
            snapshots: Mutex::default(),
            set_back_ms: AtomicI64::new(0),
            stood_still: Mutex::default(),
        });
        world.note(format_args!("profile {:?}", world.profile));
        world
    }

    /// How the world is now.
    pub(crate) fn profile(&self) -> &Profile {
        if self.is_healed() { &self.healed_profile } else { &self.profile }
    }

    /// How the world was drawn.
    pub(crate) fn drawn(&self) -> &Profile {
        &self.profile
    }

    pub(crate) fn heal(&self) {
        self.note(format_args!("faults stop"));
        self.healed.store(true, Ordering::Relaxed);
        for server in &self.servers {
            server.link.heal();
        }
    }

    pub(crate) fn is_healed(&self) -> bool {
        self.healed.load(Ordering::Relaxed)
    }

    /// All actors are to end.
    pub(crate) fn finish(&self) {
        self.over.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed) || self.failed()
    }

    /// Notes a fact.
    pub(crate) fn note(&self, what: fmt::Arguments<'_>) {
        let at = self.start.elapsed();
        let line = format!("{:>7}.{:03}  {what}", at.as_secs(), at.subsec_millis());
        let mut trace = self.trace.lock();
        for b in line.bytes() {
            trace.hash = (trace.hash ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3);
        }
        trace.lines += 1;
        if trace.verbose {
            eprintln!("{line}");
        }
        if trace.last.len() == 30 {
            trace.last.pop_front();
        }
        trace.last.push_back(line);
    }

    /// Notes that something is not as it must be.
    pub(crate) fn violation(&self, what: impl fmt::Display) {
        self.note(format_args!("VIOLATION {what}"));
        self.violations.lock().push(what.to_string());
    }

    pub(crate) fn failed(&self) -> bool {
        !self.violations.lock().is_empty()
    }

    pub(crate) fn violations(&self) -> Vec<String> {
        self.violations.lock().clone()
    }

    /// Hash and number of notes, and the last of them.
    pub(crate) fn trace(&self) -> (u64, u64, Vec<String>) {
        let trace = self.trace.lock();
        (trace.hash, trace.lines, trace.last.iter().cloned().collect())
    }

    /// The app of a server, if it lives.
    pub(crate) fn app(&self, server: usize) -> Option<App> {
        self.servers[server].running.lock().as_ref().map(|r| r.app.clone())
    }

    pub(crate) fn is_up(&self, server: usize) -> bool {
        self.servers[server].running.lock().is_some()
    }

    /// Any server that lives.
    pub(crate) fn pick(&self, rng: &mut Rng) -> Option<(usize, App)> {
        let up: Vec<usize> = (0..self.servers.len()).filter(|n| self.is_up(*n)).collect();
        if up.is_empty() {
            return None;
        }
        let n = *rng.pick(&up);
        Some((n, self.app(n)?))
    }

    /// Starts a server; false if it could not (the store did not answer).
    pub(crate) async fn boot(self: &Arc<Self>, server: usize) -> bool {
        let _turn = self.servers[server].booting.lock().await;
        if self.is_up(server) {
            return true;
        }
        let boot = self.servers[server].boots.fetch_add(1, Ordering::Relaxed);
        let profile = &self.profile;
        let entropy = self.rng.split("entropy", ((server as u64) << 32) | boot as u64).bits();
        let options = Options {
            tick_every: Span::millis(profile.tick_ms),
            lanes: profile.lanes,
            commits_in_flight: profile.commits_in_flight,
            cache_bytes: profile.cache_bytes,
            compile_inline: true,
            entropy: Arc::new(SeededEntropy::new(entropy)),
            ..Options::default()
        };
        let (store, hints) = ChaosStore::open(Arc::clone(self), server);
        match App::launch(store, options).await {
            Ok(app) => {
                *self.servers[server].running.lock() = Some(Running { app, hints });
                self.servers[server].link.trouble();
                self.note(format_args!("server {server} boots ({boot})"));
                true
            }
            Err(error) => {
                hints.abort();
                self.note(format_args!("server {server} cannot boot: {error}"));
                false
            }
        }
    }

    /// A crash.
    pub(crate) fn kill(&self, server: usize) {
        let Some(running) = self.servers[server].running.lock().take() else { return };
        running.app.kill();
        running.hints.abort();
        self.servers[server].link.trouble();
        self.note(format_args!("server {server} is killed"));
    }

    /// A crash, told from within: it comes at the next await. The server comes back by itself.
    pub(crate) fn dies(self: &Arc<Self>, server: usize) {
        let world = Arc::clone(self);
        let boot = self.servers[server].boots.load(Ordering::Relaxed);
        tokio::spawn(async move {
            if world.servers[server].boots.load(Ordering::Relaxed) != boot {
                return;
            }
            world.kill(server);
            tokio::time::sleep(Duration::from_millis(500)).await;
            while !world.is_over() && !world.boot(server).await {
                tokio::time::sleep(Duration::from_millis(700)).await;
            }
        });
    }

    /// An orderly end: drain, some time, stop.
    pub(crate) async fn retire(&self, server: usize, grace: Duration) {
        let Some(app) = self.app(server) else { return };
        self.note(format_args!("server {server} drains"));
        app.drain(Span(i64::try_from(grace.as_micros()).unwrap()));
        self.servers[server].link.trouble();
        let boot = self.servers[server].boots.load(Ordering::Relaxed);
        tokio::time::sleep(grace).await;
        if self.servers[server].boots.load(Ordering::Relaxed) != boot {
            return; // Killed meanwhile, and begun again.
        }
        let Some(running) = self.servers[server].running.lock().take() else { return };
        if tokio::time::timeout(Duration::from_secs(30), running.app.stop()).await.is_err() {
            self.violation(format_args!("server {server} does not stop"));
            running.app.kill();
        }
        running.hints.abort();
        self.servers[server].link.trouble();
        self.note(format_args!("server {server} has stopped"));
    }

    /// Ends everything that runs, so that nothing keeps the world alive.
    pub(crate) fn close(&self) {
        for n in 0..self.servers.len() {
            self.kill(n);
        }
        self.snapshots.lock().clear();
    }

    /// Keeps what the store holds now, in case its tail is lost.
    pub(crate) fn remember(&self) {
        let mut snapshots = self.snapshots.lock();
        if snapshots.len() == 4 {
            snapshots.pop_front();
        }
        snapshots.push_back(self.memory.snapshot());
    }

    /// The store loses its tail: everything after one of the last snapshots.
    pub(crate) fn lose_tail(&self, rng: &mut Rng) {
        let mut snapshots = self.snapshots.lock();
        if snapshots.is_empty() {
            return;
        }
        let back = rng.below(snapshots.len() as u64) as usize;
        snapshots.truncate(back + 1);
        let Some(snapshot) = snapshots.back() else { return };
        self.memory.restore(snapshot);
        drop(snapshots);
        let lost = self.audit.lock().rolled_back(self);
        for server in &self.servers {
            server.link.trouble();
        }
        self.note(format_args!("the store loses its tail; {lost} runs go back"));
        self.grown.notify_waiters();
    }

    /// Waits until `done`, or the time is up; false then. Looks every `every`.
    pub(crate) async fn until(
        &self,
        limit: Duration,
        every: Duration,
        mut done: impl FnMut() -> bool,
    ) -> bool {
        let end = Instant::now() + limit;
        loop {
            if done() || self.failed() {
                return true;
            }
            if Instant::now() >= end {
                return false;
            }
            tokio::time::sleep(every).await;
        }
    }
}
