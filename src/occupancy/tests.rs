//! The worked examples, value by value, and a count at every instant to compare with.

use super::*;
use proptest::prelude::*;

const SECOND: i64 = 1_000_000;

fn window(step: i64, from: impl Into<Option<i64>>, to: impl Into<Option<i64>>) -> Window {
    let step = Step::new(Span(step)).unwrap();
    Window { step, from: from.into().map(Timestamp), to: to.into().map(Timestamp) }
}

fn interval(start: i64, end: impl Into<Option<i64>>) -> Interval {
    Interval::new(Timestamp(start), end.into().map(Timestamp)).unwrap()
}

fn buckets(window: Window, initial: i64, rows: &[(i64, Option<i64>)]) -> Vec<Bucket> {
    let mut rows: Vec<_> = rows.iter().map(|(start, end)| interval(*start, *end)).collect();
    rows.sort();
    let mut series = Series::new(window, &[initial]);
    for row in rows {
        series.add(0, row).unwrap();
    }
    series.finish(1).unwrap().remove(0)
}

/// `(bucket, [open, close, max, min], avg, [starts, ends])`, the average to six decimals.
type Shown = (i64, [i64; 4], f64, [u64; 2]);

fn shown(bucket: &Bucket) -> Shown {
    let avg = (bucket.avg() * 1e6).round() / 1e6;
    let Bucket { at, open, close, max, min, starts, ends, .. } = *bucket;
    (at.0, [open, close, max, min], avg, [starts, ends])
}

fn all(window: Window, rows: &[(i64, Option<i64>)]) -> Vec<Shown> {
    buckets(window, 0, rows).iter().map(shown).collect()
}

#[test]
fn example_1_ten_rows_over_five_hours() {
    let time = |text: &str| text.parse::<jiff::Timestamp>().unwrap().as_microsecond();
    let row = |start: &str, end: &str| {
        let time = |t: &str| time(&format!("2011-07-{t}Z"));
        (time(start), Some(time(end)))
    };
    let rows: Vec<_> = ["52.667", "52.720", "52.710", "52.763"]
        .iter()
        .map(|end| row("18T22:58:52.180", &format!("18T22:58:{end}")))
        .chain((0..4).map(|_| row("18T22:58:53.350", "18T22:58:57.770")))
        .chain(
            ["04:03:21.600", "04:03:44.703"].iter().map(|end| row("19T04:02:45.073", &format!("19T{end}"))),
        )
        .collect();
    let from = time("2011-07-18T22:55:00Z");
    for window in [window(300 * SECOND, None, None), window(300 * SECOND, from, None)] {
        let shown = all(window, &rows);
        assert_eq!(shown.len(), 62);
        assert_eq!(shown[0], (from, [0, 0, 4, 0], 0.066_067, [8, 8]));
        for (n, bucket) in shown[1..61].iter().enumerate() {
            assert_eq!(*bucket, (from + (n as i64 + 1) * 300 * SECOND, [0; 4], 0.0, [0, 0]));
        }
        assert_eq!(shown[61], (time("2011-07-19T04:00:00Z"), [0, 0, 2, 0], 0.320_523, [2, 2]));
    }
}

#[test]
fn example_2_one_inside_the_other() {
    let rows = [(0, Some(10)), (2, Some(8)), (4, Some(6))];
    let expected = [(0, [1, 3, 3, 1], 1.8, [3, 0]), (5, [3, 1, 3, 1], 1.8, [0, 2])];
    assert_eq!(all(window(5, 0, 10), &rows), expected);
    assert_eq!(all(window(5, None, None), &rows), expected);
}

#[test]
fn example_3_back_to_back_is_never_two() {
    let rows = [(0, Some(10)), (10, Some(20)), (20, Some(30))];
    let expected = [(0, [1; 4], 1.0, [1, 0]), (10, [1; 4], 1.0, [1, 1]), (20, [1; 4], 1.0, [1, 1])];
    assert_eq!(all(window(10, 0, 30), &rows), expected);
    assert_eq!(all(window(10, None, None), &rows), expected);
    assert_eq!(all(window(30, 0, 30), &rows), [(0, [1; 4], 1.0, [3, 2])]);
}

#[test]
fn example_4_what_began_before_and_what_does_not_end() {
    let rows = [(-5, Some(3)), (1, None), (7, Some(9))];
    let expected = [(0, [1, 1, 2, 1], 1.4, [1, 1]), (5, [1, 1, 2, 1], 1.4, [1, 1])];
    assert_eq!(all(window(5, 0, 10), &rows), expected);
}

#[test]
fn example_5_a_task_of_no_length_has_no_height() {
    let rows = [(3, Some(3)), (12, Some(14))];
    let zero = |at: i64, changes: u64| (at, [0; 4], 0.0, [changes, changes]);
    let expected = [zero(0, 1), zero(5, 0), (10, [0, 0, 1, 0], 0.4, [1, 1]), zero(15, 0)];
    assert_eq!(all(window(5, 0, 20), &rows), expected);
    assert_eq!(all(window(5, 10, 11), &[(10, Some(10))]), [(10, [0; 4], 0.0, [1, 1])]);
}

#[test]
fn tasks_that_run_already_are_in_every_value() {
    let shown: Vec<_> = buckets(window(5, 0, 10), 7, &[(6, Some(8))]).iter().map(shown).collect();
    assert_eq!(shown, [(0, [7; 4], 7.0, [0, 0]), (5, [7, 7, 8, 7], 7.4, [1, 1])]);
    assert_eq!(buckets(window(5, 0, 10), 7, &[]).len(), 2);
}

