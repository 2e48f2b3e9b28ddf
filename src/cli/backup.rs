//! `downbeat backup`: all of a store into a file.

use super::{Failure, Outcome, compose, output};
use crate::app::moves;
use crate::config::{Config, Overrides};
use crate::store::Purpose;
use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};

/// Which store, as `serve` takes it.
#[derive(Debug, clap::Args)]
pub(super) struct StoreArgs {
    /// Where the state is: "embedded", or redis://host:port
    #[arg(long, value_name = "URL")]
    store: Option<String>,
    /// Directory of the embedded store
    #[arg(long, value_name = "DIR")]
    data: Option<String>,
    /// Settings file (TOML)
    #[arg(long, value_name = "FILE", env = "DOWNBEAT_CONFIG")]
    config: Option<PathBuf>,
}

impl StoreArgs {
    /// The settings, by flags, environment and file.
    pub(super) fn load(&self) -> Result<Config, Failure> {
        let flags = [(("store", "url"), &self.store), (("store", "data"), &self.data)];
        let flags: Overrides = flags.into_iter().filter_map(|(key, v)| Some((key, v.clone()?))).collect();
        Config::load(self.config.as_deref(), flags).map_err(|e| Failure::usage(e.to_string()))
    }
}

/// Servers may work on the store meanwhile, if it is a Redis; the embedded store is used by one process at a time.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    store: StoreArgs,
    /// Leaves records out that this version cannot read, and names them
    #[arg(long)]
    skip_unreadable: bool,
    /// Takes the place of a file that is there
    #[arg(long)]
    overwrite: bool,
    /// The file
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

pub(super) async fn run(args: Args) -> Outcome {
    let Args { store, skip_unreadable, overwrite, file } = args;
    let settings = store.load()?;
    if !overwrite && file.exists() {
        let message = format!("{} is there already: take another name, or --overwrite", file.display());
        return Err(Failure::failed(message));
    }
    let store = compose::open_to_move(&settings, None, Purpose::Read).await?;
    let mut id = [0; 16];
    getrandom::fill(&mut id).map_err(|e| Failure::failed(format!("no randomness from the system: {e}")))?;

    // Beside the file, so that it can be renamed; gone if we end early.
    let in_dir = file.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let unwritable = |e: std::io::Error| Failure::failed(format!("{}: {e}", file.display()));
    let temporary =
        tempfile::Builder::new().prefix(".downbeat-backup-").tempfile_in(in_dir).map_err(unwritable)?;
    let out = BufWriter::with_capacity(1 << 20, temporary.as_file().try_clone().map_err(unwritable)?);
    let copied = moves::backup(&*store, out, id, skip_unreadable).await;
    let (mut out, done) = copied.map_err(|e| Failure::failed(e.to_string()))?;
    out.flush().map_err(unwritable)?;
    out.get_ref().sync_all().map_err(unwritable)?;
    temporary.persist(&file).map_err(|e| unwritable(e.error))?;
    // The name is on the disk once its directory is.
    File::open(in_dir).and_then(|dir| dir.sync_all()).map_err(unwritable)?;

    for (run, why) in &done.left_out {
        output::note(&format!("left out: run {run}: {why}"));
    }
    if done.cut_short {
        output::note("runs are started faster than they can be read: the newest ones are missing");
    }
    let moves::Backup { records, workflows, bytes, .. } = done;
    output::line(&format!("{}: {}, {bytes} bytes", file.display(), held(records, workflows)));
    Ok(())
}

/// What a file holds, for people.
pub(super) fn held(records: u64, workflows: u64) -> String {
    let workflows = match workflows {
        1 => "1 version of a workflow".to_owned(),
        n => format!("{n} versions of workflows"),
    };
    format!("{}, {workflows}", output::count(records, "record"))
}
