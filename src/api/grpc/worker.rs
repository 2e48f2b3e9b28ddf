//! `WorkerService.Connect`: protobuf ⇄ [`crate::dispatch::message`], and one task that carries both directions.
//!
//! ```text
//! worker → messages ─ read ─→ WorkerStream::receive
//! worker ← frames  ← write ── WorkerStream::next      only while there is a free slot, so that a worker
//!                                                     that does not read cannot stop us from reading it
//! ```
//!
//! Order is kept. Neighbours of one kind that are ready together share a frame, cut by bytes and by count.

use super::{Answers, Connection, Reply, convert, status};
use crate::api::Doors;
use crate::api::check::{label, labels, word};
use crate::api::error::{from_transport, invalid};
use crate::api::limits::{FRAME_BYTES, FRAME_PARTS};
use crate::api::meter::Streams;
use crate::app::AppError;
use crate::dispatch::message::{
    AckStatus, FromWorker, Hello, ResultAck, Subscription, TaskOutcome, TaskResult, ToWorker, Welcome,
};
use crate::model::command::RejectedValue;
use crate::model::error::ErrorCode;
use crate::model::ids::{SessionId, TaskType};
use crate::model::time::Span;
use crate::proto::v1;
use crate::proto::v1::server_message::Message as Out;
use crate::proto::v1::worker_message::Message as In;
use crate::proto::v1::worker_service_server::WorkerService;
use bytes::Bytes;
use futures::StreamExt as _;
use std::collections::BTreeMap;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

/// Batches between the session and the connection: one being written, one being filled.
const SLOTS: usize = 2;
/// A batch takes no more messages above this.
const BATCH_BYTES: usize = 4 * FRAME_BYTES;

type Batch = Vec<Result<v1::ServerMessage, Status>>;

#[tonic::async_trait]
impl WorkerService for Doors {
    type ConnectStream = Answers<v1::ServerMessage>;

    async fn connect(&self, request: Request<Streaming<v1::WorkerMessage>>) -> Reply<Self::ConnectStream> {
        let connection = Connection::of(request.extensions());
        let (slots, batches) = mpsc::channel(SLOTS);
        let doors = self.clone();
        let open = self.opened(Streams::Workers).map_err(status)?;
        // Ends with the stream: both a broken connection and a dropped response are seen inside.
        tokio::spawn(async move {
            let mut messages = request.into_inner();
            if let Err(error) = doors.carry(&connection, &mut messages, &slots).await {
                let _ = slots.send(vec![Err(error)]).await;
            }
            drop(open);
        });
        Ok(Response::new(ReceiverStream::new(batches).flat_map(futures::stream::iter).boxed()))
    }
}

impl Doors {
    /// Carries messages both ways until either side ends the stream.
    async fn carry(
        &self,
        connection: &Connection,
        messages: &mut Streaming<v1::WorkerMessage>,
        slots: &mpsc::Sender<Batch>,
    ) -> Result<(), Status> {
        let hello = self.hello(connection, messages).await?;
        let mut stream = self.app.connect(hello).await.map_err(status)?;
        let mut slot = None;
        loop {
            tokio::select! {
                biased;
                message = messages.message() => match message.map_err(from_transport)? {
                    Some(message) => {
                        if let Some(message) = read(message).map_err(status)? {
                            stream.receive(message).await.map_err(status)?;
                        }
                    }
                    None => return Ok(()),
                },
                free = slots.reserve(), if slot.is_none() => match free {
                    Ok(free) => slot = Some(free),
                    Err(_) => return Ok(()),
                },
                first = stream.next(), if slot.is_some() => {
                    let Some(first) = first else { return Ok(()) };
                    let mut frames = Frames::default();
                    frames.push(first);
                    while frames.total < BATCH_BYTES
                        && let Some(Some(more)) = stream.try_next()
                    {
                        frames.push(more);
                    }
                    if let Some(slot) = slot.take() {
                        slot.send(frames.done);
                    }
                }
            }
        }
    }

