//! Workers that only speak HTTP: a claim is a committed lease with a deadline, never resumed. Its first
//! heartbeat or result is the acknowledgement.

use super::error::{refusal, stopping, unknown_token};
use super::sessions::{claim_subscriptions, label, own_token, result_command};
use super::{App, AppError, runs};
use crate::dispatch::message::{AckStatus, Assignment, TaskOutcome, ToWorker};
use crate::dispatch::{Outbox, SessionKey};
use crate::model::command::{AttemptKey, Command, Refusal};
use crate::model::error::ErrorCode;
use crate::model::ids::TaskType;
use crate::model::labels::Labels;
use crate::model::run::RunStatus;
use crate::model::time::{Span, Timestamp};
use bytes::Bytes;
use std::sync::Arc;
use tokio::time::Instant;

/// Tasks in one claim.
const CLAIM_MAX: u32 = 1_000;
/// Inputs that one claim carries; no answer is over 3 MiB.
const CLAIM_BYTES: usize = 2 << 20;
/// About what stands around one input: token, names, deadline.
const CLAIMED_AROUND: usize = 1_024;
/// Tasks asked for in a claim's first round, before it is known how large they are, and in any later one: what is
/// leased and does not fit into the answer has to go back, and both are told as events.
const FIRST_ROUND: u32 = 4;
const ROUND: u32 = 128;
/// How long a round waits for the rest of what it asked for, once something has come.
const TOGETHER: std::time::Duration = std::time::Duration::from_millis(5);
/// The longest a round waits for what is being leased to it.
const LATE: std::time::Duration = std::time::Duration::from_secs(2);
/// The longest a claim waits.
const WAIT_MAX: Span = Span::secs(60);

/// Answer to a heartbeat over HTTP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeartbeatAnswer {
    /// The new deadline of the claim.
    pub deadline: Timestamp,
    /// The work is no longer wanted.
    pub cancelled: bool,
}

/// Ends the claim's stream even if its caller goes away; what was on its way goes back to the queues.
struct Open<'a> {
    app: &'a App,
    key: SessionKey,
    outbox: Arc<Outbox>,
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        let left = {
            // Under one lock: nothing is put on the stream between the last look and its end.
            let mut dispatcher = self.app.inner.dispatcher.lock();
            let left = self.waiting();
            dispatcher.close(self.key);
            left
        };
        give_back(self.app, left);
    }
}

impl Open<'_> {
    /// Takes the work that is on the stream by now.
    fn waiting(&self) -> Vec<Assignment> {
        let mut work = Vec::new();
        while let Some(Some(message)) = self.outbox.try_next() {
            if let ToWorker::Assign(assignments) = message {
                work.extend(assignments);
            }
        }
        work
    }
}

/// Returns tasks that nobody was told of to the front of their queues.
fn give_back(app: &App, left: Vec<Assignment>) {
    if left.is_empty() {
        return;
    }
    let own = app.clone();
    app.inner.spawn(async move {
        for a in left {
            if let Err(error) = own.settle(&a.token, TaskOutcome::Released).await {
                tracing::debug!(%error, "a task that nobody was told of waits for its lease to pass");
            }
        }
    });
}

impl App {
    /// Claims up to `max` tasks (at most 1,000) of these types for a worker with these labels and without a session;
    /// waits up to `wait` (at most 60 s) for the first.
    pub async fn claim(
        &self,
        worker: &str,
        types: &[TaskType],
        labels: &Labels,
        max: u32,
        wait: Span,
    ) -> Result<Vec<Assignment>, AppError> {
        if types.is_empty() || max == 0 || max > CLAIM_MAX {
            return Err(AppError::new(
                ErrorCode::InvalidRequest,
                format!("a claim names at least one type and asks for 1 to {CLAIM_MAX} tasks"),
            ));
        }
        if self.inner.draining.is_cancelled() {
            return Err(stopping());
        }
        // Even a claim that does not wait gives the queues one look.
        let least = std::time::Duration::from_millis(100);
        let until = Instant::now() + wait.min(WAIT_MAX).to_std().max(least);
        let mut claimed: Vec<Assignment> = Vec::new();
        let mut asked = max.min(FIRST_ROUND);
        loop {
            let until = if claimed.is_empty() { until } else { Instant::now() + TOGETHER };
            let more = self.round(worker, types, labels, asked, until).await;
            let all = more.len() as u32 == asked;
            claimed.extend(more);
            let bytes: usize = claimed.iter().map(|a| a.input.len() + CLAIMED_AROUND).sum();
            let mean = bytes / claimed.len().max(1);
            // Half of what would fit if the next are like these: sizes differ.
            let room = CLAIM_BYTES.saturating_sub(bytes) / 2 / mean.max(1);
            asked = ROUND.min(max - claimed.len() as u32).min(room as u32);
            if !all || asked == 0 {
                return Ok(self.fitting(claimed));
            }
        }
    }

