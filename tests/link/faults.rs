//! What networks do to the link, and what becomes of what waits.

use super::proxy::{Mode, Proxy};
use super::redis_server::{Options as Server, RedisServer};
use super::*;
use bytes::Bytes;
use data::workflow;
use downbeat::store::Hint;
use downbeat::store::redis::{Limits, Policy};

async fn behind_a_proxy(options: Options) -> (RedisServer, Proxy, Arc<RedisStore>) {
    let server = RedisServer::start(Server::default());
    let proxy = Proxy::start(server.port()).await;
    let store = open_with(&proxy.url(), options).await.unwrap();
    (server, proxy, store)
}

fn limited(items: usize, bytes: usize, policy: Policy, wait: Duration) -> Options {
    Options { limits: Limits { items, bytes, policy }, wait, ..Options::default() }
}

const LONG: Duration = Duration::from_millis(4_500);

#[tokio::test]
async fn replies_in_crumbs_reach_those_who_asked() {
    let (_server, proxy, store) = behind_a_proxy(Options::default()).await;
    let names: Vec<String> = (0..40).map(|n| format!("r{n}")).collect();
    for (n, name) in names.iter().enumerate() {
        start(&store, n as u8, name).await.unwrap();
    }
    proxy.set(Mode::Crumbs(7));
    let asked = (0..40_usize).map(|n| {
        let (store, names) = (&store, &names);
        async move {
            let missing = format!("missing{n}");
            let both = if n % 2 == 0 { [names[n].clone(), missing] } else { [missing, names[n].clone()] };
            (n, there(store, &both).await.unwrap())
        }
    });
    for (n, found) in futures::future::join_all(asked).await {
        assert_eq!(found, [n % 2 == 0, n % 2 == 1], "{n}");
    }
    assert_eq!(store.link_report().connections, 1);
}

#[tokio::test]
async fn a_command_cut_in_the_middle_may_have_happened_and_those_behind_it_go_on() {
    let (server, proxy, store) = behind_a_proxy(limited(100, 64 << 20, Policy::Queue, LONG)).await;
    start(&store, 1, "there").await.unwrap();
    proxy.set(Mode::CutAfter(2 << 20));
    let large = Bytes::from(vec![b'x'; 20 << 20]);
    let name = workflow("large");
    let names = ["there".to_owned(), "missing".to_owned()];
    let (cut, found, started) =
        tokio::join!(store.put_workflow(&name, &large), there(&store, &names), start(&store, 2, "behind"),);
    assert_eq!(store.link_report().connections, 2);
    let error = cut.unwrap_err();
    assert!(error.was_sent(), "{error}");
    assert_eq!(found.unwrap(), [true, false]);
    started.unwrap();
    assert_eq!(store.workflow(&name, None).await.unwrap(), None, "half a command does nothing");
    assert_eq!(server.command("EXISTS db:{1}:r:behind"), ":1");
}

#[tokio::test]
async fn a_reply_that_is_lost_is_told_as_such_and_the_repeat_is_recognised() {
    let (_server, proxy, store) = behind_a_proxy(limited(100, 1 << 20, Policy::Queue, LONG)).await;
    let batch = Lane::new(1).batch(vec![(P, create("once"))]);
    proxy.set(Mode::CutReplies);
    let error = store.commit(&batch).await.unwrap_err();
    assert!(error.was_sent(), "{error}");
    let said = error.to_string();
    assert!(said.contains("closed the connection") && said.contains("not connected"), "{said}");
    assert!(said.contains("last fork"), "{said}");
    proxy.set(Mode::Pass);
    let committed = store.commit(&batch).await.unwrap();
    assert_eq!(committed.verdicts, [downbeat::store::Verdict::Applied]);
    assert_eq!(store.link_report().maybe_sent, 1);
}

#[tokio::test]
async fn what_waits_for_a_connection_is_written_in_order_once_there_is_one() {
    let (_server, proxy, store) = behind_a_proxy(limited(1_000, 1 << 20, Policy::Queue, LONG)).await;
    proxy.set(Mode::Cut);
    reports(&store, "the connection is gone", |r| !r.connected).await;
    // Each version of the document is the one after the last: any other order gives other numbers.
    let name = workflow("w");
    let documents: Vec<_> = (0..50).map(|n| Bytes::from(format!("{{\"n\":{n}}}"))).collect();
    let puts = futures::future::join_all(documents.iter().map(|d| store.put_workflow(&name, d)));
    let back = async {
        reports(&store, "all wait", |r| r.queued == 50).await;
        proxy.set(Mode::Pass);
    };
    let (versions, ()) = tokio::join!(puts, back);
    let versions: Vec<_> = versions.into_iter().map(|v| v.unwrap().0.version).collect();
    assert_eq!(versions, (1..=50).collect::<Vec<_>>());
}

