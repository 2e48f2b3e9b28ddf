//! What a schedule does, rule by rule, and under random commands.

use super::*;
use crate::model::home::Home;
use crate::model::instant;
use crate::model::record::homes;
use crate::model::schedule::Asked;
use proptest::prelude::*;

fn ts(text: &str) -> Timestamp {
    instant::parse(&format!("2026-12-01T{text}Z")).unwrap()
}

fn home() -> RunId {
    RunId::new("home").unwrap()
}

fn asked(cron: &str, overlap: &str, catch_up: &str) -> Definition {
    let asked = Asked {
        workflow: "report".into(),
        cron: vec![cron.into()],
        overlap: Some(overlap.into()),
        catch_up: Some(catch_up.into()),
        ..Asked::default()
    };
    asked.check().unwrap()
}

/// A schedule, and what it is told.
struct Play {
    state: Option<ScheduleState>,
    now: Timestamp,
    firings: Vec<Firing>,
}

impl Play {
    fn new(definition: Definition, now: Timestamp) -> Self {
        let mut play = Self { state: None, now, firings: Vec::new() };
        assert_eq!(play.put(definition, None), Ok(ScheduleOutcome::Created));
        play
    }

    fn put(
        &mut self,
        definition: Definition,
        paused: Option<bool>,
    ) -> Result<ScheduleOutcome, ScheduleRefusal> {
        let name = ScheduleName::new("nightly").unwrap();
        self.ask(&ScheduleCommand::Put { name, definition: Box::new(definition), input: None, paused })
    }

    fn ask(&mut self, command: &ScheduleCommand) -> Result<ScheduleOutcome, ScheduleRefusal> {
        let mut changed = apply(self.state.as_ref(), &home(), command, self.now, 0)?;
        if let Some(after) = &mut changed.state {
            // The list of schedules is no part of this play.
            after.outbox.pending.retain(|_, m| m.what != ScheduleErrand::List);
            self.firings.extend(new_firings(self.state.as_ref(), after).cloned());
            trim(after);
            let (mut bytes, home) = (Vec::new(), Home::Schedule(Box::new(after.clone())));
            homes::encode_into(&home, &mut bytes);
            assert_eq!(homes::decode(&bytes), Ok(home), "every state can be stored");
        }
        self.state = changed.state;
        Ok(changed.outcome)
    }

    fn at(&mut self, time: &str) -> &mut Self {
        self.now = ts(time);
        self.ask(&ScheduleCommand::Wake).unwrap();
        self
    }

    fn state(&self) -> &ScheduleState {
        self.state.as_ref().unwrap()
    }

    /// Answers every start that is on its way; returns the runs.
    fn deliver(&mut self) -> Vec<String> {
        let pending = self.state().outbox.pending.clone();
        let mut runs = Vec::new();
        for (sequence, message) in pending {
            runs.push(message.to.to_string());
            self.ask(&ScheduleCommand::Answered { sequence, answer: Answer::Done }).unwrap();
        }
        runs
    }

    fn end(&mut self, run: &str) {
        let run = RunId::new(run).unwrap();
        assert_eq!(self.ask(&ScheduleCommand::Ended { run }), Ok(ScheduleOutcome::Done));
    }

    /// Delivers and ends everything until nothing moves; returns the runs in the order of their starts.
    fn run_out(&mut self) -> Vec<String> {
        let mut runs = Vec::new();
        loop {
            assert!(self.state().outbox.pending.len() <= STARTS_MAX);
            let started = self.deliver();
            if started.is_empty() {
                return runs;
            }
            for run in &started {
                if self.state().open.contains_key(&RunId::new(run).unwrap()) {
                    self.end(run);
                }
            }
            runs.extend(started);
        }
    }

    /// What was told, as `skipped overlap 10:01 10:05 5`.
    fn told(&self) -> Vec<String> {
        let clock = |t: Timestamp| t.to_string()[11..16].to_owned();
        let tell = |f: &Firing| {
            let words =
                [Some(f.fate.name().to_owned()), f.reason.map(|r| r.name().to_owned()), Some(clock(f.slot))];
            let until = f.until.map(|until| format!("{} {}", clock(until), f.count));
            words.into_iter().chain([until]).flatten().collect::<Vec<_>>().join(" ")
        };
        self.firings.iter().map(tell).collect()
    }
}

