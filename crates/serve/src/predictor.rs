//! The inner ring: a model on a thread of its own, which knows nothing of the network.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use omma_data::{Batch, Picture};
use omma_eval::{EvalError, PixelMap, System, Templates, Windows, segment};
use omma_routing::{Plan, Routing};

use crate::{
    experts::{ExpertMap, expert_maps},
    metrics::ModelMetrics,
    queue::Queue,
};

/// Names that classes are given by, for a model that compares images with texts.
pub(crate) type LabelNames = Arc<[String]>;
/// Sets of such names whose classifiers are kept.
const KEPT_LABELS: usize = 8;
/// Texts per forward pass.
const TEXTS: usize = 64;

/// What a model is asked for.
#[derive(Debug)]
pub(crate) enum Ask {
    /// How likely its classes are, or those that are named.
    Classes {
        /// `[H, W, 3]`, normalised.
        values: Vec<f32>,
        /// For a model that has no classes of its own.
        labels: Option<LabelNames>,
        /// Whether to say which expert took which patch.
        experts: bool,
    },
    /// An image as a vector: `[H, W, 3]`, normalised.
    Vector(Vec<f32>),
    /// Texts as vectors.
    Texts(Vec<String>),
    /// The class of every pixel.
    Pixels(Picture),
}

/// What it says.
#[derive(Debug)]
pub(crate) enum Answer {
    Classes(Classified),
    Vectors(Vec<Vec<f32>>),
    Pixels(PixelMap),
}

/// What the members of a system make of an image.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Classified {
    /// `[M]` of `[classes]`
    pub(crate) logits: Vec<Vec<f32>>,
    /// Layer by layer, if they were asked for.
    pub(crate) experts: Option<Vec<ExpertMap>>,
}

/// Owns a system and runs it.
pub(crate) struct Predictor {
    system: System,
    /// Why every image passes by itself, if that is so.
    alone: Option<&'static str>,
    /// Classifiers by the names of their classes, the newest last.
    labelled: Vec<(LabelNames, System)>,
    metrics: Arc<ModelMetrics>,
}

/// What passes the model together.
#[derive(PartialEq)]
enum Pass {
    Classes(Option<LabelNames>),
    Vectors,
}

/// An image on its way.
struct Passing {
    place: usize,
    values: Vec<f32>,
    experts: bool,
}

type Answers = Vec<Option<Result<Answer, String>>>;

impl Predictor {
    /// Images pass alone where they would depend on each other.
    pub(crate) fn new(system: System, metrics: Arc<ModelMetrics>) -> Self {
        let alone = system.models().find_map(|model| model.config().depends_on_batch());
        Self { system, alone, labelled: Vec::new(), metrics }
    }

