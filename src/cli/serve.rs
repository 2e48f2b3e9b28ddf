//! `downbeat serve`: a server, by file, environment and flags.

use super::{Failure, Outcome, compose, output};
use crate::config::{self, Config, Overrides};
use crate::lifecycle::Lifecycle;
use std::path::PathBuf;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Where the state is: "embedded", or redis://host:port (also rediss://, unix://, redis+sentinel://, redis+cluster://)
    #[arg(long, value_name = "URL")]
    store: Option<String>,
    /// Directory of the embedded store
    #[arg(long, value_name = "DIR")]
    data: Option<String>,
    /// How many partitions a new store is given, for good; an existing one must have as many [default: 8, or as it is]
    #[arg(long, value_name = "N")]
    partitions: Option<String>,
    /// What an acknowledged step has reached: "local" or "replicated" [default: local]
    #[arg(long, value_name = "HOW")]
    durability: Option<String>,
    /// The ACL user of Redis, if it does not stand in the address
    #[arg(long, value_name = "NAME")]
    redis_username: Option<String>,
    /// File with the password of Redis; read again when it changes
    #[arg(long, value_name = "FILE")]
    redis_password_file: Option<String>,
    /// Authorities that the certificate of Redis is checked against (PEM) [default: those of the system]
    #[arg(long, value_name = "FILE")]
    redis_ca_file: Option<String>,
    /// Our certificate for Redis (PEM)
    #[arg(long, value_name = "FILE")]
    redis_cert_file: Option<String>,
    /// Its key (PEM)
    #[arg(long, value_name = "FILE")]
    redis_key_file: Option<String>,
    /// While there is no connection to Redis, commands wait ("queue") or fail ("fail_fast") [default: queue]
    #[arg(long, value_name = "POLICY")]
    redis_backlog: Option<String>,
    /// Address to listen on
    #[arg(long, value_name = "ADDR")]
    listen: Option<String>,
    /// Threads that work on runs and requests [default: half the cores; with the embedded store all]
    #[arg(long, value_name = "N")]
    threads: Option<String>,
    /// A limit of the doors, by its name in the section limits; may be given more than once
    #[arg(long = "limit", value_name = "NAME=VALUE", value_parser = limit)]
    limits: Vec<(&'static str, String)>,
    /// Settings file (TOML)
    #[arg(long, value_name = "FILE", env = "DOWNBEAT_CONFIG")]
    config: Option<PathBuf>,
    /// Prints the commented defaults and does nothing else
    #[arg(long)]
    print_config: bool,
}

pub(super) async fn run(args: Args) -> Outcome {
    if args.print_config {
        output::line(config::DEFAULTS.trim_end());
        return Ok(());
    }
    serve(&args.load()?).await
}

/// `NAME=VALUE`, where the name is one of `[limits]`.
fn limit(text: &str) -> Result<(&'static str, String), String> {
    let (name, value) = text.split_once('=').ok_or("it is of the form NAME=VALUE")?;
    let names =
        || config::VARIABLES.iter().filter(|(_, section, _)| *section == "limits").map(|(_, _, key)| *key);
    match names().find(|known| *known == name) {
        Some(name) => Ok((name, value.to_owned())),
        None => Err(format!("there is no limit {name:?}: {}", names().collect::<Vec<_>>().join(", "))),
    }
}

impl Args {
    /// All settings.
    fn load(&self) -> Result<Config, Failure> {
        let flags = [
            (("store", "url"), &self.store),
            (("store", "data"), &self.data),
            (("store", "partitions"), &self.partitions),
            (("store", "durability"), &self.durability),
            (("redis", "username"), &self.redis_username),
            (("redis", "password_file"), &self.redis_password_file),
            (("redis", "ca_file"), &self.redis_ca_file),
            (("redis", "cert_file"), &self.redis_cert_file),
            (("redis", "key_file"), &self.redis_key_file),
            (("redis", "backlog"), &self.redis_backlog),
            (("server", "listen"), &self.listen),
            (("server", "threads"), &self.threads),
        ];
        let mut flags: Overrides = flags.into_iter().filter_map(|(key, v)| Some((key, v.clone()?))).collect();
        flags.extend(self.limits.iter().map(|(key, value)| (("limits", *key), value.clone())));
        Config::load(self.config.as_deref(), flags).map_err(|e| Failure::usage(e.to_string()))
    }

    /// How many threads it is to run on; none if its settings are wrong, which it says itself.
    pub(super) fn threads(&self) -> Option<usize> {
        self.load().ok().map(|config| config.threads())
    }
}

/// Serves until a signal ends it.
pub(super) async fn serve(config: &Config) -> Outcome {
    crate::telemetry::init(&config.log);
    let life = Lifecycle::with_signals()?;
    let Some(server) = compose::start(config, &life).await? else { return Ok(()) };
    output::note(&format!("listening on http://{}", server.address));
    server.ended().await
}
