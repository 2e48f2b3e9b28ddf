//! `downbeat register`: workflow documents to the server.

use super::http::Payload;
use super::output::{self, Style, text};
use super::{Client, Failure, Outcome, http};
use crate::model::document::{Format, parse};
use crate::model::error::{ErrorCode, Fault};
use ::http::{Method, StatusCode};
use bytes::Bytes;
use http::encode;
use std::path::{Path, PathBuf};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Workflow documents, YAML or JSON (by their ending)
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Only lets the server check them
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    client: Client,
}

pub(super) async fn run(args: Args) -> Outcome {
    let api = args.client.connect()?;
    let mut failed = false;
    for file in &args.files {
        match register(&api, file, args.dry_run).await {
            Ok(answer) => answer.print(args.client.output, |workflow| {
                let version = workflow.get("version").map(ToString::to_string).unwrap_or_default();
                let what = match (args.dry_run, answer.status == StatusCode::CREATED) {
                    (true, _) => "is valid".to_owned(),
                    (false, true) => format!("registered as version {version}"),
                    (false, false) => format!("unchanged, version {version}"),
                };
                output::line(&format!(
                    "{} {what}",
                    Style::stdout().paint(output::BOLD, text(workflow, "name"))
                ));
            }),
            // The rest would fail the same way.
            Err(failure) if failure.exit != super::Exit::Failed => return Err(failure),
            Err(failure) => {
                output::error(&format!("{}: {}", file.display(), failure.message));
                failed = true;
            }
        }
    }
    if failed { Err(Failure::silent()) } else { Ok(()) }
}

/// Sends one document, under its own name.
async fn register(api: &http::Api, file: &Path, dry_run: bool) -> Result<http::Answer, Failure> {
    let bytes = read(file)?;
    let name = name_of(&bytes, is_json(file))?;
    let path = format!("/v1/workflows/{}{}", encode(&name), if dry_run { "?dry_run=true" } else { "" });
    let body = if is_json(file) { Payload::Json(bytes) } else { Payload::Yaml(bytes) };
    api.call(Method::PUT, &path, body).await
}

/// The bytes of a document; `-` is standard input.
pub(super) fn read(file: &Path) -> Result<Bytes, Failure> {
    let bytes = if file.as_os_str() == "-" {
        let mut bytes = Vec::new();
        std::io::Read::read_to_end(&mut std::io::stdin().lock(), &mut bytes).map(|_| bytes)
    } else {
        std::fs::read(file)
    };
    bytes.map(Bytes::from).map_err(|e| Failure::usage(format!("{}: cannot be read: {e}", file.display())))
}

/// Whether a document is JSON, by the ending of its name.
pub(super) fn is_json(file: &Path) -> bool {
    file.extension().is_some_and(|e| e.eq_ignore_ascii_case("json"))
}

/// The document's own name, which is also its address. A document with faults has the same faults there as here.
fn name_of(bytes: &[u8], json: bool) -> Result<String, Failure> {
    match parse(bytes, if json { Format::Json } else { Format::Yaml }) {
        Ok(document) => Ok(document.name.as_str().to_owned()),
        Err(faults) => Err(Failure::failed(faults_text(&faults))),
    }
}

/// Every fault of a document on a line of its own, behind what they come to.
pub(super) fn faults_text(faults: &[Fault]) -> String {
    let line = |f: &Fault| format!("\n  {}", output::fault(f.line.map(u64::from), &f.path, &f.message));
    let lines: String = faults.iter().map(line).collect();
    format!("{}{lines}", ErrorCode::InvalidWorkflow.title())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_document_is_its_address() {
        let example = include_bytes!("../../examples/order.yaml");
        assert_eq!(name_of(example, false).unwrap(), "order");
        let failure = name_of(b"name: x\nsteps: {}\n", false).unwrap_err();
        assert_eq!(failure.exit, super::super::Exit::Failed);
        assert!(failure.message.contains("\n  line 2: steps: "), "{}", failure.message);
        let failure = name_of(b"[", true).unwrap_err();
        assert!(!failure.message.contains("  : "), "{}", failure.message);
    }
}
