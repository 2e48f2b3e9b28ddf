//! A server's settings: the defaults compiled in, a TOML file, the environment and flags, each over the one
//! before. Everything is checked here, before a port is bound or a store opened.
//!
//! Invariants
//! - `config.default.toml` is the one place where defaults and their explanations stand.
//! - A key that is not known is an error with its line, never ignored.
//!
//! To add a setting: a line in `config.default.toml`, a field here, its variable in [`VARIABLES`] and, if it
//! earns one, a flag in `cli/serve.rs`.

mod limits;

pub use limits::Limits;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The commented defaults, as `downbeat serve --print-config` prints them.
pub const DEFAULTS: &str = include_str!("config.default.toml");

/// The most partitions that the stores take.
const MAX_PARTITIONS: u16 = 1_024;
/// What the address of a Redis may begin with, up to a `+`; the store reads the rest.
const FAMILIES: [&str; 5] = ["redis", "rediss", "valkey", "valkeys", "unix"];
/// The most threads that may be asked for.
const MAX_THREADS: u16 = 1_024;

/// Environment variables and the settings they stand for.
pub const VARIABLES: &[(&str, &str, &str)] = &[
    ("DOWNBEAT_LISTEN", "server", "listen"),
    ("DOWNBEAT_DRAIN", "server", "drain"),
    ("DOWNBEAT_THREADS", "server", "threads"),
    ("DOWNBEAT_STORE", "store", "url"),
    ("DOWNBEAT_DATA", "store", "data"),
    ("DOWNBEAT_PARTITIONS", "store", "partitions"),
    ("DOWNBEAT_DURABILITY", "store", "durability"),
    ("DOWNBEAT_REDIS_USERNAME", "redis", "username"),
    ("DOWNBEAT_REDIS_PASSWORD_FILE", "redis", "password_file"),
    ("DOWNBEAT_REDIS_CA_FILE", "redis", "ca_file"),
    ("DOWNBEAT_REDIS_CERT_FILE", "redis", "cert_file"),
    ("DOWNBEAT_REDIS_KEY_FILE", "redis", "key_file"),
    ("DOWNBEAT_REDIS_SERVER_NAME", "redis", "server_name"),
    ("DOWNBEAT_REDIS_SENTINEL_USERNAME", "redis", "sentinel_username"),
    ("DOWNBEAT_REDIS_SENTINEL_PASSWORD_FILE", "redis", "sentinel_password_file"),
    ("DOWNBEAT_REDIS_BACKLOG", "redis", "backlog"),
    ("DOWNBEAT_REDIS_BACKLOG_COMMANDS", "redis", "backlog_commands"),
    ("DOWNBEAT_REDIS_BACKLOG_MB", "redis", "backlog_mb"),
    ("DOWNBEAT_REDIS_WAIT", "redis", "wait"),
    ("DOWNBEAT_REDIS_START_WAIT", "redis", "start_wait"),
    ("DOWNBEAT_LEASE", "workers", "lease"),
    ("DOWNBEAT_ACK", "workers", "ack"),
    ("DOWNBEAT_PING", "workers", "ping"),
    ("DOWNBEAT_LIMIT_CONNECTIONS", "limits", "connections"),
    ("DOWNBEAT_LIMIT_STREAMS", "limits", "streams"),
    ("DOWNBEAT_LIMIT_EVENTS", "limits", "events"),
    ("DOWNBEAT_LIMIT_WORKERS", "limits", "workers"),
    ("DOWNBEAT_LIMIT_STARTS", "limits", "starts"),
    ("DOWNBEAT_LIMIT_HEADERS", "limits", "headers"),
    ("DOWNBEAT_LIMIT_HEADER_KB", "limits", "header_kb"),
    ("DOWNBEAT_LIMIT_ADDRESS_KB", "limits", "address_kb"),
    ("DOWNBEAT_LIMIT_BODY_MEMORY_MB", "limits", "body_memory_mb"),
    ("DOWNBEAT_LIMIT_HEAD", "limits", "head"),
    ("DOWNBEAT_LIMIT_BODY", "limits", "body"),
    ("DOWNBEAT_LIMIT_STALLED", "limits", "stalled"),
    ("DOWNBEAT_LIMIT_PING", "limits", "ping"),
    ("DOWNBEAT_LIMIT_PING_ANSWER", "limits", "ping_answer"),
    ("DOWNBEAT_LOG", "log", "filter"),
    ("DOWNBEAT_LOG_FORMAT", "log", "format"),
];

