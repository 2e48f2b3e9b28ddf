//! What is counted when a measurement is over: whether everything happened, and happened once.
//!
//! Invariants
//! - Nothing here runs while something is measured.
//! - What cannot be counted is wrong, too.

use super::flow::Flow;
use crate::client::Caller;
use crate::proto::v1 as pb;
use futures::StreamExt as _;
use std::collections::BTreeMap;
use std::time::Duration;

/// Runs whose events are read one by one; of more, as many, evenly spread.
const HISTORIES: usize = 1_000;
/// … and that are read at once.
const AT_ONCE: usize = 16;
/// Faults that are told in full.
const TOLD: usize = 10;
/// A replay that is silent for this long has nothing more.
const SILENCE: Duration = Duration::from_millis(500);
/// A replay that has not told all of it is waited for, for this long.
const PATIENCE: Duration = Duration::from_secs(30);

/// What was found wrong.
#[derive(Debug, Default)]
pub(super) struct Faults(Vec<String>);

impl Faults {
    pub(super) fn add(&mut self, fault: impl Into<String>) {
        self.0.push(fault.into());
    }

    /// `ok`, or everything that is wrong.
    pub(super) fn verdict(&self) -> String {
        match self.0.len() {
            0 => "ok".to_owned(),
            n if n <= TOLD => self.0.join("; "),
            n => format!("{}; and {} more", self.0[..TOLD].join("; "), n - TOLD),
        }
    }
}

/// Some of `ids`, evenly spread, at most [`HISTORIES`].
fn spread(ids: &[String]) -> impl Iterator<Item = &String> {
    ids.iter().step_by(ids.len().div_ceil(HISTORIES).max(1))
}

/// Reads runs and their events, from the first to the last: each ended completed, with the output it must have, one
/// terminal event, and each of its tasks done by the first attempt, accepted once.
pub(super) async fn histories(caller: &Caller, flow: &Flow, ids: &[String], faults: &mut Faults) {
    let ids: Vec<String> = spread(ids).cloned().collect();
    let read = futures::stream::iter(ids).map(|id| async move {
        let fault = one(caller, flow, &id).await.err();
        fault.map(|fault| format!("{id}: {fault}"))
    });
    let mut read = read.buffer_unordered(AT_ONCE);
    while let Some(fault) = read.next().await {
        faults.0.extend(fault);
    }
}

async fn one(caller: &Caller, flow: &Flow, id: &str) -> Result<(), String> {
    let run = caller.run(id, Duration::ZERO).await.map_err(|e| e.to_string())?;
    if run.status() != pb::RunStatus::Completed {
        return Err(format!("is {:?}", run.status()));
    }
    if !flow.ended_with(&run.output) {
        return Err(format!("ended with {} bytes that are not what it must end with", run.output.len()));
    }
    let request = pb::WatchRequest { run: id.to_owned(), ..Default::default() };
    let mut events = caller.watch(request).await.map_err(|e| e.to_string())?;
    let mut history = History::default();
    loop {
        let next = tokio::time::timeout(PATIENCE, events.message());
        let message = next.await.map_err(|_| "its events do not end")?.map_err(|e| e.to_string())?;
        let Some(batch) = message else { break };
        for item in batch.items {
            match item.item {
                Some(pb::watch_item::Item::Event(event)) => history.see(&event)?,
                _ => return Err("its events begin anew".into()),
            }
        }
    }
    history.end(flow.tasks)
}

/// The events of a run, in order.
#[derive(Debug, Default)]
struct History {
    begun: bool,
    ended: bool,
    /// Times started and completed.
    tasks: BTreeMap<String, (u32, u32)>,
}

impl History {
    fn see(&mut self, event: &pb::Event) -> Result<(), String> {
        let kind = event.r#type.as_str();
        if self.ended {
            return Err(format!("{kind} came after its end"));
        }
        if self.begun == (kind == "run.started") {
            return Err(format!("{kind} stands in the wrong place"));
        }
        let told = self.tasks.entry(event.task.clone()).or_default();
        match kind {
            "run.started" => self.begun = true,
            "run.completed" => self.ended = true,
            "task.queued" | "task.waiting" => {}
            "task.started" => told.0 += 1,
            "task.completed" => {
                told.1 += 1;
                if event.attempt > 1 || told.1 > 1 {
                    return Err(format!("{} was completed more than once, or not at once", event.task));
                }
            }
            other => return Err(format!("{other} was not to happen")),
        }
        if told.0 > 1 {
            return Err(format!("{} was started {} times", event.task, told.0));
        }
        Ok(())
    }

