//! What happened when, in buckets of 100 ms: recorded in memory while it is measured, put together and written when
//! everything has ended.
//!
//! The driver knows when starts were acknowledged and when events came; the workers write, as they end, when each task
//! ran ([`super::spans`]); processor time and memory come from `/proc` ([`super::sampler`]). Redis is not asked.
//!
//! To add a column: its values in [`Table::new`].

use super::charts;
use super::sampler::{KINDS, Sample, Sampler};
use super::spans;
use super::stats::{ms, percentile};
use crate::cli::Failure;
use crate::cli::output::{self, TempDir};
use crate::model::time::{Span, Timestamp};
use crate::occupancy::{Bucket, Interval, Series, Step, Window};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// The width of a bucket.
const WIDTH: i64 = 100_000;

/// When a run was there, in µs since the epoch.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Ran {
    /// Its start was acknowledged.
    pub(super) submitted: Option<i64>,
    /// Its last event was committed, and arrived here.
    pub(super) finished: Option<(i64, i64)>,
}

/// What is being recorded.
#[derive(Debug)]
pub(super) struct Recording {
    /// Where the workers leave their records.
    dir: TempDir,
    workers: Vec<PathBuf>,
    sampler: Option<Sampler>,
    samples: Vec<Sample>,
    began: i64,
    runs: Vec<Ran>,
}

impl Recording {
    pub(super) fn new() -> Result<Self, Failure> {
        let dir = TempDir::new("series")?;
        Ok(Self { dir, workers: Vec::new(), sampler: None, samples: Vec::new(), began: 0, runs: Vec::new() })
    }

    /// Where one more worker is to write its record.
    pub(super) fn worker(&mut self) -> &Path {
        let path = self.dir.path().join(format!("tasks-{}", self.workers.len() + 1));
        self.workers.push(path);
        &self.workers[self.workers.len() - 1]
    }

