//! A plan as an SVG picture: nothing is loaded and nothing runs in it.

use super::labels::{self, Look};
use super::layout::{Item, Layout, layout};
use super::{body, last};
use crate::model::plan::{Plan, When};
use std::fmt::Write as _;
use std::ops::Range;

/// Around the picture, and inside of a group.
const MARGIN: i64 = 24;
const LINE: i64 = 17;
/// Above and below the lines of a box.
const PAD: i64 = 9;
/// A guess at the width of a character, in tenths of a pixel.
const CHARACTER: i64 = 72;

/// A task with its size, and what is inside.
struct Shape {
    task: u32,
    lines: Vec<String>,
    width: i64,
    height: i64,
    inside: Option<(Vec<Shape>, Layout)>,
}

/// The picture, without a line end.
pub(super) fn draw(plan: &Plan) -> String {
    let mut shapes: Vec<Shape> = plan.body.clone().map(|task| shape(plan, task)).collect();
    let mut items = items(plan, &shapes, plan.body.clone());
    if let Some(finally) = plan.finally {
        let shape = shape(plan, finally);
        let needs = last(plan).into_iter().map(|t| t as usize).collect();
        items.push(Item { width: shape.width, height: shape.height, needs });
        shapes.push(shape);
    }
    let places = layout(&items);
    let title = MARGIN + LINE;
    let (width, height) = (places.width + 2 * MARGIN, places.height + 2 * MARGIN + title);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         viewBox=\"0 0 {width} {height}\" role=\"img\" font-family=\"system-ui, sans-serif\" font-size=\"13\">\n"
    );
    let name = escaped(plan.name.as_str());
    let _ = writeln!(out, "<title>{name}</title>");
    if let Some(description) = &plan.description {
        let _ = writeln!(out, "<desc>{}</desc>", escaped(description));
    }
    out.push_str(STYLE);
    for look in Look::ALL {
        let (fill, border) = look.colors();
        let _ = write!(out, ".{} {{ fill: {fill}; stroke: {border} }} ", look.name());
    }
    out.push_str("</style>\n");
    out.push_str(ARROW);
    let _ = writeln!(out, "<rect width=\"{width}\" height=\"{height}\" fill=\"#ffffff\"/>");
    let _ = writeln!(out, "<text x=\"{MARGIN}\" y=\"{}\" class=\"name\">{name}</text>", MARGIN + PAD);
    content(plan, &shapes, &places, (MARGIN, MARGIN + title), &mut out);
    out.push_str("</svg>");
    out
}

const STYLE: &str = "<style>text { fill: #1f2430 } .id { font-weight: 600 } .name { font-size: 16px; font-weight: 600 } \
                     .more { fill: #5b6270 } .edge { fill: none; stroke: #6b7280; stroke-width: 1.4 } \
                     .dashed { stroke-dasharray: 5 4 } .label { font-size: 11px; fill: #5b6270 } \
                     rect, path.box { stroke-width: 1.4 } ";
const ARROW: &str = "<defs><marker id=\"arrow\" viewBox=\"0 0 8 8\" refX=\"7\" refY=\"4\" markerWidth=\"8\" \
                     markerHeight=\"8\" orient=\"auto\"><path d=\"M0 0 8 4 0 8z\" fill=\"#6b7280\"/></marker></defs>\n";

fn shape(plan: &Plan, task: u32) -> Shape {
    let lines = labels::lines(plan, task);
    let tasks = body(plan, task);
    let longest = lines.iter().map(|l| l.chars().count()).max().unwrap_or(0) as i64;
    let text = (longest * CHARACTER / 10 + 2 * MARGIN, lines.len() as i64 * LINE + 2 * PAD);
    if tasks.is_empty() {
        return Shape { task, lines, width: text.0.max(110), height: text.1, inside: None };
    }
    let shapes: Vec<Shape> = tasks.clone().map(|task| shape(plan, task)).collect();
    let places = layout(&items(plan, &shapes, tasks));
    Shape {
        task,
        lines,
        width: text.0.max(places.width + 2 * MARGIN),
        height: text.1 + places.height + MARGIN,
        inside: Some((shapes, places)),
    }
}

fn items(plan: &Plan, shapes: &[Shape], tasks: Range<u32>) -> Vec<Item> {
    let needs =
        |task: u32| plan.tasks[task as usize].needs.iter().map(|n| (n - tasks.start) as usize).collect();
    shapes.iter().map(|s| Item { width: s.width, height: s.height, needs: needs(s.task) }).collect()
}

/// Draws a body with its left upper corner at `at`.
fn content(plan: &Plan, shapes: &[Shape], places: &Layout, at: (i64, i64), out: &mut String) {
    for route in &places.routes {
        let task = shapes[route.to].task;
        let when = plan.tasks[task as usize].when;
        let dashed = when != When::Success || Look::of(plan, task) == Look::Finally;
        edge(&route.points, at, dashed, labels::edge(when), out);
    }
    for (shape, (x, y)) in shapes.iter().zip(&places.places) {
        put(plan, shape, (at.0 + x, at.1 + y), out);
    }
}