/// Why settings were refused: one line per fault, each with where it stands and how to mend it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ConfigError(pub String);

/// All settings of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// The port and the life of the process.
    pub server: Server,
    /// Where the state is.
    pub store: Store,
    /// How many partitions the store has, or is given when it is initialised; none: as it is, or its default.
    pub partitions: Option<u16>,
    /// What an acknowledged commit has reached.
    pub durability: Durability,
    /// How the link to Redis behaves.
    pub redis: Redis,
    /// How workers are watched.
    pub workers: Workers,
    /// What the doors take.
    pub limits: Limits,
    /// What is logged.
    pub log: Log,
}

/// `[server]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Server {
    /// Where to listen.
    pub listen: SocketAddr,
    /// How long a stop waits for what is under way.
    pub drain: Duration,
    /// Threads that work on runs and requests; none: as many as suit the machine and the store, see [`Config::threads`].
    pub threads: Option<u16>,
}

/// `[store]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Store {
    /// One process, a directory on disk.
    Embedded {
        /// The directory.
        data: PathBuf,
    },
    /// A Redis or Valkey.
    Redis {
        /// `redis://…`
        url: String,
    },
}

/// What an acknowledged commit has reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// The store that took it.
    Local,
    /// A replica of it too.
    Replicated,
}

/// `[redis]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Redis {
    /// The ACL user; none: that of the address.
    pub username: Option<String>,
    /// Where its password is.
    pub password_file: Option<PathBuf>,
    /// Authorities that certificates of Redis are checked against; none: those of the system.
    pub ca_file: Option<PathBuf>,
    /// Our certificate.
    pub cert_file: Option<PathBuf>,
    /// Its key.
    pub key_file: Option<PathBuf>,
    /// The name that the certificate of Redis is for; none: the host of the address.
    pub server_name: Option<String>,
    /// The ACL user of the Sentinels.
    pub sentinel_username: Option<String>,
    /// Where its password is.
    pub sentinel_password_file: Option<PathBuf>,
    /// Whether commands wait for a connection while there is none, or fail at once.
    pub waits: bool,
    /// Commands that may wait or be under way.
    pub backlog_commands: u32,
    /// MiB of commands that may wait.
    pub backlog_mb: u16,
    /// How long a command waits for a connection.
    pub wait: Duration,
    /// How long a server that starts waits for a Redis that cannot be used yet.
    pub start_wait: Duration,
}

/// `[workers]`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Workers {
    /// A silent worker loses its tasks after this.
    pub lease: Duration,
    /// An assignment is acknowledged within this.
    pub ack: Duration,
    /// A worker is asked whether it is there this often.
    pub ping: Duration,
}

/// `[log]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Log {
    /// A level, or levels per target.
    pub filter: String,
    /// How lines look.
    pub format: LogFormat,
}

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object per line.
    Json,
}

/// Settings by section and key, as text: what flags and variables give.
pub type Overrides = BTreeMap<(&'static str, &'static str), String>;

/// The file's form: everything may be missing, nothing may be unknown.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    server: ServerKeys,
    #[serde(default)]
    store: StoreKeys,
    #[serde(default)]
    redis: RedisKeys,
    #[serde(default)]
    workers: WorkersKeys,
    #[serde(default)]
    limits: LimitsKeys,
    #[serde(default)]
    log: LogKeys,
}

macro_rules! section {
    ($name:ident: $($key:ident),*) => {
        #[derive(Debug, Default, Deserialize)]
        #[serde(deny_unknown_fields)]
        struct $name { $($key: Option<String>,)* }
        impl $name {
            fn entries(self, section: &'static str, into: &mut Overrides) {
                $(if let Some(value) = self.$key { into.insert((section, stringify!($key)), value); })*
            }
        }
    };
}
section!(ServerKeys: listen, drain, threads);
section!(StoreKeys: url, data, partitions, durability);
section!(RedisKeys:
    username, password_file, ca_file, cert_file, key_file, server_name, sentinel_username, sentinel_password_file,
    backlog, backlog_commands, backlog_mb, wait, start_wait);