    /// The measurement begins: these processes are watched, by kind and id.
    pub(super) fn begin(&mut self, processes: Vec<(&'static str, u32)>) {
        self.sampler = Some(Sampler::start(processes));
    }

    /// The measurement is over.
    pub(super) fn end(&mut self) {
        if let Some(sampler) = self.sampler.take() {
            self.samples = sampler.stop();
        }
    }

    /// These are the runs; what was before `began`, in µs since the epoch, does not count.
    pub(super) fn ran(&mut self, began: i64, runs: Vec<Ran>) {
        (self.began, self.runs) = (began, runs);
    }

    /// Writes `series.csv`, `series.json` and the charts. The workers must have ended.
    pub(super) fn write(self, title: &str, out: &Path) -> Result<(), Failure> {
        let table = Table::new(&self.measured()?)?;
        let write = |name: &str, text: String| {
            let path = out.join(name);
            std::fs::write(&path, text).map_err(|e| Failure::failed(format!("{}: {e}", path.display())))?;
            output::note(&format!("written: {}", path.display()));
            Ok::<_, Failure>(())
        };
        write("series.csv", table.csv())?;
        write("series.json", table.json().to_string() + "\n")?;
        for (name, chart) in charts::all(title, &table) {
            write(name, chart.svg() + "\n")?;
        }
        Ok(())
    }

    fn measured(self) -> Result<Measured, Failure> {
        let mut tasks = Vec::new();
        for path in &self.workers {
            let read = std::fs::read(path).ok().and_then(|bytes| spans::read(&bytes));
            let read = read.ok_or_else(|| {
                Failure::failed(
                    "a worker has left no record of its tasks, so there is no series.csv; did it end early?",
                )
            })?;
            // Those before are of runs that warmed up.
            tasks.extend(read.into_iter().filter(|(start, _)| *start >= self.began));
        }
        Ok(Measured { began: self.began, tasks, runs: self.runs, samples: self.samples })
    }
}

/// All that is known, times in µs since the epoch.
#[derive(Debug, Default)]
struct Measured {
    began: i64,
    /// Start and end.
    tasks: Vec<(i64, i64)>,
    runs: Vec<Ran>,
    samples: Vec<Sample>,
}

/// A column: its name and a value for each bucket, if there is one.
#[derive(Debug)]
struct Column {
    name: String,
    values: Vec<Option<f64>>,
}

/// The series.
#[derive(Debug)]
pub(super) struct Table {
    /// The first instant of the first bucket, in µs since the epoch.
    from: i64,
    columns: Vec<Column>,
}

impl Table {
    fn new(measured: &Measured) -> Result<Self, Failure> {
        let runs = &measured.runs;
        let arrivals = || runs.iter().filter_map(|r| Some(r.finished?.1));
        let acknowledged = || runs.iter().filter_map(|r| r.submitted);
        let from = Timestamp(measured.began);
        let last = arrivals().chain(acknowledged()).chain(measured.tasks.iter().map(|(_, end)| *end)).max();
        // The bucket behind the last change shows that nothing was left.
        let to = Timestamp(last.unwrap_or(measured.began) + WIDTH + 1);
        let running = occupancy(from, to, &mut measured.tasks.iter().map(|(s, e)| (*s, Some(*e))).collect())?;
        let open = runs.iter().filter_map(|run| {
            let end = run.finished.map(|(committed, _)| committed);
            // The first task, and with a short run the last one, may be done before the acknowledgement is here.
            Some((run.submitted?.min(end.unwrap_or(i64::MAX)).max(measured.began), end))
        });
        let open = occupancy(from, to, &mut open.collect())?;

        let from = running[0].at.0;
        let buckets = running.len();
        let place = |at: i64| usize::try_from((at - from) / WIDTH).ok().filter(|n| *n < buckets);
        let count = |times: &mut dyn Iterator<Item = i64>| {
            let mut counts = vec![0_u32; buckets];
            times.filter_map(place).for_each(|n| counts[n] += 1);
            counts.into_iter().map(|n| Some(f64::from(n))).collect::<Vec<_>>()
        };
        let mut delays: Vec<Vec<u64>> = vec![Vec::new(); buckets];
        for (committed, arrived) in runs.iter().filter_map(|r| r.finished) {
            if let Some(n) = place(arrived) {
                delays[n].push((arrived - committed).max(0).unsigned_abs());
            }
        }
        for delays in &mut delays {
            delays.sort_unstable();
        }
        let delay = |q| delays.iter().map(|d| percentile(d, q).map(ms)).collect();
        let of = |series: &[Bucket], f: fn(&Bucket) -> f64| series.iter().map(|b| Some(f(b))).collect();
        // Each open run of a chain has one task that is ready or runs; on its way to or from a worker it is neither,
        // and counts as ready.
        let queued = |f: fn(&Bucket) -> f64| {
            open.iter().zip(&running).map(|(open, running)| Some((f(open) - f(running)).max(0.0))).collect()
        };
        let columns: [(&str, Vec<Option<f64>>); 15] = [
            ("submitted", count(&mut acknowledged())),
            ("started", of(&running, |b| b.starts as f64)),
            ("completed", of(&running, |b| b.ends as f64)),
            ("finished", count(&mut arrivals())),
            ("running_open", of(&running, |b| b.open as f64)),
            ("running_close", of(&running, |b| b.close as f64)),
            ("running_max", of(&running, |b| b.max as f64)),
            ("running_avg", of(&running, Bucket::avg)),
            ("open_runs_close", of(&open, |b| b.close as f64)),
            ("open_runs_max", of(&open, |b| b.max as f64)),
            ("open_runs_avg", of(&open, Bucket::avg)),
            ("queued_close", queued(|b| b.close as f64)),
            ("queued_avg", queued(Bucket::avg)),
            ("event_delay_p50_ms", delay(0.5)),
            ("event_delay_p99_ms", delay(0.99)),
        ];
        let mut columns: Vec<_> =
            columns.into_iter().map(|(name, values)| Column { name: name.to_owned(), values }).collect();
        let middles: Vec<i64> = running.iter().map(|b| b.at.0 + WIDTH / 2).collect();
        for (n, kind) in KINDS.into_iter().enumerate() {
            let cpu = middles.iter().map(|at| cpu(&measured.samples, *at, n)).collect();
            columns.push(Column { name: format!("{kind}_cpu"), values: cpu });
        }
        for (n, kind) in KINDS.into_iter().enumerate() {
            let rss = |at: &i64| Some(around(&measured.samples, *at)?.1.used[n]?.rss as f64);
            columns.push(Column {
                name: format!("{kind}_rss_bytes"),
                values: middles.iter().map(rss).collect(),
            });
        }
        Ok(Self { from, columns })
    }

