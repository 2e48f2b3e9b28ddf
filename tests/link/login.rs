//! Who is let in, and over what.

use super::redis_server::{FREE_PORT, Options as Server, RedisServer};
use super::*;
use data::{add, entry, field, named, note, session};
use downbeat::model::commit::{RunWrite, WakeOp};
use downbeat::model::ids::{Nonce, Partition};
use downbeat::model::time::{LeaseTime, Span, Timestamp};
use downbeat::store::redis::Access;
use downbeat::store::{SessionRecord, StreamPosition};
use std::path::{Path, PathBuf};

fn server(args: &[&str]) -> RedisServer {
    let args = args.iter().map(|a| (*a).to_owned()).collect();
    RedisServer::start(Server { args, ..Server::default() })
}

fn access(access: Access) -> Options {
    Options { access, ..Options::default() }
}

/// Somebody who may do all, by a password.
async fn admin(server: &RedisServer, password: &str) -> redis::aio::MultiplexedConnection {
    let url = format!("redis://:{password}@127.0.0.1:{}", server.port());
    redis::Client::open(url).unwrap().get_multiplexed_async_connection().await.unwrap()
}

async fn ask(admin: &mut redis::aio::MultiplexedConnection, line: &str) -> redis::Value {
    let mut words = line.split(' ');
    let mut cmd = redis::cmd(words.next().unwrap());
    for word in words {
        cmd.arg(word);
    }
    cmd.query_async(admin).await.unwrap()
}

async fn calls(admin: &mut redis::aio::MultiplexedConnection, command: &str) -> u64 {
    let redis::Value::BulkString(text) = ask(admin, "INFO commandstats").await else { panic!("no text") };
    let text = String::from_utf8(text).unwrap();
    let line =
        text.lines().find_map(|l| l.strip_prefix(&format!("cmdstat_{command}:calls=")).map(str::to_owned));
    line.map_or(0, |l| l.split(',').next().unwrap().parse().unwrap())
}

#[tokio::test]
async fn a_password_is_changed_while_the_server_runs() {
    let server = server(&["--requirepass", "one"]);
    let mut boss = admin(&server, "one").await;
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("password");
    std::fs::write(&file, "first\n").unwrap();
    ask(&mut boss, "ACL SETUSER ann on >first ~* &* +@all").await;
    let options = access(Access {
        username: Some("ann".into()),
        password_file: Some(file.clone()),
        ..Access::default()
    });
    let store = open_with(&server.url(), options).await.unwrap();
    start(&store, 1, "a").await.unwrap();

    // Told to the connection that is there.
    ask(&mut boss, "ACL SETUSER ann >second").await;
    let before = calls(&mut boss, "auth").await;
    std::fs::write(&file, "second\n").unwrap();
    until("the new password is told", async || calls(&mut boss, "auth").await > before).await;
    assert_eq!(store.link_report().connections, 1);
    ask(&mut boss, "ACL SETUSER ann <first").await;
    start(&store, 2, "b").await.unwrap();

    // Read for a new one.
    ask(&mut boss, "ACL SETUSER ann >third <second").await;
    std::fs::write(&file, "third").unwrap();
    ask(&mut boss, "CLIENT KILL USER ann").await;
    recovered(&store).await;
    start(&store, 3, "c").await.unwrap();

    // Wrong for a while: said without the password, and right again without a restart.
    std::fs::write(&file, "swordfish").unwrap();
    ask(&mut boss, "CLIENT KILL USER ann").await;
    let reason = |r: &LinkReport| r.reason.clone().is_some_and(|r| r.contains("WRONGPASS"));
    reports(&store, "the password is refused", |r| !r.connected && reason(r)).await;
    let error = store.check().await.unwrap_err().to_string();
    assert!(
        !error.contains("swordfish") && !error.contains("ann") && !error.contains("127.0.0.1"),
        "{error}"
    );
    std::fs::write(&file, "third").unwrap();
    recovered(&store).await;
}

