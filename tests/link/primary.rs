//! Which Redis may be worked on, and when another one takes over.

use super::redis_server::{Options as Server, RedisServer};
use super::*;
use downbeat::store::Hint;
use downbeat::store::redis::Durability;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

fn server(args: &[&str]) -> RedisServer {
    let args = args.iter().map(|a| (*a).to_owned()).collect();
    RedisServer::start(Server { args, ..Server::default() })
}

#[tokio::test]
async fn a_redis_that_is_a_replica_for_a_while_is_worked_on_again_within_five_seconds() {
    let server = server(&[]);
    let store = open(&server.url()).await;
    start(&store, 1, "a").await.unwrap();
    assert_eq!(server.command("REPLICAOF 127.0.0.1 1"), "+OK");
    let error = start(&store, 2, "b").await.unwrap_err();
    assert!(!error.was_sent(), "{error}");
    let replica = |r: &LinkReport| r.reason.clone().is_some_and(|r| r.contains("replica"));
    reports(&store, "it is left", |r| !r.connected && replica(r)).await;
    let error = start(&store, 2, "b").await.unwrap_err();
    assert!(!error.was_sent() && error.to_string().contains("replica"), "{error}");
    server.command("REPLICAOF NO ONE");
    let took = recovered(&store).await;
    assert!(took < Duration::from_secs(5), "{took:?}");
    start(&store, 2, "b").await.unwrap();
    assert_eq!(there(&store, &["a".into(), "b".into()]).await.unwrap(), [true, true]);
}

#[tokio::test]
async fn a_redis_that_loads_refuses_and_is_back_afterwards() {
    let server =
        server(&["--enable-debug-command", "yes", "--loading-process-events-interval-bytes", "1024"]);
    let store = open(&server.url()).await;
    assert!(!server.command("DEBUG POPULATE 3000 x 1500").starts_with('-'));
    assert_eq!(server.command("CONFIG SET key-load-delay 1000"), "+OK");
    let port = server.port();
    // It loads for some three seconds, and answers meanwhile.
    let reload = tokio::task::spawn_blocking(move || {
        use std::io::{Read as _, Write as _};
        let mut socket = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
        socket.write_all(b"DEBUG RELOAD\r\n").unwrap();
        let mut answer = [0; 3];
        socket.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"+OK");
    });
    let mut refused = None;
    until("it refuses", async || {
        refused = store.check().await.err().filter(|e| e.to_string().contains("LOADING"));
        refused.is_some()
    })
    .await;
    let error = refused.unwrap();
    assert!(matches!(&error, StoreError::Unavailable { sent: false, .. }), "{error:?}");
    // Who comes meanwhile waits.
    open(&server.url()).await.check().await.unwrap();
    reload.await.unwrap();
    recovered(&store).await;
    start(&store, 1, "a").await.unwrap();
}

#[tokio::test]
async fn a_redis_that_is_busy_with_a_script_refuses_and_is_back_afterwards() {
    let server = server(&["--busy-reply-threshold", "100"]);
    let store = open(&server.url()).await;
    let port = server.port();
    let script = tokio::task::spawn_blocking(move || {
        use std::io::{Read as _, Write as _};
        let mut socket = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
        socket.write_all(b"EVAL \"while true do end\" 0\r\n").unwrap();
        socket.read_exact(&mut [0; 4]).unwrap();
    });
    let mut refused = None;
    until("it refuses", async || {
        refused = start(&store, 1, "a").await.err();
        refused.is_some() || script.is_finished()
    })
    .await;
    let error = refused.unwrap();
    assert!(!error.was_sent() && error.to_string().contains("BUSY"), "{error}");
    assert_eq!(server.command("SCRIPT KILL"), "+OK");
    script.await.unwrap();
    let took = recovered(&store).await;
    assert!(took < Duration::from_secs(5), "{took:?}");
    assert_eq!(store.link_report().connections, 1, "a refusal is no reason to leave");
}

/// Waits until `replica` follows its primary.
async fn in_sync(replica: &RedisServer) {
    until("the replica follows", async || replica.info("replication").contains("master_link_status:up"))
        .await;
}