#[test]
fn a_slot_is_started_once_and_named_by_its_time() {
    let mut play = Play::new(asked("0 2 * * *", "skip", "latest"), ts("01:00:00"));
    assert_eq!(play.state().next, Some(ts("02:00:00")));
    assert_eq!(wake_at(play.state(), play.now), ts("02:00:00"));
    play.at("01:59:59");
    assert!(play.state().outbox.is_empty());
    play.at("02:00:00").at("02:00:00").at("02:00:05");
    let state = play.state();
    assert_eq!(state.outbox.pending.len(), 1);
    let delivery = deliveries(state, None).remove(0);
    assert_eq!(delivery.to.as_str(), "nightly.20261201T020000Z");
    let Parcel::Start(start) = delivery.parcel else { panic!() };
    assert_eq!(start.origin, Origin::Schedule { home: home(), slot: ts("02:00:00") });
    assert_eq!(state.next, Some(ts("02:00:00").plus(Span::secs(86_400))));
    assert_eq!(wake_at(state, play.now), ts("02:00:10"), "looks again for the answer");
    assert!(play.firings.is_empty(), "told once it is certain");
    play.deliver();
    assert_eq!(play.told(), ["started 02:00"]);
    assert_eq!(play.state().open.len(), 1);
    play.end("nightly.20261201T020000Z");
    assert!(play.state().open.is_empty());
}

#[test]
fn an_outage_is_made_up_for_as_asked() {
    // Every minute; nothing looks from 10:00:30 to 13:00:30, so 180 slots are missed.
    let outage = |overlap: &str, catch_up: &str| {
        let mut play = Play::new(asked("* * * * *", overlap, catch_up), ts("10:00:30"));
        play.at("13:00:30");
        let at_once = play.state().outbox.pending.len();
        let runs = play.run_out();
        (at_once, runs, play.told())
    };
    for overlap in ["skip", "queue", "allow"] {
        let (_, runs, told) = outage(overlap, "none");
        assert!(runs.is_empty(), "{overlap}");
        assert_eq!(told, ["skipped missed 10:01 13:00 180"], "{overlap}");
        let (_, runs, told) = outage(overlap, "latest");
        assert_eq!(runs, ["nightly.20261201T130000Z"], "{overlap}");
        assert_eq!(told, ["skipped missed 10:01 12:59 179", "started 13:00"], "{overlap}");
    }
    let (at_once, runs, told) = outage("skip", "all");
    assert_eq!((at_once, runs), (1, vec!["nightly.20261201T112100Z".to_owned()]));
    assert_eq!(
        told,
        ["skipped missed 10:01 11:20 80", "skipped overlap 11:22 13:00 99", "started 11:21"],
        "the newest hundred were due, and all but the first met a run"
    );
    let (at_once, runs, told) = outage("queue", "all");
    assert_eq!((at_once, runs.len()), (1, 100));
    assert_eq!(runs[..2], ["nightly.20261201T112100Z", "nightly.20261201T112200Z"]);
    assert_eq!((told[0].as_str(), told.len()), ("skipped missed 10:01 11:20 80", 101));
    let (at_once, runs, _) = outage("allow", "all");
    assert_eq!((at_once, runs.len()), (STARTS_MAX, 100), "no storm");
}

#[test]
fn a_higher_limit_takes_all_that_were_missed() {
    let mut definition = asked("* * * * *", "allow", "all");
    definition.catch_up_limit = 1_000;
    let mut play = Play::new(definition, ts("10:00:30"));
    let runs = play.at("13:00:30").run_out();
    assert_eq!(runs.len(), 180);
    assert_eq!(runs[0], "nightly.20261201T100100Z");
    assert_eq!(runs[179], "nightly.20261201T130000Z");
}

#[test]
fn a_slot_that_is_a_little_late_was_not_missed() {
    let mut play = Play::new(asked("0 * * * *", "skip", "none"), ts("09:30:00"));
    assert_eq!(play.at("10:00:10").run_out().len(), 1);
    play.at("11:00:10.000001");
    assert_eq!(play.told(), ["started 10:00", "skipped missed 11:00"]);
}

