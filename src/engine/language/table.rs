//! The truth table: outcome of a need × its `on_error` × `when` × `if` → what becomes of the task behind it and of
//! the run. `docs/guide/when.md` prints the same table.

use super::*;

/// How the need ends.
const OUTCOMES: [&str; 6] = ["completed", "failed", "timed_out", "cancelled", "skipped", "skipped_failed"];

/// Status of the task behind it, then of the run.
fn row(outcome: &str, on_error: &str, when: &str, condition: &str) -> (&'static str, &'static str) {
    let fails = matches!(outcome, "failed" | "timed_out" | "cancelled");
    let forgiven = fails && on_error == "continue";
    let failed = (fails && !forgiven) || outcome == "skipped_failed";
    let completed = outcome == "completed" || forgiven;
    let runs = match when {
        "success" => completed && !failed,
        "failure" => failed,
        _ => true,
    };
    let task = match (runs, condition) {
        (false, _) | (true, "false") => "skipped",
        (true, "true") => "completed",
        (true, _) => "failed",
    };
    let run = if failed || task == "failed" { "failed" } else { "completed" };
    (task, run)
}

#[test]
fn every_row_of_the_table_holds() {
    let mut rows = 0;
    for outcome in OUTCOMES {
        for on_error in ["fail", "continue"] {
            for when in ["success", "failure", "always"] {
                for condition in ["true", "false", "text"] {
                    let expected = row(outcome, on_error, when, condition);
                    assert_eq!(
                        played(outcome, on_error, when, condition),
                        expected,
                        "{outcome} {on_error} {when} {condition}"
                    );
                    rows += 1;
                }
            }
        }
    }
    assert_eq!(rows, 108);
}

#[test]
fn the_guide_prints_the_same_table() {
    let page = include_str!("../../../docs/guide/when.md");
    let mut rows = 0;
    for line in page.lines() {
        let cells: Vec<&str> =
            line.trim_matches('|').split('|').map(|c| c.trim().trim_matches('`')).collect();
        let [outcomes, on_error, success, failure, always, run] = cells[..] else { continue };
        let outcomes: Vec<&str> = match outcomes {
            "completed" => vec!["completed"],
            "failed, timed out, cancelled" => vec!["failed", "timed_out", "cancelled"],
            "skipped, neutral" => vec!["skipped"],
            "skipped behind a failure" => vec!["skipped_failed"],
            _ => continue,
        };
        let on_errors = if on_error == "either" { vec!["fail", "continue"] } else { vec![on_error] };
        for outcome in outcomes {
            for on_error in &on_errors {
                for (when, says) in [("success", success), ("failure", failure), ("always", always)] {
                    let task = if says == "runs" { "completed" } else { "skipped" };
                    assert_eq!(row(outcome, on_error, when, "true"), (task, run), "{line}");
                    rows += 1;
                }
            }
        }
    }
    assert_eq!(rows, 36);
}

/// The need is called `n`, the task `t`. What a child's cancel would be stands for `cancelled`: a group that is
/// ended from outside.
fn played(outcome: &str, on_error: &str, when: &str, condition: &str) -> (&'static str, &'static str) {
    let condition = if condition == "text" { "${{ input.text }}" } else { condition };
    let (before, need) = match outcome {
        "skipped" => ("", "if: false, ".to_owned()),
        "skipped_failed" => ("  p: { type: work, retry: { max_attempts: 1 } }\n", "needs: [p], ".to_owned()),
        "timed_out" => ("", "timeout: { total: 5s }, ".to_owned()),
        _ => ("", String::new()),
    };
    let text = format!(
        "tasks:\n{before}  n: {{ {need}type: work, on_error: {on_error}, retry: {{ max_attempts: 1 }} }}\n  t: {{ needs: [n], when: {when}, if: '{condition}', type: work }}"
    )
    .replace("if: 'true'", "if: true")
    .replace("if: 'false'", "if: false");
    let mut p = Player::start(&text, r#"{"text":"true"}"#);
    match outcome {
        "failed" => p.work("n", bad("x")),
        "timed_out" => p.pass(Span::secs(5)),
        "completed" => p.work("n", ok("1")),
        "skipped_failed" => p.work("p", bad("x")),
        "cancelled" => {
            let n = p.node("n");
            p.world.cancel_one(n);
        }
        _ => {}
    }
    p.play_all("1");
    (p.at("t"), p.status().name())
}

#[test]
fn several_needs_together() {
    let mut p = Player::start(
        "tasks:\n  a: { type: work }\n  b: { type: work, if: false }\n  c: { type: work, on_error: continue, retry: { max_attempts: 1 } }\n  j: { type: work, needs: [a, b] }\n  k: { type: work, needs: [b] }\n  l: { type: work, needs: [b, c] }\n  end: { type: work, needs: [j, k, l] }",
        "{}",
    );
    p.play(|path, _| if path == "c" { bad("x") } else { ok("1") });
    assert_eq!(
        p.all(),
        ["a completed", "b skipped", "c failed", "j completed", "k skipped", "l completed", "end completed"]
    );
    assert_eq!(p.status(), RunStatus::Completed);
}

#[test]
fn a_join_behind_a_skipped_branch_runs_once_in_each_item() {
    let mut p = Player::start(
        "tasks:\n  m:\n    for_each: '${{ input }}'\n    tasks:\n      a: { type: work, if: '${{ item }}' }\n      b: { type: work, if: '${{ not item }}' }\n      join: { type: work, needs: [a, b] }\n      end: { type: work, needs: [join] }",
        "[true,false,true]",
    );
    p.play_all("1");
    for (n, item) in [true, false, true].into_iter().enumerate() {
        let (a, b) = if item { ("completed", "skipped") } else { ("skipped", "completed") };
        assert_eq!((p.at(&format!("m[{n}]/a")), p.at(&format!("m[{n}]/b"))), (a, b));
        assert_eq!((p.at(&format!("m[{n}]/join")), p.at(&format!("m[{n}]/end"))), ("completed", "completed"));
    }
    assert_eq!((p.status(), p.done.len()), (RunStatus::Completed, 9));
}
