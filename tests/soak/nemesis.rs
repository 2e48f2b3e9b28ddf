//! The faults: which, where and for how long comes from the seed. Several may hold at a time, but one at each thing.

use crate::Settings;
use crate::site::{Hand, Site};
use crate::support::proxy::{Mode, Proxy};
use downbeat::model::entropy::SeededEntropy;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// A fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fault {
    KillServer,
    StopServer,
    RestartServer,
    KillWorker,
    StopWorker,
    RestartWorker,
    Cut,
    CutInside,
    Delay,
    HalfOpen,
    Hold,
    Throttle,
    Refuse,
    DropReplies,
    StopRedis,
    KillRedis,
    ForkRedis,
    FlushScripts,
    KillClients,
    ReadOnly,
    Full,
}

impl Fault {
    const ALL: [Self; 21] = [
        Self::KillServer,
        Self::StopServer,
        Self::RestartServer,
        Self::KillWorker,
        Self::StopWorker,
        Self::RestartWorker,
        Self::Cut,
        Self::CutInside,
        Self::Delay,
        Self::HalfOpen,
        Self::Hold,
        Self::Throttle,
        Self::Refuse,
        Self::DropReplies,
        Self::StopRedis,
        Self::KillRedis,
        Self::ForkRedis,
        Self::FlushScripts,
        Self::KillClients,
        Self::ReadOnly,
        Self::Full,
    ];

    /// As the report has it.
    pub(crate) fn words(self) -> &'static str {
        match self {
            Self::KillServer => "server killed (`kill -9`) and started again",
            Self::StopServer => "server stopped (SIGSTOP) for 0.5 to 6 s",
            Self::RestartServer => "server drained (SIGTERM) and started again",
            Self::KillWorker => "worker killed (`kill -9`) and started again",
            Self::StopWorker => "worker stopped (SIGSTOP) for 0.5 to 6 s",
            Self::RestartWorker => "worker drained (SIGTERM) and started again",
            Self::Cut => "all connections of a proxy cut",
            Self::CutInside => "a connection cut after 0 to 4 KB more",
            Self::Delay => "each piece delayed by 5 to 60 ms, for 0.5 to 3 s",
            Self::HalfOpen => "half-open: bytes swallowed both ways, for 0.5 to 6 s",
            Self::Hold => "bytes held back, for 0.5 to 3 s",
            Self::Throttle => "20 to 200 KB/s, for 0.5 to 3 s",
            Self::Refuse => "connections cut and refused, for 0.5 to 3 s",
            Self::DropReplies => "1 to 3 replies of Redis lost after a commit, take, tick or renewal",
            Self::StopRedis => "Redis stopped (SIGSTOP) for 0.5 to 6 s",
            Self::KillRedis => "Redis, or a master, killed (`kill -9`) and started on its append-only file",
            Self::ForkRedis => "`BGSAVE`",
            Self::FlushScripts => "`SCRIPT FLUSH`",
            Self::KillClients => "`CLIENT KILL` of all",
            Self::ReadOnly => {
                "Redis a replica (read-only) for 0.5 to 3 s; of a cluster, a replica told to take over"
            }
            Self::Full => "Redis full (`maxmemory`) for 0.5 to 5 s",
        }
    }
}

/// How often a master of a cluster is killed.
const MASTERS: Duration = Duration::from_mins(1);

/// How often each was injected.
pub(crate) type Injected = BTreeMap<Fault, usize>;

/// See the module.
pub(crate) struct Nemesis {
    site: Arc<Site>,
    random: SeededEntropy,
    masters_die: bool,
}

/// What was drawn for one fault.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Drawn {
    pub(crate) fault: Fault,
    pub(crate) which: usize,
    /// 0 to 1.
    share: f64,
}

impl Drawn {
    /// How long it holds.
    pub(crate) fn seconds(self, most: f64) -> Duration {
        Duration::from_secs_f64(0.5 + self.share * (most - 0.5))
    }
}

impl Nemesis {
    pub(crate) fn new(site: Arc<Site>, settings: &Settings) -> Self {
        let random = SeededEntropy::new(settings.seed ^ 0x5eed);
        Self { site, random, masters_die: settings.redis == "cluster" }
    }

    fn draw(&self) -> Drawn {
        let number = |below: usize| self.random.next_u64() as usize % below;
        let fault = Fault::ALL[number(Fault::ALL.len())];
        Drawn { fault, which: number(1_000), share: number(1_000) as f64 / 1_000.0 }
    }

