//! Making a connection: find the primary, connect, TLS, log in; and talking over it before anybody shares it.
//!
//! ```text
//! Dialer::connect ─► Sentinels? who is the primary? ─► TCP or socket ─► TLS? ─► AUTH, SELECT, SETNAME ─► Talk
//! ```
//!
//! Invariants
//! - Password and certificates are read from their files anew for each connection.
//! - Every step has a deadline. No error tells the address, a user or a password.
//!
//! All connections are made here: the shared one, those of blocking reads, that of hints, those of nodes.

use super::address::{Address, Endpoint, Place, Secret};
use super::wire::{Parser, Value};
use super::{NO_CONNECTION, tls};
use crate::store::redis::reply;
use crate::store::{Result, StoreError};
use bytes::BytesMut;
use redis::Cmd;
use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;

/// How long making a connection may take, until Redis takes commands.
const CONNECT: Duration = Duration::from_secs(3);
/// How long a Sentinel may take to tell the primary.
const SENTINEL: Duration = Duration::from_secs(1);
/// How long an answer on a connection that nobody shares may take.
const ANSWER: Duration = Duration::from_secs(5);
/// Data that the other end has not acknowledged for so long ends a connection.
const UNACKNOWLEDGED: Duration = Duration::from_secs(5);
/// The longest password.
const PASSWORD_MAX: u64 = 4_096;
/// Room that is made before reading.
pub(super) const READ_ROOM: usize = 32 << 10;
/// What connections are called in `CLIENT LIST`.
const NAME: &str = "downbeat";

/// How to get in, besides the address.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Access {
    /// Authorities that certificates of Redis are checked against (PEM); none: those of the system.
    pub ca_file: Option<PathBuf>,
    /// Our certificate (PEM), if Redis wants one.
    pub cert_file: Option<PathBuf>,
    /// Its key (PEM).
    pub key_file: Option<PathBuf>,
    /// The name that the certificate of Redis is for; none: the host of the address.
    pub server_name: Option<String>,
    /// The ACL user; none: that of the address, or the default user.
    pub username: Option<String>,
    /// Where the password is; read for every connection, so that it can be changed. None: that of the address.
    pub password_file: Option<PathBuf>,
    /// The ACL user of the Sentinels.
    pub sentinel_username: Option<String>,
    /// Where the password of the Sentinels is.
    pub sentinel_password_file: Option<PathBuf>,
}

/// Makes connections.
#[derive(Debug, Clone)]
pub(in crate::store::redis) struct Dialer {
    address: Address,
    access: Access,
}

fn unavailable(message: impl Into<String>) -> StoreError {
    StoreError::Unavailable { message: message.into(), sent: false }
}

fn unfit(message: impl Into<String>) -> StoreError {
    StoreError::Unfit(message.into())
}

/// Places that led nowhere, of several that were tried in turn.
#[derive(Debug)]
pub(in crate::store::redis) struct Tried {
    places: usize,
    failed: usize,
    why: Option<StoreError>,
}

impl Tried {
    /// None of so many yet.
    pub(in crate::store::redis) fn of(places: usize) -> Self {
        Self { places, failed: 0, why: None }
    }

    /// The next one may know better.
    pub(in crate::store::redis) fn failed(&mut self, error: StoreError) {
        self.failed += 1;
        // What somebody has to change counts for more than that another place is away.
        if self.why.as_ref().is_none_or(StoreError::passes) {
            let which = format!("{} of {}", self.failed, self.places);
            self.why = Some(reply::reworded(error, |why| format!("{which}: {why}")));
        }
    }

    /// All of them have failed. `what`: that they lead nowhere.
    pub(in crate::store::redis) fn nowhere(self, what: &str) -> StoreError {
        let why = self.why.unwrap_or_else(|| unfit("none is named"));
        reply::reworded(why, |why| format!("{what}; number {why}"))
    }
}

impl Dialer {
    /// For an address.
    ///
    /// # Errors
    /// It cannot be used; the error does not tell it.
    pub(in crate::store::redis) fn new(url: &str, access: Access) -> Result<Self> {
        let address = Address::parse(url)
            .map_err(|why| unfit(format!("the address of Redis cannot be used: {why}")))?;
        Ok(Self { address, access })
    }

    /// For one node, with the same user, password and TLS.
    pub(in crate::store::redis) fn at(&self, node: Endpoint) -> Self {
        Self { address: self.address.at(node), access: self.access.clone() }
    }

    /// What stands at the address.
    pub(in crate::store::redis) fn place(&self) -> &Place {
        &self.address.place
    }

    /// Where the password is, if it may change.
    pub(super) fn password_file(&self) -> Option<&PathBuf> {
        self.access.password_file.as_ref()
    }

