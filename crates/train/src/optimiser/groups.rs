//! Which parameters decay, and how fast each layer learns.

/// What sets a parameter apart from others.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Group {
    /// Whether weight decay pulls at it: matrices yes; biases, norms, positions, tokens and scales no.
    pub decays: bool,
    /// Its learning rate as a share of the optimiser's.
    pub rate: f64,
}

/// Last parts of the names of parameters that have several axes and are no matrices: positions,
/// tokens, and the fast weights of BatchEnsemble.
const NOT_MATRICES: &[&str] = &["position", "registers", "up_in", "up_out", "down_in", "down_out"];

impl Group {
    /// The group of a parameter by its name, in a model of so many blocks. With a layer decay `d`, the
    /// embedding learns at `d^(depth + 1)`, block `i` at `d^(depth - i)`, and the head at 1.
    pub fn of(name: &str, shape: &[usize], depth: usize, layer_decay: f64) -> Self {
        let layer = match name.split('.').collect::<Vec<_>>().as_slice() {
            ["embed", ..] => 0,
            ["blocks", block, ..] => block.parse::<usize>().map_or(depth, |block| block + 1),
            _ => depth + 1,
        };
        let last = name.rsplit('.').next().unwrap_or_default();
        let decays = shape.len() > 1 && !last.ends_with("bias") && !NOT_MATRICES.contains(&last);
        Self { decays, rate: layer_decay.powi((depth + 1 - layer.min(depth + 1)) as i32) }
    }
}

#[cfg(test)]
mod tests {
    use omma_base::Seed;
    use omma_model::{parameters, preset};

    use super::*;

    #[test]
    fn matrices_decay_and_nothing_else_does() {
        let mut still = Vec::new();
        for name in ["vmoe-tiny", "softmoe-tiny", "vit-s14"] {
            let config = preset(name).unwrap();
            let model = config.init(Seed::new(0), &burn::tensor::Device::flex()).unwrap();
            for p in parameters(&model) {
                let group = Group::of(&p.name, &p.shape, config.encoder.depth, 1.0);
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
        let rate = |name| Group::of(name, &[2, 2], 12, 0.65).rate;
        assert_eq!(rate("head.weight"), 1.0);
        assert_eq!(rate("norm.gamma"), 1.0);
        assert!((rate("blocks.11.attention.qkv") - 0.65).abs() < 1e-12);
        assert!((rate("blocks.0.attention.qkv") - 0.65_f64.powi(12)).abs() < 1e-12);
        assert!((rate("embed.weight") - 0.65_f64.powi(13)).abs() < 1e-12);
    }
}
