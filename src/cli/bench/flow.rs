//! What the runs of a scenario are: the document, what a run starts with, and what it must end with.

use super::TASK_TYPE;
use bytes::Bytes;
use serde_json::Value;
use std::fmt::Write as _;

/// What a run starts with unless `--payload` says how large it is to be.
const ORDER: &[u8] = br#"{"order_id":"o-1001","amount":1228.1}"#;

/// A workflow that is measured.
#[derive(Debug, Clone)]
pub(super) struct Flow {
    /// The scenario, as the summary names it.
    pub(super) scenario: &'static str,
    /// YAML.
    pub(super) document: String,
    /// Tasks for workers that a run has.
    pub(super) tasks: u32,
    /// What a run starts with, JSON text.
    pub(super) input: Bytes,
    /// What it ends with.
    pub(super) output: Bytes,
}

impl Flow {
    /// `tasks` tasks in a row that do nothing; the run's input goes through all of them.
    pub(super) fn chain(scenario: &'static str, name: &str, tasks: u32, input: Bytes) -> Self {
        Self { scenario, document: chain(name, TASK_TYPE, tasks), tasks, output: input.clone(), input }
    }

    /// The same, but nobody serves the type of the first task, so that its runs stay open.
    pub(super) fn open(name: &str, tasks: u32, input: Bytes) -> Self {
        let document = chain(name, TASK_TYPE, tasks).replacen(TASK_TYPE, &unserved(name), 1);
        Self { document, ..Self::chain("open", name, tasks, input) }
    }

    /// a → b, c → d; the input goes through b and c and meets itself in d.
    pub(super) fn diamond(name: &str, input: Bytes) -> Self {
        let mut document = format!("name: {name}\ntasks:\n");
        let task = |task: &str, needs: &str, input: &str| {
            format!("  {task}:\n    type: {TASK_TYPE}\n    needs: [{needs}]\n    input: {input}\n")
        };
        document += &task("a", "", "\"${{ input }}\"");
        document += &task("b", "a", "\"${{ tasks.a.output }}\"");
        document += &task("c", "a", "\"${{ tasks.a.output }}\"");
        document += &task("d", "b, c", "{ b: \"${{ tasks.b.output }}\", c: \"${{ tasks.c.output }}\" }");
        document += "output: \"${{ tasks.d.output }}\"\n";
        let half = if input.is_empty() { "null".into() } else { String::from_utf8_lossy(&input) };
        let output = Bytes::from(format!("{{\"b\":{half},\"c\":{half}}}"));
        Self { scenario: "diamond", document, tasks: 4, input, output }
    }

    /// Whether a run ended with what it must; a value that is too large for an answer stands as its address and size.
    pub(super) fn ended_with(&self, output: &[u8]) -> bool {
        if output == self.output {
            return true;
        }
        let value = |text: &[u8]| {
            if text.is_empty() { Some(Value::Null) } else { serde_json::from_slice(text).ok() }
        };
        let got = value(output);
        if let Some(size) = got.as_ref().filter(|v| v.get("$ref").is_some()).and_then(|v| v.get("size")) {
            return size.as_u64() == Some(self.output.len() as u64);
        }
        got.is_some() && got == value(&self.output)
    }
}

/// A task type of this measurement that no worker has.
pub(super) fn unserved(name: &str) -> String {
    format!("{name}-unserved")
}

/// A chain of `tasks` tasks.
fn chain(name: &str, task_type: &str, tasks: u32) -> String {
    let mut text = format!("name: {name}\ntasks:\n");
    for n in 1..=tasks {
        // Writing to a string does not fail.
        let _ = write!(text, "  t{n}:\n    type: {task_type}\n");
        let _ = match n {
            1 => writeln!(text, "    input: \"${{{{ input }}}}\""),
            _ => writeln!(text, "    needs: [t{0}]\n    input: \"${{{{ tasks.t{0}.output }}}}\"", n - 1),
        };
    }
    let _ = writeln!(text, "output: \"${{{{ tasks.t{tasks}.output }}}}\"");
    text
}

/// JSON text of exactly `bytes` bytes, or a small order; of no bytes, there is no input. Letters without a pattern, so
/// that a store that compresses gains nothing.
pub(super) fn input(bytes: Option<u32>) -> Bytes {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let Some(bytes) = bytes else { return Bytes::from_static(ORDER) };
    let quoted = match bytes {
        0 => return Bytes::new(),
        1 => return Bytes::from_static(b"1"),
        n => n as usize - 2,
    };
    let mut text = vec![b'"'];
    // Xorshift: the same bytes in every measurement.
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    text.extend(
        std::iter::repeat_with(|| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            LETTERS[(state >> 58) as usize]
        })
        .take(quoted),
    );
    text.push(b'"');
    text.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::document::{Format, parse};

    fn tasks(text: &str) -> usize {
        let document = parse(text.as_bytes(), Format::Yaml).unwrap_or_else(|f| panic!("{f:?}\n{text}"));
        document.plan.tasks.len()
    }

    #[test]
    fn the_measured_workflows_are_valid() {
        for n in [1, 2, 9, 10_000] {
            assert_eq!(tasks(&Flow::chain("chain", "bench-x", n, input(None)).document), n as usize);
        }
        assert_eq!(tasks(&Flow::diamond("bench-x", input(None)).document), 4);
        let open = Flow::open("bench-x", 9, input(None)).document;
        assert_eq!(tasks(&open), 9);
        assert_eq!(open.matches("type: bench-x-unserved").count(), 1, "{open}");
        assert_eq!(open.matches(&format!("type: {TASK_TYPE}\n")).count(), 8, "{open}");
    }

    #[test]
    fn a_payload_is_json_of_its_size() {
        for bytes in [1_u32, 2, 3, 1_024, 65_536] {
            let text = input(Some(bytes));
            assert_eq!(text.len(), bytes as usize);
            serde_json::from_slice::<Value>(&text).unwrap();
        }
        assert_eq!(input(Some(0)), Bytes::new());
        assert_eq!(input(None), ORDER);
    }

    #[test]
    fn an_end_is_compared_as_a_value_or_by_its_size() {
        let flow = Flow::diamond("x", input(None));
        assert!(flow.ended_with(&flow.output));
        let spaced = String::from_utf8_lossy(&flow.output).replace(':', " : ");
        assert!(flow.ended_with(spaced.as_bytes()));
        let address = format!("{{\"$ref\":\"/v1/runs/r/values/output\",\"size\":{}}}", flow.output.len());
        assert!(flow.ended_with(address.as_bytes()));
        for wrong in ["", "null", "{\"$ref\":\"x\",\"size\":3}", "{\"b\":1}", "not json"] {
            assert!(!flow.ended_with(wrong.as_bytes()), "{wrong}");
        }
        let nothing = Flow::chain("chain", "x", 1, Bytes::new());
        assert!(nothing.ended_with(b"null") && nothing.ended_with(b"") && !nothing.ended_with(b"0"));
        let both = Flow::diamond("x", Bytes::new());
        assert!(both.ended_with(br#"{"b":null,"c":null}"#));
    }
}
