//! `downbeat occupancy` as a user runs it.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use serde_json::Value;
use std::io::Write as _;
use std::process::{Command, Output, Stdio};

/// With the file on standard input.
fn occupancy(rows: &str, arguments: &[&str]) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_downbeat"))
        .args(["occupancy", "-"])
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // It does not read what it refuses at once.
    let _ = child.stdin.take().unwrap().write_all(rows.as_bytes());
    child.wait_with_output().unwrap()
}

fn file(rows: &str, arguments: &[&str]) -> Output {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(rows.as_bytes()).unwrap();
    let path = file.path().to_str().unwrap();
    Command::new(env!("CARGO_BIN_EXE_downbeat")).args(["occupancy", path]).args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Lines of standard output without the heading, of a command that must succeed and say nothing else.
fn csv(output: &Output) -> Vec<String> {
    assert_eq!((output.status.code(), text(&output.stderr).as_str()), (Some(0), ""));
    let stdout = text(&output.stdout);
    let (heading, rows) = stdout.split_once('\n').unwrap();
    assert!(
        heading.starts_with("bucket,") && heading.ends_with("open,close,max,min,avg,starts,ends"),
        "{heading}"
    );
    rows.lines().map(|line| line.replace("1970-01-01T00:00:", "")).collect()
}

fn fails(output: &Output, status: i32, said: &str) {
    let stderr = text(&output.stderr);
    assert_eq!((output.status.code(), text(&output.stdout).as_str()), (Some(status), ""), "{stderr}");
    assert!(stderr.contains(said), "{stderr}");
}

#[test]
fn the_ten_rows_of_the_example_are_62_buckets() {
    let output = Command::new(env!("CARGO_BIN_EXE_downbeat"))
        .args(["occupancy", "examples/occupancy/ten-tasks.csv", "--output", "csv"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    let rows = csv(&output);
    assert_eq!(rows.len(), 62);
    assert_eq!(rows[0], "2011-07-18T22:55:00Z,0,0,4,0,0.066067,8,8");
    assert!(rows[1..61].iter().all(|row| row.ends_with("Z,0,0,0,0,0,0,0")));
    assert_eq!(rows[61], "2011-07-19T04:00:00Z,0,0,2,0,0.320523,2,2");
    let table = Command::new(env!("CARGO_BIN_EXE_downbeat"))
        .args(["occupancy", "examples/occupancy/ten-tasks.csv"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    let table = text(&table.stdout);
    assert_eq!(table.lines().count(), 4, "{table}");
    assert!(table.contains("… 60 buckets without a change, nothing running"), "{table}");
}

#[test]
fn windows_steps_and_tasks_before_them_are_as_asked_for() {
    let nested = csv(&file("0,10\n2,8\n4,6\n", &["--step", "5s", "--output", "csv"]));
    assert_eq!(nested, ["00Z,1,3,3,1,1.8,3,0", "05Z,3,1,3,1,1.8,0,2"]);
    let chain = csv(&file("0,10\n10,20\n20,30\n", &["--step", "10s", "--output", "csv"]));
    assert_eq!(chain, ["00Z,1,1,1,1,1,1,0", "10Z,1,1,1,1,1,1,1", "20Z,1,1,1,1,1,1,1"]);
    let window = ["--step", "5s", "--output", "csv", "--from", "0", "--to", "10"];
    let open = csv(&file("-5,3\n1,\n7,9\n", &window));
    assert_eq!(open, ["00Z,1,1,2,1,1.4,1,1", "05Z,1,1,2,1,1.4,1,1"]);
    let initial = csv(&file("-5,3\n1,\n7,9\n", &[&window[..], &["--initial", "2"]].concat()));
    assert_eq!(initial, ["00Z,3,3,4,3,3.4,1,1", "05Z,3,3,4,3,3.4,1,1"]);
    let window = ["--step", "5s", "--output", "csv", "--from", "1970-01-01T00:00:00Z", "--to", "20"];
    let nothing = csv(&file("3,3\n12,14\n", &window));
    assert_eq!(
        nothing,
        ["00Z,0,0,0,0,0,1,1", "05Z,0,0,0,0,0,0,0", "10Z,0,0,1,0,0.4,1,1", "15Z,0,0,0,0,0,0,0"]
    );
    let millis = csv(&file("0,1500\n", &["--step", "1s", "--output", "csv", "--epoch", "ms"]));
    assert_eq!(millis, ["00Z,1,1,1,1,1,1,0", "01Z,1,0,1,0,0.5,0,1"]);
}

#[test]
fn the_order_of_the_rows_changes_nothing() {
    let row =
        |n: u32| format!("{}.{:03},{}.5,t{}\n", n * 7_919 % 997, n % 1_000, n * 7_919 % 997 + n % 50, n % 3);
    let shuffled: Vec<String> = (0..500).map(row).collect();
    let mut sorted = shuffled.clone();
    sorted.sort_by(|a, b| {
        let start = |row: &str| row.split(',').next().unwrap().parse::<f64>().unwrap();
        start(a).total_cmp(&start(b))
    });
    for arguments in [&["--step", "1m", "--output", "json"][..], &["--by", "tag", "--output", "json"]] {
        let outputs = [
            file(&sorted.concat(), arguments),
            file(&shuffled.concat(), arguments),
            occupancy(&sorted.concat(), arguments),
            occupancy(&shuffled.concat(), arguments),
        ];
        let told: Vec<Value> = outputs.iter().map(|o| serde_json::from_slice(&o.stdout).unwrap()).collect();
        assert!(told.iter().all(|t| *t == told[0]));
        // A row may end before it starts: those with a short way to go.
        assert_eq!(told[0]["rows"].as_u64().unwrap() + told[0]["refused"].as_u64().unwrap(), 500);
        let starts = told[0]["buckets"].as_array().unwrap().iter().map(|b| b["starts"].as_u64().unwrap());
        assert_eq!(starts.sum::<u64>(), told[0]["rows"].as_u64().unwrap());
    }
}

#[test]
fn rows_that_cannot_be_are_told_with_their_line_and_the_rest_counts() {
    let rows = "start,end\r\n0,10\r\n\r\n5,4\r\nsoon,9\r\n,3\r\n6,8\r\n2011-07-18T22:58:52,\r\n";
    for output in [
        file(rows, &["--step", "10s", "--output", "csv"]),
        occupancy(rows, &["--step", "10s", "--output", "csv"]),
    ] {
        assert_eq!(output.status.code(), Some(0));
        assert_eq!(text(&output.stdout).lines().nth(1), Some("1970-01-01T00:00:00Z,1,1,2,1,1.2,2,1"));
        let said: Vec<_> = text(&output.stderr).lines().map(str::to_owned).collect();
        assert_eq!(said[0], "line 4: the end 4 is before the start 5");
        assert!(said[1].starts_with("line 5: \"soon\" is no time"), "{said:?}");
        assert!(said[2].starts_with("line 6: there is no start"), "{said:?}");
        assert!(said[3].starts_with("line 8: ") && said[3].contains("no offset from UTC"), "{said:?}");
        assert_eq!(said[4..], ["4 of 6 rows were refused"]);
    }
    let many = occupancy(&format!("0,1\n{}", "2,1\n".repeat(1_000)), &[]);
    let said = text(&many.stderr);
    assert_eq!(said.lines().count(), 22);
    assert!(said.ends_with("… and 980 more\n1000 of 1001 rows were refused\n"), "{said}");
}

#[test]
fn a_series_for_each_value_of_a_column() {
    let rows = "id,end,start,status\n1,10,0,ok\n2,4,2,\"a,b\"\n3,9,5,\n";
    let by = ["--step", "10s", "--output", "csv", "--by", "status", "--initial", "1"];
    let expected = ["00Z,,1,1,2,1,1.4,1,1", "00Z,\"a,b\",0,0,1,0,0.2,1,1", "00Z,ok,1,1,1,1,1,1,0"];
    assert_eq!(csv(&file(rows, &by)), expected);
    let third = csv(&file("0,10,x\n5,6,y\n", &["--step", "10s", "--output", "csv", "--by", "tag"]));
    assert_eq!(third, ["00Z,x,1,1,1,1,1,1,0", "00Z,y,0,0,1,0,0.1,1,1"]);
    let told: Value =
        serde_json::from_slice(&file(rows, &["--step", "10s", "--output", "json", "--by", "status"]).stdout)
            .unwrap();
    assert_eq!((told["step"].as_str(), told["to"].as_str()), (Some("10s"), Some("1970-01-01T00:00:10Z")));
    assert_eq!(
        (told["buckets"][0]["max"].as_i64(), told["buckets"][0]["avg"].as_f64()),
        (Some(2), Some(1.6))
    );
    assert_eq!(
        (told["tags"][2]["tag"].as_str(), &told["tags"][2]["buckets"][0]["max"]),
        (Some("ok"), &1.into())
    );
    fails(&file(rows, &["--by", "state"]), 2, "--by state: the columns are id, end, start, status");
    fails(&file("0,1\n", &["--by", "state"]), 2, "has no heading; its third column is \"tag\"");
    let many: Vec<_> = (0..1_100).map(|n| format!("{n},{n},{n}\n")).collect();
    fails(&file(&many.concat(), &["--by", "tag"]), 1, "more than 1000 different values");
}

#[test]
fn a_picture_is_text_of_bounded_size() {
    let rows: Vec<_> = (0..20_000).map(|n| format!("{n},{},<t&{}>\n", n + n % 97, n % 11)).collect();
    let svg = text(&file(&rows.concat(), &["--step", "1s", "--by", "tag", "--output", "svg"]).stdout);
    assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n") && svg.len() < 200_000, "{}", svg.len());
    assert!(svg.contains("&lt;t&amp;") && svg.contains("5 others") && !svg.contains("<t&"));
    assert!(
        svg.contains("20000 tasks, at most 48 at once; buckets of 1s, 26 in each column"),
        "{}",
        &svg[..1_500]
    );
}

#[test]
fn what_cannot_be_done_says_why_and_how() {
    fails(&file("", &[]), 1, "has no rows");
    fails(&file("start,end\n", &[]), 1, "has no rows");
    fails(&file("5,4\n", &[]), 1, "has no row that can be counted");
    fails(&file("0,1\n", &["--step", "0s"]), 2, "a bucket needs a width");
    fails(&file("0,1\n", &["--step", "5"]), 2, "has no unit");
    fails(&file("0,1\n", &["--from", "5", "--to", "5"]), 2, "--from must be before --to");
    fails(&file("0,1\n", &["--from", "now"]), 2, "--from: \"now\" is no time");
    fails(&file("5,6\n", &["--to", "2", "--step", "1s"]), 1, "no task starts before --to");
    fails(
        &file("0,1\n2011-07-18T22:58:52Z,\n", &["--step", "1s"]),
        1,
        "give a longer --step, or --from and --to",
    );
    let missing =
        Command::new(env!("CARGO_BIN_EXE_downbeat")).args(["occupancy", "/no/such.csv"]).output().unwrap();
    fails(&missing, 2, "/no/such.csv: No such file");
}

#[test]
fn the_picture_of_the_guide_is_that_of_its_example() {
    let output = Command::new(env!("CARGO_BIN_EXE_downbeat"))
        .args([
            "occupancy",
            "examples/occupancy/evening.csv",
            "--step",
            "1m",
            "--by",
            "type",
            "--output",
            "svg",
        ])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    let kept =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/guide/occupancy.svg")).unwrap();
    // If this is meant to change: write the output to that file, and look at it.
    assert_eq!(text(&output.stdout), kept);
}
