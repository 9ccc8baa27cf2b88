//! Classification: what does the image show?

use burn::tensor::{Device, Tensor, TensorData};
use omma_base::{Seed, transfer};
use omma_data::{Shared, TargetKind, Targets, augment::Mixing};
use omma_eval::{
    Binning, Gallery, Images, System, Test, TestProtocol, linear_baseline, metrics::largest,
    pixels_for, report::add_pictures,
};
use omma_model::{Mode, ModelConfig, VisionTransformer};

use super::{Ear, Fact, Forward, Judging, Measure, Task, TaskScores, Tested, Unit, mimo::pair};
use crate::{
    error::Result,
    recipe::{Recipe, recipe_error},
    resolved::Splits,
    trainer::{Examples, InputTensor, Learner},
};

const ACCURACY: Measure = Measure { key: "accuracy", title: "accuracy", unit: Unit::Share };
const NLL: Measure = Measure { key: "nll", title: "NLL", unit: Unit::Nats };
/// The first decides.
pub(super) const MEASURES: &[Measure] = &[ACCURACY, NLL];

/// One label per image.
pub(super) struct Classification {
    data: String,
    classes: Vec<String>,
    smoothing: f64,
    mixes: bool,
    compares: bool,
}

impl Classification {
    /// Fails where the test images have other classes than the training images.
    pub(super) fn new(recipe: &Recipe, data: &Splits) -> Result<Self> {
        let (train, test) = (data.train.classes(), data.test.classes());
        if train != test {
            return Err(recipe_error(format!(
                "{}: the training images have classes {train:?}, the test images {test:?}",
                recipe.data.name
            )));
        }
        Ok(Self {
            data: recipe.data.name.clone(),
            classes: train.to_vec(),
            smoothing: recipe.train.label_smoothing,
            mixes: recipe.mixing != Mixing::default(),
            compares: recipe.train.linear_baseline,
        })
    }

    fn system(&self, model: &VisionTransformer, at: Judging) -> Result<(System, TestProtocol)> {
        let system = System::new(vec![("the model".to_owned(), model.clone())], at.device)?;
        let system = system.among(at.world);
        Ok((system, TestProtocol { binning: Binning::default(), batch: at.batch }))
    }
}

