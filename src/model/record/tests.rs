use super::super::event::{EventKind, EventKind as K, LogEntry};
use super::super::home::{Bucket, Semaphore};
use super::super::ids::{Nonce, SessionId, TaskPath};
use super::super::outbox::{Message, Origin, Parent};
use super::super::payload::Field;
use super::super::run::{
    BlockKind, EndStage, Ending, Entry, Errand, Holder, Lease, Order, Permit, Signal, TaskPhase, TaskState,
    Undo, Waiting,
};
use super::super::shared::SharedList;
use super::super::time::LeaseTime;
use super::*;
use bytes::Bytes;
use proptest::prelude::*;

fn encode(state: &RunState) -> Vec<u8> {
    let mut out = Vec::new();
    encode_into(state, &mut out);
    out
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    let mut text = String::new();
    for line in bytes.chunks(32) {
        for b in line {
            write!(text, "{b:02x}").unwrap();
        }
        text.push('\n');
    }
    text
}

fn unhex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(|b| !b.is_ascii_whitespace()).collect();
    digits.chunks(2).map(|p| u8::from_str_radix(std::str::from_utf8(p).unwrap(), 16).unwrap()).collect()
}

/// A state with every field, phase and form in it. Fixed: the golden file is its encoding.
fn everything() -> RunState {
    let at = |us: i64| Timestamp(1_800_000_000_000_000 + us);
    let stored = |name: &str| Payload::Stored { field: Field::new(name), size: 100_000 };
    let lease = |holder, acked, heartbeat_at| Lease {
        nonce: Nonce([0xab; 16]),
        holder,
        worker: 1,
        leased_at: LeaseTime(5_000_000),
        acked,
        heartbeat_at,
    };
    let session = Holder::Session { id: SessionId::new("s3-00000000000000000042").unwrap(), epoch: 4 };
    let claim = Holder::Claim { deadline: LeaseTime(15_000_000) };
    let first = TaskState::pending(0);
    let ran = TaskState { attempt: 1, delivery: 1, ..first.clone() };
    let entry = |kind, us, task, attempt, delivery, worker, error| LogEntry {
        kind,
        time: at(us),
        task,
        attempt,
        delivery,
        worker,
        error,
    };
    RunState {
        id: RunId::new("order-1").unwrap(),
        workflow: WorkflowName::new("order").unwrap(),
        version: 300,
        document: 0,
        try_number: 2,
        status: RunStatus::Running,
        start_digest: [0xd1; 16],
        created_at: at(0),
        started_at: Some(at(1)),
        ended_at: Some(at(999)),
        last_time: at(1_000),
        deadline: Some(at(3_600_000_000)),
        priority: -7,
        tags: [("team".to_owned(), "å".to_owned()), ("z".to_owned(), String::new())].into(),
        retention: Span::secs(604_800),
        input: stored("i"),
        output: Payload::Inline(Bytes::from_static(b"{\"a\":1}")),
        error: Some(1),
        armed: Some(at(10_000_000)),
        generation: 12,
        open_tasks: 6,
        tasks: vec![
            TaskState {
                phase: TaskPhase::Pending { remaining: 2, any_failed: true, any_completed: false },
                ..first.clone()
            },
            TaskState {
                block: 0,
                task_type: None,
                undone: false,
                fixed_input: false,
                phase: TaskPhase::Queued { since: at(500), generation: 12 },
                attempt: 3,
                delivery: 2,
                lost_deliveries: 1,
                first_queued_at: Some(at(2)),
                input: Payload::Path { base: Box::new(stored("i")), steps: vec!["a".into(), "0".into()] },
                accepted: Some((2, Nonce([2; 16]))),
                permit: None,
            },
            TaskState {
                phase: TaskPhase::Running {
                    since: at(600),
                    lease: lease(session, true, Some(LeaseTime(6_000_000))),
                },
                first_queued_at: Some(at(2)),
                ..ran.clone()
            },
            TaskState {
                phase: TaskPhase::Running { since: at(600), lease: lease(claim, false, None) },
                ..ran.clone()
            },
            TaskState { phase: TaskPhase::Retrying { due: at(9_000_000) }, ..ran.clone() },
            TaskState {
                phase: TaskPhase::Completed { output: stored("o5") },
                accepted: Some((1, Nonce([5; 16]))),
                ..ran.clone()
            },
            TaskState {
                phase: TaskPhase::Completed {
                    output: Payload::Inline(Bytes::from_static(b"9007199254740993")),
                },
                ..ran.clone()
            },
            TaskState { phase: TaskPhase::Failed { failure: 1 }, attempt: 2, ..ran.clone() },
            TaskState { phase: TaskPhase::Skipped { counts_as_failed: false }, ..first.clone() },
            TaskState { phase: TaskPhase::Skipped { counts_as_failed: true }, ..first.clone() },
            TaskState { phase: TaskPhase::Cancelled, ..ran.clone() },
            TaskState { phase: TaskPhase::TimedOut { failure: 2 }, ..ran },
        ]
        .into(),
        blocks: Vec::new(),
        undo: Vec::new(),
        ending: None,
        signals: Vec::new(),
        start_at: None,
        origin: None,
        outbox: Outbox::default(),
        workers: vec!["w-1".into(), "w-2".into()],
        failures: vec![
            Failure { code: "exit_3".into(), message: "it broke".into(), task: Some(7), attempt: 1 },
            Failure { code: "exit_3".into(), message: "it broke".into(), task: Some(7), attempt: 2 },
            Failure { code: "run_timed_out".into(), message: String::new(), task: None, attempt: 0 },
        ],
        log: vec![
            entry(K::RunStarted, 1, None, 0, 0, None, None),
            entry(K::TaskQueued, 1, Some(0), 1, 1, None, None),
            entry(K::TaskStarted, 20, Some(0), 1, 1, Some(1), None),
            entry(K::TaskRetrying, 300, Some(7), 1, 0, None, Some(0)),
            entry(K::TaskQueued, 300, Some(7), 2, 3, None, None),
            entry(K::TaskCompleted, 400, Some(5), 1, 0, None, None),
            entry(K::TaskFailed, 400, Some(7), 2, 0, None, Some(1)),
            entry(K::TaskSkipped, 400, Some(8), 0, 0, None, None),
            entry(K::TaskCancelled, 400, Some(10), 1, 0, None, None),
            entry(K::TaskTimedOut, 500, Some(11), 1, 0, Some(0), Some(2)),
            entry(K::RunCompleted, 999, None, 0, 0, None, None),
            entry(K::RunFailed, 999, None, 0, 0, None, Some(1)),
            entry(K::RunCancelled, 999, None, 0, 0, None, None),
            entry(K::RunTimedOut, 998, Some(3), 9, 9, None, None),
        ]
        .into(),
        pages: Pages::default(),
    }
}

