//! One connection at work: a writer and a reader, for as long as it lives. Nothing is spawned for a command.
//!
//! ```text
//! callers ─► Backlog ─► writer: all that waits, in one write ─► Redis ─► reader: replies in order ─► callers
//!                                                                         │ every quarter of a second
//!                                                                         └ stalled? idle: PING. INFO persistence.
//! ```
//!
//! Invariants
//! - Replies come in the order of commands; one that nobody asked for ends the connection.
//! - While something is in flight, a connection that gives no byte for [`STALL`] is dead. One that is idle is asked
//!   after [`IDLE`], so that a black hole is found within their sum.
//! - A write that fails tells which commands were begun; the others go back to where they stood.
//! - When it ends, both have ended, and nothing is in flight.

use super::backlog::{Id, Load};
use super::dial::{Login, READ_ROOM, Stream, Talk, lost};
use super::report::Persistence;
use super::wire::{Parser, Value};
use super::{Answer, Shared, Unanswered};
use bytes::BytesMut;
use std::io::IoSlice;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, ReadHalf, WriteHalf};
use tokio::time::{Instant, MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

/// For so long a connection may be silent that owes a reply.
const STALL: Duration = Duration::from_secs(4);
/// A connection that did nothing for so long is asked whether it is there.
const IDLE: Duration = Duration::from_millis(800);
/// How often this is looked at. If a look comes later than …
const LOOK: Duration = Duration::from_millis(200);
/// … so much, it was us who stood still, and what came meanwhile is read before anything is judged.
const LATE: Duration = Duration::from_secs(1);
/// How often Redis is asked about its persistence, if it is asked anything.
const PERSISTENCE_EVERY: Duration = Duration::from_secs(10);
/// Bytes of one write, unless one command has more.
const WRITE_MOST: usize = 256 << 10;
/// Pieces of one write.
const PIECES: usize = 64;
/// Room for a large reply is made in steps.
const READ_STEP: usize = 1 << 20;

/// Why a connection ended.
#[derive(Debug)]
pub(super) struct Ended(pub(super) String);

/// Works on a connection until it ends.
pub(super) async fn run(shared: &std::sync::Arc<Shared>, talk: Talk) -> Ended {
    let Talk { stream, buffer, parser, login, node } = talk;
    let (incoming, outgoing) = tokio::io::split(stream);
    shared.connected(login, node);
    let stop = CancellationToken::new();
    let writer = tokio::spawn(write(std::sync::Arc::clone(shared), outgoing, stop.clone()));
    // It must not outlive the link.
    let writer = AbortOnDropHandle::new(writer);
    let mut reader = Reader::new(shared, buffer, parser);
    let ended = reader.read(incoming, &stop).await;
    stop.cancel();
    let ended = match writer.await {
        Ok(Some(why)) => why,
        _ => ended,
    };
    shared.disconnected(&ended);
    Ended(ended)
}

// ---- writing

/// Writes what waits, until told to stop. Returns why it had to give up.
async fn write(
    shared: std::sync::Arc<Shared>,
    mut to: WriteHalf<Stream>,
    stop: CancellationToken,
) -> Option<String> {
    let (mut batch, mut late) = (Vec::new(), Vec::new());
    loop {
        let more = shared.wake.notified();
        shared.backlog.lock().take(Instant::now(), WRITE_MOST, &mut batch, &mut late);
        for answer in late.drain(..) {
            answer.fail(Unanswered::TooLate);
        }
        if batch.is_empty() {
            tokio::select! {
                biased;
                () = stop.cancelled() => return None,
                () = more => continue,
            }
        }
        shared.counters.commands.fetch_add(batch.len() as u64, Relaxed);
        let (begun, failed) = write_all(&shared, &mut to, &batch, &stop).await;
        if let Some(why) = failed {
            let mut backlog = shared.backlog.lock();
            backlog.give_back(batch.split_off(begun));
            backlog.retire();
            return why;
        }
        batch.clear();
    }
}

/// Writes a batch. Returns how many commands were begun and, if it failed or was stopped, why.
async fn write_all(
    shared: &Shared,
    to: &mut WriteHalf<Stream>,
    batch: &[(Id, Vec<u8>)],
    stop: &CancellationToken,
) -> (usize, Option<Option<String>>) {
    let (mut at, mut offset) = (0, 0);
    let begun = |at: usize, offset: usize| at + usize::from(offset > 0);
    while at < batch.len() {
        let mut pieces = [IoSlice::new(&[]); PIECES];
        let mut count = 0;
        for (piece, (_, command)) in pieces.iter_mut().zip(&batch[at..]) {
            *piece = IoSlice::new(if count == 0 { &command[offset..] } else { command });
            count += 1;
        }
        let written = tokio::select! {
            biased;
            () = stop.cancelled() => return (begun(at, offset), Some(None)),
            written = to.write_vectored(&pieces[..count]) => written,
        };
        let mut written = match written {
            Ok(0) => return (begun(at, offset), Some(Some("the connection to Redis takes no more".into()))),
            Ok(n) => n,
            Err(e) => return (begun(at, offset), Some(Some(lost(&e)))),
        };
        shared.counters.bytes_out.fetch_add(written as u64, Relaxed);
        while at < batch.len() && written >= batch[at].1.len() - offset {
            written -= batch[at].1.len() - offset;
            (at, offset) = (at + 1, 0);
        }
        offset += written;
    }
    // TLS keeps what it has encrypted until it is told.
    tokio::select! {
        biased;
        () = stop.cancelled() => (batch.len(), Some(None)),
        flushed = to.flush() => (batch.len(), flushed.err().map(|e| Some(lost(&e)))),
    }
}

// ---- reading

struct Reader<'a> {
    shared: &'a Shared,
    buffer: BytesMut,
    parser: Parser,
    /// When something was read last, or we found that we had stood still.
    heard: Instant,
    looked: Instant,
    asked_persistence: Instant,
    commands_then: u64,
    /// Why the connection is to end once all is answered.
    retiring: Option<String>,
    values: Vec<Value>,
}

