//! A Redis that is full, read-only, busy, loading, silent, cut short, or not the one that was meant.

use crate::redis::{Options, RedisServer};
use crate::support::crew::{Crew, audit_strictly, faults_of, history};
use crate::support::proxy::{Mode, Proxy};
use crate::support::server::{Door, Server, free_address};
use crate::{CHAIN, long, readiness, register, start_all, until};
use serde_json::json;
use std::io::{Read as _, Write as _};
use std::time::Duration;

/// A Redis that keeps an append-only file.
fn aof() -> RedisServer {
    RedisServer::start(Options { aof: true, args: Vec::new() })
}

/// How long a fault holds.
fn held() -> Duration {
    Duration::from_secs(if long() { 20 } else { 3 })
}

/// What a caller meets while the store takes nothing: refusals in time, with a word on when to come again; probes that
/// tell the two apart; and no half of anything. What `passes` by itself may have passed before the call was given up.
async fn refuses(server: &mut Server, id: &str, passes: bool) {
    let door = **server;
    let not_ready = async || (readiness(door).await == 503).then_some(());
    until("it is not ready", Duration::from_secs(8), not_ready).await;
    let began = tokio::time::Instant::now();
    let answer = door.try_post("/v1/runs", &format!(r#"{{"workflow":"chain","id":"{id}"}}"#)).await.unwrap();
    if !(passes && answer.status == 201) {
        answer.refused(503, "store_unavailable");
        assert!(answer.header("retry-after").parse::<u32>().unwrap() >= 1);
    }
    // Ten seconds for the run, and one more if its document has to be read first.
    assert!(began.elapsed() < Duration::from_secs(13), "{:?}", began.elapsed());
    assert_eq!(door.get("/livez").await.status, 200);
    assert!(server.lives());
}

/// Ready again, by itself.
pub(crate) async fn recovers(door: Door) {
    let ready = async || (readiness(door).await == 200).then_some(());
    until("it is ready again", Duration::from_secs(5), ready).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_a_replica_stands_still_runs_are_read_and_nothing_leaves_unconfirmed() {
    let options =
        |args: &[&str]| Options { aof: false, args: args.iter().map(|a| (*a).to_owned()).collect() };
    let primary = RedisServer::start(options(&["--repl-diskless-sync-delay", "0"]));
    let replica = RedisServer::start(options(&["--replicaof", "127.0.0.1", &primary.port().to_string()]));
    let follows = async || replica.info("replication").contains("master_link_status:up").then_some(());
    until("the replica follows", Duration::from_secs(20), follows).await;
    let server = Server::serve_with(&primary.url(), free_address(), &[("DOWNBEAT_DURABILITY", "replicated")]);
    let door = *server;
    register(door, "chain", CHAIN).await;
    assert_eq!(door.post("/v1/runs", r#"{"workflow":"chain","id":"a","input":7}"#).await.status, 201);
    replica.signal("STOP");
    let claim = r#"{"types":["work"],"max":1,"wait":"30s"}"#;
    let mut claimed = tokio::spawn(async move { door.post("/v1/tasks/claim", claim).await.json() });
    let mut started = tokio::spawn(async move {
        door.try_post("/v1/runs", r#"{"workflow":"chain","id":"b","input":7}"#).await.unwrap()
    });
    let leased = async || {
        let run = door.get("/v1/runs/a").await.json();
        assert_eq!(run["input"], 7);
        (run["tasks"][0]["status"] == "running").then_some(())
    };
    until("the lease stands in the primary", Duration::from_secs(20), leased).await;
    let refused = async {
        loop {
            let run = door.get("/v1/runs/a").await;
            assert_eq!((run.status, &run.json()["id"]), (200, &json!("a")));
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::select! {
        biased;
        tasks = &mut claimed => panic!("a task left that no replica knows of: {tasks:?}"),
        answer = &mut started => answer.unwrap().refused(504, "outcome_unknown"),
        () = refused => {}
    }
    replica.signal("CONT");
    let tasks = tokio::time::timeout(Duration::from_secs(20), claimed).await.unwrap().unwrap();
    assert_eq!((&tasks[0]["run"], &tasks[0]["attempt"]), (&json!("a"), &json!(1)), "{tasks}");
}

/// Runs go on while something is wrong with Redis between `begin` and `end`, and nothing is lost or done twice.
pub(crate) async fn under_load(
    redis: &mut RedisServer,
    begin: impl FnOnce(&mut RedisServer),
    end: impl FnOnce(&mut RedisServer),
    passes: bool,
) {
    let mut server = Server::serve(&redis.url(), None, free_address());
    let door = *server;
    register(door, "chain", CHAIN).await;
    let crew = Crew::at(&[door, door], "work", 5, Duration::from_millis(50));
    let starting = tokio::spawn(start_all(door, "chain", 150));
    until("work is under way", Duration::from_secs(15), async || (crew.begun() >= 50).then_some(())).await;
    begin(redis);
    refuses(&mut server, "refused", passes).await;
    tokio::time::sleep(held()).await;
    end(redis);
    recovers(door).await;
    // What was refused is not there, or whole: nobody knows of a half.
    let refused = door.get("/v1/runs/refused?wait=10s").await;
    assert!(refused.status == 404 || refused.json()["status"] == "completed", "{}", refused.text());
    let runs = starting.await.unwrap();
    audit_strictly(door, runs, &crew).await;
    crew.leave().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_redis_refuses_starts_and_loses_nothing() {
    let full = |redis: &mut RedisServer| assert_eq!(redis.command("CONFIG SET maxmemory 1kb"), "+OK");
    let room = |redis: &mut RedisServer| assert_eq!(redis.command("CONFIG SET maxmemory 0"), "+OK");
    under_load(&mut aof(), full, room, false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_is_read_only_for_a_while_loses_nothing() {
    let replica = |redis: &mut RedisServer| assert_eq!(redis.command("REPLICAOF 127.0.0.1 1"), "+OK");
    let primary = |redis: &mut RedisServer| assert_eq!(redis.command("REPLICAOF NO ONE"), "+OK");
    under_load(&mut aof(), replica, primary, false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_is_busy_for_a_while_loses_nothing() {
    let busy = |redis: &mut RedisServer| {
        assert_eq!(redis.command("CONFIG SET lua-time-limit 200"), "+OK");
        let mut socket = std::net::TcpStream::connect(("127.0.0.1", redis.port())).unwrap();
        socket.write_all(b"EVAL \"while true do end\" 0\r\n").unwrap();
        // Until it is killed.
        std::thread::spawn(move || socket.read(&mut [0; 256]));
    };
    let kill = |redis: &mut RedisServer| assert_eq!(redis.command("SCRIPT KILL"), "+OK");
    under_load(&mut aof(), busy, kill, false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_dies_and_loads_for_a_while_loses_nothing() {
    let mut redis = aof();
    for n in 0..400 {
        redis.command(&format!("SET other:{n} 1"));
    }
    let (loaded, loading) = std::sync::mpsc::channel();
    let begin = |redis: &mut RedisServer| {
        redis.command("BGREWRITEAOF");
        while !redis.info("persistence").contains("aof_rewrite_in_progress:0") {
            std::thread::sleep(Duration::from_millis(20));
        }
        redis.kill9();
        // Ten milliseconds for each key, and a look at who asks meanwhile.
        let mut again = std::mem::replace(redis, RedisServer::none());
        std::thread::spawn(move || {
            again.restart_with(&[
                "--key-load-delay",
                "10000",
                "--loading-process-events-interval-bytes",
                "1024",
            ]);
            loaded.send(again).unwrap();
        });
    };
    let end = |redis: &mut RedisServer| *redis = loading.recv_timeout(Duration::from_mins(1)).unwrap();
    under_load(&mut redis, begin, end, true).await;
}

#[tokio::test]
async fn a_redis_that_would_evict_is_warned_of() {
    for policy in ["allkeys-lru", "volatile-lru"] {
        let args = vec!["--maxmemory-policy".to_owned(), policy.to_owned()];
        let redis = RedisServer::start(Options { aof: true, args });
        let server = Server::serve(&redis.url(), None, free_address());
        assert!(server.has_logged("noeviction") && server.has_logged(policy));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_redis_closes_for_being_idle_are_made_again() {
    let args = vec!["--timeout".to_owned(), "1".to_owned()];
    let redis = RedisServer::start(Options { aof: true, args });
    let server = Server::serve(&redis.url(), None, free_address());
    register(*server, "chain", CHAIN).await;
    // One that reads the stream, and one that has read it and waits.
    let crew = Crew::at(&[*server], "work", 5, Duration::ZERO);
    let first = start_all(*server, "chain", 1).await;
    audit_strictly(*server, first, &crew).await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    let mut events = server.watch("/v1/events", None).await;
    assert_eq!(server.start_run("chain", "after", "7").await.status, 201);
    assert_eq!(events.next().await.unwrap().event, "run.started");
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(server.start_run("chain", "again", "7").await.status, 201);
    audit_strictly(*server, ["after".to_owned(), "again".to_owned()], &crew).await;
    crew.leave().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_vanishes_without_a_word_is_noticed_and_found_again() {
    let redis = aof();
    let proxy = Proxy::before_port(redis.port());
    let mut server = Server::serve(&proxy.redis_url(), None, free_address());
    let door = *server;
    register(door, "chain", CHAIN).await;
    register(door, "timer", "tasks: { t: { wait: { for: 300ms } } }").await;
    let crew = Crew::at(&[door], "work", 5, Duration::from_millis(20));
    let starting = tokio::spawn(start_all(door, "chain", 100));
    until("work is under way", Duration::from_secs(15), async || (crew.begun() >= 30).then_some(())).await;
    proxy.set(Mode::HalfOpen);
    refuses(&mut server, "refused", false).await;
    tokio::time::sleep(held()).await;
    proxy.set(Mode::Pass);
    recovers(door).await;
    // Timers and what is told of queues live again.
    let mut events = door.watch("/v1/events?workflow=timer", None).await;
    assert_eq!(door.start_run("timer", "t1", "1").await.status, 201);
    let told = async { while events.next().await.unwrap().event != "run.completed" {} };
    tokio::time::timeout(Duration::from_secs(5), told).await.expect("a timer comes in time");
    audit_strictly(door, starting.await.unwrap(), &crew).await;
    crew.leave().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_append_only_file_that_was_cut_short_leaves_no_run_stuck() {
    let mut redis = aof();
    let server = Server::serve(&redis.url(), None, free_address());
    let address = server.address();
    register(*server, "chain", CHAIN).await;
    let crew = Crew::at(&[*server, *server], "work", 5, Duration::from_millis(40));
    let runs = start_all(*server, "chain", 50).await;
    until("work is under way", Duration::from_secs(15), async || (crew.begun() >= 60).then_some(())).await;
    server.kill9();
    redis.kill9();
    let file = redis.append_only_file();
    let length = std::fs::metadata(&file).unwrap().len();
    // In the middle of a command, too.
    let cut = (length / 3).min(20_001);
    std::fs::OpenOptions::new().write(true).open(&file).unwrap().set_len(length - cut).unwrap();
    redis.restart();
    let server = Server::serve(&redis.url(), None, address);
    let mut gone = 0;
    for id in &runs {
        let run = server.insist(
            || http::Request::get(format!("/v1/runs/{id}?wait=20s")).body(axum::body::Body::empty()).unwrap(),
            &[200, 404],
        );
        let run = run.await;
        if run.status == 404 {
            // It was not kept; it can be started again under its id.
            gone += 1;
            assert_eq!(server.start_run("chain", id, "7").await.status, 201);
        }
        let run = server.insist_get(&format!("/v1/runs/{id}?wait=20s")).await.json();
        assert_eq!((&run["status"], &run["output"]), (&json!("completed"), &json!(7)), "{run:#}");
        let events = history(*server, id).await;
        assert_eq!(faults_of(&events), Vec::<String>::new(), "{events:#?}");
    }
    println!("{cut} of {length} bytes cut, {gone} runs gone");
    let list = server.get("/v1/runs?workflow=chain&limit=100").await.json();
    assert_eq!(list["items"].as_array().unwrap().len(), runs.len());
    assert!(!server.has_logged("panicked"));
    crew.leave().await;
}

/// A listener that speaks something else: it answers whatever is said with an alert of TLS.
fn speaks_tls() -> std::net::SocketAddr {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        while let Ok((mut socket, _)) = listener.accept() {
            let _ = socket.read(&mut [0; 64]);
            let _ = socket.write_all(&[0x15, 0x03, 0x01, 0x00, 0x02, 0x02, 0x46]);
        }
    });
    address
}

#[test]
fn what_is_not_the_redis_that_was_meant_is_refused_with_the_reason_and_without_the_password() {
    let started = |args: &[&str]| {
        RedisServer::start(Options { aof: false, args: args.iter().map(|a| (*a).to_owned()).collect() })
    };
    let locked = started(&["--requirepass", "secret-word"]);
    let cluster = started(&["--cluster-enabled", "yes"]);
    let port = locked.port();
    for (store, reason) in [
        (format!("redis://:wrong-word@127.0.0.1:{port}"), "assword"),
        (format!("redis://127.0.0.1:{port}"), "uthentication"),
        (cluster.url(), "Redis Cluster"),
        (format!("redis://:wrong-word@{}", speaks_tls()), "redis://"),
    ] {
        let (code, said) = Server::refused(&store, Duration::from_secs(6)).expect("it ends by itself");
        assert!(code != 0 && said.contains(reason), "{store}: {code}: {said}");
        assert!(!said.contains("wrong-word") && !said.contains("secret-word"), "{said}");
    }
}

#[tokio::test]
async fn a_password_that_changes_is_noticed_and_stands_in_no_log() {
    let args = vec!["--requirepass".to_owned(), "secret-word".to_owned()];
    let redis = RedisServer::start(Options { aof: true, args });
    let url = format!("redis://:secret-word@127.0.0.1:{}", redis.port());
    let mut server = Server::serve(&url, None, free_address());
    register(*server, "chain", CHAIN).await;
    assert_eq!(readiness(*server).await, 200);
    let with = |password: &str, line: &str| {
        let mut socket = std::net::TcpStream::connect(("127.0.0.1", redis.port())).unwrap();
        socket.write_all(format!("AUTH {password}\r\n{line}\r\nQUIT\r\n").as_bytes()).unwrap();
        let mut answer = String::new();
        socket.read_to_string(&mut answer).unwrap();
        answer
    };
    let changed = with("secret-word", "CONFIG SET requirepass other-word\r\nCLIENT KILL TYPE normal");
    assert!(changed.starts_with("+OK\r\n+OK\r\n"), "{changed}");
    refuses(&mut server, "refused", false).await;
    let again = with("other-word", "CONFIG SET requirepass secret-word");
    assert!(again.starts_with("+OK\r\n+OK\r\n"), "{again}");
    recovers(*server).await;
    for password in ["secret-word", "other-word"] {
        assert!(!server.has_logged(password), "a password stands in the log");
    }
}