section!(WorkersKeys: lease, ack, ping);
section!(LimitsKeys:
    connections, streams, events, workers, starts, headers, header_kb, address_kb, body_memory_mb, head, body, stalled,
    ping, ping_answer);
section!(LogKeys: filter, format);

fn parse_file(text: &str, name: &str, into: &mut Overrides) -> Result<(), ConfigError> {
    let file: File = toml::from_str(text).map_err(|e| ConfigError(format!("{name}: {e}")))?;
    file.server.entries("server", into);
    file.store.entries("store", into);
    file.redis.entries("redis", into);
    file.workers.entries("workers", into);
    file.limits.entries("limits", into);
    file.log.entries("log", into);
    Ok(())
}

impl Config {
    /// Reads the settings of this process: defaults, `file`, the environment, `flags`.
    ///
    /// # Errors
    /// Everything that is wrong, in one text.
    pub fn load(file: Option<&Path>, flags: Overrides) -> Result<Self, ConfigError> {
        let text = match file {
            Some(path) => Some((
                path.display().to_string(),
                std::fs::read_to_string(path)
                    .map_err(|e| ConfigError(format!("{}: cannot be read: {e}", path.display())))?,
            )),
            None => None,
        };
        Self::of(
            text.as_ref().map(|(name, text)| (name.as_str(), text.as_str())),
            |v| std::env::var(v).ok(),
            flags,
        )
    }

    /// The same without touching the process: `file` is name and text, `variable` looks one up.
    ///
    /// # Errors
    /// Everything that is wrong, in one text.
    pub fn of(
        file: Option<(&str, &str)>,
        variable: impl Fn(&str) -> Option<String>,
        flags: Overrides,
    ) -> Result<Self, ConfigError> {
        let mut values = Overrides::new();
        let mut origin: BTreeMap<(&str, &str), String> = BTreeMap::new();
        parse_file(DEFAULTS, "config.default.toml", &mut values)?;
        if let Some((name, text)) = file {
            let mut own = Overrides::new();
            parse_file(text, name, &mut own)?;
            for (key, value) in own {
                origin.insert(key, format!("{name}: {}.{}", key.0, key.1));
                values.insert(key, value);
            }
        }
        for (name, section, key) in VARIABLES {
            if let Some(value) = variable(name) {
                origin.insert((section, key), (*name).to_owned());
                values.insert((section, key), value);
            }
        }
        for (key, value) in flags {
            origin.insert(key, format!("the flag for {}.{}", key.0, key.1));
            values.insert(key, value);
        }
        Checked { values, origin, faults: Vec::new() }.config()
    }
}

impl Config {
    /// How many threads work on runs and requests. Beside a Redis, half the cores: the rest is for Redis and workers, and
    /// work that hops between more threads costs more (docs/benchmarks.md). The embedded store works on them too.
    pub fn threads(&self) -> usize {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        match (self.server.threads, &self.store) {
            (Some(threads), _) => usize::from(threads),
            (None, Store::Embedded { .. }) => cores,
            (None, Store::Redis { .. }) => (cores / 2).max(1),
        }
    }

    /// How many lanes decide. The embedded store commits on a thread of this process: while one lane waits for it, another
    /// decides (docs/adr/0006-embedded-store.md). A lane beside a Redis has Redis to do the rest meanwhile.
    pub fn lanes(&self) -> usize {
        let threads = self.threads();
        match &self.store {
            Store::Embedded { .. } => (threads / 4).max(threads.min(2)),
            Store::Redis { .. } => (threads / 2).max(1),
        }
    }
}

/// Reads typed values and collects what is wrong.
struct Checked<'a> {
    values: Overrides,
    origin: BTreeMap<(&'a str, &'a str), String>,
    faults: Vec<String>,
}