#[tokio::test]
async fn who_is_nobody_is_told_so_within_five_seconds() {
    let server = server(&["--requirepass", "sesame"]);
    let began = Instant::now();
    for (login, expected) in [("", "NOAUTH"), (":swordfish@", "WRONGPASS"), ("bob:swordfish@", "WRONGPASS")] {
        let url = format!("redis://{login}127.0.0.1:{}", server.port());
        let error = open_with(&url, Options::default()).await.unwrap_err();
        assert!(!error.was_sent() && error.to_string().contains(expected), "{error}");
        assert!(!error.to_string().contains("swordfish"), "{error}");
    }
    let missing = Access { password_file: Some("/nonexistent/password".into()), ..Access::default() };
    let error = open_with(&server.url(), access(missing)).await.unwrap_err();
    assert!(error.to_string().contains("redis.password_file: /nonexistent/password"), "{error}");
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
}

#[tokio::test]
async fn a_socket_in_the_file_system_and_another_database_will_do() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("redis.sock");
    let server = server(&["--unixsocket", path.to_str().unwrap()]);
    let store = open(&format!("unix://{}?db=3", path.display())).await;
    start(&store, 1, "a").await.unwrap();
    assert_eq!(server.command("EXISTS db:{1}:r:a"), ":0");
    assert!(server.info("keyspace").contains("db3:keys="));
    let same = open(&format!("{}/3", server.url())).await;
    assert_eq!(same.layout(), store.layout());
}

/// What the guide says a user needs.
const RIGHTS: &str = "~db:* &db:* -@all +@read +@write +@transaction +evalsha +script|load +publish +subscribe \
                      +unsubscribe +auth +select +ping +client|setname +info +role +time +wait +config|get";

#[tokio::test]
async fn a_user_with_the_rights_of_the_guide_can_do_all() {
    let server = server(&["--requirepass", "one"]);
    let guide =
        std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/guide/redis.md")).unwrap();
    assert!(guide.contains(RIGHTS), "the guide tells other rights than {RIGHTS}");
    let mut boss = admin(&server, "one").await;
    ask(&mut boss, &format!("ACL SETUSER ann on >first {RIGHTS}")).await;
    let url = format!("redis://ann:first@127.0.0.1:{}", server.port());
    let store = open(&url).await;
    let whole = RunWrite {
        payloads: vec![(field("i"), bytes::Bytes::from_static(b"{}"))],
        queue: vec![add("q", entry("a", 1), 5)],
        wake: WakeOp::Lower(Timestamp(1)),
        index: Some(Timestamp(1)),
        retain_until: Some(Some(Timestamp(1))),
        event: Some(note("a", 0)),
        ..create("a")
    };
    Lane::new(1).apply(&*store, vec![whole]).await;
    store.check().await.unwrap();
    store.payloads(P, &run("a"), &[field("i")]).await.unwrap();
    assert_eq!(store.take(&[(P, named("q"), 1)], Span(0)).await.unwrap().len(), 1);
    let all: Vec<_> = (0..4).map(Partition).collect();
    store.tick(&all, 10).await.unwrap();
    let record = SessionRecord {
        epoch: 1,
        label: String::new(),
        owner: Nonce([1; 16]),
        deadline: LeaseTime(0),
        lease_now: LeaseTime(0),
    };
    let id = session("s1-x");
    assert!(store.put_session(&id, &record, None, Span::secs(9)).await.unwrap());
    assert_eq!(store.renew_sessions(&[(id.clone(), 1)], Span::secs(9)).await.unwrap(), [true]);
    assert!(store.sessions(std::slice::from_ref(&id)).await.unwrap()[0].is_some());
    store.remove_session(&id, 1).await.unwrap();
    assert_eq!(store.read_events(&[(P, StreamPosition(0, 0))], 9, Span::secs(1)).await.unwrap().len(), 1);
    store.stream_bounds(&all).await.unwrap();
    assert_eq!(store.list(P, None, 9).await.unwrap().len(), 1);
    let name = data::workflow("w");
    store.put_workflow(&name, &bytes::Bytes::from_static(b"{}")).await.unwrap();
    assert_eq!(store.workflows(None, 9).await.unwrap().len(), 1);
    assert!(store.workflow(&name, None).await.unwrap().is_some());
    assert!(store.remove_workflow(&name).await.unwrap());
    let log = ask(&mut boss, "ACL LOG").await;
    assert_eq!(log, redis::Value::Array(vec![]), "what it was refused");
}

// ---- TLS

/// An authority with a certificate for `localhost` and one for us.
pub(crate) struct Certificates {
    dir: tempfile::TempDir,
}

