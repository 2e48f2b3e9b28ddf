//! What workers were given, what they said, and what they were answered: the other side's books.

use crate::world::World;
use bytes::Bytes;
use downbeat::dispatch::message::{AckStatus, Assignment, TaskOutcome};
use downbeat::model::ids::{Nonce, RunId, TaskPath, TaskType};
use downbeat::model::run::TaskPhase;
use downbeat::model::token::TaskToken;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::Instant;

/// After this without any trouble a lease that a worker holds must stand: a lease, and as much again.
const STEADY: Duration = Duration::from_secs(20);

#[derive(Debug)]
struct Holding {
    worker: String,
    since: Instant,
    /// The worker has it and means to finish it.
    holds: bool,
    /// The worker has said that it has it.
    acked: bool,
}

#[derive(Debug, Clone, Copy)]
struct Standing {
    trouble: Instant,
    server: Option<usize>,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    held: BTreeMap<Nonce, Holding>,
    workers: BTreeMap<String, Standing>,
    said: BTreeMap<Nonce, Vec<TaskOutcome>>,
    accepted: BTreeMap<(RunId, TaskPath), Vec<(Nonce, Instant)>>,
    grants: BTreeMap<String, BTreeMap<TaskType, u32>>,
    pub(crate) assigned: u64,
    pub(crate) results: u64,
}

impl Ledger {
    /// A worker got work.
    pub(crate) fn given(&mut self, worker: &str, assignment: &Assignment) {
        let token = TaskToken::decode(&assignment.token).expect("assignments carry tokens of ours");
        self.assigned += 1;
        let holding = Holding { worker: worker.to_owned(), since: Instant::now(), holds: true, acked: false };
        self.held.insert(token.nonce, holding);
    }

    /// A worker has no longer what it was given.
    pub(crate) fn dropped(&mut self, token: &str) {
        if let Some(holding) = TaskToken::decode(token).and_then(|t| self.held.get_mut(&t.nonce)) {
            holding.holds = false;
        }
    }

    /// A worker says that it has what it was given.
    pub(crate) fn acks(&mut self, token: &str) {
        if let Some(holding) = TaskToken::decode(token).and_then(|t| self.held.get_mut(&t.nonce)) {
            holding.acked = true;
        }
    }

    /// Whether the worker of an attempt has ever said that it has it.
    pub(crate) fn acked(&self, nonce: &Nonce) -> bool {
        self.held.get(nonce).is_some_and(|h| h.acked)
    }

    /// A worker is well connected to a server, or to none; whatever was before may have cost it time.
    pub(crate) fn at(&mut self, worker: &str, server: Option<usize>) {
        self.workers.insert(worker.to_owned(), Standing { trouble: Instant::now(), server });
    }

    /// A worker says what came of an attempt.
    pub(crate) fn says(&mut self, token: &str, outcome: &TaskOutcome) {
        self.results += 1;
        if let Some(token) = TaskToken::decode(token) {
            let said = self.said.entry(token.nonce).or_default();
            if !said.contains(outcome) {
                said.push(outcome.clone());
            }
        }
    }

    /// Whether the holder of an attempt has said that it failed.
    pub(crate) fn failed(&self, nonce: &Nonce) -> bool {
        self.said.get(nonce).is_some_and(|all| all.iter().any(|o| matches!(o, TaskOutcome::Failed(_))))
    }

    /// Whether the holder of an attempt has said that it completed with this.
    pub(crate) fn completed(&self, nonce: &Nonce, output: &[u8]) -> bool {
        let same = |o: &TaskOutcome| matches!(o, TaskOutcome::Completed(b) if same_json(b, output));
        self.said.get(nonce).is_some_and(|all| all.iter().any(same))
    }

