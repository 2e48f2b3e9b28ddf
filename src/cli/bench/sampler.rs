//! Processor time and memory of the processes, four times a second, from `/proc`: nobody is asked, so nobody is held up.

use crate::model::time::{Clock as _, SystemClock};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::MissedTickBehavior;

const EVERY: Duration = Duration::from_millis(250);

/// The kinds of processes, in the order of [`Sample::used`].
pub(super) const KINDS: [&str; 4] = ["server", "worker", "redis", "driver"];

/// What all processes of a kind together have used.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Used {
    /// Processor time, in seconds.
    pub(super) cpu: f64,
    /// Resident memory, in bytes.
    pub(super) rss: u64,
}

/// A look at all processes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Sample {
    /// In µs since the epoch.
    pub(super) at: i64,
    /// By kind; none where there is no such process of ours.
    pub(super) used: [Option<Used>; 4],
}

/// Looks until it is stopped.
#[derive(Debug)]
pub(super) struct Sampler {
    processes: Arc<[(&'static str, u32)]>,
    samples: Arc<Mutex<Vec<Sample>>>,
    task: tokio::task::JoinHandle<()>,
}

impl Sampler {
    /// Of these processes, by kind and id, and of this one.
    pub(super) fn start(mut processes: Vec<(&'static str, u32)>) -> Self {
        processes.push(("driver", std::process::id()));
        let processes: Arc<[_]> = processes.into();
        let samples = Arc::new(Mutex::new(Vec::new()));
        let (into, of) = (Arc::clone(&samples), Arc::clone(&processes));
        let task = tokio::spawn(async move {
            let mut ticks = tokio::time::interval(EVERY);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                ticks.tick().await;
                into.lock().push(look(&of));
            }
        });
        Self { processes, samples, task }
    }

    /// All samples, with a last one.
    pub(super) fn stop(self) -> Vec<Sample> {
        self.task.abort();
        let mut samples = std::mem::take(&mut *self.samples.lock());
        samples.push(look(&self.processes));
        samples
    }
}

fn look(processes: &[(&'static str, u32)]) -> Sample {
    let at = SystemClock.now().0;
    let used = KINDS.map(|kind| {
        let of_kind = processes.iter().filter(|(name, _)| *name == kind);
        of_kind
            .filter_map(|(_, pid)| used(*pid))
            .reduce(|a, b| Used { cpu: a.cpu + b.cpu, rss: a.rss + b.rss })
    });
    Sample { at, used }
}

/// None if the process has ended, or where the system has no `/proc`.
fn used(pid: u32) -> Option<Used> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name may hold anything, so count from behind it: fields 14, 15 and 24 of proc(5).
    let fields: Vec<_> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let number = |n: usize| fields.get(n)?.parse::<u64>().ok();
    let cpu = (number(11)? + number(12)?) as f64 / rustix::param::clock_ticks_per_second() as f64;
    Some(Used { cpu, rss: number(21)? * rustix::param::page_size() as u64 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_of_a_kind_are_added_and_missing_ones_are_none() {
        let this = std::process::id();
        let sample = look(&[("worker", this), ("worker", this), ("server", this), ("redis", u32::MAX)]);
        let [server, worker, redis, driver] = sample.used;
        assert!(worker.unwrap().rss > server.unwrap().rss && server.unwrap().rss > 1 << 20);
        assert_eq!((redis, driver), (None, None));
    }
}