    /// Connects to the primary and logs in.
    ///
    /// # Errors
    /// Not sent, with what was wrong last.
    pub(in crate::store::redis) async fn connect(&self) -> Result<Talk> {
        match &self.address.place {
            Place::Node(node) => self.open(node, false).await,
            Place::Sentinels { sentinels, master } => self.ask_sentinels(sentinels, master).await,
            // One node after the other is dialled, see `cluster/`.
            Place::Cluster(_) => Err(unfit("a cluster is no one Redis that could be connected to")),
        }
    }

    /// The user and the password, as they are now.
    pub(super) async fn login(&self) -> Result<Login> {
        let password = match &self.access.password_file {
            Some(file) => Some(password(file, "redis.password_file").await?),
            None => self.address.password.clone(),
        };
        let user = self.access.username.clone().or_else(|| self.address.user.clone());
        Ok(Login { user, password })
    }

    /// Connects to one node.
    async fn open(&self, node: &Endpoint, must_be_primary: bool) -> Result<Talk> {
        let login = self.login().await?;
        let made = timeout(CONNECT, async {
            let mut talk = self.reach(node, login).await?;
            talk.log_in(self.address.db, must_be_primary).await?;
            Ok(talk)
        });
        made.await.unwrap_or_else(|_| {
            let tls = if self.address.tls { "; does it speak TLS?" } else { "" };
            Err(unavailable(format!("Redis did not answer a connection within {} s{tls}", CONNECT.as_secs())))
        })
    }

    async fn reach(&self, node: &Endpoint, login: Login) -> Result<Talk> {
        let stream = match node {
            Endpoint::Unix(path) => {
                let stream = UnixStream::connect(path).await;
                Stream::Unix(stream.map_err(|e| unavailable(format!("{NO_CONNECTION}{e}")))?)
            }
            Endpoint::Tcp(host, port) => {
                let stream = TcpStream::connect((host.as_str(), *port)).await;
                let stream =
                    stream.and_then(tuned).map_err(|e| unavailable(format!("{NO_CONNECTION}{e}")))?;
                if self.address.tls {
                    Stream::Tls(Box::new(tls::over(stream, host, &self.access).await?))
                } else {
                    Stream::Tcp(stream)
                }
            }
        };
        Ok(Talk { stream, buffer: BytesMut::new(), parser: Parser::default(), login, node: node.clone() })
    }

    /// Asks one Sentinel after the other, until one names a node that is a primary.
    async fn ask_sentinels(&self, sentinels: &[Endpoint], master: &str) -> Result<Talk> {
        let mut failed = Tried::of(sentinels.len());
        for sentinel in sentinels {
            let asked = timeout(SENTINEL, async {
                let mut talk = self.sentinel(sentinel).await?;
                let mut cmd = redis::cmd("SENTINEL");
                cmd.arg("get-master-addr-by-name").arg(master);
                talk.ask(&cmd).await
            });
            let answer = match asked.await {
                Ok(answer) => answer.and_then(node_of),
                Err(_) => Err(unavailable("no answer")),
            };
            let tried = match answer {
                Ok(node) => self.open(&node, true).await,
                Err(e) => Err(e),
            };
            match tried {
                Ok(talk) => return Ok(talk),
                Err(e) => failed.failed(e),
            }
        }
        Err(failed.nowhere("no Sentinel led to the primary"))
    }

    async fn sentinel(&self, sentinel: &Endpoint) -> Result<Talk> {
        let password = match &self.access.sentinel_password_file {
            Some(file) => Some(password(file, "redis.sentinel_password_file").await?),
            None => None,
        };
        let login = Login { user: self.access.sentinel_username.clone(), password };
        let mut talk = self.reach(sentinel, login).await?;
        talk.log_in(0, false).await?;
        Ok(talk)
    }

    /// A connection on which a Sentinel tells of other primaries, and what they call ours. None: there are no Sentinels,
    /// or none answers.
    pub(super) async fn announcements(&self) -> Option<(Talk, &str)> {
        let Place::Sentinels { sentinels, master } = &self.address.place else { return None };
        let mut subscribe = redis::cmd("SUBSCRIBE");
        subscribe.arg("+switch-master");
        for sentinel in sentinels {
            let made = timeout(SENTINEL, async {
                let mut talk = self.sentinel(sentinel).await?;
                talk.ask(&subscribe).await?;
                Result::Ok(talk)
            });
            if let Ok(Ok(talk)) = made.await {
                return Some((talk, master));
            }
        }
        None
    }

    /// Whether Sentinels are asked.
    pub(super) fn asks_sentinels(&self) -> bool {
        matches!(self.address.place, Place::Sentinels { .. })
    }
}

