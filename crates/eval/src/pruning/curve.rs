//! What a model scores with fewer and fewer experts (paper 002 App. E.4, Fig. 14 and 15).

use omma_base::Seed;
use omma_model::{
    IMAGES, TEXTS, VisionTransformer,
    systems::{KeptExperts, prune},
};
use omma_routing::PruneMode;
use serde::{Deserialize, Serialize};

use super::{
    judge::{Judge, ModelScore},
    order::KeepOrder,
    usage::LayerUsage,
};
use crate::{error::Result, stream::Watcher};

/// What is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CurveProtocol {
    /// The tokens that pass the pruned model, and by whose shares it is pruned; the others pass the whole one.
    pub modality: Option<usize>,
    /// Orders that are drawn, to be compared with.
    pub seeds: u64,
}

/// How experts are chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum KeptBy {
    /// Those that serve most.
    Rank,
    /// Any.
    Chance {
        /// Where they come from.
        seed: u64,
    },
}

/// One model.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct CurvePoint {
    /// Experts that every layer has left, or all that it had.
    pub experts: usize,
    /// What the router does about the others.
    pub mode: PruneMode,
    /// How they were chosen.
    pub kept_by: KeptBy,
    /// Share of the tokens' choices in the whole model that are experts which are left: the mean of the layers.
    pub coverage: f64,
    /// What it scores.
    #[serde(flatten)]
    pub score: ModelScore,
}

/// Scores against experts that are left.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PruningCurve {
    /// What the accuracy is called.
    pub measure: String,
    /// Experts of a layer of the whole model.
    pub experts: usize,
    /// What that scores.
    pub whole: ModelScore,
    /// By number of experts, then by mode, those by rank before those by chance.
    pub points: Vec<CurvePoint>,
}

/// Numbers of experts that a curve has at most.
const MOST: usize = 12;

/// Prunes a model again and again, in memory, and scores what is left; nothing where it scores nothing.
///
/// - `usage`: of the whole model
pub fn pruning_curve(
    model: &VisionTransformer,
    usage: &[LayerUsage],
    judge: &Judge,
    protocol: CurveProtocol,
    watcher: &mut dyn Watcher,
) -> Result<Option<PruningCurve>> {
    let CurveProtocol { modality, seeds } = protocol;
    let Some(measure) = judge.measure(model) else { return Ok(None) };
    let ranked = orders(usage, |layer| KeepOrder::by_share(layer, modality))?;
    let random = (0..seeds).map(|seed| {
        let draw = |layer: &LayerUsage| KeepOrder::at_random(layer, Seed::new(seed));
        Ok((KeptBy::Chance { seed }, orders(usage, draw)?))
    });
    let ways: Vec<(KeptBy, Vec<KeepOrder>)> =
        std::iter::once(Ok((KeptBy::Rank, ranked.clone()))).chain(random).collect::<Result<_>>()?;
    let least = ranked.iter().map(KeepOrder::least).max().unwrap_or(1);
    let most = ranked.iter().map(KeepOrder::most).max().unwrap_or(1);
    let whole = judge.score("the whole model", model, model, watcher)?;
    // Where texts alone pass what is left, images pass the whole model once.
    let images = match modality {
        Some(TEXTS) => Some((judge.embedded(model, watcher)?, model.scale())),
        _ => None,
    };
    let mut points = Vec::new();
    for experts in counts(least, most) {
        for mode in [PruneMode::Predict, PruneMode::Drop] {
            for (kept_by, orders) in &ways {
                let kept = kept(usage, orders, experts)?;
                let coverage = coverage(usage, &kept, modality);
                let score = match experts == most {
                    true => whole,
                    false => {
                        let what = format!("{experts} of {most} experts");
                        let pruned = prune(model, &kept, mode, judge.device)?;
                        let of_texts = if modality == Some(IMAGES) { model } else { &pruned };
                        match &images {
                            Some((images, scale)) => {
                                judge.score_texts(&what, (images, *scale), of_texts, watcher)?
                            }
                            None => judge.score(&what, &pruned, of_texts, watcher)?,
                        }
                    }
                };
                points.push(CurvePoint { experts, mode, kept_by: *kept_by, coverage, score });
            }
        }
    }
    Ok(Some(PruningCurve { measure: measure.to_owned(), experts: most, whole, points }))
}

