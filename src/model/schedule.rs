//! A schedule: what starts runs of a workflow at times of a calendar, and what is known of what it has started.
//!
//! ```text
//! slot      one time at which the schedule is due; its run is named `name.20261201T020000Z`
//! firing    what became of a slot (or of several left out together): one event, `schedule.fired` or `schedule.skipped`
//! ```
//!
//! Invariants
//! - A [`Definition`] that exists is valid: [`Asked::check`] is the way to one.
//! - Every list of a [`ScheduleState`] has a limit, so that its record stays small.
//!
//! To add a setting: a field of [`Asked`] and [`Definition`], its check, its number in `record::schedule`, the doors.

use super::cron::{Calendar, Cron, Zone};
use super::error::Fault;
use super::home::SCHEDULE;
use super::ids::{InvalidName, RunId, WorkflowName};
use super::nearest::did_you_mean;
use super::outbox::{Answer, Outbox, StartFor};
use super::payload::Payload;
use super::time::{Span, Timestamp};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;

/// Most patterns of one schedule.
pub const CRONS_MAX: usize = 10;
/// Most missed slots that are made up for, and how many if nothing is said.
pub const CATCH_UP_MAX: u32 = 1_000;
/// How many missed slots are made up for if nothing is said.
pub const CATCH_UP_DEFAULT: u32 = 100;
/// Most slots that wait for their turn; more are skipped.
pub const QUEUE_MAX: usize = 1_000;
/// Most slots of one backfill, and of all that have not been started yet.
pub const BACKFILL_MAX: usize = 1_000;
/// Most runs asked for by hand that wait for their turn.
pub const MANUAL_MAX: usize = 100;
/// Most runs of one schedule that are open at once, with overlap `allow`; more slots wait.
pub const OPEN_MAX: usize = 1_000;
/// How many firings are remembered.
pub const FIRINGS_MAX: usize = 50;
/// Starts that are on their way at once: an outage is not followed by a storm.
pub const STARTS_MAX: usize = 16;
/// A slot this late is still on time.
pub const GRACE: Span = Span::secs(10);
/// Longest description, in characters.
pub const DESCRIPTION_MAX: usize = 1_000;

/// The name of a schedule: as of a workflow, but at most 100 characters, so that ids of its runs are ids.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ScheduleName(RunId);

impl ScheduleName {
    /// Most characters.
    pub const MAX: usize = 100;

    /// Takes `text` if it follows the rule.
    ///
    /// # Errors
    /// The rule, and what stood there.
    pub fn new(text: &str) -> Result<Self, InvalidName> {
        match RunId::new(text) {
            Ok(name) if text.len() <= Self::MAX && !name.is_reserved() => Ok(Self(name)),
            _ => Err(InvalidName {
                what: "schedule name",
                got: text.chars().take(64).collect(),
                rule: "a letter or digit, then up to 99 letters, digits, '.', '_' or '-'; not \"downbeat.\" first",
            }),
        }
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }

    /// The record of the schedule.
    pub fn home(&self) -> RunId {
        self.id(&format!("{SCHEDULE}{self}"))
    }

    /// The schedule whose record this is.
    pub fn of_home(home: &RunId) -> Option<Self> {
        Self::new(home.as_str().strip_prefix(SCHEDULE)?).ok()
    }

    /// The id of the run of a slot: `name.20261201T020000Z`.
    pub fn run_of(&self, slot: Timestamp) -> RunId {
        self.run(&slot_text(slot))
    }

    /// The id of a run asked for by hand: a new one, or the one of a request.
    pub fn run_by_hand(&self, request: Option<&str>, now: Timestamp, random: u128) -> RunId {
        match request {
            None => self.run(&format!("m{}", RunId::generate(now, random))),
            Some(id) if id.len() <= 24 => self.run(&format!("r-{id}")),
            Some(id) => {
                let digest = u128::from_be_bytes(super::json::digest(&[id.as_bytes()]));
                self.run(&format!("r-{}", RunId::generate(Timestamp(0), digest)))
            }
        }
    }

    fn run(&self, rest: &str) -> RunId {
        self.id(&format!("{self}.{rest}"))
    }

