//! Runs that start runs: parents and children, and what they tell each other, in whatever order it comes.

use super::super::children::child_of;
use super::super::history::attempts;
use super::super::homes::local::Homes;
use super::super::testing::{World, start};
use super::super::{payload, standing};
use super::{Answer, Player};
use crate::model::command::{Action, ChildEnd, Command, Outcome, Refusal, ReportedFailure, Start};
use crate::model::document::{self, Format};
use crate::model::ids::{RunId, TaskPath};
use crate::model::outbox::{self, Delivery, EndedRun, Origin, Parcel, StartFor};
use crate::model::payload::Payload;
use crate::model::run::{RunState, RunStatus, TaskPhase};
use crate::model::time::{Span, Timestamp};
use bytes::Bytes;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

/// Runs that know of each other, and the messages on their way.
struct Family {
    documents: BTreeMap<String, String>,
    runs: BTreeMap<RunId, Player>,
    post: Vec<(RunId, Delivery)>,
    now: Timestamp,
    /// Every attempt that was given to a worker: run and task.
    done: Vec<(RunId, String)>,
}

const ROOT: &str = "run-1";

fn id(text: &str) -> RunId {
    RunId::new(text).unwrap()
}

impl Family {
    /// Documents are YAML below their name; the first is that of the root.
    fn new(documents: &[(&str, &str)], input: &str) -> Self {
        let known = documents.iter().map(|(n, t)| ((*n).to_owned(), format!("name: {n}\n{t}"))).collect();
        let now = Timestamp::from_millis(1_800_000_000_000);
        let mut family =
            Self { documents: known, runs: BTreeMap::new(), post: Vec::new(), now, done: Vec::new() };
        let input = Some(Bytes::copy_from_slice(input.as_bytes()));
        let command = Command::Start(Start { input, ..start() });
        family.tell(&id(ROOT), documents[0].0, &command).unwrap();
        family
    }

    /// A command to a run, which is made if it does not exist.
    fn tell(&mut self, run: &RunId, workflow: &str, command: &Command) -> Result<Outcome, Refusal> {
        if !self.runs.contains_key(run) {
            let document = document::parse(self.documents[workflow].as_bytes(), Format::Yaml);
            let plan = document.unwrap_or_else(|f| panic!("{f:?}")).plan;
            self.runs.insert(
                run.clone(),
                Player { world: World::new(plan), done: Vec::new(), homes: Homes::default() },
            );
        }
        let player = self.runs.get_mut(run).unwrap();
        player.world.now = self.now;
        let outcome = player.world.apply(command).map_err(|stop| match stop {
            super::super::Stop::Refused(refusal) => refusal,
            super::super::Stop::NeedPayloads(fields) => panic!("{fields:?}"),
        });
        self.gather(run);
        outcome
    }

    fn gather(&mut self, run: &RunId) {
        let Some(player) = self.runs.get_mut(run) else { return };
        let sent = std::mem::take(&mut player.world.sent);
        self.post.extend(sent.into_iter().map(|d| (run.clone(), d)));
        if player.world.state.is_none() {
            self.runs.remove(run);
        }
    }

    fn text(&self, run: &RunId, value: &Payload) -> Bytes {
        payload::resolve(value, &[], &self.runs[run].world.source()).unwrap()
    }