    /// How many buckets there are.
    pub(super) fn len(&self) -> usize {
        self.columns[0].values.len()
    }

    /// The first instant of a bucket, or behind the last, in µs since that of the first.
    pub(super) fn at(n: usize) -> i64 {
        n as i64 * WIDTH
    }

    /// Buckets in a second.
    pub(super) const PER_SECOND: f64 = 1e6 / WIDTH as f64;

    /// The values of a column, by bucket; none without it.
    pub(super) fn column(&self, name: &str) -> &[Option<f64>] {
        self.columns.iter().find(|c| c.name == name).map_or(&[], |c| &c.values)
    }

    fn csv(&self) -> String {
        let mut text = "bucket,ms".to_owned();
        for column in &self.columns {
            text.push(',');
            text.push_str(&column.name);
        }
        for n in 0..self.len() {
            // Writing to a string does not fail.
            let _ = write!(text, "\n{},{}", self.bucket(n), Self::at(n) / 1_000);
            for column in &self.columns {
                text.push(',');
                if let Some(value) = column.values[n] {
                    let _ = write!(text, "{}", rounded(value));
                }
            }
        }
        text.push('\n');
        text
    }

    fn json(&self) -> Value {
        let values = |c: &Column| c.values.iter().map(|v| v.map_or(Value::Null, number)).collect::<Value>();
        let columns: serde_json::Map<_, _> =
            self.columns.iter().map(|c| (c.name.clone(), values(c))).collect();
        json!({ "from": self.bucket(0), "step_ms": WIDTH / 1_000, "buckets": self.len(), "columns": columns })
    }

