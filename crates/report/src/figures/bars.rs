//! Bars: the load of every expert, a metric per model.

use crate::axis::{Axis, Scale};
use crate::chart::{Bottom, Chart, EMPTY, Entry, Key, Stroke, Words, hover};
use crate::svg::{Colour, Px, Svg};
use crate::text::number;

/// Groups of bars over named places.
#[derive(Debug, Clone, Default)]
pub struct Bars {
    /// The title.
    pub title: String,
    /// What runs along the bottom.
    pub x_label: String,
    /// What runs up the side.
    pub y_label: String,
    /// The names of the places.
    pub labels: Vec<String>,
    /// A name and one value per place; the bars of several groups stand side by side.
    pub groups: Vec<(String, Vec<f64>)>,
    /// A name and a height at which a dashed line runs, such as the load of balanced experts.
    pub reference: Option<(String, f64)>,
    /// Per group, how far each value may be off; whiskers show it. Empty where that is not known.
    pub errors: Vec<Vec<f64>>,
}

impl Bars {
    /// The figure as an SVG document.
    pub fn svg(&self) -> String {
        let values = || {
            let all =
                self.groups.iter().flat_map(|(_, values)| values.iter().take(self.labels.len()));
            all.copied().filter(|value| Scale::Linear.shows(*value))
        };
        let reference = self.reference.as_ref().map(|(_, value)| *value);
        let ends = self.groups.iter().zip(&self.errors).flat_map(|((_, values), errors)| {
            values.iter().zip(errors).flat_map(|(value, error)| [value - error, value + error])
        });
        let ends = ends.filter(|end| Scale::Linear.shows(*end));
        let heights = values().chain(ends).chain(reference).chain([0.0]);
        let y = Axis::over(heights, Scale::Linear, None, 5).filter(|_| values().next().is_some());
        let Some(y) = y else {
            return Svg::new(&self.title).0.no_data(EMPTY);
        };
        let words = Words {
            title: &self.title,
            x_label: &self.x_label,
            y_label: &self.y_label,
            legend: self.legend(),
        };
        let mut chart = Chart::new(&words, Bottom::Labels(&self.labels), y.grown(5));
        chart.open_area();
        let slot = chart.width / self.labels.len() as f64;
        let gap = if slot > 6.0 { 0.22 } else { 0.0 };
        let thickness = slot * (1.0 - gap) / self.groups.len() as f64;
        for (group, (name, values)) in self.groups.iter().enumerate() {
            chart.svg.add(format_args!(r#"<g {} fill="currentColor">"#, Colour::Series(group)));
            for (i, (label, value)) in self.labels.iter().zip(values).enumerate() {
                if !Scale::Linear.shows(*value) {
                    continue;
                }
                let x = chart.left + slot * (i as f64 + gap / 2.0) + thickness * group as f64;
                let (end, zero) = (chart.y(*value), chart.y(0.0));
                let (y, height) = (Px(end.min(zero)), Px((end - zero).abs()));
                let text = hover(&format!("{label}, {name}: {}", number(*value)));
                let (x, width) = (Px(x), Px((thickness - 0.4).max(0.3)));
                chart.svg.add(format_args!(
                    r#"<rect x="{x}" y="{y}" width="{width}" height="{height}">{text}</rect>"#
                ));
            }
            chart.svg.add(format_args!("</g>"));
            let errors = self.errors.get(group).into_iter().flatten();
            for (i, (value, error)) in values.iter().zip(errors).take(self.labels.len()).enumerate()
            {
                let shows = |value: f64| Scale::Linear.shows(value);
                if shows(*value) && shows(*error) && *error > 0.0 {
                    let left = chart.left + slot * (i as f64 + gap / 2.0);
                    let x = left + thickness * (group as f64 + 0.5);
                    let (low, high) = (chart.y(value - error), chart.y(value + error));
                    chart.whisker(Colour::Ink, x, low, high, 0.0);
                }
            }
        }
        if let Some(value) = reference.filter(|value| Scale::Linear.shows(*value)) {
            chart.reference(value);
        }
        chart.close_area();
        chart.finish()
    }

    fn legend(&self) -> Vec<Entry> {
        let groups = self.groups.iter().enumerate().map(|(i, (name, _))| Entry {
            name: name.clone(),
            colour: Colour::Series(i),
            key: Key::Box,
        });
        let reference = self.reference.iter().map(|(name, _)| Entry {
            name: name.clone(),
            colour: Colour::Muted,
            key: Key::Line(Stroke::Dashed),
        });
        groups.chain(reference).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whiskers_show_how_far_bars_may_be_off() {
        let bars = |errors: Vec<Vec<f64>>| Bars {
            labels: ["a", "b"].map(str::to_owned).into(),
            groups: vec![("recall".to_owned(), vec![4.0, 2.0])],
            errors,
            ..Bars::default()
        };
        let plain = bars(Vec::new()).svg();
        let with = bars(vec![vec![0.5, f64::NAN]]).svg();
        assert!(with.len() > plain.len() && !with.contains("NaN"), "{with}");
        assert!(bars(vec![vec![40.0, 0.0]]).svg().contains("40"), "the axis has room for them");
    }

    #[test]
    fn bars_without_a_value_are_left_out() {
        let bars = Bars {
            labels: ["a", "b", "c"].map(str::to_owned).into(),
            groups: vec![("load".to_owned(), vec![0.5, f64::NAN, -0.5, 9.0])],
            reference: Some(("balanced".to_owned(), f64::INFINITY)),
            ..Bars::default()
        };
        let svg = bars.svg();
        assert_eq!(svg.matches("<title>").count(), 3); // the figure's and two bars'
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    }
}