#[tokio::test]
async fn a_replicated_commit_is_answered_when_a_replica_has_it() {
    let primary = server(&["--repl-diskless-sync-delay", "0"]);
    let replicated = || Options { durability: Durability::Replicated, ..Options::default() };
    let error = open_with(&primary.url(), replicated()).await.unwrap_err();
    assert!(!error.was_sent() && error.to_string().contains("no replica"), "{error}");

    let replica = server(&["--replicaof", "127.0.0.1", &primary.port().to_string()]);
    in_sync(&replica).await;
    let store = open_with(&primary.url(), replicated()).await.unwrap();
    start(&store, 1, "a").await.unwrap();
    assert_eq!(replica.command("EXISTS db:{1}:r:a"), ":1", "it was there before the answer");
    // A script that was forgotten is loaded, with what stands behind it.
    assert_eq!(primary.command("SCRIPT FLUSH"), "+OK");
    start(&store, 2, "b").await.unwrap();
    assert_eq!(replica.command("EXISTS db:{1}:r:b"), ":1");

    let stopped = Stopped::new(&replica);
    let batch = Lane::new(3).batch(vec![(P, create("c"))]);
    let error = store.commit(&batch).await.unwrap_err();
    assert!(error.was_sent() && error.to_string().contains("no replica confirmed"), "{error}");
    let error = store.commit(&batch).await.unwrap_err();
    assert!(
        error.was_sent() && error.to_string().contains("no replica confirmed"),
        "the repeat too: {error}"
    );
    drop(stopped);
    until("the repeat is confirmed", async || store.commit(&batch).await.is_ok()).await;
    assert_eq!(replica.command("EXISTS db:{1}:r:c"), ":1");
}

#[tokio::test]
async fn what_is_read_does_not_wait_for_the_replica_of_a_commit() {
    let primary = server(&["--repl-diskless-sync-delay", "0"]);
    let replica = server(&["--replicaof", "127.0.0.1", &primary.port().to_string()]);
    in_sync(&replica).await;
    let options = Options { durability: Durability::Replicated, ..Options::default() };
    let store = open_with(&primary.url(), options).await.unwrap();
    start(&store, 1, "a").await.unwrap();
    let stopped = Stopped::new(&replica);
    let mut lane = Lane::new(2);
    // On one connection the answer to a read would come behind that to the commit, always.
    until("a read is answered before the commit that was sent ahead of it", async || {
        let batch = lane.batch(vec![(P, update("a"))]);
        let mut commit = std::pin::pin!(store.commit(&batch));
        let names = ["a".into(), "b".into()];
        tokio::select! {
            biased;
            _ = &mut commit => false,
            read = there(&store, &names) => {
                assert_eq!(read.unwrap(), [true, false]);
                let error = commit.await.unwrap_err();
                assert!(error.was_sent() && error.to_string().contains("no replica confirmed"), "{error}");
                true
            }
        }
    })
    .await;
    drop(stopped);
    let report = store.link_report();
    assert!(report.connected && report.connections == 2, "{report:?}");
}

/// A Sentinel of one's own.
struct Sentinel {
    child: Child,
    port: u16,
    _dir: tempfile::TempDir,
}

impl Sentinel {
    fn start(primary: u16) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let config = dir.path().join("sentinel.conf");
        let text = format!(
            "port {port}\nbind 127.0.0.1\ndir {}\nsentinel monitor main 127.0.0.1 {primary} 2\n\
             sentinel down-after-milliseconds main 700\nsentinel failover-timeout main 3000\n",
            dir.path().display()
        );
        std::fs::write(&config, text).unwrap();
        let child = Command::new(std::env::var("REDIS_SERVER").unwrap_or_else(|_| "redis-server".into()))
            .arg(&config)
            .arg("--sentinel")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Self { child, port, _dir: dir }
    }

    async fn ask(&self, words: &[&str]) -> Option<redis::Value> {
        let client = redis::Client::open(format!("redis://127.0.0.1:{}", self.port)).unwrap();
        let mut connection = client.get_multiplexed_async_connection().await.ok()?;
        let mut cmd = redis::cmd("SENTINEL");
        for word in words {
            cmd.arg(*word);
        }
        cmd.query_async(&mut connection).await.ok()
    }
}

