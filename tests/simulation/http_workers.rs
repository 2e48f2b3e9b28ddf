//! Workers that only speak HTTP: claim, heartbeat, settle, each call to any server.

use crate::rng::Rng;
use crate::workers::{outcome, output};
use crate::world::World;
use downbeat::app::AppError;
use downbeat::dispatch::message::{AckStatus, Assignment, TaskOutcome};
use downbeat::model::error::ErrorCode;
use downbeat::model::ids::TaskType;
use downbeat::model::time::Span;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use tokio::time::Instant;

/// Claims and works until the world ends.
pub(crate) async fn live(world: Arc<World>, number: usize) {
    let mut rng = world.rng.split("http worker", number as u64);
    let label = format!("http-{number}");
    let most = rng.range(1, 4) as u32;
    let holds = Arc::new(AtomicU32::new(0));
    let types: Vec<TaskType> = world.types.iter().filter(|_| rng.chance(0.7)).cloned().collect();
    let mut n = 0;
    while !world.is_over() && !types.is_empty() {
        tokio::time::sleep(rng.millis(20, 800)).await;
        let room = most - holds.load(Ordering::Relaxed);
        let Some((server, app)) = world.pick(&mut rng).filter(|_| room > 0) else { continue };
        let wait = Span::millis(rng.range(0, 3_000) as i64);
        let patience =
            if rng.chance(world.profile().cut) { rng.millis(1, 2_000) } else { Duration::from_secs(8) };
        let (name, wanted, there) = (label.clone(), types.clone(), Arc::clone(&world));
        let labels = world.labels[&label].clone();
        let call = async move {
            there.servers[server].link.gate().await;
            let claimed = app.claim(&name, &wanted, &labels, room, wait).await;
            there.servers[server].link.gate().await;
            claimed
        };
        let Ok(Ok(claimed)) = tokio::time::timeout(patience, call).await else { continue };
        if claimed.len() as u32 > room {
            world.violation(format_args!("{label} asked for {room} tasks and got {}", claimed.len()));
        }
        if rng.chance(world.profile().cut) {
            world.note(format_args!("{label} never hears of {} tasks", claimed.len()));
            continue;
        }
        for assignment in claimed {
            n += 1;
            holds.fetch_add(1, Ordering::Relaxed);
            world.note(format_args!(
                "{label} claims {}/{} attempt {}",
                assignment.run, assignment.path, assignment.attempt
            ));
            let who = format!("{label}.{n}");
            {
                let mut ledger = world.ledger.lock();
                ledger.given(&who, &assignment);
                // Any server will do, and so every one's trouble counts.
                ledger.at(&who, Some(server));
            }
            let (world, rng, holds) = (Arc::clone(&world), rng.split("task", n), Arc::clone(&holds));
            tokio::spawn(async move {
                Task { world, rng, who, assignment }.work().await;
                holds.fetch_sub(1, Ordering::Relaxed);
            });
        }
    }
}

struct Task {
    world: Arc<World>,
    rng: Rng,
    who: String,
    assignment: Assignment,
}

impl Task {
    async fn work(mut self) {
        let p = self.world.profile();
        let (die, work_ms) = (p.die, p.work_ms);
        let done = Instant::now() + Duration::from_micros(self.rng.below(work_ms * 1_000 + 1));
        if self.rng.chance(die) {
            return self.gone();
        }
        loop {
            let next = Instant::now() + Duration::from_secs(3);
            if done <= next {
                tokio::time::sleep_until(done).await;
                break;
            }
            tokio::time::sleep_until(next).await;
            if !self.beat().await {
                return self.gone();
            }
        }
        if self.rng.chance(self.world.profile().die) {
            return self.gone();
        }
        let outcome = if self.rng.chance(self.world.profile().release) {
            TaskOutcome::Released
        } else {
            outcome(&self.world, &mut self.rng, &self.assignment, &self.who)
        };
        self.world.ledger.lock().says(&self.assignment.token, &outcome);
        let status = self.settle(&outcome).await;
        self.gone();
        // Once more, the same and another one: by a caller that does not know what became of it.
        let (twice, other) = (self.world.profile().twice, self.world.profile().other_output);
        if status == Some(AckStatus::Accepted) && matches!(outcome, TaskOutcome::Completed(_)) {
            if self.rng.chance(other) {
                let another = output(&mut self.rng, &self.assignment, &self.who);
                let another = TaskOutcome::Completed(another);
                self.world.ledger.lock().says(&self.assignment.token, &another);
                self.settle(&another).await;
            }
            if self.rng.chance(twice)
                && let Some(again) = self.settle(&outcome).await
                && again != AckStatus::Accepted
                && !self.world.audit.lock().may_be_gone(&self.assignment.token)
            {
                self.world
                    .violation(format_args!("{}: a repeat of an accepted result is {again:?}", self.who));
            }
        }
    }

