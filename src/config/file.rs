//! The form of a file of settings: sections of keys, every value a text. What they mean is for [`super::checked`].
//!
//! To add a setting: its key in its section.

use super::{ConfigError, Overrides};
use serde::Deserialize;

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
    backlog, backlog_commands, backlog_mb, wait);
section!(WorkersKeys: lease, ack, ping);
section!(LimitsKeys:
    connections, streams, events, workers, starts, headers, header_kb, address_kb, body_memory_mb, head, body, stalled,
    ping, ping_answer);
section!(LogKeys: filter, format);

/// Reads a file of this `name` into values.
///
/// # Errors
/// What is no TOML, or no setting, with its line.
pub(super) fn parse(text: &str, name: &str, into: &mut Overrides) -> Result<(), ConfigError> {
    let file: File = toml::from_str(text).map_err(|e| ConfigError(format!("{name}: {e}")))?;
    file.server.entries("server", into);
    file.store.entries("store", into);
    file.redis.entries("redis", into);
    file.workers.entries("workers", into);
    file.limits.entries("limits", into);
    file.log.entries("log", into);
    Ok(())
}