impl Drop for Sentinel {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[tokio::test]
async fn after_a_fail_over_by_sentinels_the_new_primary_is_worked_on() {
    let mut primary = server(&["--repl-diskless-sync-delay", "0"]);
    let replica = server(&["--replicaof", "127.0.0.1", &primary.port().to_string()]);
    in_sync(&replica).await;
    let sentinels: Vec<_> = (0..3).map(|_| Sentinel::start(primary.port())).collect();
    for sentinel in &sentinels {
        until("each knows the others and the replica", async || {
            let list = |answer: Option<redis::Value>| match answer {
                Some(redis::Value::Array(items)) => items.len(),
                _ => 0,
            };
            list(sentinel.ask(&["sentinels", "main"]).await) == 2
                && list(sentinel.ask(&["replicas", "main"]).await) == 1
        })
        .await;
    }
    // The first that is named is not there; the next one is asked.
    let ports: Vec<_> = sentinels.iter().map(|s| format!("127.0.0.1:{}", s.port)).collect();
    let url = format!("redis+sentinel://127.0.0.1:1,{}/main", ports.join(","));
    let store = open(&url).await;
    let mut hints = store.hints();
    start(&store, 1, "before").await.unwrap();
    until("the replica has it", async || replica.command("EXISTS db:{1}:r:before") == ":1").await;
    let unknown = open_with(&url.replace("/main", "/other"), Options::default()).await.unwrap_err();
    assert!(unknown.to_string().contains("no master of that name"), "{unknown}");
    assert!(!unknown.to_string().contains("127.0.0.1"), "{unknown}");

    primary.kill9();
    recovered(&store).await;
    let replaced = async { while hints.recv().await.unwrap() != Hint::Replaced {} };
    timeout(AT_LAST, replaced).await.unwrap();
    assert_eq!(store.link_report().replaced, 1);
    start(&store, 2, "after").await.unwrap();
    assert_eq!(there(&store, &["before".into(), "after".into()]).await.unwrap(), [true, true]);
    assert_eq!(replica.command("EXISTS db:{1}:r:after"), ":1");
}

/// Says that it is a Sentinel, that the primary is at the port of the moment, and tells of every change.
async fn claims_to_be_a_sentinel(
    listener: tokio::net::TcpListener,
    primary: tokio::sync::watch::Receiver<u16>,
    heard: Arc<AtomicBool>,
) {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let mut open = tokio::task::JoinSet::new();
    loop {
        let (mut socket, _) = listener.accept().await.unwrap();
        let (mut primary, heard) = (primary.clone(), Arc::clone(&heard));
        open.spawn(async move {
            let mut asked = vec![0; 4_096];
            let mut subscribed = false;
            loop {
                let answer = tokio::select! {
                    read = socket.read(&mut asked) => {
                        let Ok(n @ 1..) = read else { return };
                        let asked = String::from_utf8_lossy(&asked[..n]).into_owned();
                        if asked.contains("SUBSCRIBE") {
                            subscribed = true;
                            heard.store(true, SeqCst);
                            "*3\r\n$9\r\nsubscribe\r\n$14\r\n+switch-master\r\n:1\r\n".to_owned()
                        } else if asked.contains("SENTINEL") {
                            let port = primary.borrow_and_update().to_string();
                            format!("*2\r\n$9\r\n127.0.0.1\r\n${}\r\n{port}\r\n", port.len())
                        } else {
                            "+OK\r\n".to_owned()
                        }
                    }
                    changed = primary.changed(), if subscribed => {
                        if changed.is_err() {
                            return;
                        }
                        let news = format!("main 127.0.0.1 1 127.0.0.1 {}", *primary.borrow());
                        format!("*3\r\n$7\r\nmessage\r\n$14\r\n+switch-master\r\n${}\r\n{news}\r\n", news.len())
                    }
                };
                if socket.write_all(answer.as_bytes()).await.is_err() {
                    return;
                }
            }
        });
    }
}

#[tokio::test]
async fn a_primary_that_was_replaced_is_left_though_it_still_answers() {
    let old = server(&["--repl-diskless-sync-delay", "0"]);
    let new = server(&["--replicaof", "127.0.0.1", &old.port().to_string()]);
    in_sync(&new).await;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("redis+sentinel://127.0.0.1:{}/main", listener.local_addr().unwrap().port());
    let (primary, seen) = tokio::sync::watch::channel(old.port());
    let mut sentinel = tokio::task::JoinSet::new();
    let heard = Arc::new(AtomicBool::new(false));
    sentinel.spawn(claims_to_be_a_sentinel(listener, seen, Arc::clone(&heard)));
    let store = open(&url).await;
    start(&store, 1, "before").await.unwrap();
    until("the replica has it", async || new.command("EXISTS db:{1}:r:before") == ":1").await;
    until("announcements are heard", async || heard.load(SeqCst)).await;
    new.command("REPLICAOF NO ONE");
    primary.send_replace(new.port());
    reports(&store, "the old one is left", |r| r.replaced == 1 && r.connected).await;
    start(&store, 2, "after").await.unwrap();
    assert_eq!(new.command("EXISTS db:{1}:r:after"), ":1");
    assert_eq!(old.command("EXISTS db:{1}:r:after"), ":0");
}