    fn id(&self, text: &str) -> RunId {
        // It fits, by the length of a name; if it ever did not, the name alone is an id too.
        RunId::new(text).unwrap_or_else(|_| self.0.clone())
    }
}

impl fmt::Display for ScheduleName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// `20261201T020000Z`.
pub fn slot_text(slot: Timestamp) -> String {
    jiff::Timestamp::from_second(slot.0.div_euclid(1_000_000))
        .map(|t| t.strftime("%Y%m%dT%H%M%SZ").to_string())
        .unwrap_or_default()
}

macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $code:literal, $word:literal;)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name { $($(#[$vdoc])* $variant,)* }
        impl $name {
            /// All, in the order of their numbers.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];
            /// As users write it.
            pub fn name(self) -> &'static str { match self { $(Self::$variant => $word,)* } }
            /// As it is stored.
            pub fn code(self) -> u32 { match self { $(Self::$variant => $code,)* } }
            /// From what is stored.
            pub fn from_code(code: u32) -> Option<Self> {
                Self::ALL.iter().copied().find(|v| v.code() == code)
            }
            /// From what users write.
            pub fn from_name(name: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|v| v.name() == name)
            }
        }
    };
}

words! {
    /// What happens to a slot while a run of the schedule is open.
    Overlap {
        /// It is skipped.
        Skip = 1, "skip";
        /// It waits for its turn.
        Queue = 2, "queue";
        /// It is started beside the other.
        Allow = 3, "allow";
    }
}

words! {
    /// What happens to slots that passed while no server was there.
    CatchUp {
        /// They are skipped.
        None = 1, "none";
        /// The last of them is started.
        Latest = 2, "latest";
        /// They are started in order, the newest of them up to a limit.
        All = 3, "all";
    }
}

words! {
    /// What became of a slot.
    Fate {
        /// Its run was started.
        Started = 1, "started";
        /// It was left out.
        Skipped = 2, "skipped";
        /// Its run could not be started.
        Refused = 3, "refused";
    }
}

words! {
    /// Why a slot was left out.
    SkipReason {
        /// A run of the schedule was open.
        Overlap = 1, "overlap";
        /// It passed while no server was there, and `catch_up` does not ask for it.
        Missed = 2, "missed";
        /// The schedule was paused.
        Paused = 3, "paused";
        /// Too many wait already.
        QueueFull = 4, "queue_full";
    }
}

/// What a schedule is to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Definition {
    /// Of which workflow runs are started.
    pub workflow: WorkflowName,
    /// Which version; none is the newest at that time.
    pub version: Option<u32>,
    /// Their input, a payload of the schedule.
    pub input: Payload,
    /// Their tags, over those of the document.
    pub tags: BTreeMap<String, String>,
    /// Their priority in place of that of the document.
    pub priority: Option<i32>,
    /// When: one pattern at least.
    pub cron: Vec<String>,
    /// Where: an IANA name.
    pub time_zone: String,
    /// While a run is open.
    pub overlap: Overlap,
    /// After an outage.
    pub catch_up: CatchUp,
    /// How many `catch_up: all` starts at most.
    pub catch_up_limit: u32,
    /// For people.
    pub description: Option<String>,
}

impl Definition {
    /// When it is due; none if the zone is no longer known.
    pub fn calendar(&self) -> Option<Calendar> {
        let crons = self.cron.iter().map(|c| Cron::parse(c)).collect::<Result<_, _>>().ok()?;
        Some(Calendar { crons, zone: Zone::named(&self.time_zone).ok()? })
    }
}

/// A definition as somebody wrote it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Asked {
    /// See [`Definition`].
    pub workflow: String,
    /// See [`Definition`].
    pub version: Option<i64>,
    /// JSON text; none is null.
    pub input: Option<Bytes>,
    /// See [`Definition`].
    pub tags: BTreeMap<String, String>,
    /// See [`Definition`].
    pub priority: Option<i64>,
    /// See [`Definition`].
    pub cron: Vec<String>,
    /// UTC if nothing is said.
    pub time_zone: Option<String>,
    /// `skip` if nothing is said.
    pub overlap: Option<String>,
    /// `latest` if nothing is said.
    pub catch_up: Option<String>,
    /// See [`CATCH_UP_DEFAULT`].
    pub catch_up_limit: Option<i64>,
    /// See [`Definition`].
    pub description: Option<String>,
    /// None leaves it as it is; a new one is not paused.
    pub paused: Option<bool>,
}

