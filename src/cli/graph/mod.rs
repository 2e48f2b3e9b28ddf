//! `downbeat graph`: a document as a picture, without a server.
//!
//! ```text
//! plan → labels (what each task says) ─→ mermaid.rs   text for Markdown
//!                                    └─→ layout.rs → svg.rs
//! ```
//!
//! To draw one more thing of a task: a line in [`labels`], which both forms show.

mod labels;
mod layout;
mod mermaid;
mod svg;
#[cfg(test)]
mod tests;

use super::output;
use super::register::{faults_text, is_json, read};
use super::{Failure, Outcome};
use crate::model::document::{Format, parse};
use crate::model::plan::{Plan, TaskKind};
use std::ops::Range;
use std::path::PathBuf;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// A workflow document, YAML or JSON (by its ending); - is standard input
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// The form of the picture
    #[arg(long, value_enum, default_value = "mermaid", value_name = "FORM")]
    format: Form,
}

/// The form of a picture.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Form {
    /// Text that Markdown viewers draw.
    Mermaid,
    /// A picture.
    Svg,
}

pub(super) fn run(args: Args) -> Outcome {
    let bytes = read(&args.file)?;
    let format = if is_json(&args.file) { Format::Json } else { Format::Yaml };
    let document = parse(&bytes, format).map_err(|faults| Failure::failed(faults_text(&faults)))?;
    output::line(&match args.format {
        Form::Mermaid => mermaid::draw(&document.plan),
        Form::Svg => svg::draw(&document.plan),
    });
    Ok(())
}

/// The body of a task; empty unless it is a group.
fn body(plan: &Plan, task: u32) -> Range<u32> {
    match &plan.tasks[task as usize].kind {
        TaskKind::Group(group) => group.body.clone(),
        TaskKind::Worker(_)
        | TaskKind::WorkerOf(_)
        | TaskKind::Workflow(_)
        | TaskKind::Wait(_)
        | TaskKind::Set(_)
        | TaskKind::Fail { .. }
        | TaskKind::Finish { .. } => 0..0,
    }
}

/// Tasks of the run that nothing waits for: what `finally` is drawn behind. None if they are too many to be read.
fn last(plan: &Plan) -> Vec<u32> {
    let last: Vec<u32> =
        plan.body.clone().filter(|t| plan.tasks[*t as usize].dependents.is_empty()).collect();
    if last.len() > 50 { Vec::new() } else { last }
}
