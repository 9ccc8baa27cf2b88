//! Curves: a loss over steps, a metric over severity, ROC, reliability.

use crate::axis::{Axis, Scale};
use crate::chart::{Bottom, Chart, EMPTY, Entry, Key, Stroke, Words, hover, path};
use crate::svg::{Anchor, Colour, Px, SMALL, Svg};
use crate::text::{number, width};
use crate::thin::{MOST, thin};

/// A series this short shows its points and their error bars; a longer one, a line and a band.
const FEW: usize = 30;
/// How many places along a longer line answer the pointer.
const HOVERS: usize = 60;

/// The radius of a point.
const RADIUS: f64 = 3.0;
/// How many means replace the points of a long and noisy line.
const MEANS: usize = 150;

/// One line. A long one is thinned without losing its extremes; if it is noisy as well, it is drawn
/// as its mean over a faint band between them.
#[derive(Debug, Clone, Default)]
pub struct Series {
    /// What the legend calls it.
    pub name: String,
    /// `(x, y)` in the order in which the line visits them.
    pub points: Vec<(f64, f64)>,
    /// How far each point may be off, up and down: bars on a short series, a band on a long one.
    pub error: Option<Vec<f64>>,
    /// Whether the line is dashed.
    pub dashed: bool,
    /// Whether each value holds until the next point.
    pub steps: bool,
    /// What is written at every point of a short series, such as how much it stands for.
    pub notes: Vec<String>,
}

impl Series {
    /// A solid line without errors.
    pub fn new(name: impl Into<String>, points: Vec<(f64, f64)>) -> Self {
        Self { name: name.into(), points, ..Self::default() }
    }
}

/// Lines over two axes.
#[derive(Debug, Clone, Default)]
pub struct Lines {
    /// The title.
    pub title: String,
    /// What runs along the bottom.
    pub x_label: String,
    /// What runs up the side.
    pub y_label: String,
    /// The lines, each in its colour.
    pub series: Vec<Series>,
    /// Whether the bottom axis is logarithmic.
    pub log_x: bool,
    /// Whether the left axis is logarithmic.
    pub log_y: bool,
    /// The ends of the bottom axis, if the data should not set them.
    pub x_range: Option<(f64, f64)>,
    /// The ends of the left axis, if the data should not set them.
    pub y_range: Option<(f64, f64)>,
    /// The name of a line along `y = x`: chance in a ROC figure, perfect calibration in a
    /// reliability diagram.
    pub diagonal: Option<String>,
}

/// A point that can be shown.
#[derive(Debug, Clone, Copy)]
struct Point {
    x: f64,
    y: f64,
    error: f64,
}

impl Lines {
    /// The figure as an SVG document.
    pub fn svg(&self) -> String {
        let scales = (Scale::of(self.log_x), Scale::of(self.log_y));
        let shown: Vec<Vec<Point>> = self.series.iter().map(|one| points(one, scales)).collect();
        let all = || shown.iter().flatten();
        let x = Axis::over(all().map(|point| point.x), scales.0, self.x_range, 6);
        let heights = all().flat_map(|at| [at.y, at.y - at.error, at.y + at.error]);
        let y = Axis::over(heights, scales.1, self.y_range, 5);
        let (Some(x), Some(y)) = (x, y) else {
            return Svg::new(&self.title).0.no_data(EMPTY);
        };
        let y = if self.y_range.is_some() { y } else { y.grown(5) };
        let (x_ends, y_ends) = ((x.low, x.high), (y.low, y.high));
        let words = Words {
            title: &self.title,
            x_label: &self.x_label,
            y_label: &self.y_label,
            legend: self.legend(),
        };
        let mut chart = Chart::new(&words, Bottom::Axis(x), y);
        chart.open_area();
        if self.diagonal.is_some() {
            let (low, high) = (x_ends.0.max(y_ends.0), x_ends.1.min(y_ends.1));
            let places = (0..=64)
                .map(|i| low + (high - low) * f64::from(i) / 64.0)
                .map(|value| (chart.x(value), chart.y(value)));
            let line = path(places, false);
            chart.svg.add(format_args!(
                r#"<path {} d="{line}" fill="none" stroke="currentColor" stroke-width="1.5" {}/>"#,
                Colour::Muted,
                Stroke::Dashed.attribute()
            ));
        }
        for (i, points) in shown.iter().enumerate().filter(|(_, points)| points.len() > FEW) {
            self.band(&mut chart, i, points);
        }
        for (i, points) in shown.iter().enumerate().filter(|(_, points)| !points.is_empty()) {
            self.line(&mut chart, i, points);
        }
        chart.close_area();
        for (one, points) in self.series.iter().zip(&shown) {
            notes(&mut chart, one, points);
        }
        chart.finish()
    }