impl Asked {
    /// The definition, without its input. Tags, and the size of the input, are checked at the door, as of any start.
    ///
    /// # Errors
    /// All faults, each with its path.
    pub fn check(&self) -> Result<Definition, Vec<Fault>> {
        let mut faults = Vec::new();
        let mut fault = |path: &str, message: String| {
            faults.push(Fault { path: path.to_owned(), line: None, message });
        };
        let workflow = if self.workflow.is_empty() {
            fault("workflow", "is missing; name the workflow to start".into());
            None
        } else {
            WorkflowName::new(&self.workflow).map_err(|e| fault("workflow", e.to_string())).ok()
        };
        if self.version.is_some_and(|v| !(1..=i64::from(u32::MAX)).contains(&v)) {
            fault("version", "is a whole number from 1".into());
        }
        if self.priority.is_some_and(|p| !(-100..=100).contains(&p)) {
            fault("priority", "is a whole number from -100 to 100".into());
        }
        if let Some(Err(message)) = self.input.as_deref().filter(|i| !i.is_empty()).map(super::json::check) {
            fault("input", message);
        }
        if self.cron.is_empty() {
            fault("cron", "is missing; write a pattern such as \"0 2 * * *\"".into());
        }
        if self.cron.len() > CRONS_MAX {
            fault("cron", format!("has {} patterns; at most {CRONS_MAX} are taken", self.cron.len()));
        }
        for (i, text) in self.cron.iter().take(CRONS_MAX).enumerate() {
            let path = if self.cron.len() == 1 { "cron".to_owned() } else { format!("cron[{i}]") };
            for message in Cron::parse(text).err().into_iter().flatten() {
                fault(&path, message);
            }
        }
        let zone = Zone::named(self.time_zone.as_deref().unwrap_or("UTC"))
            .map_err(|message| fault("time_zone", message))
            .ok();
        let overlap = match self.overlap.as_deref() {
            None => Some(Overlap::Skip),
            Some(word) => Overlap::from_name(word).or_else(|| {
                fault("overlap", unknown_word(word, Overlap::ALL.iter().map(|v| v.name())));
                None
            }),
        };
        let catch_up = match self.catch_up.as_deref() {
            None => Some(CatchUp::Latest),
            Some(word) => CatchUp::from_name(word).or_else(|| {
                fault("catch_up", unknown_word(word, CatchUp::ALL.iter().map(|v| v.name())));
                None
            }),
        };
        let limit = self.catch_up_limit.unwrap_or(i64::from(CATCH_UP_DEFAULT));
        if !(1..=i64::from(CATCH_UP_MAX)).contains(&limit) {
            fault("catch_up_limit", format!("is a whole number from 1 to {CATCH_UP_MAX}"));
        }
        if self.description.as_ref().is_some_and(|d| d.chars().count() > DESCRIPTION_MAX) {
            fault("description", format!("has more than {DESCRIPTION_MAX} characters"));
        }
        match (workflow, zone, overlap, catch_up) {
            (Some(workflow), Some(zone), Some(overlap), Some(catch_up)) if faults.is_empty() => {
                Ok(Definition {
                    workflow,
                    version: self.version.map(|v| v as u32),
                    input: Payload::Null,
                    tags: self.tags.clone(),
                    priority: self.priority.map(|p| p as i32),
                    cron: self.cron.iter().map(|c| c.trim().to_owned()).collect(),
                    time_zone: zone.name().to_owned(),
                    overlap,
                    catch_up,
                    catch_up_limit: limit as u32,
                    description: self.description.clone(),
                })
            }
            _ => Err(faults),
        }
    }
}

fn unknown_word(word: &str, known: impl Iterator<Item = &'static str> + Clone) -> String {
    let shown: String = word.chars().take(40).collect();
    let near = did_you_mean(word, known.clone());
    format!("'{shown}' is not known{near}; write one of {}", known.collect::<Vec<_>>().join(", "))
}

