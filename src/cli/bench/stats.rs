//! Figures: what is computed from the times, and the form in which they are told.

use crate::cli::output::{self, BOLD, DIM, Style};
use hdrhistogram::Histogram;
use serde::Serialize;
use serde_json::{Map, Value};

/// The figures of one scenario; what it does not have is left out. The names are a promise to programs.
#[derive(Debug, Clone, Default, Serialize)]
pub(super) struct Summary {
    pub(super) scenario: &'static str,
    pub(super) runs: u32,
    pub(super) tasks_per_run: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) tasks_per_second: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) runs_submitted_per_second: Option<f64>,
    /// Median time of a run over its items, in microseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) us_per_item: Option<f64>,
    /// Runs completed per second while runs were submitted, over the same afterwards.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) rate_during_submit_over_after: Option<f64>,
    /// How straight the curve of completions over time is; 1 is a line.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) completion_r2: Option<f64>,
    /// From the commit of a run's last event to its arrival at the client.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) completion_event_p50_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) completion_event_p99_ms: Option<f64>,
    /// From sending a start to the arrival of the run's last event.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) run_latency_p50_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) run_latency_p99_ms: Option<f64>,
    /// Figures that one scenario alone has; see its file.
    #[serde(flatten)]
    pub(super) own: Map<String, Value>,
    /// Transitions per second that the commit script alone reaches on the same Redis; see `ceiling.rs`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) ceiling_transitions_per_second: Option<f64>,
    /// Ours (tasks and starts per second) over it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) ceiling_share: Option<f64>,
    /// Decisions of each batch of it, and bytes sent for each.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) ceiling_decisions_per_batch: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) ceiling_bytes_per_transition: Option<f64>,
    /// Processor time of Redis while it was measured, as a share of one core; only of a Redis that this has started.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) ceiling_redis_cpu_share: Option<f64>,
    /// By how much the memory of Redis has grown, at rest, over the runs; what is of connections is left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) redis_bytes_per_finished_run: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) redis_bytes_per_open_run: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) redis_keys_per_finished_run: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) redis_keys_per_open_run: Option<f64>,
    /// Commands as Redis counts them: those inside of scripts, too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) redis_commands_per_task: Option<f64>,
    /// Scripts alone: the round trips of all that is written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) redis_scripts_per_task: Option<f64>,
    /// Bytes that Redis was sent, and has sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) redis_bytes_written_per_task: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) redis_bytes_read_per_task: Option<f64>,
    /// At the end of the measurement; of several servers, the largest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) server_rss_bytes: Option<u64>,
    /// The most that one process of each kind has had.
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub(super) rss_peak_bytes: Map<String, Value>,
    /// Processor seconds of each kind of process while it was measured; `driver` is the benchmark itself.
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub(super) cpu_seconds: Map<String, Value>,
    /// The same per task in microseconds, of all but the driver.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) cpu_us_per_task: Option<f64>,
    /// `ok`, or what was wrong.
    pub(super) audit: String,
    pub(super) machine: Value,
    pub(super) settings: Value,
}

impl Summary {
    /// Adds a figure that this scenario alone has; none is left out.
    pub(super) fn add(&mut self, name: impl Into<String>, value: Option<impl Into<Value>>) {
        if let Some(value) = value {
            self.own.insert(name.into(), value.into());
        }
    }

    /// Prints what there is, for people.
    pub(super) fn print(&self) {
        let style = Style::stdout();
        let Ok(Value::Object(fields)) = serde_json::to_value(self) else { return };
        for (name, value) in fields {
            // A list is told line by line.
            let items = if let Value::Array(items) = value { items } else { vec![value] };
            for (n, item) in items.iter().enumerate() {
                let text = plain(item);
                let text = if name == "tasks_per_second" { style.paint(BOLD, &text) } else { text };
                let name = if n == 0 { name.as_str() } else { "" };
                output::line(&format!("{} {text}", style.paint(DIM, &format!("{name:<30}"))));
            }
        }
    }
}

/// A value for people: numbers to three digits, objects without their signs.
fn plain(value: &Value) -> String {
    match value {
        Value::Number(n) if n.is_f64() => format!("{:.3}", n.as_f64().unwrap_or(0.0)),
        Value::String(text) => text.clone(),
        Value::Object(fields) => {
            let fields = fields.iter().filter(|(_, value)| !value.is_null());
            let told: Vec<_> = fields.map(|(name, value)| format!("{name} {}", plain(value))).collect();
            told.join(", ")
        }
        other => other.to_string(),
    }
}

/// Times in microseconds, kept to three digits: an HDR histogram, of the same size however many there are.
#[derive(Debug, Clone)]
pub(super) struct Times(Histogram<u64>);

impl Times {
    /// The longest time that is told apart: an hour.
    const MAX: u64 = 3_600_000_000;

    pub(super) fn new() -> Self {
        let times = Histogram::new_with_bounds(1, Self::MAX, 3);
        Self(times.expect("bounds and digits are within what the histogram takes"))
    }

