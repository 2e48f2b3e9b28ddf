//! The series as a table, CSV, JSON or a picture.

use crate::chart::{Axis, AxisKind, Chart, Line, Panel, Point, Shape};
use crate::cli::output::{Style, Table};
use crate::model::duration;
use crate::model::time::Timestamp;
use crate::occupancy::{Bucket, Step};
use serde_json::{Value, json};
use std::fmt::Write as _;

/// Columns of a picture; more are nothing that can be seen.
const COLUMNS: usize = 800;
/// Tags with a colour of their own; the rest is one.
const COLORED: usize = 6;
/// The colour of the high-water mark.
const HIGH_WATER: usize = 7;
/// Buckets without a change that a table shows before it says how many there are.
const ALIKE: usize = 3;

/// The series of one tag.
#[derive(Debug)]
pub(super) struct Tag {
    /// Empty for rows without one.
    pub(super) name: String,
    pub(super) buckets: Vec<Bucket>,
}

/// All that is told.
#[derive(Debug)]
pub(super) struct Told {
    pub(super) file: String,
    pub(super) step: Step,
    pub(super) rows: u64,
    pub(super) refused: u64,
    /// At least one bucket.
    pub(super) all: Vec<Bucket>,
    /// By name, each with as many buckets as `all`; none if nobody asked.
    pub(super) tags: Option<Vec<Tag>>,
}

const FIGURES: [&str; 7] = ["open", "close", "max", "min", "avg", "starts", "ends"];

impl Told {
    pub(super) fn table(&self) {
        let mut heading = vec!["BUCKET"];
        heading.extend(self.tags.is_some().then_some("TAG"));
        let figures = FIGURES.map(str::to_uppercase);
        heading.extend(figures.iter().map(String::as_str));
        let mut table = Table::new(&heading);
        let mut at = 0;
        while at < self.all.len() {
            let value = self.all[at].open;
            let same = self.all[at..].iter().take_while(|b| quiet(b) && b.open == value).count();
            if same > ALIKE {
                let running =
                    if value == 0 { "nothing running".to_owned() } else { format!("{value} running") };
                table.row(vec![format!("… {same} buckets without a change, {running}")]);
                at += same;
                continue;
            }
            for (tag, bucket) in self.at(at) {
                let mut cells = vec![for_people(bucket.at)];
                cells.extend(tag.map(str::to_owned));
                cells.extend(figures_of(bucket));
                table.row(cells);
            }
            at += 1;
        }
        table.print(Style::stdout());
    }

    /// Without a line end.
    pub(super) fn csv(&self) -> String {
        let tag = self.tags.as_ref().map(|_| "tag");
        let heading: Vec<_> = ["bucket"].into_iter().chain(tag).chain(FIGURES).collect();
        let mut text = heading.join(",");
        for at in 0..self.all.len() {
            for (tag, bucket) in self.at(at) {
                text.push('\n');
                text.push_str(&time(bucket.at));
                for field in tag.map(quoted).into_iter().chain(figures_of(bucket)) {
                    text.push(',');
                    text.push_str(&field);
                }
            }
        }
        text
    }

    pub(super) fn json(&self) -> Value {
        let buckets = |buckets: &[Bucket]| buckets.iter().map(bucket_json).collect::<Vec<_>>();
        let (from, to) = self.window();
        let mut value = json!({
            "step": duration::format(self.step.span()),
            "from": time(from),
            "to": time(to),
            "rows": self.rows,
            "refused": self.refused,
            "buckets": buckets(&self.all),
        });
        if let Some(tags) = &self.tags {
            let tags = tags.iter().map(|tag| json!({ "tag": tag.name, "buckets": buckets(&tag.buckets) }));
            value["tags"] = tags.collect();
        }
        value
    }

    pub(super) fn svg(&self) -> String {
        let (from, to) = self.window();
        let per_column = self.all.len().div_ceil(COLUMNS);
        let all = columns(&self.all, per_column);
        let peak = all.iter().map(|b| b.max).max().unwrap_or(0);
        let mut note = format!(
            "{} tasks, at most {peak} at once; buckets of {}",
            self.rows,
            duration::format(self.step.span())
        );
        if per_column > 1 {
            // Writing to a string does not fail.
            let _ = write!(note, ", {per_column} in each column");
        }
        if self.refused > 0 {
            let _ = write!(note, "; {} rows refused", self.refused);
        }
        let mut lines = match &self.tags {
            None => vec![area("average", 0, &all, None)],
            Some(tags) => stacked(tags, per_column),
        };
        lines.push(Line {
            name: "most at once".to_owned(),
            color: HIGH_WATER,
            shape: Shape::Steps,
            points: points(&all, |b| (0.0, b.max as f64)),
        });
        let changes = |name: &str, color, of: fn(&Bucket) -> u64| Line {
            name: name.to_owned(),
            color,
            shape: Shape::Steps,
            points: points(&all, |b| (0.0, of(b) as f64)),
        };
        let each = duration::format(all[0].width);
        let panels = vec![
            Panel { title: "Tasks running".to_owned(), whole: false, lines },
            Panel {
                title: format!("Starts and ends per {each}"),
                whole: true,
                lines: vec![changes("starts", 2, |b| b.starts), changes("ends", 1, |b| b.ends)],
            },
        ];
        let file = std::path::Path::new(&self.file).file_name().map(|name| name.to_string_lossy());
        let title = format!("Tasks running at the same time: {}", file.unwrap_or_default());
        let axis = Axis { from: from.0, to: to.0, kind: AxisKind::Epoch };
        Chart { title, note, axis, panels }.svg()
    }