impl Checked<'_> {
    fn text(&self, section: &'static str, key: &'static str) -> String {
        self.values.get(&(section, key)).cloned().unwrap_or_default()
    }

    fn fault(&mut self, section: &str, key: &str, message: String) {
        let place = self.origin.get(&(section, key)).cloned().unwrap_or_else(|| format!("{section}.{key}"));
        self.faults.push(format!("{place}: {message}"));
    }

    fn duration(&mut self, section: &'static str, key: &'static str, most: Duration) -> Duration {
        let text = self.text(section, key);
        match parse_duration(&text) {
            Some(d) if !d.is_zero() && d <= most => d,
            Some(_) => {
                self.fault(section, key, format!("{text:?} must be more than 0 and at most {most:?}"));
                most
            }
            None => {
                self.fault(section, key, format!("{text:?} is no duration like 500ms, 10s or 1m30s"));
                most
            }
        }
    }

    /// A whole number from 1 to `most`; none if it is left open.
    fn number(&mut self, section: &'static str, key: &'static str, most: u16) -> Option<u16> {
        let text = self.text(section, key);
        if text.is_empty() {
            return None;
        }
        let number = text.parse().ok().filter(|n| (1..=most).contains(n));
        if number.is_none() {
            self.fault(section, key, format!("{text:?} is no number from 1 to {most}"));
        }
        number
    }

    /// Which of the words it is.
    fn one_of(&mut self, section: &'static str, key: &'static str, words: [&str; 2]) -> usize {
        let text = self.text(section, key);
        words.iter().position(|word| *word == text).unwrap_or_else(|| {
            let [one, other] = words;
            self.fault(section, key, format!("{text:?} is neither {one:?} nor {other:?}"));
            0
        })
    }

    fn redis(&mut self) -> Redis {
        let text = |key| Some(self.text("redis", key)).filter(|t| !t.is_empty());
        let file = |key| text(key).map(PathBuf::from);
        let redis = Redis {
            username: text("username"),
            password_file: file("password_file"),
            ca_file: file("ca_file"),
            cert_file: file("cert_file"),
            key_file: file("key_file"),
            server_name: text("server_name"),
            sentinel_username: text("sentinel_username"),
            sentinel_password_file: file("sentinel_password_file"),
            waits: true,
            backlog_commands: 0,
            backlog_mb: 0,
            wait: Duration::ZERO,
            start_wait: Duration::ZERO,
        };
        if redis.cert_file.is_some() != redis.key_file.is_some() {
            self.fault("redis", "cert_file", "is set together with redis.key_file or not at all".into());
        }
        Redis {
            waits: self.one_of("redis", "backlog", ["queue", "fail_fast"]) == 0,
            backlog_commands: self.number("redis", "backlog_commands", u16::MAX).map_or(1, u32::from),
            backlog_mb: self.number("redis", "backlog_mb", 4_096).unwrap_or(1),
            wait: self.duration("redis", "wait", Duration::from_secs(4)),
            start_wait: self.duration("redis", "start_wait", Duration::from_hours(24)),
            ..redis
        }
    }

    fn config(mut self) -> Result<Config, ConfigError> {
        let listen = self.text("server", "listen");
        let listen = listen.parse().unwrap_or_else(|_| {
            self.fault(
                "server",
                "listen",
                format!("{listen:?} is no address like 127.0.0.1:7070 or [::]:7070"),
            );
            SocketAddr::from(([127, 0, 0, 1], 0))
        });
        let drain = self.duration("server", "drain", Duration::from_mins(10));
        let url = self.text("store", "url");
        let data = PathBuf::from(self.text("store", "data"));
        if url == "embedded" && data.as_os_str().is_empty() {
            self.fault("store", "data", "the embedded store needs a directory".into());
        }
        let url_is_embedded = url == "embedded";
        let store = if url_is_embedded {
            Store::Embedded { data }
        } else {
            let scheme = url.split_once("://").map_or("", |(scheme, _)| scheme);
            if !FAMILIES.contains(&scheme.split('+').next().unwrap_or_default()) {
                let message = format!("{:?} is neither \"embedded\" nor redis://host:port", redacted(&url));
                self.fault("store", "url", message);
            }
            Store::Redis { url }
        };
        let partitions = self.number("store", "partitions", MAX_PARTITIONS);
        let durability = self.one_of("store", "durability", ["local", "replicated"]);
        let durability = if durability == 1 { Durability::Replicated } else { Durability::Local };
        if durability == Durability::Replicated && url_is_embedded {
            self.fault(
                "store",
                "durability",
                "the embedded store has no replicas: \"local\" is all it can be".into(),
            );
        }
        let redis = self.redis();
        let threads = self.number("server", "threads", MAX_THREADS);
        let workers = Workers {
            lease: self.duration("workers", "lease", Duration::from_hours(1)),
            ack: self.duration("workers", "ack", Duration::from_mins(10)),
            ping: self.duration("workers", "ping", Duration::from_mins(10)),
        };
        if workers.ping * 2 > workers.lease {
            self.fault(
                "workers",
                "ping",
                "must be at most half of workers.lease, or one lost ping loses tasks".into(),
            );
        }
        let limits = self.limits();
        let format = match self.text("log", "format").as_str() {
            "text" => LogFormat::Text,
            "json" => LogFormat::Json,
            other => {
                let message = format!("{other:?} is neither \"text\" nor \"json\"");
                self.fault("log", "format", message);
                LogFormat::Text
            }
        };
        let filter = self.text("log", "filter");
        if let Err(e) = filter.parse::<tracing_subscriber::filter::Targets>() {
            self.fault(
                "log",
                "filter",
                format!("{filter:?} is no filter like info or info,downbeat=debug: {e}"),
            );
        }
        if !self.faults.is_empty() {
            return Err(ConfigError(self.faults.join("\n")));
        }
        Ok(Config {
            server: Server { listen, drain, threads },
            store,
            partitions,
            durability,
            redis,
            workers,
            limits,
            log: Log { filter, format },
        })
    }
}