/// Written once by the first version; every later one must read it as the same state.
#[test]
fn golden_record_v1_is_read_and_written_as_ever() {
    let golden = include_str!("../../../tests/golden/record-v1.hex");
    let state = everything();
    assert_eq!(decode(&unhex(golden)), Ok(state.clone()));
    assert_eq!(hex(&encode(&state)), golden);
}

/// A state with every origin's and errand's form in it, as one that is a child and has children. Fixed: a golden file is
/// its encoding.
fn related() -> RunState {
    let run = |id: &str| RunId::new(id).unwrap();
    let at = |us: i64| Timestamp(1_800_000_000_000_000 + us);
    let mut outbox = Outbox { last: 1, pending: BTreeMap::new() };
    let workflow = WorkflowName::new("invoice").unwrap();
    outbox.push(run("c-1"), Errand::Start { node: 3, workflow: workflow.clone(), version: Some(7) });
    outbox.push(run("c-2"), Errand::Start { node: 300, workflow, version: None });
    for order in [
        Order::Cancel { compensate: false, force: false },
        Order::Cancel { compensate: true, force: true },
        Order::Pause,
        Order::Resume,
        Order::Retry,
    ] {
        outbox.push(run("c-1"), Errand::Order(order));
    }
    outbox.push(run("p-1"), Errand::Ended);
    outbox.pending.remove(&2);
    let parent = Parent {
        run: run("p-1"),
        task: TaskPath::parse("each[3]/go#1").unwrap(),
        ticket: 4,
        heard: 5,
        depth: 2,
        detached: true,
    };
    let child = TaskState {
        phase: TaskPhase::Waiting(Waiting::Child { ticket: 3, ask_at: at(600_000_000) }),
        attempt: 2,
        first_queued_at: Some(at(5)),
        ..TaskState::pending(0)
    };
    RunState {
        tasks: vec![child].into(),
        origin: Some(Origin::Parent(parent)),
        outbox,
        blocks: Vec::new(),
        workers: Vec::new(),
        failures: Vec::new(),
        error: None,
        log: SharedList::default(),
        ..everything()
    }
}

