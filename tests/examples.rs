//! The examples and the guide: every document validates, every test file passes, every page of the guide links an
//! example that exists, and every link leads somewhere.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

fn downbeat(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_downbeat"))
        .args(arguments)
        .env("NO_COLOR", "1")
        .current_dir(ROOT)
        .output()
        .unwrap()
}

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// Files of a folder whose names end so, as paths from the root.
fn files(folder: &str, ending: &str) -> Vec<String> {
    let entries = std::fs::read_dir(Path::new(ROOT).join(folder)).unwrap();
    let mut names: Vec<String> = entries
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.ends_with(ending))
        .map(|name| format!("{folder}/{name}"))
        .collect();
    names.sort();
    names
}

/// What a page links to, without web addresses and places inside itself.
fn links(page: &str) -> Vec<String> {
    let text = std::fs::read_to_string(Path::new(ROOT).join(page)).unwrap();
    let targets = text.split("](").skip(1).filter_map(|rest| rest.split_once(')'));
    targets
        .map(|(target, _)| target.split('#').next().unwrap().to_owned())
        .filter(|target| !target.is_empty() && !target.contains("://"))
        .collect()
}

fn resolve(page: &str, link: &str) -> PathBuf {
    Path::new(ROOT).join(page).parent().unwrap().join(link)
}

#[test]
fn every_example_is_valid_and_has_a_test() {
    let tests = files("examples/workflows", ".test.yaml");
    let documents: Vec<String> =
        files("examples/workflows", ".yaml").into_iter().filter(|f| !tests.contains(f)).collect();
    assert!(documents.len() >= 10, "{documents:?}");
    let mut arguments = vec!["validate"];
    arguments.extend(documents.iter().map(String::as_str));
    let output = downbeat(&arguments);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    for document in &documents {
        let test = document.replace(".yaml", ".test.yaml");
        assert!(tests.contains(&test), "{document} has no {test}");
    }
}

#[test]
fn every_test_of_an_example_passes() {
    let tests = files("examples/workflows", ".test.yaml");
    let mut arguments = vec!["test"];
    arguments.extend(tests.iter().map(String::as_str));
    let output = downbeat(&arguments);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    assert!(String::from_utf8_lossy(&output.stdout).ends_with(" cases, 0 failed\n"), "{}", said(&output));
}

#[test]
fn every_page_of_the_guide_links_an_example_and_no_link_is_dead() {
    let pages = files("docs/guide", ".md");
    assert!(pages.len() >= 12, "{pages:?}");
    for page in &pages {
        let links = links(page);
        for link in &links {
            assert!(resolve(page, link).exists(), "{page} links {link}, which does not exist");
        }
        let is_example = |l: &&String| l.contains("examples/") && Path::new(l).extension().is_some();
        let examples = links.iter().filter(is_example).count();
        assert!(examples > 0, "{page} links no example");
    }
}

#[test]
fn what_differs_is_told_and_a_faulty_file_is_another_matter() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.into_os_string().into_string().unwrap()
    };
    let failing = write(
        "failing.yaml",
        "workflow:
  name: w
  tasks:
    a: { type: work, input: 1 }
    w: { needs: [a], wait: { signal: go } }
cases:
  - name: good
    tasks: { a: { output: {} } }
    signals: [{ name: go }]
    expect: { status: completed }
  - name: other output
    tasks: { work: { output: { n: 1 } } }
    signals: [{ name: go, payload: [1] }]
    expect: { status: completed, outputs: { a: { n: 2 }, w: [1] }, order: [w, a], duration: 5s, not_run: [a] }
  - name: never told
    tasks: { a: { output: 1 } }
    expect: { status: completed }
  - name: no answer
    expect: { status: completed }
",
    );
    let output = downbeat(&["test", &failing]);
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    let expected = format!(
        "ok   {failing}: good
FAIL {failing}:11: other output
     outputs.a.n
       expected 2
       got      1
     order
       expected w, a
       got      a, w
     not_run.a
       expected nothing
       got      it ran
     duration
       expected 5s
       got      0s
FAIL {failing}:15: never told
     the run waits for ever: w for the signal \"go\"
     status
       expected completed
       got      running
FAIL {failing}:18: no answer
     no answer is given for a (type work); add one under 'tasks' by path, id, type or workflow
     status
       expected completed
       got      running
4 cases, 3 failed
"
    );
    assert_eq!(said(&output), expected);

    let output = downbeat(&["test", "--output", "json", &failing]);
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let cases = &report[0]["cases"];
    assert_eq!((output.status.code(), &cases[0]["passed"]), (Some(1), &true.into()));
    assert_eq!(cases[1]["differences"][0]["path"], "outputs.a.n");
    assert_eq!(cases[1]["differences"][0]["expected"], "2");

    let faulty = write(
        "faulty.yaml",
        "workflow: nowhere.yaml
cases:
  - name: x
    expects: { status: completed }
",
    );
    let output = downbeat(&["test", &faulty, &failing]);
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    assert!(said(&output).contains(&format!("{faulty}:1: workflow: ")), "{}", said(&output));

    let faulty = write(
        "names.yaml",
        "workflow:
  name: w
  tasks:
    a: { type: work }
cases:
  - name: x
    inputs: 1
    tasks: { wrok: { output: 1 }, a: { output: 1, untaken: true }, work: [] }
    signals: [{ name: go, at: soon }]
    control: [{ action: pause, task: a }, { action: stop }]
    expect: { status: done, tasks: { b: completed, a: ended }, order: [a/b] }
  - name: x
    expect: { status: completed, error: { cod: x } }
",
    );
    let output = downbeat(&["test", &faulty]);
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    let text = said(&output);
    for part in [
        ":7: cases[0].inputs: unknown key \"inputs\" (did you mean 'input'?)",
        ":8: cases[0].tasks.wrok: the workflow has no task with the path, id, type or workflow \"wrok\" (did you mean 'work'?)",
        ":8: cases[0].tasks.a: an answer has exactly one of output, fail and 'untaken: true'",
        ":8: cases[0].tasks.work: there is no answer in the list",
        ":9: cases[0].signals[0].at: the duration \"soon\" is not valid",
        ":10: cases[0].control[0].task: 'task' does not go with pause",
        ":10: cases[0].control[1].action: there is no action \"stop\"",
        ":11: cases[0].expect.status: a run has no status \"done\"",
        ":11: cases[0].expect.tasks.b: the workflow has no task \"b\"",
        ":11: cases[0].expect.tasks.a: a task has no status \"ended\"",
        ":11: cases[0].expect.order[0]: the workflow has no task \"a/b\"",
        ":12: cases[1].name: another case is called \"x\" too",
        ":13: cases[1].expect.error.cod: unknown key \"cod\" (did you mean 'code'?)",
    ] {
        assert!(text.contains(part), "{part}\n{text}");
    }

    let twice = write(
        "twice.yaml",
        "workflow: nowhere.yaml
cases:
  - name: x
  - name: y
    expect: { status: completed }
  - expect: { status: completed }
    name: x
",
    );
    let output = downbeat(&["test", &twice]);
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    assert!(
        said(&output).contains(":7: cases[2].name: another case is called \"x\" too"),
        "{}",
        said(&output)
    );
}