    fn window(&self) -> (Timestamp, Timestamp) {
        let last = self.all[self.all.len() - 1];
        (self.all[0].at, last.at.plus(last.width))
    }

    /// What stands in the rows of one bucket: the tag, if there are tags, and its values.
    fn at(&self, at: usize) -> Vec<(Option<&str>, &Bucket)> {
        match &self.tags {
            None => vec![(None, &self.all[at])],
            Some(tags) => tags.iter().map(|tag| (Some(tag.name.as_str()), &tag.buckets[at])).collect(),
        }
    }
}

/// Averages on top of each other, the largest below.
fn stacked(tags: &[Tag], per_column: usize) -> Vec<Line> {
    let mut tags: Vec<_> =
        tags.iter().map(|tag| (tag.name.as_str(), columns(&tag.buckets, per_column))).collect();
    let size = |buckets: &[Bucket]| buckets.iter().map(|b| b.area).sum::<i128>();
    tags.sort_by_key(|(name, buckets)| (-size(buckets), *name));
    let rest = tags.split_off(tags.len().min(COLORED));
    let mut below = vec![0.0; tags.first().map_or(0, |(_, buckets)| buckets.len())];
    let mut lines: Vec<Line> = Vec::new();
    for (n, (name, buckets)) in tags.iter().enumerate() {
        let name = if name.is_empty() { "no tag" } else { name };
        lines.push(area(name, n, buckets, Some(&below)));
        for (below, bucket) in below.iter_mut().zip(buckets) {
            *below += bucket.avg();
        }
    }
    if !rest.is_empty() {
        let sum = |at: usize| rest.iter().map(|(_, buckets)| buckets[at].area).sum::<i128>();
        let mut buckets = rest[0].1.clone();
        for (at, bucket) in buckets.iter_mut().enumerate() {
            bucket.area = sum(at);
        }
        lines.push(area(&format!("{} others", rest.len()), COLORED, &buckets, Some(&below)));
    }
    lines
}

fn quiet(bucket: &Bucket) -> bool {
    bucket.starts == 0 && bucket.ends == 0
}

/// A field of a CSV file: in quotes where it must be.
fn quoted(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) || text.trim() != text {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}

/// Values in the order of [`FIGURES`].
fn figures_of(b: &Bucket) -> [String; 7] {
    let [open, close, max, min] = [b.open, b.close, b.max, b.min].map(|n| n.to_string());
    [open, close, max, min, avg(b).to_string(), b.starts.to_string(), b.ends.to_string()]
}

/// To six decimals, as finely as anybody can use it.
fn avg(bucket: &Bucket) -> f64 {
    (bucket.avg() * 1e6).round() / 1e6
}

fn bucket_json(b: &Bucket) -> Value {
    json!({
        "bucket": time(b.at), "open": b.open, "close": b.close, "max": b.max, "min": b.min, "avg": avg(b),
        "starts": b.starts, "ends": b.ends,
    })
}

/// RFC 3339, with as many decimals as there are.
fn time(at: Timestamp) -> String {
    jiff::Timestamp::from_microsecond(at.0).map_or_else(|_| at.to_string(), |t| t.to_string())
}

fn for_people(at: Timestamp) -> String {
    time(at).replace('T', " ").trim_end_matches('Z').to_owned()
}

fn columns(buckets: &[Bucket], per_column: usize) -> Vec<Bucket> {
    buckets.chunks(per_column).filter_map(|chunk| chunk.iter().copied().reduce(Bucket::merge)).collect()
}

/// Points that hold until the next, and one more at the end.
fn points(buckets: &[Bucket], of: impl Fn(&Bucket) -> (f64, f64)) -> Vec<Point> {
    let point = |at: Timestamp, b: &Bucket| {
        let (low, high) = of(b);
        Point { at: at.0, low, high }
    };
    let last = buckets.last().map(|b| point(b.at.plus(b.width), b));
    buckets.iter().map(|b| point(b.at, b)).chain(last).collect()
}

fn area(name: &str, color: usize, buckets: &[Bucket], below: Option<&[f64]>) -> Line {
    let mut points = points(buckets, |b| (0.0, b.avg()));
    if let Some(below) = below {
        let last = below.last();
        for (point, below) in points.iter_mut().zip(below.iter().chain(last)) {
            (point.low, point.high) = (*below, point.high + below);
        }
    }
    Line { name: name.to_owned(), color, shape: Shape::Area, points }
}
