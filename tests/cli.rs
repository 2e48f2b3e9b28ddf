//! The program as a user runs it: a server, the client commands, workers in shell and Python; exit statuses and
//! what stands on which stream.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use serde_json::Value;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

const PROGRAM: &str = env!("CARGO_BIN_EXE_downbeat");

/// A process that ends with the test.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let pid = rustix::process::Pid::from_raw(i32::try_from(self.0.id()).unwrap()).unwrap();
        // In order, so that workers end their commands; it may have ended already.
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        let _ = self.0.wait();
    }
}

struct Server {
    url: String,
    process: Process,
    _data: tempfile::TempDir,
}

/// A development server on a free port.
fn server() -> Server {
    let data = tempfile::tempdir().unwrap();
    let mut child = Command::new(PROGRAM)
        .args(["dev", "--listen", "127.0.0.1:0", "--data"])
        .arg(data.path())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let process = Process(child);
    let url = loop {
        let line = lines.next().expect("the server ended").unwrap();
        if let Some(url) = line.strip_prefix("listening on ") {
            break url.to_owned();
        }
        assert!(!line.contains("Creating database") && !line.contains("ingestion"), "a library says {line}");
    };
    // Its log must not fill the pipe.
    std::thread::spawn(move || lines.for_each(drop));
    Server { url, process, _data: data }
}

/// The command line with the server in its environment.
fn downbeat(server: &str, arguments: &[&str]) -> Output {
    Command::new(PROGRAM)
        .args(arguments)
        .env("DOWNBEAT_SERVER", server)
        .env("NO_COLOR", "1")
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Standard output of a command that must succeed.
fn done(server: &Server, arguments: &[&str]) -> String {
    done_at(&server.url, arguments)
}

fn done_at(server: &str, arguments: &[&str]) -> String {
    let output = downbeat(server, arguments);
    assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}", text(&output.stderr));
    text(&output.stdout)
}

/// Standard error of a command that must end with `status`.
fn fails(server: &str, arguments: &[&str], status: i32) -> String {
    let output = downbeat(server, arguments);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(status), "{arguments:?}: {said}");
    said
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"))
}

fn worker(server: &Server, task_type: &str, command: &[&str]) -> Process {
    let child = Command::new(PROGRAM)
        .args(["worker", "--type", task_type, "--name", task_type, "--"])
        .args(command)
        .env("DOWNBEAT_SERVER", &server.url)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    Process(child)
}

