//! How much frozen features know about classes, from a few images of each (paper 000 App. A.5): shots,
//! draws, and what becomes of an ensemble's representations (App. A.5.1).

use std::sync::Arc;

use omma_base::Seed;
use omma_data::{Selection, Shared};
use rand::seq::SliceRandom;
use serde::{Deserialize, Serialize};

use crate::{
    error::{EvalError, Result},
    metrics::Estimate,
    probe::{Probe, Support, count_right},
    stream::{Images, Watcher},
    system::{Outputs, System},
};

/// A data set that features are judged by.
#[derive(Clone)]
pub struct FewShotSet {
    /// Training images, from which shots are drawn.
    pub train: Images,
    /// What the probes are judged by.
    pub test: Images,
}

/// What is asked.
#[derive(Clone)]
pub struct FewShotProtocol {
    /// Of which images.
    pub set: FewShotSet,
    /// Images per class, each a run of its own.
    pub shots: Vec<usize>,
    /// How many times shots are drawn.
    pub seeds: usize,
    /// Where the draws come from.
    pub seed: u64,
    /// Strengths of the regularisation that are tried.
    pub l2: Vec<f64>,
    /// Images per forward pass.
    pub batch: usize,
}

impl FewShotProtocol {
    /// The grid of vmoe, `2⁻¹⁰ … 2¹⁹`.
    pub fn reference_l2() -> Vec<f64> {
        (-10..20).map(|power| 2_f64.powi(power)).collect()
    }
}

/// What was found for a number of shots.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Shots {
    /// Images per class.
    pub shots: usize,
    /// One classifier of all members' features side by side; test accuracy over seeds, with the
    /// regularisation chosen on training images that are not shots.
    pub joint: Estimate,
    /// A classifier per member, and their mean; the same for one member.
    pub disjoint: Estimate,
    /// As `joint`, with the one regularisation that turned out best on the test images over all draws,
    /// which is the reference's practice and flatters.
    pub joint_best_l2: Estimate,
}

/// What was found.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FewShot {
    /// The models whose features were judged.
    pub models: Vec<String>,
    /// The data that they were judged by.
    pub data: String,
    /// Representations per image.
    pub members: usize,
    /// Test images.
    pub samples: usize,
    /// How many times shots were drawn.
    pub seeds: usize,
    /// One for every number of shots.
    pub results: Vec<Shots>,
}

/// Training images per class that choose the regularisation.
const CHOOSING: usize = 25;

/// Features of some images by member, and their labels.
struct Features {
    /// `[M]` of `[N, F_m]`
    members: Vec<Vec<f32>>,
    labels: Vec<usize>,
}

impl Features {
    /// `[N, ΣF]`: all members' features side by side.
    fn joint(&self) -> Vec<f32> {
        let images = self.labels.len();
        let mut joint = Vec::new();
        for image in 0..images {
            for member in &self.members {
                let width = member.len() / images;
                joint.extend_from_slice(&member[image * width..(image + 1) * width]);
            }
        }
        joint
    }
}

fn features(
    system: &System,
    images: &Images,
    batch: usize,
    watcher: &mut dyn Watcher,
    mut each: impl FnMut(Features),
) -> Result<()> {
    images.made(&system.features_of(), batch, watcher, |batch, outputs| {
        for model in &outputs {
            images.check(system, batch, model)?;
        }
        let members = outputs.iter().flat_map(Outputs::by_member).map(<[f32]>::to_vec).collect();
        each(Features { members, labels: batch.labels().to_vec() });
        Ok(())
    })
}

/// One draw of shots: supports for all members together and for each, with the features that choose.
struct Draw {
    joint: Support,
    disjoint: Vec<Support>,
    choosing: Features,
}

/// Right answers of a draw's classifiers on the test images.
struct Running<'a> {
    joint: Vec<(Probe<'a>, usize)>,
    chosen: usize,
    disjoint: Vec<Probe<'a>>,
    disjoint_right: usize,
}

/// Judges a system's features.
pub fn few_shot(
    system: &System,
    protocol: &FewShotProtocol,
    watcher: &mut dyn Watcher,
) -> Result<FewShot> {
    let FewShotSet { train, test } = &protocol.set;
    let classes = train.data.classes().len();
    let by_class = indices_by_class(train, &protocol.shots)?;
    let mut draws: Vec<Vec<Draw>> = Vec::new();
    for shots in &protocol.shots {
        let mut of_shots = Vec::new();
        for number in 0..protocol.seeds.max(1) {
            of_shots.push(draw(system, protocol, &by_class, *shots, number, watcher)?);
        }
        draws.push(of_shots);
    }
    watcher.begins("fitting linear classifiers", 0);
    let mut running: Vec<Vec<Running>> = Vec::new();
    for of_shots in &draws {
        let started = of_shots.iter().map(|draw| start(draw, &protocol.l2));
        running.push(started.collect::<Result<_>>()?);
    }
    watcher.begins("test images", test.data.len());
    let mut samples = 0;
    features(system, test, protocol.batch, watcher, |batch| {
        samples += batch.labels.len();
        let joint = batch.joint();
        for one in running.iter_mut().flatten() {
            for (probe, right) in &mut one.joint {
                *right += count_right(&probe.scores(&joint), classes, &batch.labels);
            }
            let scores = summed_scores(&one.disjoint, &batch);
            one.disjoint_right += count_right(&scores, classes, &batch.labels);
        }
    })?;
    let share = |right: usize| right as f64 / samples.max(1) as f64;
    let estimate = |of: &[Running], right: fn(&Running) -> usize| {
        Estimate::of(&of.iter().map(|one| share(right(one))).collect::<Vec<f64>>())
    };
    let results = protocol.shots.iter().zip(&running).map(|(shots, of_shots)| Shots {
        shots: *shots,
        joint: estimate(of_shots, |one| one.joint[one.chosen].1),
        disjoint: estimate(of_shots, |one| one.disjoint_right),
        joint_best_l2: {
            let with = |l2: usize| of_shots.iter().map(move |one| one.joint[l2].1);
            let best = (0..protocol.l2.len()).max_by_key(|l2| with(*l2).sum::<usize>());
            Estimate::of(&with(best.unwrap_or(0)).map(share).collect::<Vec<f64>>())
        },
    });
    Ok(FewShot {
        models: system.names().to_vec(),
        data: test.name.clone(),
        members: system.members(),
        samples,
        seeds: protocol.seeds.max(1),
        results: results.collect(),
    })
}

