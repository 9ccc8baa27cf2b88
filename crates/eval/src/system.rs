//! What is judged: one model, or several as one.

use std::sync::Arc;

use burn::tensor::{Device, Int, Tensor, TensorData};
use omma_base::Seed;
use omma_data::{
    Batch, Pixels,
    text::{TextCounts, Tokenizer},
};
use omma_model::{
    ModelConfig, MoeConfig, Output, PackedWeights, VisionTransformer, packed_weights,
    systems::DeepEnsemble,
};
use omma_ranks::World;
use omma_routing::Routing;
use serde::{Deserialize, Serialize};

use crate::{
    error::{EvalError, Result},
    inputs::{images_of, pixels_for},
    prompts::Templates,
    reader::Reader,
    routing::RoutingTally,
    stream::{Images, Watcher},
    together::{Maker, Said},
};

/// One model, or a deep ensemble of several. Either way it has members, each with predictions of its own.
#[derive(Debug, Clone)]
pub struct System {
    names: Vec<String>,
    ensemble: DeepEnsemble,
    /// Places of the classes that it is judged among; nothing for all of them, as they are.
    judged: Option<Vec<usize>>,
    pixels: Pixels,
    device: Device,
    /// Where MC samples and the noise of routers come from.
    seed: Seed,
    /// Per model, how texts become its tokens; nothing for one that reads none, or whose tokenizer is not known.
    tokenizers: Vec<Option<Tokenizer>>,
    /// What made its classes, if texts did.
    prompts: Option<PromptRecord>,
    packed: Arc<PackedWeights>,
    /// Those who look at images together.
    world: Option<World>,
}

/// What made a zero-shot classifier.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PromptRecord {
    /// The sentences that the names of classes were put into.
    pub templates: Vec<String>,
    /// What became of all these texts on their way to tokens, of all models.
    pub texts: TextCounts,
}

/// Per model, its blocks with experts and who went where in them.
pub(crate) type Routings = Vec<Vec<(usize, Routing)>>;

/// What a system makes of a batch: a row of logits, or of features, per member and image.
#[derive(Debug)]
pub struct Outputs {
    members: usize,
    images: usize,
    width: usize,
    /// `[M, B, width]`
    values: Vec<f32>,
    /// Per model, its blocks with experts and who went where in them; of another process, that has only counted it.
    pub routings: Vec<Vec<(usize, Routing)>>,
    /// What it has counted.
    counted: Option<Vec<RoutingTally>>,
}

impl Outputs {
    fn new(values: Tensor<3>, routings: Vec<Vec<(usize, Routing)>>) -> Self {
        let [members, images, width] = values.dims();
        let values = values.try_into_vec_as().expect("outputs are floats");
        Self { members, images, width, values, routings, counted: None }
    }

    /// Whether this process has computed it, and so knows who went where.
    pub(crate) fn is_own(&self) -> bool {
        self.counted.is_none()
    }

    /// Per model, how its experts were used.
    pub(crate) fn tallies(&self) -> Vec<RoutingTally> {
        let counted = || self.routings.iter().map(|routings| RoutingTally::of(routings)).collect();
        self.counted.clone().unwrap_or_else(counted)
    }

    /// `[M]` of `[width]`: all members' rows for one image.
    pub fn of_image(&self, image: usize) -> impl Iterator<Item = &[f32]> {
        let rows = self.values.chunks_exact(self.width.max(1));
        rows.skip(image).step_by(self.images.max(1)).take(self.members)
    }

    /// `[M]` of `[B, width]`: one member's rows after the other's.
    pub(crate) fn by_member(&self) -> impl Iterator<Item = &[f32]> {
        self.values.chunks_exact((self.images * self.width).max(1))
    }

    /// The first image with an output that is not a number.
    pub fn first_broken(&self) -> Option<usize> {
        let broken = |row: &&[f32]| row.iter().any(|value| !value.is_finite());
        (0..self.images).find(|image| self.of_image(*image).any(|row| broken(&row)))
    }
}

/// Who went where is not said, but counted.
impl Said for Outputs {
    type Words = ([usize; 3], Vec<f32>, Vec<RoutingTally>);

    fn words(&self) -> Self::Words {
        ([self.members, self.images, self.width], self.values.clone(), self.tallies())
    }

    fn heard(([members, images, width], values, counted): Self::Words) -> Self {
        Self { members, images, width, values, routings: Vec::new(), counted: Some(counted) }
    }
}

/// A system that makes logits of batches.
pub(crate) struct Logits<'a>(&'a System);

