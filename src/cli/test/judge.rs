//! What a run came to against what was expected of it.
//!
//! To add something that can be expected: a field of [`Expect`], its key in `read`, a few lines in [`judge`].

use crate::app::rehearse::Played;
use crate::model::document::{Format, Kind, Node, join, tree};
use crate::model::duration;
use crate::model::json::same_number;
use crate::model::run::RunStatus;
use crate::model::time::Span;

/// Longest value that is shown, in characters.
const SHOWN: usize = 300;
/// Most differences of one value that are shown.
const MOST: usize = 20;

/// What is expected of a run. What is not given is not looked at.
#[derive(Debug)]
pub(super) struct Expect {
    pub(super) status: RunStatus,
    pub(super) output: Option<Node>,
    /// Parts of its error: `code`, `message`, `task`.
    pub(super) error: Vec<(String, String)>,
    /// By path.
    pub(super) tasks: Vec<(String, String)>,
    pub(super) inputs: Vec<(String, Node)>,
    pub(super) outputs: Vec<(String, Node)>,
    /// Paths that begin in this order; others may begin in between.
    pub(super) order: Vec<String>,
    /// Paths that never begin.
    pub(super) not_run: Vec<String>,
    /// From the run's beginning to its end.
    pub(super) duration: Option<Span>,
}

/// Something that is not as expected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Difference {
    /// Of what is compared: `output.total`, `tasks["ship[0]"]`.
    pub(super) path: String,
    /// JSON or a word; none: nothing was expected there.
    pub(super) expected: Option<String>,
    /// As `expected`.
    pub(super) got: Option<String>,
    /// In place of the three, where there is nothing to compare.
    pub(super) message: Option<String>,
}

impl Difference {
    fn new(path: &str, expected: Option<String>, got: Option<String>) -> Self {
        Self { path: path.to_owned(), expected, got, message: None }
    }
}

/// All differences; none if everything is as expected.
pub(super) fn judge(expect: &Expect, played: &Played) -> Vec<Difference> {
    let mut found = Vec::new();
    for trouble in &played.trouble {
        let message = Some(trouble.clone());
        found.push(Difference { path: String::new(), expected: None, got: None, message });
    }
    if expect.status != played.status {
        let got = match &played.error {
            Some(e) => {
                let at = e.task.as_ref().map(|t| format!(" in {t}")).unwrap_or_default();
                format!("{} ({}{at}: {})", played.status.name(), e.code, e.message)
            }
            None => played.status.name().to_owned(),
        };
        found.push(Difference::new("status", Some(expect.status.name().to_owned()), Some(got)));
    }
    for (key, wanted) in &expect.error {
        let got = played.error.as_ref().and_then(|e| match key.as_str() {
            "code" => Some(e.code.clone()),
            "message" => Some(e.message.clone()),
            _ => e.task.clone(),
        });
        if got.as_ref() != Some(wanted) {
            found.push(Difference::new(&join("error", key), Some(wanted.clone()), got));
        }
    }
    if let Some(wanted) = &expect.output {
        compare("output", wanted, Some(&played.output), &mut found);
    }
    for (path, wanted) in &expect.tasks {
        let got = played.tasks.get(path).map(|t| t.status.to_owned());
        if got.as_ref() != Some(wanted) {
            found.push(Difference::new(&join("tasks", path), Some(wanted.clone()), got));
        }
    }
    for (path, wanted) in &expect.inputs {
        compare(&join("inputs", path), wanted, played.inputs.get(path), &mut found);
    }
    for (path, wanted) in &expect.outputs {
        compare(&join("outputs", path), wanted, played.tasks.get(path).map(|t| &t.output), &mut found);
    }
    let mut rest = played.begun.iter();
    if !expect.order.iter().all(|path| rest.any(|p| p == path)) {
        let list = |paths: &[String]| Some(clip(&paths.join(", ")));
        found.push(Difference::new("order", list(&expect.order), list(&played.begun)));
    }
    for path in expect.not_run.iter().filter(|p| played.begun.contains(p)) {
        found.push(Difference::new(&join("not_run", path), None, Some("it ran".to_owned())));
    }
    if let Some(wanted) = expect.duration.filter(|d| *d != played.duration) {
        let text = |span| Some(duration::format(span));
        found.push(Difference::new("duration", text(wanted), text(played.duration)));
    }
    found
}

