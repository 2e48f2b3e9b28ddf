//! The stored form of a schedule. A golden file holds it still.
//!
//! ```text
//! record  prefix 24 B ‖ format u8 = 4 ‖ ( number u8 ‖ value )* ‖ 00
//! ```
//!
//! As of a run: numbered fields in rising order, each only if it differs from its default; instants are told as the
//! distance from `created_at`, those of lists from the one before. What is not known is
//! [`UnreadableRecord`](super::UnreadableRecord).

use super::wire::{Reader, Writer, bad, put_bytes, put_i64, put_u32, put_u64};
use super::{Result, instant, payload, put_instant, put_payload};
use crate::model::ids::{RunId, WorkflowName};
use crate::model::outbox::{Message, Origin, StartFor};
use crate::model::payload::Payload;
use crate::model::schedule::{
    CatchUp, Definition, Fate, Firing, Overlap, ScheduleErrand, ScheduleName, ScheduleState, SkipReason,
};
use crate::model::time::Timestamp;
use std::collections::{BTreeMap, VecDeque};

/// Numbers of the fields. Never reused.
mod field {
    pub(super) const END: u8 = 0;
    pub(super) const NAME: u8 = 1;
    /// Stands before every other instant, since they count from it.
    pub(super) const CREATED_AT: u8 = 2;
    pub(super) const UPDATED_AT: u8 = 3;
    pub(super) const REVISION: u8 = 4;
    pub(super) const WORKFLOW: u8 = 5;
    pub(super) const VERSION: u8 = 6;
    pub(super) const INPUT: u8 = 7;
    pub(super) const TAGS: u8 = 8;
    pub(super) const PRIORITY: u8 = 9;
    pub(super) const CRON: u8 = 10;
    pub(super) const TIME_ZONE: u8 = 11;
    pub(super) const OVERLAP: u8 = 12;
    pub(super) const CATCH_UP: u8 = 13;
    pub(super) const CATCH_UP_LIMIT: u8 = 14;
    pub(super) const DESCRIPTION: u8 = 15;
    pub(super) const PAUSED_SINCE: u8 = 16;
    pub(super) const NEXT: u8 = 17;
    pub(super) const QUEUED: u8 = 18;
    pub(super) const BACKFILL: u8 = 19;
    pub(super) const MANUAL: u8 = 20;
    pub(super) const OPEN: u8 = 21;
    pub(super) const TOLD: u8 = 22;
    pub(super) const FIRINGS: u8 = 23;
    pub(super) const LAST_MESSAGE: u8 = 24;
    pub(super) const MESSAGES: u8 = 25;
    pub(super) const LAST_TIME: u8 = 26;
    pub(super) const ASK_AT: u8 = 27;
}

/// Parts of a firing.
mod part {
    pub(super) const UNTIL: u8 = 1;
    pub(super) const COUNT: u8 = 2;
    pub(super) const RUN: u8 = 4;
    /// The run is the one of its slot.
    pub(super) const RUN_OF_SLOT: u8 = 8;
    pub(super) const REASON: u8 = 16;
    pub(super) const ERROR: u8 = 32;
    pub(super) const ALL: u8 = 63;
}

/// Parts of a start.
mod start {
    pub(super) const VERSION: u8 = 1;
    pub(super) const INPUT: u8 = 2;
    pub(super) const TAGS: u8 = 4;
    pub(super) const PRIORITY: u8 = 8;
    /// It is no start: the list of schedules is told of this one.
    pub(super) const LIST: u8 = 16;
    /// It is no start: a run is asked whether it is open.
    pub(super) const IS_OPEN: u8 = 32;
    pub(super) const ALL: u8 = 15;
}