fn orders(
    usage: &[LayerUsage],
    order: impl Fn(&LayerUsage) -> Result<KeepOrder>,
) -> Result<Vec<KeepOrder>> {
    usage.iter().map(order).collect()
}

/// The first experts of every layer, as many of them as it has.
fn kept(usage: &[LayerUsage], orders: &[KeepOrder], experts: usize) -> Result<Vec<KeptExperts>> {
    let kept = usage.iter().zip(orders).map(|(layer, order)| {
        let experts = order.first(experts.clamp(order.least(), order.most()))?;
        Ok(KeptExperts { block: layer.block, experts })
    });
    kept.collect()
}

/// The mean of the layers' coverages.
fn coverage(usage: &[LayerUsage], kept: &[KeptExperts], modality: Option<usize>) -> f64 {
    let of_layer = |(layer, kept): (&LayerUsage, &KeptExperts)| {
        let shares = layer.shares(modality);
        kept.experts.iter().map(|expert| shares[*expert]).sum::<f64>()
    };
    usage.iter().zip(kept).map(of_layer).sum::<f64>() / usage.len().max(1) as f64
}

/// Numbers from the least to the most: all, or the small ones and then wider and wider steps.
fn counts(least: usize, most: usize) -> Vec<usize> {
    let all = most + 1 - least.min(most);
    if all <= MOST {
        return (least.min(most)..=most).collect();
    }
    let (low, high) = ((least as f64).ln(), (most as f64).ln());
    let step = |place: usize| low + (high - low) * place as f64 / (MOST - 1) as f64;
    let mut counts: Vec<usize> =
        (0..MOST).map(|place| step(place).exp().round() as usize).collect();
    counts.dedup();
    counts
}

impl PruningCurve {
    /// Of a way and mode: experts, and the mean and the standard deviation of a number over its points.
    pub(super) fn series(
        &self,
        mode: PruneMode,
        by_rank: bool,
        of: impl Fn(&CurvePoint) -> f64,
    ) -> Vec<(usize, f64, f64)> {
        let own =
            |point: &&CurvePoint| point.mode == mode && (point.kept_by == KeptBy::Rank) == by_rank;
        let own: Vec<&CurvePoint> = self.points.iter().filter(own).collect();
        own.chunk_by(|a, b| a.experts == b.experts)
            .map(|points| {
                let count = points.len() as f64;
                let mean = points.iter().map(|point| of(point)).sum::<f64>() / count;
                let squares = points.iter().map(|point| (of(point) - mean).powi(2)).sum::<f64>();
                let deviation = if count > 1.0 { (squares / (count - 1.0)).sqrt() } else { 0.0 };
                (points[0].experts, mean, deviation)
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_curve_has_the_ends_and_no_number_twice() {
        assert_eq!(counts(1, 8), [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(counts(2, 4), [2, 3, 4]);
        assert_eq!(counts(3, 3), [3]);
        let wide = counts(1, 32);
        assert_eq!((wide[0], *wide.last().unwrap()), (1, 32));
        assert!(wide.len() <= MOST && wide.windows(2).all(|pair| pair[0] < pair[1]), "{wide:?}");
        assert!(wide.contains(&4), "{wide:?}");
    }

    #[test]
    fn seeds_are_averaged() {
        let point = |experts, kept_by, accuracy| CurvePoint {
            experts,
            mode: PruneMode::Drop,
            kept_by,
            coverage: 0.5,
            score: ModelScore { accuracy, nll: None },
        };
        let chance = |seed| KeptBy::Chance { seed };
        let curve = PruningCurve {
            measure: "accuracy".to_owned(),
            experts: 2,
            whole: ModelScore { accuracy: 1.0, nll: None },
            points: vec![
                point(1, KeptBy::Rank, 0.9),
                point(1, chance(0), 0.2),
                point(1, chance(1), 0.4),
                point(2, chance(0), 1.0),
            ],
        };
        let series = |rank| curve.series(PruneMode::Drop, rank, |point| point.score.accuracy);
        assert_eq!(series(true), [(1, 0.9, 0.0)]);
        let random = series(false);
        assert!((random[0].1 - 0.3).abs() < 1e-12 && (random[0].2 - 0.02_f64.sqrt()).abs() < 1e-12);
        assert_eq!(random[1], (2, 1.0, 0.0));
        assert!(curve.series(PruneMode::Predict, true, |point| point.coverage).is_empty());
    }
}
