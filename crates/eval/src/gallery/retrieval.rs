//! Texts and the images that they find.

use omma_base::Resolution;
use omma_report::{PictureCard, PictureRow};

use super::thumbnails::thumbnail;
use crate::protocols::contrast::{Contrast, Query};

/// A row per text: its best images, its own among them or behind them.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct RetrievalPictures {
    /// Texts whose own image comes first.
    pub(crate) right: Vec<PictureRow>,
    /// Others.
    pub(crate) wrong: Vec<PictureRow>,
}

impl RetrievalPictures {
    /// - `resolution`: what the model sees of images
    pub(crate) fn of(found: &Contrast, resolution: Resolution) -> Self {
        let row = |query: &Query| row(query, found, resolution);
        let (right, wrong): (Vec<&Query>, Vec<&Query>) =
            found.queries.iter().partition(|query| query.rank == 0);
        Self {
            right: right.into_iter().map(row).collect(),
            wrong: wrong.into_iter().map(row).collect(),
        }
    }
}

fn row(query: &Query, found: &Contrast, resolution: Resolution) -> PictureRow {
    let own = query.best.iter().any(|(image, _)| *image == query.image);
    let shown = query.best.iter().map(|(image, similarity)| (*image, Some(*similarity)));
    let behind = (!own).then_some((query.image, None));
    let card = |(image, similarity): (usize, Option<f64>)| {
        // An image that cannot be read any more is left out.
        let picture = found.images.data.get(image).ok()?.picture;
        let good = image == query.image;
        let place = query.rank + 1;
        Some(PictureCard {
            picture: thumbnail(&picture, resolution),
            alt: match good {
                true => format!("the image of “{}”", query.text),
                false => format!("another image, found by “{}”", query.text),
            },
            good: Some(good),
            caption: if good { format!("its own, number {place}") } else { String::new() },
            detail: similarity.map(|value| format!("{value:.3}")).unwrap_or_default(),
        })
    };
    PictureRow {
        title: query.text.clone(),
        detail: match query.rank {
            0 => "its image comes first".to_owned(),
            1 => "1 image comes before its own".to_owned(),
            rank => format!("{rank} images come before its own"),
        },
        cards: shown.chain(behind).filter_map(card).collect(),
    }
}
