//! The forward passes of the other projects, written out in their own layouts with plain tensor
//! operations: what an import is checked against. Nothing here uses our layers or kernels.

use burn::tensor::{
    Device, Int, Tensor, TensorData,
    activation::{gelu, gelu_approximate, softmax},
    module::conv2d,
    ops::ConvOptions,
};
use omma_base::Seed;
use omma_routing::{Affinity, Pool, Scope};
use rand::RngExt;

use super::{Family, Imported};
use crate::{
    config::{ClassifierConfig, ImageConfig, ModelConfig, Pooling, Position},
    error::Result,
    inputs::sincos2d,
    mode::Mode,
    tensors::TensorSource,
};

/// The largest difference between what the imported model says of one seeded image, and what its
/// checkpoint means by its project's own definition. Nothing where that definition is not written
/// here: soft, transport and image-level routing, and positions that were made for another size.
pub fn largest_difference(
    source: &mut dyn TensorSource,
    imported: &Imported,
    seed: Seed,
    device: &Device,
) -> Result<Option<f32>> {
    let config = imported.model.config();
    let routable = config.moe().is_none_or(|moe| {
        let pool = &moe.router.pool;
        moe.router.token_choice().is_some()
            && moe.router.affinity == Affinity::Softmax
            && moe.router.scope == Scope::Token
            && !moe.multi_pred
            && moe.tiling == 1
            && matches!(pool, Pool::All | Pool::Members { overlap: 0, .. })
    });
    let ImageConfig { resolution, position_resolution, channels, .. } = config.image;
    let fixed = position_resolution.is_none_or(|r| r == resolution);
    let plain = config.encoder.batch_ensemble.is_none() && config.mimo.is_none();
    if !routable || !fixed || !plain {
        return Ok(None);
    }
    let mut rng = seed.named("image").rng();
    let pixels: Vec<f32> =
        (0..resolution.pixels() * channels).map(|_| rng.random_range(-1.0..1.0)).collect();
    let shape = [1, resolution.height, resolution.width, channels];
    let image = Tensor::<4>::from_data(TensorData::new(pixels, shape), device);
    let found = imported.model.forward(image.clone(), &Mode::Inference)?.predictions.logits;
    let mut reference = Reference { family: imported.family, config, source, imported, device };
    let expected = reference.run(image)?;
    let difference = (found - expected).abs().max();
    Ok(Some(difference.try_into_vec_as::<f32>().expect("a float")[0]))
}

/// A forward pass in the terms of the project that wrote the checkpoint.
struct Reference<'a> {
    family: Family,
    config: &'a ModelConfig,
    source: &'a mut dyn TensorSource,
    imported: &'a Imported,
    device: &'a Device,
}

