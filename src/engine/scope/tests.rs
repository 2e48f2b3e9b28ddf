use super::*;
use crate::engine::Stop;
use crate::engine::testing::World;
use crate::model::command::{Command, Outcome, Start};
use crate::model::document::{self, Format};
use crate::model::run::RunStatus;

#[test]
fn only_a_boolean_is_a_condition() {
    assert_eq!(truth(b"true", "tasks.a.if"), Ok(true));
    assert_eq!(truth(b" false ", "tasks.a.if"), Ok(false));
    for (other, said) in [
        (r#""true""#, r#"the text "true""#),
        (r#""""#, r#"the text """#),
        ("0", "the number 0"),
        ("1", "the number 1"),
        ("null", "the value null"),
        ("[]", "the list []"),
        (r#"{"a":1}"#, r#"the object {"a":1}"#),
    ] {
        let words = truth(other.as_bytes(), "tasks.a.if").unwrap_err();
        assert_eq!(words.code, "condition_not_boolean");
        assert_eq!(words.message, format!("tasks.a.if must be true or false; it came to {said}"));
    }
}

#[test]
fn a_small_value_stands_inline_even_if_it_could_be_a_reference() {
    let base = Payload::Stored { field: Field::new("i"), size: 100 };
    let reference = Payload::Path { base: Box::new(base), steps: vec!["a".into()] };
    let mut written = Vec::new();
    let small = Value { json: Bytes::from_static(b"7"), reference: Some(reference.clone()) };
    let field = || Field::new("a0.1");
    assert_eq!(small.into_payload(field, &mut written), Payload::Inline(Bytes::from_static(b"7")));
    let long = Bytes::from("9".repeat(65));
    let large = Value { json: long.clone(), reference: Some(reference.clone()) };
    assert_eq!(large.into_payload(field, &mut written), reference);
    assert_eq!(written, vec![]);
    let made = Value { json: long.clone(), reference: None };
    assert_eq!(made.into_payload(field, &mut written), Payload::Stored { field: field(), size: 65 });
    assert_eq!(written, vec![(field(), long)]);
}

/// A run of the document `tasks` (YAML below `tasks:`, then whatever follows), started with `input`.
fn started(tasks: &str, input: &str) -> World {
    let mut world = unstarted(tasks);
    assert_eq!(start(&mut world, input), Ok(Outcome::Accepted));
    world
}

fn unstarted(tasks: &str) -> World {
    let text = format!("name: flow\ntasks:\n{tasks}");
    match document::parse(text.as_bytes(), Format::Yaml) {
        Ok(document) => World::new(document.plan),
        Err(faults) => panic!("{faults:?}"),
    }
}

fn start(world: &mut World, input: &str) -> Result<Outcome, Stop> {
    let input = Some(Bytes::copy_from_slice(input.as_bytes()));
    world.apply(&Command::Start(Start { input, ..crate::engine::testing::start() }))
}

/// Completes a task with an output; returns the outcome.
fn complete(world: &mut World, i: u32, output: &str) -> Result<Outcome, Stop> {
    let attempt = if world.held(i).is_some() { world.key(i) } else { world.lease(i) };
    world.apply(&Command::Complete { attempt, output: Ok(Bytes::copy_from_slice(output.as_bytes())) })
}

fn input_of(world: &World, i: u32) -> String {
    let json = payload::resolve(&world.run().tasks[i as usize].input, &[], &world.source()).unwrap();
    String::from_utf8(json.to_vec()).unwrap()
}

fn error(world: &World) -> (&str, &str) {
    let failure = world.run().failures.last().unwrap();
    (&failure.code, &failure.message)
}

/// Under every `when` that lets it run and every `on_error`: what `if` makes of a task, what that makes of
/// one behind it, and of the run.
#[test]
fn if_is_looked_at_after_when_and_only_the_boolean_true_runs_the_task() {
    let rows = [
        ("true", "fail", ["queued", "pending"], "running"),
        ("false", "fail", ["skipped", "skipped"], "completed"),
        ("\"true\"", "fail", ["failed", "skipped"], "failed"),
        ("\"false\"", "fail", ["failed", "skipped"], "failed"),
        ("0", "fail", ["failed", "skipped"], "failed"),
        ("1", "fail", ["failed", "skipped"], "failed"),
        ("null", "fail", ["failed", "skipped"], "failed"),
        ("[]", "fail", ["failed", "skipped"], "failed"),
        ("true", "continue", ["queued", "pending"], "running"),
        ("false", "continue", ["skipped", "skipped"], "completed"),
        ("\"true\"", "continue", ["failed", "queued"], "running"),
    ];
    for when in ["success", "always"] {
        for (condition, on_error, tasks, run) in &rows {
            let w = started(
                &format!(
                    "  a: {{ type: work, when: {when}, if: '${{{{ input.c }}}}', on_error: {on_error} }}\n  \
                     b: {{ type: work, needs: [a] }}"
                ),
                &format!("{{\"c\":{condition}}}"),
            );
            let got = (w.statuses(), w.run().status.name());
            assert_eq!(got, (tasks.to_vec(), *run), "when {when}, if {condition}, on_error {on_error}");
            if tasks[0] == "failed" {
                assert_eq!(error(&w).0, "condition_not_boolean");
            }
        }
    }
    // A `when` that does not match is not even asked, and a skip by `if` after a failure is neutral.
    let tasks = "  a: { type: work, when: failure, if: '${{ input.nothing }}' }\n  b: { type: work, retry: { max_attempts: 1 } }\n  \
                 c: { type: work, needs: [b], when: failure, if: '${{ input.no }}' }\n  \
                 d: { type: work, needs: [c], when: failure }";
    let mut w = started(tasks, "{\"no\":false}");
    assert_eq!(w.statuses(), ["skipped", "queued", "pending", "pending"]);
    w.fail(1, "x");
    assert_eq!(w.statuses(), ["skipped", "failed", "skipped", "skipped"]);
}

#[test]
fn values_pass_from_output_to_input_to_output_unchanged() {
    let mut w = started(
        "  a: { type: work, input: '${{ input.x }}' }\n  \
         b: { type: work, needs: [a], input: { a: '${{ tasks.a.output.n }}', l: '${{ tasks.a.output.l }}' } }\n\
         output: { all: '${{ tasks.b.output }}' }\n",
        "{\"x\":{\"big\":9007199254740993,\"e\":[],\"o\":{}}}",
    );
    assert_eq!(input_of(&w, 0), "{\"big\":9007199254740993,\"e\":[],\"o\":{}}");
    assert_eq!(complete(&mut w, 0, "{\"n\":1.0,\"l\":[[]]}"), Ok(Outcome::Accepted));
    assert_eq!(input_of(&w, 1), "{\"a\":1.0,\"l\":[[]]}");
    assert_eq!(complete(&mut w, 1, "null"), Ok(Outcome::Accepted));
    assert_eq!(w.run().status, RunStatus::Completed);
    assert_eq!(w.run().output, Payload::Inline(Bytes::from_static(b"{\"all\":null}")));
}

#[test]
fn a_large_value_behind_a_plain_path_is_stored_once_and_referred_to() {
    let tasks = "  a: { type: work, input: '${{ input }}' }\n  \
                 b: { type: work, needs: [a], input: '${{ tasks.a.output.doc }}' }\n\
                 output: '${{ tasks.a.output.doc }}'\n";
    let text = "x".repeat(1_000);
    let mut w = started(tasks, &format!("{{\"t\":\"{text}\"}}"));
    assert_eq!(w.run().tasks[0].input, Payload::Stored { field: Field::new("i"), size: 1_008 });
    assert_eq!(complete(&mut w, 0, &format!("{{\"doc\":\"{text}\"}}")), Ok(Outcome::Accepted));
    let doc = Payload::Path {
        base: Box::new(Payload::Stored { field: Field::new("o0"), size: 1_010 }),
        steps: vec!["doc".to_owned()],
    };
    assert_eq!(w.run().tasks[1].input, doc);
    assert_eq!(input_of(&w, 1), format!("\"{text}\""));
    assert_eq!(complete(&mut w, 1, "1"), Ok(Outcome::Accepted));
    assert_eq!(w.run().output, doc);
    assert_eq!(w.payloads.len(), 2);
}

#[test]
fn a_missing_value_fails_the_task_unretried_and_names_the_path() {
    let w = started("  a: { type: work, input: { x: '${{ input.a.b }}' } }", "{\"a\":{}}");
    assert_eq!((w.statuses(), w.run().status), (vec!["failed"], RunStatus::Failed));
    let (code, message) = error(&w);
    assert_eq!(code, "missing_value");
    assert!(message.contains("input.a.b") && message.contains("tasks.a.input"), "{message}");
    assert_eq!(w.events(), ["run.started", "failed t0", "run.failed"]);
}

#[test]
fn a_fault_in_the_run_s_output_is_an_ordinary_failure() {
    let mut w = started("  a: { type: work }\noutput: '${{ tasks.a.output.x }}'\n", "{}");
    assert_eq!(complete(&mut w, 0, "{}"), Ok(Outcome::Accepted));
    assert_eq!((w.run().status, error(&w).0), (RunStatus::Failed, "missing_value"));
    let failure = w.run().failures.last().unwrap();
    assert_eq!((failure.task, failure.attempt, w.run().output.clone()), (None, 0, Payload::Null));
}

#[test]
fn an_evaluated_input_over_the_limit_fails_its_task() {
    let double = "  a: { type: work, input: { x: '${{ input.t }}', y: '${{ input.t }}' } }";
    let w = started(double, &format!("{{\"t\":\"{}\"}}", "x".repeat(PAYLOAD_MAX / 2)));
    assert_eq!(w.statuses(), ["failed"]);
    let (code, message) = error(&w);
    assert!(["input_too_large", "value_too_large"].contains(&code), "{code}");
    assert!(message.contains("tasks.a.input") && message.contains("1048576"), "{message}");
}

#[test]
fn status_and_error_of_a_task_can_be_read() {
    let mut w = started(
        "  a: { type: work, retry: { max_attempts: 1 }, on_error: continue }\n  \
         b: { type: work, needs: [a], input: ['${{ tasks.a.status }}', '${{ tasks.a.error.code }}', '${{ tasks.a.output }}', '${{ run.id }}'] }",
        "{}",
    );
    w.fail(0, "declined");
    assert_eq!(input_of(&w, 1), "[\"failed\",\"declined\",null,\"run-1\"]");
}

#[test]
fn payloads_that_are_not_at_hand_are_asked_for_all_at_once() {
    let tasks = "  a: { type: work }\n  b: { type: work, retry: { max_attempts: 1 } }\n  \
                 c: { type: work, needs: [a, b], input: ['${{ tasks.a.output.x }}', '${{ input.x }}'] }\n  \
                 d: { type: work, needs: [b], if: '${{ tasks.b.output.x > input.y }}' }";
    let long = format!("{{\"x\":1,\"y\":2,\"z\":\"{}\"}}", "z".repeat(100));
    let mut w = started(tasks, &long);
    assert_eq!(complete(&mut w, 0, &long), Ok(Outcome::Accepted));
    let attempt = w.lease(1);
    let before = w.state.clone();
    let command = Command::Complete { attempt, output: Ok(Bytes::from(long)) };
    w.at_hand = Some(BTreeSet::new());
    let need = Err(Stop::NeedPayloads(vec![Field::new("i"), Field::new("o0")]));
    assert_eq!(w.apply(&command), need);
    assert_eq!(w.state, before);
    // Folded behind another command, the stop stops both.
    let acked = Command::Acked { attempt: w.key(1) };
    let folded = [acked, command];
    assert_eq!(w.apply_all(&folded), [Ok(Outcome::Accepted), need]);
    assert_eq!(w.state, before);
    w.at_hand = None;
    assert_eq!(w.apply_all(&folded), [Ok(Outcome::Accepted), Ok(Outcome::Accepted)]);
    assert_eq!(w.statuses(), ["completed", "completed", "queued", "skipped"]);
    assert_eq!(input_of(&w, 2), "[1,1]");
}
