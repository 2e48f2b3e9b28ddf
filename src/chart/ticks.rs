//! Round numbers and round times for the axes.

use super::AxisKind;

const SECOND: i64 = 1_000_000;
const DAY: i64 = 86_400 * SECOND;

/// The top of an axis of values and its tick marks, from 0: at most six, at steps of 1, 2 or 5.
pub(super) fn values(max: f64, whole: bool) -> (f64, Vec<f64>) {
    let max = if max.is_finite() && max > 0.0 { max } else { 1.0 };
    let rough = max / 5.0;
    let power = 10_f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].iter().map(|n| n * power).find(|step| *step >= rough * 0.999_999);
    let mut step = step.unwrap_or(10.0 * power);
    if whole {
        step = step.max(1.0).round();
    }
    let count = (max / step - 1e-6).ceil().max(1.0);
    let ticks = (0..=count as u32).map(|n| f64::from(n) * step).collect();
    (count * step, ticks)
}

/// A tick of an axis that goes up to `top` in steps of `step`: short, and without digits that are no news.
pub(super) fn number(value: f64, top: f64, step: f64) -> String {
    let (divisor, suffix) = match top {
        top if top >= 1e9 => (1e9, "G"),
        top if top >= 1e6 => (1e6, "M"),
        top if top >= 1e4 => (1e3, "k"),
        _ => (1.0, ""),
    };
    let digits = (-(step / divisor).log10().floor()).clamp(0.0, 9.0) as usize;
    let suffix = if value == 0.0 { "" } else { suffix };
    let digits = if value == 0.0 { 0 } else { digits };
    format!("{:.digits$}{suffix}", value / divisor)
}

/// Steps of a time axis, in microseconds.
fn time_steps() -> impl Iterator<Item = i64> {
    let small = (0..6).flat_map(|power| [1, 2, 5].map(|n| n * 10_i64.pow(power)));
    let seconds = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 10_800, 21_600, 43_200];
    let days = [1, 2, 5, 10, 20, 50, 100, 200, 500].into_iter();
    let more = (3..8).flat_map(|power| [1, 2, 5].map(|n| n * 10_i64.pow(power)));
    small.chain(seconds.map(|n| n * SECOND)).chain(days.chain(more).map(|n| n * DAY))
}

/// A tick mark of a time axis.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Tick {
    pub(super) at: i64,
    pub(super) label: String,
    /// The date, where it is not that of the tick before.
    pub(super) date: String,
}

/// Tick marks of a time axis so that their labels fit side by side in `width` pixels.
pub(super) fn times(from: i64, to: i64, kind: AxisKind, width: f64) -> Vec<Tick> {
    let span = i128::from(to) - i128::from(from);
    let fits = |step: &i64| {
        let longest =
            label(to, *step, kind, to).chars().count().max(label(from, *step, kind, to).chars().count());
        span as f64 / *step as f64 * (longest as f64 * 7.4 + 22.0) <= width
    };
    let Some(step) = time_steps().find(fits) else { return Vec::new() };
    let mut ticks: Vec<Tick> = Vec::new();
    // Within the axis, so it does not overflow.
    let mut at = from.saturating_add((step - from.rem_euclid(step)) % step);
    let mut before = String::new();
    while at <= to {
        let date = if kind == AxisKind::Epoch && step < DAY { date(at) } else { String::new() };
        let news = if date == before { String::new() } else { date.clone() };
        ticks.push(Tick { at, label: label(at, step, kind, to), date: news });
        before = date;
        let Some(next) = at.checked_add(step) else { break };
        at = next;
    }
    ticks
}

/// A time on an axis that goes up to `to`.
fn label(at: i64, step: i64, kind: AxisKind, to: i64) -> String {
    let digits = match step {
        step if step % SECOND == 0 => 0,
        step => 6 - (step as f64).log10().floor() as usize,
    };
    match kind {
        AxisKind::Elapsed if to < 60 * SECOND => {
            format!("{:.digits$} s", at as f64 / SECOND as f64)
        }
        AxisKind::Elapsed => {
            let seconds = at / SECOND;
            let (hours, minutes) = (seconds / 3_600, seconds / 60 % 60);
            let seconds = (at % (60 * SECOND)) as f64 / SECOND as f64;
            let width = if digits == 0 { 2 } else { digits + 3 };
            if hours > 0 {
                format!("{hours}:{minutes:02}:{seconds:0width$.digits$}")
            } else {
                format!("{minutes}:{seconds:0width$.digits$}")
            }
        }
        AxisKind::Epoch => {
            let Ok(time) = jiff::Timestamp::from_microsecond(at) else { return at.to_string() };
            if step >= DAY {
                return date(at);
            }
            let clock =
                time.strftime(if step % (60 * SECOND) == 0 { "%H:%M" } else { "%H:%M:%S" }).to_string();
            let fraction = format!("{:06}", at.rem_euclid(SECOND));
            if digits == 0 { clock } else { format!("{clock}.{}", &fraction[..digits]) }
        }
    }
}

fn date(at: i64) -> String {
    jiff::Timestamp::from_microsecond(at)
        .map_or_else(|_| String::new(), |t| t.strftime("%Y-%m-%d").to_string())
}
