//! Charts over time as SVG text: panels below each other with one time axis.
//!
//! A picture has no background and its colours are of middle lightness, so that it can be read on white and on dark
//! pages. Nothing is loaded and nothing runs in it.
//!
//! ```text
//! mod.rs     what a chart consists of
//! draw.rs    where things go
//! ticks.rs   round numbers and round times
//! ```
//!
//! Invariants
//! - Pure: values in, text out. Any text and any number is drawn as well-formed XML.
//! - The size of the text is bounded by the size of the picture: lines are thinned to what a pixel can show, and
//!   keep their extremes.
//!
//! To add a shape of line: its variant in [`Shape`] and its path in `draw.rs`.

mod draw;
#[cfg(test)]
mod tests;
mod ticks;

/// A picture.
#[derive(Debug, Clone)]
pub struct Chart {
    /// What it shows.
    pub title: String,
    /// In small type below the title; may be empty.
    pub note: String,
    /// The time axis of all panels.
    pub axis: Axis,
    /// From top to bottom.
    pub panels: Vec<Panel>,
}

/// A time axis, in microseconds.
#[derive(Debug, Clone, Copy)]
pub struct Axis {
    /// The left end.
    pub from: i64,
    /// The right end.
    pub to: i64,
    /// What a time means.
    pub kind: AxisKind,
}

/// What the times of an axis mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AxisKind {
    /// Since the Unix epoch; shown as dates and times of day in UTC.
    Epoch,
    /// Since a beginning.
    Elapsed,
}

/// Lines over one axis of values, which begins at 0.
#[derive(Debug, Clone)]
pub struct Panel {
    /// What the values are, with their unit.
    pub title: String,
    /// Values are whole numbers, so ticks between them mean nothing.
    pub whole: bool,
    /// In the order in which they are drawn.
    pub lines: Vec<Line>,
}

/// One line or area.
#[derive(Debug, Clone)]
pub struct Line {
    /// For the legend.
    pub name: String,
    /// One of the [`COLORS`], counted round.
    pub color: usize,
    /// How it is drawn.
    pub shape: Shape,
    /// By time.
    pub points: Vec<Point>,
}

/// How a line is drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// From point to point.
    Line,
    /// A value holds until the next point.
    Steps,
    /// Filled between `low` and `high`, which hold until the next point.
    Area,
}

/// Values at a time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Point {
    /// In microseconds, as the axis has it.
    pub at: i64,
    /// Where an area begins.
    pub low: f64,
    /// The value. One that is not finite interrupts the line.
    pub high: f64,
}

impl Point {
    /// A value, over 0.
    pub const fn new(at: i64, value: f64) -> Self {
        Self { at, low: 0.0, high: value }
    }
}

/// Told apart on white and on black, and mostly by those who do not see all colours.
pub const COLORS: [&str; 8] =
    ["#2f81d6", "#d9730d", "#2e9e5b", "#c2508f", "#8b6fd6", "#159aa5", "#9a8412", "#d64550"];

impl Chart {
    /// The picture, 900 pixels wide.
    pub fn svg(&self) -> String {
        draw::draw(self)
    }
}
