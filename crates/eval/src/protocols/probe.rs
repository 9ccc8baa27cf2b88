//! A linear classifier on a model's frozen features, to be kept as part of the model: fitted on training
//! images, its regularisation, depth and temperature chosen on others.

use omma_model::{Mode, VisionTransformer};
use serde::Serialize;

use super::temperature::Validation;
use crate::{
    error::{EvalError, Result},
    inputs::{images_of, pixels_for},
    probe::{LinearHead, LogisticSupport, Start, Support},
    stream::{Images, Watcher},
};

/// How a classifier is fitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ProbeKind {
    /// Least squares in closed form (paper 000 App. A.5).
    Ridge,
    /// Softmax regression.
    Linear,
}

impl ProbeKind {
    /// Strengths of the regularisation that are tried: for ridge vmoe's, for softmax regression per image.
    pub fn default_l2(self) -> Vec<f64> {
        match self {
            Self::Ridge => super::fewshot::FewShotProtocol::reference_l2(),
            Self::Linear => (-6..=0).map(|power| 10_f64.powi(power)).collect(),
        }
    }
}

/// What is asked.
#[derive(Clone)]
pub struct ProbeProtocol {
    /// What the classifier is fitted on.
    pub train: Images,
    /// What chooses among classifiers, and their temperature.
    pub choosing: Images,
    /// How it is fitted.
    pub kind: ProbeKind,
    /// Strengths of the regularisation that are tried.
    pub l2: Vec<f64>,
    /// Numbers of blocks whose features are tried.
    pub depths: Vec<usize>,
    /// Images per forward pass.
    pub batch: usize,
}

/// How well the classifiers of one depth do on the images that choose.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct ProbeTrial {
    /// Blocks below the features.
    pub depth: usize,
    /// The best strength of the regularisation.
    pub l2: f64,
    /// What its logits are divided by.
    pub temperature: f64,
    /// NLL on the images that choose.
    pub nll: f64,
    /// Share of these that it gets right.
    pub accuracy: f64,
}

/// What was found.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FittedProbe {
    /// The best.
    pub chosen: ProbeTrial,
    /// The best of every depth.
    pub trials: Vec<ProbeTrial>,
    /// Images that it was fitted on.
    pub fitted_on: usize,
    /// Images that chose.
    pub chosen_on: usize,
    /// How it was fitted.
    pub kind: ProbeKind,
    /// The classifier, its temperature folded in.
    #[serde(skip)]
    pub head: LinearHead,
}

/// Features of images at some depths, and their labels.
struct Features {
    members: usize,
    /// `[depths]` of `[N · M, F]`, an image's members next to each other.
    depths: Vec<Vec<f32>>,
    labels: Vec<usize>,
}

impl Features {
    fn of(
        model: &VisionTransformer,
        images: &Images,
        protocol: &ProbeProtocol,
        what: &str,
        device: &burn::tensor::Device,
        watcher: &mut dyn Watcher,
    ) -> Result<Self> {
        let ProbeProtocol { depths, batch, .. } = protocol;
        let mut found =
            Self { members: 1, depths: vec![Vec::new(); depths.len()], labels: Vec::new() };
        watcher.begins(what, images.data.len());
        images.batches(pixels_for(&model.config().image), *batch, watcher, |batch| {
            let features = model.features_at(images_of(batch, device), depths, &Mode::Inference)?;
            for (to, features) in found.depths.iter_mut().zip(features) {
                found.members = features.dims()[0];
                let features: Vec<f32> =
                    features.swap_dims(0, 1).try_into_vec_as().expect("features are floats");
                if let Some(place) = features.iter().position(|value| !value.is_finite()) {
                    let image = place * batch.len() / features.len();
                    return Err(EvalError::NotFinite {
                        model: "the model".to_owned(),
                        data: images.name.clone(),
                        index: batch.indices[image],
                    });
                }
                to.extend(features);
            }
            found.labels.extend(batch.labels());
            Ok(())
        })?;
        Ok(found)
    }