    fn legend(&self) -> Vec<Entry> {
        let series = self.series.iter().enumerate().map(|(i, one)| Entry {
            name: one.name.clone(),
            colour: Colour::Series(i),
            key: Key::Line(stroke(i, one.dashed)),
        });
        let diagonal = self.diagonal.iter().map(|name| Entry {
            name: name.clone(),
            colour: Colour::Muted,
            key: Key::Line(Stroke::Dashed),
        });
        series.chain(diagonal).collect()
    }

    fn band(&self, chart: &mut Chart, i: usize, points: &[Point]) {
        if points.iter().all(|point| point.error == 0.0) {
            return;
        }
        let floor = |value: f64| if self.log_y && value <= 0.0 { f64::MIN_POSITIVE } else { value };
        let kept = keep(points);
        let there = kept.iter().map(|at| (chart.x(at.x), chart.y(at.y + at.error)));
        let low = |at: &Point| chart.floor().min(chart.y(floor(at.y - at.error)));
        let back = kept.iter().rev().map(|at| (chart.x(at.x), low(at)));
        let outline = path(there.chain(back), false);
        chart.svg.add(format_args!(
            r#"<path {} d="{outline}Z" fill="currentColor" fill-opacity="0.18"/>"#,
            Colour::Series(i)
        ));
    }

