//! Heat maps: what is taken for what.

use crate::chart::{EMPTY, categories, hover, stride};
use crate::svg::{Anchor, Colour, Px, SMALL, Svg, WIDTH};
use crate::text::{escape, fit, number, width};

/// A side longer than this is pooled: neighbours are added up until it fits.
const LONGEST: usize = 200;
/// With more cells than this, cells of equal shade are drawn together and none answers the pointer.
const NAMED: usize = 4000;
/// How many shades cells have when they are drawn together.
const SHADES: usize = 24;
/// The smallest text that is written in a cell.
const TINY: f64 = 7.5;

/// A matrix of counts, such as a confusion matrix. The shade of a cell is its share of the row.
#[derive(Debug, Clone, Default)]
pub struct HeatMap {
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
    /// One row of values per row; values that are missing, negative or not finite count as nothing.
    pub values: Vec<Vec<f64>>,
}

/// A cell with something in it.
#[derive(Debug)]
struct Cell {
    row: usize,
    column: usize,
    value: f64,
    /// Its part of the row, 0 to 1.
    share: f64,
}

impl HeatMap {
    /// The figure as an SVG document. The whole of a row has the full shade.
    pub fn svg(&self) -> String {
        self.shaded(|_| 1.0)
    }

    /// The same where rows are spread over many columns: the largest share has the full shade.
    pub fn svg_by_largest(&self) -> String {
        self.shaded(|cells| cells.iter().map(|cell| cell.share).fold(0.0, f64::max))
    }

    /// - `full`: the share that has the full shade
    fn shaded(&self, full: impl Fn(&[Cell]) -> f64) -> String {
        let (mut svg, used) = Svg::new(&self.title);
        let cells = self.pooled().unwrap_or_else(|| self.cells());
        if cells.is_empty() {
            return svg.no_data(EMPTY);
        }
        let (rows, columns) = (pool(&self.rows), pool(&self.columns));
        let names = rows.iter().map(|name| width(name, SMALL)).fold(0.0, f64::max).min(110.0);
        let (left, top) = (names + 14.0, used + 28.0);
        let across = (WIDTH - left - 14.0) / columns.len() as f64;
        let height = (across * rows.len() as f64).clamp(90.0, 430.0);
        let down = height / rows.len() as f64;
        let full = full(&cells);
        let arrangement = Arrangement { left, top, across, down, full };

        svg.text(
            Colour::Muted,
            4.0,
            used + 16.0,
            Anchor::Start,
            &fit(&self.row_label, SMALL, 240.0),
        );
        key(&mut svg, used + 16.0, full);
        if cells.len() <= NAMED {
            draw(&mut svg, &arrangement, &cells, &rows, &columns);
        } else {
            draw_together(&mut svg, &arrangement, &cells);
        }
        svg.add(format_args!(
            r#"<rect {} x="{}" y="{}" width="{}" height="{}" fill="none" stroke="currentColor"/>"#,
            Colour::Grid,
            Px(left),
            Px(top),
            Px(across * columns.len() as f64),
            Px(height)
        ));
        for (i, name) in rows.iter().enumerate().step_by(stride(SMALL + 1.0, down)) {
            let y = top + down * (i as f64 + 0.5) + 3.8;
            svg.text(Colour::Muted, left - 6.0, y, Anchor::End, &fit(name, SMALL, 110.0));
        }
        let place = |i: usize| left + across * (i as f64 + 0.5);
        let mut bottom = top + height + 3.0;
        bottom += categories(&mut svg, &columns, across, place, bottom) + 4.0;
        if !self.column_label.is_empty() {
            let middle = left + across * columns.len() as f64 / 2.0;
            svg.text(Colour::Muted, middle, bottom + 11.0, Anchor::Middle, &self.column_label);
            bottom += 18.0;
        }
        svg.finish(bottom)
    }