/// Appends what follows the format.
pub(super) fn put<'v>(out: &mut Writer<'v>, state: &'v ScheduleState) {
    let (zero, d) = (state.created_at, &state.definition);
    put_text(out, field::NAME, state.name.as_str());
    out.push(field::CREATED_AT);
    put_i64(out, zero.0);
    if state.updated_at != zero {
        put_instant(out, field::UPDATED_AT, Some(state.updated_at), zero);
    }
    put_number(out, field::REVISION, state.revision);
    put_text(out, field::WORKFLOW, d.workflow.as_str());
    put_number(out, field::VERSION, d.version.unwrap_or(0));
    if d.input != Payload::Null {
        out.push(field::INPUT);
        put_payload(out, &d.input);
    }
    if !d.tags.is_empty() {
        out.push(field::TAGS);
        put_tags(out, &d.tags);
    }
    if let Some(priority) = d.priority {
        out.push(field::PRIORITY);
        put_i64(out, i64::from(priority));
    }
    out.push(field::CRON);
    put_u64(out, d.cron.len() as u64);
    for cron in &d.cron {
        put_bytes(out, cron.as_bytes());
    }
    put_text(out, field::TIME_ZONE, &d.time_zone);
    put_number(out, field::OVERLAP, d.overlap.code());
    put_number(out, field::CATCH_UP, d.catch_up.code());
    put_number(out, field::CATCH_UP_LIMIT, d.catch_up_limit);
    if let Some(description) = &d.description {
        put_text(out, field::DESCRIPTION, description);
    }
    put_instant(out, field::PAUSED_SINCE, state.paused_since, zero);
    put_instant(out, field::NEXT, state.next, zero);
    put_slots(out, field::QUEUED, &state.queued, zero);
    put_slots(out, field::BACKFILL, &state.backfill, zero);
    if !state.manual.is_empty() {
        out.push(field::MANUAL);
        put_runs(out, state.manual.iter().map(|(r, t)| (r, *t)), state.manual.len(), zero);
    }
    if !state.open.is_empty() {
        out.push(field::OPEN);
        put_runs(out, state.open.iter().map(|(r, t)| (r, *t)), state.open.len(), zero);
    }
    put_number(out, field::TOLD, state.told);
    if !state.firings.is_empty() {
        out.push(field::FIRINGS);
        put_u64(out, state.firings.len() as u64);
        for firing in &state.firings {
            put_firing(out, firing, state);
        }
    }
    put_number(out, field::LAST_MESSAGE, state.outbox.last);
    if !state.outbox.pending.is_empty() {
        out.push(field::MESSAGES);
        put_u64(out, state.outbox.pending.len() as u64);
        for (number, message) in &state.outbox.pending {
            put_u32(out, *number);
            put_message(out, message, zero);
        }
    }
    if state.last_time != zero {
        put_instant(out, field::LAST_TIME, Some(state.last_time), zero);
    }
    put_instant(out, field::ASK_AT, state.ask_at, zero);
    out.push(field::END);
}

