//! The corruption that does most harm, as pictures.

use omma_base::{Resolution, Seed};
use omma_data::{
    Picture, Selection, Shared,
    corrupt::{Corruption, SEVERITIES},
};
use omma_report::{PictureCard, PictureRow};

use super::{predictions::sure, thumbnails::thumbnail};
use crate::{
    error::Result,
    predict::{Guess, predict},
    protocols::shift::{Corrupted, Shift, ShiftProtocol, words},
    stream::Images,
    system::System,
};

/// Images that are tried.
const CANDIDATES: usize = 8;
/// Images that are shown.
const SHOWN: usize = 3;

/// Images as they are and under one corruption.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct CorruptionPictures {
    /// In words.
    pub(crate) name: String,
    /// The mean over severities.
    pub(crate) error: f64,
    /// One for every image.
    pub(crate) rows: Vec<PictureRow>,
}

/// One image in all its forms: the severity, 0 for the image as it is, and what the model sees.
struct Candidate {
    label: usize,
    forms: Vec<(usize, Picture)>,
}

/// What a system says of a few images under the corruption of the largest error. Images come first that are
/// recognised at first and not in the end.
pub(crate) fn worst_corruption(
    system: &System,
    test: &Images,
    protocol: &ShiftProtocol,
    shift: &Shift,
) -> Result<Option<CorruptionPictures>> {
    let by_error = shift.corruptions.iter().max_by(|a, b| {
        let error = |record: &crate::ShiftRecord| record.overall.summary.error;
        error(a.1).total_cmp(&error(b.1))
    });
    let Some((name, record)) = by_error else { return Ok(None) };
    let resolution = system.pixels().resolution;
    let candidates = match &protocol.corrupted {
        Corrupted::Made { seed } => {
            let data = Selection::spread(&test.data, protocol.samples.max(1));
            let seed = Seed::new(*seed).named("shift");
            let Some(corruption) = Corruption::ALL.into_iter().find(|one| one.name() == name)
            else {
                return Ok(None);
            };
            made(&data, corruption, seed, resolution)
        }
        Corrupted::Published { set, .. } => {
            let severities = (1..=SEVERITIES).map(|severity| set.images(name, severity));
            published(&severities.collect::<omma_data::Result<Vec<_>>>()?, &test.data, resolution)
        }
    };
    let names = test.data.classes();
    let mut rows = Vec::new();
    for candidate in candidates {
        let pictures: Vec<Picture> =
            candidate.forms.iter().map(|(_, picture)| picture.clone()).collect();
        let guesses = predict(system, &pictures, 0, names, 1)?;
        let guesses: Vec<Guess> = guesses
            .into_iter()
            .filter_map(|prediction| prediction.top.into_iter().next())
            .collect();
        let label = names.get(candidate.label).cloned().unwrap_or_default();
        let right = |guess: Option<&Guess>| guess.is_some_and(|guess| guess.class == label);
        let telling = (right(guesses.first()), !right(guesses.last()));
        rows.push((telling, row(&candidate, &guesses, label, resolution)));
    }
    // The sort is stable: of equally telling images the first.
    rows.sort_by_key(|(telling, _)| std::cmp::Reverse(*telling));
    let rows: Vec<PictureRow> = rows.into_iter().take(SHOWN).map(|(_, row)| row).collect();
    let error = record.overall.summary.error;
    Ok((!rows.is_empty()).then(|| CorruptionPictures { name: words(name), error, rows }))
}

fn row(
    candidate: &Candidate,
    guesses: &[Guess],
    label: String,
    resolution: Resolution,
) -> PictureRow {
    let cards = candidate.forms.iter().zip(guesses).map(|((severity, picture), guess)| {
        let form = match severity {
            0 => "as it is".to_owned(),
            severity => format!("severity {severity}"),
        };
        PictureCard {
            picture: thumbnail(picture, resolution),
            alt: format!("{label}, {form}, taken for {}", guess.class),
            caption: guess.class.clone(),
            good: Some(guess.class == label),
            detail: format!("{form}\n{}", sure(guess.probability)),
        }
    });
    PictureRow { detail: String::new(), cards: cards.collect(), title: label }
}

/// Places of the candidates in data of this length, evenly spread.
fn places(length: usize) -> impl Iterator<Item = usize> {
    let count = length.min(CANDIDATES);
    (0..count).map(move |place| place * length / count)
}

/// The same as the protocol makes of these images. What cannot be read is left out.
fn made(
    data: &Shared,
    corruption: Corruption,
    seed: Seed,
    resolution: Resolution,
) -> Vec<Candidate> {
    let candidate = |index: usize| {
        let sample = data.get(index).ok()?;
        let clean = sample.picture.centre_crop(resolution, 1.0);
        let form =
            |severity| (severity, corruption.apply(&clean, severity, seed.numbered(index as u64)));
        Some(Candidate { label: sample.label, forms: (0..=SEVERITIES).map(form).collect() })
    };
    places(data.len()).filter_map(candidate).collect()
}

/// - `severities`: the published images of each
/// - `clean`: where the images as they are come from, if these are the same in the same order
fn published(severities: &[Shared], clean: &Shared, resolution: Resolution) -> Vec<Candidate> {
    let Some(first) = severities.first() else { return Vec::new() };
    let candidate = |index: usize| {
        let label = first.label(index);
        let same = clean.len() == first.len() && clean.label(index) == label;
        let as_it_is = same.then_some((0, clean));
        let forms = as_it_is.into_iter().chain((1..).zip(severities));
        let form = |(severity, data): (usize, &Shared)| {
            Some((severity, data.get(index).ok()?.picture.centre_crop(resolution, 1.0)))
        };
        Some(Candidate { label, forms: forms.map(form).collect::<Option<_>>()? })
    };
    places(first.len()).filter_map(candidate).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use omma_data::{
        Split,
        world::{Variant, World},
    };

    use super::*;

    fn world(seed: u64, images: usize) -> Shared {
        let side = Resolution::square(16);
        Arc::new(World::new(seed, side, images, Split::Test, Variant::Usual))
    }

    #[test]
    fn an_image_is_shown_clean_and_as_the_protocol_corrupts_it() {
        let (data, seed) = (world(1, 20), Seed::new(0).named("shift"));
        let side = Resolution::square(16);
        let candidates = made(&data, Corruption::Fog, seed, side);
        assert_eq!(candidates.len(), CANDIDATES);
        let third = &candidates[2];
        let (index, clean) = (2 * 20 / 8, data.get(2 * 20 / 8).unwrap().picture);
        assert_eq!(third.forms[0], (0, clean.clone()));
        let corrupted = Corruption::Fog.apply(&clean, 4, seed.numbered(index as u64));
        assert_eq!(third.forms[4], (4, corrupted));
        assert_eq!(made(&world(1, 3), Corruption::Fog, seed, side).len(), 3);
        assert_eq!(made(&world(1, 0), Corruption::Fog, seed, side).len(), 0);
    }

    #[test]
    fn published_images_are_beside_those_that_they_were_made_of_if_these_are_known() {
        let severities: Vec<Shared> = (0..5).map(|_| world(1, 10)).collect();
        let side = Resolution::square(16);
        let forms = |clean: &Shared| published(&severities, clean, side)[0].forms.len();
        assert_eq!(forms(&world(1, 10)), 6);
        assert_eq!(forms(&world(1, 9)), 5, "not the same images");
    }
}
