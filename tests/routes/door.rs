//! Clients that are slow, silent, greedy or hostile: each is closed or refused, and others are served meanwhile.

#![allow(clippy::float_cmp, reason = "counts are exact")]

use crate::support::client::{Worker, soon};
use crate::support::raw::{
    CONTINUATION, DATA, END_HEADERS, END_STREAM, HEADERS, PING, RST_STREAM, Raw, SETTINGS, block, call,
    frame, head, preface,
};
use crate::support::server::Server;
use axum::body::Body;
use downbeat::proto::v1;
use downbeat::proto::v1::run_service_client::RunServiceClient;
use futures::future::join_all;
use http::Request;
use std::io::Write as _;
use std::time::Duration;
use tokio::time::Instant;
use tonic::Code;
use tonic_types::StatusExt as _;

/// A server that waits less than usual.
fn impatient() -> Server {
    let short = "600ms";
    Server::start_with(&[
        ("DOWNBEAT_LIMIT_HEAD", short),
        ("DOWNBEAT_LIMIT_BODY", short),
        ("DOWNBEAT_LIMIT_STALLED", short),
        ("DOWNBEAT_LIMIT_PING", "300ms"),
        ("DOWNBEAT_LIMIT_PING_ANSWER", "300ms"),
    ])
}

/// Of each kind of slow client.
const EACH: usize = 8;

const PAUSE: Duration = Duration::from_millis(100);

/// The value of a metric without labels.
async fn metric(server: &Server, name: &str) -> f64 {
    let page = server.get("/metrics").await;
    let line = page.text().lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(' ').map(str::to_owned));
    line.unwrap_or_else(|| panic!("{name} is not told")).parse().unwrap()
}

/// Waits until it holds.
async fn until(what: &str, holds: impl AsyncFn() -> bool) {
    let waits = async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(15), waits).await.unwrap_or_else(|_| panic!("never: {what}"));
}

/// How long a plain request takes, in the middle of eleven.
async fn usual_time(server: &Server) -> Duration {
    let mut times = Vec::new();
    for _ in 0..11 {
        let begun = Instant::now();
        assert_eq!(server.get("/v1/workflows").await.status, 200);
        times.push(begun.elapsed());
    }
    times.sort_unstable();
    times[5]
}

