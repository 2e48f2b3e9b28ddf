//! Documents of every construct, run by a player that does what workers and time do.

mod constructs;
mod control;
mod family;
mod limits;
mod limits_random;
mod races;
mod random;
mod table;
mod wide;

use super::homes::local::Homes;
use super::testing::{World, session, start};
use super::wake::Sessions;
use crate::model::command::{Command, LeaseTask, Outcome, Refusal, ReportedFailure, SessionView, Start};
use crate::model::document::{self, Format};
use crate::model::event::EventKind;
use crate::model::ids::{RunId, TaskPath};
use crate::model::outbox::{Answer as Told, Delivery, Parcel};
use crate::model::run::{Holder, RunStatus, TaskPhase};
use crate::model::time::Span;
use bytes::Bytes;

/// What a worker answers: JSON text, or a code to fail with.
type Answer = Result<String, String>;

/// A run and who works on it.
struct Player {
    world: World,
    /// Tasks given to workers, in order: path and input.
    done: Vec<(String, String)>,
    /// Slots and rates, which nobody else uses.
    homes: Homes,
}

#[expect(clippy::unnecessary_wraps, reason = "the other answer is an error")]
fn ok(json: &str) -> Answer {
    Ok(json.to_owned())
}

fn bad(code: &str) -> Answer {
    Err(code.to_owned())
}

impl Player {
    /// Starts a run of a document: YAML below `name: flow`.
    fn start(text: &str, input: &str) -> Self {
        let text = format!("name: flow\n{text}");
        match document::parse(text.as_bytes(), Format::Yaml) {
            Ok(document) => Self::of(World::new(document.plan), input),
            Err(faults) => panic!("{faults:?}\n{text}"),
        }
    }

    fn of(world: World, input: &str) -> Self {
        let mut player = Self { world, done: Vec::new(), homes: Homes::default() };
        let input = Some(Bytes::copy_from_slice(input.as_bytes()));
        assert_eq!(player.world.apply(&Command::Start(Start { input, ..start() })), Ok(Outcome::Accepted));
        player
    }

    fn status(&self) -> RunStatus {
        self.world.run().status
    }

    fn path(&self, node: u32) -> String {
        self.world.run().path_of(&self.world.plan, node).to_string()
    }

    fn node(&self, path: &str) -> u32 {
        let path = TaskPath::parse(path).unwrap();
        self.world.run().find(&self.world.plan, &path).unwrap_or_else(|| panic!("there is no {path}"))
    }