/// What `SENTINEL get-master-addr-by-name` answered.
fn node_of(value: Value) -> Result<Endpoint> {
    const WHAT: &str = "the address of the primary";
    if value == Value::Nil {
        return Err(unavailable("it knows no master of that name"));
    }
    let [host, port] =
        <[Value; 2]>::try_from(reply::array(value, WHAT)?).map_err(|_| reply::unexpected(WHAT))?;
    Ok(Endpoint::Tcp(reply::text(host, WHAT)?, reply::parsed(port, WHAT)?))
}

async fn password(file: &PathBuf, setting: &str) -> Result<Secret> {
    let unread = |e: io::Error| unfit(format!("{setting}: {}: cannot be read: {e}", file.display()));
    let mut text = String::new();
    let opened = tokio::fs::File::open(file).await.map_err(unread)?;
    opened.take(PASSWORD_MAX).read_to_string(&mut text).await.map_err(unread)?;
    Ok(Secret(text.trim_end_matches(['\r', '\n']).to_owned()))
}

/// No delay, and an end for those that are gone.
fn tuned(stream: TcpStream) -> io::Result<TcpStream> {
    stream.set_nodelay(true)?;
    let socket = socket2::SockRef::from(&stream);
    let alive = socket2::TcpKeepalive::new().with_time(Duration::from_secs(3));
    let alive = alive.with_interval(Duration::from_secs(1));
    socket.set_tcp_keepalive(&alive)?;
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(Some(UNACKNOWLEDGED))?;
    Ok(stream)
}

/// Who we are to Redis.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Login {
    user: Option<String>,
    password: Option<Secret>,
}

impl Login {
    /// What logs in; none if there is no password.
    pub(super) fn command(&self) -> Option<Cmd> {
        let password = self.password.as_ref()?;
        let mut cmd = redis::cmd("AUTH");
        if let Some(user) = &self.user {
            cmd.arg(user);
        }
        cmd.arg(&password.0);
        Some(cmd)
    }
}

/// A connection that one task has to itself.
#[derive(Debug)]
pub(in crate::store::redis) struct Talk {
    pub(super) stream: Stream,
    pub(super) buffer: BytesMut,
    pub(super) parser: Parser,
    pub(super) login: Login,
    /// Where it goes.
    pub(super) node: Endpoint,
}

impl Talk {
    /// Asks one thing.
    ///
    /// # Errors
    /// No answer in time, or an error of Redis.
    pub(in crate::store::redis) async fn ask(&mut self, cmd: &Cmd) -> Result<Value> {
        self.ask_within(cmd, ANSWER).await
    }

    /// Asks one thing that may take `limit`.
    pub(in crate::store::redis) async fn ask_within(&mut self, cmd: &Cmd, limit: Duration) -> Result<Value> {
        let asked = timeout(limit, async {
            self.say(&cmd.get_packed_command()).await?;
            self.hear().await
        });
        match asked.await {
            Ok(answer) => answer.and_then(|value| reply::checked(value, true)),
            Err(_) => Err(StoreError::Unavailable {
                message: format!("Redis did not answer within {} s", limit.as_secs()),
                sent: true,
            }),
        }
    }

    /// Asks several things in one piece.
    ///
    /// # Errors
    /// No answer to one of them in time, or an error of Redis.
    pub(in crate::store::redis) async fn ask_all(&mut self, commands: &[Cmd]) -> Result<Vec<Value>> {
        let packed: Vec<u8> = commands.iter().flat_map(Cmd::get_packed_command).collect();
        let asked = timeout(ANSWER, async {
            self.say(&packed).await?;
            let mut answers = Vec::with_capacity(commands.len());
            for _ in commands {
                answers.push(reply::checked(self.hear().await?, true)?);
            }
            Ok(answers)
        });
        asked.await.unwrap_or_else(|_| {
            let message = format!("Redis did not answer within {} s", ANSWER.as_secs());
            Err(StoreError::Unavailable { message, sent: true })
        })
    }

    /// Writes.
    pub(in crate::store::redis) async fn say(&mut self, packed: &[u8]) -> Result<()> {
        let written = async {
            self.stream.write_all(packed).await?;
            self.stream.flush().await
        };
        written.await.map_err(|e| StoreError::Unavailable { message: lost(&e), sent: true })
    }

    /// The next reply, errors among them.
    pub(in crate::store::redis) async fn hear(&mut self) -> Result<Value> {
        let failed = |message: String| StoreError::Unavailable { message, sent: true };
        loop {
            if let Some(value) = self.parser.next(&mut self.buffer).map_err(|e| unfit(e.to_string()))? {
                return Ok(value);
            }
            self.buffer.reserve(self.parser.missing(&self.buffer).clamp(READ_ROOM, 1 << 20));
            match self.stream.read_buf(&mut self.buffer).await {
                Ok(0) => return Err(failed("Redis closed the connection".into())),
                Ok(_) => {}
                Err(e) => return Err(failed(lost(&e))),
            }
        }
    }

