//! `downbeat dev`: a server with nothing to set up.

use super::{Failure, Outcome, serve};
use crate::config::{Config, Overrides};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Address to listen on
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:7070", env = "DOWNBEAT_LISTEN")]
    listen: String,
    /// Directory of the embedded store
    #[arg(long, value_name = "DIR", default_value = "data", env = "DOWNBEAT_DATA")]
    data: String,
}

pub(super) async fn run(args: Args) -> Outcome {
    let flags = Overrides::from([
        (("server", "listen"), args.listen),
        (("store", "url"), "embedded".to_owned()),
        (("store", "data"), args.data),
    ]);
    let config = Config::load(None, flags).map_err(|e| Failure::usage(e.to_string()))?;
    serve::serve(&config).await
}
