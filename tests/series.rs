//! What `downbeat bench chain --out` leaves: the sums of its series, and pictures that are pictures.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

/// As many as take some tenths of a second, so that the processes are looked at meanwhile.
const RUNS: f64 = 600.0;
const TASKS: f64 = 4.0;

/// Columns by name; what is empty is none.
fn columns(csv: &str) -> BTreeMap<String, Vec<Option<f64>>> {
    let mut lines = csv.lines();
    let heading: Vec<_> = lines.next().unwrap().split(',').collect();
    let rows: Vec<Vec<_>> = lines.map(|line| line.split(',').collect()).collect();
    assert!(rows.iter().all(|row| row.len() == heading.len()), "{csv}");
    // The first is a time.
    let value = |text: &str| (!text.is_empty()).then(|| text.parse::<f64>().unwrap());
    let column = |n: usize| rows.iter().map(|row| value(row[n])).collect();
    heading.iter().enumerate().skip(1).map(|(n, name)| ((*name).to_owned(), column(n))).collect()
}

/// The names of the elements, all closed in order.
fn elements(svg: &str) -> Vec<String> {
    let (mut open, mut names, mut rest) = (Vec::new(), Vec::new(), svg);
    while let Some(at) = rest.find('<') {
        let end = at + rest[at..].find('>').unwrap();
        let tag = &rest[at + 1..end];
        rest = &rest[end + 1..];
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop().as_deref(), Some(name), "{svg}");
            continue;
        }
        let name = tag.trim_end_matches('/').split(' ').next().unwrap().to_owned();
        names.push(name.clone());
        if !tag.ends_with('/') {
            open.push(name);
        }
    }
    assert!(open.is_empty(), "{svg}");
    names
}

#[test]
fn the_series_of_a_chain_adds_up_and_is_drawn() {
    let out = tempfile::tempdir().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_downbeat"))
        .args([
            "bench",
            "chain",
            "--store",
            "embedded",
            "--runs",
            "600",
            "--tasks",
            "4",
            "--workers",
            "2",
            "--out",
        ])
        .arg(out.path())
        .output()
        .unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(said.contains("600 runs submitted") && said.contains("600 finished"), "{said}");

    let read = |name: &str| std::fs::read_to_string(out.path().join(name)).unwrap();
    let columns = columns(&read("series.csv"));
    let values = |name: &str| columns[name].iter().map(|v| v.unwrap_or(0.0)).collect::<Vec<_>>();
    let sum = |name: &str| values(name).iter().sum::<f64>();
    assert_eq!((sum("submitted"), sum("finished")), (RUNS, RUNS));
    assert_eq!((sum("started"), sum("completed")), (RUNS * TASKS, RUNS * TASKS));
    let (open, close) = (values("running_open"), values("running_close"));
    assert_eq!((open[0], close[close.len() - 1]), (0.0, 0.0));
    assert!(open[1..].iter().zip(&close).all(|(open, close)| open >= &0.0 && close >= &0.0));
    let most = values("running_max").into_iter().fold(0.0, f64::max);
    assert!((1.0..=RUNS).contains(&most), "{most}");
    assert_eq!(values("open_runs_close").last(), Some(&0.0));
    assert!(columns["event_delay_p99_ms"].iter().any(Option::is_some));
    assert!(columns["server_rss_bytes"].iter().flatten().any(|bytes| *bytes > 1e6));
    assert!(columns["redis_cpu"].iter().all(Option::is_none), "there is no Redis");

    let json: Value = serde_json::from_str(&read("series.json")).unwrap();
    assert_eq!(json["buckets"].as_u64().unwrap() as usize, open.len());
    let started: Vec<_> =
        json["columns"]["started"].as_array().unwrap().iter().filter_map(Value::as_f64).collect();
    assert_eq!(started, values("started"));
    for name in ["progress.svg", "running.svg", "delay.svg", "cost.svg"] {
        let names = elements(&read(name));
        assert_eq!(names[..2], ["svg", "title"], "{name}");
        assert!(names.iter().filter(|n| *n == "path").count() > 5, "{name}");
    }
    assert!(Path::new(&out.path().join("summary.json")).exists());
}
