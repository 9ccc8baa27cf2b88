//! Points: what a model gives for what it costs.

use crate::axis::{Axis, Scale};
use crate::chart::{Bottom, Chart, EMPTY, Entry, Key, Stroke, Words, hover, path};
use crate::svg::{Anchor, Colour, Px, SMALL, Svg};
use crate::text::{number, width};

/// The radius of a dot.
const RADIUS: f64 = 4.5;

/// Which end of an axis is the good one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Better {
    /// Small values: a cost, an error.
    Low,
    /// Large values: an accuracy.
    High,
}

impl Better {
    /// A number that grows as the value gets better.
    fn merit(self, value: f64) -> f64 {
        match self {
            Self::Low => -value,
            Self::High => value,
        }
    }
}

/// What a point is among the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mark {
    /// What the others are measured by; a square around it.
    Baseline,
    /// The best of them; a ring around it.
    Best,
}

impl Mark {
    const ALL: [Self; 2] = [Self::Baseline, Self::Best];

    fn name(self) -> &'static str {
        match self {
            Self::Baseline => "baseline",
            Self::Best => "best",
        }
    }

    fn key(self) -> Key {
        match self {
            Self::Baseline => Key::Square,
            Self::Best => Key::Ring,
        }
    }
}

/// One point.
#[derive(Debug, Clone, Default)]
pub struct Dot {
    /// What is written beside it where there is room, and shown under the pointer anyway.
    pub label: String,
    /// Its place along the bottom.
    pub x: f64,
    /// Its place up the side.
    pub y: f64,
    /// How far it may be off to the left and to the right.
    pub x_error: Option<f64>,
    /// How far it may be off up and down.
    pub y_error: Option<f64>,
    /// What it is among the others.
    pub marks: Vec<Mark>,
}

/// Named points over two axes.
#[derive(Debug, Clone, Default)]
pub struct Scatter {
    /// The title.
    pub title: String,
    /// What runs along the bottom.
    pub x_label: String,
    /// What runs up the side.
    pub y_label: String,
    /// A name and the points of each group.
    pub groups: Vec<(String, Vec<Dot>)>,
    /// Whether the bottom axis is logarithmic.
    pub log_x: bool,
    /// Whether the left axis is logarithmic.
    pub log_y: bool,
    /// What is better along the bottom and up the side; draws the Pareto front, the edge of what
    /// the points attain.
    pub pareto: Option<(Better, Better)>,
}

/// The corners of a box: left, top, right, bottom.
type Area = [f64; 4];

impl Scatter {
    /// The figure as an SVG document.
    pub fn svg(&self) -> String {
        let dots = self.dots();
        let scales = (Scale::of(self.log_x), Scale::of(self.log_y));
        let xs = dots.iter().flat_map(|(_, dot)| reach(dot.x, dot.x_error));
        let ys = dots.iter().flat_map(|(_, dot)| reach(dot.y, dot.y_error));
        let x = Axis::over(xs, scales.0, None, 6);
        let y = Axis::over(ys, scales.1, None, 5);
        let (Some(x), Some(y)) = (x, y) else {
            return Svg::new(&self.title).0.no_data(EMPTY);
        };
        let words = Words {
            title: &self.title,
            x_label: &self.x_label,
            y_label: &self.y_label,
            legend: self.legend(),
        };
        let bottom = Bottom::Axis(x.with_margin(0.09, 6));
        let mut chart = Chart::new(&words, bottom, y.with_margin(0.09, 5));
        chart.open_area();
        let edge = self.pareto.map(|better| staircase(&front(&dots, better), &chart, better));
        let edge = edge.unwrap_or_default();
        if !edge.is_empty() {
            let line = path(edge.iter().copied(), false);
            chart.svg.add(format_args!(
                r#"<path {} d="{line}" fill="none" stroke="currentColor" stroke-width="1.5" {}/>"#,
                Colour::Muted,
                Stroke::Dashed.attribute()
            ));
        }
        for (group, dot) in &dots {
            draw(&mut chart, *group, dot);
        }
        chart.close_area();
        labels(&mut chart, &dots, &edge);
        chart.finish()
    }

    /// The points that can be shown, each with its group.
    fn dots(&self) -> Vec<(usize, &Dot)> {
        let (x, y) = (Scale::of(self.log_x), Scale::of(self.log_y));
        let groups = self.groups.iter().enumerate();
        let all = groups.flat_map(|(i, (_, dots))| dots.iter().map(move |dot| (i, dot)));
        all.filter(|(_, dot)| x.shows(dot.x) && y.shows(dot.y)).collect()
    }

