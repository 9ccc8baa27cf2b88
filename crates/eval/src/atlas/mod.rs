//! The atlas of a model's routes: where the tokens of a data set go, and what that says of the experts (papers 003 §4.2,
//! 002 App. E.4, F, G).
//!
//! | file | question |
//! |---|---|
//! | `subject.rs`, `rows.rs` | what passes the model, and what are the rows of its layers? |
//! | `labels.rs` | which class does a token belong to? |
//! | `tally.rs`, `layer.rs`, `parts.rs`, `gates.rs` | one pass: who went where, how sure, who was first? |
//! | `information.rs`, `permutation.rs` | do experts know of classes, more than by chance? |
//! | `combinations.rs`, `flow.rs`, `coverage.rs`, `words.rs` | which ways are used, how many experts are needed, what do they read? |
//! | `record.rs` | what is in `routes.json`? |
//! | `advice.rs` | what follows? |
//! | `pictures.rs`, `page.rs`, `figures.rs` | what is there to see? |
//! | `look.rs`, `look_page.rs` | where do the tokens of one picture or text go? |
//!
//! Memory is bounded: sums by class, expert and place, the strongest patches, a sample of images for the permutation
//! tests, and no more combinations and words than are told apart; nothing else grows with the data.

mod advice;
mod combinations;
mod coverage;
mod figures;
mod flow;
mod gates;
mod information;
mod labels;
mod layer;
mod look;
mod look_page;
mod page;
mod parts;
mod permutation;
mod pictures;
mod record;
mod rows;
mod subject;
mod tally;
mod words;

use std::sync::Arc;

use omma_base::Seed;
use omma_data::{Batch, Dataset, Pixels, Selection, TargetKind};
use omma_ranks::World;
use rand::seq::SliceRandom;

pub use self::{
    advice::{Advice, AdvisedCommand, BlockAdvice, COVERAGE, LEAST_EFFECT, LEVEL, Verdict},
    combinations::Degree,
    coverage::CoverageStep,
    flow::Flow,
    gates::{ModalityRoutes, QueueBin},
    information::Information,
    look::{Look, LookBlock, LookInput, LookedAt, TokenRoute, look},
    look_page::look_page,
    page::routes_page,
    permutation::PermutationTest,
    pictures::RoutePictures,
    record::{BlockRoutes, ClassRoutes, ImageUse, ModelRoutes, Routes},
    subject::RoutedModel,
    words::{ExpertWords, SureWord, WordKind},
};
use self::{
    labels::TokenLabels,
    layer::BatchFacts,
    record::RecordOptions,
    subject::{Routed, Texts},
    tally::ModelTally,
    words::Pieces,
};
use crate::{
    error::Result,
    reader::Unlabelled,
    stream::{Images, Watcher},
    together::Maker,
};

/// Whose classes tokens have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LabelSource {
    /// Those of their images, if the data has several classes.
    Images,
    /// Those of most pixels of their patches (paper 003 §5.2), by the data's masks.
    Pixels,
}

/// How an atlas is made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AtlasProtocol {
    /// Whose classes tokens have.
    pub labels: LabelSource,
    /// How a command names the data.
    pub data: String,
    /// Images per forward pass.
    pub batch: usize,
    /// Permutations of a test.
    pub permutations: usize,
    /// Where the order of the images and the permutations come from.
    pub seed: u64,
}

