//! One wide run, worked on through two servers: they share it without fighting over it.

use super::Pair;
use super::support::server::Server;
use downbeat::client::{Task, Worker};
use serde_json::json;
use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::sync::{Arc, Mutex};

/// Calls of scripts that Redis has had so far.
fn script_calls(port: u16) -> u64 {
    let mut stream = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.write_all(b"INFO commandstats\r\n").unwrap();
    let mut reader = BufReader::new(stream);
    let mut head = String::new();
    reader.read_line(&mut head).unwrap();
    let mut text = vec![0; head.trim().strip_prefix('$').unwrap().parse().unwrap()];
    reader.read_exact(&mut text).unwrap();
    let text = String::from_utf8(text).unwrap();
    let line = text.lines().find_map(|l| l.strip_prefix("cmdstat_evalsha:calls=")).unwrap();
    line.split(',').next().unwrap().parse().unwrap()
}

/// By task: how often it was done, and through which server.
type Done = Arc<Mutex<BTreeMap<String, Vec<usize>>>>;

fn working(server: &Server, number: usize, done: &Done) -> tokio::task::JoinHandle<()> {
    let done = Arc::clone(done);
    let work = move |task: Task| {
        done.lock().unwrap().entry(task.path().to_owned()).or_default().push(number);
        async move { Ok(task.input().clone()) }
    };
    let worker = Worker::builder(server.url()).handle("work", 32, work).build().unwrap();
    tokio::spawn(async move { drop(worker.run().await) })
}

#[tokio::test]
async fn two_servers_share_a_wide_run_without_a_storm_of_conflicts() {
    const ITEMS: u32 = 2_000;
    let pair = Pair::start();
    let text = "name: wide\ntasks:\n  each: { for_each: '${{ input }}', type: work, input: '${{ item }}' }\noutput: '${{ tasks.each.output }}'\n";
    assert_eq!(pair.a.put("/v1/workflows/wide", "application/yaml", text).await.status, 201);
    let done = Done::default();
    let workers = [working(&pair.a, 0, &done), working(&pair.b, 1, &done)];
    let before = script_calls(pair.redis.port());
    let items: Vec<u32> = (0..ITEMS).collect();
    assert_eq!(pair.a.start_run("wide", "r1", &json!(items).to_string()).await.status, 201);
    let run = pair.b.get("/v1/runs/r1?wait=60s").await.json();
    let calls = script_calls(pair.redis.port()) - before;
    assert_eq!((&run["status"], &run["output"]), (&json!("completed"), &json!(items)));
    let done = done.lock().unwrap();
    assert_eq!(done.len(), ITEMS as usize);
    assert!(done.values().all(|by| by.len() == 1), "every item was done once");
    for server in [0, 1] {
        assert!(done.values().any(|by| *by == [server]), "the worker on server {server} had a part");
    }
    println!("{calls} calls of scripts for {ITEMS} items");
    // A commit each that nobody contests would be as many, or, decided together, fewer.
    assert!(calls < u64::from(ITEMS), "{calls} calls of scripts for {ITEMS} items");
    for worker in workers {
        worker.abort();
    }
}