    fn legend(&self) -> Vec<Entry> {
        let groups = self.groups.iter().enumerate().map(|(i, (name, _))| Entry {
            name: name.clone(),
            colour: Colour::Series(i),
            key: Key::Dot,
        });
        let front = self.pareto.map(|_| Entry {
            name: "Pareto front".to_owned(),
            colour: Colour::Muted,
            key: Key::Line(Stroke::Dashed),
        });
        let dots = self.dots();
        let marked = |mark: &Mark| dots.iter().any(|(_, dot)| dot.marks.contains(mark));
        let marks = Mark::ALL.into_iter().filter(marked).map(|mark| Entry {
            name: mark.name().to_owned(),
            colour: Colour::Ink,
            key: mark.key(),
        });
        groups.chain(front).chain(marks).collect()
    }
}

fn reach(value: f64, error: Option<f64>) -> [f64; 3] {
    let error = error.unwrap_or(0.0).abs();
    [value, value - error, value + error]
}

/// The points that no other beats on both axes, from the cheapest on.
fn front(dots: &[(usize, &Dot)], better: (Better, Better)) -> Vec<(f64, f64)> {
    let merits = |at: &(f64, f64)| (better.0.merit(at.0), better.1.merit(at.1));
    let mut points: Vec<_> = dots.iter().map(|(_, dot)| (dot.x, dot.y)).collect();
    points.sort_by(|a, b| {
        let (a, b) = (merits(a), merits(b));
        b.0.total_cmp(&a.0).then(b.1.total_cmp(&a.1))
    });
    let mut best = f64::NEG_INFINITY;
    points.retain(|at| {
        let merit = merits(at).1;
        let beaten = merit <= best;
        best = best.max(merit);
        !beaten
    });
    points
}

/// The edge through the points of a front: what is attained at a cost stays attained beyond it.
fn staircase(front: &[(f64, f64)], chart: &Chart, better: (Better, Better)) -> Vec<(f64, f64)> {
    let place = |at: &(f64, f64)| (chart.x(at.0), chart.y(at.1));
    let mut edge = Vec::new();
    if let (Some(first), Some(last)) = (front.first(), front.last()) {
        let y = if better.1 == Better::High { chart.floor() } else { chart.top };
        edge.push((place(first).0, y));
        for at in front.iter().map(place) {
            if let Some((_, y)) = edge.last().copied().filter(|_| edge.len() > 1) {
                edge.push((at.0, y));
            }
            edge.push(at);
        }
        let x = if better.0 == Better::Low { chart.left + chart.width } else { chart.left };
        edge.push((x, place(last).1));
    }
    edge
}

fn draw(chart: &mut Chart, group: usize, dot: &Dot) {
    let colour = Colour::Series(group);
    let (x, y) = (chart.x(dot.x), chart.y(dot.y));
    let mut text = format!("{}: {}", dot.label, number(dot.x));
    let error = |error: Option<f64>| error.filter(|error| error.is_finite() && *error > 0.0);
    if let Some(error) = error(dot.x_error) {
        let low = chart.x(dot.x - error);
        let low = if low.is_finite() { low } else { chart.left };
        let (a, b, top, end) = (Px(low), Px(chart.x(dot.x + error)), Px(y - 3.0), Px(y + 3.0));
        chart.svg.add(format_args!(
            r#"<path {colour} d="M{a} {top}V{end}M{a} {}H{b}M{b} {top}V{end}" fill="none" stroke="currentColor" stroke-width="1.2"/>"#,
            Px(y)
        ));
        text += &format!(" ± {}", number(error));
    }
    for mark in &dot.marks {
        chart.svg.outline(mark.key() == Key::Square, (x, y), RADIUS + 3.5);
    }
    text += &format!(", {}", number(dot.y));
    if let Some(error) = error(dot.y_error) {
        let low = chart.y(dot.y - error);
        let low = if low.is_finite() { low } else { chart.floor() };
        chart.whisker(colour, x, low, chart.y(dot.y + error), RADIUS);
        text += &format!(" ± {}", number(error));
    }
    chart.svg.add(format_args!(
        r#"<circle {colour} cx="{}" cy="{}" r="{RADIUS}" fill="currentColor">{}</circle>"#,
        Px(x),
        Px(y),
        hover(&text)
    ));
}