/// Reads what follows the format.
pub(super) fn read(r: &mut Reader<'_>) -> Result<ScheduleState> {
    let mut name = None;
    let mut zero = None;
    let mut workflow = None;
    let mut cron = Vec::new();
    let mut time_zone = String::new();
    let (mut overlap, mut catch_up) = (None, None);
    let (mut version, mut input, mut tags, mut priority) = (None, Payload::Null, BTreeMap::new(), None);
    let (mut catch_up_limit, mut description) = (0, None);
    let (mut updated_at, mut last_time, mut paused_since, mut next) = (None, None, None, None);
    let mut ask_at = None;
    let (mut queued, mut backfill, mut manual) = (VecDeque::new(), VecDeque::new(), VecDeque::new());
    let (mut open, mut firings) = (BTreeMap::new(), VecDeque::new());
    let (mut revision, mut told) = (0, 0);
    let mut outbox = crate::model::outbox::Outbox::default();
    let mut before = 0;
    loop {
        let number = r.byte()?;
        if number == field::END {
            break;
        }
        if number <= before {
            return Err(bad(format!("field {number} stands behind field {before}")));
        }
        before = number;
        let from = || zero.ok_or_else(|| bad("an instant stands before the first"));
        match number {
            field::NAME => name = Some(ScheduleName::new(r.text()?).map_err(bad)?),
            field::CREATED_AT => zero = Some(Timestamp(r.i64()?)),
            field::UPDATED_AT => updated_at = Some(instant(r, from()?)?),
            field::REVISION => revision = r.u32()?,
            field::WORKFLOW => workflow = Some(WorkflowName::new(r.text()?).map_err(bad)?),
            field::VERSION => version = Some(r.u32()?),
            field::INPUT => input = payload(r)?,
            field::TAGS => tags = read_tags(r)?,
            field::PRIORITY => priority = Some(i32::try_from(r.i64()?).map_err(bad)?),
            field::CRON => cron = r.list(|r| r.text().map(str::to_owned))?,
            field::TIME_ZONE => r.text()?.clone_into(&mut time_zone),
            field::OVERLAP => overlap = Some(known(r.u32()?, Overlap::from_code)?),
            field::CATCH_UP => catch_up = Some(known(r.u32()?, CatchUp::from_code)?),
            field::CATCH_UP_LIMIT => catch_up_limit = r.u32()?,
            field::DESCRIPTION => description = Some(r.text()?.to_owned()),
            field::PAUSED_SINCE => paused_since = Some(instant(r, from()?)?),
            field::NEXT => next = Some(instant(r, from()?)?),
            field::QUEUED => queued = slots(r, from()?)?,
            field::BACKFILL => backfill = slots(r, from()?)?,
            field::MANUAL => manual = runs(r, from()?)?.into(),
            field::OPEN => open = runs(r, from()?)?.into_iter().collect(),
            field::TOLD => told = r.u32()?,
            field::FIRINGS => {
                let name = name.as_ref().ok_or_else(|| bad("it has no name"))?;
                let zero = from()?;
                let list = r.list(|r| firing(r, name, zero))?;
                let first = u32::try_from(list.len()).ok().and_then(|n| told.checked_sub(n));
                let first = first.ok_or_else(|| bad("it has more firings than it told of"))?;
                firings = (first..).zip(list).map(|(number, f)| Firing { number, ..f }).collect();
            }
            field::LAST_MESSAGE => outbox.last = r.u32()?,
            field::MESSAGES => {
                let zero = from()?;
                outbox.pending = r.list(|r| Ok((r.u32()?, message(r, zero)?)))?.into_iter().collect();
            }
            field::LAST_TIME => last_time = Some(instant(r, from()?)?),
            field::ASK_AT => ask_at = Some(instant(r, from()?)?),
            other => return Err(bad(format!("field {other} of a schedule is not known"))),
        }
    }
    let missing = |what: &str| bad(format!("it has no {what}"));
    let created_at = zero.ok_or_else(|| missing("time of creation"))?;
    Ok(ScheduleState {
        name: name.ok_or_else(|| missing("name"))?,
        created_at,
        updated_at: updated_at.unwrap_or(created_at),
        revision,
        definition: Definition {
            workflow: workflow.ok_or_else(|| missing("workflow"))?,
            version,
            input,
            tags,
            priority,
            cron,
            time_zone,
            overlap: overlap.ok_or_else(|| missing("overlap"))?,
            catch_up: catch_up.ok_or_else(|| missing("catch-up"))?,
            catch_up_limit,
            description,
        },
        paused_since,
        next,
        queued,
        backfill,
        manual,
        open,
        ask_at,
        firings,
        told,
        outbox,
        last_time: last_time.unwrap_or(created_at),
    })
}

fn known<T>(code: u32, read: impl FnOnce(u32) -> Option<T>) -> Result<T> {
    read(code).ok_or_else(|| bad(format!("word {code} of a schedule is not known")))
}

fn put_text(out: &mut Vec<u8>, number: u8, text: &str) {
    out.push(number);
    put_bytes(out, text.as_bytes());
}

fn put_number(out: &mut Vec<u8>, number: u8, value: u32) {
    if value != 0 {
        out.push(number);
        put_u32(out, value);
    }
}

fn put_tags(out: &mut Vec<u8>, tags: &BTreeMap<String, String>) {
    put_u64(out, tags.len() as u64);
    for (k, v) in tags {
        put_bytes(out, k.as_bytes());
        put_bytes(out, v.as_bytes());
    }
}

fn read_tags(r: &mut Reader<'_>) -> Result<BTreeMap<String, String>> {
    Ok(r.list(|r| Ok((r.text()?.to_owned(), r.text()?.to_owned())))?.into_iter().collect())
}

fn put_slots(out: &mut Vec<u8>, number: u8, slots: &VecDeque<Timestamp>, zero: Timestamp) {
    if slots.is_empty() {
        return;
    }
    out.push(number);
    put_u64(out, slots.len() as u64);
    let mut before = zero;
    for slot in slots {
        put_i64(out, slot.0.wrapping_sub(before.0));
        before = *slot;
    }
}