#[tokio::test]
async fn whoever_is_slow_or_silent_is_closed_and_others_are_served_meanwhile() {
    let server = impatient();
    assert_eq!(server.get("/readyz").await.status, 200);
    let before = server.descriptors();
    let long = vec![b'x'; 10_000];
    // What is said at once, and what then comes byte by byte.
    let http1 = |text: &str| text.as_bytes().to_vec();
    let post = "POST /v1/runs HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n";
    let begins = |head: &[u8]| [preface(), frame(HEADERS, END_HEADERS, 1, head)].concat();
    let json = [("content-type", "application/json")];
    let data: Vec<u8> = (0..1_000).flat_map(|_| frame(DATA, 0, 1, b"x")).collect();
    let continued: Vec<u8> = (0..1_000).flat_map(|_| frame(CONTINUATION, 0, 1, &[])).collect();
    let clients: Vec<(&str, Vec<u8>, Vec<u8>)> = vec![
        ("nothing at all", vec![], vec![]),
        ("half a preface", http1("PRI * HTTP/2"), vec![]),
        ("a preface by the byte", vec![], preface()),
        ("a head by the byte", http1("GET / HTTP/1.1\r\nhost: a\r\nx-slow: "), long.clone()),
        ("a body by the byte", http1(&format!("{post}content-length: 10000\r\n\r\n")), long.clone()),
        (
            "a chunked body by the byte",
            http1(&format!("{post}transfer-encoding: chunked\r\n\r\n")),
            "1\r\nx\r\n".repeat(1_000).into_bytes(),
        ),
        ("idle after a request", http1("GET /livez HTTP/1.1\r\nhost: a\r\n\r\n"), vec![]),
        ("HTTP/2 without a frame", preface(), vec![]),
        ("HTTP/2, a head by the byte", preface(), frame(HEADERS, END_HEADERS, 1, &head("GET", "/", &[]))),
        (
            "HTTP/2, a head without an end",
            [preface(), frame(HEADERS, 0, 1, &head("GET", "/", &[]))].concat(),
            continued,
        ),
        ("HTTP/2, a body by the byte", begins(&head("POST", "/v1/runs", &json)), data.clone()),
        ("gRPC, a request by the byte", begins(&call("/downbeat.v1.RunService/Get")), data.clone()),
        ("gRPC, a stream that says nothing", begins(&call("/downbeat.v1.WorkerService/Connect")), vec![]),
        ("gRPC, a stream by the byte", begins(&call("/downbeat.v1.WorkerService/Connect")), data),
    ];
    let all = clients.iter().flat_map(|client| std::iter::repeat_n(client, EACH)).map(
        async |(name, first, then)| {
            let mut raw = Raw::connect(&server).await;
            // On a machine that is busy its time may be over before its turn comes.
            let _ = raw.say(first).await;
            let closed = tokio::time::timeout(Duration::from_secs(12), raw.drip(then, PAUSE)).await;
            let (took, _) = closed.unwrap_or_else(|_| panic!("{name}: it is still open"));
            (*name, took)
        },
    );
    let silent = (0..300).map(async |_| {
        let mut raw = Raw::connect(&server).await;
        let closed = tokio::time::timeout(Duration::from_secs(12), raw.rest()).await;
        closed.expect("a silent one is still open")
    });
    let (times, answers, usual) = tokio::join!(join_all(all), join_all(silent), async {
        tokio::time::sleep(PAUSE).await;
        usual_time(&server).await
    });
    for (name, took) in times {
        // Three times what is set, for a machine that is busy.
        assert!(took < Duration::from_secs(6), "{name}: {took:?}");
    }
    assert!(answers.iter().all(Vec::is_empty));
    assert!(usual < Duration::from_millis(200), "{usual:?}");
    until("descriptors return", async || server.descriptors() <= before + 2).await;
    until("streams return", async || metric(&server, "downbeat_connections").await <= 1.0).await;
    assert_eq!(metric(&server, "downbeat_body_bytes").await, 0.0);
}

#[tokio::test]
async fn a_body_that_comes_too_slowly_gets_an_answer_that_says_so() {
    let server = impatient();
    let mut raw = Raw::connect(&server).await;
    raw.say(b"POST /v1/runs HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{")
        .await
        .unwrap();
    let answer = String::from_utf8(soon(raw.rest()).await).unwrap();
    assert!(answer.starts_with("HTTP/1.1 504 "), "{answer}");
    assert!(answer.contains("\"deadline_exceeded\""), "{answer}");

    let mut client = Raw::http2(&server).await;
    let message = [&[0, 0, 0, 0, 9][..], b"abc"].concat();
    client.say(&frame(HEADERS, END_HEADERS, 1, &call("/downbeat.v1.RunService/Get"))).await.unwrap();
    client.say(&frame(DATA, 0, 1, &message)).await.unwrap();
    let status = async {
        while let Some((kind, flags, stream, payload)) = client.frame().await {
            if kind == PING && flags == 0 {
                client.say(&frame(PING, 1, 0, &payload)).await.unwrap();
            }
            // What the table of codes says, as text in a block that is not compressed beyond the known.
            if kind == HEADERS && stream == 1 {
                return payload;
            }
        }
        panic!("no answer");
    };
    assert!(!soon(status).await.is_empty());
    // The number 4 of the code is in the metrics.
    until("it is counted", async || {
        let page = server.get("/metrics").await;
        let line =
            "downbeat_grpc_calls_total{method=\"/downbeat.v1.RunService/Get\",code=\"DEADLINE_EXCEEDED\"} 1";
        page.text().lines().any(|l| l == line)
    })
    .await;
}

