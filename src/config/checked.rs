//! Values as text → settings: each is checked, and all faults are told together, each with where its value comes from.
//!
//! To add a setting: read it in [`Checked::config`], in the order of `config.default.toml`.

use super::{
    Config, ConfigError, Durability, Log, LogFormat, Overrides, Redis, Server, Store, Workers,
    parse_duration, redacted,
};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// The most partitions that the stores take.
const MAX_PARTITIONS: u16 = 1_024;
/// What the address of a Redis may begin with, up to a `+`; the store reads the rest.
const FAMILIES: [&str; 5] = ["redis", "rediss", "valkey", "valkeys", "unix"];
/// The most threads that may be asked for.
const MAX_THREADS: u16 = 1_024;

/// Reads typed values and collects what is wrong.
pub(super) struct Checked<'a> {
    /// The values.
    pub(super) values: Overrides,
    /// Where each that is no default comes from, as the user knows it.
    pub(super) origin: BTreeMap<(&'a str, &'a str), String>,
    /// What is wrong, in the order in which it was looked at.
    pub(super) faults: Vec<String>,
}

impl Checked<'_> {
    pub(super) fn text(&self, section: &'static str, key: &'static str) -> String {
        self.values.get(&(section, key)).cloned().unwrap_or_default()
    }

    pub(super) fn fault(&mut self, section: &str, key: &str, message: String) {
        let place = self.origin.get(&(section, key)).cloned().unwrap_or_else(|| format!("{section}.{key}"));
        self.faults.push(format!("{place}: {message}"));
    }

    pub(super) fn duration(&mut self, section: &'static str, key: &'static str, most: Duration) -> Duration {
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
    pub(super) fn number(&mut self, section: &'static str, key: &'static str, most: u16) -> Option<u16> {
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
    pub(super) fn one_of(&mut self, section: &'static str, key: &'static str, words: [&str; 2]) -> usize {
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
        };
        if redis.cert_file.is_some() != redis.key_file.is_some() {
            self.fault("redis", "cert_file", "is set together with redis.key_file or not at all".into());
        }
        Redis {
            waits: self.one_of("redis", "backlog", ["queue", "fail_fast"]) == 0,
            backlog_commands: self.number("redis", "backlog_commands", u16::MAX).map_or(1, u32::from),
            backlog_mb: self.number("redis", "backlog_mb", 4_096).unwrap_or(1),
            wait: self.duration("redis", "wait", Duration::from_secs(4)),
            ..redis
        }
    }

    /// The settings.
    ///
    /// # Errors
    /// All faults.
    pub(super) fn config(mut self) -> Result<Config, ConfigError> {
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