fn compare(path: &str, wanted: &Node, got: Option<&bytes::Bytes>, found: &mut Vec<Difference>) {
    let Some(bytes) = got else {
        return found.push(Difference::new(path, Some(shown(wanted)), None));
    };
    let Ok(got) = tree(bytes, Format::Json) else {
        let got = clip(&String::from_utf8_lossy(bytes));
        return found.push(Difference::new(path, Some(shown(wanted)), Some(got)));
    };
    let mut differences = Vec::new();
    walk(path, wanted, &got, &mut differences);
    let more = differences.len().saturating_sub(MOST);
    differences.truncate(MOST);
    if more > 0 {
        let message = Some(format!("{path} differs in {more} more places"));
        differences.push(Difference { path: path.to_owned(), expected: None, got: None, message });
    }
    found.append(&mut differences);
}

/// Where two values differ: as JSON values, numbers exact.
fn walk(path: &str, wanted: &Node, got: &Node, found: &mut Vec<Difference>) {
    match (&wanted.kind, &got.kind) {
        (Kind::Map(wanted), Kind::Map(got)) => {
            for entry in wanted {
                let path = join(path, &entry.key);
                match got.iter().rfind(|e| e.key == entry.key) {
                    Some(other) => walk(&path, &entry.value, &other.value, found),
                    None => found.push(Difference::new(&path, Some(shown(&entry.value)), None)),
                }
            }
            for entry in got.iter().filter(|e| !wanted.iter().any(|w| w.key == e.key)) {
                let path = join(path, &entry.key);
                found.push(Difference::new(&path, None, Some(shown(&entry.value))));
            }
        }
        (Kind::List(wanted), Kind::List(got)) => {
            for n in 0..wanted.len().max(got.len()) {
                let path = format!("{path}[{n}]");
                match (wanted.get(n), got.get(n)) {
                    (Some(wanted), Some(got)) => walk(&path, wanted, got, found),
                    (wanted, got) => {
                        found.push(Difference::new(&path, wanted.map(shown), got.map(shown)));
                    }
                }
            }
        }
        (Kind::Number(a), Kind::Number(b)) if same_number(a, b) => {}
        (a, b) if a == b => {}
        _ => found.push(Difference::new(path, Some(shown(wanted)), Some(shown(got)))),
    }
}

fn shown(node: &Node) -> String {
    let mut json = Vec::new();
    node.write_json(&mut json);
    clip(&String::from_utf8_lossy(&json))
}

fn clip(text: &str) -> String {
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn differences(wanted: &str, got: &str) -> Vec<(String, Option<String>, Option<String>)> {
        let wanted = tree(wanted.as_bytes(), Format::Yaml).unwrap();
        let mut found = Vec::new();
        compare("output", &wanted, Some(&bytes::Bytes::copy_from_slice(got.as_bytes())), &mut found);
        found.into_iter().map(|d| (d.path, d.expected, d.got)).collect()
    }

    #[test]
    fn equal_values_do_not_differ() {
        for (wanted, got) in [
            ("{a: 1, b: [x, null]}", r#"{"b":["x",null],"a":1.0}"#),
            ("9007199254740993", "9007199254740993"),
            ("~", "null"),
            ("{}", "{}"),
        ] {
            assert_eq!(differences(wanted, got), [], "{wanted}");
        }
    }

    #[test]
    fn a_difference_is_told_where_it_is() {
        let text = |s: &str| Some(s.to_owned());
        let all = differences("{a: {b: [1, 2]}, c: x, d: 1}", r#"{"a":{"b":[1,3,4]},"c":"x","e":[]}"#);
        let expected = [
            ("output.a.b[1]".to_owned(), text("2"), text("3")),
            ("output.a.b[2]".to_owned(), None, text("4")),
            ("output.d".to_owned(), text("1"), None),
            ("output.e".to_owned(), None, text("[]")),
        ];
        assert_eq!(all, expected);
        let one = differences("9007199254740993", "9007199254740992");
        assert_eq!(one, [("output".to_owned(), text("9007199254740993"), text("9007199254740992"))]);
    }
}