/// Writes the labels that have room around their points, off the front if that is possible.
fn labels(chart: &mut Chart, dots: &[(usize, &Dot)], edge: &[(f64, f64)]) {
    let places: Vec<_> = dots.iter().map(|(_, dot)| (chart.x(dot.x), chart.y(dot.y))).collect();
    let mut taken: Vec<Area> =
        places.iter().map(|(x, y)| [x - 5.0, y - 5.0, x + 5.0, y + 5.0]).collect();
    let segments = edge.windows(2).map(|ends| {
        let ((a, b), (c, d)) = (ends[0], ends[1]);
        [a.min(c) - 1.0, b.min(d) - 1.0, a.max(c) + 1.0, b.max(d) + 1.0]
    });
    let segments: Vec<Area> = segments.collect();
    let bounds =
        [chart.left, chart.top - 6.0, chart.left + chart.width + 14.0, chart.floor() - 3.0];
    for ((_, dot), (x, y)) in dots.iter().zip(places) {
        let room = width(&dot.label, SMALL);
        // Beyond what is around the point.
        let far = if dot.marks.is_empty() { 0.0 } else { 4.0 };
        let choices = [
            (Anchor::Start, x + 8.0 + far, y + 3.8),
            (Anchor::End, x - 8.0 - far, y + 3.8),
            (Anchor::Middle, x, y - 9.0 - far),
            (Anchor::Middle, x, y + 17.0 + far),
            (Anchor::End, x - 4.0, y - 6.0),
            (Anchor::Start, x + 4.0, y + 14.0),
            (Anchor::Start, x + 4.0, y - 6.0),
            (Anchor::End, x - 4.0, y + 14.0),
        ];
        let area = |(anchor, x, base): &(Anchor, f64, f64)| {
            let left = match anchor {
                Anchor::Start => *x,
                Anchor::Middle => x - room / 2.0,
                Anchor::End => x - room,
            };
            [left, base - 9.0, left + room, base + 2.0]
        };
        let free = |choice: &&(Anchor, f64, f64)| {
            let area = area(choice);
            within(area, bounds) && !taken.iter().any(|other| overlap(area, *other))
        };
        let clear = |choice: &&(Anchor, f64, f64)| {
            let area = area(choice);
            !segments.iter().any(|segment| overlap(area, *segment))
        };
        let open = || choices.iter().filter(free);
        if let Some(choice) = open().find(clear).or_else(|| open().next()) {
            let (anchor, x, base) = *choice;
            taken.push(area(choice));
            chart.svg.text_over(x, base, anchor, &dot.label);
        }
    }
}

fn within(a: Area, b: Area) -> bool {
    a[0] >= b[0] && a[1] >= b[1] && a[2] <= b[2] && a[3] <= b[3]
}

fn overlap(a: Area, b: Area) -> bool {
    a[0] < b[2] && b[0] < a[2] && a[1] < b[3] && b[1] < a[3]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dots(points: &[(f64, f64)]) -> Vec<Dot> {
        points.iter().map(|&(x, y)| Dot { x, y, label: "m".to_owned(), ..Dot::default() }).collect()
    }

    #[test]
    fn the_front_holds_what_nothing_beats() {
        let dots = dots(&[(1.0, 0.5), (2.0, 0.7), (3.0, 0.6), (2.0, 0.65), (4.0, 0.7), (5.0, 0.9)]);
        let dots: Vec<_> = dots.iter().map(|dot| (0, dot)).collect();
        assert_eq!(front(&dots, (Better::Low, Better::High)), [(1.0, 0.5), (2.0, 0.7), (5.0, 0.9)]);
        assert_eq!(front(&dots, (Better::High, Better::Low))[..2], [(5.0, 0.9), (4.0, 0.7)]);
    }

    #[test]
    fn labels_never_cover_each_other() {
        let groups = vec![("all".to_owned(), dots(&[(1.0, 1.0); 9]))];
        let svg = Scatter { groups, ..Scatter::default() }.svg();
        assert_eq!(svg.matches("<circle").count(), 9);
        assert!(svg.matches(">m</text>").count() <= 2 * 8);
    }

    #[test]
    fn the_baseline_and_the_best_are_marked_and_explained() {
        let mut dots = dots(&[(1.0, 1.0), (2.0, 0.5)]);
        dots[0].marks = vec![Mark::Baseline];
        dots[1].marks = vec![Mark::Best];
        let figure =
            |dots| Scatter { groups: vec![("all".to_owned(), dots)], ..Scatter::default() };
        let svg = figure(dots.clone()).svg();
        assert!(svg.contains(">baseline</text>") && svg.contains(">best</text>"));
        assert_eq!(svg.matches("stroke-width=\"1.6\"").count(), 4, "two points, two keys: {svg}");
        dots.iter_mut().for_each(|dot| dot.marks.clear());
        assert!(!figure(dots).svg().contains("stroke-width=\"1.6\""));
    }

    #[test]
    fn error_bars_may_reach_beyond_a_logarithmic_axis() {
        let dot = Dot { x: 1.0, y: 1.0, x_error: Some(2.0), y_error: Some(2.0), ..Dot::default() };
        let groups = vec![("all".to_owned(), vec![dot])];
        let svg = Scatter { groups, log_x: true, log_y: true, ..Scatter::default() }.svg();
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    }
}
