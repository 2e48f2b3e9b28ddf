//! A server's settings: the defaults compiled in, a TOML file, the environment and flags, each over the one
//! before. Everything is checked here, before a port is bound or a store opened.
//!
//! Invariants
//! - `config.default.toml` is the one place where defaults and their explanations stand.
//! - A key that is not known is an error with its line, never ignored.
//!
//! ```text
//! file.rs      the form of the file          limits.rs    what doors take
//! checked.rs   text → checked values, all faults at once
//! ```
//!
//! To add a setting: a line in `config.default.toml`, its key in `file.rs`, a field here that `checked.rs` fills, its
//! variable in [`VARIABLES`] and, if it earns one, a flag in `cli/serve.rs`.

mod checked;
mod file;
mod limits;

use checked::Checked;
pub use limits::Limits;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The commented defaults, as `downbeat serve --print-config` prints them.
pub const DEFAULTS: &str = include_str!("config.default.toml");

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
        file::parse(DEFAULTS, "config.default.toml", &mut values)?;
        if let Some((name, text)) = file {
            let mut own = Overrides::new();
            file::parse(text, name, &mut own)?;
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
mod tests;
