//! Histograms: how confidences, errors or weights are spread.

use crate::axis::{Axis, Scale};
use crate::chart::{Bottom, Chart, EMPTY, Entry, Key, Words, hover, path};
use crate::svg::{Colour, Px, Svg};
use crate::text::number;

/// Counts of values in bins of equal width; several groups lie over each other.
#[derive(Debug, Clone)]
pub struct Histogram {
    /// The title.
    pub title: String,
    /// What the values are.
    pub x_label: String,
    /// A name and the values of each group.
    pub groups: Vec<(String, Vec<f64>)>,
    /// How many bins there are.
    pub bins: usize,
    /// The ends of the first and the last bin, if the data should not set them; values beyond them
    /// are left out.
    pub range: Option<(f64, f64)>,
    /// Whether heights are shares of the group, so that groups of different sizes compare.
    pub shares: bool,
}

impl Default for Histogram {
    fn default() -> Self {
        Self {
            title: String::new(),
            x_label: String::new(),
            groups: Vec::new(),
            bins: 25,
            range: None,
            shares: false,
        }
    }
}

impl Histogram {
    /// The figure as an SVG document.
    pub fn svg(&self) -> String {
        let values = self.groups.iter().flat_map(|(_, values)| values).copied();
        let Some(x) = Axis::over(values, Scale::Linear, self.range, 6) else {
            return Svg::new(&self.title).0.no_data(EMPTY);
        };
        let heights: Vec<_> = self.groups.iter().map(|(_, all)| self.heights(all, &x)).collect();
        let tops = || heights.iter().flatten().copied();
        let y = Axis::over(tops().chain([0.0]), Scale::Linear, None, 5);
        let Some(y) = y.filter(|_| tops().any(|height| height > 0.0)) else {
            return Svg::new(&self.title).0.no_data(EMPTY);
        };
        let legend = self.groups.iter().enumerate().map(|(i, (name, _))| Entry {
            name: name.clone(),
            colour: Colour::Series(i),
            key: Key::Box,
        });
        let words = Words {
            title: &self.title,
            x_label: &self.x_label,
            y_label: if self.shares { "share" } else { "count" },
            legend: legend.collect(),
        };
        let edge = |bin: usize| x.low + (x.high - x.low) * bin as f64 / heights[0].len() as f64;
        let mut chart = Chart::new(&words, Bottom::Axis(x.clone()), y.grown(5));
        chart.open_area();
        for (i, heights) in heights.iter().enumerate() {
            let tops = heights.iter().enumerate().flat_map(|(bin, height)| {
                let y = chart.y(*height);
                [(chart.x(edge(bin)), y), (chart.x(edge(bin + 1)), y)]
            });
            let (left, right, floor) = (chart.x(x.low), chart.x(x.high), chart.floor());
            let outline =
                path([(left, floor)].into_iter().chain(tops).chain([(right, floor)]), false);
            chart.svg.add(format_args!(
                r#"<path {} d="{outline}" fill="currentColor" fill-opacity="0.28" stroke="currentColor" stroke-width="1.5"/>"#,
                Colour::Series(i)
            ));
        }
        self.hovers(&mut chart, &heights, edge);
        chart.close_area();
        chart.finish()
    }

    fn heights(&self, values: &[f64], x: &Axis) -> Vec<f64> {
        let bins = self.bins.clamp(1, 1000);
        let mut heights = vec![0.0; bins];
        let mut total = 0.0f64;
        for value in values.iter().filter(|value| Scale::Linear.shows(**value)) {
            total += 1.0;
            if (x.low..=x.high).contains(value) {
                let bin = (x.place(*value) * bins as f64) as usize;
                heights[bin.min(bins - 1)] += 1.0;
            }
        }
        if self.shares {
            heights.iter_mut().for_each(|height| *height /= total.max(1.0));
        }
        heights
    }

    /// One invisible column per bin that tells what every group has there.
    fn hovers(&self, chart: &mut Chart, heights: &[Vec<f64>], edge: impl Fn(usize) -> f64) {
        let (top, height) = (Px(chart.top), Px(chart.floor() - chart.top));
        chart.svg.add(format_args!(r#"<g fill="none" pointer-events="all">"#));
        for bin in 0..heights[0].len() {
            let (low, high) = (edge(bin), edge(bin + 1));
            let mut text = format!("{} to {}", number(low), number(high));
            for ((name, _), heights) in self.groups.iter().zip(heights) {
                text += &format!("\n{name}: {}", number(heights[bin]));
            }
            let (x, width) = (Px(chart.x(low)), Px(chart.x(high) - chart.x(low)));
            chart.svg.add(format_args!(
                r#"<rect x="{x}" y="{top}" width="{width}" height="{height}">{}</rect>"#,
                hover(&text)
            ));
        }
        chart.svg.add(format_args!("</g>"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_in_range_is_counted_once() {
        let values = vec![0.0, 0.1, 0.5, 0.99, 1.0, 1.5, f64::NAN];
        let histogram = Histogram { bins: 2, range: Some((0.0, 1.0)), ..Histogram::default() };
        let axis = Axis::over(values.clone(), Scale::Linear, histogram.range, 6).unwrap();
        assert_eq!(histogram.heights(&values, &axis), [2.0, 3.0]);
        let shares = Histogram { shares: true, ..histogram };
        assert_eq!(shares.heights(&values, &axis), [2.0 / 6.0, 0.5]);
    }

    #[test]
    fn values_out_of_range_are_no_data() {
        let groups = vec![("all".to_owned(), vec![7.0])];
        let histogram = Histogram { groups, range: Some((0.0, 1.0)), ..Histogram::default() };
        assert!(histogram.svg().contains("no data"));
    }
}