    /// One fault after the other until it is over, and until the last of them is. Of a cluster, a master dies each
    /// minute whatever else is drawn.
    pub(crate) async fn rage(self, every: Duration, until: Instant) -> Injected {
        let mut injected = Injected::new();
        let mut going_on = tokio::task::JoinSet::new();
        let mut pause = tokio::time::interval(every);
        let mut masters = tokio::time::interval_at(Instant::now() + MASTERS, MASTERS);
        loop {
            let master_dies = tokio::select! {
                biased;
                _ = masters.tick(), if self.masters_die => true,
                _ = pause.tick() => false,
            };
            if Instant::now() >= until {
                break;
            }
            let site = Arc::clone(&self.site);
            let mut drawn = self.draw();
            if master_dies {
                drawn.fault = Fault::KillRedis;
                println!("{drawn:?}");
                // After what holds there already.
                going_on.spawn(async move { (drawn.fault, site.redis.lock().await.strike(drawn).await) });
            } else {
                println!("{drawn:?}");
                going_on.spawn(async move { (drawn.fault, strike(&site, drawn).await) });
            }
        }
        while let Some(done) = going_on.join_next().await {
            let (fault, struck) = done.unwrap();
            *injected.entry(fault).or_default() += usize::from(struck);
        }
        injected
    }
}

/// Injects a fault, waits, and takes it back. False: something holds there already.
async fn strike(site: &Site, drawn: Drawn) -> bool {
    match drawn.fault {
        Fault::KillServer | Fault::RestartServer | Fault::StopServer => at_server(site, drawn).await,
        Fault::KillWorker | Fault::RestartWorker | Fault::StopWorker => at_worker(site, drawn).await,
        Fault::Cut
        | Fault::CutInside
        | Fault::Delay
        | Fault::HalfOpen
        | Fault::Hold
        | Fault::Throttle
        | Fault::Refuse
        | Fault::DropReplies => at_proxy(site, drawn).await,
        Fault::StopRedis
        | Fault::KillRedis
        | Fault::ForkRedis
        | Fault::FlushScripts
        | Fault::KillClients
        | Fault::ReadOnly
        | Fault::Full => match site.redis.try_lock() {
            Ok(mut redis) => redis.strike(drawn).await,
            Err(_) => false,
        },
    }
}

async fn at_server(site: &Site, drawn: Drawn) -> bool {
    let seat = &site.seats[drawn.which % site.seats.len()];
    let Ok(mut process) = seat.process.try_lock() else { return false };
    match drawn.fault {
        Fault::StopServer => {
            let Some(server) = process.as_ref() else { return false };
            server.signal("STOP");
            tokio::time::sleep(drawn.seconds(6.0)).await;
            server.signal("CONT");
        }
        fault => {
            site.end(&mut process, fault == Fault::KillServer).await;
            site.start_again(seat, &mut process).await;
        }
    }
    true
}

async fn at_worker(site: &Site, drawn: Drawn) -> bool {
    let hand = &site.hands[drawn.which % site.hands.len()];
    let Ok(mut process) = hand.process.try_lock() else { return false };
    match drawn.fault {
        Fault::StopWorker => {
            Hand::signal(&process, "STOP");
            tokio::time::sleep(drawn.seconds(6.0)).await;
            Hand::signal(&process, "CONT");
        }
        fault => {
            hand.end(&mut process, fault == Fault::KillWorker).await;
            hand.start_again(&mut process);
        }
    }
    true
}

async fn at_proxy(site: &Site, drawn: Drawn) -> bool {
    let seat = &site.seats[drawn.which % site.seats.len()];
    let mut proxies = vec![&seat.front, &seat.back];
    proxies.extend(seat.to_redis.as_ref());
    let proxy = proxies[drawn.which / 10 % proxies.len()];
    let hold = async |mode: Mode, seconds: f64| {
        proxy.set(mode);
        tokio::time::sleep(drawn.seconds(seconds)).await;
        proxy.set(Mode::Pass);
    };
    match drawn.fault {
        Fault::Cut => proxy.cut(),
        Fault::CutInside => proxy.cut_after((drawn.share * 4_000.0) as u64),
        Fault::Delay => {
            hold(Mode::Delay(Duration::from_millis(5 + (drawn.share * 55.0) as u64)), 3.0).await;
        }
        Fault::HalfOpen => hold(Mode::HalfOpen, 6.0).await,
        Fault::Hold => hold(Mode::Hold, 3.0).await,
        Fault::Throttle => hold(Mode::Throttle(20_000 + (drawn.share * 180_000.0) as u64), 3.0).await,
        Fault::Refuse => {
            proxy.set(Mode::Refuse);
            proxy.cut();
            hold(Mode::Refuse, 3.0).await;
        }
        _ => match &seat.to_redis {
            Some(proxy) => drop_replies(proxy, drawn),
            None => return false,
        },
    }
    true
}

fn drop_replies(proxy: &Proxy, drawn: Drawn) {
    let scripts = [
        include_str!("../../src/store/redis/lua/commit.lua"),
        include_str!("../../src/store/redis/lua/commit.lua"),
        include_str!("../../src/store/redis/lua/take.lua"),
        include_str!("../../src/store/redis/lua/tick.lua"),
        include_str!("../../src/store/redis/lua/session_renew.lua"),
    ];
    let script = ::redis::Script::new(scripts[drawn.which / 7 % scripts.len()]);
    proxy.drop_replies_to(script.get_hash(), 1 + (drawn.share * 3.0) as usize % 3);
}