#[tokio::test]
async fn that_nobody_is_there_is_said_once() {
    let mut server = RedisServer::start(Server::default());
    let wait = Duration::from_millis(100);
    let store = open_with(&server.url(), limited(100, 1 << 20, Policy::Queue, wait)).await.unwrap();
    server.kill9();
    let refused = |r: &LinkReport| r.reason.as_deref().is_some_and(|why| why.contains("refused"));
    reports(&store, "nobody is at the address", refused).await;
    let error = start(&store, 1, "late").await.unwrap_err().to_string();
    assert_eq!(error.matches("no connection to Redis").count(), 1, "{error}");
    assert!(error.contains("Connection refused"), "{error}");
}

#[tokio::test]
async fn what_waits_too_long_was_not_sent() {
    let wait = Duration::from_millis(300);
    let (server, proxy, store) = behind_a_proxy(limited(100, 1 << 20, Policy::Queue, wait)).await;
    proxy.set(Mode::Cut);
    reports(&store, "the connection is gone", |r| !r.connected).await;
    let began = Instant::now();
    let error = start(&store, 1, "late").await.unwrap_err();
    assert!(!error.was_sent() && began.elapsed() >= wait, "{error} after {:?}", began.elapsed());
    assert!(error.to_string().contains("no connection to Redis"), "{error}");
    assert_eq!(store.link_report().queued, 0);
    proxy.set(Mode::Pass);
    recovered(&store).await;
    assert_eq!(server.command("EXISTS db:{1}:r:late"), ":0");
}

#[tokio::test]
async fn the_backlog_is_bounded_in_commands_and_in_bytes() {
    let (_server, proxy, store) = behind_a_proxy(limited(5, 10_000, Policy::Queue, LONG)).await;
    proxy.set(Mode::Cut);
    reports(&store, "the connection is gone", |r| !r.connected).await;
    let names: Vec<String> = (0..5).map(|n| format!("r{n}")).collect();
    let waiting = futures::future::join_all(names.iter().map(|name| start(&store, 1, name)));
    let more = async {
        reports(&store, "five wait", |r| r.queued == 5).await;
        let error = store.check().await.unwrap_err();
        assert!(!error.was_sent() && error.to_string().contains("the backlog is full"), "{error}");
        proxy.set(Mode::Pass);
    };
    // One lane with one sequence: the others are repeats of the first.
    let (done, ()) = tokio::join!(waiting, more);
    assert!(done.iter().all(Result::is_ok), "{done:?}");

    proxy.set(Mode::Cut);
    reports(&store, "the connection is gone", |r| !r.connected).await;
    let document = Bytes::from(vec![b'x'; 6_000]);
    let name = workflow("w");
    let more = async {
        reports(&store, "one waits", |r| r.queued == 1 && r.queued_bytes > 6_000).await;
        let error = store.put_workflow(&name, &document).await.unwrap_err();
        assert!(!error.was_sent() && error.to_string().contains("the backlog is full"), "{error}");
        proxy.set(Mode::Pass);
    };
    let (put, ()) = tokio::join!(store.put_workflow(&name, &document), more);
    put.unwrap();
}

#[tokio::test]
async fn to_fail_fast_is_not_to_wait() {
    let (_server, proxy, store) = behind_a_proxy(limited(100, 1 << 20, Policy::FailFast, LONG)).await;
    proxy.set(Mode::Cut);
    reports(&store, "the connection is gone", |r| !r.connected).await;
    let began = Instant::now();
    let error = store.check().await.unwrap_err();
    assert!(!error.was_sent(), "{error}");
    assert!(began.elapsed() < LONG / 2, "{:?}", began.elapsed());
    proxy.set(Mode::Pass);
    recovered(&store).await;
}

#[tokio::test]
async fn a_caller_that_gives_up_takes_back_what_was_not_written() {
    let (server, proxy, store) = behind_a_proxy(limited(100, 1 << 20, Policy::Queue, LONG)).await;
    proxy.set(Mode::Cut);
    reports(&store, "the connection is gone", |r| !r.connected).await;
    let caller = {
        let store = Arc::clone(&store);
        tokio::spawn(async move { start(&store, 1, "withdrawn").await })
    };
    reports(&store, "it waits", |r| r.queued == 1).await;
    caller.abort();
    assert!(caller.await.unwrap_err().is_cancelled());
    assert_eq!(store.link_report().queued, 0);
    proxy.set(Mode::Pass);
    recovered(&store).await;
    assert_eq!(server.command("EXISTS db:{1}:r:withdrawn"), ":0");
}

