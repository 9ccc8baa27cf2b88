//! Training batches for MIMO: which images lie beside each other.

use burn::tensor::Tensor;
use omma_base::{Seed, transfer};
use omma_model::MimoConfig;
use rand::{RngExt, seq::SliceRandom};

/// Images beside each other on the channel axis, and which image of the batch each is.
#[derive(Debug, Clone)]
pub(super) struct MimoBatch {
    /// `[B·repetitions, H, W, channels · M]`.
    pub(super) images: Tensor<4>,
    /// For every member, the row of the batch that it sees in every example.
    pub(super) sources: Vec<Vec<usize>>,
}

/// Pairs the images of a batch (Havasi et al. 2020, paper 000 App. G.3): the batch is repeated, every
/// member gets a shuffle of it, and with the probability of input replication an example has one image
/// in all its places.
///
/// - `images`: `[B, H, W, channels]`
pub(super) fn pair(images: Tensor<4>, config: &MimoConfig, seed: Seed) -> MimoBatch {
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
        transfer::brought(&index);
        images.clone().select(0, Tensor::from_data(index.as_slice(), &images.device()))
    });
    MimoBatch { images: Tensor::cat(parts.collect(), 3), sources }
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;

    use super::*;

    #[test]
    fn images_are_paired_and_some_are_replicated() {
        let device = Device::flex();
        let rows: Vec<f32> = (0..200).map(|row| row as f32).collect();
        let images = Tensor::<1>::from_floats(rows.as_slice(), &device).reshape([200, 1, 1, 1]);
        for (input_replication, low, high) in [(0.0, 0, 8), (0.5, 160, 240), (1.0, 400, 400)] {
            let config = MimoConfig { members: 2, input_replication, batch_repetition: 2 };
            let batch = pair(images.clone(), &config, Seed::new(4));
            assert_eq!(batch.images.dims(), [400, 1, 1, 2]);
            let pairs = batch.sources[0].iter().zip(&batch.sources[1]);
            let same = pairs.filter(|(a, b)| a == b).count();
            assert!((low..=high).contains(&same), "{input_replication}: {same}");
            // Every row of a member's sources is the image that it sees.
            let seen = batch.images.reshape([400, 2]).swap_dims(0, 1);
            let seen: Vec<f32> = seen.try_into_vec_as().unwrap();
            let sources = batch.sources.iter().flatten();
            assert!(seen.iter().zip(sources).all(|(image, row)| *image == *row as f32));
        }
    }
}
