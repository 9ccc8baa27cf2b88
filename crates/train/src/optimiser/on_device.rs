//! Optimisers whose parameters, gradients and memories stay on a device: nothing of them is copied in a step.
//!
//! Every parameter and every vector is one row, in the order that it has on the host, so both forms read and write
//! the same files. Sums are in single precision, and in the order that the device likes; on the host they are in
//! double precision. So both agree within rounding, not to the bit.

use burn::tensor::{Device, Tensor, TensorData};
use omma_base::transfer;

use super::{Memory, Optimiser, clip::scale};

/// What an optimiser remembers of every parameter, on a device.
#[derive(Debug, Clone)]
pub(crate) struct DeviceMemories(Vec<Vec<Tensor<1>>>);

impl Optimiser {
    /// Moves what is remembered to a device, without a graph of gradients; on the host nothing is left.
    pub(crate) fn move_to(&mut self, device: &Device) -> DeviceMemories {
        let moved = |memory: &mut Memory| {
            let vectors = memory.vectors.iter_mut().map(std::mem::take);
            vectors.map(|vector| row(vector, device)).collect()
        };
        DeviceMemories(self.memories.iter_mut().map(moved).collect())
    }

    /// Copies what is remembered on a device to the host.
    pub(crate) fn fetch(&mut self, memories: &DeviceMemories) {
        for (memory, on_device) in self.memories.iter_mut().zip(&memories.0) {
            memory.vectors = on_device.iter().map(read).collect();
        }
    }

    /// Forgets what was fetched.
    pub(crate) fn release(&mut self) {
        self.memories.iter_mut().for_each(|memory| memory.vectors = Vec::new());
    }

    /// One step at a learning rate, by gradients of a norm that are clipped: where the parameters go.
    pub(crate) fn step_on_device(
        &mut self,
        rate: f64,
        memories: &mut DeviceMemories,
        values: Vec<Tensor<1>>,
        (gradients, norm): (Vec<Tensor<1>>, f64),
    ) -> Vec<Tensor<1>> {
        self.steps += 1;
        let clipped = scale(norm, self.config.clip_norm);
        let own = self.memories.iter().zip(&mut memories.0);
        let moved =
            own.zip(values).zip(gradients).map(|(((memory, vectors), values), gradient)| {
                let step = self.config.step_of(self.steps, rate, &memory.shape, &memory.group);
                let gradient = match clipped {
                    Some(scale) => gradient * scale,
                    None => gradient,
                };
                self.rule.update_on_device(step, values, gradient, vectors)
            });
        moved.collect()
    }
}

/// Values as a row on a device.
pub(crate) fn row(values: Vec<f32>, device: &Device) -> Tensor<1> {
    transfer::brought(&values);
    let length = values.len();
    Tensor::from_data(TensorData::new(values, [length]), device)
}

/// A row's values, on the host.
pub(crate) fn read(row: &Tensor<1>) -> Vec<f32> {
    let values: Vec<f32> = row.clone().try_into_vec_as().expect("a row is of floats");
    transfer::fetched(&values);
    values
}

/// `[1]`: the length of a vector.
pub(super) fn norm(values: Tensor<1>) -> Tensor<1> {
    values.square().sum().sqrt()
}

/// `[1]`: the root of the mean square.
pub(super) fn rms(values: Tensor<1>) -> Tensor<1> {
    values.square().mean().sqrt()
}

#[cfg(test)]
mod tests {
    use omma_base::Seed;
    use rand::RngExt;

    use super::*;
    use crate::optimiser::{
        Group, OptimiserConfig, OptimiserKind, Schedule, clip_global_norm, global_norm,
    };

    /// Names that are in groups of their own; shapes of every rank, factored along every pair of axes.
    const PARAMETERS: [(&str, &[usize]); 7] = [
        ("embed.weight", &[12, 8]),
        ("blocks.0.feed_forward.experts.up", &[3, 8, 10]),
        ("blocks.0.feed_forward.experts.down", &[10, 3, 8]),
        ("blocks.1.attention.qkv", &[8, 3, 9, 2]),
        ("blocks.1.feed_forward.up_in", &[2, 8]),
        ("norm.gamma", &[9]),
        ("head.weight", &[8, 5]),
    ];

    fn config(kind: OptimiserKind, clip_norm: f64) -> OptimiserConfig {
        OptimiserConfig {
            kind,
            clip_norm,
            weight_decay: 0.1,
            layer_decay: 0.7,
            fast_weight_rate: 0.5,
            factor_from: 8,
            ..OptimiserConfig::default()
        }
    }

    fn optimiser(config: OptimiserConfig) -> Optimiser {
        Optimiser::new(config, 2, PARAMETERS)
    }

    fn drawn(seed: Seed, size: f32) -> Vec<Vec<f32>> {
        let mut rng = seed.rng();
        let draw = |(_, shape): (&str, &[usize])| {
            let count = shape.iter().product::<usize>();
            (0..count).map(|_| rng.random_range(-size..size)).collect()
        };
        PARAMETERS.map(draw).to_vec()
    }