    /// Where a task is.
    fn at(&self, path: &str) -> &'static str {
        self.world.run().tasks[self.node(path) as usize].phase.name()
    }

    /// Every node that has been laid out, `path status`.
    fn all(&self) -> Vec<String> {
        let nodes = (0..).zip(&self.world.run().tasks);
        nodes.map(|(i, t)| format!("{} {}", self.path(i), t.phase.name())).collect()
    }

    /// Paths of the tasks that wait for a worker.
    fn queued(&self) -> Vec<String> {
        let nodes = (0..).zip(&self.world.run().tasks);
        let queued = nodes.filter(|(_, t)| super::queued(t).is_some());
        queued.map(|(i, _)| self.path(i)).collect()
    }

    /// What a task came to.
    fn output(&self, path: &str) -> String {
        match &self.world.run().tasks[self.node(path) as usize].phase {
            TaskPhase::Completed { output } => self.json(output),
            other => panic!("{path} is {other:?}"),
        }
    }

    fn json(&self, payload: &crate::model::payload::Payload) -> String {
        let json = super::payload::resolve(payload, &[], &self.world.source()).unwrap();
        String::from_utf8(json.to_vec()).unwrap()
    }

    fn run_output(&self) -> String {
        self.json(&self.world.run().output)
    }

    /// Code and path of the run's error.
    fn error(&self) -> (String, Option<String>) {
        let run = self.world.run();
        let failure = &run.failures[run.error.unwrap() as usize];
        (failure.code.clone(), failure.task.map(|t| self.path(t)))
    }

    /// Leases one queued task; returns what its worker gets.
    fn lease(&mut self, path: &str) -> (crate::model::command::AttemptKey, String) {
        let node = self.node(path);
        let key = self.world.lease(node);
        let input = self.json(&self.world.run().tasks[node as usize].input.clone());
        self.done.push((path.to_owned(), input.clone()));
        (key, input)
    }

    /// One task is done by a worker.
    fn work(&mut self, path: &str, answer: Answer) {
        let (attempt, _) = self.lease(path);
        let command = match answer {
            Ok(json) => Command::Complete { attempt, output: Ok(Bytes::from(json)) },
            Err(code) => Command::Fail {
                attempt,
                failure: ReportedFailure { code, message: "no".into(), retryable: false, retry_after: None },
            },
        };
        assert_eq!(self.world.apply(&command), Ok(Outcome::Accepted), "{path}");
    }

    /// Workers do whatever is queued until nothing is.
    fn play(&mut self, mut worker: impl FnMut(&str, &str) -> Answer) {
        while let Some(path) = self.queued().first().cloned() {
            let input = self.json(&self.world.run().tasks[self.node(&path) as usize].input.clone());
            let answer = worker(&path, &input);
            self.work(&path, answer);
        }
    }

    /// All tasks complete with this.
    fn play_all(&mut self, json: &str) {
        self.play(|_, _| ok(json));
    }

    /// Lets time pass and the run be looked at.
    fn pass(&mut self, time: Span) {
        self.world.pass(time);
        self.wake();
    }

    fn wake(&mut self) {
        drop(self.world.apply(&Command::Wake { sessions: alive() }));
    }

    /// Carries messages to homes and back until there are none left.
    fn carry(&mut self) {
        let mut to_run: Vec<(RunId, Delivery)> = Vec::new();
        loop {
            if let Some((home, delivery)) = to_run.pop() {
                let Parcel::Command(command) = &delivery.parcel else { panic!("{delivery:?}") };
                let answer = match self.world.apply(command) {
                    Err(super::Stop::Refused(Refusal::NoRun)) => Told::Gone,
                    other => other.map(|_| Told::Done).unwrap(),
                };
                let told = Command::Settled { sequence: delivery.sequence, answer };
                let env = self.world.home_env();
                let (_, more) = self.homes.apply(&home, &told, env);
                to_run.extend(more.into_iter().map(|d| (home.clone(), d)));
                continue;
            }
            let Some(n) = self.world.sent.iter().position(|d| d.to.is_reserved()) else { return };
            let delivery = self.world.sent.remove(n);
            let Parcel::Command(command) = &delivery.parcel else { panic!("{delivery:?}") };
            let env = self.world.home_env();
            let (outcome, more) = self.homes.apply(&delivery.to, command, env);
            to_run.extend(more.into_iter().map(|d| (delivery.to.clone(), d)));
            let answer = match outcome.unwrap() {
                Outcome::Granted { at } => Told::Granted { at },
                _ => Told::Done,
            };
            self.world.apply(&Command::Settled { sequence: delivery.sequence, answer }).unwrap();
        }
    }

    fn signal(&mut self, name: &str, id: Option<&str>, json: &str) -> Result<Outcome, super::Stop> {
        self.world.apply(&Command::Signal {
            name: name.to_owned(),
            id: id.map(str::to_owned),
            payload: Some(Bytes::copy_from_slice(json.as_bytes())),
        })
    }

    /// Names of the events, with the path of those of tasks.
    fn events(&self) -> Vec<String> {
        let tell = |e: &crate::model::event::LogEntry| match e.task {
            Some(i) => format!("{} {}", e.kind.name().trim_start_matches("task."), self.path(i)),
            None => e.kind.name().to_owned(),
        };
        self.world.run().log.iter().map(tell).collect()
    }

    fn count(&self, kind: EventKind) -> usize {
        self.world.run().log.iter().filter(|e| e.kind == kind).count()
    }

    fn stale_lease(path: &str, generation: u32) -> Command {
        Command::Lease(LeaseTask {
            path: TaskPath::parse(path).unwrap(),
            generation,
            holder: Holder::Session { id: session(1), epoch: 1 },
            worker: "w1".into(),
        })
    }
}

/// The one session, alive.
fn alive() -> Sessions {
    let view = SessionView { epoch: 1, remaining: Span::secs(10), owner_gone: false, resuming: false };
    [(session(1), view)].into()
}

fn refused(refusal: Refusal) -> Result<Outcome, super::Stop> {
    Err(super::Stop::Refused(refusal))
}
