//! A Redis that is full, stands still, or dies and comes back, under a load of starts and results: what is refused is told
//! so, quickly, and is not done; what is taken is done once.

use super::redis::{Options, RedisServer};
use super::support::client::{Worker, soon};
use super::support::server::{Server, free_address};
use downbeat::proto::v1;
use downbeat::proto::v1::run_service_client::RunServiceClient;
use downbeat::proto::v1::server_message::Message as FromServer;
use downbeat::proto::v1::worker_message::Message as ToServer;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::time::Instant;
use tonic::Code;
use tonic_types::StatusExt as _;

/// How an answer to a start was.
#[derive(Debug)]
struct Told {
    id: String,
    /// None: it was taken.
    refused: Option<String>,
    took: Duration,
}

#[derive(Debug, Default)]
struct Load {
    over: AtomicBool,
    taken: AtomicUsize,
    refused: AtomicUsize,
}

impl Load {
    /// Starts one run after the other, over REST.
    async fn rest(self: Arc<Self>, server: Arc<Server>, name: usize) -> Vec<Told> {
        let mut told = Vec::new();
        for n in 0.. {
            if self.over.load(Ordering::Relaxed) {
                return told;
            }
            let id = format!("rest-{name}-{n}");
            let begun = Instant::now();
            let answer = server.start_run("order", &id, "1").await;
            let refused = (answer.status != 201).then(|| {
                let code = answer.problem().0;
                let told = (answer.status, code.as_str());
                let of_the_table =
                    [(503, "store_unavailable"), (503, "overloaded"), (504, "outcome_unknown")]
                        .contains(&told);
                assert!(of_the_table, "{}", answer.text());
                assert!(answer.header("retry-after").parse::<u32>().unwrap() >= 1);
                answer.json()["detail"].as_str().unwrap().to_owned()
            });
            self.tell(&mut told, id, refused, begun).await;
        }
        told
    }

    /// The same over gRPC.
    async fn grpc(self: Arc<Self>, server: Arc<Server>, name: usize) -> Vec<Told> {
        let mut runs = RunServiceClient::new(server.channel().await);
        let mut told = Vec::new();
        for n in 0.. {
            if self.over.load(Ordering::Relaxed) {
                return told;
            }
            let id = format!("grpc-{name}-{n}");
            let begun = Instant::now();
            let request =
                v1::StartRunRequest { workflow: "order".into(), id: id.clone(), ..Default::default() };
            let refused = runs.start(request).await.err().map(|status| {
                let codes = [Code::Unavailable, Code::ResourceExhausted, Code::DeadlineExceeded];
                assert!(codes.contains(&status.code()), "{status:?}");
                assert!(status.get_error_details().retry_info().is_some(), "{status:?}");
                status.message().to_owned()
            });
            self.tell(&mut told, id, refused, begun).await;
        }
        told
    }

    async fn tell(&self, told: &mut Vec<Told>, id: String, refused: Option<String>, begun: Instant) {
        let count = if refused.is_some() { &self.refused } else { &self.taken };
        count.fetch_add(1, Ordering::Relaxed);
        let pause = if refused.is_some() { 50 } else { 5 };
        told.push(Told { id, refused, took: begun.elapsed() });
        tokio::time::sleep(Duration::from_millis(pause)).await;
    }

