//! The charts of a series: drawn when everything has ended, so that drawing costs the measurement nothing.
//!
//! To add one: its function, and its line in [`all`].

use super::sampler::KINDS;
use super::series::Table;
use crate::chart::{Axis, AxisKind, Chart, Line, Panel, Point, Shape};

/// Buckets of a second.
const SECOND: usize = Table::PER_SECOND as usize;

/// Everything that is drawn, by the name of its file.
pub(super) fn all(title: &str, table: &Table) -> [(&'static str, Chart); 4] {
    let chart = |what: &str, note: &str, panels| Chart {
        title: format!("{what}: {title}"),
        note: note.to_owned(),
        axis: Axis { from: 0, to: Table::at(table.len()), kind: AxisKind::Elapsed },
        panels,
    };
    let progress = vec![
        panel(
            "Runs so far",
            true,
            vec![total(table, "submitted", "submitted", 0), total(table, "finished", "finished", 2)],
        ),
        panel(
            "Tasks so far",
            true,
            vec![total(table, "started", "started", 0), total(table, "completed", "completed", 2)],
        ),
        panel(
            "Tasks completed per second",
            true,
            vec![
                line(table, "completed", "in each 100 ms", 2, Shape::Area, Table::PER_SECOND),
                mean(table, "completed", "mean of a second", 7, Table::PER_SECOND),
            ],
        ),
    ];
    let running = vec![
        panel(
            "Tasks running",
            true,
            vec![
                line(table, "running_avg", "average", 0, Shape::Area, 1.0),
                line(table, "running_max", "most at once", 7, Shape::Steps, 1.0),
            ],
        ),
        panel(
            "Tasks ready, waiting for a worker",
            true,
            vec![line(table, "queued_avg", "average", 4, Shape::Area, 1.0)],
        ),
    ];
    let delay = vec![panel(
        "From commit to arrival, ms",
        false,
        vec![
            line(table, "event_delay_p99_ms", "p99", 7, Shape::Line, 1.0),
            line(table, "event_delay_p50_ms", "p50", 0, Shape::Line, 1.0),
        ],
    )];
    // Not all are ours to watch.
    let by_kind = |draw: &dyn Fn(&str, usize) -> Line| {
        let lines = KINDS.into_iter().zip([0, 2, 7, 1]).map(|(kind, color)| draw(kind, color));
        lines.filter(|line| line.points.iter().any(|p| p.high.is_finite())).collect::<Vec<_>>()
    };
    let cpu = |kind: &str, color| mean(table, &format!("{kind}_cpu"), kind, color, 1.0);
    let rss = |kind: &str, color| line(table, &format!("{kind}_rss_bytes"), kind, color, Shape::Steps, 1e-6);
    let cost = vec![
        panel("Processor, cores", false, by_kind(&cpu)),
        panel("Resident memory, MB", false, by_kind(&rss)),
    ];
    [
        (
            "progress.svg",
            chart(
                "Progress",
                "in buckets of 100 ms; submitted: acknowledged, finished: its event arrived",
                progress,
            ),
        ),
        (
            "running.svg",
            chart(
                "Tasks at the same time",
                "in buckets of 100 ms; a task runs from its handler's call until its result is acknowledged",
                running,
            ),
        ),
        ("delay.svg", chart("Delivery of completion events", "in buckets of 100 ms, by arrival", delay)),
        (
            "cost.svg",
            chart(
                "Processor and memory",
                "sampled four times a second, processor as the mean of a second; all processes of a kind together",
                cost,
            ),
        ),
    ]
}

fn panel(title: &str, whole: bool, lines: Vec<Line>) -> Panel {
    Panel { title: title.to_owned(), whole, lines }
}

/// A column as it is; areas and steps go on to the end of the last bucket.
fn line(table: &Table, column: &str, name: &str, color: usize, shape: Shape, scale: f64) -> Line {
    let values = table.column(column);
    let value = |v: &Option<f64>| v.map_or(f64::NAN, |v| v * scale);
    let points = match shape {
        Shape::Line => middles(values.iter().map(value)),
        Shape::Steps | Shape::Area => {
            let last = values.last().map(|v| Point::new(Table::at(values.len()), value(v)));
            values.iter().enumerate().map(|(n, v)| Point::new(Table::at(n), value(v))).chain(last).collect()
        }
    };
    Line { name: name.to_owned(), color, shape, points }
}

/// A column added up.
fn total(table: &Table, column: &str, name: &str, color: usize) -> Line {
    let mut sum = 0.0;
    let values = table.column(column).iter().enumerate().map(|(n, v)| {
        sum += v.unwrap_or(0.0);
        Point::new(Table::at(n + 1), sum)
    });
    let points = [Point::new(0, 0.0)].into_iter().chain(values).collect();
    Line { name: name.to_owned(), color, shape: Shape::Line, points }
}

/// A column as the mean of the second around each bucket.
fn mean(table: &Table, column: &str, name: &str, color: usize, scale: f64) -> Line {
    let values = table.column(column);
    let around = |n: usize| {
        let near = &values[n.saturating_sub(SECOND / 2)..values.len().min(n + SECOND.div_ceil(2))];
        let known = near.iter().flatten();
        // Where there is no value there is no mean.
        if values[n].is_some() { known.clone().sum::<f64>() / known.count() as f64 * scale } else { f64::NAN }
    };
    Line { name: name.to_owned(), color, shape: Shape::Line, points: middles((0..values.len()).map(around)) }
}

/// Points in the middle of their buckets. Those without a value are passed over, and interrupt the line where there are
/// many.
fn middles(values: impl Iterator<Item = f64>) -> Vec<Point> {
    let mut points: Vec<Point> = Vec::new();
    let mut missing = 0;
    for (n, value) in values.enumerate() {
        let at = i64::midpoint(Table::at(n), Table::at(n + 1));
        if value.is_finite() {
            missing = 0;
            points.push(Point::new(at, value));
        } else {
            missing += 1;
            if missing == SECOND {
                points.push(Point::new(at, f64::NAN));
            }
        }
    }
    points
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_chart_has_its_lines_and_only_what_is_known() {
        let charts = all("2 runs", &super::super::series::tests::table());
        let names: Vec<_> = charts.iter().map(|(name, _)| *name).collect();
        assert_eq!(names, ["progress.svg", "running.svg", "delay.svg", "cost.svg"]);
        let tasks: Vec<_> = charts[0].1.panels[1].lines[1].points.iter().map(|p| p.high).collect();
        assert_eq!(tasks, [0.0, 1.0, 2.0, 3.0, 3.0]);
        let delay = &charts[2].1.panels[0].lines[0].points;
        assert_eq!(delay, &[Point::new(250_000, 15.0)]);
        let kinds: Vec<_> = charts[3].1.panels[0].lines.iter().map(|l| l.name.as_str()).collect();
        assert_eq!(kinds, ["server", "worker"]);
    }

    #[test]
    fn a_line_goes_over_short_gaps_and_is_interrupted_by_long_ones() {
        let values = |gap: usize| [1.0].into_iter().chain(vec![f64::NAN; gap]).chain([2.0]);
        assert_eq!(middles(values(SECOND - 1)).len(), 2);
        let points = middles(values(3 * SECOND));
        assert_eq!(points.iter().map(|p| p.high.is_finite()).collect::<Vec<_>>(), [true, false, true]);
        assert_eq!((points[0].at, points[2].at), (50_000, Table::at(3 * SECOND + 1) + 50_000));
    }
}