    /// Logs in, all in one round trip.
    async fn log_in(&mut self, db: u32, must_be_primary: bool) -> Result<()> {
        let mut commands = Vec::new();
        let auth = self.login.command();
        let authenticates = auth.is_some();
        commands.extend(auth);
        let mut name = redis::cmd("CLIENT");
        name.arg("SETNAME").arg(NAME);
        commands.push(name);
        if db != 0 {
            let mut select = redis::cmd("SELECT");
            select.arg(db);
            commands.push(select);
        }
        if must_be_primary {
            commands.push(redis::cmd("ROLE"));
        }
        let packed: Vec<u8> = commands.iter().flat_map(Cmd::get_packed_command).collect();
        let tls = matches!(self.stream, Stream::Tls(_));
        let greeted = |e: StoreError| match e {
            StoreError::Unavailable { message, .. } if !tls => unavailable(format!(
                "{message}, before it answered anything: does it want TLS (rediss://), or does it have too many clients?"
            )),
            other => other,
        };
        self.say(&packed).await.map_err(greeted)?;
        if authenticates {
            let answer = self.hear().await.map_err(greeted)?;
            reply::checked(answer, true).map_err(|e| refused("Redis refused user or password", e))?;
        }
        // A user that may not name its connections is none the worse for it.
        let named = self.hear().await.map_err(greeted)?;
        match reply::checked(named, true) {
            Err(e) if !e.to_string().contains("NOPERM") => {
                let nobody = e.to_string().contains("NOAUTH");
                let what =
                    if nobody { "Redis lets nobody in without a password" } else { "Redis let us not in" };
                return Err(refused(what, e));
            }
            _ => {}
        }
        if db != 0 {
            let selected = self.hear().await.map_err(greeted)?;
            reply::checked(selected, true).map_err(|e| refused("Redis refused the database", e))?;
        }
        if must_be_primary {
            let role = reply::checked(self.hear().await.map_err(greeted)?, false)?;
            let role = reply::array(role, "its role")?.into_iter().next().unwrap_or(Value::Nil);
            if reply::text(role, "its role")? != "master" {
                return Err(unavailable("it names a Redis that is no primary (any more)"));
            }
        }
        Ok(())
    }
}

/// Why we were not let in. What Redis says that is none of the refusals that pass is for people to change.
fn refused(what: &str, error: StoreError) -> StoreError {
    let passes = error.passes() && !error.was_sent();
    let message = format!("{what}: {}", reply::said(error));
    if passes { unavailable(message) } else { unfit(message) }
}

/// What broke a connection.
pub(super) fn lost(error: &io::Error) -> String {
    tls::refusal(error).unwrap_or_else(|| format!("the connection to Redis broke: {error}"))
}

/// What bytes go over.
#[derive(Debug)]
pub(super) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
    Tls(Box<tokio_rustls::client::TlsStream<TcpStream>>),
}

macro_rules! each {
    ($self:ident, $stream:ident => $call:expr) => {
        match $self.get_mut() {
            Self::Tcp(stream) => {
                let $stream = Pin::new(stream);
                $call
            }
            Self::Unix(stream) => {
                let $stream = Pin::new(stream);
                $call
            }
            Self::Tls(stream) => {
                let $stream = Pin::new(stream.as_mut());
                $call
            }
        }
    };
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        each!(self, stream => stream.poll_read(cx, buf))
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        each!(self, stream => stream.poll_write(cx, buf))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        each!(self, stream => stream.poll_write_vectored(cx, bufs))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        each!(self, stream => stream.poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        each!(self, stream => stream.poll_shutdown(cx))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_cannot_be_used_is_refused_without_being_told() {
        for bad in ["secret", "http://u:secret@h", "redis://u:secret@h:99999999", "redis+x://:secret@h"] {
            let error = Dialer::new(bad, Access::default()).unwrap_err();
            assert!(!error.was_sent());
            assert!(!error.to_string().contains("secret"), "{error}");
        }
        assert!(Dialer::new("redis://u:secret@localhost:1/0", Access::default()).is_ok());
    }

    #[tokio::test]
    async fn a_password_is_read_from_its_file_every_time() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("password");
        let access = Access { password_file: Some(file.clone()), ..Access::default() };
        let dialer = Dialer::new("redis://ann:old@h", access).unwrap();
        let error = dialer.connect().await.unwrap_err();
        assert!(error.to_string().contains("redis.password_file"), "{error}");
        for password in ["one", "two"] {
            std::fs::write(&file, format!("{password}\n")).unwrap();
            let login = dialer.login().await.unwrap();
            assert_eq!(login.password, Some(Secret(password.into())));
            let packed = login.command().unwrap().get_packed_command();
            assert_eq!(packed, format!("*3\r\n$4\r\nAUTH\r\n$3\r\nann\r\n$3\r\n{password}\r\n").as_bytes());
            assert!(!format!("{login:?}").contains(password));
        }
    }
}