#[tokio::test]
async fn connections_over_the_limit_are_told_so_and_probes_are_answered() {
    let server = Server::start_with(&[("DOWNBEAT_LIMIT_CONNECTIONS", "4")]);
    let get = |path: &str| format!("GET {path} HTTP/1.1\r\nhost: a\r\n\r\n").into_bytes();
    let mut open = Vec::new();
    for _ in 0..4 {
        let mut raw = Raw::connect(&server).await;
        raw.say(&get("/livez")).await.unwrap();
        assert!(soon(raw.answer()).await.starts_with("HTTP/1.1 200 "));
        open.push(raw);
    }
    let refused = server.get("/v1/workflows").await;
    refused.refused(503, "overloaded");
    assert_eq!((refused.header("retry-after"), refused.header("connection")), ("1", "close"));
    for path in ["/livez", "/readyz", "/metrics"] {
        assert_eq!(server.get(path).await.status, 200, "{path}");
    }
    let mut health = tonic_health::pb::health_client::HealthClient::new(server.channel().await);
    let health = health.check(tonic_health::pb::HealthCheckRequest::default()).await.unwrap();
    assert_eq!(health.into_inner().status, 1);
    let mut runs = RunServiceClient::new(server.channel().await);
    let status = runs.get(v1::GetRunRequest { id: "r".into(), ..Default::default() }).await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted, "{status:?}");
    assert!(status.get_error_details().retry_info().is_some());
    // Those that are open are served as ever.
    open[0].say(&get("/v1/workflows")).await.unwrap();
    assert!(soon(open[0].answer()).await.starts_with("HTTP/1.1 200 "));

    // Silent ones take the places of those that are told: then there is no answer, but an end, at once.
    // They have their places for five seconds only: each attempt has its own.
    until("one is closed at once", async || {
        let _spare = join_all((0..64).map(|_| Raw::connect(&server))).await;
        let mut raw = Raw::connect(&server).await;
        let begun = Instant::now();
        let _ = raw.say(&get("/livez")).await;
        raw.rest().await.is_empty() && begun.elapsed() < Duration::from_secs(2)
    })
    .await;
    drop(open);
    until("there is room again", async || {
        let mut raw = Raw::connect(&server).await;
        let _ = raw.say(&get("/v1/workflows")).await;
        let _ = raw.stream.readable().await;
        let mut answer = [0; 12];
        matches!(raw.stream.try_read(&mut answer), Ok(12)) && answer == *b"HTTP/1.1 200"
    })
    .await;
    let page = server.get("/metrics").await;
    let count = |how: &str| {
        let line = format!("downbeat_connections_refused_total{{how=\"{how}\"}} ");
        let value = page.text().lines().find_map(|l| l.strip_prefix(&line)).unwrap();
        value.parse::<u64>().unwrap()
    };
    assert!(count("answered") >= 6 && count("closed") >= 1, "{}", page.text());
}

#[tokio::test]
async fn floods_over_http_2_end_their_connection_or_cost_little() {
    let server = impatient();
    let before = server.memory();
    // Requests that are taken back at once.
    let mut raw = Raw::http2(&server).await;
    let request = head("GET", "/v1/workflows", &[]);
    let flood: Vec<u8> = (0..20_000_u32)
        .flat_map(|n| {
            let id = 2 * n + 1;
            [frame(HEADERS, END_HEADERS | END_STREAM, id, &request), frame(RST_STREAM, 0, id, &[0, 0, 0, 8])]
        })
        .flatten()
        .collect();
    let _ = raw.say(&flood).await;
    assert!(soon(raw.is_sent_away()).await, "rapid reset");

    // A head without an end.
    let mut raw = Raw::http2(&server).await;
    let _ = raw.say(&frame(HEADERS, 0, 1, &request)).await;
    let piece = frame(CONTINUATION, 0, 1, &block(&[("x-more", &"y".repeat(4_000))]));
    for _ in 0..5_000 {
        if raw.say(&piece).await.is_err() {
            break;
        }
    }
    assert!(soon(raw.is_sent_away()).await, "continuation");

    // What asks for an answer each, from somebody who reads none.
    for (name, flood) in [("ping", frame(PING, 0, 0, &[7; 8])), ("settings", frame(SETTINGS, 0, 0, &[]))] {
        let mut raw = Raw::http2(&server).await;
        let many = flood.repeat(10_000);
        let ends = async {
            for _ in 0..1_000 {
                if raw.say(&many).await.is_err() {
                    return;
                }
            }
            panic!("{name}: nobody stops it");
        };
        let (usual, ()) = tokio::join!(usual_time(&server), async { soon(ends).await });
        assert!(usual < Duration::from_millis(200), "{name}: {usual:?}");
    }

    // Frames of nothing on a stream that waits for more.
    let mut raw = Raw::http2(&server).await;
    let json = [("content-type", "application/json")];
    raw.say(&frame(HEADERS, END_HEADERS, 1, &head("POST", "/v1/runs", &json))).await.unwrap();
    let many = frame(DATA, 0, 1, &[]).repeat(10_000);
    let ends = async { while raw.say(&many).await.is_ok() {} };
    let (usual, ()) = tokio::join!(usual_time(&server), async {
        let _stops = tokio::time::timeout(Duration::from_secs(3), ends).await;
    });
    assert!(usual < Duration::from_millis(200), "empty data: {usual:?}");
    drop(raw);

    let grown = server.memory().saturating_sub(before);
    assert!(grown < 64 << 20, "{grown} bytes more");
    assert_eq!(server.get("/v1/workflows").await.status, 200);
}