impl Certificates {
    pub(crate) fn new() -> Self {
        use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: String| std::fs::write(dir.path().join(name), text).unwrap();
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "authority");
        let authority = params.self_signed(&key).unwrap();
        write("ca.pem", authority.pem());
        let issuer = Issuer::new(params, key);
        for (name, host) in [("server", "localhost"), ("client", "downbeat")] {
            let key = KeyPair::generate().unwrap();
            let mut params = CertificateParams::new(vec![host.to_owned()]).unwrap();
            params.distinguished_name.push(DnType::CommonName, host);
            write(&format!("{name}.pem"), params.signed_by(&key, &issuer).unwrap().pem());
            write(&format!("{name}.key"), key.serialize_pem());
        }
        Self { dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// What a Redis is told of them.
    pub(crate) fn args(&self) -> Vec<String> {
        let of = [("cert-file", "server.pem"), ("key-file", "server.key"), ("ca-cert-file", "ca.pem")];
        let args =
            of.map(|(what, name)| [format!("--tls-{what}"), self.path(name).to_str().unwrap().to_owned()]);
        args.into_iter().flatten().collect()
    }

    /// A server that speaks TLS on the port beside its own, and wants certificates.
    fn server(&self) -> (RedisServer, u16) {
        let mut args = self.args();
        args.extend(["--tls-port", FREE_PORT].map(str::to_owned));
        let server = RedisServer::start(Server { args, ..Server::default() });
        let port = server.tls_port();
        (server, port)
    }

    pub(crate) fn access(&self) -> Access {
        Access {
            ca_file: Some(self.path("ca.pem")),
            cert_file: Some(self.path("client.pem")),
            key_file: Some(self.path("client.key")),
            ..Access::default()
        }
    }
}

#[tokio::test]
async fn tls_with_an_authority_and_a_certificate_of_ones_own() {
    let certificates = Certificates::new();
    let (server, port) = certificates.server();
    let store =
        open_with(&format!("rediss://localhost:{port}"), access(certificates.access())).await.unwrap();
    let large = bytes::Bytes::from(vec![b'x'; 3 << 20]);
    let name = data::workflow("large");
    store.put_workflow(&name, &large).await.unwrap();
    assert_eq!(store.workflow(&name, None).await.unwrap().unwrap().document, large);
    let many = (0..100).map(|n| {
        let store = &store;
        async move { start(store, n, &format!("r{n}")).await.unwrap() }
    });
    futures::future::join_all(many).await;
    // By address, the certificate is for another name until it is told which.
    let url = format!("rediss://127.0.0.1:{port}");
    let error = open_with(&url, access(certificates.access())).await.unwrap_err();
    assert!(error.to_string().contains("redis.server_name"), "{error}");
    let named = Access { server_name: Some("localhost".into()), ..certificates.access() };
    open_with(&url, access(named)).await.unwrap();
    assert_eq!(server.command("CLIENT KILL TYPE normal").chars().next(), Some(':'));
    recovered(&store).await;
}

#[tokio::test]
async fn tls_that_does_not_fit_is_told_within_five_seconds() {
    let certificates = Certificates::new();
    let (server, port) = certificates.server();
    let tls = format!("rediss://localhost:{port}");
    let full = certificates.access();
    let other = Certificates::new();
    for (url, access_, expected) in [
        (tls.clone(), Access::default(), "redis.ca_file"),
        (tls.clone(), Access { ca_file: Some(other.path("ca.pem")), ..full.clone() }, "redis.ca_file"),
        (tls.clone(), Access { cert_file: None, key_file: None, ..full.clone() }, "redis.cert_file"),
        (tls.clone(), Access { key_file: None, ..full.clone() }, "set together"),
        (
            tls.clone(),
            Access { ca_file: Some("/nonexistent/ca.pem".into()), ..full.clone() },
            "/nonexistent/ca.pem",
        ),
        (
            tls.clone(),
            Access { cert_file: Some(full.key_file.clone().unwrap()), ..full.clone() },
            "redis.cert_file",
        ),
        (format!("redis://localhost:{port}"), full.clone(), "TLS"),
        (format!("rediss://localhost:{}", server.port()), full.clone(), "TLS"),
    ] {
        let began = Instant::now();
        let error = open_with(&url, access(access_)).await.unwrap_err();
        assert!(!error.was_sent() && error.to_string().contains(expected), "{expected}: {error}");
        assert!(began.elapsed() < Duration::from_secs(5), "{error} after {:?}", began.elapsed());
    }
}
