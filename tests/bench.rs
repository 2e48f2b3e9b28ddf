//! `downbeat bench` as a user runs it: every scenario, small, with the summary it promises. Figures are looked at for
//! sense only: how fast it is depends on what else the machine does.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use serde_json::Value;
use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Child, Command, Output, Stdio};

const PROGRAM: &str = env!("CARGO_BIN_EXE_downbeat");

/// Runs a benchmark and returns what it said, and its summary.
fn bench(arguments: &str) -> (Output, Value) {
    let out = tempfile::tempdir().unwrap();
    let output = Command::new(PROGRAM)
        .arg("bench")
        .args(arguments.split_whitespace())
        .arg("--out")
        .arg(out.path())
        .env("NO_COLOR", "1")
        .output()
        .unwrap();
    let text = std::fs::read_to_string(out.path().join("summary.json")).unwrap_or_else(|e| {
        panic!("{arguments}: {e}: {}", String::from_utf8_lossy(&output.stderr));
    });
    (output, serde_json::from_str(&text).unwrap())
}

/// The summary of a benchmark that must succeed.
fn measured(arguments: &str) -> Value {
    let (output, summary) = bench(arguments);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(
        (output.status.code(), summary["audit"].as_str()),
        (Some(0), Some("ok")),
        "{arguments}: {said}"
    );
    let scenario = arguments.split_whitespace().next();
    assert_eq!(summary["scenario"].as_str(), scenario);
    let shown = String::from_utf8(output.stdout).unwrap();
    assert!(shown.lines().any(|l| l.starts_with("audit ") && l.ends_with(" ok")), "{shown}");
    summary
}

/// A figure that must be there and more than nothing.
#[track_caller]
fn positive(summary: &Value, name: &str) -> f64 {
    let figure = summary[name].as_f64().unwrap_or_else(|| panic!("no {name} in {summary:#}"));
    assert!(figure > 0.0 && figure.is_finite(), "{name} is {figure}");
    figure
}

/// Two percentiles that must be there, in order.
#[track_caller]
fn percentiles(summary: &Value, name: &str) {
    let (half, most) =
        (positive(summary, &format!("{name}_p50_ms")), positive(summary, &format!("{name}_p99_ms")));
    assert!(half <= most && most < 60_000.0, "{name}: {half} and {most}");
}

#[track_caller]
fn costs(summary: &Value, processes: &[&str]) {
    let cpu = summary["cpu_seconds"].as_object().unwrap();
    let names: Vec<&str> = cpu.keys().map(String::as_str).collect();
    assert_eq!(names, processes);
    assert!(cpu.values().all(|s| s.as_f64().unwrap() >= 0.0), "{cpu:?}");
    let rss = positive(summary, "server_rss_bytes");
    let peak = positive(&summary["rss_peak_bytes"], "server");
    assert!(rss <= peak && rss > 1e6, "{rss} of {peak}");
}

#[track_caller]
fn figures_of_many(summary: &Value, runs: u32, tasks: u32) {
    assert_eq!(
        (summary["runs"].as_u64(), summary["tasks_per_run"].as_u64()),
        (Some(runs.into()), Some(tasks.into()))
    );
    positive(summary, "tasks_per_second");
    positive(summary, "runs_submitted_per_second");
    percentiles(summary, "run_latency");
    percentiles(summary, "completion_event");
    // So few runs may end all at one moment, and then there is no curve.
    if let Some(straight) = summary["completion_r2"].as_f64() {
        assert!((0.0..=1.0).contains(&straight), "{straight}");
    }
    positive(summary, "cpu_us_per_task");
}

#[test]
fn a_chain_is_measured_with_its_ceiling() {
    let summary = measured("chain --runs 300 --tasks 3 --store redis --ceiling --partitions 3");
    figures_of_many(&summary, 300, 3);
    costs(&summary, &["driver", "redis", "server", "worker"]);
    let bytes = positive(&summary, "redis_bytes_per_finished_run");
    assert!((200.0..5_000.0).contains(&bytes), "{bytes}");
    let keys = positive(&summary, "redis_keys_per_finished_run");
    assert!((0.9..2.0).contains(&keys), "{keys}");
    let (commands, scripts) =
        (positive(&summary, "redis_commands_per_task"), positive(&summary, "redis_scripts_per_task"));
    assert!(scripts < commands, "{scripts} scripts in {commands} commands");
    let ceiling = positive(&summary, "ceiling_transitions_per_second");
    let ours = positive(&summary, "tasks_per_second") * 4.0 / 3.0;
    let share = positive(&summary, "ceiling_share");
    assert!((share - ours / ceiling).abs() < 1e-9, "{share} of {ceiling} is not {ours}");
    assert!((1.0..=128.0).contains(&positive(&summary, "ceiling_decisions_per_batch")));
    positive(&summary, "ceiling_bytes_per_transition");
    assert_eq!(summary["settings"]["partitions"], 3);
}