#[test]
fn the_document_of_a_run_is_the_last_field() {
    let state = RunState { document: 0xa1b2_c3d4, ..everything() };
    let bytes = encode(&state);
    assert!(bytes.ends_with(&[33, 0xa1, 0xb2, 0xc3, 0xd4, 0]), "{}", hex(&bytes));
    assert_eq!(decode(&bytes), Ok(state));
}

#[test]
fn golden_record_of_related_runs_is_read_and_written_as_ever() {
    let golden = include_str!("../../../tests/golden/record-v1-related.hex");
    let state = related();
    assert_eq!(hex(&encode(&state)), golden);
    assert_eq!(decode(&unhex(golden)), Ok(state));
    let scheduled = RunState {
        origin: Some(Origin::Schedule { home: RunId::new("downbeat.s").unwrap(), slot: Timestamp(9) }),
        outbox: Outbox::default(),
        ..related()
    };
    assert_eq!(decode(&encode(&scheduled)), Ok(scheduled));
}

/// A state with every kind of block, wait and stage. Fixed: a golden file is its encoding.
fn nested() -> RunState {
    let at = |us: i64| Timestamp(1_800_000_000_000_000 + us);
    let stored = |name: &str| Payload::Stored { field: Field::new(name), size: 300 };
    let waiting = |waiting| TaskState { phase: TaskPhase::Waiting(waiting), ..TaskState::pending(0) };
    let mut state = RunState {
        status: RunStatus::Paused,
        tasks: vec![
            waiting(Waiting::Timer { due: at(9_000_000) }),
            waiting(Waiting::Signal { name: "approved".into() }),
            waiting(Waiting::Body { block: 1, open: 2, error: Some(0), undoing: Some(9) }),
            waiting(Waiting::Items { block: 2, next: 3, open: 1, failed: 1, error: None }),
            waiting(Waiting::Iterations {
                block: 3,
                index: 7,
                due: Some(at(5)),
                previous: stored("o8"),
                undoing: None,
            }),
        ]
        .into(),
        log: SharedList::default(),
        failures: Vec::new(),
        workers: Vec::new(),
        open_tasks: 5,
        undo: vec![
            Undo { node: 5, input: Payload::Inline(Bytes::from_static(b"[1]")) },
            Undo { node: 6, input: stored("u6") },
        ],
        ending: Some(Ending { status: RunStatus::TimedOut, stage: EndStage::Undoing(9), undoes: true }),
        signals: vec![
            Signal { name: "go".into(), id: Some("s-1".into()), payload: stored("s0"), taken: true },
            Signal { name: "go".into(), id: None, payload: Payload::Null, taken: false },
        ],
        start_at: Some(at(60_000_000)),
        ..everything()
    };
    state.add_block(Some(2), BlockKind::Body, 5, 2);
    state.add_block(Some(3), BlockKind::Items, 3, 3);
    state.add_block(Some(4), BlockKind::Iteration(7), 4, 1);
    state.add_block(Some(5), BlockKind::Compensation, 8, 1);
    state.add_block(None, BlockKind::Finally, 9, 1);
    state.tasks[5] = TaskState {
        task_type: Some("work-a".parse().unwrap()),
        undone: true,
        fixed_input: true,
        input: stored("h5.1.2"),
        ..state.tasks[5].clone()
    };
    state
}