#[test]
fn ten_years_of_minutes_are_passed_at_once() {
    let mut play = Play::new(asked("* * * * *", "queue", "all"), ts("10:00:00"));
    play.now = play.now.plus(Span::secs(10 * 365 * 86_400));
    play.ask(&ScheduleCommand::Wake).unwrap();
    assert_eq!(play.state().queued.len(), 99);
    let missed = &play.firings[0];
    assert_eq!((missed.count, missed.reason), (Firing::COUNT_MAX, Some(SkipReason::Missed)));
    assert_eq!(missed.until.map(|u| play.now.since(u)), Some(Span::secs(100 * 60)));
}

#[test]
fn overlap_skips_queues_or_allows() {
    let overlap = |word: &str| {
        let mut play = Play::new(asked("0 * * * *", word, "latest"), ts("09:30:00"));
        let mut counts = Vec::new();
        for hour in ["10:00:00", "11:00:00", "12:00:00"] {
            play.at(hour).deliver();
            counts.push((play.state().open.len(), play.state().queued.len()));
        }
        (counts, play)
    };
    let (counts, play) = overlap("skip");
    assert_eq!(counts, [(1, 0), (1, 0), (1, 0)]);
    assert_eq!(play.told(), ["started 10:00", "skipped overlap 11:00", "skipped overlap 12:00"]);
    let (counts, mut play) = overlap("queue");
    assert_eq!(counts, [(1, 0), (1, 1), (1, 2)]);
    play.end("nightly.20261201T100000Z");
    assert_eq!(play.run_out(), ["nightly.20261201T110000Z", "nightly.20261201T120000Z"]);
    let (counts, _) = overlap("allow");
    assert_eq!(counts, [(1, 0), (2, 0), (3, 0)]);
}

#[test]
fn a_queue_has_an_end() {
    let mut play = Play::new(asked("* * * * *", "queue", "latest"), ts("00:00:00"));
    for _ in 0..=QUEUE_MAX + 1 {
        play.now = play.now.plus(Span::secs(60));
        play.ask(&ScheduleCommand::Wake).unwrap();
    }
    assert_eq!(play.state().queued.len(), QUEUE_MAX);
    assert_eq!(play.told(), ["skipped queue_full 16:42"]);
}

#[test]
fn a_pause_is_one_gap_and_not_made_up_for() {
    let mut play = Play::new(asked("*/10 * * * *", "skip", "all"), ts("10:05:00"));
    assert_eq!(play.ask(&ScheduleCommand::Pause), Ok(ScheduleOutcome::Done));
    assert_eq!(play.ask(&ScheduleCommand::Pause), Ok(ScheduleOutcome::Unchanged));
    assert_eq!(wake_at(play.state(), play.now), play.now.plus(IDLE_LOOK));
    play.at("11:05:00");
    assert!(play.state().outbox.is_empty());
    assert_eq!(play.ask(&ScheduleCommand::Resume), Ok(ScheduleOutcome::Done));
    assert_eq!(play.told(), ["skipped paused 10:10 11:00 6"]);
    assert_eq!(play.state().next, Some(ts("11:10:00")));
    assert_eq!(play.ask(&ScheduleCommand::Resume), Ok(ScheduleOutcome::Unchanged));
    assert_eq!(play.at("11:10:00").run_out(), ["nightly.20261201T111000Z"]);
}

#[test]
fn a_run_by_hand_keeps_to_overlap_and_its_id_is_taken_once() {
    let by_hand = |n: u32| ScheduleCommand::RunNow { run: RunId::new(&format!("nightly.m{n}")).unwrap() };
    let mut play = Play::new(asked("0 2 * * *", "skip", "latest"), ts("10:00:00"));
    play.ask(&ScheduleCommand::Pause).unwrap();
    assert_eq!(play.ask(&by_hand(1)), Ok(ScheduleOutcome::Starting), "also while paused");
    assert_eq!(play.ask(&by_hand(1)), Ok(ScheduleOutcome::Starting));
    assert_eq!(play.state().outbox.pending.len(), 1);
    let open = RunId::new("nightly.m1").unwrap();
    assert_eq!(play.ask(&by_hand(2)), Err(ScheduleRefusal::Busy(open)));
    assert_eq!(play.run_out(), ["nightly.m1"]);
    assert_eq!(play.ask(&by_hand(1)), Ok(ScheduleOutcome::Starting), "it was started before");
    assert!(play.state().outbox.is_empty());

    let mut play = Play::new(asked("0 2 * * *", "queue", "latest"), ts("10:00:00"));
    assert_eq!(play.ask(&by_hand(0)), Ok(ScheduleOutcome::Starting));
    for n in 1..=MANUAL_MAX as u32 {
        assert_eq!(play.ask(&by_hand(n)), Ok(ScheduleOutcome::Queued), "{n}");
    }
    assert_eq!(play.ask(&by_hand(999)), Err(ScheduleRefusal::TooManyWait));
    assert_eq!(play.run_out().len(), 1 + MANUAL_MAX);
}

