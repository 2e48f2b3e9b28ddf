//! A reader of all events that is cut with every kill and goes on with `Last-Event-ID`.

use super::{get, insist};
use axum::body::Body;
use http::Request;
use http_body_util::BodyExt as _;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use serde_json::Value;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::watch;

/// An event, as two readers can compare it: everything but the cursor.
type Told = Value;

#[derive(Debug, Default)]
struct Seen {
    last: Option<String>,
    cuts: usize,
    resets: usize,
    runs: BTreeMap<String, Vec<Told>>,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Reader {
    seen: Arc<Mutex<Seen>>,
    ended: watch::Receiver<usize>,
    reading: tokio::task::JoinHandle<()>,
}

impl Reader {
    /// Begins to read; when this returns, nothing that happens later is missed.
    pub(crate) async fn start(address: SocketAddr) -> Self {
        let seen = Arc::new(Mutex::new(Seen::default()));
        let (ends, ended) = watch::channel(0);
        let (opened, open) = tokio::sync::oneshot::channel();
        let reading = tokio::spawn(read(address, Arc::clone(&seen), ends, opened));
        open.await.unwrap();
        Self { seen, ended, reading }
    }

    /// Waits for the first event: without one there is no cursor to go on from.
    pub(crate) async fn has_begun(&self) {
        let look = async {
            let mut pause = tokio::time::interval(Duration::from_millis(5));
            while self.seen.lock().unwrap().last.is_none() {
                pause.tick().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), look).await.expect("an event is told");
    }

    /// Waits for the end of every run and compares with what each run's own stream tells.
    pub(crate) async fn audit(mut self, address: SocketAddr, runs: usize) {
        let all =
            tokio::time::timeout(Duration::from_secs(30), self.ended.wait_for(|n| *n >= runs)).await.is_ok();
        self.reading.abort();
        let seen = std::mem::take(&mut *self.seen.lock().unwrap());
        assert!(all, "{} of {runs} runs were told to have ended", *self.ended.borrow());
        assert_eq!(seen.resets, 0, "a resume was answered with a reset");
        assert_eq!(seen.runs.len(), runs);
        println!("the reader was cut {} times", seen.cuts);
        for (run, told) in seen.runs {
            let text = insist(address, || get(&format!("/v1/runs/{run}/events")), &[200]).await;
            let own = frames(std::str::from_utf8(&text).unwrap());
            let first = told.iter().zip(&own).take_while(|(a, b)| a == b).count();
            assert_eq!(told.get(first), own.get(first), "{run}, event {first} of {}: {told:#?}", own.len());
        }
    }
}

/// The data of all whole frames of a text that have an id.
fn frames(text: &str) -> Vec<Told> {
    text.split("\n\n").filter_map(|block| parse(block).map(|(_, data)| data)).collect()
}

fn parse(block: &str) -> Option<(String, Told)> {
    let field = |name: &str| block.lines().find_map(|l| l.strip_prefix(name));
    Some((field("id: ")?.to_owned(), serde_json::from_str(field("data: ")?).unwrap()))
}

async fn read(
    address: SocketAddr,
    seen: Arc<Mutex<Seen>>,
    ends: watch::Sender<usize>,
    opened: tokio::sync::oneshot::Sender<()>,
) {
    let mut opened = Some(opened);
    let mut pause = tokio::time::interval(Duration::from_millis(20));
    loop {
        pause.tick().await;
        let client: Client<_, Body> = Client::builder(TokioExecutor::new()).build_http();
        let mut request = Request::get(format!("http://{address}/v1/events"));
        if let Some(last) = &seen.lock().unwrap().last {
            request = request.header("last-event-id", last);
        }
        let Ok(response) = client.request(request.body(Body::empty()).unwrap()).await else { continue };
        if response.status() != 200 {
            continue;
        }
        if let Some(opened) = opened.take() {
            opened.send(()).unwrap();
        }
        let mut body = response.into_body();
        let mut text = String::new();
        while let Some(Ok(frame)) = body.frame().await {
            let Ok(data) = frame.into_data() else { continue };
            text.push_str(std::str::from_utf8(&data).unwrap());
            while let Some((block, rest)) = text.split_once("\n\n") {
                take(block, &seen, &ends);
                text = rest.to_owned();
            }
        }
        seen.lock().unwrap().cuts += 1;
    }
}

fn take(block: &str, seen: &Mutex<Seen>, ends: &watch::Sender<usize>) {
    let mut seen = seen.lock().unwrap();
    if block.lines().any(|l| l == "event: reset") {
        seen.resets += 1;
    }
    let Some((id, data)) = parse(block) else { return };
    seen.last = Some(id);
    let run = data["run"].as_str().unwrap().to_owned();
    let end = data["type"] == "run.completed";
    seen.runs.entry(run).or_default().push(data);
    drop(seen);
    if end {
        ends.send_modify(|n| *n += 1);
    }
}
