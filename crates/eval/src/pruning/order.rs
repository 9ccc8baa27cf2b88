//! Which experts of a layer are kept.

use omma_base::Seed;
use omma_routing::Gate;
use rand::seq::SliceRandom;

use super::usage::LayerUsage;
use crate::error::{EvalError, Result};

/// How much is to be kept of every layer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Wish {
    /// So many experts.
    Experts(usize),
    /// As few experts as serve this share of the tokens.
    Coverage(f64),
}

/// The experts of a layer in the order in which they are kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeepOrder {
    block: usize,
    /// Those that the gates cannot do without come first: the best `K` of each.
    experts: Vec<usize>,
    /// How many these are.
    least: usize,
}

impl KeepOrder {
    /// By the share of the tokens that they serve, of a modality or of all; of equals those that serve more of all
    /// tokens first, and of such the lower numbers.
    pub fn by_share(layer: &LayerUsage, modality: Option<usize>) -> Result<Self> {
        let (wanted, all) = (layer.shares(modality), layer.shares(None));
        let mut ranked: Vec<usize> = (0..layer.router.experts).collect();
        ranked.sort_by(|a, b| {
            wanted[*b].total_cmp(&wanted[*a]).then(all[*b].total_cmp(&all[*a])).then(a.cmp(b))
        });
        Self::ranked(layer, ranked)
    }

    /// In an order drawn from a seed.
    pub fn at_random(layer: &LayerUsage, seed: Seed) -> Result<Self> {
        let mut ranked: Vec<usize> = (0..layer.router.experts).collect();
        ranked.shuffle(&mut seed.numbered(layer.block as u64).rng());
        Self::ranked(layer, ranked)
    }

    fn ranked(layer: &LayerUsage, mut ranked: Vec<usize>) -> Result<Self> {
        let router = &layer.router;
        let alive = router.pruning.alive(router.experts).map_err(omma_model::ModelError::from)?;
        ranked.retain(|expert| alive[*expert]);
        let gates = router.gates().map_err(omma_model::ModelError::from)?;
        // Experts that choose take what they get: one of them is enough.
        let per_gate = router.token_choice().map_or(1, |choice| choice.k);
        let best = |gate: &Gate| {
            let own = ranked.iter().filter(|expert| gate.experts.contains(expert));
            own.take(per_gate).copied().collect::<Vec<usize>>()
        };
        let needed: Vec<usize> = gates.iter().flat_map(best).collect();
        let (first, rest): (Vec<usize>, Vec<usize>) =
            ranked.iter().partition(|expert| needed.contains(expert));
        let least = first.len();
        Ok(Self { block: layer.block, experts: [first, rest].concat(), least })
    }

    /// Experts that can be kept at most.
    pub fn most(&self) -> usize {
        self.experts.len()
    }

    /// Experts that have to be kept at least.
    pub fn least(&self) -> usize {
        self.least
    }

    /// The first so many, in increasing order.
    pub fn first(&self, experts: usize) -> Result<Vec<usize>> {
        let Self { block, least, .. } = *self;
        let most = self.most();
        if !(least..=most).contains(&experts) {
            return Err(EvalError::Keep { block, experts, least, most });
        }
        let mut kept = self.experts[..experts].to_vec();
        kept.sort_unstable();
        Ok(kept)
    }

    /// As few of the first as have this share together, in increasing order.
    ///
    /// - `shares`: `[E]`
    pub fn covering(&self, shares: &[f64], coverage: f64) -> Result<Vec<usize>> {
        let sum =
            |count: usize| self.experts[..count].iter().map(|expert| shares[*expert]).sum::<f64>();
        // What is added up in another order may be a little less.
        let enough = |count: &usize| sum(*count) >= coverage - 1e-9;
        let count = (self.least..self.most()).find(enough).unwrap_or(self.most());
        self.first(count)
    }

    /// What a wish keeps.
    pub fn keep(&self, shares: &[f64], wish: Wish) -> Result<Vec<usize>> {
        match wish {
            Wish::Experts(count) => self.first(count),
            Wish::Coverage(share) => self.covering(shares, share),
        }
    }
}

#[cfg(test)]
mod tests {
    use omma_model::IMAGES;
    use omma_routing::{Pool, RouterConfig};
    use proptest::prelude::*;

    use super::*;

    fn layer(router: RouterConfig, served: &[f64]) -> LayerUsage {
        let mut layer = LayerUsage::new(3, router);
        layer.add(IMAGES, served);
        layer
    }