impl Maker for Logits<'_> {
    type Made = Outputs;

    fn pixels(&self) -> Pixels {
        self.0.pixels()
    }

    fn world(&self) -> Option<&World> {
        self.0.world()
    }

    fn make(&self, batch: &mut Batch) -> Result<Outputs> {
        self.0.logits(batch)
    }

    fn serve(&self) -> Result<()> {
        self.0.serve_experts()
    }
}

/// A system that makes features of batches, those of every model.
pub(crate) struct Features<'a>(&'a System);

impl Maker for Features<'_> {
    type Made = Vec<Outputs>;

    fn pixels(&self) -> Pixels {
        self.0.pixels()
    }

    fn world(&self) -> Option<&World> {
        self.0.world()
    }

    fn make(&self, batch: &mut Batch) -> Result<Vec<Outputs>> {
        self.0.features(batch)
    }
}

/// What tells systems apart in a comparison.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SystemKind {
    /// Width, depth and patch of the backbone, as in `64x4/7`; systems of one family differ in what is
    /// put into it.
    pub family: String,
    /// Models, which is what an ensemble has several of.
    pub models: usize,
    /// Predictions per image, of all models together.
    pub members: usize,
    /// Experts in a layer; none in a dense model.
    pub experts: Option<usize>,
    /// Experts per token and member, `K`; none where models differ in it, or where tokens choose in
    /// several subsets.
    pub k: Option<usize>,
}

impl SystemKind {
    /// Whether it is one dense model with one prediction.
    pub(crate) fn is_plain(&self) -> bool {
        self.models == 1 && self.members == 1 && self.experts.is_none()
    }
}

/// That a system was judged among fewer classes than it tells apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct JudgedClasses {
    /// Classes that it tells apart.
    pub of: usize,
}

/// What one image costs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SystemCost {
    /// Parameters of all models.
    pub parameters: u64,
    /// Multiply-adds forwards.
    pub forward_macs: u64,
    /// Operations in a training step.
    pub training_flops: u64,
}

impl System {
    /// Models with their names, on a device without gradients. Those of an ensemble agree on classes,
    /// image size and normalisation.
    pub fn new(models: Vec<(String, VisionTransformer)>, device: &Device) -> Result<Self> {
        let (names, models): (Vec<String>, Vec<VisionTransformer>) = models.into_iter().unzip();
        let pixels = models.first().map(|model| pixels_for(&model.config().image));
        for (name, model) in names.iter().zip(&models).skip(1) {
            let (first, other) = (models[0].config(), model.config());
            let sides = [
                ("what is labelled", labelled(first), labelled(other)),
                ("the number of classes", first.classes().to_string(), other.classes().to_string()),
                (
                    "the size of the images",
                    first.image.resolution.to_string(),
                    other.image.resolution.to_string(),
                ),
                (
                    "the normalisation of pixels",
                    format!("{:?}", first.image.normalisation),
                    format!("{:?}", other.image.normalisation),
                ),
            ];
            if let Some((what, left, right)) = sides.into_iter().find(|(_, a, b)| a != b) {
                let (first, other) = (names[0].clone(), name.clone());
                return Err(EvalError::Ensemble { first, other, what, left, right });
            }
        }
        let packed = Arc::new(packed_weights(&models));
        let ensemble = DeepEnsemble::new(models)?;
        let pixels = pixels.expect("an ensemble has a first model");
        let (device, seed) = (device.clone(), Seed::new(0));
        let tokenizers = vec![None; names.len()];
        let (judged, prompts) = (None, None);
        Ok(Self {
            names,
            ensemble,
            judged,
            pixels,
            device,
            seed,
            tokenizers,
            prompts,
            packed,
            world: None,
        })
    }

    /// The same with what turns texts into tokens, per model.
    pub fn reading(self, mut tokenizers: Vec<Option<Tokenizer>>) -> Self {
        tokenizers.resize(self.names.len(), None);
        Self { tokenizers, ..self }
    }

    /// The same as a zero-shot classifier: every model is given the classes by their names.
    ///
    /// - `batch`: texts per forward pass
    pub fn labelled(
        self,
        classes: &[String],
        templates: &Templates,
        batch: usize,
        watcher: &mut dyn Watcher,
    ) -> Result<Self> {
        let (mut models, mut texts) = (Vec::new(), TextCounts::default());
        for place in 0..self.names.len() {
            let (labels, counts) =
                self.reader_of(place)?.classifier(classes, templates, batch, watcher)?;
            texts += counts;
            let labels = labels.tensor(&self.device).transpose();
            models.push(self.ensemble.models()[place].clone().with_labels(labels)?);
        }
        let packed = Arc::new(packed_weights(&models));
        let ensemble = DeepEnsemble::new(models)?;
        let prompts = Some(PromptRecord { templates: templates.lines().to_vec(), texts });
        Ok(Self { ensemble, prompts, packed, ..self })
    }