/// Where the tokens of some images go in one model, in one pass, and the pictures that a record does not hold.
pub fn routes(
    subject: &RoutedModel,
    images: &Images,
    protocol: &AtlasProtocol,
    watcher: &mut dyn Watcher,
) -> Result<(ModelRoutes, RoutePictures)> {
    subject.check()?;
    let seed = Seed::new(protocol.seed).named("atlas");
    let (targets, classes) = match protocol.labels {
        LabelSource::Images => (TargetKind::default(), images.data.classes().len()),
        LabelSource::Pixels => {
            (TargetKind::Masks, images.data.pixel_classes().map_or(0, <[String]>::len))
        }
    };
    let classes = if classes > 1 { classes } else { 0 };
    let images = &shuffled(images, classes, seed);
    let with_texts =
        subject.tokenizer.is_some() && subject.model.reads() && images.data.has_captions();
    let pieces = subject.tokenizer.filter(|_| with_texts).map(Pieces::of);
    let mut tally = ModelTally::new(subject, classes, targets == TargetKind::Masks);
    watcher.begins(&format!("routes of {}", subject.name), images.data.len());
    let data = with_texts.then_some(images.data.as_ref());
    let looking = Looking { subject, targets, captions: data, pieces: pieces.as_ref() };
    images.made(&looking, protocol.batch, watcher, |batch, routed| {
        let labels = TokenLabels::of(batch, &subject.model.config().image, classes);
        let Texts { ids, kinds, length } = looking.texts(batch)?.unwrap_or_default();
        let facts = BatchFacts {
            indices: &batch.indices,
            labels: &labels,
            ids: &ids,
            kinds: &kinds,
            text_length: length,
        };
        tally.add(&routed, &facts);
        Ok(())
    })?;
    watcher.begins("whether that is more than chance", 0);
    let options = RecordOptions { permutations: protocol.permutations, seed };
    let notes = notes(subject, classes, with_texts, &images.name);
    let mut routes = tally.record(subject, pieces.as_ref(), notes, &options)?;
    routes.advice = Advice::of(&routes, &protocol.data);
    let pictures = RoutePictures::of(&tally, subject, images);
    Ok((routes, pictures))
}

/// A model that says where the tokens of batches go.
struct Looking<'a> {
    subject: &'a RoutedModel<'a>,
    targets: TargetKind,
    /// Where captions come from, if images are looked at with them.
    captions: Option<&'a dyn Dataset>,
    pieces: Option<&'a Pieces>,
}

impl Looking<'_> {
    fn texts(&self, batch: &Batch) -> Result<Option<Texts>> {
        let Some(data) = self.captions else { return Ok(None) };
        Ok(self.subject.texts(&self.subject.captions(batch, data)?, self.pieces))
    }
}

impl Maker for Looking<'_> {
    type Made = Routed;

    fn pixels(&self) -> Pixels {
        self.subject.pixels()
    }

    fn targets(&self) -> TargetKind {
        self.targets
    }

    fn world(&self) -> Option<&World> {
        Some(&self.subject.world).filter(|world| !world.is_alone())
    }

    fn make(&self, batch: &mut Batch) -> Result<Routed> {
        let texts = self.texts(batch)?;
        self.subject.routed(batch, texts.as_ref())
    }
}

/// The images in an order that is drawn, as they come in training: data that is sorted by class would fill batches with
/// one class, which experts then have no room for.
fn shuffled(images: &Images, classes: usize, seed: Seed) -> Images {
    let mut order: Vec<usize> = (0..images.data.len()).collect();
    order.shuffle(&mut seed.named("order").rng());
    let data = images.data.clone();
    let data = match classes {
        // What has no classes cannot be wrong about them.
        0 => Arc::new(Unlabelled::new(data)),
        _ => data,
    };
    Images { data: Arc::new(Selection::new(data, order)), ..images.clone() }
}

/// What is not there, and why.
fn notes(subject: &RoutedModel, classes: usize, with_texts: bool, data: &str) -> Vec<String> {
    let mut notes = Vec::new();
    if classes == 0 {
        notes.push(format!(
            "{data} has no classes, so that there is nothing to say on classes and experts"
        ));
    }
    if subject.model.reads() {
        notes.push(match (with_texts, subject.tokenizer.is_some()) {
            (true, _) => "every image is routed together with its first caption".to_owned(),
            (false, true) => format!("{data} has no captions: images are routed without texts"),
            (false, false) => {
                "there is no tokenizer beside the model: images are routed without texts".to_owned()
            }
        });
    }
    notes
}
