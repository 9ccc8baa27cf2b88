//! What figures with two axes share: title, legend, grid, ticks.

use std::fmt::Write;

use crate::axis::Axis;
use crate::svg::{Anchor, Colour, Px, SMALL, Svg, WIDTH};
use crate::text::{escape, fit, width};

/// The height of the area that holds the data.
const AREA: f64 = 220.0;
/// The height of a figure that has nothing to show.
pub(crate) const EMPTY: f64 = 300.0;
/// The room a slanted label may take along its own line.
const SLANTED: f64 = 92.0;
/// The slant of labels too long to lie flat, in degrees.
const SLANT: f64 = 40.0;

/// How a line is broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stroke {
    Solid,
    Dashed,
    Dotted,
}

impl Stroke {
    /// The attribute that breaks the line.
    pub(crate) fn attribute(self) -> &'static str {
        match self {
            Self::Solid => "",
            Self::Dashed => r#"stroke-dasharray="6 4""#,
            Self::Dotted => r#"stroke-dasharray="1.5 3.5""#,
        }
    }
}

/// What stands for a series, or for a mark around points, in the legend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Key {
    Line(Stroke),
    Box,
    Dot,
    Square,
    Ring,
}

/// A line of the legend.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) name: String,
    pub(crate) colour: Colour,
    pub(crate) key: Key,
}

/// The words around the data.
#[derive(Debug)]
pub(crate) struct Words<'a> {
    pub(crate) title: &'a str,
    pub(crate) x_label: &'a str,
    pub(crate) y_label: &'a str,
    pub(crate) legend: Vec<Entry>,
}

/// What runs along the bottom.
#[derive(Debug)]
pub(crate) enum Bottom<'a> {
    Axis(Axis),
    Labels(&'a [String]),
}

/// A drawn frame, and where values stand in it.
#[derive(Debug)]
pub(crate) struct Chart {
    pub(crate) svg: Svg,
    pub(crate) left: f64,
    pub(crate) top: f64,
    pub(crate) width: f64,
    x: Option<Axis>,
    y: Axis,
    total: f64,
}

impl Chart {
    pub(crate) fn new(words: &Words, bottom: Bottom, y: Axis) -> Self {
        let (mut svg, used) = Svg::new(words.title);
        let used = legend(&mut svg, &words.legend, used);
        svg.text(Colour::Muted, 4.0, used + 16.0, Anchor::Start, &fit(words.y_label, SMALL, 460.0));
        let top = used + if words.y_label.is_empty() { 12.0 } else { 30.0 };
        let widest = y.ticks.iter().map(|tick| width(&y.label(*tick), SMALL)).fold(0.0, f64::max);
        let left = widest + 14.0;
        let mut chart =
            Self { svg, left, top, width: WIDTH - left - 18.0, x: None, y, total: top + AREA };
        chart.grid();
        let below = match bottom {
            Bottom::Axis(axis) => chart.ticks(axis),
            Bottom::Labels(labels) => {
                let slot = chart.width / labels.len() as f64;
                let places = |i: usize| left + slot * (i as f64 + 0.5);
                categories(&mut chart.svg, labels, slot, places, top + AREA + 5.0)
            }
        };
        chart.total += 5.0 + below + 4.0;
        if !words.x_label.is_empty() {
            let middle = left + chart.width / 2.0;
            let label = fit(words.x_label, SMALL, chart.width);
            chart.svg.text(Colour::Muted, middle, chart.total + 11.0, Anchor::Middle, &label);
            chart.total += 18.0;
        }
        chart
    }

    /// The place of a value along the bottom axis.
    pub(crate) fn x(&self, value: f64) -> f64 {
        self.left + self.width * self.x.as_ref().map_or(value, |axis| axis.place(value))
    }

    /// The place of a value along the left axis.
    pub(crate) fn y(&self, value: f64) -> f64 {
        self.top + AREA * (1.0 - self.y.place(value))
    }

