//! `downbeat occupancy FILE.csv`: how many tasks ran at the same time, from the starts and ends of any system.
//!
//! ```text
//! records.rs  a CSV file → records and their lines
//! rows.rs     records → intervals, and what was refused
//! sort.rs     rows by their start, on disk when there are many
//! show.rs     the series as a table, CSV, JSON or a picture
//! ```
//!
//! Invariants
//! - A file that is sorted by start is read once and never held; any other is sorted first, in bounded memory.
//! - A row that cannot be is refused, counted and told with its line; the others count.
//!
//! To add a form of output: its variant in [`Form`] and its function in `show.rs`.

mod records;
mod rows;
mod show;
mod sort;

use super::{Failure, Outcome, output};
use crate::model::duration;
use crate::occupancy::{Fault, Series, Step, Window};
use rows::{Epoch, Reader, Row, Seen};
use sort::Sorter;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(super) struct Args {
    /// Rows of start and end, perhaps a tag, with or without a heading; - for standard input
    #[arg(value_name = "FILE.csv")]
    file: PathBuf,
    /// Width of the buckets, such as 1s or 5m; they lie at multiples of it since 1970, UTC
    #[arg(long, value_name = "LENGTH", default_value = "5m", value_parser = step)]
    step: Step,
    /// A series for each value of this column of the heading; "tag" is also the third column
    #[arg(long, value_name = "COLUMN")]
    by: Option<String>,
    /// Tasks that ran all the time and are not in the file
    #[arg(long, value_name = "N", default_value_t = 0)]
    initial: u32,
    /// Begins here, widened to a whole bucket; otherwise with the first start
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    from: Option<String>,
    /// Ends here, widened to a whole bucket; otherwise with the last end
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    to: Option<String>,
    /// What plain numbers count since 1970
    #[arg(long, value_enum, default_value = "s", value_name = "UNIT")]
    epoch: Epoch,
    /// How to print the series
    #[arg(long, value_enum, default_value = "table", value_name = "FORM")]
    output: Form,
}

const AFTER_HELP: &str = "Times are RFC 3339 with an offset (2011-07-18T22:58:52.180Z) or numbers since 1970 (1311029932.18, \
    see --epoch). A task without an end runs on. A row whose end is before its start, or that cannot be read, is told \
    with its line on standard error and left out.";

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Form {
    /// For people
    Table,
    /// bucket,open,close,max,min,avg,starts,ends
    Csv,
    /// For programs
    Json,
    /// A picture
    Svg,
}

fn step(text: &str) -> Result<Step, String> {
    Step::new(duration::parse(text)?).ok_or_else(|| "a bucket needs a width, such as 5m".to_owned())
}

pub(super) fn run(args: &Args) -> Outcome {
    let time = |flag: &str, text: &Option<String>| {
        let parse = |text: &String| args.epoch.time(text.as_bytes());
        let failure = |e| Failure::usage(format!("{flag}: {e}"));
        text.as_ref().map(parse).transpose().map_err(failure)
    };
    let window = Window { step: args.step, from: time("--from", &args.from)?, to: time("--to", &args.to)? };
    if let (Some(from), Some(to)) = (window.from, window.to)
        && from >= to
    {
        return Err(Failure::usage("--from must be before --to"));
    }
    let (series, seen) = count(args, window)?;
    tell_refused(&seen);
    if seen.rows == 0 {
        let rows = if seen.refused == 0 { "has no rows" } else { "has no row that can be counted" };
        return Err(Failure::failed(format!("{} {rows}", name(&args.file))));
    }
    let first = seen.names.len();
    let mut keys = series.finish(if args.by.is_some() { first + 1 } else { 1 }).map_err(fault)?;
    let all = keys.remove(0);
    if all.is_empty() {
        return Err(Failure::failed("no task starts before --to"));
    }
    let mut tags: Vec<show::Tag> = seen
        .names
        .into_names()
        .into_iter()
        .zip(keys)
        .map(|(name, buckets)| show::Tag { name, buckets })
        .collect();
    // Those without a tag have a series if there are any.
    tags.retain(|tag| !tag.name.is_empty() || tag.buckets.iter().any(|b| b.max > 0 || b.starts > 0));
    tags.sort_by(|a, b| a.name.cmp(&b.name));
    let told = show::Told {
        file: name(&args.file),
        step: args.step,
        rows: seen.rows,
        refused: seen.refused,
        all,
        tags: args.by.is_some().then_some(tags),
    };
    match args.output {
        Form::Table => told.table(),
        Form::Csv => output::line(&told.csv()),
        Form::Json => output::json(&told.json()),
        Form::Svg => output::line(&told.svg()),
    }
    Ok(())
}