    /// Why every image passes by itself, if that is so.
    pub(crate) fn alone(&self) -> Option<&'static str> {
        self.alone
    }

    /// Answers until the queue is closed and empty. A fault in the arithmetic costs the answers of its batch, no more.
    pub(crate) fn serve(mut self, queue: &Queue<Ask, Result<Answer, String>>) {
        while let Some(mut batch) = queue.take() {
            let inputs = std::mem::take(&mut batch.inputs);
            let count = inputs.len();
            let answers = catch_unwind(AssertUnwindSafe(|| self.answer(inputs)));
            let answers = answers.unwrap_or_else(|_| {
                tracing::error!(images = count, "a batch could not be computed");
                let fault = || Err("the model could not compute this batch".to_owned());
                (0..count).map(|_| fault()).collect()
            });
            let queued: Vec<_> = batch.queued().collect();
            let computed = batch.answer(answers);
            self.metrics.computed(&queued, computed, queue.len());
        }
    }

    /// One answer per ask, in their order.
    pub(crate) fn answer(&mut self, asks: Vec<Ask>) -> Vec<Result<Answer, String>> {
        let mut answers: Answers = asks.iter().map(|_| None).collect();
        let mut passes: Vec<(Pass, Vec<Passing>)> = Vec::new();
        let mut join = |pass: Pass, passing: Passing| {
            match passes.iter_mut().find(|(own, _)| *own == pass) {
                Some((_, all)) => all.push(passing),
                None => passes.push((pass, vec![passing])),
            };
        };
        for (place, ask) in asks.into_iter().enumerate() {
            match ask {
                Ask::Classes { values, labels, experts } => {
                    join(Pass::Classes(labels), Passing { place, values, experts });
                }
                Ask::Vector(values) => {
                    join(Pass::Vectors, Passing { place, values, experts: false });
                }
                Ask::Texts(texts) => answers[place] = Some(self.texts(&texts)),
                Ask::Pixels(picture) => answers[place] = Some(self.pixels(&picture)),
            }
        }
        for (pass, mut images) in passes {
            let together = if self.alone.is_some() { 1 } else { images.len() };
            while !images.is_empty() {
                let rest = images.split_off(together.min(images.len()));
                self.pass(&pass, images, &mut answers);
                images = rest;
            }
        }
        let missing = || Err("the model has no answer to this".to_owned());
        answers.into_iter().map(|answer| answer.unwrap_or_else(missing)).collect()
    }

    /// One forward pass.
    fn pass(&mut self, pass: &Pass, images: Vec<Passing>, answers: &mut Answers) {
        let resolution = self.system.pixels().resolution;
        let mut values = Vec::with_capacity(images.len() * resolution.pixels() * 3);
        images.iter().for_each(|image| values.extend_from_slice(&image.values));
        let batch = Batch::normalised(values, resolution);
        let found = match pass {
            Pass::Classes(labels) => self.classes(labels.as_ref(), batch, &images),
            Pass::Vectors => self.vectors(batch),
        };
        match found {
            Ok(found) => {
                for (image, answer) in images.iter().zip(found) {
                    answers[image.place] = Some(answer);
                }
            }
            // What is wrong with one of them is not the others' fault.
            Err(_) if images.len() > 1 => {
                images.into_iter().for_each(|image| self.pass(pass, vec![image], answers));
            }
            Err(error) => {
                images.iter().for_each(|image| answers[image.place] = Some(Err(error.to_string())));
            }
        }
    }

    fn classes(
        &mut self,
        labels: Option<&LabelNames>,
        mut batch: Batch,
        images: &[Passing],
    ) -> Result<Vec<Result<Answer, String>>, EvalError> {
        let metrics = self.metrics.clone();
        let system = match labels {
            Some(labels) => self.labelled(labels)?,
            None => &self.system,
        };
        let outputs = system.logits(&mut batch)?;
        count(&metrics, system, &outputs.routings, images.len());
        let wanted: Vec<usize> = (0..images.len()).filter(|image| images[*image].experts).collect();
        let mut maps = expert_maps(system, &outputs.routings, images.len(), &wanted).into_iter();
        let answer = |image: usize| {
            let logits: Vec<Vec<f32>> = outputs.of_image(image).map(<[f32]>::to_vec).collect();
            let experts = if images[image].experts { maps.next() } else { None };
            finite(logits.iter().flatten())?;
            Ok(Answer::Classes(Classified { logits, experts }))
        };
        Ok((0..images.len()).map(answer).collect())
    }

    fn vectors(&self, mut batch: Batch) -> Result<Vec<Result<Answer, String>>, EvalError> {
        let Some(reader) = self.system.reader()? else {
            return Err(EvalError::NoTokenizer { model: self.system.name() });
        };
        let images = batch.len();
        let (vectors, routings) = reader.images(&mut batch)?;
        count(&self.metrics, &self.system, &[routings], images);
        let answer = |vector: &[f32]| {
            finite(vector)?;
            Ok(Answer::Vectors(vec![vector.to_vec()]))
        };
        Ok(vectors.rows().map(answer).collect())
    }

    fn texts(&self, texts: &[String]) -> Result<Answer, String> {
        let vectors = self.system.reader().and_then(|reader| match reader {
            Some(reader) => reader.texts(texts, TEXTS, &mut ()),
            None => Err(EvalError::NoTokenizer { model: self.system.name() }),
        });
        let (vectors, _) = vectors.map_err(|error| error.to_string())?;
        Ok(Answer::Vectors(vectors.rows().map(<[f32]>::to_vec).collect()))
    }

    /// Pictures have sizes of their own, and pass one after the other.
    fn pixels(&self, picture: &Picture) -> Result<Answer, String> {
        let pictures = std::slice::from_ref(picture);
        let maps = segment(&self.system, pictures, 0, Windows::Sliding, WINDOWS);
        let map = maps.map_err(|error| error.to_string())?.pop();
        map.map(Answer::Pixels).ok_or_else(|| "a picture without pixels".to_owned())
    }

    /// The system as a classifier of these names.
    fn labelled(&mut self, names: &LabelNames) -> Result<&System, EvalError> {
        let known = self.labelled.iter().position(|(own, _)| own == names);
        let entry = match known {
            Some(place) => self.labelled.remove(place),
            None => {
                let templates = Templates::default();
                let system = self.system.clone().labelled(names, &templates, TEXTS, &mut ())?;
                (names.clone(), system)
            }
        };
        if self.labelled.len() >= KEPT_LABELS {
            self.labelled.remove(0);
        }
        self.labelled.push(entry);
        Ok(&self.labelled[self.labelled.len() - 1].1)
    }
}