fn edge(points: &[(i64, i64)], at: (i64, i64), dashed: bool, label: Option<&str>, out: &mut String) {
    let class = if dashed { "edge dashed" } else { "edge" };
    let _ = write!(out, "<path class=\"{class}\" marker-end=\"url(#arrow)\" d=\"");
    for (n, (x, y)) in points.iter().enumerate() {
        let (x, y) = (x + at.0, y + at.1);
        match n.checked_sub(1).map(|n| (points[n].0 + at.0, points[n].1 + at.1)) {
            None => {
                let _ = write!(out, "M{x} {y}");
            }
            Some((from, _)) if from == x => {
                let _ = write!(out, "L{x} {y}");
            }
            Some((from, above)) => {
                let half = above.midpoint(y);
                let _ = write!(out, "C{from} {half} {x} {half} {x} {y}");
            }
        }
    }
    out.push_str("\"/>\n");
    if let (Some(label), Some((x, y))) = (label, points.last()) {
        let (x, y) = (x + at.0 + 6, y + at.1 - 9);
        let _ = writeln!(out, "<text class=\"label\" x=\"{x}\" y=\"{y}\">{label}</text>");
    }
}

/// Draws a task, and what is in it.
fn put(plan: &Plan, shape: &Shape, (x, y): (i64, i64), out: &mut String) {
    let task = &plan.tasks[shape.task as usize];
    let look = Look::of(plan, shape.task);
    let (width, height) = (shape.width, shape.height);
    let _ = writeln!(out, "<g id=\"task-{}\">", task.id);
    let about = task.description.as_deref().map(|d| format!(": {d}")).unwrap_or_default();
    let _ = writeln!(out, "<title>{}{}</title>", task.id, escaped(&about));
    let class = look.name();
    let round = match look {
        Look::Wait | Look::Finish => height / 2,
        Look::Worker | Look::Workflow | Look::Group | Look::Set | Look::Fail | Look::Finally => 6,
    };
    let mut rect = |dx: i64, radius: i64, more: &str| {
        let _ = writeln!(
            out,
            "<rect class=\"{class}\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" rx=\"{}\"{more}/>",
            x + dx,
            y + dx,
            width - 2 * dx.max(0),
            height - 2 * dx.max(0),
            radius.min(height / 2),
        );
    };
    // One of many: another one shows behind it.
    if task.for_each.is_some() {
        rect(-5, round, "");
    }
    match look {
        Look::Worker | Look::Wait => rect(0, round, ""),
        Look::Group => rect(0, round, " stroke-dasharray=\"2 3\""),
        Look::Finally => rect(0, round, " stroke-dasharray=\"6 4\""),
        Look::Workflow | Look::Finish => {
            rect(0, round, "");
            rect(3, round, "");
        }
        Look::Set => {
            let slant = 10;
            let _ = writeln!(
                out,
                "<path class=\"box {class}\" d=\"M{} {y}H{}L{} {}H{x}z\"/>",
                x + slant,
                x + width,
                x + width - slant,
                y + height
            );
        }
        Look::Fail => {
            let (slant, middle) = (12, y + height / 2);
            let _ = writeln!(
                out,
                "<path class=\"box {class}\" d=\"M{} {y}H{}L{} {middle} {} {}H{}L{x} {middle}z\"/>",
                x + slant,
                x + width - slant,
                x + width,
                x + width - slant,
                y + height,
                x + slant
            );
        }
    }
    for (n, line) in shape.lines.iter().enumerate() {
        let class = if n == 0 { "id" } else { "more" };
        let (x, anchor) =
            if shape.inside.is_some() { (x + PAD + 5, "start") } else { (x + width / 2, "middle") };
        let y = y + PAD + LINE * (n as i64 + 1) - 5;
        let _ = writeln!(
            out,
            "<text class=\"{class}\" x=\"{x}\" y=\"{y}\" text-anchor=\"{anchor}\">{}</text>",
            escaped(line)
        );
    }
    if let Some((shapes, places)) = &shape.inside {
        let left = x + (width - places.width) / 2;
        let top = y + shape.lines.len() as i64 * LINE + 2 * PAD;
        content(plan, shapes, places, (left, top), out);
    }
    out.push_str("</g>\n");
}

/// Text as XML takes it; what XML cannot hold is shown as a replacement character.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            '\t' | '\n' => out.push(' '),
            '\0'..='\u{1f}' | '\u{7f}'..='\u{9f}' | '\u{fffe}' | '\u{ffff}' => out.push('\u{fffd}'),
            _ => out.push(c),
        }
    }
    out
}
