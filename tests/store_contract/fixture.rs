//! A store to test, and the means to let time pass in it without waiting.

use crate::redis_cluster::RedisCluster;
use crate::redis_server::{Options, RedisServer};
use downbeat::model::time::{Clock, Span, Timestamp};
use downbeat::store::Moves;
use downbeat::store::embedded::{self as store_embedded, EmbeddedStore};
use downbeat::store::kv::memory::MemoryStore;
use downbeat::store::redis::{self as store_redis, RedisStore};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

/// Entries the event streams of all fixtures keep.
pub(crate) const STREAM_BOUND: u64 = 40;
/// Their partitions.
pub(crate) const PARTITIONS: u16 = 4;

/// A clock that stands until it is moved.
#[derive(Debug)]
pub(crate) struct ManualClock(AtomicI64);

impl ManualClock {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self(AtomicI64::new(1_780_000_000_000_000)))
    }
    pub(crate) fn advance(&self, span: Span) {
        self.0.fetch_add(span.0, Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        Timestamp(self.0.load(Ordering::SeqCst))
    }
}

/// What moves the time of a store.
enum Time {
    Manual(Arc<ManualClock>),
    Redis(Vec<RedisServer>),
}

/// A store and its time.
pub(crate) struct Fixture {
    pub(crate) store: Arc<dyn Moves>,
    time: Time,
    /// The data directory, if it has one; it goes with the fixture.
    _dir: Option<tempfile::TempDir>,
}

pub(crate) async fn memory() -> Fixture {
    let clock = ManualClock::new();
    let dyn_clock: Arc<dyn Clock> = Arc::<ManualClock>::clone(&clock);
    let store = MemoryStore::with_stream_bound(dyn_clock, PARTITIONS, STREAM_BOUND);
    Fixture { store: Arc::new(store), time: Time::Manual(clock), _dir: None }
}

pub(crate) fn embedded_options(clock: Arc<dyn Clock>) -> store_embedded::Options {
    store_embedded::Options {
        partitions: Some(PARTITIONS),
        stream_bound: STREAM_BOUND,
        clock,
        ..store_embedded::Options::default()
    }
}

pub(crate) async fn embedded() -> Fixture {
    let clock = ManualClock::new();
    let dir = tempfile::tempdir().unwrap();
    let options = embedded_options(Arc::<ManualClock>::clone(&clock));
    let store = EmbeddedStore::open(dir.path(), options).await.unwrap();
    Fixture { store, time: Time::Manual(clock), _dir: Some(dir) }
}

pub(crate) fn redis_options() -> store_redis::Options {
    store_redis::Options { partitions: Some(PARTITIONS), stream_bound: STREAM_BOUND, ..Default::default() }
}

pub(crate) async fn redis() -> Fixture {
    let server = RedisServer::start(Options::default());
    let store = RedisStore::open(&server.url(), redis_options()).await.unwrap();
    Fixture { store, time: Time::Redis(vec![server]), _dir: None }
}

/// A cluster of three masters.
pub(crate) async fn cluster() -> Fixture {
    let cluster = RedisCluster::start(3, 0, Options::default());
    let store = RedisStore::open(&cluster.url(), redis_options()).await.unwrap();
    Fixture { store, time: Time::Redis(cluster.nodes), _dir: None }
}

/// Redis' own clock cannot be moved, so all that it holds of a partition is made older.
const AGE: &str = "
local prefix, span = ARGV[1], tonumber(ARGV[2])
local clock = redis.call('GET', prefix .. 'clock')
if clock then
  local lease, wall, retained, swept = string.match(clock, '^(%d+) (%d+) (%d+) (%d+)$')
  local function older(time) return string.format('%.0f', math.max(0, tonumber(time) - span)) end
  clock = table.concat({ lease, older(wall), older(retained), older(swept) }, ' ')
  redis.call('SET', prefix .. 'clock', clock)
end
for _, name in ipairs({ 'wake', 'keep', 'claimed' }) do
  for _, member in ipairs(redis.call('ZRANGE', prefix .. name, 0, -1)) do
    redis.call('ZINCRBY', prefix .. name, -span, member)
  end
end
return 1";

/// Makes all that a Redis holds older.
async fn age(server: &RedisServer, span: Span) {
    let client = ::redis::Client::open(server.url()).unwrap();
    let mut connection = client.get_multiplexed_async_connection().await.unwrap();
    let keys: Vec<String> = ::redis::cmd("KEYS").arg("db:{*}:*").query_async(&mut connection).await.unwrap();
    let prefixes: BTreeSet<_> = keys.iter().filter_map(|key| key.split_inclusive("}:").next()).collect();
    for prefix in prefixes {
        let mut eval = ::redis::cmd("EVAL");
        eval.arg(AGE).arg(1).arg(prefix).arg(prefix).arg(span.0);
        eval.exec_async(&mut connection).await.unwrap();
    }
    for key in keys.iter().filter(|key| key.contains("}:l:")) {
        let left: i64 = ::redis::cmd("PTTL").arg(key).query_async(&mut connection).await.unwrap();
        let mut expire = ::redis::cmd("PEXPIRE");
        expire.arg(key).arg(left - span.as_millis());
        expire.exec_async(&mut connection).await.unwrap();
    }
}

impl Fixture {
    /// Lets time pass.
    pub(crate) async fn advance(&self, span: Span) {
        match &self.time {
            Time::Manual(clock) => clock.advance(span),
            Time::Redis(servers) => {
                for server in servers {
                    age(server, span).await;
                }
            }
        }
    }

    /// Lets time pass while servers look after the store: lease clocks go on as well.
    pub(crate) async fn live(&self, span: Span) {
        let all: Vec<_> = (0..PARTITIONS).map(downbeat::model::ids::Partition).collect();
        let mut left = span;
        while left > Span(0) {
            let step = left.min(downbeat::store::LEASE_STEP);
            self.advance(step).await;
            self.store.tick(&all, 1).await.unwrap();
            left = Span(left.0 - step.0);
        }
    }

    /// The store's time.
    pub(crate) async fn now(&self) -> Timestamp {
        let ticked = self.store.tick(&[downbeat::model::ids::Partition(PARTITIONS - 1)], 0).await.unwrap();
        ticked[0].now
    }
}