    /// Up to `credit` tasks; waits until `until` for the first, then a moment for the others.
    async fn round(
        &self,
        worker: &str,
        types: &[TaskType],
        labels: &Labels,
        credit: u32,
        mut until: Instant,
    ) -> Vec<Assignment> {
        let (key, outbox) = self.inner.dispatcher.lock().open(
            None,
            label(worker).into(),
            &claim_subscriptions(types, labels, credit),
            Some(credit),
            Instant::now(),
        );
        let open = Open { app: self, key, outbox };
        self.inner.feed.notify_one();
        let mut claimed: Vec<Assignment> = Vec::new();
        let draining = self.inner.draining.clone();
        while (claimed.len() as u32) < credit {
            tokio::select! {
                biased;
                message = open.outbox.next() => match message {
                    Some(ToWorker::Assign(assignments)) => {
                        claimed.extend(assignments);
                        until = until.min(Instant::now() + TOGETHER);
                    }
                    Some(_) => {}
                    None => break,
                },
                () = draining.cancelled() => break,
                () = tokio::time::sleep_until(until) => break,
            }
        }
        // What is on its way is waited for: to give it back would be told as a start and an end of nothing.
        let late = Instant::now() + LATE;
        while self.inner.dispatcher.lock().no_more(open.key) > 0 && Instant::now() < late {
            if let Ok(Some(ToWorker::Assign(assignments))) =
                tokio::time::timeout(TOGETHER, open.outbox.next()).await
            {
                claimed.extend(assignments);
            }
        }
        claimed.extend(open.waiting());
        claimed
    }

    /// What one answer carries; the rest goes back to the front of its queue.
    fn fitting(&self, mut claimed: Vec<Assignment>) -> Vec<Assignment> {
        let mut bytes = 0;
        let fits = claimed.iter().take_while(|a| {
            bytes += a.input.len() + CLAIMED_AROUND;
            bytes <= CLAIM_BYTES
        });
        let keep = fits.count().max(1).min(claimed.len());
        give_back(self, claimed.split_off(keep));
        claimed
    }

    /// Takes one result. `Accepted`, or `Invalid` for a value that failed the attempt; else the error.
    pub async fn settle(&self, token: &str, outcome: TaskOutcome) -> Result<AckStatus, AppError> {
        let token = own_token(&self.inner, token).ok_or_else(unknown_token)?;
        let attempt = AttemptKey { path: token.path, attempt: token.attempt, nonce: token.nonce };
        let command = result_command(attempt, outcome);
        let rejected = match &command {
            Command::Complete { output: Err(rejected), .. } => Some(rejected.clone()),
            _ => None,
        };
        let answer = runs::ask(&self.inner, &token.run, command).await?;
        match answer.outcome {
            Ok(_) if let Some(rejected) = rejected => {
                let large = rejected.code == "output_too_large";
                let code = if large { ErrorCode::TooLarge } else { ErrorCode::InvalidRequest };
                Err(AppError::new(code, format!("{}; the attempt has failed", rejected.message)))
            }
            Ok(_) => Ok(AckStatus::Accepted),
            Err(Refusal::NoRun | Refusal::Unknown) => Err(unknown_token()),
            Err(Refusal::Ended(_)) => Err(refusal(&Refusal::Stale, &token.run)),
            Err(r) => Err(refusal(&r, &token.run)),
        }
    }

    /// Renews a claim, or the heartbeat of a session's attempt. A fenced attempt answers `cancelled`.
    pub async fn heartbeat(&self, token: &str, progress: Option<Bytes>) -> Result<HeartbeatAnswer, AppError> {
        drop(progress);
        let token = own_token(&self.inner, token).ok_or_else(unknown_token)?;
        let attempt = AttemptKey { path: token.path, attempt: token.attempt, nonce: token.nonce };
        let lease = self.inner.options.lease;
        let command = Command::Heartbeat { attempt, extend_claim: Some(lease) };
        let answer = runs::ask(&self.inner, &token.run, command).await?;
        match answer.outcome {
            Ok(_) => Ok(HeartbeatAnswer { deadline: self.inner.clock.now().plus(lease), cancelled: false }),
            Err(Refusal::NoRun | Refusal::Unknown) => Err(unknown_token()),
            Err(Refusal::Ended(_)) => {
                Ok(HeartbeatAnswer { deadline: self.inner.clock.now(), cancelled: true })
            }
            // Fenced because the run was: that is what the worker wants to know.
            Err(Refusal::Stale)
                if answer
                    .state
                    .as_ref()
                    .is_some_and(|s| matches!(s.status, RunStatus::Cancelled | RunStatus::TimedOut)) =>
            {
                Ok(HeartbeatAnswer { deadline: self.inner.clock.now(), cancelled: true })
            }
            Err(r) => Err(refusal(&r, &token.run)),
        }
    }
}
