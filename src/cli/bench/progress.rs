//! The one line that says how it goes: written over itself on a terminal, otherwise one a second.

use super::stats::{ms, percentile};
use crate::cli::output;
use std::io::{IsTerminal as _, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use tokio::time::Instant;

/// How often [`Progress::tell`] is to be called.
pub(super) const EVERY: Duration = Duration::from_secs(1);

/// What was counted so far, and what since the line before.
#[derive(Debug)]
pub(super) struct Progress {
    tasks_per_run: u32,
    began: Instant,
    told: Instant,
    /// Starts acknowledged; counted by whoever submits.
    pub(super) submitted: Arc<AtomicU32>,
    finished: u32,
    finished_before: u32,
    /// Of the events since the line before, from commit to arrival in µs.
    delays: Vec<u64>,
    terminal: bool,
}

impl Progress {
    pub(super) fn new(tasks_per_run: u32) -> Self {
        let now = Instant::now();
        Self {
            tasks_per_run,
            began: now,
            told: now,
            submitted: Arc::default(),
            finished: 0,
            finished_before: 0,
            delays: Vec::new(),
            terminal: std::io::stderr().is_terminal(),
        }
    }

    /// A run has finished, and its event was under way for so many µs.
    pub(super) fn finished(&mut self, delay: u64) {
        self.finished += 1;
        self.delays.push(delay);
    }

    /// Says how it goes.
    pub(super) fn tell(&mut self) {
        let line = self.line(Instant::now());
        if self.terminal {
            // Over the line before, whose rest is cleared; a terminal that is gone misses nothing.
            let _ = write!(std::io::stderr().lock(), "\r{line}\x1b[K");
        } else {
            output::note(&line);
        }
    }

    /// Leaves the line as it is; what comes next begins below.
    pub(super) fn end(&mut self) {
        self.tell();
        if self.terminal {
            output::note("");
        }
    }

    fn line(&mut self, now: Instant) -> String {
        let seconds = now.duration_since(self.told).as_secs_f64();
        let tasks = f64::from(self.finished - self.finished_before) * f64::from(self.tasks_per_run);
        let rate = if seconds > 0.0 { tasks / seconds } else { 0.0 };
        self.delays.sort_unstable();
        let delay =
            percentile(&self.delays, 0.99).map_or_else(|| "–".to_owned(), |us| format!("{:.1} ms", ms(us)));
        self.told = now;
        self.finished_before = self.finished;
        self.delays.clear();
        format!(
            "{:6.1} s  {:>8} runs submitted  {:>8} finished  {rate:>8.0} tasks/s  event p99 {delay}",
            now.duration_since(self.began).as_secs_f64(),
            self.submitted.load(Ordering::Relaxed),
            self.finished,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_counts_what_came_since_the_one_before() {
        let mut progress = Progress::new(9);
        progress.submitted.store(500, Ordering::Relaxed);
        for delay in 1..=200 {
            progress.finished(delay * 1_000);
        }
        let began = progress.began;
        let line = progress.line(began + Duration::from_secs(2));
        assert_eq!(
            line,
            "   2.0 s       500 runs submitted       200 finished       900 tasks/s  event p99 198.0 ms"
        );
        let line = progress.line(began + Duration::from_secs(3));
        assert_eq!(
            line,
            "   3.0 s       500 runs submitted       200 finished         0 tasks/s  event p99 –"
        );
    }
}
