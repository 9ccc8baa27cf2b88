//! How far the load of experts is from what it was in training.

/// What the experts of a layer had to do.
#[derive(Debug, Clone, PartialEq)]
pub struct ExpertLoad {
    /// The model that the layer is in.
    pub part: String,
    /// The block that it is in.
    pub block: usize,
    /// `[E]`: tokens, or shares of them.
    pub load: Vec<f64>,
}

/// What the experts of a layer had to do lately, beside what they had to in training.
#[derive(Debug, Clone, PartialEq)]
pub struct RecentLoad {
    /// The model that the layer is in.
    pub part: String,
    /// The block that it is in.
    pub block: usize,
    /// Images that it has seen since it is served.
    pub images: u64,
    /// `[E]`: shares, newer images counting more.
    pub load: Vec<f64>,
    /// `[E]`: shares, where they are known.
    pub training: Option<Vec<f64>>,
}

/// Images after which older ones count half.
const HALF_LIFE: usize = 4096;

struct Layer {
    now: ExpertLoad,
    images: usize,
    seen: u64,
    /// `[E]`: shares, where they are known.
    training: Option<Vec<f64>>,
}

/// The loads of a model's layers, newer images counting more.
pub(crate) struct Drift {
    training: Vec<ExpertLoad>,
    layers: Vec<Layer>,
}

impl Drift {
    pub(crate) fn new(training: Vec<ExpertLoad>) -> Self {
        Self { training, layers: Vec::new() }
    }

    /// Experts of all layers that were seen.
    pub(crate) fn experts(&self) -> usize {
        self.layers.iter().map(|layer| layer.now.load.len()).sum()
    }

    /// Adds what a layer did, and says how far its load is from that of training, if that is known.
    pub(crate) fn add(
        &mut self,
        part: &str,
        block: usize,
        load: Vec<f64>,
        images: usize,
    ) -> Option<f64> {
        let is_own = |own: &ExpertLoad| own.part == part && own.block == block;
        let place = self.layers.iter().position(|layer| is_own(&layer.now)).unwrap_or_else(|| {
            let training = self.training.iter().find(|own| is_own(own));
            let training = training.filter(|own| own.load.len() == load.len());
            let training = training.map(|own| shares(&own.load));
            let now = ExpertLoad { part: part.to_owned(), block, load: vec![0.0; load.len()] };
            self.layers.push(Layer { now, images: 0, seen: 0, training });
            self.layers.len() - 1
        });
        let layer = &mut self.layers[place];
        layer.images += images;
        layer.seen += images as u64;
        if layer.images > HALF_LIFE {
            layer.images /= 2;
            layer.now.load.iter_mut().for_each(|sum| *sum /= 2.0);
        }
        layer.now.load.iter_mut().zip(load).for_each(|(sum, load)| *sum += load);
        let training = layer.training.as_ref()?;
        Some(load_drift(&shares(&layer.now.load), training))
    }

    /// Layer by layer.
    pub(crate) fn loads(&self) -> Vec<RecentLoad> {
        let recent = |layer: &Layer| RecentLoad {
            part: layer.now.part.clone(),
            block: layer.now.block,
            images: layer.seen,
            load: shares(&layer.now.load),
            training: layer.training.clone(),
        };
        self.layers.iter().map(recent).collect()
    }
}

/// How far two loads are from each other, `[E]` shares each: half the sum of their differences, from 0 for the same to
/// 1 for other experts altogether.
pub fn load_drift(load: &[f64], training: &[f64]) -> f64 {
    let apart = load.iter().zip(training).map(|(a, b)| (a - b).abs()).sum();
    0.5 * f64::min(apart, 2.0)
}

fn shares(load: &[f64]) -> Vec<f64> {
    let sum: f64 = load.iter().sum();
    load.iter().map(|load| if sum > 0.0 { load / sum } else { 0.0 }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distance_is_half_the_sum_of_differences_and_follows_new_images() {
        let training = ExpertLoad { part: "a".to_owned(), block: 1, load: vec![3.0, 1.0] };
        let mut drift = Drift::new(vec![training]);
        assert_eq!(drift.add("a", 1, vec![75.0, 25.0], 10), Some(0.0));
        assert_eq!(drift.add("a", 1, vec![0.0, 100.0], 10), Some(0.375));
        assert_eq!(drift.add("b", 1, vec![1.0, 0.0], 1), None, "nothing is known of it");
        for _ in 0..40 {
            drift.add("a", 1, vec![300.0, 100.0], HALF_LIFE / 2);
        }
        assert!(
            drift.add("a", 1, vec![0.0; 2], 0).unwrap() < 1e-3,
            "what is long ago is forgotten"
        );
        let loads = drift.loads();
        assert_eq!((loads.len(), drift.experts()), (2, 4));
        assert_eq!(loads[0].images, 20 + 40 * (HALF_LIFE as u64 / 2));
        assert_eq!(loads[0].training, Some(vec![0.75, 0.25]));
        assert_eq!((&loads[1].load, &loads[1].training), (&vec![1.0, 0.0], &None));
    }
}