type Headers<'h> = &'h [(&'h str, &'h str)];

#[tokio::test]
async fn heads_that_are_too_large_are_refused_on_both_versions_of_http() {
    let server = Server::start();
    let long = format!("/v1/runs/{}", "a".repeat(16 << 10));
    let many: Vec<(String, &str)> = (0..101).map(|n| (format!("x-{n}"), "y")).collect();
    let many: Vec<(&str, &str)> = many.iter().map(|(n, v)| (n.as_str(), *v)).collect();
    let large = "z".repeat(33 << 10);
    let cases: [(&str, Headers<'_>, u16, &str); 3] = [
        (&long, &[], 414, "address_too_long"),
        ("/livez", &many, 431, "headers_too_large"),
        ("/livez", &[("x-large", &large)], 431, "headers_too_large"),
    ];
    for (path, headers, status, code) in cases {
        let mut request = Request::get(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        server.send(request.body(Body::empty()).unwrap()).await.refused(status, code);

        let mut raw = Raw::http2(&server).await;
        let head = head("GET", path, headers);
        let pieces: Vec<_> = head.chunks(16_000).collect();
        for (n, piece) in pieces.iter().enumerate() {
            let flags = if n + 1 == pieces.len() { END_HEADERS } else { 0 };
            let bytes = match n {
                0 => frame(HEADERS, flags | END_STREAM, 1, piece),
                _ => frame(CONTINUATION, flags, 1, piece),
            };
            raw.say(&bytes).await.unwrap();
        }
        let told = async {
            loop {
                let (kind, _, stream, payload) = raw.frame().await.expect("an answer");
                if kind == DATA && stream == 1 {
                    return Some(payload);
                }
                if matches!(kind, HEADERS | RST_STREAM) && stream == 1 && payload.len() < 12 {
                    // Over what HTTP/2 itself was told: refused before it is a request.
                    return None;
                }
            }
        };
        if let Some(body) = soon(told).await {
            let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
            assert_eq!((&body["status"], &body["code"]), (&status.into(), &code.into()));
        }
    }
    assert_eq!(server.get("/livez").await.status, 200);
}

/// 256 MiB of zeros, in 260 KB.
fn bomb() -> Vec<u8> {
    let mut gzip = std::process::Command::new("gzip")
        .args(["-9", "-c"])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = gzip.stdin.take().unwrap();
    let writes = std::thread::spawn(move || {
        let zeros = vec![0; 1 << 20];
        for _ in 0..256 {
            stdin.write_all(&zeros).unwrap();
        }
    });
    let out = gzip.wait_with_output().unwrap().stdout;
    writes.join().unwrap();
    out
}

#[tokio::test]
async fn bombs_do_not_go_off_and_bodies_without_a_length_have_a_limit() {
    let server = Server::start();
    let bomb = bomb();
    assert!(bomb.len() < 300_000, "{}", bomb.len());
    assert_eq!(server.get("/v1/workflows").await.status, 200);
    let before = server.memory();
    let description: serde_json::Value = server.get("/openapi.json").await.json();
    for (path, methods) in description["paths"].as_object().unwrap() {
        let path = path.replace(['{', '}'], "");
        for method in methods.as_object().unwrap().keys().filter(|m| matches!(m.as_str(), "post" | "put")) {
            let request = Request::builder().method(method.to_uppercase().as_str()).uri(&path);
            let request =
                request.header("content-type", "application/json").header("content-encoding", "gzip");
            let answer = server.send(request.body(Body::from(bomb.clone())).unwrap()).await;
            assert!(
                matches!(answer.status, 400 | 415),
                "{method} {path}: {} {}",
                answer.status,
                answer.text()
            );
        }
    }
    let many = join_all((0..20).map(async |_| {
        let mut runs = RunServiceClient::new(server.channel().await)
            .send_compressed(tonic::codec::CompressionEncoding::Gzip)
            .max_encoding_message_size(usize::MAX);
        let input = vec![0; 4 << 20].into();
        let request = v1::StartRunRequest { workflow: "w".into(), input, ..Default::default() };
        runs.start(request).await.unwrap_err().code()
    }));
    assert!(soon(many).await.iter().all(|code| *code == Code::Unimplemented));
    // Chunked, without a length: 24 MiB, twenty at once.
    let endless = join_all((0..20).map(async |_| {
        let chunks = futures::stream::iter((0..24).map(|_| Ok::<_, std::io::Error>(vec![b' '; 1 << 20])));
        let request = Request::post("/v1/runs").header("content-type", "application/json");
        server.send(request.body(Body::from_stream(chunks)).unwrap()).await
    }));
    for answer in soon(endless).await {
        answer.refused(413, "too_large");
    }
    let grown = server.memory().saturating_sub(before);
    // Twenty bodies of 2 MiB that were held before they were too large, and what allocators keep.
    assert!(grown < 80 << 20, "{grown} bytes more");
}

#[tokio::test]
async fn json_that_is_nested_without_an_end_is_refused() {
    let server = Server::start();
    server.register_echo("order").await;
    for (open, close) in [("[", "]"), ("{\"a\":", "}")] {
        for depth in [129, 1_000, 100_000] {
            let value = format!("{}1{}", open.repeat(depth), close.repeat(depth));
            let body = format!("{{\"workflow\":\"order\",\"input\":{value}}}");
            let answer = server.post("/v1/runs", body.clone()).await;
            assert_eq!(answer.status, 400, "{depth}: {}", answer.text());
            let mut runs = RunServiceClient::new(server.channel().await);
            let request =
                v1::StartRunRequest { workflow: "order".into(), input: value.into(), ..Default::default() };
            assert_eq!(runs.start(request).await.unwrap_err().code(), Code::InvalidArgument);
            let document = server.put("/v1/workflows/deep", "application/json", body).await;
            assert!(matches!(document.status, 400 | 413 | 422), "{}", document.text());
        }
    }
    assert_eq!(
        server.start_run("order", "r1", &format!("{}{}", "[".repeat(128), "]".repeat(128))).await.status,
        201
    );
}

#[tokio::test]
async fn streams_over_their_limits_are_told_so_and_find_room_when_others_end() {
    let server = Server::start_with(&[
        ("DOWNBEAT_LIMIT_EVENTS", "2"),
        ("DOWNBEAT_LIMIT_WORKERS", "1"),
        ("DOWNBEAT_LIMIT_STARTS", "1"),
    ]);
    server.register_echo("order").await;
    server.start_run("order", "r1", "1").await;
    let first = server.watch("/v1/events", None).await;
    let mut runs = RunServiceClient::new(server.channel().await);
    let second = runs.watch(v1::WatchRequest::default()).await.unwrap();
    let refused = server.get("/v1/runs/r1/events").await;
    refused.refused(503, "overloaded");
    assert_eq!(refused.header("retry-after"), "5");
    server.get("/v1/events").await.refused(503, "overloaded");
    let status = runs.watch(v1::WatchRequest::default()).await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted);
    drop((first, second));
    until("followers find room", async || {
        let request = Request::get("/v1/runs/r1/events").body(Body::empty()).unwrap();
        server.open(request).await.status() == 200
    })
    .await;

    let (worker, _) = Worker::hello(&server, "order-pack", 1).await;
    let (_say, said) = tokio::sync::mpsc::unbounded_channel::<v1::WorkerMessage>();
    let said = tokio_stream::wrappers::UnboundedReceiverStream::new(said);
    let mut workers =
        downbeat::proto::v1::worker_service_client::WorkerServiceClient::new(server.channel().await);
    let status = soon(workers.connect(said)).await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted, "{status:?}");
    drop(worker);
    until("a worker finds room", async || {
        metric_of(&server, "downbeat_streams{kind=\"workers\"}").await == 0.0
    })
    .await;
    let (_worker, _) = Worker::hello(&server, "order-pack", 1).await;

    let starts = || tokio_stream::pending::<v1::StartManyRequest>();
    let _first = soon(runs.start_many(starts())).await.unwrap();
    let status = soon(runs.start_many(starts())).await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted, "{status:?}");
}