    /// The place of the lowest value.
    pub(crate) fn floor(&self) -> f64 {
        self.top + AREA
    }

    /// Opens the area of the data; what is drawn beyond its edge is cut off.
    pub(crate) fn open_area(&mut self) {
        const ROOM: f64 = 5.0;
        let (x, y) = (Px(self.left - ROOM), Px(self.top - ROOM));
        let (w, h) = (Px(self.width + 2.0 * ROOM), Px(AREA + 2.0 * ROOM));
        self.svg.add(format_args!(
            r#"<svg x="{x}" y="{y}" width="{w}" height="{h}" viewBox="{x} {y} {w} {h}">"#
        ));
    }

    /// Closes the area of the data.
    pub(crate) fn close_area(&mut self) {
        self.svg.add(format_args!("</svg>"));
    }

    /// A dashed line across the area at one height.
    pub(crate) fn reference(&mut self, value: f64) {
        let (left, right, y) = (self.left, self.left + self.width, self.y(value));
        let dashed = format!(r#"stroke-width="1.5" {}"#, Stroke::Dashed.attribute());
        self.svg.line(Colour::Muted, (left, y), (right, y), &dashed);
    }

    /// An upright bar from one height to another, unless a dot of this radius would hide it.
    pub(crate) fn whisker(&mut self, colour: Colour, x: f64, low: f64, high: f64, radius: f64) {
        if low - high < 2.0 * radius {
            return;
        }
        let (a, b) = (Px(x - 3.0), Px(x + 3.0));
        let (x, low, high) = (Px(x), Px(low), Px(high));
        self.svg.add(format_args!(
            r#"<path {colour} d="M{a} {low}H{b}M{x} {low}V{high}M{a} {high}H{b}" fill="none" stroke="currentColor" stroke-width="1.2"/>"#
        ));
    }

    /// The whole document.
    pub(crate) fn finish(self) -> String {
        self.svg.finish(self.total)
    }

    fn grid(&mut self) {
        for tick in self.y.ticks.clone() {
            let (y, right) = (self.y(tick), self.left + self.width);
            self.svg.line(Colour::Grid, (self.left, y), (right, y), "");
            let label = self.y.label(tick);
            self.svg.text(Colour::Muted, self.left - 8.0, y + 3.8, Anchor::End, &label);
        }
        let floor = self.floor();
        self.svg.line(Colour::Muted, (self.left, floor), (self.left + self.width, floor), "");
    }

    fn ticks(&mut self, axis: Axis) -> f64 {
        self.x = Some(axis.clone());
        let floor = self.floor();
        let mut free = f64::NEG_INFINITY;
        for tick in &axis.ticks {
            let (x, label) = (self.x(*tick), axis.label(*tick));
            let half = width(&label, SMALL) / 2.0;
            if x - half < free {
                continue;
            }
            free = x + half + 6.0;
            self.svg.line(Colour::Muted, (x, floor), (x, floor + 4.0), "");
            let middle = x.min(WIDTH - half);
            self.svg.text(Colour::Muted, middle, floor + 16.0, Anchor::Middle, &label);
        }
        14.0
    }
}

/// Draws the legend below the height used so far, in as many rows as it needs. A single entry would
/// repeat the title, so it is left out.
fn legend(svg: &mut Svg, entries: &[Entry], used: f64) -> f64 {
    if entries.len() < 2 {
        return used;
    }
    let (mut x, mut y) = (4.0, used + 13.0);
    for entry in entries {
        let name = fit(&entry.name, SMALL, 200.0);
        let room = 24.0 + width(&name, SMALL) + 14.0;
        if x > 4.0 && x + room > WIDTH {
            (x, y) = (4.0, y + 18.0);
        }
        let colour = entry.colour;
        let (middle, from) = (Px(y - 4.0), Px(x));
        match entry.key {
            Key::Line(stroke) => {
                let extra = format!(r#"stroke-width="2" {}"#, stroke.attribute());
                svg.line(colour, (x, y - 4.0), (x + 18.0, y - 4.0), &extra);
            }
            Key::Box => svg.add(format_args!(
                r#"<rect {colour} x="{from}" y="{}" width="14" height="10" rx="1.5" fill="currentColor"/>"#,
                Px(y - 9.0)
            )),
            Key::Dot => svg.add(format_args!(
                r#"<circle {colour} cx="{}" cy="{middle}" r="4.5" fill="currentColor"/>"#,
                Px(x + 9.0)
            )),
            Key::Square | Key::Ring => svg.outline(entry.key == Key::Square, (x + 9.0, y - 4.0), 6.0),
        }
        svg.text(Colour::Ink, x + 23.0, y, Anchor::Start, &name);
        x += room;
    }
    y + 5.0
}

/// Writes the names of categories below `y`: flat where they fit, slanted where they are long, and
/// only some of them where they are many. Gives the height this took.
pub(crate) fn categories(
    svg: &mut Svg,
    labels: &[String],
    slot: f64,
    place: impl Fn(usize) -> f64,
    y: f64,
) -> f64 {
    let widest = labels.iter().map(|label| width(label, SMALL)).fold(0.0, f64::max);
    let flat = widest + 6.0 <= slot || widest <= 26.0;
    let stride = stride(if flat { widest + 6.0 } else { 13.0 }, slot);
    let shown = labels.iter().enumerate().step_by(stride);
    if flat {
        for (i, label) in shown {
            svg.text(Colour::Muted, place(i), y + 11.0, Anchor::Middle, label);
        }
        return 14.0;
    }
    let (sine, cosine) = SLANT.to_radians().sin_cos();
    for (i, label) in shown {
        let x = place(i) + 4.0;
        let text = fit(label, SMALL, SLANTED.min((x - 2.0) / cosine));
        let (x, y) = (Px(x), Px(y + 8.0));
        let hover = if text == *label { String::new() } else { hover(label) };
        svg.add(format_args!(
            r#"<text {} transform="translate({x} {y}) rotate(-{SLANT})" font-size="{SMALL}" text-anchor="end" fill="currentColor">{}{hover}</text>"#,
            Colour::Muted,
            escape(&text)
        ));
    }
    widest.min(SLANTED) * sine + 10.0
}

/// Every how many labels one is shown: the first of 1, 2, 5, 10, 20, … that leaves each the room it
/// needs.
pub(crate) fn stride(need: f64, slot: f64) -> usize {
    let round = (0..6).flat_map(|power| [1, 2, 5].map(|digit| digit * 10usize.pow(power)));
    round.into_iter().find(|stride| *stride as f64 * slot >= need).unwrap_or(1_000_000)
}

/// An element that viewers show while the pointer rests on its parent.
pub(crate) fn hover(text: &str) -> String {
    format!("<title>{}</title>", escape(text))
}

/// The path through places, straight from each to the next, or level and then upright.
pub(crate) fn path(places: impl IntoIterator<Item = (f64, f64)>, steps: bool) -> String {
    let mut path = String::new();
    for (x, y) in places {
        let (x, y) = (Px(x), Px(y));
        let _ = match (path.is_empty(), steps) {
            (true, _) => write!(path, "M{x} {y}"),
            (false, true) => write!(path, "H{x}V{y}"),
            (false, false) => write!(path, "L{x} {y}"),
        };
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crowded_labels_are_shown_at_round_intervals() {
        assert_eq!([stride(10.0, 20.0), stride(26.0, 10.0), stride(30.0, 1.0)], [1, 5, 50]);
    }

    #[test]
    fn paths_are_straight_or_stepped() {
        let places = [(0.0, 1.0), (2.04, 3.0)];
        assert_eq!(path(places, false), "M0 1L2 3");
        assert_eq!(path(places, true), "M0 1H2V3");
    }
}
