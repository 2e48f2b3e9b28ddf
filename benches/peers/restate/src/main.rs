//! Restate as a peer: two services of its Rust SDK, and a driver that calls them through the server's ingress.
//!
//! ```text
//! restate-peer flow|task --port PORT --chains N --ledger FILE
//! restate-peer driver --ingress URL --handler calls|steps --worker PORT --mode chain|closed|idle --before N --warm-up N --runs N
//! ```
//!
//! `calls` is nine calls to the task service in the other process; `steps` is nine durable steps in the handler itself.

#![forbid(unsafe_code)]

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::Request;
use hyper_util::client::legacy::{Client, connect::HttpConnector};
use peer_kit::{Options, TASKS, Turn, audit, done, fail, first, last, ledger, milliseconds};
use restate_sdk::prelude::*;
use serde_json::json;
use std::error::Error;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Calls in flight: of those that wait for the end of a chain, and of those that only start it.
const CLOSED: u64 = 256;
const STARTERS: u64 = 128;

type Outcome = Result<(), Box<dyn Error>>;

struct Task;

#[restate_sdk::service]
impl Task {
    #[handler]
    async fn noop(&self, _ctx: Context<'_>, x: u64) -> Result<u64, HandlerError> {
        Ok(ledger(|| 0).task(x))
    }
}

struct Flow;

#[restate_sdk::service]
impl Flow {
    #[handler]
    async fn calls(&self, ctx: Context<'_>, x: u64) -> Result<u64, HandlerError> {
        let mut x = x;
        for _ in 0..TASKS {
            x = ctx.service_client::<TaskClient>().noop(x).call().await?;
        }
        ledger(|| 0).end(x);
        Ok(x)
    }

    #[handler]
    async fn steps(&self, ctx: Context<'_>, x: u64) -> Result<u64, HandlerError> {
        let mut x = x;
        for _ in 0..TASKS {
            x = ctx.run(|| async move { Ok(ledger(|| 0).task(x)) }).await?;
        }
        ledger(|| 0).end(x);
        Ok(x)
    }
}

async fn service(options: &Options) -> Outcome {
    let ledger = ledger(|| options.get("chains"));
    let endpoint = Endpoint::builder();
    let endpoint = if options.role == "flow" { endpoint.bind(Flow) } else { endpoint.bind(Task) }.build();
    let address = ([127, 0, 0, 1], options.get::<u16>("port")).into();
    let file: PathBuf = options.get("ledger");
    tokio::select! {
        served = ledger.serve(&file) => Ok(served?),
        () = HttpServer::new(endpoint).listen_and_serve(address) => Err("the service ended".into()),
    }
}

#[derive(Clone)]
struct Ingress {
    client: Client<HttpConnector, Full<Bytes>>,
    url: Arc<str>,
}

impl Ingress {
    fn new(options: &Options) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        let client = Client::builder(hyper_util::rt::TokioExecutor::new()).build(connector);
        let url = format!("{}/Flow/{}", options.get::<String>("ingress"), options.get::<String>("handler"));
        Self { client, url: url.into() }
    }

    async fn post(&self, url: String, x: u64) -> Result<Bytes, Box<dyn Error + Send + Sync>> {
        let request = Request::post(&url)
            .header("content-type", "application/json")
            .body(Full::new(Bytes::from(x.to_string())))?;
        let answer = self.client.request(request).await?;
        let status = answer.status();
        let body = answer.into_body().collect().await?.to_bytes();
        if !status.is_success() {
            return Err(format!("{url}: {status}: {}", String::from_utf8_lossy(&body)).into());
        }
        Ok(body)
    }

    /// Starts a chain.
    async fn send(&self, chain: u64) -> Result<(), Box<dyn Error + Send + Sync>> {
        self.post(format!("{}/send", self.url), first(chain)).await.map(|_| ())
    }

    /// Starts a chain and waits for its output, which must be right.
    async fn call(&self, chain: u64) -> Result<(), Box<dyn Error + Send + Sync>> {
        let output = self.post(self.url.to_string(), first(chain)).await?;
        if output[..] != *last(chain).to_string().as_bytes() {
            return Err(format!("chain {chain} ended with {}", String::from_utf8_lossy(&output)).into());
        }
        Ok(())
    }

    /// All chains of a range, so many at a time.
    async fn all(&self, from: u64, runs: u64, at_a_time: u64, wait: bool) -> Outcome {
        let next = Arc::new(AtomicU64::new(0));
        let callers: Vec<_> = (0..at_a_time)
            .map(|_| {
                let (ingress, next) = (self.clone(), Arc::clone(&next));
                tokio::spawn(async move {
                    loop {
                        let n = next.fetch_add(1, Ordering::Relaxed);
                        if n >= runs {
                            return Ok(());
                        }
                        if wait { ingress.call(from + n).await? } else { ingress.send(from + n).await? }
                    }
                })
            })
            .collect();
        for caller in callers {
            caller.await?.map_err(|e: Box<dyn Error + Send + Sync>| e.to_string())?;
        }
        Ok(())
    }
}

async fn driver(options: &Options) -> Outcome {
    let ingress = Ingress::new(options);
    let before: u64 = options.get("before");
    let (warm_up, runs): (u64, u64) = (options.get("warm-up"), options.get("runs"));
    let from = before + warm_up;
    let mut turn = Turn::new(options.get("worker"), before).await?;
    ingress.all(before, warm_up, STARTERS, true).await?;
    turn.ended(warm_up).await?;
    turn.ready()?;

    let began = Instant::now();
    match options.get::<String>("mode").as_str() {
        "idle" => {
            let mut times = Vec::new();
            for n in 0..runs {
                let sent = Instant::now();
                ingress.call(from + n).await.map_err(|e| e.to_string())?;
                times.push(milliseconds(sent.elapsed()));
            }
            done(&json!({ "elapsed_s": began.elapsed().as_secs_f64(), "latencies_ms": times }))?;
        }
        "closed" => {
            ingress.all(from, runs, CLOSED, true).await?;
            done(&json!({ "elapsed_s": began.elapsed().as_secs_f64() }))?;
        }
        _ => {
            ingress.all(from, runs, STARTERS, false).await?;
            let submitted = began.elapsed();
            turn.ended(warm_up + runs).await?;
            done(
                &json!({ "elapsed_s": began.elapsed().as_secs_f64(), "submitted_s": submitted.as_secs_f64() }),
            )?;
        }
    }
    // What ran is in the services' ledgers; a wrong output has ended this process.
    audit(&[]);
    Ok(())
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    let options = Options::read();
    let outcome = match options.role.as_str() {
        "flow" | "task" => service(&options).await,
        "driver" => driver(&options).await,
        other => fail(format!("{other} is none of flow, task and driver")),
    };
    if let Err(e) = outcome {
        fail(e);
    }
    // Not a return, which would wait for what else runs.
    std::process::exit(0);
}