/// The value of one series.
async fn metric_of(server: &Server, series: &str) -> f64 {
    let page = server.get("/metrics").await;
    let value =
        page.text().lines().find_map(|l| l.strip_prefix(series)?.strip_prefix(' ').map(str::to_owned));
    value.unwrap_or_else(|| panic!("{series} is not told")).parse().unwrap()
}

#[tokio::test]
async fn bodies_that_are_on_their_way_have_a_limit_together() {
    let server = Server::start_with(&[("DOWNBEAT_LIMIT_BODY_MEMORY_MB", "16")]);
    let head = "POST /v1/bulk/start HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ncontent-length: 8000000\r\n\r\n";
    let mut uploads = Vec::new();
    for _ in 0..2 {
        let mut raw = Raw::connect(&server).await;
        raw.say(head.as_bytes()).await.unwrap();
        raw.say(&vec![b' '; 7_900_000]).await.unwrap();
        uploads.push(raw);
    }
    until("both are held", async || metric(&server, "downbeat_body_bytes").await == 15_800_000.0).await;
    let body = vec![b' '; 2_000_000];
    let request = Request::post("/v1/runs").header("content-type", "application/json");
    let refused = server.send(request.body(Body::from(body)).unwrap()).await;
    refused.refused(503, "overloaded");
    assert_eq!(refused.header("retry-after"), "1");
    // A small one finds room.
    server.post("/v1/runs", "{}").await.refused(400, "invalid_request");
    drop(uploads);
    until("it is given back", async || metric(&server, "downbeat_body_bytes").await == 0.0).await;
}

