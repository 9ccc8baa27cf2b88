//! Marks on a canvas.

use std::fmt::{self, Write};

use crate::text::{escape, wrap};

/// The width of every figure; heights differ.
pub(crate) const WIDTH: f64 = 480.0;
/// The size of a figure's title.
pub(crate) const TITLE: f64 = 14.0;
/// The size of other text.
pub(crate) const SMALL: f64 = 12.0;

/// A colour by its part in the figure: a concrete value, and a class that a page may restyle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Colour {
    /// What lies behind.
    Paper,
    /// Text that matters.
    Ink,
    /// Text that explains.
    Muted,
    /// Lines that only guide.
    Grid,
    /// One of the colours of Okabe and Ito that stand out on white, for things to be told apart.
    Series(usize),
}

impl Colour {
    /// How many series have a colour of their own.
    pub(crate) const SERIES: usize = 7;
}

impl fmt::Display for Colour {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        const SERIES: [&str; Colour::SERIES] =
            ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#666666"];
        let (class, value) = match self {
            Self::Paper => ("paper", "#ffffff"),
            Self::Ink => ("ink", "#1d2127"),
            Self::Muted => ("muted", "#5c646f"),
            Self::Grid => ("grid", "#dfe3e8"),
            Self::Series(i) => {
                let i = i % Self::SERIES;
                return write!(f, r#"class="c{i}" color="{}""#, SERIES[i]);
            }
        };
        write!(f, r#"class="{class}" color="{value}""#)
    }
}

/// A length or a place, to a tenth of a unit and no farther than anyone can see.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Px(pub(crate) f64);

impl fmt::Display for Px {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let tenths = (self.0.clamp(-1e5, 1e5) * 10.0).round() / 10.0;
        write!(f, "{}", if tenths == 0.0 { 0.0 } else { tenths })
    }
}

/// Where text hangs on its point.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Anchor {
    Start,
    Middle,
    End,
}

impl fmt::Display for Anchor {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(match self {
            Self::Start => "start",
            Self::Middle => "middle",
            Self::End => "end",
        })
    }
}

/// A figure being drawn.
#[derive(Debug)]
pub(crate) struct Svg {
    body: String,
    title: String,
}

impl Svg {
    /// A canvas with its title at the top left, and how much height that took.
    pub(crate) fn new(title: &str) -> (Self, f64) {
        let mut svg = Self { body: String::new(), title: title.to_owned() };
        let lines = wrap(title, TITLE * 1.05, WIDTH - 8.0, 2);
        for (i, line) in lines.iter().enumerate() {
            let y = 16.0 + 18.0 * i as f64;
            svg.add(format_args!(
                r#"<text {} x="4" y="{y}" font-size="{TITLE}" font-weight="600" fill="currentColor">{}</text>"#,
                Colour::Ink,
                escape(line)
            ));
        }
        (svg, 6.0 + 18.0 * lines.len() as f64)
    }

    /// Adds markup as it is.
    pub(crate) fn add(&mut self, markup: fmt::Arguments) {
        self.body.write_fmt(markup).expect("memory takes every write");
        self.body.push('\n');
    }

    /// Adds a line of small text.
    pub(crate) fn text(&mut self, colour: Colour, x: f64, y: f64, anchor: Anchor, text: &str) {
        self.add(format_args!(
            r#"<text {colour} x="{}" y="{}" font-size="{SMALL}" text-anchor="{anchor}" fill="currentColor">{}</text>"#,
            Px(x),
            Px(y),
            escape(text)
        ));
    }

    /// Adds a line of small text that stays readable on top of marks.
    pub(crate) fn text_over(&mut self, x: f64, y: f64, anchor: Anchor, text: &str) {
        self.add(format_args!(
            r#"<text {} x="{}" y="{}" font-size="{SMALL}" text-anchor="{anchor}" fill="currentColor" stroke="currentColor" stroke-width="3" stroke-linejoin="round" aria-hidden="true">{}</text>"#,
            Colour::Paper,
            Px(x),
            Px(y),
            escape(text)
        ));
        self.text(Colour::Ink, x, y, anchor, text);
    }

    /// Adds a straight line; `extra` holds further attributes.
    pub(crate) fn line(&mut self, colour: Colour, from: (f64, f64), to: (f64, f64), extra: &str) {
        self.add(format_args!(
            r#"<line {colour} x1="{}" y1="{}" x2="{}" y2="{}" stroke="currentColor" {extra}/>"#,
            Px(from.0),
            Px(from.1),
            Px(to.0),
            Px(to.1)
        ));
    }

    /// Adds a square or a ring around a point.
    pub(crate) fn outline(&mut self, square: bool, (x, y): (f64, f64), radius: f64) {
        let (ink, radius) = (Colour::Ink, Px(radius));
        let stroke = r#"fill="none" stroke="currentColor" stroke-width="1.6""#;
        match square {
            true => {
                let (left, top, side) = (Px(x - radius.0), Px(y - radius.0), Px(2.0 * radius.0));
                self.add(format_args!(
                    r#"<rect {ink} x="{left}" y="{top}" width="{side}" height="{side}" {stroke}/>"#
                ));
            }
            false => {
                let (x, y) = (Px(x), Px(y));
                self.add(format_args!(
                    r#"<circle {ink} cx="{x}" cy="{y}" r="{radius}" {stroke}/>"#
                ));
            }
        }
    }

    /// The whole document.
    pub(crate) fn finish(self, height: f64) -> String {
        let (title, body, height) = (escape(&self.title), self.body, Px(height.ceil()));
        let paper = Colour::Paper;
        format!(
            r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img" font-family="system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif">
<title>{title}</title>
<rect {paper} width="100%" height="100%" fill="currentColor"/>
{body}</svg>
"#
        )
    }

    /// The document of a figure without anything to draw.
    pub(crate) fn no_data(mut self, height: f64) -> String {
        let (grid, width, inside) = (Colour::Grid, WIDTH - 20.0, Px(height - 60.0));
        self.add(format_args!(
            r#"<rect {grid} x="4" y="48" width="{width}" height="{inside}" rx="4" fill="none" stroke="currentColor" stroke-dasharray="4 4"/>"#
        ));
        self.text(Colour::Muted, 4.0 + width / 2.0, 22.0 + height / 2.0, Anchor::Middle, "no data");
        self.finish(height)
    }
}
