//! Documents, good and bad, one file for each group of constructs.

#![allow(clippy::format_collect, reason = "documents of many lines read best like this")]

mod finally;
mod groups;
mod guide;
mod items;
mod kinds;
mod limited;
mod limits;
mod names;
mod plain;
pub(crate) mod random;
mod schema;
mod text;

use super::*;
use crate::model::expr::Root;
use crate::model::plan::{RetryPolicy, TaskKind, Timeouts, When};
use crate::model::time::Span;
use proptest::prelude::*;

/// Every construct in one document.
const EVERY: &str = include_str!("every.yaml");

const ORDER: &str = r#"
name: order
description: Reserve, charge and ship one order.
input:                        # JSON Schema
  type: object
  required: [order_id, items]
tasks:
  reserve:
    type: reserve-stock
    input: { order: "${{ input.order_id }}", items: "${{ input.items }}" }
  charge:
    needs: [reserve]
    type: charge-card
    input: { amount: "${{ tasks.reserve.output.total }}" }
    retry: { max_attempts: 5, initial: 1s, factor: 2, max: 30s, non_retryable: [card_declined] }
    timeout: { run: 20s, queue: 5m }
  ship:
    needs: [charge, reserve]
    if: ${{ tasks.reserve.output.total > 1000 }}
    type: ship
    when: always
    on_error: continue
    priority: 3
    timeout: 1h30m
output: { parcels: "${{ tasks.ship.output }}" }
timeout: 72h
fail_fast: true
tags: { team: shop }
priority: -5
retention: 30d
"#;

/// A good document: the parser and the schema take it.
fn good(text: &str, format: Format) -> Document {
    let document = parse(text.as_bytes(), format).unwrap_or_else(|f| panic!("{text}\n{f:#?}"));
    assert_eq!(schema::mismatches(text, format), Vec::<String>::new(), "{text}");
    document
}

fn yaml(text: &str) -> Document {
    good(text, Format::Yaml)
}

fn json(text: &str) -> Document {
    good(text, Format::Json)
}

/// The faults as `path:line: message`.
fn faults(text: &str) -> Vec<String> {
    let faults = parse(text.as_bytes(), Format::Yaml).map(|d| d.plan).expect_err(text);
    faults.into_iter().map(|f| format!("{}:{}: {}", f.path, f.line.unwrap_or(0), f.message)).collect()
}

/// The faults of a task with these lines, which begin on line 4.
fn task_faults(lines: &str) -> Vec<String> {
    faults(&format!("name: w\ntasks:\n  t:\n{}\n", indented(lines)))
}

fn indented(lines: &str) -> String {
    lines.lines().map(|l| format!("    {l}")).collect::<Vec<_>>().join("\n")
}

fn canonical(document: &Document) -> &str {
    std::str::from_utf8(&document.canonical).unwrap()
}

/// The canonical input of the one task, given as YAML.
fn data(value: &str) -> String {
    let document = yaml(&format!("name: w\ntasks: {{ t: {{ type: a, input: {value} }} }}"));
    let text = canonical(&document).to_owned();
    let at = text.find("\"input\":").unwrap() + 8;
    text[at..text.len() - 3].to_owned()
}

#[track_caller]
fn has(faults: &[String], wanted: &str) {
    assert!(faults.iter().any(|f| f.starts_with(wanted)), "{wanted} is not in {faults:#?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn any_bytes_are_taken_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        for format in [Format::Yaml, Format::Json] {
            if let Err(faults) = parse(&bytes, format) {
                prop_assert!(!faults.is_empty());
            }
        }
    }

    #[test]
    fn a_mutated_document_is_taken_or_refused(at in 0..ORDER.len(), cut in 0..20usize, put in "[ -~\n]{0,6}") {
        let mut text = ORDER.as_bytes().to_vec();
        let end = (at + cut).min(text.len());
        text.splice(at..end, put.bytes());
        if let Ok(document) = parse(&text, Format::Yaml) {
            let again = parse(&document.canonical, Format::Json).map(|d| d.canonical);
            prop_assert_eq!(again.map_err(|f| format!("{f:?}")), Ok(document.canonical));
        }
    }

    #[test]
    fn any_mutated_construct_is_taken_or_refused(at in 0..EVERY.len(), cut in 0..20usize, put in "[ -~\n]{0,6}") {
        let mut text = EVERY.as_bytes().to_vec();
        let end = (at + cut).min(text.len());
        text.splice(at..end, put.bytes());
        if let Ok(document) = parse(&text, Format::Yaml) {
            let again = parse(&document.canonical, Format::Json).map(|d| d.canonical);
            prop_assert_eq!(again.map_err(|f| format!("{f:?}")), Ok(document.canonical));
            if let Ok(text) = std::str::from_utf8(&text) {
                prop_assert_eq!(schema::mismatches(text, Format::Yaml), Vec::<String>::new());
            }
        }
    }

    #[test]
    fn text_survives_both_formats(s in any::<String>()) {
        let quoted = serde_json::to_string(&s.replace("${{", "")).unwrap();
        let text = format!("{{\"name\":\"w\",\"tasks\":{{\"t\":{{\"type\":\"a\",\"input\":{quoted}}}}}}}");
        let document = parse(text.as_bytes(), Format::Json).map_err(|f| TestCaseError::fail(format!("{f:?}")))?;
        // What JSON escapes may be written raw in the canonical text, which is read as YAML just the same unless
        // YAML has no way to hold the character raw.
        if let Ok(again) = parse(&document.canonical, Format::Yaml) {
            prop_assert_eq!(again.canonical, document.canonical);
        }
    }
}