    /// No longer held by anybody.
    fn gone(&self) {
        self.world.ledger.lock().dropped(&self.assignment.token);
    }

    /// False: the work is not wanted any more.
    async fn beat(&mut self) -> bool {
        for _ in 0..3 {
            let Some((server, app)) = self.world.pick(&mut self.rng) else {
                self.world.ledger.lock().at(&self.who, None);
                tokio::time::sleep(Duration::from_millis(300)).await;
                continue;
            };
            let (token, world) = (self.assignment.token.clone(), Arc::clone(&self.world));
            let call = async move {
                world.servers[server].link.gate().await;
                app.heartbeat(&token, None).await
            };
            let began = Instant::now();
            match tokio::time::timeout(Duration::from_secs(3), call).await {
                Ok(Ok(answer)) if answer.cancelled => return false,
                Ok(Ok(_)) => {
                    if began.elapsed() > Duration::from_secs(1) {
                        self.world.ledger.lock().at(&self.who, Some(server));
                    }
                    return true;
                }
                Ok(Err(e)) if matches!(e.code, ErrorCode::StaleToken | ErrorCode::UnknownToken) => {
                    self.refused(&e);
                    return false;
                }
                Ok(Err(_)) | Err(_) => self.world.ledger.lock().at(&self.who, Some(server)),
            }
        }
        true
    }

    fn refused(&self, error: &AppError) {
        let status = if error.code == ErrorCode::StaleToken { AckStatus::Stale } else { AckStatus::Unknown };
        self.world.ledger.lock().answered(&self.world, &self.assignment.token, None, status);
    }

    /// Tells a result until there is an answer; none if it gave up.
    async fn settle(&mut self, outcome: &TaskOutcome) -> Option<AckStatus> {
        for _ in 0..40 {
            if self.world.is_over() {
                return None;
            }
            if let Some((server, app)) = self.world.pick(&mut self.rng) {
                let (token, world) = (self.assignment.token.clone(), Arc::clone(&self.world));
                let said = outcome.clone();
                let call = async move {
                    world.servers[server].link.gate().await;
                    app.settle(&token, said).await
                };
                match tokio::time::timeout(Duration::from_secs(12), call).await {
                    Ok(Ok(status)) => {
                        self.world.note(format_args!("{} is answered {status:?}", self.who));
                        let mut ledger = self.world.ledger.lock();
                        ledger.answered(&self.world, &self.assignment.token, Some(outcome), status);
                        return Some(status);
                    }
                    Ok(Err(e)) if matches!(e.code, ErrorCode::StaleToken | ErrorCode::UnknownToken) => {
                        self.world.note(format_args!("{} is answered {}", self.who, e.code.as_str()));
                        self.refused(&e);
                        let stale = e.code == ErrorCode::StaleToken;
                        return Some(if stale { AckStatus::Stale } else { AckStatus::Unknown });
                    }
                    Ok(Err(_)) | Err(_) => {}
                }
            }
            self.world.ledger.lock().at(&self.who, None);
            tokio::time::sleep(self.rng.millis(50, 800)).await;
        }
        None
    }
}