#[test]
fn golden_record_of_nested_runs_is_read_and_written_as_ever() {
    let golden = include_str!("../../../tests/golden/record-v1-nested.hex");
    let state = nested();
    assert_eq!(decode(&unhex(golden)), Ok(state.clone()));
    assert_eq!(hex(&encode(&state)), golden);
}

/// A chain that passes one value on, and some that it does not.
fn passing_on() -> RunState {
    let value = |text: &str| Payload::Inline(Bytes::copy_from_slice(text.as_bytes()));
    let order = r#"{"order_id":"o-1001","amount":1228.1}"#;
    let task = |input: &str, output: &str| TaskState {
        phase: TaskPhase::Completed { output: value(output) },
        input: value(input),
        attempt: 1,
        delivery: 1,
        ..TaskState::pending(0)
    };
    let long = format!("[{}]", "1,".repeat(40) + "1");
    RunState {
        input: value(order),
        output: value(order),
        tasks: vec![
            task(order, order),
            task("true", "true"),
            task("1.5", "1.5"),
            task(order, &long),
            task(&long, "\"one\""),
            // Nine different ones: the first is forgotten.
            task("\"two\"", "\"three\""),
            task("\"four\"", "\"five\""),
            task("\"six\"", "\"seven\""),
            task(order, "\"one\""),
        ]
        .into(),
        blocks: Vec::new(),
        undo: Vec::new(),
        failures: Vec::new(),
        workers: Vec::new(),
        error: None,
        log: SharedList::default(),
        ..everything()
    }
}

#[test]
fn a_value_that_comes_again_is_told_by_its_place() {
    let state = passing_on();
    let bytes = encode(&state);
    assert_eq!(decode(&bytes), Ok(state.clone()));
    let text = |what: &str| bytes.windows(what.len()).filter(|w| *w == what.as_bytes()).count();
    assert_eq!(text("o-1001"), 2, "once, and once more after eight others");
    assert_eq!(text("true"), 1);
    assert_eq!(text("1.5"), 2, "a short one is simply told again");
    assert_eq!(text("\"one\""), 1, "still among the last eight");
    // A place that nothing stands at is no value.
    let mut broken = bytes.clone();
    let repeated = [0x83, 0];
    let at = broken.windows(2).position(|w| w == repeated).unwrap();
    broken[at + 1] = 200;
    assert!(decode(&broken).unwrap_err().to_string().contains("repeats one that is not there"));
}

#[test]
fn golden_record_of_repeated_values_is_read_and_written_as_ever() {
    let golden = include_str!("../../../tests/golden/record-v1-repeated.hex");
    let state = passing_on();
    assert_eq!(hex(&encode(&state)), golden);
    assert_eq!(decode(&unhex(golden)), Ok(state));
}

