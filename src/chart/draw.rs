//! Where things go, in pixels.

use super::{COLORS, Chart, Line, Panel, Point, Shape, ticks};
use std::fmt::Write as _;

const WIDTH: f64 = 900.0;
const LEFT: f64 = 62.0;
const RIGHT: f64 = 24.0;
const PLOT: f64 = WIDTH - LEFT - RIGHT;
/// The height of the values of a panel: alone, or with others.
const ALONE: f64 = 320.0;
const AMONG: f64 = 190.0;
/// From the title of a panel to its top.
const HEAD: f64 = 16.0;
const ROW: f64 = 20.0;
/// A guess at the width of a character of the legend.
const CHARACTER: f64 = 7.1;
/// Longest name in a legend, in characters.
const NAME: usize = 40;

pub(super) fn draw(chart: &Chart) -> String {
    let mut body = String::new();
    let title = cut(&chart.title, 90);
    let _ = writeln!(body, "<text x=\"{LEFT}\" y=\"28\" class=\"title\">{title}</text>");
    let mut y = 40.0;
    if !chart.note.is_empty() {
        let _ = writeln!(body, "<text x=\"{LEFT}\" y=\"{}\">{}</text>", y + 8.0, cut(&chart.note, 120));
        y += ROW;
    }
    let scale = Scale::new(chart);
    let ticks = ticks::times(chart.axis.from, chart.axis.to, chart.axis.kind, PLOT);
    let height = if chart.panels.len() == 1 { ALONE } else { AMONG };
    for panel in &chart.panels {
        y = head(panel, y + 30.0, &mut body);
        plot(panel, scale, &ticks, (y, height), &mut body);
        y += height + ROW;
        for tick in &ticks {
            let _ = writeln!(
                body,
                "<text x=\"{:.1}\" y=\"{y:.1}\" class=\"x\">{}</text>",
                scale.x(tick.at),
                tick.label
            );
        }
    }
    if ticks.iter().any(|t| !t.date.is_empty()) {
        y += 17.0;
        // Not one over the other.
        let mut free = f64::NEG_INFINITY;
        for tick in ticks.iter().filter(|t| !t.date.is_empty()) {
            let x = scale.x(tick.at);
            if x >= free {
                let _ = writeln!(body, "<text x=\"{x:.1}\" y=\"{y:.1}\" class=\"x\">{}</text>", tick.date);
                free = x + 90.0;
            }
        }
    }
    let height = y + 16.0;
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height:.0}\" \
         viewBox=\"0 0 {WIDTH} {height:.0}\" role=\"img\" font-family=\"system-ui, sans-serif\" font-size=\"13\">\n\
         <title>{title}</title>\n{STYLE}{body}</svg>"
    )
}

const STYLE: &str = "<style>text { fill: #737b85 } .title { font-size: 18px; font-weight: 600 } \
    .panel { font-size: 14px; font-weight: 600 } .x { text-anchor: middle } .y { text-anchor: end } \
    .grid { stroke: #808890; stroke-opacity: .25 } .base { stroke: #808890 } \
    .line { fill: none; stroke-width: 1.8; stroke-linejoin: round; stroke-linecap: round } .area { fill-opacity: .6 }</style>\n";

#[derive(Debug, Clone, Copy)]
struct Scale {
    from: i64,
    pixels_per_us: f64,
}

impl Scale {
    fn new(chart: &Chart) -> Self {
        let span = (i128::from(chart.axis.to) - i128::from(chart.axis.from)).max(1);
        Self { from: chart.axis.from, pixels_per_us: PLOT / span as f64 }
    }

    fn x(self, at: i64) -> f64 {
        let x = (i128::from(at) - i128::from(self.from)) as f64 * self.pixels_per_us;
        LEFT + x.clamp(0.0, PLOT)
    }
}

/// Title and legend, in as many rows as they need; returns where the plot begins.
fn head(panel: &Panel, mut y: f64, body: &mut String) -> f64 {
    let title = cut(&panel.title, 60);
    let _ = writeln!(body, "<text x=\"{LEFT}\" y=\"{y:.1}\" class=\"panel\">{title}</text>");
    let mut x = LEFT + panel.title.chars().count().min(60) as f64 * 8.6 + 22.0;
    for line in &panel.lines {
        let width = 20.0 + line.name.chars().count().min(NAME) as f64 * CHARACTER + 16.0;
        if x + width > WIDTH - RIGHT && x > LEFT {
            (x, y) = (LEFT, y + ROW);
        }
        let (color, name) = (color(line), cut(&line.name, NAME));
        let (height, class) = if line.shape == Shape::Area { (10.0, " class=\"area\"") } else { (3.0, "") };
        let top = y - 4.5 - height / 2.0;
        let _ = writeln!(
            body,
            "<rect x=\"{x:.1}\" y=\"{top:.1}\" width=\"14\" height=\"{height}\" fill=\"{color}\"{class}/>\
             <text x=\"{:.1}\" y=\"{y:.1}\">{name}</text>",
            x + 20.0
        );
        x += width;
    }
    y + HEAD
}