fn slots(r: &mut Reader<'_>, zero: Timestamp) -> Result<VecDeque<Timestamp>> {
    let mut before = zero;
    let list = r.list(|r| {
        before = instant(r, before)?;
        Ok(before)
    })?;
    Ok(list.into())
}

fn put_runs<'r>(
    out: &mut Vec<u8>,
    runs: impl Iterator<Item = (&'r RunId, Timestamp)>,
    count: usize,
    zero: Timestamp,
) {
    put_u64(out, count as u64);
    for (run, at) in runs {
        put_bytes(out, run.as_str().as_bytes());
        put_i64(out, at.0.wrapping_sub(zero.0));
    }
}

fn runs(r: &mut Reader<'_>, zero: Timestamp) -> Result<Vec<(RunId, Timestamp)>> {
    r.list(|r| Ok((RunId::new(r.text()?).map_err(bad)?, instant(r, zero)?)))
}

/// ```text
/// firing  u8: parts   fate   time   slot   until − slot?   count?   run?   reason?   code, message?
/// ```
/// Numbers are not stored: the last firing is the one before `told`.
fn put_firing(out: &mut Vec<u8>, firing: &Firing, state: &ScheduleState) {
    let zero = state.created_at;
    let of_slot = firing.run.as_ref().is_some_and(|r| *r == state.name.run_of(firing.slot));
    let mut parts = 0;
    for (set, flag) in [
        (firing.until.is_some(), part::UNTIL),
        (firing.count != 1, part::COUNT),
        (firing.run.is_some() && !of_slot, part::RUN),
        (of_slot, part::RUN_OF_SLOT),
        (firing.reason.is_some(), part::REASON),
        (firing.error.is_some(), part::ERROR),
    ] {
        if set {
            parts |= flag;
        }
    }
    out.push(parts);
    put_u32(out, firing.fate.code());
    put_i64(out, firing.time.0.wrapping_sub(zero.0));
    put_i64(out, firing.slot.0.wrapping_sub(zero.0));
    if let Some(until) = firing.until {
        put_i64(out, until.0.wrapping_sub(firing.slot.0));
    }
    if firing.count != 1 {
        put_u32(out, firing.count);
    }
    if let Some(run) = firing.run.as_ref().filter(|_| !of_slot) {
        put_bytes(out, run.as_str().as_bytes());
    }
    if let Some(reason) = firing.reason {
        put_u32(out, reason.code());
    }
    if let Some((code, message)) = &firing.error {
        put_bytes(out, code.as_bytes());
        put_bytes(out, message.as_bytes());
    }
}

fn firing(r: &mut Reader<'_>, name: &ScheduleName, zero: Timestamp) -> Result<Firing> {
    let parts = r.byte()?;
    if parts & !part::ALL != 0 || parts & (part::RUN | part::RUN_OF_SLOT) == part::RUN | part::RUN_OF_SLOT {
        return Err(bad(format!("firing parts {parts:#x} are not known")));
    }
    let fate = known(r.u32()?, Fate::from_code)?;
    let time = instant(r, zero)?;
    let slot = instant(r, zero)?;
    let until = if parts & part::UNTIL == 0 { None } else { Some(instant(r, slot)?) };
    let count = if parts & part::COUNT == 0 { 1 } else { r.u32()? };
    let run = match parts & (part::RUN | part::RUN_OF_SLOT) {
        part::RUN => Some(RunId::new(r.text()?).map_err(bad)?),
        part::RUN_OF_SLOT => Some(name.run_of(slot)),
        _ => None,
    };
    let reason = if parts & part::REASON == 0 { None } else { Some(known(r.u32()?, SkipReason::from_code)?) };
    let error =
        if parts & part::ERROR == 0 { None } else { Some((r.text()?.to_owned(), r.text()?.to_owned())) };
    Ok(Firing { number: 0, time, slot, until, count, run, fate, reason, error })
}