#[test]
fn nine_tasks_that_pass_a_value_on_take_little() {
    let order = Payload::Inline(Bytes::from_static(br#"{"order_id":"o-1001","amount":1228.1}"#));
    let mut state = passing_on();
    state.tasks = vec![
        TaskState {
            phase: TaskPhase::Completed { output: order.clone() },
            input: order.clone(),
            attempt: 1,
            delivery: 1,
            accepted: Some((1, Nonce([7; 16]))),
            ..TaskState::pending(0)
        };
        9
    ]
    .into();
    let mut apart = state.clone();
    for i in 0..9 {
        let value = |n| Payload::Inline(format!(r#"{{"order_id":"o-{n:04}","amount":1228.1}}"#).into());
        apart.tasks[i].input = value(2 * i);
        apart.tasks[i].phase = TaskPhase::Completed { output: value(2 * i + 1) };
    }
    assert_eq!(encode(&apart).len() - encode(&state).len(), 18 * 36, "two bytes instead of 38");
}

/// A state with every form of limits on work in it. Fixed: a golden file is its encoding.
fn limited() -> RunState {
    let at = |us: i64| Timestamp(1_800_000_000_000_000 + us);
    let permit = |key: &str, ticket, granted| Some(Box::new(Permit { key: key.into(), ticket, granted }));
    let waits = |entry, permit| TaskState {
        phase: TaskPhase::Waiting(Waiting::Permit { entry, ask_at: at(60_000_000) }),
        permit,
        ..TaskState::pending(0)
    };
    let rate = |ticket, due| TaskState {
        phase: TaskPhase::Waiting(Waiting::Rate { key: "api".into(), ticket, due }),
        attempt: 1,
        ..TaskState::pending(0)
    };
    let mut outbox = Outbox { last: 6, pending: BTreeMap::new() };
    outbox.push(Semaphore::home("env-å"), Errand::Acquire { node: 1 });
    outbox.push(Semaphore::home("env-å"), Errand::Release { ticket: 300 });
    outbox.push(Bucket::home("api"), Errand::Take { node: 4 });
    RunState {
        tasks: vec![
            waits(Entry::First, None),
            waits(Entry::Again { from: None }, permit("env-å", 7, false)),
            waits(Entry::Again { from: Some(300) }, permit("5", 0, false)),
            TaskState {
                phase: TaskPhase::Queued { since: at(7), generation: 3 },
                attempt: 1,
                delivery: 1,
                fixed_input: true,
                permit: permit("env-å", 2, true),
                ..TaskState::pending(0)
            },
            rate(9, None),
            rate(5, Some(at(9_000_000))),
        ]
        .into(),
        outbox,
        blocks: Vec::new(),
        workers: Vec::new(),
        failures: Vec::new(),
        error: None,
        log: SharedList::default(),
        ..everything()
    }
}

#[test]
fn golden_record_of_limited_runs_is_read_and_written_as_ever() {
    let golden = include_str!("../../../tests/golden/record-v1-limited.hex");
    let state = limited();
    assert_eq!(hex(&encode(&state)), golden);
    assert_eq!(decode(&unhex(golden)), Ok(state));
}

#[test]
fn a_cut_or_longer_record_is_unreadable() {
    let bytes = encode(&everything());
    for len in 0..bytes.len() {
        assert!(decode(&bytes[..len]).is_err(), "cut at {len}");
    }
    let mut longer = bytes;
    longer.push(0);
    assert_eq!(decode(&longer), Err(bad("bytes follow its end")));
}

#[test]
fn what_a_newer_version_wrote_is_refused_with_its_reason() {
    let bytes = encode(&everything());
    let mut format = bytes.clone();
    format[0] = 2;
    assert_eq!(decode(&format), Err(bad("its format is 2; this version reads 1")));
    let mut field = bytes.clone();
    *field.last_mut().unwrap() = 34;
    assert_eq!(decode(&field), Err(bad("field 34 is not known")));
    let status = bytes.windows(2).position(|w| w == [field::STATUS, 2]).unwrap();
    let mut unknown = bytes.clone();
    unknown[status + 1] = 8;
    assert_eq!(decode(&unknown), Err(bad("run status 8 is not known")));
    let tasks = bytes.windows(3).position(|w| w == [field::TASKS, 12, 0]).unwrap();
    let mut phase = bytes;
    phase[tasks + 2] = 11;
    assert_eq!(decode(&phase), Err(bad("task phase 11 is not known")));
}

#[test]
fn a_number_has_one_form() {
    assert_eq!(Reader::new(&[0x80, 0x00]).u64(), Err(bad("a number is not in its shortest form")));
    let mut max = Vec::new();
    put_u64(&mut max, u64::MAX);
    assert_eq!((max.len(), Reader::new(&max).u64()), (10, Ok(u64::MAX)));
    max[9] = 2;
    assert!(Reader::new(&max).u64().is_err());
    for v in [0, -1, 1, i64::MIN, i64::MAX] {
        let mut out = Vec::new();
        put_i64(&mut out, v);
        assert_eq!(Reader::new(&out).i64(), Ok(v));
    }
}

prop_compose! {
    fn instants()(near in any::<i16>(), far in any::<i64>(), which in 0..4u8) -> Timestamp {
        Timestamp(if which == 0 { far } else { 1_800_000_000_000_000 + i64::from(near) })
    }
}

fn values() -> impl Strategy<Value = Payload> {
    prop_oneof![
        Just(Payload::Null),
        prop::collection::vec(any::<u8>(), 0..80).prop_map(|b| Payload::Inline(b.into())),
        ("[a-z0-9.]{0,8}", any::<u32>())
            .prop_map(|(f, size)| Payload::Stored { field: Field::new(&f), size }),
    ]
}

fn payloads() -> impl Strategy<Value = Payload> {
    prop_oneof![
        3 => values(),
        1 => (values(), prop::collection::vec(".{0,6}", 0..4))
            .prop_map(|(base, steps)| Payload::Path { base: Box::new(base), steps }),
    ]
}

fn leases() -> impl Strategy<Value = Lease> {
    let holders = prop_oneof![
        ("[a-z0-9][a-z0-9-]{0,30}", any::<u32>())
            .prop_map(|(id, epoch)| Holder::Session { id: SessionId::new(&id).unwrap(), epoch }),
        any::<i64>().prop_map(|d| Holder::Claim { deadline: LeaseTime(d) }),
    ];
    (any::<[u8; 16]>(), holders, any::<u32>(), any::<i64>(), any::<bool>(), any::<Option<i64>>()).prop_map(
        |(nonce, holder, worker, leased_at, acked, heartbeat)| Lease {
            nonce: Nonce(nonce),
            holder,
            worker,
            leased_at: LeaseTime(leased_at),
            acked,
            heartbeat_at: heartbeat.map(LeaseTime),
        },
    )
}

fn waits() -> impl Strategy<Value = Waiting> {
    let option = || prop::option::of(0..u32::MAX);
    prop_oneof![
        instants().prop_map(|due| Waiting::Timer { due }),
        "[a-z]{0,9}".prop_map(|name| Waiting::Signal { name }),
        (counts(), counts(), option(), option()).prop_map(|(block, open, error, undoing)| Waiting::Body {
            block,
            open,
            error,
            undoing
        }),
        (counts(), counts(), counts(), counts(), option()).prop_map(|(block, next, open, failed, error)| {
            Waiting::Items { block, next, open, failed, error }
        }),
        (counts(), counts(), prop::option::of(instants()), payloads(), option()).prop_map(
            |(block, index, due, previous, undoing)| Waiting::Iterations {
                block,
                index,
                due,
                previous,
                undoing
            }
        ),
        (counts(), instants()).prop_map(|(ticket, ask_at)| Waiting::Child { ticket, ask_at }),
        (option(), any::<bool>(), instants()).prop_map(|(from, first, ask_at)| {
            let entry = if first { Entry::First } else { Entry::Again { from } };
            Waiting::Permit { entry, ask_at }
        }),
        (".{0,9}", counts(), prop::option::of(instants())).prop_map(|(key, ticket, due)| Waiting::Rate {
            key,
            ticket,
            due
        }),
    ]
}

/// Blocks for nodes behind those of the run itself, each of one that stands before it.
fn add_blocks(state: &mut RunState, seeds: Vec<(u32, u32, u8, u32)>) {
    for (owner, plan, kind, len) in seeds {
        let kind = match kind {
            0 => BlockKind::Body,
            1 => BlockKind::Items,
            2 => BlockKind::Iteration(plan),
            3 => BlockKind::Compensation,
            _ => BlockKind::Finally,
        };
        let nodes = state.tasks.len() as u32;
        let owner = (kind != BlockKind::Finally).then(|| owner % nodes.max(1));
        if nodes > 0 {
            state.add_block(owner, kind, plan, len);
        }
    }
}

fn phases() -> impl Strategy<Value = TaskPhase> {
    prop_oneof![
        (any::<u32>(), any::<bool>(), any::<bool>()).prop_map(|(remaining, any_failed, any_completed)| {
            TaskPhase::Pending { remaining, any_failed, any_completed }
        }),
        (instants(), any::<u32>()).prop_map(|(since, generation)| TaskPhase::Queued { since, generation }),
        (instants(), leases()).prop_map(|(since, lease)| TaskPhase::Running { since, lease }),
        instants().prop_map(|due| TaskPhase::Retrying { due }),
        payloads().prop_map(|output| TaskPhase::Completed { output }),
        any::<u32>().prop_map(|failure| TaskPhase::Failed { failure }),
        any::<bool>().prop_map(|counts_as_failed| TaskPhase::Skipped { counts_as_failed }),
        Just(TaskPhase::Cancelled),
        waits().prop_map(TaskPhase::Waiting),
        any::<u32>().prop_map(|failure| TaskPhase::TimedOut { failure }),
    ]
}

fn counts() -> impl Strategy<Value = u32> {
    prop_oneof![3 => 0..3u32, 1 => any::<u32>()]
}

fn tasks() -> impl Strategy<Value = TaskState> {
    let accepted = prop::option::of((counts(), any::<[u8; 16]>().prop_map(Nonce)));
    (phases(), counts(), counts(), counts(), prop::option::of(instants()), payloads(), accepted).prop_map(
        |(phase, attempt, delivery, lost_deliveries, first_queued_at, input, accepted)| TaskState {
            block: 0,
            task_type: (attempt == 2).then(|| "pack".parse().unwrap()),
            undone: delivery == 1,
            fixed_input: lost_deliveries == 2,
            permit: (attempt == 1).then(|| {
                let (ticket, granted) = (delivery, lost_deliveries == 0);
                Box::new(Permit { key: "env".to_owned(), ticket, granted })
            }),
            phase,
            attempt,
            delivery,
            lost_deliveries,
            first_queued_at,
            input,
            accepted,
        },
    )
}

fn entries() -> impl Strategy<Value = LogEntry> {
    let reference = || prop::option::of(counts());
    (
        prop::sample::select(&EventKind::ALL[..18]),
        instants(),
        reference(),
        counts(),
        counts(),
        reference(),
        reference(),
    )
        .prop_map(|(kind, time, task, attempt, delivery, worker, error)| LogEntry {
            kind,
            time,
            task,
            attempt,
            delivery,
            worker,
            error,
        })
}

fn failures() -> impl Strategy<Value = Failure> {
    ("[ab]{0,1}", ".{0,2}", prop::option::of(counts()), counts())
        .prop_map(|(code, message, task, attempt)| Failure { code, message, task, attempt })
}

fn origins() -> impl Strategy<Value = Origin> {
    let run = "[a-z0-9]{1,30}".prop_map(|id| RunId::new(&id).unwrap());
    let parent = (run.clone(), counts(), counts(), counts(), any::<bool>()).prop_map(
        |(run, ticket, heard, depth, detached)| {
            let task = TaskPath::parse("a[3]/b#1").unwrap();
            Origin::Parent(Parent { run, task, ticket, heard, depth, detached })
        },
    );
    let schedule = (run, instants()).prop_map(|(home, slot)| Origin::Schedule { home, slot });
    prop_oneof![parent, schedule]
}

fn outboxes() -> impl Strategy<Value = Outbox<Errand>> {
    let cancel = (any::<bool>(), any::<bool>())
        .prop_map(|(compensate, force)| Errand::Order(Order::Cancel { compensate, force }));
    let errand = prop_oneof![
        (counts(), prop::option::of(counts())).prop_map(|(node, version)| Errand::Start {
            node,
            workflow: WorkflowName::new("w").unwrap(),
            version
        }),
        cancel,
        prop::sample::select(vec![Order::Pause, Order::Resume, Order::Retry]).prop_map(Errand::Order),
        Just(Errand::Ended),
    ];
    let messages = prop::collection::btree_map(1..9u32, ("[a-z]{1,9}", errand), 0..4);
    messages.prop_map(|messages| {
        let message = |(to, what): (String, Errand)| Message { to: RunId::new(&to).unwrap(), what };
        Outbox { last: 9, pending: messages.into_iter().map(|(n, m)| (n, message(m))).collect() }
    })
}

fn states() -> impl Strategy<Value = RunState> {
    let optional = || prop::option::of(instants());
    let head = (
        ("[A-Za-z0-9][A-Za-z0-9._-]{0,127}", "[a-z]{1,9}", any::<u32>(), counts(), any::<[u8; 16]>()),
        prop::sample::select(&RunStatus::ALL[..]),
        (instants(), optional(), optional(), instants(), optional(), optional()),
        (any::<i32>(), prop::collection::btree_map(".{0,9}", ".{0,9}", 0..3), any::<i64>()),
        (payloads(), payloads(), prop::option::of(counts()), counts(), counts()),
    );
    let lists = (
        prop::collection::vec(tasks(), 0..6),
        prop::collection::vec(".{0,9}", 0..3),
        prop::collection::vec(failures(), 0..4),
        prop::collection::vec(entries(), 0..12),
    );
    let stages = (counts(), any::<bool>(), any::<bool>(), prop::sample::select(&RunStatus::ALL[..]));
    let ending = stages.prop_map(|(node, last, undoes, status)| {
        let stage = if last { EndStage::Finally(node) } else { EndStage::Undoing(node) };
        Ending { status, stage, undoes }
    });
    let signals = ("[a-z]{1,9}", prop::option::of("[a-z]{1,9}"), payloads(), any::<bool>())
        .prop_map(|(name, id, payload, taken)| Signal { name, id, payload, taken });
    let more = (
        prop::collection::vec((any::<u32>(), counts(), 0..5u8, 0..4u32), 0..4),
        prop::collection::vec((counts(), payloads()).prop_map(|(node, input)| Undo { node, input }), 0..3),
        prop::option::of(ending),
        prop::collection::vec(signals, 0..3),
        optional(),
        (prop::option::of(origins()), outboxes()),
    );
    (head, lists, more).prop_map(|(head, (tasks, workers, failures, log), more)| {
        let (blocks, undo, ending, signals, start_at, (origin, outbox)) = more;
        let ((id, workflow, version, try_number, start_digest), status, times, labels, rest) = head;
        let (created_at, started_at, ended_at, last_time, deadline, armed) = times;
        let (priority, tags, retention) = labels;
        let (input, output, error, generation, open_tasks) = rest;
        let mut state = RunState {
            id: RunId::new(&id).unwrap(),
            workflow: WorkflowName::new(&workflow).unwrap(),
            version,
            try_number,
            status,
            document: u32::from_be_bytes([start_digest[0], 0, 0, start_digest[1]]),
            start_digest,
            created_at,
            started_at,
            ended_at,
            last_time,
            deadline,
            priority,
            tags,
            retention: Span(retention),
            input,
            output,
            error,
            armed,
            generation,
            open_tasks,
            tasks: tasks.into(),
            blocks: Vec::new(),
            undo,
            ending,
            signals,
            start_at,
            origin,
            outbox,
            workers,
            failures,
            log: log.into(),
            pages: Pages::default(),
        };
        add_blocks(&mut state, blocks);
        state
    })
}

proptest! {
    #[test]
    fn every_state_is_read_as_it_was_written(state in states()) {
        let bytes = encode(&state);
        prop_assert_eq!(decode(&bytes), Ok(state));
    }

    #[test]
    fn no_bytes_make_it_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..200), state in states(), at: prop::sample::Index, b: u8) {
        let _ = decode(&bytes);
        bytes = encode(&state);
        let at = at.index(bytes.len());
        bytes[at] = b;
        if let Ok(read) = decode(&bytes) {
            prop_assert_eq!(decode(&encode(&read)), Ok(read));
        }
    }
}