fn plot(panel: &Panel, scale: Scale, times: &[ticks::Tick], (top, height): (f64, f64), body: &mut String) {
    let values = panel.lines.iter().flat_map(|l| &l.points).map(|p| p.high).filter(|v| v.is_finite());
    let (most, ticks) = ticks::values(values.fold(0.0, f64::max), panel.whole);
    let step = ticks.get(1).copied().unwrap_or(most);
    let bottom = top + height;
    let y = |value: f64| bottom - (value / most).clamp(0.0, 1.0) * height;
    for tick in times {
        let x = scale.x(tick.at);
        let _ = writeln!(body, "<path class=\"grid\" d=\"M{x:.1} {top:.1}V{bottom:.1}\"/>");
    }
    for tick in ticks {
        let (at, class) = (y(tick), if tick == 0.0 { "base" } else { "grid" });
        let _ = writeln!(
            body,
            "<path class=\"{class}\" d=\"M{LEFT} {at:.1}H{}\"/><text x=\"{}\" y=\"{:.1}\" class=\"y\">{}</text>",
            WIDTH - RIGHT,
            LEFT - 8.0,
            at + 4.5,
            ticks::number(tick, most, step)
        );
    }
    for line in &panel.lines {
        let (color, name) = (color(line), cut(&line.name, NAME));
        let points = thinned(&line.points, scale, line.shape);
        let (path, how) = match line.shape {
            Shape::Area => (area(&points, scale, y), format!("class=\"area\" fill=\"{color}\"")),
            Shape::Line | Shape::Steps => {
                (stroke(&points, scale, y, line.shape), format!("class=\"line\" stroke=\"{color}\""))
            }
        };
        if !path.is_empty() {
            let _ = writeln!(body, "<path {how} d=\"{path}\"><title>{name}</title></path>");
        }
    }
}

fn color(line: &Line) -> &'static str {
    COLORS[line.color % COLORS.len()]
}

fn stroke(points: &[Point], scale: Scale, y: impl Fn(f64) -> f64, shape: Shape) -> String {
    let mut path = String::new();
    let mut open = false;
    for point in points {
        let x = scale.x(point.at);
        if !point.high.is_finite() {
            if open && shape == Shape::Steps {
                let _ = write!(path, "H{x:.1}");
            }
            open = false;
            continue;
        }
        let _ = match (open, shape) {
            // Of no length, so that a point that stands alone is a dot.
            (false, Shape::Line) => write!(path, "M{x:.1} {:.1}h0", y(point.high)),
            (false, Shape::Steps | Shape::Area) => write!(path, "M{x:.1} {:.1}", y(point.high)),
            (true, Shape::Steps) => write!(path, "H{x:.1}V{:.1}", y(point.high)),
            (true, Shape::Line | Shape::Area) => write!(path, "L{x:.1} {:.1}", y(point.high)),
        };
        open = true;
    }
    path
}

fn area(points: &[Point], scale: Scale, y: impl Fn(f64) -> f64) -> String {
    let mut path = String::new();
    for run in points.split(|p| !(p.high.is_finite() && p.low.is_finite())) {
        let (Some(first), Some(last)) = (run.first(), run.last()) else { continue };
        let _ = write!(path, "M{:.1} {:.1}", scale.x(first.at), y(first.low));
        for point in run {
            let _ = write!(path, "H{:.1}V{:.1}", scale.x(point.at), y(point.high));
        }
        let _ = write!(path, "V{:.1}", y(last.low));
        for pair in run.windows(2).rev() {
            let _ = write!(path, "V{:.1}H{:.1}", y(pair[0].low), scale.x(pair[0].at));
        }
        path.push('Z');
    }
    path
}

/// At most four points for each column of pixels: the first, the lowest, the highest and the last.
fn thinned(points: &[Point], scale: Scale, shape: Shape) -> Vec<Point> {
    if points.len() <= 2 * PLOT as usize {
        return points.to_vec();
    }
    let column = |p: &Point| scale.x(p.at) as i64;
    let mut out: Vec<Point> = Vec::new();
    for chunk in points.chunk_by(|a, b| column(a) == column(b)) {
        let (first, last) = (chunk[0], chunk[chunk.len() - 1]);
        if shape == Shape::Area {
            let mean = |of: fn(&Point) -> f64| chunk.iter().map(of).sum::<f64>() / chunk.len() as f64;
            out.push(Point { at: first.at, low: mean(|p| p.low), high: mean(|p| p.high) });
            continue;
        }
        let by = |a: &&Point, b: &&Point| a.high.total_cmp(&b.high);
        let finite = || chunk.iter().filter(|p| p.high.is_finite());
        let mut kept = vec![first];
        let mut extremes: Vec<_> = [finite().min_by(by), finite().max_by(by)].into_iter().flatten().collect();
        extremes.sort_by_key(|p| p.at);
        kept.extend(extremes.into_iter().copied());
        kept.push(last);
        kept.dedup_by_key(|p| p.at);
        out.extend(kept);
    }
    out
}

/// Text for XML: of bounded length, without characters that XML does not have.
fn cut(text: &str, most: usize) -> String {
    let mut out = String::with_capacity(text.len());
    for (n, c) in text.chars().enumerate() {
        if n + 1 == most && text.chars().count() > most {
            out.push('…');
            break;
        }
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\u{fffe}' | '\u{ffff}' => out.push('\u{fffd}'),
            c if c.is_control() => out.push(' '),
            c => out.push(c),
        }
    }
    out
}
