//! Maps of values: a number for every pair of two settings.

use crate::chart::{EMPTY, categories, hover};
use crate::svg::{Anchor, Colour, Px, SMALL, Svg, WIDTH};
use crate::text::{escape, fit, width};

/// A number for every row and column; the largest has the fullest shade.
#[derive(Debug, Clone, Default)]
pub struct ValueMap {
    /// The title.
    pub title: String,
    /// What the rows are.
    pub row_label: String,
    /// What the columns are.
    pub column_label: String,
    /// The names of the rows.
    pub rows: Vec<String>,
    /// The names of the columns.
    pub columns: Vec<String>,
    /// One row of values per row; nothing where one is not known.
    pub values: Vec<Vec<Option<f64>>>,
    /// Digits after the point.
    pub digits: usize,
}

/// The faintest and the fullest shade.
const SHADES: (f64, f64) = (0.08, 0.85);
/// How high a row is.
const ROW: f64 = 46.0;

impl ValueMap {
    /// The figure as an SVG document.
    pub fn svg(&self) -> String {
        let (mut svg, used) = Svg::new(&self.title);
        let known = || self.values.iter().flatten().flatten().copied().filter(|v| v.is_finite());
        let low = known().fold(f64::INFINITY, f64::min);
        let high = known().fold(f64::NEG_INFINITY, f64::max);
        if low > high || self.columns.is_empty() {
            return svg.no_data(EMPTY);
        }
        let names = self.rows.iter().map(|name| width(name, SMALL)).fold(0.0, f64::max).min(110.0);
        let (left, top) = (names + 14.0, used + 28.0);
        let across = (WIDTH - left - 14.0) / self.columns.len() as f64;
        svg.text(
            Colour::Muted,
            4.0,
            used + 16.0,
            Anchor::Start,
            &fit(&self.row_label, SMALL, 240.0),
        );
        for (row, values) in self.values.iter().take(self.rows.len()).enumerate() {
            let y = top + ROW * row as f64;
            let middle = y + ROW / 2.0 + 3.8;
            svg.text(
                Colour::Muted,
                left - 6.0,
                middle,
                Anchor::End,
                &fit(&self.rows[row], SMALL, 110.0),
            );
            for (column, value) in values.iter().take(self.columns.len()).enumerate() {
                let Some(value) = value.filter(|value| value.is_finite()) else { continue };
                let share = if high > low { (value - low) / (high - low) } else { 0.0 };
                let shade = SHADES.0 + (SHADES.1 - SHADES.0) * share;
                let text = format!("{value:.*}", self.digits);
                let x = left + across * column as f64;
                let about = format!("{}, {}: {text}", self.rows[row], self.columns[column]);
                svg.add(format_args!(
                    r#"<g><rect {} x="{}" y="{}" width="{}" height="{}" fill="currentColor" fill-opacity="{shade:.3}"/>"#,
                    Colour::Series(0),
                    Px(x),
                    Px(y),
                    Px(across - 1.0),
                    Px(ROW - 1.0)
                ));
                let colour = if shade > 0.55 { Colour::Paper } else { Colour::Ink };
                svg.add(format_args!(
                    r#"<text {colour} x="{}" y="{}" font-size="{}" text-anchor="middle" fill="currentColor">{}</text>{}</g>"#,
                    Px(x + across / 2.0),
                    Px(middle),
                    Px(SMALL),
                    escape(&text),
                    hover(&about)
                ));
            }
        }
        let place = |column: usize| left + across * (column as f64 + 0.5);
        let mut bottom = top + ROW * self.rows.len() as f64 + 3.0;
        bottom += categories(&mut svg, &self.columns, across, place, bottom) + 4.0;
        let middle = left + across * self.columns.len() as f64 / 2.0;
        svg.text(Colour::Muted, middle, bottom + 11.0, Anchor::Middle, &self.column_label);
        svg.finish(bottom + 18.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(values: Vec<Vec<Option<f64>>>) -> String {
        let names = |all: &[&str]| all.iter().map(|name| (*name).to_owned()).collect();
        let (rows, columns) = (names(&["M = 1", "M = 2"]), names(&["K = 1", "K = 2"]));
        ValueMap {
            title: "NLL".to_owned(),
            rows,
            columns,
            values,
            digits: 2,
            ..ValueMap::default()
        }
        .svg()
    }

    #[test]
    fn every_value_is_written_and_the_largest_has_the_fullest_shade() {
        let svg = map(vec![vec![Some(1.0), Some(0.5)], vec![Some(0.75), None]]);
        for text in ["1.00", "0.50", "0.75", "M = 2, K = 1: 0.75"] {
            assert!(svg.contains(text), "{text}: {svg}");
        }
        let shades = |shade: &str| svg.matches(&format!("fill-opacity=\"{shade}\"")).count();
        assert_eq!((shades("0.850"), shades("0.080"), shades("0.465")), (1, 1, 1), "{svg}");
    }

    #[test]
    fn nothing_known_is_no_figure() {
        assert!(map(vec![vec![None, Some(f64::NAN)]]).contains("no data"));
    }
}