    fn cells(&self) -> Vec<Cell> {
        let mut cells = Vec::new();
        for (row, values) in self.values.iter().take(self.rows.len()).enumerate() {
            let values = || {
                let all = values.iter().take(self.columns.len()).copied().enumerate();
                all.filter(|(_, value)| value.is_finite() && *value > 0.0)
            };
            let total: f64 = values().map(|(_, value)| value).sum();
            cells.extend(values().map(|(column, value)| {
                let share = (value / total).clamp(0.0, 1.0);
                Cell { row, column, value, share }
            }));
        }
        cells
    }

    /// The cells of a large matrix after neighbours are added up.
    fn pooled(&self) -> Option<Vec<Cell>> {
        let (rows, columns) = (block(self.rows.len()), block(self.columns.len()));
        if rows == 1 && columns == 1 {
            return None;
        }
        let mut small =
            HeatMap { rows: pool(&self.rows), columns: pool(&self.columns), ..HeatMap::default() };
        small.values = vec![vec![0.0; small.columns.len()]; small.rows.len()];
        for cell in self.cells() {
            small.values[cell.row / rows][cell.column / columns] += cell.value;
        }
        Some(small.cells())
    }
}

/// Where cells lie.
#[derive(Debug)]
struct Arrangement {
    left: f64,
    top: f64,
    across: f64,
    down: f64,
    /// The share that has the full shade.
    full: f64,
}

impl Arrangement {
    fn middle(&self, cell: &Cell) -> (f64, f64) {
        let (column, row) = (cell.column as f64 + 0.5, cell.row as f64 + 0.5);
        (self.left + self.across * column, self.top + self.down * row)
    }

    /// How strongly a cell is coloured: one part in a hundred can still be seen.
    fn opacity(&self, share: f64) -> f64 {
        opacity(share / self.full)
    }

    /// The path around a cell, with a hair of room to its neighbours if it is large.
    fn outline(&self, cell: &Cell) -> String {
        let gap = if self.across.min(self.down) > 10.0 { 1.0 } else { 0.0 };
        let (x, y) = self.middle(cell);
        let (width, height) = (self.across - gap, self.down - gap);
        let (x, y) = (Px(x - width / 2.0), Px(y - height / 2.0));
        format!("M{x} {y}h{}v{}h-{0}z", Px(width), Px(height))
    }

    /// The size at which every value fits its cell, if that can be read.
    fn text_size(&self, cells: &[Cell]) -> Option<f64> {
        let widest = cells.iter().map(|cell| width(&number(cell.value), 1.0)).fold(0.0, f64::max);
        let size = ((self.across - 3.0) / widest).min(self.down - 3.0).min(SMALL);
        (size >= TINY).then_some(size)
    }
}

fn draw(
    svg: &mut Svg,
    arrangement: &Arrangement,
    cells: &[Cell],
    rows: &[String],
    columns: &[String],
) {
    let size = arrangement.text_size(cells);
    for cell in cells {
        let (row, column) = (&rows[cell.row], &columns[cell.column]);
        let percent = number((cell.share * 1000.0).round() / 10.0);
        let value = number(cell.value);
        let text = hover(&format!("{row} → {column}: {value} ({percent} % of the row)"));
        svg.add(format_args!(
            r#"<g><path {} d="{}" fill="currentColor" fill-opacity="{}"/>"#,
            Colour::Series(0),
            arrangement.outline(cell),
            arrangement.opacity(cell.share)
        ));
        if let Some(size) = size {
            let colour =
                if arrangement.opacity(cell.share) > 0.55 { Colour::Paper } else { Colour::Ink };
            let (x, y) = arrangement.middle(cell);
            svg.add(format_args!(
                r#"<text {colour} x="{}" y="{}" font-size="{}" text-anchor="middle" fill="currentColor">{}</text>"#,
                Px(x),
                Px(y + size * 0.35),
                Px(size),
                escape(&value)
            ));
        }
        svg.add(format_args!("{text}</g>"));
    }
}