const NASTY: &str = "a\r\nevent: done\ndata: x\n\n\u{0}\u{1b}[2J\r<img src=x onerror=alert(1)>";

#[tokio::test]
async fn text_of_users_breaks_no_line_of_the_log_and_no_frame() {
    let server = Server::start_with(&[("DOWNBEAT_LOG", "debug")]);
    server.register_echo("order").await;
    server.start_run("order", "r1", &serde_json::json!({ "x": NASTY }).to_string()).await;
    let claim = serde_json::json!({"types": ["order-pack"], "wait": "10s", "worker": NASTY});
    let claimed = server.post("/v1/tasks/claim", claim.to_string()).await;
    let token = claimed.json()[0]["token"].as_str().unwrap().to_owned();
    let failure = serde_json::json!({"code": NASTY, "message": NASTY, "retryable": false});
    assert_eq!(server.post(&format!("/v1/tasks/{token}/fail"), failure.to_string()).await.status, 200);
    for path in ["/v1/runs/%0d%0aevent:x", "/%1b%5b2J", "/v1/runs?tag=%0a", "/v1/workflows/%00"] {
        assert!((400..500).contains(&server.get(path).await.status), "{path}");
    }
    let mut raw = Raw::connect(&server).await;
    raw.say(b"GET /\x1b[2J HTTP/1.1\r\nx: \x1b\r\n\r\n").await.unwrap();
    drop(soon(raw.rest()).await);
    let frames = server.watch("/v1/runs/r1/events", None).await.rest().await;
    let kinds: Vec<_> = frames.iter().map(|f| f.event.as_str()).collect();
    assert_eq!(kinds, ["run.started", "task.queued", "task.started", "task.failed", "run.failed"]);
    assert_eq!(frames[3].json()["error"]["message"], NASTY);
    for line in server.log() {
        let record = line.trim_start_matches(|c: char| c.is_ascii_digit() || "-T:.Z".contains(c));
        let level =
            ["ERROR", "WARN", "INFO", "DEBUG", "TRACE"].iter().any(|l| record.trim_start().starts_with(l));
        assert!(level && record != line, "no record: {line:?}");
        assert!(!line.contains(|c: char| c.is_control()), "{line:?}");
    }
}
