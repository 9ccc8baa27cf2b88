//! What the rows of a layer's token matrix are: whose token, of which modality, in which place.

use omma_model::{IMAGES, TEXTS};
use serde::{Deserialize, Serialize};

/// What a row is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RowPlace {
    /// 0 images, 1 texts.
    pub(super) modality: u8,
    /// The ensemble member whose copy it is.
    pub(super) member: u16,
    /// Which image of the batch, or which text.
    pub(super) sequence: u32,
    /// Place in its image or text.
    pub(super) token: u32,
}

/// The images and texts of a batch that pass an encoder together.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(super) struct BatchShape {
    /// Images, and tokens of each.
    pub(super) images: (usize, usize),
    /// Texts, and tokens of each.
    pub(super) texts: (usize, usize),
    /// `[texts, tokens]`: places that hold no token; empty where all do.
    pub(super) absent: Vec<bool>,
}

impl BatchShape {
    pub(super) fn of_images(images: usize, tokens: usize) -> Self {
        Self { images: (images, tokens), ..Self::default() }
    }

    /// Rows without copies.
    fn rows(&self) -> usize {
        let absent = self.absent.iter().filter(|absent| **absent).count();
        self.images.0 * self.images.1 + self.texts.0 * self.texts.1 - absent
    }

    /// What every row is: images in front of texts, the copies of one beside each other.
    ///
    /// - `rows`: as many as the layer has, which says how many copies there are
    pub(super) fn places(&self, rows: usize) -> Vec<RowPlace> {
        let members = (rows / self.rows().max(1)).max(1);
        let mut places = Vec::with_capacity(rows);
        for (modality, (count, tokens)) in [(IMAGES, self.images), (TEXTS, self.texts)] {
            for sequence in 0..count {
                for (member, token) in
                    (0..members).flat_map(|member| (0..tokens).map(move |token| (member, token)))
                {
                    let place = sequence * tokens + token;
                    if modality == TEXTS && self.absent.get(place) == Some(&true) {
                        continue;
                    }
                    places.push(RowPlace {
                        modality: modality as u8,
                        member: member as u16,
                        sequence: sequence as u32,
                        token: token as u32,
                    });
                }
            }
        }
        places
    }
}

#[cfg(test)]
mod tests {
    use omma_routing::{Layout, Sequences};

    use super::*;

    #[test]
    fn rows_lie_as_a_layout_says() {
        let kind = |count, tokens, modality| Sequences { count, tokens, modality: Some(modality) };
        let layout = Layout::of(vec![kind(3, 2, IMAGES), kind(2, 3, TEXTS)]).tiled(2);
        let shape = BatchShape { images: (3, 2), texts: (2, 3), absent: Vec::new() };
        let places = shape.places(layout.rows());
        assert_eq!(places.len(), layout.rows());
        let modalities: Vec<usize> = places.iter().map(|place| place.modality.into()).collect();
        assert_eq!(Some(modalities), layout.modalities());
        for (row, place) in places.iter().enumerate() {
            assert_eq!(usize::from(place.member), layout.member(row), "{row}");
        }
        let last = RowPlace { modality: 1, member: 1, sequence: 1, token: 2 };
        assert_eq!(places.last(), Some(&last));
    }

    #[test]
    fn places_that_hold_no_token_have_no_row() {
        let absent = vec![false, false, true, false, true, true];
        let shape = BatchShape { images: (1, 2), texts: (2, 3), absent: absent.clone() };
        let kind = |count, tokens, modality| Sequences { count, tokens, modality: Some(modality) };
        let layout = Layout::of(vec![kind(1, 2, IMAGES), kind(2, 3, TEXTS)]);
        let (rows, _) = layout.without([vec![false; 2], absent].concat()).present().unwrap();
        let places = shape.places(rows.len());
        let texts: Vec<(u32, u32)> =
            places[2..].iter().map(|place| (place.sequence, place.token)).collect();
        assert_eq!(texts, [(0, 0), (0, 1), (1, 0)]);
        assert_eq!(places.len(), rows.len());
    }
}