impl Reference<'_> {
    fn head(&self) -> &ClassifierConfig {
        self.config.head.classifier().expect("other projects' models are classifiers")
    }

    /// The tensors behind one of our parameters, in their own layout.
    fn theirs<const R: usize>(&mut self, parameter: &str) -> Result<Vec<Tensor<R>>> {
        let mapping = self.imported.mapping.iter();
        let mapped = mapping.filter(|mapped| mapped.parameter.as_deref() == Some(parameter));
        let names: Vec<String> = mapped.flat_map(|mapped| mapped.tensors.clone()).collect();
        let mut tensors = Vec::new();
        for name in names {
            // Leading axes of size 1, and heads beside their features, are only a way of writing.
            let mut shape = self.source.tensors()[&name].shape.clone();
            while shape.len() > R && shape[0] == 1 {
                shape.remove(0);
            }
            while shape.len() > R {
                let last = shape.pop().unwrap_or(1);
                if let Some(before) = shape.last_mut() {
                    *before *= last;
                }
            }
            let values = self.source.read(&name)?;
            tensors.push(Tensor::from_data(TensorData::new(values, shape.as_slice()), self.device));
        }
        Ok(tensors)
    }

    fn one<const R: usize>(&mut self, parameter: &str) -> Result<Tensor<R>> {
        Ok(self.theirs(parameter)?.remove(0))
    }

    fn pytorch(&self) -> bool {
        !matches!(self.family, Family::GoogleVit | Family::Vmoe)
    }

    /// `x Wᵀ + b` in PyTorch, `x W + b` in Flax, where `W [heads, Dh, D]` ends an attention.
    fn linear(&self, x: Tensor<3>, weight: Tensor<2>, bias: Tensor<1>) -> Tensor<3> {
        let weight = if self.pytorch() { weight.transpose() } else { weight };
        x.matmul(weight.unsqueeze()) + bias.unsqueeze()
    }

    fn norm(&mut self, x: Tensor<3>, name: &str) -> Result<Tensor<3>> {
        let gamma = self.one::<1>(&format!("{name}.gamma"))?;
        let beta = self.one::<1>(&format!("{name}.beta"))?;
        let centred = x.clone() - x.mean_dim(2);
        let variance = centred.clone().square().mean_dim(2);
        Ok(centred / (variance + 1e-6).sqrt() * gamma.unsqueeze() + beta.unsqueeze())
    }

    fn activation(&self, x: Tensor<3>) -> Tensor<3> {
        match self.pytorch() {
            true => gelu(x),
            false => gelu_approximate(x),
        }
    }

    fn mlp(&mut self, x: Tensor<3>, name: &str) -> Result<Tensor<3>> {
        let (up, up_bias) =
            (self.one(&format!("{name}.up"))?, self.one(&format!("{name}.up_bias"))?);
        let down = self.one(&format!("{name}.down"))?;
        let down_bias = self.one(&format!("{name}.down_bias"))?;
        let hidden = self.activation(self.linear(x, up, up_bias));
        Ok(self.linear(hidden, down, down_bias))
    }

    /// `softmax(q kᵀ / √Dh) v`, head by head.
    fn attend(&self, [q, k, v]: [Tensor<3>; 3]) -> Tensor<3> {
        let heads = self.config.encoder.heads;
        let split = |x: Tensor<3>| {
            let [batch, tokens, width] = x.dims();
            x.reshape([batch, tokens, heads, width / heads]).swap_dims(1, 2)
        };
        let [batch, tokens, width] = q.dims();
        let scores = split(q).matmul(split(k).transpose()) / ((width / heads) as f64).sqrt();
        softmax(scores, 3).matmul(split(v)).swap_dims(1, 2).reshape([batch, tokens, width])
    }

    fn attention(&mut self, x: Tensor<3>, name: &str) -> Result<Tensor<3>> {
        let weights = self.theirs::<2>(&format!("{name}.qkv"))?;
        let biases = self.theirs::<1>(&format!("{name}.qkv_bias"))?;
        let parts: Vec<Tensor<3>> = match weights.len() {
            1 => self.linear(x, weights[0].clone(), biases[0].clone()).chunk(3, 2),
            _ => weights
                .into_iter()
                .zip(biases)
                .map(|(weight, bias)| self.linear(x.clone(), weight, bias))
                .collect(),
        };
        let mut parts: [Tensor<3>; 3] = parts.try_into().expect("queries, keys, values");
        if self.config.encoder.qk_norm {
            for (part, which) in parts.iter_mut().zip(["q_norm", "k_norm"]) {
                let gamma = self.one::<1>(&format!("{name}.{which}"))?;
                let [batch, tokens, width] = part.dims();
                let shape =
                    [batch, tokens, self.config.encoder.heads, width / self.config.encoder.heads];
                let split = part.clone().reshape(shape);
                let centred = split.clone() - split.mean_dim(3);
                let variance = centred.clone().square().mean_dim(3);
                let normed = centred / (variance + 1e-6).sqrt() * gamma.unsqueeze();
                *part = normed.reshape([batch, tokens, width]);
            }
        }
        let mixed = self.attend(parts);
        let (out, bias) =
            (self.out(&format!("{name}.out"))?, self.one(&format!("{name}.out_bias"))?);
        Ok(self.linear(mixed, out, bias))
    }

    /// Flax keeps `[heads, Dh, D]`, of which the first two axes are one.
    fn out(&mut self, name: &str) -> Result<Tensor<2>> {
        let width = self.config.encoder.width;
        match self.pytorch() {
            true => self.one(name),
            false => Ok(self.one::<3>(name)?.reshape([width, width])),
        }
    }

    /// Every expert on every token, weighted by the gates of the `k` best.
    fn moe(&mut self, x: Tensor<3>, name: &str, members: usize) -> Result<Tensor<3>> {
        let moe = self.config.moe().cloned().expect("a block with experts has settings");
        let k = moe.k().expect("tokens choose");
        let [rows, tokens, width] = x.dims();
        let gate =
            self.one::<2>(&format!("{name}.router.weight"))?.reshape([width, moe.router.experts]);
        let own = moe.router.experts / members;
        let flat = x.reshape([rows * tokens, width]);
        let logits = flat.clone().matmul(gate);
        let member: Vec<i32> =
            (0..rows * tokens).map(|row| (row / tokens % members) as i32).collect();
        let mut output = Tensor::zeros([rows * tokens, width], self.device);
        for m in 0..members {
            let of_member: Vec<f32> =
                member.iter().map(|of| f32::from(u8::from(*of == m as i32))).collect();
            let of_member = Tensor::<1>::from_floats(of_member.as_slice(), self.device);
            let gates = softmax(logits.clone().narrow(1, m * own, own), 1);
            let (_, best): (_, Tensor<2, Int>) = gates.clone().topk_with_indices(k, 1);
            let chosen = Tensor::<2>::zeros_like(&gates).scatter(
                1,
                best,
                Tensor::ones([rows * tokens, k], self.device),
                burn::tensor::IndexingUpdateOp::Add,
            );
            let gates = gates * chosen * of_member.unsqueeze_dim(1);
            for expert in 0..own {
                let index = m * own + expert;
                let part = |parameter: &str, this: &mut Self| -> Result<Tensor<3>> {
                    this.one::<3>(&format!("{name}.experts.{parameter}"))
                };
                let up = part("up", self)?.narrow(0, index, 1);
                let down = part("down", self)?.narrow(0, index, 1);
                let up_bias =
                    self.one::<2>(&format!("{name}.experts.up_bias"))?.narrow(0, index, 1);
                let down_bias =
                    self.one::<2>(&format!("{name}.experts.down_bias"))?.narrow(0, index, 1);
                let inputs = flat.clone().unsqueeze::<3>();
                let hidden = self.activation(inputs.matmul(up) + up_bias.unsqueeze());
                let result = hidden.matmul(down) + down_bias.unsqueeze();
                let weight = gates.clone().narrow(1, expert, 1);
                output = output + result.reshape([rows * tokens, width]) * weight;
            }
        }
        Ok(output.reshape([rows, tokens, width]))
    }

    fn embed(&mut self, image: Tensor<4>) -> Result<Tensor<3>> {
        let kernel = self.one::<4>("embed.weight")?;
        let kernel = if self.pytorch() { kernel } else { kernel.permute([3, 2, 0, 1]) };
        let bias = self.one::<1>("embed.bias")?;
        let options = ConvOptions::new([self.config.image.patch; 2], [0, 0], [1, 1], 1);
        let patches = conv2d(image.permute([0, 3, 1, 2]), kernel, Some(bias), options);
        let [_, width, rows, columns] = patches.dims();
        let patches = patches.reshape([1, width, rows * columns]).swap_dims(1, 2);
        let mut prefix = Vec::new();
        if self.config.image.class_token {
            prefix.push(self.one::<1>("embed.class_token")?.reshape([1, 1, width]));
        }
        let registers = match self.config.image.registers {
            0 => None,
            n => Some(self.one::<2>("embed.registers")?.reshape([1, n, width])),
        };
        let positions = match self.config.image.position {
            Position::Learned | Position::LearnedPatches => {
                let all = self.one::<2>("embed.position")?;
                let [n, _] = all.dims();
                Some(all.reshape([1, n, width]))
            }
            Position::Sincos2d => Some(sincos2d((rows, columns), width, self.device).unsqueeze()),
            Position::None => None,
        };
        let Some(positions) = positions else {
            prefix.extend(registers);
            prefix.push(patches);
            return Ok(Tensor::cat(prefix, 1));
        };
        // As many positions as patches, or as tokens with or without the registers.
        let covered = positions.dims()[1] - rows * columns;
        let all_covered = covered > prefix.len();
        if all_covered {
            prefix.extend(registers.clone());
        }
        let tokens = match covered {
            0 => {
                let patches = patches + positions;
                prefix.extend(registers);
                prefix.push(patches);
                return Ok(Tensor::cat(prefix, 1));
            }
            _ => {
                prefix.push(patches);
                Tensor::cat(prefix, 1) + positions
            }
        };
        match registers.filter(|_| !all_covered) {
            Some(registers) => {
                let [_, n, _] = tokens.dims();
                let (class, rest) = (tokens.clone().narrow(1, 0, 1), tokens.narrow(1, 1, n - 1));
                Ok(Tensor::cat(vec![class, registers, rest], 1))
            }
            None => Ok(tokens),
        }
    }

    fn scaled(&mut self, x: Tensor<3>, name: &str) -> Result<Tensor<3>> {
        match self.config.encoder.layer_scale {
            Some(_) => Ok(x * self.one::<1>(name)?.unsqueeze()),
            None => Ok(x),
        }
    }

    fn run(&mut self, image: Tensor<4>) -> Result<Tensor<3>> {
        let mut x = self.embed(image)?;
        let kinds = self.config.encoder.feed_forwards()?;
        let tiling = self.config.encoder.tiling()?;
        let mut members = 1;
        for (index, kind) in kinds.iter().enumerate() {
            if let Some(tiling) = tiling.filter(|tiling| tiling.block == index) {
                members = tiling.members;
                x = x.repeat_dim(0, members);
            }
            let name = format!("blocks.{index}");
            let normed = self.norm(x.clone(), &format!("{name}.norm1"))?;
            let branch = self.attention(normed, &format!("{name}.attention"))?;
            x = x + self.scaled(branch, &format!("{name}.scale1"))?;
            let normed = self.norm(x.clone(), &format!("{name}.norm2"))?;
            let inside = format!("{name}.feed_forward");
            let branch = match kind {
                crate::config::FeedForwardKind::Moe => self.moe(normed, &inside, members)?,
                _ => self.mlp(normed, &inside)?,
            };
            x = x + self.scaled(branch, &format!("{name}.scale2"))?;
        }
        let features = self.pool(x)?; // [members, 1, features]
        let features = match self.head().representation {
            Some(_) => {
                let (weight, bias) =
                    (self.one("representation.weight")?, self.one("representation.bias")?);
                self.linear(features, weight, bias).tanh()
            }
            None => features,
        };
        match self.config.classes() {
            0 => Ok(features),
            _ => {
                let (weight, bias) = (self.one("head.weight")?, self.one("head.bias")?);
                Ok(self.linear(features, weight, bias))
            }
        }
    }

    fn pool(&mut self, x: Tensor<3>) -> Result<Tensor<3>> {
        let [_, tokens, _] = x.dims();
        let prefix = self.config.image.prefix_tokens();
        if self.head().pooling == Pooling::PatchMean {
            return self.norm(x.narrow(1, prefix, tokens - prefix).mean_dim(1), "norm");
        }
        let x = self.norm(x, "norm")?;
        let mean = |x: Tensor<3>, first: usize| x.narrow(1, first, tokens - first).mean_dim(1);
        Ok(match self.head().pooling {
            Pooling::Token => x.narrow(1, 0, 1),
            Pooling::TokenAndMean => {
                Tensor::cat(vec![x.clone().narrow(1, 0, 1), mean(x, prefix)], 2)
            }
            Pooling::Map => {
                let width = self.config.encoder.width;
                let mut part = |x: Tensor<3>, name: &str| -> Result<Tensor<3>> {
                    let weight = match name {
                        "out" => self.out("pool.out.weight")?,
                        _ => self.one::<2>(&format!("pool.{name}.weight"))?,
                    };
                    let bias = self.one::<1>(&format!("pool.{name}.bias"))?;
                    Ok(self.linear(x, weight, bias))
                };
                let [rows, _, _] = x.dims();
                let probe = |this: &mut Self| this.one::<1>("pool.probe");
                let (key, value) = (part(x.clone(), "key")?, part(x, "value")?);
                let probe = probe(self)?.reshape([1, 1, width]).repeat_dim(0, rows);
                let query = {
                    let weight = self.one::<2>("pool.query.weight")?;
                    let bias = self.one::<1>("pool.query.bias")?;
                    self.linear(probe, weight, bias)
                };
                let found = self.attend([query, key, value]);
                let (out, bias) = (self.out("pool.out.weight")?, self.one("pool.out.bias")?);
                let z = self.linear(found, out, bias);
                let normed = self.norm(z.clone(), "pool.norm")?;
                z + self.mlp(normed, "pool.mlp")?
            }
            _ => mean(x, 0),
        })
    }
}
