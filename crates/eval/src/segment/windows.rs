//! How a picture is cut for models that see images of one size.

use omma_base::Resolution;
use serde::{Deserialize, Serialize};

/// How a model looks at a picture that has another shape than its images. Either way the picture is scaled first,
/// until the model's image just fits into it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Windows {
    /// Through windows of the model's size that overlap by a third at least, as DINOv2's linear segmentation
    /// does (512 pixels every 341); where they overlap, logits are averaged.
    #[default]
    Sliding,
    /// All of it at once, with interpolated positions; sides are rounded to whole patches.
    Whole,
}

/// A picture of more windows than this along a side is squeezed.
const MOST_WINDOWS: usize = 16;

/// How one picture is looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Cut {
    /// What the picture is scaled to.
    pub(crate) scaled: Resolution,
    /// The size of its windows.
    pub(crate) window: Resolution,
    /// Where each begins: row and column.
    pub(crate) starts: Vec<(usize, usize)>,
}

impl Windows {
    /// - `model`: what the model sees
    /// - `patch`: pixels of a patch's side
    pub(crate) fn cut(self, picture: Resolution, model: Resolution, patch: usize) -> Cut {
        let ratio = |own: usize, of: usize| own as f64 / of.max(1) as f64;
        let scale = ratio(model.height, picture.height).max(ratio(model.width, picture.width));
        let side = |of: usize, window: usize| {
            let side = (of as f64 * scale).round() as usize;
            side.clamp(window, window * MOST_WINDOWS * 2 / 3)
        };
        let scaled =
            Resolution::new(side(picture.height, model.height), side(picture.width, model.width));
        match self {
            Self::Sliding => {
                let rows = starts(scaled.height, model.height);
                let columns = starts(scaled.width, model.width);
                let starts =
                    rows.iter().flat_map(|row| columns.iter().map(|column| (*row, *column)));
                Cut { scaled, window: model, starts: starts.collect() }
            }
            Self::Whole => {
                let patches = |side: usize| (side as f64 / patch as f64).round().max(1.0) as usize;
                let scaled =
                    Resolution::new(patches(scaled.height) * patch, patches(scaled.width) * patch);
                Cut { scaled, window: scaled, starts: vec![(0, 0)] }
            }
        }
    }
}

/// Where windows begin along a side: two thirds of their length apart, and the last at the end.
fn starts(side: usize, window: usize) -> Vec<usize> {
    let stride = (window * 2 / 3).max(1);
    let last = side - window;
    let mut starts: Vec<usize> = (0..last).step_by(stride).collect();
    starts.push(last);
    starts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(windows: Windows, picture: (usize, usize), model: (usize, usize)) -> Cut {
        let [picture, model] =
            [picture, model].map(|(height, width)| Resolution::new(height, width));
        windows.cut(picture, model, 4)
    }

    #[test]
    fn a_picture_of_the_models_shape_is_one_window() {
        for picture in [(32, 48), (64, 96), (8, 12)] {
            let found = cut(Windows::Sliding, picture, (32, 48));
            assert_eq!((found.scaled, found.starts), (Resolution::new(32, 48), vec![(0, 0)]));
            assert_eq!(cut(Windows::Whole, picture, (32, 48)).window, Resolution::new(32, 48));
        }
    }

    #[test]
    fn windows_cover_a_picture_and_overlap() {
        let found = cut(Windows::Sliding, (180, 240), (30, 30));
        assert_eq!(found.scaled, Resolution::new(30, 40));
        assert_eq!(found.starts, [(0, 0), (0, 10)]);
        let found = cut(Windows::Sliding, (100, 33), (33, 33));
        assert_eq!(
            found.starts.iter().map(|start| start.0).collect::<Vec<_>>(),
            [0, 22, 44, 66, 67]
        );
        for (height, width) in [(1, 1), (97, 31), (31, 97), (500, 3), (1, 100_000), (100_000, 7)] {
            for model in [(30, 30), (16, 48), (5, 1)] {
                let Cut { scaled, window, starts } = cut(Windows::Sliding, (height, width), model);
                let mut seen = vec![false; scaled.pixels()];
                for (row, column) in &starts {
                    for y in *row..row + window.height {
                        for x in *column..column + window.width {
                            seen[y * scaled.width + x] = true;
                        }
                    }
                }
                assert!(seen.iter().all(|seen| *seen), "{height} × {width} in {model:?}");
                assert!(starts.len() <= 2 * MOST_WINDOWS, "{} windows", starts.len());
            }
        }
    }

    #[test]
    fn a_whole_picture_is_made_of_whole_patches() {
        let found = cut(Windows::Whole, (180, 241), (32, 32));
        assert_eq!(
            (found.scaled, found.window),
            (Resolution::new(32, 44), Resolution::new(32, 44))
        );
        assert_eq!(found.starts, [(0, 0)]);
    }
}
