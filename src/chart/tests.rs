use super::ticks::{number, times, values};
use super::*;

const SECOND: i64 = 1_000_000;

fn chart(lines: Vec<Line>) -> Chart {
    let panel = Panel { title: "tasks".into(), whole: true, lines };
    let axis = Axis { from: 0, to: 10 * SECOND, kind: AxisKind::Elapsed };
    Chart { title: "a < b & \"c\"\u{1}".into(), note: String::new(), axis, panels: vec![panel] }
}

fn line(shape: Shape, points: Vec<Point>) -> Line {
    Line { name: "n>1".into(), color: 9, shape, points }
}

/// Every tag that is opened is closed in order, and there is no bare sign.
fn well_formed(svg: &str) {
    let mut open = Vec::new();
    let mut rest = svg;
    while let Some(at) = rest.find('<') {
        assert!(!rest[..at].contains('>'), "{}", &rest[..at]);
        let end = at + rest[at..].find('>').unwrap();
        let tag = &rest[at + 1..end];
        rest = &rest[end + 1..];
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop(), Some(name.to_owned()));
        } else if !tag.ends_with('/') {
            open.push(tag.split(' ').next().unwrap().to_owned());
        }
    }
    assert!(open.is_empty() && rest.is_empty(), "{open:?} {rest}");
    for part in svg.split('&').skip(1) {
        assert!(["amp;", "lt;", "gt;", "quot;"].iter().any(|e| part.starts_with(e)), "{part}");
    }
    assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
}

#[test]
fn axes_of_values_have_round_ticks() {
    assert_eq!(values(4.0, true), (4.0, vec![0.0, 1.0, 2.0, 3.0, 4.0]));
    assert_eq!(values(0.3, true), (1.0, vec![0.0, 1.0]));
    assert_eq!(values(1_000.0, true).1, [0.0, 200.0, 400.0, 600.0, 800.0, 1_000.0]);
    assert_eq!((values(1_001.0, true).1.last(), values(0.0, false).1.last()), (Some(&1_500.0), Some(&1.0)));
    for bad in [f64::NAN, f64::INFINITY, -1.0] {
        assert_eq!(values(bad, false), values(1.0, false));
    }
    for n in 1..2_000 {
        let max = f64::from(n) * 0.37;
        let (top, ticks) = values(max, false);
        assert!(top >= max * 0.999_99 && (2..=7).contains(&ticks.len()), "{max}: {ticks:?}");
    }
}

#[test]
fn numbers_are_short() {
    let shown: Vec<_> = [0.0, 2_500.0, 5_000.0].iter().map(|v| number(*v, 5_000.0, 2_500.0)).collect();
    assert_eq!(shown, ["0", "2500", "5000"]);
    assert_eq!(number(20_000.0, 100_000.0, 20_000.0), "20k");
    assert_eq!(number(500_000.0, 1_500_000.0, 500_000.0), "0.5M");
    assert_eq!(number(0.4, 1.0, 0.2), "0.4");
}

#[test]
fn axes_of_time_have_round_ticks_with_the_date_where_it_changes() {
    let elapsed: Vec<_> =
        times(0, 12 * SECOND, AxisKind::Elapsed, 400.0).into_iter().map(|t| t.label).collect();
    assert_eq!(elapsed, ["0 s", "2 s", "4 s", "6 s", "8 s", "10 s", "12 s"]);
    let minutes = times(0, 5_400 * SECOND, AxisKind::Elapsed, 500.0);
    assert_eq!((minutes[1].label.as_str(), minutes[5].label.as_str()), ("15:00", "1:15:00"));
    let evening: jiff::Timestamp = "2011-07-18T22:55:00Z".parse().unwrap();
    let from = evening.as_microsecond();
    let ticks = times(from, from + 5 * 3_600 * SECOND, AxisKind::Epoch, 814.0);
    let labels: Vec<_> = ticks.iter().map(|t| (t.label.as_str(), t.date.as_str())).collect();
    assert_eq!(&labels[..3], [("23:00", "2011-07-18"), ("23:30", ""), ("00:00", "2011-07-19")]);
    let subsecond = times(from, from + 900_000, AxisKind::Epoch, 814.0);
    assert_eq!(subsecond[1].label, "22:55:00.2");
    // Any axis at all, without end or panic.
    for (from, to) in [(0, 0), (i64::MIN, i64::MAX), (0, 1), (5, 4)] {
        assert!(times(from, to, AxisKind::Epoch, 814.0).len() < 100);
    }
}

#[test]
fn any_text_and_number_is_drawn_as_well_formed_xml() {
    let odd = [f64::NAN, 3.0, f64::INFINITY, -2.0, f64::NEG_INFINITY, 1e300];
    let points: Vec<_> = odd.iter().zip(0..).map(|(v, n)| Point::new(n * SECOND, *v)).collect();
    for shape in [Shape::Line, Shape::Steps, Shape::Area] {
        well_formed(&chart(vec![line(shape, points.clone()), line(shape, Vec::new())]).svg());
    }
    let svg = chart(vec![line(Shape::Line, points)]).svg();
    assert!(svg.contains("<title>a &lt; b &amp; &quot;c&quot; </title>"), "{svg}");
    well_formed(&Chart { panels: Vec::new(), ..chart(Vec::new()) }.svg());
}

#[test]
fn steps_hold_their_value_and_areas_close() {
    let points = vec![Point::new(0, 1.0), Point::new(5 * SECOND, 2.0), Point::new(10 * SECOND, 2.0)];
    let svg = chart(vec![line(Shape::Steps, points.clone())]).svg();
    assert!(svg.contains("d=\"M62.0 246.0H469.0V86.0H876.0V86.0\""), "{svg}");
    let svg = chart(vec![line(Shape::Area, points)]).svg();
    assert!(svg.contains("H469.0V86.0H876.0V86.0V406.0V406.0H469.0V406.0H62.0Z\""), "{svg}");
}

#[test]
fn a_long_line_is_thinned_and_keeps_its_peak() {
    let value = |n: i64| if n == 77_777 { 500.0 } else { 1.0 };
    let points: Vec<_> = (0..100_000).map(|n| Point::new(n * 100, value(n))).collect();
    for shape in [Shape::Line, Shape::Steps, Shape::Area] {
        let svg = chart(vec![line(shape, points.clone())]).svg();
        assert!(svg.len() < 100_000, "{}", svg.len());
        // The top of the axis is 500, and the line gets there; an area is a mean.
        let path = svg.split("class=\"line\"").nth(1);
        assert!(
            shape == Shape::Area || path.is_some_and(|p| p.contains(" 86.0") || p.contains("V86.0")),
            "{shape:?}"
        );
    }
}
