//! Segmentation: what does every pixel belong to (paper 003 §5)?

use burn::tensor::Device;
use omma_base::{Resolution, Seed, transfer};
use omma_data::{IGNORED, Selection, Shared, TargetKind, Targets, augment::Mixing};
use omma_eval::{
    Binning, Images, SegmentationProtocol, System, Windows, metrics::largest, nearby_baseline,
    report::add_segmentation, segmentation,
};
use omma_model::{Mode, ModelConfig, VisionTransformer, pixel_cross_entropy, upsampled};

use super::{Ear, Fact, Forward, Judging, Measure, Task, TaskScores, Tested, Unit};
use crate::{
    error::Result,
    recipe::{Recipe, recipe_error},
    resolved::Splits,
    trainer::{Examples, Learner},
};

const MEAN_IOU: Measure = Measure { key: "mean_iou", title: "mean IoU", unit: Unit::Share };
const ACCURACY: Measure = Measure { key: "accuracy", title: "pixels right", unit: Unit::Share };
const NLL: Measure = Measure { key: "nll", title: "NLL", unit: Unit::Nats };
/// The first decides.
pub(super) const MEASURES: &[Measure] = &[MEAN_IOU, ACCURACY, NLL];

/// Held-out images that are looked at, at most.
const JUDGED: usize = 500;

/// One label per pixel.
pub(super) struct Segmentation {
    data: String,
    classes: Vec<String>,
    compares: bool,
    /// What the model sees.
    resolution: Resolution,
    /// Rows and columns of its patches.
    grid: (usize, usize),
}

impl Segmentation {
    /// Fails on data without masks, and where the test images have other classes than the training images.
    pub(super) fn new(recipe: &Recipe, data: &Splits) -> Result<Self> {
        let name = &recipe.data.name;
        let classes = |part: &Shared, which: &str| {
            part.pixel_classes().map(<[String]>::to_vec).ok_or_else(|| {
                recipe_error(format!(
                    "{name}: the {which} images have no masks, and segmentation learns from masks: folders of \
                     images and of masks with the same names, such as images/ and masks/, or train/ and \
                     trainannot/"
                ))
            })
        };
        let (train, test) = (classes(&data.train, "training")?, classes(&data.test, "test")?);
        if train != test {
            return Err(recipe_error(format!(
                "{name}: the pixels of training images are of classes {train:?}, those of test images of {test:?}"
            )));
        }
        if recipe.train.label_smoothing > 0.0 {
            return Err(recipe_error(
                "train.label_smoothing is of classes of images, and segmentation is of pixels"
                    .to_owned(),
            ));
        }
        if recipe.mixing != Mixing::default() {
            return Err(recipe_error(
                "mixing.* mixes images of different classes, and segmentation is of pixels"
                    .to_owned(),
            ));
        }
        let image = &recipe.model.image;
        Ok(Self {
            data: name.clone(),
            classes: train,
            compares: recipe.train.linear_baseline,
            resolution: image.resolution,
            grid: image.grid(image.resolution),
        })
    }

    fn system(
        &self,
        model: &VisionTransformer,
        at: Judging,
    ) -> Result<(System, SegmentationProtocol)> {
        let system = System::new(vec![("the model".to_owned(), model.clone())], at.device)?;
        let (windows, binning) = (Windows::default(), Binning::default());
        Ok((system, SegmentationProtocol { windows, binning, batch: at.batch }))
    }
}

/// The class of every pixel column by column, as [`upsampled`] has them, of every image so many times.
///
/// - `pixels`: `[B, H, W]`
fn by_columns(
    pixels: &[u8],
    Resolution { height, width }: Resolution,
    times: usize,
) -> impl Iterator<Item = Option<usize>> {
    (0..times)
        .flat_map(move |_| {
            pixels.chunks_exact(height * width).flat_map(move |image| {
                (0..width).flat_map(move |x| (0..height).map(move |y| image[y * width + x]))
            })
        })
        .map(|class| (class != IGNORED).then_some(usize::from(class)))
}

impl Task for Segmentation {
    fn fitted(&self, model: ModelConfig) -> ModelConfig {
        model.into_segmenter(self.classes.len())
    }

    fn targets(&self) -> TargetKind {
        TargetKind::Masks
    }

