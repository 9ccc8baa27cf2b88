//! Training batches for MIMO: which images lie beside each other.

use burn::tensor::{Int, Tensor};
use omma_base::Seed;
use rand::{RngExt, seq::SliceRandom};

use crate::config::MimoConfig;

/// Images beside each other on the channel axis, and the label of every one of them.
#[derive(Debug, Clone)]
pub struct MimoBatch {
    /// `[B·repetitions, H, W, channels · M]`.
    pub images: Tensor<4>,
    /// For every member, the row of the batch that it sees in every example.
    pub sources: Vec<Vec<usize>>,
}

impl MimoBatch {
    /// `[M, B·repetitions]`: the labels that the members are to say.
    pub fn labels(&self, labels: &[i32], device: &burn::tensor::Device) -> Tensor<2, Int> {
        let members = self.sources.len();
        let values: Vec<i32> = self.sources.iter().flatten().map(|row| labels[*row]).collect();
        let examples = values.len() / members;
        Tensor::<1, Int>::from_data(values.as_slice(), device).reshape([members, examples])
    }
}

/// Pairs the images of a batch (Havasi et al. 2020, paper 000 App. G.3): the batch is repeated, every
/// member gets a shuffle of it, and with the probability of input replication an example has one image
/// in all its places.
///
/// - `images`: `[B, H, W, channels]`
pub fn pair(images: Tensor<4>, config: &MimoConfig, seed: Seed) -> MimoBatch {
    let [batch, ..] = images.dims();
    let first: Vec<usize> = (0..config.batch_repetition.max(1)).flat_map(|_| 0..batch).collect();
    let mut rng = seed.named("replication").rng();
    let replicated: Vec<bool> =
        first.iter().map(|_| rng.random_bool(config.input_replication.clamp(0.0, 1.0))).collect();
    let sources = (0..config.members).map(|member| {
        let mut rows = first.clone();
        rows.shuffle(&mut seed.named("shuffle").numbered(member as u64).rng());
        rows
    });
    let mut sources: Vec<Vec<usize>> = sources.collect();
    let leading = sources[0].clone();
    for rows in &mut sources {
        for (example, row) in
            rows.iter_mut().enumerate().filter(|(example, _)| replicated[*example])
        {
            *row = leading[example];
        }
    }
    let parts = sources.iter().map(|rows| {
        let index: Vec<i32> = rows.iter().map(|row| *row as i32).collect();
        images.clone().select(0, Tensor::from_data(index.as_slice(), &images.device()))
    });
    MimoBatch { images: Tensor::cat(parts.collect(), 3), sources }
}
