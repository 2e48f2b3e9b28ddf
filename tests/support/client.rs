//! Plain clients: HTTP/1.1 and HTTP/2 by hand, events as text frames, a worker on its stream.

use super::server::Door;
use axum::body::Body;
use bytes::Bytes;
use downbeat::proto::v1;
use downbeat::proto::v1::server_message::Message as FromServer;
use downbeat::proto::v1::worker_message::Message as ToServer;
use downbeat::proto::v1::worker_service_client::WorkerServiceClient;
use http::{HeaderMap, Request};
use http_body_util::BodyExt as _;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use serde_json::Value;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::Streaming;
use tonic::transport::Channel;

/// Nothing that a test waits for takes longer.
pub const PATIENCE: Duration = Duration::from_secs(15);

/// Waits, but not for ever.
pub async fn soon<F: Future>(what: F) -> F::Output {
    tokio::time::timeout(PATIENCE, what).await.expect("it takes too long")
}

/// An answer, read whole.
#[derive(Debug, Clone)]
pub struct Answer {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Answer {
    /// The body as JSON.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("{e}: {self:?}"))
    }

    /// The body as text.
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    /// The header `name` as text; empty if there is none.
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |v| v.to_str().unwrap())
    }

    /// Asserts that this is a problem and gives its code and the paths of its faults.
    #[track_caller]
    pub fn problem(&self) -> (String, Vec<String>) {
        assert_eq!(self.header("content-type"), "application/problem+json", "{self:?}");
        let body = self.json();
        assert_eq!(body["status"], self.status);
        assert_eq!(body["type"], format!("/docs/errors/{}", body["code"].as_str().unwrap()));
        let faults = body["faults"].as_array().unwrap();
        let paths = faults.iter().map(|f| f["path"].as_str().unwrap().to_owned()).collect();
        (body["code"].as_str().unwrap().to_owned(), paths)
    }

    /// Asserts status and code.
    #[track_caller]
    pub fn refused(&self, status: u16, code: &str) {
        assert_eq!((self.status, self.problem().0.as_str()), (status, code), "{}", self.text());
    }

    /// Asserts an invalid request for this part alone.
    #[track_caller]
    pub fn invalid(&self, path: &str) {
        assert_eq!(self.problem(), ("invalid_request".to_owned(), vec![path.to_owned()]), "{}", self.text());
        assert_eq!(self.status, 400);
    }
}

impl Door {
    /// Sends a request over HTTP/1.1 and reads the answer whole.
    pub async fn send(&self, request: Request<Body>) -> Answer {
        let response = soon(self.open(request)).await;
        let (parts, body) = response.into_parts();
        let body = soon(body.collect()).await.unwrap().to_bytes();
        Answer { status: parts.status.as_u16(), headers: parts.headers, body }
    }

    /// Sends a request over a connection of its own, where it may fail: the answer, or what went wrong.
    pub async fn try_send(&self, mut request: Request<Body>, within: Duration) -> Result<Answer, String> {
        let path = request.uri().to_string();
        *request.uri_mut() = format!("http://{}{path}", self.address()).parse().unwrap();
        let client: Client<_, Body> = Client::builder(TokioExecutor::new()).build_http();
        let asked = async {
            let response = client.request(request).await.map_err(|e| e.to_string())?;
            let (parts, body) = response.into_parts();
            let body = body.collect().await.map_err(|e| e.to_string())?.to_bytes();
            Ok(Answer { status: parts.status.as_u16(), headers: parts.headers, body })
        };
        tokio::time::timeout(within, asked).await.unwrap_or_else(|_| Err(format!("no answer in {within:?}")))
    }

    /// Reads where it may fail.
    pub async fn try_get(&self, path: &str) -> Result<Answer, String> {
        self.try_send(Request::get(path).body(Body::empty()).unwrap(), PATIENCE).await
    }

    /// Posts JSON where it may fail.
    pub async fn try_post(&self, path: &str, body: &str) -> Result<Answer, String> {
        let request = Request::post(path).header("content-type", "application/json");
        self.try_send(request.body(Body::from(body.to_owned())).unwrap(), PATIENCE).await
    }

    /// Asks again and again until the answer has one of these statuses: the server, or what it needs, may be away.
    pub async fn insist(&self, make: impl Fn() -> Request<Body>, statuses: &[u16]) -> Answer {
        let mut last = None;
        let began = tokio::time::Instant::now();
        let mut pause = tokio::time::interval(Duration::from_millis(50));
        while began.elapsed() < Duration::from_mins(1) {
            pause.tick().await;
            match self.try_send(make(), PATIENCE).await {
                Ok(answer) if statuses.contains(&answer.status) => return answer,
                other => last = Some(other),
            }
        }
        panic!("asked for a minute; at last {last:?}")
    }

