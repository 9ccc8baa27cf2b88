//! Patches of an image, each with a colour and a word: who took it, or how sure somebody was.

use std::fmt;

use base64::{Engine, prelude::BASE64_STANDARD};

use crate::chart::{EMPTY, hover};
use crate::svg::{Anchor, Colour, Px, SMALL, Svg, WIDTH};
use crate::text::{escape, fit, width};
use crate::thumbnail::Thumbnail;

/// The widest, and the highest, that all patches together are.
const SIDES: (f64, f64) = (WIDTH - 8.0, 430.0);
/// A patch has its word on it where so much room is.
const NAMED: f64 = 13.0;

/// Patches over a picture, or alone.
#[derive(Debug, Clone, Default)]
pub struct PatchMap {
    /// The title.
    pub title: String,
    /// Patches above each other, and beside each other.
    pub grid: (usize, usize),
    /// What lies below, cut to what the patches cover.
    pub picture: Option<Thumbnail>,
    /// Row by row; nothing for a patch that is left as it is.
    pub patches: Vec<Option<PatchMark>>,
    /// What colours mean.
    pub legend: Vec<(usize, String)>,
}

/// What is shown of a patch.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct PatchMark {
    /// Which colour: any number has one, and neighbours differ.
    pub colour: usize,
    /// How strong the colour is, from 0 to 1.
    pub strength: f64,
    /// What is written on it where there is room.
    pub word: String,
    /// What is said where the pointer rests.
    pub hover: String,
}

impl PatchMap {
    /// The figure as an SVG document.
    pub fn svg(&self) -> String {
        let (mut svg, used) = Svg::new(&self.title);
        let (rows, columns) = self.grid;
        if rows == 0 || columns == 0 || self.patches.is_empty() {
            return svg.no_data(EMPTY);
        }
        let used = self.legend(&mut svg, used);
        let side = (SIDES.0 / columns as f64).min(SIDES.1 / rows as f64);
        let (left, top) = (4.0, used + 8.0);
        let (across, down) = (side * columns as f64, side * rows as f64);
        if let Some(picture) = &self.picture {
            let data = BASE64_STANDARD.encode(picture.encoded());
            let smooth =
                if picture.is_coarse() { r#" style="image-rendering: pixelated""# } else { "" };
            svg.add(format_args!(
                r#"<image x="{}" y="{}" width="{}" height="{}" preserveAspectRatio="none"{smooth} href="data:{};base64,{data}"/>"#,
                Px(left),
                Px(top),
                Px(across),
                Px(down),
                picture.media_type()
            ));
        }
        for (place, mark) in self.patches.iter().take(rows * columns).enumerate() {
            let Some(mark) = mark else { continue };
            let (x, y) =
                (left + side * (place % columns) as f64, top + side * (place / columns) as f64);
            self.draw(&mut svg, mark, (x, y), side);
        }
        svg.add(format_args!(
            r#"<rect {} x="{}" y="{}" width="{}" height="{}" fill="none" stroke="currentColor"/>"#,
            Colour::Grid,
            Px(left),
            Px(top),
            Px(across),
            Px(down)
        ));
        svg.finish(top + down + 8.0)
    }

    fn draw(&self, svg: &mut Svg, mark: &PatchMark, (x, y): (f64, f64), side: f64) {
        let strength = if mark.strength.is_finite() { mark.strength.clamp(0.0, 1.0) } else { 0.0 };
        // A picture is to be seen through; a frame then has the colour by itself.
        let most = if self.picture.is_some() { 0.45 } else { 1.0 };
        let opacity = ((0.08 + 0.92 * strength) * most * 100.0).round() / 100.0;
        let gap = if side > 8.0 { 0.6 } else { 0.0 };
        svg.add(format_args!(
            r#"<g><rect {} x="{}" y="{}" width="{}" height="{}" fill="currentColor" fill-opacity="{opacity}"/>"#,
            Shade(mark.colour),
            Px(x + gap / 2.0),
            Px(y + gap / 2.0),
            Px(side - gap),
            Px(side - gap)
        ));
        if self.picture.is_some() && side > 8.0 {
            let frame = (side / 14.0).min(2.5);
            let inside = side - gap - frame;
            svg.add(format_args!(
                r#"<rect {} x="{}" y="{}" width="{3}" height="{3}" fill="none" stroke="currentColor" stroke-width="{4}"/>"#,
                Shade(mark.colour),
                Px(x + (gap + frame) / 2.0),
                Px(y + (gap + frame) / 2.0),
                Px(inside),
                Px(frame)
            ));
        }
        let room = side - 3.0;
        let size = (room / width(&mark.word, 1.0).max(0.5)).min(side * 0.5).min(SMALL);
        if side >= NAMED && !mark.word.is_empty() && size >= 6.0 {
            let (x, y) = (Px(x + side / 2.0), Px(y + side / 2.0 + size * 0.35));
            let (size, word) = (Px(size), escape(&mark.word));
            for (colour, stroke) in [
                (
                    Colour::Paper,
                    r#" stroke="currentColor" stroke-width="2.5" stroke-linejoin="round" aria-hidden="true""#,
                ),
                (Colour::Ink, ""),
            ] {
                svg.add(format_args!(
                    r#"<text {colour} x="{x}" y="{y}" font-size="{size}" text-anchor="middle" fill="currentColor"{stroke}>{word}</text>"#
                ));
            }
        }
        svg.add(format_args!("{}</g>", hover(&mark.hover)));
    }

    fn legend(&self, svg: &mut Svg, used: f64) -> f64 {
        if self.legend.is_empty() {
            return used;
        }
        let (mut x, mut y) = (4.0, used + 13.0);
        for (colour, name) in &self.legend {
            let name = fit(name, SMALL, 200.0);
            let room = 34.0 + width(&name, SMALL);
            if x > 4.0 && x + room > WIDTH {
                (x, y) = (4.0, y + 17.0);
            }
            svg.add(format_args!(
                r#"<rect {} x="{}" y="{}" width="14" height="10" rx="1.5" fill="currentColor"/>"#,
                Shade(*colour),
                Px(x),
                Px(y - 9.0)
            ));
            svg.text(Colour::Ink, x + 20.0, y, Anchor::Start, &name);
            x += room;
        }
        y + 5.0
    }
}

/// One of any number of colours: first those of series, then hues that are far apart.
struct Shade(usize);

impl fmt::Display for Shade {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        if self.0 < Colour::SERIES {
            return Colour::Series(self.0).fmt(f);
        }
        let hue = (self.0 as f64 * 137.508) % 360.0;
        let light = [45, 62, 34][self.0 / Colour::SERIES % 3];
        write!(f, r#"color="hsl({hue:.0}, 62%, {light}%)""#)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(colour: usize) -> Option<PatchMark> {
        let (word, hover) = (colour.to_string(), format!("expert {colour}"));
        Some(PatchMark { colour, strength: 0.5, word, hover })
    }