/// ```text
/// message  to   u8: parts   ( workflow   version?   input?   tags?   priority?   home   slot )?
/// ```
fn put_message<'v>(out: &mut Writer<'v>, message: &'v Message<ScheduleErrand>, zero: Timestamp) {
    put_bytes(out, message.to.as_str().as_bytes());
    let what = match &message.what {
        ScheduleErrand::Start(start) => start,
        ScheduleErrand::List => return out.push(start::LIST),
        ScheduleErrand::IsOpen => return out.push(start::IS_OPEN),
    };
    let mut parts = 0;
    for (set, flag) in [
        (what.version.is_some(), start::VERSION),
        (what.input != Payload::Null, start::INPUT),
        (!what.tags.is_empty(), start::TAGS),
        (what.priority.is_some(), start::PRIORITY),
    ] {
        if set {
            parts |= flag;
        }
    }
    out.push(parts);
    put_bytes(out, what.workflow.as_str().as_bytes());
    if let Some(version) = what.version {
        put_u32(out, version);
    }
    if what.input != Payload::Null {
        put_payload(out, &what.input);
    }
    if !what.tags.is_empty() {
        put_tags(out, &what.tags);
    }
    if let Some(priority) = what.priority {
        put_i64(out, i64::from(priority));
    }
    // A schedule starts nothing on behalf of a run.
    if let Origin::Schedule { home, slot } = &what.origin {
        put_bytes(out, home.as_str().as_bytes());
        put_i64(out, slot.0.wrapping_sub(zero.0));
    }
}