    /// Adds a time in µs.
    pub(super) fn record(&mut self, us: u64) {
        self.0.saturating_record(us);
    }

    /// The time in µs that the share `q` of all does not exceed; none of none.
    pub(super) fn us(&self, q: f64) -> Option<u64> {
        (!self.0.is_empty()).then(|| self.0.value_at_quantile(q))
    }

    /// The same in milliseconds.
    pub(super) fn ms(&self, q: f64) -> Option<f64> {
        self.us(q).map(ms)
    }
}

impl FromIterator<u64> for Times {
    fn from_iter<I: IntoIterator<Item = u64>>(times: I) -> Self {
        let mut all = Self::new();
        times.into_iter().for_each(|us| all.record(us));
        all
    }
}

/// The value below which the share `q` of `sorted` lies; none of nothing. For few values, where [`Times`] is too large.
pub(super) fn percentile(sorted: &[u64], q: f64) -> Option<u64> {
    let rank = (sorted.len() as f64 * q).ceil() as usize;
    sorted.get(rank.max(1) - 1).copied()
}

/// Microseconds as milliseconds.
pub(super) fn ms(us: u64) -> f64 {
    us as f64 / 1_000.0
}

/// A time that has passed, in whole microseconds.
pub(super) fn micros(time: std::time::Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// R² of a line through (time, how many were done by then): `times` are sorted, one per completion.
pub(super) fn straightness(times: &[u64]) -> Option<f64> {
    if times.len() < 3 {
        return None;
    }
    let n = times.len() as f64;
    let mean_x = times.iter().map(|t| *t as f64).sum::<f64>() / n;
    let mean_y = f64::midpoint(n, 1.0);
    let (mut xx, mut xy, mut yy) = (0.0, 0.0, 0.0);
    for (i, t) in times.iter().enumerate() {
        let (dx, dy) = (*t as f64 - mean_x, (i + 1) as f64 - mean_y);
        xx += dx * dx;
        xy += dx * dy;
        yy += dy * dy;
    }
    (xx > 0.0).then(|| xy * xy / (xx * yy))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_right_to_three_digits() {
        let times: Times = (1..=100).collect();
        assert_eq!((times.us(0.5), times.us(0.99)), (Some(50), Some(99)));
        assert_eq!((times.us(1.0), times.us(0.0)), (Some(100), Some(1)));
        assert_eq!(times.ms(0.5), Some(0.05));
        let one: Times = [7].into_iter().collect();
        assert_eq!((one.us(0.99), Times::new().us(0.5), Times::new().ms(0.5)), (Some(7), None, None));
        let long: Times = [0, 1_234_567, u64::MAX].into_iter().collect();
        let (middle, most) = (long.us(0.5).unwrap(), long.us(1.0).unwrap());
        assert!(middle.abs_diff(1_234_567) < 1_235, "{middle}");
        assert!(most.abs_diff(Times::MAX) < Times::MAX / 1_000, "{most}");
        assert_eq!(long.us(0.0), Some(0));
    }

    #[test]
    fn percentiles_of_few_values_are_values_that_occurred() {
        let sorted: Vec<u64> = (1..=100).collect();
        assert_eq!((percentile(&sorted, 0.5), percentile(&sorted, 0.99)), (Some(50), Some(99)));
        assert_eq!((percentile(&sorted, 1.0), percentile(&sorted, 0.0)), (Some(100), Some(1)));
        assert_eq!((percentile(&[7], 0.99), percentile(&[], 0.5)), (Some(7), None));
    }

    #[test]
    fn a_figure_of_one_scenario_stands_beside_those_of_all() {
        let mut summary = Summary { scenario: "attach", audit: "ok".into(), ..Summary::default() };
        summary.add("attach_p50_ms", Some(1.5));
        summary.add("attach_p99_ms", None::<f64>);
        let value = serde_json::to_value(&summary).unwrap();
        assert_eq!(
            (value["attach_p50_ms"].as_f64(), value["scenario"].as_str()),
            (Some(1.5), Some("attach"))
        );
        assert!(value.get("attach_p99_ms").is_none() && value.get("own").is_none(), "{value}");
    }

    #[test]
    fn values_are_told_plainly() {
        let value = serde_json::json!({ "p50_ms": 1.23456, "events": 20, "of": { "x": "y" }, "none": null });
        assert_eq!(plain(&value), "p50_ms 1.235, events 20, of x y");
    }

    #[test]
    fn a_steady_rate_is_straight_and_everything_at_the_end_is_not() {
        let steady: Vec<u64> = (0..1_000).map(|n| n * 10).collect();
        assert!(straightness(&steady).unwrap() > 0.999_999);
        let mut late = vec![0; 10];
        late.extend(10_000..10_990);
        assert!(straightness(&late).unwrap() < 0.5);
        assert_eq!(straightness(&[5, 5, 5]), None);
    }
}
