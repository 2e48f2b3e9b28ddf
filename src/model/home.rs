//! Home records: what has to be kept in one place and is no run. They lie in the store beside the runs, under ids that
//! no caller can give to a run, and go through the same lanes: loaded, decided, committed by comparing.
//!
//! ```text
//! downbeat.permits.HASH    who holds, and who waits for, a slot of one concurrency key      [`Semaphore`]
//! downbeat.rate.HASH       when the next start under one rate key may be                    [`Bucket`]
//! downbeat.schedule.NAME   a schedule                                                       [`ScheduleState`]
//! downbeat.schedules       the names of all schedules                                       [`ScheduleNames`]
//! ```
//!
//! To add a kind: its state here, its form in `record::homes`, its decisions in `engine::homes`, its commands in
//! [`super::command::HomeCommand`].

use super::ids::{RunId, TaskPath};
use super::json;
use super::outbox::Outbox;
use super::schedule::{ScheduleName, ScheduleState};
use super::time::Timestamp;
use std::collections::BTreeMap;

/// A home record, whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Home {
    /// Slots of a concurrency key.
    Semaphore(Semaphore),
    /// Starts under a rate key.
    Bucket(Bucket),
    /// A schedule.
    Schedule(Box<ScheduleState>),
    /// The names of all schedules.
    ScheduleNames(ScheduleNames),
}

/// Kinds of home records, by what their ids say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HomeKind {
    /// See [`Semaphore`].
    Semaphore,
    /// See [`Bucket`].
    Bucket,
    /// See [`ScheduleState`].
    Schedule,
    /// See [`ScheduleNames`].
    ScheduleNames,
}

const PERMITS: &str = "downbeat.permits.";
const RATE: &str = "downbeat.rate.";
pub(super) const SCHEDULE: &str = "downbeat.schedule.";
const SCHEDULES: &str = "downbeat.schedules";

impl RunId {
    /// What every id of a home record begins with.
    pub const RESERVED: &str = "downbeat.";

    /// Whether this is the id of a home record, which no run may have.
    pub fn is_reserved(&self) -> bool {
        self.as_str().starts_with(Self::RESERVED)
    }

    /// The kind of the home record of this id; none for runs, and for kinds that this version does not know.
    pub fn home_kind(&self) -> Option<HomeKind> {
        let id = self.as_str();
        if id == SCHEDULES {
            return Some(HomeKind::ScheduleNames);
        }
        let kinds =
            [(PERMITS, HomeKind::Semaphore), (RATE, HomeKind::Bucket), (SCHEDULE, HomeKind::Schedule)];
        kinds.into_iter().find(|(prefix, _)| id.starts_with(prefix)).map(|(_, kind)| kind)
    }
}

/// The home of a key of any text: its digest, as ids are bounded.
fn of_key(prefix: &str, key: &str) -> RunId {
    let digest = u128::from_be_bytes(json::digest(&[key.as_bytes()]));
    // Hexadecimal digits behind a fixed prefix are a name always.
    RunId::new(&format!("{prefix}{digest:032x}")).unwrap_or_else(|_| RunId::generate(Timestamp(0), 0))
}

/// Who holds, and who waits for, a slot of one concurrency key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Semaphore {
    /// The key, for people.
    pub key: String,
    /// Slots, as the last who asked has it.
    pub limit: u32,
    /// Those that have a slot.
    pub holders: BTreeMap<Claim, Held>,
    /// Those that wait, in the order in which they will be served: by place (older runs first), then by arrival.
    pub waiters: BTreeMap<(i64, u32), (Claim, TaskPath)>,
    /// Number of the last arrival.
    pub arrivals: u32,
    /// Grants on their way.
    pub outbox: Outbox<Claim>,
    /// When those that have held a slot for long are asked whether they still do.
    pub ask_at: Timestamp,
}

/// Names one claim to a slot.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Claim {
    /// Whose.
    pub run: RunId,
    /// Number of the message that asked for it.
    pub ticket: u32,
}

/// A slot that is held.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    /// By this task.
    pub task: TaskPath,
    /// Since when.
    pub since: Timestamp,
    /// Number of the message that granted it.
    pub grant: u32,
}

impl Semaphore {
    /// The home of a key.
    pub fn home(key: &str) -> RunId {
        of_key(PERMITS, key)
    }
}

/// When the next start under one rate key may be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bucket {
    /// The key, for people.
    pub key: String,
    /// When all that was granted would have been, one after the other at an even pace.
    pub paid_until: Timestamp,
}

impl Bucket {
    /// The home of a key.
    pub fn home(key: &str) -> RunId {
        of_key(RATE, key)
    }
}

/// The names of all schedules, so that they can be listed. A schedule puts itself here once it exists; one that is gone
/// may be here still, and is taken out by whoever finds that.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ScheduleNames {
    /// When each was created, which tells it from an earlier or later one of its name.
    pub created: BTreeMap<ScheduleName, Timestamp>,
}

impl ScheduleNames {
    /// Schedules there may be.
    pub const MAX: usize = 10_000;

    /// The one record of this kind.
    pub fn home() -> RunId {
        // A name always.
        RunId::new(SCHEDULES).unwrap_or_else(|_| RunId::generate(Timestamp(0), 0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn homes_are_told_from_runs_by_their_ids() {
        assert_eq!(Semaphore::home("a b/ä").home_kind(), Some(HomeKind::Semaphore));
        assert_eq!(Bucket::home("").home_kind(), Some(HomeKind::Bucket));
        assert_eq!(ScheduleName::new("s").unwrap().home().home_kind(), Some(HomeKind::Schedule));
        assert_eq!(ScheduleNames::home().home_kind(), Some(HomeKind::ScheduleNames));
        assert_ne!(Semaphore::home("a"), Semaphore::home("b"));
        let run = RunId::new("downbeat-1").unwrap();
        assert!(!run.is_reserved() && run.home_kind().is_none());
        let later = RunId::new("downbeat.something.x").unwrap();
        assert!(later.is_reserved() && later.home_kind().is_none());
    }
}