    async fn until(&self, count: &AtomicUsize, more: usize) {
        let wanted = count.load(Ordering::Relaxed) + more;
        let reached = async {
            while count.load(Ordering::Relaxed) < wanted {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(40), reached).await.expect("the load goes on");
    }
}

/// Completes whatever it is given, on one stream, which must not end.
async fn work(mut worker: Worker, load: Arc<Load>) {
    while !load.over.load(Ordering::Relaxed) {
        let Ok(message) = tokio::time::timeout(Duration::from_millis(200), worker.hear()).await else {
            continue;
        };
        match message.expect("the stream stays open") {
            FromServer::Assign(list) => {
                let tokens = list.assignments.iter().map(|a| a.token.clone()).collect();
                worker.say(ToServer::Ack(v1::Tokens { tokens }));
                let result = |a: v1::Assignment| v1::Result {
                    token: a.token,
                    outcome: Some(v1::result::Outcome::Completed("1".into())),
                };
                let results = list.assignments.into_iter().map(result).collect();
                worker.say(ToServer::Results(v1::Results { results }));
            }
            FromServer::ResultAcks(list) => {
                for ack in list.acks {
                    assert_eq!(ack.status(), v1::result_ack::Status::Accepted);
                }
            }
            other => drop(other),
        }
    }
}

/// The same with a worker that resumes its session when its stream ends.
async fn work_and_resume(url: String, load: Arc<Load>) {
    let builder = downbeat::client::worker::Worker::builder(url);
    let worker = builder.handle("order-pack", 20, async |_| Ok("1".into())).build().unwrap();
    let handle = worker.handle();
    let running = tokio::spawn(worker.run());
    while !load.over.load(Ordering::Relaxed) {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    handle.shutdown(Duration::from_secs(5));
    running.await.unwrap().unwrap();
}

/// What becomes of the stream of a worker.
#[derive(Debug, Clone, Copy)]
enum Kind {
    /// It stays open.
    Stays,
    /// A Redis that was another process is another one, until it is known that nothing is lost: workers resume.
    Resumes,
}

/// Waits until readiness is `status`; how long that took. Liveness is always there.
async fn readiness(server: &Server, status: u16) -> Duration {
    let begun = Instant::now();
    let waits = async {
        loop {
            assert_eq!(server.get("/livez").await.status, 200);
            let ready = server.get("/readyz").await;
            if ready.status == status {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    soon(waits).await;
    begun.elapsed()
}

/// Puts a server under load, breaks its Redis until starts are refused, mends it, and counts.
async fn under_load(
    mut redis: RedisServer,
    worker: Kind,
    breaks: fn(&mut RedisServer),
    mends: fn(&mut RedisServer),
) {
    let server = Arc::new(Server::serve(&redis.url(), None, free_address()));
    server.register_echo("order").await;
    let load = Arc::new(Load::default());
    let worker_of = async |load: &Arc<Load>| match worker {
        Kind::Stays => {
            let (worker, _) = Worker::hello(&server, "order-pack", 20).await;
            tokio::spawn(work(worker, Arc::clone(load)))
        }
        Kind::Resumes => tokio::spawn(work_and_resume(server.url(), Arc::clone(load))),
    };
    let worker = worker_of(&load).await;
    let mut callers = Vec::new();
    for n in 0..4 {
        callers.push(tokio::spawn(Arc::clone(&load).rest(Arc::clone(&server), n)));
        callers.push(tokio::spawn(Arc::clone(&load).grpc(Arc::clone(&server), n)));
    }
    load.until(&load.taken, 50).await;

    breaks(&mut redis);
    let not_ready = readiness(&server, 503).await;
    assert!(not_ready < Duration::from_secs(4), "{not_ready:?}");
    load.until(&load.refused, 100).await;
    let before = load.taken.load(Ordering::Relaxed);
    load.until(&load.refused, 20).await;
    assert_eq!(load.taken.load(Ordering::Relaxed), before, "nothing is taken meanwhile");
    mends(&mut redis);
    let ready = readiness(&server, 200).await;
    assert!(ready < Duration::from_secs(5), "{ready:?}");
    load.until(&load.taken, 50).await;
    load.over.store(true, Ordering::Relaxed);

    let mut told = Vec::new();
    for caller in callers {
        told.extend(soon(caller).await.unwrap());
    }
    soon(worker).await.unwrap();
    // Whoever holds work when the load is over has gone: another one does it.
    let rest = Arc::new(Load::default());
    let worker = worker_of(&rest).await;
    let (mut refused, mut unknown) = (0, 0);
    let mut times = Vec::new();
    for Told { id, refused: why, took } in told {
        let run = server.get(&format!("/v1/runs/{id}?wait=15s")).await;
        match why {
            None => {
                assert_eq!(run.json()["status"], "completed", "{id}: {}", run.text());
                let attempts = run.json()["tasks"][0]["attempts"].as_array().unwrap().len();
                assert_eq!(attempts, 1, "{id}: {}", run.text());
            }
            // It was being written when its caller's time was up: there or not, but not half.
            Some(why) if why.contains("a repeat of this call is safe") => {
                unknown += 1;
                assert!(run.status == 404 || run.json()["status"] == "completed", "{id}: {}", run.text());
                assert!(took < Duration::from_secs(12), "{id}: {took:?}");
            }
            Some(why) => {
                refused += 1;
                times.push(took);
                assert_eq!(run.status, 404, "{id} was refused: {why}: {}", run.text());
            }
        }
    }
    times.sort_unstable();
    println!("{refused} refused, {unknown} not known, the middle one after {:?}", times[times.len() / 2]);
    assert!(refused >= 100 && times[times.len() / 2] < Duration::from_millis(500));
    rest.over.store(true, Ordering::Relaxed);
    soon(worker).await.unwrap();
}

#[tokio::test]
async fn a_redis_that_is_full() {
    let full = |redis: &mut RedisServer| assert_eq!(redis.command("CONFIG SET maxmemory 1kb"), "+OK");
    let room = |redis: &mut RedisServer| assert_eq!(redis.command("CONFIG SET maxmemory 0"), "+OK");
    under_load(RedisServer::start(Options::default()), Kind::Stays, full, room).await;
}

#[tokio::test]
async fn a_redis_that_stands_still() {
    let redis = RedisServer::start(Options::default());
    under_load(redis, Kind::Stays, |redis| redis.signal("STOP"), |redis| redis.signal("CONT")).await;
}

#[tokio::test]
async fn a_redis_that_dies_and_comes_back() {
    let redis = RedisServer::start(Options { aof: true, ..Options::default() });
    under_load(redis, Kind::Resumes, RedisServer::kill9, RedisServer::restart).await;
}

/// What `/metrics` tells of the link, without `downbeat_store_`.
async fn link(server: &Server) -> std::collections::BTreeMap<String, f64> {
    let page = server.get("/metrics").await;
    let lines = page.text().lines().filter_map(|l| l.strip_prefix("downbeat_store_")?.rsplit_once(' '));
    lines.map(|(name, value)| (name.to_owned(), value.parse().unwrap())).collect()
}

#[tokio::test]
async fn the_link_is_told_with_names_that_are_explained() {
    let mut redis = RedisServer::start(Options::default());
    let server = Server::serve(&redis.url(), None, free_address());
    let told = link(&server).await;
    let page =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/guide/metrics.md")).unwrap();
    let explained = page.lines().filter_map(|l| l.strip_prefix("| `downbeat_store_")?.split('`').next());
    // The sign to watch is no name.
    let explained: std::collections::BTreeSet<_> = explained.filter(|name| !name.contains(' ')).collect();
    assert_eq!(told.keys().map(String::as_str).collect::<std::collections::BTreeSet<_>>(), explained);
    assert!(
        told["connected"] > 0.0 && told["commands_total"] > 0.0 && told["read_bytes_total"] > 0.0,
        "{told:?}"
    );
    redis.kill9();
    let changes = async |connected: f64| {
        while (link(&server).await["connected"] - connected).abs() > 0.5 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    soon(changes(0.0)).await;
    redis.restart();
    soon(changes(1.0)).await;
    assert!(link(&server).await["connections_total"] >= told["connections_total"] + 1.0);
}
