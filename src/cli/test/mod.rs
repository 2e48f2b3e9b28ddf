//! `downbeat test`: plays workflows against answers given in a file, without a server and with time skipped, and
//! compares what they came to.
//!
//! ```text
//! read    the file: workflow, cases, answers, what is expected; every fault with path and line
//! judge   what a run came to against what was expected
//! ```

mod judge;
mod read;

use super::output::{self, Output, Style};
use super::register::{is_json, read as bytes_of};
use super::{Exit, Failure, Outcome};
use crate::app::rehearse::play;
use crate::model::document::Format;
use crate::model::error::Fault;
use judge::Difference;
use serde_json::json;
use std::path::{Path, PathBuf};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Test files, YAML or JSON (by their ending); docs/guide/testing.md describes them
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// How to print what was found
    #[arg(long, value_enum, default_value = "table", value_name = "FORM")]
    output: Output,
}

/// A case that was played.
struct Judged {
    name: String,
    line: Option<u32>,
    differences: Vec<Difference>,
}

pub(super) fn run(args: Args) -> Outcome {
    let (mut faulty, mut failed, mut cases) = (false, 0, 0);
    let mut report = Vec::new();
    for file in &args.files {
        let name = file.display().to_string();
        let (faults, judged) = match test(file)? {
            Ok(judged) => (Vec::new(), judged),
            Err(faults) => (faults, Vec::new()),
        };
        faulty |= !faults.is_empty();
        cases += judged.len();
        failed += judged.iter().filter(|j| !j.differences.is_empty()).count();
        match args.output {
            Output::Json => report.push(json!({
                "file": name,
                "faults": faults.iter().map(|f| json!({ "path": f.path, "line": f.line, "message": f.message })).collect::<Vec<_>>(),
                "cases": judged.iter().map(told).collect::<Vec<_>>(),
            })),
            Output::Table => table(&name, &faults, &judged),
        }
    }
    match args.output {
        Output::Json => output::json(&json!(report)),
        Output::Table if !faulty => {
            let plural = if cases == 1 { "" } else { "s" };
            output::line(&format!("{cases} case{plural}, {failed} failed"));
        }
        Output::Table => {}
    }
    match (faulty, failed) {
        (true, _) => Err(Failure::new(Exit::Usage, "")),
        (false, 0) => Ok(()),
        (false, _) => Err(Failure::silent()),
    }
}

/// Plays the cases of one file; the inner error is what is wrong with the file itself.
fn test(file: &Path) -> Result<Result<Vec<Judged>, Vec<Fault>>, Failure> {
    let bytes = bytes_of(file)?;
    let format = if is_json(file) { Format::Json } else { Format::Yaml };
    let workflow = |path: &str| {
        let path = file.parent().unwrap_or(Path::new("")).join(path);
        let bytes = std::fs::read(&path).map_err(|e| format!("{} cannot be read: {e}", path.display()))?;
        Ok((path.display().to_string(), bytes, if is_json(&path) { Format::Json } else { Format::Yaml }))
    };
    let suite = match read::suite(&bytes, format, workflow) {
        Ok(suite) => suite,
        Err(faults) => return Ok(Err(faults)),
    };
    let judged = suite.cases.into_iter().map(|case| Judged {
        differences: judge::judge(&case.expect, &play(&suite.plan, &case.script)),
        name: case.name,
        line: case.line,
    });
    Ok(Ok(judged.collect()))
}

fn told(case: &Judged) -> serde_json::Value {
    let difference = |d: &Difference| json!({ "path": d.path, "expected": d.expected, "got": d.got, "message": d.message });
    json!({
        "name": case.name,
        "line": case.line,
        "passed": case.differences.is_empty(),
        "differences": case.differences.iter().map(difference).collect::<Vec<_>>(),
    })
}

fn table(file: &str, faults: &[Fault], cases: &[Judged]) {
    let style = Style::stdout();
    let place = |line: Option<u32>| line.map_or_else(|| file.to_owned(), |line| format!("{file}:{line}"));
    for fault in faults {
        let path = if fault.path.is_empty() { String::new() } else { style.paint(output::RED, &fault.path) };
        output::line(&format!("{}: {}", place(fault.line), output::fault(None, &path, &fault.message)));
    }
    for case in cases {
        if case.differences.is_empty() {
            output::line(&format!("{} {file}: {}", style.paint(output::GREEN, "ok  "), case.name));
            continue;
        }
        output::line(&format!("{} {}: {}", style.paint(output::RED, "FAIL"), place(case.line), case.name));
        for d in &case.differences {
            if let Some(message) = &d.message {
                output::line(&format!("     {message}"));
                continue;
            }
            let side = |value: &Option<String>| value.clone().unwrap_or_else(|| "nothing".to_owned());
            output::line(&format!("     {}", d.path));
            output::line(&format!(
                "       {}",
                style.paint(output::GREEN, &format!("expected {}", side(&d.expected)))
            ));
            output::line(&format!(
                "       {}",
                style.paint(output::RED, &format!("got      {}", side(&d.got)))
            ));
        }
    }
}
