//! What expressions see, by the place they stand in.

use super::*;

/// A document with `expression` in the place marked `@`, and the refusal it meets; none if it is taken.
#[track_caller]
fn at(document: &str, expression: &str) -> Option<String> {
    let text = document.replace('@', &format!("\"${{{{ {expression} }}}}\""));
    let faults = parse(text.as_bytes(), Format::Yaml).err()?;
    assert_eq!(faults.len(), 1, "{text}\n{faults:?}");
    let end = faults[0].message.find(" (in ${{").unwrap_or(faults[0].message.len());
    Some(faults[0].message[..end].to_owned())
}

const GROUPS: &str = "\
name: w
tasks:
  a: { type: x }
  side: { tasks: { s: { type: x } } }
  g:
    needs: [a]
    tasks:
      b: { type: x }
      h:
        needs: [b]
        tasks:
          d: { type: x }
          e: { type: x, needs: [d], input: @IN }
          f: { type: x }
        output: @HOUT
      c: { type: x }
  z: { type: x, needs: [g], input: @Z }
finally:
  n: { type: x }
  m: { needs: [n], tasks: { o: { type: x, input: @FIN } } }
output: @OUT
";

/// Where the places of [`GROUPS`] are.
fn place(name: &str) -> String {
    let mut text = GROUPS.to_owned();
    for other in ["IN", "HOUT", "Z", "FIN", "OUT"] {
        text = text.replace(&format!("@{other}\n"), if other == name { "@\n" } else { "1\n" });
        text = text.replace(&format!("@{other} }}"), if other == name { "@ }" } else { "1 }" });
    }
    text
}

#[test]
fn tasks_are_seen_upstream_and_upstream_of_the_groups_around() {
    let inside = |group: &str, task: &str| {
        format!(
            "task '{task}' stands inside of the group '{group}'; from outside only the group is seen: tasks.{group}.output"
        )
    };
    let apart = |wanted: &str, what: &str, reader: &str| {
        format!("task '{wanted}' is not upstream of {what}'{reader}'; add it to the needs of '{reader}'")
    };
    let last = |task: &str| format!("task '{task}' is part of 'finally', which comes after all other tasks");
    for (spot, task, refusal) in [
        ("IN", "d", None),
        ("IN", "b", None),
        ("IN", "a", None),
        ("IN", "f", Some(apart("f", "", "e"))),
        ("IN", "c", Some(apart("c", "the group ", "h"))),
        ("IN", "z", Some(apart("z", "the group ", "g"))),
        ("IN", "side", Some(apart("side", "the group ", "g"))),
        ("IN", "s", Some(inside("side", "s"))),
        ("IN", "e", Some("'e' cannot read what it has not done yet".to_owned())),
        ("IN", "h", Some("the group 'h' is around this and has not ended yet".to_owned())),
        ("IN", "g", Some("the group 'g' is around this and has not ended yet".to_owned())),
        ("IN", "n", Some(last("n"))),
        ("HOUT", "d", None),
        ("HOUT", "e", None),
        ("HOUT", "f", None),
        ("HOUT", "b", None),
        ("HOUT", "a", None),
        ("HOUT", "c", Some(apart("c", "", "h"))),
        ("HOUT", "h", Some("'h' cannot read what it has not done yet".to_owned())),
        ("Z", "g", None),
        ("Z", "a", None),
        ("Z", "b", Some(inside("g", "b"))),
        ("Z", "d", Some(inside("g", "d"))),
        ("Z", "side", Some(apart("side", "", "z"))),
        ("FIN", "n", None),
        ("FIN", "a", None),
        ("FIN", "z", None),
        ("FIN", "side", None),
        ("FIN", "m", Some("the group 'm' is around this and has not ended yet".to_owned())),
        ("FIN", "d", Some(inside("g", "d"))),
        ("OUT", "a", None),
        ("OUT", "z", None),
        ("OUT", "d", Some(inside("g", "d"))),
        ("OUT", "n", Some("task 'n' is part of 'finally', which comes after the output".to_owned())),
        ("OUT", "finally", Some("there is no task \"finally\"".to_owned())),
        ("OUT", "compensate", Some("there is no task \"compensate\"".to_owned())),
    ] {
        for field in ["output", "status"] {
            assert_eq!(at(&place(spot), &format!("tasks.{task}.{field}")), refusal, "{task} from {spot}");
        }
    }
}

const LOOPS: &str = "\
name: w
tasks:
  t:
    if: @IF
    for_each: @EACH
    repeat: { max: 2, while: @WHILE, delay: @DELAY }
    tasks:
      u:
        if: @UIF
        for_each: @UEACH
        type: x
        input: @UIN
      v: { type: x, repeat: { max: 2, while: @VWHILE }, compensate: { type: y, input: @UNDO } }
    output: @GOUT
    compensate: { type: y, input: @GUNDO }
  w: { type: x, repeat: { max: 2 }, if: @WIF, input: @WIN }