/// Indices of the training images by class; fails if a class has too few for any number of shots.
fn indices_by_class(train: &Images, shots: &[usize]) -> Result<Vec<Vec<usize>>> {
    let mut by_class = vec![Vec::new(); train.data.classes().len()];
    for index in 0..train.data.len() {
        if let Some(of_class) = by_class.get_mut(train.data.label(index)) {
            of_class.push(index);
        }
    }
    let most = shots.iter().copied().max().unwrap_or(0);
    match by_class.iter().position(|of_class: &Vec<usize>| of_class.len() < most.max(1)) {
        Some(class) => Err(EvalError::Shots {
            data: train.name.clone(),
            class: train.data.classes()[class].clone(),
            found: by_class[class].len(),
            shots: most,
        }),
        None => Ok(by_class),
    }
}

fn draw(
    system: &System,
    protocol: &FewShotProtocol,
    by_class: &[Vec<usize>],
    shots: usize,
    number: usize,
    watcher: &mut dyn Watcher,
) -> Result<Draw> {
    let seed = Seed::new(protocol.seed).named("few-shot").numbered(number as u64);
    let (mut support, mut choosing) = (Vec::new(), Vec::new());
    for (class, indices) in by_class.iter().enumerate() {
        let mut indices = indices.clone();
        indices.shuffle(&mut seed.numbered(class as u64).rng());
        support.extend_from_slice(&indices[..shots]);
        choosing.extend(indices[shots..].iter().take(CHOOSING));
    }
    // Where every image is a shot, the shots themselves must choose.
    let choosing = if choosing.is_empty() { support.clone() } else { choosing };
    let mut gather = |what: String, indices: Vec<usize>| -> Result<Features> {
        let data: Shared = Arc::new(Selection::new(protocol.set.train.data.clone(), indices));
        watcher.begins(&what, data.len());
        let images = Images { data, ..protocol.set.train.clone() };
        let mut all = Features { members: Vec::new(), labels: Vec::new() };
        features(system, &images, protocol.batch, watcher, |batch| {
            all.members.resize(batch.members.len(), Vec::new());
            all.members.iter_mut().zip(batch.members).for_each(|(all, new)| all.extend(new));
            all.labels.extend(batch.labels);
        })?;
        Ok(all)
    };
    let support = gather(format!("{shots} shots, draw {}", number + 1), support)?;
    let choosing = gather("images that choose the regularisation".to_owned(), choosing)?;
    watcher.begins("preparing linear classifiers", 0);
    let whitened =
        |features: &[f32]| Support::new(features, &support.labels, by_class.len(), system.device());
    let disjoint = support.members.iter().map(|member| whitened(member));
    Ok(Draw {
        joint: whitened(&support.joint())?,
        disjoint: disjoint.collect::<Result<_, _>>()?,
        choosing,
    })
}

fn start<'a>(draw: &'a Draw, l2: &[f64]) -> Result<Running<'a>> {
    let joint: Vec<Probe> = l2.iter().map(|l2| draw.joint.solve(*l2)).collect::<Result<_, _>>()?;
    let (features, labels) = (draw.choosing.joint(), &draw.choosing.labels);
    let accuracies: Vec<f64> =
        joint.iter().map(|probe| probe.accuracy(&features, labels)).collect();
    let chosen = middle_best(&accuracies);
    let best_alone = |(support, features): (&'a Support, &Vec<f32>)| -> Result<Probe<'a>> {
        let probes: Vec<Probe> =
            l2.iter().map(|l2| support.solve(*l2)).collect::<Result<_, _>>()?;
        let accuracies: Vec<f64> =
            probes.iter().map(|probe| probe.accuracy(features, labels)).collect();
        let chosen = middle_best(&accuracies);
        Ok(probes.into_iter().nth(chosen).expect("there is a regulariser"))
    };
    let disjoint = draw.disjoint.iter().zip(&draw.choosing.members).map(best_alone);
    Ok(Running {
        joint: joint.into_iter().map(|probe| (probe, 0)).collect(),
        chosen,
        disjoint: disjoint.collect::<Result<_>>()?,
        disjoint_right: 0,
    })
}

/// The middle one of the places of the largest value: several strengths are often equally good, and
/// the one in the middle is the safest.
fn middle_best(values: &[f64]) -> usize {
    let best = values.iter().copied().fold(f64::MIN, f64::max);
    let places: Vec<usize> = (0..values.len()).filter(|place| values[*place] == best).collect();
    places.get(places.len() / 2).copied().unwrap_or(0)
}

/// `[N, classes]`: the sum of the members' scores, which decides as their mean does.
fn summed_scores(probes: &[Probe], batch: &Features) -> Vec<f64> {
    let mut sum: Vec<f64> = Vec::new();
    for (probe, features) in probes.iter().zip(&batch.members) {
        let scores = probe.scores(features);
        sum.resize(scores.len(), 0.0);
        sum.iter_mut().zip(scores).for_each(|(sum, score)| *sum += score);
    }
    sum
}