/// Why a pass over the rows ended early.
enum Stop {
    /// A row starts before the one ahead of it.
    Unsorted,
    Failure(Failure),
}

impl From<Failure> for Stop {
    fn from(failure: Failure) -> Self {
        Self::Failure(failure)
    }
}

/// Reads the file: once if it is sorted, otherwise again, through the sorter. What cannot be read twice, such as a
/// pipe, goes through the sorter at once.
fn count(args: &Args, window: Window) -> Result<(Series, Seen), Failure> {
    let failure = |e: std::io::Error| Failure::failed(format!("{}: {e}", name(&args.file)));
    let initial = i64::from(args.initial);
    // All together, then those without a tag: of the tasks that ran before, no more is known.
    let fresh = || Series::new(window, &[initial, initial]);
    let add = |series: &mut Series, row: Row| {
        series.add(0, row.interval)?;
        row.key.map_or(Ok(()), |key| series.add(key as usize + 1, row.interval))
    };
    let input: Box<dyn Read> = if args.file == Path::new("-") {
        Box::new(std::io::stdin().lock())
    } else {
        let open =
            || File::open(&args.file).map_err(|e| Failure::usage(format!("{}: {e}", name(&args.file))));
        let file = open()?;
        if file.metadata().map_err(failure)?.is_file() {
            let mut series = fresh();
            let read = Reader::new(&file, args).each(|row| match add(&mut series, row) {
                Ok(()) => Ok(()),
                Err(Fault::OutOfOrder) => Err(Stop::Unsorted),
                Err(e) => Err(Stop::Failure(fault(e))),
            });
            match read {
                Ok(seen) => return Ok((series, seen)),
                Err(Stop::Failure(failure)) => return Err(failure),
                Err(Stop::Unsorted) => Box::new(open()?),
            }
        } else {
            Box::new(file)
        }
    };
    let mut sorter = Sorter::default();
    let disk = |e: std::io::Error| {
        let dir = std::env::temp_dir();
        Failure::failed(format!("sorting in {}: {e}; TMPDIR names another place", dir.display()))
    };
    let seen = match Reader::new(input, args).each(|row| Ok(sorter.push(row).map_err(disk)?)) {
        Ok(seen) => seen,
        Err(Stop::Failure(failure)) => return Err(failure),
        Err(Stop::Unsorted) => return Err(Failure::failed("the sorter takes rows in any order")),
    };
    let mut series = fresh();
    for row in sorter.finish().map_err(disk)? {
        add(&mut series, row.map_err(disk)?).map_err(fault)?;
    }
    Ok((series, seen))
}

fn fault(fault: Fault) -> Failure {
    let help = match fault {
        Fault::TooLong { .. } => "; give a longer --step, or --from and --to",
        Fault::OutOfOrder => "",
    };
    Failure::failed(format!("{fault}{help}"))
}

fn tell_refused(seen: &Seen) {
    for (line, why) in &seen.told {
        output::note(&format!("line {line}: {why}"));
    }
    let more = seen.refused - seen.told.len() as u64;
    if more > 0 {
        output::note(&format!("… and {more} more"));
    }
    if seen.refused > 0 {
        output::note(&format!("{} of {} rows were refused", seen.refused, seen.rows + seen.refused));
    }
}

fn name(file: &Path) -> String {
    if file == Path::new("-") { "standard input".to_owned() } else { file.display().to_string() }
}
