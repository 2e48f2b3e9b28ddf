//! The life of a process: one signal asks it to end what is under way, a second one to end now.
//!
//! ```text
//! running ──(SIGINT, SIGTERM or `stop`)──▶ soft ──(second signal, or the grace is over)──▶ hard
//! ```
//! Every long-lived task is started through [`Lifecycle::spawn`], so that the end waits for it; nothing is left
//! behind that still writes.

use std::future::Future;
use std::time::Duration;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Shared by everything that must end in order. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Lifecycle {
    soft: CancellationToken,
    hard: CancellationToken,
    tasks: TaskTracker,
}

impl Lifecycle {
    /// One that also listens to SIGINT and SIGTERM.
    ///
    /// # Errors
    /// If the signals cannot be listened to.
    pub fn with_signals() -> std::io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        let lifecycle = Self::default();
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        let own = lifecycle.clone();
        // Not tracked: it ends with the process.
        tokio::spawn(async move {
            loop {
                tokio::select! {
                    _ = interrupt.recv() => {}
                    _ = terminate.recv() => {}
                }
                own.signal();
            }
        });
        Ok(lifecycle)
    }

    fn signal(&self) {
        if self.soft.is_cancelled() {
            self.hard.cancel();
        }
        self.soft.cancel();
    }

    /// Asks for the end, as the first signal does.
    pub fn stop(&self) {
        self.soft.cancel();
    }

    /// Resolves when the end was asked for.
    pub async fn stopping(&self) {
        self.soft.cancelled().await;
    }

    /// Whether the end was asked for.
    pub fn is_stopping(&self) -> bool {
        self.soft.is_cancelled()
    }

    /// Resolves when the end is due now, whatever is under way.
    pub async fn ending_now(&self) {
        self.hard.cancelled().await;
    }

    /// Runs a task that the end waits for; it should end soon after [`Lifecycle::stopping`].
    pub fn spawn<F>(&self, task: F) -> tokio::task::JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        self.tasks.spawn(task)
    }

    /// Waits for every task after the end was asked for. False: the grace was over, or a second signal came, and
    /// tasks were still running.
    pub async fn ended(&self, grace: Duration) -> bool {
        self.stopping().await;
        self.tasks.close();
        tokio::select! {
            biased;
            () = self.tasks.wait() => true,
            () = self.hard.cancelled() => false,
            () = tokio::time::sleep(grace) => {
                self.hard.cancel();
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_first_signal_is_soft_and_the_second_hard() {
        let life = Lifecycle::default();
        life.signal();
        assert!(life.is_stopping() && !life.hard.is_cancelled());
        life.signal();
        assert!(life.hard.is_cancelled());
    }

    #[tokio::test]
    async fn the_end_waits_for_tasks() {
        let life = Lifecycle::default();
        let own = life.clone();
        let task = life.spawn(async move {
            own.stopping().await;
            7
        });
        life.stop();
        assert!(life.ended(Duration::from_mins(1)).await);
        assert_eq!(task.await.unwrap(), 7);
    }

    #[tokio::test(start_paused = true)]
    async fn the_grace_bounds_the_wait_and_makes_the_end_hard() {
        let life = Lifecycle::default();
        life.spawn(std::future::pending::<()>());
        life.stop();
        assert!(!life.ended(Duration::from_secs(10)).await);
        assert!(life.hard.is_cancelled());
    }
}