/// The address without what may be a password: what stands before an `@`, or all if it has options.
pub fn redacted(url: &str) -> String {
    match (url.find("://"), url.rfind('@')) {
        (Some(scheme), _) if url.contains('?') => format!("{}://…", &url[..scheme]),
        (Some(scheme), Some(at)) if at > scheme => format!("{}://…{}", &url[..scheme], &url[at..]),
        _ => url.to_owned(),
    }
}

/// `1h30m`, `10s`, `500ms`: whole numbers of h, m, s and ms, each at most once, in that order.
pub fn parse_duration(text: &str) -> Option<Duration> {
    let mut rest = text;
    let mut total = Duration::ZERO;
    let mut last = u64::MAX;
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let number: u64 = rest.get(..digits)?.parse().ok()?;
        rest = &rest[digits..];
        let unit = rest.bytes().take_while(u8::is_ascii_alphabetic).count();
        let millis = match &rest[..unit] {
            "h" => 3_600_000,
            "m" => 60_000,
            "s" => 1_000,
            "ms" => 1,
            _ => return None,
        };
        if millis >= last {
            return None;
        }
        last = millis;
        total = total.checked_add(Duration::from_millis(number.checked_mul(millis)?))?;
        rest = &rest[unit..];
    }
    Some(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn none(_: &str) -> Option<String> {
        None
    }

    #[test]
    fn the_defaults_are_valid_and_are_what_is_promised() {
        let config = Config::of(None, none, Overrides::new()).unwrap();
        assert_eq!(config.server.listen.to_string(), "127.0.0.1:7070");
        assert_eq!(config.server.drain, Duration::from_secs(10));
        assert_eq!(config.store, Store::Embedded { data: "data".into() });
        assert_eq!(config.durability, Durability::Local);
        assert_eq!((config.redis.backlog_commands, config.redis.backlog_mb), (10_000, 64));
        assert_eq!((config.redis.waits, config.redis.wait), (true, Duration::from_secs(1)));
        assert_eq!((&config.redis.username, &config.redis.ca_file), (&None, &None));
        assert_eq!(config.workers.lease, Duration::from_secs(10));
        assert_eq!(config.log, Log { filter: "info".into(), format: LogFormat::Text });
    }

    #[test]
    fn flags_beat_the_environment_which_beats_the_file() {
        let file = "[server]\nlisten = \"0.0.0.0:1\"\ndrain = \"1s\"\n[store]\nurl = \"redis://file\"";
        let env = |name: &str| match name {
            "DOWNBEAT_LISTEN" => Some("0.0.0.0:2".to_owned()),
            "DOWNBEAT_STORE" => Some("redis://env".to_owned()),
            _ => None,
        };
        let flags = Overrides::from([(("server", "listen"), "0.0.0.0:3".to_owned())]);
        let config = Config::of(Some(("f.toml", file)), env, flags).unwrap();
        assert_eq!(config.server.listen.port(), 3);
        assert_eq!(config.store, Store::Redis { url: "redis://env".into() });
        assert_eq!(config.server.drain, Duration::from_secs(1));
    }

    #[test]
    fn every_fault_is_told_at_once_with_its_place() {
        let file = "[server]\nlisten = \"7070\"\n[workers]\nping = \"9s\"\nack = \"10\"";
        let env = |name: &str| (name == "DOWNBEAT_STORE").then(|| "mysql://me:secret@db".to_owned());
        let flags = Overrides::from([(("log", "format"), "xml".to_owned())]);
        let ConfigError(text) = Config::of(Some(("f.toml", file)), env, flags).unwrap_err();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.len(), 5, "{text}");
        assert!(lines[0].starts_with("f.toml: server.listen: \"7070\" is no address"), "{text}");
        assert!(lines[1].starts_with("DOWNBEAT_STORE: \"mysql://…@db\" is neither"), "{text}");
        assert!(lines[2].starts_with("f.toml: workers.ack: \"10\" is no duration"), "{text}");
        assert!(lines[3].starts_with("f.toml: workers.ping: must be at most half"), "{text}");
        assert!(lines[4].starts_with("the flag for log.format: \"xml\""), "{text}");
    }

    #[test]
    fn threads_suit_the_store_unless_they_are_given() {
        let of = |store: &str, threads: Option<&str>| {
            let mut flags = Overrides::from([(("store", "url"), store.to_owned())]);
            flags.extend(threads.map(|t| (("server", "threads"), t.to_owned())));
            Config::of(None, none, flags)
        };
        let cores = std::thread::available_parallelism().unwrap().get();
        assert_eq!(of("embedded", None).unwrap().threads(), cores);
        assert_eq!(of("redis://localhost", None).unwrap().threads(), (cores / 2).max(1));
        assert_eq!(of("redis://localhost", Some("3")).unwrap().threads(), 3);
        for (store, threads, lanes) in [
            ("embedded", "1", 1),
            ("embedded", "2", 2),
            ("embedded", "16", 4),
            ("redis://localhost", "1", 1),
            ("redis://localhost", "8", 4),
        ] {
            assert_eq!(of(store, Some(threads)).unwrap().lanes(), lanes, "{store} on {threads} threads");
        }
        for bad in ["0", "1025", "many"] {
            let expected = format!("the flag for server.threads: {bad:?} is no number from 1 to 1024");
            assert_eq!(of("embedded", Some(bad)).unwrap_err().0, expected);
        }
    }

    #[test]
    fn the_number_of_partitions_is_left_to_the_store_unless_it_is_given() {
        assert_eq!(Config::of(None, none, Overrides::new()).unwrap().partitions, None);
        let flag = |text: &str| Overrides::from([(("store", "partitions"), text.to_owned())]);
        for (text, number) in [("1", 1), ("64", 64), ("1024", 1_024)] {
            assert_eq!(Config::of(None, none, flag(text)).unwrap().partitions, Some(number));
        }
        for bad in ["0", "1025", "-1", "many", "8.0"] {
            let ConfigError(text) = Config::of(None, none, flag(bad)).unwrap_err();
            let expected = format!("the flag for store.partitions: {bad:?} is no number from 1 to 1024");
            assert_eq!(text, expected);
        }
    }

    #[test]
    fn unknown_keys_are_refused_with_their_line() {
        for (file, word) in [("[server]\nport = 1", "port"), ("[sever]", "sever"), ("x = 1", "x")] {
            let ConfigError(text) = Config::of(Some(("f.toml", file)), none, Overrides::new()).unwrap_err();
            assert!(text.starts_with("f.toml: ") && text.contains(word) && text.contains("line"), "{text}");
        }
    }

    #[test]
    fn durations_are_whole_numbers_with_units_in_order() {
        assert_eq!(parse_duration("1h30m"), Some(Duration::from_mins(90)));
        assert_eq!(parse_duration("1m2s3ms"), Some(Duration::from_millis(62_003)));
        for bad in ["", "10", "s", "1.5s", "-1s", "1s1m", "1s1s", "1 s", "99999999999999999999s", "1d"] {
            assert_eq!(parse_duration(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn every_variable_names_a_setting_of_the_defaults() {
        let mut defaults = Overrides::new();
        parse_file(DEFAULTS, "defaults", &mut defaults).unwrap();
        let named: std::collections::BTreeSet<_> = VARIABLES.iter().map(|(_, s, k)| (*s, *k)).collect();
        assert_eq!(named, defaults.keys().copied().collect());
        for (name, _, _) in VARIABLES {
            assert!(DEFAULTS.contains(name), "{name} must be explained beside its setting");
        }
    }

    #[test]
    fn no_password_is_shown() {
        for (url, shown) in [
            ("redis://u:p@ss@h:1/2", "redis://…@h:1/2"),
            ("redis://h:1", "redis://h:1"),
            ("unix:///s?user=u&pass=se@cret", "unix://…"),
            ("redis://u:se?cret@h", "redis://…"),
            ("rediss+sentinel://u:secret@a,b/main", "rediss+sentinel://…@a,b/main"),
        ] {
            assert_eq!(redacted(url), shown);
        }
    }

    #[test]
    fn the_examples_of_the_guide_are_valid() {
        let text = include_str!("../examples/redis.toml");
        let config = Config::of(Some(("redis.toml", text)), none, Overrides::new()).unwrap();
        assert_eq!(config.durability, Durability::Replicated);
        assert_eq!(config.redis.username.as_deref(), Some("downbeat"));
        let text = include_str!("../examples/limits.toml");
        let config = Config::of(Some(("limits.toml", text)), none, Overrides::new()).unwrap();
        assert_eq!(config.limits.connections, 2_000);
    }

    #[test]
    fn settings_of_redis_are_read_and_their_faults_told() {
        let file = "[store]\nurl = \"redis+sentinel://a,b/main\"\ndurability = \"replicated\"\n[redis]\nbacklog = \"fail_fast\"\n\
                    ca_file = \"ca.pem\"\nwait = \"500ms\"\nbacklog_mb = \"7\"";
        let env = |name: &str| (name == "DOWNBEAT_REDIS_PASSWORD_FILE").then(|| "/run/password".to_owned());
        let config = Config::of(Some(("f.toml", file)), env, Overrides::new()).unwrap();
        assert_eq!(config.durability, Durability::Replicated);
        let redis = config.redis;
        assert_eq!((redis.waits, redis.backlog_mb, redis.wait), (false, 7, Duration::from_millis(500)));
        assert_eq!(
            (redis.ca_file, redis.password_file),
            (Some("ca.pem".into()), Some("/run/password".into()))
        );
        let file = "[store]\ndurability = \"replicated\"\n[redis]\nbacklog = \"drop\"\nwait = \"5s\"\nkey_file = \"k\"\nbacklog_mb = \"0\"";
        let error = Config::of(Some(("f.toml", file)), none, Overrides::new()).unwrap_err().to_string();
        for part in [
            "f.toml: store.durability: the embedded store has no replicas",
            "f.toml: redis.backlog: \"drop\" is neither \"queue\" nor \"fail_fast\"",
            "f.toml: redis.wait:",
            "redis.cert_file: is set together",
            "f.toml: redis.backlog_mb: \"0\" is no number",
        ] {
            assert!(error.contains(part), "{part} is not in: {error}");
        }
    }
}
