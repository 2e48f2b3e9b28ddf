//! A worker's stream, task by task, without handlers: for who measures what a subscription costs. A worker that is to
//! outlive its streams is [`Worker`](super::Worker).

use super::WorkerError;
use super::link::{self, DialError, Heard, Link};
use crate::proto::v1 as pb;
use crate::proto::v1::result::Outcome;
use crate::proto::v1::server_message::Message as FromServer;
use bytes::Bytes;
use std::collections::VecDeque;
use tonic::transport::Channel;

/// An open connection. Any number of streams share it.
#[derive(Debug, Clone)]
pub(crate) struct Connection {
    url: String,
    channel: Channel,
}

impl Connection {
    /// Connects to the server at `url`.
    pub(crate) async fn open(url: &str) -> Result<Self, WorkerError> {
        let channel = link::connect(link::endpoint(url)?).await.map_err(|e| failed(url, e))?;
        Ok(Self { url: url.to_owned(), channel })
    }

    /// Opens a stream with a session of its own that takes up to `credit` tasks of one type, and waits for its
    /// welcome.
    pub(crate) async fn subscribe(&self, task_type: &str, credit: i32) -> Result<Stream, WorkerError> {
        let subscription = pb::Subscription { r#type: task_type.to_owned(), credit, ..Default::default() };
        let hello = pb::Hello {
            label: format!("stream-{}", std::process::id()),
            subscriptions: vec![subscription],
            ..Default::default()
        };
        let opened = link::over(self.channel.clone(), hello).await;
        let (link, _) = opened.map_err(|e| failed(&self.url, e))?;
        let (url, task_type) = (self.url.clone(), task_type.to_owned());
        Ok(Stream { url, task_type, link, waiting: VecDeque::new() })
    }
}

/// An open stream; dropping it ends it, and what the server assigns to it meanwhile goes round by its lease.
#[derive(Debug)]
pub(crate) struct Stream {
    url: String,
    task_type: String,
    link: Link,
    /// Came with another one.
    waiting: VecDeque<pb::Assignment>,
}

impl Stream {
    /// The next task, already acknowledged. Cancel safe.
    pub(crate) async fn task(&mut self) -> Result<pb::Assignment, WorkerError> {
        loop {
            if let Some(task) = self.waiting.pop_front() {
                return Ok(task);
            }
            if let FromServer::Assign(list) = self.hear().await? {
                self.waiting.extend(list.assignments);
            }
        }
    }

    /// Completes a task and waits until the server has the result.
    pub(crate) async fn complete(&mut self, token: &str, output: Bytes) -> Result<(), WorkerError> {
        let outcome = Some(Outcome::Completed(output));
        self.link.outbox.results(&mut vec![pb::Result { token: token.to_owned(), outcome }]);
        loop {
            match self.hear().await? {
                FromServer::Assign(list) => self.waiting.extend(list.assignments),
                FromServer::ResultAcks(acks) => {
                    let Some(ack) = acks.acks.into_iter().find(|a| a.token == token) else { continue };
                    if ack.status() == pb::result_ack::Status::Accepted {
                        return Ok(());
                    }
                    let reason = format!("the result was not taken ({:?}): {}", ack.status(), ack.message);
                    return Err(failed(&self.url, DialError::Refused(reason)));
                }
                _ => {}
            }
        }
    }

    /// Takes no more tasks, and ends once the server has said that none will come. A task that came unasked meanwhile
    /// goes round by its lease.
    pub(crate) async fn close(mut self) -> Result<(), WorkerError> {
        self.link.outbox.drain(std::iter::once(self.task_type.clone()));
        loop {
            if let FromServer::CreditAck(ack) = self.hear().await?
                && ack.r#type == self.task_type
                && ack.credit == 0
            {
                return Ok(());
            }
        }
    }

    async fn hear(&mut self) -> Result<FromServer, WorkerError> {
        match self.link.heard.recv().await {
            Some(Heard::Message(message)) => Ok(message),
            Some(Heard::Closed(why)) => Err(failed(&self.url, DialError::Temporary(why))),
            None => Err(failed(&self.url, DialError::Temporary("the stream has ended".into()))),
        }
    }
}

fn failed(url: &str, error: DialError) -> WorkerError {
    match error {
        DialError::Temporary(reason) => WorkerError::Unreachable { url: url.to_owned(), reason },
        DialError::Refused(reason) => WorkerError::Refused(reason),
    }
}