    async fn hello(
        &self,
        connection: &Connection,
        messages: &mut Streaming<v1::WorkerMessage>,
    ) -> Result<Hello, Status> {
        let within = self.options.hello_within;
        let first = tokio::time::timeout(within, messages.message()).await.map_err(|_| {
            let message = format!("no Hello within {} s", within.as_secs());
            status(AppError::new(ErrorCode::DeadlineExceeded, message))
        })?;
        match first.map_err(from_transport)?.and_then(|m| m.message) {
            Some(In::Hello(hello)) => read_hello(hello, connection).map_err(status),
            _ => Err(status(invalid("message", "the first message of a worker is Hello"))),
        }
    }
}

fn read_hello(hello: v1::Hello, connection: &Connection) -> Result<Hello, AppError> {
    let mut named = BTreeMap::new();
    let subscription = |(n, s)| {
        let path = format!("hello.subscriptions[{n}]");
        let read = read_subscription(&path, s)?;
        match named.insert(read.task_type.clone(), n) {
            None => Ok(read),
            Some(first) => Err(invalid(
                format!("{path}.type"),
                format!(
                    "{} is subscribed to by subscriptions[{first}] already; name each type once",
                    read.task_type
                ),
            )),
        }
    };
    Ok(Hello {
        label: label("hello.label", hello.label, || connection.label())?,
        subscriptions: hello
            .subscriptions
            .into_iter()
            .enumerate()
            .map(subscription)
            .collect::<Result<_, _>>()?,
        resume: convert::given(&hello.previous_session)
            .map(|id| word("hello.previous_session", id, SessionId::new))
            .transpose()?,
        tokens: hello.tokens,
    })
}