    /// Reads, for as long as it takes.
    pub async fn insist_get(&self, path: &str) -> Answer {
        self.insist(|| Request::get(path).body(Body::empty()).unwrap(), &[200]).await
    }

    /// Posts JSON, for as long as it takes; what is posted must be safe to repeat.
    pub async fn insist_post(&self, path: &str, body: &str) -> Answer {
        let make = || {
            let request = Request::post(path).header("content-type", "application/json");
            request.body(Body::from(body.to_owned())).unwrap()
        };
        self.insist(make, &[200, 201, 202]).await
    }

    /// Sends a request over HTTP/1.1 and leaves the body of the answer to the caller.
    pub async fn open(&self, mut request: Request<Body>) -> http::Response<hyper::body::Incoming> {
        let path = request.uri().to_string();
        *request.uri_mut() = format!("http://{}{path}", self.address()).parse().unwrap();
        let client: Client<_, Body> = Client::builder(TokioExecutor::new()).build_http();
        client.request(request).await.unwrap()
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.send(Request::get(path).body(Body::empty()).unwrap()).await
    }

    pub async fn delete(&self, path: &str) -> Answer {
        self.send(Request::delete(path).body(Body::empty()).unwrap()).await
    }

    /// Posts JSON.
    pub async fn post(&self, path: &str, body: impl Into<Body>) -> Answer {
        let request = Request::post(path).header("content-type", "application/json");
        self.send(request.body(body.into()).unwrap()).await
    }

    /// Registers a document of the given type.
    pub async fn put(&self, path: &str, kind: &str, text: impl Into<Body>) -> Answer {
        self.send(Request::put(path).header("content-type", kind).body(text.into()).unwrap()).await
    }

    /// Registers `name`: one task `pack` that gets the run's input and gives the run's output.
    pub async fn register_echo(&self, name: &str) {
        let text = format!(
            "name: {name}\ntasks:\n  pack:\n    type: {name}-pack\n    input: ${{{{ input }}}}\n    \
             retry: {{ max_attempts: 1 }}\noutput: ${{{{ tasks.pack.output }}}}\n"
        );
        let answer = self.put(&format!("/v1/workflows/{name}"), "application/yaml", text).await;
        assert_eq!(answer.status, 201, "{}", answer.text());
    }

    /// Starts a run of `workflow` with an id and an input (JSON text).
    pub async fn start_run(&self, workflow: &str, id: &str, input: &str) -> Answer {
        let body = format!("{{\"workflow\":\"{workflow}\",\"id\":\"{id}\",\"input\":{input}}}");
        self.post("/v1/runs", body).await
    }

    /// Claims one task of a type; waits for it.
    pub async fn claim(&self, task_type: &str) -> Value {
        let body = serde_json::json!({"types": [task_type], "wait": "10s", "worker": "claimer"});
        let answer = self.post("/v1/tasks/claim", body.to_string()).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        answer.json()[0].clone()
    }

    /// A channel for the generated clients.
    pub async fn channel(&self) -> Channel {
        Channel::from_shared(format!("http://{}", self.address())).unwrap().connect().await.unwrap()
    }

    /// Opens an event stream; the answer must be one.
    pub async fn watch(&self, path: &str, last: Option<&str>) -> Events {
        let mut request = Request::get(path).header("accept-encoding", "gzip");
        if let Some(last) = last {
            request = request.header("last-event-id", last);
        }
        let response = soon(self.open(request.body(Body::empty()).unwrap())).await;
        assert_eq!(response.status(), 200);
        Events { headers: response.headers().clone(), body: response.into_body(), text: String::new() }
    }
}

/// A frame of an event stream.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Frame {
    pub id: Option<String>,
    pub event: String,
    pub data: String,
}

impl Frame {
    /// The data as JSON.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.data).unwrap()
    }
}

/// An open event stream.
#[derive(Debug)]
pub struct Events {
    pub headers: HeaderMap,
    body: hyper::body::Incoming,
    text: String,
}

impl Events {
    /// The next event, without comments; `None` at the end of the stream.
    pub async fn next(&mut self) -> Option<Frame> {
        loop {
            while let Some((block, rest)) = self.text.split_once("\n\n") {
                let (block, rest) = (block.to_owned(), rest.to_owned());
                self.text = rest;
                if let Some(frame) = parse(&block) {
                    return Some(frame);
                }
            }
            let data = soon(self.body.frame()).await?.unwrap().into_data().unwrap();
            self.text.push_str(std::str::from_utf8(&data).unwrap());
        }
    }