#[test]
fn a_workflow_goes_from_file_to_output_through_shell_workers() {
    let server = server();
    assert_eq!(done(&server, &["register", "examples/greet.yaml"]), "greet registered as version 1\n");
    assert_eq!(done(&server, &["register", "examples/greet.yaml"]), "greet unchanged, version 1\n");
    let _greet = worker(&server, "greet", &["sh", "examples/workers/greet.sh"]);
    let _shout = worker(&server, "shout", &["tr", "a-z", "A-Z"]);
    let start = ["start", "greet", "--input", r#"{"name": "Ada"}"#, "--id", "g-1", "--wait"];
    let shown = done(&server, &start);
    assert!(shown.contains("status    completed") && shown.contains("output    \"HELLO, ADA!\""), "{shown}");

    let run = json(&done(&server, &["get", "g-1", "--output", "json"]));
    assert_eq!((run["output"].as_str(), run["tasks"].as_array().unwrap().len()), (Some("HELLO, ADA!"), 2));
    assert_eq!(run["tasks"][0]["attempts"][0]["worker"], "greet");
    let again = done(&server, &["start", "greet", "--input", r#"{"name": "Ada"}"#, "--id", "g-1"]);
    assert_eq!(again, "g-1 was there before (completed)\n");

    let events: Vec<String> = done(&server, &["watch", "g-1", "--output", "json"])
        .lines()
        .map(|line| json(line)["type"].as_str().unwrap().to_owned())
        .collect();
    let task = ["task.queued", "task.started", "task.completed"];
    let expected: Vec<_> =
        ["run.started"].iter().chain(&task).chain(&task).chain(&["run.completed"]).copied().collect();
    assert_eq!(events, expected);
    let list = done(&server, &["list", "--workflow", "greet"]);
    assert_eq!((list.lines().count(), list.contains("g-1")), (2, true), "{list}");
}

#[test]
fn a_run_that_fails_or_is_cancelled_ends_a_wait_or_a_watch_with_1() {
    let server = server();
    done(&server, &["register", "examples/greet.yaml"]);
    done(&server, &["start", "greet", "--input", r#"{"name": "x"}"#, "--id", "c-1"]);
    assert_eq!(done(&server, &["cancel", "c-1"]), "c-1 cancelled\n");
    let output = downbeat(&server.url, &["watch", "c-1"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stdout).lines().last().unwrap().contains("run.cancelled"));
    assert!(fails(&server.url, &["cancel", "c-1"], 1).contains("(run_ended)"));

    // No name, so the command fails, is not tried again and says why.
    let _greet = worker(&server, "once", &["sh", "examples/workers/greet.sh"]);
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("once.json");
    let document = r#"{"name":"once","tasks":{"a":{"type":"once","retry":{"max_attempts":1}}}}"#;
    std::fs::write(&file, document).unwrap();
    done(&server, &["register", file.to_str().unwrap()]);
    let output = downbeat(&server.url, &["start", "once", "--wait"]);
    assert_eq!(output.status.code(), Some(1));
    let shown = text(&output.stdout);
    assert!(shown.contains("error     exit_3: whom shall I greet? (task a)"), "{shown}");
}

/// Registers a document that stands in a file only for this.
fn register(server: &Server, document: &str) {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("document.yaml");
    std::fs::write(&file, document).unwrap();
    done(server, &["register", file.to_str().unwrap()]);
}

#[test]
fn a_run_is_paused_signalled_and_shown_with_what_it_waits_for() {
    let server = server();
    register(
        &server,
        "name: review\ntasks:\n  ask: { wait: { signal: approved } }\n  ship:\n    needs: [ask]\n    \
         for_each: [1, 2]\n    type: ship\noutput: ${{ tasks.ask.output }}\n",
    );
    done(&server, &["start", "review", "--id", "r-1"]);
    assert_eq!(done(&server, &["pause", "r-1"]), "r-1 paused\n");
    assert_eq!(done(&server, &["resume", "r-1"]), "r-1 running\n");
    let shown = done(&server, &["get", "r-1"]);
    assert!(shown.lines().any(|l| l.starts_with("ask") && l.contains("waiting")), "{shown}");
    let payload = r#"{"by":"Ada","n":9007199254740993}"#;
    for _ in 0..2 {
        assert_eq!(done(&server, &["signal", "r-1", "approved", payload, "--id", "s-1"]), "r-1 running\n");
    }
    let run = json(&done(&server, &["signal", "r-1", "extra", "--output", "json"]));
    assert_eq!((run["id"].as_str(), run["tasks"][0]["status"].as_str()), (Some("r-1"), Some("completed")));
    let shown = done(&server, &["get", "r-1"]);
    let tasks: Vec<_> = shown.lines().skip_while(|l| !l.starts_with("TASK")).skip(1).collect();
    let paths: Vec<_> = tasks.iter().map(|l| l.split_whitespace().next().unwrap()).collect();
    assert_eq!(paths, ["ask", "ship", "ship[0]", "ship[1]"], "{shown}");
    let _ship = worker(&server, "ship", &["cat"]);
    let watched = done(&server, &["watch", "r-1"]);
    let signals: Vec<_> = watched.lines().filter(|l| l.contains("signal.received")).collect();
    assert_eq!(signals.len(), 2, "{watched}");
    assert!(signals[0].ends_with(&format!("approved  {payload}")), "{watched}");
    assert!(watched.contains("task.waiting     ask") && watched.contains("ship[1]"), "{watched}");
    assert!(fails(&server.url, &["signal", "r-1", "late"], 1).contains("(run_ended)"));
    assert!(fails(&server.url, &["pause", "r-1"], 1).contains("(run_ended)"));
    assert!(fails(&server.url, &["retry", "r-1"], 1).contains("(nothing_to_retry)"));
}

#[test]
fn tasks_are_ended_and_done_again_by_hand() {
    let server = server();
    register(
        &server,
        "name: hand\ntasks:\n  a: { type: a }\n  b: { needs: [a], type: b, compensate: { type: undo } }\n  \
         c: { needs: [b], type: c }\n",
    );
    done(&server, &["start", "hand", "--id", "h-1"]);
    assert_eq!(done(&server, &["complete", "h-1", "a", r#"{"n": 1.0}"#]), "h-1 running\n");
    assert_eq!(done(&server, &["complete", "h-1", "b"]), "h-1 running\n");
    let why = ["fail", "h-1", "c", "--code", "lost", "--message", "in the post"];
    assert_eq!(done(&server, &why), "h-1 running, ending failed\n");
    let shown = done(&server, &["get", "h-1"]);
    assert!(shown.contains("ending    failed: lost: in the post (task c)"), "{shown}");
    assert!(shown.lines().any(|l| l.starts_with("b/compensate")), "{shown}");
    assert_eq!(done(&server, &["cancel", "h-1", "--force"]), "h-1 failed\n");
    assert_eq!(done(&server, &["rerun", "h-1", "a", "--input", "[1.0]"]), "h-1 running\n");
    let run = json(&done(&server, &["get", "h-1", "--output", "json"]));
    assert_eq!((run["try"].as_u64(), run["tasks"][0]["status"].as_str()), (Some(2), Some("queued")));
    assert_eq!(done(&server, &["skip", "h-1", "a"]), "h-1 completed\n");
    assert!(fails(&server.url, &["skip", "h-1", "a"], 1).contains("(run_ended)"));
    assert!(fails(&server.url, &["rerun", "h-1", "nope"], 1).contains("(task_not_found)"));
    done(&server, &["start", "hand", "--id", "h-2"]);
    done(&server, &["complete", "h-2", "a"]);
    done(&server, &["complete", "h-2", "b"]);
    assert_eq!(done(&server, &["cancel", "h-2", "--compensate"]), "h-2 running, ending cancelled\n");
    let _undo = worker(&server, "undo", &["cat"]);
    let output = downbeat(&server.url, &["watch", "h-2"]);
    assert_eq!(output.status.code(), Some(1));
    let watched = text(&output.stdout);
    assert!(watched.contains("task.completed   b/compensate"), "{watched}");
    assert_eq!(done(&server, &["retry", "h-2"]), "h-2 running\n");
}

#[test]
fn a_run_can_be_told_to_begin_later() {
    let server = server();
    register(&server, "name: later\ntasks: { a: { type: a } }\n");
    let said = done(&server, &["start", "later", "--id", "l-1", "--at", "2029-01-01T00:00:00Z"]);
    assert_eq!(said, "l-1 started (pending until 2029-01-01 00:00:00)\n");
    let shown = done(&server, &["get", "l-1"]);
    assert!(
        shown.contains("status    pending") && shown.contains("begins    2029-01-01 00:00:00"),
        "{shown}"
    );
    let run = json(&done(&server, &["start", "later", "--at", "+1h", "--output", "json"]));
    assert_eq!(run["status"].as_str(), Some("pending"));
    assert!(fails(&server.url, &["start", "later", "--at", "tomorrow"], 2).contains("start_at: "));
    assert_eq!(done(&server, &["cancel", "l-1"]), "l-1 cancelled\n");
}

#[test]
fn a_schedule_is_put_shown_run_and_removed() {
    let server = server();
    register(&server, "name: quick\ntasks:\n  a: { set: { done: true } }\n");
    let put =
        ["schedule", "put", "nightly", "--workflow", "quick", "--cron", "30 2 * * *", "--cron", "@hourly"];
    let tried = done(&server, &[&put[..], &["--dry-run"]].concat());
    assert!(tried.starts_with("is valid: nightly active, next 20"), "{tried}");
    let created =
        done(&server, &[&put[..], &["--time-zone", "Europe/Berlin", "--tag", "team=data"]].concat());
    assert!(created.starts_with("created: nightly active, next 20"), "{created}");
    done(&server, &["register", "examples/workflows/nightly-report.yaml"]);
    for file in ["nightly", "opening-hours"] {
        let path = format!("examples/schedules/{file}.yaml");
        let created = done(&server, &["schedule", "put", file, &path]);
        assert!(created.contains(&format!("{file} active, next 20")), "{created}");
    }
    let list = done(&server, &["schedule", "list"]);
    assert_eq!(list.lines().count(), 3, "{list}");
    assert!(
        list.lines().nth(1).unwrap().starts_with("opening-hours  nightly-report  */15 9-17 * * mon-fri | "),
        "{list}"
    );
    assert_eq!(done(&server, &["schedule", "next", "nightly", "--count", "3"]).lines().count(), 3);
    assert!(done(&server, &["schedule", "pause", "nightly"]).starts_with("nightly paused"));
    assert_eq!(done(&server, &["schedule", "run", "nightly", "--id", "x"]), "nightly.r-x is being started\n");
    assert!(done(&server, &["schedule", "resume", "nightly"]).starts_with("nightly active"));
    let from = ["--from", "2026-01-05T00:00:00Z", "--to", "2026-01-07T00:00:00Z"];
    assert_eq!(
        done(&server, &[&["schedule", "backfill", "nightly"], &from[..]].concat()),
        "2 slots to start\n"
    );
    let shown = done(&server, &["schedule", "get", "nightly"]);
    assert!(
        shown.contains("starts nightly-report at 30 2 * * * (Europe/Berlin), overlap skip, catch-up latest"),
        "{shown}"
    );
    let view = json(&done(&server, &["schedule", "get", "nightly", "--output", "json"]));
    assert_eq!((&view["tags"]["team"], &view["revision"]), (&"data".into(), &2.into()));
    done(&server, &["schedule", "delete", "nightly"]);
    let gone = fails(&server.url, &["schedule", "get", "nightly"], 1);
    assert!(gone.contains("(schedule_not_found)"), "{gone}");
    let faults =
        fails(&server.url, &["schedule", "put", "x", "--workflow", "quick", "--cron", "0 0 31 4,6 *"], 1);
    assert!(faults.contains("no April or June has a day 31"), "{faults}");
    fails(&server.url, &["schedule", "put", "x", "--workflow", "quick"], 2);
}

#[test]
fn what_the_server_refuses_is_told_with_its_code() {
    let server = server();
    assert!(fails(&server.url, &["get", "nope"], 1).contains("(run_not_found)"));
    assert!(fails(&server.url, &["watch", "nope"], 1).contains("(run_not_found)"));
    assert!(fails(&server.url, &["start", "nope"], 1).contains("(workflow_not_found)"));
    done(&server, &["register", "examples/greet.yaml"]);
    assert!(fails(&server.url, &["start", "greet", "--input", "{}"], 1).contains("(invalid_input)"));
    assert_eq!(done(&server, &["health"]), "ready\n");
    let help = done(&server, &["--help"]);
    assert!(help.contains("Exit status: 0 done"), "{help}");
}

#[test]
fn wrong_usage_is_2_and_an_absent_server_3() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let absent = format!("http://{free}");
    for arguments in [
        &["get", "x"][..],
        &["list"],
        &["watch", "x"],
        &["start", "x"],
        &["cancel", "x"],
        &["pause", "x"],
        &["resume", "x"],
        &["retry", "x"],
        &["signal", "x", "y"],
        &["skip", "x", "y"],
        &["complete", "x", "y"],
        &["fail", "x", "y"],
        &["rerun", "x", "y"],
    ] {
        let said = fails(&absent, arguments, 3);
        assert!(said.starts_with(&format!("error: no server at {absent}: ")), "{said}");
    }
    for arguments in [
        &["get"][..],
        &["nonsense"],
        &["start", "x", "--input", "{"],
        &["start", "x", "--tag", "novalue"],
        &["signal", "x"],
        &["signal", "x", "y", "{"],
        &["complete", "x", "y", "@/no/such/file"],
        &["rerun", "x", "y", "--input", "{"],
        &["skip", "x"],
        &["worker", "--type", "t", "--concurrency", "0", "--", "true"],
        &["worker", "--type", "t"],
        &["list", "--server", "ftp://x"],
        &["register", "/no/such/file.yaml"],
        &["serve", "--listen", "nowhere"],
        &["serve", "--store", "mysql://x"],
        &["serve", "--config", "/no/such/file.toml"],
    ] {
        fails(&absent, arguments, 2);
    }
}

#[test]
fn documents_are_validated_without_a_server() {
    let dir = tempfile::tempdir().unwrap();
    let bad = dir.path().join("bad.yaml");
    std::fs::write(&bad, "name: bad\ntasks:\n  a:\n    type: x\n    needs: [b]\n").unwrap();
    let bad = bad.to_str().unwrap();
    let output =
        downbeat("http://127.0.0.1:1", &["validate", "examples/order.yaml", "examples/greet.yaml", bad]);
    assert_eq!(output.status.code(), Some(1));
    let shown = text(&output.stdout);
    let lines: Vec<_> = shown.lines().collect();
    assert_eq!(lines[..2], ["examples/order.yaml: valid", "examples/greet.yaml: valid"]);
    assert!(lines[2].starts_with(&format!("{bad}:5: tasks.a.needs")), "{shown}");
    let output = downbeat("http://127.0.0.1:1", &["validate", "--output", "json", bad]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(json(&text(&output.stdout))[0]["faults"][0]["line"], 5);
    let files = ["examples/order.yaml", "examples/greet.yaml"];
    let good = json(&done_at("http://127.0.0.1:1", &["validate", "--output", "json", files[0], files[1]]));
    let empty = |n: usize| serde_json::json!({"file": files[n], "faults": []});
    assert_eq!(good, serde_json::json!([empty(0), empty(1)]));
}

#[test]
fn a_document_is_drawn_without_a_server() {
    let nowhere = "http://127.0.0.1:1";
    let drawn = done_at(nowhere, &["graph", "examples/order.yaml"]);
    assert!(drawn.starts_with("---\ntitle: \"order\"\n---\nflowchart TB\n"), "{drawn}");
    assert!(drawn.contains("n0 --> n1"), "{drawn}");
    let drawn = done_at(nowhere, &["graph", "examples/order.yaml", "--format", "svg"]);
    assert!(drawn.starts_with("<svg xmlns=") && drawn.ends_with("</svg>\n"), "{drawn}");
    assert!(drawn.contains("<g id=\"task-notify\">"), "{drawn}");
    let dir = tempfile::tempdir().unwrap();
    let bad = dir.path().join("bad.yaml");
    std::fs::write(&bad, "name: bad\ntasks:\n  a:\n    type: x\n    needs: [b]\n").unwrap();
    let said = fails(nowhere, &["graph", bad.to_str().unwrap()], 1);
    assert!(said.contains("line 5: tasks.a.needs[0]: there is no task \"b\""), "{said}");
}

#[test]
fn the_schema_of_documents_is_printed_without_a_server() {
    let schema = json(&done_at("http://127.0.0.1:1", &["schema"]));
    assert_eq!(schema["title"], "Downbeat workflow");
}

#[test]
fn the_default_settings_can_be_printed_and_are_valid() {
    let output = downbeat("", &["serve", "--print-config"]);
    assert_eq!(output.status.code(), Some(0));
    let config = downbeat::config::Config::of(
        Some(("x", &text(&output.stdout))),
        |_| None,
        std::collections::BTreeMap::new(),
    );
    assert_eq!(config.unwrap().server.listen.port(), 7070);
}

#[test]
fn a_server_ends_soon_after_a_signal_and_its_port_is_free() {
    let mut server = server();
    let worker = worker(&server, "t", &["true"]);
    let pid = rustix::process::Pid::from_raw(i32::try_from(server.process.0.id()).unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert_eq!(server.process.0.wait().unwrap().code(), Some(0));
    let address = server.url.strip_prefix("http://").unwrap();
    assert!(std::net::TcpStream::connect(address).is_err());
    drop(worker);
}

#[test]
fn the_demo_completes_and_cleans_up() {
    let temp = tempfile::tempdir().unwrap();
    let output = Command::new(PROGRAM).args(["demo", "--exit"]).env("TMPDIR", temp.path()).output().unwrap();
    let shown = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{shown}\n{}", text(&output.stderr));
    for word in ["task.retrying", "review", "run.completed", "The order completed in"] {
        assert!(shown.contains(word), "{word}: {shown}");
    }
    assert!(!shown.contains("curl"), "there is no server left to ask: {shown}");
    assert_eq!(std::fs::read_dir(temp.path()).unwrap().count(), 0, "it leaves something behind");
}

#[test]
fn a_server_whose_port_is_taken_touches_no_store() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let temp = tempfile::tempdir().unwrap();
    let data = temp.path().join("data");
    let output = Command::new(PROGRAM)
        .args(["dev", "--listen", &address, "--data"])
        .arg(&data)
        .current_dir(temp.path())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let said = text(&output.stderr);
    assert!(said.contains(&format!("cannot listen on {address}: ")), "{said}");
    assert!(!data.exists(), "its directory was made");
}

#[test]
fn a_store_keeps_the_number_of_partitions_it_was_given() {
    let data = tempfile::tempdir().unwrap();
    let serve = |partitions: &[&str]| {
        let mut command = Command::new(PROGRAM);
        command.args(["serve", "--store", "embedded", "--listen", "127.0.0.1:0", "--data"]).arg(data.path());
        command.args(partitions).stderr(Stdio::piped()).spawn().unwrap()
    };
    for partitions in [&["--partitions", "3"][..], &[], &["--partitions", "3"]] {
        let mut child = serve(partitions);
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let _process = Process(child);
        assert!(lines.any(|line| line.unwrap().starts_with("listening on ")), "{partitions:?}");
    }
    let output = serve(&["--partitions", "5"]).wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let said = text(&output.stderr);
    assert!(said.contains("was initialised with 3 partitions, 5 were asked for"), "{said}");
    let output = serve(&["--partitions", "0"]).wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let said = text(&output.stderr);
    assert!(said.contains("\"0\" is no number from 1 to 1024"), "{said}");
}

#[test]
fn what_is_wrong_is_said_once() {
    let server = server();
    let output =
        Command::new(PROGRAM).args(["list", "--cursor", "junk", "--server", &server.url]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let said = text(&output.stderr);
    assert_eq!(said.matches("none that this list gave out").count(), 1, "{said}");
    assert!(said.starts_with("error: cursor: "), "{said}");
}

#[test]
fn the_python_worker_does_its_part_in_less_than_forty_lines() {
    let source =
        std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/workers/greet.py"))
            .unwrap();
    assert!(source.lines().count() < 40);
    let Some(python) = std::env::var_os("DOWNBEAT_PYTHON") else {
        eprintln!("skipped: DOWNBEAT_PYTHON names no Python with grpcio; scripts/test provides one");
        return;
    };
    let server = server();
    done(&server, &["register", "examples/greet.yaml"]);
    let mut child = Command::new(python)
        .args(["examples/workers/greet.py", server.url.strip_prefix("http://").unwrap()])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut errors = child.stderr.take().unwrap();
    let python = Process(child);
    let _shout = worker(&server, "shout", &["tr", "a-z", "A-Z"]);
    let shown = done(&server, &["start", "greet", "--input", r#"{"name": "Grace"}"#, "--wait"]);
    assert!(shown.contains("HELLO, GRACE!") && shown.contains("python"), "{shown}");
    // It knows nothing of servers that go away, so the server would wait for it.
    drop(python);
    let mut said = String::new();
    errors.read_to_string(&mut said).unwrap();
    assert!(!said.contains("Traceback"), "{said}");
}

#[test]
fn what_is_no_request_is_wrong_usage_and_what_is_refused_has_failed() {
    let server = server();
    let url = &server.url;
    for (arguments, said) in [
        (&["start", "greet", "--at", "tomorrow"][..], "tomorrow"),
        (&["start", "greet", "--id", "a b"], "a b"),
        (&["start", "greet", "--priority", "101"], "101"),
        (&["list", "--status", "bogus"], "bogus"),
        (&["list", "--cursor", "junk"], "cursor"),
        (&["list", "--tag", "nothing"], "nothing"),
    ] {
        let text = fails(url, arguments, 2);
        assert!(text.contains(said), "{arguments:?}: {text}");
    }
    for arguments in [&["start", "nowhere"][..], &["get", "nothing"], &["cancel", "nothing"]] {
        fails(url, arguments, 1);
    }
}

#[test]
fn what_cannot_be_printed_is_a_failure_and_a_reader_that_went_away_is_none() {
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let schema = || {
        let mut command = Command::new(PROGRAM);
        command.arg("schema").stderr(Stdio::piped());
        command
    };
    let output = schema().stdout(full).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("it could not all be printed: "), "{}", text(&output.stderr));

    let mut child = schema().stdout(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn a_task_that_waits_for_a_worker_with_labels_says_so() {
    let server = server();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("train.yaml");
    let text = "name: train\ntasks: { t: { type: work, labels: { region: eu, gpu: 'true' } } }\n";
    std::fs::write(&file, text).unwrap();
    done(&server, &["register", file.to_str().unwrap()]);
    done(&server, &["start", "train", "--id", "r1"]);
    let shown = done(&server, &["get", "r1"]);
    assert!(shown.contains("waits for a worker with gpu=true, region=eu"), "{shown}");
    let mut worker = Command::new(PROGRAM);
    worker.args([
        "worker",
        "--type",
        "work",
        "--label",
        "region=eu",
        "--label",
        "gpu=true",
        "--label",
        "zone=1",
    ]);
    let _worker = Process(
        worker.args(["--server", &server.url, "--", "echo", "7"]).stderr(Stdio::null()).spawn().unwrap(),
    );
    let run = json(&done(&server, &["start", "train", "--id", "r2", "--wait", "--output", "json"]));
    assert_eq!((&run["status"], &run["tasks"][0]["output"]), (&"completed".into(), &7.into()));
    let first = json(&done(&server, &["get", "r1", "--output", "json"]));
    assert_eq!(first["status"], "completed", "the older one was done before");
}
