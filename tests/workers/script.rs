//! A server whose streams a test holds: it says what the server hears and says, message by message.

use bytes::Bytes;
use downbeat::proto::v1 as pb;
use downbeat::proto::v1::server_message::Message as FromServer;
use downbeat::proto::v1::worker_message::Message as ToServer;
use downbeat::proto::v1::worker_service_server::{WorkerService, WorkerServiceServer};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tonic::{Request, Response, Status, Streaming};

/// A whole test must end within this.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// One stream as the test holds it.
pub(crate) struct Stream {
    pub(crate) said: Streaming<pb::WorkerMessage>,
    pub(crate) say: mpsc::Sender<Result<pb::ServerMessage, Status>>,
}

impl Stream {
    pub(crate) async fn hear(&mut self) -> ToServer {
        let message =
            tokio::time::timeout(PATIENCE, self.said.message()).await.expect("the worker is silent");
        message.expect("the stream broke").expect("the worker closed").message.expect("an empty message")
    }

    pub(crate) async fn hello(&mut self) -> pb::Hello {
        match self.hear().await {
            ToServer::Hello(hello) => hello,
            other => panic!("expected Hello, got {other:?}"),
        }
    }

    /// Results up to `count`, with acknowledgements and heartbeats read over.
    pub(crate) async fn results(&mut self, count: usize) -> Vec<pb::Result> {
        let mut results = Vec::new();
        while results.len() < count {
            if let ToServer::Results(batch) = self.hear().await {
                results.extend(batch.results);
            }
        }
        assert_eq!(results.len(), count, "more results than expected");
        results
    }

    pub(crate) async fn say(&self, message: FromServer) {
        self.say.send(Ok(pb::ServerMessage { message: Some(message) })).await.expect("the worker hung up");
    }

    pub(crate) async fn welcome(&self, session: &str, valid: &[&str]) {
        self.say(FromServer::Welcome(pb::Welcome {
            session: session.into(),
            lease_ms: 10_000,
            ack_ms: 2_000,
            ping_ms: 3_000,
            subscriptions: Vec::new(),
            valid_tokens: valid.iter().map(|t| (*t).to_owned()).collect(),
        }))
        .await;
    }

    pub(crate) async fn assign(&self, task_type: &str, tokens: &[&str]) {
        let assignments = tokens
            .iter()
            .map(|token| pb::Assignment {
                token: (*token).to_owned(),
                run: "r".into(),
                task: "t".into(),
                attempt: 1,
                r#type: task_type.into(),
                input: Bytes::from(format!("\"{token}\"")),
                ..pb::Assignment::default()
            })
            .collect();
        self.say(FromServer::Assign(pb::Assignments { assignments })).await;
    }

    pub(crate) async fn accept(&self, tokens: impl IntoIterator<Item = String>) {
        let acks = tokens
            .into_iter()
            .map(|token| pb::ResultAck {
                token,
                status: pb::result_ack::Status::Accepted.into(),
                message: String::new(),
            })
            .collect();
        self.say(FromServer::ResultAcks(pb::ResultAcks { acks })).await;
    }

    /// Answers a drain: credit 0 and then the word itself.
    pub(crate) async fn drained(&mut self, types: usize) {
        for _ in 0..types {
            match self.hear().await {
                ToServer::Credit(credit) => {
                    assert_eq!(credit.credit, 0);
                    self.say(FromServer::CreditAck(credit)).await;
                }
                other => panic!("expected Credit, got {other:?}"),
            }
        }
        assert!(matches!(self.hear().await, ToServer::Drain(_)));
    }
}

struct Script(mpsc::Sender<Stream>);

#[tonic::async_trait]
impl WorkerService for Script {
    type ConnectStream = ReceiverStream<Result<pb::ServerMessage, Status>>;

    async fn connect(
        &self,
        request: Request<Streaming<pb::WorkerMessage>>,
    ) -> Result<Response<Self::ConnectStream>, Status> {
        let (say, rx) = mpsc::channel(64);
        let stream = Stream { said: request.into_inner(), say };
        self.0.send(stream).await.map_err(|_| Status::permission_denied("the script is over"))?;
        Ok(Response::new(ReceiverStream::new(rx)))
    }
}

/// A server whose streams come out of the returned channel, and its address.
pub(crate) async fn server() -> (String, mpsc::Receiver<Stream>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (tx, rx) = mpsc::channel(8);
    let service = WorkerServiceServer::new(Script(tx));
    tokio::spawn(
        tonic::transport::Server::builder()
            .add_service(service)
            .serve_with_incoming(TcpListenerStream::new(listener)),
    );
    (format!("http://{address}"), rx)
}

pub(crate) async fn next(streams: &mut mpsc::Receiver<Stream>) -> Stream {
    tokio::time::timeout(PATIENCE, streams.recv()).await.expect("the worker does not connect").unwrap()
}
