//! `downbeat restore`: a backup into an empty store.

use super::backup::{StoreArgs, held};
use super::{Failure, Outcome, compose, output};
use crate::app::moves;
use crate::store::Purpose;
use std::fs::File;
use std::io::BufReader;
use std::path::PathBuf;

/// The store must be empty, and no server may use it until this has ended. If it is interrupted, servers refuse the store
/// until it has been done again with the same file.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    store: StoreArgs,
    /// How many partitions the store is given, for good [default: as many as the store had that was backed up]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    partitions: Option<u16>,
    /// Looks at the file only: is it whole, and what does it hold
    #[arg(long)]
    check: bool,
    /// The file
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

pub(super) async fn run(args: Args) -> Outcome {
    let Args { store, partitions, check, file } = args;
    let settings = if check { None } else { Some(store.load()?) };
    let name = file.display();
    let open = || Ok(BufReader::with_capacity(1 << 20, File::open(&file)?));
    let looked = open().map_err(moves::MoveError::from).and_then(moves::inspect);
    let summary = looked.map_err(|e| Failure::failed(format!("{name}: {e}")))?;
    let moves::Summary { begun, records, workflows, .. } = summary;
    let Some(settings) = settings else {
        output::line(&format!("{name}: {}, of {begun}", held(records, workflows)));
        return Ok(());
    };
    let partitions = partitions.unwrap_or(summary.partitions);
    let store = compose::open_to_move(&settings, Some(partitions), Purpose::Restore).await?;
    let restored = moves::restore(store, &summary, open).await;
    let moves::Restored { records, workflows, known, still } = restored.map_err(|e| {
        Failure::failed(format!(
            "{e}\nthe store is not whole: servers refuse it until this file has been restored into it"
        ))
    })?;
    if known > 0 {
        output::note(&format!("{known} writes stood already"));
    }
    for (run, why) in still {
        output::note(&format!("stands still: run {run}: its tasks are in no queue, as {why}"));
    }
    output::line(&format!(
        "{name}: restored {}, in {}",
        held(records, workflows),
        output::count(partitions.into(), "partition")
    ));
    Ok(())
}
