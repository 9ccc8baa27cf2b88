//! Which class a token belongs to: that of its image, or that of most pixels of its patch.

use omma_data::{Batch, Targets};
use omma_model::ImageConfig;

/// A token without a class: one that is no patch, or whose pixels mostly have none.
pub(super) const UNLABELLED: u32 = u32::MAX;

/// The classes of a batch's tokens.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum TokenLabels {
    /// Nobody knows.
    None,
    /// `[B]`: all tokens of an image have its class (paper 003 Fig. 4).
    Images(Vec<u32>),
    /// `[B, T]`: every patch has the class of most of its pixels (Fig. 5); tokens in front of the patches have
    /// none.
    Tokens(Vec<u32>),
}

impl TokenLabels {
    /// Of a batch whose targets are the classes of images, or of pixels.
    ///
    /// - `classes`: how many there are; with less than two there is nothing to tell apart
    pub(super) fn of(batch: &Batch, image: &ImageConfig, classes: usize) -> Self {
        if classes < 2 {
            return Self::None;
        }
        match &batch.targets {
            Targets::Classes { labels, .. } if labels.len() == batch.len() => {
                Self::Images(labels.iter().map(|label| *label as u32).collect())
            }
            Targets::Masks { pixels } => Self::Tokens(patches(pixels, batch, image, classes)),
            _ => Self::None,
        }
    }
}

/// - `pixels`: `[B, H, W]`
/// - returns: `[B, T]`
fn patches(pixels: &[u8], batch: &Batch, image: &ImageConfig, classes: usize) -> Vec<u32> {
    let resolution = batch.resolution;
    let (rows, columns) = image.grid(resolution);
    let (side, prefix) = (image.patch, image.prefix_tokens());
    let mut labels = Vec::with_capacity(batch.len() * (prefix + rows * columns));
    let mut counts = vec![0_u32; classes];
    for picture in pixels.chunks_exact(resolution.pixels().max(1)) {
        labels.extend(std::iter::repeat_n(UNLABELLED, prefix));
        for (row, column) in (0..rows).flat_map(|row| (0..columns).map(move |column| (row, column)))
        {
            counts.fill(0);
            for y in row * side..(row + 1) * side {
                let first = y * resolution.width + column * side;
                for pixel in &picture[first..first + side] {
                    // Pixels that are ignored have a number that no class has.
                    if let Some(count) = counts.get_mut(usize::from(*pixel)) {
                        *count += 1;
                    }
                }
            }
            labels.push(majority(&counts));
        }
    }
    labels
}

/// The class with most pixels, the lower one of equals.
fn majority(counts: &[u32]) -> u32 {
    let most = counts.iter().copied().max().filter(|most| *most > 0);
    let place = most.and_then(|most| counts.iter().position(|count| *count == most));
    place.map_or(UNLABELLED, |class| class as u32)
}

#[cfg(test)]
mod tests {
    use omma_base::Resolution;
    use omma_data::IGNORED;

    use super::*;

    fn batch(targets: Targets, images: usize) -> Batch {
        let resolution = Resolution::new(4, 6);
        Batch { pixels: Vec::new(), targets, indices: (0..images).collect(), resolution }
    }

    fn image() -> ImageConfig {
        ImageConfig { resolution: Resolution::new(4, 6), patch: 2, ..ImageConfig::default() }
    }

    #[test]
    fn a_patch_has_the_class_of_most_of_its_pixels() {
        #[rustfmt::skip]
        let picture = [
            1, 1,  2, 0,  0, 0,
            1, 3,  2, 0,  1, 1,
            IGNORED, IGNORED,  4, IGNORED,  2, 2,
            IGNORED, IGNORED,  4, IGNORED,  2, 2,
        ];
        let pixels = [picture, [0; 24]].concat();
        let labels = TokenLabels::of(&batch(Targets::Masks { pixels }, 2), &image(), 5);
        let first = [UNLABELLED, 1, 0, 0, UNLABELLED, 4, 2];
        let second = [UNLABELLED, 0, 0, 0, 0, 0, 0];
        assert_eq!(labels, TokenLabels::Tokens([first, second].concat()));
    }

    #[test]
    fn images_give_their_class_to_all_tokens_where_there_are_several_classes() {
        let targets = || Targets::of_classes(vec![2, 0], 3, 0.0);
        let labels = |classes| TokenLabels::of(&batch(targets(), 2), &image(), classes);
        assert_eq!(labels(3), TokenLabels::Images(vec![2, 0]));
        assert_eq!(labels(1), TokenLabels::None);
        let texts = batch(Targets::Texts(vec!["a".to_owned()]), 1);
        assert_eq!(TokenLabels::of(&texts, &image(), 3), TokenLabels::None);
    }
}