fn draw_together(svg: &mut Svg, arrangement: &Arrangement, cells: &[Cell]) {
    let mut shades = vec![String::new(); SHADES];
    for cell in cells {
        let shade = (cell.share / arrangement.full * SHADES as f64).ceil() as usize;
        shades[shade.clamp(1, SHADES) - 1] += &arrangement.outline(cell);
    }
    for (shade, outlines) in shades.iter().enumerate().filter(|(_, all)| !all.is_empty()) {
        svg.add(format_args!(
            r#"<path {} d="{outlines}" fill="currentColor" fill-opacity="{}"/>"#,
            Colour::Series(0),
            opacity((shade as f64 + 1.0) / SHADES as f64)
        ));
    }
}

/// What the shades mean, at the top right.
fn key(svg: &mut Svg, base: f64, full: f64) {
    let most = format!("{:.0} %", 100.0 * full);
    let right = WIDTH - 14.0 - width(&most, SMALL) - 6.0;
    svg.text(Colour::Muted, WIDTH - 14.0, base, Anchor::End, &most);
    for i in 0..5 {
        svg.add(format_args!(
            r#"<rect {} x="{}" y="{}" width="12" height="10" fill="currentColor" fill-opacity="{}"/>"#,
            Colour::Series(0),
            Px(right - 12.0 * f64::from(5 - i)),
            Px(base - 9.0),
            opacity(f64::from(i) / 4.0)
        ));
    }
    svg.text(Colour::Muted, right - 66.0, base, Anchor::End, "share of the row  0");
}

/// Of a share of the largest.
fn opacity(share: f64) -> f64 {
    ((0.07 + 0.93 * share.powf(0.6)) * 100.0).round() / 100.0
}

/// How many neighbours on a side of this length are added up.
fn block(length: usize) -> usize {
    length.div_ceil(LONGEST).max(1)
}

/// The first name of every block.
fn pool(names: &[String]) -> Vec<String> {
    names.iter().step_by(block(names.len())).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn confusion(classes: usize, off: f64) -> HeatMap {
        let row = |i: usize| (0..classes).map(|j| if i == j { 90.0 } else { off }).collect();
        HeatMap {
            rows: (0..classes).map(|i| format!("class {i}")).collect(),
            columns: (0..classes).map(|i| format!("class {i}")).collect(),
            values: (0..classes).map(row).collect(),
            ..HeatMap::default()
        }
    }

    #[test]
    fn counts_are_written_where_they_fit() {
        assert_eq!(confusion(10, 1.0).svg().matches(">90</text>").count(), 10);
        assert!(!confusion(100, 0.0).svg().contains(">90</text>"));
    }

    #[test]
    fn the_largest_share_has_the_full_shade_if_asked() {
        let spread = HeatMap { values: vec![vec![2.0, 1.0, 1.0]; 3], ..confusion(3, 0.0) };
        let shades = |svg: String| svg.matches(r#"fill-opacity="1"/>"#).count();
        assert_eq!(
            (shades(spread.svg()), shades(spread.svg_by_largest())),
            (1, 4),
            "one is the key's"
        );
        assert!(spread.svg().contains(">100 %<") && spread.svg_by_largest().contains(">50 %<"));
    }

    #[test]
    fn large_matrices_stay_small_files() {
        let svg = confusion(100, 1.0).svg();
        assert!(svg.len() < 400_000, "{}", svg.len());
        assert!(confusion(1000, 1.0).svg().len() < 1_500_000);
    }

    #[test]
    fn pooling_keeps_the_total() {
        let map = confusion(450, 1.0);
        let total = |cells: Vec<Cell>| cells.iter().map(|cell| cell.value).sum::<f64>();
        let pooled = map.pooled().unwrap();
        assert_eq!(pooled.len(), 150 * 150);
        assert_eq!(total(pooled), total(map.cells()));
    }

    #[test]
    fn ragged_and_impossible_values_count_as_nothing() {
        let values = vec![vec![1.0, f64::NAN], vec![-1.0], vec![5.0; 9], vec![5.0]];
        let map = HeatMap { values, ..confusion(3, 0.0) };
        assert_eq!(map.cells().len(), 1 + 3);
    }
}
