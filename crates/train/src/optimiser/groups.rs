//! Which parameters decay, and how fast each layer learns.

use super::OptimiserConfig;

/// What sets a parameter apart from others.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Group {
    /// Whether weight decay pulls at it: matrices yes; biases, norms, positions, tokens and scales no.
    pub decays: bool,
    /// Its learning rate as a share of the optimiser's.
    pub rate: f64,
}

/// Last parts of the names of parameters that have several axes and are no matrices.
const NOT_MATRICES: &[&str] = &["position", "registers", "labels"];
/// Last parts of the names of BatchEnsemble's fast weights, which are none either.
const FAST_WEIGHTS: &[&str] = &["up_in", "up_out", "down_in", "down_out"];

impl Group {
    /// The group of a parameter by its name, in a model of so many blocks. With a layer decay `d`, the
    /// embedding learns at `d^(depth + 1)`, block `i` at `d^(depth - i)`, and the head at 1; fast weights
    /// learn at their own share of that (paper 000 App. G.1).
    pub fn of(name: &str, shape: &[usize], depth: usize, config: &OptimiserConfig) -> Self {
        let layer = match name.split('.').collect::<Vec<_>>().as_slice() {
            ["embed", ..] | ["text", "embedding" | "position"] => 0,
            ["text", "blocks", block, ..] => block.parse().map_or(depth, |block: usize| block + 1),
            ["blocks", block, ..] => block.parse::<usize>().map_or(depth, |block| block + 1),
            _ => depth + 1,
        };
        let last = name.rsplit('.').next().unwrap_or_default();
        let fast = FAST_WEIGHTS.contains(&last);
        let matrix = shape.len() > 1 && !last.ends_with("bias") && !NOT_MATRICES.contains(&last);
        let of_layer = config.layer_decay.powi((depth + 1 - layer.min(depth + 1)) as i32);
        let of_kind = if fast { config.fast_weight_rate } else { 1.0 };
        Self { decays: matrix && !fast, rate: of_layer * of_kind }
    }
}

#[cfg(test)]
mod tests {
    use omma_base::Seed;
    use omma_model::{apply_settings, parameters, preset};

    use super::*;

    #[test]
    fn matrices_decay_and_nothing_else_does() {
        let mut still = Vec::new();
        for name in ["vmoe-tiny", "softmoe-tiny", "vit-s14"] {
            let config = preset(name).unwrap();
            let model = config.init(Seed::new(0), &burn::tensor::Device::flex()).unwrap();
            for p in parameters(&model) {
                let optimiser = OptimiserConfig::default();
                let group = Group::of(&p.name, &p.shape, config.encoder.depth, &optimiser);
                if group.decays {
                    let last = p.name.rsplit('.').next().unwrap_or_default().to_owned();
                    still.push(last);
                }
                assert_eq!(group.rate, 1.0);
            }
        }
        still.sort();
        still.dedup();
        assert_eq!(still, ["down", "out", "qkv", "up", "weight"]);
    }

    #[test]
    fn lower_layers_learn_more_slowly() {
        let config = OptimiserConfig { layer_decay: 0.65, ..OptimiserConfig::default() };
        let rate = |name| Group::of(name, &[2, 2], 12, &config).rate;
        assert_eq!(rate("head.weight"), 1.0);
        assert_eq!(rate("norm.gamma"), 1.0);
        assert!((rate("blocks.11.attention.qkv") - 0.65).abs() < 1e-12);
        assert!((rate("blocks.0.attention.qkv") - 0.65_f64.powi(12)).abs() < 1e-12);
        assert!((rate("embed.weight") - 0.65_f64.powi(13)).abs() < 1e-12);
    }

    /// Paper 000 App. G.1: "the vectors of the rank-1 parametrization are updated with a learning rate
    /// scaled by a factor in {0.5, 1, 2}"; the matrices that members share, and biases, are not.
    #[test]
    fn fast_weights_learn_at_a_rate_of_their_own() {
        for factor in [0.5, 1.0, 2.0] {
            let config = OptimiserConfig { fast_weight_rate: factor, ..OptimiserConfig::default() };
            let model = preset("vit-tiny").unwrap();
            let model = apply_settings(&model, &["batch_ensemble.members=2"]).unwrap();
            let model = model.init(Seed::new(0), &burn::tensor::Device::flex()).unwrap();
            let mut fast = 0;
            for p in parameters(&model) {
                let vector = FAST_WEIGHTS.iter().any(|name| p.name.ends_with(name));
                let expected = if vector { factor } else { 1.0 };
                fast += usize::from(vector);
                let group = Group::of(&p.name, &p.shape, 6, &config);
                assert_eq!(group.rate, expected, "{}", p.name);
                assert!(!(vector && group.decays), "{}", p.name);
            }
            assert_eq!(fast, 2 * 4, "four of every block with fast weights");
        }
    }
}