impl<'a> Reader<'a> {
    fn new(shared: &'a Shared, buffer: BytesMut, parser: Parser) -> Self {
        let now = Instant::now();
        Self {
            shared,
            buffer,
            parser,
            heard: now,
            looked: now,
            asked_persistence: now,
            commands_then: shared.counters.commands.load(Relaxed),
            retiring: None,
            values: Vec::new(),
        }
    }

    /// Reads replies until the connection ends; returns why.
    async fn read(&mut self, mut from: ReadHalf<Stream>, stop: &CancellationToken) -> String {
        let mut look = interval(LOOK);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            self.buffer.reserve(self.parser.missing(&self.buffer).clamp(READ_ROOM, READ_STEP));
            let read = tokio::select! {
                biased;
                read = from.read_buf(&mut self.buffer) => read,
                _ = look.tick() => match self.look() {
                    Some(why) => return why,
                    None => continue,
                },
                () = stop.cancelled() => return "the link was closed".into(),
            };
            match read {
                Ok(0) => return "Redis closed the connection".into(),
                Err(e) => return lost(&e),
                Ok(n) => {
                    self.heard = Instant::now();
                    self.shared.counters.bytes_in.fetch_add(n as u64, Relaxed);
                }
            }
            if let Err(why) = self.replies() {
                return why;
            }
            if self.retiring.is_some() && self.shared.backlog.lock().is_retired() {
                return self.retiring.take().unwrap_or_default();
            }
        }
    }

    /// Answers with what has come.
    fn replies(&mut self) -> Result<(), String> {
        let mut junk = None;
        loop {
            match self.parser.next(&mut self.buffer) {
                Ok(Some(value)) => self.values.push(value),
                Ok(None) => break,
                Err(e) => {
                    junk = Some(format!("Redis answered junk: {e}"));
                    break;
                }
            }
        }
        if self.values.is_empty() {
            return junk.map_or(Ok(()), Err);
        }
        let mut answers = Vec::with_capacity(self.values.len());
        {
            let mut backlog = self.shared.backlog.lock();
            for value in self.values.drain(..) {
                if let Value::Error(text) = &value
                    && self.retiring.is_none()
                    && let Some(why) = must_leave(text)
                {
                    self.retiring = Some(why.into());
                    backlog.retire();
                }
                match backlog.replied(value) {
                    Ok(Some(answer)) => answers.push(answer),
                    Ok(None) => {}
                    Err(()) => {
                        junk = Some("Redis answered what nobody asked".into());
                        break;
                    }
                }
            }
        }
        for (answer, value, earlier) in answers {
            match answer {
                // Nobody may be waiting any more.
                Answer::Caller(caller) => drop(caller.send(Ok((value, earlier)))),
                Answer::Ping => {}
                Answer::Persistence => self.shared.persistence_told(&earlier, &value),
                Answer::Login(login) => self.logged_in_again(login, &value),
            }
        }
        junk.map_or(Ok(()), Err)
    }

    fn logged_in_again(&self, login: Login, answer: &Value) {
        if let Value::Error(text) = answer {
            tracing::warn!(
                why = &**text,
                "Redis refused the password that redis.password_file has now; the connection stays as it was"
            );
            return;
        }
        tracing::info!("logged in to Redis with the password that redis.password_file has now");
        self.shared.health.lock().login = Some(login);
    }

    /// Whether the connection is still good; asks what is to be asked.
    fn look(&mut self) -> Option<String> {
        let now = Instant::now();
        if now - self.looked > LATE {
            self.heard = now;
        }
        self.looked = now;
        let (Load { in_flight, waits_since, .. }, retiring, retired) = {
            let backlog = self.shared.backlog.lock();
            (backlog.load(), backlog.is_retiring(), backlog.is_retired())
        };
        if retiring && self.retiring.is_none() {
            match self.shared.health.lock().leave.take() {
                Some(why) => self.retiring = Some(why.into()),
                // The writer had to give up.
                None => return Some("the connection to Redis broke".into()),
            }
        }
        if retired {
            return self.retiring.take();
        }
        if let Some(since) = waits_since
            && now - since.max(self.heard) >= STALL
        {
            return Some(format!(
                "nothing came from Redis for {} s while {in_flight} commands waited for their replies",
                STALL.as_secs()
            ));
        }
        if waits_since.is_none() && !retiring && now - self.heard >= IDLE {
            self.shared.ask_itself(&[redis::cmd("PING")], Answer::Ping);
        }
        let commands = self.shared.counters.commands.load(Relaxed);
        if !retiring && now - self.asked_persistence >= PERSISTENCE_EVERY && commands != self.commands_then {
            (self.asked_persistence, self.commands_then) = (now, commands + 1);
            // Before Redis 7 it tells one section at a time.
            let info = ["persistence", "stats"].map(|section| {
                let mut info = redis::cmd("INFO");
                info.arg(section);
                info
            });
            self.shared.ask_itself(&info, Answer::Persistence);
        }
        None
    }
}