/// A schedule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScheduleState {
    /// Its name.
    pub name: ScheduleName,
    /// When it was created; with the name it tells this schedule from a later one of that name.
    pub created_at: Timestamp,
    /// When its definition was last changed.
    pub updated_at: Timestamp,
    /// Rises with every change of the definition, from 1.
    pub revision: u32,
    /// What it is to do.
    pub definition: Definition,
    /// Since when it starts nothing by itself.
    pub paused_since: Option<Timestamp>,
    /// The first slot that was not looked at yet; none if it is never due again.
    pub next: Option<Timestamp>,
    /// Slots that wait for their turn, in order.
    pub queued: VecDeque<Timestamp>,
    /// Slots of backfills that wait for their turn, behind all others.
    pub backfill: VecDeque<Timestamp>,
    /// Runs asked for by hand that wait for their turn, before all others, with the time they were asked for.
    pub manual: VecDeque<(RunId, Timestamp)>,
    /// Runs that were started, or are being started, and have not ended, with their slot.
    pub open: BTreeMap<RunId, Timestamp>,
    /// When open runs are asked whether they still are.
    pub ask_at: Option<Timestamp>,
    /// What became of the last slots, oldest first.
    pub firings: VecDeque<Firing>,
    /// The number of the next firing, and of its event.
    pub told: u32,
    /// What others have still to be told.
    pub outbox: Outbox<ScheduleErrand>,
    /// Time in a schedule never goes back below this.
    pub last_time: Timestamp,
}

/// What a schedule tells others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ScheduleErrand {
    /// Starts a run.
    Start(StartFor),
    /// That it exists; to the list of all.
    List,
    /// Whether a run is still open; what has heard nothing for long asks, as a store that has lost its tail may have
    /// lost the answer.
    IsOpen,
}

/// What became of a slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Firing {
    /// One more than that of the firing before; never used again.
    pub number: u32,
    /// When this was decided.
    pub time: Timestamp,
    /// The slot, or the first of several.
    pub slot: Timestamp,
    /// The last of several slots.
    pub until: Option<Timestamp>,
    /// How many slots this tells of; no more than [`Firing::COUNT_MAX`] are counted.
    pub count: u32,
    /// The run, if there is one.
    pub run: Option<RunId>,
    /// What became of it.
    pub fate: Fate,
    /// Why it was skipped.
    pub reason: Option<SkipReason>,
    /// Why it was refused: a stable word, and text for people.
    pub error: Option<(String, String)>,
}

impl Firing {
    /// Slots left out together are counted up to this.
    pub const COUNT_MAX: u32 = 10_000;
}

/// What can be asked of a schedule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ScheduleCommand {
    /// Create it, or give it another definition.
    Put {
        /// Its name.
        name: ScheduleName,
        /// Its definition; the input in it is not looked at.
        definition: Box<Definition>,
        /// The input: JSON text; none is null.
        input: Option<Bytes>,
        /// None leaves it as it is.
        paused: Option<bool>,
    },
    /// Forget it. Runs go on.
    Delete,
    /// Start nothing by itself.
    Pause,
    /// Go on. Slots of the pause are skipped.
    Resume,
    /// Start a run now, as far as overlap allows.
    RunNow {
        /// Its id; one that is known is not started again.
        run: RunId,
    },
    /// Start runs of past slots, those from `from` on and before `to`, one after the other unless overlap is `allow`.
    Backfill {
        /// First.
        from: Timestamp,
        /// Behind the last.
        to: Timestamp,
        /// Slots whose runs exist; they are left out.
        exist: BTreeSet<Timestamp>,
    },
    /// It may be time for something.
    Wake,
    /// A message of it was taken, or not.
    Answered {
        /// Its number in the outbox.
        sequence: u32,
        /// How.
        answer: Answer,
    },
    /// A run it has started has ended.
    Ended {
        /// Which.
        run: RunId,
    },
}

/// How a command was taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ScheduleOutcome {
    /// It was created.
    Created,
    /// It was changed, or is done.
    Done,
    /// Nothing was to be done.
    Unchanged,
    /// `RunNow`: it is on its way, now or before.
    Starting,
    /// `RunNow`: it waits for its turn.
    Queued,
    /// `Backfill`: so many slots wait for their turn.
    Backfilled(u32),
}

