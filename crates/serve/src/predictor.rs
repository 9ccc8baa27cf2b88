//! The inner ring: a model on a thread of its own, which knows nothing of the network.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use omma_data::{Batch, Picture};
use omma_eval::{EvalError, PixelMap, System, Templates, Windows, segment};
use omma_kernels::memory;
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

/// Bytes that may wait for their next use, of all models: a quarter more than a whole batch has left behind. Batches of
/// every size leave blocks of their own sizes, which would add up to many times what any of them needs.
static MOST_WAITING: AtomicUsize = AtomicUsize::new(0);

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
    /// Whether what experts do is told: not while it is warmed, with images that nobody sent.
    is_warm: bool,
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
        Self { system, alone, labelled: Vec::new(), metrics, is_warm: false }
    }

    /// Why every image passes by itself, if that is so.
    pub(crate) fn alone(&self) -> Option<&'static str> {
        self.alone
    }

    /// Answers until the queue is closed and empty. A fault in the arithmetic costs the answers of its batch, no more.
    pub(crate) fn serve(mut self, queue: &Queue<Ask, Result<Answer, String>>) {
        self.is_warm = true;
        MOST_WAITING.fetch_max(memory::waiting().saturating_mul(5) / 4, Ordering::Relaxed);
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
            if memory::waiting() > MOST_WAITING.load(Ordering::Relaxed) {
                memory::give_back();
            }
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
        let metrics = self.is_warm.then(|| self.metrics.clone());
        let system = match labels {
            Some(labels) => self.labelled(labels)?,
            None => &self.system,
        };
        let outputs = system.logits(&mut batch)?;
        if let Some(metrics) = metrics {
            count(&metrics, system, &outputs.routings, images.len());
        }
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
        if self.is_warm {
            count(&self.metrics, &self.system, &[routings], images);
        }
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
mod tests;