#[test]
fn a_cluster_of_our_own_does_the_chain_and_all_its_primaries_work() {
    let summary = measured("chain --runs 400 --tasks 5 --store cluster");
    figures_of_many(&summary, 400, 5);
    costs(&summary, &["driver", "redis", "server", "worker"]);
    assert_eq!(summary["settings"]["redis"]["primaries"], 3);
    let shares: Vec<f64> = serde_json::from_value(summary["redis_commands_by_primary"].clone()).unwrap();
    assert!(shares.len() == 3 && shares.iter().all(|s| (0.2..0.5).contains(s)), "{shares:?}");
    positive(&summary, "redis_bytes_per_finished_run");
}

#[test]
fn payloads_go_through_a_chain_and_come_back_whole() {
    for payload in [0, 1_024, 65_536] {
        let summary = measured(&format!("chain --runs 40 --tasks 2 --payload {payload} --store embedded"));
        figures_of_many(&summary, 40, 2);
        assert_eq!(summary["settings"]["payload"], payload);
        assert!(summary.get("redis_bytes_per_finished_run").is_none(), "{summary:#}");
    }
}

#[test]
fn diamonds_and_echoes_are_measured_like_chains() {
    let diamond = measured("diamond --runs 60 --store embedded");
    figures_of_many(&diamond, 60, 4);
    costs(&diamond, &["driver", "server", "worker"]);
    let echo = measured("echo --runs 60 --store redis");
    figures_of_many(&echo, 60, 1);
    let bytes = positive(&echo, "redis_bytes_per_finished_run");
    assert!(bytes > 1_024.0, "an input of 1 KB lies in {bytes}");
}

#[test]
fn runs_one_at_a_time_are_measured() {
    let idle = measured("idle --runs 20 --tasks 2 --store embedded");
    percentiles(&idle, "run_latency");
    positive(&idle, "tasks_per_second");
    let fanout = measured("fanout --runs 2 --tasks 30 --store embedded");
    assert_eq!(fanout["tasks_per_run"], 32);
    percentiles(&fanout, "run_latency");
    positive(&fanout, "us_per_item");
}

#[test]
fn attaching_is_measured_in_four_ways() {
    let summary = measured("attach --runs 5 --idle 1 --subscriptions 12 --store redis");
    for name in ["attach", "attach_cold", "attach_idle", "attach_busy"] {
        percentiles(&summary, name);
    }
    // Three parts of five and one of one.
    assert_eq!((summary["runs"].as_u64(), summary["attach_idle_samples"].as_u64()), (Some(16), Some(1)));
    costs(&summary, &["driver", "redis", "server"]);
}

#[test]
fn event_streams_are_measured_and_looked_through_for_gaps() {
    let summary = measured("sse --runs 12 --rate 100 --subscribers 1,25 --store embedded");
    let rows = summary["sse"].as_array().unwrap();
    assert_eq!(rows.len(), 2);
    for (row, subscribers) in rows.iter().zip([1_u64, 25]) {
        assert_eq!(
            (row["subscribers"].as_u64(), row["events"].as_u64()),
            (Some(subscribers), Some(12 * subscribers))
        );
        let [half, most, max] = ["p50_ms", "p99_ms", "max_ms"].map(|name| positive(row, name));
        assert!(half <= most && most <= max, "{row}");
        assert!(positive(row, "runs_per_second") < 150.0, "{row}");
    }
}

#[test]
fn open_runs_are_weighed() {
    let summary = measured("open --runs 600 --store redis");
    positive(&summary, "runs_submitted_per_second");
    let bytes = positive(&summary, "redis_bytes_per_open_run");
    assert!((150.0..5_000.0).contains(&bytes), "{bytes}");
    let keys = positive(&summary, "redis_keys_per_open_run");
    assert!((0.9..2.5).contains(&keys), "{keys}");
    assert!(summary.get("redis_bytes_per_finished_run").is_none(), "{summary:#}");
    costs(&summary, &["driver", "redis", "server"]);
}

#[test]
fn idle_workers_are_weighed() {
    let summary = measured("workers --workers 40 --idle 1 --runs 10 --store redis");
    assert_eq!(summary["idle_workers"], 40);
    assert!(positive(&summary, "idle_seconds") >= 1.0);
    assert!(summary["idle_server_cpu_share"].as_f64().unwrap() >= 0.0);
    positive(&summary, "idle_redis_commands_per_second");
    positive(&summary, "idle_redis_scripts_per_second");
}