#[test]
fn a_backfill_runs_what_has_passed_and_was_not_started() {
    let backfill = |from: &str, to: &str| ScheduleCommand::Backfill {
        from: ts(from),
        to: ts(to),
        exist: [ts("05:00:00")].into(),
    };
    let mut play = Play::new(asked("0 * * * *", "skip", "latest"), ts("07:30:00"));
    assert_eq!(play.at("08:00:00").run_out(), ["nightly.20261201T080000Z"]);
    assert_eq!(play.ask(&backfill("04:00:00", "08:00:00.000001")), Ok(ScheduleOutcome::Backfilled(3)));
    assert_eq!(
        play.ask(&backfill("04:00:00", "08:00:00")),
        Ok(ScheduleOutcome::Backfilled(0)),
        "asked again"
    );
    assert_eq!(
        play.run_out(),
        ["nightly.20261201T040000Z", "nightly.20261201T060000Z", "nightly.20261201T070000Z"],
        "one after the other; 05:00 exists and 08:00 was started"
    );
    assert_eq!(play.ask(&backfill("04:00:00", "04:00:00")), Err(ScheduleRefusal::EmptyRange));
    assert_eq!(play.ask(&backfill("04:00:00", "08:00:01")), Err(ScheduleRefusal::InFuture));

    let mut play = Play::new(asked("* * * * *", "allow", "latest"), ts("23:00:00"));
    assert_eq!(
        play.ask(&backfill("00:00:00", "16:41:00")),
        Err(ScheduleRefusal::TooManySlots { count: 1_001, more: false, waiting: 0 })
    );
    assert_eq!(play.ask(&backfill("00:00:00", "16:40:00")), Ok(ScheduleOutcome::Backfilled(999)));
    assert_eq!(play.state().outbox.pending.len(), STARTS_MAX, "no storm");
    assert_eq!(play.run_out().len(), 999);
}

#[test]
fn what_cannot_be_started_is_told_and_makes_room() {
    let mut play = Play::new(asked("0 * * * *", "queue", "latest"), ts("09:30:00"));
    play.at("10:00:00").at("11:00:00");
    let answer =
        Answer::Refused { code: "workflow_not_found".into(), message: "there is no workflow".into() };
    let sequence = *play.state().outbox.pending.keys().next().unwrap();
    play.ask(&ScheduleCommand::Answered { sequence, answer: answer.clone() }).unwrap();
    let again = ScheduleCommand::Answered { sequence, answer };
    assert_eq!(play.ask(&again), Ok(ScheduleOutcome::Unchanged), "told twice");
    assert_eq!(play.told(), ["refused 10:00"]);
    assert_eq!(play.firings[0].error.as_ref().unwrap().0, "workflow_not_found");
    assert_eq!(play.run_out(), ["nightly.20261201T110000Z"]);
}

#[test]
fn an_end_that_comes_before_the_answer_is_an_answer() {
    let mut play = Play::new(asked("0 * * * *", "skip", "latest"), ts("09:30:00"));
    play.at("10:00:00");
    play.end("nightly.20261201T100000Z");
    assert_eq!(play.told(), ["started 10:00"]);
    assert!(play.state().outbox.is_empty());
    assert_eq!(play.deliver(), [""; 0]);
}

#[test]
fn a_run_whose_end_was_never_told_is_asked_for() {
    let mut play = Play::new(asked("0 * * * *", "skip", "latest"), ts("09:30:00"));
    play.at("10:00:00").deliver();
    assert_eq!(wake_at(play.state(), play.now), ts("10:10:00"));
    play.at("10:09:59");
    assert!(play.state().outbox.is_empty());
    for (time, answer, open) in [("10:10:00", Answer::Done, 1), ("10:20:00", Answer::Gone, 0)] {
        let asks = deliveries(play.at(time).state(), None);
        assert_eq!((asks.len(), &asks[0].parcel), (1, &Parcel::IsOpen));
        assert_eq!(asks[0].to.as_str(), "nightly.20261201T100000Z");
        play.ask(&ScheduleCommand::Answered { sequence: asks[0].sequence, answer }).unwrap();
        assert_eq!((play.state().open.len(), play.state().outbox.is_empty()), (open, true));
    }
    assert_eq!(wake_at(play.state(), play.now), ts("11:00:00"));
    assert_eq!(play.told(), ["started 10:00"]);
}

