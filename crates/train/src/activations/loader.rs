//! Batches of activations in the order of the run.

use std::sync::mpsc::{Receiver, sync_channel};

use omma_base::{Resolution, Seed};
use omma_data::{
    Cursor, DataError, Order, Shared, TargetKind, Targets, TrainOptions, augment::Augmentation,
    transformed_mask,
};

use super::{Store, make::draw_seed};
use crate::{
    error::{Result, TrainError},
    recipe::Recipe,
    trainer::{Examples, Input},
};

/// Endless batches of activations: the order of images is that of [`omma_data::TrainLoader`], and in every
/// epoch another draw of each comes up, in turn.
pub(crate) struct ActivationLoader {
    batches: Receiver<Result<Examples>>,
}

impl ActivationLoader {
    /// Batches from the cursor on, read ahead on a thread of their own.
    ///
    /// - `data`: the images that the activations are of, which have the targets
    pub(crate) fn new(
        store: Store,
        recipe: &Recipe,
        data: &Shared,
        options: TrainOptions,
        (seed, cursor): (Seed, Cursor),
    ) -> Result<Self> {
        let TrainOptions { batch, prefetch, .. } = options;
        let mut order = Order::new(store.images().len(), batch, seed)?;
        let (send, batches) = sync_channel(prefetch.max(1));
        let targets = KeptTargets::new(&store, recipe, data, options)?;
        let make = move |number: u64, order: &mut Order| -> Result<Examples> {
            let draw = (order.epoch(number) % store.draws() as u64) as usize;
            let (places, first) = order.of(number);
            let places: Vec<usize> =
                (0..batch).map(|slot| places[(first + slot) % places.len()] as usize).collect();
            let [tokens, width] = store.shape();
            let mut values = Vec::with_capacity(batch * tokens * width);
            for place in &places {
                store.read(draw, *place, &mut values)?;
            }
            Ok(Examples {
                input: Input::Tokens { values, shape: [batch, tokens, width] },
                targets: targets.of(draw, &places)?,
            })
        };
        let read = move || {
            for number in cursor.numbers() {
                if send.send(make(number, &mut order)).is_err() {
                    break;
                }
            }
        };
        std::thread::Builder::new()
            .name("activations".to_owned())
            .spawn(read)
            .map_err(|_| DataError::WorkerLost)?;
        Ok(Self { batches })
    }

    pub(crate) fn next_batch(&mut self) -> Result<Examples> {
        self.batches.recv().map_err(|_| DataError::WorkerLost)?
    }
}

/// What is to be predicted of images whose activations are kept, by their places among these.
enum KeptTargets {
    Classes {
        labels: Vec<usize>,
        classes: usize,
        smoothing: f64,
    },
    /// Read again every time, and moved as the images of the draw were.
    Masks {
        images: Vec<u32>,
        data: Shared,
        resolution: Resolution,
        /// The augmentation, and where the choices of every draw come from.
        draws: Vec<Option<(Augmentation, Seed)>>,
    },
}

impl KeptTargets {
    fn new(store: &Store, recipe: &Recipe, data: &Shared, options: TrainOptions) -> Result<Self> {
        match options.targets {
            TargetKind::Classes { smoothing } => Ok(Self::Classes {
                labels: store.images().iter().map(|image| data.label(*image as usize)).collect(),
                classes: data.classes().len(),
                smoothing,
            }),
            TargetKind::Masks => {
                let drawn = |draw| draw_seed(recipe, draw).map(|seed| (options.augmentation, seed));
                Ok(Self::Masks {
                    images: store.images().to_vec(),
                    data: data.clone(),
                    resolution: options.pixels.resolution,
                    draws: (0..store.draws()).map(drawn).collect(),
                })
            }
            TargetKind::Texts => {
                let what = "activations are kept of images, not of texts (data.cache)".to_owned();
                Err(TrainError::Recipe { what })
            }
        }
    }

    fn of(&self, draw: usize, places: &[usize]) -> Result<Targets> {
        match self {
            Self::Classes { labels, classes, smoothing } => {
                let labels = places.iter().map(|place| labels[*place]).collect();
                Ok(Targets::of_classes(labels, *classes, *smoothing))
            }
            Self::Masks { images, data, resolution, draws } => {
                let mut pixels = Vec::with_capacity(places.len() * resolution.pixels());
                for place in places {
                    let image = images[*place] as usize;
                    pixels.extend(transformed_mask(data, image, *resolution, draws[draw])?);
                }
                Ok(Targets::Masks { pixels })
            }
        }
    }
}