#[test]
fn ends_of_a_window_are_widened_and_none_is_made_of_nothing() {
    let rows = [(12, Some(14)), (33, None)];
    let at = |window: Window| buckets(window, 0, &rows).iter().map(|b| b.at.0).collect::<Vec<_>>();
    assert_eq!(at(window(10, None, None)), [10, 20, 30]);
    assert_eq!(at(window(10, -1, 12)), [-10, 0, 10]);
    assert_eq!(at(window(10, 95, None)), [90]);
    // A start on the border behind the last end.
    assert_eq!(buckets(window(10, None, None), 0, &[(5, Some(10)), (10, Some(10))]).len(), 2);
    assert_eq!(buckets(window(10, None, None), 3, &[]), []);
    assert_eq!(buckets(window(10, 0, None), 3, &[]), []);
}

#[test]
fn keys_share_the_window_and_add_up() {
    let mut series = Series::new(window(5, None, None), &[2]);
    for (key, row) in [(1, interval(0, 7)), (3, interval(2, 4)), (1, interval(11, 12))] {
        series.add(key, row).unwrap();
    }
    let keys = series.finish(4).unwrap();
    let maxima: Vec<Vec<_>> = keys.iter().map(|key| key.iter().map(|b| b.max).collect()).collect();
    assert_eq!(maxima, [[2, 2, 2], [1, 1, 1], [0, 0, 0], [1, 0, 0]]);
}

#[test]
fn what_cannot_be_is_refused() {
    assert_eq!(Interval::new(Timestamp(3), Some(Timestamp(2))), None);
    assert_eq!((Step::new(Span(0)), Step::new(Span(-1)), Step::new(Span(i64::MAX))), (None, None, None));
    let mut series = Series::new(window(1, None, None), &[]);
    series.add(0, interval(5, None)).unwrap();
    assert_eq!(series.add(0, interval(4, None)), Err(Fault::OutOfOrder));
    assert_eq!(series.add(0, interval(1_000_006, None)), Err(Fault::TooLong { buckets: 1_000_001 }));
    let mut series = Series::new(window(1, None, None), &[]);
    series.add(0, interval(0, 600_000)).unwrap();
    assert_eq!(series.finish(2), Err(Fault::TooLong { buckets: 1_200_000 }));
    let far = Series::new(window(1, i64::MIN, i64::MAX), &[]);
    assert!(matches!(far.finish(1), Err(Fault::TooLong { .. })));
}

#[test]
fn merged_buckets_are_those_of_a_wider_step() {
    let rows = [(0, Some(13)), (2, Some(8)), (4, Some(6)), (9, Some(11)), (15, Some(19))];
    let narrow = buckets(window(5, 0, 20), 0, &rows);
    let merged: Vec<_> = narrow.chunks(2).map(|pair| pair[0].merge(pair[1])).collect();
    assert_eq!(merged, buckets(window(10, 0, 20), 0, &rows));
}

/// Counts at every microsecond.
fn naive(window: Window, initial: i64, rows: &[(i64, Option<i64>)], bucket: &Bucket) -> Bucket {
    let width = window.step.span();
    let instants = bucket.at.0..bucket.at.0 + width.0;
    let running = |t: i64| rows.iter().filter(|(s, e)| *s <= t && e.is_none_or(|e| t < e)).count() as i64;
    let values: Vec<i64> = instants.clone().map(|t| initial + running(t)).collect();
    Bucket {
        at: bucket.at,
        width,
        open: values[0],
        close: values[values.len() - 1],
        max: values.iter().copied().max().unwrap(),
        min: values.iter().copied().min().unwrap(),
        area: values.iter().map(|v| i128::from(*v)).sum(),
        starts: rows.iter().filter(|(s, _)| instants.contains(s)).count() as u64,
        ends: rows.iter().filter(|(_, e)| e.is_some_and(|e| instants.contains(&e))).count() as u64,
    }
}

fn some_rows() -> impl Strategy<Value = Vec<(i64, Option<i64>)>> {
    let row = (-30_i64..60, prop::option::weighted(0.9, 0_i64..25));
    prop::collection::vec(row.prop_map(|(start, length)| (start, length.map(|l| start + l))), 0..40)
}

proptest! {
    #[test]
    fn every_bucket_is_what_counting_gives(
        rows in some_rows(),
        step in 1_i64..12,
        initial in 0_i64..3,
        from in prop::option::of(-40_i64..40),
        length in prop::option::of(1_i64..60),
    ) {
        let to = from.zip(length).map(|(from, length)| from + length);
        let window = window(step, from, to);
        let buckets = buckets(window, initial, &rows);
        for bucket in &buckets {
            prop_assert_eq!(*bucket, naive(window, initial, &rows, bucket));
        }
        prop_assert!(buckets.windows(2).all(|w| w[0].at.plus(w[0].width) == w[1].at && w[0].width.0 == step));
        prop_assert!(buckets.iter().all(|b| b.at.0.rem_euclid(step) == 0));
        let covered = |t: i64| buckets.first().is_some_and(|f| f.at.0 <= t)
            && buckets.last().is_some_and(|l| t < l.at.0 + step);
        match (from, to) {
            (Some(from), Some(to)) => prop_assert!(covered(from) && covered(to - 1)),
            (None, _) => {
                prop_assert!(rows.iter().all(|(start, _)| covered(*start)));
                prop_assert_eq!(buckets.iter().map(|b| b.starts).sum::<u64>(), rows.len() as u64);
                let end = rows.iter().filter_map(|(_, end)| *end).max();
                // The instant before the last end is the last at which that task ran.
                prop_assert!(end.is_none_or(|end| covered(end - 1) || rows.iter().all(|(s, _)| *s == end)));
            }
            (Some(from), None) => prop_assert!(rows.is_empty() || covered(from)),
        }
    }
}