    /// Carries a message, and its answer unless that is lost.
    fn deliver(&mut self, from: &RunId, delivery: Delivery, answered: bool) {
        let Delivery { sequence, to, parcel } = delivery;
        let (workflow, command) = match parcel {
            Parcel::IsOpen => panic!("no run asks this"),
            Parcel::Command(command) => (String::new(), command),
            Parcel::Start(start) => {
                let StartFor { workflow, input, tags, priority, retention, origin, .. } = *start;
                if !self.documents.contains_key(workflow.as_str()) {
                    let answer =
                        outbox::Answer::Refused { code: "workflow_not_found".into(), message: "no".into() };
                    return self.settle(from, sequence, answer);
                }
                let input = self.runs.contains_key(from).then(|| self.text(from, &input));
                let command = Start {
                    id: to.clone(),
                    workflow: workflow.clone(),
                    version: 1,
                    digest: [5; 16],
                    input,
                    tags,
                    priority,
                    retention,
                    start_at: None,
                    origin: Some(origin),
                    not_after: None,
                };
                (workflow.to_string(), Command::Start(command))
            }
            Parcel::Ended(ended) => {
                let EndedRun { origin: Origin::Parent(parent), status, output, error } = *ended else {
                    panic!("no schedule has started it")
                };
                let end = match status {
                    RunStatus::Completed => ChildEnd::Completed(self.text(from, &output)),
                    status => {
                        let (code, message) = error.unwrap_or_default();
                        ChildEnd::Failed { status, code, message }
                    }
                };
                let (task, ticket) = (parent.task, parent.ticket);
                (String::new(), Command::ChildEnded { task, child: from.clone(), ticket, end })
            }
        };
        let missing = !self.runs.contains_key(&to) && workflow.is_empty();
        let outcome = if missing { Err(Refusal::NoRun) } else { self.tell(&to, &workflow, &command) };
        let answer = match outcome {
            Ok(_) => outbox::Answer::Done,
            Err(Refusal::NoRun) => outbox::Answer::Gone,
            Err(other) => panic!("{command:?} is refused: {other}"),
        };
        if answered {
            self.settle(from, sequence, answer);
        }
    }

    fn settle(&mut self, to: &RunId, sequence: u32, answer: outbox::Answer) {
        if self.runs.contains_key(to) {
            self.tell(to, "", &Command::Settled { sequence, answer }).unwrap();
        }
    }

    /// Carries everything that is on its way.
    fn carry(&mut self) {
        while !self.post.is_empty() {
            let (from, delivery) = self.post.remove(0);
            self.deliver(&from, delivery, true);
        }
    }

    /// Time passes, and every run is looked at.
    fn pass(&mut self, time: Span) {
        self.now = self.now.plus(time);
        for run in self.runs.keys().cloned().collect::<Vec<_>>() {
            let world = &mut self.runs.get_mut(&run).unwrap().world;
            world.lease_now = world.lease_now.plus(time);
            if world.wake.is_some_and(|at| at <= self.now) {
                self.tell(&run, "", &Command::Wake { sessions: super::alive() }).unwrap();
            }
        }
    }

    /// Workers do what is queued anywhere, messages are carried, until nothing is left.
    fn play(&mut self, mut worker: impl FnMut(&RunId, &str) -> Answer) {
        loop {
            self.carry();
            let Some((run, path)) = self.queued().first().cloned() else { return };
            let answer = worker(&run, &path);
            self.work(&run, &path, answer);
        }
    }

    fn queued(&self) -> Vec<(RunId, String)> {
        let all = self.runs.iter();
        all.flat_map(|(run, p)| p.queued().into_iter().map(|path| (run.clone(), path))).collect()
    }

    fn work(&mut self, run: &RunId, path: &str, answer: Answer) {
        self.done.push((run.clone(), path.to_owned()));
        let player = self.runs.get_mut(run).unwrap();
        player.world.now = self.now;
        player.work(path, answer);
        self.gather(run);
    }

    fn root(&self) -> &Player {
        &self.runs[&id(ROOT)]
    }

    fn root_state(&self) -> &RunState {
        self.root().world.run()
    }

    /// The current child of a task of the root.
    fn child(&self, path: &str) -> RunId {
        self.child_in(&id(ROOT), path)
    }

    fn child_in(&self, run: &RunId, path: &str) -> RunId {
        let player = &self.runs[run];
        let node = player.node(path);
        let state = player.world.run();
        child_of(state, &player.world.plan, node, state.tasks[node as usize].attempt).unwrap()
    }

    fn status(&self, run: &RunId) -> &'static str {
        self.runs[run].status().name()
    }

    fn command(&mut self, command: &Command) -> Result<Outcome, Refusal> {
        self.tell(&id(ROOT), "", command)
    }
}