fn read_subscription(path: &str, subscription: v1::Subscription) -> Result<Subscription, AppError> {
    let task_type = word(&format!("{path}.type"), &subscription.r#type, TaskType::new)?;
    let credit = u32::try_from(subscription.credit).map_err(|_| {
        invalid(format!("{path}.credit"), format!("{} of {task_type} is negative", subscription.credit))
    })?;
    let labels = labels(&format!("{path}.labels"), &subscription.labels)?;
    Ok(Subscription { task_type, credit, labels })
}

/// What a worker said. None: a message of a kind that a later version may know, or an empty one. It is passed over,
/// so that a newer worker can talk to an older server.
fn read(message: v1::WorkerMessage) -> Result<Option<FromWorker>, AppError> {
    let Some(message) = message.message else { return Ok(None) };
    Ok(Some(match message {
        In::Results(results) => FromWorker::Results(results.results.into_iter().map(read_result).collect()),
        In::Ack(tokens) => FromWorker::Ack(tokens.tokens),
        In::Pong(_) => FromWorker::Pong,
        In::Credit(subscription) => FromWorker::Credit(read_subscription("credit", subscription)?),
        In::Heartbeat(beats) => {
            let progress = |b: Bytes| (!b.is_empty()).then_some(b);
            FromWorker::Heartbeat(
                beats.heartbeats.into_iter().map(|h| (h.token, progress(h.progress))).collect(),
            )
        }
        In::Drain(_) => FromWorker::Drain,
        In::Hello(_) => return Err(invalid("message", "Hello is only the first message")),
    }))
}

fn read_result(result: v1::Result) -> TaskResult {
    let outcome = match result.outcome {
        // Whether it is JSON and small enough is looked at by the application: it fails the attempt.
        Some(v1::result::Outcome::Completed(output)) => TaskOutcome::Completed(output),
        Some(v1::result::Outcome::Failed(failed)) => TaskOutcome::Failed(convert::reported(failed)),
        Some(v1::result::Outcome::Released(_)) => TaskOutcome::Released,
        // Unlike a whole message it cannot be passed over: the attempt would be waited for without an end.
        None => TaskOutcome::Rejected(RejectedValue {
            code: "invalid_output",
            message: "the result has no outcome, or one this server does not know: set completed, failed or released"
                .to_owned(),
        }),
    };
    TaskResult { token: result.token, outcome }
}

/// Messages to a worker as frames.
#[derive(Default)]
struct Frames {
    done: Batch,
    /// Bytes of all frames, about.
    total: usize,
    /// Bytes of the last frame, about.
    size: usize,
}

/// Tags and lengths around the fields of one part, at most about.
const PART_OVERHEAD: usize = 48;

/// Adds `part` to the last frame if that is of the same kind and has room, else to a new one.
macro_rules! put {
    ($frames:expr, $kind:ident, $list:ident { $field:ident }, $part:expr, $size:expr) => {{
        let (part, size) = ($part, $size + PART_OVERHEAD);
        let room = $frames.size + size <= FRAME_BYTES;
        match $frames.done.last_mut() {
            Some(Ok(v1::ServerMessage { message: Some(Out::$kind(list)) }))
                if room && list.$field.len() < FRAME_PARTS =>
            {
                list.$field.push(part);
                $frames.size += size;
                $frames.total += size;
            }
            _ => $frames.frame(Out::$kind(v1::$list { $field: vec![part] }), size),
        }
    }};
}

impl Frames {
    fn frame(&mut self, message: Out, size: usize) {
        self.done.push(Ok(v1::ServerMessage { message: Some(message) }));
        self.size = size;
        self.total += size;
    }

    fn push(&mut self, message: ToWorker) {
        match message {
            ToWorker::Assign(assignments) => {
                for a in assignments {
                    let size = a.token.len()
                        + a.run.as_str().len()
                        + a.path.as_str().len()
                        + a.task_type.as_str().len()
                        + a.input.len()
                        + a.trace.len();
                    put!(self, Assign, Assignments { assignments }, convert::assignment(a), size);
                }
            }
            ToWorker::ResultAcks(acks) => {
                for a in acks {
                    let size = a.token.len() + a.message.len();
                    put!(self, ResultAcks, ResultAcks { acks }, write_ack(a), size);
                }
            }
            ToWorker::Cancel(tokens) => {
                for token in tokens {
                    let size = token.len();
                    put!(self, Cancel, Tokens { tokens }, token, size);
                }
            }
            ToWorker::Welcome(welcome) => self.frame(Out::Welcome(write_welcome(welcome)), PART_OVERHEAD),
            ToWorker::CreditAck(s) => self.frame(Out::CreditAck(write_subscription(&s)), PART_OVERHEAD),
            ToWorker::Ping => self.frame(Out::Ping(v1::Ping {}), PART_OVERHEAD),
            ToWorker::GoAway(within) => {
                self.frame(Out::GoAway(v1::GoAway { deadline_ms: millis(within) }), PART_OVERHEAD);
            }
        }
    }
}

fn millis(span: Span) -> u32 {
    u32::try_from(span.as_millis()).unwrap_or(u32::MAX)
}

fn write_subscription(subscription: &Subscription) -> v1::Subscription {
    v1::Subscription {
        r#type: subscription.task_type.to_string(),
        credit: i32::try_from(subscription.credit).unwrap_or(i32::MAX),
        labels: convert::labels(&subscription.labels),
    }
}

fn write_welcome(welcome: Welcome) -> v1::Welcome {
    v1::Welcome {
        session: welcome.session.to_string(),
        lease_ms: millis(welcome.lease),
        ack_ms: millis(welcome.ack_within),
        ping_ms: millis(welcome.ping_every),
        subscriptions: welcome.subscriptions.iter().map(write_subscription).collect(),
        valid_tokens: welcome.valid,
    }
}

fn write_ack(ack: ResultAck) -> v1::ResultAck {
    let status = match ack.status {
        AckStatus::Accepted => v1::result_ack::Status::Accepted,
        AckStatus::Stale => v1::result_ack::Status::Stale,
        AckStatus::Unknown => v1::result_ack::Status::Unknown,
        AckStatus::Invalid => v1::result_ack::Status::Invalid,
    };
    v1::ResultAck { token: ack.token, status: status.into(), message: ack.message }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dispatch::message::Assignment;
    use crate::model::ids::{RunId, TaskPath};
    use crate::model::labels::Labels;
    use crate::model::time::Timestamp;
    use prost::Message as _;

    fn connection() -> Connection {
        Connection::of(&http::Extensions::new())
    }

    fn assignment(input: usize) -> Assignment {
        Assignment {
            token: "t".repeat(60),
            run: RunId::new("order-1").unwrap(),
            path: TaskPath::parse("ship[2]").unwrap(),
            attempt: 2,
            task_type: TaskType::new("ship-item").unwrap(),
            input: vec![b'1'; input].into(),
            deadline: Some(Timestamp(7)),
            trace: "".into(),
        }
    }

    fn frames(messages: Vec<ToWorker>) -> Vec<v1::ServerMessage> {
        let mut frames = Frames::default();
        for message in messages {
            frames.push(message);
        }
        frames.done.into_iter().map(Result::unwrap).collect()
    }

    fn subscription(credit: i32) -> v1::Subscription {
        let labels = [("region".to_owned(), "eu".to_owned()), ("gpu".to_owned(), "yes".to_owned())].into();
        v1::Subscription { r#type: "pack".into(), credit, labels }
    }

    fn read_as(credit: u32) -> Subscription {
        let labels = Labels::new([("gpu", "yes"), ("region", "eu")]).unwrap();
        Subscription { task_type: TaskType::new("pack").unwrap(), credit, labels }
    }

    #[test]
    fn hello_is_read_with_its_session_and_tokens() {
        let hello = v1::Hello {
            label: "w1".into(),
            subscriptions: vec![subscription(5)],
            previous_session: "s3-abc".into(),
            tokens: vec!["t".into()],
        };
        let expected = Hello {
            label: "w1".into(),
            subscriptions: vec![read_as(5)],
            resume: Some(SessionId::new("s3-abc").unwrap()),
            tokens: vec!["t".into()],
        };
        assert_eq!(read_hello(hello, &connection()), Ok(expected));
        let nameless = read_hello(v1::Hello::default(), &connection()).unwrap();
        assert_eq!((nameless.label.as_str(), nameless.resume), ("0.0.0.0:0", None));
    }

    #[test]
    fn negative_credit_labels_and_bad_names_are_refused_with_their_place() {
        let path = |s: v1::Subscription| {
            let message = v1::WorkerMessage { message: Some(In::Credit(s)) };
            read(message).unwrap_err().faults.remove(0).path
        };
        assert_eq!(path(subscription(-1)), "credit.credit");
        assert_eq!(path(v1::Subscription { r#type: "a b".into(), ..subscription(1) }), "credit.type");
        let labels = [("gpu".to_owned(), "y e s".to_owned())].into();
        assert_eq!(path(v1::Subscription { labels, ..subscription(1) }), "credit.labels.gpu");
    }

    #[test]
    fn messages_of_a_worker_are_read_one_for_one() {
        let read = |message| read(v1::WorkerMessage { message: Some(message) }).map(Option::unwrap);
        let result = |token: &str, outcome| v1::Result { token: token.into(), outcome: Some(outcome) };
        let results = v1::Results {
            results: vec![
                result("a", v1::result::Outcome::Completed(Bytes::from_static(b"1.0"))),
                result("b", v1::result::Outcome::Failed(v1::TaskFailure::default())),
                result("c", v1::result::Outcome::Released(v1::Released {})),
            ],
        };
        let Ok(FromWorker::Results(results)) = read(In::Results(results)) else { panic!("results") };
        assert_eq!(results[0].outcome, TaskOutcome::Completed(Bytes::from_static(b"1.0")));
        assert!(matches!(&results[1].outcome, TaskOutcome::Failed(f) if f.retryable));
        assert_eq!(results[2], TaskResult { token: "c".into(), outcome: TaskOutcome::Released });
        assert_eq!(
            read(In::Ack(v1::Tokens { tokens: vec!["a".into()] })),
            Ok(FromWorker::Ack(vec!["a".into()]))
        );
        assert_eq!(read(In::Pong(v1::Pong {})), Ok(FromWorker::Pong));
        assert_eq!(read(In::Drain(v1::Drain {})), Ok(FromWorker::Drain));
        let beat = v1::Heartbeat { token: "a".into(), progress: Bytes::new() };
        assert_eq!(
            read(In::Heartbeat(v1::Heartbeats { heartbeats: vec![beat] })),
            Ok(FromWorker::Heartbeat(vec![("a".into(), None)]))
        );
        assert!(read(In::Hello(v1::Hello::default())).is_err());
        assert_eq!(super::read(v1::WorkerMessage { message: None }), Ok(None));
    }

    #[test]
    fn a_result_without_an_outcome_is_rejected_by_itself() {
        let results = vec![
            v1::Result { token: "a".into(), outcome: None },
            v1::Result { token: "b".into(), outcome: Some(v1::result::Outcome::Released(v1::Released {})) },
        ];
        let message = v1::WorkerMessage { message: Some(In::Results(v1::Results { results })) };
        let Ok(Some(FromWorker::Results(results))) = read(message) else { panic!("results") };
        assert!(matches!(&results[0].outcome, TaskOutcome::Rejected(r) if r.code == "invalid_output"));
        assert_eq!(results[1].outcome, TaskOutcome::Released);
    }

    #[test]
    fn a_type_that_hello_names_twice_is_refused_with_its_place() {
        let other = v1::Subscription { r#type: "ship".into(), ..subscription(1) };
        let hello = v1::Hello {
            subscriptions: vec![subscription(1), other, subscription(2)],
            ..v1::Hello::default()
        };
        let error = read_hello(hello, &connection()).unwrap_err();
        assert_eq!(error.faults[0].path, "hello.subscriptions[2].type");
        assert_eq!(
            error.faults[0].message,
            "pack is subscribed to by subscriptions[0] already; name each type once"
        );
    }

    #[test]
    fn neighbours_of_one_kind_share_a_frame_and_order_is_kept() {
        let ack = || ResultAck { token: "a".into(), status: AckStatus::Accepted, message: String::new() };
        let kinds: Vec<(&str, usize)> = frames(vec![
            ToWorker::ResultAcks(vec![ack()]),
            ToWorker::ResultAcks(vec![ack(), ack()]),
            ToWorker::Assign(vec![assignment(2), assignment(2)]),
            ToWorker::Assign(vec![assignment(2)]),
            ToWorker::Ping,
            ToWorker::Assign(vec![assignment(2)]),
            ToWorker::Cancel(vec!["x".into()]),
        ])
        .iter()
        .map(|frame| match frame.message.as_ref().unwrap() {
            Out::ResultAcks(list) => ("acks", list.acks.len()),
            Out::Assign(list) => ("assign", list.assignments.len()),
            Out::Cancel(list) => ("cancel", list.tokens.len()),
            Out::Ping(_) => ("ping", 1),
            _ => ("other", 0),
        })
        .collect();
        assert_eq!(kinds, [("acks", 3), ("assign", 3), ("ping", 1), ("assign", 1), ("cancel", 1)]);
    }

    #[test]
    fn frames_are_cut_by_bytes_and_by_count() {
        let large = frames(vec![ToWorker::Assign((0..10).map(|_| assignment(20_000)).collect())]);
        assert_eq!(large.len(), 4);
        assert!(large.iter().all(|frame| frame.encoded_len() <= FRAME_BYTES));
        let huge = frames(vec![ToWorker::Assign(vec![assignment(1 << 20), assignment(1 << 20)])]);
        assert_eq!(huge.len(), 2);
        let many = frames(vec![ToWorker::Cancel((0..1_000).map(|n| n.to_string()).collect())]);
        assert_eq!(many.len(), 2);
    }

    #[test]
    fn an_assignment_and_a_welcome_carry_everything() {
        let frame = frames(vec![ToWorker::Assign(vec![assignment(3)])]).remove(0);
        let Some(Out::Assign(list)) = frame.message else { panic!("assign") };
        let expected = v1::Assignment {
            token: "t".repeat(60),
            run: "order-1".into(),
            task: "ship[2]".into(),
            attempt: 2,
            r#type: "ship-item".into(),
            input: Bytes::from_static(b"111"),
            deadline_us: 7,
            trace: String::new(),
        };
        assert_eq!(list.assignments, [expected]);
        let welcome = write_welcome(Welcome {
            session: SessionId::new("s1-x").unwrap(),
            lease: Span::secs(10),
            ack_within: Span::secs(2),
            ping_every: Span::secs(3),
            subscriptions: vec![read_as(1_000)],
            valid: vec!["t".into()],
        });
        assert_eq!((welcome.lease_ms, welcome.ack_ms, welcome.ping_ms), (10_000, 2_000, 3_000));
        assert_eq!(welcome.subscriptions, [subscription(1_000)]);
        assert_eq!((welcome.session.as_str(), welcome.valid_tokens), ("s1-x", vec!["t".to_owned()]));
    }
}