/// A process that ends with the test.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_measurement_that_did_not_do_its_work_fails() {
    let data = tempfile::tempdir().unwrap();
    let mut server = Command::new(PROGRAM)
        .args(["dev", "--listen", "127.0.0.1:0", "--data"])
        .arg(data.path())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(server.stderr.take().unwrap()).lines();
    let _server = Process(server);
    let url = loop {
        let line = lines.next().expect("the server ended").unwrap();
        if let Some(url) = line.strip_prefix("listening on ") {
            break url.to_owned();
        }
    };
    std::thread::spawn(move || lines.for_each(drop));
    // It takes most of the tasks and gives back something else.
    let worker = Command::new(PROGRAM)
        .args(["worker", "--type", "bench-noop", "--concurrency", "8", "--server", &url, "--", "echo", "17"])
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let _worker = Process(worker);
    let (output, summary) = bench(&format!("chain --runs 40 --tasks 2 --concurrency 1 --server {url}"));
    let audit = summary["audit"].as_str().unwrap();
    assert!(audit.contains("ended with 2 bytes that are not what it must end with"), "{audit}");
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("error: audit: "));
}

#[test]
fn what_cannot_be_measured_is_refused_before_anything_starts() {
    for (arguments, word) in [
        ("diamond --tasks 5", "leave --tasks out"),
        ("chain --ceiling --store embedded", "--ceiling is about one Redis"),
        ("chain --payload 1048577", "1048577"),
        ("open --idle 3", "--idle is for attach and workers"),
    ] {
        let output = Command::new(PROGRAM).arg("bench").args(arguments.split_whitespace()).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments}: {said}");
        assert!(said.contains(word), "{arguments}: {said}");
    }
}

#[test]
fn redis_saves_itself_as_often_as_is_wanted_meanwhile() {
    let summary = measured("workers --workers 2 --runs 10 --idle 4 --fork-every 1");
    let forks = summary["redis_forks"].as_u64().unwrap();
    assert!(forks >= 3, "{forks}");
    assert!(summary["redis_longest_fork_ms"].as_f64().unwrap() > 0.0);
}

/// The processes that the threads of a process have started.
fn children(of: u32) -> Vec<u32> {
    let threads = std::fs::read_dir(format!("/proc/{of}/task")).into_iter().flatten();
    let list = |thread: std::fs::DirEntry| std::fs::read_to_string(thread.path().join("children"));
    let lists: Vec<_> = threads.filter_map(|t| list(t.ok()?).ok()).collect();
    lists.iter().flat_map(|l| l.split_whitespace()).map(|id| id.parse().unwrap()).collect()
}

#[test]
fn an_interrupted_measurement_leaves_nothing_behind() {
    for signal in ["TERM", "INT"] {
        let temporary = tempfile::tempdir().unwrap();
        let mut bench = Command::new(PROGRAM)
            .args(["bench", "chain", "--runs", "1000000", "--out"])
            .arg(temporary.path().join("out"))
            .env("TMPDIR", temporary.path())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = BufReader::new(bench.stderr.take().unwrap());
        // Redis, the server and the worker.
        let started = loop {
            let started = children(bench.id());
            if started.len() == 3 {
                break started;
            }
            assert!(bench.try_wait().unwrap().is_none(), "it ended before it was interrupted");
            std::thread::yield_now();
        };
        assert!(
            Command::new("kill").args(["-s", signal, &bench.id().to_string()]).status().unwrap().success()
        );
        let mut text = String::new();
        said.read_to_string(&mut text).unwrap();
        assert_eq!(bench.wait().unwrap().code(), Some(1), "{text}");
        assert!(text.contains("interrupted before all was measured"), "{text}");
        for id in started {
            assert!(!std::path::Path::new(&format!("/proc/{id}")).exists(), "process {id} is still there");
        }
        let left: Vec<_> =
            std::fs::read_dir(temporary.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(left, ["out"], "{signal}");
    }
}

#[test]
fn link() {
    let summary = measured("link --runs 3000 --tasks 4");
    for name in ["set_seconds", "get_seconds", "seconds", "commands_per_second"] {
        positive(&summary, name);
    }
    for name in ["tasks_spawned", "threads_spawned", "out_of_order"] {
        assert_eq!(summary[name].as_u64(), Some(0), "{name} in {summary:#}");
    }
    assert_eq!((summary["runs"].as_u64(), summary["tasks_per_run"].as_u64()), (Some(3_000), Some(4)));
}