    /// Gradients that become larger, and zeros in the first of them.
    fn gradients(step: u64) -> Vec<Vec<f32>> {
        let mut drawn = drawn(Seed::new(7).numbered(step), 0.1 * (1 + step) as f32);
        drawn[0][..30].fill(0.0);
        drawn
    }

    fn rows(values: &[Vec<f32>]) -> Vec<Tensor<1>> {
        values.iter().map(|values| row(values.clone(), &Device::flex())).collect()
    }

    fn assert_near(found: &[Vec<f32>], expected: &[Vec<f32>], what: &str) {
        for (found, expected) in found.iter().zip(expected) {
            assert_eq!(found.len(), expected.len(), "{what}");
            for (a, b) in found.iter().zip(expected) {
                assert!((a - b).abs() <= 2e-6 + 2e-5 * b.abs(), "{what}: {a} is not {b}");
            }
        }
    }

    fn vectors(optimiser: &Optimiser) -> Vec<Vec<f32>> {
        optimiser.memories().iter().flat_map(|memory| memory.vectors.clone()).collect()
    }

    /// Steps on the host and on a device, from the same start; `crossing` of them on the host first.
    fn both(config: OptimiserConfig, crossing: u64) {
        let what = format!("{:?}, clipped at {}", config.kind, config.clip_norm);
        let schedule = Schedule { warmup: 3.0, ..Schedule::default() };
        let mut values = drawn(Seed::new(1), 0.5);
        // A parameter of zeros has no length, which LAMB minds.
        values[5].fill(0.0);
        let mut on_host = optimiser(config);
        let mut moved = optimiser(config);
        let mut start = values.clone();
        for step in 0..crossing {
            let mut gradients = gradients(step);
            clip_global_norm(&mut gradients, config.clip_norm);
            moved.step(0.02 * schedule.share(step, 12), &mut start, &gradients);
        }
        let mut memories = moved.move_to(&Device::flex());
        assert!(vectors(&moved).iter().all(Vec::is_empty), "nothing is left on the host");
        let mut on_device = rows(&start);
        for step in 0..12 {
            let rate = 0.02 * schedule.share(step, 12);
            let mut gradients = gradients(step);
            if step >= crossing {
                let device_gradients = rows(&gradients);
                let norm = f64::from(global_norm(&device_gradients).into_scalar::<f32>());
                on_device =
                    moved.step_on_device(rate, &mut memories, on_device, (device_gradients, norm));
            }
            let before = values.clone();
            clip_global_norm(&mut gradients, config.clip_norm);
            on_host.step(rate, &mut values, &gradients);
            assert_ne!(before, values, "{what}");
        }
        let found: Vec<Vec<f32>> = on_device.iter().map(read).collect();
        assert_near(&found, &values, &what);
        assert_eq!(moved.steps(), on_host.steps());
        moved.fetch(&memories);
        assert_near(&vectors(&moved), &vectors(&on_host), &format!("memory of {what}"));
        moved.release();
        assert!(vectors(&moved).is_empty());
    }

    #[test]
    fn every_rule_moves_parameters_on_a_device_as_on_the_host() {
        for kind in [
            OptimiserKind::AdamW,
            OptimiserKind::Sgd,
            OptimiserKind::Adafactor,
            OptimiserKind::BigVisionAdafactor,
            OptimiserKind::Lamb,
        ] {
            for clip_norm in [0.0, 0.7] {
                both(config(kind, clip_norm), 0);
                both(config(kind, clip_norm), 5);
            }
        }
    }

    #[test]
    fn groups_differ_on_a_device_too() {
        let config = config(OptimiserKind::Sgd, 0.0);
        let mut optimiser = optimiser(config);
        let mut memories = optimiser.move_to(&Device::flex());
        let ones: Vec<Vec<f32>> =
            drawn(Seed::new(1), 1.0).iter().map(|v| vec![1.0; v.len()]).collect();
        let found = optimiser.step_on_device(1.0, &mut memories, rows(&ones), (rows(&ones), 0.0));
        for ((name, shape), found) in PARAMETERS.iter().zip(found) {
            let Group { decays, rate } = Group::of(name, shape, 2, &config);
            let expected = 1.0 - rate * (1.0 + if decays { config.weight_decay } else { 0.0 });
            let found = read(&found);
            assert!(
                found.iter().all(|value| (f64::from(*value) - expected).abs() < 1e-6),
                "{name}"
            );
        }
    }

    #[test]
    fn the_norm_of_all_is_that_of_the_host_or_not_finite() {
        let mut gradients = gradients(3);
        let norm =
            |gradients: &[Vec<f32>]| f64::from(global_norm(&rows(gradients)).into_scalar::<f32>());
        let found = norm(&gradients);
        let expected = clip_global_norm(&mut gradients.clone(), 0.0);
        assert!((found / expected - 1.0).abs() < 1e-6);
        gradients[2][1] = f32::NAN;
        assert!(norm(&gradients).is_nan());
        gradients[2][1] = 1e30;
        assert!(norm(&gradients).is_infinite());
    }
}