    /// The worker that holds an attempt, and for how long it had no trouble at all by `then`, if that is long.
    pub(crate) fn steady(&self, world: &World, nonce: &Nonce, then: Instant) -> Option<(String, Duration)> {
        let holding = self.held.get(nonce).filter(|h| h.holds)?;
        let standing = self.workers.get(&holding.worker)?;
        let owner = world.servers[standing.server?].link.last_trouble();
        let anyone = world.servers.iter().map(|s| s.link.last_trouble()).max()?;
        let since = standing.trouble.max(owner).max(anyone);
        let steady = then.checked_duration_since(since)?;
        (steady > STEADY).then(|| (holding.worker.clone(), steady))
    }

    /// A worker was told the fate of a result: it must be true.
    pub(crate) fn answered(
        &mut self,
        world: &World,
        token: &str,
        outcome: Option<&TaskOutcome>,
        status: AckStatus,
    ) {
        let Some(token) = TaskToken::decode(token) else {
            if status != AckStatus::Unknown {
                world.violation(format_args!("a token that is none of ours was answered {status:?}"));
            }
            return;
        };
        let audit = world.audit.lock();
        let lately = audit.last_rolled_back;
        let Some(truth) = audit.runs.get(&token.run) else {
            // Deleted, or it never was since the tail was lost: anything may have been true.
            return;
        };
        let task = truth.state.find(&truth.plan, &token.path).and_then(|i| truth.state.tasks.get(i as usize));
        let Some(task) = task else { return };
        let given = self.held.get(&token.nonce).map(|h| h.since);
        let intact = !truth.rolled && given.is_some_and(|g| lately.is_none_or(|r| r < g) && truth.since <= g);
        let stands = matches!(&task.phase, TaskPhase::Running { lease, .. } if lease.nonce == token.nonce);
        match status {
            AckStatus::Stale | AckStatus::Unknown => {
                if stands && intact {
                    world.violation(format_args!("{token:?} was answered {status:?} and its lease stands"));
                }
            }
            AckStatus::Accepted | AckStatus::Invalid => {
                if !intact {
                    return;
                }
                if stands {
                    world.violation(format_args!(
                        "{token:?} was answered {status:?} and its lease still stands"
                    ));
                }
                let Some(TaskOutcome::Completed(output)) = outcome.filter(|_| status == AckStatus::Accepted)
                else {
                    return;
                };
                let counts = task.accepted == Some((token.attempt, token.nonce))
                    && matches!(task.phase, TaskPhase::Completed { .. });
                if !counts {
                    world.violation(format_args!(
                        "{token:?} was accepted, and its task is {}",
                        task.phase.name()
                    ));
                } else if !output_is(world, &audit, &token, output) {
                    world.violation(format_args!("{token:?} was accepted with another output than is kept"));
                }
                let since = truth.since;
                drop(audit);
                let all = self.accepted.entry((token.run.clone(), token.path.clone())).or_default();
                let others = all
                    .iter()
                    .any(|(n, at)| *n != token.nonce && *at > since && lately.is_none_or(|r| r < *at));
                if others {
                    world.violation(format_args!(
                        "{token:?} is the second result of its task that was accepted"
                    ));
                }
                all.push((token.nonce, Instant::now()));
            }
        }
    }
}

fn same_json(a: &[u8], b: &[u8]) -> bool {
    let null = |x: &[u8]| x.is_empty() || x == b"null";
    a == b || (null(a) && null(b))
}

fn output_is(world: &World, audit: &crate::audit::Audit, token: &TaskToken, output: &Bytes) -> bool {
    audit.output(world, &token.run, &token.path).is_some_and(|kept| same_json(&kept, output))
}

impl Ledger {
    /// A worker's credit by type, as the server has confirmed it.
    pub(crate) fn grants(&mut self, worker: &str, credit: BTreeMap<TaskType, u32>) {
        self.grants.insert(worker.to_owned(), credit);
    }

    /// All credit that connected workers have.
    pub(crate) fn granted(&self) -> BTreeMap<TaskType, u32> {
        let mut all = BTreeMap::new();
        for (worker, credit) in &self.grants {
            if self.workers.get(worker).is_some_and(|s| s.server.is_some()) {
                for (t, c) in credit {
                    *all.entry(t.clone()).or_insert(0) += c;
                }
            }
        }
        all
    }
}