output: @OUT
finally: { f: { type: x, input: @FIN } }
";

fn loops(name: &str) -> String {
    let mut text = LOOPS.to_owned();
    for (other, neutral) in [
        ("IF", "true"),
        ("EACH", "[]"),
        ("WHILE", "true"),
        ("DELAY", "1s"),
        ("UIF", "true"),
        ("UEACH", "[]"),
        ("UIN", "1"),
        ("VWHILE", "true"),
        ("UNDO", "1"),
        ("GOUT", "1"),
        ("GUNDO", "1"),
        ("WIF", "true"),
        ("WIN", "1"),
        ("OUT", "1"),
        ("FIN", "1"),
    ] {
        for end in ["\n", " ", ","] {
            let with = if other == name { "@" } else { neutral };
            text = text.replace(&format!("@{other}{end}"), &format!("{with}{end}"));
        }
    }
    text
}

#[test]
fn item_index_and_loop_are_seen_where_they_mean_something() {
    let all = ["item", "index", "loop.index", "loop.previous", "loop.output", "run.status"];
    for (spot, seen) in [
        ("IF", &[][..]),
        ("EACH", &[]),
        ("WHILE", &["item", "index", "loop.index", "loop.previous", "loop.output"]),
        ("DELAY", &["item", "index", "loop.index", "loop.previous", "loop.output"]),
        ("UIF", &["item", "index", "loop.index", "loop.previous"]),
        ("UEACH", &["item", "index", "loop.index", "loop.previous"]),
        ("UIN", &["item", "index", "loop.index", "loop.previous"]),
        ("VWHILE", &["item", "index", "loop.index", "loop.previous", "loop.output"]),
        ("UNDO", &["item", "index", "loop.index", "loop.previous"]),
        ("GOUT", &["item", "index", "loop.index", "loop.previous"]),
        ("GUNDO", &["item", "index", "loop.index", "loop.previous"]),
        ("WIF", &[]),
        ("WIN", &["loop.index", "loop.previous"]),
        ("OUT", &[]),
        ("FIN", &["run.status"]),
    ] {
        for word in all {
            let refusal = at(&loops(spot), word);
            assert_eq!(refusal.is_none(), seen.contains(&word), "{word} in {spot}: {refusal:?}");
        }
    }
}

#[test]
fn the_words_of_a_place_are_checked_to_the_end() {
    for (spot, expression, wanted) in [
        ("WHILE", "item.sku.x", None),
        ("WHILE", "loop.output.more and loop.index < 3", None),
        ("WHILE", "loop.previous.x | default(1)", None),
        ("UIN", "index.x", Some("index is a number and has nothing inside")),
        ("UIN", "loop.index.x", Some("loop.index is a number and has nothing inside")),
        ("UIN", "loop", Some("'loop' stands for no value; write loop.index, loop.previous or loop.output")),
        (
            "UIN",
            "loop.outptu",
            Some("loop has no 'outptu' (did you mean 'output'?); it has index, output and previous"),
        ),
        (
            "UIN",
            "loop.output",
            Some(
                "loop.output is seen in 'while' and 'delay' only; elsewhere loop.previous has the iteration before",
            ),
        ),
        (
            "IF",
            "item.x",
            Some("'item' is seen under for_each only; 'if' and 'for_each' itself see that of a group around"),
        ),
        (
            "OUT",
            "loop.index",
            Some("'loop' is seen under repeat only; 'if' and 'for_each' see that of a group around"),
        ),
        ("OUT", "run.status", Some("run.status is seen in 'finally' only: until then nobody knows")),
        ("OUT", "run.error.code", Some("run.error is seen in 'finally' only: until then nobody knows")),
        ("FIN", "run.error", None),
        ("FIN", "run.error.message", None),
        ("FIN", "run", None),
        ("FIN", "run.error.stack", Some("run.error has code and message, no 'stack'")),
        ("FIN", "run.status.x", Some("run.status is text and has nothing inside")),
        (
            "FIN",
            "run.stauts",
            Some(
                "run has no 'stauts' (did you mean 'status'?); it has id, workflow, version, try, created_at, tags, priority, schedule, status, error",
            ),
        ),
        (
            "OUT",
            "run.idd",
            Some(
                "run has no 'idd' (did you mean 'id'?); it has id, workflow, version, try, created_at, tags, priority, schedule",
            ),
        ),
        ("OUT", "itme", Some("there is no 'itme'; an expression here sees input, tasks and run")),
        (
            "UIN",
            "itme",
            Some(
                "there is no 'itme' (did you mean 'item'?); an expression here sees input, tasks, run, item, index and loop",
            ),
        ),
        ("WIN", "foo", Some("there is no 'foo'; an expression here sees input, tasks, run and loop")),
    ] {
        assert_eq!(at(&loops(spot), expression).as_deref(), wanted, "{expression} in {spot}");
    }
}