fn message(r: &mut Reader<'_>, zero: Timestamp) -> Result<Message<ScheduleErrand>> {
    let to = RunId::new(r.text()?).map_err(bad)?;
    let parts = r.byte()?;
    if parts == start::LIST {
        return Ok(Message { to, what: ScheduleErrand::List });
    }
    if parts == start::IS_OPEN {
        return Ok(Message { to, what: ScheduleErrand::IsOpen });
    }
    if parts & !start::ALL != 0 {
        return Err(bad(format!("start parts {parts:#x} are not known")));
    }
    let workflow = WorkflowName::new(r.text()?).map_err(bad)?;
    let version = if parts & start::VERSION == 0 { None } else { Some(r.u32()?) };
    let input = if parts & start::INPUT == 0 { Payload::Null } else { payload(r)? };
    let tags = if parts & start::TAGS == 0 { BTreeMap::new() } else { read_tags(r)? };
    let priority =
        if parts & start::PRIORITY == 0 { None } else { Some(i32::try_from(r.i64()?).map_err(bad)?) };
    let home = RunId::new(r.text()?).map_err(bad)?;
    let origin = Origin::Schedule { home, slot: instant(r, zero)? };
    let start = StartFor { workflow, version, input, tags, priority, retention: None, origin };
    Ok(Message { to, what: ScheduleErrand::Start(start) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::home::Home;
    use crate::model::outbox::Outbox;
    use crate::model::payload::Field;
    use crate::model::record::homes;

    /// A state in which every field differs from its default.
    fn full() -> ScheduleState {
        let name = ScheduleName::new("nightly").unwrap();
        let at = |s: i64| Timestamp(1_780_000_020_000_000 + s * 1_000_000);
        let run = |text: &str| RunId::new(text).unwrap();
        let tags: BTreeMap<_, _> = [("team".to_owned(), "data".to_owned())].into();
        let input = Payload::Stored { field: Field::new("i3"), size: 100 };
        let plain = Firing {
            number: 5,
            time: at(61),
            slot: at(60),
            until: None,
            count: 1,
            run: Some(name.run_of(at(60))),
            fate: Fate::Started,
            reason: None,
            error: None,
        };
        let mut outbox = Outbox { last: 8, ..Outbox::default() };
        outbox.push(
            name.run_of(at(120)),
            ScheduleErrand::Start(StartFor {
                workflow: WorkflowName::new("report").unwrap(),
                version: Some(2),
                input: Payload::Inline("7".into()),
                tags: tags.clone(),
                priority: Some(-3),
                retention: None,
                origin: Origin::Schedule { home: run("home"), slot: at(120) },
            }),
        );
        outbox.push(
            run("nightly.m1"),
            ScheduleErrand::Start(StartFor {
                workflow: WorkflowName::new("report").unwrap(),
                version: None,
                input: Payload::Null,
                tags: BTreeMap::new(),
                priority: None,
                retention: None,
                origin: Origin::Schedule { home: run("home"), slot: at(121) },
            }),
        );
        outbox.push(run("downbeat.schedules"), ScheduleErrand::List);
        outbox.push(name.run_of(at(60)), ScheduleErrand::IsOpen);
        ScheduleState {
            created_at: at(0),
            updated_at: at(50),
            revision: 3,
            definition: Definition {
                workflow: WorkflowName::new("report").unwrap(),
                version: Some(2),
                input,
                tags,
                priority: Some(-3),
                cron: vec!["* * * * *".into(), "@daily".into()],
                time_zone: "Europe/Berlin".into(),
                overlap: Overlap::Queue,
                catch_up: CatchUp::All,
                catch_up_limit: 7,
                description: Some("the report".into()),
            },
            paused_since: Some(at(130)),
            next: Some(at(180)),
            queued: [at(120), at(180)].into(),
            backfill: [at(-600), at(-540)].into(),
            manual: [(run("nightly.m2"), at(122))].into(),
            open: [(name.run_of(at(60)), at(60)), (run("nightly.m1"), at(121))].into(),
            firings: [
                plain.clone(),
                Firing {
                    number: 6,
                    run: None,
                    until: Some(at(240)),
                    count: 3,
                    fate: Fate::Skipped,
                    reason: Some(SkipReason::Missed),
                    ..plain.clone()
                },
                Firing {
                    number: 7,
                    run: Some(run("nightly.m9")),
                    fate: Fate::Refused,
                    error: Some(("workflow_not_found".into(), "there is none".into())),
                    ..plain
                },
            ]
            .into(),
            told: 8,
            outbox,
            last_time: at(131),
            ask_at: Some(at(900)),
            name,
        }
    }

    fn encode(state: &ScheduleState) -> Vec<u8> {
        let mut out = Vec::new();
        homes::encode_into(&Home::Schedule(Box::new(state.clone())), &mut out);
        out
    }

    fn decode(bytes: &[u8]) -> Result<ScheduleState> {
        match homes::decode(bytes)? {
            Home::Schedule(state) => Ok(*state),
            other => panic!("{other:?}"),
        }
    }

    /// To write it anew after a new format: UPDATE_GOLDEN=1. Never change an old one.
    #[test]
    fn the_golden_file_still_reads_and_is_still_written() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/home-schedule.hex");
        let hex = encode(&full()).iter().map(|b| format!("{b:02x}")).collect::<Vec<_>>().concat();
        if std::env::var_os("UPDATE_GOLDEN").is_some() && !std::path::Path::new(path).exists() {
            std::fs::write(path, hex.clone() + "\n").unwrap();
        }
        let golden = std::fs::read_to_string(path).unwrap();
        assert_eq!(golden.trim(), hex);
        let bytes: Vec<u8> = golden
            .trim()
            .as_bytes()
            .chunks(2)
            .map(|c| u8::from_str_radix(std::str::from_utf8(c).unwrap(), 16).unwrap())
            .collect();
        assert_eq!(decode(&bytes), Ok(full()));
    }

    #[test]
    fn a_plain_schedule_is_small() {
        let mut state = full();
        state.definition = Definition {
            version: None,
            input: Payload::Null,
            tags: BTreeMap::new(),
            priority: None,
            cron: vec!["0 2 * * *".into()],
            time_zone: "UTC".into(),
            description: None,
            ..state.definition
        };
        state.queued.clear();
        state.backfill.clear();
        state.manual.clear();
        state.open.clear();
        state.outbox.pending.clear();
        state.firings = (0..50).map(|number| Firing { number, ..state.firings[0].clone() }).collect();
        state.told = 50;
        let len = encode(&state).len();
        assert!(len < 800, "{len}");
        assert_eq!(decode(&encode(&state)), Ok(state));
    }

    #[test]
    fn what_is_not_known_is_an_error() {
        let good = encode(&full());
        for cut in 0..good.len() {
            assert!(decode(&good[..cut]).is_err(), "{cut}");
        }
        for (at, value) in [(0, 1), (0, 2), (1, 99), (good.len() - 1, 28)] {
            let mut wrong = good.clone();
            wrong[at] = value;
            assert!(decode(&wrong).is_err(), "byte {at} = {value}");
        }
        let mut longer = good.clone();
        longer.push(0);
        assert!(decode(&longer).is_err());
        for at in 0..good.len() {
            for flip in [1, 0x80] {
                let mut wrong = good.clone();
                wrong[at] ^= flip;
                let _ = decode(&wrong); // Never a panic.
            }
        }
    }
}