const PARENT: &str = "tasks:\n  go: { workflow: child, input: { n: '${{ input.n }}' }, retry: { max_attempts: 1 } }\n  after: { needs: [go], type: work, input: '${{ tasks.go.output }}' }\noutput: '${{ tasks.go.output }}'\n";
const CHILD: &str = "tasks:\n  a: { type: work, input: '${{ input.n }}' }\n  b: { needs: [a], type: work }\noutput: { got: '${{ input.n }}' }\n";

#[test]
fn a_task_is_a_run_of_another_workflow_and_comes_to_its_output() {
    let mut f = Family::new(&[("parent", PARENT), ("child", CHILD)], r#"{"n":9007199254740993}"#);
    let child = f.child("go");
    assert_eq!(f.root().at("go"), "waiting");
    f.play(|_, _| super::ok("1"));
    assert_eq!(f.root().run_output(), r#"{"got":9007199254740993}"#);
    assert_eq!(f.status(&id(ROOT)), "completed");
    let state = f.runs[&child].world.run();
    let parent = state.parent().unwrap();
    assert_eq!((parent.run.as_str(), parent.task.as_str(), parent.depth), (ROOT, "go", 1));
    assert!(state.outbox.is_empty() && f.root_state().outbox.is_empty(), "everything was answered");
    assert_eq!(f.runs[&child].world.wake, None, "an ended run that has told everything sleeps");
    assert_eq!(f.done.len(), 3);
}

#[test]
fn an_ended_run_is_looked_at_until_it_has_told_its_end() {
    let mut f = Family::new(&[("parent", PARENT), ("child", CHILD)], r#"{"n":1}"#);
    f.carry();
    let child = f.child("go");
    f.work(&child, "a", super::ok("1"));
    f.work(&child, "b", super::ok("1"));
    assert_eq!(f.status(&child), "completed");
    f.post.clear(); // Lost with the server.
    assert!(f.runs[&child].world.wake.is_some());
    let expired = Command::Delete { expired: true };
    assert_eq!(f.tell(&child, "", &expired), Ok(Outcome::Nothing));
    assert_eq!(f.tell(&child, "", &Command::Delete { expired: false }), Err(Refusal::Telling));
    f.pass(Span::secs(5));
    f.play(|_, _| super::ok("1"));
    assert_eq!(f.status(&id(ROOT)), "completed");
    assert_eq!(f.runs[&child].world.wake, None);
}

#[test]
fn what_is_told_twice_or_late_changes_nothing() {
    let mut f = Family::new(&[("parent", PARENT), ("child", CHILD)], r#"{"n":1}"#);
    let started = f.post.clone();
    f.play(|_, path| if path == "b" { super::bad("broken") } else { super::ok("1") });
    assert_eq!(f.status(&id(ROOT)), "failed");
    let (code, task) = f.root().error();
    assert_eq!((code.as_str(), task.as_deref()), ("broken", Some("go")));
    let child = f.child("go");
    // The end of the first try, kept by somebody.
    let parent = f.runs[&child].world.run().parent().unwrap().clone();
    let end = ChildEnd::Failed { status: RunStatus::Failed, code: "broken".into(), message: String::new() };
    let late = Command::ChildEnded { task: parent.task, child: child.clone(), ticket: parent.ticket, end };
    f.command(&Command::Retry).unwrap();
    f.carry();
    assert_eq!(f.child("go"), child, "the failed child goes on itself");
    assert_eq!(f.status(&child), "running");
    assert_eq!(f.command(&late), Ok(Outcome::Nothing));
    for (from, delivery) in started {
        f.deliver(&from, delivery, true);
    }
    assert_eq!(f.root().at("go"), "waiting");
    f.play(|_, _| super::ok("2"));
    assert_eq!(f.status(&id(ROOT)), "completed");
    let of_child = f.done.iter().filter(|(run, _)| *run == child).map(|(_, p)| p.as_str());
    assert_eq!(of_child.collect::<Vec<_>>(), ["a", "b", "b"], "what the child had done is not done again");
}

#[test]
fn attempts_are_children_of_their_own() {
    let parent = "tasks:\n  go: { workflow: child, retry: { max_attempts: 2, initial: 1s, jitter: 0 } }\n";
    let child = "tasks:\n  a: { type: work }\n";
    let mut f = Family::new(&[("parent", parent), ("child", child)], "null");
    let first = f.child("go");
    f.play(|_, _| super::bad("no"));
    assert_eq!(f.root().at("go"), "retrying");
    f.pass(Span::secs(1));
    let second = f.child("go");
    assert_ne!(first, second);
    f.play(|_, _| super::ok("7"));
    assert_eq!(
        (f.status(&first), f.status(&second), f.status(&id(ROOT))),
        ("failed", "completed", "completed")
    );
}

#[test]
fn an_unknown_workflow_fails_the_task() {
    let mut f = Family::new(&[("parent", "tasks:\n  go: { workflow: nobody }\n")], "null");
    f.carry();
    assert_eq!(f.status(&id(ROOT)), "failed");
    assert_eq!(f.root().error().0, "workflow_not_found");
}

#[test]
fn a_workflow_may_be_named_by_an_expression_and_be_of_any_construct() {
    let parent = "tasks:
  each:
    for_each: ${{ input }}
    max_parallel: 2
    workflow: ${{ item.kind }}
    input: ${{ item.n }}
  again:
    repeat: { max: 2 }
    workflow: child
    input: ${{ loop.index }}
  group:
    tasks:
      inner: { workflow: { name: child, version: 1 } }
output: { each: '${{ tasks.each.output }}', again: '${{ tasks.again.output }}' }
";
    let child = "tasks:\n  a: { set: { x: '${{ input }}' } }\noutput: '${{ tasks.a.output.x }}'\n";
    let other = "tasks:\n  a: { set: { x: '${{ input }}' } }\noutput: other\n";
    let input = r#"[{"kind":"child","n":1},{"kind":"other","n":2},{"kind":"child","n":3}]"#;
    let mut f = Family::new(&[("parent", parent), ("child", child), ("other", other)], input);
    f.carry();
    assert_eq!(f.root().run_output(), r#"{"again":1,"each":[1,"other",3]}"#);
    assert_eq!(f.runs.len(), 7);
}

#[test]
fn a_detached_child_lives_its_own_life() {
    let parent = "tasks:\n  go: { workflow: { name: child, detach: true } }\n  wait: { needs: [go], wait: { signal: s } }\n";
    let mut f = Family::new(&[("parent", parent), ("child", "tasks:\n  a: { type: work }\n")], "null");
    let child = f.child("go");
    f.carry();
    assert_eq!(f.root().output("go"), format!(r#"{{"run":"{child}"}}"#));
    f.command(&Command::Cancel { compensate: false, force: false }).unwrap();
    f.carry();
    assert_eq!((f.status(&id(ROOT)), f.status(&child)), ("cancelled", "running"));
    f.play(|_, _| super::ok("1"));
    assert_eq!(f.status(&child), "completed");
    assert!(f.runs[&child].world.run().outbox.is_empty());
}

#[test]
fn a_child_is_kept_as_long_as_its_parent_and_a_detached_one_by_its_own_rule() {
    let parent = "retention: 2h\ntasks:\n  go: { workflow: child }\n  off: { workflow: { name: child, detach: true } }\n";
    let child = "retention: 5m\ntasks:\n  a: { workflow: leaf }\n";
    let leaf = "tasks:\n  b: { type: work }\n";
    let mut f = Family::new(&[("parent", parent), ("child", child), ("leaf", leaf)], "null");
    f.play(|_, _| super::ok("1"));
    let kept = |f: &Family, run: &RunId| {
        let state = f.runs[run].world.run();
        Span(state.kept_until().unwrap().0 - state.ended_at.unwrap().0)
    };
    let (go, off) = (f.child("go"), f.child("off"));
    for run in [&id(ROOT), &go, &f.child_in(&go, "a")] {
        assert_eq!(kept(&f, run), Span::secs(7_200), "{run}");
    }
    // Not less than its start may be on its way twice.
    assert_eq!(kept(&f, &off), Span::secs(300).max(crate::model::run::ORIGIN_KEPT));
    assert_eq!(f.runs[&f.child_in(&off, "a")].world.run().retention, Span::secs(300));
}

#[test]
fn cancel_and_pause_reach_down_over_four_levels() {
    let level = |below: &str| format!("tasks:\n  a: {{ type: work }}\n  go: {{ workflow: {below} }}\n");
    let (one, two, three) = (level("two"), level("three"), level("four"));
    let documents =
        [("one", &*one), ("two", &*two), ("three", &*three), ("four", "tasks:\n  a: { type: work }\n")];
    let mut f = Family::new(&documents, "null");
    f.carry();
    assert_eq!(f.runs.len(), 4);
    let all = |f: &Family| -> BTreeSet<&'static str> { f.runs.keys().map(|r| f.status(r)).collect() };
    f.command(&Command::Pause).unwrap();
    f.carry();
    assert_eq!(all(&f), ["paused"].into());
    assert_eq!(f.queued(), []);
    f.command(&Command::Resume).unwrap();
    f.carry();
    assert_eq!((all(&f), f.queued().len()), (["running"].into(), 4));
    f.command(&Command::Pause).unwrap();
    f.carry();
    f.command(&Command::Cancel { compensate: false, force: false }).unwrap();
    f.carry();
    assert_eq!(all(&f), ["cancelled"].into());
    assert_eq!(f.queued(), []);
}

#[test]
fn a_child_that_is_cancelled_before_it_has_begun_is_cancelled_when_it_has() {
    let mut f = Family::new(&[("parent", PARENT), ("child", CHILD)], r#"{"n":1}"#);
    let child = f.child("go");
    f.command(&Command::Cancel { compensate: false, force: false }).unwrap();
    assert_eq!(f.post.len(), 1, "the cancel waits for the start: {:?}", f.post);
    f.carry();
    assert_eq!((f.status(&id(ROOT)), f.status(&child)), ("cancelled", "cancelled"));
    assert!(f.root_state().outbox.is_empty());
}

#[test]
fn a_child_cancelled_by_itself_ends_the_task_cancelled() {
    let parent = "tasks:\n  go: { workflow: child }\n  calm: { workflow: child, on_error: continue }\n";
    let mut f = Family::new(&[("parent", parent), ("child", "tasks:\n  a: { type: work }\n")], "null");
    f.carry();
    for child in [f.child("go"), f.child("calm")] {
        f.tell(&child, "", &Command::Cancel { compensate: false, force: false }).unwrap();
    }
    f.carry();
    assert_eq!(
        (f.root().at("go"), f.root().at("calm"), f.status(&id(ROOT))),
        ("cancelled", "cancelled", "failed")
    );
    assert_eq!(f.root().error(), ("task_cancelled".to_owned(), Some("go".to_owned())));
}

#[test]
fn the_innermost_run_is_named_in_an_error_whatever_it_says() {
    let go = |below: &str| format!("tasks:\n  go: {{ workflow: {below}, retry: {{ max_attempts: 1 }} }}\n");
    let leaf = "tasks:\n  a: { fail: { code: empty, message: 'run out of paper: again' } }\n";
    let mut f = Family::new(&[("top", &*go("mid")), ("mid", &*go("leaf")), ("leaf", leaf)], "null");
    f.carry();
    let innermost = f.child_in(&f.child("go"), "go");
    let state = f.root_state();
    let failure = &state.failures[state.error.unwrap() as usize];
    let expected = format!("run {innermost}: run out of paper: again");
    assert_eq!((failure.code.as_str(), &failure.message), ("empty", &expected));
}

#[test]
fn a_task_that_times_out_recalls_its_child_and_undoes_it() {
    let parent = "tasks:\n  go: { workflow: child, timeout: 10s, retry: { max_attempts: 1 } }\n";
    let child = "tasks:\n  a: { type: work, compensate: { type: undo } }\n  b: { needs: [a], type: work }\n";
    let mut f = Family::new(&[("parent", parent), ("child", child)], "null");
    f.carry();
    let run = f.child("go");
    f.work(&run, "a", super::ok("1"));
    f.pass(Span::secs(10));
    assert_eq!((f.root().at("go"), f.status(&id(ROOT))), ("timed_out", "failed"));
    f.carry();
    assert_eq!(f.queued(), [(run.clone(), "a/compensate".to_owned())]);
    f.play(|_, _| super::ok("1"));
    assert_eq!(f.status(&run), "cancelled");
}

#[test]
fn ending_a_task_by_hand_recalls_its_child() {
    for (action, status) in [
        (Action::Complete(Bytes::from_static(b"5")), "completed"),
        (Action::Skip, "completed"),
        (Action::Fail(ReportedFailure::default()), "failed"),
    ] {
        let parent = "tasks:\n  go: { workflow: child }\n";
        let mut f = Family::new(&[("parent", parent), ("child", "tasks:\n  a: { type: work }\n")], "null");
        f.carry();
        let child = f.child("go");
        f.command(&Command::Act { path: TaskPath::parse("go").unwrap(), action }).unwrap();
        f.carry();
        assert_eq!((f.status(&id(ROOT)), f.status(&child)), (status, "cancelled"));
    }
}

#[test]
fn what_starts_itself_comes_to_an_end() {
    let mut f = Family::new(
        &[
            ("a", "tasks:\n  go: { workflow: b, retry: { max_attempts: 1 } }\n"),
            ("b", "tasks:\n  go: { workflow: a, retry: { max_attempts: 1 } }\n"),
        ],
        "null",
    );
    f.carry();
    assert_eq!(f.runs.len(), 33);
    assert_eq!(f.status(&id(ROOT)), "failed");
    assert_eq!(f.root().error().0, "child_too_deep");
}

#[test]
fn a_retried_parent_takes_what_its_child_has_come_to_meanwhile_or_begins_another() {
    let mut f = Family::new(&[("parent", PARENT), ("child", CHILD)], r#"{"n":1}"#);
    f.play(|_, path| if path == "b" { super::bad("broken") } else { super::ok("1") });
    let child = f.child("go");
    // Somebody mends the child itself: nobody waits for it.
    f.tell(&child, "", &Command::Retry).unwrap();
    f.play(|_, _| super::ok("1"));
    assert_eq!((f.status(&child), f.status(&id(ROOT))), ("completed", "failed"));
    f.command(&Command::Retry).unwrap();
    f.play(|_, _| super::ok("1"));
    assert_eq!((f.status(&id(ROOT)), f.done.len()), ("completed", 4));

    let mut f = Family::new(&[("parent", PARENT), ("child", CHILD)], r#"{"n":1}"#);
    f.play(|_, _| super::bad("broken"));
    let child = f.child("go");
    f.tell(&child, "", &Command::Delete { expired: false }).unwrap();
    f.command(&Command::Retry).unwrap();
    f.play(|_, _| super::ok("1"));
    assert_eq!(f.status(&id(ROOT)), "completed");
    assert_ne!(f.child("go"), child);
    let told: Vec<_> =
        attempts(f.root_state(), f.root().node("go")).iter().map(|a| (a.number, a.status)).collect();
    assert_eq!(told, [(1, "failed"), (2, "completed")], "no attempt stays open in a run that has ended");
}

#[test]
fn every_attempt_of_an_item_and_iteration_ends_also_by_hand_and_over_tries() {
    let parent =
        "tasks:\n  c: { for_each: [1], repeat: { max: 1 }, workflow: child, retry: { max_attempts: 1 } }\n";
    let mut f = Family::new(&[("parent", parent), ("child", "tasks:\n  a: { type: work }\n")], "null");
    f.carry();
    let path = |text: &str| TaskPath::parse(text).unwrap();
    let failed = Action::Fail(ReportedFailure::default());
    f.command(&Command::Act { path: path("c[0]#0"), action: failed }).unwrap();
    f.carry();
    assert_eq!(f.status(&id(ROOT)), "failed");
    f.command(&Command::Rerun { path: path("c[0]"), input: None }).unwrap();
    f.play(|_, _| super::ok("1"));
    assert_eq!(f.status(&id(ROOT)), "completed");
    let state = f.root_state();
    for (node, _) in (0..).zip(&state.tasks) {
        let open: Vec<_> = attempts(state, node).into_iter().filter(|a| a.ended_at.is_none()).collect();
        assert!(open.is_empty(), "{}: {open:?} {:?}", f.root().path(node), f.root().events());
    }
}

#[test]
fn a_child_that_the_store_has_lost_is_missed_and_begun_anew() {
    let mut f = Family::new(&[("parent", PARENT), ("child", CHILD)], r#"{"n":1}"#);
    f.carry();
    let lost = f.child("go");
    f.runs.remove(&lost);
    f.pass(Span::secs(601));
    f.play(|_, _| super::ok("1"));
    assert_eq!(f.status(&id(ROOT)), "completed");
    assert_ne!(f.child("go"), lost);
}

/// A parent that waits for a child which has ended and takes it for told: the one's record is of an earlier moment than the
/// other's.
fn with_an_end_that_was_not_heard() -> Family {
    let mut f = Family::new(&[("parent", PARENT), ("child", CHILD)], r#"{"n":1}"#);
    f.carry();
    let child = f.child("go");
    f.work(&child, "a", super::ok("1"));
    f.work(&child, "b", super::ok("1"));
    f.post.clear();
    let last = f.runs[&child].world.run().outbox.last;
    f.settle(&child, last, outbox::Answer::Done);
    assert_eq!(f.root().at("go"), "waiting");
    f
}

#[test]
fn an_end_that_the_store_has_lost_is_asked_for() {
    let mut f = with_an_end_that_was_not_heard();
    f.pass(Span::secs(601));
    f.play(|_, _| super::ok("1"));
    assert_eq!(f.status(&id(ROOT)), "completed");
}

#[test]
fn a_copy_of_a_moment_before_its_child_ended_asks_at_once() {
    let mut f = with_an_end_that_was_not_heard();
    let (now, world) = (f.now.plus(Span::secs(1)), &mut f.runs.get_mut(&id(ROOT)).unwrap().world);
    let copy = world.state.as_mut().unwrap();
    assert!(standing::ask_anew(copy, now));
    world.wake = copy.armed;
    assert_eq!((world.wake, f.root().at("go")), (Some(now), "waiting"));
    f.pass(Span::secs(1));
    f.play(|_, _| super::ok("1"));
    assert_eq!(f.status(&id(ROOT)), "completed");
    // Whoever waits for nobody is as it was.
    let mut ended = f.root_state().clone();
    assert!(!standing::ask_anew(&mut ended, now));
    assert_eq!(&ended, f.root_state());
}

#[test]
fn someone_elses_run_is_not_ordered_about() {
    let mut f = Family::new(&[("parent", PARENT), ("child", CHILD)], r#"{"n":1}"#);
    let order = Command::Order {
        from: id("stranger"),
        sequence: 99,
        order: crate::model::run::Order::Cancel { compensate: false, force: true },
    };
    assert_eq!(f.command(&order), Err(Refusal::NoRun));
    f.carry();
    let child = f.child("go");
    assert_eq!(f.tell(&child, "", &order), Err(Refusal::NoRun));
    assert_eq!(f.status(&child), "running");
}

#[derive(Debug, Clone)]
enum Move {
    /// The message of this place is carried; whether it stays on its way too, whether its answer is lost.
    Carry(usize, bool, bool),
    /// All messages under way are lost with a server.
    Lose,
    Work(usize, bool),
    Pass(i64),
    Command(u8, usize),
}

fn moves() -> impl Strategy<Value = Vec<Move>> {
    let one = prop_oneof![
        6 => (0usize..8, prop::bool::weighted(0.2), prop::bool::weighted(0.2)).prop_map(|(n, twice, lost)| Move::Carry(n, twice, lost)),
        1 => Just(Move::Lose),
        4 => (0usize..8, prop::bool::weighted(0.7)).prop_map(|(n, good)| Move::Work(n, good)),
        2 => (1i64..20).prop_map(Move::Pass),
        2 => (0u8..6, 0usize..8).prop_map(|(what, n)| Move::Command(what, n)),
    ];
    prop::collection::vec(one, 0..60)
}

proptest! {
    /// Messages in any order, twice, lost with their answers; cancels, pauses and retries of parents and children: all
    /// comes to an end, nothing goes on below what has ended, and no child is begun twice.
    #[test]
    fn whatever_happens_to_messages_a_family_comes_to_an_end(moves in moves()) {
        let parent = "tasks:
  each: { for_each: [1, 2], workflow: child, retry: { max_attempts: 2, initial: 1s }, on_error: continue }
  one: { workflow: child, needs: [each], retry: { max_attempts: 1 }, timeout: 60s }
  last: { needs: [one], workflow: { name: child, detach: true } }
fail_fast: true
";
        let child = "tasks:\n  a: { type: work, retry: { max_attempts: 1 } }\n  b: { needs: [a], workflow: leaf }\n";
        let leaf = "tasks:\n  c: { type: work, retry: { max_attempts: 1 } }\n";
        let mut f = Family::new(&[("parent", parent), ("child", child), ("leaf", leaf)], "null");
        for m in moves {
            match m {
                Move::Carry(n, twice, lost) if !f.post.is_empty() => {
                    let at = n % f.post.len();
                    let (from, delivery) = if twice { f.post[at].clone() } else { f.post.remove(at) };
                    f.deliver(&from, delivery, !lost);
                }
                Move::Carry(..) => {}
                Move::Lose => f.post.clear(),
                Move::Work(n, good) => {
                    let queued = f.queued();
                    if !queued.is_empty() {
                        let (run, path) = queued[n % queued.len()].clone();
                        let answer = if good { super::ok("1") } else { super::bad("no") };
                        f.work(&run, &path, answer);
                    }
                }
                Move::Pass(seconds) => f.pass(Span::secs(seconds)),
                Move::Command(what, n) => {
                    let runs: Vec<RunId> = f.runs.keys().cloned().collect();
                    let run = if what < 3 { id(ROOT) } else { runs[n % runs.len()].clone() };
                    let command = match what {
                        0 | 3 => Command::Retry,
                        1 => Command::Pause,
                        4 => Command::Cancel { compensate: true, force: false },
                        _ => Command::Resume,
                    };
                    drop(f.tell(&run, "", &command));
                }
            }
        }
        // From here on nothing is lost, everybody goes on, and what is left is done.
        for _ in 0..200 {
            let runs: Vec<RunId> = f.runs.keys().cloned().collect();
            for run in runs {
                if f.status(&run) == "paused" {
                    f.tell(&run, "", &Command::Resume).unwrap();
                }
            }
            f.play(|_, _| super::ok("1"));
            f.pass(Span::secs(6));
        }
        for (run, player) in &f.runs {
            let state = player.world.run();
            prop_assert!(state.status.is_terminal(), "{run} is {:?}", player.all());
            prop_assert!(state.outbox.is_empty(), "{run} has still to tell {:?}", state.outbox);
            prop_assert_eq!(player.world.wake, None);
            // Each attempt of each run was done at most once, in each of its tries.
            let queued = state.log.iter().filter(|e| e.kind == crate::model::event::EventKind::TaskQueued);
            let attempts: Vec<(u32, u32)> = queued.map(|e| (e.task.unwrap(), e.attempt)).collect();
            let distinct: BTreeSet<_> = attempts.iter().collect();
            prop_assert_eq!(distinct.len(), attempts.len());
            // What its parent made of it agrees with how it ended, unless it was ended or mended by somebody else.
            if let Some(parent) = state.parent().filter(|p| !p.detached) {
                let above = &f.runs[&parent.run];
                let node = above.node(parent.task.as_str());
                let task = &above.world.run().tasks[node as usize];
                prop_assert!(task.phase.is_terminal(), "{} of {}", parent.task, parent.run);
                let current = child_of(above.world.run(), &above.world.plan, node, task.attempt);
                if current.as_ref() == Some(run) && matches!(task.phase, TaskPhase::Completed { .. }) {
                    prop_assert_eq!(state.status, RunStatus::Completed);
                }
            }
        }
    }
}