    fn bucket(&self, n: usize) -> String {
        let at = self.from + Self::at(n);
        jiff::Timestamp::from_microsecond(at).map_or_else(|_| at.to_string(), |t| format!("{t:.1}"))
    }
}

fn rounded(value: f64) -> f64 {
    (value * 1_000.0).round() / 1_000.0
}

/// Whole numbers without a fraction.
fn number(value: f64) -> Value {
    let value = rounded(value);
    if value.fract() == 0.0 { json!(value as i64) } else { json!(value) }
}

fn occupancy(
    from: Timestamp,
    to: Timestamp,
    rows: &mut Vec<(i64, Option<i64>)>,
) -> Result<Vec<Bucket>, Failure> {
    let failure = |e: crate::occupancy::Fault| Failure::failed(format!("series.csv: {e}"));
    let step = Step::new(Span(WIDTH)).ok_or_else(|| Failure::failed("a bucket has no width"))?;
    let mut series = Series::new(Window { step, from: Some(from), to: Some(to) }, &[]);
    rows.sort_unstable();
    for (start, end) in rows {
        if let Some(interval) = Interval::new(Timestamp(*start), end.map(Timestamp)) {
            series.add(0, interval).map_err(failure)?;
        }
    }
    Ok(series.finish(1).map_err(failure)?.remove(0))
}

/// The samples before and after a time.
fn around(samples: &[Sample], at: i64) -> Option<(&Sample, &Sample)> {
    let after = samples.partition_point(|s| s.at <= at);
    Some((samples.get(after.checked_sub(1)?)?, samples.get(after)?))
}

/// How many cores a kind of process had at a time.
fn cpu(samples: &[Sample], at: i64, kind: usize) -> Option<f64> {
    let (before, after) = around(samples, at)?;
    let seconds = (after.at - before.at) as f64 / 1e6;
    let spent = after.used[kind]?.cpu - before.used[kind]?.cpu;
    (seconds > 0.0).then(|| (spent / seconds).max(0.0))
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::sampler::Used;
    use super::*;

    /// Two runs of two tasks; the second is not finished. The first 100 ms are those of a warm-up.
    pub(in super::super) fn table() -> Table {
        let base = 1_800_000_000_000_000;
        let at = |ms: i64| base + ms * 1_000;
        let sample = |ms: i64, cpu: f64| Sample {
            at: at(ms),
            used: [Some(Used { cpu, rss: 7 }), Some(Used { cpu: 0.0, rss: 5 }), None, None],
        };
        Table::new(&Measured {
            began: at(130),
            tasks: vec![(at(150), at(250)), (at(160), at(190)), (at(250), at(310))],
            runs: vec![
                Ran { submitted: Some(at(140)), finished: Some((at(310), at(325))) },
                Ran { submitted: Some(at(145)), finished: None },
                Ran::default(),
            ],
            samples: vec![sample(100, 1.0), sample(200, 1.05), sample(450, 1.3)],
        })
        .unwrap()
    }

    #[test]
    fn buckets_say_what_happened_in_them() {
        let table = table();
        let values = |name: &str| {
            let values = table.column(name).iter().map(|v| v.map_or(-1.0, rounded));
            values.collect::<Vec<_>>()
        };
        assert_eq!(table.len(), 4);
        assert_eq!(values("submitted"), [2.0, 0.0, 0.0, 0.0]);
        assert_eq!(values("started"), [2.0, 1.0, 0.0, 0.0]);
        assert_eq!(values("completed"), [1.0, 1.0, 1.0, 0.0]);
        assert_eq!(values("finished"), [0.0, 0.0, 1.0, 0.0]);
        assert_eq!(values("running_open"), [0.0, 1.0, 1.0, 0.0]);
        assert_eq!(values("running_close"), [1.0, 1.0, 0.0, 0.0]);
        assert_eq!(values("running_max"), [2.0, 1.0, 1.0, 0.0]);
        assert_eq!(values("running_avg"), [0.8, 1.0, 0.1, 0.0]);
        assert_eq!(values("open_runs_close"), [2.0, 2.0, 1.0, 1.0]);
        assert_eq!(values("queued_close"), [1.0, 1.0, 1.0, 1.0]);
        assert_eq!(values("event_delay_p99_ms"), [-1.0, -1.0, 15.0, -1.0]);
        assert_eq!(values("server_cpu"), [0.5, 1.0, 1.0, -1.0]);
        assert_eq!(values("server_rss_bytes"), [7.0, 7.0, 7.0, -1.0]);
        assert_eq!(values("redis_cpu"), [-1.0; 4]);
    }

    #[test]
    fn the_files_have_a_line_for_each_bucket() {
        let table = table();
        let csv = table.csv();
        let mut lines = csv.lines();
        let heading: Vec<_> = lines.next().unwrap().split(',').collect();
        let first: Vec<_> = lines.next().unwrap().split(',').collect();
        assert_eq!((heading[..3].join(","), heading.len()), ("bucket,ms,submitted".to_owned(), first.len()));
        assert_eq!(first[..5], ["2027-01-15T08:00:00.1Z", "0", "2", "2", "1"]);
        assert_eq!(lines.count(), 3);
        let json = table.json();
        assert_eq!((&json["step_ms"], &json["buckets"]), (&json!(100), &json!(4)));
        assert_eq!(json["columns"]["running_avg"], json!([0.8, 1, 0.1, 0]));
        assert_eq!(json["columns"]["event_delay_p50_ms"], json!([null, null, 15, null]));
    }

    #[test]
    fn nothing_at_all_is_an_empty_series() {
        let table = Table::new(&Measured { began: 5, ..Measured::default() }).unwrap();
        assert_eq!((table.len(), table.column("running_max").to_vec()), (2, vec![Some(0.0); 2]));
    }
}