/// Windows of a picture per forward pass.
const WINDOWS: usize = 16;

fn finite<'a>(values: impl IntoIterator<Item = &'a f32>) -> Result<(), String> {
    match values.into_iter().all(|value| value.is_finite()) {
        true => Ok(()),
        false => Err("the model's output for this image is not a number".to_owned()),
    }
}

/// Tells what the experts had to do.
fn count(
    metrics: &ModelMetrics,
    system: &System,
    routings: &[Vec<(usize, Routing)>],
    images: usize,
) {
    for (name, routings) in system.names().iter().zip(routings) {
        for (block, routing) in routings {
            let statistics = routing.statistics();
            let load = match routing.plan {
                Plan::Sparse(_) => statistics.load.iter().map(|load| *load as f64).collect(),
                // Every slot is taken; what differs is how much of it counts.
                Plan::Soft(_) => statistics.importance,
            };
            metrics.routed(name, *block, load, images);
        }
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;
    use omma_base::Seed;
    use omma_model::{apply_settings, preset, with_values};

    use super::*;
    use crate::metrics::Metrics;

    const SMALL: [&str; 6] =
        ["resolution=16", "patch=4", "width=32", "depth=2", "heads=2", "mlp=64"];
    const EXPERTS: [&str; 2] = ["moe.experts=4", "moe.placement=last-1"];

    /// - `more`: settings of a small V-MoE; of a dense model, none
    fn predictor(more: &[&str]) -> Predictor {
        let (dense, moe) = (more.is_empty(), SMALL.iter().chain(&EXPERTS).chain(more));
        let (name, settings): (_, Vec<&str>) = match dense {
            true => ("vit-tiny", SMALL.to_vec()),
            false => ("vmoe-tiny", moe.copied().collect()),
        };
        let config = apply_settings(&preset(name).unwrap(), &settings).unwrap();
        let device = Device::flex();
        let model = config.init(Seed::new(3), &device).unwrap();
        // A fresh head is undecided.
        let model = with_values(model, |parameter| {
            let count: usize = parameter.shape.iter().product();
            let values = (0..count).map(|place| ((place * 37) % 17) as f32 / 8.0 - 1.0);
            Ok(parameter.name.starts_with("head.").then(|| values.collect()))
        });
        let system = System::new(vec![("one".to_owned(), model.unwrap())], &device).unwrap();
        Predictor::new(system, Metrics::new().of_model("one", Vec::new()))
    }

    fn ask(image: usize) -> Ask {
        let value = |place: usize| ((place * (31 + image) + 7 * image) % 251) as f32 / 125.0 - 1.0;
        let values = (0..16 * 16 * 3).map(value).collect();
        Ask::Classes { values, labels: None, experts: true }
    }

    fn answers(predictor: &mut Predictor, images: &[usize]) -> Vec<Classified> {
        let found = predictor.answer(images.iter().map(|image| ask(*image)).collect());
        let classified = |answer| match answer {
            Ok(Answer::Classes(found)) => found,
            other => panic!("no classes: {other:?}"),
        };
        found.into_iter().map(classified).collect()
    }

    /// Every image alone, and in batches of many sizes, at many places, in both orders.
    fn check_bits(settings: &[&str], alone: bool) {
        let mut predictor = predictor(settings);
        assert_eq!(predictor.alone().is_some(), alone, "{settings:?}");
        let images: Vec<usize> = (0..33).collect();
        let bits = |found: &Classified| -> Vec<u32> {
            found.logits.iter().flatten().map(|logit| logit.to_bits()).collect()
        };
        let singly: Vec<Classified> =
            images.iter().map(|image| answers(&mut predictor, &[*image]).remove(0)).collect();
        assert!(singly.windows(2).any(|two| two[0] != two[1]), "answers depend on the image");
        for size in [2, 3, 5, 8, 17, 32, 33] {
            for start in [0, 33 - size] {
                let mut batch = images[start..start + size].to_vec();
                for _ in 0..2 {
                    for (image, together) in batch.iter().zip(answers(&mut predictor, &batch)) {
                        let singly = &singly[*image];
                        assert_eq!(
                            bits(singly),
                            bits(&together),
                            "{settings:?}: image {image} of {size}"
                        );
                        assert_eq!(singly.experts, together.experts, "{settings:?}");
                    }
                    batch.reverse();
                }
            }
        }
    }

    #[test]
    fn a_vmoe_says_the_same_bits_alone_and_in_any_batch() {
        check_bits(&["moe.k=2"], false);
    }

    #[test]
    fn so_does_one_that_is_as_wide_as_a_vit_s() {
        check_bits(
            &["width=384", "heads=6", "mlp=1536", "moe.k=2", "depth=1", "moe.placement=0"],
            false,
        );
    }

    #[test]
    fn so_do_several_members() {
        check_bits(&["moe.members=2"], false);
    }

    #[test]
    fn so_does_a_soft_moe() {
        check_bits(&["moe.router=soft"], false);
    }

    #[test]
    fn so_does_a_dense_model() {
        check_bits(&[], false);
    }

    #[test]
    fn routers_that_look_at_several_images_are_given_one_at_a_time() {
        check_bits(&["moe.router=softmax-expert-choice"], true);
        check_bits(&["moe.inference_capacity_ratio=1"], true);
        check_bits(&["moe.inference_noise=1"], true);
    }

    #[test]
    fn every_patch_has_its_experts_and_they_are_those_that_took_it() {
        let mut predictor = predictor(&["moe.members=2", "moe.k=2"]);
        let found = answers(&mut predictor, &[0, 1]).remove(1);
        let maps = found.experts.unwrap();
        assert_eq!(maps.len(), 2, "a map per member");
        for (member, map) in maps.iter().enumerate() {
            assert_eq!((map.member, map.grid, map.block), (Some(member), (4, 4), 1));
            assert_eq!(map.patches.len(), 16);
            for patch in &map.patches {
                assert_eq!(patch.len(), 2);
                assert!(patch[0].1 >= patch[1].1 && patch.iter().all(|(_, weight)| *weight > 0.0));
                // Experts are cut into subsets, one per member (paper 000).
                assert!(patch.iter().all(|(expert, _)| expert / 2 == member));
            }
        }
    }

    #[test]
    fn what_is_not_a_number_costs_its_own_answer_alone() {
        let mut predictor = predictor(&["moe.k=2"]);
        let mut asks = vec![ask(0), ask(1), ask(2)];
        let Ask::Classes { values, .. } = &mut asks[1] else { unreachable!() };
        values[5] = f32::NAN;
        let found = predictor.answer(asks);
        assert!(found[0].is_ok() && found[1].is_err() && found[2].is_ok(), "{found:?}");
    }
}