    fn measures(&self) -> &'static [Measure] {
        MEASURES
    }

    /// That of equal probabilities for all classes.
    fn chance(&self) -> f64 {
        (self.classes.len() as f64).ln().max(0.1)
    }

    fn about_learning(&self) -> Option<String> {
        Some(
            "In training, pixels right are counted at the middles of patches, before interpolation: a hint while \
             the model learns, not a result."
                .to_owned(),
        )
    }

    fn conflict(&self, trained: &ModelConfig) -> Option<String> {
        let (then, now) = (trained.classes(), self.classes.len());
        (then != now).then(|| {
            format!(
                "pixels of {} are of {now} classes now, and the run was trained to tell {then} apart; put the \
                 masks back, or start a new run with --init",
                self.data
            )
        })
    }

    fn class_names(&self) -> Option<&[String]> {
        Some(&self.classes)
    }

    /// Cross-entropy of the pixels that count, after interpolation, the mean over members. The mean over pixels is
    /// that of a part of the batch, where it is computed in parts.
    fn forward(
        &self,
        learner: &Learner,
        examples: Examples,
        seed: Seed,
        device: &Device,
    ) -> Result<Forward> {
        let Targets::Masks { pixels } = examples.targets else {
            return Err(recipe_error("segmentation learns from masks".to_owned()));
        };
        let output = learner.forward(examples.input.tensor(device), &Mode::Training(seed))?;
        let logits = output.predictions.logits.clone();
        let [members, rows, classes] = logits.dims();
        let images = pixels.len() / self.resolution.pixels();
        let right = {
            let first = logits.clone().detach().slice([0..1, 0..rows]);
            let first: Vec<f32> = first.try_into_vec_as().expect("logits are floats");
            transfer::fetched(&first);
            self.right_at_middles(&first, classes, &pixels)
        };
        let logits = logits.reshape([members * images, rows / images, classes]);
        let logits = upsampled(logits, self.grid, self.resolution);
        let loss = pixel_cross_entropy(logits, by_columns(&pixels, self.resolution, members));
        Ok(Forward {
            examples: images,
            loss,
            value: None,
            auxiliary_loss: output.auxiliary_loss(),
            scores: TaskScores::from_iter([(ACCURACY.key, right * images as f64)]),
            routings: output.routings,
        })
    }

    fn judge(&self, model: &VisionTransformer, images: &Shared, at: Judging) -> Result<TaskScores> {
        let (system, protocol) = self.system(model, at)?;
        let images = Images::new(&self.data, Selection::spread(images, JUDGED));
        let found = segmentation(&system, &images, protocol, &mut Ear(at.stop))?.record;
        Ok(TaskScores::from_iter([
            (MEAN_IOU.key, found.mean_iou),
            (ACCURACY.key, found.pixel_accuracy),
            (NLL.key, found.nll),
        ]))
    }

    fn test(
        &self,
        model: &VisionTransformer,
        data: &Splits,
        at: Judging,
        doing: &mut dyn FnMut(&str),
    ) -> Result<Tested> {
        doing("testing");
        let (system, protocol) = self.system(model, at)?;
        let images = Images::new(&self.data, data.test.clone());
        let found = segmentation(&system, &images, protocol, &mut Ear(at.stop))?;
        let record = &found.record;
        let mut all = vec![
            ("test_mean_iou".to_owned(), record.mean_iou),
            ("test_accuracy".to_owned(), record.pixel_accuracy),
            ("test_nll".to_owned(), record.nll),
        ];
        let fact = |name, value, note: &str| Fact { name, value, note: note.to_owned() };
        let interval = record.interval_in_words();
        let mut facts = vec![fact("test mean IoU", MEAN_IOU.show(record.mean_iou), &interval)];
        if self.compares {
            doing("fitting a linear classifier of pixels for comparison");
            let train = Images::new(&self.data, data.train.clone());
            let linear = nearby_baseline(&train, &images, at.device, &mut Ear(at.stop))?;
            all.push(("linear_baseline_mean_iou".to_owned(), linear));
            let ahead =
                format!("the model is {:+.1} points ahead", 100.0 * (record.mean_iou - linear));
            let name = "a linear classifier of 5 × 5 pixels";
            facts.push(fact(name, MEAN_IOU.show(linear), &ahead));
        }
        facts.push(fact("test pixels right", ACCURACY.show(record.pixel_accuracy), ""));
        facts.push(fact("test NLL", NLL.show(record.nll), "nats per pixel"));
        let classes = self.classes.clone();
        let routing = found.routing.concat();
        Ok(Tested {
            scores: TaskScores::from_iter(all),
            routing,
            facts,
            sections: Box::new(move |page| add_segmentation(page, &found, &classes)),
        })
    }
}

impl Segmentation {
    /// The share of patches whose likeliest class is that of the pixel in their middle, of those where it counts.
    ///
    /// - `logits`: `[B · P, classes]`
    fn right_at_middles(&self, logits: &[f32], classes: usize, pixels: &[u8]) -> f64 {
        let (rows, columns) = self.grid;
        let Resolution { height, width } = self.resolution;
        let (mut right, mut all) = (0_usize, 0_usize);
        for (place, logits) in logits.chunks_exact(classes).enumerate() {
            let (image, patch) = (place / (rows * columns), place % (rows * columns));
            let middle = |at: usize, of: usize, side: usize| (2 * at + 1) * side / (2 * of);
            let y = middle(patch / columns, rows, height);
            let x = middle(patch % columns, columns, width);
            let label = pixels[(image * height + y) * width + x];
            if label != IGNORED {
                all += 1;
                right += usize::from(largest(logits) == usize::from(label));
            }
        }
        right as f64 / all.max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pixels_are_read_column_by_column_and_once_for_every_member() {
        let labels = |times| {
            let size = Resolution::new(2, 3);
            by_columns(&[0, 1, 2, 3, 4, IGNORED], size, times).collect::<Vec<_>>()
        };
        let once = vec![Some(0), Some(3), Some(1), Some(4), Some(2), None];
        assert_eq!(labels(1), once);
        assert_eq!(labels(2), [once.clone(), once].concat());
    }
}