#[tokio::test]
async fn a_black_hole_is_found_within_five_seconds_and_left() {
    let (_server, proxy, store) = behind_a_proxy(Options::default()).await;
    let mut hints = store.hints();
    proxy.set(Mode::Hole);
    let began = Instant::now();
    let error = start(&store, 1, "a").await.unwrap_err();
    assert!(error.was_sent(), "{error}");
    assert!(began.elapsed() < Duration::from_millis(5_500), "{:?}", began.elapsed());
    reports(&store, "it is left", |r| !r.connected).await;
    // The same at the beginning.
    let began = Instant::now();
    let error = open_with(&proxy.url(), Options::default()).await.unwrap_err();
    assert!(!error.was_sent() && began.elapsed() < Duration::from_millis(5_500), "{error}");
    proxy.set(Mode::Cut);
    proxy.set(Mode::Pass);
    let took = recovered(&store).await;
    assert!(took < Duration::from_secs(5), "{took:?}");
    let same = async { while hints.recv().await.unwrap() != Hint::Reconnected {} };
    timeout(AT_LAST, same).await.unwrap();
    assert_eq!(store.link_report().replaced, 0, "the same Redis");
}

#[tokio::test]
async fn a_black_hole_is_found_while_nothing_is_asked() {
    let (_server, proxy, store) = behind_a_proxy(Options::default()).await;
    proxy.set(Mode::Hole);
    let began = Instant::now();
    reports(&store, "it is found", |r| !r.connected).await;
    assert!(began.elapsed() < Duration::from_millis(5_500), "{:?}", began.elapsed());
    let said = store.link_report().reason.unwrap();
    assert!(said.contains("nothing came from Redis for 4 s"), "{said}");
}

#[tokio::test]
async fn a_redis_that_stands_still_is_an_error_within_five_seconds_and_nothing_is_done_twice() {
    let server = RedisServer::start(Server::default());
    let store = open(&server.url()).await;
    let stopped = Stopped::new(&server);
    let began = Instant::now();
    let batch = Lane::new(1).batch(vec![(P, create("a"))]);
    let error = store.commit(&batch).await.unwrap_err();
    assert!(error.was_sent() && began.elapsed() < Duration::from_millis(5_500), "{error}");
    drop(stopped);
    let took = recovered(&store).await;
    assert!(took < Duration::from_secs(5), "{took:?}");
    assert_eq!(store.commit(&batch).await.unwrap().verdicts, [downbeat::store::Verdict::Applied]);
    assert_eq!(there(&store, &["a".into()]).await.unwrap(), [true]);
}

#[tokio::test]
async fn a_redis_that_closes_idle_connections_does_not_close_ours() {
    let args = ["--timeout", "2"].map(ToOwned::to_owned).to_vec();
    let server = RedisServer::start(Server { args, ..Server::default() });
    let store = open(&server.url()).await;
    let pings = || {
        let stats = server.info("commandstats");
        let calls = stats.lines().find_map(|l| l.strip_prefix("cmdstat_ping:calls=")).map(str::to_owned);
        calls.and_then(|c| c.split(',').next().unwrap().parse::<u64>().ok()).unwrap_or(0)
    };
    until("it is asked whether it is there", async || pings() >= 4).await;
    start(&store, 1, "a").await.unwrap();
    assert_eq!(store.link_report().connections, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_task_is_spawned_for_a_command_however_many_there_are() {
    let (_server, proxy, store) = behind_a_proxy(limited(100_000, 64 << 20, Policy::Queue, LONG)).await;
    proxy.set(Mode::Cut);
    reports(&store, "the connection is gone", |r| !r.connected).await;
    let metrics = tokio::runtime::Handle::current().metrics();
    let before = metrics.num_alive_tasks();
    let names: Vec<String> = (0..2_000).map(|n| format!("r{n}")).collect();
    let asked = futures::future::join_all(names.iter().map(|n| there(&store, std::slice::from_ref(n))));
    let meanwhile = async {
        reports(&store, "all wait", |r| r.queued == 2_000).await;
        // Attempts to connect come and go.
        assert!(metrics.num_alive_tasks() <= before + 2, "{} of {before}", metrics.num_alive_tasks());
        proxy.set(Mode::Pass);
    };
    let (found, ()) = tokio::join!(asked, meanwhile);
    assert!(found.into_iter().all(|f| f.unwrap() == [false]));
}