    /// `[N · M]`: the label of every row.
    fn row_labels(&self) -> Vec<usize> {
        let each = |label: &usize| std::iter::repeat_n(*label, self.members);
        self.labels.iter().flat_map(each).collect()
    }
}

/// Fits a classifier of all members' features on frozen features.
pub fn fit_probe(
    model: &VisionTransformer,
    protocol: &ProbeProtocol,
    device: &burn::tensor::Device,
    watcher: &mut dyn Watcher,
) -> Result<FittedProbe> {
    let classes = protocol.train.data.classes().len();
    let train = &protocol.train;
    let train = Features::of(model, train, protocol, "images to fit on", device, watcher)?;
    let choosing = &protocol.choosing;
    let choosing = Features::of(model, choosing, protocol, "images to choose by", device, watcher)?;
    let labels = train.row_labels();
    let mut found: Vec<(ProbeTrial, LinearHead)> = Vec::new();
    let heads = protocol.depths.len() * protocol.l2.len();
    watcher.begins("classifiers", heads);
    for (place, depth) in protocol.depths.iter().enumerate() {
        let mut best: Option<(ProbeTrial, LinearHead)> = None;
        let features = &train.depths[place];
        heads_of(protocol, features, &labels, classes, device, &mut |l2, head| {
            let trial = judge(&head, &choosing, place, *depth, l2);
            if best.as_ref().is_none_or(|(best, _)| trial.nll < best.nll) {
                best = Some((trial, head));
            }
            watcher.done(1);
            match watcher.stopped() {
                true => Err(EvalError::Interrupted),
                false => Ok(()),
            }
        })?;
        found.extend(best);
    }
    let trials: Vec<ProbeTrial> = found.iter().map(|(trial, _)| *trial).collect();
    let best = found.into_iter().min_by(|a, b| a.0.nll.total_cmp(&b.0.nll));
    let (chosen, head) = best.ok_or(EvalError::Probe(crate::probe::ProbeError::Empty))?;
    Ok(FittedProbe {
        chosen,
        trials,
        fitted_on: train.labels.len(),
        chosen_on: choosing.labels.len(),
        kind: protocol.kind,
        head: head.at_temperature(chosen.temperature),
    })
}

/// A classifier for every strength of the regularisation, from the strongest on.
fn heads_of(
    protocol: &ProbeProtocol,
    features: &[f32],
    labels: &[usize],
    classes: usize,
    device: &burn::tensor::Device,
    each: &mut dyn FnMut(f64, LinearHead) -> Result<()>,
) -> Result<()> {
    let mut l2 = protocol.l2.clone();
    l2.sort_by(|a, b| b.total_cmp(a));
    match protocol.kind {
        ProbeKind::Ridge => {
            let support = Support::new(features, labels, classes, device)?;
            l2.into_iter().try_for_each(|l2| each(l2, support.solve(l2)?.folded()))
        }
        ProbeKind::Linear => {
            let support = LogisticSupport::new(features, labels, classes, device)?;
            let mut start = Start::default();
            l2.into_iter().try_for_each(|l2| each(l2, support.solve(l2, &mut start)?))
        }
    }
}

fn judge(head: &LinearHead, on: &Features, place: usize, depth: usize, l2: f64) -> ProbeTrial {
    let classes = head.bias.len();
    let logits = head.logits(&on.depths[place]);
    let mut validation = Validation::default();
    let mut right = 0;
    for (rows, label) in logits.chunks_exact(classes * on.members).zip(&on.labels) {
        let members: Vec<&[f32]> = rows.chunks_exact(classes).collect();
        let mean = crate::metrics::mean_softmax(&members, 1.0);
        right += usize::from(crate::metrics::largest(&mean) == *label);
        validation.add(&members, *label);
    }
    let temperature = validation.fit();
    let accuracy = right as f64 / on.labels.len().max(1) as f64;
    ProbeTrial { depth, l2, temperature, nll: validation.nll(temperature), accuracy }
}