#[test]
fn a_new_definition_begins_now() {
    let mut play = Play::new(asked("0 * * * *", "skip", "latest"), ts("09:30:00"));
    let same = asked("0 * * * *", "skip", "latest");
    assert_eq!(play.put(same, None), Ok(ScheduleOutcome::Unchanged));
    play.now = ts("10:00:01");
    assert_eq!(play.put(asked("*/5 * * * *", "skip", "latest"), None), Ok(ScheduleOutcome::Done));
    assert_eq!(play.run_out(), ["nightly.20261201T100000Z"], "what was due is not lost");
    assert_eq!((play.state().revision, play.state().next), (2, Some(ts("10:05:00"))));
    assert_eq!(play.put(asked("*/5 * * * *", "skip", "latest"), Some(true)), Ok(ScheduleOutcome::Done));
    assert_eq!(play.put(asked("*/9 * * * *", "skip", "latest"), None), Ok(ScheduleOutcome::Done));
    assert!(play.state().paused_since.is_some(), "not said, not changed");
    assert_eq!(play.ask(&ScheduleCommand::Delete), Ok(ScheduleOutcome::Done));
    assert_eq!(play.ask(&ScheduleCommand::Wake), Err(ScheduleRefusal::NoSchedule));
}

#[test]
fn an_input_is_kept_by_its_content() {
    let put = |state: Option<&ScheduleState>, input: &str| {
        let command = ScheduleCommand::Put {
            name: ScheduleName::new("n").unwrap(),
            definition: Box::new(asked("@daily", "skip", "latest")),
            input: Some(Bytes::copy_from_slice(input.as_bytes())),
            paused: None,
        };
        apply(state, &home(), &command, ts("10:00:00"), 0).unwrap()
    };
    let large = format!("\"{}\"", "x".repeat(100));
    let first = put(None, &large);
    let (field, json) = first.payloads[0].clone();
    assert_eq!(json, large);
    let same = put(first.state.as_ref(), &large);
    assert_eq!((same.outcome, same.payloads), (ScheduleOutcome::Unchanged, vec![]), "nothing has changed");
    assert_eq!(same.state, first.state);
    let second = put(first.state.as_ref(), "7");
    assert_eq!(second.payloads, []);
    assert_eq!(second.state.as_ref().map(|s| s.definition.input.clone()), Some(Payload::Inline("7".into())));
    let other = put(second.state.as_ref(), &large.replace('x', "y"));
    assert_ne!(other.payloads[0].0, field);
}

