//! Images with what is known of their pixels, what is predicted of them, where both differ, and which experts took
//! their patches (paper 003 Fig. 6).

use omma_base::Resolution;
use omma_data::{IGNORED, MaskedPicture, Picture};
use omma_report::{PictureCard, PictureRow};

use super::thumbnails::thumbnail;
use crate::segment::{ExpertMap, colour, overlaid, painted};

/// One picture with all that there is to see of it.
#[derive(Debug, Clone)]
pub(crate) struct Shown {
    name: String,
    picture: Picture,
    mask: Vec<u8>,
    predicted: Vec<u8>,
    experts: Vec<ExpertMap>,
}

/// Layers whose experts are shown, the deepest first.
const LAYERS: usize = 3;

impl Shown {
    pub(crate) fn new(
        name: String,
        of: &MaskedPicture,
        predicted: Vec<u8>,
        experts: Vec<ExpertMap>,
    ) -> Self {
        let (picture, mask) = (of.picture.clone(), of.mask.clone());
        Self { name, picture, mask, predicted, experts }
    }

    /// Image, truth, prediction, disagreement, and the experts of the deepest layers.
    pub(crate) fn row(&self) -> PictureRow {
        let size = self.picture.resolution();
        let counted: Vec<bool> = self.mask.iter().map(|class| *class != IGNORED).collect();
        let wrong: Vec<bool> =
            self.mask.iter().zip(&self.predicted).map(|(own, other)| own != other).collect();
        let share = {
            let all = counted.iter().filter(|counted| **counted).count().max(1);
            let wrong = wrong.iter().zip(&counted).filter(|(wrong, counted)| **wrong && **counted);
            wrong.count() as f64 / all as f64
        };
        let disagreement = Picture {
            pixels: (wrong.iter().zip(&counted))
                .flat_map(|(wrong, counted)| match (counted, wrong) {
                    (false, _) => [128; 3],
                    (true, false) => [235; 3],
                    (true, true) => [200, 30, 40],
                })
                .collect(),
            ..self.picture
        };
        let card = |picture: &Picture, caption: String, alt: &str| PictureCard {
            picture: thumbnail(picture, size),
            alt: format!("{alt} of {}", self.name),
            good: None,
            caption,
            detail: String::new(),
        };
        let mut cards = vec![
            card(&self.picture, "image".to_owned(), "the image"),
            card(&painted(&self.mask, size.width), "truth".to_owned(), "the classes"),
            card(
                &painted(&self.predicted, size.width),
                "prediction".to_owned(),
                "the predicted classes",
            ),
            card(&disagreement, "disagreement".to_owned(), "where both differ"),
        ];
        for map in self.experts.iter().rev().take(LAYERS) {
            let caption = format!("experts of block {}", map.block);
            cards.push(card(&self.allocation(map), caption, "the experts"));
        }
        PictureRow {
            title: self.name.clone(),
            detail: format!("{:.1} % of the pixels are right", 100.0 * (1.0 - share)),
            cards,
        }
    }

    /// The picture under the colours of the experts that took its patches.
    fn allocation(&self, map: &ExpertMap) -> Picture {
        let scaled = self.picture.resized(map.resolution);
        let colours = map.experts.iter().map(|expert| expert.map(|one| colour(usize::from(one))));
        overlaid(&scaled, colours)
    }
}

/// Classes with their colours.
pub(crate) fn legend(classes: &[String]) -> Vec<PictureCard> {
    let side = Resolution::square(14);
    let card = |(class, name): (usize, &String)| PictureCard {
        picture: thumbnail(&Picture::filled(side.width, side.height, colour(class)), side),
        alt: format!("the colour of {name}"),
        good: None,
        caption: name.clone(),
        detail: String::new(),
    };
    classes.iter().enumerate().map(card).collect()
}