/// Why a command changed nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ScheduleRefusal {
    /// There is none.
    #[error("the schedule does not exist")]
    NoSchedule,
    /// `RunNow` with overlap `skip` while a run is open.
    #[error("run {0} is open, and overlap is skip")]
    Busy(RunId),
    /// `RunNow`: too many wait.
    #[error("{MANUAL_MAX} runs asked for by hand wait already")]
    TooManyWait,
    /// `Backfill`: too many slots.
    #[error("the range has {count}{} slots, with {waiting} that wait already; at most {BACKFILL_MAX} may", if *more { " or more" } else { "" })]
    TooManySlots {
        /// So many.
        count: u32,
        /// Or more.
        more: bool,
        /// Of earlier backfills.
        waiting: u32,
    },
    /// `Backfill` beyond now.
    #[error("the range ends after now; only what has passed can be made up for")]
    InFuture,
    /// `Backfill` of nothing.
    #[error("the range is empty: from must be before to")]
    EmptyRange,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::instant;

    fn asked() -> Asked {
        Asked { workflow: "report".into(), cron: vec!["0 2 * * *".into()], ..Asked::default() }
    }

    #[test]
    fn names_leave_room_for_the_ids_of_runs() {
        let slot = instant::parse("2026-12-01T02:00:00Z").unwrap();
        let name = ScheduleName::new("nightly").unwrap();
        assert_eq!(name.run_of(slot).as_str(), "nightly.20261201T020000Z");
        assert_eq!(name.run_by_hand(Some("7"), slot, 1).as_str(), "nightly.r-7");
        assert_eq!(name.run_by_hand(None, slot, 1).as_str().len(), "nightly.m".len() + 24);
        let long = ScheduleName::new(&"n".repeat(100)).unwrap();
        assert!(long.run_of(slot).as_str().ends_with(".20261201T020000Z"));
        let request = |text: &str| long.run_by_hand(Some(text), slot, 1).to_string();
        assert!(request(&"x".repeat(24)).ends_with('x'));
        assert_eq!(request(&"x".repeat(128)).len(), 127);
        assert_ne!(request(&"x".repeat(128)), request(&"x".repeat(127)));
        for bad in ["", "-a", "a b", "downbeat.x", &"n".repeat(101)] {
            assert!(ScheduleName::new(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn what_is_not_said_has_a_default() {
        let definition = asked().check().unwrap();
        assert_eq!(definition.time_zone, "UTC");
        assert_eq!(
            (definition.overlap, definition.catch_up, definition.catch_up_limit),
            (Overlap::Skip, CatchUp::Latest, 100)
        );
        assert!(definition.calendar().is_some());
    }

    #[test]
    fn all_faults_are_told_at_once() {
        let wrong = Asked {
            workflow: "a b".into(),
            version: Some(0),
            input: Some(Bytes::from_static(b"{")),
            priority: Some(101),
            cron: vec!["0 0 30 2 *".into(), "60 25 * * *".into()],
            time_zone: Some("Berlin".into()),
            overlap: Some("skipp".into()),
            catch_up: Some("last".into()),
            catch_up_limit: Some(1_001),
            description: Some("d".repeat(1_001)),
            ..Asked::default()
        };
        let faults = wrong.check().unwrap_err();
        let paths: Vec<&str> = faults.iter().map(|f| f.path.as_str()).collect();
        assert_eq!(
            paths,
            [
                "workflow",
                "version",
                "priority",
                "input",
                "cron[0]",
                "cron[1]",
                "cron[1]",
                "time_zone",
                "overlap",
                "catch_up",
                "catch_up_limit",
                "description"
            ]
        );
        let message = |path: &str| faults.iter().find(|f| f.path == path).map(|f| f.message.clone()).unwrap();
        assert!(message("overlap").contains("(did you mean 'skip'?); write one of skip, queue, allow"));
        assert!(message("time_zone").contains("(did you mean 'Europe/Berlin'?)"));
        let empty = Asked::default().check().unwrap_err();
        assert_eq!(empty.iter().map(|f| f.path.as_str()).collect::<Vec<_>>(), ["workflow", "cron"]);
        let many = Asked { cron: vec!["@daily".into(); 11], ..asked() };
        assert!(many.check().unwrap_err()[0].message.contains("at most 10"));
    }
}
