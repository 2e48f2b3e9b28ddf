//! `downbeat schema`: the JSON Schema of workflow documents, for editors.

use super::output;
use crate::model::document::json_schema;

#[derive(Debug, clap::Args)]
pub(super) struct Args {}

pub(super) fn run(_: &Args) {
    output::line(json_schema().trim_end());
}