#[derive(Debug, Clone)]
enum Op {
    Later(u32),
    Outage(u32),
    Deliver { refuse: bool },
    Lost,
    End(usize),
    Pause,
    Resume,
    RunNow(u8),
    Backfill(u32, u32),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => (1..200_u32).prop_map(Op::Later),
        1 => (200..50_000_u32).prop_map(Op::Outage),
        4 => prop::bool::weighted(0.1).prop_map(|refuse| Op::Deliver { refuse }),
        1 => Just(Op::Lost),
        4 => any::<usize>().prop_map(Op::End),
        1 => Just(Op::Pause),
        2 => Just(Op::Resume),
        1 => (0..8_u8).prop_map(Op::RunNow),
        1 => (0..5_000_u32, 1..5_000_u32).prop_map(|(a, b)| Op::Backfill(a, b)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn every_slot_fires_at_most_once_and_none_is_lost(
        overlap in prop::sample::select(vec!["skip", "queue", "allow"]),
        catch_up in prop::sample::select(vec!["none", "latest", "all"]),
        cron in prop::sample::select(vec!["* * * * *", "*/7 * * * *", "0 * * * *"]),
        ops in prop::collection::vec(op(), 1..80),
    ) {
        let begin = ts("00:00:30");
        let definition = asked(cron, overlap, catch_up);
        let calendar = definition.calendar().unwrap();
        let mut play = Play::new(definition, begin);
        let mut starts: BTreeMap<RunId, u32> = BTreeMap::new();
        let mut last = play.state().outbox.last;
        for op in ops {
            match op {
                Op::Later(s) | Op::Outage(s) => {
                    play.now = play.now.plus(Span::secs(i64::from(s)));
                    play.ask(&ScheduleCommand::Wake).unwrap();
                }
                Op::Deliver { refuse } => {
                    if let Some(n) = play.state().outbox.pending.keys().next() {
                        let answer = if refuse {
                            Answer::Refused { code: "c".into(), message: "m".into() }
                        } else {
                            Answer::Done
                        };
                        let command = ScheduleCommand::Answered { sequence: *n, answer };
                        play.ask(&command).unwrap();
                        // It comes again.
                        prop_assert_eq!(play.ask(&command), Ok(ScheduleOutcome::Unchanged));
                    }
                }
                Op::Lost => {}
                Op::End(i) => {
                    let open: Vec<_> = play.state().open.keys().cloned().collect();
                    if !open.is_empty() {
                        let run = open[i % open.len()].clone();
                        play.ask(&ScheduleCommand::Ended { run: run.clone() }).unwrap();
                        prop_assert_eq!(play.ask(&ScheduleCommand::Ended { run }), Ok(ScheduleOutcome::Unchanged));
                    }
                }
                Op::Pause => drop(play.ask(&ScheduleCommand::Pause)),
                Op::Resume => drop(play.ask(&ScheduleCommand::Resume)),
                Op::RunNow(n) => {
                    let run = RunId::new(&format!("nightly.m{n}")).unwrap();
                    if !starts.contains_key(&run) {
                        let _ = play.ask(&ScheduleCommand::RunNow { run });
                    }
                }
                Op::Backfill(ago, len) => {
                    let from = Timestamp(play.now.0 - Span::secs(i64::from(ago + len)).0);
                    let to = from.plus(Span::secs(i64::from(len)));
                    let name = ScheduleName::new("nightly").unwrap();
                    let exist = calendar.between(from, to).filter(|s| starts.contains_key(&name.run_of(*s))).collect();
                    let _ = play.ask(&ScheduleCommand::Backfill { from, to, exist });
                }
            }
            let state = play.state();
            for (n, m) in &state.outbox.pending {
                if *n > last && matches!(m.what, ScheduleErrand::Start(_)) {
                    *starts.entry(m.to.clone()).or_default() += 1;
                }
            }
            // Fewer may pend than were pushed only if they were answered, and that is one a step.
            last = state.outbox.last;
            prop_assert!(starts.values().all(|n| *n == 1), "{:?}", starts);
            if overlap != "allow" {
                prop_assert!(state.open.len() <= 1);
            }
            let starts = |m: &&crate::model::outbox::Message<_>| matches!(m.what, ScheduleErrand::Start(_));
            prop_assert!(state.outbox.pending.values().filter(starts).count() <= STARTS_MAX);
            prop_assert!(state.outbox.pending.len() <= STARTS_MAX + OPEN_MAX);
            prop_assert!(state.outbox.pending.values().all(|m| state.open.contains_key(&m.to)));
            prop_assert!(state.queued.len() <= QUEUE_MAX && state.backfill.len() <= BACKFILL_MAX);
            prop_assert!(state.firings.len() <= FIRINGS_MAX && state.open.len() <= OPEN_MAX);
            prop_assert!(state.queued.iter().is_sorted());
            prop_assert!(state.paused_since.is_some() || state.next.is_none_or(|n| n > play.now));
        }
        // Every slot that was passed is started, on its way, waiting, or told of.
        let name = ScheduleName::new("nightly").unwrap();
        let state = play.state();
        let numbers: Vec<u32> = play.firings.iter().map(|f| f.number).collect();
        prop_assert_eq!(numbers, (0..state.told).collect::<Vec<_>>());
        for slot in calendar.between(begin, state.next.unwrap()) {
            let run = name.run_of(slot);
            let skipped = play.firings.iter().any(|f| {
                f.fate == Fate::Skipped && (f.slot..=f.until.unwrap_or(f.slot)).contains(&slot)
            });
            let waits = state.queued.contains(&slot) || state.backfill.contains(&slot);
            prop_assert!(starts.contains_key(&run) || skipped || waits, "{} is lost", slot);
        }
    }
}