    /// Tasks that hold others are completed without having been started.
    fn end(mut self, tasks: u32) -> Result<(), String> {
        self.tasks.remove("");
        if !self.ended {
            return Err("its events lack the end".into());
        }
        if let Some((open, _)) = self.tasks.iter().find(|(_, (_, completed))| *completed == 0) {
            return Err(format!("{open} was never completed"));
        }
        let done = self.tasks.values().filter(|(started, _)| *started == 1).count();
        if done == tasks as usize { Ok(()) } else { Err(format!("{done} of {tasks} tasks were done")) }
    }
}

/// Counts, from the events of all runs after the cursor `after`, how many tasks of each run were completed. `false`: the
/// server no longer has all of these events, so that nothing was counted.
pub(super) async fn completions(
    caller: &Caller,
    workflow: &str,
    after: &str,
    ids: &super::Ids<'_>,
    tasks: u32,
    faults: &mut Faults,
) -> bool {
    let request = pb::WatchRequest {
        workflow: workflow.to_owned(),
        r#type: "task.completed".to_owned(),
        after: after.to_owned(),
        ..Default::default()
    };
    let mut events = match caller.watch(request).await {
        Ok(events) => events,
        Err(e) => {
            faults.add(format!("the completions of tasks cannot be counted: {e}"));
            return true;
        }
    };
    let mut counts = vec![0_u32; ids.count as usize];
    let (mut total, expected) = (0_u64, u64::from(ids.count) * u64::from(tasks));
    loop {
        let patience = if total < expected { PATIENCE } else { SILENCE };
        let batch = match tokio::time::timeout(patience, events.message()).await {
            Ok(Ok(Some(batch))) => batch,
            Ok(Ok(None)) | Err(_) => break,
            Ok(Err(e)) => {
                faults.add(format!("the completions of tasks cannot be counted: {e}"));
                return true;
            }
        };
        for item in batch.items {
            let Some(pb::watch_item::Item::Event(event)) = item.item else { return false };
            let Some(count) = ids.index(&event.run).and_then(|n| counts.get_mut(n)) else { continue };
            *count += 1;
            total += 1;
        }
    }
    let wrong: Vec<_> = (0_u32..).zip(&counts).filter(|(_, count)| **count != tasks).collect();
    if let Some((n, count)) = wrong.first() {
        let id = ids.id(*n);
        faults.add(format!(
            "{} runs have not each of their tasks accepted once, e.g. {id}: {count} of {tasks}",
            wrong.len()
        ));
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn history(events: &[(&str, &str)], tasks: u32) -> Result<(), String> {
        let mut history = History::default();
        for (kind, task) in events {
            let event = pb::Event {
                r#type: (*kind).to_owned(),
                task: (*task).to_owned(),
                attempt: u32::from(!task.is_empty()),
                ..Default::default()
            };
            history.see(&event)?;
        }
        history.end(tasks)
    }

    const GOOD: [(&str, &str); 7] = [
        ("run.started", ""),
        ("task.queued", "a"),
        ("task.started", "a"),
        ("task.completed", "a"),
        ("task.waiting", "each"),
        ("task.completed", "each"),
        ("run.completed", ""),
    ];

    #[test]
    fn a_history_is_whole_or_says_what_is_wrong() {
        assert_eq!(history(&GOOD, 1), Ok(()));
        assert_eq!(history(&GOOD, 2), Err("1 of 2 tasks were done".into()));
        assert_eq!(history(&GOOD[..6], 1), Err("its events lack the end".into()));
        assert_eq!(history(&GOOD[1..], 1), Err("task.queued stands in the wrong place".into()));
        let with = |at: usize, event: (&'static str, &'static str)| {
            let mut events = GOOD.to_vec();
            events.insert(at, event);
            history(&events, 1).unwrap_err()
        };
        assert_eq!(with(7, ("run.completed", "")), "run.completed came after its end");
        assert_eq!(with(4, ("task.completed", "a")), "a was completed more than once, or not at once");
        assert_eq!(with(3, ("task.started", "a")), "a was started 2 times");
        assert_eq!(with(4, ("task.queued", "b")), "b was never completed");
        assert_eq!(with(4, ("task.retrying", "a")), "task.retrying was not to happen");
        assert_eq!(with(1, ("run.started", "")), "run.started stands in the wrong place");
    }

    #[test]
    fn many_faults_are_told_in_part() {
        let mut faults = Faults::default();
        assert_eq!(faults.verdict(), "ok");
        (0..12).for_each(|n| faults.add(n.to_string()));
        assert_eq!(faults.verdict(), "0; 1; 2; 3; 4; 5; 6; 7; 8; 9; and 2 more");
    }

    #[test]
    fn of_many_runs_some_are_read_from_all_over() {
        let ids = |n: usize| (0..n).map(|n| n.to_string()).collect::<Vec<_>>();
        for (all, some) in [(0, 0), (1, 1), (1_000, 1_000), (1_001, 501), (100_000, 1_000)] {
            assert_eq!(spread(&ids(all)).count(), some, "of {all}");
        }
    }
}