    fn sum(experts: &[usize], shares: &[f64]) -> f64 {
        experts.iter().map(|expert| shares[*expert]).sum()
    }

    /// All sets of experts that leave every gate its choices.
    fn allowed(router: &RouterConfig) -> Vec<Vec<usize>> {
        let k = router.token_choice().map_or(1, |choice| choice.k);
        let gates = router.gates().unwrap();
        (0_u32..1 << router.experts)
            .map(|set| (0..router.experts).filter(|expert| set >> expert & 1 == 1).collect())
            .filter(|set: &Vec<usize>| {
                let own = |gate: &Gate| set.iter().filter(|one| gate.experts.contains(one)).count();
                gates.iter().all(|gate| own(gate) >= k)
            })
            .collect()
    }

    #[test]
    fn the_busiest_stay_and_of_equals_the_first() {
        let layer = layer(RouterConfig::softmax_token_choice(5, 1), &[2.0, 5.0, 0.0, 5.0, 8.0]);
        let order = KeepOrder::by_share(&layer, None).unwrap();
        assert_eq!(order.first(1).unwrap(), [4]);
        assert_eq!(order.first(2).unwrap(), [1, 4]);
        assert_eq!(order.first(4).unwrap(), [0, 1, 3, 4]);
        // 8, 13 and 18 of 20.
        let covering = |share| order.covering(&layer.shares(None), share).unwrap();
        assert_eq!([covering(0.4).len(), covering(0.65).len(), covering(0.66).len()], [1, 2, 3]);
        assert_eq!(covering(1.0), [0, 1, 3, 4], "what served nothing covers nothing");
        for wrong in [0, 6] {
            let message = order.first(wrong).unwrap_err().to_string();
            assert!(message.contains("block 3") && message.contains("1 to 5"), "{message}");
        }
    }

    #[test]
    fn every_member_keeps_its_choices() {
        let pool = Pool::Members { members: 2, overlap: 0 };
        let router = RouterConfig { pool, ..RouterConfig::softmax_token_choice(6, 2) };
        let layer = layer(router, &[9.0, 8.0, 7.0, 1.0, 2.0, 3.0]);
        let order = KeepOrder::by_share(&layer, None).unwrap();
        assert_eq!((order.least(), order.most()), (4, 6));
        assert_eq!(order.first(4).unwrap(), [0, 1, 4, 5]);
        assert_eq!(order.first(5).unwrap(), [0, 1, 2, 4, 5]);
        assert!(order.first(3).unwrap_err().to_string().contains("4 to 6"));
    }

    proptest! {
        #[test]
        fn nothing_of_that_size_covers_more_and_nothing_smaller_as_much(
            served in prop::collection::vec(0_u32..20, 6),
            k in 1..3_usize,
            kind in 0..3,
            coverage in 0.05..1.0_f64,
        ) {
            prop_assume!(served.iter().sum::<u32>() > 0);
            let pool = match kind {
                0 => Pool::All,
                1 => Pool::Members { members: 2, overlap: 0 },
                _ => Pool::ExpertsPerModality { experts: vec![4, 2] },
            };
            let router = RouterConfig { pool, ..RouterConfig::softmax_token_choice(6, k) };
            let served: Vec<f64> = served.into_iter().map(f64::from).collect();
            let layer = layer(router.clone(), &served);
            let shares = layer.shares(None);
            let order = KeepOrder::by_share(&layer, None).unwrap();
            let sets = allowed(&router);
            prop_assert_eq!(order.least(), sets.iter().map(Vec::len).min().unwrap());
            for count in order.least()..=order.most() {
                let kept = order.first(count).unwrap();
                prop_assert!(sets.contains(&kept));
                let same = sets.iter().filter(|set| set.len() == count);
                let best = same.map(|set| sum(set, &shares)).fold(0.0, f64::max);
                prop_assert!((sum(&kept, &shares) - best).abs() < 1e-9);
            }
            let kept = order.covering(&shares, coverage).unwrap();
            let enough = sets.iter().filter(|set| sum(set, &shares) >= coverage - 1e-9);
            prop_assert_eq!(kept.len(), enough.map(Vec::len).min().unwrap());
            let random = KeepOrder::at_random(&layer, Seed::new(3)).unwrap();
            for count in random.least()..=random.most() {
                prop_assert!(sets.contains(&random.first(count).unwrap()));
            }
        }
    }
}