    /// What made its classes, if texts did.
    pub fn prompts(&self) -> Option<&PromptRecord> {
        self.prompts.as_ref()
    }

    /// Its model as one that compares images with texts; nothing where it does not, or is one of several: images
    /// of different models lie in different spaces.
    pub fn reader(&self) -> Result<Option<Reader<'_>>> {
        match self.ensemble.models() {
            [one] if one.reads() && self.tokenizers[0].is_some() => self.reader_of(0).map(Some),
            _ => Ok(None),
        }
    }

    fn reader_of(&self, place: usize) -> Result<Reader<'_>> {
        let tokenizer = self.tokenizers[place]
            .as_ref()
            .ok_or_else(|| EvalError::NoTokenizer { model: self.names[place].clone() });
        Reader::new(&self.ensemble.models()[place], tokenizer?, &self.device)
    }

    /// The same with predictions that are drawn from another seed, where they are drawn at all.
    pub fn drawn_from(self, seed: Seed) -> Self {
        Self { seed, ..self }
    }

    /// The same, for several ranks that look at images together: batches are those of one process, each is computed by
    /// one rank, and all learn what came of it. All ranks ask for the same images in the same order, or
    /// [help](Images::help).
    pub fn among(self, world: &World) -> Self {
        Self { world: Some(world.clone()).filter(|world| !world.is_alone()), ..self }
    }

    pub(crate) fn world(&self) -> Option<&World> {
        self.world.as_ref()
    }

    /// The same, told to choose among some of its classes alone: its logits are those of `classes`, in this
    /// order. What the models think of the other classes is gone before any softmax, as where models of
    /// 1000 classes are judged by the 200 of ImageNet-A (paper 000 App. A.6, L.6).
    pub fn restricted_to(self, classes: Vec<usize>) -> Result<Self> {
        let of = self.ensemble.models()[0].config().classes();
        let mut counted = vec![false; of];
        for class in &classes {
            match counted.get_mut(*class) {
                Some(counted) if !*counted => *counted = true,
                _ if of == 0 => return Err(EvalError::NoHead { model: self.name() }),
                _ => return Err(EvalError::Judged { model: self.name(), of, class: *class }),
            }
        }
        Ok(Self { judged: Some(classes), ..self })
    }

    /// Its models' names, joined.
    pub fn name(&self) -> String {
        self.names.join(" + ")
    }

    /// Its models' names.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// What the models expect of pixels.
    pub fn pixels(&self) -> Pixels {
        self.pixels
    }

    /// Predictions per image, `M`.
    pub fn members(&self) -> usize {
        self.models().map(|model| model.config().members()).sum()
    }

    /// Classes that are told apart; 0 without a classifier.
    pub fn classes(&self) -> usize {
        self.judged.as_ref().map_or_else(|| self.ensemble.models()[0].config().classes(), Vec::len)
    }

    /// What it is restricted to, if that is less than all.
    pub(crate) fn judged_classes(&self) -> Option<JudgedClasses> {
        let of = self.ensemble.models()[0].config().classes();
        (self.classes() < of).then_some(JudgedClasses { of })
    }

    /// Which kind, by its first model.
    pub(crate) fn kind(&self) -> SystemKind {
        let first = self.ensemble.models()[0].config();
        let k = |config: &ModelConfig| {
            config.moe().filter(|moe| moe.router.pool.gates_per_token() == 1).and_then(MoeConfig::k)
        };
        let same = self.models().all(|model| k(model.config()) == k(first));
        SystemKind {
            family: format!(
                "{}x{}/{}",
                first.encoder.width, first.encoder.depth, first.image.patch
            ),
            models: self.names.len(),
            members: self.members(),
            experts: first.moe().map(|moe| moe.router.experts),
            k: k(first).filter(|_| same),
        }
    }

    /// Of one image in all models.
    pub(crate) fn cost(&self) -> Result<SystemCost> {
        let mut sum = SystemCost { parameters: 0, forward_macs: 0, training_flops: 0 };
        for model in self.models() {
            let cost = model.config().cost(model.config().image.resolution)?;
            sum.parameters += cost.params_total;
            sum.forward_macs += cost.forward_macs;
            sum.training_flops += cost.training_flops;
        }
        Ok(sum)
    }

    /// Fails unless there is a classifier for so many classes.
    pub(crate) fn check_classes(&self, data: &str, classes: usize) -> Result<()> {
        match self.classes() {
            _ if self.labels_pixels() => Err(EvalError::LabelsPixels { model: self.name() }),
            0 if self.models().any(VisionTransformer::reads) => {
                Err(EvalError::NoLabels { model: self.name() })
            }
            0 => Err(EvalError::NoHead { model: self.name() }),
            head if head != classes => {
                let (model, data) = (self.name(), data.to_owned());
                Err(EvalError::Classes { model, head, data, classes })
            }
            _ => Ok(()),
        }
    }

    /// Whether it tells a class for every pixel instead of every image.
    pub fn labels_pixels(&self) -> bool {
        self.ensemble.models()[0].config().head.segmenter().is_some()
    }

    /// Pixels of the side of a patch.
    pub(crate) fn patch(&self) -> usize {
        self.ensemble.models()[0].config().image.patch
    }

    /// How many classes of pixels images have; fails where these are not those that the system tells apart.
    pub(crate) fn check_pixel_classes(&self, images: &Images) -> Result<usize> {
        let classes = images.data.pixel_classes().map(<[String]>::len);
        match (classes, self.classes()) {
            _ if !self.labels_pixels() => Err(EvalError::LabelsImages { model: self.name() }),
            (None, _) => Err(EvalError::NoMasks { data: images.name.clone() }),
            (Some(classes), head) if head != classes => {
                let (model, data) = (self.name(), images.name.clone());
                Err(EvalError::Classes { model, head, data, classes })
            }
            (Some(classes), _) => Ok(classes),
        }
    }

    /// `[M, rows, classes]`: the members' logits of every image, or of every patch row by row, and per model who
    /// went where. The batch gives its pixels away.
    pub(crate) fn row_logits(&self, batch: &mut Batch) -> Result<(Tensor<3>, Routings)> {
        let (mut logits, mut routings) = (Vec::new(), Vec::new());
        for output in self.forward(batch) {
            let output = output?;
            logits.push(output.predictions.logits);
            routings.push(output.routings);
        }
        Ok((Tensor::cat(logits, 0), routings))
    }

    /// `[M, B, classes]`: the members' logits. The batch gives its pixels away.
    pub fn logits(&self, batch: &mut Batch) -> Result<Outputs> {
        let (logits, routings) = self.row_logits(batch)?;
        Ok(Outputs::new(self.of_judged(logits), routings))
    }

    pub(crate) fn logits_of(&self) -> Logits<'_> {
        Logits(self)
    }

    pub(crate) fn features_of(&self) -> Features<'_> {
        Features(self)
    }

    /// Computes with the experts of this rank for others that have some of the same models, until none has anything to
    /// compute.
    fn serve_experts(&self) -> Result<()> {
        self.packed.using(|| self.models().try_for_each(VisionTransformer::serve_experts))?;
        Ok(())
    }

    /// Per model, `[M, B, features]`: what the members' classifiers see. The batch gives its pixels
    /// away.
    fn features(&self, batch: &mut Batch) -> Result<Vec<Outputs>> {
        let outputs = self.forward(batch);
        let features = outputs.map(|output| {
            let output = output?;
            Ok(Outputs::new(output.features, vec![output.routings]))
        });
        features.collect()
    }

    /// Every model's own output, one model at a time. What is drawn depends on where in its data set the
    /// batch begins, so that no two batches have it in common.
    fn forward(&self, batch: &mut Batch) -> impl Iterator<Item = Result<Output>> {
        let first = batch.indices.first().map_or(0, |index| *index as u64);
        let seed = self.seed.named("prediction").numbered(first);
        let images = images_of(batch, &self.device);
        self.models().zip(0..).map(move |(model, number)| {
            let mode = model.config().prediction_mode(seed.numbered(number));
            // On a thread of the pool, where work that is cut up begins without waking another thread.
            let forward = || model.forward(images.clone(), &mode);
            Ok(rayon::scope(|_| self.packed.using(forward))?)
        })
    }

    /// `[M, B, classes]`: the columns of the classes that it is judged among.
    fn of_judged(&self, logits: Tensor<3>) -> Tensor<3> {
        let Some(classes) = &self.judged else { return logits };
        let places: Vec<i64> = classes.iter().map(|class| *class as i64).collect();
        let places = TensorData::new(places, [classes.len()]);
        logits.select(2, Tensor::<1, Int>::from_data(places, &self.device))
    }

    pub(crate) fn device(&self) -> &Device {
        &self.device
    }

    /// Its models.
    pub fn models(&self) -> impl Iterator<Item = &VisionTransformer> {
        self.ensemble.models().iter()
    }
}

fn labelled(config: &ModelConfig) -> String {
    if config.head.segmenter().is_some() { "pixels" } else { "images" }.to_owned()
}
