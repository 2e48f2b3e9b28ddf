//! Figures: what is computed from the times, and the form in which they are told.

use crate::cli::output::{self, BOLD, DIM, Style};
use serde::Serialize;
use serde_json::Value;

/// The figures of one scenario; what it does not have is left out. The names are a promise to programs.
#[derive(Debug, Clone, Default, Serialize)]
pub(super) struct Summary {
    pub(super) scenario: &'static str,
    pub(super) runs: u32,
    /// Runs before them, which warm up and cost what they cost.
    #[serde(skip)]
    pub(super) warm_up: u32,
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
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) redis_bytes_per_finished_run: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) redis_commands_per_task: Option<f64>,
    /// Bytes that Redis was sent, and has sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) redis_bytes_written_per_task: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) redis_bytes_read_per_task: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) server_rss_bytes: Option<u64>,
    /// Processor seconds of each process while it was measured.
    #[serde(skip_serializing_if = "serde_json::Map::is_empty")]
    pub(super) cpu_seconds: serde_json::Map<String, Value>,
    /// The same per task, all processes together, in microseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) cpu_us_per_task: Option<f64>,
    /// `ok`, or what was wrong.
    pub(super) audit: String,
    pub(super) machine: Value,
    pub(super) settings: Value,
}

impl Summary {
    /// Prints what there is, for people.
    pub(super) fn print(&self) {
        let style = Style::stdout();
        let Ok(Value::Object(fields)) = serde_json::to_value(self) else { return };
        for (name, value) in fields {
            let text = match &value {
                Value::Number(n) if n.is_f64() => format!("{:.3}", n.as_f64().unwrap_or(0.0)),
                Value::String(text) => text.clone(),
                other => other.to_string(),
            };
            let text = if name == "tasks_per_second" { style.paint(BOLD, &text) } else { text };
            output::line(&format!("{} {text}", style.paint(DIM, &format!("{name:<30}"))));
        }
    }
}

/// The value below which the share `q` of `sorted` lies; none of nothing.
pub(super) fn percentile(sorted: &[u64], q: f64) -> Option<u64> {
    let rank = (sorted.len() as f64 * q).ceil() as usize;
    sorted.get(rank.max(1) - 1).copied()
}

/// Microseconds as milliseconds.
pub(super) fn ms(us: u64) -> f64 {
    us as f64 / 1_000.0
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
    fn percentiles_are_values_that_occurred() {
        let sorted: Vec<u64> = (1..=100).collect();
        assert_eq!((percentile(&sorted, 0.5), percentile(&sorted, 0.99)), (Some(50), Some(99)));
        assert_eq!((percentile(&sorted, 1.0), percentile(&sorted, 0.0)), (Some(100), Some(1)));
        assert_eq!((percentile(&[7], 0.99), percentile(&[], 0.5)), (Some(7), None));
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
