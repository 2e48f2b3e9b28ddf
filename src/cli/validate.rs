//! `downbeat validate`: checks documents here, without a server.

use super::output::{self, Output, Style};
use super::register::{is_json, read};
use super::{Failure, Outcome};
use crate::model::document::{Format, parse};
use crate::model::error::Fault;
use serde_json::json;
use std::path::PathBuf;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Workflow documents, YAML or JSON (by their ending)
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// How to print what was found
    #[arg(long, value_enum, default_value = "table", value_name = "FORM")]
    output: Output,
}

pub(super) fn run(args: Args) -> Outcome {
    let mut valid = true;
    let mut report = Vec::new();
    for file in &args.files {
        let bytes = read(file)?;
        let format = if is_json(file) { Format::Json } else { Format::Yaml };
        let faults = parse(&bytes, format).err().unwrap_or_default();
        valid &= faults.is_empty();
        let name = file.display().to_string();
        match args.output {
            Output::Json => report.push(json!({
                "file": name,
                "faults": faults.iter().map(fault).collect::<Vec<_>>(),
            })),
            Output::Table => table(&name, &faults),
        }
    }
    if args.output == Output::Json {
        output::json(&json!(report));
    }
    if valid { Ok(()) } else { Err(Failure::silent()) }
}

fn fault(fault: &Fault) -> serde_json::Value {
    json!({ "path": fault.path, "line": fault.line, "message": fault.message })
}

/// `file:line: path: message`, which editors know how to follow.
fn table(name: &str, faults: &[Fault]) {
    let style = Style::stdout();
    if faults.is_empty() {
        output::line(&format!("{name}: {}", style.paint(output::GREEN, "valid")));
    }
    for fault in faults {
        let place = fault.line.map_or_else(|| name.to_owned(), |line| format!("{name}:{line}"));
        let path = if fault.path.is_empty() { String::new() } else { style.paint(output::RED, &fault.path) };
        output::line(&format!("{place}: {}", output::fault(None, &path, &fault.message)));
    }
}