    /// Everything up to the end of the stream.
    pub async fn rest(mut self) -> Vec<Frame> {
        let mut all = Vec::new();
        while let Some(frame) = self.next().await {
            all.push(frame);
        }
        all
    }
}

pub(super) fn parse(block: &str) -> Option<Frame> {
    let mut frame = Frame::default();
    for line in block.lines().filter(|l| !l.starts_with(':')) {
        let (name, value) = line.split_once(": ").unwrap();
        match name {
            "id" => frame.id = Some(value.to_owned()),
            "event" => value.clone_into(&mut frame.event),
            "data" => value.clone_into(&mut frame.data),
            other => panic!("unknown field {other}"),
        }
    }
    (!frame.event.is_empty()).then_some(frame)
}

/// A worker on its stream, speaking the protocol by hand.
#[derive(Debug)]
pub struct Worker {
    pub send: mpsc::UnboundedSender<v1::WorkerMessage>,
    pub messages: Streaming<v1::ServerMessage>,
    /// Assignments that came with others.
    waiting: Vec<v1::Assignment>,
}

impl Worker {
    /// Opens a stream without saying anything.
    pub async fn open(server: &Door) -> Self {
        let (send, messages) = mpsc::unbounded_channel();
        let mut client = WorkerServiceClient::new(server.channel().await);
        let messages = client.connect(UnboundedReceiverStream::new(messages)).await.unwrap().into_inner();
        Self { send, messages, waiting: Vec::new() }
    }

    /// Opens a session for one type and reads `Welcome`.
    pub async fn hello(server: &Door, task_type: &str, credit: i32) -> (Self, v1::Welcome) {
        Self::hello_with(server, task_type, credit, &[]).await
    }

    /// Opens a session for one type with labels and reads `Welcome`.
    pub async fn hello_with(
        server: &Door,
        task_type: &str,
        credit: i32,
        labels: &[(&str, &str)],
    ) -> (Self, v1::Welcome) {
        let mut worker = Self::open(server).await;
        let labels = labels.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        let subscription = v1::Subscription { r#type: task_type.into(), credit, labels };
        worker.say(ToServer::Hello(v1::Hello {
            label: "by-hand".into(),
            subscriptions: vec![subscription],
            ..v1::Hello::default()
        }));
        match worker.hear().await.unwrap() {
            FromServer::Welcome(welcome) => (worker, welcome),
            other => panic!("{other:?}"),
        }
    }

    /// Says something.
    pub fn say(&self, message: ToServer) {
        self.send.send(v1::WorkerMessage { message: Some(message) }).unwrap();
    }

    /// The next message that is no ping; pings are answered.
    pub async fn hear(&mut self) -> Result<FromServer, tonic::Status> {
        loop {
            let message = soon(self.messages.message()).await?.expect("the stream has ended");
            match message.message.unwrap() {
                FromServer::Ping(_) => self.say(ToServer::Pong(v1::Pong {})),
                other => return Ok(other),
            }
        }
    }

    /// Waits for the end of the stream; only pings may come before it.
    pub async fn end(&mut self) {
        while let Some(message) = soon(self.messages.message()).await.unwrap() {
            assert!(matches!(message.message, Some(FromServer::Ping(_))), "{message:?}");
        }
    }

    /// The next assignment, acknowledged.
    pub async fn assignment(&mut self) -> v1::Assignment {
        while self.waiting.is_empty() {
            if let FromServer::Assign(list) = self.hear().await.unwrap() {
                let tokens = list.assignments.iter().map(|a| a.token.clone()).collect();
                self.say(ToServer::Ack(v1::Tokens { tokens }));
                self.waiting = list.assignments;
            }
        }
        self.waiting.remove(0)
    }

    /// Sends a result and waits for its acknowledgement.
    pub async fn settle(&mut self, token: &str, outcome: v1::result::Outcome) -> v1::ResultAck {
        let result = v1::Result { token: token.to_owned(), outcome: Some(outcome) };
        self.say(ToServer::Results(v1::Results { results: vec![result] }));
        loop {
            match self.hear().await.unwrap() {
                FromServer::ResultAcks(mut list) => return list.acks.remove(0),
                FromServer::Assign(list) => self.waiting.extend(list.assignments),
                _ => {}
            }
        }
    }
}
