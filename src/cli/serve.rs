//! `downbeat serve`: a server, by file, environment and flags.

use super::{Failure, Outcome, compose, output};
use crate::config::{self, Config, Overrides};
use crate::lifecycle::Lifecycle;
use std::path::PathBuf;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Where the state is: "embedded", or redis://host:port
    #[arg(long, value_name = "URL")]
    store: Option<String>,
    /// Directory of the embedded store
    #[arg(long, value_name = "DIR")]
    data: Option<String>,
    /// How many partitions a new store is given, for good; an existing one must have as many [default: 8, or as it is]
    #[arg(long, value_name = "N")]
    partitions: Option<String>,
    /// Address to listen on
    #[arg(long, value_name = "ADDR")]
    listen: Option<String>,
    /// Threads that work on runs and requests [default: half the cores; with the embedded store all]
    #[arg(long, value_name = "N")]
    threads: Option<String>,
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

impl Args {
    /// All settings.
    fn load(&self) -> Result<Config, Failure> {
        let flags = [
            (("store", "url"), &self.store),
            (("store", "data"), &self.data),
            (("store", "partitions"), &self.partitions),
            (("server", "listen"), &self.listen),
            (("server", "threads"), &self.threads),
        ];
        let flags: Overrides = flags.into_iter().filter_map(|(key, v)| Some((key, v.clone()?))).collect();
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
    let server = compose::start(config, &life).await?;
    output::note(&format!("listening on http://{}", server.address));
    server.ended().await
}