    fn map(picture: Option<Thumbnail>) -> PatchMap {
        PatchMap {
            title: "block 3".to_owned(),
            grid: (2, 3),
            picture,
            patches: vec![mark(0), mark(1), None, mark(12), mark(0), mark(200), mark(3)],
            legend: vec![(0, "expert 0".to_owned())],
        }
    }

    #[test]
    fn patches_have_their_word_and_answer_the_pointer() {
        let svg = map(None).svg();
        assert_eq!(
            svg.matches("<title>expert").count(),
            5,
            "one is left out, one is beyond the grid"
        );
        assert_eq!(svg.matches(">12</text>").count(), 2, "the word and what is around it");
        assert!(svg.contains("hsl(") && !svg.contains("<image"));
    }

    #[test]
    fn a_picture_lies_below_and_is_seen_through() {
        let picture = Thumbnail::new(&[7; 3 * 6 * 4], 6, 4);
        let svg = map(Some(picture)).svg();
        assert!(svg.contains(r#"href="data:image/png;base64,"#));
        assert!(svg.contains(r#"fill-opacity="0.24""#), "{svg}");
    }

    #[test]
    fn many_patches_have_no_words_and_none_is_no_data() {
        let large = PatchMap { grid: (60, 60), patches: vec![mark(1); 3600], ..map(None) };
        assert!(!large.svg().contains(">1</text>"));
        assert!(PatchMap { patches: Vec::new(), ..map(None) }.svg().contains("no data"));
    }

    #[test]
    fn numbers_that_are_near_have_other_colours() {
        let all: Vec<String> = (0..40).map(|colour| Shade(colour).to_string()).collect();
        for (place, one) in all.iter().enumerate() {
            assert!(!all[..place].contains(one), "{place}: {one}");
        }
    }
}