    fn line(&self, chart: &mut Chart, i: usize, points: &[Point]) {
        let (series, colour) = (&self.series[i], Colour::Series(i));
        let few = points.len() <= FEW;
        if few {
            for at in points.iter().filter(|point| point.error > 0.0) {
                let bottom = at.y - at.error;
                let low = if self.log_y && bottom <= 0.0 { chart.floor() } else { chart.y(bottom) };
                chart.whisker(colour, chart.x(at.x), low, chart.y(at.y + at.error), RADIUS);
            }
        }
        let mut kept = keep(points);
        if kept.len() < points.len() && is_noisy(&kept) {
            let buckets = || points.chunks(points.len().div_ceil(MEANS));
            let highest = buckets().map(|bucket| edge(chart, bucket, f64::max));
            let lowest = buckets().rev().map(|bucket| edge(chart, bucket, f64::min));
            let outline = path(highest.chain(lowest), false);
            chart.svg.add(format_args!(
                r#"<path {colour} d="{outline}Z" fill="currentColor" fill-opacity="0.2"/>"#
            ));
            kept = buckets().map(mean).collect();
        }
        let line = path(kept.iter().map(|at| (chart.x(at.x), chart.y(at.y))), series.steps);
        let dash = stroke(i, series.dashed).attribute();
        let width = if kept.len() > 2 * MEANS { 1.5 } else { 2.0 };
        chart.svg.add(format_args!(
            r#"<path {colour} d="{line}" fill="none" stroke="currentColor" stroke-width="{width}" stroke-linejoin="round" {dash}>{}</path>"#,
            hover(&series.name)
        ));
        let (mark, size) = if few {
            (r#"fill="currentColor""#, RADIUS)
        } else {
            (r#"fill="none" pointer-events="all""#, 6.0)
        };
        chart.svg.add(format_args!("<g {colour} {mark}>"));
        for at in kept.iter().step_by(kept.len().div_ceil(HOVERS)) {
            let (cx, cy) = (Px(chart.x(at.x)), Px(chart.y(at.y)));
            let label = self.describe(series, at);
            chart.svg.add(format_args!(
                r#"<circle cx="{cx}" cy="{cy}" r="{size}">{}</circle>"#,
                hover(&label)
            ));
        }
        chart.svg.add(format_args!("</g>"));
    }

    fn describe(&self, series: &Series, at: &Point) -> String {
        let mut text = format!("{} at {}: {}", series.name, number(at.x), number(at.y));
        if at.error > 0.0 {
            text += &format!(" ± {}", number(at.error));
        }
        text
    }
}

/// Writes what belongs to the points, each above its point, or below it where that is taken.
fn notes(chart: &mut Chart, series: &Series, points: &[Point]) {
    // Points that cannot be shown would put notes at others.
    if points.len() > FEW || points.len() != series.notes.len() {
        return;
    }
    let mut taken: Vec<(f64, f64, f64)> = Vec::new();
    for (at, note) in points.iter().zip(&series.notes) {
        let (x, y, half) = (chart.x(at.x), chart.y(at.y), width(note, SMALL) / 2.0);
        let x = x.clamp(chart.left + half, chart.left + chart.width - half);
        let free = |place: &f64| {
            let apart = |(other, height, reach): &(f64, f64, f64)| {
                (x - other).abs() > half + reach + 2.0 || (place - height).abs() > 11.0
            };
            (chart.top..chart.floor()).contains(place) && taken.iter().all(apart)
        };
        let choices = [y - 8.0, y + 17.0, y - 20.0, y + 29.0];
        let place = choices.into_iter().find(free).unwrap_or(choices[0].max(chart.top + 9.0));
        taken.push((x, place, half));
        chart.svg.text_over(x, place, Anchor::Middle, note);
    }
}

/// The dashes of a line; once colours repeat, dots tell the lines apart.
fn stroke(i: usize, dashed: bool) -> Stroke {
    match (dashed, i >= Colour::SERIES) {
        (true, _) => Stroke::Dashed,
        (false, true) => Stroke::Dotted,
        (false, false) => Stroke::Solid,
    }
}

fn points(series: &Series, scales: (Scale, Scale)) -> Vec<Point> {
    let errors = series.error.as_deref().unwrap_or_default();
    let errors = errors.iter().copied().chain(std::iter::repeat(0.0));
    let all = series.points.iter().zip(errors).map(|(&(x, y), error)| Point {
        x,
        y,
        error: if Scale::Linear.shows(y.abs() + error.abs()) { error.abs() } else { 0.0 },
    });
    all.filter(|point| scales.0.shows(point.x) && scales.1.shows(point.y)).collect()
}

fn keep(points: &[Point]) -> Vec<Point> {
    let plain: Vec<_> = points.iter().map(|point| (point.x, point.y)).collect();
    thin(&plain, MOST).into_iter().map(|i| points[i]).collect()
}

/// Whether a line goes up and down many times its own height.
fn is_noisy(points: &[Point]) -> bool {
    let low = points.iter().map(|point| point.y).fold(f64::INFINITY, f64::min);
    let high = points.iter().map(|point| point.y).fold(f64::NEG_INFINITY, f64::max);
    let way: f64 = points.windows(2).map(|ends| (ends[1].y - ends[0].y).abs()).sum();
    way > 4.0 * (high - low)
}

fn mean(bucket: &[Point]) -> Point {
    let of = |part: fn(&Point) -> f64| {
        bucket.iter().map(|point| part(point) / bucket.len() as f64).sum()
    };
    Point { x: of(|point| point.x), y: of(|point| point.y), error: of(|point| point.error) }
}

/// The place of a bucket's highest or lowest value, in its middle.
fn edge(chart: &Chart, bucket: &[Point], choose: fn(f64, f64) -> f64) -> (f64, f64) {
    let value = bucket.iter().map(|point| point.y).reduce(choose);
    (chart.x(mean(bucket).x), chart.y(value.expect("buckets are not empty")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_that_are_not_finite_are_left_out() {
        let points = vec![(0.0, 1.0), (1.0, f64::NAN), (f64::INFINITY, 2.0), (2.0, 3.0)];
        let svg = Lines { series: vec![Series::new("loss", points)], ..Lines::default() }.svg();
        assert_eq!(svg.matches("<circle").count(), 2);
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    }

    #[test]
    fn every_point_of_a_short_series_has_its_note() {
        let points: Vec<(f64, f64)> = (0..15).map(|i| (f64::from(i) / 15.0, 0.9)).collect();
        let notes: Vec<String> = (0..15).map(|i| format!("n{i}")).collect();
        let series = Series { notes, ..Series::new("bins", points) };
        let svg = Lines { series: vec![series], ..Lines::default() }.svg();
        assert!((0..15).all(|i| svg.contains(&format!(">n{i}</text>"))), "{svg}");
    }

    #[test]
    fn long_series_stay_small() {
        let points = (0..200_000).map(|i| (f64::from(i), f64::from(i % 97))).collect();
        let svg = Lines { series: vec![Series::new("loss", points)], ..Lines::default() }.svg();
        assert!(svg.len() < 20_000, "{}", svg.len());
    }

    #[test]
    fn noise_is_a_band_behind_its_mean() {
        let line = |height: fn(u32) -> f64| {
            let points = (0..9000).map(|i| (f64::from(i), height(i))).collect();
            Lines { series: vec![Series::new("loss", points)], ..Lines::default() }.svg()
        };
        assert!(line(|i| f64::from(i % 2)).contains("fill-opacity"));
        assert!(!line(|i| f64::from(i).sqrt()).contains("fill-opacity"));
    }

    #[test]
    fn errors_may_be_fewer_than_points_or_reach_below_zero() {
        let points = vec![(1.0, 1.0), (10.0, 2.0)];
        let series = Series { error: Some(vec![3.0]), ..Series::new("a", points) };
        let svg =
            Lines { series: vec![series], log_x: true, log_y: true, ..Lines::default() }.svg();
        assert!(svg.contains("± 3") && !svg.contains("NaN"), "{svg}");
    }
}
