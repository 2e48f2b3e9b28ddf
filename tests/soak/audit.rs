//! What is counted when all is over: each run against what was acknowledged, what workers sent, and what was told.

use crate::load::{Acknowledged, EACH_MINUTE, FIRST, Told, told};
use crate::site::Site;
use crate::support::crew::{faults_of, history};
use crate::support::server::Door;
use downbeat::model::schedule::ScheduleName;
use downbeat::model::time::Timestamp;
use futures::StreamExt as _;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// A run, a task, an attempt.
type Key = (String, String, u64);

/// In µs.
const MINUTE: i64 = 60_000_000;

/// What was found.
#[derive(Debug, Default)]
pub(crate) struct Found {
    /// Each thing that must not be; empty if all is well.
    pub(crate) wrong: Vec<String>,
    pub(crate) acknowledged: usize,
    pub(crate) runs: usize,
    pub(crate) lost: usize,
    pub(crate) stuck: usize,
    pub(crate) slots: usize,
    pub(crate) tasks: usize,
    pub(crate) twice: usize,
    pub(crate) attempts: usize,
    pub(crate) attempts_lost: usize,
    pub(crate) redelivered: usize,
    pub(crate) sent: usize,
    pub(crate) accepted_claims: usize,
    pub(crate) events: usize,
    pub(crate) gaps: usize,
    pub(crate) cuts: usize,
    pub(crate) resets: usize,
    pub(crate) repeats: usize,
    pub(crate) panics: usize,
}

/// What workers wrote down.
#[derive(Debug, Default)]
struct Journal {
    sent: BTreeMap<Key, BTreeSet<String>>,
    accepted: BTreeMap<Key, BTreeSet<String>>,
}

impl Journal {
    fn read(text: &str) -> Self {
        let mut journal = Self::default();
        for line in text.lines() {
            let parts: Vec<&str> = line.split('\t').collect();
            // The last line of a process that was killed may be half a line.
            let [what, run, task, attempt, output] = parts[..] else { continue };
            let Ok(attempt) = attempt.parse() else { continue };
            let list = if what == "sent" { &mut journal.sent } else { &mut journal.accepted };
            list.entry((run.into(), task.into(), attempt)).or_default().insert(output.to_owned());
        }
        journal
    }
}

/// All runs that there are.
async fn all_runs(door: Door) -> Vec<Value> {
    let mut all = Vec::new();
    let mut path = "/v1/runs?limit=500".to_owned();
    loop {
        let page = door.insist_get(&path).await.json();
        all.extend(page["items"].as_array().unwrap().iter().cloned());
        match page["next_cursor"].as_str() {
            Some(cursor) => path = format!("/v1/runs?limit=500&cursor={cursor}"),
            None => return all,
        }
    }
}

/// See the module.
pub(crate) async fn audit(site: &Site, asked: Acknowledged) -> Found {
    let door = site.door();
    let Acknowledged { runs: acknowledged, stuck, repeats, mut reader, scheduled } = asked;
    let mut found = Found { acknowledged: acknowledged.len(), repeats, ..Found::default() };
    let runs = all_runs(door).await;
    let ids: BTreeSet<&str> = runs.iter().filter_map(|r| r["id"].as_str()).collect();
    for id in acknowledged.iter().filter(|id| !ids.contains(id.as_str())) {
        found.lost += 1;
        found.wrong.push(format!("{id}: its start was acknowledged, and it is not there"));
    }
    for run in &runs {
        if run["status"] != "completed" {
            found.stuck += 1;
            found.wrong.push(format!("{} is {}: {}", run["id"], run["status"], run["error"]));
        }
    }
    for id in stuck {
        found.wrong.push(format!("{id} came to no end in time"));
    }
    found.runs = runs.len();
    found.slots = slots(&ids, scheduled, &mut found.wrong);
    found.panics = site.panics();
    if found.panics > 0 {
        found.wrong.push(format!("{} servers panicked", found.panics));
    }

    let journal = Journal::read(&site.journals());
    found.sent = journal.sent.values().map(BTreeSet::len).sum();
    found.accepted_claims = journal.accepted.values().map(BTreeSet::len).sum();
    let ended = |told: &[Told]| told.iter().filter(|t| t.2).count();
    let all = reader.sees(Duration::from_secs(30), |s| ended(&s.events) >= runs.len()).await;
    let seen = reader.stop();
    (found.events, found.cuts, found.resets) = (seen.events.len(), seen.cuts, seen.resets);
    if !all {
        found.wrong.push(format!("{} of {} ends were told", ended(&seen.events), runs.len()));
    }
    if seen.resets > 0 {
        found.wrong.push(format!("{} resumes were answered with a reset", seen.resets));
    }
    let mut told_of: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
    for (run, digest, _) in &seen.events {
        told_of.entry(run).or_default().push(*digest);
    }

    let histories = runs.iter().map(|run| async {
        let id = run["id"].as_str().unwrap();
        (id, history(door, id).await)
    });
    let mut histories = futures::stream::iter(histories).buffer_unordered(8);
    let mut counted: BTreeSet<Key> = BTreeSet::new();
    while let Some((id, events)) = histories.next().await {
        found.wrong.extend(faults_of(&events).into_iter().map(|fault| format!("{id}: {fault}")));
        count(id, &events, &journal, &mut found, &mut counted);
        let own: Vec<u64> = events.iter().map(|e| told(e).1).collect();
        let of_it = told_of.remove(id).unwrap_or_default();
        // The reader may have come in the middle of the first.
        if own != of_it && id != FIRST {
            found.gaps += 1;
            let first = own.iter().zip(&of_it).take_while(|(a, b)| a == b).count();
            found.wrong.push(format!(
                "{id}: the reader was told {} of {} events; the first that differs is {first}: {}",
                of_it.len(),
                own.len(),
                events.get(first).unwrap_or(&Value::Null)
            ));
        }
    }
    // What was acknowledged counts.
    for (key, outputs) in &journal.accepted {
        if outputs.len() > 1 || !counted.contains(key) {
            found.twice += 1;
            found.wrong.push(format!("{key:?}: acknowledged, and it is not what counts: {outputs:?}"));
        }
    }
    found
}