fn scores(test: &Test) -> [(&'static str, f64); 2] {
    [(ACCURACY.key, test.accuracy()), (NLL.key, test.record.summary.nll)]
}

impl Task for Classification {
    fn fitted(&self, model: ModelConfig) -> ModelConfig {
        model.with_classes(self.classes.len())
    }

    fn targets(&self) -> TargetKind {
        TargetKind::Classes { smoothing: self.smoothing }
    }

    fn measures(&self) -> &'static [Measure] {
        MEASURES
    }

    /// That of equal probabilities for all classes.
    fn chance(&self) -> f64 {
        (self.classes.len() as f64).ln().max(0.1)
    }

    fn about_learning(&self) -> Option<String> {
        self.mixes.then(|| {
            "The model learns from mixtures of two images, of which the larger part counts as the right \
             answer: training accuracy is lower, and training loss higher, than on images as they are."
                .to_owned()
        })
    }

    fn conflict(&self, trained: &ModelConfig) -> Option<String> {
        let (then, now) = (trained.classes(), self.classes.len());
        (then != now).then(|| {
            format!(
                "{} has {now} classes now, and the run was trained to tell {then} apart; put the images \
                 back, or start a new run with --init",
                self.data
            )
        })
    }

    fn class_names(&self) -> Option<&[String]> {
        Some(&self.classes)
    }

    /// Cross-entropy with the target distribution. Members of an ensemble are all trained on every image
    /// (paper 000 App. C.1); those of MIMO each on their own.
    fn forward(
        &self,
        learner: &Learner,
        examples: Examples,
        seed: Seed,
        device: &Device,
    ) -> Result<Forward> {
        let mut input = examples.input.tensor(device);
        let Targets::Classes { distribution, classes, .. } = examples.targets else {
            return Err(recipe_error("a classifier learns from classes".to_owned()));
        };
        let mut labels: Vec<usize> = distribution.chunks_exact(classes).map(largest).collect();
        transfer::brought(&distribution);
        let targets = TensorData::new(distribution, [1, labels.len(), classes]);
        let mut targets = Tensor::<3>::from_data(targets, device);
        if let (Some(config), InputTensor::Images(images)) = (&learner.config().mimo, &input) {
            let paired = pair(images.clone(), config, seed.named("mimo"));
            let chosen = paired.sources.iter().map(|rows| {
                let rows: Vec<i32> = rows.iter().map(|row| *row as i32).collect();
                transfer::brought(&rows);
                targets.clone().select(1, Tensor::from_data(rows.as_slice(), device))
            });
            targets = Tensor::cat(chosen.collect(), 0);
            labels = paired.sources[0].iter().map(|row| labels[*row]).collect();
            input = InputTensor::Images(paired.images);
        }
        let output = learner.forward(input, &Mode::Training(seed))?;
        let correct = {
            let logits = output.predictions.logits.clone().detach();
            let [_, rows, _] = logits.dims();
            // The first member speaks for all: this is a hint for the progress bar, not a result.
            let logits: Vec<f32> =
                logits.slice([0..1, 0..rows]).try_into_vec_as().expect("logits are floats");
            transfer::fetched(&logits);
            let predicted = logits.chunks_exact(classes).map(largest);
            predicted.zip(&labels).filter(|(predicted, label)| predicted == *label).count()
        };
        Ok(Forward {
            examples: labels.len(),
            loss: output.predictions.soft_cross_entropy(targets),
            value: None,
            auxiliary_loss: output.auxiliary_loss(),
            scores: TaskScores::from_iter([(ACCURACY.key, correct as f64)]),
            routings: output.routings,
        })
    }

    fn judge(&self, model: &VisionTransformer, images: &Shared, at: Judging) -> Result<TaskScores> {
        let (system, protocol) = self.system(model, at)?;
        let images = Images::new(&self.data, images.clone());
        let test = Test::run(&system, &images, protocol, &mut Ear(at.stop))?;
        Ok(TaskScores::from_iter(scores(&test)))
    }

    fn help(&self, model: &VisionTransformer, images: &Shared, at: Judging) -> Result<()> {
        let (system, protocol) = self.system(model, at)?;
        let images = Images::new(&self.data, images.clone());
        let helped = images.help(&system, protocol.batch);
        model.serve_experts()?;
        Ok(helped?)
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
        let (test, experts) =
            Test::run_with_experts(&system, &images, protocol, &mut Ear(at.stop))?;
        let mut all: Vec<(String, f64)> =
            scores(&test).into_iter().map(|(key, value)| (format!("test_{key}"), value)).collect();
        let fact = |name, value, note: &str| Fact { name, value, note: note.to_owned() };
        let (accuracy, nll) = (test.accuracy(), test.record.summary.nll);
        let mut facts = vec![fact("test accuracy", ACCURACY.show(accuracy), "")];
        if self.compares {
            doing("fitting a linear classifier for comparison");
            let linear = linear_baseline(
                &Images::new(&self.data, data.train.clone()),
                &images,
                pixels_for(&model.config().image),
                at.device,
                &mut Ear(at.stop),
            )?;
            all.push(("linear_baseline_accuracy".to_owned(), linear));
            let ahead = format!("the model is {:+.1} points ahead", 100.0 * (accuracy - linear));
            facts.push(fact("a linear classifier on pixels", ACCURACY.show(linear), &ahead));
        }
        facts.push(fact("test NLL", NLL.show(nll), "nats"));
        let gallery = Gallery::of(&test, &experts, &images, system.pixels().resolution);
        let confusion = test.confusion.figure(&self.classes);
        let sections = move |page: omma_report::Page| {
            let about = "Rows are what images show, columns what they are taken for; all that is off the \
                         diagonal is a mistake.";
            add_pictures(page.section("Test").figures([(confusion, about)]), &gallery)
        };
        Ok(Tested {
            scores: TaskScores::from_iter(all),
            routing: test.routing.concat(),
            facts,
            sections: Box::new(sections),
        })
    }
}