impl Shared {
    fn persistence_told(&self, persistence: &[Value], stats: &Value) {
        let mut info = String::new();
        for section in persistence.iter().chain([stats]) {
            // A user that may not ask is none the worse for it.
            let Value::BulkString(text) = section else { return };
            info.push_str(&String::from_utf8_lossy(text));
        }
        self.health.lock().persistence = Some((Instant::now(), Persistence::read(&info)));
    }
}

/// Whether an error says that this connection is of no use any more, because another Redis is the primary, or because
/// we are not who we were.
fn must_leave(text: &str) -> Option<&'static str> {
    let is = |code: &str| {
        text.strip_prefix(code).is_some_and(|rest| rest.starts_with(' ')) ||
        // Redis 6.2 wraps the error of a command in a script.
        text.contains(&format!("-{code} "))
    };
    if is("READONLY") || is("MASTERDOWN") {
        return Some("Redis has become a replica");
    }
    is("NOAUTH").then_some("Redis wants the password again")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_that_name_another_primary_end_a_connection() {
        for (text, leave) in [
            ("READONLY You can't write against a read only replica.", true),
            ("ERR Error running script: @user_script: 138: -READONLY You can't write", true),
            ("MASTERDOWN Link with MASTER is down", true),
            ("NOAUTH Authentication required.", true),
            ("READONLYX no", false),
            ("OOM command not allowed", false),
            ("LOADING Redis is loading the dataset in memory", false),
        ] {
            assert_eq!(must_leave(text).is_some(), leave, "{text}");
        }
    }
}