/// The schedule has started each of its minutes; by their ids no minute can have two. Returns how many there are.
fn slots(ids: &BTreeSet<&str>, (since, until): (i64, i64), wrong: &mut Vec<String>) -> usize {
    let name = ScheduleName::new(EACH_MINUTE).unwrap();
    // A minute that began just before the end may yet come.
    let due: Vec<String> = (since / MINUTE + 1..=(until - MINUTE / 6) / MINUTE)
        .map(|minute| name.run_of(Timestamp(minute * MINUTE)).to_string())
        .collect();
    let missing = due.iter().filter(|id| !ids.contains(id.as_str()));
    wrong.extend(missing.map(|id| format!("{id}: this minute of the schedule was not started")));
    ids.iter().filter(|id| id.starts_with(EACH_MINUTE)).count()
}

/// One run: each task's result is one that a worker sent for that attempt, and the one that was acknowledged if one was.
fn count(id: &str, events: &[Value], journal: &Journal, found: &mut Found, counted: &mut BTreeSet<Key>) {
    let mut tasks: BTreeSet<&str> = BTreeSet::new();
    let mut queued: BTreeSet<(&str, u64)> = BTreeSet::new();
    for event in events {
        let (Some(task), Some(kind)) = (event["task"].as_str(), event["type"].as_str()) else { continue };
        let attempt = event["attempt"].as_u64().unwrap_or(0);
        match kind {
            "task.started" => found.attempts += 1,
            "task.queued" if !queued.insert((task, attempt)) => found.redelivered += 1,
            "task.retrying" | "task.failed" if event["error"]["code"] == "worker_lost" => {
                found.attempts_lost += 1;
            }
            "task.completed" => {
                found.tasks += 1;
                if !tasks.insert(task) {
                    found.twice += 1;
                    found.wrong.push(format!("{id}: {task} completed twice"));
                }
                let by_worker = event["output"]["by"].is_string() && event["task_type"].is_string();
                let key = (id.to_owned(), task.to_owned(), attempt);
                if by_worker {
                    let output = event["output"].to_string();
                    if !journal.sent.get(&key).is_some_and(|sent| sent.contains(&output)) {
                        found.wrong.push(format!("{id}: nobody sent {output} for {task}, attempt {attempt}"));
                    }
                    if journal.accepted.get(&key).is_some_and(|a| !a.contains(&output)) {
                        found.twice += 1;
                        found.wrong.push(format!("{id}: {task}: another result was acknowledged"));
                    }
                    counted.insert(key);
                }
            }
            _ => {}
        }
    }
}

/// Whoever counts must see what is wrong.
#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn events() -> Vec<Value> {
        let task = |kind: &str| json!({"type": kind, "time": "2", "task": "a", "task_type": "soak-work", "attempt": 1});
        let mut completed = task("task.completed");
        completed["output"] = json!({"by": "hand-0-1-0"});
        vec![
            json!({"type": "run.started", "time": "1"}),
            task("task.queued"),
            task("task.started"),
            completed,
            json!({"type": "run.completed", "time": "3"}),
        ]
    }

    fn counted(events: &[Value], journal: &str) -> Found {
        let (mut found, mut counted) = (Found::default(), BTreeSet::new());
        found.wrong = faults_of(events);
        count("r", events, &Journal::read(journal), &mut found, &mut counted);
        found
    }

    const SENT: &str = "sent\tr\ta\t1\t{\"by\":\"hand-0-1-0\"}\n";

    #[test]
    fn a_run_that_went_well_is_well() {
        let found = counted(&events(), &format!("{SENT}sent\tr\tb\t1\t{{\"half"));
        assert_eq!((found.wrong, found.tasks, found.attempts, found.twice), (Vec::<String>::new(), 1, 1, 0));
    }

    #[test]
    fn whatever_is_missing_doubled_or_out_of_order_is_found() {
        for at in 0..5 {
            let mut missing = events();
            let left_out = missing.remove(at);
            assert!(!counted(&missing, SENT).wrong.is_empty(), "without {left_out}");
            let mut doubled = events();
            doubled.insert(at, left_out.clone());
            // An assignment may be queued again; nothing else may come twice.
            assert!(!counted(&doubled, SENT).wrong.is_empty() || at == 1, "twice {left_out}");
            let mut late = events();
            late.swap(at, (at + 1) % 5);
            assert!(!counted(&late, SENT).wrong.is_empty(), "late: {left_out}");
        }
    }

    #[test]
    fn a_result_that_nobody_sent_or_another_one_that_was_acknowledged_is_found() {
        assert_eq!(counted(&events(), "").wrong.len(), 1);
        let other = format!("{SENT}accepted\tr\ta\t1\t{{\"by\":\"hand-1-1-0\"}}\n");
        let found = counted(&events(), &other);
        assert_eq!((found.wrong.len(), found.twice), (1, 1));
        let same = format!("{SENT}accepted\tr\ta\t1\t{{\"by\":\"hand-0-1-0\"}}\n");
        assert_eq!(counted(&events(), &same).wrong, Vec::<String>::new());
    }
}
