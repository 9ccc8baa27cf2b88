//! The sections of a page that show pictures. Each is left out where there are none.

use omma_base::Resolution;
use omma_report::Page;

use super::Draft;
use crate::{
    gallery::{CorruptionPictures, ExpertPictures, Gallery, LayerPictures, legend},
    protocols::{contrast::Contrast, segmentation::SegmentationTest},
};

/// Adds the pictures of predictions and of experts to a page of any kind.
pub fn add_pictures(page: Page, gallery: &Gallery) -> Page {
    experts(predictions(Draft::new(page), gallery), gallery).page
}

/// Adds how images and texts find each other, with examples, to a page.
///
/// - `resolution`: what the model sees of an image
pub fn add_contrast(page: Page, contrast: &Contrast, resolution: Resolution) -> Page {
    let gallery = Gallery::default().with_retrieval(contrast, resolution);
    retrieval(contrast.record.section(Draft::new(page)), &gallery).page
}

/// Single predictions.
pub(super) fn predictions(draft: Draft, gallery: &Gallery) -> Draft {
    let pictures = &gallery.predictions;
    if pictures.unsure.is_empty() {
        return draft;
    }
    let text = "Test images with what the model says of them: the class that it holds for likeliest, whether that \
                is right, and how sure of it the model is. Images are cut to what the model sees.";
    draft.add(|mut page| {
        page = page.section("Predictions").text(text);
        if !pictures.mistakes.is_empty() {
            page = page
                .subsection("Surest mistakes")
                .text("Wrong with the highest confidence. Labels that are wrong are found here, too.")
                .pictures(pictures.mistakes.clone());
        }
        page = page
            .subsection("Least sure")
            .text("The predictions of the lowest confidence, right and wrong.")
            .pictures(pictures.unsure.clone());
        if !pictures.confusions.is_empty() {
            page = page
                .subsection("What is taken for what")
                .text(
                    "The most frequent confusions, as “what it is → what it is taken for”, with the surest \
                     mistakes of each and images of the class that they are taken for.",
                )
                .picture_rows(pictures.confusions.clone());
        }
        if !pictures.classes.is_empty() {
            let which = match pictures.hardest_only {
                true => format!(
                    "The first test images of the {} classes with the largest error, the largest first.",
                    pictures.classes.len()
                ),
                false => "The first test images of every class.".to_owned(),
            };
            page = page
                .subsection("Class by class")
                .text(&which)
                .picture_rows(pictures.classes.clone());
        }
        page
    })
}

/// Adds how pixels are labelled, with examples, to a page.
pub fn add_segmentation(page: Page, found: &SegmentationTest, classes: &[String]) -> Page {
    let gallery = Gallery::default().with_segmentation(&found.shown);
    segmentation(found.record.section(Draft::new(page), classes), &gallery, classes).page
}

/// Classes of pixels, and the experts of patches.
pub(super) fn segmentation(draft: Draft, gallery: &Gallery, classes: &[String]) -> Draft {
    let rows = &gallery.segmentation;
    if rows.is_empty() {
        return draft;
    }
    let text = "Test images, evenly spread: what their pixels are, what they are taken for, where that is wrong (red; \
                grey does not count), and which expert took most of each patch, in the deepest layers with experts \
                (paper 003 Fig. 6).";
    draft.add(|page| {
        page.subsection("Images").text(text).picture_rows(rows.clone()).pictures(legend(classes))
    })
}

/// Texts and the images that they find.
pub(super) fn retrieval(draft: Draft, gallery: &Gallery) -> Draft {
    let pictures = &gallery.retrieval;
    let mut draft = draft;
    if !pictures.right.is_empty() {
        draft = draft.add(|page| {
            page.subsection("Found")
                .text("Texts whose own image comes first, with the images that follow it and their similarity.")
                .picture_rows(pictures.right.clone())
        });
    }
    if !pictures.wrong.is_empty() {
        draft = draft.add(|page| {
            page.subsection("Not found first")
                .text("Texts that other images come before, with the best of them; the own image is marked.")
                .picture_rows(pictures.wrong.clone())
        });
    }
    draft
}

/// The worst corruption, below what else there is on corrupted images.
pub(super) fn corruption(draft: Draft, gallery: &Gallery) -> Draft {
    let Some(CorruptionPictures { name, error, rows }) = &gallery.corruption else { return draft };
    let text = format!(
        "Under {name} the model is wrong most often: {:.0} % of the images of all severities. Test images as they \
         are and under it, with what the model says of each.",
        100.0 * error
    );
    draft.add(|page| {
        page.subsection(&format!("The worst: {name}")).text(&text).picture_rows(rows.clone())
    })
}

/// What experts take, layer by layer.
pub(crate) fn experts(draft: Draft, gallery: &Gallery) -> Draft {
    let ExpertPictures { images, every, layers } = &gallery.experts;
    if layers.is_empty() {
        return draft;
    }
    let which = match every {
        1 => format!("all {images} test images"),
        _ => format!("{images} test images, evenly spread over all"),
    };
    let grouped = layers.iter().any(|layer| layer.strips.len() > 1);
    let text = format!(
        "What the experts of each layer take, by {which}.{}",
        match grouped {
            true => " Experts are grouped by who chooses among them.",
            false => "",
        }
    );
    let draft = draft.add(|page| page.section("What experts take").text(&text));
    layers.iter().fold(draft, layer)
}

fn layer(draft: Draft, layer: &LayerPictures) -> Draft {
    let mut draft = draft.add(|page| page.subsection(&layer.title));
    if !layer.maps.is_empty() {
        draft = draft.figures(layer.maps.clone());
    }
    if layer.strips.iter().all(|group| group.cards.is_empty()) {
        return draft;
    }
    let what = match (layer.whole, layer.soft) {
        (true, _) => "The images that each expert takes with the largest gates",
        (false, true) => "The patches that weigh most in what each expert is given",
        (false, false) => "The patches that each expert takes with the largest gates",
    };
    let busiest = match layer.most {
        Some(most) => format!(" Of more experts, the {most} busiest are shown."),
        None => String::new(),
    };
    let text = format!("{what}, the largest first, at most one of an image.{busiest}");
    draft.add(|page| page.text(&text).strips(layer.strips.clone()))
}
